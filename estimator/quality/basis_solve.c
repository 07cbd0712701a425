/* SPDX-License-Identifier: Apache-2.0 */
/*
 * basis_solve.c - matrices of covariances: with W the metric's factors and weights of a span, the
 * eigenvectors U of W' C W give the inverse G = U' W^-1, rounded to bf16, and the forward matrix is
 * the inverse of what was rounded. Thread rule: basis_learn.h.
 */
#include "estimator/quality/basis_learner.h"

#include "base/half.h"

#include <cblas.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* LAPACK, as OpenBLAS has it. */
void dsyevd_(const char *job, const char *triangle, const int *size, double *matrix,
             const int *stride, double *values, double *work, const int *work_size, int *integers,
             const int *integer_size, int *info);
void dgetrf_(const int *rows, const int *columns, double *matrix, const int *stride, int *pivots,
             int *info);
void dgetri_(const int *size, double *matrix, const int *stride, const int *pivots, double *work,
             const int *work_size, int *info);

/* Bits of a component at the unit of the step, by the estimate for a normal one: log2 of deviation
 * over step, and 2.05. */
enum { SOLVE_UNIT_BITS = 2 };
#define SOLVE_NORMAL_BITS 2.047

/* The matrices of one span while it is solved; column-major, size x size. */
typedef struct solve_span {
    int size;
    uint64_t first; /* element */
    double *covariance;
    double *product;
    double *work;
    int work_size;
    int *integers;
    int integer_size;
} solve_span;

static double solve_weight(const basis_learner *learner, uint64_t element)
{
    return learner->weights[element / transform_row(&learner->shape)];
}

/* The covariance of a span's elements; moments hold the lower triangle. */
static void solve_covariance(const basis_learner *learner, uint32_t span, double *covariance)
{
    const uint64_t size = transform_width_of(&learner->shape, span);
    const uint64_t first = (uint64_t)span * learner->width;
    const double *moments = learner->moments + transform_matrix_at(&learner->shape, span);
    const double over = 1.0 / (double)learner->learnt;
    for (uint64_t column = 0; column < size; column++) {
        for (uint64_t row = column; row < size; row++) {
            const double value =
                moments[column * size + row] * over -
                learner->sums[first + row] * over * (learner->sums[first + column] * over);
            covariance[column * size + row] = value;
            covariance[row * size + column] = value;
        }
    }
}

kvt_status basis_learner_deviation(basis_learner *learner, uint32_t layer, kvt_side side,
                                   double *deviation_out)
{
    const transform_shape *shape = &learner->shape;
    const uint64_t size = transform_width(shape);
    const uint64_t row = transform_row(shape);
    const uint64_t first = ((uint64_t)layer * shape->sides + (uint64_t)side) * row;
    const double over = 1.0 / (double)learner->learnt;
    double sum = 0.0;
    if (learner->learnt == 0) return KVT_E_ARGUMENT;
    kvt_status status = learner_factor(learner);
    if (status != KVT_OK) return status;
    for (uint64_t head = 0; head < row; head += shape->head_dim) {
        const uint64_t element = first + head;
        const uint32_t span = (uint32_t)(element / size);
        const uint64_t wide = transform_width_of(shape, span);
        const uint64_t at = element - span * size;
        const double *moments = learner->moments + transform_matrix_at(shape, span);
        const double *factor = learner_metric_of(learner, element);
        /* The trace of L' C L: of C with L L'. */
        for (uint64_t i = 0; i < shape->head_dim; i++) {
            for (uint64_t j = 0; j < shape->head_dim; j++) {
                const uint64_t low = i > j ? i : j;
                const uint64_t high = i > j ? j : i;
                const double covariance =
                    moments[(at + high) * wide + at + low] * over -
                    learner->sums[element + i] * over * (learner->sums[element + j] * over);
                sum += covariance * cblas_ddot((int)(high + 1), factor + i, (int)shape->head_dim,
                                               factor + j, (int)shape->head_dim);
            }
        }
    }
    *deviation_out = sqrt(sum / (double)row);
    return isfinite(*deviation_out) ? KVT_OK : KVT_E_CORRUPT;
}

/* Without weights: each layer and side has the same ratio of signal to error. */
static kvt_status solve_weights(basis_learner *learner)
{
    const uint32_t sides = learner->shape.sides;
    if (learner->weighted) return KVT_OK;
    for (uint32_t layer = 0; layer < learner->shape.layers; layer++) {
        for (uint32_t side = 0; side < sides; side++) {
            double deviation;
            const kvt_status status =
                basis_learner_deviation(learner, layer, (kvt_side)side, &deviation);
            if (status != KVT_OK) return status;
            learner->weights[layer * sides + side] = deviation > 0.0 ? 1.0 / deviation : 1.0;
        }
    }
    return KVT_OK;
}

/* covariance = W' C W, by heads: first C W, then W' of that. */
static void solve_weigh(const basis_learner *learner, const solve_span *s)
{
    const int head = (int)learner->shape.head_dim;
    for (int at = 0; at < s->size; at += head) {
        const double *factor = learner_metric_of(learner, s->first + (uint64_t)at);
        cblas_dgemm(CblasColMajor, CblasNoTrans, CblasNoTrans, s->size, head, head,
                    solve_weight(learner, s->first + (uint64_t)at),
                    s->covariance + (size_t)at * (size_t)s->size, s->size, factor, head, 0.0,
                    s->product + (size_t)at * (size_t)s->size, s->size);
    }
    for (int at = 0; at < s->size; at += head) {
        const double *factor = learner_metric_of(learner, s->first + (uint64_t)at);
        cblas_dgemm(CblasColMajor, CblasTrans, CblasNoTrans, head, s->size, head,
                    solve_weight(learner, s->first + (uint64_t)at), factor, head, s->product + at,
                    s->size, 0.0, s->covariance + at, s->size);
    }
}

/* The eigenvectors in covariance become rows of the inverse, the largest first, in product. */
static void solve_inverse(const basis_learner *learner, const solve_span *s)
{
    const size_t size = (size_t)s->size;
    const int head = (int)learner->shape.head_dim;
    for (size_t component = 0; component < size; component++) {
        const double *vector = s->covariance + (size - 1 - component) * size;
        for (size_t element = 0; element < size; element++)
            s->product[element * size + component] = vector[element];
    }
    for (int at = 0; at < s->size; at += head) { /* columns of U' times W^-1 */
        const double *factor = learner_metric_of(learner, s->first + (uint64_t)at);
        cblas_dtrsm(CblasColMajor, CblasRight, CblasLower, CblasNoTrans, CblasNonUnit, s->size,
                    head, 1.0 / solve_weight(learner, s->first + (uint64_t)at), factor, head,
                    s->product + (size_t)at * size, s->size);
    }
}

/* bf16 of a value, 0 for what is too small for a basis. */
static uint16_t solve_bf16(double value)
{
    return fabs(value) < 0x1p-60 ? 0 : half_bf16_from_float((float)value);
}

/* Rounds the inverse, and makes the forward matrix of it. product is column-major
 * [element][component]: element is the column. */
static kvt_status solve_round(basis_learner *learner, uint32_t span, const solve_span *s)
{
    const size_t size = (size_t)s->size;
    uint16_t *inverse = learner->inverse + transform_matrix_at(&learner->shape, span);
    uint16_t *forward = learner->forward + transform_matrix_at(&learner->shape, span);
    int info;
    for (size_t component = 0; component < size; component++) {
        for (size_t element = 0; element < size; element++) {
            double *value = &s->product[element * size + component];
            const uint16_t rounded = solve_bf16(*value);
            inverse[component * size + element] = rounded;
            *value = (double)half_bf16_to_float(rounded);
        }
    }
    dgetrf_(&s->size, &s->size, s->product, &s->size, s->integers, &info);
    if (info != 0) return KVT_E_CORRUPT;
    dgetri_(&s->size, s->product, &s->size, s->integers, s->work, &s->work_size, &info);
    if (info != 0) return KVT_E_CORRUPT;
    /* product is G^-1 now: [component][element] by columns, the codec's [element][component]. */
    for (size_t element = 0; element < size; element++) {
        for (size_t component = 0; component < size; component++)
            forward[element * size + component] =
                solve_bf16(s->product[component * size + element]);
    }
    return KVT_OK;
}

static kvt_status solve_one(basis_learner *learner, uint32_t span, solve_span *s, double *values)
{
    int info;
    s->size = (int)transform_width_of(&learner->shape, span);
    s->first = (uint64_t)span * learner->width;
    solve_covariance(learner, span, s->covariance);
    solve_weigh(learner, s);
    dsyevd_("V", "L", &s->size, s->covariance, &s->size, values, s->work, &s->work_size,
            s->integers, &s->integer_size, &info);
    if (info != 0) return KVT_E_CORRUPT;
    solve_inverse(learner, s);
    return solve_round(learner, span, s);
}

/* The power of two by which components are divided. */
static int solve_unit(const double *values, uint64_t count)
{
    int unit = -100;
    for (; unit < 100; unit++) {
        double bits = 0.0;
        for (uint64_t i = 0; i < count; i++) {
            const double one =
                0.5 * log2(values[i] > 0.0 ? values[i] : 0x1p-200) - unit + SOLVE_NORMAL_BITS;
            bits += one > 0.0 ? one : 0.0;
        }
        if (bits <= SOLVE_UNIT_BITS * (double)count) break;
    }
    return unit;
}

/* Multiplies elements of a matrix with 2^power, exactly. */
static void solve_scale(uint16_t *matrix, uint64_t count, int power)
{
    for (uint64_t i = 0; i < count; i++)
        matrix[i] = solve_bf16(ldexp((double)half_bf16_to_float(matrix[i]), power));
}

kvt_status basis_learner_solve(basis_learner *learner)
{
    const size_t size = learner->width;
    solve_span s = {.work_size = (int)(1 + 6 * size + 2 * size * size),
                    .integer_size = (int)(3 + 5 * size)};
    double *values = calloc(learner->elements, sizeof *values);
    kvt_status status = learner->learnt == 0 || learner->solved ? KVT_E_ARGUMENT : KVT_OK;
    s.covariance = malloc(size * size * sizeof *s.covariance);
    s.product = malloc(size * size * sizeof *s.product);
    s.work = malloc((size_t)s.work_size * sizeof *s.work);
    s.integers = malloc((size_t)s.integer_size * sizeof *s.integers);
    if (values == NULL || s.covariance == NULL || s.product == NULL || s.work == NULL ||
        s.integers == NULL)
        status = KVT_E_MEMORY;
    if (status == KVT_OK) status = learner_factor(learner);
    if (status == KVT_OK) status = solve_weights(learner);
    for (uint32_t span = 0; status == KVT_OK && span < learner->spans; span++)
        status = solve_one(learner, span, &s, values + (uint64_t)span * learner->width);
    if (status == KVT_OK) {
        const int unit = solve_unit(values, learner->elements);
        const uint64_t matrices = transform_matrix_at(&learner->shape, learner->spans);
        solve_scale(learner->forward, matrices, -unit);
        solve_scale(learner->inverse, matrices, unit);
        for (uint64_t i = 0; i < learner->elements; i++)
            learner->means[i] = (float)(learner->sums[i] / (double)learner->learnt);
        learner->basis.shape = learner->shape;
        learner->solved = true;
    }
    free(values);
    free(s.covariance);
    free(s.product);
    free(s.work);
    free(s.integers);
    return status;
}
