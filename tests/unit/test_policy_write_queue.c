/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_policy_write_queue.c - what waits to be written makes the next write dearer: planned moves
 * are counted, time and failures take them off, and speeds may change.
 */
#include "policy_support.h"

#include "policy/engine.h"
#include "replay/rivals/dual.h"

#include <math.h>

#define DRAM_LEVEL (KVT_TIER_DRAM - 1)
#define SSD_LEVEL  (KVT_TIER_SSD - 1)

static test_memory memory;
static kvt_move moves[64];
static kvt_plan plan = {moves, 64, 0};
static kvt_policy_config config;

/* DRAM for one entry of 100 bytes, SSD for many; a second for 1,000 bytes of either. */
static int prepare(void **state)
{
    (void)state;
    memory = (test_memory){.left = -1};
    kvt_policy_config_init(&config);
    config.allocator = test_allocator(&memory);
    for (int tier = KVT_TIER_DRAM; tier <= KVT_TIER_SSD; tier++) {
        config.tiers[tier] = (kvt_tier_facts){
            .capacity_bytes = 100, .read_bytes_per_s = 1000.0, .write_bytes_per_s = 1000.0};
    }
    config.tiers[KVT_TIER_SSD].capacity_bytes = 10000;
    return 0;
}

static int no_memory_is_left(void **state)
{
    (void)state;
    return memory.held_bytes == 0 ? 0 : 1;
}

static kvt_status admit(kvt_policy *policy, uint64_t now_ns, uint64_t handle, uint64_t parent,
                        const kvt_option *options, uint32_t count)
{
    kvt_policy_entry given = {.struct_size = sizeof given,
                              .handle = handle,
                              .parent = parent,
                              .options = options,
                              .option_count = count,
                              .tokens = 1};
    return kvt_policy_admit(policy, now_ns, &given, &plan);
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

TEST_EACH(prepare, no_memory_is_left);

/* The engine counts what it has planned, gives back what was aborted, and lets time pass. */
TEST(moves_are_counted_until_their_time_has_passed)
{
    const kvt_option *options = slow_to_write();
    kvt_policy *policy = test_open(&config);
    assert_int_equal(admit(policy, SECOND, 1, 0, options, 2), KVT_OK);
    test_carry_out(policy, &plan);
    assert_int_equal(admit(policy, SECOND, 2, 0, options, 2), KVT_OK);
    uint64_t second = moves[0].id;
    assert_int_equal(admit(policy, SECOND, 3, 0, options, 2), KVT_REFUSED);
    assert_int_equal(kvt_policy_abort(policy, second), KVT_OK);
    assert_int_equal(admit(policy, SECOND, 4, 0, options, 2), KVT_OK);
    test_carry_out(policy, &plan);
    assert_int_equal(admit(policy, SECOND, 5, 0, options, 2), KVT_REFUSED);
    assert_int_equal(admit(policy, 3 * SECOND, 5, 0, options, 2), KVT_OK);
    test_carry_out(policy, &plan);
    kvt_policy_close(policy);
}

/* An entry of DRAM that is pinned cannot leave: what comes goes below, however many forms it has
 * above. */
TEST(an_entry_goes_where_room_can_be_had)
{
    kvt_policy *policy = test_open(&config);
    kvt_option options[7] = {test_none(1000.0)};
    for (uint32_t i = 1; i <= 5; i++)
        options[i] = test_option((uint16_t)i, KVT_TIER_DRAM, 100 - i, 0.01);
    options[6] = test_option(6, KVT_TIER_SSD, 50, 0.1);
    assert_int_equal(admit(policy, SECOND, 1, 0, options, 6), KVT_OK);
    test_carry_out(policy, &plan);
    assert_int_equal(kvt_policy_pin(policy, 1), KVT_OK);
    options[0] = test_none(100000.0);
    assert_int_equal(admit(policy, SECOND, 3, 0, options, 7), KVT_OK);
    assert_int_equal(plan.count, 1);
    assert_int_equal(moves[0].to, 6);
    test_carry_out(policy, &plan);
    kvt_policy_close(policy);
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
        kvt_policy *policy = test_open(&config);
        options[0] = test_none(1000.0);
        assert_int_equal(admit(policy, SECOND, 1, 0, options, 3), KVT_OK);
        test_carry_out(policy, &plan);
        double dram = policy->write_queue_s[DRAM_LEVEL];
        assert_true(dram > 0.0999 && dram < 0.1001);
        const kvt_option below[2] = {options[0], options[2]};
        options[0] = test_none(100000.0);
        for (uint64_t handle = 2; handle < 40; handle++) {
            plan.capacity = 1; /* one move for what needs two */
            assert_int_equal(admit(policy, SECOND, handle, 0, options, 2), KVT_REFUSED);
            plan.capacity = 64;
            assert_int_equal(admit(policy, SECOND, 100 + handle, 0, below, 2), KVT_OK);
            assert_true(policy->write_queue_s[SSD_LEVEL] > 0.0999);
            assert_int_equal(kvt_policy_remove(policy, 100 + handle), KVT_OK);
        }
        assert_true(policy->write_queue_s[SSD_LEVEL] < 1e-9);
        assert_true(fabs(policy->write_queue_s[DRAM_LEVEL] - dram) < 1e-9);
        assert_int_equal(admit(policy, SECOND, 40, 0, options, 2), KVT_OK);
        assert_int_equal(plan.count, 2);
        assert_int_equal(moves[0].kind, KVT_MOVE_CHANGE);
        test_carry_out(policy, &plan);
        kvt_policy_close(policy);
    }
}

/* A clock that steps back lets no time pass: time counts from the latest one. */
TEST(time_that_steps_back_is_no_time)
{
    const kvt_option *options = slow_to_write();
    kvt_policy *policy = test_open(&config);
    for (uint64_t handle = 1; handle <= 2; handle++) {
        assert_int_equal(admit(policy, 10 * SECOND, handle, 0, options, 2), KVT_OK);
        test_carry_out(policy, &plan);
    }
    assert_int_equal(admit(policy, 4 * SECOND, 3, 0, options, 2), KVT_REFUSED);
    assert_int_equal(admit(policy, 8 * SECOND, 4, 0, options, 2), KVT_REFUSED);
    assert_int_equal(admit(policy, 12 * SECOND, 5, 0, options, 2), KVT_OK);
    test_carry_out(policy, &plan);
    kvt_policy_close(policy);
}

/* Whichever call brings the time, the queue has it. */
TEST(solving_lets_time_pass)
{
    const kvt_option *options = slow_to_write();
    kvt_policy *policy = test_open(&config);
    for (uint64_t handle = 1; handle <= 2; handle++) {
        assert_int_equal(admit(policy, 10 * SECOND, handle, 0, options, 2), KVT_OK);
        test_carry_out(policy, &plan);
    }
    dual_bound bound;
    assert_int_equal(dual_solve(policy, 20 * SECOND, NULL, &bound), KVT_OK);
    assert_true(policy->write_queue_s[SSD_LEVEL] <= 0.0);
    kvt_policy_close(policy);
}

/* An entry that saves a second is not worth a write of ten million seconds; it is once the tier has
 * turned out as fast as it is. */
TEST(speeds_may_change)
{
    config.tiers[KVT_TIER_SSD].capacity_bytes = 0;
    config.tiers[KVT_TIER_DRAM].capacity_bytes = UINT64_C(1) << 40;
    config.tiers[KVT_TIER_DRAM].write_bytes_per_s = 1.0;
    kvt_policy *policy = test_open(&config);
    kvt_option options[2] = {
        test_none(1.0), test_option(config.variant.codec, KVT_TIER_DRAM, UINT64_C(10000000), 0.01)};
    assert_int_equal(admit(policy, SECOND, 1, 0, options, 2), KVT_REFUSED);
    assert_int_equal(kvt_policy_set_speed(policy, KVT_TIER_DRAM, 1e9, 0.5, 0), KVT_E_ARGUMENT);
    assert_int_equal(kvt_policy_set_speed(policy, KVT_TIER_DRAM, -1, 1e9, 0), KVT_E_ARGUMENT);
    assert_int_equal(kvt_policy_set_speed(policy, KVT_TIER_NONE, 1e9, 1e9, 0), KVT_E_ARGUMENT);
    assert_int_equal(admit(policy, SECOND, 2, 0, options, 2), KVT_REFUSED);
    assert_int_equal(kvt_policy_set_speed(policy, KVT_TIER_DRAM, 1e9, 1e9, 1e-4), KVT_OK);
    assert_int_equal(admit(policy, SECOND, 3, 0, options, 2), KVT_OK);
    test_carry_out(policy, &plan);
    kvt_policy_close(policy);
}

/* What waits is bytes: a tier that turns out ten times as fast writes them in a tenth of the time.
 */
TEST(waiting_bytes_follow_the_speed)
{
    const kvt_option *options = slow_to_write();
    kvt_policy *policy = test_open(&config);
    assert_int_equal(admit(policy, SECOND, 1, 0, options, 2), KVT_OK);
    assert_true(fabs(policy->write_queue_s[SSD_LEVEL] - 2.5) < 1e-9);
    assert_int_equal(kvt_policy_set_speed(policy, KVT_TIER_SSD, 1e3, 400.0, 0.0), KVT_OK);
    assert_true(fabs(policy->write_queue_s[SSD_LEVEL] - 0.25) < 1e-9);
    test_carry_out(policy, &plan);
    kvt_policy_close(policy);
}
