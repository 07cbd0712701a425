/* SPDX-License-Identifier: Apache-2.0 */
/*
 * spaces.h - spaces that belong to tenants (spaces.c), and filters by space and tenant.
 *
 * Thread rule: under the control lock, where it does not say otherwise.
 */
#ifndef STORE_SPACES_H
#define STORE_SPACES_H

#include <kvterrace/key.h>
#include <kvterrace/names.h>
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

/* Whether a filter has a condition, and numbers within their range. No lock. */
static inline bool spaces_filter_is_sound(const kvt_clear_filter *filter)
{
    if (!filter->by_space && !filter->by_tenant) return filter->everything;
    if (filter->everything) return false;
    return !filter->by_tenant || filter->tenant < KVT_TENANTS_MAX;
}

/* Whether a filter covers an entry's key and tenant; NULL covers all. No lock. */
static inline bool spaces_filter_covers(const kvt_clear_filter *filter, const kvt_key *key,
                                        uint32_t tenant)
{
    if (filter == NULL) return true;
    if (filter->by_tenant && filter->tenant != tenant) return false;
    return !filter->by_space || filter->space == kvt_key_space(key);
}

#endif
