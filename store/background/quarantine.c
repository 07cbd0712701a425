/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quarantine.c - devices that go out of service, and the entries that lay on them.
 *
 * An entry with a part on a durable device that is gone leaves the table and the policy, but keeps
 * its row and its extents: quarantined. It comes back with the device (members.c), and it gives way
 * as soon as its key is put or deleted or its room on other devices is needed. An entry on a device
 * that is not durable is dropped.
 *
 * Thread rule: the store's lock, as each function says in quarantine.h.
 */
#include "store/background/lifetime.h"
#include "store/core/kill_note.h"
#include "store/core/store_offer.h"
#include "store/watch/watching.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* ---- into quarantine ---- */

/* Drops a quarantined entry with its row and extents. Lock held. */
static void quarantine_drop(kvt_store *store, store_entry *entry)
{
    assert(entry->state == ENTRY_QUARANTINED && entry->copy == NULL);
    store_place *place = entry->place;
    KILL_NOTE(KILL_NOTE_GIVES_WAY, &entry->key, place->tier);
    KILL_NOTE(KILL_NOTE_DROPPED, &entry->key, place->tier);
    entry_set_state(entry, ENTRY_QUARANTINED, ENTRY_LEAVING);
    entry->place = NULL;
    entry_erase(&store->quarantined, entry);
    place_drain(store, place);
}

bool quarantine_is_back(kvt_store *store, const store_place *place, kvt_status status)
{
    assert(store_is_locked(store));
    return status == KVT_E_GONE &&
           !place_touches(place, store_members(store, place->tier, KVT_DEVICE_GONE, 0));
}

void quarantine_set_aside(kvt_store *store, store_entry *entry, kvt_event_reason reason)
{
    assert(entry->state == ENTRY_RESIDENT && entry->copy == NULL);
    assert(store_is_locked(store));
    watch_note_removed(store, entry, reason);
    store->returns_owed[entry->place->tier] = true;
    visit_lose_entry(store, entry->place);
    entry_set_state(entry, ENTRY_RESIDENT, ENTRY_QUARANTINED);
    entry_transfer(&store->table, &store->quarantined, entry);
    store->counters.quarantined++;
    pthread_cond_broadcast(&store->changed);
}

void quarantine_lose_entry(kvt_store *store, store_entry *entry, kvt_event_reason reason)
{
    assert(entry->state == ENTRY_RESIDENT && entry->place != NULL);
    assert(store_is_locked(store));
    if (copies_fall_back(store, entry)) return;
    const store_place *place = entry->place;
    const uint64_t gone = store_members(store, place->tier, KVT_DEVICE_GONE, 0);
    const uint64_t durable = store_members(store, place->tier, KVT_DEVICE_GONE, KVT_DEVICE_DURABLE);
    /* It may return when it lost a member, and every member that it lost is durable. */
    if (!place_touches(place, gone) || place_touches(place, gone & ~durable)) {
        quarantine_drop_entry(store, entry, reason);
        return;
    }
    entry->read = NULL;
    entry->place->slow_gets = 0;
    (void)!kvt_policy_remove(store->policy, entry->handle);
    backoff_forget(entry);
    lease_forget(store, entry);
    quarantine_set_aside(store, entry, reason);
}

bool quarantine_note_failure(kvt_store *store, store_entry *entry, kvt_status failure)
{
    assert(failure != KVT_OK && entry->state == ENTRY_RESIDENT);
    assert(store_is_locked(store));
    store_place *place = entry->place;
    if (failure == KVT_E_CORRUPT ||
        place_touches(place, store_members(store, place->tier, KVT_DEVICE_GONE, 0))) {
        quarantine_lose_entry(store, entry, KVT_REMOVED_LOST);
        return true;
    }
    if (copies_fall_back(store, entry)) return true;
    place->unread = true;
    return false;
}

void quarantine_settle(kvt_store *store, const kvt_move *moves, uint32_t count)
{
    assert(store_is_locked(store));
    for (uint32_t i = 0; i < count; i++) {
        store_entry *entry = entry_find_handle(&store->table, moves[i].handle);
        if (entry == NULL || entry->state != ENTRY_RESIDENT) continue;
        kvt_tier tier = entry->place->tier;
        if (!place_touches(entry->place, store->retired_members[tier])) continue;
        /* A device that is just being added is not known to be back yet. */
        if (place_touches(entry->place, store_members(store, tier, KVT_DEVICE_GONE, 0)))
            quarantine_lose_entry(store, entry, KVT_REMOVED_LOST);
    }
}

void quarantine_refresh_tier(kvt_store *store, kvt_tier tier)
{
    assert(store_is_locked(store));
    if (tier == KVT_TIER_NONE) return;
    uint64_t gone = store_members(store, tier, KVT_DEVICE_GONE, 0);
    uint64_t fresh = gone & ~store->retired_members[tier];
    if (gone == 0) return;
    store->retired_members[tier] |= fresh;
    if (fresh != 0) {
        /* Take out the entries that lie on members in the mask, which are out of service: they
         * could only fail, one get at a time, and hold the policy's room meanwhile. They are
         * quarantined, fall back to their copies or are dropped. Entries in motion are left to
         * their moves, which may end there later. Lock held. */
        for (size_t i = 0; i < store->table.bucket_count; i++) {
            store_entry *entry = store->table.buckets[i];
            while (entry != NULL) {
                bool lost = entry->state == ENTRY_RESIDENT && entry->place->tier == tier &&
                            place_touches(entry->place, gone);
                if (lost) quarantine_lose_entry(store, entry, KVT_REMOVED_LOST);
                /* The lock was released meanwhile: begin the chain again. */
                entry =
                    lost ? store->table.buckets[i & (store->table.bucket_count - 1)] : entry->next;
            }
        }
        if (tier == KVT_TIER_SSD) copies_clear_members(store, gone);
    }
    /* Again at every failure: moves that were in flight the last time held the capacity up. */
    kvt_status status =
        kvt_policy_capacity_set(store->policy, tier, store_policy_capacity(store, tier));
    assert(status == KVT_OK);
    (void)status;
}

/* ---- out of quarantine ---- */

void quarantine_forget_key(kvt_store *store, const kvt_key *key)
{
    assert(store_is_locked(store));
    store_entry *entry = entry_find_handle(&store->quarantined, entry_handle(&store->secret, key));
    if (entry != NULL) quarantine_drop(store, entry);
}

bool quarantine_reclaim(kvt_store *store, kvt_tier tier, uint64_t bytes)
{
    assert(store->pools[tier] != NULL);
    uint64_t freed = 0;
    pthread_mutex_lock(&store->lock);
    uint64_t gone = store_members(store, tier, KVT_DEVICE_GONE, 0);
    for (size_t i = 0; i < store->quarantined.bucket_count && freed < bytes; i++) {
        store_entry *entry = store->quarantined.buckets[i];
        while (entry != NULL && freed < bytes) {
            uint64_t held = 0;
            const tiers_location *location = entry->place->location;
            for (uint32_t j = 0; entry->place->tier == tier && j < location->extent_count; j++) {
                const tiers_extent *extent = &location->extents[j];
                if ((gone >> extent->member & 1) == 0) held += extent->bytes;
            }
            if (held != 0) quarantine_drop(store, entry);
            freed += held;
            entry = held != 0
                        ? store->quarantined.buckets[i & (store->quarantined.bucket_count - 1)]
                        : entry->next;
        }
    }
    pthread_mutex_unlock(&store->lock);
    return freed != 0;
}

void quarantine_drop_members(kvt_store *store, kvt_tier tier, uint64_t members)
{
    assert(store_is_locked(store));
    for (size_t i = 0; i < store->quarantined.bucket_count; i++) {
        store_entry *entry = store->quarantined.buckets[i];
        while (entry != NULL) {
            bool lost = entry->place->tier == tier && place_touches(entry->place, members);
            if (lost) quarantine_drop(store, entry);
            entry = lost ? store->quarantined.buckets[i & (store->quarantined.bucket_count - 1)]
                         : entry->next;
        }
    }
}

/* One entry on its way back, in the order of first positions so that parents come first. */
typedef struct quarantine_return {
    uint32_t first_position;
    uint64_t handle;
} quarantine_return;

/* Ascending, for qsort. */
static int quarantine_compare(const void *left, const void *right)
{
    uint32_t a = ((const quarantine_return *)left)->first_position;
    uint32_t b = ((const quarantine_return *)right)->first_position;
    return (a > b) - (a < b);
}

/* Lists the quarantined entries of a tier whose members all serve, parents first. NULL without
 * memory. Lock held. */
static quarantine_return *quarantine_list_returns(kvt_store *store, kvt_tier tier,
                                                  size_t *count_out)
{
    uint64_t gone = store_members(store, tier, KVT_DEVICE_GONE, 0);
    size_t count = 0;
    quarantine_return *returns = malloc((store->quarantined.count + 1) * sizeof *returns);
    for (size_t i = 0; returns != NULL && i < store->quarantined.bucket_count; i++) {
        for (store_entry *entry = store->quarantined.buckets[i]; entry != NULL;
             entry = entry->next) {
            if (entry->place->tier != tier || place_touches(entry->place, gone)) continue;
            returns[count++] = (quarantine_return){entry->first_position, entry->handle};
        }
    }
    if (returns != NULL) qsort(returns, count, sizeof *returns, quarantine_compare);
    *count_out = count;
    return returns;
}

/* Takes one entry back into the table and the policy. An entry that finds no memory stays owed for
 * a later round; an entry that the policy declines, whose lifetime has ended, or whose handle is
 * taken, is dropped. Lock held. */
static void quarantine_return_entry(kvt_store *store, uint64_t handle)
{
    assert(handle != 0);
    store_entry *entry = entry_find_handle(&store->quarantined, handle);
    if (entry == NULL) return;
    store_place *place = entry->place;
    kvt_status status = KVT_EXISTS;
    if (entry_find_handle(&store->table, handle) == NULL && !lifetime_is_over(store, entry)) {
        status = store_adopt_place(store, entry, place);
    }
    if (status == KVT_E_MEMORY) {
        store->returns_owed[place->tier] = true;
        return;
    }
    if (status != KVT_OK) {
        quarantine_drop(store, entry);
        return;
    }
    lifetime_note(store, entry);
    entry_transfer(&store->quarantined, &store->table, entry);
    entry_set_state(entry, ENTRY_QUARANTINED, ENTRY_RESIDENT);
    visit_find_entry(store, entry);
    store->counters.readmitted++;
    watch_note_stored(store, entry);
}

void quarantine_bring_back(kvt_store *store, kvt_tier tier)
{
    size_t count = 0;
    pthread_mutex_lock(&store->lock);
    quarantine_return *returns = quarantine_list_returns(store, tier, &count);
    store->returns_owed[tier] = returns == NULL;
    for (size_t i = 0; returns != NULL && i < count; i++) {
        quarantine_return_entry(store, returns[i].handle);
        if (i % 64 != 63) continue;
        pthread_mutex_unlock(&store->lock); /* lookups come in between */
        pthread_mutex_lock(&store->lock);
    }
    pthread_mutex_unlock(&store->lock);
    free(returns);
}

void quarantine_drop_entry(kvt_store *store, store_entry *entry, kvt_event_reason reason)
{
    assert(entry->state == ENTRY_RESIDENT);
    assert(store_is_locked(store));
    watch_note_removed(store, entry, reason);
    entry_set_state(entry, ENTRY_RESIDENT, ENTRY_LEAVING);
    KILL_NOTE(KILL_NOTE_DROPPED, &entry->key, entry->place->tier);
    store_place *place = entry->place;
    entry->read = NULL;
    (void)!kvt_policy_remove(store->policy, entry->handle);
    backoff_forget(entry);
    lease_forget(store, entry);
    store_place *copy = copies_detach(store, entry);
    entry->place = NULL;
    place_drain(store, place);
    if (copy != NULL) place_drain(store, copy);
    entry_erase(&store->table, entry);
    pthread_cond_broadcast(&store->changed);
}
