/* SPDX-License-Identifier: Apache-2.0 */
/*
 * recovery.h - entries that the catalog lists are taken over at open (recovery.c).
 *
 * Thread rule: the opener's thread.
 */
#ifndef STORE_RECOVERY_H
#define STORE_RECOVERY_H

#include "store/catalog/catalog.h"

/* Removes the rows of entries that touch an SSD member in the mask, durably: before the labels of
 * those members say that they are current. *kept_out counts the others. */
KVT_NODISCARD kvt_status recover_drop_stale(store_catalog *catalog, uint64_t members,
                                            uint64_t *dropped_out, uint64_t *kept_out);

/* Counts the rows that touch an SSD member in the mask. */
KVT_NODISCARD kvt_status recover_count_rows(store_catalog *catalog, uint64_t members,
                                            uint64_t *count_out);

/* Takes over the entries that the catalog lists, and drops the rows that cannot be taken over.
 * Before the catalog's writer starts. */
KVT_NODISCARD kvt_status recover_entries(kvt_store *store);

#endif
