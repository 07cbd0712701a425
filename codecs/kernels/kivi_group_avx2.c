/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kivi_group_avx2.c - the kernels of kivi_group.h for AVX2 with F16C and FMA. The same bytes as the
 * scalar kernels, which also serve what does not fill vectors: ranges of fp32, short ends (of rows
 * that kivi_group.c has put together). Re-entrant.
 */
#include "kivi_group_scalar.h"

#if defined(__x86_64__)

#include <immintrin.h>

#define AVX2_INLINE static inline __attribute__((always_inline)) CODECS_TARGET_AVX2

enum { AVX2_ROUND = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC };

AVX2_INLINE __m256 avx2_half_round(__m256 x)
{
    return _mm256_cvtph_ps(_mm256_cvtps_ph(x, AVX2_ROUND));
}

AVX2_INLINE __m256i avx2_load_bytes(const void *source)
{
    return _mm256_loadu_si256((const __m256i *)source);
}

AVX2_INLINE __m128i avx2_load_16(const void *source)
{
    return _mm_loadu_si128((const __m128i *)source);
}

/* 8 elements of 16 bits as floats. */
AVX2_INLINE __m256 avx2_to_floats(uint8_t dtype, __m128i halves)
{
    if (dtype == KVT_DTYPE_FP16) return _mm256_cvtph_ps(halves);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}

AVX2_INLINE __m256 avx2_load(uint8_t dtype, const uint8_t *source, uint64_t index)
{
    if (dtype == KVT_DTYPE_FP32)
        return _mm256_loadu_ps((const float *)(const void *)source + index);
    return avx2_to_floats(dtype, avx2_load_16(source + 2 * index));
}

/* Sign and magnitude to an order of integers, and back. */
AVX2_INLINE __m256i avx2_order(__m256i x)
{
    __m256i flip = _mm256_and_si256(_mm256_srai_epi16(x, 15), _mm256_set1_epi16(0x7fff));
    return _mm256_xor_si256(x, flip);
}

/* Orders of 8 elements to floats, and whether all are finite. */
AVX2_INLINE bool avx2_unorder(uint8_t dtype, const int16_t *orders, float *target)
{
    const int16_t most = dtype == KVT_DTYPE_FP16 ? 0x7bff : 0x7f7f;
    __m128i order = avx2_load_16(orders);
    __m128i flip = _mm_and_si128(_mm_srai_epi16(order, 15), _mm_set1_epi16(0x7fff));
    __m128i bad = _mm_or_si128(_mm_cmpgt_epi16(order, _mm_set1_epi16(most)),
                               _mm_cmplt_epi16(order, _mm_set1_epi16((int16_t)~most)));
    _mm256_storeu_ps(target, avx2_to_floats(dtype, _mm_xor_si128(order, flip)));
    return _mm_testz_si128(bad, bad) != 0;
}

CODECS_TARGET_AVX2 static void avx2_extend(const uint8_t *source, uint64_t width, uint64_t rows,
                                           bool first, int16_t *low, int16_t *high)
{
    for (uint64_t column = 0; column < width; column += 16) {
        /* The last 16 may overlap those before: what has been compared twice is the same. */
        const uint64_t c = width - column < 16 ? width - 16 : column;
        __m256i least;
        __m256i most;
        if (first) {
            least = avx2_order(avx2_load_bytes(source + 2 * c));
            most = least;
        } else {
            least = avx2_load_bytes(low + c);
            most = avx2_load_bytes(high + c);
        }
        for (uint64_t row = 0; row < rows; row++) {
            __m256i x = avx2_order(avx2_load_bytes(source + 2 * (c + width * row)));
            least = _mm256_min_epi16(least, x);
            most = _mm256_max_epi16(most, x);
        }
        _mm256_storeu_si256((__m256i *)(void *)(low + c), least);
        _mm256_storeu_si256((__m256i *)(void *)(high + c), most);
    }
}

CODECS_TARGET_AVX2 static bool avx2_range_columns(const group_shape *shape, const void *source,
                                                  uint64_t rows, float *low, float *high)
{
    const uint64_t width = shape->width;
    bool finite = true;
    if (shape->dtype == KVT_DTYPE_FP32 || width < 16) {
        return group_scalar_range_columns(shape, source, rows, low, high);
    }
    /* The orders lie in the upper halves of the arrays that their floats will fill. */
    int16_t *least = (int16_t *)(void *)low + width;
    int16_t *most = (int16_t *)(void *)high + width;
    for (uint64_t row = 0; row < rows; row += GROUP_BATCH_ROWS) {
        uint64_t batch = rows - row < GROUP_BATCH_ROWS ? rows - row : GROUP_BATCH_ROWS;
        avx2_extend((const uint8_t *)source + 2 * width * row, width, batch, row == 0, least, most);
    }
    for (uint64_t c = 0; c < width; c += 8) {
        finite &= avx2_unorder(shape->dtype, least + c, low + c);
        finite &= avx2_unorder(shape->dtype, most + c, high + c);
    }
    return finite;
}

/* The smallest of 16 orders after an exclusive or with `flip`, which makes them unsigned. */
AVX2_INLINE int16_t avx2_least(__m256i least, bool most)
{
    const int flip = most ? 0x7fff : 0x8000;
    __m128i a = _mm256_castsi256_si128(least);
    __m128i b = _mm256_extracti128_si256(least, 1);
    a = most ? _mm_max_epi16(a, b) : _mm_min_epi16(a, b);
    a = _mm_minpos_epu16(_mm_xor_si128(a, _mm_set1_epi16((int16_t)flip)));
    return (int16_t)(_mm_cvtsi128_si32(a) ^ flip);
}

/* 16 elements of a group; its last 8 twice where it ends after them. */
AVX2_INLINE __m256i avx2_load_group(const uint8_t *at, uint64_t left)
{
    return left >= 16 ? avx2_load_bytes(at) : _mm256_broadcastsi128_si256(avx2_load_16(at));
}

CODECS_TARGET_AVX2 static bool avx2_range_rows(const group_shape *shape, const void *source,
                                               uint64_t rows, float *low, float *high)
{
    enum { BLOCK = 8 };
    const uint64_t groups = group_count_rows(shape, rows);
    uint64_t left = shape->unit;
    const uint8_t *at = source;
    bool finite = true;
    if (shape->dtype == KVT_DTYPE_FP32) {
        return group_scalar_range_rows(shape, source, rows, low, high);
    }
    for (uint64_t block = 0; block < groups; block += BLOCK) {
        int16_t least[BLOCK] = {0};
        int16_t most[BLOCK] = {0};
        float values[2][BLOCK];
        uint64_t count = groups - block < BLOCK ? groups - block : BLOCK;
        for (uint64_t g = 0; g < count; g++) {
            const uint64_t size = left < shape->group ? left : shape->group;
            __m256i low_x = avx2_order(avx2_load_group(at, size));
            __m256i high_x = low_x;
            for (uint64_t i = 16; i < size; i += 16) {
                __m256i x = avx2_order(avx2_load_group(at + 2 * i, size - i));
                low_x = _mm256_min_epi16(low_x, x);
                high_x = _mm256_max_epi16(high_x, x);
            }
            at += 2 * size;
            left = left == size ? shape->unit : left - size;
            least[g] = avx2_least(low_x, false);
            most[g] = avx2_least(high_x, true);
        }
        finite &= avx2_unorder(shape->dtype, least, values[0]);
        finite &= avx2_unorder(shape->dtype, most, values[1]);
        memcpy(low + block, values[0], count * sizeof(float));
        memcpy(high + block, values[1], count * sizeof(float));
    }
    return finite;
}

CODECS_TARGET_AVX2 static bool avx2_finish(const group_ranges *ranges, uint64_t count,
                                           float max_code, uint16_t *minima, uint16_t *scales)
{
    const __m256 zero = _mm256_setzero_ps();
    const __m256 most = _mm256_set1_ps(65504.0f);
    const __m256 magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    const uint64_t whole = count / 8 * 8;
    int fits = 0xff;
    for (uint64_t i = 0; i < whole; i += 8) {
        __m256 low = _mm256_loadu_ps(ranges->minimum + i);
        __m256 high = _mm256_loadu_ps(ranges->scale + i);
        __m256 minimum = _mm256_add_ps(avx2_half_round(_mm256_add_ps(low, zero)), zero);
        __m256 range = avx2_half_round(_mm256_sub_ps(high, minimum));
        range = _mm256_andnot_ps(_mm256_cmp_ps(range, zero, _CMP_LE_OQ), range);
        __m256 scale = avx2_half_round(_mm256_div_ps(range, _mm256_set1_ps(max_code)));
        fits &= _mm256_movemask_ps(
            _mm256_and_ps(_mm256_cmp_ps(_mm256_and_ps(minimum, magnitude), most, _CMP_LE_OQ),
                          _mm256_cmp_ps(range, most, _CMP_LE_OQ)));
        __m256 inverse = _mm256_and_ps(_mm256_cmp_ps(scale, zero, _CMP_GT_OQ),
                                       _mm256_div_ps(_mm256_set1_ps(1.0f), scale));
        _mm_storeu_si128((__m128i *)(void *)(minima + i), _mm256_cvtps_ph(minimum, AVX2_ROUND));
        _mm_storeu_si128((__m128i *)(void *)(scales + i), _mm256_cvtps_ph(scale, AVX2_ROUND));
        _mm256_storeu_ps(ranges->minimum + i, minimum);
        _mm256_storeu_ps(ranges->inverse + i, inverse);
        _mm256_storeu_ps(ranges->scale + i, _mm256_mul_ps(inverse, _mm256_set1_ps(128.0f)));
    }
    const group_ranges rest = {ranges->minimum + whole, ranges->scale + whole,
                               ranges->inverse + whole};
    bool rest_fits =
        group_scalar_finish(&rest, count - whole, max_code, minima + whole, scales + whole);
    return fits == 0xff && rest_fits;
}

/* group_fine_code of 16 elements, saturating where the scalar code clamps. */
AVX2_INLINE __m256i avx2_fine_code(__m256i u, __m256i c)
{
    __m256i inner = _mm256_srai_epi16(_mm256_adds_epi16(u, _mm256_set1_epi16(64)), 3);
    __m256i low = _mm256_srai_epi16(_mm256_adds_epi16(u, _mm256_set1_epi16(2)), 2);
    __m256i high = _mm256_sub_epi16(low, _mm256_set1_epi16(225));
    __m256i code = _mm256_max_epi16(_mm256_min_epi16(inner, low), high);
    __m256i cell = _mm256_slli_epi16(c, 4);
    code = _mm256_max_epi16(code, cell);
    return _mm256_min_epi16(code, _mm256_or_si256(cell, _mm256_set1_epi16(15)));
}

/* 32 codes of elements whose ranges are at `step` times their index: 1 along columns. */
AVX2_INLINE void avx2_code_32(uint8_t dtype, bool fine, bool columns, const uint8_t *source,
                              uint64_t index, const group_ranges *ranges, uint64_t group,
                              __m256i most, uint8_t *codes)
{
    __m256i c[4];
    __m256i u[4];
    for (unsigned k = 0; k < 4; k++) {
        const uint64_t g = columns ? group + 8 * k : group;
        __m256 minimum =
            columns ? _mm256_loadu_ps(ranges->minimum + g) : _mm256_set1_ps(ranges->minimum[g]);
        __m256 inverse =
            columns ? _mm256_loadu_ps(ranges->inverse + g) : _mm256_set1_ps(ranges->inverse[g]);
        __m256 distance = _mm256_sub_ps(avx2_load(dtype, source, index + 8 * k), minimum);
        __m256 ratio = avx2_half_round(_mm256_mul_ps(avx2_half_round(distance), inverse));
        c[k] = _mm256_cvtps_epi32(ratio);
        if (!fine) continue;
        __m256 part =
            columns ? _mm256_loadu_ps(ranges->scale + g) : _mm256_set1_ps(ranges->scale[g]);
        u[k] = _mm256_cvttps_epi32(_mm256_mul_ps(distance, part));
    }
    const __m256i zero = _mm256_setzero_si256();
    __m256i a = _mm256_packs_epi32(c[0], c[1]);
    __m256i b = _mm256_packs_epi32(c[2], c[3]);
    a = _mm256_max_epi16(_mm256_min_epi16(a, most), zero);
    b = _mm256_max_epi16(_mm256_min_epi16(b, most), zero);
    if (fine) {
        a = avx2_fine_code(_mm256_packs_epi32(u[0], u[1]), a);
        b = avx2_fine_code(_mm256_packs_epi32(u[2], u[3]), b);
    }
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    _mm256_storeu_si256((__m256i *)(void *)codes,
                        _mm256_permutevar8x32_epi32(_mm256_packus_epi16(a, b), order));
}

AVX2_INLINE void avx2_code_all(uint8_t dtype, bool fine, const group_shape *shape, float max_code,
                               const group_ranges *ranges, const uint8_t *source, uint64_t count,
                               uint8_t *codes)
{
    const __m256i most = _mm256_set1_epi16((int16_t)max_code);
    const unsigned log_group = (unsigned)__builtin_ctz(shape->group);
    if (shape->columns) {
        for (uint64_t row = 0; row < count; row += shape->width) {
            for (uint64_t c = 0; c < shape->width; c += 32) {
                avx2_code_32(dtype, fine, true, source, row + c, ranges, c, most, codes + row + c);
            }
        }
        return;
    }
    for (uint64_t i = 0; i < count; i += 32) {
        avx2_code_32(dtype, fine, false, source, i, ranges, i >> log_group, most, codes + i);
    }
}

CODECS_TARGET_AVX2 static void avx2_code(const group_shape *shape, const group_coding *coding,
                                         const group_ranges *ranges, const void *source,
                                         uint64_t rows, uint8_t *codes)
{
    const uint64_t count = rows * shape->width;
    const float most = coding->max_code;
    if (!group_fills(shape)) {
        group_scalar_code(shape, coding, ranges, source, rows, codes);
        return;
    }
#define AVX2_CALL(dtype)                                                                           \
    do {                                                                                           \
        if (coding->fine)                                                                          \
            avx2_code_all(dtype, true, shape, most, ranges, source, count, codes);                 \
        else                                                                                       \
            avx2_code_all(dtype, false, shape, most, ranges, source, count, codes);                \
    } while (0)
    GROUP_EACH_DTYPE(AVX2_CALL, shape)
#undef AVX2_CALL
}

/* 64 codes of w bits into 8 * w bytes. */
AVX2_INLINE void avx2_pack_chunk(const uint8_t *codes, uint32_t w, unsigned shift, uint8_t *target)
{
    const __m128i down = _mm_cvtsi32_si128((int)shift);
    if (w == 1) {
        const __m128i up = _mm_cvtsi32_si128((int)(7 - shift));
        for (unsigned k = 0; k < 2; k++) {
            __m256i x = _mm256_sll_epi16(avx2_load_bytes(codes + 32 * k), up);
            codecs_store32(target + 4 * k, (uint32_t)_mm256_movemask_epi8(x));
        }
        return;
    }
    const __m128i mask = _mm_set1_epi8((char)((1u << w) - 1u));
    const unsigned bytes = 8 * w;
    for (unsigned at = 0; at < bytes; at += 16) {
        __m128i packed = _mm_setzero_si128();
        for (unsigned k = 0; k < 8 / w; k++) {
            __m128i x = avx2_load_16(codes + at + k * bytes);
            x = _mm_and_si128(_mm_srl_epi16(x, down), mask);
            packed = _mm_or_si128(packed, _mm_sll_epi16(x, _mm_cvtsi32_si128((int)(w * k))));
        }
        _mm_storeu_si128((__m128i *)(void *)(target + at), packed);
    }
}

CODECS_TARGET_AVX2 static void avx2_pack(const uint8_t *codes, uint64_t count,
                                         const group_plane *planes, uint32_t plane_count,
                                         uint64_t offset)
{
    const uint64_t whole = count / 64 * 64;
    for (uint64_t i = 0; i < whole; i += 64) {
        for (uint32_t p = 0; p < plane_count; p++) {
            const group_plane *plane = &planes[p];
            uint8_t *chunk = plane->data + (offset + i) / 8 * plane->bits;
            switch (plane->bits) {
            case 1: avx2_pack_chunk(codes + i, 1, plane->shift, chunk); break;
            case 2: avx2_pack_chunk(codes + i, 2, plane->shift, chunk); break;
            case 4: avx2_pack_chunk(codes + i, 4, plane->shift, chunk); break;
            default: memcpy(chunk, codes + i, 64); break;
            }
        }
    }
    if (whole < count) {
        group_scalar_pack(codes + whole, count - whole, planes, plane_count, offset + whole);
    }
}

/* Adds the bits of one plane to 64 codes in two vectors. */
AVX2_INLINE void avx2_unpack_chunk(const uint8_t *source, uint32_t w, unsigned shift,
                                   __m256i codes[2])
{
    const __m128i up = _mm_cvtsi32_si128((int)shift);
    const __m256i bytes =
        _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i bits = _mm256_set1_epi64x((long long)0x8040201008040201u);
    const __m256i mask = _mm256_set1_epi8((char)((1u << w) - 1u));
    __m256i x[2];
    if (w == 8) {
        codes[0] = avx2_load_bytes(source);
        codes[1] = avx2_load_bytes(source + 32);
        return;
    }
    for (unsigned k = 0; k < 2; k++) {
        if (w == 1) {
            x[k] = _mm256_set1_epi32((int)codecs_load32(source + 4 * k));
            x[k] = _mm256_and_si256(_mm256_shuffle_epi8(x[k], bytes), bits);
            x[k] = _mm256_cmpeq_epi8(x[k], bits);
        } else if (w == 2) {
            const int low = (int)(4 * k);
            const __m256i down =
                _mm256_setr_epi32(low, low, low, low, low + 2, low + 2, low + 2, low + 2);
            x[k] = _mm256_srlv_epi32(_mm256_broadcastsi128_si256(avx2_load_16(source)), down);
        } else {
            x[k] = _mm256_srl_epi16(avx2_load_bytes(source), _mm_cvtsi32_si128((int)(4 * k)));
        }
        x[k] = _mm256_sll_epi16(_mm256_and_si256(x[k], mask), up);
        codes[k] = _mm256_or_si256(codes[k], x[k]);
    }
}

CODECS_TARGET_AVX2 static void avx2_unpack(const group_plane *planes, uint32_t plane_count,
                                           uint64_t offset, uint64_t count, uint8_t *codes)
{
    const uint64_t whole = count / 64 * 64;
    for (uint64_t i = 0; i < whole; i += 64) {
        __m256i chunk[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
        for (uint32_t p = 0; p < plane_count; p++) {
            const uint32_t w = planes[p].bits;
            const uint8_t *at = planes[p].data + (offset + i) / 8 * w;
            switch (w) {
            case 1: avx2_unpack_chunk(at, 1, planes[p].shift, chunk); break;
            case 2: avx2_unpack_chunk(at, 2, planes[p].shift, chunk); break;
            case 4: avx2_unpack_chunk(at, 4, planes[p].shift, chunk); break;
            default: avx2_unpack_chunk(at, 8, 0, chunk); break;
            }
        }
        _mm256_storeu_si256((__m256i *)(void *)(codes + i), chunk[0]);
        _mm256_storeu_si256((__m256i *)(void *)(codes + i + 32), chunk[1]);
    }
    if (whole < count) {
        group_scalar_unpack(planes, plane_count, offset + whole, count - whole, codes + whole);
    }
}

/* The levels of 8 codes. */
AVX2_INLINE __m256 avx2_level(group_level_kind kind, const group_levels *levels,
                              const uint8_t *codes)
{
    const __m256 unit = _mm256_set1_ps(1.0f / 64.0f);
    __m256i x = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)codes));
    __m256i level;
    switch (kind) {
    case GROUP_LEVEL_TABLE: /* at most 8 codes */
        return _mm256_permutevar8x32_ps(_mm256_loadu_ps(levels->table), x);
    case GROUP_LEVEL_FINE6: {
        __m256i eight = _mm256_slli_epi32(x, 3);
        __m256i inner = _mm256_sub_epi32(_mm256_add_epi32(eight, eight), _mm256_set1_epi32(24));
        level = _mm256_max_epi32(inner, _mm256_add_epi32(eight, _mm256_set1_epi32(3)));
        level = _mm256_min_epi32(level, _mm256_add_epi32(eight, _mm256_set1_epi32(453)));
        /* The outermost levels are 0 and 960 instead of 3 and 957. */
        __m256i first = _mm256_cmpeq_epi32(x, _mm256_setzero_si256());
        __m256i last = _mm256_cmpeq_epi32(x, _mm256_set1_epi32(63));
        level = _mm256_andnot_si256(first, level);
        level = _mm256_add_epi32(level, _mm256_and_si256(last, _mm256_set1_epi32(3)));
        return _mm256_mul_ps(_mm256_cvtepi32_ps(level), unit);
    }
    case GROUP_LEVEL_FINE8: {
        __m256i twice = _mm256_add_epi32(x, x);
        __m256i inner = _mm256_sub_epi32(_mm256_add_epi32(twice, twice), _mm256_set1_epi32(30));
        level = _mm256_min_epi32(_mm256_max_epi32(inner, twice),
                                 _mm256_add_epi32(twice, _mm256_set1_epi32(450)));
        return _mm256_mul_ps(_mm256_cvtepi32_ps(level), unit);
    }
    default: return _mm256_cvtepi32_ps(x);
    }
}

/* 16 values as 16-bit elements. Values are finite, or infinite in fp16. */
AVX2_INLINE __m256i avx2_shorten(uint8_t dtype, const __m256 value[2])
{
    if (dtype == KVT_DTYPE_FP16) {
        return _mm256_inserti128_si256(
            _mm256_castsi128_si256(_mm256_cvtps_ph(value[0], AVX2_ROUND)),
            _mm256_cvtps_ph(value[1], AVX2_ROUND), 1);
    }
    __m256i bits[2];
    for (unsigned k = 0; k < 2; k++) {
        __m256i x = _mm256_castps_si256(value[k]);
        __m256i odd = _mm256_and_si256(_mm256_srli_epi32(x, 16), _mm256_set1_epi32(1));
        x = _mm256_add_epi32(_mm256_add_epi32(x, _mm256_set1_epi32(0x7fff)), odd);
        bits[k] = _mm256_srli_epi32(x, 16);
    }
    return _mm256_permute4x64_epi64(_mm256_packus_epi32(bits[0], bits[1]), 0xd8);
}

/* 16 elements from `index` on, whose groups start at `group`. */
AVX2_INLINE void avx2_value_16(uint8_t dtype, group_level_kind kind, bool columns, bool stream,
                               const group_levels *levels, const group_ranges *ranges,
                               const uint8_t *codes, uint64_t index, uint64_t group,
                               uint8_t *target)
{
    __m256 value[2];
    for (unsigned k = 0; k < 2; k++) {
        const uint64_t g = columns ? group + 8 * k : group;
        __m256 scale =
            columns ? _mm256_loadu_ps(ranges->scale + g) : _mm256_set1_ps(ranges->scale[g]);
        __m256 minimum =
            columns ? _mm256_loadu_ps(ranges->minimum + g) : _mm256_set1_ps(ranges->minimum[g]);
        value[k] = _mm256_mul_ps(avx2_level(kind, levels, codes + index + 8 * k), scale);
        if (levels->half_steps) value[k] = avx2_half_round(value[k]);
        value[k] = _mm256_add_ps(value[k], minimum);
        if (levels->half_steps) value[k] = avx2_half_round(value[k]);
        if (dtype == KVT_DTYPE_FP32) {
            _mm256_storeu_ps((float *)(void *)target + index + 8 * k, value[k]);
        }
    }
    if (dtype == KVT_DTYPE_FP32) return;
    __m256i *at = (__m256i *)(void *)(target + 2 * index);
    if (stream) {
        _mm256_stream_si256(at, avx2_shorten(dtype, value));
    } else {
        _mm256_storeu_si256(at, avx2_shorten(dtype, value));
    }
}

AVX2_INLINE void avx2_value_all(uint8_t dtype, group_level_kind kind, const group_shape *shape,
                                const group_levels *levels, const group_ranges *ranges,
                                const uint8_t *codes, uint64_t count, uint8_t *target)
{
    const unsigned log_group = (unsigned)__builtin_ctz(shape->group);
    const bool stream = levels->stream && (uintptr_t)target % 32 == 0;
    if (!shape->columns) {
        for (uint64_t i = 0; i < count; i += 16) {
            avx2_value_16(dtype, kind, false, stream, levels, ranges, codes, i, i >> log_group,
                          target);
        }
        return;
    }
    for (uint64_t row = 0; row < count; row += shape->width) {
        for (uint64_t c = 0; c < shape->width; c += 16) {
            avx2_value_16(dtype, kind, true, stream, levels, ranges, codes, row + c, c, target);
        }
    }
}

AVX2_INLINE void avx2_value_kind(group_level_kind kind, const group_shape *shape,
                                 const group_levels *levels, const group_ranges *ranges,
                                 const uint8_t *codes, uint64_t count, uint8_t *target){
#define AVX2_CALL(dtype) avx2_value_all(dtype, kind, shape, levels, ranges, codes, count, target)
    GROUP_EACH_DTYPE(AVX2_CALL, shape)
#undef AVX2_CALL
}

CODECS_TARGET_AVX2 static void avx2_value(const group_shape *shape, const group_levels *levels,
                                          const group_ranges *ranges, const uint8_t *codes,
                                          uint64_t rows, void *target)
{
    const uint64_t n = rows * shape->width;
    if (!group_fills(shape)) {
        group_scalar_value(shape, levels, ranges, codes, rows, target);
        return;
    }
    switch (levels->kind) {
    case GROUP_LEVEL_TABLE:
        avx2_value_kind(GROUP_LEVEL_TABLE, shape, levels, ranges, codes, n, target);
        break;
    case GROUP_LEVEL_FINE6:
        avx2_value_kind(GROUP_LEVEL_FINE6, shape, levels, ranges, codes, n, target);
        break;
    case GROUP_LEVEL_FINE8:
        avx2_value_kind(GROUP_LEVEL_FINE8, shape, levels, ranges, codes, n, target);
        break;
    default: avx2_value_kind(GROUP_LEVEL_CODE256, shape, levels, ranges, codes, n, target); break;
    }
}

CODECS_TARGET_AVX2 static bool avx2_open(const uint16_t *minima, const uint16_t *scales,
                                         uint64_t count, const group_ranges *ranges)
{
    const uint64_t whole = count / 8 * 8;
    const __m128i most = _mm_set1_epi16(0x7bff);
    __m128i bad = _mm_setzero_si128();
    for (uint64_t i = 0; i < whole; i += 8) {
        __m128i minimum = avx2_load_16(minima + i);
        __m128i scale = avx2_load_16(scales + i);
        __m128i size = _mm_and_si128(minimum, _mm_set1_epi16(0x7fff));
        bad =
            _mm_or_si128(bad, _mm_or_si128(_mm_cmpgt_epi16(size, most), _mm_srai_epi16(scale, 15)));
        bad = _mm_or_si128(bad, _mm_cmpgt_epi16(scale, most));
        _mm256_storeu_ps(ranges->minimum + i, _mm256_cvtph_ps(minimum));
        _mm256_storeu_ps(ranges->scale + i, _mm256_cvtph_ps(scale));
    }
    const group_ranges rest = {ranges->minimum + whole, ranges->scale + whole,
                               ranges->inverse + whole};
    bool sound = group_scalar_open(minima + whole, scales + whole, count - whole, &rest);
    return sound && _mm_testz_si128(bad, bad) != 0;
}

static void avx2_close(void)
{
    _mm_sfence(); /* streamed values are seen before whatever is stored after them */
}

const group_kernels group_kernels_avx2 = {
    .range_columns = avx2_range_columns,
    .range_rows = avx2_range_rows,
    .finish = avx2_finish,
    .code = avx2_code,
    .pack = avx2_pack,
    .unpack = avx2_unpack,
    .open = avx2_open,
    .value = avx2_value,
    .wide = true,
    .close = avx2_close,
};

#endif
