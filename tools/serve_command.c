/* SPDX-License-Identifier: Apache-2.0 */
/*
 * serve_command.c - kvterrace serve: opens the store of a configuration and lends it to the other
 * processes of the host, until a signal. One thread, beside those of the store and of the server.
 */
#include "commands.h"

#include "base/clock.h"
#include "base/config_values.h"
#include "base/settings_fields.h"
#include "serve/server/metrics_http.h"
#include "serve/server/server.h"

#include <errno.h>
#include <grp.h>
#include <pwd.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { SERVE_USERS = 256, SERVE_DRAIN_MS = 120000 };

typedef struct serve_arguments {
    command_common common;
    const char *metrics;
    bool drain;
} serve_arguments;

static const command_option serve_rows[] = {
    TEXT_OPTION(serve_arguments, metrics, "metrics", 0, "ADDRESS",
                "Answer HTTP at ADDRESS, as 127.0.0.1:9100: /metrics and /health"),
    FLAG_OPTION(serve_arguments, drain, "drain", 0, "Have a server at the socket leave first"),
    {0},
};

/* ---- signals ---- */

static server *_Atomic serve_lends; /* what a signal stops */
static atomic_int serve_signals;

/* The first signal has the server leave, the second one ends the process. */
static void serve_signal(int number)
{
    (void)number;
    const int error = errno;
    server *lends = atomic_load(&serve_lends);
    if (atomic_fetch_add(&serve_signals, 1) > 0) _exit(EXIT_INTERRUPTED);
    if (lends != NULL) server_stop(lends);
    errno = error;
}

static void serve_catch_signals(void)
{
    const struct sigaction action = {.sa_handler = serve_signal};
    (void)sigaction(SIGINT, &action, NULL);
    (void)sigaction(SIGTERM, &action, NULL);
}

/* Tells systemd what the process does, when it has asked: a datagram to the socket that
 * NOTIFY_SOCKET names, whose path begins with @ where it is abstract. */
static void serve_notify(const char *text)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    const char *path = getenv("NOTIFY_SOCKET");
    if (path == NULL || (path[0] != '/' && path[0] != '@')) return;
    const size_t length = strlen(path);
    if (length >= sizeof to.sun_path) return;
    memcpy(to.sun_path, path, length);
    if (path[0] == '@') to.sun_path[0] = '\0';
    const int notify = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (notify < 0) return;
    (void)sendto(notify, text, strlen(text), MSG_NOSIGNAL | MSG_DONTWAIT,
                 (const struct sockaddr *)&to,
                 (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length));
    close(notify);
}

/* ---- settings ---- */

/* What the settings of [serve] say. */
typedef struct serve_settings {
    server_options options;
    double leave_seconds;
    gid_t group;
    uid_t users[SERVE_USERS], operators[SERVE_USERS];
} serve_settings;

static const settings_field serve_fields[] = {
    SETTINGS_FIELD(serve_settings, "serve.sessions", options.sessions),
    SETTINGS_FIELD(serve_settings, "serve.depth", options.depth),
    SETTINGS_FIELD(serve_settings, "serve.registered", options.registered_bytes),
    SETTINGS_FIELD(serve_settings, "serve.staging", options.staging_bytes),
    SETTINGS_FIELD(serve_settings, "serve.in_flight", options.in_flight_bytes),
    SETTINGS_FIELD(serve_settings, "serve.leave", leave_seconds),
};

static bool serve_number(const char *text, int base, unsigned long most, unsigned long *out)
{
    char *end = NULL;
    errno = 0;
    *out = strtoul(text, &end, base);
    return text[0] >= '0' && text[0] <= '9' && errno == 0 && *end == '\0' && *out <= most;
}

/* Reads "alice,1000". KVT_OK; KVT_E_CONFIG with a message. */
static kvt_status serve_read_users(const char *key, const char *text, uid_t *users, size_t *count,
                                   char *message, size_t message_size)
{
    *count = 0;
    while (text[0] != '\0') {
        char name[64];
        const size_t length = strcspn(text, ",");
        unsigned long number;
        if (*count == SERVE_USERS || length == 0 || length >= sizeof name) {
            snprintf(message, message_size, "%s: up to %d names or numbers, with commas", key,
                     SERVE_USERS);
            return KVT_E_CONFIG;
        }
        memcpy(name, text, length);
        name[length] = '\0';
        const struct passwd *user = getpwnam(name);
        if (user == NULL && !serve_number(name, 10, (uid_t)-2, &number)) {
            snprintf(message, message_size, "%s: there is no user %s", key, name);
            return KVT_E_CONFIG;
        }
        users[(*count)++] = user != NULL ? user->pw_uid : (uid_t)number;
        text += length + (text[length] == ',');
    }
    return KVT_OK;
}

static kvt_status serve_read_group(const char *text, gid_t *group, char *message,
                                   size_t message_size)
{
    const struct group *found = getgrnam(text);
    unsigned long number;
    if (found == NULL && !serve_number(text, 10, (gid_t)-2, &number)) {
        snprintf(message, message_size, "serve.group: there is no group %s", text);
        return KVT_E_CONFIG;
    }
    *group = found != NULL ? found->gr_gid : (gid_t)number;
    return KVT_OK;
}

/* Fills what the settings say; the texts stay the configuration's. KVT_OK; KVT_E_CONFIG. */
static kvt_status serve_read(kvt_config *config, const kvt_store_options *store,
                             serve_settings *out, char *message, size_t message_size)
{
    server_options *options = &out->options;
    const char *users = kvt_config_text(config, "serve.users");
    const char *operators = kvt_config_text(config, "serve.operators");
    const char *group = kvt_config_text(config, "serve.group");
    const char *mode = kvt_config_text(config, "serve.mode");
    unsigned long bits;
    kvt_status status = KVT_OK;
    options->path = kvt_config_text(config, "serve.socket");
    const size_t fields = sizeof serve_fields / sizeof *serve_fields;
    settings_read(config, NULL, serve_fields, fields, SETTINGS_ALL_MODES, out);
    if (!settings_hold(serve_fields, fields, out, message, message_size)) return KVT_E_CONFIG;
    options->leave_ms = (uint32_t)(out->leave_seconds * 1000);
    if (options->leave_ms == 0) options->leave_ms = 1;
    if (options->path == NULL) {
        snprintf(message, message_size, "serve.socket is not set: where clients connect");
        return KVT_E_CONFIG;
    }
    if (!serve_number(mode, 8, 0777, &bits) || (bits & 0600) != 0600) {
        snprintf(message, message_size,
                 "serve.mode: '%s' is no mode as 0600 or 0660, which lets its owner in", mode);
        return KVT_E_CONFIG;
    }
    if ((options->depth & (options->depth - 1)) != 0) {
        snprintf(message, message_size, "serve.depth: %u is no power of two", options->depth);
        return KVT_E_CONFIG;
    }
    if (options->registered_bytes % 4096 != 0 || options->staging_bytes % 4096 != 0) {
        snprintf(message, message_size, "serve.%s: no multiple of 4 KiB",
                 options->staging_bytes % 4096 != 0 ? "staging" : "registered");
        return KVT_E_CONFIG;
    }
    if (store->limits.put_staging_bytes == 0) {
        snprintf(message, message_size,
                 "store.put_staging: 0 leaves entries in their client's memory while they are "
                 "stored; a server needs more");
        return KVT_E_CONFIG;
    }
    options->mode = (mode_t)bits;
    if (group != NULL) {
        options->group = &out->group;
        status = serve_read_group(group, &out->group, message, message_size);
    }
    if (status == KVT_OK && users != NULL) {
        options->users = out->users;
        status = serve_read_users("serve.users", users, out->users, &options->user_count, message,
                                  message_size);
    }
    if (status == KVT_OK && operators != NULL) {
        options->operators = out->operators;
        status = serve_read_users("serve.operators", operators, out->operators,
                                  &options->operator_count, message, message_size);
    }
    return status;
}

kvt_status tools_check_serve(kvt_config *config, const kvt_store_options *options, char *message,
                             size_t message_size)
{
    serve_settings settings = {.group = 0};
    if (!kvt_config_has(config, "serve.socket")) return KVT_OK;
    return serve_read(config, options, &settings, message, message_size);
}

/* ---- the run ---- */

/* Lets the process have as many descriptors as it may: a session with all its channels has about
 * fifty, and the usual limit of 1,024 would be used up by twenty of them. */
static void serve_raise_descriptors(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
    limit.rlim_cur = limit.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &limit);
}

/* What is open, in the order in which it was opened. */
typedef struct serve_run_state {
    server *lends;
    kvt_store *store;
    server_http *http;
} serve_run_state;

/* Says once that clients may come. */
static int serve_say_ready(const serve_arguments *arguments, const serve_settings *settings,
                           const serve_run_state *run)
{
    kvt_store_stats stats = {.struct_size = sizeof stats};
    char bytes[32];
    const char *http = run->http != NULL ? server_http_address(run->http) : NULL;
    const kvt_status status = kvt_store_stats_get(run->store, &stats);
    if (status != KVT_OK) return command_fail(status, "");
    if (arguments->common.json) {
        json_t *tiers = json_object();
        for (int tier = KVT_TIER_HBM; tier < KVT_TIER_COUNT; tier++)
            if (stats.tiers[tier].capacity_bytes != 0)
                (void)json_object_set_new(
                    tiers, kvt_tier_name(tier),
                    json_integer((json_int_t)stats.tiers[tier].capacity_bytes));
        const int code = command_print_document(
            json_pack("{s:s, s:o, s:o, s:s?, s:I}", "schema", "kvterrace-serve-1", "socket",
                      view_string(settings->options.path), "tiers", tiers, "metrics", http,
                      "entries", (json_int_t)stats.recovered));
        (void)fflush(stdout);
        return code;
    }
    printf("ready: %s", settings->options.path);
    for (int tier = KVT_TIER_HBM; tier < KVT_TIER_COUNT; tier++)
        if (stats.tiers[tier].capacity_bytes != 0)
            printf(", %s %s", kvt_tier_name(tier),
                   format_bytes(bytes, stats.tiers[tier].capacity_bytes));
    if (http != NULL) printf(", http://%s/metrics", http);
    printf("\n");
    (void)fflush(stdout);
    return EXIT_FINE;
}

/* Does what the close is about to do, which tells nobody how it went: what SSDs do not have is
 * written there, and the catalog is flushed. */
static int serve_keep(kvt_store *store, double seconds)
{
    kvt_persist_info info = {.struct_size = sizeof info};
    char text[COMMAND_MESSAGE_BYTES], bytes[32];
    const uint64_t now_ns = base_clock_ns();
    kvt_status status = KVT_E_UNSUPPORTED;
    if (seconds > 0) status = kvt_store_persist(store, now_ns + (uint64_t)(seconds * 1e9), &info);
    if (status == KVT_E_UNSUPPORTED) status = kvt_store_flush(store);
    if (status == KVT_E_UNSUPPORTED) return EXIT_FINE; /* nothing survives a close by design */
    if (status >= 0 && info.left == 0) return EXIT_FINE;
    if (info.left > 0)
        (void)snprintf(
            text, sizeof text,
            "the close loses %llu entries (%s) that are not on SSD (store.close_deadline "
            "is %g s)",
            (unsigned long long)info.left, format_bytes(bytes, info.left_bytes), seconds);
    else
        (void)snprintf(text, sizeof text,
                       "the close may lose what was stored, moved or deleted since the last flush: "
                       "a device or the catalog takes no more writes");
    return command_fail(status < 0 ? status : KVT_E_TIMEOUT, text);
}

/* Opens all, serves until a signal, and says by its exit code what went wrong. */
static int serve_store(const serve_arguments *arguments, const serve_settings *settings,
                       const kvt_store_options *options, serve_run_state *run)
{
    char message[COMMAND_MESSAGE_BYTES] = "", text[COMMAND_MESSAGE_BYTES + 32];
    kvt_status status = KVT_OK;
    serve_raise_descriptors();
    if (arguments->drain)
        status = server_drain(settings->options.path, SERVE_DRAIN_MS, message, sizeof message);
    if (status != KVT_OK) {
        (void)snprintf(text, sizeof text, "--drain: %s", message);
        return command_fail(status, text);
    }
    status = server_open(NULL, &settings->options, &run->lends, message, sizeof message);
    if (status != KVT_OK) {
        (void)snprintf(text, sizeof text, "serve.socket: %s",
                       message[0] != '\0' ? message : kvt_status_text(status));
        return command_fail(status, text);
    }
    atomic_store(&serve_lends, run->lends);
    serve_catch_signals();
    status = kvt_store_open(options, &run->store, message, sizeof message);
    if (status != KVT_OK) return command_fail(status, message);
    if (message[0] != '\0') command_note(&arguments->common, "%s", message);
    server_lend(run->lends, run->store);
    if (arguments->metrics != NULL) {
        status =
            server_http_open(run->store, arguments->metrics, &run->http, message, sizeof message);
        (void)snprintf(text, sizeof text, "--metrics: %s", message);
        if (status != KVT_OK) return command_fail(status, text);
    }
    const int code = serve_say_ready(arguments, settings, run);
    if (code != EXIT_FINE) return code;
    serve_notify("READY=1");
    status = server_run(run->lends);
    serve_notify("STOPPING=1");
    const int kept = serve_keep(run->store, options->durability.close_deadline_seconds);
    return status == KVT_OK ? kept : command_fail(status, settings->options.path);
}

static int serve_run(void *context)
{
    static const char *const sections[] = {"device.*", "serve", NULL};
    const serve_arguments *arguments = context;
    kvt_config *config = arguments->common.config;
    char message[COMMAND_MESSAGE_BYTES] = "";
    kvt_store_options options = {.struct_size = sizeof options};
    serve_settings settings = {.group = 0};
    serve_run_state run = {0};
    void *owner = NULL;
    kvt_status status = kvt_store_options_read(config, &options, &owner, message, sizeof message);
    if (status == KVT_OK) status = serve_read(config, &options, &settings, message, sizeof message);
    int code = status == KVT_OK ? command_report_unused(&arguments->common, sections)
                                : command_fail_input(status, message);
    if (code == EXIT_FINE) code = serve_store(arguments, &settings, &options, &run);
    server_http_close(run.http);
    kvt_store_close(run.store);
    atomic_store(&serve_lends, NULL);
    server_close(run.lends);
    kvt_store_options_free(owner);
    return code;
}

const command_spec serve_spec = {
    .name = "serve",
    .summary = "lend a store to the other processes of the host",
    .about = "Opens the store of a configuration and lends it to other processes, which connect to "
             "the socket that serve.socket names. Runs until SIGTERM or SIGINT; the store is "
             "closed then, and the exit code is 0 when all that it can keep is kept, else a line "
             "says what is lost. A second signal ends it at once.",
    .details = "One line on standard output says that clients may connect. Those that connect "
               "earlier wait. At the end they are told, and requests under way get serve.leave "
               "seconds.\n\n"
               "With --drain a server that has the socket already leaves first, as by SIGTERM, and "
               "this one opens its store. Clients that have patience (connect.h) see a pause.\n\n"
               "Under systemd with Type=notify it says when it is ready and when it stops; "
               "examples/systemd has a unit.\n\n"
               "GET /health is 200 when all is in order, else 503 with a line for each thing that "
               "is not. Whoever reaches the address may read both pages.",
    .example = "  kvterrace serve --config kvterrace.ini --metrics 127.0.0.1:9470",
    .options = serve_rows,
    .argument_bytes = sizeof(serve_arguments),
    .run = serve_run,
    .settings = SETTINGS_OWN,
};
