/* SPDX-License-Identifier: Apache-2.0 */
/*
 * extent_bins.c - the free ranges of a space by size: one treap per bin, the nodes linked by index,
 * so that their array may move. The file knows no order by offset; extent.c keeps that.
 *
 * Priorities come from a counter through a mixing function: the same calls give the same treaps on
 * every machine, and no pattern of offsets can unbalance them. All walks are loops.
 *
 * Invariants: a range is in the treap of the bin that its size names; a parent's priority is at
 * least its children's; the bits say which roots are not 0.
 *
 * Thread rule: none of its own; the pool's lock covers it.
 */
#include "extent_bins.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(BINS_COUNT % 64 == 0 && BINS_WORDS <= 64, "two levels of bits cover all bins");

/* ---- which bin ---- */

/* The bin of a size: exact up to BINS_EXACT grains, above in BINS_STEPS steps of each doubling.
 * Larger sizes never have a smaller bin, so any range of a later bin is large enough. */
static uint32_t bins_index(uint64_t grains)
{
    assert(grains > 0);
    if (grains <= BINS_EXACT) return (uint32_t)grains - 1;
    /* 513..1024 are the first doubling: its steps have 8 grains, those of the next one 16. */
    uint32_t doubling = 63 - (uint32_t)__builtin_clzll(grains - 1) - 9;
    uint32_t step = (uint32_t)((grains - 1) >> (doubling + 3)) - BINS_STEPS;
    assert(step < BINS_STEPS && "a doubling has so many steps");
    return BINS_EXACT + doubling * BINS_STEPS + step;
}

/* The first bin from this one on that holds anything, or BINS_COUNT. Two words are read at most,
 * and one bit of the upper level names the second. */
static uint32_t bins_next_filled(const extent_bins *bins, uint32_t bin)
{
    if (bin >= BINS_COUNT) return BINS_COUNT;
    uint32_t word = bin / 64;
    uint64_t bits = bins->filled[word] & UINT64_MAX << (bin % 64);
    if (bits == 0) {
        uint64_t words = word == 63 ? 0 : bins->filled_words & UINT64_MAX << (word + 1);
        if (words == 0) return BINS_COUNT;
        word = (uint32_t)__builtin_ctzll(words);
        bits = bins->filled[word];
    }
    return word * 64 + (uint32_t)__builtin_ctzll(bits);
}

/* ---- one treap ---- */

/* The finalizer of splitmix64 (Steele, Lea, Flood 2014). Consecutive counters give independent
 * priorities, which keeps the treaps shallow. */
static uint32_t bins_mix(uint64_t value)
{
    value += 0x9e3779b97f4a7c15u;
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
    return (uint32_t)((value ^ (value >> 31)) >> 32);
}

/* The order inside a treap: by size, of equals by offset. */
static bool bins_before(const bins_range *a, const bins_range *b)
{
    return a->grains != b->grains ? a->grains < b->grains : a->offset < b->offset;
}

/* Puts a range into a treap; below the place that its priority gives it, the tree is parted into
 * the ranges before it and those after it. The place is found by priority; the parts below keep
 * their own order. */
static void bins_link(extent_bins *bins, uint32_t *slot, uint32_t range)
{
    bins_range *ranges = bins->ranges;
    bins_range *added = &ranges[range];
    assert(range != 0 && range < bins->range_fresh);
    while (*slot != 0 && ranges[*slot].priority >= added->priority)
        slot = bins_before(added, &ranges[*slot]) ? &ranges[*slot].left : &ranges[*slot].right;
    uint32_t below = *slot;
    uint32_t *low = &added->left;
    uint32_t *high = &added->right;
    *slot = range;
    while (below != 0) {
        bool before = bins_before(&ranges[below], added);
        uint32_t **side = before ? &low : &high;
        **side = below;
        *side = before ? &ranges[below].right : &ranges[below].left;
        below = **side;
    }
    *low = 0;
    *high = 0;
}

/* Takes a range out of its treap and merges its two subtrees by priority. The range's size and
 * offset must still be those that it was linked with. */
static void bins_unlink(extent_bins *bins, uint32_t *slot, uint32_t range)
{
    bins_range *ranges = bins->ranges;
    const bins_range *gone = &ranges[range];
    while (*slot != range) {
        assert(*slot != 0);
        slot = bins_before(gone, &ranges[*slot]) ? &ranges[*slot].left : &ranges[*slot].right;
    }
    uint32_t low = gone->left;
    uint32_t high = gone->right;
    while (low != 0 && high != 0) {
        if (ranges[low].priority > ranges[high].priority) {
            *slot = low;
            slot = &ranges[low].right;
            low = *slot;
        } else {
            *slot = high;
            slot = &ranges[high].left;
            high = *slot;
        }
    }
    *slot = low != 0 ? low : high;
}

/* ---- the interface ---- */

/* Numbers of ranges stay valid when the array moves, which is why ranges are named by number. */
kvt_status bins_prepare(extent_bins *bins, uint64_t ranges)
{
    if (ranges + 1 <= bins->range_count) return KVT_OK;
    uint64_t count = 2ull * bins->range_count;
    if (count < ranges + 1) count = ranges + 1;
    if (count > UINT32_MAX) return KVT_E_MEMORY;
    /* Most ranges that could exist never do: what realloc would copy of them would take memory. */
    bins_range *grown = malloc((size_t)count * sizeof *grown);
    if (grown == NULL) return KVT_E_MEMORY;
    if (bins->ranges != NULL) memcpy(grown, bins->ranges, bins->range_fresh * sizeof *grown);
    free(bins->ranges);
    bins->ranges = grown;
    bins->range_count = (uint32_t)count;
    if (bins->range_fresh == 0) bins->range_fresh = 1;
    return KVT_OK;
}

void bins_free(extent_bins *bins)
{
    free(bins->ranges);
}

/* Puts a range into the bin of its size. The range is in no treap before. */
static void bins_insert(extent_bins *bins, uint32_t range)
{
    uint32_t bin = bins_index(bins->ranges[range].grains);
    bins->filled[bin / 64] |= UINT64_C(1) << (bin % 64);
    bins->filled_words |= UINT64_C(1) << (bin / 64);
    bins_link(bins, &bins->root[bin], range);
}

/* Takes a range out of its bin, before its size may change. */
static void bins_remove(extent_bins *bins, uint32_t range)
{
    uint32_t bin = bins_index(bins->ranges[range].grains);
    bins_unlink(bins, &bins->root[bin], range);
    if (bins->root[bin] != 0) return;
    bins->filled[bin / 64] &= ~(UINT64_C(1) << (bin % 64));
    if (bins->filled[bin / 64] == 0) bins->filled_words &= ~(UINT64_C(1) << (bin / 64));
}

uint32_t bins_add(extent_bins *bins, uint64_t offset, uint64_t grains)
{
    uint32_t range = bins->unused;
    if (range != 0) {
        bins->unused = bins->ranges[range].left;
    } else {
        range = bins->range_fresh++;
        assert(range < bins->range_count && "free ranges never exceed extents held plus one");
    }
    bins->ranges[range] =
        (bins_range){.offset = offset, .grains = grains, .priority = bins_mix(bins->insertions++)};
    bins_insert(bins, range);
    return range;
}

void bins_drop(extent_bins *bins, uint32_t range)
{
    assert(range != 0 && range < bins->range_fresh);
    bins_remove(bins, range);
    bins->ranges[range].left = bins->unused;
    bins->unused = range;
}

void bins_move(extent_bins *bins, uint32_t range, uint64_t offset, uint64_t grains)
{
    bins_remove(bins, range);
    bins->ranges[range].offset = offset;
    bins->ranges[range].grains = grains;
    bins_insert(bins, range);
}

/* Inside the bin of the size itself some ranges may be smaller, so its treap is searched; in any
 * later bin every range fits, so the leftmost one is the answer. */
uint32_t bins_find(const extent_bins *bins, uint64_t grains)
{
    const bins_range *ranges = bins->ranges;
    uint32_t bin = bins_index(grains);
    uint32_t found = 0;
    for (uint32_t at = bins->root[bin]; at != 0;) {
        bool fits = ranges[at].grains >= grains;
        if (fits) found = at;
        at = fits ? ranges[at].left : ranges[at].right;
    }
    if (found != 0) return found;
    bin = bins_next_filled(bins, bin + 1);
    if (bin == BINS_COUNT) return 0;
    found = bins->root[bin];
    while (ranges[found].left != 0)
        found = ranges[found].left;
    assert(ranges[found].grains >= grains && "every size in a later bin is larger");
    return found;
}

/* The last filled bin holds the largest sizes, and its rightmost range is the largest of them. */
uint32_t bins_largest(const extent_bins *bins)
{
    if (bins->filled_words == 0) return 0;
    uint32_t word = 63 - (uint32_t)__builtin_clzll(bins->filled_words);
    uint32_t bin = word * 64 + 63 - (uint32_t)__builtin_clzll(bins->filled[word]);
    uint32_t found = bins->root[bin];
    while (bins->ranges[found].right != 0)
        found = bins->ranges[found].right;
    return found;
}
