/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reuse.h - the reuse counters, and the rates that they give: uses per second, and log2 of the
 * count in the order in use, as of the engine's base. Thread rule: the caller's lock.
 */
#ifndef POLICY_REUSE_H
#define POLICY_REUSE_H

#include "policy/engine.h"
#include "policy/reuse_age.h"

#define REUSE_LN2 0x1.62e42fefa39efp-1 /* a rate is ln 2 times the count over the half life */

extern const double reuse_half_lives[HALF_LIVES];
/* Seconds from the engine's first moment to another. */
double reuse_seconds(const kvt_policy *policy, uint64_t at_ns);
/* 2^(-seconds / h) of each half life. */
void reuse_decays(double seconds, double decay[HALF_LIVES]);
/* The count of one half-life, unpacked, as of the entry's last use. */
double reuse_count(const entry *e, int k);
/* Counts `weight` uses now; 0 brings the counters up to the time alone. It is the only call that
 * changes the counters of a known entry by a use. */
void reuse_use(kvt_policy *policy, entry *e, double weight);
/* Gives an entry that was stored before the engine began a first use one half-life ago. */
void reuse_adopt(kvt_policy *policy, entry *e);
/* From now on the entry has a plain counter, with this rate now. */
void reuse_set_rate(kvt_policy *policy, entry *e, double uses_per_s);
/* Brings the victims' orders up to the clock. */
void reuse_set_now(kvt_policy *policy);
/* Keeps f(parent) >= f(child): raises `up` to its child where it is lower. */
bool reuse_raise(kvt_policy *policy, entry *up, const entry *child);
double reuse_log_count(const kvt_policy *policy, const entry *e); /* of a plain counter */
/* The rate of reuse_look alone, in uses per second. */
double reuse_rate(const kvt_policy *policy, const entry *e);
/* An entry's rate now, how soon it falls by half, and how many uses are to come in all. */
typedef struct reuse_now {
    double rate;
    double half_life;
    double uses;
    reuse_counted counted; /* of the rate, what uses add up to; the rest is due by the age */
} reuse_now;
reuse_now reuse_look(const kvt_policy *policy, const entry *e);
/* Seconds until a rate as reuse_look has found it falls to `least`, if no use comes: about. */
double reuse_falls_in(const kvt_policy *policy, const entry *e, const reuse_now *now, double least);
/* Uses to come within some seconds, by what reuse_look_unhinted has found, if none comes before. */
double reuse_uses_within(const kvt_policy *policy, const entry *e, const reuse_now *now,
                         double seconds);
reuse_now reuse_look_unhinted(const kvt_policy *policy, const entry *e); /* by its uses alone */

/* Gives an entry the uses that an earlier engine knew of, the last one at last_ns. */
void reuse_recall(kvt_policy *policy, entry *e, uint64_t last_ns, const kvt_policy_uses *uses);

/* Says whether an entry has one plain counter: in policies that learn nothing, and where a
 * caller has set the rate. */
static inline bool reuse_is_plain(const kvt_policy *policy, const entry *e)
{
    return !policy->ops->learns || e->rate_set;
}

#endif
