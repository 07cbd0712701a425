/* SPDX-License-Identifier: Apache-2.0 */
/*
 * index_sketch.c - the principal axes of an index's centroids, and the centroids in them.
 *
 *     covariance C of at most SAMPLE centroids -> Q = random; Q = orthonormal(C Q), ROUNDS times
 *     -> the rows of Q as fp16 -> a centroid's parts in them, less the centre's, in 16 steps
 *
 * Behind the axes comes a cluster's scatter less 1, in 16 steps as well. Sums run in one order, so
 * the sketches are the same on every compiler. Re-entrant.
 */
#include "index_sketch.h"

#include "base/number/number.h"
#include "index_lane.h"
#include "sparse_kernels.h"

#include <math.h>
#include <stdlib.h>

enum { SKETCH_SAMPLE = 2048, SKETCH_ROUNDS = 6 };

#define SKETCH_REACH 3.0 /* deviations from an axis's 0 to its outermost code */

static void sketch_centre(const float *means, sparse_index *index)
{
    double centre[SPARSE_HEAD_DIM_MAX] = {0.0};
    for (uint32_t c = 0; c < index->clusters; c++)
        for (uint32_t d = 0; d < index->head_dim; d++)
            centre[d] += (double)means[(size_t)c * index->head_dim + d] / index->clusters;
    for (uint32_t d = 0; d < index->head_dim; d++)
        index->centre[d] = (float)centre[d];
}

/* In units of the largest variance, so that no product overflows. */
static void sketch_covariance(const float *means, const sparse_index *index, double *covariance)
{
    const uint32_t dim = index->head_dim, stride = index->clusters / SKETCH_SAMPLE + 1;
    double off[SPARSE_HEAD_DIM_MAX], most = 0.0;
    for (uint32_t c = 0; c < index->clusters; c += stride) {
        for (uint32_t d = 0; d < dim; d++)
            off[d] = (double)means[(size_t)c * dim + d] - (double)index->centre[d];
        for (uint32_t i = 0; i < dim; i++)
            for (uint32_t j = 0; j < dim; j++)
                covariance[(size_t)i * dim + j] += off[i] * off[j];
    }
    for (uint32_t i = 0; i < dim; i++)
        most = fmax(most, covariance[(size_t)i * dim + i]);
    for (uint32_t i = 0; i < dim * dim; i++)
        covariance[i] *= most > 0.0 ? 1.0 / most : 0.0;
}

/* Each row less its parts in those before it, and of length 1; 0 where nothing is left. */
static void sketch_orthonormal(double *rows, uint32_t count, uint32_t dim)
{
    for (uint32_t i = 0; i < count; i++) {
        double *row = rows + (size_t)i * dim, square = 0.0;
        for (uint32_t j = 0; j < i; j++) {
            const double *other = rows + (size_t)j * dim;
            double dot = 0.0;
            for (uint32_t d = 0; d < dim; d++)
                dot += row[d] * other[d];
            for (uint32_t d = 0; d < dim; d++)
                row[d] -= dot * other[d];
        }
        for (uint32_t d = 0; d < dim; d++)
            square += row[d] * row[d];
        const double inverse = square > 1e-60 ? 1.0 / sqrt(square) : 0.0;
        for (uint32_t d = 0; d < dim; d++)
            row[d] *= inverse;
    }
}

static void sketch_product(const double *rows, uint32_t count, const double *covariance,
                           uint32_t dim, double *out)
{
    memset(out, 0, (size_t)count * dim * sizeof *out);
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t j = 0; j < dim; j++)
            for (uint32_t d = 0; d < dim; d++)
                out[(size_t)i * dim + d] +=
                    rows[(size_t)i * dim + j] * covariance[(size_t)j * dim + d];
}

static kvt_status sketch_axes(const float *means, sparse_index *index)
{
    const uint32_t dim = index->head_dim, count = index->axes - 1;
    const size_t area = (size_t)count * dim;
    double *covariance = calloc((size_t)dim * dim + 2 * area, sizeof *covariance);
    if (covariance == NULL) return KVT_E_MEMORY;
    double *rows = covariance + (size_t)dim * dim, *product = rows + area;
    sketch_covariance(means, index, covariance);
    for (uint32_t i = 0; i < area; i++)
        rows[i] = (double)(number_mix(i + 1) >> 40) / (1u << 23) - 1.0;
    for (uint32_t round = 0; round < SKETCH_ROUNDS; round++) {
        sketch_product(rows, count, covariance, dim, product);
        memcpy(rows, product, area * sizeof *rows);
        sketch_orthonormal(rows, count, dim);
    }
    for (uint32_t i = 0; i < area; i++)
        index->axis[i] = half_from_float((float)rows[i]);
    free(covariance);
    return KVT_OK;
}

/* Parts of a cluster in the axes. */
static void sketch_parts(const float *means, const sparse_index *index, uint32_t c, float *parts)
{
    const uint32_t dim = index->head_dim;
    float off[SPARSE_HEAD_DIM_MAX];
    for (uint32_t d = 0; d < dim; d++)
        off[d] = means[(size_t)c * dim + d] - index->centre[d];
    sparse_kernels_in_use()->dots(index->axis, dim * sizeof *index->axis, index->axes - 1,
                                  KVT_DTYPE_FP16, off, dim, 1.0f, parts);
    parts[index->axes - 1] = index->scatter[c] - 1.0f;
}

/* So many steps that the outermost code is at the largest part, or at SKETCH_REACH deviations. */
static void sketch_steps(const float *means, sparse_index *index)
{
    float parts[SPARSE_HEAD_DIM_MAX], most[SPARSE_HEAD_DIM_MAX] = {0.0f};
    double squares[SPARSE_HEAD_DIM_MAX] = {0.0};
    for (uint32_t c = 0; c < index->clusters; c++) {
        sketch_parts(means, index, c, parts);
        for (uint32_t i = 0; i < index->axes; i++) {
            most[i] = fmaxf(most[i], fabsf(parts[i]));
            squares[i] += (double)parts[i] * (double)parts[i];
        }
    }
    for (uint32_t i = 0; i < index->axes; i++) {
        const double reach =
            fmin((double)most[i], SKETCH_REACH * sqrt(squares[i] / index->clusters));
        index->axis_step[i] =
            reach >= (double)INDEX_LEAST ? (float)(reach / (double)SPARSE_SKETCH_MIDDLE) : 0.0f;
    }
}

static void sketch_put(const float *parts, uint32_t lane, sparse_index *index)
{
    uint8_t *block = index->sketch +
                     (size_t)(lane / SPARSE_BLOCK) * index->axes / 2 * SPARSE_BLOCK +
                     (size_t)(lane % SPARSE_BLOCK) * 2;
    for (uint32_t i = 0; i < index->axes; i++) {
        const float step = index->axis_step[i];
        const float code = step > 0.0f ? parts[i] / step + SPARSE_SKETCH_MIDDLE : 0.0f;
        const uint8_t own = (uint8_t)half_round_integer(fminf(fmaxf(code, 0.0f), 15.0f));
        block[(size_t)(i / 4) * 2 * SPARSE_BLOCK + i % 2] |= (uint8_t)(own << (i % 4 < 2 ? 0 : 4));
    }
}

kvt_status index_sketch_write(const float *means, sparse_index *index)
{
    float parts[SPARSE_HEAD_DIM_MAX];
    sketch_centre(means, index);
    const kvt_status status = sketch_axes(means, index);
    if (status != KVT_OK) return status;
    sketch_steps(means, index);
    for (uint32_t lane = 0; lane < index->lanes; lane++) { /* the padding is like the last one */
        if (lane < index->clusters) sketch_parts(means, index, lane, parts);
        sketch_put(parts, lane, index);
    }
    return KVT_OK;
}
