/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernel_site.h - records that are decoded by the kernels of a GPU on this processor
 * (kernel_lanes.h): planned, launched, and the verdicts read, as a load does it. One thread.
 */
#ifndef SUPPORT_KERNEL_SITE_H
#define SUPPORT_KERNEL_SITE_H

#include "codecs/kernels/kernel_table.h"
#include "codecs/record_jobs.h"
#include "codecs/transform_image.h"
#include "codecs_support.h"
#include "engine_views.h"

#include "kernel_lanes.h"

enum { SITE_JOBS = 512, SITE_RANGES = 64, SITE_FILL = 0x5a };

/* A record on its way: its head opened, ranges of it in memory that ends with them. */
typedef struct kernel_site {
    kvt_record_head *head;
    kvt_record_range ranges[SITE_RANGES];
    uint32_t range_count; /* 0: the whole record */
    guarded payload;
    uint32_t *blocks; /* the copy of the view's */
    guarded basis;    /* the image of the record's; data NULL: it needs none */
    guarded room;
    kernel_plan plan;
    uint32_t verdicts[SITE_JOBS];
} kernel_site;

static inline void site_open(kernel_site *site, const encoded *e, uint32_t layer, uint32_t layers,
                             bool ranged)
{
    uint64_t bytes;
    memset(site, 0, sizeof *site);
    assert_status(
        kvt_record_head_open(e->record.data, e->record.bytes, true, &e->spec, site, 0, &bytes),
        KVT_E_SPACE);
    site->head = test_aligned(64, (bytes + 63) / 64 * 64);
    assert_status(kvt_record_head_open(e->record.data, e->record.bytes, true, &e->spec, site->head,
                                       bytes, &bytes),
                  KVT_OK);
    bytes = e->record.bytes;
    if (ranged) {
        assert_status(kvt_record_head_ranges(site->head, layer, layers, site->ranges, SITE_RANGES,
                                             &site->range_count),
                      KVT_OK);
        const kvt_record_range *last = &site->ranges[site->range_count - 1];
        bytes = last->at + last->bytes;
    }
    site->payload = guarded_make(bytes);
    if (!ranged) memcpy(site->payload.data, e->record.data, bytes);
    for (uint32_t i = 0; i < site->range_count; i++)
        memcpy(site->payload.data + site->ranges[i].at, e->record.data + site->ranges[i].offset,
               site->ranges[i].bytes);
    for (uint32_t k = 0; k < KERNEL_COUNT; k++) {
        kernel_batch *batch = &site->plan.batches[k];
        batch->capacity = SITE_JOBS;
        batch->jobs =
            test_aligned(8, SITE_JOBS * (uint64_t)kernel_facts_of((kernel_id)k)->job_bytes);
    }
    site->plan.verdicts = site->verdicts;
    site->plan.verdict_capacity = SITE_JOBS;
}

/* The image of the basis, in two pieces, and the room for the jobs of layers. */
static inline void site_make_room(kernel_site *site, uint32_t layer, uint32_t layers)
{
    const transform_basis *basis = kvt_record_head_basis(site->head);
    if (basis == NULL) return;
    const transform_image image = transform_image_of(&basis->shape);
    const uint64_t first = image.means + (image.bytes - image.means) / 16 * 8;
    site->basis = guarded_make(image.bytes);
    transform_image_write(basis, 0, first, site->basis.data);
    transform_image_write(basis, first, image.bytes - first, site->basis.data + first);
    guarded_check(&site->basis, image.bytes);
    site->room = guarded_make(kvt_record_head_room(site->head, layer, layers));
}

static inline kvt_status site_plan(kernel_site *site, const kvt_layout *layout,
                                   const engine_pool *pool, uint32_t layer, uint32_t layers)
{
    if (layer + layers <= layout->layers) site_make_room(site, layer, layers);
    const kernel_place place = {.payload = (uint64_t)(uintptr_t)site->payload.data,
                                .ranges = site->ranges,
                                .range_count = site->range_count,
                                .blocks = (uint64_t)(uintptr_t)site->blocks,
                                .basis = (uint64_t)(uintptr_t)site->basis.data,
                                .room = (uint64_t)(uintptr_t)site->room.data};
    return kvt_record_head_jobs(site->head, layout, &pool->view, layer, layers, &place,
                                &site->plan);
}

/* The table of blocks as the kernels see it: a copy, of which the planner knows the address. */
static inline void site_take_blocks(kernel_site *site, const engine_pool *pool)
{
    site->blocks = NULL;
    if (pool->view.blocks == NULL) return;
    const uint64_t bytes = pool->view.block_count * sizeof(uint32_t);
    site->blocks = test_aligned(64, bytes);
    memcpy(site->blocks, pool->view.blocks, bytes);
}

/* Leaves the checks out, which cost a thousand times what they do on a GPU. */
static inline void site_skip_checks(kernel_site *site)
{
    kernel_batch *checks = &site->plan.batches[KERNEL_CHECK];
    for (uint32_t i = 0; i < checks->count; i++)
        site->verdicts[((const kernel_check_job *)checks->jobs)[i].head.verdict] = KERNEL_SOUND;
    checks->count = 0;
}

/* Launches all of a plan. False: a kernel left its memory, or hung. */
static inline bool site_launch(kernel_site *site, const engine_pool *pool)
{
    lanes_memory memory[ENGINE_POOLS_MAX + 4] = {
        {site->payload.data, site->payload.bytes, false},
        {site->blocks, site->blocks != NULL ? pool->view.block_count * sizeof(uint32_t) : 0, false},
        {site->basis.data, site->basis.bytes, false},
        {site->room.data, site->room.bytes, true},
    };
    for (uint32_t i = 0; i < pool->pools; i++)
        memory[4 + i] = (lanes_memory){pool->memory[i], pool->pool_bytes, true};
    for (uint32_t k = 0; k < KERNEL_COUNT; k++) {
        const kernel_batch *batch = &site->plan.batches[k];
        if (batch->count != 0 &&
            !lanes_launch((kernel_id)k, batch->jobs, batch->count, batch->blocks, site->verdicts,
                          site->plan.verdict_count, memory, 4 + pool->pools))
            return false;
    }
    return true;
}

/* The pools' bytes are those that the CPU's decoder leaves, gaps and all. */
static inline void site_check_same(const engine_pool *pool, const engine_pool *expected,
                                   const char *name)
{
    for (uint32_t i = 0; i < pool->pools; i++)
        for (uint64_t k = 0; k < pool->pool_bytes; k++)
            if (((uint8_t *)pool->memory[i])[k] != ((uint8_t *)expected->memory[i])[k])
                fail_msg("%s: pool %u, byte %llu", name, i, (unsigned long long)k);
}

/* What kernels decode into an engine's pages is what the CPU does; verified: checks run, too. */
static inline void site_check(encoded *e, const engine_view *engine, uint32_t layer,
                              uint32_t layers, bool ranged, bool verified)
{
    const kvt_layout *layout = &e->spec.layout;
    engine_pool pool, expected;
    kernel_site site;
    assert_true(engine_pool_open(&pool, engine, layout, 1, SITE_FILL));
    assert_true(engine_pool_open(&expected, engine, layout, 1, SITE_FILL));
    assert_status(kvt_record_decode_view(e->record.data, e->record.bytes, &e->spec, NULL, layout,
                                         &expected.view, layer, layers, e->scratch.data,
                                         e->scratch.bytes),
                  KVT_OK);
    site_open(&site, e, layer, layers, ranged);
    site_take_blocks(&site, &pool);
    assert_status(site_plan(&site, layout, &pool, layer, layers), KVT_OK);
    if (!verified) site_skip_checks(&site);
    assert_true(site_launch(&site, &pool));
    assert_status(kernel_plan_verdict(&site.plan, 0, site.plan.verdict_count), KVT_OK);
    site_check_same(&pool, &expected, engine->name);
    engine_pool_close(&pool);
    engine_pool_close(&expected);
}

#endif
