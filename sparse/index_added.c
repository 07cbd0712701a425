/* SPDX-License-Identifier: Apache-2.0 */
/*
 * index_added.c - lanes behind those of an index, and steps that grow with what comes.
 *
 * Thread rule: as index_added.h.
 */
#include "index_added.h"

#include "index_lane.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define STEP_SPARE 1.25f /* of a step that is widened: the next mean may be a little larger still */

static size_t aligned(size_t bytes)
{
    return (bytes + 63) & ~(size_t)63;
}

kvt_status sparse_added_open(uint32_t head_dim, uint32_t pages_max, uint32_t page_clusters,
                             sparse_added *added_out)
{
    const size_t blocks = ((size_t)pages_max * page_clusters + SPARSE_BLOCK - 1) / SPARSE_BLOCK;
    const size_t lanes = blocks * SPARSE_BLOCK;
    const size_t rows = aligned(lanes * head_dim), numbers = aligned(lanes * sizeof(uint32_t));
    const size_t bytes = 2 * rows + 2 * numbers;
    *added_out = (sparse_added){.pages_max = pages_max, .page_clusters = page_clusters};
    if (pages_max == 0) return KVT_OK;
    uint8_t *memory = aligned_alloc(64, bytes);
    if (memory == NULL) return KVT_E_MEMORY;
    memset(memory, 0, bytes);
    added_out->centroids = (int8_t *)memory;
    added_out->means = (int8_t *)memory + rows;
    added_out->tokens = (uint32_t *)(void *)(memory + 2 * rows);
    added_out->scatter = (float *)(void *)(memory + 2 * rows + numbers);
    added_out->memory = memory;
    added_out->bytes = bytes;
    return KVT_OK;
}

void sparse_added_close(sparse_added *added)
{
    free(added->memory);
    *added = (sparse_added){.pages = 0};
}

/* ---- steps ---- */

static void scale_means(int8_t *means, uint32_t lanes, uint32_t dim, uint32_t d, float share)
{
    for (uint32_t lane = 0; lane < lanes; lane++) {
        int8_t *at = &means[(size_t)lane * dim + d];
        *at = (int8_t)half_round_integer((float)*at * share);
    }
}

/* Where a mean is too large for a channel's step, the step grows. */
static void widen_steps(sparse_index *index, const float *mean, bool keys)
{
    const sparse_added *added = index->added;
    const uint32_t dim = index->head_dim, lanes = sparse_added_lanes(added);
    float *step = keys ? index->key_step : index->value_step;
    for (uint32_t d = 0; d < dim; d++) {
        const float size = mean[d] < 0.0f ? -mean[d] : mean[d];
        if (size < INDEX_LEAST || size <= 127.0f * step[d]) continue;
        const float wider = size * STEP_SPARE / 127.0f, share = step[d] / wider;
        step[d] = wider;
        scale_means(keys ? index->centroids : index->means, index->lanes, dim, d, share);
        scale_means(keys ? added->centroids : added->means, lanes, dim, d, share);
    }
}

static void invert_steps(const float *step, uint32_t dim, float *inverse)
{
    for (uint32_t d = 0; d < dim; d++)
        inverse[d] = step[d] > 0.0f ? 1.0f / step[d] : 0.0f;
}

void sparse_added_page(sparse_index *index, const float *key_means, const float *value_means,
                       const uint32_t *tokens, const float *scatter, uint32_t clusters)
{
    sparse_added *added = index->added;
    const uint32_t dim = index->head_dim, first = added->pages * added->page_clusters;
    float keys[SPARSE_HEAD_DIM_MAX], values[SPARSE_HEAD_DIM_MAX];
    assert(added->pages < added->pages_max);
    assert(clusters > 0 && clusters <= added->page_clusters);
    for (uint32_t c = 0; c < clusters; c++) {
        widen_steps(index, key_means + (size_t)c * dim, true);
        widen_steps(index, value_means + (size_t)c * dim, false);
    }
    invert_steps(index->key_step, dim, keys);
    invert_steps(index->value_step, dim, values);
    for (uint32_t c = 0; c < clusters; c++) {
        index_put_mean(key_means + (size_t)c * dim, keys, dim, first + c, added->centroids);
        index_put_mean(value_means + (size_t)c * dim, values, dim, first + c, added->means);
        added->tokens[first + c] = tokens[c];
        added->scatter[first + c] = scatter[c];
    }
    added->pages++;
}
