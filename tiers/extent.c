/*
 * extent.c - two treaps over one array of nodes, linked by index so that the array may move.
 *
 * Priorities come from a counter through a mixing function: the same calls give the same trees on
 * every machine, and no pattern of offsets can unbalance them. Expected depth is O(log n); all
 * walks are loops, so depth costs no stack.
 *
 * Thread rule: none of its own; the pool's lock covers it.
 */
#include "extent.h"

#include <assert.h>
#include <stdlib.h>

#include "pool.h"

enum { BY_OFFSET = 0, BY_SIZE = 1 };

#define SPACE_NODES_FIRST 16u

typedef struct space_node {
    uint64_t offset;
    uint64_t bytes;
    uint32_t left[2]; /* by tree; 0 = none, since node 0 is never used */
    uint32_t right[2];
    uint32_t priority;
} space_node;

struct tiers_space {
    uint64_t begin;
    uint64_t end;
    uint64_t free_bytes;
    uint32_t root[2];
    uint32_t fragments;
    uint32_t held;
    uint32_t node_count; /* allocated, node 0 included */
    uint32_t unused;     /* list of nodes without a range, through left[BY_OFFSET] */
    uint64_t insertions; /* the counter behind the priorities */
    space_node *nodes;
};

/* ---- the trees ---- */

/* The finalizer of splitmix64 (Steele, Lea, Flood 2014). */
static uint32_t space_mix(uint64_t value)
{
    value += 0x9e3779b97f4a7c15u;
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
    return (uint32_t)((value ^ (value >> 31)) >> 32);
}

static bool space_before(const tiers_space *space, int tree, uint32_t a, uint32_t b)
{
    const space_node *left = &space->nodes[a];
    const space_node *right = &space->nodes[b];
    if (tree == BY_SIZE && left->bytes != right->bytes) return left->bytes < right->bytes;
    return left->offset < right->offset;
}

/* Parts the tree under root into the nodes before pivot and the rest. */
static void space_split(tiers_space *space, int tree, uint32_t root, uint32_t pivot, uint32_t *low,
                        uint32_t *high)
{
    while (root != 0) {
        if (space_before(space, tree, root, pivot)) {
            *low = root;
            low = &space->nodes[root].right[tree];
            root = *low;
        } else {
            *high = root;
            high = &space->nodes[root].left[tree];
            root = *high;
        }
    }
    *low = 0;
    *high = 0;
}

/* Joins two trees of which every node of low comes before every node of high. */
static uint32_t space_merge(tiers_space *space, int tree, uint32_t low, uint32_t high)
{
    uint32_t result = 0;
    uint32_t *slot = &result;
    while (low != 0 && high != 0) {
        if (space->nodes[low].priority > space->nodes[high].priority) {
            *slot = low;
            slot = &space->nodes[low].right[tree];
            low = *slot;
        } else {
            *slot = high;
            slot = &space->nodes[high].left[tree];
            high = *slot;
        }
    }
    *slot = low != 0 ? low : high;
    return result;
}

static void space_link(tiers_space *space, int tree, uint32_t node)
{
    space_node *nodes = space->nodes;
    uint32_t *slot = &space->root[tree];
    while (*slot != 0 && nodes[*slot].priority >= nodes[node].priority) {
        bool before = space_before(space, tree, node, *slot);
        slot = before ? &nodes[*slot].left[tree] : &nodes[*slot].right[tree];
    }
    uint32_t below = *slot;
    *slot = node;
    space_split(space, tree, below, node, &nodes[node].left[tree], &nodes[node].right[tree]);
}

static void space_unlink(tiers_space *space, int tree, uint32_t node)
{
    space_node *nodes = space->nodes;
    uint32_t *slot = &space->root[tree];
    while (*slot != node) {
        assert(*slot != 0);
        bool before = space_before(space, tree, node, *slot);
        slot = before ? &nodes[*slot].left[tree] : &nodes[*slot].right[tree];
    }
    *slot = space_merge(space, tree, nodes[node].left[tree], nodes[node].right[tree]);
}

/* The free range with the greatest offset <= offset, or 0. */
static uint32_t space_find_at_or_before(const tiers_space *space, uint64_t offset)
{
    uint32_t found = 0;
    for (uint32_t at = space->root[BY_OFFSET]; at != 0;) {
        if (space->nodes[at].offset <= offset) {
            found = at;
            at = space->nodes[at].right[BY_OFFSET];
        } else {
            at = space->nodes[at].left[BY_OFFSET];
        }
    }
    return found;
}

/* The smallest free range of at least bytes, the lowest one among equals; or 0. */
static uint32_t space_find_fit(const tiers_space *space, uint64_t bytes)
{
    uint32_t found = 0;
    for (uint32_t at = space->root[BY_SIZE]; at != 0;) {
        if (space->nodes[at].bytes >= bytes) {
            found = at;
            at = space->nodes[at].left[BY_SIZE];
        } else {
            at = space->nodes[at].right[BY_SIZE];
        }
    }
    return found;
}

static uint32_t space_find_largest(const tiers_space *space)
{
    uint32_t at = space->root[BY_SIZE];
    while (at != 0 && space->nodes[at].right[BY_SIZE] != 0)
        at = space->nodes[at].right[BY_SIZE];
    return at;
}

/* ---- nodes ---- */

/* Makes sure that `ranges` free ranges can exist. */
static kvt_status space_prepare(tiers_space *space, uint64_t ranges)
{
    if (ranges + 1 <= space->node_count) return KVT_OK;
    uint64_t wanted = space->node_count == 0 ? SPACE_NODES_FIRST : 2ull * space->node_count;
    while (wanted < ranges + 1)
        wanted *= 2;
    if (wanted > UINT32_MAX) return KVT_E_MEMORY;
    space_node *nodes = realloc(space->nodes, (size_t)wanted * sizeof *nodes);
    if (nodes == NULL) return KVT_E_MEMORY;
    uint32_t first = space->node_count == 0 ? 1 : space->node_count;
    for (uint32_t i = (uint32_t)wanted; i-- > first;) {
        nodes[i] = (space_node){.left[BY_OFFSET] = space->unused};
        space->unused = i;
    }
    space->nodes = nodes;
    space->node_count = (uint32_t)wanted;
    return KVT_OK;
}

static void space_insert(tiers_space *space, uint64_t offset, uint64_t bytes)
{
    uint32_t node = space->unused;
    assert(node != 0 && "free ranges never exceed extents held plus one");
    space->unused = space->nodes[node].left[BY_OFFSET];
    space->nodes[node] =
        (space_node){.offset = offset, .bytes = bytes, .priority = space_mix(space->insertions++)};
    space_link(space, BY_OFFSET, node);
    space_link(space, BY_SIZE, node);
    space->fragments++;
    space->free_bytes += bytes;
}

static void space_remove(tiers_space *space, uint32_t node)
{
    space_unlink(space, BY_OFFSET, node);
    space_unlink(space, BY_SIZE, node);
    space->free_bytes -= space->nodes[node].bytes;
    space->fragments--;
    space->nodes[node] = (space_node){.left[BY_OFFSET] = space->unused};
    space->unused = node;
}

/* Gives a node another range in the same gap between held extents: its place in the order by
 * offset stays. */
static void space_resize(tiers_space *space, uint32_t node, uint64_t offset, uint64_t bytes)
{
    space_unlink(space, BY_SIZE, node);
    space->free_bytes = space->free_bytes - space->nodes[node].bytes + bytes;
    space->nodes[node].offset = offset;
    space->nodes[node].bytes = bytes;
    space_link(space, BY_SIZE, node);
}

/* ---- the interface ---- */

kvt_status tiers_space_open(uint64_t begin, uint64_t end, tiers_space **space_out)
{
    assert(begin <= end && begin % TIERS_GRAIN_BYTES == 0 && end % TIERS_GRAIN_BYTES == 0);
    tiers_space *space = calloc(1, sizeof *space);
    if (space == NULL) return KVT_E_MEMORY;
    space->begin = begin;
    space->end = end;
    if (space_prepare(space, 1) != KVT_OK) {
        free(space);
        return KVT_E_MEMORY;
    }
    if (end > begin) space_insert(space, begin, end - begin);
    *space_out = space;
    return KVT_OK;
}

void tiers_space_close(tiers_space *space)
{
    if (space == NULL) return;
    free(space->nodes);
    free(space);
}

kvt_status tiers_space_take(tiers_space *space, uint64_t bytes, tiers_range *range_out)
{
    assert(bytes > 0 && bytes % TIERS_GRAIN_BYTES == 0);
    if (space->free_bytes == 0) return KVT_E_SPACE;
    if (space_prepare(space, (uint64_t)space->held + 2) != KVT_OK) return KVT_E_MEMORY;
    uint32_t node = space_find_fit(space, bytes);
    if (node == 0) node = space_find_largest(space);
    uint64_t offset = space->nodes[node].offset;
    uint64_t size = space->nodes[node].bytes;
    if (size > bytes) {
        space_resize(space, node, offset + bytes, size - bytes);
        size = bytes;
    } else {
        space_remove(space, node);
    }
    space->held++;
    *range_out = (tiers_range){.offset = offset, .bytes = size};
    return KVT_OK;
}

kvt_status tiers_space_adopt(tiers_space *space, tiers_range range)
{
    bool grained = range.offset % TIERS_GRAIN_BYTES == 0 && range.bytes % TIERS_GRAIN_BYTES == 0;
    if (!grained || range.bytes == 0 || range.offset < space->begin || range.offset > space->end)
        return KVT_E_CORRUPT;
    if (range.bytes > space->end - range.offset) return KVT_E_CORRUPT;
    uint32_t node = space_find_at_or_before(space, range.offset);
    if (node == 0) return KVT_E_CORRUPT;
    uint64_t offset = space->nodes[node].offset;
    uint64_t end = offset + space->nodes[node].bytes;
    uint64_t range_end = range.offset + range.bytes;
    if (range_end > end) return KVT_E_CORRUPT;
    if (space_prepare(space, (uint64_t)space->held + 2) != KVT_OK) return KVT_E_MEMORY;
    if (offset < range.offset)
        space_resize(space, node, offset, range.offset - offset);
    else
        space_remove(space, node);
    if (range_end < end) space_insert(space, range_end, end - range_end);
    space->held++;
    return KVT_OK;
}

static void space_give_back(tiers_space *space, tiers_range range)
{
    assert(range.bytes > 0 && range.bytes % TIERS_GRAIN_BYTES == 0);
    assert(range.offset >= space->begin && range.offset + range.bytes <= space->end);
    uint64_t offset = range.offset;
    uint64_t end = range.offset + range.bytes;
    uint32_t after = space_find_at_or_before(space, end);
    if (after != 0 && space->nodes[after].offset == end) {
        end += space->nodes[after].bytes;
        space_remove(space, after);
    }
    uint32_t before = space_find_at_or_before(space, offset);
    uint64_t before_end =
        before == 0 ? 0 : space->nodes[before].offset + space->nodes[before].bytes;
    assert((before == 0 || before_end <= offset) && "a range was given back twice");
    assert(before == space_find_at_or_before(space, end - 1) && "a range was given back twice");
    if (before != 0 && before_end == offset)
        space_resize(space, before, space->nodes[before].offset, end - space->nodes[before].offset);
    else
        space_insert(space, offset, end - offset);
}

void tiers_space_release(tiers_space *space, tiers_range range)
{
    assert(space->held > 0);
    space_give_back(space, range);
    space->held--;
}

void tiers_space_trim(tiers_space *space, tiers_range tail)
{
    assert(space->held > 0);
    space_give_back(space, tail);
}

void tiers_space_facts_get(const tiers_space *space, tiers_space_facts *out)
{
    uint32_t largest = space_find_largest(space);
    *out = (tiers_space_facts){.capacity_bytes = space->end - space->begin,
                               .free_bytes = space->free_bytes,
                               .largest_bytes = largest == 0 ? 0 : space->nodes[largest].bytes,
                               .fragments = space->fragments,
                               .held = space->held};
}
