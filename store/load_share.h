/* SPDX-License-Identifier: Apache-2.0 */
/*
 * load_share.h - gets beside layered loads of the same place: a get's read is shown to the loads,
 * which take their layers from it (docs/CALLS.md, Shared reads).
 *
 * Thread rule: the store's lock is held; the lock of the shares is taken inside.
 */
#ifndef STORE_LOAD_SHARE_H
#define STORE_LOAD_SHARE_H

#include "store/store.h"

/* A get is about to read a place: loads that have it open may wait for that read. */
void load_share_get(kvt_store *store, uint64_t serial, store_load *read);

/* A get's read has ended, as its status says. */
void load_share_published(kvt_store *store, store_load *read);

#endif
