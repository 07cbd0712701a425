/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_sparse_knapsack.c - the static solver against brute force, and the bound against everything;
 * the bytes of windows go to the units where they save reads.
 */
#include "policy_support.h"
#include "sequence_site.h"

#include "sparse/decide/knapsack.h"
#include "sparse/sequence.h"

#define ENTRIES_MOST 8u
#define OPTIONS_MOST 4u

typedef struct drawn {
    uint32_t first[ENTRIES_MOST + 1];
    double value[ENTRIES_MOST * OPTIONS_MOST];
    uint64_t bytes[ENTRIES_MOST * OPTIONS_MOST * KNAPSACK_ROWS];
    knapsack k;
} drawn;

static void drawn_make(drawn *x, uint64_t *dice)
{
    uint32_t n = 1 + (uint32_t)test_below(dice, ENTRIES_MOST);
    uint32_t most = n > 6 ? 3 : OPTIONS_MOST;
    uint32_t count = 0;
    for (uint32_t i = 0; i < n; i++) {
        x->first[i] = count;
        uint32_t options = (uint32_t)test_below(dice, most + 1);
        for (uint32_t o = 0; o < options; o++, count++) {
            x->value[count] = (double)test_below(dice, 1000) - 100.0;
            for (int tier = 0; tier < KNAPSACK_ROWS; tier++) {
                /* Some options span tiers. */
                uint64_t bytes = test_below(dice, 3) == 0 ? test_below(dice, 100) : 0;
                x->bytes[count * KNAPSACK_ROWS + (uint32_t)tier] = bytes;
            }
        }
    }
    x->first[n] = count;
    x->k = (knapsack){.entries = n, .first = x->first, .value = x->value, .bytes = x->bytes};
    for (int tier = 0; tier < KNAPSACK_ROWS; tier++)
        x->k.capacity[tier] = test_below(dice, 4) == 0 ? 0 : test_below(dice, 250);
}

static double brute(const drawn *x, uint32_t i, const uint64_t free[KNAPSACK_ROWS])
{
    if (i == x->k.entries) return 0.0;
    double best = brute(x, i + 1, free);
    for (uint32_t o = x->first[i]; o < x->first[i + 1]; o++) {
        uint64_t left[KNAPSACK_ROWS];
        bool fits = true;
        for (int tier = 0; tier < KNAPSACK_ROWS; tier++) {
            uint64_t bytes = x->bytes[o * KNAPSACK_ROWS + (uint32_t)tier];
            fits = fits && bytes <= free[tier];
            left[tier] = free[tier] - bytes;
        }
        if (!fits) continue;
        double value = x->value[o] + brute(x, i + 1, left);
        if (value > best) best = value;
    }
    return best;
}

static void check_choice(const drawn *x, const uint32_t *choice, const knapsack_result *result)
{
    uint64_t used[KNAPSACK_ROWS] = {0};
    double value = 0.0;
    for (uint32_t i = 0; i < x->k.entries; i++) {
        if (choice[i] == KNAPSACK_NONE) continue;
        assert_in_range(choice[i], x->first[i], x->first[i + 1] - 1);
        value += x->value[choice[i]];
        for (int tier = 0; tier < KNAPSACK_ROWS; tier++)
            used[tier] += x->bytes[choice[i] * KNAPSACK_ROWS + (uint32_t)tier];
    }
    for (int tier = 0; tier < KNAPSACK_ROWS; tier++) {
        assert_true(used[tier] <= x->k.capacity[tier]);
        assert_int_equal(used[tier], result->used[tier]);
    }
    assert_true(value > result->primal - 1e-6 && value < result->primal + 1e-6);
}

TEST(small_instances_are_solved_exactly)
{
    uint64_t dice = 11;
    for (int round = 0; round < 600; round++) {
        drawn x;
        uint32_t choice[ENTRIES_MOST];
        knapsack_step steps[ENTRIES_MOST];
        knapsack_result result;
        drawn_make(&x, &dice);
        knapsack_solve(&x.k, choice, steps, &result);
        double best = brute(&x, 0, x.k.capacity);
        check_choice(&x, choice, &result);
        if (result.primal < best - 1e-6 || result.primal > best + 1e-6) {
            fail_msg("round %d: %f, the best is %f", round, result.primal, best);
        }
        assert_true(result.dual >= best - 1e-6);
    }
}

/* Many small entries: the gap is what one entry is worth. */
TEST(the_gap_closes_with_size)
{
    enum { N = 20000, M = 4 };
    uint32_t *first = test_alloc(sizeof *first * (N + 1));
    double *value = test_alloc(sizeof *value * N * M);
    uint64_t *bytes = test_zeros((size_t)N * M * KNAPSACK_ROWS * sizeof *bytes);
    uint32_t *choice = test_alloc(sizeof *choice * N);
    knapsack_step *steps = test_alloc(sizeof *steps * N);
    for (int tiers = 1; tiers <= 2; tiers++) {
        uint64_t dice = 5 + (uint64_t)tiers;
        for (uint32_t i = 0; i < N; i++) {
            first[i] = i * M;
            uint64_t size = 50 + test_below(&dice, 100);
            double worth = (double)(1 + test_below(&dice, 1000));
            for (uint32_t o = 0; o < M; o++) {
                uint32_t at = i * M + o;
                int tier = tiers == 2 && o >= 2 ? 2 : 1;
                memset(&bytes[at * KNAPSACK_ROWS], 0, KNAPSACK_ROWS * sizeof *bytes);
                bytes[at * KNAPSACK_ROWS + (uint32_t)tier] = o % 2 == 0 ? size : size / 3;
                value[at] = worth * (tier == 1 ? 1.0 : 0.6) * (o % 2 == 0 ? 1.0 : 0.7);
            }
        }
        first[N] = N * M;
        knapsack k = {.entries = N, .first = first, .value = value, .bytes = bytes};
        k.capacity[1] = 200000;
        k.capacity[2] = tiers == 2 ? 500000 : 0;
        knapsack_result result;
        knapsack_solve(&k, choice, steps, &result);
        assert_true(result.dual >= result.primal * (1.0 - 1e-12));
        double gap = (result.dual - result.primal) / result.dual;
        if (gap > 1e-4) fail_msg("%d tiers: gap %g", tiers, gap);
    }
}

/* ---- windows ---- */

enum { MIB = 1 << 20 };

/* "; window USED of CAPACITY" of a head. */
static uint64_t capacity_of(kvt_sparse *sequence, uint32_t layer, uint32_t head)
{
    char text[512];
    size_t length;
    unsigned long long used, capacity;
    assert_ok(kvt_sparse_explain(sequence, layer, head, text, sizeof text, &length));
    const char *at = strstr(text, "; window ");
    assert_non_null(at);
    assert_int_equal(sscanf(at, "; window %llu of %llu", &used, &capacity), 2);
    assert_true(used <= capacity);
    return capacity;
}

/* One layer's queries stay with two topics, the other's come back to all of a dozen: there is where
 * room saves reads. */
TEST(a_window_is_divided_by_what_it_saves)
{
    enum { STEPS = 400 };
    sequence_site *s = site_start(8 * MIB, 8 * MIB);
    uint64_t hits[2];
    double error[2] = {0, 0};
    for (int divided = 0; divided < 2; divided++) {
        kvt_sparse_options options = site_options();
        options.window_bytes[KVT_TIER_DRAM] = 1 << 20;
        options.budget_bytes = 40 << 10;
        options.divide_windows = divided;
        kvt_sparse *sequence = site_sequence(s, &options);
        uint64_t capacity[SITE_LAYERS] = {0};
        float rows[24 * SITE_QUERY];
        s->random = 77;
        for (uint32_t layer = 0; layer < SITE_LAYERS; layer++) {
            for (uint32_t i = 0; i < 24; i++)
                site_query(s, layer, i % (layer == 0 ? 2 : 12), rows + (size_t)i * SITE_QUERY);
            assert_ok(kvt_sparse_observe(sequence, layer, rows, 24));
        }
        for (uint32_t i = 0; i < STEPS; i++) {
            const uint32_t layer = i % SITE_LAYERS, topic = i / SITE_LAYERS;
            float queries[SITE_QUERY];
            site_query(s, layer, topic % (layer == 0 ? 2 : 12), queries);
            if (i >= STEPS - SITE_LAYERS) {
                kvt_sparse_step *step;
                assert_ok(kvt_sparse_select(sequence, layer, queries, &step));
                for (uint32_t h = 0; h < SITE_HEADS; h++)
                    capacity[layer] += capacity_of(sequence, layer, h);
                kvt_sparse_done(sequence, step);
            } else {
                error[divided] += site_step(s, sequence, layer, queries, NULL, NULL) / STEPS;
            }
        }
        kvt_sparse_stats stats = {.struct_size = sizeof stats};
        assert_ok(kvt_sparse_stats_get(sequence, &stats));
        hits[divided] = stats.hit_bytes;
        assert_true(capacity[0] + capacity[1] <= options.window_bytes[KVT_TIER_DRAM]);
        assert_true(divided ? stats.divisions > 0 && capacity[1] > capacity[0] * 3 / 2
                            : stats.divisions == 0 && capacity[1] == capacity[0]);
        kvt_sparse_close(sequence);
    }
    print_message("hit bytes %llu -> %llu, error %.4f -> %.4f\n", (unsigned long long)hits[0],
                  (unsigned long long)hits[1], error[0], error[1]);
    assert_true(hits[1] > hits[0] && error[1] < error[0]);
}
