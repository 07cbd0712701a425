/*
 * codec.h - bytes to bytes: encode an entry into one self-describing record, and back.
 *
 * A record holds everything needed to decode it (docs/FORMAT.md): header, segment table, segments,
 * checksums. Codecs are pure: no I/O, no threads, no clock, no allocation; the caller gives
 * scratch. The same input gives the same bytes (per zstd version). Decoders trust no byte: any
 * input yields a value or KVT_E_CORRUPT / KVT_E_VERSION, never undefined behaviour.
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
    KVT_CODEC_RAW = 1,     /* copy */
    KVT_CODEC_LOSSLESS = 2 /* exponent plane split off and entropy-coded; exact */
} kvt_codec_id;

/* Modes of KVT_CODEC_LOSSLESS. */
enum { KVT_LOSSLESS_DENSE = 1 };

/* Alignment of the record's start and of its planes, and the granularity of its stored size. */
#define KVT_RECORD_ALIGN 4096u

enum {
    KVT_CODEC_FLAG_EXACT = 1u << 0,      /* decode(encode(x)) == x, bit for bit */
    KVT_CODEC_FLAG_NEEDS_SHAPE = 1u << 1 /* does not take opaque layouts */
};

/*
 * One codec. A segment is one (layer, side) matrix, or the whole entry of an opaque layout.
 * New fields are added at the end; struct_size tells which are present.
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
} kvt_codec;

#define KVT_CODEC_ABI 1u

/* The table of codecs. find returns NULL for an unknown id or name; at returns NULL past the end.
 */
KVT_API const kvt_codec *kvt_codec_find(uint16_t id);
KVT_API const kvt_codec *kvt_codec_find_name(const char *name);
KVT_API const kvt_codec *kvt_codec_at(size_t index);

/* Parses "raw" or "lossless" (later "planes:k4v2" and the like) into a variant. KVT_OK or
 * KVT_E_ARGUMENT. name and variant_out are not NULL. */
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
 * capacity scratch       at least the bound's scratch bytes, aligned to 64; may be NULL when that
 * is 0 KVT_OK; KVT_RAW when nothing shrank and the record holds the entry raw (it is valid, and its
 * spec.variant says raw); KVT_E_ARGUMENT, KVT_E_UNSUPPORTED; KVT_E_SPACE when capacity is too
 * small.
 */
KVT_API KVT_NODISCARD kvt_status kvt_record_encode(const kvt_record_spec *spec, const void *source,
                                                   uint64_t source_bytes, void *record,
                                                   uint64_t capacity, void *scratch,
                                                   uint64_t scratch_bytes,
                                                   uint64_t *record_bytes_out);

/* Parses and checks header and segment table; payload checksums are not verified. record may be
 * any bytes of any length, aligned to 8. KVT_OK, KVT_E_CORRUPT, KVT_E_VERSION. */
KVT_API KVT_NODISCARD kvt_status kvt_record_parse(const void *record, uint64_t bytes,
                                                  kvt_record_info *info_out);

/* Parses, then verifies every segment's checksum, padding included. Same statuses. */
KVT_API KVT_NODISCARD kvt_status kvt_record_verify(const void *record, uint64_t bytes,
                                                   kvt_record_info *info_out);

/*
 * Decodes a whole record into the caller's buffer, verifying each segment on the way.
 *   expected      key and generation that the record must carry, or NULL for any
 *   target        exactly source_bytes of the record; content is undefined after an error
 * KVT_OK; KVT_E_MISMATCH (another key or generation); KVT_E_CORRUPT; KVT_E_VERSION;
 * KVT_E_SPACE (target or scratch has the wrong size).
 */
KVT_API KVT_NODISCARD kvt_status kvt_record_decode(const void *record, uint64_t bytes,
                                                   const kvt_record_spec *expected, void *target,
                                                   uint64_t target_bytes, void *scratch,
                                                   uint64_t scratch_bytes);

/* Decodes one (layer, side) matrix alone. target_bytes = kvt_layout_matrix_bytes. Statuses as
 * above, and KVT_E_ARGUMENT for an opaque record or a layer out of range. */
KVT_API KVT_NODISCARD kvt_status kvt_record_decode_matrix(const void *record, uint64_t bytes,
                                                          uint32_t layer, kvt_side side,
                                                          void *target, uint64_t target_bytes,
                                                          void *scratch, uint64_t scratch_bytes);

#ifdef __cplusplus
}
#endif

#endif
