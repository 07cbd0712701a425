/* SPDX-License-Identifier: Apache-2.0 */
/*
 * unit_map.c - one pass over the deal of a location notes for each unit the extent that it begins
 * in, and how far into it. A unit may go on in the next extent of its share, because free space
 * comes in pieces of a grain.
 *
 * Thread rule: immutable once made.
 */
#include "unit_map.h"

#include <assert.h>
#include <stdlib.h>

#include "location.h"
#include "stripe.h"

typedef struct unit_place {
    uint64_t used; /* bytes of the extent before the unit; less than the extent's */
    uint32_t extent;
} unit_place;

struct tiers_unit_map {
    const tiers_location *location;
    uint64_t units;
    unit_place places[];
};

/* The next free byte of each share while its units are dealt. */
typedef struct map_cursor {
    uint32_t extent;
    uint64_t used;
} map_cursor;

/* Moves over `bytes` of a share's extents, and on to the next one where an extent ends. */
static void map_skip(const tiers_location *location, map_cursor *cursor, uint64_t bytes)
{
    while (bytes > 0) {
        assert(cursor->extent < location->extent_count);
        uint64_t left = location->extents[cursor->extent].bytes - cursor->used;
        uint64_t part = bytes < left ? bytes : left;
        cursor->used += part;
        bytes -= part;
        if (part == left) *cursor = (map_cursor){.extent = cursor->extent + 1};
    }
}

kvt_status tiers_unit_map_make(const tiers_location *location, tiers_unit_map **map_out)
{
    const uint64_t units = tiers_location_unit_count(location);
    tiers_unit_map *map = malloc(sizeof *map + units * sizeof map->places[0]);
    if (map == NULL) return KVT_E_MEMORY;
    map->location = location;
    map->units = units;
    map_cursor cursors[TIERS_MEMBERS_MAX] = {{0}};
    uint32_t extent = 0;
    for (uint32_t i = 0; i < location->share_count; i++) {
        while (location->extents[extent].member != location->shares[i].member)
            extent++;
        cursors[i].extent = extent;
    }
    tiers_dealer dealer;
    tiers_dealer_init(&dealer, location->shares, location->share_count, location->turn);
    uint64_t at = 0;
    for (uint64_t unit = 0; unit < units; unit++) {
        map_cursor *cursor = &cursors[tiers_dealer_next(&dealer)];
        const uint64_t rest = location->bytes - at;
        const uint64_t whole =
            unit == 0 ? tiers_stripe_first_bytes(location) : location->unit_bytes;
        const uint64_t bytes = rest < whole ? rest : whole;
        map->places[unit] = (unit_place){.extent = cursor->extent, .used = cursor->used};
        map_skip(location, cursor, bytes);
        at += bytes;
    }
    *map_out = map;
    return KVT_OK;
}

void tiers_unit_map_free(tiers_unit_map *map)
{
    free(map);
}

const tiers_location *tiers_unit_map_location(const tiers_unit_map *map)
{
    return map->location;
}

tiers_spot tiers_unit_map_find(const tiers_unit_map *map, uint64_t offset, uint64_t bytes)
{
    const tiers_location *location = map->location;
    assert(offset < location->bytes && bytes > 0);
    const uint64_t first = tiers_stripe_first_bytes(location);
    const uint64_t behind = offset < first ? 0 : offset - first;
    const uint64_t into = offset < first ? offset : behind % location->unit_bytes;
    const uint64_t unit_bytes = offset < first ? first : location->unit_bytes;
    const unit_place *place = &map->places[offset < first ? 0 : 1 + behind / location->unit_bytes];
    map_cursor cursor = {.extent = place->extent, .used = place->used};
    map_skip(location, &cursor, into);
    const tiers_extent *extent = &location->extents[cursor.extent];
    uint64_t most = extent->bytes - cursor.used;
    if (most > unit_bytes - into) most = unit_bytes - into;
    if (most > location->bytes - offset) most = location->bytes - offset;
    return (tiers_spot){.member = extent->member,
                        .device_offset = extent->offset + cursor.used,
                        .bytes = bytes < most ? bytes : most};
}
