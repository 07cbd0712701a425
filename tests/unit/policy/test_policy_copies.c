/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_policy_copies.c - entries with a copy that somebody else keeps: how long copies survive,
 * what not storing such an entry costs, and who gives way, against all choices of small instances.
 */
#include "policy/survival.h"
#include "policy_site.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

static uint64_t dice;
static kvt_option options[2];
static kvt_policy_entry entry;

static void open_policy(const char *name, uint64_t dram_bytes)
{
    kvt_policy_config config = policy_site_config(dram_bytes, 0);
    config.name = name;
    config.high_watermark = config.low_watermark = 1.0;
    config.entries_expected = 16;
    policy = test_open(&config);
    plan.capacity = 64;
    options[0] = test_none(1.0);
    options[1] = test_option(1, KVT_TIER_DRAM, 100, 0.01);
    entry = test_entry(0, options, sizeof options / sizeof options[0], 256);
}

static void adopt(uint64_t handle, double recompute_seconds, double uses_per_s)
{
    entry.handle = handle;
    options[0] = test_none(recompute_seconds);
    assert_ok(kvt_policy_adopt(policy, SECOND, &entry, 1));
    assert_ok(kvt_policy_rate_set(policy, handle, uses_per_s));
}

static void set_copy(uint64_t handle, double seconds)
{
    assert_ok(kvt_policy_copy_set(policy, SECOND, handle, seconds));
}

/* Seconds of not storing the entry, as the engine weighs it. */
static double cost_of_none(uint64_t now_ns, uint64_t handle)
{
    kvt_explanation why = {.struct_size = sizeof why};
    assert_ok(kvt_policy_explain(policy, now_ns, handle, &why));
    return why.options[0].option.load_seconds;
}

/* ---- survival ---- */

TEST_EACH(NULL, policy_site_close);

/* Copies live 300 s and no longer. */
TEST(a_planted_life_is_found)
{
    survival life;
    survival_open(&life);
    assert_true(fabs(survival_chance(&life, 10.0) - 0.5) < 1e-12);
    dice = 1;
    for (int i = 0; i < 4000; i++) {
        double age = (double)((int)test_below(&dice, 1200));
        survival_observe(&life, (double)i * 0.1, age, age < 300.0);
    }
    assert_true(survival_chance(&life, 100.0) > 0.95);
    assert_true(survival_chance(&life, 1000.0) < 0.05);
    for (double age = 0.0; age < 1e6; age = age * 1.3 + 1.0) {
        double chance = survival_chance(&life, age), older = survival_chance(&life, age * 2.0);
        assert_true(chance >= SURVIVAL_LEAST && chance <= 1.0 - SURVIVAL_LEAST);
        assert_true(older <= chance);
    }
    /* Without looks all of it fades. */
    survival_pass(&life, 400.0 + 20.0 * 3600.0);
    assert_true(fabs(survival_chance(&life, 100.0) - 0.5) < 0.02);
    assert_true(fabs(survival_chance(&life, 1000.0) - 0.5) < 0.02);
}

/* Young copies that are gone say something of older ones, and old ones that are there of young. */
TEST(ages_teach_each_other)
{
    survival life;
    survival_open(&life);
    for (int i = 0; i < 64; i++)
        survival_observe(&life, 1.0, 10.0, false);
    assert_true(survival_chance(&life, 10.0) < 0.1);
    assert_true(survival_chance(&life, 5000.0) < 0.4);
    survival_open(&life);
    for (int i = 0; i < 64; i++)
        survival_observe(&life, 1.0, 5000.0, true);
    assert_true(survival_chance(&life, 5000.0) > 0.9);
    assert_true(survival_chance(&life, 10.0) > 0.6);
    /* Whatever is told, a chance is one. */
    survival_observe(&life, 2.0, -5.0, true);
    survival_observe(&life, 2.0, 1e30, true);
    survival_observe(&life, 1.0, 0.0, false);
    assert_true(survival_chance(&life, -1.0) >= SURVIVAL_LEAST);
    assert_true(survival_chance(&life, 1e30) <= 1.0 - SURVIVAL_LEAST);
}

/* ---- what not storing costs ---- */

TEST(a_copy_is_the_alternative)
{
    open_policy("utility", 1000);
    adopt(1, 1.0, 0.1);
    assert_true(fabs(cost_of_none(SECOND, 1) - 1.0) < 1e-6);
    set_copy(1, 0.2); /* nothing is known of survival: one in two */
    assert_true(fabs(cost_of_none(SECOND, 1) - 0.6) < 1e-6);
    set_copy(1, 2.0); /* slower than recomputing: nobody would load it */
    assert_true(fabs(cost_of_none(SECOND, 1) - 1.0) < 1e-6);
    set_copy(1, 0.2);
    set_copy(1, 0.0); /* gone */
    assert_true(fabs(cost_of_none(SECOND, 1) - 1.0) < 1e-6);
}

/* Looks at copies that are never there make them worth nothing, and the other way round. */
TEST(survival_is_learned_from_the_calls)
{
    open_policy("utility", 100000);
    for (uint64_t i = 1; i <= 300; i++)
        adopt(i, 1.0, 0.1);
    for (uint64_t i = 1; i <= 300; i++)
        assert_ok(kvt_policy_copy_set(policy, 2 * SECOND, i, 0.2));
    for (uint64_t i = 1; i <= 200; i++)
        assert_ok(kvt_policy_copy_set(policy, 50 * SECOND, i, 0.0));
    assert_true(kvt_policy_copy_chance(policy, 48.0) < 0.1);
    assert_true(cost_of_none(50 * SECOND, 300) > 0.9);
    policy_site_close(NULL);
    open_policy("utility", 100000);
    for (uint64_t i = 1; i <= 300; i++)
        adopt(i, 1.0, 0.1);
    for (uint64_t second = 2; second < 10; second++)
        for (uint64_t i = 1; i <= 300; i++)
            assert_ok(kvt_policy_copy_set(policy, second * SECOND, i, 0.2));
    assert_true(kvt_policy_copy_chance(policy, 1.0) > 0.95);
    assert_true(cost_of_none(10 * SECOND, 300) < 0.25);
}

/* Two entries alike, but for a copy: the one that somebody else keeps gives way. */
TEST(room_goes_to_what_nobody_else_keeps)
{
    for (uint64_t shared = 1; shared <= 2; shared++) {
        open_policy("utility", 200);
        adopt(1, 1.0, 0.1);
        adopt(2, 1.0, 0.1);
        set_copy(shared, 0.05);
        entry.handle = 3;
        options[0] = test_none(1e6);
        assert_ok(kvt_policy_admit(policy, 2 * SECOND, &entry, &plan));
        assert_int_equal(plan.count, 2);
        assert_int_equal(plan.moves[0].kind, KVT_MOVE_EVICT);
        assert_int_equal(plan.moves[0].handle, shared);
        test_carry_out(policy, &plan);
        policy_site_close(NULL);
    }
}

/* An entry that came from a copy is weighed with it when it is offered. */
TEST(an_offer_says_that_it_has_a_copy)
{
    open_policy("utility", 100);
    adopt(1, 1.0, 0.1);
    double stays = cost_of_none(SECOND, 1);
    entry.handle = 2;
    options[0] = test_none(20.0);
    entry.copy_seconds = 0.02; /* with one in two, half of 20 s is at stake; then far less */
    kvt_status status = kvt_policy_admit(policy, 2 * SECOND, &entry, &plan);
    if (status == KVT_OK) test_carry_out(policy, &plan);
    if (status == KVT_OK) assert_true(fabs(cost_of_none(2 * SECOND, 2) - 10.01) < 0.01);
    assert_true(stays == 1.0);
    entry.copy_seconds = NAN;
    entry.handle = 3;
    assert_int_equal(kvt_policy_admit(policy, 2 * SECOND, &entry, &plan), KVT_E_ARGUMENT);
    entry.copy_seconds = -1.0;
    assert_int_equal(kvt_policy_admit(policy, 2 * SECOND, &entry, &plan), KVT_E_ARGUMENT);
}

/* ---- against all choices ---- */

enum { SMALL = 8 };

/* Seconds in 64ths, so that the cost of not storing is exact in any width. */
typedef struct small_entry {
    double recompute, copy; /* copy: 0 = none */
    double rate;
} small_entry;

static double small_none(const small_entry *e)
{
    if (e->copy <= 0.0 || e->copy >= e->recompute) return e->recompute;
    return 0.5 * e->copy + 0.5 * e->recompute;
}

static void small_draw(small_entry small[SMALL])
{
    for (int i = 0; i < SMALL; i++)
        small[i] = (small_entry){.recompute = (double)(32 + (int)test_below(&dice, 128)) / 64.0,
                                 .copy = (int)test_below(&dice, 2) == 0
                                             ? (double)(1 + (int)test_below(&dice, 60)) / 64.0
                                             : 0.0,
                                 .rate = 0.001 * (1 + (int)test_below(&dice, 100))};
}

/* The least that any choice of so many entries loses; with copies, or as if there were none. */
static double small_least(const small_entry small[SMALL], int wanted, bool copies,
                          uint32_t *set_out)
{
    double least = 1e300;
    for (uint32_t set = 0; set < 1u << SMALL; set++) {
        double loss = 0.0;
        if (__builtin_popcount(set) != wanted) continue;
        for (int i = 0; i < SMALL; i++)
            if ((set >> i & 1) != 0)
                loss +=
                    small[i].rate * ((copies ? small_none(&small[i]) : small[i].recompute) - 0.01);
        if (loss < least) *set_out = set;
        if (loss < least) least = loss;
    }
    return least;
}

/* The entries that an engine gives up for a new one of `wanted` times their size. told: it is told
 * of copies; else what they make of not storing is the seconds of recomputing. */
static uint32_t small_evicted(const small_entry small[SMALL], int wanted, bool told)
{
    uint32_t set = 0;
    open_policy("utility", SMALL * 100);
    for (int i = 0; i < SMALL; i++)
        adopt((uint64_t)i + 1, told ? small[i].recompute : small_none(&small[i]), small[i].rate);
    for (int i = 0; i < SMALL && told; i++)
        if (small[i].copy > 0.0) set_copy((uint64_t)i + 1, small[i].copy);
    options[1] = test_option(1, KVT_TIER_DRAM, 100 * (uint64_t)wanted, 0.01);
    options[0] = test_none(1e6);
    entry.handle = 100;
    assert_ok(kvt_policy_admit(policy, SECOND, &entry, &plan));
    for (uint32_t i = 0; i < plan.count; i++)
        if (plan.moves[i].kind == KVT_MOVE_EVICT) set |= 1u << (plan.moves[i].handle - 1);
    test_carry_out(policy, &plan);
    policy_site_close(NULL);
    return set;
}

/* The engine gives up what loses least of all sets, but for the grain of its order, and what it
 * gives up when the alternative is told as recomputing. */
TEST(the_least_loss_gives_way)
{
    enum { ROUNDS = 400 };
    uint32_t exact = 0, same = 0, other_than_without = 0;
    dice = 7;
    for (int round = 0; round < ROUNDS; round++) {
        small_entry small[SMALL];
        int wanted = 1 + (int)test_below(&dice, 4);
        uint32_t best = 0, without = 0;
        small_draw(small);
        double least = small_least(small, wanted, true, &best);
        (void)small_least(small, wanted, false, &without);
        uint32_t given = small_evicted(small, wanted, true);
        same += given == small_evicted(small, wanted, false);
        assert_int_equal(__builtin_popcount(given), wanted);
        double lost = 0.0;
        for (int i = 0; i < SMALL; i++)
            if ((given >> i & 1) != 0) lost += small[i].rate * (small_none(&small[i]) - 0.01);
        if (lost > 1.25 * least) fail_msg("round %d: lost %.6f, least %.6f", round, lost, least);
        exact += given == best;
        other_than_without += without != best;
    }
    print_message("exact in %u of %d rounds; copies change the answer in %u\n", exact, ROUNDS,
                  other_than_without);
    assert_true(exact >= ROUNDS * 19 / 20 && same >= ROUNDS * 19 / 20);
    assert_true(other_than_without > ROUNDS / 5);
}

/* ---- memory, states, other policies ---- */

TEST(notes_grow_with_the_entries)
{
    open_policy("utility", 100 * 2000);
    for (uint64_t i = 1; i <= 2000; i++) {
        adopt(i, 1.0, 0.1);
        set_copy(i, 0.2);
    }
    for (uint64_t i = 1; i <= 2000; i++)
        assert_true(cost_of_none(SECOND, i) < 1.0);
}

/* A slot's next entry has no copy of the last one's. */
TEST(a_forgotten_entry_leaves_no_note)
{
    open_policy("utility", 1000);
    adopt(1, 1.0, 0.1);
    set_copy(1, 0.2);
    assert_ok(kvt_policy_remove(policy, 1));
    adopt(2, 1.0, 0.1);
    assert_true(fabs(cost_of_none(SECOND, 2) - 1.0) < 1e-6);
}

TEST(wrong_calls_change_nothing)
{
    open_policy("utility", 1000);
    adopt(1, 1.0, 0.1);
    assert_int_equal(kvt_policy_copy_set(policy, SECOND, 9, 0.1), KVT_MISS);
    assert_int_equal(kvt_policy_copy_set(policy, SECOND, 1, NAN), KVT_E_ARGUMENT);
    assert_int_equal(kvt_policy_copy_set(policy, SECOND, 1, -0.1), KVT_E_ARGUMENT);
    assert_int_equal(kvt_policy_copy_set(policy, SECOND, 1, INFINITY), KVT_E_ARGUMENT);
    assert_true(cost_of_none(SECOND, 1) == 1.0);
    memory.left = 0;
    assert_int_equal(kvt_policy_copy_set(policy, SECOND, 1, 0.1), KVT_E_MEMORY);
    assert_true(cost_of_none(SECOND, 1) == 1.0);
    memory.left = -1;
}

TEST(no_copy_takes_no_memory)
{
    open_policy("utility", 1000);
    adopt(1, 1.0, 0.1);
    uint64_t held = memory.held_bytes;
    set_copy(1, 0.0);
    assert_int_equal(memory.held_bytes, held);
    set_copy(1, 0.1);
    assert_true(memory.held_bytes > held);
    policy_site_close(NULL);
    static const char *const others[] = {"lru", "gdsf", "adaptcache", "none"};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        open_policy(others[i], 1000);
        held = memory.held_bytes;
        assert_ok(kvt_policy_copy_set(policy, SECOND, 1, 0.1));
        assert_int_equal(memory.held_bytes, held);
        policy_site_close(NULL);
    }
}
