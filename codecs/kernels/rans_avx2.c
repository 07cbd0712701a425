/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rans_avx2.c - the coder of rans.h, 32 states to a pair of registers: one has the states' low
 * bytes, which are slots, the other their high bytes, as in rans_avx512.c. Re-entrant.
 */
#include "codecs/rans.h"

#if defined(__x86_64__)

#include "cpu.h"

#include <immintrin.h>

enum { RANS_EIGHT = 8 };

#define RANS_INLINE static inline __attribute__((always_inline)) CODECS_TARGET_AVX2

enum { RANS_LANES = 32, RANS_PAIRS_MAX = RANS_STATES_MAX / RANS_LANES };

typedef struct rans_pair {
    __m256i low;
    __m256i high;
} rans_pair;

RANS_INLINE rans_pair rans_load_pair(const uint16_t *states)
{
    const __m256i byte = _mm256_set1_epi16(0xff);
    __m256i a = _mm256_loadu_si256((const void *)states);
    __m256i b = _mm256_loadu_si256((const void *)(states + RANS_LANES / 2));
    __m256i low = _mm256_packus_epi16(_mm256_and_si256(a, byte), _mm256_and_si256(b, byte));
    __m256i high = _mm256_packus_epi16(_mm256_srli_epi16(a, 8), _mm256_srli_epi16(b, 8));
    rans_pair x = {_mm256_permute4x64_epi64(low, 0xd8), _mm256_permute4x64_epi64(high, 0xd8)};
    return x;
}

RANS_INLINE void rans_store_pair(uint16_t *states, rans_pair x)
{
    __m256i low = _mm256_permute4x64_epi64(x.low, 0xd8);
    __m256i high = _mm256_permute4x64_epi64(x.high, 0xd8);
    _mm256_storeu_si256((void *)states, _mm256_unpacklo_epi8(low, high));
    _mm256_storeu_si256((void *)(states + RANS_LANES / 2), _mm256_unpackhi_epi8(low, high));
}

/* Sixteen bytes looked up: lanes of 128 and more give 0, of others the low four bits count. */
RANS_INLINE __m256i rans_look16(const uint8_t bytes[16], __m256i at)
{
    const __m128i table = _mm_loadu_si128((const void *)bytes);
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), at);
}

/* Places in a table of 256 bytes: the low four bits, and each of the high four on top of a byte. */
typedef struct rans_places {
    __m256i low;
    __m256i bit[4];
} rans_places;

RANS_INLINE rans_places rans_place(__m256i at)
{
    const rans_places places = {
        _mm256_and_si256(at, _mm256_set1_epi8(15)),
        {_mm256_slli_epi16(at, 3), _mm256_slli_epi16(at, 2), _mm256_slli_epi16(at, 1), at}};
    return places;
}

/* A table of 256 bytes: sixteen shuffles, of which the high bits choose one, pair by pair. */
RANS_INLINE __m256i rans_look256(const uint8_t bytes[RANS_SCALE], const rans_places *places)
{
    __m256i part[RANS_SCALE / 16];
#pragma GCC unroll 16
    for (int i = 0; i < RANS_SCALE / 16; i++) {
        part[i] = rans_look16(bytes + i * 16, places->low);
    }
#pragma GCC unroll 4
    for (int bit = 0; bit < 4; bit++) {
#pragma GCC unroll 8
        for (int i = 0; i < RANS_SCALE / 32 >> bit; i++) {
            part[i] = _mm256_blendv_epi8(part[2 * i], part[2 * i + 1], places->bit[bit]);
        }
    }
    return part[0];
}

/* The bytes that are next, spread over eight lanes whose bits are set. Moves *at. */
RANS_INLINE long long rans_spread(const uint8_t **at, unsigned mask)
{
    uint64_t bytes;
    __builtin_memcpy(&bytes, *at, sizeof bytes);
    *at += (unsigned)__builtin_popcount(mask);
    return (long long)_pdep_u64(bytes, _pdep_u64(mask, UINT64_C(0x0101010101010101)) * 0xff);
}

/* Two registers of words, of the even bytes and of the odd ones, as a pair. */
RANS_INLINE rans_pair rans_join(__m256i even, __m256i odd)
{
    const __m256i byte = _mm256_set1_epi16(0xff);
    const rans_pair x = {
        _mm256_or_si256(_mm256_and_si256(even, byte), _mm256_slli_epi16(odd, 8)),
        _mm256_or_si256(_mm256_srli_epi16(even, 8), _mm256_andnot_si256(byte, odd))};
    return x;
}

/* States below the least take the bytes that are next. lanes: those that are in use. */
RANS_INLINE rans_pair rans_take_due(rans_pair x, const uint8_t **at, const uint32_t lanes)
{
    const __m256i due = _mm256_cmpeq_epi8(x.high, _mm256_setzero_si256());
    const uint32_t mask = (uint32_t)_mm256_movemask_epi8(due) & lanes;
    const long long a = rans_spread(at, mask & 0xff), b = rans_spread(at, mask >> 8 & 0xff);
    const long long c = rans_spread(at, mask >> 16 & 0xff), d = rans_spread(at, mask >> 24);
    x.high = _mm256_blendv_epi8(x.high, x.low, due);
    x.low = _mm256_blendv_epi8(x.low, _mm256_set_epi64x(d, c, b, a), due);
    return x;
}

/* One symbol of a pair. */
RANS_INLINE rans_pair rans_decode_pair(const rans_decode_table *table, rans_pair x,
                                       const uint8_t **at, const uint32_t lanes,
                                       __m256i *symbols_out)
{
    const __m256i byte = _mm256_set1_epi16(0xff);
    const rans_places slots = rans_place(x.low);
    const __m256i f = rans_look256(table->frequency, &slots);
    const __m256i r = rans_look256(table->rank, &slots);
    __m256i even = _mm256_mullo_epi16(_mm256_and_si256(f, byte), _mm256_and_si256(x.high, byte));
    __m256i odd = _mm256_mullo_epi16(_mm256_srli_epi16(f, 8), _mm256_srli_epi16(x.high, 8));
    even = _mm256_add_epi16(even, _mm256_and_si256(r, byte));
    odd = _mm256_add_epi16(odd, _mm256_srli_epi16(r, 8));
    *symbols_out = rans_look256(table->symbol, &slots);
    return rans_take_due(rans_join(even, odd), at, lanes);
}

/* The same with a table of few symbols: one look-up by slot gives the symbol's index in the low
 * four bits of a byte, and in the high four, with a sign, what the slot's rank has above its share
 * slot * frequency / 256. State and share are one product then: x * frequency / 256. */
RANS_INLINE rans_pair rans_decode_few(const rans_decode_table *table, rans_pair x,
                                      const uint8_t **at, const uint32_t lanes,
                                      __m256i *symbols_out)
{
    const __m256i byte = _mm256_set1_epi16(0xff);
    const rans_places slots = rans_place(x.low);
    const __m256i looked = rans_look256(table->few, &slots);
    const __m256i index = _mm256_and_si256(looked, _mm256_set1_epi8(RANS_FEW - 1));
    const __m256i f = rans_look16(table->few_frequency, index);
    *symbols_out = rans_look16(table->few_symbol, index);
    __m256i even = _mm256_or_si256(_mm256_and_si256(x.low, byte), _mm256_slli_epi16(x.high, 8));
    __m256i odd = _mm256_or_si256(_mm256_srli_epi16(x.low, 8), _mm256_andnot_si256(byte, x.high));
    even = _mm256_mulhi_epu16(even, _mm256_slli_epi16(f, 8));
    odd = _mm256_mulhi_epu16(odd, _mm256_andnot_si256(byte, f));
    even = _mm256_add_epi16(even, _mm256_srai_epi16(_mm256_slli_epi16(looked, 8), 12));
    odd = _mm256_add_epi16(odd, _mm256_srai_epi16(looked, 12));
    return rans_take_due(rans_join(even, odd), at, lanes);
}

/* Turns until fewer bytes are left than one turn can take, and those that are looked at beyond. */
RANS_INLINE uint64_t rans_decode_pairs(rans_decoder *decoder, uint8_t *symbols, uint64_t count,
                                       const int pairs, const bool few)
{
    const uint64_t turn = (uint64_t)pairs * RANS_LANES;
    const uint8_t *at = decoder->at;
    rans_pair x[RANS_PAIRS_MAX];
    uint64_t i = 0;
    for (int p = 0; p < pairs; p++) {
        x[p] = rans_load_pair(decoder->states + p * RANS_LANES);
    }
    for (; count - i >= turn && (uint64_t)(decoder->end - at) >= turn + sizeof(uint64_t);
         i += turn) {
#pragma GCC unroll 4
        for (int p = 0; p < pairs; p++) {
            __m256i run;
            x[p] = few ? rans_decode_few(decoder->table, x[p], &at, UINT32_MAX, &run)
                       : rans_decode_pair(decoder->table, x[p], &at, UINT32_MAX, &run);
            _mm256_storeu_si256((void *)(symbols + i + (uint64_t)p * RANS_LANES), run);
        }
    }
    for (int p = 0; p < pairs; p++) {
        rans_store_pair(decoder->states + p * RANS_LANES, x[p]);
    }
    decoder->at = at;
    return i;
}

/* The same of 16 states, in half of a pair. */
RANS_INLINE uint64_t rans_decode_half(rans_decoder *decoder, uint8_t *symbols, uint64_t count,
                                      const bool few)
{
    enum { TURN = RANS_LANES / 2 };
    uint16_t states[RANS_LANES] = {0};
    const uint8_t *at = decoder->at;
    uint64_t i = 0;
    __builtin_memcpy(states, decoder->states, TURN * sizeof states[0]);
    rans_pair x = rans_load_pair(states);
    for (; count - i >= TURN && (uint64_t)(decoder->end - at) >= TURN + sizeof(uint64_t);
         i += TURN) {
        __m256i run;
        x = few ? rans_decode_few(decoder->table, x, &at, UINT16_MAX, &run)
                : rans_decode_pair(decoder->table, x, &at, UINT16_MAX, &run);
        _mm_storeu_si128((void *)(symbols + i), _mm256_castsi256_si128(run));
    }
    rans_store_pair(states, x);
    __builtin_memcpy(decoder->states, states, TURN * sizeof states[0]);
    decoder->at = at;
    return i;
}

RANS_INLINE uint64_t rans_decode_whole(rans_decoder *decoder, uint8_t *symbols, uint64_t count,
                                       const bool few)
{
    switch (decoder->state_count) {
    case 16: return rans_decode_half(decoder, symbols, count, few);
    case 64: return rans_decode_pairs(decoder, symbols, count, 2, few);
    default: return rans_decode_pairs(decoder, symbols, count, 4, few);
    }
}

CODECS_TARGET_AVX2 uint64_t rans_decode_avx2(rans_decoder *decoder, uint8_t *symbols,
                                             uint64_t count)
{
    return decoder->table->has_few ? rans_decode_whole(decoder, symbols, count, true)
                                   : rans_decode_whole(decoder, symbols, count, false);
}

/* The bytes of the lanes of a mask, written so that they end at *at, which moves down. Eight bytes
 * before it are written. */
RANS_INLINE void rans_put_bytes(long long eight, unsigned mask, uint8_t **at)
{
    const unsigned empty = RANS_EIGHT - (unsigned)__builtin_popcount(mask);
    const uint64_t lanes = _pdep_u64(mask, UINT64_C(0x0101010101010101)) * 0xff;
    /* To the top, in two shifts because no lane at all would be one of 64. */
    const uint64_t bytes = _pext_u64((uint64_t)eight, lanes) << (4 * empty) << (4 * empty);
    __builtin_memcpy(*at - RANS_EIGHT, &bytes, sizeof bytes);
    *at -= RANS_EIGHT - empty;
}

/* Quotient and rest of 16 states, as in rans_avx512.c: the estimate is the quotient or one less. */
RANS_INLINE __m256i rans_divide(__m256i x, __m256i frequency, __m256i inverse, __m256i *rest_out)
{
    const __m256i quotient = _mm256_mulhi_epu16(x, inverse);
    const __m256i rest = _mm256_sub_epi16(x, _mm256_mullo_epi16(quotient, frequency));
    const __m256i more = _mm256_cmpeq_epi16(_mm256_max_epu16(rest, frequency), rest);
    *rest_out = _mm256_sub_epi16(rest, _mm256_and_si256(more, frequency));
    return _mm256_sub_epi16(quotient, more);
}

/* One symbol of 32 states, of which the first `lanes` are in use; moves *at down. */
RANS_INLINE rans_pair rans_encode_pair(const rans_encode_table *table, __m256i symbols, rans_pair x,
                                       uint8_t **at, const int lanes)
{
    const __m256i byte = _mm256_set1_epi16(0xff);
    const __m256i sixteen = _mm256_set1_epi8(RANS_STEP_BYTES);
    const __m256i width = _mm256_set1_epi8((char)(table->last - table->first));
    __m256i place = _mm256_sub_epi8(symbols, _mm256_set1_epi8((char)table->first));
    const __m256i known = _mm256_cmpeq_epi8(_mm256_min_epu8(place, width), place);
    place = _mm256_and_si256(_mm256_add_epi8(place, _mm256_set1_epi8(1)), known);
    __m256i frequency = rans_look16(table->frequency_steps[0], place);
    __m256i start = rans_look16(table->start_steps[0], place);
    __m256i low = rans_look16(table->inverse_low_steps[0], place);
    __m256i high = rans_look16(table->inverse_high_steps[0], place);
    for (int step = 1; step < (int)table->steps; step++) {
        place = _mm256_subs_epi8(place, sixteen);
        frequency = _mm256_xor_si256(frequency, rans_look16(table->frequency_steps[step], place));
        start = _mm256_xor_si256(start, rans_look16(table->start_steps[step], place));
        low = _mm256_xor_si256(low, rans_look16(table->inverse_low_steps[step], place));
        high = _mm256_xor_si256(high, rans_look16(table->inverse_high_steps[step], place));
    }

    const __m256i due = _mm256_cmpeq_epi8(_mm256_max_epu8(x.high, frequency), x.high);
    const uint32_t mask = (uint32_t)_mm256_movemask_epi8(due);
    if (lanes == RANS_LANES) {
        rans_put_bytes(_mm256_extract_epi64(x.low, 3), mask >> 24, at);
        rans_put_bytes(_mm256_extract_epi64(x.low, 2), mask >> 16 & 0xff, at);
    }
    rans_put_bytes(_mm256_extract_epi64(x.low, 1), mask >> 8 & 0xff, at);
    rans_put_bytes(_mm256_extract_epi64(x.low, 0), mask & 0xff, at);
    x.low = _mm256_blendv_epi8(x.low, x.high, due);
    x.high = _mm256_andnot_si256(due, x.high);

    __m256i rest_even;
    __m256i rest_odd;
    const __m256i even = rans_divide(
        _mm256_or_si256(_mm256_and_si256(x.low, byte), _mm256_slli_epi16(x.high, 8)),
        _mm256_and_si256(frequency, byte),
        _mm256_or_si256(_mm256_and_si256(low, byte), _mm256_slli_epi16(high, 8)), &rest_even);
    const __m256i odd = rans_divide(
        _mm256_or_si256(_mm256_srli_epi16(x.low, 8), _mm256_andnot_si256(byte, x.high)),
        _mm256_srli_epi16(frequency, 8),
        _mm256_or_si256(_mm256_srli_epi16(low, 8), _mm256_andnot_si256(byte, high)), &rest_odd);
    x.high = _mm256_or_si256(even, _mm256_slli_epi16(odd, 8));
    place = _mm256_or_si256(rest_even, _mm256_slli_epi16(rest_odd, 8));
    place = _mm256_add_epi8(place, start);
    const rans_places places = rans_place(place);
    x.low = rans_look256(table->slot_byte, &places);
    return x;
}

RANS_INLINE uint64_t rans_encode_pairs(const rans_encode_table *table, const uint8_t *symbols,
                                       uint64_t count, const uint8_t *begin, uint8_t **at,
                                       uint16_t *states, const int pairs)
{
    const uint64_t turn = (uint64_t)pairs * RANS_LANES;
    uint8_t *next = *at;
    rans_pair x[RANS_PAIRS_MAX];
    for (int p = 0; p < pairs; p++) {
        x[p] = rans_load_pair(states + p * RANS_LANES);
    }
    while (count >= turn && (uint64_t)(next - begin) >= turn) {
        count -= turn;
#pragma GCC unroll 4
        for (int p = pairs - 1; p >= 0; p--) {
            const uint8_t *from = symbols + count + (uint64_t)p * RANS_LANES;
            x[p] = rans_encode_pair(table, _mm256_loadu_si256((const void *)from), x[p], &next,
                                    RANS_LANES);
        }
    }
    for (int p = 0; p < pairs; p++) {
        rans_store_pair(states + p * RANS_LANES, x[p]);
    }
    *at = next;
    return count;
}

/* The same with 16 states, in half of a pair. */
RANS_INLINE uint64_t rans_encode_half(const rans_encode_table *table, const uint8_t *symbols,
                                      uint64_t count, const uint8_t *begin, uint8_t **at,
                                      uint16_t *of)
{
    enum { TURN = RANS_LANES / 2 };
    uint16_t states[RANS_LANES] = {0};
    uint8_t *next = *at;
    __builtin_memcpy(states, of, TURN * sizeof states[0]);
    rans_pair x = rans_load_pair(states);
    while (count >= TURN && (uint64_t)(next - begin) >= TURN) {
        count -= TURN;
        const __m128i run = _mm_loadu_si128((const void *)(symbols + count));
        x = rans_encode_pair(table, _mm256_castsi128_si256(run), x, &next, TURN);
    }
    rans_store_pair(states, x);
    __builtin_memcpy(of, states, TURN * sizeof states[0]);
    *at = next;
    return count;
}

CODECS_TARGET_AVX2 uint64_t rans_encode_avx2(const rans_encode_table *table, const uint8_t *symbols,
                                             uint64_t count, uint32_t state_count,
                                             const uint8_t *begin, uint8_t **at, uint16_t *states)
{
    if (table->steps == 0) return count;
    switch (state_count) {
    case 16: return rans_encode_half(table, symbols, count, begin, at, states);
    case 64: return rans_encode_pairs(table, symbols, count, begin, at, states, 2);
    default: return rans_encode_pairs(table, symbols, count, begin, at, states, 4);
    }
}

#endif
