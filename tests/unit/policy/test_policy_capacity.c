/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_policy_capacity.c - capacities that change while the engine runs: tiers that come, shrink
 * and go, with moves in flight.
 */
#include "policy_support.h"

static kvt_move moves[256];
static kvt_plan plan = {moves, 256, 0};

static void expect_capacity(kvt_policy *policy, kvt_tier tier, uint64_t bytes)
{
    assert_ok(kvt_policy_capacity_set(policy, tier, bytes));
}

static kvt_status admit(kvt_policy *policy, uint64_t handle, kvt_tier tier, uint64_t bytes)
{
    kvt_option options[2] = {test_none(1.0), test_option(1, (int)tier, bytes, 0.01)};
    kvt_policy_entry entry = test_entry(handle, options, 2, 256);
    kvt_status status = kvt_policy_admit(policy, handle * 1000, &entry, &plan);
    return status;
}

static kvt_status admit_and_commit(kvt_policy *policy, uint64_t handle, kvt_tier tier,
                                   uint64_t bytes)
{
    kvt_status status = admit(policy, handle, tier, bytes);
    if (status == KVT_OK) test_carry_out(policy, &plan);
    return status;
}

static kvt_policy *open_with(const char *name, test_memory *memory, uint64_t dram, uint64_t ssd)
{
    *memory = (test_memory){.left = -1};
    kvt_policy_config config;
    kvt_policy_config_init(&config);
    config.name = name;
    config.allocator = test_allocator(memory);
    config.entries_expected = 16;
    config.variant.codec = 1;
    config.tiers[KVT_TIER_DRAM].capacity_bytes = dram;
    config.tiers[KVT_TIER_SSD].capacity_bytes = ssd;
    return test_open(&config);
}

/* A tier that was absent while the tables grew is used as soon as it has room. */
TEST(tier_comes_late)
{
    static const char *const names[] = {"lru", "lru-leaf", "utility"};
    for (int n = 0; n < 3; n++) {
        test_memory memory;
        kvt_policy *policy = open_with(names[n], &memory, 1 << 20, 0);
        for (uint64_t i = 1; i <= 200; i++) {
            assert_ok(admit_and_commit(policy, i, KVT_TIER_DRAM, 100));
        }
        assert_int_equal(admit(policy, 500, KVT_TIER_SSD, 100), KVT_REFUSED);
        expect_capacity(policy, KVT_TIER_SSD, 1 << 20);
        for (uint64_t i = 501; i <= 700; i++) {
            assert_ok(admit_and_commit(policy, i, KVT_TIER_SSD, 100));
        }
        kvt_policy_stats stats;
        kvt_policy_stats_get(policy, &stats);
        assert_int_equal(stats.entries_by_tier[KVT_TIER_SSD], 200);
        kvt_policy_close(policy);
        assert_int_equal(memory.held_bytes, 0);
    }
}

/* Lowering with reservations in flight never leaves a larger capacity than before. */
TEST(lowered_in_flight)
{
    test_memory memory;
    kvt_policy *policy = open_with("lru", &memory, 1000, 0);
    for (uint64_t i = 1; i <= 10; i++) {
        assert_ok(admit_and_commit(policy, i, KVT_TIER_DRAM, 100));
    }
    assert_ok(admit(policy, 20, KVT_TIER_DRAM, 500)); /* 1500 held until it commits */
    expect_capacity(policy, KVT_TIER_DRAM, 800);
    test_carry_out(policy, &plan);
    for (uint64_t i = 30; i < 60; i++) {
        kvt_status status = admit_and_commit(policy, i, KVT_TIER_DRAM, 100);
        assert_true(status == KVT_OK || status == KVT_REFUSED);
        kvt_policy_stats stats;
        kvt_policy_stats_get(policy, &stats);
        assert_true(stats.used_bytes[KVT_TIER_DRAM] <= 1000);
    }
    /* Said again when nothing is in flight, it can go down as far as what is stored allows. */
    for (uint64_t i = 30; i < 60; i++) {
        (void)!kvt_policy_remove(policy, i);
    }
    expect_capacity(policy, KVT_TIER_DRAM, 800);
    for (uint64_t i = 100; i < 130; i++) {
        assert_ok(admit_and_commit(policy, i, KVT_TIER_DRAM, 100));
        kvt_policy_stats stats;
        kvt_policy_stats_get(policy, &stats);
        assert_true(stats.used_bytes[KVT_TIER_DRAM] <= 800);
    }
    kvt_policy_close(policy);
    assert_int_equal(memory.held_bytes, 0);
}

/* Withheld bytes keep what is stored and make plans evict, those of puts or of ticks; given back
 * they are free. */
TEST(withheld)
{
    static const char *const names[] = {"lru", "lru-leaf", "utility"};
    for (int n = 0; n < 3; n++) {
        test_memory memory;
        kvt_policy_stats stats;
        kvt_policy *policy = open_with(names[n], &memory, 0, 1000);
        uint64_t handle = 1;
        for (; handle <= 40; handle++)
            (void)admit_and_commit(policy, handle, KVT_TIER_SSD, 50);
        kvt_policy_stats_get(policy, &stats);
        const uint64_t full = stats.used_bytes[KVT_TIER_SSD];
        assert_in_range(full, 800, 1000);
        assert_ok(kvt_policy_withheld_set(policy, KVT_TIER_SSD, 1000 - full + 300));
        kvt_policy_stats_get(policy, &stats);
        assert_int_equal(stats.used_bytes[KVT_TIER_SSD], full);
        for (; handle <= 60; handle++) {
            assert_ok(kvt_policy_tick(policy, handle * 1000, 16, UINT64_MAX, &plan));
            test_carry_out(policy, &plan);
            const kvt_status status = admit_and_commit(policy, handle, KVT_TIER_SSD, 50);
            kvt_policy_stats_get(policy, &stats);
            if (status == KVT_OK) assert_true(stats.used_bytes[KVT_TIER_SSD] <= full - 300);
        }
        assert_in_range(stats.used_bytes[KVT_TIER_SSD], full - 400, full - 300);
        assert_ok(kvt_policy_withheld_set(policy, KVT_TIER_SSD, 0));
        const uint64_t evicted = stats.evictions;
        uint32_t taken = 0;
        for (uint32_t i = 0; i < 5; i++, handle++)
            taken += admit_and_commit(policy, handle, KVT_TIER_SSD, 50) == KVT_OK;
        if (n < 2) assert_int_equal(taken, 5); /* utility looks at what they are worth */
        kvt_policy_stats_get(policy, &stats);
        assert_int_equal(stats.evictions, evicted);
        kvt_policy_close(policy);
        assert_int_equal(memory.held_bytes, 0);
    }
}

TEST(bad_capacity)
{
    test_memory memory;
    kvt_policy *policy = open_with("utility", &memory, 1000, 0);
    assert_int_equal(kvt_policy_capacity_set(policy, KVT_TIER_NONE, 5), KVT_E_ARGUMENT);
    assert_int_equal(kvt_policy_capacity_set(policy, KVT_TIER_COUNT, 5), KVT_E_ARGUMENT);
    assert_int_equal(kvt_policy_capacity_set(policy, KVT_TIER_SSD, UINT64_MAX), KVT_E_ARGUMENT);
    assert_int_equal(kvt_policy_withheld_set(policy, KVT_TIER_NONE, 5), KVT_E_ARGUMENT);
    assert_int_equal(kvt_policy_withheld_set(policy, KVT_TIER_COUNT, 5), KVT_E_ARGUMENT);
    assert_int_equal(kvt_policy_withheld_set(policy, KVT_TIER_SSD, UINT64_MAX), KVT_E_ARGUMENT);
    kvt_policy_close(policy);
}
