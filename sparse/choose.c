/* SPDX-License-Identifier: Apache-2.0 */
/*
 * choose.c - from queries to the weights of a unit's clusters and pages, and the estimate of the
 * rest. The arithmetic of weights is the kernels', so it does not depend on the compiler.
 * Re-entrant, one work area per thread.
 */
#include "choose.h"

#include "sparse_kernels.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

/* Clusters that together weigh less are left out of an estimate. */
#define CHOOSE_NOTHING 0x1p-20f

static size_t aligned(size_t bytes)
{
    return (bytes + 63) & ~(size_t)63;
}

kvt_status sparse_work_open(uint32_t clusters, uint32_t pages, uint32_t group, uint32_t head_dim,
                            sparse_work *work_out)
{
    const size_t width = ((size_t)clusters + SPARSE_BLOCK - 1) / SPARSE_BLOCK * SPARSE_BLOCK;
    const size_t scores = aligned(group * width * sizeof(float));
    const size_t weight = aligned(width * sizeof(float)), page = aligned(pages * sizeof(float));
    const size_t lse = aligned(2 * group * sizeof(float));
    const size_t folded = aligned((size_t)group * head_dim * sizeof(int16_t));
    assert(group > 0 && group <= SPARSE_GROUP_MAX);
    uint8_t *at = aligned_alloc(64, scores + weight + page + lse + folded);
    *work_out = (sparse_work){.width = (uint32_t)width};
    if (at == NULL) return KVT_E_MEMORY;
    work_out->memory = at;
    work_out->scores = (float *)(void *)at;
    work_out->weight = (float *)(void *)(at += scores);
    work_out->page = (float *)(void *)(at += weight);
    work_out->lse = (float *)(void *)(at += page);
    work_out->largest = work_out->lse + group;
    work_out->folded = (int16_t *)(void *)(at += lse);
    return KVT_OK;
}

void sparse_work_close(sparse_work *work)
{
    free(work->memory);
    *work = (sparse_work){.memory = NULL};
}

/* Scores of one query head become n * exp(score - largest) and are added to the weights. */
static void add_head(const sparse_index *index, const sparse_kernels *kernels, float resident_lse,
                     uint32_t width, uint32_t g, sparse_work *work)
{
    float *scores = work->scores + (size_t)g * width;
    const float most = kernels->largest(scores, index->first, width);
    const float largest = resident_lse > most ? resident_lse : most;
    work->largest[g] = largest;
    work->lse[g] = -INFINITY;
    if (largest == -INFINITY) return; /* nothing anywhere */
    const float sum =
        kernels->weigh(scores, index->first, width, largest) + sparse_exp(resident_lse - largest);
    const float share = 1.0f / (sum * (float)work->group);
    work->lse[g] = largest + logf(sum);
    for (uint32_t c = 0; c < width; c++)
        work->weight[c] += scores[c] * share;
}

/* A cluster's weight goes to its pages by its tokens in them. */
static void spread(const sparse_index *index, const sparse_paging *paging, const float *weight,
                   float *page)
{
    uint32_t shift = 0;
    while (1u << shift < paging->page_tokens)
        shift++;
    memset(page, 0, paging->pages * sizeof *page);
    for (uint32_t c = 0; c < index->clusters; c++) {
        uint32_t place = index->first[c];
        const uint32_t end = index->first[c + 1];
        const float density = weight[c] / (float)(int32_t)(end - place);
        while (place < end) {
            const uint32_t p = place >> shift, next = (p + 1) << shift;
            const uint32_t stop = next < end ? next : end;
            page[p] += density * (float)(int32_t)(stop - place);
            place = stop;
        }
    }
}

kvt_status sparse_choose_weights(const sparse_index *index, const sparse_paging *paging,
                                 const float *queries, uint32_t group, float scale,
                                 const float *resident_lse, sparse_work *work)
{
    const sparse_kernels *kernels = sparse_kernels_in_use();
    const uint32_t width = index->blocks * SPARSE_BLOCK;
    sparse_query query;
    assert(width <= work->width && index->tokens == paging->tokens);
    if (!sparse_query_fold(index, queries, group, scale, work->folded, &query))
        return KVT_E_ARGUMENT;
    work->group = group;
    sparse_score(index, &query, work->scores);
    memset(work->weight, 0, width * sizeof *work->weight);
    for (uint32_t g = 0; g < group; g++)
        add_head(index, kernels, resident_lse[g], width, g, work);
    spread(index, paging, work->weight, work->page);
    return KVT_OK;
}

/* ---- the estimate ---- */

/* The share of a cluster's tokens that lie in absent pages. */
static float absent_share(const sparse_index *index, const sparse_paging *paging,
                          const uint8_t *variant, uint32_t cluster)
{
    const uint32_t begin = index->first[cluster], end = index->first[cluster + 1];
    uint32_t absent = 0;
    for (uint32_t place = begin; place < end;) {
        const uint32_t page = sparse_page_of(paging, place);
        const uint32_t next = sparse_page_first(paging, page + 1);
        const uint32_t stop = next < end ? next : end;
        if (variant[page] == PAGES_ABSENT) absent += stop - place;
        place = stop;
    }
    return (float)absent / (float)(end - begin);
}

/* Adds one cluster to all heads. sums is [group]; output holds means in steps. */
static void estimate_add(const sparse_index *index, const sparse_work *work, uint32_t cluster,
                         float share, float *output, float *sums)
{
    const uint32_t dim = index->head_dim;
    const size_t width = (size_t)index->blocks * SPARSE_BLOCK;
    const int8_t *mean = index->means + (size_t)cluster * dim;
    float row[SPARSE_HEAD_DIM_MAX];
    for (uint32_t d = 0; d < dim; d++)
        row[d] = (float)mean[d];
    for (uint32_t g = 0; g < work->group; g++) {
        const float weight = work->scores[g * width + cluster] * share;
        float *restrict to = output + (size_t)g * dim;
        sums[g] += weight;
        for (uint32_t d = 0; d < dim; d++)
            to[d] += weight * row[d];
    }
}

void sparse_choose_estimate(const sparse_index *index, const sparse_paging *paging,
                            const uint8_t *variant, const sparse_work *work, float *output,
                            float *lse)
{
    const uint32_t dim = index->head_dim;
    const float least = CHOOSE_NOTHING / (float)(index->clusters + 1);
    float sums[SPARSE_GROUP_MAX] = {0.0f};
    memset(output, 0, (size_t)work->group * dim * sizeof *output);
    for (uint32_t c = 0; c < index->clusters; c++) {
        if (work->weight[c] < least) continue;
        const float share = absent_share(index, paging, variant, c);
        if (share > 0.0f) estimate_add(index, work, c, share, output, sums);
    }
    for (uint32_t g = 0; g < work->group; g++) {
        const float inverse = sums[g] > 0.0f ? 1.0f / sums[g] : 0.0f;
        lse[g] = sums[g] > 0.0f ? work->largest[g] + logf(sums[g]) : -INFINITY;
        for (uint32_t d = 0; d < dim; d++)
            output[(size_t)g * dim + d] *= inverse * index->value_step[d];
    }
}
