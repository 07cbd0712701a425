/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile_command.c - kvterrace profile: measures devices and codecs into a database.
 *
 * One thread, and for the codecs a pool of its own. Interrupting (SIGINT, SIGTERM) stops at the
 * next point; what was measured stays in the database, files made for the occasion are removed, and
 * the same command goes on where it stopped (profile_resume_find).
 */
#include "commands.h"
#include "profile_document.h"
#include "tools/command/device_list.h"

#include "estimator/exchange/exchange.h"
#include "estimator/measure/measure.h"
#include "estimator/quality/kv_files.h"
#include "tools/command/worker_pool.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- what an interrupted command has measured ---- */

typedef struct profile_done {
    bool complete;
    char identity[96]; /* of the device that was measured */
} profile_done;

typedef struct resume_run {
    size_t place; /* of its device in the list; list->count for codecs */
    bool complete;
    char identity[96];
} resume_run;

#define RESUME_RUNS (DEVICE_LIST_MAX + 1u)

typedef struct resume_search {
    const device_list *list;
    const char *command_line;
    char oldest[32];              /* started_utc of the oldest that counts */
    resume_run runs[RESUME_RUNS]; /* a ring of the newest */
    size_t count;
} resume_search;

static void resume_row(resume_search *search, const json_t *row)
{
    const char *device = view_text(row, "device");
    if (strcmp(view_text(row, "command_line"), search->command_line) != 0 ||
        strcmp(view_text(row, "started_utc"), search->oldest) < 0)
        return;
    size_t place = search->list->count;
    for (size_t i = 0; i < search->list->count; i++) {
        if (strcmp(search->list->items[i].config.name, device) == 0) place = i;
    }
    if (place == search->list->count && strcmp(view_text(row, "kind"), "codecs") != 0) return;
    resume_run *run = &search->runs[search->count++ % RESUME_RUNS];
    run->place = place;
    run->complete = view_number(row, "complete", 0) > 0;
    (void)snprintf(run->identity, sizeof run->identity, "%s", view_text(row, "identity"));
}

static void resume_mark(const resume_search *search, bool codecs_too, profile_done *done)
{
    const size_t kept = search->count < RESUME_RUNS ? search->count : RESUME_RUNS;
    if (kept == 0) return;
    const resume_run *last = &search->runs[(search->count - 1) % RESUME_RUNS];
    const size_t final = codecs_too ? search->list->count : search->list->count - 1;
    if (last->complete && last->place == final) return;
    size_t below = SIZE_MAX;
    for (size_t i = 1; i <= kept; i++) {
        const resume_run *run = &search->runs[(search->count - i) % RESUME_RUNS];
        if (run->place >= below) break;
        below = run->place;
        if (!run->complete || run->place == search->list->count) continue;
        done[run->place].complete = true;
        memcpy(done[run->place].identity, run->identity, sizeof run->identity);
    }
}

/* Marks the devices of the list that the same command line has measured before it was interrupted,
 * at most max_age_seconds ago; done has list->count places, zeroed. Nothing is marked when it was
 * not interrupted: its last run, of the codecs if it measures them too, is complete. */
static kvt_status profile_resume_find(kvt_profile *profile, const device_list *list,
                                      const char *command_line, bool codecs_too,
                                      double max_age_seconds, profile_done *done)
{
    resume_search search = {.list = list, .command_line = command_line};
    const time_t oldest = time(NULL) - (time_t)max_age_seconds;
    struct tm utc;
    if (list->count == 0) return KVT_OK;
    if (gmtime_r(&oldest, &utc) == NULL ||
        strftime(search.oldest, sizeof search.oldest, "%Y-%m-%dT%H:%M:%SZ", &utc) == 0) {
        return KVT_OK;
    }
    json_t *views = json_object();
    const json_t *row;
    size_t i;
    kvt_status status = exchange_view(profile, "runs", views);
    json_array_foreach(json_object_get(views, "runs"), i, row) resume_row(&search, row);
    json_decref(views);
    if (status == KVT_OK) resume_mark(&search, codecs_too, done);
    return status;
}

/* Labels live at a device's head; what is measured stays clear of them. */
#define PROFILE_HEAD_BYTES       (UINT64_C(1) << 20)
#define PROFILE_FILE_BYTES       (UINT64_C(1) << 30)
#define PROFILE_FILE_BYTES_QUICK (UINT64_C(1) << 28)
#define PROFILE_KV_MAX           16u
#define PROFILE_KV_BYTES         (UINT64_C(64) << 20) /* of one dump */
#define PROFILE_RESUME_SECONDS   (12 * 3600.0)

/* The share of a device, and of all codecs, in the progress bar. */
#define PROFILE_DEVICE_WEIGHT 1.0
#define PROFILE_CODECS_WEIGHT 3.0

typedef struct profile_arguments {
    command_common common;
    bool devices, codecs; /* what is measured */
    bool quick;
    bool fresh;
    double seconds;
    const char *directory;
    command_list kv;
    command_list also; /* "devices", "codecs" */
} profile_arguments;

static const command_option profile_rows[] = {
    DATABASE_OPTION,
    QUICK_OPTION(profile_arguments, quick,
                 "A coarse grid of sizes and depths, short points, one instruction set"),
    {.name = "seconds",
     .argument = "TIME",
     .text = "Measuring time per point, such as 200ms",
     .kind = OPTION_TIME,
     .offset = offsetof(profile_arguments, seconds),
     .most = 3600},
    FOLDER_OPTION(profile_arguments, directory,
                  "Where the test file goes when no device is configured (.)"),
    LIST_OPTION(profile_arguments, kv, "kv", "FILE", PROFILE_KV_MAX, 0,
                "Codecs: measure on this KV (safetensors with k.<layer> and v.<layer>) instead of "
                "generated KV; may be given several times"),
    FLAG_OPTION(profile_arguments, fresh, "fresh", 'F',
                "Measure everything, also what an interrupted run of the same command already has"),
    {.argument = "[devices|codecs]",
     .kind = OPTION_LIST,
     .offset = offsetof(profile_arguments, also),
     .most = 2,
     .extra = "devices|codecs"},
    {0},
};

static const char *const profile_device_sections[] = {"device.*", NULL};
static const char *const profile_no_sections[] = {NULL};

static int profile_check(void *context)
{
    profile_arguments *arguments = context;
    for (size_t i = 0; i < arguments->also.count; i++) {
        if (strcmp(arguments->also.items[i], "devices") == 0)
            arguments->devices = true;
        else
            arguments->codecs = true;
    }
    if (arguments->kv.count > 0 && !arguments->codecs) return command_misuse("--kv is for codecs");
    return EXIT_FINE;
}

/* Where one part's share lies in the progress of the whole. */
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
                                 .command_line = arguments->common.line,
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
        status = profile_resume_find(profile, list, arguments->common.line, arguments->codecs,
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

static bool profile_has_no_basis(kvt_profile *profile)
{
    profile_basis basis;
    const kvt_status status = profile_basis_at(profile, 0, &basis);
    profile_basis_free(&basis);
    return status == KVT_MISS;
}

static kvt_status profile_measure_codecs(kvt_profile *profile, const profile_arguments *arguments,
                                         profile_progress *progress, double share, char *message,
                                         size_t message_size)
{
    kvt_profile_kv kv[PROFILE_KV_MAX];
    worker_pool pool;
    char without_gpu[PROFILE_WITHOUT_GPU] = "";
    const uint32_t threads = worker_pool_threads();
    uint32_t count = 0;
    kvt_status status = KVT_OK;
    for (; count < arguments->kv.count && status == KVT_OK; count++) {
        kv[count] = (kvt_profile_kv){.name = NULL};
        status = kv_file_read(arguments->kv.items[count], PROFILE_KV_BYTES, &kv[count], message,
                              message_size);
    }
    if (status == KVT_OK) {
        profile_next(progress, "codecs: ", share);
        kvt_profile_request request = profile_request(arguments, progress);
        worker_pool_open(&pool, threads);
        request.workers = &pool.workers;
        request.kv = kv;
        request.kv_count = count;
        request.without_gpu = without_gpu;
        status = kvt_profile_measure_codecs(profile, &request);
        worker_pool_close(&pool);
    }
    if (status == KVT_OK && without_gpu[0] != '\0')
        command_note(&arguments->common, "cuda: not measured: %s", without_gpu);
    if (status == KVT_OK && profile_has_no_basis(profile))
        command_note(&arguments->common, "transform: not measured, because its speed is that of a "
                                         "basis and the profile has none: profile calibrate "
                                         "--basis learns some, profile import FILE.kvtbasis takes "
                                         "one, and kvlab transform times made ones");
    for (uint32_t i = 0; i < count; i++)
        kv_file_free(&kv[i]);
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
        status = command_print_exact(json_incref(document));
    } else if (status == KVT_OK) {
        profile_print_text(document, parts);
    }
    json_decref(document);
    return status;
}

static int profile_run(void *context)
{
    profile_arguments *arguments = context;
    char message[COMMAND_MESSAGE_BYTES] = "";
    kvt_config *config = arguments->common.config;
    command_profile profile = {0};
    device_list list = {.count = 0};
    int code = EXIT_FINE;
    kvt_status status = KVT_OK;
    command_catch_interrupts();
    if (arguments->devices)
        status = device_list_make(config, arguments->directory,
                                  arguments->quick ? PROFILE_FILE_BYTES_QUICK : PROFILE_FILE_BYTES,
                                  &list, message, sizeof message);
    if (status != KVT_OK) {
        code = command_fail(status, message);
    } else {
        status = command_profile_begin(config, &profile, message, sizeof message);
        code = status == KVT_OK ? command_report_unused(&arguments->common,
                                                        arguments->devices ? profile_device_sections
                                                                           : profile_no_sections)
                                : command_fail_input(status, message);
    }
    if (code == EXIT_FINE) {
        status = profile_measure(profile.profile, &list, arguments, message, sizeof message);
        if (status == KVT_OK) status = profile_print(profile.profile, arguments);
        if (status != KVT_OK) code = command_fail(status, message);
    }
    code = command_profile_finish(&profile, code);
    device_list_free(&list);
    return code;
}

static const profile_arguments profile_standard[] = {{.devices = true, .directory = "."},
                                                     {.codecs = true, .directory = "."}};

static const command_spec profile_devices_spec = {
    .name = "devices",
    .summary = "measure every configured device",
    .about = "Measures bandwidth and latency of every configured device, by request size and "
             "depth, and of reads and writes at once. A device with content is only read, unless "
             "store.format gives it up. Without configured devices: a memory device and a test "
             "file. With codecs behind it, those are measured as well.",
    .example = "  kvterrace profile devices codecs --database profile.db --quick",
    .options = profile_rows,
    .argument_bytes = sizeof(profile_arguments),
    .standard = &profile_standard[0],
    .check = profile_check,
    .run = profile_run,
    .settings = SETTINGS_OWN,
};

static const command_spec profile_codecs_spec = {
    .name = "codecs",
    .summary = "measure every codec",
    .about = "Measures size and speed of every codec by instruction set and threads, on generated "
             "bf16 KV or on dumps. With devices behind it, those are measured first.",
    .example = "  kvterrace profile codecs --database profile.db --quick",
    .options = profile_rows,
    .argument_bytes = sizeof(profile_arguments),
    .standard = &profile_standard[1],
    .check = profile_check,
    .run = profile_run,
    .settings = SETTINGS_OWN,
};

static const command_spec *const profile_commands[] = {
    &profile_devices_spec,   &profile_codecs_spec,
    &profile_quality_spec,   &profile_dumps_spec,
    &profile_attention_spec, &profile_basis_spec,
    &profile_slack_spec,     &profile_calibrate_spec,
    &profile_show_spec,      &profile_import_spec,
    &profile_export_spec,    &profile_diff_spec,
    &profile_gc_spec,        NULL,
};

const command_spec profile_spec = {
    .name = "profile",
    .summary = "measure this machine's devices and codecs, or show them",
    .about = "Measures this machine into a profile database, which the store and the simulator "
             "decide on.",
    .commands = profile_commands,
    .example = "  kvterrace profile devices codecs --database profile.db --quick",
};
