/*
 * rans_avx2.c - the coder of rans.h, eight states to a register. Re-entrant.
 */
#include "rans.h"

#if defined(__x86_64__)

#include "cpu.h"

#include <immintrin.h>

enum { RANS_HALF = 8, RANS_HALVES_MAX = RANS_STATES_MAX / RANS_HALF };

#define RANS_INLINE static inline __attribute__((always_inline)) CODECS_TARGET_AVX2

/* The words taken so far spread over the lanes whose bits are set: lane i takes word number
 * popcount(mask below i). Made with a bit deposit: 3-bit lane numbers into bytes. */
RANS_INLINE __m256i rans_spread(__m256i words, unsigned mask)
{
    uint64_t bytes = _pdep_u64(mask, UINT64_C(0x0101010101010101)) * 0xff;
    uint64_t order = _pdep_u64(UINT64_C(0x0706050403020100), bytes);
    __m256i lanes = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)order));
    return _mm256_permutevar8x32_epi32(words, lanes);
}

RANS_INLINE __m256i rans_decode_half(const int *table, __m256i x, const uint8_t **word,
                                     __m256i *entry_out)
{
    const __m256i slot_mask = _mm256_set1_epi32(RANS_SCALE - 1);
    __m256i entry = _mm256_i32gather_epi32(table, _mm256_and_si256(x, slot_mask), 4);
    __m256i high = _mm256_srli_epi32(x, RANS_SCALE_BITS);
    __m256i bias = _mm256_and_si256(_mm256_srli_epi32(entry, 8), slot_mask);
    x = _mm256_add_epi32(_mm256_mullo_epi32(_mm256_srli_epi32(entry, 20), high), bias);
    *entry_out = entry;
    /* x < 2^16 as a vector of all ones. */
    __m256i low = _mm256_cmpeq_epi32(_mm256_srli_epi32(x, 16), _mm256_setzero_si256());
    unsigned mask = (unsigned)_mm256_movemask_ps(_mm256_castsi256_ps(low));
    __m256i words = _mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)*word));
    *word += 2 * (unsigned)__builtin_popcount(mask);
    __m256i taken = _mm256_or_si256(_mm256_slli_epi32(x, 16), rans_spread(words, mask));
    return _mm256_blendv_epi8(x, taken, low);
}

/* The low bytes of two registers of eight. */
RANS_INLINE __m128i rans_low_bytes(__m256i a, __m256i b)
{
    const __m256i byte = _mm256_set1_epi32(0xff);
    __m256i pairs = _mm256_packus_epi32(_mm256_and_si256(a, byte), _mm256_and_si256(b, byte));
    pairs = _mm256_permute4x64_epi64(pairs, 0xd8);
    return _mm_packus_epi16(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
}

RANS_INLINE uint64_t rans_decode_halves(rans_decoder *decoder, uint8_t *symbols, uint64_t count,
                                        const int halves)
{
    const int *table = (const int *)decoder->table->slot;
    const uint8_t *word = decoder->word;
    const uint64_t turn = (uint64_t)halves * RANS_HALF;
    __m256i x[RANS_HALVES_MAX];
    uint64_t i = 0;
    for (int h = 0; h < halves; h++) {
        x[h] = _mm256_loadu_si256((const void *)(decoder->states + h * RANS_HALF));
    }
    for (; count - i >= turn && (uint64_t)(decoder->end - word) >= 2 * turn; i += turn) {
#pragma GCC unroll 16
        for (int h = 0; h < halves; h += 2) {
            __m256i first;
            __m256i second;
            x[h] = rans_decode_half(table, x[h], &word, &first);
            x[h + 1] = rans_decode_half(table, x[h + 1], &word, &second);
            _mm_storeu_si128((void *)(symbols + i + (uint64_t)h * RANS_HALF),
                             rans_low_bytes(first, second));
        }
    }
    for (int h = 0; h < halves; h++) {
        _mm256_storeu_si256((void *)(decoder->states + h * RANS_HALF), x[h]);
    }
    decoder->word = word;
    return i;
}

CODECS_TARGET_AVX2 uint64_t rans_decode_avx2(rans_decoder *decoder, uint8_t *symbols,
                                             uint64_t count)
{
    switch (decoder->state_count) {
    case 16: return rans_decode_halves(decoder, symbols, count, 2);
    case 32: return rans_decode_halves(decoder, symbols, count, 4);
    case 64: return rans_decode_halves(decoder, symbols, count, 8);
    default: return rans_decode_halves(decoder, symbols, count, 16);
    }
}

/* The low words of the lanes of a mask, written so that they end at *word, which moves down. Up to
 * sixteen bytes before it are written. */
RANS_INLINE void rans_put_words(__m256i x, unsigned mask, uint8_t **word)
{
    const unsigned count = (unsigned)__builtin_popcount(mask);
    uint64_t bytes = _pdep_u64(mask, UINT64_C(0x0101010101010101)) * 0xff;
    uint64_t order = _pext_u64(UINT64_C(0x0706050403020100), bytes);
    /* To the top of eight places, in two shifts because no lane at all would be one of 64. */
    order = order << (4 * (RANS_HALF - count)) << (4 * (RANS_HALF - count));
    __m128i twice = _mm_cvtsi64_si128((long long)(order * 2));
    __m128i places = _mm_unpacklo_epi8(twice, _mm_add_epi8(twice, _mm_set1_epi8(1)));
    __m256i low = _mm256_and_si256(x, _mm256_set1_epi32(0xffff));
    __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1));
    _mm_storeu_si128((void *)(*word - 2 * RANS_HALF), _mm_shuffle_epi8(words, places));
    *word -= 2 * count;
}

/* One symbol of eight states. */
RANS_INLINE __m256i rans_encode_half(const rans_encode_table *table, const uint8_t *symbols,
                                     __m256i x, uint8_t **word)
{
    __m256i symbol = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)symbols));
    __m256i range = _mm256_i32gather_epi32((const int *)table->range, symbol, 4);
    __m256 reciprocal = _mm256_i32gather_ps(table->reciprocal, symbol, 4);
    __m256i frequency = _mm256_and_si256(range, _mm256_set1_epi32(0xffff));
    __m256i kept = _mm256_cmpgt_epi32(frequency, _mm256_srli_epi32(x, 20));
    unsigned mask = ~(unsigned)_mm256_movemask_ps(_mm256_castsi256_ps(kept)) & 0xffu;
    rans_put_words(x, mask, word);
    x = _mm256_blendv_epi8(_mm256_srli_epi32(x, 16), x, kept);
    /* An unsigned number to fp32, rounded once. */
    __m256 high = _mm256_cvtepi32_ps(_mm256_srli_epi32(x, 16));
    __m256 low = _mm256_cvtepi32_ps(_mm256_and_si256(x, _mm256_set1_epi32(0xffff)));
    __m256 value = _mm256_fmadd_ps(high, _mm256_set1_ps(65536.0f), low);
    /* The estimate is the quotient or one less; one more in it is 4096 more, and frequency less in
     * the rest. */
    __m256i quotient = _mm256_cvttps_epi32(_mm256_mul_ps(value, reciprocal));
    __m256i rest = _mm256_sub_epi32(x, _mm256_mullo_epi32(quotient, frequency));
    __m256i exact = _mm256_cmpgt_epi32(frequency, rest);
    __m256i more = _mm256_sub_epi32(_mm256_set1_epi32(RANS_SCALE), frequency);
    __m256i next = _mm256_add_epi32(_mm256_slli_epi32(quotient, RANS_SCALE_BITS),
                                    _mm256_add_epi32(rest, _mm256_srli_epi32(range, 16)));
    return _mm256_add_epi32(next, _mm256_andnot_si256(exact, more));
}

RANS_INLINE uint64_t rans_encode_halves(const rans_encode_table *table, const uint8_t *symbols,
                                        uint64_t count, const uint8_t *begin, uint8_t **word,
                                        uint32_t *states, const int halves)
{
    const uint64_t turn = (uint64_t)halves * RANS_HALF;
    uint8_t *at = *word;
    __m256i x[RANS_HALVES_MAX];
    for (int h = 0; h < halves; h++) {
        x[h] = _mm256_loadu_si256((const void *)(states + h * RANS_HALF));
    }
    while (count >= turn && (uint64_t)(at - begin) >= 2 * turn) {
        count -= turn;
#pragma GCC unroll 16
        for (int h = halves - 1; h >= 0; h--) {
            x[h] = rans_encode_half(table, symbols + count + (uint64_t)h * RANS_HALF, x[h], &at);
        }
    }
    for (int h = 0; h < halves; h++) {
        _mm256_storeu_si256((void *)(states + h * RANS_HALF), x[h]);
    }
    *word = at;
    return count;
}

CODECS_TARGET_AVX2 uint64_t rans_encode_avx2(const rans_encode_table *table, const uint8_t *symbols,
                                             uint64_t count, uint32_t state_count,
                                             const uint8_t *begin, uint8_t **word, uint32_t *states)
{
    switch (state_count) {
    case 16: return rans_encode_halves(table, symbols, count, begin, word, states, 2);
    case 32: return rans_encode_halves(table, symbols, count, begin, word, states, 4);
    case 64: return rans_encode_halves(table, symbols, count, begin, word, states, 8);
    default: return rans_encode_halves(table, symbols, count, begin, word, states, 16);
    }
}

#endif
