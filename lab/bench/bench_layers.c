/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_layers.c - how much of a load over drives hides behind computing, layer by layer.
 *
 * A prefix of 32 entries with 32 layers each lies on the drives. A computation of a layer takes as
 * long as the load of a layer: it is a sleep, as the computing is the GPU's. Four ways are timed:
 *
 *     layers   kvt_load_begin, and for each layer wait, compute, release
 *     coarse   the same, over stripe units of the default size
 *     whole    kvt_get_prefix, then all layers are computed
 *     serial   each entry lies whole on one drive, by the drives' speeds; kvt_get of one after the
 *              other, then all layers are computed
 *
 *     pair     two such loads of the same half of the entries, on two threads with a queue each;
 *              the second one begins when the first one has computed four layers. A layer is
 *              computed in half the time, as long as its half loads from idle drives
 *     apart    the same of two different halves: no read is of use to the other load
 *
 * The units of layers and whole are so small that one layer of one entry has its share on every
 * drive. With larger ones a layer lies on some drives alone, and on the same ones in every entry.
 *
 * Blocked is the time in the store's calls. The first layer cannot hide: 31/32 is the most.
 *
 * Thread rule: one bench at a time.
 */
#include "base/clock.h"
#include "base/thread.h"
#include "bench.h"
#include "bench_parts.h"

#include <kvterrace/load.h>
#include <kvterrace/lookup.h>
#include <stdlib.h>
#include <string.h>

enum {
    LAYERS_ENTRIES = 32,
    LAYERS_COUNT = 32,
    LAYERS_TOKENS = 128,
    LAYERS_TOKENS_QUICK = 8,
    LAYERS_REPEATS = 5,
    LAYERS_REPEATS_MAX = 25,
    LAYERS_HALF = LAYERS_ENTRIES / 2,
    LAYERS_LATE = 4 /* layers that the first of a pair has computed when the second begins */
};

typedef enum layers_way {
    LAYERS_LAYERED,
    LAYERS_WHOLE,
    LAYERS_COARSE,
    LAYERS_SERIAL,
    LAYERS_PAIR,
    LAYERS_APART,
    LAYERS_WAYS
} layers_way;

static const char *const layers_names[LAYERS_WAYS] = {"layers", "whole", "coarse",
                                                      "serial", "pair",  "apart"};

typedef struct layers_bench {
    const bench_options *options;
    kvt_layout layout;
    uint64_t bytes; /* of an entry */
    uint32_t repeats;
    kvt_store *stores[LAYERS_ENTRIES]; /* the pool alone, or one for each drive */
    uint32_t store_count;
    uint32_t home[LAYERS_ENTRIES]; /* the store of each entry */
    kvt_key keys[LAYERS_ENTRIES];
    kvt_view views[LAYERS_ENTRIES];
    const kvt_view *pointers[LAYERS_ENTRIES];
    uint64_t *data;            /* where the entries are loaded to, one after the other */
    uint64_t *source;          /* one entry */
    uint64_t compute_layer_ns; /* 0 until a load has been timed */
    bench_rate blocked[LAYERS_WAYS], elapsed[LAYERS_WAYS];
    double bytes_read[LAYERS_WAYS]; /* by loads, of all repeats */
    uint32_t wrong;                 /* entries that were missed or had other bytes */
} layers_bench;

static int layers_complain(kvt_status status, const char *message)
{
    fprintf(stderr, "kvterrace bench layers: %s\n",
            message[0] != '\0' ? message : kvt_status_text(status));
    return 1;
}

/* ---- entries ---- */

static uint64_t layers_word(uint32_t entry, uint64_t index)
{
    return ((uint64_t)entry << 40 ^ index) * UINT64_C(0x9e3779b97f4a7c15);
}

static kvt_status layers_put(layers_bench *bench, uint32_t number)
{
    kvt_store *store = bench->stores[bench->home[number]];
    const kvt_entry entry = {.struct_size = sizeof entry,
                             .key = bench->keys[number],
                             .layout = bench->layout,
                             .recompute_seconds = 1};
    for (uint64_t i = 0; i < bench->bytes / sizeof *bench->source; i++)
        bench->source[i] = layers_word(number, i);
    kvt_status status = kvt_put(store, &entry, bench->source, bench->bytes);
    return status == KVT_OK ? kvt_flush(store) : status;
}

/* Counts the entries that did not come as they were put, and forgets what came. */
static void layers_check(layers_bench *bench, layers_way way)
{
    const uint64_t words = bench->bytes / sizeof *bench->data;
    for (uint32_t entry = 0; entry < LAYERS_ENTRIES; entry++) {
        const uint64_t *got = bench->data + entry * words;
        const uint32_t wanted = way == LAYERS_PAIR ? entry % LAYERS_HALF : entry;
        bool right = true;
        for (uint64_t i = 0; i < words && right; i++)
            right = got[i] == layers_word(wanted, i);
        bench->wrong += !right;
    }
    memset(bench->data, 0, LAYERS_ENTRIES * bench->bytes);
}

/* ---- stores ---- */

static kvt_status layers_open(layers_bench *bench, const kvt_device_config *devices, uint32_t count,
                              uint32_t unit_bytes, char *message, size_t message_size)
{
    kvt_store_options options;
    kvt_store_options_init(&options);
    options.policy = "lru";
    options.lossless = false;
    options.format = true;
    options.tick_seconds = 0;
    options.put_staging_bytes = 0;
    options.tiers[KVT_TIER_SSD] =
        (kvt_tier_options){.devices = devices, .device_count = count, .unit_bytes = unit_bytes};
    return kvt_open(&options, &bench->stores[bench->store_count++], message, message_size);
}

static void layers_close(layers_bench *bench)
{
    while (bench->store_count != 0)
        kvt_close(bench->stores[--bench->store_count]);
}

static double layers_rate(const kvt_device_config *device)
{
    if (device->read_bytes_per_s != 0) return (double)device->read_bytes_per_s;
    double rate = device->path != NULL ? bench_drive_rate(device->path) : 0;
    return rate > 0 ? rate : 1;
}

/* Gives each entry the drive that would be done with it first. */
static void layers_deal(layers_bench *bench)
{
    double busy[TIERS_MEMBERS_MAX] = {0};
    for (uint32_t entry = 0; entry < LAYERS_ENTRIES; entry++) {
        uint32_t best = 0;
        double best_end = 0;
        for (uint32_t i = 0; i < bench->options->device_count; i++) {
            double end = busy[i] + 1 / layers_rate(&bench->options->devices[i]);
            if (i != 0 && end >= best_end) continue;
            best = i;
            best_end = end;
        }
        busy[best] = best_end;
        bench->home[entry] = best;
    }
}

/* The stripe unit with which a layer of an entry has one unit on the slowest drive. */
static uint32_t layers_unit(const layers_bench *bench)
{
    const bench_options *options = bench->options;
    const uint64_t grain = 4096;
    double least = layers_rate(&options->devices[0]), sum = 0;
    for (uint32_t i = 0; i < options->device_count; i++) {
        double rate = layers_rate(&options->devices[i]);
        if (rate < least) least = rate;
        sum += rate;
    }
    uint64_t unit = (uint64_t)((double)(bench->bytes / LAYERS_COUNT) * least / sum);
    unit = unit / grain * grain;
    if (unit > TIERS_UNIT_BYTES_DEFAULT) unit = TIERS_UNIT_BYTES_DEFAULT;
    return (uint32_t)(unit != 0 ? unit : grain);
}

/* Opens the stores that a way loads from, and puts the entries. */
static kvt_status layers_fill(layers_bench *bench, layers_way way, char *message,
                              size_t message_size)
{
    const bench_options *options = bench->options;
    const uint32_t unit = way == LAYERS_LAYERED || way == LAYERS_PAIR ? layers_unit(bench) : 0;
    kvt_status status = KVT_OK;
    memset(bench->home, 0, sizeof bench->home);
    if (way != LAYERS_SERIAL) {
        status = layers_open(bench, options->devices, options->device_count, unit, message,
                             message_size);
    } else {
        layers_deal(bench);
        for (uint32_t i = 0; i < options->device_count && status == KVT_OK; i++)
            status = layers_open(bench, &options->devices[i], 1, 0, message, message_size);
    }
    for (uint32_t i = 0; i < LAYERS_ENTRIES && status == KVT_OK; i++)
        status = layers_put(bench, i);
    return status;
}

/* ---- the ways ---- */

/* One layered load and its computing. */
typedef struct layers_one {
    kvt_queue *queue;
    const kvt_key *keys;
    const kvt_view *const *pointers;
    uint32_t count;
    uint64_t compute_ns; /* of a layer */
    uint64_t begin_ns;   /* an instant; 0: at once */
    uint64_t blocked_ns;
    uint64_t bytes_read;
} layers_one;

/* Loads layer by layer, and computes meanwhile. */
static void *layers_load_one(void *context)
{
    layers_one *one = context;
    kvt_load *load = NULL;
    kvt_load_result result = {.struct_size = sizeof result};
    if (one->begin_ns != 0) base_sleep_until(one->begin_ns);
    uint64_t mark_ns = base_clock_ns();
    kvt_status status =
        kvt_load_begin(one->queue, one->keys, one->pointers, one->count, NULL, &load);
    if (status != KVT_OK) return NULL;
    for (uint32_t layer = 0; layer < LAYERS_COUNT; layer++) {
        (void)!kvt_load_wait(load, layer + 1, KVT_NO_DEADLINE);
        uint64_t ready_ns = base_clock_ns();
        one->blocked_ns += ready_ns - mark_ns;
        base_sleep_until(ready_ns + one->compute_ns);
        mark_ns = base_clock_ns();
        kvt_load_release(load, layer + 1);
    }
    (void)kvt_load_end(load, NULL, &result);
    one->blocked_ns += base_clock_ns() - mark_ns;
    one->bytes_read = result.bytes_read;
    return NULL;
}

/* Loads all entries. Returns the nanoseconds blocked. */
static uint64_t layers_load_layered(layers_bench *bench, layers_way way, kvt_queue *queue)
{
    layers_one one = {.queue = queue,
                      .keys = bench->keys,
                      .pointers = bench->pointers,
                      .count = LAYERS_ENTRIES,
                      .compute_ns = bench->compute_layer_ns};
    (void)layers_load_one(&one);
    bench->bytes_read[way] += (double)one.bytes_read;
    return one.blocked_ns;
}

/* Two loads of half of the entries each, of the same half or of both. Returns the nanoseconds that
 * both were blocked. */
static uint64_t layers_load_two(layers_bench *bench, layers_way way, kvt_queue *queue)
{
    layers_one loads[2];
    pthread_t thread;
    kvt_queue *other = NULL;
    if (kvt_queue_open(bench->stores[0], NULL, &other) != KVT_OK) return 0;
    for (uint32_t i = 0; i < 2; i++)
        loads[i] = (layers_one){.queue = i == 0 ? queue : other,
                                .keys = bench->keys + (way == LAYERS_APART ? i * LAYERS_HALF : 0),
                                .pointers = bench->pointers + i * LAYERS_HALF,
                                .count = LAYERS_HALF,
                                .compute_ns = bench->compute_layer_ns / 2};
    loads[1].begin_ns = base_clock_ns() + LAYERS_LATE * loads[0].compute_ns;
    if (base_thread_start(&thread, layers_load_one, &loads[1]) != 0) {
        kvt_queue_close(other);
        return 0; /* the bytes say so */
    }
    (void)layers_load_one(&loads[0]);
    pthread_join(thread, NULL);
    kvt_queue_close(other);
    bench->bytes_read[way] += (double)(loads[0].bytes_read + loads[1].bytes_read);
    return loads[0].blocked_ns + loads[1].blocked_ns;
}

static void layers_load_whole(layers_bench *bench)
{
    size_t loaded = 0;
    (void)!kvt_get_prefix(bench->stores[0], bench->keys, bench->pointers, LAYERS_ENTRIES,
                          KVT_NO_DEADLINE, &loaded);
}

static void layers_load_serial(layers_bench *bench)
{
    for (uint32_t store = 0; store < bench->store_count; store++)
        for (uint32_t i = 0; i < LAYERS_ENTRIES; i++)
            if (bench->home[i] == store)
                (void)!kvt_get(bench->stores[store], &bench->keys[i], bench->views[i].base[0],
                               bench->bytes, NULL);
}

/* Times one load and its computing. What failed shows in the bytes. */
static void layers_time(layers_bench *bench, layers_way way, kvt_queue *queue, double *blocked,
                        double *elapsed)
{
    uint64_t began_ns = base_clock_ns(), blocked_ns;
    if (way == LAYERS_LAYERED || way == LAYERS_COARSE) {
        blocked_ns = layers_load_layered(bench, way, queue);
    } else if (way == LAYERS_PAIR || way == LAYERS_APART) {
        blocked_ns = layers_load_two(bench, way, queue);
    } else {
        if (way == LAYERS_WHOLE)
            layers_load_whole(bench);
        else
            layers_load_serial(bench);
        uint64_t ready_ns = base_clock_ns();
        blocked_ns = ready_ns - began_ns;
        base_sleep_until(ready_ns + LAYERS_COUNT * bench->compute_layer_ns);
    }
    *blocked = (double)blocked_ns * 1e-9;
    *elapsed = (double)(base_clock_ns() - began_ns) * 1e-9;
    layers_check(bench, way);
}

/* Says how long a layer's computing takes: as its load, in the quickest whole load of the pool. */
static void layers_set_compute(layers_bench *bench)
{
    double load[LAYERS_REPEATS_MAX], elapsed;
    for (uint32_t i = 0; i < bench->repeats; i++)
        layers_time(bench, LAYERS_WHOLE, NULL, &load[i], &elapsed);
    double seconds = bench_rate_of(load, bench->repeats).min;
    bench->compute_layer_ns = (uint64_t)(seconds * 1e9 / LAYERS_COUNT);
}

/* Times the ways from `first` to `last` in turns, over the stores that they have in common. */
static kvt_status layers_run_ways(layers_bench *bench, layers_way first, layers_way last)
{
    double blocked[LAYERS_WAYS][LAYERS_REPEATS_MAX], elapsed[LAYERS_WAYS][LAYERS_REPEATS_MAX];
    kvt_queue *queue = NULL;
    kvt_status status = kvt_queue_open(bench->stores[0], NULL, &queue);
    if (status != KVT_OK) return status;
    if (bench->compute_layer_ns == 0) layers_set_compute(bench);
    for (uint32_t i = 0; i < bench->repeats; i++)
        for (layers_way way = first; way <= last; way++)
            layers_time(bench, way, queue, &blocked[way][i], &elapsed[way][i]);
    kvt_queue_close(queue);
    for (layers_way way = first; way <= last; way++) {
        bench->blocked[way] = bench_rate_of(blocked[way], bench->repeats);
        bench->elapsed[way] = bench_rate_of(elapsed[way], bench->repeats);
    }
    return KVT_OK;
}

/* ---- the report ---- */

/* The share of the load that computing hid. Two loads of halves are as much as one of all. */
static double layers_hidden(const layers_bench *bench, int way)
{
    double load = (double)bench->compute_layer_ns * LAYERS_COUNT * 1e-9;
    double hidden = load > 0 ? 1 - bench->blocked[way].median / load : 0;
    return hidden > 0 ? hidden : 0;
}

/* Bytes that loads have read from the drives, a run; 0 of ways that load otherwise. */
static double layers_bytes(const layers_bench *bench, int way)
{
    return bench->bytes_read[way] / bench->repeats;
}

static int layers_print_json(const layers_bench *bench)
{
    json_t *root = bench_report_head("kvterrace-bench-layers-1", bench->repeats);
    json_t *list = json_array();
    int failed = root == NULL || list == NULL;
    for (int way = 0; way < LAYERS_WAYS && !failed; way++) {
        json_t *row =
            json_pack("{s:s, s:f}", "case", layers_names[way], "hidden", layers_hidden(bench, way));
        failed = row == NULL || bench_put_rate(row, "blocked_s", &bench->blocked[way]) ||
                 bench_put_rate(row, "elapsed_s", &bench->elapsed[way]) ||
                 json_object_set_new(row, "bytes_read", json_real(layers_bytes(bench, way))) ||
                 json_array_append(list, row);
        json_decref(row);
    }
    if (!failed) {
        json_t *facts = json_pack(
            "{s:O, s:I, s:I, s:I, s:I, s:f, s:I}", "rows", list, "unit_bytes",
            (json_int_t)layers_unit(bench), "layers", (json_int_t)LAYERS_COUNT, "entries",
            (json_int_t)LAYERS_ENTRIES, "entry_bytes", (json_int_t)bench->bytes, "compute_layer_s",
            (double)bench->compute_layer_ns * 1e-9, "wrong", (json_int_t)bench->wrong);
        failed = facts == NULL || json_object_update(root, facts);
        json_decref(facts);
    }
    json_decref(list);
    return bench_report_print(bench->options->out, failed ? NULL : root);
}

static int layers_print_text(const layers_bench *bench)
{
    FILE *out = bench->options->out;
    fprintf(out, "%d entries of %llu bytes, %d layers, each computed in %.2f ms\n", LAYERS_ENTRIES,
            (unsigned long long)bench->bytes, LAYERS_COUNT, (double)bench->compute_layer_ns * 1e-6);
    fprintf(out, "%-8s %11s %23s %11s %7s %9s\n", "way", "blocked, s", "", "elapsed, s", "hidden",
            "read, MB");
    for (int way = 0; way < LAYERS_WAYS; way++)
        fprintf(out, "%-8s %11.4f (%9.4f - %9.4f) %11.4f %7.3f %9.1f\n", layers_names[way],
                bench->blocked[way].median, bench->blocked[way].min, bench->blocked[way].max,
                bench->elapsed[way].median, layers_hidden(bench, way),
                layers_bytes(bench, way) * 1e-6);
    fprintf(out, "wrong or missing entries: %u\n", bench->wrong);
    return ferror(out) != 0;
}

/* ---- the whole ---- */

static bool layers_make(layers_bench *bench)
{
    if (kvt_layout_bytes(&bench->layout, &bench->bytes) != KVT_OK) return false;
    bench->source = bench_buffer(bench->bytes);
    bench->data = bench_buffer(LAYERS_ENTRIES * bench->bytes);
    if (bench->source == NULL || bench->data == NULL) return false;
    memset(bench->data, 0, LAYERS_ENTRIES * bench->bytes);
    for (uint32_t i = 0; i < LAYERS_ENTRIES; i++) {
        memcpy(bench->keys[i].bytes, "layers", 6);
        memcpy(bench->keys[i].bytes + 8, &i, sizeof i);
        bench->views[i] = kvt_view_packed(&bench->layout, (char *)bench->data + i * bench->bytes);
        bench->pointers[i] = &bench->views[i];
    }
    return true;
}

static int layers_run(layers_bench *bench)
{
    char message[256] = "";
    kvt_status status = layers_make(bench) ? KVT_OK : KVT_E_MEMORY;
    static const struct {
        layers_way first, last;
        const char *what;
    } parts[] = {{LAYERS_LAYERED, LAYERS_WHOLE, "layers beside whole entries"},
                 {LAYERS_COARSE, LAYERS_COARSE, "layers over large units"},
                 {LAYERS_SERIAL, LAYERS_SERIAL, "one drive after the other"},
                 {LAYERS_PAIR, LAYERS_APART, "two loads at once"}};
    enum { PARTS = sizeof parts / sizeof parts[0] };
    for (uint32_t i = 0; i < PARTS && status == KVT_OK; i++) {
        bench_tell(bench->options, i, PARTS, parts[i].what);
        status = layers_fill(bench, parts[i].first, message, sizeof message);
        if (status == KVT_OK) status = layers_run_ways(bench, parts[i].first, parts[i].last);
        layers_close(bench);
    }
    bench_tell(bench->options, 1, 1, NULL);
    if (status != KVT_OK) return layers_complain(status, message);
    int code = bench->options->json ? layers_print_json(bench) : layers_print_text(bench);
    return bench->wrong == 0 ? code
                             : layers_complain(KVT_E_CORRUPT, "entries were missing or wrong");
}

int bench_layers_run(const bench_options *options)
{
    kvt_device_config own[BENCH_OWN_DRIVES];
    bench_options given = *options;
    bench_give_drives(&given, UINT64_C(1) << (given.quick ? 26 : 29), 0, own);
    if (given.device_count > LAYERS_ENTRIES)
        return layers_complain(KVT_E_ARGUMENT, "at most 32 drives");
    if (bench_kept_drive(&given) != NULL)
        return layers_complain(KVT_E_MISMATCH,
                               "a device may hold data; store.format = yes gives it up");
    layers_bench bench = {.options = &given,
                          .layout = {.layers = LAYERS_COUNT,
                                     .kv_heads = 8,
                                     .head_dim = 128,
                                     .dtype = KVT_DTYPE_BF16,
                                     .tokens = given.quick ? LAYERS_TOKENS_QUICK : LAYERS_TOKENS},
                          .repeats =
                              bench_repetitions(given.iterations, LAYERS_REPEATS, given.quick)};
    if (bench.repeats > LAYERS_REPEATS_MAX) bench.repeats = LAYERS_REPEATS_MAX;
    int code = layers_run(&bench);
    free(bench.source);
    free(bench.data);
    return code;
}
