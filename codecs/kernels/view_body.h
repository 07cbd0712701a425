/* SPDX-License-Identifier: Apache-2.0 */
/*
 * view_body.h - moves bytes between a view and packed rows for one level of vectors; included once
 * by each file of a level, which defines
 *
 *   view_copy_line(target, source)     one line of VIEW_LINE bytes, at any addresses
 *   view_stream_line(target, source)   the same, written past the caches to a line of the target
 *
 * Re-entrant.
 */
#include "base/copy.h"
#include "codecs/view_rows.h"

#include <assert.h>

/* How bytes are moved. Constants, so that each has loops of its own. */
typedef enum rows_way { ROWS_GATHER, ROWS_SCATTER, ROWS_STREAM } rows_way;

/* Copies a run. Most are a few lines. */
static inline void rows_copy(uint8_t *target, const uint8_t *source, uint64_t bytes)
{
    if (bytes % VIEW_LINE != 0 || bytes > 16 * VIEW_LINE) {
        base_copy(target, source, bytes);
        return;
    }
    for (uint64_t i = 0; i < bytes; i += VIEW_LINE) {
        view_copy_line(target + i, source + i);
    }
}

/* Copies between the view and packed bytes. */
static inline void rows_move(uint8_t *place, uint8_t *packed, uint64_t bytes, rows_way way)
{
    if (way == ROWS_STREAM && ((uintptr_t)place | bytes) % VIEW_LINE == 0) {
        for (uint64_t i = 0; i < bytes; i += VIEW_LINE) {
            view_stream_line(place + i, packed + i);
        }
    } else if (way != ROWS_GATHER) {
        rows_copy(place, packed, bytes);
    } else {
        rows_copy(packed, place, bytes);
    }
}

/* A part of one row, from byte `in` of it on. */
static inline void rows_move_part(const view_rows *rows, uint8_t *row, uint64_t in, uint8_t *packed,
                                  uint64_t bytes, rows_way way)
{
    while (bytes > 0) {
        const uint64_t in_head = in % rows->head_bytes;
        uint64_t run = rows->head_bytes - in_head;
        if (run > bytes) run = bytes;
        rows_move(row + in / rows->head_bytes * rows->head_stride + in_head, packed, run, way);
        packed += run;
        bytes -= run;
        in += run;
    }
}

/* Whole rows of one block. The inner loop is over the axis that is denser in the view. */
static inline void rows_move_rows(const view_rows *rows, uint8_t *row, uint8_t *packed,
                                  uint64_t count, rows_way way)
{
    if (rows->dense) {
        rows_move(row, packed, count * rows->row_bytes, way);
        return;
    }
    if (rows->token_stride < rows->head_stride) {
        for (uint32_t head = 0; head < rows->heads; head++) {
            uint8_t *at = row + head * rows->head_stride;
            uint8_t *from = packed + head * rows->head_bytes;
            for (uint64_t i = 0; i < count; i++) {
                rows_move(at, from, rows->head_bytes, way);
                at += rows->token_stride;
                from += rows->row_bytes;
            }
        }
        return;
    }
    for (uint64_t i = 0; i < count; i++) {
        uint8_t *at = row;
        for (uint32_t head = 0; head < rows->heads; head++) {
            rows_move(at, packed, rows->head_bytes, way);
            packed += rows->head_bytes;
            at += rows->head_stride;
        }
        row += rows->token_stride;
    }
}

static inline void rows_move_all(const view_rows *rows, uint64_t at, uint64_t bytes,
                                 uint8_t *packed, rows_way way)
{
    assert(at + bytes <= rows->bytes);
    if (rows->packed) {
        rows_move(rows->start + at, packed, bytes, way);
        return;
    }
    uint64_t token = at / rows->row_bytes;
    uint64_t in = at % rows->row_bytes;
    while (bytes > 0) {
        const view_rows_place place = view_rows_place_of(rows, token);
        uint64_t count = bytes / rows->row_bytes;
        if (in != 0 || count == 0) {
            const uint64_t part = rows->row_bytes - in < bytes ? rows->row_bytes - in : bytes;
            rows_move_part(rows, place.row, in, packed, part, way);
            packed += part;
            bytes -= part;
            in = 0;
            token++;
            continue;
        }
        if (count > place.left) count = place.left;
        rows_move_rows(rows, place.row, packed, count, way);
        packed += count * rows->row_bytes;
        bytes -= count * rows->row_bytes;
        token += count;
    }
}

static void body_scatter(const view_rows *rows, uint64_t at, uint64_t bytes, const uint8_t *packed)
{
    uint8_t *source = (uint8_t *)(uintptr_t)packed; /* it is only read */
    if (rows->stream)
        rows_move_all(rows, at, bytes, source, ROWS_STREAM);
    else
        rows_move_all(rows, at, bytes, source, ROWS_SCATTER);
}

static void body_gather(const view_rows *rows, uint64_t at, uint64_t bytes, uint8_t *packed)
{
    rows_move_all(rows, at, bytes, packed, ROWS_GATHER);
}
