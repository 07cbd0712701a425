/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_ring.c - any bytes as the words of a ring's producers: a block and its contexts. What is
 * accepted lies inside of its table, matrix and region, comes after earlier blocks alone, and no
 * two contexts write one byte, which a map of the region shows.
 *
 * The input is a block's body, and then contexts.
 */
#include "store/ring/ring_contexts.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { DEPTH = 4, CONTEXTS = 32, KEPT = 2, REGION = 4096 };

static const kvt_layout layouts[] = {
    {.layers = 3, .kv_heads = 1, .head_dim = 4, .dtype = KVT_DTYPE_FP16, .tokens = 16},
    {.layers = 1, .kv_heads = 3, .head_dim = 5, .dtype = KVT_DTYPE_FP8, .sides = 1, .tokens = 7}};

/* Marks the bytes that a context writes. */
static void mark(const ring_want *want, uint8_t *map)
{
    uint64_t at = want->target;
    for (uint64_t done = 0; done < want->bytes; done += want->row, at += want->stride)
        for (uint64_t i = 0; i < want->row; i++) {
            if (at + i >= REGION || map[at + i]++ != 0) abort();
        }
}

static void read_contexts(const kvt_ring_block *block, const uint8_t *data, size_t size)
{
    static uint8_t maps[2][REGION];
    ring_want wants[CONTEXTS] = {{0}};
    signed char statuses[CONTEXTS];
    ring_spot spots[CONTEXTS];
    uint32_t open[CONTEXTS], count = 0;
    for (; count < block->count && (count + 1) * sizeof(kvt_ring_context) <= size; count++) {
        kvt_ring_context context;
        memcpy(&context, data + count * sizeof context, sizeof context);
        kvt_status status = ring_context_read(&context, block, &wants[count]);
        const kvt_layout *layout = &layouts[context.object % 2];
        if (status == KVT_OK) {
            if (wants[count].layer >= RING_LAYERS_MAX) abort();
            wants[count].region %= 2;
            status = ring_want_check(&wants[count], layout, REGION);
        }
        if (status != KVT_OK && status != KVT_E_ARGUMENT) abort();
        statuses[count] = (signed char)status;
        if (status != KVT_OK) continue;
        const ring_want *want = &wants[count];
        if (want->offset + want->bytes > kvt_layout_matrix_bytes(layout)) abort();
        if (want->bytes % want->row != 0 || ring_want_span(want) > REGION - want->target) abort();
    }
    ring_check_overlaps(wants, statuses, count, spots, open);
    memset(maps, 0, sizeof maps);
    for (uint32_t i = 0; i < count; i++)
        if (statuses[i] == KVT_OK) mark(&wants[i], maps[wants[i].region]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    base_ring_body body;
    ring_head head;
    kvt_ring_block block;
    if (size < sizeof body || !ring_head_of(DEPTH, CONTEXTS, KEPT, &head)) return 0;
    memcpy(&body, data, sizeof body);
    const uint64_t position = data[0];
    const kvt_status status = ring_block_read(&body, &head, position, &block);
    if (status != KVT_OK && status != KVT_E_ARGUMENT) abort();
    if (status != KVT_OK) { /* its contexts are read all the same, as those of a sound one */
        block.first = 0;
        block.count = CONTEXTS;
    }
    if (block.first + (uint64_t)block.count > CONTEXTS) abort();
    if (status == KVT_OK && (block.table >= DEPTH + KEPT || block.after > position)) abort();
    block.layer %= 4;
    block.target %= 64;
    read_contexts(&block, data + sizeof body, size - sizeof body);
    return 0;
}
