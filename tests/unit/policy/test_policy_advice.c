/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_policy_advice.c - what the engine is told: ladders, bytes that stay in place, tenants,
 * priors, load, busy tiers, sensitivity, half lives; and the bound that it gives back.
 */
#include "policy_support.h"

#include "replay/rivals/dual.h"

#include <math.h>
#include <stdio.h>

static test_memory memory;
static kvt_policy_config config;
static kvt_move moves[64];
static kvt_plan plan;

TEST_BEFORE_EACH
{
    memory = (test_memory){.left = -1};
    kvt_policy_config_init(&config);
    config.holes = KVT_HOLES_MIXED;
    config.tiers[KVT_TIER_DRAM].capacity_bytes = 1000;
    config.allocator = test_allocator(&memory);
    plan = (kvt_plan){.moves = moves, .capacity = 64};
}

static kvt_policy_stats stats_of(const kvt_policy *policy)
{
    kvt_policy_stats stats;
    kvt_policy_stats_get(policy, &stats);
    return stats;
}

static uint64_t dram_of(const kvt_policy *policy)
{
    return stats_of(policy).used_bytes[KVT_TIER_DRAM];
}

static kvt_status admit(kvt_policy *policy, uint64_t now_ns, const kvt_policy_entry *entry)
{
    kvt_status status = kvt_policy_admit(policy, now_ns, entry, &plan);
    test_carry_out(policy, &plan);
    return status;
}

TEST(a_ladder_stands_for_its_options)
{
    kvt_option options[3] = {test_none(0.0), test_option(1, KVT_TIER_DRAM, 90, 0.01),
                             test_option(2, KVT_TIER_DRAM, 50, 0.02)};
    options[2].loss = 0.01;
    uint64_t hash[2] = {0, 0};
    for (int shared = 0; shared < 2; shared++) {
        kvt_policy *policy = test_open(&config);
        uint64_t dice = 3;
        uint32_t ladder = 0;
        if (shared) assert_ok(kvt_policy_ladder_add(policy, options, 3, &ladder));
        for (uint64_t i = 0; i < 400; i++) {
            uint64_t handle = 1 + test_below(&dice, 60);
            options[0].load_seconds = 0.5 + 0.25 * (double)(handle % 4);
            kvt_policy_entry entry = {.struct_size = sizeof entry, .handle = handle, .tokens = 1};
            if (shared) {
                entry.ladder = ladder;
                entry.recompute_seconds = options[0].load_seconds;
            } else {
                entry.options = options;
                entry.option_count = 3;
            }
            (void)!kvt_policy_admit(policy, i * SECOND, &entry, &plan);
            for (uint32_t k = 0; k < plan.count; k++) {
                char line[256];
                kvt_move_format(&moves[k], line, sizeof line);
                for (const char *c = line; *c != '\0'; c++)
                    hash[shared] = (hash[shared] ^ (uint8_t)*c) * UINT64_C(1099511628211);
            }
            test_carry_out(policy, &plan);
        }
        kvt_policy_close(policy);
    }
    assert_true(hash[0] != 0 && hash[0] == hash[1]);
    assert_int_equal(memory.held_bytes, 0);
}

TEST(wrong_ladders_are_refused)
{
    kvt_policy *policy = test_open(&config);
    kvt_option options[2] = {test_none(1.0), test_option(1, KVT_TIER_DRAM, 10, 0.1)};
    uint32_t ladder = 7;
    assert_int_equal(kvt_policy_ladder_add(policy, NULL, 2, &ladder), KVT_E_ARGUMENT);
    assert_int_equal(ladder, 0);
    assert_int_equal(kvt_policy_ladder_add(policy, options, 0, &ladder), KVT_E_ARGUMENT);
    assert_int_equal(kvt_policy_ladder_add(policy, options, KVT_OPTIONS_MAX + 1, &ladder),
                     KVT_E_ARGUMENT);
    options[1].made_from = 1u << 2; /* names an option that is not there */
    assert_int_equal(kvt_policy_ladder_add(policy, options, 2, &ladder), KVT_E_ARGUMENT);
    options[1].made_from = 0;
    options[1].loss_upper = NAN;
    assert_int_equal(kvt_policy_ladder_add(policy, options, 2, &ladder), KVT_E_ARGUMENT);
    options[1].loss_upper = 0.0;
    assert_ok(kvt_policy_ladder_add(policy, options, 2, &ladder));
    const kvt_policy_entry good = {
        .struct_size = sizeof good, .handle = 1, .ladder = ladder, .recompute_seconds = 1.0};
    kvt_policy_entry entry = good;
    entry.ladder = ladder + 1;
    assert_int_equal(admit(policy, 0, &entry), KVT_E_ARGUMENT);
    entry = good;
    entry.recompute_seconds = NAN;
    assert_int_equal(admit(policy, 0, &entry), KVT_E_ARGUMENT);
    entry = good;
    entry.options = options;
    assert_int_equal(admit(policy, 0, &entry), KVT_E_ARGUMENT);
    entry = good;
    entry.sensitivity = -1.0;
    assert_int_equal(admit(policy, 0, &entry), KVT_E_ARGUMENT);
    entry = good;
    entry.tenant = KVT_TENANTS_MAX;
    assert_int_equal(admit(policy, 0, &entry), KVT_E_ARGUMENT);
    assert_ok(admit(policy, 0, &good));
    kvt_policy_close(policy);
}

/* Planes: 8 bits, its first 4, its first 2. Coarser forms lose planes in place. */
static void plane_options(kvt_option options[4])
{
    options[0] = test_none(10.0);
    for (uint32_t i = 1; i < 4; i++) {
        options[i] = test_option(4, KVT_TIER_DRAM, 400u >> (i - 1), 0.01);
        options[i].variant.rate = 8u >> (i - 1);
        options[i].loss = i == 1 ? 0.001 : 0.001 * (double)(i * i);
        for (uint32_t finer = 1; finer < i; finer++)
            options[i].kept_from |= 1u << finer;
    }
}

/* A full tier has no room for two forms of an entry; dropped planes need none. */
TEST(planes_are_dropped_in_place)
{
    kvt_policy *policy = test_open(&config);
    kvt_option options[4];
    plane_options(options);
    kvt_policy_entry entry = {
        .struct_size = sizeof entry, .options = options, .option_count = 4, .tokens = 1};
    uint32_t dropped = 0;
    for (uint64_t handle = 1; handle <= 8; handle++) {
        entry.handle = handle;
        assert_ok(kvt_policy_admit(policy, SECOND, &entry, &plan));
        for (uint32_t i = 0; i < plan.count; i++) {
            if (moves[i].kind != KVT_MOVE_CHANGE) continue;
            dropped++;
            assert_true(moves[i].to > moves[i].from);
            assert_int_equal(moves[i].kept_bytes[KVT_TIER_DRAM], moves[i].to_bytes[KVT_TIER_DRAM]);
        }
        test_carry_out(policy, &plan);
        assert_true(dram_of(policy) <= 1000);
    }
    assert_true(dropped >= 6);
    assert_int_equal(stats_of(policy).entries, 8);
    assert_int_equal(stats_of(policy).evictions, 0);
    /* No plane was written a second time. */
    uint64_t written = stats_of(policy).written_bytes[KVT_TIER_DRAM];
    uint64_t puts = stats_of(policy).puts;
    assert_true(written <= puts * 400);
    kvt_policy_close(policy);
}

/* What was dropped does not come back: no option with more planes is reachable. */
TEST(a_lossy_form_never_rises)
{
    kvt_policy *policy = test_open(&config);
    kvt_option options[4];
    plane_options(options);
    kvt_policy_entry entry = test_entry(1, options, 4, 1);
    assert_ok(kvt_policy_adopt(policy, SECOND, &entry, 3));
    for (uint64_t second = 2; second < 40; second++) {
        assert_ok(kvt_policy_access(policy, second * SECOND, 1, &plan));
        assert_int_equal(plan.count, 0);
        assert_ok(kvt_policy_tick(policy, second * SECOND, 4, UINT64_MAX, &plan));
        assert_int_equal(plan.count, 0);
    }
    assert_int_equal(kvt_policy_option_get(policy, 1), 3);
    kvt_policy_close(policy);
}

/* Planes on two tiers: what lies on SSD is read back, what lies in DRAM stays. */
TEST(planes_come_back_from_the_tier_below)
{
    config.tiers[KVT_TIER_SSD].capacity_bytes = 10000;
    kvt_policy *policy = test_open(&config);
    kvt_option options[3] = {test_none(10.0), test_option(4, KVT_TIER_DRAM, 400, 0.01),
                             test_option(4, KVT_TIER_DRAM, 100, 0.2)};
    options[2].bytes[KVT_TIER_SSD] = options[2].read_bytes[KVT_TIER_SSD] = 300;
    options[1].loss = options[2].loss = 0.001;
    options[1].kept_from = 1u << 2;
    options[2].kept_from = 1u << 1;
    kvt_policy_entry entry = test_entry(1, options, 3, 1);
    assert_ok(kvt_policy_adopt(policy, SECOND, &entry, 2));
    assert_ok(kvt_policy_access(policy, 2 * SECOND, 1, &plan));
    assert_int_equal(plan.count, 1);
    assert_int_equal(moves[0].to, 1);
    assert_int_equal(moves[0].kept_bytes[KVT_TIER_DRAM], 100);
    assert_int_equal(stats_of(policy).used_bytes[KVT_TIER_DRAM], 400);
    test_carry_out(policy, &plan);
    assert_int_equal(stats_of(policy).used_bytes[KVT_TIER_DRAM], 400);
    assert_int_equal(stats_of(policy).used_bytes[KVT_TIER_SSD], 0);
    assert_int_equal(stats_of(policy).written_bytes[KVT_TIER_DRAM], 300);
    kvt_policy_close(policy);
}

TEST(limits_bar_options)
{
    config.tiers[KVT_TIER_DRAM].capacity_bytes = 2000;
    kvt_policy *policy = test_open(&config);
    kvt_option options[4] = {test_none(10.0), test_option(1, KVT_TIER_DRAM, 400, 5.0),
                             test_option(2, KVT_TIER_DRAM, 200, 0.5),
                             test_option(3, KVT_TIER_DRAM, 100, 0.1)};
    options[2].loss = 0.01;
    options[3].loss = 0.02;
    options[3].loss_upper = 0.2;
    kvt_tenant limits = {.struct_size = sizeof limits, .alpha_seconds = 0.1, .loss_limit = 0.1};
    assert_ok(kvt_policy_tenant_set(policy, 5, &limits));
    kvt_policy_entry entry = {.struct_size = sizeof entry,
                              .handle = 1,
                              .options = options,
                              .option_count = 4,
                              .tokens = 1,
                              .tenant = 5};
    /* The bound of option 3's loss is too high, though its mean is not. */
    assert_ok(admit(policy, SECOND, &entry));
    assert_int_equal(kvt_policy_option_get(policy, 1), 2);
    assert_int_equal(stats_of(policy).limited, 1);
    entry.handle = 2;
    entry.sensitivity = 20.0;
    assert_ok(admit(policy, SECOND, &entry));
    assert_int_equal(kvt_policy_option_get(policy, 2), 1);
    /* Too slow is only what is not needed: without the lossy ones option 1 is the fastest. */
    limits.load_limit_seconds = 0.2;
    limits.loss_limit = 1.0;
    assert_ok(kvt_policy_tenant_set(policy, 6, &limits));
    entry = (kvt_policy_entry){.struct_size = sizeof(kvt_policy_entry),
                               .handle = 3,
                               .options = options,
                               .option_count = 4,
                               .tokens = 1,
                               .tenant = 6};
    assert_ok(admit(policy, SECOND, &entry));
    assert_int_equal(kvt_policy_option_get(policy, 3), 3);
    limits.loss_limit = 0.0;
    assert_ok(kvt_policy_tenant_set(policy, 7, &limits));
    entry.handle = 4;
    entry.tenant = 7;
    assert_ok(admit(policy, SECOND, &entry));
    assert_int_equal(kvt_policy_option_get(policy, 4), 1);
    limits.loss_limit = NAN;
    assert_int_equal(kvt_policy_tenant_set(policy, 7, &limits), KVT_E_ARGUMENT);
    assert_int_equal(kvt_policy_tenant_set(policy, KVT_TENANTS_MAX, &limits), KVT_E_ARGUMENT);
    kvt_policy_close(policy);
}

static uint64_t tenant_bytes(const kvt_policy *policy, uint64_t first, uint64_t last)
{
    uint64_t bytes = 0;
    for (uint64_t handle = first; handle <= last; handle++)
        bytes += kvt_policy_option_get(policy, handle) != KVT_OPTION_NONE ? 100 : 0;
    return bytes;
}

/* A tenant at its share makes room from its own entries, however much hotter they are. */
TEST(a_share_is_a_limit)
{
    kvt_policy *policy = test_open(&config);
    const kvt_option options[2] = {test_none(1.0), test_option(1, KVT_TIER_DRAM, 100, 0.01)};
    kvt_tenant limits = {.struct_size = sizeof limits, .alpha_seconds = 10.0, .loss_limit = 1.0};
    limits.share_bytes[KVT_TIER_DRAM] = 300;
    assert_ok(kvt_policy_tenant_set(policy, 1, &limits));
    kvt_policy_entry entry = {
        .struct_size = sizeof entry, .options = options, .option_count = 2, .tokens = 1};
    for (uint64_t handle = 1; handle <= 7; handle++) {
        entry.handle = handle;
        assert_ok(admit(policy, SECOND, &entry));
    }
    entry.tenant = 1;
    uint64_t dice = 9;
    for (uint64_t i = 0; i < 300; i++) {
        uint64_t handle = 101 + test_below(&dice, 12);
        entry.handle = handle;
        uint64_t now_ns = (10 + i) * SECOND;
        if (kvt_policy_access(policy, now_ns, handle, &plan) == KVT_MISS) {
            (void)!kvt_policy_admit(policy, now_ns, &entry, &plan);
        }
        test_carry_out(policy, &plan);
        assert_true(tenant_bytes(policy, 101, 112) <= 300);
        assert_int_equal(tenant_bytes(policy, 1, 7), 700);
    }
    assert_int_equal(tenant_bytes(policy, 101, 112), 300);
    assert_true(stats_of(policy).evictions > 10);
    /* Without the share the same traffic takes more. */
    limits.share_bytes[KVT_TIER_DRAM] = 0;
    assert_ok(kvt_policy_tenant_set(policy, 1, &limits));
    for (uint64_t i = 0; i < 300; i++) {
        entry.handle = 101 + test_below(&dice, 12);
        uint64_t now_ns = (400 + i) * SECOND;
        if (kvt_policy_access(policy, now_ns, entry.handle, &plan) == KVT_MISS) {
            (void)!kvt_policy_admit(policy, now_ns, &entry, &plan);
        }
        test_carry_out(policy, &plan);
    }
    assert_true(tenant_bytes(policy, 101, 112) > 600);
    kvt_policy_close(policy);
}

TEST(a_prior_counts_for_the_first_time_only)
{
    kvt_policy *policy = test_open(&config);
    const kvt_option options[2] = {test_none(1.0), test_option(1, KVT_TIER_DRAM, 100, 0.01)};
    assert_ok(kvt_policy_prior_set(policy, 3, 2.0));
    assert_int_equal(kvt_policy_prior_set(policy, 0, 2.0), KVT_E_ARGUMENT);
    assert_int_equal(kvt_policy_prior_set(policy, 4, NAN), KVT_E_ARGUMENT);
    kvt_explanation x[3];
    for (uint64_t handle = 1; handle <= 2; handle++) {
        x[handle].struct_size = sizeof x[handle];
        kvt_policy_entry entry = {.struct_size = sizeof entry,
                                  .handle = handle,
                                  .options = options,
                                  .option_count = 2,
                                  .class_id = handle == 1 ? 3 : 0};
        assert_ok(admit(policy, SECOND, &entry));
        assert_ok(kvt_policy_explain(policy, SECOND, handle, &x[handle]));
    }
    double ratio = x[1].accesses_per_s / x[2].accesses_per_s;
    /* The uses that are due by age do not add up. */
    assert_true(ratio > 1.5 && ratio < 3.0);
    kvt_policy_close(policy);
}

/* Alpha is the price of a request's quality: a quarter of its tokens is charged a quarter. */
TEST(a_loss_is_charged_for_its_share_of_the_request)
{
    kvt_option options[2] = {test_none(20.0), test_option(2, KVT_TIER_DRAM, 100, 0.0)};
    options[1].loss = 0.5;
    static const uint32_t request_tokens[3] = {0, 400, 50};
    double utility[3];
    config.alpha_seconds = 10.0;
    kvt_policy *policy = test_open(&config);
    for (uint32_t i = 0; i < 3; i++) {
        kvt_explanation x = {.struct_size = sizeof x};
        kvt_policy_entry entry = {.struct_size = sizeof entry,
                                  .handle = i + 1,
                                  .options = options,
                                  .option_count = 2,
                                  .tokens = 100,
                                  .request_tokens = request_tokens[i]};
        assert_ok(admit(policy, SECOND, &entry));
        assert_ok(kvt_policy_explain(policy, SECOND, i + 1, &x));
        utility[i] = x.options[1].utility;
    }
    assert_true(utility[0] < 0.0);
    assert_true(fabs(utility[1] / utility[0] - 0.25) < 1e-6);
    /* No entry is more than all of its requests. */
    assert_true(fabs(utility[2] / utility[0] - 1.0) < 1e-6);
    kvt_policy_close(policy);
}

/* Room for two; the two that are said to be used stay, whatever was counted. */
TEST(a_rate_that_is_told_replaces_the_count)
{
    config.tiers[KVT_TIER_DRAM].capacity_bytes = 100;
    kvt_policy *policy = test_open(&config);
    const kvt_option options[2] = {test_none(1.0), test_option(1, KVT_TIER_DRAM, 50, 0.01)};
    kvt_policy_entry entry = {
        .struct_size = sizeof entry, .handle = 1, .options = options, .option_count = 2};
    assert_int_equal(kvt_policy_rate_set(policy, 1, 1.0), KVT_MISS);
    for (entry.handle = 1; entry.handle <= 2; entry.handle++)
        assert_ok(admit(policy, SECOND, &entry));
    for (int i = 0; i < 10; i++)
        assert_ok(kvt_policy_access(policy, 2 * SECOND, 1, NULL));
    kvt_explanation x = {.struct_size = sizeof x};
    assert_ok(kvt_policy_rate_set(policy, 1, 1e-6));
    assert_ok(kvt_policy_rate_set(policy, 2, 0.25));
    assert_ok(kvt_policy_explain(policy, 2 * SECOND, 1, &x));
    assert_true(fabs(x.accesses_per_s - 1e-6) < 1e-12);
    assert_ok(kvt_policy_explain(policy, 2 * SECOND, 2, &x));
    assert_true(fabs(x.accesses_per_s - 0.25) < 1e-7);
    entry.handle = 3;
    assert_ok(admit(policy, 2 * SECOND, &entry));
    assert_int_equal(kvt_policy_option_get(policy, 1), KVT_OPTION_NONE);
    assert_int_equal(kvt_policy_option_get(policy, 2), 1);
    /* Remembered, it is believed still: it comes back in place of the one used once. */
    assert_ok(kvt_policy_rate_set(policy, 1, 0.125));
    entry.handle = 1;
    assert_ok(admit(policy, 2 * SECOND, &entry));
    assert_int_equal(kvt_policy_option_get(policy, 3), KVT_OPTION_NONE);
    assert_int_equal(kvt_policy_rate_set(policy, 2, NAN), KVT_E_ARGUMENT);
    assert_int_equal(kvt_policy_rate_set(policy, 2, -1.0), KVT_E_ARGUMENT);
    assert_int_equal(kvt_policy_rate_set(policy, 2, INFINITY), KVT_E_ARGUMENT);
    kvt_policy_close(policy);
    config.name = "lru";
    policy = test_open(&config);
    assert_int_equal(kvt_policy_rate_set(policy, 1, 1.0), KVT_E_UNSUPPORTED);
    kvt_policy_close(policy);
}

/* An access that finds nothing stored and the admission that follows are one use. */
TEST(a_miss_and_its_admission_count_once)
{
    static const char *const names[] = {"utility", "adaptcache"};
    double counted_once = 0.0;
    config.tiers[KVT_TIER_DRAM].capacity_bytes = 50;
    for (int i = 0; i < 4; i++) {
        config.name = names[i / 2];
        bool misses_first = i % 2 != 0;
        kvt_policy *policy = test_open(&config);
        kvt_option options[2] = {test_none(1.0), test_option(1, KVT_TIER_DRAM, 60, 0.01)};
        kvt_policy_entry entry = {
            .struct_size = sizeof entry, .handle = 1, .options = options, .option_count = 2};
        kvt_move unused[1];
        kvt_plan other = {.moves = unused, .capacity = 1};
        kvt_policy_stats stats;
        kvt_explanation x = {.struct_size = sizeof x};
        /* Too large: it is remembered. */
        assert_int_equal(kvt_policy_admit(policy, SECOND, &entry, &plan), KVT_REFUSED);
        if (misses_first) {
            assert_int_equal(kvt_policy_access(policy, 2 * SECOND, 1, &plan), KVT_MISS);
        }
        assert_int_equal(kvt_policy_admit(policy, 2 * SECOND, &entry, &plan), KVT_REFUSED);
        kvt_policy_stats_get(policy, &stats);
        assert_int_equal(stats.accesses, 2);
        assert_ok(kvt_policy_explain(policy, 2 * SECOND, 1, &x));
        if (misses_first) assert_true(x.accesses_per_s == counted_once);
        counted_once = x.accesses_per_s;
        /* While it is being stored. */
        options[1] = test_option(1, KVT_TIER_DRAM, 40, 0.01);
        assert_ok(kvt_policy_admit(policy, 3 * SECOND, &entry, &plan));
        if (misses_first) {
            assert_int_equal(kvt_policy_access(policy, 4 * SECOND, 1, NULL), KVT_MISS);
        }
        assert_int_equal(kvt_policy_admit(policy, 4 * SECOND, &entry, &other), KVT_EXISTS);
        /* The next offers are other uses. */
        assert_int_equal(kvt_policy_admit(policy, 5 * SECOND, &entry, &other), KVT_EXISTS);
        test_carry_out(policy, &plan);
        assert_ok(kvt_policy_access(policy, 6 * SECOND, 1, NULL));
        assert_int_equal(kvt_policy_admit(policy, 7 * SECOND, &entry, &other), KVT_EXISTS);
        kvt_policy_stats_get(policy, &stats);
        assert_int_equal(stats.accesses, 7);
        kvt_policy_close(policy);
    }
    assert_int_equal(memory.held_bytes, 0);
}

TEST(the_bound_is_above_what_is_stored)
{
    config.tiers[KVT_TIER_SSD].capacity_bytes = 2000;
    kvt_policy *policy = test_open(&config);
    dual_bound bound;
    assert_ok(dual_solve(policy, 0, NULL, &bound));
    assert_true(fabs(bound.dual) <= 0.0 && fabs(bound.primal) <= 0.0);
    uint64_t dice = 4;
    for (uint64_t i = 1; i <= 4000; i++) {
        uint64_t handle = 1 + test_below(&dice, 10) * test_below(&dice, 10);
        uint64_t size = 20 + handle * 7 % 90;
        kvt_option options[3] = {test_none(0.5 + 0.01 * (double)(handle % 37)),
                                 test_option(1, KVT_TIER_DRAM, size, 0.01),
                                 test_option(1, KVT_TIER_SSD, size, 0.1)};
        kvt_policy_entry entry = {
            .struct_size = sizeof entry, .handle = handle, .options = options, .option_count = 3};
        if (kvt_policy_access(policy, i * SECOND, handle, &plan) == KVT_MISS) {
            (void)!kvt_policy_admit(policy, i * SECOND, &entry, &plan);
        }
        test_carry_out(policy, &plan);
        if (i % 200 != 0) continue;
        assert_ok(dual_solve(policy, i * SECOND, bound.price, &bound));
        assert_true(bound.primal <= bound.placed && bound.placed <= bound.dual);
        assert_true(bound.gap_solver <= bound.gap_counters && bound.gap_counters < 0.2);
    }
    kvt_policy_close(policy);
    config.name = "lru";
    policy = test_open(&config);
    assert_int_equal(dual_solve(policy, 0, NULL, &bound), KVT_E_UNSUPPORTED);
    kvt_policy_close(policy);
    assert_int_equal(memory.held_bytes, 0);
}
