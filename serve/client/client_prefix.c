/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client_prefix.c - kvt_prefix_get of a connected store: the gets of the stored run are under way
 * at once, as many as the channel has room for, and are finished in any order.
 *
 *     [0, low) done    [low, high) made: to be posted, or under way    [high, count) not begun
 *
 * What a channel that is lost leaves, and what does not fit in it, goes on one after the other, by
 * the blocking get's way, which connects again.
 *
 * Thread rule: any thread.
 */
#include "serve/client/client_calls.h"
#include "serve/client/client_transfer.h"

#include <stdlib.h>

#define PREFIX_MAX   (UINT32_C(1) << 20)
#define PREFIX_CHUNK 1024u /* gets of one window */

typedef struct prefix_get {
    client_transfer transfer;
    kvt_status status; /* KVT_QUEUED: not done */
    bool posted;
} prefix_get;

typedef struct prefix_run {
    client_store *store;
    client_channel *channel;
    uint64_t deadline_ns;
    prefix_get *gets;
    uint32_t low, high;
    uint32_t count;     /* falls to a get that is no hit: none behind it is begun */
    uint32_t under_way; /* posted, and not finished */
} prefix_run;

static void prefix_done(prefix_run *run, uint32_t i, kvt_status status)
{
    run->gets[i].status = status;
    if (status != KVT_OK && i < run->count) run->count = i;
}

/* A get that the window cannot carry on with. The lock is let go meanwhile. */
static void prefix_alone(prefix_run *run, uint32_t i)
{
    client_transfer *transfer = &run->gets[i].transfer;
    client_request_free(run->channel, &transfer->request);
    transfer->request.untaken = false;
    pthread_mutex_unlock(&run->channel->lock);
    const uint64_t until_ns =
        run->deadline_ns == KVT_STORE_DEADLINE ? KVT_NO_DEADLINE : run->deadline_ns;
    const kvt_status status = client_transfer_run(run->store, transfer, until_ns);
    pthread_mutex_lock(&run->channel->lock);
    prefix_done(run, i, status == KVT_E_TIMEOUT ? KVT_MISS : status);
}

/* Posts one. False: there is no room for it now. */
static bool prefix_post(prefix_run *run, uint32_t i)
{
    prefix_get *get = &run->gets[i];
    client_request *request = &get->transfer.request;
    kvt_status status = client_transfer_prepare(run->channel, &get->transfer);
    if (status == KVT_OK) {
        request->waited = true;
        status = client_request_post(run->channel, request);
        if (status != KVT_OK) client_request_free(run->channel, request);
    }
    if (status == KVT_BUSY && run->under_way > 0) return false;
    get->posted = status == KVT_OK;
    if (get->posted)
        run->under_way++;
    else
        prefix_alone(run, i);
    return true;
}

/* Posts what can be, those that are to go on first. */
static void prefix_post_all(prefix_run *run)
{
    for (uint32_t i = run->low; i < run->high; i++) {
        const prefix_get *get = &run->gets[i];
        if (get->status != KVT_QUEUED || get->posted) continue;
        if (i >= run->count)
            prefix_done(run, i, KVT_MISS);
        else if (!prefix_post(run, i))
            return;
    }
    while (run->high < run->count && prefix_post(run, run->high))
        run->high++;
}

/* Finishes those that have completed. The lock is let go over the copies. False: there were none,
 * and the lock was held throughout. */
static bool prefix_finish_all(prefix_run *run)
{
    bool any = false;
    for (uint32_t i = run->low; i < run->high; i++) {
        prefix_get *get = &run->gets[i];
        client_request *request = &get->transfer.request;
        if (!get->posted || !request->completed) continue;
        any = true;
        get->posted = false;
        run->under_way--;
        if (request->untaken) {
            prefix_alone(run, i);
            continue;
        }
        pthread_mutex_unlock(&run->channel->lock);
        const kvt_status status = client_transfer_finish(&get->transfer);
        pthread_mutex_lock(&run->channel->lock);
        client_request_free(run->channel, request);
        if (status != KVT_QUEUED) prefix_done(run, i, status);
    }
    while (run->low < run->high && run->gets[run->low].status != KVT_QUEUED)
        run->low++;
    return any;
}

/* One window of gets; *loaded_out has how many leading ones are whole. KVT_OK; of the first one
 * that is not whole what kvt_prefix_get returns. */
static kvt_status prefix_window(prefix_run *run, const kvt_key *keys, const kvt_view *const *views,
                                uint32_t count, uint32_t *loaded_out)
{
    kvt_status failed = KVT_OK;
    run->low = run->high = run->under_way = 0;
    for (run->count = 0; run->count < count; run->count++) {
        prefix_get *get = &run->gets[run->count];
        *get = (prefix_get){.status = KVT_QUEUED};
        failed = client_transfer_init_get(&get->transfer, &keys[run->count], views[run->count],
                                          run->deadline_ns, NULL);
        if (failed != KVT_OK) break;
    }
    const uint32_t sound = run->count;
    pthread_mutex_lock(&run->channel->lock);
    while (run->low < run->high || run->high < run->count) {
        prefix_post_all(run);
        (void)client_channel_take(run->channel);
        if (!prefix_finish_all(run) && run->under_way > 0) {
            const kvt_status waited = client_channel_wait(run->channel, KVT_NO_DEADLINE);
            (void)waited;
        }
    }
    /* Those that found no room before the end of the prefix are listed with the channel. */
    for (uint32_t i = 0; i < sound; i++)
        client_transfer_end(run->channel, &run->gets[i].transfer);
    pthread_mutex_unlock(&run->channel->lock);
    *loaded_out = run->count;
    if (run->count < sound) failed = run->gets[run->count].status;
    return failed;
}

kvt_status client_prefix_get(kvt_store *handle, const kvt_key *keys, const kvt_view *const *views,
                             size_t count, uint64_t deadline_ns, size_t *loaded_out)
{
    client_store *store;
    size_t matched = 0;
    if (loaded_out == NULL || views == NULL || count > PREFIX_MAX) return KVT_E_ARGUMENT;
    *loaded_out = 0;
    kvt_status status = client_match(handle, keys, count, NULL, &matched);
    if (status != KVT_OK || matched == 0) return status;
    status = client_enter(handle, &store);
    if (status != KVT_OK) return status;
    const size_t window = matched < PREFIX_CHUNK ? matched : PREFIX_CHUNK;
    prefix_run run = {.store = store,
                      .channel = &store->calls,
                      .deadline_ns = deadline_ns,
                      .gets = malloc(window * sizeof *run.gets)};
    if (run.gets == NULL) return KVT_E_MEMORY;
    uint32_t loaded = 0;
    for (size_t from = 0; from < matched && status == KVT_OK; from += loaded) {
        const size_t left = matched - from;
        const uint32_t part = (uint32_t)(left < PREFIX_CHUNK ? left : PREFIX_CHUNK);
        status = prefix_window(&run, keys + from, views + from, part, &loaded);
        *loaded_out += loaded;
        if (loaded < part) break;
    }
    free(run.gets);
    /* A get that is no hit ends the prefix. */
    return status == KVT_MISS ? KVT_OK : status;
}
