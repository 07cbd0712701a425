/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_replay_store_model.c - what the simulator models of a store's puts, copies and background:
 * the bounds of puts are the store's own, entries in hand-over are read from staging, and times are
 * those worked out by hand.
 */
#include "store_support.h"

#include "replay/sim_host.h"

#include <stdlib.h>
#include <string.h>

/* ---- the store's bound ---- */

enum { DRAM_BYTES = 16 << 20 };

/* Puts that a store takes whose device answers no write. */
static uint32_t store_takes(uint64_t put_staging_bytes, uint32_t most)
{
    static const tiers_fault_rule hang_writes = {.action = TIERS_FAULT_HANG,
                                                 .kinds = TIERS_FAULT_WRITES};
    support_fault fault = {.capacity_bytes = DRAM_BYTES};
    kvt_device_config device = support_fault_config(&fault, "dram0");
    kvt_store_options options;
    kvt_store_options_init(&options);
    options.policy = "lru";
    options.limits.staging_bytes = 2 << 20;
    options.limits.put_staging_bytes = put_staging_bytes;
    options.limits.tick_seconds = 0;
    support_tier(&options, KVT_TIER_DRAM, &device, 1);
    kvt_store *store = support_open(&options);
    assert_ok(tiers_fault_add(fault.device, &hang_writes));
    uint32_t taken = 0;
    while (taken < most && support_put(store, taken) == KVT_OK)
        taken++;
    assert_int_equal(support_stats(store).puts_busy, taken < most ? 1 : 0);
    tiers_fault_clear(fault.device);
    kvt_store_close(store);
    return taken;
}

static uint32_t model_takes(uint64_t put_staging_bytes, uint32_t most)
{
    replay_options options;
    replay_options_init(&options);
    options.put_staging_bytes = put_staging_bytes;
    options.tiers[KVT_TIER_DRAM].capacity_bytes = DRAM_BYTES;
    uint64_t bound = sim_staging_bound(&options);
    uint32_t taken = 0;
    while (taken < most &&
           sim_staging_takes((uint64_t)taken * SUPPORT_ENTRY_BYTES, SUPPORT_ENTRY_BYTES, bound))
        taken++;
    return taken;
}

TEST(the_model_refuses_where_the_store_does)
{
    /* Fewer bytes than one entry; whole entries; a part of one more; more than the tier's part. */
    const uint64_t bounds[] = {1, 5 * SUPPORT_ENTRY_BYTES, 5 * SUPPORT_ENTRY_BYTES + 4096,
                               UINT64_C(1) << 40, KVT_PUT_STAGING_AUTO};
    const uint32_t most = DRAM_BYTES / SUPPORT_ENTRY_BYTES;
    for (size_t i = 0; i < sizeof bounds / sizeof bounds[0]; i++) {
        uint32_t taken = store_takes(bounds[i], most);
        assert_in_range(taken, 1, most - 1);
        assert_int_equal(model_takes(bounds[i], most), taken);
    }
}

TEST(a_backlog_is_refused_unless_nothing_waits)
{
    double waiting[KVT_TIER_COUNT] = {0}, added[KVT_TIER_COUNT] = {0};
    added[KVT_TIER_SSD] = 11.0;
    assert_true(sim_backlog_takes(waiting, added, 10.0));
    waiting[KVT_TIER_DRAM] = 9.0;
    assert_true(sim_backlog_takes(waiting, added, 10.0));
    waiting[KVT_TIER_SSD] = 0.5;
    assert_false(sim_backlog_takes(waiting, added, 10.0));
    added[KVT_TIER_SSD] = 9.5;
    assert_true(sim_backlog_takes(waiting, added, 10.0));
    added[KVT_TIER_SSD] = 9.6;
    assert_false(sim_backlog_takes(waiting, added, 10.0));
}

/* ---- times by hand ---- */

/* Prefill takes 1 ms a token; blocks have 100 tokens of 1000 bytes. A path moves a block of
 * 100,000 bytes, or what its record has beside, in 0.1 s and more. */
typedef struct plain_request {
    double arrival_s;
    uint32_t blocks, first;
} plain_request;

static void simulate(const replay_options *options, const plain_request *plain, uint32_t count,
                     replay_result *result)
{
    char message[256];
    replay_workload workload = {.block_tokens = 100, .request_count = count};
    workload.requests = test_zeros(count * sizeof *workload.requests);
    workload.blocks = test_zeros((size_t)count * 64 * sizeof *workload.blocks);
    for (uint32_t i = 0; i < count; i++) {
        workload.requests[i] = (replay_request){.arrival_ns = (uint64_t)(plain[i].arrival_s * 1e9),
                                                .first_block = workload.block_refs,
                                                .block_count = plain[i].blocks,
                                                .input_tokens = 100 * plain[i].blocks};
        for (uint32_t j = 0; j < plain[i].blocks; j++) {
            uint32_t id = plain[i].first + j;
            workload.blocks[workload.block_refs++] = id;
            if (id >= workload.distinct_blocks) workload.distinct_blocks = id + 1;
        }
        if (plain[i].blocks > workload.longest_prefix) workload.longest_prefix = plain[i].blocks;
        workload.input_tokens += 100 * plain[i].blocks;
    }
    workload.repeated_refs = workload.block_refs - workload.distinct_blocks;
    if (replay_run_sim(options, &workload, "lru", result, message, sizeof message) != KVT_OK)
        fail_msg("%s", message);
}

static void model_init(replay_options *options, uint32_t servers, double write_bytes_per_s)
{
    char message[256];
    replay_options_init(options);
    options->bounds = false;
    options->servers = servers;
    options->bytes_per_token = 1000;
    options->block_tokens = 100;
    options->tick_seconds = 0.0;
    options->copy_bytes_per_s = 1e8; /* a block in a millisecond */
    options->model.prefill = (kvt_prefill){.linear_seconds_per_token = 1e-3};
    options->tiers[KVT_TIER_DRAM] = (replay_tier){.capacity_bytes = UINT64_C(100) << 20,
                                                  .read = {.bytes_per_s = 1e7},
                                                  .write = {.bytes_per_s = write_bytes_per_s}};
    assert_ok(replay_options_check(options, message, sizeof message));
}

static void assert_near(double value, double expected)
{
    if (!(value > expected - 2e-3 && value < expected + 2e-3))
        fail_msg("%g instead of %g", value, expected);
}

TEST(staged_blocks_are_copied_not_read)
{
    replay_options options;
    replay_result result;
    /* Three blocks at 0.3 s; their writes end seconds later. The second request copies two of them
     * in 2 ms and computes the last token's block again: 100 tokens. */
    const plain_request plain[] = {{0.0, 3, 0}, {0.5, 3, 0}};
    model_init(&options, 1, 1e5);
    options.copy_bytes_per_s = 1e9;
    simulate(&options, plain, 2, &result);
    /* 0.3 and 3 copies of 0.1 ms with one token of 1 ms. */
    assert_near(result.times.ttft_mean, (0.3 + 0.0013) / 2);
    assert_true(result.hit_token_ratio[KVT_TIER_DRAM] > 0.49);
    assert_int_equal(result.bytes_read[KVT_TIER_DRAM], 0);
}

TEST(written_blocks_are_read)
{
    replay_options options;
    replay_result result;
    const plain_request plain[] = {{0.0, 3, 0}, {10.0, 3, 0}};
    model_init(&options, 1, 1e7);
    options.tiers[KVT_TIER_DRAM].read.request_seconds = 0.02;
    options.model.read[KVT_TIER_DRAM].request_seconds = 0.02;
    simulate(&options, plain, 2, &result);
    /* Each get takes 20 ms and the transfer of the record, 10 ms and a little. */
    double transfer_s = (double)result.bytes_read[KVT_TIER_DRAM] / 1e7;
    assert_true(transfer_s >= 0.03 && transfer_s < 0.035);
    assert_near(result.times.ttft_mean, (0.3 + 3 * 0.02 + transfer_s + 0.001) / 2);
}

TEST(a_block_in_the_making_is_found_by_nobody)
{
    replay_options options;
    replay_result result;
    /* Both compute all, and the second one's puts find the first one's. */
    const plain_request plain[] = {{0.0, 4, 0}, {0.1, 4, 0}};
    model_init(&options, 2, 1e7);
    simulate(&options, plain, 2, &result);
    assert_near(result.times.ttft_mean, 0.4);
    assert_int_equal(result.puts, 4);
    assert_true(result.hit_block_ratio[0] <= 0.0);
}

/* A prompt of 88.8 s, and the same again 3 s later. It finds the two blocks that have been computed
 * by then, and computes the others: whoever could read what is displaced while it is computed would
 * answer after 28.7 s. */
TEST(what_is_being_computed_is_there_for_nobody)
{
    replay_options options;
    replay_result result;
    char message[256];
    const plain_request plain[] = {{0.0, 60, 0}, {3.0, 60, 0}};
    model_init(&options, 2, 1e9);
    options.put_staging_bytes = 0;
    options.model.prefill.linear_seconds_per_token = 88.8 / 6000;
    options.tiers[KVT_TIER_DRAM].capacity_bytes = 4 * 114688;
    options.tiers[KVT_TIER_SSD] = (replay_tier){.capacity_bytes = UINT64_C(100) << 20,
                                                .read = {.bytes_per_s = 1e9},
                                                .write = {.bytes_per_s = 1e9}};
    assert_ok(replay_options_check(&options, message, sizeof message));
    simulate(&options, plain, 2, &result);
    double load_s = 2 * 114688.0 / 1e7; /* the two are in DRAM still */
    assert_near(result.times.ttft_mean, (88.8 + 58 * 1.48 + load_s) / 2);
    assert_near(result.hit_block_ratio[0], 2.0 / 120);
    assert_true(result.demotions > 0);
}

/* Two sets of four blocks take turns in DRAM for four. The background promotes what was read from
 * SSD; what it displaces was there before, so its record is still, unless no copies are kept. */
TEST(a_promotion_leaves_its_record)
{
    replay_options options;
    replay_result result;
    char message[256];
    plain_request plain[20];
    uint64_t written[2];
    for (uint32_t i = 0; i < 20; i++)
        plain[i] = (plain_request){100.0 * i, 4, 10 * (i % 2)};
    model_init(&options, 1, 1e9);
    options.tick_seconds = 1.0;
    options.tiers[KVT_TIER_DRAM].capacity_bytes = 4 * 114688;
    options.tiers[KVT_TIER_SSD] = (replay_tier){.capacity_bytes = UINT64_C(100) << 20,
                                                .read = {.bytes_per_s = 1e9},
                                                .write = {.bytes_per_s = 1e9}};
    assert_ok(replay_options_check(&options, message, sizeof message));
    for (int copies = 0; copies < 2; copies++) {
        options.copies = copies != 0;
        simulate(&options, plain, 20, &result);
        written[copies] = result.bytes_written[KVT_TIER_SSD];
        assert_true(result.promotions > 10 && result.demotions > 10);
    }
    /* Each block is written there once. */
    print_message("written %llu, with copies %llu\n", (unsigned long long)written[0],
                  (unsigned long long)written[1]);
    assert_true(written[1] <= 8 * 114688);
    assert_true(written[0] > 2 * written[1]);
}

TEST(full_staging_refuses_the_rest)
{
    replay_options options;
    replay_result result;
    const plain_request plain[] = {{0.0, 10, 0}, {1.5, 10, 0}};
    model_init(&options, 1, 1e3); /* 100 s a block */
    options.put_staging_bytes = 400000;
    options.put_backlog_seconds = 0.0;
    simulate(&options, plain, 2, &result);
    /* Four of ten blocks are staged; the second request copies them and is refused six again. */
    assert_int_equal(result.puts_busy, 12);
    assert_near(result.hit_token_ratio[0], 0.2);
    options.put_staging_bytes = UINT64_C(1) << 30;
    options.put_backlog_seconds = 250.0;
    simulate(&options, plain, 2, &result);
    /* Records of a little more than 100 s each: two fit below 250 s. */
    assert_int_equal(result.puts_busy, 16);
    assert_near(result.hit_token_ratio[0], 0.1);
}

TEST(the_next_put_follows_the_copy)
{
    replay_options options;
    replay_result result;
    /* Room for one block, which is written in a tenth of the millisecond that its copy takes. */
    const plain_request plain[] = {{0.0, 10, 0}, {1.5, 1, 20}};
    model_init(&options, 1, 1e9);
    options.put_staging_bytes = 1;
    simulate(&options, plain, 2, &result);
    assert_int_equal(result.puts_busy, 0);
    assert_int_equal(result.puts, 11);
}

TEST(puts_beyond_four_are_decided_by_executors)
{
    replay_options options;
    replay_result result;
    /* Over 100 s a block, one after the other on one path: at 480 s four are written, and the
     * others are found in staging. The six that wait without a plan count in the backlog as the
     * four with plans do. */
    const plain_request plain[] = {{0.0, 10, 0}, {480.0, 10, 0}};
    model_init(&options, 1, 1e3);
    options.put_backlog_seconds = 0.0;
    simulate(&options, plain, 2, &result);
    assert_int_equal(result.puts_busy, 0);
    assert_int_equal(result.puts, 4);
    assert_near(result.hit_block_ratio[0], 0.5);
    double waited_s = result.write_lag_s_max[KVT_TIER_DRAM];
    assert_true(waited_s > 1100.0 && waited_s < 1200.0);
}

TEST(puts_without_a_plan_count_as_earlier_plans_wrote)
{
    replay_options options;
    replay_result result;
    /* Records of a little more than 100 s each: four with plans and two without fit below 700 s,
     * and the other four of ten are refused twice. */
    const plain_request plain[] = {{0.0, 10, 0}, {1.5, 10, 0}};
    model_init(&options, 1, 1e3);
    options.put_backlog_seconds = 700.0;
    simulate(&options, plain, 2, &result);
    assert_int_equal(result.puts_busy, 8);
    assert_near(result.hit_token_ratio[0], 0.3);
    double waited_s = result.write_lag_s_max[KVT_TIER_DRAM];
    assert_true(waited_s > 600.0 && waited_s < 700.0);
}

#define RECORD_BYTES 114688.0 /* of a block */

/* Nanosecond rounding is the only difference allowed. */
static void expect_close(double value, double expected)
{
    if (!(value > expected - 1e-6 && value < expected + 1e-6))
        fail_msg("%.9f instead of %.9f", value, expected);
}

/* DRAM for four blocks of 11.4688 ms and an SSD of 57.344 ms a block, whose background pauses for
 * 100 s. The second request's puts displace blocks 0 to 3 to the SSD, one at a time as they are
 * computed. The third one loads four blocks from DRAM and computes for a second. The last one waits
 * for that; its block is in DRAM by then. */
TEST(a_prefetch_wakes_the_background)
{
    replay_options options;
    replay_result result;
    char message[256];
    const double dram_s = RECORD_BYTES / 1e7, ssd_s = RECORD_BYTES / 2e6;
    plain_request plain[] = {{0.0, 4, 0}, {10.0, 4, 10}, {20.0, 4, 10}, {20.2, 1, 0}};
    model_init(&options, 1, 1e7);
    options.warmup = 0.75;
    options.tick_seconds = 100.0;
    options.put_staging_bytes = 0;
    options.put_backlog_seconds = 0.0;
    options.model.prefill.fixed_seconds = 1.0;
    options.tiers[KVT_TIER_DRAM].capacity_bytes = 4 * (uint64_t)RECORD_BYTES;
    options.tiers[KVT_TIER_SSD] = (replay_tier){.capacity_bytes = UINT64_C(100) << 20,
                                                .read = {.bytes_per_s = 2e6},
                                                .write = {.bytes_per_s = 2e6}};
    assert_ok(replay_options_check(&options, message, sizeof message));
    for (int prefetch = 0; prefetch < 2; prefetch++) {
        options.prefetch = prefetch != 0;
        simulate(&options, plain, 4, &result);
        expect_close(result.times.wait_mean, 4 * dram_s + 0.001 + 1.0 - 0.2);
        expect_close(result.times.blocked_mean, prefetch ? dram_s : ssd_s);
        assert_int_equal(result.prefetch_offered, prefetch);
        assert_int_equal(result.prefetch_moved, prefetch);
        assert_true(result.hit_token_ratio[prefetch ? KVT_TIER_DRAM : KVT_TIER_SSD] == 1.0);
    }
}

TEST(equal_runs_are_equal)
{
    replay_options options;
    replay_result first, second;
    plain_request plain[40];
    for (uint32_t i = 0; i < 40; i++)
        plain[i] = (plain_request){0.05 * i, 2 + i % 5, 8 * (i % 7)};
    model_init(&options, 3, 2e6);
    options.tiers[KVT_TIER_DRAM].capacity_bytes = 20 * 106496;
    options.tick_seconds = 0.2;
    simulate(&options, plain, 40, &first);
    simulate(&options, plain, 40, &second);
    assert_true(first.moves > 0 && first.evictions > 0);
    assert_true(first.plan_hash == second.plan_hash);
    assert_true(first.times.ttft_mean == second.times.ttft_mean);
}
