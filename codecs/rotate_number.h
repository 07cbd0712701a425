/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rotate_number.h - fp16, bf16 and fp32 numbers one at a time, without libm and without the
 * machine's conversions, so that every instruction set and compiler gives the same bits.
 *
 * All roundings are to nearest even. Thread rule: pure functions.
 */
#ifndef CODECS_ROTATE_NUMBER_H
#define CODECS_ROTATE_NUMBER_H

#include <kvterrace/types.h>

#include <string.h>

static inline uint32_t rotate_float_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float rotate_bits_float(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline float rotate_from_bf16(uint16_t half)
{
    return rotate_bits_float((uint32_t)half << 16);
}

static inline float rotate_from_fp16(uint16_t half)
{
    const uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
    const uint32_t size = half & 0x7fffu;
    if (size >= 0x7c00u) return rotate_bits_float(sign | 0x7f800000u | (size & 0x3ffu) << 13);
    if (size >= 0x0400u) return rotate_bits_float(sign | ((size << 13) + (112u << 23)));
    /* Subnormal: size steps of 2^-24, exact in fp32. */
    return rotate_bits_float(sign | rotate_float_bits((float)size * 0x1p-24f));
}

static inline uint16_t rotate_to_bf16(float value)
{
    const uint32_t bits = rotate_float_bits(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(bits >> 16 | 0x40u);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

static inline uint16_t rotate_to_fp16(float value)
{
    const uint32_t bits = rotate_float_bits(value);
    const uint32_t sign = bits >> 16 & 0x8000u;
    const uint32_t size = bits & 0x7fffffffu;
    if (size > 0x7f800000u) return (uint16_t)(sign | 0x7e00u);
    if (size >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* 65520 rounds to infinity */
    if (size >= 113u << 23) {
        return (uint16_t)(sign | ((size - (112u << 23) + 0xfffu + (size >> 13 & 1u)) >> 13));
    }
    /* Below 2^-14: next to 0.5 a float has the step of 2^-24 that fp16 has here. */
    const float moved = rotate_bits_float(size) + 0.5f;
    return (uint16_t)(sign | (rotate_float_bits(moved) - 0x3f000000u));
}

/* Element `index` of an array of dtype FP16, BF16 or FP32; no alignment is needed. */
static inline float rotate_element_load(const uint8_t *source, uint64_t index, uint8_t dtype)
{
    uint16_t half;
    if (dtype == KVT_DTYPE_FP32) {
        float value;
        memcpy(&value, source + index * sizeof value, sizeof value);
        return value;
    }
    memcpy(&half, source + index * sizeof half, sizeof half);
    return dtype == KVT_DTYPE_BF16 ? rotate_from_bf16(half) : rotate_from_fp16(half);
}

static inline void rotate_element_store(uint8_t *target, uint64_t index, uint8_t dtype, float value)
{
    if (dtype == KVT_DTYPE_FP32) {
        memcpy(target + index * sizeof value, &value, sizeof value);
        return;
    }
    const uint16_t half = dtype == KVT_DTYPE_BF16 ? rotate_to_bf16(value) : rotate_to_fp16(value);
    memcpy(target + index * sizeof half, &half, sizeof half);
}

#endif
