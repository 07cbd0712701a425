/* SPDX-License-Identifier: Apache-2.0 */
/*
 * record_format.h - the bytes of a record, as docs/FORMAT.md gives them.
 *
 *   0            4096         8192                  payload_offset            record_bytes
 *   +------------+------------+---------------------+-------------------------+
 *   | slot A     | slot B     | segment table, zero | segments, zero padding  |
 *   |            | or zero    | padded to 4096      |                         |
 *   +------------+------------+---------------------+-------------------------+
 *
 * A record whose planes can be dropped has a second table of the same size behind the first one,
 * for slot B, and both have room for the segments of all planes: so the payload does not move.
 *
 * The structs are the little-endian bytes themselves; they are copied in and out, never pointed
 * at inside a record, so that a record may lie anywhere.
 */
#ifndef CODECS_RECORD_FORMAT_H
#define CODECS_RECORD_FORMAT_H

#include "codecs.h"
#include "codecs/kernels/checksum.h"

#define RECORD_MAGIC         "KVTR\r\n\x1a\n"
#define RECORD_MAJOR         1u
#define RECORD_MINOR         2u /* written only by records that need it: those with a note */
#define RECORD_OPTIONAL_NOTE 1u /* flag of minor 2: a note is there (record_note.h) */

/* Critical flags: the extension of minor 1 is there; the layout has one side; the record is of
 * groups, and record_groups.h reads it; the name of a basis lies behind the levels; the one side
 * is V, or that of a group is. */
#define RECORD_CRITICAL_EXTENSION 1u
#define RECORD_CRITICAL_ONE_SIDE  2u
#define RECORD_CRITICAL_GROUPS    4u
#define RECORD_CRITICAL_BASIS     8u
#define RECORD_CRITICAL_V_ALONE   16u
#define RECORD_CRITICAL_KNOWN                                                                      \
    (RECORD_CRITICAL_EXTENSION | RECORD_CRITICAL_ONE_SIDE | RECORD_CRITICAL_GROUPS |               \
     RECORD_CRITICAL_BASIS | RECORD_CRITICAL_V_ALONE)

#define RECORD_SLOT_BYTES    UINT64_C(4096)
#define RECORD_TABLE_OFFSET  (2 * RECORD_SLOT_BYTES)
#define RECORD_SEGMENT_ALIGN UINT64_C(64)      /* between segments of one run */
#define RECORD_RUN_BYTES     UINT64_C(65536)   /* a run this long ends on KVT_RECORD_ALIGN */
#define RECORD_OPAQUE_BYTES  UINT64_C(8388608) /* an opaque entry is cut into this */

#define RECORD_MINOR_EXTENSION 1u

#define RECORD_NO_LAYER UINT32_MAX /* layer of an index for all layers */

typedef enum record_kind {
    RECORD_KIND_RAW = KVT_PART_RAW,
    RECORD_KIND_CODED = KVT_PART_CODED
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
    uint32_t logical_tokens; /* that the entry stands for, dropped ones included */
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

#define RECORD_EXTENSION_AT sizeof(record_header)
#define RECORD_LEVELS_AT    (sizeof(record_header) + sizeof(record_extension))
#define RECORD_CHECKSUM_AT  (RECORD_SLOT_BYTES - sizeof(uint64_t))

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

/* Follows the header of records of minor 1: those with parts, a drop stage or raw tokens. One level
 * byte per layer follows it when level_count is not 0. */
typedef struct __attribute__((packed)) record_extension {
    uint32_t head_tokens;    /* of both sides, stored raw */
    uint32_t tail_tokens[2]; /* of K and V, stored raw */
    uint32_t chain_tokens;   /* of the whole sequence */
    uint32_t index_count;    /* index segments: 0, 1, or one per layer */
    uint32_t level_count;    /* layers for a codec with parts, else 0 */
    uint32_t table_count;    /* 2 when planes can be dropped, else 1 */
    uint32_t reserved;
} record_extension;

_Static_assert(sizeof(record_extension) == 32, "the extension is part of the format");

/* A level byte: one nibble per side, K in the low one: 8 = the matrix is stored raw, else the
 * layer's level as a signed number. */
enum { RECORD_LEVEL_RAW = 8 };

/* Follows the levels of a record of a codec with spans. */
typedef struct __attribute__((packed)) record_basis {
    uint8_t hash[KVT_BASIS_HASH_BYTES];
    uint8_t span; /* transform_span */
    uint8_t reserved[7];
} record_basis;

_Static_assert(sizeof(record_basis) == 40, "the name of a basis is part of the format");

/* Everything about a record that follows from its header alone. */
typedef struct record_plan {
    kvt_layout layout;      /* of the entry */
    kvt_layout stored;      /* with the kept tokens only */
    kvt_variant variant;    /* without the drop stage */
    const kvt_codec *codec; /* of the variant */
    record_extension extension;
    uint64_t source_bytes;  /* of the entry */
    uint64_t decoded_bytes; /* of the kept tokens */
    uint64_t segment_bytes; /* decoded; the last one of an opaque entry may be shorter */
    uint64_t index_bytes;   /* of one index segment */
    uint64_t table_bytes;   /* of one table: room for the segments of all planes */
    uint64_t payload_offset;
    uint32_t segment_count;
    uint32_t plane_count; /* most planes of a matrix */
    bool extended;        /* minor 1 */
    bool parts;           /* the codec has parts */
    bool grouped;         /* for record_write_slot alone: a head of groups, */
    bool v_alone;         /* one of which has V alone */
    uint32_t first_position;
    uint32_t together; /* matrices that one data part holds, but for the last one: 1, or a span's */
    record_basis basis_name;             /* of a codec with spans; span 0: not known */
    const struct transform_basis *basis; /* NULL: not needed, or not at hand */
    uint8_t levels[KVT_LAYERS_MAX];      /* extension.level_count of them; the last member */
} record_plan;

/*
 * Fills a plan from layout, variant, stored_tokens, first_position, extension, basis_name and
 * levels, which are set; segment and plane counts follow from the levels. KVT_OK, KVT_E_ARGUMENT
 * (layout or numbers out of range), KVT_E_UNSUPPORTED (variant).
 */
kvt_status record_plan_make(record_plan *plan, kvt_variant variant, uint32_t stored_tokens);

/* Finds the basis that a plan needs among those of a caller. KVT_OK, also when none is needed;
 * KVT_E_MISMATCH. */
kvt_status record_plan_take_basis(record_plan *plan, const kvt_record_bases *bases);

/* Whether the layout is one that the basis is of. */
bool record_basis_fits(const struct transform_basis *basis, const kvt_layout *layout);

/* Whether there is such a drop stage and entries of the layout take it. */
bool record_drop_fits(const kvt_layout *layout, kvt_variant variant);

/* Counts segments and planes again, after levels have changed. */
void record_plan_count(record_plan *plan);

bool record_matrix_is_raw(const record_plan *plan, uint32_t layer, kvt_side side);
void record_matrix_set_raw(record_plan *plan, uint32_t layer, kvt_side side);

/* The coded rows of a matrix, and its parts; count_out is 0 for a raw matrix, and for one whose
 * rows are in the part of the first matrix of its span. */
void record_matrix_parts(const record_plan *plan, uint32_t layer, kvt_side side,
                         kvt_matrix *matrix_out, kvt_part parts[KVT_PARTS_MAX],
                         uint32_t *count_out);

/* The side whose settings a matrix is coded with. */
static inline kvt_side record_coded_side(const record_plan *plan, kvt_side side)
{
    return plan->layout.sides == KVT_SIDES_V ? KVT_SIDE_V : side;
}

/* Scratch of the two calls below for the matrices of a span, of which `matrix` is the first. */
uint64_t record_code_scratch(const record_plan *plan, const kvt_matrix *matrix);

/* Whether the parts of a matrix, whose sizes are known, are smaller than fp8 elements. */
bool record_code_shrinks(const record_plan *plan, const kvt_matrix *matrix);

/* The plan's codec over the matrices of a span, as encode_matrix and encode_span of codec_table.h,
 * and their opposites, say. Sources and targets are of the layout's elements. */
kvt_status record_code_encode(const record_plan *plan, const kvt_matrix *matrix,
                              const void *const *sources, kvt_part *parts, void *scratch,
                              uint64_t scratch_bytes);
kvt_status record_code_decode(const record_plan *plan, const kvt_matrix *matrix,
                              const kvt_part *parts, const view_rows *const *targets, void *scratch,
                              uint64_t scratch_bytes);

/* Matrices of a record that is not opaque, and which one the index-th is: layer by layer, K before
 * V. */
static inline uint32_t record_matrices(const record_plan *plan)
{
    return kvt_layout_sides(&plan->layout) * plan->layout.layers;
}

static inline void record_matrix_name(const record_plan *plan, uint32_t index, uint32_t *layer_out,
                                      kvt_side *side_out)
{
    const bool both = kvt_layout_sides(&plan->layout) == 2;
    *layer_out = both ? index / 2 : index;
    *side_out = both && index % 2 != 0 ? KVT_SIDE_V : KVT_SIDE_K;
}

/* Spans of a record, the units of coding: of most codecs every matrix is one. And the matrices of
 * one of them. */
static inline uint32_t record_spans(const record_plan *plan)
{
    return (record_matrices(plan) + plan->together - 1) / plan->together;
}

static inline uint32_t record_span_matrices(const record_plan *plan, uint32_t span)
{
    const uint32_t left = record_matrices(plan) - span * plan->together;
    return left < plan->together ? left : plan->together;
}

/* The span of a matrix. */
static inline uint32_t record_span_of(const record_plan *plan, uint32_t layer, kvt_side side)
{
    return (kvt_layout_sides(&plan->layout) * layer + (uint32_t)side) / plan->together;
}

/* Bytes of one token of one matrix. */
uint64_t record_row_bytes(const record_plan *plan);

/* A segment as the header implies it. */
typedef struct record_want {
    record_segment segment; /* layer, side, kind, plane, raw_bytes; stored_bytes when fixed */
    bool fixed;             /* stored_bytes is known; else raw_bytes is the limit */
    bool either;            /* kind may be RAW or CODED: codecs without parts */
    bool ends_layer;        /* the last segment of its layer in this section */
    bool ends_section;      /* the last of plane 0, or of one side in a further plane */
} record_want;

/* Walks the segments of a record in their order. */
typedef struct record_walk {
    const record_plan *plan;
    uint32_t index;   /* of the segment that next gives */
    uint32_t section; /* 0: plane 0; then two for each further plane */
    uint32_t layer;
    uint32_t side;
    uint32_t part; /* of the present matrix */
} record_walk;

/* Starts at the first segment. next is false past the last one. */
void record_walk_start(record_walk *walk, const record_plan *plan);
bool record_walk_next(record_walk *walk, record_want *want_out);

/* Where the next segment starts, and where the present run of segments began. */
typedef struct record_place {
    uint64_t offset;
    uint64_t run_start;
} record_place;

/* Moves past a segment with its stored bytes and returns its padded bytes: to the next 64, or to
 * the next 4096 at a section's end and after the whole layer that completes a run. */
uint64_t record_place_next(record_place *place, const record_want *want, uint64_t stored_bytes);

/* Scratch of the codec for one matrix, and room for its parts. */
uint64_t record_codec_scratch(const record_plan *plan);
uint64_t record_parts_room(const record_plan *plan);

/* The scratch that encoder and decoder need when they work alone; that of a decoder. */
uint64_t record_scratch_bytes(const record_plan *plan);
uint64_t record_decode_scratch(const record_plan *plan);

/* Where the sections of a table end: in each of them layers ascend, so that a matrix is found
 * without reading the whole table. Section 0 is plane 0 of both sides; index segments lie before
 * it. */
typedef struct record_sections {
    uint32_t indexes; /* index segments */
    uint32_t count;
    uint32_t ends[2 * KVT_PLANES_MAX];
} record_sections;

/* Empties it; then takes the segments of a walk in their order. */
void record_sections_start(record_sections *sections);
void record_sections_add(record_sections *sections, const record_want *want);

/* One matrix of a record, collected from the table. */
typedef struct record_matrix {
    record_segment raw;        /* kind 0: absent. A whole matrix, raw or coded */
    record_segment raw_tokens; /* kind 0: absent */
    record_segment parts[KVT_PARTS_MAX];
    uint32_t part_count;
    uint32_t raw_at; /* their places in the table */
    uint32_t raw_tokens_at;
    uint32_t parts_at[KVT_PARTS_MAX];
} record_matrix;

/* table is the segment table in use, sections tell of all of it. */
void record_matrix_collect(const uint8_t *table, const record_sections *sections, uint32_t layer,
                           kvt_side side, record_matrix *matrix_out);

/* Segment index of the first table, which is the only one of a record of minor 0. */
record_segment record_segment_at(const void *record, uint32_t index);

/* KVT_OK; KVT_E_CORRUPT: the padding is not zero. The record has been parsed. */
kvt_status record_padding_check(const void *record, const record_segment *segment);

/* The same of checksum and padding. */
kvt_status record_segment_check(const void *record, const record_segment *segment);

/* ---- slots and their notes: record_note.c ---- */

typedef enum record_slot_state {
    RECORD_SLOT_ZERO,
    RECORD_SLOT_BROKEN, /* bytes that are neither zero nor a slot with its checksum */
    RECORD_SLOT_SOUND
} record_slot_state;

bool record_is_zero(const uint8_t *bytes, uint64_t count);

record_slot_state record_read_slot(const uint8_t *slot, record_header *header_out);

/* Chooses the slot that counts. strict: a broken slot beside a sound one is corrupt too. */
kvt_status record_choose_slot(const uint8_t *record, bool strict, record_header *header_out,
                              uint32_t *slot_out);

/* Writes a slot's checksum. */
void record_seal_slot(uint8_t *slot);

/* Where the note of a slot lies that claims one; fields_end is where the fields of minors 0 and 1
 * end. KVT_OK; KVT_E_CORRUPT. */
kvt_status record_note_find(const record_header *header, const uint8_t *slot, uint64_t fields_end,
                            uint64_t *offset_out, uint64_t *bytes_out);

/* A record whose header and table are sound. */
typedef struct record_parsed {
    record_plan plan;
    record_header header; /* of the slot that counts */
    uint32_t slot;        /* 0 or 1 */
    const uint8_t *table; /* inside the record */
    record_sections sections;
} record_parsed;

typedef enum record_depth {
    RECORD_DEPTH_HEAD, /* the payload need not be there */
    RECORD_DEPTH_LOAD,
    RECORD_DEPTH_STRICT /* a damaged second slot or table is refused */
} record_depth;

/* Version and flags of the slot that counts. KVT_OK; KVT_E_VERSION; KVT_E_CORRUPT. */
kvt_status record_check_version(const record_header *header);

/* After the fields of this version, where the plan says that they end: a note in minor 2, and
 * zeros, unless a later minor version added what a reader may ignore. KVT_OK; KVT_E_CORRUPT. */
kvt_status record_check_rest(const record_header *header, const record_plan *plan,
                             const uint8_t *slot);

/* Parses as kvt_record_parse does, but for records of groups, which are KVT_E_VERSION here.
 * info_out may be NULL. */
kvt_status record_parse(const void *record, uint64_t bytes, record_depth depth,
                        record_parsed *parsed_out, kvt_record_info *info_out);

/* The same of kvt_record_verify; info_out is not NULL. */
kvt_status record_verify(const void *record, uint64_t bytes, record_parsed *parsed_out,
                         kvt_record_info *info_out);

/* Writes header, extension and checksum of a plan into a zeroed slot. The table is complete. */
typedef struct record_header_values {
    const kvt_record_spec *spec; /* key, generation, first_position */
    kvt_variant variant;         /* as stored, with the drop stage */
    uint64_t sequence;
    uint64_t payload_bytes;
    uint64_t record_bytes;
    uint64_t table_offset;
} record_header_values;

void record_write_slot(uint8_t *record, uint64_t slot_offset, const record_plan *plan,
                       const record_header_values *values);

#endif
