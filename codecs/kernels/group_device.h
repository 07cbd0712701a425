/* SPDX-License-Identifier: Apache-2.0 */
/*
 * group_device.h - what the kernels of kivi and planes share: groups of elements with a minimum and
 * a scale, whose codes lie in planes (kivi_group.h), decoded and scattered.
 *
 * A thread decodes a piece: 8 neighbouring channels of 16 tokens. 8 channels of bf16 are the 16
 * bytes that a thread writes at once, and a warp writes half a KiB of a row; 8 codes are one word
 * of 64 bits in every plane, a byte each:
 *
 *     chunk of 64 elements, plane of w bits       w = 2: byte i has elements i, 16 + i, 32 + i, ..
 *     elements 8k .. 8k + 7 are word k mod w      shifted down by w * (k / w), the lowest w bits of
 *     of the chunk's w words                      its bytes
 *
 * so that planes join by shifts of whole words. K's minima and scales stay in registers over the
 * piece, which lies inside of one run of tokens.
 *
 * At 4 bits an element moves 2.6 bytes; while the memory of an H200 does that, its multiprocessors
 * can issue some 17 instructions. So nothing is done per element that can be done per word.
 */
#ifndef CODECS_GROUP_DEVICE_H
#define CODECS_GROUP_DEVICE_H

#include "kernel_words.h"

enum { GROUP_EIGHT = 8, GROUP_CHUNK_ELEMENTS = 64, GROUP_HALF_INFINITY = 0x7c00 };

/* Meanings of codes. */
typedef enum group_meaning {
    GROUP_IS_CODE,  /* the level is the code */
    GROUP_IS_4,     /* one of 4 centroids */
    GROUP_IS_8,     /* one of 8 */
    GROUP_IS_FINE6, /* the upper 6 bits of a fine code */
    GROUP_IS_FINE8  /* a fine code */
} group_meaning;

/* The same byte eight times. */
#define GROUP_BYTES(byte) ((byte)*0x0101010101010101ull)

/* A chunk of a plane, and which eight of its elements. */
typedef struct group_place {
    uint64_t chunk;    /* number of the chunk */
    uint32_t eight;    /* of the chunk's eights */
    uint32_t elements; /* of the chunk: 64, or fewer in the last one */
} group_place;

KERNEL_INLINE group_place group_place_of(uint64_t at, uint64_t elements)
{
    const uint64_t chunk = at / GROUP_CHUNK_ELEMENTS;
    const uint64_t left = elements - chunk * GROUP_CHUNK_ELEMENTS;
    const group_place place = {chunk, (uint32_t)at / 8 % 8,
                               left < GROUP_CHUNK_ELEMENTS ? (uint32_t)left : GROUP_CHUNK_ELEMENTS};
    return place;
}

/* Eight codes, a byte each, of a full chunk of a plane of 2, 4 or 8 bits. */
KERNEL_INLINE uint64_t group_codes(uint64_t plane, uint32_t bits, group_place place)
{
    const uint64_t word =
        kernel_load8(plane + 8 * (place.chunk * bits + (place.eight & (bits - 1))));
    const uint32_t shift = bits * (place.eight >> (bits == 2 ? 1 : bits == 4 ? 2 : 3));
    return word >> shift & GROUP_BYTES((1u << bits) - 1);
}

/* The same of a plane of 1 bit: bit i of the byte becomes byte i. */
KERNEL_INLINE uint64_t group_bits(uint64_t plane, group_place place)
{
    const uint64_t byte = kernel_load1(plane + 8 * place.chunk + place.eight);
    return (((GROUP_BYTES(byte) & 0x8040201008040201ull) + GROUP_BYTES(0x7full)) >> 7) &
           GROUP_BYTES(1ull);
}

/* Eight codes of a plane of any bits whose chunk is not full: element i is in byte i % bytes of it,
 * or in bit i of the chunk. */
KERNEL_INLINE uint64_t group_rest(uint64_t plane, uint32_t bits, group_place place)
{
    const uint64_t chunk = plane + 8 * place.chunk * bits;
    const uint32_t bytes = place.elements / 8 * bits;
    uint64_t codes = 0;
    for (uint32_t i = 0; i < GROUP_EIGHT; i++) {
        const uint32_t at = GROUP_EIGHT * place.eight + i;
        const uint32_t byte = kernel_load1(chunk + (bits == 1 ? at / 8 : at % bytes));
        const uint32_t shift = bits == 1 ? i : bits * (at / bytes);
        codes |= (uint64_t)(byte >> shift & ((1u << bits) - 1)) << 8 * i;
    }
    return codes;
}

/* A byte of a word as fp32: 2^23 plus the byte has the byte as its lowest bits. */
KERNEL_INLINE float group_byte(uint32_t word, uint32_t index)
{
    return kernel_add(kernel_bits_float(kernel_pick_bytes(word, 0x4b000000u, 0x7440u | index)),
                      -8388608.0f);
}

/* The meaning of a code in steps of the scale; all of it exact in fp32. meaning is a constant at
 * each call; centroids: four words of fp16. */
KERNEL_INLINE float group_level(group_meaning meaning, uint32_t word, uint32_t index,
                                const uint32_t centroids[4])
{
    if (meaning == GROUP_IS_4 || meaning == GROUP_IS_8) {
        const uint32_t code = word >> 8 * index & 7;
        const uint32_t bytes = code % 4 * 0x22 + 0x10;
        const uint32_t low = kernel_pick_bytes(centroids[0], centroids[1], bytes);
        if (meaning == GROUP_IS_4) return kernel_from_half(low & 0xffff);
        const uint32_t high = kernel_pick_bytes(centroids[2], centroids[3], bytes);
        return kernel_from_half((code < 4 ? low : high) & 0xffff);
    }
    const float code = group_byte(word, index);
    if (meaning == GROUP_IS_FINE8) {
        /* min (max (4 c - 30, 2 c), 2 c + 450) / 64 */
        const float inner = kernel_add(kernel_multiply(code, 0.0625f), -0.46875f);
        const float low = kernel_multiply(code, 0.03125f);
        return kernel_smaller(kernel_larger(inner, low), kernel_add(low, 7.03125f));
    }
    if (meaning == GROUP_IS_FINE6) {
        /* min (max (16 c - 24, 8 c + 3), 8 c + 453) / 64, but 0 and 15 at the ends */
        const float inner = kernel_add(kernel_multiply(code, 0.25f), -0.375f);
        const float low = kernel_add(kernel_multiply(code, 0.125f), 0.046875f);
        const float level = kernel_smaller(kernel_larger(inner, low), kernel_add(low, 7.03125f));
        return code == 0.0f ? 0.0f : code == 63.0f ? 15.0f : level;
    }
    return code;
}

/* The levels of eight codes. */
KERNEL_INLINE void group_levels_of(group_meaning meaning, uint64_t codes,
                                   const uint32_t centroids[4], float levels[GROUP_EIGHT])
{
    KERNEL_UNROLL
    for (uint32_t k = 0; k < GROUP_EIGHT; k++)
        levels[k] = group_level(meaning, (uint32_t)(codes >> (k < 4 ? 0 : 32)), k % 4, centroids);
}

/* Eight values as elements to their place. */
KERNEL_INLINE void group_store(uint32_t dtype, uint64_t address, const float values[GROUP_EIGHT],
                               uint32_t transfer_bytes)
{
    uint32_t words[GROUP_EIGHT];
    switch (dtype) {
    case KERNEL_FP16:
        KERNEL_UNROLL
        for (uint32_t i = 0; i < 4; i++)
            words[i] = kernel_to_half(values[2 * i]) | kernel_to_half(values[2 * i + 1]) << 16;
        kernel_store_words(address, words, 4, 2, transfer_bytes);
        break;
    case KERNEL_BF16:
        KERNEL_UNROLL
        for (uint32_t i = 0; i < 4; i++)
            words[i] = kernel_to_bf16s(values[2 * i], values[2 * i + 1]);
        kernel_store_words(address, words, 4, 2, transfer_bytes);
        break;
    case KERNEL_FP32:
        KERNEL_UNROLL
        for (uint32_t i = 0; i < 8; i++)
            words[i] = kernel_float_bits(values[i]);
        kernel_store_words(address, words, 8, 4, transfer_bytes);
        break;
    default:
        words[0] = words[1] = 0;
        KERNEL_UNROLL
        for (uint32_t i = 0; i < 8; i++)
            words[i / 4] |= kernel_bf16_to_fp8(kernel_to_bf16s(0.0f, values[i]) & 0xffff0000u)
                            << 8 * (i % 4);
        kernel_store_words(address, words, 2, 1, transfer_bytes);
        break;
    }
}

/* Minimum and scale of a group. False: no encoder writes them. */
KERNEL_INLINE bool group_range(uint32_t minimum, uint32_t scale, float *minimum_out,
                               float *scale_out)
{
    *minimum_out = kernel_from_half(minimum);
    *scale_out = kernel_from_half(scale);
    return (minimum & 0x7fff) < GROUP_HALF_INFINITY && scale < GROUP_HALF_INFINITY;
}

/* The ranges of a token's eight channels, which lie in one group along the rows, or in one each
 * along the columns. */
typedef struct group_ranges_device {
    float minimum[GROUP_EIGHT];
    float scale[GROUP_EIGHT];
} group_ranges_device;

KERNEL_INLINE bool group_columns(const kernel_group_job *job, uint32_t token, uint32_t channel,
                                 group_ranges_device *ranges)
{
    const uint64_t at = 2 * ((uint64_t)(token / job->group) * job->width + channel);
    uint32_t minima[4], scales[4];
    bool sound = true;
    kernel_load16(job->minima + at, minima);
    kernel_load16(job->scales + at, scales);
    KERNEL_UNROLL
    for (uint32_t i = 0; i < GROUP_EIGHT; i++)
        sound &= group_range(minima[i / 2] >> 16 * (i % 2) & 0xffff,
                             scales[i / 2] >> 16 * (i % 2) & 0xffff, &ranges->minimum[i],
                             &ranges->scale[i]);
    return sound;
}

KERNEL_INLINE bool group_row(const kernel_group_job *job, uint64_t group,
                             group_ranges_device *ranges)
{
    const bool sound =
        group_range(kernel_load2(job->minima + 2 * group), kernel_load2(job->scales + 2 * group),
                    &ranges->minimum[0], &ranges->scale[0]);
    KERNEL_UNROLL
    for (uint32_t i = 1; i < GROUP_EIGHT; i++) {
        ranges->minimum[i] = ranges->minimum[0];
        ranges->scale[i] = ranges->scale[0];
    }
    return sound;
}

/* Values of eight codes to their place. half_steps is a constant but in kivi. */
KERNEL_INLINE void group_values(const kernel_group_job *job, const group_ranges_device *ranges,
                                const float levels[GROUP_EIGHT], bool half_steps, uint64_t address)
{
    float values[GROUP_EIGHT];
    KERNEL_UNROLL
    for (uint32_t k = 0; k < GROUP_EIGHT; k++) {
        float product = kernel_multiply(ranges->scale[k], levels[k]);
        if (half_steps) product = kernel_from_half(kernel_to_half(product));
        values[k] = kernel_add(product, ranges->minimum[k]);
        if (half_steps) values[k] = kernel_from_half(kernel_to_half(values[k]));
    }
    group_store(job->dtype, address, values, job->transfer_bytes);
}

/* Where a thread is in its piece. */
typedef struct group_walk {
    uint32_t token;
    uint32_t end;     /* behind the last token */
    uint32_t channel; /* the first of eight */
    uint64_t in_row;  /* bytes from a row's start to them */
    uint64_t group;   /* along the rows: of the present token */
    uint64_t target_at;
    kernel_row row;
    group_ranges_device ranges;
    bool sound; /* all that was read of minima and scales */
} group_walk;

/* Starts this thread's piece of the job, which lies at `at`. False: there is none. columns, here
 * and below: job->columns as a constant, because ranges take 16 registers along the columns and 2
 * along the rows. */
KERNEL_INLINE bool group_walk_start(const kernel_group_job *job, uint64_t at, bool columns,
                                    group_walk *walk)
{
    const uint32_t eights = job->width / GROUP_EIGHT;
    const uint32_t piece =
        (kernel_block() - job->head.first_block) * KERNEL_THREADS + kernel_thread();
    const uint32_t element_bytes = job->dtype == KERNEL_FP32 ? 4 : job->dtype == KERNEL_FP8 ? 1 : 2;
    walk->token = piece / eights * KERNEL_GROUP_ROWS;
    walk->sound = true;
    if (walk->token >= job->tokens) return false;
    const uint32_t left = job->tokens - walk->token;
    walk->end = walk->token + (left < KERNEL_GROUP_ROWS ? left : KERNEL_GROUP_ROWS);
    walk->channel = piece % eights * GROUP_EIGHT;
    walk->in_row = (uint64_t)walk->channel * element_bytes;
    if (job->target.heads != 1) {
        const uint32_t in_head = (uint32_t)job->target.head_bytes;
        const uint32_t head = (uint32_t)walk->in_row / in_head;
        walk->in_row += head * (job->target.head_stride - in_head);
    }
    walk->target_at = at + offsetof(kernel_group_job, target);
    walk->row = kernel_row_of(&job->target, walk->target_at, walk->token);
    if (columns) {
        walk->sound = group_columns(job, walk->token, walk->channel, &walk->ranges);
    } else {
        const uint32_t unit = walk->channel / job->unit;
        walk->group = (uint64_t)walk->token * job->row_groups +
                      unit * ((job->unit + job->group - 1) / job->group) +
                      (walk->channel - unit * job->unit) / job->group;
        walk->sound = group_row(job, walk->group, &walk->ranges);
    }
    return true;
}

/* On to the next token. False: it was the last one. */
KERNEL_INLINE bool group_walk_next(const kernel_group_job *job, bool columns, group_walk *walk)
{
    if (++walk->token == walk->end) return false;
    kernel_row_next(&job->target, walk->target_at, &walk->row);
    if (!columns) {
        walk->group += job->row_groups;
        walk->sound &= group_row(job, walk->group, &walk->ranges);
    }
    return true;
}

KERNEL_INLINE group_place group_walk_place(const kernel_group_job *job, const group_walk *walk)
{
    return group_place_of((uint64_t)walk->token * job->width + walk->channel,
                          (uint64_t)job->tokens * job->width);
}

#endif
