/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_replay_hosts.c - several hosts and a shared tier, against what is worked out by hand and on
 * made conversations. The trace of Mooncake is in tests/golden/golden_replay_hosts.c.
 *
 * Prefill takes 1 ms per token and 100 ms per request; a block has 100 tokens of 1,000 bytes and is
 * stored as 114,688 bytes.
 */
#include "cases.h"

#include "replay/replay.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define STORED_BYTES UINT64_C(114688)

static void model_init(replay_options *options, uint32_t hosts, uint64_t blocks, uint64_t shared)
{
    replay_options_init(options);
    options->servers = 1;
    options->bytes_per_token = 1000;
    options->block_tokens = 100;
    options->model.prefill = (kvt_prefill){.linear_seconds_per_token = 1e-3, .fixed_seconds = 0.1};
    options->tiers[KVT_TIER_DRAM] = (replay_tier){.capacity_bytes = blocks * STORED_BYTES,
                                                  .read = {.bytes_per_s = 1e12},
                                                  .write = {.bytes_per_s = 1e12}};
    options->copy_bytes_per_s = 1e18; /* puts take no time, and are not bounded */
    options->put_staging_bytes = 0;
    options->put_backlog_seconds = 0.0;
    options->hosts = hosts;
    options->route = REPLAY_ROUTE_RANDOM;
    options->remote.capacity_bytes = shared * STORED_BYTES;
    options->remote.publish = REPLAY_PUBLISH_ALL;
    options->remote.nodes = 2;
    options->remote.node_bytes_per_s = options->remote.host_bytes_per_s = 1u << 30;
    options->remote.latency_seconds = 0.01;
}

static replay_result run(const replay_options *options, const replay_workload *workload,
                         const char *policy)
{
    char message[256];
    replay_result result;
    replay_options checked = *options;
    assert_ok(replay_options_check(&checked, message, sizeof message));
    kvt_status status =
        replay_run_sim(&checked, workload, policy, &result, message, sizeof message);
    if (status != KVT_OK) fail_msg("%s", message);
    return result;
}

/* Conversations of four turns over 200 contexts: what one host has computed, others want. */
static void conversations(replay_workload *workload, uint64_t requests)
{
    char message[256];
    const replay_generator generator = {.requests_per_s = 1.0,
                                        .requests = requests,
                                        .contexts = 200,
                                        .zipf = 0.8,
                                        .tokens_median = 1500,
                                        .tokens_sigma = 0.5,
                                        .tokens_max = 6000,
                                        .turns_mean = 4,
                                        .turn_tokens = 200,
                                        .system_tokens = 100,
                                        .think_seconds = 30,
                                        .block_tokens = 100,
                                        .seed = 7};
    kvt_status status = replay_workload_generate(&generator, workload, message, sizeof message);
    if (status != KVT_OK) fail_msg("%s", message);
}

/* Two requests for the same ten blocks, far apart; a route that alternates sends them to two hosts.
 */
static void pair_make(replay_workload *workload, uint32_t blocks)
{
    *workload = (replay_workload){.block_tokens = 100,
                                  .request_count = 2,
                                  .block_refs = 2 * (uint64_t)blocks,
                                  .distinct_blocks = blocks,
                                  .repeated_refs = blocks,
                                  .longest_prefix = blocks,
                                  .input_tokens = 200 * (uint64_t)blocks};
    workload->requests = calloc(2, sizeof *workload->requests);
    workload->blocks = calloc(2 * blocks, sizeof *workload->blocks);
    assert_true(workload->requests != NULL && workload->blocks != NULL);
    for (uint32_t i = 0; i < 2 * blocks; i++)
        workload->blocks[i] = i % blocks;
    for (uint32_t i = 0; i < 2; i++)
        workload->requests[i] = (replay_request){.arrival_ns = i * UINT64_C(100000000000),
                                                 .input_tokens = 100 * blocks + 50,
                                                 .first_block = i * (uint64_t)blocks,
                                                 .block_count = blocks};
}

/* The first one computes 1,050 tokens; the second loads ten blocks over one link, after a round
 * trip, and computes 50. */
TEST(a_second_host_loads_what_the_first_computed)
{
    replay_workload workload;
    replay_options options;
    pair_make(&workload, 10);
    model_init(&options, 2, 100, 100);
    options.route = REPLAY_ROUTE_LEAST_LOADED; /* takes turns while nobody waits */
    replay_result result = run(&options, &workload, "lru");
    assert_int_equal(result.hosts.rows[0].requests, 1);
    assert_int_equal(result.hosts.rows[1].requests, 1);
    assert_int_equal(result.hosts.rows[0].published_blocks, 10);
    assert_int_equal(result.hosts.rows[0].published_bytes, 10 * STORED_BYTES);
    assert_int_equal(result.hosts.rows[1].remote_blocks, 10);
    assert_int_equal(result.hosts.rows[1].fetched_bytes, 10 * STORED_BYTES);
    assert_int_equal(result.hosts.rows[1].local_blocks, 0);
    assert_int_equal(result.hosts.rows[1].published_blocks, 0);
    assert_int_equal(result.hosts.probes, 2);
    assert_true(fabs(result.hosts.found_ratio - 0.5) < 1e-12);
    assert_true(fabs(result.hosts.rows[0].ttft_mean - (0.1 + 1.05 + 0.01)) < 1e-6);
    double link_s = 10.0 * (double)STORED_BYTES / (double)(1u << 30);
    double wanted_s = 0.1 + 0.05 + 0.01 + link_s + 0.005;
    if (fabs(result.hosts.rows[1].ttft_mean - wanted_s) > 1e-6)
        fail_msg("%.6f s, wanted %.6f", result.hosts.rows[1].ttft_mean, wanted_s);
    replay_result_free(&result);
    replay_workload_free(&workload);
}

/* A tier that holds less than the prefix keeps its head, since the tail was touched first. */
TEST(a_tier_smaller_than_a_prefix_keeps_its_head)
{
    replay_workload workload;
    replay_options options;
    pair_make(&workload, 10);
    model_init(&options, 2, 100, 4);
    options.route = REPLAY_ROUTE_LEAST_LOADED;
    replay_result result = run(&options, &workload, "lru");
    assert_int_equal(result.hosts.rows[1].remote_blocks, 4);
    assert_true(result.hosts.peak_bytes <= 4 * STORED_BYTES);
    assert_int_equal(result.hosts.evicted >= 6, true);
    replay_result_free(&result);
    /* And one that holds no block at all takes none. */
    options.remote.capacity_bytes = STORED_BYTES - 1;
    result = run(&options, &workload, "lru");
    assert_int_equal(result.hosts.all.published_blocks, 0);
    assert_int_equal(result.hosts.all.remote_blocks, 0);
    replay_result_free(&result);
    replay_workload_free(&workload);
}

TEST(a_slow_link_is_left_alone)
{
    replay_workload workload;
    replay_options options;
    pair_make(&workload, 10);
    model_init(&options, 2, 100, 100);
    options.route = REPLAY_ROUTE_LEAST_LOADED;
    options.remote.host_bytes_per_s = 1000000; /* 115 ms for a block that takes 100 ms to compute */
    replay_result result = run(&options, &workload, "lru");
    assert_int_equal(result.hosts.rows[1].remote_blocks, 10);
    assert_int_equal(result.hosts.rows[1].fetched_blocks, 0);
    assert_true(fabs(result.hosts.rows[1].ttft_mean - 1.16) < 1e-6);
    replay_result_free(&result);
    replay_workload_free(&workload);
}

/* The order of the trial: sharing gains most where routing is poor, nothing where it is perfect. */
TEST(sharing_gains_where_routing_is_poor)
{
    static const replay_route routes[] = {REPLAY_ROUTE_RANDOM, REPLAY_ROUTE_SPILL,
                                          REPLAY_ROUTE_STICKY};
    replay_workload workload;
    conversations(&workload, 1500);
    double gain[3];
    for (int i = 0; i < 3; i++) {
        replay_options options;
        model_init(&options, 8, 1500, 0);
        options.route = routes[i];
        options.spill_share = 0.2;
        replay_result apart = run(&options, &workload, "lru");
        options.remote.capacity_bytes = 20000 * STORED_BYTES;
        replay_result together = run(&options, &workload, "lru");
        gain[i] = together.hosts.found_ratio - apart.hosts.found_ratio;
        assert_int_equal(apart.hosts.probes, 0);
        assert_int_equal(together.hosts.all.requests, 1500);
        /* A round trip is all that sharing may cost. */
        assert_true(together.times.ttft_mean <= apart.times.ttft_mean + 0.02);
        replay_result_free(&apart);
        replay_result_free(&together);
    }
    print_message("gains %.3f %.3f %.3f\n", gain[0], gain[1], gain[2]);
    assert_true(gain[0] > gain[1] + 0.05 && gain[1] > gain[2] + 0.02);
    assert_true(gain[0] > 0.3 && gain[2] < 0.1);
    replay_workload_free(&workload);
}

TEST(a_second_use_writes_less)
{
    replay_workload workload;
    replay_options options;
    conversations(&workload, 1500);
    model_init(&options, 8, 1500, 20000);
    replay_result all = run(&options, &workload, "lru");
    options.remote.publish = REPLAY_PUBLISH_SECOND_USE;
    replay_result second = run(&options, &workload, "lru");
    assert_true(second.hosts.all.published_blocks < all.hosts.all.published_blocks);
    assert_true(second.hosts.found_ratio < all.hosts.found_ratio);
    replay_result_free(&all);
    replay_result_free(&second);
    replay_workload_free(&workload);
}

/* The rate bounds what each host writes, but for what its queue holds at the end. */
TEST(the_write_rate_holds)
{
    replay_workload workload;
    conversations(&workload, 1500);
    for (uint32_t publish = REPLAY_PUBLISH_ALL; publish <= REPLAY_PUBLISH_SECOND_USE; publish++) {
        replay_options options;
        model_init(&options, 8, 1500, 20000);
        options.remote.publish = publish;
        replay_result free_run = run(&options, &workload, "lru");
        options.remote.write_bytes_per_s = 1; /* nothing but the 32 blocks that may wait, and one */
        replay_result bound = run(&options, &workload, "lru");
        assert_true(free_run.hosts.all.published_blocks > 8 * 100);
        assert_true(bound.hosts.all.published_blocks <= 8 * 33);
        assert_int_equal(free_run.hosts.dropped, 0);
        replay_result_free(&free_run);
        replay_result_free(&bound);
    }
    replay_workload_free(&workload);
}

/* A restart loses a host's tiers; the shared one gives most of it back. */
TEST(a_restart_is_cold)
{
    replay_workload workload;
    replay_options options;
    conversations(&workload, 1500);
    model_init(&options, 4, 3000, 0);
    options.route = REPLAY_ROUTE_STICKY;
    replay_result steady = run(&options, &workload, "lru");
    options.restart = true;
    replay_result restarted = run(&options, &workload, "lru");
    options.remote.capacity_bytes = 20000 * STORED_BYTES;
    replay_result shared = run(&options, &workload, "lru");
    assert_true(restarted.hosts.found_ratio < steady.hosts.found_ratio - 0.01);
    assert_true(shared.hosts.found_ratio > restarted.hosts.found_ratio + 0.01);
    replay_result_free(&steady);
    replay_result_free(&restarted);
    replay_result_free(&shared);
    replay_workload_free(&workload);
}

/* Same options, same run; every policy serves every request, on 1 to 64 hosts. */
TEST(runs_repeat_under_every_policy)
{
    static const char *const policies[] = {"none", "lru", "lru-leaf", "utility", "gdsf", "oracle"};
    static const uint32_t counts[] = {1, 3, 64};
    replay_workload workload;
    conversations(&workload, 300);
    for (size_t p = 0; p < sizeof policies / sizeof policies[0]; p++) {
        for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
            replay_options options;
            model_init(&options, counts[i], 300, 2000);
            replay_result one = run(&options, &workload, policies[p]);
            replay_result two = run(&options, &workload, policies[p]);
            assert_int_equal(one.plan_hash, two.plan_hash);
            assert_int_equal(one.hosts.all.requests, 300);
            assert_int_equal(one.hosts.all.fetched_bytes, two.hosts.all.fetched_bytes);
            assert_int_equal(one.hosts.all.published_bytes, two.hosts.all.published_bytes);
            replay_result_free(&one);
            replay_result_free(&two);
        }
    }
    replay_workload_free(&workload);
}

TEST(one_host_without_a_shared_tier_is_as_before)
{
    replay_workload workload;
    replay_options options;
    conversations(&workload, 300);
    model_init(&options, 1, 300, 0);
    replay_result result = run(&options, &workload, "lru");
    assert_int_equal(result.hosts.count, 0);
    assert_null(result.hosts.rows);
    replay_result_free(&result);
    replay_workload_free(&workload);
}

static kvt_status settings(const char *const *lines, replay_options *options, char *message)
{
    kvt_config *config = NULL;
    assert_ok(kvt_config_new(&config));
    for (; *lines != NULL; lines++)
        if (kvt_config_set(config, *lines, message, 256) != KVT_OK) fail_msg("%s", message);
    kvt_status status = replay_options_read(config, false, options, message, 256);
    kvt_config_free(config);
    return status;
}

TEST(settings_are_read_and_checked)
{
    replay_options options;
    char message[256];
    const char *good[] = {"replay.hosts=16",
                          "replay.route=spill:0.2",
                          "tier.dram.capacity=1GiB",
                          "tier.remote.capacity=2GiB",
                          "tier.remote.publish=second_use",
                          "tier.remote.write_rate=5MB/s",
                          NULL};
    if (settings(good, &options, message) != KVT_OK) fail_msg("%s", message);
    assert_int_equal(options.hosts, 16);
    assert_int_equal(options.route, REPLAY_ROUTE_SPILL);
    assert_true(fabs(options.spill_share - 0.2) < 1e-12);
    assert_int_equal(options.remote.publish, REPLAY_PUBLISH_SECOND_USE);
    assert_int_equal(options.remote.write_bytes_per_s, 5000000);
    assert_int_equal(options.remote.nodes, 4);
    assert_false(options.bounds);
    replay_options_free(&options);
    static const char *const routes[] = {
        "replay.route=spill",      "replay.route=spill:",   "replay.route=spill:2",
        "replay.route=spill:-0.1", "replay.route=spill:1x", "replay.route=sticky:1",
        "replay.route=foo",        "replay.route=spill:nan"};
    for (size_t i = 0; i < sizeof routes / sizeof routes[0]; i++) {
        const char *bad[] = {"replay.hosts=2", "tier.dram.capacity=1GiB", routes[i], NULL};
        if (settings(bad, &options, message) != KVT_E_CONFIG) fail_msg("%s", routes[i]);
    }
    const char *many[] = {"replay.hosts=257", NULL};
    assert_int_equal(settings(many, &options, message), KVT_E_CONFIG);
}
