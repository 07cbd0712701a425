/* SPDX-License-Identifier: Apache-2.0 */
/*
 * entropy_kernels.c - the choice, and the plain form of entropy_kernels.h, which is the
 * specification. Re-entrant.
 */
#define ENTROPY_TARGET
#define ENTROPY_TABLE entropy_kernels_scalar

#include "entropy_kernels.h"

#include <string.h>

/* Adding and taking away 1.5 * 2^23 rounds to the nearest integer, ties to even. */
#define ENTROPY_ROUNDER 12582912.0f

static void entropy_load_bf16(const uint8_t *restrict source, uint32_t count,
                              float *restrict values)
{
    for (uint32_t i = 0; i < count; i++) {
        uint16_t half;
        memcpy(&half, source + 2 * (size_t)i, sizeof half);
        uint32_t bits = (uint32_t)half << 16;
        memcpy(&values[i], &bits, sizeof bits);
    }
}

static void entropy_load_fp16(const uint8_t *restrict source, uint32_t count,
                              float *restrict values)
{
    for (uint32_t i = 0; i < count; i++) {
        uint16_t half;
        memcpy(&half, source + 2 * (size_t)i, sizeof half);
        /* As an fp32 with the same fields, then times 2^112; infinity and NaN get their exponent.
         */
        uint32_t bits = (half & 0x7fffu) << 13;
        float value;
        memcpy(&value, &bits, sizeof value);
        value = value * 5.192296858534828e33f;
        memcpy(&bits, &value, sizeof bits);
        if ((half & 0x7c00u) == 0x7c00u) bits = (half & 0x7fffu) << 13 | 0x7f800000u;
        bits |= (half & 0x8000u) << 16;
        memcpy(&values[i], &bits, sizeof bits);
    }
}

static void entropy_add_token(const float *restrict values, float pilot, uint32_t count,
                              float *restrict sums, float *restrict squares)
{
    uint32_t i = 0;
    for (; i + ENTROPY_PARTS <= count; i += ENTROPY_PARTS) {
        for (uint32_t part = 0; part < ENTROPY_PARTS; part++) {
            float distance = values[i + part] - pilot;
            float square = distance * distance;
            sums[part] = sums[part] + distance;
            squares[part] = squares[part] + square;
        }
    }
    for (uint32_t part = 0; i < count; i++, part++) {
        float distance = values[i] - pilot;
        float square = distance * distance;
        sums[part] = sums[part] + distance;
        squares[part] = squares[part] + square;
    }
}

static bool entropy_quantise(const float *restrict values, const float *restrict means,
                             const float *restrict inverses, uint32_t count,
                             const entropy_rounding *rounding, int16_t *restrict codes,
                             uint8_t *restrict symbols)
{
    const float third = rounding->third != 0.0f ? rounding->third : 1.0f;
    int32_t wide[ENTROPY_RUN];
    int32_t outside = 0;
    for (uint32_t i = 0; i < count; i++) {
        float y = values[i] - means[i];
        y = y * inverses[i];
        y = y < 32767.0f ? y : 32767.0f;
        y = y > -32767.0f ? y : -32767.0f;
        y = y + ENTROPY_ROUNDER;
        y = y - ENTROPY_ROUNDER;
        /* By 1 nothing changes; by a power of 1/3 no integer comes near a tie. */
        y = y * third;
        y = y + ENTROPY_ROUNDER;
        y = y - ENTROPY_ROUNDER;
        wide[i] = (int32_t)y;
    }
    for (uint32_t i = 0; i < count; i++) {
        int32_t inside = wide[i] >= -127 && wide[i] <= 127 ? -1 : 0;
        outside |= ~inside;
        codes[i] = (int16_t)wide[i];
        symbols[i] = (uint8_t)((wide[i] + 128) & inside);
    }
    return outside != 0;
}

static float entropy_value(uint8_t symbol, float offset, float scale, const entropy_recon *recon)
{
    int32_t code = (int32_t)symbol - 128;
    code = code > -4 ? code : -4;
    code = code < 3 ? code : 3;
    float y = (float)symbol - recon->centres[code & (ENTROPY_CENTRES - 1)];
    y = y * scale;
    y = y + offset;
    y = y < recon->limit ? y : recon->limit;
    return y > -recon->limit ? y : -recon->limit;
}

static bool entropy_restore(uint8_t dtype, const uint8_t *symbols, const float *offsets,
                            const float *scales, uint32_t count, const entropy_recon *recon,
                            uint8_t *target)
{
    bool escapes = false;
    for (uint32_t i = 0; i < count; i++) {
        float value = entropy_value(symbols[i], offsets[i], scales[i], recon);
        entropy_store_element(dtype, value, target);
        target += kvt_dtype_bytes(dtype);
        escapes = escapes || symbols[i] == 0;
    }
    return escapes;
}

#include "entropy_kernels_body.h"

#include "cpu.h"

const entropy_kernels *entropy_kernels_choose(void)
{
#if defined(__x86_64__)
    switch (codecs_cpu_level()) {
    case CODECS_CPU_AVX512: return &entropy_kernels_avx512;
    case CODECS_CPU_AVX2: return &entropy_kernels_avx2;
    default: break;
    }
#endif
    return &entropy_kernels_scalar;
}
