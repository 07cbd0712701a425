/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rotate_scalar.c - the specification of codec 7, one group at a time. Re-entrant.
 */
#include "rotate_kernel.h"

/* Butterflies of distance h act on the part of the group that blocks of at least 2 h fill. */
static void rotate_block_floats(float *values, uint32_t length)
{
    for (uint32_t h = ROTATE_GROUP_MAX / 2; h > 0; h /= 2) {
        const uint32_t end = length & ~(2 * h - 1);
        for (uint32_t i = 0; i < end; i += 2 * h) {
            for (uint32_t j = i; j < i + h; j++) {
                const float a = values[j];
                const float b = values[j + h];
                values[j] = a + b;
                values[j + h] = a - b;
            }
        }
    }
}

static void rotate_block_integers(int32_t *values, uint32_t length)
{
    for (uint32_t h = ROTATE_GROUP_MAX / 2; h > 0; h /= 2) {
        const uint32_t end = length & ~(2 * h - 1);
        for (uint32_t i = 0; i < end; i += 2 * h) {
            for (uint32_t j = i; j < i + h; j++) {
                const int32_t a = values[j];
                const int32_t b = values[j + h];
                values[j] = a + b;
                values[j + h] = a - b;
            }
        }
    }
}

/* The scale of a group of rotated values. */
static uint16_t rotate_group_scale(const float *values, uint32_t length, uint32_t bits)
{
    uint32_t largest = 0; /* bits of a float >= 0 grow with it; NaN is above all */
    for (uint32_t at = 0; at < length;) {
        const uint32_t n = rotate_block_first(length - at);
        uint32_t block = 0;
        for (uint32_t i = at; i < at + n; i++) {
            const uint32_t size = half_float_bits(values[i]) & 0x7fffffffu;
            if (size > block) block = size;
        }
        if (block >= 0x7f800000u) return ROTATE_SCALE_RAW;
        block = half_float_bits(half_bits_float(block) * rotate_block_factor(n));
        if (block > largest) largest = block;
        at += n;
    }
    return rotate_scale_of(half_bits_float(largest), bits);
}

static uint8_t rotate_code_of(float value, float inverse, uint32_t bits)
{
    const int32_t half = 1 << (bits - 1);
    const float steps = value * inverse;
    int32_t whole = (int32_t)steps;
    if ((float)whole > steps) whole--;
    if (whole < -half) whole = -half;
    if (whole > half - 1) whole = half - 1;
    return (uint8_t)(whole + half);
}

static void rotate_pack(const uint8_t *codes, uint32_t length, uint32_t bits, uint8_t *target)
{
    for (uint32_t i = 0; i < length; i += 8) {
        uint64_t word = 0;
        for (uint32_t j = 0; j < 8; j++) {
            word |= (uint64_t)codes[i + j] << (bits * j);
        }
        for (uint32_t j = 0; j < bits; j++) {
            *target++ = (uint8_t)(word >> (8 * j));
        }
    }
}

uint64_t rotate_encode_run_scalar(const rotate_run *run, const uint8_t *source, uint8_t *scales,
                                  uint8_t *codes)
{
    const uint32_t length = run->length;
    const uint32_t code_bytes = length * run->bits / 8;
    float values[ROTATE_GROUP_MAX];
    uint8_t group[ROTATE_GROUP_MAX];
    uint64_t raw = 0;
    for (uint64_t g = 0; g < run->groups; g++) {
        for (uint32_t i = 0; i < length; i++) {
            values[i] = rotate_element_load(source, g * length + i, run->dtype);
        }
        rotate_block_floats(values, length);
        const uint16_t scale = rotate_group_scale(values, length, run->bits);
        memcpy(scales + 2 * g, &scale, sizeof scale);
        if (scale == ROTATE_SCALE_RAW) {
            memset(codes + g * code_bytes, 0, code_bytes);
            raw++;
            continue;
        }
        for (uint32_t at = 0; at < length;) {
            const uint32_t n = rotate_block_first(length - at);
            const float inverse = rotate_inverse_of(scale, rotate_block_factor(n));
            for (uint32_t i = at; i < at + n; i++) {
                group[i] = rotate_code_of(values[i], inverse, run->bits);
            }
            at += n;
        }
        rotate_pack(group, length, run->bits, codes + g * code_bytes);
    }
    return raw;
}

static void rotate_unpack(const uint8_t *source, uint32_t length, uint32_t bits, int32_t *codes)
{
    const uint32_t mask = (UINT32_C(1) << bits) - 1u;
    for (uint32_t i = 0; i < length; i += 8) {
        uint64_t word = 0;
        for (uint32_t j = 0; j < bits; j++) {
            word |= (uint64_t)*source++ << (8 * j);
        }
        for (uint32_t j = 0; j < 8; j++) {
            codes[i + j] = (int32_t)((uint32_t)(word >> (bits * j)) & mask);
        }
    }
}

static float rotate_within(float value, uint8_t dtype)
{
    if (dtype != KVT_DTYPE_FP16) return value; /* the others hold every product */
    if (value > 65504.0f) return 65504.0f;
    return value < -65504.0f ? -65504.0f : value;
}

void rotate_decode_run_scalar(const rotate_run *run, const uint8_t *scales, const uint8_t *codes,
                              uint8_t *target)
{
    const uint32_t length = run->length;
    const uint32_t code_bytes = length * run->bits / 8;
    int32_t values[ROTATE_GROUP_MAX];
    for (uint64_t g = 0; g < run->groups; g++) {
        uint16_t scale;
        memcpy(&scale, scales + 2 * g, sizeof scale);
        rotate_unpack(codes + g * code_bytes, length, run->bits, values);
        rotate_block_integers(values, length);
        for (uint32_t at = 0; at < length;) {
            const uint32_t n = rotate_block_first(length - at);
            const float step = rotate_scale_value(scale) * rotate_block_factor(n);
            values[at] -= rotate_block_middle(n, run->bits);
            for (uint32_t i = at; i < at + n; i++) {
                const float value = (float)values[i] * step;
                rotate_element_store(target, g * length + i, run->dtype,
                                     rotate_within(value, run->dtype));
            }
            at += n;
        }
    }
}
