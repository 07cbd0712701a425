/* SPDX-License-Identifier: Apache-2.0 */
/*
 * code_device.h - what the kernels that encode kivi and planes share: eight neighbouring elements
 * of a view, and their codes. The arithmetic is that of kivi_group_scalar.c, step by step.
 *
 * A thread of the codes has a chunk of 64 elements, the unit in which planes are laid out
 * (kivi_group.h): it writes whole words, whatever the width of a row is, and no thread needs
 * another. It reads 128 bytes of bf16 that follow each other, which a cache line holds.
 */
#ifndef CODECS_CODE_DEVICE_H
#define CODECS_CODE_DEVICE_H

#include "kernel_words.h"

enum { CODE_EIGHT = 8, CODE_CHUNK = 64, CODE_BATCH = 8 };

/* The same byte eight times. */
#define CODE_BYTES(byte) ((byte)*0x0101010101010101ull)

KERNEL_INLINE uint32_t code_element_bytes(const kernel_code_job *job)
{
    return job->dtype == KERNEL_FP32 ? 4 : job->dtype == KERNEL_FP8 ? 1 : 2;
}

/* Where eight channels of a token lie; at: of the job. */
KERNEL_INLINE uint64_t code_address(const kernel_code_job *job, uint64_t at, uint32_t token,
                                    uint32_t channel)
{
    uint64_t in_row = (uint64_t)channel * code_element_bytes(job);
    if (job->source.heads != 1) {
        const uint32_t in_head = (uint32_t)job->source.head_bytes;
        const uint32_t head = (uint32_t)in_row / in_head;
        in_row += head * (job->source.head_stride - in_head);
    }
    return kernel_row_of(&job->source, at + offsetof(kernel_code_job, source), token).address +
           in_row;
}

/* fp8 as fp32: exact, and NaN stays one. */
KERNEL_INLINE float code_from_fp8(uint32_t bits)
{
    const uint32_t size = bits & 0x7f, sign = (bits & 0x80) << 24;
    /* 2^120 moves the exponent's bias, subnormals included. */
    const float value =
        kernel_multiply(kernel_bits_float(size << 20), kernel_bits_float(0x7b800000));
    const uint32_t whole = size == 0x7f ? 0x7fc00000 : kernel_float_bits(value);
    return kernel_bits_float(whole | sign);
}

/* The elements of eight channels. */
KERNEL_INLINE void code_load(const kernel_code_job *job, uint64_t address, float values[CODE_EIGHT])
{
    uint32_t words[CODE_EIGHT];
    const uint32_t count = 2 * code_element_bytes(job);
    if (job->transfer_bytes == 16 && count >= 4) {
        kernel_load16(address, words);
        if (count == 8) kernel_load16(address + 16, words + 4);
    } else if (job->transfer_bytes >= 4) {
        KERNEL_UNROLL
        for (uint32_t i = 0; i < CODE_EIGHT; i++)
            if (i < count) words[i] = kernel_load4(address + 4 * i);
    } else {
        KERNEL_UNROLL
        for (uint32_t i = 0; i < CODE_EIGHT; i++) {
            words[i] = 0;
            KERNEL_UNROLL
            for (uint32_t k = 0; k < 4; k++)
                if (i < count) words[i] |= kernel_load1(address + 4 * i + k) << 8 * k;
        }
    }
    KERNEL_UNROLL
    for (uint32_t i = 0; i < CODE_EIGHT; i++) {
        const uint32_t half = words[i / 2] >> (i % 2 == 0 ? 0 : 16) & 0xffff;
        switch (job->dtype) {
        case KERNEL_FP16: values[i] = kernel_from_half(half); break;
        case KERNEL_BF16: values[i] = kernel_bits_float(half << 16); break;
        case KERNEL_FP32: values[i] = kernel_bits_float(words[i]); break;
        default: values[i] = code_from_fp8(words[i / 4] >> 8 * (i % 4) & 0xff); break;
        }
    }
}

KERNEL_INLINE float code_round(float value)
{
    return kernel_from_half(kernel_to_half(value));
}

/* A group as codes need it. */
typedef struct code_range {
    float minimum;
    float inverse; /* of the scale; 0 of a scale of 0 */
} code_range;

KERNEL_INLINE code_range code_range_of(uint32_t minimum, uint32_t scale)
{
    const float step = kernel_from_half(scale);
    const code_range range = {kernel_from_half(minimum),
                              step > 0.0f ? kernel_divide(1.0f, step) : 0.0f};
    return range;
}

/* The code of an element, and with its fine part eight bits of it; max_code and fine are constants
 * of the kernel or the job. */
KERNEL_INLINE uint32_t code_of(float x, code_range range, float max_code, bool fine)
{
    const float distance = kernel_add(x, -range.minimum);
    float ratio = code_round(kernel_multiply(code_round(distance), range.inverse));
    if (ratio > max_code) ratio = max_code;
    if (!(ratio > 0.0f)) ratio = 0.0f;
    const int32_t code = (int32_t)(kernel_float_bits(kernel_add(ratio, 12582912.0f)) - 0x4b400000u);
    if (!fine) return (uint32_t)code;
    float part = kernel_multiply(distance, kernel_multiply(range.inverse, 128.0f));
    if (part > 2048.0f) part = 2048.0f;
    if (!(part > 0.0f)) part = 0.0f;
    const int32_t u = (int32_t)part, inner = (u + 64) >> 3, low = (u + 2) >> 2;
    int32_t whole = inner < low ? inner : low;
    if (whole < low - 225) whole = low - 225;
    if (whole < 16 * code) whole = 16 * code;
    if (whole > 16 * code + 15) whole = 16 * code + 15;
    return (uint32_t)whole;
}

/* Codes of eight elements from element `first` of the matrix on, a byte each. */
KERNEL_INLINE uint64_t code_eight(const kernel_code_job *job, uint64_t at, uint32_t first,
                                  float max_code, bool fine)
{
    const uint32_t token = first / job->width, channel = first - token * job->width;
    float values[CODE_EIGHT];
    uint32_t minima[4], scales[4];
    uint64_t codes = 0;
    code_load(job, code_address(job, at, token, channel), values);
    if (job->columns) {
        const uint64_t group = (uint64_t)(token / job->group) * job->width + channel;
        kernel_load16(job->minima + 2 * group, minima);
        kernel_load16(job->scales + 2 * group, scales);
    } else {
        const uint32_t unit = channel / job->unit;
        const uint64_t group = (uint64_t)token * job->row_groups +
                               unit * ((job->unit + job->group - 1) / job->group) +
                               (channel - unit * job->unit) / job->group;
        minima[0] = kernel_load2(job->minima + 2 * group);
        scales[0] = kernel_load2(job->scales + 2 * group);
    }
    code_range range = code_range_of(minima[0] & 0xffff, scales[0] & 0xffff);
    KERNEL_UNROLL
    for (uint32_t i = 0; i < CODE_EIGHT; i++) {
        const uint32_t shift = i % 2 == 0 ? 0 : 16;
        if (job->columns && i != 0)
            range = code_range_of(minima[i / 2] >> shift & 0xffff, scales[i / 2] >> shift & 0xffff);
        codes |= (uint64_t)code_of(values[i], range, max_code, fine) << 8 * i;
    }
    return codes;
}

/* This thread's chunk: its first element. False: there is none. */
KERNEL_INLINE bool code_chunk(const kernel_code_job *job, uint32_t *first, uint32_t *count)
{
    const uint32_t chunk =
        (kernel_block() - job->head.first_block) * KERNEL_THREADS + kernel_thread();
    const uint32_t elements = job->tokens * job->width;
    if (chunk >= (elements - 1) / CODE_CHUNK + 1) return false;
    *first = chunk * CODE_CHUNK;
    *count = elements - *first < CODE_CHUNK ? elements - *first : CODE_CHUNK;
    return true;
}

/* Adds eight codes of a chunk that is not full to a plane of `bits` bits: element i is in byte i
 * modulo the chunk's bytes, or in bit i. The bytes were zero. */
KERNEL_INLINE void code_add_rest(uint64_t plane, uint32_t bits, uint64_t codes, uint32_t eight,
                                 uint32_t count)
{
    const uint32_t bytes = count / 8 * bits;
    KERNEL_UNROLL
    for (uint32_t i = 0; i < CODE_EIGHT; i++) {
        const uint32_t at = CODE_EIGHT * eight + i;
        const uint64_t byte = plane + (bits == 1 ? at / 8 : at % bytes);
        const uint32_t shift = bits == 1 ? i : bits * (at / bytes);
        const uint32_t code = (uint32_t)(codes >> 8 * i) & ((1u << bits) - 1);
        kernel_store1(byte, kernel_reload1(byte) | code << shift);
    }
}

#endif
