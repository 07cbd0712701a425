/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model_vector.h - sixteen floats at a time for the loops of the forward pass that are no products.
 *
 * Sixteen whatever the machine's registers hold: sums are in the same order and results the same
 * bytes on every instruction set. Passed by pointer, as by value is a matter of the ABI. Functions
 * that use these are compiled once per instruction set (VECTOR_VERSIONS).
 *
 * Re-entrant.
 */
#ifndef ESTIMATOR_MODEL_VECTOR_H
#define ESTIMATOR_MODEL_VECTOR_H

#include <math.h>
#include <stdint.h>
#include <string.h>

enum { VECTOR_LANES = 16 };

typedef float vector_floats __attribute__((vector_size(4 * VECTOR_LANES)));
typedef uint32_t vector_bits __attribute__((vector_size(4 * VECTOR_LANES)));

#define VECTOR_INLINE static inline __attribute__((always_inline))

/* *x = most > *x ? most : *x in every lane. */
VECTOR_INLINE void vector_raise(vector_floats *x, const vector_floats *most)
{
    vector_bits larger = (vector_bits)(*most > *x);
    *x = (vector_floats)((larger & (vector_bits)*most) | (~larger & (vector_bits)*x));
}

/* e^x for x <= 0 within 2 units in the last place; below -87 the smallest normal numbers. */
VECTOR_INLINE void vector_exp(vector_floats *x)
{
    const vector_floats lowest = (vector_floats){0.0f} - 87.0f;
    vector_raise(x, &lowest);
    /* Adding 1.5 * 2^23 rounds to an integer, which then stands in the low bits. */
    vector_floats shifted = *x * 1.44269504f + 12582912.0f;
    vector_floats whole = shifted - 12582912.0f;
    vector_floats r = (*x - whole * 0.693359375f) + whole * 2.12194440e-4f;
    vector_floats p = r * (1.0f / 5040.0f) + (1.0f / 720.0f);
    p = p * r + (1.0f / 120.0f);
    p = p * r + (1.0f / 24.0f);
    p = p * r + (1.0f / 6.0f);
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    vector_bits power = ((vector_bits)shifted - 0x4b400000u + 127u) << 23;
    *x = p * (vector_floats)power;
}

/* Lanes [at, at + 16) of a row; those from `count` on become `filler`. */
VECTOR_INLINE void vector_load(const float *row, uint32_t at, uint32_t count, float filler,
                               vector_floats *out)
{
    uint32_t left = count - at;
    if (left >= VECTOR_LANES) {
        memcpy(out, row + at, sizeof *out);
    } else {
        *out = (vector_floats){0.0f} + filler;
        memcpy(out, row + at, left * sizeof *row);
    }
}

VECTOR_INLINE void vector_store(float *row, uint32_t at, uint32_t count, const vector_floats *value)
{
    uint32_t left = count - at;
    if (left >= VECTOR_LANES) {
        memcpy(row + at, value, sizeof *value);
    } else {
        memcpy(row + at, value, left * sizeof *row);
    }
}

/*
 * NAME(row) from an always-inline NAME_body(row): for the machine that runs it. Compilers leave the
 * upper halves of the registers dirty when they do not optimise, and every SSE instruction after
 * that is slow: hence vzeroupper by hand.
 */
#if defined(__x86_64__)
#define VECTOR_VERSIONS(NAME, TYPE)                                                                \
    __attribute__((target("avx2"))) static void NAME##_avx2(TYPE *row)                             \
    {                                                                                              \
        NAME##_body(row);                                                                          \
        __builtin_ia32_vzeroupper();                                                               \
    }                                                                                              \
    __attribute__((target("avx512f"))) static void NAME##_avx512(TYPE *row)                        \
    {                                                                                              \
        NAME##_body(row);                                                                          \
        __builtin_ia32_vzeroupper();                                                               \
    }                                                                                              \
    static void NAME(TYPE *row)                                                                    \
    {                                                                                              \
        if (__builtin_cpu_supports("avx512f")) {                                                   \
            NAME##_avx512(row);                                                                    \
        } else if (__builtin_cpu_supports("avx2")) {                                               \
            NAME##_avx2(row);                                                                      \
        } else {                                                                                   \
            NAME##_body(row);                                                                      \
        }                                                                                          \
    }
#else
#define VECTOR_VERSIONS(NAME, TYPE)                                                                \
    static void NAME(TYPE *row)                                                                    \
    {                                                                                              \
        NAME##_body(row);                                                                          \
    }
#endif

#endif
