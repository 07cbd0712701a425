/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_sparse_divide.c - the bytes of windows go to the units where they save reads.
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
TEST(a_window_is_divided_by_what_it_saves)
{
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
