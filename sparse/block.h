/* SPDX-License-Identifier: Apache-2.0 */
/*
 * block.h - memory that devices read and write, with one transfer of it: for whole slots and
 * segments, outside of a step. A device that does not answer keeps the memory, and the call ends.
 *
 * Thread rule: a block has one user at a time; blocks are independent.
 */
#ifndef SPARSE_BLOCK_H
#define SPARSE_BLOCK_H

#include "tiers/pool/pool.h"

typedef struct sparse_block sparse_block;

/* bytes is rounded up to the grain. NULL: no memory. */
sparse_block *sparse_block_make(uint64_t bytes);
/* Frees it, or leaves it to the device that still has it. NULL is allowed. */
void sparse_block_free(sparse_block *block);

/* The memory, and its bytes; NULL and 0 after a device has kept it. */
uint8_t *sparse_block_memory(const sparse_block *block);
uint64_t sparse_block_bytes(const sparse_block *block);

/* Starts to move bytes between the block, from `at` on (a multiple of the grain), and an object,
 * and ends that. One move at a time. KVT_OK; the statuses of tiers_transfer_wait; KVT_E_GONE also
 * when a member does not answer: the block's memory is lost then. */
void sparse_block_start_at(sparse_block *block, uint64_t at, tiers_pool *pool, kvt_io_kind kind,
                           const tiers_location *location, uint64_t offset, uint64_t bytes);
static inline void sparse_block_start(sparse_block *block, tiers_pool *pool, kvt_io_kind kind,
                                      const tiers_location *location, uint64_t offset,
                                      uint64_t bytes)
{
    sparse_block_start_at(block, 0, pool, kind, location, offset, bytes);
}

KVT_NODISCARD kvt_status sparse_block_wait(sparse_block *block);

/* The same without waiting: KVT_BUSY while the move is under way. */
KVT_NODISCARD kvt_status sparse_block_try(sparse_block *block);

#endif
