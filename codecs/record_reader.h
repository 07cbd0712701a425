/* SPDX-License-Identifier: Apache-2.0 */
/*
 * record_reader.h - what the two ways to read a record share: whole (record_decode.c), and layer by
 * layer with a head that was looked at once (record_layer.c). Re-entrant.
 */
#ifndef CODECS_RECORD_READER_H
#define CODECS_RECORD_READER_H

#include "record_format.h"

/* Whether a record is the expected one; NULL: any. */
kvt_status record_check_expected(const record_parsed *parsed, const kvt_record_spec *expected);

/* Whether an entry of the record's layout, with the record's tokens or more, is of this layout. */
bool record_layout_fits(const record_plan *plan, const kvt_layout *layout);

/* Finds the segments of a matrix in a table that has been checked. */
void record_find_matrix(const record_plan *plan, const uint8_t *table,
                        const record_sections *sections, uint32_t layer, kvt_side side,
                        record_matrix *found);

/* Decodes a matrix whose segments' offsets count from `record` on; of codecs with spans one that is
 * stored raw. */
kvt_status record_decode_found(const uint8_t *record, const record_plan *plan,
                               const record_matrix *found, uint32_t layer, kvt_side side,
                               const view_rows *target, void *scratch, uint64_t scratch_bytes);

/* kvt_record_decode_parallel of a record that has no groups. */
kvt_status record_decode_packed(const void *record, uint64_t bytes, const kvt_record_spec *expected,
                                const kvt_codec_workers *workers, void *target,
                                uint64_t target_bytes, void *scratch, uint64_t scratch_bytes);

/* The needs of the layers of one record. */
struct kvt_record_head {
    record_sections sections;
    uint64_t table_at; /* from here on: the segment table, behind the levels */
    record_plan plan;  /* as far as the levels that the record has; the last member */
};

static inline const uint8_t *record_head_table(const kvt_record_head *head)
{
    return (const uint8_t *)head + head->table_at;
}

/* Whether layers are some of a layout's. */
static inline bool record_has_layers(const kvt_layout *layout, uint32_t layer, uint32_t layer_count)
{
    return layout->dtype != KVT_DTYPE_OPAQUE && layer < layout->layers && layer_count != 0 &&
           layer_count <= layout->layers - layer;
}

/* Puts the raw tokens of a matrix around its coded rows, and verifies them. */
kvt_status record_decode_raw_tokens(const uint8_t *record, const record_plan *plan,
                                    const record_matrix *found, kvt_side side,
                                    const view_rows *target);

/* ---- spans: record_span.c ---- */

/* A record whose head was looked at, and where its segments lie. */
typedef struct record_source {
    const uint8_t *payload; /* the whole record, or its ranges */
    const record_plan *plan;
    const uint8_t *table;
    const record_sections *sections;
    const kvt_record_range *ranges; /* NULL: payload is the whole record */
    uint32_t range_count;
} record_source;

/* Calls `each` for every segment of a matrix. */
void record_each_segment(record_matrix *found, void (*each)(void *, record_segment *),
                         void *context);

/* Finds a matrix, with offsets that count from payload on. False: a segment is in no range. */
bool record_source_find(const record_source *source, uint32_t layer, kvt_side side,
                        record_matrix *found);

/* The same of a part that a span shares, and nothing else of its first matrix: the part may be all
 * that is there of it. */
bool record_span_find(const record_source *source, uint32_t layer, kvt_side side,
                      record_matrix *found);

/* Decodes matrices of one span of a codec with spans. targets: of each of them; NULL: not wanted.
 * Statuses as of kvt_record_decode. */
kvt_status record_decode_span(const record_source *source, uint32_t span,
                              const view_rows *const *targets, void *scratch,
                              uint64_t scratch_bytes);

#endif
