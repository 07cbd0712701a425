/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ring_contexts.c - checks of words that any process may have written. The contract is
 * ring_contexts.h's.
 */
#include "store/ring/ring_contexts.h"

#include <stdlib.h>
#include <string.h>

static uint64_t ring_page(uint64_t bytes)
{
    return (bytes + RING_HEAD_BYTES - 1) / RING_HEAD_BYTES * RING_HEAD_BYTES;
}

bool ring_head_of(uint32_t depth, uint32_t contexts, uint32_t kept, ring_head *head_out)
{
    if (!base_ring_is_size(depth) || depth > RING_DEPTH_MAX) return false;
    if (contexts == 0 || contexts > KVT_RING_CONTEXTS_MAX || kept > RING_TABLES_MAX) return false;
    ring_head head = {.magic = RING_MAGIC,
                      .version = 1,
                      .depth = depth,
                      .contexts = contexts,
                      .tables = depth + kept,
                      .submissions_at = RING_HEAD_BYTES};
    const uint64_t ring = ring_page(base_ring_bytes(depth));
    head.completions_at = head.submissions_at + ring;
    head.tables_at = head.completions_at + ring;
    head.statuses_at =
        head.tables_at + ring_page((uint64_t)head.tables * contexts * sizeof(kvt_ring_context));
    head.bytes = head.statuses_at + ring_page((uint64_t)depth * contexts);
    *head_out = head;
    return true;
}

kvt_status ring_block_read(const base_ring_body *body, const ring_head *head, uint64_t position,
                           kvt_ring_block *block_out)
{
    kvt_ring_block block;
    memcpy(&block, body, sizeof block);
    *block_out = block;
    if (block.table >= head->tables) return KVT_E_ARGUMENT;
    if (block.first > head->contexts || block.count > head->contexts - block.first)
        return KVT_E_ARGUMENT;
    return block.after > position ? KVT_E_ARGUMENT : KVT_OK;
}

kvt_status ring_context_read(const kvt_ring_context *context, const kvt_ring_block *block,
                             ring_want *want_out)
{
    kvt_ring_context copy;
    memcpy(&copy, context, sizeof copy);
    if ((copy.zero_a | copy.zero_b) != 0 || copy.side > 1 || copy.bytes == 0) return KVT_E_ARGUMENT;
    if ((uint32_t)copy.object >= RING_OBJECTS_MAX) return KVT_E_ARGUMENT;
    if (copy.layer >= RING_LAYERS_MAX || block->layer >= RING_LAYERS_MAX - copy.layer)
        return KVT_E_ARGUMENT;
    if (block->target > UINT64_MAX - copy.target) return KVT_E_ARGUMENT;
    *want_out = (ring_want){.object = copy.object,
                            .layer = copy.layer + block->layer,
                            .side = copy.side,
                            .region = copy.region,
                            .offset = copy.offset,
                            .bytes = copy.bytes,
                            .target = copy.target + block->target,
                            .stride = copy.stride};
    return KVT_OK;
}

kvt_status ring_want_check(ring_want *want, const kvt_layout *layout, uint64_t region_bytes)
{
    const uint64_t matrix = kvt_layout_matrix_bytes(layout);
    if (want->side >= kvt_layout_sides(layout)) return KVT_E_ARGUMENT;
    if (want->offset > matrix || want->bytes > matrix - want->offset) return KVT_E_ARGUMENT;
    want->row = want->bytes;
    if (want->stride != 0) {
        want->row = matrix / layout->tokens;
        if (want->offset % want->row != 0 || want->bytes % want->row != 0) return KVT_E_ARGUMENT;
        if (want->stride < want->row) return KVT_E_ARGUMENT;
    }
    const uint64_t rows = want->bytes / want->row;
    if (want->target > region_bytes || want->row > region_bytes - want->target)
        return KVT_E_ARGUMENT;
    const uint64_t left = region_bytes - want->target - want->row;
    if (rows > 1 && want->stride > left / (rows - 1)) return KVT_E_ARGUMENT;
    /* Neighbouring rows are one run, as is a single one. */
    if (want->stride == want->row || rows == 1) want->row = want->bytes;
    if (want->row == want->bytes) want->stride = want->bytes;
    return KVT_OK;
}

static int ring_compare_spots(const void *a, const void *b)
{
    const ring_spot *x = a, *y = b;
    if (x->region != y->region) return x->region < y->region ? -1 : 1;
    if (x->target != y->target) return x->target < y->target ? -1 : 1;
    return x->want < y->want ? -1 : x->want > y->want;
}

/* Whether two wants write a byte twice. `second` begins behind the begin of `first` and before its
 * end, so that a run of `first` begins before it, and the next one, if any, behind it. */
static bool ring_wants_meet(const ring_want *first, const ring_want *second)
{
    if (first->row == first->bytes) return true;
    if (second->row != second->bytes && second->stride != first->stride) return true;
    const uint64_t in = (second->target - first->target) % first->stride;
    return in < first->row || second->row > first->stride - in;
}

void ring_check_overlaps(const ring_want *wants, signed char *statuses, uint32_t count,
                         ring_spot *spots, uint32_t *open)
{
    uint32_t used = 0, opened = 0;
    bool sorted = true;
    for (uint32_t i = 0; i < count; i++) {
        if (statuses[i] != KVT_OK) continue;
        spots[used] = (ring_spot){wants[i].target, wants[i].region, i};
        if (used > 0) sorted = sorted && ring_compare_spots(&spots[used - 1], &spots[used]) < 0;
        used++;
    }
    if (!sorted) qsort(spots, used, sizeof *spots, ring_compare_spots);
    for (uint32_t i = 0; i < used; i++) {
        const uint32_t now = spots[i].want;
        const ring_want *want = &wants[now];
        uint32_t kept = 0;
        bool fails = false;
        if (i > 0 && spots[i - 1].region != want->region) opened = 0;
        for (uint32_t k = 0; k < opened; k++) {
            const ring_want *other = &wants[open[k]];
            if (other->target + ring_want_span(other) <= want->target) continue; /* it has ended */
            fails = fails || (open[k] < now && ring_wants_meet(other, want));
            open[kept++] = open[k];
        }
        for (uint32_t k = kept; k-- > 0 && !fails;) {
            if (open[k] < now || !ring_wants_meet(&wants[open[k]], want)) continue;
            statuses[open[k]] = KVT_E_ARGUMENT;
            open[k] = open[--kept];
        }
        opened = kept;
        if (fails)
            statuses[now] = KVT_E_ARGUMENT;
        else
            open[opened++] = now;
    }
}
