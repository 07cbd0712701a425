/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reuse_model.c - the weights of reuse.c's terms, by maximum likelihood over a sample of entries,
 * each weighted by the seconds that a use of it has at stake.
 *
 *     a use at age t   each term j has the share r_j of the rate there; found_j += v * r_j
 *     time that passes exposed_j += v * integral of term j at weight 1, over all sampled entries
 *     weight_j = found_j / exposed_j                           (expectation and maximization)
 *
 * The terms are the counts, by half-life, and the table of ages (reuse_age.c). The integral of a
 * count needs no look at any entry: it decays as all others of its half life do, so the sum over
 * the sample, `open`, does too; uses add to it, entries forgotten take theirs out. The seconds that
 * entries spend in a bin of ages are added when they are used or forgotten, and in turn. Both sums
 * are forgotten exponentially, quickly at first, when weights were not known yet.
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
#define MODEL_LET_IN 64u    /* new handles to one that goes by the guess */
#define MODEL_SWEEPS 2      /* uses between two looks at entries in turn */
#define MODEL_HELD   0.25   /* of the mean gap between two uses an entry is kept, at least */

/* Computes the weights from uses and exposure, and the rates from the weights. */
static void model_weigh(reuse_model *m)
{
    for (int k = 0; k < HALF_LIVES; k++) {
        double weight = m->found[k] / m->exposed[k];
        assert(m->found[k] >= 0.0 && m->exposed[k] > 0.0);
        if (weight < MODEL_LEAST) weight = MODEL_LEAST;
        m->weight[k] = weight;
        m->rate[k] = weight * (REUSE_LN2 / reuse_half_lives[k]);
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
    policy->model = m;
    for (int k = 0; k < HALF_LIVES; k++) {
        m->found[k] = MODEL_PRIOR;
        m->exposed[k] = 1.0;
    }
    m->worth = MODEL_WORTH;
    reuse_ages_open(&m->ages, reuse_half_lives);
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
    for (int k = 0; k < HALF_LIVES; k++)
        sum += weights->weight[k];
    if (sum < MODEL_LEAST) sum = MODEL_LEAST;
    for (int k = 0; k < HALF_LIVES; k++) {
        m->found[k] = weights->weight[k] / sum;
        m->exposed[k] = 1.0 / sum;
    }
    m->events = (double)weights->uses;
    m->worth = model_memory(m->events);
    if (m->worth > m->events) m->worth = m->events;
    model_weigh(m);
    reuse_ages_recall(&m->ages, weights->hazard, m->worth);
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

/* Adds the exposure of the time since the last look. The exposure of a count over a span is its
 * integral, which for an exponential is the difference of its ends. */
static void model_pass(kvt_policy *policy, reuse_model *m)
{
    assert(m->seen_ns <= policy->now_ns);
    double decay[HALF_LIVES];
    if (m->seen_ns == policy->now_ns) return;
    reuse_decays(reuse_seconds(policy, policy->now_ns) - reuse_seconds(policy, m->seen_ns), decay);
    if (m->seen_ns == 0) m->first_ns = policy->now_ns;
    m->seen_ns = policy->now_ns;
    for (int k = 0; k < HALF_LIVES; k++) {
        m->exposed[k] += m->open[k] * (1.0 - decay[k]);
        m->open[k] *= decay[k];
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
    for (int k = 0; k < HALF_LIVES; k++) {
        m->found[k] *= m->worth * stake;
        m->exposed[k] *= m->worth * stake;
    }
    if (m->events > 0.0) reuse_ages_scale(&m->ages, stake); /* else only exposed, at its stakes */
    m->scaled = true;
}

void reuse_age(kvt_policy *policy, const entry *e)
{
    if (!e->watched) return;
    double last = reuse_seconds(policy, e->last_access_ns);
    double now = reuse_seconds(policy, policy->now_ns);
    double from = (double)policy->swept[(uint32_t)(e - policy->entries) / SWEPT_SLOTS];
    reuse_ages_expose(&policy->model->ages, reuse_ages_turn(e->turn), from - last, now - last,
                      model_stake(e));
}

/* Looks at some entries in turn, so that those which are not used again count, too. */
static void model_sweep(kvt_policy *policy)
{
    reuse_model *m = policy->model;
    uint32_t first = m->hand * SWEPT_SLOTS;
    for (uint32_t i = first; i < first + SWEPT_SLOTS && i < policy->entries_used; i++)
        reuse_age(policy, entry_at(policy, i));
    policy->swept[m->hand] = (float)reuse_seconds(policy, policy->now_ns);
    m->hand = first + SWEPT_SLOTS < policy->entries_used ? m->hand + 1 : 0;
}

/* Adds an entry to the open sums, or takes it out with the same terms. Rounding never leaves less
 * than none. Every caller brackets a change of the counters with -1 before and 1 after. */
void reuse_expose(kvt_policy *policy, entry *e, double sign)
{
    assert(sign > 0.0 || sign < 0.0);
    if (!policy->ops->learns || e->rate_set) return;
    reuse_model *m = policy->model;
    if (sign < 0.0 ? !e->watched : e->turn == 0 || !model_samples(policy, e)) return;
    /* Weights that were learned earlier must not be taken for less than what time adds now. */
    if (m->events > 0.0 && !m->scaled && model_stake(e) > 0.0) model_scale(m, model_stake(e));
    model_pass(policy, m);
    e->watched = sign > 0.0;
    double decay[HALF_LIVES];
    reuse_decays(reuse_seconds(policy, policy->now_ns) - reuse_seconds(policy, e->last_access_ns),
                 decay);
    double stake = sign * model_stake(e);
    for (int k = 0; k < HALF_LIVES; k++) {
        double open = m->open[k] + stake * reuse_count(e, k) * decay[k];
        m->open[k] = open > 0.0 ? open : 0.0;
    }
}

/* Takes an entry out of the sums for good. */
void reuse_forget(kvt_policy *policy, entry *e)
{
    reuse_age(policy, e);
    reuse_expose(policy, e, -1.0);
}

/* A use of a known entry, before it is counted. The share of each term in the rate at this moment
 * is the probability that it caused the use. */
void reuse_learn(kvt_policy *policy, const entry *e)
{
    reuse_model *m = policy->model;
    if (++m->uses % MODEL_SWEEPS == 0) model_sweep(policy);
    /* Uses at one moment are one request's. */
    if (!e->watched || e->last_access_ns == policy->now_ns) return;
    model_pass(policy, m);
    double age = reuse_seconds(policy, policy->now_ns) - reuse_seconds(policy, e->last_access_ns);
    double decay[HALF_LIVES], stake = model_stake(e);
    int turn = reuse_ages_turn(e->turn);
    double due = reuse_ages_hazard(&m->ages, turn, age), sum = due;
    reuse_decays(age, decay);
    for (int k = 0; k < HALF_LIVES; k++) {
        decay[k] *= m->rate[k] * reuse_count(e, k);
        sum += decay[k];
    }
    if (!(sum > 1e-200) || !(stake > 0.0)) return;
    if (!m->scaled) model_scale(m, stake);
    m->events += 1.0;
    double kept = 1.0 - 1.0 / model_memory(m->events);
    for (int k = 0; k < HALF_LIVES; k++) {
        m->found[k] = kept * m->found[k] + stake * decay[k] / sum;
        m->exposed[k] *= kept;
    }
    m->ages.held_seconds = MODEL_HELD * policy->lives.gap_seconds;
    reuse_ages_find(&m->ages, turn, age, due / sum, stake, kept);
    model_weigh(m);
}

/* By how much the guess of the first uses puts an entry above one that was used when the engine's
 * time began. Nothing is known yet of how soon entries come back, and the guess falls with age:
 * newcomers would drive out what a loop larger than a tier comes to first, at a slow
 * host's pace all of it. One handle in MODEL_LET_IN goes by the guess, so that a store in which
 * nothing is used again turns over. */
double reuse_guessed_lead(const kvt_policy *policy, const entry *e)
{
    const reuse_model *model = policy->model;
    if (model == NULL || model->events >= MODEL_FIRST) return 1.0;
    if (number_mix(e->handle ^ ~policy->config.seed) % MODEL_LET_IN == 0) return 1.0;
    entry first = *e;
    first.last_access_ns = model->first_ns;
    const double now = reuse_look_unhinted(policy, e).rate;
    const double then = reuse_look_unhinted(policy, &first).rate;
    return then < now ? now / then : 1.0;
}
