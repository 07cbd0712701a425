/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_estimator_quality_mixed.c - mixed contexts on a small random model: exact forms lose
 * nothing, one block is a whole context, blocks go their own ways, and what is refused.
 */
#include "quality_scratch.h"

#include "estimator/quality/quality.h"

enum { CONTEXT = 100, CONTINUATION = 16, CONTEXTS = 4 };

static char message[256];

static kvt_status run_text(const char *text, const char *const *names, uint32_t count,
                           uint32_t blocks, uint32_t mixes, quality_mixed_report *report)
{
    const char *const texts[] = {text};
    quality_variant variants[4];
    for (uint32_t i = 0; i < count; i++)
        assert_int_equal(quality_variant_parse(names[i], &variants[i]), KVT_OK);
    const quality_mixed_options options = {.model = files.model,
                                           .tokenizer = files.tokenizer,
                                           .texts = texts,
                                           .text_count = 1,
                                           .variants = variants,
                                           .variant_count = count,
                                           .contexts = CONTEXTS,
                                           .context_tokens = CONTEXT,
                                           .continuation_tokens = CONTINUATION,
                                           .blocks = blocks,
                                           .mixes = mixes,
                                           .seed = 5,
                                           .threads = 2};
    return quality_mixed_run(&options, report, message, sizeof message);
}

static kvt_status run(const char *const *names, uint32_t count, uint32_t blocks, uint32_t mixes,
                      quality_mixed_report *report)
{
    return run_text(files.plain, names, count, blocks, mixes, report);
}

TEST_ALL(scratch_make_files, scratch_remove_files);

TEST(exact_blocks_lose_nothing)
{
    static const char *const names[] = {"raw", "lossless"};
    quality_mixed_report report;
    assert_int_equal(run(names, 2, 3, 4, &report), KVT_OK); /* 33, 33 and 34 tokens */
    assert_int_equal(report.contexts, CONTEXTS);
    assert_true(report.kl.predicted == 0.0 && report.kl.measured == 0.0);
    assert_true(report.loss.predicted == 0.0 && report.loss.measured == 0.0);
}

/* Predicted from the other half of the contexts: over equal halves the means are the same. */
TEST(one_block_is_a_whole_context)
{
    static const char *const names[] = {"planes:k2v2,g64", "planes:k2v2,g64"};
    quality_mixed_report report;
    assert_int_equal(run(names, 2, 1, 2, &report), KVT_OK);
    assert_true(report.kl.measured > 0.0);
    assert_true(fabs(report.kl.predicted - report.kl.measured) < 1e-9 * report.kl.measured);
    assert_true(fabs(report.loss.predicted - report.loss.measured) < 1e-9);
    assert_true(report.kl.error_p50 < 1e-9);
}

TEST(blocks_go_their_own_ways)
{
    static const char *const names[] = {"lossless", "planes:k2v2,g64"};
    quality_mixed_report report, whole;
    assert_int_equal(run(names, 2, 3, 12, &report), KVT_OK);
    assert_int_equal(run(names + 1, 1, 1, 1, &whole),
                     KVT_E_ARGUMENT); /* one variant mixes nothing */
    static const char *const coarse[] = {"planes:k2v2,g64", "planes:k2v2,g64"};
    assert_int_equal(run(coarse, 2, 1, 1, &whole), KVT_OK);
    assert_true(report.kl.measured > 0.0 && report.kl.measured < whole.kl.measured);
    assert_true(report.kl.predicted > 0.0 && report.kl.predicted < whole.kl.predicted);
    /* More coarse blocks lose more. */
    assert_true(report.kl.pearson > 0.3 && report.kl.spearman_mixes > 0.3);
    quality_mixed_report again;
    assert_int_equal(run(names, 2, 3, 12, &again), KVT_OK);
    assert_true(again.kl.measured == report.kl.measured && again.kl.pearson == report.kl.pearson);
}

TEST(what_cannot_be_mixed_is_refused)
{
    static const char *const merged[] = {"kivi:k4v4,g64", "kivi:k4v4,g64@row"};
    static const char *const plain[] = {"raw", "lossless"};
    quality_mixed_report report;
    assert_int_equal(run(merged, 2, 2, 2, &report), KVT_E_ARGUMENT);
    assert_non_null(strstr(message, "@row"));
    assert_int_equal(run(plain, 2, 4, 2, &report), KVT_E_ARGUMENT); /* 25 tokens */
    assert_int_equal(run(plain, 2, 0, 2, &report), KVT_E_ARGUMENT);
    /* A text that says what its context is may have a shorter one than was asked for. */
    assert_int_equal(run_text(files.asked, plain, 2, 3, 2, &report), KVT_E_ARGUMENT);
    assert_non_null(strstr(message, "no 3 blocks of 32"));
}
