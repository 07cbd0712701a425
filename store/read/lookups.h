/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lookups.h - what a lookup finds: a stored entry whose lifetime lasts and which a get can read.
 *
 * Thread rule: the store's lock is held.
 */
#ifndef STORE_LOOKUPS_H
#define STORE_LOOKUPS_H

#include "store/background/lifetime.h"
#include "store/core/store.h"

#include <kvterrace/lookup.h>

/* Whether an entry that is readable is in a form whose basis the store lacks. Lock held. */
static inline bool lookup_lacks_basis(const kvt_store *store, const store_entry *entry)
{
    return entry->state != ENTRY_STAGED && !bases_has(store, entry->place->variant);
}

/* Whether a lookup finds the entry, which may be NULL: it shows, and a get can read it. Lock held.
 */
static inline bool lookup_finds(const kvt_store *store, const store_entry *entry)
{
    return lifetime_shows(store, entry) && !lookup_lacks_basis(store, entry);
}

/* ---- worth.c ---- */

/* Whether a caller's struct has a size that some version of this library has had. */
bool worth_is_sound(const kvt_worth *worth);

/* Fills it for a prefix. No lock held. */
void worth_find(kvt_store *store, const kvt_key *keys, size_t count, kvt_worth *worth);

#endif
