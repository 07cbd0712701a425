/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_codecs_model.c - what variants do to the predictions of a model, as columns of the bench.
 * Measuring itself is the estimator's (estimator/quality/quality.h).
 *
 * Thread rule: one bench at a time.
 */
#include "base/clock.h"
#include "base/half.h"
#include "bench_codecs.h"
#include "estimator/quality/quality.h"

#include <stdlib.h>
#include <string.h>

enum {
    MODEL_CONTEXT_TOKENS = 768,
    MODEL_CONTINUATION_TOKENS = 200,
    MODEL_CONTEXTS = 40,
    MODEL_CONTEXTS_QUICK = 8,
    MODEL_SEED = 1
};

typedef struct model_run {
    bench_codec_results *results;
    bench_codec_source *source;
    model *weights;
    tokenizer *tokens;
    quality_entries entries;
    uint32_t columns;          /* variants, then raw: the exact run and its noise */
    quality_variant *variants; /* [columns] */
    quality_row *rows;         /* [entries][columns] */
    quality_curve *curves;     /* [columns] */
} model_run;

/* The first entry's KV rounded to bf16, as a server would hold it. */
static kvt_status model_opened(void *context, uint32_t index, const quality_exact *exact)
{
    const model_run *run = context;
    const kvt_layout *source = &run->source->layout;
    if (index != 0) return KVT_OK;
    kvt_layout layout = *source;
    layout.dtype = KVT_DTYPE_BF16;
    const uint64_t elements = kvt_layout_matrix_bytes(source) / sizeof(uint16_t);
    uint16_t *rounded = malloc(2u * layout.layers * elements * sizeof *rounded);
    if (rounded == NULL) return KVT_E_MEMORY;
    for (uint32_t i = 0; i < 2u * layout.layers; i++) {
        const uint16_t *from = i % 2 == 0 ? exact->entry->k[i / 2] : exact->entry->v[i / 2];
        for (uint64_t e = 0; e < elements; e++)
            rounded[i * elements + e] = half_bf16_from_float(half_to_float(from[e]));
    }
    kvt_status status = bench_codecs_lossless(&layout, rounded, &run->source->lossless);
    free(rounded);
    return status;
}

static kvt_status model_done(void *context, uint32_t entry, uint32_t variant,
                             const quality_row *row)
{
    model_run *run = context;
    run->rows[(size_t)entry * run->columns + variant] = *row;
    return KVT_OK;
}

/* ---- what it is judged on ---- */

static kvt_status model_open_all(model_run *run, const char *path, char *message,
                                 size_t message_size)
{
    const bench_codecs_options *options = run->results->options;
    uint32_t limit = options->contexts;
    if (limit == 0) limit = options->quick ? MODEL_CONTEXTS_QUICK : MODEL_CONTEXTS;
    kvt_status status = model_open(path, &run->weights, message, message_size);
    if (status != KVT_OK) return status;
    const model_config *config = model_config_of(run->weights);
    status = tokenizer_open(options->tokenizer, config->vocab, &run->tokens, message, message_size);
    if (status == KVT_OK)
        status = quality_entries_read(options->texts, options->text_count, run->tokens,
                                      MODEL_CONTEXT_TOKENS, MODEL_CONTINUATION_TOKENS, limit,
                                      &run->entries, message, message_size);
    if (status != KVT_OK) return status;
    if (run->entries.count < limit) {
        snprintf(message, message_size, "the texts give %u contexts of %d + %d tokens, not %u",
                 (unsigned)run->entries.count, MODEL_CONTEXT_TOKENS, MODEL_CONTINUATION_TOKENS,
                 (unsigned)limit);
        return KVT_E_ARGUMENT;
    }
    run->source->contexts = run->entries.count;
    run->source->layout = (kvt_layout){.layers = (uint16_t)config->layers,
                                       .kv_heads = (uint16_t)config->kv_heads,
                                       .head_dim = (uint16_t)config->head_dim,
                                       .dtype = KVT_DTYPE_FP16,
                                       .tokens = run->entries.entries[0].context_tokens};
    return KVT_OK;
}

static kvt_status model_make_columns(model_run *run)
{
    const uint32_t count = run->results->variant_count;
    run->columns = count + 1;
    run->variants = calloc(run->columns, sizeof *run->variants);
    run->rows = calloc((size_t)run->entries.count * run->columns, sizeof *run->rows);
    run->curves = calloc(run->columns, sizeof *run->curves);
    if (run->variants == NULL || run->rows == NULL || run->curves == NULL) return KVT_E_MEMORY;
    kvt_status status = quality_variant_parse("raw", &run->variants[count]);
    for (uint32_t i = 0; status == KVT_OK && i < count; i++)
        status = quality_variant_parse(run->results->variants[i].name, &run->variants[i]);
    return status;
}

/* ---- all contexts ---- */

static bench_codec_loss model_loss(const quality_curve *curve)
{
    if (curve->entries == 0) return (bench_codec_loss){.present = false};
    return (bench_codec_loss){.present = true,
                              .bits_per_element = curve->bits_per_element,
                              .physical_bits_per_element = curve->physical_bits_per_element,
                              .nmse = {curve->nmse[0], curve->nmse[1]},
                              .attention_error = curve->attention_error,
                              .judged = true,
                              .kl = curve->kl,
                              .kl_p90 = curve->kl_p90,
                              .top1 = curve->top1,
                              .nll_delta = curve->nll_delta,
                              .retained_mass = curve->retained_mass};
}

static kvt_status model_measure(model_run *run, char *message, size_t message_size)
{
    const bench_codec_results *results = run->results;
    quality_spread spread;
    const quality_request request = {.model = run->weights,
                                     .entries = run->entries.entries,
                                     .entry_count = run->entries.count,
                                     .variants = run->variants,
                                     .variant_count = run->columns,
                                     .threads = results->options->threads,
                                     .opened = model_opened,
                                     .done = model_done,
                                     .context = run};
    kvt_status status = quality_measure(&request, message, message_size);
    if (status == KVT_OK)
        status = quality_summarise(run->rows, run->entries.count, run->columns, MODEL_SEED,
                                   run->curves, &spread);
    if (status != KVT_OK) return status;
    for (uint32_t i = 0; i < results->variant_count; i++) {
        run->source->losses[i] = model_loss(&run->curves[i]);
        if (!run->source->losses[i].present)
            bench_codecs_note(results->options, "%s does not take the KV of %s",
                              results->variants[i].name, run->source->name);
    }
    run->source->exact = model_loss(&run->curves[results->variant_count]);
    return KVT_OK;
}

kvt_status bench_codecs_judge(bench_codec_results *results, const char *path,
                              bench_codec_source *source, char *message, size_t message_size)
{
    double start = base_clock_seconds();
    model_run run = {.results = results, .source = source};
    const char *slash = strrchr(path, '/');
    snprintf(source->name, sizeof source->name, "%s", slash != NULL ? slash + 1 : path);
    kvt_status status = model_open_all(&run, path, message, message_size);
    if (status == KVT_OK) status = model_make_columns(&run);
    if (status == KVT_OK) status = model_measure(&run, message, message_size);
    free(run.variants);
    free(run.rows);
    free(run.curves);
    quality_entries_free(&run.entries);
    tokenizer_close(run.tokens);
    model_close(run.weights);
    source->seconds = base_clock_seconds() - start;
    return status;
}
