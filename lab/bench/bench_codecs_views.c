/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_codecs_views.c - records of 4 MiB that are decoded into the layouts of engines, beside the
 * packed buffer, on one thread and the best instruction set. A sample decodes all entries, which
 * are larger than the caches, packed and then into the view; a figure is the median of the samples'
 * ratios. Time is CPU time of the thread.
 *
 * Thread rule: one bench at a time.
 */
#include "bench_codecs.h"
#include "engine_views.h"
#include "estimator/quality/quality_round_trip.h"
#include "lab/private.h"

#include <stdlib.h>

enum { VIEWS_ENTRIES = 8, VIEWS_SAMPLES = 9, VIEWS_SAMPLES_QUICK = 5 };

static const kvt_layout views_layout = {
    .layers = 32, .kv_heads = 8, .head_dim = 128, .dtype = KVT_DTYPE_BF16, .tokens = 32};

typedef struct views_run {
    kvt_record_spec spec;
    uint64_t entry_bytes;
    uint8_t *packed;  /* [VIEWS_ENTRIES][entry_bytes] */
    uint8_t *records; /* [VIEWS_ENTRIES][room] */
    uint8_t *scratch;
    uint64_t packed_capacity, records_capacity, scratch_capacity;
    uint64_t room, scratch_bytes;
    uint64_t record_bytes[VIEWS_ENTRIES];
    uint32_t samples;
} views_run;

static kvt_status views_encode(views_run *run)
{
    uint64_t bytes;
    kvt_status status = kvt_layout_bytes(&run->spec.layout, &run->entry_bytes);
    if (status == KVT_OK) status = kvt_record_bound(&run->spec, &run->room, &run->scratch_bytes);
    bytes = VIEWS_ENTRIES * run->entry_bytes;
    if (status == KVT_OK)
        status = quality_round_trip_room(&run->packed, &run->packed_capacity, bytes);
    if (status == KVT_OK)
        status = quality_round_trip_room(&run->records, &run->records_capacity,
                                         VIEWS_ENTRIES * run->room);
    if (status == KVT_OK)
        status =
            quality_round_trip_room(&run->scratch, &run->scratch_capacity, run->scratch_bytes + 1);
    for (uint32_t i = 0; status >= KVT_OK && i < VIEWS_ENTRIES; i++) {
        codecs_kv_sample_fill(&run->spec.layout, i + 1, run->packed);
        status = kvt_record_encode(&run->spec, run->packed, run->entry_bytes,
                                   run->records + i * run->room, run->room, run->scratch,
                                   run->scratch_bytes, &run->record_bytes[i]);
    }
    return status > KVT_OK ? KVT_OK : status;
}

/* Decodes all entries, packed or into a pool; adds the seconds. */
static kvt_status views_decode(views_run *run, engine_pool *pool, double *seconds)
{
    kvt_status status = KVT_OK;
    const double start = base_cpu_seconds();
    for (uint32_t i = 0; status == KVT_OK && i < VIEWS_ENTRIES; i++) {
        const uint8_t *record = run->records + i * run->room;
        if (pool == NULL) {
            status = kvt_record_decode(record, run->record_bytes[i], NULL,
                                       run->packed + i * run->entry_bytes, run->entry_bytes,
                                       run->scratch, run->scratch_bytes);
            continue;
        }
        engine_pool_view(pool, i);
        status = kvt_record_decode_view(record, run->record_bytes[i], NULL, NULL, &run->spec.layout,
                                        &pool->view, 0, 0, run->scratch, run->scratch_bytes);
    }
    *seconds = base_cpu_seconds() - start;
    return status;
}

static kvt_status views_time(views_run *run, const engine_view *engine, bench_codec_view *view)
{
    engine_pool pool;
    double rates[VIEWS_SAMPLES], ratios[VIEWS_SAMPLES];
    const double bytes = (double)(VIEWS_ENTRIES * run->entry_bytes);
    if (!engine_pool_open(&pool, engine, &run->spec.layout, VIEWS_ENTRIES, 0)) return KVT_E_MEMORY;
    kvt_status status = KVT_OK;
    for (uint32_t i = 0; status == KVT_OK && i < run->samples; i++) {
        double packed = 0, apart = 0;
        status = views_decode(run, NULL, &packed);
        if (status == KVT_OK) status = views_decode(run, &pool, &apart);
        rates[i] = bytes / (apart + 1e-9);
        ratios[i] = packed / (apart + 1e-9);
    }
    engine_pool_close(&pool);
    if (status != KVT_OK) return status;
    view->name = engine->name;
    view->samples = run->samples;
    view->bytes_per_s = bench_rate_of(rates, run->samples).median;
    view->packed_ratio = bench_rate_of(ratios, run->samples).median;
    return KVT_OK;
}

kvt_status bench_codecs_views(bench_codec_results *results, codecs_cpu isa)
{
    views_run run = {.spec = {.generation = 1, .layout = views_layout}};
    kvt_status status = KVT_OK;
    run.samples = results->options->quick ? VIEWS_SAMPLES_QUICK : VIEWS_SAMPLES;
    results->views = calloc((size_t)results->variant_count * ENGINE_VIEWS, sizeof *results->views);
    if (results->views == NULL) return KVT_E_MEMORY;
    codecs_cpu_force(isa);
    for (uint32_t i = 0; status == KVT_OK && i < results->variant_count; i++) {
        const bench_codec_variant *variant = &results->variants[i];
        const uint16_t drop = variant->variant.mode >> 8;
        run.spec.variant = variant->variant;
        if (drop != 0 || variant->merged || !variant->everywhere) continue;
        status = views_encode(&run);
        for (uint32_t k = 0; status == KVT_OK && k < ENGINE_VIEWS; k++) {
            bench_codec_view *view = &results->views[results->view_count];
            status = views_time(&run, &engine_views[k], view);
            view->variant = i;
            results->view_count += status == KVT_OK;
        }
        if (status == KVT_E_UNSUPPORTED) status = KVT_OK;
        status = bench_codecs_blame(results, status, variant, "views");
    }
    free(run.packed);
    free(run.records);
    free(run.scratch);
    return status;
}
