/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_estimator_online_loss.c - factors of entries and classes from single questions: simulated
 * with the spread and the reliability that were measured on trained models.
 */
#include "cases.h"

#include "estimator/predict/predict.h"

#include <math.h>

static double loss_uniform(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return ((double)(*state >> 11) + 0.5) * 0x1p-53;
}

static double loss_normal(uint64_t *state)
{
    double radius = sqrt(-2.0 * log(loss_uniform(state)));
    return radius * cos(6.283185307179586 * loss_uniform(state));
}

/* Spread of ln loss between entries as measured, and its correlation between two halves of the
 * continuation: two models on clean text, one on raw text, two out of their domain. */
static const struct {
    const char *name;
    double sd, repeatability;
} loss_trials[] = {{"bitllama, clean", 0.26, 0.20},
                   {"stories, clean", 0.22, 0.34},
                   {"stories, raw", 0.53, 0.75},
                   {"bitllama, foreign", 0.21, 0.47},
                   {"stories, foreign", 0.59, 0.77}};
#define LOSS_TRIALS (sizeof loss_trials / sizeof loss_trials[0])

/* An observation of an entry whose ln factor is known. */
static double loss_ask(const online_loss_prior *prior, double truth, double weight, uint64_t *seed)
{
    double variance = prior->question_sd * prior->question_sd / weight;
    return exp(truth - 0.5 * variance + sqrt(variance) * loss_normal(seed));
}

typedef struct loss_errors {
    double none, raw, shrunk; /* mean squared log errors */
    double above;             /* share of entries above the upper bound */
} loss_errors;

enum { LOSS_ENTRIES = 3000 };

/* A class whose mean factor is not 1 either; each entry is asked so many questions. */
static loss_errors loss_simulate(const online_loss_prior *prior, int questions, uint64_t seed)
{
    online_loss_class of_class;
    loss_errors errors = {0, 0, 0, 0};
    const double class_mean = 0.4 - 0.5 * prior->entry_sd * prior->entry_sd;
    online_loss_class_init(&of_class, prior);
    for (int i = 0; i < LOSS_ENTRIES; i++) {
        online_loss_entry entry = {0, 0};
        double truth = class_mean + prior->entry_sd * loss_normal(&seed);
        double raw = 0;
        const online_loss_entry nothing = {0, 0};
        double without = log(online_loss_expect(prior, &of_class, &nothing).mean) -
                         0.5 * prior->entry_sd * prior->entry_sd;
        for (int q = 0; q < questions; q++) {
            double observed = loss_ask(prior, truth, 1, &seed);
            raw += log(observed) / questions;
            (void)online_loss_observe(prior, &of_class, &entry, observed, 1);
        }
        if (i < 200) continue; /* the class is being learned */
        online_loss_factor factor = online_loss_expect(prior, &of_class, &entry);
        double expected = log(factor.mean);
        errors.none += (without - truth) * (without - truth);
        errors.raw += (raw - truth) * (raw - truth);
        errors.shrunk += (expected - truth) * (expected - truth);
        errors.above += truth > log(factor.upper);
    }
    errors.none /= LOSS_ENTRIES - 200;
    errors.raw /= LOSS_ENTRIES - 200;
    errors.shrunk /= LOSS_ENTRIES - 200;
    errors.above /= LOSS_ENTRIES - 200;
    return errors;
}

TEST(shrunk_beats_none_and_raw)
{
    static const int questions[] = {1, 2, 5, 20};
    for (size_t trial = 0; trial < LOSS_TRIALS; trial++) {
        online_loss_prior prior =
            online_loss_prior_of(loss_trials[trial].sd, loss_trials[trial].repeatability);
        for (size_t q = 0; q < sizeof questions / sizeof questions[0]; q++) {
            for (uint64_t seed = 1; seed <= 3; seed++) {
                loss_errors errors = loss_simulate(&prior, questions[q], seed);
                if (seed == 1)
                    print_message(
                        "%-18s %2d questions: none %.4f, raw %.4f, shrunk %.4f; above the "
                        "bound %.3f\n",
                        loss_trials[trial].name, questions[q], errors.none, errors.raw,
                        errors.shrunk, errors.above);
                assert_true(errors.shrunk < errors.none);
                assert_true(errors.shrunk < errors.raw);
                assert_true(errors.above > 0.02 && errors.above < 0.08);
            }
        }
    }
}

TEST(prior_follows_reliability)
{
    online_loss_prior none = online_loss_prior_of(0.5, 0);
    online_loss_prior half = online_loss_prior_of(0.5, 0.5);
    online_loss_prior all = online_loss_prior_of(0.5, 1);
    assert_true(none.entry_sd < 0.01 && fabs(none.question_sd - 0.5) < 1e-9);
    assert_true(fabs(half.entry_sd * half.entry_sd / 0.25 - 2.0 / 3) < 1e-9);
    assert_true(all.question_sd < 0.01 && fabs(all.entry_sd - 0.5) < 1e-9);
    /* Nothing was measured: an entry's own observations change nothing, its class's do. */
    online_loss_prior unknown = online_loss_prior_of(0, 0);
    online_loss_class of_class;
    online_loss_entry entry = {0, 0}, other = {0, 0};
    online_loss_class_init(&of_class, &unknown);
    for (int i = 0; i < 50; i++)
        (void)online_loss_observe(&unknown, &of_class, &entry, 3.0, 1);
    double mine = online_loss_expect(&unknown, &of_class, &entry).mean;
    double theirs = online_loss_expect(&unknown, &of_class, &other).mean;
    assert_true(fabs(mine / theirs - 1) < 0.01);
    assert_true(theirs > 2);
}

TEST(one_question_moves_little)
{
    online_loss_prior prior = online_loss_prior_of(0.26, 0.20);
    online_loss_class of_class;
    online_loss_entry entry = {0, 0};
    online_loss_class_init(&of_class, &prior);
    online_loss_class_resume(&of_class, &prior, 1.0, 1000, 1000);
    (void)online_loss_observe(&prior, &of_class, &entry, 3.0, 1);
    online_loss_factor factor = online_loss_expect(&prior, &of_class, &entry);
    assert_true(factor.mean > 1.1 && factor.mean < 1.6); /* ln 3 at 4 spreads, of which a third */
    assert_true(factor.upper > factor.mean);
    entry = (online_loss_entry){0, 0};
    (void)online_loss_observe(&prior, &of_class, &entry, 0.0, 1); /* no loss at all */
    factor = online_loss_expect(&prior, &of_class, &entry);
    assert_true(factor.mean > 0.5 && factor.mean < 1);
    double weight;
    assert_true(fabs(online_loss_class_factor(&prior, &of_class, &weight) - 1) < 0.1);
    assert_true(weight > 900 && weight < 1100);
}

TEST(class_is_learned_and_resumed)
{
    online_loss_prior prior = online_loss_prior_of(0.53, 0.75);
    online_loss_class of_class, later;
    uint64_t seed = 5;
    online_loss_class_init(&of_class, &prior);
    for (int i = 0; i < 500; i++) {
        online_loss_entry entry = {0, 0};
        double truth =
            log(2.5) - 0.5 * prior.entry_sd * prior.entry_sd + prior.entry_sd * loss_normal(&seed);
        (void)online_loss_observe(&prior, &of_class, &entry, loss_ask(&prior, truth, 1, &seed), 1);
    }
    double weight, factor = online_loss_class_factor(&prior, &of_class, &weight);
    assert_true(fabs(factor / 2.5 - 1) < 0.15);
    assert_int_equal(of_class.reopened, 0);
    online_loss_class_resume(&later, &prior, factor, weight, of_class.observations);
    assert_true(fabs(later.mean - of_class.mean) < 1e-9);
    assert_true(fabs(later.variance / of_class.variance - 1) < 1e-6);
    /* One entry asked a thousand times is one entry. */
    online_loss_entry entry = {0, 0};
    for (int i = 0; i < 1000; i++)
        (void)online_loss_observe(&prior, &later, &entry, 5.0, 1);
    assert_true(online_loss_class_factor(&prior, &later, NULL) < 1.2 * factor);
    assert_true(fabs(online_loss_expect(&prior, &later, &entry).mean / 5.0 - 1) < 0.15);
}

TEST(drift_of_a_class_reopens)
{
    online_loss_prior prior = online_loss_prior_of(0.26, 0.20);
    for (uint64_t seed = 1; seed <= 10; seed++) {
        uint64_t dice = seed;
        online_loss_class of_class;
        online_loss_class_init(&of_class, &prior);
        for (int i = 0; i < 3000; i++) {
            online_loss_entry entry = {0, 0};
            double truth = prior.entry_sd * loss_normal(&dice);
            (void)online_loss_observe(&prior, &of_class, &entry, loss_ask(&prior, truth, 1, &dice),
                                      1);
        }
        assert_int_equal(of_class.reopened, 0);
        bool reopened = false;
        int needed = 0;
        for (; needed < 100; needed++) {
            online_loss_entry entry = {0, 0};
            double truth = log(2.0) + prior.entry_sd * loss_normal(&dice);
            reopened |= online_loss_observe(&prior, &of_class, &entry,
                                            loss_ask(&prior, truth, 1, &dice), 1);
        }
        assert_true(reopened);
        assert_true(fabs(online_loss_class_factor(&prior, &of_class, NULL) / 2.0 - 1) < 0.2);
    }
}
