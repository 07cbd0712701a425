/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_replay_adaptcache.c - AdaptCache's experiment: its comparisons on points worked out by hand,
 * one system whose times are known, and the whole of it in small.
 */
#include "lab/experiments/adaptcache_experiment.h"

#include "codecs/codecs.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static experiment_options small_options(FILE *out)
{
    static char ladders[1024];
    experiment_options options;
    const char *source = getenv("KVT_SOURCE_DIR");
    if (source == NULL) fail_msg("KVT_SOURCE_DIR is not set");
    snprintf(ladders, sizeof ladders, "%s/profiles", source);
    experiment_options_init(&options);
    options.ladders = ladders;
    options.contexts = 240;
    options.uses = 5;
    options.seeds = 1;
    options.out = out;
    return options;
}

static void near(double value, double wanted)
{
    if (fabs(value - wanted) > 1e-9) fail_msg("%.12f, wanted %.12f", value, wanted);
}

/* Of the engine's points 0.9 at 2 s, 0.95 at 3 s, 0.99 at 5 s counts all, 0.85 at 2.5 s nothing. */
static void comparisons_follow_the_line_between_points(void **state)
{
    (void)state;
    const experiment_outcome points[EXPERIMENT_ALPHAS] = {{.quality = 0.95, .ttft = 3.0},
                                                          {.quality = 0.85, .ttft = 2.5},
                                                          {.quality = 0.99, .ttft = 5.0},
                                                          {.quality = 0.90, .ttft = 2.0}};
    experiment_outcome fixed = {.quality = 0.97, .ttft = 8.0};
    near(experiment_delay_ratio(points, &fixed), 8.0 / 4.0);
    near(experiment_quality_ratio(points, &fixed), 0.99 / 0.97);
    fixed = (experiment_outcome){.quality = 0.80, .ttft = 2.5};
    near(experiment_delay_ratio(points, &fixed), 2.5 / 2.0);
    near(experiment_quality_ratio(points, &fixed), 0.925 / 0.80);
    fixed = (experiment_outcome){.quality = 1.0, .ttft = 1.0};
    near(experiment_delay_ratio(points, &fixed), 0.0);
    near(experiment_quality_ratio(points, &fixed), 0.0);
}

static void prefill_and_raw_lose_nothing(void **state)
{
    (void)state;
    char message[512] = "";
    experiment_options options = small_options(stdout);
    experiment *run = calloc(1, sizeof *run);
    experiment_outcome prefill, raw, two;
    assert_non_null(run);
    if (experiment_open(run, &options, message, sizeof message) != KVT_OK) fail_msg("%s", message);
    assert_int_equal(experiment_draw(run, 1, message, sizeof message), KVT_OK);
    for (uint32_t i = 0; i < options.contexts; i++)
        run->contexts[i].tokens = 8000;
    assert_int_equal(experiment_measure(run, 0, 1e-4, 1, &prefill, message, sizeof message),
                     KVT_OK);
    const kvt_prefill *model = &run->models[0][0].prefill;
    double whole = model->fixed_seconds + kvt_prefill_seconds(model, 0, 8064);
    near(prefill.service, whole);
    assert_true(prefill.ttft >= 0.999 * whole && prefill.ttft < 1.01 * whole);
    near(prefill.quality, 1.0);
    near(prefill.dram_hits + prefill.ssd_hits, 0.0);
    /* Raw, 8,000 tokens are 1.05 GB: 95 contexts fit into DRAM; from SSD they load no faster than
     * they compute. */
    assert_int_equal(experiment_measure(run, 1, 1e-4, 1, &raw, message, sizeof message), KVT_OK);
    const kvt_layout layout = {.dtype = KVT_DTYPE_OPAQUE, .opaque_bytes = 8000 * 131072};
    uint64_t head_bytes, record_bytes;
    assert_int_equal(codecs_raw_record_bytes(&layout, &head_bytes, &record_bytes), KVT_OK);
    double load = 1e-5 + (double)record_bytes / 25e9 + 8000 * 131072.0 / 1e13;
    double hit = model->fixed_seconds + load + kvt_prefill_seconds(model, 8000, 8064);
    double share = raw.dram_hits;
    assert_true(share > 0.2 && share < 0.6 && raw.ssd_hits > 0.1);
    near(raw.service, share * hit + (1.0 - share) * whole);
    near(raw.quality, 1.0);
    /* KIVI at 2 bits: all but the first uses hit, each task with its own loss. */
    assert_int_equal(experiment_measure(run, 6, 1e-4, 1, &two, message, sizeof message), KVT_OK);
    for (uint32_t task = 0; task < EXPERIMENT_TASKS; task++) {
        assert_true(two.task_quality[task] < 1.0 && two.task_quality[task] > 0.0);
        double loss = run->models[0][task].variants[5].loss;
        double hits = (1.0 - two.task_quality[task]) / loss;
        assert_true(hits > 0.85 && hits <= 1.0 + 1e-9);
    }
    experiment_close(run);
    free(run);
}

static char *small_text(bool json)
{
    char *text = NULL, message[512] = "";
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    assert_non_null(out);
    experiment_options options = small_options(out);
    options.json = json;
    kvt_status status = experiment_run(&options, message, sizeof message);
    assert_int_equal(fclose(out), 0);
    if (status != KVT_OK) fail_msg("%d: %s", status, message);
    return text;
}

static void every_system_has_a_row_at_every_rate(void **state)
{
    (void)state;
    char *text = small_text(true), *again = small_text(true);
    assert_string_equal(text, again);
    json_t *document = json_loads(text, 0, NULL);
    assert_non_null(document);
    assert_true(json_array_size(json_object_get(document, "published")) > 0);
    assert_true(json_array_size(json_object_get(document, "assumed")) > 0);
    const json_t *rows = json_object_get(document, "rows");
    uint32_t systems = 0, compares = 0;
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *row = json_array_get(rows, i);
        bool system = strcmp(json_string_value(json_object_get(row, "case")), "system") == 0;
        systems += system;
        compares += !system;
        if (!system) continue;
        double quality = json_number_value(json_object_get(row, "quality"));
        double hits = json_number_value(json_object_get(row, "dram_hit_ratio")) +
                      json_number_value(json_object_get(row, "ssd_hit_ratio"));
        assert_true(quality > 0.0 && quality <= 1.0 && hits >= 0.0 && hits <= 1.0);
        assert_true(json_number_value(json_object_get(row, "ttft_s")) > 0.0);
    }
    assert_int_equal(systems, EXPERIMENT_RATES * EXPERIMENT_SYSTEMS);
    assert_int_equal(compares, EXPERIMENT_RATES * EXPERIMENT_ENGINES * EXPERIMENT_FIXED);
    json_decref(document);
    free(text);
    free(again);
    text = small_text(false);
    assert_non_null(strstr(text, "assumed:"));
    free(text);
}

static void what_is_missing_is_named(void **state)
{
    (void)state;
    char message[512] = "";
    experiment_options options = small_options(stdout);
    options.texts = "/nonexistent/texts";
    assert_int_equal(experiment_run(&options, message, sizeof message), KVT_E_GONE);
    assert_non_null(strstr(message, "/nonexistent/texts"));
    options = small_options(stdout);
    options.ladders = "/nonexistent/ladders";
    assert_int_equal(experiment_run(&options, message, sizeof message), KVT_E_GONE);
    assert_non_null(strstr(message, "/nonexistent/ladders"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(comparisons_follow_the_line_between_points),
        cmocka_unit_test(prefill_and_raw_lose_nothing),
        cmocka_unit_test(every_system_has_a_row_at_every_rate),
        cmocka_unit_test(what_is_missing_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
