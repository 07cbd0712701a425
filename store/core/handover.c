/* SPDX-License-Identifier: Apache-2.0 */
/*
 * handover.c - the queue of puts that were accepted: its bounds, its bytes and how its puts end.
 * The file carries no plan out (put_plan.c) and starts no thread (handover_threads.c).
 *
 *     entry     ARRIVING -> STAGED --publish-----------------------> RESIDENT
 *                              \-----cancelled, or the put failed--> LEAVING -> erased
 *     object    queued, waiting -> queued, begun -> ended, freed by its last user
 *                              \--> called off, freed by its last user
 *
 *     field                              written by                          guarded by
 *     next, previous, number, count,     callers of put, executors           store->lock
 *     first, last, waiting, seconds
 *     begun, users                       executors; gets join and leave      store->lock
 *     the bytes of a buffer              the caller, before it is queued     none: then immutable
 *     staging, moves, threads            the opener and the closer           no put is under way
 *
 * Plans are begun in the order of their puts and overlap, as plans of concurrent callers do: the
 * policy's capacity rule lets no plan count on room that another one frees. The staged bytes have
 * memory of their own, so an executor that waits for the store's staging never waits for bytes that
 * only executors can free.
 */
#include "store/core/handover.h"
#include "store/core/plans.h"
#include "store/read/groups.h"
#include "store/watch/watching.h"

#include "base/wait.h"
#include "codecs/view_rows.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define HANDOVER_COPY_GAIN  0.125 /* weight of a new copy in the mean of what copies take */
#define HANDOVER_HURRY      0.75  /* of put staging: above it writes get their share at once */
#define HANDOVER_WRITE_GAIN 0.125 /* weight of a new plan in the mean of what plans write */

bool handover_is_on(const kvt_store *store)
{
    return store->handover.thread_count != 0;
}

kvt_status handover_stage(kvt_store *store, uint64_t bytes, staging_buffer *out)
{
    assert(store->handover.staging != NULL);
    kvt_status status = staging_acquire(store->handover.staging, bytes, 0, out);
    return status == KVT_E_TIMEOUT ? KVT_BUSY : status;
}

/* Tells the pools whether puts hold so much staging that their writes should not wait for slack.
 * Lock held. */
static void handover_note_staging(const kvt_store *store)
{
    store_staging *staging = store->handover.staging;
    const double out = (double)staging_bytes_out(staging);
    const bool hurry = out > HANDOVER_HURRY * (double)staging->limit_bytes;
    for (int tier = KVT_TIER_HBM; tier < KVT_TIER_COUNT; tier++)
        if (store->pools[tier] != NULL) tiers_pool_hurry_writes(store->pools[tier], hurry);
}

/* ---- backlog ---- */

/* The seconds of a plan's writes in each tier. Lock held. */
static void handover_cost(const kvt_store *store, const kvt_move *moves, uint32_t count,
                          double seconds[KVT_TIER_COUNT])
{
    memset(seconds, 0, KVT_TIER_COUNT * sizeof *seconds);
    for (uint32_t i = 0; i < count; i++) {
        for (int tier = KVT_TIER_HBM; tier < KVT_TIER_COUNT; tier++) {
            const kvt_affine *write = &store->costs.write[tier];
            if (moves[i].to_bytes[tier] == 0) continue;
            seconds[tier] +=
                write->request_seconds + (double)moves[i].to_bytes[tier] / write->bytes_per_s;
        }
    }
}

/* Whether so many seconds more would bring a tier above the bound. Lock held. */
static bool handover_passes_bound(const store_handover *handover,
                                  const double seconds[KVT_TIER_COUNT])
{
    if (handover->backlog_seconds == 0) return false;
    for (int tier = KVT_TIER_HBM; tier < KVT_TIER_COUNT; tier++) {
        if (seconds[tier] == 0 || handover->seconds[tier] == 0) continue;
        if (handover->seconds[tier] + seconds[tier] > handover->backlog_seconds) return true;
    }
    return false;
}

bool handover_lags(const kvt_store *store, const kvt_plan *plan)
{
    assert(store_is_locked(store));
    double seconds[KVT_TIER_COUNT];
    handover_cost(store, plan->moves, plan->count, seconds);
    return handover_passes_bound(&store->handover, seconds);
}

/* The writes that a put without a plan is expected to make. Lock held. */
static void handover_expect(const store_handover *handover, uint64_t bytes,
                            double seconds[KVT_TIER_COUNT])
{
    for (int tier = 0; tier < KVT_TIER_COUNT; tier++)
        seconds[tier] = handover->write_seconds_per_byte[tier] * (double)bytes;
}

bool handover_lags_unplanned(const kvt_store *store, uint64_t bytes)
{
    assert(store_is_locked(store) && bytes > 0);
    double seconds[KVT_TIER_COUNT];
    handover_expect(&store->handover, bytes, seconds);
    return handover_passes_bound(&store->handover, seconds);
}

/* Moves the mean of write seconds per put byte towards a plan's writes. The first plan sets the
 * mean. Lock held. */
static void handover_note_writes(store_handover *handover, const double seconds[KVT_TIER_COUNT],
                                 uint64_t bytes)
{
    assert(bytes > 0);
    for (int tier = KVT_TIER_HBM; tier < KVT_TIER_COUNT; tier++) {
        double *mean = &handover->write_seconds_per_byte[tier];
        double seen = seconds[tier] / (double)bytes;
        *mean += (handover->writes_noted == 0 ? 1.0 : HANDOVER_WRITE_GAIN) * (seen - *mean);
    }
    handover->writes_noted++;
}

void handover_note_plan(kvt_store *store, store_staged *staged, const kvt_plan *plan)
{
    assert(store_is_locked(store));
    store_handover *handover = &store->handover;
    double before[KVT_TIER_COUNT];
    memcpy(before, staged->seconds, sizeof before);
    handover_cost(store, plan->moves, plan->count, staged->seconds);
    for (int tier = KVT_TIER_HBM; tier < KVT_TIER_COUNT; tier++)
        handover->seconds[tier] += staged->seconds[tier] - before[tier];
    handover_note_writes(handover, staged->seconds, staged->source_bytes);
}

/* ---- the queue ---- */

/* Queues an object behind all others and adds its writes to the backlog. Numbers ascend along the
 * queue, which handover_drain relies on. Lock held. */
static void handover_append(store_handover *handover, store_staged *staged)
{
    assert((handover->first == NULL) == (handover->count == 0));
    assert(staged->next == NULL && !staged->begun);
    staged->number = ++handover->numbers;
    staged->previous = handover->last;
    if (handover->last != NULL)
        handover->last->next = staged;
    else
        handover->first = staged;
    handover->last = staged;
    if (handover->waiting == NULL) handover->waiting = staged;
    handover->count++;
    for (int tier = KVT_TIER_HBM; tier < KVT_TIER_COUNT; tier++)
        handover->seconds[tier] += staged->seconds[tier];
}

/* Takes an object out of the queue, wherever it is, and its writes out of the backlog. Executors
 * end their puts in any order. Lock held. */
static void handover_remove(store_handover *handover, store_staged *staged)
{
    assert(handover->count > 0);
    assert(staged->previous != NULL || handover->first == staged);
    assert(staged->next != NULL || handover->last == staged);
    if (staged->previous != NULL)
        staged->previous->next = staged->next;
    else
        handover->first = staged->next;
    if (staged->next != NULL)
        staged->next->previous = staged->previous;
    else
        handover->last = staged->previous;
    if (handover->waiting == staged) handover->waiting = staged->next;
    handover->count--;
    for (int tier = KVT_TIER_HBM; tier < KVT_TIER_COUNT; tier++) {
        handover->seconds[tier] -= staged->seconds[tier];
        /* Sums of rounded numbers leave a rest behind. */
        if (handover->count == 0 || handover->seconds[tier] < 0) handover->seconds[tier] = 0;
    }
}

/* Makes the object of a put, with copies of the source, of its parent's key and of the plan's
 * moves, because the caller's own are gone when the put returns. NULL: no memory. */
static store_staged *handover_fill(const kvt_store *store, const kvt_entry *source,
                                   const kvt_plan *plan, const put_progress *progress)
{
    store_staged *staged = calloc(1, sizeof *staged + plan->count * sizeof *plan->moves);
    if (staged == NULL) return NULL;
    staged->handle = entry_handle(&store->secret, &source->key);
    staged->users = 1;
    staged->source = *source;
    if (source->parent != NULL) {
        staged->parent = *source->parent;
        staged->source.parent = &staged->parent;
    }
    staged->progress = *progress;
    staged->count = plan->count;
    memcpy(staged->moves, plan->moves, plan->count * sizeof *plan->moves);
    return staged;
}

/* Notifies the observer of moves that were called off. No lock held. */
static void handover_report(kvt_store *store, const kvt_move *moves, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        plan_report(store, &moves[i], KVT_E_CANCELLED);
}

kvt_status handover_accept(kvt_store *store, const kvt_entry *source, const kvt_view *views,
                           const kvt_plan *plan, const put_progress *progress,
                           staging_buffer *buffer)
{
    assert(plan->count == 0 || plan->moves[plan->count - 1].kind == KVT_MOVE_PUT);
    store_handover *handover = &store->handover;
    uint64_t bytes = 0;
    kvt_status status = kvt_layout_bytes(&source->layout, &bytes);
    assert(status == KVT_OK && bytes <= buffer->bytes);
    (void)status;
    store_staged *staged = views != NULL ? handover_fill(store, source, plan, progress) : NULL;
    if (staged == NULL) {
        pthread_mutex_lock(&store->lock);
        /* Abort the plan of a put that cannot be handed over. The abort takes the ARRIVING entry
         * out of the table; without a plan the entry is erased here. */
        if (plan->count != 0) {
            plan_abort_moves(store, plan->moves, plan->count);
            quarantine_settle(store, plan->moves, plan->count);
        } else {
            entry_erase(&store->table, entry_find_key(&store->table, &source->key));
        }
        pthread_mutex_unlock(&store->lock);
        handover_report(store, plan->moves, plan->count);
        return views != NULL ? KVT_E_MEMORY : KVT_E_CANCELLED;
    }
    uint64_t began_ns = base_clock_ns();
    if (source->group_count != 0)
        groups_gather(source->groups, views, source->group_count, buffer->memory);
    else
        view_gather_entry(views, &source->layout, buffer->memory);
    uint64_t copy_ns = base_clock_ns() - began_ns;
    staged->source_bytes = bytes;
    staged->buffer = *buffer;
    *buffer = (staging_buffer){0};
    pthread_mutex_lock(&store->lock);
    store_entry *entry = entry_find_handle(&store->table, staged->handle);
    assert(entry != NULL);
    entry_set_state(entry, ENTRY_ARRIVING, ENTRY_STAGED);
    entry->staged = staged;
    /* The caller's array is gone when the put returns; a STAGED entry keeps its kind. */
    if (source->group_count != 0) staged->source.groups = entry->kind->groups;
    watch_note_stored(store, entry);
    if (staged->count != 0) {
        handover_cost(store, staged->moves, staged->count, staged->seconds);
        handover_note_writes(handover, staged->seconds, bytes);
    } else {
        handover_expect(handover, bytes, staged->seconds);
    }
    /* Move the mean of copy seconds per byte towards this copy. */
    double *mean = &handover->copy_seconds_per_byte;
    const double seconds = (double)copy_ns * 1e-9 / (double)bytes;
    *mean += (*mean == 0 ? 1.0 : HANDOVER_COPY_GAIN) * (seconds - *mean);
    handover_append(handover, staged);
    handover_note_staging(store);
    pthread_mutex_unlock(&store->lock);
    /* Without the lock: an executor that wakes takes the processor from this thread where there is
     * no other one, and gets would wait for both. */
    pthread_cond_signal(&handover->arrived);
    return KVT_OK;
}

void handover_join(store_staged *staged)
{
    assert(staged->users > 0);
    staged->users++;
}

void handover_leave(kvt_store *store, store_staged *staged)
{
    assert(store_is_locked(store));
    assert(staged->users > 0);
    if (--staged->users != 0) return;
    staging_release(store->handover.staging, &staged->buffer);
    handover_note_staging(store);
    free(staged);
}

/* Ends the queue's part in an object. A load that reads the bytes keeps them until its end, and
 * puts go on. Lock held. */
static void handover_let_go(kvt_store *store, store_staged *staged)
{
    if (staged->users > 1) staging_keep(store->handover.staging, &staged->buffer);
    handover_leave(store, staged);
}

/* Takes the STAGED entry of a put that is not stored after all out of the table, and wakes the
 * threads that wait for the entry. Lock held. */
static void handover_forget(kvt_store *store, const store_staged *staged, kvt_event_reason reason)
{
    store_entry *entry = entry_find_handle(&store->table, staged->handle);
    assert(entry != NULL && entry->staged == staged);
    watch_note_removed(store, entry, reason);
    entry->staged = NULL;
    entry_set_state(entry, ENTRY_STAGED, ENTRY_LEAVING);
    entry_erase(&store->table, entry);
    pthread_cond_broadcast(&store->changed);
}

/* Takes a put that no executor has begun out of the queue and out of the table, and aborts its
 * plan. The object remains, with its users. Lock held. */
static void handover_call_off(kvt_store *store, store_staged *staged, kvt_event_reason reason)
{
    assert(!staged->begun);
    handover_remove(&store->handover, staged);
    plan_abort_moves(store, staged->moves, staged->count);
    handover_forget(store, staged, reason);
    quarantine_settle(store, staged->moves, staged->count);
}

store_staged *handover_cancel(kvt_store *store, store_entry *entry)
{
    assert(store_is_locked(store));
    store_staged *staged = entry->staged;
    assert(entry->state == ENTRY_STAGED && staged != NULL);
    if (staged->begun) return NULL;
    handover_call_off(store, staged, KVT_REMOVED_DELETED);
    return staged;
}

void handover_discard(kvt_store *store, store_staged *staged)
{
    handover_report(store, staged->moves, staged->count);
    pthread_mutex_lock(&store->lock);
    handover_let_go(store, staged);
    pthread_mutex_unlock(&store->lock);
}

uint64_t handover_drain(kvt_store *store, uint64_t deadline_ns, uint64_t *bytes_out)
{
    store_handover *handover = &store->handover;
    uint64_t left = 0;
    bool waiting = true;
    pthread_mutex_lock(&store->lock);
    uint64_t last = handover->numbers;
    while (waiting && handover->first != NULL && handover->first->number <= last)
        waiting = base_condition_wait_until(&store->changed, &store->lock, deadline_ns);
    for (const store_staged *staged = handover->first; staged != NULL; staged = staged->next) {
        if (staged->number > last) break;
        left++;
        if (bytes_out != NULL) *bytes_out += staged->buffer.bytes;
    }
    pthread_mutex_unlock(&store->lock);
    return left;
}

/* ---- failures ---- */

/* Counts a put that was accepted and lost, and keeps the first error for the next call that reports
 * it. A cancellation and a positive status are no error. Lock held. */
static void handover_note_failure(kvt_store *store, kvt_status status)
{
    assert(status != KVT_OK);
    store_handover *handover = &store->handover;
    store->counters.puts_lost++;
    if (status >= 0 || status == KVT_E_CANCELLED || handover->failure != KVT_OK) return;
    handover->failure = status;
    handover->failed_ns = base_clock_ns();
}

void handover_end(kvt_store *store, store_staged *staged, kvt_status status)
{
    assert(staged->begun && staged->users > 0);
    assert(store_is_locked(store));
    if (status != KVT_OK) {
        handover_forget(store, staged, KVT_REMOVED_UNSTORED);
        /* Count an accepted put that is not stored, as refused or as lost. A refusal counts as the
         * policy's choice only while some tier has capacity: without any device the policy must
         * refuse, and the put is lost to an I/O error. */
        if (status == KVT_REFUSED && store_has_capacity(store))
            trust_count_refused(store, staged->handle);
        else
            handover_note_failure(store, status == KVT_REFUSED ? KVT_E_IO : status);
    }
    handover_remove(&store->handover, staged);
    handover_let_go(store, staged);
    pthread_cond_broadcast(&store->changed);
}

void handover_cancel_waiting(kvt_store *store)
{
    store_handover *handover = &store->handover;
    store_staged *called_off = NULL;
    pthread_mutex_lock(&store->lock);
    handover->stopping = true;
    /* The last first: a child's put is called off before its parent's. */
    while (handover->waiting != NULL) {
        store_staged *staged = handover->last;
        handover_call_off(store, staged, KVT_REMOVED_UNSTORED);
        store->counters.puts_lost++;
        staged->next = called_off;
        called_off = staged;
    }
    pthread_cond_broadcast(&handover->arrived);
    pthread_mutex_unlock(&store->lock);
    while (called_off != NULL) {
        store_staged *staged = called_off;
        called_off = staged->next;
        handover_discard(store, staged);
    }
}
