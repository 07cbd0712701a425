/* SPDX-License-Identifier: Apache-2.0 */
/*
 * decode_half.c - units of what a step brings of pages that are in memory: whole pages, clusters,
 * single tokens by the library's codes, and those of an oracle.
 *
 * Half of the pages, the hottest by their weights in the steps before, are in memory. A step brings
 * a share of their tokens, nothing of the other half, and the estimate of the rest.
 */
#include "decode.h"
#include "lab/private.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { HALF_WARM = 16 }; /* most steps before the first one that counts: a quarter of all */

#define HALF_DECAY 0.9f

typedef struct half_state {
    decode_unit *unit;
    decode_choice choice;
    singles_codes codes;
    singles_work scratch;
    singles_choice singles;
    uint64_t *order;   /* items, the heaviest last */
    float *heat;       /* [pages] */
    uint8_t *variant;  /* [pages] */
    uint8_t *of_place; /* [zone] */
    float *estimate, *estimate_lse;
} half_state;

static kvt_status half_open(half_state *s, decode_unit *unit)
{
    const sparse_rows keys = {unit->keys + DECODE_SINKS * unit->dim, unit->dim * 2};
    const uint32_t pages = unit->paging.pages;
    *s = (half_state){.unit = unit,
                      .order = malloc((unit->zone + 1u) * sizeof *s->order),
                      .heat = calloc(pages + 1u, sizeof *s->heat),
                      .variant = malloc(pages + 1u),
                      .of_place = malloc(unit->zone + 1u),
                      .estimate = malloc((size_t)unit->group * unit->dim * sizeof(float)),
                      .estimate_lse = malloc(unit->group * sizeof(float))};
    kvt_status status = decode_choice_open(unit, DECODE_CLUSTER, DECODE_CLUSTERS, 0, &s->choice);
    if (status == KVT_OK)
        status = sparse_singles_build(&unit->index, &keys, KVT_DTYPE_FP16, 1, &s->codes);
    if (status == KVT_OK)
        status = sparse_singles_work_open(unit->zone, unit->group, unit->dim, &s->scratch);
    if (status == KVT_OK)
        status =
            sparse_singles_open(unit->zone, pages, unit->index.lanes, unit->group, &s->singles);
    return s->order && s->heat && s->variant && s->of_place && s->estimate && s->estimate_lse
               ? status
               : KVT_E_MEMORY;
}

static void half_close(half_state *s)
{
    decode_choice_close(&s->choice);
    sparse_singles_free(&s->codes);
    sparse_singles_work_close(&s->scratch);
    sparse_singles_close(&s->singles);
    free(s->order);
    free(s->heat);
    free(s->variant);
    free(s->of_place);
    free(s->estimate);
    free(s->estimate_lse);
}

/* An item to sort by a weight that is not negative. */
static uint64_t half_item(float weight, uint32_t item)
{
    uint32_t bits;
    memcpy(&bits, &weight, sizeof bits);
    return (uint64_t)bits << 32 | item;
}

static int half_order(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}

static bool half_has(const half_state *s, uint32_t place)
{
    return s->singles.page[sparse_page_of(&s->unit->paging, place)] != 0;
}

/* The hottest half of the pages; returns its tokens. */
static uint32_t half_pages(half_state *s)
{
    const sparse_paging *paging = &s->unit->paging;
    uint32_t tokens = 0;
    for (uint32_t p = 0; p < paging->pages; p++)
        s->order[p] = half_item(s->heat[p], p);
    qsort(s->order, paging->pages, sizeof *s->order, half_order);
    for (uint32_t i = 0; i < paging->pages; i++) {
        const uint32_t page = (uint32_t)s->order[i];
        s->singles.page[page] = i < (paging->pages + 1) / 2;
        if (s->singles.page[page])
            tokens += sparse_page_first(paging, page + 1) - sparse_page_first(paging, page);
    }
    return tokens;
}

/* The true weight of a place, mean over the group. */
static double half_truth(const half_state *s, uint32_t row, uint32_t place)
{
    const decode_unit *u = s->unit;
    double weight = 0.0;
    for (uint32_t g = 0; g < u->group; g++) {
        const size_t at = (size_t)row * u->group + g;
        weight += exp((double)u->logits[PAGES_RAW][at * u->zone + place] - u->zone_lse[at]);
    }
    return weight / u->group;
}

/* Brings the heaviest pages, clusters or tokens, by the index or by the truth. */
static void half_bring(half_state *s, uint32_t row, decode_half unit, uint32_t tokens)
{
    const decode_unit *u = s->unit;
    const sparse_paging *paging = &u->paging;
    const uint32_t count = unit == DECODE_HALF_PAGE      ? paging->pages
                           : unit == DECODE_HALF_CLUSTER ? u->index.clusters
                                                         : u->zone;
    for (uint32_t i = 0; i < count; i++) {
        const float weight = unit == DECODE_HALF_PAGE ? u->work.page[i]
                             : unit == DECODE_HALF_CLUSTER
                                 ? u->work.weight[i] / (float)u->work.tokens[i]
                                 : (float)half_truth(s, row, i);
        s->order[i] = half_item(weight, i);
    }
    qsort(s->order, count, sizeof *s->order, half_order);
    if (unit == DECODE_HALF_PAGE)
        tokens = (tokens + paging->page_tokens - 1) / paging->page_tokens * paging->page_tokens;
    for (uint32_t i = 0; i < count && tokens > 0; i++) {
        const uint32_t item = (uint32_t)s->order[i];
        uint32_t first = item, end = item + 1, own = 0;
        if (unit == DECODE_HALF_PAGE) {
            first = sparse_page_first(paging, item);
            end = sparse_page_first(paging, item + 1);
        } else if (unit == DECODE_HALF_CLUSTER) {
            first = u->index.first[item];
            end = u->index.first[item + 1];
        }
        for (uint32_t p = first; p < end; p++)
            own += half_has(s, p);
        if (own > tokens) continue;
        for (uint32_t p = first; p < end; p++)
            if (half_has(s, p)) s->of_place[p] = PAGES_RAW;
        tokens -= own;
    }
}

static void half_singles(half_state *s, uint32_t row, double share)
{
    decode_unit *u = s->unit;
    for (uint32_t p = 0; p < u->paging.pages; p++)
        s->variant[p] = s->singles.page[p] ? PAGES_RAW : PAGES_ABSENT;
    sparse_singles_choose(&s->codes, &u->index, &u->paging,
                          u->queries + (size_t)row * u->group * u->dim, u->scale, (float)share,
                          &s->scratch, &u->work, &s->singles);
    for (uint32_t p = 0; p < u->zone; p++)
        if (singles_is_chosen(&s->singles, p)) s->of_place[p] = PAGES_RAW;
    sparse_choose_estimate(&u->index, &u->paging, s->variant, &u->work, s->estimate,
                           s->estimate_lse);
}

static void half_step(half_state *s, uint32_t row, decode_halves *halves)
{
    decode_unit *u = s->unit;
    const uint32_t tokens = half_pages(s);
    double whole = 0.0;
    for (uint32_t p = 0; p < u->zone; p++)
        whole += half_has(s, p) ? half_truth(s, row, p) : 0.0;
    for (uint32_t i = 0; i < DECODE_HALVES * HALF_BUDGETS; i++) {
        const uint32_t unit = i / HALF_BUDGETS, b = i % HALF_BUDGETS;
        const double share = decode_budgets[b + 2];
        double recall = 0.0;
        memset(s->of_place, PAGES_ABSENT, u->zone);
        if (unit == DECODE_HALF_SINGLE) {
            half_singles(s, row, share);
        } else {
            half_bring(s, row, (decode_half)unit, (uint32_t)(share * tokens + 0.5));
            decode_unit_estimate(u, s->of_place, s->estimate, s->estimate_lse);
        }
        decode_unit_judge(u, row, s->of_place, s->estimate, s->estimate_lse,
                          &halves->error[unit][b], &recall);
        halves->recall[unit][b] += whole > 0.0 ? recall / whole : 0.0;
    }
    halves->steps++;
    for (uint32_t g = 0; g < u->group * u->dim; g++) {
        const double o = (double)u->exact[(size_t)row * u->group * u->dim + g];
        halves->energy += o * o;
    }
}

kvt_status decode_half_unit(decode_unit *unit, decode_halves *halves)
{
    half_state s;
    const uint32_t warm = unit->rows / 4 < HALF_WARM ? unit->rows / 4 : HALF_WARM;
    kvt_status status = half_open(&s, unit);
    for (uint32_t row = 0; status == KVT_OK && row < unit->rows; row++) {
        status = decode_choice_weights(unit, &s.choice, row);
        if (status == KVT_OK && row >= warm) half_step(&s, row, halves);
        for (uint32_t p = 0; p < unit->paging.pages; p++)
            s.heat[p] = HALF_DECAY * s.heat[p] + unit->work.page[p];
    }
    half_close(&s);
    return status;
}
