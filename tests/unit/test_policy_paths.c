/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_policy_paths.c - what an executor would not carry out is not planned: closed read and write
 * paths, told or counted, and the other ways to make room.
 */
#include "policy_support.h"

static test_memory memory;
static kvt_move moves[64];
static kvt_plan plan = {moves, 64, 0};
static kvt_policy_config config;

/* DRAM for one entry of 100 bytes, SSD for many; a second for 1,000 bytes of either path. */
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
    kvt_policy_entry entry = {
        .handle = handle, .parent = parent, .options = options, .option_count = count, .tokens = 1};
    return kvt_policy_admit(policy, now_ns, &entry, &plan);
}

static void tell(kvt_policy *policy, uint64_t now_ns, kvt_tier tier, double reads, double writes)
{
    assert_int_equal(kvt_policy_observe_queue(policy, now_ns, tier, reads, writes), KVT_OK);
}

/* What a newcomer that is worth much and goes to DRAM alone does to the entry there. */
static uint8_t pushed_out(const char *name, double reads, double writes)
{
    config.name = name;
    kvt_policy *policy = test_open(&config);
    uint16_t raw = config.variant.codec;
    kvt_option options[3] = {test_none(1000.0), test_option(raw, KVT_TIER_DRAM, 100, 0.01),
                             test_option(raw, KVT_TIER_SSD, 100, 0.1)};
    assert_int_equal(admit(policy, SECOND, 1, 0, options, 3), KVT_OK);
    test_carry_out(policy, &plan);
    tell(policy, 10 * SECOND, KVT_TIER_DRAM, reads, 0.0);
    tell(policy, 10 * SECOND, KVT_TIER_SSD, 0.0, writes);
    options[0] = test_none(100000.0);
    assert_int_equal(admit(policy, 10 * SECOND, 2, 0, options, 2), KVT_OK);
    assert_int_equal(plan.count, 2);
    assert_int_equal(moves[0].handle, 1);
    uint8_t kind = moves[0].kind;
    test_carry_out(policy, &plan);
    kvt_policy_close(policy);
    return kind;
}

static void what_cannot_move_down_now_leaves(void **state)
{
    (void)state;
    static const char *const names[] = {"utility", "lru", "gdsf", "s3fifo"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        /* Without limits a queue only costs. */
        config.tiers[KVT_TIER_SSD].write_lag_seconds = 0.0;
        config.tiers[KVT_TIER_DRAM].read_lag_seconds = 0.0;
        assert_int_equal(pushed_out(names[i], 1e3, 1e3), KVT_MOVE_CHANGE);
        /* Four fifths of a limit are left to the executor's own count. */
        config.tiers[KVT_TIER_SSD].write_lag_seconds = 10.0;
        config.tiers[KVT_TIER_DRAM].read_lag_seconds = 1.0;
        assert_int_equal(pushed_out(names[i], 0.7, 7.9), KVT_MOVE_CHANGE);
        assert_int_equal(pushed_out(names[i], 0.0, 8.1), KVT_MOVE_EVICT);
        assert_int_equal(pushed_out(names[i], 0.9, 0.0), KVT_MOVE_EVICT);
    }
}

/* 2.5 s of writing, a tenth of a second each, must save more than they cost with the wait before
 * them: about four seconds of it. The last ones before a limit count for more. */
static void a_queue_near_its_limit_is_dearer(void **state)
{
    (void)state;
    static const struct {
        double limit, queue;
        kvt_status status;
    } cases[] = {{0.0, 3.5, KVT_OK},
                 {0.0, 4.5, KVT_REFUSED},
                 {100.0, 3.5, KVT_OK},
                 {10.0, 3.5, KVT_REFUSED},
                 {10.0, 2.0, KVT_OK}};
    config.tiers[KVT_TIER_SSD].write_bytes_per_s = 40.0;
    const kvt_option options[2] = {test_none(2.2), test_option(1, KVT_TIER_SSD, 100, 0.1)};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        config.tiers[KVT_TIER_SSD].write_lag_seconds = cases[i].limit;
        kvt_policy *policy = test_open(&config);
        tell(policy, SECOND, KVT_TIER_SSD, 0.0, cases[i].queue);
        assert_int_equal(admit(policy, SECOND, 1, 0, options, 2), cases[i].status);
        kvt_policy_close(policy);
    }
}

/* An entry of DRAM with a stored child may not leave, and cannot be read to move down: what comes
 * goes below, however many forms it has above. */
static void a_newcomer_goes_where_room_can_be_had(void **state)
{
    (void)state;
    config.tiers[KVT_TIER_DRAM].read_lag_seconds = 1.0;
    kvt_policy *policy = test_open(&config);
    kvt_option options[7] = {test_none(1000.0)};
    for (uint32_t i = 1; i <= 5; i++)
        options[i] = test_option((uint16_t)i, KVT_TIER_DRAM, 100 - i, 0.01);
    options[6] = test_option(6, KVT_TIER_SSD, 50, 0.1);
    assert_int_equal(admit(policy, SECOND, 1, 0, options, 6), KVT_OK);
    test_carry_out(policy, &plan);
    const kvt_option below[2] = {options[0], options[6]};
    assert_int_equal(admit(policy, SECOND, 2, 1, below, 2), KVT_OK);
    test_carry_out(policy, &plan);
    tell(policy, SECOND, KVT_TIER_DRAM, 2.0, 0.0);
    options[0] = test_none(100000.0);
    assert_int_equal(admit(policy, SECOND, 3, 0, options, 7), KVT_OK);
    assert_int_equal(plan.count, 1);
    assert_int_equal(moves[0].to, 6);
    test_carry_out(policy, &plan);
    kvt_policy_close(policy);
}

/* Without being told the engine counts what it has planned, gives back what was aborted, and lets
 * time pass. */
static void moves_are_counted_until_their_time_has_passed(void **state)
{
    (void)state;
    config.tiers[KVT_TIER_SSD].write_lag_seconds = 1.0;
    kvt_policy *policy = test_open(&config);
    const kvt_option options[2] = {test_none(1000.0), test_option(1, KVT_TIER_SSD, 300, 0.1)};
    /* 0.3 s of writing each: the fourth would find 0.9 s, beyond 0.8. */
    for (uint64_t handle = 1; handle <= 3; handle++) {
        assert_int_equal(admit(policy, SECOND, handle, 0, options, 2), KVT_OK);
        if (handle < 3) test_carry_out(policy, &plan);
    }
    uint64_t third = moves[0].id;
    assert_int_equal(admit(policy, SECOND, 4, 0, options, 2), KVT_REFUSED);
    assert_int_equal(kvt_policy_abort(policy, third), KVT_OK);
    assert_int_equal(admit(policy, SECOND, 5, 0, options, 2), KVT_OK);
    test_carry_out(policy, &plan);
    assert_int_equal(admit(policy, SECOND, 6, 0, options, 2), KVT_REFUSED);
    assert_int_equal(admit(policy, SECOND + SECOND / 5, 6, 0, options, 2), KVT_OK);
    test_carry_out(policy, &plan);
    kvt_policy_close(policy);
}

/* A plan that does not fit is taken back with the seconds that its moves had put into the queue,
 * and so is the move of an entry that is removed: however often, the path stays open. */
static void what_is_not_carried_out_takes_no_time(void **state)
{
    (void)state;
    static const char *const names[] = {"utility", "lru", "adaptcache"};
    config.tiers[KVT_TIER_SSD].write_lag_seconds = 1.0;
    uint16_t raw = config.variant.codec;
    kvt_option options[3] = {test_none(1000.0), test_option(raw, KVT_TIER_DRAM, 100, 0.01),
                             test_option(raw, KVT_TIER_SSD, 100, 0.1)};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        config.name = names[i];
        kvt_policy *policy = test_open(&config);
        options[0] = test_none(1000.0);
        assert_int_equal(admit(policy, SECOND, 1, 0, options, 3), KVT_OK);
        test_carry_out(policy, &plan);
        const kvt_option below[2] = {options[0], options[2]};
        options[0] = test_none(100000.0);
        for (uint64_t handle = 2; handle < 40; handle++) {
            plan.capacity = 1; /* one move for what needs two */
            assert_int_equal(admit(policy, SECOND, handle, 0, options, 2), KVT_REFUSED);
            plan.capacity = 64;
            assert_int_equal(admit(policy, SECOND, 100 + handle, 0, below, 2), KVT_OK);
            assert_int_equal(plan.count, 1);
            assert_int_equal(kvt_policy_remove(policy, 100 + handle), KVT_OK);
        }
        assert_int_equal(admit(policy, SECOND, 40, 0, options, 2), KVT_OK);
        assert_int_equal(plan.count, 2);
        assert_int_equal(moves[0].kind, KVT_MOVE_CHANGE);
        test_carry_out(policy, &plan);
        kvt_policy_close(policy);
    }
}

/* A clock that steps back lets no time pass, and what is told by it holds from the latest time. */
static void time_that_steps_back_is_no_time(void **state)
{
    (void)state;
    config.tiers[KVT_TIER_SSD].write_lag_seconds = 1.0;
    kvt_policy *policy = test_open(&config);
    const kvt_option options[2] = {test_none(1000.0), test_option(1, KVT_TIER_SSD, 10, 0.1)};
    assert_int_equal(admit(policy, 10 * SECOND, 1, 0, options, 2), KVT_OK);
    test_carry_out(policy, &plan);
    tell(policy, 5 * SECOND, KVT_TIER_SSD, 0.0, 1.5);
    assert_int_equal(admit(policy, 6 * SECOND, 2, 0, options, 2), KVT_REFUSED);
    assert_int_equal(admit(policy, 10 * SECOND + SECOND / 2, 2, 0, options, 2), KVT_REFUSED);
    assert_int_equal(admit(policy, 4 * SECOND, 2, 0, options, 2), KVT_REFUSED);
    assert_int_equal(admit(policy, 10 * SECOND + SECOND * 3 / 4, 2, 0, options, 2), KVT_OK);
    test_carry_out(policy, &plan);
    kvt_policy_close(policy);
}

/* The caller holds the bytes of an entry that is used: it can go up while its path is busy, and a
 * tick, which would have to read it, leaves it. */
/* Whoever tells the time first, a queue has it. */
static void solving_lets_time_pass(void **state)
{
    (void)state;
    config.tiers[KVT_TIER_SSD].write_lag_seconds = 1.0;
    kvt_policy *policy = test_open(&config);
    const kvt_option options[2] = {test_none(1000.0), test_option(1, KVT_TIER_SSD, 100, 0.1)};
    tell(policy, 10 * SECOND, KVT_TIER_SSD, 0.0, 1.5);
    assert_int_equal(admit(policy, 10 * SECOND, 1, 0, options, 2), KVT_REFUSED);
    kvt_policy_bound bound;
    assert_int_equal(kvt_policy_solve(policy, 20 * SECOND, &bound), KVT_OK);
    assert_int_equal(admit(policy, 20 * SECOND, 1, 0, options, 2), KVT_OK);
    test_carry_out(policy, &plan);
    kvt_policy_close(policy);
}

static void what_the_caller_holds_need_not_be_read(void **state)
{
    (void)state;
    config.tiers[KVT_TIER_SSD].read_lag_seconds = 0.5;
    for (int told = 0; told < 2; told++) {
        kvt_policy *policy = test_open(&config);
        const kvt_option options[3] = {test_none(1000.0), test_option(1, KVT_TIER_SSD, 100, 10.0),
                                       test_option(1, KVT_TIER_DRAM, 50, 0.1)};
        kvt_policy_entry entry = {.handle = 1, .options = options, .option_count = 3, .tokens = 1};
        assert_int_equal(kvt_policy_adopt(policy, SECOND, &entry, 1), KVT_OK);
        for (int use = 0; use < 3; use++)
            assert_int_equal(kvt_policy_access(policy, SECOND, 1, NULL), KVT_OK);
        tell(policy, SECOND, KVT_TIER_SSD, told ? 1.0 : 0.0, 0.0);
        assert_int_equal(kvt_policy_tick(policy, SECOND, 8, UINT64_MAX, &plan), KVT_OK);
        assert_int_equal(plan.count, told ? 0 : 1);
        if (told) assert_int_equal(kvt_policy_access(policy, SECOND, 1, &plan), KVT_OK);
        assert_int_equal(plan.count, 1);
        assert_int_equal(moves[0].to, 2);
        test_carry_out(policy, &plan);
        kvt_policy_close(policy);
    }
}

static void bad_figures_are_refused(void **state)
{
    (void)state;
    kvt_policy *policy = test_open(&config);
    const double bad[] = {-1.0, 1e13, strtod("nan", NULL), strtod("inf", NULL)};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(kvt_policy_observe_queue(policy, 0, KVT_TIER_SSD, bad[i], 0.0),
                         KVT_E_ARGUMENT);
        assert_int_equal(kvt_policy_observe_queue(policy, 0, KVT_TIER_SSD, 0.0, bad[i]),
                         KVT_E_ARGUMENT);
    }
    assert_int_equal(kvt_policy_observe_queue(policy, 0, KVT_TIER_NONE, 0.0, 0.0), KVT_E_ARGUMENT);
    assert_int_equal(kvt_policy_observe_queue(policy, 0, KVT_TIER_COUNT, 0.0, 0.0), KVT_E_ARGUMENT);
    kvt_policy_close(policy);
    char message[128];
    config.tiers[KVT_TIER_SSD].read_lag_seconds = strtod("nan", NULL);
    assert_int_equal(kvt_policy_open(&config, &policy, message, sizeof message), KVT_E_ARGUMENT);
    assert_non_null(strstr(message, "read_lag_seconds"));
    config.tiers[KVT_TIER_SSD].read_lag_seconds = 0.0;
    config.tiers[KVT_TIER_SSD].write_lag_seconds = -1.0;
    assert_int_equal(kvt_policy_open(&config, &policy, message, sizeof message), KVT_E_ARGUMENT);
}

/* An entry that saves a second is not worth a write of ten million seconds; it is once the tier has
 * turned out as fast as it is. */
static void speeds_may_change(void **state)
{
    (void)state;
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_cannot_move_down_now_leaves, prepare,
                                        no_memory_is_left),
        cmocka_unit_test_setup_teardown(a_queue_near_its_limit_is_dearer, prepare,
                                        no_memory_is_left),
        cmocka_unit_test_setup_teardown(a_newcomer_goes_where_room_can_be_had, prepare,
                                        no_memory_is_left),
        cmocka_unit_test_setup_teardown(moves_are_counted_until_their_time_has_passed, prepare,
                                        no_memory_is_left),
        cmocka_unit_test_setup_teardown(speeds_may_change, prepare, no_memory_is_left),
        cmocka_unit_test_setup_teardown(what_is_not_carried_out_takes_no_time, prepare,
                                        no_memory_is_left),
        cmocka_unit_test_setup_teardown(time_that_steps_back_is_no_time, prepare,
                                        no_memory_is_left),
        cmocka_unit_test_setup_teardown(what_the_caller_holds_need_not_be_read, prepare,
                                        no_memory_is_left),
        cmocka_unit_test_setup_teardown(solving_lets_time_pass, prepare, no_memory_is_left),
        cmocka_unit_test_setup_teardown(bad_figures_are_refused, prepare, no_memory_is_left),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
