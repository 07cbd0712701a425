/* SPDX-License-Identifier: Apache-2.0 */
/*
 * survival.c - the chance that a copy is still there, by its age. Pure; see the header for what is
 * counted. One thread per state.
 */
#include "policy/survival.h"

#include "base/number/number.h"

#include <assert.h>

#define SURVIVAL_HALF_LIFE 3600.0
#define SURVIVAL_BATCH     16u  /* looks between two times that the chances are worked out */
#define SURVIVAL_ROUND     60.0 /* seconds between them, at most */

/* Half octaves: 1 s, 1.5 s, 2 s, 3 s, ... by the two highest bits of the whole seconds. */
static uint32_t survival_age(double age_s)
{
    uint32_t whole = age_s < 1.0 ? 0 : age_s < 4e9 ? (uint32_t)age_s : UINT32_MAX;
    uint32_t octave = 0;
    if (whole < 2) return whole;
    while (whole >> octave > 1)
        octave++;
    uint32_t age = 2 * octave + (whole >> (octave - 1) & 1);
    return age < SURVIVAL_AGES ? age : SURVIVAL_AGES - 1;
}

/* Averages over ages, so that no older copy has a better chance. */
static void survival_smooth(survival *state)
{
    double sum[SURVIVAL_AGES], weight[SURVIVAL_AGES];
    uint32_t ages[SURVIVAL_AGES], count = 0, age = 0;
    for (uint32_t i = 0; i < SURVIVAL_AGES; i++) {
        sum[count] = state->alive[i] + SURVIVAL_PRIOR * 0.5;
        weight[count] = state->seen[i] + SURVIVAL_PRIOR;
        ages[count++] = 1;
        while (count > 1 &&
               sum[count - 1] * weight[count - 2] > sum[count - 2] * weight[count - 1]) {
            sum[count - 2] += sum[count - 1];
            weight[count - 2] += weight[count - 1];
            ages[count - 2] += ages[count - 1];
            count--;
        }
    }
    for (uint32_t block = 0; block < count; block++) {
        double chance = sum[block] / weight[block];
        if (chance < SURVIVAL_LEAST) chance = SURVIVAL_LEAST;
        if (chance > 1.0 - SURVIVAL_LEAST) chance = 1.0 - SURVIVAL_LEAST;
        for (uint32_t i = 0; i < ages[block]; i++)
            state->chance[age++] = chance;
    }
    assert(age == SURVIVAL_AGES);
    state->pending = 0;
}

void survival_open(survival *state)
{
    *state = (survival){.at_s = 0.0};
    survival_smooth(state);
}

void survival_pass(survival *state, double now_s)
{
    if (!(now_s - state->at_s > SURVIVAL_ROUND)) return;
    double kept = number_exp2(-(now_s - state->at_s) / SURVIVAL_HALF_LIFE);
    for (uint32_t i = 0; i < SURVIVAL_AGES; i++) {
        state->seen[i] *= kept;
        state->alive[i] *= kept;
    }
    state->at_s = now_s;
    survival_smooth(state);
}

void survival_observe(survival *state, double now_s, double age_s, bool alive)
{
    survival_pass(state, now_s);
    uint32_t age = survival_age(age_s);
    state->seen[age] += 1.0;
    if (alive) state->alive[age] += 1.0;
    if (++state->pending >= SURVIVAL_BATCH) survival_smooth(state);
}

double survival_chance(const survival *state, double age_s)
{
    return state->chance[survival_age(age_s)];
}
