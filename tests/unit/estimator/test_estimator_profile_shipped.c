/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_estimator_profile_shipped.c - the files of profiles/ that import takes: they come in, each
 * row with a source, and they agree with the presets that are built in.
 */

#include "cases.h"

#include "estimator/exchange/exchange.h"
#include "estimator/predict/predict.h"

#include <kvterrace/codec.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static kvt_profile *open_with(const char *const *names)
{
    kvt_profile *profile = NULL;
    char path[512], message[512];
    uint64_t rows;
    const char *root = getenv("KVT_SOURCE_DIR");
    if (root == NULL) root = "..";
    assert_ok(kvt_profile_open(":memory:", KVT_PROFILE_WRITE, &profile, NULL, 0));
    for (; *names != NULL; names++) {
        snprintf(path, sizeof path, "%s/profiles/%s", root, *names);
        kvt_status status =
            exchange_import(profile, path, NULL, NULL, &rows, message, sizeof message);
        if (status != KVT_OK) fail_msg("%s", message);
        assert_true(rows > 0);
    }
    return profile;
}

TEST(prefill_agrees_with_the_presets)
{
    static const char *const files[] = {"prefill.json", NULL};
    static const char *const names[] = {"llama-3.1-8b:a100", "llama-3.1-8b:h100"};
    kvt_profile *profile = open_with(files);
    kvt_prefill preset, imported;
    for (size_t i = 0; i < 2; i++) {
        assert_ok(kvt_prefill_preset_get(names[i], &preset));
        assert_ok(kvt_profile_prefill(profile, names[i], &imported));
        for (uint32_t tokens = 1; tokens < 200000; tokens *= 7) {
            double one = kvt_prefill_seconds(&preset, 0, tokens);
            double other = kvt_prefill_seconds(&imported, 0, tokens);
            assert_true(fabs(one - other) <= 1e-12 * one);
        }
        assert_true(imported.fixed_seconds == preset.fixed_seconds);
    }
    /* Measured kernel times, summed: the table of the data set's own description. */
    static const struct {
        const char *name;
        double seconds[4];
    } gpus[] = {{"llama-3.1-8b:rtx4090", {0.193, 0.400, 0.863, 1.983}},
                {"llama-3.1-8b:rtxpro6000", {0.083, 0.173, 0.377, 0.879}}};
    for (size_t g = 0; g < 2; g++) {
        assert_ok(kvt_profile_prefill(profile, gpus[g].name, &imported));
        for (uint32_t i = 0; i < 4; i++) {
            double fitted = kvt_prefill_seconds(&imported, 0, 2048u << i);
            assert_true(fabs(fitted / gpus[g].seconds[i] - 1) < 0.02);
        }
    }
    assert_int_equal(kvt_profile_prefill(profile, "llama-3.1-8b:abacus", &imported), KVT_MISS);
    kvt_profile_close(profile);
}

TEST(devices_are_there_by_name)
{
    static const char *const files[] = {"devices.json", NULL};
    static const struct {
        const char *name;
        double bytes_per_s;
    } presets[] = {{"ssd-1", 1e9}, {"ssd-3", 3e9}, {"ssd-7", 7e9}};
    kvt_profile *profile = open_with(files);
    kvt_device_curve curve;
    for (size_t i = 0; i < 3; i++) {
        assert_ok(kvt_profile_device(profile, presets[i].name, &curve));
        assert_true(curve.imported && curve.tier == KVT_TIER_SSD);
        assert_true(curve.read.bytes_per_s == presets[i].bytes_per_s);
        assert_true(curve.write.bytes_per_s > 0 && curve.read.request_seconds > 0);
    }
    kvt_profile_close(profile);
}

TEST(published_losses_make_ladders)
{
    static const char *const files[] = {"llama-3.1-8b.json", "codecs-gpu.json", NULL};
    kvt_profile *profile = open_with(files);
    kvt_codec_curve curves[KVT_VARIANTS_MAX];
    kvt_layout layout = {.layers = 32, .kv_heads = 8, .head_dim = 128};
    char message[512] = "";
    uint32_t count = 0;
    kvt_status status = exchange_ladder(profile, "llama-3.1-8b", "longbench", &layout, curves,
                                        KVT_VARIANTS_MAX, &count, message, sizeof message);
    if (status != KVT_OK) fail_msg("%s", message);
    assert_int_equal(count, 3);
    assert_true(curves[0].loss == 0 && curves[1].loss == 0 && curves[1].stored_share == 5.0 / 16);
    assert_true(fabs(curves[2].loss - (1 - 48.50 / 50.06)) < 1e-12);
    assert_true(curves[2].imported);
    assert_ok(exchange_ladder(profile, "qwen3-8b", "ruler-4k", NULL, curves, KVT_VARIANTS_MAX,
                              &count, message, sizeof message));
    assert_int_equal(count, 4); /* a dropped form is not the raw one */
    assert_true(curves[0].stored_share == 1 && curves[0].loss == 0 && curves[1].loss > 0.2);
    kvt_profile_close(profile);
}

/* A basis comes with its ladders: three bits lose less than five and a half without one. */
TEST(real_models_have_a_basis)
{
    static const struct {
        const char *files[3], *model;
        kvt_layout layout;
        double share, loss, loss_upper;
    } models[] = {
        {{"smollm2-135m-instruct-transform.json", "smollm2-135m-instruct-head.kvtbasis", NULL},
         "smollm2-135m-instruct",
         {.layers = 30, .kv_heads = 3, .head_dim = 64, .dtype = KVT_DTYPE_FP16},
         0.2,
         0.018,
         0.05},
        {{"qwen2.5-coder-0.5b-q4_k_m.json", "qwen2.5-coder-0.5b-q4_k_m-layer.kvtbasis", NULL},
         "qwen2.5-coder-0.5b-q4_k_m",
         {.layers = 24, .kv_heads = 2, .head_dim = 64, .dtype = KVT_DTYPE_FP16},
         0.17,
         0.014,
         0.052},
    };
    for (size_t m = 0; m < sizeof models / sizeof models[0]; m++) {
        kvt_profile *profile = open_with(models[m].files);
        kvt_codec_curve curves[KVT_VARIANTS_MAX];
        char message[512] = "";
        uint32_t count = 0;
        const kvt_status status =
            profile_rungs_read(profile, &models[m].layout, models[m].model, "pooled", curves,
                               KVT_VARIANTS_MAX, &count, message, sizeof message);
        if (status != KVT_OK) fail_msg("%s", message);
        bool small = false;
        for (uint32_t i = 0; i < count; i++)
            small |= curves[i].variant.codec == KVT_CODEC_TRANSFORM &&
                     curves[i].stored_share < models[m].share && curves[i].loss < models[m].loss &&
                     curves[i].loss_upper < models[m].loss_upper;
        assert_true(small);
        kvt_profile_close(profile);
    }
}

/* Reads the 8-bit ladder of a model that was not calibrated. */
static kvt_status read_any(kvt_profile *profile, const char *class_name, kvt_codec_curve *curves,
                           uint32_t *count, char message[512])
{
    const kvt_layout layout = {
        .layers = 32, .kv_heads = 8, .head_dim = 128, .dtype = KVT_DTYPE_BF16};
    message[0] = '\0';
    return profile_rungs_read(profile, &layout, PROFILE_ANY_8_BIT, class_name, curves,
                              KVT_VARIANTS_MAX, count, message, 512);
}

/* Of two models or more; each rung has the larger bound of theirs. */
TEST(a_model_that_was_not_calibrated_may_have_eight_bits)
{
    static const char *const one[] = {"smollm2-135m-instruct.json", NULL};
    static const char *const two[] = {"smollm2-135m-instruct.json",
                                      "qwen2.5-coder-0.5b-q4_k_m.json", NULL};
    kvt_codec_curve curves[KVT_VARIANTS_MAX];
    char message[512], name[96];
    uint32_t count = 7;
    kvt_profile *profile = open_with(one);
    assert_int_equal(read_any(profile, NULL, curves, &count, message), KVT_E_MISMATCH);
    assert_int_equal(count, 0);
    assert_non_null(strstr(message, "2 calibrated models"));
    kvt_profile_close(profile);
    profile = open_with(two);
    assert_ok(read_any(profile, NULL, curves, &count, message));
    assert_int_equal(count, 1);
    (void)kvt_variant_format(curves[0].variant, name, sizeof name);
    assert_string_equal(name, "planes:k8v8,g64");
    assert_true(curves[0].loss > 0.005 && curves[0].loss_upper > 0.0123 &&
                curves[0].loss_upper < 0.013);
    assert_true(curves[0].loss_entry > 0.07 && curves[0].loss_widening == 0);
    assert_true(curves[0].stored_share > 0.53 && curves[0].stored_share < 0.54);
    assert_ok(read_any(profile, "agent", curves, &count, message));
    assert_true(curves[0].loss_entry < 0.04); /* of that class */
    assert_int_equal(read_any(profile, "poems", curves, &count, message), KVT_E_MISMATCH);
    kvt_profile_close(profile);
}

/* A ladder whose bases are elsewhere comes in whole; what needs none is offered. */
TEST(a_ladder_comes_without_its_bases)
{
    static const char *const files[] = {"qwen2.5-coder-0.5b-q4_k_m.json", NULL};
    static const char *const classes[] = {"summarisation", "qa", "agent", "code", "pooled"};
    kvt_profile *profile = open_with(files);
    const kvt_layout layout = {
        .layers = 24, .kv_heads = 2, .head_dim = 64, .dtype = KVT_DTYPE_FP16};
    kvt_codec_curve curves[KVT_VARIANTS_MAX];
    char message[512] = "";
    uint32_t count = 0;
    for (size_t i = 0; i < sizeof classes / sizeof classes[0]; i++) {
        const kvt_status status =
            profile_rungs_read(profile, &layout, "qwen2.5-coder-0.5b-q4_k_m", classes[i], curves,
                               KVT_VARIANTS_MAX, &count, message, sizeof message);
        if (status != KVT_OK) fail_msg("%s: %s", classes[i], message);
        bool small = false;
        assert_true(count >= 4);
        for (uint32_t r = 0; r < count; r++)
            small |= curves[r].stored_share < 0.33 && curves[r].loss_upper < 0.05;
        assert_true(small);
    }
    kvt_profile_close(profile);
}

/* Curves and ladders of a real model: of each task, and of tasks that were not measured. */
TEST(a_real_model_has_ladders)
{
    static const char *const files[] = {"smollm2-135m-instruct.json", "codecs-gpu.json", NULL};
    static const char *const classes[] = {"summarisation", "qa", "agent", "pooled"};
    static const char name[] = "smollm2-135m-instruct";
    kvt_profile *profile = open_with(files);
    const kvt_layout layout = {
        .layers = 30, .kv_heads = 3, .head_dim = 64, .dtype = KVT_DTYPE_FP16, .tokens_may_drop = 1};
    kvt_codec_curve curves[KVT_VARIANTS_MAX];
    kvt_quality_curve quality, recall;
    kvt_variant variant;
    char message[512] = "", passages[64];
    uint32_t count = 0;
    assert_ok(kvt_variant_parse("planes:k4v4,g64", &variant));
    for (size_t i = 0; i < 4; i++) {
        kvt_status status = profile_rungs_read(profile, &layout, name, classes[i], curves,
                                               KVT_VARIANTS_MAX, &count, message, sizeof message);
        if (status != KVT_OK) fail_msg("%s: %s", classes[i], message);
        assert_true(count >= 4);
        for (uint32_t r = 0; r < count; r++) {
            assert_true(curves[r].loss > 0 && curves[r].loss_upper >= curves[r].loss);
            assert_true(curves[r].loss_entry >= curves[r].loss_upper);
            assert_true(r == 0 || curves[r].stored_share < curves[r - 1].stored_share);
            assert_true(i < 3 ? curves[r].loss_widening == 0 : curves[r].loss_widening > 1);
        }
        assert_ok(exchange_ladder(profile, name, classes[i], &layout, curves, KVT_VARIANTS_MAX,
                                  &count, message, sizeof message));
        assert_true(curves[0].loss == 0 && curves[1].loss > 0 && count >= 5);
        assert_ok(kvt_profile_quality(profile, variant, name, classes[i], &quality));
        assert_true(quality.entries >= 20 && quality.kl > 0 && quality.kl < 0.1);
        if (i == 3) continue;
        snprintf(passages, sizeof passages, "%s/recall", classes[i]);
        assert_ok(kvt_profile_quality(profile, variant, name, passages, &recall));
        /* Word for word the context is harder to keep than what is asked about it. */
        assert_true(recall.kl > quality.kl && quality.loss_mean >= recall.loss_mean);
    }
    kvt_profile_close(profile);
}
