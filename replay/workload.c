/* SPDX-License-Identifier: Apache-2.0 */
/*
 * workload.c - building a workload: growing arrays, dense block ids, arrivals put in order; how
 * soon its blocks come back.
 * One thread per builder.
 */
#include "workload.h"

#include "base/order.h"
#include "estimator/predict/predict.h"
#include "random.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

kvt_status workload_grow(void **array, uint64_t *room, uint64_t needed, size_t item_bytes)
{
    if (needed <= *room) return KVT_OK;
    uint64_t wanted = *room < 64 ? 64 : *room;
    while (wanted < needed)
        wanted *= 2;
    if (wanted > SIZE_MAX / item_bytes) return KVT_E_MEMORY;
    void *grown = realloc(*array, (size_t)wanted * item_bytes);
    if (grown == NULL) return KVT_E_MEMORY;
    *array = grown;
    *room = wanted;
    return KVT_OK;
}

void workload_build_start(workload_builder *builder, replay_workload *workload,
                          uint32_t block_tokens)
{
    memset(builder, 0, sizeof *builder);
    memset(workload, 0, sizeof *workload);
    builder->workload = workload;
    workload->block_tokens = block_tokens;
}

void workload_build_free(workload_builder *builder)
{
    free(builder->map.ids);
    free(builder->map.dense);
    free(builder->last_request);
    memset(&builder->map, 0, sizeof builder->map);
    builder->last_request = NULL;
    builder->last_room = 0;
}

kvt_status workload_build_request(workload_builder *builder, uint64_t arrival_ns,
                                  uint32_t input_tokens, uint32_t output_tokens, uint32_t session)
{
    replay_workload *workload = builder->workload;
    void *requests = workload->requests;
    kvt_status status = workload_grow(&requests, &builder->request_room,
                                      workload->request_count + 1, sizeof(replay_request));
    workload->requests = requests;
    if (status != KVT_OK) return status;
    workload->requests[workload->request_count++] =
        (replay_request){.arrival_ns = arrival_ns,
                         .first_block = workload->block_refs,
                         .input_tokens = input_tokens,
                         .output_tokens = output_tokens,
                         .session = session};
    return KVT_OK;
}

/* The slot of an id, or the free one where it would go. */
static size_t id_map_slot(const workload_id_map *map, uint64_t id)
{
    size_t slot = (size_t)replay_mix(id) & (map->slots - 1);
    while (map->dense[slot] != UINT32_MAX && map->ids[slot] != id) {
        slot = (slot + 1) & (map->slots - 1);
    }
    return slot;
}

/* Doubles the slots and files all ids anew. */
static kvt_status id_map_grow(workload_id_map *map)
{
    workload_id_map grown = {.slots = map->slots == 0 ? 1024 : map->slots * 2, .used = map->used};
    grown.ids = malloc(grown.slots * sizeof *grown.ids);
    grown.dense = malloc(grown.slots * sizeof *grown.dense);
    if (grown.ids == NULL || grown.dense == NULL) {
        free(grown.ids);
        free(grown.dense);
        return KVT_E_MEMORY;
    }
    memset(grown.dense, 0xff, grown.slots * sizeof *grown.dense);
    for (size_t i = 0; i < map->slots; i++) {
        if (map->dense[i] == UINT32_MAX) continue;
        size_t slot = id_map_slot(&grown, map->ids[i]);
        grown.ids[slot] = map->ids[i];
        grown.dense[slot] = map->dense[i];
    }
    free(map->ids);
    free(map->dense);
    *map = grown;
    return KVT_OK;
}

kvt_status workload_id_map_slot(workload_id_map *map, uint64_t id, uint32_t **dense_out)
{
    if (map->slots == 0 || map->used * 2 >= map->slots) {
        kvt_status status = id_map_grow(map);
        if (status != KVT_OK) return status;
    }
    size_t slot = id_map_slot(map, id);
    map->ids[slot] = id;
    *dense_out = &map->dense[slot];
    return KVT_OK;
}

kvt_status workload_build_dense_block(workload_builder *builder, uint32_t dense)
{
    replay_workload *workload = builder->workload;
    assert(workload->request_count > 0 && dense <= workload->distinct_blocks);
    if (workload->block_refs >= REPLAY_BLOCK_REFS_MAX) return KVT_E_SPACE;
    void *blocks = workload->blocks;
    kvt_status status =
        workload_grow(&blocks, &builder->block_room, workload->block_refs + 1, sizeof(uint32_t));
    workload->blocks = blocks;
    if (status != KVT_OK) return status;
    void *last = builder->last_request;
    status = workload_grow(&last, &builder->last_room, (uint64_t)dense + 1, sizeof(uint64_t));
    builder->last_request = last;
    if (status != KVT_OK) return status;

    if (dense == workload->distinct_blocks) {
        workload->distinct_blocks++;
        builder->last_request[dense] = 0;
    }
    if (builder->last_request[dense] == workload->request_count) return KVT_E_PARSE;
    builder->last_request[dense] = workload->request_count;
    workload->blocks[workload->block_refs++] = dense;
    workload->requests[workload->request_count - 1].block_count++;
    return KVT_OK;
}

kvt_status workload_build_new_block(workload_builder *builder)
{
    return workload_build_dense_block(builder, (uint32_t)builder->workload->distinct_blocks);
}

kvt_status workload_build_block(workload_builder *builder, uint64_t id)
{
    uint32_t *dense;
    kvt_status status = workload_id_map_slot(&builder->map, id, &dense);
    if (status != KVT_OK) return status;
    if (*dense == UINT32_MAX) {
        *dense = (uint32_t)builder->workload->distinct_blocks;
        builder->map.used++;
    }
    return workload_build_dense_block(builder, *dense);
}

/*
 * The step of a quantised clock, 0 when arrivals are not quantised. A trace counts as quantised
 * when requests share their times (at least 1.5 to one distinct time) and nine tenths of the gaps
 * between distinct times lie within 2 % of a multiple of the median gap.
 */
static kvt_status workload_find_grid(const replay_workload *workload, uint64_t *grid_out)
{
    const replay_request *requests = workload->requests;
    uint64_t count = workload->request_count, gap_count = 0;
    *grid_out = 0;
    if (count < 16) return KVT_OK;
    uint64_t *gaps = malloc((size_t)count * sizeof *gaps);
    if (gaps == NULL) return KVT_E_MEMORY;
    for (uint64_t i = 1; i < count; i++) {
        uint64_t gap = requests[i].arrival_ns - requests[i - 1].arrival_ns;
        if (gap > 0) gaps[gap_count++] = gap;
    }
    if (gap_count >= 4 && (gap_count + 1) * 3 <= count * 2) {
        qsort(gaps, (size_t)gap_count, sizeof *gaps, base_order_u64);
        uint64_t step = gaps[gap_count / 2], near = 0;
        for (uint64_t i = 0; i < gap_count; i++) {
            uint64_t rest = gaps[i] % step;
            if (rest > step / 2) rest = step - rest;
            near += rest <= step / 50;
        }
        if (near * 10 >= gap_count * 9) *grid_out = step;
    }
    free(gaps);
    return KVT_OK;
}

/* Requests of one step get sorted uniform offsets, so the trace's order stays. */
static kvt_status workload_spread_grid(replay_workload *workload, uint64_t seed)
{
    replay_request *requests = workload->requests;
    uint64_t count = workload->request_count, step = workload->grid_ns;
    uint64_t *offsets = malloc((size_t)count * sizeof *offsets);
    if (offsets == NULL) return KVT_E_MEMORY;
    replay_random random;
    replay_random_seed(&random, seed ^ UINT64_C(0x61727269766c)); /* a stream of its own */
    for (uint64_t begin = 0; begin < count;) {
        uint64_t base = requests[begin].arrival_ns, end = begin;
        while (end < count && requests[end].arrival_ns == base)
            end++;
        uint64_t width = step;
        if (end < count && requests[end].arrival_ns - base < width) {
            width = requests[end].arrival_ns - base;
        }
        for (uint64_t i = begin; i < end; i++)
            offsets[i] = replay_random_below(&random, width);
        qsort(offsets + begin, (size_t)(end - begin), sizeof *offsets, base_order_u64);
        for (uint64_t i = begin; i < end; i++)
            requests[i].arrival_ns = base + offsets[i];
        begin = end;
    }
    free(offsets);
    return KVT_OK;
}

/* By arrival; equal times keep their order, which first_block tells. A request without blocks
 * shares first_block with its successor: then the other fields decide, until all are equal. */
static int compare_requests(const void *left, const void *right)
{
    const replay_request *a = left, *b = right;
    if (a->arrival_ns != b->arrival_ns) return a->arrival_ns < b->arrival_ns ? -1 : 1;
    if (a->first_block != b->first_block) return a->first_block < b->first_block ? -1 : 1;
    if (a->block_count != b->block_count) return a->block_count < b->block_count ? -1 : 1;
    if (a->input_tokens != b->input_tokens) return a->input_tokens < b->input_tokens ? -1 : 1;
    if (a->session != b->session) return a->session < b->session ? -1 : 1;
    return (a->output_tokens > b->output_tokens) - (a->output_tokens < b->output_tokens);
}

/* Lays blocks out in request order again and numbers them by first appearance. */
static kvt_status workload_renumber(replay_workload *workload)
{
    uint64_t refs = 0, distinct = 0;
    for (uint64_t i = 0; i < workload->request_count; i++)
        refs += workload->requests[i].block_count;
    uint32_t *blocks = malloc((size_t)(refs > 0 ? refs : 1) * sizeof *blocks);
    uint32_t *renamed = malloc((size_t)(workload->distinct_blocks + 1) * sizeof *renamed);
    if (blocks == NULL || renamed == NULL) {
        free(blocks);
        free(renamed);
        return KVT_E_MEMORY;
    }
    memset(renamed, 0xff, (size_t)(workload->distinct_blocks + 1) * sizeof *renamed);
    uint64_t next = 0;
    for (uint64_t i = 0; i < workload->request_count; i++) {
        replay_request *request = &workload->requests[i];
        for (uint32_t j = 0; j < request->block_count; j++) {
            uint32_t id = workload->blocks[request->first_block + j];
            if (renamed[id] == UINT32_MAX) renamed[id] = (uint32_t)distinct++;
            blocks[next + j] = renamed[id];
        }
        request->first_block = next;
        next += request->block_count;
    }
    free(renamed);
    free(workload->blocks);
    workload->blocks = blocks;
    workload->block_refs = refs;
    workload->distinct_blocks = distinct;
    return KVT_OK;
}

kvt_status workload_build_finish(workload_builder *builder, uint64_t seed, uint64_t limit)
{
    replay_workload *workload = builder->workload;
    if (workload->request_count == 0) return KVT_OK;
    qsort(workload->requests, (size_t)workload->request_count, sizeof *workload->requests,
          compare_requests);
    if (limit > 0 && limit < workload->request_count) workload->request_count = limit;
    kvt_status status = workload_find_grid(workload, &workload->grid_ns);
    if (status == KVT_OK && workload->grid_ns > 0 && !builder->keep_steps) {
        status = workload_spread_grid(workload, seed);
    }
    if (status == KVT_OK) status = workload_renumber(workload);
    if (status != KVT_OK) return status;
    for (uint64_t i = 0; i < workload->request_count; i++) {
        const replay_request *request = &workload->requests[i];
        workload->input_tokens += request->input_tokens;
        if (request->block_count > workload->longest_prefix) {
            workload->longest_prefix = request->block_count;
        }
    }
    workload->repeated_refs = workload->block_refs - workload->distinct_blocks;
    return KVT_OK;
}

void replay_workload_free(replay_workload *workload)
{
    if (workload == NULL) return;
    free(workload->requests);
    free(workload->blocks);
    memset(workload, 0, sizeof *workload);
}

uint64_t replay_workload_fingerprint(const replay_workload *workload)
{
    uint64_t hash = replay_mix(workload->block_tokens);
    for (uint64_t i = 0; i < workload->request_count; i++) {
        const replay_request *request = &workload->requests[i];
        hash = replay_mix(hash ^ request->arrival_ns);
        hash = replay_mix(hash ^ request->input_tokens ^ ((uint64_t)request->output_tokens << 32));
        hash = replay_mix(hash ^ request->session ^ ((uint64_t)request->block_count << 32));
        for (uint32_t j = 0; j < request->block_count; j++) {
            hash = replay_mix(hash ^ workload->blocks[request->first_block + j]);
        }
    }
    return hash;
}

/* ---- how soon blocks come back, by class ---- */

/*
 * Half-lives are found by maximum likelihood (kvt_reuse), from the references in arrival order.
 *
 * A trace names no classes, but its blocks' prefixes tell some: the stem is what half of all
 * requests begin with; any other block belongs to a conversation's beginning when the request that
 * brought it in found nothing there but the stem, and to a continuation otherwise.
 */

#define REUSE_WATCHED 32768u

static const char *const reuse_names[REPLAY_REUSE_CLASSES] = {"stem", "beginning", "continuation"};

/* Counts the references to each block. */
static void reuse_count(const replay_workload *workload, uint32_t *counts)
{
    for (uint64_t i = 0; i < workload->block_refs; i++)
        counts[workload->blocks[i]]++;
}

/* Hands every use to the fit, in order of arrival, with the class of its block. */
static void reuse_walk(const replay_workload *workload, const uint32_t *counts, uint8_t *classes,
                       kvt_reuse *reuse)
{
    for (uint64_t r = 0; r < workload->request_count; r++) {
        const replay_request *request = &workload->requests[r];
        const uint32_t *prefix = &workload->blocks[request->first_block];
        uint8_t class_id = 1; /* of what this request brings in */
        for (uint32_t i = 0; i < request->block_count; i++) {
            uint8_t *known = &classes[prefix[i]];
            bool stem = (uint64_t)counts[prefix[i]] * 2 >= workload->request_count;
            if (*known != 0 && !stem) class_id = 2;
            if (*known == 0) *known = (uint8_t)(1 + (stem ? 0 : class_id));
            kvt_reuse_use(reuse, request->arrival_ns,
                          (prefix[i] + UINT64_C(1)) * UINT64_C(0x9e3779b97f4a7c15), *known - 1u);
        }
    }
}

kvt_status replay_workload_reuse(const replay_workload *workload,
                                 replay_reuse_row rows[REPLAY_REUSE_CLASSES])
{
    kvt_reuse *reuse = NULL;
    uint32_t *counts = calloc(workload->distinct_blocks + 1, sizeof *counts);
    uint8_t *classes = calloc(workload->distinct_blocks + 1, sizeof *classes);
    kvt_status status = counts != NULL && classes != NULL ? KVT_OK : KVT_E_MEMORY;
    if (status == KVT_OK) status = kvt_reuse_open(REUSE_WATCHED, &reuse);
    if (status == KVT_OK) {
        reuse_count(workload, counts);
        reuse_walk(workload, counts, classes, reuse);
    }
    for (uint32_t i = 0; i < REPLAY_REUSE_CLASSES && status == KVT_OK; i++) {
        rows[i].name = reuse_names[i];
        status = kvt_reuse_read(reuse, 0, i, &rows[i].found);
    }
    kvt_reuse_close(reuse);
    free(classes);
    free(counts);
    return status;
}
