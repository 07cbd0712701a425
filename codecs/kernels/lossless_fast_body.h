/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lossless_fast_body.h - the loops of lossless_fast_kernels.h in plain C that vectorises, compiled
 * once per instruction set: the including file defines FAST_TARGET, FAST_TABLE and FAST_PART_BF16
 * (fast_part_bf16 is plain). A file with loops over registers defines FAST_REGISTERS and has
 * fast_encode_loop, fast_decode_loop and fast_merge_loop. Not a header for others.
 */
#include "lossless_fast_kernels.h"

FAST_TARGET static inline uint16_t fast_load16(const uint8_t *source)
{
    uint16_t value;
    memcpy(&value, source, sizeof value);
    return value;
}

FAST_TARGET static inline uint32_t fast_load32(const uint8_t *source)
{
    uint32_t value;
    memcpy(&value, source, sizeof value);
    return value;
}

FAST_TARGET static void fast_split_bf16(const uint8_t *restrict source, uint32_t count,
                                        uint8_t *restrict exponents, uint8_t *restrict lows)
{
    for (uint32_t i = 0; i < count; i++) {
        uint16_t x = fast_load16(source + 2 * (size_t)i);
        exponents[i] = (uint8_t)(x >> 7);
        lows[i] = (uint8_t)((x >> 8 & 0x80) | (x & 0x7f));
    }
}

FAST_TARGET static void fast_merge_bf16(const uint8_t *restrict exponents,
                                        const uint8_t *restrict lows, uint32_t count,
                                        uint8_t *restrict target)
{
    for (uint32_t i = 0; i < count; i++) {
        uint16_t x =
            (uint16_t)((lows[i] & 0x80u) << 8 | (uint32_t)exponents[i] << 7 | (lows[i] & 0x7fu));
        memcpy(target + 2 * (size_t)i, &x, sizeof x);
    }
}

FAST_TARGET static void fast_split_narrow(const uint8_t *restrict source, uint32_t count,
                                          uint8_t *restrict exponents, uint8_t *restrict lows)
{
    for (uint32_t i = 0; i < count; i++) {
        uint16_t x = fast_load16(source + 2 * (size_t)i);
        exponents[i] = (uint8_t)(x >> 10 & 0x1f);
        lows[i] = (uint8_t)((x >> 8 & 0x80) | (x >> 3 & 0x7f));
    }
}

FAST_TARGET static void fast_merge_narrow(const uint8_t *restrict exponents,
                                          const uint8_t *restrict lows, uint32_t count,
                                          uint8_t *restrict target)
{
    for (uint32_t i = 0; i < count; i++) {
        uint16_t x =
            (uint16_t)((lows[i] & 0x80) << 8 | (exponents[i] & 0x1f) << 10 | (lows[i] & 0x7f) << 3);
        memcpy(target + 2 * (size_t)i, &x, sizeof x);
    }
}

FAST_TARGET static void fast_split_fp16(const uint8_t *restrict source, uint32_t count,
                                        uint8_t *restrict exponents, uint8_t *restrict lows,
                                        uint8_t *restrict signs, uint8_t *restrict pairs)
{
    for (uint32_t i = 0; i < count; i++) {
        uint16_t x = fast_load16(source + 2 * (size_t)i);
        exponents[i] = (uint8_t)(x >> 10 & 0x1f);
        lows[i] = (uint8_t)x;
        signs[i] = (uint8_t)(x >> 12 & 8);
        pairs[i] = (uint8_t)(x >> 8 & 3);
    }
}

FAST_TARGET static void fast_merge_fp16(const uint8_t *restrict exponents,
                                        const uint8_t *restrict lows, const uint8_t *restrict signs,
                                        const uint8_t *restrict pairs, uint32_t count,
                                        uint8_t *restrict target)
{
    for (uint32_t i = 0; i < count; i++) {
        uint16_t x = (uint16_t)((signs[i] & 8) << 12 | (exponents[i] & 0x1f) << 10 |
                                (pairs[i] & 3) << 8 | lows[i]);
        memcpy(target + 2 * (size_t)i, &x, sizeof x);
    }
}

FAST_TARGET static void fast_split_fp32(const uint8_t *restrict source, uint32_t count,
                                        uint8_t *restrict exponents, uint8_t *restrict lows,
                                        uint8_t *restrict wides)
{
    for (uint32_t i = 0; i < count; i++) {
        uint32_t x = fast_load32(source + 4 * (size_t)i);
        uint16_t wide = (uint16_t)x;
        exponents[i] = (uint8_t)(x >> 23);
        lows[i] = (uint8_t)((x >> 24 & 0x80) | (x >> 16 & 0x7f));
        memcpy(wides + 2 * (size_t)i, &wide, sizeof wide);
    }
}

FAST_TARGET static void fast_merge_fp32(const uint8_t *restrict exponents,
                                        const uint8_t *restrict lows, const uint8_t *restrict wides,
                                        uint32_t count, uint8_t *restrict target)
{
    for (uint32_t i = 0; i < count; i++) {
        uint32_t x = (uint32_t)(lows[i] & 0x80) << 24 | (uint32_t)exponents[i] << 23 |
                     (uint32_t)(lows[i] & 0x7f) << 16 | fast_load16(wides + 2 * (size_t)i);
        memcpy(target + 4 * (size_t)i, &x, sizeof x);
    }
}

FAST_TARGET static void fast_split(unsigned form, const uint8_t *source, uint32_t count,
                                   const fast_parts *parts)
{
    switch (form) {
    case FAST_FORM_BF16: fast_split_bf16(source, count, parts->exponents, parts->lows); break;
    case FAST_FORM_FP16_NARROW:
        fast_split_narrow(source, count, parts->exponents, parts->lows);
        break;
    case FAST_FORM_FP16:
        fast_split_fp16(source, count, parts->exponents, parts->lows, parts->signs, parts->pairs);
        break;
    default: fast_split_fp32(source, count, parts->exponents, parts->lows, parts->wides); break;
    }
}

FAST_TARGET static void fast_merge(unsigned form, const fast_view *parts, uint32_t count,
                                   uint8_t *target)
{
    switch (form) {
    case FAST_FORM_BF16: fast_merge_bf16(parts->exponents, parts->lows, count, target); break;
    case FAST_FORM_FP16_NARROW:
        fast_merge_narrow(parts->exponents, parts->lows, count, target);
        break;
    case FAST_FORM_FP16:
        fast_merge_fp16(parts->exponents, parts->lows, parts->signs, parts->pairs, count, target);
        break;
    default: fast_merge_fp32(parts->exponents, parts->lows, parts->wides, count, target); break;
    }
}

FAST_TARGET static bool fast_code(const uint8_t *restrict exponents, uint32_t count,
                                  const fast_window *window, uint8_t *restrict codes)
{
    const uint8_t base = window->base;
    const uint8_t escape = window->escape;
    /* With a code for zero, that of the base is not in use. */
    const uint8_t zero_base = window->with_zero ? 0 : escape;
    uint8_t any = 0;
    if (!window->with_zero) {
        for (uint32_t i = 0; i < count; i++) {
            uint8_t distance = (uint8_t)(exponents[i] - base);
            uint8_t code = distance < escape ? distance : escape;
            any |= (uint8_t)(code == escape ? 1 : 0);
            codes[i] = code;
        }
        return any != 0;
    }
    for (uint32_t i = 0; i < count; i++) {
        uint8_t distance = (uint8_t)(exponents[i] - base);
        uint8_t code = distance < escape ? distance : escape;
        code = code == 0 ? escape : code;
        code = exponents[i] == 0 ? zero_base : code;
        any |= (uint8_t)(code == escape ? 1 : 0);
        codes[i] = code;
    }
    return any != 0;
}

FAST_TARGET static bool fast_uncode(const uint8_t *restrict codes, uint32_t count,
                                    const fast_window *window, uint8_t *restrict exponents)
{
    const uint8_t base = window->base;
    const uint8_t escape = window->escape;
    const uint8_t keep = window->with_zero ? 0 : 0xff;
    uint8_t any = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint8_t code = codes[i];
        uint8_t exponent = (uint8_t)(base + code);
        any |= (uint8_t)(code == escape ? 1 : 0);
        exponents[i] = code == 0 ? exponent & keep : exponent;
    }
    return any != 0;
}

FAST_TARGET static void fast_add(const uint8_t *restrict exponents, uint32_t count,
                                 uint16_t *restrict sums)
{
    for (uint32_t i = 0; i < count; i++) {
        sums[i] = (uint16_t)(sums[i] + exponents[i]);
    }
}

FAST_TARGET static void fast_distance(const uint8_t *restrict bases, const uint8_t *restrict source,
                                      uint32_t count, uint8_t *restrict target)
{
    for (uint32_t i = 0; i < count; i++) {
        target[i] = (uint8_t)(bases[i] - source[i]);
    }
}

FAST_TARGET static void fast_add_bf16(const uint8_t *restrict source, uint32_t count,
                                      uint16_t *restrict sums)
{
    for (uint32_t i = 0; i < count; i++) {
        sums[i] = (uint16_t)(sums[i] + (fast_load16(source + 2 * (size_t)i) >> 7 & 0xff));
    }
}

FAST_TARGET static void fast_part_bf16(const uint8_t *restrict source,
                                       const uint8_t *restrict bases, uint32_t count,
                                       uint8_t *restrict distances, uint8_t *restrict lows)
{
    for (uint32_t i = 0; i < count; i++) {
        uint16_t x = fast_load16(source + 2 * (size_t)i);
        distances[i] = (uint8_t)(bases[i] - (uint8_t)(x >> 7));
        lows[i] = (uint8_t)((x >> 8 & 0x80) | (x & 0x7f));
    }
}

FAST_TARGET static void fast_add_fp8(const uint8_t *restrict source, uint32_t count,
                                     uint16_t *restrict sums)
{
    for (uint32_t i = 0; i < count; i++) {
        sums[i] = (uint16_t)(sums[i] + (source[i] >> 3 & 15));
    }
}

FAST_TARGET static void fast_part_fp8(const uint8_t *restrict source, const uint8_t *restrict bases,
                                      uint32_t count, uint8_t *restrict distances,
                                      uint8_t *restrict lows)
{
    for (uint32_t i = 0; i < count; i++) {
        distances[i] = (uint8_t)(bases[i] - (source[i] >> 3 & 15));
        lows[i] = (uint8_t)((source[i] >> 4 & 8) | (source[i] & 7));
    }
}

FAST_TARGET static void fast_merge_fp8(const uint8_t *restrict bases,
                                       const uint8_t *restrict symbols,
                                       const uint8_t *restrict lows, uint32_t count,
                                       uint8_t *restrict target)
{
    for (uint32_t i = 0; i < count; i++) {
        const uint8_t exponent = (uint8_t)(bases[i] - symbols[i]);
        target[i] = (uint8_t)((lows[i] & 8) << 4 | (exponent & 15) << 3 | (lows[i] & 7));
    }
}

FAST_TARGET static void fast_pack(const uint8_t *restrict nibbles, uint8_t *restrict packed)
{
    for (uint32_t i = 0; i < FAST_PACK / 2; i++) {
        packed[i] = (uint8_t)(nibbles[i] | nibbles[FAST_PACK / 2 + i] << 4);
    }
}

FAST_TARGET static void fast_unpack(const uint8_t *restrict packed, uint8_t *restrict nibbles)
{
    for (uint32_t i = 0; i < FAST_PACK / 2; i++) {
        nibbles[i] = packed[i] & 0x0f;
        nibbles[FAST_PACK / 2 + i] = packed[i] >> 4;
    }
}

#if defined(FAST_REGISTERS)
FAST_TARGET static uint32_t fast_encode_bf16(const uint8_t *source, uint32_t count,
                                             const fast_window *window, uint8_t *packed,
                                             uint8_t *lows, uint8_t **escape_at,
                                             const uint8_t *escape_end)
{
    if (window->with_zero) {
        return fast_encode_loop(source, count, window->base, packed, lows, escape_at, escape_end,
                                true);
    }
    return fast_encode_loop(source, count, window->base, packed, lows, escape_at, escape_end,
                            false);
}

FAST_TARGET static uint32_t fast_decode_bf16(const uint8_t *packed, const uint8_t *lows,
                                             uint32_t count, const fast_window *window,
                                             const uint8_t **escape_at, const uint8_t *escape_end,
                                             uint8_t *target, bool stream)
{
    if (stream) {
        uint32_t done =
            fast_decode_loop(packed, lows, count, window, escape_at, escape_end, target, true);
        _mm_sfence();
        return done;
    }
    return fast_decode_loop(packed, lows, count, window, escape_at, escape_end, target, false);
}

FAST_TARGET static uint32_t fast_merge_registers(const uint8_t *bases, const uint8_t *symbols,
                                                 const uint8_t *lows, uint32_t count,
                                                 uint8_t *target, bool stream)
{
    if (stream) return fast_merge_loop(bases, symbols, lows, count, target, true);
    return fast_merge_loop(bases, symbols, lows, count, target, false);
}

#define FAST_FUSED(form) form
#else
#define FAST_FUSED(form) NULL
#endif

const fast_kernels FAST_TABLE = {
    .split = fast_split,
    .merge = fast_merge,
    .code = fast_code,
    .uncode = fast_uncode,
    .add = fast_add,
    .distance = fast_distance,
    .add_bf16 = fast_add_bf16,
    .part_bf16 = FAST_PART_BF16,
    .add_fp8 = fast_add_fp8,
    .part_fp8 = fast_part_fp8,
    .merge_fp8 = fast_merge_fp8,
    .pack = fast_pack,
    .unpack = fast_unpack,
    .encode_bf16 = FAST_FUSED(fast_encode_bf16),
    .decode_bf16 = FAST_FUSED(fast_decode_bf16),
    .merge_bf16 = FAST_FUSED(fast_merge_registers),
};
