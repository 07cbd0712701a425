/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sparse_kernels.h - the inner loops of clustering, scoring and attention, one table per
 * instruction set.
 *
 * Sums of integers are exact; sums of floats run in 8 lanes, element i in lane i % 8, and are added
 * up in the fixed order of sparse_lanes_sum. The room is built without contraction of a*b+c and the
 * vector bodies use none, so all tables give the same bits: the scalar bodies are the
 * specification. Re-entrant.
 */
#ifndef SPARSE_KERNELS_H
#define SPARSE_KERNELS_H

#include "base/half.h"
#include "codecs/kernels/cpu.h"
#include "index.h"

#include <math.h>

#define SPARSE_LANES       8u
#define SPARSE_BLEND       64u   /* rows that are blended at once, at most */
#define SPARSE_ELEMENT_MAX 1e30f /* sums of a segment's elements stay finite */

/* Whether queries may be scored and attended with: each element is finite and within
 * SPARSE_ELEMENT_MAX. Every call that takes queries from outside asks this. */
static inline bool sparse_queries_are_sound(const float *queries, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (!(fabsf(queries[i]) <= SPARSE_ELEMENT_MAX)) return false; /* NaN as well */
    return true;
}

/* The same of rows of K or V, packed: each element is finite and within SPARSE_ELEMENT_MAX, so that
 * no mean and no sum of them passes a float. Every call that takes rows from outside asks this. */
bool sparse_rows_are_sound(const void *rows, uint64_t bytes, uint8_t dtype);

typedef struct sparse_kernels {
    /* Elements of one row as floats; NaN and what passes SPARSE_ELEMENT_MAX as 0. */
    void (*widen)(const void *row, uint32_t count, uint8_t dtype, float *out);

    /*
     * The nearest centroid of every row: the largest 2 * row * centroid - norm, the lowest number
     * of equal ones.
     *   rows       [tokens][head_dim]
     *   centroids  [blocks][head_dim / 2][SPARSE_BLOCK][2]
     *   norms      [blocks * SPARSE_BLOCK]; INT32_MAX: no centroid
     */
    void (*assign)(const int16_t *rows, uint32_t tokens, uint32_t head_dim,
                   const int16_t *centroids, const int32_t *norms, uint32_t blocks,
                   uint16_t *owner);

    /* Scores of `group` queries, [group][head_dim], at the rows of a list, or with NULL at the
     * first ones: `count` of them, a multiple of 16. out, `width` apart, is sum * unit. */
    void (*score)(const int8_t *rows, const uint32_t *list, uint32_t count, uint32_t head_dim,
                  const int16_t *folded, uint32_t group, const float *unit, size_t width,
                  float *out);

    /*
     * Sums of all sketches, and the largest one of each query.
     *   sketches  [blocks][axes / 4][SPARSE_BLOCK][2], as index.h has them
     *   folded    [axes / 2][group][4], each pair twice; a query's add up to 2184 in size
     *   sums      [group][width];  peaks  [group]
     */
    void (*sketch)(const uint8_t *sketches, uint32_t blocks, uint32_t axes, const int8_t *folded,
                   uint32_t group, size_t width, int16_t *sums, int16_t *peaks);

    /* The key of each lane: its largest sum + offset over the queries, saturated. count is a
     * multiple of 16. */
    void (*keys)(const int16_t *sums, size_t width, uint32_t count, const int16_t *offset,
                 uint32_t group, int16_t *out);

    /* Lists, ascending, the lanes whose key is `least` or more; returns how many. count is a
     * multiple of 16. */
    uint32_t (*sieve)(const int16_t *keys, uint32_t count, int16_t least, uint32_t *out);

    /* scores += sparse_lift(deviation * scatter); width is a multiple of 16. */
    void (*lift)(const float *scatter, float deviation, uint32_t width, float *scores);

    /* Turns scores into tokens * exp(score - largest); returns their sum. width is a multiple of
     * 16. */
    float (*weigh)(float *scores, const uint32_t *tokens, uint32_t width, float largest);

    /* Largest score of those that have tokens; -infinity without any. */
    float (*largest)(const float *scores, const uint32_t *tokens, uint32_t width);

    /* sums += row * share; width is a multiple of 16. */
    void (*add)(const float *row, float share, uint32_t width, float *sums);

    /*
     * output [group][head_dim] += weight [group][SPARSE_BLEND] * rows[i] for the first `count` i. A
     * query's weights are taken in steps of its largest one / 32767, so sums are exact ones of
     * integers.
     */
    void (*blend)(const int8_t *const *rows, uint32_t count, uint32_t head_dim, const float *weight,
                  uint32_t group, float *output);

    /* out[t] = scale * (query * row t) of `tokens` rows stride bytes apart. */
    void (*dots)(const void *rows, uint64_t stride, uint32_t tokens, uint8_t dtype,
                 const float *query, uint32_t head_dim, float scale, float *out);

    /* sums[d] += weight[t] * row t[d]. */
    void (*combine)(const void *rows, uint64_t stride, uint32_t tokens, uint8_t dtype,
                    const float *weight, uint32_t head_dim, float *sums);
} sparse_kernels;

const sparse_kernels *sparse_kernels_in_use(void);
extern const sparse_kernels sparse_kernels_scalar;
#if defined(__x86_64__)
extern const sparse_kernels sparse_kernels_avx2;
#endif

/* A number within -most .. most; NaN becomes most. fmaxf and fminf would be calls. */
static inline float sparse_within(float value, float most)
{
    const float low = value < most ? value : most;
    return low > -most ? low : -most;
}

/* The order in which 8 lanes are added. */
static inline float sparse_lanes_sum(const float lane[SPARSE_LANES])
{
    const float a = lane[0] + lane[4], b = lane[1] + lane[5];
    const float c = lane[2] + lane[6], d = lane[3] + lane[7];
    return (a + c) + (b + d);
}

/* The weights of one query as steps, zeros behind, and the value of a step. */
static inline float sparse_blend_steps(const float *weight, uint32_t count,
                                       int16_t steps[SPARSE_BLEND])
{
    float most = 0.0f;
    for (uint32_t i = 0; i < count; i++)
        most = fabsf(weight[i]) > most ? fabsf(weight[i]) : most;
    const float inverse = most >= 1e-30f ? 32767.0f / most : 0.0f;
    for (uint32_t i = 0; i < SPARSE_BLEND; i++)
        steps[i] = i < count ? (int16_t)half_round_integer(weight[i] * inverse) : 0;
    return most >= 1e-30f ? most / 32767.0f : 0.0f;
}

/* Constants of 2^x on [-1/2, 1/2], Taylor in x ln 2; relative error below 2e-7. */
#define SPARSE_LOG2E 0x1.715476p+0f
#define SPARSE_EXP_1 0x1.62e43p-1f
#define SPARSE_EXP_2 0x1.ebfbep-3f
#define SPARSE_EXP_3 0x1.c6b08ep-5f
#define SPARSE_EXP_4 0x1.3b2ab6p-7f
#define SPARSE_EXP_5 0x1.5d87fep-10f
#define SPARSE_EXP_6 0x1.43091p-13f

/* How far a cluster's log of the mean of exp(score) is above its centroid's score, when its scores
 * deviate by the square root of x: x / 2 of normal ones that are many, less of a few. */
#define SPARSE_LIFT_MAX 12.0f

static inline float sparse_lift(float x)
{
    return 0.5f * x / (1.0f + x * (1.0f / SPARSE_LIFT_MAX));
}

/* exp(x) for x <= 0: 0 below -87. The vector bodies do the same operations. */
static inline float sparse_exp(float x)
{
    float t = x * SPARSE_LOG2E;
    if (!(t > -126.0f)) return 0.0f;
    const int32_t whole = half_round_integer(t);
    const float f = t - (float)whole;
    float p = SPARSE_EXP_6;
    p = p * f + SPARSE_EXP_5;
    p = p * f + SPARSE_EXP_4;
    p = p * f + SPARSE_EXP_3;
    p = p * f + SPARSE_EXP_2;
    p = p * f + SPARSE_EXP_1;
    p = p * f + 1.0f;
    return p * half_bits_float((uint32_t)(whole + 127) << 23);
}

#endif
