/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conform_policy_bad_input.c - one checklist over every policy in the table: input that no caller
 * should give is answered by a status, and the ledger stays right.
 *
 * After each part all handles are removed: an engine that counted wrongly has bytes left then.
 */
#include "policy_support.h"

#include "replay/rivals/dual.h"

#include <math.h>

#define HANDLES   24u
#define PLAN_MOST 16u
#define CAPACITY  1000u
#define LIMIT     (UINT64_C(1) << 61) /* of a capacity */

static const double wrong_numbers[] = {NAN, -1.0, INFINITY, -INFINITY, 1e13};
#define WRONG_COUNT (sizeof wrong_numbers / sizeof wrong_numbers[0])

typedef struct bench {
    test_memory memory;
    kvt_policy *policy;
    kvt_move moves[PLAN_MOST];
    kvt_plan plan;
    kvt_option options[3];
    kvt_policy_entry offer;
    uint64_t dice;
} bench;

/* 100 bytes in DRAM or in SSD; the fixed policies' form. */
static void bench_reset_offer(bench *b, uint64_t handle)
{
    b->options[0] = test_none(2.0);
    b->options[1] = test_option(1, KVT_TIER_DRAM, 100, 0.01);
    b->options[2] = test_option(1, KVT_TIER_SSD, 100, 0.1);
    b->offer = test_entry(handle, b->options, 3, 1);
}

static kvt_policy_stats bench_stats(const bench *b)
{
    kvt_policy_stats stats;
    kvt_policy_stats_get(b->policy, &stats);
    return stats;
}

static void bench_fill(bench *b)
{
    for (uint64_t handle = 1; handle <= HANDLES / 2; handle++) {
        bench_reset_offer(b, handle);
        (void)!kvt_policy_admit(b->policy, SECOND, &b->offer, &b->plan);
        test_carry_out(b->policy, &b->plan);
    }
    bench_reset_offer(b, HANDLES);
}

static void expect_same(const bench *b, const kvt_policy_stats *before)
{
    kvt_policy_stats after = bench_stats(b);
    assert_int_equal(after.entries, before->entries);
    assert_int_equal(after.ghosts, before->ghosts);
    assert_int_equal(after.accesses, before->accesses);
    assert_int_equal(after.moves_in_flight, before->moves_in_flight);
    assert_memory_equal(after.used_bytes, before->used_bytes, sizeof after.used_bytes);
    assert_int_equal(b->plan.count, 0);
}

/* The offer as it stands is wrong: as an admission, an adoption and a ladder. */
static void expect_wrong_options(bench *b)
{
    uint32_t number = 7;
    assert_int_equal(kvt_policy_admit(b->policy, SECOND, &b->offer, &b->plan), KVT_E_ARGUMENT);
    assert_int_equal(kvt_policy_adopt(b->policy, SECOND, &b->offer, 1), KVT_E_ARGUMENT);
    assert_int_equal(
        kvt_policy_ladder_add(b->policy, b->offer.options, b->offer.option_count, &number),
        KVT_E_ARGUMENT);
    assert_int_equal(number, 0);
    assert_int_equal(kvt_policy_recost(b->policy, 1, b->offer.options, b->offer.option_count),
                     KVT_E_ARGUMENT);
    assert_int_equal(kvt_policy_resize(b->policy, 1, b->offer.options, b->offer.option_count),
                     KVT_E_ARGUMENT);
}

static void wrong_numbers_change_nothing(bench *b)
{
    bench_fill(b);
    kvt_policy_stats before = bench_stats(b);
    double *const numbers[] = {&b->options[2].load_seconds,   &b->options[2].decode_seconds,
                               &b->options[2].encode_seconds, &b->options[2].loss,
                               &b->options[2].loss_upper,     &b->options[0].load_seconds};
    for (size_t field = 0; field < sizeof numbers / sizeof numbers[0]; field++) {
        for (size_t i = 0; i < WRONG_COUNT; i++) {
            double good = *numbers[field];
            *numbers[field] = wrong_numbers[i];
            expect_wrong_options(b);
            *numbers[field] = good;
        }
    }
    for (size_t i = 0; i < WRONG_COUNT; i++) {
        double wrong = wrong_numbers[i];
        b->offer.sensitivity = wrong;
        assert_int_equal(kvt_policy_admit(b->policy, SECOND, &b->offer, &b->plan), KVT_E_ARGUMENT);
        b->offer.sensitivity = 0.0;
        assert_int_equal(kvt_policy_prior_set(b->policy, 1, wrong), KVT_E_ARGUMENT);
        const kvt_tenant limits = {
            .struct_size = sizeof limits, .alpha_seconds = wrong, .loss_limit = 1.0};
        assert_int_equal(kvt_policy_tenant_set(b->policy, 1, &limits), KVT_E_ARGUMENT);
        kvt_status status = kvt_policy_rate_set(b->policy, 1, wrong);
        assert_true(status == KVT_E_ARGUMENT || status == KVT_E_UNSUPPORTED);
    }
    expect_same(b, &before);
}

static void wrong_counts_change_nothing(bench *b)
{
    bench_fill(b);
    kvt_policy_stats before = bench_stats(b);
    kvt_option many[KVT_OPTIONS_MAX + 1];
    for (uint32_t i = 0; i <= KVT_OPTIONS_MAX; i++)
        many[i] = i == 0 ? test_none(1.0) : test_option((uint16_t)i, KVT_TIER_DRAM, 10, 0.01);
    b->offer.options = many;
    const uint32_t counts[] = {0, KVT_OPTIONS_MAX + 1, UINT32_MAX};
    for (size_t i = 0; i < 3; i++) {
        b->offer.option_count = counts[i];
        expect_wrong_options(b);
    }
    b->offer.option_count = 3;
    b->offer.options = NULL;
    expect_wrong_options(b);
    b->offer.options = many;
    b->offer.tenant = KVT_TENANTS_MAX;
    assert_int_equal(kvt_policy_admit(b->policy, SECOND, &b->offer, &b->plan), KVT_E_ARGUMENT);
    b->offer.tenant = 0;
    b->offer.ladder = 1; /* of which there is none */
    assert_int_equal(kvt_policy_admit(b->policy, SECOND, &b->offer, &b->plan), KVT_E_ARGUMENT);
    expect_same(b, &before);
}

/* What is larger than a tier fits nowhere; what is larger than any tier may be is a mistake. */
static void bytes_above_the_capacity_are_refused(bench *b)
{
    bench_fill(b);
    const uint64_t large[] = {CAPACITY + 1, LIMIT - 1, LIMIT};
    const uint64_t absurd[] = {LIMIT + 1, UINT64_MAX};
    kvt_policy_stats before = bench_stats(b);
    for (size_t i = 0; i < 3; i++) {
        b->options[1].bytes[KVT_TIER_DRAM] = b->options[2].bytes[KVT_TIER_SSD] = large[i];
        assert_int_equal(kvt_policy_admit(b->policy, SECOND, &b->offer, &b->plan), KVT_REFUSED);
        assert_int_equal(b->plan.count, 0);
        assert_int_equal(kvt_policy_adopt(b->policy, SECOND, &b->offer, 1), KVT_E_SPACE);
    }
    for (size_t i = 0; i < 2; i++) {
        b->options[2].bytes[KVT_TIER_SSD] = absurd[i];
        expect_wrong_options(b);
    }
    kvt_policy_stats after = bench_stats(b);
    assert_int_equal(after.entries, before.entries);
    assert_memory_equal(after.used_bytes, before.used_bytes, sizeof after.used_bytes);
    /* The move is fine and its bytes are not: it stays in flight until it is aborted. */
    bench_reset_offer(b, HANDLES);
    if (kvt_policy_admit(b->policy, SECOND, &b->offer, &b->plan) != KVT_OK) return;
    for (uint32_t i = 0; i < b->plan.count; i++) {
        uint64_t id = b->moves[i].id;
        uint64_t actual[KVT_TIER_PLACES] = {0, 0, UINT64_MAX, UINT64_MAX};
        kvt_status status = kvt_policy_commit(b->policy, id, actual);
        assert_int_equal(status, b->moves[i].kind == KVT_MOVE_EVICT ? KVT_E_ARGUMENT : KVT_E_SPACE);
        assert_ok(kvt_policy_abort(b->policy, id));
        assert_int_equal(kvt_policy_abort(b->policy, id), KVT_E_ARGUMENT);
    }
    after = bench_stats(b);
    assert_int_equal(after.moves_in_flight, 0);
    assert_memory_equal(after.used_bytes, before.used_bytes, sizeof after.used_bytes);
}

/* A handle that was removed is a new entry when it comes back, whatever was under way. */
static void removed_handles_come_back(bench *b)
{
    for (uint64_t round = 0; round < 600; round++) {
        uint64_t handle = 1 + test_below(&b->dice, HANDLES);
        bench_reset_offer(b, handle);
        (void)!kvt_policy_admit(b->policy, round * SECOND, &b->offer, &b->plan);
        uint32_t removed = (uint32_t)test_below(&b->dice, PLAN_MOST);
        if (removed < b->plan.count) {
            handle = b->moves[removed].handle;
            assert_ok(kvt_policy_remove(b->policy, handle));
            assert_int_equal(kvt_policy_remove(b->policy, handle), KVT_MISS);
            assert_int_equal(kvt_policy_option_get(b->policy, handle), KVT_OPTION_NONE);
        }
        for (uint32_t i = 0; i < b->plan.count; i++) {
            bool gone = removed < b->plan.count && i == removed;
            kvt_status wanted = gone ? KVT_E_ARGUMENT : KVT_OK;
            assert_int_equal(kvt_policy_commit(b->policy, b->moves[i].id, NULL), wanted);
            assert_int_equal(kvt_policy_commit(b->policy, b->moves[i].id, NULL), KVT_E_ARGUMENT);
        }
        if (test_below(&b->dice, 3) == 0) (void)!kvt_policy_remove(b->policy, handle);
        kvt_policy_stats stats = bench_stats(b);
        uint64_t stored = 0;
        for (uint64_t one = 1; one <= HANDLES; one++)
            if (kvt_policy_option_get(b->policy, one) != KVT_OPTION_NONE) stored += 100;
        assert_int_equal(stats.used_bytes[KVT_TIER_DRAM] + stats.used_bytes[KVT_TIER_SSD], stored);
    }
}

/* Standing still, years ahead, to the end of time, and back to the beginning. */
static void clocks_may_do_anything(bench *b)
{
    const uint64_t year = UINT64_C(31557600) * SECOND;
    const uint64_t times[] = {5 * SECOND, 6 * SECOND,      10 * year, SECOND,
                              UINT64_MAX, UINT64_MAX - 1u, 0,         20 * SECOND};
    for (size_t at = 0; at < sizeof times / sizeof times[0]; at++) {
        for (uint64_t round = 0; round < 100; round++) {
            uint64_t handle = 1 + test_below(&b->dice, HANDLES);
            bench_reset_offer(b, handle);
            if (kvt_policy_access(b->policy, times[at], handle, &b->plan) == KVT_MISS) {
                kvt_status status = kvt_policy_admit(b->policy, times[at], &b->offer, &b->plan);
                assert_true(status == KVT_OK || status == KVT_REFUSED);
            }
            test_carry_out(b->policy, &b->plan);
            assert_ok(kvt_policy_tick(b->policy, times[at], 4, UINT64_MAX, &b->plan));
            test_carry_out(b->policy, &b->plan);
        }
        kvt_explanation told = {.struct_size = sizeof told};
        dual_bound bound;
        kvt_status status = kvt_policy_explain(b->policy, times[at], 1, &told);
        if (status == KVT_OK) {
            assert_true(told.accesses_per_s >= 0.0 && told.accesses_per_s < 1e12);
            assert_true(told.last_access_age_seconds >= 0.0);
        }
        status = dual_solve(b->policy, times[at], NULL, &bound);
        if (status != KVT_E_UNSUPPORTED) {
            assert_ok(status);
            assert_true(bound.primal <= bound.dual && bound.dual < 1e12);
        }
        kvt_policy_stats stats = bench_stats(b);
        assert_true(stats.used_bytes[KVT_TIER_DRAM] <= CAPACITY);
        assert_true(stats.used_bytes[KVT_TIER_SSD] <= CAPACITY);
    }
}

static void over_all_policies(void (*part)(bench *))
{
    bench *b = test_alloc(sizeof *b);
    for (size_t i = 0; kvt_policy_name_get(i) != NULL; i++) {
        kvt_policy_config config;
        memset(b, 0, sizeof *b);
        b->memory.left = -1;
        b->dice = 77;
        b->plan = (kvt_plan){.moves = b->moves, .capacity = PLAN_MOST};
        kvt_policy_config_init(&config);
        config.name = (kvt_policy_name_get(i));
        config.allocator = test_allocator(&b->memory);
        config.tiers[KVT_TIER_DRAM] = (kvt_tier_facts){
            .capacity_bytes = CAPACITY, .read_bytes_per_s = 1e6, .write_bytes_per_s = 1e6};
        config.tiers[KVT_TIER_SSD] = config.tiers[KVT_TIER_DRAM];
        b->policy = test_open(&config);
        bench_reset_offer(b, 1);
        part(b);
        /* Stored and reserved bytes never pass both ends of all moves; nothing is left in the end.
         */
        for (uint64_t handle = 0; handle <= HANDLES; handle++)
            (void)!kvt_policy_remove(b->policy, handle);
        kvt_policy_stats stats = bench_stats(b);
        assert_int_equal(stats.entries, 0);
        assert_int_equal(stats.moves_in_flight, 0);
        for (int tier = 0; tier < KVT_TIER_COUNT; tier++) {
            assert_int_equal(stats.used_bytes[tier], 0);
            assert_int_equal(stats.entries_by_tier[tier], 0);
        }
        kvt_policy_close(b->policy);
        assert_int_equal(b->memory.held_bytes, 0);
    }
}

#define PART(name)                                                                                 \
    TEST(name)                                                                                     \
    {                                                                                              \
        over_all_policies(name);                                                                   \
    }
PART(wrong_numbers_change_nothing)
PART(wrong_counts_change_nothing)
PART(bytes_above_the_capacity_are_refused)
PART(removed_handles_come_back)
PART(clocks_may_do_anything)
