/* SPDX-License-Identifier: Apache-2.0 */
/*
 * relayout.c - objects that are laid out anew in their tier: hot ones whose layout fell behind what
 * the devices do now, and all that lies on a device that drains.
 *
 * The policy has no part in it: tier, variant and bytes stay. A get marks, the background moves,
 * within a budget of bytes per second (docs/TIERS.md, Rebalancing).
 *
 * Thread rule: the background round; relayout_note_get under the store's lock.
 */
#include "store/core/executor.h"
#include "store/core/kill_note.h"

#include <assert.h>
#include <string.h>

#define RELAYOUT_GAIN        1.1   /* how much faster a new layout must be */
#define RELAYOUT_SLOW_GETS   2u    /* gets of an object that fell behind until it counts as hot */
#define RELAYOUT_SCAN        4096u /* buckets looked at under one hold of the lock */
#define RELAYOUT_DRAIN_STEP  16u
#define RELAYOUT_DRAIN_TRIES 8u

/* Whether a place would be read faster if it were laid out now. Lock held. */
static bool relayout_gains(kvt_store *store, const store_place *place)
{
    return tiers_pool_layout_gain(store->pools[place->tier], place->location) > RELAYOUT_GAIN;
}

void relayout_note_get(kvt_store *store, store_entry *entry)
{
    assert(store_is_locked(store));
    store_place *place = entry->place;
    store_relayout *relayout = &store->relayouts[place->tier];
    if (relayout->bytes_per_s == 0 || entry->state != ENTRY_RESIDENT) return;
    if (!relayout_gains(store, place)) {
        place->slow_gets = 0;
        return;
    }
    if (++place->slow_gets < RELAYOUT_SLOW_GETS || relayout->count == STORE_RELAYOUTS_QUEUED)
        return;
    for (uint32_t i = 0; i < relayout->count; i++) {
        if (relayout->handles[i] == entry->handle) return;
    }
    relayout->handles[relayout->count++] = entry->handle;
}

/* ---- hot objects ---- */

/* Takes the oldest object that the budget allows; 0 = none. Lock held. */
static uint64_t relayout_next(kvt_store *store, kvt_tier tier)
{
    store_relayout *relayout = &store->relayouts[tier];
    /* Add what was earned since the last time; a second's worth may be saved, or the largest
     * record, so that no object is too large ever to move. Lock held. */
    assert(store_now_ns(store) >= relayout->earned_ns);
    uint64_t now_ns = store_now_ns(store);
    double most = (double)relayout->bytes_per_s;
    if (most < (double)store->record_bytes_max) most = (double)store->record_bytes_max;
    relayout->tokens +=
        (double)relayout->bytes_per_s * (double)(now_ns - relayout->earned_ns) * 1e-9;
    if (relayout->tokens > most) relayout->tokens = most;
    relayout->earned_ns = now_ns;
    while (relayout->count > 0 && !store->stopping) {
        uint64_t handle = relayout->handles[0];
        const store_entry *entry = entry_find_handle(&store->table, handle);
        bool there = entry != NULL && entry->state == ENTRY_RESIDENT &&
                     entry->place->tier == tier && entry_pinned_until_ns(entry) == 0;
        if (there && (double)entry->place->record_bytes > relayout->tokens) return 0;
        relayout->count--;
        memmove(&relayout->handles[0], &relayout->handles[1],
                relayout->count * sizeof relayout->handles[0]);
        if (!there || entry->place->visited) continue;
        /* The entry may have changed since it was queued, so it is looked at again. */
        if (!relayout_gains(store, entry->place)) continue;
        relayout->tokens -= (double)entry->place->record_bytes;
        return handle;
    }
    return 0;
}

/* Lays queued objects out anew, as far as the tier's budget goes. No lock held. */
static void relayout_hot(kvt_store *store, kvt_tier tier, uint32_t *moves_done)
{
    for (;;) {
        pthread_mutex_lock(&store->lock);
        bool defers = pressure_defers(store, tier);
        if (defers) store->counters.moves.deferred += store->relayouts[tier].count;
        uint64_t handle = defers ? 0 : relayout_next(store, tier);
        pthread_mutex_unlock(&store->lock);
        if (handle == 0) return;
        if (executor_relayout(store, handle, tier, false) == KVT_OK) ++*moves_done;
    }
}

/* ---- drains ---- */

/* Collects entries at rest on the members in the mask, going on where the last call ended. Returns
 * their number; *wrapped_out says that the table's end was passed. Lock held. */
static uint32_t relayout_find(kvt_store *store, kvt_tier tier, uint64_t members, uint64_t *handles,
                              bool *wrapped_out)
{
    store_relayout *relayout = &store->relayouts[tier];
    uint32_t count = 0;
    for (uint32_t i = 0; i < RELAYOUT_SCAN && count < RELAYOUT_DRAIN_STEP; i++) {
        if (relayout->drain_bucket >= store->table.bucket_count) {
            relayout->drain_bucket = 0;
            *wrapped_out = true;
            break;
        }
        const store_entry *entry = store->table.buckets[relayout->drain_bucket];
        /* A bucket with more entries than the step holds is looked at again in the next pass. */
        for (; entry != NULL && count < RELAYOUT_DRAIN_STEP; entry = entry->next) {
            bool lies = entry->state == ENTRY_RESIDENT && entry->place->tier == tier &&
                        entry_pinned_until_ns(entry) == 0 && place_touches(entry->place, members);
            if (lies) handles[count++] = entry->handle;
        }
        relayout->drain_bucket++;
    }
    return count;
}

/* Moves one entry off its members. When the tier has no room, copies make way and the catalog's
 * deletions are waited for. An entry that still finds no room is dropped when `insist` says that
 * the policy makes none of its own accord, as policies that make room only for a put. */
static kvt_status relayout_move_off(kvt_store *store, kvt_tier tier, uint64_t handle, bool insist)
{
    assert(handle != 0 && store->pools[tier] != NULL);
    kvt_status status = executor_relayout(store, handle, tier, true);
    if (status == KVT_E_SPACE && tier == KVT_TIER_SSD) {
        pthread_mutex_lock(&store->lock);
        const store_entry *entry = entry_find_handle(&store->table, handle);
        uint64_t bytes = entry != NULL && entry->place != NULL ? entry->place->record_bytes : 0;
        pthread_mutex_unlock(&store->lock);
        (void)copies_reclaim(store, bytes);
    }
    if (status == KVT_E_SPACE && tier == KVT_TIER_SSD && store->catalog != NULL &&
        catalog_pending_release(store->catalog) && catalog_settle(store->catalog) == KVT_OK) {
        status = executor_relayout(store, handle, tier, true);
    }
    if (status == KVT_E_IO) {
        /* A drain has to end: an entry that could not be read in so many tries, a minute of them,
         * goes. No lock held. */
        pthread_mutex_lock(&store->lock);
        store_entry *unread = entry_find_handle(&store->table, handle);
        if (unread != NULL && unread->state == ENTRY_RESIDENT && unread->place->tier == tier &&
            unread->place->unread && unread->failed_moves >= RELAYOUT_DRAIN_TRIES)
            quarantine_drop_entry(store, unread, KVT_REMOVED_LOST);
        pthread_mutex_unlock(&store->lock);
    }
    if (status != KVT_E_SPACE || !insist) return status;
    pthread_mutex_lock(&store->lock);
    store_entry *entry = entry_find_handle(&store->table, handle);
    if (entry != NULL && entry->state == ENTRY_RESIDENT && entry->place->tier == tier) {
        KILL_NOTE(KILL_NOTE_GIVES_WAY, &entry->key, tier);
        quarantine_drop_entry(store, entry, KVT_REMOVED_EVICTED);
        store->counters.evictions++;
    }
    pthread_mutex_unlock(&store->lock);
    return KVT_MISS;
}

/* Moves entries off draining members until the table was walked to its end, the round's budget is
 * spent, no room is left, or waited reads come. No lock held. */
static void relayout_drain(kvt_store *store, kvt_tier tier, uint64_t members, bool insist,
                           uint64_t *budget, uint32_t *moves_done)
{
    bool wrapped = false;
    while (!wrapped) {
        uint64_t handles[RELAYOUT_DRAIN_STEP];
        pthread_mutex_lock(&store->lock);
        if (store->stopping || pressure_defers(store, tier)) wrapped = true;
        uint32_t count = wrapped ? 0 : relayout_find(store, tier, members, handles, &wrapped);
        pthread_mutex_unlock(&store->lock);
        for (uint32_t i = 0; i < count; i++) {
            pthread_mutex_lock(&store->lock);
            const store_entry *entry = entry_find_handle(&store->table, handles[i]);
            uint64_t bytes = entry != NULL && entry->place != NULL ? entry->place->record_bytes : 0;
            pthread_mutex_unlock(&store->lock);
            if (bytes > *budget) return;
            kvt_status status = relayout_move_off(store, tier, handles[i], insist);
            if (status == KVT_E_SPACE) return; /* the policy is making room */
            if (status != KVT_OK) continue;
            if (*budget != UINT64_MAX) *budget -= bytes;
            ++*moves_done;
        }
    }
}

void relayout_round(kvt_store *store, bool insist, uint64_t *budget, uint32_t *moves_done)
{
    for (int tier = KVT_TIER_HBM; tier < KVT_TIER_COUNT; tier++) {
        if (store->pools[tier] == NULL) continue;
        pthread_mutex_lock(&store->lock);
        if (store->returns_owed[tier]) {
            pthread_mutex_unlock(&store->lock);
            quarantine_bring_back(store, (kvt_tier)tier);
            pthread_mutex_lock(&store->lock);
        }
        learn_cost_tier(store, (kvt_tier)tier); /* new entries are costed with its present speed */
        pthread_mutex_unlock(&store->lock);
        uint64_t members = store_members(store, (kvt_tier)tier, KVT_DEVICE_DRAINING, 0);
        if (members != 0) {
            pthread_mutex_lock(&store->lock);
            quarantine_drop_members(store, (kvt_tier)tier, members);
            if (tier == KVT_TIER_SSD) copies_clear_members(store, members);
            pthread_mutex_unlock(&store->lock);
            relayout_drain(store, (kvt_tier)tier, members, insist, budget, moves_done);
        }
        relayout_hot(store, (kvt_tier)tier, moves_done);
    }
}
