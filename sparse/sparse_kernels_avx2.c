/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sparse_kernels_avx2.c - the kernels for AVX2 and F16C; the same bits as the scalar ones, so
 * products and sums stay apart.
 */
#include "sparse_kernels.h"

#if defined(__x86_64__)

#include <immintrin.h>
#include <math.h>

#define INLINE_AVX2 static inline __attribute__((always_inline)) CODECS_TARGET_AVX2

/* 8 elements from the i-th on. */
INLINE_AVX2 __m256 load_8(const void *row, uint32_t i, uint8_t dtype)
{
    if (dtype == KVT_DTYPE_FP32) return _mm256_loadu_ps((const float *)row + i);
    const __m128i half = _mm_loadu_si128((const void *)((const uint16_t *)row + i));
    if (dtype == KVT_DTYPE_FP16) return _mm256_cvtph_ps(half);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

INLINE_AVX2 float lanes_sum(__m256 lanes)
{
    float lane[SPARSE_LANES];
    _mm256_storeu_ps(lane, lanes);
    return sparse_lanes_sum(lane);
}

CODECS_TARGET_AVX2 static void avx2_widen(const void *row, uint32_t count, uint8_t dtype,
                                          float *out)
{
    const __m256 sign = _mm256_set1_ps(-0.0f), most = _mm256_set1_ps(SPARSE_ELEMENT_MAX);
    for (uint32_t i = 0; i < count; i += 8) {
        const __m256 x = load_8(row, i, dtype);
        const __m256 sound = _mm256_cmp_ps(_mm256_andnot_ps(sign, x), most, _CMP_LE_OQ);
        _mm256_storeu_ps(out + i, _mm256_and_ps(x, sound));
    }
}

/* ---- the nearest centroid ---- */

enum { ASSIGN_ROWS = 4 }; /* that share the loads of centroids */

typedef struct nearest_rows {
    __m256i best[ASSIGN_ROWS], where[ASSIGN_ROWS];
} nearest_rows;

/* One block of 16 centroids and a few rows: 8 sums in registers. */
INLINE_AVX2 void assign_block(const int16_t *const rows[ASSIGN_ROWS], uint32_t head_dim,
                              const int16_t *centroids, const int32_t *norms, int32_t number,
                              nearest_rows *nearest)
{
    __m256i sum[ASSIGN_ROWS][2];
    for (int r = 0; r < ASSIGN_ROWS; r++)
        sum[r][0] = sum[r][1] = _mm256_setzero_si256();
    for (uint32_t d = 0; d < head_dim; d += 2, centroids += 2 * SPARSE_BLOCK) {
        const __m256i low = _mm256_load_si256((const void *)centroids);
        const __m256i high = _mm256_load_si256((const void *)(centroids + SPARSE_BLOCK));
        for (int r = 0; r < ASSIGN_ROWS; r++) {
            int32_t pair;
            memcpy(&pair, rows[r] + d, sizeof pair);
            const __m256i both = _mm256_set1_epi32(pair);
            sum[r][0] = _mm256_add_epi32(sum[r][0], _mm256_madd_epi16(low, both));
            sum[r][1] = _mm256_add_epi32(sum[r][1], _mm256_madd_epi16(high, both));
        }
    }
    const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    for (int half = 0; half < 2; half++) {
        const __m256i norm = _mm256_loadu_si256((const void *)(norms + 8 * half));
        const __m256i place = _mm256_add_epi32(_mm256_set1_epi32(number + 8 * half), lanes);
        for (int r = 0; r < ASSIGN_ROWS; r++) {
            const __m256i value = _mm256_sub_epi32(_mm256_slli_epi32(sum[r][half], 1), norm);
            const __m256i more = _mm256_cmpgt_epi32(value, nearest->best[r]);
            nearest->best[r] = _mm256_blendv_epi8(nearest->best[r], value, more);
            nearest->where[r] = _mm256_blendv_epi8(nearest->where[r], place, more);
        }
    }
}

/* The largest of 8 values, the lowest place of equal ones. */
static uint16_t nearest_of(const int32_t value[8], const int32_t place[8])
{
    int at = 0;
    for (int i = 1; i < 8; i++)
        if (value[i] > value[at] || (value[i] == value[at] && place[i] < place[at])) at = i;
    return (uint16_t)place[at];
}

CODECS_TARGET_AVX2 static void avx2_assign(const int16_t *rows, uint32_t tokens, uint32_t head_dim,
                                           const int16_t *centroids, const int32_t *norms,
                                           uint32_t blocks, uint16_t *owner)
{
    const size_t block = (size_t)head_dim * SPARSE_BLOCK;
    for (uint32_t t = 0; t < tokens; t += ASSIGN_ROWS) {
        const int16_t *four[ASSIGN_ROWS];
        nearest_rows nearest;
        for (uint32_t r = 0; r < ASSIGN_ROWS; r++) { /* the last row fills up */
            const uint32_t row = t + r < tokens ? t + r : tokens - 1;
            four[r] = rows + (size_t)row * head_dim;
            nearest.best[r] = _mm256_set1_epi32(INT32_MIN);
            nearest.where[r] = _mm256_setzero_si256();
        }
        for (uint32_t b = 0; b < blocks; b++)
            assign_block(four, head_dim, centroids + b * block, norms + b * SPARSE_BLOCK,
                         (int32_t)(b * SPARSE_BLOCK), &nearest);
        for (uint32_t r = 0; r < ASSIGN_ROWS && t + r < tokens; r++) {
            int32_t value[8], place[8];
            _mm256_storeu_si256((void *)value, nearest.best[r]);
            _mm256_storeu_si256((void *)place, nearest.where[r]);
            owner[t + r] = nearest_of(value, place);
        }
    }
}

/* ---- scores ---- */

/* 16 elements of a row; of the last 8 of it, zeros behind. */
INLINE_AVX2 __m256i row_16(const int8_t *row, bool half)
{
    const __m128i bytes =
        half ? _mm_loadl_epi64((const void *)row) : _mm_loadu_si128((const void *)row);
    return _mm256_cvtepi8_epi16(bytes);
}

INLINE_AVX2 __m256i folded_16(const int16_t *folded, bool half)
{
    if (!half) return _mm256_loadu_si256((const void *)folded);
    return _mm256_zextsi128_si256(_mm_loadu_si128((const void *)folded));
}

/* The four sums of eight lanes each, side by side, as floats. */
INLINE_AVX2 __m128 four_sums(__m256i a, __m256i b, __m256i c, __m256i d)
{
    const __m256i all = _mm256_hadd_epi32(_mm256_hadd_epi32(a, b), _mm256_hadd_epi32(c, d));
    return _mm_cvtepi32_ps(
        _mm_add_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1)));
}

/* One row and four queries. */
INLINE_AVX2 __m128 score_queries(const int8_t *row, uint32_t head_dim, const int16_t *folded)
{
    __m256i a = _mm256_setzero_si256(), b = a, c = a, e = a;
    for (uint32_t d = 0; d < head_dim; d += 16, folded += 16) {
        const bool half = d + 16 > head_dim;
        const __m256i own = row_16(row + d, half);
        a = _mm256_add_epi32(a, _mm256_madd_epi16(own, folded_16(folded, half)));
        b = _mm256_add_epi32(b, _mm256_madd_epi16(own, folded_16(folded + head_dim, half)));
        c = _mm256_add_epi32(
            c, _mm256_madd_epi16(own, folded_16(folded + 2 * (size_t)head_dim, half)));
        e = _mm256_add_epi32(
            e, _mm256_madd_epi16(own, folded_16(folded + 3 * (size_t)head_dim, half)));
    }
    return four_sums(a, b, c, e);
}

/* Four rows and one query. */
INLINE_AVX2 __m128 score_rows(const int8_t *const rows[4], uint32_t head_dim, const int16_t *folded)
{
    __m256i sum[4] = {_mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256(),
                      _mm256_setzero_si256()};
    for (uint32_t d = 0; d < head_dim; d += 16) {
        const bool half = d + 16 > head_dim;
        const __m256i own = folded_16(folded + d, half);
        for (int r = 0; r < 4; r++)
            sum[r] = _mm256_add_epi32(sum[r], _mm256_madd_epi16(row_16(rows[r] + d, half), own));
    }
    return four_sums(sum[0], sum[1], sum[2], sum[3]);
}

enum { SCORE_AHEAD = 8 }; /* rows of a list that are asked for beforehand */

CODECS_TARGET_AVX2 static void avx2_score(const int8_t *rows, const uint32_t *list, uint32_t count,
                                          uint32_t head_dim, const int16_t *folded, uint32_t group,
                                          const float *unit, size_t width, float *out)
{
    for (uint32_t c = 0; c < count; c += 4) {
        const int8_t *four[4];
        for (uint32_t r = 0; r < 4; r++) {
            four[r] = rows + (size_t)(list != NULL ? list[c + r] : c + r) * head_dim;
            if (list == NULL || c + r + SCORE_AHEAD >= count) continue;
            const int8_t *next = rows + (size_t)list[c + r + SCORE_AHEAD] * head_dim;
            for (uint32_t d = 0; d < head_dim; d += 64)
                _mm_prefetch((const char *)next + d, _MM_HINT_T0);
        }
        uint32_t g = 0;
        for (; g + 4 <= group; g += 4) {
            const __m128 units = _mm_loadu_ps(unit + g);
            __m128 sum[4];
            for (int r = 0; r < 4; r++)
                sum[r] = _mm_mul_ps(score_queries(four[r], head_dim, folded + (size_t)g * head_dim),
                                    units);
            _MM_TRANSPOSE4_PS(sum[0], sum[1], sum[2], sum[3]);
            for (int q = 0; q < 4; q++)
                _mm_storeu_ps(out + (g + (uint32_t)q) * width + c, sum[q]);
        }
        for (; g < group; g++)
            _mm_storeu_ps(out + g * width + c,
                          _mm_mul_ps(score_rows(four, head_dim, folded + (size_t)g * head_dim),
                                     _mm_set1_ps(unit[g])));
    }
}

/* sparse_lift of 8 scatters. */
INLINE_AVX2 __m256 lift_8(__m256 scatter, __m256 deviation)
{
    const __m256 one = _mm256_set1_ps(1.0f), half = _mm256_set1_ps(0.5f);
    const __m256 x = _mm256_mul_ps(deviation, scatter);
    return _mm256_div_ps(
        _mm256_mul_ps(half, x),
        _mm256_add_ps(one, _mm256_mul_ps(x, _mm256_set1_ps(1.0f / SPARSE_LIFT_MAX))));
}

/* Sums of one or two blocks' sketches and some queries from `folded` on: no lane passes an
 * int16. */
INLINE_AVX2 void sketch_blocks(const uint8_t *sketches, const uint32_t blocks, uint32_t axes,
                               const int8_t *folded, uint32_t group, const uint32_t queries,
                               size_t width, int16_t *sums, __m256i *peaks)
{
    const __m256i low_half = _mm256_set1_epi8(15);
    const size_t block = (size_t)axes / 2 * SPARSE_BLOCK;
    __m256i sum[4][2];
    for (uint32_t q = 0; q < queries; q++)
        sum[q][0] = sum[q][1] = _mm256_setzero_si256();
    for (uint32_t i = 0; i < axes; i += 4, sketches += 2 * SPARSE_BLOCK, folded += 8 * group) {
        __m256i low[2], high[2];
        for (uint32_t b = 0; b < blocks; b++) {
            const __m256i both = _mm256_loadu_si256((const void *)(sketches + b * block));
            low[b] = _mm256_and_si256(both, low_half);
            high[b] = _mm256_and_si256(_mm256_srli_epi16(both, 4), low_half);
        }
        for (uint32_t q = 0; q < queries; q++) {
            int32_t pair[2];
            memcpy(&pair[0], folded + 4 * q, 4);
            memcpy(&pair[1], folded + 4 * (group + q), 4);
            const __m256i first = _mm256_set1_epi32(pair[0]), second = _mm256_set1_epi32(pair[1]);
            for (uint32_t b = 0; b < blocks; b++) {
                sum[q][b] = _mm256_add_epi16(sum[q][b], _mm256_maddubs_epi16(low[b], first));
                sum[q][b] = _mm256_add_epi16(sum[q][b], _mm256_maddubs_epi16(high[b], second));
            }
        }
    }
    for (uint32_t q = 0; q < queries; q++, sums += width) {
        for (uint32_t b = 0; b < blocks; b++) {
            _mm256_storeu_si256((void *)(sums + b * SPARSE_BLOCK), sum[q][b]);
            peaks[q] = _mm256_max_epi16(peaks[q], sum[q][b]);
        }
    }
}

INLINE_AVX2 void sketch_queries(const uint8_t *sketches, uint32_t blocks, uint32_t axes,
                                const int8_t *folded, uint32_t group, const uint32_t queries,
                                size_t width, int16_t *sums, int16_t *peaks)
{
    const size_t block = (size_t)axes / 2 * SPARSE_BLOCK;
    __m256i most[4];
    uint32_t b = 0;
    for (uint32_t q = 0; q < queries; q++)
        most[q] = _mm256_set1_epi16(INT16_MIN);
    for (; b + 2 <= blocks; b += 2)
        sketch_blocks(sketches + b * block, 2, axes, folded, group, queries, width,
                      sums + (size_t)b * SPARSE_BLOCK, most);
    if (b < blocks)
        sketch_blocks(sketches + b * block, 1, axes, folded, group, queries, width,
                      sums + (size_t)b * SPARSE_BLOCK, most);
    for (uint32_t q = 0; q < queries; q++) {
        int16_t lane[SPARSE_BLOCK];
        _mm256_storeu_si256((void *)lane, most[q]);
        peaks[q] = lane[0];
        for (uint32_t i = 1; i < SPARSE_BLOCK; i++)
            peaks[q] = lane[i] > peaks[q] ? lane[i] : peaks[q];
    }
}

CODECS_TARGET_AVX2 static void avx2_sketch(const uint8_t *sketches, uint32_t blocks, uint32_t axes,
                                           const int8_t *folded, uint32_t group, size_t width,
                                           int16_t *sums, int16_t *peaks)
{
    uint32_t g = 0;
    for (; g + 4 <= group; g += 4)
        sketch_queries(sketches, blocks, axes, folded + 4 * (size_t)g, group, 4, width,
                       sums + g * width, peaks + g);
    for (; g < group; g++)
        sketch_queries(sketches, blocks, axes, folded + 4 * (size_t)g, group, 1, width,
                       sums + g * width, peaks + g);
}

CODECS_TARGET_AVX2 static void avx2_keys(const int16_t *sums, size_t width, uint32_t count,
                                         const int16_t *offset, uint32_t group, int16_t *out)
{
    for (uint32_t c = 0; c < count; c += SPARSE_BLOCK) {
        __m256i key = _mm256_set1_epi16(INT16_MIN);
        for (uint32_t g = 0; g < group; g++)
            key = _mm256_max_epi16(
                key, _mm256_adds_epi16(_mm256_loadu_si256((const void *)(sums + g * width + c)),
                                       _mm256_set1_epi16(offset[g])));
        _mm256_storeu_si256((void *)(out + c), key);
    }
}

CODECS_TARGET_AVX2 static uint32_t avx2_sieve(const int16_t *keys, uint32_t count, int16_t least,
                                              uint32_t *out)
{
    const __m256i bound = _mm256_set1_epi16(least);
    uint32_t found = 0;
    for (uint32_t c = 0; c < count; c += SPARSE_BLOCK) {
        const __m256i less =
            _mm256_cmpgt_epi16(bound, _mm256_loadu_si256((const void *)(keys + c)));
        const __m128i bytes =
            _mm_packs_epi16(_mm256_castsi256_si128(less), _mm256_extracti128_si256(less, 1));
        for (uint32_t mask = ~(uint32_t)_mm_movemask_epi8(bytes) & 0xffffu; mask != 0;
             mask &= mask - 1)
            out[found++] = c + (uint32_t)__builtin_ctz(mask);
    }
    return found;
}

CODECS_TARGET_AVX2 static void avx2_lift(const float *scatter, float deviation, uint32_t width,
                                         float *scores)
{
    const __m256 all = _mm256_set1_ps(deviation);
    for (uint32_t c = 0; c < width; c += 8)
        _mm256_storeu_ps(scores + c, _mm256_add_ps(_mm256_loadu_ps(scores + c),
                                                   lift_8(_mm256_loadu_ps(scatter + c), all)));
}

/* sparse_exp of 8 numbers. */
INLINE_AVX2 __m256 exp_8(__m256 x)
{
    const __m256 t = _mm256_mul_ps(x, _mm256_set1_ps(SPARSE_LOG2E));
    const __m256 alive = _mm256_cmp_ps(t, _mm256_set1_ps(-126.0f), _CMP_GT_OQ);
    const __m256i whole = _mm256_cvtps_epi32(t);
    const __m256 f = _mm256_sub_ps(t, _mm256_cvtepi32_ps(whole));
    __m256 p = _mm256_set1_ps(SPARSE_EXP_6);
    p = _mm256_add_ps(_mm256_mul_ps(p, f), _mm256_set1_ps(SPARSE_EXP_5));
    p = _mm256_add_ps(_mm256_mul_ps(p, f), _mm256_set1_ps(SPARSE_EXP_4));
    p = _mm256_add_ps(_mm256_mul_ps(p, f), _mm256_set1_ps(SPARSE_EXP_3));
    p = _mm256_add_ps(_mm256_mul_ps(p, f), _mm256_set1_ps(SPARSE_EXP_2));
    p = _mm256_add_ps(_mm256_mul_ps(p, f), _mm256_set1_ps(SPARSE_EXP_1));
    p = _mm256_add_ps(_mm256_mul_ps(p, f), _mm256_set1_ps(1.0f));
    const __m256i power = _mm256_slli_epi32(_mm256_add_epi32(whole, _mm256_set1_epi32(127)), 23);
    return _mm256_and_ps(_mm256_mul_ps(p, _mm256_castsi256_ps(power)), alive);
}

CODECS_TARGET_AVX2 static float avx2_weigh(float *scores, const uint32_t *tokens, uint32_t width,
                                           float largest)
{
    const __m256 most = _mm256_set1_ps(largest);
    __m256 lanes = _mm256_setzero_ps();
    for (uint32_t c = 0; c < width; c += 8) {
        const __m256 count = _mm256_cvtepi32_ps(_mm256_loadu_si256((const void *)(tokens + c)));
        const __m256 x = _mm256_sub_ps(_mm256_loadu_ps(scores + c), most);
        const __m256 weight = _mm256_mul_ps(count, exp_8(x));
        _mm256_storeu_ps(scores + c, weight);
        lanes = _mm256_add_ps(lanes, weight);
    }
    return lanes_sum(lanes);
}

CODECS_TARGET_AVX2 static float avx2_largest(const float *scores, const uint32_t *tokens,
                                             uint32_t width)
{
    const __m256 none = _mm256_set1_ps(-INFINITY);
    __m256 most = none;
    float lane[SPARSE_LANES], largest = -INFINITY;
    for (uint32_t c = 0; c < width; c += 8) {
        const __m256i count = _mm256_loadu_si256((const void *)(tokens + c));
        const __m256 empty = _mm256_castsi256_ps(_mm256_cmpeq_epi32(count, _mm256_setzero_si256()));
        most = _mm256_max_ps(most, _mm256_blendv_ps(_mm256_loadu_ps(scores + c), none, empty));
    }
    _mm256_storeu_ps(lane, most);
    for (uint32_t i = 0; i < SPARSE_LANES; i++)
        if (lane[i] > largest) largest = lane[i];
    return largest;
}

CODECS_TARGET_AVX2 static void avx2_add(const float *row, float share, uint32_t width, float *sums)
{
    const __m256 one = _mm256_set1_ps(share);
    for (uint32_t i = 0; i < width; i += 8)
        _mm256_storeu_ps(sums + i, _mm256_add_ps(_mm256_loadu_ps(sums + i),
                                                 _mm256_mul_ps(_mm256_loadu_ps(row + i), one)));
}

/* sparse_blend_steps. */
INLINE_AVX2 float blend_steps(const float *weight, uint32_t count, int16_t steps[SPARSE_BLEND])
{
    const __m256 sign = _mm256_set1_ps(-0.0f);
    const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    __m256 row[SPARSE_BLEND / 8], largest = _mm256_setzero_ps();
    float lane[SPARSE_LANES], most = 0.0f;
    for (uint32_t i = 0; i < SPARSE_BLEND / 8; i++) {
        const __m256i left = _mm256_set1_epi32((int32_t)count - 8 * (int32_t)i);
        row[i] = _mm256_maskload_ps(weight + 8 * i, _mm256_cmpgt_epi32(left, lanes));
        largest = _mm256_max_ps(largest, _mm256_andnot_ps(sign, row[i]));
    }
    _mm256_storeu_ps(lane, largest);
    for (uint32_t i = 0; i < SPARSE_LANES; i++)
        most = lane[i] > most ? lane[i] : most;
    const __m256 inverse = _mm256_set1_ps(most >= 1e-30f ? 32767.0f / most : 0.0f);
    for (uint32_t i = 0; i < SPARSE_BLEND / 8; i += 2) {
        const __m256i both =
            _mm256_packs_epi32(_mm256_cvtps_epi32(_mm256_mul_ps(row[i], inverse)),
                               _mm256_cvtps_epi32(_mm256_mul_ps(row[i + 1], inverse)));
        _mm256_storeu_si256((void *)(steps + 8 * i), _mm256_permute4x64_epi64(both, 0xd8));
    }
    return most >= 1e-30f ? most / 32767.0f : 0.0f;
}

/* All rows, two at a time, in `vectors` x 8 channels from d on, for `heads` heads: their sums stay
 * in registers. */
INLINE_AVX2 void blend_part(const int8_t *const *rows, uint32_t count, uint32_t d,
                            int16_t (*steps)[SPARSE_BLEND], const float *unit, uint32_t heads,
                            uint32_t vectors, float *output, uint32_t head_dim)
{
    __m256i sum[4][2];
    for (uint32_t h = 0; h < heads; h++)
        sum[h][0] = sum[h][1] = _mm256_setzero_si256();
    for (uint32_t i = 0; i < count; i += 2) {
        const int8_t *one = rows[i] + d, *two = rows[i + 1 < count ? i + 1 : i] + d;
        __m256i both[2];
        if (vectors == 2) {
            const __m128i first = _mm_loadu_si128((const void *)one);
            const __m128i second = _mm_loadu_si128((const void *)two);
            both[0] = _mm256_cvtepi8_epi16(_mm_unpacklo_epi8(first, second));
            both[1] = _mm256_cvtepi8_epi16(_mm_unpackhi_epi8(first, second));
        } else {
            both[0] = _mm256_cvtepi8_epi16(_mm_unpacklo_epi8(_mm_loadl_epi64((const void *)one),
                                                             _mm_loadl_epi64((const void *)two)));
        }
        for (uint32_t h = 0; h < heads; h++) {
            int32_t pair;
            memcpy(&pair, steps[h] + i, sizeof pair);
            const __m256i weights = _mm256_set1_epi32(pair);
            for (uint32_t v = 0; v < vectors; v++)
                sum[h][v] = _mm256_add_epi32(sum[h][v], _mm256_madd_epi16(both[v], weights));
        }
    }
    for (uint32_t h = 0; h < heads; h++) {
        for (uint32_t v = 0; v < vectors; v++) {
            float *to = output + (size_t)h * head_dim + d + 8 * v;
            const __m256 part =
                _mm256_mul_ps(_mm256_cvtepi32_ps(sum[h][v]), _mm256_broadcast_ss(unit + h));
            _mm256_storeu_ps(to, _mm256_add_ps(_mm256_loadu_ps(to), part));
        }
    }
}

INLINE_AVX2 void blend_heads(const int8_t *const *rows, uint32_t count, uint32_t head_dim,
                             const float *weight, uint32_t heads, float *output)
{
    int16_t steps[4][SPARSE_BLEND];
    float unit[4];
    uint32_t d = 0;
    for (uint32_t h = 0; h < heads; h++)
        unit[h] = blend_steps(weight + (size_t)h * SPARSE_BLEND, count, steps[h]);
    for (; d + 16 <= head_dim; d += 16)
        blend_part(rows, count, d, steps, unit, heads, 2, output, head_dim);
    if (d < head_dim) blend_part(rows, count, d, steps, unit, heads, 1, output, head_dim);
}

CODECS_TARGET_AVX2 static void avx2_blend(const int8_t *const *rows, uint32_t count,
                                          uint32_t head_dim, const float *weight, uint32_t group,
                                          float *output)
{
    uint32_t g = 0;
    for (; g + 4 <= group; g += 4)
        blend_heads(rows, count, head_dim, weight + (size_t)g * SPARSE_BLEND, 4,
                    output + (size_t)g * head_dim);
    for (; g < group; g++)
        blend_heads(rows, count, head_dim, weight + (size_t)g * SPARSE_BLEND, 1,
                    output + (size_t)g * head_dim);
}

/* ---- attention ---- */

INLINE_AVX2 void dots_of(const void *rows, uint64_t stride, uint32_t tokens, const uint8_t dtype,
                         const float *query, uint32_t head_dim, float scale, float *out)
{
    uint32_t t = 0;
    for (; t + 4 <= tokens; t += 4) { /* as many sums grow side by side */
        const uint8_t *row = (const uint8_t *)rows + t * stride;
        __m256 lanes[4] = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(),
                           _mm256_setzero_ps()};
        for (uint32_t d = 0; d < head_dim; d += 8) {
            const __m256 own = _mm256_loadu_ps(query + d);
            for (int r = 0; r < 4; r++)
                lanes[r] = _mm256_add_ps(
                    lanes[r], _mm256_mul_ps(own, load_8(row + (uint64_t)r * stride, d, dtype)));
        }
        __m128 sum[4]; /* the order of sparse_lanes_sum */
        for (int r = 0; r < 4; r++)
            sum[r] =
                _mm_add_ps(_mm256_castps256_ps128(lanes[r]), _mm256_extractf128_ps(lanes[r], 1));
        _MM_TRANSPOSE4_PS(sum[0], sum[1], sum[2], sum[3]);
        _mm_storeu_ps(out + t,
                      _mm_mul_ps(_mm_set1_ps(scale), _mm_add_ps(_mm_add_ps(sum[0], sum[2]),
                                                                _mm_add_ps(sum[1], sum[3]))));
    }
    for (; t < tokens; t++) {
        const void *row = (const uint8_t *)rows + t * stride;
        __m256 lanes = _mm256_setzero_ps();
        for (uint32_t d = 0; d < head_dim; d += 8)
            lanes = _mm256_add_ps(lanes,
                                  _mm256_mul_ps(_mm256_loadu_ps(query + d), load_8(row, d, dtype)));
        out[t] = scale * lanes_sum(lanes);
    }
}

INLINE_AVX2 void combine_of(const void *rows, uint64_t stride, uint32_t tokens, const uint8_t dtype,
                            const float *weight, uint32_t head_dim, float *sums)
{
    for (uint32_t t = 0; t < tokens; t++) {
        const void *row = (const uint8_t *)rows + t * stride;
        const __m256 one = _mm256_set1_ps(weight[t]);
        for (uint32_t d = 0; d < head_dim; d += 8)
            _mm256_storeu_ps(sums + d, _mm256_add_ps(_mm256_loadu_ps(sums + d),
                                                     _mm256_mul_ps(one, load_8(row, d, dtype))));
    }
}

CODECS_TARGET_AVX2 static void avx2_dots(const void *rows, uint64_t stride, uint32_t tokens,
                                         uint8_t dtype, const float *query, uint32_t head_dim,
                                         float scale, float *out)
{
    switch (dtype) {
    case KVT_DTYPE_FP16:
        dots_of(rows, stride, tokens, KVT_DTYPE_FP16, query, head_dim, scale, out);
        break;
    case KVT_DTYPE_BF16:
        dots_of(rows, stride, tokens, KVT_DTYPE_BF16, query, head_dim, scale, out);
        break;
    default: dots_of(rows, stride, tokens, KVT_DTYPE_FP32, query, head_dim, scale, out); break;
    }
}

CODECS_TARGET_AVX2 static void avx2_combine(const void *rows, uint64_t stride, uint32_t tokens,
                                            uint8_t dtype, const float *weight, uint32_t head_dim,
                                            float *sums)
{
    switch (dtype) {
    case KVT_DTYPE_FP16:
        combine_of(rows, stride, tokens, KVT_DTYPE_FP16, weight, head_dim, sums);
        break;
    case KVT_DTYPE_BF16:
        combine_of(rows, stride, tokens, KVT_DTYPE_BF16, weight, head_dim, sums);
        break;
    default: combine_of(rows, stride, tokens, KVT_DTYPE_FP32, weight, head_dim, sums); break;
    }
}

const sparse_kernels sparse_kernels_avx2 = {
    .widen = avx2_widen,
    .assign = avx2_assign,
    .score = avx2_score,
    .sketch = avx2_sketch,
    .keys = avx2_keys,
    .sieve = avx2_sieve,
    .lift = avx2_lift,
    .weigh = avx2_weigh,
    .largest = avx2_largest,
    .add = avx2_add,
    .blend = avx2_blend,
    .dots = avx2_dots,
    .combine = avx2_combine,
};

#endif
