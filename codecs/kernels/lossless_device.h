/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lossless_device.h - what the kernels of lossless share: bytes at any address, and elements to
 * their places. For .cu files.
 */
#ifndef CODECS_LOSSLESS_DEVICE_H
#define CODECS_LOSSLESS_DEVICE_H

#include "kernel_words.h"

enum { LOSSLESS_RUN = 128 /* elements whose fields are packed together */ };

/* Eight bytes at any address; no word is read that holds none of them. */
KERNEL_INLINE uint64_t lossless_eight(uint64_t address)
{
    const uint32_t shift = 8 * (uint32_t)(address % 8);
    const uint64_t low = kernel_load8(address / 8 * 8);
    if (shift == 0) return low;
    return low >> shift | kernel_load8(address / 8 * 8 + 8) << (64 - shift);
}

KERNEL_INLINE uint32_t lossless_word(uint64_t address)
{
    return kernel_load1(address) | kernel_load1(address + 1) << 8 |
           kernel_load1(address + 2) << 16 | kernel_load1(address + 3) << 24;
}

/* Field i of a run of `count`, of `bits` bits. */
KERNEL_INLINE uint32_t lossless_field(uint64_t run, uint32_t count, uint32_t bits, uint32_t i)
{
    const uint32_t part = (count * bits + 7) / 8;
    return kernel_load1(run + i % part) >> i / part * bits & ((1u << bits) - 1);
}

/* The address of a token's channel. at: of the target itself. */
KERNEL_INLINE uint64_t lossless_place(const kernel_target *target, uint64_t at, uint32_t token,
                                      uint32_t channel, uint32_t element_bytes)
{
    const uint32_t in_row = channel * element_bytes;
    const uint32_t head = target->heads == 1 ? 0 : in_row / (uint32_t)target->head_bytes;
    return kernel_row_of(target, at, token).address + head * target->head_stride +
           (in_row - head * (uint32_t)target->head_bytes);
}

/* Whether eight channels from a multiple of 8 on are always neighbours. */
KERNEL_INLINE bool lossless_neighbours(const kernel_target *target, uint32_t element_bytes)
{
    return (uint32_t)target->head_bytes / element_bytes % 8 == 0;
}

/* Eight of them. */
KERNEL_INLINE void lossless_store(uint64_t place, uint32_t element_bytes, uint32_t transfer_bytes,
                                  const uint32_t values[8])
{
    uint32_t words[4] = {0, 0, 0, 0};
    if (element_bytes == 4) {
        kernel_store_words(place, values, 8, 4, transfer_bytes);
    } else if (element_bytes == 2) {
        KERNEL_UNROLL
        for (uint32_t i = 0; i < 4; i++)
            words[i] = values[2 * i] | values[2 * i + 1] << 16;
        kernel_store_words(place, words, 4, 2, transfer_bytes);
    } else {
        KERNEL_UNROLL
        for (uint32_t i = 0; i < 8; i++)
            words[i / 4] |= values[i] << 8 * (i % 4);
        kernel_store_words(place, words, 2, 1, transfer_bytes);
    }
}

#endif
