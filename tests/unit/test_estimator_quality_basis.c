/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_estimator_quality_basis.c - bases learnt on the reference model: errors fall with the bits,
 * wider spans need fewer of them, and what is refused. The model's output projection is the metric
 * of V.
 */
#include "cases.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <kvterrace/codec.h>

#include "basis/basis_file.h"
#include "estimator/quality/calibrate.h"
#include "estimator/quality/quality_basis.h"

static char message[256];
static char model_path[1024], text_path[1024];

static void find_reference(void)
{
    const char *source = getenv("KVT_SOURCE_DIR");
    (void)snprintf(model_path, sizeof model_path, "%s/reference_model/model",
                   source != NULL ? source : "..");
    (void)snprintf(text_path, sizeof text_path, "%s/reference_model/texts/recall-512.jsonl",
                   source != NULL ? source : "..");
}

static const char output_path[] = "test_quality_basis_written";

/* Two classes of the same texts, of which the first one teaches: entries of texts without a
 * document are documents of their own, so that both have the same judges. */
static const char rows_path[] = "test_quality_basis_rows";
static const char *kept_rows, *from_basis; /* of the next runs */

static kvt_status run(const char *path, uint32_t teach, quality_basis_report *report)
{
    const char *const texts[] = {text_path};
    const quality_class classes[] = {{.name = "one", .texts = texts, .text_count = 1},
                                     {.name = "other", .texts = texts, .text_count = 1}};
    const bool teaches[] = {true, false};
    const quality_basis_options options = {.model = path,
                                           .output = from_basis == NULL ? output_path : NULL,
                                           .basis = from_basis,
                                           .rows = kept_rows,
                                           .classes = classes,
                                           .class_count = 2,
                                           .teaches = teaches,
                                           .teach_contexts = teach,
                                           .table_contexts = 3,
                                           .judge_contexts = 3,
                                           .context_tokens = 384,
                                           .continuation_tokens = 64};
    return quality_basis_run(&options, report, message, sizeof message);
}

static quality_basis_report first_report, second_report;

/* The files are the bases that the report names. */
static void check_files(const quality_basis_report *report)
{
    for (uint32_t s = 0; s < QUALITY_BASIS_SPANS; s++) {
        char path[128], hash[2 * TRANSFORM_HASH_BYTES + 1];
        transform_basis basis;
        (void)snprintf(path, sizeof path, "%s-%s.kvtbasis", output_path,
                       quality_basis_span_name(s + 1));
        FILE *file = fopen(path, "rbe");
        assert_non_null(file);
        uint8_t *bytes = aligned_alloc(64, (report->bytes[s] + 127) / 64 * 64);
        assert_non_null(bytes);
        assert_int_equal(fread(bytes, 1, report->bytes[s] + 1, file), report->bytes[s]);
        (void)fclose(file);
        assert_int_equal(basis_read(bytes, report->bytes[s], &basis, NULL), KVT_OK);
        for (uint32_t i = 0; i < TRANSFORM_HASH_BYTES; i++)
            (void)snprintf(hash + (size_t)2 * i, 3, "%02x", basis.hash[i]);
        assert_string_equal(hash, report->hashes[s]);
        free(bytes);
        assert_int_equal(remove(path), 0);
    }
}

/* Each span is as near as the reference with less than 0.6 of its bits. The order in which a kernel
 * of OpenBLAS adds moves the rows, and the coarsest step may still be nearer than the reference:
 * then no bits are named, and the span needs at most those of its coarsest row. */
static void check_bits(const quality_basis_judged *judged, uint32_t rows, uint32_t span)
{
    const quality_basis_row *coarsest = NULL;
    for (uint32_t i = 0; i < rows; i++) {
        if (judged->rows[i].span == span + 1) coarsest = &judged->rows[i];
    }
    assert_non_null(coarsest);
    const bool between = !isnan(judged->bits[span]);
    const double bits = between ? judged->bits[span] : coarsest->bits;
    assert_true(between || coarsest->kl < judged->reference_kl);
    assert_true(bits > 0.0 && bits < 0.6 * QUALITY_BASIS_BITS);
}

TEST(bases_of_the_reference_model_save_bits)
{
    quality_basis_report *report = &first_report;
    assert_int_equal(run(model_path, 9, report), KVT_OK);
    check_files(report);
    assert_int_equal(report->taught, 9);
    assert_int_equal(report->tables, 3);
    assert_int_equal(report->judged_count, 2);
    assert_int_equal(report->row_count, QUALITY_BASIS_ROWS);
    const quality_basis_judged *judged = &report->judged[0];
    assert_string_equal(judged->name, "one");
    assert_int_equal(judged->contexts, 3);
    assert_true(judged->taught && !report->judged[1].taught);
    for (uint32_t i = 0; i < report->row_count; i++) {
        const quality_basis_row *row = &judged->rows[i];
        assert_true(row->bits > 0.0 && row->bits < 8.0);
        assert_true(row->kl > 0.0 && row->top1 > 0.0 && row->top1 <= 1.0);
        /* The other class has the same contexts. */
        assert_true(row->bits == report->judged[1].rows[i].bits);
        if (row->span == 0) continue;
        /* Stored bits are above the codes' entropy, and not far: this model's blocks are small. */
        assert_true(row->bits > row->order0_bits && row->bits < 1.12 * row->order0_bits);
        if (row->span != row[-1].span) continue;
        assert_true(row->bits < row[-1].bits); /* steps rise */
        assert_true(row->kl > 0.8 * row[-1].kl);
    }
    assert_true(judged->reference_kl > judged->rows[0].kl);
    for (uint32_t s = 0; s < QUALITY_BASIS_SPANS; s++) {
        assert_true(report->bytes[s] > 4096);
        assert_int_equal(strlen(report->hashes[s]), 2 * TRANSFORM_HASH_BYTES);
        check_bits(judged, report->row_count, s);
    }
}

TEST(the_same_texts_give_the_same_bases)
{
    assert_int_equal(run(model_path, 9, &second_report), KVT_OK);
    for (uint32_t s = 0; s < QUALITY_BASIS_SPANS; s++)
        assert_string_equal(first_report.hashes[s], second_report.hashes[s]);
    assert_int_equal(run(model_path, 8, &second_report), KVT_OK);
    assert_string_not_equal(first_report.hashes[0], second_report.hashes[0]);
}

static uint32_t count_lines(const char *path)
{
    uint32_t lines = 0;
    FILE *file = fopen(path, "rbe");
    assert_non_null(file);
    for (int byte = fgetc(file); byte != EOF; byte = fgetc(file))
        lines += byte == '\n';
    (void)fclose(file);
    return lines;
}

/* A run that was killed in a line, and one whose bases come from files: nothing that is there is
 * judged again, and the report is the same. */
TEST(what_was_judged_is_kept)
{
    (void)remove(rows_path);
    kept_rows = rows_path;
    assert_int_equal(run(model_path, 9, &second_report), KVT_OK);
    const uint32_t lines = count_lines(rows_path);
    assert_true(lines >= 3 * QUALITY_BASIS_ROWS);
    FILE *file = fopen(rows_path, "abe");
    assert_non_null(file);
    assert_true(fputs("0123456789abcdef 1.5 1", file) >= 0);
    (void)fclose(file);
    from_basis = output_path;
    quality_basis_report *again = test_zeros(sizeof *again);
    assert_int_equal(run(model_path, 9, again), KVT_OK);
    assert_int_equal(count_lines(rows_path), lines + 1);
    assert_int_equal(again->judged_count, second_report.judged_count);
    assert_memory_equal(again->judged[0].rows, second_report.judged[0].rows,
                        sizeof again->judged[0].rows);
    assert_string_equal(again->hashes[0], second_report.hashes[0]);
    /* Bases of other texts may have been taught by what judges. */
    find_reference();
    (void)snprintf(text_path, sizeof text_path, "%s/reference_model/texts/recall-768.jsonl",
                   getenv("KVT_SOURCE_DIR") != NULL ? getenv("KVT_SOURCE_DIR") : "..");
    assert_int_equal(run(model_path, 9, again), KVT_E_ARGUMENT);
    assert_non_null(strstr(message, "other texts"));
    find_reference();
    free(again);
    from_basis = kept_rows = NULL;
    check_files(&second_report);
    assert_int_equal(remove(rows_path), 0);
}

/* A report of two settings of entropy and two rows of heads. */
TEST(what_lies_between_rows_is_found)
{
    const struct {
        uint8_t span;
        double bits, kl;
    } given[] = {{0, 3.6, 0.01}, {0, 2.6, 0.04}, {0, 2.6, 0.09}, {1, 2.5, 0.01}, {1, 1.5, 0.04}};
    enum { GIVEN = sizeof given / sizeof given[0] };
    quality_basis_sums sums[GIVEN] = {{.bits = 0.0}};
    quality_basis_judged judged = {.contexts = 0};
    for (uint32_t i = 0; i < GIVEN; i++) {
        judged.rows[i].span = given[i].span;
        sums[i] = (quality_basis_sums){.bits = 2.0 * given[i].bits,
                                       .log_kl = 2.0 * log(given[i].kl),
                                       .recall_top1 = given[i].bits,
                                       .contexts = 2,
                                       .recalls = 1};
    }
    quality_basis_sum_up(sums, GIVEN, &judged);
    assert_float_equal(judged.reference_kl, 0.02, 1e-9);
    assert_float_equal(judged.bits[0], 2.0, 1e-9);
    assert_float_equal(judged.recall_top1[0], quality_basis_recall_bits[0], 1e-9);
    assert_true(isnan(judged.bits[1]) && isnan(judged.recall_top1[2]));
    assert_true(isnan(judged.rows[0].order0_bits));
}

TEST(the_gram_matrix_is_the_projection_squared)
{
    model *m;
    double gram[32 * 32];
    assert_int_equal(model_open(model_path, &m, message, sizeof message), KVT_OK);
    const model_config *c = model_config_of(m);
    assert_int_equal(c->head_dim, 32);
    for (uint32_t head = 0; head < c->kv_heads; head++) {
        double trace = 0.0;
        model_output_gram(m, 1, head, gram);
        for (uint32_t i = 0; i < 32; i++) {
            trace += gram[33 * i];
            for (uint32_t j = 0; j < 32; j++) {
                assert_true(gram[32 * i + j] == gram[32 * j + i]);
                assert_true(gram[32 * i + j] * gram[32 * i + j] <=
                            gram[33 * i] * gram[33 * j] * (1.0 + 1e-12));
            }
        }
        assert_true(trace > 0.0);
    }
    model_close(m);
}

TEST(what_cannot_be_learnt_is_refused)
{
    const quality_entry short_one = {.context_tokens = KVT_SINK_TOKENS};
    const quality_entry *const entries[] = {&short_one};
    const char *const texts[] = {text_path};
    const quality_class classes[] = {{.name = "one", .texts = texts, .text_count = 1}};
    quality_basis_options options = {.model = model_path,
                                     .classes = classes,
                                     .class_count = 1,
                                     .teach_contexts = 3,
                                     .table_contexts = 1,
                                     .judge_contexts = 1,
                                     .longest = 8,
                                     .context_tokens = 384,
                                     .continuation_tokens = 64};
    quality_bases bases;
    quality_basis_lesson lesson = {.teach = entries, .teach_count = 1};
    assert_int_equal(quality_bases_learn(&lesson, &bases), KVT_E_ARGUMENT); /* no tables */
    lesson.tables = entries;
    lesson.table_count = 1;
    assert_int_equal(quality_bases_learn(&lesson, &bases), KVT_E_ARGUMENT); /* sinks alone */
    quality_bases_free(&bases);
    assert_int_equal(quality_basis_run(&options, &second_report, message, sizeof message),
                     KVT_E_ARGUMENT);
    assert_non_null(strstr(message, "context"));
    options.longest = 0;
    options.model = "there is no such model";
    assert_int_equal(quality_basis_run(&options, &second_report, message, sizeof message),
                     KVT_E_GONE);
    assert_int_equal(second_report.row_count, 0);
}

/* ---- a calibration that learns ---- */

typedef struct patience {
    uint32_t calls, most;
} patience;

static bool ask_patience(void *context, double done, const char *what)
{
    patience *left = context;
    (void)done, (void)what;
    return ++left->calls <= left->most;
}

/* Two classes of the same texts, in one order: what judges one would teach for the other, were it
 * not for its words. */
static kvt_status calibrate(kvt_profile *profile, uint32_t contexts, uint32_t most,
                            calibrate_report *report)
{
    const char *const texts[] = {text_path};
    const quality_class classes[] = {{.name = "one", .texts = texts, .text_count = 1},
                                     {.name = "other", .texts = texts, .text_count = 1}};
    const bool teaches[] = {true, false};
    quality_variant only;
    assert_int_equal(quality_variant_parse("planes:k8v8,g64", &only), KVT_OK);
    const calibrate_wanted wanted = {.variants = &only, .count = 1};
    patience left = {.most = most};
    const calibrate_options options = {.model = model_path,
                                       .name = "reference",
                                       .classes = classes,
                                       .class_count = 2,
                                       .wanted = &wanted,
                                       .contexts = contexts,
                                       .question_contexts = 2,
                                       .context_tokens = 384,
                                       .continuation_tokens = 32,
                                       .basis = true,
                                       .teaches = teaches,
                                       .teach_contexts = 6,
                                       .teach_tokens = 100000,
                                       .threads = 2,
                                       .progress = ask_patience,
                                       .progress_context = &left};
    return calibrate_profile_run(profile, &options, report, message, sizeof message);
}

TEST(a_calibration_learns_once)
{
    kvt_profile *profile = NULL;
    static calibrate_report report;
    profile_basis basis;
    assert_int_equal(kvt_profile_open(":memory:", KVT_PROFILE_WRITE, &profile, NULL, 0), KVT_OK);
    /* Stopped while it learns: no basis, and none of a part of the documents. */
    assert_int_equal(calibrate(profile, 2, 3, &report), KVT_E_CANCELLED);
    assert_int_equal(profile_basis_at(profile, 0, &basis), KVT_MISS);
    assert_int_equal(calibrate(profile, 2, UINT32_MAX, &report), KVT_OK);
    assert_int_equal(report.taught, 5); /* and one made tables */
    for (uint32_t s = 0; s < QUALITY_BASIS_SPANS; s++) {
        assert_int_equal(profile_basis_at(profile, s, &basis), KVT_OK);
        assert_int_equal(basis.view.shape.span, s + 1);
        profile_basis_free(&basis);
    }
    const calibrate_ladder *ladder = &report.ladders[0];
    bool asked = false;
    for (uint32_t i = 0; i < ladder->choice_count; i++)
        asked = asked || strcmp(ladder->choices[i].question, "entropy: basis") == 0;
    assert_true(asked);
    /* The same again learns nothing and measures nothing. */
    assert_int_equal(calibrate(profile, 2, UINT32_MAX, &report), KVT_OK);
    assert_int_equal(report.taught, 0);
    assert_true(report.resumed > 0);
    assert_int_equal(profile_basis_at(profile, QUALITY_BASIS_SPANS, &basis), KVT_MISS);
    /* All texts judge: no document is left. */
    assert_int_equal(calibrate(profile, 1000, UINT32_MAX, &report), KVT_E_ARGUMENT);
    assert_non_null(strstr(message, "four documents or more"));
    kvt_profile_close(profile);
}

int main(void)
{
    find_reference();
    return tests_run();
}
