/* SPDX-License-Identifier: Apache-2.0 */
/*
 * location.h - making and checking locations, for the pool itself; users see pool.h.
 *
 * Thread rule: a location is built by one thread and immutable afterwards.
 */
#ifndef TIERS_LOCATION_H
#define TIERS_LOCATION_H

#include "pool.h"

/* A location with its shares and no extents yet; NULL without memory. tiers_location_free frees
 * it. */
tiers_location *tiers_location_make(uint64_t bytes, uint32_t unit_bytes, const tiers_share *shares,
                                    uint32_t share_count);

/* Room for `extents` extents in all. KVT_OK; KVT_E_MEMORY (the location is unchanged). */
KVT_NODISCARD kvt_status tiers_location_room(tiers_location *location, uint32_t extents);

/* Whether the numbers agree with each other; members and ranges are for the pool to judge. KVT_OK;
 * KVT_E_CORRUPT. */
KVT_NODISCARD kvt_status tiers_location_check(const tiers_location *location);

/* The number of units of an object. unit_bytes is not 0. */
uint64_t tiers_location_units(uint64_t bytes, uint32_t unit_bytes);

/* The units of a location: with odd_first the bytes that fill no unit are no unit of their own. */
uint64_t tiers_location_unit_count(const tiers_location *location);

/* The shares of a location of one extent a share, wherever its pointer to them is. */
tiers_share *tiers_location_own_shares(tiers_location *location);

#endif
