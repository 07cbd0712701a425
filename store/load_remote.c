/* SPDX-License-Identifier: Apache-2.0 */
/*
 * load_remote.c - entries of a layered load that are not here: their records are read from other
 * hosts at once, while begin waits, and then lie in staging as a lent record lies in memory. When
 * the load ends the background offers them to the local tiers.
 *
 * The records of one load hold at most half of the store's staging, or are one alone; entries
 * beyond that are misses.
 *
 * Thread rule: the load's owner, but for load_end_remote, which is whoever frees the load.
 */
#include "base/clock.h"
#include "store/load_internal.h"
#include "store/lookups.h"
#include "store/remote_tier.h"

#include <assert.h>

#define LOAD_ROOM_NS UINT64_C(5000000)

/* Begins the read of one entry. False: no further one has room. */
static bool load_ask(kvt_load *load, load_entry *entry, uint32_t tenant, uint64_t deadline_ns,
                     uint64_t *room)
{
    kvt_store *store = load->store;
    const access_get get = {.key = &entry->key};
    staging_buffer buffer = {0};
    /* Several views are of groups, which are never published. */
    if (entry->section_count != 1 || !remote_get_is_worth(store, &get, &entry->key)) return true;
    const uint64_t bytes = fetch_staging_bytes(store->remote, FETCH_UNKNOWN);
    /* The first one has what there is. */
    const bool first = *room == store->staging->limit_bytes / 2;
    if (bytes > *room && !first) return false;
    if (staging_acquire(store->staging, bytes, first ? deadline_ns : 0, &buffer) != KVT_OK)
        return false;
    *room -= bytes < *room ? bytes : *room;
    const uint64_t handle = entry_handle(&store->secret, &entry->key);
    entry->fetch_known =
        remote_hints_get(&store->remote->hints, handle, base_clock_ns()) == HINT_THERE;
    entry->fetch = fetch_begin(store, &entry->key, tenant, FETCH_UNKNOWN, deadline_ns, &buffer,
                               NULL, &entry->fetch_joined);
    if (buffer.memory != NULL) staging_release(store->staging, &buffer);
    return entry->fetch != NULL;
}

/* Waits for a read; one that found too little room begins again with what it needs. */
static kvt_status load_wait_remote(kvt_load *load, load_entry *entry, uint64_t deadline_ns)
{
    kvt_store *store = load->store;
    store_remote *remote = store->remote;
    kvt_status status = fetch_wait(remote, entry->fetch, deadline_ns);
    for (uint32_t i = 1; i < FETCH_TRIES && status == KVT_E_SPACE; i++) {
        staging_buffer buffer = {0};
        const uint32_t tenant = entry->fetch->tenant;
        const uint64_t bytes = fetch_staging_bytes(remote, FETCH_UNKNOWN);
        fetch_release(remote, entry->fetch);
        entry->fetch = NULL;
        /* Others of this load may hold the rest, so it waits for a moment alone. */
        if (staging_acquire(store->staging, bytes, base_clock_ns() + LOAD_ROOM_NS, &buffer) !=
            KVT_OK)
            return KVT_MISS;
        entry->fetch = fetch_begin(store, &entry->key, tenant, FETCH_UNKNOWN, deadline_ns, &buffer,
                                   NULL, &entry->fetch_joined);
        if (buffer.memory != NULL) staging_release(store->staging, &buffer);
        if (entry->fetch == NULL) return KVT_MISS;
        status = fetch_wait(remote, entry->fetch, deadline_ns);
    }
    return status;
}

uint64_t load_ask_others(kvt_load *load)
{
    kvt_store *store = load->store;
    if (store->remote == NULL) return 0;
    uint64_t deadline_ns = base_clock_ns() + store->remote->deadline_ns;
    uint64_t room = store->staging->limit_bytes / 2;
    pthread_mutex_lock(&store->remote->lock);
    bool known = remote_costs_size(store->remote, FETCH_UNKNOWN) != NULL;
    pthread_mutex_unlock(&store->remote->lock);
    if (load->options.deadline_ns < deadline_ns) deadline_ns = load->options.deadline_ns;
    for (size_t i = 0; i < load->count; i++) {
        load_entry *entry = &load->entries[i];
        pthread_mutex_lock(&store->lock);
        const bool here = lifetime_shows(store, entry_find_key(&store->table, &entry->key));
        const uint32_t tenant = here ? 0 : spaces_tenant(store, &entry->key);
        pthread_mutex_unlock(&store->lock);
        if (!here && !load_ask(load, entry, tenant, deadline_ns, &room)) break;
        /* The first one ever says how much room the others need. */
        if (entry->fetch != NULL && !known)
            known = fetch_wait(store->remote, entry->fetch, deadline_ns) == KVT_OK;
    }
    return deadline_ns;
}

/* Takes over what a record says of its entry. */
static kvt_status load_take_remote(kvt_load *load, load_entry *entry)
{
    const remote_fetch *fetch = entry->fetch;
    kvt_record_info record;
    uint64_t bytes = 0;
    kvt_status status = kvt_record_parse(fetch->buffer.memory, fetch->head.record_bytes, &record);
    if (status == KVT_OK && !remote_get_is_sound(fetch, &record)) status = KVT_E_CORRUPT;
    if (status == KVT_OK)
        status = executor_bound(load->store, &record.spec, &bytes, &entry->scratch_bytes);
    if (status != KVT_OK) return KVT_E_CORRUPT;
    entry->sections[0].layout = record.spec.layout;
    entry->sections[0].first_layer = 0;
    entry->sections[0].packed_at = 0;
    entry->grouped = false;
    entry->layout = record.spec.layout;
    entry->data_bytes = record.source_bytes;
    entry->tier = KVT_TIER_REMOTE;
    entry->variant = record.spec.variant;
    entry->record = fetch->buffer.memory;
    entry->record_bytes = record.record_bytes;
    entry->expected = (kvt_record_spec){.key = fetch->key, .generation = fetch->head.generation};
    entry->lent = true;
    return KVT_QUEUED;
}

kvt_status load_hold_remote(kvt_load *load, load_entry *entry, uint64_t deadline_ns)
{
    kvt_status status = load_wait_remote(load, entry, deadline_ns);
    if (status == KVT_OK) status = load_take_remote(load, entry);
    if (status == KVT_QUEUED) return status;
    access_get get = {.remote = entry->fetch, .remote_joined = entry->fetch_joined};
    if (entry->fetch == NULL) return KVT_MISS;
    if (status == KVT_E_CORRUPT && !entry->fetch_joined)
        remote_get_condemn(load->store, entry->fetch);
    remote_get_count(load->store, &get, status, entry->fetch_known, 0);
    fetch_release(load->store->remote, entry->fetch);
    entry->fetch = NULL;
    return status == KVT_E_TIMEOUT ? status : KVT_MISS;
}

void load_end_remote(kvt_load *load, load_entry *entry)
{
    kvt_store *store = load->store;
    kvt_record_info record;
    access_get get = {.remote = entry->fetch, .remote_joined = entry->fetch_joined};
    kvt_status status = entry->status;
    double saved_seconds = 0;
    /* Its layers were decoded out of memory, so nothing but its bytes can have failed. */
    if (status == KVT_MISS) status = KVT_E_CORRUPT;
    if (status == KVT_E_CORRUPT && !entry->fetch_joined) remote_get_condemn(store, entry->fetch);
    if (status == KVT_OK && kvt_record_parse(entry->record, entry->record_bytes, &record) == KVT_OK)
        saved_seconds = remote_get_recompute(store, entry->fetch, &record) -
                        (double)(entry->fetch->finished_ns - entry->fetch->began_ns) * 1e-9;
    if (status == KVT_OK || status == KVT_E_CORRUPT)
        remote_get_count(store, &get, status, entry->fetch_known, saved_seconds);
    const bool keeps = status == KVT_OK && !entry->fetch_joined;
    if (!keeps || !remote_prefetch_keep(store, &get)) fetch_release(store->remote, entry->fetch);
    entry->fetch = NULL;
    entry->lent = false;
    entry->record = NULL;
}
