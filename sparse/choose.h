/* SPDX-License-Identifier: Apache-2.0 */
/*
 * choose.h - one unit's step: scores, expected weights, plan, estimate.
 *
 *     sparse_choose_weights   queries -> weights of clusters and pages
 *     pages_choose            weights -> variants (sparse/decide/pages.h)
 *     sparse_choose_estimate  what no page brings, as one partial output
 *
 * Pure: memory is the caller's. Thread rule: one work area per thread.
 */
#ifndef SPARSE_CHOOSE_H
#define SPARSE_CHOOSE_H

#include "paging.h"
#include "score.h"

/* What a work area has room for: the largest of several units. Zeroed at the start. */
typedef struct sparse_work_room {
    uint32_t lanes, blocks, upper, pages;
} sparse_work_room;

void sparse_work_room_add(sparse_work_room *room, const sparse_index *index, uint32_t pages);

/*
 * The work of one unit and step; reused from unit to unit. `lanes` are those of the open blocks,
 * one block after the other; blocks that are not open weigh as one each. Behind
 * them come the lanes of clusters that were added.
 */
typedef struct sparse_work {
    sparse_work_room room;
    uint32_t group;
    uint32_t open_count, lanes; /* of open blocks, and of clusters that were added */
    uint32_t *open;             /* numbers of the open blocks, ascending */
    uint32_t *slot;             /* [blocks]: 1 + a block's place in open; 0: not open */
    uint32_t *tokens;           /* [lanes] */
    float *scatter;             /* [lanes] */
    float *scores;              /* [group][lanes]: n * exp(score - largest) */
    float *weight;              /* [lanes]: expected weight of a cluster */
    float *
        upper_scores; /* [group][upper_blocks * SPARSE_BLOCK]: the same of blocks; 0 of open ones */
    float *upper_weight; /* of blocks, by their own scores alone */
    uint32_t *present;   /* scratch of the estimate */
    float *page;    /* [pages]: expected weight of a page, added ones last; one more is scratch */
    float *lse;     /* [group]: of everything: resident, clusters and blocks */
    float *largest; /* [group]: score that scores are relative to */
    int16_t *folded;
    void *memory;
} sparse_work;

/* KVT_OK; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status sparse_work_open(const sparse_work_room *room, uint32_t group,
                                          uint32_t head_dim, sparse_work *work_out);
void sparse_work_close(sparse_work *work);

/*
 * Scores all clusters, or with two levels those of the best blocks.
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
 *   variant   of each page, added ones last; PAGES_ABSENT pages are estimated
 *   output    fp32 [group][head_dim], normalised;  lse [group]; -infinity where nothing is left
 */
void sparse_choose_estimate(const sparse_index *index, const sparse_paging *paging,
                            const uint8_t *variant, sparse_work *work, float *output, float *lse);

#endif
