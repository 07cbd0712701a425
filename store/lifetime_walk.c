/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lifetime_walk.c - the background's walk over the entries whose lifetime has ended. The instants
 * are lifetime.c's.
 *
 *     next_ns reached -> walk begins, next_ns = none -> LIFETIME_STEPS steps a round -> walk ends
 *
 * A walk removes what has ended and is at rest, and lowers next_ns to the least end of what
 * remains; what is in motion or being read is left to the next walk. Buckets that are added during
 * a walk lie behind it, so no entry is passed over.
 *
 * Thread rule: the store's control lock, as store.h says; a walk lets it go after each step.
 */
#include "store/lifetime.h"

#include <assert.h>

#define LIFETIME_BUCKETS 256u /* looked at under one hold of the lock */
#define LIFETIME_STEPS   32u  /* such holds in one background round */

bool lifetime_is_due(const kvt_store *store)
{
    assert(store_is_locked(store));
    return store->lifetimes.walking || store_now_ns(store) >= store->lifetimes.next_ns;
}

/* Whether an entry can be removed without waiting for anybody. Lock held. */
static bool lifetime_is_at_rest(const store_entry *entry)
{
    return entry->state == ENTRY_RESIDENT && entry->place->readers == 0 &&
           (entry->copy == NULL || entry->copy->readers == 0);
}

/* Looks at the entries of one bucket. Lock held throughout: removing waits for nobody. */
static void lifetime_look(kvt_store *store, store_entry *entry)
{
    while (entry != NULL) {
        store_entry *next = entry->next;
        if (lifetime_is_over(store, entry) && lifetime_is_at_rest(entry)) {
            store->counters.expired++;
            quarantine_drop_entry(store, entry, KVT_REMOVED_EXPIRED);
        } else {
            lifetime_note(store, entry);
        }
        entry = next;
    }
}

/* Looks at the next buckets. Lock held. */
static void lifetime_step(kvt_store *store)
{
    assert(store_is_locked(store) && store->lifetimes.walking);
    store_lifetimes *lifetimes = &store->lifetimes;
    for (uint32_t i = 0; i < LIFETIME_BUCKETS && lifetimes->walking; i++) {
        if (lifetimes->bucket < store->table.bucket_count)
            lifetime_look(store, store->table.buckets[lifetimes->bucket++]);
        else
            lifetimes->walking = false;
    }
}

void lifetime_round(kvt_store *store)
{
    store_lifetimes *lifetimes = &store->lifetimes;
    pthread_mutex_lock(&store->lock);
    /* next_ns begins at "none": the walk and puts meanwhile lower it to the ends that they see. */
    if (!lifetimes->walking) *lifetimes = (store_lifetimes){.next_ns = UINT64_MAX, .walking = true};
    for (uint32_t i = 0; i < LIFETIME_STEPS && lifetimes->walking && !store->stopping; i++) {
        lifetime_step(store);
        pthread_mutex_unlock(&store->lock); /* lookups come in between */
        pthread_mutex_lock(&store->lock);
    }
    pthread_mutex_unlock(&store->lock);
}
