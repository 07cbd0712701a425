/* SPDX-License-Identifier: Apache-2.0 */
/*
 * score.h - scores of all clusters for the queries of one KV head.
 *
 * A query is folded with the key steps and quantised to int16 once; a score is an exact sum of
 * int8 x int16 products, so the scalar body is the specification of the vector one bit for bit.
 * Pure; any thread.
 */
#ifndef SPARSE_SCORE_H
#define SPARSE_SCORE_H

#include "index.h"

#define SPARSE_GROUP_MAX 64u /* query heads of a KV head */

/* Queries as the kernels take them. */
typedef struct sparse_query {
    uint32_t group;                    /* 1 .. SPARSE_GROUP_MAX */
    float unit[SPARSE_GROUP_MAX];      /* a score is so many units: times the sum */
    float deviation[SPARSE_GROUP_MAX]; /* mean square of a key's score less its centroid's, in a
                                          cluster of scatter 1 */
    int16_t *folded;                   /* [head_dim / 2][group][2] */
} sparse_query;

/* Folds and quantises. queries: fp32 [group][head_dim]; scale: of scores, 1 / sqrt(head_dim);
 * folded: room for group * head_dim. False when a query is not finite. */
bool sparse_query_fold(const sparse_index *index, const float *queries, uint32_t group, float scale,
                       int16_t *folded, sparse_query *query_out);

/* Scaled q * centroid, by lane, of the blocks of a list in ascending order: of each query count *
 * SPARSE_BLOCK numbers, `width` apart. Of padding -infinity. */
void sparse_score(const sparse_index *index, const sparse_query *query, const uint32_t *list,
                  uint32_t count, size_t width, float *scores_out);

/* The same of the clusters that were added to the index. */
void sparse_score_added(const sparse_index *index, const sparse_query *query, size_t width,
                        float *scores_out);

/* The same of the blocks' own centroids: [group][upper_blocks * SPARSE_BLOCK]. list: 0, 1, and so
 * on, of all upper blocks. */
void sparse_score_upper(const sparse_index *index, const sparse_query *query, const uint32_t *list,
                        float *scores_out);

#endif
