/* SPDX-License-Identifier: Apache-2.0 */
/*
 * advise.h - tenants, and the checks and calls that update what the engine knows. Thread rule: the
 * caller's lock.
 */
#ifndef POLICY_ADVISE_H
#define POLICY_ADVISE_H

#include "policy/hints.h"
#include "policy/units.h"

#include <stdbool.h>

/* A tenant with limits of its own. used counts what will be stored once all moves in flight have
 * ended. A tenant with a share has buckets of its own, so that its own entries make its room. The
 * used of all tenants add up to what each tier holds then. */
typedef struct tenant {
    kvt_tenant limits;
    uint64_t used[TIERS];
    hint_trust hints[KVT_HINT_KINDS]; /* by kind, of those that it gave */
    bool known;
    bool limited; /* has a share in some tier */
    uint8_t group;
} tenant;

/* Every call that brings a time sets the clock with it before it does anything else. */
void engine_set_clock(kvt_policy *policy, uint64_t now_ns);
/* open makes tenant 0, who stands for every caller without a tenant; close releases ladders,
 * tenants and priors, also after an open that failed. knows_tenant makes room for a tenant's
 * number. */
bool advise_open(kvt_policy *policy);
void advise_close(kvt_policy *policy);
bool advise_knows_tenant(kvt_policy *policy, uint32_t number);  /* false without memory */
const char *advise_tier_fault(const kvt_policy_config *config); /* NULL when the tiers are sound */
kvt_status policy_options_check(const kvt_option *options, uint32_t count);

#endif
