/* SPDX-License-Identifier: Apache-2.0 */
/*
 * policy_site.h - one decision engine at a time on memory that is counted, with room for a plan:
 * what most tests of the engine work on. TEST_EACH(NULL, policy_site_close) closes it after a case.
 */
#ifndef TESTS_POLICY_SITE_H
#define TESTS_POLICY_SITE_H

#include "policy_support.h"

static test_memory memory;
static kvt_policy *policy;
static kvt_move moves[64];
static kvt_plan plan = {moves, 64, 0};

/* The default configuration with so many bytes of DRAM and SSD. */
static inline kvt_policy_config policy_site_config(uint64_t dram_bytes, uint64_t ssd_bytes)
{
    kvt_policy_config config;
    memory = (test_memory){.left = -1};
    kvt_policy_config_init(&config);
    config.allocator = test_allocator(&memory);
    config.tiers[KVT_TIER_DRAM].capacity_bytes = dram_bytes;
    config.tiers[KVT_TIER_SSD].capacity_bytes = ssd_bytes;
    return config;
}

static inline void policy_site_open(uint64_t dram_bytes, uint64_t ssd_bytes)
{
    const kvt_policy_config config = policy_site_config(dram_bytes, ssd_bytes);
    policy = test_open(&config);
}

static inline int policy_site_close(void **state)
{
    (void)state;
    if (policy != NULL) kvt_policy_close(policy);
    policy = NULL;
    assert_int_equal(memory.held_bytes, 0);
    return 0;
}

static inline kvt_status admit(uint64_t now_ns, uint64_t handle, uint64_t parent,
                               const kvt_option *options, uint32_t count)
{
    kvt_policy_entry given = test_entry(handle, options, count, 1);
    given.parent = parent;
    return kvt_policy_admit(policy, now_ns, &given, &plan);
}

/* Admits an entry and carries its plan out. */
static inline void admit_now(uint64_t now_ns, uint64_t handle, const kvt_option *options,
                             uint32_t count)
{
    assert_ok(admit(now_ns, handle, 0, options, count));
    test_carry_out(policy, &plan);
}

/* Adopts an entry that is stored in one of its forms. */
static inline void adopt_entry(uint64_t handle, const kvt_option *options, uint32_t count,
                               uint8_t option)
{
    const kvt_policy_entry given = test_entry(handle, options, count, 1);
    assert_ok(kvt_policy_adopt(policy, SECOND, &given, option));
}

#endif
