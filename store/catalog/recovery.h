/* SPDX-License-Identifier: Apache-2.0 */
/*
 * recovery.h - entries that the catalog lists are taken over at open (recovery.c).
 *
 * Thread rule: the opener's thread.
 */
#ifndef STORE_RECOVERY_H
#define STORE_RECOVERY_H

#include "store/catalog/catalog.h"

/* The entries of a catalog while a store is being opened. */
typedef struct recover_list recover_list;

typedef struct recover_found {
    uint64_t stale;         /* rows that touch a stale member, */
    uint64_t rows;          /* and those that touch none */
    uint64_t newest_serial; /* of them, damaged ones included; 0: there are none */
} recover_found;

/* Reads the rows of all entries. Those that touch an SSD member in the mask are removed, durably:
 * before the labels of those members say that they are current. The others become entries that
 * nobody sees yet, or are only counted unless they are kept. *list_out is to be closed in any case;
 * without it nothing is removed.
 * KVT_OK; KVT_E_MEMORY; states of the file. */
KVT_NODISCARD kvt_status recover_read(kvt_store *store, uint64_t members, bool kept,
                                      recover_list **list_out, recover_found *found_out);

/* Closes the catalog of an open store that nobody uses any more; the rows are kept. */
void recover_close_catalog(kvt_store *store);

/* Frees a list with the entries that were not taken over. NULL allowed. */
void recover_close(recover_list *list);

/* Takes over the entries of a list, which is empty from then on, and drops the rows that cannot be
 * taken over. Before the catalog's writer starts. */
KVT_NODISCARD kvt_status recover_entries(recover_list *list);

#endif
