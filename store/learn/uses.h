/* SPDX-License-Identifier: Apache-2.0 */
/*
 * uses.h - entries' uses: they are counted, and what is known of them goes from one life of a store
 * to the next (uses.c).
 *
 * Thread rule: as each function says.
 */
#ifndef STORE_USES_H
#define STORE_USES_H

#include "store/core/store.h"

/* Where the store's time begins: there is room before for the times of uses of an earlier life. */
#define STORE_PAST_NS UINT64_C(86400000000000)

typedef struct uses_item uses_item; /* an entry's record, and the saving that it is of */

/* The uses that the catalog has kept from an earlier open. */
typedef struct uses_found {
    uses_item *items;
    uint32_t *order; /* their numbers, as they were used last */
    size_t count;
    uint64_t saving; /* the latest; 0 = there is none */
    kvt_reuse_weights weights;
    bool failed; /* no memory */
} uses_found;

/* Counts a use, and lets the policy plan a promotion, which the background carries out. Lock held.
 * *clock_ns: store_now_ns, or 0 when it has not been read; afterwards the end of the decision, from
 * which the next one of the same hold may count. */
void uses_count(kvt_store *store, store_entry *entry, uint64_t *clock_ns);

/* Reads what an earlier life has saved, gives its weights to the policy, and lets the policy's time
 * begin early enough for its uses. Before the policy adopts an entry. The status of the catalog, or
 * KVT_E_MEMORY. */
KVT_NODISCARD kvt_status uses_read(kvt_store *store, uses_found *found);

/* Gives the uses to the entries that were adopted, and frees what was read. */
void uses_give(kvt_store *store, uses_found *found);

#define USES_EVERY_NS UINT64_C(300000000000) /* between two savings, when there were uses */

/* Queues what is known now for the catalog, if anything was used since the last time. No lock held.
 * The background, or the closer. */
void uses_save(kvt_store *store);

#endif
