/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cluster.c - k-means of one segment's keys.
 *
 * The grid: an element is at most `top` in size, where 3 * head_dim * top^2 is below 2^31, so that
 * 2 * row * centroid - norm never passes an int32. Re-entrant.
 */
#include "cluster.h"

#include "base/number/number.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

#define CLUSTER_LEAST 1e-30f /* a segment whose keys are smaller is all zeros */

static size_t aligned(size_t bytes)
{
    return (bytes + 63) & ~(size_t)63;
}

kvt_status cluster_work_open(uint32_t head_dim, uint32_t tokens, uint32_t clusters,
                             cluster_work *work_out)
{
    const size_t blocks = (clusters + SPARSE_BLOCK - 1) / SPARSE_BLOCK;
    const size_t padded = blocks * SPARSE_BLOCK, elements = (size_t)tokens * head_dim;
    const size_t bytes[] = {aligned(elements * sizeof(float)),
                            aligned(elements * sizeof(int16_t)),
                            aligned(padded * head_dim * sizeof(int16_t)),
                            aligned(padded * sizeof(int32_t)),
                            aligned(padded * head_dim * sizeof(int32_t)),
                            aligned(padded * sizeof(uint32_t)),
                            aligned(tokens * sizeof(uint16_t)),
                            aligned(padded * sizeof(uint16_t))};
    const size_t parts = sizeof bytes / sizeof bytes[0];
    size_t all = 0;
    for (size_t i = 0; i < parts; i++)
        all += bytes[i];
    uint8_t *at = aligned_alloc(64, all);
    *work_out = (cluster_work){.memory = at};
    if (at == NULL) return KVT_E_MEMORY;
    uint8_t *place[sizeof bytes / sizeof bytes[0]];
    for (size_t i = 0; i < parts; at += bytes[i++])
        place[i] = at;
    *work_out = (cluster_work){.head_dim = head_dim,
                               .tokens_max = tokens,
                               .clusters_max = clusters,
                               .rows = (float *)(void *)place[0],
                               .keys = (int16_t *)(void *)place[1],
                               .packed = (int16_t *)(void *)place[2],
                               .norms = (int32_t *)(void *)place[3],
                               .sums = (int32_t *)(void *)place[4],
                               .counts = (uint32_t *)(void *)place[5],
                               .owner = (uint16_t *)(void *)place[6],
                               .order = (uint16_t *)(void *)place[7],
                               .memory = place[0]};
    return KVT_OK;
}

void cluster_work_close(cluster_work *work)
{
    free(work->memory);
    *work = (cluster_work){.memory = NULL};
}

/* The grid of the rows: the largest element is `top`. */
static void cluster_grid(cluster_work *work, uint32_t tokens)
{
    const size_t count = (size_t)tokens * work->head_dim;
    float most = 0.0f;
    work->top = floorf(sqrtf(2147483000.0f / (3.0f * (float)work->head_dim))) - 1.0f;
    for (size_t i = 0; i < count; i++) {
        const float size = fabsf(work->rows[i]);
        most = size > most ? size : most;
    }
    work->inverse = most < CLUSTER_LEAST ? 0.0f : work->top / most;
}

/* Rows onto the grid. */
static void cluster_round(cluster_work *work, uint32_t tokens)
{
    const size_t count = (size_t)tokens * work->head_dim;
    for (size_t i = 0; i < count; i++)
        work->keys[i] =
            (int16_t)half_round_integer(sparse_within(work->rows[i] * work->inverse, work->top));
}

/* The place of a centroid's first pair of channels; the next one is 2 * SPARSE_BLOCK further on. */
static int16_t *cluster_centroid(const cluster_work *work, uint32_t cluster)
{
    return work->packed + (size_t)(cluster / SPARSE_BLOCK) * work->head_dim * SPARSE_BLOCK +
           (size_t)(cluster % SPARSE_BLOCK) * 2;
}

static void cluster_set(cluster_work *work, uint32_t cluster, const int16_t *row)
{
    int16_t *to = cluster_centroid(work, cluster);
    int32_t norm = 0;
    for (uint32_t d = 0; d < work->head_dim; d += 2, to += 2 * SPARSE_BLOCK) {
        to[0] = row[d];
        to[1] = row[d + 1];
        norm += row[d] * row[d] + row[d + 1] * row[d + 1];
    }
    work->norms[cluster] = norm;
}

/* No row is nearest to it from now on: zeros, whose score is below every other one. */
static void cluster_clear(cluster_work *work, uint32_t cluster)
{
    int16_t *to = cluster_centroid(work, cluster);
    for (uint32_t d = 0; d < work->head_dim; d += 2, to += 2 * SPARSE_BLOCK)
        to[0] = to[1] = 0;
    work->norms[cluster] = INT32_MAX;
}

/* One token of each equal stretch. */
static void cluster_start(cluster_work *work, uint32_t tokens, uint32_t clusters, uint32_t padded,
                          uint64_t seed)
{
    for (uint32_t c = 0; c < padded; c++) {
        if (c >= clusters) {
            cluster_clear(work, c);
            continue;
        }
        const uint32_t begin = (uint32_t)((uint64_t)c * tokens / clusters);
        const uint32_t end = (uint32_t)((uint64_t)(c + 1) * tokens / clusters);
        const uint64_t draw = number_mix(seed ^ number_mix((uint64_t)c + 1));
        const uint32_t token = begin + (end > begin ? (uint32_t)(draw % (end - begin)) : 0);
        cluster_set(work, c, work->keys + (size_t)token * work->head_dim);
    }
}

static void cluster_add(cluster_work *work, uint32_t tokens, uint32_t padded)
{
    const uint32_t dim = work->head_dim;
    memset(work->sums, 0, (size_t)padded * dim * sizeof *work->sums);
    memset(work->counts, 0, padded * sizeof *work->counts);
    for (uint32_t t = 0; t < tokens; t++) {
        const int16_t *row = work->keys + (size_t)t * dim;
        int32_t *sum = work->sums + (size_t)work->owner[t] * dim;
        work->counts[work->owner[t]]++;
        for (uint32_t d = 0; d < dim; d++)
            sum[d] += row[d];
    }
}

/* Means, halves rounded up; clusters without tokens go away. */
static void cluster_move(cluster_work *work, uint32_t clusters)
{
    int16_t row[SPARSE_HEAD_DIM_MAX];
    for (uint32_t c = 0; c < clusters; c++) {
        const int32_t count = (int32_t)work->counts[c];
        const int32_t *sum = work->sums + (size_t)c * work->head_dim;
        if (count == 0) {
            if (work->norms[c] != INT32_MAX) cluster_clear(work, c);
            continue;
        }
        for (uint32_t d = 0; d < work->head_dim; d++) {
            const int32_t twice = 2 * sum[d] + count, whole = twice / (2 * count);
            row[d] = (int16_t)(twice % (2 * count) < 0 ? whole - 1 : whole);
        }
        cluster_set(work, c, row);
    }
}

/* From each cluster to the nearest one that has not come yet. Takes the centroids apart. */
static uint32_t cluster_walk(cluster_work *work, uint32_t clusters, uint32_t blocks)
{
    const sparse_kernels *kernels = sparse_kernels_in_use();
    int16_t row[SPARSE_HEAD_DIM_MAX];
    uint32_t left = 0, done = 0, at = clusters;
    for (uint32_t c = clusters; c-- > 0;) {
        if (work->counts[c] == 0) continue;
        left++;
        at = c;
    }
    assert(left > 0);
    for (;;) {
        const int16_t *from = cluster_centroid(work, at);
        work->order[done++] = (uint16_t)at;
        if (done == left) return done;
        for (uint32_t d = 0; d < work->head_dim; d += 2, from += 2 * SPARSE_BLOCK) {
            row[d] = from[0];
            row[d + 1] = from[1];
        }
        cluster_clear(work, at);
        uint16_t next;
        kernels->assign(row, 1, work->head_dim, work->packed, work->norms, blocks, &next);
        at = next;
    }
}

static uint32_t blocks_of(uint32_t clusters)
{
    return (clusters + SPARSE_BLOCK - 1) / SPARSE_BLOCK;
}

static void cluster_assign(cluster_work *work, uint32_t tokens, uint32_t clusters)
{
    sparse_kernels_in_use()->assign(work->keys, tokens, work->head_dim, work->packed, work->norms,
                                    blocks_of(clusters), work->owner);
}

void sparse_cluster_find(cluster_work *work, uint32_t tokens, uint32_t clusters,
                         uint32_t iterations, uint64_t seed)
{
    const uint32_t padded = blocks_of(clusters) * SPARSE_BLOCK;
    assert(tokens > 0 && tokens <= work->tokens_max);
    assert(clusters > 0 && clusters <= work->clusters_max);
    cluster_grid(work, tokens);
    cluster_round(work, tokens);
    cluster_start(work, tokens, clusters, padded, seed);
    for (uint32_t i = 0; i < iterations; i++) {
        cluster_assign(work, tokens, clusters);
        cluster_add(work, tokens, padded);
        cluster_move(work, clusters);
    }
}

void sparse_cluster_nearest(cluster_work *work, uint32_t tokens, uint32_t clusters)
{
    assert(tokens <= work->tokens_max);
    cluster_round(work, tokens);
    cluster_assign(work, tokens, clusters);
}

void sparse_cluster_centre(const cluster_work *work, uint32_t cluster, float *centre)
{
    const int16_t *from = cluster_centroid(work, cluster);
    const float step = work->inverse > 0.0f ? 1.0f / work->inverse : 0.0f;
    for (uint32_t d = 0; d < work->head_dim; d += 2, from += 2 * SPARSE_BLOCK) {
        centre[d] = from[0] * step;
        centre[d + 1] = from[1] * step;
    }
}

uint32_t cluster_segment(cluster_work *work, uint32_t tokens, uint32_t clusters,
                         uint32_t iterations, uint64_t seed)
{
    sparse_cluster_find(work, tokens, clusters, iterations, seed);
    return cluster_walk(work, clusters, blocks_of(clusters));
}
