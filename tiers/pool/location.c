/* SPDX-License-Identifier: Apache-2.0 */
/*
 * location.c - the location of an object: memory, consistency, and the packed bytes for the
 * catalog.
 *
 * The packed bytes, little-endian:
 *
 *     0  u32 version (2)    4  u32 unit_bytes      8  u64 bytes
 *    16  u32 share_count   20  u32 extent_count
 *    24  u32 turn         28  u32 flags: bit 0, odd_first
 *    32  share_count  x { u32 member, u32 units }
 *     .  extent_count x { u32 member, u32 zero, u64 offset, u64 bytes }
 *     .  u64 XXH3-64 of all before it
 *
 * The checksum catches damage; the checks behind it make a wrong location harmless all the same.
 *
 * Invariants of a sound location: shares are in ascending order of members and name each at most
 * once; extents come share by share, in the order of a member's bytes; the bytes of a share's
 * extents are exactly what the deal gives it.
 *
 * Thread rule: a location is built by one thread and immutable afterwards.
 */
#include "location.h"

#include "base/slab.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "stripe.h"

#define LOCATION_VERSION      2u
#define LOCATION_HEAD_BYTES   32u
#define LOCATION_SHARE_BYTES  8u
#define LOCATION_EXTENT_BYTES 24u
#define LOCATION_SUM_BYTES    8u

/* ---- memory ---- */

/* The extents that lie in the location's own memory, behind the struct; the shares follow them. */
static tiers_extent *location_own_extents(tiers_location *location)
{
    return (tiers_extent *)(void *)(location + 1);
}

/* Locations of one share, as those of all objects of a unit are, by the million in a process. They
 * are made and freed without the pool that they are of. */
static base_slab location_cells =
    BASE_SLAB_STATIC(sizeof(tiers_location) + sizeof(tiers_extent) + sizeof(tiers_share));

/* One piece of memory with room for one extent a share, which is all that most locations need. */
tiers_location *tiers_location_make(uint64_t bytes, uint32_t unit_bytes, const tiers_share *shares,
                                    uint32_t share_count)
{
    assert(share_count >= 1 && share_count <= TIERS_MEMBERS_MAX);
    size_t each = sizeof(tiers_extent) + sizeof *shares;
    tiers_location *location = share_count == 1 ? base_slab_take(&location_cells)
                                                : calloc(1, sizeof *location + share_count * each);
    if (location == NULL) return NULL;
    location->bytes = bytes;
    location->unit_bytes = unit_bytes;
    _Static_assert(TIERS_MEMBERS_MAX <= UINT8_MAX, "a count of shares is a byte");
    location->share_count = (uint8_t)share_count;
    location->extents = location_own_extents(location);
    location->shares = (tiers_share *)(void *)(location->extents + share_count);
    if (shares != NULL) memcpy(location->shares, shares, share_count * sizeof *shares);
    return location;
}

tiers_share *tiers_location_own_shares(tiers_location *location)
{
    assert(location->extents == location_own_extents(location));
    return (tiers_share *)(void *)(location->extents + location->share_count);
}

/* Extents that are listed stay. More than one a share have a piece of memory of their own. */
kvt_status tiers_location_room(tiers_location *location, uint32_t extents)
{
    assert(extents >= location->extent_count && "extents that are listed are not cut off");
    const bool own = location->extents == location_own_extents(location);
    if (own && extents <= location->share_count) return KVT_OK;
    tiers_extent *grown = realloc(own ? NULL : location->extents, (size_t)extents * sizeof *grown);
    if (grown == NULL) return KVT_E_MEMORY;
    if (own && location->extent_count != 0)
        memcpy(grown, location->extents, location->extent_count * sizeof *grown);
    location->extents = grown;
    return KVT_OK;
}

void tiers_location_free(tiers_location *location)
{
    if (location == NULL) return;
    assert(location->pins == 0 && "no transfer of it is in flight");
    if (location->extents != location_own_extents(location)) free(location->extents);
    if (location->share_count == 1)
        base_slab_give(&location_cells, location);
    else
        free(location);
}

/* ---- consistency ---- */

uint64_t tiers_location_units(uint64_t bytes, uint32_t unit_bytes)
{
    assert(unit_bytes > 0);
    return bytes / unit_bytes + (bytes % unit_bytes != 0);
}

uint64_t tiers_location_unit_count(const tiers_location *location)
{
    const uint64_t units = tiers_location_units(location->bytes, location->unit_bytes);
    return location->odd_first && location->bytes % location->unit_bytes != 0 ? units - 1 : units;
}

/* Whether a number of bytes is whole grains. Offsets and sizes of extents are whole grains, so that
 * every device can take them. */
static bool location_on_grain(uint64_t value)
{
    return value % TIERS_GRAIN_BYTES == 0;
}

/* Whether the shares name members in ascending order, none of them empty, and hold exactly the
 * object's units. The sum cannot overflow, because it is checked against a small number of
 * units. */
static bool location_shares_sound(const tiers_location *location)
{
    const uint64_t units = tiers_location_unit_count(location);
    if (units > TIERS_UNITS_MAX || location->share_count == 0) return false;
    if (location->share_count > TIERS_MEMBERS_MAX) return false;
    uint64_t sum = 0;
    for (uint32_t i = 0; i < location->share_count; i++) {
        const tiers_share *share = &location->shares[i];
        if (share->units == 0 || share->member >= TIERS_MEMBERS_MAX) return false;
        if (i > 0 && share->member <= location->shares[i - 1].member) return false;
        sum += share->units;
    }
    return sum == units && location->turn < TIERS_TURN_MAX && location->turn < units;
}

/* Whether an extent is whole grains, not empty, and does not wrap around. Whether the range lies on
 * its device is for the pool, which knows the device. */
static bool location_extent_sound(const tiers_extent *extent)
{
    if (!location_on_grain(extent->offset) || !location_on_grain(extent->bytes)) return false;
    return extent->reserved == 0 && extent->bytes != 0 &&
           extent->bytes <= UINT64_MAX - extent->offset;
}

/* The walk compares every extent with the share that it must belong to, so a location that passes
 * can be read without another check. */
kvt_status tiers_location_check(const tiers_location *location)
{
    if (location->bytes == 0 || !location_on_grain(location->bytes)) return KVT_E_CORRUPT;
    if (location->unit_bytes == 0 || !location_on_grain(location->unit_bytes)) return KVT_E_CORRUPT;
    if (!location_shares_sound(location)) return KVT_E_CORRUPT;
    const uint32_t odd = tiers_stripe_odd(location);
    uint32_t at = 0;
    for (uint32_t i = 0; i < location->share_count; i++) {
        uint64_t left = tiers_stripe_share_bytes(location, i, odd);
        while (left > 0) {
            if (at == location->extent_count) return KVT_E_CORRUPT;
            const tiers_extent *extent = &location->extents[at++];
            if (!location_extent_sound(extent) || extent->bytes > left) return KVT_E_CORRUPT;
            if (extent->member != location->shares[i].member) return KVT_E_CORRUPT;
            left -= extent->bytes;
        }
    }
    return at == location->extent_count ? KVT_OK : KVT_E_CORRUPT;
}

/* ---- packed bytes ---- */

/* Writes a little-endian number and returns the place behind it. The byte order is part of the
 * format. */
static uint8_t *location_put(uint8_t *at, uint64_t value, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        at[i] = (uint8_t)(value >> (8 * i));
    return at + bytes;
}

/* Reads a little-endian number and moves the place behind it. */
static uint64_t location_get(const uint8_t **at, size_t bytes)
{
    uint64_t value = 0;
    for (size_t i = 0; i < bytes; i++)
        value |= (uint64_t)(*at)[i] << (8 * i);
    *at += bytes;
    return value;
}

/* The size of a packed location. With 32-bit counts the sum cannot overflow 64 bits. */
static size_t location_flat_bytes(uint32_t shares, uint32_t extents)
{
    return LOCATION_HEAD_BYTES + (size_t)shares * LOCATION_SHARE_BYTES +
           (size_t)extents * LOCATION_EXTENT_BYTES + LOCATION_SUM_BYTES;
}

size_t tiers_location_pack(const tiers_location *location, void *target, size_t capacity)
{
    assert(location->share_count >= 1 && location->extent_count >= 1);
    size_t needed = location_flat_bytes(location->share_count, location->extent_count);
    if (needed > capacity) return needed;
    uint8_t *at = target;
    at = location_put(at, LOCATION_VERSION, 4);
    at = location_put(at, location->unit_bytes, 4);
    at = location_put(at, location->bytes, 8);
    at = location_put(at, location->share_count, 4);
    at = location_put(at, location->extent_count, 4);
    at = location_put(at, location->turn, 4);
    at = location_put(at, location->odd_first ? 1 : 0, 4);
    for (uint32_t i = 0; i < location->share_count; i++) {
        at = location_put(at, location->shares[i].member, 4);
        at = location_put(at, location->shares[i].units, 4);
    }
    for (uint32_t i = 0; i < location->extent_count; i++) {
        at = location_put(at, location->extents[i].member, 4);
        at = location_put(at, 0, 4);
        at = location_put(at, location->extents[i].offset, 8);
        at = location_put(at, location->extents[i].bytes, 8);
    }
    assert(at == (uint8_t *)target + needed - LOCATION_SUM_BYTES);
    location_put(at, XXH3_64bits(target, needed - LOCATION_SUM_BYTES), 8);
    return needed;
}

/* Fills the arrays, whose sizes match the counts, from the bytes behind the head. The numbers are
 * as they lie there; tiers_location_check judges them. */
static void location_read_arrays(tiers_location *location, const uint8_t *at)
{
    for (uint32_t i = 0; i < location->share_count; i++) {
        location->shares[i].member = (uint32_t)location_get(&at, 4);
        location->shares[i].units = (uint32_t)location_get(&at, 4);
    }
    for (uint32_t i = 0; i < location->extent_count; i++) {
        location->extents[i].member = (uint32_t)location_get(&at, 4);
        location->extents[i].reserved = (uint32_t)location_get(&at, 4);
        location->extents[i].offset = location_get(&at, 8);
        location->extents[i].bytes = location_get(&at, 8);
    }
}

/* The counts are checked against the length before any memory is asked for, so a damaged catalog
 * cannot make the pool ask for gigabytes. */
kvt_status tiers_location_unpack(const void *source, size_t bytes, tiers_location **location_out)
{
    if (bytes < location_flat_bytes(1, 1)) return KVT_E_CORRUPT;
    const uint8_t *at = source;
    const uint8_t *sum = at + bytes - LOCATION_SUM_BYTES;
    if (location_get(&sum, 8) != XXH3_64bits(source, bytes - LOCATION_SUM_BYTES))
        return KVT_E_CORRUPT;
    if (location_get(&at, 4) != LOCATION_VERSION) return KVT_E_CORRUPT;
    uint32_t unit_bytes = (uint32_t)location_get(&at, 4);
    uint64_t object_bytes = location_get(&at, 8);
    uint32_t shares = (uint32_t)location_get(&at, 4);
    uint32_t extents = (uint32_t)location_get(&at, 4);
    if (shares == 0 || shares > TIERS_MEMBERS_MAX || extents == 0) return KVT_E_CORRUPT;
    if (location_flat_bytes(shares, extents) != bytes) return KVT_E_CORRUPT;
    const uint64_t turn = location_get(&at, 4);
    const uint64_t flags = location_get(&at, 4);
    if (turn >= TIERS_TURN_MAX || flags > 1) return KVT_E_CORRUPT;

    tiers_location *location = tiers_location_make(object_bytes, unit_bytes, NULL, shares);
    if (location == NULL) return KVT_E_MEMORY;
    kvt_status status = tiers_location_room(location, extents);
    if (status == KVT_OK) {
        location->extent_count = extents;
        location->turn = (uint8_t)turn;
        location->odd_first = flags != 0;
        location_read_arrays(location, at);
        status = tiers_location_check(location);
    }
    if (status != KVT_OK) {
        tiers_location_free(location);
        return status;
    }
    *location_out = location;
    return KVT_OK;
}
