/* SPDX-License-Identifier: Apache-2.0 */
/*
 * online_loss.c - what a running store learns about losses.
 *
 * Two levels of a normal model in logarithms. The class takes from each observation, by a Kalman
 * step, what the entry's earlier ones have not told it already; the entry's expectation follows
 * from its class's and its own observations, so that none counts twice.
 *
 * Thread rule: as predict.h.
 */
#include "estimator/predict/predict.h"

#include <assert.h>
#include <math.h>

/* Spreads of logarithms. A factor of 50 is the most: a profile that says more would end in no
 * number. */
#define LOSS_CLASS_SD       0.7 /* of a class that was measured: a factor of two */
#define LOSS_CLASS_SD_LEAST 0.1
#define LOSS_QUESTION_SD    1.0 /* where no measurement tells */
#define LOSS_ENTRY_LEAST    1e-3
#define LOSS_SD_MOST        4.0
#define LOSS_MEMORY         50.0 /* observations that a class remembers */
#define LOSS_UPPER          1.645
#define LOSS_CUT            4.0 /* spreads off the expectation that an observation counts at most */
#define LOSS_DRIFT_SLACK    0.5
#define LOSS_DRIFT_SUM      10.0

online_loss_prior online_loss_prior_of(double sd, double repeatability, double widening)
{
    online_loss_prior prior = {LOSS_CLASS_SD, LOSS_ENTRY_LEAST, LOSS_QUESTION_SD};
    if (widening > 1.0) prior.class_sd = fmax(log(widening) / LOSS_UPPER, LOSS_CLASS_SD_LEAST);
    if (!(sd > 0)) return prior;
    sd = fmin(sd, LOSS_SD_MOST);
    double r = fmin(fmax(repeatability, 0.0), 1.0);
    double whole = 2 * r / (1 + r);
    prior.entry_sd = fmax(sd * sqrt(whole), LOSS_ENTRY_LEAST);
    prior.question_sd = fmax(sd * sqrt(1 - whole), LOSS_ENTRY_LEAST);
    return prior;
}

/* The mean of a lognormal is above its median by half the variance: a class whose factor is 1 has
 * its ln centred below 0. */
static double loss_center(const online_loss_prior *prior)
{
    return -0.5 * prior->entry_sd * prior->entry_sd;
}

void online_loss_class_init(online_loss_class *of_class, const online_loss_prior *prior)
{
    *of_class = (online_loss_class){.mean = loss_center(prior),
                                    .variance = prior->class_sd * prior->class_sd};
}

/* Variance of one observation around its class. */
static double loss_single(const online_loss_prior *prior, double weight)
{
    return prior->entry_sd * prior->entry_sd + prior->question_sd * prior->question_sd / weight;
}

void online_loss_class_resume(online_loss_class *of_class, const online_loss_prior *prior,
                              double factor, double weight, uint64_t observations)
{
    online_loss_class_init(of_class, prior);
    if (!(factor > 0) || !(weight > 0)) return;
    of_class->mean = log(factor) + loss_center(prior);
    of_class->variance = 1.0 / (1.0 / of_class->variance + weight / loss_single(prior, 1.0));
    of_class->observations = observations;
}

/* What is known of an entry's ln factor: its mean and variance, and how far both follow its class.
 */
typedef struct loss_posterior {
    double mean;
    double variance;
    double share; /* of its class's mean */
} loss_posterior;

static loss_posterior loss_judge(const online_loss_prior *prior, const online_loss_class *of_class,
                                 const online_loss_entry *entry)
{
    double spread = prior->entry_sd * prior->entry_sd;
    double noise = prior->question_sd * prior->question_sd;
    double own = 1.0 / (1.0 / spread + (double)entry->weight / noise); /* given the class */
    loss_posterior posterior = {.share = own / spread};
    posterior.mean = posterior.share * of_class->mean + own * (double)entry->sum / noise;
    posterior.variance = own + posterior.share * posterior.share * of_class->variance;
    return posterior;
}

online_loss_factor online_loss_expect(const online_loss_prior *prior,
                                      const online_loss_class *of_class,
                                      const online_loss_entry *entry)
{
    const loss_posterior known = loss_judge(prior, of_class, entry);
    /* Uncertainty about the class's mean widens the bound and does not raise the expectation; how
     * entries lie around what is known of them is in both. */
    const double own = known.variance - known.share * known.share * of_class->variance;
    const double mean = exp(known.mean + 0.5 * own);
    return (online_loss_factor){
        .mean = mean, .upper = mean * exp(LOSS_UPPER * known.share * sqrt(of_class->variance))};
}

double online_loss_class_factor(const online_loss_prior *prior, const online_loss_class *of_class,
                                double *weight_out)
{
    double before = 1.0 / (prior->class_sd * prior->class_sd);
    double gained = 1.0 / of_class->variance - before;
    if (weight_out != NULL) *weight_out = fmax(gained * loss_single(prior, 1.0), 0.0);
    return exp(of_class->mean - loss_center(prior));
}

/* Updates the class by an observation. off: its distance from the expectation. */
static void loss_teach_class(const online_loss_prior *prior, online_loss_class *of_class,
                             double share, double off, double innovation)
{
    double covariance = of_class->variance * share;
    of_class->mean += covariance / innovation * off;
    of_class->variance -= covariance * covariance / innovation;
    of_class->variance += loss_single(prior, 1.0) / (LOSS_MEMORY * LOSS_MEMORY);
    of_class->observations++;
}

static bool loss_has_drifted(const online_loss_prior *prior, online_loss_class *of_class,
                             double off, double innovation)
{
    double spreads = fmin(fmax(off / sqrt(innovation), -3.0), 3.0);
    of_class->above = fmax(0, of_class->above + spreads - LOSS_DRIFT_SLACK);
    of_class->below = fmax(0, of_class->below - spreads - LOSS_DRIFT_SLACK);
    if (of_class->above <= LOSS_DRIFT_SUM && of_class->below <= LOSS_DRIFT_SUM) return false;
    of_class->above = of_class->below = 0;
    const double sd = fmax(prior->class_sd, LOSS_CLASS_SD);
    of_class->variance = sd * sd;
    of_class->reopened++;
    return true;
}

bool online_loss_observe(const online_loss_prior *prior, online_loss_class *of_class,
                         online_loss_entry *entry, double observed, double weight)
{
    assert(observed >= 0 && weight > 0);
    double question = prior->question_sd * prior->question_sd / weight;
    loss_posterior known = loss_judge(prior, of_class, entry);
    double mean = known.mean;
    double innovation = known.variance + question;
    /* No loss at all has no logarithm: most entries of a fine variant lose nothing that an answer
     * could show, so it counts as half of what was expected. */
    const double least = mean - LOSS_CUT * sqrt(innovation);
    const double seen = observed > 0 ? log(observed) + 0.5 * question : mean - log(2.0);
    double off = fmin(fmax(seen, least), mean + LOSS_CUT * sqrt(innovation)) - mean;
    const bool drifted = loss_has_drifted(prior, of_class, off, innovation);
    if (drifted) known = loss_judge(prior, of_class, entry);
    innovation = known.variance + question;
    loss_teach_class(prior, of_class, known.share, off, innovation);
    entry->weight += (float)weight;
    entry->sum += (float)(weight * (mean + off));
    return drifted;
}
