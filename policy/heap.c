/* SPDX-License-Identifier: Apache-2.0 */
/*
 * heap.c - the 4-ary heap that heap.h describes.
 *
 * Sifting moves a hole instead of swapping items, and each item that moves writes its new place to
 * its entry. The file asks for no memory: entries.c grows the array before an entry is added.
 */
#include "policy/heap.h"

#include <assert.h>

#define HEAP_ARITY  4u
#define HEAP_ABSENT UINT32_MAX

/* Returns where an entry keeps its place in the heap. */
static uint32_t *heap_place(heap_places places, uint32_t entry)
{
    assert(places.stride >= sizeof(uint32_t));
    return (uint32_t *)(void *)(places.first + places.stride * entry);
}

/* Orders items by key, and equal ones by entry, so that the order never depends on history. */
static bool heap_before(const heap_item *a, const heap_item *b)
{
    return a->key < b->key || (a->key == b->key && a->entry < b->entry);
}

/* Puts an item at a place and writes the place to its entry. */
static void heap_put(heap *h, heap_places places, uint32_t at, heap_item item)
{
    assert(at < h->capacity);
    h->items[at] = item;
    *heap_place(places, item.entry) = at;
}

/* Fills the hole at `at` with the item, which rises or sinks to where it belongs. Rising and
 * sinking are tried in this order; at most one of them moves the hole. */
static void heap_settle(heap *h, heap_places places, uint32_t at, heap_item item)
{
    while (at > 0) {
        uint32_t parent = (at - 1) / HEAP_ARITY;
        if (!heap_before(&item, &h->items[parent])) break;
        heap_put(h, places, at, h->items[parent]);
        at = parent;
    }
    for (;;) {
        uint32_t first = at * HEAP_ARITY + 1;
        if (first >= h->count) break;
        uint32_t past = h->count - first < HEAP_ARITY ? h->count : first + HEAP_ARITY;
        uint32_t least = first;
        for (uint32_t child = first + 1; child < past; child++)
            if (heap_before(&h->items[child], &h->items[least])) least = child;
        if (!heap_before(&h->items[least], &item)) break;
        heap_put(h, places, at, h->items[least]);
        at = least;
    }
    heap_put(h, places, at, item);
}

/* Adds an entry, or moves it to where its new key belongs. */
void heap_set(heap *h, heap_places places, uint32_t entry, double key)
{
    uint32_t at = *heap_place(places, entry);
    if (at == HEAP_ABSENT) {
        assert(h->count < h->capacity);
        at = h->count++;
    } else if (h->items[at].key == key) {
        return;
    }
    heap_settle(h, places, at, (heap_item){.key = key, .entry = entry});
}

/* Takes an entry out, if it is inside; the last item fills its place. The last item may have to
 * rise as well as sink, because it comes from another subtree. */
void heap_remove(heap *h, heap_places places, uint32_t entry)
{
    uint32_t at = *heap_place(places, entry);
    if (at == HEAP_ABSENT) return;
    assert(at < h->count && h->items[at].entry == entry);
    *heap_place(places, entry) = HEAP_ABSENT;
    h->count--;
    if (at == h->count) return;
    heap_settle(h, places, at, h->items[h->count]);
}
