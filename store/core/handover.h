/* SPDX-License-Identifier: Apache-2.0 */
/*
 * handover.h - puts that were accepted and are carried out behind the caller (docs/STORE.md, Put).
 *
 * An entry that is handed over is STAGED: its bytes, as they were put, are in the put's staging,
 * where gets copy them from until the entry's record is published. Executors, threads of the store,
 * take the plans in the order of their puts.
 *
 * Thread rule: the store's lock, as each function says; a staged object's bytes are read without
 * it by its users.
 */
#ifndef STORE_HANDOVER_H
#define STORE_HANDOVER_H

#include "store/core/put_plan.h"

/* An entry that was handed over. */
typedef struct store_staged {
    struct store_staged *next, *previous; /* in the order of their puts */
    uint64_t number;                      /* of the put, ascending */
    uint64_t handle;
    bool begun;     /* an executor has it */
    uint32_t users; /* the hand-over and the gets that copy; the last one frees it */
    staging_buffer buffer;
    kvt_entry source;
    uint64_t source_bytes;
    kvt_key parent;                 /* what source.parent points to, when it has one */
    double seconds[KVT_TIER_COUNT]; /* of writes, as its plan adds them to the backlog */
    put_progress progress;
    uint32_t count;
    kvt_move moves[];
} store_staged;

/* Makes what the executors need. KVT_OK; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status handover_open(kvt_store *store, const kvt_store_options *options);

/* Starts them. KVT_OK; KVT_E_THREAD (none was started). */
KVT_NODISCARD kvt_status handover_start(kvt_store *store);

/* Waits for the puts that are handed over, not beyond an instant of CLOCK_MONOTONIC in nanoseconds;
 * calls the rest off; ends the threads. deadline_ns 0: waits only for puts that executors have
 * begun. No lock held. */
void handover_stop(kvt_store *store, uint64_t deadline_ns);

/* Frees the put's staging. Once no get can hold any of it. */
void handover_close(kvt_store *store);

/* An executor's put has ended: one that is not stored leaves the table and is counted, and the
 * object leaves the queue. Lock held. */
void handover_end(kvt_store *store, store_staged *staged, kvt_status status);

/* Calls off every put that no executor has begun, and lets none be begun from now on. No lock held.
 */
void handover_cancel_waiting(kvt_store *store);

/* Whether puts are handed over at all. */
bool handover_is_on(const kvt_store *store);

/* Staging for a put's bytes, at once. KVT_OK; KVT_BUSY (full); KVT_E_MEMORY. */
KVT_NODISCARD kvt_status handover_stage(kvt_store *store, uint64_t bytes, staging_buffer *out);

/* The writes of a plan that was made for a staged object replace those of the one before. Lock
 * held. */
void handover_note_plan(kvt_store *store, store_staged *staged, const kvt_plan *plan);

/* Whether a plan would bring a tier's waiting writes above the bound. Lock held. */
bool handover_lags(const kvt_store *store, const kvt_plan *plan);

/* The same for a put that is to wait without a plan: its writes are expected to be those that plans
 * lately made per byte that was put. Lock held. */
bool handover_lags_unplanned(const kvt_store *store, uint64_t bytes);

/*
 * Copies the caller's bytes from where the views have them, one a group, into the buffer and hands
 * a marked plan over, or an empty one that an executor has to make; the entry is STAGED then.
 * No lock held. KVT_OK: the buffer is taken and cleared. KVT_E_MEMORY; KVT_E_CANCELLED: views is
 * NULL, because they could not be read: the plan was aborted.
 */
KVT_NODISCARD kvt_status handover_accept(kvt_store *store, const kvt_entry *source,
                                         const kvt_view *views, const kvt_plan *plan,
                                         const put_progress *progress, staging_buffer *buffer);

/* Calls off the hand-over of a STAGED entry that no executor has begun, and takes the entry out of
 * the table: the object is the caller's to discard, without the lock. NULL: it has begun. Lock
 * held. */
store_staged *handover_cancel(kvt_store *store, store_entry *entry);
void handover_discard(kvt_store *store, store_staged *staged);

/* Joins and leaves the users of a staged object. Lock held; the buffer goes with the last user. */
void handover_join(store_staged *staged);
void handover_leave(kvt_store *store, store_staged *staged);

/* Waits until all that is handed over now has ended, not beyond an instant of CLOCK_MONOTONIC in
 * nanoseconds. No lock held. Entries that had not, and their bytes. */
uint64_t handover_drain(kvt_store *store, uint64_t deadline_ns, uint64_t *bytes_out);

#endif
