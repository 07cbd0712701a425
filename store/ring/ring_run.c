/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ring_run.c - the threads of a ring: they take blocks in the order of their positions, hold back
 * those that come after another one, and post completions. One of them at a time watches the
 * producers' words, and hands the watch on before it carries a block out.
 *
 * A hole in the ring is counted in sleeps that ran out, so that no clock that stands still keeps
 * the blocks behind it.
 *
 * Thread rule: threads of the ring. Nothing waits for a device under `lock`.
 */
#include "store/ring/ring_internal.h"

#include "base/clock.h"

#include <assert.h>
#include <poll.h>
#include <sched.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define RING_LOOKS 256u /* words that are looked through for a block behind a hole, each time */

static ring_slot *ring_slot_of(kvt_ring *ring, uint64_t position)
{
    return &ring->slots[position & (ring->head.depth - 1)];
}

/* ---- completions ---- */

/* Wakes whoever waits for completions that are there, all of them. */
static void ring_wake_waiters(kvt_ring *ring)
{
    static const uint64_t one = 1;
    if (base_ring_wakes(&ring->completions) && write(ring->done, &one, sizeof one) < 0) return;
    if (atomic_load(&ring->waiters) == 0) return;
    pthread_mutex_lock(&ring->done_lock);
    bool wakes = atomic_load(&ring->given_up) != KVT_OK;
    for (const ring_waiter *at = ring->waits; at != NULL && !wakes; at = at->next)
        wakes = ring_look_done(ring, at->index, at->count) != KVT_QUEUED;
    pthread_mutex_unlock(&ring->done_lock);
    /* Not under the lock, which the first thing that a waiter does is take. */
    if (wakes) pthread_cond_broadcast(&ring->complete);
}

/* Posts a completion. False: its place is not free. `lock` is held. */
static bool ring_post_result(kvt_ring *ring, uint64_t position, const kvt_ring_result *result)
{
    base_ring_body body;
    memcpy(&body, result, sizeof body);
    return base_ring_post(&ring->completions, position, &body) == KVT_OK;
}

static void ring_end(kvt_ring *ring, ring_slot *slot, kvt_status status);

/* Gives the ring up: what waits, what was posted, and what was claimed before it completes with a
 * status, and nothing is taken any more. `lock` is held. */
static void ring_give_up(kvt_ring *ring, kvt_status status)
{
    if (ring->broken != KVT_OK) return;
    ring->broken = status;
    const kvt_ring_result result = {.status = status, .done_ns = base_clock_ns()};
    while (ring->waiting != NULL) {
        ring_slot *slot = ring->waiting;
        ring->waiting = slot->next;
        ring_end(ring, slot, status);
    }
    for (uint64_t i = 0; i < ring->head.depth; i++)
        if (ring_slot_of(ring, ring->taken + i)->state == RING_FREE)
            (void)ring_post_result(ring, ring->taken + i, &result);
    atomic_store(&ring->given_up, status);
    ring_wake_waiters(ring);
}

/* Completes a block that was not carried out. `lock` is held. */
static void ring_end(kvt_ring *ring, ring_slot *slot, kvt_status status)
{
    const kvt_ring_block *block = &slot->block;
    signed char *statuses = (signed char *)ring->memory + ring->head.statuses_at +
                            (slot->position & (ring->head.depth - 1)) * ring->head.contexts;
    const bool sound = block->count <= ring->head.contexts;
    memset(statuses, status, sound ? block->count : ring->head.contexts);
    slot->result = (kvt_ring_result){.status = status,
                                     .failed = sound && status != KVT_OK ? block->count : 0,
                                     .user = block->user,
                                     .taken_ns = slot->result.taken_ns,
                                     .done_ns = base_clock_ns()};
    slot->state = RING_FREE;
    ring->stats.blocks++;
    ring->stats.failed += slot->result.failed;
    const bool posted = ring_post_result(ring, slot->position, &slot->result);
    if (!posted) ring_give_up(ring, KVT_E_CORRUPT);
}

/* Completes a block that was carried out. `lock` is held. */
static void ring_finish(kvt_ring *ring, ring_slot *slot, const ring_worker *worker)
{
    assert(slot->state == RING_RUNS && atomic_load(&ring->under_way) > 0);
    slot->state = RING_FREE;
    slot->result.done_ns = base_clock_ns();
    ring->stats.blocks++;
    ring->stats.contexts += worker->count;
    ring->stats.failed += slot->result.failed;
    ring->stats.bytes += slot->result.bytes;
    ring->stats.read_bytes += slot->result.read_bytes;
    ring->stats.requests += worker->requests;
    if (!ring_post_result(ring, slot->position, &slot->result)) ring_give_up(ring, KVT_E_CORRUPT);
    atomic_fetch_sub(&ring->under_way, 1);
    if (ring->waiting != NULL) pthread_cond_broadcast(&ring->work);
}

/* ---- submissions ---- */

/* Whether the block that this one comes after is complete. It has a lower position, so that it was
 * taken before. `lock` is held. */
static bool ring_may_run(kvt_ring *ring, const ring_slot *slot)
{
    if (slot->block.after == 0) return true;
    const ring_slot *first = ring_slot_of(ring, slot->block.after - 1);
    return first->state == RING_FREE || first->position != slot->block.after - 1;
}

/* Takes one block off the ring. NULL: there is none, or it waits or has ended already. *more: look
 * again. `lock` is held. */
static ring_slot *ring_take(kvt_ring *ring, bool *more)
{
    base_ring_body body;
    const uint64_t position = ring->taken;
    ring_slot *slot = ring_slot_of(ring, position);
    *more = false;
    kvt_status status = base_ring_take(&ring->submissions, position, &body);
    if (status == KVT_END) return NULL;
    /* A place whose completion nobody has taken is no producer's yet. */
    if (status == KVT_OK && (slot->state != RING_FREE ||
                             atomic_load_explicit(base_ring_word(&ring->completions, position),
                                                  memory_order_acquire) != position))
        status = KVT_E_CORRUPT;
    if (status != KVT_OK) {
        ring_give_up(ring, KVT_E_CORRUPT);
        return NULL;
    }
    ring->taken = position + 1;
    ring->looked_ns = 0;
    *slot = (ring_slot){.position = position, .result = {.taken_ns = base_clock_ns()}};
    status = ring_block_read(&body, &ring->head, position, &slot->block);
    *more = true;
    if (status != KVT_OK) {
        ring_end(ring, slot, status);
        ring_wake_waiters(ring);
        return NULL;
    }
    if (ring_may_run(ring, slot)) return slot;
    slot->state = RING_WAITS;
    ring_slot **link = &ring->waiting;
    while (*link != NULL)
        link = &(*link)->next;
    *link = slot;
    return NULL;
}

/* The next block that may run. NULL: there is none. `lock` is held. */
static ring_slot *ring_next(kvt_ring *ring)
{
    for (ring_slot **link = &ring->waiting; *link != NULL; link = &(*link)->next) {
        ring_slot *slot = *link;
        if (!ring_may_run(ring, slot)) continue;
        *link = slot->next;
        return slot;
    }
    bool more = ring->broken == KVT_OK;
    while (more) {
        ring_slot *slot = ring_take(ring, &more);
        if (slot != NULL) return slot;
    }
    return NULL;
}

/* ---- sleeping ---- */

/* Looks whether something is posted behind a hole, and gives the ring up when the hole has been
 * there too long. `lock` is held; `slept_ns` ran out. */
static void ring_look_behind(kvt_ring *ring, uint64_t slept_ns)
{
    const uint64_t next = ring->taken, depth = ring->head.depth;
    if (ring->broken != KVT_OK) return;
    if (atomic_load_explicit(base_ring_word(&ring->submissions, next), memory_order_acquire) !=
        next)
        return;
    if (ring->later <= next) {
        const uint64_t from = next + 1 + ring->looked_ns / slept_ns * RING_LOOKS % depth;
        ring->later = 0;
        for (uint64_t at = from; at < from + RING_LOOKS && ring->later == 0; at++) {
            const uint64_t position = next + 1 + (at - next - 1) % (depth - 1);
            const uint64_t word = atomic_load_explicit(base_ring_word(&ring->submissions, position),
                                                       memory_order_acquire);
            if (word == position + 1) ring->later = position;
        }
    }
    /* What nobody waits behind is no harm; but the look goes on through a long ring. */
    ring->looked_ns += slept_ns;
    if (ring->later == 0 && ring->looked_ns / slept_ns * RING_LOOKS >= depth) ring->looked_ns = 0;
    if (ring->later != 0 && ring->looked_ns >= ring->lost_ns) ring_give_up(ring, KVT_E_TIMEOUT);
}

/* Sleeps until there may be something to do: one thread watches the words. `lock` is held. */
static void ring_sleep(kvt_ring *ring)
{
    if (ring->polls || ring->broken != KVT_OK) {
        pthread_cond_wait(&ring->work, &ring->lock);
        return;
    }
    const uint64_t next = ring->taken, slept_ns = ring->poll_ns;
    const struct timespec pause = {.tv_nsec = (long)slept_ns};
    struct pollfd bell = {.fd = ring->bell, .events = POLLIN};
    int rung = 1;
    ring->polls = true;
    pthread_mutex_unlock(&ring->lock);
    if (base_ring_sleeps(&ring->submissions, next)) rung = ppoll(&bell, 1, &pause, NULL);
    uint64_t count;
    const bool rang = rung > 0 && (bell.revents & POLLIN) != 0 &&
                      read(ring->bell, &count, sizeof count) == sizeof count;
    pthread_mutex_lock(&ring->lock);
    ring->polls = false;
    ring->stats.bells += rang;
    if (rung == 0 && ring->taken == next) ring_look_behind(ring, slept_ns);
}

void *ring_main(void *argument)
{
    ring_worker *worker = argument;
    kvt_ring *ring = worker->ring;
    pthread_mutex_lock(&ring->lock);
    while (!atomic_load(&ring->stopping)) {
        ring_slot *slot = ring_next(ring);
        if (slot == NULL) {
            ring_sleep(ring);
            continue;
        }
        slot->state = RING_RUNS;
        atomic_fetch_add(&ring->under_way, 1);
        pthread_cond_signal(&ring->work); /* another thread watches meanwhile */
        pthread_mutex_unlock(&ring->lock);
        ring_run_block(worker, slot);
        pthread_mutex_lock(&ring->lock);
        ring_finish(ring, slot, worker);
        pthread_mutex_unlock(&ring->lock);
        ring_wake_waiters(ring);
        ring_settle_damaged(worker);
        pthread_mutex_lock(&ring->lock);
    }
    pthread_mutex_unlock(&ring->lock);
    return NULL;
}

void ring_stop(kvt_ring *ring, kvt_status status)
{
    static const uint64_t one = 1;
    pthread_mutex_lock(&ring->lock);
    const bool first = !atomic_exchange(&ring->stopping, true);
    pthread_cond_broadcast(&ring->work);
    pthread_mutex_unlock(&ring->lock);
    if (!first) return;
    while (write(ring->bell, &one, sizeof one) < 0)
        (void)sched_yield();
    for (uint32_t i = 0; i < ring->started; i++)
        pthread_join(ring->workers[i].thread, NULL);
    pthread_mutex_lock(&ring->lock);
    ring_give_up(ring, status);
    pthread_mutex_unlock(&ring->lock);
    ring_gpu_end(ring);
}
