/* SPDX-License-Identifier: Apache-2.0 */
/*
 * random.c - xoshiro256** and the few distributions that workloads draw from.
 * A replay_random belongs to one thread.
 */
#include "random.h"

#include <assert.h>
#include <math.h>

uint64_t replay_mix(uint64_t value)
{
    value += UINT64_C(0x9e3779b97f4a7c15);
    value = (value ^ (value >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    value = (value ^ (value >> 27)) * UINT64_C(0x94d049bb133111eb);
    return value ^ (value >> 31);
}

void replay_random_seed(replay_random *random, uint64_t seed)
{
    for (int i = 0; i < 4; i++) {
        random->state[i] = replay_mix(seed);
        seed += UINT64_C(0x9e3779b97f4a7c15);
    }
}

static uint64_t random_rotate(uint64_t value, int by)
{
    return (value << by) | (value >> (64 - by));
}

uint64_t replay_random_next(replay_random *random)
{
    uint64_t *s = random->state;
    uint64_t result = random_rotate(s[1] * 5, 7) * 9;
    uint64_t carried = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= carried;
    s[3] = random_rotate(s[3], 45);
    return result;
}

uint64_t replay_random_below(replay_random *random, uint64_t bound)
{
    assert(bound > 0);
    uint64_t reject_below = (0 - bound) % bound;
    uint64_t value;
    do {
        value = replay_random_next(random);
    } while (value < reject_below);
    return value % bound;
}

double replay_random_unit(replay_random *random)
{
    return (double)(replay_random_next(random) >> 11) * 0x1p-53;
}

double replay_random_exponential(replay_random *random, double mean)
{
    return -mean * log(1.0 - replay_random_unit(random));
}

double replay_random_normal(replay_random *random)
{
    double radius = sqrt(-2.0 * log(1.0 - replay_random_unit(random)));
    return radius * cos(6.283185307179586 * replay_random_unit(random));
}
