/* SPDX-License-Identifier: Apache-2.0 */
/*
 * early.h - a store that answers gets, exists and matches while it is being opened: options with
 * serve_early (docs/STORE.md, Early).
 *
 *     caller          options copied -> thread started -> waits ... -> has the handle
 *     opening thread  steps up to the costs -> reader made -> catalog checked, rows read, labels,
 *                     recovery, threads -> open: the reader is closed; or the open has failed
 *
 * The reader is a follower of the store's own catalog and devices. It looks a key's row up in the
 * catalog, where no row changes before the store is open, and takes in no entry. So the pool gives
 * no extent away and the policy plans nothing before all rows are known: calls that need either
 * wait for the end of the open.
 *
 * Thread rule: as the functions say.
 */
#ifndef STORE_EARLY_H
#define STORE_EARLY_H

#include "store/core/open_internal.h"

/* Whether options ask for an early store, and may have one. */
bool early_is_wanted(const kvt_store_options *options);

/* kvt_store_open of such options, as the caller gave them. */
KVT_NODISCARD kvt_status early_open(const kvt_store_options *options, kvt_store **store_out,
                                    char *message, size_t message_size);

/* Hands the store to the caller, when all devices and the catalog are those of an earlier life and
 * the reader can be made; else nothing. The opening thread; early is NULL without serve_early. */
void early_begin(open_state *state);

/* Closes the reader, once no call is in it. True: the caller has the handle. The opening thread;
 * NULL allowed. */
bool early_retire(store_early *early);

/* Frees what is left of the open. The closer's thread; NULL allowed. */
void early_free(store_early *early);

#endif
