/* SPDX-License-Identifier: Apache-2.0 */
/*
 * isotonic.c - see isotonic.h. Pool adjacent violators: a block of equal fit swallows the one
 * before it as long as that one is not lower. Blocks are told by their equal values, so the fit
 * needs no memory of its own; a few dozen points are what it is made for.
 * Thread rule: any thread.
 */
#include "estimator/quality/isotonic.h"

#include <assert.h>
#include <stdlib.h>

void isotonic_fit(isotonic_point *points, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        double sum = points[i].y * points[i].weight, mass = points[i].weight, mean = points[i].y;
        uint32_t first = i;
        while (first > 0 && points[first - 1].y >= mean) {
            double before = points[first - 1].y;
            while (first > 0 && !(points[first - 1].y < before)) {
                first--;
                sum += before * points[first].weight;
                mass += points[first].weight;
            }
            mean = sum / mass;
        }
        for (uint32_t j = first; j <= i; j++)
            points[j].y = mean;
    }
}

static int isotonic_order(const void *left, const void *right)
{
    double a = ((const isotonic_point *)left)->x, b = ((const isotonic_point *)right)->x;
    return (a > b) - (a < b);
}

/* Weighted means of y where x is equal. */
static uint32_t isotonic_merge(isotonic_point *points, uint32_t count)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < count; i++) {
        isotonic_point *last = &points[kept > 0 ? kept - 1 : 0];
        if (kept == 0 || last->x < points[i].x) {
            points[kept++] = points[i];
            continue;
        }
        double weight = last->weight + points[i].weight;
        last->y = (last->y * last->weight + points[i].y * points[i].weight) / weight;
        if (points[i].upper > last->upper) last->upper = points[i].upper;
        last->weight = weight;
    }
    return kept;
}

uint32_t isotonic_map_fit(isotonic_point *points, uint32_t count)
{
    if (count == 0) return 0;
    qsort(points, count, sizeof *points, isotonic_order);
    count = isotonic_merge(points, count);
    isotonic_fit(points, count);
    double upper = 0.0;
    for (uint32_t i = 0; i < count; i++) {
        if (points[i].upper > upper) upper = points[i].upper;
        if (points[i].y > upper) upper = points[i].y;
        points[i].upper = upper;
    }
    return count;
}

bool isotonic_map_at(const isotonic_point *steps, uint32_t count, double x, double *y_out,
                     double *upper_out)
{
    double x0 = 0.0, y0 = 0.0;
    assert(x >= 0.0);
    for (uint32_t i = 0; i < count; i++) {
        if (x <= steps[i].x) {
            double width = steps[i].x - x0;
            *y_out = width > 0.0 ? y0 + (steps[i].y - y0) * (x - x0) / width : steps[i].y;
            *upper_out = steps[i].upper;
            return true;
        }
        x0 = steps[i].x;
        y0 = steps[i].y;
    }
    return false;
}
