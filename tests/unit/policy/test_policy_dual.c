/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_policy_dual.c - no placement is worth more than dual_solve's dual: engines at work on
 * drawn instances, with entries refused, evicted, half-way, stored in other bytes than planned.
 *
 * The test keeps each entry's options and stored bytes itself, and adds up utilities in long
 * double; of the engine it takes the rates. Tiny instances are solved here by trying everything.
 * With a file's name as its argument the program writes larger ones and their duals to it, one
 * JSON document a line, for test_policy_dual_milp.py.
 */
#include "policy_support.h"

#include "policy/engine.h"
#include "policy/reuse.h"
#include "replay/rivals/dual.h"

#include <stdio.h>

#define HANDLES_MOST 200u
#define OPTIONS_MOST 13u
#define PLAN_MOST    16u
#define LADDERS      3u

typedef struct known_entry {
    bool offered;
    kvt_option options[OPTIONS_MOST];
    uint32_t option_count;
    uint32_t ladder; /* 0: options of its own */
    double recompute;
    double sensitivity;
    double share;
    uint32_t tenant;
    uint64_t stored[KVT_TIER_COUNT]; /* really, of the present option */
} known_entry;

/* What an entry may be, as the test knows it. */
typedef struct item {
    uint32_t count;
    long double value[OPTIONS_MOST];
    uint64_t bytes[OPTIONS_MOST][TIERS];
} item;

typedef struct drawn {
    test_memory memory;
    kvt_policy *policy;
    uint64_t dice;
    uint64_t now_ns;
    uint32_t handles;
    uint32_t options_most;
    double alpha[2]; /* by tenant */
    double loss_limit[2];
    kvt_option ladders[LADDERS][OPTIONS_MOST];
    uint32_t ladder_count[LADDERS];
    uint32_t ladder_number[LADDERS];
    known_entry entries[HANDLES_MOST + 1];
    item items[HANDLES_MOST];
    uint32_t item_count;
    dual_bound bound;
} drawn;

/* Exact in a float, so that the engine keeps what the test drew. */
static double draw_eighths(drawn *x, uint64_t most)
{
    return (double)(1 + test_below(&x->dice, most)) / 8.0;
}

/* Options that follow no curve: some are dominated, some span tiers, few can be made from others.
 */
static uint32_t draw_options(drawn *x, kvt_option *options, uint32_t most)
{
    uint32_t count = 1 + (uint32_t)test_below(&x->dice, most);
    memset(options, 0, sizeof *options * OPTIONS_MOST);
    for (uint32_t i = 1; i < count; i++) {
        kvt_option *o = &options[i];
        int tier = 1 + (int)test_below(&x->dice, 3);
        o->variant.codec = (uint16_t)(1 + i);
        o->bytes[tier] = 1 + test_below(&x->dice, 120);
        if (test_below(&x->dice, 6) == 0) o->bytes[1 + tier % 3] = 1 + test_below(&x->dice, 60);
        memcpy(o->read_bytes, o->bytes, sizeof o->bytes);
        o->load_seconds = 0.01 * (double)test_below(&x->dice, 300);
        o->decode_seconds = 0.001 * (double)test_below(&x->dice, 100);
        if (test_below(&x->dice, 2) == 0) o->loss = 0.001 * (double)test_below(&x->dice, 700);
        o->loss_upper = o->loss;
        o->made_from = (uint32_t)test_below(&x->dice, UINT64_C(1) << count) & ~UINT32_C(1);
    }
    return count;
}

static void drawn_open(drawn *x, uint32_t handles, uint32_t options_most, uint64_t seed)
{
    memset(x, 0, sizeof *x);
    x->memory.left = -1;
    x->dice = seed * UINT64_C(0x9E3779B97F4A7C15) | 1;
    x->now_ns = SECOND;
    x->handles = handles;
    x->options_most = options_most;
    kvt_policy_config config;
    kvt_policy_config_init(&config);
    config.holes = KVT_HOLES_MIXED;
    config.alpha_seconds = 2.0;
    if (test_below(&x->dice, 5) == 0) config.ghosts_max = handles / 3;
    uint32_t tiers = 1 + (uint32_t)test_below(&x->dice, 3);
    for (uint32_t i = 0; i < tiers; i++) {
        int tier = 1 + (int)test_below(&x->dice, 3);
        config.tiers[tier].capacity_bytes = 20 + test_below(&x->dice, 25 * (uint64_t)handles);
        config.tiers[tier].read_bytes_per_s = 1e3;
    }
    config.allocator = test_allocator(&x->memory);
    x->policy = test_open(&config);
    policy_try_half_life(x->policy, 20.0);
    x->alpha[0] = config.alpha_seconds;
    x->alpha[1] = draw_eighths(x, 40);
    x->loss_limit[0] = UNLIMITED;
    x->loss_limit[1] = 0.25;
    const kvt_tenant limits = {
        .struct_size = sizeof limits, .alpha_seconds = x->alpha[1], .loss_limit = x->loss_limit[1]};
    assert_ok(kvt_policy_tenant_set(x->policy, 1, &limits));
    for (uint32_t i = 0; i < LADDERS; i++) {
        x->ladder_count[i] = draw_options(x, x->ladders[i], options_most);
        assert_ok(kvt_policy_ladder_add(x->policy, x->ladders[i], x->ladder_count[i],
                                        &x->ladder_number[i]));
    }
}

/* Mostly carried out, at times in other bytes; some moves fail, some stay in flight. */
static void drawn_carry_out(drawn *x, const kvt_plan *plan)
{
    bool failed = false;
    for (uint32_t i = 0; i < plan->count; i++) {
        const kvt_move *move = &plan->moves[i];
        known_entry *e = &x->entries[move->handle];
        uint64_t actual[KVT_TIER_PLACES] = {0};
        memcpy(actual, move->to_bytes, sizeof actual);
        if (!failed && test_below(&x->dice, 12) == 0) return;
        failed = failed || test_below(&x->dice, 15) == 0;
        for (int tier = 1; tier < KVT_TIER_COUNT; tier++) {
            if (actual[tier] < 2 || test_below(&x->dice, 4) != 0) continue;
            actual[tier] -= test_below(&x->dice, actual[tier] / 2);
            if (test_below(&x->dice, 4) == 0) actual[tier] = move->to_bytes[tier] + 2;
        }
        if (!failed && kvt_policy_commit(x->policy, move->id, actual) == KVT_OK) {
            memcpy(e->stored, actual, sizeof e->stored);
            continue;
        }
        assert_ok(kvt_policy_abort(x->policy, move->id));
        failed = true;
    }
}

static kvt_status drawn_offer(drawn *x, uint64_t handle, kvt_plan *plan)
{
    known_entry *e = &x->entries[handle];
    if (!e->offered || test_below(&x->dice, 8) == 0) {
        kvt_explanation told = {.struct_size = sizeof told};
        kvt_status known = kvt_policy_explain(x->policy, x->now_ns, handle, &told);
        if (known == KVT_OK && told.option_count > 0) return KVT_EXISTS; /* keeps its options */
        uint32_t drawn_ladder = (uint32_t)test_below(&x->dice, 2 * LADDERS);
        e->ladder = drawn_ladder < LADDERS ? x->ladder_number[drawn_ladder] : 0;
        e->option_count = e->ladder != 0 ? x->ladder_count[drawn_ladder]
                                         : draw_options(x, e->options, x->options_most);
        if (e->ladder != 0) memcpy(e->options, x->ladders[drawn_ladder], sizeof e->options);
        e->recompute = draw_eighths(x, 64);
        e->sensitivity = draw_eighths(x, 16);
        e->share = test_below(&x->dice, 3) == 0 ? 0.25 : 1.0;
        e->tenant = (uint32_t)test_below(&x->dice, 2);
        e->offered = true;
        e->options[0].load_seconds = e->recompute;
    }
    const kvt_policy_entry offer = {.struct_size = sizeof offer,
                                    .handle = handle,
                                    .options = e->ladder != 0 ? NULL : e->options,
                                    .option_count = e->ladder != 0 ? 0 : e->option_count,
                                    .ladder = e->ladder,
                                    .recompute_seconds = e->recompute,
                                    .sensitivity = e->sensitivity,
                                    .tokens = 16,
                                    .request_tokens = (uint32_t)(16.0 / e->share),
                                    .tenant = e->tenant};
    return kvt_policy_admit(x->policy, x->now_ns, &offer, plan);
}

static void drawn_call(drawn *x)
{
    kvt_move moves[PLAN_MOST];
    kvt_plan plan = {.moves = moves, .capacity = PLAN_MOST};
    uint64_t handle = 1 + test_below(&x->dice, x->handles);
    x->now_ns += test_below(&x->dice, SECOND);
    uint64_t kind = test_below(&x->dice, 20);
    if (kind == 0) {
        (void)!kvt_policy_remove(x->policy, handle);
        return;
    }
    if (kind == 1)
        (void)!kvt_policy_tick(x->policy, x->now_ns, PLAN_MOST, UINT64_MAX, &plan);
    else if (kvt_policy_access(x->policy, x->now_ns, handle, &plan) == KVT_MISS)
        (void)!drawn_offer(x, handle, &plan);
    drawn_carry_out(x, &plan);
}

static long double drawn_value(const drawn *x, const known_entry *e, const kvt_option *o,
                               double rate)
{
    long double loss = (long double)e->sensitivity * o->loss;
    long double cost = (long double)o->load_seconds + o->decode_seconds;
    cost += (long double)x->alpha[e->tenant] * e->share * (loss < 1.0L ? loss : 1.0L);
    return rate * (e->recompute - cost);
}

/* All that the engine knows, as the test does; adds up what is stored. */
static long double drawn_collect(drawn *x)
{
    long double primal = 0.0L;
    x->item_count = 0;
    for (uint64_t handle = 1; handle <= x->handles; handle++) {
        const known_entry *e = &x->entries[handle];
        kvt_explanation told = {.struct_size = sizeof told};
        if (kvt_policy_explain(x->policy, x->now_ns, handle, &told) != KVT_OK) continue;
        item *to = &x->items[x->item_count++];
        to->count = 0;
        for (uint32_t i = 1; i < e->option_count; i++) {
            const kvt_option *o = &e->options[i];
            bool stored = told.current == i;
            if (!stored && e->sensitivity * o->loss_upper > x->loss_limit[e->tenant]) continue;
            long double value = drawn_value(x, e, o, told.accesses_per_s);
            if (stored) primal += value;
            bool fits = value > 0.0L;
            for (int tier = 0; tier < TIERS; tier++) {
                uint64_t bytes = stored ? e->stored[tier + 1] : o->bytes[tier + 1];
                to->bytes[to->count][tier] = bytes;
                fits = fits && bytes <= x->policy->capacity[tier];
            }
            if (fits) to->value[to->count++] = value;
        }
    }
    return primal;
}

/* An engine that has worked for a while, and its bound. */
static void drawn_make(drawn *x, uint32_t handles, uint32_t options_most, uint64_t seed)
{
    drawn_open(x, handles, options_most, seed);
    uint32_t calls = 4 * handles + 10;
    for (uint32_t i = 0; i < calls; i++)
        drawn_call(x);
    assert_ok(dual_solve(x->policy, x->now_ns, NULL, &x->bound));
}

static void drawn_close(drawn *x)
{
    kvt_policy_close(x->policy);
    assert_int_equal(x->memory.held_bytes, 0);
}

static long double try_all(const drawn *x, uint32_t at, const uint64_t room[TIERS])
{
    if (at == x->item_count) return 0.0L;
    const item *one = &x->items[at];
    long double best = try_all(x, at + 1, room);
    for (uint32_t i = 0; i < one->count; i++) {
        uint64_t left[TIERS];
        bool fits = true;
        for (int tier = 0; tier < TIERS; tier++) {
            fits = fits && one->bytes[i][tier] <= room[tier];
            left[tier] = room[tier] - one->bytes[i][tier];
        }
        if (!fits) continue;
        long double value = one->value[i] + try_all(x, at + 1, left);
        if (value > best) best = value;
    }
    return best;
}

static bool drawn_has_points(const drawn *x)
{
    for (uint32_t i = 0; i < x->policy->entries_used; i++) {
        const entry *e = entry_at(x->policy, i);
        if (e->state == POLICY_ENTRY_GHOST && !e->shares) return true;
    }
    return false;
}

/* L at the reported prices, over all that the test knows. */
static long double drawn_bound(const drawn *x)
{
    long double sum = 0.0L;
    for (int tier = 0; tier < TIERS; tier++)
        sum += (long double)x->bound.price[tier + 1] * x->policy->capacity[tier];
    for (uint32_t i = 0; i < x->item_count; i++) {
        long double best = 0.0L;
        for (uint32_t o = 0; o < x->items[i].count; o++) {
            long double score = x->items[i].value[o];
            for (int tier = 0; tier < TIERS; tier++)
                score -= (long double)x->bound.price[tier + 1] * x->items[i].bytes[o][tier];
            if (score > best) best = score;
        }
        sum += best;
    }
    return sum;
}

static void drawn_check(drawn *x, uint64_t seed)
{
    long double primal = drawn_collect(x);
    const dual_bound *bound = &x->bound;
    long double off = (long double)bound->primal - primal;
    long double slack = 1e-12L * (long double)bound->dual;
    if (off > slack || off < -slack) {
        fail_msg("seed %u: primal %.17g, it is %.17Lg", (unsigned)seed, bound->primal, primal);
    }
    assert_int_equal(bound->entries, x->item_count);
    assert_int_equal(bound->remembered, x->policy->ghost_count);
    assert_true(bound->primal <= bound->placed && bound->placed <= bound->dual);
    assert_true(bound->gap_solver >= 0.0 && bound->gap_solver <= bound->gap_counters);
    long double least = drawn_bound(x);
    if (bound->dual < least) {
        fail_msg("seed %u: dual %.17g, L is %.20Lg", (unsigned)seed, bound->dual, least);
    }
    if (!drawn_has_points(x)) assert_true(bound->dual <= least * (1.0L + 1e-12L));
}

TEST(no_placement_beats_the_dual)
{
    drawn *x = test_alloc(sizeof *x);
    long double best_sum = 0.0L, dual_sum = 0.0L;
    uint64_t remembered = 0, below = 0;
    enum { ROUNDS = 1500 };
    for (uint64_t seed = 1; seed <= ROUNDS; seed++) {
        bool wide = seed % 3 == 0;
        drawn_make(x, wide ? 3 : 7, wide ? OPTIONS_MOST - 1 : 4, seed);
        drawn_check(x, seed);
        long double best = try_all(x, 0, x->policy->capacity);
        /* Only points promise more than there is. */
        if (!drawn_has_points(x) && (long double)x->bound.placed > best * (1.0L + 1e-12L)) {
            fail_msg("seed %u: placed %.17g, the best is %.17Lg", (unsigned)seed, x->bound.placed,
                     best);
        }
        below += (long double)x->bound.dual < best;
        best_sum += best;
        dual_sum += (long double)x->bound.dual;
        remembered += x->bound.remembered;
        drawn_close(x);
    }
    if (below > 0)
        fail_msg("%u of %u duals lie below the optimum", (unsigned)below, (unsigned)ROUNDS);
    /* The instances are what they are meant to be, and the bound says something. */
    assert_true(remembered > ROUNDS);
    assert_true(dual_sum < 1.5L * best_sum);
}

/* A refused entry that is worth more than all that is stored counts: the tier has room for one. */
TEST(what_was_refused_counts)
{
    test_memory memory = {.left = -1};
    kvt_policy_config config;
    kvt_policy_config_init(&config);
    config.tiers[KVT_TIER_DRAM].capacity_bytes = 100;
    config.allocator = test_allocator(&memory);
    for (int shared = 0; shared < 2; shared++) {
        kvt_policy *policy = test_open(&config);
        const kvt_option options[2] = {test_none(0.0), test_option(1, KVT_TIER_DRAM, 100, 0.0)};
        uint32_t number = 0;
        if (shared != 0) {
            assert_ok(kvt_policy_ladder_add(policy, options, 2, &number));
        }
        for (uint64_t handle = 1; handle <= 2; handle++) {
            kvt_option own[2] = {test_none((double)handle), options[1]};
            kvt_policy_entry offer = {.struct_size = sizeof offer,
                                      .handle = handle,
                                      .ladder = number,
                                      .recompute_seconds = shared != 0 ? (double)handle : 0.0};
            if (shared == 0) offer.options = own;
            if (shared == 0) offer.option_count = 2;
            if (handle == 1) {
                assert_ok(kvt_policy_adopt(policy, SECOND, &offer, 1));
                assert_ok(kvt_policy_pin(policy, 1));
                assert_ok(kvt_policy_rate_set(policy, 1, 0.5));
                continue;
            }
            kvt_move moves[4];
            kvt_plan plan = {.moves = moves, .capacity = 4};
            assert_int_equal(kvt_policy_admit(policy, SECOND, &offer, &plan), KVT_REFUSED);
            assert_ok(kvt_policy_rate_set(policy, 2, 0.5));
        }
        dual_bound bound;
        assert_ok(dual_solve(policy, SECOND, NULL, &bound));
        assert_int_equal(bound.entries, 2);
        assert_int_equal(bound.remembered, 1);
        /* 0.5 uses a second of 1 s each are stored, of 2 s each would be the best. */
        assert_true(bound.primal > 0.499 && bound.primal < 0.501);
        assert_true(bound.dual >= 0.9999 && bound.dual < 1.001);
        assert_true(bound.gap_counters > 0.49 && bound.gap_counters < 0.51);
        assert_true(bound.gap_solver < 1e-3);
        kvt_policy_close(policy);
    }
    assert_int_equal(memory.held_bytes, 0);
}

enum { MANY = 250000, MANY_FORMS = 7 };

static kvt_policy_entry many_offer(uint64_t handle, uint64_t *dice)
{
    return (kvt_policy_entry){.struct_size = sizeof(kvt_policy_entry),
                              .handle = handle,
                              .ladder = 1,
                              .recompute_seconds = (double)(1 + test_below(dice, 4000)) / 1024.0,
                              .sensitivity = (double)(1 + test_below(dice, 300)) / 128.0};
}

/* Some are stored, every second of them in other bytes than the ladder says; the rest is refused.
 */
static void many_fill(drawn *x)
{
    uint64_t dice = 5;
    for (uint64_t handle = 1; handle <= MANY; handle++) {
        kvt_move moves[PLAN_MOST];
        kvt_plan plan = {.moves = moves, .capacity = PLAN_MOST};
        kvt_policy_entry offer = many_offer(handle, &dice);
        (void)!kvt_policy_admit(x->policy, SECOND + handle, &offer, &plan);
        for (uint32_t i = 0; i < plan.count; i++) {
            uint64_t *to = moves[i].to_bytes;
            for (int tier = 1; tier < KVT_TIER_COUNT; tier++)
                if (to[tier] > 0 && handle % 2 == 0) to[tier]--;
            assert_ok(kvt_policy_commit(x->policy, moves[i].id, to));
        }
        double rate = 1e-3 / (1.0 + (double)test_below(&x->dice, 100000));
        assert_ok(kvt_policy_rate_set(x->policy, handle, rate));
    }
}

/* L at the reported prices. */
static long double many_bound(const drawn *x, const kvt_option options[MANY_FORMS + 1])
{
    long double sum = 0.0L;
    uint64_t dice = 5;
    for (uint64_t handle = 1; handle <= MANY; handle++) {
        const kvt_policy_entry offer = many_offer(handle, &dice);
        const known_entry e = {
            .share = 1.0, .recompute = offer.recompute_seconds, .sensitivity = offer.sensitivity};
        const entry *known = entry_at(x->policy, entries_find(x->policy, handle));
        double rate = reuse_rate(x->policy, known);
        long double best = 0.0L;
        for (uint32_t o = 1; o <= MANY_FORMS; o++) {
            long double score = drawn_value(x, &e, &options[o], rate);
            for (int tier = 0; tier < TIERS; tier++) {
                uint64_t bytes =
                    known->current == o ? known->bytes[tier] : options[o].bytes[tier + 1];
                score -= (long double)x->bound.price[tier + 1] * bytes;
            }
            if (score > best) best = score;
        }
        sum += best;
    }
    for (int tier = 0; tier < TIERS; tier++)
        sum += (long double)x->bound.price[tier + 1] * x->policy->capacity[tier];
    return sum;
}

/*
 * So many entries that prices are found on samples and a box of prices decides most of them: the
 * dual is L at its prices, nothing left out, and a placement comes close to it.
 */
TEST(all_of_many_entries_count)
{
    drawn *x = test_zeros(sizeof *x);
    x->memory.left = -1;
    x->dice = 11;
    kvt_policy_config config;
    kvt_policy_config_init(&config);
    config.alpha_seconds = x->alpha[0] = 2.0;
    config.ghosts_max = MANY;
    for (int tier = 1; tier < KVT_TIER_COUNT; tier++)
        config.tiers[tier].capacity_bytes = UINT64_C(1000000) << tier;
    config.allocator = test_allocator(&x->memory);
    x->policy = test_open(&config);
    policy_try_half_life(x->policy, 1000.0);
    kvt_option options[MANY_FORMS + 1] = {test_none(0.0)};
    for (uint32_t i = 1; i <= MANY_FORMS; i++) {
        options[i] = test_option((uint16_t)i, 1 + (int)(i % 3), 10 + 17 * i, 0.0);
        options[i].load_seconds = 0.05 * (i % 3) + 0.002 * i;
        options[i].loss = options[i].loss_upper = 0.08 * (MANY_FORMS - i);
    }
    uint32_t number;
    assert_ok(kvt_policy_ladder_add(x->policy, options, MANY_FORMS + 1, &number));
    assert_int_equal(number, 1);
    many_fill(x);
    assert_ok(dual_solve(x->policy, 2 * SECOND, NULL, &x->bound));
    assert_int_equal(x->bound.entries, MANY);
    assert_true(x->bound.remembered > MANY / 4 && x->bound.remembered < MANY);
    for (int tier = 0; tier < TIERS; tier++)
        assert_true(x->bound.price[tier + 1] > 0.0);
    long double least = many_bound(x, options);
    if (x->bound.dual < least || x->bound.dual > least * (1.0L + 1e-12L)) {
        fail_msg("dual %.17g, L is %.20Lg", x->bound.dual, least);
    }
    assert_true(x->bound.gap_solver <= 1e-4);
    drawn_close(x);
}

static void write_instance(const drawn *x, FILE *file)
{
    fprintf(file, "{\"dual\": %.17g, \"placed\": %.17g, \"points\": %s, \"capacity\": [",
            x->bound.dual, x->bound.placed, drawn_has_points(x) ? "true" : "false");
    for (int tier = 0; tier < TIERS; tier++)
        fprintf(file, "%s%llu", tier > 0 ? ", " : "",
                (unsigned long long)x->policy->capacity[tier]);
    fprintf(file, "], \"entries\": [");
    for (uint32_t i = 0; i < x->item_count; i++) {
        fprintf(file, "%s[", i > 0 ? ", " : "");
        for (uint32_t o = 0; o < x->items[i].count; o++) {
            const uint64_t *bytes = x->items[i].bytes[o];
            fprintf(file, "%s[%.17g, %llu, %llu, %llu]", o > 0 ? ", " : "",
                    (double)x->items[i].value[o], (unsigned long long)bytes[0],
                    (unsigned long long)bytes[1], (unsigned long long)bytes[2]);
        }
        fprintf(file, "]");
    }
    fprintf(file, "]}\n");
}

static int write_instances(const char *name, uint32_t count)
{
    drawn *x = test_alloc(sizeof *x);
    FILE *file = fopen(name, "w");
    if (x == NULL || file == NULL) return 1;
    for (uint32_t seed = 1; seed <= count; seed++) {
        uint32_t most = seed % 8 == 0 ? HANDLES_MOST : 40;
        uint64_t dice = seed * 977 + 3;
        drawn_make(x, 5 + (uint32_t)test_below(&dice, most - 4), 2 + seed % (OPTIONS_MOST - 2),
                   seed);
        (void)drawn_collect(x);
        write_instance(x, file);
        drawn_close(x);
    }
    return fclose(file);
}

int main(int argc, char **argv)
{
    if (argc == 3) return write_instances(argv[1], (uint32_t)strtoul(argv[2], NULL, 10));
    return tests_run();
}
