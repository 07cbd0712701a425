/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model_convert.c - KV of any float dtype as fp32, for the products. The integer path is the
 * specification; vector instructions give the same bits
 * (NaN becomes quiet). Thread rule: any thread.
 */
#include "base/half.h"
#include "estimator/model/model_internal.h"

#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

typedef void (*convert_half)(const uint16_t *source, size_t count, float *target);

static void convert_fp16_plain(const uint16_t *source, size_t count, float *target)
{
    for (size_t i = 0; i < count; i++)
        target[i] = half_to_float(source[i]);
}

#if defined(__x86_64__)
__attribute__((target("avx2,f16c"))) static void convert_fp16_f16c(const uint16_t *source,
                                                                   size_t count, float *target)
{
    size_t whole = count / 8 * 8;
    for (size_t i = 0; i < whole; i += 8) {
        __m128i half = _mm_loadu_si128((const __m128i *)(const void *)(source + i));
        _mm256_storeu_ps(target + i, _mm256_cvtph_ps(half));
    }
    _mm256_zeroupper();
    convert_fp16_plain(source + whole, count - whole, target + whole);
}

__attribute__((target("avx512f"))) static void convert_fp16_avx512(const uint16_t *source,
                                                                   size_t count, float *target)
{
    size_t whole = count / 16 * 16;
    for (size_t i = 0; i < whole; i += 16) {
        __m256i half = _mm256_loadu_si256((const __m256i *)(const void *)(source + i));
        _mm512_storeu_ps(target + i, _mm512_cvtph_ps(half));
    }
    _mm256_zeroupper();
    convert_fp16_plain(source + whole, count - whole, target + whole);
}
#endif

#if defined(__x86_64__)
/* clang 14 has no name for it to ask by. */
static bool convert_has_f16c(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
#endif

static convert_half convert_choose(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) return convert_fp16_avx512;
    if (__builtin_cpu_supports("avx2") && convert_has_f16c()) return convert_fp16_f16c;
#endif
    return convert_fp16_plain;
}

void model_convert(uint8_t dtype, const void *source, size_t count, float *target)
{
    const uint16_t *half = source;
    if (dtype == KVT_DTYPE_FP32) {
        memcpy(target, source, count * sizeof *target);
    } else if (dtype == KVT_DTYPE_FP16) {
        convert_choose()(half, count, target);
    } else {
        for (size_t i = 0; i < count; i++)
            target[i] = half_bf16_to_float(half[i]);
    }
}
