/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attend.h - attention of a few queries over runs of K and V rows, as partial output and
 * log-sum-exp, which merge exactly: of two parts with (o, l) the whole is their mean with weights
 * exp(l). Sums are in fp32 within a run and in double across runs. Pure; any thread.
 */
#ifndef SPARSE_ATTEND_H
#define SPARSE_ATTEND_H

#include "index.h"

/* The state of one query: output is not yet divided by the sum. */
typedef struct sparse_partial {
    double largest; /* score so far; -infinity before the first row */
    double sum;     /* of exp(score - largest) */
} sparse_partial;

/* Rows that a group of queries attends to. */
typedef struct sparse_run {
    const void *keys, *values; /* [tokens][head_dim], rows stride_bytes apart */
    uint64_t stride_bytes;
    uint32_t tokens;
    uint8_t dtype;
} sparse_run;

/* Starts a group: zeroes outputs [group][head_dim] and states. */
void sparse_attend_start(double *output, sparse_partial *state, uint32_t group, uint32_t head_dim);

/* Adds one run. queries fp32 [group][head_dim]. */
void sparse_attend_run(const sparse_run *run, const float *queries, uint32_t group,
                       uint32_t head_dim, float scale, double *output, sparse_partial *state);

/* Adds another part: a normalised output and its log-sum-exp; -infinity adds nothing. */
void sparse_attend_merge(const float *part, float lse, uint32_t head_dim, double *output,
                         sparse_partial *state);

/* Ends a group: normalised outputs and log-sum-exps. Nothing attended: zeros and -infinity. */
void sparse_attend_end(const double *output, const sparse_partial *state, uint32_t group,
                       uint32_t head_dim, float *output_out, float *lse_out);

/* Log-sum-exp of the scaled scores alone. Without rows -infinity. */
void sparse_attend_lse(const sparse_run *run, const float *queries, uint32_t group,
                       uint32_t head_dim, float scale, float *lse_out);

#endif
