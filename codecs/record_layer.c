/* SPDX-License-Identifier: Apache-2.0 */
/*
 * record_layer.c - a record layer by layer. Its head is parsed and checked once. A copy of it is
 * kept, so that a layer is decoded without a look at the record's own head, which may have been
 * given back, or be damaged by then. Every segment is verified as it is decoded, as in a whole
 * record.
 *
 * Re-entrant; no allocation. An open head is only read, by any threads.
 */
#include "codecs/record.h"
#include "record_reader.h"

#include <assert.h>

kvt_status kvt_record_head_open(const void *head, uint64_t head_bytes, bool whole,
                                const kvt_record_spec *expected, void *memory, uint64_t capacity,
                                uint64_t *bytes_out)
{
    record_parsed parsed;
    assert(head != NULL && memory != NULL && bytes_out != NULL && (uintptr_t)memory % 8 == 0);
    *bytes_out = 0;
    kvt_status status = record_parse(head, head_bytes,
                                     whole ? RECORD_DEPTH_LOAD : RECORD_DEPTH_HEAD, &parsed, NULL);
    if (status == KVT_OK) status = record_check_expected(&parsed, expected);
    if (status == KVT_OK)
        status = record_plan_take_basis(&parsed.plan, expected != NULL ? &expected->bases : NULL);
    if (status != KVT_OK) return status;
    const uint64_t plan_bytes = offsetof(record_plan, levels) + parsed.plan.extension.level_count;
    const uint64_t table_bytes = (uint64_t)parsed.plan.segment_count * sizeof(record_segment);
    const uint64_t table_at = offsetof(kvt_record_head, plan) + plan_bytes;
    *bytes_out = table_at + table_bytes;
    if (*bytes_out > capacity) return KVT_E_SPACE;
    kvt_record_head *made = memory;
    made->sections = parsed.sections;
    made->table_at = table_at;
    memcpy(&made->plan, &parsed.plan, plan_bytes);
    memcpy((uint8_t *)made + table_at, parsed.table, table_bytes);
    return KVT_OK;
}

/* ---- ranges ---- */

/* The ranges of a layer while they are collected. */
typedef struct record_ranges {
    kvt_record_range *ranges;
    uint32_t count;
    uint32_t capacity;
    bool full; /* there were more than capacity */
} record_ranges;

/* Adds the grains of a segment, in the order of the record; ranges that touch are one. A layer's
 * segments come in few runs, so that the search is short. */
static void record_add_range(void *context, record_segment *segment)
{
    record_ranges *all = context;
    uint64_t start = segment->offset / KVT_RECORD_ALIGN * KVT_RECORD_ALIGN;
    uint64_t end = codecs_align(segment->offset + segment->padded_bytes, KVT_RECORD_ALIGN);
    uint32_t at = 0;
    while (at < all->count && all->ranges[at].offset + all->ranges[at].bytes < start)
        at++;
    kvt_record_range *range = &all->ranges[at];
    if (at == all->count || end < range->offset) {
        if (all->count == all->capacity) {
            all->full = true;
            return;
        }
        memmove(range + 1, range, (all->count - at) * sizeof *range);
        *range = (kvt_record_range){.offset = start, .bytes = end - start};
        all->count++;
        return;
    }
    uint64_t last = range->offset + range->bytes;
    if (start < range->offset) range->offset = start;
    range->bytes = (end > last ? end : last) - range->offset;
}

/* Adds the part that a matrix shares with others, which lies with the first of them. */
static void record_add_span(const kvt_record_head *head, uint32_t layer, kvt_side side,
                            record_ranges *all)
{
    const record_plan *plan = &head->plan;
    record_matrix found;
    if (plan->together == 1) return;
    const uint32_t span = record_span_of(plan, layer, side);
    record_matrix_name(plan, span * plan->together, &layer, &side);
    record_find_matrix(plan, record_head_table(head), &head->sections, layer, side, &found);
    for (uint32_t i = 0; i < found.part_count; i++)
        record_add_range(all, &found.parts[i]);
}

/* Merges neighbours that have grown together, and says where each range goes in memory. */
static void record_settle_ranges(record_ranges *all)
{
    uint64_t memory = 0;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < all->count; i++) {
        kvt_record_range *last = kept > 0 ? &all->ranges[kept - 1] : NULL;
        const kvt_record_range *range = &all->ranges[i];
        if (last != NULL && last->offset + last->bytes >= range->offset) {
            uint64_t end = range->offset + range->bytes;
            if (end > last->offset + last->bytes) last->bytes = end - last->offset;
        } else {
            all->ranges[kept++] = *range;
        }
    }
    all->count = kept;
    for (uint32_t i = 0; i < kept; i++) {
        all->ranges[i].at = memory;
        memory += all->ranges[i].bytes;
    }
}

uint32_t kvt_record_head_tokens(const kvt_record_head *head)
{
    return head->plan.stored.tokens;
}

uint32_t kvt_record_head_together(const kvt_record_head *head, uint32_t layer)
{
    const record_plan *plan = &head->plan;
    const uint32_t sides = kvt_layout_sides(&plan->layout);
    assert(layer < plan->layout.layers);
    if (plan->together <= sides) return 1;
    const uint32_t span = record_span_of(plan, layer, KVT_SIDE_K);
    if (sides * layer != span * plan->together) return 0;
    return record_span_matrices(plan, span) / sides;
}

/* The ranges of neighbouring matrices, counted layer by layer. */
static kvt_status record_head_collect(const kvt_record_head *head, uint32_t first, uint32_t end,
                                      kvt_record_range *ranges, uint32_t capacity,
                                      uint32_t *count_out)
{
    record_ranges all = {.ranges = ranges, .capacity = capacity};
    for (uint32_t i = first; i < end; i++) {
        record_matrix found;
        uint32_t layer;
        kvt_side side;
        record_matrix_name(&head->plan, i, &layer, &side);
        record_find_matrix(&head->plan, record_head_table(head), &head->sections, layer, side,
                           &found);
        record_each_segment(&found, record_add_range, &all);
        record_add_span(head, layer, side, &all);
    }
    if (all.full) return KVT_E_SPACE;
    record_settle_ranges(&all);
    *count_out = all.count;
    return KVT_OK;
}

kvt_status kvt_record_head_ranges(const kvt_record_head *head, uint32_t layer, uint32_t layer_count,
                                  kvt_record_range *ranges, uint32_t capacity, uint32_t *count_out)
{
    assert(head != NULL && ranges != NULL && count_out != NULL);
    const kvt_layout *layout = &head->plan.layout;
    const uint32_t sides = kvt_layout_sides(layout);
    *count_out = 0;
    if (!record_has_layers(layout, layer, layer_count)) return KVT_E_ARGUMENT;
    return record_head_collect(head, sides * layer, sides * (layer + layer_count), ranges, capacity,
                               count_out);
}

/* Whether a record has a matrix. */
static bool record_has_matrix(const kvt_layout *layout, uint32_t layer, kvt_side side)
{
    return record_has_layers(layout, layer, 1) && (uint32_t)side < kvt_layout_sides(layout);
}

kvt_status kvt_record_head_matrix_ranges(const kvt_record_head *head, uint32_t layer, kvt_side side,
                                         kvt_record_range *ranges, uint32_t capacity,
                                         uint32_t *count_out)
{
    assert(head != NULL && ranges != NULL && count_out != NULL);
    const kvt_layout *layout = &head->plan.layout;
    *count_out = 0;
    if (!record_has_matrix(layout, layer, side)) return KVT_E_ARGUMENT;
    const uint32_t first = kvt_layout_sides(layout) * layer + (uint32_t)side;
    return record_head_collect(head, first, first + 1, ranges, capacity, count_out);
}

/* ---- decoding ---- */

/* Decodes the matrices of layers from the spans that they are in, each span once. */
static kvt_status record_head_spans(const record_source *source, const kvt_layout *layout,
                                    const kvt_view *view, uint32_t layer, uint32_t layer_count,
                                    void *scratch, uint64_t scratch_bytes)
{
    const record_plan *plan = source->plan;
    const uint32_t sides = kvt_layout_sides(layout), end = sides * (layer + layer_count);
    kvt_status status = KVT_OK;
    for (uint32_t i = sides * layer; status == KVT_OK && i < end;) {
        const view_rows *targets[KVT_SPAN_MAX] = {NULL};
        view_rows rows[KVT_SPAN_MAX];
        const uint32_t span = i / plan->together;
        uint32_t made = 0;
        for (; i < end && i / plan->together == span; i++) {
            kvt_side side;
            record_matrix_name(plan, i, &layer, &side);
            rows[made] = view_rows_of(view, layout, plan->stored.tokens, layer, side);
            rows[made].stream = plan->decoded_bytes >= VIEW_STREAM_BYTES;
            targets[i % plan->together] = &rows[made++];
        }
        status = record_decode_span(source, span, targets, scratch, scratch_bytes);
        while (made > 0)
            view_rows_close(&rows[--made]);
    }
    return status;
}

/* Decodes one matrix of a codec without spans. */
static kvt_status record_head_matrix(const record_source *source, const kvt_layout *layout,
                                     const kvt_view *view, uint32_t layer, kvt_side side,
                                     void *scratch, uint64_t scratch_bytes)
{
    const record_plan *plan = source->plan;
    record_matrix found;
    if (!record_source_find(source, layer, side, &found)) return KVT_E_CORRUPT;
    view_rows target = view_rows_of(view, layout, plan->stored.tokens, layer, side);
    target.stream = plan->decoded_bytes >= VIEW_STREAM_BYTES;
    kvt_status status = record_decode_found(source->payload, plan, &found, layer, side, &target,
                                            scratch, scratch_bytes);
    view_rows_close(&target);
    return status;
}

/* The source of a head's record, whose payload or ranges lie there. */
static record_source record_head_source(const kvt_record_head *head, const void *payload,
                                        const kvt_record_range *ranges, uint32_t count)
{
    return (record_source){.payload = payload,
                           .plan = &head->plan,
                           .table = record_head_table(head),
                           .sections = &head->sections,
                           .ranges = ranges,
                           .range_count = count};
}

kvt_status kvt_record_head_decode(const kvt_record_head *head, const kvt_layout *layout,
                                  const kvt_view *view, uint32_t layer, uint32_t layer_count,
                                  const void *payload, const kvt_record_range *ranges,
                                  uint32_t count, void *scratch, uint64_t scratch_bytes)
{
    assert(head != NULL && view != NULL && layout != NULL && payload != NULL);
    const record_plan *plan = &head->plan;
    const uint32_t sides = kvt_layout_sides(layout);
    kvt_status status = KVT_OK;
    if (!record_layout_fits(plan, layout)) return KVT_E_SPACE;
    if (!record_has_layers(layout, layer, layer_count)) return KVT_E_ARGUMENT;
    if (scratch_bytes < record_decode_scratch(plan)) return KVT_E_SPACE;
    const record_source source = record_head_source(head, payload, ranges, count);
    if (plan->codec->flags & KVT_CODEC_FLAG_SPANS)
        return record_head_spans(&source, layout, view, layer, layer_count, scratch, scratch_bytes);
    for (uint32_t i = 0; status == KVT_OK && i < sides * layer_count; i++)
        status = record_head_matrix(&source, layout, view, layer + i / sides, (kvt_side)(i % sides),
                                    scratch, scratch_bytes);
    return status;
}

kvt_status kvt_record_head_matrix(const kvt_record_head *head, uint32_t layer, kvt_side side,
                                  const void *payload, const kvt_record_range *ranges,
                                  uint32_t count, void *target, uint64_t target_bytes,
                                  void *scratch, uint64_t scratch_bytes, const void **matrix_out)
{
    assert(head != NULL && payload != NULL && matrix_out != NULL);
    const record_plan *plan = &head->plan;
    const record_source source = record_head_source(head, payload, ranges, count);
    record_matrix found;
    *matrix_out = target;
    if (!record_has_matrix(&plan->layout, layer, side)) return KVT_E_ARGUMENT;
    const view_rows rows = view_rows_packed(target, target_bytes);
    if (plan->codec->flags & KVT_CODEC_FLAG_SPANS) {
        const view_rows *targets[KVT_SPAN_MAX] = {NULL};
        const uint32_t index = kvt_layout_sides(&plan->layout) * layer + (uint32_t)side;
        if (target_bytes != plan->segment_bytes || scratch_bytes < record_decode_scratch(plan))
            return KVT_E_SPACE;
        targets[index % plan->together] = &rows;
        return record_decode_span(&source, index / plan->together, targets, scratch, scratch_bytes);
    }
    if (!record_source_find(&source, layer, side, &found)) return KVT_E_CORRUPT;
    if (found.raw.kind == KVT_PART_RAW && found.raw.raw_bytes == plan->segment_bytes) {
        *matrix_out = source.payload + found.raw.offset;
        return record_segment_check(payload, &found.raw);
    }
    if (target_bytes != plan->segment_bytes || scratch_bytes < record_decode_scratch(plan))
        return KVT_E_SPACE;
    return record_decode_found(source.payload, plan, &found, layer, side, &rows, scratch,
                               scratch_bytes);
}

/* ---- the coarse form ---- */

kvt_status kvt_record_head_coarse(const kvt_record_head *head, uint32_t planes, void *memory,
                                  uint64_t capacity, uint64_t *bytes_out)
{
    assert(head != NULL && planes != 0 && memory != NULL && bytes_out != NULL);
    const record_plan *present = &head->plan;
    const uint64_t segment_bytes = sizeof(record_segment);
    kvt_record_head *made = memory;
    record_walk walk;
    record_want want;
    uint32_t from = 0;
    *bytes_out = head->table_at + present->segment_count * segment_bytes;
    if ((present->codec->flags & KVT_CODEC_FLAG_NESTED) == 0 || present->extension.index_count != 0)
        return KVT_E_UNSUPPORTED;
    if (*bytes_out > capacity) return KVT_E_SPACE;
    memcpy(made, head, head->table_at);
    const kvt_variant fewer = codecs_fewer_planes(present->variant, planes);
    const kvt_status status = record_plan_make(&made->plan, fewer, present->stored.tokens);
    if (status != KVT_OK) return status;
    if (made->plan.segment_count == present->segment_count) return KVT_E_UNSUPPORTED;
    record_sections_start(&made->sections);
    record_walk_start(&walk, &made->plan);
    while (record_walk_next(&walk, &want)) {
        record_segment segment;
        do { /* the segments between are those of further planes */
            assert(from < present->segment_count);
            memcpy(&segment, record_head_table(head) + from++ * segment_bytes, segment_bytes);
        } while (segment.layer != want.segment.layer || segment.side != want.segment.side ||
                 segment.plane != want.segment.plane || segment.kind != want.segment.kind);
        memcpy((uint8_t *)made + made->table_at + (walk.index - 1) * segment_bytes, &segment,
               segment_bytes);
        record_sections_add(&made->sections, &want);
    }
    return KVT_OK;
}

/* Finds a matrix, and how many of its parts the coarse form has: the leading ones. */
static uint32_t record_find_rest(const kvt_record_head *head, const kvt_record_head *coarse,
                                 uint32_t layer, kvt_side side, record_matrix *found)
{
    record_find_matrix(&coarse->plan, record_head_table(coarse), &coarse->sections, layer, side,
                       found);
    const uint32_t kept = found->part_count;
    record_find_matrix(&head->plan, record_head_table(head), &head->sections, layer, side, found);
    assert(kept <= found->part_count);
    return kept;
}

kvt_status kvt_record_head_rest_ranges(const kvt_record_head *head, const kvt_record_head *coarse,
                                       uint32_t layer, kvt_record_range *ranges, uint32_t capacity,
                                       uint32_t *count_out)
{
    record_ranges all = {.ranges = ranges, .capacity = capacity};
    *count_out = 0;
    if (!record_has_layers(&head->plan.layout, layer, 1)) return KVT_E_ARGUMENT;
    for (uint32_t side = 0; side < kvt_layout_sides(&head->plan.layout); side++) {
        record_matrix found;
        for (uint32_t i = record_find_rest(head, coarse, layer, (kvt_side)side, &found);
             i < found.part_count; i++)
            record_add_range(&all, &found.parts[i]);
    }
    if (all.full) return KVT_E_SPACE;
    record_settle_ranges(&all);
    *count_out = all.count;
    return KVT_OK;
}

kvt_status kvt_record_head_rest_verify(const kvt_record_head *head, const kvt_record_head *coarse,
                                       uint32_t layer, const void *payload,
                                       const kvt_record_range *ranges, uint32_t count)
{
    const record_source source = record_head_source(head, payload, ranges, count);
    kvt_status status = KVT_OK;
    for (uint32_t side = 0; side < kvt_layout_sides(&head->plan.layout); side++) {
        record_matrix found;
        const uint32_t kept = record_find_rest(head, coarse, layer, (kvt_side)side, &found);
        if (!record_source_find(&source, layer, (kvt_side)side, &found)) return KVT_E_CORRUPT;
        for (uint32_t i = kept; i < found.part_count && status == KVT_OK; i++)
            status = record_segment_check(source.payload, &found.parts[i]);
    }
    return status;
}
