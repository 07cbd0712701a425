/* SPDX-License-Identifier: Apache-2.0 */
/*
 * view.h - where the KV of one entry lies in an engine's memory: addresses, strides, block table.
 *
 * An engine's paged pool needs no copy into a packed buffer: it describes the entry's place once,
 * and gets and puts move the bytes. With one pool [layer][block][token][head][K half, V half]:
 *
 *     kvt_view view;
 *     kvt_status status = kvt_view_make(&layout, "lbths", 16, pool_blocks, &view);
 *     view.base[0] = pool;
 *     view.blocks = table;
 *     view.block_count = table_count;
 *     if (status == KVT_OK) status = kvt_view_check(&view, &layout, message, sizeof message);
 *
 * docs/INTEGRATE.md lists the axes of each engine.
 *
 * Thread rule: a kvt_view is plain data; any number of threads may read one.
 */
#ifndef KVTERRACE_VIEW_H
#define KVTERRACE_VIEW_H

#include "types.h"

#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The memory that a view's addresses are of. */
typedef enum kvt_memory {
    KVT_MEMORY_HOST = 0, /* the calling process reads and writes it */
    KVT_MEMORY_GPU = 1   /* of the GPU that the view names; which calls take it: gpu.h */
} kvt_memory;

/* Which axes of an entry have addresses of their own; the others have strides. */
typedef enum kvt_bases {
    KVT_BASES_ONE = 0,          /* base[0] is the address of all */
    KVT_BASES_SIDES = 1,        /* base[0] of K, base[1] of V */
    KVT_BASES_LAYERS = 2,       /* bases[layer] */
    KVT_BASES_LAYERS_SIDES = 3, /* bases[layer * sides + side] */
    KVT_BASES_PACKED = 4,       /* base[0] is a buffer of the entry's size, packed in the order of
                                   its layout, of groups one after the other */
    KVT_BASES_GROUPS = 5 /* an entry of groups (kvt_entry.groups): `groups` has a view for each
                                   of them, in their order */
} kvt_bases;

/*
 * The place of every element of an entry. With p = first_slot + token, the element (layer, side,
 * token, head, dim) of the entry's layout is at
 *
 *     address of (layer, side)
 *     + layer * layer_stride              unless layers have addresses of their own
 *     + side * side_stride                unless sides have
 *     + block * block_stride              block = blocks[p / tokens_per_block]
 *     + p % tokens_per_block * token_stride
 *     + head * head_stride
 *     + dim * bytes of an element
 *
 * Strides are bytes. The stride of an axis with one member is not used and may be anything. An
 * opaque entry is base[0], opaque_bytes long: its view has no strides and no blocks.
 *
 * Fields that the kind of bases or an unpaged pool does not use are zero. All memory that a view
 * names, its arrays included, belongs to the caller; a call reads the arrays until it returns. The
 * arrays are memory of the host, whatever the addresses are of.
 */
typedef struct kvt_view {
    uint32_t struct_size; /* sizeof(kvt_view) of the caller */
    uint32_t memory;      /* kvt_memory */
    uint32_t bases_kind;  /* kvt_bases */
    uint32_t dtype;       /* kvt_dtype that the entry must have; 0: any with elements as long */
    void *base[2];
    uint64_t base_bytes[2];      /* of the buffer from base[i] on */
    void *const *bases;          /* for LAYERS and LAYERS_SIDES, else NULL */
    const uint64_t *bases_bytes; /* of the buffer from bases[i] on; NULL: base_bytes[0] for each */
    int64_t layer_stride;
    int64_t side_stride;
    int64_t block_stride;
    int64_t token_stride;
    int64_t head_stride;
    uint32_t tokens_per_block; /* 0: the tokens are one run from first_slot on, without blocks */
    uint32_t first_slot;       /* of the first token in its block */
    const uint32_t *blocks;    /* block numbers; NULL: 0, 1, 2, .. */
    uint32_t block_count;      /* of the table; blocks behind the entry's last token are not read */
    uint32_t group_count;      /* of groups; 1 to KVT_GROUPS_MAX, else 0 */
    const struct kvt_view *const *groups; /* for GROUPS, none of them of that kind; else NULL */
    uint64_t gpu; /* KVT_MEMORY_GPU: which one, as the driver counts them; else 0 */
    void *ready;  /* same: an event (CUevent); its memory is used once that is over. Or NULL */
    uint64_t reserved[1]; /* zero */
    uint64_t base_count;  /* of bases; 0: as many as the entry has. Over a connection bases that are
                            not counted take a copy (connect.h) */
} kvt_view;

/* The view of a packed buffer: of the whole entry, of any layout and with any groups. A get takes
 * it where `bytes` is the entry's size (kvt_layout_bytes, of groups the sum). A put only reads
 * data. */
static inline kvt_view kvt_view_packed(const void *data, uint64_t bytes)
{
    kvt_view view;
    memset(&view, 0, sizeof view);
    view.struct_size = (uint32_t)sizeof view;
    view.bases_kind = KVT_BASES_PACKED;
    view.base[0] = (void *)(uintptr_t)data;
    view.base_bytes[0] = bytes;
    return view;
}

/* The view of an entry of groups, by `count` views, one a group. The array and the views are read
 * for as long as the view itself. */
static inline kvt_view kvt_view_grouped(const kvt_view *const *groups, uint32_t count)
{
    kvt_view view;
    memset(&view, 0, sizeof view);
    view.struct_size = (uint32_t)sizeof view;
    view.bases_kind = KVT_BASES_GROUPS;
    view.group_count = count;
    view.groups = groups;
    return view;
}

#ifndef __cplusplus
/* The two as arguments of one call; the views last as long as the block around it. */
#define KVT_PACKED(data, bytes)   (&(const kvt_view[1]){kvt_view_packed(data, bytes)}[0])
#define KVT_GROUPED(views, count) (&(const kvt_view[1]){kvt_view_grouped(views, count)}[0])
#endif

/*
 * Makes the view of a pool whose axes follow each other without gaps. The caller sets the addresses
 * and, of a paged pool, blocks, block_count and first_slot.
 *   axes              the axes outermost first, a letter each: l layer, s side, b block, t token,
 *                     h head. The elements of a head come last and have no letter, so "lbths" has K
 *                     and V of a head side by side. t and h are there. Without l or s layers or
 *                     sides have addresses of their own; without b the pool's tokens follow each
 *                     other over its blocks
 *   tokens_per_block  0: no blocks; then there is no b, and pool_blocks counts tokens
 *   pool_blocks       blocks of the pool
 * Strides, the kind of bases, the element type and the bytes behind each address are set. KVT_OK;
 * KVT_E_ARGUMENT (axes, layout, opaque entries, a pool of no bytes or of more than 2^62).
 */
KVT_API KVT_NODISCARD kvt_status kvt_view_make(const kvt_layout *layout, const char *axes,
                                               uint32_t tokens_per_block, uint64_t pool_blocks,
                                               kvt_view *view_out);

/*
 * Checks a view of an entry of this layout. Calls that take a view do so by themselves; the memory
 * behind the addresses is not touched.
 *   message   one line for a person after a failure; may be NULL with size 0
 *
 * In a view that passes the strides nest: ordered by size, each is at least as long as the extent
 * of all axes with smaller strides together. So no byte belongs to two elements. Views whose
 * elements interleave without sharing a byte are refused, and so are negative strides.
 *
 * KVT_OK; KVT_E_ARGUMENT: elements of another type; an element outside its buffer; elements that
 * overlap or interleave; a block number twice in the table; a table too short; first_slot beyond
 * its block; an address or a stride that is no multiple of an element; an address that is missing
 * or that the layout does not use, by base_count, too; a view of groups, whose views are checked
 * one by one; sizes that overflow; a struct_size as types.h says; a GPU or an event of a view of
 * host memory. KVT_E_UNSUPPORTED: memory that is no kvt_memory, reserved fields that are set.
 * KVT_E_MEMORY: not enough to sort a long table.
 */
KVT_API KVT_NODISCARD kvt_status kvt_view_check(const kvt_view *view, const kvt_layout *layout,
                                                char *message, size_t message_size);

/* What the store takes for views in a GPU's memory (gpu.h); each bound is of one GPU. */
typedef struct kvt_gpu_options {
    uint64_t scratch_bytes; /* of the GPU's memory, for kernels: taken at their first use, or by
                               halves what the engine has left; 0 = no kernels, the CPU codes; at
                               most 8 GiB; 256 MiB */
    uint64_t pinned_bytes;  /* of the host's, that stay pinned while no copy uses them; at most
                               8 GiB; 256 MiB */
} kvt_gpu_options;

#ifdef __cplusplus
}
#endif

#endif
