/*
 * rans_avx2.c - the decoder of rans.h, eight states to a register. Encoding has no AVX2 form: the
 * scalar one is as fast. Re-entrant.
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

#endif
