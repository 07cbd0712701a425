/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine_views.h - the layouts of engines as views, for tests: pools of whole blocks in
 * which an entry's blocks lie apart and in no order. Single thread.
 */
#ifndef TESTS_ENGINE_VIEWS_H
#define TESTS_ENGINE_VIEWS_H

#include <kvterrace/view.h>

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

typedef struct engine_view {
    const char *name;
    const char *axes;    /* of kvt_view_make */
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

enum {
    ENGINE_VIEWS = sizeof engine_views / sizeof engine_views[0],
    ENGINE_POOLS_MAX = 256,
    ENGINE_PAGE = 2 << 20
};

/* Pools for some entries of one layout. */
typedef struct engine_pool {
    kvt_view view; /* of one entry, see engine_pool_view */
    void *room;
    uint32_t pools;       /* in the room */
    uint64_t pool_bytes;  /* of each */
    uint64_t entry_bytes; /* of an entry in each, where entries have places of their own */
    uint64_t used;        /* blocks of an entry */
    void *memory[ENGINE_POOLS_MAX];
    void *bases[ENGINE_POOLS_MAX];
    uint32_t *blocks; /* [entries][used] */
} engine_pool;

/* Makes `view` that of one entry. */
static inline void engine_pool_view(engine_pool *pool, uint32_t entry)
{
    kvt_view *view = &pool->view;
    if (pool->blocks != NULL) view->blocks = pool->blocks + entry * pool->used;
    for (uint32_t i = 0; i < pool->pools; i++) {
        pool->bases[i] = (uint8_t *)pool->memory[i] + entry * pool->entry_bytes;
    }
    if (view->bases_kind >= KVT_BASES_LAYERS) {
        view->bases = pool->bases;
        return;
    }
    view->base[0] = pool->bases[0];
    view->base[1] = view->bases_kind == KVT_BASES_SIDES ? pool->bases[1] : NULL;
}

/* Gives up the memory. */
static inline void engine_pool_close(engine_pool *pool)
{
    free(pool->room);
    free(pool->blocks);
}

/* Block numbers: those of an entry are every other block of its part of the pool, from both ends in
 * turn. */
static inline bool engine_pool_blocks(engine_pool *pool, uint32_t entries)
{
    const uint64_t total = 2 * pool->used + 1;
    pool->blocks = malloc(entries * pool->used * sizeof *pool->blocks);
    if (pool->blocks == NULL) return false;
    for (uint32_t entry = 0; entry < entries; entry++) {
        for (uint64_t i = 0; i < pool->used; i++) {
            const uint64_t block = i % 2 == 0 ? i : total - 1 - i;
            pool->blocks[entry * pool->used + i] = (uint32_t)(entry * total + block);
        }
    }
    return true;
}

/* Makes the pools, filled with a byte, and the view of entry 0. False when memory or pools are too
 * few. */
static inline bool engine_pool_open(engine_pool *pool, const engine_view *engine,
                                    const kvt_layout *layout, uint32_t entries, int fill)
{
    const uint32_t block = engine->block;
    const uint32_t sides = kvt_layout_sides(layout);
    const uint32_t counts[] = {1, sides, layout->layers, sides * layout->layers};
    memset(pool, 0, sizeof *pool);
    kvt_view *view = &pool->view;
    uint64_t blocks = layout->tokens;
    if (block != 0) {
        pool->used = (engine->first_slot + layout->tokens + block - 1) / block;
        blocks = entries * (2 * pool->used + 1);
    }
    if (kvt_view_make(layout, engine->axes, block, blocks, view) != KVT_OK) return false;
    pool->pool_bytes = view->base_bytes[0];
    if (block == 0) {
        pool->entry_bytes = pool->pool_bytes;
        pool->pool_bytes *= entries;
    }
    if (counts[view->bases_kind] > ENGINE_POOLS_MAX) return false;
    const uint64_t stride = (pool->pool_bytes + 63) / 64 * 64;
    const uint64_t bytes = stride * counts[view->bases_kind];
    const uint64_t page = bytes < ENGINE_PAGE ? 64 : ENGINE_PAGE;
    const uint64_t whole = (bytes + page - 1) / page * page;
    pool->room = aligned_alloc(page, whole);
    if (pool->room == NULL || (block != 0 && !engine_pool_blocks(pool, entries))) {
        engine_pool_close(pool);
        return false;
    }
    /* As engines' pinned pools have it; a refusal costs speed alone. */
    if (page == ENGINE_PAGE) (void)!madvise(pool->room, whole, MADV_HUGEPAGE);
    memset(pool->room, fill, whole);
    for (; pool->pools < counts[view->bases_kind]; pool->pools++) {
        pool->memory[pool->pools] = (uint8_t *)pool->room + pool->pools * stride;
    }
    view->block_count = (uint32_t)pool->used;
    view->first_slot = engine->first_slot;
    engine_pool_view(pool, 0);
    return true;
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
