/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rotate_kernel.h - the loops of codec 7, one set per instruction set. rotate_scalar.c is the
 * specification; the others give the same bytes. Private to the rotate files. Re-entrant.
 */
#ifndef CODECS_ROTATE_KERNEL_H
#define CODECS_ROTATE_KERNEL_H

#include "codecs/kernels/cpu.h"
#include "codecs/rotate.h"
#include "codecs/rotate_number.h"

/* Products and sums stay apart: gcc keeps them so in ISO mode, clang asks for the pragma. */
#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#endif

/* Groups of equal length that follow each other in the matrix. */
typedef struct rotate_run {
    uint64_t groups;
    uint32_t length; /* 8 .. ROTATE_GROUP_MAX, a multiple of 8 */
    uint8_t bits;
    uint8_t dtype;
} rotate_run;

/* Writes a scale and length * bits / 8 code bytes per group; returns how many groups are raw. */
typedef uint64_t rotate_encode_run(const rotate_run *run, const uint8_t *source, uint8_t *scales,
                                   uint8_t *codes);

/* Decodes codes under any scales of 0 .. ROTATE_SCALE_RAW; what a raw group gets has no meaning. */
typedef void rotate_decode_run(const rotate_run *run, const uint8_t *scales, const uint8_t *codes,
                               uint8_t *target);

rotate_encode_run rotate_encode_run_scalar;
rotate_decode_run rotate_decode_run_scalar;
#if defined(__x86_64__)
rotate_encode_run rotate_encode_run_avx2;
rotate_decode_run rotate_decode_run_avx2;
rotate_encode_run rotate_encode_run_avx512;
rotate_decode_run rotate_decode_run_avx512;
#endif

/* 1 / sqrt(n) in fp32 for a block of n = 8, 16, .. 256. */
static inline float rotate_block_factor(uint32_t n)
{
    const float whole = (float)n;
    const uint32_t power = (half_float_bits(whole) >> 23) - 127u; /* n = 2^power */
    const float odd = power & 1u ? 0x1.6a09e6p-1f : 1.0f;
    return odd * half_bits_float((127u - power / 2u) << 23);
}

/* The largest block at the start of what is left of a group. */
static inline uint32_t rotate_block_first(uint32_t left)
{
    return UINT32_C(1) << (31 - __builtin_clz(left));
}

/* The scale for a largest value of a >= 0: a / 2^(bits-1), rounded up to fp16. */
static inline uint16_t rotate_scale_of(float a, uint32_t bits)
{
    const float step = a * half_bits_float((127u - (bits - 1u)) << 23);
    if (!(a > 0.0f)) return 0;
    if (step <= 0x1p-24f) return 1;
    if (step > 65504.0f) return ROTATE_SCALE_RAW;
    if (step < 0x1p-14f) {
        const float steps = step * 0x1p24f;
        const uint32_t below = (uint32_t)steps;
        return (uint16_t)(below + ((float)below < steps));
    }
    return (uint16_t)(((half_float_bits(step) + 0x1fffu) >> 13) - (112u << 10));
}

/* The scale for the bits of a, which may be those of an infinity or a NaN. */
static inline uint16_t rotate_scale_of_bits(uint32_t a, uint32_t bits)
{
    return a >= 0x7f800000u ? (uint16_t)ROTATE_SCALE_RAW
                            : rotate_scale_of(half_bits_float(a), bits);
}

/* half_to_float of a scale, which is never negative: one branch instead of a product in the chain
 * that every group waits for. */
static inline float rotate_scale_value(uint16_t scale)
{
    if (scale < 0x0400u) return (float)scale * 0x1p-24f;
    return half_bits_float(((uint32_t)scale << 13) + (112u << 23));
}

/* What y is multiplied with to count steps; 0 for a group of zeros. */
static inline float rotate_inverse_of(uint16_t scale, float factor)
{
    return scale == 0 ? 0.0f : factor / rotate_scale_value(scale);
}

/* The sum that the middle of the codes adds to the first F of a block. */
static inline int32_t rotate_block_middle(uint32_t n, uint32_t bits)
{
    return (int32_t)(((UINT32_C(1) << bits) - 1u) * (n / 2u));
}

#endif
