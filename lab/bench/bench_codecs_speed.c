/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_codecs_speed.c - codecs beside memcpy, one thread, over a working set larger than the
 * caches: entries of 32 layers x 256 tokens x 8 heads x 128 in bf16, taken in turn. A sample is one
 * entry through a record, checksums and table included. memcpy is sampled again before every
 * variant, over the same buffers. Time is CPU time of the thread; where several threads share a
 * record, that on the wall.
 *
 * Thread rule: one case at a time.
 */
#include "bench_codecs.h"
#include "estimator/quality/quality_round_trip.h"
#include "lab/private.h"
#include "tools/command/worker_pool.h"

#include <stdlib.h>
#include <string.h>

enum {
    SPEED_ENTRIES = 8,
    SPEED_ENTRIES_QUICK = 1,
    SPEED_SAMPLES_MAX = 2 * SPEED_ENTRIES,
    SPEED_MEMCPY_MAX = 512,
    SPEED_PART_ALIGN = 4096,
    SPEED_LAYERS = 32
};

#define SPEED_SECONDS       0.12 /* after this a timing ends: slow ones have one sample */
#define SPEED_SECONDS_QUICK 0.04

typedef struct speed_run {
    bench_codec_results *results;
    kvt_record_spec spec;
    uint32_t entries;
    double seconds;
    uint64_t entry_bytes;
    uint8_t *source, *decoded; /* [entries][entry_bytes] */
    uint64_t source_capacity, decoded_capacity;
    uint8_t *records; /* [entries][record_room] */
    uint64_t records_capacity, record_room;
    uint64_t record_bytes[SPEED_ENTRIES];
    uint64_t decoded_bytes;           /* of one entry, with the present variant */
    worker_pool *pool;                /* for records on threads, or NULL */
    const kvt_codec_workers *workers; /* of the present timing; NULL: one thread */
    uint32_t encoded;                 /* entries that are encoded with the present variant */
    uint8_t *scratch;
    uint64_t scratch_capacity;
    double memcpy_samples[SPEED_MEMCPY_MAX];
    uint32_t memcpy_count;
} speed_run;

/* Moves one entry. */
typedef kvt_status (*speed_step)(speed_run *run, uint32_t entry);

static uint8_t *speed_source(const speed_run *run, uint32_t entry)
{
    return run->source + entry * run->entry_bytes;
}

static uint8_t *speed_record(const speed_run *run, uint32_t entry)
{
    return run->records + entry * run->record_room;
}

/* ---- steps ---- */

static kvt_status speed_encode(speed_run *run, uint32_t entry)
{
    kvt_status status =
        kvt_record_encode_parallel(&run->spec, NULL, run->workers, speed_source(run, entry),
                                   run->entry_bytes, speed_record(run, entry), run->record_room,
                                   run->scratch, run->scratch_capacity, &run->record_bytes[entry]);
    if (entry >= run->encoded) run->encoded = entry + 1;
    return status == KVT_RAW ? KVT_OK : status;
}

static kvt_status speed_decode(speed_run *run, uint32_t entry)
{
    return kvt_record_decode_parallel(speed_record(run, entry), run->record_bytes[entry], NULL,
                                      run->workers, run->decoded + entry * run->entry_bytes,
                                      run->decoded_bytes, run->scratch, run->scratch_capacity);
}

/* ---- samples ---- */

static kvt_status speed_keep(bench_codec_results *results, const bench_codec_speed *speed)
{
    if (results->speed_count == results->speed_capacity) {
        uint32_t more = results->speed_capacity == 0 ? 64 : 2 * results->speed_capacity;
        bench_codec_speed *grown = realloc(results->speeds, more * sizeof *grown);
        if (grown == NULL) return KVT_E_MEMORY;
        results->speeds = grown;
        results->speed_capacity = more;
    }
    results->speeds[results->speed_count++] = *speed;
    return KVT_OK;
}

/* Takes entries in turn until there are samples enough. With one entry the first pass warms up. */
static kvt_status speed_sample(speed_run *run, speed_step step, uint32_t entries,
                               bench_codec_speed *speed)
{
    double samples[SPEED_SAMPLES_MAX];
    const double bytes = (double)run->entry_bytes;
    double (*clock)(void) = run->workers != NULL ? base_clock_seconds : base_cpu_seconds;
    double first = clock();
    speed->threads = run->workers != NULL ? run->workers->count : 1;
    kvt_status status = entries == 1 ? step(run, 0) : KVT_OK;
    while (status == KVT_OK && speed->samples < SPEED_SAMPLES_MAX) {
        double start = clock();
        if (speed->samples > 0 && start - first > run->seconds) break;
        status = step(run, speed->samples % entries);
        double took = clock() - start;
        samples[speed->samples++] = bytes / (took > 1e-9 ? took : 1e-9);
    }
    if (status != KVT_OK) return status;
    speed->rate = bench_rate_of(samples, speed->samples);
    return speed_keep(run->results, speed);
}

/* Encodes, then decodes what was encoded. */
static kvt_status speed_both_ways(speed_run *run, uint32_t variant, codecs_cpu isa)
{
    bench_codec_speed encode = {.variant = variant, .isa = isa};
    bench_codec_speed decode = {.variant = variant, .isa = isa, .decode = true};
    kvt_record_info info;
    run->encoded = 0;
    kvt_status status = speed_sample(run, speed_encode, run->entries, &encode);
    if (status == KVT_OK)
        status = kvt_record_parse(speed_record(run, 0), run->record_bytes[0], &info);
    if (status != KVT_OK) return status;
    run->decoded_bytes = info.decoded_bytes;
    return speed_sample(run, speed_decode, run->encoded, &decode);
}

static void speed_memcpy(speed_run *run)
{
    const uint64_t bytes = run->results->memcpy_bytes;
    if (run->memcpy_count == SPEED_MEMCPY_MAX) return;
    double start = base_cpu_seconds();
    memcpy(run->decoded, run->source, bytes);
    /* The copy must have happened, although nobody reads it. */
    __asm__ volatile("" : : "r"(run->decoded) : "memory");
    run->memcpy_samples[run->memcpy_count++] = (double)bytes / (base_cpu_seconds() - start + 1e-9);
}

/* ---- variants ---- */

/* The variant's spec; false when the codec does not take the entry. */
static bool speed_spec(const speed_run *run, kvt_variant variant, kvt_record_spec *spec)
{
    uint64_t record, scratch;
    *spec = run->spec;
    spec->variant = variant;
    spec->layout.tokens_may_drop = quality_variant_drops(variant);
    return kvt_record_bound(spec, &record, &scratch) == KVT_OK;
}

/* Room for any variant's record, and its scratch. */
static kvt_status speed_make_room(speed_run *run)
{
    uint64_t most_scratch = 1;
    for (uint32_t i = 0; i < run->results->variant_count; i++) {
        kvt_record_spec spec;
        uint64_t room, scratch;
        if (!speed_spec(run, run->results->variants[i].variant, &spec)) continue;
        kvt_status status = kvt_record_bound(&spec, &room, &scratch);
        if (status == KVT_OK && run->pool != NULL) {
            status = kvt_record_scratch_parallel(&spec, run->pool->workers.count, &scratch);
        }
        if (status != KVT_OK) return status;
        if (room > run->record_room) run->record_room = codecs_align(room, SPEED_PART_ALIGN);
        if (scratch > most_scratch) most_scratch = scratch;
    }
    kvt_status status = quality_round_trip_room(&run->records, &run->records_capacity,
                                                run->entries * run->record_room);
    if (status != KVT_OK) return status;
    return quality_round_trip_room(&run->scratch, &run->scratch_capacity, most_scratch);
}

static kvt_status speed_prepare(speed_run *run)
{
    bench_codec_results *results = run->results;
    run->entries = results->options->quick ? SPEED_ENTRIES_QUICK : SPEED_ENTRIES;
    run->seconds = results->options->quick ? SPEED_SECONDS_QUICK : SPEED_SECONDS;
    run->spec.generation = 1;
    run->spec.layout = (kvt_layout){.layers = SPEED_LAYERS,
                                    .kv_heads = 8,
                                    .head_dim = 128,
                                    .dtype = KVT_DTYPE_BF16,
                                    .tokens = 256};
    results->entry = run->spec.layout;
    kvt_status status = kvt_layout_bytes(&run->spec.layout, &run->entry_bytes);
    uint64_t bytes = run->entries * run->entry_bytes;
    if (status == KVT_OK)
        status = quality_round_trip_room(&run->source, &run->source_capacity, bytes);
    if (status == KVT_OK)
        status = quality_round_trip_room(&run->decoded, &run->decoded_capacity, bytes);
    if (status == KVT_OK) status = speed_make_room(run);
    if (status != KVT_OK) return status;
    for (uint32_t i = 0; i < run->entries; i++)
        codecs_kv_sample_fill(&run->spec.layout, i + 1, speed_source(run, i));
    results->memcpy_bytes = results->working_set_bytes = bytes;
    return KVT_OK;
}

static kvt_status speed_variant(speed_run *run, uint32_t index, codecs_cpu isa)
{
    const bench_codec_variant *variant = &run->results->variants[index];
    if (!speed_spec(run, variant->variant, &run->spec)) {
        bench_note(run->results->options, "%s does not take the sample's layout", variant->name);
        return KVT_OK;
    }
    speed_memcpy(run);
    codecs_cpu_force(isa);
    kvt_status status = speed_both_ways(run, index, isa);
    if (status == KVT_OK && run->pool != NULL) {
        run->workers = &run->pool->workers;
        status = speed_both_ways(run, index, isa);
        run->workers = NULL;
    }
    run->spec.layout.tokens_may_drop = 0;
    return status;
}

kvt_status bench_codecs_time(bench_codec_results *results, codecs_cpu first, codecs_cpu last)
{
    speed_run *run = calloc(1, sizeof *run);
    if (run == NULL) return KVT_E_MEMORY;
    run->results = results;
    worker_pool pool;
    if (results->own->workers > 1) {
        worker_pool_open(&pool, results->own->workers);
        run->pool = &pool;
    }
    kvt_status status = speed_prepare(run);
    if (status == KVT_OK) speed_memcpy(run);
    run->memcpy_count = 0; /* that one warmed up */
    for (int isa = (int)last; status == KVT_OK && isa >= (int)first; isa--) {
        for (uint32_t i = 0; status == KVT_OK && i < results->variant_count; i++) {
            const bench_codec_variant *variant = &results->variants[i];
            if (variant->merged || (isa != (int)last && !variant->everywhere)) continue;
            (void)bench_tell(results->options, (int)last - isa + (double)i / results->variant_count,
                             last - first + 1.0, codecs_cpu_name((codecs_cpu)isa));
            status = speed_variant(run, i, (codecs_cpu)isa);
            status = bench_codecs_blame(results, status, variant, codecs_cpu_name((codecs_cpu)isa));
        }
    }
    if (status == KVT_OK && run->memcpy_count > 0)
        results->memcpy_bytes_per_s = bench_rate_of(run->memcpy_samples, run->memcpy_count).median;
    if (run->pool != NULL) worker_pool_close(&pool);
    free(run->source);
    free(run->decoded);
    free(run->records);
    free(run->scratch);
    free(run);
    return status;
}
