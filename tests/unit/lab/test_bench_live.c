/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_bench_live.c - the live bench judges planted readings: ratios, ranks, pairs, wrong bytes,
 * and prints them; the settings are the ones that are promised. No store runs here.
 */
#include "cases.h"

#include "lab/bench/bench_live.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static void plant(live_results *results, uint32_t setting, uint32_t policy, double live, double sim)
{
    live_row *row = &results->rows[results->row_count++];
    *row = (live_row){.setting = setting, .policy = policy};
    row->live.ttft_s = live;
    row->sim.ttft_s = sim;
    if (setting + 1 > results->setting_count) results->setting_count = setting + 1;
}

TEST(ranks_and_ratios_are_of_one_setting)
{
    live_results results = {0};
    plant(&results, 0, 0, 1.05, 1.00);
    plant(&results, 0, 1, 2.20, 2.00);
    plant(&results, 0, 2, 0.90, 0.95);
    plant(&results, 1, 0, 9.00, 9.50); /* the best of its own setting */
    live_judge(&results);
    assert_int_equal(results.rows[0].rank_live, 2);
    assert_int_equal(results.rows[0].rank_sim, 2);
    assert_int_equal(results.rows[1].rank_live, 3);
    assert_int_equal(results.rows[2].rank_sim, 1);
    assert_int_equal(results.rows[3].rank_live, 1);
    assert_true(results.rows[1].ratio > 1.0999 && results.rows[1].ratio < 1.1001);
    assert_int_equal(results.totals.rows, 4);
    /* 0.95 and 1.00 differ by more than 5 % of the smaller one. */
    assert_int_equal(results.totals.pairs, 3);
    assert_int_equal(results.totals.inverted, 0);
    assert_true(results.totals.ratio_least > 0.947 && results.totals.ratio_least < 0.948);
}

TEST(a_ratio_beyond_a_tenth_misses_the_promise)
{
    for (int side = 0; side < 2; side++) {
        live_results results = {0};
        plant(&results, 0, 0, 1.0, 1.0);
        plant(&results, 0, 1, side == 0 ? 2.3 : 1.7, 2.0);
        live_judge(&results);
        assert_int_equal(results.totals.within, 1);
        assert_false(results.rows[1].within);
        assert_false(results.totals.met);
        results.rows[1].live.ttft_s = side == 0 ? 2.19 : 1.81;
        live_judge(&results);
        assert_true(results.totals.met);
    }
}

TEST(ranks_count_where_the_simulator_tells_apart)
{
    live_results results = {0};
    plant(&results, 0, 0, 1.02, 1.00);
    plant(&results, 0, 1, 1.00, 1.04); /* the other way round, but within 5 % */
    live_judge(&results);
    assert_int_equal(results.totals.pairs, 0);
    assert_true(results.totals.met);
    results.rows[1].sim.ttft_s = 1.06;
    live_judge(&results);
    assert_int_equal(results.totals.pairs, 1);
    assert_int_equal(results.totals.inverted, 1);
    assert_false(results.totals.met);
}

TEST(wrong_bytes_and_no_rows_miss_the_promise)
{
    live_results results = {0};
    live_judge(&results);
    assert_false(results.totals.met);
    plant(&results, 0, 0, 1.0, 1.0);
    results.rows[0].live.wrong_bytes = 3;
    live_judge(&results);
    assert_int_equal(results.totals.wrong_bytes, 3);
    assert_false(results.totals.met);
}

TEST(the_settings_are_those_promised)
{
    uint32_t by_speed[3] = {0}, low = 0, high = 0, slow = 0;
    for (uint32_t i = 0; i < LIVE_SETTINGS; i++) {
        const live_setting *setting = &live_settings[i];
        double speed = setting->ssd_bytes_per_s;
        assert_true(speed == 0.0 || speed == 150e6 || speed == 600e6);
        by_speed[speed == 0.0 ? 0 : speed == 150e6 ? 1 : 2]++;
        low += setting->rho == 0.3;
        high += setting->rho == 0.7;
        slow += setting->write_share > 0.33 && setting->write_share < 0.34;
        assert_true(speed == 0.0 || setting->write_share == 1.0 || setting->write_share < 0.34);
        for (uint32_t j = 0; j < i; j++)
            assert_string_not_equal(setting->name, live_settings[j].name);
    }
    assert_int_equal(by_speed[0], 2);
    assert_int_equal(by_speed[1], 3);
    assert_int_equal(by_speed[2], 3);
    assert_int_equal(low + high, LIVE_SETTINGS);
    assert_int_equal(slow, 4);
}

static json_t *print(const live_results *results)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    assert_non_null(out);
    bench_report report;
    bench_report_open(&report, bench_live_case.schema);
    live_report(&report, results);
    assert_int_equal(bench_report_print(&report, out, true, bench_live_case.tables), 0);
    assert_int_equal(fclose(out), 0);
    json_t *document = json_loads(text, 0, NULL);
    assert_non_null(document);
    free(text);
    return document;
}

TEST(the_document_has_every_row)
{
    static const char *const keys[] = {"live_ttft_s", "sim_ttft_s", "ratio",
                                       "rank_live",   "rank_sim",   "wrong_bytes"};
    live_results results = {.policy_count = LIVE_POLICIES};
    for (uint32_t i = 0; i < LIVE_SETTINGS * LIVE_POLICIES; i++)
        plant(&results, i / LIVE_POLICIES, i % LIVE_POLICIES, 1.0 + i, 1.0 + i);
    live_judge(&results);
    json_t *document = print(&results);
    const json_t *rows = json_object_get(document, "rows");
    assert_string_equal(json_string_value(json_object_get(document, "schema")),
                        "kvterrace-bench-live-1");
    assert_int_equal(json_array_size(json_object_get(document, "settings")), LIVE_SETTINGS);
    assert_int_equal(json_array_size(rows), LIVE_SETTINGS * LIVE_POLICIES);
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *row = json_array_get(rows, i);
        assert_string_equal(json_string_value(json_object_get(row, "setting")),
                            live_settings[i / LIVE_POLICIES].name);
        assert_string_equal(json_string_value(json_object_get(row, "policy")),
                            live_policies[i % LIVE_POLICIES]);
        for (size_t k = 0; k < sizeof keys / sizeof keys[0]; k++)
            assert_true(json_is_number(json_object_get(row, keys[k])));
    }
    const json_t *totals = json_object_get(document, "totals");
    assert_true(json_is_true(json_object_get(totals, "met")));
    assert_int_equal(json_integer_value(json_object_get(totals, "rows")), 48);
    json_decref(document);
}
