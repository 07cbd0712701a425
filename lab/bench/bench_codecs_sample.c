/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_codecs_sample.c - what variants do to the numbers of the seeded sample, and to attention
 * over it with queries drawn as its keys are. On a model's KV that is asked by profile quality.
 *
 * Thread rule: one case at a time.
 */
#include "bench_codecs.h"
#include "estimator/model/model.h"
#include "estimator/quality/quality.h"
#include "estimator/quality/quality_round_trip.h"
#include "lab/private.h"

#include <stdlib.h>

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

kvt_status bench_codecs_sample(bench_codec_results *results)
{
    const double start = base_clock_seconds();
    quality_round_trip round_trip = {.source = NULL};
    sample_probe probe = {.memory = NULL};
    results->sample = (kvt_layout){.layers = SAMPLE_LAYERS,
                                   .kv_heads = SAMPLE_HEADS,
                                   .head_dim = SAMPLE_HEAD_DIM,
                                   .dtype = KVT_DTYPE_BF16,
                                   .tokens = SAMPLE_TOKENS};
    model_set_blas_threads(1);
    kvt_status status = quality_round_trip_open(&results->sample, &round_trip);
    if (status == KVT_OK) status = sample_probe_make(&probe);
    if (status == KVT_OK) codecs_kv_sample_fill(&results->sample, SAMPLE_SEED, round_trip.source);
    for (uint32_t i = 0; status == KVT_OK && i < results->variant_count; i++) {
        status = sample_variant(&round_trip, &results->variants[i], &probe, &results->losses[i]);
        status = bench_codecs_blame(results, status, &results->variants[i], "the sample");
    }
    free(probe.memory);
    quality_round_trip_close(&round_trip);
    results->sample_seconds = base_clock_seconds() - start;
    return status;
}
