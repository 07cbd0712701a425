/*
 * codec_measure.c - measures every rung of the ladder on generated bf16 KV through the record
 * functions, so that metadata, checksums and verification are inside sizes and times, as they are
 * in a put and a get.
 *
 * Thread rule: the calling thread owns the profile; one thread encodes and decodes.
 */
#include "codecs/cpu.h"
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
    uint64_t record_bytes;  /* of the variant being measured */
    uint64_t decoded_bytes; /* of it: fewer than the source after a drop */
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

/* The default ladder with its neighbours: every rung that a store may be told to use, both ways of
 * the K:V split, and the published codecs that rungs are compared with. */
static const char *const codec_ladder[] = {
    "raw",
    "lossless",
    "lossless:fast",
    "kivi:k8v8,g64",
    "kivi:k4v4,g64",
    "kivi:k2v2,g64",
    "planes:k8v8,g64",
    "planes:k6v6,g64",
    "planes:k6v4,g64",
    "planes:k4v6,g64,vfirst",
    "planes:k4v4,g64",
    "planes:k3v3,g64",
    "planes:k2v2,g64",
    "rotate:b8",
    "rotate:b4",
    "rotate:b3",
    "entropy:k0.25v0.5",
    "entropy:k0.25v0.5,vchan",
    "entropy:k0.5v0.5",
    "entropy:k0.75v0.75",
    "entropy:k0.5v1,vchan",
    "drop:stream,50+entropy:k0.5v1,vchan",
    "drop:stream,25+entropy:k0.5v1,vchan",
};

/* The index-th variant of the ladder. False past the last. */
static bool codec_variant_at(size_t index, kvt_variant *out)
{
    if (index >= sizeof codec_ladder / sizeof codec_ladder[0]) return false;
    kvt_status status = kvt_variant_parse(codec_ladder[index], out);
    assert(status == KVT_OK);
    return status == KVT_OK;
}

/* Largest record and scratch over all variants. */
static kvt_status codec_measure_bounds(codec_run *run)
{
    for (size_t i = 0; codec_variant_at(i, &run->spec.variant); i++) {
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
    layout->tokens_may_drop = 1;
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
    kvt_record_info info;
    status = kvt_record_parse(run->record, run->record_bytes, &info);
    if (status != KVT_OK) return status;
    run->decoded_bytes = info.decoded_bytes;
    double decode = codec_now_seconds();
    status = kvt_record_decode(run->record, run->record_bytes, NULL, run->decoded,
                               run->decoded_bytes, run->scratch, run->scratch_bytes);
    double end = codec_now_seconds();
    *encode_seconds = middle - start;
    *decode_seconds = end - decode;
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
    return profile_codec_insert(run->profile, run->run, &curve, codecs_cpu_name(codecs_cpu_level()),
                                1, "sample", run->source_bytes, count);
}

static kvt_status codec_measure_all(codec_run *run)
{
    size_t total = sizeof codec_ladder / sizeof codec_ladder[0];
    const profile_settings *settings = &run->settings;
    for (size_t i = 0; i <= total; i++) {
        char what[64] = "codecs";
        kvt_variant variant = {0};
        bool present = codec_variant_at(i, &variant);
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
