/* SPDX-License-Identifier: Apache-2.0 */
/*
 * visit.c - records of entries that are read where they lie. The file copies nothing and
 * plans nothing: a visit is a reader of the entry's place, so the extents stay whatever becomes of
 * the entry, and a pin in the policy, so that nothing is planned with them. A copy of an entry is
 * visited without a pin: the copy stays as it has a reader, and the entry is free to leave memory.
 *
 * The bytes are always somebody's: the policy's or the copies' while the entry has the place, else
 * lent as what a scratch borrows (scratch.c), so that no plan counts on room that a visit holds.
 *
 * Thread rule: as scratch.h; the control lock.
 */
#include "store/read/visit.h"

#include <assert.h>
#include <stdlib.h>

#include "store/core/store.h"
#include "store/lend/scratch.h"

static store_visit **visit_bucket(store_visits *visits, const store_place *place)
{
    return &visits->buckets[(uintptr_t)place / sizeof *place % VISIT_BUCKETS];
}

/* The visit of a place. Lock held. */
static store_visit *visit_find(kvt_store *store, const store_place *place)
{
    assert(store_is_locked(store) && place->visited);
    store_visit *visit = *visit_bucket(&store->visits, place);
    while (visit->place != place)
        visit = visit->next;
    return visit;
}

/* ---- whose the bytes are ---- */

/* Pins the entry of a visit. Lock held. */
static void visit_pin(kvt_store *store, store_visit *visit)
{
    assert(store_is_locked(store) && !visit->pinned && !visit->lent);
    visit->pinned = kvt_policy_pin(store->policy, visit->handle) == KVT_OK;
}

/* Takes the pin back; the entry may have left the policy. Lock held. */
static void visit_unpin(kvt_store *store, store_visit *visit)
{
    if (visit->pinned) (void)!kvt_policy_unpin(store->policy, visit->handle);
    visit->pinned = false;
}

/* Moves the bytes of a visit to the lent ones, or back. Lock held. */
static void visit_set_lent(kvt_store *store, store_visit *visit, bool lent)
{
    store_visits *visits = &store->visits;
    const kvt_tier tier = (kvt_tier)visit->place->tier;
    assert(store_is_locked(store) && visit->lent != lent);
    visit->lent = lent;
    if (lent) {
        const uint64_t gone = store_members(store, tier, KVT_DEVICE_GONE, 0);
        const tiers_location *location = visit->place->location;
        visit->lent_bytes = 0;
        for (uint32_t i = 0; i < location->extent_count; i++)
            if ((gone >> location->extents[i].member & 1) == 0)
                visit->lent_bytes += location->extents[i].bytes;
        assert(visits->entries > 0 && visits->bytes[tier] >= visit->bytes);
        visits->entries--;
        visits->bytes[tier] -= visit->bytes;
        store->lent_bytes[tier] += visit->lent_bytes;
        store->scratch_bytes[tier] += visit->lent_bytes;
    } else {
        assert(store->scratch_bytes[tier] >= visit->lent_bytes);
        store->lent_bytes[tier] -= visit->lent_bytes;
        store->scratch_bytes[tier] -= visit->lent_bytes;
        visits->entries++;
        visits->bytes[tier] += visit->bytes;
    }
    (void)!kvt_policy_capacity_set(store->policy, tier, store_policy_capacity(store, tier));
}

void visit_lose_entry(kvt_store *store, store_place *place)
{
    if (!place->visited) return;
    store_visit *visit = visit_find(store, place);
    if (visit->lent) return;
    visit_unpin(store, visit);
    visit_set_lent(store, visit, true);
}

void visit_find_entry(kvt_store *store, const store_entry *entry)
{
    if (!entry->place->visited) return;
    store_visit *visit = visit_find(store, entry->place);
    assert(visit->handle == entry->handle);
    if (!visit->lent) return;
    visit_set_lent(store, visit, false);
    visit_pin(store, visit);
}

/* ---- visits ---- */

/* Whether a record can be read by ranges of the entry's own bytes. In HBM and DRAM it has to lie in
 * one piece, and within the part of the tier that may be held. Lock held. */
static bool visit_can_read(kvt_store *store, const store_place *place)
{
    const kvt_tier tier = (kvt_tier)place->tier;
    if (place->variant.codec != KVT_CODEC_RAW) return false;
    if (tier == KVT_TIER_SSD) return true;
    if (!tiers_pool_lends(store->pools[tier], place->location)) return false;
    if (place->visited) return true;
    const uint64_t held = store->visits.bytes[tier] + store->leases.counts.bytes[tier];
    return held + place->record_bytes <= store_policy_capacity(store, tier) / 2;
}

/* The place of an entry to be read, or, where memory will do as well, its copy. NULL: neither can.
 * Lock held. */
static store_place *visit_choose(kvt_store *store, const store_entry *entry, bool memory)
{
    if (!memory && entry->place->tier != KVT_TIER_SSD) return NULL;
    if (visit_can_read(store, entry->place)) return entry->place;
    return entry->copy != NULL && visit_can_read(store, entry->copy) ? entry->copy : NULL;
}

/* Becomes a visitor of a place of an entry. NULL: no memory. Lock held. */
static store_visit *visit_enter(kvt_store *store, const store_entry *entry, store_place *place)
{
    store_visit *visit = place->visited ? visit_find(store, place) : calloc(1, sizeof *visit);
    if (visit == NULL) return NULL;
    if (!place->visited) {
        store_visit **bucket = visit_bucket(&store->visits, place);
        *visit = (store_visit){
            .next = *bucket, .place = place, .handle = entry->handle, .bytes = place->record_bytes};
        *bucket = visit;
        place->visited = true;
        store->visits.entries++;
        store->visits.bytes[place->tier] += visit->bytes;
    }
    assert(!visit->lent && visit->handle == entry->handle);
    if (!visit->pinned && place == entry->place) visit_pin(store, visit);
    visit->visitors++;
    place->readers++;
    return visit;
}

/* Ends a visitor's part of it. The place may be gone afterwards. Lock held. */
static void visit_leave(kvt_store *store, store_visit *visit)
{
    store_place *place = visit->place;
    assert(store_is_locked(store) && visit->visitors > 0 && place->readers >= visit->visitors);
    if (--visit->visitors == 0) {
        store_visit **at = visit_bucket(&store->visits, place);
        while (*at != visit)
            at = &(*at)->next;
        *at = visit->next;
        visit_unpin(store, visit);
        if (visit->lent) visit_set_lent(store, visit, false);
        store->visits.entries--;
        store->visits.bytes[place->tier] -= visit->bytes;
        place->visited = false;
        /* From here on its room is owed to moves that wait for some (place_drain). */
        if (place->left != PLACE_HELD) store->draining[place->tier]++;
        free(visit);
    }
    place_leave(store, place);
}

/* Fills in where the entry's bytes are. KVT_E_UNSUPPORTED: its memory is not lent. Lock held. */
static kvt_status visit_describe(kvt_store *store, const store_entry *entry,
                                 const store_place *place, scratch_visited *visited)
{
    tiers_pool *pool = store->pools[place->tier];
    visited->tier = (kvt_tier)place->tier;
    visited->location = place->location;
    visited->offset = codecs_head_bytes(&entry->kind->layout, place->variant);
    visited->bytes = entry->kind->source_bytes;
    if (visited->offset == 0 || visited->offset > place->record_bytes ||
        visited->bytes > place->record_bytes - visited->offset)
        return KVT_E_UNSUPPORTED;
    if (visited->tier == KVT_TIER_SSD) return KVT_OK;
    const uint8_t *memory = tiers_pool_lend(pool, place->location);
    if (memory == NULL) return KVT_E_UNSUPPORTED;
    visited->memory = memory + visited->offset;
    return KVT_OK;
}

kvt_status visit_begin(kvt_store *store, const store_entry *entry, bool memory,
                       scratch_visited *visited)
{
    store_place *place = visit_choose(store, entry, memory);
    if (place == NULL) return KVT_E_UNSUPPORTED;
    kvt_status status = visit_describe(store, entry, place, visited);
    if (status != KVT_OK) return status;
    visited->visit = visit_enter(store, entry, place);
    if (visited->visit != NULL) return KVT_OK;
    if (visited->memory != NULL)
        tiers_pool_take_back(store->pools[visited->tier], visited->location, KVT_IO_READ, 0);
    return KVT_E_MEMORY;
}

void scratch_leave(kvt_store *store, scratch_visited *visited)
{
    if (visited->visit == NULL) return;
    pthread_mutex_lock(&store->lock);
    if (visited->memory != NULL)
        tiers_pool_take_back(store->pools[visited->tier], visited->location, KVT_IO_READ, 0);
    visit_leave(store, visited->visit);
    pthread_mutex_unlock(&store->lock);
    *visited = (scratch_visited){.visit = NULL};
}
