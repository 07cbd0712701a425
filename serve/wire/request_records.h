/* SPDX-License-Identifier: Apache-2.0 */
/*
 * request_records.h - what a get and a put say beside their entry of the ring: a record in the
 * channel's area, which the server copies before it reads it (docs/SERVE.md, Records); and what the
 * server writes over a get's.
 *
 *     get = wire_get, wire_view, places, block numbers        answer = wire_got, positions
 *     put = wire_put, layouts of groups, wire_view, places, block numbers, token scores
 *
 * Each structure begins with its size, a multiple of 8, as its writer knows it; a reader takes a
 * smaller one down to the first version's and a larger one whose further bytes are zero. Views of
 * groups have no record: an entry of groups comes and goes packed.
 *
 * Thread rule: any thread; nothing here allocates or calls the system.
 */
#ifndef SERVE_WIRE_REQUEST_RECORDS_H
#define SERVE_WIRE_REQUEST_RECORDS_H

#include <kvterrace/kvterrace.h>
#include <stddef.h>
#include <stdint.h>

#include "serve/wire/messages.h"
#include "serve/wire/view_records.h"

#define WIRE_PROTOCOL 1u /* that is spoken here */
#define WIRE_STRUCTS  7u

typedef struct wire_get {
    uint32_t struct_size;
    uint32_t first_layer;
    uint32_t layer_count;
    uint32_t got_bytes;   /* sizeof(wire_got) of the client, which is written over the record with
                             KVT_OK; 0: not wanted */
    uint64_t deadline_ns; /* KVT_STORE_DEADLINE, too */
    double loss_max;
    uint64_t kept_capacity; /* kvt_kept_tokens.capacity, for positions behind the wire_got; above 0
                               only with one */
} wire_get;

/* How a get was served, beside its completion. */
typedef struct wire_got {
    uint32_t struct_size;
    uint32_t shared; /* 0 or 1 */
    uint64_t read_ns;
    uint64_t decode_ns;
    uint64_t predicted_ns;
    uint32_t kept_count; /* as of kvt_kept_tokens: sets times count positions of 4 bytes follow */
    uint32_t kept_sets;
} wire_got;

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
    uint32_t group_count;       /* layouts that follow; `layout` is zero then */
    uint32_t token_score_count; /* floats at the record's end */
} wire_put;

_Static_assert(sizeof(wire_get) == 40, "get");
_Static_assert(sizeof(wire_got) == 40, "got");
_Static_assert(sizeof(kvt_layout) == 24 && sizeof(wire_put) == 112, "put");

#define WIRE_STRUCT_PASS 6u /* the place of kvt_pass among them; 0 bytes: there are no passes */

/* The sizes that hello and welcome tell, of these, of a load's (load_records.h) and of a pass. */
extern const wire_struct wire_structs[WIRE_STRUCTS];

/* What a client and a server of this library speak. */
extern const wire_speaks wire_own_speaks;

/* A record as calls take it. It points into itself and into the copy of the record. */
typedef struct wire_record {
    wire_get get;
    wire_put put;
    kvt_entry entry;
    kvt_view view;
    wire_bases bases; /* given by the reader's caller, with room for wire_record_bases() */
} wire_record;

/*
 * Reads a copy of a record that nobody else writes.
 *   kind     WIRE_GET or WIRE_PUT
 *   record   aligned to 8; read for as long as the result is used
 *   bytes    of the copy; a get's may be longer than the record
 *   regions  WIRE_REGIONS_MAX + 1 of them
 *   out      `bases` is set; all else is filled
 * KVT_OK: every place lies in its region, and a get's wire_got in the copy's bytes; whether the
 * view fits its entry is for the call to say. KVT_E_ARGUMENT: the record, or a place;
 * KVT_E_UNSUPPORTED: views of groups.
 */
KVT_NODISCARD kvt_status wire_record_read(uint32_t kind, const void *record, size_t bytes,
                                          const wire_region *regions, wire_record *out);

/* A put of an entry. Its key goes into the request. */
wire_put wire_put_of(const kvt_entry *entry, uint64_t deadline_ns);

/* The largest record and answer of a get or a put: what the writers below need, or more. */
size_t wire_get_bytes(const wire_get *get, const kvt_view *view, uint32_t base_count);
size_t wire_put_bytes(const wire_put *put, const kvt_view *view, uint32_t base_count);

/*
 * Write a record.
 *   get, put     all is set but struct_size
 *   groups       put->group_count of them
 *   scores       put->token_score_count of them
 *   view         not of groups; its addresses lie in one of `regions` each
 *   base_count   addresses of the view: 1 or 2, or those of `bases`
 *   regions      WIRE_REGIONS_MAX + 1 of them, where this process has them
 *   out          capacity bytes, aligned to 8
 *   bytes_out    of the record; of a get with the room for its answer, whose positions are as many
 *                as the capacity leaves room for
 * KVT_OK; KVT_E_SPACE (capacity); KVT_E_ARGUMENT (an address in no region; a count that its kind
 * does not have; positions without a wire_got); KVT_E_UNSUPPORTED (a view of groups, memory that is
 * not the host's).
 */
KVT_NODISCARD kvt_status wire_get_write(const wire_get *get, const kvt_view *view,
                                        uint32_t base_count, const wire_region *regions, void *out,
                                        size_t capacity, size_t *bytes_out);
KVT_NODISCARD kvt_status wire_put_write(const wire_put *put, const kvt_layout *groups,
                                        const float *scores, const kvt_view *view,
                                        uint32_t base_count, const wire_region *regions, void *out,
                                        size_t capacity, size_t *bytes_out);

/* Positions that a get's record has room for: its capacity, or as many as fit into `bytes`. */
static inline uint64_t wire_get_positions(const wire_get *get, size_t bytes)
{
    const uint64_t room = bytes > get->got_bytes ? (bytes - get->got_bytes) / sizeof(uint32_t) : 0;
    return get->kept_capacity < room ? get->kept_capacity : room;
}

/* Writes how a get was served over its record, as the get asks: info and info->kept are filled, and
 * the positions are no more than wire_get_positions. Returns the bytes. */
size_t wire_got_write(const wire_get *get, const kvt_get_info *info, void *out);

/*
 * Reads how a get was served, once.
 *   answer   completion.answer_bytes of the record's place
 *   info     this library's: read_ns, decode_ns, predicted_ns and shared are set; with `kept` its
 *            count, sets and positions, for which kept->capacity is the bound
 * KVT_OK; KVT_E_CORRUPT: the server has written something else.
 */
KVT_NODISCARD kvt_status wire_got_read(const void *answer, size_t bytes, kvt_get_info *info);

#endif
