/* SPDX-License-Identifier: Apache-2.0 */
/*
 * element.h - one element of an array of fp16, bf16 or fp32 as a float, by base/half.h, so
 * that every instruction set and compiler gives the same bits. Thread rule: pure functions.
 */
#ifndef CODECS_ELEMENT_H
#define CODECS_ELEMENT_H

#include "base/half.h"

#include <kvterrace/types.h>

#include <string.h>

/* Element `index` of an array of dtype FP16, BF16 or FP32; no alignment is needed. */
static inline float codecs_element_load(const uint8_t *source, uint64_t index, uint8_t dtype)
{
    uint16_t half;
    if (dtype == KVT_DTYPE_FP32) {
        float value;
        memcpy(&value, source + index * sizeof value, sizeof value);
        return value;
    }
    memcpy(&half, source + index * sizeof half, sizeof half);
    return dtype == KVT_DTYPE_BF16 ? half_bf16_to_float(half) : half_to_float(half);
}

static inline void codecs_element_store(uint8_t *target, uint64_t index, uint8_t dtype, float value)
{
    if (dtype == KVT_DTYPE_FP32) {
        memcpy(target + index * sizeof value, &value, sizeof value);
        return;
    }
    const uint16_t half =
        dtype == KVT_DTYPE_BF16 ? half_bf16_from_float(value) : half_from_float(value);
    memcpy(target + index * sizeof half, &half, sizeof half);
}

#endif
