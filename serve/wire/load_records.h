/* SPDX-License-Identifier: Apache-2.0 */
/*
 * load_records.h - layered loads between a client and its server: the records that begin one, and
 * its state in the channel's area, which both sides look at without a request (docs/SERVE.md,
 * Layered loads).
 *
 *     record = wire_load, then `part` times: wire_load_entry, its views (view_records.h)
 *     state  = wire_load_state, then a byte for each entry: its kvt_status
 *
 * A load whose entries need more than one record comes in parts: the first one has load 0 and gets
 * a number, each of the others has that number, and the last one lacks WIRE_LOAD_MORE.
 *
 * Thread rule: any thread; nothing here allocates or calls the system.
 */
#ifndef SERVE_WIRE_LOAD_RECORDS_H
#define SERVE_WIRE_LOAD_RECORDS_H

#include "serve/wire/view_records.h"

#include <kvterrace/load.h>
#include <stdatomic.h>

#define WIRE_LOAD_ENTRIES 65536u /* of a load */
#define WIRE_LOAD_ALIGN   64u    /* of its state */

typedef struct wire_load {
    uint32_t struct_size;
    uint32_t flags;         /* WIRE_LOAD_MORE */
    uint32_t count;         /* entries of the load; the same in all parts, as what follows but
                              part and load */
    uint32_t part;          /* of them in this record */
    uint32_t layers_ahead;  /* as kvt_load_options has it */
    uint32_t coarse_planes; /* same; servers of before them refuse any but 0 */
    uint64_t deadline_ns;
    double loss_max;
    uint64_t state; /* its place, from the begin of the area's arguments */
    uint64_t load;  /* its number; 0: not yet */
    uint64_t pass;  /* that computes with the layers, by the session's number; 0: none */
} wire_load;

#define WIRE_LOAD_MORE 1u

typedef struct wire_load_entry {
    uint32_t struct_size;
    uint32_t group_count; /* 0: one view, without groups; else as many views */
    kvt_key key;
} wire_load_entry;

/* The two sides write lines of their own. */
typedef struct wire_load_state {
    _Atomic uint32_t layers; /* complete; written last */
    _Atomic uint32_t total;  /* 0: not known yet */
    _Atomic uint32_t flags;  /* WIRE_LOAD_READS .. */
    uint32_t zero[13];
    _Atomic uint32_t released; /* the client's */
    uint32_t zeros[15];
} wire_load_state;

#define WIRE_LOAD_READS 1u /* the deadline counts */
#define WIRE_LOAD_EMPTY 2u /* no layer comes */
#define WIRE_LOAD_FLAGS 3u

_Static_assert(sizeof(wire_load) == 64, "load");
_Static_assert(sizeof(wire_load_entry) == 40, "entry");
_Static_assert(sizeof(wire_load_state) == 128 && offsetof(wire_load_state, released) == 64,
               "a line for each side");

static inline uint64_t wire_load_state_bytes(uint32_t count)
{
    return sizeof(wire_load_state) + count;
}

/* The statuses of a load's entries. They are one byte each, so no reader sees a part of one. */
static inline _Atomic int8_t *wire_load_statuses(wire_load_state *state)
{
    return (_Atomic int8_t *)(void *)(state + 1);
}

/* ---- the client's side ---- */

/* The record that entries are added to: `load` is set but for struct_size and part. capacity is at
 * least sizeof(wire_load). Returns its bytes so far. */
size_t wire_load_write(const wire_load *load, void *out);

/*
 * Adds an entry to a record.
 *   views        one of this library's size, not of groups; of a grouped entry group_count of them
 *   bytes        of the record so far; the new number when it fits
 * KVT_OK; KVT_E_SPACE (capacity); KVT_E_ARGUMENT and KVT_E_UNSUPPORTED as wire_view_write.
 */
KVT_NODISCARD kvt_status wire_load_add(void *out, size_t capacity, const kvt_key *key,
                                       const kvt_view *const *views, uint32_t group_count,
                                       const wire_region *regions, size_t *bytes);

/* ---- the server's side ---- */

/* What the entries of one record are made of; given by the reader's caller. */
typedef struct wire_load_room {
    kvt_key *keys;                /* of the part's entries */
    const kvt_view **pointers;    /* same */
    kvt_view *views;              /* room for wire_load_views() */
    const kvt_view **group_views; /* same */
    wire_bases bases;             /* room for wire_record_bases() */
} wire_load_room;

/* Views that a record of so many bytes can have, with one of groups for each entry. */
static inline size_t wire_load_views(size_t bytes)
{
    return bytes / sizeof(wire_view) * 2;
}

/* Reads the head of a copy that nobody else writes. KVT_OK: count and part are in range, and the
 * state lies in the area; KVT_E_ARGUMENT. */
KVT_NODISCARD kvt_status wire_load_read(const void *record, size_t bytes, uint64_t area_bytes,
                                        wire_load *load_out);

/* Reads the entries behind it. KVT_OK; KVT_E_ARGUMENT; what wire_view_read says. */
KVT_NODISCARD kvt_status wire_load_entries_read(const void *record, size_t bytes,
                                                const wire_load *load, const wire_region *regions,
                                                wire_load_room *room);

#endif
