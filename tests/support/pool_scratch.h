/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pool_scratch.h - small helpers for tests that open pools over memory devices.
 */
#ifndef SUPPORT_POOL_SCRATCH_H
#define SUPPORT_POOL_SCRATCH_H

#include <stdlib.h>
#include <string.h>

#include "test_memory.h"

#include "tiers/devices/device_ops.h"
#include "tiers/pool/pool.h"

#define SCRATCH_MIB ((uint64_t)1 << 20)

static inline uint64_t pool_scratch_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static inline kvt_device *pool_scratch_memory(uint64_t bytes)
{
    kvt_device_config config = {.struct_size = sizeof config,
                                .name = "scratch",
                                .backend = "memory",
                                .capacity_bytes = bytes};
    kvt_device *device = NULL;
    return kvt_device_open(&config, &device, NULL, 0) == KVT_OK ? device : NULL;
}

static inline tiers_member_options pool_scratch_member(kvt_device *device, double bytes_per_s)
{
    return (tiers_member_options){.device = device,
                                  .read_bytes_per_s = bytes_per_s,
                                  .write_bytes_per_s = bytes_per_s,
                                  .timeout_ns = UINT64_MAX, /* a busy machine is no timeout */
                                  .present = device != NULL};
}

/* A pool with members of the given sizes and bandwidths and a unit of 16 KiB; NULL on failure. */
static inline tiers_pool *pool_scratch_pool(const uint64_t *sizes, const double *speeds,
                                            uint32_t count)
{
    tiers_member_options members[TIERS_MEMBERS_MAX];
    for (uint32_t i = 0; i < count; i++)
        members[i] = pool_scratch_member(pool_scratch_memory(sizes[i]), speeds[i]);
    tiers_pool_options options = {.unit_bytes = 16384};
    tiers_pool *pool = NULL;
    return tiers_pool_open(members, count, &options, &pool, NULL, 0) == KVT_OK ? pool : NULL;
}

/* Bytes that depend on the seed and on their place, so that a misplaced unit shows. */
static inline void pool_scratch_fill(void *buffer, uint64_t bytes, uint64_t seed)
{
    uint64_t *words = buffer;
    for (uint64_t i = 0; i < bytes / 8; i++)
        words[i] = (seed + i) * 0x9e3779b97f4a7c15u;
}

static inline bool pool_scratch_holds(const void *buffer, uint64_t bytes, uint64_t seed)
{
    const uint64_t *words = buffer;
    for (uint64_t i = 0; i < bytes / 8; i++)
        if (words[i] != (seed + i) * 0x9e3779b97f4a7c15u) return false;
    return true;
}

static inline void *pool_scratch_buffer(uint64_t bytes)
{
    return memset(test_aligned(TIERS_GRAIN_BYTES, bytes), 0, bytes);
}

static inline uint64_t pool_scratch_used(tiers_pool *pool)
{
    tiers_pool_facts facts;
    tiers_pool_facts_get(pool, &facts);
    return facts.used_bytes;
}

/* Units of a location on a member. */
static inline uint32_t share_of(const tiers_location *location, uint32_t member)
{
    for (uint32_t i = 0; i < location->share_count; i++)
        if (location->shares[i].member == member) return location->shares[i].units;
    return 0;
}

#endif
