/* SPDX-License-Identifier: Apache-2.0 */
/*
 * remote_prefetch.c - entries of other hosts that nobody waits for: a prefetch asks for one, a
 * layered load leaves one behind; the background decodes it and offers it to the local tiers.
 *
 *     asked for -> landed -> taken in by the background, or by kvt_store_maintain
 *
 * What is on its way or has landed holds staging, so it is bounded: by number, and by a quarter of
 * the store's staging.
 *
 * Thread rule: any thread asks; `landed` is under remote->lock; rounds are the background's.
 */
#include "base/clock.h"
#include "store/background/maintain.h"
#include "store/hosts/remote_tier.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdlib.h>

#define PREFETCH_MOST 16u

typedef struct remote_prefetch {
    struct remote_prefetch *next; /* of those that have landed */
    kvt_store *store;
    kvt_key key;
    access_get get;
    atomic_uint parts; /* the read and its beginning: the one that ends last lists it */
    uint32_t tries;    /* begun so often, with ever more room */
} remote_prefetch;

/* Takes a place among those on their way. False: there is none. */
static bool prefetch_enter(store_remote *remote)
{
    const uint64_t each = fetch_staging_bytes(remote, FETCH_UNKNOWN);
    const uint64_t most = remote->store->staging->limit_bytes / 4 / each;
    pthread_mutex_lock(&remote->lock);
    const bool room = remote->prefetching < PREFETCH_MOST &&
                      (remote->prefetching < most || remote->prefetching == 0);
    remote->prefetching += room;
    pthread_mutex_unlock(&remote->lock);
    return room;
}

static void prefetch_leave(store_remote *remote, remote_prefetch *item)
{
    pthread_mutex_lock(&remote->lock);
    assert(remote->prefetching > 0);
    remote->prefetching--;
    pthread_mutex_unlock(&remote->lock);
    free(item);
}

/* Lists an item that has landed, and wakes the background. No lock held. */
static void prefetch_list(remote_prefetch *item)
{
    kvt_store *store = item->store;
    store_remote *remote = store->remote;
    pthread_mutex_lock(&remote->lock);
    item->next = remote->landed;
    remote->landed = item;
    pthread_mutex_unlock(&remote->lock);
    pthread_mutex_lock(&store->lock);
    maintain_wake(store);
    pthread_mutex_unlock(&store->lock);
}

/* The read has ended, or its beginning has. */
static void prefetch_part(void *context)
{
    remote_prefetch *item = context;
    if (atomic_fetch_sub(&item->parts, 1) == 1) prefetch_list(item);
}

/* Begins the read of an item. False: there is no room for it. */
static bool prefetch_begin(remote_prefetch *item)
{
    item->get = (access_get){.key = &item->key,
                             .deadline_ns = KVT_NO_DEADLINE,
                             .began_ns = store_now_ns(item->store),
                             .quiet = true,
                             .waiter = {.ended = prefetch_part, .context = item}};
    atomic_store(&item->parts, 2);
    if (remote_get_start(item->store, &item->get) != KVT_OK) return false;
    prefetch_part(item);
    return true;
}

kvt_status remote_prefetch_ask(kvt_store *store, const kvt_key *key, uint32_t tenant)
{
    store_remote *remote = store->remote;
    if (remote_match_hint(store, key) == HINT_ABSENT) return KVT_MISS;
    if (!remote_costs_beat(remote, key, tenant, 0)) return KVT_REFUSED;
    if (!prefetch_enter(remote)) return KVT_REFUSED;
    remote_prefetch *item = calloc(1, sizeof *item);
    if (item != NULL) {
        item->store = store;
        item->key = *key;
    }
    if (item != NULL && prefetch_begin(item)) return KVT_OK;
    const bool memory = item != NULL;
    prefetch_leave(remote, item);
    return memory ? KVT_REFUSED : KVT_E_MEMORY;
}

bool remote_prefetch_keep(kvt_store *store, const access_get *get)
{
    store_remote *remote = store->remote;
    if (!prefetch_enter(remote)) return false;
    remote_prefetch *item = calloc(1, sizeof *item);
    if (item == NULL) {
        prefetch_leave(remote, NULL);
        return false;
    }
    item->store = store;
    item->key = get->remote->key;
    item->get = *get;
    item->get.key = &item->key;
    item->get.quiet = true;
    item->get.remote_counted = true;
    prefetch_list(item);
    /* Without a background an item would hold staging without end. */
    if (!store->has_background) remote_prefetch_round(store);
    return true;
}

void remote_prefetch_round(kvt_store *store)
{
    store_remote *remote = store->remote;
    if (remote == NULL) return;
    pthread_mutex_lock(&remote->lock);
    remote_prefetch *item = remote->landed;
    remote->landed = NULL;
    pthread_mutex_unlock(&remote->lock);
    while (item != NULL) {
        remote_prefetch *next = item->next;
        const bool landed = remote_get_land(store, &item->get);
        if (landed) {
            /* Decode an item that has come, and offer it. */
            remote_fetch *fetch = item->get.remote;
            kvt_record_info record;
            kvt_get_info info = {.struct_size = sizeof info};
            void *data = NULL;
            if (fetch_wait(store->remote, fetch, 0) == KVT_OK &&
                kvt_record_parse(fetch->read.buffer.memory, fetch->head.record_bytes, &record) ==
                    KVT_OK) {
                data = malloc(record.source_bytes);
                if (data != NULL)
                    item->get.target = (access_target){.data = data, .bytes = record.source_bytes};
            }
            (void)!remote_get_finish(store, &item->get, &info);
            free(data);
        }
        const bool again = !landed && ++item->tries < FETCH_TRIES;
        if (!again || !prefetch_begin(item)) prefetch_leave(remote, item);
        item = next;
    }
}

void remote_prefetch_close(store_remote *remote)
{
    remote_prefetch *item = remote->landed;
    remote->landed = NULL;
    while (item != NULL) {
        remote_prefetch *next = item->next;
        read_drop(remote->store, &item->get.remote->read);
        prefetch_leave(remote, item);
        item = next;
    }
    assert(remote->prefetching == 0);
}
