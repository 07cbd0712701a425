/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trust.h - figures must not shut the store: refused puts and trials (trust.c).
 *
 * Thread rule: under the control lock but for trust_take_trials.
 */
#ifndef STORE_TRUST_H
#define STORE_TRUST_H

#include "store/core/entry.h"

/* Why a put was refused. The first three sum up to puts_refused, the next two to puts_busy. */
typedef enum store_refusal {
    STORE_REFUSAL_POLICY = 0,
    STORE_REFUSAL_LEARNED = 1,   /* by the policy, at speeds that were learned lately */
    STORE_REFUSAL_NO_DEVICE = 2, /* no tier has room at all */
    STORE_REFUSAL_STAGING = 3,   /* put staging is full */
    STORE_REFUSAL_BACKLOG = 4,   /* a tier's writes are too far behind */
    STORE_REFUSAL_IN_MOTION = 5, /* another call puts or removes the same key */
    STORE_REFUSAL_PARENT = 6,    /* the entry before it is not stored */
    STORE_REFUSAL_COUNT = 7
} store_refusal;

#define STORE_REFUSALS 64u /* remembered, of which one says why */
#define STORE_TRIALS   16u /* entries that wait to be read back at most */

/* Entries that are lost without a tier: puts that were refused, and evictions above it. */
typedef struct trust_tier {
    uint64_t lost; /* less TRUST_UNDONE for each entry that the tier took on its merit */
    uint64_t next; /* the loss at which a put is tried in the tier whatever the figures say */
    uint64_t wait; /* losses from the next trial to the one after it */
} trust_tier;

/* Puts that were refused, and the trials against figures that refuse too much. Under store->lock.
 */
typedef struct store_trust {
    bool weighs; /* the policy refuses what costs more than it saves; fixed after open */
    trust_tier tiers[KVT_TIER_COUNT];
    uint64_t learned;     /* puts that learned figures refused, ever */
    size_t bucket;        /* where the search for an entry to time went on */
    uint32_t trial_count; /* entries that wait to be timed */
    kvt_key trials[STORE_TRIALS];
    uint64_t refusals; /* ever; the last ones are remembered below */
    struct {
        uint64_t handle;
        const char *reason; /* static */
    } refused[STORE_REFUSALS];
} store_trust;

/* Before the first put. */
void trust_open(kvt_store *store);

/* A plan of the policy's own: counts for each tier the entries that it takes and the evictions
 * above it. Lock held. */
void trust_note_plan(kvt_store *store, const kvt_plan *plan);

/* Offers a new entry to a tier with room that has taken next to nothing for long, as worth any
 * cost; then the entry is to be read back. Lock held. KVT_OK with a plan; KVT_REFUSED: no tier is
 * due, or the entry does not fit. */
KVT_NODISCARD kvt_status trust_try_due(kvt_store *store, const store_entry *entry,
                                       const kvt_policy_entry *offer, kvt_plan *plan);

/*
 * A put was refused. Counts why, and now and then offers the entry once more, at the figures of the
 * measured curves or as one that is worth storing whatever it costs; then it is to be read back.
 * offer is the refused one. Lock held. KVT_OK with a plan; KVT_REFUSED.
 */
KVT_NODISCARD kvt_status trust_note_refused(kvt_store *store, store_entry *entry,
                                            const kvt_policy_entry *offer, kvt_plan *plan);

/* Why the last put of a handle was refused, or NULL. Lock held. */
const char *trust_reason(const kvt_store *store, uint64_t handle);

/* Counts a put that the policy has refused in the end. Lock held. */
void trust_count_refused(kvt_store *store, uint64_t handle);

/* Takes the keys of entries that are to be read back, which times them. Returns how many, 0 while
 * devices are pressed. In the background round; no lock held. */
uint32_t trust_take_trials(kvt_store *store, kvt_key keys[STORE_TRIALS]);

#endif
