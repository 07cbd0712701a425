/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attend.c - attention over runs of rows, one query at a time, with the largest score moved as it
 * is found. Pure; any thread.
 */
#include "attend.h"

#include "sparse_kernels.h"

#include <float.h>
#include <math.h>

enum { ATTEND_ROWS = 256 }; /* whose scores are on the stack */

/* Scores of rows, within the floats: a product of large keys and queries is the largest one. NaN
 * stays, and weighs nothing. */
static void score_rows(const sparse_run *run, const void *keys, uint32_t count, const float *query,
                       uint32_t head_dim, float scale, float *scores)
{
    sparse_kernels_in_use()->dots(keys, run->stride_bytes, count, run->dtype, query, head_dim,
                                  scale, scores);
    for (uint32_t t = 0; t < count; t++)
        scores[t] = scores[t] > FLT_MAX ? FLT_MAX : scores[t];
}

void sparse_attend_start(double *output, sparse_partial *state, uint32_t group, uint32_t head_dim)
{
    memset(output, 0, (size_t)group * head_dim * sizeof *output);
    for (uint32_t g = 0; g < group; g++)
        state[g] = (sparse_partial){.largest = -(double)INFINITY, .sum = 0.0};
}

/* Scales what is there to a larger largest score. */
static void raise_to(double largest, uint32_t head_dim, double *output, sparse_partial *state)
{
    if (!(largest > state->largest)) return;
    const double factor = state->sum > 0.0 ? exp(state->largest - largest) : 0.0;
    for (uint32_t d = 0; d < head_dim; d++)
        output[d] *= factor;
    state->sum *= factor;
    state->largest = largest;
}

/* One query and up to ATTEND_ROWS rows. */
static void attend_rows(const sparse_run *run, uint32_t first, uint32_t count, const float *query,
                        uint32_t head_dim, float scale, double *output, sparse_partial *state)
{
    const sparse_kernels *kernels = sparse_kernels_in_use();
    const uint8_t *keys = (const uint8_t *)run->keys + first * run->stride_bytes;
    const uint8_t *values = (const uint8_t *)run->values + first * run->stride_bytes;
    float weight[ATTEND_ROWS], sums[SPARSE_ROW_DIM_MAX];
    float most = -INFINITY;
    score_rows(run, keys, count, query, head_dim, scale, weight);
    for (uint32_t t = 0; t < count; t++)
        most = weight[t] > most ? weight[t] : most;
    raise_to((double)most, head_dim, output, state);
    for (uint32_t t = 0; t < count; t++) {
        weight[t] = sparse_exp(weight[t] - (float)state->largest);
        state->sum += (double)weight[t];
    }
    memset(sums, 0, head_dim * sizeof *sums);
    kernels->combine(values, run->stride_bytes, count, run->dtype, weight, head_dim, sums);
    for (uint32_t d = 0; d < head_dim; d++)
        output[d] += (double)sums[d];
}

void sparse_attend_run(const sparse_run *run, const float *queries, uint32_t group,
                       uint32_t head_dim, float scale, double *output, sparse_partial *state)
{
    for (uint32_t first = 0; first < run->tokens; first += ATTEND_ROWS) {
        const uint32_t left = run->tokens - first;
        const uint32_t count = left < ATTEND_ROWS ? left : ATTEND_ROWS;
        for (uint32_t g = 0; g < group; g++)
            attend_rows(run, first, count, queries + (size_t)g * head_dim, head_dim, scale,
                        output + (size_t)g * head_dim, &state[g]);
    }
}

void sparse_attend_merge(const float *part, float lse, uint32_t head_dim, double *output,
                         sparse_partial *state)
{
    if (!(lse > -INFINITY)) return;
    raise_to((double)lse, head_dim, output, state);
    const double weight = exp((double)lse - state->largest);
    state->sum += weight;
    for (uint32_t d = 0; d < head_dim; d++)
        output[d] += weight * (double)part[d];
}

void sparse_attend_end(const double *output, const sparse_partial *state, uint32_t group,
                       uint32_t head_dim, float *output_out, float *lse_out)
{
    for (uint32_t g = 0; g < group; g++) {
        const bool some = state[g].sum > 0.0;
        const double inverse = some ? 1.0 / state[g].sum : 0.0;
        lse_out[g] = some ? (float)(state[g].largest + log(state[g].sum)) : -INFINITY;
        for (uint32_t d = 0; d < head_dim; d++)
            output_out[(size_t)g * head_dim + d] =
                (float)(output[(size_t)g * head_dim + d] * inverse);
    }
}

void sparse_attend_lse(const sparse_run *run, const float *queries, uint32_t group,
                       uint32_t head_dim, float scale, float *lse_out)
{
    float score[ATTEND_ROWS];
    for (uint32_t g = 0; g < group; g++) {
        double largest = -(double)INFINITY, sum = 0.0;
        for (uint32_t first = 0; first < run->tokens; first += ATTEND_ROWS) {
            const uint32_t left = run->tokens - first;
            const uint32_t count = left < ATTEND_ROWS ? left : ATTEND_ROWS;
            score_rows(run, (const uint8_t *)run->keys + first * run->stride_bytes, count,
                       queries + (size_t)g * head_dim, head_dim, scale, score);
            double most = largest;
            for (uint32_t t = 0; t < count; t++)
                most = score[t] > most ? (double)score[t] : most;
            if (most > largest) sum *= exp(largest - most);
            largest = most;
            for (uint32_t t = 0; t < count; t++)
                sum += (double)sparse_exp((float)((double)score[t] - largest));
        }
        lse_out[g] = sum > 0.0 ? (float)(largest + log(sum)) : -INFINITY;
    }
}
