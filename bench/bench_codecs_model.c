/*
 * bench_codecs_model.c - what variants do to the predictions of a model: its own KV of many
 * contexts goes through records, and the continuation is run again on what comes back.
 *
 * Contexts are independent of each other, so threads take one after the other; each thread has a
 * session and buffers of its own, and results do not depend on their number.
 *
 * Thread rule: one bench at a time; the threads here share what is read-only, the place of the next
 * context, and rows of results that are each written by one of them.
 */
#include "bench_codecs.h"
#include "estimator/judge.h"
#include "estimator/model_half.h"
#include "estimator/quality_trip.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    MODEL_CONTEXT_TOKENS = 768,
    MODEL_CONTINUATION_TOKENS = 200,
    MODEL_CONTEXTS = 40,
    MODEL_CONTEXTS_QUICK = 8,
    MODEL_THREADS_MAX = 16
};

typedef struct model_run {
    bench_codec_results *results;
    bench_codec_source *source;
    model *weights;
    judge_set set;
    uint32_t columns;        /* variants, then the exact run */
    judge_result *judged;    /* [contexts][columns] */
    bench_codec_loss *costs; /* the same; what does not come from the judge */
    atomic_uint next;
    atomic_int failed;  /* the first status that was an error */
    atomic_uint column; /* where it happened; `columns` when outside a variant */
} model_run;

/* One thread's own things, and the variant that it is at. */
typedef struct model_worker {
    model_run *run;
    pthread_t thread;
    model_session *session;
    quality_trip trip;
    const bench_codec_variant *variant;
} model_worker;

/* ---- one context ---- */

static void model_gather(quality_trip *trip, uint16_t *const *k, uint16_t *const *v)
{
    for (uint32_t l = 0; l < trip->layout.layers; l++) {
        memcpy(trip->source + kvt_layout_matrix_offset(&trip->layout, l, KVT_SIDE_K), k[l],
               trip->matrix_bytes);
        memcpy(trip->source + kvt_layout_matrix_offset(&trip->layout, l, KVT_SIDE_V), v[l],
               trip->matrix_bytes);
    }
}

/* A judge_transform: a record and back. */
static kvt_status model_transform(void *context, judge_kv *kv)
{
    model_worker *worker = context;
    quality_trip *trip = &worker->trip;
    const kvt_layout *layout = &trip->layout;
    model_gather(trip, kv->k, kv->v);
    kvt_status status = quality_trip_run(trip, worker->variant->variant, worker->variant->merged);
    if (status != KVT_OK) return status;
    for (uint32_t l = 0; l < layout->layers; l++) {
        memcpy(kv->k[l], trip->decoded + kvt_layout_matrix_offset(layout, l, KVT_SIDE_K),
               trip->matrix_bytes);
        memcpy(kv->v[l], trip->decoded + kvt_layout_matrix_offset(layout, l, KVT_SIDE_V),
               trip->matrix_bytes);
        for (uint32_t h = 0; h < layout->kv_heads; h++)
            memcpy(kv->kept[l] + (size_t)h * kv->tokens, trip->kept + (size_t)l * kv->tokens,
                   kv->tokens);
    }
    return KVT_OK;
}

static kvt_status model_variant(model_worker *worker, const judge_entry *entry, uint32_t column,
                                judge_result *judged, bench_codec_loss *cost)
{
    const model_run *run = worker->run;
    bool exact = column == run->results->variant_count;
    if (!exact) worker->variant = &run->results->variants[column];
    kvt_status status = judge_entry_run(
        worker->session, entry, exact ? judge_exact : model_transform, worker, judged, NULL);
    if (status == KVT_E_UNSUPPORTED) return KVT_OK;
    if (status != KVT_OK) return status;
    const quality_trip *trip = &worker->trip;
    *cost = (bench_codec_loss){.present = true,
                               .bits_per_element = exact ? 16.0 : trip->info.bits_per_element,
                               .physical_bits_per_element =
                                   exact ? 16.0 : trip->info.physical_bits_per_element,
                               .nmse = {exact ? 0.0 : trip->nmse[0], exact ? 0.0 : trip->nmse[1]}};
    return KVT_OK;
}

/* The same KV rounded to bf16, as a server would hold it. */
static kvt_status model_lossless(const model_worker *worker, const judge_entry *entry)
{
    kvt_layout layout = worker->trip.layout;
    const uint64_t elements = worker->trip.matrix_bytes / sizeof(uint16_t);
    uint16_t *rounded = malloc(worker->trip.source_bytes);
    if (rounded == NULL) return KVT_E_MEMORY;
    layout.dtype = KVT_DTYPE_BF16;
    for (uint32_t i = 0; i < 2u * layout.layers; i++) {
        const uint16_t *from = i % 2 == 0 ? entry->k[i / 2] : entry->v[i / 2];
        for (uint64_t e = 0; e < elements; e++)
            rounded[i * elements + e] = model_half_to_bf16(model_half_from_fp16(from[e]));
    }
    kvt_status status = bench_codecs_lossless(&layout, rounded, &worker->run->source->lossless);
    free(rounded);
    return status;
}

static kvt_status model_context(model_worker *worker, uint32_t index)
{
    model_run *run = worker->run;
    judge_entry *entry;
    kvt_status status =
        judge_entry_open(worker->session, judge_set_entry(&run->set, index),
                         run->set.context_tokens, run->set.continuation_tokens, &entry);
    if (status == KVT_OK && index == 0) status = model_lossless(worker, entry);
    for (uint32_t i = 0; status == KVT_OK && i < run->columns; i++) {
        size_t cell = (size_t)index * run->columns + i;
        status = model_variant(worker, entry, i, &run->judged[cell], &run->costs[cell]);
        if (status != KVT_OK) atomic_store(&run->column, i);
    }
    judge_entry_close(entry);
    return status;
}

static void *model_work(void *argument)
{
    model_worker *worker = argument;
    model_run *run = worker->run;
    kvt_status status = model_session_open(run->weights, &worker->session);
    if (status == KVT_OK) status = quality_trip_open(&run->source->layout, &worker->trip);
    while (status == KVT_OK && atomic_load(&run->failed) == KVT_OK) {
        uint32_t index = atomic_fetch_add(&run->next, 1);
        if (index >= run->set.count) break;
        status = model_context(worker, index);
    }
    int none = KVT_OK;
    if (status != KVT_OK) (void)atomic_compare_exchange_strong(&run->failed, &none, status);
    quality_trip_close(&worker->trip);
    model_session_close(worker->session);
    return NULL;
}

/* ---- all contexts ---- */

static kvt_status model_run_threads(model_run *run)
{
    model_worker workers[MODEL_THREADS_MAX];
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    uint32_t count = run->results->options->threads;
    if (count == 0) count = processors > 0 ? (uint32_t)processors : 1;
    if (count > MODEL_THREADS_MAX) count = MODEL_THREADS_MAX;
    if (count > run->set.count) count = run->set.count;
    uint32_t started = 0;
    for (; started < count; started++) {
        workers[started] = (model_worker){.run = run};
        if (pthread_create(&workers[started].thread, NULL, model_work, &workers[started]) != 0)
            break;
    }
    for (uint32_t i = 0; i < started; i++)
        (void)pthread_join(workers[i].thread, NULL);
    return started > 0 ? atomic_load(&run->failed) : KVT_E_MEMORY;
}

/* Means over contexts of one column. */
static kvt_status model_summarise(const model_run *run, uint32_t column, bench_codec_loss *loss)
{
    const uint32_t count = run->set.count;
    judge_summary summary;
    if (!run->costs[column].present) return KVT_OK;
    kvt_status status = judge_summarise(run->judged + column, count, run->columns, &summary);
    if (status != KVT_OK) return status;
    *loss = (bench_codec_loss){.present = true,
                               .judged = true,
                               .attention_error = summary.mean.attention_error,
                               .kl = summary.mean.kl,
                               .kl_p90 = summary.kl_p90,
                               .top1 = summary.mean.top1,
                               .nll_delta = summary.mean.nll_delta,
                               .retained_mass = summary.mean.retained_mass};
    for (uint32_t i = 0; i < count; i++) {
        const bench_codec_loss *cost = &run->costs[(size_t)i * run->columns + column];
        loss->bits_per_element += cost->bits_per_element / count;
        loss->physical_bits_per_element += cost->physical_bits_per_element / count;
        loss->nmse[0] += cost->nmse[0] / count;
        loss->nmse[1] += cost->nmse[1] / count;
    }
    return KVT_OK;
}

static kvt_status model_judge(model_run *run, char *message, size_t message_size)
{
    const uint32_t variants = run->results->variant_count;
    run->columns = variants + 1;
    atomic_store(&run->column, run->columns);
    run->judged = calloc((size_t)run->set.count * run->columns, sizeof *run->judged);
    run->costs = calloc((size_t)run->set.count * run->columns, sizeof *run->costs);
    if (run->judged == NULL || run->costs == NULL) return KVT_E_MEMORY;
    kvt_status status = model_run_threads(run);
    if (atomic_load(&run->column) < variants)
        status = bench_codecs_blame(status, &run->results->variants[atomic_load(&run->column)],
                                    run->source->name, message, message_size);
    for (uint32_t i = 0; status == KVT_OK && i < variants; i++) {
        status = model_summarise(run, i, &run->source->losses[i]);
        if (!run->source->losses[i].present)
            bench_codecs_note(run->results->options, "%s does not take the KV of %s",
                              run->results->variants[i].name, run->source->name);
    }
    if (status == KVT_OK) status = model_summarise(run, variants, &run->source->exact);
    return status;
}

/* ---- what it is judged on ---- */

/* The texts of all files, one after the other. */
static kvt_status model_read_texts(const bench_codecs_options *options, judge_texts *texts,
                                   char *message, size_t message_size)
{
    for (uint32_t i = 0; i < options->text_count; i++) {
        judge_texts more;
        kvt_status status = judge_texts_read(options->texts[i], &more, message, message_size);
        if (status != KVT_OK) return status;
        char **grown = realloc(texts->texts, (texts->count + more.count + 1) * sizeof *grown);
        if (grown == NULL) {
            judge_texts_free(&more);
            return KVT_E_MEMORY;
        }
        if (more.count > 0) memcpy(grown + texts->count, more.texts, more.count * sizeof *grown);
        texts->texts = grown;
        texts->count += more.count;
        free(more.texts); /* the strings have moved */
    }
    return KVT_OK;
}

static kvt_status model_make_set(model_run *run, char *message, size_t message_size)
{
    const bench_codecs_options *options = run->results->options;
    const uint32_t vocab = model_config_of(run->weights)->vocab;
    uint32_t limit = options->contexts;
    judge_texts texts = {NULL, 0};
    tokenizer *tokens = NULL;
    if (limit == 0) limit = options->quick ? MODEL_CONTEXTS_QUICK : MODEL_CONTEXTS;
    kvt_status status = tokenizer_open(options->tokenizer, vocab, &tokens, message, message_size);
    if (status == KVT_OK) status = model_read_texts(options, &texts, message, message_size);
    if (status == KVT_OK)
        status = judge_set_make(&texts, tokens, MODEL_CONTEXT_TOKENS, MODEL_CONTINUATION_TOKENS,
                                limit, &run->set);
    if (status == KVT_OK && run->set.count < limit) {
        snprintf(message, message_size, "the texts give %u contexts of %d + %d tokens, not %u",
                 (unsigned)run->set.count, MODEL_CONTEXT_TOKENS, MODEL_CONTINUATION_TOKENS,
                 (unsigned)limit);
        status = KVT_E_ARGUMENT;
    }
    judge_texts_free(&texts);
    tokenizer_close(tokens);
    return status;
}

kvt_status bench_codecs_judge(bench_codec_results *results, const char *path,
                              bench_codec_source *source, char *message, size_t message_size)
{
    double start = bench_codecs_seconds();
    model_run run = {.results = results, .source = source};
    const char *slash = strrchr(path, '/');
    snprintf(source->name, sizeof source->name, "%s", slash != NULL ? slash + 1 : path);
    kvt_status status = model_open(path, &run.weights, message, message_size);
    if (status == KVT_OK) status = model_make_set(&run, message, message_size);
    if (status == KVT_OK) {
        const model_config *config = model_config_of(run.weights);
        source->layout = (kvt_layout){.layers = (uint16_t)config->layers,
                                      .kv_heads = (uint16_t)config->kv_heads,
                                      .head_dim = (uint16_t)config->head_dim,
                                      .dtype = KVT_DTYPE_FP16,
                                      .tokens = MODEL_CONTEXT_TOKENS};
        source->contexts = run.set.count;
        status = model_judge(&run, message, message_size);
    }
    free(run.judged);
    free(run.costs);
    judge_set_free(&run.set);
    model_close(run.weights);
    source->seconds = bench_codecs_seconds() - start;
    return status;
}
