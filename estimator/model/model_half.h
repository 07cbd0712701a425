/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model_half.h - fp16 and bf16 to and from fp32, by bits: the same on every machine. Rounds to
 * nearest, ties to even; NaN stays NaN, overflow becomes infinity. Thread rule: any thread.
 */
#ifndef ESTIMATOR_MODEL_HALF_H
#define ESTIMATOR_MODEL_HALF_H

#include <stdint.h>
#include <string.h>

static inline float model_half_float(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t model_half_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float model_half_from_fp16(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
    uint32_t rest = half & 0x7fffu;
    if (rest >= 0x7c00u) return model_half_float(sign | 0x7f800000u | (rest & 0x3ffu) << 13);
    /* 2^112 moves the exponent bias from 15 to 127, and makes subnormals normal on the way. */
    float value = model_half_float(rest << 13) * 0x1p112f;
    return model_half_float(sign | model_half_bits(value));
}

static inline uint16_t model_half_to_fp16(float value)
{
    uint32_t bits = model_half_bits(value);
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000u);
    bits &= 0x7fffffffu;
    if (bits > 0x7f800000u) return (uint16_t)(sign | 0x7e00u);
    if (bits >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u);
    if (bits < 0x38800000u) {
        /* Subnormal or zero: adding 0.5 leaves multiples of 2^-24 in the low bits, rounded. */
        float shifted = model_half_float(bits) + 0.5f;
        return (uint16_t)(sign | (model_half_bits(shifted) - 0x3f000000u));
    }
    bits += 0xfffu + (bits >> 13 & 1u);
    return (uint16_t)(sign | ((bits - 0x38000000u) >> 13));
}

static inline float model_half_from_bf16(uint16_t half)
{
    return model_half_float((uint32_t)half << 16);
}

static inline uint16_t model_half_to_bf16(float value)
{
    uint32_t bits = model_half_bits(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(bits >> 16 | 0x40u);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

#endif
