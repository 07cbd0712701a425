/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lifetime.c - entries that end at an instant (kvt_entry.lifetime_seconds), and how old they are.
 *
 * An entry whose lifetime has ended is a miss at once, because every lookup asks lifetime_shows;
 * its room comes back when the background meets it, or when its key is put again. The store counts
 * on its own clock, which nobody sets. A catalog row has the end by the calendar instead, so that
 * lifetimes go on while the store is closed; a calendar that is set moves the ends of the next
 * life.
 *
 *     next_ns reached -> walk begins, next_ns = none -> LIFETIME_STEPS steps a round -> walk ends
 *
 * The background's walk removes what has ended and is at rest, and lowers next_ns to the least end
 * of what remains; what is in motion or being read is left to the next walk. Buckets that are added
 * during a walk lie behind it, so no entry is passed over. It lets the lock go after each step.
 *
 * Thread rule: the store's control lock, as lifetime.h says.
 */
#include "store/background/lifetime.h"
#include "base/clock.h"

#include <assert.h>

#define LIFETIME_TICK_NS 62500000u /* of store_entry.since */

void lifetime_open(kvt_store *store)
{
    store->lifetimes.next_ns = UINT64_MAX;
}

/* The present time in units of store_entry.since. */
static uint32_t lifetime_tick(const kvt_store *store)
{
    uint64_t ticks = store_now_ns(store) / LIFETIME_TICK_NS;
    return ticks < UINT32_MAX ? (uint32_t)ticks : UINT32_MAX;
}

void lifetime_note(kvt_store *store, const store_entry *entry)
{
    assert(store_is_locked(store));
    if (entry->expires_ns != 0 && entry->expires_ns < store->lifetimes.next_ns)
        store->lifetimes.next_ns = entry->expires_ns;
}

/* Sets an entry's end, and the beginning of the next walk. */
static void lifetime_set(kvt_store *store, store_entry *entry, uint64_t expires_ns)
{
    entry->expires_ns = expires_ns;
    entry->since = lifetime_tick(store);
    lifetime_note(store, entry);
}

void lifetime_begin(kvt_store *store, store_entry *entry, double seconds)
{
    assert(seconds >= 0 && seconds <= 1e9);
    assert(store_is_locked(store));
    uint64_t ns = (uint64_t)(seconds * 1e9);
    lifetime_set(store, entry, seconds > 0 ? store_now_ns(store) + ns : 0);
}

double lifetime_age_seconds(const kvt_store *store, const store_entry *entry)
{
    assert(store_is_locked(store));
    return (double)(lifetime_tick(store) - entry->since) * (LIFETIME_TICK_NS * 1e-9);
}

/* Nanoseconds until the end of an entry that has one; 0 when it has passed. */
static uint64_t lifetime_left_ns(const kvt_store *store, const store_entry *entry)
{
    assert(entry->expires_ns != 0);
    uint64_t now_ns = store_now_ns(store);
    return entry->expires_ns > now_ns ? entry->expires_ns - now_ns : 0;
}

double lifetime_left_seconds(const kvt_store *store, const store_entry *entry)
{
    if (entry->expires_ns == 0) return 0;
    return (double)(lifetime_left_ns(store, entry) + 1) * 1e-9; /* never 0, which is "no end" */
}

uint64_t lifetime_to_calendar(const kvt_store *store, const store_entry *entry)
{
    return entry->expires_ns == 0 ? 0 : base_calendar_ns() + lifetime_left_ns(store, entry);
}

void lifetime_from_calendar(kvt_store *store, store_entry *entry, uint64_t expires_ns)
{
    assert(expires_ns <= INT64_MAX);
    uint64_t calendar_ns = base_calendar_ns();
    /* An end that has passed becomes the present: the first walk removes the entry. */
    uint64_t left_ns = expires_ns > calendar_ns ? expires_ns - calendar_ns : 0;
    lifetime_set(store, entry, expires_ns != 0 ? store_now_ns(store) + left_ns : 0);
}

/* ---- what has ended ---- */

#define LIFETIME_BUCKETS 256u /* looked at under one hold of the lock */
#define LIFETIME_STEPS   32u  /* such holds in one background round */

/* Looks at the entries of one bucket. Lock held throughout: removing waits for nobody. */
static void lifetime_look(kvt_store *store, store_entry *entry)
{
    while (entry != NULL) {
        store_entry *next = entry->next;
        /* Only an entry that can be removed without waiting for anybody. */
        if (lifetime_is_over(store, entry) && entry->state == ENTRY_RESIDENT &&
            entry->place->readers == 0 && (entry->copy == NULL || entry->copy->readers == 0)) {
            store->counters.expired++;
            quarantine_drop_entry(store, entry, KVT_REMOVED_EXPIRED);
        } else {
            lifetime_note(store, entry);
        }
        entry = next;
    }
}

void lifetime_round(kvt_store *store)
{
    store_lifetimes *lifetimes = &store->lifetimes;
    pthread_mutex_lock(&store->lock);
    /* next_ns begins at "none": the walk and puts meanwhile lower it to the ends that they see. */
    if (!lifetimes->walking) *lifetimes = (store_lifetimes){.next_ns = UINT64_MAX, .walking = true};
    for (uint32_t i = 0; i < LIFETIME_STEPS && lifetimes->walking && !store->stopping; i++) {
        for (uint32_t k = 0; k < LIFETIME_BUCKETS && lifetimes->walking; k++) {
            if (lifetimes->bucket < store->table.bucket_count)
                lifetime_look(store, store->table.buckets[lifetimes->bucket++]);
            else
                lifetimes->walking = false;
        }
        pthread_mutex_unlock(&store->lock); /* lookups come in between */
        pthread_mutex_lock(&store->lock);
    }
    pthread_mutex_unlock(&store->lock);
}
