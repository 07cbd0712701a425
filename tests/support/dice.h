/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dice.h - random numbers of tests, the same on every machine. The state is the caller's.
 */
#ifndef TESTS_DICE_H
#define TESTS_DICE_H

#include "base/number/number.h"

#include <stdint.h>

/* xorshift64; the state is never 0. */
static inline uint64_t dice_shift(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* A linear congruence modulo 2^64. */
static inline uint64_t dice_next(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *state;
}

/* Between 0 and 1, neither of them. */
static inline double dice_uniform(uint64_t *state)
{
    return ((double)(dice_next(state) >> 11) + 0.5) * 0x1p-53;
}

/* From -1 to 1. */
static inline float dice_signed(uint64_t *state)
{
    *state = number_mix(*state + UINT64_C(0x9E3779B97F4A7C15));
    return (float)(int32_t)(*state >> 32) * 0x1p-31f;
}

#endif
