/* SPDX-License-Identifier: Apache-2.0 */
/*
 * handover_threads.c - the executors: threads that take puts from the queue in order, and their
 * start and end with the store.
 *
 * The file decides nothing about a put: put_plan.c does, on behalf of the executor.
 */
#include "base/thread.h"
#include "options.h"
#include "store/core/handover.h"

#include <assert.h>
#include <stdlib.h>
#include <sys/prctl.h>

/* The bounds of put staging: at most one part of the smallest tier; without a setting, one part of
 * DRAM between the least and the most bytes. */
#define HANDOVER_TIER_PARTS 8u
#define HANDOVER_DRAM_PARTS 32u
#define HANDOVER_LEAST      (UINT64_C(256) << 20)
#define HANDOVER_MOST       (UINT64_C(8) << 30)

/* An executor's thread. Each executor takes its own STORE_PLAN_MOVES moves of the shared array, by
 * the order in which the threads enter. */
static void *handover_execute(void *argument)
{
    kvt_store *store = argument;
    kvt_move *moves = store->handover.moves;
    (void)prctl(PR_SET_NAME, "kvt put");
    pthread_mutex_lock(&store->lock);
    kvt_plan plan = {.capacity = STORE_PLAN_MOVES,
                     .moves = moves + (size_t)store->handover.entered++ * STORE_PLAN_MOVES};
    /* Take puts in the order of the queue until the store stops and no put waits. `waiting` is the
     * first object that no executor has begun. Lock held at entry and exit, and released while a
     * put is carried out. */
    store_handover *handover = &store->handover;
    while (handover->waiting != NULL || !handover->stopping) {
        store_staged *staged = handover->waiting;
        if (staged == NULL) {
            pthread_cond_wait(&handover->arrived, &store->lock);
            continue;
        }
        staged->begun = true;
        assert(staged->users > 0 && staged->buffer.memory != NULL);
        handover->waiting = staged->next;
        pthread_mutex_unlock(&store->lock);
        kvt_status status = put_finish(store, staged, &plan);
        pthread_mutex_lock(&store->lock);
        handover_end(store, staged, status);
    }
    pthread_mutex_unlock(&store->lock);
    return NULL;
}

/* The bytes of put staging. The policy can move neither an entry that is handed over nor the
 * entries that make room for it, and a tier whose entries are all in motion has no room for a
 * better entry. The bound therefore stays below a part of the smallest tier. */
uint64_t kvt_put_staging_limit(uint64_t asked_bytes, const uint64_t capacity_bytes[KVT_TIER_COUNT])
{
    assert(capacity_bytes != NULL);
    uint64_t limit = asked_bytes;
    /* A server puts the entries of a whole prompt at once, and a store with more DRAM keeps longer
     * prompts, so the bound that suits grows with DRAM. */
    if (limit == KVT_PUT_STAGING_AUTO) {
        limit = capacity_bytes[KVT_TIER_DRAM] / HANDOVER_DRAM_PARTS;
        if (limit < HANDOVER_LEAST) limit = HANDOVER_LEAST;
        if (limit > HANDOVER_MOST) limit = HANDOVER_MOST;
    }
    for (int tier = KVT_TIER_HBM; tier < KVT_TIER_COUNT; tier++) {
        uint64_t share = capacity_bytes[tier] / HANDOVER_TIER_PARTS;
        if (capacity_bytes[tier] > 0 && share < limit) limit = share;
    }
    return limit;
}

kvt_status handover_open(kvt_store *store, const kvt_store_options *options)
{
    assert(!store->handover.made && store->handover.thread_count == 0);
    store_handover *handover = &store->handover;
    handover->backlog_seconds = options->limits.put_backlog_seconds;
    pthread_cond_init(&handover->arrived, NULL);
    handover->made = true;
    if (options->limits.put_staging_bytes == 0) return KVT_OK;
    /* The bytes of put staging for the capacities that the policy counts on. */
    uint64_t capacity_bytes[KVT_TIER_COUNT] = {0};
    for (int tier = KVT_TIER_HBM; tier < KVT_TIER_COUNT; tier++)
        if (store->pools[tier] != NULL)
            capacity_bytes[tier] = store_policy_capacity(store, (kvt_tier)tier);
    uint64_t limit_bytes = kvt_put_staging_limit(options->limits.put_staging_bytes, capacity_bytes);
    kvt_status status = staging_open(limit_bytes, &handover->staging);
    if (status != KVT_OK) return status;
    staging_make_arena(handover->staging, false);
    handover->moves =
        malloc((size_t)STORE_HANDOVER_THREADS * STORE_PLAN_MOVES * sizeof *handover->moves);
    return handover->moves != NULL ? KVT_OK : KVT_E_MEMORY;
}

kvt_status handover_start(kvt_store *store)
{
    store_handover *handover = &store->handover;
    assert(handover->made && handover->thread_count == 0);
    if (handover->staging == NULL) return KVT_OK;
    while (handover->thread_count < STORE_HANDOVER_THREADS) {
        pthread_t *thread = &handover->threads[handover->thread_count];
        if (base_thread_start(thread, handover_execute, store) != 0) break;
        handover->thread_count++;
    }
    return handover->thread_count != 0 ? KVT_OK : KVT_E_THREAD;
}

void handover_stop(kvt_store *store, uint64_t deadline_ns)
{
    store_handover *handover = &store->handover;
    if (!handover->made) return;
    if (deadline_ns != 0) (void)handover_drain(store, deadline_ns, NULL);
    handover_cancel_waiting(store);
    while (handover->thread_count > 0)
        pthread_join(handover->threads[--handover->thread_count], NULL);
    assert(handover->count == 0);
}

void handover_close(kvt_store *store)
{
    store_handover *handover = &store->handover;
    if (!handover->made) return;
    free(handover->moves);
    staging_close(handover->staging);
    pthread_cond_destroy(&handover->arrived);
}
