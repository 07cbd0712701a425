/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kept.h - the kept form of a sequence, in bytes: what kvt_sparse_keep stores and
 * kvt_sparse_open_kept reads. Pure memory; docs/SPARSE.md has the layout.
 *
 * A kept sequence is one opaque entry per unit, and a head entry that was stored after them. Every
 * number is checked against the geometry before it is used: bytes of any kind give a unit or
 * KVT_E_CORRUPT, and nothing out of bounds. Pages have their own checksums (page_table.h), so the
 * form has one over everything else.
 *
 * Thread rule: re-entrant.
 */
#ifndef SPARSE_KEPT_H
#define SPARSE_KEPT_H

#include "paging.h"

#define SPARSE_KEPT_HEAD_BYTES 128u
#define SPARSE_UNITS_MAX       65536u /* layers * kv_heads of a sequence */
#define SPARSE_KEY_BYTES_MAX   65536u /* of a token and layer */

/* The geometry of a sequence, the same in the head entry and in every unit. */
typedef struct sparse_kept_shape {
    uint64_t id;   /* of the checksums of pages */
    uint64_t keep; /* of the one call that kept it: no two have the same */
    uint32_t layers, kv_heads, head_dim, dtype;
    uint32_t tokens; /* of the layout, without appended ones */
    uint32_t sink_tokens, zone_tokens, segment_tokens, page_tokens;
    uint32_t variants; /* a mask */
    uint32_t row_bytes;
    uint32_t key_bytes; /* of index keys; 0: there are none */
    uint32_t given;     /* 0; or the sides of a sequence whose model selects */
} sparse_kept_shape;

/* The parts of a kept sequence: its units, and the index keys of each layer. */
static inline uint32_t sparse_kept_parts(const sparse_kept_shape *shape)
{
    return shape->layers * (shape->kv_heads + (shape->key_bytes > 0 ? 1 : 0));
}

/* A unit's parts, pointing into its bytes or to be written there. */
typedef struct sparse_kept_unit {
    uint32_t number;       /* layer * kv_heads + head */
    uint32_t clusters;     /* where the model selects: 1: the index is the position of each place */
    uint32_t local_tokens; /* with appended ones */
    uint32_t slot_bytes;
    const uint8_t *index, *slopes, *code, *sums, *sinks, *local, *pages;
    uint64_t index_bytes, code_bytes, sums_bytes, sinks_bytes, local_bytes, pages_bytes;
    uint64_t slope_bytes; /* 0: the index has no slopes */
} sparse_kept_unit;

/* Bytes of a unit in kept form; its first part ends where `pages` begin, at a multiple of 4 KiB. */
uint64_t sparse_kept_bytes(const sparse_kept_unit *unit, uint64_t *pages_at_out);

/* Writes everything but the pages to the front of target, with the checksum. */
void sparse_kept_write(const sparse_kept_shape *shape, const sparse_kept_unit *unit,
                       uint8_t *target);

/* The index keys of a layer: SPARSE_KEPT_HEAD_BYTES, then the keys of so many tokens. number: that
 * of the part, behind the units. read: KVT_OK: keys_out are in bytes, of tokens_out tokens;
 * KVT_E_CORRUPT; KVT_E_VERSION; KVT_E_MISMATCH (another sequence's, or another part). */
void sparse_kept_write_keys(const sparse_kept_shape *shape, uint32_t number, const uint8_t *keys,
                            uint32_t tokens, uint8_t *target);
KVT_NODISCARD kvt_status sparse_kept_read_keys(const sparse_kept_shape *shape, uint32_t number,
                                               const uint8_t *bytes, uint64_t size,
                                               const uint8_t **keys_out, uint32_t *tokens_out);

/* The head entry: SPARSE_KEPT_HEAD_BYTES. */
void sparse_kept_write_head(const sparse_kept_shape *shape, uint8_t *target);

/* A shape that is given is one that a sequence can have. KVT_OK; KVT_E_CORRUPT; KVT_E_VERSION. */
KVT_NODISCARD kvt_status sparse_kept_read_head(const uint8_t *bytes, uint64_t size,
                                               sparse_kept_shape *shape_out);

/* Finds the parts of a unit of this shape. paging: that of the shape. size: of all of the unit; of
 * its bytes only those before the pages are read, and have to be there. KVT_OK; KVT_E_CORRUPT;
 * KVT_E_VERSION; KVT_E_MISMATCH (another sequence's, or another unit's). */
KVT_NODISCARD kvt_status sparse_kept_read(const sparse_kept_shape *shape,
                                          const sparse_paging *paging, uint32_t number,
                                          const uint8_t *bytes, uint64_t size,
                                          sparse_kept_unit *unit_out);

/* Makes the index of a unit that was read. KVT_OK; KVT_E_CORRUPT; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status sparse_kept_index(const sparse_kept_shape *shape,
                                           const sparse_kept_unit *unit, sparse_index *index_out);

#endif
