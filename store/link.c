/* SPDX-License-Identifier: Apache-2.0 */
/*
 * link.c - the thread that owns the client of the engine, as a device's worker owns its device.
 * Callers hand it batches of requests; each request ends at its deadline, so every batch does.
 *
 * The file knows no entry and no record.
 *
 * Thread rule: any thread hands over; the rest is the link's thread.
 */
#include "base/clock.h"
#include "base/thread.h"
#include "store/remote_tier.h"

#include "base/wait.h"

#include <assert.h>

#define LINK_DONE    64u
#define LINK_LOOK_NS UINT64_C(50000000) /* between two looks at the client's statistics */

void link_hand(store_remote *remote, link_batch *batch)
{
    assert(batch->count > 0);
    batch->next = NULL;
    batch->left = batch->count;
    batch->over = false;
    for (uint32_t i = 0; i < batch->count; i++)
        batch->requests[i].user = batch;
    pthread_mutex_lock(&remote->lock);
    if (remote->last != NULL)
        remote->last->next = batch;
    else
        remote->first = batch;
    remote->last = batch;
    pthread_mutex_unlock(&remote->lock);
    remote_wake(remote->client);
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

/* Submits the requests of all batches that were handed over. False: the link is to end. */
static bool link_take(store_remote *remote)
{
    pthread_mutex_lock(&remote->lock);
    link_batch *batch = remote->first;
    remote->first = remote->last = NULL;
    const bool goes_on = !remote->link_ends || batch != NULL || remote->client->in_flight != 0;
    pthread_mutex_unlock(&remote->lock);
    while (batch != NULL) {
        link_batch *next = batch->next; /* the batch is over, and its owner's, before this ends */
        const uint32_t count = batch->count;
        remote_request *requests = batch->requests;
        for (uint32_t i = 0; i < count; i++)
            remote_submit(remote->client, &requests[i]);
        batch = next;
    }
    return goes_on;
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

static void *link_main(void *argument)
{
    store_remote *remote = argument;
    remote_request *done[LINK_DONE];
    uint64_t looked_ns = 0;
    while (link_take(remote)) {
        const size_t count = remote_reap(remote->client, done, 1, LINK_DONE, LINK_LOOK_NS);
        for (size_t i = 0; i < count; i++)
            link_end_request(remote, done[i]);
        const uint64_t now_ns = base_clock_ns();
        if (now_ns < looked_ns + LINK_LOOK_NS) continue;
        looked_ns = now_ns;
        link_look(remote);
    }
    link_look(remote);
    return NULL;
}

kvt_status link_start(store_remote *remote)
{
    if (base_thread_start(&remote->link, link_main, remote) != 0) return KVT_E_MEMORY;
    remote->has_link = true;
    return KVT_OK;
}

void link_stop(store_remote *remote)
{
    if (!remote->has_link) return;
    pthread_mutex_lock(&remote->lock);
    remote->link_ends = true;
    pthread_mutex_unlock(&remote->lock);
    remote_wake(remote->client);
    pthread_join(remote->link, NULL);
    remote->has_link = false;
}
