/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_replay_hints.c - hints in the simulator: true ones are worth something, wrong ones do no
 * harm, and a workload without sessions has none to give.
 */
#include "cases.h"

#include "replay/replay.h"

#include <string.h>

static replay_workload workload;
static replay_options options;

static int set_up(void **state)
{
    (void)state;
    const replay_generator generator = {.requests_per_s = 1.0,
                                        .requests = 2400,
                                        .contexts = 2000,
                                        .zipf = 0.3,
                                        .tokens_median = 8192.0,
                                        .tokens_sigma = 1.0,
                                        .tokens_max = 65536,
                                        .turns_mean = 4.0,
                                        .turn_tokens = 512.0,
                                        .think_seconds = 120.0,
                                        .block_tokens = 512,
                                        .seed = 3};
    static const char *const settings[] = {"tier.dram.capacity=60GB",
                                           "tier.dram.read_bandwidth=25GB/s",
                                           "tier.dram.write_bandwidth=25GB/s",
                                           "tier.ssd.capacity=240GB",
                                           "tier.ssd.read_bandwidth=1GB/s",
                                           "tier.ssd.write_bandwidth=1GB/s",
                                           "replay.bounds=no",
                                           "replay.warmup=0.2"};
    char message[256];
    if (replay_workload_generate(&generator, &workload, message, sizeof message) != KVT_OK)
        return 1;
    kvt_config *config = NULL;
    if (kvt_config_new(&config) != KVT_OK) return 1;
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++)
        if (kvt_config_set(config, settings[i], message, sizeof message) != KVT_OK) return 1;
    kvt_status status = replay_options_read(config, false, &options, message, sizeof message);
    kvt_config_free(config);
    return status == KVT_OK ? 0 : 1;
}

TEST_AFTER_ALL
{
    replay_workload_free(&workload);
    replay_options_free(&options);
}

static replay_result run(replay_hints hints, const char *policy)
{
    replay_result result = {0};
    char message[256];
    options.hints = hints;
    kvt_status status =
        replay_run_sim(&options, &workload, policy, &result, message, sizeof message);
    if (status != KVT_OK) fail_msg("%s", message);
    return result;
}

TEST_ALL(set_up, NULL);

TEST(hints_are_worth_what_is_true_in_them)
{
    replay_result none = run(REPLAY_HINTS_NONE, "utility");
    replay_result truth = run(REPLAY_HINTS_TRUE, "utility");
    replay_result half = run(REPLAY_HINTS_HALF, "utility");
    replay_result wrong = run(REPLAY_HINTS_WRONG, "utility");
    print_message("ttft: none %.3f, true %.3f, half %.3f, wrong %.3f\n", none.times.ttft_mean,
                  truth.times.ttft_mean, half.times.ttft_mean, wrong.times.ttft_mean);
    assert_true(truth.times.ttft_mean < 0.9 * none.times.ttft_mean);
    assert_true(half.times.ttft_mean < 1.01 * none.times.ttft_mean);
    /* When the background comes to a plan varies by as much as this. */
    assert_true(wrong.times.ttft_mean < 1.05 * none.times.ttft_mean);
    assert_int_equal(none.hints.given[KVT_HINT_NEXT_USE], 0);
    assert_true(truth.hints.came_true[KVT_HINT_NEXT_USE] >
                9 * truth.hints.failed[KVT_HINT_NEXT_USE]);
    assert_true(wrong.hints.failed[KVT_HINT_NEXT_USE] >
                9 * wrong.hints.came_true[KVT_HINT_NEXT_USE]);
}

TEST(other_policies_decide_as_without)
{
    assert_true(run(REPLAY_HINTS_TRUE, "lru").plan_hash == run(REPLAY_HINTS_NONE, "lru").plan_hash);
}

TEST(a_workload_without_sessions_is_refused)
{
    replay_result result = {0};
    char message[256];
    uint64_t count = workload.request_count;
    workload.request_count = 1;
    options.hints = REPLAY_HINTS_TRUE;
    assert_int_equal(
        replay_run_sim(&options, &workload, "utility", &result, message, sizeof message),
        KVT_E_UNSUPPORTED);
    assert_non_null(strstr(message, "replay.hints"));
    workload.request_count = count;
}
