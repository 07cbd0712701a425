/* SPDX-License-Identifier: Apache-2.0 */
/*
 * random.h - the replay's own generator: xoshiro256** seeded through splitmix64.
 *
 * The C library's rand differs between machines; a workload must not. Reference for the generator:
 * Blackman and Vigna, "Scrambled linear pseudorandom number generators" (2021).
 * A replay_random belongs to one thread.
 */
#ifndef REPLAY_RANDOM_H
#define REPLAY_RANDOM_H

#include <stdint.h>

typedef struct replay_random {
    uint64_t state[4];
} replay_random;

/* Any seed, 0 included. */
void replay_random_seed(replay_random *random, uint64_t seed);

uint64_t replay_random_next(replay_random *random);

/* Uniform in [0, bound), without modulo bias; bound is at least 1. */
uint64_t replay_random_below(replay_random *random, uint64_t bound);

/* Uniform in [0, 1) with 53 bits. */
double replay_random_unit(replay_random *random);

/* Exponential with the given mean, and standard normal. */
double replay_random_exponential(replay_random *random, double mean);
double replay_random_normal(replay_random *random);

/* One step of splitmix64: a mixing function of 64 bits. */
uint64_t replay_mix(uint64_t value);

#endif
