/* SPDX-License-Identifier: Apache-2.0 */
/*
 * view_records.h - a view in a record: its numbers, a place in a region for each address, and its
 * block numbers. An address is made from a place that lies in its region; the view is then checked
 * as any caller's.
 *
 * Thread rule: any thread; nothing here allocates or calls the system.
 */
#ifndef SERVE_WIRE_VIEW_RECORDS_H
#define SERVE_WIRE_VIEW_RECORDS_H

#include "serve/wire/record_rest.h"

#include <kvterrace/view.h>

#define WIRE_REGIONS_MAX 64u /* of a session */

/* The region that a place names for the channel's own staging (wire_channel.staging). It is the
 * last one of an array of regions, which so has WIRE_REGIONS_MAX + 1. */
#define WIRE_STAGING WIRE_REGIONS_MAX

/* A kvt_view without its addresses: base_count places follow it, then block_count numbers of 4
 * bytes. One side, or one of `base` and `bases`, has a place each, in the view's order. */
typedef struct wire_view {
    uint32_t struct_size;
    uint32_t bases_kind; /* kvt_bases, but for groups */
    uint32_t dtype;
    uint32_t base_count;
    int64_t layer_stride;
    int64_t side_stride;
    int64_t block_stride;
    int64_t token_stride;
    int64_t head_stride;
    uint32_t tokens_per_block;
    uint32_t first_slot;
    uint32_t block_count; /* 0: no table */
    uint32_t zero;
} wire_view;

/* Bytes of a region. */
typedef struct wire_place {
    uint32_t region; /* WIRE_STAGING, too */
    uint32_t zero;
    uint64_t offset, bytes;
} wire_place;

_Static_assert(sizeof(wire_view) == 72, "view");
_Static_assert(sizeof(wire_place) == 24, "place");

/* Memory of the client that is mapped here; address NULL: there is none of that number. */
typedef struct wire_region {
    char *address;
    uint64_t bytes;
} wire_region;

/* Room for the addresses of views that are read: as many as the copy of the record has places. */
typedef struct wire_bases {
    void **at;
    uint64_t *bytes;
    uint64_t regions; /* bits of those that were named; staging has none */
} wire_bases;

/* Addresses that a record of so many bytes can have. */
static inline size_t wire_record_bases(size_t bytes)
{
    return bytes / sizeof(wire_place);
}

/*
 * Takes a view out of the copy of a record, which it points into.
 *   regions  WIRE_REGIONS_MAX + 1 of them
 *   bases    its room is used up by the view's addresses
 * KVT_OK: every place lies in its region; KVT_E_ARGUMENT; KVT_E_UNSUPPORTED (a view of groups).
 */
KVT_NODISCARD kvt_status wire_view_read(record_rest *from, const wire_region *regions,
                                        wire_bases *bases, kvt_view *view_out);

/* Addresses of a view of this library's size; 0: it does not say how many. */
uint32_t wire_view_bases(const kvt_view *view);

/* Bytes of a view with so many addresses. */
size_t wire_view_bytes(const kvt_view *view, uint32_t base_count);

/* Whether an address lies in one of `count` regions, with `bytes` behind it; its place, which may
 * be NULL. */
bool wire_place_find(const wire_region *regions, uint32_t count, const void *address,
                     uint64_t bytes, wire_place *place_out);

/* Writes a view, whose addresses lie in one of the regions each, where there is room for it.
 * KVT_OK; KVT_E_ARGUMENT (an address in no region; a count that its kind does not have);
 * KVT_E_UNSUPPORTED (a view of groups, memory that is not the host's). */
KVT_NODISCARD kvt_status wire_view_write(const kvt_view *view, uint32_t base_count,
                                         const wire_region *regions, uint8_t *at);

/* The address i of a view, and the bytes behind it. */
static inline const void *wire_view_address(const kvt_view *view, uint32_t i, uint64_t *bytes_out)
{
    const bool arrays = view->bases != NULL;
    *bytes_out = !arrays                     ? view->base_bytes[i]
                 : view->bases_bytes != NULL ? view->bases_bytes[i]
                                             : view->base_bytes[0];
    return arrays ? view->bases[i] : view->base[i];
}

#endif
