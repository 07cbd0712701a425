/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plans.c - plans before and instead of their execution: a plan's entries are marked, the plan
 * waits in the queue of the background, it is aborted, its moves are reported.
 *
 *     move      mark                     settle, when aborted
 *     put       ARRIVING or STAGED       ARRIVING: erased; STAGED: stays, for another plan
 *     change    RESIDENT -> MOVING       MOVING -> RESIDENT
 *     evict     RESIDENT -> LEAVING      LEAVING -> RESIDENT
 *
 * The file carries no move out (executor.c) and asks the policy for none.
 *
 * Thread rule: under the control lock, except plan_report, which no lock is held for.
 */
#include "store/core/plans.h"
#include "store/core/kill_note.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

void plan_mark(kvt_store *store, const kvt_plan *plan)
{
    assert(store_is_locked(store));
    for (uint32_t i = 0; i < plan->count; i++) {
        const kvt_move *move = &plan->moves[i];
        store_entry *entry = entry_find_handle(&store->table, move->handle);
        assert(entry != NULL);
        if (move->kind == KVT_MOVE_CHANGE) {
            entry_set_state(entry, ENTRY_RESIDENT, ENTRY_MOVING);
        } else if (move->kind == KVT_MOVE_EVICT) {
            KILL_NOTE(KILL_NOTE_EVICTS, &entry->key, KVT_TIER_NONE);
            entry_set_state(entry, ENTRY_RESIDENT, ENTRY_LEAVING);
        }
    }
}

void plan_settle_entry(kvt_store *store, const kvt_move *move)
{
    assert(store_is_locked(store));
    store_entry *entry = entry_find_handle(&store->table, move->handle);
    assert(entry != NULL);
    if (move->kind == KVT_MOVE_PUT) {
        /* One that was handed over stays readable, and may get another plan. */
        if (entry->state == ENTRY_ARRIVING) entry_erase(&store->table, entry);
    } else {
        entry_set_state(entry, move->kind == KVT_MOVE_CHANGE ? ENTRY_MOVING : ENTRY_LEAVING,
                        ENTRY_RESIDENT);
        KILL_NOTE(KILL_NOTE_ABORTED, &entry->key, entry->place->tier);
        lease_settle(store, entry);
    }
    pthread_cond_broadcast(&store->changed);
}

void plan_abort_moves(kvt_store *store, const kvt_move *moves, uint32_t count)
{
    assert(store_is_locked(store));
    for (uint32_t i = 0; i < count; i++) {
        (void)!kvt_policy_abort(store->policy, moves[i].id);
        plan_settle_entry(store, &moves[i]);
        store->counters.moves.aborted++;
        store->tallies.outcomes[store_purpose_of(&moves[i])][1]++;
    }
}

void plan_withdraw(kvt_store *store, const kvt_plan *plan)
{
    assert(store_is_locked(store));
    for (uint32_t i = 0; i < plan->count; i++)
        (void)!kvt_policy_abort(store->policy, plan->moves[i].id);
}

void plan_report(kvt_store *store, const kvt_move *move, kvt_status outcome)
{
    assert(move != NULL && outcome != KVT_QUEUED);
    if (store->observer.call == NULL) return;
    pthread_mutex_lock(&store->observer_lock);
    store->observer.call(store->observer.context, move, outcome);
    pthread_mutex_unlock(&store->observer_lock);
}

void plan_queue(kvt_store *store, const kvt_plan *plan)
{
    assert(plan->count > 0 && plan->count <= plan->capacity);
    assert(store->queue_count <= STORE_PLANS_QUEUED);
    assert(store_is_locked(store));
    store_queued_plan *queued = NULL;
    if (store->queue_count < STORE_PLANS_QUEUED) {
        queued = malloc(sizeof *queued + plan->count * sizeof(kvt_move));
    }
    if (queued == NULL) {
        plan_abort_moves(store, plan->moves, plan->count);
        return;
    }
    queued->count = plan->count;
    memcpy(queued->moves, plan->moves, plan->count * sizeof(kvt_move));
    store->queue[store->queue_count++] = queued;
}

store_queued_plan *plan_unqueue(kvt_store *store, uint32_t index)
{
    assert(index < store->queue_count);
    assert(store_is_locked(store));
    store_queued_plan *queued = store->queue[index];
    store->queue_count--;
    memmove(&store->queue[index], &store->queue[index + 1],
            (store->queue_count - index) * sizeof(store->queue[0]));
    return queued;
}

bool plan_cancel(kvt_store *store, uint64_t handle)
{
    assert(handle != 0);
    assert(store_is_locked(store));
    for (uint32_t i = 0; i < store->queue_count; i++) {
        const store_queued_plan *queued = store->queue[i];
        for (uint32_t j = 0; j < queued->count; j++) {
            if (queued->moves[j].handle != handle) continue;
            store_queued_plan *taken = plan_unqueue(store, i);
            plan_abort_moves(store, taken->moves, taken->count);
            quarantine_settle(store, taken->moves, taken->count);
            free(taken);
            return true;
        }
    }
    return false;
}
