/* SPDX-License-Identifier: Apache-2.0 */
/*
 * recall.h - what an earlier engine knew of uses, taken over (recall.c). Thread rule: the caller's
 * lock, as in policy.h.
 */
#ifndef POLICY_RECALL_H
#define POLICY_RECALL_H

#include "policy/engine.h"

/* reuse.c: gives an entry the uses that an earlier engine knew of, the last one at last_ns. */
void reuse_recall(kvt_policy *policy, entry *e, uint64_t last_ns, const kvt_policy_uses *uses);

/* reuse_model.c: takes over the weights of an earlier engine, before the first use. */
void reuse_model_recall(kvt_policy *policy, const kvt_reuse_weights *weights);

#endif
