/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lossless_fast_avx2.c - lossless_fast_kernels.h for AVX2. Re-entrant.
 */
#if defined(__x86_64__)

#include "cpu.h"
#include "lossless_fast_kernels.h"

#include <immintrin.h>

#define FAST_TARGET    CODECS_TARGET_AVX2
#define FAST_TABLE     fast_kernels_avx2
#define FAST_PART_BF16 fast_part_bf16
#define FAST_REGISTERS
#define FAST_INLINE static inline __attribute__((always_inline)) FAST_TARGET

enum { FAST_WIDTH = 32, FAST_PARTS = FAST_PACK / FAST_WIDTH };

/* 32 elements to exponents and lows. */
FAST_INLINE __m256i fast_take_32(const uint8_t *source, uint8_t *lows)
{
    const __m256i byte = _mm256_set1_epi16(0xff);
    const __m256i low = _mm256_set1_epi16(0x7f);
    const __m256i high = _mm256_set1_epi16(0x80);
    __m256i a = _mm256_loadu_si256((const void *)source);
    __m256i b = _mm256_loadu_si256((const void *)(source + FAST_WIDTH));
    __m256i ea = _mm256_and_si256(_mm256_srli_epi16(a, 7), byte);
    __m256i eb = _mm256_and_si256(_mm256_srli_epi16(b, 7), byte);
    __m256i la =
        _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(a, 8), high), _mm256_and_si256(a, low));
    __m256i lb =
        _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(b, 8), high), _mm256_and_si256(b, low));
    /* Packing interleaves the halves of both registers. */
    _mm256_storeu_si256((void *)lows, _mm256_permute4x64_epi64(_mm256_packus_epi16(la, lb), 0xd8));
    return _mm256_permute4x64_epi64(_mm256_packus_epi16(ea, eb), 0xd8);
}

FAST_INLINE __m256i fast_code_32(__m256i exponents, __m256i base, const bool with_zero)
{
    const __m256i escape = _mm256_set1_epi8(15);
    const __m256i zero = _mm256_setzero_si256();
    __m256i code = _mm256_min_epu8(_mm256_sub_epi8(exponents, base), escape);
    if (with_zero) {
        code = _mm256_blendv_epi8(code, escape, _mm256_cmpeq_epi8(code, zero));
        code = _mm256_andnot_si256(_mm256_cmpeq_epi8(exponents, zero), code);
    }
    return code;
}

/* The lanes of a run that hold the escape. */
FAST_INLINE int fast_escaped_lanes(const __m256i codes[FAST_PARTS], uint32_t lanes[FAST_PARTS])
{
    int count = 0;
    for (unsigned part = 0; part < FAST_PARTS; part++) {
        lanes[part] =
            (uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(codes[part], _mm256_set1_epi8(15)));
        count += __builtin_popcount(lanes[part]);
    }
    return count;
}

FAST_INLINE uint32_t fast_encode_loop(const uint8_t *source, uint32_t count, uint8_t base,
                                      uint8_t *packed, uint8_t *lows, uint8_t **escape_at,
                                      const uint8_t *escape_end, const bool with_zero)
{
    const __m256i bases = _mm256_set1_epi8((char)base);
    uint32_t i = 0;
    for (; i + FAST_PACK <= count; i += FAST_PACK) {
        __m256i exponents[FAST_PARTS];
        __m256i codes[FAST_PARTS];
        uint32_t lanes[FAST_PARTS];
        for (unsigned part = 0; part < FAST_PARTS; part++) {
            const size_t at = i + (size_t)part * FAST_WIDTH;
            exponents[part] = fast_take_32(source + 2 * at, lows + at);
            codes[part] = fast_code_32(exponents[part], bases, with_zero);
        }
        for (unsigned part = 0; part < FAST_PARTS / 2; part++) {
            __m256i above = _mm256_slli_epi16(codes[part + FAST_PARTS / 2], 4);
            _mm256_storeu_si256((void *)(packed + i / 2 + (size_t)part * FAST_WIDTH),
                                _mm256_or_si256(codes[part], above));
        }
        int escapes = fast_escaped_lanes(codes, lanes);
        if (escapes == 0) continue;
        if (escape_end - *escape_at < escapes) break;
        for (unsigned part = 0; part < FAST_PARTS; part++) {
            uint8_t bytes[FAST_WIDTH];
            _mm256_storeu_si256((void *)bytes, exponents[part]);
            for (uint32_t left = lanes[part]; left != 0; left &= left - 1) {
                *(*escape_at)++ = bytes[__builtin_ctz(left)];
            }
        }
    }
    return i;
}

/* Sign, exponent and mantissa of exponent << 8 | low. */
FAST_INLINE __m256i fast_unite(__m256i pair)
{
    __m256i exponent = _mm256_and_si256(_mm256_srli_epi16(pair, 1), _mm256_set1_epi16(0x7f80));
    __m256i sign = _mm256_and_si256(_mm256_slli_epi16(pair, 8), _mm256_set1_epi16((short)0x8000));
    __m256i low = _mm256_and_si256(pair, _mm256_set1_epi16(0x7f));
    return _mm256_or_si256(_mm256_or_si256(exponent, sign), low);
}

FAST_INLINE void fast_give_32(__m256i exponents, const uint8_t *lows, uint8_t *target,
                              const bool stream)
{
    exponents = _mm256_permute4x64_epi64(exponents, 0xd8);
    __m256i low = _mm256_permute4x64_epi64(_mm256_loadu_si256((const void *)lows), 0xd8);
    __m256i a = fast_unite(_mm256_unpacklo_epi8(low, exponents));
    __m256i b = fast_unite(_mm256_unpackhi_epi8(low, exponents));
    if (stream) {
        _mm256_stream_si256((void *)target, a);
        _mm256_stream_si256((void *)(target + FAST_WIDTH), b);
    } else {
        _mm256_storeu_si256((void *)target, a);
        _mm256_storeu_si256((void *)(target + FAST_WIDTH), b);
    }
}

FAST_INLINE uint32_t fast_decode_loop(const uint8_t *packed, const uint8_t *lows, uint32_t count,
                                      const fast_window *window, const uint8_t **escape_at,
                                      const uint8_t *escape_end, uint8_t *target, const bool stream)
{
    const __m256i nibble = _mm256_set1_epi8(15);
    uint8_t table[16];
    uint32_t i = 0;
    for (unsigned code = 0; code < 16; code++) {
        table[code] = (uint8_t)(window->base + code);
    }
    if (window->with_zero) table[0] = 0;
    const __m256i known = _mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)table));
    for (; i + FAST_PACK <= count; i += FAST_PACK) {
        __m256i codes[FAST_PARTS];
        uint32_t lanes[FAST_PARTS];
        for (unsigned part = 0; part < FAST_PARTS / 2; part++) {
            const uint8_t *from = packed + i / 2 + (size_t)part * FAST_WIDTH;
            __m256i both = _mm256_loadu_si256((const void *)from);
            codes[part] = _mm256_and_si256(both, nibble);
            codes[part + FAST_PARTS / 2] = _mm256_and_si256(_mm256_srli_epi16(both, 4), nibble);
        }
        int escapes = fast_escaped_lanes(codes, lanes);
        if (escape_end - *escape_at < escapes) break;
        for (unsigned part = 0; part < FAST_PARTS; part++) {
            const size_t at = i + (size_t)part * FAST_WIDTH;
            __m256i exponents = _mm256_shuffle_epi8(known, codes[part]);
            if (lanes[part] != 0) {
                uint8_t bytes[FAST_WIDTH];
                _mm256_storeu_si256((void *)bytes, exponents);
                for (uint32_t left = lanes[part]; left != 0; left &= left - 1) {
                    bytes[__builtin_ctz(left)] = *(*escape_at)++;
                }
                exponents = _mm256_loadu_si256((const void *)bytes);
            }
            fast_give_32(exponents, lows + at, target + 2 * at, stream);
        }
    }
    return i;
}

FAST_INLINE uint32_t fast_merge_loop(const uint8_t *bases, const uint8_t *symbols,
                                     const uint8_t *lows, uint32_t count, uint8_t *target,
                                     const bool stream)
{
    uint32_t i = 0;
    for (; i + 32 <= count; i += 32) {
        __m256i exponents = _mm256_sub_epi8(_mm256_loadu_si256((const void *)(bases + i)),
                                            _mm256_loadu_si256((const void *)(symbols + i)));
        fast_give_32(exponents, lows + i, target + 2 * (size_t)i, stream);
    }
    return i;
}

#include "lossless_fast_body.h"

#endif
