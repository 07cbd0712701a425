/* SPDX-License-Identifier: Apache-2.0 */
/*
 * spaces.h - spaces that belong to tenants (spaces.c).
 *
 * Thread rule: under the control lock.
 */
#ifndef STORE_SPACES_H
#define STORE_SPACES_H

#include <kvterrace/kvterrace.h>
#include <stdbool.h>

/* A space whose entries belong to a tenant when their puts name none. */
typedef struct store_space {
    uint64_t number;
    uint32_t tenant;
} store_space;

/* Those spaces, in the order of their numbers. Under store->lock. */
typedef struct store_spaces {
    store_space *items;
    uint32_t count, room;
} store_spaces;

/* The owner of an entry whose put names tenant 0: its space's tenant, or 0. Lock held. */
uint32_t spaces_tenant(const kvt_store *store, const kvt_key *key);

#endif
