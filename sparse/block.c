/* SPDX-License-Identifier: Apache-2.0 */
/*
 * block.c - one transfer and its memory, which go together when a device keeps them.
 *
 * Thread rule: as block.h; the last word of an abandoned transfer comes on a worker's thread.
 */
#include "block.h"

#include <assert.h>
#include <stdlib.h>

/* What a device may keep. */
typedef struct block_body {
    tiers_transfer transfer;
    uint8_t *memory;
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
    if (block->body != NULL)
        block->body->memory = aligned_alloc(grain, (bytes + grain - 1) / grain * grain);
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

void sparse_block_start(sparse_block *block, tiers_pool *pool, kvt_io_kind kind,
                        const tiers_location *location, uint64_t offset, uint64_t bytes)
{
    assert(block->body != NULL && block->pool == NULL);
    block->pool = pool;
    block->body->transfer = (tiers_transfer){.kind = kind,
                                             .location = location,
                                             .buffer = block->body->memory,
                                             .bytes = bytes,
                                             .offset = offset};
    tiers_transfer_start(pool, &block->body->transfer);
}

/* KVT_E_GONE may mean that the transfer has ended so, or that it never will; to abandon is right
 * for both. */
kvt_status sparse_block_wait(sparse_block *block)
{
    tiers_pool *pool = block->pool;
    if (pool == NULL) return KVT_OK;
    block->pool = NULL;
    kvt_status status = tiers_transfer_wait_until(pool, &block->body->transfer, UINT64_MAX);
    if (status != KVT_E_GONE) return status;
    block_body *body = block->body;
    block->body = NULL;
    tiers_transfer_abandon(pool, &body->transfer, free_body, body);
    return status;
}
