/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_fit.c - from measured points to the affine model request_seconds + bytes / bytes_per_s.
 * docs/decisions/0004-affine-device-model.md gives the reasons. Pure; any thread.
 *
 * Two steps, both least squares of relative errors, so that small requests count as much as large:
 *   1. For each request size the time per request at the depth with the best bandwidth, y = bytes /
 *      bandwidth, is fitted by overhead + bytes / bytes_per_s. Only bytes_per_s is kept: a request
 *      set pays the overhead at depth, not one after the other. Where the two largest sizes reach
 *      the same bandwidth, that is bytes_per_s.
 *   2. request_seconds is what then fits the median latencies at depth 1 best.
 */
#include "estimator/profile/profile_internal.h"

#include <math.h>
#include <string.h>

/* Growth of bandwidth from the second largest request size to the largest, fourfold one, below
 * which nothing is left to gain: on an affine device 2 % mean that at most 0.7 % are missing. */
#define FIT_SATURATED 0.02

/* Sums of a relative least-squares line: weights are 1 / y^2. */
typedef struct fit_sums {
    double w, wx, wy, wxx, wxy;
    double best_rate; /* largest x / y seen */
    size_t count;
} fit_sums;

static void fit_add(fit_sums *sums, double x, double y)
{
    double weight = 1.0 / (y * y);
    sums->w += weight;
    sums->wx += weight * x;
    sums->wy += weight * y;
    sums->wxx += weight * x * x;
    sums->wxy += weight * x * y;
    sums->best_rate = fmax(sums->best_rate, x / y);
    sums->count++;
}

/* The best median bandwidth of a size over its depths; 0 for a size that is no point's. */
static double fit_best_bandwidth(const kvt_device_point *points, size_t count, uint8_t kind,
                                 uint32_t request_bytes)
{
    double best = 0.0;
    for (size_t i = 0; i < count; i++) {
        if (points[i].kind != kind || points[i].request_bytes != request_bytes) continue;
        best = fmax(best, points[i].bytes_per_s);
    }
    return best;
}

/*
 * The asymptotic rate. A line through points that are nearly parallel to the axis says little: when
 * it claims more than twice what any request size reached, overhead would be more than half of even
 * the largest request, and the best rate seen is the answer instead.
 */
static double fit_rate(const fit_sums *sums)
{
    double determinant = sums->w * sums->wxx - sums->wx * sums->wx;
    if (sums->count < 2 || determinant <= 0.0) return sums->best_rate;
    double slope = (sums->w * sums->wxy - sums->wx * sums->wy) / determinant;
    double overhead = (sums->wxx * sums->wy - sums->wx * sums->wxy) / determinant;
    if (overhead < 0.0) slope = sums->wxy / sums->wxx;
    if (slope <= 0.0 || 1.0 / slope > 2.0 * sums->best_rate) return sums->best_rate;
    return 1.0 / slope;
}

/*
 * The bandwidth of a device that its two largest request sizes have reached alike: there is nothing
 * to extrapolate then, and the line through smaller requests, which wait for the CPU or for each
 * other instead, would only mislead. 0 when bandwidth still grows.
 */
static double fit_saturated(const kvt_device_point *points, size_t count, uint8_t kind)
{
    uint32_t largest = 0, second = 0;
    for (size_t i = 0; i < count; i++) {
        const uint32_t bytes = points[i].request_bytes;
        if (points[i].kind != kind) continue;
        if (bytes > largest) {
            second = largest;
            largest = bytes;
        } else if (bytes > second && bytes < largest) {
            second = bytes;
        }
    }
    if (second == 0) return 0.0;
    const double last = fit_best_bandwidth(points, count, kind, largest);
    const double before = fit_best_bandwidth(points, count, kind, second);
    return fabs(last / before - 1.0) <= FIT_SATURATED ? fmax(last, before) : 0.0;
}

static bool fit_is_first_of_size(const kvt_device_point *points, size_t index)
{
    for (size_t i = 0; i < index; i++) {
        if (points[i].kind == points[index].kind &&
            points[i].request_bytes == points[index].request_bytes) {
            return false;
        }
    }
    return true;
}

/* A clock may be too coarse to see a small request; its bandwidth still tells its time. */
static double fit_latency(const kvt_device_point *point)
{
    if (point->latency_seconds_p50 > 0.0) return point->latency_seconds_p50;
    return (double)point->request_bytes / point->bytes_per_s;
}

bool profile_fit_points(const kvt_device_point *points, size_t count, uint8_t kind, kvt_affine *out)
{
    fit_sums sums, latency;
    memset(&sums, 0, sizeof sums);
    memset(&latency, 0, sizeof latency);
    memset(out, 0, sizeof *out);
    for (size_t i = 0; i < count; i++) {
        if (points[i].kind != kind) continue;
        double bytes = (double)points[i].request_bytes;
        if (fit_is_first_of_size(points, i)) {
            double best = fit_best_bandwidth(points, count, kind, points[i].request_bytes);
            fit_add(&sums, bytes, bytes / best);
        }
        if (points[i].depth == 1) fit_add(&latency, bytes, fit_latency(&points[i]));
    }
    if (latency.count == 0) return false;
    out->bytes_per_s = fit_saturated(points, count, kind);
    if (out->bytes_per_s == 0.0) out->bytes_per_s = fit_rate(&sums);
    out->request_seconds = fmax(0.0, (latency.wy - latency.wx / out->bytes_per_s) / latency.w);
    for (size_t i = 0; i < count; i++) {
        if (points[i].kind != kind || points[i].depth != 1) continue;
        double measured = fit_latency(&points[i]);
        double predicted =
            out->request_seconds + (double)points[i].request_bytes / out->bytes_per_s;
        out->residual = fmax(out->residual, fabs(predicted - measured) / measured);
    }
    return true;
}
