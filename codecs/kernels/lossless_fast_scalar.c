/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lossless_fast_scalar.c - the choice, and the plain form of lossless_fast_kernels.h, which is the
 * specification. Re-entrant.
 */
#define FAST_TARGET
#define FAST_TABLE     fast_kernels_scalar
#define FAST_PART_BF16 fast_part_bf16

#include "lossless_fast_body.h"

#include "cpu.h"

const fast_kernels *fast_kernels_choose(void)
{
#if defined(__x86_64__)
    switch (codecs_cpu_level()) {
    case CODECS_CPU_AVX512: return &fast_kernels_avx512;
    case CODECS_CPU_AVX2: return &fast_kernels_avx2;
    default: break;
    }
#endif
    return &fast_kernels_scalar;
}
