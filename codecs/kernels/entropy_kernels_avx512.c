/* SPDX-License-Identifier: Apache-2.0 */
/*
 * entropy_kernels_avx512.c - entropy_kernels.h for AVX-512. Re-entrant.
 */
#if defined(__x86_64__)

#include "cpu.h"
#include "entropy_kernels.h"

#include <immintrin.h>

#if !defined(__OPTIMIZE__)
/* Without optimisation gcc's intrinsics are macros, which convert the signs of masks. */
#pragma GCC diagnostic ignored "-Wsign-conversion"
#endif
#include <string.h>

#define ENTROPY_TARGET CODECS_TARGET_AVX512
#define ENTROPY_TABLE  entropy_kernels_avx512
#define ENTROPY_INLINE static inline __attribute__((always_inline)) ENTROPY_TARGET
#define ENTROPY_WIDTH  16

ENTROPY_INLINE void entropy_widen_fp16(const uint8_t *source, float *values)
{
    _mm512_storeu_ps(values, _mm512_cvtph_ps(_mm256_loadu_si256((const void *)source)));
}

ENTROPY_INLINE void entropy_widen_bf16(const uint8_t *source, float *values)
{
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)source));
    _mm512_storeu_ps(values, _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16)));
}

/* The lanes of a run that are left, at most sixteen. */
ENTROPY_TARGET static inline __mmask16 entropy_lanes(uint32_t left)
{
    return (__mmask16)(left < ENTROPY_WIDTH ? (1u << left) - 1u : 0xffffu);
}

ENTROPY_TARGET static void entropy_add_token(const float *values, float pilot, uint32_t count,
                                             float *sums, float *squares)
{
    const __m512 pilots = _mm512_set1_ps(pilot);
    __m512 sum = _mm512_loadu_ps(sums);
    __m512 square = _mm512_loadu_ps(squares);
    for (uint32_t i = 0; i < count; i += ENTROPY_WIDTH) {
        const __mmask16 lanes = entropy_lanes(count - i);
        __m512 distance = _mm512_sub_ps(_mm512_maskz_loadu_ps(lanes, values + i), pilots);
        sum = _mm512_mask_add_ps(sum, lanes, sum, distance);
        square = _mm512_mask_add_ps(square, lanes, square, _mm512_mul_ps(distance, distance));
    }
    _mm512_storeu_ps(sums, sum);
    _mm512_storeu_ps(squares, square);
}

/* Whole registers of a run; returns the elements done and adds lanes of distant codes. */
ENTROPY_INLINE uint32_t entropy_quantise_run(const float *values, const float *means,
                                             const float *inverses, uint32_t count, float third,
                                             uint8_t *symbols, const bool thirds,
                                             __mmask16 *outside)
{
    const __m512 limit = _mm512_set1_ps(32767.0f);
    const __m512 lower = _mm512_set1_ps(-32767.0f);
    uint32_t i = 0;
    for (; i + ENTROPY_WIDTH <= count; i += ENTROPY_WIDTH) {
        __m512 y = _mm512_sub_ps(_mm512_loadu_ps(values + i), _mm512_loadu_ps(means + i));
        y = _mm512_mul_ps(y, _mm512_loadu_ps(inverses + i));
        y = _mm512_max_ps(_mm512_min_ps(y, limit), lower);
        __m512i code = _mm512_cvtps_epi32(y);
        if (thirds) {
            y = _mm512_mul_ps(_mm512_cvtepi32_ps(code), _mm512_set1_ps(third));
            code = _mm512_cvtps_epi32(y);
        }
        __m512i symbol = _mm512_add_epi32(code, _mm512_set1_epi32(128));
        __mmask16 near = _mm512_cmplt_epu32_mask(_mm512_add_epi32(code, _mm512_set1_epi32(127)),
                                                 _mm512_set1_epi32(255));
        *outside |= (__mmask16)~near;
        _mm_storeu_si128((void *)(symbols + i), _mm512_maskz_cvtepi32_epi8(near, symbol));
    }
    return i;
}

ENTROPY_INLINE uint32_t entropy_quantise_registers(const float *values, const float *means,
                                                   const float *inverses, uint32_t count,
                                                   float third, uint8_t *symbols, bool *far_out)
{
    __mmask16 outside = 0;
    uint32_t done;
    if (third == 0.0f) {
        done = entropy_quantise_run(values, means, inverses, count, 0.0f, symbols, false, &outside);
    } else {
        done = entropy_quantise_run(values, means, inverses, count, third, symbols, true, &outside);
    }
    *far_out = outside != 0;
    return done;
}

/* Sixteen values. */
ENTROPY_INLINE __m512 entropy_values(const uint8_t *symbols, const float *offsets,
                                     const float *scales, const entropy_recon *recon,
                                     const bool shifted, const bool clamp)
{
    __m512i symbol = _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)symbols));
    __m512 y = _mm512_cvtepi32_ps(symbol);
    if (shifted) {
        /* The low three bits of a symbol are its code's. */
        const __m512 centres = _mm512_castps256_ps512(_mm256_loadu_ps(recon->centres));
        __m512i near = _mm512_min_epi32(_mm512_max_epi32(symbol, _mm512_set1_epi32(124)),
                                        _mm512_set1_epi32(131));
        y = _mm512_sub_ps(
            y, _mm512_permutexvar_ps(near, _mm512_shuffle_f32x4(centres, centres, 0x44)));
    }
    y = _mm512_mul_ps(y, _mm512_loadu_ps(scales));
    y = _mm512_add_ps(y, _mm512_loadu_ps(offsets));
    if (!clamp) return y;
    y = _mm512_min_ps(y, _mm512_set1_ps(recon->limit));
    return _mm512_max_ps(y, _mm512_set1_ps(-recon->limit));
}

ENTROPY_INLINE __m512i entropy_round_bf16(__m512 y)
{
    return _mm512_add_epi32(_mm512_castps_si512(y), _mm512_set1_epi32(0x8000));
}

ENTROPY_INLINE void entropy_store_line(__m512i line, uint8_t *target, bool stream)
{
    if (stream) {
        _mm512_stream_si512((void *)target, line);
    } else {
        _mm512_storeu_si512(target, line);
    }
}

/* Thirty-two elements of two registers. */
ENTROPY_INLINE void entropy_store_two(uint8_t dtype, __m512 a, __m512 b, uint8_t *target,
                                      bool stream)
{
    if (dtype == KVT_DTYPE_BF16) {
        /* Every second half-word of both. */
        const __m512i even = _mm512_set1_epi32(0x00020000);
        const __m512i step = _mm512_mullo_epi32(
            _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
            _mm512_set1_epi32(0x00040004));
        const __m512i order =
            _mm512_add_epi32(_mm512_add_epi32(even, step), _mm512_set1_epi32(0x00010001));
        __m512i halves =
            _mm512_permutex2var_epi16(entropy_round_bf16(a), order, entropy_round_bf16(b));
        entropy_store_line(halves, target, stream);
    } else if (dtype == KVT_DTYPE_FP16) {
        __m512i low = _mm512_castsi256_si512(_mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
        __m256i high = _mm512_cvtps_ph(b, _MM_FROUND_TO_NEAREST_INT);
        entropy_store_line(_mm512_inserti64x4(low, high, 1), target, stream);
    } else {
        _mm512_storeu_ps(target, a);
        _mm512_storeu_ps(target + 64, b);
    }
}

enum { ENTROPY_TWO = 2 * ENTROPY_WIDTH };

ENTROPY_INLINE uint32_t entropy_restore_run(const uint8_t dtype, const uint8_t *symbols,
                                            const float *offsets, const float *scales,
                                            uint32_t count, const entropy_recon *recon,
                                            uint8_t *target, const bool shifted, const bool clamp)
{
    const size_t element = dtype == KVT_DTYPE_FP32 ? 4 : 2;
    const bool stream = recon->stream && (uintptr_t)target % 64 == 0;
    if (count < ENTROPY_TWO) return 0;
    for (uint32_t first = 0; first < count; first += ENTROPY_TWO) {
        /* The last ones may overlap those before, and are the same. */
        const uint32_t i = count - first < ENTROPY_TWO ? count - ENTROPY_TWO : first;
        __m512 a = entropy_values(symbols + i, offsets + i, scales + i, recon, shifted, clamp);
        const uint32_t k = i + ENTROPY_WIDTH;
        __m512 b = entropy_values(symbols + k, offsets + k, scales + k, recon, shifted, clamp);
        entropy_store_two(dtype, a, b, target + i * element, stream && i == first);
    }
    return count;
}

ENTROPY_TARGET static bool entropy_restore(uint8_t dtype, const uint8_t *symbols,
                                           const float *offsets, const float *scales,
                                           uint32_t count, const entropy_recon *recon,
                                           uint8_t *target)
{
    uint32_t done;
    __mmask64 escapes = 0;
    for (uint32_t i = 0; i < count; i += 64) {
        __mmask64 lanes = count - i < 64 ? (UINT64_C(1) << (count - i)) - 1 : UINT64_MAX;
        __m512i run = _mm512_maskz_loadu_epi8(lanes, symbols + i);
        escapes |= _mm512_mask_testn_epi8_mask(lanes, run, run);
    }
    if (dtype == KVT_DTYPE_BF16 && !recon->clamp && recon->shifted) {
        done = entropy_restore_run(KVT_DTYPE_BF16, symbols, offsets, scales, count, recon, target,
                                   true, false);
    } else if (dtype == KVT_DTYPE_BF16 && !recon->clamp) {
        done = entropy_restore_run(KVT_DTYPE_BF16, symbols, offsets, scales, count, recon, target,
                                   false, false);
    } else if (dtype == KVT_DTYPE_FP16 && !recon->clamp && recon->shifted) {
        done = entropy_restore_run(KVT_DTYPE_FP16, symbols, offsets, scales, count, recon, target,
                                   true, false);
    } else if (dtype == KVT_DTYPE_FP16 && !recon->clamp) {
        done = entropy_restore_run(KVT_DTYPE_FP16, symbols, offsets, scales, count, recon, target,
                                   false, false);
    } else {
        done =
            entropy_restore_run(dtype, symbols, offsets, scales, count, recon, target, true, true);
    }
    if (done < count) {
        entropy_kernels_scalar.restore(dtype, symbols + done, offsets + done, scales + done,
                                       count - done, recon,
                                       target + (size_t)done * kvt_dtype_bytes(dtype));
    }
    return escapes != 0;
}

#include "entropy_kernels_body.h"

#endif
