/* SPDX-License-Identifier: Apache-2.0 */
/*
 * copies.c - records on SSD that are kept beside an entry's place in HBM or DRAM
 * (docs/STORE.md, Copies).
 *
 *     promotion        the place on SSD stays, with its catalog row: it is the copy from now on
 *     demotion         onto a copy of the same variant writes nothing: the copy is the place again
 *     an eviction      from above leaves the copy as the place, while the SSD tier has free room
 *     a failed load    of the upper place falls back to the copy
 *     room             the policy counts a copy's bytes as free, so copies make way for all else
 *
 * The extents of a copy are reusable once the deletion of its row is committed, so copies are
 * dropped ahead of the need: copies_headroom bytes stay really free.
 *
 * Thread rule: as each function says in store.h. `copy_index` lists a copy among those that may be
 * dropped; a copy that a move is about to make the place is not listed.
 */
#include "store/core/kill_note.h"
#include "store/core/store_offer.h"
#include "store/watch/watching.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define COPIES_UNLISTED UINT32_MAX
#define COPIES_DRAWN    16u /* copies that one choice compares; all of them when they are few */
#define COPIES_FEW      64u

/* ---- the list of copies that may be dropped; lock held ---- */

/* Lists the entry's copy as one that may be dropped. False without memory. */
static bool copies_list(kvt_store *store, store_entry *entry)
{
    assert(entry->copy_index == COPIES_UNLISTED);
    assert(store->copies.count <= store->copies.room);
    store_copies *copies = &store->copies;
    if (copies->count == copies->room) {
        uint32_t room = copies->room == 0 ? 64 : copies->room * 2;
        store_entry **grown = realloc(copies->listed, room * sizeof(store_entry *));
        if (grown == NULL) return false;
        copies->listed = grown;
        copies->room = room;
    }
    entry->copy_index = copies->count;
    copies->listed[copies->count++] = entry;
    return true;
}

/* Takes the entry's copy off the list; the last one of the list takes its index. Harmless when it
 * is not listed. */
static void copies_unlist(kvt_store *store, store_entry *entry)
{
    store_copies *copies = &store->copies;
    uint32_t index = entry->copy_index;
    if (index == COPIES_UNLISTED) return;
    assert(copies->listed[index] == entry && copies->count > 0);
    copies->listed[index] = copies->listed[--copies->count];
    copies->listed[index]->copy_index = index;
    entry->copy_index = COPIES_UNLISTED;
}

bool copies_attach(kvt_store *store, store_entry *entry, store_place *place)
{
    assert(store_is_locked(store));
    assert(entry->copy == NULL && place->tier == KVT_TIER_SSD);
    if (!store->copies.kept || place->ticket == NULL) return false;
    if (place_touches(place, store->retired_members[KVT_TIER_SSD])) return false;
    if (!copies_list(store, entry)) return false;
    entry->copy = place;
    assert(entry->copy_index < store->copies.count);
    store->copies.total++;
    store->copies.bytes += place->record_bytes;
    return true;
}

store_place *copies_detach(kvt_store *store, store_entry *entry)
{
    assert(store_is_locked(store));
    store_place *copy = entry->copy;
    if (copy == NULL) return NULL;
    copies_unlist(store, entry);
    assert(store->copies.total > 0 && store->copies.bytes >= copy->record_bytes);
    store->copies.total--;
    store->copies.bytes -= copy->record_bytes;
    entry->copy = NULL;
    return copy;
}

void copies_drop(kvt_store *store, store_entry *entry)
{
    assert(entry->copy == NULL || entry->copy != entry->place);
    assert(store_is_locked(store));
    store_place *copy = copies_detach(store, entry);
    if (copy == NULL) return;
    /* An entry whose place is on SSD stays durable without its copy. */
    if (entry->place == NULL || entry->place->tier != KVT_TIER_SSD)
        KILL_NOTE(KILL_NOTE_GIVES_WAY, &entry->key, KVT_TIER_SSD);
    place_drain(store, copy);
}

/* ---- demotion, eviction, fallback ---- */

bool copies_hold(kvt_store *store, store_entry *entry, const kvt_move *move)
{
    assert(store_is_locked(store));
    const store_place *copy = entry->copy;
    if (copy == NULL || move->kind != KVT_MOVE_CHANGE) return false;
    if (store_tier_of(move->to_bytes) != KVT_TIER_SSD) return false;
    if (copy->record_bytes > move->to_bytes[KVT_TIER_SSD]) return false; /* more than planned */
    if (memcmp(&copy->variant, &move->to_variant, sizeof copy->variant) != 0) return false;
    copies_unlist(store, entry);
    return true;
}

void copies_let_go(kvt_store *store, store_entry *entry)
{
    assert(store->copies.count <= store->copies.total);
    assert(store_is_locked(store));
    if (entry->copy == NULL || entry->copy_index != COPIES_UNLISTED) return;
    if (!copies_list(store, entry)) copies_drop(store, entry);
}

/* Bytes of the SSD tier that stored entries and copies together may hold. Lock held. */
static uint64_t copies_fill_limit(const kvt_store *store)
{
    return (uint64_t)(store->high_watermark * (double)store_policy_capacity(store, KVT_TIER_SSD));
}

bool copies_outlast(kvt_store *store, store_entry *entry)
{
    assert(store_is_locked(store));
    kvt_policy_stats stats;
    const store_place *copy = entry->copy;
    store_place *evicted = entry->place;
    assert(entry->state == ENTRY_LEAVING);
    if (copy == NULL) return false;
    kvt_policy_stats_get(store->policy, &stats);
    uint64_t used = stats.used_bytes[KVT_TIER_SSD] + copy->record_bytes;
    if (used > copies_fill_limit(store)) return false;
    backoff_forget(entry);
    lease_forget(store, entry);
    kvt_status status =
        store_adopt(store, entry, KVT_TIER_SSD, copy->variant, copy->record_bytes, NULL);
    if (status != KVT_OK) return false;
    entry->place = copies_detach(store, entry);
    KILL_NOTE(KILL_NOTE_MOVED, &entry->key, KVT_TIER_SSD);
    entry_set_state(entry, ENTRY_LEAVING, ENTRY_RESIDENT);
    store->counters.copies.evictions++;
    watch_note_moved(store, entry, evicted->tier, evicted->variant);
    pthread_cond_broadcast(&store->changed);
    place_drain(store, evicted);
    return true;
}

bool copies_fall_back(kvt_store *store, store_entry *entry)
{
    assert(store_is_locked(store));
    store_place *failed = entry->place;
    assert(entry->state == ENTRY_RESIDENT);
    if (entry->copy == NULL) return false;
    (void)!kvt_policy_remove(store->policy, entry->handle);
    backoff_forget(entry);
    lease_forget(store, entry);
    const kvt_status status = store_adopt_place(store, entry, entry->copy);
    entry->place = copies_detach(store, entry);
    KILL_NOTE(KILL_NOTE_MOVED, &entry->key, KVT_TIER_SSD);
    entry->read = NULL; /* later gets must not join a read of the failed place */
    store->counters.copies.fallbacks++;
    if (status == KVT_OK)
        watch_note_moved(store, entry, failed->tier, failed->variant);
    else
        quarantine_set_aside(store, entry, KVT_REMOVED_LOST);
    pthread_cond_broadcast(&store->changed);
    place_drain(store, failed);
    return true;
}

/* ---- room ---- */

/* Bytes of the SSD tier that will be held when all deletions so far are committed. */
static uint64_t copies_held_bytes(kvt_store *store)
{
    tiers_pool_facts facts;
    tiers_pool_facts_get(store->pools[KVT_TIER_SSD], &facts);
    uint64_t others = catalog_pending_bytes(store->catalog) + store->scratch_bytes[KVT_TIER_SSD];
    return facts.used_bytes > others ? facts.used_bytes - others : 0;
}

/* Bytes that copies leave free, so that a put or a demotion need not wait for a commit: a 64th of
 * the tier, or two of the largest records, beside what is no room in time. Lock held. */
static uint64_t copies_headroom(const kvt_store *store)
{
    assert(store_is_locked(store));
    uint64_t share = store_policy_capacity(store, KVT_TIER_SSD) / 64;
    uint64_t records = 2 * store->record_bytes_max;
    return (share > records ? share : records) + store->withheld_bytes[KVT_TIER_SSD];
}

uint64_t copies_free_bytes(kvt_store *store, bool closing)
{
    assert(store_is_locked(store));
    uint64_t limit = copies_fill_limit(store);
    uint64_t held = copies_held_bytes(store) + (closing ? 0 : copies_headroom(store));
    return limit > held ? limit - held : 0;
}

/* The copy without readers that is worth least per byte, of some that are drawn; NULL = none. */
static store_entry *copies_choose(kvt_store *store)
{
    store_copies *copies = &store->copies;
    bool all = copies->count <= COPIES_FEW;
    uint32_t looks = all ? copies->count : COPIES_DRAWN;
    store_entry *least = NULL;
    double least_worth = 0;
    for (uint32_t i = 0; i < looks; i++) {
        copies->draw = copies->draw * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        uint32_t index = all ? i : (uint32_t)((copies->draw >> 33) % copies->count);
        store_entry *entry = copies->listed[index];
        if (entry->copy->readers != 0) continue;
        kvt_policy_worth known = {.struct_size = sizeof known};
        const kvt_status status =
            kvt_policy_worth_get(store->policy, entry->handle, KVT_TIER_SSD, &known);
        /* On SSD; 0 for an entry that the policy does not know. */
        const double worth = status == KVT_OK ? known.per_byte : 0;
        if (least != NULL && worth >= least_worth) continue;
        least = entry;
        least_worth = worth;
    }
    return least;
}

/* Drops a copy without readers. Unlike copies_drop it never waits. Lock held. */
static void copies_release(kvt_store *store, store_entry *entry)
{
    assert(entry->copy != NULL && entry->copy->readers == 0);
    KILL_NOTE(KILL_NOTE_GIVES_WAY, &entry->key, KVT_TIER_SSD);
    place_release(store, copies_detach(store, entry));
    store->counters.copies.dropped++;
}

void copies_trim(kvt_store *store)
{
    assert(store->copies.count <= store->copies.total);
    assert(store_is_locked(store));
    if (store->copies.count == 0) return;
    uint64_t limit = copies_fill_limit(store);
    uint64_t headroom = copies_headroom(store);
    limit = limit > headroom ? limit - headroom : 0;
    while (copies_held_bytes(store) > limit) {
        store_entry *entry = copies_choose(store);
        if (entry == NULL) return;
        copies_release(store, entry);
    }
}

bool copies_reclaim(kvt_store *store, uint64_t bytes)
{
    uint64_t freed = 0;
    pthread_mutex_lock(&store->lock);
    while (freed < bytes && store->copies.count != 0) {
        store_entry *entry = copies_choose(store);
        if (entry != NULL) {
            freed += entry->copy->location->bytes;
            copies_release(store, entry);
            continue;
        }
        /* Gets that began before a promotion still read all copies that were drawn; copies_drop
         * waits for them. */
        entry = store->copies.listed[0];
        freed += entry->copy->location->bytes;
        store->counters.copies.dropped++;
        copies_drop(store, entry);
    }
    pthread_mutex_unlock(&store->lock);
    return freed != 0;
}

void copies_clear_members(kvt_store *store, uint64_t members)
{
    assert(store_is_locked(store));
    store_copies *copies = &store->copies;
    for (uint32_t i = 0; i < copies->count;) {
        store_entry *entry = copies->listed[i];
        if (!place_touches(entry->copy, members)) {
            i++;
            continue;
        }
        store->counters.copies.dropped++;
        copies_drop(store, entry);
        i = 0; /* the lock was released meanwhile */
    }
}
