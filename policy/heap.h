/* SPDX-License-Identifier: Apache-2.0 */
/*
 * heap.h - an indexed 4-ary min-heap of entries by a double key, ties to the lower entry number.
 *
 * The order of removal is a function of the keys alone, never of the history of the array, so a
 * plan that is taken back leaves no trace in later decisions. Four children share a cache line.
 * The place of each entry is kept outside, at places + entry * stride bytes. One owner, no locks.
 */
#ifndef KVT_POLICY_HEAP_H
#define KVT_POLICY_HEAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One place of the array: items[0] has the least key, and items[4i + 1 .. 4i + 4] are the children
 * of items[i]. */
typedef struct heap_item {
    double key;
    uint32_t entry;
} heap_item;

/* The array belongs to the engine, which grows it with the entry table: count <= capacity, and an
 * entry always has a place, where the policy uses heaps at all. */
typedef struct heap {
    heap_item *items;
    uint32_t count;
    uint32_t capacity;
} heap;

/* The memory where entries keep their places (UINT32_MAX: not in the heap): the first one and the
 * stride. */
typedef struct heap_places {
    unsigned char *first;
    size_t stride;
} heap_places;

/* Inserts the entry or moves it to its new key. There is room. O(log n). A key that does not change
 * moves nothing. */
void heap_set(heap *h, heap_places places, uint32_t entry, double key);

/* Removes the entry if it is there. */
void heap_remove(heap *h, heap_places places, uint32_t entry);

#endif
