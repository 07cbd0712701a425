/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sequence_hbm.c - the part of a sequence's windows that lies in a GPU's memory: the pages of a
 * unit that stand highest. A page is there or in DRAM, not in both.
 *
 *     arena --copy--> block --stream--> slot     a page goes up; the block has its rows meanwhile
 *     slot --stream--> block --copy--> arena     a page comes down; the slot has them meanwhile
 *
 * Every unit has the same number of slots, a page each, in one object of the HBM tier. Moves begin
 * when a step ends and are over when somebody looks next; nothing waits for them but the warm-up
 * and the close. A page that goes up into a full window begins with the way down of the page whose
 * slot it takes, so that neither window ever holds more than its bytes.
 *
 * Invariants: a page with a slot has no place in the arena; a slot has one page, or a move that
 * ends by freeing it; a move of a layer with a step under way ends with that step at the earliest,
 * so that rows stay where the step has named them. A page whose move fails is not resident any
 * more, and is at rest.
 *
 * Thread rule: the sequence's thread, but for sparse_hbm_read.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "sequence.h"

static tiers_pool *hbm_pool(const kvt_sparse *s)
{
    return scratch_pool(s->scratch, KVT_TIER_HBM);
}

static uint64_t slot_offset(const kvt_sparse *s, const sparse_unit *unit, uint32_t slot)
{
    const uint64_t number = (uint64_t)(unit - s->units) * s->hbm.slots + slot;
    return number * s->hbm.slot_bytes;
}

/* ---- room ---- */

/* Bytes of a slot: whole grains, because objects of a device are. */
static uint64_t slot_bytes_of(const sparse_paging *paging)
{
    return sparse_whole_grains(sparse_page_bytes(paging, paging->page_tokens, PAGES_RAW));
}

static uint32_t slots_of(const kvt_sparse *s)
{
    const kvt_sparse_options *o = &s->options;
    const uint64_t units = (uint64_t)o->layout.layers * o->layout.kv_heads;
    const uint64_t slots = o->window_bytes[KVT_TIER_HBM] / units / slot_bytes_of(&s->tail_page);
    /* More than all pages that there may ever be are of no use. */
    const uint64_t most = o->tokens_max / s->tail_page.page_tokens + 1;
    return (uint32_t)(slots < most ? slots : most);
}

uint64_t sparse_hbm_bytes(const kvt_sparse *s)
{
    const uint64_t units = (uint64_t)s->options.layout.layers * s->options.layout.kv_heads;
    return units * slots_of(s) * slot_bytes_of(&s->tail_page);
}

/* An object in one piece on one device: an engine's kernels have one address space. */
kvt_status sparse_hbm_open(kvt_sparse *s)
{
    sparse_hbm *hbm = &s->hbm;
    if (s->options.window_bytes[KVT_TIER_HBM] == 0) return KVT_OK;
    hbm->slots = slots_of(s);
    hbm->slot_bytes = (uint32_t)slot_bytes_of(&s->tail_page);
    const uint64_t bytes = sparse_hbm_bytes(s);
    tiers_pool_facts facts;
    kvt_status status = KVT_E_SPACE;
    tiers_pool_facts_get(hbm_pool(s), &facts);
    for (uint32_t i = 0; i < facts.member_count; i++) {
        tiers_location *location;
        const kvt_status reserved =
            scratch_reserve(s->scratch, KVT_TIER_HBM, bytes, 0, UINT64_C(1) << i, &location);
        if (reserved != KVT_OK) continue;
        hbm->address = tiers_pool_lend_address(hbm_pool(s), location, NULL);
        if (hbm->address != 0) {
            hbm->location = location;
            break;
        }
        if (location->extent_count == 1) status = KVT_E_UNSUPPORTED;
        scratch_release(s->scratch, KVT_TIER_HBM, location);
    }
    return hbm->location != NULL ? KVT_OK : status;
}

kvt_status sparse_hbm_open_unit(kvt_sparse *s, sparse_unit *unit)
{
    const uint32_t most = unit->paging.pages + unit->tail.added.pages_max;
    if (s->hbm.location == NULL || most == 0) return KVT_OK;
    unit->slot = malloc(most * sizeof *unit->slot);
    unit->slot_page = malloc(s->hbm.slots * sizeof *unit->slot_page);
    if (unit->slot == NULL || unit->slot_page == NULL) return KVT_E_MEMORY;
    for (uint32_t i = 0; i < most; i++)
        unit->slot[i] = SPARSE_NOT_HELD;
    for (uint32_t i = 0; i < s->hbm.slots; i++)
        unit->slot_page[i] = SPARSE_NOT_HELD;
    unit->slots = s->hbm.slots;
    return KVT_OK;
}

void sparse_hbm_close_unit(sparse_unit *unit)
{
    free(unit->slot);
    free(unit->slot_page);
    unit->slot = unit->slot_page = NULL;
}

void sparse_hbm_close(kvt_sparse *s)
{
    sparse_hbm *hbm = &s->hbm;
    for (uint32_t i = 0; i < SPARSE_MOVES_MAX; i++)
        sparse_block_free(hbm->moves[i].block);
    if (hbm->location != NULL) {
        tiers_pool_take_back(hbm_pool(s), hbm->location, KVT_IO_READ, 0);
        scratch_release(s->scratch, KVT_TIER_HBM, hbm->location);
    }
    free(hbm->chosen);
    *hbm = (sparse_hbm){.location = NULL};
}

/* ---- pages ---- */

static bool is_in_slot(const sparse_unit *unit, uint32_t page)
{
    return unit->slot != NULL && unit->slot[page] != SPARSE_NOT_HELD &&
           (unit->slot[page] & SPARSE_MOVING) == 0;
}

bool sparse_hbm_has_lost(const kvt_sparse *s, const sparse_unit *unit, uint32_t page)
{
    return s->hbm.location != NULL && is_in_slot(unit, page) &&
           (s->hbm.lost || !tiers_pool_serves(hbm_pool(s), s->hbm.location));
}

const uint8_t *sparse_hbm_find(const kvt_sparse *s, const sparse_unit *unit, uint32_t page,
                               kvt_tier *tier_out)
{
    const uint32_t slot = unit->slot[page];
    assert(slot != SPARSE_NOT_HELD);
    *tier_out = is_in_slot(unit, page) ? KVT_TIER_HBM : KVT_TIER_DRAM;
    if (*tier_out == KVT_TIER_DRAM)
        return sparse_block_memory(s->hbm.moves[slot & ~SPARSE_MOVING].block);
    const uint64_t address = s->hbm.address + slot_offset(s, unit, slot & ~SPARSE_LEAVES);
    return (const uint8_t *)(uintptr_t)address;
}

/* The move that brings a page down. */
static sparse_move *move_down_of(kvt_sparse *s, const sparse_unit *unit, uint32_t page)
{
    sparse_move *move = s->hbm.moves;
    while (move->state != MOVE_DOWN || move->unit != unit || move->down != page)
        move++; /* the page has one */
    assert(move < s->hbm.moves + SPARSE_MOVES_MAX);
    return move;
}

void sparse_hbm_drop(kvt_sparse *s, sparse_unit *unit, uint32_t page)
{
    const uint32_t slot = unit->slot[page];
    assert(slot != SPARSE_NOT_HELD);
    if (slot & SPARSE_MOVING) {
        sparse_move *move = &s->hbm.moves[slot & ~SPARSE_MOVING];
        assert(move->up == page && move->unit == unit);
        move->up = SPARSE_NOT_HELD;
        unit->slot_page[move->slot] = SPARSE_MOVING; /* no page; the move frees it */
    } else if (slot & SPARSE_LEAVES) {
        move_down_of(s, unit, page)->down = SPARSE_NOT_HELD;
        unit->coming_down--;
    } else {
        unit->slot_page[slot] = SPARSE_NOT_HELD;
    }
    unit->slot[page] = SPARSE_NOT_HELD;
}

/* ---- moves ---- */

static void start_up(kvt_sparse *s, sparse_move *move)
{
    move->state = MOVE_UP;
    s->stats.moves++;
    sparse_block_start_at(move->block, 0, hbm_pool(s), KVT_IO_WRITE, s->hbm.location,
                          slot_offset(s, move->unit, move->slot), s->hbm.slot_bytes);
}

static void start_down(kvt_sparse *s, sparse_move *move)
{
    move->state = MOVE_DOWN;
    s->stats.moves++;
    sparse_block_start_at(move->block, s->hbm.slot_bytes, hbm_pool(s), KVT_IO_READ, s->hbm.location,
                          slot_offset(s, move->unit, move->slot), s->hbm.slot_bytes);
}

/* A page is in its slot, or nowhere. */
static void end_up(sparse_move *move, bool moved)
{
    sparse_unit *unit = move->unit;
    const bool stays = moved && move->up != SPARSE_NOT_HELD;
    unit->slot_page[move->slot] = stays ? move->up : SPARSE_NOT_HELD;
    if (move->up != SPARSE_NOT_HELD) unit->slot[move->up] = stays ? move->slot : SPARSE_NOT_HELD;
    if (move->up != SPARSE_NOT_HELD && !stays) sparse_window_refuse(unit, move->up);
    move->state = MOVE_FREE;
}

/* A page is in the arena, or nowhere; its slot is that of the page that goes up. */
static void end_down(kvt_sparse *s, sparse_move *move, bool moved)
{
    sparse_unit *unit = move->unit;
    const uint32_t page = move->down;
    if (page != SPARSE_NOT_HELD) {
        unit->slot[page] = SPARSE_NOT_HELD;
        unit->coming_down--;
        if (moved && sparse_window_take(s, unit, page))
            memcpy(sparse_window_rows(s, unit, page),
                   sparse_block_memory(move->block) + s->hbm.slot_bytes,
                   sparse_window_page_bytes(unit));
        else
            sparse_window_refuse(unit, page);
        move->down = SPARSE_NOT_HELD;
    }
    if (move->up != SPARSE_NOT_HELD && !s->hbm.lost)
        start_up(s, move);
    else
        end_up(move, false);
}

static void end_move(kvt_sparse *s, sparse_move *move, kvt_status status)
{
    if (status == KVT_E_GONE) s->hbm.lost = true;
    if (status != KVT_OK) s->stats.move_failures++;
    if (move->state == MOVE_DOWN)
        end_down(s, move, status == KVT_OK);
    else
        end_up(move, status == KVT_OK);
}

/* Whether a move may end: no step relies on where its rows are. */
static bool may_end(kvt_sparse *s, const sparse_move *move, uint32_t layer)
{
    if (move->state == MOVE_FREE) return false;
    return move->layer == layer || sparse_step_find(s, move->layer) == NULL;
}

void sparse_hbm_collect(kvt_sparse *s, uint32_t layer)
{
    if (s->hbm.location == NULL) return;
    for (uint32_t i = 0; i < SPARSE_MOVES_MAX; i++) {
        sparse_move *move = &s->hbm.moves[i];
        if (!may_end(s, move, layer)) continue;
        const kvt_status status = sparse_block_try(move->block);
        if (status != KVT_BUSY) end_move(s, move, status);
    }
}

void sparse_hbm_settle(kvt_sparse *s, uint32_t layer)
{
    if (s->hbm.location == NULL) return;
    for (uint32_t i = 0; i < SPARSE_MOVES_MAX; i++) {
        sparse_move *move = &s->hbm.moves[i];
        while (move->state != MOVE_FREE && move->layer == layer)
            end_move(s, move, sparse_block_wait(move->block));
    }
}

/* A move with memory. NULL: all are under way, or there is no memory. */
static sparse_move *find_move(kvt_sparse *s)
{
    for (uint32_t i = 0; i < SPARSE_MOVES_MAX; i++) {
        sparse_move *move = &s->hbm.moves[i];
        if (move->state != MOVE_FREE) continue;
        if (move->block != NULL && sparse_block_memory(move->block) == NULL) {
            sparse_block_free(move->block); /* a device has its memory */
            move->block = NULL;
        }
        if (move->block == NULL) move->block = sparse_block_make(2 * (uint64_t)s->hbm.slot_bytes);
        return move->block != NULL ? move : NULL;
    }
    return NULL;
}

/* The same, after one that may end has ended, where the caller waits. */
static sparse_move *wait_for_move(kvt_sparse *s, uint32_t layer, bool waits)
{
    sparse_move *move = find_move(s);
    for (uint32_t i = 0; i < SPARSE_MOVES_MAX && move == NULL && waits; i++) {
        sparse_move *other = &s->hbm.moves[i];
        while (may_end(s, other, layer))
            end_move(s, other, sparse_block_wait(other->block));
        move = find_move(s);
    }
    return s->hbm.lost ? NULL : move;
}

/* ---- the end of a step ---- */

bool sparse_hbm_replace(kvt_sparse *s, uint32_t layer, sparse_unit *unit, const sparse_item *item,
                        bool waits)
{
    const uint32_t slot = unit->slot[item->page];
    if (slot & (SPARSE_MOVING | SPARSE_LEAVES)) return false;
    sparse_move *move = wait_for_move(s, layer, waits);
    if (move == NULL) return false;
    if (!sparse_window_put_rows(s, unit, item, sparse_block_memory(move->block))) return false;
    *move = (sparse_move){.block = move->block,
                          .unit = unit,
                          .layer = layer,
                          .slot = slot,
                          .up = item->page,
                          .down = SPARSE_NOT_HELD};
    unit->slot[item->page] = SPARSE_MOVING | (uint32_t)(move - s->hbm.moves);
    start_up(s, move);
    return true;
}

/* A slot that is free, or else one whose page is not chosen; from *at on. False: there is none. */
static bool find_slot(const kvt_sparse *s, const sparse_unit *unit, bool is_free, uint32_t *at)
{
    for (; *at < unit->slots; ++*at) {
        const uint32_t page = unit->slot_page[*at];
        if (is_free ? page == SPARSE_NOT_HELD
                    : page < unit->window.pages && unit->slot[page] == *at && !s->hbm.chosen[page])
            return true;
    }
    return false;
}

/* The page of a slot makes way: into DRAM when its window has a place, else it is at rest alone. */
static void make_way(sparse_unit *unit, sparse_move *move)
{
    const uint32_t page = unit->slot_page[move->slot];
    if (page == SPARSE_NOT_HELD) return;
    if (sparse_window_has_room(unit)) {
        unit->coming_down++;
        unit->slot[page] |= SPARSE_LEAVES;
        move->down = page;
    } else {
        unit->slot[page] = SPARSE_NOT_HELD;
        sparse_window_refuse(unit, page);
    }
}

/* Begins to move a page up. False: there is no slot, or no move. */
static bool raise_page(kvt_sparse *s, uint32_t layer, sparse_unit *unit, uint32_t page,
                       const sparse_item *item, bool waits)
{
    sparse_move *move = wait_for_move(s, layer, waits);
    uint32_t slot = 0;
    if (move == NULL) return false;
    if (!find_slot(s, unit, true, &slot)) {
        slot = 0;
        if (!find_slot(s, unit, false, &slot)) return false;
    }
    uint8_t *target = sparse_block_memory(move->block);
    if (unit->place[page] != SPARSE_NOT_HELD) {
        memcpy(target, sparse_window_rows(s, unit, page), sparse_window_page_bytes(unit));
        sparse_window_give(s, unit, page);
    } else if (!sparse_window_put_rows(s, unit, item, target)) {
        return true; /* the page will find no place either */
    }
    *move = (sparse_move){.block = move->block,
                          .unit = unit,
                          .layer = layer,
                          .slot = slot,
                          .up = page,
                          .down = SPARSE_NOT_HELD};
    make_way(unit, move);
    unit->slot[page] = SPARSE_MOVING | (uint32_t)(move - s->hbm.moves);
    unit->slot_page[slot] = page;
    if (move->down != SPARSE_NOT_HELD)
        start_down(s, move);
    else
        start_up(s, move);
    return true;
}

void sparse_hbm_step(kvt_sparse *s, uint32_t layer, sparse_unit *unit, sparse_item *const *items,
                     bool waits)
{
    /* Each head has its share of the moves. */
    const uint32_t share = SPARSE_MOVES_MAX / s->options.layout.kv_heads;
    uint32_t left = waits ? UINT32_MAX : share > 0 ? share : 1;
    if (unit->slots == 0 || s->hbm.lost) return;
    const uint32_t count = windows_head(&unit->window, sparse_hbm_unit_bytes(unit), s->left);
    for (uint32_t i = 0; i < count; i++)
        s->hbm.chosen[s->left[i]] = true;
    for (uint32_t i = 0; i < count && left > 0; i++) {
        const uint32_t page = s->left[i];
        if (unit->slot[page] != SPARSE_NOT_HELD) continue;
        if (unit->place[page] == SPARSE_NOT_HELD && items[page] == NULL) continue;
        if (!raise_page(s, layer, unit, page, items[page], waits)) break;
        left--;
    }
    for (uint32_t i = 0; i < count; i++)
        s->hbm.chosen[s->left[i]] = false;
}

/* ---- a device that has failed ---- */

/* Pages of the unit in HBM are at rest alone, and its window is that in DRAM. */
static void forget_unit(kvt_sparse *s, sparse_unit *unit)
{
    if (unit->slots == 0) return;
    const uint64_t rest = unit->window.capacity_bytes - sparse_hbm_unit_bytes(unit);
    for (uint32_t page = 0; page < unit->window.pages; page++) {
        if (!is_in_slot(unit, page)) continue;
        sparse_hbm_drop(s, unit, page);
        sparse_window_refuse(unit, page);
    }
    unit->slots = 0;
    sparse_window_resize(s, unit, rest);
}

void sparse_hbm_begin(kvt_sparse *s, uint32_t layer)
{
    if (s->hbm.location == NULL) return;
    sparse_hbm_collect(s, layer);
    if (!tiers_pool_serves(hbm_pool(s), s->hbm.location)) s->hbm.lost = true;
    if (!s->hbm.lost) return;
    for (uint32_t h = 0; h < s->options.layout.kv_heads; h++)
        forget_unit(s, sparse_unit_of(s, layer, h));
}

/* ---- read back ---- */

kvt_status sparse_hbm_read(const kvt_sparse *s, const kvt_sparse_page *pages, uint32_t count,
                           sparse_block **block_out)
{
    uint64_t found = 0;
    for (uint32_t i = 0; i < count; i++)
        found += pages[i].tier == KVT_TIER_HBM;
    *block_out = NULL;
    if (found == 0) return KVT_OK;
    if (!scratch_is_ours(s->store)) return KVT_E_STATE;
    sparse_block *block = sparse_block_make(found * s->hbm.slot_bytes);
    kvt_status status = block != NULL ? KVT_OK : KVT_E_MEMORY;
    uint64_t at = 0;
    for (uint32_t i = 0; i < count && status == KVT_OK; i++) {
        if (pages[i].tier != KVT_TIER_HBM) continue;
        const uint64_t offset = (uintptr_t)pages[i].k - s->hbm.address; /* of a row in a slot */
        sparse_block_start_at(block, at, hbm_pool(s), KVT_IO_READ, s->hbm.location,
                              offset - offset % s->hbm.slot_bytes, s->hbm.slot_bytes);
        status = sparse_block_wait(block);
        at += s->hbm.slot_bytes;
    }
    if (status == KVT_OK) {
        *block_out = block;
        return KVT_OK;
    }
    sparse_block_free(block);
    return status;
}
