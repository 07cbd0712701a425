/* SPDX-License-Identifier: Apache-2.0 */
/*
 * record_drop_planes.c - a record loses planes without being decoded.
 *
 * Header and table of the smaller record go to the slot and the table that are not in use, so that
 * a torn rewrite leaves the larger record. The payload starts at the same place at every rate, and
 * a segment's bytes do not depend on the planes beside it; so the segments that stay are already
 * what encoding at the lower rate gives. They are where it would put them, too, when the dropped
 * ones lie behind them; else they move down, in order. Re-entrant.
 */
#include "record_format.h"

#include <assert.h>

/* Whether `wanted` is `present` with fewer planes. */
static kvt_status drop_check_variant(const record_plan *present, kvt_variant wanted)
{
    const kvt_codec *codec = present->codec;
    if (!(codec->flags & KVT_CODEC_FLAG_NESTED)) return KVT_E_UNSUPPORTED;
    if (wanted.codec != codec->id) return KVT_E_ARGUMENT;
    if (codec->check(codecs_variant_core(wanted), &present->layout) != KVT_OK) {
        return KVT_E_ARGUMENT;
    }
    return codec->drops_to(present->variant, codecs_variant_core(wanted)) ? KVT_OK : KVT_E_ARGUMENT;
}

typedef struct drop_mover {
    uint8_t *record;
    const record_parsed *present;
    const record_plan *smaller;
    uint8_t *table; /* the new one */
    uint32_t from;  /* next segment of the present table to look at */
    record_place place;
    uint64_t moved_from; /* UINT64_MAX: nothing moved so far */
    uint64_t payload_bytes;
} drop_mover;

/* The segment of the present record that `want` names; segments between are dropped. */
static record_segment drop_find(drop_mover *mover, const record_want *want)
{
    for (;;) {
        record_segment segment;
        assert(mover->from < mover->present->plan.segment_count);
        memcpy(&segment, mover->present->table + mover->from * sizeof segment, sizeof segment);
        mover->from++;
        if (segment.layer == want->segment.layer && segment.side == want->segment.side &&
            segment.plane == want->segment.plane && segment.kind == want->segment.kind) {
            return segment;
        }
    }
}

/* Gives every segment that stays its place in the smaller record; payload bytes move when
 * `move` is set, and checksums follow changed padding. */
static void drop_place_all(drop_mover *mover, bool move)
{
    record_walk walk;
    record_want want;
    mover->from = 0;
    mover->payload_bytes = 0;
    mover->moved_from = UINT64_MAX;
    mover->place = (record_place){mover->smaller->payload_offset, mover->smaller->payload_offset};
    record_walk_start(&walk, mover->smaller);
    while (record_walk_next(&walk, &want)) {
        record_segment segment = drop_find(mover, &want);
        const record_segment before = segment;
        segment.offset = mover->place.offset;
        segment.padded_bytes = record_place_next(&mover->place, &want, segment.stored_bytes);
        const bool same =
            segment.offset == before.offset && segment.padded_bytes == before.padded_bytes;
        if (!same && mover->moved_from == UINT64_MAX) mover->moved_from = segment.offset;
        if (!same && move) {
            uint8_t *stored = mover->record + segment.offset;
            memmove(stored, mover->record + before.offset, segment.stored_bytes);
            memset(stored + segment.stored_bytes, 0, segment.padded_bytes - segment.stored_bytes);
            segment.checksum = checksum_of(stored, segment.padded_bytes);
        }
        if (move) {
            memcpy(mover->table + (walk.index - 1) * sizeof segment, &segment, sizeof segment);
        }
        mover->payload_bytes += segment.stored_bytes;
    }
}

kvt_status kvt_record_drop_planes(void *record, uint64_t bytes, kvt_variant variant,
                                  kvt_record_drop *drop_out)
{
    record_parsed present;
    record_plan smaller;
    assert(record != NULL && drop_out != NULL);
    memset(drop_out, 0, sizeof *drop_out);
    kvt_status status = record_parse(record, bytes, RECORD_DEPTH_HEAD, &present, NULL);
    if (status == KVT_OK) status = drop_check_variant(&present.plan, variant);
    if (status != KVT_OK) return status;
    /* A rewrite takes the next number. */
    if (present.header.sequence == UINT64_MAX) return KVT_E_CORRUPT;
    if ((variant.mode >> 8) != (present.header.mode >> 8)) return KVT_E_ARGUMENT;
    smaller = present.plan;
    status = record_plan_make(&smaller, variant, present.header.stored_tokens);
    if (status != KVT_OK) return status;
    assert(smaller.payload_offset == present.plan.payload_offset);

    const uint32_t slot = present.slot ^ 1u;
    uint8_t *start = record;
    drop_mover mover = {.record = start, .present = &present, .smaller = &smaller};
    drop_place_all(&mover, false);
    if (mover.moved_from != UINT64_MAX) {
        if (bytes < present.header.record_bytes) return KVT_E_SPACE;
        /* Segments that move get new checksums, so their bytes are verified first. */
        for (uint32_t i = 0; i < present.plan.segment_count; i++) {
            record_segment segment;
            memcpy(&segment, present.table + (uint64_t)i * sizeof segment, sizeof segment);
            if (record_segment_check(record, &segment) != KVT_OK) return KVT_E_CORRUPT;
        }
    }
    mover.table = start + RECORD_TABLE_OFFSET + slot * smaller.table_bytes;
    memset(mover.table, 0, smaller.table_bytes);
    drop_place_all(&mover, true);

    kvt_record_spec spec = {.generation = present.header.generation,
                            .first_position = present.header.first_position};
    memcpy(spec.key.bytes, present.header.key, sizeof spec.key.bytes);
    const record_header_values values = {
        .spec = &spec,
        .variant = variant,
        .sequence = present.header.sequence + 1,
        .payload_bytes = mover.payload_bytes,
        .record_bytes = mover.place.offset,
        .table_offset = RECORD_TABLE_OFFSET + slot * smaller.table_bytes,
    };
    record_write_slot(start, slot * RECORD_SLOT_BYTES, &smaller, &values);
    drop_out->slot_offset = slot * RECORD_SLOT_BYTES;
    drop_out->table_offset = values.table_offset;
    drop_out->table_bytes = smaller.table_bytes;
    drop_out->record_bytes = values.record_bytes;
    drop_out->payload_bytes = mover.payload_bytes;
    drop_out->moved_from = mover.moved_from == UINT64_MAX ? values.record_bytes : mover.moved_from;
    return KVT_OK;
}
