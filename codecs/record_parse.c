/* SPDX-License-Identifier: Apache-2.0 */
/*
 * record_parse.c - is this a record, and what does it say? Trusts no byte: every field is checked
 * against the layout and the length before it is used. Re-entrant.
 */
#include "record_format.h"
#include "transform_basis.h"

/* Where the name of a basis lies, if there is one: behind the levels. */
static uint64_t record_basis_at(const record_plan *plan)
{
    return plan->extended ? RECORD_LEVELS_AT + plan->extension.level_count : sizeof(record_header);
}

/* Bytes of the slot that carry fields: what a plan writes. */
static uint64_t record_header_bytes(const record_plan *plan)
{
    return record_basis_at(plan) + (plan->basis_name.span != 0 ? sizeof(record_basis) : 0);
}

/* Minor 1 exists for the sake of its extension alone, minor 2 for that of a note, with or without
 * the extension. */
kvt_status record_check_version(const record_header *header)
{
    if (header->major != RECORD_MAJOR) return KVT_E_VERSION;
    if ((header->critical_flags & ~RECORD_CRITICAL_KNOWN) != 0) return KVT_E_VERSION;
    if (header->sequence == 0) return KVT_E_CORRUPT;
    const bool extended = (header->critical_flags & RECORD_CRITICAL_EXTENSION) != 0;
    if (header->minor <= RECORD_MINOR_EXTENSION &&
        extended != (header->minor == RECORD_MINOR_EXTENSION)) {
        return KVT_E_CORRUPT;
    }
    const uint64_t least = extended ? RECORD_LEVELS_AT : sizeof *header;
    return header->header_bytes >= least && header->header_bytes <= RECORD_CHECKSUM_AT
               ? KVT_OK
               : KVT_E_CORRUPT;
}

kvt_status record_check_rest(const record_header *header, const record_plan *plan,
                             const uint8_t *slot)
{
    uint64_t used = record_header_bytes(plan), offset, note_bytes;
    if (header->minor > RECORD_MINOR) return header->header_bytes >= used ? KVT_OK : KVT_E_CORRUPT;
    const bool noted = header->minor == RECORD_MINOR;
    if (header->optional_flags != (noted ? RECORD_OPTIONAL_NOTE : 0)) return KVT_E_CORRUPT;
    if (noted) {
        if (record_note_find(header, slot, used, &offset, &note_bytes) != KVT_OK) {
            return KVT_E_CORRUPT;
        }
        used = offset + note_bytes;
    }
    if (header->header_bytes != used) return KVT_E_CORRUPT;
    return record_is_zero(slot + used, RECORD_CHECKSUM_AT - used) ? KVT_OK : KVT_E_CORRUPT;
}

static void record_read_layout(const record_header *header, kvt_layout *layout)
{
    memset(layout, 0, sizeof *layout);
    layout->layers = header->layers;
    layout->kv_heads = header->kv_heads;
    layout->head_dim = header->head_dim;
    layout->dtype = header->dtype;
    layout->order = header->order;
    layout->tokens = header->logical_tokens;
    layout->tokens_may_drop = header->tokens_may_drop;
    if ((header->critical_flags & RECORD_CRITICAL_ONE_SIDE) != 0) layout->sides = KVT_SIDES_ONE;
    if ((header->critical_flags & RECORD_CRITICAL_V_ALONE) != 0) layout->sides = KVT_SIDES_V;
    layout->opaque_bytes = header->opaque_bytes;
}

/* Reads the name of the basis behind the levels. A record of a codec with spans has one, and no
 * other record has. */
static kvt_status record_read_basis(const record_header *header, const uint8_t *slot,
                                    record_plan *plan)
{
    record_basis *name = &plan->basis_name;
    const bool named = (header->critical_flags & RECORD_CRITICAL_BASIS) != 0;
    const bool spans = (plan->codec->flags & KVT_CODEC_FLAG_SPANS) != 0;
    const uint64_t at = RECORD_LEVELS_AT + plan->extension.level_count;
    if (named != spans) return KVT_E_CORRUPT;
    if (!named) return KVT_OK;
    if (header->header_bytes < at + sizeof *name || at + sizeof *name > RECORD_CHECKSUM_AT)
        return KVT_E_CORRUPT;
    memcpy(name, slot + at, sizeof *name);
    const uint32_t start = header->rate >> CODECS_BASIS_SHIFT;
    if (name->span == 0 || !record_is_zero(name->reserved, sizeof name->reserved))
        return KVT_E_CORRUPT;
    return start == transform_hash_start(name->hash) ? KVT_OK : KVT_E_CORRUPT;
}

/* Fills the plan from the slot that counts. */
static kvt_status record_read_plan(const record_header *header, const uint8_t *slot,
                                   record_plan *plan)
{
    const kvt_variant variant = {header->codec, header->mode, header->rate};
    const bool extended = (header->critical_flags & RECORD_CRITICAL_EXTENSION) != 0;
    /* All but the levels, of which only the record's own are read. */
    memset(plan, 0, offsetof(record_plan, levels));
    record_read_layout(header, &plan->layout);
    if (header->generation == 0) return KVT_E_CORRUPT;
    if (plan->layout.sides == KVT_SIDES_V &&
        (header->critical_flags & RECORD_CRITICAL_ONE_SIDE) == 0)
        return KVT_E_CORRUPT;
    if (!record_is_zero(header->reserved, sizeof header->reserved)) return KVT_E_CORRUPT;
    plan->codec = kvt_codec_find(header->codec);
    if (plan->codec == NULL) return KVT_E_VERSION;
    if (extended) {
        record_extension *extension = &plan->extension;
        memcpy(extension, slot + RECORD_EXTENSION_AT, sizeof *extension);
        if (extension->level_count > KVT_LAYERS_MAX) return KVT_E_CORRUPT;
        if (header->header_bytes < RECORD_LEVELS_AT + extension->level_count) return KVT_E_CORRUPT;
        memcpy(plan->levels, slot + RECORD_LEVELS_AT, extension->level_count);
    }
    plan->first_position = header->first_position;
    kvt_status status = record_read_basis(header, slot, plan);
    if (status != KVT_OK) return status;
    status = record_plan_make(plan, variant, header->stored_tokens);
    if (status == KVT_E_UNSUPPORTED) return KVT_E_VERSION;
    if (status != KVT_OK || plan->extended != extended) return KVT_E_CORRUPT;
    /* The chain holds the entry, and positions are numbers of 32 bits. */
    const uint64_t end = (uint64_t)header->first_position + header->logical_tokens;
    const uint32_t chain = plan->extension.chain_tokens;
    if (extended && (plan->parts ? chain < end : chain != 0 || end > UINT32_MAX))
        return KVT_E_CORRUPT;
    return record_check_rest(header, plan, slot);
}

/* Checks what the header says against what its layout implies and against the given bytes. */
static kvt_status record_check_header(const record_header *header, const record_plan *plan,
                                      uint32_t slot, uint64_t bytes, bool head_only)
{
    const uint64_t second =
        plan->payload_offset - RECORD_TABLE_OFFSET > plan->table_bytes ? slot : 0;
    if (header->plane_count != plan->plane_count || header->segment_count != plan->segment_count ||
        header->source_bytes != plan->source_bytes ||
        header->table_offset != RECORD_TABLE_OFFSET + second * plan->table_bytes ||
        header->table_bytes != plan->table_bytes ||
        header->payload_offset != plan->payload_offset) {
        return KVT_E_CORRUPT;
    }
    if (header->record_bytes % KVT_RECORD_ALIGN != 0 ||
        header->record_bytes <= header->payload_offset ||
        (!head_only && header->record_bytes > bytes)) {
        return KVT_E_CORRUPT;
    }
    return KVT_OK;
}

static kvt_status record_check_table_bytes(const uint8_t *table, const record_header *header)
{
    uint64_t used = (uint64_t)header->segment_count * sizeof(record_segment);
    if (used > header->table_bytes) return KVT_E_CORRUPT;
    if (checksum_of(table, header->table_bytes) != header->table_checksum) return KVT_E_CORRUPT;
    return record_is_zero(table + used, header->table_bytes - used) ? KVT_OK : KVT_E_CORRUPT;
}

/* Whether a segment is what the header implies; its stored bytes are sound then. */
static bool record_segment_fits(const record_segment *segment, const record_want *want)
{
    if (segment->layer != want->segment.layer || segment->side != want->segment.side ||
        segment->plane != want->segment.plane) {
        return false;
    }
    if (want->either) {
        if (segment->raw_bytes != want->segment.raw_bytes) return false;
        if (segment->kind == KVT_PART_RAW) return segment->stored_bytes == segment->raw_bytes;
        return segment->kind == KVT_PART_CODED && segment->stored_bytes != 0 &&
               segment->stored_bytes < segment->raw_bytes;
    }
    if (segment->kind != want->segment.kind || segment->raw_bytes != segment->stored_bytes) {
        return false;
    }
    return want->fixed ? segment->stored_bytes == want->segment.stored_bytes
                       : segment->stored_bytes <= want->segment.raw_bytes;
}

/* Every entry must be exactly where and what the encoder would have written. */
static kvt_status record_check_table(record_parsed *parsed, uint64_t *payload_bytes_out,
                                     uint32_t *raw_out)
{
    const record_plan *plan = &parsed->plan;
    record_place place = {plan->payload_offset, plan->payload_offset};
    record_walk walk;
    record_want want;
    uint32_t coded = 0;
    record_sections_start(&parsed->sections);
    record_walk_start(&walk, plan);
    while (record_walk_next(&walk, &want)) {
        record_segment segment;
        if (walk.index > plan->segment_count) return KVT_E_CORRUPT;
        record_sections_add(&parsed->sections, &want);
        memcpy(&segment, parsed->table + (walk.index - 1) * sizeof segment, sizeof segment);
        if (segment.offset != place.offset || !record_segment_fits(&segment, &want)) {
            return KVT_E_CORRUPT;
        }
        uint64_t padded = record_place_next(&place, &want, segment.stored_bytes);
        if (segment.padded_bytes != padded || place.offset > parsed->header.record_bytes) {
            return KVT_E_CORRUPT;
        }
        *payload_bytes_out += segment.stored_bytes;
        if (segment.kind == KVT_PART_RAW) (*raw_out)++;
        if (segment.kind == KVT_PART_CODED || segment.kind == KVT_PART_DATA) coded++;
    }
    if (walk.index != plan->segment_count) return KVT_E_CORRUPT;
    if (place.offset != parsed->header.record_bytes) return KVT_E_CORRUPT;
    if (*payload_bytes_out != parsed->header.payload_bytes) return KVT_E_CORRUPT;
    /* A record without an encoded segment calls itself raw, and the other way round. */
    if ((coded == 0) != (plan->codec->id == KVT_CODEC_RAW)) return KVT_E_CORRUPT;
    if (coded == 0) *raw_out = 0;
    return KVT_OK;
}

/* Checks the bytes beside the slot and table in use: the other slot's table, or zeros. */
static kvt_status record_check_other(const uint8_t *record, const record_parsed *parsed)
{
    const record_plan *plan = &parsed->plan;
    record_header other;
    if (plan->payload_offset == RECORD_TABLE_OFFSET + plan->table_bytes) return KVT_OK;
    const uint32_t slot = parsed->slot ^ 1u;
    const uint8_t *table = record + RECORD_TABLE_OFFSET + slot * plan->table_bytes;
    if (record_read_slot(record + slot * RECORD_SLOT_BYTES, &other) == RECORD_SLOT_ZERO) {
        return record_is_zero(table, plan->table_bytes) ? KVT_OK : KVT_E_CORRUPT;
    }
    if (other.table_bytes != plan->table_bytes) return KVT_E_CORRUPT;
    return record_check_table_bytes(table, &other);
}

static void record_fill_info(const record_parsed *parsed, uint64_t payload_bytes, uint32_t raw,
                             kvt_record_info *info)
{
    const record_plan *plan = &parsed->plan;
    const record_header *header = &parsed->header;
    memset(info, 0, sizeof *info);
    memcpy(info->spec.key.bytes, header->key, sizeof info->spec.key.bytes);
    info->spec.generation = header->generation;
    info->spec.layout = plan->layout;
    info->spec.variant = (kvt_variant){header->codec, header->mode, header->rate};
    info->spec.first_position = header->first_position;
    double elements = (double)(plan->source_bytes / kvt_dtype_bytes(plan->layout.dtype));
    info->source_bytes = plan->source_bytes;
    info->record_bytes = header->record_bytes;
    info->payload_bytes = payload_bytes;
    info->segment_count = plan->segment_count;
    info->raw_segments = raw;
    info->bits_per_element = (double)payload_bytes * 8.0 / elements;
    info->physical_bits_per_element = (double)header->record_bytes * 8.0 / elements;
    info->decoded_bytes = plan->decoded_bytes;
    info->stored_tokens = plan->stored.tokens;
    info->plane_count = plan->plane_count;
    info->head_bytes = plan->payload_offset;
    info->scratch_bytes = record_decode_scratch(plan);
    memcpy(info->basis, plan->basis_name.hash, sizeof info->basis);
    info->basis_span = plan->basis_name.span;
}

kvt_status record_parse(const void *record, uint64_t bytes, record_depth depth,
                        record_parsed *parsed, kvt_record_info *info_out)
{
    const uint8_t *start = record;
    uint64_t payload_bytes = 0;
    uint32_t raw = 0;
    if (info_out != NULL) memset(info_out, 0, sizeof *info_out);
    if (bytes < RECORD_TABLE_OFFSET) return KVT_E_CORRUPT;
    const bool strict = depth == RECORD_DEPTH_STRICT;
    kvt_status status = record_choose_slot(start, strict, &parsed->header, &parsed->slot);
    const record_header *header = &parsed->header;
    if (status == KVT_OK) status = record_check_version(header);
    if (status == KVT_OK && (header->critical_flags & RECORD_CRITICAL_GROUPS) != 0)
        status = KVT_E_VERSION;
    if (status == KVT_OK) {
        status = record_read_plan(header, start + parsed->slot * RECORD_SLOT_BYTES, &parsed->plan);
    }
    if (status != KVT_OK) return status;
    if (bytes < parsed->plan.payload_offset) return KVT_E_CORRUPT;
    status =
        record_check_header(header, &parsed->plan, parsed->slot, bytes, depth == RECORD_DEPTH_HEAD);
    if (status != KVT_OK) return status;
    parsed->table = start + header->table_offset;
    status = record_check_table_bytes(parsed->table, header);
    if (status == KVT_OK) status = record_check_table(parsed, &payload_bytes, &raw);
    if (status == KVT_OK && strict) status = record_check_other(start, parsed);
    if (status == KVT_OK && info_out != NULL)
        record_fill_info(parsed, payload_bytes, raw, info_out);
    return status;
}

kvt_status record_padding_check(const void *record, const record_segment *segment)
{
    const uint8_t *stored = (const uint8_t *)record + segment->offset;
    bool zero = record_is_zero(stored + segment->stored_bytes,
                               segment->padded_bytes - segment->stored_bytes);
    return zero ? KVT_OK : KVT_E_CORRUPT;
}

kvt_status record_segment_check(const void *record, const record_segment *segment)
{
    const uint8_t *stored = (const uint8_t *)record + segment->offset;
    if (checksum_of(stored, segment->padded_bytes) != segment->checksum) return KVT_E_CORRUPT;
    return record_padding_check(record, segment);
}

kvt_status record_verify(const void *record, uint64_t bytes, record_parsed *parsed,
                         kvt_record_info *info_out)
{
    kvt_status status = record_parse(record, bytes, RECORD_DEPTH_STRICT, parsed, info_out);
    for (uint32_t i = 0; status == KVT_OK && i < info_out->segment_count; i++) {
        record_segment segment;
        memcpy(&segment, parsed->table + (uint64_t)i * sizeof segment, sizeof segment);
        status = record_segment_check(record, &segment);
    }
    return status;
}

void record_write_slot(uint8_t *record, uint64_t slot_offset, const record_plan *plan,
                       const record_header_values *values)
{
    const kvt_layout *layout = &plan->layout;
    uint8_t *slot = record + slot_offset;
    record_header header = {
        .magic = {0},
        .major = RECORD_MAJOR,
        .minor = plan->extended ? RECORD_MINOR_EXTENSION : 0,
        .header_bytes = (uint32_t)record_header_bytes(plan),
        .sequence = values->sequence,
        .critical_flags =
            (plan->extended ? RECORD_CRITICAL_EXTENSION : 0) |
            (kvt_layout_sides(layout) == 1 ? RECORD_CRITICAL_ONE_SIDE : 0) |
            (layout->sides == KVT_SIDES_V || plan->v_alone ? RECORD_CRITICAL_V_ALONE : 0) |
            (plan->grouped ? RECORD_CRITICAL_GROUPS : 0) |
            (plan->basis_name.span != 0 ? RECORD_CRITICAL_BASIS : 0),
        .generation = values->spec->generation,
        .layers = layout->layers,
        .kv_heads = layout->kv_heads,
        .head_dim = layout->head_dim,
        .dtype = layout->dtype,
        .order = layout->order,
        .logical_tokens = layout->tokens,
        .tokens_may_drop = layout->tokens_may_drop,
        .opaque_bytes = layout->opaque_bytes,
        .codec = values->variant.codec,
        .mode = values->variant.mode,
        .rate = values->variant.rate,
        .first_position = values->spec->first_position,
        .stored_tokens = plan->stored.tokens,
        .segment_count = plan->segment_count,
        .plane_count = plan->plane_count,
        .table_offset = values->table_offset,
        .table_bytes = plan->table_bytes,
        .payload_offset = plan->payload_offset,
        .payload_bytes = values->payload_bytes,
        .record_bytes = values->record_bytes,
        .source_bytes = plan->source_bytes,
    };
    memcpy(header.magic, RECORD_MAGIC, sizeof header.magic);
    memcpy(header.key, values->spec->key.bytes, sizeof header.key);
    header.table_checksum = checksum_of(record + values->table_offset, plan->table_bytes);
    memset(slot, 0, RECORD_SLOT_BYTES);
    memcpy(slot, &header, sizeof header);
    if (plan->extended) {
        memcpy(slot + RECORD_EXTENSION_AT, &plan->extension, sizeof plan->extension);
        memcpy(slot + RECORD_LEVELS_AT, plan->levels, plan->extension.level_count);
    }
    if (plan->basis_name.span != 0)
        memcpy(slot + record_basis_at(plan), &plan->basis_name, sizeof plan->basis_name);
    record_seal_slot(slot);
}
