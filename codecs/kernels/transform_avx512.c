/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transform_avx512.c - the arithmetic of codec 8 in registers of 16 floats. The product has eight
 * outputs of 32 tokens in sixteen registers; the eight columns of the matrix are widened into a
 * panel first, which stays in the first cache while all tokens pass. Rows and columns change places
 * by squares of sixteen. Re-entrant.
 */
#if defined(__x86_64__)
#include "cpu.h"
#include "transform_kernels.h"

#include <immintrin.h>
#include <string.h>

#define PRODUCT_INLINE static inline __attribute__((always_inline)) CODECS_TARGET_AVX512

/* The columns of the next outputs as floats; those past the last one are zero. */
PRODUCT_INLINE void product_widen(const transform_product *product, uint32_t first, uint32_t count)
{
    const __mmask8 there = (__mmask8)((1u << count) - 1u);
    for (uint32_t k = 0; k < product->row_count; k++) {
        const uint64_t row = product->rows != NULL ? product->rows[k] : k;
        const uint16_t *line = product->matrix + row * product->width + product->first + first;
        const __m128i eight = _mm_maskz_loadu_epi16(there, line);
        const __m256i wide = _mm256_slli_epi32(_mm256_cvtepu16_epi32(eight), 16);
        _mm256_storeu_si256((__m256i *)(void *)(product->panel + (uint64_t)k * TRANSFORM_PANEL),
                            wide);
    }
}

/* Eight outputs of `vectors` times sixteen tokens. */
PRODUCT_INLINE void product_tile(const transform_product *product, uint32_t first, uint32_t count,
                                 uint32_t token, const int vectors)
{
    const float *in = product->in + token;
    const float *panel = product->panel;
    __m512 sums[TRANSFORM_PANEL][2];
    for (int o = 0; o < TRANSFORM_PANEL; o++) {
        for (int v = 0; v < vectors; v++)
            sums[o][v] = _mm512_setzero_ps();
    }
    for (uint32_t k = 0; k < product->row_count; k++) {
        __m512 x[2];
        for (int v = 0; v < vectors; v++)
            x[v] = _mm512_loadu_ps(in + v * TRANSFORM_LANE_GROUP);
#pragma GCC unroll 8
        for (int o = 0; o < TRANSFORM_PANEL; o++) {
            const __m512 factor = _mm512_set1_ps(panel[o]);
            for (int v = 0; v < vectors; v++)
                sums[o][v] = _mm512_fmadd_ps(factor, x[v], sums[o][v]);
        }
        in += TRANSFORM_LANES;
        panel += TRANSFORM_PANEL;
    }
#pragma GCC unroll 8
    for (uint32_t o = 0; o < TRANSFORM_PANEL; o++) {
        float *out = product->out + (uint64_t)(first + o) * TRANSFORM_LANES + token;
        if (o >= count) break;
        for (int v = 0; v < vectors; v++)
            _mm512_storeu_ps(out + v * TRANSFORM_LANE_GROUP, sums[o][v]);
    }
}

CODECS_TARGET_AVX512 static void product_multiply(const transform_product *product)
{
    for (uint32_t first = 0; first < product->count; first += TRANSFORM_PANEL) {
        const uint32_t left = product->count - first;
        const uint32_t count = left < TRANSFORM_PANEL ? left : TRANSFORM_PANEL;
        uint32_t token = 0;
        product_widen(product, first, count);
        for (; token + TRANSFORM_LANE_GROUP < product->tokens; token += 2 * TRANSFORM_LANE_GROUP)
            product_tile(product, first, count, token, 2);
        if (token < product->tokens) product_tile(product, first, count, token, 1);
    }
}

/* Sixteen rows of sixteen floats, turned. */
PRODUCT_INLINE void transpose_square(const float *from, size_t from_stride, float *to,
                                     size_t to_stride)
{
    __m512 a[16];
    __m512 b[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++)
        a[i] = _mm512_loadu_ps(from + (size_t)i * from_stride);
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) {
        b[i] = _mm512_unpacklo_ps(a[i], a[i + 1]);
        b[i + 1] = _mm512_unpackhi_ps(a[i], a[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) { /* a[i + j]: column j of each quarter, of rows i .. i + 3 */
        a[i] = _mm512_shuffle_ps(b[i], b[i + 2], 0x44);
        a[i + 1] = _mm512_shuffle_ps(b[i], b[i + 2], 0xee);
        a[i + 2] = _mm512_shuffle_ps(b[i + 1], b[i + 3], 0x44);
        a[i + 3] = _mm512_shuffle_ps(b[i + 1], b[i + 3], 0xee);
    }
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) { /* quarters 0 and 2, and 1 and 3, of rows 0 .. 7 and 8 .. 15 */
        b[j] = _mm512_shuffle_f32x4(a[j], a[j + 4], 0x88);
        b[j + 4] = _mm512_shuffle_f32x4(a[j], a[j + 4], 0xdd);
        b[j + 8] = _mm512_shuffle_f32x4(a[j + 8], a[j + 12], 0x88);
        b[j + 12] = _mm512_shuffle_f32x4(a[j + 8], a[j + 12], 0xdd);
    }
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        a[j] = _mm512_shuffle_f32x4(b[j], b[j + 8], 0x88);
        a[j + 8] = _mm512_shuffle_f32x4(b[j], b[j + 8], 0xdd);
        a[j + 4] = _mm512_shuffle_f32x4(b[j + 4], b[j + 12], 0x88);
        a[j + 12] = _mm512_shuffle_f32x4(b[j + 4], b[j + 12], 0xdd);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++)
        _mm512_storeu_ps(to + (size_t)i * to_stride, a[i]);
}

CODECS_TARGET_AVX512 static void transpose_to_columns(const float *rows, uint32_t count,
                                                      float *columns)
{
    uint32_t e = 0;
    for (; e + 16 <= count; e += 16)
        transpose_square(rows + e, count, columns + (size_t)e * TRANSFORM_LANES, TRANSFORM_LANES);
    for (; e < count; e++) {
        for (uint32_t t = 0; t < TRANSFORM_LANE_GROUP; t++)
            columns[(size_t)e * TRANSFORM_LANES + t] = rows[(size_t)t * count + e];
    }
}

CODECS_TARGET_AVX512 static void transpose_to_rows(const float *columns, uint32_t count,
                                                   float *rows)
{
    uint32_t e = 0;
    for (; e + 16 <= count; e += 16)
        transpose_square(columns + (size_t)e * TRANSFORM_LANES, TRANSFORM_LANES, rows + e, count);
    for (; e < count; e++) {
        for (uint32_t t = 0; t < TRANSFORM_LANE_GROUP; t++)
            rows[(size_t)t * count + e] = columns[(size_t)e * TRANSFORM_LANES + t];
    }
}

#define TRANSFORM_TO_COLUMNS transpose_to_columns
#define TRANSFORM_TO_ROWS    transpose_to_rows
#define TRANSFORM_TARGET     CODECS_TARGET_AVX512
#define TRANSFORM_TABLE      transform_kernels_avx512
#define TRANSFORM_MULTIPLY   product_multiply
#include "transform_body.h"
#endif
