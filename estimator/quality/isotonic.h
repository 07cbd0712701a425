/* SPDX-License-Identifier: Apache-2.0 */
/*
 * isotonic.h - fits that never fall: least squares under monotony (pool adjacent violators), and a
 * map made of such a fit with an upper bound. Pure: no I/O, no allocation. Thread rule: any thread.
 */
#ifndef ESTIMATOR_ISOTONIC_H
#define ESTIMATOR_ISOTONIC_H

#include <kvterrace/types.h>

/* One observation on the way in, one step of the map on the way out. */
typedef struct isotonic_point {
    double x;
    double y;     /* in: measured; out: fitted */
    double upper; /* in: upper end of y's interval, at least y; out: bound, at least the fit */
    double weight;
} isotonic_point;

/* Replaces y, in order of the points as they stand, by its least-squares fit among sequences that
 * do not fall. Weights are positive. */
void isotonic_fit(isotonic_point *points, uint32_t count);

/*
 * Turns observations into a map, in place: sorted by x, y fitted, equal x merged. `upper` becomes
 * the largest upper end so far. Returns the steps that are left.
 */
uint32_t isotonic_map_fit(isotonic_point *points, uint32_t count);

/*
 * What the map says at x >= 0: y between steps, from 0 at 0 to the first step; `upper` is that of
 * the next step at or above x, which is a bound if the truth is monotone. False past the last step:
 * nothing was seen there.
 */
bool isotonic_map_at(const isotonic_point *steps, uint32_t count, double x, double *y_out,
                     double *upper_out);

#endif
