/* SPDX-License-Identifier: Apache-2.0 */
/*
 * score.c - folds queries with the key steps of an index, and scores its clusters. Re-entrant.
 */
#include "score.h"

#include "index_added.h"
#include "sparse_kernels.h"

#include <assert.h>
#include <math.h>

#define FOLDED_MAX 32767.0f /* 512 channels of 127 * 32767 fit an int32 */

bool sparse_query_fold(const sparse_index *index, const float *queries, uint32_t group, float scale,
                       int16_t *folded, sparse_query *query_out)
{
    float row[SPARSE_HEAD_DIM_MAX];
    assert(group > 0 && group <= SPARSE_GROUP_MAX);
    query_out->group = group;
    query_out->folded = folded;
    for (uint32_t g = 0; g < group; g++) {
        const float *query = queries + (size_t)g * index->head_dim;
        float most = 0.0f, deviation = 0.0f;
        for (uint32_t d = 0; d < index->head_dim; d++) {
            const float scaled = query[d] * scale;
            deviation += scaled * scaled * index->key_scatter[d];
            /* Steps are of the keys, and no fault of the query's. */
            row[d] = fmaxf(fminf(query[d] * scale * index->key_step[d], SPARSE_ELEMENT_MAX),
                           -SPARSE_ELEMENT_MAX);
            if (!(fabsf(query[d]) <= SPARSE_ELEMENT_MAX)) return false; /* NaN as well */
            most = fmaxf(most, fabsf(row[d]));
        }
        if (!(deviation >= 0.0f)) deviation = 0.0f;
        query_out->deviation[g] =
            deviation < SPARSE_DEVIATION_MAX ? deviation : SPARSE_DEVIATION_MAX;
        const bool used = most >= 1e-30f;
        const float inverse = used ? FOLDED_MAX / most : 0.0f;
        query_out->unit[g] = used ? most / FOLDED_MAX : 0.0f;
        for (uint32_t d = 0; d < index->head_dim; d++)
            folded[((size_t)(d / 2) * group + g) * 2 + d % 2] =
                (int16_t)half_round_integer(row[d] * inverse);
    }
    return true;
}

void sparse_score(const sparse_index *index, const sparse_query *query, const uint32_t *list,
                  uint32_t count, size_t width, float *scores_out)
{
    const size_t lanes = (size_t)count * SPARSE_BLOCK;
    sparse_kernels_in_use()->score(index->centroids, list, count, index->head_dim, query->folded,
                                   query->group, query->unit, width, scores_out);
    if (count == 0 || list[count - 1] + 1 != index->blocks) return;
    const size_t padding = (size_t)index->blocks * SPARSE_BLOCK - index->clusters;
    for (uint32_t g = 0; g < query->group; g++)
        for (size_t c = lanes - padding; c < lanes; c++)
            scores_out[g * width + c] = -INFINITY;
}

void sparse_score_added(const sparse_index *index, const sparse_query *query, size_t width,
                        float *scores_out)
{
    const sparse_added *added = index->added;
    const uint32_t blocks = sparse_added_blocks(added);
    sparse_kernels_in_use()->score(added->centroids, added->list, blocks, index->head_dim,
                                   query->folded, query->group, query->unit, width, scores_out);
    for (uint32_t i = 0; i < blocks * SPARSE_BLOCK; i++)
        for (uint32_t g = 0; added->tokens[i] == 0 && g < query->group; g++)
            scores_out[g * width + i] = -INFINITY;
}

void sparse_score_upper(const sparse_index *index, const sparse_query *query, const uint32_t *list,
                        float *scores_out)
{
    const size_t width = (size_t)index->upper_blocks * SPARSE_BLOCK;
    sparse_kernels_in_use()->score(index->upper_centroids, list, index->upper_blocks,
                                   index->head_dim, query->folded, query->group, query->unit, width,
                                   scores_out);
    for (uint32_t g = 0; g < query->group; g++)
        for (size_t b = index->blocks; b < width; b++)
            scores_out[g * width + b] = -INFINITY;
}
