/* SPDX-License-Identifier: Apache-2.0 */
/*
 * inspect_command.c - kvterrace inspect and verify: what is stored, and whether it is sound.
 *
 * Nothing is written. A catalog that another process has open, or left open when it died, gets a
 * -shm file beside it from SQLite. inspect tells by a file's first bytes what it is. verify needs
 * the configuration of the store, which must be closed. One thread.
 */
#include "commands.h"
#include "inspect_watch.h"
#include "profile_document.h"

#include "estimator/exchange/exchange.h"
#include "tools/inspect/inspect.h"

#include <stdlib.h>
#include <string.h>

typedef struct inspect_arguments {
    command_common common;
    command_list paths; /* one */
    command_list bases;
    bool entries;
} inspect_arguments;

static const command_option inspect_rows[] = {
    FLAG_OPTION(inspect_arguments, entries, "entries", 'e',
                "List all: a catalog's entries, a store's operations"),
    COMMAND_BASIS_OPTION(inspect_arguments, bases,
                         "With a record: its basis (.kvtbasis), to decode it as a check; may be "
                         "repeated"),
    OPERANDS(inspect_arguments, paths, "FILE", 1, 1, OPTION_READS),
    {0},
};

/* 2n hexadecimal digits and a zero. */
static void inspect_hex(char *text, const uint8_t *bytes, size_t count)
{
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < count; i++) {
        text[2 * i] = digits[bytes[i] >> 4];
        text[2 * i + 1] = digits[bytes[i] & 15];
    }
    text[2 * count] = '\0';
}

/* The matrices that the elements of one vector of a basis belong to. */
static const char *inspect_span(uint32_t span)
{
    static const char *const names[] = {"unknown", "head", "layer", "layers4"};
    return names[span < sizeof names / sizeof names[0] ? span : 0];
}

static json_t *inspect_layout_json(const kvt_layout *layout)
{
    static const char *const dtypes[] = {"opaque", "fp16", "bf16", "fp32", "fp8"};
    uint64_t bytes = 0;
    (void)kvt_layout_bytes(layout, &bytes);
    return json_pack("{s:s, s:i, s:i, s:i, s:i, s:I, s:s, s:I}", "dtype",
                     layout->dtype <= KVT_DTYPE_FP8 ? dtypes[layout->dtype] : "unknown", "layers",
                     (int)layout->layers, "sides",
                     layout->dtype == KVT_DTYPE_OPAQUE ? 0 : (int)kvt_layout_sides(layout),
                     "kv_heads", (int)layout->kv_heads, "head_dim", (int)layout->head_dim, "tokens",
                     (json_int_t)layout->tokens, "order",
                     layout->order == KVT_ORDER_LAYER_SIDE ? "layer-side" : "side-layer", "bytes",
                     (json_int_t)bytes);
}

/* Prints the document behind its schema. */
static int inspect_dump(const char *schema, json_t *document)
{
    json_t *root = json_pack("{s:s}", "schema", schema);
    if (document == NULL || root == NULL || json_object_update(root, document) != 0) {
        json_decref(root);
        root = NULL;
    }
    json_decref(document);
    return command_print_document(root);
}

/* Text output is the JSON document's members, one per line, nested ones behind a dot. */
static void inspect_print_member(const char *prefix, const char *name, const json_t *value)
{
    char path[128], *text = NULL;
    (void)snprintf(path, sizeof path, "%s%s%s", prefix, prefix[0] ? "." : "", name);
    if (json_is_object(value)) {
        for (void *at = json_object_iter((json_t *)(uintptr_t)value); at;
             at = json_object_iter_next((json_t *)(uintptr_t)value, at)) {
            inspect_print_member(path, json_object_iter_key(at), json_object_iter_value(at));
        }
        return;
    }
    if (json_is_array(value)) {
        for (size_t i = 0; i < json_array_size(value); i++) {
            char index[32];
            (void)snprintf(index, sizeof index, "%zu", i);
            inspect_print_member(path, index, json_array_get(value, i));
        }
        return;
    }
    if (json_is_string(value)) {
        printf("%-32s %s\n", path, json_string_value(value));
        return;
    }
    text = json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(6));
    printf("%-32s %s\n", path, text ? text : "?");
    free(text);
}

static int inspect_show(json_t *document, bool as_json)
{
    if (as_json || !document) return inspect_dump("kvterrace-inspect-1", document);
    inspect_print_member("", "", document);
    json_decref(document);
    return EXIT_FINE;
}

static int inspect_show_record(const inspect_arguments *arguments, const char *path, char *message,
                               size_t message_size)
{
    kvt_record_info info;
    char key[65], variant[64], hash[2 * KVT_BASIS_HASH_BYTES + 1];
    basis_files bases = {.count = 0};
    kvt_status status = basis_files_read(&bases, arguments->bases.items, arguments->bases.count,
                                         message, message_size);
    if (status == KVT_OK) status = inspect_record(path, &bases, &info, message, message_size);
    const bool decoded = bases.count != 0;
    basis_files_free(&bases);
    if (status != KVT_OK) return command_fail_content(status, message);
    inspect_hex(key, info.spec.key.bytes, sizeof info.spec.key.bytes);
    (void)kvt_variant_format(info.spec.variant, variant, sizeof variant);
    json_t *document = json_pack(
        "{s:s, s:s, s:I, s:s, s:I, s:I, s:o, s:I, s:I, s:I, s:I, s:I, s:f, s:f}", "kind", "record",
        "key", key, "generation", (json_int_t)info.spec.generation, "variant", variant,
        "tokens_kept", (json_int_t)info.stored_tokens, "first_position",
        (json_int_t)info.spec.first_position, "layout", inspect_layout_json(&info.spec.layout),
        "source_bytes", (json_int_t)info.source_bytes, "record_bytes",
        (json_int_t)info.record_bytes, "payload_bytes", (json_int_t)info.payload_bytes, "segments",
        (json_int_t)info.segment_count, "raw_segments", (json_int_t)info.raw_segments,
        "bits_per_element", info.bits_per_element, "physical_bits_per_element",
        info.physical_bits_per_element);
    if (info.basis_span != 0) {
        inspect_hex(hash, info.basis, sizeof info.basis);
        json_t *more =
            json_pack("{s:s, s:s}", "basis", hash, "basis_span", inspect_span(info.basis_span));
        if (decoded) (void)json_object_set_new(more, "decodes", json_true());
        (void)json_object_update(document, more);
        json_decref(more);
    }
    return inspect_show(document, arguments->common.json);
}

static int inspect_show_basis(const inspect_arguments *arguments, const char *path, char *message,
                              size_t message_size)
{
    static const char *const metrics[] = {"plain", "queries", "outputs", "queries and outputs"};
    basis_files files = {.count = 0};
    char hash[2 * KVT_BASIS_HASH_BYTES + 1], digest[2 * BASIS_DIGEST_BYTES + 1];
    kvt_status status = basis_files_add(&files, path, message, message_size);
    if (status != KVT_OK) return command_fail_content(status, message);
    const transform_shape *shape = &files.list[0]->shape;
    const basis_origin *origin = &files.origins[0];
    inspect_hex(hash, files.list[0]->hash, KVT_BASIS_HASH_BYTES);
    inspect_hex(digest, origin->digest, sizeof origin->digest);
    json_t *document = json_pack(
        "{s:s, s:s, s:o, s:s, s:i, s:i, s:i, s:i, s:i, s:s, s:I, s:s, s:I}", "kind", "basis",
        "hash", hash, "model", view_string(origin->model), "span", inspect_span(shape->span),
        "layers", (int)shape->layers, "sides", (int)shape->sides, "kv_heads", (int)shape->kv_heads,
        "head_dim", (int)shape->head_dim, "rotary_dim", (int)shape->rotary_dim, "metric",
        metrics[shape->metric & 3], "tokens", (json_int_t)origin->tokens, "digest", digest, "bytes",
        (json_int_t)files.bytes[0]);
    basis_files_free(&files);
    return inspect_show(document, arguments->common.json);
}

/* A file that is nothing of ours. */
static int inspect_refuse(const char *path, char *message, size_t message_size)
{
    (void)snprintf(message, message_size,
                   "%.300s: neither a catalog, nor a profile, nor a record, nor a basis, nor a "
                   "labelled device",
                   path);
    return command_fail_input(KVT_E_MISMATCH, message);
}

static int inspect_show_device(const inspect_arguments *arguments, const char *path, char *message,
                               size_t message_size)
{
    static const char *const states[] = {"blank", "sound", "foreign"};
    inspect_label label;
    kvt_status status = inspect_device(path, &label, message, message_size);
    if (status == KVT_E_SPACE) return inspect_refuse(path, message, message_size);
    if (status != KVT_OK) return command_fail_input(status, message);
    bool foreign = label.state == INSPECT_LABEL_FOREIGN;
    json_t *document = json_pack("{s:s, s:s, s:I}", "kind", "device", "label", states[label.state],
                                 "capacity_bytes", (json_int_t)label.capacity_bytes);
    if (label.state == INSPECT_LABEL_SOUND) {
        char pool[33];
        const char *tier = kvt_tier_name((int)label.tier);
        inspect_hex(pool, label.pool, sizeof label.pool);
        json_t *more =
            json_pack("{s:s, s:s, s:I, s:I, s:I}", "store", pool, "tier", tier ? tier : "unknown",
                      "member", (json_int_t)label.member, "epoch", (json_int_t)label.epoch,
                      "labelled_bytes", (json_int_t)label.labelled_bytes);
        (void)json_object_update(document, more);
        json_decref(more);
    }
    if (!foreign) return inspect_show(document, arguments->common.json);
    json_decref(document);
    return inspect_refuse(path, message, message_size);
}

/* Sums over the rows of a catalog. */
typedef struct inspect_summary {
    json_t *document;
    json_t *devices;
    json_t *entries; /* NULL: not asked for */
    json_t *bases;
    uint64_t count;
    uint64_t unreadable;
    uint64_t bytes;
} inspect_summary;

static bool inspect_take_identity(void *context, const uint8_t pool[16], uint64_t epoch)
{
    inspect_summary *summary = context;
    char text[33];
    inspect_hex(text, pool, 16);
    (void)json_object_set_new(summary->document, "store", json_string(text));
    (void)json_object_set_new(summary->document, "epoch", json_integer((json_int_t)epoch));
    return true;
}

static bool inspect_take_device(void *context, const inspect_catalog_device *device)
{
    inspect_summary *summary = context;
    const char *tier = kvt_tier_name((int)device->tier);
    json_t *row = json_pack("{s:s, s:s, s:I, s:I}", "name", device->name, "tier",
                            tier ? tier : "unknown", "member", (json_int_t)device->member,
                            "capacity_bytes", (json_int_t)device->capacity_bytes);
    return json_array_append_new(summary->devices, row) == 0;
}

static bool inspect_take_entry(void *context, const inspect_entry *entry)
{
    inspect_summary *summary = context;
    char key[65], variant[64];
    summary->count++;
    summary->unreadable += !entry->readable;
    summary->bytes += entry->record_bytes;
    if (!summary->entries) return true;
    inspect_hex(key, entry->key.bytes, sizeof entry->key.bytes);
    json_t *row = json_pack("{s:s, s:I, s:b}", "key", key, "generation",
                            (json_int_t)entry->generation, "readable", entry->readable);
    if (entry->readable) {
        (void)kvt_variant_format(entry->variant, variant, sizeof variant);
        json_t *more = json_pack(
            "{s:s, s:I, s:I, s:I, s:I, s:o}", "variant", variant, "tokens_kept",
            (json_int_t)entry->tokens_kept, "record_bytes", (json_int_t)entry->record_bytes,
            "first_position", (json_int_t)entry->first_position, "extents",
            (json_int_t)entry->extents, "layout", inspect_layout_json(&entry->layout));
        (void)json_object_update(row, more);
        json_decref(more);
        if (entry->has_parent) {
            inspect_hex(key, entry->parent.bytes, sizeof entry->parent.bytes);
            (void)json_object_set_new(row, "parent", json_string(key));
        }
    }
    return json_array_append_new(summary->entries, row) == 0;
}

static json_t *inspect_basis_json(const basis_needed *basis)
{
    static const char *const states[] = {"present", "damaged", "missing"};
    char hash[2 * KVT_BASIS_HASH_BYTES + 1];
    inspect_hex(hash, basis->hash, sizeof basis->hash);
    hash[basis->hash_bits / 4] = '\0';
    json_t *row = json_pack("{s:s, s:s, s:I}", "hash", hash, "state", states[basis->state],
                            "records", (json_int_t)basis->records);
    if (basis->state == BASIS_FILE_DAMAGED)
        (void)json_object_set_new(row, "reason", json_string(kvt_status_text(basis->status)));
    if (basis->state == BASIS_FILE_PRESENT) {
        json_t *more = json_pack("{s:s, s:I}", "span", inspect_span(basis->span), "bytes",
                                 (json_int_t)basis->bytes);
        (void)json_object_update(row, more);
        json_decref(more);
    }
    return row;
}

static bool inspect_take_basis(void *context, const basis_needed *basis)
{
    inspect_summary *summary = context;
    return json_array_append_new(summary->bases, inspect_basis_json(basis)) == 0;
}

static int inspect_show_catalog(const inspect_arguments *arguments, const char *path, char *message,
                                size_t message_size)
{
    inspect_summary summary = {.document = json_pack("{s:s}", "kind", "catalog"),
                               .devices = json_array(),
                               .bases = json_array(),
                               .entries = arguments->entries ? json_array() : NULL};
    const inspect_visitor visitor = {.context = &summary,
                                     .identity = inspect_take_identity,
                                     .device = inspect_take_device,
                                     .entry = inspect_take_entry,
                                     .basis = inspect_take_basis};
    kvt_status status = inspect_catalog(path, &visitor, message, message_size);
    (void)json_object_set_new(summary.document, "entries", json_integer((json_int_t)summary.count));
    (void)json_object_set_new(summary.document, "unreadable_rows",
                              json_integer((json_int_t)summary.unreadable));
    (void)json_object_set_new(summary.document, "record_bytes",
                              json_integer((json_int_t)summary.bytes));
    (void)json_object_set_new(summary.document, "devices", summary.devices);
    (void)json_object_set_new(summary.document, "bases", summary.bases);
    if (summary.entries) (void)json_object_set_new(summary.document, "entry", summary.entries);
    if (status == KVT_OK) return inspect_show(summary.document, arguments->common.json);
    json_decref(summary.document);
    return command_fail_input(status, message);
}

static int inspect_show_profile(const inspect_arguments *arguments, const char *path, char *message,
                                size_t message_size)
{
    kvt_profile *profile = NULL;
    kvt_status status = command_profile_look(path, &profile, message, message_size);
    if (status != KVT_OK) return command_fail_input(status, message);
    json_t *rows = json_object(), *table;
    const char *name;
    void *next;
    status = exchange_export(profile, NULL, rows);
    kvt_profile_close(profile);
    /* Of each table the count alone. */
    json_object_foreach_safe(rows, next, name, table)
    {
        const json_int_t count = (json_int_t)json_array_size(table);
        (void)json_object_set_new(rows, name, json_integer(count));
    }
    if (status != KVT_OK) {
        json_decref(rows);
        return command_fail(status, "");
    }
    if (!arguments->common.json)
        command_note(&arguments->common, "kvterrace profile show --database %s shows the curves",
                     path);
    return inspect_show(json_pack("{s:s, s:o}", "kind", "profile", "rows", rows),
                        arguments->common.json);
}

static int inspect_show_watch(const inspect_arguments *arguments, const char *path, char *message,
                              size_t message_size)
{
    json_t *document = NULL;
    kvt_status status = inspect_watch_read(path, &document, message, message_size);
    if (status != KVT_OK) return command_fail_input(status, message);
    if (arguments->common.json) return inspect_show(document, true);
    inspect_watch_print(document, arguments->entries);
    json_decref(document);
    return EXIT_FINE;
}

static int inspect_run(void *context)
{
    const inspect_arguments *arguments = context;
    const char *path = arguments->paths.items[0];
    char message[COMMAND_MESSAGE_BYTES] = "";
    inspect_kind kind;
    kvt_status status = inspect_identify(path, &kind, message, sizeof message);
    if (status != KVT_OK) return command_fail_input(status, message);
    if (kind != INSPECT_RECORD && arguments->bases.count != 0)
        return command_misuse("--basis is for a record, and FILE is none");
    switch (kind) {
    case INSPECT_BASIS: return inspect_show_basis(arguments, path, message, sizeof message);
    case INSPECT_DATABASE: return inspect_show_catalog(arguments, path, message, sizeof message);
    case INSPECT_PROFILE: return inspect_show_profile(arguments, path, message, sizeof message);
    case INSPECT_WATCH: return inspect_show_watch(arguments, path, message, sizeof message);
    case INSPECT_RECORD: return inspect_show_record(arguments, path, message, sizeof message);
    default: return inspect_show_device(arguments, path, message, sizeof message);
    }
}

const command_spec inspect_spec = {
    .name = "inspect",
    .summary = "show a running store, catalog, profile, record, basis or label",
    .about =
        "Shows what a file says about itself: what a running store writes (store.watch_path), a "
        "store's catalog with the bases that its entries need, a profile, one encoded record, a "
        "basis, or the label of a device (its store must be closed).",
    .example = "  kvterrace inspect /var/lib/kvterrace/catalog.db --entries\n"
               "  kvterrace inspect /run/kvterrace/store.prom",
    .options = inspect_rows,
    .argument_bytes = sizeof(inspect_arguments),
    .run = inspect_run,
};

/* ---- verify ---- */

typedef struct verify_report {
    command_progress bar;
    json_t *faults; /* NULL: text */
} verify_report;

static void verify_take_fault(void *context, const char *device, const kvt_key *key,
                              const char *reason)
{
    verify_report *report = context;
    char text[65];
    if (key) inspect_hex(text, key->bytes, sizeof key->bytes);
    if (report->faults) {
        (void)json_array_append_new(report->faults,
                                    json_pack("{s:s, s:s}", key ? "entry" : "device",
                                              key ? text : device, "reason", reason));
        return;
    }
    progress_end(&report->bar);
    printf("%s %s: %s\n", key ? "entry" : "device", key ? text : device, reason);
}

/* Reports a basis that is damaged or missing. */
static void verify_take_basis(void *context, const basis_needed *basis)
{
    verify_report *report = context;
    char hash[2 * KVT_BASIS_HASH_BYTES + 1];
    if (basis->state == BASIS_FILE_PRESENT) return;
    inspect_hex(hash, basis->hash, sizeof basis->hash);
    hash[basis->hash_bits / 4] = '\0';
    if (report->faults) {
        json_t *fault = inspect_basis_json(basis);
        (void)json_object_set_new(fault, "basis", json_string(hash));
        (void)json_array_append_new(report->faults, fault);
        return;
    }
    progress_end(&report->bar);
    printf("basis %s: %s%s%s; %llu records need it\n", hash,
           basis->state == BASIS_FILE_MISSING ? "missing" : "damaged",
           basis->state == BASIS_FILE_MISSING ? "" : ": ",
           basis->state == BASIS_FILE_MISSING ? "" : kvt_status_text(basis->status),
           (unsigned long long)basis->records);
}

static bool verify_take_progress(void *context, uint64_t done, uint64_t total)
{
    verify_report *report = context;
    return progress_ask(&report->bar, total ? (double)done / (double)total : 1, "reading records");
}

static int verify_print(const verify_counts *counts, json_t *faults)
{
    char text[32];
    const bool sound = !counts->faulty && !counts->devices_faulty && !counts->bases_faulty;
    int code = sound ? EXIT_FINE : EXIT_FAILED;
    if (faults) {
        int dumped = inspect_dump(
            "kvterrace-verify-1",
            json_pack("{s:b, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:O}", "ok", code == EXIT_FINE,
                      "entries", (json_int_t)counts->entries, "sound", (json_int_t)counts->sound,
                      "faulty", (json_int_t)counts->faulty, "bytes_read",
                      (json_int_t)counts->bytes_read, "devices", (json_int_t)counts->devices,
                      "devices_faulty", (json_int_t)counts->devices_faulty, "bases",
                      (json_int_t)counts->bases, "bases_faulty", (json_int_t)counts->bases_faulty,
                      "faults", faults));
        return code == EXIT_FINE ? dumped : code;
    }
    printf("%llu entries, %llu sound, %llu faulty; %llu devices, %llu faulty; ",
           (unsigned long long)counts->entries, (unsigned long long)counts->sound,
           (unsigned long long)counts->faulty, (unsigned long long)counts->devices,
           (unsigned long long)counts->devices_faulty);
    if (counts->bases != 0)
        printf("%llu bases, %llu faulty; ", (unsigned long long)counts->bases,
               (unsigned long long)counts->bases_faulty);
    printf("%s read\n", format_bytes(text, counts->bytes_read));
    return code;
}

static int verify_run(void *context)
{
    static const char *const sections[] = {"device.*", NULL};
    command_common *common = context;
    char message[COMMAND_MESSAGE_BYTES] = "";
    verify_report report = {.faults = common->json ? json_array() : NULL};
    const verify_observer observer = {.context = &report,
                                      .fault = verify_take_fault,
                                      .basis = verify_take_basis,
                                      .progress = verify_take_progress};
    kvt_store_options options = {.struct_size = sizeof options};
    void *owner = NULL;
    verify_counts counts;
    int code = EXIT_FINE;
    kvt_status status =
        kvt_store_options_read(common->config, &options, &owner, message, sizeof message);
    if (status == KVT_OK) code = command_report_unused(common, sections);
    if (status == KVT_OK && code == EXIT_FINE) {
        command_catch_interrupts();
        progress_start(&report.bar, common);
        status = verify_store(&options, &observer, &counts, message, sizeof message);
        progress_end(&report.bar);
        if (status == KVT_OK) code = verify_print(&counts, report.faults);
    }
    if (status != KVT_OK) code = command_fail_input(status, message);
    json_decref(report.faults);
    kvt_store_options_free(owner);
    return code;
}

const command_spec verify_spec = {
    .name = "verify",
    .summary = "read and check every entry that a catalog lists",
    .about = "Reads every entry that the catalog of a store lists, and checks key, generation, "
             "every checksum, and the bases beside the catalog. Needs the store's configuration; "
             "the store must be closed. Writes "
             "nothing; after a crash SQLite leaves a -shm file by the catalog.",
    .example = "  kvterrace verify --config kvterrace.ini",
    .argument_bytes = sizeof(command_common),
    .run = verify_run,
    .settings = SETTINGS_OWN,
};
