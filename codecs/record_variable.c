/* SPDX-License-Identifier: Apache-2.0 */
/*
 * record_variable.c - writes a record whose sizes follow from the data.
 *
 * Alone, one span after the other is encoded where its first segment begins, or in scratch when it
 * has several, and gets its places. With workers that goes in waves of as many spans as there are
 * workers: all of a wave are encoded into slots; their places are counted in order; all are copied
 * there. So the bytes are the same. A span is the matrices that are coded together: of most codecs
 * one. Re-entrant; no allocation.
 */
#include "record_writer.h"

#include <assert.h>

/* The parts, and raw tokens of every matrix. */
enum { VARIABLE_SEGMENTS_MAX = KVT_PARTS_MAX + KVT_SPAN_MAX };

/* The outcome of one span, or of one piece of an opaque entry. */
typedef struct record_slot {
    uint32_t layer; /* of the first matrix, or piece */
    kvt_side side;
    uint32_t matrices;
    kvt_status status; /* KVT_OK; KVT_RAW: it is stored raw */
    uint32_t part_count;
    kvt_part parts[KVT_PARTS_MAX];
    uint32_t segment_count;
    uint32_t first; /* of its segments in the table */
    record_segment segments[VARIABLE_SEGMENTS_MAX];
} record_slot;

/* A span and its segments in the walk. */
typedef struct record_variable {
    record_writer *writer;
    record_walk walk;
    uint32_t base; /* first span of the wave */
} record_variable;

static uint64_t variable_slot_bytes(void)
{
    return codecs_align(sizeof(record_slot), RECORD_SEGMENT_ALIGN);
}

record_lanes record_lanes_of(const record_plan *plan, bool workers)
{
    const bool fixed = (plan->codec->flags & KVT_CODEC_FLAG_FIXED) != 0;
    const uint64_t codec = record_codec_scratch(plan);
    record_lanes lanes = {.slot = codec, .bytes = record_scratch_bytes(plan)};
    if (plan->parts && !fixed) lanes.slot = codecs_align(codec, RECORD_SEGMENT_ALIGN);
    if (!workers) return lanes;
    if (plan->extension.index_count != 0) {
        lanes.codec = codecs_align(plan->segment_bytes, RECORD_SEGMENT_ALIGN);
    }
    /* A fixed codec needs no slot, but the raw record that it may have to fall back to does. */
    lanes.slot = lanes.codec + codecs_align(codec, RECORD_SEGMENT_ALIGN);
    lanes.bytes = lanes.slot + variable_slot_bytes();
    if (fixed || plan->codec->id == KVT_CODEC_RAW) return lanes;
    const uint64_t room = plan->parts ? record_parts_room(plan) : plan->segment_bytes;
    lanes.bytes += codecs_align(room, RECORD_SEGMENT_ALIGN);
    return lanes;
}

static uint32_t variable_count(const record_plan *plan)
{
    const bool opaque = plan->layout.dtype == KVT_DTYPE_OPAQUE;
    return opaque ? plan->segment_count : record_spans(plan);
}

static void variable_name(const record_plan *plan, uint32_t index, record_slot *slot)
{
    const bool opaque = plan->layout.dtype == KVT_DTYPE_OPAQUE;
    memset(slot, 0, sizeof *slot);
    slot->matrices = opaque ? 1 : record_span_matrices(plan, index);
    if (opaque)
        slot->layer = index;
    else
        record_matrix_name(plan, index * plan->together, &slot->layer, &slot->side);
    slot->status = KVT_RAW;
}

/* A matrix of a slot's span. */
static void variable_matrix(const record_plan *plan, const record_slot *slot, uint32_t index,
                            uint32_t *layer_out, kvt_side *side_out)
{
    const uint32_t first = record_span_of(plan, slot->layer, slot->side) * plan->together;
    record_matrix_name(plan, first + index, layer_out, side_out);
}

/* The rows of a slot's first matrix; of a span, of every one. */
typedef struct variable_rows {
    const uint8_t *of[KVT_SPAN_MAX];
} variable_rows;

static void variable_find_rows(const record_writer *writer, const record_slot *slot,
                               variable_rows *rows)
{
    const record_plan *plan = writer->plan;
    record_rows own = writer->rows;
    rows->of[0] = record_rows_of(&own, plan, slot->layer, slot->side);
    for (uint32_t i = 1; i < slot->matrices; i++) {
        uint32_t layer;
        kvt_side side;
        /* Each has room of its own, where the view has them apart. */
        if (own.gathered != NULL)
            own.gathered += codecs_align(plan->segment_bytes, RECORD_SEGMENT_ALIGN);
        variable_matrix(plan, slot, i, &layer, &side);
        rows->of[i] = record_rows_of(&own, plan, layer, side);
    }
}

static uint64_t variable_raw_bytes(const record_plan *plan, const record_slot *slot)
{
    if (plan->layout.dtype != KVT_DTYPE_OPAQUE) return plan->segment_bytes;
    const uint64_t left = plan->source_bytes - slot->layer * plan->segment_bytes;
    return left < plan->segment_bytes ? left : plan->segment_bytes;
}

/* Lists the parts of a matrix; returns the room that they need. */
static uint64_t variable_list(const record_writer *writer, record_slot *slot, kvt_matrix *matrix)
{
    uint64_t room = 0;
    record_matrix_parts(writer->plan, slot->layer, slot->side, matrix, slot->parts,
                        &slot->part_count);
    matrix->extras = writer->extras;
    for (uint32_t i = 0; i < slot->part_count; i++) {
        room += codecs_align(slot->parts[i].bytes, RECORD_SEGMENT_ALIGN);
    }
    return room;
}

/* Encodes a span into its parts, which lie in `room` one after the other. */
static void variable_encode_parts(const record_writer *writer, record_slot *slot,
                                  const kvt_matrix *matrix, const variable_rows *rows,
                                  uint8_t *room)
{
    const record_plan *plan = writer->plan;
    const void *sources[KVT_SPAN_MAX];
    uint64_t total = 0;
    for (uint32_t i = 0; i < slot->part_count; i++) {
        slot->parts[i].data = room;
        room += codecs_align(slot->parts[i].bytes, RECORD_SEGMENT_ALIGN);
    }
    assert(matrix->span == slot->matrices);
    for (uint32_t i = 0; i < slot->matrices; i++)
        sources[i] = record_coded_rows(writer, rows->of[i]);
    slot->status =
        record_code_encode(plan, matrix, sources, slot->parts, record_lane_scratch(writer),
                           record_lane_scratch_bytes(writer));
    for (uint32_t i = 0; slot->status == KVT_OK && i < slot->part_count; i++) {
        total += slot->parts[i].bytes;
    }
    const uint64_t raw_bytes = slot->matrices * matrix->tokens * record_row_bytes(plan);
    if (slot->status == KVT_OK && total >= raw_bytes) slot->status = KVT_RAW;
}

/* Encodes a matrix by a codec without parts into one segment. */
static void variable_encode_segment(const record_writer *writer, record_slot *slot,
                                    const uint8_t *rows, uint8_t *room, uint64_t room_bytes)
{
    const record_plan *plan = writer->plan;
    const uint64_t raw_bytes = variable_raw_bytes(plan, slot);
    kvt_part *part = &slot->parts[0];
    if (plan->codec->id == KVT_CODEC_RAW) return;
    slot->part_count = 1;
    part->data = room;
    slot->status = plan->codec->encode_segment(plan->variant, &plan->stored, rows, raw_bytes, room,
                                               room_bytes, record_lane_scratch(writer),
                                               record_lane_scratch_bytes(writer), &part->bytes);
    assert(slot->status != KVT_OK ||
           (part->bytes > 0 && part->bytes <= room_bytes && part->bytes < raw_bytes));
}

/* Gives the next segment of the matrix its place. */
static kvt_status variable_place_segment(record_variable *variable_size, record_slot *slot,
                                         const record_want *want)
{
    record_writer *writer = variable_size->writer;
    record_segment *segment = &slot->segments[slot->segment_count];
    *segment = want->segment;
    segment->offset = writer->place.offset;
    segment->padded_bytes = record_place_next(&writer->place, want, segment->stored_bytes);
    if (writer->place.offset > writer->capacity) return KVT_E_SPACE;
    if (slot->segment_count++ == 0) slot->first = variable_size->walk.index - 1;
    writer->payload_bytes += segment->stored_bytes;
    return KVT_OK;
}

/* Gives a span its places. The walk stands before it. */
static kvt_status variable_place(record_variable *variable_size, record_slot *slot)
{
    record_writer *writer = variable_size->writer;
    record_plan *plan = writer->plan;
    const bool raw = slot->status == KVT_RAW;
    uint32_t part = 0;
    if (!raw && slot->status != KVT_OK) return slot->status;
    for (uint32_t i = 0; raw && plan->parts && i < slot->matrices; i++) {
        uint32_t layer;
        kvt_side side;
        variable_matrix(plan, slot, i, &layer, &side);
        record_matrix_set_raw(plan, layer, side);
    }
    if (!raw) writer->coded_matrices += slot->matrices;
    /* Raw tokens of each matrix lie between the parts of the first one and those of the next span:
     * the walk says which segment comes. */
    const uint64_t tokens =
        (uint64_t)plan->extension.head_tokens + plan->extension.tail_tokens[slot->side];
    const uint32_t with_tokens = plan->parts && tokens != 0 ? slot->matrices : 0;
    const uint32_t count = raw ? slot->matrices : slot->part_count + with_tokens;
    for (uint32_t i = 0; i < count; i++) {
        record_want want;
        record_walk_next(&variable_size->walk, &want);
        if (raw) {
            want.segment.kind = KVT_PART_RAW;
            want.segment.stored_bytes = want.segment.raw_bytes;
        } else if (want.segment.kind != KVT_PART_RAW_TOKENS) {
            assert(part < slot->part_count);
            want.segment.stored_bytes = slot->parts[part++].bytes;
            if (plan->parts) want.segment.raw_bytes = want.segment.stored_bytes;
            if (!plan->parts) want.segment.kind = KVT_PART_CODED;
        }
        kvt_status status = variable_place_segment(variable_size, slot, &want);
        if (status != KVT_OK) return status;
    }
    return KVT_OK;
}

/* Whether the rows of a raw record are apart, and are gathered into it. */
static bool variable_is_apart(const record_writer *writer)
{
    const record_plan *plan = writer->plan;
    return plan->codec->id == KVT_CODEC_RAW && writer->rows.kept == NULL &&
           view_is_apart(writer->rows.view, &plan->layout);
}

/* Brings a matrix as it is to its place. rows NULL: they are looked up. */
static void variable_fill_raw(const record_writer *writer, const record_slot *slot, uint32_t at,
                              record_segment *segment, const uint8_t *rows)
{
    const record_plan *plan = writer->plan;
    const bool opaque = plan->layout.dtype == KVT_DTYPE_OPAQUE;
    const kvt_side side = opaque ? slot->side : (kvt_side)segment->side;
    if (rows == NULL && variable_is_apart(writer)) {
        record_rows_copy(&writer->rows, plan, segment->layer, side,
                         writer->record + segment->offset);
        record_close_segment(writer, at, segment);
        return;
    }
    if (rows == NULL) rows = record_rows_of(&writer->rows, plan, segment->layer, side);
    record_copy_segment(writer, at, segment, rows);
}

/* Brings a span to its places. rows: of the first matrix, where it is the only one; NULL: they are
 * looked up when they are needed. */
static void variable_fill(const record_writer *writer, record_slot *slot, const uint8_t *rows)
{
    uint32_t part = 0;
    for (uint32_t i = 0; i < slot->segment_count; i++) {
        record_segment *segment = &slot->segments[i];
        uint8_t *stored = writer->record + segment->offset;
        if (segment->kind == KVT_PART_RAW) {
            variable_fill_raw(writer, slot, slot->first + i, segment, rows);
            continue;
        }
        if (segment->kind == KVT_PART_RAW_TOKENS) {
            const kvt_side side = (kvt_side)segment->side;
            if (rows != NULL)
                record_copy_raw_tokens(writer, side, rows, stored);
            else
                record_rows_ends(&writer->rows, writer->plan, segment->layer, side, stored);
            record_close_segment(writer, slot->first + i, segment);
            continue;
        }
        const uint8_t *content = slot->parts[part++].data;
        if (content == stored)
            record_close_segment(writer, slot->first + i, segment);
        else
            record_copy_segment(writer, slot->first + i, segment, content);
    }
}

/* Alone: encodes a span where it belongs if that can be known, and places it. */
static kvt_status variable_write_one(record_variable *variable_size, uint32_t index)
{
    record_writer *writer = variable_size->writer;
    const record_plan *plan = writer->plan;
    const uint64_t left = writer->capacity - writer->place.offset;
    uint8_t *here = writer->record + writer->place.offset;
    variable_rows rows = {{NULL}};
    record_slot slot;
    kvt_matrix matrix;
    variable_name(plan, index, &slot);
    if (!variable_is_apart(writer)) variable_find_rows(writer, &slot, &rows);
    if (!plan->parts) {
        variable_encode_segment(writer, &slot, rows.of[0], here, left);
    } else if (!record_matrix_is_raw(plan, slot.layer, slot.side)) {
        const uint64_t need = variable_list(writer, &slot, &matrix);
        const bool first = slot.part_count == 1 && matrix.tokens == plan->stored.tokens;
        uint8_t *room = first && need <= left ? here : writer->lane + writer->lanes.slot;
        variable_encode_parts(writer, &slot, &matrix, &rows, room);
    }
    kvt_status status = variable_place(variable_size, &slot);
    if (status == KVT_OK) variable_fill(writer, &slot, slot.matrices == 1 ? rows.of[0] : NULL);
    return status;
}

/* The slot of a wave's span, and the room behind it. */
static record_slot *variable_slot(const record_writer *writer, uint32_t index, uint8_t **room_out)
{
    uint8_t *slot = writer->lane + index * writer->lanes.bytes + writer->lanes.slot;
    *room_out = slot + variable_slot_bytes();
    return (record_slot *)(void *)slot;
}

static kvt_status variable_encode_task(void *argument, uint32_t index, uint32_t worker)
{
    const record_variable *variable_size = argument;
    const record_writer own = record_writer_of(variable_size->writer, worker);
    const record_plan *plan = own.plan;
    uint8_t *room;
    record_slot *slot = variable_slot(variable_size->writer, index, &room);
    kvt_matrix matrix;
    variable_name(plan, variable_size->base + index, slot);
    if (plan->parts && record_matrix_is_raw(plan, slot->layer, slot->side)) return KVT_OK;
    if (plan->codec->id == KVT_CODEC_RAW) return KVT_OK;
    variable_rows rows;
    variable_find_rows(&own, slot, &rows);
    if (plan->parts) {
        variable_list(&own, slot, &matrix);
        variable_encode_parts(&own, slot, &matrix, &rows, room);
    } else {
        variable_encode_segment(&own, slot, rows.of[0], room, plan->segment_bytes);
    }
    return slot->status == KVT_RAW ? KVT_OK : slot->status;
}

static kvt_status variable_fill_task(void *argument, uint32_t index, uint32_t worker)
{
    const record_variable *variable_size = argument;
    const record_writer own = record_writer_of(variable_size->writer, worker);
    uint8_t *room;
    variable_fill(&own, variable_slot(variable_size->writer, index, &room), NULL);
    return KVT_OK;
}

static kvt_status variable_write_wave(record_variable *variable_size, uint32_t count)
{
    const record_writer *writer = variable_size->writer;
    const bool raw = writer->plan->codec->id == KVT_CODEC_RAW;
    /* Nothing is encoded for a raw record: naming its matrices is not worth a call of run. */
    kvt_status status =
        record_run(raw ? NULL : writer->workers, count, variable_encode_task, variable_size);
    for (uint32_t i = 0; status == KVT_OK && i < count; i++) {
        uint8_t *room;
        status = variable_place(variable_size, variable_slot(writer, i, &room));
    }
    if (status != KVT_OK) return status;
    return record_run(writer->workers, count, variable_fill_task, variable_size);
}

/* The record does not fit. KVT_RAW when that is because of a table that it has no use for, as no
 * matrix can be coded; else KVT_E_SPACE. */
static kvt_status variable_space(const record_writer *writer)
{
    const record_plan *plan = writer->plan;
    const record_writer own = record_writer_of(writer, 0);
    uint8_t *room = own.lane + own.lanes.slot;
    if (!plan->parts) return KVT_E_SPACE;
    if (writer->workers != NULL) room += variable_slot_bytes();
    for (uint32_t i = 0; i < variable_count(plan); i++) {
        record_slot slot;
        kvt_matrix matrix;
        variable_name(plan, i, &slot);
        if (record_matrix_is_raw(plan, slot.layer, slot.side)) continue;
        variable_rows rows;
        variable_find_rows(&own, &slot, &rows);
        variable_list(&own, &slot, &matrix);
        variable_encode_parts(&own, &slot, &matrix, &rows, room);
        if (slot.status != KVT_RAW) return slot.status == KVT_OK ? KVT_E_SPACE : slot.status;
    }
    return KVT_RAW;
}

kvt_status record_write_variable(record_writer *writer)
{
    const record_plan *plan = writer->plan;
    const uint32_t count = variable_count(plan);
    record_variable variable_size = {.writer = writer};
    kvt_status status = KVT_OK;
    writer->place = (record_place){plan->payload_offset, plan->payload_offset};
    if (writer->capacity < plan->payload_offset) return variable_space(writer);
    memset(writer->head, 0, plan->payload_offset);
    record_walk_start(&variable_size.walk, plan);
    for (uint32_t i = 0; status == KVT_OK && i < plan->extension.index_count; i++) {
        record_slot index = {.layer = i, .status = KVT_OK};
        record_want want;
        record_walk_next(&variable_size.walk, &want);
        status = variable_place_segment(&variable_size, &index, &want);
        if (status != KVT_OK) break;
        record_copy_segment(writer, i, &index.segments[0],
                            record_rows_index(&writer->rows, plan, i));
    }
    while (status == KVT_OK && variable_size.base < count) {
        const uint32_t most = writer->workers != NULL ? writer->workers->count : 1;
        const uint32_t wave = count - variable_size.base < most ? count - variable_size.base : most;
        status = writer->workers != NULL ? variable_write_wave(&variable_size, wave)
                                         : variable_write_one(&variable_size, variable_size.base);
        variable_size.base += wave;
    }
    record_plan_count(writer->plan);
    return status == KVT_E_SPACE ? variable_space(writer) : status;
}
