/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rans_avx512.c - the coder of rans.h, 64 states to a pair of registers: one has the states' low
 * bytes, which are slots, the other their high bytes. Tables of 256 bytes are four registers, so
 * that a look-up of 64 is two permutes and a blend. Only the products are made in words, of the
 * even bytes and of the odd ones. Re-entrant.
 */
#include "codecs/rans.h"

#if defined(__x86_64__)

#include "cpu.h"

#include <immintrin.h>

#if !defined(__OPTIMIZE__)
/* Without optimisation gcc's intrinsics are macros, which convert the signs of masks. */
#pragma GCC diagnostic ignored "-Wsign-conversion"
#endif

#define RANS_INLINE static inline __attribute__((always_inline)) CODECS_TARGET_AVX512

enum { RANS_GROUP = 64, RANS_GROUPS_MAX = RANS_STATES_MAX / RANS_GROUP };

/* Bits of A where the mask in C has ones, else of B. */
#define RANS_SELECT 0xe4

typedef struct rans_bytes256 {
    __m512i part[4];
} rans_bytes256;

RANS_INLINE rans_bytes256 rans_load256(const uint8_t *bytes)
{
    rans_bytes256 table;
    for (int i = 0; i < 4; i++) {
        table.part[i] = _mm512_loadu_si512(bytes + i * RANS_GROUP);
    }
    return table;
}

/* upper: the lanes of at that are 128 or more. */
RANS_INLINE __m512i rans_look256(const rans_bytes256 *table, __m512i at, __mmask64 upper)
{
    __m512i below = _mm512_permutex2var_epi8(table->part[0], at, table->part[1]);
    __m512i above = _mm512_permutex2var_epi8(table->part[2], at, table->part[3]);
    return _mm512_mask_mov_epi8(below, upper, above);
}

typedef struct rans_states {
    __m512i low;
    __m512i high;
} rans_states;

/* States are numbers of 16 bits in memory. */
RANS_INLINE rans_states rans_load_states(const uint16_t *states)
{
    const __m512i order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
    const __m512i byte = _mm512_set1_epi16(0xff);
    __m512i a = _mm512_loadu_si512(states);
    __m512i b = _mm512_loadu_si512(states + RANS_GROUP / 2);
    __m512i low = _mm512_packus_epi16(_mm512_and_si512(a, byte), _mm512_and_si512(b, byte));
    __m512i high = _mm512_packus_epi16(_mm512_srli_epi16(a, 8), _mm512_srli_epi16(b, 8));
    rans_states loaded = {_mm512_permutexvar_epi64(order, low),
                          _mm512_permutexvar_epi64(order, high)};
    return loaded;
}

RANS_INLINE void rans_store_states(uint16_t *states, rans_states x)
{
    const __m512i order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
    __m512i low = _mm512_permutexvar_epi64(order, x.low);
    __m512i high = _mm512_permutexvar_epi64(order, x.high);
    _mm512_storeu_si512(states, _mm512_unpacklo_epi8(low, high));
    _mm512_storeu_si512(states + RANS_GROUP / 2, _mm512_unpackhi_epi8(low, high));
}

typedef struct rans_look_ups {
    rans_bytes256 symbol;
    rans_bytes256 frequency;
    rans_bytes256 rank;
} rans_look_ups;

/* One symbol of 64 states. */
RANS_INLINE rans_states rans_decode_group(const rans_look_ups *tables, rans_states x,
                                          const uint8_t **at, uint8_t *symbols)
{
    const __m512i byte = _mm512_set1_epi16(0xff);
    const __mmask64 upper = _mm512_movepi8_mask(x.low);
    __m512i frequency = rans_look256(&tables->frequency, x.low, upper);
    __m512i rank = rans_look256(&tables->rank, x.low, upper);
    _mm512_storeu_si512(symbols, rans_look256(&tables->symbol, x.low, upper));
    __m512i even =
        _mm512_mullo_epi16(_mm512_and_si512(frequency, byte), _mm512_and_si512(x.high, byte));
    __m512i odd = _mm512_mullo_epi16(_mm512_srli_epi16(frequency, 8), _mm512_srli_epi16(x.high, 8));
    even = _mm512_add_epi16(even, _mm512_and_si512(rank, byte));
    odd = _mm512_add_epi16(odd, _mm512_srli_epi16(rank, 8));
    x.low = _mm512_ternarylogic_epi32(even, _mm512_slli_epi16(odd, 8), byte, RANS_SELECT);
    x.high = _mm512_ternarylogic_epi32(_mm512_srli_epi16(even, 8), odd, byte, RANS_SELECT);
    const __mmask64 due = _mm512_testn_epi8_mask(x.high, x.high);
    __m512i taken = _mm512_loadu_si512(*at);
    *at += (unsigned)__builtin_popcountll(due);
    x.high = _mm512_mask_mov_epi8(x.high, due, x.low);
    x.low = _mm512_mask_expand_epi8(x.low, due, taken);
    return x;
}

/* Turns until fewer bytes are left than one turn can take. */
RANS_INLINE uint64_t rans_decode_groups(rans_decoder *decoder, uint8_t *symbols, uint64_t count,
                                        const int groups)
{
    const rans_look_ups tables = {rans_load256(decoder->table->symbol),
                                  rans_load256(decoder->table->frequency),
                                  rans_load256(decoder->table->rank)};
    const uint64_t turn = (uint64_t)groups * RANS_GROUP;
    const uint8_t *at = decoder->at;
    rans_states x[RANS_GROUPS_MAX];
    uint64_t i = 0;
    for (int g = 0; g < groups; g++) {
        x[g] = rans_load_states(decoder->states + g * RANS_GROUP);
    }
    for (; count - i >= turn && (uint64_t)(decoder->end - at) >= turn; i += turn) {
#pragma GCC unroll 2
        for (int g = 0; g < groups; g++) {
            x[g] = rans_decode_group(&tables, x[g], &at, symbols + i + (uint64_t)g * RANS_GROUP);
        }
    }
    for (int g = 0; g < groups; g++) {
        rans_store_states(decoder->states + g * RANS_GROUP, x[g]);
    }
    decoder->at = at;
    return i;
}

CODECS_TARGET_AVX512 uint64_t rans_decode_avx512(rans_decoder *decoder, uint8_t *symbols,
                                                 uint64_t count)
{
    if (decoder->state_count == RANS_GROUP) return rans_decode_groups(decoder, symbols, count, 1);
    return rans_decode_groups(decoder, symbols, count, 2);
}

CODECS_TARGET_AVX512 const uint8_t *rans_patch_avx512(uint8_t *symbols, uint64_t count,
                                                      const uint8_t *escape,
                                                      const uint8_t *escape_end)
{
    for (uint64_t i = 0; i < count; i += RANS_GROUP) {
        const uint64_t left = count - i;
        const __mmask64 lanes = left < RANS_GROUP ? (UINT64_C(1) << left) - 1 : UINT64_MAX;
        __m512i run = _mm512_maskz_loadu_epi8(lanes, symbols + i);
        uint64_t zeros = _mm512_mask_testn_epi8_mask(lanes, run, run);
        for (; zeros != 0; zeros &= zeros - 1) {
            if (escape == escape_end) return NULL;
            symbols[i + (uint64_t)__builtin_ctzll(zeros)] = *escape++;
        }
    }
    return escape;
}

CODECS_TARGET_AVX512 uint8_t *rans_collect_avx512(const rans_encode_table *table,
                                                  const uint8_t *symbols, uint64_t count,
                                                  uint8_t *out, const uint8_t *out_end)
{
    const rans_bytes256 index = rans_load256(table->index);
    for (uint64_t i = 0; i < count; i += RANS_GROUP) {
        const uint64_t left = count - i;
        const __mmask64 lanes = left < RANS_GROUP ? (UINT64_C(1) << left) - 1 : UINT64_MAX;
        __m512i run = _mm512_maskz_loadu_epi8(lanes, symbols + i);
        __m512i found = rans_look256(&index, run, _mm512_movepi8_mask(run));
        const __mmask64 lacking = _mm512_mask_testn_epi8_mask(lanes, found, found);
        if (lacking == 0) continue;
        const unsigned escapes = (unsigned)__builtin_popcountll(lacking);
        if ((uint64_t)(out_end - out) < escapes) return NULL;
        _mm512_mask_storeu_epi8(out, _bzhi_u64(UINT64_MAX, escapes),
                                _mm512_maskz_compress_epi8(lacking, run));
        out += escapes;
    }
    return out;
}

/* Tables of 128 bytes, by index. */
typedef struct rans_bytes128 {
    __m512i part[2];
} rans_bytes128;

RANS_INLINE rans_bytes128 rans_load128(const uint8_t *bytes)
{
    rans_bytes128 table = {{_mm512_loadu_si512(bytes), _mm512_loadu_si512(bytes + RANS_GROUP)}};
    return table;
}

RANS_INLINE __m512i rans_look128(const rans_bytes128 *table, __m512i at)
{
    return _mm512_permutex2var_epi8(table->part[0], at, table->part[1]);
}

typedef struct rans_encode_look_ups {
    rans_bytes256 index;
    rans_bytes256 slot;
    rans_bytes128 frequency;
    rans_bytes128 start;
    rans_bytes128 inverse_low;
    rans_bytes128 inverse_high;
} rans_encode_look_ups;

/* Quotient and rest of 32 states. The estimate is the quotient or one less. */
RANS_INLINE __m512i rans_divide(__m512i x, __m512i frequency, __m512i inverse, __m512i *rest_out)
{
    __m512i quotient = _mm512_mulhi_epu16(x, inverse);
    __m512i rest = _mm512_sub_epi16(x, _mm512_mullo_epi16(quotient, frequency));
    __mmask32 more = _mm512_cmpge_epu16_mask(rest, frequency);
    *rest_out = _mm512_mask_sub_epi16(rest, more, rest, frequency);
    return _mm512_mask_add_epi16(quotient, more, quotient, _mm512_set1_epi16(1));
}

/* One symbol of 64 states; moves *at down. */
RANS_INLINE rans_states rans_encode_group(const rans_encode_look_ups *tables,
                                          const uint8_t *symbols, rans_states x, uint8_t **at)
{
    const __m512i byte = _mm512_set1_epi16(0xff);
    __m512i symbol = _mm512_loadu_si512(symbols);
    __m512i index = rans_look256(&tables->index, symbol, _mm512_movepi8_mask(symbol));
    __m512i frequency = rans_look128(&tables->frequency, index);
    __m512i start = rans_look128(&tables->start, index);
    __m512i low = rans_look128(&tables->inverse_low, index);
    __m512i high = rans_look128(&tables->inverse_high, index);

    const __mmask64 due = _mm512_cmpge_epu8_mask(x.high, frequency);
    const unsigned count = (unsigned)__builtin_popcountll(due);
    *at -= count;
    _mm512_mask_storeu_epi8(*at, _bzhi_u64(UINT64_MAX, count),
                            _mm512_maskz_compress_epi8(due, x.low));
    x.low = _mm512_mask_mov_epi8(x.low, due, x.high);
    x.high = _mm512_maskz_mov_epi8(~due, x.high);

    __m512i rest_even;
    __m512i rest_odd;
    __m512i even = rans_divide(
        _mm512_ternarylogic_epi32(x.low, _mm512_slli_epi16(x.high, 8), byte, RANS_SELECT),
        _mm512_and_si512(frequency, byte),
        _mm512_ternarylogic_epi32(low, _mm512_slli_epi16(high, 8), byte, RANS_SELECT), &rest_even);
    __m512i odd = rans_divide(
        _mm512_ternarylogic_epi32(_mm512_srli_epi16(x.low, 8), x.high, byte, RANS_SELECT),
        _mm512_srli_epi16(frequency, 8),
        _mm512_ternarylogic_epi32(_mm512_srli_epi16(low, 8), high, byte, RANS_SELECT), &rest_odd);
    x.high = _mm512_or_si512(even, _mm512_slli_epi16(odd, 8));
    __m512i place = _mm512_or_si512(rest_even, _mm512_slli_epi16(rest_odd, 8));
    place = _mm512_add_epi8(place, start);
    x.low = rans_look256(&tables->slot, place, _mm512_movepi8_mask(place));
    return x;
}

RANS_INLINE uint64_t rans_encode_groups(const rans_encode_table *table, const uint8_t *symbols,
                                        uint64_t count, const uint8_t *begin, uint8_t **at,
                                        uint16_t *states, const int groups)
{
    const rans_encode_look_ups tables = {
        .index = rans_load256(table->index),
        .slot = rans_load256(table->slot_byte),
        .frequency = rans_load128(table->frequency),
        .start = rans_load128(table->start),
        .inverse_low = rans_load128(table->inverse_low),
        .inverse_high = rans_load128(table->inverse_high),
    };
    const uint64_t turn = (uint64_t)groups * RANS_GROUP;
    uint8_t *next = *at;
    rans_states x[RANS_GROUPS_MAX];
    for (int g = 0; g < groups; g++) {
        x[g] = rans_load_states(states + g * RANS_GROUP);
    }
    while (count >= turn && (uint64_t)(next - begin) >= turn) {
        count -= turn;
#pragma GCC unroll 2
        for (int g = groups - 1; g >= 0; g--) {
            x[g] =
                rans_encode_group(&tables, symbols + count + (uint64_t)g * RANS_GROUP, x[g], &next);
        }
    }
    for (int g = 0; g < groups; g++) {
        rans_store_states(states + g * RANS_GROUP, x[g]);
    }
    *at = next;
    return count;
}

CODECS_TARGET_AVX512 uint64_t rans_encode_avx512(const rans_encode_table *table,
                                                 const uint8_t *symbols, uint64_t count,
                                                 uint32_t state_count, const uint8_t *begin,
                                                 uint8_t **at, uint16_t *states)
{
    if (state_count == RANS_GROUP) {
        return rans_encode_groups(table, symbols, count, begin, at, states, 1);
    }
    return rans_encode_groups(table, symbols, count, begin, at, states, 2);
}

#endif
