/* SPDX-License-Identifier: Apache-2.0 */
/*
 * views_support.h - the layouts of engines as views, for tests and benches: pools of whole blocks
 * in which an entry's blocks lie apart and in no order. Single thread.
 */
#ifndef SUPPORT_VIEWS_SUPPORT_H
#define SUPPORT_VIEWS_SUPPORT_H

#include <kvterrace/view.h>

#include <stdlib.h>
#include <string.h>

typedef struct engine_view {
    const char *name;
    const char *axes;    /* of kvt_view_axes */
    uint32_t block;      /* tokens; 0: not paged */
    uint32_t first_slot; /* of a paged view */
} engine_view;

static const engine_view engine_views[] = {
    {"packed layer-side", "lsth", 0, 0},  {"vllm head halves", "lbsht", 32, 0},
    {"vllm K|V fused", "lbths", 16, 0},   {"vllm first slot", "lbths", 16, 5},
    {"sglang page_first", "tlh", 16, 0},  {"sglang page_first_direct", "blth", 64, 0},
    {"sglang layer_first", "lth", 16, 0}, {"lmcache 2LTD", "slth", 0, 0},
    {"transformers", "ht", 0, 0},         {"interleaved sides", "tslh", 0, 0},
};

enum { ENGINE_VIEWS = sizeof engine_views / sizeof engine_views[0], ENGINE_POOLS_MAX = 256 };

/* A view with its memory. */
typedef struct engine_pool {
    kvt_view view;
    uint32_t pools; /* allocations */
    uint64_t pool_bytes;
    void *memory[ENGINE_POOLS_MAX];
    uint32_t *blocks;
} engine_pool;

/* Makes an entry's view and its pools, filled with a byte. False when memory or pools are too few.
 */
static inline bool engine_pool_open(engine_pool *pool, const engine_view *engine,
                                    const kvt_layout *layout, int fill)
{
    const uint32_t block = engine->block;
    const uint64_t used =
        block != 0 ? (engine->first_slot + layout->tokens + block - 1) / block : layout->tokens;
    const uint64_t total = block != 0 ? 2 * used + 1 : used;
    memset(pool, 0, sizeof *pool);
    if (kvt_view_axes(layout, engine->axes, block, total, &pool->view) != KVT_OK) return false;
    kvt_view *view = &pool->view;
    const uint32_t counts[] = {1, 2, layout->layers, 2u * layout->layers};
    pool->pool_bytes = view->base_bytes[0];
    if (counts[view->bases_kind] > ENGINE_POOLS_MAX) return false;
    for (uint32_t i = 0; i < counts[view->bases_kind]; i++) {
        pool->memory[i] = malloc(pool->pool_bytes);
        if (pool->memory[i] == NULL) return false;
        memset(pool->memory[i], fill, pool->pool_bytes);
        pool->pools++;
    }
    if (view->bases_kind >= KVT_BASES_LAYERS) {
        view->bases = pool->memory;
    } else {
        view->base[0] = pool->memory[0];
        view->base[1] = pool->memory[1];
    }
    if (block == 0) return true;
    pool->blocks = malloc(used * sizeof *pool->blocks);
    if (pool->blocks == NULL) return false;
    for (uint64_t i = 0; i < used; i++) {
        /* Every other block of the pool, from both ends in turn. */
        pool->blocks[i] = (uint32_t)(i % 2 == 0 ? i : total - 1 - i);
    }
    view->blocks = pool->blocks;
    view->block_count = (uint32_t)used;
    view->first_slot = engine->first_slot;
    return true;
}

static inline void engine_pool_close(engine_pool *pool)
{
    for (uint32_t i = 0; i < pool->pools; i++) {
        free(pool->memory[i]);
    }
    free(pool->blocks);
}

/* The address of an element's head by the definition in view.h, apart from the library. */
static inline uint8_t *engine_head_at(const kvt_view *view, uint32_t sides, uint32_t layer,
                                      uint32_t side, uint32_t token, uint32_t head)
{
    const uint64_t p = (uint64_t)view->first_slot + token;
    const uint64_t per = view->tokens_per_block != 0 ? view->tokens_per_block : UINT64_MAX;
    const uint64_t index = p / per;
    const uint64_t block = view->blocks != NULL ? view->blocks[index] : index;
    uint8_t *at = view->base[0];
    if (view->bases_kind == KVT_BASES_SIDES) at = view->base[side];
    if (view->bases_kind == KVT_BASES_LAYERS) at = view->bases[layer];
    if (view->bases_kind == KVT_BASES_LAYERS_SIDES) at = view->bases[layer * sides + side];
    if (view->bases_kind < KVT_BASES_LAYERS && layer > 0) at += layer * view->layer_stride;
    if (view->bases_kind % 2 == 0 && side > 0) at += side * view->side_stride;
    if (block > 0) at += (int64_t)block * view->block_stride;
    if (p % per > 0) at += (int64_t)(p % per) * view->token_stride;
    if (head > 0) at += head * view->head_stride;
    return at;
}

#endif
