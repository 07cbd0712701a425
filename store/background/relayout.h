/* SPDX-License-Identifier: Apache-2.0 */
/*
 * relayout.h - objects are laid out anew over the devices of their tier (relayout.c).
 *
 * Thread rule: the store's lock, as each function says.
 */
#ifndef STORE_RELAYOUT_H
#define STORE_RELAYOUT_H

#include "store/core/entry.h"

#define STORE_RELAYOUTS_QUEUED 64u

/* Objects of one tier that are to be laid out anew, and the budget for that. Under store->lock. */
typedef struct store_relayout {
    uint64_t bytes_per_s; /* fixed after open; 0 = hot objects stay as they are */
    double tokens;        /* bytes that may be moved now */
    uint64_t earned_ns;   /* up to when tokens were earned */
    uint32_t count;
    uint64_t handles[STORE_RELAYOUTS_QUEUED];
    size_t drain_bucket; /* where the walk over the table goes on */
} store_relayout;

/* Looks at the layout of an entry that is being read; one that fell behind is queued at its second
 * such get. Lock held. */
void relayout_note_get(kvt_store *store, store_entry *entry);

/* Moves queued objects within the tiers' budgets, and objects on draining members within the
 * round's. insist: the policy's tick made no room, so an object that finds no room on its way off a
 * member is dropped. In the background round; no lock held. */
void relayout_round(kvt_store *store, bool insist, uint64_t *budget, uint32_t *moves_done);

#endif
