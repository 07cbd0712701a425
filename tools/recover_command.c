/* SPDX-License-Identifier: Apache-2.0 */
/*
 * recover_command.c - kvterrace recover: a new catalog for a store that lost its own. One thread.
 */
#include "commands.h"

#include <kvterrace/recover.h>

#include <string.h>

typedef struct recover_arguments {
    command_common common;
    const char *catalog;
    bool replace;
    bool dry_run;
} recover_arguments;

static const command_option recover_rows[] = {
    TEXT_OPTION(recover_arguments, catalog, "catalog", 0, "FILE",
                "Make the catalog at FILE instead of where store.catalog says"),
    DRY_RUN_OPTION(recover_arguments, dry_run, "Scan and verify, and write nothing"),
    FLAG_OPTION(recover_arguments, replace, "replace", 0,
                "Where there is a catalog, keep it as CATALOG.damaged-N"),
    {0},
};

static bool recover_take_progress(void *context, kvt_recover_stage stage, uint64_t done,
                                  uint64_t total)
{
    return progress_ask(context, total ? (double)done / (double)total : 1,
                        stage == KVT_RECOVER_SCAN ? "scanning devices" : "verifying records");
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

/* The counts of the report, by name. */
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
    RECOVER_COUNT(older,
                  "dropped: a newer record of their key was recovered, or a crash had undone them"),
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
    return command_print_document(recover_json(arguments, catalog, report));
}

static int recover_store(const recover_arguments *arguments, kvt_store_options *store,
                         char *message, size_t message_size)
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
    if (arguments->catalog) store->durability.catalog_path = arguments->catalog;
    if (!store->durability.catalog_path)
        return command_fail(KVT_E_CONFIG, "store.catalog is not set");
    progress_start(&bar, &arguments->common);
    command_catch_interrupts();
    kvt_status status = kvt_store_recover(store, &options, &report, message, message_size);
    progress_end(&bar);
    int code = EXIT_FINE;
    if (status == KVT_OK || status == KVT_MISS)
        code = recover_print(arguments, store->durability.catalog_path, &report);
    if (status == KVT_OK) return code == EXIT_FINE && report.complete ? EXIT_FINE : EXIT_FAILED;
    code = command_fail(status, message);
    if (status == KVT_MISS) return EXIT_FAILED;
    return status == KVT_EXISTS || status == KVT_E_ARGUMENT ? EXIT_USAGE : code;
}

static int recover_run(void *context)
{
    static const char *const sections[] = {"device.*", NULL};
    const recover_arguments *arguments = context;
    char message[COMMAND_MESSAGE_BYTES] = "";
    kvt_store_options options = {.struct_size = sizeof options};
    void *owner = NULL;
    kvt_status status =
        kvt_store_options_read(arguments->common.config, &options, &owner, message, sizeof message);
    int code = status == KVT_OK ? command_report_unused(&arguments->common, sections)
                                : command_fail_input(status, message);
    if (code == EXIT_FINE) code = recover_store(arguments, &options, message, sizeof message);
    kvt_store_options_free(owner);
    return code;
}

const command_spec recover_spec = {
    .name = "recover",
    .summary = "make a new catalog from what the devices hold",
    .about = "Makes a new catalog for a store whose catalog is lost or damaged beyond use: scans "
             "the SSD devices of its configuration for records, reads and verifies each of them, "
             "and lists what is sound. Writes nothing to a device. The store must be closed.",
    .details = "The new catalog lists what was put under its key. Bytes are not erased by a "
               "delete, so entries that were deleted or replaced may come back; the bytes on a "
               "missing device, or in memory alone, do not. Bring missing devices back first: the "
               "next open of the store counts only on what the new catalog lists.\n\n"
               "Exit code 1 also says that nothing could be recovered, or that a device is missing "
               "or partly unreadable.",
    .example = "  kvterrace recover --config kvterrace.ini --dry-run",
    .options = recover_rows,
    .argument_bytes = sizeof(recover_arguments),
    .run = recover_run,
    .settings = SETTINGS_OWN,
};
