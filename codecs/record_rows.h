/* SPDX-License-Identifier: Apache-2.0 */
/*
 * record_rows.h - which rows of an entry a record holds, and where an encoder finds them: in the
 * caller's memory, or gathered into scratch when a view has them apart or after a drop stage.
 * Re-entrant.
 */
#ifndef CODECS_RECORD_ROWS_H
#define CODECS_RECORD_ROWS_H

#include "record_format.h"

typedef struct record_rows {
    const kvt_view *view;
    uint8_t *indexes;  /* index_count bitmaps, bit i of byte i / 8 = token i; NULL without a drop */
    uint32_t *kept;    /* the same as token numbers; NULL without a drop */
    uint8_t *gathered; /* room for the rows of one matrix */
} record_rows;

/* Makes the plan of a fresh record of this variant. */
kvt_status record_plan_spec(record_plan *plan, const kvt_record_spec *spec,
                            const kvt_codec_extras *extras, kvt_variant variant);

/* Kept tokens and number of index segments of a drop stage. KVT_OK, or KVT_E_UNSUPPORTED when the
 * layout or the extras do not allow the drop. */
kvt_status record_rows_plan(const kvt_record_spec *spec, const kvt_codec_extras *extras,
                            kvt_variant variant, uint32_t *tokens_out, uint32_t *index_count_out);

/* Scratch of record_rows_open, a multiple of 64; 0 without a drop stage. */
uint64_t record_rows_scratch(const record_plan *plan, const kvt_record_spec *spec,
                             kvt_variant variant);

/* Chooses the rows. A drop stage takes views alone that have every matrix in one run
 * (KVT_E_UNSUPPORTED). */
kvt_status record_rows_open(record_rows *rows, const record_plan *plan, const kvt_record_spec *spec,
                            const kvt_codec_extras *extras, kvt_variant variant,
                            const kvt_view *view, uint8_t *scratch);

/* Copies a matrix of a view that has it apart, all of its rows. */
void record_rows_copy(const record_rows *rows, const record_plan *plan, uint32_t layer,
                      kvt_side side, uint8_t *target);

/* Copies the rows of a matrix that are stored raw: those at its front and those at its end. After a
 * drop stage record_rows_of gives them. */
void record_rows_ends(const record_rows *rows, const record_plan *plan, uint32_t layer,
                      kvt_side side, uint8_t *target);

/* The bitmap of index segment i. */
const uint8_t *record_rows_index(const record_rows *rows, const record_plan *plan, uint32_t index);

/* The kept rows of a matrix, without gaps; valid until the next call. For opaque entries: the
 * layer-th piece. */
const uint8_t *record_rows_of(const record_rows *rows, const record_plan *plan, uint32_t layer,
                              kvt_side side);

#endif
