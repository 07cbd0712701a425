/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rans_stream.h - symbols coded by rans.h with all that decoding them needs. Stored:
 *
 *   | code bytes, u32 | escapes, u32 | table bytes, u8 | states, u8 | 0, u16 |
 *   | table | escapes, u8 each | states, u16 each | code |
 *
 * An escape is a symbol that the table lacks, in the order of the symbols; symbol 0 is one always.
 * Re-entrant.
 */
#ifndef CODECS_RANS_STREAM_H
#define CODECS_RANS_STREAM_H

#include "rans.h"

enum { RANS_STREAM_HEAD_BYTES = 12, RANS_ESCAPE_BITS = 8 };

/* A writer of bytes: never at or past limit. */
typedef struct rans_target {
    uint8_t *bytes;
    uint64_t limit;
    uint64_t used;
} rans_target;

bool rans_append(rans_target *target, const void *source, uint64_t bytes);

/* A reader of the bytes that are left. */
typedef struct rans_source {
    const uint8_t *bytes;
    uint64_t left;
} rans_source;

/* The next bytes, or NULL when there are fewer. */
const uint8_t *rans_take(rans_source *source, uint64_t bytes);

/* Appends a stream of the symbols, with a table of their own or, when it is not NULL, with the
 * given one, which is stored all the same. encode is scratch. False when the room is too small; how
 * far it was used is undefined then. */
bool rans_stream_write(rans_target *target, const rans_table *given, const uint8_t *symbols,
                       uint64_t count, rans_encode_table *encode);

/* A stream that is being read. */
typedef struct rans_stream {
    rans_table table;
    rans_decoder decoder;
    const uint8_t *escape;
    const uint8_t *escape_end;
    uint64_t left; /* symbols */
} rans_stream;

/* Takes a stream of count symbols off the source. decode is scratch that must outlive the stream.
 * KVT_OK or KVT_E_CORRUPT. */
kvt_status rans_stream_open(rans_stream *stream, rans_source *source, uint64_t count,
                            rans_decode_table *decode);

/* Reads the next symbols, at least count of them (all when fewer are left), and up to
 * RANS_STATES_MAX more. Returns their number; 0 when escapes ran out. */
uint64_t rans_stream_read(rans_stream *stream, uint64_t count, uint8_t *symbols);

/* Whether all was read and the stream ended as a sound one does. */
bool rans_stream_finish(const rans_stream *stream);

#endif
