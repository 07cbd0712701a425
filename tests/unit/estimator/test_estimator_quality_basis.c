/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_estimator_quality_basis.c - bases learnt on the reference model: the same texts give the
 * same ones, a calibration asks whether they pay, and what is refused. The metric of V is the
 * model's output projection.
 */
#include "cases.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <kvterrace/codec.h>

#include "basis/basis_file.h"
#include "estimator/quality/calibrate.h"
#include "estimator/quality/quality_source.h"

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

/* The hash of the basis of heads that a lesson of so many documents makes. */
static void learn_alone(uint32_t teach, char hash[2 * TRANSFORM_HASH_BYTES + 1])
{
    static calibrate_report report;
    const char *const texts[] = {text_path};
    const quality_class classes[] = {{.name = "one", .texts = texts, .text_count = 1}};
    const calibrate_options options = {.model = model_path,
                                       .classes = classes,
                                       .class_count = 1,
                                       .context_tokens = 384,
                                       .continuation_tokens = 64,
                                       .basis = true,
                                       .lesson = true,
                                       .teach_contexts = teach,
                                       .teach_tokens = 100000};
    kvt_profile *profile = NULL;
    profile_basis basis;
    assert_ok(kvt_profile_open(":memory:", KVT_PROFILE_WRITE, &profile, NULL, 0));
    if (calibrate_profile_run(profile, &options, &report, message, sizeof message) != KVT_OK)
        fail_msg("%s", message);
    assert_int_equal(report.taught, teach - teach / 4); /* one in four makes tables */
    assert_int_equal(report.ladder_count, 0);
    for (uint32_t s = 0; s < QUALITY_BASIS_SPANS; s++) {
        assert_ok(profile_basis_at(profile, s, &basis));
        assert_int_equal(basis.view.shape.span, s + 1);
        assert_true(basis.bytes > 4096);
        for (uint32_t b = 0; s == 0 && b < TRANSFORM_HASH_BYTES; b++)
            (void)snprintf(hash + (size_t)2 * b, 3, "%02x", basis.view.hash[b]);
        profile_basis_free(&basis);
    }
    assert_int_equal(profile_basis_at(profile, QUALITY_BASIS_SPANS, &basis), KVT_MISS);
    kvt_profile_close(profile);
}

TEST(the_same_texts_give_the_same_bases)
{
    char first[2 * TRANSFORM_HASH_BYTES + 1], second[2 * TRANSFORM_HASH_BYTES + 1];
    learn_alone(8, first);
    learn_alone(8, second);
    assert_string_equal(first, second);
    learn_alone(5, second);
    assert_string_not_equal(first, second);
}

TEST(the_gram_matrix_is_the_projection_squared)
{
    model *m;
    double gram[32 * 32];
    assert_ok(model_open(model_path, &m, message, sizeof message));
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
    static const uint32_t tokens[KVT_SINK_TOKENS + 4] = {1, 5, 6, 7, 8, 9, 10, 11};
    const quality_entry short_one = {
        .tokens = tokens, .context_tokens = KVT_SINK_TOKENS, .continuation_tokens = 4};
    const void *const entries[] = {&short_one};
    quality_bases bases;
    quality_model target;
    assert_ok(quality_model_open(model_path, NULL, NULL, &target, message, sizeof message));
    quality_source source = quality_source_of_model(&target, message, sizeof message);
    quality_lesson lesson = {.source = &source, .teach = entries, .teach_count = 1};
    assert_int_equal(quality_lesson_learn(&lesson, &bases), KVT_E_ARGUMENT); /* no tables */
    lesson.tables = entries;
    lesson.table_count = 1;
    assert_int_equal(quality_lesson_learn(&lesson, &bases), KVT_E_ARGUMENT); /* sinks alone */
    assert_non_null(strstr(message, "no token behind"));
    quality_bases_free(&bases);
    quality_source_end(&source);
    quality_model_close(&target);
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
    assert_ok(quality_variant_parse("planes:k8v8,g64", &only));
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
    assert_ok(kvt_profile_open(":memory:", KVT_PROFILE_WRITE, &profile, NULL, 0));
    /* Stopped while it learns: no basis, and none of a part of the documents. */
    assert_int_equal(calibrate(profile, 2, 3, &report), KVT_E_CANCELLED);
    assert_int_equal(profile_basis_at(profile, 0, &basis), KVT_MISS);
    assert_ok(calibrate(profile, 2, UINT32_MAX, &report));
    assert_int_equal(report.taught, 5); /* and one made tables */
    for (uint32_t s = 0; s < QUALITY_BASIS_SPANS; s++) {
        assert_ok(profile_basis_at(profile, s, &basis));
        assert_int_equal(basis.view.shape.span, s + 1);
        profile_basis_free(&basis);
    }
    const calibrate_ladder *ladder = &report.ladders[0];
    const char *basis_answer = NULL;
    double factors[QUALITY_BASIS_SPANS];
    for (uint32_t i = 0; i < ladder->choice_count; i++)
        if (strcmp(ladder->choices[i].question, "entropy: basis") == 0)
            basis_answer = ladder->choices[i].evidence;
    assert_non_null(basis_answer);
    /* A head's basis has a small part of entropy's distortion at even bits, a wider one less. */
    for (uint32_t s = 0; s < QUALITY_BASIS_SPANS; s++) {
        char start[16];
        (void)snprintf(start, sizeof start, "; %s ", quality_basis_span_name(s + 1));
        const char *at = strstr(basis_answer, start);
        assert_non_null(at);
        at += strlen(start) + 5; /* of the hash: what the names of its variants begin with */
        assert_true(*at == ':');
        factors[s] = strtod(at + 1, NULL);
        assert_true(factors[s] > 0.0 && factors[s] < (s == 0 ? 0.2 : factors[s - 1]));
    }
    /* The same again learns nothing and measures nothing. */
    assert_ok(calibrate(profile, 2, UINT32_MAX, &report));
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
