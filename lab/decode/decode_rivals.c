/* SPDX-License-Identifier: Apache-2.0 */
/*
 * decode_rivals.c - the indexes that the cluster index is compared with, in floats.
 *
 *     quest            Quest: least and largest value of each channel of a page
 *     mean             ShadowKV, LServe: the mean key of a page
 *     chunk-mean       KVDrive: k-means of the means of 4 tokens, 16 tokens a centroid
 *     representative   InfLLM: blocks of 128, judged by 4 tokens that early steps attend to most
 */
#include "decode.h"
#include "lab/private.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK = 4, CHUNKS_OF_CLUSTER = 4, REPRESENTATIVES = 4 };

static const uint16_t *zone_key(const decode_unit *unit, uint32_t token)
{
    return unit->keys + (size_t)(DECODE_SINKS + token) * unit->dim;
}

/* Bounds or means of runs of tokens. */
static void run_keys(const decode_unit *unit, decode_choice *choice, bool bounds)
{
    const uint32_t dim = unit->dim;
    for (uint32_t i = 0; i < choice->items.count; i++) {
        float *low = choice->keys[0] + (size_t)i * dim;
        float *high = choice->keys[1] + (size_t)i * dim;
        const uint32_t begin = choice->items.first[i], end = choice->items.first[i + 1];
        for (uint32_t d = 0; d < dim; d++) {
            low[d] = bounds ? INFINITY : 0.0f;
            high[d] = -INFINITY;
            for (uint32_t t = begin; t < end; t++) {
                const float x = half_to_float(zone_key(unit, t)[d]);
                low[d] = bounds ? fminf(low[d], x) : low[d] + x / (float)(end - begin);
                high[d] = fmaxf(high[d], x);
            }
        }
    }
}

/* ---- chunk means ---- */

static kvt_status chunk_items(const decode_unit *unit, decode_choice *choice)
{
    const sparse_index *index = &choice->chunks;
    const kvt_status status = decode_items_open(&choice->items, index->clusters, unit->zone);
    uint32_t at = 0;
    if (status != KVT_OK) return status;
    for (uint32_t c = 0; c < index->clusters; c++) {
        choice->items.first[c] = at;
        for (uint32_t p = index->first[c]; p < index->first[c + 1]; p++) {
            const uint32_t begin = sparse_index_token(index, p) * CHUNK;
            for (uint32_t t = begin; t < begin + CHUNK && t < unit->zone; t++)
                choice->items.places[at++] = unit->place_of[t];
        }
        choice->items.tokens[c] = (uint16_t)(at - choice->items.first[c]);
    }
    choice->items.first[index->clusters] = at;
    return KVT_OK;
}

static void chunk_keys(const decode_unit *unit, decode_choice *choice)
{
    const sparse_index *index = &choice->chunks;
    for (uint32_t c = 0; c < index->clusters; c++)
        for (uint32_t d = 0; d < unit->dim; d++)
            choice->keys[0][(size_t)c * unit->dim + d] =
                index->key_step[d] * (float)index->centroids[(size_t)c * unit->dim + d];
}

static kvt_status chunk_open(const decode_unit *unit, decode_choice *choice)
{
    const uint32_t chunks = (unit->zone + CHUNK - 1) / CHUNK, dim = unit->dim;
    float *means = calloc((size_t)chunks * dim, sizeof *means);
    if (means == NULL) return KVT_E_MEMORY;
    for (uint32_t t = 0; t < unit->zone; t++) {
        const uint32_t begin = t / CHUNK * CHUNK;
        const uint32_t n = unit->zone - begin < CHUNK ? unit->zone - begin : CHUNK;
        for (uint32_t d = 0; d < dim; d++)
            means[(size_t)(t / CHUNK) * dim + d] += half_to_float(zone_key(unit, t)[d]) / (float)n;
    }
    const sparse_rows rows = {means, dim * sizeof *means};
    const sparse_index_options options = {
        .head_dim = dim, .dtype = KVT_DTYPE_FP32, .cluster_tokens = CHUNKS_OF_CLUSTER, .seed = 1};
    kvt_status status = sparse_index_build(&options, &rows, &rows, chunks, &choice->chunks);
    if (status == KVT_OK) status = chunk_items(unit, choice);
    free(means);
    return status;
}

/* ---- representatives ---- */

/* Attention that a place gets in the first quarter of the steps. */
static void early_weights(const decode_unit *unit, float *weight)
{
    const uint32_t rows = unit->rows >= 4 ? unit->rows / 4 : 1;
    memset(weight, 0, unit->zone * sizeof *weight);
    for (size_t at = 0; at < (size_t)rows * unit->group; at++)
        for (uint32_t p = 0; p < unit->zone; p++)
            weight[p] += (float)exp((double)unit->logits[PAGES_RAW][at * unit->zone + p] -
                                    unit->zone_lse[at]);
}

static kvt_status representative_open(const decode_unit *unit, decode_choice *choice)
{
    const decode_items *items = &choice->items;
    float *weight = malloc(unit->zone * sizeof *weight);
    choice->medoids = malloc((size_t)items->count * REPRESENTATIVES * sizeof *choice->medoids);
    if (weight == NULL || choice->medoids == NULL) {
        free(weight);
        return KVT_E_MEMORY;
    }
    early_weights(unit, weight);
    for (uint32_t i = 0; i < items->count; i++) {
        for (uint32_t k = 0; k < REPRESENTATIVES; k++) {
            uint32_t best = items->places[items->first[i]];
            for (uint32_t j = items->first[i]; j < items->first[i + 1]; j++)
                if (weight[items->places[j]] > weight[best]) best = items->places[j];
            choice->medoids[(size_t)i * REPRESENTATIVES + k] = best;
            weight[best] = -1.0f;
        }
    }
    free(weight);
    return KVT_OK;
}

kvt_status decode_rival_open(decode_unit *unit, decode_choice *choice)
{
    kvt_status status = KVT_OK;
    if (choice->index == DECODE_REPRESENTATIVE) return representative_open(unit, choice);
    if (choice->index == DECODE_CHUNK_MEAN) status = chunk_open(unit, choice);
    if (status != KVT_OK) return status;
    for (int k = 0; k < 2; k++) {
        choice->keys[k] = malloc((size_t)choice->items.count * unit->dim * sizeof(float));
        if (choice->keys[k] == NULL) return KVT_E_MEMORY;
    }
    if (choice->index == DECODE_CHUNK_MEAN)
        chunk_keys(unit, choice);
    else
        run_keys(unit, choice, choice->index == DECODE_QUEST);
    return KVT_OK;
}

/* ---- scores ---- */

static float rival_score(const decode_unit *unit, const decode_choice *choice, uint32_t item,
                         size_t at, const float *query)
{
    const float *low = choice->keys[0] + (size_t)item * unit->dim;
    const float *logits = unit->logits[PAGES_RAW] + at * unit->zone;
    float sum = 0.0f;
    switch (choice->index) {
    case DECODE_COACTIVE: return logits[choice->medoids[item]];
    case DECODE_REPRESENTATIVE:
        for (uint32_t k = 0; k < REPRESENTATIVES; k++)
            sum += logits[choice->medoids[(size_t)item * REPRESENTATIVES + k]];
        return sum / REPRESENTATIVES;
    case DECODE_QUEST: {
        const float *high = choice->keys[1] + (size_t)item * unit->dim;
        for (uint32_t d = 0; d < unit->dim; d++)
            sum += fmaxf(query[d] * low[d], query[d] * high[d]);
        return sum * unit->scale;
    }
    default:
        for (uint32_t d = 0; d < unit->dim; d++)
            sum += query[d] * low[d];
        return sum * unit->scale;
    }
}

void decode_rival_weights(decode_unit *unit, decode_choice *choice, uint32_t row)
{
    memset(choice->weight, 0, choice->items.count * sizeof *choice->weight);
    for (uint32_t g = 0; g < unit->group; g++) {
        const size_t at = (size_t)row * unit->group + g;
        for (uint32_t i = 0; i < choice->items.count; i++)
            choice->row[i] = rival_score(unit, choice, i, at, unit->queries + at * unit->dim);
        decode_softmax_add(choice->row, choice->items.tokens, choice->items.count, unit->group,
                           choice->weight);
    }
}
