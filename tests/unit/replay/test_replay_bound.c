/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_replay_bound.c - the interval bound against a second computation of the same linear program,
 * against Belady, and against what every policy achieves; the regrets of runs.
 */
#include "cases.h"

#include "replay/bound.h"
#include "replay/replay.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ITEMS_MAX 256

/* 1 ms per token, growing with the prefix; blocks of 100 tokens of 1000 bytes: 102,400 bytes. */
/* The record of a block of 100 tokens of 1,000 bytes. */
#define HEAD_BYTES 12288.0
#define RAW_BYTES  114688.0

static void model_init(replay_options *options)
{
    replay_options_init(options);
    options->servers = 2;
    options->bytes_per_token = 1000;
    options->alpha_seconds = 0.2;
    options->half_life_seconds = 20.0;
    options->model.prefill = (kvt_prefill){
        .linear_seconds_per_token = 1e-3, .square_seconds_per_token2 = 1e-7, .fixed_seconds = 0.01};
    options->tick_seconds = 1.0;
}

static void model_add_tier(replay_options *options, int tier, double blocks, double bytes_per_s)
{
    char message[256];
    options->tiers[tier] = (replay_tier){.capacity_bytes = (uint64_t)(blocks * RAW_BYTES),
                                         .read = {1e-4, bytes_per_s, 0.0},
                                         .write = {1e-4, bytes_per_s, 0.0}};
    assert_ok(replay_options_check(options, message, sizeof message));
}

static void model_add_ladder(replay_options *options)
{
    static const char *const names[] = {"planes:k4v4,g64", "planes:k2v2,g64", "kivi:k4v4,g32"};
    static const double share[] = {0.5, 0.25, 0.3}, loss[] = {0.01, 0.2, 0.05};
    kvt_cost_model *model = &options->model;
    model->variant_count = 4;
    for (int i = 0; i < 3; i++) {
        kvt_codec_curve *curve = &model->variants[i + 1];
        assert_ok(kvt_variant_parse(names[i], &curve->variant));
        curve->stored_share = share[i];
        curve->loss = curve->loss_upper = loss[i];
        curve->encode_bytes_per_s = curve->decode_bytes_per_s = 1e8;
    }
}

static void workload_generate(replay_workload *workload, uint64_t seed, uint64_t requests)
{
    char message[256];
    replay_generator generator = {.requests_per_s = 2.0,
                                  .requests = requests,
                                  .contexts = 30,
                                  .zipf = 0.8,
                                  .tokens_median = 900.0,
                                  .tokens_sigma = 0.7,
                                  .tokens_max = 5000,
                                  .turns_mean = 3.0,
                                  .turn_tokens = 150.0,
                                  .think_seconds = 8.0,
                                  .block_tokens = 100,
                                  .seed = seed};
    assert_ok(replay_workload_generate(&generator, workload, message, sizeof message));
}

static replay_bound bound_of(const replay_options *options, const replay_workload *workload)
{
    replay_bound bound;
    assert_ok(replay_bound_find(options, workload, &bound));
    assert_true(bound.known);
    assert_true(bound.interval_s <= bound.moving_s * (1.0 + 1e-6));
    assert_true(bound.moving_s <= bound.ideal_s * (1.0 + 1e-6));
    assert_true(bound.ideal_s <= bound.recompute_s);
    return bound;
}

/* ---- a second computation: one tier, so the best price is one at which two choices tie ---- */

typedef struct item {
    double value[4], bytes_seconds[4]; /* [0] nothing */
} item;

/* The items of a workload in which every block is whole, from the definition alone. */
static int collect(const replay_options *options, const replay_workload *workload, item *items)
{
    static const double share[] = {1.0, 0.5, 0.25}, loss[] = {0.0, 0.01, 0.2};
    int count = 0;
    for (uint64_t i = 0; i < workload->request_count; i++) {
        const replay_request *request = &workload->requests[i];
        uint64_t last[64];
        uint32_t run = 0;
        for (; run < request->block_count; run++) {
            uint32_t block = workload->blocks[request->first_block + run];
            last[run] = UINT64_MAX;
            for (uint64_t k = 0; k < i; k++) {
                const replay_request *earlier = &workload->requests[k];
                for (uint32_t j = 0; j < earlier->block_count; j++)
                    if (workload->blocks[earlier->first_block + j] == block) last[run] = k;
            }
            if (last[run] == UINT64_MAX) break;
        }
        for (uint32_t j = 0; j < run; j++) {
            assert_true(count < ITEMS_MAX);
            item *one = &items[count++];
            *one = (item){.value = {0.0}};
            double held_s =
                (double)(request->arrival_ns - workload->requests[last[j]].arrival_ns) * 1e-9;
            double from = 100.0 * j, to = from + 100.0;
            double saved = 1e-3 * 100.0 + 1e-7 * (to * to - from * from);
            double end = (double)request->input_tokens;
            if (to >= end) saved -= 1e-3 + 1e-7 * (end * end - (end - 1.0) * (end - 1.0));
            for (int o = 0; o < 3; o++) {
                double exact = fmin(1e5 * share[o] + HEAD_BYTES, RAW_BYTES);
                double bytes = ceil(exact / 4096.0) * 4096.0; /* whole grains */
                if (o == 0) bytes = RAW_BYTES;
                if (bytes > (double)options->tiers[KVT_TIER_DRAM].capacity_bytes) continue;
                double decode = o == 0 ? 0.0 : 1e5 / 1e8;
                double load = 1e-4 + bytes / options->tiers[KVT_TIER_DRAM].read.bytes_per_s;
                one->value[o + 1] =
                    saved - load - decode - options->alpha_seconds * loss[o] / (double)run;
                one->bytes_seconds[o + 1] = bytes * held_s;
            }
        }
    }
    return count;
}

static double dual_at(const item *items, int count, double room, double price)
{
    double sum = price * room;
    for (int i = 0; i < count; i++) {
        double best = 0.0;
        for (int o = 1; o < 4; o++)
            best = fmax(best, items[i].value[o] - price * items[i].bytes_seconds[o]);
        sum += best;
    }
    return sum;
}

static double dual_by_ties(const item *items, int count, double room)
{
    double best = dual_at(items, count, room, 0.0);
    for (int i = 0; i < count; i++) {
        for (int a = 0; a < 4; a++) {
            for (int b = 0; b < a; b++) {
                double bytes = items[i].bytes_seconds[a] - items[i].bytes_seconds[b];
                double price = (items[i].value[a] - items[i].value[b]) / bytes;
                if (price > 0.0) best = fmin(best, dual_at(items, count, room, price));
            }
        }
    }
    return best;
}

/* Requests over a few paths that share their first blocks: block = path * 8 + position, position 0
 * and 1 common to all. */
static void workload_draw(replay_workload *workload, uint64_t seed, uint32_t requests)
{
    memset(workload, 0, sizeof *workload);
    workload->block_tokens = 100;
    workload->request_count = requests;
    workload->requests = calloc(requests, sizeof *workload->requests);
    workload->blocks = calloc((size_t)requests * 8, sizeof *workload->blocks);
    assert_true(workload->requests != NULL && workload->blocks != NULL);
    workload->distinct_blocks = 64;
    workload->longest_prefix = 8;
    uint64_t state = seed * 2654435761u + 1, at_ns = 0;
    for (uint32_t i = 0; i < requests; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        uint32_t draw = (uint32_t)(state >> 33);
        replay_request *request = &workload->requests[i];
        at_ns += (uint64_t)(draw % 7000) * 1000000u;
        request->arrival_ns = at_ns;
        request->first_block = workload->block_refs;
        request->block_count = 1 + draw / 7000 % 8;
        request->input_tokens = request->block_count * 100 + (draw >> 20) % 2 * 50;
        for (uint32_t j = 0; j < request->block_count; j++)
            workload->blocks[workload->block_refs++] = (j < 2 ? 0 : draw / 56000 % 8) * 8 + j;
        workload->input_tokens += request->input_tokens;
    }
}

TEST(few_intervals_are_solved_exactly)
{
    int bound_by_room = 0;
    for (uint64_t seed = 1; seed <= 40; seed++) {
        replay_options options;
        replay_workload workload;
        item items[ITEMS_MAX];
        model_init(&options);
        model_add_tier(&options, KVT_TIER_DRAM, 0.5 + (double)(seed % 8) * 0.4, 1e8);
        model_add_ladder(&options);
        options.model.variant_count = 3;
        workload_draw(&workload, seed, 20);
        int count = collect(&options, &workload, items);
        double horizon =
            (double)(workload.requests[19].arrival_ns - workload.requests[0].arrival_ns) * 1e-9;
        double room = (double)options.tiers[KVT_TIER_DRAM].capacity_bytes * horizon;
        double wanted = dual_by_ties(items, count, room) / 20.0;
        replay_bound bound = bound_of(&options, &workload);
        assert_int_equal(bound.intervals, count);
        if (fabs(bound.interval_s - wanted) > 2e-6 * wanted) {
            fail_msg("seed %d: %.9f, wanted %.9f", (int)seed, bound.interval_s, wanted);
        }
        assert_true(fabs(bound.ideal_s - dual_at(items, count, 0.0, 0.0) / 20.0) < 1e-6);
        bound_by_room += wanted < 0.99 * bound.ideal_s;
        replay_workload_free(&workload);
    }
    assert_true(bound_by_room >= 10);
}

/* One block a request: every hit saves the same, so Belady's hits times that is what an optimal
 * policy saves. */
TEST(belady_stays_below)
{
    for (uint64_t seed = 1; seed <= 8; seed++) {
        replay_options options;
        replay_workload workload;
        double before = 0.0;
        workload_draw(&workload, seed, 400);
        for (uint64_t i = 0; i < 400; i++) {
            workload.blocks[i] = workload.blocks[workload.requests[i].first_block +
                                                 workload.requests[i].block_count - 1];
            workload.requests[i].first_block = i;
            workload.requests[i].block_count = 1;
            workload.requests[i].input_tokens = 150;
        }
        workload.block_refs = 400;
        for (uint64_t blocks = 1; blocks <= 64; blocks *= 2) {
            model_init(&options);
            model_add_tier(&options, KVT_TIER_DRAM, (double)blocks, 1e8);
            replay_bound bound = bound_of(&options, &workload);
            double hit = 1e-3 * 100.0 + 1e-7 * 1e4 - 1e-4 - RAW_BYTES / 1e8;
            double belady = replay_belady(&workload, blocks);
            assert_true(fabs(bound.belady_block_ratio - belady) < 1e-12);
            assert_true(bound.interval_s >= belady * hit * (1.0 - 1e-6));
            assert_true(bound.interval_s >= before * (1.0 - 1e-6));
            before = bound.interval_s;
            if (blocks == 64) assert_true(fabs(bound.interval_s - belady * hit) < 1e-6);
        }
        replay_workload_free(&workload);
    }
}

/* ---- runs ---- */

static void run_is_bounded(const replay_options *options, const replay_workload *workload,
                           const char *policy, const replay_bound *bound)
{
    replay_result result;
    char message[256];
    if (replay_run_sim(options, workload, policy, &result, message, sizeof message) != KVT_OK) {
        fail_msg("%s: %s", policy, message);
    }
    double cost = result.times.service_mean + options->alpha_seconds * (1.0 - result.quality_mean);
    /* By prefills each request has a price of its own, and the means do not say what they lost. */
    if (options->alpha_seconds > 0.0 && fabs(bound->recompute_s - cost - result.saved_s) > 1e-6) {
        fail_msg("%s: saved %.9f, cost %.9f of %.9f", policy, result.saved_s, cost,
                 bound->recompute_s);
    }
    double tolerance = 1e-6 * bound->ideal_s;
    if (result.saved_s > bound->moving_s + tolerance ||
        result.saved_s > bound->interval_s + tolerance) {
        fail_msg("%s, seed %d: saved %.6f, bounds %.6f and %.6f", policy, (int)options->seed,
                 result.saved_s, bound->interval_s, bound->moving_s);
    }
    if (!(result.regret_foresight_s >= -tolerance)) {
        fail_msg("%s: foresight %.9f", policy, result.regret_foresight_s);
    }
    if (result.regret_solver_s < 0.0 || result.regret_counters_s < result.regret_solver_s) {
        fail_msg("%s: solver %.9f, counters %.9f", policy, result.regret_solver_s,
                 result.regret_counters_s);
    }
    assert_true(isnan(result.gap_counters) || result.gap_counters < 1.0);
    bool solved = !isnan(result.regret_solver_s);
    if (strcmp(policy, "utility") == 0) assert_true(solved);
    if (strcmp(policy, "lru") == 0) assert_false(solved);
}

/* Every policy, by seed another host: tiers, forms, spread, warm-up, partial blocks, overlap. */
TEST(no_policy_passes_the_bound)
{
    for (uint64_t seed = 1; seed <= 8; seed++) {
        replay_options options;
        replay_workload workload;
        workload_generate(&workload, seed, 300);
        model_init(&options);
        options.seed = seed;
        if (seed % 2 == 0) options.alpha_seconds = 0.0; /* 10 prefills */
        options.warmup = seed % 3 == 0 ? 0.2 : 0.0;
        options.partial_exact = seed % 2 == 0;
        options.overlap = seed % 5 == 0;
        options.holes = seed % 4 == 0 ? KVT_HOLES_MIXED : KVT_HOLES_CONTIGUOUS;
        if (seed % 4 != 1) {
            options.sensitivity = 0.7;
            options.repeatability = 0.6;
            model_add_ladder(&options);
        }
        if (seed % 3 == 1) model_add_tier(&options, KVT_TIER_HBM, 10.0, 1e10);
        model_add_tier(&options, KVT_TIER_DRAM, 5.0 * (double)seed, 1e9);
        if (seed % 3 != 2) model_add_tier(&options, KVT_TIER_SSD, 10.0 * (double)seed, 1e7);
        replay_bound bound = bound_of(&options, &workload);
        const char *policy;
        for (size_t i = 0; (policy = kvt_policy_name_get(i)) != NULL; i++)
            run_is_bounded(&options, &workload, policy, &bound);
        run_is_bounded(&options, &workload, REPLAY_ORACLE, &bound);
        replay_workload_free(&workload);
    }
}

static replay_result run(const replay_options *options, const replay_workload *workload,
                         const char *policy)
{
    replay_result result;
    char message[256];
    assert_ok(replay_run_sim(options, workload, policy, &result, message, sizeof message));
    return result;
}

/* What is known of the future is worth something, and is no more than the future. */
TEST(an_oracle_saves_more)
{
    double oracle = 0.0, utility = 0.0;
    for (uint64_t seed = 1; seed <= 6; seed++) {
        replay_options options;
        replay_workload workload;
        workload_generate(&workload, seed, 600);
        model_init(&options);
        model_add_ladder(&options);
        model_add_tier(&options, KVT_TIER_DRAM, 20.0, 1e9);
        model_add_tier(&options, KVT_TIER_SSD, 40.0, 1e8);
        options.bounds = false;
        oracle += run(&options, &workload, REPLAY_ORACLE).saved_s;
        utility += run(&options, &workload, "utility").saved_s;
        replay_workload_free(&workload);
    }
    print_message("oracle saves %.4f s, utility %.4f s\n", oracle / 6.0, utility / 6.0);
    assert_true(oracle > 1.05 * utility);
}

TEST(looking_changes_nothing)
{
    replay_options options;
    replay_workload workload;
    workload_generate(&workload, 5, 800);
    model_init(&options);
    model_add_ladder(&options);
    model_add_tier(&options, KVT_TIER_DRAM, 60.0, 1e9);
    model_add_tier(&options, KVT_TIER_SSD, 60.0, 1e8);
    replay_result with = run(&options, &workload, "utility");
    options.bounds = false;
    replay_result without = run(&options, &workload, "utility");
    assert_true(with.plan_hash == without.plan_hash && with.moves > 0);
    assert_true(fabs(with.saved_s - without.saved_s) < 1e-12);
    assert_true(isnan(without.regret_solver_s) && isnan(without.regret_foresight_s));
    replay_workload_free(&workload);
}

/* With room for everything in the better tier nothing is left to regret; with none, all of it. */
TEST(regrets_vanish_with_room)
{
    replay_options options;
    replay_workload workload;
    workload_generate(&workload, 6, 800);
    model_init(&options);
    options.warmup = 0.3;
    options.put_staging_bytes = 0;
    model_add_tier(&options, KVT_TIER_DRAM, 20000.0, 1e9);
    replay_bound bound = bound_of(&options, &workload);
    assert_true(fabs(bound.interval_s - bound.ideal_s) < 1e-9);
    replay_result lru = run(&options, &workload, "lru");
    /* But for blocks that were still being computed when somebody wanted them. */
    print_message("foresight %.6f, online %.6f of %.6f\n", lru.regret_foresight_s,
                  bound.interval_s - lru.saved_s, bound.ideal_s);
    assert_true(lru.regret_foresight_s < 0.01 * bound.ideal_s);
    assert_true(bound.interval_s - lru.saved_s < 0.05 * bound.ideal_s);
    replay_result none = run(&options, &workload, "none");
    assert_true(fabs(none.saved_s) < 1e-9);
    assert_true(none.regret_foresight_s > 0.3 * bound.ideal_s);
    replay_workload_free(&workload);
}
