/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_transform.c - what the transform codec takes of a processor: its matrix products beside
 * OpenBLAS's sgemm on the blocks that occur, in turn within one run, and whole segments on every
 * instruction set, under a basis that is learnt on generated KV. CPU time of the one thread.
 *
 * sgemm has its matrix as floats beforehand; ours widens bf16 within the time, as decoding does.
 *
 * Thread rule: one bench at a time.
 */
#include "base/clock.h"
#include "base/half.h"
#include "base/order.h"
#include "bench.h"
#include "codecs/kernels/cpu.h"
#include "codecs/kernels/transform_kernels.h"
#include "codecs/kv_sample.h"
#include "codecs/record.h"
#include "estimator/model/model.h"
#include "estimator/quality/basis_learn.h"

#include <kvterrace/codec.h>

#include <cblas.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    PRODUCT_HEADS = 8, /* of outputs, taken in turn */
    PRODUCT_FORMS = 3, /* plain inputs, pairs, sgemm */
    TRANSFORM_TIMES = 25,
    TRANSFORM_TIMES_QUICK = 3,
    SEGMENT_TOKENS = 1024,
    SEGMENT_LAYERS = 2
};

#define PRODUCT_FLOPS  2e8 /* of one timing */
#define SEGMENT_BITS   1.8 /* at most, which the step is chosen for */
#define SEGMENT_ROPE   10000.0
#define SEGMENT_LEARNT 2 /* entries */

/* The products that decoding a head of this many channels takes in spans of this width. */
static const struct product_shape {
    uint32_t inputs, outputs;
    const char *what;
} product_shapes[] = {{64, 64, "head, 64 wide"},
                      {128, 128, "head, 128 wide"},
                      {384, 64, "layer, 3 heads of 64"},
                      {1536, 64, "layers4, 3 heads of 64"},
                      {2048, 128, "layer, 8 heads of 128"},
                      {8192, 128, "layers4, 8 heads of 128"}};
enum { PRODUCT_SHAPES = sizeof product_shapes / sizeof product_shapes[0] };

static const struct segment_case {
    uint8_t span;
    uint32_t kv_heads;
    const char *what;
} segment_cases[] = {{TRANSFORM_SPAN_HEAD, 8, "head, 128 wide"},
                     {TRANSFORM_SPAN_LAYER, 2, "layer, 512 wide"}};
enum { SEGMENT_CASES = sizeof segment_cases / sizeof segment_cases[0] };

typedef struct transform_times {
    double best, median; /* of a rate */
} transform_times;

typedef struct transform_bench {
    const bench_options *options;
    uint32_t times;
    json_t *products, *segments;
} transform_bench;

static transform_times times_of(double *rates, uint32_t count)
{
    qsort(rates, count, sizeof *rates, base_order_doubles);
    return (transform_times){rates[count - 1], rates[count / 2]};
}

/* ---- products ---- */

typedef struct product_site {
    uint16_t *matrix;  /* bf16 [inputs][outputs * PRODUCT_HEADS] */
    float *wide;       /* the same as floats */
    float *in, *pairs; /* [inputs][256], integers */
    float *out, *panel;
} product_site;

static void product_close(product_site *site)
{
    free(site->matrix);
    free(site->wide);
    free(site->in);
    free(site->pairs);
    free(site->out);
    free(site->panel);
}

static kvt_status product_open(const struct product_shape *shape, const transform_kernels *kernels,
                               product_site *site)
{
    const size_t count = (size_t)shape->inputs * shape->outputs * PRODUCT_HEADS;
    const size_t lane = TRANSFORM_LANES * sizeof(float);
    int16_t codes[2][TRANSFORM_LANES];
    uint32_t state = 1;
    *site = (product_site){
        .matrix = aligned_alloc(64, count * sizeof *site->matrix),
        .wide = aligned_alloc(64, count * sizeof *site->wide),
        .in = aligned_alloc(64, shape->inputs * lane),
        .pairs = aligned_alloc(64, shape->inputs * lane),
        .out = aligned_alloc(64, shape->outputs * lane),
        .panel = aligned_alloc(64, shape->inputs * TRANSFORM_PANEL * sizeof *site->panel)};
    if (site->matrix == NULL || site->wide == NULL || site->in == NULL || site->pairs == NULL ||
        site->out == NULL || site->panel == NULL)
        return KVT_E_MEMORY;
    for (size_t i = 0; i < count; i++) {
        state = state * 1664525u + 1013904223u;
        site->matrix[i] = half_bf16_from_float((float)(int32_t)state * 0x1p-31f);
        site->wide[i] = half_bf16_to_float(site->matrix[i]);
    }
    for (uint32_t k = 0; k < shape->inputs; k++) {
        for (uint32_t t = 0; t < TRANSFORM_LANES; t++) {
            state = state * 1664525u + 1013904223u;
            codes[k % 2][t] = (int16_t)((int32_t)(state >> 28) - 8);
        }
        kernels->widen(codes[k % 2], TRANSFORM_LANES, site->in + (size_t)k * TRANSFORM_LANES);
        if (k % 2 == 1 && kernels->pair != NULL)
            kernels->pair(codes[0], codes[1], TRANSFORM_LANES,
                          site->pairs + (size_t)(k / 2) * TRANSFORM_LANES);
    }
    return KVT_OK;
}

/* GFLOP/s of one form over enough products. */
static double product_time(const struct product_shape *shape, const transform_kernels *kernels,
                           const product_site *site, int form)
{
    const double flops = 2.0 * shape->inputs * shape->outputs * TRANSFORM_LANES;
    const uint32_t rounds = (uint32_t)fmax(1.0, PRODUCT_FLOPS / flops);
    const uint32_t width = shape->outputs * PRODUCT_HEADS;
    transform_product product = {.matrix = site->matrix,
                                 .width = width,
                                 .row_count = shape->inputs,
                                 .plain = form == 1 ? 0 : shape->inputs,
                                 .count = shape->outputs,
                                 .tokens = TRANSFORM_LANES,
                                 .in = form == 1 ? site->pairs : site->in,
                                 .out = site->out,
                                 .panel = site->panel};
    const double start = base_cpu_seconds();
    for (uint32_t i = 0; i < rounds; i++) {
        product.first = i % PRODUCT_HEADS * shape->outputs;
        if (form < 2)
            kernels->multiply(&product);
        else
            cblas_sgemm(CblasColMajor, CblasNoTrans, CblasTrans, TRANSFORM_LANES,
                        (int)shape->outputs, (int)shape->inputs, 1.0f, site->in, TRANSFORM_LANES,
                        site->wide + product.first, (int)width, 0.0f, site->out, TRANSFORM_LANES);
    }
    return flops * rounds / (base_cpu_seconds() - start + 1e-12) * 1e-9;
}

static void product_report(transform_bench *bench, const struct product_shape *shape,
                           const transform_times *times, double ratio)
{
    const bench_options *o = bench->options;
    if (o->json) {
        (void)json_array_append_new(
            bench->products,
            json_pack("{s:s, s:I, s:I, s:I, s:f, s:f, s:f, s:f}", "span", shape->what, "inputs",
                      (json_int_t)shape->inputs, "outputs", (json_int_t)shape->outputs, "tokens",
                      (json_int_t)TRANSFORM_LANES, "plain_gflops", times[0].median, "pairs_gflops",
                      times[1].median, "sgemm_gflops", times[2].median, "of_sgemm", ratio));
        return;
    }
    fprintf(o->out, "%-26s %5.0f %5.0f  %5.0f %5.0f  %5.0f %5.0f  %6.2f\n", shape->what,
            times[0].median, times[0].best, times[1].median, times[1].best, times[2].median,
            times[2].best, ratio);
}

/* Ratios are of neighbours in time, and their median counts. */
static kvt_status product_run(transform_bench *bench, const struct product_shape *shape)
{
    const transform_kernels *kernels = transform_kernels_choose();
    double rates[PRODUCT_FORMS][TRANSFORM_TIMES] = {{0.0}}, ratios[TRANSFORM_TIMES];
    transform_times times[PRODUCT_FORMS];
    const int best = kernels->pair != NULL ? 1 : 0;
    product_site site;
    const kvt_status status = product_open(shape, kernels, &site);
    for (uint32_t i = 0; status == KVT_OK && i < bench->times; i++) {
        for (int form = 0; form < PRODUCT_FORMS; form++) {
            if (form == 1 && kernels->pair == NULL) continue;
            rates[form][i] = product_time(shape, kernels, &site, form);
        }
        ratios[i] = rates[best][i] / rates[2][i];
    }
    product_close(&site);
    if (status != KVT_OK) return status;
    for (int form = 0; form < PRODUCT_FORMS; form++)
        times[form] = times_of(rates[form], bench->times);
    product_report(bench, shape, times, times_of(ratios, bench->times).median);
    return KVT_OK;
}

/* ---- segments ---- */

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

/* A basis of generated entries. */
static kvt_status segment_learn(const struct segment_case *one, segment_site *site)
{
    const transform_shape shape = {.layers = SEGMENT_LAYERS,
                                   .kv_heads = one->kv_heads,
                                   .head_dim = site->layout.head_dim,
                                   .rotary_dim = site->layout.head_dim,
                                   .sides = 2,
                                   .span = one->span};
    double frequencies[TRANSFORM_WIDTH_MAX / 2];
    basis_learner *learner;
    basis_origin origin = {.model = "generated"};
    uint64_t bytes;
    for (uint32_t i = 0; i < shape.rotary_dim / 2; i++)
        frequencies[i] = pow(SEGMENT_ROPE, -2.0 * i / shape.rotary_dim);
    kvt_status status = basis_learner_open(&shape, frequencies, &learner);
    for (uint32_t seed = 1; status == KVT_OK && seed <= SEGMENT_LEARNT; seed++) {
        codecs_kv_sample_fill(&site->layout, seed, site->source);
        status = basis_learner_entry(learner, BASIS_LEARN, &site->layout, site->source);
    }
    if (status == KVT_OK) status = basis_learner_solve(learner);
    codecs_kv_sample_fill(&site->layout, SEGMENT_LEARNT + 1, site->source);
    if (status == KVT_OK)
        status = basis_learner_entry(learner, BASIS_SPREAD, &site->layout, site->source);
    if (status == KVT_OK)
        status = basis_learner_entry(learner, BASIS_COUNT, &site->layout, site->source);
    if (status == KVT_OK) status = basis_learner_finish(learner, &origin, &site->object, &bytes);
    if (status == KVT_OK) status = basis_read(site->object, bytes, &site->basis, NULL);
    basis_learner_close(learner);
    codecs_kv_sample_fill(&site->layout, SEGMENT_LEARNT + 2, site->source);
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
    status = segment_learn(one, site);
    if (status != KVT_OK) return status;
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

static kvt_status segment_time(transform_bench *bench, const struct segment_case *one,
                               segment_site *site, codecs_cpu isa, uint16_t step, double bits)
{
    const double bytes = (double)site->bytes * SEGMENT_TOKENS / site->layout.tokens;
    double rates[2][TRANSFORM_TIMES];
    uint64_t each[SEGMENT_LAYERS * 2], stored;
    const uint32_t times = isa == CODECS_CPU_SCALAR ? 3 : bench->times;
    kvt_status status = KVT_OK;
    codecs_cpu_force(isa);
    for (uint32_t i = 0; status == KVT_OK && i < times; i++) {
        for (int decode = 0; status == KVT_OK && decode < 2; decode++) {
            const double start = base_cpu_seconds();
            status = segment_pass(site, step, decode == 1, &stored, each);
            rates[decode][i] = bytes / (base_cpu_seconds() - start + 1e-12) * 1e-9;
        }
    }
    codecs_cpu_force(codecs_cpu_best());
    if (status != KVT_OK) return status;
    const transform_times encode = times_of(rates[0], times), decode = times_of(rates[1], times);
    const bool pairs = isa == CODECS_CPU_AVX512 && transform_kernels_choose()->pair != NULL;
    if (bench->options->json)
        (void)json_array_append_new(
            bench->segments,
            json_pack("{s:s, s:s, s:b, s:f, s:f, s:f, s:f, s:f}", "span", one->what, "isa",
                      codecs_cpu_name(isa), "pairs", (int)pairs, "bits", bits, "decode_bytes_per_s",
                      decode.median * 1e9, "decode_best", decode.best * 1e9, "encode_bytes_per_s",
                      encode.median * 1e9, "encode_best", encode.best * 1e9));
    else
        fprintf(bench->options->out, "%-18s %-12s %5.2f  %6.3f %6.3f  %6.3f %6.3f\n", one->what,
                pairs ? "avx512, bf16" : codecs_cpu_name(isa), bits, decode.median, decode.best,
                encode.median, encode.best);
    return KVT_OK;
}

static kvt_status segment_run(transform_bench *bench, const struct segment_case *one)
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
        status = segment_time(bench, one, &site, (codecs_cpu)isa, step, bits);
    segment_close(&site);
    return status;
}

/* ---- all ---- */

kvt_status bench_transform_run(const bench_options *options)
{
    const double parts = PRODUCT_SHAPES + SEGMENT_CASES;
    transform_bench bench = {.options = options,
                             .times = options->quick ? TRANSFORM_TIMES_QUICK : TRANSFORM_TIMES,
                             .products = json_array(),
                             .segments = json_array()};
    kvt_status status = KVT_OK;
    model_set_blas_threads(1);
    if (!options->json)
        fprintf(options->out,
                "GFLOP/s of products with 256 tokens, median and best of %u\n%-26s %11s  %11s  "
                "%11s  %6s\n",
                (unsigned)bench.times, "span", "plain", "bf16 pairs", "sgemm", "ratio");
    for (uint32_t i = 0; status == KVT_OK && i < PRODUCT_SHAPES; i++) {
        bench_tell(options, i, parts, product_shapes[i].what);
        status = product_run(&bench, &product_shapes[i]);
    }
    if (status == KVT_OK && !options->json)
        fprintf(options->out, "\nGB/s of bf16 elements, one thread\n%-18s %-12s %5s  %13s  %13s\n",
                "span", "isa", "bits", "decode", "encode");
    for (uint32_t i = 0; status == KVT_OK && i < SEGMENT_CASES; i++) {
        bench_tell(options, PRODUCT_SHAPES + i, parts, segment_cases[i].what);
        status = segment_run(&bench, &segment_cases[i]);
    }
    json_t *document = json_pack("{s:s, s:o, s:o}", "schema", "kvterrace-bench-transform-1",
                                 "products", bench.products, "segments", bench.segments);
    if (status == KVT_OK && options->json) {
        (void)json_dumpf(document, options->out, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
        fputc('\n', options->out);
    }
    json_decref(document);
    return status;
}
