/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rotate_body.h - the loops of codec 7 over registers, compiled once per instruction set. The
 * including file defines
 *
 *   ROTATE_INLINE, ROTATE_TARGET       for helpers and for the two functions of rotate_kernel.h
 *   ROTATE_ENCODE_RUN, ROTATE_DECODE_RUN   their names
 *   rotate_floats, rotate_wholes       a register of floats, and of whole numbers of 16 bits
 *   ROTATE_WHOLES, ROTATE_CODES        whole numbers in a register, codes of a step
 *   rotate_load, rotate_block_values, rotate_codes, rotate_store_pairs
 *   rotate_add, rotate_sub, rotate_near_wholes, rotate_part_wholes, rotate_first_whole
 *   rotate_unpack, rotate_store, rotate_read, rotate_write, rotate_all
 *   ROTATE_EXCHANGES(length)           where defined: rotate_exchange_values and
 *                                      rotate_exchange_codes rotate groups of that length
 *
 * Buffers are padded to whole steps, and what lies past a block's end is overwritten by the next
 * block or not stored. Not a header for others. Re-entrant.
 */
enum { ROTATE_BATCH = 8, ROTATE_AHEAD = 2048 };

/* Codes one a byte to their stored form, through a buffer with room past the end. */
ROTATE_INLINE void rotate_pack(const uint8_t *codes, uint32_t length, uint32_t bits,
                               uint8_t *target)
{
    uint8_t packed[ROTATE_GROUP_MAX + ROTATE_PAD];
    if (bits == 8) {
        memcpy(target, codes, length);
        return;
    }
    if (bits == 4) {
        for (uint32_t i = 0; i < length; i += ROTATE_CODES) {
            rotate_store_pairs(rotate_read(codes + i), packed + i / 2);
        }
        memcpy(target, packed, length / 2);
        return;
    }
    for (uint32_t i = 0; i < length; i += 8) {
        uint64_t eight;
        memcpy(&eight, codes + i, sizeof eight);
        const uint32_t three = (uint32_t)_pext_u64(eight, UINT64_C(0x0707070707070707));
        memcpy(packed + i / 8 * 3, &three, sizeof three);
    }
    memcpy(target, packed, length / 8 * 3);
}

/* Quantises a group of rotated values. */
ROTATE_INLINE void rotate_encode_codes(const float *values, const uint32_t length, uint32_t bits,
                                       uint16_t scale, uint8_t *target)
{
    const bool whole = length % ROTATE_CODES == 0; /* no step passes the group's end */
    uint8_t codes[ROTATE_GROUP_MAX + ROTATE_PAD];
#if defined(ROTATE_EXCHANGES)
    if (ROTATE_EXCHANGES(length)) {
        const float inverse = rotate_inverse_of(scale, rotate_block_factor(length));
        rotate_exchange_codes(values, bits, rotate_all(inverse), target, codes);
        if (bits == 3) rotate_pack(codes, length, bits, target);
        return;
    }
#endif
    for (uint32_t at = 0; at < length;) {
        const uint32_t n = rotate_block_first(length - at);
        const rotate_floats inverse = rotate_all(rotate_inverse_of(scale, rotate_block_factor(n)));
        for (uint32_t i = at; i < at + n; i += ROTATE_CODES) {
            const rotate_wholes part = rotate_codes(values + i, inverse, bits);
            if (whole && bits == 4) {
                rotate_store_pairs(part, target + i / 2);
            } else {
                rotate_write(whole && bits == 8 ? target + i : codes + i, part);
            }
        }
        at += n;
    }
    if (!whole || bits == 3) rotate_pack(codes, length, bits, target);
}

/* Loads and rotates a group; returns the bits of its largest |y| / sqrt(n), or more than the
 * largest finite ones. */
ROTATE_INLINE uint32_t rotate_encode_values(const rotate_run *run, const uint32_t length,
                                            const uint8_t *source, float *values)
{
    uint32_t largest = 0;
    rotate_load(source, run->dtype, length, values);
    for (uint32_t at = 0; at < length;) {
        const uint32_t n = rotate_block_first(length - at);
#if defined(ROTATE_EXCHANGES)
        uint32_t block = ROTATE_EXCHANGES(length) ? rotate_exchange_values(values)
                                                  : rotate_block_values(values + at, n);
#else
        uint32_t block = rotate_block_values(values + at, n);
#endif
        if (block >= 0x7f800000u) return block;
        block = half_float_bits(half_bits_float(block) * rotate_block_factor(n));
        largest = block > largest ? block : largest;
        at += n;
    }
    return largest;
}

/* Asks for the lines that a later group lies in: the hardware stops at the end of each
 * page. Addresses past the matrix are harmless. */
ROTATE_INLINE void rotate_prefetch(const uint8_t *source, uint64_t bytes)
{
    for (uint64_t i = 0; i < bytes; i += 64) {
        _mm_prefetch((const char *)(uintptr_t)((uintptr_t)source + i + ROTATE_AHEAD), _MM_HINT_T0);
    }
}

/* A few groups at a time, so that the latencies of one group's largest value, scale and quotient
 * hide behind the others' work. */
ROTATE_INLINE uint64_t rotate_encode_length(const rotate_run *run, const uint32_t length,
                                            const uint8_t *source, uint8_t *scales, uint8_t *codes)
{
    float values[ROTATE_BATCH][ROTATE_GROUP_MAX + ROTATE_PAD];
    uint32_t largest[ROTATE_BATCH];
    const uint64_t code_bytes = length * run->bits / 8;
    const uint64_t group_bytes = (uint64_t)length * kvt_dtype_bytes(run->dtype);
    uint64_t raw = 0;
    memset(values, 0, sizeof values);
    for (uint64_t first = 0; first < run->groups; first += ROTATE_BATCH) {
        const uint64_t left = run->groups - first;
        const uint32_t count = left < ROTATE_BATCH ? (uint32_t)left : (uint32_t)ROTATE_BATCH;
        for (uint32_t i = 0; i < count; i++) {
            rotate_prefetch(source + (first + i) * group_bytes, group_bytes);
            largest[i] =
                rotate_encode_values(run, length, source + (first + i) * group_bytes, values[i]);
        }
        for (uint32_t i = 0; i < count; i++) {
            uint8_t *target = codes + (first + i) * code_bytes;
            const uint16_t scale = rotate_scale_of_bits(largest[i], run->bits);
            memcpy(scales + 2 * (first + i), &scale, sizeof scale);
            if (scale == ROTATE_SCALE_RAW) {
                memset(target, 0, code_bytes);
                raw++;
            } else {
                rotate_encode_codes(values[i], length, run->bits, scale, target);
            }
        }
    }
    return raw;
}

ROTATE_TARGET uint64_t ROTATE_ENCODE_RUN(const rotate_run *run, const uint8_t *source,
                                         uint8_t *scales, uint8_t *codes)
{
    switch (run->length) {
    case 256: return rotate_encode_length(run, 256, source, scales, codes);
    case 128: return rotate_encode_length(run, 128, source, scales, codes);
    case 64: return rotate_encode_length(run, 64, source, scales, codes);
    default: return rotate_encode_length(run, run->length, source, scales, codes);
    }
}

/* One block of ROTATE_WHOLES * count whole numbers modulo 2^16, in registers. */
ROTATE_INLINE void rotate_block_wholes(rotate_wholes *v, const unsigned count)
{
    const unsigned stages = (unsigned)__builtin_ctz(count);
#pragma GCC unroll 16
    for (unsigned i = 0; i < count; i++) {
        v[i] = rotate_near_wholes(v[i]);
    }
#pragma GCC unroll 4
    for (unsigned s = 0; s < stages; s++) {
        const unsigned h = 1u << s;
#pragma GCC unroll 16
        for (unsigned i = 0; i < count; i++) {
            if ((i & h) == 0) {
                const rotate_wholes a = v[i];
                const rotate_wholes b = v[i + h];
                v[i] = rotate_add(a, b);
                v[i + h] = rotate_sub(a, b);
            }
        }
    }
}

/* Groups that are one block of ROTATE_WHOLES * count elements: everything stays in registers. */
ROTATE_INLINE void rotate_decode_even(const rotate_run *run, const unsigned count,
                                      const uint8_t *scales, const uint8_t *codes, uint8_t *target)
{
    const uint32_t length = ROTATE_WHOLES * count;
    const uint32_t bits = run->bits;
    const uint64_t code_bytes = length * bits / 8;
    const uint64_t register_bytes = ROTATE_WHOLES * (uint64_t)kvt_dtype_bytes(run->dtype);
    const float factor = rotate_block_factor(length);
    const rotate_wholes middle = rotate_first_whole(rotate_block_middle(length, bits));
    for (uint64_t g = 0; g < run->groups; g++) {
        uint8_t padded[ROTATE_GROUP_MAX / 8 * 3 + 4];
        const uint8_t *group = codes + g * code_bytes;
        uint16_t scale;
        rotate_wholes v[ROTATE_GROUP_MAX / ROTATE_WHOLES];
        memcpy(&scale, scales + 2 * g, sizeof scale);
        if (bits == 3) {
            memcpy(padded, group, length / 8 * 3);
            group = padded;
        }
#pragma GCC unroll 16
        for (unsigned i = 0; i < count; i++) {
            v[i] = rotate_unpack(group + i * (ROTATE_WHOLES / 8) * bits, bits);
        }
        rotate_block_wholes(v, count);
        v[0] = rotate_sub(v[0], middle);
        const rotate_floats step = rotate_all(rotate_scale_value(scale) * factor);
#pragma GCC unroll 16
        for (unsigned i = 0; i < count; i++) {
            rotate_store(v[i], step, run->dtype, target);
            target += register_bytes;
        }
    }
}

/* A block of n elements of any length, its codes and target with room past their ends. */
ROTATE_INLINE void rotate_decode_block(const rotate_run *run, uint32_t n, float scale,
                                       const uint8_t *codes, uint8_t *target)
{
    const rotate_floats step = rotate_all(scale * rotate_block_factor(n));
    const unsigned count = n < ROTATE_WHOLES ? 1 : n / ROTATE_WHOLES;
    rotate_wholes v[ROTATE_GROUP_MAX / ROTATE_WHOLES];
    for (unsigned i = 0; i < count; i++) {
        v[i] = rotate_unpack(codes + i * (ROTATE_WHOLES / 8) * run->bits, run->bits);
    }
    switch (n / ROTATE_WHOLES) {
    case 8: rotate_block_wholes(v, 8); break;
    case 4: rotate_block_wholes(v, 4); break;
    case 2: rotate_block_wholes(v, 2); break;
    case 1: rotate_block_wholes(v, 1); break;
    default: v[0] = rotate_part_wholes(v[0], n); break;
    }
    v[0] = rotate_sub(v[0], rotate_first_whole(rotate_block_middle(n, run->bits)));
    for (unsigned i = 0; i < count; i++) {
        rotate_store(v[i], step, run->dtype,
                     target + (size_t)i * ROTATE_WHOLES * kvt_dtype_bytes(run->dtype));
    }
}

/* Groups of several blocks, or of a short one. A block reads and writes past its end into the
 * groups that follow it; the last groups, which none follow, go through buffers. */
ROTATE_INLINE void rotate_decode_odd(const rotate_run *run, const uint8_t *scales,
                                     const uint8_t *codes, uint8_t *target)
{
    const uint32_t length = run->length;
    const uint64_t code_bytes = length * run->bits / 8;
    const uint64_t element_bytes = kvt_dtype_bytes(run->dtype);
    uint8_t stored[ROTATE_GROUP_MAX + ROTATE_PAD];
    uint8_t decoded[(ROTATE_GROUP_MAX + ROTATE_PAD) * sizeof(float)];
    memset(stored, 0, sizeof stored);
    for (uint64_t g = 0; g < run->groups; g++) {
        uint16_t scale;
        memcpy(&scale, scales + 2 * g, sizeof scale);
        const bool roomy = (run->groups - g - 1) * length >= ROTATE_PAD;
        const uint8_t *from = codes + g * code_bytes;
        uint8_t *group = target + g * length * element_bytes;
        uint8_t *to = roomy ? group : decoded;
        if (!roomy) from = memcpy(stored, from, code_bytes);
        for (uint32_t at = 0; at < length;) {
            const uint32_t n = rotate_block_first(length - at);
            rotate_decode_block(run, n, rotate_scale_value(scale), from + at * run->bits / 8,
                                to + at * element_bytes);
            at += n;
        }
        if (!roomy) memcpy(group, decoded, length * element_bytes);
    }
}

ROTATE_TARGET void ROTATE_DECODE_RUN(const rotate_run *run, const uint8_t *scales,
                                     const uint8_t *codes, uint8_t *target)
{
    switch (run->length) {
    case 256: rotate_decode_even(run, 256 / ROTATE_WHOLES, scales, codes, target); break;
    case 128: rotate_decode_even(run, 128 / ROTATE_WHOLES, scales, codes, target); break;
    case 64: rotate_decode_even(run, 64 / ROTATE_WHOLES, scales, codes, target); break;
    case 32: rotate_decode_even(run, 32 / ROTATE_WHOLES, scales, codes, target); break;
#if ROTATE_WHOLES == 16
    case 16: rotate_decode_even(run, 1, scales, codes, target); break;
#endif
    default: rotate_decode_odd(run, scales, codes, target); break;
    }
}
