/* SPDX-License-Identifier: Apache-2.0 */
/*
 * extent.h - the free space of one member, in grains of TIERS_GRAIN_BYTES.
 *
 * Free ranges are kept in two orders: by offset in a B+ tree, to join a returned range with its
 * neighbours, and by size in bins (extent_bins.h), to find the best fit. Neighbouring free ranges
 * are always joined, so the number of free ranges is at most the number of extents held plus one.
 * That bound is why giving back never needs memory: taking has made room for it beforehand.
 *
 *     |held|   free   |held|held| free |held|      2 free ranges, 4 extents held
 *
 * Thread rule: none of its own; the pool's lock covers it.
 */
#ifndef TIERS_EXTENT_H
#define TIERS_EXTENT_H

#include <kvterrace/types.h>

typedef struct tiers_space tiers_space;

typedef struct tiers_range {
    uint64_t offset;
    uint64_t bytes;
} tiers_range;

/* Space from begin to end, all free; both are multiples of the grain, begin <= end. KVT_OK;
 * KVT_E_MEMORY. */
KVT_NODISCARD kvt_status tiers_space_open(uint64_t begin, uint64_t end, tiers_space **space_out);

/* Frees the space, with the account of extents still held. NULL is allowed. */
void tiers_space_close(tiers_space *space);

/*
 * Takes one extent of at most `bytes` (a multiple of the grain, not 0): from the front of the
 * smallest free range that holds all of it, else the whole of the largest free range. The caller
 * asks again for the rest. KVT_OK; KVT_E_SPACE (nothing is free); KVT_E_MEMORY.
 */
KVT_NODISCARD kvt_status tiers_space_acquire(tiers_space *space, uint64_t bytes,
                                             tiers_range *range_out);

/* Takes one extent of exactly `bytes` that begins at a multiple of `align`; both are multiples of
 * the grain. KVT_OK; KVT_E_SPACE (no free range holds it so); KVT_E_MEMORY. */
KVT_NODISCARD kvt_status tiers_space_acquire_at(tiers_space *space, uint64_t bytes, uint64_t align,
                                                tiers_range *range_out);

/* Takes exactly this range, whose numbers come from a disk. KVT_OK; KVT_E_CORRUPT (off the grain,
 * out of the space, or not wholly free); KVT_E_MEMORY. */
KVT_NODISCARD kvt_status tiers_space_adopt(tiers_space *space, tiers_range range);

/* Gives an extent back whole, exactly as taken. */
void tiers_space_release(tiers_space *space, tiers_range range);

typedef struct tiers_space_facts {
    uint64_t capacity_bytes;
    uint64_t free_bytes;
    uint64_t largest_bytes; /* largest contiguous free range */
    uint32_t fragments;     /* number of free ranges */
    uint32_t held;          /* number of extents out */
} tiers_space_facts;
void tiers_space_facts_get(const tiers_space *space, tiers_space_facts *out);

#endif
