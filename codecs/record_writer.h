/* SPDX-License-Identifier: Apache-2.0 */
/*
 * record_writer.h - what the two ways to write a record share: sizes known before (record_encode.c)
 * and sizes that follow from the data (record_variable.c).
 *
 * Matrices may be encoded at the same time by workers of the caller. Everything that they share is
 * only read meanwhile; each has a lane of its own in the scratch:
 *
 *   scratch   | rows of a drop stage | gathered matrix 0, 1, .. (view) | lane 0 | lane 1 | ...
 *   lane      | gathered rows (drop) | the codec's scratch | room for a slot |
 *
 * A slot holds what became of one matrix until its place is known; it belongs to the matrix, not to
 * the worker. Re-entrant.
 */
#ifndef CODECS_RECORD_WRITER_H
#define CODECS_RECORD_WRITER_H

#include "record_rows.h"

/* Where the parts of a lane start, and how long it is. */
typedef struct record_lanes {
    uint64_t codec;
    uint64_t slot;
    uint64_t bytes;
} record_lanes;

typedef struct record_writer {
    const kvt_record_spec *spec;
    const kvt_codec_extras *extras;
    const kvt_codec_workers *workers; /* NULL: the caller's thread alone */
    record_plan *plan;
    record_rows rows; /* the kept rows of the source */
    uint8_t *record;
    uint8_t *head; /* slots and table: in memory of their own, or in `record` itself */
    uint64_t capacity;
    record_lanes lanes;
    uint8_t *lane;         /* of this worker */
    uint8_t *gather;       /* of worker 0; NULL: the view has no matrix apart */
    uint64_t gather_bytes; /* of a worker */
    record_place place;
    uint64_t payload_bytes;
    uint32_t coded_matrices;
    record_sections sections; /* of a record that is placed first */
} record_writer;

/* The lanes of a plan. Alone, a worker has no slots but where parts are made in scratch, and rows
 * are gathered among those of the drop stage. */
record_lanes record_lanes_of(const record_plan *plan, bool workers);

/* The codec's scratch. */
static inline void *record_lane_scratch(const record_writer *writer)
{
    return writer->lanes.codec != 0 ? writer->lane + writer->lanes.codec : writer->lane;
}

static inline uint64_t record_lane_scratch_bytes(const record_writer *writer)
{
    return writer->lanes.slot - writer->lanes.codec;
}

/* The writer as a worker sees it: with its own lane. */
record_writer record_writer_of(const record_writer *writer, uint32_t worker);

/* The coded rows of a matrix. */
const uint8_t *record_coded_rows(const record_writer *writer, const uint8_t *rows);

void record_copy_raw_tokens(const record_writer *writer, kvt_side side, const uint8_t *rows,
                            uint8_t *target);

/* Zeros the padding, takes the checksum of a segment that has just been written, and puts it into
 * the table. */
void record_close_segment(const record_writer *writer, uint32_t index, record_segment *segment);

/* The same of a segment that is content as it is. */
void record_copy_segment(const record_writer *writer, uint32_t index, record_segment *segment,
                         const uint8_t *content);

/* Gives every segment of a record whose parts have fixed sizes its place. KVT_OK; KVT_E_SPACE. */
KVT_NODISCARD kvt_status record_place_fixed(record_writer *writer);

/* Segment after segment, for codecs whose sizes follow from the data. KVT_OK; KVT_RAW (nothing to
 * code, and no room for the table); KVT_E_SPACE. */
kvt_status record_write_variable(record_writer *writer);

/*
 * The tasks of an encoder or decoder: step for every index below count, on the caller's workers or
 * one after the other. The status of the lowest index whose step did not give KVT_OK, which does
 * not depend on the order; tasks behind it may be left out.
 */
typedef kvt_status (*record_step)(void *argument, uint32_t index, uint32_t worker);

kvt_status record_run(const kvt_codec_workers *workers, uint32_t count, record_step step,
                      void *argument);

static inline uint32_t record_worker_count(const kvt_codec_workers *workers)
{
    return workers != NULL ? workers->count : 1;
}

#endif
