/*
 * profile_command.c - kvterrace profile: measures devices and codecs into a database, shows them.
 *
 * One thread. Interrupting (SIGINT, SIGTERM) stops at the next point; what was measured stays in
 * the database and files made for the occasion are removed.
 */
#include "command.h"
#include "device_list.h"
#include "profile_manage.h"
#include "profile_print.h"
#include "quality_command.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

/* Labels live at a device's head; what is measured stays clear of them. */
#define PROFILE_HEAD_BYTES       (UINT64_C(1) << 20)
#define PROFILE_FILE_BYTES       (UINT64_C(1) << 30)
#define PROFILE_FILE_BYTES_QUICK (UINT64_C(1) << 28)
#define PROFILE_STANDARD_PATH    "kvterrace-profile.db"

typedef struct profile_arguments {
    command_common common;
    bool quick;
    double seconds;
    const char *directory;
    char command_line[1024];
} profile_arguments;

static const struct argp_option profile_measure_options[] = {
    {"database", 'd', "FILE", 0, "Profile database (store.profile; " PROFILE_STANDARD_PATH ")", 0},
    {"quick", 'Q', NULL, 0, "A coarse grid of sizes and depths, short points", 0},
    {"seconds", 't', "TIME", 0, "Measuring time per point, such as 200ms", 0},
    {"directory", 'D', "DIR", 0, "Where the test file goes when no device is configured (.)", 0},
    {0},
};

static const struct argp_option profile_show_options[] = {
    {"database", 'd', "FILE", 0, "Profile database (store.profile; " PROFILE_STANDARD_PATH ")", 0},
    {0},
};

static const char *const profile_sections[] = {"device.*", NULL};

static volatile sig_atomic_t profile_interrupted;

static void profile_interrupt(int number)
{
    (void)number;
    profile_interrupted = 1;
}

static error_t profile_parse(int key, char *argument, struct argp_state *state)
{
    profile_arguments *arguments = state->input;
    switch (key) {
    case ARGP_KEY_INIT: state->child_inputs[0] = &arguments->common; return 0;
    case 'd': command_add_setting(&arguments->common, "store.profile", argument); return 0;
    case 'Q': arguments->quick = true; return 0;
    case 'D': arguments->directory = argument; return 0;
    case 't':
        if (kvt_parse_seconds(argument, &arguments->seconds) != KVT_OK || arguments->seconds <= 0 ||
            arguments->seconds > 3600) {
            argp_error(state, "--seconds: '%s' is not a time from above 0 to 1h", argument);
        }
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static int profile_load(const struct argp_option *options, const char *doc, int argc, char **argv,
                        profile_arguments *arguments)
{
    const struct argp_child children[] = COMMAND_CHILDREN;
    const struct argp argp = {
        .options = options, .parser = profile_parse, .doc = doc, .children = children};
    memset(arguments, 0, sizeof *arguments);
    arguments->directory = ".";
    size_t used = 0;
    for (int i = 0; i < argc && used < sizeof arguments->command_line; i++) {
        int length = snprintf(arguments->command_line + used, sizeof arguments->command_line - used,
                              "%s%s", i ? " " : "", argv[i]);
        if (length < 0) break;
        used += (size_t)length;
    }
    return command_load(&argp, argc, argv, arguments);
}

static const char *profile_path(kvt_config *config)
{
    const char *path = kvt_config_text(config, "store.profile");
    return path ? path : PROFILE_STANDARD_PATH;
}

static kvt_status profile_open(kvt_config *config, uint32_t flags, kvt_profile **profile_out,
                               char *message, size_t message_size)
{
    const char *path = profile_path(config);
    if (kvt_config_switch(config, "store.profile_foreign")) flags |= KVT_PROFILE_FOREIGN;
    kvt_status status = kvt_profile_open(path, flags, profile_out, message, message_size);
    if (status != KVT_MISS) return status;
    (void)snprintf(message, message_size, "%.400s: no such profile", path);
    return KVT_E_GONE;
}

/* What the progress callback needs to place one device's share in the whole. */
typedef struct profile_progress {
    command_progress *bar;
    double done_before;
    double share;
    const char *name;
} profile_progress;

static bool profile_report(void *context, double done, const char *what)
{
    profile_progress *progress = context;
    char text[96];
    (void)snprintf(text, sizeof text, "%s: %s", progress->name, what ? what : "");
    progress_update(progress->bar, progress->done_before + done * progress->share, text);
    return !profile_interrupted;
}

static kvt_profile_request profile_request(const profile_arguments *arguments,
                                           profile_progress *progress)
{
    return (kvt_profile_request){.struct_size = sizeof(kvt_profile_request),
                                 .seconds_per_point = arguments->seconds,
                                 .quick = arguments->quick,
                                 .command_line = arguments->command_line,
                                 .progress = profile_report,
                                 .progress_context = progress};
}

static kvt_status profile_measure_item(kvt_profile *profile, const device_item *item,
                                       const profile_arguments *arguments,
                                       profile_progress *progress, char *message,
                                       size_t message_size)
{
    kvt_device *device = NULL;
    kvt_status status = kvt_device_open(&item->config, &device, message, message_size);
    if (status != KVT_OK) return status;
    const kvt_device_facts *facts = &device->facts;
    uint64_t write_bytes = 0;
    if (item->overwrite && !(facts->flags & KVT_DEVICE_READ_ONLY) &&
        facts->capacity_bytes > PROFILE_HEAD_BYTES) {
        write_bytes = facts->capacity_bytes - PROFILE_HEAD_BYTES;
    }
    if (write_bytes == 0) {
        command_note(&arguments->common,
                     "%s: only reads are measured: it has content that is not to be overwritten",
                     item->config.name);
    }
    kvt_profile_request request = profile_request(arguments, progress);
    status = kvt_profile_measure_device(profile, device, item->tier, PROFILE_HEAD_BYTES,
                                        write_bytes, &request);
    if (status != KVT_OK) {
        (void)snprintf(message, message_size, "%s: %s", item->config.name, kvt_status_text(status));
    }
    kvt_device_close(device);
    return status;
}

static kvt_status profile_measure_all(kvt_profile *profile, const device_list *list,
                                      const profile_arguments *arguments, char *message,
                                      size_t message_size)
{
    command_progress bar;
    kvt_status status = KVT_OK;
    progress_start(&bar, &arguments->common);
    for (size_t i = 0; i < list->count && status == KVT_OK; i++) {
        profile_progress progress = {.bar = &bar,
                                     .done_before = (double)i / (double)list->count,
                                     .share = 1.0 / (double)list->count,
                                     .name = list->items[i].config.name};
        status = profile_measure_item(profile, &list->items[i], arguments, &progress, message,
                                      message_size);
    }
    progress_end(&bar);
    return status;
}

static void profile_catch_signals(void)
{
    struct sigaction action = {.sa_handler = profile_interrupt};
    (void)sigaction(SIGINT, &action, NULL);
    (void)sigaction(SIGTERM, &action, NULL);
}

static int profile_devices(int argc, char **argv)
{
    profile_arguments arguments;
    int code = profile_load(
        profile_measure_options,
        "Measures bandwidth and latency of every configured device, by request size and depth. "
        "A device with content is only read, unless store.format gives it up. Without configured "
        "devices: a memory device and a test file.",
        argc, argv, &arguments);
    if (code != EXIT_FINE) return code;
    char message[COMMAND_MESSAGE_BYTES] = "";
    kvt_config *config = arguments.common.config;
    kvt_profile *profile = NULL;
    device_list list;
    profile_catch_signals();
    kvt_status status =
        device_list_make(config, arguments.directory,
                         arguments.quick ? PROFILE_FILE_BYTES_QUICK : PROFILE_FILE_BYTES, &list,
                         message, sizeof message);
    if (status == KVT_OK) {
        status = profile_open(config, KVT_PROFILE_WRITE, &profile, message, sizeof message);
        if (status != KVT_OK) {
            code = command_fail_input(status, message);
            status = KVT_OK;
        }
    }
    if (code == EXIT_FINE && status == KVT_OK) {
        code = command_report_unused(&arguments.common, profile_sections);
    }
    if (status == KVT_OK && code == EXIT_FINE) {
        status = profile_measure_all(profile, &list, &arguments, message, sizeof message);
    }
    if (status != KVT_OK) {
        code = command_fail(status, message);
    } else if (code == EXIT_FINE) {
        status = profile_print(profile, profile_path(config), arguments.common.json);
        if (status != KVT_OK) code = command_fail(status, "");
    }
    kvt_profile_close(profile);
    device_list_free(&list);
    command_unload(&arguments.common);
    return command_finish(code);
}

/* `measure` tells the two apart: codecs are measured first, or the database is only shown. */
static int profile_open_and_print(profile_arguments *arguments, bool measure)
{
    char message[COMMAND_MESSAGE_BYTES] = "";
    kvt_config *config = arguments->common.config;
    kvt_profile *profile = NULL;
    command_progress bar;
    profile_progress progress = {.bar = &bar, .share = 1.0, .name = "codecs"};
    static const char *const no_sections[] = {NULL};
    kvt_status status = profile_open(config, measure ? KVT_PROFILE_WRITE : KVT_PROFILE_READ,
                                     &profile, message, sizeof message);
    int code = EXIT_FINE;
    if (status == KVT_OK) {
        code = command_report_unused(&arguments->common, no_sections);
    } else {
        code = command_fail_input(status, message);
        status = KVT_OK;
    }
    if (status == KVT_OK && code == EXIT_FINE && measure) {
        kvt_profile_request request = profile_request(arguments, &progress);
        progress_start(&bar, &arguments->common);
        status = kvt_profile_measure_codecs(profile, &request);
        progress_end(&bar);
    }
    if (status == KVT_OK && code == EXIT_FINE) {
        status = profile_print(profile, profile_path(config), arguments->common.json);
    }
    if (status != KVT_OK) code = command_fail(status, message);
    kvt_profile_close(profile);
    command_unload(&arguments->common);
    return command_finish(code);
}

static int profile_codecs(int argc, char **argv)
{
    profile_arguments arguments;
    int code = profile_load(profile_measure_options,
                            "Measures ratio and speed of every codec on generated bf16 KV.", argc,
                            argv, &arguments);
    if (code != EXIT_FINE) return code;
    profile_catch_signals();
    return profile_open_and_print(&arguments, true);
}

static int profile_show(int argc, char **argv)
{
    profile_arguments arguments;
    int code = profile_load(profile_show_options, "Shows what a profile database holds.", argc,
                            argv, &arguments);
    if (code != EXIT_FINE) return code;
    return profile_open_and_print(&arguments, false);
}

int command_profile(int argc, char **argv)
{
    static const command_entry table[] = {
        {"devices", "measure every configured device", profile_devices},
        {"codecs", "measure every codec", profile_codecs},
        {"quality", "measure what variants do to a model's answers", command_profile_quality},
        {"show", "show what was measured", profile_show},
        {"import", "bring in curves that were published or measured elsewhere",
         command_profile_import},
        {"export", "print curves with their sources", command_profile_export},
        {"diff", "compare two profiles", command_profile_diff},
        {"gc", "drop runs that answer for nothing any more", command_profile_gc},
        {"migrate", "bring a profile of an older version up to date", command_profile_migrate},
        {0},
    };
    return command_choose(table, "COMMAND [OPTION...]",
                          "Measures this machine into a profile database, which the store and the "
                          "simulator decide on.\v",
                          argc, argv);
}
