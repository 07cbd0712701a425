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
 * lifetime_walk.c removes what has ended.
 *
 * Thread rule: the store's control lock, as store.h says.
 */
#include "store/lifetime.h"
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
