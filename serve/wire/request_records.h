/* SPDX-License-Identifier: Apache-2.0 */
/*
 * request_records.h - what a get and a put say beside their entry of the ring: a record in the
 * channel's area, which the server copies before it reads it (docs/SERVE.md, Records).
 *
 *     record = wire_get or wire_put, then wire_view, then its places, then its block numbers
 *
 * Each structure begins with its size, a multiple of 8, as its writer knows it; a reader takes a
 * smaller one down to the first version's and a larger one whose further bytes are zero. Groups of
 * layers and token scores have no record yet.
 *
 * Thread rule: any thread; nothing here allocates or calls the system.
 */
#ifndef SERVE_WIRE_REQUEST_RECORDS_H
#define SERVE_WIRE_REQUEST_RECORDS_H

#include <kvterrace/kvterrace.h>
#include <stddef.h>
#include <stdint.h>

#include "serve/wire/messages.h"

#define WIRE_PROTOCOL    1u  /* that is spoken here */
#define WIRE_REGIONS_MAX 64u /* of a session */
#define WIRE_STRUCTS     4u

typedef struct wire_get {
    uint32_t struct_size;
    uint32_t first_layer;
    uint32_t layer_count;
    uint32_t zero;
    uint64_t deadline_ns;
    double loss_max;
} wire_get;

typedef struct wire_put {
    uint32_t struct_size;
    uint32_t has_parent; /* 0 or 1 */
    kvt_key parent;
    kvt_layout layout;
    uint32_t first_position;
    uint32_t class_id;
    uint32_t tenant;
    uint32_t request_tokens;
    double recompute_seconds;
    double lifetime_seconds;
    uint64_t deadline_ns;
} wire_put;

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
    uint32_t region;
    uint32_t zero;
    uint64_t offset, bytes;
} wire_place;

_Static_assert(sizeof(wire_get) == 32, "get");
_Static_assert(sizeof(kvt_layout) == 24 && sizeof(wire_put) == 104, "put");
_Static_assert(sizeof(wire_view) == 72, "view");
_Static_assert(sizeof(wire_place) == 24, "place");

/* The sizes that hello and welcome tell, of the four. */
extern const wire_struct wire_structs[WIRE_STRUCTS];

/* Memory of the client that is mapped here; address NULL: there is none of that number. */
typedef struct wire_region {
    char *address;
    uint64_t bytes;
} wire_region;

/* A record as calls take it. It points into itself and into the copy of the record. */
typedef struct wire_record {
    wire_get get;
    wire_put put;
    kvt_entry entry;
    kvt_view view;
    uint64_t regions; /* bits of those that the view names */
    void **bases;     /* given by the reader's caller: room for wire_record_bases() of each */
    uint64_t *bases_bytes;
} wire_record;

/* Addresses that a record of so many bytes can have. */
static inline size_t wire_record_bases(size_t bytes)
{
    return bytes / sizeof(wire_place);
}

/*
 * Reads a copy of a record that nobody else writes.
 *   kind     WIRE_GET or WIRE_PUT
 *   record   aligned to 8; read for as long as the result is used
 *   regions  WIRE_REGIONS_MAX of them
 *   out      `bases` and `bases_bytes` are set; all else is filled
 * KVT_OK: every place lies in its region; whether the view fits its entry is for the call to say.
 * KVT_E_ARGUMENT: the record, or a place; KVT_E_UNSUPPORTED: groups.
 */
KVT_NODISCARD kvt_status wire_record_read(uint32_t kind, const void *record, size_t bytes,
                                          const wire_region *regions, wire_record *out);

/*
 * Writes a record.
 *   head         a wire_get or a wire_put whose struct_size is set
 *   view         without groups; its addresses lie in one of `regions` each, or in none
 *   out          capacity bytes, aligned to 8
 * KVT_OK, with the record's bytes in *bytes_out; KVT_E_SPACE (capacity); KVT_E_ARGUMENT (an address
 * in no region; a count that its kind does not have); KVT_E_UNSUPPORTED (groups).
 *   base_count   addresses of the view: 1 or 2, or those of `bases`
 */
KVT_NODISCARD kvt_status wire_record_write(const void *head, const kvt_view *view,
                                           uint32_t base_count, const wire_region *regions,
                                           void *out, size_t capacity, size_t *bytes_out);

#endif
