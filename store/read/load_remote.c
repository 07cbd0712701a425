/* SPDX-License-Identifier: Apache-2.0 */
/*
 * load_remote.c - entries of a layered load that are not here: their records are read from other
 * hosts, and then lie in staging as a lent record lies in memory. begin waits for none of them: the
 * reads begin in rounds, and when all reads of the last round have ended a thread of the queue
 * opens the load. When the load ends the background offers the records to the local tiers.
 *
 *     round   those that were larger than was thought, and all others that have room; while no size
 *             is known one alone
 *
 * The records of loads hold at most half of the store's staging, or are one alone; entries beyond
 * that are misses. Records that have come count no longer against the bound of the staging, because
 * they stay until their load ends (staging_keep).
 *
 * Thread rule: one thread at a time, begin's or the task's; load_end_remote is for whoever frees
 * the load.
 */
#include "base/clock.h"
#include "store/background/lifetime.h"
#include "store/core/executor.h"
#include "store/hosts/remote_tier.h"
#include "store/read/load_internal.h"
#include "store/read/lookups.h"

#include <assert.h>
#include <stdlib.h>

/* The read of one entry. */
typedef struct load_ask {
    access_get get;
    kvt_load *load;
    uint32_t tries;     /* begun so often, with ever more room */
    bool over;          /* nothing has come, and there is an outcome */
    kvt_status outcome; /* KVT_QUEUED: its record is lent */
} load_ask;

/* ---- marking ---- */

bool load_may_ask(kvt_load *load)
{
    kvt_store *store = load->store;
    bool any = false;
    for (size_t i = 0; i < load->count; i++) {
        load_entry *entry = &load->entries[i];
        /* Several views are of groups, which are never published. */
        if (entry->status != KVT_MISS || entry->section_count != 1) continue;
        pthread_mutex_lock(&store->lock);
        const bool here = lifetime_shows(store, entry_find_key(&store->table, &entry->key));
        pthread_mutex_unlock(&store->lock);
        const access_get get = {.key = &entry->key};
        if (here || !remote_get_is_worth(store, &get)) continue;
        entry->status = KVT_QUEUED;
        entry->ask = calloc(1, sizeof *entry->ask);
        if (entry->ask == NULL) entry->status = KVT_E_MEMORY;
        any = any || entry->ask != NULL;
    }
    return any;
}

/* ---- answers ---- */

/* Takes over what a record says of its entry. KVT_QUEUED; KVT_E_CORRUPT; KVT_E_VERSION;
 * KVT_E_UNSUPPORTED. */
static kvt_status load_take_record(kvt_load *load, load_entry *entry)
{
    const remote_fetch *fetch = entry->ask->get.remote;
    kvt_record_info record;
    uint64_t bytes = 0;
    kvt_status status =
        kvt_record_parse(fetch->read.buffer.memory, fetch->head.record_bytes, &record);
    if (status == KVT_OK && !remote_get_is_sound(fetch, &record)) status = KVT_E_CORRUPT;
    if (status != KVT_OK) return status;
    if (executor_bound(load->store, &record.spec, &bytes, &entry->scratch_bytes) != KVT_OK)
        return KVT_E_UNSUPPORTED;
    entry->sections[0].layout = record.spec.layout;
    entry->sections[0].first_layer = 0;
    entry->sections[0].packed_at = 0;
    entry->grouped = false;
    entry->layout = record.spec.layout;
    entry->data_bytes = record.source_bytes;
    entry->tier = KVT_TIER_REMOTE;
    entry->variant = record.spec.variant;
    entry->record = fetch->read.buffer.memory;
    entry->record_bytes = record.record_bytes;
    entry->expected = (kvt_record_spec){.key = fetch->key, .generation = fetch->head.generation};
    entry->lent = true;
    return KVT_QUEUED;
}

/* How the read of an entry has ended: KVT_QUEUED, KVT_MISS or KVT_E_TIMEOUT. */
static kvt_status load_take_answer(kvt_load *load, load_entry *entry)
{
    store_remote *remote = load->store->remote;
    access_get *get = &entry->ask->get;
    if (get->remote == NULL) return KVT_MISS;
    kvt_status status = fetch_wait(remote, get->remote, 0);
    if (status == KVT_OK) status = load_take_record(load, entry);
    if (status == KVT_QUEUED) {
        staging_keep(load->store->staging, &get->remote->read.buffer);
        return status;
    }
    if (status == KVT_E_CORRUPT && !get->remote_joined)
        remote_get_condemn(load->store, get->remote);
    remote_get_count(load->store, get, status, get->remote_known, 0);
    read_drop(load->store, &get->remote->read);
    get->remote = NULL;
    return status == KVT_E_TIMEOUT ? status : KVT_MISS;
}

/* ---- rounds ---- */

/* All reads of a round have ended, and their beginning has: a thread of the queue goes on. */
static void load_asked(void *context)
{
    load_ask *ask = context;
    kvt_load *load = ask->load;
    if (atomic_fetch_sub(&load->asking, 1) == 1) queue_post(load->queue, &load->ask_task);
}

/* Begins the read of an entry. KVT_OK; KVT_BUSY: there is no staging now; KVT_MISS. */
static kvt_status load_ask_one(kvt_load *load, load_entry *entry)
{
    load_ask *ask = entry->ask;
    if (ask->tries == FETCH_TRIES) return KVT_MISS;
    ask->load = load;
    ask->get = (access_get){.key = &entry->key,
                            .deadline_ns = load->ask_deadline_ns,
                            .began_ns = load->began_ns,
                            .waiter = {.ended = load_asked, .context = ask}};
    atomic_fetch_add(&load->asking, 1);
    const kvt_status status = remote_get_start(load->store, &ask->get);
    if (status != KVT_OK) atomic_fetch_sub(&load->asking, 1);
    ask->tries += status == KVT_OK;
    return status;
}

/* Looks at the reads that have ended: an entry that has not come lets go of its staging, and a
 * record that was larger than expected is asked for again. Returns how many begin. *starved_out:
 * one has found no staging. */
static uint32_t load_ask_larger(kvt_load *load, bool *starved_out)
{
    store_remote *remote = load->store->remote;
    const uint64_t most = load->ask_most;
    uint32_t begun = 0;
    uint64_t held = 0;
    for (size_t i = 0; i < load->ask_next; i++) {
        load_entry *entry = &load->entries[i];
        load_ask *ask = entry->ask;
        if (ask == NULL || ask->over || ask->tries == 0) continue;
        kvt_status status = KVT_E_SPACE;
        if (ask->get.remote != NULL) status = fetch_wait(remote, ask->get.remote, 0);
        if (status == KVT_E_SPACE && ask->tries < FETCH_TRIES) {
            if (ask->get.remote != NULL) (void)remote_get_land(load->store, &ask->get);
            status = load_ask_one(load, entry);
            begun += status == KVT_OK;
            *starved_out = *starved_out || status == KVT_BUSY;
            if (status == KVT_OK) held += ask->get.remote->read.buffer.bytes;
            if (status == KVT_OK || status == KVT_BUSY) continue;
        } else if (status == KVT_OK) {
            held += ask->get.remote->read.buffer.bytes;
            continue;
        }
        ask->outcome = load_take_answer(load, entry);
        ask->over = true;
    }
    load->ask_room = held < most ? most - held : 0;
    return begun;
}

/* Begins the reads of entries that have not been asked for, as far as there is room. Returns how
 * many. *starved_out: the first one has found no staging. */
static uint32_t load_ask_further(kvt_load *load, bool *starved_out)
{
    store_remote *remote = load->store->remote;
    const uint64_t most = load->ask_most;
    uint32_t begun = 0;
    pthread_mutex_lock(&remote->lock);
    const bool known = remote_costs_size(remote, FETCH_UNKNOWN) != NULL;
    pthread_mutex_unlock(&remote->lock);
    for (; load->ask_next < load->count; load->ask_next++) {
        load_entry *entry = &load->entries[load->ask_next];
        if (entry->ask == NULL) continue;
        /* The first one ever says how much room the others need. */
        if (begun == 1 && !known) return begun;
        const uint64_t bytes = fetch_staging_bytes(remote, FETCH_UNKNOWN);
        const bool first = most != 0 && load->ask_room == most; /* it has what there is */
        kvt_status status = bytes > load->ask_room && !first ? KVT_MISS : KVT_OK;
        if (status == KVT_OK) status = load_ask_one(load, entry);
        *starved_out = *starved_out || (status == KVT_BUSY && first);
        if (status == KVT_BUSY && first) return begun;
        if (status != KVT_OK) break;
        load->ask_room -= bytes < load->ask_room ? bytes : load->ask_room;
        begun++;
    }
    load->ask_next = load->count;
    return begun;
}

/* Begins rounds until one is under way. True: there is none left. */
static bool load_ask_rounds(kvt_load *load)
{
    bool starved;
    uint32_t begun;
    do {
        starved = false;
        atomic_store(&load->asking, 1);
        begun = load_ask_larger(load, &starved);
        begun += load_ask_further(load, &starved);
        /* Another one ends last, and its task goes on: nothing of the load is touched. */
        if (atomic_fetch_sub(&load->asking, 1) != 1) return false;
    } while (begun != 0);
    if (!starved) return true;
    pthread_mutex_lock(&load->lock);
    load->ask_waits = true;
    queue_note_starved(load->queue);
    pthread_mutex_unlock(&load->lock);
    return false;
}

void load_ask_again(kvt_load *load)
{
    if (!load->ask_waits || load->ending) return;
    load->ask_waits = false;
    queue_post(load->queue, &load->ask_task);
}

void load_take_answers(kvt_load *load)
{
    for (size_t i = 0; i < load->count; i++) {
        load_ask *ask = load->entries[i].ask;
        if (ask != NULL && !ask->over) ask->outcome = load_take_answer(load, &load->entries[i]);
    }
}

void load_use_answers(kvt_load *load)
{
    for (size_t i = 0; i < load->count; i++) {
        load_entry *entry = &load->entries[i];
        if (entry->ask == NULL) continue;
        entry->status = entry->ask->outcome;
        if (entry->status == KVT_QUEUED) continue;
        free(entry->ask);
        entry->ask = NULL;
    }
    load->asks = false;
}

/* Opens the load, and tells those who wait. No lock held. */
static void load_open_late(kvt_load *load)
{
    kvt_status status = KVT_OK;
    load_take_answers(load);
    pthread_mutex_lock(&load->lock);
    if (!load->ending) {
        load_use_answers(load);
        status = load_open(load);
        load->empty = status != KVT_OK;
        for (size_t i = 0; status == KVT_E_MEMORY && i < load->count; i++)
            if (load->entries[i].status == KVT_QUEUED) load->entries[i].status = status;
    }
    load->asks = false;
    pthread_cond_broadcast(&load->changed);
    pthread_mutex_unlock(&load->lock);
    if (status != KVT_OK && load->options.announced != NULL)
        load->options.announced(load->options.announced_context, 0);
}

/* The task: all reads of a round have ended, or there may be staging. */
static void load_ask_run(void *context)
{
    kvt_load *load = context;
    atomic_fetch_add(&load->busy, 1);
    pthread_mutex_lock(&load->lock);
    const bool live = !load->ending;
    load->ask_steps++;
    if (!live) load->asks = false;
    pthread_mutex_unlock(&load->lock);
    if (live && load_ask_rounds(load)) load_open_late(load);
    pthread_mutex_lock(&load->lock);
    load->ask_steps--;
    pthread_cond_broadcast(&load->changed);
    pthread_mutex_unlock(&load->lock);
    atomic_fetch_sub(&load->busy, 1);
}

bool load_ask_others(kvt_load *load)
{
    store_remote *remote = load->store->remote;
    const uint64_t end_ns = base_clock_ns() + remote->deadline_ns;
    assert(load->asks && load->ask_next == 0);
    load->ask_most = staging_room_to_keep(load->store->staging);
    load->ask_task = (queue_task){.run = load_ask_run, .context = load};
    load->ask_deadline_ns = end_ns < load->options.deadline_ns ? end_ns : load->options.deadline_ns;
    load->reads = true;
    return load_ask_rounds(load);
}

/* ---- the end ---- */

void load_stop_asking(kvt_load *load)
{
    bool last = false;
    pthread_mutex_lock(&load->lock);
    assert(load->ending);
    while (load->ask_steps != 0)
        pthread_cond_wait(&load->changed, &load->lock);
    if (load->ask_waits) load->asks = false;
    const bool asks = load->asks;
    pthread_mutex_unlock(&load->lock);
    /* No round begins any more. Either the last read that ends posts the task, or it is taken off
     * here. */
    for (size_t i = 0; asks && i < load->count; i++) {
        load_ask *ask = load->entries[i].ask;
        if (ask != NULL && ask->get.remote != NULL &&
            read_give_up(load->store, &ask->get.remote->read, &ask->get.waiter, false))
            last = atomic_fetch_sub(&load->asking, 1) == 1;
    }
    pthread_mutex_lock(&load->lock);
    if (last) load->asks = false;
    while (load->asks || load->ask_steps != 0)
        pthread_cond_wait(&load->changed, &load->lock);
    pthread_mutex_unlock(&load->lock);
}

/* Lets go of a read that has brought nothing that was used. */
static void load_drop_remote(kvt_load *load, load_entry *entry)
{
    if (entry->ask->get.remote != NULL) read_drop(load->store, &entry->ask->get.remote->read);
    free(entry->ask);
    entry->ask = NULL;
}

void load_end_remote(kvt_load *load, load_entry *entry)
{
    kvt_store *store = load->store;
    kvt_record_info record;
    access_get get = entry->ask->get;
    const remote_fetch *fetch = get.remote;
    kvt_status status = entry->status;
    double saved_seconds = 0;
    if (!entry->lent) {
        load_drop_remote(load, entry);
        return;
    }
    if (status == KVT_MISS) {
        status = place_check(&entry->expected, entry->record, entry->record_bytes);
        if (status != KVT_E_CORRUPT) status = KVT_E_UNSUPPORTED;
    }
    if (status == KVT_E_CORRUPT && !get.remote_joined) remote_get_condemn(store, fetch);
    if (status == KVT_OK && kvt_record_parse(entry->record, entry->record_bytes, &record) == KVT_OK)
        saved_seconds = remote_get_recompute(store, fetch, &record) -
                        (double)(fetch->finished_ns - fetch->began_ns) * 1e-9;
    if (status == KVT_OK || status == KVT_E_CORRUPT)
        remote_get_count(store, &get, status, get.remote_known, saved_seconds);
    if (status == KVT_OK && !get.remote_joined && remote_prefetch_keep(store, &get))
        entry->ask->get.remote = NULL;
    entry->lent = false;
    entry->record = NULL;
    load_drop_remote(load, entry);
}
