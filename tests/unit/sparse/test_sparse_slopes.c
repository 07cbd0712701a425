/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_sparse_slopes.c - indexes that may take a share of the rows' bytes: slopes stay where they
 * change the output most, the same ones each time, and a kept sequence has those alone.
 */
#include "sequence_site.h"
#include "sparse/sequence.h"

enum { MIB = 1 << 20, UNITS = SITE_LAYERS * SITE_HEADS, ROWS = 8, STEPS = 16 };

/* Values of one unit follow a channel of its keys, so that slopes tell much there; those of the
 * others are small. */
static void follow_keys(sequence_site *s, uint32_t layer, uint32_t head)
{
    static uint16_t held[SITE_LAYERS][SITE_TOKENS * SITE_ROW];
    static bool is_held;
    for (uint32_t l = 0; l < SITE_LAYERS; l++) {
        if (!is_held) memcpy(held[l], s->v[l], sizeof held[l]);
        for (uint32_t i = 0; i < SITE_TOKENS * SITE_ROW; i++) {
            const bool own = l == layer && i % SITE_ROW / SITE_DIM == head;
            const float key = site_float(s->k[l][i / SITE_DIM * SITE_DIM + 3]);
            const float value = site_float(held[l][i]);
            s->v[l][i] = site_bf16(own ? 4.0f * key + 0.1f * value : value / 64.0f);
        }
    }
    is_held = true;
}

static void observe(sequence_site *s, kvt_sparse *sequence)
{
    float rows[ROWS * SITE_QUERY];
    s->random = 41;
    for (uint32_t layer = 0; layer < SITE_LAYERS; layer++) {
        for (uint32_t i = 0; i < ROWS; i++)
            site_query(s, layer, i * 5, rows + (size_t)i * SITE_QUERY);
        assert_ok(kvt_sparse_observe(sequence, layer, rows, ROWS));
    }
}

static double run_steps(sequence_site *s, kvt_sparse *sequence, uint32_t layer)
{
    double error = 0.0;
    s->random = 43;
    for (uint32_t i = 0; i < STEPS; i++) {
        float queries[SITE_QUERY];
        site_query(s, layer, i * 3, queries);
        error += site_step(s, sequence, layer, queries, NULL, NULL) / STEPS;
    }
    return error;
}

static uint32_t sloped_units(const kvt_sparse *sequence)
{
    uint32_t mask = 0;
    for (uint32_t i = 0; i < UNITS; i++)
        mask |= (uint32_t)(sequence->units[i].index.slopes != NULL) << i;
    return mask;
}

/* The share at which `count` units have slopes, and half of one more would fit. */
static float share_of(const kvt_sparse *sequence, double count)
{
    double bytes = 0.0, rows = 0.0;
    for (uint32_t i = 0; i < UNITS; i++) {
        bytes += (double)sequence->units[i].index.bytes;
        rows += 4.0 * SITE_DIM * sequence->zone_tokens;
    }
    return (float)((bytes + (count + 0.5) * (double)sequence->units[0].index.slope_bytes) / rows);
}

static kvt_sparse_options options_of(float share)
{
    kvt_sparse_options options = site_options();
    options.window_bytes[KVT_TIER_DRAM] = 0;
    options.budget_bytes = 24 << 10;
    options.index_share = share;
    return options;
}

TEST(slopes_stay_where_they_change_the_output_most)
{
    sequence_site *s = site_start(8 * MIB, 8 * MIB);
    double error[4];
    float share[4] = {0.0f};
    follow_keys(s, 1, 0);
    for (uint32_t i = 0; i < 4; i++) { /* all, one, none, all of a share of 1 */
        const kvt_sparse_options options = options_of(i < 3 ? share[i] : 1.0f);
        kvt_sparse *sequence = site_sequence(s, &options);
        const uint64_t before = site_stats(sequence).index_bytes;
        if (i == 0) {
            share[1] = share_of(sequence, 1);
            share[2] = 1e-6f;
        }
        assert_int_equal(sloped_units(sequence), 15);
        observe(s, sequence);
        assert_int_equal(sloped_units(sequence), i == 1 ? 4 : i == 2 ? 0 : 15);
        const uint64_t left = (i == 1   ? 3
                               : i == 2 ? 4
                                        : 0) *
                              sparse_index_slope_bytes(SITE_DIM, sequence->units[0].index.clusters);
        assert_int_equal(site_stats(sequence).index_bytes, before - left);
        error[i] = run_steps(s, sequence, 1);
        kvt_sparse_close(sequence);
    }
    print_message("error with slopes of all %.4f, of one %.4f, without %.4f\n", error[0], error[1],
                  error[2]);
    assert_true(error[3] == error[0]);
    /* The small values of the other units hardly tell. */
    assert_true(fabs(error[1] - error[0]) < 0.1 * fabs(error[2] - error[0]));
}

/* Without observed queries the later ones leave, at the first step or when it is kept. */
TEST(without_queries_the_first_units_keep_theirs)
{
    sequence_site *s = site_start(16 * MIB, 8 * MIB);
    kvt_sparse_options options = options_of(0.0f);
    const kvt_key key = support_key(5);
    kvt_sparse *sequence = site_sequence(s, &options);
    options.index_share = share_of(sequence, 2);
    kvt_sparse_close(sequence);
    for (uint32_t i = 0; i < 2; i++) {
        float queries[SITE_QUERY];
        kvt_sparse_step *step = NULL;
        sequence = site_sequence(s, &options);
        site_query(s, 1, 3, queries);
        if (i == 0) assert_ok(kvt_sparse_select(sequence, 1, queries, &step));
        if (i == 1) assert_ok(kvt_sparse_keep(sequence, &key));
        assert_int_equal(sloped_units(sequence), 3);
        kvt_sparse_done(sequence, step);
        kvt_sparse_close(sequence);
    }
}

TEST(a_kept_sequence_has_the_slopes_that_it_was_kept_with)
{
    sequence_site *s = site_start(16 * MIB, 8 * MIB);
    kvt_sparse_options options = options_of(0.0f);
    const kvt_key key = support_key(6);
    follow_keys(s, 0, 1);
    kvt_sparse *sequence = site_sequence(s, &options);
    options.index_share = share_of(sequence, 1);
    kvt_sparse_close(sequence);
    sequence = site_sequence(s, &options);
    observe(s, sequence);
    assert_int_equal(sloped_units(sequence), 2);
    const double error = run_steps(s, sequence, 0);
    assert_ok(kvt_sparse_keep(sequence, &key));
    kvt_sparse_close(sequence);
    for (uint32_t i = 0; i < 2; i++) {
        if (i == 1) options.index_share = 1e-6f;
        sequence = site_open_kept(s, &options, &key);
        assert_int_equal(sloped_units(sequence), 2);
        const double own = run_steps(s, sequence, 0);
        assert_true(i == 0 ? own == error : own != error);
        assert_int_equal(sloped_units(sequence), i == 0 ? 2 : 0);
        kvt_sparse_close(sequence);
    }
}
