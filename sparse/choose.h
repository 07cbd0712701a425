/* SPDX-License-Identifier: Apache-2.0 */
/*
 * choose.h - one unit's step: scores, expected weights, plan, estimate.
 *
 *     sparse_choose_weights   queries -> weights of clusters and pages
 *     pages_choose            weights -> variants (policy/pages.h)
 *     sparse_choose_estimate  what no page brings, as one partial output
 *
 * Pure: memory is the caller's. Thread rule: one work area per thread.
 */
#ifndef SPARSE_CHOOSE_H
#define SPARSE_CHOOSE_H

#include "paging.h"
#include "score.h"

/* The work of one unit and step; reused from unit to unit. */
typedef struct sparse_work {
    uint32_t group;
    uint32_t width; /* clusters with padding that there is room for */
    float *scores;  /* [group][blocks * SPARSE_BLOCK]: then n * exp(score - largest) */
    float *weight;  /* [width]: expected weight of a cluster */
    float *page;    /* [pages]: of a page */
    float *lse;     /* [group]: of everything: resident and clusters */
    float *largest; /* [group]: score that the weights in scores are relative to */
    int16_t *folded;
    void *memory;
} sparse_work;

/* Room for units of at most so many clusters, pages and query heads. KVT_OK; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status sparse_work_open(uint32_t clusters, uint32_t pages, uint32_t group,
                                          uint32_t head_dim, sparse_work *work_out);
void sparse_work_close(sparse_work *work);

/*
 * Scores all clusters.
 *   queries        fp32 [group][head_dim]
 *   resident_lse   [group]: log-sum-exp of scaled scores over sinks and local tokens; -infinity
 *                  without any
 * work->weight, page, scores and lse are filled. KVT_OK; KVT_E_ARGUMENT (queries not finite).
 */
KVT_NODISCARD kvt_status sparse_choose_weights(const sparse_index *index,
                                               const sparse_paging *paging, const float *queries,
                                               uint32_t group, float scale,
                                               const float *resident_lse, sparse_work *work);

/*
 * The partial output of the clusters' tokens that no page brings, after sparse_choose_weights.
 *   variant   of each page; PAGES_ABSENT pages are estimated
 *   output    fp32 [group][head_dim], normalised;  lse [group]; -infinity where nothing is left
 */
void sparse_choose_estimate(const sparse_index *index, const sparse_paging *paging,
                            const uint8_t *variant, const sparse_work *work, float *output,
                            float *lse);

#endif
