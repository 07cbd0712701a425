/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lifetime.h - entries whose lifetime ends (lifetime.c).
 *
 * Thread rule: the store's lock, as each function says.
 */
#ifndef STORE_LIFETIME_H
#define STORE_LIFETIME_H

#include "store/core/store.h"

/* Before the first entry. */
void lifetime_open(kvt_store *store);

/* Sets when a new entry was made, and its end; 0 seconds = none. Lock held. */
void lifetime_begin(kvt_store *store, store_entry *entry, double seconds);

/* An entry with an end has come into the table: a walk begins no later than its end. Lock held. */
void lifetime_note(kvt_store *store, const store_entry *entry);

/* Seconds since the put of an entry, or since the open that took it over. Lock held. */
double lifetime_age_seconds(const kvt_store *store, const store_entry *entry);

/* Seconds until the end of an entry's lifetime, above 0; 0 = it has no end. Lock held. */
double lifetime_left_seconds(const kvt_store *store, const store_entry *entry);

/* The end of an entry as the calendar has it, for its catalog row, and back; 0 = none. A row whose
 * end has passed sets an end that has passed. */
uint64_t lifetime_to_calendar(const kvt_store *store, const store_entry *entry);
void lifetime_from_calendar(kvt_store *store, store_entry *entry, uint64_t expires_ns);

/* Whether the entry's lifetime has ended: no lookup sees it then. */
static inline bool lifetime_is_over(const kvt_store *store, const store_entry *entry)
{
    return entry->expires_ns != 0 && store_now_ns(store) >= entry->expires_ns;
}

/* Whether a lookup may see the entry, which may be NULL. Lock held. */
static inline bool lifetime_shows(const kvt_store *store, const store_entry *entry)
{
    return entry != NULL && entry_is_readable(entry) && !lifetime_is_over(store, entry);
}

/* Removes entries whose lifetime has ended. In the background round; no lock held. */
void lifetime_round(kvt_store *store);

#endif
