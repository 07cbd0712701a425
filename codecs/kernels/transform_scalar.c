/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transform_scalar.c - the arithmetic of codec 8 for any processor, which is the specification, and
 * the choice of a faster form. Re-entrant.
 */
#include "cpu.h"

#define TRANSFORM_TARGET
#define TRANSFORM_TABLE transform_kernels_scalar
#include "transform_body.h"

const transform_kernels *transform_kernels_choose(void)
{
#if defined(__x86_64__)
    switch (codecs_cpu_level()) {
    case CODECS_CPU_AVX512:
        return transform_has_pairs() ? &transform_kernels_avx512bf16 : &transform_kernels_avx512;
    case CODECS_CPU_AVX2: return &transform_kernels_avx2;
    default: break;
    }
#endif
    return &transform_kernels_scalar;
}
