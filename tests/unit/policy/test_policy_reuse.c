/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_policy_reuse.c - the reuse model: weights recover what a drawn stream was made of, a prefix
 * never has a lower rate than its continuation, also when clocks stand still or jump, victims are
 * near the cheapest there is.
 */
#include "policy/engine.h"
#include "policy/reuse.h"
#include "policy/reuse_model.h"
#include "policy_support.h"

#include <math.h>
#include <stdlib.h>

static test_memory memory;
static kvt_move moves[64];
static kvt_plan plan = {moves, 64, 0};

static kvt_policy *open_with(uint64_t dram, uint64_t expected)
{
    kvt_policy_config config;
    memory = (test_memory){.left = -1};
    kvt_policy_config_init(&config);
    config.allocator = test_allocator(&memory);
    config.holes = KVT_HOLES_MIXED;
    config.tiers[KVT_TIER_DRAM].capacity_bytes = dram;
    config.entries_expected = expected;
    return test_open(&config);
}

static double draw_unit(uint64_t *dice)
{
    return ((double)test_below(dice, 1u << 30) + 0.5) / (double)(1u << 30);
}

static double draw_pause(uint64_t *dice, double half_life)
{
    return -log2(draw_unit(dice)) * half_life;
}

static void use(kvt_policy *policy, double at, uint64_t handle, uint64_t bytes)
{
    uint64_t now_ns = (uint64_t)(at * 1e9);
    const kvt_option options[2] = {test_none(1.0), test_option(1, KVT_TIER_DRAM, bytes, 0.01)};
    kvt_policy_entry offer = test_entry(handle, options, 2, 1);
    plan.count = 0;
    if (kvt_policy_access(policy, now_ns, handle, &plan) == KVT_MISS) {
        (void)!kvt_policy_admit(policy, now_ns, &offer, &plan);
    }
    test_carry_out(policy, &plan);
}

/* One event of a drawn stream; the tests sort them by time. */
typedef struct event {
    double at;
    uint64_t handle;
} event;

static int event_order(const void *a, const void *b)
{
    double left = ((const event *)a)->at, right = ((const event *)b)->at;
    return (left > right) - (left < right);
}

#define EVENTS     60000
#define DRIFT_USES 10000

/* Sessions whose every turn is followed by another with a probability after a pause. */
static size_t draw_sessions(event *to, size_t room, double seconds, double gap, double again,
                            double half_life, uint64_t *dice)
{
    size_t count = 0;
    uint64_t handle = 1;
    for (double start = gap; start < seconds; start += gap, handle++) {
        double at = start;
        do {
            if (at >= seconds || count == room) break;
            to[count++] = (event){at, handle};
            at += draw_pause(dice, half_life);
        } while (draw_unit(dice) < again);
    }
    return count;
}

/* Uses that are to follow a first one between two ages, as the statistics say: those that its count
 * predicts, and those that are due by its age. */
static double uses_between(const kvt_policy *policy, double from, double to, double *counted_out)
{
    kvt_policy_stats stats;
    kvt_policy_stats_get(policy, &stats);
    double counted = 0.0, due = 0.0;
    for (int k = 0; k < KVT_REUSE_HALF_LIVES; k++) {
        double half_life = stats.reuse.half_life_seconds[k];
        counted += stats.reuse.weight[k] * (exp2(-from / half_life) - exp2(-to / half_life));
    }
    for (int bin = 0; bin < KVT_REUSE_AGES; bin++) {
        double begin = fmax(stats.reuse.age_seconds[bin], from);
        double end = fmin(stats.reuse.age_seconds[bin + 1], to);
        if (end > begin) due += stats.reuse.hazard[0][bin] * (end - begin);
    }
    if (counted_out != NULL) *counted_out = counted;
    return counted + due;
}

/* Turns do not add up: the last use alone says that another follows, and when. */
TEST(sessions_are_told_by_their_last_use)
{
    uint64_t dice = 5;
    event *events = test_alloc(EVENTS * sizeof *events);
    size_t count = draw_sessions(events, EVENTS, 40000.0, 2.0, 0.6, 75.0, &dice);
    qsort(events, count, sizeof *events, event_order);
    kvt_policy *policy = open_with(1000, 1024);
    for (size_t i = 0; i < count; i++)
        use(policy, events[i].at, events[i].handle, 10);
    /* Planted: one more with probability 0.6, half of them within 75 s. That none comes has the
     * probability e^-(uses to follow). */
    kvt_explanation x = {.struct_size = sizeof x};
    assert_ok(kvt_policy_explain(policy, 0, events[count - 1].handle, &x));
    assert_string_equal(x.reuse_expert, "how long ago its last use was");
    assert_int_equal(x.reuse_kind, KVT_REUSE_AGE);
    assert_true(x.reuse_half_life_seconds == 0.0 && x.reuse_weight > 0.0);
    assert_true(x.reuse_share > 0.3 && x.reuse_share <= 1.0);
    double counted, hour = uses_between(policy, 0.0, 3600.0, &counted);
    assert_true(fabs(1.0 - exp(-hour) - 0.6) < 0.12);
    assert_true(uses_between(policy, 0.0, 300.0, NULL) > 0.85 * hour);
    assert_true(counted < 0.4 * hour);
    kvt_policy_close(policy);
}

/* A loop teaches that a use is due after 250 s; some thousand uses of sessions later most of that
 * is gone. */
TEST(what_has_ended_is_forgotten)
{
    uint64_t dice = 5;
    event *events = test_alloc(EVENTS * sizeof *events);
    size_t count = draw_sessions(events, EVENTS, 4000.0, 2.0, 0.6, 75.0, &dice);
    qsort(events, count, sizeof *events, event_order);
    kvt_policy *policy = open_with(1000, 1024);
    for (int turn = 0; turn < 10000; turn++)
        use(policy, 1.0 + 2.5 * turn, 1 + (uint64_t)turn % 100, 10);
    double before = reuse_ages_hazard(&policy->model->ages, REUSE_TURNS - 1, 250.0);
    for (size_t i = 0; i < count; i++)
        use(policy, 30000.0 + events[i].at, 1000 + events[i].handle, 10);
    double after = reuse_ages_hazard(&policy->model->ages, REUSE_TURNS - 1, 250.0);
    assert_true(after < 0.6 * before);
    kvt_policy_close(policy);
}

/* A loop longer than its tier: newcomers only tie with what lies there, so most of it stays and is
 * found again, where replacing at a tie finds nothing. */
TEST(a_loop_longer_than_its_tier_finds_most_of_itself)
{
    kvt_policy *policy = open_with(900, 1024);
    double at = 1.0;
    int found = 0;
    for (int turn = 0; turn < 4000; turn++, at += 2.5) {
        uint64_t handle = 1 + (uint64_t)turn % 100;
        if (turn >= 2000) found += kvt_policy_option_get(policy, handle) != KVT_OPTION_NONE;
        use(policy, at, handle, 10);
    }
    assert_true(found > 1200);
    kvt_policy_close(policy);
}

/* The same loop whatever its period is: once that has been seen, what lies there is kept until its
 * use is due, although it looks dead by then to any rule of recency. Asked: 0.9 of room over
 * loop. */
TEST(a_loop_is_kept_in_part_whatever_its_period)
{
    for (double pause = 0.5; pause < 100.0; pause *= 12.0) {
        kvt_policy *policy = open_with(500, 1024);
        double at = 1.0;
        int found = 0;
        for (int turn = 0; turn < 6000; turn++, at += pause) {
            uint64_t handle = 1 + (uint64_t)turn % 100;
            if (turn >= 2000) found += kvt_policy_option_get(policy, handle) != KVT_OPTION_NONE;
            use(policy, at, handle, 10);
        }
        assert_true(found >= 0.9 * 0.5 * 4000);
        kvt_policy_close(policy);
    }
}

/* Lives of which one in fifty is used within a second and the others after half an hour. An entry
 * that may be given up after a second is worth the chance of that second. One that is kept for two
 * minutes, because others have made its room, is worth what half an hour brings. */
TEST(an_index_looks_no_nearer_than_an_entry_is_kept)
{
    reuse_ages ages;
    reuse_ages_open(&ages, reuse_half_lives);
    const reuse_counted none = {0.0, 1.0};
    double rate[2];
    for (int held = 0; held < 2; held++) {
        ages.held_seconds = held ? 120.0 : 0.0;
        for (int i = 0; i < 6400; i++) {
            const double age = i % 50 == 0 ? 0.5 : 2000.0;
            reuse_ages_expose(&ages, 0, 0.0, age, 1.0);
            reuse_ages_find(&ages, 0, age, 1.0, 1.0, 1.0);
        }
        rate[held] = reuse_ages_look(&ages, 0, 0.0).rate;
        /* It falls below this when the second has passed, or is below it at once. */
        const double falls = reuse_ages_fall(&ages, 0, 0.0, &none, 0.01);
        assert_true(held ? falls <= 0.0 : falls > 0.0 && falls <= 1.0);
    }
    assert_true(rate[0] > 0.015 && rate[0] < 0.025);
    assert_true(rate[1] > 1.0 / 4000.0 && rate[1] < 1.0 / 1000.0);
}

/* The time that an entry is kept for at least follows the pace of the workload. */
TEST(an_entry_is_kept_for_a_part_of_the_gap_between_its_uses)
{
    for (double pause = 0.04; pause < 100.0; pause *= 100.0) {
        kvt_policy *policy = open_with(1000, 1024);
        for (int turn = 0; turn < 4000; turn++)
            use(policy, 1.0 + pause * turn, 1 + (uint64_t)turn % 50, 10);
        const double held = policy->model->ages.held_seconds / (50.0 * pause);
        assert_true(held > 0.2 && held < 0.3);
        kvt_policy_close(policy);
    }
}

/* Documents of steady popularity: counts tell their rates, over a long memory. */
TEST(documents_are_told_by_their_counts)
{
    uint64_t dice = 6;
    kvt_policy *policy = open_with(1000, 1024);
    double at = 1.0, total = 0.0;
    for (int i = 1; i <= 64; i++)
        total += 1.0 / i;
    for (int i = 0; i < EVENTS; i++) {
        at += draw_pause(&dice, 1.4);
        double mark = draw_unit(&dice) * total;
        uint64_t handle = 1;
        while (handle < 64 && (mark -= 1.0 / (double)handle) > 0.0)
            handle++;
        use(policy, at, handle, 100);
    }
    double per_s = log(2.0) / 1.4 / total;
    for (uint64_t handle = 1; handle <= 64; handle *= 4) {
        kvt_explanation x = {.struct_size = sizeof x};
        assert_ok(kvt_policy_explain(policy, 0, handle, &x));
        double ratio = x.accesses_per_s * (double)handle / per_s;
        assert_true(ratio > 0.6 && ratio < 1.6);
    }
    kvt_policy_close(policy);
}

/* A workload of documents becomes one of conversations: within 10,000 uses, little more than the
 * memory of what was learned, the weights say that another use follows with the probability 0.6
 * that was planted, and that it comes within minutes. */
TEST(weights_follow_a_changed_workload)
{
    uint64_t dice = 8;
    kvt_policy *policy = open_with(1000, 1024);
    double at = 1.0;
    for (int i = 0; i < DRIFT_USES; i++) {
        at += draw_pause(&dice, 1.4);
        double mark = draw_unit(&dice);
        use(policy, at, 1 + (uint64_t)(mark * mark * 64.0), 100);
    }
    assert_true(1.0 - exp(-uses_between(policy, 0.0, 40000.0, NULL)) > 0.9);
    event *events = test_alloc(EVENTS * sizeof *events);
    size_t count = draw_sessions(events, EVENTS, 40000.0, 2.0, 0.6, 75.0, &dice);
    assert_true(count > DRIFT_USES);
    qsort(events, count, sizeof *events, event_order);
    for (size_t i = 0; i < DRIFT_USES; i++)
        use(policy, at + events[i].at, 1000000 + events[i].handle, 10);
    double hour = uses_between(policy, 0.0, 3600.0, NULL);
    assert_true(fabs(1.0 - exp(-hour) - 0.6) < 0.12);
    assert_true(uses_between(policy, 300.0, 3600.0, NULL) < 0.25 * hour);
    kvt_policy_stats stats;
    kvt_policy_stats_get(policy, &stats);
    assert_true(stats.reuse.uses > DRIFT_USES && stats.reuse.uses <= 2 * DRIFT_USES);
    assert_true(stats.reuse.half_life_seconds[1] == 75.0);
    kvt_policy_close(policy);
}

/* Nothing is learned by a policy without the model. */
TEST(only_utility_has_weights)
{
    kvt_policy_config config;
    memory = (test_memory){.left = -1};
    kvt_policy_config_init(&config);
    config.allocator = test_allocator(&memory);
    config.name = "lru";
    config.tiers[KVT_TIER_DRAM].capacity_bytes = 1000;
    kvt_policy *policy = test_open(&config);
    for (uint64_t i = 0; i < 20; i++)
        use(policy, 1.0 + (double)i, 1 + i % 3, 10);
    kvt_policy_stats stats;
    kvt_policy_stats_get(policy, &stats);
    assert_true(stats.reuse.uses == 0 && stats.reuse.hazard[0][1] == 0.0);
    kvt_policy_close(policy);
}

/* Uses that add up in one entry and not in its continuations, clocks that stand still or jump. */
TEST(a_prefix_counts_at_least_what_its_continuation_does)
{
    uint64_t dice = 7, now_ns = SECOND;
    kvt_policy *policy = open_with(100000, 1024);
    const kvt_option options[2] = {test_none(1.0), test_option(1, KVT_TIER_DRAM, 10, 0.01)};
    for (uint64_t handle = 1; handle <= 60; handle++) {
        const kvt_policy_entry offer = {.struct_size = sizeof offer,
                                        .handle = handle,
                                        .parent = (handle - 1) / 2,
                                        .options = options,
                                        .option_count = 2,
                                        .tokens = 1};
        assert_ok(kvt_policy_admit(policy, now_ns, &offer, &plan));
        test_carry_out(policy, &plan);
    }
    for (int i = 0; i < 20000; i++) {
        uint64_t jump = test_below(&dice, 4);
        if (jump == 1) now_ns += test_below(&dice, 100) * SECOND;
        if (jump == 2 && test_below(&dice, 100) == 0) now_ns += 100000 * SECOND;
        uint64_t asked = jump == 3 && now_ns > 50 * SECOND ? now_ns - 50 * SECOND : now_ns;
        uint64_t handle = 1 + test_below(&dice, 60);
        assert_ok(kvt_policy_access(policy, asked, handle, NULL));
        for (uint64_t child = 2; child <= 60 && i % 50 == 0; child++) {
            if (child <= 2) continue;
            const entry *below = entry_at(policy, entries_find(policy, child));
            const entry *above = entry_at(policy, entries_find(policy, (child - 1) / 2));
            assert_true(reuse_look(policy, above).counted.rate >=
                        reuse_look(policy, below).counted.rate * (1.0 - 1.0 / 64));
            assert_true(above->turn >= below->turn);
            assert_true(above->last_access_ns >= below->last_access_ns);
        }
    }
    kvt_policy_close(policy);
}

/* Over the least loss per byte of all that is stored, but for what the plan gave up before. */
static double victim_over_best(kvt_policy *policy, uint32_t number)
{
    double best = UNLIMITED, chosen = 0.0;
    for (uint32_t i = 0; i < policy->entries_used; i++) {
        const entry *e = entry_at(policy, i);
        if (e->state != POLICY_ENTRY_HELD || e->current == KVT_OPTION_NONE) continue;
        bool gone = false;
        for (uint32_t before = 0; before < number; before++)
            gone |= moves[before].handle == e->handle;
        if (gone) continue;
        double loss = reuse_rate(policy, e) / (double)e->bytes[1];
        if (e->handle == moves[number].handle) chosen = loss;
        if (loss < best) best = loss;
    }
    return chosen / best;
}

/* Sessions and documents fade at different speeds, so the order of victims changes while nothing
 * is used: what a decision gives up stays near the cheapest there is. */
TEST(victims_are_near_the_cheapest)
{
    uint64_t dice = 9;
    event *events = test_alloc(EVENTS * sizeof *events);
    size_t count = draw_sessions(events, EVENTS, 20000.0, 2.0, 0.6, 75.0, &dice);
    for (double at = 0.0; at < 20000.0 && count < EVENTS; at += 1.0) {
        double mark = draw_unit(&dice);
        events[count++] = (event){at, 1000000 + (uint64_t)(mark * mark * mark * 2000.0)};
    }
    qsort(events, count, sizeof *events, event_order);
    kvt_policy *policy = open_with(4000, 1024);
    double sum = 0.0, worst = 0.0;
    uint32_t given_up = 0;
    for (size_t i = 0; i < count; i++) {
        uint64_t now_ns = (uint64_t)(events[i].at * 1e9);
        uint64_t bytes = 5 + events[i].handle % 11;
        const kvt_option options[2] = {test_none(1.0), test_option(1, KVT_TIER_DRAM, bytes, 0.01)};
        kvt_policy_entry offer = test_entry(events[i].handle, options, 2, 1);
        plan.count = 0;
        if (kvt_policy_access(policy, now_ns, events[i].handle, &plan) == KVT_MISS) {
            (void)!kvt_policy_admit(policy, now_ns, &offer, &plan);
        }
        for (uint32_t m = 0; m < plan.count && i > count / 4; m++) {
            if (moves[m].kind != KVT_MOVE_EVICT) continue;
            double over = victim_over_best(policy, m);
            sum += log2(over);
            if (over > worst) worst = over;
            given_up++;
        }
        test_carry_out(policy, &plan);
    }
    assert_true(given_up > 1000);
    /* Measured 0.6 octaves and 6: hazards jump where ages change their bin. */
    assert_true(sum / given_up < 0.9);
    assert_true(worst < 12.0);
    kvt_policy_close(policy);
}
