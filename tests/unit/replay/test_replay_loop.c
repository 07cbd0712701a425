/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_replay_loop.c - the parts of the whole loop that need no model: names of contenders, the
 * best uniform mix, and what samples add up to. tests/unit/test_tools_loop.py runs the loop itself.
 */
#include "cases.h"

#include "replay/loop/loop_sample.h"

#include <kvterrace/codec.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void expect_near(double value, double wanted)
{
    if (!(fabs(value - wanted) <= 1e-9)) fail_msg("%.12g, not %.12g", value, wanted);
}

static kvt_variant variant_of(const char *name)
{
    kvt_variant variant;
    assert_ok(kvt_variant_parse(name, &variant));
    return variant;
}

static void expect_refused(const char *name, const char *part)
{
    loop_contender contender;
    char message[256] = "";
    assert_int_equal(loop_contender_parse(name, &contender, message, sizeof message),
                     KVT_E_ARGUMENT);
    assert_non_null(strstr(message, part));
}

TEST(names_say_policy_and_forms)
{
    static const struct {
        const char *name, *policy, *variant;
        loop_forms forms;
    } rows[] = {{"lru", "lru", "raw", LOOP_FORMS_RAW},
                {"lru+raw", "lru", "raw", LOOP_FORMS_RAW},
                {"gdsf+lossless", "gdsf", "lossless", LOOP_FORMS_ONE},
                {"lru+kivi-4", "lru", "kivi:k4v4,g64", LOOP_FORMS_ONE},
                {"lru+planes:k4v4/g64", "lru", "planes:k4v4,g64", LOOP_FORMS_ONE},
                {"lru+drop:stream/50", "lru", "drop:stream,50", LOOP_FORMS_ONE},
                {"lru+mix", "lru", "raw", LOOP_FORMS_MIX},
                {"utility", "utility", "raw", LOOP_FORMS_LADDER},
                {"adaptcache", "adaptcache", "raw", LOOP_FORMS_LADDER}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        loop_contender contender;
        char message[256];
        assert_ok(loop_contender_parse(rows[i].name, &contender, message, sizeof message));
        assert_string_equal(contender.policy, rows[i].policy);
        assert_int_equal(contender.forms, rows[i].forms);
        const kvt_variant wanted = variant_of(rows[i].variant);
        assert_memory_equal(&contender.variant, &wanted, sizeof wanted);
    }
    expect_refused("lr", "unknown policy");
    expect_refused("utility+mix", "whole ladder");
    expect_refused("lru+", "no variant");
    expect_refused("lru+kivi-9", "no variant");
    expect_refused(
        "lru+kivi:k4v4,g64+planes:k4v4,g64,and,much,more,than,a,name,may,have,in,it,at,all",
        "too long");
}

static loop_ladder make_ladder(void)
{
    static const struct {
        const char *name;
        double share, loss;
    } rows[] = {{"raw", 1.0, 0.0},
                {"planes:k8v8,g64", 0.5, 0.001},
                {"planes:k4v4,g64", 0.25, 0.02},
                {"planes:k2v2,g64", 0.15, 0.2}};
    loop_ladder ladder = {.count = 4, .all = 4};
    for (uint32_t i = 0; i < 4; i++)
        ladder.curves[i] = (kvt_codec_curve){.variant = variant_of(rows[i].name),
                                             .stored_share = rows[i].share,
                                             .loss = rows[i].loss,
                                             .loss_upper = rows[i].loss};
    return ladder;
}

/* No pair and share with so little loss is smaller than the one that is found. */
TEST(the_mix_is_the_smallest)
{
    const loop_ladder ladder = make_ladder();
    for (double loss = 0.0; loss < 0.3; loss += 0.004) {
        loop_contender mix = {.forms = LOOP_FORMS_MIX};
        loop_contender_mix(&ladder, loss, &mix);
        const kvt_codec_curve *a = &ladder.curves[loop_ladder_find(&ladder, mix.variant)];
        const kvt_codec_curve *b = a;
        if (mix.other_share > 0) b = &ladder.curves[loop_ladder_find(&ladder, mix.other)];
        const double share = mix.other_share;
        assert_true(share >= 0 && share < 1);
        assert_true(a->loss + share * (b->loss - a->loss) <= loss + 1e-12);
        const double bytes = a->stored_share + share * (b->stored_share - a->stored_share);
        for (uint32_t i = 0; i < 4; i++) {
            for (uint32_t j = 0; j < 4; j++) {
                for (double part = 0.0; part <= 1.0; part += 0.01) {
                    const kvt_codec_curve *x = &ladder.curves[i], *y = &ladder.curves[j];
                    if (x->loss + part * (y->loss - x->loss) > loss) continue;
                    assert_true(bytes <= x->stored_share +
                                             part * (y->stored_share - x->stored_share) + 1e-9);
                }
            }
        }
    }
}

/* Means, percentiles, forms, and an interval over contexts that holds the mean. */
TEST(samples_add_up)
{
    const loop_ladder ladder = make_ladder();
    loop_samples samples;
    loop_result result = {.seed = 1};
    assert_ok(loop_samples_open(&samples, 100));
    for (uint32_t i = 0; i < 100; i++) {
        const bool hit = i % 4 != 0;
        loop_samples_add(&samples, &(loop_sample){.context = i % 10,
                                                  .hit = hit,
                                                  .tier = i % 2 ? KVT_TIER_SSD : KVT_TIER_DRAM,
                                                  .variant = ladder.curves[i % 3 ? 2 : 0].variant,
                                                  .same = i % 3 == 0,
                                                  .wait_s = 1,
                                                  .load_s = hit ? 0.5 : 0,
                                                  .prefill_s = hit ? 0 : 8,
                                                  .question_s = 0.25,
                                                  .get_s = 0.5,
                                                  .predicted_s = 0.4,
                                                  .rouge_l = hit && i % 3 ? 0.8 : 1,
                                                  .top1 = hit && i % 3 ? 0.95 : 1,
                                                  .recall = i % 10 < 5 ? 0.9 : (double)NAN,
                                                  .loss = hit && i % 3 ? 0.1 : 0,
                                                  .f1 = 1});
    }
    loop_samples_stored(&samples, ladder.curves[2].variant, KVT_TIER_SSD);
    loop_samples_stored(&samples, ladder.curves[3].variant, KVT_TIER_HBM);
    samples.last_arrival_ns = UINT64_C(500000000000);
    loop_samples_finish(&samples, &ladder, &result);
    loop_samples_close(&samples);
    assert_int_equal(result.requests, 100);
    assert_int_equal(result.hits, 75);
    assert_int_equal(result.hits_by_tier[KVT_TIER_DRAM] + result.hits_by_tier[KVT_TIER_SSD], 75);
    expect_near(result.ttft_mean, 1.25 + 0.75 * 0.5 + 0.25 * 8);
    expect_near(result.ttft_p50, 1.75);
    expect_near(result.rho, (0.25 + 0.75 * 0.5 + 0.25 * 8) * 100 / 500);
    expect_near(result.load_error_p50, 0.2);
    assert_int_equal(result.form_count, 3);
    assert_string_equal(result.forms[0].name, "raw");
    assert_int_equal(result.forms[0].hits[0] + result.forms[1].hits[0], 75);
    expect_near(result.forms[0].loss, 0);
    expect_near(result.forms[1].loss, 0.1);
    assert_true(result.forms[1].loss_low <= 0.1 && result.forms[1].loss_high >= 0.1 - 1e-12);
    expect_near(result.forms[1].rouge_l, 0.8);
    expect_near(result.forms[1].top1, 0.95);
    expect_near(result.forms[1].recall, 0.9);
    expect_near(result.loss, 0.1 * (double)result.forms[1].hits[0] / 100);
    expect_near(result.top1, 1 - 0.05 * (double)result.forms[1].hits[0] / 100);
    assert_int_equal(result.forms[1].contexts, 10);
    assert_int_equal(result.forms[1].stored[KVT_TIER_SSD], 1);
    assert_int_equal(result.forms[2].hits[0], 0);
    assert_true(isnan(result.forms[2].loss));
    expect_near(result.loss_predicted, 0.02 * (double)result.forms[1].hits[0] / 75);
}
