/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reuse.c - how soon an entry is used again: what its uses add up to, and what is due by the age of
 * its last one.
 *
 *     f(t) = sum over k of ln 2 / h_k * 2^(-(t - t_last) / h_k) * a_k n_k + index(turn, t - t_last)
 *
 *     n_k  = sum over uses of 2^(-(t_last - t_use) / h_k)              kept with the entry
 *
 * The a_k say how uses add up (popularity). The index is of a table of hazards by age, in a row for
 * each number of uses that the entry's path has seen (reuse_age.c). reuse_model.c learns both. A
 * prefix is used whenever its continuation is: its counts are at least those of it.
 *
 * An entry whose rate a caller has set, and every entry of a policy that does not learn, has one
 * plain counter of one half life instead.
 */
#include "policy/reuse.h"
#include "policy/reuse_model.h"

#include <assert.h>
#include <string.h>

#define REUSE_MOST  1e30f
#define REUSE_EMPTY (-65536.0) /* log2 of a count of nothing */
#define REUSE_TINY  1e-60      /* decay factors below are nothing: no slow denormal numbers */
#define AGE_SLOPE   30.0       /* seconds in which what is due by age falls by half, at least */
#define AGE_LONGEST 1e9        /* seconds: no age that is found is larger */

/* h_k: each four times the one before, so that one power gives all. */
#define RAISE_SLACK_SECONDS 0.1 /* half a per cent of the shortest half-life */
#define RAISE_SLACK_SHARE   (1.0 / 64)
const double reuse_half_lives[HALF_LIVES] = {18.75, 75.0, 300.0, 1200.0, 4800.0, 19200.0};

/* Returns seconds since the first time that the engine saw; small numbers keep their digits. */
double reuse_seconds(const kvt_policy *policy, uint64_t at_ns)
{
    uint64_t passed_ns = at_ns > policy->base_ns ? at_ns - policy->base_ns : 0;
    return (double)passed_ns * 1e-9 * policy->trial.clock_scale;
}

/* Works out what is left of each half-life after some seconds, by one power and squares of it.
 * Each half-life is a quarter of the next longer one, so its factor is the fourth power of that
 * one's. */
void reuse_decays(double seconds, double decay[HALF_LIVES])
{
    double x = seconds > 0.0 ? number_exp2(-seconds / reuse_half_lives[HALF_LIVES - 1]) : 1.0;
    for (int k = HALF_LIVES - 1; k >= 0; k--) {
        decay[k] = x;
        x *= x;
        x = x > REUSE_TINY ? x * x : 0.0;
    }
}

/*
 * A count in 16 bits: 6 of the exponent, 10 of the fraction. Which way it is rounded is drawn from
 * the time and the handle, so that on average small changes of large counts are not lost.
 *
 * The exponents 2^-30 to 2^30 fit; a count below is 0, one above is capped.
 */
static uint16_t reuse_pack(double count, uint64_t dither)
{
    if (!(count > 0x1p-30)) return 0;
    if (count > 0x1.ffp+30) count = 0x1.ffp+30;
    uint64_t bits;
    memcpy(&bits, &count, sizeof bits);
    bits += dither & ((UINT64_C(1) << 42) - 1);
    return (uint16_t)((bits >> 42) - (UINT64_C(991) << 10));
}

/* Unpacks a count from its 16 bits. */
double reuse_count(const entry *e, int k)
{
    assert(k >= 0 && k < HALF_LIVES);
    if (e->uses[k] == 0) return 0.0;
    uint64_t bits = ((uint64_t)e->uses[k] + (UINT64_C(991) << 10)) << 42;
    double count;
    memcpy(&count, &bits, sizeof count);
    return count;
}

/* Returns what is left of a plain count after some seconds. */
static double plain_decay(const kvt_policy *policy, double seconds)
{
    return seconds > 0.0 ? number_exp2(-seconds / policy->trial.half_life_seconds) : 1.0;
}

/* Counts uses in a plain counter of one half-life. The counter is brought up to now first, so
 * weight counts in full. */
static void plain_use(kvt_policy *policy, entry *e, double weight)
{
    assert(weight >= 0.0);
    double passed =
        reuse_seconds(policy, policy->now_ns) - reuse_seconds(policy, e->last_access_ns);
    double more = (double)e->count[0] * plain_decay(policy, passed) + weight;
    e->count[0] = more < (double)REUSE_MOST ? (float)more : REUSE_MOST;
    e->last_access_ns = policy->now_ns;
}

/* Counts uses now. The model learns from the use first, as the entry stood before it, and the
 * entry's part of the open sums is taken out and put back around the change. weight 0 brings the
 * counters up to the time and counts nothing. */
void reuse_use(kvt_policy *policy, entry *e, double weight)
{
    assert(weight >= 0.0);
    if (reuse_is_plain(policy, e)) {
        plain_use(policy, e, weight);
        return;
    }
    if (weight > 0.0) reuse_learn(policy, e);
    reuse_age(policy, e);
    reuse_expose(policy, e, -1.0);
    double decay[HALF_LIVES];
    reuse_decays(reuse_seconds(policy, policy->now_ns) - reuse_seconds(policy, e->last_access_ns),
                 decay);
    uint64_t dither = e->handle ^ policy->now_ns;
    for (int k = 0; k < HALF_LIVES; k++) {
        dither = number_mix(dither + UINT64_C(0x9E3779B97F4A7C15));
        e->uses[k] = reuse_pack(reuse_count(e, k) * decay[k] + weight, dither);
    }
    if (weight > 0.0 && e->turn < TURN_MOST) e->turn++;
    e->last_access_ns = policy->now_ns;
    reuse_expose(policy, e, 1.0);
}

/* As used once, one half life ago, unless more is remembered. Every half-life counts alike: nothing
 * is known of when the use was. */
void reuse_adopt(kvt_policy *policy, entry *e)
{
    reuse_use(policy, e, 0.0);
    if (reuse_is_plain(policy, e)) {
        if (e->count[0] < 0.5f) e->count[0] = 0.5f;
        return;
    }
    reuse_expose(policy, e, -1.0);
    for (int k = 0; k < HALF_LIVES; k++)
        if (reuse_count(e, k) < 0.5) e->uses[k] = reuse_pack(0.5, 0);
    if (e->turn == 0) e->turn = 1;
    reuse_expose(policy, e, 1.0);
}

/* As an earlier engine has counted it, as of its last use. */
void reuse_recall(kvt_policy *policy, entry *e, uint64_t last_ns, const kvt_policy_uses *uses)
{
    assert(!reuse_is_plain(policy, e) && last_ns <= policy->now_ns);
    reuse_expose(policy, e, -1.0);
    for (int k = 0; k < HALF_LIVES; k++)
        e->uses[k] = reuse_pack(uses->count[k], 0);
    e->turn = uses->used & TURN_MOST;
    e->last_access_ns = last_ns;
    reuse_expose(policy, e, 1.0);
}

/* Gives an entry a plain counter with the rate that a caller has set. The model forgets the
 * entry: its uses say nothing of the weights any more. */
void reuse_set_rate(kvt_policy *policy, entry *e, double uses_per_s)
{
    assert(uses_per_s >= 0.0);
    reuse_use(policy, e, 0.0);
    reuse_forget(policy, e);
    e->rate_set = true;
    memset(e->count, 0, sizeof e->count);
    e->count[0] = (float)(uses_per_s * policy->trial.half_life_seconds / REUSE_LN2);
}

/* Raises a prefix to what its continuation has; false when it had that already. The invariant of
 * prefixes: the rate of a prefix is at least that of each continuation, at every later time too,
 * since both decay alike. */
static bool plain_raise(kvt_policy *policy, entry *up, const entry *child)
{
    double later =
        reuse_seconds(policy, child->last_access_ns) - reuse_seconds(policy, up->last_access_ns);
    bool raised = later > 0.0;
    if (raised) {
        up->count[0] = (float)((double)up->count[0] * plain_decay(policy, later));
        up->last_access_ns = child->last_access_ns;
    }
    double least = (double)child->count[0] * plain_decay(policy, -later);
    if ((double)up->count[0] >= least) return raised;
    up->count[0] = (float)least;
    return true;
}

/* Raises the counts of a prefix to those of its continuation, term by term, as of the later of
 * their last uses. Both are compared as of one moment; a count that is rounded on the way is
 * rounded up. A prefix that is behind by no more than the gets of one request are apart, and counts
 * are rounded, stays: else each get of a request would walk up all of its prefix. */
static bool learned_raise(kvt_policy *policy, entry *up, const entry *child)
{
    assert(up != child);
    double later =
        reuse_seconds(policy, child->last_access_ns) - reuse_seconds(policy, up->last_access_ns);
    if (later > 0.0 && later <= RAISE_SLACK_SECONDS && up->turn >= child->turn) {
        int level = 0;
        while (level < HALF_LIVES &&
               reuse_count(up, level) * (1.0 + RAISE_SLACK_SHARE) >= reuse_count(child, level))
            level++;
        if (level == HALF_LIVES) return false;
    }
    double up_decay[HALF_LIVES], child_decay[HALF_LIVES];
    reuse_decays(later, up_decay);
    reuse_decays(-later, child_decay);
    bool raised = later > 0.0 || child->turn > up->turn;
    uint16_t uses[HALF_LIVES];
    for (int k = 0; k < HALF_LIVES; k++) {
        double here = reuse_count(up, k);
        double least = reuse_count(child, k) * child_decay[k];
        uses[k] = up->uses[k];
        if (later > 0.0) uses[k] = reuse_pack(here * up_decay[k], 0);
        /* Rounded up, so that it is never below. */
        uint16_t least_packed = reuse_pack(least, UINT64_MAX);
        if (later == 0.0) least_packed = child->uses[k];
        if (uses[k] >= least_packed) continue;
        uses[k] = least_packed;
        raised = true;
    }
    if (!raised) return false;
    if (later > 0.0) reuse_age(policy, up);
    reuse_expose(policy, up, -1.0);
    memcpy(up->uses, uses, sizeof uses);
    if (later > 0.0) up->last_access_ns = child->last_access_ns;
    if (child->turn > up->turn) up->turn = child->turn;
    reuse_expose(policy, up, 1.0);
    return true;
}

/* Raises a prefix to its continuation; false when nothing changed, so that a walk up the tree
 * can end. */
bool reuse_raise(kvt_policy *policy, entry *up, const entry *child)
{
    if (reuse_is_plain(policy, up) != reuse_is_plain(policy, child)) return false;
    if (reuse_is_plain(policy, up)) return plain_raise(policy, up, child);
    /* Nearly always both were used by the same request just now. */
    if (up->last_access_ns == child->last_access_ns && up->turn >= child->turn &&
        memcmp(up->uses, child->uses, sizeof up->uses) == 0) {
        return false;
    }
    return learned_raise(policy, up, child);
}

/* Returns log2 of a plain count as of the engine's base time: an order that does not age. Two
 * counts compared by it compare the same at every later time. */
double reuse_log_count(const kvt_policy *policy, const entry *e)
{
    double when = reuse_seconds(policy, e->last_access_ns) / policy->trial.half_life_seconds;
    return (e->count[0] > 1e-30f ? number_log2((double)e->count[0]) : REUSE_EMPTY) + when;
}

/* Works out an entry's rate, its half-life and the uses to come, in one pass over the half-lives.
 * half_life is that of the rate's slope now: rate over slope, weighted towards the short terms.
 * The part that is due by age falls about as fast as the age doubles. */
reuse_now reuse_look_unhinted(const kvt_policy *policy, const entry *e)
{
    double age = reuse_seconds(policy, policy->now_ns) - reuse_seconds(policy, e->last_access_ns);
    if (reuse_is_plain(policy, e)) {
        double uses = (double)e->count[0] * plain_decay(policy, age);
        return (reuse_now){.rate = REUSE_LN2 / policy->trial.half_life_seconds * uses,
                           .uses = uses,
                           .half_life = policy->trial.half_life_seconds};
    }
    const reuse_model *m = policy->model;
    reuse_now now = {0};
    double slope = 0.0;
    double x = age > 0.0 ? number_exp2(-age / reuse_half_lives[HALF_LIVES - 1]) : 1.0;
    for (int k = HALF_LIVES - 1; k >= 0; k--) {
        double term = m->rate[k] * reuse_count(e, k) * x;
        now.counted.rate += term;
        now.uses += term * reuse_half_lives[k];
        slope += term / reuse_half_lives[k];
        x *= x;
        if (x < REUSE_TINY) break;
        x *= x;
    }
    now.counted.half_life = slope > 1e-100 ? now.counted.rate / slope : reuse_half_lives[0];
    reuse_due due = reuse_ages_look(&m->ages, reuse_ages_turn(e->turn), age);
    now.rate = now.counted.rate + due.rate;
    now.uses = now.uses * (1.0 / REUSE_LN2) + due.uses;
    slope += due.rate / (age > AGE_SLOPE ? age : AGE_SLOPE);
    assert(now.rate >= 0.0 && now.uses >= 0.0);
    now.half_life = slope > 1e-100 ? now.rate / slope : reuse_half_lives[HALF_LIVES - 1];
    return now;
}

/* The part that is due falls as the table says, the counts by their slope. An entry with a hint
 * follows the slope that the hint gives it. */
double reuse_falls_in(const kvt_policy *policy, const entry *e, const reuse_now *now, double least)
{
    if (!reuse_is_plain(policy, e) && e->hint == 0) {
        double age =
            reuse_seconds(policy, policy->now_ns) - reuse_seconds(policy, e->last_access_ns);
        double until = reuse_ages_fall(&policy->model->ages, reuse_ages_turn(e->turn), age,
                                       &now->counted, least);
        if (until < AGE_LONGEST) return until - age;
    }
    return now->half_life * (number_log2(now->rate) - number_log2(least));
}

double reuse_uses_within(const kvt_policy *policy, const entry *e, const reuse_now *now,
                         double seconds)
{
    const reuse_counted *counted = &now->counted;
    if (reuse_is_plain(policy, e))
        return now->uses * (1.0 - number_exp2(-seconds / now->half_life));
    double age = reuse_seconds(policy, policy->now_ns) - reuse_seconds(policy, e->last_access_ns);
    const reuse_ages *ages = &policy->model->ages;
    int turn = reuse_ages_turn(e->turn);
    double due =
        reuse_ages_look(ages, turn, age).uses - reuse_ages_look(ages, turn, age + seconds).uses;
    return due + counted->rate * counted->half_life / REUSE_LN2 *
                     (1.0 - number_exp2(-seconds / counted->half_life));
}

/* The same, bent by the entry's latest hint. */
reuse_now reuse_look(const kvt_policy *policy, const entry *e)
{
    reuse_now now = reuse_look_unhinted(policy, e);
    if (e->hint != 0) hints_bend(policy, e->hint - 1, &now);
    return now;
}

/* Returns an entry's rate alone. */
double reuse_rate(const kvt_policy *policy, const entry *e)
{
    return reuse_look(policy, e).rate;
}

/* Moves the victims' buckets up, once in a unit of the order. */
void reuse_set_now(kvt_policy *policy)
{
    double now = reuse_seconds(policy, policy->now_ns) / ORDER_SECONDS;
    if (now < policy->advanced + 1.0) return;
    policy->advanced = now;
    for (uint32_t group = 0; group < policy->group_count; group++)
        for (int at = 0; at < TIERS * STEP_KINDS; at++)
            buckets_advance(&policy->groups[group]->of[at / STEP_KINDS][at % STEP_KINDS],
                            engine_links(policy, at / STEP_KINDS), policy->advanced);
}
