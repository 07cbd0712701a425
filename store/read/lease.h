/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lease.h - entries that are held where they are until an instant. The file's data are under the
 * control lock; lookup.h has the public contracts.
 *
 *     lease    {number, owner, end} -> items {handle, serial}, one for each entry that it holds
 *     hold     one per held entry: how many leases hold it, and the bytes that count for it
 *
 * An entry is pinned in the policy while it has a hold. An entry that leaves takes its hold along;
 * the items of its leases name the hold by handle and serial, so that they never release the hold
 * of a later entry with the same key.
 *
 * Thread rule: the store's lock, in every function.
 */
#ifndef STORE_LEASE_H
#define STORE_LEASE_H

#include <kvterrace/kvterrace.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct kvt_queue;
struct store_entry;

/* What a lease holds of one key. The hold is found by the handle; another serial says that this
 * hold went with its entry, and that the one found is a later entry's. */
typedef struct lease_item {
    uint64_t handle;
    uint64_t serial; /* of the hold */
} lease_item;

/* An open lease. Its items are in one allocation with it, and fixed once it is open. */
typedef struct lease_open {
    struct lease_open *next;
    uint64_t number;
    uint64_t until_ns; /* CLOCK_MONOTONIC */
    const struct kvt_queue *owner;
    size_t count;
    lease_item items[];
} lease_open;

/* One held entry. */
typedef struct lease_hold {
    struct lease_hold *next; /* in its bucket */
    uint64_t handle;
    uint64_t serial;
    uint64_t bytes;
    kvt_tier tier;
    uint32_t leases; /* that hold it; above 0 */
    bool pinned;     /* in the policy; false while a move that had begun goes on */
} lease_hold;

#define LEASE_BUCKETS 1024u

/* The leases of a store. `entries` and `bytes` are sums over the holds and not over the leases, so
 * an entry that two leases hold counts once. Under store->lock. */
typedef struct store_leases {
    lease_open *open; /* in no order */
    uint64_t next_ns; /* no lease ends before; UINT64_MAX = there is none */
    uint64_t numbers; /* given out, ever */
    uint64_t serials; /* of holds, ever */
    kvt_lease_stats counts;
    lease_hold *buckets[LEASE_BUCKETS];
} store_leases;

/* ---- lease_holds.c ---- */

/* The bucket of a handle, and the hold of a handle, or NULL. */
lease_hold **lease_bucket(store_leases *leases, uint64_t handle);
lease_hold *lease_find_hold(store_leases *leases, uint64_t handle);

/* Sets the instant at which lease_expire has work again. */
void lease_find_next(store_leases *leases);

/* Ends the lease that *at points to. */
void lease_end(kvt_store *store, lease_open **at);

/* Ends the leases whose instant has come. Before every call on the policy that may plan. */
void lease_expire(kvt_store *store);

/* Ends the leases of a queue that closes. */
void lease_end_owner(kvt_store *store, const struct kvt_queue *owner);

/* A move of the entry has ended, and the entry is at rest: it is held from now on. */
void lease_settle(kvt_store *store, struct store_entry *entry);

/* The policy has forgotten the entry, and its pin with it: nothing holds it any more. */
void lease_forget(kvt_store *store, struct store_entry *entry);

/* Frees everything; the store closes. */
void lease_close(kvt_store *store);

#endif
