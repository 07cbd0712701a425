/* SPDX-License-Identifier: Apache-2.0 */
/*
 * codec.h - bytes to bytes: encode an entry into one self-describing record, and back.
 *
 * A record holds everything needed to decode it (docs/FORMAT.md): header, segment table, segments,
 * checksums. Codecs are pure: no I/O, no threads, no clock, no allocation; the caller gives
 * scratch, and may lend threads (kvt_codec_workers). The same input gives the same bytes (per zstd
 * version). Decoders trust no byte: any input yields a value or KVT_E_CORRUPT / KVT_E_VERSION,
 * never undefined behaviour.
 *
 * Thread rule: every function is re-entrant; calls on disjoint buffers may run in parallel.
 */
#ifndef KVTERRACE_CODEC_H
#define KVTERRACE_CODEC_H

#include "types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Codec ids are part of the record format: append only, never reused. 128-255 are for codecs
 * that live outside this project. */
typedef enum kvt_codec_id {
    KVT_CODEC_RAW = 1,      /* copy */
    KVT_CODEC_LOSSLESS = 2, /* exponent plane split off and entropy-coded; exact */
    KVT_CODEC_KIVI = 3,     /* the published KIVI quantizer, bit-exact */
    KVT_CODEC_PLANES = 4,   /* nested quantizer in bit planes; its top 4 bits are KIVI-4 */
    KVT_CODEC_ENTROPY = 5,  /* uniform step and static-table entropy coding */
    KVT_CODEC_DROP = 6,     /* token drop: a stage before any codec, in the variant's mode */
    KVT_CODEC_ROTATE = 7    /* Hadamard transform and a per-token quantizer */
} kvt_codec_id;

/* Modes of KVT_CODEC_LOSSLESS. 1 was a form that no release has had. */
enum { KVT_LOSSLESS_FAST = 2, KVT_LOSSLESS_DENSE = 3 };

/* Modes of KVT_CODEC_KIVI: the two published dequantisations of the same stored codes. */
enum {
    KVT_KIVI_FLOAT = 1, /* scale * code + minimum in fp32, as the CUDA kernels do */
    KVT_KIVI_HALF = 2   /* fp16 multiplication, then fp16 addition, as the torch path does */
};

/*
 * A variant's mode: low byte = the codec's mode; high byte = the drop stage, 0 for none, else
 * method in its upper 3 bits and kept share in 32nds (1 to 31) in its lower 5 bits.
 */
typedef enum kvt_drop_method {
    KVT_DROP_NONE = 0,
    KVT_DROP_STREAM = 1,  /* StreamingLLM: first and most recent tokens */
    KVT_DROP_KNORM = 2,   /* small keys first kept */
    KVT_DROP_KEYDIFF = 3, /* keys unlike the mean key */
    KVT_DROP_LAGKV = 4,   /* tokens unlike the partition after theirs */
    KVT_DROP_SCORES = 5   /* the caller's scores */
} kvt_drop_method;

/* Alignment of the record's start and of its planes, and the granularity of its stored size. */
#define KVT_RECORD_ALIGN 4096u

enum {
    KVT_CODEC_FLAG_EXACT = 1u << 0,       /* decode(encode(x)) == x, bit for bit */
    KVT_CODEC_FLAG_NEEDS_SHAPE = 1u << 1, /* does not take opaque layouts */
    KVT_CODEC_FLAG_PARTS = 1u << 2,       /* stores a matrix as parts: the *_matrix members are set,
                                           * the *_segment members are NULL */
    KVT_CODEC_FLAG_FIXED = 1u << 3,       /* with PARTS: every part has exactly its listed size */
    KVT_CODEC_FLAG_NESTED = 1u << 4       /* with FIXED: planes can be dropped from a record */
};

/* What a segment of a record holds (docs/FORMAT.md). */
typedef enum kvt_part_kind {
    KVT_PART_RAW = 1,       /* the decoded bytes of a whole matrix */
    KVT_PART_CODED = 2,     /* a whole matrix, by a codec without parts */
    KVT_PART_METADATA = 3,  /* scales, minima, centroids */
    KVT_PART_DATA = 4,      /* codes of one plane */
    KVT_PART_TABLE = 5,     /* entropy tables */
    KVT_PART_INDEX = 6,     /* which tokens were kept */
    KVT_PART_RAW_TOKENS = 7 /* tokens of a coded matrix that are stored as they are */
} kvt_part_kind;

enum {
    KVT_PARTS_MAX = 8,     /* parts of one matrix */
    KVT_PLANES_MAX = 5,    /* planes of one matrix */
    KVT_LEVEL_LIMIT = 3,   /* a layer's level lies within -3 .. 3 */
    KVT_LAYERS_MAX = 3800, /* layers of a layout, for codecs with parts */
    KVT_ENTROPY_SYMBOLS = 256
};

/*
 * What does not fit into a variant; NULL everywhere means that all is zero.
 * New fields are added at the end; struct_size tells which are present. What a library does not
 * know must be zero (else KVT_E_UNSUPPORTED).
 */
typedef struct kvt_codec_extras {
    uint32_t struct_size;   /* sizeof(kvt_codec_extras) of the caller */
    uint32_t chain_tokens;  /* length of the whole sequence; 0: first_position + tokens */
    uint32_t sink_tokens;   /* the first positions of the chain are stored raw */
    uint32_t recent_tokens; /* the last positions of the chain are stored raw */
    const int8_t *levels;   /* planes more or fewer for each [layer][K, V], or NULL */
    const float *scores;    /* KVT_DROP_SCORES: [score_layers][tokens], higher is kept */
    uint32_t score_layers;  /* 1 or the layout's layers */
    uint32_t reserved;
    /* entropy: static tables, made of these counts [count_layers][K, V][KVT_ENTROPY_SYMBOLS] of a
     * sample (kvt_entropy_count) instead of each matrix' own; or NULL. Every sum is in 1 .. 2^32
     * - 1. Records store the tables, so that decoding needs nothing else. */
    const uint32_t *symbol_counts;
    uint32_t count_layers; /* 1 or the layout's layers; 0 without counts */
    uint32_t reserved2;
} kvt_codec_extras;

/* One (layer, side) matrix [tokens][kv_heads][head_dim] as a codec with parts sees it. Tokens that
 * are stored raw or were dropped are not in it; rows follow each other without gaps. */
typedef struct kvt_matrix {
    uint32_t tokens; /* at least 1 */
    uint16_t kv_heads;
    uint16_t head_dim;
    uint8_t dtype; /* KVT_DTYPE_FP16, BF16 or FP32 */
    uint8_t side;  /* kvt_side */
    uint16_t layer;
    uint32_t planes; /* 1 .. KVT_PLANES_MAX */
    uint32_t reserved;
    const kvt_codec_extras *extras; /* NULL when decoding */
} kvt_matrix;

/* One part of a matrix: its place in the record's order, its size, and where its bytes are. */
typedef struct kvt_part {
    uint8_t kind; /* METADATA, DATA or TABLE */
    uint8_t reserved;
    uint16_t plane;
    uint32_t reserved2;
    uint64_t bytes; /* listed: exact for FIXED codecs, else the most; encoded: the stored bytes */
    uint8_t *data;  /* aligned to 64; decoders only read it */
} kvt_part;

/*
 * One codec. A segment is one (layer, side) matrix, or the whole entry of an opaque layout.
 * New fields are added at the end; struct_size tells which are present. The record strips the drop
 * stage from the variant's mode before it calls any of these.
 */
typedef struct kvt_codec {
    uint32_t struct_size; /* sizeof(kvt_codec) of the writer */
    uint32_t abi_version; /* KVT_CODEC_ABI */
    uint16_t id;          /* stored in records */
    uint16_t flags;       /* KVT_CODEC_FLAG_* */
    const char *name;

    /* KVT_OK when the variant's mode and rate exist and the layout is one this codec takes,
     * KVT_E_UNSUPPORTED otherwise. */
    kvt_status (*check)(kvt_variant variant, const kvt_layout *layout);

    /* Worst-case stored bytes of one segment of source_bytes. */
    uint64_t (*segment_bound)(kvt_variant variant, const kvt_layout *layout, uint64_t source_bytes);

    /* Scratch that encode_segment and decode_segment need for one segment; 0 allowed. */
    uint64_t (*segment_scratch)(kvt_variant variant, const kvt_layout *layout,
                                uint64_t source_bytes);

    /* Encodes one segment. Never writes past capacity. KVT_OK with the stored bytes in
     * *written_out; KVT_RAW when the result would not be smaller than source_bytes (then the
     * record stores the segment raw and target's content is undefined). */
    kvt_status (*encode_segment)(kvt_variant variant, const kvt_layout *layout, const void *source,
                                 uint64_t source_bytes, void *target, uint64_t capacity,
                                 void *scratch, uint64_t scratch_bytes, uint64_t *written_out);

    /* Decodes one segment into exactly target_bytes. KVT_OK or KVT_E_CORRUPT. */
    kvt_status (*decode_segment)(kvt_variant variant, const kvt_layout *layout, const void *source,
                                 uint64_t source_bytes, void *target, uint64_t target_bytes,
                                 void *scratch, uint64_t scratch_bytes);

    /* The members below are set by codecs with parts. */

    /* Planes that a matrix of that side keeps when its layer's level is added. */
    uint32_t (*matrix_planes)(kvt_variant variant, kvt_side side, int level);

    /* The side whose planes lie first in the record, plane by plane. */
    kvt_side (*first_side)(kvt_variant variant);

    /* Most recent tokens of that side that the variant stores raw, of `tokens`. */
    uint32_t (*matrix_recent)(kvt_variant variant, kvt_side side, uint32_t tokens);

    /* Lists the parts in the record's order: planes ascending, metadata and tables before data.
     * Returns their number; data is left NULL. */
    uint32_t (*matrix_parts)(kvt_variant variant, const kvt_matrix *matrix,
                             kvt_part parts_out[KVT_PARTS_MAX]);

    /* Scratch that encode_matrix and decode_matrix need; 0 allowed. */
    uint64_t (*matrix_scratch)(kvt_variant variant, const kvt_matrix *matrix);

    /*
     * Encodes one matrix into the listed parts, whose data have room for the listed bytes; sets the
     * stored bytes. parts NULL: only tells whether the matrix can be coded. KVT_OK; KVT_RAW when it
     * cannot (not finite, or nothing gained): that choice must not depend on the planes kept.
     */
    kvt_status (*encode_matrix)(kvt_variant variant, const kvt_matrix *matrix, const void *source,
                                kvt_part *parts, void *scratch, uint64_t scratch_bytes);

    /* Decodes one matrix from its parts, as many as are listed for matrix->planes. KVT_OK or
     * KVT_E_CORRUPT. */
    kvt_status (*decode_matrix)(kvt_variant variant, const kvt_matrix *matrix,
                                const kvt_part *parts, void *target, void *scratch,
                                uint64_t scratch_bytes);

    /* NESTED codecs: whether `fewer` is `present` with fewer planes, or the same. */
    bool (*drops_to)(kvt_variant present, kvt_variant fewer);

    /* Codecs whose parts can be made coarser without the elements; NULL for others. Whether
     * `coarser` can be made of `present`. */
    bool (*derives_to)(kvt_variant present, kvt_variant coarser);

    /* Makes the parts of one matrix in `coarser` of those in `present`. coarser_parts have room for
     * their listed bytes, which may be fewer than matrix_parts says; sets the stored bytes. KVT_OK;
     * KVT_RAW when nothing would be gained over raw; KVT_E_SPACE; KVT_E_CORRUPT. */
    kvt_status (*derive_matrix)(kvt_variant present, kvt_variant coarser, const kvt_matrix *matrix,
                                const kvt_part *parts, kvt_part *coarser_parts, void *scratch,
                                uint64_t scratch_bytes);
} kvt_codec;

#define KVT_CODEC_ABI 1u

/* The table of codecs. find returns NULL for an unknown id or name; at returns NULL past the end.
 */
KVT_API const kvt_codec *kvt_codec_find(uint16_t id);
KVT_API const kvt_codec *kvt_codec_find_name(const char *name);
KVT_API const kvt_codec *kvt_codec_at(size_t index);

/*
 * Parses a variant's name. KVT_OK or KVT_E_ARGUMENT. name and variant_out are not NULL.
 *   raw, lossless, lossless:fast
 *   kivi:k4v4,g64[,r128][,half]       bits 2, 4, 8; groups of 32, 64, 128; window r, multiple of 32
 *   planes:k6v4,g64[,vhead|vchan][,vfirst]   bits 2, 3, 4, 6, 8; V groups along the row (default),
 *                                     inside a head, or per channel; vfirst: V planes lie first
 *   entropy:k0.25v0.5[,vchan][,middle]   steps in standard deviations, 1/16 to 12; values come
 *                                     back at the middle of their cell, not at its centre of mass
 *   rotate:b4[,row]                   bits 3, 4, 8; over the head or over the row
 *   drop:stream,50[+<one of these>]   method and kept percent, then the codec (default raw)
 * Settings that are left out take their defaults: kivi:k4v4,g64; planes:k4v4,g64;
 * entropy:k0.25v0.5; rotate:b4.
 */
KVT_API KVT_NODISCARD kvt_status kvt_variant_parse(const char *name, kvt_variant *variant_out);

/* Writes the variant's name, always terminated, cut to size. Returns the length it would need. */
KVT_API size_t kvt_variant_format(kvt_variant variant, char *text, size_t size);

/* What a record says about itself besides its payload. */
typedef struct kvt_record_spec {
    kvt_key key;
    uint64_t generation;     /* distinguishes re-puts of one key; at least 1 */
    kvt_layout layout;       /* of the decoded entry */
    kvt_variant variant;     /* as asked for; single segments may have fallen back to raw */
    uint32_t first_position; /* position of the entry's first token in its sequence */
    uint32_t reserved;       /* zero */
} kvt_record_spec;

/* A record that has been parsed: its header and table are sound and lie inside the given bytes. */
typedef struct kvt_record_info {
    kvt_record_spec spec;
    uint64_t source_bytes;  /* decoded size */
    uint64_t record_bytes;  /* whole record, a multiple of KVT_RECORD_ALIGN */
    uint64_t payload_bytes; /* sum of stored segments without padding */
    uint32_t segment_count;
    uint32_t raw_segments;            /* segments that fell back to raw */
    double bits_per_element;          /* payload over elements; opaque counts bytes as elements */
    double physical_bits_per_element; /* record_bytes over elements: what the policy pays */
    uint64_t decoded_bytes;           /* what decoding gives: source_bytes, less after a drop */
    uint32_t stored_tokens;           /* tokens that were kept */
    uint32_t plane_count;             /* most planes of a matrix */
    uint64_t head_bytes;              /* header slots and tables; the payload starts there */
    uint64_t scratch_bytes;           /* that decoding needs; a record tells it where the bound of
                                         its spec cannot, as after a drop by the caller's chain */
} kvt_record_info;

/*
 * Worst-case record size and scratch size for kvt_record_encode and kvt_record_decode.
 * KVT_OK, KVT_E_ARGUMENT (layout), KVT_E_UNSUPPORTED (variant for that layout).
 */
KVT_API KVT_NODISCARD kvt_status kvt_record_bound(const kvt_record_spec *spec,
                                                  uint64_t *record_bytes_out,
                                                  uint64_t *scratch_bytes_out);

/*
 * Encodes one entry.
 *   source        source_bytes as kvt_layout_bytes(spec->layout) says; read only
 *   record        capacity bytes, aligned to 64; written up to *record_bytes_out, never past
 *                 capacity
 *   scratch       at least the bound's scratch bytes, aligned to 64; may be NULL when that is 0
 * Returns KVT_OK; KVT_RAW when nothing shrank and the record holds the entry raw (the record is
 * valid, and its spec.variant says raw); KVT_E_ARGUMENT; KVT_E_UNSUPPORTED; KVT_E_SPACE when
 * capacity is too small.
 */
KVT_API KVT_NODISCARD kvt_status kvt_record_encode(const kvt_record_spec *spec, const void *source,
                                                   uint64_t source_bytes, void *record,
                                                   uint64_t capacity, void *scratch,
                                                   uint64_t scratch_bytes,
                                                   uint64_t *record_bytes_out);

/* The same with extras: extras may be NULL, then it is kvt_record_encode. KVT_E_ARGUMENT also for
 * extras out of range; KVT_E_UNSUPPORTED for extras that the variant has no use for. */
KVT_API KVT_NODISCARD kvt_status kvt_record_encode_with(const kvt_record_spec *spec,
                                                        const kvt_codec_extras *extras,
                                                        const void *source, uint64_t source_bytes,
                                                        void *record, uint64_t capacity,
                                                        void *scratch, uint64_t scratch_bytes,
                                                        uint64_t *record_bytes_out);

/* What kvt_record_drop_planes did, for a caller that keeps the record on a device. Ranges are from
 * the record's start. */
typedef struct kvt_record_drop {
    uint64_t slot_offset;   /* header slot that was written, 4096 bytes; write it last */
    uint64_t table_offset;  /* segment table that was written */
    uint64_t table_bytes;   /* of it */
    uint64_t moved_from;    /* payload from here to record_bytes changed; == record_bytes: none */
    uint64_t record_bytes;  /* of the smaller record; everything past it can be released */
    uint64_t payload_bytes; /* as in kvt_record_info */
} kvt_record_drop;

/*
 * Drops planes from a record in place, so that it is what encoding with `variant` gives: payload,
 * segment table and sizes are the same, byte for byte; header and table are in the other slot.
 * Nothing is decoded, and when the dropped planes are the last ones of the record (K and V equal,
 * or the side that lies first one plane ahead) no payload moves: then `bytes` may be as few as
 * info.head_bytes. variant differs from the record's in fewer planes only.
 * KVT_OK; KVT_E_UNSUPPORTED (the record's codec is not nested, or it stores nothing in planes);
 * KVT_E_ARGUMENT (another variant, or more planes than there are); KVT_E_SPACE (payload must move
 * and is not all there); KVT_E_CORRUPT, KVT_E_VERSION.
 */
KVT_API KVT_NODISCARD kvt_status kvt_record_drop_planes(void *record, uint64_t bytes,
                                                        kvt_variant variant,
                                                        kvt_record_drop *drop_out);

/*
 * Makes a coarser record of a record without the elements: entropy at three times the step of K, V
 * or both. Its codes are those of the present record divided by 3, to the nearest integer, which
 * are the codes of encoding the elements themselves at that step; no error stacks. So it is byte
 * for byte the record that kvt_record_encode makes at `variant` (with tables of its own codes), as
 * long as the same matrices are stored raw: one that is raw here stays raw.
 *   target   capacity bytes, aligned to 64, apart from the record; the present record's
 *            bytes are enough room in practice, kvt_record_bound always is
 *   scratch  as kvt_record_bound says for the record's spec, aligned to 64
 * Every segment is verified on the way. KVT_OK; KVT_E_UNSUPPORTED (the record's codec has no
 * coarser form, or a matrix would not be smaller than raw); KVT_E_ARGUMENT (another variant, or
 * scratch is too small); KVT_E_SPACE; KVT_E_CORRUPT; KVT_E_VERSION.
 */
KVT_API KVT_NODISCARD kvt_status kvt_record_derive(const void *record, uint64_t bytes,
                                                   kvt_variant variant, void *target,
                                                   uint64_t capacity, void *scratch,
                                                   uint64_t scratch_bytes,
                                                   uint64_t *record_bytes_out);

/*
 * For kvt_codec_extras.symbol_counts: adds to counts how often each symbol of the entropy codec
 * occurs in one matrix at this variant. The matrix' tokens, kv_heads, head_dim, dtype and side are
 * read; scratch, aligned to 64, as the codec's matrix_scratch says. KVT_OK; KVT_RAW (the matrix is
 * one that is stored raw, nothing was added); KVT_E_ARGUMENT, KVT_E_UNSUPPORTED.
 */
KVT_API KVT_NODISCARD kvt_status kvt_entropy_count(kvt_variant variant, const kvt_matrix *matrix,
                                                   const void *source, void *scratch,
                                                   uint64_t scratch_bytes,
                                                   uint32_t counts[KVT_ENTROPY_SYMBOLS]);

/*
 * Which tokens of a layer a record holds: positions_out gets info.stored_tokens token numbers
 * (0 = the entry's first token), ascending. All of them unless the variant drops tokens. KVT_OK;
 * KVT_E_ARGUMENT (opaque, layer, or room for fewer); KVT_E_CORRUPT; KVT_E_VERSION.
 */
KVT_API KVT_NODISCARD kvt_status kvt_record_kept_tokens(const void *record, uint64_t bytes,
                                                        uint32_t layer, uint32_t *positions_out,
                                                        uint32_t positions_count);

/* Which channels of a head turn together. */
typedef enum kvt_rope_pairing {
    KVT_ROPE_HALVES = 0,    /* j with j + rotary_dim / 2, as in Hugging Face's Llama */
    KVT_ROPE_NEIGHBOURS = 1 /* 2 j with 2 j + 1, as in llama2.c and the paper */
} kvt_rope_pairing;

/* How a model turns its keys by their positions. */
typedef struct kvt_rope {
    uint32_t struct_size; /* sizeof(kvt_rope) of the caller */
    uint16_t rotary_dim;  /* channels of a head that turn: even, at most head_dim */
    uint8_t pairing;      /* kvt_rope_pairing */
    uint8_t reserved;
    double base;               /* theta; pair j turns by base^(-2 j / rotary_dim) a position */
    const double *frequencies; /* NULL; else [rotary_dim / 2] in radians a position, for scaled
                                * models: 0 to 6.28, base is not looked at */
} kvt_rope;

/*
 * Turns the keys of one layer of a dropped record to contiguous positions, in place: row i, which
 * the model made for position old_first + kept[i], to position new_first + i. For engines that tie
 * a position to a slot; attention at the original positions needs no turning.
 *   layout        of the record, tokens as stored in info.spec
 *   kept, count   of kvt_record_kept_tokens: token numbers, ascending
 *   old_first     info.spec.first_position
 *   keys          count rows [kv_heads][head_dim] as decoded, keys_bytes in all
 * Angles in double, the turn in fp32, one rounding to the dtype; a row that stays where it was
 * keeps its bits. KVT_OK; KVT_E_ARGUMENT (layout, sizes, an index that is not ascending or outside
 * the layout, positions past 2^32, a base that is not above 1); KVT_E_UNSUPPORTED (dtype, rotary
 * width, pairing, a frequency out of range, more than 1024 channels without frequencies).
 * Source: RoFormer (arXiv 2104.09864).
 */
KVT_API KVT_NODISCARD kvt_status kvt_keys_rerotate(const kvt_layout *layout, const kvt_rope *rope,
                                                   const uint32_t *kept, uint32_t count,
                                                   uint32_t old_first, uint32_t new_first,
                                                   void *keys, uint64_t keys_bytes);

/* Parses and checks header and segment table; payload checksums are not verified. record may be
 * any bytes of any length, aligned to 8. KVT_OK, KVT_E_CORRUPT, KVT_E_VERSION. */
KVT_API KVT_NODISCARD kvt_status kvt_record_parse(const void *record, uint64_t bytes,
                                                  kvt_record_info *info_out);

/* Parses, then verifies every segment's checksum, padding included. Same statuses. */
KVT_API KVT_NODISCARD kvt_status kvt_record_verify(const void *record, uint64_t bytes,
                                                   kvt_record_info *info_out);

/*
 * Decodes a whole record into the caller's buffer. KVT_OK is given only when the checksum of every
 * segment that was decoded is right.
 *   expected      key and generation that the record must carry, or NULL for any
 *   target        exactly decoded_bytes of the record; content is undefined after an error
 * After a drop the layout's tokens are stored_tokens: rows of kept tokens follow each other.
 * KVT_OK; KVT_E_MISMATCH (another key or generation); KVT_E_CORRUPT; KVT_E_VERSION;
 * KVT_E_SPACE (target or scratch has the wrong size).
 */
KVT_API KVT_NODISCARD kvt_status kvt_record_decode(const void *record, uint64_t bytes,
                                                   const kvt_record_spec *expected, void *target,
                                                   uint64_t target_bytes, void *scratch,
                                                   uint64_t scratch_bytes);

/*
 * Threads that the caller lends for one call: its pool's parallel loop. A loop on one thread is
 *
 *   static void run(void *context, uint32_t tasks, kvt_codec_task task, void *argument)
 *   {
 *       for (uint32_t i = 0; i < tasks; i++) task(argument, i, 0);
 *   }
 *
 * run calls task(argument, index, worker) once for every index below `tasks`, on any threads and in
 * any order, and returns when all have returned and what they wrote is visible to its caller (a
 * join, a mutex or a barrier does both). Calls that may run at the same time have different
 * `worker` numbers, all below count. A task is one (layer, side) matrix or one 8 MiB piece of an
 * opaque entry; it calls nothing of the caller's, takes no lock and does not block.
 */
typedef void (*kvt_codec_task)(void *argument, uint32_t index, uint32_t worker);

typedef struct kvt_codec_workers {
    uint32_t struct_size; /* sizeof(kvt_codec_workers) of the caller */
    uint32_t count;       /* at least 1 */
    void (*run)(void *context, uint32_t tasks, kvt_codec_task task, void *argument);
    void *context;
} kvt_codec_workers;

/*
 * Scratch for the two calls below with so many workers: for each of them what the bound says and,
 * for codecs whose sizes follow from the data, room for one encoded matrix. Statuses as of
 * kvt_record_bound.
 */
KVT_API KVT_NODISCARD kvt_status kvt_record_scratch_parallel(const kvt_record_spec *spec,
                                                             uint32_t workers,
                                                             uint64_t *scratch_bytes_out);

/*
 * kvt_record_encode_with and kvt_record_decode on the caller's workers; workers NULL: on the
 * calling thread alone, as they do. Record, values and status are the same, byte for byte. All
 * codecs decode every matrix as a task of its own, kivi and planes encode so; the others encode in
 * rounds of `count` matrices, as each one's place depends on the sizes before it. Scores of a drop
 * stage are computed on the calling thread. Statuses as there.
 */
KVT_API KVT_NODISCARD kvt_status kvt_record_encode_parallel(
    const kvt_record_spec *spec, const kvt_codec_extras *extras, const kvt_codec_workers *workers,
    const void *source, uint64_t source_bytes, void *record, uint64_t capacity, void *scratch,
    uint64_t scratch_bytes, uint64_t *record_bytes_out);

KVT_API KVT_NODISCARD kvt_status kvt_record_decode_parallel(const void *record, uint64_t bytes,
                                                            const kvt_record_spec *expected,
                                                            const kvt_codec_workers *workers,
                                                            void *target, uint64_t target_bytes,
                                                            void *scratch, uint64_t scratch_bytes);

/* Decodes one (layer, side) matrix alone. target_bytes = kvt_layout_matrix_bytes with
 * stored_tokens rows. Statuses as above, and KVT_E_ARGUMENT for an opaque record or a layer out of
 * range. */
KVT_API KVT_NODISCARD kvt_status kvt_record_decode_matrix(const void *record, uint64_t bytes,
                                                          uint32_t layer, kvt_side side,
                                                          void *target, uint64_t target_bytes,
                                                          void *scratch, uint64_t scratch_bytes);

#ifdef __cplusplus
}
#endif

#endif
