/* SPDX-License-Identifier: Apache-2.0 */
/*
 * calibrate_profile.c - a calibration into a profile (calibrate.h). Thread rule: callbacks come
 * from measuring threads, one at a time.
 */
#include "base/clock.h"
#include "codecs/kernels/checksum.h"
#include "estimator/profile/profile_internal.h"
#include "estimator/quality/calibrate.h"
#include "estimator/quality/quality.h"
#include "estimator/quality/quality_round_trip.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CALIBRATE_SEED = 1 };

/* A row that an earlier run has left. */
typedef struct kept_row {
    kvt_variant variant;
    uint32_t entry;
    quality_row row;
} kept_row;

typedef struct calibration {
    kvt_profile *profile;
    const calibrate_options *options;
    calibrate_report *report;
    char *message;
    size_t message_size;
    quality_model measured;  /* of a model */
    quality_entries entries; /* of texts */
    quality_map map;         /* of dumps */
    kvt_layout layout;
    int64_t run, model, set;
    kept_row *kept;
    size_t kept_count, kept_capacity;
    bool kept_failed;
    double *answers; /* [entries]: of exact KV */
    /* While measuring. */
    const quality_variant *variants;
    uint32_t count;
    quality_row *rows;
    uint64_t done, expected;
} calibration;

static uint32_t calibrate_entry_count(const calibration *c)
{
    return c->options->model != NULL ? c->entries.count : c->options->dump_count;
}

/* ---- rows ---- */

static void calibrate_keep(void *context, uint32_t entry, kvt_variant variant,
                           const quality_row *row)
{
    calibration *c = context;
    if (c->kept_count == c->kept_capacity) {
        size_t capacity = c->kept_capacity * 2 + 256;
        kept_row *grown = realloc(c->kept, capacity * sizeof *grown);
        c->kept_failed |= grown == NULL;
        if (grown == NULL) return;
        c->kept = grown;
        c->kept_capacity = capacity;
    }
    c->kept[c->kept_count++] = (kept_row){.variant = variant, .entry = entry, .row = *row};
}

static bool calibrate_same(kvt_variant a, kvt_variant b)
{
    return a.codec == b.codec && a.mode == b.mode && a.rate == b.rate;
}

/* Fills in what an earlier run has left; true when nothing is missing. */
static bool calibrate_take_kept(calibration *c)
{
    const uint32_t entries = calibrate_entry_count(c);
    size_t missing = (size_t)entries * c->count;
    for (size_t i = 0; i < c->kept_count; i++) {
        const kept_row *kept = &c->kept[i];
        for (uint32_t v = 0; v < c->count && kept->entry < entries; v++) {
            if (!calibrate_same(quality_variant_key(&c->variants[v]), kept->variant)) continue;
            c->rows[(size_t)kept->entry * c->count + v] = kept->row;
            c->report->resumed++;
            missing--;
        }
    }
    return missing == 0;
}

static bool calibrate_progress(const calibration *c)
{
    const calibrate_options *o = c->options;
    /* How much there is depends on the answers; the share never falls. */
    double share = (double)c->done / (double)c->expected;
    return o->progress == NULL ||
           o->progress(o->progress_context, share < 1.0 ? share : 1.0, "calibration");
}

static bool calibrate_wanted(void *context, uint32_t entry, uint32_t variant)
{
    const calibration *c = context;
    return !c->rows[(size_t)entry * c->count + variant].present;
}

static kvt_status calibrate_opened(void *context, uint32_t entry, const quality_exact *exact)
{
    calibration *c = context;
    c->answers[entry] = exact->answers;
    return calibrate_progress(c) ? KVT_OK : KVT_E_CANCELLED;
}

static kvt_status calibrate_done(void *context, uint32_t entry, uint32_t variant,
                                 const quality_row *row)
{
    calibration *c = context;
    quality_row *to = &c->rows[(size_t)entry * c->count + variant];
    *to = *row;
    to->loss = quality_row_loss(c->options->metric, row, c->answers[entry]);
    c->done++;
    kvt_status status = profile_entry_insert(c->profile, c->set, entry,
                                             quality_variant_key(&c->variants[variant]), to);
    if (status == KVT_OK && !calibrate_progress(c)) status = KVT_E_CANCELLED;
    return status;
}

static kvt_status calibrate_with_model(calibration *c)
{
    const calibrate_options *o = c->options;
    const quality_request request = {.model = c->measured.weights,
                                     .tokenizer = c->measured.tokens,
                                     .entries = c->entries.entries,
                                     .entry_count = c->entries.count,
                                     .variants = c->variants,
                                     .variant_count = c->count,
                                     .threads = o->threads,
                                     .answer_tokens = o->answer_tokens,
                                     .wanted = calibrate_wanted,
                                     .opened = calibrate_opened,
                                     .done = calibrate_done,
                                     .context = c};
    return quality_measure(&request, c->message, c->message_size);
}

static bool calibrate_dump_progress(void *context, double done, const char *what)
{
    const calibration *c = context;
    (void)done, (void)what;
    return calibrate_progress(c);
}

static kvt_status calibrate_with_dumps(calibration *c)
{
    const calibrate_options *o = c->options;
    const quality_dumps_options dumps = {.paths = o->dumps,
                                         .count = o->dump_count,
                                         .name = o->name,
                                         .class_name = o->class_name,
                                         .variants = c->variants,
                                         .variant_count = c->count,
                                         .queries = o->queries,
                                         .threads = o->threads,
                                         .progress = calibrate_dump_progress,
                                         .progress_context = c};
    kvt_status status =
        quality_dumps_measure(&dumps, &c->map, c->rows, c->message, c->message_size);
    for (uint32_t e = 0; status == KVT_OK && e < o->dump_count; e++) {
        for (uint32_t v = 0; status == KVT_OK && v < c->count; v++) {
            const quality_row *row = &c->rows[(size_t)e * c->count + v];
            c->done++;
            if (row->present)
                status = profile_entry_insert(c->profile, c->set, e,
                                              quality_variant_key(&c->variants[v]), row);
        }
    }
    return status;
}

/* The source of calibrate_run. */
static kvt_status calibrate_source_measure(void *context, const quality_variant *variants,
                                           uint32_t count, quality_row *rows_out)
{
    calibration *c = context;
    c->variants = variants;
    c->count = count;
    c->rows = rows_out;
    c->report->measured += count;
    if (calibrate_take_kept(c)) return calibrate_progress(c) ? KVT_OK : KVT_E_CANCELLED;
    return c->options->model != NULL ? calibrate_with_model(c) : calibrate_with_dumps(c);
}

/* ---- entropy tables ---- */

/* One entry's KV to `tables`, to be counted or coded. */
static kvt_status calibrate_table_entry(calibration *c, model_session *session, uint32_t index,
                                        bool code, calibrate_tables *tables)
{
    kvt_layout layout = c->layout;
    evaluate_entry *entry = NULL;
    quality_dump dump = {.file = NULL};
    uint64_t bytes = 0;
    void *kv = NULL;
    kvt_status status;
    if (c->options->model != NULL) {
        const quality_entry *cut = &c->entries.entries[index];
        layout.tokens = cut->context_tokens;
        status = evaluate_entry_open(session, cut->tokens, cut->context_tokens,
                                     cut->continuation_tokens, &entry);
    } else {
        status = quality_dump_open(c->options->dumps[index], &dump, c->message, c->message_size);
        layout.tokens = dump.layout.tokens;
    }
    if (status == KVT_OK) status = kvt_layout_bytes(&layout, &bytes);
    if (status == KVT_OK) kv = malloc(bytes);
    if (status == KVT_OK && kv == NULL) status = KVT_E_MEMORY;
    if (status == KVT_OK && entry == NULL) quality_dump_load(&dump, kv);
    for (uint32_t i = 0; status == KVT_OK && entry != NULL && i < 2u * layout.layers; i++)
        memcpy((uint8_t *)kv + kvt_layout_matrix_offset(&layout, i / 2, (kvt_side)(i % 2)),
               i % 2 == 0 ? entry->k[i / 2] : entry->v[i / 2], kvt_layout_matrix_bytes(&layout));
    if (status == KVT_OK)
        status = code ? calibrate_tables_code(tables, layout.tokens, kv)
                      : calibrate_tables_count(tables, layout.tokens, kv);
    free(kv);
    quality_dump_close(&dump);
    evaluate_entry_close(entry);
    return status;
}

static kvt_status calibrate_source_tables(void *context, const quality_variant *variant,
                                          double *own_bits_out, double *shared_bits_out)
{
    calibration *c = context;
    const uint32_t half = calibrate_entry_count(c) / 2;
    const uint32_t each =
        half < CALIBRATE_TABLES_ENTRIES ? half : (uint32_t)CALIBRATE_TABLES_ENTRIES;
    calibrate_tables tables;
    model_session *session = NULL;
    kvt_status status = calibrate_tables_open(variant->variant, &c->layout, &tables);
    if (status == KVT_OK && c->options->model != NULL)
        status = model_session_open(c->measured.weights, &session);
    for (uint32_t i = 0; status == KVT_OK && i < 2 * each; i++)
        status = calibrate_table_entry(c, session, i, i >= each, &tables);
    if (status == KVT_OK && tables.coded > 0) {
        *own_bits_out = tables.own_bits / tables.coded;
        *shared_bits_out = tables.shared_bits / tables.coded;
    }
    model_session_close(session);
    calibrate_tables_close(&tables);
    return status;
}

/* ---- into the database ---- */

static kvt_status calibrate_open_model(calibration *c)
{
    const calibrate_options *o = c->options;
    kvt_status status = quality_model_open(o->model, o->tokenizer, o->name, &c->measured,
                                           c->message, c->message_size);
    if (status != KVT_OK) return status;
    profile_model *facts = &c->report->model;
    *facts = c->measured.facts;
    c->layout = (kvt_layout){.layers = (uint16_t)facts->layers,
                             .kv_heads = (uint16_t)facts->kv_heads,
                             .head_dim = (uint16_t)facts->head_dim,
                             .dtype = KVT_DTYPE_FP16,
                             .tokens = o->context_tokens};
    status = quality_entries_read(o->texts, o->text_count, c->measured.tokens, o->context_tokens,
                                  o->continuation_tokens, o->contexts, &c->entries, c->message,
                                  c->message_size);
    return status == KVT_OK ? profile_model_put(c->profile, facts, &c->model) : status;
}

static kvt_status calibrate_open_dumps(calibration *c, uint64_t *digest_out)
{
    const calibrate_options *o = c->options;
    profile_model *facts = &c->report->model;
    for (uint32_t i = 0; i < o->dump_count; i++) {
        quality_dump dump;
        kvt_status status = quality_dump_open(o->dumps[i], &dump, c->message, c->message_size);
        if (status != KVT_OK) return status;
        const uint64_t parts[2] = {*digest_out, quality_dump_digest(&dump)};
        *digest_out = checksum_of(parts, sizeof parts);
        if (i == 0) c->layout = dump.layout;
        if (i == 0) facts->heads = dump.query_heads;
        quality_dump_close(&dump);
    }
    (void)snprintf(facts->name, sizeof facts->name, "%s", o->name);
    facts->layers = c->layout.layers;
    facts->kv_heads = c->layout.kv_heads;
    facts->head_dim = c->layout.head_dim;
    kvt_status status = profile_model_of_shape(c->profile, facts, &c->model);
    if (status == KVT_OK)
        status = quality_map_make(c->profile, o->name, o->class_name, NULL, NULL, 0, &c->map);
    return status;
}

/* The set of an interrupted calibration with the same settings, or a new one. */
static kvt_status calibrate_open_set(calibration *c, uint64_t digest)
{
    const calibrate_options *o = c->options;
    char settings[256];
    (void)snprintf(settings, sizeof settings,
                   "{\"calibration\":\"%016llx\",\"entries\":%u,\"context_tokens\":%u,"
                   "\"continuation_tokens\":%u,\"answer_tokens\":%u,\"metric\":\"%s\","
                   "\"queries\":%u}",
                   (unsigned long long)digest, (unsigned)calibrate_entry_count(c),
                   (unsigned)o->context_tokens, (unsigned)o->continuation_tokens,
                   (unsigned)o->answer_tokens, quality_metric_name(o->metric),
                   (unsigned)o->queries);
    const profile_set set = {.model = c->model,
                             .class_name = o->class_name,
                             .method = o->model != NULL ? "continuation" : "attention",
                             .settings = settings,
                             .context_tokens = c->layout.tokens,
                             .continuation_tokens = o->continuation_tokens,
                             .entries = calibrate_entry_count(c)};
    kvt_status status = profile_set_find(c->profile, &set, &c->run, &c->set);
    if (status == KVT_MISS) {
        status =
            profile_run_begin(c->profile, "calibration", o->command_line, CALIBRATE_SEED, &c->run);
        if (status == KVT_OK) status = profile_set_insert(c->profile, c->run, &set, &c->set);
    }
    if (status == KVT_OK) status = profile_entries_read(c->profile, c->set, calibrate_keep, c);
    return status == KVT_OK && c->kept_failed ? KVT_E_MEMORY : status;
}

/* Ladder and choices appear together with the run's completion, or not at all. */
static kvt_status calibrate_store(calibration *c)
{
    sqlite3 *database = c->profile->database;
    int result = sqlite3_exec(database, "BEGIN IMMEDIATE", NULL, NULL, NULL);
    if (result != SQLITE_OK) return profile_status(result);
    kvt_status status = calibrate_put_ladder(c->profile, c->run, c->model, c->options->class_name,
                                             &c->report->ladder);
    if (status == KVT_OK) status = profile_run_complete(c->profile, c->run);
    if (status == KVT_OK)
        status = profile_status(sqlite3_exec(database, "COMMIT", NULL, NULL, NULL));
    if (status != KVT_OK) (void)sqlite3_exec(database, "ROLLBACK", NULL, NULL, NULL);
    return status;
}

/* What 90 % of entries lose at most, of the one class that there is. */
static kvt_status calibrate_bound_entries(calibration *c, const calibrate_rows *rows)
{
    const uint32_t count = c->report->entries;
    uint32_t *classes = calloc(count, sizeof *classes);
    uint64_t *documents = calloc(count, sizeof *documents);
    kvt_status status = KVT_E_MEMORY;
    if (classes != NULL && documents != NULL) {
        for (uint32_t i = 0; c->options->model != NULL && i < count; i++)
            documents[i] = c->entries.entries[i].document;
        const calibrate_entries of = {classes, documents, 1};
        status = calibrate_bound(rows, &of, 0, &c->report->ladder);
    }
    free(classes);
    free(documents);
    return status;
}

static kvt_status calibrate_check(const calibrate_options *o, char *message, size_t message_size)
{
    const char *wrong = NULL;
    size_t length = strlen(o->class_name);
    if (length < 1 || length > 63) wrong = "a class of 1 to 63 bytes";
    if (o->metric >= QUALITY_METRICS) wrong = "a metric";
    if (o->model == NULL && (o->dump_count == 0 || o->name == NULL)) wrong = "a model, or dumps";
    if (o->model != NULL && o->text_count == 0) wrong = "texts";
    if (o->model != NULL &&
        (o->contexts < 2 || o->context_tokens < 1 || o->continuation_tokens < 4))
        wrong = "two entries or more, of 1 + 4 tokens";
    if (wrong == NULL) return KVT_OK;
    (void)snprintf(message, message_size, "a calibration takes %s", wrong);
    return KVT_E_ARGUMENT;
}

static kvt_status calibrate_open(calibration *c)
{
    const calibrate_options *o = c->options;
    uint64_t digest = 0;
    kvt_status status =
        o->model != NULL ? calibrate_open_model(c) : calibrate_open_dumps(c, &digest);
    if (status != KVT_OK) return status;
    if (o->model != NULL) digest = c->entries.digest;
    c->report->entries = calibrate_entry_count(c);
    c->expected = (uint64_t)c->report->entries * CALIBRATE_VARIANTS_MAX * 5 / 8;
    c->answers = calloc(c->report->entries, sizeof *c->answers);
    if (c->answers == NULL) return KVT_E_MEMORY;
    return calibrate_open_set(c, digest);
}

kvt_status calibrate_profile_run(kvt_profile *profile, const calibrate_options *options,
                                 calibrate_report *report_out, char *message, size_t message_size)
{
    calibration c = {.profile = profile,
                     .options = options,
                     .report = report_out,
                     .message = message,
                     .message_size = message_size};
    calibrate_rows rows = {.source = NULL};
    double start = base_clock_seconds();
    memset(report_out, 0, sizeof *report_out);
    message[0] = '\0';
    kvt_status status = calibrate_check(options, message, message_size);
    if (status == KVT_OK) status = calibrate_open(&c);
    if (status == KVT_OK) {
        const uint32_t trials =
            options->model != NULL
                ? options->continuation_tokens
                : (options->queries != 0 ? options->queries : (uint32_t)QUALITY_DUMPS_QUERIES) *
                      report_out->model.heads * report_out->model.layers;
        const calibrate_source source = {.entries = report_out->entries,
                                         .trials = trials > 0 ? trials : 1,
                                         .measure = calibrate_source_measure,
                                         .tables = calibrate_source_tables,
                                         .context = &c};
        status = calibrate_run(&source, CALIBRATE_SEED, &report_out->ladder, &rows, message,
                               message_size);
        if (status == KVT_OK) status = calibrate_bound_entries(&c, &rows);
    }
    if (status == KVT_OK) status = calibrate_store(&c);
    report_out->seconds = base_clock_seconds() - start;
    calibrate_rows_free(&rows);
    quality_entries_free(&c.entries);
    quality_model_close(&c.measured);
    free(c.kept);
    free(c.answers);
    return status;
}
