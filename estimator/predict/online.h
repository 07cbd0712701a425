/* SPDX-License-Identifier: Apache-2.0 */
/*
 * online.h - what a running store learns about seconds: of its devices, its codecs, and how far its
 * predictions were off (docs/STORE.md, Learning).
 *
 * Thread rule: pure arithmetic over the caller's memory; no locks, no allocation, no clock.
 */
#ifndef ESTIMATOR_ONLINE_H
#define ESTIMATOR_ONLINE_H

#include "offer.h"

/* ---- seconds of one device in one direction ---- */

/* What a device is asked for, and what it has to do first. */
typedef struct online_work {
    double bytes;
    double ahead_bytes;   /* of the same direction: first come, first served */
    double other_bytes;   /* of the other direction, in flight on the device */
    double since_seconds; /* for so long the first of these had been under way */
} online_work;

#define ONLINE_TERMS 3

/* Figures that were learned stay within so many times of the curve, and so small a part of it.
 * Fixed seconds and those of the other direction have no lower bound: less of them refuses nothing.
 */
#define ONLINE_FACTOR_MOST 4.0
#define ONLINE_SURE        24u       /* observations until a figure counts */
#define ONLINE_LOAD_BYTES  1048576.0 /* the request that a device's figures are compared at */

/*
 * seconds = value[0] + value[1] (bytes + ahead) + value[2] other, followed by a Kalman filter with
 * random-walk coefficients: the relative error of each observation is shared out over the terms by
 * how uncertain each is. A single hiccup is cut off at a few spreads.
 */
typedef struct online_device {
    double curve[ONLINE_TERMS]; /* the stored curve's */
    double used[ONLINE_TERMS];  /* what decisions are made on */
    double value[ONLINE_TERMS]; /* as achieved lately */
    double scale[ONLINE_TERMS]; /* the unit of each term's uncertainty */
    double covariance[ONLINE_TERMS][ONLINE_TERMS];
    double noise;  /* variance of one observation's relative error */
    double slower; /* sums of what speaks for a drift from `used`, in spreads */
    double faster;
    uint32_t settling; /* observations until a re-opened curve is taken up */
    uint64_t observations;
    uint64_t reopened; /* how often that happened */
    uint32_t fast_run; /* observations in a row that were far below `used` */
    double fast_worst; /* the largest of them, over what `used` says */
    uint32_t
        bound_run[ONLINE_TERMS]; /* observations that left a term at a bound, less the others */
    uint64_t rebased;            /* terms of the curve replaced by what is achieved, ever */
} online_device;

/* request_seconds >= 0, bytes_per_s > 0. */
void online_device_init(online_device *device, double request_seconds, double bytes_per_s);

/* Goes on from figures that were learned before, as far as they are within the bounds of the curve:
 * value and used. */
void online_device_resume(online_device *device, double request_seconds, double bytes_per_s,
                          uint64_t observations);

double online_device_predict(const online_device *device, const online_work *work);

/*
 * Takes one achieved time, above 0. True when `used` has been changed to new figures: the device
 * has drifted and they have settled, or requests with nothing before them took far less time than
 * `used` says, several times in a row. The bounds hold after each call; figures that stand at
 * one of them for long, or that are proved to lie below the lower one, become the curve.
 */
bool online_device_observe(online_device *device, const online_work *work, double seconds);

/* Its present figures as the affine model that options are costed with. */
kvt_affine online_device_affine(const online_device *device);

/* Takes the figures towards the curve: `kept` in [0, 1] of their distance stays. */
void online_device_decay(online_device *device, double kept);

/* Largest relative difference of the present figures from the stored curve, at so many bytes. */
double online_device_drift(const online_device *device, double bytes);

/* ---- averages ---- */

/* An average that forgets, and cuts single hiccups off. */
typedef struct online_average {
    double value;
    double deviation; /* mean absolute one */
    uint64_t observations;
} online_average;

/* The first observation replaces the value; later ones move it by `share`, or by more while there
 * were few. */
void online_average_observe(online_average *average, double observed, double share);

/* ---- factors on a curve ---- */

/* Achieved over a measured curve's seconds. The average is of the curve as this life has re-based
 * it, and stays within the bounds. */
typedef struct online_factor {
    online_average average;
    double base; /* the re-based curve over the measured one */
    uint32_t fast_run;
    double fast_worst;
    uint32_t bound_run;
    uint64_t rebased;
} online_factor;

void online_factor_init(online_factor *factor);

/* Goes on from a factor that was learned before, as far as it is within the bounds. */
void online_factor_resume(online_factor *factor, double value, uint64_t observations);

/* Takes achieved over the measured curve's seconds, above 0. */
void online_factor_observe(online_factor *factor, double achieved, double share);

/* As online_device_decay. */
void online_factor_decay(online_factor *factor, double kept);

/* Of the measured curve's seconds. */
static inline double online_factor_value(const online_factor *factor)
{
    return factor->base * factor->average.value;
}

/* ---- how far predictions were off ---- */

#define ONLINE_ERROR_BINS 96u

/* |predicted - achieved| / achieved in bins of equal ratio; old ones are half forgotten. */
typedef struct online_error {
    float bins[ONLINE_ERROR_BINS];
    float total;
    uint64_t observations;
    double predicted_seconds; /* sums of all */
    double achieved_seconds;
} online_error;

void online_error_observe(online_error *error, double predicted_seconds, double achieved_seconds);

/* The error that so large a share of the observations stay within; 0 without any. */
double online_error_quantile(const online_error *error, double share);

#endif
