/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_estimator_isotonic.c - fits that never fall: known cases, the optimum against a search over
 * a grid, and the map's values, bounds and ends.
 */
#include "cases.h"
#include "dice.h"

#include "estimator/quality/quality.h"

#include <math.h>
#include <stdlib.h>

static void assert_close(double is, double wanted)
{
    if (!(fabs(is - wanted) <= 1e-12)) fail_msg("%.17g, not %.17g", is, wanted);
}

static void assert_fit(const double *y, const double *weights, const double *wanted, uint32_t count)
{
    isotonic_point points[8];
    assert_true(count <= 8);
    for (uint32_t i = 0; i < count; i++)
        points[i] = (isotonic_point){.x = i, .y = y[i], .weight = weights ? weights[i] : 1.0};
    isotonic_fit(points, count);
    for (uint32_t i = 0; i < count; i++)
        assert_close(points[i].y, wanted[i]);
}

TEST(known_fits)
{
    assert_fit((double[]){1, 2, 3}, NULL, (double[]){1, 2, 3}, 3);
    assert_fit((double[]){3, 2, 1}, NULL, (double[]){2, 2, 2}, 3);
    assert_fit((double[]){1, 3, 2, 4}, NULL, (double[]){1, 2.5, 2.5, 4}, 4);
    /* The last one pulls three blocks down together. */
    assert_fit((double[]){1, 4, 5, 6, 1}, NULL, (double[]){1, 4, 4, 4, 4}, 5);
    assert_fit((double[]){4, 1}, (double[]){3, 1}, (double[]){3.25, 3.25}, 2);
    /* Equal neighbours stay one block whatever comes. */
    assert_fit((double[]){2, 2, 2, 0}, NULL, (double[]){1.5, 1.5, 1.5, 1.5}, 4);
    isotonic_fit(NULL, 0);
}

/* Squared error of the best of all sequences on the grid 0, 1/12 .. 1 that do not fall. */
static double search(const isotonic_point *points, uint32_t count, int from)
{
    double best = (double)INFINITY;
    if (count == 0) return 0.0;
    for (int level = from; level <= 12; level++) {
        double difference = points[0].y - level / 12.0;
        double error =
            points[0].weight * difference * difference + search(points + 1, count - 1, level);
        if (error < best) best = error;
    }
    return best;
}

TEST(no_sequence_fits_better)
{
    uint64_t seed = 7;
    for (int round = 0; round < 200; round++) {
        isotonic_point points[5], fitted[5];
        double error = 0.0;
        for (int i = 0; i < 5; i++)
            fitted[i] = points[i] =
                (isotonic_point){.x = i,
                                 .y = ((uint32_t)(dice_next(&seed) >> 33) % 13) / 12.0,
                                 .weight = 1.0 + (uint32_t)(dice_next(&seed) >> 33) % 3};
        isotonic_fit(fitted, 5);
        for (int i = 0; i < 5; i++) {
            assert_true(i == 0 || fitted[i].y >= fitted[i - 1].y);
            error += points[i].weight * (fitted[i].y - points[i].y) * (fitted[i].y - points[i].y);
        }
        assert_true(error <= search(points, 5, 0) + 1e-12);
    }
}

TEST(maps_bound_what_lies_between)
{
    isotonic_point points[] = {{0.3, 0.20, 0.25, 1},
                               {0.1, 0.05, 0.30, 1},
                               {0.2, 0.04, 0.06, 1},
                               {0.3, 0.10, 0.35, 3},
                               {0.6, 0.50, 0.60, 1}};
    uint32_t count = isotonic_map_fit(points, 5);
    assert_int_equal(count, 4);
    double y, upper;
    assert_true(isotonic_map_at(points, count, 0.0, &y, &upper));
    assert_close(y, 0.0);
    assert_close(upper, 0.30); /* of the first step: wide, and that holds for all after it */
    assert_true(isotonic_map_at(points, count, 0.15, &y, &upper));
    assert_close(y, 0.045); /* 0.05 and 0.04 are pooled */
    assert_close(upper, 0.30);
    assert_true(isotonic_map_at(points, count, 0.3, &y, &upper));
    assert_close(y, 0.125); /* equal x: weighted mean */
    assert_close(upper, 0.35);
    assert_true(isotonic_map_at(points, count, 0.45, &y, &upper));
    assert_close(y, 0.3125);
    assert_close(upper, 0.60);
    assert_false(isotonic_map_at(points, count, 0.61, &y, &upper));
    assert_int_equal(isotonic_map_fit(points, 0), 0);
    assert_false(isotonic_map_at(points, 0, 0.0, &y, &upper));
}
