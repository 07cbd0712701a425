/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transform_avx512.c - the arithmetic of codec 8 in registers of 16 floats. The product has eight
 * outputs of 32 tokens in sixteen registers; the eight columns of the matrix are widened into a
 * panel first, which stays in the first cache while all tokens pass. Rows and columns change places
 * by squares of sixteen.
 *
 * VDPBF16PS multiplies pairs of bf16 and adds the upper product, then the lower one, each with its
 * rounding to nearest: two steps of the product in one instruction. Neither its inputs nor its sums
 * come near what it would flush to zero. Re-entrant.
 */
#if defined(__x86_64__)
#include "cpu.h"
#include "transform_kernels.h"

#include <immintrin.h>
#include <string.h>

#define PRODUCT_INLINE static inline __attribute__((always_inline)) CODECS_TARGET_AVX512

/* Input k's factors of eight outputs as floats. */
PRODUCT_INLINE __m256i product_line(const transform_product *product, uint32_t k, uint32_t first,
                                    __mmask8 there)
{
    const uint64_t row = product->rows != NULL ? product->rows[k] : k;
    const uint16_t *line = product->matrix + row * product->width + product->first + first;
    return _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_maskz_loadu_epi16(there, line)), 16);
}

/* The columns of the next outputs as floats; those past the last one are zero. */
PRODUCT_INLINE void product_widen(const transform_product *product, uint32_t first, uint32_t count)
{
    const __mmask8 there = (__mmask8)((1u << count) - 1u);
    for (uint32_t k = 0; k < product->plain; k++)
        _mm256_storeu_si256((__m256i *)(void *)(product->panel + (uint64_t)k * TRANSFORM_PANEL),
                            product_line(product, k, first, there));
}

/* Adds the plain inputs to eight sums of `vectors` times sixteen tokens. */
PRODUCT_INLINE void product_add(const transform_product *product, uint32_t token, const int vectors,
                                __m512 sums[TRANSFORM_PANEL][2])
{
    const float *in = product->in + token;
    const float *panel = product->panel;
    for (uint32_t k = 0; k < product->plain; k++) {
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
}

PRODUCT_INLINE void product_clear(const int vectors, __m512 sums[TRANSFORM_PANEL][2])
{
    for (int o = 0; o < TRANSFORM_PANEL; o++) {
        for (int v = 0; v < vectors; v++)
            sums[o][v] = _mm512_setzero_ps();
    }
}

PRODUCT_INLINE void product_keep(const transform_product *product, uint32_t first, uint32_t count,
                                 uint32_t token, const int vectors, __m512 sums[TRANSFORM_PANEL][2])
{
#pragma GCC unroll 8
    for (uint32_t o = 0; o < TRANSFORM_PANEL; o++) {
        float *out = product->out + (uint64_t)(first + o) * TRANSFORM_LANES + token;
        if (o >= count) break;
        for (int v = 0; v < vectors; v++)
            _mm512_storeu_ps(out + v * TRANSFORM_LANE_GROUP, sums[o][v]);
    }
}

/* Eight outputs of `vectors` times sixteen tokens. */
PRODUCT_INLINE void product_tile(const transform_product *product, uint32_t first, uint32_t count,
                                 uint32_t token, const int vectors)
{
    __m512 sums[TRANSFORM_PANEL][2];
    product_clear(vectors, sums);
    product_add(product, token, vectors, sums);
    product_keep(product, first, count, token, vectors, sums);
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

/* ---- pairs ---- */

#define PAIRS_TARGET                                                                               \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vbmi2,avx512bf16,"  \
                          "avx2,fma,f16c,bmi2")))
#define PAIRS_INLINE static inline __attribute__((always_inline)) PAIRS_TARGET

/* The factors of pairs, behind those of plain inputs. */
PAIRS_INLINE void pairs_widen(const transform_product *product, uint32_t first, uint32_t count)
{
    const __mmask8 there = (__mmask8)((1u << count) - 1u);
    float *panel = product->panel + (uint64_t)product->plain * TRANSFORM_PANEL;
    for (uint32_t k = product->plain; k < product->row_count; k += 2) {
        __m256i both = product_line(product, k, first, there);
        if (k + 1 < product->row_count)
            both = _mm256_or_si256(
                both, _mm256_srli_epi32(product_line(product, k + 1, first, there), 16));
        _mm256_storeu_si256((__m256i *)(void *)panel, both);
        panel += TRANSFORM_PANEL;
    }
}

PAIRS_INLINE void pairs_tile(const transform_product *product, uint32_t first, uint32_t count,
                             uint32_t token, const int vectors)
{
    const float *in = product->in + (uint64_t)product->plain * TRANSFORM_LANES + token;
    const float *panel = product->panel + (uint64_t)product->plain * TRANSFORM_PANEL;
    __m512 sums[TRANSFORM_PANEL][2];
    product_clear(vectors, sums);
    product_add(product, token, vectors, sums);
    for (uint32_t k = product->plain; k < product->row_count; k += 2) {
        __m512bh x[2];
        for (int v = 0; v < vectors; v++)
            x[v] = (__m512bh)_mm512_loadu_si512(in + v * TRANSFORM_LANE_GROUP);
#pragma GCC unroll 8
        for (int o = 0; o < TRANSFORM_PANEL; o++) {
            const __m512bh factor = (__m512bh)_mm512_castps_si512(_mm512_set1_ps(panel[o]));
            for (int v = 0; v < vectors; v++)
                sums[o][v] = _mm512_dpbf16_ps(sums[o][v], factor, x[v]);
        }
        in += TRANSFORM_LANES;
        panel += TRANSFORM_PANEL;
    }
    product_keep(product, first, count, token, vectors, sums);
}

PAIRS_TARGET static void pairs_multiply(const transform_product *product)
{
    for (uint32_t first = 0; first < product->count; first += TRANSFORM_PANEL) {
        const uint32_t left = product->count - first;
        const uint32_t count = left < TRANSFORM_PANEL ? left : TRANSFORM_PANEL;
        uint32_t token = 0;
        product_widen(product, first, count);
        pairs_widen(product, first, count);
        for (; token + TRANSFORM_LANE_GROUP < product->tokens; token += 2 * TRANSFORM_LANE_GROUP)
            pairs_tile(product, first, count, token, 2);
        if (token < product->tokens) pairs_tile(product, first, count, token, 1);
    }
}

PAIRS_INLINE __m512i pairs_float_bits(const int16_t *codes)
{
    const __m256i sixteen = _mm256_loadu_si256((const __m256i *)(const void *)codes);
    return _mm512_castps_si512(_mm512_cvtepi32_ps(_mm512_cvtepi16_epi32(sixteen)));
}

PAIRS_TARGET static void pairs_join(const int16_t *first, const int16_t *second, uint32_t tokens,
                                    float *pairs)
{
    for (uint32_t t = 0; t < tokens; t += TRANSFORM_LANE_GROUP) {
        __m512i both = pairs_float_bits(first + t);
        if (second != NULL)
            both = _mm512_or_si512(both, _mm512_srli_epi32(pairs_float_bits(second + t), 16));
        _mm512_storeu_si512(pairs + t, both);
    }
}

/* Cases that tell the two roundings in their order from one rounding, and from the other order:
 * 2^24 + 1 + 1, which stays at 2^24, and 2^24 - 2^24 + 0.5. */
PAIRS_TARGET static bool pairs_round(void)
{
    const __m512 sums = _mm512_set1_ps(0x1p24f);
    const __m512i ones = _mm512_set1_epi32(0x3f803f80);
    /* bf16: 0x3f80 is 1, 0xcb80 is -2^24, 0x3f00 is 0.5. */
    const __m512 twice = _mm512_dpbf16_ps(sums, (__m512bh)ones, (__m512bh)ones);
    const __m512 back =
        _mm512_dpbf16_ps(sums, (__m512bh)ones, (__m512bh)_mm512_set1_epi32((int)0xcb803f00u));
    return _mm512_cmpeq_ps_mask(twice, sums) == 0xffff &&
           _mm512_cmpeq_ps_mask(back, _mm512_set1_ps(0.5f)) == 0xffff;
}

bool transform_has_pairs(void)
{
    return __builtin_cpu_supports("avx512bf16") && pairs_round();
}

/* ---- rows and columns ---- */

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

const transform_kernels transform_kernels_avx512bf16 = {
    TRANSFORM_SHARED, .multiply = pairs_multiply, .pair = pairs_join};
#endif
