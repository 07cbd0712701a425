/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_estimator_pass_table.c - seconds of a layer: a row's own at its place, the model scaled by
 * the rows between and beyond them, whatever holes the table has.
 */
#include "cases.h"

#include <math.h>

#include "estimator/predict/predict.h"

static const kvt_prefill model = {
    .linear_seconds_per_token = 1e-4, .square_seconds_per_token2 = 1e-9, .fixed_seconds = 0.01};

static double seconds(const kvt_pass_row *rows, size_t count, uint32_t input, uint32_t prefix)
{
    const kvt_pass pass = {
        .struct_size = sizeof pass, .new_tokens = input, .prefix_tokens = prefix, .layers = 32};
    return kvt_pass_seconds(rows, count, &model, &pass);
}

static bool is_near(double value, double wanted)
{
    return fabs(value / wanted - 1) < 1e-9;
}

TEST(without_rows_the_model_counts)
{
    assert_true(is_near(seconds(NULL, 0, 1000, 0), (0.1 + 1e-9 * 1e6 + 0.01) / 32));
    assert_true(seconds(NULL, 0, 1000, 30000) > seconds(NULL, 0, 1000, 0));
    const kvt_pass pass = {.new_tokens = UINT32_MAX, .prefix_tokens = UINT32_MAX, .layers = 1};
    const kvt_prefill none = {0};
    assert_true(kvt_pass_seconds(NULL, 0, &none, &pass) > 0);
    assert_true(isfinite(kvt_pass_seconds(NULL, 0, &model, &pass)));
}

TEST(rows_count_at_their_place_and_scale_the_model_elsewhere)
{
    const kvt_pass_row rows[] = {{1000, 0, 0.02}, {4000, 30000, 0.5}};
    assert_true(is_near(seconds(rows, 2, 1000, 0), 0.02));
    assert_true(is_near(seconds(rows, 2, 4000, 30000), 0.5));
    /* A machine that is three times as slow everywhere is so in the holes, too. */
    kvt_pass_row slow[3] = {{500, 0, 0}, {2000, 0, 0}, {2000, 64000, 0}};
    for (size_t i = 0; i < 3; i++)
        slow[i].layer_seconds = 3 * seconds(NULL, 0, slow[i].new_tokens, slow[i].prefix_tokens);
    for (uint32_t prefix = 0; prefix < 100000; prefix += 9999)
        assert_true(is_near(seconds(slow, 3, 1234, prefix), 3 * seconds(NULL, 0, 1234, prefix)));
    /* Between two rows that disagree it lies between them. */
    const kvt_pass_row two[] = {{500, 0, seconds(NULL, 0, 500, 0)},
                                {2000, 0, 2 * seconds(NULL, 0, 2000, 0)}};
    const double scale = seconds(two, 2, 1000, 0) / seconds(NULL, 0, 1000, 0);
    assert_true(scale > 1 && scale < 2);
}

TEST(extreme_rows_give_finite_seconds)
{
    const kvt_pass_row rows[] = {{1, 0, 1e300}, {UINT32_MAX, UINT32_MAX, 1e-300}};
    assert_true(kvt_pass_rows_are_sound(rows, 2));
    for (uint32_t input = 1; input < 1u << 30; input *= 8) {
        const double value = seconds(rows, 2, input, input);
        assert_true(isfinite(value) && value > 0);
    }
    assert_false(kvt_pass_rows_are_sound(NULL, 0));
}
