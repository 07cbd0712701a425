/* SPDX-License-Identifier: Apache-2.0 */
/*
 * workload_build.h - how readers and the generator fill a workload; private to them.
 *
 * One thread. After an error the builder stays valid: call workload_build_free.
 */
#ifndef REPLAY_WORKLOAD_BUILD_H
#define REPLAY_WORKLOAD_BUILD_H

#include "workload.h"

/* Maps the 64-bit ids of a trace to dense ones; open addressing. */
typedef struct workload_id_map {
    uint64_t *ids;
    uint32_t *dense; /* UINT32_MAX = free slot */
    size_t slots;    /* a power of two */
    size_t used;
} workload_id_map;

typedef struct workload_builder {
    replay_workload *workload;
    uint64_t request_room;
    uint64_t block_room;
    workload_id_map map;
    uint64_t *last_request; /* by dense id: 1 + the request that used it last */
    uint64_t last_room;
    bool keep_steps; /* finish finds the step of the arrivals but spreads nothing */
} workload_builder;

void workload_build_start(workload_builder *builder, replay_workload *workload,
                          uint32_t block_tokens);
void workload_build_free(workload_builder *builder);

/* Appends one request without blocks. KVT_OK; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status workload_build_request(workload_builder *builder, uint64_t arrival_ns,
                                                uint32_t input_tokens, uint32_t output_tokens,
                                                uint32_t session);

/* Appends a block to the last request: one of a trace's ids, one never seen before, or a dense id
 * that another request holds. KVT_OK; KVT_E_PARSE (the path holds the block already); KVT_E_SPACE
 * (more than REPLAY_BLOCK_REFS_MAX); KVT_E_MEMORY. */
KVT_NODISCARD kvt_status workload_build_block(workload_builder *builder, uint64_t id);
KVT_NODISCARD kvt_status workload_build_new_block(workload_builder *builder);
KVT_NODISCARD kvt_status workload_build_dense_block(workload_builder *builder, uint32_t dense);

/* Spreads quantised arrivals inside their step by the seed (sets grid_ns), orders requests by
 * arrival, keeps the first `limit` (0 = all) and counts. KVT_OK; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status workload_build_finish(workload_builder *builder, uint64_t seed,
                                               uint64_t limit);

/* Grows *array to hold `needed` items of item_bytes, doubling. KVT_OK; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status workload_grow(void **array, uint64_t *room, uint64_t needed,
                                       size_t item_bytes);

#endif
