/* SPDX-License-Identifier: Apache-2.0 */
/*
 * number.h - the arithmetic of decisions: logarithms base two, and small text helpers.
 *
 * Only additions, multiplications and table look-ups in IEEE doubles, in one fixed order, so the
 * results are the same bits on every compiler and build type (the folder is built without
 * contraction of a*b+c). libm promises no such thing. Pure functions, any thread.
 */
#ifndef BASE_NUMBER_H
#define BASE_NUMBER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Whether a number is neither NaN nor infinite. */
static inline bool number_is_finite(double x)
{
    return x - x == 0.0;
}

/* Says whether a number lies in a range, both ends included. NaN lies in none, because every
 * comparison with it is false. */
static inline bool number_is_within(double x, double least, double most)
{
    return x >= least && x <= most;
}

/* log2 of a positive, finite, normal number; relative error below 1e-15 away from x = 1. The caller
 * guarantees the range: 0, negative numbers and NaN give a number without a meaning. */
double number_log2(double x);

/* 2^x; 0 below -1022 and 2^1023 above 1023. x is not NaN. Never decreases as x grows by more than
 * a rounding error. */
double number_exp2(double x);

/* One step of splitmix64: every bit of the result depends on every bit of x. */
static inline uint64_t number_mix(uint64_t x)
{
    x = (x ^ x >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ x >> 27) * UINT64_C(0x94D049BB133111EB);
    return x ^ x >> 31;
}

/*
 * A bounded text writer: always terminated, counts what it would have needed, as snprintf does.
 * Start it with text_start; length is the number of characters without the terminator.
 */
typedef struct text {
    char *to;
    size_t size;
    size_t length;
} text;

/* Starts an empty text in `size` bytes at `to`; to may be NULL, then the text is only counted. */
void text_start(text *out, char *to, size_t size);
/* Each adds to the end; what does not fit is counted and left out. */
void text_add(text *out, const char *words);
void text_add_number(text *out, uint64_t number);

/* A double exactly, in the form of C's %a, such as -0x1.8p-3; strtod reads it back. */
void text_add_double(text *out, double number);

/* Whether two terminated texts have the same letters. */
bool text_equal(const char *a, const char *b);

#endif
