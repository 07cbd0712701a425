/* SPDX-License-Identifier: Apache-2.0 */
/*
 * expected_values.c - keys, layouts and contents that tell their key and version apart. Pure.
 */
#include "expected.h"

#include "base/half.h"
#include "codecs/kv_sample.h"

#include <math.h>
#include <string.h>

bool expected_lossy;

uint64_t expected_random(uint64_t *state)
{
    *state += UINT64_C(0x9e3779b97f4a7c15);
    uint64_t z = *state;
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

kvt_key expected_key_of(uint32_t number)
{
    kvt_key key = {{0}};
    memcpy(key.bytes, &number, sizeof number);
    key.bytes[30] = 0x7e;
    key.bytes[31] = 0x5a;
    return key;
}

/* 8, 12, 16, ... 32 tokens of 1 KiB. */
kvt_layout expected_layout_of(uint32_t number)
{
    return (kvt_layout){.layers = 2,
                        .kv_heads = 2,
                        .head_dim = 64,
                        .dtype = KVT_DTYPE_BF16,
                        .tokens = 8 + 4 * (number % 7)};
}

uint64_t expected_bytes_of(uint32_t number)
{
    return (uint64_t)expected_layout_of(number).tokens * 1024;
}

/* A sample of key and version; the signs of the first 32 elements, which are large, are the
 * version's bits, so that no form loses them. */
static void values_fill_lossy(uint32_t number, uint32_t version, uint16_t *elements)
{
    kvt_layout layout = expected_layout_of(number);
    codecs_kv_sample_fill(&layout, (uint64_t)version << 8 | number, elements);
    for (uint32_t i = 0; i < 32; i++)
        elements[i] = half_bf16_from_float((version >> i & 1) != 0 ? -8.0f : 8.0f);
}

/* A sample that compresses as KV does, its low bits replaced by what tells key and version apart:
 * the first 32 elements carry the version's bits, all others noise of both. */
void expected_fill(uint32_t number, uint32_t version, void *data)
{
    uint64_t bytes = expected_bytes_of(number);
    kvt_layout layout = expected_layout_of(number);
    if (expected_lossy) {
        values_fill_lossy(number, version, data);
        return;
    }
    codecs_kv_sample_fill(&layout, number % 7, data);
    uint16_t *elements = data;
    uint64_t state = ((uint64_t)number << 32) | version, noise = 0;
    for (uint64_t i = 0; i < bytes / 2; i++) {
        if (i % 32 == 0) noise = expected_random(&state);
        uint64_t low = i < 32 ? version >> i & 1 : noise >> (i % 32 * 2) & 3;
        elements[i] = (uint16_t)((elements[i] & ~3u) | low);
    }
}

/* The version that a content says it has. */
uint32_t expected_version_of(const void *data)
{
    const uint16_t *elements = data;
    uint32_t version = 0;
    for (uint32_t i = 0; i < 32; i++)
        version |= (uint32_t)(expected_lossy ? elements[i] >> 15 : elements[i] & 1) << i;
    return version;
}

/* The squared distance of a run of elements from the right ones, as a share of their own squares.
 */
static double values_distance(const uint16_t *elements, const uint16_t *right, uint64_t count)
{
    double distance = 0, squares = 0;
    for (uint64_t i = 0; i < count; i++) {
        const double wanted = (double)half_bf16_to_float(right[i]);
        const double off = (double)half_bf16_to_float(elements[i]) - wanted;
        distance += off * off;
        squares += wanted * wanted;
    }
    return distance / squares;
}

bool expected_same(uint32_t number, const void *data, const void *right)
{
    const uint64_t bytes = expected_bytes_of(number);
    if (!expected_lossy) return memcmp(data, right, bytes) == 0;
    const uint64_t count = bytes / 8; /* elements of one of four matrices */
    for (uint64_t i = 0; i < 4; i++) {
        const double distance = values_distance((const uint16_t *)data + i * count,
                                                (const uint16_t *)right + i * count, count);
        if (!(distance < EXPECTED_DISTANCE)) return false;
    }
    return true;
}
