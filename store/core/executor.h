/* SPDX-License-Identifier: Apache-2.0 */
/*
 * executor.h - plans are carried out (executor.c): what a caller of the executor sees.
 *
 * Thread rule: no lock is held.
 */
#ifndef STORE_EXECUTOR_H
#define STORE_EXECUTOR_H

#include "store/core/store.h"

/* Why a move failed. Only the executor knows the cause; its callers do not guess it. */
typedef enum executor_cause {
    EXECUTOR_DONE = 0,
    EXECUTOR_ROOM,   /* pool or policy had no room for the record; no device said so */
    EXECUTOR_LATE,   /* the only room was on devices that answer late */
    EXECUTOR_FULL,   /* a device said that it is full */
    EXECUTOR_HELD,   /* readers held the room for too long */
    EXECUTOR_LARGER, /* the record came out larger than was planned */
    EXECUTOR_DEVICE, /* a device failed or is out of service, and the next plan does without it */
    EXECUTOR_MEMORY, /* of the process */
    EXECUTOR_OTHER   /* what the status says */
} executor_cause;

typedef struct executor_result {
    uint32_t committed;   /* moves */
    executor_cause cause; /* of the first failure */
    bool before_put;      /* a move before the plan's PUT failed */
    uint64_t put_bytes; /* the size that the PUT's record came out with, 0 before it was encoded */
} executor_result;

struct store_gpu_views; /* gpu_views.h */

struct executor_flight; /* executor_flights.h */

/* Where the bytes of a plan's PUT are: in views, one a group; or in a GPU's memory. Neither: the
 * plan has no PUT. flight: NULL, or the PUT's record may be written behind this call. anywhere:
 * records may lie on devices that answer late, where there is no other room. */
typedef struct executor_source {
    const kvt_view *views;
    struct store_gpu_views *gpu;
    struct executor_flight *flight;
    bool anywhere;
} executor_source;

/* Carries a marked plan out, in order; after a failure the rest is aborted. No lock held. Returns
 * the first failure. KVT_QUEUED: the flight is under way; moves and views last until its end. */
KVT_NODISCARD kvt_status executor_run_plan(kvt_store *store, const kvt_move *moves, uint32_t count,
                                           executor_source source, executor_result *result_out);

/* Carries out a move of a MOVING entry that the policy does not know of: it is neither committed
 * nor aborted there, nor reported. anywhere: as of executor_source. No lock held. Returns how it
 * failed. */
KVT_NODISCARD kvt_status executor_run_unplanned(kvt_store *store, const kvt_move *move,
                                                bool anywhere, executor_cause *cause_out);

/* Lays a RESIDENT entry of this tier out anew: the same record, in the same tier, with the present
 * weights. anywhere: as of executor_source. No lock held. KVT_OK; KVT_MISS (the entry is not at
 * rest there); KVT_E_SPACE (no room: the entry stays); the failures of reading and writing. */
KVT_NODISCARD kvt_status executor_relayout(kvt_store *store, uint64_t handle, kvt_tier tier,
                                           bool anywhere);

/* Writes the record of an entry above the SSD to the SSD, as its copy, if there is room now. One in
 * motion is waited for until an instant of CLOCK_MONOTONIC in nanoseconds, 0 for not at all; a plan
 * of it that waits for the background is called off. With an instant the copy may lie anywhere, as
 * of executor_source. No lock held. KVT_OK; KVT_MISS (the entry is gone, is on SSD or has a copy
 * there); KVT_E_TIMEOUT (it was in motion all the time); KVT_E_SPACE; the failures of reading and
 * writing. */
KVT_NODISCARD kvt_status executor_copy(kvt_store *store, uint64_t handle, uint64_t deadline_ns);

/* The row of an entry whose record is at a place, but for the location. */
catalog_row executor_row_of(const kvt_store *store, const store_entry *entry,
                            const store_place *place);

/* As kvt_record_bound, with scratch for the store's codec workers. */
KVT_NODISCARD kvt_status executor_bound(const kvt_store *store, const kvt_record_spec *spec,
                                        uint64_t *bytes_out, uint64_t *scratch_bytes_out);

#endif
