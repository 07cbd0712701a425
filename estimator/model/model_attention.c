/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model_attention.c - softmax attention of one head over a block of queries, for the forward pass
 * and for the probes. Thread rule: any thread, given buffers of its own.
 */
#include "estimator/model/model_internal.h"

#include <cblas.h>
#include <math.h>
#include <string.h>

enum { ATTENTION_LANES = 16 };

/* Sixteen at a time, whatever the machine's registers hold: sums are in the same order and results
 * the same bytes on every instruction set. Passed by pointer, as by value is a matter of the ABI.
 */
typedef float attention_floats __attribute__((vector_size(4 * ATTENTION_LANES)));
typedef uint32_t attention_bits __attribute__((vector_size(4 * ATTENTION_LANES)));

#define ATTENTION_INLINE static inline __attribute__((always_inline))

/* *x = most > *x ? most : *x in every lane. */
ATTENTION_INLINE void attention_raise(attention_floats *x, const attention_floats *most)
{
    attention_bits larger = (attention_bits)(*most > *x);
    *x = (attention_floats)((larger & (attention_bits)*most) | (~larger & (attention_bits)*x));
}

/* e^x for x <= 0 within 2 units in the last place; below -87 the smallest normal numbers. */
ATTENTION_INLINE void attention_exp(attention_floats *x)
{
    const attention_floats lowest = (attention_floats){0.0f} - 87.0f;
    attention_raise(x, &lowest);
    /* Adding 1.5 * 2^23 rounds to an integer, which then stands in the low bits. */
    attention_floats shifted = *x * 1.44269504f + 12582912.0f;
    attention_floats whole = shifted - 12582912.0f;
    attention_floats r = (*x - whole * 0.693359375f) + whole * 2.12194440e-4f;
    attention_floats p = r * (1.0f / 5040.0f) + (1.0f / 720.0f);
    p = p * r + (1.0f / 120.0f);
    p = p * r + (1.0f / 24.0f);
    p = p * r + (1.0f / 6.0f);
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    attention_bits power = ((attention_bits)shifted - 0x4b400000u + 127u) << 23;
    *x = p * (attention_floats)power;
}

/* Lanes [at, at + 16) of a row; those from `count` on become `filler`. */
ATTENTION_INLINE void attention_load(const float *row, uint32_t at, uint32_t count, float filler,
                                     attention_floats *out)
{
    uint32_t left = count - at;
    if (left >= ATTENTION_LANES) {
        memcpy(out, row + at, sizeof *out);
    } else {
        *out = (attention_floats){0.0f} + filler;
        memcpy(out, row + at, left * sizeof *row);
    }
}

ATTENTION_INLINE void attention_store(float *row, uint32_t at, uint32_t count,
                                      const attention_floats *value)
{
    uint32_t left = count - at;
    if (left >= ATTENTION_LANES) {
        memcpy(row + at, value, sizeof *value);
    } else {
        memcpy(row + at, value, left * sizeof *row);
    }
}

/* One row of scores: how many tokens it sees, and which of the first ones are dropped. */
typedef struct attention_row {
    float *scores;
    uint32_t visible;
    uint32_t masked; /* tokens that `kept` is about; 0: none */
    const uint8_t *kept;
    float scale;
    float peak; /* filled: the largest weight */
} attention_row;

ATTENTION_INLINE float attention_max(const attention_row *row)
{
    attention_floats lanes = (attention_floats){0.0f} - INFINITY, next;
    float most = -INFINITY;
    for (uint32_t i = 0; i < row->visible; i += ATTENTION_LANES) {
        attention_load(row->scores, i, row->visible, -INFINITY, &next);
        attention_raise(&lanes, &next);
    }
    for (unsigned lane = 0; lane < ATTENTION_LANES; lane++)
        most = lanes[lane] > most ? lanes[lane] : most;
    return most;
}

/* Turns the visible scores into weights that sum to 1; a dropped token's is exactly 0. */
ATTENTION_INLINE void attention_softmax_body(attention_row *row)
{
    attention_floats sums = {0.0f}, next;
    float *scores = row->scores;
    double sum = 0.0;
    for (uint32_t i = 0; i < row->masked; i++)
        scores[i] = row->kept[i] != 0 ? scores[i] : -INFINITY;
    float most = attention_max(row);
    for (uint32_t i = 0; i < row->visible; i += ATTENTION_LANES) {
        attention_load(scores, i, row->visible, most, &next);
        next = (next - most) * row->scale;
        attention_exp(&next);
        attention_store(scores, i, row->visible, &next);
    }
    for (uint32_t i = 0; i < row->masked; i++)
        scores[i] = row->kept[i] != 0 && most > -INFINITY ? scores[i] : 0.0f;
    for (uint32_t i = 0; i < row->visible; i += ATTENTION_LANES) {
        attention_load(scores, i, row->visible, 0.0f, &next);
        sums += next;
    }
    for (unsigned lane = 0; lane < ATTENTION_LANES; lane++)
        sum += (double)sums[lane];
    float inverse = sum == 0.0 ? 0.0f : (float)(1.0 / sum);
    row->peak = inverse; /* e^0 is exactly 1 */
    for (uint32_t i = 0; i < row->visible; i += ATTENTION_LANES) {
        attention_load(scores, i, row->visible, 0.0f, &next);
        next *= inverse;
        attention_store(scores, i, row->visible, &next);
    }
}

static void attention_softmax_plain(attention_row *row)
{
    attention_softmax_body(row);
}

#if defined(__x86_64__)
/* Compilers leave the upper halves of the registers dirty when they do not optimise, and every SSE
 * instruction after that is slow: hence vzeroupper by hand. */
__attribute__((target("avx2"))) static void attention_softmax_avx2(attention_row *row)
{
    attention_softmax_body(row);
    __builtin_ia32_vzeroupper();
}

__attribute__((target("avx512f"))) static void attention_softmax_avx512(attention_row *row)
{
    attention_softmax_body(row);
    __builtin_ia32_vzeroupper();
}
#endif

typedef void (*attention_softmax)(attention_row *row);

static attention_softmax attention_choose(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) return attention_softmax_avx512;
    if (__builtin_cpu_supports("avx2")) return attention_softmax_avx2;
#endif
    return attention_softmax_plain;
}

void model_attend_block(const model_attend *a)
{
    float scale = 1.0f / sqrtf((float)a->head_dim);
    int rows = (int)a->rows, tokens = (int)a->tokens, width = (int)a->head_dim;
    int query_stride = (int)a->query_stride, kv_stride = (int)a->kv_stride;
    if (a->rows == 0) return;
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, rows, tokens, width, 1.0f, a->queries,
                query_stride, a->keys, kv_stride, 0.0f, a->weights, tokens);
    attention_softmax softmax = attention_choose();
    for (uint32_t r = 0; r < a->rows; r++) {
        uint64_t visible = a->visible + (uint64_t)r * a->step;
        attention_row row = {.scores = a->weights + (size_t)r * a->tokens,
                             .visible = visible < a->tokens ? (uint32_t)visible : a->tokens,
                             .kept = a->kept,
                             .scale = scale};
        if (a->kept != NULL)
            row.masked = a->kept_tokens < row.visible ? a->kept_tokens : row.visible;
        softmax(&row);
        if (a->peaks != NULL) a->peaks[r] = row.peak;
        memset(row.scores + row.visible, 0, (a->tokens - row.visible) * sizeof *row.scores);
    }
    if (a->out == NULL) return;
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, rows, width, tokens, 1.0f, a->weights,
                tokens, a->values, kv_stride, 0.0f, a->out, query_stride);
}
