/* SPDX-License-Identifier: Apache-2.0 */
/* client_range.c - the lowest run of clear bits that is long enough. */
#include "serve/client/client_range.h"

#include <assert.h>
#include <stdlib.h>

static uint64_t units_of(const client_range *range, uint64_t bytes)
{
    return bytes / range->unit_bytes + (bytes % range->unit_bytes != 0 ? 1 : 0);
}

/* Marks units that are free as used, or the other way round. */
static void flip(client_range *range, uint64_t first, uint64_t count)
{
    for (uint64_t unit = first; unit < first + count; unit++)
        range->used[unit / 64] ^= UINT64_C(1) << unit % 64;
}

kvt_status client_range_init(client_range *range, uint64_t bytes, uint32_t unit_bytes)
{
    const uint64_t units = bytes / unit_bytes, words = units / 64 + 1;
    *range = (client_range){.units = units, .unit_bytes = unit_bytes};
    range->used = calloc(words, sizeof *range->used);
    if (range->used == NULL) return KVT_E_MEMORY;
    for (uint64_t unit = units; unit < words * 64; unit++)
        range->used[unit / 64] |= UINT64_C(1) << unit % 64;
    return KVT_OK;
}

void client_range_free(client_range *range)
{
    free(range->used);
    *range = (client_range){0};
}

bool client_range_holds(const client_range *range, uint64_t bytes)
{
    return units_of(range, bytes) <= range->units;
}

/* The first unit from `from` on that is free; the number of units when there is none. */
static uint64_t next_free(const client_range *range, uint64_t from)
{
    uint64_t word = from / 64;
    if (from >= range->units) return range->units;
    uint64_t free_bits = ~range->used[word] & (UINT64_MAX << from % 64);
    while (free_bits == 0) {
        if (++word * 64 >= range->units) return range->units;
        free_bits = ~range->used[word];
    }
    return word * 64 + (uint64_t)__builtin_ctzll(free_bits);
}

/* The first unit from `from` on that is used, at most `last`. */
static uint64_t next_used(const client_range *range, uint64_t from, uint64_t last)
{
    uint64_t word = from / 64;
    uint64_t used_bits = range->used[word] & (UINT64_MAX << from % 64);
    while (used_bits == 0 && ++word * 64 < last)
        used_bits = range->used[word];
    if (used_bits == 0) return last;
    const uint64_t unit = word * 64 + (uint64_t)__builtin_ctzll(used_bits);
    return unit < last ? unit : last;
}

bool client_range_take(client_range *range, uint64_t bytes, uint64_t *at_out)
{
    const uint64_t count = units_of(range, bytes);
    uint64_t first = next_free(range, range->lowest);
    range->lowest = first;
    while (count <= range->units && first <= range->units - count) {
        const uint64_t end = next_used(range, first, first + count);
        if (end == first + count) {
            flip(range, first, count);
            *at_out = first * range->unit_bytes;
            return true;
        }
        first = next_free(range, end);
    }
    return false;
}

void client_range_give(client_range *range, uint64_t at, uint64_t bytes)
{
    const uint64_t first = at / range->unit_bytes;
    assert(at % range->unit_bytes == 0 && first + units_of(range, bytes) <= range->units);
    flip(range, first, units_of(range, bytes));
    if (first < range->lowest) range->lowest = first;
}
