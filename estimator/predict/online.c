/* SPDX-License-Identifier: Apache-2.0 */
/*
 * online.c - what a running store learns about seconds.
 *
 * The filter works on relative figures: ln (achieved / predicted), and each term's share of the
 * prediction. So a large load counts as much as a small one, spreads are shares, and what is
 * followed is the middle of a skewed spread. The covariance is of the coefficients over their
 * scales.
 *
 * Thread rule: as predict.h.
 */
#include "estimator/predict/predict.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#define DEVICE_WALK          4e-5 /* variance that a coefficient gains per observation */
#define DEVICE_FIXED_LEAST   50e-6
#define DEVICE_FIXED_SHARE   0.2 /* of the first observation, as the fixed seconds' scale */
#define DEVICE_CUT           2.5 /* spreads; an error beyond counts as this much */
#define DEVICE_NOISE_SHARE   (1.0 / 32)
#define DEVICE_NOISE_LEAST   1e-4
#define DEVICE_NOISE_MOST    4.0
#define DEVICE_DRIFT_LEAST   0.1 /* relative; less is not worth a new curve */
#define DEVICE_DRIFT_SUM     8.0
#define DEVICE_SETTLE        24u
#define DEVICE_REQUEST_BYTES 524288.0 /* mostly in one request */
#define DEVICE_SHARE_MOST    1e4      /* of a prediction; the covariance keeps its precision */

/* A device or a codec cannot be faster than it is, but anything can be slower for a while: a few
 * achievements in a row far below a figure prove it wrong, and it takes many to raise a curve. */
#define FAST_SHARE   0.4 /* of what a figure says */
#define FAST_SPREADS 1.5
#define FAST_RUN     4u
#define FAST_TOLD    (1.0 / 32) /* of the figure: a term with less of it is not told anything */
#define BOUND_RUN    32u

/* ---- what can be ---- */

double online_timed(double seconds)
{
    return fmin(fmax(seconds, ONLINE_SECONDS_LEAST), ONLINE_SECONDS_MOST);
}

double online_rate(double bytes_per_s)
{
    return fmin(fmax(bytes_per_s, ONLINE_BYTES_PER_S_LEAST), ONLINE_BYTES_PER_S_MOST);
}

kvt_affine online_figures(kvt_affine figures)
{
    figures.request_seconds = fmin(fmax(figures.request_seconds, 0.0), ONLINE_SECONDS_MOST);
    figures.bytes_per_s = online_rate(figures.bytes_per_s);
    return figures;
}

bool online_figures_are_sound(const kvt_affine *figures)
{
    /* Inverses of inverses are off by a bit or two. */
    return figures->request_seconds >= 0 && figures->request_seconds <= ONLINE_SECONDS_MOST &&
           figures->bytes_per_s >= ONLINE_BYTES_PER_S_LEAST * (1.0 - 1e-9) &&
           figures->bytes_per_s <= ONLINE_BYTES_PER_S_MOST * (1.0 + 1e-9);
}

/* ---- seconds of one device ---- */

static const double device_spread[ONLINE_TERMS] = {1.0, 0.5, 0.5};

static void device_widen(online_device *device)
{
    memset(device->covariance, 0, sizeof device->covariance);
    for (int i = 0; i < ONLINE_TERMS; i++)
        device->covariance[i][i] = device_spread[i] * device_spread[i];
}

void online_device_init(online_device *device, double request_seconds, double bytes_per_s)
{
    const kvt_affine figures = {.request_seconds = request_seconds, .bytes_per_s = bytes_per_s};
    assert(online_figures_are_sound(&figures));
    (void)figures;
    memset(device, 0, sizeof *device);
    device->curve[0] = request_seconds;
    device->curve[1] = 1.0 / bytes_per_s;
    device->curve[2] = 0.5 / bytes_per_s; /* between independent and shared directions */
    memcpy(device->used, device->curve, sizeof device->used);
    memcpy(device->value, device->curve, sizeof device->value);
    device->scale[0] = fmax(request_seconds, DEVICE_FIXED_LEAST);
    device->scale[1] = device->scale[2] = device->curve[1];
    device->noise = 0.04;
    device_widen(device);
}

static bool is_at_bound(double factor)
{
    return factor > ONLINE_FACTOR_MOST * (1.0 - 1e-9) || factor * ONLINE_FACTOR_MOST < 1.0 + 1e-9;
}

/* The least that a term may come to; the seconds of the other direction stand at half of a
 * direction's own. */
static double device_least(int term)
{
    return term == 0 ? 0.0 : (term == 1 ? 1.0 : 0.5) / ONLINE_BYTES_PER_S_MOST;
}

/* The most of it. */
static double device_most(int term)
{
    return term == 0 ? ONLINE_SECONDS_MOST : 1.0 / ONLINE_BYTES_PER_S_LEAST;
}

/* Brings a term back within the bounds of the curve, and of what can be. The curve knows little of
 * fixed seconds. */
static double device_bound(const online_device *device, int term, double value)
{
    double curve = device->curve[term];
    double most = ONLINE_FACTOR_MOST * (term == 0 ? fmax(curve, DEVICE_FIXED_LEAST) : curve);
    double least = term == 1 ? curve / ONLINE_FACTOR_MOST : 0.0;
    value = fmin(fmax(value, least), most);
    return fmin(fmax(value, term == 1 ? device_least(term) : 0.0), device_most(term));
}

void online_device_resume(online_device *device, double request_seconds, double bytes_per_s,
                          uint64_t observations)
{
    assert(request_seconds >= 0 && bytes_per_s > 0);
    device->value[0] = request_seconds;
    device->value[1] = 1.0 / bytes_per_s;
    for (int i = 0; i < ONLINE_TERMS; i++)
        device->value[i] = device_bound(device, i, device->value[i]);
    memcpy(device->used, device->value, sizeof device->used);
    device->observations = observations;
}

void online_device_decay(online_device *device, double kept)
{
    assert(kept >= 0 && kept <= 1);
    for (int i = 0; i < ONLINE_TERMS; i++) {
        device->value[i] = device->curve[i] + kept * (device->value[i] - device->curve[i]);
        device->used[i] = device->curve[i] + kept * (device->used[i] - device->curve[i]);
    }
}

/* Of what is ahead, the first request has been under way for a while: so much of it is done. */
static void device_terms(const online_device *device, const online_work *work,
                         double terms[ONLINE_TERMS])
{
    double done = fmin(work->since_seconds / device->value[1], DEVICE_REQUEST_BYTES);
    double ahead = fmax(work->ahead_bytes - done, 0.0);
    double left = fmax(done - work->ahead_bytes, 0.0);
    terms[0] = 1.0;
    terms[1] = work->bytes + ahead;
    terms[2] = fmax(work->other_bytes - left, 0.0);
}

static double device_seconds(const double figures[ONLINE_TERMS], const double terms[ONLINE_TERMS])
{
    return figures[0] * terms[0] + figures[1] * terms[1] + figures[2] * terms[2];
}

double online_device_predict(const online_device *device, const online_work *work)
{
    double terms[ONLINE_TERMS];
    device_terms(device, work, terms);
    return device_seconds(device->value, terms);
}

static double device_cut(double value, double bound)
{
    return fmin(fmax(value, -bound), bound);
}

/* One step of the filter. share[i] is what term i at its scale adds to the prediction, relatively.
 */
static void device_filter(online_device *device, const double share[ONLINE_TERMS], double error)
{
    double toward[ONLINE_TERMS];
    double variance = device->noise;
    for (int i = 0; i < ONLINE_TERMS; i++) {
        toward[i] = 0;
        for (int j = 0; j < ONLINE_TERMS; j++)
            toward[i] += device->covariance[i][j] * share[j];
        variance += share[i] * toward[i];
    }
    assert(variance > 0);
    double counted = device_cut(error, DEVICE_CUT * sqrt(variance));
    for (int i = 0; i < ONLINE_TERMS; i++) {
        double value = device->value[i] + device->scale[i] * toward[i] / variance * counted;
        device->value[i] = fmax(value, 0.0);
    }
    for (int i = 0; i < ONLINE_TERMS; i++) {
        for (int j = 0; j < ONLINE_TERMS; j++)
            device->covariance[i][j] -= toward[i] * toward[j] / variance;
    }
    for (int i = 0; i < ONLINE_TERMS; i++) {
        double most = device_spread[i] * device_spread[i];
        if (device->covariance[i][i] + DEVICE_WALK < most) device->covariance[i][i] += DEVICE_WALK;
    }
    double noise = device->noise + DEVICE_NOISE_SHARE * (counted * counted - device->noise);
    assert(isfinite(noise));
    device->noise = fmin(fmax(noise, DEVICE_NOISE_LEAST), DEVICE_NOISE_MOST);
}

/* Page's cumulative sums of how far observations lie from what decisions are made on, beyond a
 * tenth and half a spread. */
static bool device_has_drifted(online_device *device, const double terms[ONLINE_TERMS],
                               double seconds)
{
    double spread = fmax(sqrt(device->noise), 0.02);
    double off = log(seconds / fmax(device_seconds(device->used, terms), 1e-12)) / spread;
    double slack = 0.5 + DEVICE_DRIFT_LEAST / spread;
    device->slower = fmax(0, device->slower + device_cut(off, slack + 2.0) - slack);
    device->faster = fmax(0, device->faster + device_cut(-off, slack + 2.0) - slack);
    return device->slower > DEVICE_DRIFT_SUM || device->faster > DEVICE_DRIFT_SUM;
}

/* The end of settling. New figures close to the old ones mean that the drift was noise. */
static bool device_take_up(online_device *device, const double terms[ONLINE_TERMS])
{
    double before = fmax(device_seconds(device->used, terms), 1e-12);
    double off = fabs(device_seconds(device->value, terms) / before - 1.0);
    device->slower = device->faster = 0;
    if (off < DEVICE_DRIFT_LEAST) return false;
    memcpy(device->used, device->value, sizeof device->used);
    device->reopened++;
    return true;
}

/* A term's present figure becomes the curve's. */
static void device_rebase(online_device *device, int term)
{
    device->curve[term] = device->value[term];
    device->scale[term] = fmax(device->curve[term], term == 0 ? DEVICE_FIXED_LEAST : 0.0);
    device->bound_run[term] = 0;
    device->rebased++;
}

/* Requests with nothing before them, far faster than decisions count on, several times in a row:
 * the slowest of these is what the device can do at least. */
static bool device_is_faster(online_device *device, const online_work *work,
                             const double terms[ONLINE_TERMS], double seconds)
{
    if (work->ahead_bytes > 0 || work->other_bytes > 0) return false;
    double share = seconds / fmax(device_seconds(device->used, terms), 1e-12);
    if (share > fmin(FAST_SHARE, exp(-FAST_SPREADS * sqrt(device->noise)))) {
        device->fast_run = 0;
        return false;
    }
    device->fast_worst = device->fast_run == 0 ? share : fmax(device->fast_worst, share);
    if (++device->fast_run < FAST_RUN) return false;
    /* A request with next to no bytes says nothing of the seconds of bytes. */
    double told = FAST_TOLD * device_seconds(device->used, terms);
    for (int i = 0; i < ONLINE_TERMS; i++) {
        int from = i == 0 ? 0 : 1; /* the other direction goes with the own one */
        double faster = device->used[i] * device->fast_worst;
        bool is_told = device->used[from] * terms[from] >= told;
        device->value[i] = is_told ? fmax(faster, device_least(i)) : device->used[i];
    }
    device->fast_run = 0;
    device->slower = device->faster = 0;
    device->settling = 0;
    if (device->observations < ONLINE_SURE) device->observations = ONLINE_SURE;
    for (int i = 0; i < ONLINE_TERMS; i++)
        if (device_bound(device, i, device->value[i]) > device->value[i]) device_rebase(device, i);
    memcpy(device->used, device->value, sizeof device->used);
    device_widen(device);
    device->reopened++;
    return true;
}

/* The bounds hold; a term that stays at one of them is the curve's from then on. */
static void device_keep_bounds(online_device *device, const double terms[ONLINE_TERMS])
{
    for (int i = 0; i < ONLINE_TERMS; i++) {
        double within = device_bound(device, i, device->value[i]);
        bool bound = fabs(within - device->value[i]) > 0.0;
        uint32_t *run = &device->bound_run[i];
        device->value[i] = within;
        if (bound && terms[i] > 0.0)
            ++*run;
        else if (!bound && *run > 0)
            --*run;
        if (device->bound_run[i] >= BOUND_RUN) device_rebase(device, i);
    }
}

bool online_device_observe(online_device *device, const online_work *work, double seconds)
{
    double terms[ONLINE_TERMS], share[ONLINE_TERMS];
    assert(seconds >= ONLINE_SECONDS_LEAST && seconds <= ONLINE_SECONDS_MOST);
    device_terms(device, work, terms);
    if (device->observations == 0) {
        /* The fixed seconds are mostly the host's: threads that are woken. The curve knows little
         * of them, the first observation their order. */
        device->scale[0] = fmax(device->scale[0], DEVICE_FIXED_SHARE * seconds);
    }
    double predicted = fmax(device_seconds(device->value, terms), 1e-9);
    for (int i = 0; i < ONLINE_TERMS; i++)
        share[i] = fmin(terms[i] * device->scale[i] / predicted, DEVICE_SHARE_MOST);
    device_filter(device, share, log(seconds / predicted));
    device->observations++;
    device_keep_bounds(device, terms);
    if (device_is_faster(device, work, terms, seconds)) return true;
    if (device->settling != 0) {
        return --device->settling == 0 && device_take_up(device, terms);
    }
    if (!device_has_drifted(device, terms, seconds)) return false;
    device->settling = DEVICE_SETTLE;
    device_widen(device);
    return false;
}

kvt_affine online_device_affine(const online_device *device)
{
    return (kvt_affine){.request_seconds = device->value[0],
                        .bytes_per_s = 1.0 / device->value[1],
                        .residual = sqrt(device->noise)};
}

double online_device_drift(const online_device *device, double bytes)
{
    double before = device->curve[0] + device->curve[1] * bytes;
    double now = device->value[0] + device->value[1] * bytes;
    return fabs(now / before - 1.0);
}

/* ---- averages ---- */

#define AVERAGE_CUT                                                                                \
    1.5 /* mean absolute deviations: close to the median where the spread is skewed */
#define AVERAGE_FEW 8u

void online_average_observe(online_average *average, double observed, double share)
{
    average->observations++;
    if (average->observations == 1) {
        average->value = observed;
        average->deviation = fabs(observed) * 0.25;
        return;
    }
    double off = observed - average->value;
    double early = 1.0 / (double)average->observations;
    if (early > share) share = early;
    double counted = off;
    if (average->observations > AVERAGE_FEW) {
        counted = device_cut(off, AVERAGE_CUT * average->deviation + 1e-3 * fabs(average->value));
    }
    average->value += share * counted;
    average->deviation += share * (fmin(fabs(off), 4.0 * fabs(counted)) - average->deviation);
}

/* ---- factors on a curve ---- */

void online_factor_init(online_factor *factor)
{
    *factor = (online_factor){.average = {.value = 1.0}, .base = 1.0};
}

static double factor_within(double value)
{
    return fmin(fmax(value, 1.0 / ONLINE_FACTOR_MOST), ONLINE_FACTOR_MOST);
}

void online_factor_resume(online_factor *factor, double value, uint64_t observations)
{
    online_factor_init(factor);
    factor->average.value = factor_within(value);
    factor->average.deviation = 0.25 * factor->average.value;
    factor->average.observations = observations;
}

void online_factor_decay(online_factor *factor, double kept)
{
    factor->average.value = pow(factor->average.value, kept);
}

/* Far faster several times in a row, as device_is_faster. */
static bool factor_is_faster(online_factor *factor, double achieved, double before)
{
    if (achieved > FAST_SHARE * before) {
        factor->fast_run = 0;
        return false;
    }
    factor->fast_worst = factor->fast_run == 0 ? achieved : fmax(factor->fast_worst, achieved);
    if (++factor->fast_run < FAST_RUN) return false;
    factor->fast_run = 0;
    if (factor->average.observations < ONLINE_SURE) factor->average.observations = ONLINE_SURE;
    return true;
}

void online_factor_observe(online_factor *factor, double achieved, double share)
{
    online_average *average = &factor->average;
    assert(achieved > 0 && isfinite(achieved));
    achieved = fmin(fmax(achieved, 1.0 / ONLINE_BASE_MOST), ONLINE_BASE_MOST);
    double over = achieved / factor->base, before = average->value;
    online_average_observe(average, over, share);
    bool faster = factor_is_faster(factor, over, before);
    if (faster) {
        average->value = factor->fast_worst;
        average->deviation = 0.25 * average->value;
    }
    bool bound = is_at_bound(average->value);
    if (bound)
        factor->bound_run++;
    else if (factor->bound_run > 0)
        factor->bound_run--;
    if (!faster) average->value = factor_within(average->value);
    if (!bound || (!faster && factor->bound_run < BOUND_RUN)) return;
    /* The achieved speeds are the curve from now on. */
    factor->base *= average->value;
    average->deviation /= average->value;
    average->value = 1.0;
    factor->bound_run = 0;
    factor->rebased++;
}

/* ---- how far predictions were off ---- */

#define ERROR_LEAST     1e-3 /* the first bin's end */
#define ERROR_PER_TENTH 24.0 /* bins per factor of ten: 10 % wide */
#define ERROR_KEPT      4096.0f

static double error_end(uint32_t bin)
{
    return ERROR_LEAST * pow(10.0, bin / ERROR_PER_TENTH);
}

void online_error_observe(online_error *error, double predicted_seconds, double achieved_seconds)
{
    if (!(achieved_seconds > 0)) return;
    double off = fabs(predicted_seconds - achieved_seconds) / achieved_seconds;
    double at = off > ERROR_LEAST ? ceil(log10(off / ERROR_LEAST) * ERROR_PER_TENTH) : 0.0;
    uint32_t bin = at < ONLINE_ERROR_BINS ? (uint32_t)at : ONLINE_ERROR_BINS - 1;
    error->bins[bin] += 1.0f;
    error->total += 1.0f;
    error->observations++;
    error->predicted_seconds += predicted_seconds;
    error->achieved_seconds += achieved_seconds;
    if (error->total < ERROR_KEPT) return;
    for (uint32_t i = 0; i < ONLINE_ERROR_BINS; i++)
        error->bins[i] *= 0.5f;
    error->total *= 0.5f;
}

double online_error_quantile(const online_error *error, double share)
{
    double wanted = share * (double)error->total, seen = 0;
    for (uint32_t i = 0; i < ONLINE_ERROR_BINS && error->observations > 0; i++) {
        double here = (double)error->bins[i];
        if (here > 0 && seen + here >= wanted) {
            double from = i == 0 ? 0.0 : error_end(i - 1);
            return from + (error_end(i) - from) * fmax(wanted - seen, 0.0) / here;
        }
        seen += here;
    }
    return 0;
}
