/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pending.h - the client's table of requests that were posted and not completed: a completion is
 * taken only for one of them, once, and of its kind.
 *
 *     wire_pending_open(&pending, WIRE_GET, argument_bytes, &number)  ...  a completion comes  ...
 *     wire_pending_close(&pending, &completion, &place)
 *
 * Thread rule: one thread at a time (the channel's lock).
 */
#ifndef SERVE_WIRE_PENDING_H
#define SERVE_WIRE_PENDING_H

#include "serve/wire/channel_entries.h"

typedef struct wire_pending_place {
    uint64_t number; /* of the request; while the place is free, the one of its next request */
    uint32_t argument_bytes;
    uint16_t kind; /* 0: free */
    uint16_t unused;
    uint32_t next_free;
} wire_pending_place;

typedef struct wire_pending {
    wire_pending_place *places;
    uint32_t place_count; /* a power of two */
    uint32_t first_free;  /* place_count: none */
    uint32_t open;        /* requests */
} wire_pending;

/* places is a ring's size. KVT_OK; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status wire_pending_init(wire_pending *pending, uint32_t places);

void wire_pending_free(wire_pending *pending);

/* Takes a place for a request, in number % places, until its completion; no number comes twice in
 * 2^63 / places uses of a place. KVT_OK; KVT_BUSY. */
KVT_NODISCARD kvt_status wire_pending_open(wire_pending *pending, wire_request_kind kind,
                                           uint32_t argument_bytes, uint64_t *number_out);

/* Ends the request that a completion names. KVT_OK: its place is free; KVT_E_CORRUPT: it names no
 * request that is open, or one of another kind, or its answer is longer than the record. */
KVT_NODISCARD kvt_status wire_pending_close(wire_pending *pending,
                                            const wire_completion *completion, uint32_t *place_out);

#endif
