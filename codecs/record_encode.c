/* SPDX-License-Identifier: Apache-2.0 */
/*
 * record_encode.c - one entry becomes one record: segments first, then the table, then slot A.
 *
 * Codecs whose parts have fixed sizes are placed first and written where they belong; when a matrix
 * turns out not to be codable, all matrices are asked, and the record is placed again. The others
 * are in record_variable.c. Re-entrant; no allocation.
 */
#include "record_writer.h"

#include <assert.h>

/* A segment of so many bytes or more is copied into the record past the caches. */
#define RECORD_STREAM_BYTES UINT64_C(16384)

/* A head with so many bytes is made apart and written past the caches as its segments are. */
#define RECORD_HEAD_BYTES (RECORD_TABLE_OFFSET + RECORD_SLOT_BYTES)

/* Bytes of the extras of the first version. */
#define RECORD_EXTRAS_FIRST (offsetof(kvt_codec_extras, score_layers) + 2 * sizeof(uint32_t))

record_writer record_writer_of(const record_writer *writer, uint32_t worker)
{
    record_writer own = *writer;
    if (worker != 0) own.lane += worker * writer->lanes.bytes;
    if (writer->gather != NULL)
        own.rows.gathered = writer->gather + worker * writer->gather_bytes;
    else if (writer->workers != NULL && own.rows.gathered != NULL)
        own.rows.gathered = own.lane;
    return own;
}

const uint8_t *record_coded_rows(const record_writer *writer, const uint8_t *rows)
{
    return rows + writer->plan->extension.head_tokens * record_row_bytes(writer->plan);
}

/* Writes one place of the table, where the segment now lies. */
static void record_put_segment(const record_writer *writer, uint32_t index,
                               const record_segment *segment)
{
    memcpy(writer->head + RECORD_TABLE_OFFSET + (uint64_t)index * sizeof *segment, segment,
           sizeof *segment);
}

void record_close_segment(const record_writer *writer, uint32_t index, record_segment *segment)
{
    uint8_t *stored = writer->record + segment->offset;
    memset(stored + segment->stored_bytes, 0, segment->padded_bytes - segment->stored_bytes);
    segment->checksum = checksum_of(stored, segment->padded_bytes);
    record_put_segment(writer, index, segment);
}

void record_copy_segment(const record_writer *writer, uint32_t index, record_segment *segment,
                         const uint8_t *content)
{
    const uint64_t padding = segment->padded_bytes - segment->stored_bytes;
    uint8_t *stored = writer->record + segment->offset;
    uint8_t *after = stored + segment->stored_bytes;
    memset(after, 0, padding);
    /* The record is read when somebody gets the entry, and not soon. */
    const bool stream = segment->stored_bytes >= RECORD_STREAM_BYTES;
    segment->checksum =
        checksum_copy(stored, content, segment->stored_bytes, after, padding, stream, NULL);
    record_put_segment(writer, index, segment);
}

void record_copy_raw_tokens(const record_writer *writer, kvt_side side, const uint8_t *rows,
                            uint8_t *target)
{
    const record_plan *plan = writer->plan;
    const uint64_t row = record_row_bytes(plan);
    const uint64_t head = plan->extension.head_tokens * row;
    const uint64_t tail = plan->extension.tail_tokens[side] * row;
    memcpy(target, rows, head);
    memcpy(target + head, rows + plan->segment_bytes - tail, tail);
}

kvt_status record_place_fixed(record_writer *writer)
{
    record_walk walk;
    record_want want;
    const record_plan *plan = writer->plan;
    writer->place = (record_place){plan->payload_offset, plan->payload_offset};
    writer->payload_bytes = 0;
    if (writer->capacity < plan->payload_offset) return KVT_E_SPACE;
    memset(writer->head, 0, plan->payload_offset);
    record_sections_start(&writer->sections);
    record_walk_start(&walk, plan);
    while (record_walk_next(&walk, &want)) {
        record_segment segment = want.segment;
        record_sections_add(&writer->sections, &want);
        segment.offset = writer->place.offset;
        segment.padded_bytes = record_place_next(&writer->place, &want, segment.stored_bytes);
        record_put_segment(writer, walk.index - 1, &segment);
        writer->payload_bytes += segment.stored_bytes;
    }
    assert(walk.index == plan->segment_count);
    return writer->place.offset <= writer->capacity ? KVT_OK : KVT_E_SPACE;
}

/* Encodes a matrix into its places. KVT_RAW when it cannot be coded. */
static kvt_status record_encode_fixed_matrix(void *argument, uint32_t index, uint32_t worker)
{
    const record_writer own = record_writer_of(argument, worker);
    const record_writer *writer = &own;
    const record_plan *plan = writer->plan;
    uint32_t layer;
    kvt_side side;
    record_matrix found;
    kvt_matrix matrix;
    kvt_part parts[KVT_PARTS_MAX];
    uint32_t count;
    const uint8_t *table = writer->head + RECORD_TABLE_OFFSET;
    record_matrix_name(plan, index, &layer, &side);
    const uint8_t *rows = record_rows_of(&writer->rows, plan, layer, side);
    record_matrix_collect(table, &writer->sections, layer, side, &found);
    if (found.raw.kind != 0) {
        record_copy_segment(writer, found.raw_at, &found.raw, rows);
        return KVT_OK;
    }
    record_matrix_parts(plan, layer, side, &matrix, parts, &count);
    assert(count == found.part_count);
    matrix.extras = writer->extras;
    for (uint32_t i = 0; i < count; i++) {
        parts[i].data = writer->record + found.parts[i].offset;
    }
    const void *coded = record_coded_rows(writer, rows);
    kvt_status status =
        record_code_encode(plan, &matrix, &coded, parts, record_lane_scratch(writer),
                           record_lane_scratch_bytes(writer));
    if (status != KVT_OK) return status;
    for (uint32_t i = 0; i < count; i++) {
        record_close_segment(writer, found.parts_at[i], &found.parts[i]);
    }
    if (found.raw_tokens.kind != 0) {
        record_copy_raw_tokens(writer, side, rows, writer->record + found.raw_tokens.offset);
        record_close_segment(writer, found.raw_tokens_at, &found.raw_tokens);
    }
    return KVT_OK;
}

/* Asks for each matrix of a layer whether it can be coded, and marks those that cannot. */
static kvt_status record_mark_layer(void *argument, uint32_t layer, uint32_t worker)
{
    const record_writer own = record_writer_of(argument, worker);
    record_plan *plan = own.plan;
    for (uint32_t side = 0; side < kvt_layout_sides(&plan->layout); side++) {
        kvt_matrix matrix;
        kvt_part parts[KVT_PARTS_MAX];
        uint32_t count;
        if (record_matrix_is_raw(plan, layer, (kvt_side)side)) continue;
        record_matrix_parts(plan, layer, (kvt_side)side, &matrix, parts, &count);
        matrix.extras = own.extras;
        const uint8_t *rows = record_rows_of(&own.rows, plan, layer, (kvt_side)side);
        const void *coded = record_coded_rows(&own, rows);
        kvt_status status =
            record_code_encode(plan, &matrix, &coded, NULL, record_lane_scratch(&own),
                               record_lane_scratch_bytes(&own));
        if (status == KVT_RAW) record_matrix_set_raw(plan, layer, (kvt_side)side);
        if (status != KVT_OK && status != KVT_RAW) return status;
    }
    return KVT_OK;
}

static kvt_status record_write_fixed_once(record_writer *writer)
{
    kvt_status status = record_place_fixed(writer);
    if (status != KVT_OK) return status;
    for (uint32_t i = 0; i < writer->plan->extension.index_count; i++) {
        record_segment segment = record_segment_at(writer->head, i);
        record_copy_segment(writer, i, &segment, record_rows_index(&writer->rows, writer->plan, i));
    }
    return record_run(writer->workers, record_matrices(writer->plan), record_encode_fixed_matrix,
                      writer);
}

static uint32_t record_count_coded(const record_plan *plan)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < record_matrices(plan); i++) {
        uint32_t layer;
        kvt_side side;
        record_matrix_name(plan, i, &layer, &side);
        count += !record_matrix_is_raw(plan, layer, side);
    }
    return count;
}

static kvt_status record_write_fixed(record_writer *writer)
{
    kvt_status status = record_write_fixed_once(writer);
    writer->coded_matrices = record_count_coded(writer->plan);
    if (status != KVT_RAW && status != KVT_E_SPACE) return status;
    /* Without the matrices that cannot be coded there may be fewer sections to pad. */
    status = record_run(writer->workers, writer->plan->layout.layers, record_mark_layer, writer);
    if (status != KVT_OK) return status;
    record_plan_count(writer->plan);
    writer->coded_matrices = record_count_coded(writer->plan);
    if (writer->coded_matrices == 0) return KVT_RAW;
    status = record_write_fixed_once(writer);
    assert(status != KVT_RAW);
    return status;
}

/* The arguments of a call. */
typedef struct record_call {
    const kvt_record_spec *spec;
    const kvt_codec_workers *workers;
    const kvt_view *view;
    uint64_t source_bytes;
    uint8_t *record;
    uint64_t capacity;
    uint8_t *scratch;
    uint64_t scratch_bytes;
} record_call;

/* Room for the matrices of a span that the view has apart. The raw codec gathers into the record.
 */
static uint64_t record_gather_bytes(const record_plan *plan, const kvt_view *view)
{
    if (plan->codec->id == KVT_CODEC_RAW || !view_is_apart(view, &plan->layout)) return 0;
    return plan->together * codecs_align(plan->segment_bytes, RECORD_SEGMENT_ALIGN);
}

/* Encodes with this variant. KVT_RAW when no matrix was coded; then the record is not finished. */
static kvt_status record_encode_variant(const record_call *call, const kvt_codec_extras *extras,
                                        kvt_variant variant, uint64_t *record_bytes_out)
{
    record_plan plan;
    kvt_status status = record_plan_spec(&plan, call->spec, extras, variant);
    if (status != KVT_OK) return status;
    if (call->source_bytes != plan.source_bytes) return KVT_E_ARGUMENT;
    if (plan.codec->flags & KVT_CODEC_FLAG_SPANS && plan.basis == NULL) return KVT_E_MISMATCH;
    const uint64_t rows_scratch = record_rows_scratch(&plan, call->spec, variant);
    const record_lanes lanes = record_lanes_of(&plan, call->workers != NULL);
    const uint64_t gather = record_gather_bytes(&plan, call->view);
    const uint32_t workers = record_worker_count(call->workers);
    const uint64_t before = rows_scratch + workers * gather;
    if (call->scratch_bytes < before + workers * lanes.bytes) return KVT_E_ARGUMENT;

    _Alignas(64) uint8_t head[RECORD_HEAD_BYTES];
    const bool apart =
        plan.payload_offset <= sizeof head && plan.source_bytes >= RECORD_STREAM_BYTES;
    record_writer writer = {
        .spec = call->spec,
        .extras = extras,
        .workers = call->workers,
        .plan = &plan,
        .record = call->record,
        .head = apart ? head : call->record,
        .capacity = call->capacity,
        .lanes = lanes,
        .lane = before != 0 ? call->scratch + before : call->scratch,
        .gather = gather != 0 ? call->scratch + rows_scratch : NULL,
        .gather_bytes = gather,
    };
    status = record_rows_open(&writer.rows, &plan, call->spec, extras, variant, call->view,
                              call->scratch);
    if (status != KVT_OK) return status;
    if (gather != 0) writer.rows.gathered = writer.gather;
    const bool fixed = (plan.codec->flags & KVT_CODEC_FLAG_FIXED) != 0;
    status = fixed ? record_write_fixed(&writer) : record_write_variable(&writer);
    if (status != KVT_OK) return status;
    if (plan.codec->id != KVT_CODEC_RAW && writer.coded_matrices == 0) return KVT_RAW;
    const record_header_values values = {
        .spec = call->spec,
        .variant = variant,
        .sequence = 1,
        .payload_bytes = writer.payload_bytes,
        .record_bytes = writer.place.offset,
        .table_offset = RECORD_TABLE_OFFSET,
    };
    record_write_slot(writer.head, 0, &plan, &values);
    if (apart) {
        view_rows target = view_rows_packed(call->record, plan.payload_offset);
        target.stream = true;
        view_rows_scatter(&target, 0, plan.payload_offset, head);
        view_rows_close(&target);
    }
    *record_bytes_out = writer.place.offset;
    return KVT_OK;
}

/* The extras of a caller that knows fewer or more fields. Fields that are unknown here must be
 * zero. */
static kvt_status record_read_extras(const kvt_codec_extras *extras, kvt_codec_extras *whole_out)
{
    *whole_out = (kvt_codec_extras){.struct_size = sizeof *whole_out};
    if (extras == NULL) return KVT_OK;
    const uint32_t size = extras->struct_size;
    assert(size >= RECORD_EXTRAS_FIRST);
    for (uint32_t i = sizeof *whole_out; i < size; i++) {
        if (((const uint8_t *)extras)[i] != 0) return KVT_E_UNSUPPORTED;
    }
    memcpy(whole_out, extras, size < sizeof *whole_out ? size : sizeof *whole_out);
    whole_out->struct_size = sizeof *whole_out;
    return KVT_OK;
}

/* Encodes as the call's spec says, or raw where nothing shrinks. */
static kvt_status record_encode_call(const record_call *call, const kvt_codec_extras *extras,
                                     uint64_t *record_bytes_out)
{
    const kvt_variant variant = call->spec->variant;
    kvt_status status = record_encode_variant(call, extras, variant, record_bytes_out);
    if (status != KVT_RAW) return status;
    /* No segment shrank: writes a record of the raw codec, after the same drop stage. */
    kvt_variant raw = {KVT_CODEC_RAW, (uint16_t)(variant.mode & 0xff00u), 0};
    const kvt_codec_extras rows = {
        .struct_size = sizeof rows,
        .scores = extras != NULL ? extras->scores : NULL,
        .score_layers = extras != NULL ? extras->score_layers : 0,
        .chain_tokens = extras != NULL ? extras->chain_tokens : 0,
    };
    status = record_encode_variant(call, &rows, raw, record_bytes_out);
    return status == KVT_OK ? KVT_RAW : status;
}

kvt_status kvt_record_encode_parallel(const kvt_record_spec *spec, const kvt_codec_extras *extras,
                                      const kvt_codec_workers *workers, const void *source,
                                      uint64_t source_bytes, void *record, uint64_t capacity,
                                      void *scratch, uint64_t scratch_bytes,
                                      uint64_t *record_bytes_out)
{
    kvt_codec_extras whole;
    assert(spec != NULL && source != NULL && record != NULL && record_bytes_out != NULL);
    assert((uintptr_t)record % 64 == 0 && (uintptr_t)scratch % 64 == 0);
    assert(workers == NULL || (workers->count > 0 && workers->run != NULL));
    *record_bytes_out = 0;
    kvt_status status = record_read_extras(extras, &whole);
    if (status != KVT_OK) return status;
    /* It is only read. */
    const kvt_view view = codecs_packed_view(&spec->layout, (void *)(uintptr_t)source);
    const record_call call = {spec,   workers,  &view,   source_bytes,
                              record, capacity, scratch, scratch_bytes};
    return record_encode_call(&call, extras != NULL ? &whole : NULL, record_bytes_out);
}

kvt_status kvt_record_scratch_view(const kvt_record_spec *spec, uint32_t workers,
                                   uint64_t *scratch_bytes_out)
{
    kvt_status status = kvt_record_scratch_parallel(spec, workers, scratch_bytes_out);
    if (status != KVT_OK || spec->variant.codec == KVT_CODEC_RAW) return status;
    const uint64_t matrix = kvt_layout_matrix_bytes(&spec->layout);
    const kvt_codec *codec = kvt_codec_find(spec->variant.codec);
    const uint64_t gathered = codec->flags & KVT_CODEC_FLAG_SPANS ? KVT_SPAN_MAX : 1;
    *scratch_bytes_out += workers * gathered * codecs_align(matrix, RECORD_SEGMENT_ALIGN);
    return KVT_OK;
}

kvt_status kvt_record_encode_view(const kvt_record_spec *spec, const kvt_codec_workers *workers,
                                  const kvt_view *view, void *record, uint64_t capacity,
                                  void *scratch, uint64_t scratch_bytes, uint64_t *record_bytes_out)
{
    uint64_t source_bytes;
    assert(spec != NULL && view != NULL && record != NULL && record_bytes_out != NULL);
    assert((uintptr_t)record % 64 == 0 && (uintptr_t)scratch % 64 == 0);
    assert(workers == NULL || (workers->count > 0 && workers->run != NULL));
    *record_bytes_out = 0;
    kvt_status status = kvt_layout_bytes(&spec->layout, &source_bytes);
    if (status != KVT_OK) return status;
    const record_call call = {spec,   workers,  view,    source_bytes,
                              record, capacity, scratch, scratch_bytes};
    return record_encode_call(&call, NULL, record_bytes_out);
}

kvt_status kvt_record_encode_with(const kvt_record_spec *spec, const kvt_codec_extras *extras,
                                  const void *source, uint64_t source_bytes, void *record,
                                  uint64_t capacity, void *scratch, uint64_t scratch_bytes,
                                  uint64_t *record_bytes_out)
{
    return kvt_record_encode_parallel(spec, extras, NULL, source, source_bytes, record, capacity,
                                      scratch, scratch_bytes, record_bytes_out);
}

kvt_status kvt_record_encode(const kvt_record_spec *spec, const void *source, uint64_t source_bytes,
                             void *record, uint64_t capacity, void *scratch, uint64_t scratch_bytes,
                             uint64_t *record_bytes_out)
{
    return kvt_record_encode_parallel(spec, NULL, NULL, source, source_bytes, record, capacity,
                                      scratch, scratch_bytes, record_bytes_out);
}
