/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scratch.h - bytes of a store's tiers lent to somebody who keeps there what is not an entry: the
 * pages and windows of a sparse sequence.
 *
 *     const scratch_wish wishes[] = {
 *         {.tier = KVT_TIER_SSD, .bytes = pages, .worth_per_byte = INFINITY},
 *         {.tier = KVT_TIER_DRAM, .bytes = window, .worth_per_byte = saved_per_byte}};
 *     status = scratch_open(store, wishes, 2, &scratch, missing);
 *     status = scratch_reserve(scratch, KVT_TIER_SSD, bytes, page_bytes, UINT64_MAX, &location);
 *     ... transfers over scratch_pool(scratch, KVT_TIER_SSD) ...
 *     scratch_release(scratch, KVT_TIER_SSD, location);
 *     scratch_close(scratch);
 *
 * What is lent is taken out of the capacity that the policy plans with, before anything is written,
 * and is the policy's again from the close on. Nothing durable names it: after a crash the next
 * open of the store finds the extents free. Free room is lent as it is. Where entries fill a tier,
 * the borrower competes with them at the policy's price, which has its unit: seconds saved per
 * second and byte. Entries make way for a wish that is worth more; else the wish is refused.
 *
 * Somebody may also read entries where they lie (scratch_visit), which takes no room.
 *
 * A member that goes takes its extents of the scratch with it; the borrower sees the status of its
 * reads. A member that is drained keeps them until they are released, so it is not removed before.
 *
 * Thread rule: all functions from any thread; one thread at a time opens and closes a scratch. A
 * store is closed after its scratches.
 */
#ifndef STORE_SCRATCH_H
#define STORE_SCRATCH_H

#include <kvterrace/kvterrace.h>

#include "tiers/pool/pool.h"

#include <pthread.h>

typedef struct store_scratch store_scratch;

/* Room in one tier. */
typedef struct scratch_wish {
    kvt_tier tier;
    uint64_t bytes;
    double worth_per_byte; /* seconds saved per second and byte; INFINITY: entries make way whatever
                              they are worth; 0: free room alone */
} scratch_wish;

/*
 * Borrows; each tier is named at most once. missing_out, or NULL, has KVT_TIER_COUNT places: how
 * many bytes each tier lacks, zeros with KVT_OK. KVT_OK; KVT_E_SPACE: nothing is lent;
 * KVT_E_UNSUPPORTED (the store has no such tier); KVT_E_MEMORY. Blocks while entries make way, 10 s
 * at most.
 */
KVT_NODISCARD kvt_status scratch_open(kvt_store *store, const scratch_wish *wishes, uint32_t count,
                                      store_scratch **scratch_out, uint64_t *missing_out);

/* Borrows more of a tier, as scratch_open. KVT_OK; KVT_E_SPACE; KVT_E_UNSUPPORTED. */
KVT_NODISCARD kvt_status scratch_grow(store_scratch *scratch, const scratch_wish *wish,
                                      uint64_t *missing_out);

/* The store that lends. */
kvt_store *scratch_store(const store_scratch *scratch);

/* Whether the store is this process's own: in a child of fork nothing of a scratch may be touched,
 * because its threads are the parent's. */
bool scratch_is_ours(const kvt_store *store);

/* The lock under which heads of kept sequences are put and deleted; before all others. One of the
 * process would stay locked in a child of fork, whose own stores need it. */
pthread_mutex_t *scratch_kept_lock(kvt_store *store);

/* Gives everything back; all locations have been released. NULL is allowed. */
void scratch_close(store_scratch *scratch);

/* The pool that the locations of a tier are of. */
tiers_pool *scratch_pool(const store_scratch *scratch, kvt_tier tier);

/* Bytes of a tier that are lent, and those of them that no location holds. */
uint64_t scratch_lent(const store_scratch *scratch, kvt_tier tier);
uint64_t scratch_free(store_scratch *scratch, kvt_tier tier);

/*
 * Takes extents within what is lent, as tiers_pool_reserve_on (unit_bytes 0: the pool's unit).
 * Copies of entries that lie in the room make way. KVT_OK; KVT_E_SPACE (beyond what is lent, or the
 * members of the mask do not hold it); KVT_E_MEMORY; KVT_E_DATABASE, KVT_E_IO (rows of entries that
 * made way are not gone). May wait for the catalog.
 */
KVT_NODISCARD kvt_status scratch_reserve(store_scratch *scratch, kvt_tier tier, uint64_t bytes,
                                         uint32_t unit_bytes, uint64_t members,
                                         tiers_location **location_out);
void scratch_release(store_scratch *scratch, kvt_tier tier, tiers_location *location);

/* An opaque entry that is read in place. */
typedef struct scratch_visited {
    struct store_visit *visit; /* the store's; NULL: no visit */
    kvt_tier tier;
    const tiers_location *location; /* of the entry's record, in the tier's pool */
    uint64_t offset;                /* of the entry's bytes in it, a multiple of the grain */
    uint64_t bytes;                 /* of the entry */
    const uint8_t *memory; /* the entry's bytes, in a tier of memory; NULL: they are read by
                                       transfers */
} scratch_visited;

/*
 * Begins to read an entry where it lies, in its place or in its copy on SSD, and counts a use of
 * it. Until scratch_leave the bytes stay as and where they are, and no plan evicts, moves or codes
 * an entry whose place is visited. It can be deleted, lost with its device, and moved off a device
 * that is drained: then its bytes count as lent, and are free when the last visitor has left;
 * nobody waits for that. Reads of a device that has gone give
 * KVT_E_GONE. Checksums are the caller's: the record's are not looked at.
 *
 *   memory   false: an entry whose place is on SSD, and no other
 * KVT_OK; KVT_MISS (not stored); KVT_E_MISMATCH (not opaque); KVT_E_UNSUPPORTED (its record is
 * coded, or lies above the SSD and not in memory in one piece, or visits and leases would hold more
 * than half of that tier, and there is no copy); KVT_E_MEMORY. Waits for a put or a move of the
 * entry.
 */
KVT_NODISCARD kvt_status scratch_visit(kvt_store *store, const kvt_key *key, bool memory,
                                       scratch_visited *visited_out);
/* Ends a visit; its transfers have ended or were abandoned. A zeroed one is allowed. */
void scratch_leave(kvt_store *store, scratch_visited *visited);

#endif
