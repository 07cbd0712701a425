/* SPDX-License-Identifier: Apache-2.0 */
/*
 * golden_replay_conversation.c - external truth: hit ratios on Mooncake's conversation trace.
 *
 * Two independent simulators (libCacheSim and another one) agree to three decimals on plain LRU
 * over 512-token blocks in reference order. Here a block is put when its request has its first
 * token, which is within 0.008 of that order. An hour of traffic without a cache loads 8 A100
 * servers to about 0.74. Needs the trace below the folder that KVT_DATA_DIR names.
 */
#include "replay/replay.h"

#include "cases.h"
#include "conversation_support.h"
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#define BLOCK_BYTES (UINT64_C(64) << 20)

static void replay_run(const char *policy, uint64_t blocks, replay_result *result)
{
    char message[256];
    replay_options options;
    replay_options_init(&options);
    options.tiers[KVT_TIER_DRAM].capacity_bytes = blocks * BLOCK_BYTES;
    options.put_staging_bytes = 0; /* every put is taken */
    options.put_backlog_seconds = 0.0;
    assert_ok(replay_options_check(&options, message, sizeof message));
    kvt_status status =
        replay_run_sim(&options, &conversation, policy, result, message, sizeof message);
    if (status != KVT_OK) fail_msg("%s", message);
}

static void expect_near(double value, double wanted, double tolerance)
{
    if (fabs(value - wanted) > tolerance) fail_msg("%.5f, wanted %.5f", value, wanted);
}

TEST_ALL(conversation_load, conversation_release);

TEST(the_trace_is_what_it_should_be)
{
    assert_int_equal(conversation.request_count, 12031);
    assert_int_equal(conversation.block_refs, 288500);
    assert_int_equal(conversation.distinct_blocks, 182790);
    assert_int_equal(conversation.grid_ns, 3000000000u);
}

TEST(lru_hits_what_other_simulators_hit)
{
    static const struct {
        uint64_t blocks;
        double hits;
    } truth[] = {{2000, 0.054}, {6000, 0.139}, {20000, 0.287}, {60000, 0.359}};
    replay_result result;
    for (size_t i = 0; i < sizeof truth / sizeof truth[0]; i++) {
        replay_run("lru", truth[i].blocks, &result);
        expect_near(result.hit_block_ratio[0], truth[i].hits, 0.008);
        expect_near(result.hit_block_ratio[KVT_TIER_DRAM], result.hit_block_ratio[0], 0.0);
        assert_true(result.peak_bytes[KVT_TIER_DRAM] <= truth[i].blocks * BLOCK_BYTES);
    }
}

TEST(an_unlimited_cache_hits_the_ceiling)
{
    replay_result result;
    replay_run("lru", 200000, &result);
    expect_near(result.hit_block_ratio[0], 0.366, 0.0005);
    expect_near(result.hit_block_ratio[0], result.ideal_block_ratio, 1e-4);
    expect_near(result.hit_token_ratio[0], 0.3736, 0.0005);
    assert_int_equal(result.evictions, 0);
}

TEST(no_cache_loads_eight_servers_to_three_quarters)
{
    replay_result result;
    replay_run("none", 1, &result);
    expect_near(result.rho, 0.74, 0.005);
    expect_near(result.hit_block_ratio[0], 0.0, 0.0);
    assert_int_equal(result.bytes_written[KVT_TIER_DRAM], 0);
}
