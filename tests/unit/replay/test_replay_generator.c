/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_replay_generator.c - the Poisson workload: reproducible, of the asked shape, and a prefix
 * tree: every block has one predecessor and one position.
 */
#include "cases.h"

#include "replay/random.h"
#include "replay/workload.h"

#include <stdlib.h>
#include <string.h>

static replay_generator base_generator(void)
{
    return (replay_generator){.requests_per_s = 4.0,
                              .requests = 4000,
                              .contexts = 50,
                              .zipf = 1.0,
                              .tokens_median = 4000.0,
                              .tokens_sigma = 0.8,
                              .tokens_max = 32768,
                              .turns_mean = 3.0,
                              .turn_tokens = 300.0,
                              .system_tokens = 1300,
                              .think_seconds = 20.0,
                              .block_tokens = 256,
                              .seed = 11};
}

static void generate(const replay_generator *generator, replay_workload *workload)
{
    char message[256];
    assert_ok(replay_workload_generate(generator, workload, message, sizeof message));
}

TEST(same_seed_same_workload)
{
    replay_generator generator = base_generator();
    replay_workload first, again, other;
    generate(&generator, &first);
    generate(&generator, &again);
    generator.seed = 12;
    generate(&generator, &other);
    assert_true(replay_workload_fingerprint(&first) == replay_workload_fingerprint(&again));
    assert_true(replay_workload_fingerprint(&first) != replay_workload_fingerprint(&other));
    replay_workload_free(&first);
    replay_workload_free(&again);
    replay_workload_free(&other);
}

TEST(paths_form_a_prefix_tree)
{
    replay_generator generator = base_generator();
    replay_workload workload;
    generate(&generator, &workload);
    assert_int_equal(workload.request_count, generator.requests);
    uint32_t *parent = test_alloc((size_t)workload.distinct_blocks * sizeof *parent);
    uint32_t *position = test_alloc((size_t)workload.distinct_blocks * sizeof *position);
    memset(position, 0xff, (size_t)workload.distinct_blocks * sizeof *position);
    uint64_t last = 0, shared_heads = 0;
    for (uint64_t i = 0; i < workload.request_count; i++) {
        const replay_request *request = &workload.requests[i];
        const uint32_t *path = &workload.blocks[request->first_block];
        assert_true(request->arrival_ns >= last);
        last = request->arrival_ns;
        assert_int_equal(request->block_count, (request->input_tokens + 255) / 256);
        for (uint32_t j = 0; j < request->block_count; j++) {
            if (position[path[j]] == UINT32_MAX) {
                position[path[j]] = j;
                parent[path[j]] = j > 0 ? path[j - 1] : UINT32_MAX;
            }
            assert_int_equal(position[path[j]], j);
            assert_int_equal(parent[path[j]], j > 0 ? path[j - 1] : UINT32_MAX);
        }
        for (uint32_t j = 0; j < 5; j++)
            shared_heads += path[j] == j; /* 1300 / 256 = 5 blocks */
    }
    assert_int_equal(shared_heads, 5 * workload.request_count);
    replay_workload_free(&workload);
}

/* The bounds are far outside what 4000 draws of the fixed seed can miss by chance; the draw is the
 * same on every machine anyhow. */
TEST(shape_is_as_asked)
{
    replay_generator generator = base_generator();
    replay_workload workload;
    generator.turns_mean = 1.0;
    generator.zipf = 0.0;
    generate(&generator, &workload);
    double seconds = (double)workload.requests[workload.request_count - 1].arrival_ns * 1e-9;
    double rate = (double)workload.request_count / seconds;
    assert_true(rate > 3.7 && rate < 4.3);
    double square = 0.0;
    for (uint64_t i = 1; i < workload.request_count; i++) {
        double gap =
            (double)(workload.requests[i].arrival_ns - workload.requests[i - 1].arrival_ns) * 1e-9;
        square += (gap * rate - 1.0) * (gap * rate - 1.0);
    }
    double variation = square / (double)workload.request_count;
    assert_true(variation > 0.8 && variation < 1.25); /* a Poisson process has 1 */
    double uniform_hits = (double)workload.repeated_refs / (double)workload.block_refs;
    replay_workload_free(&workload);

    generator.turns_mean = 6.0;
    generate(&generator, &workload);
    uint32_t sessions = 0;
    for (uint64_t i = 0; i < workload.request_count; i++) {
        if (workload.requests[i].session >= sessions) sessions = workload.requests[i].session + 1;
    }
    double turns = (double)workload.request_count / sessions;
    assert_true(turns > 5.0 && turns < 7.0);
    double session_hits = (double)workload.repeated_refs / (double)workload.block_refs;
    assert_true(session_hits < 1.0 && uniform_hits < 1.0 && uniform_hits > 0.5);
    replay_workload_free(&workload);
}

/* A generator whose contexts can be told by their first block: 50 of 4000 tokens each. */
static replay_generator rooted_generator(void)
{
    replay_generator generator = base_generator();
    generator.turns_mean = 1.0;
    generator.zipf = 2.0;
    generator.system_tokens = 0;
    generator.tokens_sigma = 0.0;
    return generator;
}

/* Uses of every block; the caller frees them. */
static uint32_t *count_uses(const replay_workload *workload)
{
    uint32_t *uses = test_zeros((size_t)workload->distinct_blocks * sizeof *uses);
    for (uint64_t i = 0; i < workload->block_refs; i++)
        uses[workload->blocks[i]]++;
    return uses;
}

static double most_popular_share(const replay_workload *workload)
{
    uint32_t *uses = count_uses(workload), most = 0;
    for (uint64_t i = 0; i < workload->distinct_blocks; i++)
        if (uses[i] > most) most = uses[i];
    return (double)most / (double)workload->request_count;
}

TEST(popularity_follows_zipf)
{
    replay_generator generator = rooted_generator();
    replay_workload workload;
    generate(&generator, &workload);
    /* The first of 50 contexts at exponent 2 has 1 / 1.625 = 61.5 % of the draws. */
    double share = most_popular_share(&workload);
    assert_true(share > 0.58 && share < 0.65);
    replay_workload_free(&workload);
}

/* The most popular one of 50 has 61.5 % of the draws at any time. With a trade every 10 s, of which
 * most take the first rank from somebody, no context can keep that over 1000 s. */
TEST(drift_changes_who_is_popular)
{
    replay_generator generator = rooted_generator();
    replay_workload still, drifting;
    generate(&generator, &still);
    generator.drift_per_s = 0.1;
    generate(&generator, &drifting);
    assert_true(most_popular_share(&still) > 0.58);
    assert_true(most_popular_share(&drifting) < 0.35);
    assert_int_equal(drifting.request_count, generator.requests);
    replay_workload_free(&still);
    replay_workload_free(&drifting);
}

/* Windows begin at 50, 150, ... s and last 20 s: 6 requests a second come there beside the 4. */
static bool is_in_window(uint64_t arrival_ns)
{
    uint64_t at_ms = arrival_ns / 1000000 % 100000;
    return at_ms >= 50000 && at_ms < 70000;
}

static const replay_burst burst_of_tests = {
    .per_s = 6.0, .window_seconds = 20.0, .period_seconds = 100.0};

TEST(scanned_blocks_are_used_once)
{
    replay_generator generator = rooted_generator();
    replay_workload workload;
    generator.contexts = 1; /* whatever does not begin with it is scanned */
    generator.scan = burst_of_tests;
    generate(&generator, &workload);
    uint32_t *uses = count_uses(&workload);
    uint64_t scanned = 0, root = UINT64_MAX;
    for (uint64_t i = 0; i < workload.request_count && root == UINT64_MAX; i++)
        if (!is_in_window(workload.requests[i].arrival_ns))
            root = workload.blocks[workload.requests[i].first_block];
    for (uint64_t i = 0; i < workload.request_count; i++) {
        const replay_request *request = &workload.requests[i];
        const uint32_t *path = &workload.blocks[request->first_block];
        if (path[0] == root) continue;
        scanned++;
        assert_true(is_in_window(request->arrival_ns));
        assert_int_equal(request->input_tokens, 4000);
        for (uint32_t j = 0; j < request->block_count; j++)
            assert_int_equal(uses[path[j]], 1);
    }
    /* 120 of 520 requests of a period. */
    double share = (double)scanned / (double)workload.request_count;
    assert_true(share > 0.19 && share < 0.27);
    replay_workload_free(&workload);
}

/* In a window one root has its 60 % of the crowd at least; outside nobody has more than the 1/50 of
 * uniform popularity and chance. */
TEST(crowds_peak_on_one_context)
{
    replay_generator generator = rooted_generator();
    replay_workload workload;
    generator.zipf = 0.0;
    generator.crowd = burst_of_tests;
    generate(&generator, &workload);
    for (uint64_t window = 0; window < 6; window++) {
        uint32_t *inside = test_zeros((size_t)workload.distinct_blocks * sizeof *inside);
        uint32_t *outside = test_zeros((size_t)workload.distinct_blocks * sizeof *outside);
        double in_window = 0.0, around = 0.0, most_inside = 0.0, most_outside = 0.0;
        for (uint64_t i = 0; i < workload.request_count; i++) {
            const replay_request *request = &workload.requests[i];
            if (request->arrival_ns / UINT64_C(100000000000) != window) continue;
            bool within = is_in_window(request->arrival_ns);
            uint32_t *count = within ? inside : outside;
            double *most = within ? &most_inside : &most_outside;
            double uses = ++count[workload.blocks[request->first_block]];
            *(within ? &in_window : &around) += 1.0;
            if (uses > *most) *most = uses;
        }
        assert_true(in_window > 140.0 && in_window < 260.0); /* 80 and 120 */
        assert_true(most_inside / in_window > 0.5);
        assert_true(most_outside / around < 0.1);
    }
    replay_workload_free(&workload);
}

/* What is off draws nothing: the workload of the version before drift, scans and crowds. */
TEST(what_is_off_changes_nothing)
{
    replay_generator generator = base_generator();
    replay_workload workload;
    generator.scan = burst_of_tests;
    generator.crowd = burst_of_tests;
    generator.scan.per_s = generator.crowd.per_s = 0.0;
    generate(&generator, &workload);
    assert_int_equal(replay_workload_fingerprint(&workload), UINT64_C(0xaf2f697f3d2268fa));
    replay_workload_free(&workload);
}

static void refuse(const replay_generator *generator, const char *wanted)
{
    char message[256];
    replay_workload workload;
    assert_int_equal(replay_workload_generate(generator, &workload, message, sizeof message),
                     KVT_E_ARGUMENT);
    if (strcmp(message, wanted) != 0) fail_msg("'%s' is not '%s'", message, wanted);
}

/* A message names the setting and its range. */
TEST(ranges_are_named)
{
    const double none = strtod("nan", NULL);
    replay_generator g = base_generator();
    g.zipf = none;
    refuse(&g, "workload.zipf: 0 to 10");
    g = base_generator();
    g.turns_mean = 0.5;
    refuse(&g, "workload.turns_mean: 1 to 10000");
    g = base_generator();
    g.requests = 0;
    refuse(&g, "workload.requests: 1 to 16777216");
    g = base_generator();
    g.contexts = 0;
    refuse(&g, "workload.contexts: 1 to 1048576");
    g = base_generator();
    g.drift_per_s = -0.1;
    refuse(&g, "workload.drift: 0 to 1000");
    g.drift_per_s = none;
    refuse(&g, "workload.drift: 0 to 1000");
    g = base_generator();
    g.scan = burst_of_tests;
    g.scan.per_s = 2e6;
    refuse(&g, "workload.scan_rate: 0 to 1000000");
    g.scan = burst_of_tests;
    g.scan.window_seconds = 0.0;
    refuse(&g, "workload.scan_time: 1 ms to 1e6 s");
    g.scan = burst_of_tests;
    g.scan.period_seconds = 10.0;
    refuse(&g, "workload.scan_period: at least workload.scan_time, up to 1e6 s");
    g = base_generator();
    g.crowd = burst_of_tests;
    g.crowd.period_seconds = none;
    refuse(&g, "workload.crowd_period: 1 ms to 1e6 s");
}

TEST(faulty_settings_are_refused)
{
    char message[256];
    replay_workload workload;
    replay_generator generator = base_generator();
    generator.requests_per_s = 0.0;
    assert_int_equal(replay_workload_generate(&generator, &workload, message, sizeof message),
                     KVT_E_ARGUMENT);
    assert_non_null(strstr(message, "workload.rate"));
    generator = base_generator();
    generator.zipf = -1.0;
    assert_int_equal(replay_workload_generate(&generator, &workload, message, sizeof message),
                     KVT_E_ARGUMENT);
    assert_non_null(strstr(message, "workload.zipf"));
    generator = base_generator();
    generator.requests_per_s = 1e-4; /* 4000 requests would span more than a year */
    assert_int_equal(replay_workload_generate(&generator, &workload, message, sizeof message),
                     KVT_E_ARGUMENT);
    assert_non_null(strstr(message, "100 days"));
}

/* The first values of xoshiro256** from the state {1, 2, 3, 4}, worked out by hand from the
 * definition: rotl(s1 * 5, 7) * 9. */
TEST(generator_is_xoshiro)
{
    replay_random random = {{1, 2, 3, 4}};
    assert_true(replay_random_next(&random) == 11520);
    assert_true(replay_random_next(&random) == 0);
    assert_true(replay_random_next(&random) == 1509978240);
    for (int i = 0; i < 1000; i++)
        assert_true(replay_random_below(&random, 7) < 7);
    for (int i = 0; i < 1000; i++)
        assert_true(replay_random_unit(&random) < 1.0);
}
