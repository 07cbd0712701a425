/* SPDX-License-Identifier: Apache-2.0 */
/*
 * entropy_kernels_avx2.c - entropy_kernels.h for AVX2 with F16C. Re-entrant.
 */
#if defined(__x86_64__)

#include "cpu.h"
#include "entropy_kernels.h"

#include <immintrin.h>
#include <string.h>

#define ENTROPY_TARGET CODECS_TARGET_AVX2
#define ENTROPY_TABLE  entropy_kernels_avx2
#define ENTROPY_INLINE static inline __attribute__((always_inline)) ENTROPY_TARGET
#define ENTROPY_WIDTH  8

ENTROPY_INLINE void entropy_widen_fp16(const uint8_t *source, float *values)
{
    _mm256_storeu_ps(values, _mm256_cvtph_ps(_mm_loadu_si128((const void *)source)));
}

ENTROPY_INLINE void entropy_widen_bf16(const uint8_t *source, float *values)
{
    __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)source));
    _mm256_storeu_ps(values, _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16)));
}

/* The last elements of a run, fewer than a register, are left to the scalar form. */
ENTROPY_TARGET static void entropy_add_token(const float *values, float pilot, uint32_t count,
                                             float *sums, float *squares)
{
    const __m256 pilots = _mm256_set1_ps(pilot);
    __m256 sum[2] = {_mm256_loadu_ps(sums), _mm256_loadu_ps(sums + ENTROPY_WIDTH)};
    __m256 square[2] = {_mm256_loadu_ps(squares), _mm256_loadu_ps(squares + ENTROPY_WIDTH)};
    uint32_t i = 0;
    for (; i + ENTROPY_PARTS <= count; i += ENTROPY_PARTS) {
        for (uint32_t half = 0; half < 2; half++) {
            const float *eight = values + i + (size_t)half * ENTROPY_WIDTH;
            __m256 distance = _mm256_sub_ps(_mm256_loadu_ps(eight), pilots);
            sum[half] = _mm256_add_ps(sum[half], distance);
            square[half] = _mm256_add_ps(square[half], _mm256_mul_ps(distance, distance));
        }
    }
    for (uint32_t half = 0; half < 2; half++) {
        _mm256_storeu_ps(sums + (size_t)half * ENTROPY_WIDTH, sum[half]);
        _mm256_storeu_ps(squares + (size_t)half * ENTROPY_WIDTH, square[half]);
    }
    entropy_kernels_scalar.add_token(values + i, pilot, count - i, sums, squares);
}

/* The codes of eight elements. */
ENTROPY_TARGET static inline __m256i entropy_codes(const float *values, const float *means,
                                                   const float *inverses, float third)
{
    __m256 y = _mm256_sub_ps(_mm256_loadu_ps(values), _mm256_loadu_ps(means));
    y = _mm256_mul_ps(y, _mm256_loadu_ps(inverses));
    y = _mm256_min_ps(y, _mm256_set1_ps(32767.0f));
    y = _mm256_max_ps(y, _mm256_set1_ps(-32767.0f));
    __m256i code = _mm256_cvtps_epi32(y);
    if (third == 0.0f) return code;
    y = _mm256_mul_ps(_mm256_cvtepi32_ps(code), _mm256_set1_ps(third));
    return _mm256_cvtps_epi32(y);
}

ENTROPY_INLINE uint32_t entropy_quantise_registers(const float *values, const float *means,
                                                   const float *inverses, uint32_t count,
                                                   float third, uint8_t *symbols, bool *far_out)
{
    __m128i outside = _mm_setzero_si128();
    uint32_t i = 0;
    for (; i + ENTROPY_WIDTH <= count; i += ENTROPY_WIDTH) {
        __m256i code = entropy_codes(values + i, means + i, inverses + i, third);
        __m128i words =
            _mm_packs_epi32(_mm256_castsi256_si128(code), _mm256_extracti128_si256(code, 1));
        __m128i far = _mm_cmpgt_epi16(_mm_abs_epi16(words), _mm_set1_epi16(127));
        outside = _mm_or_si128(outside, far);
        words = _mm_add_epi16(words, _mm_set1_epi16(128));
        _mm_storel_epi64((void *)(symbols + i), _mm_packus_epi16(words, words));
    }
    *far_out = _mm_movemask_epi8(outside) != 0;
    return i;
}

/* Eight values. */
ENTROPY_TARGET static inline __m256 entropy_values(const uint8_t *symbols, const float *offsets,
                                                   const float *scales, const entropy_recon *recon)
{
    __m256i symbol = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)symbols));
    __m256i near =
        _mm256_min_epi32(_mm256_max_epi32(symbol, _mm256_set1_epi32(124)), _mm256_set1_epi32(131));
    /* The low three bits of a symbol are its code's. */
    __m256 centre = _mm256_permutevar8x32_ps(_mm256_loadu_ps(recon->centres), near);
    __m256 y = _mm256_sub_ps(_mm256_cvtepi32_ps(symbol), centre);
    y = _mm256_mul_ps(y, _mm256_loadu_ps(scales));
    y = _mm256_add_ps(y, _mm256_loadu_ps(offsets));
    y = _mm256_min_ps(y, _mm256_set1_ps(recon->limit));
    return _mm256_max_ps(y, _mm256_set1_ps(-recon->limit));
}

ENTROPY_TARGET static inline void entropy_store_eight(uint8_t dtype, __m256 y, uint8_t *target)
{
    if (dtype == KVT_DTYPE_FP32) {
        _mm256_storeu_ps((void *)target, y);
    } else if (dtype == KVT_DTYPE_FP16) {
        _mm_storeu_si128((void *)target, _mm256_cvtps_ph(y, _MM_FROUND_TO_NEAREST_INT));
    } else {
        __m256i bits = _mm256_castps_si256(y);
        bits = _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x8000)), 16);
        bits = _mm256_permute4x64_epi64(_mm256_packus_epi32(bits, bits), 0xd8);
        _mm_storeu_si128((void *)target, _mm256_castsi256_si128(bits));
    }
}

ENTROPY_TARGET static bool entropy_restore(uint8_t dtype, const uint8_t *symbols,
                                           const float *offsets, const float *scales,
                                           uint32_t count, const entropy_recon *recon,
                                           uint8_t *target)
{
    const size_t element = kvt_dtype_bytes(dtype);
    __m128i escapes = _mm_setzero_si128();
    uint32_t i = 0;
    for (; i + ENTROPY_WIDTH <= count; i += ENTROPY_WIDTH) {
        /* The upper half stays zero and is not looked at. */
        __m128i eight = _mm_loadl_epi64((const void *)(symbols + i));
        escapes = _mm_or_si128(escapes, _mm_cmpeq_epi8(eight, _mm_setzero_si128()));
        entropy_store_eight(dtype, entropy_values(symbols + i, offsets + i, scales + i, recon),
                            target + i * element);
    }
    bool any = (_mm_movemask_epi8(escapes) & 0xff) != 0;
    if (i < count) {
        any |= entropy_kernels_scalar.restore(dtype, symbols + i, offsets + i, scales + i,
                                              count - i, recon, target + i * element);
    }
    return any;
}

#include "entropy_kernels_body.h"

#endif
