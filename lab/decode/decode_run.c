/* SPDX-License-Identifier: Apache-2.0 */
/*
 * decode_run.c - one configuration over the steps of one unit: weights, plan, window, judgement.
 */
#include "decode.h"

#include "lab/private.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct run_state {
    decode_unit *unit;
    decode_choice *choice;
    decode_result *result;
    pages_terms terms, grains;
    uint64_t budget_bytes;
    windows_unit window;
    uint8_t *wanted;   /* of each item */
    uint8_t *merged;   /* with what the window has */
    uint8_t *of_place; /* variant of each place */
    float *estimate;   /* [group][dim] */
    float *estimate_lse;
} run_state;

/* Bytes of a share of the zone at 16 bits; of pages and runs, whole ones. */
static uint64_t budget_of(const decode_unit *unit, const decode_config *config)
{
    const uint64_t token = (uint64_t)unit->dim * 4;
    uint64_t tokens = (uint64_t)(config->budget * unit->zone + 0.5);
    const bool raw = config->variants == 1u << PAGES_RAW;
    if (raw && config->layout == DECODE_RUNS && config->index != DECODE_CHUNK_MEAN &&
        config->index != DECODE_COACTIVE)
        tokens = (tokens + config->run - 1) / config->run * config->run;
    return tokens * token;
}

static kvt_status run_open(run_state *s)
{
    const decode_config *config = &s->result->config;
    const decode_items *items = &s->choice->items;
    const uint32_t count = items->count + 1;
    pages_terms_init(&s->terms, s->unit->dim, 2, config->variants, 1);
    pages_terms_init(&s->grains, s->unit->dim, 2, config->variants, SPARSE_GRAIN);
    s->budget_bytes = budget_of(s->unit, config);
    s->wanted = calloc(count, 1);
    s->merged = calloc(count, 1);
    s->of_place = malloc(s->unit->zone + 1u);
    s->estimate = malloc((size_t)s->unit->group * s->unit->dim * sizeof(float));
    s->estimate_lse = malloc(s->unit->group * sizeof(float));
    const bool fine = decode_window_open(items, &s->terms, config->rule,
                                         config->window * (double)s->budget_bytes, &s->window);
    return fine && s->wanted && s->merged && s->of_place && s->estimate && s->estimate_lse
               ? KVT_OK
               : KVT_E_MEMORY;
}

static void run_close(run_state *s)
{
    free(s->wanted);
    free(s->merged);
    free(s->of_place);
    free(s->estimate);
    free(s->estimate_lse);
    decode_window_close(&s->window);
}

/* Which variant each place has. */
static void run_places(run_state *s, const uint8_t *variant)
{
    const decode_items *items = &s->choice->items;
    memset(s->of_place, PAGES_ABSENT, s->unit->zone);
    for (uint32_t i = 0; i < items->count; i++) {
        if (variant[i] == PAGES_ABSENT) continue;
        for (uint32_t j = items->first[i]; j < items->first[i + 1]; j++)
            if (s->of_place[items->places[j]] < variant[i])
                s->of_place[items->places[j]] = variant[i];
    }
}

/* The change of a cluster's values towards the folded query, in steps of their slopes. */
static double slope_change(const decode_unit *u, uint32_t g, uint32_t c)
{
    const int8_t *slope = u->index.slopes + 2 * (size_t)c * u->dim;
    double along = 0.0;
    for (uint32_t d = 0; d < u->dim; d++)
        along += (double)slope[d] * u->work.folded[(size_t)g * u->dim + d];
    along *= (double)u->work.folded_unit[g] * (double)u->index.slope[c];
    return fmax(fmin(along, 1.0), -1.0);
}

/* The estimate by place: clusters in proportion to their tokens that no item brings. The library's
 * does the same by page (sparse/choose.c), which this one must agree with. */
void decode_unit_estimate(const decode_unit *u, const uint8_t *variant_of_place, float *estimate,
                          float *estimate_lse)
{
    const sparse_index *index = &u->index;
    const sparse_work *work = &u->work;
    for (uint32_t g = 0; g < u->group; g++) {
        float *output = estimate + (size_t)g * u->dim;
        double sum = 0.0, sums[SPARSE_HEAD_DIM_MAX] = {0.0};
        uint32_t next = 0;
        for (uint32_t c = 0; c < index->clusters; c++) {
            uint32_t absent = 0;
            for (uint32_t p = index->first[c]; p < index->first[c + 1]; p++)
                absent += variant_of_place[p] == PAGES_ABSENT;
            if (absent == 0) continue;
            const double all = (double)work->scores[(size_t)g * work->lanes + c] / work->tokens[c];
            const bool full = sparse_choose_is_full(index, work, c, &next);
            const bool sloped = full && sparse_choose_slopes(index, work, c);
            const int8_t *mean = full ? index->means + (size_t)c * u->dim
                                      : index->shared + (size_t)(c / SPARSE_SHARED) * u->dim;
            const int8_t *slope = sloped ? index->slopes + (2 * (size_t)c + 1) * u->dim : mean;
            const double change = sloped ? slope_change(u, g, c) : 0.0;
            sum += all * absent;
            for (uint32_t d = 0; all > 0.0 && d < u->dim; d++)
                sums[d] += all * absent * (mean[d] + change * slope[d]);
        }
        estimate_lse[g] = sum > 0.0 ? work->largest[g] + (float)log(sum) : -INFINITY;
        for (uint32_t d = 0; d < u->dim; d++)
            output[d] = sum > 0.0 ? (float)(sums[d] / sum * (double)index->value_step[d]) : 0.0f;
    }
}

/* Bytes read beyond what is held, as coded and in whole blocks. */
static void run_count(run_state *s)
{
    const decode_items *items = &s->choice->items;
    decode_result *r = s->result;
    for (uint32_t i = 0; i < items->count; i++) {
        const pages_variant held = (pages_variant)s->window.held[i];
        const pages_variant wanted = (pages_variant)s->wanted[i];
        r->bytes += (double)pages_read_bytes(&s->terms, items->tokens[i], held, wanted);
        r->grain_bytes += (double)pages_read_bytes(&s->grains, items->tokens[i], held, wanted);
    }
}

static kvt_status run_step(run_state *s, uint32_t row)
{
    const decode_config *config = &s->result->config;
    const bool windowed = config->window > 0.0;
    kvt_status status = decode_choice_weights(s->unit, s->choice, row);
    if (status != KVT_OK) return status;
    const pages_problem problem = {.count = s->choice->items.count,
                                   .weight = s->choice->weight,
                                   .tokens = s->choice->items.tokens,
                                   .held =
                                       windowed && config->windows_choose ? s->window.held : NULL,
                                   .budget_bytes = s->budget_bytes,
                                   .terms = &s->terms};
    pages_plan plan;
    pages_choose(&problem, s->wanted, &plan);
    if (windowed && !config->windows_choose)
        for (uint32_t i = 0; i < problem.count; i++)
            if (s->wanted[i] != PAGES_ABSENT && s->window.held[i] > s->wanted[i])
                s->wanted[i] = s->window.held[i];
    run_count(s);
    if (windowed && config->windows_attend) {
        for (uint32_t i = 0; i < problem.count; i++)
            s->merged[i] = s->wanted[i] > s->window.held[i] ? s->wanted[i] : s->window.held[i];
        run_places(s, s->merged);
    } else {
        run_places(s, s->wanted);
    }
    if (config->estimate) decode_unit_estimate(s->unit, s->of_place, s->estimate, s->estimate_lse);
    decode_unit_judge(s->unit, row, s->of_place, config->estimate ? s->estimate : NULL,
                      s->estimate_lse, &s->result->error, &s->result->recall);
    if (windowed) {
        windows_change change;
        windows_step(&s->window, s->choice->weight, s->wanted, NULL, &change);
        s->result->hit_bytes += (double)change.hit_bytes;
        s->result->wanted_bytes += (double)(change.hit_bytes + change.read_bytes);
    }
    return KVT_OK;
}

kvt_status decode_config_run(decode_unit *unit, decode_choice *choice, decode_result *result)
{
    run_state s = {.unit = unit, .choice = choice, .result = result};
    kvt_status status = run_open(&s);
    for (uint32_t row = 0; status == KVT_OK && row < unit->rows; row++)
        status = run_step(&s, row);
    result->units++;
    result->steps = unit->rows;
    run_close(&s);
    return status;
}
