/* SPDX-License-Identifier: Apache-2.0 */
/*
 * online.c - see online.h.
 *
 * The filter works on relative figures: ln (achieved / predicted), and each term's share of the
 * prediction. So a large load counts as much as a small one, spreads are shares, and what is
 * followed is the middle of a skewed spread. The covariance is of the coefficients over their
 * scales.
 *
 * Thread rule: as online.h.
 */
#include "estimator/online.h"

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
    assert(request_seconds >= 0 && bytes_per_s > 0);
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

void online_device_resume(online_device *device, double request_seconds, double bytes_per_s,
                          uint64_t observations)
{
    device->value[0] = request_seconds;
    device->value[1] = 1.0 / bytes_per_s;
    memcpy(device->used, device->value, sizeof device->used);
    device->observations = observations;
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
    double counted = device_cut(error, DEVICE_CUT * sqrt(variance));
    for (int i = 0; i < ONLINE_TERMS; i++) {
        double least = i == 1 ? 1e-3 * device->curve[i] : 0.0;
        double value = device->value[i] + device->scale[i] * toward[i] / variance * counted;
        device->value[i] = fmax(value, least);
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

/* The end of settling. What turns out close to the old figures was noise. */
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

bool online_device_observe(online_device *device, const online_work *work, double seconds)
{
    double terms[ONLINE_TERMS], share[ONLINE_TERMS];
    assert(seconds > 0);
    device_terms(device, work, terms);
    if (device->observations == 0) {
        /* The fixed seconds are mostly the host's: threads that are woken. The curve knows little
         * of them, the first observation their order. */
        device->scale[0] = fmax(device->scale[0], DEVICE_FIXED_SHARE * seconds);
    }
    double predicted = fmax(device_seconds(device->value, terms), 1e-9);
    for (int i = 0; i < ONLINE_TERMS; i++)
        share[i] = terms[i] * device->scale[i] / predicted;
    device_filter(device, share, log(seconds / predicted));
    device->observations++;
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
