/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_transform.c - what the transform codec takes of a processor: whole segments on every
 * instruction set, under a basis that is learnt on generated KV. CPU time of the one thread.
 *
 * Thread rule: one case at a time.
 */
#include "bench_parts.h"
#include "estimator/model/model.h"
#include "estimator/quality/basis_learn.h"

#include <kvterrace/codec.h>

#include <math.h>
#include <stdlib.h>

enum { TRANSFORM_TIMES = 25, TRANSFORM_TIMES_QUICK = 3, SEGMENT_TOKENS = 1024, SEGMENT_LAYERS = 2 };

#define SEGMENT_BITS   1.8 /* at most, which the step is chosen for */
#define SEGMENT_ROPE   10000.0
#define SEGMENT_LEARNT 2 /* entries */

static const struct segment_case {
    uint8_t span;
    uint32_t kv_heads;
    const char *what;
} segment_cases[] = {{TRANSFORM_SPAN_HEAD, 8, "head, 128 wide"},
                     {TRANSFORM_SPAN_LAYER, 2, "layer, 512 wide"}};
enum { SEGMENT_CASES = sizeof segment_cases / sizeof segment_cases[0] };

typedef struct segment_site {
    kvt_layout layout;
    uint64_t bytes;
    uint8_t *source;
    uint8_t *decoded;
    uint8_t *stored;
    void *scratch;
    uint8_t *object;
    transform_basis basis;
} segment_site;

/* Shows a learner generated entries, pass by pass; `source` has room for one. */
static kvt_status transform_learn(basis_learner *learner, const kvt_layout *layout, uint8_t *source)
{
    kvt_status status = KVT_OK;
    for (uint32_t seed = 1; status == KVT_OK && seed <= SEGMENT_LEARNT; seed++) {
        codecs_kv_sample_fill(layout, seed, source);
        status = basis_learner_entry(learner, BASIS_LEARN, layout, source);
    }
    if (status == KVT_OK) status = basis_learner_solve(learner);
    codecs_kv_sample_fill(layout, SEGMENT_LEARNT + 1, source);
    if (status == KVT_OK) status = basis_learner_entry(learner, BASIS_SPREAD, layout, source);
    if (status == KVT_OK) status = basis_learner_entry(learner, BASIS_COUNT, layout, source);
    return status;
}

kvt_status bench_learn_basis(const kvt_layout *layout, uint8_t span, uint8_t **object_out,
                             transform_basis *basis_out)
{
    const transform_shape shape = {.layers = layout->layers,
                                   .kv_heads = layout->kv_heads,
                                   .head_dim = layout->head_dim,
                                   .rotary_dim = layout->head_dim,
                                   .sides = (uint8_t)kvt_layout_sides(layout),
                                   .span = span};
    double frequencies[TRANSFORM_WIDTH_MAX / 2];
    basis_learner *learner = NULL;
    basis_origin origin = {.model = "generated"};
    uint64_t bytes;
    kvt_status status = kvt_layout_bytes(layout, &bytes);
    uint8_t *source = status == KVT_OK ? malloc(bytes) : NULL;
    for (uint32_t i = 0; i < shape.rotary_dim / 2; i++)
        frequencies[i] = pow(SEGMENT_ROPE, -2.0 * i / shape.rotary_dim);
    if (status == KVT_OK && source == NULL) status = KVT_E_MEMORY;
    if (status == KVT_OK) status = basis_learner_open(&shape, frequencies, &learner);
    if (status == KVT_OK) status = transform_learn(learner, layout, source);
    if (status == KVT_OK) status = basis_learner_finish(learner, &origin, object_out, &bytes);
    if (status == KVT_OK) status = basis_read(*object_out, bytes, basis_out, NULL);
    basis_learner_close(learner);
    free(source);
    return status;
}

static kvt_status segment_open(const struct segment_case *one, segment_site *site)
{
    *site = (segment_site){.layout = {.layers = SEGMENT_LAYERS,
                                      .kv_heads = (uint16_t)one->kv_heads,
                                      .head_dim = 128,
                                      .dtype = KVT_DTYPE_BF16,
                                      .tokens = SEGMENT_TOKENS + KVT_SINK_TOKENS}};
    kvt_status status = kvt_layout_bytes(&site->layout, &site->bytes);
    if (status != KVT_OK) return status;
    site->source = malloc(site->bytes);
    site->decoded = malloc(site->bytes);
    site->stored = malloc(site->bytes);
    if (site->source == NULL || site->decoded == NULL || site->stored == NULL) return KVT_E_MEMORY;
    status = bench_learn_basis(&site->layout, one->span, &site->object, &site->basis);
    if (status != KVT_OK) return status;
    codecs_kv_sample_fill(&site->layout, SEGMENT_LEARNT + 2, site->source);
    site->scratch = aligned_alloc(64, transform_scratch_bytes(&site->basis.shape));
    return site->scratch != NULL ? KVT_OK : KVT_E_MEMORY;
}

static void segment_close(segment_site *site)
{
    free(site->source);
    free(site->decoded);
    free(site->stored);
    free(site->scratch);
    free(site->object);
}

/* Every segment of the entry once, encoded or decoded; adds up the bytes stored. */
static kvt_status segment_pass(segment_site *site, uint16_t step, bool decode, uint64_t *stored_out,
                               uint64_t *each)
{
    const transform_shape *shape = &site->basis.shape;
    const uint64_t matrix = kvt_layout_matrix_bytes(&site->layout);
    const uint64_t sinks = matrix / site->layout.tokens * KVT_SINK_TOKENS;
    uint8_t *at = site->stored;
    kvt_status status = KVT_OK;
    *stored_out = 0;
    for (uint32_t i = 0; status == KVT_OK && i < transform_segment_count(shape); i++) {
        const transform_segment segment = {.basis = &site->basis,
                                           .index = i,
                                           .first_position = KVT_SINK_TOKENS,
                                           .tokens = SEGMENT_TOKENS,
                                           .step = step,
                                           .dtype = site->layout.dtype};
        const void *matrices[TRANSFORM_MATRICES_MAX];
        view_rows rows[TRANSFORM_MATRICES_MAX];
        const view_rows *targets[TRANSFORM_MATRICES_MAX];
        uint32_t layer;
        const uint32_t count = transform_segment_matrices(shape, i, &layer);
        const uint32_t first = shape->span == TRANSFORM_SPAN_HEAD ? i : 2 * layer;
        for (uint32_t m = 0; m < count; m++) {
            const uint64_t offset = kvt_layout_matrix_offset(&site->layout, (first + m) / 2,
                                                             (kvt_side)((first + m) % 2)) +
                                    sinks;
            matrices[m] = site->source + offset;
            rows[m] = view_rows_packed(site->decoded + offset, matrix - sinks);
            targets[m] = &rows[m];
        }
        status = decode ? transform_decode(&segment, at, each[i], 0, SEGMENT_TOKENS, targets,
                                           site->scratch)
                        : transform_encode(&segment, matrices, at, transform_bound(&segment),
                                           site->scratch, &each[i]);
        at += each[i];
        *stored_out += each[i];
    }
    return status;
}

static kvt_status segment_time(const bench_options *options, bench_report *report,
                               const struct segment_case *one, segment_site *site, codecs_cpu isa,
                               uint16_t step, double bits)
{
    const double bytes = (double)site->bytes * SEGMENT_TOKENS / site->layout.tokens;
    double rates[2][TRANSFORM_TIMES];
    uint64_t each[SEGMENT_LAYERS * 2], stored;
    const uint32_t times =
        isa == CODECS_CPU_SCALAR || options->quick ? TRANSFORM_TIMES_QUICK : TRANSFORM_TIMES;
    kvt_status status = KVT_OK;
    codecs_cpu_force(isa);
    for (uint32_t i = 0; status == KVT_OK && i < times; i++) {
        for (int decode = 0; status == KVT_OK && decode < 2; decode++) {
            const double start = base_cpu_seconds();
            status = segment_pass(site, step, decode == 1, &stored, each);
            rates[decode][i] = bytes / (base_cpu_seconds() - start + 1e-12);
        }
    }
    codecs_cpu_force(codecs_cpu_best());
    if (status != KVT_OK) return status;
    const bench_rate encode = bench_rate_of(rates[0], times);
    const bench_rate decode = bench_rate_of(rates[1], times);
    const bool pairs = isa == CODECS_CPU_AVX512 && transform_kernels_choose()->pair != NULL;
    bench_report_row(report, "segments",
                     json_pack("{s:s, s:s, s:b, s:f, s:f, s:f, s:f, s:f}", "span", one->what, "isa",
                               codecs_cpu_name(isa), "pairs", (int)pairs, "bits", bits,
                               "decode_bytes_per_s", decode.median, "decode_best", decode.max,
                               "encode_bytes_per_s", encode.median, "encode_best", encode.max));
    return KVT_OK;
}

static kvt_status segment_run(const bench_options *options, bench_report *report,
                              const struct segment_case *one)
{
    segment_site site;
    uint64_t each[SEGMENT_LAYERS * 2], stored = 0;
    uint16_t step = TRANSFORM_STEP_ONE / 4;
    double bits = 32.0;
    kvt_status status = segment_open(one, &site);
    const double elements = (double)transform_elements(&site.basis.shape) * SEGMENT_TOKENS;
    while (status == KVT_OK && bits > SEGMENT_BITS && step <= TRANSFORM_STEP_MAX) {
        status = segment_pass(&site, step, false, &stored, each);
        bits = (double)stored * 8.0 / elements;
        if (bits > SEGMENT_BITS) step = (uint16_t)(step + step / 8);
    }
    for (int isa = (int)codecs_cpu_best(); status == KVT_OK && isa >= CODECS_CPU_SCALAR; isa--)
        status = segment_time(options, report, one, &site, (codecs_cpu)isa, step, bits);
    segment_close(&site);
    return status;
}

/* ---- all ---- */

static kvt_status transform_run(const bench_options *options, bench_report *report)
{
    kvt_status status = KVT_OK;
    model_set_blas_threads(1);
    for (uint32_t i = 0; status == KVT_OK && i < SEGMENT_CASES; i++) {
        (void)bench_tell(options, i, SEGMENT_CASES, segment_cases[i].what);
        status = segment_run(options, report, &segment_cases[i]);
    }
    return status;
}

const bench_case bench_transform_case = {
    .name = "transform",
    .schema = "kvterrace-bench-transform-1",
    .tables =
        (const document_table[]){
            {"segments", "span isa pairs bits decode_bytes_per_s encode_bytes_per_s"}, {0}},
    .run = transform_run,
};
