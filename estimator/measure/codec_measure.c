/* SPDX-License-Identifier: Apache-2.0 */
/*
 * codec_measure.c - measures every rung of the ladder on generated bf16 KV, or on KV that the
 * caller has, and variants of the profile's bases on KV drawn from each, through the record
 * functions, so that metadata, checksums and verification are inside sizes and times, as they are
 * in a put and a get.
 *
 * What is measured is a list of passes over the ladder: the best instruction set on one thread and
 * on all that the caller lends, kernels of a GPU, then the lesser ones on one thread. Forcing an
 * instruction set is the process' affair, so nothing else may encode meanwhile.
 *
 * Thread rule: the calling thread owns the profile and the workers.
 */
#include "base/clock.h"
#include "codecs/codec_table.h"
#include "codecs/kernels/cpu.h"
#include "codecs/kv_sample.h"
#include "codecs/record.h"
#include "estimator/measure/codec_gpu.h"
#include "estimator/profile/profile_internal.h"
#include "measure.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A 256-token chunk of Llama-3.1-8B is 32 MiB: larger than a core's caches. */
#define CODEC_SAMPLE_LAYERS       32u
#define CODEC_SAMPLE_LAYERS_QUICK 8u
#define CODEC_SAMPLE_HEADS        8u
#define CODEC_SAMPLE_HEAD_DIM     128u
#define CODEC_SAMPLE_TOKENS       256u
#define CODEC_SAMPLE_SEED         UINT64_C(1)
#define CODEC_SAMPLE_NAME         "sample"
#define CODEC_BUFFER_ALIGN        4096u
#define CODEC_BASIS_TOKENS        256u
#define CODEC_BASIS_TOKENS_WIDE   64u /* of spans beyond CODEC_BASIS_WIDE: drawing is as slow */
#define CODEC_BASIS_WIDE          2048u
#define CODEC_REPETITIONS_LEAST   3u
#define CODEC_REPETITIONS_MOST    15u /* unless the caller says how many */
#define CODEC_PASSES                                                                               \
    5u /* per source: two of the best instruction set, two lesser,
                                         and a GPU */
/* Times seconds_per_point: after that the least number of repetitions is enough. */
#define CODEC_SECONDS_PER_VARIANT 4.0

/* One pass over the ladder. */
typedef struct codec_pass {
    const char *source_name;
    const unsigned char *source;
    kvt_layout layout;
    uint64_t source_bytes;
    codecs_cpu isa;
    codec_gpu *gpu;                   /* decodes what the CPU has encoded; or NULL */
    const kvt_codec_workers *workers; /* NULL: one thread */
    const profile_basis *basis;       /* whose variants are measured; NULL: the ladder */
} codec_pass;

/* A basis of the profile, and KV drawn from it. */
typedef struct codec_basis {
    profile_basis basis;
    const transform_basis *list[1];
    unsigned char *sample;
} codec_basis;

typedef struct codec_run {
    kvt_profile *profile;
    const kvt_profile_request *request;
    profile_settings settings;
    codec_pass *passes;
    size_t pass_count;
    kvt_record_spec spec;
    int64_t run;
    codec_basis *bases;
    uint32_t basis_count;
    codec_gpu *gpu;        /* or NULL: none answers */
    unsigned char *sample; /* generated KV; NULL when the caller's is measured */
    unsigned char *decoded;
    unsigned char *record;
    unsigned char *scratch;
    uint64_t decoded_capacity;
    uint64_t record_capacity;
    uint64_t scratch_bytes;
    uint64_t record_bytes;  /* of the variant being measured */
    uint64_t decoded_bytes; /* of it: fewer than the source after a drop */
    double *encode_seconds;
    double *decode_seconds;
} codec_run;

/* One thread is timed by its own clock: what others do to the machine's time slices is no property
 * of a codec. Several are timed by the wall's. */
static double codec_clock(const codec_pass *pass)
{
    return pass->workers != NULL ? base_clock_seconds() : base_cpu_seconds();
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
    "entropy:k0.25v0.5",
    "entropy:k0.25v0.5,vchan",
    "entropy:k0.5v0.5",
    "entropy:k0.75v0.75",
    "entropy:k0.5v1,vchan",
    "drop:stream,50+entropy:k0.5v1,vchan",
    "drop:stream,25+entropy:k0.5v1,vchan",
};

/* Steps that a basis is measured at, in 64ths of its unit; quick: the first alone. */
static const uint32_t codec_basis_steps[] = {64, 32, 192};

static bool codec_basis_variant_at(const codec_run *run, const profile_basis *basis, size_t index,
                                   kvt_variant *out)
{
    const size_t count =
        run->settings.quick ? 1 : sizeof codec_basis_steps / sizeof codec_basis_steps[0];
    if (index >= count) return false;
    *out = (kvt_variant){.codec = KVT_CODEC_TRANSFORM,
                         .mode = TRANSFORM_MODE,
                         .rate = transform_hash_start(basis->view.hash) << PROFILE_BASIS_SHIFT |
                                 codec_basis_steps[index]};
    return true;
}

/* The index-th variant of a pass. False past the last. */
static bool codec_variant_at(const codec_run *run, const codec_pass *pass, size_t index,
                             kvt_variant *out)
{
    if (pass->basis != NULL) return codec_basis_variant_at(run, pass->basis, index, out);
    if (index >= sizeof codec_ladder / sizeof codec_ladder[0]) return false;
    kvt_status status = kvt_variant_parse(codec_ladder[index], out);
    assert(status == KVT_OK);
    return status == KVT_OK;
}

static uint32_t codec_threads(const codec_pass *pass)
{
    return pass->workers != NULL ? pass->workers->count : 1;
}

/* The instruction set of a pass, as rows have it. */
static const char *codec_isa(const codec_pass *pass)
{
    return pass->gpu != NULL ? PROFILE_ISA_GPU : codecs_cpu_name(pass->isa);
}

static void codec_enlarge(uint64_t *capacity, uint64_t bytes)
{
    if (bytes > *capacity) *capacity = bytes;
}

/* The bases that records of a pass may need. */
static kvt_record_bases codec_bases(const codec_run *run, const codec_pass *pass)
{
    for (uint32_t i = 0; i < run->basis_count; i++)
        if (pass->basis == &run->bases[i].basis) return (kvt_record_bases){run->bases[i].list, 1};
    return (kvt_record_bases){.count = 0};
}

/* Largest record and scratch over all variants of a pass that take its shape. */
static kvt_status codec_measure_bounds(codec_run *run, const codec_pass *pass)
{
    run->spec.layout = pass->layout;
    run->spec.bases = codec_bases(run, pass);
    codec_enlarge(&run->decoded_capacity, pass->source_bytes);
    for (size_t i = 0; codec_variant_at(run, pass, i, &run->spec.variant); i++) {
        uint64_t record_bytes, scratch_bytes, shared_bytes;
        kvt_status status = kvt_record_bound(&run->spec, &record_bytes, &scratch_bytes);
        if (status == KVT_OK) {
            status = kvt_record_scratch_parallel(&run->spec, codec_threads(pass), &shared_bytes);
        }
        if (status == KVT_E_UNSUPPORTED) continue;
        if (status != KVT_OK) return status;
        codec_enlarge(&run->record_capacity, record_bytes);
        codec_enlarge(&run->scratch_bytes, scratch_bytes);
        codec_enlarge(&run->scratch_bytes, shared_bytes);
    }
    return KVT_OK;
}

static void codec_add_pass(codec_run *run, const codec_pass *source, codecs_cpu isa,
                           const kvt_codec_workers *workers)
{
    codec_pass *pass = &run->passes[run->pass_count++];
    *pass = *source;
    pass->isa = isa;
    pass->workers = workers;
}

/* The passes over one source. `lesser` has fewer layers of it: the slow instruction sets need not
 * see all. */
static void codec_add_passes(codec_run *run, const codec_pass *source, const codec_pass *lesser)
{
    const kvt_codec_workers *workers = run->request != NULL ? run->request->workers : NULL;
    const codecs_cpu best = codecs_cpu_level();
    codec_add_pass(run, source, best, NULL);
    if (workers != NULL && workers->count > 1) codec_add_pass(run, source, best, workers);
    if (run->gpu != NULL) {
        codec_add_pass(run, source, best, NULL);
        run->passes[run->pass_count - 1].gpu = run->gpu;
    }
    const bool wide =
        source->basis != NULL && source->basis->view.shape.span != TRANSFORM_SPAN_HEAD;
    if (wide) return; /* minutes, to know that it is slow */
    for (int isa = (int)best - 1; isa >= CODECS_CPU_SCALAR && !run->settings.quick; isa--) {
        codec_add_pass(run, lesser, (codecs_cpu)isa, NULL);
    }
}

static kvt_status codec_add_sample(codec_run *run)
{
    codec_pass pass = {.source_name = CODEC_SAMPLE_NAME};
    pass.layout = (kvt_layout){.layers = run->settings.quick ? CODEC_SAMPLE_LAYERS_QUICK
                                                             : CODEC_SAMPLE_LAYERS,
                               .kv_heads = CODEC_SAMPLE_HEADS,
                               .head_dim = CODEC_SAMPLE_HEAD_DIM,
                               .dtype = KVT_DTYPE_BF16,
                               .tokens = CODEC_SAMPLE_TOKENS,
                               .tokens_may_drop = 1};
    kvt_status status = kvt_layout_bytes(&pass.layout, &pass.source_bytes);
    if (status != KVT_OK) return status;
    run->sample = codec_allocate(pass.source_bytes);
    if (run->sample == NULL) return KVT_E_MEMORY;
    codecs_kv_sample_fill(&pass.layout, CODEC_SAMPLE_SEED, run->sample);
    pass.source = run->sample;
    codec_pass lesser = pass;
    lesser.layout.layers = CODEC_SAMPLE_LAYERS_QUICK;
    status = kvt_layout_bytes(&lesser.layout, &lesser.source_bytes);
    if (status == KVT_OK) codec_add_passes(run, &pass, &lesser);
    return status;
}

/* KV drawn from a basis, as its passes measure it. */
static kvt_status codec_add_basis(codec_run *run, codec_basis *one)
{
    const transform_shape *shape = &one->basis.view.shape;
    codec_pass pass = {.source_name = CODEC_SAMPLE_NAME, .basis = &one->basis};
    pass.layout =
        (kvt_layout){.layers = (uint16_t)shape->layers,
                     .kv_heads = (uint16_t)shape->kv_heads,
                     .head_dim = (uint16_t)shape->head_dim,
                     .dtype = KVT_DTYPE_BF16,
                     .sides = shape->sides == 1,
                     .tokens = transform_width(shape) > CODEC_BASIS_WIDE ? CODEC_BASIS_TOKENS_WIDE
                                                                         : CODEC_BASIS_TOKENS};
    kvt_status status = kvt_layout_bytes(&pass.layout, &pass.source_bytes);
    if (status == KVT_OK) one->sample = codec_allocate(pass.source_bytes);
    if (status == KVT_OK && one->sample == NULL) status = KVT_E_MEMORY;
    if (status == KVT_OK)
        status = basis_sample_fill(&one->basis.view, &pass.layout, KVT_SINK_TOKENS,
                                   CODEC_SAMPLE_SEED, one->sample);
    pass.source = one->sample;
    if (status == KVT_OK) codec_add_passes(run, &pass, &pass);
    return status;
}

/* The sound bases of the profile; layouts of more than a store takes have none. */
static kvt_status codec_read_bases(codec_run *run)
{
    kvt_status status = KVT_OK;
    for (uint32_t i = 0; status != KVT_MISS; i++) {
        codec_basis *grown = realloc(run->bases, (run->basis_count + 1) * sizeof *grown);
        if (grown == NULL) return KVT_E_MEMORY;
        run->bases = grown;
        codec_basis *one = &grown[run->basis_count];
        *one = (codec_basis){.sample = NULL};
        status = profile_basis_at(run->profile, i, &one->basis);
        if (status == KVT_OK) run->basis_count++;
        if (status != KVT_OK && status != KVT_MISS && status != KVT_E_CORRUPT &&
            status != KVT_E_VERSION)
            return status;
    }
    for (uint32_t i = 0; i < run->basis_count; i++)
        run->bases[i].list[0] = &run->bases[i].basis.view;
    return KVT_OK;
}

static kvt_status codec_add_bases(codec_run *run)
{
    kvt_status status = KVT_OK;
    for (uint32_t i = 0; status == KVT_OK && i < run->basis_count; i++)
        status = codec_add_basis(run, &run->bases[i]);
    return status;
}

static kvt_status codec_add_sources(codec_run *run)
{
    const kvt_profile_request *request = run->request;
    const uint32_t kv_count = request != NULL ? request->kv_count : 0;
    kvt_status read = codec_read_bases(run);
    if (read != KVT_OK) return read;
    run->passes =
        calloc((size_t)(kv_count + 1 + run->basis_count) * CODEC_PASSES, sizeof *run->passes);
    if (run->passes == NULL) return KVT_E_MEMORY;
    if (kv_count == 0) {
        const kvt_status status = codec_add_sample(run);
        return status == KVT_OK ? codec_add_bases(run) : status;
    }
    for (uint32_t i = 0; i < kv_count; i++) {
        codec_pass pass = {.source_name = request->kv[i].name,
                           .source = request->kv[i].bytes,
                           .layout = request->kv[i].layout};
        if (pass.source_name == NULL || pass.source_name[0] == '\0') return KVT_E_ARGUMENT;
        pass.layout.tokens_may_drop = 1;
        kvt_status status = kvt_layout_bytes(&pass.layout, &pass.source_bytes);
        if (status != KVT_OK) return status;
        codec_add_passes(run, &pass, &pass);
    }
    return codec_add_bases(run);
}

/* Opens the GPU, if one answers, or says why not. */
static kvt_status codec_open_gpu(codec_run *run)
{
    char reason[96] = "";
    const kvt_status status = codec_gpu_open(&run->gpu, reason, sizeof reason);
    if (run->request != NULL && run->request->without_gpu != NULL)
        (void)snprintf(run->request->without_gpu, PROFILE_WITHOUT_GPU, "%s", reason);
    return status == KVT_E_MEMORY ? status : KVT_OK;
}

static kvt_status codec_measure_prepare(codec_run *run)
{
    run->spec.generation = 1;
    run->spec.first_position = KVT_SINK_TOKENS; /* a share has no sinks in it: offers add them */
    kvt_status status = codec_add_sources(run);
    for (size_t i = 0; status == KVT_OK && i < run->pass_count; i++) {
        status = codec_measure_bounds(run, &run->passes[i]);
    }
    if (status != KVT_OK) return status;
    run->decoded = codec_allocate(run->decoded_capacity);
    run->record = codec_allocate(run->record_capacity);
    run->scratch = codec_allocate(run->scratch_bytes);
    if (run->request == NULL || run->request->repetitions == 0) {
        run->settings.repetitions = CODEC_REPETITIONS_MOST;
    }
    run->encode_seconds = calloc(run->settings.repetitions, sizeof(double));
    run->decode_seconds = calloc(run->settings.repetitions, sizeof(double));
    if (!run->decoded || !run->record || !run->scratch || !run->encode_seconds ||
        !run->decode_seconds) {
        return KVT_E_MEMORY;
    }
    return KVT_OK;
}

/* One encode and one decode; what they took. */
static kvt_status codec_measure_once(codec_run *run, const codec_pass *pass, double *encode_seconds,
                                     double *decode_seconds)
{
    double start = codec_clock(pass);
    kvt_status status = kvt_record_encode_parallel(
        &run->spec, NULL, pass->workers, pass->source, pass->source_bytes, run->record,
        run->record_capacity, run->scratch, run->scratch_bytes, &run->record_bytes);
    double middle = codec_clock(pass);
    if (status != KVT_OK && status != KVT_RAW) return status;
    kvt_record_info info;
    status = kvt_record_parse(run->record, run->record_bytes, &info);
    if (status != KVT_OK) return status;
    run->decoded_bytes = info.decoded_bytes;
    double decode = codec_clock(pass);
    status = kvt_record_decode_parallel(run->record, run->record_bytes, &run->spec, pass->workers,
                                        run->decoded, run->decoded_bytes, run->scratch,
                                        run->scratch_bytes);
    double end = codec_clock(pass);
    *encode_seconds = middle - start;
    *decode_seconds = end - decode;
    return status;
}

/* The repetitions of one variant: at least three, and as many more as the time allows; fewer only
 * when fewer were asked for. */
static kvt_status codec_repeat(codec_run *run, const codec_pass *pass, uint32_t *count_out)
{
    const uint32_t most = run->settings.repetitions;
    const double until =
        base_clock_seconds() + CODEC_SECONDS_PER_VARIANT * run->settings.seconds_per_point;
    uint32_t count = 0;
    while (count < most && (count < CODEC_REPETITIONS_LEAST || base_clock_seconds() < until)) {
        kvt_status status =
            codec_measure_once(run, pass, &run->encode_seconds[count], &run->decode_seconds[count]);
        if (status != KVT_OK) return status;
        count++;
    }
    *count_out = count;
    return KVT_OK;
}

/* The repetitions of kernels, after the CPU has encoded the record and decoded it. The encoding is
 * that of the CPU, once. */
static kvt_status codec_repeat_there(codec_run *run, const codec_pass *pass, double encode_seconds,
                                     uint32_t *count_out)
{
    const codec_gpu_record record = {.spec = &run->spec,
                                     .record = run->record,
                                     .record_bytes = run->record_bytes,
                                     .decoded = run->decoded,
                                     .decoded_bytes = run->decoded_bytes};
    if (kvt_variant_drops_tokens(run->spec.variant)) return KVT_E_UNSUPPORTED;
    *count_out = run->settings.repetitions;
    for (uint32_t i = 0; i < *count_out; i++)
        run->encode_seconds[i] = encode_seconds;
    return codec_gpu_decode(pass->gpu, &record, run->decode_seconds, *count_out);
}

/* Median of the repetitions; with several threads the fastest one, because a thread that loses its
 * core delays them all. */
static double codec_seconds(const codec_pass *pass, double *seconds, uint32_t count)
{
    const double median = profile_median(seconds, count); /* sorts */
    return pass->workers != NULL ? seconds[0] : median;
}

static kvt_status codec_measure_variant(codec_run *run, const codec_pass *pass, kvt_variant variant)
{
    double first_encode, unused_decode;
    uint32_t count = 0;
    const kvt_codec *codec = kvt_codec_find(variant.codec);
    run->spec.variant = variant;
    run->spec.layout = pass->layout;
    run->spec.bases = codec_bases(run, pass);
    /* The first round warms caches and is checked instead of timed. */
    kvt_status status = codec_measure_once(run, pass, &first_encode, &unused_decode);
    if (status == KVT_E_UNSUPPORTED) return KVT_OK; /* not a form of KV of this shape */
    if (status != KVT_OK) return status;
    if (codec->flags & KVT_CODEC_FLAG_EXACT) {
        bool same = run->decoded_bytes == pass->source_bytes &&
                    memcmp(pass->source, run->decoded, pass->source_bytes) == 0;
        if (!same) return KVT_E_CORRUPT;
    }
    status = pass->gpu != NULL ? codec_repeat_there(run, pass, first_encode, &count)
                               : codec_repeat(run, pass, &count);
    /* Kernels do not take every form, nor drivers every kernel. */
    if (status == KVT_E_UNSUPPORTED && pass->gpu != NULL) return KVT_OK;
    if (status != KVT_OK) return status;
    kvt_codec_curve curve = {.variant = variant};
    double source = (double)pass->source_bytes;
    double encode = codec_seconds(pass, run->encode_seconds, count);
    double decode = codec_seconds(pass, run->decode_seconds, count);
    curve.stored_share = (double)run->record_bytes / source;
    curve.encode_bytes_per_s = source / (encode > 1e-9 ? encode : 1e-9);
    curve.decode_bytes_per_s = source / (decode > 1e-9 ? decode : 1e-9);
    return profile_codec_insert(run->profile, run->run, &curve, codec_isa(pass),
                                codec_threads(pass), pass->source_name, pass->source_bytes, count);
}

/* Whether a run that is gone on with has this row. */
static bool codec_has_row(codec_run *run, const codec_pass *pass, kvt_variant variant)
{
    profile_row row = profile_row_begin(
        run->profile, "SELECT 1 FROM codec_curve WHERE run_id = ? AND codec = ? AND mode = ? AND "
                      "rate = ? AND isa = ? AND threads = ? AND source = ?");
    profile_row_integer(&row, (uint64_t)run->run);
    profile_row_integer(&row, variant.codec);
    profile_row_integer(&row, variant.mode);
    profile_row_integer(&row, variant.rate);
    profile_row_text(&row, codec_isa(pass));
    profile_row_integer(&row, codec_threads(pass));
    profile_row_text(&row, pass->source_name);
    bool found = row.result == SQLITE_OK && sqlite3_step(row.statement) == SQLITE_ROW;
    sqlite3_finalize(row.statement);
    return found;
}

static bool codec_report(const codec_run *run, const codec_pass *pass, size_t variant,
                         const char *name)
{
    const profile_settings *settings = &run->settings;
    const size_t ladder = sizeof codec_ladder / sizeof codec_ladder[0];
    char what[96];
    if (settings->progress == NULL) return true;
    (void)snprintf(what, sizeof what, "%s, %s x%u", name, codec_isa(pass), codec_threads(pass));
    size_t steps = (size_t)(pass - run->passes) * ladder + variant;
    return settings->progress(settings->progress_context,
                              (double)steps / (double)(run->pass_count * ladder), what);
}

static kvt_status codec_measure_pass(codec_run *run, const codec_pass *pass)
{
    kvt_variant variant;
    codecs_cpu_force(pass->isa);
    for (size_t i = 0; codec_variant_at(run, pass, i, &variant); i++) {
        char name[64];
        kvt_variant_format(variant, name, sizeof name);
        if (!codec_report(run, pass, i, name)) return KVT_E_CANCELLED;
        if (codec_has_row(run, pass, variant)) continue;
        kvt_status status = codec_measure_variant(run, pass, variant);
        if (status != KVT_OK) return status;
    }
    return KVT_OK;
}

static kvt_status codec_measure_all(codec_run *run)
{
    const codecs_cpu level = codecs_cpu_level();
    kvt_status status = KVT_OK;
    for (size_t i = 0; status == KVT_OK && i < run->pass_count; i++) {
        status = codec_measure_pass(run, &run->passes[i]);
    }
    codecs_cpu_force(level);
    if (status == KVT_OK && run->settings.progress != NULL) {
        (void)run->settings.progress(run->settings.progress_context, 1.0, "codecs");
    }
    return status;
}

/* Goes on with the newest interrupted run of these settings, or begins one. */
static kvt_status codec_measure_begin(codec_run *run)
{
    int result = SQLITE_DONE;
    if (run->settings.resume_seconds > 0.0) {
        profile_row row = profile_row_begin(
            run->profile, "SELECT r.id FROM run r WHERE " PROFILE_OPEN_RUN
                          " AND r.cpu_model = ?8 AND NOT EXISTS (SELECT 1 FROM run q WHERE q.kind "
                          "= ?1 AND q.complete = 1 AND q.id > r.id) ORDER BY r.id DESC LIMIT 1");
        profile_row_open_run(&row, run->profile, "codecs", CODEC_SAMPLE_SEED, &run->settings);
        profile_row_text(&row, run->profile->host.cpu_model);
        result = row.result == SQLITE_OK ? sqlite3_step(row.statement) : row.result;
        if (result == SQLITE_ROW) run->run = sqlite3_column_int64(row.statement, 0);
        sqlite3_finalize(row.statement);
    }
    if (result == SQLITE_ROW) return KVT_OK;
    if (result != SQLITE_DONE) return profile_status(result);
    return profile_run_begin(run->profile, "codecs", run->settings.command_line, CODEC_SAMPLE_SEED,
                             &run->run);
}

kvt_status kvt_profile_measure_codecs(kvt_profile *profile, const kvt_profile_request *request)
{
    assert(profile != NULL);
    codec_run run = {.profile = profile, .request = request};
    if (!profile->writable) return KVT_E_READ_ONLY;
    kvt_status status = profile_settings_read(request, &run.settings);
    if (status == KVT_OK) status = codec_open_gpu(&run);
    if (status == KVT_OK) status = codec_measure_prepare(&run);
    if (status == KVT_OK) status = codec_measure_begin(&run);
    if (status == KVT_OK && run.gpu != NULL)
        status =
            measure_link(run.gpu, profile, run.run, run.decode_seconds, run.settings.repetitions);
    if (status == KVT_OK) status = codec_measure_all(&run);
    if (status == KVT_OK) status = profile_run_complete(profile, run.run);
    codec_gpu_close(run.gpu);
    for (uint32_t i = 0; i < run.basis_count; i++) {
        profile_basis_free(&run.bases[i].basis);
        free(run.bases[i].sample);
    }
    free(run.bases);
    free(run.passes);
    free(run.sample);
    free(run.decoded);
    free(run.record);
    free(run.scratch);
    free(run.encode_seconds);
    free(run.decode_seconds);
    return status;
}
