/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_policy_promote.c - promotions that are asked for ahead of a use: what each answer says, and
 * that nothing is counted.
 */
#include "policy_site.h"

#include <stdbool.h>

static kvt_option options[4];
static kvt_policy_entry entry;

enum { HBM = 1, DRAM = 2, SSD = 3 }; /* the options of each entry: 100 bytes in that tier */

static void open_policy(const char *name, uint64_t hbm_bytes)
{
    kvt_policy_config config = policy_site_config(310, 1000);
    config.name = name;
    config.tiers[KVT_TIER_HBM].capacity_bytes = hbm_bytes;
    policy = test_open(&config);
    plan.capacity = 64;
    options[0] = test_none(1.0);
    options[HBM] = test_option(1, KVT_TIER_HBM, 100, 0.001);
    options[DRAM] = test_option(1, KVT_TIER_DRAM, 100, 0.01);
    options[SSD] = test_option(1, KVT_TIER_SSD, 100, 0.1);
    entry = test_entry(0, options, sizeof options / sizeof options[0], 256);
}

static void adopt(uint64_t handle, uint8_t option)
{
    entry.handle = handle;
    assert_ok(kvt_policy_adopt(policy, SECOND, &entry, option));
}

static kvt_status promote(uint64_t handle, kvt_tier tier)
{
    return kvt_policy_promote(policy, 2 * SECOND, handle, tier, &plan);
}

static uint64_t accesses(void)
{
    kvt_policy_stats stats;
    kvt_policy_stats_get(policy, &stats);
    return stats.accesses;
}

TEST_EACH(NULL, policy_site_close);

TEST(an_entry_moves_up_no_higher_than_asked)
{
    static const char *const names[] = {"utility", "lru", "lru-leaf", "sieve", "fifo", "w-tinylfu"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        open_policy(names[i], 300);
        adopt(1, SSD);
        uint64_t before = accesses();
        assert_ok(promote(1, KVT_TIER_DRAM));
        assert_int_equal(plan.count, 1);
        assert_int_equal(plan.moves[0].to, DRAM);
        uint64_t id = plan.moves[0].id;
        /* It is on its way to DRAM, which is not as high as HBM. */
        assert_ok(promote(1, KVT_TIER_DRAM));
        assert_int_equal(plan.count, 0);
        assert_int_equal(promote(1, KVT_TIER_HBM), KVT_REFUSED);
        assert_ok(kvt_policy_commit(policy, id, NULL));
        assert_ok(promote(1, KVT_TIER_DRAM));
        assert_int_equal(plan.count, 0);
        assert_ok(promote(1, KVT_TIER_HBM));
        test_carry_out(policy, &plan);
        assert_int_equal(kvt_policy_option_get(policy, 1), HBM);
        assert_int_equal(accesses(), before);
        policy_site_close(NULL);
    }
}

TEST(what_cannot_move_is_refused)
{
    open_policy("utility", 0);
    adopt(1, SSD);
    assert_int_equal(promote(1, KVT_TIER_HBM), KVT_E_UNSUPPORTED);
    assert_int_equal(promote(1, KVT_TIER_NONE), KVT_E_UNSUPPORTED);
    assert_int_equal(promote(1, KVT_TIER_REMOTE), KVT_E_UNSUPPORTED);
    assert_int_equal(promote(2, KVT_TIER_DRAM), KVT_MISS);
    assert_ok(kvt_policy_pin(policy, 1));
    assert_int_equal(promote(1, KVT_TIER_DRAM), KVT_REFUSED);
    assert_ok(kvt_policy_unpin(policy, 1));
    plan.capacity = 0;
    assert_int_equal(promote(1, KVT_TIER_DRAM), KVT_REFUSED);
    policy_site_close(NULL);
    for (int i = 0; i < 2; i++) {
        open_policy(i == 0 ? "none" : "adaptcache", 0);
        adopt(1, SSD);
        assert_int_equal(promote(1, KVT_TIER_DRAM), KVT_REFUSED);
        policy_site_close(NULL);
    }
}

/* Entries that lru would drive out for a use stay when each is used more than once a minute. */
TEST(a_single_use_does_not_drive_out_better_entries)
{
    for (int hot = 0; hot < 2; hot++) {
        open_policy("utility", 0);
        for (uint64_t handle = 1; handle <= 3; handle++) {
            adopt(handle, DRAM);
            assert_ok(kvt_policy_rate_set(policy, handle, hot ? 1.0 : 1e-6));
        }
        adopt(4, SSD);
        assert_int_equal(promote(4, KVT_TIER_DRAM), hot ? KVT_REFUSED : KVT_OK);
        if (!hot) assert_int_equal(plan.moves[plan.count - 1].handle, 4);
        policy_site_close(NULL);
    }
}
