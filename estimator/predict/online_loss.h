/* SPDX-License-Identifier: Apache-2.0 */
/*
 * online_loss.h - how sensitive a class of entries is, and one of its entries, from what answers
 * lost (docs/POLICY.md, Losses).
 *
 * An entry's expected loss in some form is the form's mean loss times the entry's factor. Factors
 * of a class are lognormal around the class's own; what one question shows of a factor is lognormal
 * around it, and mostly question: so it counts as much as it has been seen to repeat.
 *
 *     ln factor   = class + entry            entry ~ N(0, entry_sd^2)
 *     ln observed = ln factor + question     question ~ N(-v/2, v), v = question_sd^2 / weight
 *
 * Thread rule: pure arithmetic over the caller's memory; no locks, no allocation, no clock.
 */
#ifndef ESTIMATOR_ONLINE_LOSS_H
#define ESTIMATOR_ONLINE_LOSS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct online_loss_prior {
    double entry_sd;
    double question_sd;
} online_loss_prior;

/*
 * From a measurement of many entries: sd, the standard deviation of the measured logarithms, and
 * repeatability, their correlation between two halves of each measurement. By Spearman and Brown
 * the whole repeats with 2r / (1 + r), so that share of the variance is the entries'. r <= 0 or sd
 * <= 0: entries show no difference of their own.
 */
online_loss_prior online_loss_prior_of(double sd, double repeatability);

/* What is known of a class: its ln factor, and how certain that is. */
typedef struct online_loss_class {
    double mean;
    double variance;
    uint64_t observations;
    uint64_t reopened; /* how often it had drifted */
    double above;      /* sums of what speaks for a drift, in spreads */
    double below;
} online_loss_class;

/* Of an entry; all zero = nothing. */
typedef struct online_loss_entry {
    float weight; /* sum over observations */
    float sum;    /* of weight x ln observed, the question's mean taken out */
} online_loss_entry;

typedef struct online_loss_factor {
    double mean;  /* the factor's expectation */
    double upper; /* it is below with a probability of 95 % */
} online_loss_factor;

void online_loss_class_init(online_loss_class *of_class, const online_loss_prior *prior);

/* Goes on from a factor that was learned before. weight: of the observations behind it. */
void online_loss_class_resume(online_loss_class *of_class, const online_loss_prior *prior,
                              double factor, double weight, uint64_t observations);

/* The factor of an entry of the class. */
online_loss_factor online_loss_expect(const online_loss_prior *prior,
                                      const online_loss_class *of_class,
                                      const online_loss_entry *entry);

/* The class's mean factor, and the weight behind it. */
double online_loss_class_factor(const online_loss_prior *prior, const online_loss_class *of_class,
                                double *weight_out);

/* observed: measured loss over the form's mean, >= 0. weight > 0: 1 = as much evidence as one entry
 * gave in the measurement of the prior. True when the class has drifted: what was known of it
 * counts little now. */
bool online_loss_observe(const online_loss_prior *prior, online_loss_class *of_class,
                         online_loss_entry *entry, double observed, double weight);

#endif
