/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transform_sparse_avx2.c - the product of decoding in rows, from the codes that are not 0. Codes
 * of eight components and sixteen tokens change places, and those of a token that are not 0 move
 * together. The factors of 64 outputs are copied into a panel of bf16; a load gives the even ones
 * by a shift and the odd ones by a mask. Re-entrant.
 */
#if defined(__x86_64__)
#include "cpu.h"
#include "transform_kernels.h"

#include <assert.h>
#include <immintrin.h>
#include <string.h>

#define SPARSE_INLINE static inline __attribute__((always_inline)) CODECS_TARGET_AVX2

enum {
    SPARSE_EIGHT = 8,
    SPARSE_SUMS = TRANSFORM_SPARSE_PANEL / 8,
    SPARSE_ROW_SHIFT = 7 /* of the bytes of a panel's row */
};
_Static_assert(1 << SPARSE_ROW_SHIFT == TRANSFORM_SPARSE_PANEL * 2, "rows of a panel");

/* Eight rows of sixteen codes, turned: row j gets the eight codes of token j in its lower half and
 * of token j + 8 in its upper one. */
SPARSE_INLINE void sparse_turn(__m256i *rows)
{
    __m256i a[SPARSE_EIGHT];
#pragma GCC unroll 4
    for (int i = 0; i < SPARSE_EIGHT; i += 2) {
        a[i] = _mm256_unpacklo_epi16(rows[i], rows[i + 1]); /* tokens 0 .. 3 */
        a[i + 1] = _mm256_unpackhi_epi16(rows[i], rows[i + 1]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < SPARSE_EIGHT; i += 4) { /* rows[i + j]: tokens 2 j and 2 j + 1 */
        rows[i] = _mm256_unpacklo_epi32(a[i], a[i + 2]);
        rows[i + 1] = _mm256_unpackhi_epi32(a[i], a[i + 2]);
        rows[i + 2] = _mm256_unpacklo_epi32(a[i + 1], a[i + 3]);
        rows[i + 3] = _mm256_unpackhi_epi32(a[i + 1], a[i + 3]);
    }
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        a[2 * j] = _mm256_unpacklo_epi64(rows[j], rows[j + 4]);
        a[2 * j + 1] = _mm256_unpackhi_epi64(rows[j], rows[j + 4]);
    }
#pragma GCC unroll 8
    for (int i = 0; i < SPARSE_EIGHT; i++)
        rows[i] = a[i];
}

/* Appends those of eight codes that are not 0, a bit of the mask each. `first`: the row of the
 * panel of the first one, in every place. */
SPARSE_INLINE uint32_t sparse_append(__m128i codes, unsigned mask, __m256i first, float *terms,
                                     uint32_t *at)
{
    const uint64_t lanes = _pdep_u64(mask, UINT64_C(0x0101010101010101)) * 0xff;
    const __m128i places =
        _mm_cvtsi64_si128((long long)_pext_u64(UINT64_C(0x0706050403020100), lanes));
    const __m128i bytes = _mm_add_epi16(
        _mm_mullo_epi16(_mm_cvtepu8_epi16(places), _mm_set1_epi16(0x0202)), _mm_set1_epi16(0x0100));
    const __m256 values = _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(_mm_shuffle_epi8(codes, bytes)));
    const __m256i rows = _mm256_add_epi32(_mm256_cvtepu8_epi32(places), first);
    _mm256_storeu_ps(terms, values);
    _mm256_storeu_si256((__m256i *)(void *)at, _mm256_slli_epi32(rows, SPARSE_ROW_SHIFT));
    return (uint32_t)__builtin_popcount(mask);
}

/* The terms of sixteen tokens. */
SPARSE_INLINE void sparse_list_sixteen(transform_sparse *sparse, uint32_t token)
{
    const int16_t none[TRANSFORM_LANE_GROUP] = {0};
    float *terms = sparse->terms + (uint64_t)token * TRANSFORM_SPARSE_ROOM;
    uint32_t *at = sparse->at + (uint64_t)token * TRANSFORM_SPARSE_ROOM;
    uint32_t counts[TRANSFORM_LANE_GROUP] = {0};
    for (uint32_t k = 0; k < sparse->row_count; k += SPARSE_EIGHT) {
        __m256i rows[SPARSE_EIGHT];
        const __m256i first = _mm256_set1_epi32((int)k);
#pragma GCC unroll 8
        for (uint32_t i = 0; i < SPARSE_EIGHT; i++) {
            const int16_t *codes = none;
            if (k + i < sparse->row_count)
                codes = sparse->codes + (uint64_t)sparse->rows[k + i] * TRANSFORM_LANES +
                        sparse->first_token + token;
            rows[i] = _mm256_loadu_si256((const __m256i *)(const void *)codes);
        }
        sparse_turn(rows);
#pragma GCC unroll 8
        for (uint32_t j = 0; j < SPARSE_EIGHT; j++) {
            const __m256i zero = _mm256_cmpeq_epi16(rows[j], _mm256_setzero_si256());
            const uint32_t mask = ~(uint32_t)_mm256_movemask_epi8(_mm256_packs_epi16(zero, zero));
            const uint32_t low = counts[j], high = counts[j + SPARSE_EIGHT];
            const uint64_t other = (uint64_t)(j + SPARSE_EIGHT) * TRANSFORM_SPARSE_ROOM + high;
            counts[j] += sparse_append(_mm256_castsi256_si128(rows[j]), mask & 0xff, first,
                                       terms + (uint64_t)j * TRANSFORM_SPARSE_ROOM + low,
                                       at + (uint64_t)j * TRANSFORM_SPARSE_ROOM + low);
            counts[j + SPARSE_EIGHT] +=
                sparse_append(_mm256_extracti128_si256(rows[j], 1), mask >> 16 & 0xff, first,
                              terms + other, at + other);
        }
    }
    memcpy(sparse->counts + token, counts, sizeof counts);
}

CODECS_TARGET_AVX2 void transform_list_avx2(transform_sparse *sparse)
{
    assert(sparse->tokens <= TRANSFORM_SPARSE_TOKENS);
    assert(sparse->row_count <= TRANSFORM_SPARSE_ROWS);
    for (uint32_t token = 0; token < sparse->tokens; token += TRANSFORM_LANE_GROUP)
        sparse_list_sixteen(sparse, token);
}

/* Copies the factors of some outputs; those past the last one are zero. */
SPARSE_INLINE void sparse_fill_panel(const transform_sparse *sparse, uint32_t first, uint32_t count)
{
    uint16_t *panel = sparse->panel;
    for (uint32_t k = 0; k < sparse->row_count; k++, panel += TRANSFORM_SPARSE_PANEL) {
        const uint16_t *line = sparse->matrix + (uint64_t)sparse->rows[k] * sparse->width + first;
        if (count < TRANSFORM_SPARSE_PANEL)
            memset(panel + count, 0, (TRANSFORM_SPARSE_PANEL - count) * sizeof *panel);
        if (count < TRANSFORM_SPARSE_PANEL)
            memcpy(panel, line, count * sizeof *line);
        else
            memcpy(panel, line, TRANSFORM_SPARSE_PANEL * sizeof *line);
    }
}

/* Adds a term to the sums of even and odd outputs. */
SPARSE_INLINE void sparse_add(const uint8_t *row, __m256 code, __m256 *sums)
{
    const __m256i upper = _mm256_set1_epi32((int)0xffff0000u);
#pragma GCC unroll 4
    for (int i = 0; i < SPARSE_SUMS; i += 2, row += sizeof upper) {
        __m256i factors = _mm256_load_si256((const __m256i *)(const void *)row);
        __asm__("" : "+x"(factors)); /* one load for both halves */
        sums[i] =
            _mm256_fmadd_ps(code, _mm256_castsi256_ps(_mm256_slli_epi32(factors, 16)), sums[i]);
        sums[i + 1] = _mm256_fmadd_ps(code, _mm256_castsi256_ps(_mm256_and_si256(factors, upper)),
                                      sums[i + 1]);
    }
}

/* The sums of even and odd outputs from outputs in their order. */
SPARSE_INLINE void sparse_load(const float *row, __m256 *sums)
{
#pragma GCC unroll 4
    for (int i = 0; i < SPARSE_SUMS; i += 2) {
        const __m256 one = _mm256_loadu_ps(row + 8 * i);
        const __m256 two = _mm256_loadu_ps(row + 8 * i + 8);
        const __m256 low = _mm256_permute2f128_ps(one, two, 0x20);
        const __m256 high = _mm256_permute2f128_ps(one, two, 0x31);
        sums[i] = _mm256_shuffle_ps(low, high, 0x88);
        sums[i + 1] = _mm256_shuffle_ps(low, high, 0xdd);
    }
}

SPARSE_INLINE void sparse_store(const __m256 *sums, float *row)
{
#pragma GCC unroll 4
    for (int i = 0; i < SPARSE_SUMS; i += 2) {
        const __m256 low = _mm256_unpacklo_ps(sums[i], sums[i + 1]);
        const __m256 high = _mm256_unpackhi_ps(sums[i], sums[i + 1]);
        _mm256_storeu_ps(row + 8 * i, _mm256_permute2f128_ps(low, high, 0x20));
        _mm256_storeu_ps(row + 8 * i + 8, _mm256_permute2f128_ps(low, high, 0x31));
    }
}

/* Some outputs of a token, at most a panel's. */
SPARSE_INLINE void sparse_token(const transform_sparse *sparse, uint32_t token, uint32_t count,
                                float *row)
{
    const uint8_t *panel = (const uint8_t *)sparse->panel;
    const float *terms = sparse->terms + (uint64_t)token * TRANSFORM_SPARSE_ROOM;
    const uint32_t *at = sparse->at + (uint64_t)token * TRANSFORM_SPARSE_ROOM;
    float some[TRANSFORM_SPARSE_PANEL] = {0};
    float *whole = count == TRANSFORM_SPARSE_PANEL ? row : some;
    __m256 sums[SPARSE_SUMS];
#pragma GCC unroll 8
    for (int s = 0; s < SPARSE_SUMS; s++)
        sums[s] = _mm256_setzero_ps();
    if (sparse->more && whole != row) memcpy(some, row, count * sizeof *row);
    if (sparse->more) sparse_load(whole, sums);
    for (uint32_t k = 0; k < sparse->counts[token]; k++)
        sparse_add(panel + at[k], _mm256_broadcast_ss(&terms[k]), sums);
    sparse_store(sums, whole);
    if (whole != row) memcpy(row, some, count * sizeof *row);
}

CODECS_TARGET_AVX2 void transform_sum_avx2(const transform_sparse *sparse, uint32_t first,
                                           uint32_t count)
{
    for (uint32_t done = 0; done < count; done += TRANSFORM_SPARSE_PANEL) {
        const uint32_t left = count - done;
        const uint32_t some = left < TRANSFORM_SPARSE_PANEL ? left : TRANSFORM_SPARSE_PANEL;
        sparse_fill_panel(sparse, first + done, some);
        for (uint32_t t = 0; t < sparse->tokens; t++)
            sparse_token(sparse, t, some, sparse->out + (uint64_t)t * sparse->width + first + done);
    }
}
#endif
