/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_replay_compare.c - drawn sessions, pairing, matching, blends, and a whole comparison.
 */
#include "cases.h"

#include "replay/compare.h"
#include "replay/workload.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define STEP_NS  UINT64_C(3000000000)
#define SESSIONS 8u
#define TURNS    4u

/* Eight sessions of four turns behind one stem block. Session s begins in step s, a turn per step;
 * its requests have s output tokens, which tells the copies' origin. */
static void trace_make(replay_workload *trace)
{
    workload_builder builder;
    workload_build_start(&builder, trace, 512);
    builder.keep_steps = true;
    for (uint32_t session = 0; session < SESSIONS; session++) {
        for (uint32_t turn = 0; turn < TURNS; turn++) {
            assert_int_equal(workload_build_request(&builder, (session + turn) * STEP_NS,
                                                    512 * (turn + 2), session,
                                                    session * TURNS + turn),
                             KVT_OK);
            assert_int_equal(workload_build_block(&builder, 7), KVT_OK);
            for (uint32_t block = 0; block <= turn; block++)
                assert_int_equal(workload_build_block(&builder, 100 + session * 10 + block),
                                 KVT_OK);
        }
    }
    assert_int_equal(workload_build_finish(&builder, 1, 0), KVT_OK);
    workload_build_free(&builder);
    assert_true(trace->grid_ns == STEP_NS);
}

static bool has_block(const replay_workload *workload, const replay_request *request, uint32_t id)
{
    for (uint32_t i = 0; i < request->block_count; i++)
        if (workload->blocks[request->first_block + i] == id) return true;
    return false;
}

static uint32_t shared_blocks(const replay_workload *workload, const replay_request *a,
                              const replay_request *b)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < a->block_count; i++)
        count += has_block(workload, b, workload->blocks[a->first_block + i]);
    return count;
}

TEST(copies_share_the_stem_alone)
{
    replay_workload trace, drawn;
    uint32_t sessions, twice = 0;
    trace_make(&trace);
    for (uint64_t seed = 1; seed <= 5; seed++) {
        assert_int_equal(replay_resample(&trace, seed, 0, &drawn, &sessions), KVT_OK);
        assert_int_equal(sessions, SESSIONS);
        assert_int_equal(drawn.request_count, SESSIONS * TURNS);
        assert_int_equal(drawn.distinct_blocks, 1 + SESSIONS * TURNS);
        for (uint64_t i = 0; i < drawn.request_count; i++) {
            for (uint64_t j = 0; j < i; j++) {
                const replay_request *a = &drawn.requests[j], *b = &drawn.requests[i];
                uint32_t shorter =
                    a->block_count < b->block_count ? a->block_count : b->block_count;
                bool same = a->session == b->session;
                twice += !same && a->output_tokens == b->output_tokens;
                assert_int_equal(shared_blocks(&drawn, a, b), same ? shorter : 1);
            }
        }
        replay_workload_free(&drawn);
    }
    assert_true(twice > 0); /* with replacement */
    replay_workload_free(&trace);
}

TEST(arrivals_stay_inside_their_step)
{
    replay_workload trace, drawn, other;
    uint32_t sessions;
    uint64_t off_grid = 0;
    trace_make(&trace);
    assert_int_equal(replay_resample(&trace, 3, 0, &drawn, &sessions), KVT_OK);
    for (uint64_t i = 0; i < drawn.request_count; i++) {
        const replay_request *request = &drawn.requests[i];
        /* Turn t of session s belongs to step s + t; a turn has t + 2 blocks. */
        uint64_t step = request->output_tokens + request->block_count - 2;
        assert_true(request->arrival_ns / STEP_NS == step);
        off_grid += request->arrival_ns % STEP_NS != 0;
    }
    assert_true(off_grid > drawn.request_count / 2);
    assert_int_equal(replay_resample(&trace, 3, 0, &other, &sessions), KVT_OK);
    assert_true(replay_workload_fingerprint(&drawn) == replay_workload_fingerprint(&other));
    replay_workload_free(&other);
    assert_int_equal(replay_resample(&trace, 4, 0, &other, &sessions), KVT_OK);
    assert_true(replay_workload_fingerprint(&drawn) != replay_workload_fingerprint(&other));
    replay_workload_free(&other);
    assert_int_equal(replay_resample(&trace, 4, 3, &other, &sessions), KVT_OK);
    assert_int_equal(sessions, 3);
    assert_int_equal(other.request_count, 3 * TURNS);
    replay_workload_free(&other);
    replay_workload_free(&drawn);
    replay_workload_free(&trace);
}

/* A conversation keeps its own clock from a start that is drawn; conversations share nothing, even
 * where most of them begin alike. */
TEST(conversations_start_anew)
{
    replay_workload trace, drawn;
    uint32_t sessions;
    trace_make(&trace);
    trace.conversations_per_s = 0.01;
    for (uint64_t i = 0; i < trace.request_count; i++)
        trace.requests[i].session = trace.requests[i].output_tokens;
    assert_int_equal(replay_resample(&trace, 9, 0, &drawn, &sessions), KVT_OK);
    assert_int_equal(drawn.distinct_blocks, SESSIONS * (1 + TURNS));
    uint64_t first_ns[SESSIONS], turns[SESSIONS] = {0};
    for (uint64_t i = 0; i < drawn.request_count; i++) {
        const replay_request *request = &drawn.requests[i];
        uint32_t session = request->session;
        if (turns[session] == 0) first_ns[session] = request->arrival_ns;
        assert_int_equal(request->arrival_ns - first_ns[session], turns[session] * STEP_NS);
        assert_int_equal(request->block_count, turns[session] + 2);
        turns[session]++;
    }
    for (uint32_t session = 0; session < SESSIONS; session++)
        assert_int_equal(turns[session], TURNS);
    replay_workload_free(&drawn);
    replay_workload_free(&trace);
}

/* Seeds differ a hundredfold, contenders by a tenth on each: only pairs show that. */
TEST(pairs_cancel_what_seeds_share)
{
    double theirs[20], ours[20];
    compare_interval difference, ratio;
    for (int i = 0; i < 20; i++) {
        theirs[i] = 0.1 * pow(1.3, i);
        ours[i] = 0.9 * theirs[i];
    }
    compare_bootstrap(theirs, ours, 20, &difference, &ratio);
    assert_true(fabs(ratio.low - 0.9) < 1e-12 && fabs(ratio.high - 0.9) < 1e-12);
    assert_true(difference.low > 0.0 && difference.high > difference.low);
    for (int i = 0; i < 20; i++)
        ours[i] = theirs[i] * (i % 2 == 0 ? 1.05 : 0.95);
    compare_bootstrap(theirs, ours, 20, &difference, &ratio);
    assert_true(ratio.low < 1.0 && ratio.high > 1.0);
    assert_true(difference.low < 0.0 && difference.high > 0.0);
}

static size_t sampled(compare_state *state, compare_role role, double sigma, double ttft,
                      double first_quality, double second_quality)
{
    compare_setup setup;
    size_t index;
    memset(&setup, 0, sizeof setup);
    setup.role = role;
    setup.spread.sigma = sigma;
    setup.alpha_s = (double)state->trial_count; /* each its own */
    assert_int_equal(compare_add(state, &setup, &index), KVT_OK);
    compare_sample *samples = state->trials[index].samples;
    /* The evaluation seeds contradict: a choice that looks at them is another one. */
    samples[0] = samples[1] =
        (compare_sample){.done = true, .stable = true, .quality = 1.0, .ttft_s = 10.0 - ttft};
    samples[2] =
        (compare_sample){.done = true, .stable = true, .ttft_s = ttft, .quality = first_quality};
    samples[3] =
        (compare_sample){.done = true, .stable = true, .ttft_s = ttft, .quality = second_quality};
    return index;
}

TEST(the_fastest_that_is_as_good_everywhere)
{
    const replay_compare plan = {.seeds = 2, .tuning_seeds = 2};
    compare_state compared = {.plan = &plan, .seed_count = 4};
    size_t floor = sampled(&compared, COMPARE_BASELINE, 0.7, 5.0, 0.90, 0.95);
    (void)sampled(&compared, COMPARE_OURS, 0.7, 1.0, 0.99, 0.94);
    size_t wanted = sampled(&compared, COMPARE_OURS, 0.7, 2.0, 0.90, 0.95);
    (void)sampled(&compared, COMPARE_OURS, 0.7, 3.0, 0.99, 0.99);
    (void)sampled(&compared, COMPARE_OURS, 0.2, 0.1, 0.99, 0.99);
    (void)sampled(&compared, COMPARE_OTHER, 0.7, 0.1, 0.99, 0.99);
    size_t crowded = sampled(&compared, COMPARE_OURS, 0.7, 0.2, 0.99, 0.99);
    compared.trials[crowded].samples[3].stable = false;
    assert_true(compare_pick(&compared, floor) == wanted);
    size_t high = sampled(&compared, COMPARE_BASELINE, 0.7, 5.0, 0.999, 0.999);
    assert_true(compare_pick(&compared, high) == COMPARE_NONE);
    compare_pool_free(&compared);
}

/* Each of these was matched when the next had not been tried yet. */
TEST(what_is_tried_later_counts_for_all)
{
    const replay_compare plan = {.seeds = 2, .tuning_seeds = 2};
    compare_state compared = {.plan = &plan, .seed_count = 4};
    size_t coarse = sampled(&compared, COMPARE_BASELINE, 0.7, 5.0, 0.90, 0.90);
    size_t exact = sampled(&compared, COMPARE_BASELINE, 0.7, 6.0, 1.0, 1.0);
    size_t slow = sampled(&compared, COMPARE_OURS, 0.7, 4.0, 0.99, 0.99);
    size_t crowded = sampled(&compared, COMPARE_BASELINE, 0.7, 1.0, 0.99, 0.99);
    compared.trials[crowded].samples[2].stable = false;
    size_t fast = sampled(&compared, COMPARE_OURS, 0.7, 3.0, 0.95, 0.95);
    compare_match list[] = {
        {.kind = REPLAY_ROW_BASELINE, .against = coarse, .ours = slow},
        {.kind = REPLAY_ROW_BASELINE, .against = exact, .ours = slow},
        {.kind = REPLAY_ROW_BASELINE, .against = crowded, .ours = slow},
    };
    compare_matches matches = {.list = list, .count = 3};
    compare_match_again(&compared, &matches);
    assert_true(list[0].ours == fast);
    assert_true(list[1].ours == slow); /* nothing else is as good: the one that stood in stays */
    assert_true(list[2].ours == slow); /* no mean, nothing to match */
    compare_pool_free(&compared);
}

/* Levels 1, 0.997 and 0.99 of a quick plan. */
TEST(the_fastest_rival_of_each_level)
{
    const replay_compare plan = {.seeds = 2, .tuning_seeds = 2, .quick = true};
    compare_state compared = {.plan = &plan, .seed_count = 4};
    compare_match list[6];
    memset(list, 0, sizeof list);
    list[0].against = sampled(&compared, COMPARE_BASELINE, 0.7, 5.0, 1.0, 1.0);
    list[1].against = sampled(&compared, COMPARE_BASELINE, 0.7, 4.0, 1.0, 1.0);
    list[2].against = sampled(&compared, COMPARE_BASELINE, 0.7, 3.0, 0.98, 1.0); /* 0.99 */
    list[3].against = sampled(&compared, COMPARE_BASELINE, 0.7, 1.0, 0.9, 0.9);
    list[4].against = sampled(&compared, COMPARE_BASELINE, 0.7, 0.5, 1.0, 1.0);
    compared.trials[list[4].against].samples[3].stable = false;
    list[5].against = sampled(&compared, COMPARE_MIX, 0.7, 0.5, 1.0, 1.0);
    list[5].kind = REPLAY_ROW_MIX;
    compare_matches matches = {.list = list, .count = 6};
    compare_mark_fastest(&compared, &matches);
    static const uint32_t wanted[6] = {0, 3, 4, 0, 0, 0};
    for (int i = 0; i < 6; i++)
        assert_int_equal(list[i].fastest_at, wanted[i]);
    compare_pool_free(&compared);
}

TEST(verdicts_need_quality_and_an_interval)
{
    const replay_compare plan = {.seeds = 2, .tuning_seeds = 2};
    compare_state compared = {.plan = &plan, .seed_count = 4};
    size_t slow = sampled(&compared, COMPARE_BASELINE, 0.7, 1.0, 1.0, 1.0); /* 9 s evaluated */
    size_t fast = sampled(&compared, COMPARE_OURS, 0.7, 5.0, 1.0, 1.0);     /* 5 s */
    replay_compare_row row = {.kind = REPLAY_ROW_BASELINE};
    compare_judge(&compared, slow, fast, &row);
    assert_int_equal(row.verdict, REPLAY_WIN);
    assert_true(fabs(row.saved_s - 4.0) < 1e-12 && fabs(row.ratio - 5.0 / 9.0) < 1e-12);
    compare_judge(&compared, fast, slow, &row);
    assert_int_equal(row.verdict, REPLAY_LOSE);
    compared.trials[fast].samples[1].quality = 0.99;
    compare_judge(&compared, slow, fast, &row);
    assert_int_equal(row.verdict, REPLAY_UNMATCHED);
    compared.trials[fast].samples[1].stable = false;
    compare_judge(&compared, slow, fast, &row);
    assert_int_equal(row.verdict, REPLAY_UNSTABLE);
    assert_int_equal(row.skipped, 1);
    compare_pool_free(&compared);
}

static kvt_codec_curve curve(const char *name, double bits, double loss)
{
    kvt_codec_curve made = {.stored_share = bits / 16.0,
                            .encode_bytes_per_s = 4e9,
                            .decode_bytes_per_s = 9e9,
                            .loss = loss,
                            .loss_upper = loss};
    assert_int_equal(kvt_variant_parse(name, &made.variant), KVT_OK);
    return made;
}

static void base_make(replay_options *base)
{
    char message[256];
    replay_options_init(base);
    base->servers = 4;
    base->block_tokens = 256;
    base->sensitivity = 0.7;
    base->repeatability = 0.6;
    base->model.variants[0] = curve("raw", 16.0, 0.0);
    base->model.variants[1] = curve("planes:k8v8,g64", 8.5, 0.001);
    base->model.variants[2] = curve("planes:k4v4,g64", 4.5, 0.011);
    base->model.variants[3] = curve("planes:k2v2,g64", 2.5, 0.066);
    base->model.variant_count = 4;
    base->tiers[KVT_TIER_DRAM].capacity_bytes = UINT64_C(3) << 30;
    base->tiers[KVT_TIER_SSD].capacity_bytes = UINT64_C(8) << 30;
    assert_int_equal(replay_options_check(base, message, sizeof message), KVT_OK);
}

static replay_generator small_generator(void)
{
    return (replay_generator){.requests_per_s = 1.0,
                              .requests = 250,
                              .contexts = 40,
                              .zipf = 0.8,
                              .tokens_median = 3000.0,
                              .tokens_sigma = 0.6,
                              .tokens_max = 8192,
                              .turns_mean = 2.0,
                              .turn_tokens = 300.0,
                              .think_seconds = 20.0,
                              .block_tokens = 256};
}

static void run(const replay_options *options, uint64_t seed, const char *policy,
                replay_result *result)
{
    char message[256];
    replay_workload workload;
    replay_generator generator = small_generator();
    replay_options seeded = *options;
    generator.seed = seeded.seed = seed;
    assert_int_equal(replay_workload_generate(&generator, &workload, message, sizeof message),
                     KVT_OK);
    assert_int_equal(replay_run_sim(&seeded, &workload, policy, result, message, sizeof message),
                     KVT_OK);
    replay_workload_free(&workload);
}

TEST(a_blend_offers_its_rungs_alone)
{
    replay_options base;
    replay_result raw, coarse, first, half;
    base_make(&base);
    base.alpha_seconds = 0.0;
    base.blend.set = true;
    run(&base, 5, "utility", &raw);
    assert_true(raw.quality_mean == 1.0 && raw.hit_token_ratio[0] > 0.05);
    for (int tier = 1; tier < KVT_TIER_COUNT; tier++) {
        base.blend.rung[tier][1] = 3;
        base.blend.share[tier] = 1.0;
    }
    run(&base, 5, "utility", &coarse);
    assert_true(coarse.quality_mean < 1.0 && coarse.hit_token_ratio[0] > raw.hit_token_ratio[0]);
    for (int tier = 1; tier < KVT_TIER_COUNT; tier++)
        base.blend.share[tier] = 0.5;
    run(&base, 5, "utility", &half);
    assert_true(half.quality_mean < 1.0 && half.quality_mean > coarse.quality_mean);
    for (int tier = 1; tier < KVT_TIER_COUNT; tier++) {
        base.blend.rung[tier][0] = 3;
        base.blend.share[tier] = 0.0;
    }
    run(&base, 5, "utility", &first);
    assert_true(first.plan_hash == coarse.plan_hash);
    assert_true(first.quality_mean == coarse.quality_mean);
}

static const replay_compare_row *find_row(const replay_compare_result *result, replay_row_kind kind,
                                          const char *against)
{
    for (size_t i = 0; i < result->row_count; i++) {
        const replay_compare_row *row = &result->rows[i];
        if (row->kind == kind && strcmp(row->against, against) == 0) return row;
    }
    fail_msg("no row against %s", against);
    return NULL;
}

static void compare_run_policies(const replay_options *base, const replay_generator *generator,
                                 uint32_t threads, const char *const *policies, size_t count,
                                 replay_compare_result *result)
{
    char message[256];
    replay_compare plan;
    replay_compare_init(&plan);
    plan.base = base;
    plan.generator = generator;
    plan.policies = policies;
    plan.policy_count = count;
    plan.quick = true;
    plan.seeds = 4;
    plan.tuning_seeds = 2;
    plan.threads = threads;
    plan.spreads[0] = plan.main;
    plan.spread_count = 1;
    assert_int_equal(replay_compare_run(&plan, result, message, sizeof message), KVT_OK);
}

static void compare_run(const replay_options *base, const replay_generator *generator,
                        uint32_t threads, replay_compare_result *result)
{
    static const char *const policies[] = {"none", "lru", "gdsf"};
    compare_run_policies(base, generator, threads, policies, 3, result);
}

/* The load is that of runs without a cache, `none` asked for or not. The rival that chooses forms
 * itself is held against exact forms with all of them to choose from. */
TEST(rivals_choose_among_exact_forms_too)
{
    static const char *const policies[] = {"adaptcache"};
    replay_options base;
    replay_compare_result result;
    const replay_generator generator = small_generator();
    base_make(&base);
    base.model.variants[base.model.variant_count++] = curve("lossless", 10.6, 0.0);
    base.seed = 30;
    compare_run_policies(&base, &generator, 1, policies, 1, &result);
    double low = 1e9, high = 0.0, theirs = 0.0;
    for (uint64_t seed = 30; seed < 34; seed++) {
        replay_result one;
        replay_options exact = base;
        run(&base, seed, "none", &one);
        low = one.rho < low ? one.rho : low;
        high = one.rho > high ? one.rho : high;
        exact.loss_limit = 0.0;
        run(&exact, seed, "adaptcache", &one);
        assert_true(one.quality_mean == 1.0);
        theirs += one.times.ttft_mean / 4.0;
    }
    assert_true(low > 0.0 && high > low);
    assert_true(fabs(result.rho_none_low - low) < 1e-12);
    assert_true(fabs(result.rho_none_high - high) < 1e-12);
    const replay_compare_row *row =
        find_row(&result, REPLAY_ROW_BASELINE, "adaptcache exact forms");
    assert_string_equal(row->ours, "utility exact forms");
    assert_true(row->quality == 1.0 && fabs(row->ttft_s - theirs) < 1e-9);
    (void)find_row(&result, REPLAY_ROW_FOOTPRINT, "adaptcache exact forms");
    replay_compare_free(&result);
    replay_options_free(&base);
}

TEST(all_see_the_same_workloads)
{
    replay_options base;
    replay_compare_result result, again;
    const replay_generator generator = small_generator();
    base_make(&base);
    base.seed = 30;
    compare_run(&base, &generator, 1, &result);
    compare_run(&base, &generator, 3, &again);
    assert_int_equal(result.row_count, again.row_count);
    for (size_t i = 0; i < result.row_count; i++) {
        assert_string_equal(result.rows[i].against, again.rows[i].against);
        assert_string_equal(result.rows[i].ours, again.rows[i].ours);
        assert_true(result.rows[i].ratio == again.rows[i].ratio);
        assert_true(result.rows[i].ratio_high == again.rows[i].ratio_high);
    }
    /* A baseline's figure and ours are those of single runs on seeds 30 to 33. */
    double theirs = 0.0, ours = 0.0;
    for (uint64_t seed = 30; seed < 34; seed++) {
        replay_result one;
        run(&base, seed, "gdsf", &one);
        theirs += one.times.ttft_mean / 4.0;
        replay_options exact = base;
        exact.loss_limit = 0.0;
        run(&exact, seed, "utility", &one);
        ours += one.times.ttft_mean / 4.0;
    }
    const replay_compare_row *row = find_row(&result, REPLAY_ROW_BASELINE, "gdsf raw");
    assert_string_equal(row->ours, "utility exact forms");
    assert_true(fabs(row->ttft_s - theirs) < 1e-9 && fabs(row->our_ttft_s - ours) < 1e-9);
    assert_true(row->quality == 1.0 && row->our_quality == 1.0);
    row = find_row(&result, REPLAY_ROW_BASELINE, "lru planes:k2v2,g64");
    assert_true(row->quality < 0.999 && strcmp(row->ours, "utility exact forms") != 0);
    assert_int_equal(find_row(&result, REPLAY_ROW_BASELINE, "none")->verdict, REPLAY_WIN);
    (void)find_row(&result, REPLAY_ROW_FOOTPRINT, "lru raw");
    replay_compare_free(&again);
    replay_compare_free(&result);
    replay_options_free(&base);
}

TEST(mixes_reach_their_levels)
{
    replay_options base;
    replay_compare_result result;
    const replay_generator generator = small_generator();
    size_t mixes = 0;
    base_make(&base);
    compare_run(&base, &generator, 1, &result);
    for (size_t i = 0; i < result.row_count; i++) {
        const replay_compare_row *row = &result.rows[i];
        if (row->kind != REPLAY_ROW_MIX) continue;
        mixes++;
        /* Chosen on other seeds: near its level, not at it. */
        assert_true(row->quality > row->level - 0.5 * (1.0 - row->level) - 1e-9);
    }
    assert_int_equal(mixes, 3);
    replay_compare_free(&result);
    replay_options_free(&base);
}

TEST(nonsense_is_refused)
{
    replay_options base;
    replay_compare plan;
    replay_compare_result result;
    char message[256];
    const replay_generator generator = small_generator();
    const char *const policies[] = {"lru"};
    base_make(&base);
    replay_compare_init(&plan);
    plan.base = &base;
    plan.generator = &generator;
    plan.policies = policies;
    assert_int_equal(replay_compare_run(&plan, &result, message, sizeof message), KVT_E_CONFIG);
    plan.policy_count = 1;
    plan.seeds = 1;
    assert_int_equal(replay_compare_run(&plan, &result, message, sizeof message), KVT_E_CONFIG);
    plan.seeds = 2;
    base.model.variant_count = 1;
    assert_int_equal(replay_compare_run(&plan, &result, message, sizeof message), KVT_E_CONFIG);
    assert_non_null(strstr(message, "replay.ladder"));
    replay_options_free(&base);
}
