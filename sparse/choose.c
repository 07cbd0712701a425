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

/* Clusters that together weigh less enter an estimate by their means alone. */
#define CHOOSE_NO_SLOPE 0x1p-4f

static size_t aligned(size_t bytes)
{
    return (bytes + 63) & ~(size_t)63;
}

void sparse_work_room_add(sparse_work_room *room, const sparse_index *index, uint32_t pages)
{
    const sparse_added *added = index->added;
    const uint32_t sketches = index->axes > 0 ? index->lanes : 0;
    uint32_t lanes = index->lanes, full = index->axes > 0 ? index->full : 0;
    if (added != NULL) {
        const uint32_t most = added->pages_max * added->page_clusters;
        const uint32_t more = (most + SPARSE_BLOCK - 1) / SPARSE_BLOCK * SPARSE_BLOCK;
        lanes += more;
        full += index->axes > 0 ? more : 0;
        pages += added->pages_max;
    }
    if (lanes > room->lanes) room->lanes = lanes;
    if (full > room->full) room->full = full;
    if (sketches > room->sketches) room->sketches = sketches;
    if (index->axes > room->axes) room->axes = index->axes;
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
    work->present = cut(memory, &at, sizeof(uint32_t) * room->lanes);
    work->share = cut(memory, &at, sizeof(float) * room->lanes);
    work->page = cut(memory, &at, sizeof(float) * (room->pages + 1));
    work->lse = cut(memory, &at, sizeof(float) * group);
    work->largest = cut(memory, &at, sizeof(float) * group);
    work->sum = cut(memory, &at, sizeof(float) * group);
    work->folded = cut(memory, &at, sizeof(int16_t) * group * head_dim);
    work->list = cut(memory, &at, sizeof(uint32_t) * (room->full + 1));
    work->full_scores = cut(memory, &at, sizeof(float) * group * room->full);
    work->full_weight = cut(memory, &at, sizeof(float) * room->full);
    work->full_scatter = cut(memory, &at, sizeof(float) * room->full);
    work->full_tokens = cut(memory, &at, sizeof(uint32_t) * room->full);
    work->sums = cut(memory, &at, sizeof(int16_t) * group * room->sketches);
    work->keys = cut(memory, &at, sizeof(int16_t) * room->sketches);
    work->sampled = cut(memory, &at, sizeof(int16_t) * room->full);
    work->heavy_keys = cut(memory, &at, sizeof(int16_t) * room->sketches);
    work->heavy = cut(memory, &at, sizeof(uint32_t) * room->sketches);
    work->parts = cut(memory, &at, sizeof(float) * group * room->axes);
    work->sketch = cut(memory, &at, 2 * (size_t)group * room->axes);
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

/* ---- weights ---- */

/* The tokens of all lanes. */
static void count_tokens(const sparse_index *index, sparse_work *work)
{
    for (uint32_t c = 0; c < index->lanes; c += SPARSE_BLOCK) {
        const uint32_t *restrict first = index->first + c;
        uint32_t *restrict tokens = work->tokens + c;
        for (uint32_t i = 0; i < SPARSE_BLOCK; i++)
            tokens[i] = first[i + 1] - first[i];
    }
    if (work->lanes > index->lanes)
        memcpy(work->tokens + index->lanes, index->added->tokens,
               (work->lanes - index->lanes) * sizeof *work->tokens);
}

/* Scores of one query head become n * exp(score - largest) and are added to the weights. */
static void add_head(const sparse_kernels *kernels, float resident_lse, uint32_t g,
                     sparse_work *work)
{
    float *scores = work->scores + (size_t)g * work->lanes;
    const float most = kernels->largest(scores, work->tokens, work->lanes);
    const float largest = resident_lse > most ? resident_lse : most;
    work->largest[g] = largest;
    work->sum[g] = 0.0f;
    if (largest == -INFINITY) return; /* nothing anywhere */
    work->sum[g] = kernels->weigh(scores, work->tokens, work->lanes, largest) +
                   sparse_exp(resident_lse - largest);
    kernels->add(scores, 1.0f / (work->sum[g] * (float)work->group), work->lanes, work->weight);
}

static float least_weight(const sparse_index *index)
{
    return CHOOSE_NOTHING / (float)(index->clusters + 1);
}

/* Pages that were added hold whole clusters. weight: of those. */
static void spread_added(const sparse_added *added, const float *weight, float *page)
{
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

/* In two passes pages of clusters that are not scored in full weigh nothing. */
static void spread(const sparse_index *index, const sparse_paging *paging, const sparse_work *work,
                   float *page)
{
    const float least = least_weight(index);
    const bool two = index->axes > 0;
    const uint32_t count = two ? work->listed : index->clusters;
    const float *weight = two ? work->full_weight : work->weight;
    const uint32_t *tokens = two ? work->full_tokens : work->tokens;
    uint32_t shift = 0;
    while (1u << shift < paging->page_tokens)
        shift++;
    memset(page, 0, (paging->pages + 1) * sizeof *page);
    for (uint32_t i = 0; i < count; i++)
        if (weight[i] >= least)
            spread_cluster(paging, shift, index->first[two ? work->list[i] : i], tokens[i],
                           weight[i], page);
    spread_added(index->added,
                 weight + (two ? work->width - sparse_added_lanes(index->added) : index->lanes),
                 page + paging->pages);
}

/* ---- two passes ---- */

/* Two counters of each bin take turns, since keys are alike. */
int16_t sparse_choose_rank(const int16_t *keys, uint32_t count, uint32_t most)
{
    uint32_t bins[256][2] = {{0}}, high = 256, low = 256, left = most < count ? most : count;
    for (uint32_t i = 0; i < count; i++)
        bins[(uint16_t)(keys[i] - INT16_MIN) >> 8][i & 1]++;
    for (uint32_t here; high > 1 && (here = bins[high - 1][0] + bins[high - 1][1]) < left; high--)
        left -= here;
    memset(bins, 0, sizeof bins);
    for (uint32_t i = 0; i < count; i++) {
        const uint16_t key = (uint16_t)(keys[i] - INT16_MIN);
        bins[key & 255][i & 1] += key >> 8 == high - 1;
    }
    for (uint32_t here; low > 1 && (here = bins[low - 1][0] + bins[low - 1][1]) < left; low--)
        left -= here;
    return (int16_t)((int32_t)((high - 1) << 8 | (low - 1)) + INT16_MIN);
}

/* A sample of the lanes: half as many as are scored in full, at equal distances. */
typedef struct lane_sample {
    uint32_t count; /* a multiple of SPARSE_BLOCK */
    uint32_t stride;
} lane_sample;

static lane_sample sample_of(const sparse_index *index)
{
    const uint32_t count = (index->full / 2 + SPARSE_BLOCK - 1) / SPARSE_BLOCK * SPARSE_BLOCK;
    return (lane_sample){count, index->lanes / count};
}

/* Scores of a sample of the sketches, relative to the largest score by a sketch, which then stands
 * in work->largest; work->sum tells about what all add up to. */
static void weigh_sample(const sparse_index *index, const sparse_kernels *kernels,
                         const int16_t *peaks, const float *resident_lse, sparse_work *work)
{
    const lane_sample sample = sample_of(index);
    const uint32_t count = sample.count;
    const float tokens = (float)index->tokens / (float)index->clusters;
    const float share = (float)sample.stride;
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t lane = i * sample.stride;
        work->tokens[i] = index->first[lane + 1] - index->first[lane];
    }
    for (uint32_t g = 0; g < work->group; g++) {
        const int16_t *sums = work->sums + (size_t)g * index->lanes;
        float *scores = work->scores + (size_t)g * count;
        const float peak = (float)peaks[g] * work->unit + work->rest[g];
        const float largest = resident_lse[g] > peak ? resident_lse[g] : peak;
        for (uint32_t i = 0; i < count; i++)
            scores[i] = (float)sums[i * sample.stride] * work->unit + work->rest[g];
        work->largest[g] = largest;
        work->sum[g] = share * kernels->weigh(scores, work->tokens, count, largest) +
                       tokens * sparse_exp(peak - largest) + sparse_exp(resident_lse[g] - largest);
    }
}

/* Offsets that bring each query's sums to the logarithm of a weight, in units; the largest key of
 * all is about 0. The logarithm is a straight line between powers of 2. */
static void offset_keys(const int16_t *peaks, const sparse_work *work, int16_t *offset)
{
    float away[SPARSE_GROUP_MAX], most = -INFINITY;
    for (uint32_t g = 0; g < work->group; g++) {
        const float octaves =
            (float)(int32_t)(half_float_bits(work->sum[g]) - 0x3f800000u) * 0x1p-23f;
        away[g] = work->rest[g] - work->largest[g] - octaves * (1.0f / SPARSE_LOG2E);
        most = fmaxf(most, (float)peaks[g] * work->unit + away[g]);
    }
    for (uint32_t g = 0; g < work->group; g++) {
        const float units = work->unit > 0.0f ? (away[g] - most) / work->unit : 0.0f;
        offset[g] = (int16_t)half_round_integer(fmaxf(fminf(units, 32767.0f), -32768.0f));
    }
}

/* Lists the lanes of the largest keys, as many as are scored in full; of equal ones at the end the
 * first. A sample finds about which they are, so that no others are sorted. Returns the least
 * key. */
static int16_t list_best(const sparse_index *index, const sparse_kernels *kernels,
                         const int16_t *offset, sparse_work *work)
{
    const lane_sample sample = sample_of(index);
    const uint32_t full = index->full, group = work->group, rank = full / sample.stride;
    int16_t *keys = work->heavy_keys;
    kernels->keys(work->sums, index->lanes, index->lanes, offset, group, work->keys);
    for (uint32_t i = 0; i < sample.count; i++)
        work->sampled[i] = work->keys[i * sample.stride];
    int16_t least = sparse_choose_rank(work->sampled, sample.count, rank + rank / 4 + 1);
    const uint32_t found = kernels->sieve(work->keys, index->lanes, least, work->heavy);
    for (uint32_t i = 0; i < found; i++)
        keys[i] = work->keys[work->heavy[i]];
    if (found > full) least = sparse_choose_rank(keys, found, full);
    uint32_t equal = full;
    for (uint32_t i = 0; i < found; i++)
        equal -= keys[i] > least;
    work->listed = 0;
    for (uint32_t i = 0; i < found; i++) { /* without branches, which no history foretells */
        const uint32_t same = (keys[i] == least) & (equal > 0);
        work->list[work->listed] = work->heavy[i];
        work->listed += ((keys[i] > least) | same) & (work->heavy[i] < index->clusters);
        equal -= same;
    }
    assert(work->listed <= full);
    return least;
}

/* Scores and the numbers of the list; behind it empty lanes out to a block, and the added ones. */
static void score_list(const sparse_index *index, const sparse_kernels *kernels,
                       const sparse_query *query, sparse_work *work)
{
    const uint32_t listed = work->listed, added = work->lanes - index->lanes;
    const uint32_t own = (listed + SPARSE_BLOCK - 1) / SPARSE_BLOCK * SPARSE_BLOCK;
    work->width = own + added;
    assert(work->width <= work->room.full);
    for (uint32_t i = 0; i < own; i++) {
        const uint32_t c = work->list[i < listed ? i : listed - 1];
        work->list[i] = c;
        work->full_tokens[i] = i < listed ? index->first[c + 1] - index->first[c] : 0;
        work->full_scatter[i] = index->scatter[c];
    }
    if (added > 0) {
        memcpy(work->full_tokens + own, index->added->tokens, added * sizeof *work->full_tokens);
        memcpy(work->full_scatter + own, index->added->scatter, added * sizeof *work->full_scatter);
        sparse_score_added(index, query, work->width, work->full_scores + own);
    }
    sparse_score(index, query, work->list, own, work->width, work->full_scores);
    for (uint32_t g = 0; g < work->group; g++)
        kernels->lift(work->full_scatter, query->deviation[g], work->width,
                      work->full_scores + (size_t)g * work->width);
}

/* Weights of the list; the sample tells what is beside it. least: the least key that is listed. */
static void weigh_list(const sparse_index *index, const sparse_kernels *kernels,
                       const float *resident_lse, int16_t least, sparse_work *work)
{
    const uint32_t width = work->width;
    const lane_sample sample = sample_of(index);
    memset(work->full_weight, 0, width * sizeof *work->full_weight);
    for (uint32_t g = 0; g < work->group; g++) {
        const float *sampled = work->scores + (size_t)g * sample.count;
        float *full = work->full_scores + (size_t)g * width, lane[SPARSE_LANES] = {0.0f};
        const float most = kernels->largest(full, work->full_tokens, width);
        const float largest = resident_lse[g] > most ? resident_lse[g] : most;
        const float away = work->largest[g] - largest;
        for (uint32_t i = 0; i < sample.count; i++)
            lane[i % SPARSE_LANES] += work->sampled[i] < least ? sampled[i] : 0.0f;
        work->largest[g] = largest;
        work->sum[g] =
            kernels->weigh(full, work->full_tokens, width, largest) +
            sparse_exp(resident_lse[g] - largest) +
            (float)sample.stride * sparse_lanes_sum(lane) * sparse_exp(away < 0.0f ? away : 0.0f);
        kernels->add(full, 1.0f / (work->sum[g] * (float)work->group), width, work->full_weight);
    }
}

static void choose_in_two(const sparse_index *index, const sparse_kernels *kernels,
                          const sparse_query *query, const float *resident_lse, sparse_work *work)
{
    int16_t peaks[SPARSE_GROUP_MAX], offset[SPARSE_GROUP_MAX];
    work->unit = query->sketch_unit;
    memcpy(work->rest, query->sketch_rest, work->group * sizeof *work->rest);
    kernels->sketch(index->sketch, index->lanes / SPARSE_BLOCK, index->axes, query->sketch,
                    work->group, index->lanes, work->sums, peaks);
    weigh_sample(index, kernels, peaks, resident_lse, work);
    offset_keys(peaks, work, offset);
    const int16_t least = list_best(index, kernels, offset, work);
    score_list(index, kernels, query, work);
    weigh_list(index, kernels, resident_lse, least, work);
}

void sparse_choose_rest(const sparse_index *index, sparse_work *work)
{
    const sparse_kernels *kernels = sparse_kernels_in_use();
    const uint32_t lanes = index->lanes, width = work->width;
    if (work->rest_is_known) return;
    work->rest_is_known = true;
    count_tokens(index, work);
    memset(work->weight, 0, work->lanes * sizeof *work->weight);
    for (uint32_t g = 0; g < work->group; g++) {
        const int16_t *restrict sums = work->sums + (size_t)g * lanes;
        const float unit = work->unit, rest = work->rest[g], largest = work->largest[g];
        float *restrict scores = work->scores + (size_t)g * work->lanes;
        for (uint32_t block = 0; block < lanes; block += SPARSE_BLOCK) {
            for (uint32_t c = 0; c < SPARSE_BLOCK; c++) {
                const float score = (float)sums[block + c] * unit + rest;
                scores[block + c] = score < largest ? score : largest;
            }
        }
        (void)kernels->weigh(scores, work->tokens, lanes, largest);
        kernels->add(scores, 1.0f / (work->sum[g] * (float)work->group), lanes, work->weight);
    }
    for (uint32_t i = 0; i < width; i++) {
        const bool own = i < work->listed;
        const uint32_t added = width - (work->lanes - lanes);
        if (!own && i < added) continue; /* padding */
        const uint32_t lane = own ? work->list[i] : lanes + i - added;
        work->weight[lane] = work->full_weight[i];
        for (uint32_t g = 0; g < work->group; g++)
            work->scores[(size_t)g * work->lanes + lane] = work->full_scores[(size_t)g * width + i];
    }
}

/* ---- a step ---- */

/* One pass: all lanes in full. */
static void choose_in_one(const sparse_index *index, const sparse_kernels *kernels,
                          const sparse_query *query, const float *resident_lse, sparse_work *work)
{
    const uint32_t added = work->lanes - index->lanes;
    count_tokens(index, work);
    sparse_score(index, query, NULL, 0, work->lanes, work->scores);
    if (added > 0) sparse_score_added(index, query, work->lanes, work->scores + index->lanes);
    memset(work->weight, 0, work->lanes * sizeof *work->weight);
    for (uint32_t g = 0; g < query->group; g++) {
        float *scores = work->scores + (size_t)g * work->lanes;
        kernels->lift(index->scatter, query->deviation[g], index->lanes, scores);
        if (added > 0)
            kernels->lift(index->added->scatter, query->deviation[g], added, scores + index->lanes);
        add_head(kernels, resident_lse[g], g, work);
    }
}

kvt_status sparse_choose_weights(const sparse_index *index, const sparse_paging *paging,
                                 const float *queries, uint32_t group, float scale,
                                 const float *resident_lse, sparse_work *work)
{
    const sparse_kernels *kernels = sparse_kernels_in_use();
    sparse_query query = {.folded = work->folded, .parts = work->parts, .sketch = work->sketch};
    assert(index->tokens == paging->tokens && index->axes <= work->room.axes);
    if (!sparse_query_fold(index, queries, group, scale, &query)) return KVT_E_ARGUMENT;
    work->group = group;
    work->lanes = index->lanes + sparse_added_lanes(index->added);
    work->rest_is_known = index->axes == 0;
    work->left = NULL;
    memcpy(work->folded_unit, query.unit, group * sizeof *query.unit);
    assert(work->lanes <= work->room.lanes);
    if (index->axes > 0)
        choose_in_two(index, kernels, &query, resident_lse, work);
    else
        choose_in_one(index, kernels, &query, resident_lse, work);
    for (uint32_t g = 0; g < group; g++)
        work->lse[g] = work->sum[g] > 0.0f ? work->largest[g] + logf(work->sum[g]) : -INFINITY;
    spread(index, paging, work, work->page);
    return KVT_OK;
}

/* ---- the estimate ---- */

/* Counts, by cluster, the tokens that pages bring. */
static void count_present(const sparse_index *index, const sparse_paging *paging,
                          const uint8_t *variant, sparse_work *work)
{
    const uint32_t *first = index->first;
    uint32_t c = 0;
    memset(work->present, 0, index->lanes * sizeof *work->present);
    for (uint32_t page = 0; page < paging->pages; page++) {
        if (variant[page] == PAGES_ABSENT) continue;
        uint32_t place = sparse_page_first(paging, page);
        const uint32_t end = sparse_page_first(paging, page + 1);
        while (first[c + 1] <= place)
            c++;
        while (place < end) {
            const uint32_t stop = first[c + 1] < end ? first[c + 1] : end;
            work->present[c] += stop - place;
            place = stop;
            if (place < end) c++;
        }
    }
}

/* Rows that are added together, and their clusters' weights. */
typedef struct estimate_sums {
    const sparse_work *work;
    uint32_t head_dim;
    float *output; /* [group][head_dim], means in steps */
    float sums[SPARSE_GROUP_MAX];
    uint32_t count;
    const int8_t *rows[SPARSE_BLEND];
    uint32_t lane[SPARSE_BLEND];
    float weight[SPARSE_GROUP_MAX * SPARSE_BLEND]; /* [group][SPARSE_BLEND] */
} estimate_sums;

bool sparse_choose_is_full(const sparse_index *index, const sparse_work *work, uint32_t cluster,
                           uint32_t *next)
{
    if (index->axes == 0) return true;
    while (*next < work->listed && work->list[*next] < cluster)
        ++*next;
    return *next < work->listed && work->list[*next] == cluster;
}

bool sparse_choose_slopes(const sparse_index *index, const sparse_work *work, uint32_t cluster)
{
    return index->slopes != NULL &&
           work->weight[cluster] * (float)(index->clusters + 1) >= CHOOSE_NO_SLOPE;
}

/* Adds the rows to the output. */
static void estimate_blend(estimate_sums *e)
{
    sparse_kernels_in_use()->blend(e->rows, e->count, e->head_dim, e->weight, e->work->group,
                                   e->output);
    e->count = 0;
}

/* Takes one row more for all heads, with the weights of a lane. */
static void estimate_take(estimate_sums *e, const int8_t *row, uint32_t bytes, uint32_t lane,
                          float share)
{
    const float *scores = e->work->scores + lane;
    for (uint32_t g = 0; g < e->work->group; g++)
        e->weight[g * SPARSE_BLEND + e->count] = scores[(size_t)g * e->work->lanes] * share;
    for (uint32_t i = 0; i < bytes; i += 64) /* read when there are more */
        __builtin_prefetch(row + i);
    e->lane[e->count] = lane;
    e->rows[e->count++] = row;
}

static void estimate_means(estimate_sums *e)
{
    for (uint32_t g = 0; g < e->work->group; g++) {
        float *weight = e->weight + (size_t)g * SPARSE_BLEND, lane[SPARSE_LANES] = {0.0f};
        for (uint32_t i = e->count; i < SPARSE_BLEND; i++)
            weight[i] = 0.0f;
        for (uint32_t i = 0; i < SPARSE_BLEND; i++)
            lane[i % SPARSE_LANES] += weight[i];
        e->sums[g] += sparse_lanes_sum(lane);
    }
    estimate_blend(e);
}

/* The share of each lane's tokens that no page brings. */
static void find_shares(const sparse_index *index, sparse_work *work)
{
    for (uint32_t block = 0; block < index->lanes; block += SPARSE_BLOCK) {
        const uint32_t *restrict tokens = work->tokens + block;
        const uint32_t *restrict present = work->present + block;
        float *restrict share = work->share + block;
        for (uint32_t c = 0; c < SPARSE_BLOCK; c++)
            share[c] = (float)(int32_t)(tokens[c] - present[c]) /
                       (float)(int32_t)(tokens[c] | (tokens[c] == 0));
    }
}

/* One pass: takes the means of a block of clusters, if any of them enters the estimate. */
static void estimate_block(const sparse_index *index, uint32_t block, float least, estimate_sums *e)
{
    const float *share = e->work->share + block;
    const int8_t *row = index->means + (size_t)block * e->head_dim;
    int32_t any = 0;
    for (uint32_t i = 0; i < SPARSE_BLOCK; i++)
        any |= (e->work->weight[block + i] >= least) & (share[i] > 0.0f);
    if (any == 0) return;
    for (uint32_t g = 0; g < e->work->group; g++) {
        const float *restrict scores = e->work->scores + (size_t)g * e->work->lanes + block;
        float *restrict weight = e->weight + (size_t)g * SPARSE_BLEND + e->count;
        for (uint32_t i = 0; i < SPARSE_BLOCK; i++)
            weight[i] = scores[i] * share[i];
    }
    for (uint32_t i = 0; i < SPARSE_BLOCK; i++, row += e->head_dim)
        e->rows[e->count++] = row;
    if (e->count == SPARSE_BLEND) estimate_means(e);
}

/* Two passes: takes the means of clusters that were scored in full, and the shared ones of the
 * others. */
static void estimate_two(const sparse_index *index, sparse_work *work, estimate_sums *e)
{
    for (uint32_t i = 0; i < work->listed; i++) {
        const uint32_t c = work->list[i];
        if (!(work->share[c] > 0.0f)) continue;
        estimate_take(e, index->means + (size_t)c * e->head_dim, e->head_dim, c, work->share[c]);
        if (e->count == SPARSE_BLEND) estimate_means(e);
    }
    for (uint32_t i = 0; i < work->listed; i++)
        work->share[work->list[i]] = 0.0f;
    for (uint32_t c = 0; c < index->lanes; c += SPARSE_SHARED) {
        const float *restrict share = work->share + c;
        for (uint32_t g = 0; g < work->group; g++) {
            const float *restrict scores = work->scores + (size_t)g * work->lanes + c;
            float lane[SPARSE_LANES];
            for (uint32_t i = 0; i < SPARSE_SHARED; i++)
                lane[i] = scores[i] * share[i];
            e->weight[g * SPARSE_BLEND + e->count] = sparse_lanes_sum(lane);
        }
        e->rows[e->count++] = index->shared + (size_t)(c / SPARSE_SHARED) * e->head_dim;
        if (e->count == SPARSE_BLEND) estimate_means(e);
    }
}

/* The rows are slopes of keys: weights become those of the values' behind them. Values change by no
 * more than the largest mean in a channel, so that an estimate stays among values. */
static void estimate_slopes(const sparse_index *index, estimate_sums *e)
{
    const uint32_t group = e->work->group, count = e->count;
    const uint32_t width = (count + SPARSE_BLOCK - 1) / SPARSE_BLOCK * SPARSE_BLOCK;
    float along[SPARSE_BLEND * SPARSE_GROUP_MAX];
    uint32_t list[SPARSE_BLEND];
    for (uint32_t i = 0; i < width; i++)
        list[i] = 2 * e->lane[i < count ? i : 0];
    sparse_kernels_in_use()->score(index->slopes, list, width, e->head_dim, e->work->folded, group,
                                   e->work->folded_unit, width, along);
    for (uint32_t i = 0; i < count; i++) {
        const float slope = index->slope[e->lane[i]];
        e->rows[i] += e->head_dim;
        for (uint32_t g = 0; g < group; g++)
            e->weight[g * SPARSE_BLEND + i] *= sparse_within(along[g * width + i] * slope, 1.0f);
    }
    estimate_blend(e);
}

/* The slopes of clusters that were scored in full. */
static void estimate_all_slopes(const sparse_index *index, const sparse_work *work,
                                estimate_sums *e)
{
    const uint32_t full = index->axes > 0 ? work->listed : index->clusters;
    for (uint32_t i = 0; index->slopes != NULL && i < full; i++) {
        const uint32_t c = index->axes > 0 ? work->list[i] : i;
        const uint32_t tokens = work->tokens[c], absent = tokens - work->present[c];
        if (absent == 0 || !sparse_choose_slopes(index, work, c)) continue;
        estimate_take(e, index->slopes + 2 * (size_t)c * e->head_dim, 2 * e->head_dim, c,
                      (float)(int32_t)absent / (float)(int32_t)tokens);
        if (e->count == SPARSE_BLEND) estimate_slopes(index, e);
    }
    if (e->count > 0) estimate_slopes(index, e);
}

/* Of clusters that were added, those of absent pages; they have no slopes. */
static void estimate_added(const sparse_index *index, const uint8_t *variant, float least,
                           estimate_sums *e)
{
    const sparse_work *work = e->work;
    for (uint32_t i = index->lanes; i < work->lanes; i++) {
        const uint32_t lane = i - index->lanes, page = lane / index->added->page_clusters;
        if (work->weight[i] < least || work->tokens[i] == 0) continue;
        if (variant[page] != PAGES_ABSENT) continue;
        estimate_take(e, index->added->means + (size_t)lane * e->head_dim, e->head_dim, i, 1.0f);
        if (e->count == SPARSE_BLEND) estimate_means(e);
    }
}

static void estimate_side(const sparse_index *index, bool slopes, estimate_sums *e)
{
    if (slopes)
        estimate_slopes(index, e);
    else
        estimate_means(e);
}

/* The tokens that are left of pages which bring single ones: by their means, or what they follow of
 * the slopes. */
static void estimate_left(const sparse_index *index, bool slopes, estimate_sums *e)
{
    const sparse_work *work = e->work;
    const sparse_left *left = work->left;
    const uint32_t group = work->group;
    for (uint32_t i = 0; left != NULL && i < left->count; i++) {
        const uint32_t c = left->lane[i];
        if (slopes && !sparse_choose_slopes(index, work, c)) continue;
        e->rows[e->count] = slopes ? index->slopes + 2 * (size_t)c * e->head_dim
                                   : index->means + (size_t)c * e->head_dim;
        e->lane[e->count] = c;
        for (uint32_t g = 0; g < group; g++) {
            const size_t at = (size_t)i * group + g;
            e->weight[g * SPARSE_BLEND + e->count] =
                left->weight[at] * (slopes ? left->tilt[at] : 1.0f);
        }
        if (++e->count == SPARSE_BLEND) estimate_side(index, slopes, e);
    }
    if (e->count > 0) estimate_side(index, slopes, e);
}

void sparse_choose_estimate(const sparse_index *index, const sparse_paging *paging,
                            const uint8_t *variant, sparse_work *work, float *output, float *lse)
{
    const uint32_t dim = index->head_dim;
    const float least = least_weight(index);
    estimate_sums e;
    e.work = work;
    e.head_dim = dim;
    e.output = output;
    e.count = 0;
    memset(e.sums, 0, sizeof e.sums);
    memset(output, 0, (size_t)work->group * dim * sizeof *output);
    sparse_choose_rest(index, work);
    count_present(index, paging, variant, work);
    find_shares(index, work);
    if (index->axes > 0) estimate_two(index, work, &e);
    for (uint32_t c = 0; index->axes == 0 && c < index->lanes; c += SPARSE_BLOCK)
        estimate_block(index, c, least, &e);
    estimate_means(&e);
    estimate_added(index, variant + paging->pages, least, &e);
    estimate_means(&e);
    estimate_left(index, false, &e);
    estimate_all_slopes(index, work, &e);
    estimate_left(index, true, &e);
    for (uint32_t g = 0; g < work->group; g++) {
        const float inverse = e.sums[g] > 0.0f ? 1.0f / e.sums[g] : 0.0f;
        lse[g] = e.sums[g] > 0.0f ? work->largest[g] + logf(e.sums[g]) : -INFINITY;
        for (uint32_t d = 0; d < dim; d++)
            output[(size_t)g * dim + d] *= inverse * index->value_step[d];
    }
}
