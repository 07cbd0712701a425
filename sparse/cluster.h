/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cluster.h - k-means of the keys of one segment, in integers.
 *
 * Keys become int16 with one step for the segment, centroids are means rounded to the same grid, a
 * distance is an exact sum: the clusters are the same on every instruction set. Thread rule: one
 * work area per thread; nothing is allocated after the open.
 */
#ifndef SPARSE_CLUSTER_H
#define SPARSE_CLUSTER_H

#include "sparse_kernels.h"

typedef struct cluster_work {
    uint32_t head_dim;
    uint32_t tokens_max, clusters_max;
    /* The grid: its largest number, and steps in 1. */
    float top, inverse;
    float *rows;      /* [tokens][head_dim]: the caller fills them, finite */
    int16_t *keys;    /* the same on the grid */
    int16_t *packed;  /* centroids as sparse_kernels.assign takes them */
    int32_t *norms;   /* of them; INT32_MAX: no centroid */
    int32_t *sums;    /* [clusters][head_dim] */
    uint32_t *counts; /* tokens of each cluster */
    uint16_t *owner;  /* of each token */
    uint16_t *order;  /* clusters that have tokens, similar ones side by side */
    void *memory;
} cluster_work;

/* Room for segments of so many tokens. KVT_OK; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status cluster_work_open(uint32_t head_dim, uint32_t tokens, uint32_t clusters,
                                           cluster_work *work_out);
void cluster_work_close(cluster_work *work);

/*
 * Clusters work->rows. Fills owner and counts, and order with the clusters that are not empty, of
 * which it returns the number; at least 1. tokens, clusters: at least 1; seed: a draw of its own
 * for each segment.
 */
uint32_t cluster_segment(cluster_work *work, uint32_t tokens, uint32_t clusters,
                         uint32_t iterations, uint64_t seed);

/* The same without an order: clusters stay, empty ones are nearest to no row. */
void sparse_cluster_find(cluster_work *work, uint32_t tokens, uint32_t clusters,
                         uint32_t iterations, uint64_t seed);
/* Fills owner for other rows by the clusters that sparse_cluster_find has found, on their grid. */
void sparse_cluster_nearest(cluster_work *work, uint32_t tokens, uint32_t clusters);
/* A cluster's centroid; zeros of an empty one. */
void sparse_cluster_centre(const cluster_work *work, uint32_t cluster, float *centre);

#endif
