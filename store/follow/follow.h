/* SPDX-License-Identifier: Apache-2.0 */
/*
 * follow.h - a store that reads what another process's store has on SSD, beside it: its catalog
 * and its devices, both for reading alone (docs/STORE.md, Followers).
 *
 * Thread rule: as kvt_store_open.
 */
#ifndef STORE_FOLLOW_H
#define STORE_FOLLOW_H

#include <kvterrace/kvterrace.h>

/* kvt_store_open of options with follow; they have this library's size. within: the owner is of
 * this process, and has the catalog open. Statuses and message as there. */
KVT_NODISCARD kvt_status follow_open(const kvt_store_options *options, bool within,
                                     kvt_store **store_out, char *message, size_t message_size);

#endif
