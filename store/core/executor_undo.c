/* SPDX-License-Identifier: Apache-2.0 */
/*
 * executor_undo.c - the end of an operation that failed: the operation gives back its resources in
 * reverse order, its entry is settled, and the cause is named. The file tries nothing again; the
 * next plan does.
 *
 * Thread rule: as executor.c; the control lock for the moments in which shared state is touched.
 */
#include "store/core/executor.h"
#include "store/core/executor_internal.h"
#include "store/core/kill_note.h"
#include "store/core/plans.h"
#include "store/core/store_offer.h"

#include <assert.h>
#include <stdlib.h>

/* Ends the operation's share in `draining` and wakes the threads that wait for its room. */
void executor_settle_debt(store_op *op)
{
    assert(!op->owes || op->store->draining[op->tier] > 0);
    if (!op->owes) return;
    op->owes = false;
    op->store->draining[op->tier]--;
    op->store->drained++;
    pthread_cond_broadcast(&op->store->changed);
}

/* Whether a change failed in reading its source, or in what place_check says of what was read. A
 * lack of memory proves nothing about the source, and a device that is back in service gets another
 * chance. Once the source has been read, no failure is the source's. */
static bool executor_failed_read(const store_op *op, kvt_status status)
{
    assert(status != KVT_OK);
    const bool read = (op->stages_done & (1u << STAGE_READ)) != 0;
    if (!op->source_asked || read || status == KVT_E_MEMORY) return false;
    return !quarantine_is_back(op->store, op->entry->place, status);
}

/*
 * Whether the entry of a change that failed goes, so that the put behind it has its room: the
 * change was to free bytes of its tier for that put, and pool or policy had no room for the new
 * record. A device that fails a write, for lack of space too, never costs a stored entry, and no
 * other plan does: its entry backs off, and the next plan is made with others.
 */
static bool executor_gives_up(const store_op *op, kvt_tier source)
{
    const kvt_move *move = op->move;
    if (!op->for_put || !op->no_room || op->late || move->kind != KVT_MOVE_CHANGE) return false;
    if (op->larger || op->entry->leased) return false;
    return source != KVT_TIER_NONE && move->to_bytes[source] < move->from_bytes[source];
}

/* Counts a planned move that failed, by its reason. A failed relayout or copy is not counted. Lock
 * held. */
static void executor_count_failure(kvt_store_stats *counters, const store_op *op, kvt_status status)
{
    if (!op->planned) return;
    if (op->larger) {
        counters->moves.failed_larger++;
        return;
    }
    switch (status) {
    case KVT_E_IO:
    case KVT_E_GONE:
    case KVT_E_READ_ONLY: counters->moves.failed_io++; break;
    case KVT_E_SPACE: counters->moves.failed_space++; break;
    case KVT_E_MEMORY: counters->moves.failed_memory++; break;
    default: break;
    }
}

/* Settles the entry of a change that failed: a source that could not be read is looked at as in a
 * get, a larger record corrects the entry's options, a victim of the put behind it may be given up,
 * and otherwise the entry backs off. The entry is RESIDENT again. Lock held. */
static void executor_settle_loss(store_op *op, kvt_tier source, kvt_status status)
{
    assert(op->move->kind == KVT_MOVE_CHANGE && store_is_locked(op->store));
    kvt_store *store = op->store;
    if ((op->stages_done & (1u << STAGE_READ)) != 0) op->entry->place->unread = false;
    if (executor_failed_read(op, status)) {
        store_count_load_failure(store, status);
        if (!quarantine_note_failure(store, op->entry, status))
            backoff_note_failure(store, op->entry, false);
    } else if (op->larger) {
        /* With that size in the entry's options no plan asks for the same again. */
        entry_rare *rare = entry_rare_make(op->entry);
        if (rare != NULL) {
            rare->larger_variant = op->move->to_variant;
            rare->larger_bytes = op->record_bytes;
            store_resize(store, op->entry);
        }
    } else if (executor_gives_up(op, source)) {
        store->counters.given_up++;
        KILL_NOTE(KILL_NOTE_GIVES_WAY, &op->entry->key, source);
        quarantine_lose_entry(store, op->entry, KVT_REMOVED_EVICTED);
    } else if (!op->late && (op->planned || !op->no_room)) {
        /* A new layout may wait for room as long as need be, and the next plan knows what room on
         * devices that answer late is worth. */
        backoff_note_failure(store, op->entry, op->no_room);
    }
}

/* The cause by which the caller decides whether another plan may succeed. Lock held. */
static executor_cause executor_find_cause(const store_op *op, kvt_status status)
{
    assert(status != KVT_OK && store_is_locked(op->store));
    switch (status) {
    case KVT_E_MEMORY: return EXECUTOR_MEMORY;
    case KVT_E_GONE:
    case KVT_E_IO:
    case KVT_E_READ_ONLY: return EXECUTOR_DEVICE;
    case KVT_E_SPACE: break;
    default: return EXECUTOR_OTHER;
    }
    if (op->held) return EXECUTOR_HELD;
    bool larger = op->planned && op->record_bytes > store_bytes_of(op->move->to_bytes);
    if (op->larger || larger) return EXECUTOR_LARGER;
    if (op->late) return EXECUTOR_LATE;
    if (!op->no_room) return EXECUTOR_FULL;
    /* The room went with a member that left service after the plan was made. */
    return op->store->retired_members[op->tier] != 0 ? EXECUTOR_DEVICE : EXECUTOR_ROOM;
}

executor_cause executor_undo(store_op *op, kvt_status status)
{
    assert(status != KVT_OK);
    kvt_store *store = op->store;
    kvt_tier source = op->source != NULL ? op->source->tier : KVT_TIER_NONE;
    staging_release(store->staging, &op->staging);
    catalog_insertion_free(op->row);
    if (op->place != NULL) catalog_ticket_free(op->place->ticket);
    entry_place_free(&op->store->memory, op->place);
    if (op->location != NULL) tiers_pool_release(store->pools[op->tier], op->location);
    KILL_POINT("move: failed");
    pthread_mutex_lock(&store->lock);
    executor_settle_debt(op);
    assert(op->source == NULL || op->source->readers > 0);
    if (op->source != NULL) op->source->readers--;
    /* A record that came out larger than its plan reserved is no lack of room: the plan was made
     * with a wrong size. Pool and policy refuse it where they have no more than what was planned.
     */
    op->larger =
        op->planned &&
        (op->larger || (op->no_room && op->record_bytes > store_bytes_of(op->move->to_bytes)));
    executor_count_failure(&store->counters, op, status);
    if (op->planned)
        plan_abort_moves(store, op->move, 1);
    else
        plan_settle_entry(store, op->move);
    if (op->move->kind == KVT_MOVE_CHANGE) executor_settle_loss(op, source, status);
    quarantine_refresh_tier(store, op->tier);
    quarantine_refresh_tier(store, source);
    executor_cause cause = executor_find_cause(op, status);
    quarantine_settle(store, op->move, 1);
    pthread_mutex_unlock(&store->lock);
    return cause;
}
