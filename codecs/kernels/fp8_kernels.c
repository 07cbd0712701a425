/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fp8_kernels.c - the loops of fp8_kernels.h: plain C over base/half.h, compiled once per
 * instruction set. Re-entrant.
 */
#include "fp8_kernels.h"

#include "base/half.h"
#include "cpu.h"

#define FP8_INLINE static inline __attribute__((always_inline))

FP8_INLINE void fp8_widen_body(const uint8_t *restrict source, uint64_t count,
                               uint16_t *restrict target)
{
    for (uint64_t i = 0; i < count; i++) {
        target[i] = (uint16_t)(half_float_bits(half_fp8_to_float(source[i])) >> 16);
    }
}

FP8_INLINE void fp8_narrow_body(const uint16_t *restrict source, uint64_t count,
                                uint8_t *restrict target)
{
    for (uint64_t i = 0; i < count; i++) {
        target[i] = half_fp8_from_float(half_bf16_to_float(source[i]));
    }
}

#if defined(__x86_64__)
CODECS_TARGET_AVX512 static void fp8_widen_avx512(const uint8_t *source, uint64_t count,
                                                  uint16_t *target)
{
    fp8_widen_body(source, count, target);
}

CODECS_TARGET_AVX512 static void fp8_narrow_avx512(const uint16_t *source, uint64_t count,
                                                   uint8_t *target)
{
    fp8_narrow_body(source, count, target);
}

CODECS_TARGET_AVX2 static void fp8_widen_avx2(const uint8_t *source, uint64_t count,
                                              uint16_t *target)
{
    fp8_widen_body(source, count, target);
}

CODECS_TARGET_AVX2 static void fp8_narrow_avx2(const uint16_t *source, uint64_t count,
                                               uint8_t *target)
{
    fp8_narrow_body(source, count, target);
}
#endif

void fp8_widen(const uint8_t *source, uint64_t count, uint16_t *target)
{
#if defined(__x86_64__)
    if (codecs_cpu_level() >= CODECS_CPU_AVX512) {
        fp8_widen_avx512(source, count, target);
        return;
    }
    if (codecs_cpu_level() >= CODECS_CPU_AVX2) {
        fp8_widen_avx2(source, count, target);
        return;
    }
#endif
    fp8_widen_body(source, count, target);
}

void fp8_narrow(const uint16_t *source, uint64_t count, uint8_t *target)
{
#if defined(__x86_64__)
    if (codecs_cpu_level() >= CODECS_CPU_AVX512) {
        fp8_narrow_avx512(source, count, target);
        return;
    }
    if (codecs_cpu_level() >= CODECS_CPU_AVX2) {
        fp8_narrow_avx2(source, count, target);
        return;
    }
#endif
    fp8_narrow_body(source, count, target);
}
