/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_replay_generator.c - the Poisson workload: reproducible, of the asked shape, and a prefix
 * tree: every block has one predecessor and one position.
 */
#include "replay/random.h"
#include "replay/workload.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
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
    assert_int_equal(replay_workload_generate(generator, workload, message, sizeof message),
                     KVT_OK);
}

static void same_seed_same_workload(void **state)
{
    (void)state;
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

static void paths_form_a_prefix_tree(void **state)
{
    (void)state;
    replay_generator generator = base_generator();
    replay_workload workload;
    generate(&generator, &workload);
    assert_int_equal(workload.request_count, generator.requests);
    uint32_t *parent = malloc((size_t)workload.distinct_blocks * sizeof *parent);
    uint32_t *position = malloc((size_t)workload.distinct_blocks * sizeof *position);
    assert_true(parent != NULL && position != NULL);
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
    free(parent);
    free(position);
    replay_workload_free(&workload);
}

/* The bounds are far outside what 4000 draws of the fixed seed can miss by chance; the draw is the
 * same on every machine anyhow. */
static void shape_is_as_asked(void **state)
{
    (void)state;
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

static void popularity_follows_zipf(void **state)
{
    (void)state;
    replay_generator generator = base_generator();
    replay_workload workload;
    generator.turns_mean = 1.0;
    generator.zipf = 2.0;
    generator.system_tokens = 0;
    generator.tokens_sigma = 0.0; /* every context 4000 tokens: 15 full blocks of its own */
    generate(&generator, &workload);
    uint32_t *uses = calloc((size_t)workload.distinct_blocks, sizeof *uses);
    assert_non_null(uses);
    uint32_t most = 0;
    for (uint64_t i = 0; i < workload.request_count; i++) {
        uint32_t root = workload.blocks[workload.requests[i].first_block];
        if (++uses[root] > most) most = uses[root];
    }
    /* The first of 50 contexts at exponent 2 has 1 / 1.625 = 61.5 % of the draws. */
    double share = (double)most / (double)workload.request_count;
    assert_true(share > 0.58 && share < 0.65);
    free(uses);
    replay_workload_free(&workload);
}

static void faulty_settings_are_refused(void **state)
{
    (void)state;
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
    assert_non_null(strstr(message, "31 days"));
}

/* The first values of xoshiro256** from the state {1, 2, 3, 4}, worked out by hand from the
 * definition: rotl(s1 * 5, 7) * 9. */
static void generator_is_xoshiro(void **state)
{
    (void)state;
    replay_random random = {{1, 2, 3, 4}};
    assert_true(replay_random_next(&random) == 11520);
    assert_true(replay_random_next(&random) == 0);
    assert_true(replay_random_next(&random) == 1509978240);
    for (int i = 0; i < 1000; i++)
        assert_true(replay_random_below(&random, 7) < 7);
    for (int i = 0; i < 1000; i++)
        assert_true(replay_random_unit(&random) < 1.0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_seed_same_workload),     cmocka_unit_test(paths_form_a_prefix_tree),
        cmocka_unit_test(shape_is_as_asked),           cmocka_unit_test(popularity_follows_zipf),
        cmocka_unit_test(faulty_settings_are_refused), cmocka_unit_test(generator_is_xoshiro),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
