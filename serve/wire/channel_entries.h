/* SPDX-License-Identifier: Apache-2.0 */
/*
 * channel_entries.h - the bodies of a channel's rings: requests of the client, completions of the
 * server (docs/SERVE.md, A channel's entries); and which of them are sound.
 *
 * Thread rule: plain data, any thread. Inline.
 */
#ifndef SERVE_WIRE_CHANNEL_ENTRIES_H
#define SERVE_WIRE_CHANNEL_ENTRIES_H

#include "base/ring_words.h"

#include <kvterrace/queue.h>
#include <kvterrace/types.h>
#include <stdbool.h>
#include <string.h>

/*
 * What a request asks for. The first six are those of a queue. Each kind uses of a request:
 *
 *     get, put                     a record (request_records.h)
 *     exists, delete               the key
 *     prefetch                     the key; argument: kvt_tier
 *     touch                        the key, or a list of keys as record (key_records.h); answer:
 *                                  keys that are stored. Of one key KVT_MISS where it is not
 *     match, lease begin, hint     a list of keys; answer: keys that match, lease, keys that got it
 *     lease extend                 a wire_extend
 *     lease end                    argument: the lease
 *     describe                     the key, and a wire_describe
 *     load begin                   a wire_load with entries (load_records.h); answer: its number,
 *                                  also of one of which further records are to come
 *     load end                     argument: the load's number. KVT_MISS: there is none; stored
 *                                  bytes and answer: bytes that were read, and shared
 *     pass begin                   a kvt_pass; answer: its number
 *     pass layer                   a wire_pass_layer
 *     pass end                     argument: the pass
 *     cancel                       argument: the number of an open request, whose whole batch is
 *                                  called off. KVT_MISS: it is not open, or nothing of the batch
 *                                  could be called off
 *
 * An exists of an entry that another host is known to have is KVT_OK with WIRE_GUESS. A lease's
 * number is the session's: every channel of it may name the lease, which ends with the channel that
 * began it. So is a pass's.
 */
typedef enum wire_request_kind {
    WIRE_GET = KVT_REQUEST_GET,
    WIRE_PUT = KVT_REQUEST_PUT,
    WIRE_EXISTS = KVT_REQUEST_EXISTS,
    WIRE_PREFETCH = KVT_REQUEST_PREFETCH,
    WIRE_DELETE = KVT_REQUEST_DELETE,
    WIRE_TOUCH = KVT_REQUEST_TOUCH,
    WIRE_MATCH = 7,
    WIRE_LEASE_BEGIN = 8,
    WIRE_LEASE_EXTEND = 9,
    WIRE_LEASE_END = 10,
    WIRE_HINT = 11,
    WIRE_LOAD_BEGIN = 12,
    WIRE_LOAD_END = 14, /* 13 is none */
    WIRE_CANCEL = 15,
    WIRE_DESCRIBE = 16,
    WIRE_PASS_BEGIN = 17,
    WIRE_PASS_LAYER = 18,
    WIRE_PASS_END = 19,
    WIRE_REQUEST_KINDS = 20
} wire_request_kind;

typedef struct wire_request {
    uint64_t number;         /* comes back with the completion (pending.h) */
    uint16_t kind;           /* wire_request_kind */
    uint16_t urgency;        /* kvt_request_class, and WIRE_BATCH_BEGINS */
    uint32_t argument_bytes; /* of the record at `argument`; 0: a small number is there */
    uint64_t argument;       /* from the begin of the area's arguments, a multiple of 8 */
    kvt_key key;
} wire_request;

/* A batch is the requests from one with this bit to the next one with it. */
#define WIRE_BATCH_BEGINS 0x8000u

typedef struct wire_completion {
    uint64_t number;
    int32_t status;
    uint16_t kind; /* of the request */
    uint8_t tier;
    uint8_t flags; /* WIRE_TIMED_OUT .. */
    kvt_variant variant;
    uint64_t stored_bytes;
    uint64_t elapsed_ns;
    uint32_t answer_bytes; /* that were written over the request's record */
    uint32_t zero;
    uint64_t answer; /* a count, a lease */
} wire_completion;

#define WIRE_TIMED_OUT      1u
#define WIRE_REFUSED_LOSS   2u
#define WIRE_REFUSED_TOKENS 4u
#define WIRE_GUESS          8u
#define WIRE_FLAGS          15u

_Static_assert(sizeof(wire_request) == sizeof(base_ring_body), "a request fills an entry");
_Static_assert(sizeof(wire_completion) == sizeof(base_ring_body), "so does a completion");
_Static_assert(offsetof(wire_request, key) == 24, "request");
_Static_assert(offsetof(wire_completion, variant) == 16, "completion");
_Static_assert(offsetof(wire_completion, answer) == 48, "completion");

static inline base_ring_body wire_request_body(const wire_request *request)
{
    base_ring_body body;
    memcpy(&body, request, sizeof body);
    return body;
}

static inline base_ring_body wire_completion_body(const wire_completion *completion)
{
    base_ring_body body;
    memcpy(&body, completion, sizeof body);
    return body;
}

static inline uint32_t wire_request_class(const wire_request *request)
{
    return request->urgency & ~WIRE_BATCH_BEGINS;
}

/* Whether a kind may have a record, or must: neither, the argument is a number. */
static inline bool wire_kind_fits(uint32_t kind, bool record)
{
    switch (kind) {
    case WIRE_GET:
    case WIRE_PUT:
    case WIRE_MATCH:
    case WIRE_LEASE_BEGIN:
    case WIRE_LEASE_EXTEND:
    case WIRE_HINT:
    case WIRE_LOAD_BEGIN:
    case WIRE_PASS_BEGIN:
    case WIRE_PASS_LAYER:
    case WIRE_DESCRIBE: return record;
    case WIRE_EXISTS:
    case WIRE_PREFETCH:
    case WIRE_DELETE:
    case WIRE_LEASE_END:
    case WIRE_LOAD_END:
    case WIRE_PASS_END:
    case WIRE_CANCEL: return !record;
    default: return true;
    }
}

/*
 * Takes a request out of a body that was taken from the ring.
 *   area_bytes   of the channel's arguments
 *   most         bytes of a record
 * KVT_OK: its record lies in the area. KVT_E_ARGUMENT: the request is unsound, and is answered so
 * by its number; the channel goes on.
 */
KVT_NODISCARD static inline kvt_status wire_request_read(const base_ring_body *body,
                                                         uint64_t area_bytes, uint32_t most,
                                                         wire_request *request_out)
{
    memcpy(request_out, body, sizeof *request_out);
    if (request_out->kind < WIRE_GET || request_out->kind >= WIRE_REQUEST_KINDS)
        return KVT_E_ARGUMENT;
    if (wire_request_class(request_out) > KVT_CLASS_BACKGROUND) return KVT_E_ARGUMENT;
    if (!wire_kind_fits(request_out->kind, request_out->argument_bytes != 0)) return KVT_E_ARGUMENT;
    if (request_out->argument_bytes == 0) return KVT_OK;
    if (request_out->argument_bytes > most || request_out->argument % 8 != 0) return KVT_E_ARGUMENT;
    if (request_out->argument > area_bytes ||
        request_out->argument_bytes > area_bytes - request_out->argument)
        return KVT_E_ARGUMENT;
    return KVT_OK;
}

/* Takes a completion out of a body. KVT_OK; KVT_E_CORRUPT: no server writes this. Which request it
 * answers, and that its answer is no longer than the record, is for the caller to check. */
KVT_NODISCARD static inline kvt_status wire_completion_read(const base_ring_body *body,
                                                            wire_completion *completion_out)
{
    memcpy(completion_out, body, sizeof *completion_out);
    if (completion_out->status < -99 || completion_out->status > 99) return KVT_E_CORRUPT;
    if (completion_out->status == KVT_QUEUED) return KVT_E_CORRUPT; /* it completes nothing */
    if (completion_out->kind < WIRE_GET || completion_out->kind >= WIRE_REQUEST_KINDS)
        return KVT_E_CORRUPT;
    if (completion_out->tier > KVT_TIER_REMOTE || completion_out->flags > WIRE_FLAGS)
        return KVT_E_CORRUPT;
    return completion_out->zero == 0 ? KVT_OK : KVT_E_CORRUPT;
}

#endif
