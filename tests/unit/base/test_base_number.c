/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_base_number.c - the engine's own logarithms against libm, and its text writer against
 * the C library.
 */
#include "policy_support.h"

#include "base/number/number.h"

#include <math.h>
#include <stdio.h>

TEST(log2_agrees_with_libm)
{
    uint64_t dice = 3;
    for (int i = 0; i < 200000; i++) {
        double unit = (double)(test_draw(&dice) >> 11) * 0x1p-53;
        double x = ldexp(0.5 + unit, (int)test_below(&dice, 2000) - 1000);
        double error = fabs(number_log2(x) - log2(x));
        assert_true(error <= 1e-15 * fmax(1.0, fabs(log2(x))));
    }
    assert_true(fabs(number_log2(1.0)) < 1e-16);
}

TEST(exp2_agrees_with_libm)
{
    uint64_t dice = 4;
    for (int i = 0; i < 200000; i++) {
        double x = ((double)(test_draw(&dice) >> 11) * 0x1p-53 - 0.5) * 2000.0;
        assert_true(fabs(number_exp2(x) / exp2(x) - 1.0) < 1e-15);
    }
    for (int n = -1022; n <= 1023; n++)
        assert_true(number_exp2(n) == ldexp(1.0, n));
    assert_true(number_exp2(-1e9) == 0.0);
    assert_true(number_exp2(-1e300) == 0.0);
    assert_true(number_exp2(1e300) == ldexp(1.0, 1023));
}

TEST(doubles_are_printed_exactly)
{
    uint64_t dice = 5;
    for (int i = 0; i < 50000; i++) {
        uint64_t bits = test_draw(&dice);
        double x;
        memcpy(&x, &bits, sizeof x);
        if (!isfinite(x)) continue;
        char line[64];
        text out;
        text_start(&out, line, sizeof line);
        text_add_double(&out, x);
        assert_true(strtod(line, NULL) == x);
        assert_int_equal(out.length, strlen(line));
    }
    char line[32];
    text out;
    text_start(&out, line, sizeof line);
    text_add_double(&out, -0.1875);
    text_add(&out, " ");
    text_add_double(&out, 0.0);
    assert_string_equal(line, "-0x1.8p-3 0x0p+0");
}

TEST(text_is_bounded_like_snprintf)
{
    for (size_t size = 0; size < 12; size++) {
        char ours[16];
        char theirs[16];
        memset(ours, 'x', sizeof ours);
        memset(theirs, 'x', sizeof theirs);
        text out;
        text_start(&out, ours, size);
        text_add(&out, "ab");
        text_add_number(&out, 1234567);
        int length = snprintf(theirs, size, "ab%d", 1234567);
        assert_int_equal(out.length, length);
        assert_memory_equal(ours, theirs, sizeof ours);
    }
    assert_true(text_equal("lru", "lru"));
    assert_false(text_equal("lru", "lru-leaf"));
    assert_false(text_equal("lru-leaf", "lru"));
    assert_false(number_is_finite(NAN) || number_is_finite(INFINITY));
    assert_true(number_is_finite(-1e308));
}
