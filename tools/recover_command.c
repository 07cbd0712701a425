/* SPDX-License-Identifier: Apache-2.0 */
/*
 * recover_command.c - kvterrace recover: a new catalog for a store that lost its own. One thread.
 */
#include "command.h"

#include <kvterrace/recover.h>

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

typedef struct recover_arguments {
    command_common common;
    const char *catalog;
    bool replace;
    bool dry_run;
} recover_arguments;

enum { RECOVER_OPTION_CATALOG = 0x100, RECOVER_OPTION_REPLACE };

static const struct argp_option recover_options[] = {
    {"catalog", RECOVER_OPTION_CATALOG, "PATH", 0,
     "Make the catalog at PATH instead of where store.catalog says", 0},
    {"dry-run", 'n', NULL, 0, "Scan and verify, and write nothing", 0},
    {"replace", RECOVER_OPTION_REPLACE, NULL, 0,
     "Where there is a catalog, keep it as CATALOG.damaged-N", 0},
    {0},
};

static error_t recover_parse(int key, char *argument, struct argp_state *state)
{
    recover_arguments *arguments = state->input;
    switch (key) {
    case ARGP_KEY_INIT: state->child_inputs[0] = &arguments->common; return 0;
    case 'n': arguments->dry_run = true; return 0;
    case RECOVER_OPTION_CATALOG: arguments->catalog = argument; return 0;
    case RECOVER_OPTION_REPLACE: arguments->replace = true; return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static bool recover_take_progress(void *context, kvt_recover_stage stage, uint64_t done,
                                  uint64_t total)
{
    progress_update(context, total ? (double)done / (double)total : 1,
                    stage == KVT_RECOVER_SCAN ? "scanning devices" : "verifying records");
    return !command_interrupted();
}

static const char *recover_state_text(kvt_recover_device_state state)
{
    switch (state) {
    case KVT_RECOVER_USED: return "used";
    case KVT_RECOVER_MISSING: return "missing, or it cannot be read";
    case KVT_RECOVER_BLANK: return "blank";
    case KVT_RECOVER_FOREIGN: return "of another store, or it holds other bytes";
    case KVT_RECOVER_MISPLACED: return "configured in another member's place";
    case KVT_RECOVER_STALE: return "stale: it was away when the store was opened last";
    case KVT_RECOVER_FAILED: return "it stopped answering";
    }
    return "unknown";
}

/* What the report counts, by name. */
typedef struct recover_count {
    const char *name;
    const char *text;
    size_t offset;
} recover_count;

#define RECOVER_COUNT(field, text)                                                                 \
    {                                                                                              \
#field, text, offsetof(kvt_recover_report, field)                                          \
    }

static const recover_count recover_counts[] = {
    RECOVER_COUNT(headers, "record headers found"),
    RECOVER_COUNT(entries, "entries recovered"),
    RECOVER_COUNT(older, "dropped: a newer record of their key was recovered"),
    RECOVER_COUNT(overlapped, "dropped: a newer record has their place"),
    RECOVER_COUNT(absent, "dropped: a part is on a device that does not count"),
    RECOVER_COUNT(damaged, "dropped: they do not verify"),
    RECOVER_COUNT(without_note, "dropped: they do not say where they lie"),
    RECOVER_COUNT(other_store, "dropped: of another store"),
    RECOVER_COUNT(elsewhere, "dropped: copies that name another place"),
    RECOVER_COUNT(too_large, "dropped: larger than store.staging"),
};
#define RECOVER_COUNTS (sizeof recover_counts / sizeof recover_counts[0])

static uint64_t recover_value(const kvt_recover_report *report, const recover_count *count)
{
    uint64_t value;
    memcpy(&value, (const char *)report + count->offset, sizeof value);
    return value;
}

static void recover_print_text(const recover_arguments *arguments, const char *catalog,
                               const kvt_recover_report *report)
{
    char scanned[32], bytes[32], unreadable[32];
    for (uint32_t i = 0; i < report->device_count; i++) {
        const kvt_recover_device *device = &report->devices[i];
        printf("device %-16s %s", device->name, recover_state_text(device->state));
        if (device->unreadable_bytes != 0)
            printf(", %s cannot be read", format_bytes(unreadable, device->unreadable_bytes));
        printf("\n");
    }
    printf("%s scanned, %s in recovered records\n", format_bytes(scanned, report->scanned_bytes),
           format_bytes(bytes, report->bytes));
    for (size_t i = 0; i < RECOVER_COUNTS; i++) {
        uint64_t value = recover_value(report, &recover_counts[i]);
        if (i < 2 || value != 0)
            printf("%10llu %s\n", (unsigned long long)value, recover_counts[i].text);
    }
    if (report->kept[0] != '\0') printf("the old catalog is %s\n", report->kept);
    if (report->written) printf("the new catalog is %s\n", catalog);
    if (arguments->dry_run) printf("dry run: nothing was written\n");
    if (!report->complete && report->written)
        printf(
            "incomplete: bring back what is missing and run `recover --replace` again before the "
            "store is opened\n");
}

static json_t *recover_json(const recover_arguments *arguments, const char *catalog,
                            const kvt_recover_report *report)
{
    json_t *devices = json_array();
    for (uint32_t i = 0; i < report->device_count; i++) {
        const kvt_recover_device *device = &report->devices[i];
        (void)json_array_append_new(
            devices,
            json_pack("{s:s, s:b, s:s, s:I, s:I, s:I, s:I}", "name", device->name, "used",
                      device->state == KVT_RECOVER_USED, "state", recover_state_text(device->state),
                      "member", (json_int_t)device->member, "epoch", (json_int_t)device->epoch,
                      "scanned_bytes", (json_int_t)device->scanned_bytes, "unreadable_bytes",
                      (json_int_t)device->unreadable_bytes));
    }
    json_t *document = json_pack(
        "{s:s, s:s, s:b, s:b, s:b, s:s?, s:I, s:I, s:I, s:o}", "schema", "kvterrace-recover-1",
        "catalog", catalog, "written", report->written, "complete", report->complete, "dry_run",
        arguments->dry_run, "kept", report->kept[0] != '\0' ? report->kept : NULL, "scanned_bytes",
        (json_int_t)report->scanned_bytes, "unreadable_bytes", (json_int_t)report->unreadable_bytes,
        "bytes", (json_int_t)report->bytes, "devices", devices);
    for (size_t i = 0; i < RECOVER_COUNTS; i++)
        (void)json_object_set_new(
            document, recover_counts[i].name,
            json_integer((json_int_t)recover_value(report, &recover_counts[i])));
    return document;
}

static int recover_print(const recover_arguments *arguments, const char *catalog,
                         const kvt_recover_report *report)
{
    if (!arguments->common.json) {
        recover_print_text(arguments, catalog, report);
        return EXIT_FINE;
    }
    json_t *document = recover_json(arguments, catalog, report);
    if (!document) return command_fail(KVT_E_MEMORY, "");
    int failed = json_dumpf(document, stdout, JSON_INDENT(2));
    putchar('\n');
    json_decref(document);
    return failed ? EXIT_FAILED : EXIT_FINE;
}

static int recover_run(const recover_arguments *arguments, kvt_store_options *store, char *message,
                       size_t message_size)
{
    static kvt_recover_report report;
    command_progress bar;
    kvt_recover_options options;
    kvt_recover_options_init(&options);
    report.struct_size = sizeof report;
    options.replace = arguments->replace;
    options.dry_run = arguments->dry_run;
    options.progress = recover_take_progress;
    options.context = &bar;
    if (arguments->catalog) store->catalog_path = arguments->catalog;
    if (!store->catalog_path) return command_fail(KVT_E_CONFIG, "store.catalog is not set");
    progress_start(&bar, &arguments->common);
    command_catch_interrupts();
    kvt_status status = kvt_store_recover(store, &options, &report, message, message_size);
    progress_end(&bar);
    int code = EXIT_FINE;
    if (status == KVT_OK || status == KVT_MISS)
        code = recover_print(arguments, store->catalog_path, &report);
    if (status == KVT_OK) return code == EXIT_FINE && report.complete ? EXIT_FINE : EXIT_FAILED;
    code = command_fail(status, message);
    if (status == KVT_MISS) return EXIT_FAILED;
    return status == KVT_EXISTS || status == KVT_E_ARGUMENT ? EXIT_USAGE : code;
}

int command_recover(int argc, char **argv)
{
    const struct argp_child children[] = COMMAND_CHILDREN;
    const struct argp argp = {
        .options = recover_options,
        .parser = recover_parse,
        .doc =
            "Makes a new catalog for a store whose catalog is lost or damaged beyond use: scans "
            "the SSD devices of its configuration for records, reads and verifies each of them, "
            "and lists what is sound. Writes nothing to a device. The store must be closed."
            "\vWhat comes back is what was put under its key. Bytes are not erased by a delete, "
            "so entries that were deleted or replaced may come back; what lies on a missing "
            "device, or was in memory alone, does not. Bring missing devices back first: the "
            "next open of the store counts only on what the new catalog lists.\n\n"
            "Exit code: 0 recovered from every device, 1 nothing could be recovered, or a device "
            "is missing or partly unreadable, 2 usage.",
        .children = children};
    recover_arguments arguments = {0};
    char message[COMMAND_MESSAGE_BYTES] = "";
    int code = command_load(&argp, argc, argv, &arguments);
    if (code != EXIT_FINE) return code;
    static const char *const sections[] = {"device.*", NULL};
    kvt_store_options options;
    void *owner = NULL;
    kvt_status status =
        kvt_store_options_read(arguments.common.config, &options, &owner, message, sizeof message);
    if (status != KVT_OK) code = command_fail_input(status, message);
    if (code == EXIT_FINE) code = command_report_unused(&arguments.common, sections);
    if (code == EXIT_FINE) code = recover_run(&arguments, &options, message, sizeof message);
    kvt_store_options_free(owner);
    command_unload(&arguments.common);
    return command_finish(code);
}
