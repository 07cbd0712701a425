/* SPDX-License-Identifier: Apache-2.0 */
/*
 * link.c - the client of the engine has one driver at a time, as a device has its worker. Callers
 * hand batches of requests over; each request ends at its deadline, so every batch does.
 *
 *     FREE -> CALLER    a caller's get, which it waits for: no other thread has to wake for it
 *     FREE -> THREAD    a batch that nobody drives, and a look each 50 ms
 *     CALLER -> FREE    its get has ended, and nothing is under way
 *            -> THREAD  something is
 *     THREAD -> FREE    nothing is under way, and the client is calm
 *
 * The file knows no entry and no record.
 *
 * Thread rule: any thread hands over; the rest is the driver's.
 */
#include "base/clock.h"
#include "base/thread.h"
#include "store/hosts/remote_tier.h"

#include "base/wait.h"

#include <assert.h>

#define LINK_DONE    64u
#define LINK_LOOK_NS UINT64_C(50000000) /* between two looks at the client's statistics */

void remote_space(const store_remote *remote, uint32_t tenant, char space[OBJECT_SPACE_BYTES])
{
    if (tenant == 0)
        memcpy(space, remote->space, OBJECT_SPACE_BYTES);
    else
        object_space(remote->text, tenant, space);
}

/* Adds a batch. Lock held. */
static void link_add(store_remote *remote, link_batch *batch)
{
    assert(batch->count > 0);
    batch->next = NULL;
    batch->left = batch->count;
    batch->over = false;
    for (uint32_t i = 0; i < batch->count; i++)
        batch->requests[i].user = batch;
    if (remote->last != NULL)
        remote->last->next = batch;
    else
        remote->first = batch;
    remote->last = batch;
}

/* Tells the driver of a batch, or the thread when there is none. No lock held. */
static void link_tell(store_remote *remote, link_driver driver)
{
    if (driver == LINK_FREE)
        pthread_cond_signal(&remote->link_turn);
    else
        remote_wake(remote->client);
}

void link_hand(store_remote *remote, link_batch *batch)
{
    pthread_mutex_lock(&remote->lock);
    link_add(remote, batch);
    const link_driver driver = remote->driver;
    pthread_mutex_unlock(&remote->lock);
    link_tell(remote, driver);
}

bool link_hand_own(store_remote *remote, link_batch *batch)
{
    pthread_mutex_lock(&remote->lock);
    link_add(remote, batch);
    const link_driver driver = remote->driver;
    const bool drives = driver == LINK_FREE && !remote->link_ends && !remote->link_needed;
    if (drives) remote->driver = LINK_CALLER;
    pthread_mutex_unlock(&remote->lock);
    if (!drives) link_tell(remote, driver);
    return drives;
}

void link_run(store_remote *remote, link_batch *batch)
{
    batch->ended = NULL;
    link_hand(remote, batch);
    pthread_mutex_lock(&remote->lock);
    while (!batch->over)
        pthread_cond_wait(&remote->changed, &remote->lock);
    pthread_mutex_unlock(&remote->lock);
}

/* Submits the requests of all batches that were handed over. */
static void link_take(store_remote *remote)
{
    pthread_mutex_lock(&remote->lock);
    link_batch *batch = remote->first;
    remote->first = remote->last = NULL;
    pthread_mutex_unlock(&remote->lock);
    while (batch != NULL) {
        link_batch *next = batch->next; /* the batch is over, and its owner's, before this ends */
        const uint32_t count = batch->count;
        remote_request *requests = batch->requests;
        for (uint32_t i = 0; i < count; i++)
            remote_submit(remote->client, &requests[i]);
        batch = next;
    }
}

/* Copies what the client has counted to where others may read it. */
static void link_look(store_remote *remote)
{
    remote_stats stats;
    remote_stats_get(remote->client, &stats);
    pthread_mutex_lock(&remote->lock);
    remote->seen = stats;
    for (uint32_t i = 0; i < stats.node_count; i++)
        (void)remote_node_stats_get(remote->client, i, &remote->nodes[i]);
    pthread_mutex_unlock(&remote->lock);
}

/* A request of a batch is done. */
static void link_end_request(store_remote *remote, const remote_request *request)
{
    link_batch *batch = request->user;
    assert(batch->left > 0);
    if (--batch->left != 0) return;
    if (batch->ended != NULL) {
        batch->ended(batch->context);
        return;
    }
    pthread_mutex_lock(&remote->lock);
    batch->over = true;
    pthread_cond_broadcast(&remote->changed);
    pthread_mutex_unlock(&remote->lock);
}

/* Submits waiting requests, waits for the next that ends, and ends it. */
static void link_round(store_remote *remote, uint64_t timeout_ns)
{
    remote_request *done[LINK_DONE];
    link_take(remote);
    const size_t count = remote_reap(remote->client, done, 1, LINK_DONE, timeout_ns);
    for (size_t i = 0; i < count; i++)
        link_end_request(remote, done[i]);
    const uint64_t now_ns = base_clock_ns();
    if (now_ns < remote->looked_ns + LINK_LOOK_NS) return;
    remote->looked_ns = now_ns;
    link_look(remote);
}

/* Gives the client free where nothing is under way. Lock held. */
static bool link_let_go(store_remote *remote)
{
    const bool calm = remote->first == NULL && remote_is_calm(remote->client);
    if (calm) remote->driver = LINK_FREE;
    return calm;
}

void link_drive(store_remote *remote, const bool *finished, uint64_t deadline_ns)
{
    remote_request *done[1];
    bool on = true;
    /* The loss of a connection while nobody had the client is noticed first. */
    const size_t none = remote_reap(remote->client, done, 0, 1, 0);
    assert(none == 0);
    (void)none;
    while (on) {
        const uint64_t now_ns = base_clock_ns();
        const uint64_t left_ns = deadline_ns > now_ns ? deadline_ns - now_ns : 0;
        link_round(remote, left_ns < LINK_LOOK_NS ? left_ns : LINK_LOOK_NS);
        pthread_mutex_lock(&remote->lock);
        assert(remote->driver == LINK_CALLER);
        on = !*finished && base_clock_ns() < deadline_ns;
        remote->link_needed = !on && !link_let_go(remote);
        if (remote->link_needed) remote->driver = LINK_FREE;
        const bool needed = remote->link_needed;
        pthread_mutex_unlock(&remote->lock);
        if (needed) pthread_cond_signal(&remote->link_turn);
    }
}

static void *link_main(void *argument)
{
    store_remote *remote = argument;
    const remote_client *client = remote->client;
    pthread_mutex_lock(&remote->lock);
    for (;;) {
        /* Wait until the client is the thread's: there is something to do, or it is time for a
         * look. Lock held. */
        uint64_t look_ns = base_clock_ns() + LINK_LOOK_NS;
        while (remote->driver != LINK_THREAD) {
            const bool wanted = remote->first != NULL || remote->link_needed || remote->link_ends;
            const bool due = wanted || base_clock_ns() >= look_ns;
            if (due && remote->driver == LINK_FREE) {
                remote->driver = LINK_THREAD;
                remote->link_needed = false;
            } else {
                if (due) look_ns = base_clock_ns() + LINK_LOOK_NS; /* the caller looks meanwhile */
                base_condition_wait_until(&remote->link_turn, &remote->lock, look_ns);
            }
        }
        const bool ends = remote->link_ends && remote->first == NULL && client->in_flight == 0;
        const bool idle = remote->first == NULL && remote_is_calm(client);
        if (ends) break;
        pthread_mutex_unlock(&remote->lock);
        link_round(remote, idle ? 0 : LINK_LOOK_NS);
        pthread_mutex_lock(&remote->lock);
        (void)link_let_go(remote);
    }
    pthread_mutex_unlock(&remote->lock);
    link_look(remote);
    return NULL;
}

kvt_status link_start(store_remote *remote)
{
    if (base_thread_start(&remote->link, link_main, remote) != KVT_OK) return KVT_E_THREAD;
    remote->has_link = true;
    return KVT_OK;
}

void link_stop(store_remote *remote)
{
    if (!remote->has_link) return;
    pthread_mutex_lock(&remote->lock);
    remote->link_ends = true;
    pthread_mutex_unlock(&remote->lock);
    pthread_cond_signal(&remote->link_turn);
    remote_wake(remote->client);
    pthread_join(remote->link, NULL);
    remote->has_link = false;
}
