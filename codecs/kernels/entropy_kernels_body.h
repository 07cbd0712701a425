/* SPDX-License-Identifier: Apache-2.0 */
/*
 * entropy_kernels_body.h - what the forms of entropy_kernels.h share, compiled once per instruction
 * set: the including file defines ENTROPY_TARGET, ENTROPY_TABLE, entropy_add_token and
 * entropy_restore. A file with registers of ENTROPY_WIDTH floats has entropy_widen_fp16,
 * entropy_widen_bf16 and entropy_quantise_registers, the scalar file entropy_load_fp16,
 * entropy_load_bf16 and entropy_quantise. Products and sums are separate statements, so that no
 * compiler fuses them. Not a header for others.
 */
#include <kvterrace/types.h>

#include <string.h>

#if defined(ENTROPY_WIDTH)
typedef void entropy_widen(const uint8_t *source, float *values);

/* Calls a whole-register step over the run, the last one through a buffer. */
ENTROPY_INLINE void entropy_load_registers(entropy_widen *step, const uint8_t *source,
                                           uint32_t count, float *values)
{
    uint32_t i = 0;
    for (; i + ENTROPY_WIDTH <= count; i += ENTROPY_WIDTH) {
        step(source + 2 * (size_t)i, values + i);
    }
    if (i < count) {
        uint8_t last[2 * ENTROPY_WIDTH] = {0};
        float wide[ENTROPY_WIDTH];
        memcpy(last, source + 2 * (size_t)i, 2 * (size_t)(count - i));
        step(last, wide);
        memcpy(values + i, wide, (count - i) * sizeof wide[0]);
    }
}

ENTROPY_TARGET static void entropy_load_fp16(const uint8_t *source, uint32_t count, float *values)
{
    entropy_load_registers(entropy_widen_fp16, source, count, values);
}

ENTROPY_TARGET static void entropy_load_bf16(const uint8_t *source, uint32_t count, float *values)
{
    entropy_load_registers(entropy_widen_bf16, source, count, values);
}

ENTROPY_TARGET static bool entropy_quantise(const float *values, const float *means,
                                            const float *inverses, uint32_t count,
                                            const entropy_rounding *rounding, int16_t *codes,
                                            uint8_t *symbols)
{
    bool far;
    const uint32_t i =
        entropy_quantise_registers(values, means, inverses, count, rounding->third, symbols, &far);
    if (i < count) {
        far |= entropy_kernels_scalar.quantise(values + i, means + i, inverses + i, count - i,
                                               rounding, codes, symbols + i);
    }
    /* Codes are wanted for few runs. */
    return far && entropy_kernels_scalar.quantise(values, means, inverses, count, rounding, codes,
                                                  symbols);
}
#endif

ENTROPY_TARGET static void entropy_load(uint8_t dtype, const uint8_t *source, uint32_t count,
                                        float *values)
{
    switch (dtype) {
    case KVT_DTYPE_FP16: entropy_load_fp16(source, count, values); break;
    case KVT_DTYPE_BF16: entropy_load_bf16(source, count, values); break;
    default: memcpy(values, source, (size_t)count * sizeof *values); break;
    }
}

ENTROPY_TARGET static void entropy_spread(float value, float *values)
{
    for (uint32_t i = 0; i < ENTROPY_RUN; i++) {
        values[i] = value;
    }
}

ENTROPY_TARGET static void entropy_add_channels(const float *restrict values,
                                                const float *restrict pilots, uint32_t count,
                                                float *restrict sums, float *restrict squares)
{
    for (uint32_t i = 0; i < count; i++) {
        float distance = values[i] - pilots[i];
        float square = distance * distance;
        sums[i] = sums[i] + distance;
        squares[i] = squares[i] + square;
    }
}

const entropy_kernels ENTROPY_TABLE = {
    .load = entropy_load,
    .spread = entropy_spread,
    .add_channels = entropy_add_channels,
    .add_token = entropy_add_token,
    .quantise = entropy_quantise,
    .restore = entropy_restore,
};
