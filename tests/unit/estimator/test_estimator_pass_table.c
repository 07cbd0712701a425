/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_estimator_pass_table.c - seconds of a layer: a row's own at its place, the model scaled by
 * the rows between and beyond them, whatever holes the table has; tables in a profile, whole or not
 * at all.
 */
#include "cases.h"
#include "estimator/predict/predict.h"
#include "profile_scratch.h"

#include <math.h>

TEST_ALL(scratch_make, scratch_remove);

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

static size_t count_rows(kvt_profile *profile, const char *name, double *first_out)
{
    kvt_pass_row *rows;
    size_t count;
    const kvt_status status = kvt_profile_passes(profile, name, &rows, &count);
    if (status == KVT_MISS) return 0;
    assert_ok(status);
    *first_out = rows[0].layer_seconds;
    free(rows);
    return count;
}

TEST(a_profile_keeps_tables_by_name)
{
    const kvt_pass_row first[] = {{4096, 0, 0.5}, {512, 8192, 0.25}, {512, 0, 0.125}};
    const kvt_pass_row second[] = {{512, 0, 7}};
    double seconds_of_one = 0;
    scratch_remove_profile();
    kvt_profile *profile = scratch_open(KVT_PROFILE_WRITE);
    assert_int_equal(count_rows(profile, "m", &seconds_of_one), 0);
    assert_ok(kvt_profile_passes_put(profile, "m", first, 3, "a paper", "command"));
    assert_ok(kvt_profile_passes_put(profile, "other", second, 1, "a paper", "command"));
    assert_int_equal(count_rows(profile, "m", &seconds_of_one), 3);
    assert_true(seconds_of_one == 0.125); /* by new tokens, then prefix */
    /* What was measured here answers before an import, and its rows are not mixed with those. */
    assert_ok(kvt_profile_passes_put(profile, "m", second, 1, NULL, "command"));
    assert_ok(kvt_profile_passes_put(profile, "m", first, 3, "a later paper", "command"));
    assert_int_equal(count_rows(profile, "m", &seconds_of_one), 1);
    assert_true(seconds_of_one == 7);
    assert_int_equal(count_rows(profile, "other", &seconds_of_one), 1);
    kvt_profile_close(profile);
    profile = scratch_open(KVT_PROFILE_READ);
    assert_int_equal(kvt_profile_passes_put(profile, "m", first, 3, NULL, "command"),
                     KVT_E_READ_ONLY);
    assert_int_equal(count_rows(profile, "m", &seconds_of_one), 1);
    kvt_profile_close(profile);
}

TEST(what_is_no_table_changes_no_profile)
{
    static kvt_pass_row rows[PROFILE_PASS_ROWS_MAX + 1];
    const double wrong[] = {0, -1, NAN, INFINITY};
    char name[PROFILE_PASS_NAME_MAX + 2];
    double unused;
    scratch_remove_profile();
    kvt_profile *profile = scratch_open(KVT_PROFILE_WRITE);
    for (uint32_t i = 0; i <= PROFILE_PASS_ROWS_MAX; i++)
        rows[i] = (kvt_pass_row){.new_tokens = i + 1, .layer_seconds = 1};
    memset(name, 'n', sizeof name);
    name[sizeof name - 1] = '\0';
    assert_int_equal(kvt_profile_passes_put(profile, name, rows, 3, NULL, ""), KVT_E_ARGUMENT);
    assert_int_equal(kvt_profile_passes_put(profile, "", rows, 3, NULL, ""), KVT_E_ARGUMENT);
    assert_int_equal(kvt_profile_passes_put(profile, "m", rows, 0, NULL, ""), KVT_E_ARGUMENT);
    assert_int_equal(
        kvt_profile_passes_put(profile, "m", rows, PROFILE_PASS_ROWS_MAX + 1, NULL, ""),
        KVT_E_ARGUMENT);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        rows[2].layer_seconds = wrong[i];
        assert_int_equal(kvt_profile_passes_put(profile, "m", rows, 3, NULL, ""), KVT_E_ARGUMENT);
    }
    rows[2] = rows[1]; /* a place twice */
    assert_int_equal(kvt_profile_passes_put(profile, "m", rows, 3, NULL, ""), KVT_E_ARGUMENT);
    assert_int_equal(count_rows(profile, "m", &unused), 0);
    assert_int_equal(scratch_number("SELECT count(*) FROM run"), 0);
    rows[2].new_tokens = 3;
    assert_ok(kvt_profile_passes_put(profile, "m", rows, PROFILE_PASS_ROWS_MAX, NULL, "command"));
    assert_int_equal(count_rows(profile, "m", &unused), PROFILE_PASS_ROWS_MAX);
    kvt_profile_close(profile);
}
