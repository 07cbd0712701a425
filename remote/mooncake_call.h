/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mooncake_call.h - a batch of requests of one kind and its blocking calls of Mooncake's library.
 *
 *     an object's bytes    value | 8 bytes: base_calendar_ns at which its life is over, or 0
 *
 * Thread rule: a call is its thread's, but for `request` and `copying` of its slots (mooncake.c).
 */
#ifndef REMOTE_MOONCAKE_CALL_H
#define REMOTE_MOONCAKE_CALL_H

#include "remote/client.h"
#include "remote/mooncake_library.h"

#define MOONCAKE_BATCH   64u
#define MOONCAKE_TRAILER sizeof(uint64_t)
/* Of a call's memory: the values of one batch, two of the largest chunk. */
#define MOONCAKE_BYTES ((size_t)17 << 20)

/* One request in a call. */
typedef struct mooncake_slot {
    remote_request *request; /* NULL: it has left */
    bool copying;            /* its parts are read or written: it may not leave now */
    char key[REMOTE_KEY_MAX + 1];
    size_t offset, room; /* of its value, with the trailer, in the thread's memory */
    kvt_status status;
    uint64_t value_bytes;
} mooncake_slot;

/* A batch of one kind of requests, and the memory that its values lie in. */
typedef struct mooncake_call {
    const mooncake_library *library;
    mooncake_store store;
    char *memory;
    bool registered;
    remote_kind kind;
    bool fresh;
    uint32_t count;
    mooncake_slot slots[MOONCAKE_BATCH];
} mooncake_call;

/* The bytes of a call's memory that a request takes; a fresh object is read back behind its value.
 */
size_t mooncake_call_room(const remote_request *request);

/* Copies the value of a PUT, and its trailer, into the call's memory. */
void mooncake_call_gather(mooncake_call *call, const mooncake_slot *slot);

/* Copies a value that was read into the parts of its GET. */
void mooncake_call_scatter(const mooncake_call *call, const mooncake_slot *slot);

/* Carries the requests of the slots out, and gives each slot its status. As long as it takes. */
void mooncake_call_run(mooncake_call *call);

/* The requests of the slots end with KVT_E_GONE. */
void mooncake_call_fail(mooncake_call *call);

#endif
