/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gather.c - the life of a gather: it starts all reads at once, then each wait settles what has
 * ended and reads again what has failed or does not come. gather_batch.c makes the batches.
 *
 * The statuses of the runs alone say what has happened to a range; the transfers are there to be
 * waited for and to be abandoned.
 *
 * Thread rule: start from any thread; wait and release by one thread at a time. done_mutex is the
 * only lock taken here, and nothing is called while it is held.
 */
#include "gather.h"

#include <assert.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/wait.h"
#include "gather_internal.h"
#include "tiers/devices/watchdog.h"

/* ---- start and release ---- */

static void gather_free(tiers_gather *gather)
{
    while (gather->batches != NULL) {
        gather_batch *next = gather->batches->next;
        free(gather->batches);
        gather->batches = next;
    }
    free(gather->pinned);
    free(gather->picks);
    free(gather);
}

/* A gather without reads; NULL without memory. Neighbours in the list of copies are mostly of one
 * location, which is then listed once. */
static tiers_gather *gather_make(tiers_pool *pool, const tiers_gather_request *request)
{
    tiers_gather *gather = calloc(1, sizeof *gather + request->count * sizeof gather->states[0]);
    if (gather == NULL) return NULL;
    size_t copies = 0;
    for (uint32_t i = 0; i < request->count; i++)
        copies += request->ranges[i].copy_count;
    gather->pool = pool;
    gather->request = *request;
    gather->holds = 1;
    gather->picks = malloc(request->count * sizeof *gather->picks);
    gather->pinned = malloc(copies * sizeof(const tiers_location *));
    if (gather->picks == NULL || gather->pinned == NULL) {
        gather_free(gather);
        return NULL;
    }
    for (uint32_t i = 0; i < request->count; i++) {
        for (uint32_t copy = 0; copy < request->ranges[i].copy_count; copy++) {
            const tiers_location *location =
                tiers_unit_map_location(request->ranges[i].copies[copy].map);
            if (gather->pin_count > 0 && gather->pinned[gather->pin_count - 1] == location)
                continue;
            gather->pinned[gather->pin_count++] = location;
        }
    }
    return gather;
}

/* A pinned location is given to nobody while a device may still read it. */
static void gather_pin_all(tiers_gather *gather, bool pin)
{
    pthread_mutex_lock(&gather->pool->done_mutex);
    for (uint32_t i = 0; i < gather->pin_count; i++) {
        if (pin)
            pool_pin(gather->pinned[i]);
        else
            pool_unpin(gather->pool, gather->pinned[i]);
    }
    pthread_mutex_unlock(&gather->pool->done_mutex);
}

kvt_status tiers_gather_start(tiers_pool *pool, const tiers_gather_request *request,
                              uint64_t deadline_ns, tiers_gather **gather_out)
{
    /* Check what callers promise. Returns the bytes of all ranges. */
    uint64_t bytes = 0;
    assert(request->count > 0 && (uintptr_t)request->buffer % TIERS_GRAIN_BYTES == 0);
    for (uint32_t i = 0; i < request->count; i++) {
        const tiers_gather_range *range = &request->ranges[i];
        assert(range->copy_count >= 1 && range->copy_count <= TIERS_GATHER_COPIES_MAX);
        assert(range->bytes > 0 && range->bytes % TIERS_GRAIN_BYTES == 0);
        for (uint32_t copy = 0; copy < range->copy_count; copy++) {
            const uint64_t end = tiers_unit_map_location(range->copies[copy].map)->bytes;
            const uint64_t offset = range->copies[copy].offset;
            assert(offset % TIERS_GRAIN_BYTES == 0 && offset < end && range->bytes <= end - offset);
            (void)end, (void)offset;
        }
        bytes += range->bytes;
    }
    assert(bytes <= request->buffer_bytes);
    (void)bytes;
    tiers_gather *gather = gather_make(pool, request);
    if (gather == NULL) return KVT_E_MEMORY;
    for (uint32_t i = 0; i < request->count; i++) {
        request->ranges[i].status = KVT_QUEUED;
        request->ranges[i].data = NULL;
        request->ranges[i].copy = 0;
    }
    gather_pin_all(gather, true);
    const uint32_t picked = gather_choose(gather);
    if (picked > 0 && gather_begin(gather, gather->picks, picked, deadline_ns) != KVT_OK) {
        gather_pin_all(gather, false);
        gather_free(gather);
        return KVT_E_MEMORY;
    }
    *gather_out = gather;
    return KVT_OK;
}

/* Drops one hold; the last one ends the gather, on whichever thread has it. */
static void gather_drop_hold(void *context)
{
    tiers_gather *gather = context;
    if (atomic_fetch_sub(&gather->holds, 1) > 1) return;
    tiers_transfer_released *released = gather->released;
    void *released_context = gather->released_context;
    gather_pin_all(gather, false);
    gather_free(gather);
    if (released != NULL) released(released_context);
}

/* The owner's hold is dropped last, so the lists stay while they are walked. */
void tiers_gather_release(tiers_gather *gather, tiers_transfer_released *released, void *context)
{
    if (gather == NULL) return;
    gather->released = released;
    gather->released_context = context;
    for (gather_batch *batch = gather->batches; batch != NULL; batch = batch->next) {
        for (uint32_t i = 0; i < batch->part_count; i++) {
            atomic_fetch_add(&gather->holds, 1);
            tiers_transfer_abandon(gather->pool, &batch->parts[i].transfer, gather_drop_hold,
                                   gather);
        }
    }
    gather_drop_hold(gather);
}

/* A look at the runs' statuses, without a lock: a run that has ended stays as it is. */
/* ---- settling ---- */

/* KVT_QUEUED: a run is still to end. Else KVT_OK, or the first failure of a run. */
static kvt_status gather_outcome(const gather_batch *batch, const gather_attempt *attempt,
                                 bool *shared_out)
{
    kvt_status first = KVT_OK;
    *shared_out = false;
    for (uint32_t i = 0; i < attempt->piece_count; i++) {
        uint32_t run = batch->pieces[attempt->first_piece + i];
        kvt_status status = atomic_load_explicit(&batch->runs[run].status, memory_order_acquire);
        if (status == KVT_QUEUED) return KVT_QUEUED;
        if (status == KVT_OK) continue;
        if (first == KVT_OK) first = status;
        *shared_out = *shared_out || batch->shared[run];
    }
    return first;
}

/* Books one attempt. stuck: members that are out of service and have not ended their part. */
static void gather_settle_attempt(tiers_gather *gather, const gather_batch *batch,
                                  gather_attempt *attempt, uint64_t now_ns, uint64_t stuck)
{
    gather_state *state = &gather->states[attempt->range];
    tiers_gather_range *range = &gather->request.ranges[attempt->range];
    bool shared;
    kvt_status outcome = gather_outcome(batch, attempt, &shared);
    if (outcome == KVT_QUEUED) {
        if ((attempt->members & stuck) != 0) return;
        if (now_ns < batch->hedge_at_ns)
            state->waiting++;
        else
            state->hoping++;
        return;
    }
    attempt->settled = true;
    if (outcome != KVT_OK) {
        if (state->failure == KVT_OK) state->failure = outcome;
        if (shared) state->again |= (uint8_t)(1u << attempt->copy);
        state->slot = attempt->data;
        return;
    }
    if (state->done) return;
    state->done = true;
    range->status = KVT_OK;
    range->copy = attempt->copy;
    range->data = attempt->data;
}

/* The next read of a range that has none under way, or false: nothing is left to try, or there is
 * no room for it. */
static bool gather_next_pick(tiers_gather *gather, uint32_t index, gather_pick *pick)
{
    gather_state *state = &gather->states[index];
    const tiers_gather_range *range = &gather->request.ranges[index];
    *pick = (gather_pick){.range = index, .copy = range->copy_count, .alone = true};
    for (uint32_t copy = 0; copy < range->copy_count && pick->copy == range->copy_count; copy++) {
        bool fresh = (state->tried >> copy & 1) == 0;
        bool again = (state->again >> copy & 1) != 0;
        if ((fresh || again) && gather_copy_serves(gather, index, copy)) pick->copy = copy;
    }
    if (pick->copy == range->copy_count) return false;
    pick->data = state->slot;
    if (pick->data == NULL) {
        if (range->bytes > gather->request.buffer_bytes - gather->buffer_used) return false;
        pick->data = (unsigned char *)gather->request.buffer + gather->buffer_used;
        gather->buffer_used += range->bytes;
    }
    state->slot = NULL;
    state->again &= (uint8_t) ~(1u << pick->copy);
    return true;
}

/* Ends a range that nothing more can be done for. */
static void gather_give_up(tiers_gather *gather, uint32_t index)
{
    gather_state *state = &gather->states[index];
    state->done = true;
    gather->request.ranges[index].status = state->failure != KVT_OK ? state->failure : KVT_E_GONE;
}

/* Reads again what has no read under way, and gives up what cannot be read. A range whose reads are
 * late waits for them when there is nothing else to try. Returns the number of ranges that are not
 * done. */
static uint32_t gather_read_again(tiers_gather *gather, uint64_t deadline_ns)
{
    uint32_t picked = 0, open = 0;
    for (uint32_t i = 0; i < gather->request.count; i++) {
        const gather_state *state = &gather->states[i];
        if (state->done) continue;
        open++;
        if (state->waiting > 0) continue;
        if (gather_next_pick(gather, i, &gather->picks[picked])) {
            picked++;
        } else if (state->hoping == 0) {
            gather_give_up(gather, i);
            open--;
        }
    }
    if (picked == 0 || gather_begin(gather, gather->picks, picked, deadline_ns) == KVT_OK)
        return open;
    for (uint32_t i = 0; i < picked; i++) { /* no memory: these are not tried again */
        gather_give_up(gather, gather->picks[i].range);
        open--;
    }
    return open;
}

/* ---- waiting ---- */

/* The transfers that have not ended, and their members. */
typedef struct gather_unfinished {
    uint32_t count;
    uint64_t members;
} gather_unfinished;

/* done_mutex is held. */
static gather_unfinished gather_count_unfinished(const tiers_gather *gather)
{
    gather_unfinished unfinished = {0, 0};
    for (const gather_batch *batch = gather->batches; batch != NULL; batch = batch->next) {
        for (uint32_t i = 0; i < batch->part_count; i++) {
            if (batch->parts[i].transfer.finished) continue;
            unfinished.count++;
            unfinished.members |= UINT64_C(1) << batch->parts[i].member;
        }
    }
    return unfinished;
}

/* Sleeps until one more part has ended than at `before`, or until an instant. */
static void gather_sleep(tiers_gather *gather, const gather_unfinished *before, uint64_t until_ns)
{
    tiers_pool *pool = gather->pool;
    pthread_mutex_lock(&pool->done_mutex);
    while (gather_count_unfinished(gather).count == before->count && base_clock_ns() < until_ns)
        base_condition_wait_until(&pool->done, &pool->done_mutex, until_ns);
    pthread_mutex_unlock(&pool->done_mutex);
}

/* The count of unfinished parts is taken before the look, so that a part that ends after the look
 * ends the sleep. Members are checked from the second round on: most gathers need only one. */
kvt_status tiers_gather_wait(tiers_gather *gather, uint64_t deadline_ns)
{
    uint64_t check_ns = base_clock_ns() + TIERS_CHECK_NS, stuck = 0;
    for (;;) {
        pthread_mutex_lock(&gather->pool->done_mutex);
        const gather_unfinished unfinished = gather_count_unfinished(gather);
        pthread_mutex_unlock(&gather->pool->done_mutex);
        uint64_t now_ns = base_clock_ns();
        if (now_ns >= check_ns) {
            /* Look after the members in a mask, as every waiter does. Returns those out of
             * service. */
            uint64_t members = unfinished.members;
            stuck = 0;
            for (uint32_t i = 0; i < TIERS_MEMBERS_MAX && members >> i != 0; i++) {
                if ((members >> i & 1) != 0 && tiers_worker_check(gather->pool->members[i].worker))
                    stuck |= UINT64_C(1) << i;
            }
            check_ns = now_ns + TIERS_CHECK_NS;
        }
        uint64_t until_ns = check_ns;
        /* A range's counts are of this look alone. */
        for (uint32_t i = 0; i < gather->request.count; i++)
            gather->states[i].waiting = gather->states[i].hoping = 0;
        for (gather_batch *batch = gather->batches; batch != NULL; batch = batch->next) {
            if (batch->hedge_at_ns > now_ns && batch->hedge_at_ns < until_ns)
                until_ns = batch->hedge_at_ns; /* it becomes late then */
            for (uint32_t i = 0; i < batch->attempt_count; i++) {
                if (!batch->attempts[i].settled)
                    gather_settle_attempt(gather, batch, &batch->attempts[i], now_ns,
                                          stuck & unfinished.members);
            }
        }
        const gather_batch *newest = gather->batches;
        uint32_t open = gather_read_again(gather, deadline_ns);
        if (open == 0 || now_ns >= deadline_ns) {
            /* The first status that is not KVT_OK. Ranges that may still come say so. */
            kvt_status first = KVT_OK;
            for (uint32_t i = 0; i < gather->request.count; i++) {
                tiers_gather_range *range = &gather->request.ranges[i];
                if (!gather->states[i].done) range->status = KVT_E_TIMEOUT;
                if (first == KVT_OK) first = range->status;
            }
            return first;
        }
        if (gather->batches != newest) continue;
        gather_sleep(gather, &unfinished, until_ns < deadline_ns ? until_ns : deadline_ns);
    }
}

/* Waits for the report of a part all of whose runs have ended: the worker is about to make it.
 * done_mutex is held. */
static void gather_await_report(tiers_gather *gather, const gather_part *part)
{
    for (uint32_t i = 0; i < part->runs.count; i++) {
        if (atomic_load_explicit(&part->runs.runs[i].status, memory_order_acquire) == KVT_QUEUED)
            return;
    }
    while (!part->transfer.finished)
        pthread_cond_wait(&gather->pool->done, &gather->pool->done_mutex);
}

uint32_t tiers_gather_shares(tiers_gather *gather, tiers_gather_share *shares)
{
    tiers_gather_share all[TIERS_MEMBERS_MAX] = {{0}};
    uint64_t unfinished = 0; /* a mask */
    uint32_t count = 0;
    pthread_mutex_lock(&gather->pool->done_mutex);
    for (const gather_batch *batch = gather->batches; batch != NULL; batch = batch->next) {
        for (uint32_t i = 0; i < batch->part_count; i++) {
            const gather_part *part = &batch->parts[i];
            tiers_gather_share *share = &all[part->member];
            bool first = share->requests == 0;
            const tiers_transfer *transfer = &part->transfer;
            gather_await_report(gather, part);
            if (first || transfer->started_ns < share->started_ns)
                share->started_ns = transfer->started_ns;
            if (!transfer->finished)
                unfinished |= UINT64_C(1) << part->member;
            else if (transfer->finished_ns > share->finished_ns)
                share->finished_ns = transfer->finished_ns;
            share->member = part->member;
            share->requests += part->runs.count;
            share->bytes += transfer->bytes;
        }
    }
    pthread_mutex_unlock(&gather->pool->done_mutex);
    for (uint32_t i = 0; i < TIERS_MEMBERS_MAX; i++) {
        if (all[i].requests == 0) continue;
        if ((unfinished >> i & 1) != 0) all[i].finished_ns = 0;
        shares[count++] = all[i];
    }
    return count;
}
