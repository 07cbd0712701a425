/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dual_instance.h - the engine's entries, stored, in flight and remembered, as an instance of
 * knapsack.h: a copy of what the passes need, 52 bytes an entry and 40 an option.
 *
 * Thread rule: the caller's lock, as in policy.h.
 */
#ifndef REPLAY_DUAL_INSTANCE_H
#define REPLAY_DUAL_INSTANCE_H

#include "policy/engine.h"
#include "sparse/decide/knapsack.h"

/* One entry of the instance, in seconds and uses per second. `allowed` and `open` have a bit for
 * each option from `options` on, so an entry has at most 31 of them; the highest bit is
 * DUAL_STORED. */
typedef struct dual_entry {
    double rate;
    double none;      /* cost of recomputing */
    double sense;     /* alpha times sensitivity */
    double alpha;     /* what a loss costs at most */
    uint32_t options; /* the first of those that `allowed` is about */
    uint32_t allowed; /* bit i: the entry may take option i of them */
    /* The present option as it is really stored, where that is none of them; else NIL. */
    uint32_t stored;
    uint32_t open; /* bit i: option i of them may be best in the box; DUAL_STORED: what is stored */
} dual_entry;

#define DUAL_STORED (UINT32_C(1) << 31)
_Static_assert(KVT_OPTIONS_MAX <= 32, "a bit for each option and one for what is stored");

/* The options lie number by number, so that those of an entry are weighed several at once. An
 * option that fits no tier costs UNLIMITED. The arrays are one copy, made for one search: nothing
 * that the engine does meanwhile is seen, because nothing is done meanwhile. */
typedef struct dual_instance {
    kvt_policy *policy;
    dual_entry *entries;
    double *numbers; /* what the next three point into */
    double *time;
    double *loss;
    double *bytes[TIERS];
    uint32_t count;      /* of entries */
    uint32_t remembered; /* of them */
    uint32_t options;
    uint32_t entries_capacity, options_capacity;
    double primal; /* utility of what is stored now */
    /* Inside the box of prices that dual.c was given: what the decided entries take, and which
     * entries are open. */
    bool narrowed;
    double low[TIERS], high[TIERS];
    uint32_t *open;
    uint32_t open_count;
    double decided_value; /* without the cost of room */
    double decided_bytes[TIERS];
} dual_instance;

/* The engine must not change while the instance is in use. */
kvt_status dual_instance_make(kvt_policy *policy, dual_instance *out); /* KVT_OK; KVT_E_MEMORY */
/* Releases what dual_instance_make asked for; the struct may be forgotten then. */
void dual_instance_free(dual_instance *instance);

#endif
