/* SPDX-License-Identifier: Apache-2.0 */
/*
 * record_walk.c - the order of a record's segments, as its header implies it:
 *
 *   plane 0        index segments; then per layer K and V: raw tokens, metadata, tables, data; or
 *                  one segment for a raw matrix and for a codec without parts
 *   plane 1 ...    all layers of the side that lies first, then all layers of the other side; a
 *                  layout of one side has K alone
 *
 * A section, plane 0 or one side of a further plane, ends on 4096, so that dropping the last
 * planes of one side leaves whole ranges. Re-entrant.
 */
#include "record_format.h"

#include <assert.h>

void record_walk_start(record_walk *walk, const record_plan *plan)
{
    memset(walk, 0, sizeof *walk);
    walk->plan = plan;
}

static bool walk_next_opaque(record_walk *walk, record_want *want)
{
    const record_plan *plan = walk->plan;
    if (walk->index == plan->segment_count) return false;
    uint64_t left = plan->source_bytes - walk->index * plan->segment_bytes;
    want->segment.layer = walk->index;
    want->segment.raw_bytes = left < plan->segment_bytes ? left : plan->segment_bytes;
    want->either = true;
    want->ends_layer = true;
    want->ends_section = walk->index + 1 == plan->segment_count;
    return true;
}

/* The part-th segment of this plane of a matrix. False when there is none. */
static bool walk_want_part(const record_plan *plan, uint32_t layer, kvt_side side, uint32_t plane,
                           uint32_t part, record_want *want)
{
    record_segment *segment = &want->segment;
    kvt_matrix matrix;
    kvt_part parts[KVT_PARTS_MAX];
    uint32_t count;
    segment->layer = layer;
    segment->side = (uint8_t)side;
    segment->plane = (uint16_t)plane;
    if (!plan->parts || record_matrix_is_raw(plan, layer, side)) {
        segment->raw_bytes = plan->segment_bytes;
        segment->kind = KVT_PART_RAW;
        segment->stored_bytes = plan->segment_bytes;
        want->either = !plan->parts;
        want->fixed = plan->parts;
        return plane == 0 && part == 0;
    }
    uint64_t raw = plan->extension.head_tokens + (uint64_t)plan->extension.tail_tokens[side];
    if (plane == 0 && raw != 0 && part-- == 0) {
        segment->kind = KVT_PART_RAW_TOKENS;
        segment->raw_bytes = raw * record_row_bytes(plan);
        segment->stored_bytes = segment->raw_bytes;
        want->fixed = true;
        return true;
    }
    record_matrix_parts(plan, layer, side, &matrix, parts, &count);
    for (uint32_t i = 0; i < count; i++) {
        if (parts[i].plane != plane || part-- != 0) continue;
        segment->kind = parts[i].kind;
        segment->raw_bytes = parts[i].bytes;
        want->fixed = (plan->codec->flags & KVT_CODEC_FLAG_FIXED) != 0;
        if (want->fixed) segment->stored_bytes = parts[i].bytes;
        return true;
    }
    return false;
}

/* The next segment of a record whose matrices are one segment each. */
static bool walk_next_whole(const record_walk *walk, record_want *want)
{
    const record_plan *plan = walk->plan;
    const uint32_t sides = kvt_layout_sides(&plan->layout);
    const uint32_t matrix = walk->index - plan->extension.index_count;
    assert(plan->plane_count == 1 && walk->index >= plan->extension.index_count);
    if (matrix == sides * plan->layout.layers) return false;
    (void)walk_want_part(plan, matrix / sides, (kvt_side)(matrix % sides), 0, 0, want);
    want->ends_layer = matrix % sides == sides - 1;
    want->ends_section = matrix + 1 == sides * plan->layout.layers;
    return true;
}

/* Moves to the next matrix of the section. False when the section ends. */
static bool walk_next_matrix(record_walk *walk)
{
    walk->part = 0;
    const bool both = kvt_layout_sides(&walk->plan->layout) == 2;
    if (walk->section == 0 && walk->side == KVT_SIDE_K && both) {
        walk->side = KVT_SIDE_V;
        return true;
    }
    if (walk->section == 0) walk->side = KVT_SIDE_K;
    return ++walk->layer < walk->plan->layout.layers;
}

static void walk_start_section(record_walk *walk, uint32_t section)
{
    const record_plan *plan = walk->plan;
    walk->section = section;
    walk->layer = 0;
    walk->part = 0;
    walk->side = KVT_SIDE_K;
    if (section == 0) return;
    if (kvt_layout_sides(&plan->layout) == 1) return;
    uint32_t first = plan->parts ? plan->codec->first_side(plan->variant) : KVT_SIDE_K;
    walk->side = (section - 1) % 2 == 0 ? first : first ^ 1u;
}

static uint32_t walk_plane(const record_walk *walk)
{
    return (walk->section + 1) / 2;
}

/* Finds the next segment of any matrix, and leaves the walk after it. */
static bool walk_find(record_walk *walk, record_want *want)
{
    const record_plan *plan = walk->plan;
    for (;;) {
        if (walk_plane(walk) >= plan->plane_count) return false;
        memset(want, 0, sizeof *want);
        if (walk_want_part(plan, walk->layer, (kvt_side)walk->side, walk_plane(walk), walk->part,
                           want)) {
            walk->part++;
            return true;
        }
        /* Sections are numbered as if there were two sides; with one, every second one is left out.
         */
        const bool both = kvt_layout_sides(&walk->plan->layout) == 2;
        if (!walk_next_matrix(walk))
            walk_start_section(walk, walk->section + (walk->section == 0 || both ? 1 : 2));
    }
}

bool record_walk_next(record_walk *walk, record_want *want_out)
{
    const record_plan *plan = walk->plan;
    record_want after;
    memset(want_out, 0, sizeof *want_out);
    if (plan->layout.dtype == KVT_DTYPE_OPAQUE) {
        if (!walk_next_opaque(walk, want_out)) return false;
        walk->index++;
        return true;
    }
    if (walk->index < plan->extension.index_count) {
        want_out->segment.layer = plan->extension.index_count == 1 ? RECORD_NO_LAYER : walk->index;
        want_out->segment.kind = KVT_PART_INDEX;
        want_out->segment.raw_bytes = plan->index_bytes;
        want_out->segment.stored_bytes = plan->index_bytes;
        want_out->fixed = true;
        walk->index++;
        return true;
    }
    if (!plan->parts) {
        if (!walk_next_whole(walk, want_out)) return false;
        walk->index++;
        return true;
    }
    if (!walk_find(walk, want_out)) return false;
    walk->index++;
    /* A look ahead tells whether layer and section end here. */
    record_walk ahead = *walk;
    const uint32_t section = walk->section;
    if (!walk_find(&ahead, &after)) {
        want_out->ends_layer = true;
        want_out->ends_section = true;
        return true;
    }
    want_out->ends_section = ahead.section != section;
    want_out->ends_layer = want_out->ends_section || after.segment.layer != want_out->segment.layer;
    return true;
}
