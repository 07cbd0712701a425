/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sequence_window.c - the pages that stay between steps: one arena for all units of a sequence,
 * lent by the DRAM tier, and per unit the window of policy/windows.h that decides who stays.
 *
 *     window.held[page]   variant that stays, by the policy
 *     place[page]         its bytes in the arena, in grains; there exactly when held is not absent
 *
 * The policy counts a page's bytes, the arena whole grains; a page that finds no room there leaves.
 *
 * Thread rule: the sequence's thread.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "sequence.h"

static uint64_t whole_grains(uint64_t bytes)
{
    return (bytes + SPARSE_GRAIN - 1) / SPARSE_GRAIN * SPARSE_GRAIN;
}

/* ---- the arena ---- */

/* In the tier's own memory where that lends it in one piece; else of the heap, and the tier's lent
 * bytes stay unused meanwhile, so that the sum is the same. */
kvt_status sparse_window_open(kvt_sparse *s)
{
    const uint64_t bytes = s->options.window_bytes[KVT_TIER_DRAM] / SPARSE_GRAIN * SPARSE_GRAIN;
    if (bytes == 0) return KVT_OK;
    kvt_status status = tiers_space_open(0, bytes, &s->space);
    if (status != KVT_OK) return status;
    tiers_pool *pool = scratch_pool(s->scratch, KVT_TIER_DRAM);
    if (scratch_reserve(s->scratch, KVT_TIER_DRAM, bytes, 0, UINT64_MAX, &s->arena_location) ==
        KVT_OK) {
        s->arena = tiers_pool_lend(pool, s->arena_location);
        if (s->arena != NULL) return KVT_OK;
        scratch_release(s->scratch, KVT_TIER_DRAM, s->arena_location);
        s->arena_location = NULL;
    }
    s->arena = aligned_alloc(SPARSE_GRAIN, bytes);
    return s->arena != NULL ? KVT_OK : KVT_E_MEMORY;
}

void sparse_window_close(kvt_sparse *s)
{
    if (s->arena_location != NULL) {
        tiers_pool_take_back(scratch_pool(s->scratch, KVT_TIER_DRAM), s->arena_location,
                             KVT_IO_READ, 0);
        scratch_release(s->scratch, KVT_TIER_DRAM, s->arena_location);
    } else {
        free(s->arena);
    }
    tiers_space_close(s->space);
    s->arena_location = NULL;
    s->arena = NULL;
    s->space = NULL;
}

kvt_status sparse_window_open_unit(kvt_sparse *s, sparse_unit *unit)
{
    const uint32_t pages = unit->paging.pages, most = pages + unit->tail.added.pages_max;
    const uint64_t units = (uint64_t)s->options.layout.layers * s->options.layout.kv_heads;
    unit->window = (windows_unit){.pages = pages,
                                  .page_tokens = unit->paging.page_tokens,
                                  .terms = &s->terms,
                                  .rule = (windows_rule)s->options.evict,
                                  .decay = s->options.decay,
                                  .capacity_bytes = s->options.window_bytes[KVT_TIER_DRAM] / units};
    unit->target_bytes = unit->window.capacity_bytes;
    s->capacity_bytes += unit->target_bytes;
    if (most == 0) return KVT_OK;
    unit->window.held = calloc(most, 1);
    unit->window.standing = calloc(most, sizeof(float));
    unit->window.order = malloc(most * sizeof(uint64_t));
    unit->place = malloc(most * sizeof *unit->place);
    if (unit->window.held == NULL || unit->window.standing == NULL || unit->window.order == NULL ||
        unit->place == NULL)
        return KVT_E_MEMORY;
    for (uint32_t i = 0; i < most; i++)
        unit->place[i] = SPARSE_NOT_HELD;
    return KVT_OK;
}

void sparse_window_close_unit(sparse_unit *unit)
{
    free(unit->window.held);
    free(unit->window.standing);
    free(unit->window.order);
    free(unit->place);
    free(unit->heat);
    unit->window = (windows_unit){.pages = 0};
    unit->place = NULL;
    unit->heat = NULL;
}

/* One piece of the arena. False: there is none so large. */
static bool arena_take(kvt_sparse *s, uint64_t bytes, uint32_t *place_out)
{
    tiers_range range;
    bytes = whole_grains(bytes);
    if (s->space == NULL || tiers_space_acquire(s->space, bytes, &range) != KVT_OK) return false;
    if (range.bytes < bytes) {
        tiers_space_release(s->space, range);
        return false;
    }
    *place_out = (uint32_t)(range.offset / SPARSE_GRAIN);
    return true;
}

/* Bytes of a page's rows. */
static uint64_t held_bytes(const sparse_unit *unit)
{
    return sparse_page_bytes(&unit->paging, unit->paging.page_tokens, PAGES_RAW);
}

static void arena_give(kvt_sparse *s, const sparse_unit *unit, uint32_t page)
{
    assert(unit->place[page] != SPARSE_NOT_HELD);
    tiers_space_release(s->space,
                        (tiers_range){.offset = (uint64_t)unit->place[page] * SPARSE_GRAIN,
                                      .bytes = whole_grains(held_bytes(unit))});
    unit->place[page] = SPARSE_NOT_HELD;
}

void sparse_window_resize(kvt_sparse *s, sparse_unit *unit, uint64_t bytes)
{
    const uint32_t count = windows_resize(&unit->window, bytes, s->left);
    for (uint32_t i = 0; i < count; i++)
        arena_give(s, unit, s->left[i]);
}

/* ---- the end of a step ---- */

/* The rows of a page that has just come, at `target`. False: its code cannot be read. */
static bool put_rows(kvt_sparse *s, const sparse_unit *unit, const sparse_item *item,
                     uint8_t *target)
{
    const uint64_t bytes = held_bytes(unit);
    const uint8_t *rows = item->variant == PAGES_RAW ? item->bytes : item->rows;
    if (rows != NULL) {
        memcpy(target, rows, bytes);
        return true;
    }
    return sparse_unit_decode(s, unit, item->page, (pages_variant)item->variant, item->bytes,
                              target, target + bytes / 2) == KVT_OK;
}

/* Puts the rows of a page that stays into the arena, in place of coarser ones where it was held
 * before. */
static void settle_page(kvt_sparse *s, sparse_unit *unit, uint32_t page, uint8_t before,
                        const sparse_item *item)
{
    const uint8_t now = unit->window.held[page];
    if (now == before || now == PAGES_ABSENT) return;
    assert(item->variant == now);
    uint32_t place = before != PAGES_ABSENT ? unit->place[page] : SPARSE_NOT_HELD;
    if (place == SPARSE_NOT_HELD && !arena_take(s, held_bytes(unit), &place))
        place = SPARSE_NOT_HELD;
    unit->place[page] = place;
    if (place != SPARSE_NOT_HELD) {
        if (put_rows(s, unit, item, s->arena + (uint64_t)place * SPARSE_GRAIN)) return;
        arena_give(s, unit, page);
    }
    unit->window.held[page] = PAGES_ABSENT;
    unit->window.used_bytes -= held_bytes(unit);
    s->stats.window_refusals++;
}

void sparse_window_step(kvt_sparse *s, uint32_t layer, uint32_t head, const float *weight,
                        const uint8_t *held, const uint8_t *variant,
                        const sparse_fetch *const *fetches, uint32_t fetch_count)
{
    sparse_unit *unit = sparse_unit_of(s, layer, head);
    windows_change change = {.kept = 0};
    if (unit->window.pages == 0) return;
    windows_step(&unit->window, weight, variant, s->left, &change);
    for (uint32_t i = 0; i < change.left; i++)
        if (held[s->left[i]] != PAGES_ABSENT) arena_give(s, unit, s->left[i]);
    for (uint32_t f = 0; f < fetch_count; f++) {
        for (uint32_t i = 0; i < fetches[f]->count; i++) {
            const sparse_item *item = &fetches[f]->items[i];
            if (item->head != head || item->bytes == NULL) continue;
            if (variant[item->page] == item->variant)
                settle_page(s, unit, item->page, held[item->page], item);
        }
    }
    s->stats.hit_bytes += change.hit_bytes;
    s->stats.missed_bytes += change.read_bytes;
    assert(unit->window.used_bytes <= unit->window.capacity_bytes);
}
