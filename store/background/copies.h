/* SPDX-License-Identifier: Apache-2.0 */
/*
 * copies.h - copies on SSD beside places above (copies.c).
 *
 * Thread rule: the store's lock, as each function says.
 */
#ifndef STORE_COPIES_H
#define STORE_COPIES_H

#include "store/core/entry.h"

/* Copies on SSD beside places above (copies.c). Under store->lock. */
typedef struct store_copies {
    bool kept;            /* fixed after open */
    uint64_t total;       /* listed or not */
    uint64_t bytes;       /* of all of them */
    store_entry **listed; /* entries whose copy may be dropped, in no order */
    uint32_t count;
    uint32_t room;
    uint64_t draw; /* what is drawn next */
} store_copies;

/* Keeps a place on SSD that a promotion leaves behind as the entry's copy. False when it may not be
 * kept: it is the caller's still. Lock held. */
bool copies_attach(kvt_store *store, store_entry *entry, store_place *place);

/* Takes an entry's copy away from it; NULL when it has none. The caller's to give back. Lock held.
 */
store_place *copies_detach(kvt_store *store, store_entry *entry);

/* Drops an entry's copy, if any. Lock held. */
void copies_drop(kvt_store *store, store_entry *entry);

/* Whether the entry's copy is the record that a move would write. If so the copy is not dropped
 * until copies_let_go. Lock held. */
bool copies_hold(kvt_store *store, store_entry *entry, const kvt_move *move);
void copies_let_go(kvt_store *store, store_entry *entry);

/* Makes the copy the place of a RESIDENT entry whose place cannot be read, and sets the entry aside
 * when the policy has no memory for it. False: there is no copy. Lock held. */
bool copies_fall_back(kvt_store *store, store_entry *entry);

/* Makes the copy the place of a LEAVING entry that the policy evicted from above, and has
 * forgotten, while the SSD tier is below its high watermark with it: the entry is RESIDENT again.
 * False: it leaves. Lock held. */
bool copies_outlast(kvt_store *store, store_entry *entry);

/* Bytes of the SSD tier that a copy may still be written into: below store.high_watermark, above
 * which the policy would make room, and, but at close, with what is kept free. Lock held. */
uint64_t copies_free_bytes(kvt_store *store, bool closing);

/* Drops copies, the least worth first, until some room is free. Lock held; waits for nobody. */
void copies_trim(kvt_store *store);

/* Drops copies up to so many bytes, whose extents come free with the catalog's next commit. False
 * when there was none. No lock held. */
bool copies_reclaim(kvt_store *store, uint64_t bytes);

/* Drops the copies with units on a member of the SSD tier in the mask. Lock held. */
void copies_clear_members(kvt_store *store, uint64_t members);

#endif
