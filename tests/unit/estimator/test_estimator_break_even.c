/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_estimator_break_even.c - break-even points against cases worked out by hand, and against the
 * times that they compare: just below one choice is faster, just above the other.
 */
#include "cases.h"

#include "estimator/predict/predict.h"
#include "estimator/profile/profile.h"

#include <math.h>

static void assert_near(double value, double expected, double relative)
{
    if (fabs(value - expected) <= relative * fabs(expected)) return;
    fail_msg("%.9g is not within %g of %.9g", value, relative, expected);
}

static kvt_codec_curve form(double share, double decode_bytes_per_s)
{
    return (kvt_codec_curve){.stored_share = share, .decode_bytes_per_s = decode_bytes_per_s};
}

/* A quarter of the bytes, decoded at 4 GB/s, raw at 8 GB/s: 0.75 / (1/4 - 1/8) = 6 GB/s. */
TEST(a_form_pays_below_a_bandwidth)
{
    kvt_codec_curve raw = form(1.0, 8e9), small = form(0.25, 4e9);
    double bandwidth = kvt_break_even_bandwidth(&raw, &small);
    assert_near(bandwidth, 6e9, 1e-12);
    const double bytes = 32 << 20;
    const double places[] = {0.9, 1.1};
    for (size_t i = 0; i < 2; i++) {
        kvt_affine read = {.request_seconds = 1e-4, .bytes_per_s = places[i] * bandwidth};
        bool faster = kvt_load_seconds(&read, &small, bytes) < kvt_load_seconds(&read, &raw, bytes);
        assert_int_equal(faster, i == 0);
    }
    /* Raw that nobody has to decode: 0.75 / (1/4) = 3 GB/s. */
    raw = form(1.0, 0.0);
    assert_near(kvt_break_even_bandwidth(&raw, &small), 3e9, 1e-12);
}

TEST(forms_that_always_or_never_pay)
{
    kvt_codec_curve raw = form(1.0, 8e9);
    kvt_codec_curve quick = form(0.5, 9e9), as_quick = form(0.5, 8e9), slow = form(1.0, 1e9);
    kvt_codec_curve larger = form(1.01, 100e9);
    assert_true(isinf(kvt_break_even_bandwidth(&raw, &quick)));
    assert_true(isinf(kvt_break_even_bandwidth(&raw, &as_quick)));
    assert_true(kvt_break_even_bandwidth(&raw, &slow) == 0.0);
    assert_true(kvt_break_even_bandwidth(&raw, &larger) == 0.0);
}

/* 1e-3 + 1e6 / 1e9 * 0.5 + 1e6 / 2e9 = 2 ms. */
TEST(a_load_is_the_sum_of_its_parts)
{
    kvt_affine read = {.request_seconds = 1e-3, .bytes_per_s = 1e9};
    kvt_codec_curve half = form(0.5, 2e9), free_raw = form(1.0, 0.0);
    assert_near(kvt_load_seconds(&read, &half, 1e6), 2e-3, 1e-12);
    assert_near(kvt_load_seconds(&read, &free_raw, 1e6), 2e-3, 1e-12);
}

/*
 * 1e5 bytes a token at 1 GB/s are 100 us a token. Prefill of 20 us + 10 ns * n a token: 80 us * n =
 * 10 ns * n^2 at n = 8000. With 1 ms before each load: n^2 * 1e-8 - 8e-5 n - 1e-3 = 0 at
 * n = (8e-5 + sqrt(64e-10 + 4e-11)) / 2e-8 = 4000 + sqrt(16e6 + 1e5) = 8012.4805...
 */
TEST(a_context_is_worth_loading_from_a_length)
{
    kvt_affine read = {.bytes_per_s = 1e9};
    kvt_codec_curve raw = form(1.0, 0.0);
    kvt_prefill prefill = {.linear_seconds_per_token = 20e-6, .square_seconds_per_token2 = 10e-9};
    assert_near(kvt_break_even_tokens(&read, &raw, 1e5, &prefill), 8000.0, 1e-12);
    read.request_seconds = 1e-3;
    double tokens = kvt_break_even_tokens(&read, &raw, 1e5, &prefill);
    assert_near(tokens, 4000.0 + sqrt(16.1e6), 1e-12);
    const double places[] = {0.99, 1.01};
    for (size_t i = 0; i < 2; i++) {
        uint32_t count = (uint32_t)(places[i] * tokens);
        double load = kvt_load_seconds(&read, &raw, 1e5 * count);
        assert_int_equal(load < kvt_prefill_seconds(&prefill, 0, count), i == 1);
    }
    /* Half the bytes, decoded at 1 GB/s: 50 + 100 us a token, so 130 us * n = 10 ns * n^2. */
    read.request_seconds = 0.0;
    kvt_codec_curve half = form(0.5, 1e9);
    assert_near(kvt_break_even_tokens(&read, &half, 1e5, &prefill), 13000.0, 1e-12);
}

TEST(lengths_at_the_edges)
{
    kvt_affine read = {.bytes_per_s = 10e9};
    kvt_codec_curve raw = form(1.0, 0.0);
    kvt_prefill prefill = {.linear_seconds_per_token = 20e-6, .square_seconds_per_token2 = 10e-9};
    /* 10 us a token against 20: loading wins at once; with 1 ms before it, from n on: 10 us * n +
     * 10 ns * n^2 = 1 ms at n = -500 + sqrt(250000 + 1e5) = 91.6. */
    assert_true(kvt_break_even_tokens(&read, &raw, 1e5, &prefill) == 0.0);
    read.request_seconds = 1e-3;
    assert_near(kvt_break_even_tokens(&read, &raw, 1e5, &prefill), -500.0 + sqrt(350000.0), 1e-9);
    /* Without attention's square: a line against a line. 20 us * n = 1 ms + 10 us * n at 100. */
    prefill.square_seconds_per_token2 = 0.0;
    assert_near(kvt_break_even_tokens(&read, &raw, 1e5, &prefill), 100.0, 1e-9);
    read.bytes_per_s = 1e9;
    assert_true(isinf(kvt_break_even_tokens(&read, &raw, 1e5, &prefill)));
    /* A start-up of the prefill that a load does not have: 5 ms + 20 us * n + 10 ns * n^2 against
     * 100 us * n is slower up to n = 4000 - sqrt(16e6 - 5e5) = 62.996 and again from 7937. */
    prefill = (kvt_prefill){.linear_seconds_per_token = 20e-6,
                            .square_seconds_per_token2 = 10e-9,
                            .fixed_seconds = 5e-3};
    read.request_seconds = 0.0;
    assert_near(kvt_break_even_tokens(&read, &raw, 1e5, &prefill), 4000.0 + sqrt(15.5e6), 1e-9);
    prefill.fixed_seconds = 1.0; /* the two never meet */
    assert_true(kvt_break_even_tokens(&read, &raw, 1e5, &prefill) == 0.0);
}

TEST(presets_can_be_listed)
{
    kvt_prefill prefill;
    size_t count = 0;
    while (kvt_prefill_preset_name(count) != NULL) {
        assert_ok(kvt_prefill_preset_get(kvt_prefill_preset_name(count), &prefill));
        count++;
    }
    assert_true(count >= 2);
}
