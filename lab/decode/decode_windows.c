/* SPDX-License-Identifier: Apache-2.0 */
/*
 * decode_windows.c - windows of two sizes and all rules over the same needs: clusters in raw,
 * chosen without regard to what is resident. Hits are bytes, after an eighth of the steps.
 *
 * Belady's rule knows the steps to come and keeps what is needed soonest; clusters differ in size,
 * so it is not quite a bound.
 */
#include "decode.h"

#include <stdlib.h>
#include <string.h>

const double decode_window_sizes[WINDOW_SIZES] = {2, 3};
const double decode_window_budgets[WINDOW_BUDGETS] = {0.0312, 0.0625};

/* The needs of all steps. */
typedef struct needs {
    const decode_items *items;
    const pages_terms *terms;
    uint32_t rows;
    uint8_t *wanted; /* [rows][items] */
    float *weight;   /* [rows][items] */
    uint64_t budget_bytes;
} needs;

static kvt_status needs_open(needs *n, decode_unit *unit, decode_choice *choice, double budget,
                             const pages_terms *terms)
{
    const size_t count = choice->items.count;
    *n = (needs){.items = &choice->items, .terms = terms, .rows = unit->rows};
    n->budget_bytes = (uint64_t)(budget * unit->zone) * unit->dim * 4;
    n->wanted = malloc(unit->rows * count + 1);
    n->weight = malloc((unit->rows * count + 1) * sizeof *n->weight);
    kvt_status status = n->wanted != NULL && n->weight != NULL ? KVT_OK : KVT_E_MEMORY;
    for (uint32_t row = 0; status == KVT_OK && row < unit->rows; row++) {
        status = decode_choice_weights(unit, choice, row);
        if (status != KVT_OK) break;
        pages_plan plan;
        memcpy(n->weight + row * count, choice->weight, count * sizeof *n->weight);
        const pages_problem problem = {.count = (uint32_t)count,
                                       .weight = choice->weight,
                                       .tokens = choice->items.tokens,
                                       .budget_bytes = n->budget_bytes,
                                       .terms = terms};
        pages_choose(&problem, n->wanted + row * count, &plan);
    }
    return status;
}

typedef struct moves {
    double hit, wanted;
} moves;

static void moves_add(moves *m, const needs *n, uint32_t row, double hit, double wanted)
{
    if (row < n->rows / 8) return;
    m->hit += hit;
    m->wanted += wanted;
}

static kvt_status play_rule(const needs *n, windows_rule rule, double size, moves *m)
{
    const uint32_t count = n->items->count;
    windows_unit unit;
    const bool fine =
        decode_window_open(n->items, n->terms, rule, size * (double)n->budget_bytes, &unit);
    *m = (moves){.hit = 0.0};
    for (uint32_t row = 0; fine && row < n->rows; row++) {
        windows_change change;
        windows_step(&unit, n->weight + (size_t)row * count, n->wanted + (size_t)row * count, NULL,
                     &change);
        moves_add(m, n, row, (double)change.hit_bytes,
                  (double)(change.hit_bytes + change.read_bytes));
    }
    decode_window_close(&unit);
    return fine ? KVT_OK : KVT_E_MEMORY;
}

/* ---- Belady ---- */

typedef struct use {
    uint32_t next, item;
} use;

static int compare_uses(const void *left, const void *right)
{
    const use *a = left, *b = right;
    if (a->next != b->next) return a->next < b->next ? -1 : 1;
    return a->item < b->item ? -1 : a->item > b->item;
}

static kvt_status play_belady(const needs *n, double size, moves *m)
{
    const uint32_t count = n->items->count;
    uint8_t *held = calloc(count + 1u, 1);
    use *all = malloc((count + 1u) * sizeof *all);
    const uint64_t capacity = (uint64_t)(size * (double)n->budget_bytes);
    *m = (moves){.hit = 0.0};
    for (uint32_t row = 0; held != NULL && all != NULL && row < n->rows; row++) {
        double hit = 0.0, wanted = 0.0;
        uint32_t candidates = 0;
        for (uint32_t i = 0; i < count; i++) {
            const bool used = n->wanted[(size_t)row * count + i] != PAGES_ABSENT;
            const double bytes = (double)n->items->tokens[i] * n->terms->token_bytes[PAGES_RAW];
            if (used) wanted += bytes;
            if (used && held[i]) hit += bytes;
            uint32_t next = row + 1;
            while (next < n->rows && n->wanted[(size_t)next * count + i] == PAGES_ABSENT)
                next++;
            if (used || held[i]) all[candidates++] = (use){next < n->rows ? next : UINT32_MAX, i};
            held[i] = 0;
        }
        moves_add(m, n, row, hit, wanted);
        qsort(all, candidates, sizeof *all, compare_uses);
        uint64_t taken = 0;
        for (uint32_t k = 0; k < candidates && all[k].next != UINT32_MAX; k++) {
            const uint64_t bytes =
                (uint64_t)n->items->tokens[all[k].item] * n->terms->token_bytes[PAGES_RAW];
            if (taken + bytes > capacity) continue;
            taken += bytes;
            held[all[k].item] = 1;
        }
    }
    const bool fine = held != NULL && all != NULL;
    free(held);
    free(all);
    return fine ? KVT_OK : KVT_E_MEMORY;
}

/* ---- all units ---- */

static kvt_status windows_budget(const needs *n, uint32_t budget, decode_windows *w)
{
    kvt_status status = KVT_OK;
    for (uint32_t size = 0; status == KVT_OK && size < WINDOW_SIZES; size++) {
        const double budgets = decode_window_sizes[size];
        moves m = {.hit = 0.0};
        for (uint32_t rule = 0; status == KVT_OK && rule < WINDOWS_RULES; rule++) {
            status = play_rule(n, (windows_rule)rule, budgets, &m);
            w->hit[budget][size][rule] += m.hit;
        }
        if (size == 0) w->wanted[budget] += m.wanted;
        if (status == KVT_OK) status = play_belady(n, budgets, &m);
        w->hit[budget][size][WINDOWS_RULES] += m.hit;
    }
    return status;
}

kvt_status decode_windows_unit(decode_unit *unit, decode_choice *choice, decode_windows *windows)
{
    pages_terms terms;
    kvt_status status = KVT_OK;
    pages_terms_init(&terms, unit->dim, 2, 1u << PAGES_RAW, 1);
    for (uint32_t b = 0; status == KVT_OK && b < WINDOW_BUDGETS; b++) {
        needs n;
        status = needs_open(&n, unit, choice, decode_window_budgets[b], &terms);
        if (status == KVT_OK) status = windows_budget(&n, b, windows);
        free(n.wanted);
        free(n.weight);
    }
    return status;
}
