/* SPDX-License-Identifier: Apache-2.0 */
/*
 * coding.h - single records: an entry's bytes into one self-describing record, and back, for those
 * who keep the records themselves (a serialiser, a transport, a tool).
 *
 *     kvt_coding coding = {.struct_size = sizeof coding, .layout = layout};
 *     kvt_status status = kvt_variant_parse("planes:k4v4,g64", &coding.variant);
 *     kvt_coding_sizes sizes = {.struct_size = sizeof sizes};
 *     if (status == KVT_OK) status = kvt_coding_plan(&coding, &sizes);
 *     void *record = aligned_alloc(64, sizes.record_bytes);
 *     void *scratch = aligned_alloc(64, sizes.scratch_bytes + 64);
 *     uint64_t bytes;
 *     status = kvt_coding_encode(&coding, kv, sizes.source_bytes, record, sizes.record_bytes,
 *                                scratch, sizes.scratch_bytes, &bytes);
 *
 * and on the other side, where nothing but the record is known:
 *
 *     kvt_coding_info info = {.struct_size = sizeof info};
 *     status = kvt_coding_inspect(record, bytes, &info);
 *     status = kvt_coding_decode(NULL, record, bytes, kv, info.decoded_bytes, scratch,
 *                                info.scratch_bytes);
 *
 * A record has all that is needed to decode it: layout, variant, tables, and a checksum of each of
 * its segments (docs/FORMAT.md). The same entry and coding give the same bytes, per version of
 * zstd. No byte of a record is trusted: any bytes give a value or a status.
 *
 * To make, read or derive a record of KVT_CODEC_TRANSFORM a call needs the basis that its variant
 * names (kvt_coding_basis_read).
 *
 * Memory: all of it is the caller's and is used until the call returns; nothing is allocated. A
 * record, and scratch where there is any, is aligned to KVT_CODING_ALIGN; entries have any
 * alignment. The buffers of a call do not overlap.
 *
 * Thread rule: every function is re-entrant and computes on the calling thread, and on those that
 * it lends (kvt_codec_workers). No call blocks.
 */
#ifndef KVTERRACE_CODING_H
#define KVTERRACE_CODING_H

#include "codec.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Alignment of records and of scratch, in bytes. */
#define KVT_CODING_ALIGN 64u

/* For kvt_coding.sink_tokens: no token is stored raw for its position. */
#define KVT_CODING_NO_SINKS UINT32_MAX

/* A basis of KVT_CODEC_TRANSFORM that was read and checked (docs/codecs/transform.md). Nothing
 * changes it, so any number of calls and threads may use it at once. */
typedef struct transform_basis kvt_coding_basis;

/* Memory that a basis takes beside its object, in bytes. */
#define KVT_CODING_BASIS_BYTES 16384u

/* The facts that a basis states of itself. */
typedef struct kvt_coding_basis_info {
    uint32_t struct_size; /* sizeof(kvt_coding_basis_info) of the caller */
    kvt_basis_span span;
    uint8_t hash[KVT_BASIS_HASH_BYTES]; /* its name: variants have the first five digits of it */
    uint32_t layers, kv_heads, head_dim, rotary_dim; /* of the entries that it is for */
    uint32_t sides;                                  /* 2, or 1 */
    uint32_t reserved;                               /* zero */
    uint64_t tokens;                                 /* that it was learnt on */
    uint8_t digest[32];                              /* of the texts that it was learnt on */
    char model[96];
} kvt_coding_basis_info;

/*
 * Reads and checks a basis, such as a file that kvterrace profile basis wrote.
 *   object    the bytes of a whole .kvtbasis, aligned to KVT_CODING_ALIGN. They are not copied:
 *             they stay where they are and unchanged for as long as the basis is used
 *   memory    KVT_CODING_BASIS_BYTES, aligned to KVT_CODING_ALIGN; the basis lies there, and needs
 *             no closing
 *   info_out  may be NULL
 * KVT_OK; KVT_E_CORRUPT (cut short, damaged, or no basis); KVT_E_VERSION (of a later format);
 * KVT_E_ARGUMENT (NULL, alignment, struct_size). It takes the time of a hash over the object.
 */
KVT_API KVT_EXPERIMENTAL KVT_NODISCARD kvt_status
kvt_coding_basis_read(const void *object, uint64_t bytes, void *memory,
                      kvt_coding_basis_info *info_out, const kvt_coding_basis **basis_out);

/* An entry and how to store it. Zero but for struct_size, layout and variant: the defaults. */
typedef struct kvt_coding {
    uint32_t struct_size;    /* sizeof(kvt_coding) of the caller */
    uint32_t first_position; /* of the entry's first token in its sequence */
    kvt_key key;             /* stated in the record, and compared when it is decoded */
    uint64_t generation;     /* stated in the record; 0 = 1 */
    kvt_layout layout;
    kvt_variant variant;
    uint32_t sink_tokens;   /* the sequence's first tokens, which lossy variants store raw; 0 = 4.
                               The other variants and a drop stage take 0 alone */
    uint32_t recent_tokens; /* the sequence's last tokens, stored raw as well; 0 = none */
    uint32_t chain_tokens;  /* of the whole sequence; 0 = this entry is its end */
    uint32_t score_layers;  /* 1 or the layout's layers; 0 without scores */
    const float *scores;    /* for drop:scores: [score_layers][tokens], the highest are kept; or
                               NULL */
    const int8_t *levels;   /* for planes: planes more or fewer of each [layer][K, V], -3 to 3; or
                               NULL */
    const kvt_codec_workers *workers;     /* threads that the caller lends, 4096 at most, or NULL */
    const kvt_coding_basis *const *bases; /* [basis_count]: the variant's is chosen among them */
    uint32_t basis_count;                 /* 0: none, and bases may be NULL */
    uint32_t reserved;                    /* zero */
} kvt_coding;

/* Room that an encoding needs. */
typedef struct kvt_coding_sizes {
    uint32_t struct_size;   /* sizeof(kvt_coding_sizes) of the caller */
    uint32_t reserved;      /* zero */
    uint64_t source_bytes;  /* of the entry, exactly */
    uint64_t record_bytes;  /* of the record, at most */
    uint64_t scratch_bytes; /* with the coding's workers; may be 0 */
} kvt_coding_sizes;

/* Says how much room an encoding needs; without the variant's basis, the room that is enough for
 * any basis. KVT_OK; KVT_E_ARGUMENT (NULL, struct_size, layout, or a number out of range);
 * KVT_E_UNSUPPORTED (the variant does not take this layout, has no use for a member that is set, or
 * its basis is for entries of another shape). */
KVT_API KVT_EXPERIMENTAL KVT_NODISCARD kvt_status kvt_coding_plan(const kvt_coding *coding,
                                                                  kvt_coding_sizes *sizes_out);

/*
 * Encodes one entry.
 *   source        the packed entry, in the layout's order: sizes.source_bytes; it is only read
 *   record        capacity bytes, aligned; written from its start on, never past capacity
 *   scratch       aligned; may be NULL when sizes.scratch_bytes is 0
 *   record_bytes_out  bytes of the record, a multiple of 4096; 0 after an error
 * KVT_OK; KVT_RAW: nothing shrank, and the record is a sound one of the raw codec;
 * KVT_E_ARGUMENT (also source_bytes that are not the layout's, scratch that is too small, memory
 * that is not aligned); KVT_E_UNSUPPORTED; KVT_E_SPACE (capacity); KVT_E_MISMATCH (the basis that
 * the variant names is not among those that are given).
 */
KVT_API KVT_EXPERIMENTAL KVT_NODISCARD kvt_status kvt_coding_encode(
    const kvt_coding *coding, const void *source, uint64_t source_bytes, void *record,
    uint64_t capacity, void *scratch, uint64_t scratch_bytes, uint64_t *record_bytes_out);

/* The description that a record carries of itself. */
typedef struct kvt_coding_info {
    uint32_t struct_size; /* sizeof(kvt_coding_info) of the caller */
    uint32_t first_position;
    kvt_key key;
    uint64_t generation;
    kvt_layout layout;   /* of the entry as it was given; opaque for a record of groups */
    kvt_variant variant; /* that it is stored in: raw after KVT_RAW */
    uint64_t record_bytes;
    uint64_t payload_bytes; /* elements, tables and scales, without padding */
    uint64_t source_bytes;  /* of the entry as it was given */
    uint64_t decoded_bytes; /* that decoding gives: fewer after a drop of tokens */
    uint64_t scratch_bytes; /* that decode and derive need, for each worker */
    uint32_t stored_tokens; /* of the layout's tokens */
    uint32_t segment_count;
    uint32_t raw_segments;               /* that are stored as they are */
    uint32_t group_count;                /* of a record of groups of layers; else 0 */
    double bits_per_element;             /* payload over elements; of opaque entries over bytes */
    uint8_t basis[KVT_BASIS_HASH_BYTES]; /* hash of the basis that decoding needs; else zeros */
    uint32_t basis_span;                 /* kvt_basis_span of it; 0: none is needed */
    uint32_t reserved;                   /* zero */
} kvt_coding_info;

/* Reads a record's head and checks that it is sound; the payload is not looked at.
 *   record   bytes of any content and length, aligned
 * KVT_OK; KVT_E_ARGUMENT (NULL, struct_size, alignment); KVT_E_CORRUPT; KVT_E_VERSION (of another
 * format). *info_out counts after KVT_OK alone. */
KVT_API KVT_EXPERIMENTAL KVT_NODISCARD kvt_status kvt_coding_inspect(const void *record,
                                                                     uint64_t bytes,
                                                                     kvt_coding_info *info_out);

/* The same, and verifies the checksum of every segment. */
KVT_API KVT_EXPERIMENTAL KVT_NODISCARD kvt_status kvt_coding_verify(const void *record,
                                                                    uint64_t bytes,
                                                                    kvt_coding_info *info_out);

/* Facts that a decoder is told beside the record. Zero but for struct_size: the defaults. */
typedef struct kvt_decoding {
    uint32_t struct_size;                 /* sizeof(kvt_decoding) of the caller */
    uint32_t reserved;                    /* zero */
    const kvt_key *key;                   /* that the record must state, or NULL for any */
    uint64_t generation;                  /* that it must state beside its key; 0 = 1 */
    const kvt_codec_workers *workers;     /* threads that the caller lends, or NULL */
    const kvt_coding_basis *const *bases; /* [basis_count]: the record's is chosen among them */
    uint32_t basis_count;                 /* 0: none, and bases may be NULL */
    uint32_t reserved2;                   /* zero */
} kvt_decoding;

/*
 * Decodes a whole record.
 *   decoding      may be NULL: the defaults
 *   target        the packed entry: exactly info.decoded_bytes. After a drop of tokens the rows of
 *                 those that were kept follow each other (kvt_coding_tokens_read). Its content is
 *                 undefined after an error
 *   scratch       as kvt_coding_info.scratch_bytes says, aligned; may be NULL when that is 0
 * KVT_OK (the checksum of every segment is right); KVT_E_MISMATCH (another key or generation, or
 * the record's basis, which kvt_coding_info names, is not among those that are given);
 * KVT_E_CORRUPT; KVT_E_VERSION; KVT_E_SPACE (wrong target_bytes, scratch too small); KVT_E_ARGUMENT
 * (NULL, struct_size, alignment, workers).
 */
KVT_API KVT_EXPERIMENTAL KVT_NODISCARD kvt_status
kvt_coding_decode(const kvt_decoding *decoding, const void *record, uint64_t bytes, void *target,
                  uint64_t target_bytes, void *scratch, uint64_t scratch_bytes);

/*
 * Makes a coarser record of a record, without the entry: of planes one with fewer planes, of
 * entropy one at three times the step of K, V or both, of transform one at three times the step. It
 * decodes to the same bytes as one that was encoded so from the entry, as long as the same tokens
 * and matrices are stored raw; no error stacks.
 *   decoding  as of kvt_coding_decode; may be NULL. The work is done on the calling thread
 *   target    capacity bytes, aligned. The record_bytes of kvt_coding_plan are always enough;
 *             info.record_bytes are enough for planes, and in practice for the other codecs
 *   scratch   as kvt_coding_info.scratch_bytes says
 * KVT_OK; KVT_E_UNSUPPORTED (the record has no such coarser one); KVT_E_ARGUMENT (the variant is
 * no coarser one; NULL, struct_size, alignment, scratch); KVT_E_MISMATCH (as of decoding);
 * KVT_E_SPACE; KVT_E_CORRUPT; KVT_E_VERSION.
 */
KVT_API KVT_EXPERIMENTAL KVT_NODISCARD kvt_status
kvt_coding_derive(const kvt_decoding *decoding, const void *record, uint64_t bytes,
                  kvt_variant variant, void *target, uint64_t capacity, void *scratch,
                  uint64_t scratch_bytes, uint64_t *record_bytes_out);

/*
 * Says which tokens of a layer a record has.
 *   tokens_out   count of them, which is info.stored_tokens or more: token numbers from 0, the
 *                entry's first, ascending
 * KVT_OK; KVT_E_ARGUMENT (opaque, no such layer, room for fewer; NULL, alignment); KVT_E_CORRUPT;
 * KVT_E_VERSION.
 */
KVT_API KVT_EXPERIMENTAL KVT_NODISCARD kvt_status kvt_coding_tokens_read(
    const void *record, uint64_t bytes, uint32_t layer, uint32_t *tokens_out, uint32_t count);

#ifdef __cplusplus
}
#endif

#endif
