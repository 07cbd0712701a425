/* SPDX-License-Identifier: Apache-2.0 */
/*
 * decode_items.c - the sets of tokens that an index chooses between, and the weights that the
 * cluster index and the oracle give them.
 */
#include "decode.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

kvt_status decode_items_open(decode_items *items, uint32_t count, uint32_t places)
{
    *items = (decode_items){.count = count};
    items->first = calloc((size_t)count + 1, sizeof *items->first);
    items->places = malloc(((size_t)places + 1) * sizeof *items->places);
    items->tokens = malloc(((size_t)count + 1) * sizeof *items->tokens);
    return items->first != NULL && items->places != NULL && items->tokens != NULL ? KVT_OK
                                                                                  : KVT_E_MEMORY;
}

void decode_items_close(decode_items *items)
{
    free(items->first);
    free(items->places);
    free(items->tokens);
    free(items->cluster);
}

bool decode_window_open(const decode_items *items, const pages_terms *terms, windows_rule rule,
                        double capacity_bytes, windows_unit *window)
{
    const size_t count = items->count + 1u;
    *window = (windows_unit){.pages = items->count,
                             .tokens = items->tokens,
                             .terms = terms,
                             .rate = window_rules[rule],
                             .decay = WINDOWS_DECAY_DEFAULT,
                             .capacity_bytes = (uint64_t)capacity_bytes,
                             .held = calloc(count, 1),
                             .standing = calloc(count, sizeof(float)),
                             .order = malloc(count * sizeof(uint64_t))};
    return window->held != NULL && window->standing != NULL && window->order != NULL;
}

void decode_window_close(windows_unit *window)
{
    free(window->held);
    free(window->standing);
    free(window->order);
}

static void count_tokens(decode_items *items)
{
    for (uint32_t i = 0; i < items->count; i++)
        items->tokens[i] = (uint16_t)(items->first[i + 1] - items->first[i]);
}

kvt_status decode_items_runs(const decode_unit *unit, uint32_t run, decode_items *items)
{
    const uint32_t count = (unit->zone + run - 1) / run;
    const kvt_status status = decode_items_open(items, count, unit->zone);
    if (status != KVT_OK) return status;
    for (uint32_t i = 0; i <= count; i++)
        items->first[i] = i * run < unit->zone ? i * run : unit->zone;
    for (uint32_t t = 0; t < unit->zone; t++)
        items->places[t] = unit->place_of[t];
    count_tokens(items);
    return KVT_OK;
}

/* Pages, or single tokens, in packed order. */
static kvt_status items_packed(const decode_unit *unit, uint32_t tokens, decode_items *items)
{
    const uint32_t count = (unit->zone + tokens - 1) / tokens;
    const kvt_status status = decode_items_open(items, count, unit->zone);
    if (status != KVT_OK) return status;
    for (uint32_t i = 0; i <= count; i++)
        items->first[i] = i * tokens < unit->zone ? i * tokens : unit->zone;
    for (uint32_t p = 0; p < unit->zone; p++)
        items->places[p] = p;
    count_tokens(items);
    return KVT_OK;
}

/* Clusters; those of more than DECODE_ITEM_TOKENS are cut. */
static kvt_status items_clusters(const decode_unit *unit, decode_items *items)
{
    const sparse_index *index = &unit->index;
    uint32_t count = 0;
    for (uint32_t c = 0; c < index->clusters; c++)
        count +=
            (index->first[c + 1] - index->first[c] + DECODE_ITEM_TOKENS - 1) / DECODE_ITEM_TOKENS;
    const kvt_status status = decode_items_open(items, count, unit->zone);
    if (status != KVT_OK) return status;
    items->cluster = malloc(((size_t)count + 1) * sizeof *items->cluster);
    if (items->cluster == NULL) return KVT_E_MEMORY;
    uint32_t i = 0;
    for (uint32_t c = 0; c < index->clusters; c++)
        for (uint32_t p = index->first[c]; p < index->first[c + 1]; p += DECODE_ITEM_TOKENS) {
            items->cluster[i] = c;
            items->first[i++] = p;
        }
    items->first[count] = unit->zone;
    for (uint32_t p = 0; p < unit->zone; p++)
        items->places[p] = p;
    count_tokens(items);
    return KVT_OK;
}

kvt_status decode_choice_open(decode_unit *unit, decode_index index, decode_layout layout,
                              uint32_t run, decode_choice *choice)
{
    *choice = (decode_choice){.index = index, .layout = layout, .run = run};
    kvt_status status;
    if (index == DECODE_CHUNK_MEAN || index == DECODE_COACTIVE)
        status = KVT_OK; /* their own */
    else if (layout == DECODE_CLUSTERS)
        status = items_clusters(unit, &choice->items);
    else if (layout == DECODE_PAGES)
        status = items_packed(unit, unit->paging.page_tokens, &choice->items);
    else if (layout == DECODE_TOKENS)
        status = items_packed(unit, 1, &choice->items);
    else
        status = decode_items_runs(unit, run, &choice->items);
    if (status == KVT_OK && index == DECODE_COACTIVE)
        status = decode_coactive_open(unit, choice);
    else if (status == KVT_OK && index > DECODE_ORACLE)
        status = decode_rival_open(unit, choice);
    if (status != KVT_OK) return status;
    choice->weight = malloc(((size_t)choice->items.count + 1) * sizeof *choice->weight);
    choice->row = malloc(((size_t)choice->items.count + 1) * sizeof *choice->row);
    return choice->weight != NULL && choice->row != NULL ? KVT_OK : KVT_E_MEMORY;
}

void decode_choice_close(decode_choice *choice)
{
    decode_items_close(&choice->items);
    free(choice->keys[0]);
    free(choice->keys[1]);
    free(choice->medoids);
    sparse_index_free(&choice->chunks);
    free(choice->weight);
    free(choice->row);
}

void decode_softmax_add(const float *scores, const uint16_t *tokens, uint32_t count, uint32_t group,
                        float *weight)
{
    double largest = -INFINITY, sum = 0.0;
    for (uint32_t i = 0; i < count; i++)
        largest = fmax(largest, (double)scores[i]);
    for (uint32_t i = 0; i < count; i++)
        sum += tokens[i] * exp((double)scores[i] - largest);
    for (uint32_t i = 0; i < count; i++)
        weight[i] += (float)(tokens[i] * exp((double)scores[i] - largest) / sum / group);
}

/* True shares of the zone. */
static void oracle_weights(const decode_unit *unit, const decode_items *items, uint32_t row,
                           float *weight)
{
    memset(weight, 0, items->count * sizeof *weight);
    for (uint32_t g = 0; g < unit->group; g++) {
        const size_t at = (size_t)row * unit->group + g;
        for (uint32_t i = 0; i < items->count; i++)
            for (uint32_t j = items->first[i]; j < items->first[i + 1]; j++)
                weight[i] +=
                    (float)(exp((double)
                                    unit->logits[PAGES_RAW][at * unit->zone + items->places[j]] -
                                unit->zone_lse[at]) /
                            unit->group);
    }
}

/* Of runs by position: what their tokens' clusters weigh, in equal parts. */
static void run_weights(const decode_unit *unit, const decode_items *items, float *weight)
{
    const sparse_index *index = &unit->index;
    memset(weight, 0, items->count * sizeof *weight);
    for (uint32_t c = 0; c < index->clusters; c++) {
        const float share = unit->work.weight[c] / (float)unit->work.tokens[c];
        for (uint32_t p = index->first[c]; p < index->first[c + 1]; p++)
            weight[sparse_index_token(index, p) / items->tokens[0]] += share;
    }
}

static kvt_status cluster_weights(decode_unit *unit, const decode_choice *choice, uint32_t row,
                                  float *weight)
{
    static float no_scatter[SPARSE_HEAD_DIM_MAX]; /* zeros */
    const decode_items *items = &choice->items;
    sparse_index index = unit->index;
    if (choice->index == DECODE_CENTROID) index.key_scatter = no_scatter;
    const kvt_status status = sparse_choose_weights(
        &index, &unit->paging, unit->queries + (size_t)row * unit->group * unit->dim, unit->group,
        unit->scale, unit->resident_lse + (size_t)row * unit->group, &unit->work);
    if (status != KVT_OK) return status;
    sparse_choose_rest(&index, &unit->work);
    if (choice->layout == DECODE_PAGES) {
        memcpy(weight, unit->work.page, items->count * sizeof *weight);
        return KVT_OK;
    }
    if (choice->layout == DECODE_RUNS) {
        run_weights(unit, items, weight);
        return KVT_OK;
    }
    for (uint32_t i = 0; i < items->count; i++) {
        const uint32_t c = items->cluster[i];
        weight[i] = unit->work.weight[c] * (float)items->tokens[i] / (float)unit->work.tokens[c];
    }
    return KVT_OK;
}

kvt_status decode_choice_weights(decode_unit *unit, decode_choice *choice, uint32_t row)
{
    if (choice->index <= DECODE_CENTROID) return cluster_weights(unit, choice, row, choice->weight);
    if (choice->index == DECODE_ORACLE)
        oracle_weights(unit, &choice->items, row, choice->weight);
    else
        decode_rival_weights(unit, choice, row);
    return KVT_OK;
}
