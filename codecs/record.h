/* SPDX-License-Identifier: Apache-2.0 */
/*
 * record.h - bytes to bytes: encode an entry into one self-describing record, and back.
 *
 * A record holds everything needed to decode it (docs/FORMAT.md): header, segment table, segments,
 * checksums. Codecs are pure: no I/O, no threads, no clock, no allocation; the caller gives
 * scratch, and may lend threads (kvt_codec_workers). The same input gives the same bytes (per zstd
 * version). Decoders trust no byte: any input yields a value or KVT_E_CORRUPT / KVT_E_VERSION,
 * never undefined behaviour.
 *
 * Thread rule: every function is re-entrant; calls on disjoint buffers may run in parallel.
 */
#ifndef CODECS_RECORD_H
#define CODECS_RECORD_H

#include <kvterrace/codec.h>
#include <kvterrace/view.h>

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

enum { KVT_ENTROPY_SYMBOLS = 256 };

/*
 * The first tokens of a chain, which every lossy record stores raw unless the caller's extras say
 * otherwise. Attention rests on them: an error in these few costs more than one in all others
 * (docs/BENCHMARKS.md). spec.first_position decides which tokens of an entry they are; an entry
 * that begins at this position or later has none.
 */
#define KVT_SINK_TOKENS 4u

/*
 * Parameters that do not fit into a variant. NULL means KVT_SINK_TOKENS raw tokens at the start of
 * the chain, in lossy variants, and all others zero; extras that are given count as they are, but
 * after a drop stage, which keeps those tokens itself, they are stored raw always.
 * New fields are added at the end; struct_size says which are present. Fields that a library does
 * not know must be zero (else KVT_E_UNSUPPORTED).
 */
typedef struct kvt_codec_extras {
    uint32_t struct_size;   /* sizeof(kvt_codec_extras) of the caller */
    uint32_t chain_tokens;  /* length of the whole sequence; 0: first_position + tokens */
    uint32_t sink_tokens;   /* the first positions of the chain are stored raw */
    uint32_t recent_tokens; /* the last positions of the chain are stored raw */
    const int8_t *levels;   /* planes more or fewer for each [layer][K, V], or NULL; here and in
                             * symbol_counts only one's places are read where there is one side */
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

struct transform_basis;

/*
 * Bases of codec transform (transform_basis.h) that a call may use. A record names its basis by its
 * whole hash, a variant by the first 20 bits. They stay unchanged where they are during the call,
 * and for as long as a head is used that was opened with them.
 */
typedef struct kvt_record_bases {
    const struct transform_basis *const *list;
    uint32_t count; /* 0: none; list may be NULL then */
} kvt_record_bases;

/* The facts that a record states about itself besides its payload. */
typedef struct kvt_record_spec {
    kvt_key key;
    uint64_t generation;     /* distinguishes re-puts of one key; at least 1 */
    kvt_layout layout;       /* of the decoded entry */
    kvt_variant variant;     /* as asked for; single segments may have fallen back to raw */
    uint32_t first_position; /* position of the entry's first token in its sequence */
    uint32_t reserved;       /* zero */
    kvt_record_bases bases;  /* that a call may use; a record that was parsed gives none */
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
    uint32_t group_count;             /* of a record of groups (record_groups.h), else 0 */
    uint64_t scratch_bytes;           /* that decoding needs; a record tells it where the bound of
                                         its spec cannot, as after a drop by the caller's chain */
    uint8_t basis[KVT_BASIS_HASH_BYTES]; /* hash of the basis that decoding needs; zeros: none */
    uint32_t basis_span;                 /* transform_span of it; 0: none */
} kvt_record_info;

/*
 * Worst-case record size and scratch size for kvt_record_encode and kvt_record_decode. Without the
 * basis of a variant the scratch is that of the widest span. KVT_OK, KVT_E_ARGUMENT (layout),
 * KVT_E_UNSUPPORTED (variant for that layout, or a basis that is of another shape).
 */
KVT_NODISCARD kvt_status kvt_record_bound(const kvt_record_spec *spec, uint64_t *record_bytes_out,
                                          uint64_t *scratch_bytes_out);

/* The same with extras, which may be NULL, and for `workers` threads, as of
 * kvt_record_scratch_parallel; 0: the calling thread alone. KVT_E_ARGUMENT and KVT_E_UNSUPPORTED
 * also as kvt_record_encode_with. */
KVT_NODISCARD kvt_status kvt_record_bound_with(const kvt_record_spec *spec,
                                               const kvt_codec_extras *extras, uint32_t workers,
                                               uint64_t *record_bytes_out,
                                               uint64_t *scratch_bytes_out);

/*
 * Encodes one entry.
 *   source        source_bytes as kvt_layout_bytes(spec->layout) says; read only
 *   record        capacity bytes, aligned to 64; written up to *record_bytes_out, never past
 *                 capacity
 *   scratch       at least the bound's scratch bytes, aligned to 64; may be NULL when that is 0
 * Returns KVT_OK; KVT_RAW when nothing shrank and the record holds the entry raw (the record is
 * valid, and its spec.variant says raw); KVT_E_ARGUMENT; KVT_E_UNSUPPORTED; KVT_E_MISMATCH when
 * spec.bases lacks the variant's basis; KVT_E_SPACE when capacity is too small.
 */
KVT_NODISCARD kvt_status kvt_record_encode(const kvt_record_spec *spec, const void *source,
                                           uint64_t source_bytes, void *record, uint64_t capacity,
                                           void *scratch, uint64_t scratch_bytes,
                                           uint64_t *record_bytes_out);

/* The same with extras: extras may be NULL, then it is kvt_record_encode. KVT_E_ARGUMENT also for
 * extras out of range; KVT_E_UNSUPPORTED for extras that the variant has no use for. */
KVT_NODISCARD kvt_status kvt_record_encode_with(const kvt_record_spec *spec,
                                                const kvt_codec_extras *extras, const void *source,
                                                uint64_t source_bytes, void *record,
                                                uint64_t capacity, void *scratch,
                                                uint64_t scratch_bytes, uint64_t *record_bytes_out);

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
KVT_NODISCARD kvt_status kvt_record_drop_planes(void *record, uint64_t bytes, kvt_variant variant,
                                                kvt_record_drop *drop_out);

/*
 * Makes a coarser record of a record without the elements: entropy at three times the step of K, V
 * or both. Its codes are those of the present record divided by 3, to the nearest integer, which
 * are the codes of encoding the elements themselves at that step; no error stacks. So it is byte
 * for byte the record that kvt_record_encode makes at `variant` (with tables of its own codes), as
 * long as the same matrices and tokens are stored raw: what is raw here stays raw.
 *   target   capacity bytes, aligned to 64, apart from the record; the present record's
 *            bytes are enough room in practice, kvt_record_bound always is
 *   scratch  as kvt_record_bound says for the record's spec, aligned to 64
 * Every segment is verified on the way. KVT_OK; KVT_E_UNSUPPORTED (the record's codec has no
 * coarser form, or a matrix would not be smaller than raw); KVT_E_ARGUMENT (another variant, or
 * scratch is too small); KVT_E_SPACE; KVT_E_CORRUPT; KVT_E_VERSION; KVT_E_MISMATCH when the record
 * needs a basis that is not among them, or bases is NULL.
 */
KVT_NODISCARD kvt_status kvt_record_derive(const void *record, uint64_t bytes,
                                           const kvt_record_bases *bases, kvt_variant variant,
                                           void *target, uint64_t capacity, void *scratch,
                                           uint64_t scratch_bytes, uint64_t *record_bytes_out);

/*
 * Which tokens of a layer a record holds: positions_out gets info.stored_tokens token numbers
 * (0 = the entry's first token), ascending. All of them unless the variant drops tokens. KVT_OK;
 * KVT_E_ARGUMENT (opaque, layer, or room for fewer); KVT_E_CORRUPT; KVT_E_VERSION.
 */
KVT_NODISCARD kvt_status kvt_record_kept_tokens(const void *record, uint64_t bytes, uint32_t layer,
                                                uint32_t *positions_out, uint32_t positions_count);

/* The same of a record of which its first bytes are here, as many as it has head and sets of kept
 * tokens: those that kvt_record_kept_bytes says. */
KVT_NODISCARD kvt_status kvt_record_kept_first(const void *record, uint64_t bytes, uint32_t layer,
                                               uint32_t *positions_out, uint32_t positions_count);
uint64_t kvt_record_kept_bytes(const kvt_layout *layout, kvt_variant variant, uint32_t sets);

/* Parses and checks header and segment table; payload checksums are not verified. record may be
 * any bytes of any length, aligned to 8. KVT_OK, KVT_E_CORRUPT, KVT_E_VERSION. */
KVT_NODISCARD kvt_status kvt_record_parse(const void *record, uint64_t bytes,
                                          kvt_record_info *info_out);

/* Parses, then verifies every segment's checksum, padding included. Same statuses. */
KVT_NODISCARD kvt_status kvt_record_verify(const void *record, uint64_t bytes,
                                           kvt_record_info *info_out);

/* Where a record that kvt_record_verify calls damaged is so first: a segment, or what stands before
 * the segments. bytes_out is not 0. */
void kvt_record_damage(const void *record, uint64_t bytes, uint64_t *offset_out,
                       uint64_t *bytes_out);

/*
 * Decodes a whole record into the caller's buffer. KVT_OK is given only when the checksum of every
 * segment that was decoded is right.
 *   expected      key and generation that the record must carry, or NULL for any; and the bases
 *                 that it may need
 *   target        exactly decoded_bytes of the record; content is undefined after an error
 * After a drop the layout's tokens are stored_tokens: rows of kept tokens follow each other.
 * KVT_OK; KVT_E_MISMATCH (another key or generation, or the record's basis, which kvt_record_info
 * names, is not there); KVT_E_CORRUPT; KVT_E_VERSION; KVT_E_SPACE (target or scratch has the wrong
 * size).
 */
KVT_NODISCARD kvt_status kvt_record_decode(const void *record, uint64_t bytes,
                                           const kvt_record_spec *expected, void *target,
                                           uint64_t target_bytes, void *scratch,
                                           uint64_t scratch_bytes);

/*
 * Scratch for the two calls below with so many workers: for each of them what the bound says and,
 * for codecs whose sizes follow from the data, room for one encoded matrix. Statuses as of
 * kvt_record_bound.
 */
KVT_NODISCARD kvt_status kvt_record_scratch_parallel(const kvt_record_spec *spec, uint32_t workers,
                                                     uint64_t *scratch_bytes_out);

/*
 * kvt_record_encode_with and kvt_record_decode on the caller's workers; workers NULL: on the
 * calling thread alone, as they do. Record, values and status are the same, byte for byte. All
 * codecs decode every matrix as a task of its own, kivi and planes encode so; the others encode in
 * rounds of `count` matrices, as each one's place depends on the sizes before it. Scores of a drop
 * stage are computed on the calling thread. Statuses as there.
 */
KVT_NODISCARD kvt_status kvt_record_encode_parallel(
    const kvt_record_spec *spec, const kvt_codec_extras *extras, const kvt_codec_workers *workers,
    const void *source, uint64_t source_bytes, void *record, uint64_t capacity, void *scratch,
    uint64_t scratch_bytes, uint64_t *record_bytes_out);

KVT_NODISCARD kvt_status kvt_record_decode_parallel(const void *record, uint64_t bytes,
                                                    const kvt_record_spec *expected,
                                                    const kvt_codec_workers *workers, void *target,
                                                    uint64_t target_bytes, void *scratch,
                                                    uint64_t scratch_bytes);

/*
 * kvt_record_encode_parallel, without extras, from a view that kvt_view_check has passed for the
 * spec's layout: the same record, byte for byte. A raw matrix is gathered into the record; another
 * one that the view has apart is gathered into scratch, one matrix for each worker. A drop stage
 * takes views alone that have every matrix in one run. kvt_record_scratch_view says what scratch is
 * enough for any view; a view with every matrix in one run needs what a packed buffer needs.
 * Statuses as there; KVT_E_UNSUPPORTED also for a drop stage of another view.
 */
KVT_NODISCARD kvt_status kvt_record_encode_view(const kvt_record_spec *spec,
                                                const kvt_codec_workers *workers,
                                                const kvt_view *view, void *record,
                                                uint64_t capacity, void *scratch,
                                                uint64_t scratch_bytes, uint64_t *record_bytes_out);
KVT_NODISCARD kvt_status kvt_record_scratch_view(const kvt_record_spec *spec, uint32_t workers,
                                                 uint64_t *scratch_bytes_out);

/*
 * kvt_record_decode_parallel into a view that kvt_view_check has passed for `layout`, which is the
 * record's but for its order; of a record that has dropped tokens, the view's first tokens are
 * written.
 *   first_layer, layer_count   layers to decode; a count of 0: all from the first one on. Opaque
 *                              entries have no layers: 0 and 0
 * Between the elements of the view nothing is touched. Statuses as there; KVT_E_SPACE also for a
 * record of another layout, KVT_E_ARGUMENT for layers that it does not have.
 */
KVT_NODISCARD kvt_status kvt_record_decode_view(const void *record, uint64_t bytes,
                                                const kvt_record_spec *expected,
                                                const kvt_codec_workers *workers,
                                                const kvt_layout *layout, const kvt_view *view,
                                                uint32_t first_layer, uint32_t layer_count,
                                                void *scratch, uint64_t scratch_bytes);

/*
 * kvt_record_decode_view of one of many records that are decoded one after the other and are large
 * together, as one large record is: the view's whole lines are written past the caches.
 *   next   the record that is decoded after this one, or NULL: its head is asked for meanwhile
 */
KVT_NODISCARD kvt_status kvt_record_decode_of_many(const void *record, uint64_t bytes,
                                                   const kvt_record_spec *expected,
                                                   const kvt_codec_workers *workers,
                                                   const kvt_layout *layout, const kvt_view *view,
                                                   uint32_t first_layer, uint32_t layer_count,
                                                   const void *next, void *scratch,
                                                   uint64_t scratch_bytes);

/* How much of a record has come that is still being read, from its start on. `await` waits until
 * the first `bytes` bytes are there, and says how many are; a status other than KVT_OK ends the
 * decoding, and is what it returns. A call that was ended so is made again with `done` as it left
 * it, and goes on from there. */
typedef struct kvt_record_arrival {
    kvt_status (*await)(void *context, uint64_t bytes, uint64_t *arrived_out);
    void *context;
    uint32_t done; /* tasks that have been run; 0 at first */
} kvt_record_arrival;

/*
 * kvt_record_decode_view of a record whose bytes are on their way: what has come is decoded, a
 * task for each worker between two calls of `await`, on the calling thread, while the rest is read;
 * once all is there, the rest of the tasks together. Bytes that have not come are not looked at.
 */
KVT_NODISCARD kvt_status kvt_record_decode_arriving(const void *record, uint64_t bytes,
                                                    const kvt_record_spec *expected,
                                                    const kvt_codec_workers *workers,
                                                    kvt_record_arrival *arrival,
                                                    const kvt_layout *layout, const kvt_view *view,
                                                    uint32_t first_layer, uint32_t layer_count,
                                                    void *scratch, uint64_t scratch_bytes);

/* Asks for the head of a record that lies in memory, so that it comes while other work is done. */
void kvt_record_prefetch(const void *record);

/* A range of a record, in whole grains, and where a caller keeps its bytes. */
typedef struct kvt_record_range {
    uint64_t offset; /* in the record */
    uint64_t bytes;
    uint64_t at; /* in the caller's memory */
} kvt_record_range;

#define KVT_RECORD_RANGES_MAX 16u /* of one layer: two sides of up to five planes, and raw tokens */

/* A record's head, looked at once for the sake of its layers. */
typedef struct kvt_record_head kvt_record_head;

/*
 * Checks a head, and keeps what the layers need of it in the caller's memory; the head's own bytes
 * are not looked at again. The kept facts may be copied elsewhere, bytes_out of them, aligned to 8.
 *   head      the record's first bytes, codecs_head_bytes of them or more; aligned to 8
 *   whole     they are the whole record
 *   expected  key and generation; NULL: any
 * KVT_OK; KVT_E_MISMATCH; KVT_E_CORRUPT; KVT_E_VERSION; KVT_E_SPACE (bytes_out are needed).
 */
KVT_NODISCARD kvt_status kvt_record_head_open(const void *head, uint64_t head_bytes, bool whole,
                                              const kvt_record_spec *expected, void *memory,
                                              uint64_t capacity, uint64_t *bytes_out);

/* Tokens of each matrix that the record holds, fewer than the layout's after a drop. */
uint32_t kvt_record_head_tokens(const kvt_record_head *head);

/*
 * How many layers are coded together from this one on, itself included: 1, or more in codecs whose
 * parts hold several layers. 0: it comes with the layer before it. Decoding layers of one part one
 * by one gives the same bytes, and costs the part once a layer. layer is below the layout's.
 */
uint32_t kvt_record_head_together(const kvt_record_head *head, uint32_t layer);

/*
 * The ranges of a record that layers lie in, at least one, in the record's order; `at` counts on
 * from 0, one behind the other.
 * KVT_OK; KVT_E_ARGUMENT (opaque, layers); KVT_E_SPACE (more ranges than capacity).
 */
KVT_NODISCARD kvt_status kvt_record_head_ranges(const kvt_record_head *head, uint32_t layer,
                                                uint32_t layer_count, kvt_record_range *ranges,
                                                uint32_t capacity, uint32_t *count_out);

/*
 * Decodes layers into a view from their ranges, which lie in `payload` as ranges[].at say; the
 * rest of the record need not be there. ranges NULL: payload is the whole record. Statuses and
 * rules as of kvt_record_decode_view.
 *   payload   aligned to KVT_RECORD_ALIGN
 */
KVT_NODISCARD kvt_status kvt_record_head_decode(const kvt_record_head *head,
                                                const kvt_layout *layout, const kvt_view *view,
                                                uint32_t layer, uint32_t layer_count,
                                                const void *payload, const kvt_record_range *ranges,
                                                uint32_t count, void *scratch,
                                                uint64_t scratch_bytes);

/*
 * Makes of a head the one of its record's coarse form: the same record as if it had `planes` planes
 * of each side and no more, so that the calls above give that form's ranges and elements. Bytes are
 * where they are. A matrix whose layer has a level has that many planes more or fewer, as a record
 * that has lost planes.
 *   memory  aligned to 8; as many bytes as the head has are enough
 * KVT_OK; KVT_E_UNSUPPORTED: the record has no coarser form (another codec, no further planes,
 * tokens that were dropped); KVT_E_SPACE (bytes_out are needed).
 */
KVT_NODISCARD kvt_status kvt_record_head_coarse(const kvt_record_head *head, uint32_t planes,
                                                void *memory, uint64_t capacity,
                                                uint64_t *bytes_out);

/* The ranges of a layer that its coarse form does not have; none touches one of the coarse form.
 * Statuses as of kvt_record_head_ranges; a layer without further planes has no range. */
KVT_NODISCARD kvt_status kvt_record_head_rest_ranges(const kvt_record_head *head,
                                                     const kvt_record_head *coarse, uint32_t layer,
                                                     kvt_record_range *ranges, uint32_t capacity,
                                                     uint32_t *count_out);

/* Verifies these further segments, so that decoding the layer afterwards spoils no sound coarse
 * form. Payload and ranges as of kvt_record_head_decode. KVT_OK; KVT_E_CORRUPT. */
KVT_NODISCARD kvt_status kvt_record_head_rest_verify(const kvt_record_head *head,
                                                     const kvt_record_head *coarse, uint32_t layer,
                                                     const void *payload,
                                                     const kvt_record_range *ranges,
                                                     uint32_t count);

/* The same of one matrix, and of what is coded with it. Also KVT_E_ARGUMENT: no such side. */
KVT_NODISCARD kvt_status kvt_record_head_matrix_ranges(const kvt_record_head *head, uint32_t layer,
                                                       kvt_side side, kvt_record_range *ranges,
                                                       uint32_t capacity, uint32_t *count_out);

/*
 * Verifies one matrix and gives its packed bytes: where they lie in the payload, when they are
 * stored raw, else decoded into `target`, whose content is undefined after an error.
 *   target_bytes  of the matrix with the record's tokens
 * Payload, ranges, statuses and scratch as of kvt_record_head_decode.
 */
KVT_NODISCARD kvt_status kvt_record_head_matrix(const kvt_record_head *head, uint32_t layer,
                                                kvt_side side, const void *payload,
                                                const kvt_record_range *ranges, uint32_t count,
                                                void *target, uint64_t target_bytes, void *scratch,
                                                uint64_t scratch_bytes, const void **matrix_out);

/* Decodes one (layer, side) matrix alone. target_bytes = kvt_layout_matrix_bytes with
 * stored_tokens rows. Statuses as above, and KVT_E_ARGUMENT for an opaque record or a layer out of
 * range. bases: NULL, or for records that need one. */
KVT_NODISCARD kvt_status kvt_record_decode_matrix(const void *record, uint64_t bytes,
                                                  const kvt_record_bases *bases, uint32_t layer,
                                                  kvt_side side, void *target,
                                                  uint64_t target_bytes, void *scratch,
                                                  uint64_t scratch_bytes);

#endif
