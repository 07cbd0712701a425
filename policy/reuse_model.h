/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reuse_model.h - what the counters mean: weights of terms, learned from a sample. Thread rule: the
 * caller's lock.
 */
#ifndef POLICY_REUSE_MODEL_H
#define POLICY_REUSE_MODEL_H

#include "policy/engine.h"
#include "policy/reuse_age.h"

/*
 * The meaning of the counters of all entries: a weight for each half-life, and the table of ages.
 * The model watches a sample of handles. A use of a watched entry is shared among the terms
 * that had led to expect it (found); time that passes shows what each term would have predicted
 * (exposed). A weight is the one over the other. reuse_model.c keeps it, reuse.c reads rate and
 * ages alone.
 *
 * found and exposed are forgotten alike, so their quotient has the memory of both; open and exposed
 * are the sums over the sample, never negative.
 */
typedef struct reuse_model {
    double rate[HALF_LIVES];    /* weight times ln 2 / h */
    double weight[HALF_LIVES];  /* uses in all that a count of 1 predicts */
    double found[HALF_LIVES];   /* seconds at stake in uses that were found, by their shares, */
    double exposed[HALF_LIVES]; /* and uses that a weight of 1 predicts */
    double open[HALF_LIVES];    /* still to come of that, as of seen_ns */
    uint64_t seen_ns;
    uint64_t first_ns; /* seen_ns at first */
    reuse_ages ages;
    /* A handle is in the sample when the bits of its hash under mask are 0: one handle in mask + 1.
     * hand is where looking at watched entries in turn goes on. */
    uint64_t mask;
    uint32_t hand;
    uint32_t uses; /* of all entries */
    double events; /* uses that the weights were learned from */
    double worth;  /* uses that found and exposed stand for, once scaled; before shares of one */
    bool scaled;
} reuse_model;

/* open does nothing for a policy that learns nothing; false without memory. close releases what
 * open made. */
bool reuse_model_open(kvt_policy *policy);
void reuse_model_close(kvt_policy *policy);
/* Adds the entry's predicted uses to the model's open sums (sign 1), or takes them out (-1): around
 * every change of its counters. */
void reuse_expose(kvt_policy *policy, entry *e, double sign);
/* Adds the time since an entry was last looked at to the table of ages: before its last use changes
 * or it is forgotten. */
void reuse_age(kvt_policy *policy, const entry *e);
/* Nothing will be known of its uses from now on. */
void reuse_forget(kvt_policy *policy, entry *e);
/* A use of a known entry, before it is counted. */
void reuse_learn(kvt_policy *policy, const entry *e);

/* How many times the rate of an entry of the engine's first moment the first guess gives an entry;
 * 1 once uses were seen. */
double reuse_guessed_lead(const kvt_policy *policy, const entry *e);

/* Takes over the weights of an earlier engine, before the first use. */
void reuse_model_recall(kvt_policy *policy, const kvt_reuse_weights *weights);

#endif
