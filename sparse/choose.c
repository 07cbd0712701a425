/* SPDX-License-Identifier: Apache-2.0 */
/*
 * choose.c - from queries to the weights of a unit's clusters and pages, and the estimate of the
 * rest. The arithmetic of weights is the kernels', so it does not depend on the compiler.
 * Re-entrant, one work area per thread.
 */
#include "choose.h"

#include "index_added.h"
#include "sparse_kernels.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

/* Clusters that together weigh less are left out of pages' weights and of an estimate. */
#define CHOOSE_NOTHING 0x1p-12f

static size_t aligned(size_t bytes)
{
    return (bytes + 63) & ~(size_t)63;
}

void sparse_work_room_add(sparse_work_room *room, const sparse_index *index, uint32_t pages)
{
    const sparse_added *added = index->added;
    uint32_t lanes = index->open * SPARSE_BLOCK;
    if (added != NULL) {
        const uint32_t most = added->pages_max * added->page_clusters;
        lanes += (most + SPARSE_BLOCK - 1) / SPARSE_BLOCK * SPARSE_BLOCK;
        pages += added->pages_max;
    }
    if (lanes > room->lanes) room->lanes = lanes;
    if (index->blocks > room->blocks) room->blocks = index->blocks;
    if (index->upper_blocks * SPARSE_BLOCK > room->upper)
        room->upper = index->upper_blocks * SPARSE_BLOCK;
    if (pages > room->pages) room->pages = pages;
}

/* Cuts the next array off a block of memory; without memory it only counts. */
static void *cut(uint8_t *memory, size_t *at, size_t bytes)
{
    void *array = memory != NULL ? memory + *at : NULL;
    *at += aligned(bytes);
    return array;
}

static size_t work_cut(const sparse_work_room *room, uint32_t group, uint32_t head_dim,
                       uint8_t *memory, sparse_work *work)
{
    size_t at = 0;
    work->scores = cut(memory, &at, sizeof(float) * group * room->lanes);
    work->weight = cut(memory, &at, sizeof(float) * room->lanes);
    work->tokens = cut(memory, &at, sizeof(uint32_t) * room->lanes);
    work->scatter = cut(memory, &at, sizeof(float) * room->lanes);
    work->upper_scores = cut(memory, &at, sizeof(float) * group * room->upper);
    work->upper_weight = cut(memory, &at, sizeof(float) * room->upper);
    work->present = cut(memory, &at, sizeof(uint32_t) * (room->lanes + room->upper));
    work->open = cut(memory, &at, sizeof(uint32_t) * room->blocks);
    work->slot = cut(memory, &at, sizeof(uint32_t) * room->blocks);
    work->page = cut(memory, &at, sizeof(float) * (room->pages + 1));
    work->lse = cut(memory, &at, sizeof(float) * group);
    work->largest = cut(memory, &at, sizeof(float) * group);
    work->folded = cut(memory, &at, sizeof(int16_t) * group * head_dim);
    return at;
}

kvt_status sparse_work_open(const sparse_work_room *room, uint32_t group, uint32_t head_dim,
                            sparse_work *work_out)
{
    assert(group > 0 && group <= SPARSE_GROUP_MAX);
    *work_out = (sparse_work){.room = *room};
    const size_t bytes = work_cut(room, group, head_dim, NULL, work_out);
    uint8_t *memory = aligned_alloc(64, bytes);
    if (memory == NULL) return KVT_E_MEMORY;
    (void)work_cut(room, group, head_dim, memory, work_out);
    work_out->memory = memory;
    return KVT_OK;
}

void sparse_work_close(sparse_work *work)
{
    free(work->memory);
    *work = (sparse_work){.memory = NULL};
}

/* ---- which blocks are open ---- */

/* Bins of a weight: the upper bits of a float, exponent and 4 bits of mantissa, down to 2^-64. */
enum {
    BIN_SHIFT = 19,
    BIN_LEAST = (127 - 64) * 16,
    BIN_MOST = 128 * 16,
    BINS = BIN_MOST - BIN_LEAST + 1
};

/* 0: no block of it is opened. */
static uint32_t bin_of(float weight)
{
    uint32_t bits;
    memcpy(&bits, &weight, sizeof bits);
    const uint32_t bin = bits >> BIN_SHIFT;
    if (!(weight > 0.0f) || bin < BIN_LEAST) return 0;
    return (bin < BIN_MOST ? bin : BIN_MOST - 1) - BIN_LEAST + 1;
}

static void open_block(const sparse_index *index, uint32_t block, sparse_work *work)
{
    const uint32_t at = work->open_count++;
    work->open[at] = block;
    work->slot[block] = at + 1;
    memcpy(work->tokens + (size_t)at * SPARSE_BLOCK,
           index->lane_tokens + (size_t)block * SPARSE_BLOCK, SPARSE_BLOCK * sizeof *work->tokens);
    memcpy(work->scatter + (size_t)at * SPARSE_BLOCK, index->scatter + (size_t)block * SPARSE_BLOCK,
           SPARSE_BLOCK * sizeof *work->scatter);
}

/* Opens the blocks of the highest weights: whole bins, and of the last bin the first blocks. */
static void open_heaviest(const sparse_index *index, sparse_work *work)
{
    uint32_t count[BINS] = {0}, left = index->open, bin = BINS;
    for (uint32_t b = 0; b < index->blocks; b++)
        count[bin_of(work->upper_weight[b])]++;
    while (bin > 1 && count[bin - 1] <= left)
        left -= count[--bin];
    for (uint32_t b = 0; b < index->blocks; b++) {
        const uint32_t own = bin_of(work->upper_weight[b]);
        const bool last = own > 0 && own + 1 == bin && left > 0;
        if (own < bin && !last) continue;
        if (last) left--;
        open_block(index, b, work);
    }
    assert(work->open_count <= index->open);
}

/* Weights of all blocks by their own centroids, relative to work->largest. */
static void weigh_blocks(const sparse_index *index, const sparse_kernels *kernels,
                         const sparse_query *query, const float *resident_lse, sparse_work *work)
{
    const uint32_t width = index->upper_blocks * SPARSE_BLOCK;
    for (uint32_t i = 0; i < index->upper_blocks; i++)
        work->open[i] = i; /* for a moment, the list of all upper blocks */
    sparse_score_upper(index, query, work->open, work->upper_scores);
    memset(work->upper_weight, 0, width * sizeof *work->upper_weight);
    for (uint32_t g = 0; g < query->group; g++) {
        float *scores = work->upper_scores + (size_t)g * width;
        kernels->lift(index->upper_scatter, query->deviation[g], width, scores);
        const float most = kernels->largest(scores, index->upper_tokens, width);
        const float largest = resident_lse[g] > most ? resident_lse[g] : most;
        const float sum = kernels->weigh(scores, index->upper_tokens, width, largest) +
                          sparse_exp(resident_lse[g] - largest);
        const float share = 1.0f / (sum * (float)query->group);
        work->largest[g] = largest;
        kernels->add(scores, share, width, work->upper_weight);
    }
}

/* Two levels: the blocks of the highest weights are open, and weigh nothing as blocks. */
static void open_best(const sparse_index *index, const sparse_kernels *kernels,
                      const sparse_query *query, const float *resident_lse, sparse_work *work)
{
    const uint32_t width = index->upper_blocks * SPARSE_BLOCK;
    weigh_blocks(index, kernels, query, resident_lse, work);
    memset(work->slot, 0, index->blocks * sizeof *work->slot);
    open_heaviest(index, work);
    for (uint32_t i = 0; i < work->open_count; i++) {
        work->upper_weight[work->open[i]] = 0.0f;
        for (uint32_t g = 0; g < query->group; g++)
            work->upper_scores[(size_t)g * width + work->open[i]] = 0.0f;
    }
}

/* ---- weights ---- */

/* Blocks that are not open, relative to `largest`; returns their sum. */
static float shift_blocks(const sparse_index *index, uint32_t g, float largest, sparse_work *work)
{
    const uint32_t width = index->upper_blocks * SPARSE_BLOCK;
    const float factor = sparse_exp(work->largest[g] - largest);
    float *scores = work->upper_scores + (size_t)g * width, sum = 0.0f;
    for (uint32_t b = 0; b < width; b++) {
        scores[b] *= factor;
        sum += scores[b];
    }
    return sum;
}

/* Scores of one query head become n * exp(score - largest) and are added to the weights. */
static void add_head(const sparse_index *index, const sparse_kernels *kernels, float resident_lse,
                     uint32_t g, sparse_work *work)
{
    const uint32_t lanes = work->lanes;
    const bool two = index->upper_blocks > 0;
    float *scores = work->scores + (size_t)g * lanes;
    const float most = kernels->largest(scores, work->tokens, lanes);
    const float before = two ? work->largest[g] : resident_lse; /* that of blocks has both */
    const float largest = before > most ? before : most;
    work->lse[g] = -INFINITY;
    if (largest == -INFINITY) { /* nothing anywhere */
        work->largest[g] = largest;
        return;
    }
    const float blocks = two ? shift_blocks(index, g, largest, work) : 0.0f;
    const float sum = kernels->weigh(scores, work->tokens, lanes, largest) + blocks +
                      sparse_exp(resident_lse - largest);
    const float share = 1.0f / (sum * (float)work->group);
    work->largest[g] = largest;
    work->lse[g] = largest + logf(sum);
    kernels->add(scores, share, lanes, work->weight);
}

static float least_weight(const sparse_index *index)
{
    return CHOOSE_NOTHING / (float)(index->clusters + 1);
}

/* Pages that were added hold whole clusters. */
static void spread_added(const sparse_index *index, const sparse_work *work, float *page)
{
    const sparse_added *added = index->added;
    const float *weight = work->weight + (size_t)work->open_count * SPARSE_BLOCK;
    for (uint32_t p = 0; added != NULL && p < added->pages; p++) {
        page[p] = 0.0f;
        for (uint32_t i = 0; i < added->page_clusters; i++)
            page[p] += weight[p * added->page_clusters + i];
    }
}

/* A cluster's weight goes to its pages by its tokens in them. Most clusters end in the page that
 * they begin in, or in the next one. */
static void spread_cluster(const sparse_paging *paging, uint32_t shift, uint32_t first,
                           uint32_t tokens, float weight, float *page)
{
    const float density = weight / (float)(int32_t)tokens;
    uint32_t p = first >> shift;
    uint32_t own = ((p + 1) << shift) - first;
    uint32_t left = tokens;
    for (; left > own + paging->page_tokens; own = paging->page_tokens) {
        page[p++] += density * (float)(int32_t)own;
        left -= own;
    }
    own = own < left ? own : left;
    page[p] += density * (float)(int32_t)own;
    page[p + 1] += density * (float)(int32_t)(left - own);
}

enum { SPREAD_AHEAD = 2 }; /* open blocks whose clusters' places are asked for beforehand */

/* Clusters of a block with two levels lie anywhere. */
static void prefetch_first(const sparse_index *index, const sparse_work *work, uint32_t at)
{
    if (at >= work->open_count) return;
    const uint32_t *cluster = index->cluster + (size_t)work->open[at] * SPARSE_BLOCK;
    for (uint32_t j = 0; j < SPARSE_BLOCK; j++)
        __builtin_prefetch(&index->first[cluster[j]]);
}

/* Pages of blocks that are not open weigh nothing. */
static void spread(const sparse_index *index, const sparse_paging *paging, const sparse_work *work,
                   float *page)
{
    const float least = least_weight(index);
    uint32_t shift = 0;
    while (1u << shift < paging->page_tokens)
        shift++;
    memset(page, 0, (paging->pages + 1) * sizeof *page);
    for (uint32_t i = 0; i < work->open_count; i++) {
        prefetch_first(index, work, i + SPREAD_AHEAD);
        const float *weight = work->weight + (size_t)i * SPARSE_BLOCK;
        const uint32_t *tokens = work->tokens + (size_t)i * SPARSE_BLOCK;
        const uint32_t *cluster = index->cluster + (size_t)work->open[i] * SPARSE_BLOCK;
        for (uint32_t j = 0; j < SPARSE_BLOCK; j++)
            if (weight[j] >= least && tokens[j] != 0)
                spread_cluster(paging, shift, index->first[cluster[j]], tokens[j], weight[j], page);
    }
    spread_added(index, work, page + paging->pages);
}

/* Scores of the open blocks, and behind them of clusters that were added; with what their scatter
 * adds. */
static void score_lanes(const sparse_index *index, const sparse_kernels *kernels,
                        const sparse_query *query, sparse_work *work)
{
    const uint32_t lanes = work->open_count * SPARSE_BLOCK;
    const uint32_t added = sparse_added_blocks(index->added);
    work->lanes = lanes + added * SPARSE_BLOCK;
    assert(work->lanes <= work->room.lanes);
    sparse_score(index, query, work->open, work->open_count, work->lanes, work->scores);
    if (added > 0) {
        const size_t count = (size_t)added * SPARSE_BLOCK;
        sparse_score_added(index, query, work->lanes, work->scores + lanes);
        memcpy(work->tokens + lanes, index->added->tokens, count * sizeof *work->tokens);
        memcpy(work->scatter + lanes, index->added->scatter, count * sizeof *work->scatter);
    }
    for (uint32_t g = 0; g < query->group; g++)
        kernels->lift(work->scatter, query->deviation[g], work->lanes,
                      work->scores + (size_t)g * work->lanes);
}

kvt_status sparse_choose_weights(const sparse_index *index, const sparse_paging *paging,
                                 const float *queries, uint32_t group, float scale,
                                 const float *resident_lse, sparse_work *work)
{
    const sparse_kernels *kernels = sparse_kernels_in_use();
    sparse_query query;
    assert(index->open * SPARSE_BLOCK <= work->room.lanes && index->blocks <= work->room.blocks);
    assert(index->tokens == paging->tokens);
    if (!sparse_query_fold(index, queries, group, scale, work->folded, &query))
        return KVT_E_ARGUMENT;
    work->group = group;
    work->open_count = 0;
    if (index->upper_blocks > 0)
        open_best(index, kernels, &query, resident_lse, work);
    else
        for (uint32_t b = 0; b < index->blocks; b++)
            open_block(index, b, work);
    score_lanes(index, kernels, &query, work);
    memset(work->weight, 0, work->lanes * sizeof *work->weight);
    for (uint32_t g = 0; g < group; g++)
        add_head(index, kernels, resident_lse[g], g, work);
    spread(index, paging, work, work->page);
    return KVT_OK;
}

/* ---- the estimate ---- */

/* The cluster of a place. */
static uint32_t cluster_at(const sparse_index *index, uint32_t place)
{
    uint32_t begin = 0, end = index->clusters;
    while (end - begin > 1) {
        const uint32_t middle = begin + (end - begin) / 2;
        if (index->first[middle] <= place)
            begin = middle;
        else
            end = middle;
    }
    return begin;
}

/* Counts, by scored lane and behind them by block, the tokens that pages bring. */
static void count_present(const sparse_index *index, const sparse_paging *paging,
                          const uint8_t *variant, sparse_work *work)
{
    uint32_t *blocks = work->present + work->lanes;
    memset(work->present, 0,
           (work->lanes + index->upper_blocks * SPARSE_BLOCK) * sizeof *work->present);
    for (uint32_t page = 0; page < paging->pages; page++) {
        if (variant[page] == PAGES_ABSENT) continue;
        uint32_t place = sparse_page_first(paging, page);
        const uint32_t end = sparse_page_first(paging, page + 1);
        for (uint32_t c = cluster_at(index, place); place < end; c++) {
            const uint32_t stop = index->first[c + 1] < end ? index->first[c + 1] : end;
            const uint32_t lane = index->lane[c], slot = work->slot[lane / SPARSE_BLOCK];
            if (slot > 0)
                work->present[(slot - 1) * SPARSE_BLOCK + lane % SPARSE_BLOCK] += stop - place;
            else
                blocks[lane / SPARSE_BLOCK] += stop - place;
            place = stop;
        }
    }
}

/* Clusters that are added together, so that the sums of a few channels stay in registers: their
 * means take 8 KiB of the first cache at 128 channels. */
enum { ESTIMATE_TILE = 64 };

typedef struct estimate_sums {
    const sparse_work *work;
    uint32_t head_dim;
    float *output; /* [group][head_dim], means in steps */
    float sums[SPARSE_GROUP_MAX];
    uint32_t count; /* in the tile */
    const int8_t *means[ESTIMATE_TILE];
    float weight[ESTIMATE_TILE * SPARSE_GROUP_MAX];
} estimate_sums;

static void estimate_flush(estimate_sums *e)
{
    sparse_kernels_in_use()->blend(e->means, e->count, e->head_dim, e->weight, e->work->group,
                                   e->output);
    e->count = 0;
}

/* Adds a cluster's or block's mean to all heads. */
static void estimate_add(estimate_sums *e, const int8_t *mean, const float *scores, size_t width,
                         float share)
{
    const uint32_t group = e->work->group;
    float *weight = e->weight + (size_t)e->count * group;
    for (uint32_t g = 0; g < group; g++) {
        weight[g] = scores[g * width] * share;
        e->sums[g] += weight[g];
    }
    for (uint32_t d = 0; d < e->head_dim; d += 64) /* read when the tile is full */
        __builtin_prefetch(mean + d);
    e->means[e->count++] = mean;
    if (e->count == ESTIMATE_TILE) estimate_flush(e);
}

/* Of clusters that were added, those of absent pages. */
static void estimate_added(const sparse_index *index, const uint8_t *variant, float least,
                           estimate_sums *e)
{
    const sparse_work *work = e->work;
    const uint32_t first = work->open_count * SPARSE_BLOCK;
    for (uint32_t i = first; i < work->lanes; i++) {
        const uint32_t lane = i - first, page = lane / index->added->page_clusters;
        if (work->weight[i] < least || work->tokens[i] == 0) continue;
        if (variant[page] != PAGES_ABSENT) continue;
        estimate_add(e, index->added->means + (size_t)lane * index->head_dim, work->scores + i,
                     work->lanes, 1.0f);
    }
}

void sparse_choose_estimate(const sparse_index *index, const sparse_paging *paging,
                            const uint8_t *variant, sparse_work *work, float *output, float *lse)
{
    const uint32_t dim = index->head_dim, upper = index->upper_blocks * SPARSE_BLOCK;
    const float least = least_weight(index);
    const uint32_t *blocks = work->present + work->lanes;
    estimate_sums e;
    e.work = work;
    e.head_dim = dim;
    e.output = output;
    e.count = 0;
    memset(e.sums, 0, sizeof e.sums);
    memset(output, 0, (size_t)work->group * dim * sizeof *output);
    count_present(index, paging, variant, work);
    for (uint32_t i = 0; i < work->open_count * SPARSE_BLOCK; i++) {
        if (work->weight[i] < least || work->present[i] >= work->tokens[i]) continue;
        const uint32_t lane = work->open[i / SPARSE_BLOCK] * SPARSE_BLOCK + i % SPARSE_BLOCK;
        const float share = (float)(work->tokens[i] - work->present[i]) / (float)work->tokens[i];
        estimate_add(&e, index->means + (size_t)lane * dim, work->scores + i, work->lanes, share);
    }
    estimate_added(index, variant + paging->pages, least, &e);
    for (uint32_t b = 0; b < upper; b++) {
        if (work->upper_weight[b] < least || blocks[b] >= index->upper_tokens[b]) continue;
        const float share =
            (float)(index->upper_tokens[b] - blocks[b]) / (float)index->upper_tokens[b];
        estimate_add(&e, index->upper_means + (size_t)b * dim, work->upper_scores + b, upper,
                     share);
    }
    estimate_flush(&e);
    for (uint32_t g = 0; g < work->group; g++) {
        const float inverse = e.sums[g] > 0.0f ? 1.0f / e.sums[g] : 0.0f;
        lse[g] = e.sums[g] > 0.0f ? work->largest[g] + logf(e.sums[g]) : -INFINITY;
        for (uint32_t d = 0; d < dim; d++)
            output[(size_t)g * dim + d] *= inverse * index->value_step[d];
    }
}
