/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transform_avx2.c - the arithmetic of codec 8 in registers of 8 floats. The product has four
 * outputs of 24 tokens in twelve of the sixteen registers; three have inputs and one a factor. The
 * columns of the matrix are widened into a panel first, which stays in the first cache while all
 * tokens pass. Rows and columns change places by squares of eight. Re-entrant.
 */
#if defined(__x86_64__)
#include "cpu.h"
#include "transform_kernels.h"

#include <assert.h>
#include <immintrin.h>
#include <string.h>

#define PRODUCT_INLINE static inline __attribute__((always_inline)) CODECS_TARGET_AVX2

enum { PRODUCT_OUTPUTS = 4, PRODUCT_VECTORS = 3, PRODUCT_FLOATS = 8 };
_Static_assert((int)TRANSFORM_PANEL % (int)PRODUCT_OUTPUTS == 0, "a panel is whole tiles");

/* The columns of the next outputs as floats; those past the last one are zero. */
PRODUCT_INLINE void product_widen(const transform_product *product, uint32_t first, uint32_t count)
{
    for (uint32_t k = 0; k < product->row_count; k++) {
        const uint64_t row = product->rows != NULL ? product->rows[k] : k;
        const uint16_t *line = product->matrix + row * product->width + product->first + first;
        float *panel = product->panel + (uint64_t)k * TRANSFORM_PANEL;
        uint16_t some[TRANSFORM_PANEL] = {0};
        if (count < TRANSFORM_PANEL) line = memcpy(some, line, count * sizeof *line);
        const __m128i factors = _mm_loadu_si128((const __m128i *)(const void *)line);
        _mm256_storeu_si256((__m256i *)(void *)panel,
                            _mm256_slli_epi32(_mm256_cvtepu16_epi32(factors), 16));
    }
}

/* Four outputs, from one of the panel's on, of `vectors` times eight tokens. */
PRODUCT_INLINE void product_tile(const transform_product *product, uint32_t first, uint32_t from,
                                 uint32_t token, const int vectors)
{
    __m256 sums[PRODUCT_OUTPUTS][PRODUCT_VECTORS];
    const float *in = product->in + token;
    const float *panel = product->panel + from;
#pragma GCC unroll 4
    for (int o = 0; o < PRODUCT_OUTPUTS; o++)
        for (int v = 0; v < vectors; v++)
            sums[o][v] = _mm256_setzero_ps();
    for (uint32_t k = 0; k < product->row_count; k++) {
        __m256 x[PRODUCT_VECTORS];
        for (int v = 0; v < vectors; v++)
            x[v] = _mm256_loadu_ps(in + v * PRODUCT_FLOATS);
#pragma GCC unroll 4
        for (int o = 0; o < PRODUCT_OUTPUTS; o++) {
            const __m256 factor = _mm256_broadcast_ss(panel + o);
            for (int v = 0; v < vectors; v++)
                sums[o][v] = _mm256_fmadd_ps(factor, x[v], sums[o][v]);
        }
        in += TRANSFORM_LANES;
        panel += TRANSFORM_PANEL;
    }
    const uint32_t left = product->count - (first + from);
#pragma GCC unroll 4
    for (uint32_t o = 0; o < PRODUCT_OUTPUTS; o++) {
        float *out = product->out + (uint64_t)(first + from + o) * TRANSFORM_LANES + token;
        if (o >= left) break;
        for (int v = 0; v < vectors; v++)
            _mm256_storeu_ps(out + v * PRODUCT_FLOATS, sums[o][v]);
    }
}

/* The outputs of a panel for all tokens, which are whole groups of sixteen. */
PRODUCT_INLINE void product_panel(const transform_product *product, uint32_t first, uint32_t count)
{
    const uint32_t groups = (product->tokens + TRANSFORM_LANE_GROUP - 1) / TRANSFORM_LANE_GROUP;
    const uint32_t lanes = groups * TRANSFORM_LANE_GROUP;
    for (uint32_t from = 0; from < count; from += PRODUCT_OUTPUTS) {
        uint32_t token = 0;
        for (; token + PRODUCT_VECTORS * PRODUCT_FLOATS <= lanes;
             token += PRODUCT_VECTORS * PRODUCT_FLOATS)
            product_tile(product, first, from, token, 3);
        if (token + 2 * PRODUCT_FLOATS <= lanes) {
            product_tile(product, first, from, token, 2);
            token += 2 * PRODUCT_FLOATS;
        }
        if (token < lanes) product_tile(product, first, from, token, 1);
    }
}

CODECS_TARGET_AVX2 static void product_multiply(const transform_product *product)
{
    assert(product->plain == product->row_count);
    for (uint32_t first = 0; first < product->count; first += TRANSFORM_PANEL) {
        const uint32_t left = product->count - first;
        const uint32_t count = left < TRANSFORM_PANEL ? left : TRANSFORM_PANEL;
        product_widen(product, first, count);
        product_panel(product, first, count);
    }
}

/* ---- rows and columns ---- */

/* Eight rows of eight floats, turned. */
PRODUCT_INLINE void transpose_square(const float *from, size_t from_stride, float *to,
                                     size_t to_stride)
{
    __m256 a[8], b[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++)
        a[i] = _mm256_loadu_ps(from + (size_t)i * from_stride);
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) {
        b[i] = _mm256_unpacklo_ps(a[i], a[i + 1]);
        b[i + 1] = _mm256_unpackhi_ps(a[i], a[i + 1]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 8; i += 4) { /* a[i + j]: column j of each half, of rows i .. i + 3 */
        a[i] = _mm256_shuffle_ps(b[i], b[i + 2], 0x44);
        a[i + 1] = _mm256_shuffle_ps(b[i], b[i + 2], 0xee);
        a[i + 2] = _mm256_shuffle_ps(b[i + 1], b[i + 3], 0x44);
        a[i + 3] = _mm256_shuffle_ps(b[i + 1], b[i + 3], 0xee);
    }
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        _mm256_storeu_ps(to + (size_t)j * to_stride, _mm256_permute2f128_ps(a[j], a[j + 4], 0x20));
        _mm256_storeu_ps(to + (size_t)(j + 4) * to_stride,
                         _mm256_permute2f128_ps(a[j], a[j + 4], 0x31));
    }
}

CODECS_TARGET_AVX2 static void transpose_to_columns(const float *rows, uint32_t count,
                                                    float *columns)
{
    uint32_t e = 0;
    for (; e + 8 <= count; e += 8)
        for (uint32_t t = 0; t < TRANSFORM_LANE_GROUP; t += 8)
            transpose_square(rows + (size_t)t * count + e, count,
                             columns + (size_t)e * TRANSFORM_LANES + t, TRANSFORM_LANES);
    for (; e < count; e++)
        for (uint32_t t = 0; t < TRANSFORM_LANE_GROUP; t++)
            columns[(size_t)e * TRANSFORM_LANES + t] = rows[(size_t)t * count + e];
}

CODECS_TARGET_AVX2 static void transpose_to_rows(const float *columns, uint32_t count, float *rows)
{
    uint32_t e = 0;
    for (; e + 8 <= count; e += 8)
        for (uint32_t t = 0; t < TRANSFORM_LANE_GROUP; t += 8)
            transpose_square(columns + (size_t)e * TRANSFORM_LANES + t, TRANSFORM_LANES,
                             rows + (size_t)t * count + e, count);
    for (; e < count; e++)
        for (uint32_t t = 0; t < TRANSFORM_LANE_GROUP; t++)
            rows[(size_t)t * count + e] = columns[(size_t)e * TRANSFORM_LANES + t];
}

/* Whole groups of eight floats as fp16, limited to its largest; returns how many. */
CODECS_TARGET_AVX2 static uint32_t narrow_fp16(const float *values, uint32_t count, uint8_t *target)
{
    const __m256 most = _mm256_set1_ps(65504.0f);
    uint32_t i = 0;
    for (; i + 8 <= count; i += 8) {
        __m256 eight = _mm256_min_ps(_mm256_loadu_ps(values + i), most);
        eight = _mm256_max_ps(eight, _mm256_sub_ps(_mm256_setzero_ps(), most));
        _mm_storeu_si128((__m128i *)(void *)(target + 2 * (size_t)i),
                         _mm256_cvtps_ph(eight, _MM_FROUND_TO_NEAREST_INT));
    }
    return i;
}

#define TRANSFORM_NARROW     narrow_fp16
#define TRANSFORM_TO_COLUMNS transpose_to_columns
#define TRANSFORM_TO_ROWS    transpose_to_rows
#define TRANSFORM_TARGET     CODECS_TARGET_AVX2
#define TRANSFORM_TABLE      transform_kernels_avx2
#define TRANSFORM_MULTIPLY   product_multiply
#define TRANSFORM_SPARSE     .list = transform_list_avx2, .sum = transform_sum_avx2,
#include "transform_body.h"
#endif
