/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cosine_tables.h - numbers that the CPU and the kernels of a GPU take alike, so that cosines are
 * the same bits on both.
 */
#ifndef CODECS_COSINE_TABLES_H
#define CODECS_COSINE_TABLES_H

/* The series of sine and cosine by the square of the angle, the highest power first. */
#define COSINE_SERIES_OF_SINE                                                                      \
    1.0 / 355687428096000.0, -1.0 / 1307674368000.0, 1.0 / 6227020800.0, -1.0 / 39916800.0,        \
        1.0 / 362880.0, -1.0 / 5040.0, 1.0 / 120.0, -1.0 / 6.0, 1.0
#define COSINE_SERIES                                                                              \
    -1.0 / 6402373705728000.0, 1.0 / 20922789888000.0, -1.0 / 87178291200.0, 1.0 / 479001600.0,    \
        -1.0 / 3628800.0, 1.0 / 40320.0, -1.0 / 720.0, 1.0 / 24.0, -0.5, 1.0

/* cos(i pi / 32) / sqrt(8), i from 0 to 16, of the cosine transform of 16 tokens. */
#define COSINE_QUARTER                                                                             \
    0x1.6a09e6p-2f, 0x1.684b9cp-2f, 0x1.63150cp-2f, 0x1.5a730cp-2f, 0x1.4e7aeap-2f,                \
        0x1.3f4a24p-2f, 0x1.2d062ep-2f, 0x1.17dc14p-2f, 0x1.000000p-2f, 0x1.cb598cp-3f,            \
        0x1.92469cp-3f, 0x1.5553e4p-3f, 0x1.1517a8p-3f, 0x1.a4608ap-4f, 0x1.1a855ep-4f,            \
        0x1.1be352p-5f, 0.0f

#endif
