/* SPDX-License-Identifier: Apache-2.0 */
/*
 * extent_bins.h - the free ranges of a space by size: the best fit for a request, without a long
 * search.
 *
 * Sizes are counted in grains and put into bins. Up to BINS_EXACT grains every size has a bin of
 * its own; above, every doubling of the size has BINS_STEPS. Bits of two levels say which bins hold
 * anything. Inside its bin a range is a node of a treap by (size, offset), so the best fit is exact
 * and the lowest one of equals; the treaps are small, because there are many bins.
 *
 *     grains      1    2   ...  512 | 513..520  521..528 ... | 1025..1040 ...
 *     bin         0    1   ...  511 |    512       513   ... |    576     ...
 *
 * Thread rule: none of its own; the pool's lock covers it.
 */
#ifndef TIERS_EXTENT_BINS_H
#define TIERS_EXTENT_BINS_H

#include <kvterrace/types.h>

enum {
    BINS_EXACT = 512,
    BINS_STEPS = 64,
    BINS_COUNT = BINS_EXACT + 44 * BINS_STEPS, /* 2^(9 + 44) grains of 4 KiB: all of 64 bits */
    BINS_WORDS = BINS_COUNT / 64
};

/* A range. Its number is the same as long as it exists, wherever it moves. left and right are its
 * children in the treap of its bin; on the list of unused ranges left is the next one. */
typedef struct bins_range {
    uint64_t offset;
    uint64_t grains;
    uint32_t left; /* 0 = none; range 0 is never used */
    uint32_t right;
    uint32_t priority;
} bins_range;

typedef struct extent_bins {
    bins_range *ranges;
    uint32_t range_count; /* allocated, range 0 included */
    uint32_t range_fresh; /* from here on never used */
    uint32_t unused;      /* list of ranges that ended, through left */
    uint64_t insertions;  /* the counter behind the priorities */
    uint32_t root[BINS_COUNT];
    uint64_t filled[BINS_WORDS]; /* bit per bin */
    uint64_t filled_words;       /* bit per word of filled */
} extent_bins;

/* Makes sure that `ranges` can exist; all zeros is the state before. KVT_OK; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status bins_prepare(extent_bins *bins, uint64_t ranges);
void bins_free(extent_bins *bins);

/* A new range; returns its number. */
uint32_t bins_add(extent_bins *bins, uint64_t offset, uint64_t grains);
void bins_drop(extent_bins *bins, uint32_t range);

/* The range has another place and size. It goes to the bin of its new size. */
void bins_move(extent_bins *bins, uint32_t range, uint64_t offset, uint64_t grains);

/* The smallest range of at least this size, the lowest one of equals; 0 = there is none. */
uint32_t bins_find(const extent_bins *bins, uint64_t grains);

/* The largest range, or 0. */
uint32_t bins_largest(const extent_bins *bins);

#endif
