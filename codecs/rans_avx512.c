/*
 * rans_avx512.c - the coder of rans.h, sixteen states to a register. Each function is compiled once
 * per number of registers, so that the states stay in registers. Re-entrant.
 */
#include "rans.h"

#if defined(__x86_64__)

#include "cpu.h"

#include <immintrin.h>

#if !defined(__OPTIMIZE__)
/* Without optimisation gcc's intrinsics are macros, which convert the signs of masks. */
#pragma GCC diagnostic ignored "-Wsign-conversion"
#endif

#define RANS_INLINE static inline __attribute__((always_inline)) CODECS_TARGET_AVX512

/* Turns until fewer words are left than one turn can take. */
RANS_INLINE uint64_t rans_decode_groups(rans_decoder *decoder, uint8_t *symbols, uint64_t count,
                                        const int groups)
{
    const __m512i slot_mask = _mm512_set1_epi32(RANS_SCALE - 1);
    const __m512i minimum = _mm512_set1_epi32((int)RANS_STATE_MIN);
    const int *table = (const int *)decoder->table->slot;
    const uint8_t *word = decoder->word;
    const uint64_t turn = (uint64_t)groups * RANS_LANES;
    __m512i x[RANS_STATES_MAX / RANS_LANES];
    uint64_t i = 0;
    for (int g = 0; g < groups; g++) {
        x[g] = _mm512_loadu_si512(decoder->states + g * RANS_LANES);
    }
    for (; count - i >= turn && (uint64_t)(decoder->end - word) >= 2 * turn; i += turn) {
#pragma GCC unroll 8
        for (int g = 0; g < groups; g++) {
            __m512i entry = _mm512_i32gather_epi32(_mm512_and_si512(x[g], slot_mask), table, 4);
            __m512i high = _mm512_srli_epi32(x[g], RANS_SCALE_BITS);
            __m512i bias = _mm512_and_si512(_mm512_srli_epi32(entry, 8), slot_mask);
            __m512i next =
                _mm512_add_epi32(_mm512_mullo_epi32(_mm512_srli_epi32(entry, 20), high), bias);
            _mm_storeu_si128((__m128i *)(void *)(symbols + i + (uint64_t)g * RANS_LANES),
                             _mm512_cvtepi32_epi8(entry));
            __mmask16 low = _mm512_cmplt_epu32_mask(next, minimum);
            __m512i words = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)word));
            word += 2 * (unsigned)__builtin_popcount(low);
            __m512i taken = _mm512_maskz_expand_epi32(low, words);
            x[g] = _mm512_or_si512(_mm512_mask_slli_epi32(next, low, next, 16), taken);
        }
    }
    for (int g = 0; g < groups; g++) {
        _mm512_storeu_si512(decoder->states + g * RANS_LANES, x[g]);
    }
    decoder->word = word;
    return i;
}

CODECS_TARGET_AVX512 uint64_t rans_decode_avx512(rans_decoder *decoder, uint8_t *symbols,
                                                 uint64_t count)
{
    switch (decoder->state_count) {
    case 16: return rans_decode_groups(decoder, symbols, count, 1);
    case 32: return rans_decode_groups(decoder, symbols, count, 2);
    case 64: return rans_decode_groups(decoder, symbols, count, 4);
    default: return rans_decode_groups(decoder, symbols, count, 8);
    }
}

/* One symbol of sixteen states; moves *word down. */
RANS_INLINE __m512i rans_encode_group(const rans_encode_table *table, const uint8_t *symbols,
                                      __m512i x, uint8_t **word)
{
    const __m512i frequency_mask = _mm512_set1_epi32(0xffff);
    __m512i symbol = _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)symbols));
    __m512i range = _mm512_i32gather_epi32(symbol, (const int *)table->range, 4);
    __m512 reciprocal = _mm512_i32gather_ps(symbol, table->reciprocal, 4);
    __m512i frequency = _mm512_and_si512(range, frequency_mask);
    __mmask16 full = _mm512_cmpge_epu32_mask(_mm512_srli_epi32(x, 20), frequency);
    unsigned count = (unsigned)__builtin_popcount(full);
    *word -= 2 * count;
    _mm256_mask_storeu_epi16(*word, (__mmask16)((1u << count) - 1u),
                             _mm512_cvtepi32_epi16(_mm512_maskz_compress_epi32(full, x)));
    x = _mm512_mask_srli_epi32(x, full, x, 16);
    /* The estimate is the quotient or one less. */
    __m512i quotient = _mm512_cvttps_epi32(_mm512_mul_ps(_mm512_cvtepu32_ps(x), reciprocal));
    __m512i rest = _mm512_sub_epi32(x, _mm512_mullo_epi32(quotient, frequency));
    __mmask16 short_by_one = _mm512_cmpge_epu32_mask(rest, frequency);
    /* One more in the quotient is 4096 more, and frequency less in the rest. */
    __m512i next = _mm512_add_epi32(_mm512_slli_epi32(quotient, RANS_SCALE_BITS),
                                    _mm512_add_epi32(rest, _mm512_srli_epi32(range, 16)));
    __m512i more = _mm512_sub_epi32(_mm512_set1_epi32(RANS_SCALE), frequency);
    return _mm512_mask_add_epi32(next, short_by_one, next, more);
}

RANS_INLINE uint64_t rans_encode_groups(const rans_encode_table *table, const uint8_t *symbols,
                                        uint64_t count, const uint8_t *begin, uint8_t **word,
                                        uint32_t *states, const int groups)
{
    const uint64_t turn = (uint64_t)groups * RANS_LANES;
    uint8_t *at = *word;
    __m512i x[RANS_STATES_MAX / RANS_LANES];
    for (int g = 0; g < groups; g++) {
        x[g] = _mm512_loadu_si512(states + g * RANS_LANES);
    }
    while (count >= turn && (uint64_t)(at - begin) >= 2 * turn) {
        count -= turn;
#pragma GCC unroll 8
        for (int g = groups - 1; g >= 0; g--) {
            x[g] = rans_encode_group(table, symbols + count + (uint64_t)g * RANS_LANES, x[g], &at);
        }
    }
    for (int g = 0; g < groups; g++) {
        _mm512_storeu_si512(states + g * RANS_LANES, x[g]);
    }
    *word = at;
    return count;
}

CODECS_TARGET_AVX512 uint64_t rans_encode_avx512(const rans_encode_table *table,
                                                 const uint8_t *symbols, uint64_t count,
                                                 uint32_t state_count, const uint8_t *begin,
                                                 uint8_t **word, uint32_t *states)
{
    switch (state_count) {
    case 16: return rans_encode_groups(table, symbols, count, begin, word, states, 1);
    case 32: return rans_encode_groups(table, symbols, count, begin, word, states, 2);
    case 64: return rans_encode_groups(table, symbols, count, begin, word, states, 4);
    default: return rans_encode_groups(table, symbols, count, begin, word, states, 8);
    }
}

#endif
