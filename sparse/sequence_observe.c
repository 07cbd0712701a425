/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sequence_observe.c - a layer's start: the prompt's last queries say which pages fill the window,
 * which get a second copy on another drive, and which units keep the slopes of their clusters when
 * indexes may take a share of the rows' bytes, before the first step reads any.
 *
 * Thread rule: the sequence's thread.
 */
#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "sequence.h"

kvt_status sparse_observe_begin(kvt_sparse *s, uint32_t layer)
{
    for (uint32_t h = 0; h < s->options.layout.kv_heads; h++) {
        sparse_unit *unit = sparse_unit_of(s, layer, h);
        const size_t most = (size_t)unit->paging.pages + unit->tail.added.pages_max + 1;
        if (unit->heat == NULL) unit->heat = malloc(most * sizeof *unit->heat);
        if (unit->heat == NULL) return KVT_E_MEMORY;
        memset(unit->heat, 0, most * sizeof *unit->heat);
    }
    return KVT_OK;
}

/* Mean weights of all pages over the rows. */
static kvt_status observe_heat(kvt_sparse *s, uint32_t layer, const float *queries, uint32_t rows)
{
    const size_t row = (size_t)s->options.query_heads * s->options.layout.head_dim;
    kvt_status status = sparse_observe_begin(s, layer);
    for (uint32_t i = 0; i < rows && status == KVT_OK; i++)
        status = sparse_step_add_weights(s, layer, queries + i * row, 1.0f / (float)rows);
    return status;
}

/* Pages by falling heat, of equals the lower page. */
typedef struct hot_page {
    float heat;
    uint32_t page;
} hot_page;

static int compare_hot(const void *a, const void *b)
{
    const hot_page *x = a, *y = b;
    if (x->heat != y->heat) return x->heat > y->heat ? -1 : 1;
    return x->page < y->page ? -1 : 1;
}

/* Copies of the hottest pages of one unit. */
static kvt_status copy_hottest(kvt_sparse *s, sparse_unit *unit)
{
    const uint32_t pages = unit->paging.pages;
    const uint32_t count = (uint32_t)((double)s->options.replica_share * pages);
    if (count == 0) return KVT_OK;
    hot_page *hot = malloc(pages * sizeof *hot);
    uint32_t *list = malloc(count * sizeof *list);
    kvt_status status = hot != NULL && list != NULL ? KVT_OK : KVT_E_MEMORY;
    for (uint32_t i = 0; status == KVT_OK && i < pages; i++)
        hot[i] = (hot_page){.heat = unit->heat[i], .page = i};
    if (status == KVT_OK) {
        qsort(hot, pages, sizeof *hot, compare_hot);
        for (uint32_t i = 0; i < count; i++)
            list[i] = hot[i].page;
        status = sparse_table_copy(&unit->table, &unit->code, list, count);
    }
    free(hot);
    free(list);
    return status == KVT_E_SPACE ? KVT_OK : status; /* some go without */
}

/* ---- slopes ---- */

/*
 *     query -> plan of a step -> estimate of the rest with slopes, and without -> the difference
 *     squared is the unit's gain -> last layer observed, or first step -> the least gains leave
 *
 * All units have slopes until then, so that each can be measured.
 */
kvt_status sparse_slopes_measure(kvt_sparse *s, sparse_unit *unit, sparse_work *work)
{
    const uint32_t dim = s->options.layout.head_dim;
    const pages_problem problem =
        sparse_head_problem(s, unit, work->page, NULL, sparse_head_budget(s));
    sparse_index flat = unit->index;
    pages_plan plan;
    float lse[SPARSE_GROUP_MAX];
    if (s->slopes_fit || s->options.index_share == 0.0f || problem.count == 0 ||
        flat.slopes == NULL)
        return KVT_OK;
    float *with = malloc(2 * sizeof *with * s->group * dim);
    if (with == NULL) return KVT_E_MEMORY;
    float *without = with + (size_t)s->group * dim;
    flat.slopes = NULL;
    pages_choose(&problem, s->meter_variant, &plan);
    sparse_choose_estimate(&unit->index, &unit->paging, s->meter_variant, work, with, lse);
    sparse_choose_estimate(&flat, &unit->paging, s->meter_variant, work, without, lse);
    for (uint32_t g = 0; g < s->group; g++) {
        const double share = exp((double)lse[g] - (double)work->lse[g]);
        for (uint32_t d = g * dim; d < (g + 1) * dim && share > 0.0; d++) {
            const double change = share * ((double)with[d] - (double)without[d]);
            unit->gain += change * change;
        }
    }
    free(with);
    return KVT_OK;
}

void sparse_slopes_fit(kvt_sparse *s)
{
    const uint32_t units = s->options.layout.layers * s->options.layout.kv_heads;
    double taken = 0.0;
    if (s->slopes_fit || s->options.index_share == 0.0f) return;
    s->slopes_fit = true;
    for (uint32_t i = 0; i < units; i++)
        taken += (double)(s->units[i].index.bytes + s->units[i].index.slope_bytes);
    const double room =
        (double)s->options.index_share * 2.0 * units * s->zone_tokens * s->row_bytes;
    while (taken > room) {
        sparse_unit *least = NULL;
        for (uint32_t i = 0; i < units; i++) { /* of equal ones the last */
            sparse_unit *unit = &s->units[i];
            if (unit->index.slopes != NULL && (least == NULL || !(unit->gain > least->gain)))
                least = unit;
        }
        if (least == NULL) return;
        taken -= (double)least->index.slope_bytes;
        sparse_index_drop_slopes(&least->index);
    }
}

kvt_status sparse_observe_end(kvt_sparse *s, uint32_t layer)
{
    kvt_status status = KVT_OK;
    for (uint32_t h = 0; h < s->options.layout.kv_heads && status == KVT_OK; h++)
        status = copy_hottest(s, sparse_unit_of(s, layer, h));
    if (status == KVT_OK) sparse_divide_observed(s, layer);
    if (status == KVT_OK && layer + 1 == s->options.layout.layers) sparse_slopes_fit(s);
    const bool windows = s->arena != NULL || s->hbm.location != NULL;
    if (status == KVT_OK && windows) status = sparse_step_warm_up(s, layer);
    return status;
}

kvt_status kvt_sparse_observe(kvt_sparse *s, uint32_t layer, const float *queries, uint32_t rows)
{
    if (s == NULL || queries == NULL || rows == 0 || layer >= s->options.layout.layers)
        return KVT_E_ARGUMENT;
    if (!s->ready || s->options.given || sparse_step_is_open(s, layer) ||
        !scratch_is_ours(s->store))
        return KVT_E_STATE;
    const size_t count = (size_t)rows * s->options.query_heads * s->options.layout.head_dim;
    if (!sparse_queries_are_sound(queries, count)) return KVT_E_ARGUMENT;
    const kvt_status status = observe_heat(s, layer, queries, rows);
    return status == KVT_OK ? sparse_observe_end(s, layer) : status;
}
