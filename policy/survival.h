/* SPDX-License-Identifier: Apache-2.0 */
/*
 * survival.h - the chance that a copy which somebody else keeps is still there, by its age.
 *
 * A copy's age counts from the last moment at which it was known to be there. Each look at it says
 * whether it has survived so long. Looks are counted by age in half octaves from a second to 18
 * hours, fade by half in an hour, and stand beside a prior of SURVIVAL_PRIOR looks at each age that
 * found one in two alive; a chance is never below SURVIVAL_LEAST, nor above 1 less that. An older
 * copy has no better chance: ages that say otherwise are averaged (pool adjacent violators).
 *
 * Pure: sums and products alone, in one order. One thread per state.
 */
#ifndef KVT_POLICY_SURVIVAL_H
#define KVT_POLICY_SURVIVAL_H

#include <stdbool.h>
#include <stdint.h>

#define SURVIVAL_AGES  34u
#define SURVIVAL_PRIOR 0.5 /* looks of each age */
#define SURVIVAL_LEAST 0.015625

typedef struct survival {
    double seen[SURVIVAL_AGES];
    double alive[SURVIVAL_AGES];
    double chance[SURVIVAL_AGES]; /* as of at_s, never rising */
    double at_s;
    uint32_t pending; /* looks that the chances do not have yet */
} survival;

void survival_open(survival *state);

/* Takes one look: whether a copy of so many seconds was there. now_s never steps back. */
void survival_observe(survival *state, double now_s, double age_s, bool alive);

/* Lets time pass: old answers fade. */
void survival_pass(survival *state, double now_s);

/* The chance that a copy of so many seconds is there. */
double survival_chance(const survival *state, double age_s);

#endif
