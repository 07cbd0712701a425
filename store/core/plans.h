/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plans.h - plans are marked and queued, or aborted and settled (plans.c).
 *
 * Thread rule: the store's lock, as each function says.
 */
#ifndef STORE_PLANS_H
#define STORE_PLANS_H

#include "store/core/store.h"

/* A plan that waits for the background; its entries are MOVING or LEAVING already. */
typedef struct store_queued_plan {
    uint32_t count;
    kvt_move moves[];
} store_queued_plan;

/* Marks the entries of a fresh plan as MOVING or LEAVING. Lock held since the policy call. */
void plan_mark(kvt_store *store, const kvt_plan *plan);

/* Aborts marked moves that have not begun. Lock held; returns with the lock held. Observers are
 * notified by the caller through plan_report. */
void plan_abort_moves(kvt_store *store, const kvt_move *moves, uint32_t count);

/* The entry of a move that is not carried out is at rest again, or leaves when it was to be put.
 * Lock held. */
void plan_settle_entry(kvt_store *store, const kvt_move *move);

/* Notifies the observer of how a move ended. No lock held. */
void plan_report(kvt_store *store, const kvt_move *move, kvt_status outcome);

/* Aborts in the policy a plan whose entries were not marked. Lock held. */
void plan_withdraw(kvt_store *store, const kvt_plan *plan);

/* Queues a marked plan for the background, or aborts it when the queue is full. Lock held. */
void plan_queue(kvt_store *store, const kvt_plan *plan);

/* Aborts the queued plan that holds this handle, so that its entry is at rest. True when there was
 * one. Lock held. */
bool plan_cancel(kvt_store *store, uint64_t handle);

/* Takes the plan at an index out of the queue, keeping the order of the others. The caller frees
 * it. Lock held. */
store_queued_plan *plan_unqueue(kvt_store *store, uint32_t index);

#endif
