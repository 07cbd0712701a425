/* SPDX-License-Identifier: Apache-2.0 */
/*
 * index_added.h - clusters that join an index after it was built, with the pages that hold them.
 *
 * A lane has the steps of its index. A mean beyond 127 of them widens the step of its channel, and
 * what the index has in that channel is rounded to the new one.
 *
 * Thread rule: the index's user alone, while nobody scores.
 */
#ifndef SPARSE_INDEX_ADDED_H
#define SPARSE_INDEX_ADDED_H

#include "index.h"

/* Room for pages of so many clusters at most. KVT_OK; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status sparse_added_open(uint32_t head_dim, uint32_t pages_max,
                                           uint32_t page_clusters, sparse_added *added_out);
void sparse_added_close(sparse_added *added); /* zeroed ones are allowed */

/* Lanes in use, whole blocks of them. */
static inline uint32_t sparse_added_lanes(const sparse_added *added)
{
    if (added == NULL) return 0;
    return (added->pages * added->page_clusters + SPARSE_BLOCK - 1) / SPARSE_BLOCK * SPARSE_BLOCK;
}

/*
 * Adds a page to index->added, which has room for it.
 *   key_means, value_means   fp32 [clusters][head_dim], finite
 *   tokens                   of each cluster, at least 1;  clusters: 1 .. page_clusters
 *   scatter                  of each cluster's keys
 */
void sparse_added_page(sparse_index *index, const float *key_means, const float *value_means,
                       const uint32_t *tokens, const float *scatter, uint32_t clusters);

#endif
