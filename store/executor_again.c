/* SPDX-License-Identifier: Apache-2.0 */
/*
 * executor_again.c - records that are written once more, by moves that the policy does not know of:
 * laid out anew in their tier, or copied from above to the SSD.
 *
 * Thread rule: any thread; no lock held.
 */
#include "base/wait.h"
#include "store/executor.h"
#include "store/plans.h"

#include <assert.h>

/* Moves of one entry, each planned as the last one ended, that a copy waits for at most. */
#define AGAIN_MOVES 64u

/* Finds an entry above the SSD without a copy, and waits until it is at rest. Lock held; it is
 * released while waiting. As executor_copy. */
static kvt_status executor_await_rest(kvt_store *store, uint64_t handle, uint64_t deadline_ns)
{
    assert(store_is_locked(store));
    uint16_t moves = 0;
    for (bool first = true;; first = false) {
        store_entry *entry = entry_find_handle(&store->table, handle);
        if (entry == NULL || !entry_is_above_alone(entry)) return KVT_MISS;
        if (entry->state == ENTRY_RESIDENT) return KVT_OK;
        if (first) moves = entry->moves;
        if (deadline_ns == 0 || (uint16_t)(entry->moves - moves) >= AGAIN_MOVES)
            return KVT_E_TIMEOUT;
        if (plan_cancel(store, handle)) continue;
        if (!base_condition_wait_until(&store->changed, &store->lock, deadline_ns))
            return KVT_E_TIMEOUT;
    }
}

/* Writes the record of a RESIDENT entry once more, to a tier: a move that the policy does not know
 * of. Lock held at entry, not at exit. */
static kvt_status executor_write_again(kvt_store *store, store_entry *entry, kvt_tier to)
{
    uint64_t handle = entry->handle;
    kvt_move move = {.handle = handle, .kind = KVT_MOVE_CHANGE};
    executor_cause cause;
    move.to_variant = entry->place->variant;
    move.to_bytes[to] = entry->place->record_bytes;
    (void)!kvt_policy_pin(store->policy, handle); /* no plan touches it meanwhile */
    entry_set_state(entry, ENTRY_RESIDENT, ENTRY_MOVING);
    pthread_mutex_unlock(&store->lock);
    kvt_status status = executor_run_unplanned(store, &move, &cause);
    if (cause == EXECUTOR_FULL) status = KVT_E_IO;
    pthread_mutex_lock(&store->lock);
    (void)!kvt_policy_unpin(store->policy, handle); /* a miss when it could not be read */
    pthread_mutex_unlock(&store->lock);
    return status;
}

kvt_status executor_relayout(kvt_store *store, uint64_t handle, kvt_tier tier)
{
    pthread_mutex_lock(&store->lock);
    store_entry *entry = entry_find_handle(&store->table, handle);
    if (entry != NULL && entry->state == ENTRY_RESIDENT && entry->place->tier == tier)
        return executor_write_again(store, entry, tier);
    pthread_mutex_unlock(&store->lock);
    return KVT_MISS;
}

kvt_status executor_copy(kvt_store *store, uint64_t handle, uint64_t deadline_ns)
{
    pthread_mutex_lock(&store->lock);
    kvt_status status = executor_await_rest(store, handle, deadline_ns);
    if (status == KVT_OK) {
        store_entry *entry = entry_find_handle(&store->table, handle);
        return executor_write_again(store, entry, KVT_TIER_SSD);
    }
    pthread_mutex_unlock(&store->lock);
    return status;
}
