/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reuse_model.h - what the counters mean: weights of terms, learned from a sample. Thread rule: the
 * caller's lock.
 */
#ifndef POLICY_REUSE_MODEL_H
#define POLICY_REUSE_MODEL_H

#include "policy/engine.h"

/*
 * The meaning of the counters of all entries: a weight for each kind of term and each half-life.
 * The model watches a sample of handles. A use of a watched entry is shared among the terms that
 * had led to expect it (found); time that passes shows what each term would have predicted
 * (exposed). A weight is the one over the other. reuse_model.c keeps it, reuse.c reads rate alone.
 *
 * found and exposed are forgotten alike, so their quotient has the memory of both; open and exposed
 * are the sums over the sample, never negative.
 */
typedef struct reuse_model {
    double rate[KVT_REUSE_KINDS][HALF_LIVES]; /* weight times ln 2 / h; AGAIN holds LAST as well */
    double weight[KVT_REUSE_KINDS][HALF_LIVES]; /* uses in all that a term of 1 predicts */
    /* Seconds at stake in uses that were found, shared among the terms. */
    double found[KVT_REUSE_KINDS][HALF_LIVES];
    double exposed[KVT_REUSE_KINDS][HALF_LIVES]; /* and uses that a weight of 1 predicts */
    double open[KVT_REUSE_KINDS][HALF_LIVES];    /* still to come of that, as of seen_ns */
    uint64_t seen_ns;
    /* A handle is in the sample when the bits of its hash under mask are 0: one handle in mask + 1.
     * events counts the uses that the weights were learned from. */
    uint64_t mask; /* of the mixed handle: 0 in the sample */
    double events;
    double worth; /* uses that found and exposed stand for, once scaled; before shares of one */
    bool scaled;
} reuse_model;

/* open does nothing for a policy that learns nothing; false without memory. close releases what
 * open made. */
bool reuse_model_open(kvt_policy *policy);
void reuse_model_close(kvt_policy *policy);
/* Adds the entry's predicted uses to the model's open sums (sign 1), or takes them out (-1): around
 * every change of its counters. */
void reuse_expose(kvt_policy *policy, entry *e, double sign);
/* Nothing will be known of its uses from now on. */
void reuse_forget(kvt_policy *policy, entry *e);
/* A use of a known entry, before it is counted. */
void reuse_learn(kvt_policy *policy, const entry *e);

/* Takes over the weights of an earlier engine, before the first use. */
void reuse_model_recall(kvt_policy *policy, const kvt_reuse_weights *weights);

#endif
