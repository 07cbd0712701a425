/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rotate_avx512.c - rotate_scalar.c with AVX-512: the registers that rotate_body.h works with, 16
 * floats or 32 whole numbers in each, several in a block. Butterflies inside a register exchange
 * lanes with a shuffle, the others pair registers. Re-entrant.
 */
#include "rotate_kernel.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define ROTATE_TARGET     CODECS_TARGET_AVX512
#define ROTATE_INLINE     static inline __attribute__((always_inline)) ROTATE_TARGET
#define ROTATE_ENCODE_RUN rotate_encode_run_avx512
#define ROTATE_DECODE_RUN rotate_decode_run_avx512
#define ROTATE_WHOLES     32

typedef __m512 rotate_floats;
typedef __m512i rotate_wholes;

enum { ROTATE_CODES = 64, ROTATE_PAD = 64 };

/* Groups of one block of 128, the most common head, are rotated in their own way. */
#define ROTATE_EXCHANGES(length) ((length) == 128)

ROTATE_INLINE __m512 rotate_all(float value)
{
    return _mm512_set1_ps(value);
}

ROTATE_INLINE __m512i rotate_read(const void *source)
{
    return _mm512_loadu_si512(source);
}

ROTATE_INLINE void rotate_write(void *target, __m512i value)
{
    _mm512_storeu_si512(target, value);
}

/* One stage inside a register: second marks the lanes that get partner - x. */
ROTATE_INLINE __m512 rotate_pair_floats(__m512 x, __m512 partner, __mmask16 second)
{
    return _mm512_mask_sub_ps(_mm512_add_ps(x, partner), second, partner, x);
}

/* Distances 8 (when whole), 4, 2 and 1. */
ROTATE_INLINE __m512 rotate_lanes_floats(__m512 x, bool whole)
{
    if (whole) x = rotate_pair_floats(x, _mm512_shuffle_f32x4(x, x, 0x4e), 0xff00);
    x = rotate_pair_floats(x, _mm512_shuffle_f32x4(x, x, 0xb1), 0xf0f0);
    x = rotate_pair_floats(x, _mm512_permute_ps(x, 0x4e), 0xcccc);
    return rotate_pair_floats(x, _mm512_permute_ps(x, 0xb1), 0xaaaa);
}

/* The stages between the registers of a block of 16 * count floats, farthest first. */
ROTATE_INLINE void rotate_far_floats(__m512 *v, const unsigned count, const unsigned stages)
{
#pragma GCC unroll 4
    for (unsigned s = stages; s-- > 0;) {
        const unsigned h = 1u << s;
#pragma GCC unroll 16
        for (unsigned i = 0; i < count; i++) {
            if ((i & h) == 0) {
                const __m512 a = v[i];
                const __m512 b = v[i + h];
                v[i] = _mm512_add_ps(a, b);
                v[i + h] = _mm512_sub_ps(a, b);
            }
        }
    }
}

/* Stores a block; returns the largest size, as bits, in each lane. */
ROTATE_INLINE __m512i rotate_store_floats(const __m512 *v, const unsigned count, float *values)
{
    __m512i largest = _mm512_setzero_si512();
#pragma GCC unroll 16
    for (unsigned i = 0; i < count; i++) {
        const __m512i size =
            _mm512_and_si512(_mm512_castps_si512(v[i]), _mm512_set1_epi32(0x7fffffff));
        largest = _mm512_max_epu32(largest, size);
        _mm512_storeu_ps(values + 16 * i, v[i]);
    }
    return largest;
}

/* One block of 16 * count floats in place; returns as rotate_store_floats does. */
ROTATE_INLINE __m512i rotate_block_floats(float *values, const unsigned count,
                                          const unsigned stages)
{
    __m512 v[16];
#pragma GCC unroll 16
    for (unsigned i = 0; i < count; i++) {
        v[i] = _mm512_loadu_ps(values + 16 * i);
    }
    rotate_far_floats(v, count, stages);
#pragma GCC unroll 16
    for (unsigned i = 0; i < count; i++) {
        v[i] = rotate_lanes_floats(v[i], true);
    }
    return rotate_store_floats(v, count, values);
}

/*
 * A block of 128 turns cheaper when lanes and registers change places: two registers exchange a bit
 * of the lane number with the lowest bit of the register number, and the stage of that bit is then
 * a plain sum and difference. Afterwards register r and lane l hold element
 *
 *   bit of the element   6   5   4   3   2   1   0
 *   is bit               r2  r1  l2  l3  l0  l1  r0
 */
#define ROTATE_EXCHANGE(v, shuffle, low, high)                                                     \
    _Pragma("GCC unroll 4") for (unsigned i = 0; i < 8; i += 2)                                    \
    {                                                                                              \
        const __m512 a = shuffle(v[i], v[i + 1], low);                                             \
        const __m512 b = shuffle(v[i], v[i + 1], high);                                            \
        v[i] = _mm512_add_ps(a, b);                                                                \
        v[i + 1] = _mm512_sub_ps(a, b);                                                            \
    }

/* As rotate_block_values of 128, stored in the order above. */
ROTATE_INLINE uint32_t rotate_exchange_values(float *values)
{
    __m512 v[8];
#pragma GCC unroll 8
    for (unsigned i = 0; i < 8; i++) {
        v[i] = _mm512_loadu_ps(values + 16 * i);
    }
    rotate_far_floats(v, 8, 3);
    ROTATE_EXCHANGE(v, _mm512_shuffle_f32x4, 0x44, 0xee)
    ROTATE_EXCHANGE(v, _mm512_shuffle_f32x4, 0x88, 0xdd)
    ROTATE_EXCHANGE(v, _mm512_shuffle_ps, 0x44, 0xee)
    ROTATE_EXCHANGE(v, _mm512_shuffle_ps, 0x88, 0xdd)
    return _mm512_reduce_max_epu32(rotate_store_floats(v, 8, values));
}

/* Where elements 2 j and 2 j + 1 of the order above are in the bytes of rotate_codes_of. */
static const uint8_t rotate_exchange_places[64] = {
    0,  2,  1,  3,  32, 34, 33, 35, 16, 18, 17, 19, 48, 50, 49, 51, 4,  6,  5,  7,  36, 38,
    37, 39, 20, 22, 21, 23, 52, 54, 53, 55, 8,  10, 9,  11, 40, 42, 41, 43, 24, 26, 25, 27,
    56, 58, 57, 59, 12, 14, 13, 15, 44, 46, 45, 47, 28, 30, 29, 31, 60, 62, 61, 63,
};

/* A block of n floats in place; returns the bits of its largest size. */
ROTATE_INLINE uint32_t rotate_block_values(float *values, uint32_t n)
{
    __m512i largest;
    switch (n) {
    case 256: largest = rotate_block_floats(values, 16, 4); break;
    case 128: largest = rotate_block_floats(values, 8, 3); break;
    case 64: largest = rotate_block_floats(values, 4, 2); break;
    case 32: largest = rotate_block_floats(values, 2, 1); break;
    case 16: largest = rotate_block_floats(values, 1, 0); break;
    default: {
        const __m512 v = rotate_lanes_floats(_mm512_maskz_loadu_ps(0xff, values), false);
        largest = _mm512_and_si512(_mm512_castps_si512(v), _mm512_set1_epi32(0x7fffffff));
        _mm512_mask_storeu_ps(values, 0xff, v);
        break;
    }
    }
    return _mm512_reduce_max_epu32(largest);
}

/* 16 elements as floats; those not in lanes are zero and not read. */
ROTATE_INLINE __m512 rotate_load_part(const uint8_t *source, const uint8_t dtype, __mmask16 lanes)
{
    if (dtype == KVT_DTYPE_FP32) return _mm512_maskz_loadu_ps(lanes, source);
    const __m256i halves = _mm256_maskz_loadu_epi16(lanes, source);
    if (dtype == KVT_DTYPE_FP16) return _mm512_cvtph_ps(halves);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

ROTATE_INLINE void rotate_load_as(const uint8_t *source, const uint8_t dtype, uint32_t length,
                                  float *values)
{
    const uint32_t bytes = dtype == KVT_DTYPE_FP32 ? 4 : 2;
    uint32_t i = 0;
    for (; i + 16 <= length; i += 16) {
        _mm512_storeu_ps(values + i, rotate_load_part(source + bytes * i, dtype, 0xffff));
    }
    if (i < length) {
        _mm512_storeu_ps(values + i, rotate_load_part(source + bytes * i, dtype, 0xff));
    }
}

ROTATE_INLINE void rotate_load(const uint8_t *source, uint8_t dtype, uint32_t length, float *values)
{
    switch (dtype) {
    case KVT_DTYPE_BF16: rotate_load_as(source, KVT_DTYPE_BF16, length, values); break;
    case KVT_DTYPE_FP16: rotate_load_as(source, KVT_DTYPE_FP16, length, values); break;
    default: rotate_load_as(source, KVT_DTYPE_FP32, length, values); break;
    }
}

/* 64 rotated values, 16 from each of four places `stride` apart, as codes one a byte: four bytes
 * of each place in turn. */
ROTATE_INLINE __m512i rotate_codes_of(const float *values, unsigned stride, __m512 inverse,
                                      uint32_t bits)
{
    __m512i steps[4];
#pragma GCC unroll 4
    for (unsigned i = 0; i < 4; i++) {
        const __m512 v = _mm512_mul_ps(_mm512_loadu_ps(values + stride * i), inverse);
        steps[i] = _mm512_cvt_roundps_epi32(v, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    }
    const __m512i low = _mm512_packs_epi32(steps[0], steps[1]);
    const __m512i high = _mm512_packs_epi32(steps[2], steps[3]);
    const __m512i half = _mm512_set1_epi8((char)(1u << (bits - 1)));
    const __m512i top = _mm512_set1_epi8((char)((1u << (bits - 1)) - 1u));
    __m512i codes = _mm512_packs_epi16(low, high);
    codes = _mm512_min_epi8(codes, top);
    codes = _mm512_max_epi8(codes, _mm512_sub_epi8(_mm512_setzero_si512(), half));
    return _mm512_add_epi8(codes, half);
}

/* 64 rotated values as codes, one a byte. */
ROTATE_INLINE __m512i rotate_codes(const float *values, __m512 inverse, uint32_t bits)
{
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    return _mm512_permutexvar_epi32(order, rotate_codes_of(values, 16, inverse, bits));
}

/* 64 codes of 4 bits, two a byte. */
ROTATE_INLINE void rotate_store_pairs(__m512i codes, uint8_t *target)
{
    const __m512i pairs = _mm512_maddubs_epi16(codes, _mm512_set1_epi16(0x1001));
    _mm256_storeu_si256((__m256i *)(void *)target, _mm512_cvtepi16_epi8(pairs));
}

/* Quantises a block of 128 that rotate_exchange_values left. Codes of 3 bits go to `codes`, one a
 * byte. */
ROTATE_INLINE void rotate_exchange_codes(const float *values, uint32_t bits, __m512 inverse,
                                         uint8_t *target, uint8_t *codes)
{
    const __m512i places = _mm512_loadu_si512(rotate_exchange_places);
    __m512i even = rotate_codes_of(values, 32, inverse, bits);
    __m512i odd = rotate_codes_of(values + 16, 32, inverse, bits);
    if (bits == 4) {
        const __m512i pairs = _mm512_or_si512(even, _mm512_slli_epi16(odd, 4));
        _mm512_storeu_si512(target, _mm512_permutexvar_epi8(places, pairs));
        return;
    }
    even = _mm512_permutexvar_epi8(places, even);
    odd = _mm512_permutexvar_epi8(places, odd);
    const __m512i low = _mm512_unpacklo_epi8(even, odd);
    const __m512i high = _mm512_unpackhi_epi8(even, odd);
    const __m512i first = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
    const __m512i second = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
    uint8_t *bytes = bits == 8 ? target : codes;
    _mm512_storeu_si512(bytes, _mm512_permutex2var_epi64(low, first, high));
    _mm512_storeu_si512(bytes + 64, _mm512_permutex2var_epi64(low, second, high));
}

ROTATE_INLINE __m512i rotate_pair_wholes(__m512i x, __m512i partner, __mmask32 second)
{
    return _mm512_mask_sub_epi16(_mm512_add_epi16(x, partner), second, partner, x);
}

/* Distances 1, 2 and 4, for lanes of any blocks. */
ROTATE_INLINE __m512i rotate_lanes_wholes(__m512i x)
{
    x = rotate_pair_wholes(x, _mm512_rol_epi32(x, 16), 0xaaaaaaaau);
    x = rotate_pair_wholes(x, _mm512_shuffle_epi32(x, _MM_PERM_CDAB), 0xccccccccu);
    return rotate_pair_wholes(x, _mm512_shuffle_epi32(x, _MM_PERM_BADC), 0xf0f0f0f0u);
}

ROTATE_INLINE __m512i rotate_near_wholes(__m512i x)
{
    x = rotate_lanes_wholes(x);
    x = rotate_pair_wholes(x, _mm512_shuffle_i64x2(x, x, 0xb1), 0xff00ff00u);
    return rotate_pair_wholes(x, _mm512_shuffle_i64x2(x, x, 0x4e), 0xffff0000u);
}

/* Blocks of 8 or 16. */
ROTATE_INLINE __m512i rotate_part_wholes(__m512i x, uint32_t n)
{
    x = rotate_lanes_wholes(x);
    return n < 16 ? x : rotate_pair_wholes(x, _mm512_shuffle_i64x2(x, x, 0xb1), 0xff00ff00u);
}

ROTATE_INLINE __m512i rotate_add(__m512i a, __m512i b)
{
    return _mm512_add_epi16(a, b);
}

ROTATE_INLINE __m512i rotate_sub(__m512i a, __m512i b)
{
    return _mm512_sub_epi16(a, b);
}

ROTATE_INLINE __m512i rotate_first_whole(int32_t value)
{
    return _mm512_maskz_set1_epi16(1, (short)value);
}

/* 32 codes as whole numbers. Reads 32 * bits / 8 bytes (12 of them as 16 for 3 bits). */
ROTATE_INLINE __m512i rotate_unpack(const uint8_t *source, uint32_t bits)
{
    if (bits == 4) {
        const __m128i bytes = _mm_loadu_si128((const __m128i *)(const void *)source);
        const __m512i x = _mm512_cvtepu8_epi32(bytes);
        return _mm512_and_si512(_mm512_or_si512(x, _mm512_slli_epi32(x, 12)),
                                _mm512_set1_epi32(0x000f000f));
    }
    if (bits == 8) {
        return _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)(const void *)source));
    }
    uint64_t words[4];
    for (unsigned i = 0; i < 4; i++) {
        uint32_t packed;
        memcpy(&packed, source + 3 * i, sizeof packed);
        words[i] = _pdep_u64(packed, UINT64_C(0x0707070707070707));
    }
    return _mm512_cvtepu8_epi16(_mm256_setr_epi64x((long long)words[0], (long long)words[1],
                                                   (long long)words[2], (long long)words[3]));
}

/* Bits of finite floats to bf16 in the upper half of each lane, to nearest even. */
ROTATE_INLINE __m512i rotate_round_bf16(__m512 value)
{
    const __m512i bits = _mm512_castps_si512(value);
    const __mmask16 odd = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x10000));
    const __m512i up = _mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff));
    return _mm512_mask_add_epi32(up, odd, bits, _mm512_set1_epi32(0x8000));
}

ROTATE_INLINE __m512 rotate_scaled(__m512i wholes, __m512 step)
{
    return _mm512_mul_ps(_mm512_cvtepi32_ps(wholes), step);
}

/* 32 whole numbers times step, stored as 32 elements. */
ROTATE_INLINE void rotate_store(__m512i v, __m512 step, uint8_t dtype, uint8_t *target)
{
    if (dtype == KVT_DTYPE_BF16) {
        const __m512i even = _mm512_srai_epi32(_mm512_slli_epi32(v, 16), 16);
        const __m512i low = rotate_round_bf16(rotate_scaled(even, step));
        const __m512i high = rotate_round_bf16(rotate_scaled(_mm512_srai_epi32(v, 16), step));
        _mm512_storeu_si512(target,
                            _mm512_mask_blend_epi16(0xaaaaaaaau, _mm512_srli_epi32(low, 16), high));
        return;
    }
    __m512 low = rotate_scaled(_mm512_cvtepi16_epi32(_mm512_castsi512_si256(v)), step);
    __m512 high = rotate_scaled(_mm512_cvtepi16_epi32(_mm512_extracti64x4_epi64(v, 1)), step);
    if (dtype == KVT_DTYPE_FP32) {
        _mm512_storeu_ps(target, low);
        _mm512_storeu_ps(target + 64, high);
        return;
    }
    const __m512 top = _mm512_set1_ps(65504.0f);
    const __m512 bottom = _mm512_set1_ps(-65504.0f);
    low = _mm512_max_ps(_mm512_min_ps(low, top), bottom);
    high = _mm512_max_ps(_mm512_min_ps(high, top), bottom);
    const __m256i low_half = _mm512_cvtps_ph(low, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __m256i high_half = _mm512_cvtps_ph(high, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm256_storeu_si256((__m256i *)(void *)target, low_half);
    _mm256_storeu_si256((__m256i *)(void *)(target + 32), high_half);
}

#include "rotate_body.h"

#endif
