/* SPDX-License-Identifier: Apache-2.0 */
/*
 * score.h - scores of clusters for the queries of one KV head, in full and by their sketches.
 *
 * A query is folded with the key steps and quantised to int16 once, and with the steps of the axes
 * to int8; a score is an exact sum of products, so the scalar body is the specification of the
 * vector one bit for bit. Pure; any thread.
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
    int16_t *folded;                   /* [group][head_dim] */
    float *parts;                      /* [group][axes]: scratch */
    int8_t *sketch;                    /* [axes / 2][group][4]: each pair twice */
    float sketch_unit;                 /* a score by a sketch, with what its scatter adds, is so
                                          many units: times the sum, and the rest */
    float sketch_rest[SPARSE_GROUP_MAX];
} sparse_query;

/* Folds and quantises. queries: fp32 [group][head_dim]; scale: of scores, 1 / sqrt(head_dim);
 * query->folded has room for group * head_dim, parts for group * axes, sketch for twice that. False
 * when a query is not finite. */
bool sparse_query_fold(const sparse_index *index, const float *queries, uint32_t group, float scale,
                       sparse_query *query);

/*
 * Scaled q * centroid of each query, rows of `width` apart.
 *   sparse_score         of the clusters of a list, `count` of them, a multiple of SPARSE_BLOCK;
 *                        NULL: of all lanes, -infinity of the padding
 *   sparse_score_added   of all lanes that were added; -infinity of empty ones
 */
void sparse_score(const sparse_index *index, const sparse_query *query, const uint32_t *list,
                  uint32_t count, size_t width, float *scores_out);
void sparse_score_added(const sparse_index *index, const sparse_query *query, size_t width,
                        float *scores_out);

#endif
