/* SPDX-License-Identifier: Apache-2.0 */
/*
 * watch.h - watching a store that runs: its metrics, its events, its last operations.
 *
 *     char text[65536];
 *     size_t bytes = kvt_metrics_write(store, text, sizeof text); // of a server's GET /metrics
 *     if (bytes != 0 && bytes <= sizeof text) reply(text);
 *
 *     kvt_events *events;
 *     if (kvt_events_open(store, 8192, &events) != KVT_OK) return;
 *     kvt_event changes[64];
 *     size_t count;
 *     uint64_t lost;
 *     while (kvt_events_drain(events, changes, 64, &count, &lost) == KVT_OK && count != 0)
 *         for (size_t i = 0; i < count; i++) tell_the_router(&changes[i]);
 *     kvt_events_close(events);
 *
 * The settings store.watch_path and store.watch_interval make a store write the metrics and the
 * last operations to a file by itself; `kvterrace inspect FILE` shows such a file.
 *
 * Thread rule: any thread at any time between open and close, beside any other call; the owner of a
 * kvt_events makes one call on it at a time.
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

/* ---- what is stored and removed ---- */

typedef enum kvt_event_kind {
    KVT_EVENT_STORED = 1,  /* lookups find the entry from now on */
    KVT_EVENT_REMOVED = 2, /* lookups no longer find it; `reason` says why */
    KVT_EVENT_MOVED = 3    /* another tier or another variant */
} kvt_event_kind;

typedef enum kvt_event_reason {
    KVT_REMOVED_NOT = 0,     /* the event is no removal */
    KVT_REMOVED_EVICTED = 1, /* its room was needed, or it was not worth its room */
    KVT_REMOVED_DELETED = 2, /* by the caller */
    KVT_REMOVED_EXPIRED = 3, /* its lifetime ended */
    KVT_REMOVED_LOST = 4,    /* its device is gone, or its bytes are damaged */
    KVT_REMOVED_UNSTORED = 5 /* a put was accepted and could not be stored after all */
} kvt_event_reason;

/* One change that a lookup can see. Later versions use the reserved members; the size stays. */
typedef struct kvt_event {
    uint64_t number;     /* of the store's events, ascending by 1 while any reader is open */
    uint64_t instant_ns; /* CLOCK_MONOTONIC */
    kvt_key key;
    kvt_key parent;      /* zero for a root */
    uint64_t bytes;      /* of the stored record; of the put's data until that is written */
    double load_seconds; /* what a get is expected to take; NAN when that is not known */
    uint32_t tokens;
    uint32_t first_position;
    uint32_t tenant;
    kvt_variant variant;
    uint8_t kind;        /* kvt_event_kind */
    uint8_t reason;      /* kvt_event_reason */
    uint8_t tier;        /* kvt_tier where it is now; of a removal, where it was */
    uint8_t source_tier; /* of a move, where it was; else KVT_TIER_NONE */
    uint8_t reserved[8];
} kvt_event;

#define KVT_EVENTS_CAPACITY_MAX (UINT32_C(1) << 20)

/* A reader of a store's events, with a ring of its own. */
typedef struct kvt_events kvt_events;

/*
 * Begins to gather events. An entry that was stored before has no event of that, but has one when
 * it moves or is removed. The events of a key alternate: stored, any number of moves, removed. A
 * put is stored when it is accepted, in the tier DRAM, and moves when its record is written to
 * another tier or in another variant. An evicted entry is a miss a moment before its event comes.
 * Several readers each get every event.
 *   capacity  events that wait for this reader at most, 1 to KVT_EVENTS_CAPACITY_MAX; a reader that
 *             is too slow loses the oldest ones
 * KVT_OK; KVT_E_ARGUMENT; KVT_E_MEMORY; KVT_E_IO (no event descriptor is to be had); KVT_E_STATE
 * (in a child of fork). The reader is the caller's until kvt_events_close, before or after
 * kvt_store_close; events that wait when the store is closed may still be drained.
 */
KVT_API KVT_NODISCARD kvt_status kvt_events_open(kvt_store *store, uint32_t capacity,
                                                 kvt_events **events_out);

/*
 * Takes the oldest waiting events, at most `capacity` of them, in their order. Does not wait.
 *   events     `capacity` of them
 *   count_out  how many were taken; 0 = none waits
 *   lost_out   how many were lost to this reader since its last drain, all of them older than the
 *              ones taken: look the keys that matter up again then. May be NULL
 * KVT_OK; KVT_E_ARGUMENT; KVT_E_STATE (in a child of fork).
 */
KVT_API KVT_NODISCARD kvt_status kvt_events_drain(kvt_events *reader, kvt_event *events,
                                                  size_t capacity, size_t *count_out,
                                                  uint64_t *lost_out);

/* A descriptor that polls readable while events wait, for poll and epoll. It belongs to the reader:
 * do not read from it or close it. reader is not NULL. -1 in a child of fork. */
KVT_API int kvt_events_fd(const kvt_events *reader);

/* Ends a reader and drops its waiting events. NULL is allowed. In a child of fork: does nothing. */
KVT_API void kvt_events_close(kvt_events *reader);

/* ---- the last operations ---- */

typedef enum kvt_operation_kind {
    KVT_OPERATION_GET = 1,
    KVT_OPERATION_PUT = 2, /* the call; an executor's work behind it is a KVT_OPERATION_MOVE */
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
    uint32_t decide_ns;     /* of elapsed_ns: finding, deciding, waiting */
    uint32_t transfer_ns;   /* of elapsed_ns: read or written by devices, or copied */
    uint32_t code_ns;       /* of elapsed_ns: encoding or decoding, and checksums. Each of the three
                                is at most UINT32_MAX */
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
KVT_API KVT_NODISCARD kvt_status kvt_operations_get(kvt_store *store, kvt_operation *out,
                                                    size_t capacity, size_t *count_out);

/* ---- a file that shows both ---- */

/*
 * Writes metrics and the last operations to a text file, which replaces an older one in one step: a
 * reader sees the one or the other. It is Prometheus text with the operations in comments, so that
 * node_exporter's textfile collector reads it too.
 *   path   of a file that is absent, empty or one of these; the text is written beside it first,
 *          at path and ".new"
 * KVT_OK; KVT_E_ARGUMENT (no regular file); KVT_E_MISMATCH (a file of other content, which stays);
 * KVT_E_MEMORY; KVT_E_SPACE, KVT_E_IO, KVT_E_READ_ONLY, KVT_E_GONE (the file or its folder);
 * KVT_E_STATE (in a child of fork). Blocking.
 */
KVT_API KVT_NODISCARD kvt_status kvt_watch_write(kvt_store *store, const char *path);

/* ---- an open with serve_early ---- */

/*
 * With a catalog, and without a remote tier, such a kvt_store_open returns before the catalog's
 * rows are read. Until they are, get, exists, match and kvt_prefix_get find entries that are stored
 * exact on SSD by the catalog; such calls are in no statistics and count as no use. All other calls
 * wait, and so do gets of lossy or damaged records, until their deadline. A first open, and one
 * with new, lost or stale devices or back ends other than file, returns once all is known.
 *
 * kvt_store_wait waits for the end of the open, at most until the deadline (that of kvt_store_get),
 * and says how it ended; a store that was opened without the option is open. message, which may be
 * NULL, gets what kvt_store_open would have written. After a failure each call but this one and
 * kvt_store_close says its status, or KVT_E_UNSUPPORTED.
 * KVT_OK; KVT_BUSY (it goes on); statuses of kvt_store_open; KVT_E_ARGUMENT; KVT_E_STATE. Any
 * thread; blocking.
 */
KVT_API KVT_NODISCARD kvt_status kvt_store_wait(kvt_store *store, uint64_t deadline_ns,
                                                char *message, size_t message_size);

#ifdef __cplusplus
}
#endif

#endif
