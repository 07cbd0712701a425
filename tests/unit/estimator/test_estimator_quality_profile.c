/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_estimator_quality_profile.c - a measurement of quality into a profile: rows, curves, the
 * pooled set; stopped at any row it goes on to the same figures; other settings start anew.
 */
#include "quality_scratch.h"

#include "estimator/quality/calibrate.h"

#include <sqlite3.h>

enum { CONTEXT = 64, CONTINUATION = 16, ENTRIES = 3, VARIANTS = 3, ROWS = 2 * ENTRIES * VARIANTS };

static char message[256];
static quality_variant variants[VARIANTS];

static bool count_progress(void *context, double done, const char *what)
{
    uint32_t *left = context;
    assert_true(done >= 0.0 && done <= 1.0 && what != NULL);
    return --*left > 0;
}

static double seconds_given; /* 0: no limit */

static kvt_status run(quality_metric metric, uint32_t calls, quality_report *report)
{
    static const char *const plain[] = {files.plain}, *const asked[] = {files.asked};
    const quality_class classes[] = {{"stories", plain, 1}, {"questions", asked, 1}};
    static const char *const names[VARIANTS] = {"planes:k8v8,g64", "planes:k2v2,g64",
                                                "drop:stream,50"};
    kvt_profile *profile = NULL;
    for (int i = 0; i < VARIANTS; i++)
        assert_ok(quality_variant_parse(names[i], &variants[i]));
    const calibrate_wanted wanted = {.variants = variants, .count = VARIANTS};
    const calibrate_options options = {.model = files.model,
                                       .unjudged = true,
                                       .tokenizer = files.tokenizer,
                                       .classes = classes,
                                       .class_count = 2,
                                       .wanted = &wanted,
                                       .contexts = ENTRIES,
                                       .context_tokens = CONTEXT,
                                       .continuation_tokens = CONTINUATION,
                                       .answer_tokens = 5,
                                       .threads = 2,
                                       .metric = metric,
                                       .seconds = seconds_given,
                                       .command_line = "test",
                                       .progress = count_progress,
                                       .progress_context = &calls};
    assert_ok(
        kvt_profile_open(files.database, KVT_PROFILE_WRITE, &profile, message, sizeof message));
    kvt_status status = quality_profile_run(profile, &options, report, message, sizeof message);
    kvt_profile_close(profile);
    return status;
}

/* The first column of a statement's first row. */
static long long number_of(const char *sql)
{
    sqlite3 *database = NULL;
    sqlite3_stmt *statement = NULL;
    assert_int_equal(sqlite3_open(files.database, &database), SQLITE_OK);
    if (sqlite3_prepare_v2(database, sql, -1, &statement, NULL) != SQLITE_OK)
        fail_msg("%s", sqlite3_errmsg(database));
    assert_int_equal(sqlite3_step(statement), SQLITE_ROW);
    long long value = sqlite3_column_int64(statement, 0);
    sqlite3_finalize(statement);
    sqlite3_close(database);
    return value;
}

/* Questions: the two texts that ask. */
enum { ALL_ROWS = ENTRIES * VARIANTS + 2 * VARIANTS };

/* Rows of variants; each entry's exact run has one of its own. */
#define ROWS_SQL "SELECT count(*) FROM quality_entry WHERE mode & 128 = 0"

TEST_ALL(scratch_make_files, scratch_remove_files);

TEST(rows_and_curves_are_stored)
{
    quality_report report;
    scratch_remove_database();
    kvt_status status = run(QUALITY_TOP1, UINT32_MAX, &report);
    if (status != KVT_OK) fail_msg("%s: %s", kvt_status_name(status), message);
    assert_int_equal(report.set_count, 3);
    assert_string_equal(report.sets[2].class_name, "pooled");
    assert_string_equal(report.model.name, "small");
    assert_int_equal(report.sets[2].entries, ENTRIES + 2);
    assert_true(isnan(report.sets[0].spread.answers) && isfinite(report.sets[1].spread.answers));
    assert_int_equal(number_of(ROWS_SQL), ALL_ROWS);
    assert_int_equal(number_of("SELECT count(*) FROM quality_curve"), 3 * VARIANTS);
    assert_int_equal(number_of("SELECT complete FROM run"), 1);
    kvt_profile *profile = NULL;
    kvt_quality_curve curve;
    assert_ok(
        kvt_profile_open(files.database, KVT_PROFILE_READ, &profile, message, sizeof message));
    assert_ok(kvt_profile_quality(profile, variants[1].variant, "small", "pooled", &curve));
    const quality_curve *expected = &report.sets[2].curves[1];
    assert_true(curve.loss_mean == expected->loss_mean && curve.loss_high == expected->loss_high);
    assert_true(curve.kl == expected->kl && curve.top1 == expected->top1);
    assert_true(fabs(curve.loss_mean - (1.0 - curve.top1)) < 1e-12);
    assert_true(curve.set_nll_nats == report.sets[2].spread.nll_nats);
    assert_string_equal(curve.metric, "top1");
    assert_string_equal(curve.name, "planes:k2v2,g64");
    assert_int_equal(curve.entries, ENTRIES + 2);
    assert_ok(kvt_profile_quality(profile, variants[1].variant, NULL, "stories", &curve));
    assert_true(isnan(curve.answers) && curve.entries == ENTRIES);
    assert_int_equal(kvt_profile_quality(profile, variants[1].variant, "other", NULL, &curve),
                     KVT_MISS);
    size_t count = 0;
    double bits = 100.0;
    while (kvt_profile_quality_at(profile, count, &curve) == KVT_OK) {
        if (count % VARIANTS == 0) bits = 100.0;
        assert_true(curve.bits_per_element <= bits);
        bits = curve.bits_per_element;
        count++;
    }
    assert_int_equal(count, 3 * VARIANTS);
    kvt_profile_close(profile);
    quality_report_free(&report);
}

/* Everything that a curve says but the bits that are not kept by entry. */
static void check_same(const quality_report *a, const quality_report *b)
{
    assert_int_equal(a->set_count, b->set_count);
    for (uint32_t s = 0; s < a->set_count; s++) {
        assert_true(a->sets[s].spread.nll_nats == b->sets[s].spread.nll_nats);
        for (int v = 0; v < VARIANTS; v++) {
            const quality_curve *x = &a->sets[s].curves[v], *y = &b->sets[s].curves[v];
            assert_true(x->loss_mean == y->loss_mean && x->loss_low == y->loss_low);
            assert_true(x->kl == y->kl && x->f1 == y->f1 && x->entries == y->entries);
            assert_true(x->attention_error == y->attention_error);
        }
    }
}

TEST(a_stopped_run_goes_on)
{
    quality_report whole, stopped, rest;
    scratch_remove_database();
    assert_ok(run(QUALITY_F1, UINT32_MAX, &whole));
    assert_int_equal(whole.resumed, 0);
    for (uint32_t calls = 1; calls < 16; calls += 7) {
        scratch_remove_database();
        assert_int_equal(run(QUALITY_F1, calls, &stopped), KVT_E_CANCELLED);
        assert_int_equal(number_of("SELECT count(*) FROM quality_curve"), 0);
        assert_int_equal(number_of("SELECT complete FROM run"), 0);
        long long rows = number_of(ROWS_SQL);
        assert_true(rows < calls);
        quality_report_free(&stopped);
        assert_ok(run(QUALITY_F1, UINT32_MAX, &rest));
        assert_int_equal(rest.resumed, rows);
        check_same(&whole, &rest);
        quality_report_free(&rest);
        assert_int_equal(number_of("SELECT count(*) FROM run"), 1);
        assert_int_equal(number_of(ROWS_SQL), ALL_ROWS);
    }
    /* A finished run is not gone on with, nor one of another metric. */
    assert_int_equal(run(QUALITY_F1, 5, &stopped), KVT_E_CANCELLED);
    assert_int_equal(stopped.resumed, 0);
    quality_report_free(&stopped);
    assert_ok(run(QUALITY_KL, UINT32_MAX, &rest));
    assert_int_equal(rest.resumed, 0);
    assert_int_equal(number_of("SELECT count(*) FROM run WHERE complete"), 2);
    quality_report_free(&rest);
    quality_report_free(&whole);
}

/* However short the time is, the same call again and again ends with everything measured. */
TEST(too_short_a_time_measures_all_the_same)
{
    quality_report report;
    uint32_t runs = 0;
    kvt_status status = KVT_E_CANCELLED;
    scratch_remove_database();
    seconds_given = 1e-9;
    while (status == KVT_E_CANCELLED && runs <= ALL_ROWS) {
        status = run(QUALITY_TOP1, UINT32_MAX, &report);
        quality_report_free(&report);
        runs++;
    }
    seconds_given = 0;
    assert_ok(status);
    assert_true(runs > 1);
    assert_int_equal(number_of(ROWS_SQL), ALL_ROWS);
}

TEST(wrong_requests_are_refused)
{
    quality_report report;
    const char *const paths[] = {files.plain};
    const quality_class classes[] = {{"pooled", paths, 1}, {"stories", paths, 1}};
    kvt_profile *profile = NULL;
    const calibrate_wanted wanted = {.variants = variants, .count = 1};
    calibrate_options options = {.model = files.model,
                                 .unjudged = true,
                                 .tokenizer = files.tokenizer,
                                 .classes = classes + 1,
                                 .class_count = 1,
                                 .wanted = &wanted,
                                 .contexts = 2,
                                 .context_tokens = CONTEXT,
                                 .continuation_tokens = CONTINUATION,
                                 .metric = QUALITY_ANSWERS};
    assert_ok(quality_variant_parse("raw", &variants[0]));
    assert_ok(kvt_profile_open(":memory:", KVT_PROFILE_WRITE, &profile, message, sizeof message));
    /* Answers are asked for and no text has a question. */
    assert_int_equal(quality_profile_run(profile, &options, &report, message, sizeof message),
                     KVT_E_ARGUMENT);
    assert_non_null(strstr(message, "question"));
    options.metric = QUALITY_ROUGE_L;
    assert_int_equal(quality_profile_run(profile, &options, &report, message, sizeof message),
                     KVT_E_ARGUMENT);
    options.metric = QUALITY_TOP1;
    options.classes = classes;
    assert_int_equal(quality_profile_run(profile, &options, &report, message, sizeof message),
                     KVT_E_ARGUMENT);
    options.classes = classes + 1;
    options.model = "no such model";
    assert_int_equal(quality_profile_run(profile, &options, &report, message, sizeof message),
                     KVT_E_GONE);
    options.model = files.model;
    assert_ok(quality_profile_run(profile, &options, &report, message, sizeof message));
    assert_true(report.sets[0].curves[0].loss_mean == 0.0);
    assert_true(isnan(report.sets[0].curves[0].rouge_l));
    quality_report_free(&report);
    kvt_profile_close(profile);
}
