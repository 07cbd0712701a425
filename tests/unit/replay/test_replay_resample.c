/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_replay_resample.c - sessions that are drawn from a trace, and blends of variants.
 */
#include "cases.h"

#include "replay/replay.h"
#include "replay/workload.h"

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
            assert_ok(workload_build_request(&builder, (session + turn) * STEP_NS, 512 * (turn + 2),
                                             session, session * TURNS + turn));
            assert_ok(workload_build_block(&builder, 7));
            for (uint32_t block = 0; block <= turn; block++)
                assert_ok(workload_build_block(&builder, 100 + session * 10 + block));
        }
    }
    assert_ok(workload_build_finish(&builder, 1, 0));
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
    uint32_t twice = 0;
    trace_make(&trace);
    for (uint64_t seed = 1; seed <= 5; seed++) {
        assert_ok(replay_resample(&trace, seed, 0, &drawn));
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
    uint64_t off_grid = 0;
    trace_make(&trace);
    assert_ok(replay_resample(&trace, 3, 0, &drawn));
    for (uint64_t i = 0; i < drawn.request_count; i++) {
        const replay_request *request = &drawn.requests[i];
        /* Turn t of session s belongs to step s + t; a turn has t + 2 blocks. */
        uint64_t step = request->output_tokens + request->block_count - 2;
        assert_true(request->arrival_ns / STEP_NS == step);
        off_grid += request->arrival_ns % STEP_NS != 0;
    }
    assert_true(off_grid > drawn.request_count / 2);
    assert_ok(replay_resample(&trace, 3, 0, &other));
    assert_true(replay_workload_fingerprint(&drawn) == replay_workload_fingerprint(&other));
    replay_workload_free(&other);
    assert_ok(replay_resample(&trace, 4, 0, &other));
    assert_true(replay_workload_fingerprint(&drawn) != replay_workload_fingerprint(&other));
    replay_workload_free(&other);
    assert_ok(replay_resample(&trace, 4, 3, &other));
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
    trace_make(&trace);
    trace.conversations_per_s = 0.01;
    for (uint64_t i = 0; i < trace.request_count; i++)
        trace.requests[i].session = trace.requests[i].output_tokens;
    assert_ok(replay_resample(&trace, 9, 0, &drawn));
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

static kvt_codec_curve curve(const char *name, double bits, double loss)
{
    kvt_codec_curve made = {.stored_share = bits / 16.0,
                            .encode_bytes_per_s = 4e9,
                            .decode_bytes_per_s = 9e9,
                            .loss = loss,
                            .loss_upper = loss};
    assert_ok(kvt_variant_parse(name, &made.variant));
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
    assert_ok(replay_options_check(base, message, sizeof message));
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
    assert_ok(replay_workload_generate(&generator, &workload, message, sizeof message));
    assert_ok(replay_run_sim(&seeded, &workload, policy, result, message, sizeof message));
    replay_workload_free(&workload);
}

TEST(a_blend_offers_its_rungs_alone)
{
    replay_options base;
    replay_result raw, coarse, first, half;
    base_make(&base);
    base.alpha_prefills = 0.0;
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

TEST(mixes_are_read_or_refused)
{
    static const char *const wrong[] = {"",           "dram",         "dram=4",    "dram=x",
                                        "none=0",     "dram=0/1",     "dram=0/1@", "dram=0/4@0.5",
                                        "dram=0/1@2", "dram=0,",      "dram=0 ",   "d=0",
                                        "drams=0",    "dram=0,tape=1"};
    replay_options base;
    char message[256];
    base_make(&base);
    assert_ok(replay_mix_read("dram=2,ssd=1/3@0.25", &base, message, sizeof message));
    assert_true(base.blend.set && base.blend.rung[KVT_TIER_DRAM][0] == 2);
    assert_true(base.blend.rung[KVT_TIER_SSD][0] == 1 && base.blend.rung[KVT_TIER_SSD][1] == 3);
    assert_true(base.blend.share[KVT_TIER_SSD] == 0.25 && base.blend.share[KVT_TIER_DRAM] == 0.0);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_int_equal(replay_mix_read(wrong[i], &base, message, sizeof message), KVT_E_CONFIG);
    assert_non_null(strstr(message, "a ladder of 4"));
    replay_options_free(&base);
}
