/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reuse_model.c - the weights of reuse.c's terms, by maximum likelihood over a sample of entries,
 * each weighted by the seconds that a use of it has at stake.
 *
 *     a use at age t   each term j has the share r_j of the rate there; found_j += v * r_j
 *     time that passes exposed_j += v * integral of term j at weight 1, over all sampled entries
 *     weight_j = found_j / exposed_j                           (expectation and maximization)
 *
 * The integral needs no look at any entry: a term decays as all others of its half life do, so the
 * sum over the sample, `open`, does too; uses add to it, entries forgotten take theirs out. Both
 * sums are forgotten exponentially, quickly at first, when weights were not known yet.
 */
#include "policy/reuse_model.h"
#include "policy/reuse.h"

#include <assert.h>
#include <string.h>

/* The sample bounds the work, the memory bounds how stale a weight can be, and the prior decides
 * the first uses of a run alone. */
#define MODEL_SAMPLE 4096.0 /* entries that are watched, about */
#define MODEL_MEMORY 1024.0 /* uses after which what was learned is halved and more */
#define MODEL_FIRST  64.0   /* and at the beginning */
#define MODEL_PRIOR  0.05   /* weight of a term before anything is known, */
#define MODEL_WORTH  16.0   /* as if from so many uses */
#define MODEL_LEAST  1e-4   /* weights stay above: what is not there now may come */

/* Computes the weights from uses and exposure, and the rates from the weights. AGAIN's
 * rate holds LAST's too, so that reuse_look adds one term per half-life and not two. */
static void model_weigh(reuse_model *m)
{
    for (int kind = 0; kind < KVT_REUSE_KINDS; kind++) {
        for (int k = 0; k < HALF_LIVES; k++) {
            double weight = m->found[kind][k] / m->exposed[kind][k];
            assert(m->found[kind][k] >= 0.0 && m->exposed[kind][k] > 0.0);
            if (weight < MODEL_LEAST) weight = MODEL_LEAST;
            m->weight[kind][k] = weight;
            m->rate[kind][k] = weight * (REUSE_LN2 / reuse_half_lives[k]);
            if (kind == KVT_REUSE_AGAIN) m->rate[kind][k] += m->rate[KVT_REUSE_LAST][k];
        }
    }
}

/* Returns for how many uses the sums remember, after so many. */
static double model_memory(double events)
{
    double memory = MODEL_FIRST + events / 4.0;
    return memory < MODEL_MEMORY ? memory : MODEL_MEMORY;
}

/* Starts every weight alike and chooses how many handles are watched. The sample is the handles
 * whose hash ends in zeros, one in a power of two. */
bool reuse_model_open(kvt_policy *policy)
{
    if (!policy->ops->learns) return true;
    reuse_model *m = engine_resize(policy, NULL, 0, sizeof *m);
    if (m == NULL) return false;
    memset(m, 0, sizeof *m);
    uint32_t shift = 0;
    while ((double)(policy->config.entries_expected >> shift) > MODEL_SAMPLE)
        shift++;
    m->mask = (UINT64_C(1) << shift) - 1;
    for (int kind = 0; kind < KVT_REUSE_KINDS; kind++) {
        for (int k = 0; k < HALF_LIVES; k++) {
            m->found[kind][k] = MODEL_PRIOR;
            m->exposed[kind][k] = 1.0;
        }
    }
    m->worth = MODEL_WORTH;
    policy->model = m;
    model_weigh(m);
    return true;
}

/* Takes weights over that were learned from so many uses. They stand for as many as the memory
 * holds. In the long run the uses that all weights predict are the uses that were seen, which
 * says how large the exposures behind the weights were beside the uses. */
void reuse_model_recall(kvt_policy *policy, const kvt_reuse_weights *weights)
{
    reuse_model *m = policy->model;
    assert(!m->scaled && weights->uses > 0);
    double sum = 0.0;
    for (int kind = 0; kind < KVT_REUSE_KINDS; kind++)
        for (int k = 0; k < HALF_LIVES; k++)
            sum += weights->weight[kind][k];
    if (sum < MODEL_LEAST) sum = MODEL_LEAST;
    for (int kind = 0; kind < KVT_REUSE_KINDS; kind++) {
        for (int k = 0; k < HALF_LIVES; k++) {
            m->found[kind][k] = weights->weight[kind][k] / sum;
            m->exposed[kind][k] = 1.0 / sum;
        }
    }
    m->events = (double)weights->uses;
    m->worth = model_memory(m->events);
    if (m->worth > m->events) m->worth = m->events;
    model_weigh(m);
}

/* Releases the model of a policy that has one. */
void reuse_model_close(kvt_policy *policy)
{
    if (policy->model != NULL) engine_resize(policy, policy->model, sizeof *policy->model, 0);
}

/* Says whether the sums watch an entry. The seed decides, so that handles in a pattern are not all
 * in or out. An entry is in the sample for life, because its handle does not change. */
static bool model_samples(const kvt_policy *policy, const entry *e)
{
    return (number_mix(e->handle ^ policy->config.seed) & policy->model->mask) == 0;
}

/* Fills in an entry's terms at weight 1 after `seconds` since the state in it, without ln 2 / h. */
static void model_terms(const kvt_policy *policy, const entry *e,
                        double terms[KVT_REUSE_KINDS][HALF_LIVES])
{
    double decay[HALF_LIVES];
    reuse_decays(reuse_seconds(policy, policy->now_ns) - reuse_seconds(policy, e->last_access_ns),
                 decay);
    for (int k = 0; k < HALF_LIVES; k++) {
        terms[KVT_REUSE_COUNT][k] = reuse_count(e, k) * decay[k];
        terms[KVT_REUSE_LAST][k] = decay[k];
        terms[KVT_REUSE_AGAIN][k] = e->again ? decay[k] : 0.0;
    }
}

/* Adds the exposure of the time since the last look. The exposure of a term over a span is its
 * integral, which for an exponential is the difference of its ends. */
static void model_pass(kvt_policy *policy, reuse_model *m)
{
    assert(m->seen_ns <= policy->now_ns);
    double decay[HALF_LIVES];
    if (m->seen_ns == policy->now_ns) return;
    reuse_decays(reuse_seconds(policy, policy->now_ns) - reuse_seconds(policy, m->seen_ns), decay);
    m->seen_ns = policy->now_ns;
    for (int kind = 0; kind < KVT_REUSE_KINDS; kind++) {
        for (int k = 0; k < HALF_LIVES; k++) {
            m->exposed[kind][k] += m->open[kind][k] * (1.0 - decay[k]);
            m->open[kind][k] *= decay[k];
        }
    }
}

/* Seconds at stake, shared among the uses of about one memory: entries count alike. An entry that
 * is used often would else decide all weights by itself. */
static double model_stake(const entry *e)
{
    double count = reuse_count(e, 2);
    return (double)e->recompute_seconds / (count > 1.0 ? count : 1.0);
}

/* Makes found and exposed, shares of one use until then, stand for as many uses as they are worth,
 * with this at stake in each. */
static void model_scale(reuse_model *m, double stake)
{
    assert(!m->scaled && stake > 0.0);
    for (int kind = 0; kind < KVT_REUSE_KINDS; kind++) {
        for (int k = 0; k < HALF_LIVES; k++) {
            m->found[kind][k] *= m->worth * stake;
            m->exposed[kind][k] *= m->worth * stake;
        }
    }
    m->scaled = true;
}

/* Adds an entry to the open sums, or takes it out with the same terms. Rounding never leaves less
 * than none. Every caller brackets a change of the counters with -1 before and 1 after. */
void reuse_expose(kvt_policy *policy, entry *e, double sign)
{
    assert(sign > 0.0 || sign < 0.0);
    if (!policy->ops->learns || e->rate_set) return;
    reuse_model *m = policy->model;
    if (sign < 0.0) {
        if (!e->watched) return;
    } else if (!e->used || !model_samples(policy, e)) {
        return;
    }
    /* Weights that were learned earlier must not be taken for less than what time adds now. */
    if (m->events > 0.0 && !m->scaled && model_stake(e) > 0.0) model_scale(m, model_stake(e));
    model_pass(policy, m);
    e->watched = sign > 0.0;
    double terms[KVT_REUSE_KINDS][HALF_LIVES];
    model_terms(policy, e, terms);
    double stake = sign * model_stake(e);
    for (int kind = 0; kind < KVT_REUSE_KINDS; kind++) {
        for (int k = 0; k < HALF_LIVES; k++) {
            double open = m->open[kind][k] + stake * terms[kind][k];
            m->open[kind][k] = open > 0.0 ? open : 0.0;
        }
    }
}

/* Takes an entry out of the sums for good. */
void reuse_forget(kvt_policy *policy, entry *e)
{
    reuse_expose(policy, e, -1.0);
}

/* A use of a known entry, before it is counted. The share of each term in the rate at this moment
 * is the probability that it caused the use. */
void reuse_learn(kvt_policy *policy, const entry *e)
{
    reuse_model *m = policy->model;
    /* Uses at one moment are one request's. */
    if (!model_samples(policy, e) || e->last_access_ns == policy->now_ns) return;
    model_pass(policy, m);
    if (!e->watched) return;
    double stake = model_stake(e);
    double terms[KVT_REUSE_KINDS][HALF_LIVES];
    double sum = 0.0;
    model_terms(policy, e, terms);
    for (int kind = 0; kind < KVT_REUSE_KINDS; kind++) {
        for (int k = 0; k < HALF_LIVES; k++) {
            terms[kind][k] *= m->weight[kind][k] / reuse_half_lives[k];
            sum += terms[kind][k];
        }
    }
    if (!(sum > 1e-200) || !(stake > 0.0)) return;
    if (!m->scaled) model_scale(m, stake);
    m->events += 1.0;
    assert(sum > 0.0 && stake > 0.0);
    double kept = 1.0 - 1.0 / model_memory(m->events);
    for (int kind = 0; kind < KVT_REUSE_KINDS; kind++) {
        for (int k = 0; k < HALF_LIVES; k++) {
            m->found[kind][k] = kept * m->found[kind][k] + stake * terms[kind][k] / sum;
            m->exposed[kind][k] *= kept;
        }
    }
    model_weigh(m);
}
