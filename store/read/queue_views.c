/* SPDX-License-Identifier: Apache-2.0 */
/*
 * queue_views.c - finds gets of one chunk, or entries of a layered load, that would write the same
 * memory. Views themselves have been checked. Not compared are views of one memory with different
 * strides, which an engine has no way to make of one pool.
 *
 * Thread rule: the thread that begins them; nothing here is shared.
 */
#include "store/read/queue_internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* A part of a view's memory: bytes, or slots of a block. */
typedef struct view_part {
    uintptr_t pool;  /* 0 for bytes; else the pool's address */
    uint64_t block;  /* of the pool; 0 for bytes */
    uintptr_t first; /* byte or slot */
    uintptr_t end;
    uint32_t item;
} view_part;

#define VIEW_PARTS_MAX  4194304u /* of a call: a load's groups; what is beyond goes unchecked */
#define VIEW_PARTS_FEW  128u     /* that are compared without an allocation */
#define VIEW_BLOCKS_MAX 1048576u /* of a pool, one bit each */

typedef struct view_parts {
    view_part *parts;
    uint32_t count;
    uint32_t capacity;
} view_parts;

/* Adds a part. Parts beyond the bound are left out: the check is a service, and its memory is
 * bounded. */
static void views_add(view_parts *all, view_part part)
{
    if (all->count < all->capacity) all->parts[all->count++] = part;
}

/* The first address that a view has. */
static uintptr_t views_pool(const kvt_view *view)
{
    return (uintptr_t)(view->bases != NULL ? view->bases[0] : view->base[0]);
}

/* Adds the memory that is written through a view: the slots of its blocks, or one run of bytes. */
static void views_add_view(view_parts *all, const queue_view *one, uint32_t index)
{
    const kvt_view *view = one->view;
    uint32_t per = view->tokens_per_block;
    if (per == 0) {
        uintptr_t start = views_pool(view);
        bool packed = view->bases_kind != KVT_BASES_SIDES && view->bases == NULL &&
                      view->first_slot == 0 && view->base_bytes[0] == one->bytes;
        if (packed)
            views_add(all, (view_part){
                               .first = start, .end = start + view->base_bytes[0], .item = index});
        return;
    }
    uint64_t left = one->tokens, slot = view->first_slot;
    for (uint64_t i = 0; left != 0; i++) {
        uint64_t here = per - slot < left ? per - slot : left;
        views_add(all, (view_part){.pool = views_pool(view),
                                   .block = view->blocks != NULL ? view->blocks[i] : i,
                                   .first = slot,
                                   .end = slot + here,
                                   .item = index});
        left -= here;
        slot = 0;
    }
}

/* Orders parts by pool, block and first byte or slot, and equals by item, so that parts that meet
 * are neighbours and the later item is known. */
static int views_order(const void *one, const void *other)
{
    const view_part *a = one, *b = other;
    if (a->pool != b->pool) return a->pool < b->pool ? -1 : 1;
    if (a->block != b->block) return a->block < b->block ? -1 : 1;
    if (a->first != b->first) return a->first < b->first ? -1 : 1;
    return a->item < b->item ? -1 : a->item > b->item;
}

/* How many parts a view has. */
static uint64_t views_parts_of(const queue_view *one)
{
    const uint32_t per = one->view->tokens_per_block;
    return per == 0 ? 1 : ((uint64_t)one->view->first_slot + one->tokens + per - 1) / per;
}

/* Whether all parts are of one pool, and each of another block: the common case, in any order of
 * the blocks. */
static bool views_are_distinct(const view_parts *all)
{
    uint64_t words[VIEW_PARTS_FEW] = {0}, *seen = words, most = 0;
    for (uint32_t i = 0; i < all->count; i++) {
        if (all->parts[i].pool == 0 || all->parts[i].pool != all->parts[0].pool) return false;
        if (all->parts[i].block > most) most = all->parts[i].block;
    }
    if (most >= VIEW_BLOCKS_MAX) return false;
    if (most >= 64 * VIEW_PARTS_FEW) seen = calloc(most / 64 + 1, sizeof *seen);
    bool distinct = seen != NULL;
    for (uint32_t i = 0; i < all->count && distinct; i++) {
        const uint64_t block = all->parts[i].block, bit = UINT64_C(1) << (block % 64);
        distinct = (seen[block / 64] & bit) == 0;
        seen[block / 64] |= bit;
    }
    if (seen != words) free(seen);
    return distinct;
}

/* Puts the parts in order. Engines mostly submit their blocks in the order of the pool. */
static void views_sort(view_parts *all)
{
    uint32_t i = 1;
    while (i < all->count && views_order(&all->parts[i - 1], &all->parts[i]) < 0)
        i++;
    if (i < all->count) qsort(all->parts, all->count, sizeof *all->parts, views_order);
}

/* Refuses the later of two views whose parts meet. The parts are in order. A part that lies inside
 * an earlier view's is not looked at: any part that meets it meets the earlier one, too. */
static void views_compare(const queue_view *views, const view_parts *all)
{
    const view_part *outer = NULL; /* the last part that was looked at */
    for (uint32_t i = 0; i < all->count; i++) {
        const view_part *part = &all->parts[i];
        assert(i == 0 || views_order(&all->parts[i - 1], part) <= 0);
        if (outer != NULL && outer->pool == part->pool && outer->block == part->block &&
            outer->item < part->item && part->end <= outer->end)
            continue;
        outer = part;
        for (uint32_t k = i + 1; k < all->count; k++) {
            const view_part *other = &all->parts[k];
            if (other->pool != part->pool || other->block != part->block) break;
            if (other->first >= part->end) break;
            if (other->item == part->item) continue;
            *views[other->item > part->item ? other->item : part->item].status = KVT_E_ARGUMENT;
        }
    }
}

void queue_views_check(const queue_view *views, uint32_t count)
{
    if (count < 2) return;
    view_part few[VIEW_PARTS_FEW];
    uint64_t wanted = 0;
    for (uint32_t i = 0; i < count; i++)
        wanted += views_parts_of(&views[i]);
    view_parts all = {.parts = few, .capacity = VIEW_PARTS_FEW};
    if (wanted > VIEW_PARTS_FEW) {
        all.capacity = wanted < VIEW_PARTS_MAX ? (uint32_t)wanted : VIEW_PARTS_MAX;
        all.parts = malloc(all.capacity * sizeof *all.parts);
    }
    if (all.parts == NULL) return; /* the check is a service: what overlaps is undefined, no more */
    for (uint32_t i = 0; i < count; i++)
        views_add_view(&all, &views[i], i);
    if (!views_are_distinct(&all)) {
        views_sort(&all);
        views_compare(views, &all);
    }
    if (all.parts != few) free(all.parts);
}
