/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lossless_fast_avx512.c - lossless_fast_kernels.h for AVX-512. Re-entrant.
 */
#if defined(__x86_64__)

#include "cpu.h"
#include "lossless_fast_kernels.h"

#include <immintrin.h>

#define FAST_TARGET    CODECS_TARGET_AVX512
#define FAST_TABLE     fast_kernels_avx512
#define FAST_PART_BF16 fast_part_wide
#define FAST_REGISTERS
#define FAST_INLINE static inline __attribute__((always_inline)) FAST_TARGET

/* 64 elements to exponents and lows. */
FAST_INLINE __m512i fast_take_64(const uint8_t *source, uint8_t *lows)
{
    const __m512i byte = _mm512_set1_epi16(0xff);
    const __m512i low = _mm512_set1_epi16(0x7f);
    const __m512i high = _mm512_set1_epi16(0x80);
    /* Packing interleaves the quarters of both registers; this puts them in order again. */
    const __m512i order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
    __m512i a = _mm512_loadu_si512(source);
    __m512i b = _mm512_loadu_si512(source + 64);
    __m512i ea = _mm512_and_si512(_mm512_srli_epi16(a, 7), byte);
    __m512i eb = _mm512_and_si512(_mm512_srli_epi16(b, 7), byte);
    __m512i la = _mm512_ternarylogic_epi32(_mm512_srli_epi16(a, 8), high, _mm512_and_si512(a, low),
                                           0xea); /* A & B | C */
    __m512i lb =
        _mm512_ternarylogic_epi32(_mm512_srli_epi16(b, 8), high, _mm512_and_si512(b, low), 0xea);
    _mm512_storeu_si512(lows, _mm512_permutexvar_epi64(order, _mm512_packus_epi16(la, lb)));
    return _mm512_permutexvar_epi64(order, _mm512_packus_epi16(ea, eb));
}

/* The plain form, which takes what is left of a run. */
static void fast_part_bf16(const uint8_t *restrict source, const uint8_t *restrict bases,
                           uint32_t count, uint8_t *restrict distances, uint8_t *restrict lows);

FAST_TARGET static void fast_part_wide(const uint8_t *source, const uint8_t *bases, uint32_t count,
                                       uint8_t *distances, uint8_t *lows)
{
    uint32_t i = 0;
    for (; i + 64 <= count; i += 64) {
        __m512i exponents = fast_take_64(source + 2 * (size_t)i, lows + i);
        _mm512_storeu_si512(distances + i,
                            _mm512_sub_epi8(_mm512_loadu_si512(bases + i), exponents));
    }
    fast_part_bf16(source + 2 * (size_t)i, bases + i, count - i, distances + i, lows + i);
}

FAST_INLINE __m512i fast_code_64(__m512i exponents, __m512i base, const bool with_zero)
{
    const __m512i escape = _mm512_set1_epi8(15);
    __m512i code = _mm512_min_epu8(_mm512_sub_epi8(exponents, base), escape);
    if (with_zero) {
        code = _mm512_mask_mov_epi8(code, _mm512_testn_epi8_mask(code, code), escape);
        code = _mm512_maskz_mov_epi8(_mm512_test_epi8_mask(exponents, exponents), code);
    }
    return code;
}

/* Writes the exponents of a set of lanes. */
FAST_INLINE void fast_put_lanes(__m512i exponents, uint64_t lanes, uint8_t **escape_at)
{
    uint8_t bytes[64];
    uint8_t *at = *escape_at;
    _mm512_storeu_si512(bytes, exponents);
    for (; lanes != 0; lanes &= lanes - 1) {
        *at++ = bytes[__builtin_ctzll(lanes)];
    }
    *escape_at = at;
}

FAST_INLINE uint32_t fast_encode_loop(const uint8_t *source, uint32_t count, uint8_t base,
                                      uint8_t *packed, uint8_t *lows, uint8_t **escape_at,
                                      const uint8_t *escape_end, const bool with_zero)
{
    const __m512i bases = _mm512_set1_epi8((char)base);
    const __m512i escape = _mm512_set1_epi8(15);
    uint32_t i = 0;
    for (; i + FAST_PACK <= count; i += FAST_PACK) {
        const uint8_t *from = source + 2 * (size_t)i;
        __m512i ea = fast_take_64(from, lows + i);
        __m512i eb = fast_take_64(from + FAST_PACK, lows + i + FAST_PACK / 2);
        __m512i ca = fast_code_64(ea, bases, with_zero);
        __m512i cb = fast_code_64(eb, bases, with_zero);
        _mm512_storeu_si512(packed + i / 2, _mm512_or_si512(ca, _mm512_slli_epi16(cb, 4)));
        uint64_t first = _mm512_cmpeq_epi8_mask(ca, escape);
        uint64_t second = _mm512_cmpeq_epi8_mask(cb, escape);
        if ((first | second) == 0) continue;
        if (escape_end - *escape_at < __builtin_popcountll(first) + __builtin_popcountll(second)) {
            break;
        }
        fast_put_lanes(ea, first, escape_at);
        fast_put_lanes(eb, second, escape_at);
    }
    return i;
}

/* Exchanges the exponents of a set of lanes for escapes. */
FAST_INLINE __m512i fast_take_lanes(__m512i exponents, uint64_t lanes, const uint8_t **escape_at)
{
    uint8_t bytes[64];
    const uint8_t *at = *escape_at;
    _mm512_storeu_si512(bytes, exponents);
    for (; lanes != 0; lanes &= lanes - 1) {
        bytes[__builtin_ctzll(lanes)] = *at++;
    }
    *escape_at = at;
    return _mm512_loadu_si512(bytes);
}

/* Sign, exponent and mantissa of exponent << 8 | low. */
FAST_INLINE __m512i fast_unite(__m512i pair)
{
    const __m512i exponent = _mm512_set1_epi16(0x7f80);
    const __m512i sign = _mm512_set1_epi16((short)0x8000);
    /* Bits of B where A has ones, else of C: 0xca. */
    __m512i x = _mm512_ternarylogic_epi32(exponent, _mm512_srli_epi16(pair, 1), pair, 0xca);
    return _mm512_ternarylogic_epi32(sign, _mm512_slli_epi16(pair, 8), x, 0xca);
}

FAST_INLINE void fast_give_64(__m512i exponents, const uint8_t *lows, uint8_t *target,
                              const bool stream)
{
    const __m512i order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
    exponents = _mm512_permutexvar_epi64(order, exponents);
    __m512i low = _mm512_permutexvar_epi64(order, _mm512_loadu_si512(lows));
    __m512i a = fast_unite(_mm512_unpacklo_epi8(low, exponents));
    __m512i b = fast_unite(_mm512_unpackhi_epi8(low, exponents));
    if (stream) {
        _mm512_stream_si512((void *)target, a);
        _mm512_stream_si512((void *)(target + 64), b);
    } else {
        _mm512_storeu_si512(target, a);
        _mm512_storeu_si512(target + 64, b);
    }
}

FAST_INLINE uint32_t fast_decode_loop(const uint8_t *packed, const uint8_t *lows, uint32_t count,
                                      const fast_window *window, const uint8_t **escape_at,
                                      const uint8_t *escape_end, uint8_t *target, const bool stream)
{
    const __m512i escape = _mm512_set1_epi8(15);
    uint8_t table[16];
    uint32_t i = 0;
    for (unsigned code = 0; code < 16; code++) {
        table[code] = (uint8_t)(window->base + code);
    }
    if (window->with_zero) table[0] = 0;
    const __m512i exponents = _mm512_broadcast_i32x4(_mm_loadu_si128((const void *)table));
    for (; i + FAST_PACK <= count; i += FAST_PACK) {
        __m512i both = _mm512_loadu_si512(packed + i / 2);
        __m512i ca = _mm512_and_si512(both, escape);
        __m512i cb = _mm512_and_si512(_mm512_srli_epi16(both, 4), escape);
        __m512i ea = _mm512_shuffle_epi8(exponents, ca);
        __m512i eb = _mm512_shuffle_epi8(exponents, cb);
        uint64_t first = _mm512_cmpeq_epi8_mask(ca, escape);
        uint64_t second = _mm512_cmpeq_epi8_mask(cb, escape);
        if ((first | second) != 0) {
            if (escape_end - *escape_at <
                __builtin_popcountll(first) + __builtin_popcountll(second)) {
                break;
            }
            ea = fast_take_lanes(ea, first, escape_at);
            eb = fast_take_lanes(eb, second, escape_at);
        }
        uint8_t *to = target + 2 * (size_t)i;
        fast_give_64(ea, lows + i, to, stream);
        fast_give_64(eb, lows + i + FAST_PACK / 2, to + FAST_PACK, stream);
    }
    return i;
}

FAST_INLINE uint32_t fast_merge_loop(const uint8_t *bases, const uint8_t *symbols,
                                     const uint8_t *lows, uint32_t count, uint8_t *target,
                                     const bool stream)
{
    uint32_t i = 0;
    for (; i + 64 <= count; i += 64) {
        __m512i exponents =
            _mm512_sub_epi8(_mm512_loadu_si512(bases + i), _mm512_loadu_si512(symbols + i));
        fast_give_64(exponents, lows + i, target + 2 * (size_t)i, stream);
    }
    return i;
}

#include "lossless_fast_body.h"

#endif
