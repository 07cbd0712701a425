/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lease.c - leases: the calls of their owners. The file moves nothing: a hold is a pin in the
 * policy, which plans around it.
 *
 * Thread rule: the public calls take the control lock; all else is under it.
 */
#include "base/clock.h"
#include "base/struct_size.h"
#include "store/core/plans.h"
#include "store/read/lookups.h"

#include <assert.h>
#include <kvterrace/lookup.h>
#include <stdlib.h>
#include <string.h>

#define LEASE_KEYS_MAX (UINT64_C(1) << 20)
#define LEASE_STEP     256u /* keys under one hold of the lock */

/* ---- holds ---- */

/* Whether the bytes of one more entry stay within the leases' part of its tier, which above the SSD
 * they share with visits. */
static bool lease_fits(const kvt_store *store, const store_entry *entry)
{
    kvt_tier tier = entry->place->tier;
    uint64_t bytes = store->leases.counts.bytes[tier] + entry->place->record_bytes;
    if (tier < KVT_TIER_SSD) bytes += store->visits.bytes[tier];
    /* The other half stays the policy's: a tier that is held in whole could take nothing new. */
    return bytes <= store_policy_capacity(store, tier) / 2;
}

/* Makes the first hold of an entry, and pins it. A move of it that has begun ends first, and
 * lease_settle pins the entry then. NULL: it cannot be held. */
static lease_hold *lease_make_hold(kvt_store *store, store_entry *entry)
{
    store_leases *leases = &store->leases;
    assert(store_is_locked(store) && entry->place != NULL);
    assert(!entry->leased && lease_find_hold(leases, entry->handle) == NULL);
    if (!lease_fits(store, entry)) {
        leases->counts.refused_bound++;
        return NULL;
    }
    lease_hold *hold = calloc(1, sizeof *hold);
    if (hold == NULL) return NULL;
    *hold = (lease_hold){.handle = entry->handle,
                         .serial = ++leases->serials,
                         .bytes = entry->place->record_bytes,
                         .tier = entry->place->tier};
    hold->next = *lease_bucket(leases, entry->handle);
    *lease_bucket(leases, entry->handle) = hold;
    leases->counts.entries++;
    leases->counts.bytes[hold->tier] += hold->bytes;
    entry->leased = true;
    /* An entry in motion is pinned by lease_settle, once its move has ended. */
    hold->pinned = kvt_policy_pin(store->policy, entry->handle) == KVT_OK;
    return hold;
}

/* The entry of a key that can be held, or NULL. Lock held. */
static store_entry *lease_find_entry(const kvt_store *store, const kvt_key *key)
{
    store_entry *entry = entry_find_key(&store->table, key);
    return lookup_finds(store, entry) && entry_is_visible(entry) ? entry : NULL;
}

/* Holds the entry of a key for a lease. False: nothing to hold. Lock held. */
static bool lease_hold_key(kvt_store *store, const kvt_key *key, lease_open *lease)
{
    store_entry *entry = lease_find_entry(store, key);
    /* A call-off may settle entries of devices that failed: the table is looked at again. */
    if (entry != NULL && entry->state == ENTRY_MOVING && !entry->leased &&
        plan_cancel(store, entry->handle))
        entry = lease_find_entry(store, key);
    if (entry == NULL) return false;
    lease_hold *hold = entry->leased ? lease_find_hold(&store->leases, entry->handle)
                                     : lease_make_hold(store, entry);
    assert(hold != NULL || !entry->leased);
    if (hold == NULL) return false;
    hold->leases++;
    lease->items[lease->count++] = (lease_item){hold->handle, hold->serial};
    return true;
}

/* ---- leases ---- */

/* Opens a filled lease. Lock held. */
static uint64_t lease_enter(store_leases *leases, lease_open *lease)
{
    assert(lease->count > 0 && (leases->open == NULL) == (leases->counts.leases == 0));
    lease->number = ++leases->numbers;
    lease->next = leases->open;
    leases->open = lease;
    leases->counts.leases++;
    leases->counts.granted++;
    if (lease->until_ns < leases->next_ns || leases->counts.leases == 1)
        leases->next_ns = lease->until_ns;
    assert(leases->next_ns <= lease->until_ns);
    return lease->number;
}

kvt_status kvt_lease_begin(kvt_store *store, struct kvt_queue *owner, const kvt_key *keys,
                           size_t count, uint64_t until_ns, bool *held_out, uint64_t *lease_out)
{
    const base_store_calls *other = base_store_calls_of(store);
    if (other != NULL)
        return BASE_CALL(other, lease_begin, store, owner, keys, count, until_ns, held_out,
                         lease_out);
    if (store == NULL || lease_out == NULL || (keys == NULL && count != 0)) return KVT_E_ARGUMENT;
    if (!fork_guard_is_ours(store)) return KVT_E_STATE;
    *lease_out = 0;
    if (count > LEASE_KEYS_MAX || until_ns <= base_clock_ns()) return KVT_E_ARGUMENT;
    lease_open *lease = malloc(sizeof *lease + count * sizeof *lease->items);
    if (lease == NULL) return KVT_E_MEMORY;
    *lease = (lease_open){.until_ns = until_ns, .owner = owner};
    for (size_t from = 0; from < count; from += LEASE_STEP) {
        size_t end = count - from < LEASE_STEP ? count : from + LEASE_STEP;
        pthread_mutex_lock(&store->lock);
        if (from == 0) lease_expire(store);
        for (size_t i = from; i < end; i++) {
            bool held = lease_hold_key(store, &keys[i], lease);
            if (held_out != NULL) held_out[i] = held;
        }
        pthread_mutex_unlock(&store->lock);
    }
    assert(lease->count <= count);
    if (lease->count == 0) {
        free(lease);
        return KVT_MISS;
    }
    pthread_mutex_lock(&store->lock);
    *lease_out = lease_enter(&store->leases, lease);
    pthread_mutex_unlock(&store->lock);
    return KVT_OK;
}

/* The pointer to an open lease, or to the NULL at the end. Lock held. */
static lease_open **lease_find(store_leases *leases, uint64_t number)
{
    lease_open **at = &leases->open;
    while (*at != NULL && (*at)->number != number)
        at = &(*at)->next;
    return at;
}

kvt_status kvt_lease_extend(kvt_store *store, uint64_t number, uint64_t until_ns)
{
    const base_store_calls *other = base_store_calls_of(store);
    if (other != NULL) return BASE_CALL(other, lease_extend, store, number, until_ns);
    if (store == NULL || until_ns <= base_clock_ns()) return KVT_E_ARGUMENT;
    if (!fork_guard_is_ours(store)) return KVT_E_STATE;
    pthread_mutex_lock(&store->lock);
    lease_expire(store);
    lease_open *lease = *lease_find(&store->leases, number);
    if (lease != NULL) lease->until_ns = until_ns;
    lease_find_next(&store->leases);
    pthread_mutex_unlock(&store->lock);
    return lease != NULL ? KVT_OK : KVT_MISS;
}

kvt_status kvt_lease_end(kvt_store *store, uint64_t number)
{
    const base_store_calls *other = base_store_calls_of(store);
    if (other != NULL) return BASE_CALL(other, lease_end, store, number);
    if (store == NULL) return KVT_E_ARGUMENT;
    if (!fork_guard_is_ours(store)) return KVT_E_STATE;
    pthread_mutex_lock(&store->lock);
    lease_expire(store);
    lease_open **at = lease_find(&store->leases, number);
    bool found = *at != NULL;
    if (found) {
        lease_end(store, at);
        store->leases.counts.released++;
        lease_find_next(&store->leases);
    }
    pthread_mutex_unlock(&store->lock);
    return found ? KVT_OK : KVT_MISS;
}
