/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_replay_simulator.c - the simulator against times worked out by hand.
 *
 * The model of these tests: prefill takes 1 ms per token and 100 ms per request; a block has 100
 * tokens of 1000 bytes, so a raw block is 100,000 bytes, stored as 102,400 (whole 4 KiB grains).
 */
#include "cases.h"

#include "replay/replay.h"
#include "tiers/pool/slack_log.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A block of 100 tokens of 1,000 bytes: 50 matrices in whole 64 bytes behind 12 KiB of header. */
#define STORED_BYTES 114688.0

static void model_init(replay_options *options)
{
    replay_options_init(options);
    options->servers = 1;
    options->bytes_per_token = 1000;
    options->model.prefill = (kvt_prefill){.linear_seconds_per_token = 1e-3, .fixed_seconds = 0.1};
    options->tick_seconds = 1.0;
    options->copy_bytes_per_s = 1e18; /* puts take no time, and are not bounded */
    options->put_staging_bytes = 0;
    options->put_backlog_seconds = 0.0;
}

static void model_add_tier(replay_options *options, int tier, uint64_t blocks, double bytes_per_s,
                           double request_seconds)
{
    char message[256];
    options->tiers[tier] =
        (replay_tier){.capacity_bytes = blocks * (uint64_t)STORED_BYTES,
                      .read = {.request_seconds = request_seconds, .bytes_per_s = bytes_per_s},
                      .write = {.request_seconds = request_seconds, .bytes_per_s = bytes_per_s}};
    assert_ok(replay_options_check(options, message, sizeof message));
}

typedef struct plain_request {
    double arrival_s;
    uint32_t tokens;
    uint32_t first_block; /* ids first_block .. */
} plain_request;

static void workload_make(replay_workload *workload, const plain_request *plain, uint64_t count)
{
    memset(workload, 0, sizeof *workload);
    workload->block_tokens = 100;
    workload->request_count = count;
    workload->requests = calloc(count, sizeof *workload->requests);
    workload->blocks = calloc(count * 64, sizeof *workload->blocks);
    assert_true(workload->requests != NULL && workload->blocks != NULL);
    for (uint64_t i = 0; i < count; i++) {
        replay_request *request = &workload->requests[i];
        request->arrival_ns = (uint64_t)(plain[i].arrival_s * 1e9);
        request->input_tokens = plain[i].tokens;
        request->block_count = (plain[i].tokens + 99) / 100;
        request->first_block = workload->block_refs;
        for (uint32_t j = 0; j < request->block_count; j++) {
            uint32_t id = plain[i].first_block + j;
            if (id >= workload->distinct_blocks) workload->distinct_blocks = id + 1;
            workload->blocks[workload->block_refs++] = id;
        }
        if (request->block_count > workload->longest_prefix) {
            workload->longest_prefix = request->block_count;
        }
        workload->input_tokens += plain[i].tokens;
    }
    workload->repeated_refs = workload->block_refs - workload->distinct_blocks;
}

static void simulate(const replay_options *options, const plain_request *plain, uint64_t count,
                     const char *policy, replay_result *result)
{
    replay_workload workload;
    char message[256];
    workload_make(&workload, plain, count);
    kvt_status status = replay_run_sim(options, &workload, policy, result, message, sizeof message);
    if (status != KVT_OK) fail_msg("%s", message);
    replay_workload_free(&workload);
}

/* Nanosecond rounding is the only difference allowed. */
static void expect_seconds(double value, double wanted)
{
    double difference = value - wanted;
    if (difference < -1e-6 || difference > 1e-6) fail_msg("%.9f, wanted %.9f", value, wanted);
}

TEST(queue_is_first_in_first_out)
{
    replay_options options;
    replay_result result;
    model_init(&options);
    /* Services of 1.1 s, 0.4 s and 0.2 s on one server: waits 0, 0.6, 0.8. */
    const plain_request plain[] = {{0.0, 1000, 0}, {0.5, 300, 20}, {0.7, 100, 30}};
    simulate(&options, plain, 3, "none", &result);
    expect_seconds(result.times.wait_mean, (0.0 + 0.6 + 0.8) / 3);
    expect_seconds(result.times.service_mean, (1.1 + 0.4 + 0.2) / 3);
    expect_seconds(result.times.ttft_p50, 1.0);
    expect_seconds(result.times.ttft_p99, 1.1);
    expect_seconds(result.times.blocked_mean, 0.0);
    expect_seconds(result.rho, 1.7 / 0.7);
    assert_true(result.hit_block_ratio[0] == 0.0);

    options.servers = 3;
    simulate(&options, plain, 3, "none", &result);
    expect_seconds(result.times.wait_mean, 0.0);
    expect_seconds(result.rho, 1.7 / 0.7 / 3);
}

TEST(a_hit_is_loaded_and_the_last_token_computed)
{
    replay_options options;
    replay_result result;
    model_init(&options);
    model_add_tier(&options, KVT_TIER_DRAM, 44, 1e7, 1e-3);
    const plain_request plain[] = {{0.0, 1000, 0}, {10.0, 1000, 0}};
    simulate(&options, plain, 2, "lru", &result);
    double load = 10 * (1e-3 + STORED_BYTES / 1e7);
    expect_seconds(result.times.ttft_p99, 1.1);
    expect_seconds(result.times.ttft_p50, load + 1e-3 + 0.1);
    expect_seconds(result.times.blocked_mean, load / 2);
    expect_seconds(result.hit_block_ratio[KVT_TIER_DRAM], 0.5);
    expect_seconds(result.hit_token_ratio[KVT_TIER_DRAM], 0.5);
    expect_seconds(result.used_token_ratio, 0.5);
    assert_int_equal(result.bytes_read[KVT_TIER_DRAM], 10 * 114688);
    assert_int_equal(result.bytes_written[KVT_TIER_DRAM], 10 * 114688);
    assert_int_equal(result.puts, 10);

    /* Layer-wise overlap hides the shorter of the two: here the one computed token. */
    options.overlap = true;
    simulate(&options, plain, 2, "lru", &result);
    /* The best head then balances load and prefill: 9 blocks load in 0.10116, 100 tokens compute
     * in 0.1; 10 blocks load in 0.1124. */
    expect_seconds(result.times.ttft_p50, 9 * (1e-3 + STORED_BYTES / 1e7) + 0.1);
}

/* A pipeline of layers: what the first layer loads, and what the last one computes, is hidden by
 * nothing. Ten blocks of which a hit loads nine at once, or all ten less the last token. */
TEST(layers_are_a_pipeline)
{
    replay_options options;
    replay_result result;
    model_init(&options);
    model_add_tier(&options, KVT_TIER_DRAM, 44, STORED_BYTES / 0.02, 0.0);
    options.overlap = true;
    options.layers = 4;
    /* 20 ms a block: n blocks load in 0.02 n, the other tokens compute in 0.1 (10 - n). Whole loads
     * would take 0.2 + 0.001. The pipeline takes 0.18 + 0.1 / 4 with nine blocks; ten take
     * 0.2 + 0.001 / 4, which is less. */
    const plain_request plain[] = {{0.0, 1000, 0}, {10.0, 1000, 0}};
    simulate(&options, plain, 2, "lru", &result);
    expect_seconds(result.times.ttft_p50, 0.2 + 0.001 / 4 + 0.1);
    /* With 40 tokens more a hit loads ten blocks and computes 40 ms: 0.2 + 0.04 / 4. */
    const plain_request longer[] = {{0.0, 1000, 0}, {10.0, 1040, 0}};
    simulate(&options, longer, 2, "lru", &result);
    expect_seconds(result.times.ttft_p50, 0.2 + 0.04 / 4 + 0.1);
    expect_seconds(result.times.blocked_mean, (0.2 + 0.04 / 4 - 0.04) / 2);
    /* With 400 it computes 0.4, and what it waits for is one layer of the load: 0.2 / 4. */
    const plain_request longest[] = {{0.0, 1000, 0}, {10.0, 1400, 0}};
    simulate(&options, longest, 2, "lru", &result);
    expect_seconds(result.times.ttft_p50, 0.4 + 0.2 / 4 + 0.1);
    expect_seconds(result.times.blocked_mean, 0.2 / 4 / 2);
}

/* The same pipeline through the model of drives, where nothing else is on the bus; then beside
 * another load, whose layers share it. Whatever the order, the same is written. */
TEST(layers_come_through_the_drives)
{
    static const double extra[] = {0, 0.04, 0.4};
    for (int order = KVT_IO_READS_FIRST; order <= KVT_IO_SLACK; order++) {
        replay_options options;
        replay_result result;
        model_init(&options);
        model_add_tier(&options, KVT_TIER_SSD, 44, STORED_BYTES / 0.02, 0.0);
        options.overlap = options.layered = true;
        options.layers = 4;
        options.io.order = (kvt_io_order)order;
        for (size_t i = 0; i < sizeof extra / sizeof extra[0]; i++) {
            const double compute = i == 0 ? 0.001 : extra[i];
            const plain_request plain[] = {{0.0, 1000, 0},
                                           {10.0, 1000 + (uint32_t)(extra[i] * 1000), 0}};
            simulate(&options, plain, 2, "lru", &result);
            const double blocked = compute > 0.2 ? 0.2 / 4 : 0.2 + compute / 4 - compute;
            expect_seconds(result.times.ttft_p50, compute + blocked + 0.1);
            expect_seconds(result.times.blocked_mean, blocked / 2);
            assert_int_equal(result.bytes_read[KVT_TIER_SSD], 10 * 114688);
            assert_true(result.drive.known && result.drive.writes >= 10);
            assert_int_equal(result.drive.writes_deferred, 0);
        }
        options.servers = 2;
        const plain_request both[] = {{0.0, 1000, 0}, {10.0, 1040, 0}, {10.0, 1040, 0}};
        simulate(&options, both, 3, "lru", &result);
        assert_true(result.times.ttft_p99 > 0.3 && result.times.ttft_max <= 1.1 + 1e-9);
        assert_int_equal(result.bytes_read[KVT_TIER_SSD], 20 * 114688);
        /* The plan log has each decision of the gate beside the moves. */
        options.plan_log = "layered-plan.log";
        simulate(&options, both, 3, "lru", &result);
        const kvt_io_decisions *why = &result.drive.decisions;
        slack_log_sums sums;
        FILE *log = fopen(options.plan_log, "r");
        assert_non_null(log);
        assert_ok(tiers_slack_log_check(log, &sums));
        assert_int_equal(fclose(log), 0);
        assert_int_equal(unlink(options.plan_log), 0);
        /* And the reads that the order asked no permission for. */
        assert_true(sums.decisions >= why->idle + why->fits + why->share + why->waits_reads +
                                          why->waits_layers + why->waits_grain + why->waits_turn);
        assert_int_equal(sums.decisions > 0, order >= KVT_IO_TABLE);
        assert_int_equal(sums.lines - sums.decisions, result.moves);
        assert_int_equal(sums.differ, 0);
    }
}

TEST(slow_storage_is_recomputed)
{
    replay_options options;
    replay_result result;
    model_init(&options);
    /* A block recomputes in 0.1 s and loads in 0.2 s. */
    model_add_tier(&options, KVT_TIER_DRAM, 100, STORED_BYTES / 0.2, 0.0);
    const plain_request plain[] = {{0.0, 1000, 0}, {10.0, 1000, 0}};
    simulate(&options, plain, 2, "lru", &result);
    expect_seconds(result.times.ttft_p50, 1.1);
    expect_seconds(result.hit_token_ratio[0], 0.5);
    expect_seconds(result.used_token_ratio, 0.0);
    assert_int_equal(result.bytes_read[KVT_TIER_DRAM], 0);
}

TEST(reads_queue_behind_reads)
{
    replay_options options;
    replay_result result;
    model_init(&options);
    options.servers = 2;
    model_add_tier(&options, KVT_TIER_DRAM, 100, STORED_BYTES / 0.01, 0.0);
    const plain_request plain[] = {{0.0, 1001, 0}, {10.0, 1001, 0}, {10.0, 1001, 0}};
    simulate(&options, plain, 3, "lru", &result);
    /* 11 blocks, the last one of a single token that is computed again in 1 ms: 10 blocks are
     * loaded. The second load begins when the first one has ended. */
    assert_int_equal(result.bytes_read[KVT_TIER_DRAM], 2 * 10 * 114688);
    expect_seconds(result.times.ttft_mean, (1.101 + (0.1 + 0.101) + (0.2 + 0.101)) / 3);
    expect_seconds(result.times.blocked_mean, (0.1 + 0.2) / 3);
}

TEST(the_run_ends_at_the_first_hole)
{
    replay_options options;
    replay_result result;
    model_init(&options);
    model_add_tier(&options, KVT_TIER_DRAM, 4, 1e9, 0.0);
    /* Room for 4 blocks: 0 1 2 3, then 8 pushes 0 out; the third request finds 1 2 3 behind a hole,
     * which help nobody. As they are put 0 replaces 1, 1 replaces 2, and so on: LRU's cycle. */
    const plain_request plain[] = {{0.0, 400, 0}, {10.0, 100, 8}, {20.0, 400, 0}};
    simulate(&options, plain, 3, "lru", &result);
    expect_seconds(result.hit_token_ratio[0], 0.0);
    expect_seconds(result.hit_block_ratio[0], 3.0 / 9);
    assert_int_equal(result.evictions, 5);
    assert_true(result.peak_bytes[KVT_TIER_DRAM] <= 4 * 114688);
}

TEST(warm_up_is_served_but_not_counted)
{
    replay_options options;
    replay_result result;
    model_init(&options);
    model_add_tier(&options, KVT_TIER_DRAM, 100, 1e9, 0.0);
    options.warmup = 0.5;
    const plain_request plain[] = {{0.0, 1000, 0}, {10.0, 1000, 0}};
    simulate(&options, plain, 2, "lru", &result);
    assert_int_equal(result.requests, 1);
    assert_int_equal(result.requests_skipped, 1);
    expect_seconds(result.hit_token_ratio[0], 1.0);
    assert_int_equal(result.bytes_written[KVT_TIER_DRAM], 0);
}

/* A hundred blocks where 44 raw ones fit; the first is then asked for again. It has been compressed
 * in two steps, the cheaper per byte first. */
static double quality_after_two_steps(const char *finer, const char *coarser)
{
    replay_options options;
    replay_result result;
    model_init(&options);
    model_add_tier(&options, KVT_TIER_DRAM, 44, 1e7, 1e-3);
    options.alpha_seconds = 0.1;
    options.warmup = 100.5 / 101.0;
    kvt_cost_model *model = &options.model;
    model->variant_count = 3;
    assert_ok(kvt_variant_parse(finer, &model->variants[1].variant));
    assert_ok(kvt_variant_parse(coarser, &model->variants[2].variant));
    const double share[] = {1.0, 0.5, 0.25}, loss[] = {0.0, 0.1, 0.2};
    for (int i = 0; i < 3; i++) {
        kvt_codec_curve *curve = &model->variants[i];
        curve->stored_share = share[i];
        curve->loss = curve->loss_upper = loss[i];
        curve->encode_bytes_per_s = curve->decode_bytes_per_s = 1e9;
    }
    plain_request plain[101];
    for (uint32_t i = 0; i < 101; i++)
        plain[i] = (plain_request){10.0 * i, 100, i < 100 ? i : 0};
    simulate(&options, plain, 101, "adaptcache", &result);
    assert_int_equal(result.requests, 1);
    expect_seconds(result.hit_block_ratio[KVT_TIER_DRAM], 1.0);
    return result.quality_mean;
}

TEST(what_is_coded_anew_keeps_its_losses)
{
    /* kivi codes what it coded before; planes are dropped. */
    expect_seconds(quality_after_two_steps("kivi:k4v4,g32", "kivi:k2v2,g32"), 1.0 - 0.3);
    expect_seconds(quality_after_two_steps("planes:k4v4,g64", "planes:k2v2,g64"), 1.0 - 0.2);
}

TEST(partial_blocks_charge_what_is_asked)
{
    replay_options options;
    replay_result result;
    model_init(&options);
    model_add_tier(&options, KVT_TIER_DRAM, 100, 1e9, 0.0);
    const plain_request plain[] = {{0.0, 110, 0}};
    simulate(&options, plain, 1, "lru", &result);
    assert_int_equal(result.bytes_written[KVT_TIER_DRAM], 2 * 114688);
    options.partial_exact = true;
    simulate(&options, plain, 1, "lru", &result);
    assert_int_equal(result.bytes_written[KVT_TIER_DRAM],
                     114688 + 28672); /* 200 bytes a matrix in whole 64 */
}

TEST(equal_runs_make_equal_plans)
{
    replay_options options;
    replay_result first, again;
    replay_workload workload;
    char message[256];
    replay_generator generator = {.requests_per_s = 5.0,
                                  .requests = 2000,
                                  .contexts = 40,
                                  .zipf = 1.0,
                                  .tokens_median = 1500.0,
                                  .tokens_sigma = 0.7,
                                  .tokens_max = 8000,
                                  .turns_mean = 3.0,
                                  .turn_tokens = 100.0,
                                  .think_seconds = 10.0,
                                  .block_tokens = 100,
                                  .seed = 3};
    assert_ok(replay_workload_generate(&generator, &workload, message, 256));
    model_init(&options);
    model_add_tier(&options, KVT_TIER_DRAM, 100, 1e9, 1e-5);
    model_add_tier(&options, KVT_TIER_SSD, 400, 1e8, 1e-4);
    for (size_t i = 0; kvt_policy_name_get(i) != NULL; i++) {
        const char *policy = kvt_policy_name_get(i);
        assert_ok(replay_run_sim(&options, &workload, policy, &first, message, 256));
        assert_ok(replay_run_sim(&options, &workload, policy, &again, message, 256));
        assert_true(first.plan_hash == again.plan_hash);
        assert_int_equal(first.moves, again.moves);
        assert_memory_equal(&first.times, &again.times, sizeof first.times);
        for (int tier = 1; tier < KVT_TIER_COUNT; tier++) {
            assert_true(first.peak_bytes[tier] <= first.capacity_bytes[tier]);
        }
        assert_true(first.hit_block_ratio[0] <= first.ideal_block_ratio + 1e-9);
        assert_true((first.puts > 0) == (strcmp(policy, "none") != 0));
    }
    assert_int_equal(replay_run_sim(&options, &workload, "no such", &first, message, 256),
                     KVT_E_UNSUPPORTED);
    replay_workload_free(&workload);
}

static json_t *print_to_json(const replay_options *options, const replay_result *result)
{
    replay_workload workload;
    const plain_request plain[] = {{0.0, 100, 0}};
    workload_make(&workload, plain, 1);
    replay_report report = {.version = "0",
                            .options = options,
                            .workload = &workload,
                            .results = result,
                            .result_count = 1};
    FILE *file = tmpfile();
    assert_non_null(file);
    assert_ok(replay_print_json(&report, file));
    rewind(file);
    json_error_t error;
    json_t *root = json_loadf(file, JSON_REJECT_DUPLICATES, &error);
    assert_non_null(root);
    fclose(file);
    replay_workload_free(&workload);
    return root;
}

/* A crowd in front of a long quiet time: over the whole span the load is small, but the queue of
 * the crowd grows as long as the crowd does, so its mean wait says nothing. */
TEST(a_busy_part_is_not_hidden_by_a_quiet_span)
{
    enum { REQUESTS = 2000 };
    replay_options options;
    replay_result result;
    model_init(&options);
    plain_request *plain = calloc(REQUESTS, sizeof *plain);
    assert_non_null(plain);
    for (int i = 0; i < REQUESTS; i++) {
        /* 0.2 s of service: every 0.1 s in the first tenth, then every 10 s. */
        double seconds = i < 1000 ? i * 0.1 : 100.0 + (i - 1000) * 10.0;
        plain[i] = (plain_request){seconds, 100, (uint32_t)i};
    }
    simulate(&options, plain, REQUESTS, "none", &result);
    assert_true(result.rho < 0.1);
    /* Ten parts of 1009 s; the first holds the crowd and 91 others. */
    expect_seconds(result.rho_peak, 1091 * 0.2 / (result.span_s / 10.0));
    assert_true(result.rho_peak < 1.0); /* the crowd is gone before its part ends */

    for (int i = 0; i < REQUESTS; i++) {
        double seconds = i < 1000 ? i * 0.1 : 100.0 + (i - 1000) * 0.5;
        plain[i] = (plain_request){seconds, 100, (uint32_t)i};
    }
    simulate(&options, plain, REQUESTS, "none", &result);
    assert_true(result.rho < 0.7);
    assert_true(result.rho_peak > 1.9);
    json_t *root = print_to_json(&options, &result);
    json_t *object = json_array_get(json_object_get(root, "results"), 0);
    assert_true(json_is_null(json_object_get(object, "ttft_s_mean")));
    assert_true(json_is_real(json_object_get(object, "rho_peak")));
    assert_true(json_is_real(json_object_get(object, "ttft_s_p50")));
    json_decref(root);
    free(plain);
}

TEST(no_mean_is_printed_in_overload)
{
    static const char *const keys[] = {"policy",
                                       "mode",
                                       "ttft_s_mean",
                                       "ttft_s_p50",
                                       "ttft_s_p90",
                                       "ttft_s_p99",
                                       "wait_s_mean",
                                       "service_ttft_s_mean",
                                       "rho",
                                       "blocked_io_s_mean",
                                       "hit_block_ratio",
                                       "hit_token_ratio",
                                       "bytes_read",
                                       "bytes_written",
                                       "decision_ns_p50",
                                       "decision_ns_p99",
                                       "decisions",
                                       "requests",
                                       "block_refs",
                                       "block_refs_per_s",
                                       "seed"};
    replay_options options;
    replay_result result;
    model_init(&options);
    const plain_request calm[] = {{0.0, 100, 0}, {10.0, 100, 5}};
    const plain_request crowd[] = {{0.0, 1000, 0}, {0.1, 1000, 20}};
    for (int overload = 0; overload < 2; overload++) {
        simulate(&options, overload ? crowd : calm, 2, "none", &result);
        json_t *root = print_to_json(&options, &result);
        assert_string_equal(json_string_value(json_object_get(root, "schema")),
                            "kvterrace-replay-1");
        json_t *object = json_array_get(json_object_get(root, "results"), 0);
        for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
            if (json_object_get(object, keys[i]) == NULL) fail_msg("no key %s", keys[i]);
        }
        assert_int_equal(json_is_null(json_object_get(object, "ttft_s_mean")), overload);
        assert_int_equal(json_is_null(json_object_get(object, "wait_s_mean")), overload);
        assert_true(json_is_real(json_object_get(object, "service_ttft_s_mean")));
        json_t *tiers = json_object_get(object, "hit_block_ratio");
        assert_true(json_is_real(json_object_get(tiers, "total")));
        assert_true(json_is_real(json_object_get(tiers, "ssd")));
        json_decref(root);
    }
}
