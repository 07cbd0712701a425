/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quality_sgemm.c - what the BLAS library reaches on this machine, beside which the probe's rate is
 * reported. Thread rule: any thread; times are its own CPU time.
 */
#include "base/clock.h"
#include "estimator/quality/quality_attention.h"

#include <cblas.h>
#include <stdlib.h>

enum { SGEMM_SQUARE = 512, SGEMM_RUNS = 7 };

typedef struct sgemm_shape {
    int rows, columns, inner;
    int right_stride;
    CBLAS_TRANSPOSE right;
} sgemm_shape;

static int sgemm_order(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

/* Median seconds of one product; `times` of them per sample. */
static double sgemm_time(const sgemm_shape *shape, uint32_t times, const float *left,
                         const float *right, float *out)
{
    double samples[SGEMM_RUNS];
    for (int run = -1; run < SGEMM_RUNS; run++) { /* the first one warms up */
        double start = base_cpu_seconds();
        for (uint32_t i = 0; i < times; i++)
            cblas_sgemm(CblasRowMajor, CblasNoTrans, shape->right, shape->rows, shape->columns,
                        shape->inner, 1.0f, left, shape->inner, right, shape->right_stride, 0.0f,
                        out, shape->columns);
        if (run >= 0) samples[run] = (base_cpu_seconds() - start) / times;
    }
    qsort(samples, SGEMM_RUNS, sizeof samples[0], sgemm_order);
    return samples[SGEMM_RUNS / 2];
}

kvt_status quality_attention_sgemm(const kvt_layout *layout, uint32_t query_heads,
                                   uint32_t query_rows, double *square_out, double *shape_out)
{
    const int rows = (int)(query_heads / layout->kv_heads * query_rows);
    const int tokens = (int)layout->tokens, width = layout->head_dim;
    const int stride = layout->kv_heads * width;
    const sgemm_shape square = {SGEMM_SQUARE, SGEMM_SQUARE, SGEMM_SQUARE, SGEMM_SQUARE,
                                CblasNoTrans};
    const sgemm_shape scores = {rows, tokens, width, stride, CblasTrans};
    const sgemm_shape sums = {rows, width, tokens, stride, CblasNoTrans};
    size_t left_floats = (size_t)SGEMM_SQUARE * SGEMM_SQUARE, right_floats = left_floats;
    if ((size_t)rows * (size_t)tokens > left_floats) left_floats = (size_t)rows * (size_t)tokens;
    if ((size_t)tokens * (size_t)stride > right_floats)
        right_floats = (size_t)tokens * (size_t)stride;
    if ((size_t)rows * (size_t)width > left_floats) left_floats = (size_t)rows * (size_t)width;
    float *left = malloc(left_floats * sizeof *left), *right = malloc(right_floats * sizeof *right);
    float *out = malloc(left_floats * sizeof *out);
    kvt_status status = left != NULL && right != NULL && out != NULL ? KVT_OK : KVT_E_MEMORY;
    for (size_t i = 0; status == KVT_OK && i < left_floats; i++)
        left[i] = (float)(i % 7) - 3.0f;
    for (size_t i = 0; status == KVT_OK && i < right_floats; i++)
        right[i] = (float)(i % 5) - 2.0f;
    if (status == KVT_OK) {
        double work = 2.0 * SGEMM_SQUARE * SGEMM_SQUARE * SGEMM_SQUARE;
        *square_out = work / sgemm_time(&square, 1, left, right, out) * 1e-9;
        double seconds =
            sgemm_time(&scores, 16, left, right, out) + sgemm_time(&sums, 16, left, right, out);
        *shape_out = 4.0 * rows * tokens * width / seconds * 1e-9;
    }
    free(left);
    free(right);
    free(out);
    return status;
}
