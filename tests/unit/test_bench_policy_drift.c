/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_bench_policy_drift.c - bench policy --drift in small: every row is there, shares are those
 * of the exact copy, nested planes keep theirs, and equal runs print equal figures.
 */
#include "lab/bench/bench.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static char *drift_text(bool json)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    assert_non_null(out);
    const bench_policy_options options = {
        .out = out, .json = json, .quick = true, .entries = 300, .seeds = 2};
    char message[256] = "";
    kvt_status status = bench_policy_drift_run(&options, message, sizeof message);
    assert_int_equal(fclose(out), 0);
    if (status != KVT_OK) fail_msg("%d: %s", status, message);
    return text;
}

static double number_of(const json_t *row, const char *key)
{
    const json_t *value = json_object_get(row, key);
    if (!json_is_number(value)) fail_msg("no %s", key);
    return json_number_value(value);
}

static void rows_are_shares_of_the_exact_copy(void **state)
{
    (void)state;
    char *text = drift_text(true), *again = drift_text(true);
    assert_string_equal(text, again);
    json_t *document = json_loads(text, 0, NULL);
    assert_non_null(document);
    const json_t *rows = json_object_get(document, "rows");
    assert_int_equal(json_array_size(rows), 36);
    for (size_t i = 0; i < 36; i++) {
        const json_t *row = json_array_get(rows, i);
        const char *store = json_string_value(json_object_get(row, "store"));
        assert_string_equal(json_string_value(json_object_get(row, "case")), "drift");
        double share = number_of(row, "objective_share"), quality = number_of(row, "quality");
        assert_true(number_of(row, "saving_share_least") <= number_of(row, "saving_share_most"));
        assert_true(quality > 0.5 && quality <= 1.0 && number_of(row, "seconds") > 0.0);
        if (strcmp(store, "copy") == 0) assert_true(share == 1.0);
        if (strcmp(store, "nested") == 0) assert_true(share >= 0.95);
        /* The two of one run differ by how its losses add up alone. */
        if (strcmp(store, "largest") != 0) continue;
        const json_t *sum = json_array_get(rows, i - 1);
        assert_true(number_of(sum, "seconds") == number_of(row, "seconds"));
        assert_true(number_of(sum, "quality") < quality);
    }
    json_decref(document);
    free(text);
    free(again);
}

static void the_table_has_a_line_for_each(void **state)
{
    (void)state;
    char *text = drift_text(false);
    uint32_t lines = 0;
    for (const char *at = text; (at = strchr(at, '\n')) != NULL; at++)
        lines++;
    assert_int_equal(lines, 4 + 36);
    assert_non_null(strstr(text, "adaptcache"));
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_shares_of_the_exact_copy),
        cmocka_unit_test(the_table_has_a_line_for_each),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
