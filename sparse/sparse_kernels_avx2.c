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

/* Two channels of one query at 16 clusters: the sums go on. */
INLINE_AVX2 void score_pair(__m256i low, __m256i high, const int16_t *folded, __m256i *sum_low,
                            __m256i *sum_high)
{
    int32_t pair;
    memcpy(&pair, folded, sizeof pair);
    const __m256i both = _mm256_set1_epi32(pair);
    *sum_low = _mm256_add_epi32(*sum_low, _mm256_madd_epi16(low, both));
    *sum_high = _mm256_add_epi32(*sum_high, _mm256_madd_epi16(high, both));
}

INLINE_AVX2 void score_store(__m256i low, __m256i high, float unit, float *out)
{
    const __m256 one = _mm256_set1_ps(unit);
    _mm256_storeu_ps(out, _mm256_mul_ps(_mm256_cvtepi32_ps(low), one));
    _mm256_storeu_ps(out + 8, _mm256_mul_ps(_mm256_cvtepi32_ps(high), one));
}

/* Four queries from `folded` on, at one block, while the next one comes from memory. Each sum has a
 * name, so that all eight stay in registers. */
INLINE_AVX2 void score_four(const int8_t *centroids, const int8_t *next, uint32_t head_dim,
                            const int16_t *folded, uint32_t group, const float *unit, float *out,
                            size_t width)
{
    __m256i a0 = _mm256_setzero_si256(), a1 = a0, b0 = a0, b1 = a0, c0 = a0, c1 = a0, d0 = a0,
            d1 = a0;
    for (uint32_t d = 0; d < head_dim; d += 2, centroids += 2 * SPARSE_BLOCK, folded += 2 * group) {
        _mm_prefetch((const char *)next + (size_t)d * SPARSE_BLOCK, _MM_HINT_T0);
        const __m256i low = _mm256_cvtepi8_epi16(_mm_load_si128((const void *)centroids));
        const __m256i high =
            _mm256_cvtepi8_epi16(_mm_load_si128((const void *)(centroids + SPARSE_BLOCK)));
        score_pair(low, high, folded, &a0, &a1);
        score_pair(low, high, folded + 2, &b0, &b1);
        score_pair(low, high, folded + 4, &c0, &c1);
        score_pair(low, high, folded + 6, &d0, &d1);
    }
    score_store(a0, a1, unit[0], out);
    score_store(b0, b1, unit[1], out + width);
    score_store(c0, c1, unit[2], out + 2 * width);
    score_store(d0, d1, unit[3], out + 3 * width);
}

/* One query at one block. */
INLINE_AVX2 void score_one(const int8_t *centroids, uint32_t head_dim, const int16_t *folded,
                           uint32_t group, const float *unit, float *out)
{
    __m256i low_sum = _mm256_setzero_si256(), high_sum = low_sum;
    for (uint32_t d = 0; d < head_dim; d += 2, centroids += 2 * SPARSE_BLOCK, folded += 2 * group) {
        const __m256i low = _mm256_cvtepi8_epi16(_mm_load_si128((const void *)centroids));
        const __m256i high =
            _mm256_cvtepi8_epi16(_mm_load_si128((const void *)(centroids + SPARSE_BLOCK)));
        score_pair(low, high, folded, &low_sum, &high_sum);
    }
    score_store(low_sum, high_sum, unit[0], out);
}

CODECS_TARGET_AVX2 static void avx2_score(const int8_t *centroids, const uint32_t *list,
                                          uint32_t count, uint32_t head_dim, const int16_t *folded,
                                          uint32_t group, const float *unit, size_t width,
                                          float *out)
{
    const size_t block = (size_t)head_dim * SPARSE_BLOCK;
    for (uint32_t b = 0; b < count; b++) {
        const int8_t *at = centroids + list[b] * block;
        const int8_t *next = centroids + list[b + 1 < count ? b + 1 : b] * block;
        float *to = out + (size_t)b * SPARSE_BLOCK;
        uint32_t g = 0;
        for (; g + 4 <= group; g += 4)
            score_four(at, next, head_dim, folded + 2 * (size_t)g, group, unit + g, to + g * width,
                       width);
        for (; g < group; g++)
            score_one(at, head_dim, folded + 2 * (size_t)g, group, unit + g, to + g * width);
    }
}

CODECS_TARGET_AVX2 static void avx2_lift(const float *scatter, float deviation, uint32_t width,
                                         float *scores)
{
    const __m256 all = _mm256_set1_ps(deviation), one = _mm256_set1_ps(1.0f);
    const __m256 half = _mm256_set1_ps(0.5f), most = _mm256_set1_ps(1.0f / SPARSE_LIFT_MAX);
    for (uint32_t c = 0; c < width; c += 8) {
        const __m256 x = _mm256_mul_ps(all, _mm256_loadu_ps(scatter + c));
        const __m256 lift =
            _mm256_div_ps(_mm256_mul_ps(half, x), _mm256_add_ps(one, _mm256_mul_ps(x, most)));
        _mm256_storeu_ps(scores + c, _mm256_add_ps(_mm256_loadu_ps(scores + c), lift));
    }
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

/* Means of all clusters in `vectors` x 8 channels from d on, for `heads` heads from g on: the sums
 * stay in registers, and heads share the widened means. */
INLINE_AVX2 void blend_part(const int8_t *const *means, uint32_t count, uint32_t d,
                            const float *weight, uint32_t group, uint32_t heads, uint32_t vectors,
                            float *output, uint32_t head_dim)
{
    __m256 sum[4][2];
    for (uint32_t h = 0; h < heads; h++)
        for (uint32_t v = 0; v < vectors; v++)
            sum[h][v] = _mm256_loadu_ps(output + (size_t)h * head_dim + d + 8 * v);
    for (uint32_t i = 0; i < count; i++, weight += group) {
        __m256 row[2];
        for (uint32_t v = 0; v < vectors; v++)
            row[v] = _mm256_cvtepi32_ps(
                _mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)(means[i] + d + 8 * v))));
        for (uint32_t h = 0; h < heads; h++) {
            const __m256 one = _mm256_broadcast_ss(weight + h);
            for (uint32_t v = 0; v < vectors; v++)
                sum[h][v] = _mm256_add_ps(sum[h][v], _mm256_mul_ps(one, row[v]));
        }
    }
    for (uint32_t h = 0; h < heads; h++)
        for (uint32_t v = 0; v < vectors; v++)
            _mm256_storeu_ps(output + (size_t)h * head_dim + d + 8 * v, sum[h][v]);
}

CODECS_TARGET_AVX2 static void avx2_blend(const int8_t *const *means, uint32_t count,
                                          uint32_t head_dim, const float *weight, uint32_t group,
                                          float *output)
{
    uint32_t d = 0, g;
    for (; d + 16 <= head_dim; d += 16) {
        for (g = 0; g + 4 <= group; g += 4)
            blend_part(means, count, d, weight + g, group, 4, 2, output + (size_t)g * head_dim,
                       head_dim);
        for (; g < group; g++)
            blend_part(means, count, d, weight + g, group, 1, 2, output + (size_t)g * head_dim,
                       head_dim);
    }
    for (g = 0; d < head_dim && g < group; g++)
        blend_part(means, count, d, weight + g, group, 1, 1, output + (size_t)g * head_dim,
                   head_dim);
}

/* ---- attention ---- */

INLINE_AVX2 void dots_of(const void *rows, uint64_t stride, uint32_t tokens, const uint8_t dtype,
                         const float *query, uint32_t head_dim, float scale, float *out)
{
    for (uint32_t t = 0; t < tokens; t++) {
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
    .lift = avx2_lift,
    .weigh = avx2_weigh,
    .largest = avx2_largest,
    .add = avx2_add,
    .blend = avx2_blend,
    .dots = avx2_dots,
    .combine = avx2_combine,
};

#endif
