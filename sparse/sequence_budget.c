/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sequence_budget.c - how much of the layers' budgets each unit has: by curves of the error of the
 * output at several budgets, measured on some of the prompt's last queries.
 *
 *     query -> a step at three uniform budgets -> output, which stands for full attention
 *           -> steps at lesser budgets         -> squared difference of each unit's output
 *     curves of all units -> knapsack (policy/windows.h) -> budgets, after the last layer
 *
 * So a measurement reads what about nine steps of the layer read, and a query no more than three.
 * Together units have what equal budgets give them, and a layer may have more than another.
 *
 * Thread rule: the sequence's thread.
 */
#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "sequence.h"

enum { QUERIES_MOST = 8 };

/* Budgets in shares of a uniform one. The last one is the measure of the others. */
static const double shares[SPARSE_SIZES] = {0.125, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0};
enum { UNIFORM = 4, LARGEST = SPARSE_SIZES - 1 };

/* A division that promises to take less than this part of the error of uniform budgets away is not
 * worth it. */
#define DIVIDE_LEAST 0.05

static uint64_t uniform_bytes(const kvt_sparse *s)
{
    const uint64_t bytes = s->options.budget_bytes;
    return bytes == KVT_SPARSE_ALL ? bytes : bytes / s->options.layout.kv_heads;
}

static uint64_t size_bytes(const kvt_sparse *s, uint32_t i)
{
    return (uint64_t)(shares[i] * (double)uniform_bytes(s));
}

void sparse_budget_open_unit(const kvt_sparse *s, sparse_unit *unit)
{
    unit->budget_bytes = uniform_bytes(s);
}

void sparse_budget_set(kvt_sparse *s, uint64_t bytes)
{
    s->options.budget_bytes = bytes;
    for (uint64_t u = 0; u < (uint64_t)s->options.layout.layers * s->options.layout.kv_heads; u++)
        sparse_budget_open_unit(s, &s->units[u]);
}

/* A budget that reads all of a layer in its rows leaves nothing to divide. */
bool sparse_budget_is_on(const kvt_sparse *s)
{
    const uint64_t rows = (uint64_t)s->options.tokens_max * 2 * s->row_bytes;
    return s->options.divide_budgets && uniform_bytes(s) > 0 && uniform_bytes(s) <= rows;
}

/* ---- curves ---- */

/* Squared differences of each unit's output from the measure. */
static void take_differences(kvt_sparse *s, const float *output, const float *measure,
                             double *errors)
{
    const uint32_t width = s->group * s->options.layout.head_dim;
    for (uint32_t h = 0; h < s->options.layout.kv_heads; h++) {
        double sum = 0.0;
        for (uint32_t i = h * width; i < (h + 1) * width; i++)
            sum +=
                ((double)output[i] - (double)measure[i]) * ((double)output[i] - (double)measure[i]);
        errors[h * SPARSE_SIZES] = isfinite(sum) ? sum : 0.0;
    }
}

/* Memory of a measurement: outputs of two steps, and errors [kv_heads][SPARSE_SIZES]. */
typedef struct budget_work {
    float *output, *measure;
    double *errors;
} budget_work;

/* Adds one query to the curves of a layer, or nothing when a step of it fails. */
static kvt_status observe_query(kvt_sparse *s, uint32_t layer, const float *queries,
                                const budget_work *work)
{
    const uint32_t heads = s->options.layout.kv_heads;
    memset(work->errors, 0, heads * SPARSE_SIZES * sizeof *work->errors);
    kvt_status status = sparse_step_try(s, layer, queries, size_bytes(s, LARGEST), work->measure);
    for (uint32_t i = 0; i < LARGEST && status == KVT_OK; i++) {
        status = sparse_step_try(s, layer, queries, size_bytes(s, i), work->output);
        if (status == KVT_OK) take_differences(s, work->output, work->measure, &work->errors[i]);
    }
    for (uint32_t h = 0; h < heads && status == KVT_OK; h++) {
        sparse_unit *unit = sparse_unit_of(s, layer, h);
        const double count = (double)++unit->budget_queries;
        for (uint32_t i = 0; i < SPARSE_SIZES; i++)
            unit->budget_error[i] +=
                (work->errors[h * SPARSE_SIZES + i] - unit->budget_error[i]) / count;
    }
    return status;
}

/* ---- the division ---- */

/* The knapsack's choice over what units have above the least size; false when it does not pay. */
static bool choose_sizes(const kvt_sparse *s, uint32_t units, windows_curve *curves,
                         double *benefit, uint32_t *choice, void *memory)
{
    uint64_t bytes[LARGEST];
    double uniform = 0.0, chosen = 0.0;
    for (uint32_t i = 0; i < LARGEST; i++)
        bytes[i] = size_bytes(s, i + 1) - size_bytes(s, 0);
    for (uint32_t u = 0; u < units; u++) {
        const double *error = s->units[u].budget_error;
        if (s->units[u].budget_queries == 0) return false; /* nobody knows what it needs */
        double least = error[0];                           /* more is never worse, but for chance */
        for (uint32_t i = 0; i < LARGEST; i++) {
            least = error[i + 1] < least ? error[i + 1] : least;
            benefit[u * LARGEST + i] = error[0] - least;
        }
        curves[u] = (windows_curve){bytes, benefit + (size_t)u * LARGEST};
    }
    (void)windows_divide(curves, units, LARGEST, units * (uniform_bytes(s) - size_bytes(s, 0)),
                         choice, memory, NULL);
    for (uint32_t u = 0; u < units; u++) {
        choice[u] = choice[u] != UINT32_MAX ? choice[u] + 1 : 0;
        uniform += s->units[u].budget_error[UNIFORM];
        chosen += s->units[u].budget_error[choice[u]];
    }
    return chosen < (1.0 - DIVIDE_LEAST) * uniform;
}

static kvt_status divide(kvt_sparse *s)
{
    const uint32_t units = s->options.layout.layers * s->options.layout.kv_heads;
    windows_curve *curves = malloc(units * sizeof *curves);
    double *benefit = malloc((size_t)units * SPARSE_SIZES * sizeof *benefit);
    uint32_t *choice = malloc(units * sizeof *choice);
    void *memory = malloc(windows_divide_memory(units, SPARSE_SIZES));
    const bool fine = curves != NULL && benefit != NULL && choice != NULL && memory != NULL;
    if (fine) {
        const bool pays = choose_sizes(s, units, curves, benefit, choice, memory);
        uint64_t sum = 0;
        for (uint32_t u = 0; u < units; u++) {
            s->units[u].budget_bytes = pays ? size_bytes(s, choice[u]) : uniform_bytes(s);
            sum += s->units[u].budget_bytes;
        }
        assert(sum <= units * uniform_bytes(s));
        s->stats.budget_divisions += pays;
        (void)sum;
    }
    free(curves);
    free(benefit);
    free(choice);
    free(memory);
    return fine ? KVT_OK : KVT_E_MEMORY;
}

/* The last rows are those nearest to what comes; of many, some at equal distances. A query whose
 * rows a GPU does not give back is left out. */
kvt_status sparse_budget_observe(kvt_sparse *s, uint32_t layer, const float *queries, uint32_t rows)
{
    const size_t width = (size_t)s->options.query_heads * s->options.layout.head_dim;
    const uint32_t heads = s->options.layout.kv_heads;
    const uint32_t count = rows < QUERIES_MOST ? rows : QUERIES_MOST;
    float *outputs = malloc(2 * width * sizeof *outputs);
    double *errors = malloc((size_t)heads * SPARSE_SIZES * sizeof *errors);
    const budget_work work = {outputs, outputs != NULL ? outputs + width : NULL, errors};
    kvt_status status = outputs != NULL && errors != NULL ? KVT_OK : KVT_E_MEMORY;
    for (uint32_t h = 0; h < heads; h++) {
        sparse_unit *unit = sparse_unit_of(s, layer, h);
        memset(unit->budget_error, 0, sizeof unit->budget_error);
        unit->budget_queries = 0;
    }
    for (uint32_t i = 0; i < count && status == KVT_OK; i++) {
        const size_t row = rows - 1 - (size_t)i * rows / count;
        status = observe_query(s, layer, queries + row * width, &work);
        if (status != KVT_E_MEMORY) status = KVT_OK;
    }
    free(outputs);
    free(errors);
    if (status == KVT_OK && layer + 1 == s->options.layout.layers) status = divide(s);
    return status;
}
