/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ring_contexts.h - what a ring takes of its producers' words, and where they lie (docs/CALLS.md,
 * Rings; base/ring_words.h has the sequence words). Numbers in, numbers and statuses out: the file
 * knows no store, and allocates nothing.
 *
 * Thread rule: re-entrant. A context is read by one copy; the copy alone is looked at.
 */
#ifndef STORE_RING_CONTEXTS_H
#define STORE_RING_CONTEXTS_H

#include "base/ring_words.h"

#include <kvterrace/ring.h>

#define RING_MAGIC       UINT64_C(0x3162636f6974766b) /* "kvtiocb1" */
#define RING_HEAD_BYTES  4096u
#define RING_DEPTH_MAX   4096u
#define RING_TABLES_MAX  4096u
#define RING_LAYERS_MAX  65536u
#define RING_OBJECTS_MAX (UINT32_C(1) << 20)

_Static_assert(sizeof(kvt_ring_context) == 64, "a context is an entry");
_Static_assert(sizeof(kvt_ring_block) == sizeof(base_ring_body), "a block is an entry's body");
_Static_assert(sizeof(kvt_ring_result) == sizeof(base_ring_body), "so is its result");

/* The head of the mapped memory; the rest of its page is zero. */
typedef struct ring_head {
    uint64_t magic;
    uint32_t version; /* 1 */
    uint32_t depth;
    uint32_t contexts; /* of a table */
    uint32_t tables;   /* those of the places first, then the kept ones */
    uint64_t submissions_at, completions_at, tables_at, statuses_at, bytes;
} ring_head;
_Static_assert(sizeof(ring_head) == 64, "documented to the byte");

/* The places of a ring of a depth, with tables of so many contexts. False: out of range. */
bool ring_head_of(uint32_t depth, uint32_t contexts, uint32_t kept, ring_head *head_out);

/* Reads the block at a position. KVT_OK; KVT_E_ARGUMENT: a table or contexts that are not there, a
 * block that would come after itself or a later one. */
KVT_NODISCARD kvt_status ring_block_read(const base_ring_body *body, const ring_head *head,
                                         uint64_t position, kvt_ring_block *block_out);

/* A context as it is carried out. */
typedef struct ring_want {
    uint64_t object;
    uint32_t layer;
    uint32_t side;
    uint32_t region;
    uint64_t offset, bytes;
    uint64_t target; /* in the region */
    uint64_t row;    /* bytes that follow each other there, and from one such run to the next: */
    uint64_t stride; /* at least a row */
} ring_want;

/* Bytes of the region from the first to the last byte of a want that has been checked. */
static inline uint64_t ring_want_span(const ring_want *want)
{
    return (want->bytes / want->row - 1) * want->stride + want->row;
}

/* Reads a context of a block, as far as no layout is needed for it. KVT_OK; KVT_E_ARGUMENT. */
KVT_NODISCARD kvt_status ring_context_read(const kvt_ring_context *context,
                                           const kvt_ring_block *block, ring_want *want_out);

/* Checks a want against the matrices of its layer and the bytes of its region. KVT_OK;
 * KVT_E_ARGUMENT. */
KVT_NODISCARD kvt_status ring_want_check(ring_want *want, const kvt_layout *layout,
                                         uint64_t region_bytes);

/* A want's place in a block, for ring_check_overlaps to sort. */
typedef struct ring_spot {
    uint64_t target;
    uint32_t region;
    uint32_t want;
} ring_spot;

/* Gives KVT_E_ARGUMENT to the later one of two wants that write the same bytes, or whose runs
 * alternate at different strides. statuses: of each want; those that are not KVT_OK take no part.
 *   spots, open  room for count of them */
void ring_check_overlaps(const ring_want *wants, signed char *statuses, uint32_t count,
                         ring_spot *spots, uint32_t *open);

#endif
