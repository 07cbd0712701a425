/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sequence_divide.c - how the window's bytes are divided between the units of a sequence: by curves
 * of what a size would have saved, measured on the prompt's last queries and, one step in
 * SPARSE_METER_STEPS, while the sequence runs.
 *
 *     step's weights -> what would be read without a window -> rank of each page by standing
 *                    -> the least size that would have held it -> curve of the unit
 *     curves of all units -> knapsack (windows_divide) -> targets -> sizes, a layer at a time
 *
 * A window keeps the pages of the highest standing, so one pass over a step tells the bytes that
 * every size would have saved. The part of a window in HBM is the same for all units, in front of
 * what is divided. Sizes change at the end of a layer's own steps, and what one unit gains another
 * has given before: the sum never passes the option's bytes.
 *
 * Thread rule: the sequence's thread.
 */
#include <assert.h>
#include <stdlib.h>

#include "sequence.h"

enum {
    METER_STEPS = 16,    /* of one layer, of which one is measured */
    REFRESH_STEPS = 256, /* of one layer, from one division to the next */
    MEASURED_LEAST = 8   /* steps of a unit, before its curve counts */
};

/* Windows in shares of a uniform one. */
static const double shares[SPARSE_SIZES] = {0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0};
enum { UNIFORM = 3 };

/* A division that would save less than this part of what uniform sizes miss is not worth it. */
#define DIVIDE_LEAST 0.05

static uint64_t unit_count(const kvt_sparse *s)
{
    return (uint64_t)s->options.layout.layers * s->options.layout.kv_heads;
}

static uint64_t size_bytes(const kvt_sparse *s, uint32_t i)
{
    return (uint64_t)(shares[i] * (double)(s->options.window_bytes[KVT_TIER_DRAM] / unit_count(s)));
}

bool sparse_divide_is_on(const kvt_sparse *s)
{
    return s->options.divide_windows && s->arena != NULL && unit_count(s) > 1 &&
           (s->options.given || s->options.budget_bytes != KVT_SPARSE_ALL);
}

bool sparse_divide_measures(const kvt_sparse *s, uint32_t layer)
{
    return sparse_divide_is_on(s) && s->layer_steps[layer] % METER_STEPS == 0;
}

/* Pages that stand above another one. */
static uint32_t rank_of(const float *standing, uint32_t pages, uint32_t page)
{
    const float own = standing[page];
    uint32_t above = 0;
    for (uint32_t i = 0; i < pages; i++)
        above += standing[i] > own;
    return above;
}

void sparse_divide_measure(kvt_sparse *s, sparse_unit *unit, const float *weight,
                           const float *standing)
{
    const uint32_t pages = sparse_unit_pages(unit), tokens = unit->paging.page_tokens;
    const uint64_t page_bytes = sparse_page_bytes(&unit->paging, tokens, PAGES_RAW);
    const pages_problem problem = sparse_head_problem(s, unit, weight, NULL, sparse_head_budget(s));
    pages_plan plan;
    if (pages == 0) return;
    if (s->options.given)
        for (uint32_t page = 0; page < pages; page++)
            s->meter_variant[page] = weight[page] > 0 ? PAGES_RAW : PAGES_ABSENT;
    else
        pages_choose(&problem, s->meter_variant, &plan);
    for (uint32_t page = 0; page < pages; page++) {
        const pages_variant variant = (pages_variant)s->meter_variant[page];
        if (variant == PAGES_ABSENT) continue;
        const double bytes = (double)pages_read_bytes(&s->terms, tokens, PAGES_ABSENT, variant);
        unit->curve.wanted += bytes;
        if (!(standing[page] > 0.0f)) continue;
        const uint64_t needed = ((uint64_t)rank_of(standing, pages, page) + 1) * page_bytes;
        for (uint32_t i = 0; i < SPARSE_SIZES; i++)
            if (needed <= size_bytes(s, i) + sparse_hbm_unit_bytes(unit))
                unit->curve.saved[i] += bytes;
    }
    unit->curve.steps++;
}

/* ---- the division ---- */

/* The knapsack's choice, or none when it does not pay. */
static bool choose_sizes(const kvt_sparse *s, windows_curve *curves, double *benefit,
                         uint32_t *choice, void *memory)
{
    const uint32_t units = (uint32_t)unit_count(s);
    uint64_t bytes[SPARSE_SIZES];
    double missed = 0.0, gained = 0.0;
    for (uint32_t i = 0; i < SPARSE_SIZES; i++)
        bytes[i] = size_bytes(s, i);
    for (uint32_t u = 0; u < units; u++) {
        const sparse_curve *curve = &s->units[u].curve;
        if (curve->steps < MEASURED_LEAST) return false;
        for (uint32_t i = 0; i < SPARSE_SIZES; i++)
            benefit[u * SPARSE_SIZES + i] =
                s->seconds_per_byte * (1.0 + curve->saved[i] / curve->steps);
        curves[u] = (windows_curve){bytes, benefit + (size_t)u * SPARSE_SIZES};
    }
    (void)windows_divide(curves, units, SPARSE_SIZES, units * bytes[UNIFORM], choice, memory, NULL);
    for (uint32_t u = 0; u < units; u++) {
        const sparse_curve *curve = &s->units[u].curve;
        const uint32_t at = choice[u] != UINT32_MAX ? choice[u] : 0;
        missed += (curve->wanted - curve->saved[UNIFORM]) / curve->steps;
        gained += (curve->saved[at] - curve->saved[UNIFORM]) / curve->steps;
    }
    return gained > DIVIDE_LEAST * missed;
}

/* Sets the targets. Without memory they are what they were. */
static void divide(kvt_sparse *s)
{
    const uint32_t units = (uint32_t)unit_count(s);
    windows_curve *curves = malloc(units * sizeof *curves);
    double *benefit = malloc((size_t)units * SPARSE_SIZES * sizeof *benefit);
    uint32_t *choice = malloc(units * sizeof *choice);
    void *memory = malloc(windows_divide_memory(units, SPARSE_SIZES));
    if (curves != NULL && benefit != NULL && choice != NULL && memory != NULL) {
        const bool pays = choose_sizes(s, curves, benefit, choice, memory);
        for (uint32_t u = 0; u < units; u++) {
            const uint32_t at = !pays ? UNIFORM : choice[u] != UINT32_MAX ? choice[u] : 0;
            s->units[u].target_bytes = size_bytes(s, at);
        }
        s->stats.divisions += pays;
    }
    free(curves);
    free(benefit);
    free(choice);
    free(memory);
}

/* Makes the sizes of a layer's units what they are to be, as far as others have given. */
static void resize_layer(kvt_sparse *s, uint32_t layer)
{
    const uint64_t most = s->options.window_bytes[KVT_TIER_DRAM];
    for (uint32_t h = 0; h < s->options.layout.kv_heads; h++) {
        sparse_unit *unit = sparse_unit_of(s, layer, h);
        const uint64_t now = unit->window.capacity_bytes - sparse_hbm_unit_bytes(unit);
        uint64_t wanted = unit->target_bytes;
        if (wanted == now) continue;
        s->capacity_bytes -= now;
        if (wanted > most - s->capacity_bytes) wanted = most - s->capacity_bytes;
        s->capacity_bytes += wanted;
        sparse_window_resize(s, unit, wanted);
    }
    assert(s->capacity_bytes <= most);
}

void sparse_divide_observed(kvt_sparse *s, uint32_t layer)
{
    if (!sparse_divide_is_on(s)) return;
    if (layer + 1 == s->options.layout.layers) divide(s);
    resize_layer(s, layer);
}

void sparse_divide_step(kvt_sparse *s, uint32_t layer)
{
    if (!sparse_divide_is_on(s)) return;
    const uint32_t steps = ++s->layer_steps[layer];
    if (layer + 1 == s->options.layout.layers && steps % REFRESH_STEPS == 0) {
        divide(s);
        for (uint64_t u = 0; u < unit_count(s); u++) { /* the past counts half */
            sparse_curve *curve = &s->units[u].curve;
            curve->wanted *= 0.5;
            curve->steps *= 0.5;
            for (uint32_t i = 0; i < SPARSE_SIZES; i++)
                curve->saved[i] *= 0.5;
        }
    }
    resize_layer(s, layer);
}
