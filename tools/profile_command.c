/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile_command.c - kvterrace profile: measures devices and codecs into a database.
 *
 * One thread, and for the codecs a pool of its own. Interrupting (SIGINT, SIGTERM) stops at the
 * next point; what was measured stays in the database, files made for the occasion are removed, and
 * the same command goes on where it stopped (profile_resume.c).
 */
#include "command.h"
#include "device_list.h"
#include "lab/bench/bench_kv.h"
#include "lab/bench/worker_pool.h"
#include "profile_calibrate.h"
#include "profile_document.h"
#include "profile_manage.h"
#include "profile_open.h"
#include "profile_print.h"
#include "profile_resume.h"
#include "profile_show.h"
#include "quality_command.h"

#include <string.h>
#include <unistd.h>

/* Labels live at a device's head; what is measured stays clear of them. */
#define PROFILE_HEAD_BYTES       (UINT64_C(1) << 20)
#define PROFILE_FILE_BYTES       (UINT64_C(1) << 30)
#define PROFILE_FILE_BYTES_QUICK (UINT64_C(1) << 28)
#define PROFILE_KV_MAX           16u
#define PROFILE_KV_BYTES         (UINT64_C(64) << 20) /* of one dump */
#define PROFILE_RESUME_SECONDS   (12 * 3600.0)

/* What a device and all codecs take beside each other, for the bar. */
#define PROFILE_DEVICE_WEIGHT 1.0
#define PROFILE_CODECS_WEIGHT 3.0

typedef struct profile_arguments {
    command_common common;
    bool devices, codecs; /* what is measured */
    bool quick;
    bool fresh;
    double seconds;
    const char *directory;
    const char *kv_paths[PROFILE_KV_MAX];
    uint32_t kv_count;
    char command_line[1024];
} profile_arguments;

static const struct argp_option profile_measure_options[] = {
    PROFILE_DATABASE_OPTION,
    {"quick", 'Q', NULL, 0, "A coarse grid of sizes and depths, short points, one instruction set",
     0},
    {"seconds", 't', "TIME", 0, "Measuring time per point, such as 200ms", 0},
    {"directory", 'D', "DIR", 0, "Where the test file goes when no device is configured (.)", 0},
    {"kv", 'K', "DUMP", 0,
     "Codecs: measure on this KV (safetensors with k.<layer> and v.<layer>) instead of generated "
     "KV; may be given several times",
     0},
    {"fresh", 'F', NULL, 0,
     "Measure everything, also what an interrupted run of the same command "
     "already has",
     0},
    {0},
};

static const char *const profile_device_sections[] = {"device.*", NULL};
static const char *const profile_no_sections[] = {NULL};

static error_t profile_parse(int key, char *argument, struct argp_state *state)
{
    profile_arguments *arguments = state->input;
    switch (key) {
    case ARGP_KEY_INIT: state->child_inputs[0] = &arguments->common; return 0;
    case 'd': command_add_setting(&arguments->common, "store.profile", argument); return 0;
    case 'Q': arguments->quick = true; return 0;
    case 'F': arguments->fresh = true; return 0;
    case 'D': arguments->directory = argument; return 0;
    case 'K':
        if (arguments->kv_count == PROFILE_KV_MAX) {
            argp_error(state, "--kv: more than %u dumps", PROFILE_KV_MAX);
        }
        arguments->kv_paths[arguments->kv_count++] = argument;
        return 0;
    case 't':
        if (kvt_parse_seconds(argument, &arguments->seconds) != KVT_OK || arguments->seconds <= 0 ||
            arguments->seconds > 3600) {
            argp_error(state, "--seconds: '%s' is not a time from above 0 to 1h", argument);
        }
        return 0;
    case ARGP_KEY_ARG:
        if (strcmp(argument, "devices") == 0) {
            arguments->devices = true;
        } else if (strcmp(argument, "codecs") == 0) {
            arguments->codecs = true;
        } else {
            argp_error(state, "'%s' is neither devices nor codecs", argument);
        }
        return 0;
    case ARGP_KEY_END:
        if (arguments->kv_count > 0 && !arguments->codecs) {
            argp_error(state, "--kv is for codecs");
        }
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static int profile_load(const char *doc, int argc, char **argv, profile_arguments *arguments)
{
    const struct argp_child children[] = COMMAND_CHILDREN;
    const struct argp argp = {.options = profile_measure_options,
                              .parser = profile_parse,
                              .args_doc = "[devices|codecs]",
                              .doc = doc,
                              .children = children};
    arguments->directory = ".";
    command_keep_line(argc, argv, arguments->command_line, sizeof arguments->command_line);
    return command_load(&argp, argc, argv, arguments);
}

/* What the progress callback needs to place one part's share in the whole. */
typedef struct profile_progress {
    command_progress bar;
    double done_before;
    double share;
    const char *name; /* before what is measured */
} profile_progress;

static bool profile_report(void *context, double done, const char *what)
{
    profile_progress *progress = context;
    char text[96];
    (void)snprintf(text, sizeof text, "%s%s", progress->name, what ? what : "");
    progress_update(&progress->bar, progress->done_before + done * progress->share, text);
    return !command_interrupted();
}

static void profile_next(profile_progress *progress, const char *name, double share)
{
    progress->done_before += progress->share;
    progress->share = share;
    progress->name = name;
}

static kvt_profile_request profile_request(const profile_arguments *arguments,
                                           profile_progress *progress)
{
    return (kvt_profile_request){.struct_size = sizeof(kvt_profile_request),
                                 .seconds_per_point = arguments->seconds,
                                 .quick = arguments->quick,
                                 .command_line = arguments->command_line,
                                 .resume_seconds = arguments->fresh ? 0 : PROFILE_RESUME_SECONDS,
                                 .progress = profile_report,
                                 .progress_context = progress};
}

/* ---- devices ---- */

static kvt_status profile_measure_open(kvt_profile *profile, kvt_device *device,
                                       const device_item *item, const profile_arguments *arguments,
                                       profile_progress *progress, char *message,
                                       size_t message_size)
{
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
    kvt_status status = kvt_profile_measure_device(profile, device, item->tier, PROFILE_HEAD_BYTES,
                                                   write_bytes, &request);
    if (status != KVT_OK) {
        (void)snprintf(message, message_size, "%s: %s", item->config.name, kvt_status_text(status));
    }
    return status;
}

static kvt_status profile_measure_item(kvt_profile *profile, const device_item *item,
                                       const char *done_identity,
                                       const profile_arguments *arguments,
                                       profile_progress *progress, char *message,
                                       size_t message_size)
{
    kvt_device *device = NULL;
    kvt_status status = kvt_device_open(&item->config, &device, message, message_size);
    if (status != KVT_OK) return status;
    if (done_identity != NULL && strcmp(done_identity, device->facts.identity) == 0) {
        command_note(&arguments->common, "%s: measured before the interruption", item->config.name);
    } else {
        status =
            profile_measure_open(profile, device, item, arguments, progress, message, message_size);
    }
    kvt_device_close(device);
    return status;
}

static kvt_status profile_measure_devices(kvt_profile *profile, const device_list *list,
                                          const profile_arguments *arguments,
                                          profile_progress *progress, double share, char *message,
                                          size_t message_size)
{
    profile_done done[DEVICE_LIST_MAX];
    memset(done, 0, sizeof done);
    kvt_status status = KVT_OK;
    if (!arguments->fresh) {
        status = profile_resume_find(profile, list, arguments->command_line, arguments->codecs,
                                     PROFILE_RESUME_SECONDS, done);
    }
    for (size_t i = 0; i < list->count && status == KVT_OK; i++) {
        profile_next(progress, "", share / (double)list->count); /* it says which device */
        status = profile_measure_item(profile, &list->items[i],
                                      done[i].complete ? done[i].identity : NULL, arguments,
                                      progress, message, message_size);
    }
    return status;
}

/* ---- codecs ---- */

static kvt_status profile_measure_codecs(kvt_profile *profile, const profile_arguments *arguments,
                                         profile_progress *progress, double share, char *message,
                                         size_t message_size)
{
    kvt_profile_kv kv[PROFILE_KV_MAX];
    worker_pool pool;
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    uint32_t threads = processors < 1                 ? 1
                       : processors > WORKER_POOL_MAX ? WORKER_POOL_MAX
                                                      : (uint32_t)processors;
    uint32_t count = 0;
    kvt_status status = KVT_OK;
    for (; count < arguments->kv_count && status == KVT_OK; count++) {
        kv[count] = (kvt_profile_kv){.name = NULL};
        status = bench_kv_read(arguments->kv_paths[count], PROFILE_KV_BYTES, &kv[count], message,
                               message_size);
    }
    if (status == KVT_OK) {
        profile_next(progress, "codecs: ", share);
        kvt_profile_request request = profile_request(arguments, progress);
        worker_pool_open(&pool, threads);
        request.workers = &pool.workers;
        request.kv = kv;
        request.kv_count = count;
        status = kvt_profile_measure_codecs(profile, &request);
        worker_pool_close(&pool);
    }
    for (uint32_t i = 0; i < count; i++)
        bench_kv_free(&kv[i]);
    return status;
}

/* ---- the command ---- */

static kvt_status profile_measure(kvt_profile *profile, const device_list *list,
                                  const profile_arguments *arguments, char *message,
                                  size_t message_size)
{
    profile_progress progress = {.name = ""};
    const double devices = PROFILE_DEVICE_WEIGHT * (double)list->count;
    const double codecs = arguments->codecs ? PROFILE_CODECS_WEIGHT : 0.0;
    kvt_status status = KVT_OK;
    progress_start(&progress.bar, &arguments->common);
    if (arguments->devices) {
        status = profile_measure_devices(profile, list, arguments, &progress,
                                         devices / (devices + codecs), message, message_size);
    }
    if (status == KVT_OK && arguments->codecs) {
        status = profile_measure_codecs(profile, arguments, &progress, codecs / (devices + codecs),
                                        message, message_size);
    }
    progress_end(&progress.bar);
    if (status == KVT_E_CANCELLED) {
        (void)snprintf(message, message_size,
                       "interrupted; what was measured stays, and the same command goes on from "
                       "there");
    }
    return status;
}

static kvt_status profile_print(kvt_profile *profile, const profile_arguments *arguments)
{
    const profile_view view = {.path = command_profile_path(arguments->common.config)};
    const unsigned parts = (arguments->devices ? PROFILE_PRINT_DEVICES : 0u) |
                           (arguments->codecs ? PROFILE_PRINT_CODECS : 0u);
    json_t *document = NULL;
    kvt_status status = profile_document_make(profile, &view, &document);
    if (status == KVT_OK && arguments->common.json) {
        status = profile_print_json(document);
    } else if (status == KVT_OK) {
        profile_print_text(document, parts);
    }
    json_decref(document);
    return status;
}

static int profile_run(profile_arguments *arguments)
{
    char message[COMMAND_MESSAGE_BYTES] = "";
    kvt_config *config = arguments->common.config;
    kvt_profile *profile = NULL;
    device_list list = {.count = 0};
    int code = EXIT_FINE;
    kvt_status status = KVT_OK;
    command_catch_interrupts();
    if (arguments->devices) {
        status = device_list_make(config, arguments->directory,
                                  arguments->quick ? PROFILE_FILE_BYTES_QUICK : PROFILE_FILE_BYTES,
                                  &list, message, sizeof message);
    }
    if (status != KVT_OK) {
        code = command_fail(status, message);
        goto out;
    }
    status = command_profile_open(config, KVT_PROFILE_WRITE, &profile, message, sizeof message);
    if (status != KVT_OK) {
        code = command_fail_input(status, message);
        goto out;
    }
    code = command_report_unused(&arguments->common, arguments->devices ? profile_device_sections
                                                                        : profile_no_sections);
    if (code != EXIT_FINE) goto out;
    status = profile_measure(profile, &list, arguments, message, sizeof message);
    if (status == KVT_OK) status = profile_print(profile, arguments);
    if (status != KVT_OK) code = command_fail(status, message);
out:
    kvt_profile_close(profile);
    device_list_free(&list);
    command_unload(&arguments->common);
    return command_finish(code);
}

static int profile_devices(int argc, char **argv)
{
    profile_arguments arguments;
    memset(&arguments, 0, sizeof arguments);
    arguments.devices = true;
    int code = profile_load(
        "Measures bandwidth and latency of every configured device, by request size and depth, and "
        "of reads and writes at once. A device with content is only read, unless store.format "
        "gives it up. Without configured devices: a memory device and a test file. With codecs "
        "behind it, those are measured as well.",
        argc, argv, &arguments);
    return code == EXIT_FINE ? profile_run(&arguments) : code;
}

static int profile_codecs(int argc, char **argv)
{
    profile_arguments arguments;
    memset(&arguments, 0, sizeof arguments);
    arguments.codecs = true;
    int code = profile_load(
        "Measures size and speed of every codec by instruction set and threads, on generated bf16 "
        "KV or on dumps. With devices behind it, those are measured first.",
        argc, argv, &arguments);
    return code == EXIT_FINE ? profile_run(&arguments) : code;
}

int command_profile(int argc, char **argv)
{
    static const command_entry table[] = {
        {"devices", "measure every configured device", profile_devices},
        {"codecs", "measure every codec", profile_codecs},
        {"quality", "measure what variants do to a model's answers", command_profile_quality},
        {"calibrate", "choose and measure a model's ladder of forms", command_profile_calibrate},
        {"show", "show what was measured", command_profile_show},
        {"import", "bring in curves that were published or measured elsewhere",
         command_profile_import},
        {"export", "print curves with their sources", command_profile_export},
        {"diff", "compare two profiles", command_profile_diff},
        {"gc", "drop runs that answer for nothing any more", command_profile_gc},
        {0},
    };
    return command_choose(table, "COMMAND [OPTION...]",
                          "Measures this machine into a profile database, which the store and the "
                          "simulator decide on.\v",
                          argc, argv);
}
