/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_policy_write_queue.c - what waits to be written makes the next write dearer: planned moves
 * are counted, time and failures take them off, and speeds may change.
 */
#include "policy/engine.h"
#include "policy_site.h"
#include "replay/rivals/dual.h"

#include <math.h>

#define DRAM_LEVEL (KVT_TIER_DRAM - 1)
#define SSD_LEVEL  (KVT_TIER_SSD - 1)

static kvt_policy_config config;

/* DRAM for one entry of 100 bytes, SSD for many; a second for 1,000 bytes of either. */
TEST_BEFORE_EACH
{
    memory = (test_memory){.left = -1};
    kvt_policy_config_init(&config);
    config.allocator = test_allocator(&memory);
    for (int tier = KVT_TIER_DRAM; tier <= KVT_TIER_SSD; tier++) {
        config.tiers[tier] = (kvt_tier_facts){
            .capacity_bytes = 100, .read_bytes_per_s = 1000.0, .write_bytes_per_s = 1000.0};
    }
    config.tiers[KVT_TIER_SSD].capacity_bytes = 10000;
}

/* 2.5 s of writing, a tenth of a second each, must save more than they cost with the wait before
 * them: about four seconds of it. */
static const kvt_option *slow_to_write(void)
{
    static kvt_option options[2];
    config.tiers[KVT_TIER_SSD].write_bytes_per_s = 40.0;
    options[0] = test_none(2.2);
    options[1] = test_option(1, KVT_TIER_SSD, 100, 0.1);
    return options;
}

TEST_EACH(NULL, policy_site_close);

/* The engine counts what it has planned, gives back what was aborted, and lets time pass. */
TEST(moves_are_counted_until_their_time_has_passed)
{
    const kvt_option *options = slow_to_write();
    policy = test_open(&config);
    admit_now(SECOND, 1, options, 2);
    assert_ok(admit(SECOND, 2, 0, options, 2));
    uint64_t second = moves[0].id;
    assert_int_equal(admit(SECOND, 3, 0, options, 2), KVT_REFUSED);
    assert_ok(kvt_policy_abort(policy, second));
    admit_now(SECOND, 4, options, 2);
    assert_int_equal(admit(SECOND, 5, 0, options, 2), KVT_REFUSED);
    admit_now(3 * SECOND, 5, options, 2);
}

/* An entry of DRAM that is pinned cannot leave: what comes goes below, however many forms it has
 * above. */
TEST(an_entry_goes_where_room_can_be_had)
{
    policy = test_open(&config);
    kvt_option options[7] = {test_none(1000.0)};
    for (uint32_t i = 1; i <= 5; i++)
        options[i] = test_option((uint16_t)i, KVT_TIER_DRAM, 100 - i, 0.01);
    options[6] = test_option(6, KVT_TIER_SSD, 50, 0.1);
    admit_now(SECOND, 1, options, 6);
    assert_ok(kvt_policy_pin(policy, 1));
    options[0] = test_none(100000.0);
    assert_ok(admit(SECOND, 3, 0, options, 7));
    assert_int_equal(plan.count, 1);
    assert_int_equal(moves[0].to, 6);
    test_carry_out(policy, &plan);
}

/* A plan that does not fit is taken back with the seconds that its moves had put into the queue,
 * and so is the move of an entry that is removed: however often, nothing waits in the end. */
TEST(what_is_not_carried_out_takes_no_time)
{
    static const char *const names[] = {"utility", "lru", "adaptcache"};
    uint16_t raw = config.variant.codec;
    kvt_option options[3] = {test_none(1000.0), test_option(raw, KVT_TIER_DRAM, 100, 0.01),
                             test_option(raw, KVT_TIER_SSD, 100, 0.1)};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        config.name = names[i];
        policy = test_open(&config);
        options[0] = test_none(1000.0);
        admit_now(SECOND, 1, options, 3);
        double dram = policy->write_queue_s[DRAM_LEVEL];
        assert_true(dram > 0.0999 && dram < 0.1001);
        const kvt_option below[2] = {options[0], options[2]};
        options[0] = test_none(100000.0);
        for (uint64_t handle = 2; handle < 40; handle++) {
            plan.capacity = 1; /* one move for what needs two */
            assert_int_equal(admit(SECOND, handle, 0, options, 2), KVT_REFUSED);
            plan.capacity = 64;
            assert_ok(admit(SECOND, 100 + handle, 0, below, 2));
            assert_true(policy->write_queue_s[SSD_LEVEL] > 0.0999);
            assert_ok(kvt_policy_remove(policy, 100 + handle));
        }
        assert_true(policy->write_queue_s[SSD_LEVEL] < 1e-9);
        assert_true(fabs(policy->write_queue_s[DRAM_LEVEL] - dram) < 1e-9);
        assert_ok(admit(SECOND, 40, 0, options, 2));
        assert_int_equal(plan.count, 2);
        assert_int_equal(moves[0].kind, KVT_MOVE_CHANGE);
        test_carry_out(policy, &plan);
        policy_site_close(NULL);
    }
}

/* A clock that steps back lets no time pass: time counts from the latest one. */
TEST(time_that_steps_back_is_no_time)
{
    const kvt_option *options = slow_to_write();
    policy = test_open(&config);
    for (uint64_t handle = 1; handle <= 2; handle++) {
        admit_now(10 * SECOND, handle, options, 2);
    }
    assert_int_equal(admit(4 * SECOND, 3, 0, options, 2), KVT_REFUSED);
    assert_int_equal(admit(8 * SECOND, 4, 0, options, 2), KVT_REFUSED);
    admit_now(12 * SECOND, 5, options, 2);
}

/* Whichever call brings the time, the queue has it. */
TEST(solving_lets_time_pass)
{
    const kvt_option *options = slow_to_write();
    policy = test_open(&config);
    for (uint64_t handle = 1; handle <= 2; handle++) {
        admit_now(10 * SECOND, handle, options, 2);
    }
    dual_bound bound;
    assert_ok(dual_solve(policy, 20 * SECOND, NULL, &bound));
    assert_true(policy->write_queue_s[SSD_LEVEL] <= 0.0);
}

/* An entry that saves a second is not worth a write of ten million seconds; it is once the tier has
 * turned out as fast as it is. */
TEST(speeds_may_change)
{
    config.tiers[KVT_TIER_SSD].capacity_bytes = 0;
    config.tiers[KVT_TIER_DRAM].capacity_bytes = UINT64_C(1) << 40;
    config.tiers[KVT_TIER_DRAM].write_bytes_per_s = 1.0;
    policy = test_open(&config);
    kvt_option options[2] = {
        test_none(1.0), test_option(config.variant.codec, KVT_TIER_DRAM, UINT64_C(10000000), 0.01)};
    assert_int_equal(admit(SECOND, 1, 0, options, 2), KVT_REFUSED);
    assert_int_equal(kvt_policy_speed_set(policy, KVT_TIER_DRAM, 1e9, 0.5, 0), KVT_E_ARGUMENT);
    assert_int_equal(kvt_policy_speed_set(policy, KVT_TIER_DRAM, -1, 1e9, 0), KVT_E_ARGUMENT);
    assert_int_equal(kvt_policy_speed_set(policy, KVT_TIER_NONE, 1e9, 1e9, 0), KVT_E_ARGUMENT);
    assert_int_equal(admit(SECOND, 2, 0, options, 2), KVT_REFUSED);
    assert_ok(kvt_policy_speed_set(policy, KVT_TIER_DRAM, 1e9, 1e9, 1e-4));
    admit_now(SECOND, 3, options, 2);
}

/* What waits is bytes: a tier that turns out ten times as fast writes them in a tenth of the time.
 */
TEST(waiting_bytes_follow_the_speed)
{
    const kvt_option *options = slow_to_write();
    policy = test_open(&config);
    assert_ok(admit(SECOND, 1, 0, options, 2));
    assert_true(fabs(policy->write_queue_s[SSD_LEVEL] - 2.5) < 1e-9);
    assert_ok(kvt_policy_speed_set(policy, KVT_TIER_SSD, 1e3, 400.0, 0.0));
    assert_true(fabs(policy->write_queue_s[SSD_LEVEL] - 0.25) < 1e-9);
    test_carry_out(policy, &plan);
}
