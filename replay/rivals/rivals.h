/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rivals.h - policies that the engine is compared with, behind the interface of the engine
 * (policy/engine.h): they are linked into programs that replay, and not into the library.
 *
 * Thread rule: as the engine's, one thread at a time for a policy.
 */
#ifndef REPLAY_RIVALS_H
#define REPLAY_RIVALS_H

#include "policy/recency.h"

#define PENSIEVE_CLASSES 40 /* half octaves of recompute seconds, from 2^-16 */
/* The state of the baselines in classic.c and tinylfu.c, by tier. Bytes that a list of it holds are
 * counted beside the list, and both change together. */
typedef struct classic_state {
    /* Each field belongs to the policies that its comment names, and stays 0 or empty under every
     * other. */
    double inflation;            /* gdsf: value of the last victim */
    uint32_t hands[TIERS];       /* sieve; NIL: at the oldest */
    recency_list mains[TIERS];   /* s3fifo main; w-tinylfu probation */
    recency_list guarded[TIERS]; /* w-tinylfu protected */
    uint64_t main_bytes[TIERS];
    uint64_t guarded_bytes[TIERS];
    uint64_t window_bytes[TIERS];
    uint64_t ghost_bytes;    /* s3fifo: that left the small queues so far */
    uint64_t staging[TIERS]; /* adaptcache: kept free to code entries anew in their tier */
    recency_list by_cost[TIERS][PENSIEVE_CLASSES];
    uint8_t *sketch; /* w-tinylfu: rows of counters */
    uint32_t sketch_width;
    uint64_t sketch_adds;
} classic_state;

/* The state of a policy that has one. */
static inline classic_state *classic_of(const kvt_policy *policy)
{
    return policy->rival;
}

/* ops->open and close of the policies with a state. */
bool classic_open(kvt_policy *policy);
void classic_close(kvt_policy *policy);
void classic_improve(kvt_policy *policy, uint32_t index, kvt_plan *plan);
void classic_promote(kvt_policy *policy, uint32_t index, int top, kvt_plan *plan);

/* leaf.c: out of every tier's heap; the heap's first as the victim */
void leaf_remove(kvt_policy *policy, uint32_t index);
bool leaf_choose(kvt_policy *policy, tentative_plan *work, int tier, step *out);

/* A new policy needs its ops here and a row in rivals.c. */
extern const policy_ops policy_lru_leaf_ops;
extern const policy_ops policy_fifo_ops;
extern const policy_ops policy_lru_twice_ops;
extern const policy_ops policy_lfu_ops;
extern const policy_ops policy_gdsf_ops;
extern const policy_ops policy_pensieve_ops;
extern const policy_ops policy_sieve_ops;
extern const policy_ops policy_s3fifo_ops;
extern const policy_ops policy_tinylfu_ops;
extern const policy_ops policy_adaptcache_ops;

#endif
