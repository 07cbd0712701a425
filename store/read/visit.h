/* SPDX-License-Identifier: Apache-2.0 */
/*
 * visit.h - records of entries that are read where they lie; scratch.h has the calls. The data are
 * under the control lock.
 *
 *     visit    one per place that is visited: how many read it
 *              AT HOME   the place is the entry's, which is pinned in the policy, or its copy
 *              LENT      the entry has left the place, or the policy: the bytes count as lent
 *
 *     (none) --scratch_visit--> AT HOME --entry deleted, lost, moved off a drive--> LENT
 *                                 ^ |                                                 |
 *                                 +-|--------- its device came back ------------------+
 *                                   +--------> the last visitor leaves <--------------+
 *
 * A visited place has a reader for each visitor, so its extents stay until the last one has left.
 *
 * Thread rule: the store's lock, in every function.
 */
#ifndef STORE_VISIT_H
#define STORE_VISIT_H

#include <kvterrace/kvterrace.h>
#include <stdbool.h>
#include <stdint.h>

struct scratch_visited;
struct store_entry;
struct store_place;

typedef struct store_visit {
    struct store_visit *next; /* in its bucket */
    struct store_place *place;
    uint64_t handle;     /* of the entry that was visited */
    uint64_t bytes;      /* of the record */
    uint64_t lent_bytes; /* while LENT: extents on members that are there */
    uint32_t visitors;   /* above 0 */
    bool pinned;         /* AT HOME in the entry's place. Never a copy, whose entry may leave the
                            tier above it */
    bool lent;
} store_visit;

#define VISIT_BUCKETS 256u

/* The visits of a store. entries and bytes count those AT HOME. */
typedef struct store_visits {
    uint64_t entries;
    uint64_t bytes[KVT_TIER_COUNT];
    store_visit *buckets[VISIT_BUCKETS];
} store_visits;

/* Begins a visit of an entry at rest: statuses as of scratch_visit. */
KVT_NODISCARD kvt_status visit_begin(kvt_store *store, const struct store_entry *entry, bool memory,
                                     struct scratch_visited *visited);

/* The policy has forgotten the entry of a visited place, or the entry has another place: the bytes
 * are lent from now on. Nothing for a place that is LENT already. */
void visit_lose_entry(kvt_store *store, struct store_place *place);

/* An entry is back at its place, and in the policy. */
void visit_find_entry(kvt_store *store, const struct store_entry *entry);

#endif
