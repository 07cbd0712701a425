/* SPDX-License-Identifier: Apache-2.0 */
/*
 * basis_metric.c - what an error costs: second moments of queries, Gram matrices, their factors,
 * and errors that are drawn in them. Thread rule: basis_learn.h.
 */
#include "estimator/quality/basis_learner.h"

#include "codecs/drop_number.h"

#include <kvterrace/rope.h>

#include <assert.h>
#include <cblas.h>
#include <math.h>
#include <string.h>

/* LAPACK, as OpenBLAS has it. */
void dpotrf_(const char *triangle, const int *size, double *matrix, const int *stride, int *info);

enum { METRIC_DRAWS = 12 };

/* A share of the mean is added to the diagonal: directions that no query had still count. */
#define METRIC_RIDGE 0.02

/* One query at its position, turned back to position 0. */
static void metric_turn_back(const basis_learner *learner, uint32_t position, const float *query,
                             double *turned)
{
    const transform_shape *shape = &learner->shape;
    const uint32_t half = shape->rotary_dim / 2;
    for (uint32_t i = 0; i < shape->head_dim; i++)
        turned[i] = (double)query[i];
    for (uint32_t j = 0; j < half; j++) {
        const bool apart = shape->pairing == KVT_ROPE_HALVES;
        const uint32_t x = apart ? j : 2 * j;
        const uint32_t y = apart ? j + half : 2 * j + 1;
        const double angle = learner->frequencies[j] * (double)position;
        const double c = cos(angle);
        const double s = sin(angle);
        const double first = turned[x] * c + turned[y] * s;
        turned[y] = turned[y] * c - turned[x] * s;
        turned[x] = first;
    }
}

void basis_learner_queries(basis_learner *learner, uint32_t layer, const float *queries,
                           uint32_t rows, uint32_t heads, uint32_t first_position)
{
    double turned[TRANSFORM_WIDTH_MAX];
    const transform_shape *shape = &learner->shape;
    const int width = (int)shape->head_dim;
    assert(!learner->factored && layer < shape->layers && heads % shape->kv_heads == 0);
    for (uint32_t row = 0; row < rows; row++) {
        for (uint32_t head = 0; head < heads; head++) {
            const float *query = queries + ((uint64_t)row * heads + head) * shape->head_dim;
            double *metric =
                learner_metric_at(learner, layer, KVT_SIDE_K, head / (heads / shape->kv_heads));
            metric_turn_back(learner, first_position + row, query, turned);
            cblas_dsyr(CblasColMajor, CblasLower, width, 1.0, turned, 1, metric, width);
        }
    }
    learner->rows[layer] += rows;
}

void basis_learner_outputs(basis_learner *learner, uint32_t layer, uint32_t kv_head,
                           const double *gram)
{
    const uint64_t size = (uint64_t)learner->shape.head_dim * learner->shape.head_dim;
    assert(!learner->factored && layer < learner->shape.layers && learner->shape.sides == 2);
    memcpy(learner_metric_at(learner, layer, KVT_SIDE_V, kv_head), gram, size * sizeof *gram);
    learner->outputs = true;
}

void basis_learner_weigh(basis_learner *learner, const double *weights)
{
    const size_t count = (size_t)learner->shape.layers * learner->shape.sides;
    assert(!learner->solved);
    memcpy(learner->weights, weights, count * sizeof *weights);
    learner->weighted = true;
}

/* Of one head; plain where nothing was given. */
static kvt_status metric_factor(double *metric, int width, bool given)
{
    int info;
    double trace = 0.0;
    for (int i = 0; i < width; i++) {
        for (int j = 0; !given && j < width; j++)
            metric[i * width + j] = i == j ? 1.0 : 0.0;
        trace += metric[i * width + i];
    }
    if (!(trace > 0.0) || !isfinite(trace)) return KVT_E_CORRUPT;
    for (int i = 0; i < width; i++)
        metric[i * width + i] += METRIC_RIDGE * trace / width;
    dpotrf_("L", &width, metric, &width, &info);
    /* The other triangle is not read again, but for products that take the whole. */
    for (int column = 1; column < width; column++) {
        for (int row = 0; row < column; row++)
            metric[column * width + row] = 0.0;
    }
    return info == 0 ? KVT_OK : KVT_E_CORRUPT;
}

kvt_status learner_factor(basis_learner *learner)
{
    const transform_shape *shape = &learner->shape;
    bool queries = true;
    if (learner->factored) return KVT_OK;
    for (uint32_t layer = 0; layer < shape->layers; layer++) {
        queries &= learner->rows[layer] > 0;
        for (uint32_t side = 0; side < shape->sides; side++) {
            const bool given = side == KVT_SIDE_K ? learner->rows[layer] > 0 : learner->outputs;
            for (uint32_t head = 0; head < shape->kv_heads; head++) {
                const kvt_status status = metric_factor(
                    learner_metric_at(learner, layer, side, head), (int)shape->head_dim, given);
                if (status != KVT_OK) return status;
            }
        }
    }
    learner->shape.metric = (uint8_t)((queries ? TRANSFORM_METRIC_QUERIES : 0) |
                                      (learner->outputs ? TRANSFORM_METRIC_OUTPUTS : 0));
    learner->factored = true;
    return KVT_OK;
}

static double noise_draw(uint64_t *state)
{
    double sum = 0.0;
    for (int i = 0; i < METRIC_DRAWS; i++) {
        *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        sum += (double)(*state >> 11) * 0x1p-53 - 0.5;
    }
    return sum;
}

kvt_status basis_learner_noise(basis_learner *learner, uint32_t layer, kvt_side side,
                               uint32_t tokens, uint64_t seed, float *noise_out)
{
    double noise[TRANSFORM_WIDTH_MAX];
    const transform_shape *shape = &learner->shape;
    const int width = (int)shape->head_dim;
    uint64_t state = seed;
    const kvt_status status = learner_factor(learner);
    if (status != KVT_OK) return status;
    for (uint64_t at = 0; at < (uint64_t)tokens * shape->kv_heads; at++) {
        const double *factor =
            learner_metric_at(learner, layer, side, (uint32_t)(at % shape->kv_heads));
        for (int i = 0; i < width; i++)
            noise[i] = noise_draw(&state);
        /* z = L' x for a column x, so x = L'^-1 z. */
        cblas_dtrsv(CblasColMajor, CblasLower, CblasTrans, CblasNonUnit, width, factor, width,
                    noise, 1);
        for (int i = 0; i < width; i++)
            noise_out[at * shape->head_dim + (uint64_t)i] = (float)noise[i];
    }
    return KVT_OK;
}
