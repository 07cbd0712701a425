/* SPDX-License-Identifier: Apache-2.0 */
/*
 * maintain.c - background rounds: queued promotions, then the plan of the policy's tick, within a
 * budget of bytes written, then relayouts. The file decides on no move itself.
 *
 *     queue (promotions) -> entries of other hosts -> lifetimes -> tick -> relayout
 *     -> copies, capacity -> trust -> write back -> scrub -> learning -> uses
 *
 * A prefetch wakes the background between two rounds, for the queue alone.
 *
 * Thread rule: one round at a time (store->maintaining); plans wait in store->queue under the lock.
 */
#include "store/background/maintain.h"
#include "base/thread.h"
#include "base/wait.h"
#include "store/background/lifetime.h"
#include "store/core/executor.h"
#include "store/core/plans.h"
#include "store/hosts/remote_tier.h"
#include "store/learn/uses.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define MAINTAIN_SLOTS 256u /* laid out in a round, of a tier */
#define MAINTAIN_READS 4u   /* of an entry that is timed: so many prove a figure wrong (online.c) */

/* The bytes that moves write, in all tiers together. */
static uint64_t maintain_written_bytes(const kvt_move *moves, uint32_t count)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < count; i++) {
        bytes += store_bytes_of(moves[i].to_bytes);
    }
    return bytes;
}

/* Takes bytes from the budget, down to 0. */
static void maintain_spend(uint64_t *budget, uint64_t bytes)
{
    *budget -= bytes < *budget ? bytes : *budget;
}

/* Takes the first queued plan, from *at on, that is not put off (pressure.c); *at is behind those
 * that are. NULL: there is none, or the budget does not hold it whole. Lock held. */
static store_queued_plan *maintain_take_plan(kvt_store *store, uint32_t *at, uint64_t *budget)
{
    for (; *at < store->queue_count && !store->stopping; ++*at) {
        const store_queued_plan *queued = store->queue[*at];
        if (pressure_defers_moves(store, queued->moves, queued->count)) continue;
        uint64_t bytes = maintain_written_bytes(queued->moves, queued->count);
        if (bytes > *budget) return NULL;
        maintain_spend(budget, bytes);
        return plan_unqueue(store, *at);
    }
    return NULL;
}

/* Runs queued plans, in their order, while the budget holds the next plan whole. */
static void maintain_run_queue(kvt_store *store, uint64_t *budget, uint32_t *moves_done)
{
    assert(store->maintaining);
    uint32_t at = 0;
    for (;;) {
        pthread_mutex_lock(&store->lock);
        store_queued_plan *queued = maintain_take_plan(store, &at, budget);
        pthread_mutex_unlock(&store->lock);
        if (queued == NULL) return;
        /* A failed move was aborted and counted; the next get may ask for it again. */
        executor_result result;
        (void)!executor_run_plan(store, queued->moves, queued->count, (executor_source){0},
                                 &result);
        *moves_done += result.committed;
        free(queued);
    }
}

/* Asks for the tick's plan and carries it out. Returns the policy's status; a move that fails is
 * counted and backs off, and fails no round. */
static kvt_status maintain_run_tick(kvt_store *store, uint64_t *budget, uint32_t *moves_done)
{
    assert(store->maintaining);
    uint32_t limit =
        store->moves_per_tick < STORE_PLAN_MOVES ? store->moves_per_tick : STORE_PLAN_MOVES;
    if (limit == 0) return KVT_OK;
    kvt_plan plan = {.capacity = STORE_PLAN_MOVES};
    plan.moves = malloc(STORE_PLAN_MOVES * sizeof *plan.moves);
    if (plan.moves == NULL) return KVT_E_MEMORY;
    /* Empty while the tick pauses after failures (backoff.c), and when it is put off. */
    kvt_status status = KVT_OK;
    pthread_mutex_lock(&store->lock);
    if (backoff_may_tick(store)) {
        const uint64_t started_ns = store_now_ns(store);
        status = kvt_policy_tick(store->policy, started_ns, limit, *budget, &plan);
        store_count_decision(store, started_ns, store_now_ns(store));
        if (status == KVT_OK && pressure_defers_moves(store, plan.moves, plan.count)) {
            plan_withdraw(store, &plan); /* what is still worth it is planned again */
            plan.count = 0;
        } else if (status == KVT_OK) {
            trust_note_plan(store, &plan);
            plan_mark(store, &plan);
        }
    }
    pthread_mutex_unlock(&store->lock);
    if (status == KVT_OK && plan.count != 0) {
        maintain_spend(budget, maintain_written_bytes(plan.moves, plan.count));
        executor_result result;
        kvt_status outcome =
            executor_run_plan(store, plan.moves, plan.count, (executor_source){0}, &result);
        *moves_done += result.committed;
        pthread_mutex_lock(&store->lock);
        backoff_note_tick(store, outcome);
        pthread_mutex_unlock(&store->lock);
    }
    free(plan.moves);
    return status;
}

/* Keeps slots ahead of those that are taken. Returns what SSD's slots lose to records that do not
 * fill them. */
static uint64_t maintain_slots(kvt_store *store)
{
    tiers_pool_facts facts = {.padding_bytes = 0};
    for (int tier = KVT_TIER_HBM; tier < KVT_TIER_COUNT; tier++)
        if (store->pools[tier] != NULL)
            (void)tiers_pool_lay_slots(store->pools[tier], MAINTAIN_SLOTS);
    if (store->pools[KVT_TIER_SSD] != NULL)
        tiers_pool_facts_get(store->pools[KVT_TIER_SSD], &facts);
    return facts.padding_bytes;
}

/* Runs one round. own: a caller asked for it. *budget is the bytes that may be written, and then
 * the bytes left over. KVT_BUSY: another round is under way. No lock held. */
static kvt_status maintain_round(kvt_store *store, bool own, uint64_t *budget, uint32_t *moves_done)
{
    pthread_mutex_lock(&store->lock);
    if (store->maintaining) {
        pthread_mutex_unlock(&store->lock);
        return KVT_BUSY;
    }
    store->maintaining = true;
    pressure_begin_round(store, own);
    store_withhold(store);
    const store_lifetimes *lifetimes = &store->lifetimes;
    const bool ends = lifetimes->walking || store_now_ns(store) >= lifetimes->next_ns;
    pthread_mutex_unlock(&store->lock);
    maintain_run_queue(store, budget, moves_done);
    remote_prefetch_round(store);
    if (ends) lifetime_round(store);
    uint32_t before = *moves_done;
    kvt_status status = maintain_run_tick(store, budget, moves_done);
    relayout_round(store, *moves_done == before, budget, moves_done);
    const uint64_t padding_bytes = maintain_slots(store);
    pthread_mutex_lock(&store->lock);
    copies_trim(store);
    if (store->capacity_passed || padding_bytes != store->padding_bytes) {
        store->padding_bytes = padding_bytes;
        store_settle_capacity(store);
    }
    pthread_mutex_unlock(&store->lock);
    /* Read the entries back whose devices and codecs are to be timed (trust.c). */
    kvt_key keys[STORE_TRIALS];
    const uint32_t count = trust_take_trials(store, keys);
    for (uint32_t i = 0; i < count * MAINTAIN_READS; i++)
        access_time_entry(store, &keys[i / MAINTAIN_READS]);
    persist_round(store);
    scrub_round(store);
    learn_round(store);
    if (store_now_ns(store) - store->uses.saved_ns >= USES_EVERY_NS) uses_save(store);
    pthread_mutex_lock(&store->lock);
    pressure_end_round(store);
    store->maintaining = false;
    pthread_mutex_unlock(&store->lock);
    return status;
}

kvt_status kvt_store_maintain(kvt_store *store, uint32_t *moves_out)
{
    const base_store_calls *other = base_store_calls_of(store);
    if (other != NULL) return BASE_CALL(other, maintain, store, moves_out);
    if (!fork_guard_is_ours(store)) return KVT_E_STATE;
    uint32_t moves = 0;
    uint64_t budget = UINT64_MAX;
    kvt_status status = maintain_round(store, true, &budget, &moves);
    if (moves_out != NULL) *moves_out = moves;
    return status;
}

/* The budget after a pause: bytes left over plus those that the pause earned, at most a second's
 * worth, or four of the largest records, so that no entry is too large ever to move. Lock held. */
static uint64_t maintain_earn(const kvt_store *store, uint64_t budget)
{
    if (store->move_bytes_per_s == 0) return UINT64_MAX;
    double earned = (double)budget + (double)store->move_bytes_per_s * store->tick_seconds;
    double most = (double)store->move_bytes_per_s;
    if (most < 4.0 * (double)store->record_bytes_max) most = 4.0 * (double)store->record_bytes_max;
    if (earned > most) earned = most;
    return earned < 1.8e19 ? (uint64_t)earned : UINT64_MAX;
}

/* The instant at which a pause that begins now ends. */
static uint64_t maintain_pause_end(const kvt_store *store)
{
    return base_clock_ns() + (uint64_t)(store->tick_seconds * 1e9);
}

/* Carries out what is queued, between two rounds. No lock held. */
static void maintain_between(kvt_store *store, uint64_t *budget)
{
    pthread_mutex_lock(&store->lock);
    bool alone = !store->maintaining;
    store->maintaining = true;
    pthread_mutex_unlock(&store->lock);
    if (!alone) return; /* a round of another thread */
    uint32_t moves = 0;
    maintain_run_queue(store, budget, &moves);
    remote_prefetch_round(store);
    pthread_mutex_lock(&store->lock);
    store->maintaining = false;
    pthread_mutex_unlock(&store->lock);
}

void maintain_wake(kvt_store *store)
{
    assert(store_is_locked(store));
    store->plan_waits = true;
    pthread_cond_broadcast(&store->background_due);
}

/* Takes the lock for the background, and notes that the background has it: the cleanup handler of a
 * thread that is cancelled must know whether to take the lock. */
static void maintain_hold(kvt_store *store)
{
    pthread_mutex_lock(&store->lock);
    store->background_holds = true;
}

/* Releases the lock that maintain_hold took. */
static void maintain_let_go(kvt_store *store)
{
    assert(store->background_holds);
    store->background_holds = false;
    pthread_mutex_unlock(&store->lock);
}

/* Runs a round after each pause until the store stops, and plans that must not wait in between.
 * Lock held at entry and exit, and released during a round. */
static void maintain_serve(kvt_store *store)
{
    uint64_t budget = store->move_bytes_per_s == 0 ? UINT64_MAX : 0;
    uint64_t until_ns = maintain_pause_end(store);
    while (!store->stopping) {
        /* Until the store stops, or has a plan that must not wait so long. */
        bool waiting = true;
        while (waiting && !store->stopping && !store->plan_waits)
            waiting = base_condition_wait_until(&store->background_due, &store->lock, until_ns);
        const bool due = !waiting;
        if (store->stopping) break;
        store->plan_waits = false;
        if (due) budget = maintain_earn(store, budget);
        maintain_let_go(store);
        uint32_t moves = 0;
        if (due)
            (void)!maintain_round(store, false, &budget, &moves);
        else
            maintain_between(store, &budget);
        if (due) until_ns = maintain_pause_end(store);
        maintain_hold(store);
    }
}

/* The cleanup handler of a thread that ends although the store did not stop it: notes the instant,
 * which kvt_health_get reports. */
static void maintain_ends(void *argument)
{
    kvt_store *store = argument;
    if (!store->background_holds) maintain_hold(store);
    store->background_ended_ns = store_now_ns(store);
    maintain_let_go(store);
}

/* The background's thread. */
static void *maintain_background(void *argument)
{
    kvt_store *store = argument;
    pthread_cleanup_push(maintain_ends, store);
    maintain_hold(store);
    maintain_serve(store);
    maintain_let_go(store);
    pthread_cleanup_pop(0);
    return NULL;
}

kvt_status maintain_start(kvt_store *store)
{
    assert(!store->has_background);
    if (!(store->tick_seconds > 0)) return KVT_OK;
    store->has_background = true; /* before the thread runs: the thread may read it */
    const kvt_status status = base_thread_start(&store->background, maintain_background, store);
    if (status != KVT_OK) store->has_background = false;
    return status;
}

void maintain_stop(kvt_store *store)
{
    pthread_mutex_lock(&store->lock);
    store->stopping = true;
    pthread_cond_broadcast(&store->background_due);
    pthread_cond_broadcast(&store->changed);
    pthread_mutex_unlock(&store->lock);
    if (store->has_background) pthread_join(store->background, NULL);
    pthread_mutex_lock(&store->lock);
    while (store->queue_count != 0) {
        store_queued_plan *queued = plan_unqueue(store, 0);
        plan_abort_moves(store, queued->moves, queued->count);
        free(queued);
    }
    pthread_mutex_unlock(&store->lock);
}
