/* SPDX-License-Identifier: Apache-2.0 */
/*
 * block.c - one transfer and its memory, which go together when a device keeps them.
 *
 * Thread rule: as block.h; the last word of an abandoned transfer comes on a worker's thread.
 */
#include "block.h"

#include <assert.h>
#include <stdlib.h>

/* The part that a device which does not answer may keep. */
typedef struct block_body {
    tiers_transfer transfer;
    uint8_t *memory;
    uint64_t bytes;
} block_body;

struct sparse_block {
    block_body *body; /* NULL: a device has it */
    tiers_pool *pool; /* of the move under way, or NULL */
};

static void free_body(void *context)
{
    block_body *body = context;
    if (body == NULL) return;
    free(body->memory);
    free(body);
}

sparse_block *sparse_block_make(uint64_t bytes)
{
    const uint64_t grain = TIERS_GRAIN_BYTES;
    sparse_block *block = calloc(1, sizeof *block);
    if (block == NULL) return NULL;
    block->body = calloc(1, sizeof *block->body);
    if (block->body != NULL) {
        block->body->bytes = (bytes + grain - 1) / grain * grain;
        block->body->memory = aligned_alloc(grain, block->body->bytes);
    }
    if (block->body != NULL && block->body->memory != NULL) return block;
    free_body(block->body);
    free(block);
    return NULL;
}

void sparse_block_free(sparse_block *block)
{
    if (block == NULL) return;
    if (block->pool != NULL) (void)!sparse_block_wait(block);
    free_body(block->body);
    free(block);
}

uint8_t *sparse_block_memory(const sparse_block *block)
{
    return block->body != NULL ? block->body->memory : NULL;
}

uint64_t sparse_block_bytes(const sparse_block *block)
{
    return block->body != NULL ? block->body->bytes : 0;
}

void sparse_block_start_at(sparse_block *block, uint64_t at, tiers_pool *pool, kvt_io_kind kind,
                           const tiers_location *location, uint64_t offset, uint64_t bytes)
{
    assert(block->body != NULL && block->pool == NULL);
    assert(at + bytes <= block->body->bytes);
    block->pool = pool;
    block->body->transfer = (tiers_transfer){.kind = kind,
                                             .location = location,
                                             .buffer = block->body->memory + at,
                                             .bytes = bytes,
                                             .offset = offset};
    tiers_transfer_start(pool, &block->body->transfer);
}

/* KVT_E_GONE may mean that the transfer has ended so, or that it never will; to abandon is right
 * for both. */
static kvt_status block_end(sparse_block *block, kvt_status status)
{
    tiers_pool *pool = block->pool;
    block->pool = NULL;
    if (status != KVT_E_GONE) return status;
    block_body *body = block->body;
    block->body = NULL;
    tiers_transfer_abandon(pool, &body->transfer, free_body, body);
    return status;
}

kvt_status sparse_block_wait(sparse_block *block)
{
    if (block->pool == NULL) return KVT_OK;
    return block_end(block,
                     tiers_transfer_wait_until(block->pool, &block->body->transfer, UINT64_MAX));
}

kvt_status sparse_block_try(sparse_block *block)
{
    if (block->pool == NULL) return KVT_OK;
    kvt_status status = tiers_transfer_wait_until(block->pool, &block->body->transfer, 0);
    if (status != KVT_E_TIMEOUT) return block_end(block, status);
    if (!tiers_transfer_is_stuck(block->pool, &block->body->transfer)) return KVT_BUSY;
    return block_end(block, KVT_E_GONE);
}
