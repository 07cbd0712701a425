/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_policy_utility.c - the greedy against brute force on small static instances, and what the
 * utility policy promises in words: hot before cold, small before large, recompute when loading
 * is slower, a lower tier when it pays, no move that does not pay for itself.
 */
#include "policy_site.h"

#include "policy/trial.h"

#include <math.h>

static void use(uint64_t now_ns, uint64_t handle, uint64_t times)
{
    for (uint64_t i = 0; i < times; i++)
        assert_ok(kvt_policy_access(policy, now_ns, handle, NULL));
}

#define ITEMS 8

/* A static instance: each item has options NONE, raw and (perhaps) a smaller, slower form. */
typedef struct instance {
    uint32_t option_count;
    double uses[ITEMS];
    double cost[ITEMS][3];
    uint64_t bytes[ITEMS][3];
    uint64_t limit;
} instance;

static void instance_draw(instance *x, uint64_t *dice, uint32_t option_count)
{
    uint64_t total = 0;
    x->option_count = option_count;
    for (int i = 0; i < ITEMS; i++) {
        x->uses[i] = (double)(1 + test_below(dice, 20));
        x->bytes[i][0] = 0;
        x->bytes[i][1] = 50 + test_below(dice, 100);
        x->bytes[i][2] = x->bytes[i][1] * (30 + test_below(dice, 60)) / 100;
        x->cost[i][1] = 0.001 * (double)(1 + test_below(dice, 100));
        x->cost[i][2] = x->cost[i][1] + 0.001 * (double)(1 + test_below(dice, 100));
        x->cost[i][0] = x->cost[i][2] + 0.001 * (double)(1 + test_below(dice, 1000));
        total += x->bytes[i][1];
    }
    x->limit = total * (20 + test_below(dice, 60)) / 100;
}

/* The best value over all choices that fit, by trying each. Value: uses times seconds saved. */
static double instance_optimum(const instance *x)
{
    double best = 0.0;
    uint32_t choices = 1;
    for (int i = 0; i < ITEMS; i++)
        choices *= x->option_count;
    for (uint32_t code = 0; code < choices; code++) {
        uint32_t rest = code;
        double value = 0.0;
        uint64_t bytes = 0;
        for (int i = 0; i < ITEMS; i++, rest /= x->option_count) {
            uint32_t o = rest % x->option_count;
            value += x->uses[i] * (x->cost[i][0] - x->cost[i][o]);
            bytes += x->bytes[i][o];
        }
        if (bytes <= x->limit && value > best) best = value;
    }
    return best;
}

/* An engine that holds every item raw, in a tier with as much room again (so that changes inside
 * the tier fit), and whose tick makes room down to x->limit. */
static void instance_open(const instance *x)
{
    kvt_policy_config config;
    uint64_t total = 0;
    for (int i = 0; i < ITEMS; i++)
        total += x->bytes[i][1];
    config = policy_site_config(2 * total, 0);
    config.holes = KVT_HOLES_MIXED;
    config.low_watermark = config.high_watermark = (double)x->limit / (double)(2 * total);
    policy = test_open(&config);
    for (int i = 0; i < ITEMS; i++) {
        kvt_option options[3] = {test_none(x->cost[i][0])};
        for (uint16_t o = 1; o < 3; o++)
            options[o] = test_option(o, KVT_TIER_DRAM, x->bytes[i][o], x->cost[i][o]);
        kvt_policy_entry entry = test_entry((uint64_t)i + 1, options, x->option_count, 1);
        assert_ok(kvt_policy_adopt(policy, SECOND, &entry, 1));
    }
    for (uint64_t i = 0; i < ITEMS; i++)
        assert_ok(kvt_policy_rate_set(policy, i + 1, x->uses[i]));
}

TEST_EACH(NULL, policy_site_close);

TEST(greedy_is_within_one_step_of_brute_force)
{
    uint64_t dice = 31;
    double sum_greedy = 0.0;
    double sum_best = 0.0;
    for (int round = 0; round < 400; round++) {
        instance x;
        instance_draw(&x, &dice, 2 + (uint32_t)round % 2);
        instance_open(&x);
        uint8_t at[ITEMS];
        memset(at, 1, sizeof at);
        double largest = 0.0;
        for (;;) {
            uint64_t now_ns = SECOND;
            assert_ok(kvt_policy_tick(policy, now_ns, 1, UINT64_MAX, &plan));
            if (plan.count == 0) break;
            assert_int_equal(plan.count, 1);
            uint64_t item = moves[0].handle - 1;
            double loss = x.uses[item] * (x.cost[item][moves[0].to] - x.cost[item][at[item]]);
            if (loss > largest) largest = loss;
            at[item] = moves[0].to;
            test_carry_out(policy, &plan);
        }
        double value = 0.0;
        uint64_t bytes = 0;
        for (int i = 0; i < ITEMS; i++) {
            value += x.uses[i] * (x.cost[i][0] - x.cost[i][at[i]]);
            bytes += x.bytes[i][at[i]];
        }
        double best = instance_optimum(&x);
        assert_true(bytes <= x.limit);
        assert_true(value <= best * (1.0 + 1e-9));
        assert_true(value >= best - largest - 1e-9);
        sum_greedy += value;
        sum_best += best;
        policy_site_close(NULL);
    }
    /* Measured 0.978 over these instances of eight items, each an eighth of the whole. */
    assert_true(sum_greedy > 0.95 * sum_best);
}

TEST(eviction_follows_the_density_order)
{
    uint64_t dice = 32;
    for (int round = 0; round < 200; round++) {
        instance x;
        instance_draw(&x, &dice, 2);
        x.limit = 0;
        instance_open(&x);
        uint64_t now_ns = SECOND;
        assert_ok(kvt_policy_tick(policy, now_ns, 64, UINT64_MAX, &plan));
        assert_int_equal(plan.count, ITEMS);
        double last = 0.0;
        for (uint32_t i = 0; i < plan.count; i++) {
            uint64_t item = moves[i].handle - 1;
            double value = x.uses[item] * (x.cost[item][0] - x.cost[item][1]);
            double density = value / (double)x.bytes[item][1];
            /* One bucket is 1/64 octave wide, and a choice takes what is within 2 %. */
            assert_true(density >= last * 0.965);
            if (density > last) last = density;
        }
        test_carry_out(policy, &plan);
        policy_site_close(NULL);
    }
}

TEST(hot_and_small_stays_cold_and_large_goes)
{
    policy_site_open(1000, 0);
    kvt_option small[2] = {test_none(1.0), test_option(1, KVT_TIER_DRAM, 100, 0.01)};
    kvt_option large[2] = {test_none(1.0), test_option(1, KVT_TIER_DRAM, 900, 0.01)};
    admit_now(SECOND, 1, small, 2);
    admit_now(SECOND, 2, large, 2);
    /* The large one was used last, which is all that lru would look at. */
    use(2 * SECOND, 1, 5);
    use(3 * SECOND, 2, 1);
    /* Not for an entry that is worth less than the large one, used twice. */
    assert_int_equal(admit(4 * SECOND, 3, 0, small, 2), KVT_REFUSED);
    small[0] = test_none(5.0);
    assert_ok(admit(4 * SECOND, 4, 0, small, 2));
    assert_int_equal(plan.count, 2);
    assert_int_equal(moves[0].handle, 2);
    assert_int_equal(moves[0].kind, KVT_MOVE_EVICT);
}

/* A tier is full of large forms, and no entry there can be coded smaller for want of room. Entries
 * of equal worth in a form of a fifth take their place, since the room left over is not lost. */
TEST(large_forms_give_way_to_small_ones_of_equal_worth)
{
    policy_site_open(400, 0);
    kvt_option options[3] = {test_none(1.0), test_option(1, KVT_TIER_DRAM, 100, 1e-6),
                             test_option(2, KVT_TIER_DRAM, 20, 1e-5)};
    for (uint64_t handle = 1; handle <= 16; handle++)
        if (admit(SECOND + handle, handle, 0, options, 3) == KVT_OK) test_carry_out(policy, &plan);
    uint32_t stored = 0;
    for (uint64_t handle = 1; handle <= 16; handle++)
        stored += kvt_policy_option_get(policy, handle) != KVT_OPTION_NONE;
    assert_true(stored >= 8); /* four in the large form */
}

/* A small tier keeps the room of the coarsest form alone, and is full when the first entry comes to
 * stand in it. When another one has gone, the first is coded in the form that loses least by byte
 * and fits what is free now, not in the coarsest. */
TEST(a_small_tier_uses_room_that_has_come)
{
    policy_site_open(3200, 0);
    kvt_option options[4] = {test_none(1.0), test_option(1, KVT_TIER_DRAM, 1600, 0.0),
                             test_option(2, KVT_TIER_DRAM, 300, 0.0),
                             test_option(3, KVT_TIER_DRAM, 100, 0.0)};
    options[2].loss = 0.001;
    options[3].loss = 0.01;
    kvt_option other[2] = {test_none(1.0), test_option(1, KVT_TIER_DRAM, 1500, 0.0)};
    kvt_option large[2] = {test_none(10.0), test_option(1, KVT_TIER_DRAM, 2500, 0.0)};
    admit_now(SECOND, 2, other, 2);
    admit_now(SECOND, 1, options, 4);
    assert_int_equal(kvt_policy_option_get(policy, 1), 1);
    assert_ok(kvt_policy_remove(policy, 2));
    assert_ok(admit(2 * SECOND, 3, 0, large, 2));
    assert_int_equal(plan.count, 2);
    assert_int_equal(moves[0].handle, 1);
    assert_int_equal(moves[0].to, 2);
}

/* The first of four entries is worth nothing and the others are. A newcomer that is worth more than
 * all of them, and hardly more in a form of the tier's size than in one of a quarter, takes the
 * place of the first alone: the price of a byte is that of the cheapest, not of all of them. */
TEST(a_newcomer_does_not_push_out_more_than_its_larger_form_gains)
{
    policy_site_open(400, 0);
    kvt_option kept[2] = {test_none(1.0), test_option(1, KVT_TIER_DRAM, 100, 0.0)};
    kvt_option options[3] = {test_none(1000.0), test_option(1, KVT_TIER_DRAM, 400, 1.0),
                             test_option(2, KVT_TIER_DRAM, 100, 10.0)};
    for (uint64_t handle = 1; handle <= 4; handle++) {
        admit_now(SECOND, handle, kept, 2);
        assert_ok(kvt_policy_rate_set(policy, handle, handle == 1 ? 1e-6 : 1.0));
    }
    assert_ok(admit(2 * SECOND, 5, 0, options, 3));
    assert_int_equal(plan.count, 2);
    assert_int_equal(moves[0].handle, 1);
    assert_int_equal(moves[1].to, 2);
    /* Where the others are worth little, too, the larger form is what it takes. */
    policy_site_close(NULL);
    policy_site_open(400, 0);
    for (uint64_t handle = 1; handle <= 4; handle++) {
        admit_now(SECOND, handle, kept, 2);
        assert_ok(kvt_policy_rate_set(policy, handle, handle == 1 ? 1e-6 : 1e-4));
    }
    assert_ok(admit(2 * SECOND, 5, 0, options, 3));
    assert_int_equal(plan.count, 5);
    assert_int_equal(moves[4].to, 1);
}

TEST(a_newcomer_worth_less_is_refused_but_remembered)
{
    policy_site_open(100, 0);
    kvt_option options[2] = {test_none(1.0), test_option(1, KVT_TIER_DRAM, 100, 0.01)};
    admit_now(SECOND, 1, options, 2);
    use(SECOND, 1, 2);
    assert_int_equal(admit(2 * SECOND, 2, 0, options, 2), KVT_REFUSED);
    assert_int_equal(admit(3 * SECOND, 2, 0, options, 2), KVT_REFUSED);
    assert_int_equal(kvt_policy_access(policy, 3 * SECOND, 2, &plan), KVT_MISS);
    /* Its uses come to be worth a third more than the three of the other, by more than it is newer.
     */
    uint64_t at = 4;
    while (admit(at * SECOND, 2, 0, options, 2) == KVT_REFUSED)
        assert_true(++at < 12);
    assert_true(at >= 5);
    assert_int_equal(plan.count, 2);
}

TEST(recompute_wins_when_loading_is_slower)
{
    policy_site_open(0, 1000);
    kvt_option slow[2] = {test_none(0.05), test_option(1, KVT_TIER_SSD, 100, 0.06)};
    kvt_option fast[2] = {test_none(0.05), test_option(1, KVT_TIER_SSD, 100, 0.04)};
    assert_int_equal(admit(SECOND, 1, 0, slow, 2), KVT_REFUSED);
    assert_ok(admit(SECOND, 3, 0, fast, 2));
}

/* Loading is fast enough, and quality costs 10 prefills: 0.04 + 10 * 0.05 * 0.03 > 0.05. A model
 * that computes ten times as fast and loads ten times as fast decides the same. In seconds it does
 * not. */
TEST(a_loss_costs_prefills_or_seconds)
{
    for (int i = 0; i < 8; i++) {
        bool cheap = i % 2 != 0, lossy = i / 2 % 2 != 0, absolute = i / 4 != 0;
        kvt_policy_config config = policy_site_config(0, 1000);
        if (absolute) config.alpha_seconds = 0.2;
        policy = test_open(&config);
        double scale = cheap ? 0.1 : 1.0;
        kvt_option options[2] = {test_none(scale * 0.05),
                                 test_option(1, KVT_TIER_SSD, 100, scale * 0.04)};
        options[1].loss = lossy ? 0.03 : 0.01;
        bool pays = absolute ? !cheap : !lossy;
        assert_int_equal(admit(SECOND, 1, 0, options, 2), pays ? KVT_OK : KVT_REFUSED);
        policy_site_close(NULL);
    }
}

/* DRAM holds one entry; what a newcomer pushes out has an SSD option of `ssd_load` seconds that
 * takes `write` bytes per second to write, after `others` entries of its size that are written in
 * the same moment. Returns the kind of the first move. */
static uint8_t pushed_out(double ssd_load, double write, uint64_t others)
{
    kvt_policy_config config = policy_site_config(100, 1000);
    config.tiers[KVT_TIER_SSD].write_bytes_per_s = write;
    policy = test_open(&config);
    kvt_option options[3] = {test_none(1.0), test_option(1, KVT_TIER_DRAM, 100, 0.01),
                             test_option(1, KVT_TIER_SSD, 100, ssd_load)};
    admit_now(SECOND, 1, options, 3);
    assert_int_equal(kvt_policy_option_get(policy, 1), 1);
    options[0] = test_none(50.0);
    for (uint64_t i = 0; i < others; i++) {
        const kvt_option below[2] = {options[0], options[2]};
        assert_ok(admit(100 * SECOND, 10 + i, 0, below, 2));
        test_carry_out(policy, &plan);
    }
    /* Only DRAM for the newcomer, and dear to recompute. */
    assert_ok(admit(100 * SECOND, 2, 0, options, 2));
    assert_int_equal(plan.count, 2);
    assert_int_equal(moves[0].handle, 1);
    uint8_t kind = moves[0].kind;
    test_carry_out(policy, &plan);
    policy_site_close(NULL);
    return kind;
}

TEST(demotes_when_the_lower_tier_pays)
{
    assert_int_equal(pushed_out(0.1, 1e6, 0), KVT_MOVE_CHANGE);
    /* Loading takes as long as recomputing. */
    assert_int_equal(pushed_out(1.0, 1e6, 0), KVT_MOVE_EVICT);
    /* 100 bytes at 5/s: twenty seconds of a device count as two, against 0.9 s that a use would
     * save. */
    assert_int_equal(pushed_out(0.1, 5.0, 0), KVT_MOVE_EVICT);
    /* 1.25 s of a device for it, but it would wait for those before it. */
    assert_int_equal(pushed_out(0.1, 80.0, 0), KVT_MOVE_CHANGE);
    assert_int_equal(pushed_out(0.1, 80.0, 3), KVT_MOVE_EVICT);
}

TEST(a_full_lower_tier_makes_room_first)
{
    policy_site_open(100, 100);
    kvt_option options[3] = {test_none(1.0), test_option(1, KVT_TIER_DRAM, 100, 0.01),
                             test_option(1, KVT_TIER_SSD, 100, 0.1)};
    for (uint64_t handle = 1; handle <= 3; handle++) {
        assert_ok(admit(handle * 200 * SECOND, handle, 0, options, 3));
        options[0] =
            test_none((double)(handle * handle) * 1000.0); /* the next one is worth far more */
        if (handle < 3) test_carry_out(policy, &plan);
    }
    assert_int_equal(plan.count, 3);
    assert_int_equal(moves[0].kind, KVT_MOVE_EVICT);
    assert_int_equal(moves[0].handle, 1);
    assert_int_equal(moves[1].kind, KVT_MOVE_CHANGE);
    assert_int_equal(moves[1].handle, 2);
    assert_int_equal(moves[2].kind, KVT_MOVE_PUT);
}

/* A full upper tier has a price: what is worth less there goes straight to the tier below. */
TEST(a_newcomer_does_not_push_out_what_is_worth_more)
{
    policy_site_open(100, 1000);
    kvt_option options[3] = {test_none(1.0), test_option(1, KVT_TIER_DRAM, 100, 0.01),
                             test_option(1, KVT_TIER_SSD, 100, 0.1)};
    admit_now(SECOND, 1, options, 3);
    use(SECOND, 1, 4);
    assert_ok(admit(SECOND, 2, 0, options, 3));
    assert_int_equal(plan.count, 1);
    assert_int_equal(moves[0].to, 2);
}

/* A plan that may not grow long enough to move an entry down does not drop it instead. */
TEST(a_short_plan_does_not_evict_what_should_move_down)
{
    for (uint32_t length = 2; length <= 6; length++) {
        policy_site_open(100, 100);
        kvt_option options[3] = {test_none(1.0), test_option(1, KVT_TIER_DRAM, 100, 0.01),
                                 test_option(1, KVT_TIER_SSD, 100, 0.1)};
        kvt_option quarter[2] = {test_none(0.6), test_option(1, KVT_TIER_SSD, 25, 0.55)};
        adopt_entry(1, options, 3, 1);
        for (uint64_t handle = 2; handle <= 5; handle++)
            adopt_entry(handle, quarter, 2, 1);
        options[0] = test_none(50.0);
        plan.capacity = length;
        kvt_status status = admit(SECOND, 6, 0, options, 2);
        plan.capacity = 64;
        assert_int_equal(status, length < 6 ? KVT_REFUSED : KVT_OK);
        if (length == 6) assert_int_equal(moves[4].kind, KVT_MOVE_CHANGE);
        policy_site_close(NULL);
    }
}

/* The entry on its way up still holds its bytes below: it cannot be dropped to make its own room.
 */
TEST(a_promoted_entry_is_not_its_own_victim)
{
    policy_site_open(100, 200);
    kvt_option options[3] = {test_none(50.0), test_option(1, KVT_TIER_DRAM, 100, 0.01),
                             test_option(1, KVT_TIER_SSD, 100, 10.0)};
    for (uint64_t handle = 1; handle <= 3; handle++) {
        options[0] = test_none(handle == 3 ? 10.5 : 50.0);
        kvt_policy_entry entry = test_entry(handle, options, 3, 1);
        uint8_t option = handle == 1 ? 1 : 2;
        assert_ok(kvt_policy_adopt(policy, SECOND, &entry, option));
    }
    assert_ok(kvt_policy_pin(policy, 2));
    use(SECOND, 3, 20);
    assert_ok(kvt_policy_access(policy, SECOND, 3, &plan));
    assert_int_equal(plan.count, 2);
    assert_int_equal(moves[0].handle, 1);
    assert_int_equal(moves[0].kind, KVT_MOVE_EVICT);
    assert_int_equal(moves[1].handle, 3);
    assert_int_equal(moves[1].kind, KVT_MOVE_CHANGE);
    test_carry_out(policy, &plan);
}

TEST(an_adopted_entry_counts_for_less_than_a_use)
{
    policy_site_open(100, 0);
    kvt_option options[2] = {test_none(1.0), test_option(1, KVT_TIER_DRAM, 100, 0.0)};
    adopt_entry(1, options, 2, 1);
    /* Worth 0.75, and what takes its place a third more. */
    options[0] = test_none(0.97);
    assert_int_equal(admit(SECOND, 2, 0, options, 2), KVT_REFUSED);
    options[0] = test_none(0.98);
    assert_ok(admit(SECOND, 3, 0, options, 2));
}

TEST(promotion_must_pay_for_the_move)
{
    kvt_policy_config config = policy_site_config(1000, 1000);
    config.tiers[KVT_TIER_DRAM].write_bytes_per_s =
        10.0; /* ten seconds for an entry count as one */
    policy = test_open(&config);
    kvt_option options[3] = {test_none(9.0), test_option(1, KVT_TIER_DRAM, 100, 0.5),
                             test_option(1, KVT_TIER_SSD, 100, 1.0)};
    adopt_entry(1, options, 3, 2);
    /* A rate that is told falls by half in 300 s, so its uses come within 300 s / ln 2 in the mean;
     * 0.5 s each against 1.25 s: from 2.5 ln 2 / 300 s on, the use itself, which adds ln 2 / 300 s,
     * included. */
    const double least = 1.5 * log(2.0) / 300.0;
    assert_ok(kvt_policy_rate_set(policy, 1, 0.99 * least));
    assert_ok(kvt_policy_access(policy, SECOND, 1, &plan));
    assert_int_equal(plan.count, 0);
    assert_ok(kvt_policy_rate_set(policy, 1, 1.01 * least));
    assert_ok(kvt_policy_access(policy, SECOND, 1, &plan));
    assert_int_equal(plan.count, 1);
    assert_int_equal(moves[0].kind, KVT_MOVE_CHANGE);
    assert_int_equal(moves[0].to, 1);
    test_carry_out(policy, &plan);
    kvt_policy_stats stats;
    kvt_policy_stats_get(policy, &stats);
    assert_int_equal(stats.promotions, 1);
}

TEST(tick_keeps_the_watermarks_and_promotes_the_hottest)
{
    kvt_policy_config config = policy_site_config(1000, 4000);
    config.high_watermark = 0.9;
    config.low_watermark = 0.5;
    policy = test_open(&config);
    kvt_option options[3] = {test_none(1.0), test_option(1, KVT_TIER_DRAM, 100, 0.01),
                             test_option(1, KVT_TIER_SSD, 100, 0.1)};
    for (uint64_t handle = 1; handle <= 10; handle++) {
        adopt_entry(handle, options, 3, 1);
        use(SECOND, handle, 10 * handle);
    }
    assert_ok(kvt_policy_tick(policy, SECOND, 64, UINT64_MAX, &plan));
    assert_int_equal(plan.count, 5);
    for (uint32_t i = 0; i < plan.count; i++) {
        assert_int_equal(moves[i].kind, KVT_MOVE_CHANGE);
        assert_int_equal(moves[i].handle, i + 1); /* coldest first */
    }
    kvt_plan again = {moves + 32, 32, 0};
    /* Room that is being made is not made twice. */
    assert_ok(kvt_policy_tick(policy, SECOND, 64, UINT64_MAX, &again));
    assert_int_equal(again.count, 0);
    test_carry_out(policy, &plan);
    /* Between the marks there is room for four, up to the high one: the hottest come back. */
    assert_ok(kvt_policy_tick(policy, SECOND, 64, UINT64_MAX, &plan));
    assert_int_equal(plan.count, 4);
    for (uint32_t i = 0; i < plan.count; i++)
        assert_int_equal(moves[i].handle, 5 - i);
}

/* A tick passes over entries that the best form of all could not make cheaper: forms measured anew
 * and those of other entries count in that at once. */
TEST(a_tick_sees_what_became_cheaper)
{
    policy_site_open(1000, 1000);
    kvt_option options[3] = {test_none(10.0), test_option(1, KVT_TIER_SSD, 100, 0.1),
                             test_option(1, KVT_TIER_DRAM, 100, 0.1)};
    adopt_entry(1, options, 3, 1);
    use(SECOND, 1, 5);
    assert_ok(kvt_policy_tick(policy, SECOND, 8, UINT64_MAX, &plan));
    assert_int_equal(plan.count, 0);
    options[2].load_seconds = 0.001;
    assert_ok(kvt_policy_recost(policy, 1, options, 3));
    assert_ok(kvt_policy_tick(policy, SECOND, 8, UINT64_MAX, &plan));
    assert_int_equal(plan.count, 1);
    assert_int_equal(moves[0].to, 2);
    test_carry_out(policy, &plan);
    /* Below the least of those until now. */
    kvt_option rung[3] = {options[0], test_option(1, KVT_TIER_SSD, 100, 0.001),
                          test_option(1, KVT_TIER_DRAM, 100, 0.0)};
    kvt_policy_entry shared = {
        .struct_size = sizeof shared, .handle = 2, .recompute_seconds = 10.0, .tokens = 1};
    assert_ok(kvt_policy_ladder_add(policy, rung, 3, &shared.ladder));
    assert_ok(kvt_policy_adopt(policy, SECOND, &shared, 1));
    use(SECOND, 2, 5);
    assert_ok(kvt_policy_tick(policy, SECOND, 8, UINT64_MAX, &plan));
    assert_int_equal(plan.count, 1);
    assert_int_equal(moves[0].handle, 2);
    test_carry_out(policy, &plan);
}

/* A form that turns out larger frees less; what is stored or reserved stays as it is. */
TEST(a_form_has_another_size)
{
    policy_site_open(1000, 1000);
    kvt_option options[3] = {test_none(10.0), test_option(1, KVT_TIER_SSD, 100, 0.1),
                             test_option(1, KVT_TIER_DRAM, 100, 0.001)};
    kvt_policy_entry entry = test_entry(1, options, 3, 1);
    kvt_policy_stats stats;
    assert_int_equal(kvt_policy_resize(policy, 1, options, 3), KVT_MISS);
    assert_ok(kvt_policy_adopt(policy, SECOND, &entry, 1));
    use(SECOND, 1, 5);
    assert_int_equal(kvt_policy_resize(policy, 1, options, 2), KVT_E_ARGUMENT);
    options[1].bytes[KVT_TIER_SSD] = options[2].bytes[KVT_TIER_DRAM] = 150;
    assert_ok(kvt_policy_resize(policy, 1, options, 3));
    kvt_policy_stats_get(policy, &stats);
    assert_int_equal(stats.used_bytes[KVT_TIER_SSD], 100);
    assert_ok(kvt_policy_tick(policy, SECOND, 8, UINT64_MAX, &plan));
    assert_int_equal(plan.count, 1);
    assert_int_equal(moves[0].to_bytes[KVT_TIER_DRAM], 150);
    assert_int_equal(kvt_policy_resize(policy, 1, options, 3), KVT_BUSY);
    test_carry_out(policy, &plan);
    kvt_policy_stats_get(policy, &stats);
    assert_int_equal(stats.used_bytes[KVT_TIER_SSD], 0);
    assert_int_equal(stats.used_bytes[KVT_TIER_DRAM], 150);
}

TEST(a_parent_is_as_hot_as_its_hottest_child)
{
    policy_site_open(1000, 0);
    kvt_option options[2] = {test_none(1.0), test_option(1, KVT_TIER_DRAM, 100, 0.01)};
    for (uint64_t handle = 1; handle <= 4; handle++) {
        assert_ok(admit(SECOND, handle, handle - 1, options, 2));
        test_carry_out(policy, &plan);
    }
    use(2 * SECOND, 4, 10);
    kvt_explanation leaf = {.struct_size = sizeof leaf};
    kvt_explanation head = {.struct_size = sizeof head};
    assert_ok(kvt_policy_explain(policy, 3 * SECOND, 4, &leaf));
    assert_ok(kvt_policy_explain(policy, 3 * SECOND, 1, &head));
    assert_true(leaf.accesses_per_s > 0.0);
    assert_true(head.accesses_per_s >= leaf.accesses_per_s);
    assert_int_equal(head.resident_children, 1);
    assert_false(head.options[0].feasible);
    assert_true(leaf.options[0].feasible);
    assert_int_equal(leaf.parent, 3);
}

TEST(a_rate_that_is_told_decays_in_half_lives)
{
    kvt_policy_config config = policy_site_config(1000, 0);
    policy = test_open(&config);
    policy_try_half_life(policy, 10.0);
    kvt_option options[2] = {test_none(1.0), test_option(1, KVT_TIER_DRAM, 100, 0.25)};
    uint64_t start = UINT64_C(1700000000) * SECOND; /* a wall clock, decades from zero */
    admit_now(start, 1, options, 2);
    assert_ok(kvt_policy_rate_set(policy, 1, log(2.0) / 10.0));
    use(start + 10 * SECOND, 1, 1);
    kvt_explanation x = {.struct_size = sizeof x};
    /* Told as one use: a half life later half of it is left beside another use, then half of both.
     */
    assert_ok(kvt_policy_explain(policy, start + 20 * SECOND, 1, &x));
    double expected = 0.69314718055994531 / 10.0 * 0.75;
    assert_true(x.accesses_per_s > expected * (1.0 - 1e-6));
    assert_true(x.accesses_per_s < expected * (1.0 + 1e-6));
    expected = x.accesses_per_s;
    assert_true(x.last_access_age_seconds > 9.999 && x.last_access_age_seconds < 10.001);
    double utility = -expected * 0.25;
    assert_true(x.options[1].utility < utility * (1.0 - 1e-12));
    assert_true(x.options[1].utility > utility * (1.0 + 1e-12));
    assert_int_equal(x.best, 1);
    /* A clock that steps back stands still. */
    use(start + 20 * SECOND, 1, 1);
    use(start + 5 * SECOND, 1, 1);
    assert_ok(kvt_policy_explain(policy, start, 1, &x));
    expected = 0.69314718055994531 / 10.0 * 2.75;
    assert_true(x.accesses_per_s > expected * (1.0 - 1e-6));
    assert_true(x.accesses_per_s < expected * (1.0 + 1e-6));
}
