/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_estimator_options.c - the prefill model against the published table, and properties of the
 * options built from a cost model.
 */
#include <kvterrace/codec.h>
#include <kvterrace/profile.h>

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static void assert_near(double value, double expected, double relative)
{
    if (fabs(value - expected) <= relative * fabs(expected)) return;
    fail_msg("%.9g is not within %g of %.9g", value, relative, expected);
}

/* Seconds as research prints them: two significant digits, so half of the last one is allowed. */
static void preset_matches_published_table(void **state)
{
    (void)state;
    static const struct {
        uint32_t tokens;
        double a100, a100_half_digit, h100, h100_half_digit;
    } rows[] = {
        {1024, 0.09, 0.005, 0.025, 0.0005},
        {8192, 0.85, 0.005, 0.22, 0.005},
        {32768, 4.7, 0.05, 1.25, 0.01},
        {131072, 41.0, 0.5, 10.7, 0.05},
    };
    kvt_prefill a100, h100;
    assert_int_equal(kvt_prefill_preset("llama-3.1-8b:a100", &a100), KVT_OK);
    assert_int_equal(kvt_prefill_preset("llama-3.1-8b:h100", &h100), KVT_OK);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        double a = kvt_prefill_seconds(&a100, 0, rows[i].tokens);
        double h = kvt_prefill_seconds(&h100, 0, rows[i].tokens);
        if (fabs(a - rows[i].a100) > rows[i].a100_half_digit) fail_msg("a100 row %zu: %g", i, a);
        if (fabs(h - rows[i].h100) > rows[i].h100_half_digit) fail_msg("h100 row %zu: %g", i, h);
    }
    kvt_prefill unknown;
    assert_int_equal(kvt_prefill_preset("llama-3.1-8b:b200", &unknown), KVT_E_ARGUMENT);
    assert_int_equal(kvt_prefill_preset("", &unknown), KVT_E_ARGUMENT);
}

/* Eq. 5 by its own arithmetic, and costs of adjacent ranges that add up. */
static void prefill_follows_the_formula(void **state)
{
    (void)state;
    kvt_prefill prefill;
    assert_int_equal(kvt_prefill_preset("llama-3.1-8b:a100", &prefill), KVT_OK);
    double d = 4096.0, layers = 32.0, n = 10000.0, p = 3000.0;
    double flops = 26.0 * layers * d * d * (n - p) + 2.0 * layers * d * (n * n - p * p);
    assert_near(kvt_prefill_seconds(&prefill, 3000, 10000), flops / 156e12, 1e-12);
    double parts = kvt_prefill_seconds(&prefill, 0, 700) + kvt_prefill_seconds(&prefill, 700, 9000);
    assert_near(parts, kvt_prefill_seconds(&prefill, 0, 9000), 1e-12);
    assert_true(kvt_prefill_seconds(&prefill, 5, 5) == 0.0);
    assert_true(kvt_prefill_seconds(&prefill, 6, 5) == 0.0);
    prefill.fixed_seconds = 7.0;
    assert_true(kvt_prefill_seconds(&prefill, 0, 1) < 1.0);
    assert_true(isfinite(kvt_prefill_seconds(&prefill, 0, UINT32_MAX)));
}

static void table_interpolates_and_extends(void **state)
{
    (void)state;
    static const double seconds[] = {0.0, 1.0, 3.0};
    kvt_prefill prefill = {.table_seconds = seconds, .table_count = 3, .table_step = 100};
    assert_near(kvt_prefill_seconds(&prefill, 0, 50), 0.5, 1e-12);
    assert_near(kvt_prefill_seconds(&prefill, 0, 100), 1.0, 1e-12);
    assert_near(kvt_prefill_seconds(&prefill, 50, 150), 1.5, 1e-12);
    assert_near(kvt_prefill_seconds(&prefill, 0, 200), 3.0, 1e-12);
    assert_near(kvt_prefill_seconds(&prefill, 200, 400), 4.0, 1e-12);
    assert_true(isfinite(kvt_prefill_seconds(&prefill, 0, UINT32_MAX)));
}

static kvt_cost_model small_model(void)
{
    kvt_cost_model model;
    memset(&model, 0, sizeof model);
    const double rates[KVT_TIER_COUNT] = {0.0, 100e9, 10e9, 1e9};
    for (int tier = KVT_TIER_HBM; tier < KVT_TIER_COUNT; tier++) {
        model.present[tier] = true;
        model.read[tier] = (kvt_affine){1e-6 * tier, rates[tier], 0.0};
        model.write[tier] = model.read[tier];
    }
    model.variants[0] = (kvt_codec_curve){.variant = {KVT_CODEC_RAW, 0, 0},
                                          .stored_share = 1.001,
                                          .encode_bytes_per_s = 12e9,
                                          .decode_bytes_per_s = 14e9};
    model.variants[1] = (kvt_codec_curve){.variant = {KVT_CODEC_LOSSLESS, KVT_LOSSLESS_DENSE, 0},
                                          .stored_share = 0.7,
                                          .encode_bytes_per_s = 0.5e9,
                                          .decode_bytes_per_s = 2e9};
    model.variant_count = 2;
    model.parallel_codecs = 2;
    assert_int_equal(kvt_prefill_preset("llama-3.1-8b:a100", &model.prefill), KVT_OK);
    return model;
}

static void options_have_the_promised_order_and_costs(void **state)
{
    (void)state;
    kvt_cost_model model = small_model();
    kvt_option options[KVT_OPTIONS_MAX];
    uint32_t count = 0;
    const uint64_t source = UINT64_C(64) << 20;
    assert_int_equal(kvt_options_build(&model, source, 512, 512, 99.0, options, &count), KVT_OK);
    assert_int_equal(count, 7);
    assert_near(options[0].load_seconds, kvt_prefill_seconds(&model.prefill, 512, 1024), 1e-12);
    assert_int_equal(options[0].variant.codec, 0);
    for (uint32_t i = 1; i < count; i++) {
        int tier = KVT_TIER_HBM + (int)(i - 1) / 2;
        const kvt_codec_curve *curve = &model.variants[(i - 1) % 2];
        double exact = curve->stored_share * (double)source;
        for (int other = 0; other < KVT_TIER_COUNT; other++) {
            assert_int_equal(options[i].bytes[other], options[i].read_bytes[other]);
            if (other != tier) assert_int_equal(options[i].bytes[other], 0);
        }
        uint64_t stored = options[i].bytes[tier];
        assert_int_equal(stored % KVT_RECORD_ALIGN, 0);
        assert_true((double)stored >= exact && (double)stored < exact + KVT_RECORD_ALIGN);
        assert_int_equal(options[i].variant.codec, curve->variant.codec);
        assert_near(options[i].load_seconds,
                    1e-6 * tier + (double)stored / model.read[tier].bytes_per_s, 1e-12);
        assert_near(options[i].decode_seconds, (double)source / (curve->decode_bytes_per_s * 2.0),
                    1e-12);
        assert_near(options[i].encode_seconds, (double)source / (curve->encode_bytes_per_s * 2.0),
                    1e-12);
        assert_true(options[i].loss == 0.0);
    }
}

static void absent_tiers_and_opaque_entries(void **state)
{
    (void)state;
    kvt_cost_model model = small_model();
    model.present[KVT_TIER_HBM] = false;
    model.read[KVT_TIER_HBM].bytes_per_s = 0.0;
    kvt_option options[KVT_OPTIONS_MAX];
    uint32_t count = 0;
    assert_int_equal(kvt_options_build(&model, 4096, 0, 0, 2.5, options, &count), KVT_OK);
    assert_int_equal(count, 5);
    assert_true(options[0].load_seconds == 2.5);
    assert_int_equal(options[1].bytes[KVT_TIER_DRAM], 8192);
    assert_int_equal(options[2].bytes[KVT_TIER_DRAM], 4096);
    model.variant_count = 0;
    assert_int_equal(kvt_options_build(&model, 1, 0, 0, 0.0, options, &count), KVT_OK);
    assert_int_equal(count, 1);
}

/* More bytes never cost less, and never take fewer stored bytes; a plain generator draws sizes. */
static void costs_grow_with_size(void **state)
{
    (void)state;
    kvt_cost_model model = small_model();
    uint64_t random = 0x9e3779b97f4a7c15u;
    for (int round = 0; round < 2000; round++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        uint64_t small = 1 + (random >> 24);
        uint64_t large = small + (random & 0xfffff);
        kvt_option a[KVT_OPTIONS_MAX], b[KVT_OPTIONS_MAX];
        uint32_t count_a, count_b;
        assert_int_equal(kvt_options_build(&model, small, 0, 16, 0, a, &count_a), KVT_OK);
        assert_int_equal(kvt_options_build(&model, large, 0, 17, 0, b, &count_b), KVT_OK);
        assert_int_equal(count_a, count_b);
        for (uint32_t i = 0; i < count_a; i++) {
            assert_true(b[i].load_seconds >= a[i].load_seconds);
            assert_true(b[i].decode_seconds >= a[i].decode_seconds);
            for (int tier = 0; tier < KVT_TIER_COUNT; tier++) {
                assert_true(b[i].bytes[tier] >= a[i].bytes[tier]);
            }
        }
    }
}

static void expect_argument_error(const kvt_cost_model *model, uint64_t source, uint32_t first,
                                  uint32_t tokens, double recompute)
{
    kvt_option options[KVT_OPTIONS_MAX];
    uint32_t count = 77;
    assert_int_equal(kvt_options_build(model, source, first, tokens, recompute, options, &count),
                     KVT_E_ARGUMENT);
    assert_int_equal(count, 0);
}

static void bad_models_are_refused(void **state)
{
    (void)state;
    kvt_cost_model good = small_model(), model = good;
    expect_argument_error(&good, 0, 0, 1, 0);
    expect_argument_error(&good, (UINT64_C(1) << 46) + 1, 0, 1, 0);
    expect_argument_error(&good, 4096, UINT32_MAX, 1, 0);
    expect_argument_error(&good, 4096, 0, 0, NAN);
    expect_argument_error(&good, 4096, 0, 0, -1.0);
    for (uint32_t i = 2; i < KVT_VARIANTS_MAX; i++)
        model.variants[i] = model.variants[1];
    model.variant_count = KVT_VARIANTS_MAX; /* of three tiers: all that a model can hold fit */
    kvt_option options[KVT_OPTIONS_MAX];
    uint32_t count;
    assert_int_equal(kvt_options_build(&model, 4096, 0, 1, 0, options, &count), KVT_OK);
    assert_int_equal(count, 1 + 3 * KVT_VARIANTS_MAX);
    assert_true(count <= KVT_OPTIONS_MAX);
    model.variant_count = KVT_VARIANTS_MAX + 1;
    expect_argument_error(&model, 4096, 0, 1, 0);
    model = good;
    model.parallel_codecs = 0;
    expect_argument_error(&model, 4096, 0, 1, 0);
    const double bad[] = {0.0, -1.0, NAN, INFINITY};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        model = good;
        model.read[KVT_TIER_SSD].bytes_per_s = bad[i];
        expect_argument_error(&model, 4096, 0, 1, 0);
        model = good;
        model.variants[1].stored_share = bad[i];
        expect_argument_error(&model, 4096, 0, 1, 0);
        model = good;
        model.variants[1].decode_bytes_per_s = bad[i];
        expect_argument_error(&model, 4096, 0, 1, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(preset_matches_published_table),
        cmocka_unit_test(prefill_follows_the_formula),
        cmocka_unit_test(table_interpolates_and_extends),
        cmocka_unit_test(options_have_the_promised_order_and_costs),
        cmocka_unit_test(absent_tiers_and_opaque_entries),
        cmocka_unit_test(costs_grow_with_size),
        cmocka_unit_test(bad_models_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
