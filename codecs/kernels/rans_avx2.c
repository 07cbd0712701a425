/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rans_avx2.c - the coder of rans.h, eight states to a register, a number of 32 bits each.
 * Re-entrant.
 */
#include "codecs/rans.h"

#if defined(__x86_64__)

#include "cpu.h"

#include <immintrin.h>

enum { RANS_EIGHT = 8, RANS_EIGHTS_MAX = RANS_STATES_MAX / RANS_EIGHT };

#define RANS_INLINE static inline __attribute__((always_inline)) CODECS_TARGET_AVX2

RANS_INLINE __m256i rans_load_states(const uint16_t *states)
{
    return _mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)states));
}

RANS_INLINE void rans_store_states(uint16_t *states, __m256i x)
{
    __m256i words = _mm256_permute4x64_epi64(_mm256_packus_epi32(x, x), 0x08);
    _mm_storeu_si128((void *)states, _mm256_castsi256_si128(words));
}

/* The bytes that are next, spread over the lanes whose bits are set: lane i takes byte number
 * popcount(mask below i). */
RANS_INLINE __m256i rans_spread(const uint8_t *at, unsigned mask)
{
    uint64_t bytes;
    __builtin_memcpy(&bytes, at, sizeof bytes);
    uint64_t lanes = _pdep_u64(mask, UINT64_C(0x0101010101010101)) * 0xff;
    return _mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)_pdep_u64(bytes, lanes)));
}

RANS_INLINE __m256i rans_decode_eight(const int *table, __m256i x, const uint8_t **at,
                                      __m256i *entry_out)
{
    const __m256i byte = _mm256_set1_epi32(0xff);
    __m256i entry = _mm256_i32gather_epi32(table, _mm256_and_si256(x, byte), 4);
    /* Both factors are below 2^15 and alone in their lanes. */
    __m256i product = _mm256_madd_epi16(_mm256_srli_epi32(entry, 16), _mm256_srli_epi32(x, 8));
    x = _mm256_add_epi32(product, _mm256_and_si256(_mm256_srli_epi32(entry, 8), byte));
    *entry_out = entry;
    __m256i due = _mm256_cmpgt_epi32(_mm256_set1_epi32(RANS_STATE_MIN), x);
    unsigned mask = (unsigned)_mm256_movemask_ps(_mm256_castsi256_ps(due));
    __m256i taken = _mm256_or_si256(_mm256_slli_epi32(x, 8), rans_spread(*at, mask));
    *at += (unsigned)__builtin_popcount(mask);
    return _mm256_blendv_epi8(x, taken, due);
}

/* The low bytes of two registers of eight. */
RANS_INLINE __m128i rans_low_bytes(__m256i a, __m256i b)
{
    const __m256i byte = _mm256_set1_epi32(0xff);
    __m256i pairs = _mm256_packus_epi32(_mm256_and_si256(a, byte), _mm256_and_si256(b, byte));
    pairs = _mm256_permute4x64_epi64(pairs, 0xd8);
    return _mm_packus_epi16(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
}

/* Turns until fewer bytes are left than one turn can take. */
RANS_INLINE uint64_t rans_decode_eights(rans_decoder *decoder, uint8_t *symbols, uint64_t count,
                                        const int eights)
{
    const int *table = (const int *)decoder->table->entry;
    const uint8_t *at = decoder->at;
    const uint64_t turn = (uint64_t)eights * RANS_EIGHT;
    __m256i x[RANS_EIGHTS_MAX];
    uint64_t i = 0;
    for (int h = 0; h < eights; h++) {
        x[h] = rans_load_states(decoder->states + h * RANS_EIGHT);
    }
    for (; count - i >= turn && (uint64_t)(decoder->end - at) >= turn; i += turn) {
#pragma GCC unroll 16
        for (int h = 0; h < eights; h += 2) {
            __m256i first;
            __m256i second;
            x[h] = rans_decode_eight(table, x[h], &at, &first);
            x[h + 1] = rans_decode_eight(table, x[h + 1], &at, &second);
            _mm_storeu_si128((void *)(symbols + i + (uint64_t)h * RANS_EIGHT),
                             rans_low_bytes(first, second));
        }
    }
    for (int h = 0; h < eights; h++) {
        rans_store_states(decoder->states + h * RANS_EIGHT, x[h]);
    }
    decoder->at = at;
    return i;
}

CODECS_TARGET_AVX2 uint64_t rans_decode_avx2(rans_decoder *decoder, uint8_t *symbols,
                                             uint64_t count)
{
    switch (decoder->state_count) {
    case 16: return rans_decode_eights(decoder, symbols, count, 2);
    case 64: return rans_decode_eights(decoder, symbols, count, 8);
    default: return rans_decode_eights(decoder, symbols, count, 16);
    }
}

/* The low bytes of the lanes of a mask, written so that they end at *at, which moves down. Eight
 * bytes before it are written. */
RANS_INLINE void rans_put_bytes(__m256i x, unsigned mask, uint8_t **at)
{
    const unsigned count = (unsigned)__builtin_popcount(mask);
    __m256i low = _mm256_and_si256(x, _mm256_set1_epi32(0xff));
    __m256i pairs = _mm256_packus_epi32(low, low);
    __m128i words =
        _mm_unpacklo_epi64(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
    uint64_t bytes = (uint64_t)_mm_cvtsi128_si64(_mm_packus_epi16(words, words));
    uint64_t lanes = _pdep_u64(mask, UINT64_C(0x0101010101010101)) * 0xff;
    /* To the top, in two shifts because no lane at all would be one of 64. */
    bytes = _pext_u64(bytes, lanes) << (4 * (RANS_EIGHT - count)) << (4 * (RANS_EIGHT - count));
    __builtin_memcpy(*at - RANS_EIGHT, &bytes, sizeof bytes);
    *at -= count;
}

/* One symbol of eight states. */
RANS_INLINE __m256i rans_encode_eight(const rans_encode_table *table, const uint8_t *symbols,
                                      __m256i x, uint8_t **at)
{
    __m256i symbol = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)symbols));
    __m256i range = _mm256_i32gather_epi32((const int *)table->range, symbol, 4);
    __m256 reciprocal = _mm256_i32gather_ps(table->reciprocal, symbol, 4);
    __m256i frequency = _mm256_and_si256(range, _mm256_set1_epi32(0xff));
    __m256i kept = _mm256_cmpgt_epi32(frequency, _mm256_srli_epi32(x, 8));
    rans_put_bytes(x, ~(unsigned)_mm256_movemask_ps(_mm256_castsi256_ps(kept)) & 0xffu, at);
    x = _mm256_blendv_epi8(_mm256_srli_epi32(x, 8), x, kept);
    /* Half above the state is at least 1 / 510 away from a whole quotient, far more than fp32 errs
     * here. */
    __m256 half = _mm256_add_ps(_mm256_cvtepi32_ps(x), _mm256_set1_ps(0.5f));
    __m256i quotient = _mm256_cvttps_epi32(_mm256_mul_ps(half, reciprocal));
    __m256i rank = _mm256_sub_epi32(x, _mm256_madd_epi16(quotient, frequency));
    __m256i place = _mm256_add_epi32(rank, _mm256_srli_epi32(range, 16));
    __m256i slot = _mm256_i32gather_epi32((const int *)table->slot, place, 4);
    return _mm256_or_si256(_mm256_slli_epi32(quotient, RANS_SCALE_BITS), slot);
}

RANS_INLINE uint64_t rans_encode_eights(const rans_encode_table *table, const uint8_t *symbols,
                                        uint64_t count, const uint8_t *begin, uint8_t **at,
                                        uint16_t *states, const int eights)
{
    const uint64_t turn = (uint64_t)eights * RANS_EIGHT;
    uint8_t *next = *at;
    __m256i x[RANS_EIGHTS_MAX];
    for (int h = 0; h < eights; h++) {
        x[h] = rans_load_states(states + h * RANS_EIGHT);
    }
    while (count >= turn && (uint64_t)(next - begin) >= turn) {
        count -= turn;
#pragma GCC unroll 16
        for (int h = eights - 1; h >= 0; h--) {
            x[h] =
                rans_encode_eight(table, symbols + count + (uint64_t)h * RANS_EIGHT, x[h], &next);
        }
    }
    for (int h = 0; h < eights; h++) {
        rans_store_states(states + h * RANS_EIGHT, x[h]);
    }
    *at = next;
    return count;
}

CODECS_TARGET_AVX2 uint64_t rans_encode_avx2(const rans_encode_table *table, const uint8_t *symbols,
                                             uint64_t count, uint32_t state_count,
                                             const uint8_t *begin, uint8_t **at, uint16_t *states)
{
    switch (state_count) {
    case 16: return rans_encode_eights(table, symbols, count, begin, at, states, 2);
    case 64: return rans_encode_eights(table, symbols, count, begin, at, states, 8);
    default: return rans_encode_eights(table, symbols, count, begin, at, states, 16);
    }
}

#endif
