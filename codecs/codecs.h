/* SPDX-License-Identifier: Apache-2.0 */
/*
 * codecs.h - what the files of this room share: the codecs behind the table and the arithmetic of
 * alignment. Thread rule: everything here is re-entrant and without state.
 */
#ifndef CODECS_CODECS_H
#define CODECS_CODECS_H

#include "codec_table.h"

#include <string.h>

#if !defined(__BYTE_ORDER__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "kvterrace records are little-endian and are read in place: big-endian hosts are refused"
#endif

extern const kvt_codec codecs_raw;
extern const kvt_codec codecs_lossless;
extern const kvt_codec codecs_kivi;
extern const kvt_codec codecs_planes;
extern const kvt_codec codecs_entropy;
extern const kvt_codec codecs_transform;

/*
 * How the stages are called. A codec with parts (kivi, planes, entropy) is a kvt_codec with
 * the *_matrix members of codec_table.h; the record places its parts, checksums them, and hands
 * them back. Kernels see rows that follow each other without gaps, and scratch aligned to 64.
 *
 *   entropy  one plane, one DATA part whose size follows from the data (entropy.h)
 *   transform   the matrices of one span have one DATA part; the basis comes with the spec
 *            (transform.h)
 *   drop     no kvt_codec: before any codec it chooses the rows of a layer, the record gathers
 *            them, and stores the choice as one bit per token (drop.h, called by record_rows.c)
 *
 * Packed rates (the codec's own check refuses what is not listed here):
 *
 *   kivi     bits 0-3 bits of K, 4-7 of V (2, 4, 8), 8-11 log2 of the group (5, 6, 7),
 *            12-19 residual window / 32
 *   planes   bits 0-2 planes kept of K, 3-5 of V (1 .. 5 = 2, 3, 4, 6, 8 bits), 6-9 log2 of the
 *            group (5, 6, 7), 10 V per channel, 11 V groups inside a head, 12 V planes lie first
 *   entropy  bits 0-9 step of K, 10-19 of V in 1/64 of a standard deviation, 20 V per channel,
 *            21 values come back at the middle of their cell; mode 1
 *   transform  bits 0-9 step in 1/64 of the basis's unit, 10-29 the first 20 bits of its hash;
 *            mode 1
 */
enum {
    CODECS_PLANES_V_CHANNEL = 1 << 10,
    CODECS_PLANES_V_HEAD = 1 << 11,
    CODECS_PLANES_V_FIRST = 1 << 12,
    CODECS_ENTROPY_V_CHANNEL = 1 << 20,
    CODECS_ENTROPY_MIDDLE = 1 << 21,
    CODECS_FP8_PLANES_MAX = 4, /* five would be larger than the elements */
    CODECS_BASIS_SHIFT = 10,   /* of a basis in transform's rate */
    CODECS_BASIS_BITS = 20
};

/* The variant of planes that keeps so many planes of each side, or all where it has fewer. */
static inline kvt_variant codecs_fewer_planes(kvt_variant variant, uint32_t planes)
{
    for (uint32_t shift = 0; shift < 6; shift += 3)
        if ((variant.rate >> shift & 7u) > planes)
            variant.rate = (variant.rate & ~(7u << shift)) | planes << shift;
    return variant;
}

/* Answers of codecs that have one plane, no order of sides, or no window. */
static inline uint32_t codecs_one_plane(kvt_variant variant, kvt_side side, int level)
{
    (void)variant, (void)side, (void)level;
    return 1;
}

static inline kvt_side codecs_k_first(kvt_variant variant)
{
    (void)variant;
    return KVT_SIDE_K;
}

static inline uint32_t codecs_none_recent(kvt_variant variant, kvt_side side, uint32_t tokens)
{
    (void)variant, (void)side, (void)tokens;
    return 0;
}

static inline uint32_t codecs_rate_field(kvt_variant variant, unsigned shift, unsigned bits)
{
    return (variant.rate >> shift) & ((1u << bits) - 1u);
}

/* Whether two layouts have the same sides, by whichever name. */
static inline bool codecs_same_sides(const kvt_layout *a, const kvt_layout *b)
{
    return kvt_layout_sides(a) == kvt_layout_sides(b) &&
           (a->sides == KVT_SIDES_V) == (b->sides == KVT_SIDES_V);
}

/* The drop stage of a variant's mode, and the variant without it. */
static inline uint32_t codecs_drop_method(kvt_variant variant)
{
    return variant.mode >> 13;
}

static inline uint32_t codecs_drop_keep(kvt_variant variant) /* in 32nds */
{
    return (variant.mode >> 8) & 31u;
}

static inline kvt_variant codecs_variant_core(kvt_variant variant)
{
    variant.mode &= 0xff;
    return variant;
}

/* Rounds up to a power of two. The caller keeps value far below 2^64. */
static inline uint64_t codecs_align(uint64_t value, uint64_t step)
{
    return (value + step - 1) & ~(step - 1);
}

static inline uint32_t codecs_load32(const uint8_t *source)
{
    uint32_t value;
    memcpy(&value, source, sizeof value);
    return value;
}

static inline void codecs_store32(uint8_t *target, uint32_t value)
{
    memcpy(target, &value, sizeof value);
}

/* How a record of one variant becomes a record of another. No way codes with loss what a lossy
 * codec coded before. */
typedef enum codecs_way {
    CODECS_WAY_NONE,   /* not without losing a second time */
    CODECS_WAY_DROP,   /* kvt_record_drop_planes */
    CODECS_WAY_DERIVE, /* kvt_record_derive */
    CODECS_WAY_RECODE  /* decode, then encode: `from` is exact, or planes at 8 bits; or so are the
                        * tokens that it kept, and `to` keeps some of these */
} codecs_way;

codecs_way codecs_made_from(kvt_variant from, kvt_variant to);

/* Tokens at the front of an entry that its record in this variant stores raw when no extras are
 * given: those below KVT_SINK_TOKENS of the chain. 0 for exact variants. */
uint32_t codecs_sink_tokens(kvt_variant variant, uint32_t first_position, uint32_t tokens);

/*
 * The tokens that a record of an entry holds, whose chain ends with the entry, and in how many
 * sets: 0 all tokens, 1 one set for all layers, else one a layer. Scores of a caller count as one
 * set. All follows from the arguments. KVT_OK; KVT_E_UNSUPPORTED (the layout takes no such drop, or
 * no token of it would stay).
 */
KVT_NODISCARD kvt_status codecs_kept_tokens(const kvt_layout *layout, uint32_t first_position,
                                            kvt_variant variant, uint32_t *tokens_out,
                                            uint32_t *sets_out);

/*
 * In how many steps a record of so many bytes may be decoded while it is read: 1 where it is only
 * decoded once all of it is there, as a small one is, one with planes behind the first, whose
 * layers end at the record's end, and one after a drop. Of a basis the widest span counts.
 */
uint32_t codecs_arriving_steps(const kvt_layout *layout, kvt_variant variant,
                               uint64_t record_bytes);

/* Bytes of the head of a record of this layout and variant: header slots and tables. 0 for a
 * variant that the layout does not have. */
uint64_t codecs_head_bytes(const kvt_layout *layout, kvt_variant variant);

/* Bytes of each tensor when the payload of a record, up to its end, is tensors of one size in whole
 * blocks of 4 KiB, as of forms of a fixed size and one plane; 0: it is not. Trusts no byte. */
uint64_t codecs_tensor_bytes(const void *record, uint64_t bytes);

/* Exact size of an entry's record when it is stored raw, and of its header and table, before which
 * no payload lies; kvt_record_bound gives an upper bound of any form. KVT_OK; KVT_E_ARGUMENT,
 * KVT_E_UNSUPPORTED (layout). */
KVT_NODISCARD kvt_status codecs_raw_record_bytes(const kvt_layout *layout, uint64_t *head_bytes_out,
                                                 uint64_t *bytes_out);

#endif
