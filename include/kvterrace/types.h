/* SPDX-License-Identifier: Apache-2.0 */
/*
 * types.h - the words that every room shares: key, layout, tier, variant.
 *
 * Plain data, no behaviour beyond size arithmetic. All sizes are bytes unless a name says tokens
 * or elements; all times are nanoseconds on a monotonic clock unless a name says seconds.
 *
 * Structs and versions: a struct that a call takes or fills begins with struct_size, which the
 * caller sets to sizeof of its own struct, through an _init function or by hand; later versions add
 * members at the end. A smaller struct_size, of an older 0.2 caller, is accepted: members that it
 * lacks have their defaults, and nothing is written beyond it. A larger one is accepted, too:
 * members that the library does not know must be zero in a struct that it reads, and are zeroed in
 * one that it fills. For a struct_size below the size in version 0.2.0, or above 64 KiB, the call
 * returns KVT_E_ARGUMENT. In an array each item has the same struct_size, which is the distance
 * from one to the next. All other structs are values: they lie inside of others or in arrays, have
 * no struct_size and keep their size for as long as the minor version. These are kvt_key,
 * kvt_layout, kvt_variant, kvt_affine; kvt_tier_options, kvt_tier_stats, kvt_load_stats,
 * kvt_reuse_class, kvt_device_facts, kvt_recover_device, kvt_prefill, kvt_event, kvt_operation; and
 * in policy.h kvt_option, kvt_move, kvt_plan, kvt_tier_facts, kvt_allocator, kvt_reuse_weights,
 * kvt_explained_option, kvt_policy_stats. Reserved members are zero.
 */
#ifndef KVTERRACE_TYPES_H
#define KVTERRACE_TYPES_H

#include "status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A deadline_ns that never comes. Each deadline_ns is an instant of CLOCK_MONOTONIC in nanoseconds;
 * with 0, or any other instant that has passed, a call does all that needs no wait. */
#define KVT_NO_DEADLINE UINT64_MAX

/* A key names the content: engines use a hash over the token prefix, the model and the layout. */
typedef struct kvt_key {
    uint8_t bytes[32];
} kvt_key;

/* The levels an entry can live on. NONE is virtual: nothing is stored, the engine recomputes. */
typedef enum kvt_tier {
    KVT_TIER_NONE = 0,
    KVT_TIER_HBM = 1,
    KVT_TIER_DRAM = 2,
    KVT_TIER_SSD = 3,
    KVT_TIER_REMOTE = 4, /* other hosts: reported by gets, taken by no call */
    KVT_TIER_COUNT = 4   /* tiers below this one can hold entries */
} kvt_tier;

/* Places of an array by tier in a public struct. Places from KVT_TIER_COUNT on are zero: a number
 * there that asks for something is refused with KVT_E_UNSUPPORTED. */
#define KVT_TIER_PLACES 8

/* Element types. FP8 is E4M3 without infinities, as torch's float8_e4m3fn; scales stay the
 * engine's. E5M2, NVFP4 with its scales and all other small floats are OPAQUE, which is carried as
 * bytes: only the raw and lossless codecs apply. */
typedef enum kvt_dtype {
    KVT_DTYPE_OPAQUE = 0,
    KVT_DTYPE_FP16 = 1,
    KVT_DTYPE_BF16 = 2,
    KVT_DTYPE_FP32 = 3,
    KVT_DTYPE_FP8 = 4
} kvt_dtype;

/* Which axis is outermost in the caller's buffer; the rest is [tokens][kv_heads][head_dim]. */
typedef enum kvt_order {
    KVT_ORDER_LAYER_SIDE = 0, /* [layer][K then V][token][head][dim] */
    KVT_ORDER_SIDE_LAYER = 1  /* [K then V][layer][token][head][dim]; the same with one side */
} kvt_order;

typedef enum kvt_side { KVT_SIDE_K = 0, KVT_SIDE_V = 1 } kvt_side;

/* The matrices of a layer. A layout of one side has one, which is side K in views, buffers and
 * records and is coded as K or as V: K and V of different widths are two groups. */
typedef enum kvt_sides {
    KVT_SIDES_ONE = 1,  /* coded as K: K alone, MLA's latent, an index */
    KVT_SIDES_BOTH = 2, /* K and V; 0 says the same */
    KVT_SIDES_V = 3     /* V alone */
} kvt_sides;

/*
 * What an entry's bytes are. For KVT_DTYPE_OPAQUE only opaque_bytes counts and the shape fields are
 * zero; for every other dtype opaque_bytes is zero and the shape fields are at least 1.
 */
typedef struct kvt_layout {
    uint16_t layers;
    uint16_t kv_heads;
    uint16_t head_dim;
    uint8_t dtype;           /* kvt_dtype */
    uint8_t order;           /* kvt_order */
    uint32_t tokens;         /* tokens in this entry */
    uint8_t tokens_may_drop; /* 1: an encoder may drop tokens; 0 (default): token counts are kept */
    uint8_t sides;           /* kvt_sides, or 0: K and V */
    uint8_t reserved[2];     /* zero */
    uint64_t opaque_bytes;
} kvt_layout;

/* Groups of layers that one entry may have, each with a layout of its own. */
#define KVT_GROUPS_MAX 64u

/* A variant is a codec with its setting. The codec's card (docs/codecs/) says what rate and the low
 * byte of mode mean; the high byte is 0, or says by which method and share tokens are dropped. */
typedef struct kvt_variant {
    uint16_t codec; /* kvt_codec_id, see codec.h */
    uint16_t mode;
    uint32_t rate;
} kvt_variant;

/* Whether the variant holds some of an entry's tokens alone. */
static inline bool kvt_variant_drops_tokens(kvt_variant variant)
{
    return variant.mode >> 8 != 0;
}

/* Affine cost of moving bytes: request_seconds + bytes / bytes_per_s. */
typedef struct kvt_affine {
    double request_seconds;
    double bytes_per_s;
    double residual; /* largest relative error of the fit over the points it was fitted to */
} kvt_affine;

/* Bytes per element of a dtype; 1 for OPAQUE and FP8, 0 for an unknown value. */
static inline uint32_t kvt_dtype_bytes(uint8_t dtype)
{
    switch (dtype) {
    case KVT_DTYPE_OPAQUE:
    case KVT_DTYPE_FP8: return 1;
    case KVT_DTYPE_FP16:
    case KVT_DTYPE_BF16: return 2;
    case KVT_DTYPE_FP32: return 4;
    default: return 0;
    }
}

/* Matrices of a layer: 2, or 1 when it has one side. The layout has been checked. */
static inline uint32_t kvt_layout_sides(const kvt_layout *layout)
{
    return layout->sides == KVT_SIDES_ONE || layout->sides == KVT_SIDES_V ? 1 : 2;
}

/* Bytes of one (layer, side) matrix [tokens][kv_heads][head_dim]; 0 for an opaque layout.
 * Cannot overflow: four factors below 2^16, 2^16, 2^32 and 4 stay under 2^64 after the check. */
static inline uint64_t kvt_layout_matrix_bytes(const kvt_layout *layout)
{
    if (layout->dtype == KVT_DTYPE_OPAQUE) return 0;
    uint64_t row = (uint64_t)layout->kv_heads * layout->head_dim * kvt_dtype_bytes(layout->dtype);
    if (row != 0 && layout->tokens > (UINT64_C(1) << 46) / row) return 0;
    return row * layout->tokens;
}

/*
 * Checks a layout and gives the bytes of a whole entry in the caller's buffer.
 * KVT_OK, or KVT_E_ARGUMENT when a field is outside its range or the entry would pass 2^46 bytes;
 * then *bytes_out is 0. layout and bytes_out are not NULL. Any thread.
 */
static inline kvt_status kvt_layout_bytes(const kvt_layout *layout, uint64_t *bytes_out)
{
    const uint64_t limit = UINT64_C(1) << 46;
    *bytes_out = 0;
    if (layout->tokens_may_drop > 1 || layout->order > KVT_ORDER_SIDE_LAYER) return KVT_E_ARGUMENT;
    if (layout->sides > KVT_SIDES_V || (layout->reserved[0] | layout->reserved[1]))
        return KVT_E_ARGUMENT;
    if (layout->dtype == KVT_DTYPE_OPAQUE) {
        if (layout->opaque_bytes == 0 || layout->opaque_bytes > limit) return KVT_E_ARGUMENT;
        if (layout->layers | layout->kv_heads | layout->head_dim | layout->sides) {
            return KVT_E_ARGUMENT;
        }
        *bytes_out = layout->opaque_bytes;
        return KVT_OK;
    }
    if (kvt_dtype_bytes(layout->dtype) == 0 || layout->opaque_bytes != 0) return KVT_E_ARGUMENT;
    if (layout->layers == 0 || layout->kv_heads == 0 || layout->head_dim == 0) {
        return KVT_E_ARGUMENT;
    }
    uint64_t matrix = kvt_layout_matrix_bytes(layout);
    const uint32_t count = kvt_layout_sides(layout) * layout->layers;
    if (matrix == 0 || matrix > limit / count) return KVT_E_ARGUMENT;
    *bytes_out = matrix * count;
    return KVT_OK;
}

/* Byte offset of one (layer, side) matrix in the caller's buffer. The layout has been checked and
 * is not opaque; layer < layout->layers; with one side, side is K. */
static inline uint64_t kvt_layout_matrix_offset(const kvt_layout *layout, uint32_t layer,
                                                kvt_side side)
{
    uint64_t index = layout->order == KVT_ORDER_LAYER_SIDE
                         ? (uint64_t)layer * kvt_layout_sides(layout) + (uint64_t)side
                         : (uint64_t)side * layout->layers + layer;
    return index * kvt_layout_matrix_bytes(layout);
}

/* "none", "hbm", "dram", "ssd", "remote"; NULL for any other value. */
static inline const char *kvt_tier_name(int tier)
{
    switch (tier) {
    case KVT_TIER_NONE: return "none";
    case KVT_TIER_HBM: return "hbm";
    case KVT_TIER_DRAM: return "dram";
    case KVT_TIER_SSD: return "ssd";
    case KVT_TIER_REMOTE: return "remote";
    default: return NULL;
    }
}

#ifdef __cplusplus
}
#endif

#endif
