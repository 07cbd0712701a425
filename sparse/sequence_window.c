/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sequence_window.c - the pages that stay between steps: one arena for all units of a sequence,
 * lent by the DRAM tier, and per unit the window of sparse/decide/windows.h that decides who stays.
 *
 *     window.held[page]   variant that stays, by the policy
 *     place[page]         its bytes in the arena, in grains
 *     slot[page]          its place in HBM (sequence_hbm.c). One of both exactly when held is not
 *                         absent
 *
 * The policy counts a page's bytes, the arena whole grains; a page that finds no room there leaves.
 * The window of a unit is that in HBM and that in DRAM together.
 *
 * Thread rule: the sequence's thread.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "sequence.h"

/* ---- the arena ---- */

/* In the tier's own memory where that lends it in one piece; else of the heap, and the tier's lent
 * bytes stay unused meanwhile, so that the sum is the same. */
kvt_status sparse_window_open(kvt_sparse *s)
{
    const uint64_t bytes = s->options.window_bytes[KVT_TIER_DRAM] / SPARSE_GRAIN * SPARSE_GRAIN;
    if (bytes == 0) return sparse_hbm_open(s);
    kvt_status status = tiers_space_open(0, bytes, &s->space);
    if (status != KVT_OK) return status;
    tiers_pool *pool = scratch_pool(s->scratch, KVT_TIER_DRAM);
    if (scratch_reserve(s->scratch, KVT_TIER_DRAM, bytes, 0, UINT64_MAX, &s->arena_location) ==
        KVT_OK) {
        s->arena = tiers_pool_lend(pool, s->arena_location);
        if (s->arena != NULL) return sparse_hbm_open(s);
        scratch_release(s->scratch, KVT_TIER_DRAM, s->arena_location);
        s->arena_location = NULL;
    }
    s->arena = aligned_alloc(SPARSE_GRAIN, bytes);
    return s->arena != NULL ? sparse_hbm_open(s) : KVT_E_MEMORY;
}

void sparse_window_close(kvt_sparse *s)
{
    sparse_hbm_close(s);
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
    kvt_status status = sparse_hbm_open_unit(s, unit);
    if (status != KVT_OK) return status;
    unit->target_bytes = s->options.window_bytes[KVT_TIER_DRAM] / units;
    s->capacity_bytes += unit->target_bytes;
    unit->window =
        (windows_unit){.pages = pages,
                       .page_tokens = unit->paging.page_tokens,
                       .terms = &s->terms,
                       .decay = s->options.decay,
                       .capacity_bytes = unit->target_bytes + sparse_hbm_unit_bytes(unit)};
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
    sparse_hbm_close_unit(unit);
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
    bytes = sparse_whole_grains(bytes);
    if (s->space == NULL || tiers_space_acquire(s->space, bytes, &range) != KVT_OK) return false;
    if (range.bytes < bytes) {
        tiers_space_release(s->space, range);
        return false;
    }
    *place_out = (uint32_t)(range.offset / SPARSE_GRAIN);
    return true;
}

uint64_t sparse_window_page_bytes(const sparse_unit *unit)
{
    return sparse_page_bytes(&unit->paging, unit->paging.page_tokens, PAGES_RAW);
}

bool sparse_window_has_room(const sparse_unit *unit)
{
    const uint64_t bytes = unit->window.capacity_bytes - sparse_hbm_unit_bytes(unit);
    return (uint64_t)unit->dram_pages + unit->coming_down < bytes / sparse_window_page_bytes(unit);
}

bool sparse_window_take(kvt_sparse *s, sparse_unit *unit, uint32_t page)
{
    assert(unit->place[page] == SPARSE_NOT_HELD);
    if (!sparse_window_has_room(unit)) return false;
    if (!arena_take(s, sparse_window_page_bytes(unit), &unit->place[page])) return false;
    unit->dram_pages++;
    return true;
}

void sparse_window_give(kvt_sparse *s, sparse_unit *unit, uint32_t page)
{
    assert(unit->place[page] != SPARSE_NOT_HELD);
    tiers_space_release(
        s->space, (tiers_range){.offset = (uint64_t)unit->place[page] * SPARSE_GRAIN,
                                .bytes = sparse_whole_grains(sparse_window_page_bytes(unit))});
    unit->place[page] = SPARSE_NOT_HELD;
    unit->dram_pages--;
}

static bool is_placed(const sparse_unit *unit, uint32_t page)
{
    return unit->place[page] != SPARSE_NOT_HELD ||
           (unit->slot != NULL && unit->slot[page] != SPARSE_NOT_HELD);
}

/* A page that has left the window, or whose rows are to go; it may have gone with its device. */
static void leave_place(kvt_sparse *s, sparse_unit *unit, uint32_t page)
{
    if (unit->place[page] != SPARSE_NOT_HELD)
        sparse_window_give(s, unit, page);
    else if (is_placed(unit, page))
        sparse_hbm_drop(s, unit, page);
}

void sparse_window_refuse(sparse_unit *unit, uint32_t page)
{
    assert(unit->window.held[page] != PAGES_ABSENT);
    unit->window.held[page] = PAGES_ABSENT;
    unit->window.used_bytes -= sparse_window_page_bytes(unit);
}

void sparse_window_resize(kvt_sparse *s, sparse_unit *unit, uint64_t bytes)
{
    const uint32_t count =
        windows_resize(&unit->window, bytes + sparse_hbm_unit_bytes(unit), s->left);
    for (uint32_t i = 0; i < count; i++)
        leave_place(s, unit, s->left[i]);
}

/* ---- the end of a step ---- */

bool sparse_window_put_rows(kvt_sparse *s, const sparse_unit *unit, const sparse_item *item,
                            uint8_t *target)
{
    const uint64_t bytes = sparse_window_page_bytes(unit);
    const uint8_t *rows = item->variant == PAGES_RAW ? item->bytes : item->rows;
    if (rows != NULL) {
        memcpy(target, rows, bytes);
        return true;
    }
    return sparse_unit_decode(s, unit, item->page, (pages_variant)item->variant, item->bytes,
                              target, target + bytes / 2) == KVT_OK;
}

/* Puts better rows of a page in the place of those that it has. In HBM this is a move, and without
 * one the page keeps its rows. */
static void improve_page(kvt_sparse *s, uint32_t layer, sparse_unit *unit, uint8_t before,
                         const sparse_item *item, bool waits)
{
    const uint32_t page = item->page;
    if (unit->place[page] == SPARSE_NOT_HELD) {
        if (!sparse_hbm_replace(s, layer, unit, item, waits)) unit->window.held[page] = before;
    } else if (!sparse_window_put_rows(s, unit, item, sparse_window_rows(s, unit, page))) {
        sparse_window_give(s, unit, page);
        sparse_window_refuse(unit, page);
        s->stats.window_refusals++;
    }
}

/* Puts the rows of a page that stays and has no place into the arena. */
static void settle_page(kvt_sparse *s, sparse_unit *unit, uint32_t page, const sparse_item *item)
{
    if (item != NULL && sparse_window_take(s, unit, page)) {
        if (sparse_window_put_rows(s, unit, item, sparse_window_rows(s, unit, page))) return;
        sparse_window_give(s, unit, page);
    }
    sparse_window_refuse(unit, page);
    s->stats.window_refusals++;
}

void sparse_window_step(kvt_sparse *s, uint32_t layer, uint32_t head, const float *weight,
                        const uint8_t *held, const uint8_t *variant, sparse_item *const *items,
                        bool waits)
{
    sparse_unit *unit = sparse_unit_of(s, layer, head);
    windows_change change = {.kept = 0};
    uint32_t placeless = 0;
    if (unit->window.pages == 0) return;
    windows_step(&unit->window, weight, variant, s->left, &change);
    for (uint32_t i = 0; i < change.left; i++)
        leave_place(s, unit, s->left[i]);
    for (uint32_t i = 0; i < change.kept; i++) {
        const uint32_t page = windows_kept(&unit->window, i);
        if (!is_placed(unit, page))
            s->placeless[placeless++] = page;
        else if (items[page] != NULL)
            improve_page(s, layer, unit, held[page], items[page], waits);
    }
    sparse_hbm_step(s, layer, unit, items, waits);
    for (uint32_t i = 0; i < placeless; i++) {
        const uint32_t page = s->placeless[i];
        if (!is_placed(unit, page)) settle_page(s, unit, page, items[page]);
    }
    s->stats.hit_bytes += change.hit_bytes;
    s->stats.missed_bytes += change.read_bytes;
    assert(unit->window.used_bytes <= unit->window.capacity_bytes);
}

/* ---- single tokens ---- */

kvt_status sparse_window_open_singles(kvt_sparse *s, const sparse_work_room *room,
                                      sparse_head_work *head)
{
    if (s->options.single_share == 0.0f) return KVT_OK;
    if (s->singles.table == NULL) {
        kvt_status status = sparse_singles_work_open(s->zone_tokens, s->group,
                                                     s->options.layout.head_dim, &s->singles);
        if (status != KVT_OK) return status;
    }
    return sparse_singles_open(s->zone_tokens, room->pages, room->lanes, s->group, &head->singles);
}

void sparse_window_choose_singles(kvt_sparse *s, kvt_sparse_step *step, const float *queries)
{
    const uint32_t width = s->group * s->options.layout.head_dim;
    for (uint32_t h = 0; h < s->options.layout.kv_heads; h++) {
        const sparse_unit *unit = sparse_unit_of(s, step->layer, h);
        sparse_head_work *head = &step->heads[h];
        uint8_t *single = head->singles.page;
        uint32_t pages = 0;
        if (single == NULL) continue;
        for (uint32_t page = 0; page < unit->paging.pages; page++) {
            single[page] = unit->single_codes.book != NULL &&
                           unit->place[page] != SPARSE_NOT_HELD &&
                           head->variant[page] == head->held[page];
            pages += single[page];
        }
        head->singles.count = head->singles.tokens = 0;
        if (pages > 0)
            sparse_singles_choose(&unit->single_codes, &unit->index, &unit->paging,
                                  queries + (size_t)h * width, s->scale, s->options.single_share,
                                  &s->singles, &head->work, &head->singles);
    }
}

uint32_t sparse_window_cut(const kvt_sparse *s, const sparse_unit *unit,
                           const sparse_head_work *head, uint32_t page, kvt_sparse_page *pages)
{
    const kvt_sparse_page whole = *pages;
    const uint32_t first = sparse_page_first(&unit->paging, page);
    uint32_t runs = 0;
    for (uint32_t i = 0, count; i < whole.tokens; i += count) {
        for (count = 0; i + count < whole.tokens; count++)
            if (!singles_is_chosen(&head->singles, first + i + count)) break;
        if (count > 0) {
            pages[runs] = whole;
            pages[runs].k = (const uint8_t *)whole.k + (uint64_t)i * s->row_bytes;
            pages[runs].v = (const uint8_t *)whole.v + (uint64_t)i * s->row_bytes;
            pages[runs].positions = whole.positions + i;
            pages[runs++].tokens = count;
        } else {
            count = 1;
        }
    }
    return runs;
}
