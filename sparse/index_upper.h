/* SPDX-License-Identifier: Apache-2.0 */
/*
 * index_upper.h - the order in which similar clusters of a whole unit lie side by side.
 *
 * Thread rule: re-entrant.
 */
#ifndef SPARSE_INDEX_UPPER_H
#define SPARSE_INDEX_UPPER_H

#include "index.h"

/* Orders clusters by their mean keys, fp32 [clusters][dim], finite: order_out[i] is the i-th
 * cluster. KVT_OK; KVT_E_MEMORY. Scratch of 10 bytes a channel and cluster. */
KVT_NODISCARD kvt_status index_upper_order(const float *rows, uint32_t dim, uint32_t clusters,
                                           uint64_t seed, uint32_t *order_out);

#endif
