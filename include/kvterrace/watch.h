/* SPDX-License-Identifier: Apache-2.0 */
/*
 * watch.h - watching a store that runs: its metrics and its last operations.
 *
 *     char text[65536];
 *     size_t bytes = kvt_metrics_write(store, text, sizeof text); // of a server's GET /metrics
 *     if (bytes != 0 && bytes <= sizeof text) reply(text);
 *
 * Thread rule: any thread at any time between open and close, every call beside every other.
 */
#ifndef KVTERRACE_WATCH_H
#define KVTERRACE_WATCH_H

#include "kvterrace.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- metrics ---- */

/*
 * Writes the store's metrics as Prometheus text (exposition format 0.0.4): seconds and bytes as
 * units, counters that end in _total and count from the open, three histograms. docs/STORE.md,
 * Watching, lists the names. A counter of a device begins anew when the device is replaced.
 *   text   size bytes, may be NULL with size 0; terminated when size is not 0, cut when the metrics
 *          take more
 * Returns the bytes that the metrics take with their terminating zero; the next call may need a few
 * more. 0 without a store, and in a child of fork. Takes short locks, does no I/O, allocates
 * nothing.
 */
KVT_API size_t kvt_metrics_write(kvt_store *store, char *text, size_t size);

/* ---- the last operations ---- */

typedef enum kvt_operation_kind {
    KVT_OPERATION_GET = 1,
    KVT_OPERATION_PUT = 2, /* the call; what an executor does behind it is a KVT_OPERATION_MOVE */
    KVT_OPERATION_DELETE = 3,
    KVT_OPERATION_MOVE = 4, /* of a plan: a put's record, a promotion, demotion or recoding */
    KVT_OPERATION_EVICT = 5 /* of a plan */
} kvt_operation_kind;

/* One operation that has ended. Its size, 64 bytes, does not change. */
typedef struct kvt_operation {
    uint64_t instant_ns; /* when it ended, CLOCK_MONOTONIC */
    uint64_t elapsed_ns;
    uint64_t bytes;         /* of the record; of a put, as put; 0 when none was read or written */
    uint8_t key_prefix[16]; /* the first bytes of the key */
    uint32_t decide_ns;     /* of elapsed_ns: all but what follows; finding, deciding, waiting */
    uint32_t transfer_ns;   /* of elapsed_ns: read or written by devices, or copied */
    uint32_t code_ns;       /* of elapsed_ns: encoding or decoding, and checksums; each UINT32_MAX
                                when it is more */
    kvt_variant variant;    /* read or written */
    int16_t status;         /* kvt_status: what the call returned; of a failed load, why */
    uint8_t kind;           /* kvt_operation_kind */
    uint8_t tier;           /* kvt_tier that was read or written */
} kvt_operation;

/*
 * Copies the last operations, the oldest first. A store keeps at least the last 4,096.
 *   out        capacity of them
 *   count_out  how many were copied, at most capacity
 * KVT_OK; KVT_E_ARGUMENT; KVT_E_STATE (in a child of fork). Any thread; stops no operation.
 */
KVT_API KVT_NODISCARD kvt_status kvt_operations_read(kvt_store *store, kvt_operation *out,
                                                     size_t capacity, size_t *count_out);

#ifdef __cplusplus
}
#endif

#endif
