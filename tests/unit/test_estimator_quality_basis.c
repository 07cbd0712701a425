/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_estimator_quality_basis.c - bases learnt on the reference model: errors fall with the bits,
 * wider spans need fewer of them, and what is refused. The model's output projection is the metric
 * of V.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

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

static kvt_status run(const char *path, uint32_t contexts, quality_basis_report *report)
{
    const char *const texts[] = {text_path};
    const quality_basis_options options = {.model = path,
                                           .texts = texts,
                                           .text_count = 1,
                                           .contexts = contexts,
                                           .context_tokens = 384,
                                           .continuation_tokens = 64};
    return quality_basis_run(&options, report, message, sizeof message);
}

static void bases_of_the_reference_model_save_bits(void **state)
{
    (void)state;
    quality_basis_report report;
    assert_int_equal(run(model_path, 15, &report), KVT_OK);
    assert_int_equal(report.learnt, 9);
    assert_int_equal(report.counted, 3);
    assert_int_equal(report.judged, 3);
    assert_int_equal(report.row_count, QUALITY_BASIS_ROWS);
    for (uint32_t i = 0; i < report.row_count; i++) {
        const quality_basis_row *row = &report.rows[i];
        assert_true(row->bits > 0.0 && row->bits < 8.0);
        assert_true(row->kl > 0.0 && row->top1 > 0.0 && row->top1 <= 1.0);
        if (i == 0 || row->span != row[-1].span) continue;
        assert_true(row->bits < row[-1].bits); /* steps rise */
        assert_true(row->kl > 0.8 * row[-1].kl);
    }
    assert_true(report.reference_bits > 2.5 && report.reference_bits < 4.0);
    for (uint32_t s = 0; s < QUALITY_BASIS_SPANS; s++)
        assert_true(report.bytes[s] > 4096);
    /* Each span has a row that is better than entropy at less than 0.6 of its bits. */
    bool saves[QUALITY_BASIS_SPANS + 1] = {false};
    for (uint32_t i = 0; i < report.row_count; i++)
        saves[report.rows[i].span] |= report.rows[i].kl < report.reference_kl &&
                                      report.rows[i].bits < 0.6 * report.reference_bits;
    for (uint32_t s = TRANSFORM_SPAN_HEAD; s <= TRANSFORM_SPAN_LAYERS4; s++)
        assert_true(saves[s]);
    assert_true(report.share[0] > 0.0 && report.share[0] < 0.6);
}

static void the_gram_matrix_is_the_projection_squared(void **state)
{
    (void)state;
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

static void what_cannot_be_learnt_is_refused(void **state)
{
    (void)state;
    quality_basis_report report;
    assert_int_equal(run(model_path, 5, &report), KVT_E_ARGUMENT);
    assert_non_null(strstr(message, "contexts"));
    assert_int_equal(run("there is no such model", 15, &report), KVT_E_GONE);
    assert_int_equal(report.row_count, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bases_of_the_reference_model_save_bits),
        cmocka_unit_test(the_gram_matrix_is_the_projection_squared),
        cmocka_unit_test(what_cannot_be_learnt_is_refused),
    };
    find_reference();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
