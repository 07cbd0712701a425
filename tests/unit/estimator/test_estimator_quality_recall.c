/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_estimator_quality_recall.c - passages of a context given word for word: measured beside the
 * answers, a set of their own in the profile, part of a loss as the workload says; a measurement
 * that is stopped has them too. And intervals are over documents.
 */
#include "quality_scratch.h"

#include "estimator/quality/calibrate.h"
#include "estimator/quality/promise.h"
#include "estimator/quality/quality.h"

enum { CONTEXT = 40, CONTINUATION = 10, PASSAGE = 12, SCORED = 6, LINES = 5, VARIANTS = 2 };

static char message[256];
static char paths[2][128];
static quality_variant variants[VARIANTS];

/* Entries of random ids; `passages` have one. Two lines in turn are of one document. */
static void write_lines(char *path, const char *name, uint64_t seed, bool passages)
{
    snprintf(path, sizeof paths[0], "%s/%s", files.folder, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    for (int line = 0; line < LINES; line++) {
        fprintf(file, "{\"tokens\": [1");
        for (int i = 1; i < CONTEXT + CONTINUATION; i++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            fprintf(file, ", %u", 3u + (unsigned)(seed >> 33) % 200u);
        }
        fprintf(file, "], \"context\": %d, \"document\": \"%s %d\"", CONTEXT, name, line / 2);
        for (int i = 0; passages && i < PASSAGE; i++)
            fprintf(file, "%s%u", i == 0 ? ", \"recall\": {\"tokens\": [" : ", ",
                    10u + (unsigned)(line * 7 + i * 3) % 90u);
        fprintf(file, passages ? "], \"scored\": %d}}\n" : "}\n", SCORED);
    }
    assert_int_equal(fclose(file), 0);
}

static bool stop_after(void *context, double done, const char *what)
{
    uint32_t *left = context;
    (void)done, (void)what;
    return --*left > 0;
}

static kvt_status run(quality_use use, uint32_t calls, bool finish, quality_report *report)
{
    const char *const with[] = {paths[0]}, *const without[] = {paths[1]};
    const quality_class classes[] = {{"tasks", with, 1}, {"chat", without, 1}};
    kvt_profile *profile = NULL;
    const calibrate_wanted wanted = {.variants = variants, .count = VARIANTS};
    const calibrate_options options = {.model = files.model,
                                       .unjudged = true,
                                       .tokenizer = files.tokenizer,
                                       .classes = classes,
                                       .class_count = 2,
                                       .wanted = &wanted,
                                       .contexts = LINES,
                                       .context_tokens = CONTEXT,
                                       .continuation_tokens = CONTINUATION,
                                       .threads = 2,
                                       .metric = QUALITY_KL,
                                       .use = use,
                                       .finish = finish,
                                       .command_line = "test",
                                       .progress = stop_after,
                                       .progress_context = &calls};
    assert_ok(
        kvt_profile_open(files.database, KVT_PROFILE_WRITE, &profile, message, sizeof message));
    kvt_status status = quality_profile_run(profile, &options, report, message, sizeof message);
    kvt_profile_close(profile);
    return status;
}

static int make(void **state)
{
    if (scratch_make_files(state) != 0) return -1;
    write_lines(paths[0], "with.jsonl", 1, true);
    write_lines(paths[1], "without.jsonl", 2, false);
    return quality_variant_parse("raw", &variants[0]) == KVT_OK &&
                   quality_variant_parse("planes:k2v2,g64", &variants[1]) == KVT_OK
               ? 0
               : -1;
}

static int unmake(void **state)
{
    for (int i = 0; i < 2; i++)
        if (remove(paths[i]) != 0) return -1;
    return scratch_remove_files(state);
}

TEST_ALL(make, unmake);

TEST(passages_are_sets_of_their_own)
{
    quality_report report;
    scratch_remove_database();
    if (run(QUALITY_USE_ANSWERS, UINT32_MAX, false, &report) != KVT_OK) fail_msg("%s", message);
    assert_int_equal(report.set_count, 4);
    assert_string_equal(report.sets[0].class_name, "tasks");
    assert_string_equal(report.sets[1].class_name, "tasks/recall");
    assert_string_equal(report.sets[2].class_name, "chat");
    assert_string_equal(report.sets[3].class_name, "pooled");
    assert_int_equal(report.sets[1].entries, LINES);
    assert_int_equal(report.sets[1].documents, 3);
    assert_int_equal(report.sets[3].documents, 6);
    const quality_curve *raw = &report.sets[1].curves[0], *lossy = &report.sets[1].curves[1];
    assert_true(fabs(raw->kl) < 1e-9 && raw->top1 == 1.0 && fabs(raw->nll_delta) < 1e-9);
    assert_true(lossy->kl > 1e-6 && lossy->top1 <= 1.0 && isnan(lossy->rouge_l));
    assert_true(report.sets[1].spread.nll_nats > 0.0);
    kvt_profile *profile = NULL;
    kvt_quality_curve stored;
    assert_ok(
        kvt_profile_open(files.database, KVT_PROFILE_READ, &profile, message, sizeof message));
    assert_ok(kvt_profile_quality(profile, variants[1].variant, NULL, "tasks/recall", &stored));
    assert_true(stored.kl == lossy->kl && stored.top1 == lossy->top1);
    assert_true(stored.loss_mean == lossy->loss_mean && stored.entries == LINES);
    kvt_profile_close(profile);
    quality_report_free(&report);
}

/* The worse is taken entry by entry, so its mean is at least that of either. */
TEST(the_use_says_what_a_loss_is)
{
    quality_report of[QUALITY_USES];
    for (unsigned use = 0; use < QUALITY_USES; use++) {
        scratch_remove_database();
        assert_non_null(quality_use_name(use));
        assert_ok(run((quality_use)use, UINT32_MAX, false, &of[use]));
    }
    const double worse = of[QUALITY_USE_WORSE].sets[0].curves[1].loss_mean;
    const double answers = of[QUALITY_USE_ANSWERS].sets[0].curves[1].loss_mean;
    const double recall = of[QUALITY_USE_RECALL].sets[0].curves[1].loss_mean;
    assert_true(recall == of[QUALITY_USE_WORSE].sets[1].curves[1].loss_mean);
    assert_true(recall != answers);
    assert_true(worse >= fmax(answers, recall));
    /* A class without passages is used for answers. */
    assert_true(of[QUALITY_USE_RECALL].sets[2].curves[1].loss_mean ==
                of[QUALITY_USE_ANSWERS].sets[2].curves[1].loss_mean);
    for (unsigned use = 0; use < QUALITY_USES; use++)
        quality_report_free(&of[use]);
    const quality_row row = {.top1 = 0.9, .recall_top1 = 0.5, .kl = 0.1, .recall_kl = 0.05};
    assert_true(quality_row_loss_used(QUALITY_USE_WORSE, QUALITY_TOP1, &row, 0.0) == 0.5);
    assert_true(quality_row_loss_used(QUALITY_USE_WORSE, QUALITY_KL, &row, 0.0) == 1.0 - exp(-0.1));
    assert_null(quality_use_name(QUALITY_USES));
}

TEST(stopped_measurements_keep_passages_and_balance)
{
    quality_report whole, stopped, rest;
    scratch_remove_database();
    assert_ok(run(QUALITY_USE_WORSE, UINT32_MAX, false, &whole));
    quality_report_free(&whole);
    scratch_remove_database();
    assert_ok(run(QUALITY_USE_WORSE, UINT32_MAX, false, &whole));
    scratch_remove_database();
    /* Nothing is there yet: there is nothing to finish. */
    assert_int_equal(run(QUALITY_USE_WORSE, UINT32_MAX, true, &stopped), KVT_E_ARGUMENT);
    assert_non_null(strstr(message, "whole"));
    quality_report_free(&stopped);
    assert_int_equal(run(QUALITY_USE_WORSE, 14, false, &stopped), KVT_E_CANCELLED);
    /* What is there is reported, about as many of each class. */
    assert_int_equal(stopped.set_count, 4);
    assert_true(stopped.sets[0].entries >= 1 && stopped.sets[2].entries >= 1);
    assert_true(stopped.sets[0].entries <= stopped.sets[2].entries + 2);
    assert_true(stopped.sets[0].entries < LINES);
    quality_report_free(&stopped);
    assert_ok(run(QUALITY_USE_WORSE, UINT32_MAX, false, &rest));
    assert_true(rest.resumed > 0);
    for (uint32_t s = 0; s < whole.set_count; s++) {
        assert_true(rest.sets[s].spread.nll_nats == whole.sets[s].spread.nll_nats);
        assert_true(rest.sets[s].curves[1].loss_mean == whole.sets[s].curves[1].loss_mean);
        assert_true(rest.sets[s].curves[1].kl_high == whole.sets[s].curves[1].kl_high);
    }
    quality_report_free(&rest);
    quality_report_free(&whole);
}

TEST(what_is_there_can_be_finished)
{
    quality_report stopped, finished;
    scratch_remove_database();
    assert_int_equal(run(QUALITY_USE_WORSE, 14, false, &stopped), KVT_E_CANCELLED);
    assert_ok(run(QUALITY_USE_WORSE, UINT32_MAX, true, &finished));
    assert_int_equal(finished.sets[0].entries, stopped.sets[0].entries);
    assert_true(finished.sets[1].curves[1].loss_mean == stopped.sets[1].curves[1].loss_mean);
    quality_report_free(&stopped);
    quality_report_free(&finished);
}

static calibrate_report ladders;
static quality_use calibrated_use = QUALITY_USE_WORSE;
static double calibrated_seconds;

static kvt_status calibrate(uint32_t contexts, quality_metric metric, bool finish, uint32_t calls)
{
    const char *const with[] = {paths[0]}, *const without[] = {paths[1]};
    const quality_class classes[] = {{"tasks", with, 1}, {"chat", without, 1}};
    const calibrate_wanted wanted = {.variants = &variants[1], .count = 1, .answers = true};
    kvt_profile *profile = NULL;
    const calibrate_options options = {.model = files.model,
                                       .unjudged = true,
                                       .tokenizer = files.tokenizer,
                                       .classes = classes,
                                       .class_count = 2,
                                       .wanted = &wanted,
                                       .contexts = contexts,
                                       .question_contexts = 2,
                                       .context_tokens = CONTEXT,
                                       .continuation_tokens = CONTINUATION,
                                       .threads = 2,
                                       .metric = metric,
                                       .use = calibrated_use,
                                       .seconds = calibrated_seconds,
                                       .finish = finish,
                                       .command_line = "test",
                                       .progress = stop_after,
                                       .progress_context = &calls};
    assert_ok(
        kvt_profile_open(files.database, KVT_PROFILE_WRITE, &profile, message, sizeof message));
    kvt_status status = calibrate_profile_run(profile, &options, &ladders, message, sizeof message);
    kvt_profile_close(profile);
    return status;
}

/* What the store reads of the ladder of a class. */
static kvt_codec_curve read_rung(const char *name)
{
    kvt_profile *profile = NULL;
    kvt_codec_curve curves[8];
    uint32_t count;
    const kvt_layout layout = {.layers = (uint16_t)ladders.model.layers,
                               .kv_heads = (uint16_t)ladders.model.kv_heads,
                               .head_dim = (uint16_t)ladders.model.head_dim,
                               .dtype = KVT_DTYPE_FP16,
                               .tokens = 64};
    assert_ok(
        kvt_profile_open(files.database, KVT_PROFILE_READ, &profile, message, sizeof message));
    if (profile_rungs_read(profile, &layout, NULL, name, curves, 8, &count, message,
                           sizeof message) != KVT_OK)
        fail_msg("%s: %s", name, message);
    kvt_profile_close(profile);
    assert_int_equal(count, 1);
    return curves[0];
}

/* One ladder of each class and one for all others, whose bounds are wider, of the rows that a
 * measurement of quality has left. */
TEST(a_calibration_takes_what_was_measured)
{
    static const char *const names[] = {"tasks", "chat", "pooled"};
    quality_report report;
    scratch_remove_database();
    assert_int_equal(calibrate(LINES, QUALITY_KL, true, UINT32_MAX), KVT_E_ARGUMENT);
    if (run(QUALITY_USE_WORSE, UINT32_MAX, false, &report) != KVT_OK) fail_msg("%s", message);
    if (calibrate(LINES, QUALITY_KL, true, UINT32_MAX) != KVT_OK) fail_msg("%s", message);
    assert_int_equal(ladders.resumed, 2 * LINES);
    assert_int_equal(ladders.ladder_count, 3);
    for (int i = 0; i < 3; i++) {
        const kvt_codec_curve rung = read_rung(names[i]);
        assert_string_equal(ladders.names[i], names[i]);
        assert_int_equal(ladders.ladders[i].rung_count, 1);
        assert_true(rung.loss_entry >= rung.loss_upper);
        assert_true(i < 2 ? rung.loss_widening == 0.0 : rung.loss_widening > 1.0);
        assert_true(i < 2 || rung.loss_upper > fmax(read_rung("tasks").loss, rung.loss));
        assert_true(rung.loss == ladders.ladders[i].rungs[0].loss);
    }
    /* Losses as the measurement has them: tasks by the worse of answers and passages. */
    for (int i = 0; i < 2; i++) {
        const double loss = report.sets[2 * i].curves[1].loss_mean;
        const double least = 0.5 / (SCORED * LINES);
        assert_true(fabs(ladders.ladders[i].rungs[0].loss - fmax(loss, least)) < 1e-12);
    }
    /* Fewer entries, and another loss of the same rows. */
    assert_ok(calibrate(LINES - 1, QUALITY_TOP1, true, UINT32_MAX));
    assert_int_equal(ladders.resumed, 2 * (LINES - 1));
    assert_int_equal(ladders.ladders[2].entries, 2 * (LINES - 1));
    /* Either use alone, of the rows of both. */
    for (calibrated_use = QUALITY_USE_ANSWERS; calibrated_use < QUALITY_USES; calibrated_use++) {
        quality_report used;
        char wanted[64];
        assert_ok(calibrate(LINES, QUALITY_KL, true, UINT32_MAX));
        assert_ok(run(calibrated_use, UINT32_MAX, false, &used));
        (void)snprintf(wanted, sizeof wanted, "loss %.4g [", used.sets[0].curves[1].loss_mean);
        assert_non_null(strstr(ladders.ladders[0].rungs[0].evidence, wanted));
        quality_report_free(&used);
    }
    calibrated_use = QUALITY_USE_WORSE;
    /* No answers were generated, so there are none to compare. */
    assert_int_equal(calibrate(LINES, QUALITY_ROUGE_L, true, UINT32_MAX), KVT_E_ARGUMENT);
    quality_report_free(&report);
    scratch_remove_database();
}

/* Each run measures at least one row, however little time it has, and takes the others' rows. */
TEST(a_calibration_goes_on_however_short_its_runs)
{
    uint32_t runs = 0;
    scratch_remove_database();
    calibrated_seconds = 1e-9;
    kvt_status status = KVT_E_CANCELLED;
    for (uint64_t resumed = 0; status == KVT_E_CANCELLED; runs++) {
        status = calibrate(2, QUALITY_KL, false, UINT32_MAX);
        assert_true(runs == 0 || ladders.resumed > resumed);
        resumed = ladders.resumed;
        assert_true(runs < 1000);
    }
    calibrated_seconds = 0.0;
    if (status != KVT_OK) fail_msg("%s", message);
    assert_true(runs > 10 && ladders.ladders[2].entries == 4);
    scratch_remove_database();
}

/* Candidates are measured on the asked entries, the rung on the rest too; each row once. */
TEST(a_calibration_measures_what_is_missing)
{
    static calibrate_report whole;
    scratch_remove_database();
    if (calibrate(LINES, QUALITY_KL, false, UINT32_MAX) != KVT_OK) fail_msg("%s", message);
    whole = ladders;
    assert_int_equal(whole.resumed, 0);
    assert_int_equal(whole.ladders[0].entries, LINES);
    assert_true(whole.ladders[0].choice_count >= 6);
    /* Again: all is there. */
    assert_ok(calibrate(LINES, QUALITY_KL, true, UINT32_MAX));
    const uint64_t all = ladders.resumed;
    assert_true(all > 2 * LINES);
    scratch_remove_database();
    assert_int_equal(calibrate(LINES, QUALITY_KL, false, 25), KVT_E_CANCELLED);
    assert_ok(calibrate(LINES, QUALITY_KL, false, UINT32_MAX));
    assert_true(ladders.resumed > 10 && ladders.resumed < all);
    for (uint32_t i = 0; i < whole.ladder_count; i++)
        assert_true(ladders.ladders[i].rungs[0].loss_upper == whole.ladders[i].rungs[0].loss_upper);
    for (uint32_t i = 0; i < whole.ladders[0].choice_count; i++)
        assert_string_equal(ladders.ladders[0].choices[i].evidence,
                            whole.ladders[0].choices[i].evidence);
    scratch_remove_database();
}

TEST(passages_that_fit_nothing_are_refused)
{
    model *weights = NULL;
    model_session *session = NULL;
    evaluate_entry *entry = NULL;
    evaluate_recall recall;
    const uint32_t ids[] = {1, 5, 9, 13, 17, 21}, outside[] = {5, 6, UINT32_MAX};
    assert_ok(model_open(files.model, &weights, message, sizeof message));
    assert_ok(model_session_open(weights, &session));
    assert_ok(evaluate_entry_open(session, ids, 4, 2, &entry));
    assert_int_equal(evaluate_recall_open(session, entry, ids, 3, 3, &recall), KVT_E_ARGUMENT);
    assert_int_equal(evaluate_recall_open(session, entry, ids, 3, 1, &recall), KVT_E_ARGUMENT);
    assert_int_equal(evaluate_recall_open(session, entry, outside, 3, 2, &recall), KVT_E_ARGUMENT);
    evaluate_recall_close(&recall);
    assert_ok(evaluate_recall_open(session, entry, ids, 3, 2, &recall));
    assert_true(recall.nll > 0.0);
    evaluate_recall_close(&recall);
    evaluate_entry_close(entry);
    model_session_close(session);
    model_close(weights);
}

/* Eight entries of two documents that differ say as much as two. */
TEST(intervals_are_over_documents)
{
    enum { ROWS = 8 };
    static const double losses[ROWS] = {0.10, 0.11, 0.10, 0.11, 0.40, 0.41, 0.40, 0.41};
    static const uint64_t of_two[ROWS] = {7, 7, 7, 7, 9, 9, 9, 9},
                          of_one[ROWS] = {5, 5, 5, 5, 5, 5, 5, 5};
    quality_row rows[ROWS] = {0};
    quality_curve alone, two, one;
    quality_spread spread;
    uint32_t numbers[ROWS];
    for (int i = 0; i < ROWS; i++)
        rows[i] = (quality_row){.present = true, .loss = losses[i], .bits_per_element = 4.0};
    assert_ok(quality_summarise(rows, NULL, ROWS, 1, 1, &alone, &spread));
    assert_ok(quality_summarise(rows, of_two, ROWS, 1, 1, &two, &spread));
    assert_ok(quality_summarise(rows, of_one, ROWS, 1, 1, &one, &spread));
    assert_true(alone.loss_mean == two.loss_mean && two.loss_mean == one.loss_mean);
    assert_true(two.loss_high - two.loss_low > 1.3 * (alone.loss_high - alone.loss_low));
    assert_true(fabs(two.loss_low - 0.105) < 1e-9 && fabs(two.loss_high - 0.405) < 1e-9);
    assert_true(one.loss_low == 0.0 && one.loss_high == 1.0);
    assert_int_equal(quality_number_documents(of_two, ROWS, numbers), 2);
    assert_int_equal(quality_number_documents(NULL, ROWS, numbers), ROWS);
    static const uint64_t some[4] = {0, 3, 0, 3};
    assert_int_equal(quality_number_documents(some, 4, numbers), 3);
    assert_true(numbers[1] == numbers[3] && numbers[0] != numbers[2]);
}
