/*
 * record_parse.c - is this a record, and what does it say? Trusts no byte: every field is checked
 * against the layout and the length before it is used. Re-entrant.
 */
#include "record_format.h"

#include <assert.h>

typedef enum record_slot_state {
    RECORD_SLOT_ZERO,
    RECORD_SLOT_BROKEN, /* bytes that are neither zero nor a slot with its checksum */
    RECORD_SLOT_SOUND
} record_slot_state;

static bool record_is_zero(const uint8_t *bytes, uint64_t count)
{
    /* Compares the range with itself moved by one byte: all bytes equal the first. */
    return count == 0 || (bytes[0] == 0 && memcmp(bytes, bytes + 1, count - 1) == 0);
}

static record_slot_state record_read_slot(const uint8_t *slot, record_header *header_out)
{
    uint64_t checksum;
    memset(header_out, 0, sizeof *header_out);
    if (record_is_zero(slot, RECORD_SLOT_BYTES)) return RECORD_SLOT_ZERO;
    if (memcmp(slot, RECORD_MAGIC, sizeof header_out->magic) != 0) return RECORD_SLOT_BROKEN;
    memcpy(&checksum, slot + RECORD_CHECKSUM_AT, sizeof checksum);
    if (checksum != record_checksum(slot, RECORD_CHECKSUM_AT)) return RECORD_SLOT_BROKEN;
    memcpy(header_out, slot, sizeof *header_out);
    return RECORD_SLOT_SOUND;
}

/* Chooses the slot that counts. slot_out points at its bytes. */
static kvt_status record_choose_slot(const uint8_t *record, bool strict, record_header *header_out,
                                     const uint8_t **slot_out)
{
    record_header headers[2];
    record_slot_state a = record_read_slot(record, &headers[0]);
    record_slot_state b = record_read_slot(record + RECORD_SLOT_BYTES, &headers[1]);
    unsigned chosen = 0;
    if (strict && (a == RECORD_SLOT_BROKEN || b == RECORD_SLOT_BROKEN)) return KVT_E_CORRUPT;
    if (a != RECORD_SLOT_SOUND && b != RECORD_SLOT_SOUND) return KVT_E_CORRUPT;
    if (a == RECORD_SLOT_SOUND && b == RECORD_SLOT_SOUND) {
        if (headers[0].sequence == headers[1].sequence) return KVT_E_CORRUPT;
        chosen = headers[1].sequence > headers[0].sequence;
    } else {
        chosen = b == RECORD_SLOT_SOUND;
    }
    *header_out = headers[chosen];
    *slot_out = record + chosen * RECORD_SLOT_BYTES;
    return KVT_OK;
}

/* Version, flags, and zeros where this version has no field. */
static kvt_status record_check_version(const record_header *header, const uint8_t *slot)
{
    if (header->major != RECORD_MAJOR || header->critical_flags != 0) return KVT_E_VERSION;
    if (header->sequence == 0) return KVT_E_CORRUPT;
    if (header->minor > RECORD_MINOR) {
        /* A later minor version only adds what a reader may ignore, after this version's fields. */
        bool room =
            header->header_bytes >= sizeof *header && header->header_bytes <= RECORD_CHECKSUM_AT;
        return room ? KVT_OK : KVT_E_CORRUPT;
    }
    if (header->header_bytes != sizeof *header || header->optional_flags != 0) return KVT_E_CORRUPT;
    bool zero = record_is_zero(slot + sizeof *header, RECORD_CHECKSUM_AT - sizeof *header);
    return zero ? KVT_OK : KVT_E_CORRUPT;
}

static kvt_status record_read_spec(const record_header *header, kvt_record_spec *spec)
{
    memset(spec, 0, sizeof *spec);
    memcpy(spec->key.bytes, header->key, sizeof spec->key.bytes);
    spec->generation = header->generation;
    spec->layout.layers = header->layers;
    spec->layout.kv_heads = header->kv_heads;
    spec->layout.head_dim = header->head_dim;
    spec->layout.dtype = header->dtype;
    spec->layout.order = header->order;
    spec->layout.tokens = header->logical_tokens;
    spec->layout.tokens_may_drop = header->tokens_may_drop;
    memcpy(spec->layout.reserved, header->reserved, sizeof header->reserved);
    spec->layout.opaque_bytes = header->opaque_bytes;
    spec->variant.codec = header->codec;
    spec->variant.mode = header->mode;
    spec->variant.rate = header->rate;
    spec->first_position = header->first_position;
    if (spec->generation == 0) return KVT_E_CORRUPT;
    const kvt_codec *codec = kvt_codec_find(header->codec);
    if (codec == NULL) return KVT_E_VERSION;
    return codec->check(spec->variant, &spec->layout) == KVT_OK ? KVT_OK : KVT_E_VERSION;
}

/* Checks what the header says against what its layout implies and against the given bytes. */
static kvt_status record_check_header(const record_header *header, const record_shape *shape,
                                      const uint8_t *record, uint64_t bytes)
{
    if (header->logical_tokens != header->stored_tokens || header->plane_count != 1 ||
        header->segment_count != shape->segment_count ||
        header->source_bytes != shape->source_bytes ||
        header->table_offset != RECORD_TABLE_OFFSET || header->table_bytes != shape->table_bytes ||
        header->payload_offset != shape->payload_offset) {
        return KVT_E_CORRUPT;
    }
    if (header->record_bytes % KVT_RECORD_ALIGN != 0 ||
        header->record_bytes <= header->payload_offset || header->record_bytes > bytes) {
        return KVT_E_CORRUPT;
    }
    const uint8_t *table = record + RECORD_TABLE_OFFSET;
    if (record_checksum(table, shape->table_bytes) != header->table_checksum) return KVT_E_CORRUPT;
    uint64_t used = (uint64_t)shape->segment_count * sizeof(record_segment);
    return record_is_zero(table + used, shape->table_bytes - used) ? KVT_OK : KVT_E_CORRUPT;
}

/* Every entry must be exactly where and what the encoder would have written. */
static kvt_status record_check_table(const record_header *header, const record_shape *shape,
                                     const void *record, kvt_record_info *info)
{
    const kvt_layout *layout = &info->spec.layout;
    record_place place = {shape->payload_offset, shape->payload_offset};
    uint32_t raw = 0;
    for (uint32_t i = 0; i < shape->segment_count; i++) {
        record_segment segment = record_segment_at(record, i);
        record_segment expected = record_segment_expected(layout, shape, i);
        if (segment.layer != expected.layer || segment.side != expected.side ||
            segment.plane != 0 || segment.raw_bytes != expected.raw_bytes ||
            segment.offset != place.offset) {
            return KVT_E_CORRUPT;
        }
        if (segment.kind == RECORD_KIND_RAW) {
            if (segment.stored_bytes != segment.raw_bytes) return KVT_E_CORRUPT;
            raw++;
        } else if (segment.kind != RECORD_KIND_CODED || segment.stored_bytes == 0 ||
                   segment.stored_bytes >= segment.raw_bytes) {
            return KVT_E_CORRUPT;
        }
        uint64_t padded = record_place_next(&place, layout, shape, i, segment.stored_bytes);
        if (segment.padded_bytes != padded || place.offset > header->record_bytes) {
            return KVT_E_CORRUPT;
        }
        info->payload_bytes += segment.stored_bytes;
    }
    if (place.offset != header->record_bytes) return KVT_E_CORRUPT;
    if (info->payload_bytes != header->payload_bytes) return KVT_E_CORRUPT;
    /* A record without an encoded segment calls itself raw, and the other way round. */
    bool all_raw = raw == shape->segment_count;
    if (all_raw != (info->spec.variant.codec == KVT_CODEC_RAW)) return KVT_E_CORRUPT;
    info->raw_segments = all_raw ? 0 : raw;
    return KVT_OK;
}

kvt_status record_parse(const void *record, uint64_t bytes, bool strict, kvt_record_info *info_out)
{
    record_header header;
    record_shape shape;
    const uint8_t *slot;
    memset(info_out, 0, sizeof *info_out);
    if (bytes < RECORD_TABLE_OFFSET) return KVT_E_CORRUPT;
    kvt_status status = record_choose_slot(record, strict, &header, &slot);
    if (status == KVT_OK) status = record_check_version(&header, slot);
    if (status == KVT_OK) status = record_read_spec(&header, &info_out->spec);
    if (status != KVT_OK) return status;
    if (record_shape_of(&info_out->spec.layout, &shape) != KVT_OK) return KVT_E_CORRUPT;
    if (bytes < shape.payload_offset) return KVT_E_CORRUPT;
    status = record_check_header(&header, &shape, record, bytes);
    if (status == KVT_OK) status = record_check_table(&header, &shape, record, info_out);
    if (status != KVT_OK) return status;

    double elements = (double)(shape.source_bytes / kvt_dtype_bytes(info_out->spec.layout.dtype));
    info_out->source_bytes = shape.source_bytes;
    info_out->record_bytes = header.record_bytes;
    info_out->segment_count = shape.segment_count;
    info_out->bits_per_element = (double)info_out->payload_bytes * 8.0 / elements;
    info_out->physical_bits_per_element = (double)info_out->record_bytes * 8.0 / elements;
    return KVT_OK;
}

kvt_status kvt_record_parse(const void *record, uint64_t bytes, kvt_record_info *info_out)
{
    assert(record != NULL && info_out != NULL);
    return record_parse(record, bytes, false, info_out);
}

kvt_status record_segment_check(const void *record, const record_segment *segment)
{
    const uint8_t *stored = (const uint8_t *)record + segment->offset;
    if (record_checksum(stored, segment->padded_bytes) != segment->checksum) return KVT_E_CORRUPT;
    bool zero = record_is_zero(stored + segment->stored_bytes,
                               segment->padded_bytes - segment->stored_bytes);
    return zero ? KVT_OK : KVT_E_CORRUPT;
}

kvt_status kvt_record_verify(const void *record, uint64_t bytes, kvt_record_info *info_out)
{
    assert(record != NULL && info_out != NULL);
    kvt_status status = record_parse(record, bytes, true, info_out);
    for (uint32_t i = 0; status == KVT_OK && i < info_out->segment_count; i++) {
        record_segment segment = record_segment_at(record, i);
        status = record_segment_check(record, &segment);
    }
    return status;
}
