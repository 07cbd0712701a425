/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_sparse_divide.c - the window's bytes go to the units where they save reads, and the budget's
 * to those where they take error away.
 */
#include "sequence_site.h"

#include "sparse/sequence.h"

enum { MIB = 1 << 20 };

/* "; window USED of CAPACITY" of a head. */
static uint64_t capacity_of(kvt_sparse *sequence, uint32_t layer, uint32_t head)
{
    char text[512];
    size_t length;
    unsigned long long used, capacity;
    assert_int_equal(kvt_sparse_explain(sequence, layer, head, text, sizeof text, &length), KVT_OK);
    const char *at = strstr(text, "; window ");
    assert_non_null(at);
    assert_int_equal(sscanf(at, "; window %llu of %llu", &used, &capacity), 2);
    assert_true(used <= capacity);
    return capacity;
}

/* One layer's queries stay with two topics, the other's come back to all of a dozen: there is where
 * room saves reads. */
static void test_a_window_is_divided_by_what_it_saves(void **state)
{
    (void)state;
    enum { STEPS = 400 };
    sequence_site s;
    site_start(&s, 8 * MIB, 8 * MIB);
    uint64_t hits[2];
    double error[2] = {0, 0};
    for (int divided = 0; divided < 2; divided++) {
        kvt_sparse_options options = site_options();
        options.window_bytes[KVT_TIER_DRAM] = 1 << 20;
        options.budget_bytes = 40 << 10;
        options.divide_windows = divided;
        kvt_sparse *sequence = site_sequence(&s, &options);
        uint64_t capacity[SITE_LAYERS] = {0};
        float rows[24 * SITE_QUERY];
        s.random = 77;
        for (uint32_t layer = 0; layer < SITE_LAYERS; layer++) {
            for (uint32_t i = 0; i < 24; i++)
                site_query(&s, layer, i % (layer == 0 ? 2 : 12), rows + (size_t)i * SITE_QUERY);
            assert_int_equal(kvt_sparse_observe(sequence, layer, rows, 24), KVT_OK);
        }
        for (uint32_t i = 0; i < STEPS; i++) {
            const uint32_t layer = i % SITE_LAYERS, topic = i / SITE_LAYERS;
            float queries[SITE_QUERY];
            site_query(&s, layer, topic % (layer == 0 ? 2 : 12), queries);
            if (i >= STEPS - SITE_LAYERS) {
                kvt_sparse_step *step;
                assert_int_equal(kvt_sparse_select(sequence, layer, queries, &step), KVT_OK);
                for (uint32_t h = 0; h < SITE_HEADS; h++)
                    capacity[layer] += capacity_of(sequence, layer, h);
                kvt_sparse_done(sequence, step);
            } else {
                error[divided] += site_step(&s, sequence, layer, queries, NULL, NULL) / STEPS;
            }
        }
        kvt_sparse_stats stats = {.struct_size = sizeof stats};
        assert_int_equal(kvt_sparse_stats_get(sequence, &stats), KVT_OK);
        hits[divided] = stats.hit_bytes;
        assert_true(capacity[0] + capacity[1] <= options.window_bytes[KVT_TIER_DRAM]);
        assert_true(divided ? stats.divisions > 0 && capacity[1] > capacity[0] * 3 / 2
                            : stats.divisions == 0 && capacity[1] == capacity[0]);
        kvt_sparse_close(sequence);
    }
    print_message("hit bytes %llu -> %llu, error %.4f -> %.4f\n", (unsigned long long)hits[0],
                  (unsigned long long)hits[1], error[0], error[1]);
    assert_true(hits[1] > hits[0] && error[1] < error[0]);
    site_stop(&s);
}

/* One layer's queries are of single topics, the other's of nothing much, whose attention the
 * estimate knows: pages of the first are worth more. */
static void budget_query(sequence_site *s, uint32_t layer, uint32_t topic, float *queries)
{
    site_query(s, layer, topic, queries);
    for (uint32_t i = 0; i < SITE_QUERY && layer == 1; i++)
        queries[i] *= 0.05f;
}

static kvt_sparse *budget_sequence(sequence_site *s, const kvt_sparse_options *options)
{
    kvt_sparse *sequence = site_sequence(s, options);
    float rows[12 * SITE_QUERY];
    for (uint32_t layer = 0; layer < SITE_LAYERS; layer++) {
        for (uint32_t i = 0; i < 12; i++)
            budget_query(s, layer, i, rows + (size_t)i * SITE_QUERY);
        assert_int_equal(kvt_sparse_observe(sequence, layer, rows, 12), KVT_OK);
    }
    return sequence;
}

static kvt_sparse_options budget_options(bool divided)
{
    kvt_sparse_options options = site_options();
    options.window_bytes[KVT_TIER_DRAM] = 0;
    options.budget_bytes = 64 << 10;
    options.divide_budgets = divided;
    return options;
}

static void test_a_budget_goes_where_it_takes_error_away(void **state)
{
    (void)state;
    enum { STEPS = 60 };
    sequence_site s;
    site_start(&s, 8 * MIB, 8 * MIB);
    double squared[2] = {0.0, 0.0};
    uint64_t bytes[2] = {0, 0};
    for (int divided = 0; divided < 2; divided++) {
        const kvt_sparse_options options = budget_options(divided);
        s.random = 99;
        kvt_sparse *sequence = budget_sequence(&s, &options);
        uint64_t budgets[SITE_LAYERS] = {0};
        for (uint32_t u = 0; u < SITE_LAYERS * SITE_HEADS; u++)
            budgets[u / SITE_HEADS] += sequence->units[u].budget_bytes;
        assert_true(budgets[0] + budgets[1] <= SITE_LAYERS * options.budget_bytes);
        if (divided)
            assert_true(budgets[0] > budgets[1]);
        else
            assert_int_equal(budgets[0], budgets[1]);
        for (uint32_t i = 0; i < STEPS; i++) {
            const uint32_t layer = i % SITE_LAYERS;
            float queries[SITE_QUERY], output[SITE_QUERY];
            double exact[SITE_QUERY];
            kvt_sparse_step *step;
            const kvt_sparse_pages *pages;
            budget_query(&s, layer, i / SITE_LAYERS % 12, queries);
            assert_int_equal(kvt_sparse_select(sequence, layer, queries, &step), KVT_OK);
            assert_int_equal(kvt_sparse_wait(sequence, step, KVT_NO_DEADLINE, &pages), KVT_OK);
            assert_int_equal(kvt_sparse_attend(pages, queries, output, NULL), KVT_OK);
            assert_true(pages->read_bytes <= budgets[layer]);
            bytes[divided] += pages->read_bytes;
            kvt_sparse_done(sequence, step);
            site_exact(&s, layer, SITE_TOKENS, queries, exact);
            for (uint32_t j = 0; j < SITE_QUERY; j++)
                squared[divided] += pow((double)output[j] - exact[j], 2);
        }
        kvt_sparse_stats stats = {.struct_size = sizeof stats};
        assert_int_equal(kvt_sparse_stats_get(sequence, &stats), KVT_OK);
        assert_int_equal(stats.budget_divisions, divided);
        kvt_sparse_close(sequence);
    }
    assert_true(squared[1] < 0.8 * squared[0]);
    assert_true(bytes[1] <= (uint64_t)STEPS * (64 << 10));
    site_stop(&s);
}

/* What there is nothing to divide of stays as it is, and lost pages end no measurement. */
static void test_budgets_that_are_not_divided(void **state)
{
    (void)state;
    sequence_site s;
    site_start(&s, 8 * MIB, 8 * MIB);
    const uint64_t given[] = {0, KVT_SPARSE_ALL, 64 << 10};
    for (int i = 0; i < 3; i++) {
        kvt_sparse_options options = budget_options(true);
        options.budget_bytes = given[i];
        options.replica_share = 0.0f;
        kvt_sparse *sequence = NULL;
        if (i < 2) {
            sequence = budget_sequence(&s, &options);
            for (uint32_t u = 0; u < SITE_LAYERS * SITE_HEADS; u++)
                assert_true(sequence->units[u].budget_bytes == given[i]);
        } else {
            const tiers_fault_rule rule = {.action = TIERS_FAULT_FAIL,
                                           .kinds = TIERS_FAULT_READS,
                                           .hits = UINT64_MAX,
                                           .status = KVT_E_IO};
            float rows[SITE_QUERY];
            sequence = site_sequence(&s, &options);
            assert_int_equal(tiers_fault_add(s.drives[1].device, &rule), KVT_OK);
            for (uint32_t layer = 0; layer < SITE_LAYERS; layer++) {
                budget_query(&s, layer, 3, rows);
                assert_int_equal(kvt_sparse_observe(sequence, layer, rows, 1), KVT_OK);
            }
            tiers_fault_clear(s.drives[1].device);
        }
        kvt_sparse_close(sequence);
    }
    site_stop(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_window_is_divided_by_what_it_saves),
        cmocka_unit_test(test_a_budget_goes_where_it_takes_error_away),
        cmocka_unit_test(test_budgets_that_are_not_divided),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
