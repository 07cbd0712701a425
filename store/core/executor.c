/* SPDX-License-Identifier: Apache-2.0 */
/*
 * executor.c - carries plans out: one operation, named stages, one table from stage to function.
 *
 *     put      encode -> reserve -> write -> prepare -> publish
 *     change   read -> recode -> reserve -> write -> prepare -> publish    a GPU may recode
 *     change   adopt                      onto a copy that is on SSD already
 *     copy     read -> reserve -> write -> prepare -> keep      to SSD, beside a place above
 *     evict    unlist                     or, from above, onto a copy that is on SSD already
 *
 * The executor never decides: it does what a move says, then commits or aborts it in the policy.
 * A stage that fails leaves its work to `executor_undo`, which gives back in reverse order what the
 * operation holds. Nothing of a put is visible, and nothing of a change replaces its source, before
 * `publish`.
 *
 * Thread rule: any thread; stages take store->lock for the short moments in which they touch shared
 * state, and hold it over no I/O.
 */
#include "store/core/executor.h"
#include "base/clock.h"
#include "base/kill_point.h"
#include "base/wait.h"
#include "store/core/executor_flights.h"
#include "store/core/plans.h"
#include "store/watch/watching.h"

#include <assert.h>
#include <string.h>

static kvt_status (*const stage_functions[STAGE_COUNT])(store_op *) = {
    [STAGE_READ] = stage_read,       [STAGE_RECODE] = stage_recode, [STAGE_ENCODE] = stage_encode,
    [STAGE_RESERVE] = stage_reserve, [STAGE_WRITE] = stage_write,   [STAGE_PREPARE] = stage_prepare,
    [STAGE_PUBLISH] = stage_publish, [STAGE_ADOPT] = stage_adopt,   [STAGE_KEEP] = stage_keep,
    [STAGE_UNLIST] = stage_unlist,
};

/* The stages of each kind of move, in order, ended by STAGE_COUNT. */
static const store_stage executor_stages[4][7] = {
    [KVT_MOVE_PUT] = {STAGE_ENCODE, STAGE_RESERVE, STAGE_WRITE, STAGE_PREPARE, STAGE_PUBLISH,
                      STAGE_COUNT},
    [KVT_MOVE_CHANGE] = {STAGE_READ, STAGE_RECODE, STAGE_RESERVE, STAGE_WRITE, STAGE_PREPARE,
                         STAGE_PUBLISH, STAGE_COUNT},
    [KVT_MOVE_EVICT] = {STAGE_UNLIST, STAGE_COUNT},
};

/* The stages of a demotion whose record is on SSD already, as the entry's copy. */
static const store_stage executor_onto_copy[] = {STAGE_ADOPT, STAGE_COUNT};

/* The stages of an unplanned move to SSD: the record becomes a copy beside the entry's place. */
static const store_stage executor_write_copy[] = {STAGE_READ,    STAGE_RESERVE, STAGE_WRITE,
                                                  STAGE_PREPARE, STAGE_KEEP,    STAGE_COUNT};

/* Chooses the stages of a move. The operation of a change becomes a reader of the entry's place, so
 * the place's extents stay until the operation ends. Takes the lock. */
static const store_stage *executor_begin(store_op *op)
{
    assert(op->source == NULL && op->stages_done == 0);
    kvt_store *store = op->store;
    const store_stage *stages = executor_stages[op->move->kind];
    op->tier = store_tier_of(op->move->to_bytes);
    pthread_mutex_lock(&store->lock);
    op->entry = entry_find_handle(&store->table, op->move->handle);
    assert(op->entry != NULL);
    op->key = op->entry->key;
    if (op->move->kind == KVT_MOVE_CHANGE) {
        op->source = op->entry->place;
        op->source->readers++;
        if (!op->planned && op->tier != op->source->tier)
            stages = executor_write_copy;
        else if (copies_hold(store, op->entry, op->move))
            stages = executor_onto_copy;
    }
    pthread_mutex_unlock(&store->lock);
    return stages;
}

/* The cause of an operation's write to SSD. */
static store_write_cause executor_wrote_for(const store_op *op)
{
    if (!op->planned)
        return (op->stages_done & (1u << STAGE_KEEP)) != 0 ? STORE_WRITE_COPY
                                                           : STORE_WRITE_RELAYOUT;
    switch (store_purpose_of(op->move)) {
    case STORE_MOVE_PUT: return STORE_WRITE_PUT;
    case STORE_MOVE_RECODE: return STORE_WRITE_RECODE;
    default: return STORE_WRITE_DEMOTION;
    }
}

kvt_status executor_walk(store_op *op, executor_cause *cause_out)
{
    kvt_status status = KVT_OK;
    *cause_out = EXECUTOR_DONE;
    for (; *op->stage != STAGE_COUNT; op->stage++) {
        const store_stage stage = *op->stage;
        const uint64_t began_ns = base_clock_ns();
        status = stage_functions[stage](op);
        const uint64_t took_ns = base_clock_ns() - began_ns;
        if (status == KVT_QUEUED) return status;
        if (stage == STAGE_READ || stage == STAGE_WRITE) op->device_ns += took_ns;
        if (stage == STAGE_RECODE || stage == STAGE_ENCODE) op->code_ns += took_ns;
        if (status != KVT_OK) break;
        /* For the tests that kill the process there. */
        switch (stage) {
        case STAGE_RESERVE: KILL_POINT("publish: reserved"); break;
        case STAGE_WRITE: KILL_POINT("publish: written"); break;
        case STAGE_PREPARE: KILL_POINT("publish: prepared"); break;
        case STAGE_UNLIST: KILL_POINT("evict: unlisted"); break;
        default: break;
        }
        op->stages_done |= 1u << stage;
    }
    if (status == KVT_OK) {
        /* Count a move that was carried out; a copy is counted by its caller. */
        assert(op->row == NULL && op->location == NULL && op->place == NULL);
        kvt_store_stats *counters = &op->store->counters;
        pthread_mutex_lock(&op->store->lock);
        if (op->tier == KVT_TIER_SSD && (op->stages_done & (1u << STAGE_WRITE)) != 0)
            op->store->tallies.ssd_written[executor_wrote_for(op)] += op->record_bytes;
        if (op->planned) {
            counters->moves.committed++;
            op->store->tallies.outcomes[store_purpose_of(op->move)][0]++;
        } else if ((op->stages_done & (1u << STAGE_KEEP)) == 0) {
            counters->relayouts.records++;
            counters->relayouts.bytes += op->record_bytes;
        }
        quarantine_settle(op->store, op->move, 1);
        pthread_mutex_unlock(&op->store->lock);
    } else {
        *cause_out = executor_undo(op, status);
    }
    /* Add a planned move that has ended to the last operations. */
    if (op->planned) {
        const bool evicts = op->move->kind == KVT_MOVE_EVICT;
        kvt_operation operation =
            watch_operation(op->store, evicts ? KVT_OPERATION_EVICT : KVT_OPERATION_MOVE, &op->key,
                            op->began_ns, status);
        operation.bytes = op->record_bytes;
        operation.variant = op->move->to_variant;
        operation.tier = (uint8_t)(evicts ? store_tier_of(op->move->from_bytes) : op->tier);
        watch_split(&operation, op->device_ns, op->code_ns);
        watch_note(op->store, &operation);
    }
    return status;
}

kvt_status executor_run_unplanned(kvt_store *store, const kvt_move *move, bool anywhere,
                                  executor_cause *cause_out)
{
    assert(move->kind == KVT_MOVE_CHANGE);
    store_op op = {
        .store = store, .move = move, .anywhere = anywhere, .began_ns = store_now_ns(store)};
    op.stage = executor_begin(&op);
    return executor_walk(&op, cause_out);
}

kvt_status executor_run_plan(kvt_store *store, const kvt_move *moves, uint32_t count,
                             executor_source source, executor_result *result_out)
{
    assert(count == 0 || moves != NULL);
    kvt_status status = KVT_OK;
    uint32_t done = 0;
    memset(result_out, 0, sizeof *result_out);
    bool for_put = count != 0 && moves[count - 1].kind == KVT_MOVE_PUT;
    while (done < count) {
        bool is_put = moves[done].kind == KVT_MOVE_PUT;
        executor_flight *flight = source.flight;
        store_op here;
        store_op *op = is_put && flight != NULL ? &flight->op : &here;
        *op = (store_op){.store = store,
                         .move = &moves[done],
                         .views = is_put ? source.views : NULL,
                         .gpu = is_put ? source.gpu : NULL,
                         .flights = flight != NULL ? flight->flights : NULL,
                         .flight = is_put ? flight : NULL,
                         .began_ns = store_now_ns(store),
                         .planned = true,
                         .for_put = for_put,
                         .anywhere = source.anywhere};
        op->stage = executor_begin(op);
        status = executor_walk(op, &result_out->cause);
        if (is_put) result_out->put_bytes = op->record_bytes;
        result_out->committed = done;
        if (status == KVT_QUEUED) return status;
        plan_report(store, &moves[done], status);
        if (status != KVT_OK) break;
        done++;
    }
    assert((status == KVT_OK) == (done == count));
    result_out->committed = done;
    if (status == KVT_OK) return KVT_OK;
    /* The failed move was aborted where it failed; the ones after it depend on its room. */
    result_out->before_put = for_put && done + 1 < count;
    pthread_mutex_lock(&store->lock);
    plan_abort_moves(store, moves + done + 1, count - done - 1);
    quarantine_settle(store, moves + done + 1, count - done - 1);
    pthread_mutex_unlock(&store->lock);
    for (uint32_t i = done + 1; i < count; i++)
        plan_report(store, &moves[i], KVT_E_CANCELLED);
    return status;
}

/* ---- records that are written once more ---- */

/* Moves of one entry, each planned as the last one ended, that a copy waits for at most. */
#define AGAIN_MOVES 64u

/* Finds an entry above the SSD without a copy, and waits until it is at rest. Lock held; it is
 * released while waiting. As executor_copy. */
static kvt_status executor_await_rest(kvt_store *store, uint64_t handle, uint64_t deadline_ns)
{
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
static kvt_status executor_write_again(kvt_store *store, store_entry *entry, kvt_tier to,
                                       bool anywhere)
{
    uint64_t handle = entry->handle;
    kvt_move move = {.handle = handle, .kind = KVT_MOVE_CHANGE};
    executor_cause cause;
    move.to_variant = entry->place->variant;
    move.to_bytes[to] = entry->place->record_bytes;
    (void)!kvt_policy_pin(store->policy, handle); /* no plan touches it meanwhile */
    entry_set_state(entry, ENTRY_RESIDENT, ENTRY_MOVING);
    pthread_mutex_unlock(&store->lock);
    kvt_status status = executor_run_unplanned(store, &move, anywhere, &cause);
    if (cause == EXECUTOR_FULL) status = KVT_E_IO;
    pthread_mutex_lock(&store->lock);
    (void)!kvt_policy_unpin(store->policy, handle); /* a miss when it could not be read */
    pthread_mutex_unlock(&store->lock);
    return status;
}

kvt_status executor_relayout(kvt_store *store, uint64_t handle, kvt_tier tier, bool anywhere)
{
    pthread_mutex_lock(&store->lock);
    store_entry *entry = entry_find_handle(&store->table, handle);
    if (entry != NULL && entry->state == ENTRY_RESIDENT && entry->place->tier == tier)
        return executor_write_again(store, entry, tier, anywhere);
    pthread_mutex_unlock(&store->lock);
    return KVT_MISS;
}

kvt_status executor_copy(kvt_store *store, uint64_t handle, uint64_t deadline_ns)
{
    pthread_mutex_lock(&store->lock);
    kvt_status status = executor_await_rest(store, handle, deadline_ns);
    if (status == KVT_OK) {
        store_entry *entry = entry_find_handle(&store->table, handle);
        return executor_write_again(store, entry, KVT_TIER_SSD, deadline_ns != 0);
    }
    pthread_mutex_unlock(&store->lock);
    return status;
}
