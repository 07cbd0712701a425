/* SPDX-License-Identifier: Apache-2.0 */
/*
 * index_lane.h - how a mean is put into a lane of an index, in whole steps. Re-entrant.
 */
#ifndef SPARSE_INDEX_LANE_H
#define SPARSE_INDEX_LANE_H

#include "base/half.h"
#include "index.h"

#define INDEX_LEAST 1e-30f /* a channel whose means are all smaller is zero */

/* inverse: of the steps; 0 of zero ones. */
static inline void index_put_mean(const float *mean, const float *inverse, uint32_t dim,
                                  uint32_t lane, int8_t *means)
{
    for (uint32_t d = 0; d < dim; d++)
        means[(size_t)lane * dim + d] = (int8_t)half_round_integer(mean[d] * inverse[d]);
}

/* The scatter of keys with these mean squared distances from their mean, by channel. unit: that of
 * all clusters, 0 of channels that do not count. */
static inline float index_scatter(const float *squares, const float *unit, uint32_t dim)
{
    float sum = 0.0f;
    uint32_t channels = 0;
    for (uint32_t d = 0; d < dim; d++) {
        if (!(unit[d] > 0.0f)) continue;
        sum += squares[d] / unit[d];
        channels++;
    }
    const float scatter = channels > 0 ? sum / (float)channels : 0.0f;
    if (!(scatter >= 0.0f)) return 0.0f; /* squares that are not finite */
    return scatter < SPARSE_SCATTER_MAX ? scatter : SPARSE_SCATTER_MAX;
}

/* Adds a share of a key's squared distance from a mean, by channel. */
static inline void index_add_squares(float *restrict squares, const float *restrict key,
                                     const float *restrict mean, float share, uint32_t dim)
{
    for (uint32_t d = 0; d < dim; d++)
        squares[d] += share * ((key[d] - mean[d]) * (key[d] - mean[d]));
}

#endif
