/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pressure.c - the background keeps off the tiers whose devices are busy with reads that somebody
 * waits for (docs/TIERS.md, Pressure).
 *
 * One round in sixteen goes on all the same: a tier whose reads never end would otherwise keep the
 * promotions waiting that would relieve it. A caller's own kvt_store_maintain is put off by
 * nothing. The file defers; it drops no plan.
 *
 * Thread rule: the background round, one at a time; the control lock is held.
 */
#include "store/core/store.h"

#include <assert.h>

#define PRESSURE_ROUNDS_MOST 15u /* in a row that a tier is left alone */

void pressure_begin_round(kvt_store *store, bool own)
{
    assert(store_is_locked(store));
    store->pressure.let_through = 0;
    for (int tier = KVT_TIER_HBM; tier < KVT_TIER_COUNT; tier++) {
        uint32_t *rounds = &store->pressure.rounds[tier];
        bool pressed = store->pools[tier] != NULL && tiers_pool_is_pressed(store->pools[tier]);
        *rounds = pressed ? *rounds + 1 : 0;
        if (!own && *rounds <= PRESSURE_ROUNDS_MOST) continue;
        store->pressure.let_through |= 1u << tier;
        *rounds = 0;
    }
}

void pressure_end_round(kvt_store *store)
{
    assert(store_is_locked(store));
    store->pressure.let_through = 0;
}

bool pressure_defers(const kvt_store *store, kvt_tier tier)
{
    assert(store_is_locked(store));
    if (store->pools[tier] == NULL || (store->pressure.let_through >> tier & 1) != 0) return false;
    return tiers_pool_is_pressed(store->pools[tier]);
}

bool pressure_defers_any(const kvt_store *store)
{
    bool defers = false;
    for (int tier = KVT_TIER_HBM; tier < KVT_TIER_COUNT && !defers; tier++)
        defers = pressure_defers(store, (kvt_tier)tier);
    return defers;
}

/* An eviction moves no bytes. */
bool pressure_defers_moves(kvt_store *store, const kvt_move *moves, uint32_t count)
{
    assert(store_is_locked(store));
    bool defers = false;
    for (uint32_t i = 0; i < count && !defers; i++) {
        if (moves[i].kind != KVT_MOVE_CHANGE) continue;
        defers = pressure_defers(store, store_tier_of(moves[i].from_bytes)) ||
                 pressure_defers(store, store_tier_of(moves[i].to_bytes));
    }
    if (defers) store->counters.moves.deferred += count;
    return defers;
}
