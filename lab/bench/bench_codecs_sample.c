/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_codecs_sample.c - what variants do to the seeded sample: its numbers, and attention over it
 * with queries drawn as its keys are. Also how far exact storing goes on any bf16 KV.
 *
 * Thread rule: one bench at a time.
 */
#include "base/clock.h"
#include "bench_codecs.h"
#include "codecs/kv_sample.h"
#include "estimator/model/model_score.h"
#include "estimator/quality/quality_round_trip.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

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
    loss->bits_per_element = round_trip->info.bits_per_element;
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
    if (status == KVT_OK) *ratio_out = 16.0 / round_trip->info.bits_per_element;
    return status;
}

kvt_status bench_codecs_lossless(const kvt_layout *layout, const void *source,
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
