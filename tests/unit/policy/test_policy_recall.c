/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_policy_recall.c - what an engine knows of uses goes to the next one: the same rates, the
 * same weights, the same victims, as if the first had gone on.
 */
#include "policy_support.h"

#include <math.h>

enum { ROOM = 64, HANDLES = 200 };

static test_memory memories[2];
static kvt_move moves[64];
static kvt_plan plan = {moves, 64, 0};

static kvt_policy *open_named(const char *name, int which)
{
    kvt_policy_config config;
    memories[which] = (test_memory){.left = -1};
    kvt_policy_config_init(&config);
    config.name = name;
    config.allocator = test_allocator(&memories[which]);
    config.holes = KVT_HOLES_MIXED;
    config.tiers[KVT_TIER_DRAM].capacity_bytes = ROOM;
    return test_open(&config);
}

static kvt_policy_entry offer_of(uint64_t handle, const kvt_option *options)
{
    return test_entry(handle, options, 2, 1);
}

static void options_of(kvt_option options[2])
{
    options[0] = test_none(100.0); /* seconds at stake: far from the 1 of an empty table */
    options[1] = test_option(1, KVT_TIER_DRAM, 1, 1.0);
}

/* A use, and the handles that it drives out, in order. */
static uint32_t use(kvt_policy *policy, uint64_t now_ns, uint64_t handle, uint64_t *gone)
{
    kvt_option options[2];
    options_of(options);
    const kvt_policy_entry offer = offer_of(handle, options);
    plan.count = 0;
    if (kvt_policy_access(policy, now_ns, handle, &plan) == KVT_MISS)
        (void)!kvt_policy_admit(policy, now_ns, &offer, &plan);
    uint32_t count = 0;
    for (uint32_t i = 0; i < plan.count; i++)
        if (moves[i].kind == KVT_MOVE_EVICT) gone[count++] = moves[i].handle;
    test_carry_out(policy, &plan);
    return count;
}

/* Some thousand uses of handles, low ones more often, within two hours. The time at the end. */
static uint64_t live(kvt_policy *policy, uint64_t *dice)
{
    uint64_t gone[64], now_ns = SECOND;
    for (int i = 0; i < 4000; i++) {
        const double mark = (double)test_below(dice, 1u << 30) / (double)(1u << 30);
        (void)use(policy, now_ns, 1 + (uint64_t)(mark * mark * HANDLES), gone);
        now_ns += test_below(dice, 4 * SECOND);
    }
    return now_ns;
}

typedef struct known {
    uint64_t handle;
    kvt_policy_uses uses;
} known;

static int known_compare(const void *left, const void *right)
{
    const known *a = left, *b = right;
    return (a->uses.order > b->uses.order) - (a->uses.order < b->uses.order);
}

/* Adopts what one engine stores into another one, by rising handle, whose time is later. */
static uint32_t hand_over(const kvt_policy *from, uint64_t then_ns, kvt_policy *to, uint64_t now_ns,
                          bool with_uses)
{
    known all[ROOM];
    uint32_t count = 0;
    kvt_option options[2];
    options_of(options);
    plan.count = 0;
    assert_ok(kvt_policy_tick(to, 1, 0, 0, &plan));
    for (uint64_t handle = 1; handle <= HANDLES + 1; handle++) {
        kvt_policy_uses uses = {.struct_size = sizeof uses};
        if (kvt_policy_option_get(from, handle) == KVT_OPTION_NONE) continue;
        assert_ok(kvt_policy_uses_get(from, then_ns, handle, &uses));
        const kvt_policy_entry offer = offer_of(handle, options);
        assert_ok(kvt_policy_adopt(to, now_ns, &offer, 1));
        all[count++] = (known){handle, uses};
    }
    qsort(all, count, sizeof all[0], known_compare);
    for (uint32_t i = 0; with_uses && i < count; i++)
        assert_ok(kvt_policy_uses_set(to, now_ns, all[i].handle, &all[i].uses));
    return count;
}

static double rate_of(const kvt_policy *policy, uint64_t handle)
{
    kvt_policy_worth worth = {.struct_size = sizeof worth};
    assert_ok(kvt_policy_worth_get(policy, handle, KVT_TIER_DRAM, &worth));
    return worth.uses_per_s;
}

TEST(rates_and_weights_go_on)
{
    uint64_t dice = 5;
    kvt_policy *first = open_named("utility", 0), *second = open_named("utility", 1);
    const uint64_t then_ns = live(first, &dice), now_ns = 86400 * SECOND;
    kvt_policy_stats before, after;
    kvt_policy_stats_get(first, &before);
    assert_true(before.reuse.uses > 100);
    assert_ok(kvt_policy_weights_set(second, &before.reuse));
    assert_true(hand_over(first, then_ns, second, now_ns, true) >= ROOM - 2);
    kvt_policy_stats_get(second, &after);
    assert_int_equal(after.reuse.uses, before.reuse.uses);
    for (int k = 0; k < KVT_REUSE_HALF_LIVES; k++)
        assert_true(fabs(after.reuse.weight[k] / before.reuse.weight[k] - 1.0) < 1e-9);
    /* Both engines ten seconds later, without a use between. */
    plan.count = 0;
    assert_ok(kvt_policy_tick(first, then_ns + 10 * SECOND, 0, 0, &plan));
    assert_ok(kvt_policy_tick(second, now_ns + 10 * SECOND, 0, 0, &plan));
    for (uint64_t handle = 1; handle <= HANDLES; handle++) {
        if (kvt_policy_option_get(first, handle) == KVT_OPTION_NONE) continue;
        double change = rate_of(second, handle) / rate_of(first, handle);
        assert_true(change > 0.7 && change < 1.4);
    }
    /* What is learned next moves them no more than it would have: they stand for many uses. */
    uint64_t gone[64];
    (void)use(second, now_ns + 20 * SECOND, 1, gone);
    kvt_policy_stats_get(second, &after);
    assert_true(after.reuse.uses == before.reuse.uses + 1);
    for (int k = 0; k < KVT_REUSE_HALF_LIVES; k++)
        assert_true(fabs(after.reuse.weight[k] / before.reuse.weight[k] - 1.0) < 0.1);
    for (int i = 0; i < 32; i++) /* each row of ages is worked out anew */
        (void)use(second, now_ns + (uint64_t)(21 + i) * SECOND, 1, gone);
    kvt_policy_stats_get(second, &after);
    for (int bin = 0; bin < KVT_REUSE_AGES; bin++)
        assert_true(after.reuse.hazard[0][bin] < 2.0 * before.reuse.hazard[0][bin]);
    kvt_policy_close(first);
    kvt_policy_close(second);
}

/* Victims of the second engine, when it gets newcomers, are those of the first one: in its order.
 * Without the uses they are others. */
static void check_victims(const char *name, bool with_uses, bool *same_out)
{
    uint64_t dice = 7, mine[64], other[64];
    kvt_policy *first = open_named(name, 0), *second = open_named(name, 1);
    const uint64_t then_ns = live(first, &dice), now_ns = 86400 * SECOND;
    assert_true(hand_over(first, then_ns, second, now_ns, with_uses) >= ROOM - 2);
    *same_out = true;
    for (uint64_t i = 0; i < 10; i++) {
        const uint32_t left = use(first, then_ns + i * SECOND, 1000 + i, mine);
        const uint32_t right = use(second, now_ns + i * SECOND, 1000 + i, other);
        assert_int_equal(left, 1);
        if (right != left || mine[0] != other[0]) *same_out = false;
    }
    kvt_policy_close(first);
    kvt_policy_close(second);
}

TEST(recency_goes_on)
{
    const char *const names[] = {"lru", "lru-leaf"};
    for (int i = 0; i < 2; i++) {
        bool same;
        check_victims(names[i], true, &same);
        assert_true(same);
        check_victims(names[i], false, &same);
        assert_false(same);
    }
}

/* After an adoption alone a newcomer takes the place of an entry that was used a moment ago; with
 * its uses known, that entry stays, as it does in an engine that goes on. */
TEST(newcomers_take_no_place_of_what_is_used)
{
    for (int with_uses = 0; with_uses < 2; with_uses++) {
        uint64_t gone[64], now_ns = 86400 * SECOND;
        kvt_policy *first = open_named("utility", 0), *second = open_named("utility", 1);
        for (uint64_t handle = 1; handle <= ROOM; handle++)
            for (uint64_t i = 0; i < 3; i++)
                (void)use(first, (1 + i) * SECOND, handle, gone);
        assert_int_equal(hand_over(first, 4 * SECOND, second, now_ns, with_uses), ROOM);
        assert_int_equal(use(first, 5 * SECOND, HANDLES + 1, gone), 0);
        assert_int_equal(use(second, now_ns + SECOND, HANDLES + 1, gone), with_uses ? 0 : 1);
        kvt_policy_close(first);
        kvt_policy_close(second);
    }
}

TEST(unsound_numbers_are_refused)
{
    uint64_t gone[64];
    kvt_policy *policy = open_named("utility", 0);
    kvt_policy_uses uses = {.struct_size = sizeof uses};
    kvt_policy_stats stats;
    assert_int_equal(kvt_policy_uses_get(policy, SECOND, 1, &uses), KVT_MISS);
    assert_int_equal(kvt_policy_uses_set(policy, SECOND, 1, &uses), KVT_MISS);
    (void)use(policy, SECOND, 1, gone);
    assert_ok(kvt_policy_uses_get(policy, 3 * SECOND, 1, &uses));
    assert_int_equal(uses.used, 1);
    assert_true(fabs(uses.idle_seconds - 2.0) < 1e-9);
    assert_int_equal(kvt_policy_uses_get(policy, SECOND, 1, NULL), KVT_E_ARGUMENT);
    kvt_policy_uses wrong = {.struct_size = 4};
    assert_int_equal(kvt_policy_uses_get(policy, SECOND, 1, &wrong), KVT_E_ARGUMENT);
    wrong = uses;
    wrong.used = 8;
    assert_int_equal(kvt_policy_uses_set(policy, SECOND, 1, &wrong), KVT_E_ARGUMENT);
    wrong = uses;
    wrong.idle_seconds = -1.0;
    assert_int_equal(kvt_policy_uses_set(policy, SECOND, 1, &wrong), KVT_E_ARGUMENT);
    wrong = uses;
    wrong.count[3] = (double)NAN;
    assert_int_equal(kvt_policy_uses_set(policy, SECOND, 1, &wrong), KVT_E_ARGUMENT);
    /* An idle time from before the engine's beginning is its beginning. */
    uses.idle_seconds = 1e9;
    assert_ok(kvt_policy_uses_set(policy, 5 * SECOND, 1, &uses));
    assert_ok(kvt_policy_uses_get(policy, 5 * SECOND, 1, &uses));
    assert_true(fabs(uses.idle_seconds - 4.0) < 1e-9);
    assert_ok(kvt_policy_rate_set(policy, 1, 0.5));
    assert_int_equal(kvt_policy_uses_get(policy, 5 * SECOND, 1, &uses), KVT_E_UNSUPPORTED);
    assert_int_equal(kvt_policy_uses_set(policy, 5 * SECOND, 1, &uses), KVT_E_UNSUPPORTED);
    kvt_policy_stats_get(policy, &stats);
    stats.reuse.uses = 100;
    stats.reuse.hazard[1][1] = (double)INFINITY;
    assert_int_equal(kvt_policy_weights_set(policy, &stats.reuse), KVT_E_ARGUMENT);
    (void)use(policy, 6 * SECOND, 2, gone);
    (void)use(policy, 7 * SECOND, 2, gone);
    kvt_policy_stats_get(policy, &stats);
    assert_int_equal(kvt_policy_weights_set(policy, &stats.reuse), KVT_E_STATE);
    kvt_policy_close(policy);
    policy = open_named("adaptcache", 0);
    assert_int_equal(kvt_policy_weights_set(policy, &stats.reuse), KVT_E_UNSUPPORTED);
    (void)use(policy, SECOND, 1, gone);
    if (kvt_policy_option_get(policy, 1) != KVT_OPTION_NONE)
        assert_int_equal(kvt_policy_uses_get(policy, SECOND, 1, &uses), KVT_E_UNSUPPORTED);
    kvt_policy_close(policy);
}
