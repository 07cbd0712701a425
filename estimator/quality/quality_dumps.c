/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quality_dumps.c - a measurement from dumps, into a profile. Dumps are independent of each other,
 * so threads take one after the other. Thread rule: the threads here share what is read-only, the
 * place of the next dump, and the rest under a lock.
 */
#include "base/clock.h"
#include "codecs/kernels/checksum.h"
#include "estimator/model/model.h"
#include "estimator/profile/profile_internal.h"
#include "estimator/quality/quality.h"
#include "estimator/quality/quality_round_trip.h"
#include "estimator/quality/quality_rows.h"

#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DUMPS_METHOD "attention"

typedef struct dumps_run {
    const quality_dumps_options *options;
    kvt_profile *profile; /* NULL: no database */
    int64_t run, model, set;
    quality_dump first; /* its shape is everybody's */
    uint32_t queries;
    quality_row *rows; /* [count][variant_count] */
    const quality_map *map;
    uint64_t pairs;
    uint64_t resumed;
    uint32_t done; /* dumps */
    pthread_mutex_t lock;
    atomic_uint next;
    atomic_int failed;
    char *message;
    size_t message_size;
} dumps_run;

typedef struct dumps_worker {
    dumps_run *run;
    pthread_t thread;
    quality_attention *attention; /* of the present dump's sizes */
    kvt_layout layout;
} dumps_worker;

static quality_row *dumps_row(const dumps_run *run, uint32_t dump, uint32_t variant)
{
    return &run->rows[(size_t)dump * run->options->variant_count + variant];
}

/* ---- one dump ---- */

__attribute__((format(printf, 3, 4))) static kvt_status
dumps_refuse(dumps_run *run, kvt_status status, const char *format, ...)
{
    va_list arguments;
    (void)pthread_mutex_lock(&run->lock);
    va_start(arguments, format);
    if (run->message_size > 0 && run->message[0] == '\0')
        (void)vsnprintf(run->message, run->message_size, format, arguments);
    va_end(arguments);
    (void)pthread_mutex_unlock(&run->lock);
    return status;
}

static kvt_status dumps_check(dumps_run *run, const quality_dump *dump, const char *path)
{
    const kvt_layout *layout = &dump->layout, *first = &run->first.layout;
    if (dump->query_rows == 0)
        return dumps_refuse(run, KVT_E_ARGUMENT, "%s has no queries: q.<layer> is missing", path);
    if (layout->layers != first->layers || layout->kv_heads != first->kv_heads ||
        layout->head_dim != first->head_dim || layout->dtype != first->dtype ||
        dump->query_heads != run->first.query_heads) {
        return dumps_refuse(run, KVT_E_ARGUMENT,
                            "%s has %u layers x %u KV heads x %u and %u query heads, the first "
                            "dump %u x %u x %u and %u",
                            path, layout->layers, layout->kv_heads, layout->head_dim,
                            (unsigned)dump->query_heads, first->layers, first->kv_heads,
                            first->head_dim, (unsigned)run->first.query_heads);
    }
    if (dump->query_rows < run->queries)
        return dumps_refuse(run, KVT_E_ARGUMENT, "%s has %u queries per head, not %u", path,
                            (unsigned)dump->query_rows, (unsigned)run->queries);
    return KVT_OK;
}

/* Buffers of this dump's sizes; most dumps of one run have the same. */
static kvt_status dumps_size(dumps_worker *worker, const quality_dump *dump)
{
    bool same = memcmp(&worker->layout, &dump->layout, sizeof worker->layout) == 0;
    if (worker->attention != NULL && same) return KVT_OK;
    quality_attention_close(worker->attention);
    worker->attention = NULL;
    worker->layout = dump->layout;
    const kvt_status status = quality_attention_open(&dump->layout, dump->query_heads,
                                                     worker->run->queries, &worker->attention);
    if (status == KVT_OK)
        quality_attention_set_bases(worker->attention, worker->run->options->bases);
    return status;
}

static kvt_status dumps_measure_one(dumps_worker *worker, uint32_t index, uint32_t *pairs)
{
    dumps_run *run = worker->run;
    const quality_dumps_options *o = run->options;
    quality_attention *attention = worker->attention;
    kvt_status status = KVT_OK;
    quality_attention_exact(attention);
    for (uint32_t i = 0; status == KVT_OK && i < o->variant_count; i++) {
        quality_row *row = dumps_row(run, index, i);
        if (row->present) continue;
        if (atomic_load(&run->failed) != KVT_OK) return KVT_E_CANCELLED;
        status =
            quality_attention_run(attention, o->variants[i].variant, o->variants[i].merged, row);
        *pairs += row->present;
        if (status != KVT_OK)
            return dumps_refuse(run, status, "%s, %s: %s", o->paths[index], o->variants[i].name,
                                kvt_status_text(status));
        if (row->present && !isfinite(row->attention_error)) {
            return dumps_refuse(run, KVT_E_ARGUMENT, "%s: values that are not finite",
                                o->paths[index]);
        }
    }
    return status;
}

/* Stores all rows of one dump at once. Lock held. */
static kvt_status dumps_store(dumps_run *run, uint32_t index)
{
    const quality_dumps_options *o = run->options;
    sqlite3 *database = run->profile->database;
    kvt_status status = profile_status(sqlite3_exec(database, "BEGIN IMMEDIATE", NULL, NULL, NULL));
    if (status != KVT_OK) return status;
    for (uint32_t i = 0; status == KVT_OK && i < o->variant_count; i++) {
        const quality_row *row = dumps_row(run, index, i);
        if (row->present)
            status = profile_entry_insert(run->profile, run->set, index,
                                          quality_variant_key(&o->variants[i]), row);
    }
    if (status == KVT_OK)
        status = profile_status(sqlite3_exec(database, "COMMIT", NULL, NULL, NULL));
    if (status != KVT_OK) (void)sqlite3_exec(database, "ROLLBACK", NULL, NULL, NULL);
    return status;
}

static kvt_status dumps_finish_one(dumps_run *run, uint32_t index, uint32_t pairs)
{
    const quality_dumps_options *o = run->options;
    kvt_status status = KVT_OK;
    (void)pthread_mutex_lock(&run->lock);
    if (run->profile != NULL) status = dumps_store(run, index);
    run->pairs += pairs;
    run->done++;
    if (status == KVT_OK && o->progress != NULL &&
        !o->progress(o->progress_context, (double)run->done / o->count, "dumps")) {
        status = KVT_E_CANCELLED;
    }
    (void)pthread_mutex_unlock(&run->lock);
    return status;
}

static kvt_status dumps_one(dumps_worker *worker, uint32_t index)
{
    dumps_run *run = worker->run;
    const char *path = run->options->paths[index];
    char message[256] = "";
    quality_dump dump;
    uint32_t pairs = 0;
    kvt_status status = quality_dump_open(path, &dump, message, sizeof message);
    if (status != KVT_OK) return dumps_refuse(run, status, "%s", message);
    status = dumps_check(run, &dump, path);
    if (status == KVT_OK) status = dumps_size(worker, &dump);
    if (status == KVT_OK) {
        quality_dump_load(&dump, quality_attention_source(worker->attention));
        quality_dump_load_queries(&dump, run->queries,
                                  quality_attention_queries(worker->attention));
        status = dumps_measure_one(worker, index, &pairs);
    }
    quality_dump_close(&dump);
    return status == KVT_OK ? dumps_finish_one(run, index, pairs) : status;
}

static void *dumps_work(void *argument)
{
    dumps_worker *worker = argument;
    dumps_run *run = worker->run;
    kvt_status status = KVT_OK;
    while (status == KVT_OK && atomic_load(&run->failed) == KVT_OK) {
        uint32_t index = atomic_fetch_add(&run->next, 1);
        if (index >= run->options->count) break;
        status = dumps_one(worker, index);
    }
    int none = KVT_OK;
    if (status != KVT_OK) (void)atomic_compare_exchange_strong(&run->failed, &none, status);
    quality_attention_close(worker->attention);
    return NULL;
}

static kvt_status dumps_measure(dumps_run *run)
{
    dumps_worker workers[QUALITY_THREADS_MAX];
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    uint32_t count = run->options->threads, started = 0;
    if (count == 0) count = processors > 0 ? (uint32_t)processors : 1;
    if (count > QUALITY_THREADS_MAX) count = QUALITY_THREADS_MAX;
    if (count > run->options->count) count = run->options->count;
    model_set_blas_threads(1);
    for (; started < count; started++) {
        workers[started] = (dumps_worker){.run = run};
        if (pthread_create(&workers[started].thread, NULL, dumps_work, &workers[started]) != 0)
            break;
    }
    for (uint32_t i = 0; i < started; i++)
        (void)pthread_join(workers[i].thread, NULL);
    return started > 0 ? (kvt_status)atomic_load(&run->failed) : KVT_E_MEMORY;
}

/* ---- all dumps ---- */

static kvt_status dumps_open(dumps_run *run)
{
    const quality_dumps_options *o = run->options;
    if (o->count == 0 || o->variant_count == 0)
        return dumps_refuse(run, KVT_E_ARGUMENT, "a dump and a variant are what is measured");
    kvt_status status =
        quality_dump_open(o->paths[0], &run->first, run->message, run->message_size);
    if (status != KVT_OK) return status;
    run->queries = o->queries != 0 ? o->queries : QUALITY_DUMPS_QUERIES;
    if (o->queries == 0 && run->first.query_rows != 0 && run->first.query_rows < run->queries)
        run->queries = run->first.query_rows;
    return dumps_check(run, &run->first, o->paths[0]);
}

static void dumps_close(dumps_run *run)
{
    quality_dump_close(&run->first);
    (void)pthread_mutex_destroy(&run->lock);
}

/* Of the KV and queries of all dumps: equal entries have equal ones. */
static kvt_status dumps_digest(dumps_run *run, uint64_t *digest_out)
{
    const quality_dumps_options *o = run->options;
    uint64_t digest = 0;
    for (uint32_t i = 0; i < o->count; i++) {
        quality_dump dump;
        kvt_status status = quality_dump_open(o->paths[i], &dump, run->message, run->message_size);
        if (status != KVT_OK) return status;
        const uint64_t parts[2] = {digest, quality_dump_digest(&dump)};
        digest = checksum_of(parts, sizeof parts);
        quality_dump_close(&dump);
    }
    *digest_out = digest;
    return KVT_OK;
}

static void dumps_take_row(void *context, uint32_t entry, kvt_variant variant,
                           const quality_row *row)
{
    dumps_run *run = context;
    const quality_dumps_options *o = run->options;
    if (entry >= o->count || !isfinite(row->attention_error)) return;
    for (uint32_t i = 0; i < o->variant_count; i++) {
        if (!quality_same_variant(quality_variant_key(&o->variants[i]), variant)) continue;
        *dumps_row(run, entry, i) = *row;
        run->resumed++;
    }
}

static void dumps_describe(const dumps_run *run, profile_model *facts)
{
    const kvt_layout *layout = &run->first.layout;
    (void)snprintf(facts->name, sizeof facts->name, "%s", run->options->name);
    facts->layers = layout->layers;
    facts->heads = run->first.query_heads;
    facts->kv_heads = layout->kv_heads;
    facts->head_dim = layout->head_dim;
}

/* The set of an interrupted run, or a new one. */
static kvt_status dumps_open_set(dumps_run *run, const profile_model *facts)
{
    const quality_dumps_options *o = run->options;
    char settings[160];
    uint64_t digest = 0;
    kvt_status status = profile_model_of_shape(run->profile, facts, &run->model);
    if (status == KVT_OK) status = dumps_digest(run, &digest);
    if (status != KVT_OK) return status;
    (void)snprintf(settings, sizeof settings,
                   "{\"dumps\":\"%016llx\",\"entries\":%u,\"queries\":%u}",
                   (unsigned long long)digest, (unsigned)o->count, (unsigned)run->queries);
    const profile_set set = {.model = run->model,
                             .class_name = o->class_name,
                             .method = DUMPS_METHOD,
                             .settings = settings,
                             .context_tokens = run->first.layout.tokens,
                             .entries = o->count};
    status = quality_set_open(run->profile, &set, "quality", o->command_line, &run->run, &run->set);
    if (status == KVT_OK)
        status = profile_entries_read(run->profile, run->set, 0, dumps_take_row, run);
    return status;
}

/* Losses of rows, of curves, and back into the database. */
static kvt_status dumps_losses(dumps_run *run, quality_dumps_report *report)
{
    const quality_dumps_options *o = run->options;
    const uint32_t variants = o->variant_count;
    quality_spread spread;
    kvt_status status = quality_summarise(run->rows, NULL, o->count, variants, QUALITY_SEED,
                                          report->curves, &spread);
    if (status == KVT_OK)
        status = quality_map_make(run->profile, o->name, o->class_name, o->variants, report->curves,
                                  variants, &report->map);
    if (status != KVT_OK) return status;
    for (uint32_t i = 0; i < variants; i++) {
        double upper = 0.0;
        for (uint32_t e = 0; e < o->count; e++) {
            quality_row *row = dumps_row(run, e, i);
            double bound;
            if (!row->present) continue;
            quality_map_loss(&report->map, o->variants[i].variant, row->attention_error,
                             row->attention_error_high, &row->loss, &bound);
            upper += bound / report->curves[i].entries;
        }
        report->uppers[i] = upper;
        double loss, bound;
        quality_map_loss(&report->map, o->variants[i].variant, report->curves[i].attention_error,
                         report->curves[i].attention_error_high, &loss, &bound);
        report->mapped[i] = loss < bound;
    }
    status = quality_summarise(run->rows, NULL, o->count, variants, QUALITY_SEED, report->curves,
                               &spread);
    for (uint32_t i = 0; i < variants; i++) {
        quality_curve *curve = &report->curves[i];
        /* The interval over entries does not know how far the map itself may be off. */
        if (curve->entries < 2) curve->loss_high = report->uppers[i];
        curve->loss_high = fmin(fmax(curve->loss_high, report->uppers[i]), 1.0);
        if (!report->mapped[i]) curve->loss_low = 0.0;
        report->uppers[i] = curve->loss_high;
    }
    return status;
}

static kvt_status dumps_report(dumps_run *run, quality_dumps_report *report)
{
    const quality_dumps_options *o = run->options;
    kvt_status status = dumps_losses(run, report);
    for (uint32_t i = 0; status == KVT_OK && i < o->count; i++)
        status = dumps_store(run, i);
    for (uint32_t i = 0; status == KVT_OK && i < o->variant_count; i++) {
        const quality_curve *curve = &report->curves[i];
        if (curve->entries > 0)
            status =
                profile_curve_insert(run->profile, run->set, quality_variant_key(&o->variants[i]),
                                     o->variants[i].name, DUMPS_METHOD, curve);
    }
    if (status == KVT_OK)
        status = quality_map_put(run->profile, run->run, run->model, &report->map);
    if (status == KVT_OK) status = profile_run_complete(run->profile, run->run);
    return status;
}

static kvt_status dumps_make_report(const dumps_run *run, quality_dumps_report *report)
{
    const quality_dumps_options *o = run->options;
    report->layout = run->first.layout;
    report->query_heads = run->first.query_heads;
    report->queries = run->queries;
    report->entries = o->count;
    report->rows = calloc((size_t)o->count * o->variant_count, sizeof *report->rows);
    report->curves = calloc(o->variant_count, sizeof *report->curves);
    report->uppers = calloc(o->variant_count, sizeof *report->uppers);
    report->mapped = calloc(o->variant_count, sizeof *report->mapped);
    return report->rows != NULL && report->curves != NULL && report->uppers != NULL &&
                   report->mapped != NULL
               ? KVT_OK
               : KVT_E_MEMORY;
}

kvt_status quality_dumps_run(kvt_profile *profile, const quality_dumps_options *options,
                             quality_dumps_report *report_out, char *message, size_t message_size)
{
    dumps_run run = {.options = options,
                     .profile = profile,
                     .lock = PTHREAD_MUTEX_INITIALIZER,
                     .message = message,
                     .message_size = message_size};
    double start = base_clock_seconds();
    *report_out = (quality_dumps_report){.entries = 0};
    message[0] = '\0';
    kvt_status status = dumps_open(&run);
    if (status == KVT_OK) status = dumps_make_report(&run, report_out);
    if (status == KVT_OK) {
        run.rows = report_out->rows;
        dumps_describe(&run, &report_out->model);
        status = dumps_open_set(&run, &report_out->model);
    }
    if (status == KVT_OK) status = dumps_measure(&run);
    if (status == KVT_OK) status = dumps_report(&run, report_out);
    report_out->pairs = run.pairs;
    report_out->resumed = run.resumed;
    report_out->seconds = base_clock_seconds() - start;
    dumps_close(&run);
    return status;
}

kvt_status quality_dumps_measure(const quality_dumps_options *options, quality_row *rows,
                                 char *message, size_t message_size)
{
    dumps_run run = {.options = options,
                     .rows = rows,
                     .lock = PTHREAD_MUTEX_INITIALIZER,
                     .message = message,
                     .message_size = message_size};
    message[0] = '\0';
    kvt_status status = dumps_open(&run);
    if (status == KVT_OK) status = dumps_measure(&run);
    dumps_close(&run);
    return status;
}

void quality_dumps_report_free(quality_dumps_report *report)
{
    free(report->rows);
    free(report->curves);
    free(report->uppers);
    free(report->mapped);
    *report = (quality_dumps_report){.entries = 0};
}
