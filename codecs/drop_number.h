/* SPDX-License-Identifier: Apache-2.0 */
/*
 * drop_number.h - square root, exponential, logarithm, sine and cosine in double, from single
 * rounded operations in a fixed order: the same bits everywhere, within a few units of the last
 * place. libm's differ between machines. Pure functions.
 */
#ifndef CODECS_DROP_NUMBER_H
#define CODECS_DROP_NUMBER_H

#include "codecs/kernels/cosine_tables.h"

#include <stdint.h>
#include <string.h>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

/* Products and sums stay apart: gcc keeps them so in ISO mode, clang asks for the pragma. */
#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#endif

/* x >= 0. Correctly rounded. */
static inline double drop_sqrt(double x)
{
#if defined(__SSE2__)
    const __m128d v = _mm_set_sd(x);
    return _mm_cvtsd_f64(_mm_sqrt_sd(v, v));
#else
    return __builtin_sqrt(x);
#endif
}

/* 2^k for -1022 <= k <= 1023. */
static inline double drop_power_of_two(int32_t k)
{
    const uint64_t bits = (uint64_t)(k + 1023) << 52;
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Horner's rule over coefficients of falling degree. */
static inline double drop_polynomial(const double *coefficients, uint32_t count, double x)
{
    double value = coefficients[0];
    for (uint32_t i = 1; i < count; i++) {
        value = value * x;
        value = value + coefficients[i];
    }
    return value;
}

#define DROP_LN2_HIGH 0x1.62e42feep-1 /* 32 bits, so that small multiples are exact */
#define DROP_LN2_LOW  0x1.a39ef35793c76p-33

/* e^x for x <= 0; 0 below -708. The series of e^r after taking out whole powers of two. */
static inline double drop_exp(double x)
{
    static const double series[] = {1.0 / 6227020800.0,
                                    1.0 / 479001600.0,
                                    1.0 / 39916800.0,
                                    1.0 / 3628800.0,
                                    1.0 / 362880.0,
                                    1.0 / 40320.0,
                                    1.0 / 5040.0,
                                    1.0 / 720.0,
                                    1.0 / 120.0,
                                    1.0 / 24.0,
                                    1.0 / 6.0,
                                    0.5,
                                    1.0,
                                    1.0};
    if (!(x > -708.0)) return 0.0;
    const double powers = x * 0x1.71547652b82fep+0; /* 1 / ln 2 */
    const int32_t k = (int32_t)(powers - 0.5);
    const double whole = (double)k;
    const double high = whole * DROP_LN2_HIGH;
    const double low = whole * DROP_LN2_LOW;
    double r = x - high;
    r = r - low;
    return drop_polynomial(series, sizeof series / sizeof series[0], r) * drop_power_of_two(k);
}

/* ln x for normal x > 0: 2 atanh((m - 1) / (m + 1)) of the fraction m, plus powers of two. */
static inline double drop_log(double x)
{
    static const double series[] = {2.0 / 23.0, 2.0 / 21.0, 2.0 / 19.0, 2.0 / 17.0,
                                    2.0 / 15.0, 2.0 / 13.0, 2.0 / 11.0, 2.0 / 9.0,
                                    2.0 / 7.0,  2.0 / 5.0,  2.0 / 3.0,  2.0};
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    int32_t power = (int32_t)(bits >> 52) - 1023;
    bits = (bits & UINT64_C(0x000fffffffffffff)) | UINT64_C(0x3ff0000000000000);
    double m;
    memcpy(&m, &bits, sizeof m);
    if (m > 0x1.6a09e667f3bcdp+0) {
        m = m * 0.5;
        power++;
    }
    const double z = (m - 1.0) / (m + 1.0);
    const double part = drop_polynomial(series, sizeof series / sizeof series[0], z * z) * z;
    const double low = (double)power * DROP_LN2_LOW;
    const double high = (double)power * DROP_LN2_HIGH;
    return high + (part + low);
}

/* An angle in turns of 2^-64 (whole turns vanish by themselves) as quarters of a turn, and what is
 * left of it in radians, an eighth of a turn at most. */
static inline double drop_angle(uint64_t turns, uint32_t *quarters_out)
{
    const uint64_t quarter = (turns + (UINT64_C(1) << 61)) >> 62;
    const int64_t rest = (int64_t)(turns - (quarter << 62));
    *quarters_out = (uint32_t)quarter;
    return (double)rest * 0x1.921fb54442d18p-62; /* 2 pi / 2^64 */
}

/* Cosine and sine of at most an eighth of a turn, in radians. */
static inline void drop_cos_sin_near(double x, double *cos_out, double *sin_out)
{
    static const double sines[] = {COSINE_SERIES_OF_SINE};
    static const double cosines[] = {COSINE_SERIES};
    const double square = x * x;
    *sin_out = drop_polynomial(sines, sizeof sines / sizeof sines[0], square) * x;
    *cos_out = drop_polynomial(cosines, sizeof cosines / sizeof cosines[0], square);
}

/* Adds quarters of a turn. */
static inline void drop_add_quarters(uint32_t quarters, double *cosine, double *sine)
{
    const double c = *cosine;
    const double s = *sine;
    *cosine = quarters & 1u ? s : c;
    *sine = quarters & 1u ? c : s;
    if (quarters == 1 || quarters == 2) *cosine = -*cosine;
    if (quarters == 2 || quarters == 3) *sine = -*sine;
}

/* Cosine and sine of an angle in turns of 2^-64. */
static inline void drop_cos_sin(uint64_t turns, double *cos_out, double *sin_out)
{
    uint32_t quarters;
    const double x = drop_angle(turns, &quarters);
    drop_cos_sin_near(x, cos_out, sin_out);
    drop_add_quarters(quarters, cos_out, sin_out);
}

#endif
