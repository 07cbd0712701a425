/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dual_instance.h - the engine's entries, stored, in flight and remembered, as an instance of
 * knapsack.h: a copy of what the passes need, 48 bytes an entry and 40 a form.
 *
 * Thread rule: the caller's lock, as in policy.h.
 */
#ifndef KVT_POLICY_DUAL_INSTANCE_H
#define KVT_POLICY_DUAL_INSTANCE_H

#include "policy/knapsack.h"

typedef struct dual_entry {
    double rate;
    double none;           /* cost of recomputing */
    double sense;          /* alpha times sensitivity */
    double alpha;          /* what a loss costs at most */
    uint32_t forms;        /* first of option_count - 1 */
    uint32_t barred;       /* bit i: form i of them does not count */
    uint32_t stored;       /* form of the present option as it is really stored, where that is not
                              one of them; else NIL */
    uint32_t option_count; /* NONE included */
} dual_entry;

/* Forms at the present weights lie number by number, so that the options of an entry are weighed
 * several at once. What cannot be held costs UNLIMITED. */
typedef struct dual_instance {
    kvt_policy *policy;
    dual_entry *entries;
    double *numbers; /* what the next three point into */
    double *time;
    double *loss;
    double *bytes[LEVELS];
    uint32_t count;      /* of entries */
    uint32_t remembered; /* of them */
    uint32_t forms;
    uint32_t entries_capacity, forms_capacity;
    double primal; /* utility of what is stored now */
} dual_instance;

kvt_status dual_instance_make(kvt_policy *policy, dual_instance *out); /* KVT_OK; KVT_E_MEMORY */
void dual_instance_free(dual_instance *instance);

#endif
