/* SPDX-License-Identifier: Apache-2.0 */
/*
 * expected_values.c - keys, layouts and contents that tell their key and version apart. Pure.
 */
#include "expected.h"

#include "codecs/kv_sample.h"

#include <string.h>

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

/* A sample that compresses as KV does, its low bits replaced by what tells key and version apart:
 * the first 32 elements carry the version's bits, all others noise of both. */
void expected_fill(uint32_t number, uint32_t version, void *data)
{
    uint64_t bytes = expected_bytes_of(number);
    kvt_layout layout = expected_layout_of(number);
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
        version |= (uint32_t)(elements[i] & 1) << i;
    return version;
}
