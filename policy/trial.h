/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trial.h - what programs that compare policies change in an engine that they have opened, before
 * its first decision. No public call sets it. Thread rule: the caller's lock.
 */
#ifndef POLICY_TRIAL_H
#define POLICY_TRIAL_H

#include "kvterrace/policy.h"

#define TRIAL_HALF_LIFE 300.0 /* seconds, where nobody sets another */

typedef struct policy_trial {
    double half_life_seconds;  /* of rates that are set, and of adaptcache's counters; positive */
    double clock_scale;        /* seconds between uses, for each of the clock's; 0 = 1 */
    double other_share;        /* of the entries, by their handles: under the fixed policies they */
    kvt_variant other_variant; /* take this variant in place of the configured one; 0 to 1 */
} policy_trial;

void policy_try(kvt_policy *policy, const policy_trial *trial);
static inline void policy_try_half_life(kvt_policy *engine, double seconds)
{
    const policy_trial trial = {.half_life_seconds = seconds};
    policy_try(engine, &trial);
}

#endif
