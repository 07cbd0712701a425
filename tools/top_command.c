/* SPDX-License-Identifier: Apache-2.0 */
/*
 * top_command.c - kvterrace top: a lent store on one screen of 80 columns, again and again.
 *
 * A screen is made in memory and written whole. On a terminal it is drawn over the last one; else
 * screens follow one another. One thread.
 */
#include "commands.h"
#include "top_sample.h"

#include "base/clock.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define TOP_COLUMNS 80
#define TOP_NAP_NS  UINT64_C(20000000)

typedef struct top_arguments {
    command_common common;
    bool once;
    double interval; /* seconds; 0: not given */
} top_arguments;

static const command_option top_rows[] = {
    LIVE_CONNECT_OPTION,
    FLAG_OPTION(top_arguments, once, "once", '1',
                "One screen, with rates since the open, or over --interval where that is given"),
    {.name = "interval",
     .argument = "TIME",
     .text = "Time from one screen to the next (1s)",
     .kind = OPTION_TIME,
     .least = 0.01,
     .most = 86400,
     .offset = offsetof(top_arguments, interval)},
    {0},
};

/* ---- signals ---- */

static atomic_bool top_ends;
static atomic_bool top_asks; /* a server that does not answer keeps the command in a call */

/* Ends it after what it does; while it asks, at once: nothing has been begun then. */
static void top_signal(int number)
{
    (void)number;
    const int error = errno;
    if (atomic_load(&top_asks)) _exit(EXIT_FINE);
    atomic_store(&top_ends, true);
    errno = error;
}

static void top_catch_signals(void)
{
    const struct sigaction action = {.sa_handler = top_signal};
    (void)sigaction(SIGINT, &action, NULL);
    (void)sigaction(SIGTERM, &action, NULL);
}

/* ---- a screen ---- */

typedef struct top_screen {
    FILE *out;
    bool terminal;
    unsigned lines, lines_max; /* of a terminal, as columns is */
    int columns;
} top_screen;

/* Writes a line, cut at the last column, while there is room for it. */
static void top_line(top_screen *screen, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
static void top_line(top_screen *screen, const char *format, ...)
{
    char text[512];
    va_list arguments;
    if (screen->lines >= screen->lines_max) return;
    va_start(arguments, format);
    (void)vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    /* Names and messages may hold any bytes. */
    for (char *at = text; *at != '\0'; at++)
        if ((unsigned char)*at < ' ' || *at == 0x7f) *at = '?';
    fprintf(screen->out, "%.*s%s\n", screen->columns, text, screen->terminal ? "\033[K" : "");
    screen->lines++;
}

/* What a screen says of the time since an earlier sample, or since the open. */
typedef struct top_view {
    const top_sample *now, *before; /* before: NULL = since the open */
    double seconds;
} top_view;

static top_view top_view_make(const top_sample *earlier, const top_sample *now)
{
    if (earlier == NULL || !tools_top_goes_on(earlier, now))
        return (top_view){.now = now, .seconds = now->open_seconds};
    return (top_view){
        .now = now, .before = earlier, .seconds = (double)(now->at_ns - earlier->at_ns) * 1e-9};
}

/* A counter in a second. */
static double top_rate(const top_view *view, uint64_t now, uint64_t before)
{
    if (view->before == NULL) before = 0;
    return view->seconds > 0 && now >= before ? (double)(now - before) / view->seconds : 0;
}

/* A counter's rate, by the member's place in both samples. */
static double top_rate_at(const top_view *view, size_t offset)
{
    uint64_t now, before = 0;
    memcpy(&now, (const char *)view->now + offset, sizeof now);
    if (view->before != NULL) memcpy(&before, (const char *)view->before + offset, sizeof before);
    return top_rate(view, now, before);
}
#define TOP_RATE(view, member) top_rate_at(view, offsetof(top_sample, member))

static const kvt_device_stats *top_device_before(const top_view *view, const char *name)
{
    for (size_t i = 0; view->before != NULL && i < view->before->device_count; i++)
        if (strcmp(view->before->devices[i].name, name) == 0) return &view->before->devices[i];
    return NULL;
}

static double top_device_rate(const top_view *view, const kvt_device_stats *device, size_t offset)
{
    const kvt_device_stats *earlier = top_device_before(view, device->name);
    uint64_t now, before = 0;
    memcpy(&now, (const char *)device + offset, sizeof now);
    if (earlier != NULL) memcpy(&before, (const char *)earlier + offset, sizeof before);
    /* A device that was put into another's place counts anew. */
    return top_rate(view, now, before <= now ? before : 0);
}

/* A share in percent; "-" of nothing. */
static const char *top_share(char text[16], double part, double whole)
{
    if (!(whole > 0))
        (void)snprintf(text, 16, "-");
    else
        (void)snprintf(text, 16, "%.1f %%", 100 * part / whole);
    return text;
}

static const char *top_time(char text[32], double seconds)
{
    const uint64_t whole = seconds > 0 ? (uint64_t)seconds : 0;
    if (whole < 120)
        (void)snprintf(text, 32, "%llu s", (unsigned long long)whole);
    else if (whole < 7200)
        (void)snprintf(text, 32, "%llu min", (unsigned long long)(whole / 60));
    else if (whole < 172800)
        (void)snprintf(text, 32, "%llu h %llu min", (unsigned long long)(whole / 3600),
                       (unsigned long long)(whole / 60 % 60));
    else
        (void)snprintf(text, 32, "%llu d %llu h", (unsigned long long)(whole / 86400),
                       (unsigned long long)(whole / 3600 % 24));
    return text;
}

static const char *top_tier(kvt_tier tier)
{
    const char *name = kvt_tier_name((int)tier);
    return name != NULL ? name : "?";
}

static void top_draw_health(top_screen *screen, const top_sample *now)
{
    char text[32];
    if (now->health_count == 0) {
        top_line(screen, "all in order");
        return;
    }
    for (size_t i = 0; i < now->health_count && i < TOP_HEALTH_MAX; i++) {
        const kvt_health_item *item = &now->health[i];
        top_line(screen, "! %s, %s: %s", item->name, top_time(text, item->seconds), item->text);
    }
    if (now->health_count > TOP_HEALTH_MAX)
        top_line(screen, "! and %zu more", now->health_count - TOP_HEALTH_MAX);
}

static void top_draw_tiers(top_screen *screen, const top_view *view)
{
    const kvt_store_stats *stats = &view->now->stats;
    const double gets = TOP_RATE(view, stats.gets);
    char texts[4][32], shares[2][16];
    top_line(screen, "%-5s %8s %8s %9s %9s %7s %7s %8s %9s", "tier", "used", "of", "entries",
             "hits/s", "of gets", "ever", "read/s", "written/s");
    for (int tier = KVT_TIER_HBM; tier < KVT_TIER_PLACES; tier++) {
        const kvt_tier_stats *of = &stats->tiers[tier];
        if (of->capacity_bytes == 0 && of->hits == 0) continue;
        const double hits = TOP_RATE(view, stats.tiers[tier].hits);
        top_line(screen, "%-5s %8s %8s %9llu %9.1f %7s %7s %8s %9s", top_tier((kvt_tier)tier),
                 format_bytes(texts[0], of->used_bytes), format_bytes(texts[1], of->capacity_bytes),
                 (unsigned long long)of->entries, hits, top_share(shares[0], hits, gets),
                 top_share(shares[1], (double)of->hits, (double)stats->gets),
                 format_bytes(texts[2], (uint64_t)TOP_RATE(view, stats.tiers[tier].bytes_read)),
                 format_bytes(texts[3], (uint64_t)TOP_RATE(view, stats.tiers[tier].bytes_written)));
    }
}

static void top_draw_devices(top_screen *screen, const top_view *view)
{
    char texts[6][32];
    top_line(screen, "%-12s %-4s %-8s %8s %8s %8s %8s %8s %8s", "device", "tier", "state", "used",
             "read/s", "reads at", "write/s", "write at", "pending");
    for (size_t i = 0; i < view->now->device_count; i++) {
        const kvt_device_stats *of = &view->now->devices[i];
        top_line(screen, "%-12.12s %-4s %-8s %8s %8s %8s %8s %8s %8s", of->name, top_tier(of->tier),
                 tools_live_device_state(of->state), format_bytes(texts[0], of->used_bytes),
                 format_bytes(texts[1], (uint64_t)top_device_rate(
                                            view, of, offsetof(kvt_device_stats, bytes_read))),
                 format_bytes(texts[2], (uint64_t)of->read_bytes_per_s),
                 format_bytes(texts[3], (uint64_t)top_device_rate(
                                            view, of, offsetof(kvt_device_stats, bytes_written))),
                 format_bytes(texts[4], (uint64_t)of->write_bytes_per_s),
                 format_bytes(texts[5], of->pending_bytes));
    }
}

/* Whose copies go first when a node is full, by its policy. */
static const char *top_eviction(const char *policy)
{
    static const char *const words[][2] = {
        {"noeviction", "full, it refuses new copies"},
        {"allkeys-lru", "idle longest go first, whosever"},
        {"allkeys-lfu", "least used go first, whosever"},
        {"allkeys-random", "any go, whosever"},
        {"volatile-ttl", "those whose ttl ends soonest go first"}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strcmp(policy, words[i][0]) == 0) return words[i][1];
    return strncmp(policy, "volatile-", 9) == 0 ? "those with a ttl go alone" : policy;
}

static void top_draw_nodes(top_screen *screen, const top_sample *now)
{
    char texts[2][32];
    for (size_t i = 0; i < now->node_count; i++) {
        const kvt_remote_node *of = &now->nodes[i];
        if (of->eviction[0] == '\0') {
            top_line(screen, "%-10s%.30s, its memory is not known", "engine", of->address);
            continue;
        }
        top_line(screen, "%-10s%.30s %s of %s; %s", "engine", of->address,
                 format_bytes(texts[0], of->memory_bytes),
                 of->memory_bytes_max != 0 ? format_bytes(texts[1], of->memory_bytes_max)
                                           : "no end",
                 top_eviction(of->eviction));
    }
}

/* "refused  policy 3 (+1), backlog 2": a family since the open, and in brackets what has come since
 * the last screen. Zeros are left out. */
static void top_draw_parts(top_screen *screen, const char *name, const top_parts *parts,
                           const top_parts *before)
{
    char text[TOP_COLUMNS + 1];
    size_t used = (size_t)snprintf(text, sizeof text, "%-10s", name);
    bool any = false;
    for (size_t i = 0; i < parts->count; i++) {
        char part[96], gained[32] = "";
        const double value = parts->parts[i].value;
        const double more =
            before != NULL ? value - tools_top_part(before, parts->parts[i].name) : 0;
        if (!(value > 0)) continue;
        if (more > 0) (void)snprintf(gained, sizeof gained, " (+%.0f)", more);
        const size_t length = (size_t)snprintf(part, sizeof part, "%s%s %.0f%s", any ? ", " : "",
                                               parts->parts[i].name, value, gained);
        if (used + length + 5 > sizeof text) {
            used += (size_t)snprintf(text + used, sizeof text - used, ", ..");
            break;
        }
        memcpy(text + used, part, length + 1);
        used += length;
        any = true;
    }
    top_line(screen, "%s%s", text, any ? "" : "none");
}

static void top_draw_calls(top_screen *screen, const top_view *view)
{
    const kvt_store_stats *stats = &view->now->stats;
    const top_sample *before = view->before;
    const uint64_t hits = tools_top_hits(stats),
                   hits_before = before ? tools_top_hits(&before->stats) : 0;
    char shares[2][16], text[32];
    top_line(
        screen, "%-10s%.1f/s, hits %s now, %s ever; %llu ever", "gets", TOP_RATE(view, stats.gets),
        top_share(shares[0], top_rate(view, hits, hits_before), TOP_RATE(view, stats.gets)),
        top_share(shares[1], (double)hits, (double)stats->gets), (unsigned long long)stats->gets);
    top_draw_parts(screen, "missed", &view->now->misses, before ? &before->misses : NULL);
    top_draw_parts(screen, "hit as", &view->now->forms, before ? &before->forms : NULL);
    top_line(screen, "%-10s%.1f/s; %llu ever, stored already %llu, lost %llu", "puts",
             TOP_RATE(view, stats.puts), (unsigned long long)stats->puts,
             (unsigned long long)stats->puts_existing, (unsigned long long)stats->puts_lost);
    top_draw_parts(screen, "refused", &view->now->refusals, before ? &before->refusals : NULL);
    top_draw_parts(screen, "moves", &view->now->moves, before ? &before->moves : NULL);
    top_line(screen, "%-10sfailed %llu, put off %llu, entries that back off %llu", "",
             (unsigned long long)stats->moves.aborted, (unsigned long long)stats->moves.deferred,
             (unsigned long long)stats->backing_off);
    top_draw_parts(screen, "MB to SSD", &view->now->written_mb,
                   before ? &before->written_mb : NULL);
    top_line(screen, "%-10sputs %llu (%s), records in motion %s", "waiting",
             (unsigned long long)stats->puts_waiting, format_bytes(text, stats->put_staging_bytes),
             format_bytes((char[32]){0}, stats->staging_bytes));
    top_line(screen, "%-10s%llu copies on SSD (%s), %llu leases of %llu entries", "held",
             (unsigned long long)stats->copies.count, format_bytes(text, stats->copies.bytes),
             (unsigned long long)stats->leases.leases, (unsigned long long)stats->leases.entries);
}

static void top_draw(top_screen *screen, const char *path, const top_view *view)
{
    char open[32];
    top_line(screen, "kvterrace %s at %.40s, open %s", view->now->version, path,
             top_time(open, view->now->open_seconds));
    top_draw_health(screen, view->now);
    top_line(screen, "%s", "");
    top_draw_tiers(screen, view);
    top_line(screen, "%s", "");
    top_draw_devices(screen, view);
    top_line(screen, "%s", "");
    top_draw_calls(screen, view);
    top_draw_nodes(screen, view->now);
}

/* ---- the document ---- */

static json_t *top_parts_json(const top_parts *parts)
{
    json_t *object = json_object();
    for (size_t i = 0; i < parts->count; i++)
        (void)json_object_set_new(object, parts->parts[i].name,
                                  json_integer((json_int_t)parts->parts[i].value));
    return object;
}

static json_t *top_tiers_json(const top_view *view)
{
    json_t *tiers = json_object();
    for (int tier = KVT_TIER_HBM; tier < KVT_TIER_PLACES; tier++) {
        const kvt_tier_stats *of = &view->now->stats.tiers[tier];
        if (of->capacity_bytes == 0 && of->hits == 0) continue;
        (void)json_object_set_new(
            tiers, top_tier((kvt_tier)tier),
            json_pack("{s:I, s:I, s:I, s:I, s:f, s:f, s:f}", "used_bytes",
                      (json_int_t)of->used_bytes, "capacity_bytes", (json_int_t)of->capacity_bytes,
                      "entries", (json_int_t)of->entries, "hits", (json_int_t)of->hits,
                      "hits_per_s", TOP_RATE(view, stats.tiers[tier].hits), "read_bytes_per_s",
                      TOP_RATE(view, stats.tiers[tier].bytes_read), "written_bytes_per_s",
                      TOP_RATE(view, stats.tiers[tier].bytes_written)));
    }
    return tiers;
}

static json_t *top_devices_json(const top_view *view)
{
    json_t *devices = json_array();
    for (size_t i = 0; i < view->now->device_count; i++) {
        const kvt_device_stats *of = &view->now->devices[i];
        (void)json_array_append_new(
            devices,
            json_pack("{s:o, s:s, s:s, s:I, s:I, s:I, s:f, s:f, s:f, s:f}", "device",
                      view_string(of->name), "tier", top_tier(of->tier), "state",
                      tools_live_device_state(of->state), "used_bytes", (json_int_t)of->used_bytes,
                      "capacity_bytes", (json_int_t)of->facts.capacity_bytes, "pending_bytes",
                      (json_int_t)of->pending_bytes, "read_per_s",
                      top_device_rate(view, of, offsetof(kvt_device_stats, bytes_read)),
                      "written_per_s",
                      top_device_rate(view, of, offsetof(kvt_device_stats, bytes_written)),
                      "read_bytes_per_s", of->read_bytes_per_s, "write_bytes_per_s",
                      of->write_bytes_per_s));
    }
    return devices;
}

static json_t *top_nodes_json(const top_sample *now)
{
    json_t *nodes = json_array();
    for (size_t i = 0; i < now->node_count; i++)
        (void)json_array_append_new(
            nodes, json_pack("{s:o, s:I, s:I, s:o}", "address", view_string(now->nodes[i].address),
                             "memory_bytes", (json_int_t)now->nodes[i].memory_bytes,
                             "memory_bytes_max", (json_int_t)now->nodes[i].memory_bytes_max,
                             "eviction", view_string(now->nodes[i].eviction)));
    return nodes;
}

static json_t *top_document(const char *path, const top_view *view)
{
    const top_sample *now = view->now;
    json_t *health = json_array();
    for (size_t i = 0; i < now->health_count && i < TOP_HEALTH_MAX; i++)
        (void)json_array_append_new(
            health, json_pack("{s:o, s:s, s:f, s:o}", "name", view_string(now->health[i].name),
                              "status", kvt_status_name(now->health[i].status), "seconds",
                              now->health[i].seconds, "text", view_string(now->health[i].text)));
    return json_pack(
        "{s:s, s:o, s:b, s:s, s:f, s:f, s:o, s:o, s:o, s:I, s:I, s:f, s:f, s:o, s:o, s:o, s:o,"
        " s:o, s:I, s:I, s:o}",
        "schema", "kvterrace-top-1", "socket", view_string(path), "there", 1, "version",
        now->version, "open_seconds", now->open_seconds, "seconds", view->seconds, "health", health,
        "tiers", top_tiers_json(view), "devices", top_devices_json(view), "gets",
        (json_int_t)now->stats.gets, "puts", (json_int_t)now->stats.puts, "gets_per_s",
        TOP_RATE(view, stats.gets), "puts_per_s", TOP_RATE(view, stats.puts), "misses",
        top_parts_json(&now->misses), "refusals", top_parts_json(&now->refusals), "moves",
        top_parts_json(&now->moves), "hits", top_parts_json(&now->forms), "ssd_written_mb",
        top_parts_json(&now->written_mb), "puts_waiting", (json_int_t)now->stats.puts_waiting,
        "put_staging_bytes", (json_int_t)now->stats.put_staging_bytes, "engine",
        top_nodes_json(now));
}

/* ---- the run ---- */

/* Shows a view, or without one that the server is gone. */
static int top_show(const top_arguments *arguments, const char *path, const top_view *view)
{
    struct winsize window = {0};
    char *text = NULL;
    size_t bytes = 0;
    if (arguments->common.json) {
        const int code = command_print_document(
            view != NULL ? top_document(path, view)
                         : json_pack("{s:s, s:o, s:b}", "schema", "kvterrace-top-1", "socket",
                                     view_string(path), "there", 0));
        (void)fflush(stdout);
        return code;
    }
    top_screen screen = {.out = open_memstream(&text, &bytes),
                         .terminal = isatty(STDOUT_FILENO) == 1 && !arguments->once,
                         .lines_max = UINT32_MAX,
                         .columns = TOP_COLUMNS};
    if (screen.out == NULL) return command_fail(KVT_E_MEMORY, "");
    if (screen.terminal && ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) == 0) {
        if (window.ws_row > 1) screen.lines_max = window.ws_row - 1u;
        if (window.ws_col > 0 && window.ws_col < TOP_COLUMNS) screen.columns = window.ws_col;
    }
    if (screen.terminal) fputs("\033[H", screen.out);
    if (view != NULL)
        top_draw(&screen, path, view);
    else
        top_line(&screen, "%.60s: the server is gone", path);
    if (screen.terminal) fputs("\033[J", screen.out);
    if (!screen.terminal && !arguments->once && view != NULL) fputc('\n', screen.out);
    const bool made = fclose(screen.out) == 0;
    if (made) fwrite(text, 1, bytes, stdout);
    (void)fflush(stdout);
    free(text);
    return made ? EXIT_FINE : command_fail(KVT_E_MEMORY, "");
}

/* Waits until an instant, or until a signal. */
static void top_wait(uint64_t until_ns)
{
    uint64_t now_ns;
    while (!atomic_load(&top_ends) && (now_ns = base_clock_ns()) < until_ns)
        base_sleep(until_ns - now_ns < TOP_NAP_NS ? until_ns - now_ns : TOP_NAP_NS);
}

static kvt_status top_take(const live_store *live, top_sample *sample)
{
    atomic_store(&top_asks, true);
    const kvt_status status =
        atomic_load(&top_ends) ? KVT_E_CANCELLED : tools_top_sample_take(live, sample);
    atomic_store(&top_asks, false);
    return status;
}

static int top_loop(const top_arguments *arguments, const live_store *live, top_sample samples[2])
{
    const uint64_t step_ns = (uint64_t)((arguments->interval > 0 ? arguments->interval : 1) * 1e9);
    const bool twice = arguments->once && arguments->interval > 0;
    bool gone = false;
    top_sample *before = NULL, *now = &samples[0];
    int code = EXIT_FINE;
    for (uint32_t round = 0; code == EXIT_FINE && !atomic_load(&top_ends); round++) {
        const uint64_t next_ns = base_clock_ns() + step_ns;
        const kvt_status status = top_take(live, now);
        if (status == KVT_E_CANCELLED) break;
        if (status != KVT_OK && (status != KVT_E_GONE || arguments->once))
            return tools_live_fail(live, status, "");
        if (status == KVT_E_GONE && !gone) code = top_show(arguments, live->path, NULL);
        if (status == KVT_OK && (!twice || round > 0)) {
            const top_view view = top_view_make(before, now);
            code = top_show(arguments, live->path, &view);
            if (arguments->once) break;
        }
        gone = status == KVT_E_GONE;
        if (!gone) {
            before = now;
            now = now == &samples[0] ? &samples[1] : &samples[0];
        }
        top_wait(next_ns);
    }
    return code;
}

static int top_run(void *context)
{
    const top_arguments *arguments = context;
    live_store live;
    top_sample *samples = calloc(2, sizeof *samples);
    if (samples == NULL) return command_fail(KVT_E_MEMORY, "");
    int code = tools_live_open(&arguments->common, &live);
    if (code == EXIT_FINE) {
        top_catch_signals();
        code = top_loop(arguments, &live, samples);
    }
    tools_live_close(&live);
    free(samples);
    return code;
}

const command_spec tools_top_spec = {
    .name = "top",
    .summary = "watch a store that is lent, on one screen",
    .about = "Shows a store that kvterrace serve lends, every second: tiers, devices, gets, puts, "
             "moves, what waits, and what is out of order. Ends on SIGINT with exit code 0. Goes "
             "on through a restart of the server.",
    .details = "Rates count from the last screen, and on the first one from the store's open; ever "
               "is from the open. \"of gets\" is the share of the gets that the tier served; "
               "\"reads at\" and \"write at\" are a device's speed while it was busy. With --json "
               "each screen is a document.",
    .example = "  kvterrace top --connect /run/kvt.sock\n"
               "  kvterrace top --config kvt.ini --once --json",
    .options = top_rows,
    .argument_bytes = sizeof(top_arguments),
    .run = top_run,
    .settings = SETTINGS_OWN,
};
