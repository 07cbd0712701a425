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
    uint32_t lanes, full, sketches, axes, pages;
} sparse_work_room;

void sparse_work_room_add(sparse_work_room *room, const sparse_index *index, uint32_t pages);

/*
 * The tokens that are left of pages which bring single ones (singles.h), by cluster. An estimate
 * adds them; the pages are not absent in its list.
 */
typedef struct sparse_left {
    uint32_t count;
    uint32_t *lane; /* of each cluster, ascending */
    float *weight;  /* [count][group]: sum over the tokens of exp(score - largest) */
    float *tilt;    /* [count][group], -1 .. 1: how much of a whole cluster's slopes their values
                       follow */
} sparse_left;

/*
 * The work of one unit and step; reused from unit to unit. Behind the index's lanes come those of
 * clusters that were added. In two passes a choice knows the scores of the clusters in `list`, and
 * of added ones; sparse_choose_rest takes all others from the sketches.
 */
typedef struct sparse_work {
    sparse_work_room room;
    uint32_t group;
    uint32_t lanes;    /* of the index, and of clusters that were added */
    uint32_t *tokens;  /* [lanes] */
    float *scores;     /* [group][lanes]: n * exp(score - largest) */
    float *weight;     /* [lanes]: expected weight of a cluster */
    uint32_t *present; /* scratch of the estimate */
    float *share;      /* the same: of a lane's tokens, that no page brings */
    float *page;    /* [pages]: expected weight of a page, added ones last; one more is scratch */
    float *lse;     /* [group]: of everything: resident and clusters */
    float *largest; /* [group]: score that scores are relative to */
    float *sum;     /* [group]: of scores, and of what is resident */
    int16_t *folded;
    float folded_unit[SPARSE_GROUP_MAX];
    bool rest_is_known; /* tokens, scores and weight are those of all lanes */
    uint32_t *list;     /* of two passes: lanes that are scored in full, added ones last */
    uint32_t listed;    /* of the index */
    uint32_t width;     /* of the list, with padding and added ones */
    float *full_scores; /* [group][width] */
    float *full_weight, *full_scatter;
    uint32_t *full_tokens;
    int16_t *sums;                        /* [group][lanes of the index]: of the sketches */
    int16_t *keys, *sampled, *heavy_keys; /* scratch: of all of them, a sample, those that may be
                                             listed */
    uint32_t *heavy;                      /* scratch: those lanes */
    float *parts;                         /* of queries in the axes */
    int8_t *sketch;
    float unit, rest[SPARSE_GROUP_MAX]; /* of a score by a sketch */
    const sparse_left *left;            /* NULL: no page brings single tokens; weights set it */
    void *memory;
} sparse_work;

/* KVT_OK; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status sparse_work_open(const sparse_work_room *room, uint32_t group,
                                          uint32_t head_dim, sparse_work *work_out);
void sparse_work_close(sparse_work *work);

/*
 * Scores all clusters in full, or their sketches and then the best in full.
 *   queries        fp32 [group][head_dim]
 *   resident_lse   [group]: log-sum-exp of scaled scores over sinks and local tokens; -infinity
 *                  without any
 * work->page and lse are filled, and in one pass scores and weight; in two, lse and the weights
 * take what is not scored in full from a sample. KVT_OK; KVT_E_ARGUMENT (queries not finite).
 */
KVT_NODISCARD kvt_status sparse_choose_weights(const sparse_index *index,
                                               const sparse_paging *paging, const float *queries,
                                               uint32_t group, float scale,
                                               const float *resident_lse, sparse_work *work);

/* In two passes, after sparse_choose_weights: fills scores and weight of all lanes. No cluster that
 * was not scored in full weighs more than the best one. */
void sparse_choose_rest(const sparse_index *index, sparse_work *work);

/* The largest of the keys that at least `most` of them reach; both at least 1. */
int16_t sparse_choose_rank(const int16_t *keys, uint32_t count, uint32_t most);

/* Whether a cluster was scored in full; of others the mean that they share enters an estimate.
 * Clusters are asked for in ascending order; *next is 0 at first. And whether a cluster that was
 * enters with its slopes: not when such together weigh next to nothing. */
bool sparse_choose_is_full(const sparse_index *index, const sparse_work *work, uint32_t cluster,
                           uint32_t *next);
bool sparse_choose_slopes(const sparse_index *index, const sparse_work *work, uint32_t cluster);

/*
 * The partial output of the clusters' tokens that no page brings, after sparse_choose_weights.
 *   variant   of each page, added ones last; PAGES_ABSENT pages are estimated
 *   output    fp32 [group][head_dim], normalised;  lse [group]; -infinity where nothing is left
 */
void sparse_choose_estimate(const sparse_index *index, const sparse_paging *paging,
                            const uint8_t *variant, sparse_work *work, float *output, float *lse);

#endif
