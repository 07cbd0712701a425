/* SPDX-License-Identifier: Apache-2.0 */
/*
 * half.h - fp16 and bf16 to float and back, rounding to nearest even, in integer arithmetic: the
 * specification that vector instructions (F16C, AVX-512) follow bit for bit. NaN stays NaN.
 * Re-entrant; inline.
 */
#ifndef BASE_HALF_H
#define BASE_HALF_H

#include <stdint.h>
#include <string.h>

/* The bits of a float and back, without a change of type that C leaves undefined. */
static inline uint32_t half_float_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float half_bits_float(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* fp16 to float: exact, so there is nothing to round. */
static inline float half_to_float(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
    uint32_t size = (uint32_t)(half & 0x7fffu) << 13;
    /* 2^112 moves the exponent's bias, subnormals included: their product is exact. */
    float value = half_bits_float(size) * half_bits_float(0x77800000u);
    uint32_t bits = half_float_bits(value);
    if (size >= 0x0f800000u) bits = size | 0x7f800000u; /* infinity and NaN */
    if (size > 0x0f800000u) bits |= 0x00400000u;        /* NaN becomes quiet, as in hardware */
    return half_bits_float(bits | sign);
}

/* float to fp16, to the nearest, ties to even. Values that pass its range become infinite. */
static inline uint16_t half_from_float(float value)
{
    uint32_t bits = half_float_bits(value);
    uint32_t sign = (bits >> 16) & 0x8000u;
    uint32_t size = bits & 0x7fffffffu;
    uint32_t out;
    if (size > 0x7f800000u) {
        out = 0x7e00u | ((size >> 13) & 0x1ffu);
    } else if (size >= 0x477ff000u) {
        out = 0x7c00u; /* 65520 and more round to infinity */
    } else if (size < 0x38800000u) {
        /* Below 2^-14: adding 0.5 rounds to the subnormal step of 2^-24. */
        out = half_float_bits(half_bits_float(size) + 0.5f) - 0x3f000000u;
    } else {
        out = (size - 0x38000000u + 0xfffu + ((size >> 13) & 1u)) >> 13;
    }
    return (uint16_t)(sign | out);
}

/* Rounds to what fp16 can hold. */
static inline float half_round(float value)
{
    return half_to_float(half_from_float(value));
}

/* bf16 is the upper half of a float. */
static inline float half_bf16_to_float(uint16_t bf16)
{
    return half_bits_float((uint32_t)bf16 << 16);
}

/* float to bf16, the same way. A NaN keeps its upper bits and becomes quiet. */
static inline uint16_t half_bf16_from_float(float value)
{
    uint32_t bits = half_float_bits(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(bits >> 16 | 0x40u);
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

/* fp8 is E4M3 without infinities: 1 bit of sign, 4 of exponent with a bias of 7, 3 of mantissa; the
 * largest size is 448, and with all bits set but the sign it is NaN. To float: exact. */
static inline float half_fp8_to_float(uint8_t fp8)
{
    /* Masks, and no branches over sums of floats, so that loops of this vectorise. */
    uint32_t size = fp8 & 0x7fu;
    uint32_t below = 0u - (uint32_t)(size < 8u);
    uint32_t nan = size == 0x7fu ? 0x7fc00000u : 0;
    /* Below 2^-6 the exponent is that of 2^-6, which stands for the bit that is not there. */
    float small = half_bits_float((size << 20) + 0x3c800000u) - 0.015625f;
    uint32_t bits = (half_float_bits(small) & below) | (((size << 20) + 0x3c000000u) & ~below);
    return half_bits_float(bits | nan | (fp8 & 0x80u) << 24);
}

/* float to fp8, to the nearest, ties to even. Larger sizes become 448, infinity too. */
static inline uint8_t half_fp8_from_float(float value)
{
    uint32_t bits = half_float_bits(value);
    uint32_t size = bits & 0x7fffffffu;
    uint32_t kept = size < 0x43e00000u ? size : 0x43e00000u;
    /* Below 2^-6: adding 2^14 rounds to the subnormal step of 2^-9. */
    uint32_t small = half_float_bits(half_bits_float(kept) + 16384.0f) - 0x46800000u;
    uint32_t normal = (kept - 0x3c000000u + 0x7ffffu + ((kept >> 20) & 1u)) >> 20;
    uint32_t below = 0u - (uint32_t)(kept < 0x3c800000u);
    uint32_t nan = size > 0x7f800000u ? 0x7fu : 0;
    return (uint8_t)((bits >> 24 & 0x80u) | (small & below) | (normal & ~below) | nan);
}

/* The nearest integer, ties to even, of |value| < 2^22. */
static inline int32_t half_round_integer(float value)
{
    float moved = value + 12582912.0f; /* 1.5 * 2^23: the sum has no fraction bits */
    return (int32_t)(half_float_bits(moved) - 0x4b400000u);
}

#endif
