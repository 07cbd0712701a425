/*
 * record_encode.c - one entry becomes one record: segments first, then the table, then slot A.
 * Re-entrant; no allocation.
 */
#include "record_format.h"

#include <assert.h>

static kvt_status record_spec_check(const kvt_record_spec *spec, record_shape *shape_out,
                                    const kvt_codec **codec_out)
{
    kvt_status status = record_shape_of(&spec->layout, shape_out);
    if (status != KVT_OK) return status;
    if (spec->generation == 0 || spec->reserved != 0) return KVT_E_ARGUMENT;
    *codec_out = kvt_codec_find(spec->variant.codec);
    if (*codec_out == NULL) return KVT_E_UNSUPPORTED;
    if (((*codec_out)->flags & KVT_CODEC_FLAG_NEEDS_SHAPE) &&
        spec->layout.dtype == KVT_DTYPE_OPAQUE) {
        return KVT_E_UNSUPPORTED;
    }
    return (*codec_out)->check(spec->variant, &spec->layout);
}

kvt_status kvt_record_bound(const kvt_record_spec *spec, uint64_t *record_bytes_out,
                            uint64_t *scratch_bytes_out)
{
    record_shape shape;
    const kvt_codec *codec;
    assert(spec != NULL && record_bytes_out != NULL && scratch_bytes_out != NULL);
    *record_bytes_out = 0;
    *scratch_bytes_out = 0;
    kvt_status status = record_spec_check(spec, &shape, &codec);
    if (status != KVT_OK) return status;

    /* A segment is stored raw rather than larger. Beside the 64-byte padding of each, every run
     * of RECORD_RUN_BYTES and the last one may pad up to one KVT_RECORD_ALIGN. */
    uint64_t payload = shape.source_bytes + shape.segment_count * (RECORD_SEGMENT_ALIGN - 1);
    payload += (payload / RECORD_RUN_BYTES + 1) * (KVT_RECORD_ALIGN - 1);
    *record_bytes_out = shape.payload_offset + codecs_align(payload, KVT_RECORD_ALIGN);
    *scratch_bytes_out = codec->segment_scratch(spec->variant, &spec->layout, shape.segment_bytes);
    return KVT_OK;
}

/* The one way into a codec's encoder: checks what every codec promises. */
static kvt_status record_encode_with(const kvt_codec *codec, const kvt_record_spec *spec,
                                     const void *source, uint64_t source_bytes, void *target,
                                     uint64_t capacity, void *scratch, uint64_t scratch_bytes,
                                     uint64_t *written_out)
{
    kvt_status status =
        codec->encode_segment(spec->variant, &spec->layout, source, source_bytes, target, capacity,
                              scratch, scratch_bytes, written_out);
    assert(status != KVT_OK || (*written_out > 0 && *written_out <= capacity));
    assert(status != KVT_OK || codec->id == KVT_CODEC_RAW || *written_out < source_bytes);
    return status;
}

/* Writes what an encoder needs while it walks the segments. */
typedef struct record_writer {
    const kvt_record_spec *spec;
    const record_shape *shape;
    const kvt_codec *codec;
    uint8_t *record;
    uint64_t capacity;
    void *scratch;
    uint64_t scratch_bytes;
    record_place place;
    uint64_t payload_bytes;
    uint32_t coded_segments;
} record_writer;

static kvt_status record_write_segment(record_writer *writer, uint32_t index, const uint8_t *source)
{
    const kvt_record_spec *spec = writer->spec;
    record_segment segment = record_segment_expected(&spec->layout, writer->shape, index);
    const uint64_t room = writer->capacity - writer->place.offset;
    uint8_t *target = writer->record + writer->place.offset;
    uint64_t stored = 0;
    kvt_status status = KVT_RAW;

    if (writer->codec->id != KVT_CODEC_RAW) {
        status = record_encode_with(writer->codec, spec, source, segment.raw_bytes, target, room,
                                    writer->scratch, writer->scratch_bytes, &stored);
    }
    segment.kind = RECORD_KIND_CODED;
    if (status == KVT_RAW) {
        if (room < segment.raw_bytes) return KVT_E_SPACE;
        memcpy(target, source, segment.raw_bytes);
        stored = segment.raw_bytes;
        segment.kind = RECORD_KIND_RAW;
    } else if (status != KVT_OK) {
        return status;
    }
    segment.offset = writer->place.offset;
    segment.stored_bytes = stored;
    segment.padded_bytes =
        record_place_next(&writer->place, &spec->layout, writer->shape, index, stored);
    if (writer->place.offset > writer->capacity) return KVT_E_SPACE;
    memset(target + stored, 0, segment.padded_bytes - stored);
    segment.checksum = record_checksum(target, segment.padded_bytes);
    memcpy(writer->record + RECORD_TABLE_OFFSET + (uint64_t)index * sizeof segment, &segment,
           sizeof segment);
    writer->payload_bytes += stored;
    if (segment.kind == RECORD_KIND_CODED) writer->coded_segments++;
    return KVT_OK;
}

static void record_write_slot(const record_writer *writer)
{
    const kvt_record_spec *spec = writer->spec;
    const kvt_layout *layout = &spec->layout;
    uint8_t *slot = writer->record;
    record_header header = {
        .magic = {0},
        .major = RECORD_MAJOR,
        .minor = RECORD_MINOR,
        .header_bytes = sizeof header,
        .sequence = 1,
        .generation = spec->generation,
        .layers = layout->layers,
        .kv_heads = layout->kv_heads,
        .head_dim = layout->head_dim,
        .dtype = layout->dtype,
        .order = layout->order,
        .logical_tokens = layout->tokens,
        .tokens_may_drop = layout->tokens_may_drop,
        .opaque_bytes = layout->opaque_bytes,
        .codec = KVT_CODEC_RAW,
        .first_position = spec->first_position,
        .stored_tokens = layout->tokens,
        .segment_count = writer->shape->segment_count,
        .plane_count = 1,
        .table_offset = RECORD_TABLE_OFFSET,
        .table_bytes = writer->shape->table_bytes,
        .payload_offset = writer->shape->payload_offset,
        .payload_bytes = writer->payload_bytes,
        .record_bytes = writer->place.offset,
        .source_bytes = writer->shape->source_bytes,
    };
    if (writer->coded_segments != 0) {
        header.codec = spec->variant.codec;
        header.mode = spec->variant.mode;
        header.rate = spec->variant.rate;
    }
    memcpy(header.magic, RECORD_MAGIC, sizeof header.magic);
    memcpy(header.key, spec->key.bytes, sizeof header.key);
    header.table_checksum = record_checksum(slot + RECORD_TABLE_OFFSET, header.table_bytes);
    memcpy(slot, &header, sizeof header);
    uint64_t checksum = record_checksum(slot, RECORD_CHECKSUM_AT);
    memcpy(slot + RECORD_CHECKSUM_AT, &checksum, sizeof checksum);
}

/* Where segment index lies in the caller's buffer. */
static const uint8_t *record_source_at(const kvt_layout *layout, const record_shape *shape,
                                       const void *source, uint32_t index)
{
    uint64_t offset = layout->dtype == KVT_DTYPE_OPAQUE
                          ? index * shape->segment_bytes
                          : kvt_layout_matrix_offset(layout, index / 2, (kvt_side)(index % 2));
    return (const uint8_t *)source + offset;
}

kvt_status kvt_record_encode(const kvt_record_spec *spec, const void *source, uint64_t source_bytes,
                             void *record, uint64_t capacity, void *scratch, uint64_t scratch_bytes,
                             uint64_t *record_bytes_out)
{
    record_shape shape;
    const kvt_codec *codec;
    assert(spec != NULL && source != NULL && record != NULL && record_bytes_out != NULL);
    assert((uintptr_t)record % 64 == 0 && (uintptr_t)scratch % 64 == 0);
    *record_bytes_out = 0;
    kvt_status status = record_spec_check(spec, &shape, &codec);
    if (status != KVT_OK) return status;
    if (source_bytes != shape.source_bytes) return KVT_E_ARGUMENT;
    if (scratch_bytes < codec->segment_scratch(spec->variant, &spec->layout, shape.segment_bytes)) {
        return KVT_E_ARGUMENT;
    }
    if (capacity < shape.payload_offset) return KVT_E_SPACE;

    record_writer writer = {
        .spec = spec,
        .shape = &shape,
        .codec = codec,
        .record = record,
        .capacity = capacity,
        .scratch = scratch,
        .scratch_bytes = scratch_bytes,
        .place = {shape.payload_offset, shape.payload_offset},
    };
    memset(record, 0, shape.payload_offset);
    for (uint32_t i = 0; i < shape.segment_count; i++) {
        status =
            record_write_segment(&writer, i, record_source_at(&spec->layout, &shape, source, i));
        if (status != KVT_OK) return status;
    }
    record_write_slot(&writer);
    *record_bytes_out = writer.place.offset;
    return codec->id != KVT_CODEC_RAW && writer.coded_segments == 0 ? KVT_RAW : KVT_OK;
}
