/* SPDX-License-Identifier: Apache-2.0 */
/*
 * key_records.h - the records of calls that read no KV: lists of keys (touch, match, lease begin,
 * hint), the extension of a lease, a description, a pass; and what the server writes over them.
 *
 *     record = wire_list, then its keys     answer of a match:  kvt_worth, seconds of each key
 *                                           of a lease begin:   a byte a key, 1 where it is held
 *     record = wire_describe, then room     answer: kvt_description, layouts of its groups
 *     record = kvt_pass, or wire_pass_layer
 *
 * Structures begin with their size, as those of request_records.h. A public structure in an answer
 * has the size that the client asked for, by the rule of types.h, and no pointer in it is set. A
 * writer of a record counts the room of its answer in.
 *
 * Thread rule: any thread; nothing here allocates or calls the system.
 */
#ifndef SERVE_WIRE_KEY_RECORDS_H
#define SERVE_WIRE_KEY_RECORDS_H

#include <kvterrace/load.h>
#include <kvterrace/lookup.h>
#include <kvterrace/names.h>

#include "serve/wire/channel_entries.h"

/* What a call says of its keys, which follow. Members that its kind has no use for are zero. */
typedef struct wire_list {
    uint32_t struct_size;
    uint32_t count;       /* of keys */
    uint32_t flags;       /* match: WIRE_MATCH_HOSTS .. */
    uint32_t worth_bytes; /* match: sizeof(kvt_worth) of the client; 0: not wanted */
    uint64_t instant_ns;  /* match with hosts: deadline_ns; lease begin: until_ns */
    uint32_t hint;        /* kvt_hint_kind */
    uint32_t zero;
    double seconds; /* hint */
} wire_list;

#define WIRE_MATCH_HOSTS   1u /* answers of other hosts that are known count; none is asked */
#define WIRE_MATCH_SECONDS 2u /* load_seconds are wanted */

typedef struct wire_extend {
    uint32_t struct_size;
    uint32_t zero;
    uint64_t lease;
    uint64_t until_ns;
} wire_extend;

typedef struct wire_describe {
    uint32_t struct_size;
    uint32_t description_bytes; /* sizeof(kvt_description) of the client */
    uint32_t groups_capacity;   /* at most KVT_GROUPS_MAX */
    uint32_t zero;
} wire_describe;

typedef struct wire_pass_layer {
    uint32_t struct_size;
    uint32_t layer;
    uint64_t pass;
} wire_pass_layer;

_Static_assert(sizeof(wire_list) == 40, "list");
_Static_assert(sizeof(wire_extend) == 24, "extend");
_Static_assert(sizeof(wire_describe) == 16, "describe");
_Static_assert(sizeof(wire_pass_layer) == 16 && sizeof(kvt_pass) == 32, "pass");
_Static_assert(sizeof(kvt_key) == 32 && sizeof(kvt_layout) == 24, "what lists hold");
_Static_assert(sizeof(kvt_worth) == 56 && sizeof(kvt_description) % 8 == 0, "answers");

/* Bytes of the answer to a list that was read, or is written. */
static inline uint64_t wire_list_answer(uint32_t kind, const wire_list *list)
{
    if (kind == WIRE_LEASE_BEGIN) return list->count;
    if (kind != WIRE_MATCH) return 0;
    const uint64_t each = (list->flags & WIRE_MATCH_SECONDS) != 0 ? sizeof(double) : 0;
    return list->worth_bytes + each * list->count;
}

/* ---- the client's side ---- */

/*
 * Writes the record of a touch, match, lease begin or hint.
 *   list       all is set but struct_size
 *   keys       list->count of them
 *   out        capacity bytes, aligned to 8
 *   bytes_out  of the record and the room for its answer
 * KVT_OK; KVT_E_SPACE (capacity).
 */
KVT_NODISCARD kvt_status wire_list_write(uint32_t kind, const wire_list *list, const kvt_key *keys,
                                         void *out, size_t capacity, size_t *bytes_out);

/*
 * Reads the answer to a match, once.
 *   list     that was written
 *   answer   completion.answer_bytes of the record's place
 *   worth    of list->worth_bytes; NULL where none was wanted; its struct_size stays
 *   seconds  list->count of them; NULL where none were wanted
 * KVT_OK; KVT_E_CORRUPT: the server has written something else, and both are as they were.
 */
KVT_NODISCARD kvt_status wire_match_answer_read(const wire_list *list, const void *answer,
                                                size_t bytes, kvt_worth *worth, double *seconds);

/* Reads which keys a lease holds, into list->count values; held may be NULL. KVT_OK;
 * KVT_E_CORRUPT. */
KVT_NODISCARD kvt_status wire_lease_answer_read(const wire_list *list, const void *answer,
                                                size_t bytes, bool *held);

/* Writes the record of a lease extend. KVT_OK; KVT_E_SPACE. */
KVT_NODISCARD kvt_status wire_extend_write(uint64_t lease, uint64_t until_ns, void *out,
                                           size_t capacity, size_t *bytes_out);

/* Write the records of a pass's begin, of which all is set but struct_size, and of a layer. KVT_OK;
 * KVT_E_SPACE. */
KVT_NODISCARD kvt_status wire_pass_write(const kvt_pass *pass, void *out, size_t capacity,
                                         size_t *bytes_out);
KVT_NODISCARD kvt_status wire_pass_layer_write(uint64_t pass, uint32_t layer, void *out,
                                               size_t capacity, size_t *bytes_out);

/* Writes the record of a describe, with the room for a description like this one: struct_size and
 * groups_capacity are set. KVT_OK; KVT_E_SPACE; KVT_E_ARGUMENT (its struct_size). */
KVT_NODISCARD kvt_status wire_describe_write(const kvt_description *description, void *out,
                                             size_t capacity, size_t *bytes_out);

/* Reads a description, once: all but struct_size, groups_capacity and groups is overwritten, and
 * the groups' layouts are when all fit. KVT_OK; KVT_E_CORRUPT. */
KVT_NODISCARD kvt_status wire_describe_answer_read(const void *answer, size_t bytes,
                                                   kvt_description *description);

/* ---- the server's side ---- */

/*
 * Reads a copy of a list that nobody else writes.
 *   record    aligned to 8; *keys_out points into it
 *   bytes     of the copy: no less than its answer takes
 * KVT_OK; KVT_E_ARGUMENT.
 */
KVT_NODISCARD kvt_status wire_list_read(uint32_t kind, const void *record, size_t bytes,
                                        wire_list *list_out, const kvt_key **keys_out);

/* Writes the answer to a match, wire_list_answer bytes: worth and seconds as wanted, of this
 * library's size. */
void wire_match_answer_write(const wire_list *list, const kvt_worth *worth, const double *seconds,
                             void *out);

KVT_NODISCARD kvt_status wire_extend_read(const void *record, size_t bytes,
                                          wire_extend *extend_out);
/* Read the records of a pass, whose ranges are the call's to check. KVT_OK; KVT_E_ARGUMENT. */
KVT_NODISCARD kvt_status wire_pass_read(const void *record, size_t bytes, kvt_pass *pass_out);
KVT_NODISCARD kvt_status wire_pass_layer_read(const void *record, size_t bytes,
                                              wire_pass_layer *layer_out);

KVT_NODISCARD kvt_status wire_describe_read(const void *record, size_t bytes,
                                            wire_describe *describe_out);

/* Writes a description of this library's size, whose groups are read, into the room that was asked
 * for. Returns the bytes that were written. */
size_t wire_describe_answer_write(const wire_describe *describe, const kvt_description *description,
                                  void *out);

#endif
