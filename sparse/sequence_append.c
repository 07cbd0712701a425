/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sequence_append.c - appended tokens: the newest stay as they came, older ones gather by key in
 * pages in memory, and pages that are full are written behind the steps.
 *
 *     local rows --the oldest--> open page --> full --> being written --> at rest: as a page of
 *     (local_keep)               (joining.h)     ^            |           the zone, with clusters
 *                                                +-- failed --+           in the index
 *
 * Every token that is not at rest is resident and attended to as it is, so nothing is lost or
 * wrong while a write is under way, has failed, or never ends. A unit writes one page at a time,
 * which becomes the next one at rest. Writes have the pool's lowest rank, behind all reads.
 *
 * Thread rule: the sequence's thread. A buffer of a write may outlive the sequence, on a device.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/number/number.h"
#include "index_added.h"
#include "sequence.h"
#include "sparse_kernels.h"

enum { APPEND_FAILURES_MAX = 3 /* writes of a page, before it stays in memory */ };

/* ---- life ---- */

static uint32_t page_clusters(const kvt_sparse *s)
{
    const uint32_t own = s->options.cluster_tokens;
    const uint32_t tokens = own != 0 ? own : SPARSE_CLUSTER_TOKENS;
    return (s->tail_page.page_tokens + tokens - 1) / tokens;
}

kvt_status sparse_append_open(kvt_sparse *s)
{
    const uint32_t dim = s->options.layout.head_dim, clusters = page_clusters(s);
    if (s->tail_paging.pages == 0 || s->options.given) return KVT_OK;
    s->tail_means = malloc(2 * (size_t)clusters * dim * sizeof *s->tail_means);
    if (s->tail_means == NULL) return KVT_E_MEMORY;
    return cluster_work_open(dim, s->tail_page.page_tokens, clusters, &s->tail_work);
}

void sparse_append_close(kvt_sparse *s)
{
    free(s->tail_means);
    cluster_work_close(&s->tail_work);
}

kvt_status sparse_append_open_unit(kvt_sparse *s, sparse_unit *unit)
{
    const uint64_t units = (uint64_t)s->options.layout.layers * s->options.layout.kv_heads;
    const uint32_t pages = s->tail_paging.pages;
    sparse_tail *tail = &unit->tail;
    sparse_joining_open(s->options.layout.head_dim, (uint8_t)s->options.layout.dtype,
                        s->tail_page.page_tokens, &tail->joining);
    tail->joining.in_order = s->options.given;
    tail->joining.value_bytes = s->value_bytes;
    if (pages == 0) return KVT_OK;
    if (s->options.given) {
        tail->added.pages_max = pages;
        tail->chunks = malloc(pages * sizeof *tail->chunks);
        if (tail->chunks == NULL) return KVT_E_MEMORY;
        for (uint32_t i = 0; i < pages; i++)
            tail->chunks[i] = SPARSE_NOT_HELD;
    } else {
        kvt_status status =
            sparse_added_open(s->options.layout.head_dim, pages, page_clusters(s), &tail->added);
        if (status != KVT_OK) return status;
        unit->index.added = &tail->added;
    }
    tail->codes = calloc(pages, sizeof *tail->codes);
    tail->positions = malloc((size_t)s->tail_paging.tokens * sizeof *tail->positions);
    if (tail->codes == NULL || tail->positions == NULL) return KVT_E_MEMORY;
    return sparse_table_open(s->scratch, KVT_TIER_SSD, &s->tail_paging, s->variants,
                             sparse_unit_id(s, units + (uint64_t)(unit - s->units)), &tail->table);
}

void sparse_append_close_unit(sparse_unit *unit)
{
    sparse_tail *tail = &unit->tail;
    sparse_block_free(tail->block);
    for (uint32_t i = 0; tail->codes != NULL && i < tail->added.pages_max; i++)
        sparse_code_close(&tail->codes[i]);
    free(tail->codes);
    free(tail->positions);
    free(tail->chunks);
    free(tail->writing);
    while (tail->stuck != NULL) {
        sparse_joined *page = tail->stuck;
        tail->stuck = page->next;
        free(page);
    }
    sparse_table_close(&tail->table);
    sparse_joining_close(&tail->joining);
    sparse_added_close(&tail->added);
    *tail = (sparse_tail){.writing = NULL};
}

/* ---- pages of a unit, appended or not ---- */

bool sparse_unit_has_code(const kvt_sparse *s, const sparse_unit *unit, uint32_t page)
{
    uint32_t own;
    if (!sparse_unit_appended(unit, page, &own))
        return sparse_code_has(&unit->paging, &unit->code, page);
    const sparse_code *code = &unit->tail.codes[own];
    return sparse_code_has(&s->tail_page, code, 0);
}

kvt_status sparse_unit_decode(const kvt_sparse *s, const sparse_unit *unit, uint32_t page,
                              pages_variant variant, const uint8_t *source, uint8_t *keys,
                              uint8_t *values)
{
    uint32_t own;
    const bool appended = sparse_unit_appended(unit, page, &own);
    const sparse_paging *paging = appended ? &s->tail_page : &unit->paging;
    return sparse_code_page(paging, appended ? &unit->tail.codes[own] : &unit->code,
                            appended ? 0 : page, variant, source, keys, values, s->scratch_rows);
}

void sparse_unit_positions(const kvt_sparse *s, const sparse_unit *unit, uint32_t page,
                           uint32_t *positions)
{
    const uint32_t tokens = unit->paging.page_tokens;
    uint32_t own;
    assert(!s->options.given);
    if (sparse_unit_appended(unit, page, &own)) {
        memcpy(positions, unit->tail.positions + (size_t)own * tokens, tokens * sizeof *positions);
        return;
    }
    /* A page lies in one segment. */
    const uint16_t *from = unit->index.position + (size_t)page * tokens;
    const uint32_t base =
        s->options.sink_tokens + sparse_index_token(&unit->index, page * tokens) - from[0];
    for (uint32_t i = 0; i < tokens; i++)
        positions[i] = base + from[i];
}

static uint32_t list_each(const sparse_joined *page, sparse_append_each *each, void *context)
{
    uint32_t count = 0;
    for (; page != NULL; page = page->next, count++)
        if (each != NULL) each(context, page);
    return count;
}

uint32_t sparse_append_in_memory(const sparse_unit *unit, sparse_append_each *each, void *context)
{
    const sparse_tail *tail = &unit->tail;
    const sparse_joining *joining = &tail->joining;
    for (uint32_t i = 0; each != NULL && i < joining->open_count; i++)
        each(context, joining->open[i]);
    return joining->open_count + list_each(tail->writing, each, context) +
           list_each(joining->full, each, context) + list_each(tail->stuck, each, context);
}

/* ---- tokens ---- */

kvt_status sparse_append_reserve(const kvt_sparse *s, sparse_unit *unit, uint32_t tokens)
{
    const uint64_t all = (uint64_t)unit->local.tokens + tokens;
    if (all <= s->local_keep) return KVT_OK;
    return sparse_joining_reserve(&unit->tail.joining, (uint32_t)(all - s->local_keep));
}

void sparse_append_token(const kvt_sparse *s, sparse_unit *unit, const uint8_t *key,
                         const uint8_t *value, uint32_t position)
{
    sparse_resident *local = &unit->local;
    const uint64_t row = s->row_bytes;
    if (local->tokens > 0 && local->tokens == s->local_keep) {
        sparse_joining_take(&unit->tail.joining, local->keys, local->values,
                            position - local->tokens);
        local->tokens--;
        local->begin++;
        local->keys += row;
        local->values += row; /* of one side, the keys again */
    }
    if (local->begin + local->tokens == s->local_room) {
        uint8_t *keys = local->keys - local->begin * row;
        uint8_t *values = local->values - local->begin * row;
        memmove(keys, local->keys, local->tokens * row);
        if (s->value_bytes > 0) memmove(values, local->values, local->tokens * row);
        local->keys = keys;
        local->values = values;
        local->begin = 0;
    }
    assert(local->begin + local->tokens < s->local_room);
    memcpy(local->keys + local->tokens * row, key, row);
    if (s->value_bytes > 0) memcpy(local->values + local->tokens * row, value, row);
    local->tokens++;
}

/* ---- written behind ---- */

/* A hint that is under way does not know the page. */
static void tell_hint(kvt_sparse *s, const sparse_unit *unit, uint32_t page)
{
    const uint32_t heads = s->options.layout.kv_heads;
    const uint32_t number = (uint32_t)(unit - s->units);
    const kvt_sparse_step *step = sparse_step_find(s, number / heads);
    if (step == NULL) return;
    const sparse_head_work *head = &step->heads[number % heads];
    assert(step->state == STEP_HINTED && head->items[page] == NULL);
    head->held[page] = head->coming[page] = head->variant[page] = PAGES_ABSENT;
}

/* The clusters of a page that is written join the index. */
static void settle_clusters(kvt_sparse *s, sparse_unit *unit)
{
    sparse_tail *tail = &unit->tail;
    const uint32_t clusters = page_clusters(s);
    uint32_t counts[SPARSE_CODE_TOKENS];
    float scatter[SPARSE_CODE_TOKENS];
    float *values = s->tail_means + (size_t)clusters * s->options.layout.head_dim;
    const uint32_t iterations =
        s->options.iterations != 0 ? s->options.iterations : SPARSE_ITERATIONS;
    const uint32_t found = sparse_joining_split(&tail->joining, tail->writing, clusters, iterations,
                                                number_mix(s->options.seed + tail->added.pages),
                                                unit->index.key_scatter, &s->tail_work,
                                                s->tail_means, values, counts, scatter);
    sparse_added_page(&unit->index, s->tail_means, values, counts, scatter, found);
}

/* A page that is written is at rest, and its memory is free. */
static void settle_written(kvt_sparse *s, sparse_unit *unit)
{
    sparse_tail *tail = &unit->tail;
    const uint32_t own = tail->added.pages, tokens = s->tail_page.page_tokens;
    memcpy(tail->positions + (size_t)own * tokens, tail->writing->positions,
           tokens * sizeof *tail->positions);
    if (s->options.given) {
        tail->chunks[(tail->writing->positions[0] - s->local_first) / tokens] = own;
        tail->added.pages++;
    } else {
        settle_clusters(s, unit);
    }
    tell_hint(s, unit, unit->window.pages++);
    assert(unit->window.pages == sparse_unit_pages(unit));
    sparse_joining_retire(&tail->joining, tail->writing);
    tail->writing = NULL;
}

/* A page whose write failed waits for another try, or stays in memory. */
static void settle_failed(kvt_sparse *s, sparse_unit *unit, kvt_status status)
{
    sparse_tail *tail = &unit->tail;
    sparse_joined *page = tail->writing;
    sparse_code_close(&tail->codes[tail->added.pages]);
    tail->writing = NULL;
    s->stats.append_failures++;
    if (status == KVT_E_GONE) tail->closed = true;
    if (++page->failures < APPEND_FAILURES_MAX) {
        sparse_joining_return(&tail->joining, page);
        return;
    }
    page->next = tail->stuck;
    tail->stuck = page;
    tail->stuck_count++;
}

/* Looks after the page that a unit is writing. */
static void poll_unit(kvt_sparse *s, sparse_unit *unit)
{
    sparse_tail *tail = &unit->tail;
    if (tail->writing == NULL) return;
    const kvt_status status = sparse_block_try(tail->block);
    if (status == KVT_BUSY) return;
    sparse_block_free(tail->block);
    tail->block = NULL;
    if (status == KVT_OK)
        settle_written(s, unit);
    else
        settle_failed(s, unit, status);
}

/* The slot of a full page. KVT_OK; KVT_RAW: there is no form of it that the sequence has. */
static kvt_status fill_slot(kvt_sparse *s, sparse_unit *unit, const sparse_joined *page,
                            uint8_t *slot)
{
    sparse_tail *tail = &unit->tail;
    const uint32_t own = tail->added.pages;
    const uint64_t side = (uint64_t)page->tokens * s->row_bytes;
    bool coded = tail->table.coded_bytes != 0;
    memset(slot, 0, tail->table.slot_bytes);
    if (coded) {
        kvt_status status = sparse_code_open(&s->tail_page, &tail->codes[own]);
        if (status == KVT_OK)
            status = sparse_code_segment(&s->tail_page, &tail->codes[own], 0, page->keys,
                                         page->values, slot, s->scratch_rows);
        if (status < 0) return status;
        coded = status == KVT_OK;
    }
    if (!coded && !tail->table.has_raw) return KVT_RAW;
    if (tail->table.has_raw) {
        memcpy(slot + tail->table.coded_bytes, page->keys, side);
        memcpy(slot + tail->table.coded_bytes + side, page->values,
               (uint64_t)page->tokens * s->value_bytes);
    }
    sparse_table_seal(&tail->table, own, slot, coded);
    return KVT_OK;
}

/* Begins to write a unit's first full page. Returns whether it did. */
static bool write_unit(kvt_sparse *s, sparse_unit *unit)
{
    sparse_tail *tail = &unit->tail;
    if (tail->writing != NULL || tail->closed || tail->joining.full == NULL) return false;
    if (tail->added.pages == tail->added.pages_max) return false;
    tail->block = sparse_block_make(tail->table.slot_bytes);
    if (tail->block == NULL) return false; /* the next call tries again */
    tail->writing = sparse_joining_next(&tail->joining);
    const kvt_status status = fill_slot(s, unit, tail->writing, sparse_block_memory(tail->block));
    if (status == KVT_OK) {
        sparse_block_start(
            tail->block, scratch_pool(s->scratch, KVT_TIER_SSD), KVT_IO_WRITE, tail->table.location,
            (uint64_t)tail->added.pages * tail->table.slot_bytes, tail->table.slot_bytes);
        return true;
    }
    sparse_block_free(tail->block);
    tail->block = NULL;
    if (status == KVT_RAW) tail->writing->failures = APPEND_FAILURES_MAX; /* it will never fit */
    settle_failed(s, unit, status);
    return false;
}

/* Goes on with the pages of a layer: those that are written are at rest, and some that are full
 * begin to be written: as many as tokens make full on average, so that a call is not long. */
static void advance_layer(kvt_sparse *s, uint32_t layer, uint32_t tokens)
{
    const uint32_t heads = s->options.layout.kv_heads;
    uint64_t left = (uint64_t)tokens * heads / s->tail_page.page_tokens + 1;
    for (uint32_t h = 0; h < heads; h++)
        poll_unit(s, sparse_unit_of(s, layer, h));
    for (uint32_t h = 0; h < heads && left > 0; h++)
        left -= write_unit(s, sparse_unit_of(s, layer, h));
}

static bool layer_is_busy(const kvt_sparse *s, uint32_t layer)
{
    for (uint32_t i = 0; i < SPARSE_STEPS_MAX; i++)
        if (s->steps[i].state > STEP_HINTED && s->steps[i].layer == layer) return true;
    return false;
}

kvt_status kvt_sparse_append(kvt_sparse *s, uint32_t layer, const void *k, const void *v,
                             uint32_t tokens)
{
    if (s == NULL || k == NULL || (v == NULL && s->value_bytes > 0) ||
        layer >= s->options.layout.layers)
        return KVT_E_ARGUMENT;
    if (s->value_bytes == 0) v = k;
    if (!s->ready || layer_is_busy(s, layer) || !scratch_is_ours(s->store)) return KVT_E_STATE;
    const uint32_t heads = s->options.layout.kv_heads;
    const uint32_t first = s->options.layout.tokens + s->appended[layer];
    if (tokens > s->options.tokens_max - first) return KVT_E_STATE;
    const uint64_t bytes = (uint64_t)tokens * heads * s->row_bytes;
    if (!sparse_rows_are_sound(k, bytes, s->options.layout.dtype) ||
        !sparse_rows_are_sound(v, bytes, s->options.layout.dtype))
        return KVT_E_UNSUPPORTED;
    for (uint32_t h = 0; h < heads; h++) {
        kvt_status status = sparse_append_reserve(s, sparse_unit_of(s, layer, h), tokens);
        if (status != KVT_OK) return status;
    }
    const uint8_t *key = k, *value = v;
    for (uint32_t i = 0; i < tokens; i++) {
        for (uint32_t h = 0; h < heads; h++, key += s->row_bytes, value += s->row_bytes)
            sparse_append_token(s, sparse_unit_of(s, layer, h), key, value, first + i);
    }
    s->appended[layer] += tokens;
    advance_layer(s, layer, tokens);
    return KVT_OK;
}
