/* SPDX-License-Identifier: Apache-2.0 */
/*
 * view_rows.c - see view_rows.h. Re-entrant.
 */
#include "view_rows.h"

#include <assert.h>
#include <string.h>

enum { ROWS_LINE = 64 };

/* The address of a (layer, side), with its strides. */
static uint8_t *rows_address(const kvt_view *view, const kvt_layout *layout, uint32_t layer,
                             kvt_side side)
{
    const uint64_t layer_offset = layer == 0 ? 0 : layer * (uint64_t)view->layer_stride;
    const uint64_t side_offset = side == 0 ? 0 : (uint64_t)view->side_stride;
    switch (view->bases_kind) {
    case KVT_BASES_SIDES: return (uint8_t *)view->base[side] + layer_offset;
    case KVT_BASES_LAYERS: return (uint8_t *)view->bases[layer] + side_offset;
    case KVT_BASES_LAYERS_SIDES:
        return view->bases[layer * (size_t)view_sides(layout) + (size_t)side];
    default: return (uint8_t *)view->base[0] + layer_offset + side_offset;
    }
}

view_rows view_rows_of(const kvt_view *view, const kvt_layout *layout, uint32_t tokens,
                       uint32_t layer, kvt_side side)
{
    const uint64_t head_bytes = (uint64_t)layout->head_dim * kvt_dtype_bytes(layout->dtype);
    assert(layout->dtype != KVT_DTYPE_OPAQUE && tokens <= layout->tokens);
    view_rows rows = {
        .start = rows_address(view, layout, layer, side),
        .heads = layout->kv_heads,
        .block_tokens = view->tokens_per_block != 0 ? view->tokens_per_block : UINT32_MAX,
        .row_bytes = head_bytes * layout->kv_heads,
        .head_bytes = head_bytes,
        .head_stride = (uint64_t)view->head_stride,
        .token_stride = (uint64_t)view->token_stride,
        .block_stride = (uint64_t)view->block_stride,
        .blocks = view->blocks,
    };
    rows.bytes = rows.row_bytes * tokens;
    /* Strides of one member may be anything. */
    if (rows.heads == 1) rows.head_stride = head_bytes;
    const bool slots = layout->tokens > 1 && view->tokens_per_block != 1;
    if (!slots && view->first_slot == 0) rows.token_stride = rows.row_bytes;
    if (rows.head_stride == head_bytes) {
        rows.heads = 1;
        rows.head_bytes = rows.row_bytes;
    }
    rows.dense = rows.heads == 1 && rows.token_stride == rows.row_bytes;
    if (view->tokens_per_block == 0) {
        rows.start += view->first_slot * rows.token_stride;
    } else {
        rows.first_slot = view->first_slot;
    }
    return view_rows_part(&rows, rows.row_bytes, 0, tokens);
}

/* Whether a table's blocks follow each other, as pools that are filled in order have them. */
static bool rows_blocks_follow(const view_rows *rows, uint64_t used)
{
    if (rows->block_stride != rows->block_tokens * rows->token_stride) return false;
    for (uint64_t i = 1; rows->blocks != NULL && i < used; i++) {
        if (rows->blocks[i] != rows->blocks[0] + i) return false;
    }
    return true;
}

view_rows view_rows_part(const view_rows *rows, uint64_t row_bytes, uint64_t first, uint64_t count)
{
    view_rows part = *rows;
    part.bytes = count * row_bytes;
    if (rows->packed) {
        part.start += first * row_bytes;
        return part;
    }
    if (count == 0) return part;
    part.first_slot += first;
    if (part.block_tokens == UINT32_MAX) {
        part.start += part.first_slot * part.token_stride;
        part.first_slot = 0;
        part.packed = part.dense;
        return part;
    }
    const uint64_t block = part.first_slot / part.block_tokens;
    part.first_slot %= part.block_tokens;
    if (part.blocks != NULL) part.blocks += block;
    if (part.blocks == NULL) part.start += block * part.block_stride;
    const uint64_t used = (part.first_slot + count + part.block_tokens - 1) / part.block_tokens;
    if (used > 1 && !rows_blocks_follow(&part, used)) return part;
    /* One block, or as good as one. */
    if (part.blocks != NULL) part.start += part.blocks[0] * part.block_stride;
    if (part.first_slot != 0) part.start += part.first_slot * part.token_stride;
    part.blocks = NULL;
    part.first_slot = 0;
    part.block_tokens = UINT32_MAX;
    part.packed = part.dense;
    return part;
}

/* A place in a matrix: its token's slot, and what is left of the block. */
typedef struct rows_place {
    uint8_t *row;
    uint64_t left; /* rows of the block from here on */
} rows_place;

static rows_place rows_place_of(const view_rows *rows, uint64_t token)
{
    rows_place place = {rows->start, UINT64_MAX};
    uint64_t slot = token;
    if (rows->block_tokens != UINT32_MAX) {
        const uint64_t at = rows->first_slot + token;
        const uint64_t block = at / rows->block_tokens;
        slot = at % rows->block_tokens;
        place.row += (rows->blocks != NULL ? rows->blocks[block] : block) * rows->block_stride;
        place.left = rows->block_tokens - slot;
    }
    place.row += slot * rows->token_stride;
    return place;
}

uint8_t *view_rows_room(const view_rows *rows, uint64_t at, uint64_t bytes, uint8_t *tile)
{
    assert(at + bytes <= rows->bytes);
    if (rows->packed) return rows->start + at;
    const uint64_t in = at % rows->row_bytes;
    const rows_place place = rows_place_of(rows, at / rows->row_bytes);
    if (rows->dense) {
        const bool fits = place.left == UINT64_MAX || in + bytes <= place.left * rows->row_bytes;
        return fits ? place.row + in : tile;
    }
    const uint64_t head = in / rows->head_bytes;
    const uint64_t in_head = in % rows->head_bytes;
    if (in_head + bytes > rows->head_bytes) return tile;
    return place.row + head * rows->head_stride + in_head;
}

/* Copies a run: lines of 64 bytes in place, as most runs are a few of them. */
static inline void rows_copy(uint8_t *target, const uint8_t *source, uint64_t bytes)
{
    if (bytes % ROWS_LINE != 0 || bytes > 16 * ROWS_LINE) {
        memcpy(target, source, bytes);
        return;
    }
    for (uint64_t i = 0; i < bytes; i += ROWS_LINE) {
        memcpy(target + i, source + i, ROWS_LINE);
    }
}

/* Copies between the view and packed bytes. */
static inline void rows_move(uint8_t *place, uint8_t *packed, uint64_t bytes, bool scatter)
{
    if (scatter)
        rows_copy(place, packed, bytes);
    else
        rows_copy(packed, place, bytes);
}

/* A part of one row, from byte `in` of it on. */
static inline void rows_move_part(const view_rows *rows, uint8_t *row, uint64_t in, uint8_t *packed,
                                  uint64_t bytes, bool scatter)
{
    while (bytes > 0) {
        const uint64_t in_head = in % rows->head_bytes;
        uint64_t run = rows->head_bytes - in_head;
        if (run > bytes) run = bytes;
        rows_move(row + in / rows->head_bytes * rows->head_stride + in_head, packed, run, scatter);
        packed += run;
        bytes -= run;
        in += run;
    }
}

/* Whole rows of one block. What lies closer together in the view is the inner loop. */
static inline void rows_move_rows(const view_rows *rows, uint8_t *row, uint8_t *packed,
                                  uint64_t count, bool scatter)
{
    if (rows->dense) {
        rows_move(row, packed, count * rows->row_bytes, scatter);
        return;
    }
    if (rows->token_stride < rows->head_stride) {
        for (uint32_t head = 0; head < rows->heads; head++) {
            uint8_t *at = row + head * rows->head_stride;
            uint8_t *from = packed + head * rows->head_bytes;
            for (uint64_t i = 0; i < count; i++) {
                rows_move(at, from, rows->head_bytes, scatter);
                at += rows->token_stride;
                from += rows->row_bytes;
            }
        }
        return;
    }
    for (uint64_t i = 0; i < count; i++) {
        uint8_t *at = row;
        for (uint32_t head = 0; head < rows->heads; head++) {
            rows_move(at, packed, rows->head_bytes, scatter);
            packed += rows->head_bytes;
            at += rows->head_stride;
        }
        row += rows->token_stride;
    }
}

static inline void rows_move_all(const view_rows *rows, uint64_t at, uint64_t bytes,
                                 uint8_t *packed, bool scatter)
{
    assert(at + bytes <= rows->bytes);
    if (rows->packed) {
        rows_move(rows->start + at, packed, bytes, scatter);
        return;
    }
    uint64_t token = at / rows->row_bytes;
    uint64_t in = at % rows->row_bytes;
    while (bytes > 0) {
        const rows_place place = rows_place_of(rows, token);
        uint64_t count = bytes / rows->row_bytes;
        if (in != 0 || count == 0) {
            const uint64_t part = rows->row_bytes - in < bytes ? rows->row_bytes - in : bytes;
            rows_move_part(rows, place.row, in, packed, part, scatter);
            packed += part;
            bytes -= part;
            in = 0;
            token++;
            continue;
        }
        if (count > place.left) count = place.left;
        rows_move_rows(rows, place.row, packed, count, scatter);
        packed += count * rows->row_bytes;
        bytes -= count * rows->row_bytes;
        token += count;
    }
}

void view_rows_scatter(const view_rows *rows, uint64_t at, uint64_t bytes, const uint8_t *packed)
{
    /* It is only read. */
    rows_move_all(rows, at, bytes, (uint8_t *)(uintptr_t)packed, true);
}

void view_rows_gather(const view_rows *rows, uint64_t at, uint64_t bytes, uint8_t *packed)
{
    rows_move_all(rows, at, bytes, packed, false);
}
