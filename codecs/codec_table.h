/* SPDX-License-Identifier: Apache-2.0 */
/*
 * codec_table.h - what a codec is: the members that a record calls, and the table of codecs.
 *
 * A codec sees one segment or one matrix at a time; record_*.c place what it makes.
 *
 * Thread rule: every function is re-entrant.
 */
#ifndef CODECS_CODEC_TABLE_H
#define CODECS_CODEC_TABLE_H

#include "codecs/kernels/jobs.h"
#include "record.h"
#include "view_rows.h"

enum {
    KVT_CODEC_FLAG_EXACT = 1u << 0,       /* decode(encode(x)) == x, bit for bit */
    KVT_CODEC_FLAG_NEEDS_SHAPE = 1u << 1, /* does not take opaque layouts */
    KVT_CODEC_FLAG_PARTS = 1u << 2,       /* stores a matrix as parts: the *_matrix members are set,
                                           * the *_segment members are NULL */
    KVT_CODEC_FLAG_FIXED = 1u << 3,       /* with PARTS: every part has exactly its listed size */
    KVT_CODEC_FLAG_NESTED = 1u << 4,      /* with FIXED: planes can be dropped from a record */
    KVT_CODEC_FLAG_SPANS = 1u << 5        /* with PARTS, not FIXED: one part may hold several
                                           * matrices, and a basis says how many: the *_span members
                                           * are set, encode_matrix and decode_matrix are NULL */
};

/* The kinds of content that a segment of a record can have (docs/FORMAT.md). */
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
    KVT_PARTS_MAX = 8,    /* parts of one matrix */
    KVT_PLANES_MAX = 5,   /* planes of one matrix */
    KVT_SPAN_MAX = 8,     /* matrices of one part */
    KVT_LEVEL_LIMIT = 3,  /* a layer's level lies within -3 .. 3 */
    KVT_LAYERS_MAX = 3800 /* layers of a layout, for codecs with parts */
};

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
    uint32_t span;   /* matrices of its part, itself the first: layer by layer, K before V */
    const kvt_codec_extras *extras; /* NULL when decoding */
    /* Of codecs with spans: */
    uint32_t first_position;             /* of the first row */
    uint32_t index;                      /* of the part: how many spans lie before it */
    const struct transform_basis *basis; /* NULL: sizes alone are asked for */
    uint32_t layers;                     /* of the entry, */
    uint32_t sides;                      /* and its sides */
    uint32_t basis_span;                 /* transform_span; 0: not known, the widest */
} kvt_matrix;

/* One part of a matrix: its place in the record's order, its size, and where its bytes are. */
typedef struct kvt_part {
    uint8_t kind; /* METADATA, DATA or TABLE */
    uint8_t reserved;
    uint16_t plane;
    uint32_t reserved2;
    uint64_t bytes; /* listed: exact for FIXED codecs, else the most; encoded: the stored bytes */
    uint8_t *data;  /* aligned to 64; decoders only read it */
    const uint8_t *host; /* plan_job: the same bytes where the CPU can look at them, or NULL */
} kvt_part;

/* Where the jobs of a part of several matrices find what they need in the GPU's memory. */
typedef struct kvt_span_place {
    const kernel_target *targets[KVT_SPAN_MAX]; /* of each matrix; NULL: not wanted */
    uint32_t transfers[KVT_SPAN_MAX];           /* transfer_bytes of each */
    uint64_t basis;                             /* the basis's image (transform_image.h) */
    uint64_t room;                              /* span_room bytes */
} kvt_span_place;

/*
 * One codec. A segment is one (layer, side) matrix, or the whole entry of an opaque layout.
 * The record strips the drop stage from the variant's mode before it calls any of these.
 */
typedef struct kvt_codec {
    uint16_t id;    /* stored in records */
    uint16_t flags; /* KVT_CODEC_FLAG_* */
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

    /* Decodes one segment into exactly the bytes of the target. KVT_OK or KVT_E_CORRUPT. */
    kvt_status (*decode_segment)(kvt_variant variant, const kvt_layout *layout, const void *source,
                                 uint64_t source_bytes, const view_rows *target, void *scratch,
                                 uint64_t scratch_bytes);

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
                                const kvt_part *parts, const view_rows *target, void *scratch,
                                uint64_t scratch_bytes);

    /*
     * Codecs with SPANS, in the place of the two above: matrix is the first of matrix->span, which
     * have the same tokens. sources, targets: of each of them; a target may be NULL. There is one
     * part. The statuses are those above.
     */
    kvt_status (*encode_span)(kvt_variant variant, const kvt_matrix *matrix,
                              const void *const *sources, kvt_part *part, void *scratch,
                              uint64_t scratch_bytes);
    kvt_status (*decode_span)(kvt_variant variant, const kvt_matrix *matrix, const kvt_part *part,
                              const view_rows *const *targets, void *scratch,
                              uint64_t scratch_bytes);

    /*
     * How a GPU decodes a matrix (docs/GPU.md): makes the job, but for its head, and says how many
     * blocks of threads it takes. NULL: no kernel.
     *   parts   their data are addresses in the GPU's memory, which are not read; of a codec
     *           without parts one, the stored segment
     *   target  of the first row; transfer_bytes and element type of it as in jobs.h
     * KVT_OK; KVT_E_UNSUPPORTED: not this matrix.
     */
    kvt_status (*plan_job)(kvt_variant variant, const kvt_matrix *matrix, const kvt_part *parts,
                           const kernel_target *target, uint32_t transfer_bytes, uint8_t dtype,
                           kernel_work *work_out);

    /*
     * How a GPU encodes a matrix: makes the jobs of the ranges and of the codes, but for their
     * heads, as above. NULL: no kernels. Codecs with FIXED parts alone.
     *   parts      their data are addresses in the GPU's memory
     *   source     of the first coded row
     *   histogram  address of 256 counts for the matrix, which are zero
     * KVT_OK; KVT_E_UNSUPPORTED: not this matrix, which the CPU may store raw.
     */
    kvt_status (*plan_code)(kvt_variant variant, const kvt_matrix *matrix, const kvt_part *parts,
                            const kernel_target *source, uint32_t transfer_bytes, uint8_t dtype,
                            uint64_t histogram, kernel_work works_out[2]);

    /* Fills what kernels leave out of a matrix's metadata; NULL: nothing. */
    void (*finish_code)(const uint32_t histogram[256], uint8_t *metadata);

    /* How a GPU decodes a part of a codec with SPANS: bytes of the room that its jobs share, a
     * multiple of 64, and the jobs: of the part, then of each target that is wanted. */
    uint64_t (*span_room)(const kvt_matrix *matrix);
    kvt_status (*plan_span)(kvt_variant variant, const kvt_matrix *matrix, const kvt_part *part,
                            const kvt_span_place *place, uint8_t dtype,
                            kernel_work works[1 + KVT_SPAN_MAX], uint32_t *count_out);

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

/* The table of codecs. find returns NULL for an unknown id; at returns NULL past the end. */
const kvt_codec *kvt_codec_find(uint16_t id);
const kvt_codec *kvt_codec_at(size_t index);

/* Whether a record of the variant decodes to the entry's own bytes, all of its tokens. */
bool kvt_codec_is_exact(kvt_variant variant);

/*
 * For kvt_codec_extras.symbol_counts: adds to counts how often each symbol of the entropy codec
 * occurs in one matrix at this variant. The matrix' tokens, kv_heads, head_dim, dtype and side are
 * read; scratch, aligned to 64, as the codec's matrix_scratch says. KVT_OK; KVT_RAW (the matrix is
 * one that is stored raw, nothing was added); KVT_E_ARGUMENT, KVT_E_UNSUPPORTED.
 */
KVT_NODISCARD kvt_status kvt_entropy_count(kvt_variant variant, const kvt_matrix *matrix,
                                           const void *source, void *scratch,
                                           uint64_t scratch_bytes,
                                           uint32_t counts[KVT_ENTROPY_SYMBOLS]);

#endif
