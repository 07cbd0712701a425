/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kivi_group_avx512.c - the kernels of kivi_group.h for AVX-512 (F, BW, DQ, VL, VBMI), and with the
 * bf16 conversions where the processor has them. The same bytes as the scalar kernels, which also
 * serve what does not fill vectors: ranges of fp32, short ends (of rows that kivi_group.c has put
 * together). Re-entrant.
 */
#include "kivi_group_scalar.h"

#if defined(__x86_64__)

#include <immintrin.h>

#ifndef __OPTIMIZE__
/* Without optimisation some intrinsics are macros, which write full masks as -1. */
#pragma GCC diagnostic ignored "-Wsign-conversion"
#endif

#define AVX512_INLINE static inline __attribute__((always_inline)) CODECS_TARGET_AVX512

enum { AVX512_ROUND = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC };

/* The first `left` of 16 lanes. */
AVX512_INLINE __mmask16 avx512_mask(uint64_t left)
{
    return (__mmask16)_bzhi_u32(0xffff, left < 16 ? (uint32_t)left : 16);
}

AVX512_INLINE __m512 avx512_half_round(__m512 x)
{
    return _mm512_cvtph_ps(_mm512_cvtps_ph(x, AVX512_ROUND));
}

/* 16 elements as floats. */
AVX512_INLINE __m512 avx512_load(uint8_t dtype, const uint8_t *source, uint64_t index)
{
    if (dtype == KVT_DTYPE_FP32) return _mm512_loadu_ps(source + 4 * index);
    __m256i halves = _mm256_loadu_si256((const __m256i *)(const void *)(source + 2 * index));
    if (dtype == KVT_DTYPE_FP16) return _mm512_cvtph_ps(halves);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

/* Sign and magnitude to an order of integers, and back. */
AVX512_INLINE __m512i avx512_order(__m512i x)
{
    const __m512i magnitude = _mm512_set1_epi16(0x7fff);
    /* x ^ (sign & magnitude) */
    return _mm512_ternarylogic_epi32(x, _mm512_srai_epi16(x, 15), magnitude, 0x78);
}

AVX512_INLINE __m256i avx512_order_256(__m256i x)
{
    __m256i sign = _mm256_srai_epi16(x, 15);
    return _mm256_ternarylogic_epi32(x, sign, _mm256_set1_epi16(0x7fff), 0x78);
}

/* Orders of 16-bit elements, as they are stored, to floats; false when one is not finite. */
AVX512_INLINE bool avx512_unorder(uint8_t dtype, const int16_t *orders, uint64_t count,
                                  float *target)
{
    const int16_t most = dtype == KVT_DTYPE_FP16 ? 0x7bff : 0x7f7f;
    __mmask32 bad = 0;
    for (uint64_t i = 0; i < count; i += 16) {
        const __mmask16 mask = avx512_mask(count - i);
        __m256i order = _mm256_maskz_loadu_epi16(mask, orders + i);
        bad |= _mm256_cmpgt_epi16_mask(order, _mm256_set1_epi16(most));
        bad |= _mm256_cmplt_epi16_mask(order, _mm256_set1_epi16((int16_t)~most));
        __m256i bits = avx512_order_256(order);
        __m512 value =
            dtype == KVT_DTYPE_FP16
                ? _mm512_cvtph_ps(bits)
                : _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
        _mm512_mask_storeu_ps(target + i, mask, value);
    }
    return bad == 0;
}

/* Extends the orders in low and high by `rows` rows of 16-bit elements. */
CODECS_TARGET_AVX512 static void avx512_extend(const uint8_t *source, uint64_t width, uint64_t rows,
                                               bool first, int16_t *low, int16_t *high)
{
    for (uint64_t c = 0; c < width; c += 32) {
        const __mmask32 mask = width - c < 32 ? (__mmask32)((1u << (width - c)) - 1u) : 0xffffffffu;
        const uint8_t *at = source + 2 * c;
        __m512i least;
        __m512i most;
        uint64_t row = 0;
        if (first) {
            least = avx512_order(_mm512_maskz_loadu_epi16(mask, at));
            most = least;
            row = 1;
        } else {
            least = _mm512_maskz_loadu_epi16(mask, low + c);
            most = _mm512_maskz_loadu_epi16(mask, high + c);
        }
        for (; row < rows; row++) {
            __m512i x = avx512_order(_mm512_maskz_loadu_epi16(mask, at + 2 * width * row));
            /* The next batch: nothing has asked for the first groups of a matrix. An address past
             * the end does no harm. */
            _mm_prefetch((const char *)at + 2 * width * (row + GROUP_BATCH_ROWS), _MM_HINT_T1);
            least = _mm512_min_epi16(least, x);
            most = _mm512_max_epi16(most, x);
        }
        _mm512_mask_storeu_epi16(low + c, mask, least);
        _mm512_mask_storeu_epi16(high + c, mask, most);
    }
}

CODECS_TARGET_AVX512 static bool avx512_range_columns(const group_shape *shape, const void *source,
                                                      uint64_t rows, float *low, float *high)
{
    const uint64_t width = shape->width;
    if (shape->dtype == KVT_DTYPE_FP32) {
        return group_scalar_range_columns(shape, source, rows, low, high);
    }
    /* The orders lie in the upper halves of the arrays that their floats will fill. */
    int16_t *least = (int16_t *)(void *)low + width;
    int16_t *most = (int16_t *)(void *)high + width;
    for (uint64_t row = 0; row < rows; row += GROUP_BATCH_ROWS) {
        uint64_t batch = rows - row < GROUP_BATCH_ROWS ? rows - row : GROUP_BATCH_ROWS;
        avx512_extend((const uint8_t *)source + 2 * width * row, width, batch, row == 0, least,
                      most);
    }
    bool finite = avx512_unorder(shape->dtype, least, width, low);
    return avx512_unorder(shape->dtype, most, width, high) && finite;
}

/* The smallest of 32 orders. */
AVX512_INLINE int16_t avx512_least(__m512i x)
{
    __m256i y = _mm256_min_epi16(_mm512_castsi512_si256(x), _mm512_extracti64x4_epi64(x, 1));
    __m128i z = _mm_min_epi16(_mm256_castsi256_si128(y), _mm256_extracti128_si256(y, 1));
    z = _mm_minpos_epu16(_mm_xor_si128(z, _mm_set1_epi16((int16_t)0x8000)));
    return (int16_t)(_mm_cvtsi128_si32(z) ^ 0x8000);
}

AVX512_INLINE int16_t avx512_most(__m512i x)
{
    __m256i y = _mm256_max_epi16(_mm512_castsi512_si256(x), _mm512_extracti64x4_epi64(x, 1));
    __m128i z = _mm_max_epi16(_mm256_castsi256_si128(y), _mm256_extracti128_si256(y, 1));
    z = _mm_minpos_epu16(_mm_xor_si128(z, _mm_set1_epi16(0x7fff)));
    return (int16_t)(_mm_cvtsi128_si32(z) ^ 0x7fff);
}

/* 32 elements of a group; fewer where it ends, and its next one in their place. */
AVX512_INLINE __m512i avx512_load_group(const uint8_t *at, uint64_t left)
{
    if (left >= 32) return _mm512_loadu_si512(at);
    const __m512i next =
        _mm512_broadcastw_epi16(_mm_loadu_si128((const __m128i *)(const void *)at));
    return _mm512_mask_loadu_epi16(next, (__mmask32)_bzhi_u32(0xffffffffu, (uint32_t)left), at);
}

CODECS_TARGET_AVX512 static bool avx512_range_rows(const group_shape *shape, const void *source,
                                                   uint64_t rows, float *low, float *high)
{
    if (shape->dtype == KVT_DTYPE_FP32) {
        return group_scalar_range_rows(shape, source, rows, low, high);
    }
    enum { BLOCK = 64 };
    int16_t least[BLOCK];
    int16_t most[BLOCK];
    const uint64_t groups = group_count_rows(shape, rows);
    uint64_t left = shape->unit;
    const uint8_t *at = source;
    bool finite = true;
    for (uint64_t block = 0; block < groups; block += BLOCK) {
        uint64_t count = groups - block < BLOCK ? groups - block : BLOCK;
        for (uint64_t g = 0; g < count; g++) {
            const uint64_t size = left < shape->group ? left : shape->group;
            __m512i low_x = avx512_order(avx512_load_group(at, size));
            __m512i high_x = low_x;
            for (uint64_t i = 32; i < size; i += 32) {
                __m512i x = avx512_order(avx512_load_group(at + 2 * i, size - i));
                low_x = _mm512_min_epi16(low_x, x);
                high_x = _mm512_max_epi16(high_x, x);
            }
            at += 2 * size;
            left = left == size ? shape->unit : left - size;
            least[g] = avx512_least(low_x);
            most[g] = avx512_most(high_x);
        }
        finite &= avx512_unorder(shape->dtype, least, count, low + block);
        finite &= avx512_unorder(shape->dtype, most, count, high + block);
    }
    return finite;
}

CODECS_TARGET_AVX512 static bool avx512_finish(const group_ranges *ranges, uint64_t count,
                                               float max_code, uint16_t *minima, uint16_t *scales)
{
    const __m512 zero = _mm512_setzero_ps();
    const __m512 most = _mm512_set1_ps(65504.0f);
    __mmask16 bad = 0;
    for (uint64_t i = 0; i < count; i += 16) {
        const __mmask16 mask = avx512_mask(count - i);
        __m512 low = _mm512_maskz_loadu_ps(mask, ranges->minimum + i);
        __m512 high = _mm512_maskz_loadu_ps(mask, ranges->scale + i);
        __m512 minimum = _mm512_add_ps(avx512_half_round(_mm512_add_ps(low, zero)), zero);
        __m512 range = avx512_half_round(_mm512_sub_ps(high, minimum));
        range = _mm512_mask_mov_ps(range, _mm512_cmp_ps_mask(range, zero, _CMP_LE_OQ), zero);
        __m512 scale = avx512_half_round(_mm512_div_ps(range, _mm512_set1_ps(max_code)));
        __mmask16 fits = _mm512_cmp_ps_mask(_mm512_abs_ps(minimum), most, _CMP_LE_OQ) &
                         _mm512_cmp_ps_mask(range, most, _CMP_LE_OQ);
        bad |= (__mmask16)(mask & (__mmask16)~fits);
        __m512 inverse = _mm512_maskz_div_ps(_mm512_cmp_ps_mask(scale, zero, _CMP_GT_OQ),
                                             _mm512_set1_ps(1.0f), scale);
        _mm256_mask_storeu_epi16(minima + i, mask, _mm512_cvtps_ph(minimum, AVX512_ROUND));
        _mm256_mask_storeu_epi16(scales + i, mask, _mm512_cvtps_ph(scale, AVX512_ROUND));
        _mm512_mask_storeu_ps(ranges->minimum + i, mask, minimum);
        _mm512_mask_storeu_ps(ranges->scale + i, mask,
                              _mm512_mul_ps(inverse, _mm512_set1_ps(128.0f)));
        _mm512_mask_storeu_ps(ranges->inverse + i, mask, inverse);
    }
    return bad == 0;
}

/* Minimum, inverse and 128 times the inverse of 64 elements, in the order of avx512_load_64. */
typedef struct avx512_steps {
    __m512 minimum[4];
    __m512 inverse[4];
    __m512 part[4];
} avx512_steps;

/* 64 elements as floats: in their order, and bf16 as the even ones of 32, then the odd ones. */
AVX512_INLINE void avx512_load_64(uint8_t dtype, const uint8_t *source, uint64_t index, __m512 x[4])
{
    if (dtype != KVT_DTYPE_BF16) {
        for (unsigned k = 0; k < 4; k++) {
            x[k] = avx512_load(dtype, source, index + 16 * k);
        }
        return;
    }
    const __m512i upper = _mm512_set1_epi32((int32_t)0xffff0000u);
    for (unsigned k = 0; k < 4; k += 2) {
        __m512i two = _mm512_loadu_si512(source + 2 * index + 32 * k);
        x[k] = _mm512_castsi512_ps(_mm512_slli_epi32(two, 16));
        x[k + 1] = _mm512_castsi512_ps(_mm512_and_si512(two, upper));
    }
}

/* 64 floats in the order of avx512_load_64. */
AVX512_INLINE void avx512_load_steps(uint8_t dtype, const float *source, __m512 x[4])
{
    for (unsigned k = 0; k < 4; k++) {
        x[k] = _mm512_loadu_ps(source + 16 * k);
    }
    if (dtype != KVT_DTYPE_BF16) return;
    const __m512i even =
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odd = _mm512_or_si512(even, _mm512_set1_epi32(1));
    for (unsigned k = 0; k < 4; k += 2) {
        __m512 low = x[k];
        x[k] = _mm512_permutex2var_ps(low, even, x[k + 1]);
        x[k + 1] = _mm512_permutex2var_ps(low, odd, x[k + 1]);
    }
}

/* Whether all scales are 0 or 2^-12 at least, so that a distance in the subnormal range of fp16 has
 * code 0 however it is rounded. */
AVX512_INLINE bool avx512_is_steady(const group_ranges *ranges, uint64_t count)
{
    __mmask16 steep = 0;
    for (uint64_t i = 0; i < count; i += 16) {
        __m512 inverse = _mm512_maskz_loadu_ps(avx512_mask(count - i), ranges->inverse + i);
        steep |= _mm512_cmp_ps_mask(inverse, _mm512_set1_ps(4096.0f), _CMP_GT_OQ);
    }
    return steep == 0;
}

/* A distance rounded to fp16. `steady`: those below 2^-14 keep more bits; those below 0, whose code
 * is 0, stay there. Adding 2^13 times the power of two below a number leaves 11 of its bits. */
AVX512_INLINE __m512 avx512_round_distance(__m512 distance, bool steady)
{
    if (!steady) return avx512_half_round(distance);
    const __m512 up = _mm512_set1_ps(8192.0f);
    __m512 power = _mm512_castsi512_ps(
        _mm512_and_si512(_mm512_castps_si512(distance), _mm512_set1_epi32(0x7f800000)));
    return _mm512_fnmadd_ps(power, up, _mm512_fmadd_ps(power, up, distance));
}

/* Codes of 16 elements before they are clamped. None can be too large for an integer, as the scale
 * is at least half of a step; what is below zero saturates. The quotient is rounded to 11 bits: it
 * is never in the middle of two fp16 numbers, and below their normal range its code is 0. */
AVX512_INLINE __m512i avx512_code(__m512 distance, __m512 inverse, bool steady)
{
    __m512 ratio = _mm512_mul_ps(avx512_round_distance(distance, steady), inverse);
    __m512i bits = _mm512_add_epi32(_mm512_castps_si512(ratio), _mm512_set1_epi32(0x1000));
    bits = _mm512_and_si512(bits, _mm512_set1_epi32(~0x1fff));
    return _mm512_cvtps_epi32(_mm512_castsi512_ps(bits));
}

/* 64 numbers of 16 bits as bytes, held to 0 .. 255. */
AVX512_INLINE __m512i avx512_bytes(__m512i a, __m512i b)
{
    return _mm512_packus_epi16(a, b);
}

/* group_fine_code of 64 elements in 1/128, before it is held to the cell. */
AVX512_INLINE __m512i avx512_fine_code(__m512i a, __m512i b)
{
    /* A product with 2^13, halved to 16 bits and rounded, is (u + 2) >> 2. */
    const __m512i quarter = _mm512_set1_epi16(0x2000);
    const __m512i shift = _mm512_set1_epi16(225);
    const __m512i low_a = _mm512_mulhrs_epi16(a, quarter);
    const __m512i low_b = _mm512_mulhrs_epi16(b, quarter);
    __m512i inner = avx512_bytes(_mm512_srai_epi16(a, 3), _mm512_srai_epi16(b, 3));
    __m512i high = avx512_bytes(_mm512_sub_epi16(low_a, shift), _mm512_sub_epi16(low_b, shift));
    inner = _mm512_adds_epu8(inner, _mm512_set1_epi8(8)); /* (u + 64) >> 3 */
    return _mm512_max_epu8(_mm512_min_epu8(inner, avx512_bytes(low_a, low_b)), high);
}

/* 64 codes. Packing saturates at 0 and 255 and leaves fours of each vector beside each other; one
 * permutation undoes it and the order of avx512_load_64. */
AVX512_INLINE void avx512_code_64(uint8_t dtype, bool fine, bool steady, const __m512 x[4],
                                  const avx512_steps *steps, __m512i most, uint8_t *codes)
{
    const __m512i order = dtype == KVT_DTYPE_BF16
                              ? _mm512_setr_epi32(0x05010400, 0x07030602, 0x15111410, 0x17131612,
                                                  0x25212420, 0x27232622, 0x35313430, 0x37333632,
                                                  0x0d090c08, 0x0f0b0e0a, 0x1d191c18, 0x1f1b1e1a,
                                                  0x2d292c28, 0x2f2b2e2a, 0x3d393c38, 0x3f3b3e3a)
                              : _mm512_setr_epi32(0x03020100, 0x13121110, 0x23222120, 0x33323130,
                                                  0x07060504, 0x17161514, 0x27262524, 0x37363534,
                                                  0x0b0a0908, 0x1b1a1918, 0x2b2a2928, 0x3b3a3938,
                                                  0x0f0e0d0c, 0x1f1e1d1c, 0x2f2e2d2c, 0x3f3e3d3c);
    __m512i c[4];
    __m512i u[4];
    for (unsigned k = 0; k < 4; k++) {
        __m512 distance = _mm512_sub_ps(x[k], steps->minimum[k]);
        c[k] = avx512_code(distance, steps->inverse[k], steady);
        if (fine) u[k] = _mm512_cvttps_epi32(_mm512_mul_ps(distance, steps->part[k]));
    }
    __m512i code = avx512_bytes(_mm512_packs_epi32(c[0], c[1]), _mm512_packs_epi32(c[2], c[3]));
    code = _mm512_min_epu8(code, most);
    if (fine) {
        __m512i part =
            avx512_fine_code(_mm512_packs_epi32(u[0], u[1]), _mm512_packs_epi32(u[2], u[3]));
        /* Codes have 4 bits: none moves into its neighbour. */
        code = _mm512_slli_epi16(code, 4);
        part = _mm512_max_epu8(part, code);
        code = _mm512_min_epu8(part, _mm512_or_si512(code, _mm512_set1_epi8(15)));
    }
    _mm512_storeu_si512(codes, _mm512_permutexvar_epi8(order, code));
}

/* 64 elements into the second cache; an address past the end does no harm. */
AVX512_INLINE void avx512_prefetch(uint8_t dtype, const uint8_t *source, uint64_t index)
{
    const uint64_t size = kvt_dtype_bytes(dtype);
    for (uint64_t line = 0; line < size; line++) {
        _mm_prefetch((const char *)source + index * size + 64 * line, _MM_HINT_T1);
    }
}

/* Strips of 64 columns over the rows, whose minima and inverses stay in registers. */
AVX512_INLINE void avx512_code_columns(uint8_t dtype, bool fine, bool steady,
                                       const group_shape *shape, float max_code,
                                       const group_ranges *ranges, const uint8_t *source,
                                       uint64_t rows, uint8_t *codes)
{
    const __m512i most = _mm512_set1_epi8((char)(uint8_t)max_code);
    const uint64_t width = shape->width;
    /* The range pass over the next groups waits for memory; this one does not. */
    const uint64_t ahead = shape->group * width * kvt_dtype_bytes(dtype);
    for (uint64_t c = 0; c < width; c += 64) {
        avx512_steps steps;
        avx512_load_steps(dtype, ranges->minimum + c, steps.minimum);
        avx512_load_steps(dtype, ranges->inverse + c, steps.inverse);
        if (fine) avx512_load_steps(dtype, ranges->scale + c, steps.part);
#pragma GCC unroll 1
        for (uint64_t i = c; i < rows * width; i += width) {
            __m512 x[4];
            avx512_prefetch(dtype, source + ahead, i);
            avx512_load_64(dtype, source, i, x);
            avx512_code_64(dtype, fine, steady, x, &steps, most, codes + i);
        }
    }
}

AVX512_INLINE void avx512_code_rows(uint8_t dtype, bool fine, bool steady, const group_shape *shape,
                                    float max_code, const group_ranges *ranges,
                                    const uint8_t *source, uint64_t rows, uint8_t *codes)
{
    const __m512i most = _mm512_set1_epi8((char)(uint8_t)max_code);
    const unsigned log_group = (unsigned)__builtin_ctz(shape->group);
    const uint64_t count = rows * shape->width;
    const uint64_t ahead = 2 * GROUP_BATCH_ROWS * shape->width * kvt_dtype_bytes(dtype);
    for (uint64_t i = 0; i < count; i += 64) {
        avx512_steps steps;
        __m512 x[4];
        avx512_prefetch(dtype, source + ahead, i);
        avx512_load_64(dtype, source, i, x);
        for (unsigned k = 0; k < 4; k++) {
            const uint64_t g = (i + 32 * (k / 2)) >> log_group;
            steps.minimum[k] = _mm512_set1_ps(ranges->minimum[g]);
            steps.inverse[k] = _mm512_set1_ps(ranges->inverse[g]);
            steps.part[k] = _mm512_set1_ps(ranges->scale[g]);
        }
        avx512_code_64(dtype, fine, steady, x, &steps, most, codes + i);
    }
}

AVX512_INLINE void avx512_code_either(uint8_t dtype, bool fine, bool steady,
                                      const group_shape *shape, float max_code,
                                      const group_ranges *ranges, const uint8_t *source,
                                      uint64_t rows, uint8_t *codes)
{
    if (shape->columns)
        avx512_code_columns(dtype, fine, steady, shape, max_code, ranges, source, rows, codes);
    else
        avx512_code_rows(dtype, fine, steady, shape, max_code, ranges, source, rows, codes);
}

CODECS_TARGET_AVX512 static void avx512_codes(const group_shape *shape, const group_coding *coding,
                                              const group_ranges *ranges, const void *source,
                                              uint64_t rows, uint8_t *codes)
{
    const uint8_t *at = source;
    const float max_code = coding->max_code;
    if (!group_fills(shape)) {
        group_scalar_code(shape, coding, ranges, source, rows, codes);
        return;
    }
    const bool steady = avx512_is_steady(
        ranges, shape->columns ? shape->width : rows * shape->width / shape->group);
#define AVX512_CALL(dtype)                                                                         \
    do {                                                                                           \
        if (coding->fine && steady)                                                                \
            avx512_code_either(dtype, true, true, shape, max_code, ranges, at, rows, codes);       \
        else if (coding->fine)                                                                     \
            avx512_code_either(dtype, true, false, shape, max_code, ranges, at, rows, codes);      \
        else if (steady)                                                                           \
            avx512_code_either(dtype, false, true, shape, max_code, ranges, at, rows, codes);      \
        else                                                                                       \
            avx512_code_either(dtype, false, false, shape, max_code, ranges, at, rows, codes);     \
    } while (0)
    GROUP_EACH_DTYPE(AVX512_CALL, shape)
#undef AVX512_CALL
}

/* Bits shift and shift + 1 of 64 codes in 16 bytes. Byte 4 i + j of `codes` is code 16 j + i. */
AVX512_INLINE void avx512_pack2(__m512i codes, unsigned shift, uint8_t *target)
{
    const __m512i weights = _mm512_set1_epi32(0x40100401);
    __m512i two = _mm512_and_si512(_mm512_srli_epi32(codes, shift), _mm512_set1_epi8(3));
    two = _mm512_madd_epi16(_mm512_maddubs_epi16(two, weights), _mm512_set1_epi16(1));
    _mm_storeu_si128((__m128i *)(void *)target, _mm512_cvtepi32_epi8(two));
}

/* Bits 2 k and 2 k + 1 of 64 codes of 8 bits in bytes 16 k to 16 k + 15: the fields of 2 bits in
 * every 4 bytes are transposed by two exchanges. Codes as for avx512_pack2. */
AVX512_INLINE __m512i avx512_pack_fields(__m512i codes)
{
    const __m512i by_field =
        _mm512_setr_epi32(0x0c080400, 0x1c181410, 0x2c282420, 0x3c383430, 0x0d090501, 0x1d191511,
                          0x2d292521, 0x3d393531, 0x0e0a0602, 0x1e1a1612, 0x2e2a2622, 0x3e3a3632,
                          0x0f0b0703, 0x1f1b1713, 0x2f2b2723, 0x3f3b3733);
    const __m512i far = _mm512_set1_epi32(0x0000f0f0);
    const __m512i near = _mm512_set1_epi32(0x00cc00cc);
    /* x ^ ((x ^ (x >> n)) & mask) ^ the same << n */
    __m512i t = _mm512_ternarylogic_epi32(codes, _mm512_srli_epi32(codes, 12), far, 0x28);
    codes = _mm512_ternarylogic_epi32(codes, t, _mm512_slli_epi32(t, 12), 0x96);
    t = _mm512_ternarylogic_epi32(codes, _mm512_srli_epi32(codes, 6), near, 0x28);
    codes = _mm512_ternarylogic_epi32(codes, t, _mm512_slli_epi32(t, 6), 0x96);
    return _mm512_permutexvar_epi8(by_field, codes);
}

AVX512_INLINE void avx512_store_field(uint8_t *target, __m512i fields, unsigned k)
{
    __m128i field = k == 0   ? _mm512_castsi512_si128(fields)
                    : k == 1 ? _mm512_extracti32x4_epi32(fields, 1)
                    : k == 2 ? _mm512_extracti32x4_epi32(fields, 2)
                             : _mm512_extracti32x4_epi32(fields, 3);
    _mm_storeu_si128((__m128i *)(void *)target, field);
}

/* Bits 0 to 3 of 64 codes in 32 bytes. */
AVX512_INLINE void avx512_pack4(__m512i codes, uint8_t *target)
{
    __m256i high = _mm256_slli_epi16(_mm512_extracti64x4_epi64(codes, 1), 4);
    _mm256_storeu_si256((__m256i *)(void *)target,
                        _mm256_or_si256(_mm512_castsi512_si256(codes), high));
}

/* The planes' widths and shifts are constants wherever this is inlined. */
AVX512_INLINE void avx512_pack_planes(const uint8_t *codes, uint64_t count,
                                      const group_plane *planes, const uint8_t *widths,
                                      uint32_t plane_count, unsigned total, uint64_t offset)
{
    const __m512i transposed =
        _mm512_setr_epi32(0x30201000, 0x31211101, 0x32221202, 0x33231303, 0x34241404, 0x35251505,
                          0x36261606, 0x37271707, 0x38281808, 0x39291909, 0x3a2a1a0a, 0x3b2b1b0b,
                          0x3c2c1c0c, 0x3d2d1d0d, 0x3e2e1e0e, 0x3f2f1f0f);
    uint8_t *target[KVT_PLANES_MAX];
    for (uint32_t p = 0; p < plane_count; p++) {
        target[p] = planes[p].data + offset / 8 * widths[p];
    }
    for (uint64_t i = 0; i < count; i += GROUP_CHUNK) {
        const __m512i chunk = _mm512_loadu_si512(codes + i);
        const __m512i across = _mm512_permutexvar_epi8(transposed, chunk);
        const __m512i fields = total == 8 ? avx512_pack_fields(across) : across;
        unsigned shift = total;
        for (uint32_t p = 0; p < plane_count; p++) {
            uint8_t *out = target[p] + i / 8 * widths[p];
            shift -= widths[p];
            if (widths[p] == 1) {
                uint64_t bits = _mm512_test_epi8_mask(chunk, _mm512_set1_epi8((char)(1u << shift)));
                memcpy(out, &bits, sizeof bits);
            } else if (widths[p] == 2 && total == 8) {
                avx512_store_field(out, fields, shift / 2);
            } else if (widths[p] == 2) {
                avx512_pack2(across, shift, out);
            } else {
                avx512_pack4(chunk, out);
            }
        }
    }
}

CODECS_TARGET_AVX512 static void avx512_pack(const uint8_t *codes, uint64_t count,
                                             const group_plane *planes, uint32_t plane_count,
                                             uint64_t offset)
{
    static const uint8_t nested[KVT_PLANES_MAX] = {2, 1, 1, 2, 2};
    static const uint8_t four = 4;
    const uint64_t whole = count / GROUP_CHUNK * GROUP_CHUNK;
    /* Codes have 8 bits where there are more than 3 planes, else 4, however many are kept. */
    switch (plane_count * 16u + planes[0].shift + planes[0].bits) {
    case 16 + 2: avx512_pack_planes(codes, whole, planes, nested, 1, 2, offset); break;
    case 16 + 4:
        if (planes[0].bits == 2)
            avx512_pack_planes(codes, whole, planes, nested, 1, 4, offset);
        else
            avx512_pack_planes(codes, whole, planes, &four, 1, 4, offset);
        break;
    case 16 + 8: memcpy(planes[0].data + offset, codes, whole); break;
    case 32 + 4: avx512_pack_planes(codes, whole, planes, nested, 2, 4, offset); break;
    case 48 + 4: avx512_pack_planes(codes, whole, planes, nested, 3, 4, offset); break;
    case 64 + 8: avx512_pack_planes(codes, whole, planes, nested, 4, 8, offset); break;
    default: avx512_pack_planes(codes, whole, planes, nested, 5, 8, offset); break;
    }
    if (whole < count) {
        group_scalar_pack(codes + whole, count - whole, planes, plane_count, offset + whole);
    }
}

CODECS_TARGET_AVX512 static bool avx512_open(const uint16_t *minima, const uint16_t *scales,
                                             uint64_t count, const group_ranges *ranges)
{
    const __m256i infinity = _mm256_set1_epi16(0x7c00);
    __mmask16 bad = 0;
    for (uint64_t i = 0; i < count; i += 16) {
        const __mmask16 mask = avx512_mask(count - i);
        __m256i minimum = _mm256_maskz_loadu_epi16(mask, minima + i);
        __m256i scale = _mm256_maskz_loadu_epi16(mask, scales + i);
        /* Prefetches the next group; an address past the end does no harm. */
        if (i % 32 == 0) {
            _mm_prefetch((const char *)(minima + count + i), _MM_HINT_T1);
            _mm_prefetch((const char *)(scales + count + i), _MM_HINT_T1);
        }
        bad |=
            _mm256_cmpge_epu16_mask(_mm256_slli_epi16(minimum, 1), _mm256_slli_epi16(infinity, 1));
        bad |= _mm256_cmpge_epu16_mask(scale, infinity);
        _mm512_mask_storeu_ps(ranges->minimum + i, mask, _mm512_cvtph_ps(minimum));
        _mm512_mask_storeu_ps(ranges->scale + i, mask, _mm512_cvtph_ps(scale));
    }
    return bad == 0;
}

static void avx512_close(void)
{
    _mm_sfence(); /* streamed values are seen before whatever is stored after them */
}

const group_kernels group_kernels_avx512 = {
    .range_columns = avx512_range_columns,
    .range_rows = avx512_range_rows,
    .finish = avx512_finish,
    .code = avx512_codes,
    .pack = avx512_pack,
    .unpack = group_scalar_unpack,
    .open = avx512_open,
    .value = group_scalar_value,
    .decode = group_avx512_decode,
    .wide = true,
    .close = avx512_close,
};

#endif
