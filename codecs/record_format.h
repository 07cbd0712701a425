/*
 * record_format.h - the bytes of a record, as docs/FORMAT.md gives them.
 *
 *   0            4096         8192                  payload_offset            record_bytes
 *   +------------+------------+---------------------+-------------------------+
 *   | slot A     | slot B     | segment table, zero | segments, zero padding  |
 *   |            | or zero    | padded to 4096      |                         |
 *   +------------+------------+---------------------+-------------------------+
 *
 * The structs are the little-endian bytes themselves; they are copied in and out, never pointed
 * at inside a record, so that a record may lie anywhere.
 */
#ifndef CODECS_RECORD_FORMAT_H
#define CODECS_RECORD_FORMAT_H

#include "codecs.h"

#define RECORD_MAGIC         "KVTR\r\n\x1a\n"
#define RECORD_MAJOR         1u
#define RECORD_MINOR         0u
#define RECORD_SLOT_BYTES    UINT64_C(4096)
#define RECORD_TABLE_OFFSET  (2 * RECORD_SLOT_BYTES)
#define RECORD_SEGMENT_ALIGN UINT64_C(64)      /* between segments of one run */
#define RECORD_RUN_BYTES     UINT64_C(65536)   /* a run this long ends on KVT_RECORD_ALIGN */
#define RECORD_OPAQUE_BYTES  UINT64_C(8388608) /* an opaque entry is cut into this */

typedef enum record_kind {
    RECORD_KIND_RAW = 1,  /* the decoded bytes */
    RECORD_KIND_CODED = 2 /* encoded by the record's variant */
} record_kind;

/* The used head of a slot; zeros follow up to the checksum in the slot's last 8 bytes. magic,
 * major, minor, header_bytes and the checksum's place are the same in every major version. */
typedef struct __attribute__((packed)) record_header {
    uint8_t magic[8];
    uint16_t major;
    uint16_t minor;
    uint32_t header_bytes; /* used bytes of the slot: sizeof(record_header) of the writer */
    uint64_t sequence;     /* at least 1; of two valid slots the higher one counts */
    uint32_t critical_flags;
    uint32_t optional_flags;
    uint8_t key[32];
    uint64_t generation;
    uint16_t layers;
    uint16_t kv_heads;
    uint16_t head_dim;
    uint8_t dtype;
    uint8_t order;
    uint32_t logical_tokens; /* of the sequence, that the entry stands for */
    uint8_t tokens_may_drop;
    uint8_t reserved[3];
    uint64_t opaque_bytes;
    uint16_t codec;
    uint16_t mode;
    uint32_t rate;
    uint32_t first_position;
    uint32_t stored_tokens;
    uint32_t segment_count;
    uint32_t plane_count;
    uint64_t table_offset;
    uint64_t table_bytes; /* padding included */
    uint64_t table_checksum;
    uint64_t payload_offset;
    uint64_t payload_bytes; /* stored bytes without padding */
    uint64_t record_bytes;
    uint64_t source_bytes;
} record_header;

_Static_assert(sizeof(record_header) == 176, "the header is part of the format");
_Static_assert(offsetof(record_header, sequence) == 16, "format");
_Static_assert(offsetof(record_header, critical_flags) == 24, "format");
_Static_assert(offsetof(record_header, key) == 32, "format");
_Static_assert(offsetof(record_header, generation) == 64, "format");
_Static_assert(offsetof(record_header, layers) == 72, "format");
_Static_assert(offsetof(record_header, logical_tokens) == 80, "format");
_Static_assert(offsetof(record_header, opaque_bytes) == 88, "format");
_Static_assert(offsetof(record_header, codec) == 96, "format");
_Static_assert(offsetof(record_header, first_position) == 104, "format");
_Static_assert(offsetof(record_header, segment_count) == 112, "format");
_Static_assert(offsetof(record_header, table_offset) == 120, "format");
_Static_assert(offsetof(record_header, payload_offset) == 144, "format");
_Static_assert(offsetof(record_header, source_bytes) == 168, "format");

#define RECORD_CHECKSUM_AT (RECORD_SLOT_BYTES - sizeof(uint64_t))

typedef struct __attribute__((packed)) record_segment {
    uint32_t layer; /* of an opaque entry: the number of the piece */
    uint8_t side;   /* kvt_side; 0 for opaque */
    uint8_t kind;   /* record_kind */
    uint16_t plane;
    uint64_t offset; /* from the record's start */
    uint64_t stored_bytes;
    uint64_t padded_bytes; /* up to the next segment or the record's end */
    uint64_t raw_bytes;
    uint64_t checksum; /* XXH3-64 over padded_bytes */
} record_segment;

_Static_assert(sizeof(record_segment) == 48, "the segment table is part of the format");
_Static_assert(offsetof(record_segment, plane) == 6, "format");
_Static_assert(offsetof(record_segment, offset) == 8, "format");
_Static_assert(offsetof(record_segment, checksum) == 40, "format");

/* What a layout makes of a record, before anything is encoded. */
typedef struct record_shape {
    uint64_t source_bytes;
    uint64_t segment_bytes; /* decoded; the last one of an opaque entry may be shorter */
    uint32_t segment_count;
    uint64_t table_bytes;
    uint64_t payload_offset;
} record_shape;

/* KVT_OK, or KVT_E_ARGUMENT for an invalid layout. */
kvt_status record_shape_of(const kvt_layout *layout, record_shape *shape_out);

/* Layer, side and decoded bytes of segment index; the rest is zero. */
record_segment record_segment_expected(const kvt_layout *layout, const record_shape *shape,
                                       uint32_t index);

/* Where the next segment starts, and where the present run of segments began. */
typedef struct record_place {
    uint64_t offset;
    uint64_t run_start;
} record_place;

/* Moves past segment index with its stored bytes and returns its padded bytes: to the next 64,
 * or to the next 4096 at the record's end and after the whole layer that completes a run. */
uint64_t record_place_next(record_place *place, const kvt_layout *layout, const record_shape *shape,
                           uint32_t index, uint64_t stored_bytes);

record_segment record_segment_at(const void *record, uint32_t index);

/* KVT_OK; KVT_E_CORRUPT. The record has been parsed. */
kvt_status record_segment_check(const void *record, const record_segment *segment);

/* Parses as kvt_record_parse does; strict also refuses a second slot that is neither zero nor
 * valid. */
kvt_status record_parse(const void *record, uint64_t bytes, bool strict, kvt_record_info *info_out);

uint64_t record_checksum(const void *bytes, uint64_t count);

#endif
