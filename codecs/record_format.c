/*
 * record_format.c - the arithmetic that encoder and parser share: which segments a layout has and
 * where they lie. Re-entrant.
 */
#include "record_format.h"

#include <xxhash.h>

kvt_status record_shape_of(const kvt_layout *layout, record_shape *shape_out)
{
    uint64_t count;
    memset(shape_out, 0, sizeof *shape_out);
    kvt_status status = kvt_layout_bytes(layout, &shape_out->source_bytes);
    if (status != KVT_OK) return status;
    if (layout->dtype == KVT_DTYPE_OPAQUE) {
        shape_out->segment_bytes = shape_out->source_bytes < RECORD_OPAQUE_BYTES
                                       ? shape_out->source_bytes
                                       : RECORD_OPAQUE_BYTES;
        count = (shape_out->source_bytes + RECORD_OPAQUE_BYTES - 1) / RECORD_OPAQUE_BYTES;
    } else {
        shape_out->segment_bytes = kvt_layout_matrix_bytes(layout);
        count = 2u * (uint64_t)layout->layers;
    }
    shape_out->segment_count = (uint32_t)count;
    shape_out->table_bytes = codecs_align(count * sizeof(record_segment), KVT_RECORD_ALIGN);
    shape_out->payload_offset = RECORD_TABLE_OFFSET + shape_out->table_bytes;
    return KVT_OK;
}

record_segment record_segment_expected(const kvt_layout *layout, const record_shape *shape,
                                       uint32_t index)
{
    record_segment segment;
    memset(&segment, 0, sizeof segment);
    if (layout->dtype == KVT_DTYPE_OPAQUE) {
        uint64_t left = shape->source_bytes - index * shape->segment_bytes;
        segment.layer = index;
        segment.raw_bytes = left < shape->segment_bytes ? left : shape->segment_bytes;
    } else {
        segment.layer = index / 2;
        segment.side = (uint8_t)(index % 2);
        segment.raw_bytes = shape->segment_bytes;
    }
    return segment;
}

uint64_t record_place_next(record_place *place, const kvt_layout *layout, const record_shape *shape,
                           uint32_t index, uint64_t stored_bytes)
{
    const uint64_t start = place->offset;
    const bool ends_layer = layout->dtype == KVT_DTYPE_OPAQUE || index % 2 == KVT_SIDE_V;
    uint64_t end = codecs_align(start + stored_bytes, RECORD_SEGMENT_ALIGN);
    if (index + 1 == shape->segment_count ||
        (ends_layer && end - place->run_start >= RECORD_RUN_BYTES)) {
        end = codecs_align(end, KVT_RECORD_ALIGN);
        place->run_start = end;
    }
    place->offset = end;
    return end - start;
}

record_segment record_segment_at(const void *record, uint32_t index)
{
    record_segment segment;
    const uint8_t *table = (const uint8_t *)record + RECORD_TABLE_OFFSET;
    memcpy(&segment, table + (uint64_t)index * sizeof segment, sizeof segment);
    return segment;
}

uint64_t record_checksum(const void *bytes, uint64_t count)
{
    return XXH3_64bits(bytes, count);
}
