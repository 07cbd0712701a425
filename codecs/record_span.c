/* SPDX-License-Identifier: Apache-2.0 */
/*
 * record_span.c - matrices of a record whose parts hold several: one part is decoded for all
 * matrices of its span that are wanted, and each of these has its raw tokens put around. Whole
 * records and those that came in ranges are the same here. Re-entrant; no allocation.
 */
#include "record_reader.h"

#include <assert.h>

void record_each_segment(record_matrix *found, void (*each)(void *, record_segment *),
                         void *context)
{
    if (found->raw.kind != 0) each(context, &found->raw);
    if (found->raw_tokens.kind != 0) each(context, &found->raw_tokens);
    for (uint32_t i = 0; i < found->part_count; i++)
        each(context, &found->parts[i]);
}

/* Where segments lie in memory. */
typedef struct span_moved {
    const record_source *source;
    bool missing;
} span_moved;

/* Gives a segment the offset of its bytes in memory. */
static void span_move_segment(void *context, record_segment *segment)
{
    span_moved *moved = context;
    for (uint32_t i = 0; i < moved->source->range_count; i++) {
        const kvt_record_range *range = &moved->source->ranges[i];
        if (segment->offset < range->offset) continue;
        uint64_t in = segment->offset - range->offset;
        if (in > range->bytes || segment->padded_bytes > range->bytes - in) continue;
        segment->offset = range->at + in;
        return;
    }
    moved->missing = true;
}

bool record_source_find(const record_source *source, uint32_t layer, kvt_side side,
                        record_matrix *found)
{
    span_moved moved = {.source = source};
    record_find_matrix(source->plan, source->table, source->sections, layer, side, found);
    if (source->ranges != NULL) record_each_segment(found, span_move_segment, &moved);
    return !moved.missing;
}

bool record_span_find(const record_source *source, uint32_t layer, kvt_side side,
                      record_matrix *found)
{
    span_moved moved = {.source = source};
    record_find_matrix(source->plan, source->table, source->sections, layer, side, found);
    found->raw_tokens.kind = 0;
    if (source->ranges != NULL) record_each_segment(found, span_move_segment, &moved);
    return !moved.missing;
}

/* Decodes the part of a span. */
static kvt_status span_decode_part(const record_source *source, uint32_t layer, kvt_side side,
                                   const view_rows *const *targets, void *scratch,
                                   uint64_t scratch_bytes)
{
    const record_plan *plan = source->plan;
    const uint64_t row = record_row_bytes(plan);
    record_matrix found;
    kvt_matrix matrix;
    kvt_part parts[KVT_PARTS_MAX];
    view_rows coded[KVT_SPAN_MAX];
    const view_rows *wanted[KVT_SPAN_MAX];
    uint32_t count;
    if (!record_span_find(source, layer, side, &found)) return KVT_E_CORRUPT;
    record_matrix_parts(plan, layer, side, &matrix, parts, &count);
    assert(count == 1 && found.part_count == 1 && plan->basis != NULL);
    parts[0].bytes = found.parts[0].stored_bytes;
    /* The decoder only reads through it. */
    parts[0].data = (uint8_t *)((uintptr_t)source->payload + found.parts[0].offset);
    for (uint32_t i = 0; i < matrix.span; i++) {
        wanted[i] = NULL;
        if (targets[i] == NULL) continue;
        coded[i] = view_rows_part(targets[i], row, plan->extension.head_tokens, matrix.tokens);
        wanted[i] = &coded[i];
    }
    kvt_status status = record_code_decode(plan, &matrix, parts, wanted, scratch, scratch_bytes);
    if (status != KVT_OK) return status;
    return record_segment_check(source->payload, &found.parts[0]);
}

kvt_status record_decode_span(const record_source *source, uint32_t span,
                              const view_rows *const *targets, void *scratch,
                              uint64_t scratch_bytes)
{
    const record_plan *plan = source->plan;
    const uint32_t first = span * plan->together;
    uint32_t layer;
    kvt_side side;
    record_matrix_name(plan, first, &layer, &side);
    const bool raw = record_matrix_is_raw(plan, layer, side);
    kvt_status status = KVT_OK;
    if (!raw) status = span_decode_part(source, layer, side, targets, scratch, scratch_bytes);
    for (uint32_t i = 0; status == KVT_OK && i < record_span_matrices(plan, span); i++) {
        record_matrix found;
        if (targets[i] == NULL) continue;
        record_matrix_name(plan, first + i, &layer, &side);
        if (!record_source_find(source, layer, side, &found)) return KVT_E_CORRUPT;
        if (raw)
            status = record_decode_found(source->payload, plan, &found, layer, side, targets[i],
                                         scratch, scratch_bytes);
        else if (found.raw_tokens.kind != 0)
            status = record_decode_raw_tokens(source->payload, plan, &found, side, targets[i]);
    }
    return status;
}
