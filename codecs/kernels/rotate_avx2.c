/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rotate_avx2.c - rotate_scalar.c with AVX2: 8 floats or 16 whole numbers in a register, several
 * registers in a block. Buffers are padded to whole steps, and what lies past a block's end is
 * overwritten by the next block or not stored. Re-entrant.
 */
#include "rotate_kernel.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define ROTATE_WIDE static inline __attribute__((always_inline)) CODECS_TARGET_AVX2

enum { ROTATE_PAD = 64, ROTATE_BATCH = 8, ROTATE_AHEAD = 2048 };

ROTATE_WIDE __m256i rotate_read(const void *source)
{
    return _mm256_loadu_si256((const __m256i *)source);
}

ROTATE_WIDE void rotate_write(void *target, __m256i value)
{
    _mm256_storeu_si256((__m256i *)target, value);
}

/* One stage inside a register: flip holds the sign bit in the lanes that get partner - x. */
ROTATE_WIDE __m256 rotate_pair_floats(__m256 x, __m256 partner, __m256 flip)
{
    return _mm256_add_ps(partner, _mm256_xor_ps(x, flip));
}

ROTATE_WIDE __m256 rotate_lanes_floats(__m256 x)
{
    const __m256 one = _mm256_setr_ps(0.0f, -0.0f, 0.0f, -0.0f, 0.0f, -0.0f, 0.0f, -0.0f);
    const __m256 two = _mm256_setr_ps(0.0f, 0.0f, -0.0f, -0.0f, 0.0f, 0.0f, -0.0f, -0.0f);
    const __m256 four = _mm256_setr_ps(0.0f, 0.0f, 0.0f, 0.0f, -0.0f, -0.0f, -0.0f, -0.0f);
    x = rotate_pair_floats(x, _mm256_permute2f128_ps(x, x, 0x01), four);
    x = rotate_pair_floats(x, _mm256_permute_ps(x, 0x4e), two);
    return rotate_pair_floats(x, _mm256_permute_ps(x, 0xb1), one);
}

/* One block of 8 * count floats in place. */
ROTATE_WIDE void rotate_block_floats(float *values, const unsigned count, const unsigned stages)
{
    __m256 v[8];
#pragma GCC unroll 8
    for (unsigned i = 0; i < count; i++) {
        v[i] = _mm256_loadu_ps(values + 8 * i);
    }
#pragma GCC unroll 3
    for (unsigned s = stages; s-- > 0;) {
        const unsigned h = 1u << s;
#pragma GCC unroll 8
        for (unsigned i = 0; i < count; i++) {
            if ((i & h) == 0) {
                const __m256 a = v[i];
                const __m256 b = v[i + h];
                v[i] = _mm256_add_ps(a, b);
                v[i + h] = _mm256_sub_ps(a, b);
            }
        }
    }
#pragma GCC unroll 8
    for (unsigned i = 0; i < count; i++) {
        _mm256_storeu_ps(values + 8 * i, rotate_lanes_floats(v[i]));
    }
}

/* The stages of distance 128 and 64, through memory: the registers hold 64 floats at a time. */
ROTATE_WIDE void rotate_far_floats(float *values, uint32_t n)
{
    for (uint32_t h = n / 2; h >= 64; h /= 2) {
        for (uint32_t i = 0; i < n; i += 8) {
            if (i & h) continue;
            const __m256 a = _mm256_loadu_ps(values + i);
            const __m256 b = _mm256_loadu_ps(values + i + h);
            _mm256_storeu_ps(values + i, _mm256_add_ps(a, b));
            _mm256_storeu_ps(values + i + h, _mm256_sub_ps(a, b));
        }
    }
}

/* A block of n floats in place; returns the bits of its largest size. */
ROTATE_WIDE uint32_t rotate_block_spin(float *values, uint32_t n)
{
    switch (n) {
    case 8: rotate_block_floats(values, 1, 0); break;
    case 16: rotate_block_floats(values, 2, 1); break;
    case 32: rotate_block_floats(values, 4, 2); break;
    default:
        rotate_far_floats(values, n);
        for (uint32_t i = 0; i < n; i += 64) {
            rotate_block_floats(values + i, 8, 3);
        }
        break;
    }
    const __m256i mask = _mm256_set1_epi32(0x7fffffff);
    __m256i largest = _mm256_setzero_si256();
    for (uint32_t i = 0; i < n; i += 8) {
        largest = _mm256_max_epu32(largest, _mm256_and_si256(rotate_read(values + i), mask));
    }
    __m128i four =
        _mm_max_epu32(_mm256_castsi256_si128(largest), _mm256_extracti128_si256(largest, 1));
    four = _mm_max_epu32(four, _mm_shuffle_epi32(four, 0x4e));
    four = _mm_max_epu32(four, _mm_shuffle_epi32(four, 0xb1));
    return (uint32_t)_mm_cvtsi128_si32(four);
}

ROTATE_WIDE void rotate_load(const uint8_t *source, uint8_t dtype, uint32_t length, float *values)
{
    for (uint32_t i = 0; i < length; i += 8) {
        __m256 v;
        if (dtype == KVT_DTYPE_FP32) {
            v = _mm256_castsi256_ps(rotate_read(source + 4 * i));
        } else {
            const __m128i halves = _mm_loadu_si128((const __m128i *)(const void *)(source + 2 * i));
            v = dtype == KVT_DTYPE_FP16
                    ? _mm256_cvtph_ps(halves)
                    : _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
        }
        _mm256_storeu_ps(values + i, v);
    }
}

/* 32 rotated values as codes, one a byte. */
ROTATE_WIDE __m256i rotate_codes(const float *values, __m256 inverse, uint32_t bits)
{
    __m256i steps[4];
#pragma GCC unroll 4
    for (unsigned i = 0; i < 4; i++) {
        const __m256 v = _mm256_mul_ps(_mm256_loadu_ps(values + 8 * i), inverse);
        steps[i] = _mm256_cvttps_epi32(_mm256_floor_ps(v));
    }
    const __m256i low = _mm256_packs_epi32(steps[0], steps[1]);
    const __m256i high = _mm256_packs_epi32(steps[2], steps[3]);
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    const __m256i half = _mm256_set1_epi8((char)(1u << (bits - 1)));
    const __m256i top = _mm256_set1_epi8((char)((1u << (bits - 1)) - 1u));
    __m256i codes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), order);
    codes = _mm256_min_epi8(codes, top);
    codes = _mm256_max_epi8(codes, _mm256_sub_epi8(_mm256_setzero_si256(), half));
    return _mm256_add_epi8(codes, half);
}

/* 32 codes of 4 bits, two a byte. */
ROTATE_WIDE void rotate_store_pairs(__m256i codes, uint8_t *target)
{
    const __m256i pairs = _mm256_maddubs_epi16(codes, _mm256_set1_epi16(0x1001));
    const __m256i bytes = _mm256_permute4x64_epi64(_mm256_packus_epi16(pairs, pairs), 0xd8);
    _mm_storeu_si128((__m128i *)(void *)target, _mm256_castsi256_si128(bytes));
}

/* Codes one a byte to their stored form, through a buffer with room past the end. */
ROTATE_WIDE void rotate_pack(const uint8_t *codes, uint32_t length, uint32_t bits, uint8_t *target)
{
    uint8_t packed[ROTATE_GROUP_MAX + ROTATE_PAD];
    if (bits == 8) {
        memcpy(target, codes, length);
        return;
    }
    if (bits == 4) {
        for (uint32_t i = 0; i < length; i += 32) {
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
ROTATE_WIDE void rotate_encode_codes(const float *values, const uint32_t length, uint32_t bits,
                                     uint16_t scale, uint8_t *target)
{
    const bool whole = length % 32 == 0; /* no step passes the group's end */
    uint8_t codes[ROTATE_GROUP_MAX + ROTATE_PAD];
    for (uint32_t at = 0; at < length;) {
        const uint32_t n = rotate_block_first(length - at);
        const __m256 inverse = _mm256_set1_ps(rotate_inverse_of(scale, rotate_block_factor(n)));
        for (uint32_t i = at; i < at + n; i += 32) {
            const __m256i part = rotate_codes(values + i, inverse, bits);
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
ROTATE_WIDE uint32_t rotate_encode_spin(const rotate_run *run, const uint32_t length,
                                        const uint8_t *source, float *values)
{
    uint32_t largest = 0;
    rotate_load(source, run->dtype, length, values);
    for (uint32_t at = 0; at < length;) {
        const uint32_t n = rotate_block_first(length - at);
        uint32_t block = rotate_block_spin(values + at, n);
        if (block >= 0x7f800000u) return block;
        block = half_float_bits(half_bits_float(block) * rotate_block_factor(n));
        largest = block > largest ? block : largest;
        at += n;
    }
    return largest;
}

/* Asks for the lines that a later group lies in: the hardware stops at the end of each
 * page. Addresses past the matrix are harmless. */
ROTATE_WIDE void rotate_prefetch(const uint8_t *source, uint64_t bytes)
{
    for (uint64_t i = 0; i < bytes; i += 64) {
        _mm_prefetch((const char *)(uintptr_t)((uintptr_t)source + i + ROTATE_AHEAD), _MM_HINT_T0);
    }
}

/* A few groups at a time, so that the latencies of one group's largest value, scale and quotient
 * hide behind the others' work. */
ROTATE_WIDE uint64_t rotate_encode_length(const rotate_run *run, const uint32_t length,
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
                rotate_encode_spin(run, length, source + (first + i) * group_bytes, values[i]);
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

CODECS_TARGET_AVX2
uint64_t rotate_encode_run_avx2(const rotate_run *run, const uint8_t *source, uint8_t *scales,
                                uint8_t *codes)
{
    switch (run->length) {
    case 256: return rotate_encode_length(run, 256, source, scales, codes);
    case 128: return rotate_encode_length(run, 128, source, scales, codes);
    case 64: return rotate_encode_length(run, 64, source, scales, codes);
    default: return rotate_encode_length(run, run->length, source, scales, codes);
    }
}

/* One stage inside a register: sign is -1 in the lanes that get partner - x, else 1. */
ROTATE_WIDE __m256i rotate_pair_wholes(__m256i x, __m256i partner, __m256i sign)
{
    return _mm256_add_epi16(partner, _mm256_sign_epi16(x, sign));
}

/* Distances 1, 2 and 4, for lanes of any blocks. */
ROTATE_WIDE __m256i rotate_lanes_wholes(__m256i x)
{
    const __m256i one = _mm256_set1_epi32((int)0xffff0001u);
    const __m256i two = _mm256_set1_epi64x((long long)UINT64_C(0xffffffff00010001));
    const __m256i four = _mm256_setr_epi64x((long long)UINT64_C(0x0001000100010001), -1,
                                            (long long)UINT64_C(0x0001000100010001), -1);
    const __m256i swap = _mm256_setr_epi8(2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13, 2,
                                          3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13);
    x = rotate_pair_wholes(x, _mm256_shuffle_epi8(x, swap), one);
    x = rotate_pair_wholes(x, _mm256_shuffle_epi32(x, 0xb1), two);
    return rotate_pair_wholes(x, _mm256_shuffle_epi32(x, 0x4e), four);
}

/* One block of 16 * count whole numbers modulo 2^16, in registers. */
ROTATE_WIDE void rotate_block_wholes(__m256i *v, const unsigned count, const unsigned stages)
{
    const __m256i eight = _mm256_setr_epi64x((long long)UINT64_C(0x0001000100010001),
                                             (long long)UINT64_C(0x0001000100010001), -1, -1);
#pragma GCC unroll 16
    for (unsigned i = 0; i < count; i++) {
        v[i] = rotate_lanes_wholes(v[i]);
        v[i] = rotate_pair_wholes(v[i], _mm256_permute4x64_epi64(v[i], 0x4e), eight);
    }
#pragma GCC unroll 4
    for (unsigned s = 0; s < stages; s++) {
        const unsigned h = 1u << s;
#pragma GCC unroll 16
        for (unsigned i = 0; i < count; i++) {
            if ((i & h) == 0) {
                const __m256i a = v[i];
                const __m256i b = v[i + h];
                v[i] = _mm256_add_epi16(a, b);
                v[i + h] = _mm256_sub_epi16(a, b);
            }
        }
    }
}

/* 16 codes as whole numbers. Reads 16 * bits / 8 bytes (6 of them as 7 for 3 bits). */
ROTATE_WIDE __m256i rotate_unpack(const uint8_t *source, uint32_t bits)
{
    if (bits == 4) {
        const __m256i x =
            _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)source));
        return _mm256_and_si256(_mm256_or_si256(x, _mm256_slli_epi32(x, 12)),
                                _mm256_set1_epi32(0x000f000f));
    }
    if (bits == 8) {
        return _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(const void *)source));
    }
    uint64_t words[2];
    for (unsigned i = 0; i < 2; i++) {
        uint32_t packed;
        memcpy(&packed, source + 3 * i, sizeof packed);
        words[i] = _pdep_u64(packed, UINT64_C(0x0707070707070707));
    }
    return _mm256_cvtepu8_epi16(_mm_set_epi64x((long long)words[1], (long long)words[0]));
}

/* Bits of finite floats to bf16 in the upper half of each lane, to nearest even. */
ROTATE_WIDE __m256i rotate_round_bf16(__m256 value)
{
    const __m256i bits = _mm256_castps_si256(value);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    return _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
}

ROTATE_WIDE __m256 rotate_scaled(__m256i wholes, __m256 step)
{
    return _mm256_mul_ps(_mm256_cvtepi32_ps(wholes), step);
}

/* 16 whole numbers times step, stored as 16 elements. */
ROTATE_WIDE void rotate_store(__m256i v, __m256 step, uint8_t dtype, uint8_t *target)
{
    if (dtype == KVT_DTYPE_BF16) {
        const __m256i even = _mm256_srai_epi32(_mm256_slli_epi32(v, 16), 16);
        const __m256i low = rotate_round_bf16(rotate_scaled(even, step));
        const __m256i high = rotate_round_bf16(rotate_scaled(_mm256_srai_epi32(v, 16), step));
        rotate_write(target, _mm256_blend_epi16(_mm256_srli_epi32(low, 16), high, 0xaa));
        return;
    }
    __m256 low = rotate_scaled(_mm256_cvtepi16_epi32(_mm256_castsi256_si128(v)), step);
    __m256 high = rotate_scaled(_mm256_cvtepi16_epi32(_mm256_extracti128_si256(v, 1)), step);
    if (dtype == KVT_DTYPE_FP32) {
        rotate_write(target, _mm256_castps_si256(low));
        rotate_write(target + 32, _mm256_castps_si256(high));
        return;
    }
    const __m256 top = _mm256_set1_ps(65504.0f);
    const __m256 bottom = _mm256_set1_ps(-65504.0f);
    low = _mm256_max_ps(_mm256_min_ps(low, top), bottom);
    high = _mm256_max_ps(_mm256_min_ps(high, top), bottom);
    const __m128i low_half = _mm256_cvtps_ph(low, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __m128i high_half = _mm256_cvtps_ph(high, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    rotate_write(target, _mm256_set_m128i(high_half, low_half));
}

/* Groups that are one block of 16 * count elements: everything stays in registers. */
ROTATE_WIDE void rotate_decode_even(const rotate_run *run, const unsigned count,
                                    const unsigned stages, const uint8_t *scales,
                                    const uint8_t *codes, uint8_t *target)
{
    const uint32_t length = 16 * count;
    const uint32_t bits = run->bits;
    const uint64_t code_bytes = length * bits / 8;
    const uint64_t register_bytes = 16 * (uint64_t)kvt_dtype_bytes(run->dtype);
    const float factor = rotate_block_factor(length);
    const __m256i middle =
        _mm256_zextsi128_si256(_mm_cvtsi32_si128((uint16_t)rotate_block_middle(length, bits)));
    for (uint64_t g = 0; g < run->groups; g++) {
        uint8_t padded[ROTATE_GROUP_MAX / 8 * 3 + 4];
        const uint8_t *group = codes + g * code_bytes;
        uint16_t scale;
        __m256i v[16];
        memcpy(&scale, scales + 2 * g, sizeof scale);
        if (bits == 3) {
            memcpy(padded, group, length / 8 * 3);
            group = padded;
        }
#pragma GCC unroll 16
        for (unsigned i = 0; i < count; i++) {
            v[i] = rotate_unpack(group + i * 2 * bits, bits);
        }
        rotate_block_wholes(v, count, stages);
        v[0] = _mm256_sub_epi16(v[0], middle);
        const __m256 step = _mm256_set1_ps(half_to_float(scale) * factor);
#pragma GCC unroll 16
        for (unsigned i = 0; i < count; i++) {
            rotate_store(v[i], step, run->dtype, target);
            target += register_bytes;
        }
    }
}

/* A block of n elements of any length, its codes and target with room past their ends. */
ROTATE_WIDE void rotate_decode_block(const rotate_run *run, uint32_t n, float scale,
                                     const uint8_t *codes, uint8_t *target)
{
    const __m256 step = _mm256_set1_ps(scale * rotate_block_factor(n));
    const unsigned count = n < 16 ? 1 : n / 16;
    __m256i v[16];
    for (unsigned i = 0; i < count; i++) {
        v[i] = rotate_unpack(codes + i * 2 * run->bits, run->bits);
    }
    switch (n) {
    case 128: rotate_block_wholes(v, 8, 3); break;
    case 64: rotate_block_wholes(v, 4, 2); break;
    case 32: rotate_block_wholes(v, 2, 1); break;
    case 16: rotate_block_wholes(v, 1, 0); break;
    default: v[0] = rotate_lanes_wholes(v[0]); break;
    }
    const __m128i middle = _mm_cvtsi32_si128((uint16_t)rotate_block_middle(n, run->bits));
    v[0] = _mm256_sub_epi16(v[0], _mm256_zextsi128_si256(middle));
    for (unsigned i = 0; i < count; i++) {
        rotate_store(v[i], step, run->dtype, target + (size_t)i * 16 * kvt_dtype_bytes(run->dtype));
    }
}

/* Groups of several blocks, or of a short one. What a block reads and writes past its end is the
 * next groups' until the last ones, which go through buffers. */
ROTATE_WIDE void rotate_decode_odd(const rotate_run *run, const uint8_t *scales,
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
            rotate_decode_block(run, n, half_to_float(scale), from + at * run->bits / 8,
                                to + at * element_bytes);
            at += n;
        }
        if (!roomy) memcpy(group, decoded, length * element_bytes);
    }
}

CODECS_TARGET_AVX2
void rotate_decode_run_avx2(const rotate_run *run, const uint8_t *scales, const uint8_t *codes,
                            uint8_t *target)
{
    switch (run->length) {
    case 256: rotate_decode_even(run, 16, 4, scales, codes, target); break;
    case 128: rotate_decode_even(run, 8, 3, scales, codes, target); break;
    case 64: rotate_decode_even(run, 4, 2, scales, codes, target); break;
    case 32: rotate_decode_even(run, 2, 1, scales, codes, target); break;
    case 16: rotate_decode_even(run, 1, 0, scales, codes, target); break;
    default: rotate_decode_odd(run, scales, codes, target); break;
    }
}

#endif
