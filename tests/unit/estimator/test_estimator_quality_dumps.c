/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_estimator_quality_dumps.c - quality from dumps into a profile: figures, bounds without
 * scores, fits with them, going on after an interruption, and what is refused.
 */
#include "cases.h"
#include "dice.h"

#include "base/half.h"
#include "estimator/profile/profile_internal.h"
#include "estimator/quality/calibrate.h"
#include "estimator/quality/quality_round_trip.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LAYERS = 2, HEADS = 2, KV_HEADS = 1, WIDTH = 32, TOKENS = 128, ROWS = 9, DUMPS = 4 };

static const char *const variant_names[] = {"lossless",        "planes:k8v8,g64", "planes:k4v4,g64",
                                            "planes:k3v3,g64", "planes:k2v2,g64", "kivi:k4v4,g64"};
enum { VARIANTS = sizeof variant_names / sizeof variant_names[0] };

static char folder[64], paths[DUMPS][96];
static const char *path_list[DUMPS];
static quality_variant variants[VARIANTS];

static float next_value(uint64_t *state)
{
    return (float)((uint32_t)(dice_next(state) >> 33) % 4096) / 1024.0f - 2.0f;
}

static void write_dump(const char *path, uint64_t seed, uint32_t rows, float spoil)
{
    static uint16_t k[LAYERS][TOKENS * KV_HEADS * WIDTH], v[LAYERS][TOKENS * KV_HEADS * WIDTH];
    static float q[LAYERS][ROWS * HEADS * WIDTH];
    char message[256] = "";
    for (size_t l = 0; l < LAYERS; l++) {
        for (size_t i = 0; i < sizeof k[0] / sizeof k[0][0]; i++) {
            k[l][i] = half_from_float(next_value(&seed));
            v[l][i] = half_from_float(next_value(&seed));
        }
        for (size_t i = 0; i < sizeof q[0] / sizeof q[0][0]; i++)
            q[l][i] = next_value(&seed);
    }
    if (spoil != 0.0f) v[1][5] = half_from_float(spoil);
    const quality_dump_content content = {.layout = {.layers = LAYERS,
                                                     .kv_heads = KV_HEADS,
                                                     .head_dim = WIDTH,
                                                     .dtype = KVT_DTYPE_FP16,
                                                     .tokens = TOKENS},
                                          .k = (const void *const[]){k[0], k[1]},
                                          .v = (const void *const[]){v[0], v[1]},
                                          .queries = (const float *const[]){q[0], q[1]},
                                          .query_heads = HEADS,
                                          .query_rows = rows};
    assert_ok(quality_dump_write(path, &content, message, sizeof message));
}

static int make_dumps(void **state)
{
    (void)state;
    (void)snprintf(folder, sizeof folder, "dumps-test-XXXXXX");
    if (mkdtemp(folder) == NULL) return -1;
    for (uint32_t i = 0; i < DUMPS; i++) {
        (void)snprintf(paths[i], sizeof paths[i], "%s/%u.safetensors", folder, (unsigned)i);
        path_list[i] = paths[i];
        write_dump(paths[i], 11 + i, ROWS, 0.0f);
    }
    for (uint32_t i = 0; i < VARIANTS; i++)
        assert_ok(quality_variant_parse(variant_names[i], &variants[i]));
    return 0;
}

static int remove_dumps(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < DUMPS; i++)
        (void)unlink(paths[i]);
    return rmdir(folder);
}

static kvt_profile *open_profile(void)
{
    kvt_profile *profile = NULL;
    char message[256] = "";
    assert_ok(kvt_profile_open(":memory:", KVT_PROFILE_WRITE, &profile, message, sizeof message));
    return profile;
}

static const calibrate_wanted wanted = {.variants = variants, .count = VARIANTS};
static quality_class of_class = {.name = "text"};

static calibrate_options options_of(uint32_t count)
{
    return (calibrate_options){.dumps = path_list,
                               .dump_count = count,
                               .name = "m",
                               .classes = &of_class,
                               .class_count = 1,
                               .wanted = &wanted,
                               .queries = 5,
                               .threads = 2};
}

static quality_report run(kvt_profile *profile, const calibrate_options *options)
{
    quality_report report;
    char message[256] = "";
    kvt_status status = quality_profile_run(profile, options, &report, message, sizeof message);
    if (status != KVT_OK) fail_msg("%s: %s", kvt_status_name(status), message);
    return report;
}

TEST_ALL(make_dumps, remove_dumps);

/* Over the stored rows of a variant, none above 1. */
static double mean_of_highs(const kvt_profile *profile, kvt_variant variant)
{
    sqlite3_stmt *statement = NULL;
    assert_int_equal(sqlite3_prepare_v2(profile->database,
                                        "SELECT avg(min(attention_error_high, 1.0)), count(*) FROM "
                                        "quality_entry WHERE codec = ? AND mode = ? AND rate = ?",
                                        -1, &statement, NULL),
                     SQLITE_OK);
    (void)sqlite3_bind_int(statement, 1, variant.codec);
    (void)sqlite3_bind_int(statement, 2, variant.mode);
    (void)sqlite3_bind_int64(statement, 3, variant.rate);
    assert_int_equal(sqlite3_step(statement), SQLITE_ROW);
    assert_int_equal(sqlite3_column_int(statement, 1), DUMPS);
    const double mean = sqlite3_column_double(statement, 0);
    sqlite3_finalize(statement);
    return mean;
}

TEST(without_scores_losses_are_bounds)
{
    kvt_profile *profile = open_profile();
    calibrate_options options = options_of(DUMPS);
    quality_report report = run(profile, &options);
    assert_int_equal(report.queries, 5);
    assert_int_equal(report.measured, DUMPS * VARIANTS);
    assert_int_equal(report.map.family_count, 0);
    for (uint32_t i = 0; i < VARIANTS; i++) {
        const quality_curve *curve = &report.sets[0].curves[i];
        kvt_quality_curve stored;
        assert_int_equal(curve->entries, DUMPS);
        assert_true(curve->loss_low <= curve->loss_mean && curve->loss_mean <= curve->loss_high);
        assert_ok(kvt_profile_quality(profile, variants[i].variant, "m", "text", &stored));
        assert_string_equal(stored.method, "attention");
        assert_true(stored.loss_mean == curve->loss_mean &&
                    stored.attention_error == curve->attention_error);
        assert_false(report.mapped[i]);
        if (i == 0) {
            assert_true(curve->loss_mean == 0.0 && curve->loss_high == 0.0); /* exact */
            continue;
        }
        assert_true(curve->attention_error_high >= curve->attention_error);
        assert_true(fabs(curve->loss_mean - mean_of_highs(profile, variants[i].variant)) < 1e-12);
        assert_true(curve->loss_low == 0.0); /* nothing is known from below */
    }
    assert_true(report.sets[0].curves[1].attention_error <
                report.sets[0].curves[2].attention_error);
    assert_true(report.sets[0].curves[2].attention_error <
                report.sets[0].curves[4].attention_error);
    quality_report_free(&report);
    kvt_profile_close(profile);
}

/* Losses of three forms of planes, made up: 0.3 of the error that dumps have shown. */
static void put_scores(kvt_profile *profile, const quality_report *report, const char *name)
{
    int64_t run_row, model_row, set_row;
    const profile_model model_facts = {.name = "m",
                                       .digest = "abc",
                                       .layers = LAYERS,
                                       .heads = HEADS,
                                       .kv_heads = KV_HEADS,
                                       .head_dim = WIDTH};
    assert_ok(profile_run_begin(profile, "quality", NULL, 1, &run_row));
    assert_ok(profile_model_put(profile, &model_facts, &model_row));
    const profile_set set = {.model = model_row,
                             .class_name = name,
                             .method = "continuation",
                             .settings = "{}",
                             .entries = 10};
    assert_ok(profile_set_insert(profile, run_row, &set, &set_row));
    for (uint32_t i = 1; i < 5; i++) {
        const double loss = 0.3 * report->sets[0].curves[i].attention_error;
        quality_curve curve = {.entries = 10,
                               .bits_per_element = report->sets[0].curves[i].bits_per_element,
                               .loss_mean = loss,
                               .loss_low = 0.9 * loss,
                               .loss_high = 1.2 * loss};
        assert_ok(profile_curve_insert(profile, set_row, variants[i].variant, variants[i].name,
                                       "top1", &curve));
    }
    assert_ok(profile_run_complete(profile, run_row));
}

TEST(scores_give_fits)
{
    kvt_profile *profile = open_profile();
    calibrate_options options = options_of(DUMPS);
    quality_report first = run(profile, &options);
    put_scores(profile, &first, "text");
    quality_report report = run(profile, &options);
    assert_int_equal(report.map.family_count, 1);
    assert_string_equal(report.map.families[0].name, "planes");
    assert_string_equal(report.map.metric, "top1");
    assert_int_equal(report.map.families[0].count, 4);
    for (uint32_t i = 1; i < 5; i++) {
        const quality_curve *curve = &report.sets[0].curves[i];
        assert_true(report.mapped[i]);
        /* Means over entries of a map that is straight, but for the ends of its range. */
        assert_true(fabs(curve->loss_mean - 0.3 * curve->attention_error) <
                    0.02 * curve->attention_error);
        assert_true(curve->loss_high >= 0.36 * curve->attention_error * 0.99);
        assert_true(curve->loss_high <= 1.0);
    }
    assert_false(report.mapped[5]); /* another family */
    assert_true(report.sets[0].curves[5].loss_mean >= report.sets[0].curves[5].attention_error);
    quality_report_free(&report);
    /* Another class of the same model takes the fits; with no curves left, the stored ones do. */
    of_class.name = "code";
    report = run(profile, &options);
    of_class.name = "text";
    assert_true(report.mapped[2] && !report.map.stored);
    quality_report_free(&report);
    quality_map map;
    assert_int_equal(sqlite3_exec(profile->database,
                                  "DELETE FROM quality_set WHERE method = 'continuation'", NULL,
                                  NULL, NULL),
                     SQLITE_OK);
    assert_ok(
        quality_map_make(profile, "m", "text", variants, first.sets[0].curves, VARIANTS, &map));
    assert_true(map.stored && map.family_count == 1 && map.families[0].count == 4);
    assert_ok(
        quality_map_make(profile, "n", "text", variants, first.sets[0].curves, VARIANTS, &map));
    assert_int_equal(map.family_count, 0);
    quality_report_free(&first);
    kvt_profile_close(profile);
}

static bool stop_after_two(void *context, double done, const char *what)
{
    (void)done, (void)what;
    return --*(int *)context > 0;
}

TEST(an_interrupted_run_goes_on)
{
    kvt_profile *profile = open_profile();
    calibrate_options options = options_of(DUMPS);
    quality_report report;
    char message[256] = "";
    int left = 2;
    options.threads = 1;
    options.progress = stop_after_two;
    options.progress_context = &left;
    assert_int_equal(quality_profile_run(profile, &options, &report, message, sizeof message),
                     KVT_E_CANCELLED);
    quality_report_free(&report);
    options.progress = NULL;
    report = run(profile, &options);
    assert_int_equal(report.resumed, 2);
    assert_int_equal(report.measured, DUMPS * VARIANTS - 2);
    quality_report whole = run(profile, &options);
    assert_int_equal(whole.resumed, 0);
    for (uint32_t i = 0; i < VARIANTS; i++)
        assert_true(whole.sets[0].curves[i].attention_error ==
                    report.sets[0].curves[i].attention_error);
    quality_report_free(&whole);
    quality_report_free(&report);
    kvt_profile_close(profile);
}

static void assert_refused(const calibrate_options *options, const char *what)
{
    kvt_profile *profile = open_profile();
    quality_report report;
    char message[256] = "";
    assert_int_equal(quality_profile_run(profile, options, &report, message, sizeof message),
                     KVT_E_ARGUMENT);
    if (strstr(message, what) == NULL) fail_msg("'%s' does not say '%s'", message, what);
    quality_report_free(&report);
    kvt_profile_close(profile);
}

TEST(what_does_not_fit_is_refused)
{
    calibrate_options options = options_of(0);
    assert_refused(&options, "dumps");
    options = options_of(DUMPS);
    options.queries = ROWS + 1;
    assert_refused(&options, "queries per head");
    write_dump(paths[2], 13, ROWS, (float)INFINITY);
    options = options_of(DUMPS);
    assert_refused(&options, "not finite");
    write_dump(paths[2], 13, ROWS, 0.0f);
}
