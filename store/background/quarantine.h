/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quarantine.h - what becomes of entries whose place cannot be read, and of those on devices that
 * go out of service (quarantine.c).
 *
 * Thread rule: the store's lock is held where a function says so.
 */
#ifndef STORE_QUARANTINE_H
#define STORE_QUARANTINE_H

#include "store/core/entry.h"

#include <kvterrace/watch.h>

/* Looks whether a tier lost a member; then takes the member's entries out of the table and lowers
 * the policy's capacity. Lock held. */
void quarantine_refresh_tier(kvt_store *store, kvt_tier tier);

/* Whether a read of the place failed because its device was gone, and the device serves again: it
 * came in with the content that the store knows of, so the place holds what it held. Lock held. */
bool quarantine_is_back(kvt_store *store, const store_place *place, kvt_status status);

/* Takes a RESIDENT entry that cannot be read out of the table: quarantined when a device of it is
 * gone and may come back, else dropped. Lock held. */
void quarantine_lose_entry(kvt_store *store, store_entry *entry, kvt_event_reason reason);

/*
 * The rule for every read and decode of a RESIDENT entry's place that failed, of gets, loads and
 * moves alike. What is lost goes as quarantine_lose_entry says: KVT_E_CORRUPT (the record's own
 * checksums, key or generation: place_check), or a device of the place is out of service. With any
 * other failure the entry goes onto its copy, or stays where it is, and a put of its key stores it
 * anew. True when the entry has left the place. Lock held.
 */
bool quarantine_note_failure(kvt_store *store, store_entry *entry, kvt_status failure);

/* Puts a RESIDENT entry that the policy does not know, and that has no copy, into quarantine: it
 * comes back when its members serve and the policy takes it. Lock held. */
void quarantine_set_aside(kvt_store *store, store_entry *entry, kvt_event_reason reason);

/* Takes a RESIDENT entry out of store and policy. Lock held. */
void quarantine_drop_entry(kvt_store *store, store_entry *entry, kvt_event_reason reason);

/* Drops the quarantined entry of a key, if any. Lock held. */
void quarantine_forget_key(kvt_store *store, const kvt_key *key);

/* Drops quarantined entries of a tier that hold room on members that serve, up to so many bytes.
 * False when there was none. No lock held. */
bool quarantine_reclaim(kvt_store *store, kvt_tier tier, uint64_t bytes);

/* Takes out the entries of moves that have ended on a member that is gone: no change of the member
 * finds an entry while it moves. After the moves were committed or aborted; afterwards the entries
 * are the caller's no more. Lock held. */
void quarantine_settle(kvt_store *store, const kvt_move *moves, uint32_t count);

/* Drops the entries quarantined on members in the mask. Lock held. */
void quarantine_drop_members(kvt_store *store, kvt_tier tier, uint64_t members);

/* Takes quarantined entries back whose devices all serve again. An entry that finds no memory stays
 * quarantined and is owed (store->returns_owed): the background tries again. No lock held. */
void quarantine_bring_back(kvt_store *store, kvt_tier tier);

/* ---- members.c ---- */

/* Queues the wear of SSD members that wrote at least so much since the last time. Any thread: the
 * catalog's writer calls it before a batch, the closer beside it. */
void members_note_wear(kvt_store *store, uint64_t bytes);

#endif
