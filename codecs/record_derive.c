/* SPDX-License-Identifier: Apache-2.0 */
/*
 * record_derive.c - a coarser record is made of a record, matrix by matrix, without the elements.
 *
 * Both have the same segments in the same order, since what is stored raw stays raw; only the coded
 * parts differ. Re-entrant; no allocation.
 */
#include "record_writer.h"

#include <assert.h>

/* A derivation: the record that is read, and the writer of the other. */
typedef struct record_deriver {
    const uint8_t *record;
    const record_parsed *present;
    record_writer writer;
    void *scratch;
    uint64_t scratch_bytes;
} record_deriver;

/* Makes the coded part of a matrix, in its place; sets the stored bytes. */
static kvt_status derive_part(record_deriver *deriver, const record_segment *from, uint8_t *at,
                              uint64_t room, uint64_t *stored_out)
{
    const record_plan *present = &deriver->present->plan;
    kvt_matrix matrix;
    kvt_part parts[KVT_PARTS_MAX];
    uint32_t count;
    record_matrix_parts(present, from->layer, (kvt_side)from->side, &matrix, parts, &count);
    assert(count == 1);
    kvt_part coarser = parts[0];
    parts[0].bytes = from->stored_bytes;
    /* It is only read. */
    parts[0].data = (uint8_t *)((uintptr_t)deriver->record + from->offset);
    coarser.data = at;
    if (room < coarser.bytes) coarser.bytes = room;
    kvt_status status =
        present->codec->derive_matrix(present->variant, deriver->writer.plan->variant, &matrix,
                                      parts, &coarser, deriver->scratch, deriver->scratch_bytes);
    *stored_out = coarser.bytes;
    return status == KVT_RAW ? KVT_E_UNSUPPORTED : status;
}

/* The next segment of both. */
static kvt_status derive_segment(record_deriver *deriver, uint32_t index, const record_want *want)
{
    record_writer *writer = &deriver->writer;
    record_segment from;
    memcpy(&from, deriver->present->table + (uint64_t)index * sizeof from, sizeof from);
    assert(from.layer == want->segment.layer && from.side == want->segment.side &&
           from.kind == want->segment.kind);
    if (record_segment_check(deriver->record, &from) != KVT_OK) return KVT_E_CORRUPT;
    record_segment segment = want->segment;
    segment.offset = writer->place.offset;
    segment.stored_bytes = from.stored_bytes;
    const bool coded = segment.kind == KVT_PART_DATA;
    if (coded) {
        uint64_t stored = 0;
        kvt_status status = derive_part(deriver, &from, writer->record + segment.offset,
                                        writer->capacity - segment.offset, &stored);
        if (status != KVT_OK) return status;
        segment.stored_bytes = stored;
        segment.raw_bytes = stored;
    }
    segment.padded_bytes = record_place_next(&writer->place, want, segment.stored_bytes);
    if (writer->place.offset > writer->capacity) return KVT_E_SPACE;
    if (coded) {
        record_close_segment(writer, index, &segment);
    } else {
        record_copy_segment(writer, index, &segment, deriver->record + from.offset);
    }
    writer->payload_bytes += segment.stored_bytes;
    return KVT_OK;
}

static kvt_status derive_check_variant(const record_parsed *present, kvt_variant wanted)
{
    const record_plan *plan = &present->plan;
    const kvt_codec *codec = plan->codec;
    const kvt_variant core = codecs_variant_core(wanted);
    if (codec->derives_to == NULL) return KVT_E_UNSUPPORTED;
    if (wanted.codec != codec->id || wanted.mode >> 8 != present->header.mode >> 8) {
        return KVT_E_ARGUMENT;
    }
    if (codec->check(core, &plan->layout) != KVT_OK) return KVT_E_ARGUMENT;
    return codec->derives_to(plan->variant, core) ? KVT_OK : KVT_E_ARGUMENT;
}

static kvt_status derive_all(record_deriver *deriver)
{
    record_writer *writer = &deriver->writer;
    const record_plan *plan = writer->plan;
    record_walk walk;
    record_want want;
    kvt_status status = KVT_OK;
    writer->place = (record_place){plan->payload_offset, plan->payload_offset};
    if (writer->capacity < plan->payload_offset) return KVT_E_SPACE;
    memset(writer->record, 0, plan->payload_offset);
    record_walk_start(&walk, plan);
    while (status == KVT_OK && record_walk_next(&walk, &want)) {
        status = derive_segment(deriver, walk.index - 1, &want);
    }
    return status;
}

kvt_status kvt_record_derive(const void *record, uint64_t bytes, const kvt_record_bases *bases,
                             kvt_variant variant, void *target, uint64_t capacity, void *scratch,
                             uint64_t scratch_bytes, uint64_t *record_bytes_out)
{
    record_parsed present;
    assert(record != NULL && target != NULL && record_bytes_out != NULL);
    assert((uintptr_t)target % 64 == 0 && (uintptr_t)scratch % 64 == 0);
    *record_bytes_out = 0;
    kvt_status status = record_parse(record, bytes, RECORD_DEPTH_LOAD, &present, NULL);
    if (status == KVT_OK) status = derive_check_variant(&present, variant);
    if (status == KVT_OK) status = record_plan_take_basis(&present.plan, bases);
    if (status != KVT_OK) return status;
    if (scratch_bytes < record_codec_scratch(&present.plan)) return KVT_E_ARGUMENT;
    record_plan coarser = present.plan;
    status = record_plan_make(&coarser, variant, present.header.stored_tokens);
    if (status != KVT_OK) return status;
    kvt_record_spec spec = {.generation = present.header.generation,
                            .first_position = present.header.first_position};
    memcpy(spec.key.bytes, present.header.key, sizeof spec.key.bytes);
    record_deriver deriver = {
        .record = record,
        .present = &present,
        .writer = {.spec = &spec,
                   .plan = &coarser,
                   .record = target,
                   .head = target,
                   .capacity = capacity},
        .scratch = scratch,
        .scratch_bytes = scratch_bytes,
    };
    status = derive_all(&deriver);
    if (status != KVT_OK) return status;
    const record_header_values values = {
        .spec = &spec,
        .variant = variant,
        .sequence = 1,
        .payload_bytes = deriver.writer.payload_bytes,
        .record_bytes = deriver.writer.place.offset,
        .table_offset = RECORD_TABLE_OFFSET,
    };
    record_write_slot(target, 0, &coarser, &values);
    *record_bytes_out = values.record_bytes;
    return KVT_OK;
}
