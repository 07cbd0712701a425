/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_estimator_online.c - what is learned of devices while a store runs: simulated devices with
 * known seconds, seeded noise. Factors of entries and classes from single questions: simulated with
 * the spread and the reliability that were measured on trained models.
 */
#include "cases.h"
#include "dice.h"

#include "estimator/predict/predict.h"

#include <math.h>
#include <stdlib.h>

static double online_normal(uint64_t *state)
{
    double radius = sqrt(-2.0 * log(dice_uniform(state)));
    return radius * cos(6.283185307179586 * dice_uniform(state));
}

/* A device that serves in order, both directions on one wire or on two. */
typedef struct online_truth {
    double request_seconds, bytes_per_s;
    double other; /* seconds per byte of the other direction ahead */
    double noise; /* sd of the logarithm */
    uint64_t seed;
} online_truth;

static online_work online_draw(online_truth *truth)
{
    static const double sizes[] = {65536, 262144, 1048576, 4194304};
    online_work work = {.bytes = sizes[(int)(dice_uniform(&truth->seed) * 4)]};
    if (dice_uniform(&truth->seed) < 0.5) work.ahead_bytes = dice_uniform(&truth->seed) * 8388608;
    if (dice_uniform(&truth->seed) < 0.3) work.other_bytes = dice_uniform(&truth->seed) * 4194304;
    return work;
}

static double online_true_seconds(const online_truth *truth, const online_work *work)
{
    return truth->request_seconds + (work->bytes + work->ahead_bytes) / truth->bytes_per_s +
           truth->other * work->other_bytes;
}

static double online_seconds(online_truth *truth, const online_work *work)
{
    return online_true_seconds(truth, work) * exp(truth->noise * online_normal(&truth->seed));
}

/* Largest relative difference between the prediction and the truth over what may be asked. */
static double online_worst(const online_device *device, online_truth *truth)
{
    double worst = 0;
    for (int i = 0; i < 200; i++) {
        online_work work = online_draw(truth);
        double right = online_true_seconds(truth, &work);
        worst = fmax(worst, fabs(online_device_predict(device, &work) / right - 1));
    }
    return worst;
}

TEST(finds_all_terms)
{
    for (uint64_t seed = 1; seed <= 10; seed++) {
        online_truth truth = {2e-3, 150e6, seed % 2 == 0 ? 1 / 150e6 : 0, 0.05, seed};
        online_device device;
        /* The curve says a tenth of the fixed seconds and twice the bandwidth. */
        online_device_init(&device, 2e-4, 300e6);
        for (int i = 0; i < 600; i++) {
            online_work work = online_draw(&truth);
            (void)online_device_observe(&device, &work, online_seconds(&truth, &work));
        }
        double worst = online_worst(&device, &truth);
        if (worst > 0.15) fail_msg("seed %d: off by %.3f", (int)seed, worst);
        assert_true(fabs(1 / online_device_affine(&device).bytes_per_s * 150e6 - 1) < 0.1);
        assert_true(online_device_drift(&device, 1048576) > 0.5);
    }
}

TEST(drift_reopens)
{
    static const double slowing[] = {0.5, 0.8, 2.0};
    for (int which = 0; which < 3; which++) {
        for (uint64_t seed = 1; seed <= 10; seed++) {
            online_truth truth = {1e-4, 400e6, 0.5 / 400e6, 0.1, seed};
            online_device device;
            online_device_init(&device, 1e-4, 400e6);
            for (int i = 0; i < 500; i++) {
                online_work work = online_draw(&truth);
                (void)online_device_observe(&device, &work, online_seconds(&truth, &work));
            }
            uint64_t before = device.reopened;
            assert_int_equal(before, 0);
            truth.bytes_per_s *= slowing[which];
            int needed = 0;
            bool reopened = false;
            for (; needed < 300 && !reopened; needed++) {
                online_work work = online_draw(&truth);
                reopened = online_device_observe(&device, &work, online_seconds(&truth, &work));
            }
            if (!reopened) fail_msg("x%.1f, seed %d: not noticed", slowing[which], (int)seed);
            assert_true(device.reopened == before + 1);
            double found = 1.0 / device.used[1] / truth.bytes_per_s;
            if (fabs(found - 1) > 0.15)
                fail_msg("x%.1f, seed %d: %.3f of the truth", slowing[which], (int)seed, found);
        }
    }
}

TEST(noise_alone_is_no_drift)
{
    for (uint64_t seed = 1; seed <= 20; seed++) {
        online_truth truth = {1e-4, 200e6, 0.5 / 200e6, 0.3, seed};
        online_device device;
        online_device_init(&device, 1e-4, 200e6);
        for (int i = 0; i < 5000; i++) {
            online_work work = online_draw(&truth);
            double seconds = online_seconds(&truth, &work);
            if (dice_uniform(&truth.seed) < 0.01) seconds *= 20; /* a hiccup of the host */
            (void)online_device_observe(&device, &work, seconds);
        }
        assert_int_equal(device.reopened, 0);
        double worst = online_worst(&device, &truth);
        if (worst > 0.35) fail_msg("seed %d: off by %.3f", (int)seed, worst);
    }
}

TEST(goes_on_after_restart)
{
    online_device device;
    online_device_init(&device, 1e-4, 400e6);
    online_device_resume(&device, 3e-4, 100e6, 1000);
    online_work work = {.bytes = 1e6};
    assert_true(fabs(online_device_predict(&device, &work) / (3e-4 + 1e-2) - 1) < 1e-9);
    assert_true(online_device_drift(&device, 1e6) > 2);
    assert_int_equal(device.reopened, 0);
}

/* A busy machine: figures stop at four times the curve, and only long evidence moves the curve. */
TEST(figures_stay_within_bounds)
{
    online_device device;
    online_factor factor;
    online_work work = {.bytes = 1e6};
    online_device_init(&device, 1e-4, 400e6);
    online_factor_init(&factor);
    double load = online_device_predict(&device, &work);
    for (int i = 0; i < 20; i++) {
        (void)online_device_observe(&device, &work, 100 * load);
        online_factor_observe(&factor, 100, 1.0 / 32);
    }
    assert_true(online_device_predict(&device, &work) <= 4.0001 * load);
    assert_true(online_factor_value(&factor) <= 4.0001);
    assert_int_equal(device.rebased + factor.rebased, 0);
    /* It goes on: steps of four lead there. */
    for (int i = 0; i < 600; i++) {
        (void)online_device_observe(&device, &work, 100 * load);
        online_factor_observe(&factor, 100, 1.0 / 32);
    }
    assert_true(fabs(online_device_predict(&device, &work) / (100 * load) - 1) < 0.1);
    assert_true(fabs(online_factor_value(&factor) / 100 - 1) < 0.1);
    assert_true(device.rebased > 0 && factor.rebased > 0);
    /* What was learned before counts as far as the bounds let it. */
    online_device_init(&device, 1e-4, 400e6);
    online_device_resume(&device, 1.0, 1e5, 1000000);
    assert_true(online_device_predict(&device, &work) <= 4.0001 * load);
    online_device_resume(&device, 0, 1e12, 1000000);
    assert_true(online_device_predict(&device, &work) >= 0.24 * load - 1e-4);
    online_factor_resume(&factor, 8.78, 1000000);
    assert_true(fabs(online_factor_value(&factor) - 4) < 1e-9);
    online_factor_resume(&factor, 1e-9, 1000000);
    assert_true(fabs(online_factor_value(&factor) - 0.25) < 1e-9);
}

/* Nothing is faster than it is: four achievements far below a figure are enough, however much stood
 * behind it. */
TEST(faster_is_proof)
{
    online_device device;
    online_factor factor;
    online_work work = {.bytes = 1e6};
    double truth = 1e-4 + 1e6 / 400e6;
    bool taken_up = false;
    online_device_init(&device, 1e-1, 400e3); /* a thousand times too slow */
    online_factor_init(&factor);
    for (int i = 0; i < 4; i++) {
        taken_up |= online_device_observe(&device, &work, truth);
        online_factor_observe(&factor, 1e-3, 1.0 / 32);
    }
    assert_true(taken_up);
    assert_true(fabs((device.used[0] + device.used[1] * 1e6) / truth - 1) < 0.01);
    assert_true(fabs(online_factor_value(&factor) / 1e-3 - 1) < 0.01);
    assert_true(device.observations >= ONLINE_SURE);
    assert_true(factor.average.observations >= ONLINE_SURE);

    online_factor_resume(&factor, 4, 1000000);
    online_device_init(&device, 1e-4, 400e6);
    online_device_resume(&device, 4e-4, 100e6, 1000000);
    for (int i = 0; i < 4; i++) {
        (void)online_device_observe(&device, &work, truth);
        online_factor_observe(&factor, 1, 1.0 / 32);
    }
    assert_true(fabs((device.used[0] + device.used[1] * 1e6) / truth - 1) < 0.05);
    assert_true(fabs(online_factor_value(&factor) - 1) < 1e-9);
    assert_int_equal(device.rebased + factor.rebased, 0);
    /* One in a row is a piece of luck, as from a cache. */
    online_factor_resume(&factor, 4, 1000000);
    for (int i = 0; i < 12; i++)
        online_factor_observe(&factor, i % 2 == 0 ? 1 : 4, 1.0 / 32);
    assert_true(online_factor_value(&factor) > 2);
}

/* Feeds a device and a factor what a clock said, thousands of times. Seconds of the second request
 * in two follow those of the first. */
static void feed_seconds(double first, double second, double bytes)
{
    online_device device;
    online_factor factor;
    online_work work = {.bytes = bytes};
    online_device_init(&device, 5e-6, 5e9);
    online_factor_init(&factor);
    for (int i = 0; i < 20000; i++) {
        double seconds = online_timed(i % 2 == 0 ? first : second);
        work.other_bytes = i % 3 == 0 ? bytes : 0;
        (void)online_device_observe(&device, &work, seconds);
        online_factor_observe(&factor, seconds * 5e9 / bytes, 1.0 / 32);
        const kvt_affine used = {.request_seconds = device.used[0],
                                 .bytes_per_s = 1.0 / device.used[1]};
        const kvt_affine now = online_device_affine(&device);
        assert_true(online_figures_are_sound(&used) && online_figures_are_sound(&now));
        assert_true(isfinite(device.used[2]) && isfinite(device.noise));
        double predicted = online_device_predict(&device, &work);
        assert_true(predicted > 0 && isfinite(predicted));
        double value = online_factor_value(&factor);
        assert_true(value > 1e-8 && value < 1e8);
    }
}

/* A stopped clock, one with coarse steps, a stopped machine: no figure becomes nothing or endless.
 */
TEST(no_clock_breaks_the_figures)
{
    static const double seconds[] = {0, 1e-12, 1e-9, 1e-6, 1, 1e5, 1e30, INFINITY};
    static const double sizes[] = {1, 64, 1e6, 0x1p46};
    const size_t count = sizeof seconds / sizeof seconds[0];
    for (size_t i = 0; i < count; i++)
        for (size_t j = 0; j < count; j++)
            feed_seconds(seconds[i], seconds[j], sizes[(i + j) % 4]);
    assert_true(online_timed((double)NAN) > 0);
    const kvt_affine odd = online_figures(
        (kvt_affine){.request_seconds = (double)NAN, .bytes_per_s = (double)INFINITY});
    assert_true(online_figures_are_sound(&odd));
    const kvt_affine none = online_figures((kvt_affine){.request_seconds = -1, .bytes_per_s = 0});
    assert_true(online_figures_are_sound(&none));
}

/* Requests of next to no bytes prove nothing of the seconds of bytes, however often they do. */
TEST(small_requests_leave_the_bandwidth)
{
    online_device device;
    online_work work = {.bytes = 64};
    online_device_init(&device, 1e-4, 400e6);
    for (int i = 0; i < 5000; i++)
        (void)online_device_observe(&device, &work, i % 200 < 100 ? 1e-4 : 1e-5);
    double bytes_per_s = online_device_affine(&device).bytes_per_s;
    assert_true(bytes_per_s > 100e6 && bytes_per_s < 1600e6);
}

TEST(figures_decay_towards_the_curve)
{
    online_device device;
    online_factor factor;
    online_work work = {.bytes = 1e6};
    online_device_init(&device, 1e-4, 400e6);
    double load = online_device_predict(&device, &work);
    online_device_resume(&device, 3e-4, 100e6, 1000);
    double before = online_device_predict(&device, &work);
    online_device_decay(&device, 0.5);
    assert_true(fabs(online_device_predict(&device, &work) - (before + load) / 2) < 1e-9);
    online_device_decay(&device, 0);
    assert_true(fabs(online_device_predict(&device, &work) - load) < 1e-12);
    online_factor_resume(&factor, 4, 1000);
    online_factor_decay(&factor, 0.5);
    assert_true(fabs(online_factor_value(&factor) - 2) < 1e-9);
    online_factor_decay(&factor, 1);
    assert_true(fabs(online_factor_value(&factor) - 2) < 1e-9);
}

TEST(average_cuts_hiccups)
{
    online_average average = {0, 0, 0};
    uint64_t seed = 7;
    for (int i = 0; i < 400; i++)
        online_average_observe(&average, 2.0 + 0.1 * online_normal(&seed), 1.0 / 32);
    assert_true(fabs(average.value - 2.0) < 0.05);
    online_average_observe(&average, 1000.0, 1.0 / 32);
    assert_true(average.value < 2.1);
    for (int i = 0; i < 400; i++)
        online_average_observe(&average, 4.0, 1.0 / 32);
    assert_true(fabs(average.value - 4.0) < 0.05);
}

TEST(error_quantiles)
{
    online_error error = {.total = 0};
    assert_true(online_error_quantile(&error, 0.5) <= 0);
    for (int i = 1; i <= 1000; i++)
        online_error_observe(&error, 1.0 + i * 1e-3, 1.0); /* errors evenly from 0 to 1 */
    assert_true(fabs(online_error_quantile(&error, 0.5) / 0.5 - 1) < 0.03);
    assert_true(fabs(online_error_quantile(&error, 0.9) / 0.9 - 1) < 0.03);
    assert_int_equal(error.observations, 1000);
    assert_true(fabs(error.achieved_seconds - 1000) < 1e-6);
    for (int i = 0; i < 40000; i++)
        online_error_observe(&error, 1.01, 1.0); /* what is old is forgotten */
    assert_true(online_error_quantile(&error, 0.9) < 0.012);
    online_error_observe(&error, 1e9, 1.0); /* beyond the last bin */
    online_error_observe(&error, 1.0, 0.0); /* nothing to compare with */
    assert_int_equal(error.observations, 41001);
}

/* ---- losses ---- */

static double loss_normal(uint64_t *state)
{
    double radius = sqrt(-2.0 * log(dice_uniform(state)));
    return radius * cos(6.283185307179586 * dice_uniform(state));
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
} loss_errors;

enum { LOSS_ENTRIES = 3000 };

/* A class whose mean factor is not 1 either; each entry is asked so many questions. */
static loss_errors loss_simulate(const online_loss_prior *prior, int questions, uint64_t seed)
{
    online_loss_class of_class;
    loss_errors errors = {0, 0, 0};
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
    }
    errors.none /= LOSS_ENTRIES - 200;
    errors.raw /= LOSS_ENTRIES - 200;
    errors.shrunk /= LOSS_ENTRIES - 200;
    return errors;
}

TEST(shrunk_beats_none_and_raw)
{
    static const int questions[] = {1, 2, 5, 20};
    for (size_t trial = 0; trial < LOSS_TRIALS; trial++) {
        online_loss_prior prior =
            online_loss_prior_of(loss_trials[trial].sd, loss_trials[trial].repeatability, 0);
        for (size_t q = 0; q < sizeof questions / sizeof questions[0]; q++) {
            for (uint64_t seed = 1; seed <= 3; seed++) {
                loss_errors errors = loss_simulate(&prior, questions[q], seed);
                if (seed == 1)
                    print_message("%-18s %2d questions: none %.4f, raw %.4f, shrunk %.4f\n",
                                  loss_trials[trial].name, questions[q], errors.none, errors.raw,
                                  errors.shrunk);
                assert_true(errors.shrunk < errors.none);
                assert_true(errors.shrunk < errors.raw);
            }
        }
    }
}

/* The mean loss of a class is below its bound 95 times in 100, of classes that differ as the prior
 * says, after few observations and after many. */
TEST(bounds_are_of_the_mean_of_a_class)
{
    enum { CLASSES = 2000 };
    static const int observations[] = {1, 5, 40};
    const online_loss_prior prior = online_loss_prior_of(0.62, 0.43, 2.0);
    const online_loss_entry nothing = {0, 0};
    uint64_t seed = 11;
    for (int n = 0; n < 3; n++) {
        int above = 0;
        double sum = 0;
        for (int i = 0; i < CLASSES; i++) {
            online_loss_class of_class;
            const double truth = prior.class_sd * loss_normal(&seed);
            online_loss_class_init(&of_class, &prior);
            for (int k = 0; k < observations[n]; k++) {
                online_loss_entry entry = nothing;
                const double own = truth - 0.5 * prior.entry_sd * prior.entry_sd +
                                   prior.entry_sd * loss_normal(&seed);
                (void)online_loss_observe(&prior, &of_class, &entry,
                                          loss_ask(&prior, own, 1, &seed), 1);
            }
            const double upper = online_loss_expect(&prior, &of_class, &nothing).upper;
            above += truth > log(upper);
            sum += log(upper) - truth;
        }
        assert_true(above > 0.03 * CLASSES && above < 0.07 * CLASSES);
        /* Many observations leave a quarter of the doubt. */
        assert_true(n < 2 || sum / CLASSES < 0.25 * log(2.0));
    }
}

/* Of planes at 8 bits six answers in ten lose nothing, the others 2.5 times the mean, on a real
 * model. So a class that is as expected stays so. */
TEST(no_loss_is_half_of_what_was_expected)
{
    const online_loss_prior prior = online_loss_prior_of(0.62, 0.43, 2.0);
    online_loss_class of_class;
    online_loss_class_init(&of_class, &prior);
    for (int i = 0; i < 100; i++) {
        online_loss_entry entry = {0, 0};
        (void)online_loss_observe(&prior, &of_class, &entry, i % 5 < 3 ? 0.0 : 2.5, 1);
    }
    const double factor = online_loss_class_factor(&prior, &of_class, NULL);
    assert_true(factor > 0.75 && factor < 1.35 && of_class.variance > 0);
}

TEST(prior_follows_reliability)
{
    online_loss_prior none = online_loss_prior_of(0.5, 0, 0);
    online_loss_prior half = online_loss_prior_of(0.5, 0.5, 0);
    online_loss_prior all = online_loss_prior_of(0.5, 1, 0);
    assert_true(none.entry_sd < 0.01 && fabs(none.question_sd - 0.5) < 1e-9);
    assert_true(fabs(half.entry_sd * half.entry_sd / 0.25 - 2.0 / 3) < 1e-9);
    assert_true(all.question_sd < 0.01 && fabs(all.entry_sd - 0.5) < 1e-9);
    /* Nothing was measured: an entry's own observations change nothing, its class's do. */
    online_loss_prior unknown = online_loss_prior_of(0, 0, 0);
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

/* The prior of a class never measured is as wide as its bounds were made: the first observation
 * that is as expected moves the bound by little, where the usual prior would nearly double it. */
TEST(prior_follows_the_widening)
{
    const double widening = 2.0;
    const online_loss_entry nothing = {0, 0};
    for (int usual = 0; usual < 2; usual++) {
        online_loss_prior prior = online_loss_prior_of(0.26, 0.20, usual ? 0 : widening);
        online_loss_class of_class;
        online_loss_entry entry = {0, 0};
        online_loss_class_init(&of_class, &prior);
        double before = online_loss_expect(&prior, &of_class, &nothing).upper;
        assert_true(usual ? before > 1.5 * widening : fabs(before / widening - 1) < 0.1);
        double last = before;
        for (int i = 0; i < 20; i++) {
            (void)online_loss_observe(&prior, &of_class, &entry, 1.0, 1);
            double upper = online_loss_expect(&prior, &of_class, &nothing).upper;
            assert_true(upper < last);
            last = upper;
            entry = nothing;
        }
        assert_true(last < 1.4);
    }
}

TEST(one_question_moves_little)
{
    online_loss_prior prior = online_loss_prior_of(0.26, 0.20, 0);
    online_loss_class of_class;
    online_loss_entry entry = {0, 0};
    online_loss_class_init(&of_class, &prior);
    online_loss_class_resume(&of_class, &prior, 1.0, 50, 50);
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
    assert_true(weight > 45 && weight < 55); /* as much as a class remembers */
}

TEST(class_is_learned_and_resumed)
{
    online_loss_prior prior = online_loss_prior_of(0.53, 0.75, 0);
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
    online_loss_prior prior = online_loss_prior_of(0.26, 0.20, 0);
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
