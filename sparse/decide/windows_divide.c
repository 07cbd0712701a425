/* SPDX-License-Identifier: Apache-2.0 */
/*
 * windows_divide.c - sizes of windows, or budgets, of many units within one capacity: a
 * multiple-choice knapsack with one size of each unit (KVDrive, 2-D scaling). Pure; any thread.
 */
#include "sparse/decide/windows.h"

#include "base/number/number.h"
#include "sparse/decide/knapsack.h"

#include <assert.h>

/* The solver's arrays in the caller's memory: the widest items first. */
typedef struct divide_memory {
    double *value;
    uint64_t *bytes;
    knapsack_step *steps;
    uint32_t *first;
} divide_memory;

size_t windows_divide_memory(uint32_t units, uint32_t sizes)
{
    const size_t options = (size_t)units * sizes;
    return options * sizeof(double) + options * KNAPSACK_ROWS * sizeof(uint64_t) +
           units * sizeof(knapsack_step) + ((size_t)units + 1) * sizeof(uint32_t);
}

static divide_memory divide_cut(void *memory, uint32_t units, uint32_t sizes)
{
    const size_t options = (size_t)units * sizes;
    divide_memory cut = {.value = memory};
    cut.bytes = (uint64_t *)(void *)(cut.value + options);
    cut.steps = (knapsack_step *)(void *)(cut.bytes + options * KNAPSACK_ROWS);
    cut.first = (uint32_t *)(void *)(cut.steps + units);
    return cut;
}

double windows_divide(const windows_curve *curves, uint32_t units, uint32_t sizes,
                      uint64_t capacity_bytes, uint32_t *choice_out, void *memory,
                      double *bound_out)
{
    const divide_memory cut = divide_cut(memory, units, sizes);
    knapsack_result result;
    assert(capacity_bytes <= UINT64_C(1) << 61);
    for (uint32_t u = 0; u < units; u++) {
        cut.first[u] = u * sizes;
        for (uint32_t i = 0; i < sizes; i++) {
            const size_t at = (size_t)u * sizes + i;
            assert(number_is_finite(curves[u].benefit[i]));
            cut.value[at] = curves[u].benefit[i];
            for (int tier = 0; tier < KNAPSACK_ROWS; tier++)
                cut.bytes[at * KNAPSACK_ROWS + (size_t)tier] = 0;
            cut.bytes[at * KNAPSACK_ROWS] = curves[u].bytes[i];
        }
    }
    cut.first[units] = units * sizes;
    const knapsack instance = {.entries = units,
                               .first = cut.first,
                               .value = cut.value,
                               .bytes = cut.bytes,
                               .capacity = {capacity_bytes}};
    knapsack_solve(&instance, choice_out, cut.steps, &result);
    for (uint32_t u = 0; u < units; u++)
        if (choice_out[u] != KNAPSACK_NONE) choice_out[u] -= u * sizes;
    if (bound_out != NULL) *bound_out = result.dual;
    return result.primal;
}
