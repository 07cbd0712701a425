/* SPDX-License-Identifier: Apache-2.0 */
/*
 * extent.c - a B+ tree of the free ranges by offset, beside the bins that have them by size
 * (extent_bins.h). Nodes are linked by index so that their array may move.
 *
 *     inner node   offset[i] = the first offset below child[i]
 *     leaf         offset[i] of a free range, child[i] = its number in the bins
 *
 * A node is a few cache lines: a descent touches three or four of them where a binary tree would
 * touch twenty, and the neighbours of a range that comes back are next to its place.
 *
 * Every node but the root is at least half full, so n ranges need at most n / 16 leaves and a
 * fifteenth of that above them; space_prepare counts on it.
 *
 * Invariants: leaves together hold every free range once, in the order of offsets; each inner entry
 * is filed under the first offset below it; free_bytes is the sum of the ranges; two free ranges
 * never touch. A "level" here is a level of the tree, counted from the root.
 *
 * Thread rule: none of its own; the pool's lock covers it.
 */
#include "extent.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "extent_bins.h"
#include "pool.h"

enum {
    SPACE_FANOUT = 32,
    SPACE_HALF = SPACE_FANOUT / 2,
    SPACE_LEVELS_MAX = 10, /* 16^9 ranges and more */
    SPACE_NODES_FIRST = 4
};

/* The first `count` entries are in use, in ascending order of offset. next_unused matters only
 * while the node is on the list of unused ones. */
typedef struct space_node {
    uint32_t count;
    uint32_t next_unused;
    uint64_t offset[SPACE_FANOUT];
    uint32_t child[SPACE_FANOUT];
} space_node;

/* [begin, end) is the managed part of the device. held counts the extents out, adopted ones
 * included; it bounds the free ranges and with them the nodes. */
struct tiers_space {
    uint64_t begin;
    uint64_t end;
    uint64_t free_bytes;
    uint32_t root;
    uint32_t levels; /* 1 = the root is a leaf */
    uint32_t fragments;
    uint32_t held;
    uint32_t node_count; /* allocated, node 0 included, which is never used */
    uint32_t node_fresh; /* nodes from here on were never used */
    uint32_t unused;     /* list of nodes that came back; 0 = none */
    space_node *nodes;
    extent_bins bins;
};

/* The way from the root (level 0) to an entry of a leaf (level levels - 1). */
typedef struct space_path {
    uint32_t node[SPACE_LEVELS_MAX];
    uint32_t slot[SPACE_LEVELS_MAX];
} space_path;

/* A path is made by a descent and moved by single steps. It is valid until the tree changes. */
/* ---- searching ---- */

/* The node of a path at a level. The pointer is valid until space_prepare runs, which is never in
 * the middle of a change. */
static space_node *space_at(const tiers_space *space, const space_path *path, uint32_t level)
{
    return &space->nodes[path->node[level]];
}

/* Counts the node's offsets that are at most this one. The choice in the loop is a conditional
 * move, because a branch would be guessed wrong half the time. The offsets of a node are
 * distinct. */
static uint32_t space_rank(const space_node *node, uint64_t offset)
{
    if (node->count == 0) return 0;
    const uint64_t *base = node->offset;
    for (uint32_t left = node->count; left > 1;) {
        uint32_t half = left / 2;
        base = base[half - 1] <= offset ? base + half : base;
        left -= half;
    }
    return (uint32_t)(base - node->offset) + (*base <= offset);
}

/* To the leaf where a range at this offset belongs; the leaf's slot is the number of its ranges at
 * or before the offset. In inner nodes the slot is the child that the path goes through. */
static void space_descend(const tiers_space *space, uint64_t offset, space_path *path)
{
    uint32_t at = space->root;
    for (uint32_t level = 0; level < space->levels; level++) {
        const space_node *node = &space->nodes[at];
        uint32_t rank = space_rank(node, offset);
        path->node[level] = at;
        path->slot[level] = rank;
        if (level + 1 == space->levels) break;
        if (rank > 0) path->slot[level] = rank - 1;
        at = node->child[path->slot[level]];
    }
}

/* Moves to the range before slot, over the border of leaves too; false when there is none. The path
 * leads to a range afterwards, so its slot is that of an entry. */
static bool space_step_back(const tiers_space *space, space_path *path)
{
    uint32_t level = space->levels;
    while (level > 0 && path->slot[level - 1] == 0)
        level--;
    if (level == 0) return false;
    path->slot[level - 1]--;
    for (; level < space->levels; level++) {
        const space_node *above = space_at(space, path, level - 1);
        path->node[level] = above->child[path->slot[level - 1]];
        path->slot[level] = space_at(space, path, level)->count - 1;
    }
    return true;
}

/* Makes a slot behind the leaf's last range the first one of the next leaf; false when there is no
 * range at or after the slot. After false the path is of no use. */
static bool space_step_over(const tiers_space *space, space_path *path)
{
    uint32_t level = space->levels - 1;
    if (path->slot[level] < space_at(space, path, level)->count) return true;
    while (level > 0 && path->slot[level - 1] + 1 >= space_at(space, path, level - 1)->count)
        level--;
    if (level == 0) return false;
    path->slot[level - 1]++;
    for (; level < space->levels; level++) {
        const space_node *above = space_at(space, path, level - 1);
        path->node[level] = above->child[path->slot[level - 1]];
        path->slot[level] = 0;
    }
    return true;
}

/* ---- nodes ---- */

/* Makes sure that `ranges` free ranges can exist. Nothing changes but capacities, so a failure
 * needs no undoing. */
static kvt_status space_prepare(tiers_space *space, uint64_t ranges)
{
    /* Leaves, a fifteenth of them for the levels above, each level's root and rounding; node 0. */
    uint64_t wanted = ranges / SPACE_HALF;
    wanted += wanted / (SPACE_HALF - 1) + SPACE_LEVELS_MAX + 2;
    if (bins_prepare(&space->bins, ranges) != KVT_OK) return KVT_E_MEMORY;
    if (wanted <= space->node_count) return KVT_OK;
    uint64_t count = space->node_count == 0 ? SPACE_NODES_FIRST : 2ull * space->node_count;
    if (count < wanted) count = wanted;
    if (count > UINT32_MAX) return KVT_E_MEMORY;
    /* As of the bins' ranges, most nodes that could exist never do. */
    space_node *nodes = malloc((size_t)count * sizeof *nodes);
    if (nodes == NULL) return KVT_E_MEMORY;
    if (space->nodes != NULL)
        memcpy(nodes, space->nodes, (size_t)space->node_fresh * sizeof *nodes);
    free(space->nodes);
    space->nodes = nodes;
    space->node_count = (uint32_t)count;
    return KVT_OK;
}

/* An empty node, from those that came back or from the fresh ones. space_prepare has made room, so
 * this cannot fail in the middle of a change. */
static uint32_t space_node_acquire(tiers_space *space)
{
    uint32_t node = space->unused;
    if (node != 0) {
        space->unused = space->nodes[node].next_unused;
    } else {
        node = space->node_fresh++;
        assert(node < space->node_count && "free ranges never exceed extents held plus one");
    }
    space->nodes[node].count = 0;
    return node;
}

/* Puts a node on the list of unused ones. Its memory stays, for the next split. */
static void space_node_return(tiers_space *space, uint32_t node)
{
    assert(node != 0 && node < space->node_fresh && "only a node that was acquired comes back");
    space->nodes[node].next_unused = space->unused;
    space->unused = node;
}

/* Copies `count` entries between nodes, or inside one. Source and target may overlap inside one
 * node. */
static void space_copy(space_node *target, uint32_t to, const space_node *source, uint32_t from,
                       uint32_t count)
{
    assert(to + count <= SPACE_FANOUT && from + count <= SPACE_FANOUT);
    memmove(target->offset + to, source->offset + from, count * sizeof source->offset[0]);
    memmove(target->child + to, source->child + from, count * sizeof source->child[0]);
}

/* Inserts an entry before the one at `slot`. The node is not full. The caller files the node anew
 * if the slot is the first one. */
static void space_put(space_node *node, uint32_t slot, uint64_t offset, uint32_t child)
{
    assert(node->count < SPACE_FANOUT && slot <= node->count);
    space_copy(node, slot + 1, node, slot, node->count - slot);
    node->offset[slot] = offset;
    node->child[slot] = child;
    node->count++;
}

/* Removes the entry at `slot`. The caller sees to a node that falls below half. */
static void space_cut(space_node *node, uint32_t slot)
{
    assert(slot < node->count);
    node->count--;
    space_copy(node, slot, node, slot + 1, node->count - slot);
}

/* Changes begin at a leaf and go up no further than they must. Nothing here can fail: space_prepare
 * has run. */
/* ---- changing the tree ---- */

/* Updates the levels above `level`: each entry is filed under the first offset of its node. The
 * walk ends at the first level where nothing changed: above it nothing can have changed either. */
static void space_file(tiers_space *space, const space_path *path, uint32_t level)
{
    while (level-- > 0) {
        space_node *above = space_at(space, path, level);
        uint64_t first = space->nodes[above->child[path->slot[level]]].offset[0];
        if (above->offset[path->slot[level]] == first) break;
        above->offset[path->slot[level]] = first;
    }
}

/* Cuts the full node of a level in two, making room above first. The path's entry stays in its
 * node, or is in the new one if it was in the upper half. A full node above is split before, so the
 * way up never meets a full node twice. The tree grows at the root alone. */
static void space_split(tiers_space *space, space_path *path, uint32_t level)
{
    assert(space_at(space, path, level)->count == SPACE_FANOUT && "only a full node is cut in two");
    if (level == 0) {
        assert(space->levels < SPACE_LEVELS_MAX);
        uint32_t root = space_node_acquire(space);
        const space_node *old = &space->nodes[space->root];
        space_put(&space->nodes[root], 0, old->offset[0], space->root);
        memmove(path->node + 1, path->node, space->levels * sizeof path->node[0]);
        memmove(path->slot + 1, path->slot, space->levels * sizeof path->slot[0]);
        path->node[0] = root;
        path->slot[0] = 0;
        space->root = root;
        space->levels++;
        level = 1;
    } else if (space_at(space, path, level - 1)->count == SPACE_FANOUT) {
        uint32_t before = space->levels;
        space_split(space, path, level - 1);
        level += space->levels - before;
    }
    uint32_t upper = space_node_acquire(space);
    space_node *low = space_at(space, path, level);
    space_node *high = &space->nodes[upper];
    space_node *above = space_at(space, path, level - 1);
    uint32_t slot = path->slot[level - 1];
    space_copy(high, 0, low, SPACE_HALF, SPACE_HALF);
    low->count = SPACE_HALF;
    high->count = SPACE_HALF;
    space_put(above, slot + 1, high->offset[0], upper);
    if (path->slot[level] >= SPACE_HALF) {
        path->node[level] = upper;
        path->slot[level] -= SPACE_HALF;
        path->slot[level - 1]++;
    }
}

/* Makes a node that is less than half full and its neighbour one node, or equally full. Returns
 * true when they became one, so that the level above lost an entry. The path ends above. The
 * neighbour is the left one where there is one. */
static bool space_level(tiers_space *space, const space_path *path, uint32_t level)
{
    assert(level > 0 && "the root has no neighbour");
    space_node *above = space_at(space, path, level - 1);
    assert(above->count >= 2 && "every node but the root has a neighbour");
    uint32_t left = path->slot[level - 1] > 0 ? path->slot[level - 1] - 1 : 0;
    space_node *low = &space->nodes[above->child[left]];
    space_node *high = &space->nodes[above->child[left + 1]];
    uint32_t total = low->count + high->count;
    if (total <= SPACE_FANOUT) {
        space_copy(low, low->count, high, 0, high->count);
        low->count = total;
        space_node_return(space, above->child[left + 1]);
        space_cut(above, left + 1);
        above->offset[left] = low->offset[0];
        return true;
    }
    uint32_t keep = total / 2;
    if (low->count > keep) {
        uint32_t moved = low->count - keep;
        space_copy(high, moved, high, 0, high->count);
        space_copy(high, 0, low, keep, moved);
    } else {
        uint32_t moved = keep - low->count;
        space_copy(low, low->count, high, 0, moved);
        space_copy(high, 0, high, moved, high->count - moved);
    }
    low->count = keep;
    high->count = total - keep;
    assert(low->count >= SPACE_HALF && high->count >= SPACE_HALF);
    above->offset[left] = low->offset[0];
    above->offset[left + 1] = high->offset[0];
    return false;
}

/* A new range at the path's slot. The path is of no use afterwards. The ledger grows by the range;
 * space_prepare has run. */
static void space_insert(tiers_space *space, space_path *path, uint64_t offset, uint64_t bytes)
{
    if (space_at(space, path, space->levels - 1)->count == SPACE_FANOUT)
        space_split(space, path, space->levels - 1);
    uint32_t leaf = space->levels - 1;
    uint32_t range = bins_add(&space->bins, offset, bytes / TIERS_GRAIN_BYTES);
    space_put(space_at(space, path, leaf), path->slot[leaf], offset, range);
    space_file(space, path, leaf);
    space->fragments++;
    space->free_bytes += bytes;
}

/* Takes the range at the path's slot out. The path is of no use afterwards. Joining nodes may go
 * all the way up; a root with one child gives way to it. */
static void space_remove(tiers_space *space, const space_path *path)
{
    uint32_t level = space->levels - 1;
    space_node *node = space_at(space, path, level);
    assert(path->slot[level] < node->count && space->fragments > 0);
    uint32_t range = node->child[path->slot[level]];
    space->free_bytes -= space->bins.ranges[range].grains * TIERS_GRAIN_BYTES;
    bins_drop(&space->bins, range);
    space->fragments--;
    space_cut(node, path->slot[level]);
    while (level > 0 && space_at(space, path, level)->count < SPACE_HALF) {
        bool joined = space_level(space, path, level);
        level--; /* the two nodes are filed in it */
        if (!joined) break;
    }
    const space_node *root = &space->nodes[space->root];
    if (space->levels > 1 && root->count == 1) {
        space_node_return(space, space->root);
        space->root = root->child[0];
        space->levels--;
        return; /* the way led through the old root alone */
    }
    space_file(space, path, level);
}

/* Gives the range at the path's slot another place in the same gap between held extents: the order
 * of offsets stays. It saves a removal and an insertion in the most common case, an acquisition
 * from the front of a range. */
static void space_resize(tiers_space *space, const space_path *path, uint64_t offset,
                         uint64_t bytes)
{
    uint32_t leaf = space->levels - 1;
    space_node *node = space_at(space, path, leaf);
    uint32_t slot = path->slot[leaf];
    assert(bytes > 0 && slot < node->count);
    uint32_t range = node->child[slot];
    uint64_t lost = space->bins.ranges[range].grains * TIERS_GRAIN_BYTES;
    space->free_bytes = space->free_bytes - lost + bytes;
    bins_move(&space->bins, range, offset, bytes / TIERS_GRAIN_BYTES);
    if (node->offset[slot] == offset) return;
    node->offset[slot] = offset;
    if (slot == 0) space_file(space, path, leaf);
}

/* The ledger after each change: free bytes are part of the space, there are some exactly when there
 * are ranges, and n held extents part the free space into n + 1 ranges at most, which is what
 * space_prepare has made room for. Asserts alone; a release build does nothing here. */
static void space_check(const tiers_space *space)
{
    assert(space->free_bytes <= space->end - space->begin);
    assert((space->free_bytes == 0) == (space->fragments == 0));
    assert(space->fragments <= (uint64_t)space->held + 1);
    assert(space->levels >= 1 && space->levels <= SPACE_LEVELS_MAX);
    (void)space;
}

/* ---- the interface ---- */

/* An empty space is allowed: a device that is no larger than its reserved head holds nothing. */
kvt_status tiers_space_open(uint64_t begin, uint64_t end, tiers_space **space_out)
{
    assert(begin <= end && begin % TIERS_GRAIN_BYTES == 0 && end % TIERS_GRAIN_BYTES == 0);
    tiers_space *space = calloc(1, sizeof *space);
    if (space == NULL) return KVT_E_MEMORY;
    space->begin = begin;
    space->end = end;
    space->node_fresh = 1;
    if (space_prepare(space, 1) != KVT_OK) {
        bins_free(&space->bins);
        free(space);
        return KVT_E_MEMORY;
    }
    space->root = space_node_acquire(space);
    space->levels = 1;
    space_path path = {.node[0] = space->root};
    if (end > begin) space_insert(space, &path, begin, end - begin);
    *space_out = space;
    return KVT_OK;
}

void tiers_space_close(tiers_space *space)
{
    if (space == NULL) return;
    bins_free(&space->bins);
    free(space->nodes);
    free(space);
}

/* Offset and bytes of a range by its number. The number comes from the bins and lives as long as
 * the range. */
static tiers_range space_range(const tiers_space *space, uint32_t range)
{
    assert(range != 0 && range < space->bins.range_fresh);
    const bins_range *found = &space->bins.ranges[range];
    return (tiers_range){.offset = found->offset, .bytes = found->grains * TIERS_GRAIN_BYTES};
}

/* The range that the path's slot holds. */
static tiers_range space_range_at(const tiers_space *space, const space_path *path)
{
    uint32_t leaf = space->levels - 1;
    return space_range(space, space_at(space, path, leaf)->child[path->slot[leaf]]);
}

/* The bins find the range by size, the tree finds its place by offset. Memory for held + 2 free
 * ranges is asked for first, the most that there can be once this extent is out. */
kvt_status tiers_space_acquire(tiers_space *space, uint64_t bytes, tiers_range *range_out)
{
    assert(bytes > 0 && bytes % TIERS_GRAIN_BYTES == 0);
    if (space->free_bytes == 0) return KVT_E_SPACE;
    if (space_prepare(space, (uint64_t)space->held + 2) != KVT_OK) return KVT_E_MEMORY;
    uint32_t best = bins_find(&space->bins, bytes / TIERS_GRAIN_BYTES);
    if (best == 0) best = bins_largest(&space->bins);
    tiers_range range = space_range(space, best);
    space_path path;
    space_descend(space, range.offset, &path);
    path.slot[space->levels - 1]--; /* the range itself, instead of the place after it */
    if (range.bytes > bytes) {
        space_resize(space, &path, range.offset + bytes, range.bytes - bytes);
        range.bytes = bytes;
    } else {
        space_remove(space, &path);
    }
    space->held++;
    space_check(space);
    *range_out = range;
    return KVT_OK;
}

/* Every number is checked, because it comes from a disk. A range may begin at the front, in the
 * middle or at the end of a free one, and the free one is cut accordingly. */
kvt_status tiers_space_adopt(tiers_space *space, tiers_range range)
{
    bool grained = range.offset % TIERS_GRAIN_BYTES == 0 && range.bytes % TIERS_GRAIN_BYTES == 0;
    if (!grained || range.bytes == 0 || range.offset < space->begin || range.offset > space->end)
        return KVT_E_CORRUPT;
    if (range.bytes > space->end - range.offset) return KVT_E_CORRUPT;
    space_path path;
    space_descend(space, range.offset, &path);
    if (!space_step_back(space, &path)) return KVT_E_CORRUPT;
    tiers_range found = space_range_at(space, &path);
    uint64_t end = found.offset + found.bytes;
    uint64_t range_end = range.offset + range.bytes;
    if (range_end > end) return KVT_E_CORRUPT;
    if (space_prepare(space, (uint64_t)space->held + 2) != KVT_OK) return KVT_E_MEMORY;
    if (found.offset < range.offset) {
        space_resize(space, &path, found.offset, range.offset - found.offset);
        path.slot[space->levels - 1]++;
        if (range_end < end) space_insert(space, &path, range_end, end - range_end);
    } else if (range_end < end) {
        space_resize(space, &path, range_end, end - range_end);
    } else {
        space_remove(space, &path);
    }
    space->held++;
    space_check(space);
    return KVT_OK;
}

/* The best fit need not hold the bytes behind a multiple; a range that is longer by the multiple
 * always does. */
kvt_status tiers_space_acquire_at(tiers_space *space, uint64_t bytes, uint64_t align,
                                  tiers_range *range_out)
{
    assert(bytes > 0 && bytes % TIERS_GRAIN_BYTES == 0);
    assert(align > 0 && align % TIERS_GRAIN_BYTES == 0);
    const uint64_t wanted[2] = {bytes, bytes + align - TIERS_GRAIN_BYTES};
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t found = bins_find(&space->bins, wanted[i] / TIERS_GRAIN_BYTES);
        if (found == 0) return KVT_E_SPACE;
        const tiers_range range = space_range(space, found);
        const uint64_t begin = (range.offset + align - 1) / align * align;
        if (begin - range.offset + bytes > range.bytes) continue;
        *range_out = (tiers_range){.offset = begin, .bytes = bytes};
        kvt_status status = tiers_space_adopt(space, *range_out);
        assert(status != KVT_E_CORRUPT && "the range is free and of the space");
        return status;
    }
    return KVT_E_SPACE;
}

/* Makes a range free, as one with a free neighbour on either side that it touches: so two free
 * ranges never touch, and the number of ranges is bounded by the number of extents held. It never
 * needs memory: joining needs none, and space_prepare counted on an insertion. */
void tiers_space_release(tiers_space *space, tiers_range range)
{
    assert(space->held > 0);
    assert(range.bytes > 0 && range.bytes % TIERS_GRAIN_BYTES == 0);
    assert(range.offset >= space->begin && range.offset + range.bytes <= space->end);
    uint64_t end = range.offset + range.bytes;
    space_path here;
    space_descend(space, range.offset, &here);
    space_path before = here;
    space_path after = here;
    tiers_range low = {0};
    tiers_range high = {0};
    if (space_step_back(space, &before)) low = space_range_at(space, &before);
    if (space_step_over(space, &after)) high = space_range_at(space, &after);
    assert((low.bytes == 0 || low.offset + low.bytes <= range.offset) &&
           "a range was given back twice");
    assert((high.bytes == 0 || high.offset >= end) && "a range was given back twice");
    bool joins_low = low.bytes > 0 && low.offset + low.bytes == range.offset;
    bool joins_high = high.bytes > 0 && high.offset == end;
    if (joins_low) {
        uint64_t joined = low.bytes + range.bytes + (joins_high ? high.bytes : 0);
        space_resize(space, &before, low.offset, joined);
        if (joins_high) space_remove(space, &after);
    } else if (joins_high) {
        space_resize(space, &after, range.offset, range.bytes + high.bytes);
    } else {
        space_insert(space, &here, range.offset, range.bytes);
    }
    space->held--;
    space_check(space);
}

void tiers_space_facts_get(const tiers_space *space, tiers_space_facts *out)
{
    uint32_t largest = bins_largest(&space->bins);
    *out =
        (tiers_space_facts){.capacity_bytes = space->end - space->begin,
                            .free_bytes = space->free_bytes,
                            .largest_bytes = largest == 0 ? 0 : space_range(space, largest).bytes,
                            .fragments = space->fragments,
                            .held = space->held};
}
