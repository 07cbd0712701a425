/* SPDX-License-Identifier: Apache-2.0 */
/*
 * entropy_kernels_body.h - what the forms of entropy_kernels.h share, compiled once per instruction
 * set: the including file defines ENTROPY_TARGET, ENTROPY_TABLE, entropy_load_fp16,
 * entropy_load_bf16, entropy_add_token, entropy_quantise and entropy_restore. Products and sums are
 * separate statements, so that no compiler fuses them. Not a header for others.
 */
#include <kvterrace/types.h>

#include <string.h>

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
