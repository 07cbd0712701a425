/* SPDX-License-Identifier: Apache-2.0 */
/*
 * decode_layer.c - the units of one layer together, and what published methods read of them.
 */
#include "decode_layer.h"

#include "lab/private.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define BUDGET_LEAST 0.0005

/* ---- the layer ---- */

kvt_status decode_layer_open(uint32_t tokens, uint32_t warm, uint32_t steps, uint32_t judged,
                             uint64_t seed, decode_layer *layer)
{
    const decode_options options = {.seed = seed, .raw_alone = true};
    *layer = (decode_layer){.warm = warm, .steps = steps, .judged = judged};
    decode_source_synthetic(1, tokens, warm + steps, seed, &layer->source);
    layer->source.grows = false;
    layer->source.all = tokens;
    layer->units = calloc(layer->source.kv_heads, sizeof *layer->units);
    kvt_status status = layer->units != NULL ? KVT_OK : KVT_E_MEMORY;
    for (uint32_t h = 0; status == KVT_OK && h < layer->source.kv_heads; h++)
        status = decode_unit_open(&layer->source, &options, 0, h, &layer->units[h]);
    if (status != KVT_OK) decode_layer_close(layer);
    return status;
}

void decode_layer_close(decode_layer *layer)
{
    for (uint32_t h = 0; layer->units != NULL && h < layer->source.kv_heads; h++)
        decode_unit_close(&layer->units[h]);
    free(layer->units);
    layer->units = NULL;
}

static void data_rows(const decode_layer *layer, bool values, uint16_t *rows)
{
    const uint32_t heads = layer->source.kv_heads, dim = layer->source.head_dim;
    for (uint32_t t = 0; t < layer->source.tokens; t++)
        for (uint32_t h = 0; h < heads; h++) {
            const uint16_t *from = values ? layer->units[h].values : layer->units[h].keys;
            memcpy(rows + ((size_t)t * heads + h) * dim, from + (size_t)t * dim,
                   dim * sizeof *rows);
        }
}

kvt_status decode_data_make(const decode_layer *layer, decode_data *data)
{
    const decode_source *source = &layer->source;
    const size_t cells = (size_t)source->tokens * source->kv_heads * source->head_dim;
    const size_t width = (size_t)source->group * source->head_dim;
    const uint32_t rows = layer->warm + layer->steps;
    *data = (decode_data){.row = source->kv_heads * width,
                          .bytes = 2 * sizeof *data->k * cells,
                          .k = malloc(cells * sizeof *data->k),
                          .v = malloc(cells * sizeof *data->v)};
    data->queries = malloc(rows * data->row * sizeof *data->queries);
    if (data->k == NULL || data->v == NULL || data->queries == NULL) return KVT_E_MEMORY;
    data_rows(layer, false, data->k);
    data_rows(layer, true, data->v);
    for (uint32_t i = 0; i < rows * source->kv_heads; i++)
        memcpy(data->queries + i * width,
               layer->units[i % source->kv_heads].queries + i / source->kv_heads * width,
               width * sizeof *data->queries);
    return KVT_OK;
}

void decode_data_free(decode_data *data)
{
    free(data->k);
    free(data->v);
    free(data->queries);
}

int decode_layer_judged(const decode_layer *layer, uint32_t step)
{
    const uint32_t stride = layer->steps / layer->judged;
    return step % stride == 0 && step / stride < layer->judged ? (int)(step / stride) : -1;
}

/* ---- trials ---- */

/* SWARM's entries are tokens of all heads. */
static kvt_status part_coactive(decode_layer *layer, decode_part *part)
{
    const uint32_t zone = layer->units[0].zone;
    decode_profile profile;
    kvt_status status = decode_profile_open(zone, &profile);
    float *attention = malloc((zone + 1u) * sizeof *attention);
    if (attention == NULL) status = KVT_E_MEMORY;
    for (uint32_t row = 0; status == KVT_OK && row < layer->warm; row++) {
        memset(attention, 0, zone * sizeof *attention);
        for (uint32_t h = 0; h < layer->source.kv_heads; h++)
            decode_unit_attention(&layer->units[h], row, attention);
        status = decode_profile_add(&profile, attention);
    }
    if (status == KVT_OK)
        status = decode_coactive_build(&profile, &part->choice.items, &part->choice.medoids);
    if (status == KVT_OK) {
        part->choice.row = malloc((part->choice.items.count + 1u) * sizeof(float));
        if (part->choice.row == NULL) status = KVT_E_MEMORY;
    }
    free(attention);
    decode_profile_close(&profile);
    return status;
}

/* A medoid's own score stands for its cluster, over all heads. */
static void coactive_weights(decode_layer *layer, decode_part *part, uint32_t row, float *weight)
{
    const uint32_t heads = layer->source.kv_heads, group = layer->source.group;
    decode_choice *choice = &part->choice;
    for (uint32_t q = 0; q < heads * group; q++) {
        const decode_unit *unit = &layer->units[q / group];
        const size_t at = (size_t)row * group + q % group;
        for (uint32_t i = 0; i < choice->items.count; i++)
            choice->row[i] =
                unit->logits[PAGES_RAW][at * unit->zone + unit->place_of[choice->medoids[i]]];
        decode_softmax_add(choice->row, choice->items.tokens, choice->items.count, heads * group,
                           weight);
    }
}

static kvt_status part_open(decode_layer *layer, const decode_method *method, decode_part *part)
{
    const uint32_t rows = layer->warm + layer->steps;
    decode_unit *unit = &layer->units[part->unit];
    const bool whole = method->index == DECODE_COACTIVE;
    kvt_status status =
        whole ? part_coactive(layer, part)
              : decode_choice_open(unit, method->index, method->layout, method->run, &part->choice);
    if (status != KVT_OK) return status;
    const size_t count = part->choice.items.count;
    part->weight = calloc(rows * count + 1, sizeof *part->weight);
    if (part->weight == NULL) return KVT_E_MEMORY;
    for (uint32_t row = 0; status == KVT_OK && row < rows; row++) {
        if (whole) {
            coactive_weights(layer, part, row, part->weight + row * count);
            continue;
        }
        status = decode_choice_weights(unit, &part->choice, row);
        memcpy(part->weight + row * count, part->choice.weight, count * sizeof *part->weight);
    }
    return status;
}

kvt_status decode_trial_open(decode_layer *layer, const decode_method *method, decode_trial *trial)
{
    const uint32_t heads = layer->source.kv_heads;
    const bool whole = method->index == DECODE_COACTIVE;
    *trial = (decode_trial){.method = method,
                            .part_count = whole ? 1 : heads,
                            .parts = calloc(heads, sizeof *trial->parts)};
    kvt_status status = trial->parts != NULL ? KVT_OK : KVT_E_MEMORY;
    for (uint32_t i = 0; status == KVT_OK && i < trial->part_count; i++) {
        trial->parts[i] = (decode_part){.unit = i, .units = whole ? heads : 1};
        status = part_open(layer, method, &trial->parts[i]);
    }
    if (status != KVT_OK) decode_trial_close(trial);
    return status;
}

void decode_trial_close(decode_trial *trial)
{
    for (uint32_t i = 0; trial->parts != NULL && i < trial->part_count; i++) {
        decode_choice_close(&trial->parts[i].choice);
        free(trial->parts[i].weight);
    }
    free(trial->parts);
    trial->parts = NULL;
}

/* ---- bytes ---- */

static uint32_t token_bytes(const decode_layer *layer, const decode_part *part)
{
    return layer->source.head_dim * 4u * part->units;
}

uint32_t decode_item_bytes(const decode_layer *layer, const decode_part *part, uint32_t item)
{
    const uint32_t bytes = part->choice.items.tokens[item] * token_bytes(layer, part);
    return (bytes + SPARSE_GRAIN - 1) / SPARSE_GRAIN * SPARSE_GRAIN;
}

uint32_t decode_part_slot(const decode_layer *layer, const decode_part *part)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < part->choice.items.count; i++) {
        const uint32_t bytes = decode_item_bytes(layer, part, i);
        if (bytes > most) most = bytes;
    }
    return most;
}

/* ---- a run ---- */

typedef struct player {
    decode_layer *layer;
    const decode_method *method;
    decode_part *part;
    uint32_t number; /* of the part */
    pages_terms terms;
    uint64_t budget_bytes;
    windows_unit window;
    uint8_t *wanted;   /* of each item */
    uint8_t *of_place; /* of one unit */
    uint8_t *token;    /* of the zone: 1 wanted, 2 held */
    float *estimate, *estimate_lse;
    decode_read **lists; /* of each step */
    uint32_t *counts;
    double error, bytes, hit_bytes, wanted_bytes;
} player;

static kvt_status player_open(player *p, double budget)
{
    const decode_items *items = &p->part->choice.items;
    const decode_unit *unit = &p->layer->units[0];
    const size_t count = items->count + 1u;
    const uint32_t heads = p->layer->source.kv_heads;
    pages_terms_init(&p->terms, unit->dim * p->part->units, 2, 1u << PAGES_RAW, 1);
    p->budget_bytes = (uint64_t)(budget * unit->zone + 0.5) * token_bytes(p->layer, p->part);
    if (budget >= 1.0) p->budget_bytes = PAGES_BUDGET_ALL;
    const double window =
        p->method->window > 0.0
            ? p->method->window * budget * unit->zone * token_bytes(p->layer, p->part)
            : (double)p->method->window_bytes / heads * p->part->units;
    p->wanted = calloc(count, 1);
    p->of_place = malloc(unit->zone + 1u);
    p->token = malloc(unit->zone + 1u);
    p->estimate = malloc((size_t)unit->group * unit->dim * sizeof(float));
    p->estimate_lse = malloc(unit->group * sizeof(float));
    const bool fine = decode_window_open(items, &p->terms, p->method->rule, window, &p->window);
    return fine && p->wanted && p->of_place && p->token && p->estimate && p->estimate_lse
               ? KVT_OK
               : KVT_E_MEMORY;
}

static void player_close(player *p)
{
    free(p->wanted);
    free(p->of_place);
    free(p->token);
    free(p->estimate);
    free(p->estimate_lse);
    decode_window_close(&p->window);
}

static kvt_status player_judge(player *p, uint32_t row)
{
    const decode_items *items = &p->part->choice.items;
    const bool whole = p->part->units > 1;
    for (uint32_t u = p->part->unit; u < p->part->unit + p->part->units; u++) {
        decode_unit *unit = &p->layer->units[u];
        double recall = 0.0;
        memset(p->of_place, PAGES_ABSENT, unit->zone);
        for (uint32_t i = 0; i < items->count; i++)
            for (uint32_t j = items->first[i];
                 p->wanted[i] != PAGES_ABSENT && j < items->first[i + 1]; j++)
                p->of_place[whole ? unit->place_of[items->places[j]] : items->places[j]] =
                    PAGES_RAW;
        if (p->method->estimate) {
            const kvt_status status = decode_choice_weights(unit, &p->part->choice, row);
            if (status != KVT_OK) return status;
            decode_unit_estimate(unit, p->of_place, p->estimate, p->estimate_lse);
        }
        decode_unit_judge(unit, row, p->of_place, p->method->estimate ? p->estimate : NULL,
                          p->estimate_lse, &p->error, &recall);
    }
    return KVT_OK;
}

/* What the step reads: items, or tokens that no item in memory has. Returns their number; list may
 * be NULL. */
static uint32_t player_reads(player *p, decode_read *list)
{
    const decode_items *items = &p->part->choice.items;
    const bool whole = p->part->units > 1;
    uint32_t count = 0;
    if (whole) memset(p->token, 0, p->layer->units[0].zone);
    for (uint32_t i = 0; i < items->count; i++) {
        const uint8_t mark = p->window.held[i] != PAGES_ABSENT ? 2 : p->wanted[i] != 0 ? 1 : 0;
        if (!whole && mark == 1) {
            if (list != NULL) list[count] = (decode_read){p->number, i};
            count++;
            p->bytes += list != NULL ? decode_item_bytes(p->layer, p->part, i) : 0;
        }
        for (uint32_t j = items->first[i]; whole && mark != 0 && j < items->first[i + 1]; j++)
            p->token[items->places[j]] |= mark;
    }
    for (uint32_t t = 0; whole && t < p->layer->units[0].zone; t++) {
        if (p->token[t] != 1) continue;
        if (list != NULL) list[count] = (decode_read){p->number, t};
        count++;
        p->bytes += list != NULL ? token_bytes(p->layer, p->part) : 0;
    }
    return count;
}

static kvt_status player_step(player *p, uint32_t row, decode_read **list_out, uint32_t *count_out)
{
    const decode_items *items = &p->part->choice.items;
    const float *weight = p->part->weight + (size_t)row * items->count;
    const pages_problem problem = {.count = items->count,
                                   .weight = weight,
                                   .tokens = items->tokens,
                                   .budget_bytes = p->budget_bytes,
                                   .terms = &p->terms};
    kvt_status status = KVT_OK;
    pages_plan plan;
    pages_choose(&problem, p->wanted, &plan);
    if (row >= p->layer->warm) {
        *count_out = player_reads(p, NULL);
        *list_out = malloc((*count_out + 1u) * sizeof **list_out);
        if (*list_out == NULL) return KVT_E_MEMORY;
        (void)player_reads(p, *list_out);
        if (decode_layer_judged(p->layer, row - p->layer->warm) >= 0) status = player_judge(p, row);
    }
    windows_change change;
    windows_step(&p->window, weight, p->wanted, NULL, &change);
    if (row >= p->layer->warm) {
        p->hit_bytes += (double)change.hit_bytes;
        p->wanted_bytes += (double)(change.hit_bytes + change.read_bytes);
    }
    return status;
}

void decode_reads_close(decode_reads *reads)
{
    free(reads->first);
    free(reads->list);
    *reads = (decode_reads){.room = 0};
}

/* Puts the lists of all parts one after the other, step by step. */
static kvt_status reads_join(decode_reads *reads, decode_read **lists, const uint32_t *counts,
                             uint32_t parts, uint32_t steps)
{
    size_t at = 0, all = 0;
    for (size_t i = 0; i < (size_t)parts * steps; i++)
        all += counts[i];
    reads->first = malloc((steps + 1u) * sizeof *reads->first);
    reads->list = malloc((all + 1) * sizeof *reads->list);
    reads->room = all;
    if (reads->first == NULL || reads->list == NULL) return KVT_E_MEMORY;
    for (uint32_t step = 0; step < steps; step++) {
        reads->first[step] = (uint32_t)at;
        for (uint32_t p = 0; p < parts; p++) {
            const size_t from = (size_t)p * steps + step;
            memcpy(reads->list + at, lists[from], counts[from] * sizeof **lists);
            at += counts[from];
        }
    }
    reads->first[steps] = (uint32_t)at;
    return KVT_OK;
}

static double judged_energy(const decode_layer *layer)
{
    double energy = 0.0;
    for (uint32_t step = 0; step < layer->steps; step++) {
        if (decode_layer_judged(layer, step) < 0) continue;
        for (uint32_t h = 0; h < layer->source.kv_heads; h++) {
            const decode_unit *unit = &layer->units[h];
            const size_t width = (size_t)unit->group * unit->dim;
            const float *exact = unit->exact + (layer->warm + step) * width;
            for (size_t d = 0; d < width; d++)
                energy += (double)exact[d] * (double)exact[d];
        }
    }
    return energy;
}

kvt_status decode_trial_run(decode_layer *layer, decode_trial *trial, double budget,
                            decode_reads *reads, decode_figures *figures)
{
    const uint32_t steps = layer->steps, parts = trial->part_count;
    decode_read **lists = calloc((size_t)parts * steps + 1, sizeof *lists);
    uint32_t *counts = calloc((size_t)parts * steps + 1, sizeof *counts);
    kvt_status status = lists != NULL && counts != NULL ? KVT_OK : KVT_E_MEMORY;
    double error = 0.0, bytes = 0.0, hit = 0.0, wanted = 0.0;
    for (uint32_t i = 0; i < parts && status == KVT_OK; i++) {
        player p = {.layer = layer, .method = trial->method, .part = &trial->parts[i], .number = i};
        status = player_open(&p, budget);
        for (uint32_t row = 0; status == KVT_OK && row < layer->warm + steps; row++) {
            const size_t at = (size_t)i * steps + (row >= layer->warm ? row - layer->warm : 0);
            status = player_step(&p, row, &lists[at], &counts[at]);
        }
        error += p.error;
        bytes += p.bytes;
        hit += p.hit_bytes;
        wanted += p.wanted_bytes;
        player_close(&p);
    }
    *figures = (decode_figures){.error = sqrt(error / judged_energy(layer)),
                                .bytes = bytes / steps,
                                .hit_ratio = wanted > 0.0 ? hit / wanted : 0.0};
    if (status == KVT_OK && reads != NULL) status = reads_join(reads, lists, counts, parts, steps);
    for (size_t i = 0; lists != NULL && i < (size_t)parts * steps; i++)
        free(lists[i]);
    free(lists);
    free(counts);
    return status;
}

kvt_status decode_trial_find(decode_layer *layer, decode_trial *trial, double error,
                             double *budget_out)
{
    double low = BUDGET_LEAST, high = 1.0;
    decode_figures figures;
    while (high / low > 1.125) {
        const double middle = sqrt(low * high);
        const kvt_status status = decode_trial_run(layer, trial, middle, NULL, &figures);
        if (status != KVT_OK) return status;
        *(figures.error <= error ? &high : &low) = middle;
    }
    *budget_out = high;
    return KVT_OK;
}
