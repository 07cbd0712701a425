/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_policy_calls.c - the public calls one by one: wrong arguments, unknown ids, entries that are
 * removed, adopted, pinned or aborted at awkward moments, ghosts, growth, explanations.
 */
#include "policy_support.h"

#include <math.h>

static test_memory memory;
static kvt_policy_config config;
static kvt_policy *policy;
static kvt_move moves[16];
static kvt_plan plan;
static kvt_option options[4];
static kvt_policy_entry entry;

/* DRAM 300 and SSD 300; an entry of 100 bytes with both. */
TEST_BEFORE_EACH
{
    memory = (test_memory){.left = -1};
    kvt_policy_config_init(&config);
    config.allocator = test_allocator(&memory);
    config.tiers[KVT_TIER_DRAM].capacity_bytes = 300;
    config.tiers[KVT_TIER_SSD].capacity_bytes = 300;
    policy = test_open(&config);
    plan = (kvt_plan){moves, 16, 0};
    options[0] = test_none(1.0);
    options[1] = test_option(1, KVT_TIER_DRAM, 100, 0.01);
    options[2] = test_option(1, KVT_TIER_SSD, 100, 0.1);
    entry = test_entry(1, options, 3, 256);
}

TEST_AFTER_EACH
{
    kvt_policy_close(policy);
    assert_int_equal(memory.held_bytes, 0);
}

static kvt_policy_stats stats_now(void)
{
    kvt_policy_stats stats;
    kvt_policy_stats_get(policy, &stats);
    return stats;
}

static void admit_and_commit(uint64_t handle, uint64_t parent)
{
    entry.handle = handle;
    entry.parent = parent;
    assert_ok(kvt_policy_admit(policy, SECOND, &entry, &plan));
    test_carry_out(policy, &plan);
}

static void expect_config(kvt_status status)
{
    kvt_policy *opened = (kvt_policy *)&config;
    char message[80] = "unset";
    assert_int_equal(kvt_policy_open(&config, &opened, message, sizeof message), status);
    assert_null(opened);
    assert_true(strlen(message) > 10 && strchr(message, '\n') == NULL);
    assert_int_equal(kvt_policy_open(&config, &opened, NULL, 0), status);
}

TEST(a_wrong_configuration_is_named)
{
    const kvt_policy_config good = config;
    double *const numbers[] = {&config.alpha_seconds,
                               &config.hysteresis,
                               &config.high_watermark,
                               &config.low_watermark,
                               &config.tiers[KVT_TIER_SSD].write_bytes_per_s,
                               &config.tiers[KVT_TIER_SSD].read_bytes_per_s,
                               &config.tiers[KVT_TIER_SSD].request_seconds};
    const double wrong[] = {NAN, -1.0, INFINITY, -INFINITY};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        for (size_t k = 0; k < 4; k++) {
            config = good;
            *numbers[i] = wrong[k];
            expect_config(KVT_E_ARGUMENT);
        }
    config = good;
    config.low_watermark = 0.999;
    expect_config(KVT_E_ARGUMENT);
    config = good;
    config.struct_size = offsetof(kvt_policy_config, entries_reserved) - 1;
    expect_config(KVT_E_ARGUMENT);
    config = good;
    config.entries_reserved = UINT64_MAX;
    expect_config(KVT_E_ARGUMENT);
    config = good;
    config.allocator.resize = NULL;
    expect_config(KVT_E_ARGUMENT);
    config = good;
    config.name = NULL;
    expect_config(KVT_E_ARGUMENT);
    config = good;
    config.holes = 2;
    expect_config(KVT_E_ARGUMENT);
    config = good;
    config.tiers[KVT_TIER_NONE].capacity_bytes = 1;
    expect_config(KVT_E_ARGUMENT);
    config = good;
    config.name = "mru";
    expect_config(KVT_E_UNSUPPORTED);
    size_t count = 0;
    while (kvt_policy_name_get(count) != NULL)
        count++;
    assert_int_equal(count, 13);
    assert_null(kvt_policy_name_get(count + 1));
    assert_string_equal(kvt_policy_name_get(0), "none");
}

TEST(a_wrong_entry_changes_nothing)
{
    const kvt_option good = options[2];
    const double wrong[] = {NAN, -1.0, INFINITY};
    double *const numbers[] = {&options[2].load_seconds, &options[2].decode_seconds,
                               &options[2].encode_seconds, &options[2].loss};
    for (size_t i = 0; i < 12; i++) {
        *numbers[i / 3] = wrong[i % 3];
        assert_int_equal(kvt_policy_admit(policy, 0, &entry, &plan), KVT_E_ARGUMENT);
        assert_int_equal(kvt_policy_adopt(policy, 0, &entry, 1), KVT_E_ARGUMENT);
        options[2] = good;
    }
    options[2].loss = 1.5;
    assert_int_equal(kvt_policy_admit(policy, 0, &entry, &plan), KVT_E_ARGUMENT);
    options[2] = good;
    options[2].bytes[KVT_TIER_SSD] = 0;
    assert_int_equal(kvt_policy_admit(policy, 0, &entry, &plan), KVT_E_ARGUMENT);
    options[2] = good;
    options[2].bytes[KVT_TIER_NONE] = 1;
    assert_int_equal(kvt_policy_admit(policy, 0, &entry, &plan), KVT_E_ARGUMENT);
    options[2] = good;
    options[0].bytes[KVT_TIER_DRAM] = 1;
    assert_int_equal(kvt_policy_admit(policy, 0, &entry, &plan), KVT_E_ARGUMENT);
    options[0] = test_none(1.0);
    entry.option_count = 0;
    assert_int_equal(kvt_policy_admit(policy, 0, &entry, &plan), KVT_E_ARGUMENT);
    entry.option_count = 17;
    assert_int_equal(kvt_policy_admit(policy, 0, &entry, &plan), KVT_E_ARGUMENT);
    entry.option_count = 3;
    entry.parent = 1;
    assert_int_equal(kvt_policy_admit(policy, 0, &entry, &plan), KVT_E_ARGUMENT);
    entry = test_entry(0, options, 3, 1);
    assert_int_equal(kvt_policy_admit(policy, 0, &entry, &plan), KVT_E_ARGUMENT);
    kvt_policy_stats stats = stats_now();
    assert_int_equal(stats.accesses + stats.entries + stats.ghosts + stats.refused, 0);
}

TEST(unknown_names_are_refused)
{
    kvt_explanation x = {.struct_size = sizeof x};
    assert_int_equal(kvt_policy_commit(policy, 0, NULL), KVT_E_ARGUMENT);
    assert_int_equal(kvt_policy_commit(policy, 1, NULL), KVT_E_ARGUMENT);
    assert_int_equal(kvt_policy_abort(policy, UINT64_MAX), KVT_E_ARGUMENT);
    assert_int_equal(kvt_policy_remove(policy, 5), KVT_MISS);
    assert_int_equal(kvt_policy_pin(policy, 5), KVT_MISS);
    assert_int_equal(kvt_policy_unpin(policy, 5), KVT_MISS);
    assert_int_equal(kvt_policy_access(policy, 0, 5, &plan), KVT_MISS);
    assert_int_equal(kvt_policy_explain(policy, 0, 5, &x), KVT_MISS);
    assert_int_equal(kvt_policy_option_get(policy, 5), KVT_OPTION_NONE);
    admit_and_commit(1, 0);
    /* A move ends once. */
    assert_int_equal(kvt_policy_commit(policy, moves[0].id, NULL), KVT_E_ARGUMENT);
    assert_int_equal(kvt_policy_abort(policy, moves[0].id), KVT_E_ARGUMENT);
    assert_int_equal(kvt_policy_admit(policy, SECOND, &entry, &plan), KVT_EXISTS);
    assert_int_equal(kvt_policy_adopt(policy, SECOND, &entry, 1), KVT_EXISTS);
    assert_int_equal(stats_now().accesses, 2);
}

TEST(an_entry_can_vanish_at_any_moment)
{
    /* While its PUT is in flight. */
    assert_ok(kvt_policy_admit(policy, SECOND, &entry, &plan));
    assert_int_equal(stats_now().used_bytes[KVT_TIER_DRAM], 100);
    assert_int_equal(kvt_policy_access(policy, SECOND, 1, &plan), KVT_MISS); /* counted */
    assert_ok(kvt_policy_remove(policy, 1));
    assert_int_equal(stats_now().used_bytes[KVT_TIER_DRAM], 0);
    assert_int_equal(stats_now().moves_in_flight, 0);
    assert_int_equal(kvt_policy_commit(policy, 1, NULL), KVT_E_ARGUMENT);
    /* While it is moved: three in DRAM, a fourth pushes the first down. */
    for (uint64_t handle = 1; handle <= 3; handle++)
        admit_and_commit(handle, 0);
    options[0] = test_none(9.0);
    entry.handle = 4;
    assert_ok(kvt_policy_admit(policy, 9 * SECOND, &entry, &plan));
    assert_int_equal(plan.count, 2);
    assert_int_equal(moves[0].kind, KVT_MOVE_CHANGE);
    assert_ok(kvt_policy_remove(policy, moves[0].handle));
    assert_int_equal(kvt_policy_abort(policy, moves[0].id), KVT_E_ARGUMENT);
    assert_ok(kvt_policy_commit(policy, moves[1].id, NULL));
    assert_int_equal(stats_now().used_bytes[KVT_TIER_DRAM], 300);
    assert_int_equal(stats_now().used_bytes[KVT_TIER_SSD], 0);
    assert_int_equal(stats_now().aborts, 2);
    /* A removed entry is forgotten altogether, pins included. */
    assert_ok(kvt_policy_pin(policy, 4));
    assert_ok(kvt_policy_remove(policy, 4));
    assert_int_equal(kvt_policy_unpin(policy, 4), KVT_MISS);
    assert_int_equal(kvt_policy_remove(policy, 4), KVT_MISS);
}

TEST(children_of_a_removed_entry_become_roots)
{
    kvt_explanation x = {.struct_size = sizeof x};
    admit_and_commit(1, 0);
    admit_and_commit(2, 1);
    admit_and_commit(3, 1);
    assert_ok(kvt_policy_explain(policy, SECOND, 1, &x));
    assert_int_equal(x.resident_children, 2);
    assert_ok(kvt_policy_remove(policy, 1));
    for (uint64_t handle = 2; handle <= 3; handle++) {
        assert_ok(kvt_policy_explain(policy, SECOND, handle, &x));
        assert_int_equal(x.parent, 0);
        assert_int_equal(x.current, 1);
    }
    assert_ok(kvt_policy_remove(policy, 2));
    assert_ok(kvt_policy_remove(policy, 3));
    assert_int_equal(stats_now().entries, 0);
}

TEST(adoption_respects_capacity)
{
    for (uint64_t handle = 1; handle <= 3; handle++) {
        entry.handle = handle;
        assert_ok(kvt_policy_adopt(policy, SECOND, &entry, 2));
    }
    entry.handle = 4;
    assert_int_equal(kvt_policy_adopt(policy, SECOND, &entry, 2), KVT_E_SPACE);
    assert_int_equal(kvt_policy_adopt(policy, SECOND, &entry, 0), KVT_E_ARGUMENT);
    assert_int_equal(kvt_policy_adopt(policy, SECOND, &entry, 3), KVT_E_ARGUMENT);
    kvt_policy_stats stats = stats_now();
    assert_int_equal(stats.entries, 3);
    assert_int_equal(stats.accesses, 0);
    assert_int_equal(stats.entries_by_tier[KVT_TIER_SSD], 3);
    assert_int_equal(stats.used_bytes[KVT_TIER_SSD], 300);
    assert_int_equal(kvt_policy_option_get(policy, 2), 2);
}

TEST(actual_bytes_correct_the_ledger)
{
    const uint64_t less[KVT_TIER_PLACES] = {0, 0, 60, 0};
    const uint64_t most[KVT_TIER_PLACES] = {0, 0, 240, 0};
    const uint64_t more[KVT_TIER_PLACES] = {0, 0, 241, 0};
    const uint64_t none[KVT_TIER_PLACES] = {0};
    const uint64_t odd[KVT_TIER_PLACES] = {1, 0, 100, 0};
    assert_ok(kvt_policy_admit(policy, SECOND, &entry, &plan));
    assert_int_equal(kvt_policy_commit(policy, moves[0].id, none), KVT_E_ARGUMENT);
    assert_int_equal(kvt_policy_commit(policy, moves[0].id, odd), KVT_E_ARGUMENT);
    assert_ok(kvt_policy_commit(policy, moves[0].id, less));
    assert_int_equal(stats_now().used_bytes[KVT_TIER_DRAM], 60);
    entry.handle = 2;
    assert_ok(kvt_policy_admit(policy, SECOND, &entry, &plan));
    assert_int_equal(kvt_policy_commit(policy, moves[0].id, more), KVT_E_SPACE);
    assert_int_equal(stats_now().moves_in_flight, 1);
    assert_ok(kvt_policy_commit(policy, moves[0].id, most));
    assert_int_equal(stats_now().used_bytes[KVT_TIER_DRAM], 300);
    kvt_explanation x = {.struct_size = sizeof x};
    assert_ok(kvt_policy_explain(policy, SECOND, 2, &x));
    assert_int_equal(x.options[1].option.bytes[KVT_TIER_DRAM], 240);
    assert_int_equal(x.options[1].option.read_bytes[KVT_TIER_DRAM], 240);
}

TEST(pins_are_counted)
{
    for (uint64_t handle = 1; handle <= 3; handle++)
        admit_and_commit(handle, 0);
    for (uint64_t handle = 1; handle <= 3; handle++) {
        assert_ok(kvt_policy_pin(policy, handle));
        assert_ok(kvt_policy_pin(policy, handle));
        assert_ok(kvt_policy_unpin(policy, handle));
    }
    options[0] = test_none(9.0);
    entry.handle = 4;
    entry.option_count = 2; /* DRAM or nothing */
    assert_int_equal(kvt_policy_admit(policy, SECOND, &entry, &plan), KVT_REFUSED);
    assert_ok(kvt_policy_unpin(policy, 2));
    assert_int_equal(kvt_policy_unpin(policy, 2), KVT_MISS);
    assert_ok(kvt_policy_admit(policy, SECOND, &entry, &plan));
    assert_int_equal(plan.count, 2);
    assert_int_equal(moves[0].handle, 2);
}

TEST(a_plan_keeps_to_its_length)
{
    plan.capacity = 0;
    assert_int_equal(kvt_policy_admit(policy, SECOND, &entry, &plan), KVT_REFUSED);
    plan.capacity = 16;
    for (uint64_t handle = 1; handle <= 3; handle++)
        admit_and_commit(handle, 0);
    options[0] = test_none(9.0);
    entry.handle = 4;
    entry.option_count = 2;
    plan.capacity = 1;
    assert_int_equal(kvt_policy_admit(policy, SECOND, &entry, &plan), KVT_REFUSED);
    plan.capacity = 2;
    assert_ok(kvt_policy_admit(policy, SECOND, &entry, &plan));
    assert_int_equal(plan.count, 2);
}

TEST(ghosts_are_bounded_and_the_oldest_goes)
{
    kvt_policy_close(policy);
    config.ghosts_max = 3;
    policy = test_open(&config);
    entry.option_count = 1; /* nothing but NONE: always refused */
    for (uint64_t handle = 1; handle <= 5; handle++) {
        entry.handle = handle;
        assert_int_equal(kvt_policy_admit(policy, SECOND, &entry, &plan), KVT_REFUSED);
        if (handle == 4) {
            /* 2 was the oldest; a use renews it. */
            assert_int_equal(kvt_policy_access(policy, SECOND, 2, &plan), KVT_MISS);
        }
    }
    kvt_explanation x = {.struct_size = sizeof x};
    const bool known[] = {false, true, false, true, true};
    for (uint64_t handle = 1; handle <= 5; handle++) {
        kvt_status status = kvt_policy_explain(policy, SECOND, handle, &x);
        assert_int_equal(status, known[handle - 1] ? KVT_OK : KVT_MISS);
        if (status == KVT_OK) assert_int_equal(x.option_count, 0);
    }
    assert_int_equal(stats_now().ghosts, 3);
}

TEST(absent_tiers_hold_nothing)
{
    kvt_policy_close(policy);
    memset(config.tiers, 0, sizeof config.tiers);
    for (size_t i = 0; kvt_policy_name_get(i) != NULL; i++) {
        config.name = kvt_policy_name_get(i);
        policy = test_open(&config);
        assert_int_equal(kvt_policy_admit(policy, SECOND, &entry, &plan), KVT_REFUSED);
        assert_int_equal(kvt_policy_adopt(policy, SECOND, &entry, 1), KVT_E_SPACE);
        assert_ok(kvt_policy_tick(policy, SECOND, 9, UINT64_MAX, &plan));
        assert_int_equal(plan.count, 0);
        if (kvt_policy_name_get(i + 1) != NULL) kvt_policy_close(policy);
    }
}

TEST(a_late_move_does_not_disturb_later_ones)
{
    /* One PUT stays in flight while a thousand others come and go, so ids lap the ledger. */
    assert_ok(kvt_policy_admit(policy, SECOND, &entry, &plan));
    uint64_t first = moves[0].id;
    uint64_t last = first;
    for (int i = 0; i < 1000; i++) {
        entry.handle = 2;
        assert_ok(kvt_policy_admit(policy, SECOND, &entry, &plan));
        assert_true(moves[0].id > last);
        last = moves[0].id;
        test_carry_out(policy, &plan);
        assert_ok(kvt_policy_remove(policy, 2));
    }
    assert_ok(kvt_policy_commit(policy, first, NULL));
    assert_int_equal(kvt_policy_option_get(policy, 1), 1);
}

TEST(explanations_add_up)
{
    kvt_explanation x = {.struct_size = sizeof x};
    for (uint64_t handle = 1; handle <= 3; handle++)
        admit_and_commit(handle, 0);
    /* DRAM is full of entries of which the cheapest loses f * 0.09 by going to the SSD. */
    assert_ok(kvt_policy_explain(policy, SECOND, 1, &x));
    double f = x.accesses_per_s;
    double price = f * (0.1 - 0.01) / 100.0;
    assert_true(fabs(x.price[KVT_TIER_DRAM] / price - 1.0) < 1e-12);
    assert_true(x.price[KVT_TIER_SSD] == 0.0);
    assert_int_equal(x.option_count, 3);
    assert_true(fabs(x.options[0].score + f) < 1e-12 * f);
    assert_true(fabs(x.options[1].shadow_cost - 100.0 * price) < 1e-12);
    assert_true(x.options[1].score == x.options[1].utility - x.options[1].shadow_cost);
    assert_true(x.options[0].feasible && x.options[1].feasible && x.options[2].feasible);
    assert_int_equal(x.option_count, 3);
    assert_false(x.in_flight);
    assert_non_null(x.reason);
    assert_true(strlen(x.reason) > 20);
    assert_ok(kvt_policy_pin(policy, 1));
    assert_ok(kvt_policy_explain(policy, SECOND, 1, &x));
    assert_int_equal(x.pins, 1);
    assert_non_null(strstr(x.reason, "pinned"));
}

TEST(largest_capacities_do_not_overflow)
{
    kvt_policy_close(policy);
    config.tiers[KVT_TIER_DRAM].capacity_bytes = UINT64_C(1) << 61;
    policy = test_open(&config);
    options[1].bytes[KVT_TIER_DRAM] = UINT64_C(1) << 61;
    assert_ok(kvt_policy_admit(policy, SECOND, &entry, &plan));
    test_carry_out(policy, &plan);
    options[0] = test_none(9.0);
    entry.handle = 2;
    entry.option_count = 2;
    assert_ok(kvt_policy_admit(policy, SECOND, &entry, &plan));
    assert_int_equal(plan.count, 2);
    assert_int_equal(stats_now().used_bytes[KVT_TIER_DRAM], UINT64_C(1) << 62);
    test_carry_out(policy, &plan);
    assert_int_equal(stats_now().used_bytes[KVT_TIER_DRAM], UINT64_C(1) << 61);
    options[1].bytes[KVT_TIER_DRAM]++;
    entry.handle = 3;
    assert_int_equal(kvt_policy_admit(policy, SECOND, &entry, &plan), KVT_E_ARGUMENT);
    config.tiers[KVT_TIER_DRAM].capacity_bytes++;
    expect_config(KVT_E_ARGUMENT);
}

TEST(fixed_policies_explain_themselves)
{
    kvt_policy_close(policy);
    config.name = "lru";
    policy = test_open(&config);
    admit_and_commit(1, 0);
    kvt_explanation x = {.struct_size = sizeof x};
    assert_ok(kvt_policy_explain(policy, 3 * SECOND, 1, &x));
    assert_int_equal(x.current, 1);
    assert_int_equal(x.best, 1);
    assert_true(x.accesses_per_s == 0.0);
    assert_true(x.last_access_age_seconds > 1.99 && x.last_access_age_seconds < 2.01);
    assert_non_null(strstr(x.reason, "recency"));
}
