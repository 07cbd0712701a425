/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lease_holds.c - what leases hold, and how leases end. The structures are in lease.h, the calls of
 * owners in lease.c.
 *
 * Thread rule: the store's lock, in every function.
 */
#include "base/clock.h"
#include "store/core/store.h"

#include <assert.h>
#include <stdlib.h>

lease_hold **lease_bucket(store_leases *leases, uint64_t handle)
{
    return &leases->buckets[handle % LEASE_BUCKETS];
}

lease_hold *lease_find_hold(store_leases *leases, uint64_t handle)
{
    lease_hold *hold = *lease_bucket(leases, handle);
    while (hold != NULL && hold->handle != handle)
        hold = hold->next;
    return hold;
}

/* Removes a hold that no lease counts on any more. */
static void lease_drop_hold(store_leases *leases, lease_hold *hold)
{
    lease_hold **at = lease_bucket(leases, hold->handle);
    while (*at != hold)
        at = &(*at)->next;
    *at = hold->next;
    assert(leases->counts.entries > 0 && leases->counts.bytes[hold->tier] >= hold->bytes);
    leases->counts.entries--;
    leases->counts.bytes[hold->tier] -= hold->bytes;
    free(hold);
}

/* Gives up the entries that a lease holds. Lock held. */
static void lease_let_go(kvt_store *store, const lease_open *lease)
{
    assert(store_is_locked(store));
    for (size_t i = 0; i < lease->count; i++) {
        lease_hold *hold = lease_find_hold(&store->leases, lease->items[i].handle);
        /* The entry left, and its hold with it. */
        if (hold == NULL || hold->serial != lease->items[i].serial) continue;
        assert(hold->leases > 0);
        if (--hold->leases != 0) continue;
        store_entry *entry = entry_find_handle(&store->table, hold->handle);
        assert(entry != NULL && entry->leased);
        /* The policy may plan for the entry again, from its next decision on. */
        entry->leased = false;
        if (hold->pinned) (void)!kvt_policy_unpin(store->policy, hold->handle);
        lease_drop_hold(&store->leases, hold);
    }
}

void lease_settle(kvt_store *store, store_entry *entry)
{
    assert(store_is_locked(store));
    if (!entry->leased) return;
    lease_hold *hold = lease_find_hold(&store->leases, entry->handle);
    assert(hold != NULL && hold->leases > 0);
    if (!hold->pinned) hold->pinned = kvt_policy_pin(store->policy, entry->handle) == KVT_OK;
}

void lease_forget(kvt_store *store, store_entry *entry)
{
    assert(store_is_locked(store));
    if (!entry->leased) return;
    entry->leased = false;
    store->leases.counts.lost++;
    lease_hold *hold = lease_find_hold(&store->leases, entry->handle);
    assert(hold != NULL && hold->leases > 0);
    lease_drop_hold(&store->leases, hold);
}

/* Sets the instant at which lease_expire has work again. */
void lease_find_next(store_leases *leases)
{
    leases->next_ns = UINT64_MAX;
    for (const lease_open *lease = leases->open; lease != NULL; lease = lease->next)
        if (lease->until_ns < leases->next_ns) leases->next_ns = lease->until_ns;
}

/* Ends the lease that *at points to. Lock held. */
void lease_end(kvt_store *store, lease_open **at)
{
    lease_open *lease = *at;
    *at = lease->next;
    assert(store_is_locked(store) && store->leases.counts.leases > 0);
    store->leases.counts.leases--;
    lease_let_go(store, lease);
    free(lease);
}

void lease_expire(kvt_store *store)
{
    assert(store_is_locked(store));
    store_leases *leases = &store->leases;
    if (leases->open == NULL) return;
    uint64_t now_ns = base_clock_ns();
    if (now_ns < leases->next_ns) return;
    lease_open **at = &leases->open;
    while (*at != NULL) {
        if ((*at)->until_ns > now_ns) {
            at = &(*at)->next;
            continue;
        }
        lease_end(store, at);
        leases->counts.ran_out++;
    }
    assert((leases->open == NULL) == (leases->counts.leases == 0));
    lease_find_next(leases);
}

void lease_end_owner(kvt_store *store, const struct kvt_queue *owner)
{
    assert(store_is_locked(store) && owner != NULL);
    lease_open **at = &store->leases.open;
    while (*at != NULL) {
        if ((*at)->owner == owner) {
            lease_end(store, at);
            store->leases.counts.released++;
        } else {
            at = &(*at)->next;
        }
    }
    lease_find_next(&store->leases);
}

void lease_close(kvt_store *store)
{
    store_leases *leases = &store->leases;
    while (leases->open != NULL) {
        lease_open *lease = leases->open;
        leases->open = lease->next;
        free(lease);
    }
    for (uint32_t i = 0; i < LEASE_BUCKETS; i++) {
        while (leases->buckets[i] != NULL) {
            lease_hold *hold = leases->buckets[i];
            leases->buckets[i] = hold->next;
            free(hold);
        }
    }
}
