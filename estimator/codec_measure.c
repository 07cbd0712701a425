/*
 * codec_measure.c - measures every codec on generated bf16 KV through the record functions, so that
 * metadata, checksums and verification are inside sizes and times, as they are in a put and a get.
 *
 * Thread rule: the calling thread owns the profile; one thread encodes and decodes.
 */
#include "codecs/kv_sample.h"
#include "estimator/profile_internal.h"

#include <kvterrace/codec.h>

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* A 256-token chunk of Llama-3.1-8B is 32 MiB: larger than a core's caches. */
#define CODEC_SAMPLE_LAYERS       32u
#define CODEC_SAMPLE_LAYERS_QUICK 8u
#define CODEC_SAMPLE_HEADS        8u
#define CODEC_SAMPLE_HEAD_DIM     128u
#define CODEC_SAMPLE_TOKENS       256u
#define CODEC_SAMPLE_SEED         UINT64_C(1)
#define CODEC_MODES_TRIED         16u
#define CODEC_BUFFER_ALIGN        4096u

typedef struct codec_run {
    kvt_profile *profile;
    profile_settings settings;
    kvt_record_spec spec;
    int64_t run;
    unsigned char *source;
    unsigned char *decoded;
    unsigned char *record;
    unsigned char *scratch;
    uint64_t source_bytes;
    uint64_t record_capacity;
    uint64_t scratch_bytes;
    uint64_t record_bytes; /* of the variant being measured */
    double *encode_seconds;
    double *decode_seconds;
} codec_run;

static double codec_now_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Pages are touched here, not while something is timed. */
static unsigned char *codec_allocate(uint64_t bytes)
{
    uint64_t rounded = (bytes / CODEC_BUFFER_ALIGN + 1u) * CODEC_BUFFER_ALIGN;
    unsigned char *memory = aligned_alloc(CODEC_BUFFER_ALIGN, rounded);
    if (memory != NULL) memset(memory, 0, rounded);
    return memory;
}

/* The index-th variant of the table: codecs in order, their modes ascending, rate 0 (no codec of
 * today's table has rates). False past the last. */
static bool codec_variant_at(const kvt_layout *layout, size_t index, kvt_variant *out)
{
    const kvt_codec *codec;
    for (size_t c = 0; (codec = kvt_codec_at(c)) != NULL; c++) {
        for (uint16_t mode = 0; mode < CODEC_MODES_TRIED; mode++) {
            kvt_variant variant = {codec->id, mode, 0};
            if (codec->check(variant, layout) != KVT_OK) continue;
            if (index-- > 0) continue;
            *out = variant;
            return true;
        }
    }
    return false;
}

static size_t codec_variant_count(const kvt_layout *layout)
{
    kvt_variant unused;
    size_t count = 0;
    while (codec_variant_at(layout, count, &unused))
        count++;
    return count;
}

/* Largest record and scratch over all variants. */
static kvt_status codec_measure_bounds(codec_run *run)
{
    for (size_t i = 0; codec_variant_at(&run->spec.layout, i, &run->spec.variant); i++) {
        uint64_t record_bytes, scratch_bytes;
        kvt_status status = kvt_record_bound(&run->spec, &record_bytes, &scratch_bytes);
        if (status != KVT_OK) return status;
        if (record_bytes > run->record_capacity) run->record_capacity = record_bytes;
        if (scratch_bytes > run->scratch_bytes) run->scratch_bytes = scratch_bytes;
    }
    return KVT_OK;
}

static kvt_status codec_measure_prepare(codec_run *run)
{
    kvt_layout *layout = &run->spec.layout;
    layout->layers = run->settings.quick ? CODEC_SAMPLE_LAYERS_QUICK : CODEC_SAMPLE_LAYERS;
    layout->kv_heads = CODEC_SAMPLE_HEADS;
    layout->head_dim = CODEC_SAMPLE_HEAD_DIM;
    layout->dtype = KVT_DTYPE_BF16;
    layout->tokens = CODEC_SAMPLE_TOKENS;
    run->spec.generation = 1;
    kvt_status status = kvt_layout_bytes(layout, &run->source_bytes);
    if (status == KVT_OK) status = codec_measure_bounds(run);
    if (status != KVT_OK) return status;
    run->source = codec_allocate(run->source_bytes);
    run->decoded = codec_allocate(run->source_bytes);
    run->record = codec_allocate(run->record_capacity);
    run->scratch = codec_allocate(run->scratch_bytes);
    run->encode_seconds = calloc(run->settings.repetitions, sizeof(double));
    run->decode_seconds = calloc(run->settings.repetitions, sizeof(double));
    if (!run->source || !run->decoded || !run->record || !run->scratch || !run->encode_seconds ||
        !run->decode_seconds) {
        return KVT_E_MEMORY;
    }
    codecs_kv_sample_fill(layout, CODEC_SAMPLE_SEED, run->source);
    return KVT_OK;
}

/* One encode and one decode; adds what they took. */
static kvt_status codec_measure_once(codec_run *run, double *encode_seconds, double *decode_seconds)
{
    double start = codec_now_seconds();
    kvt_status status = kvt_record_encode(&run->spec, run->source, run->source_bytes, run->record,
                                          run->record_capacity, run->scratch, run->scratch_bytes,
                                          &run->record_bytes);
    double middle = codec_now_seconds();
    if (status != KVT_OK && status != KVT_RAW) return status;
    status = kvt_record_decode(run->record, run->record_bytes, NULL, run->decoded,
                               run->source_bytes, run->scratch, run->scratch_bytes);
    double end = codec_now_seconds();
    *encode_seconds = middle - start;
    *decode_seconds = end - middle;
    return status;
}

static kvt_status codec_measure_variant(codec_run *run, kvt_variant variant)
{
    double unused_encode, unused_decode;
    uint32_t count = run->settings.repetitions;
    const kvt_codec *codec = kvt_codec_find(variant.codec);
    run->spec.variant = variant;
    /* The first round warms caches and is checked instead of timed. */
    kvt_status status = codec_measure_once(run, &unused_encode, &unused_decode);
    if (status != KVT_OK) return status;
    bool same = memcmp(run->source, run->decoded, run->source_bytes) == 0;
    if ((codec->flags & KVT_CODEC_FLAG_EXACT) && !same) return KVT_E_CORRUPT;
    for (uint32_t i = 0; i < count && status == KVT_OK; i++) {
        status = codec_measure_once(run, &run->encode_seconds[i], &run->decode_seconds[i]);
    }
    if (status != KVT_OK) return status;
    kvt_codec_curve curve = {.variant = variant};
    double source = (double)run->source_bytes;
    double encode = profile_median(run->encode_seconds, count);
    double decode = profile_median(run->decode_seconds, count);
    curve.stored_share = (double)run->record_bytes / source;
    curve.encode_bytes_per_s = source / (encode > 1e-9 ? encode : 1e-9);
    curve.decode_bytes_per_s = source / (decode > 1e-9 ? decode : 1e-9);
    return profile_codec_insert(run->profile, run->run, &curve, run->source_bytes, count);
}

static kvt_status codec_measure_all(codec_run *run)
{
    size_t total = codec_variant_count(&run->spec.layout);
    const profile_settings *settings = &run->settings;
    for (size_t i = 0; i <= total; i++) {
        char what[64] = "codecs";
        kvt_variant variant = {0};
        bool present = codec_variant_at(&run->spec.layout, i, &variant);
        if (present) kvt_variant_format(variant, what, sizeof what);
        double done = (double)i / (double)total;
        bool proceed = settings->progress == NULL ||
                       settings->progress(settings->progress_context, done, what);
        if (!present) break;
        if (!proceed) return KVT_E_CANCELLED;
        kvt_status status = codec_measure_variant(run, variant);
        if (status != KVT_OK) return status;
    }
    return KVT_OK;
}

kvt_status kvt_profile_measure_codecs(kvt_profile *profile, const kvt_profile_request *request)
{
    assert(profile != NULL);
    codec_run run = {.profile = profile};
    if (!profile->writable) return KVT_E_READ_ONLY;
    kvt_status status = profile_settings_read(request, &run.settings);
    if (status == KVT_OK) status = codec_measure_prepare(&run);
    if (status == KVT_OK) {
        status = profile_run_begin(profile, "codecs", run.settings.command_line, CODEC_SAMPLE_SEED,
                                   &run.run);
    }
    if (status == KVT_OK) status = codec_measure_all(&run);
    if (status == KVT_OK) status = profile_run_complete(profile, run.run);
    free(run.source);
    free(run.decoded);
    free(run.record);
    free(run.scratch);
    free(run.encode_seconds);
    free(run.decode_seconds);
    return status;
}
