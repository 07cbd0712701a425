/* SPDX-License-Identifier: Apache-2.0 */
/*
 * unit_map.h - where each unit of a location lies, so that a small range in the middle of a large
 * object is found at once. A walk (stripe.h) deals from the first unit on, which is right for an
 * object that is read from its start, and wrong for one of 30,000 pages of which a step reads 40.
 *
 * A map costs 16 bytes a unit. It refers to its location, which its owner keeps.
 *
 * Thread rule: immutable once made.
 */
#ifndef TIERS_UNIT_MAP_H
#define TIERS_UNIT_MAP_H

#include "pool.h"

typedef struct tiers_unit_map tiers_unit_map;

/* A continuous part of an object on one member. */
typedef struct tiers_spot {
    uint32_t member;
    uint64_t device_offset;
    uint64_t bytes;
} tiers_spot;

/* KVT_OK; KVT_E_MEMORY. The location is sound: the pool has reserved or adopted it. */
KVT_NODISCARD kvt_status tiers_unit_map_make(const tiers_location *location,
                                             tiers_unit_map **map_out);
void tiers_unit_map_free(tiers_unit_map *map);

const tiers_location *tiers_unit_map_location(const tiers_unit_map *map);

/* The part that begins at `offset` of the object and is at most `bytes` long; it ends where its
 * unit or its extent does. offset is less than the object's size, bytes is not 0. */
tiers_spot tiers_unit_map_find(const tiers_unit_map *map, uint64_t offset, uint64_t bytes);

#endif
