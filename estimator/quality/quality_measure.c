/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quality_measure.c - entries x variants. Entries are independent of each other, so threads take
 * one after the other; each has a session and buffers of its own. A dump's variants are measured by
 * the attention of its queries.
 *
 * Thread rule: the threads here share what is read-only, the place of the next entry, and the
 * callbacks, which are called under a lock.
 */
#include "estimator/quality/quality.h"
#include "estimator/quality/quality_round_trip.h"

#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct measure_run {
    const quality_request *request;
    pthread_mutex_t lock; /* callbacks and the message */
    atomic_uint next;
    atomic_int failed; /* the first status that was an error */
    char *message;
    size_t message_size;
} measure_run;

/* One thread's own things, and the variant that it is at. */
typedef struct measure_worker {
    measure_run *run;
    pthread_t thread;
    model_session *session;
    quality_round_trip round_trip; /* as long as the present entry's context */
    const quality_variant *variant;
    evaluate_variant changed; /* the context as the variant brings it */
    evaluate_token *tokens;   /* [continuation_tokens] */
    evaluate_recall recall;   /* of the present entry; tokens NULL: it has none */
    quality_answers answers;
    quality_attention *attention; /* of the present dump's sizes */
    kvt_layout layout;            /* which are these */
    uint32_t heads;
} measure_worker;

/* ---- one variant of one entry ---- */

static void measure_gather(quality_round_trip *round_trip, const evaluate_kv *kv)
{
    const kvt_layout *layout = &round_trip->layout;
    for (uint32_t l = 0; l < layout->layers; l++) {
        memcpy(round_trip->source + kvt_layout_matrix_offset(layout, l, KVT_SIDE_K), kv->k[l],
               round_trip->matrix_bytes);
        memcpy(round_trip->source + kvt_layout_matrix_offset(layout, l, KVT_SIDE_V), kv->v[l],
               round_trip->matrix_bytes);
    }
}

/* A evaluate_transform: a record and back. */
static kvt_status measure_transform(void *context, evaluate_kv *kv)
{
    measure_worker *worker = context;
    quality_round_trip *round_trip = &worker->round_trip;
    const kvt_layout *layout = &round_trip->layout;
    measure_gather(round_trip, kv);
    kvt_status status =
        quality_round_trip_run(round_trip, worker->variant->variant, worker->variant->merged);
    if (status != KVT_OK) return status;
    for (uint32_t l = 0; l < layout->layers; l++) {
        memcpy(kv->k[l], round_trip->decoded + kvt_layout_matrix_offset(layout, l, KVT_SIDE_K),
               round_trip->matrix_bytes);
        memcpy(kv->v[l], round_trip->decoded + kvt_layout_matrix_offset(layout, l, KVT_SIDE_V),
               round_trip->matrix_bytes);
        for (uint32_t h = 0; h < layout->kv_heads; h++)
            memcpy(kv->kept[l] + (size_t)h * kv->tokens, round_trip->kept + (size_t)l * kv->tokens,
                   kv->tokens);
    }
    return KVT_OK;
}

/* The share of questions whose answers are all most probable; what a model says greedily, as long
 * as it is right. `best` gives the most probable token after each of the continuation. */
static double measure_answered(const quality_entry *entry, const evaluate_token *tokens)
{
    const uint32_t context = entry->context_tokens;
    uint32_t right = 0;
    for (uint32_t i = 0; i < entry->question_count; i++) {
        const quality_question *question = &entry->questions[i];
        uint32_t at = question->answer;
        while (at < question->end && tokens[at - 1 - context].best == entry->tokens[at])
            at++;
        right += at == question->end;
    }
    return entry->question_count > 0 ? (double)right / entry->question_count : (double)NAN;
}

static void measure_halves(const evaluate_token *tokens, uint32_t count, quality_row *row)
{
    uint32_t half = count / 2;
    row->kl_first = row->kl_second = 0.0;
    for (uint32_t i = 0; i < count; i++) {
        if (i < half) row->kl_first += tokens[i].kl / half;
        if (i >= half) row->kl_second += tokens[i].kl / (count - half);
    }
}

static kvt_status measure_recall(measure_worker *worker, const evaluate_entry *judged,
                                 const evaluate_variant *variant, quality_row *row)
{
    evaluate_recall_result result;
    row->recall_kl = row->recall_kl_first = row->recall_kl_second = (double)NAN;
    row->recall_top1 = row->recall_nll_delta = (double)NAN;
    if (worker->recall.tokens == NULL) return KVT_OK;
    kvt_status status =
        evaluate_recall_run(worker->session, judged, &worker->recall, variant, &result);
    if (status != KVT_OK) return status;
    row->recall_kl = result.kl;
    row->recall_kl_first = result.kl_first;
    row->recall_kl_second = result.kl_second;
    row->recall_top1 = result.top1;
    row->recall_nll_delta = result.nll_delta;
    return KVT_OK;
}

static kvt_status measure_variant(measure_worker *worker, const evaluate_entry *judged,
                                  const quality_entry *entry, quality_row *row)
{
    const quality_round_trip *round_trip = &worker->round_trip;
    evaluate_variant *changed = &worker->changed;
    evaluate_result result;
    *row = (quality_row){.present = false};
    kvt_status status = evaluate_variant_open(judged, measure_transform, worker, changed);
    if (status == KVT_E_UNSUPPORTED) return KVT_OK;
    if (status != KVT_OK) return status;
    status = evaluate_variant_run(worker->session, judged, changed, &result, worker->tokens);
    if (status == KVT_OK) status = measure_recall(worker, judged, changed, row);
    if (status == KVT_OK) status = quality_answers_add(&worker->answers, changed);
    if (status != KVT_OK) return status;
    row->present = true;
    row->bits_per_element = quality_coded_bits(&round_trip->info);
    row->physical_bits_per_element = round_trip->info.physical_bits_per_element;
    row->nmse[0] = round_trip->nmse[0];
    row->nmse[1] = round_trip->nmse[1];
    row->loss = row->flip_rate = (double)NAN;
    row->kl = result.kl;
    row->top1 = result.top1;
    row->nll_delta = result.nll_delta;
    row->attention_error = result.attention_error;
    row->attention_error_high = result.attention_error_high;
    /* Sums of weights that are 1 but for rounding. */
    row->retained_mass = fmin(fmax(result.retained_mass, 0.0), 1.0);
    row->answers = measure_answered(entry, worker->tokens);
    measure_halves(worker->tokens, entry->continuation_tokens, row);
    return KVT_OK;
}

/* ---- one entry ---- */

/* The status, with a message unless a callback left its own. */
__attribute__((format(printf, 3, 4))) static kvt_status
measure_refuse(measure_run *run, kvt_status status, const char *format, ...)
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

static bool measure_is_wanted(measure_run *run, uint32_t entry, uint32_t variant)
{
    const quality_request *q = run->request;
    if (q->wanted == NULL) return true;
    (void)pthread_mutex_lock(&run->lock);
    bool wanted = q->wanted(q->context, entry, variant);
    (void)pthread_mutex_unlock(&run->lock);
    return wanted;
}

static kvt_status measure_hand_over(measure_run *run, uint32_t entry, uint32_t variant,
                                    const quality_row *row)
{
    const quality_request *q = run->request;
    if (q->done == NULL || !row->present) return KVT_OK;
    (void)pthread_mutex_lock(&run->lock);
    kvt_status status = atomic_load(&run->failed) == KVT_OK
                            ? q->done(q->context, entry, variant, row)
                            : KVT_E_CANCELLED;
    (void)pthread_mutex_unlock(&run->lock);
    return status;
}

static kvt_status measure_report_exact(measure_worker *worker, uint32_t index,
                                       const evaluate_entry *judged)
{
    measure_run *run = worker->run;
    const quality_request *q = run->request;
    const quality_entry *entry = &q->entries[index];
    const uint32_t vocab = judged->config->vocab;
    if (q->opened == NULL) return KVT_OK;
    for (uint32_t i = 0; i < entry->continuation_tokens; i++)
        worker->tokens[i].best = model_best(judged->logits + (size_t)i * vocab, vocab);
    quality_exact exact = {.nll = judged->nll,
                           .answers = measure_answered(entry, worker->tokens),
                           .questions = entry->question_count,
                           .recall_nll =
                               worker->recall.tokens != NULL ? worker->recall.nll : (double)NAN,
                           .entry = judged};
    (void)pthread_mutex_lock(&run->lock);
    kvt_status status = q->opened(q->context, index, &exact);
    (void)pthread_mutex_unlock(&run->lock);
    return status;
}

/* Variants whose answers are generated together. */
typedef struct measure_group {
    quality_row rows[QUALITY_LANES_MAX];
    uint32_t variants[QUALITY_LANES_MAX];
    uint32_t count;
} measure_group;

/* Answers the questions of a group, then gives its rows to the caller, in order. */
static kvt_status measure_close_group(measure_worker *worker, uint32_t index, measure_group *group)
{
    const uint32_t count = group->count;
    kvt_status status = quality_answers_run(&worker->answers);
    group->count = 0;
    for (uint32_t i = 0; status == KVT_OK && i < count; i++) {
        group->rows[i].rouge_l = worker->answers.lanes[i].rouge_l;
        group->rows[i].f1 = worker->answers.lanes[i].f1;
        status = measure_hand_over(worker->run, index, group->variants[i], &group->rows[i]);
    }
    return status;
}

static kvt_status measure_variants(measure_worker *worker, uint32_t index,
                                   const evaluate_entry *judged)
{
    measure_run *run = worker->run;
    const quality_request *q = run->request;
    measure_group group = {.count = 0};
    kvt_status status = KVT_OK;
    for (uint32_t i = 0; status == KVT_OK && i < q->variant_count; i++) {
        quality_row *row = &group.rows[group.count];
        if (atomic_load(&run->failed) != KVT_OK) return KVT_E_CANCELLED;
        if (!measure_is_wanted(run, index, i)) continue;
        worker->variant = &q->variants[i];
        status = measure_variant(worker, judged, &q->entries[index], row);
        if (status != KVT_OK)
            return measure_refuse(run, status, "%s: %s", worker->variant->name,
                                  kvt_status_text(status));
        if (!row->present) continue;
        group.variants[group.count++] = i;
        if (group.count == worker->answers.lanes_most)
            status = measure_close_group(worker, index, &group);
    }
    return status == KVT_OK ? measure_close_group(worker, index, &group) : status;
}

/* Buffers of this entry's sizes; entries of one set mostly have the same. */
static kvt_status measure_size(measure_worker *worker, const quality_entry *entry)
{
    const model_config *c = model_session_config(worker->session);
    const kvt_layout layout = {.layers = (uint16_t)c->layers,
                               .kv_heads = (uint16_t)c->kv_heads,
                               .head_dim = (uint16_t)c->head_dim,
                               .dtype = KVT_DTYPE_FP16,
                               .tokens = entry->context_tokens};
    evaluate_token *tokens =
        realloc(worker->tokens, entry->continuation_tokens * sizeof *worker->tokens);
    if (tokens == NULL) return KVT_E_MEMORY;
    worker->tokens = tokens;
    if (worker->round_trip.source != NULL && worker->round_trip.layout.tokens == layout.tokens)
        return KVT_OK;
    quality_round_trip_close(&worker->round_trip);
    const kvt_status status = quality_round_trip_open(&layout, &worker->round_trip);
    worker->round_trip.bases = worker->run->request->bases;
    return status;
}

/* Whether any variant of the entry is still to be measured; else its exact run is not needed. */
static bool measure_is_open(measure_run *run, uint32_t index)
{
    if (run->request->wanted == NULL) return true;
    for (uint32_t i = 0; i < run->request->variant_count; i++)
        if (measure_is_wanted(run, index, i)) return true;
    return false;
}

static kvt_status measure_entry(measure_worker *worker, uint32_t index)
{
    const quality_request *q = worker->run->request;
    const quality_entry *entry = &q->entries[index];
    evaluate_entry *judged = NULL;
    kvt_status status = measure_size(worker, entry);
    if (status == KVT_OK)
        status = evaluate_entry_open(worker->session, entry->tokens, entry->context_tokens,
                                     entry->continuation_tokens, &judged);
    if (status == KVT_OK && entry->recall != NULL)
        status = evaluate_recall_open(worker->session, judged, entry->recall, entry->recall_tokens,
                                      entry->recall_scored, &worker->recall);
    if (status == KVT_OK) status = measure_report_exact(worker, index, judged);
    if (status == KVT_OK) {
        status = quality_answers_open(worker->session, judged, entry, q->tokenizer,
                                      q->answer_tokens, &worker->answers);
        if (status == KVT_OK) status = measure_variants(worker, index, judged);
        quality_answers_close(&worker->answers);
    }
    evaluate_recall_close(&worker->recall);
    evaluate_entry_close(judged);
    return status;
}

/* ---- one dump ---- */

/* Attends to the dump's exact KV, in buffers of its sizes; most dumps of one run have the same. */
static kvt_status measure_attend(measure_worker *worker, const quality_dump *dump)
{
    const quality_request *q = worker->run->request;
    const bool same = memcmp(&worker->layout, &dump->layout, sizeof worker->layout) == 0 &&
                      worker->heads == dump->query_heads;
    if (worker->attention == NULL || !same) {
        quality_attention_close(worker->attention);
        worker->attention = NULL;
        worker->layout = dump->layout;
        worker->heads = dump->query_heads;
        const kvt_status status = quality_attention_open(&dump->layout, dump->query_heads,
                                                         q->queries, &worker->attention);
        if (status != KVT_OK) return status;
        quality_attention_set_bases(worker->attention, q->bases);
    }
    quality_dump_load(dump, quality_attention_source(worker->attention));
    quality_dump_load_queries(dump, q->queries, quality_attention_queries(worker->attention));
    quality_attention_exact(worker->attention);
    return KVT_OK;
}

static kvt_status measure_dump_variant(measure_worker *worker, uint32_t index, uint32_t variant)
{
    measure_run *run = worker->run;
    const quality_variant *of = &run->request->variants[variant];
    const char *path = run->request->dumps[index];
    quality_row row;
    if (atomic_load(&run->failed) != KVT_OK) return KVT_E_CANCELLED;
    if (!measure_is_wanted(run, index, variant)) return KVT_OK;
    kvt_status status = quality_attention_run(worker->attention, of->variant, of->merged, &row);
    if (status != KVT_OK)
        return measure_refuse(run, status, "%s, %s: %s", path, of->name, kvt_status_text(status));
    if (row.present && !isfinite(row.attention_error))
        return measure_refuse(run, KVT_E_ARGUMENT, "%s: values that are not finite", path);
    return measure_hand_over(run, index, variant, &row);
}

static kvt_status measure_dump(measure_worker *worker, uint32_t index)
{
    measure_run *run = worker->run;
    const quality_request *q = run->request;
    const char *path = q->dumps[index];
    char message[256] = "";
    quality_dump dump;
    kvt_status status = quality_dump_open(path, &dump, message, sizeof message);
    if (status != KVT_OK) return measure_refuse(run, status, "%s", message);
    if (dump.query_rows == 0)
        status =
            measure_refuse(run, KVT_E_ARGUMENT, "%s has no queries: q.<layer> is missing", path);
    else if (dump.query_rows < q->queries)
        status = measure_refuse(run, KVT_E_ARGUMENT, "%s has %u queries per head, not %u", path,
                                (unsigned)dump.query_rows, (unsigned)q->queries);
    if (status == KVT_OK) status = measure_attend(worker, &dump);
    for (uint32_t i = 0; status == KVT_OK && i < q->variant_count; i++)
        status = measure_dump_variant(worker, index, i);
    quality_dump_close(&dump);
    return status;
}

/* ---- all entries ---- */

static void *measure_work(void *argument)
{
    measure_worker *worker = argument;
    measure_run *run = worker->run;
    const quality_request *q = run->request;
    kvt_status status = q->model != NULL ? model_session_open(q->model, &worker->session) : KVT_OK;
    while (status == KVT_OK && atomic_load(&run->failed) == KVT_OK) {
        uint32_t index = atomic_fetch_add(&run->next, 1);
        if (index >= q->entry_count) break;
        if (!measure_is_open(run, index)) continue;
        status = q->model != NULL ? measure_entry(worker, index) : measure_dump(worker, index);
    }
    int none = KVT_OK;
    if (status != KVT_OK) (void)atomic_compare_exchange_strong(&run->failed, &none, status);
    quality_round_trip_close(&worker->round_trip);
    evaluate_variant_close(&worker->changed);
    quality_attention_close(worker->attention);
    free(worker->tokens);
    model_session_close(worker->session);
    return NULL;
}

kvt_status quality_measure(const quality_request *request, char *message, size_t message_size)
{
    measure_worker workers[QUALITY_THREADS_MAX];
    measure_run run = {.request = request,
                       .lock = PTHREAD_MUTEX_INITIALIZER,
                       .message = message,
                       .message_size = message_size};
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    uint32_t count = request->threads, started = 0;
    if (message_size > 0) message[0] = '\0';
    if (count == 0) count = processors > 0 ? (uint32_t)processors : 1;
    if (count > QUALITY_THREADS_MAX) count = QUALITY_THREADS_MAX;
    if (count > request->entry_count) count = request->entry_count;
    if (count == 0) return KVT_OK;
    if (request->model == NULL) model_set_blas_threads(1);
    for (; started < count; started++) {
        workers[started] = (measure_worker){.run = &run};
        if (pthread_create(&workers[started].thread, NULL, measure_work, &workers[started]) != 0)
            break;
    }
    for (uint32_t i = 0; i < started; i++)
        (void)pthread_join(workers[i].thread, NULL);
    (void)pthread_mutex_destroy(&run.lock);
    return started > 0 ? (kvt_status)atomic_load(&run.failed) : KVT_E_MEMORY;
}
