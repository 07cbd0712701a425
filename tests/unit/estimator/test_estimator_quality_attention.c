/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_estimator_quality_attention.c - the probe of attention against sums in double, on random KV:
 * errors per head, mass and flips, dropped tokens, dtypes, exact variants; KV dumps there and back.
 */
#include "cases.h"
#include "dice.h"

#include "base/half.h"
#include "codecs/record.h"
#include "estimator/model/model.h"
#include "estimator/model/safetensors.h"
#include "estimator/quality/quality_round_trip.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LAYERS = 2, HEADS = 4, KV_HEADS = 2, WIDTH = 16, TOKENS = 96, ROWS = 3 };

static double next_normal(uint64_t *state)
{
    double sum = 0.0;
    for (int i = 0; i < 12; i++)
        sum += (double)(uint32_t)(dice_next(state) >> 33) / 2147483648.0;
    return sum - 6.0;
}

static kvt_variant variant_of(const char *name)
{
    kvt_variant variant;
    assert_ok(kvt_variant_parse(name, &variant));
    return variant;
}

static kvt_layout layout_of(uint8_t dtype)
{
    return (kvt_layout){.layers = LAYERS,
                        .kv_heads = KV_HEADS,
                        .head_dim = WIDTH,
                        .dtype = dtype,
                        .tokens = TOKENS};
}

static void store_element(uint8_t dtype, uint8_t *target, size_t index, double value)
{
    uint16_t half = dtype == KVT_DTYPE_BF16 ? half_bf16_from_float((float)value)
                                            : half_from_float((float)value);
    float full = (float)value;
    if (dtype == KVT_DTYPE_FP8) {
        target[index] = half_fp8_from_float(full);
    } else if (dtype == KVT_DTYPE_FP32) {
        memcpy(target + 4 * index, &full, 4);
    } else {
        memcpy(target + 2 * index, &half, 2);
    }
}

static double load_element(uint8_t dtype, const uint8_t *source, size_t index)
{
    uint16_t half;
    float full;
    if (dtype == KVT_DTYPE_FP32) {
        memcpy(&full, source + 4 * index, 4);
        return (double)full;
    }
    if (dtype == KVT_DTYPE_FP8) return (double)half_fp8_to_float(source[index]);
    memcpy(&half, source + 2 * index, 2);
    return (double)(dtype == KVT_DTYPE_BF16 ? half_bf16_to_float(half) : half_to_float(half));
}

static void fill(quality_attention *a, const kvt_layout *layout, uint64_t seed)
{
    uint64_t bytes;
    assert_ok(kvt_layout_bytes(layout, &bytes));
    size_t count = bytes / kvt_dtype_bytes(layout->dtype);
    for (size_t i = 0; i < count; i++)
        store_element(layout->dtype, quality_attention_source(a), i, next_normal(&seed));
    for (size_t i = 0; i < (size_t)LAYERS * HEADS * ROWS * WIDTH; i++)
        quality_attention_queries(a)[i] = (float)(2.0 * next_normal(&seed));
}

/* ---- in double ---- */

typedef struct plain_result {
    double error, high, mass, flips;
} plain_result;

/* Softmax weights and output of one query over the tokens that are kept. */
static void plain_attend(const kvt_layout *layout, const uint8_t *kv, uint32_t layer,
                         uint32_t kv_head, const float *query, const uint8_t *kept, double *weights,
                         double *out)
{
    const uint8_t *k = kv + kvt_layout_matrix_offset(layout, layer, KVT_SIDE_K);
    const uint8_t *v = kv + kvt_layout_matrix_offset(layout, layer, KVT_SIDE_V);
    double sum = 0.0;
    memset(out, 0, WIDTH * sizeof *out);
    for (uint32_t t = 0; t < TOKENS; t++) {
        double score = 0.0;
        for (uint32_t i = 0; i < WIDTH; i++)
            score += (double)query[i] *
                     load_element(layout->dtype, k, ((size_t)t * KV_HEADS + kv_head) * WIDTH + i);
        weights[t] = kept[t] != 0 ? exp(score / sqrt((double)WIDTH)) : 0.0;
        sum += weights[t];
    }
    for (uint32_t t = 0; t < TOKENS; t++) {
        weights[t] /= sum;
        for (uint32_t i = 0; i < WIDTH; i++)
            out[i] += weights[t] *
                      load_element(layout->dtype, v, ((size_t)t * KV_HEADS + kv_head) * WIDTH + i);
    }
}

static uint32_t plain_top(const double *weights)
{
    uint32_t top = 0;
    for (uint32_t t = 1; t < TOKENS; t++)
        if (weights[t] > weights[top]) top = t;
    return top;
}

static int by_value(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

/* decoded: rows at their tokens, dropped ones anything. */
static plain_result plain_compare(quality_attention *a, const kvt_layout *layout,
                                  const uint8_t *decoded, const uint8_t (*kept)[TOKENS])
{
    static const uint8_t all[TOKENS] = {[0 ... TOKENS - 1] = 1};
    plain_result result = {0.0, 0.0, 0.0, 0.0};
    double errors[LAYERS * HEADS], exact_w[TOKENS], w[TOKENS], exact_out[WIDTH], out[WIDTH];
    for (uint32_t i = 0; i < LAYERS * HEADS; i++) {
        uint32_t layer = i / HEADS, kv_head = i % HEADS / (HEADS / KV_HEADS);
        double difference = 0.0, norm = 0.0;
        for (uint32_t r = 0; r < ROWS; r++) {
            const float *query = quality_attention_queries(a) + ((size_t)i * ROWS + r) * WIDTH;
            plain_attend(layout, quality_attention_source(a), layer, kv_head, query, all, exact_w,
                         exact_out);
            plain_attend(layout, decoded, layer, kv_head, query, kept[layer], w, out);
            result.flips += plain_top(exact_w) != plain_top(w);
            for (uint32_t t = 0; t < TOKENS; t++)
                if (kept[layer][t] != 0) result.mass += exact_w[t];
            for (uint32_t d = 0; d < WIDTH; d++) {
                difference += (exact_out[d] - out[d]) * (exact_out[d] - out[d]);
                norm += exact_out[d] * exact_out[d];
            }
        }
        errors[i] = sqrt(difference / norm);
        result.error += errors[i] / (LAYERS * HEADS);
    }
    qsort(errors, LAYERS * HEADS, sizeof errors[0], by_value);
    double place = QUALITY_ATTENTION_HIGH * (LAYERS * HEADS - 1);
    size_t below = (size_t)place;
    result.high = errors[below] + (place - (double)below) * (errors[below + 1] - errors[below]);
    result.flips /= LAYERS * HEADS * ROWS;
    result.mass /= LAYERS * HEADS * ROWS;
    return result;
}

/* The variant's own way there and back, apart from the probe's. */
static void plain_trip(const kvt_layout *layout, const void *source, kvt_variant variant,
                       uint8_t *decoded, uint8_t (*kept)[TOKENS])
{
    kvt_record_spec spec = {.generation = 1, .layout = *layout, .variant = variant};
    kvt_record_info info;
    uint64_t bound, scratch_bytes, bytes, source_bytes;
    spec.layout.tokens_may_drop = 1;
    assert_ok(kvt_layout_bytes(layout, &source_bytes));
    assert_ok(kvt_record_bound(&spec, &bound, &scratch_bytes));
    void *record = test_aligned(4096, bound + 1);
    void *scratch = test_aligned(4096, scratch_bytes + 1);
    uint8_t *compact = test_alloc(source_bytes);
    assert_true(kvt_record_encode(&spec, source, source_bytes, record, bound, scratch,
                                  scratch_bytes, &bytes) >= 0);
    assert_ok(kvt_record_parse(record, bytes, &info));
    assert_ok(kvt_record_decode(record, bytes, NULL, compact, info.decoded_bytes, scratch,
                                scratch_bytes));
    kvt_layout stored = *layout;
    stored.tokens = info.stored_tokens;
    const uint64_t row = kvt_layout_matrix_bytes(layout) / TOKENS;
    uint32_t at[TOKENS];
    memset(decoded, 0, source_bytes);
    memset(kept, 0, (size_t)LAYERS * TOKENS);
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        assert_ok(kvt_record_kept_tokens(record, bytes, layer, at, TOKENS));
        for (uint32_t i = 0; i < info.stored_tokens; i++) {
            kept[layer][at[i]] = 1;
            for (int side = KVT_SIDE_K; side <= KVT_SIDE_V; side++)
                memcpy(decoded + kvt_layout_matrix_offset(layout, layer, (kvt_side)side) +
                           at[i] * row,
                       compact + kvt_layout_matrix_offset(&stored, layer, (kvt_side)side) + i * row,
                       row);
        }
    }
}

static void assert_close(double is, double wanted, double tolerance, const char *what)
{
    if (!(fabs(is - wanted) <= tolerance)) fail_msg("%s: %.9g, not %.9g", what, is, wanted);
}

TEST(variants_are_judged_as_in_double)
{
    static const char *const names[] = {"kivi:k4v4,g32",
                                        "planes:k2v2,g32",
                                        "entropy:k0.5v1,vchan",
                                        "kivi:k4v4,g32,r32",
                                        "drop:stream,50",
                                        "drop:keydiff,25+planes:k4v4,g32",
                                        "drop:knorm,75+kivi:k4v4,g32"};
    static const uint8_t dtypes[] = {KVT_DTYPE_FP16, KVT_DTYPE_BF16, KVT_DTYPE_FP32, KVT_DTYPE_FP8};
    uint32_t dropped = 0, flipped = 0;
    for (size_t d = 0; d < sizeof dtypes; d++) {
        kvt_layout layout = layout_of(dtypes[d]);
        quality_attention *a;
        uint64_t bytes;
        assert_ok(quality_attention_open(&layout, HEADS, ROWS, &a));
        assert_ok(kvt_layout_bytes(&layout, &bytes));
        uint8_t *decoded = test_alloc(bytes);
        fill(a, &layout, 5 + d);
        quality_attention_exact(a);
        for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
            uint8_t kept[LAYERS][TOKENS];
            quality_row row;
            if (dtypes[d] == KVT_DTYPE_FP8 && strncmp(names[i], "drop", 4) == 0)
                continue; /* not taken */
            plain_trip(&layout, quality_attention_source(a), variant_of(names[i]), decoded, kept);
            plain_result wanted = plain_compare(a, &layout, decoded, kept);
            assert_ok(quality_attention_run(a, variant_of(names[i]), false, &row));
            assert_true(row.present && row.bits_per_element > 0.0 && isnan(row.kl));
            assert_close(row.attention_error, wanted.error, 1e-4 * wanted.error, names[i]);
            assert_close(row.attention_error_high, wanted.high, 1e-4 * wanted.high, names[i]);
            assert_close(row.retained_mass, wanted.mass, 1e-5, names[i]);
            assert_close(row.flip_rate, wanted.flips, 1e-9, names[i]);
            dropped += row.retained_mass < 0.99;
            flipped += row.flip_rate > 0.0;
        }
        quality_attention_close(a);
    }
    assert_int_equal(dropped, 9);
    assert_true(flipped > 9);
}

TEST(exact_variants_lose_nothing)
{
    kvt_layout layout = layout_of(KVT_DTYPE_BF16);
    quality_attention *a;
    quality_row row;
    assert_ok(quality_attention_open(&layout, HEADS, ROWS, &a));
    fill(a, &layout, 9);
    quality_attention_exact(a);
    assert_ok(quality_attention_run(a, variant_of("lossless"), false, &row));
    assert_true(row.attention_error == 0.0 && row.attention_error_high == 0.0);
    assert_true(row.retained_mass == 1.0 && row.flip_rate == 0.0);
    /* One wide head: groups of V run over the whole row, which is other codes. */
    quality_row merged;
    assert_ok(quality_attention_run(a, variant_of("kivi:k2v2,g32"), false, &row));
    assert_ok(quality_attention_run(a, variant_of("kivi:k2v2,g32"), true, &merged));
    assert_true(merged.present && merged.bits_per_element < row.bits_per_element);
    quality_attention_close(a);
}

TEST(what_does_not_fit_is_refused)
{
    kvt_layout layout = layout_of(KVT_DTYPE_FP16);
    quality_attention *a;
    assert_int_equal(quality_attention_open(&layout, HEADS + 1, ROWS, &a), KVT_E_ARGUMENT);
    assert_int_equal(quality_attention_open(&layout, HEADS, 0, &a), KVT_E_ARGUMENT);
    layout.dtype = KVT_DTYPE_OPAQUE;
    assert_int_equal(quality_attention_open(&layout, HEADS, ROWS, &a), KVT_E_ARGUMENT);
    assert_null(a);
    /* A head of 15 has no Hadamard transform: no row, and no error. */
    layout = layout_of(KVT_DTYPE_FP16);
    layout.head_dim = 15;
    quality_row row;
    assert_ok(quality_attention_open(&layout, HEADS, ROWS, &a));
    uint64_t bytes;
    assert_ok(kvt_layout_bytes(&layout, &bytes));
    memset(quality_attention_source(a), 0, bytes);
    memset(quality_attention_queries(a), 0, sizeof(float) * LAYERS * HEADS * ROWS * 15);
    quality_attention_exact(a);
    assert_ok(quality_attention_run(a, variant_of("kivi:k4v4,g32"), false, &row));
    assert_false(row.present);
    quality_attention_close(a);
}

/* ---- dumps ---- */

TEST(dumps_come_back)
{
    enum { DUMP_ROWS = 10 };
    char path[] = "quality-dump-XXXXXX", message[256] = "";
    int file = mkstemp(path);
    assert_true(file >= 0);
    assert_int_equal(close(file), 0);
    uint64_t seed = 3;
    uint16_t k[LAYERS][TOKENS * KV_HEADS * WIDTH], v[LAYERS][TOKENS * KV_HEADS * WIDTH];
    float q[LAYERS][DUMP_ROWS * HEADS * WIDTH];
    for (size_t i = 0; i < sizeof k[0] / 2; i++) {
        for (size_t l = 0; l < LAYERS; l++) {
            k[l][i] = (uint16_t)((uint32_t)(dice_next(&seed) >> 33) % 0x7000);
            v[l][i] = (uint16_t)(0x8000 + i % 0x7000 + l);
        }
    }
    for (size_t l = 0; l < LAYERS; l++)
        for (size_t i = 0; i < sizeof q[0] / 4; i++)
            q[l][i] = (float)(l * 10000 + i);
    const quality_dump_content content = {.layout = layout_of(KVT_DTYPE_FP16),
                                          .k = (const void *const[]){k[0], k[1]},
                                          .v = (const void *const[]){v[0], v[1]},
                                          .queries = (const float *const[]){q[0], q[1]},
                                          .query_heads = HEADS,
                                          .query_rows = DUMP_ROWS};
    assert_ok(quality_dump_write(path, &content, message, sizeof message));
    quality_dump dump;
    assert_ok(quality_dump_open(path, &dump, message, sizeof message));
    assert_memory_equal(&dump.layout, &content.layout, sizeof dump.layout);
    assert_int_equal(dump.query_heads, HEADS);
    assert_int_equal(dump.query_rows, DUMP_ROWS);
    assert_int_equal(dump.ignored, 0);
    static uint16_t entry[2 * LAYERS][TOKENS * KV_HEADS * WIDTH];
    quality_dump_load(&dump, entry);
    assert_memory_equal(entry[0], k[0], sizeof k[0]);
    assert_memory_equal(entry[1], v[0], sizeof v[0]);
    assert_memory_equal(entry[2], k[1], sizeof k[1]);
    /* Three of ten rows: the middles of thirds, head by head. */
    static const uint32_t middles[] = {1, 5, 8};
    float few[LAYERS][HEADS][3][WIDTH];
    quality_dump_load_queries(&dump, 3, &few[0][0][0][0]);
    for (size_t i = 0; i < (size_t)LAYERS * HEADS * 3; i++) {
        size_t l = i / 3 / HEADS, h = i / 3 % HEADS, r = i % 3;
        assert_memory_equal(few[l][h][r], q[l] + (middles[r] * HEADS + h) * WIDTH,
                            sizeof few[0][0][0]);
    }
    static float all[DUMP_ROWS * HEADS * WIDTH];
    quality_dump_layer_queries(&dump, 1, all);
    assert_memory_equal(all, q[1], sizeof all);
    quality_dump_close(&dump);
    assert_int_equal(unlink(path), 0);
}
