/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_bench_grid_figures.c - ratios, intervals and totals of the grid on planted figures.
 */
#include "cases.h"

#include "lab/bench/bench_grid.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SEEDS 3u

static void assert_near(double value, double wanted)
{
    if (!(fabs(value - wanted) < 1e-6)) fail_msg("%.9g is not %.9g", value, wanted);
}

/* 1, 2, 3 have the standard error 1/sqrt(3), and t is 4.303 at two degrees of freedom. */
TEST(interval_is_students)
{
    const double values[] = {1.0, 2.0, 3.0}, equal[] = {0.9, 0.9};
    grid_interval found = grid_interval_of(values, 3);
    assert_near(found.mean, 2.0);
    assert_near(found.high - 2.0, 4.303 / sqrt(3.0));
    assert_near(2.0 - found.low, 4.303 / sqrt(3.0));
    found = grid_interval_of(equal, 2);
    assert_near(found.low, 0.9);
    assert_near(found.high, 0.9);
    found = grid_interval_of(values, 1);
    assert_near(found.mean, 1.0);
    assert_true(isnan(found.low) && isnan(found.high));
}

static void plant(grid_run *run, const char *policy, bool lossless, const double ttft_s[SEEDS],
                  bool stable)
{
    *run = (grid_run){.policy = policy, .lossless = lossless};
    for (uint32_t seed = 0; seed < SEEDS; seed++)
        run->samples[seed] = (grid_sample){.stable = stable || seed != 1, .ttft_s = ttft_s[seed]};
}

/* A cell with the given TTFTs of ours beside a best rival of 1, 2 and 4 s. */
static void plant_cell(grid_result *result, const double ours[SEEDS], double bound_s)
{
    static const double raw[SEEDS] = {2.0, 2.0, 4.0}, lossless[SEEDS] = {1.0, 2.0, 4.0};
    static const double slow[SEEDS] = {9.0, 9.0, 9.0}, unstable[SEEDS] = {0.1, 0.1, 0.1};
    memset(result, 0, sizeof *result);
    result->runs = calloc(GRID_RUNS_MAX, sizeof *result->runs);
    assert_non_null(result->runs);
    plant(&result->runs[0], "slow", false, slow, true);
    plant(&result->runs[1], "unstable", false, unstable, false);
    plant(&result->runs[2], "rival", false, raw, true);
    plant(&result->runs[3], "rival", true, lossless, true);
    plant(&result->runs[4], GRID_OURS, false, ours, true);
    result->run_count = 5;
    result->requests[0] = 1;
    for (uint32_t seed = 0; seed < SEEDS; seed++)
        result->bound_s[seed] = bound_s;
    grid_judge(result, SEEDS);
}

/* The best rival is the one with the least mean in its better form; one without a mean is none. The
 * ratio is the mean of the seeds' ratios, which differs from the ratio of the means. */
TEST(ratio_is_paired_with_the_best_rival)
{
    static const double ours[SEEDS] = {1.2, 2.0, 4.0};
    grid_result result;
    plant_cell(&result, ours, 0.5);
    assert_int_equal(result.row_count, 4);
    const grid_row *best = &result.rows[result.best], *mine = &result.rows[result.ours];
    assert_string_equal(best->run->policy, "rival");
    assert_true(best->run->lossless);
    assert_near(best->ratio.mean, 1.0);
    assert_near(best->ratio.high, 1.0);
    assert_near(mine->ratio.mean, 3.2 / 3.0);
    assert_near(mine->ratio.mean - mine->ratio.low, 4.303 * sqrt(0.04 / 3.0 / 3.0));
    assert_near(result.bound_mean_s, 0.5);
    free(result.runs);
}

TEST(totals_count_what_is_lost_and_has_room)
{
    static const double lost[SEEDS] = {1.1, 2.2, 4.4}, even[SEEDS] = {1.0, 2.0, 4.0};
    static const double won[SEEDS] = {0.8, 1.6, 3.2}, tight[SEEDS] = {1.02, 2.04, 4.08};
    grid_result results[6];
    grid_totals totals;
    plant_cell(&results[0], lost, 1.0);
    plant_cell(&results[1], even, 2.3); /* the rival's 7/3 s lie within 5 % of that bound */
    plant_cell(&results[2], won, 1.0);
    plant_cell(&results[3], tight, 2.3);
    memset(&results[4], 0, 2 * sizeof results[0]);
    results[4].skipped = true;
    grid_sum(results, 6, &totals);
    assert_int_equal(totals.cells, 6);
    assert_int_equal(totals.skipped, 1);
    assert_int_equal(totals.unfinished, 1);
    assert_int_equal(totals.lost, 1); /* an interval that ends at 1.02 does not lie above it */
    assert_int_equal(totals.roomy, 2);
    assert_near(totals.geometric_mean, sqrt(1.1 * 0.8));
    assert_int_equal(totals.worst_count, 4);
    assert_ptr_equal(totals.worst[0], &results[0]);
    assert_ptr_equal(totals.worst[1], &results[3]);
    assert_ptr_equal(totals.worst[3], &results[2]);
    for (int i = 0; i < 4; i++)
        free(results[i].runs);
}

/* Without a mean of our own where a rival has one, a cell is lost. */
TEST(no_mean_of_ours_is_a_loss)
{
    static const double ours[SEEDS] = {0.1, 0.1, 0.1};
    grid_result result;
    grid_totals totals;
    plant_cell(&result, ours, 1.0);
    result.runs[4].samples[2].stable = false;
    grid_judge(&result, SEEDS);
    grid_sum(&result, 1, &totals);
    assert_true(isnan(result.rows[result.ours].ratio.mean));
    assert_int_equal(totals.lost, 1);
    assert_int_equal(totals.roomy, 0);
    free(result.runs);
}

TEST(reasons_name_the_cause)
{
    static const double ours[SEEDS] = {2.0, 3.0, 5.0};
    grid_result result;
    char text[768];
    plant_cell(&result, ours, 1.0);
    grid_sample *mine = &result.rows[result.ours].mean, *best = &result.rows[result.best].mean;
    mine->service_s = mine->ttft_s;
    best->service_s = best->ttft_s;
    mine->loaded = 0.4;
    best->loaded = 0.6;
    grid_explain(&result, text, sizeof text);
    assert_non_null(
        strstr(text, "it loads fewer tokens: loaded 40.0 % of the tokens against 60.0 %"));
    mine->loaded = 0.6;
    best->found[KVT_TIER_DRAM] = 0.5;
    grid_explain(&result, text, sizeof text);
    assert_non_null(strstr(text, "it finds fewer tokens in DRAM"));
    mine->wait_s = 5.0;
    mine->service_s = 0.0;
    grid_explain(&result, text, sizeof text);
    assert_non_null(strstr(text, "its requests wait longer"));
    free(result.runs);
}
