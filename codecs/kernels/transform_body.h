/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transform_body.h - the functions of transform_kernels.h in plain loops over lanes, which the
 * compiler makes vectors of; compiled once per instruction set. The including file defines
 * TRANSFORM_TARGET and TRANSFORM_TABLE, and TRANSFORM_MULTIPLY, TRANSFORM_SPARSE, or
 * TRANSFORM_TO_COLUMNS and TRANSFORM_TO_ROWS, where it has its own, and TRANSFORM_NARROW where
 * instructions narrow to fp16: it returns how many elements they did. Products and sums are
 * separate statements, so that no compiler fuses them. Not a header for others.
 */
#include "base/half.h"
#include "codecs/drop_number.h"
#include "transform_kernels.h"

#include <assert.h>
#include <string.h>

#define BODY_ROUNDER 12582912.0f /* 1.5 * 2^23: adding it rounds to an integer */

/* Tokens with the lanes that are there for rounding up. */
static inline uint32_t body_lanes(uint32_t tokens)
{
    return (tokens + TRANSFORM_LANE_GROUP - 1) / TRANSFORM_LANE_GROUP * TRANSFORM_LANE_GROUP;
}

#if !defined(TRANSFORM_MULTIPLY)
#define TRANSFORM_MULTIPLY body_multiply
TRANSFORM_TARGET static void body_multiply(const transform_product *product)
{
    const uint32_t lanes = body_lanes(product->tokens);
    assert(product->plain == product->row_count);
    for (uint32_t o = 0; o < product->count; o++) {
        float *restrict out = product->out + (uint64_t)o * TRANSFORM_LANES;
        memset(out, 0, lanes * sizeof *out);
        for (uint32_t k = 0; k < product->row_count; k++) {
            const uint64_t row = product->rows != NULL ? product->rows[k] : k;
            const float *restrict in = product->in + (uint64_t)k * TRANSFORM_LANES;
            const float factor =
                half_bf16_to_float(product->matrix[row * product->width + product->first + o]);
            for (uint32_t t = 0; t < lanes; t++) {
                const float term = factor * in[t];
                out[t] = out[t] + term;
            }
        }
    }
}
#endif

/* Sixteen lanes as one vector, which the compiler cuts to the registers that there are. */
typedef float body_vector __attribute__((vector_size(TRANSFORM_LANE_GROUP * sizeof(float))));

#define BODY_TAKE(vector, from, lanes)                                                             \
    do {                                                                                           \
        if ((lanes) == TRANSFORM_LANE_GROUP)                                                       \
            memcpy(&(vector), from, sizeof(vector));                                               \
        else                                                                                       \
            (vector) = (body_vector){0}, memcpy(&(vector), from, (lanes) * sizeof(float));         \
    } while (0)
#define BODY_KEEP(vector, to, lanes)                                                               \
    memcpy(to, &(vector),                                                                          \
           (lanes) == TRANSFORM_LANE_GROUP ? sizeof(vector) : (lanes) * sizeof(float))

TRANSFORM_TARGET static void body_along(const float weights[16][8], const float *in,
                                        uint64_t in_stride, uint32_t count, float *out,
                                        uint64_t out_stride)
{
    for (uint32_t first = 0; first < count; first += TRANSFORM_LANE_GROUP) {
        const uint32_t left = count - first;
        const uint32_t lanes = left < TRANSFORM_LANE_GROUP ? left : TRANSFORM_LANE_GROUP;
        body_vector sums[8], differences[8];
#pragma GCC unroll 8
        for (uint32_t t = 0; t < 8; t++) {
            body_vector x, y;
            BODY_TAKE(x, in + t * in_stride + first, lanes);
            BODY_TAKE(y, in + (15 - t) * in_stride + first, lanes);
            sums[t] = x + y;
            differences[t] = x - y;
        }
#pragma GCC unroll 16
        for (uint32_t f = 0; f < 16; f++) {
            const body_vector *taken = f % 2 == 0 ? sums : differences;
            body_vector sum = weights[f][0] * taken[0];
#pragma GCC unroll 8
            for (uint32_t t = 1; t < 8; t++) {
                const body_vector term = weights[f][t] * taken[t];
                sum = sum + term;
            }
            BODY_KEEP(sum, out + f * out_stride + first, lanes);
        }
    }
}

TRANSFORM_TARGET static void body_back(const float weights[16][8], const float *in,
                                       uint64_t in_stride, uint32_t count, float *out,
                                       uint64_t out_stride)
{
    for (uint32_t first = 0; first < count; first += TRANSFORM_LANE_GROUP) {
        const uint32_t left = count - first;
        const uint32_t lanes = left < TRANSFORM_LANE_GROUP ? left : TRANSFORM_LANE_GROUP;
        body_vector held[16];
#pragma GCC unroll 16
        for (uint32_t f = 0; f < 16; f++)
            BODY_TAKE(held[f], in + f * in_stride + first, lanes);
#pragma GCC unroll 8
        for (uint32_t t = 0; t < 8; t++) {
            body_vector even = weights[0][t] * held[0], odd = weights[1][t] * held[1];
#pragma GCC unroll 7
            for (uint32_t f = 2; f < 16; f += 2) {
                const body_vector one = weights[f][t] * held[f];
                const body_vector other = weights[f + 1][t] * held[f + 1];
                even = even + one;
                odd = odd + other;
            }
            const body_vector x = even + odd, y = even - odd;
            BODY_KEEP(x, out + t * out_stride + first, lanes);
            BODY_KEEP(y, out + (15 - t) * out_stride + first, lanes);
        }
    }
}

TRANSFORM_TARGET static bool body_centre(float *restrict in, float mean, uint32_t tokens)
{
    const uint32_t lanes = body_lanes(tokens);
    uint32_t outside = 0;
    for (uint32_t t = 0; t < lanes; t++) {
        const float distance = in[t] - mean;
        uint32_t bits;
        memcpy(&bits, &distance, sizeof bits);
        outside |= (bits & 0x7fffffffu) >= (127u + 60u) << 23 ? 1u : 0u;
        bits = (bits + 0x7fu + (bits >> 8 & 1u)) & 0xffffff00u;
        bits = (bits & 0x7fffffffu) < (127u - 40u) << 23 ? 0u : bits;
        memcpy(&in[t], &bits, sizeof bits);
    }
    return outside == 0;
}

TRANSFORM_TARGET static bool body_quantise(const float *restrict values,
                                           const transform_rounding *rounding, uint32_t tokens,
                                           int16_t *restrict codes)
{
    const uint32_t lanes = body_lanes(tokens);
    const float inverse = rounding->inverse;
    const float third = rounding->third != 0.0f ? rounding->third : 1.0f;
    uint32_t outside = 0;
    for (uint32_t t = 0; t < lanes; t++) {
        float y = values[t] * inverse;
        y = y < 2097152.0f ? y : 2097152.0f;
        y = y > -2097152.0f ? y : -2097152.0f;
        y = y + BODY_ROUNDER;
        y = y - BODY_ROUNDER;
        /* By 1 nothing changes; by a power of 1/3 no integer comes near a tie. */
        y = y * third;
        y = y + BODY_ROUNDER;
        y = y - BODY_ROUNDER;
        const int32_t code = (int32_t)y;
        outside |= code > INT16_MAX || code < -INT16_MAX ? 1u : 0u;
        codes[t] = (int16_t)code;
    }
    return outside == 0;
}

/* In three loops, so that the compiler makes vectors of the series. */
TRANSFORM_TARGET static void body_angles(uint64_t turn, uint64_t first, uint64_t stride,
                                         float *restrict c, float *restrict s)
{
    double x[TRANSFORM_LANES], cosines[TRANSFORM_LANES], sines[TRANSFORM_LANES];
    uint32_t quarters[TRANSFORM_LANES];
    for (uint32_t t = 0; t < TRANSFORM_LANES; t++)
        x[t] = drop_angle(turn * (first + t), &quarters[t]);
    for (uint32_t t = 0; t < TRANSFORM_LANES; t++)
        drop_cos_sin_near(x[t], &cosines[t], &sines[t]);
    for (uint32_t t = 0; t < TRANSFORM_LANES; t++) {
        drop_add_quarters(quarters[t], &cosines[t], &sines[t]);
        c[t * stride] = (float)cosines[t];
        s[t * stride] = (float)sines[t];
    }
}

/* Pairs of elements, `stride` apart from the next. Products, then sums. */
TRANSFORM_TARGET static inline void body_turn_pairs(float *restrict x, float *restrict y,
                                                    const float *restrict c,
                                                    const float *restrict s, uint32_t count,
                                                    uint32_t stride)
{
    for (uint32_t i = 0; i < count; i++) {
        const float xc = x[i * stride] * c[i];
        const float ys = y[i * stride] * s[i];
        const float yc = y[i * stride] * c[i];
        const float xs = x[i * stride] * s[i];
        x[i * stride] = xc - ys;
        y[i * stride] = yc + xs;
    }
}

TRANSFORM_TARGET static void body_turn(float *restrict x, float *restrict y,
                                       const float *restrict c, const float *restrict s,
                                       uint32_t tokens)
{
    body_turn_pairs(x, y, c, s, body_lanes(tokens), 1);
}

TRANSFORM_TARGET static void body_widen(const int16_t *restrict codes, uint32_t tokens,
                                        float *restrict values)
{
    const uint32_t lanes = body_lanes(tokens);
    for (uint32_t t = 0; t < lanes; t++)
        values[t] = (float)codes[t];
}

#if !defined(TRANSFORM_TO_ROWS)
#define TRANSFORM_TO_ROWS    body_to_rows
#define TRANSFORM_TO_COLUMNS body_to_columns
TRANSFORM_TARGET static void body_to_columns(const float *restrict rows, uint32_t count,
                                             float *restrict columns)
{
    for (uint32_t e = 0; e < count; e++) {
        for (uint32_t t = 0; t < TRANSFORM_LANE_GROUP; t++)
            columns[(uint64_t)e * TRANSFORM_LANES + t] = rows[(uint64_t)t * count + e];
    }
}

TRANSFORM_TARGET static void body_to_rows(const float *restrict columns, uint32_t count,
                                          float *restrict rows)
{
    for (uint32_t t = 0; t < TRANSFORM_LANE_GROUP; t++) {
        for (uint32_t e = 0; e < count; e++)
            rows[(uint64_t)t * count + e] = columns[(uint64_t)e * TRANSFORM_LANES + t];
    }
}
#endif

TRANSFORM_TARGET static void body_restore(float *restrict values, float step, float mean,
                                          uint32_t tokens)
{
    const uint32_t lanes = body_lanes(tokens);
    for (uint32_t t = 0; t < lanes; t++) {
        const float scaled = values[t] * step;
        values[t] = scaled + mean;
    }
}

TRANSFORM_TARGET static void body_restore_row(float *restrict row, float step,
                                              const float *restrict means, uint32_t count)
{
    for (uint32_t e = 0; e < count; e++) {
        const float scaled = row[e] * step;
        row[e] = scaled + means[e];
    }
}

TRANSFORM_TARGET static void body_turn_row(float *restrict row, const float *restrict c,
                                           const float *restrict s, uint32_t pairs, bool apart)
{
    if (apart)
        body_turn_pairs(row, row + pairs, c, s, pairs, 1);
    else
        body_turn_pairs(row, row + 1, c, s, pairs, 2);
}

/* Finite, and of at most 65504. */
static inline uint16_t body_fp16(float value)
{
    const uint32_t bits = half_float_bits(value);
    const uint32_t size = bits & 0x7fffffffu;
    const uint32_t normal = (size - 0x38000000u + 0xfffu + (size >> 13 & 1u)) >> 13;
    /* Below 2^-14 the adder of 0.5 rounds to the subnormal step of 2^-24. */
    const uint32_t small = half_float_bits(half_bits_float(size) + 0.5f) - 0x3f000000u;
    return (uint16_t)((size < 0x38800000u ? small : normal) | (bits >> 16 & 0x8000u));
}

#if !defined(TRANSFORM_NARROW)
#define TRANSFORM_NARROW(values, count, target) 0
#endif
TRANSFORM_TARGET static void body_narrow(uint8_t dtype, const float *restrict values,
                                         uint32_t count, uint8_t *restrict target)
{
    if (dtype == KVT_DTYPE_FP32) {
        memcpy(target, values, count * sizeof *values);
        return;
    }
    for (uint32_t i = 0; dtype == KVT_DTYPE_BF16 && i < count; i++) {
        const uint32_t bits = half_float_bits(values[i]);
        const uint16_t half = (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
        memcpy(target + 2 * (uint64_t)i, &half, sizeof half);
    }
    for (uint32_t i = dtype == KVT_DTYPE_FP16 ? TRANSFORM_NARROW(values, count, target) : count;
         i < count; i++) {
        float value = values[i] < 65504.0f ? values[i] : 65504.0f;
        value = value > -65504.0f ? value : -65504.0f;
        const uint16_t half = body_fp16(value);
        memcpy(target + 2 * (uint64_t)i, &half, sizeof half);
    }
}

#define TRANSFORM_SHARED                                                                           \
    .angles = body_angles, .centre = body_centre, .quantise = body_quantise, .turn = body_turn,    \
    .widen = body_widen, .to_columns = TRANSFORM_TO_COLUMNS, .to_rows = TRANSFORM_TO_ROWS,         \
    .restore = body_restore, .restore_row = body_restore_row, .turn_row = body_turn_row,           \
    .along = body_along, .back = body_back, .narrow = body_narrow

#if !defined(TRANSFORM_SPARSE)
#define TRANSFORM_SPARSE
#endif
const transform_kernels TRANSFORM_TABLE = {TRANSFORM_SPARSE TRANSFORM_SHARED,
                                           .multiply = TRANSFORM_MULTIPLY};
