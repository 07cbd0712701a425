/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rotate_avx2.c - rotate_scalar.c with AVX2: the registers that rotate_body.h works with, 8 floats
 * or 16 whole numbers in each, several in a block. Re-entrant.
 */
#include "rotate_kernel.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define ROTATE_TARGET     CODECS_TARGET_AVX2
#define ROTATE_INLINE     static inline __attribute__((always_inline)) ROTATE_TARGET
#define ROTATE_ENCODE_RUN rotate_encode_run_avx2
#define ROTATE_DECODE_RUN rotate_decode_run_avx2
#define ROTATE_WHOLES     16

typedef __m256 rotate_floats;
typedef __m256i rotate_wholes;

enum { ROTATE_CODES = 32, ROTATE_PAD = 64 };

ROTATE_INLINE __m256 rotate_all(float value)
{
    return _mm256_set1_ps(value);
}

ROTATE_INLINE __m256i rotate_read(const void *source)
{
    return _mm256_loadu_si256((const __m256i *)source);
}

ROTATE_INLINE void rotate_write(void *target, __m256i value)
{
    _mm256_storeu_si256((__m256i *)target, value);
}

/* One stage inside a register: flip holds the sign bit in the lanes that get partner - x. */
ROTATE_INLINE __m256 rotate_pair_floats(__m256 x, __m256 partner, __m256 flip)
{
    return _mm256_add_ps(partner, _mm256_xor_ps(x, flip));
}

ROTATE_INLINE __m256 rotate_lanes_floats(__m256 x)
{
    const __m256 one = _mm256_setr_ps(0.0f, -0.0f, 0.0f, -0.0f, 0.0f, -0.0f, 0.0f, -0.0f);
    const __m256 two = _mm256_setr_ps(0.0f, 0.0f, -0.0f, -0.0f, 0.0f, 0.0f, -0.0f, -0.0f);
    const __m256 four = _mm256_setr_ps(0.0f, 0.0f, 0.0f, 0.0f, -0.0f, -0.0f, -0.0f, -0.0f);
    x = rotate_pair_floats(x, _mm256_permute2f128_ps(x, x, 0x01), four);
    x = rotate_pair_floats(x, _mm256_permute_ps(x, 0x4e), two);
    return rotate_pair_floats(x, _mm256_permute_ps(x, 0xb1), one);
}

/* One block of 8 * count floats in place. */
ROTATE_INLINE void rotate_block_floats(float *values, const unsigned count, const unsigned stages)
{
    __m256 v[8];
#pragma GCC unroll 8
    for (unsigned i = 0; i < count; i++) {
        v[i] = _mm256_loadu_ps(values + 8 * i);
    }
#pragma GCC unroll 3
    for (unsigned s = stages; s-- > 0;) {
        const unsigned h = 1u << s;
#pragma GCC unroll 8
        for (unsigned i = 0; i < count; i++) {
            if ((i & h) == 0) {
                const __m256 a = v[i];
                const __m256 b = v[i + h];
                v[i] = _mm256_add_ps(a, b);
                v[i + h] = _mm256_sub_ps(a, b);
            }
        }
    }
#pragma GCC unroll 8
    for (unsigned i = 0; i < count; i++) {
        _mm256_storeu_ps(values + 8 * i, rotate_lanes_floats(v[i]));
    }
}

/* The stages of distance 128 and 64, through memory: the registers hold 64 floats at a time. */
ROTATE_INLINE void rotate_far_floats(float *values, uint32_t n)
{
    for (uint32_t h = n / 2; h >= 64; h /= 2) {
        for (uint32_t i = 0; i < n; i += 8) {
            if (i & h) continue;
            const __m256 a = _mm256_loadu_ps(values + i);
            const __m256 b = _mm256_loadu_ps(values + i + h);
            _mm256_storeu_ps(values + i, _mm256_add_ps(a, b));
            _mm256_storeu_ps(values + i + h, _mm256_sub_ps(a, b));
        }
    }
}

/* A block of n floats in place; returns the bits of its largest size. */
ROTATE_INLINE uint32_t rotate_block_values(float *values, uint32_t n)
{
    switch (n) {
    case 8: rotate_block_floats(values, 1, 0); break;
    case 16: rotate_block_floats(values, 2, 1); break;
    case 32: rotate_block_floats(values, 4, 2); break;
    default:
        rotate_far_floats(values, n);
        for (uint32_t i = 0; i < n; i += 64) {
            rotate_block_floats(values + i, 8, 3);
        }
        break;
    }
    const __m256i mask = _mm256_set1_epi32(0x7fffffff);
    __m256i largest = _mm256_setzero_si256();
    for (uint32_t i = 0; i < n; i += 8) {
        largest = _mm256_max_epu32(largest, _mm256_and_si256(rotate_read(values + i), mask));
    }
    __m128i four =
        _mm_max_epu32(_mm256_castsi256_si128(largest), _mm256_extracti128_si256(largest, 1));
    four = _mm_max_epu32(four, _mm_shuffle_epi32(four, 0x4e));
    four = _mm_max_epu32(four, _mm_shuffle_epi32(four, 0xb1));
    return (uint32_t)_mm_cvtsi128_si32(four);
}

ROTATE_INLINE void rotate_load(const uint8_t *source, uint8_t dtype, uint32_t length, float *values)
{
    for (uint32_t i = 0; i < length; i += 8) {
        __m256 v;
        if (dtype == KVT_DTYPE_FP32) {
            v = _mm256_castsi256_ps(rotate_read(source + 4 * i));
        } else {
            const __m128i halves = _mm_loadu_si128((const __m128i *)(const void *)(source + 2 * i));
            v = dtype == KVT_DTYPE_FP16
                    ? _mm256_cvtph_ps(halves)
                    : _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
        }
        _mm256_storeu_ps(values + i, v);
    }
}

/* 32 rotated values as codes, one a byte. */
ROTATE_INLINE __m256i rotate_codes(const float *values, __m256 inverse, uint32_t bits)
{
    __m256i steps[4];
#pragma GCC unroll 4
    for (unsigned i = 0; i < 4; i++) {
        const __m256 v = _mm256_mul_ps(_mm256_loadu_ps(values + 8 * i), inverse);
        steps[i] = _mm256_cvttps_epi32(_mm256_floor_ps(v));
    }
    const __m256i low = _mm256_packs_epi32(steps[0], steps[1]);
    const __m256i high = _mm256_packs_epi32(steps[2], steps[3]);
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    const __m256i half = _mm256_set1_epi8((char)(1u << (bits - 1)));
    const __m256i top = _mm256_set1_epi8((char)((1u << (bits - 1)) - 1u));
    __m256i codes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), order);
    codes = _mm256_min_epi8(codes, top);
    codes = _mm256_max_epi8(codes, _mm256_sub_epi8(_mm256_setzero_si256(), half));
    return _mm256_add_epi8(codes, half);
}

/* 32 codes of 4 bits, two a byte. */
ROTATE_INLINE void rotate_store_pairs(__m256i codes, uint8_t *target)
{
    const __m256i pairs = _mm256_maddubs_epi16(codes, _mm256_set1_epi16(0x1001));
    const __m256i bytes = _mm256_permute4x64_epi64(_mm256_packus_epi16(pairs, pairs), 0xd8);
    _mm_storeu_si128((__m128i *)(void *)target, _mm256_castsi256_si128(bytes));
}

/* One stage inside a register: sign is -1 in the lanes that get partner - x, else 1. */
ROTATE_INLINE __m256i rotate_pair_wholes(__m256i x, __m256i partner, __m256i sign)
{
    return _mm256_add_epi16(partner, _mm256_sign_epi16(x, sign));
}

/* Distances 1, 2 and 4, for lanes of any blocks. */
ROTATE_INLINE __m256i rotate_lanes_wholes(__m256i x)
{
    const __m256i one = _mm256_set1_epi32((int)0xffff0001u);
    const __m256i two = _mm256_set1_epi64x((long long)UINT64_C(0xffffffff00010001));
    const __m256i four = _mm256_setr_epi64x((long long)UINT64_C(0x0001000100010001), -1,
                                            (long long)UINT64_C(0x0001000100010001), -1);
    const __m256i swap = _mm256_setr_epi8(2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13, 2,
                                          3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13);
    x = rotate_pair_wholes(x, _mm256_shuffle_epi8(x, swap), one);
    x = rotate_pair_wholes(x, _mm256_shuffle_epi32(x, 0xb1), two);
    return rotate_pair_wholes(x, _mm256_shuffle_epi32(x, 0x4e), four);
}

ROTATE_INLINE __m256i rotate_near_wholes(__m256i x)
{
    const __m256i eight = _mm256_setr_epi64x((long long)UINT64_C(0x0001000100010001),
                                             (long long)UINT64_C(0x0001000100010001), -1, -1);
    x = rotate_lanes_wholes(x);
    return rotate_pair_wholes(x, _mm256_permute4x64_epi64(x, 0x4e), eight);
}

/* Blocks of 8, the only ones smaller than a register. */
ROTATE_INLINE __m256i rotate_part_wholes(__m256i x, uint32_t n)
{
    (void)n;
    return rotate_lanes_wholes(x);
}

ROTATE_INLINE __m256i rotate_add(__m256i a, __m256i b)
{
    return _mm256_add_epi16(a, b);
}

ROTATE_INLINE __m256i rotate_sub(__m256i a, __m256i b)
{
    return _mm256_sub_epi16(a, b);
}

ROTATE_INLINE __m256i rotate_first_whole(int32_t value)
{
    return _mm256_zextsi128_si256(_mm_cvtsi32_si128((uint16_t)value));
}

/* 16 codes as whole numbers. Reads 16 * bits / 8 bytes (6 of them as 7 for 3 bits). */
ROTATE_INLINE __m256i rotate_unpack(const uint8_t *source, uint32_t bits)
{
    if (bits == 4) {
        const __m256i x =
            _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)source));
        return _mm256_and_si256(_mm256_or_si256(x, _mm256_slli_epi32(x, 12)),
                                _mm256_set1_epi32(0x000f000f));
    }
    if (bits == 8) {
        return _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(const void *)source));
    }
    uint64_t words[2];
    for (unsigned i = 0; i < 2; i++) {
        uint32_t packed;
        memcpy(&packed, source + 3 * i, sizeof packed);
        words[i] = _pdep_u64(packed, UINT64_C(0x0707070707070707));
    }
    return _mm256_cvtepu8_epi16(_mm_set_epi64x((long long)words[1], (long long)words[0]));
}

/* Bits of finite floats to bf16 in the upper half of each lane, to nearest even. */
ROTATE_INLINE __m256i rotate_round_bf16(__m256 value)
{
    const __m256i bits = _mm256_castps_si256(value);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    return _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
}

ROTATE_INLINE __m256 rotate_scaled(__m256i wholes, __m256 step)
{
    return _mm256_mul_ps(_mm256_cvtepi32_ps(wholes), step);
}

/* 16 whole numbers times step, stored as 16 elements. */
ROTATE_INLINE void rotate_store(__m256i v, __m256 step, uint8_t dtype, uint8_t *target)
{
    if (dtype == KVT_DTYPE_BF16) {
        const __m256i even = _mm256_srai_epi32(_mm256_slli_epi32(v, 16), 16);
        const __m256i low = rotate_round_bf16(rotate_scaled(even, step));
        const __m256i high = rotate_round_bf16(rotate_scaled(_mm256_srai_epi32(v, 16), step));
        rotate_write(target, _mm256_blend_epi16(_mm256_srli_epi32(low, 16), high, 0xaa));
        return;
    }
    __m256 low = rotate_scaled(_mm256_cvtepi16_epi32(_mm256_castsi256_si128(v)), step);
    __m256 high = rotate_scaled(_mm256_cvtepi16_epi32(_mm256_extracti128_si256(v, 1)), step);
    if (dtype == KVT_DTYPE_FP32) {
        rotate_write(target, _mm256_castps_si256(low));
        rotate_write(target + 32, _mm256_castps_si256(high));
        return;
    }
    const __m256 top = _mm256_set1_ps(65504.0f);
    const __m256 bottom = _mm256_set1_ps(-65504.0f);
    low = _mm256_max_ps(_mm256_min_ps(low, top), bottom);
    high = _mm256_max_ps(_mm256_min_ps(high, top), bottom);
    const __m128i low_half = _mm256_cvtps_ph(low, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __m128i high_half = _mm256_cvtps_ph(high, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    rotate_write(target, _mm256_set_m128i(high_half, low_half));
}

#include "rotate_body.h"

#endif
