/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_base_settings.c - settings into the fields of a struct: kinds, defaults, modes, ranges. What
 * a file may say is tested in test_store_config.c.
 */
#include "base/settings_fields.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum { MODE_A = 1, MODE_B = 2 };

typedef struct fields {
    double tick_seconds;
    uint64_t latency_ns;
    uint64_t staging_bytes;
    uint64_t put_staging_bytes;
    uint32_t moves;
    uint32_t striping;
    double median;
    bool copies;
    bool sparse;
    bool bounds;
} fields;

#define ROW(name, member, ...) SETTINGS_FIELD(fields, name, member, __VA_ARGS__)

static const settings_field rows[] = {
    ROW("store.tick", tick_seconds, .modes = 0),
    ROW("store.staging", staging_bytes, .least = 4096, .most = 1 << 30, .range = "4 KiB to 1 GiB"),
    ROW("store.put_staging", put_staging_bytes, .modes = 0),
    ROW("store.moves_per_tick", moves, .modes = MODE_A),
    ROW("tier.dram.striping", striping, .modes = 0),
    ROW("workload.tokens_median", median, .modes = 0),
    ROW("store.copies", copies, .modes = 0),
    ROW("replay.bounds", bounds, .modes = MODE_B),
};
enum { ROWS = sizeof rows / sizeof rows[0] };

static const settings_field device_rows[] = {
    ROW("device.*.latency", latency_ns, .modes = 0),
    ROW("device.*.prewrite", sparse, .negated = true),
};

static kvt_config *configured(const char *const *assignments)
{
    kvt_config *config = NULL;
    char message[256];
    assert_int_equal(kvt_config_new(&config), KVT_OK);
    for (; *assignments != NULL; assignments++)
        assert_int_equal(kvt_config_set(config, *assignments, message, sizeof message), KVT_OK);
    return config;
}

/* Without a configuration every field gets its setting's default, and one without keeps its own. */
static void test_defaults(void **state)
{
    (void)state;
    fields out = {.put_staging_bytes = 77};
    settings_read(NULL, NULL, rows, ROWS, SETTINGS_ALL_MODES, &out);
    assert_true(out.tick_seconds == 0.05);
    assert_int_equal(out.staging_bytes, 256 << 20);
    assert_int_equal(out.put_staging_bytes, 77);
    assert_int_equal(out.moves, 64);
    assert_int_equal(out.striping, 0);
    assert_true(out.median == 8192);
    assert_true(out.copies && out.bounds);
}

static void test_values(void **state)
{
    (void)state;
    const char *const set[] = {"store.tick=500ms",         "store.staging=1MiB",
                               "store.put_staging=2k",     "store.moves_per_tick=99999999999",
                               "store.copies=no",          "tier.dram.striping=round_robin",
                               "device.d0.latency=80us",   "device.d0.prewrite=no",
                               "workload.tokens_median=3", NULL};
    kvt_config *config = configured(set);
    fields out = {.sparse = false};
    settings_read(config, NULL, rows, ROWS, MODE_A, &out);
    settings_read(config, "d0", device_rows, 2, 0, &out);
    assert_true(out.tick_seconds == 0.5 && out.median == 3);
    assert_int_equal(out.staging_bytes, 1 << 20);
    assert_int_equal(out.put_staging_bytes, 2048);
    assert_int_equal(out.moves, UINT32_MAX); /* no other value: a larger one does not fit */
    assert_int_equal(out.striping, 2);
    assert_int_equal(out.latency_ns, 80000);
    assert_true(out.sparse && !out.copies);
    assert_null(kvt_config_unused_at(config, 0));
    kvt_config_free(config);
}

/* A setting that has no effect in the mode is not read, so that it can be reported. */
static void test_modes(void **state)
{
    (void)state;
    const char *const set[] = {"store.moves_per_tick=3", "replay.bounds=no", NULL};
    kvt_config *config = configured(set);
    fields out = {.moves = 9, .bounds = true};
    settings_read(config, NULL, rows, ROWS, MODE_B, &out);
    assert_int_equal(out.moves, 9);
    assert_false(out.bounds);
    assert_string_equal(kvt_config_unused_at(config, 0), "store.moves_per_tick");
    kvt_config_free(config);
}

static void test_ranges(void **state)
{
    (void)state;
    fields out = {.staging_bytes = 4096};
    assert_null(settings_out_of_range(rows, ROWS, &out));
    out.staging_bytes = 4095;
    const settings_field *field = settings_out_of_range(rows, ROWS, &out);
    assert_non_null(field);
    assert_string_equal(field->setting, "store.staging");
    assert_string_equal(field->range, "4 KiB to 1 GiB");
    out.staging_bytes = (1 << 30) + 1;
    assert_non_null(settings_out_of_range(rows, ROWS, &out));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_modes),
        cmocka_unit_test(test_ranges),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
