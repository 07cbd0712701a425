/* SPDX-License-Identifier: Apache-2.0 */
/*
 * entropy_span.h - the symbols of a span, coded, and the parts of an encoding that they need.
 *
 * An encoding is a head and its spans. A span is a run of whole groups of 256 tokens, as many as
 * have at most 2^20 elements, at least one:
 *
 *   head   | version, u8 | flags, u8 | step, u16 |
 *   span   | distant codes, u32 | groups (entropy_group.h) | distant codes, i16 each |
 *          | symbols (rans_stream.h) |
 *
 * Symbol = code + 128 for codes from -127 to 127; 0 stands for any other, whose code is the next
 * distant one. Symbols are in the matrix' order. Re-entrant.
 */
#ifndef CODECS_ENTROPY_SPAN_H
#define CODECS_ENTROPY_SPAN_H

#include "entropy_group.h"
#include "rans_stream.h"

enum {
    ENTROPY_VERSION = 2, /* 1 was a form that no release has had */
    ENTROPY_HEAD_BYTES = 4,
    ENTROPY_SPAN_HEAD_BYTES = 4,
    ENTROPY_FLAG_TOKEN_AXIS = 1,
    ENTROPY_FLAG_CENTROIDS = 2,
    ENTROPY_SPAN_ELEMENTS = 1 << 20
};

/* The caller's scratch, cut. */
typedef struct entropy_scratch {
    uint8_t *symbols; /* of a span */
    int16_t *distant; /* codes outside -127 .. 127 in order of their elements */
    uint64_t distant_max;
    uint8_t *meta; /* one stored group */
    entropy_entries entries;
    float *factors; /* per entry: what values are multiplied by, there or back */
    float *offsets; /* per entry: what is added on the way back */
    rans_encode_table *encode_table;
    rans_decode_table *decode_table;
} entropy_scratch;

/* Appends distant codes and symbols, and fills the span's head at head_at. distant holds the codes
 * of the symbols that are 0. given: see rans_stream_write. False when the room is too small. */
bool entropy_span_code(rans_target *target, uint64_t head_at, const rans_table *given,
                       const entropy_scratch *scratch, uint64_t count, uint64_t distant_count);

/* A stored span whose parts have been checked against its length. */
typedef struct entropy_stored_span {
    const uint8_t *groups;
    uint64_t group_bytes;
    const uint8_t *distant;
    uint64_t distant_count;
    rans_stream stream;
} entropy_stored_span;

/* Takes a span of these tokens off the source and starts its decoder on scratch's table. */
kvt_status entropy_span_open(const entropy_shape *shape, entropy_axis axis, uint32_t tokens,
                             rans_source *source, const entropy_scratch *scratch,
                             entropy_stored_span *span);

/* A distant code. */
static inline int16_t entropy_distant_at(const entropy_stored_span *span, uint64_t index)
{
    return (int16_t)(span->distant[2 * index] | (uint16_t)span->distant[2 * index + 1] << 8);
}

#endif
