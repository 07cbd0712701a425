/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_codecs_model.c - what variants do to the predictions of a model and to the seeded sample,
 * as columns of the bench. Measuring on models is the estimator's (estimator/quality/quality.h).
 *
 * Thread rule: one bench at a time.
 */
#include "base/clock.h"
#include "base/half.h"
#include "bench_codecs.h"
#include "codecs/kv_sample.h"
#include "estimator/model/model.h"
#include "estimator/quality/quality.h"
#include "estimator/quality/quality_round_trip.h"

#include <math.h>
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

/* ---- exact storing ---- */

/* Bits that the exponents of `count` elements, `stride` apart, need with a table of their own. */
static double sample_exponent_bits(const uint16_t *values, uint64_t count, uint64_t stride)
{
    uint64_t counts[256] = {0};
    double bits = 0.0;
    for (uint64_t i = 0; i < count; i++)
        counts[values[i * stride] >> 7 & 0xffu]++;
    for (uint32_t i = 0; i < 256; i++)
        if (counts[i] > 0) bits -= (double)counts[i] * log2((double)counts[i] / (double)count);
    return bits;
}

/* Sign and mantissa are taken as 8 bits that cannot be coded. */
static void sample_bounds(const quality_round_trip *round_trip, bench_codec_lossless *lossless)
{
    const uint16_t *values = (const uint16_t *)(const void *)round_trip->source;
    const uint64_t width = (uint64_t)round_trip->layout.kv_heads * round_trip->layout.head_dim;
    const uint64_t elements = width * round_trip->layout.tokens;
    const uint32_t matrices = 2u * round_trip->layout.layers;
    double all = 8.0 * (double)elements * matrices, matrix_bits = all, channel_bits = all;
    for (uint32_t m = 0; m < matrices; m++, values += elements) {
        matrix_bits += sample_exponent_bits(values, elements, 1);
        for (uint64_t channel = 0; channel < width; channel++)
            channel_bits +=
                sample_exponent_bits(values + channel, round_trip->layout.tokens, width);
    }
    lossless->matrix_bound_ratio = 2.0 * all / matrix_bits;
    lossless->channel_bound_ratio = 2.0 * all / channel_bits;
}

/* 16 over the bits that a mode of the codec comes to; 0 when this build lacks it. */
static kvt_status sample_exact_ratio(quality_round_trip *round_trip, const char *name,
                                     double *ratio_out)
{
    kvt_variant variant;
    if (kvt_variant_parse(name, &variant) != KVT_OK) return KVT_OK;
    kvt_status status = quality_round_trip_run(round_trip, variant, false);
    if (status == KVT_E_UNSUPPORTED) return KVT_OK;
    if (status == KVT_OK) *ratio_out = 16.0 / quality_coded_bits(&round_trip->info);
    return status;
}

/* Exact storing of bf16 KV, `source` in bf16 of that layout. KVT_OK or KVT_E_MEMORY. */
static kvt_status bench_codecs_lossless(const kvt_layout *layout, const void *source,
                                        bench_codec_lossless *lossless_out)
{
    quality_round_trip round_trip;
    *lossless_out = (bench_codec_lossless){.dense_ratio = 0.0};
    kvt_status status = quality_round_trip_open(layout, &round_trip);
    if (status == KVT_OK) memcpy(round_trip.source, source, round_trip.source_bytes);
    if (status == KVT_OK) {
        sample_bounds(&round_trip, lossless_out);
        status = sample_exact_ratio(&round_trip, "lossless", &lossless_out->dense_ratio);
    }
    if (status == KVT_OK)
        status = sample_exact_ratio(&round_trip, "lossless:fast", &lossless_out->fast_ratio);
    quality_round_trip_close(&round_trip);
    return status;
}

/* ---- callbacks of the measurement ---- */

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
        status = quality_summarise(run->rows, NULL, run->entries.count, run->columns, MODEL_SEED,
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

/* ---- the seeded sample ---- */

/*
 * What variants do to the numbers of the seeded sample, and to attention over it with queries
 * drawn as its keys are. Also how far exact storing goes on any bf16 KV.
 */

enum {
    SAMPLE_LAYERS = 4,
    SAMPLE_HEADS = 8,
    SAMPLE_HEAD_DIM = 128,
    SAMPLE_TOKENS = 256,
    SAMPLE_QUERIES = 32,
    SAMPLE_SEED = 1,
    SAMPLE_QUERY_SEED = 1000
};

/* Queries of the seed's model: fp32 keys of other tokens. */
typedef struct sample_probe {
    kvt_layout layout; /* of the queries */
    float *memory;
    const float *queries[SAMPLE_LAYERS];
} sample_probe;

static kvt_status sample_probe_make(sample_probe *probe)
{
    uint64_t bytes;
    probe->layout = (kvt_layout){.layers = SAMPLE_LAYERS,
                                 .kv_heads = SAMPLE_HEADS,
                                 .head_dim = SAMPLE_HEAD_DIM,
                                 .dtype = KVT_DTYPE_FP32,
                                 .tokens = SAMPLE_QUERIES};
    kvt_status status = kvt_layout_bytes(&probe->layout, &bytes);
    if (status != KVT_OK) return status;
    probe->memory = malloc(bytes);
    if (probe->memory == NULL) return KVT_E_MEMORY;
    codecs_kv_sample_fill(&probe->layout, SAMPLE_QUERY_SEED, probe->memory);
    for (uint32_t l = 0; l < SAMPLE_LAYERS; l++) {
        uint64_t offset = kvt_layout_matrix_offset(&probe->layout, l, KVT_SIDE_K);
        probe->queries[l] = probe->memory + offset / sizeof(float);
    }
    return KVT_OK;
}

static kvt_status sample_attention(const quality_round_trip *round_trip,
                                   const sample_probe *queries, double *error_out)
{
    const model_config config = {.layers = SAMPLE_LAYERS,
                                 .heads = SAMPLE_HEADS,
                                 .kv_heads = SAMPLE_HEADS,
                                 .head_dim = SAMPLE_HEAD_DIM};
    quality_round_trip_kv kv;
    kvt_status status = quality_round_trip_kv_open(round_trip, &kv);
    if (status != KVT_OK) return status;
    const model_probe probe = {.exact = &kv.exact,
                               .variant = &kv.variant,
                               .rows = SAMPLE_QUERIES,
                               .queries = queries->queries};
    model_probe_result result;
    status = model_probe_attention(&config, &probe, &result, NULL);
    *error_out = result.attention_error;
    quality_round_trip_kv_close(&kv);
    return status;
}

static kvt_status sample_variant(quality_round_trip *round_trip, const bench_codec_variant *variant,
                                 const sample_probe *probe, bench_codec_loss *loss)
{
    kvt_status status = quality_round_trip_run(round_trip, variant->variant, variant->merged);
    if (status == KVT_E_UNSUPPORTED) return KVT_OK;
    if (status == KVT_OK) status = sample_attention(round_trip, probe, &loss->attention_error);
    if (status != KVT_OK) return status;
    loss->present = true;
    loss->bits_per_element = quality_coded_bits(&round_trip->info);
    loss->physical_bits_per_element = round_trip->info.physical_bits_per_element;
    loss->nmse[0] = round_trip->nmse[0];
    loss->nmse[1] = round_trip->nmse[1];
    return KVT_OK;
}

kvt_status bench_codecs_sample(bench_codec_results *results, bench_codec_source *source,
                               char *message, size_t message_size)
{
    double start = base_clock_seconds();
    quality_round_trip round_trip = {.source = NULL};
    sample_probe probe = {.memory = NULL};
    snprintf(source->name, sizeof source->name, "sample");
    source->layout = (kvt_layout){.layers = SAMPLE_LAYERS,
                                  .kv_heads = SAMPLE_HEADS,
                                  .head_dim = SAMPLE_HEAD_DIM,
                                  .dtype = KVT_DTYPE_BF16,
                                  .tokens = SAMPLE_TOKENS};
    model_set_blas_threads(1);
    kvt_status status = quality_round_trip_open(&source->layout, &round_trip);
    if (status == KVT_OK) status = sample_probe_make(&probe);
    if (status == KVT_OK) {
        codecs_kv_sample_fill(&source->layout, SAMPLE_SEED, round_trip.source);
        status = bench_codecs_lossless(&source->layout, round_trip.source, &source->lossless);
    }
    for (uint32_t i = 0; status == KVT_OK && i < results->variant_count; i++) {
        status = sample_variant(&round_trip, &results->variants[i], &probe, &source->losses[i]);
        status =
            bench_codecs_blame(status, &results->variants[i], source->name, message, message_size);
    }
    free(probe.memory);
    quality_round_trip_close(&round_trip);
    source->seconds = base_clock_seconds() - start;
    return status;
}
