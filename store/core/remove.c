/* SPDX-License-Identifier: Apache-2.0 */
/*
 * remove.c - delete and clear: entries that a caller wants gone, wherever they are.
 *
 *     state          what removing does
 *     ARRIVING       nothing: the put has not returned
 *     STAGED         calls the hand-over off, or waits for the executor that has begun it
 *     RESIDENT       drops the entry with its copy
 *     MOVING         calls off the plan that waits for the background, or waits for the move
 *     LEAVING        waits: the entry goes, or comes back when its plan is aborted
 *     QUARANTINED    drops the entry, whose row would bring it back with its device
 *
 * What a lease holds stays, and the caller is told.
 *
 * Thread rule: any thread; the control lock, released while waiting.
 */
#include "base/struct_size.h"
#include "store/background/lifetime.h"
#include "store/core/handover.h"
#include "store/core/plans.h"
#include "store/hosts/remote_tier.h"
#include "store/watch/watching.h"

#include <assert.h>
#include <kvterrace/key.h>
#include <kvterrace/names.h>

#define REMOVE_FILTER_LEAST STRUCT_SIZE_THROUGH(kvt_clear_filter, space)

/* Whether a filter covers an entry; NULL covers all. */
static bool remove_covers(const kvt_clear_filter *filter, const store_entry *entry)
{
    return spaces_filter_covers(filter, &entry->key, entry->tenant);
}

/* The outcome of removing a key. */
typedef struct remove_result {
    bool held;   /* nothing: a lease holds the entry */
    bool stored; /* an entry that lookups saw */
    bool unseen; /* one that they did not: on a device that is gone, or past its lifetime */
    store_staged *called_off;
} remove_result;

/* Tries to remove the entry of a key. Returns the entry when it is in motion, NULL when the try is
 * the last. Lock held. */
static const store_entry *remove_try(kvt_store *store, const kvt_key *key,
                                     const kvt_clear_filter *filter, remove_result *result)
{
    assert(result->called_off == NULL && !result->stored);
    /* In each try: an entry whose device went while this waited for a move lies there now, and
     * would come back with the device. */
    const store_entry *aside = entry_find_key(&store->quarantined, key);
    if (aside != NULL && remove_covers(filter, aside)) {
        quarantine_forget_key(store, key);
        result->unseen = true;
    }
    store_entry *entry = entry_find_key(&store->table, key);
    if (entry == NULL || entry->state == ENTRY_ARRIVING) return NULL;
    if (!remove_covers(filter, entry)) return NULL;
    lease_expire(store);
    result->held = entry->leased;
    if (result->held) return NULL;
    bool over = lifetime_is_over(store, entry);
    if (entry->state == ENTRY_STAGED) result->called_off = handover_cancel(store, entry);
    if (result->called_off == NULL) {
        /* In motion: the caller waits, and looks again. */
        if (entry->state != ENTRY_RESIDENT) return entry;
        quarantine_drop_entry(store, entry, KVT_REMOVED_DELETED);
    }
    if (over)
        result->unseen = true;
    else
        result->stored = true;
    return NULL;
}

/* Removes the entry of a key, which the filter must cover. No lock held. */
static remove_result remove_key(kvt_store *store, const kvt_key *key,
                                const kvt_clear_filter *filter)
{
    remove_result result = {0};
    const store_entry *moving;
    pthread_mutex_lock(&store->lock);
    const store_entry *before = entry_find_key(&store->table, key);
    const uint32_t tenant = before != NULL ? before->tenant : spaces_tenant(store, key);
    const uint64_t record_bytes =
        before != NULL && before->place != NULL ? before->place->record_bytes : 0;
    while ((moving = remove_try(store, key, filter, &result)) != NULL) {
        /* STAGED and MOVING come to rest; LEAVING ends, or comes back when its plan is aborted. */
        if (!plan_cancel(store, moving->handle)) pthread_cond_wait(&store->changed, &store->lock);
    }
    /* Copies of what a clear removes count no longer anyway. */
    if (store->remote != NULL && !result.held && filter == NULL)
        publisher_delete(store, key, tenant, record_bytes);
    pthread_mutex_unlock(&store->lock);
    assert(!result.held || !result.stored);
    assert(result.called_off == NULL || result.stored || result.unseen);
    if (result.called_off != NULL) handover_discard(store, result.called_off);
    return result;
}

kvt_status kvt_store_delete(kvt_store *store, const kvt_key *key)
{
    const base_store_calls *other = base_store_calls_of(store);
    if (other != NULL) return BASE_CALL(other, delete, store, key);
    if (!fork_guard_is_ours(store)) return KVT_E_STATE;
    if (key == NULL) return KVT_E_ARGUMENT;
    const uint64_t began_ns = store_now_ns(store);
    const remove_result result = remove_key(store, key, NULL);
    kvt_status status = result.held ? KVT_BUSY : result.stored ? KVT_OK : KVT_MISS;
    const kvt_operation operation =
        watch_operation(store, KVT_OPERATION_DELETE, key, began_ns, status);
    watch_note(store, &operation);
    return status;
}

/* ---- clear ---- */

#define REMOVE_STEP 256u /* entries looked at under one hold of the lock */

/* A clear, and its walk over one of the store's tables. */
typedef struct remove_walk {
    const kvt_clear_filter *filter;
    uint64_t removed;
    bool held; /* leases hold some of it */
    const entry_table *table;
    size_t bucket;
    uint32_t count;
    kvt_key keys[REMOVE_STEP];
} remove_walk;

/* Collects the keys that the filter covers in the next buckets. False at the end of the table.
 * Buckets that are added meanwhile lie behind the walk, so no entry is passed over. Lock held. */
static bool remove_collect(remove_walk *walk)
{
    const entry_table *table = walk->table;
    uint32_t looked = 0;
    walk->count = 0;
    while (looked < REMOVE_STEP && walk->bucket < table->bucket_count) {
        const store_entry *entry = table->buckets[walk->bucket];
        for (looked++; entry != NULL && walk->count < REMOVE_STEP; entry = entry->next) {
            looked++;
            if (entry->state == ENTRY_ARRIVING || !remove_covers(walk->filter, entry)) continue;
            walk->keys[walk->count++] = entry->key;
        }
        if (entry != NULL) return true; /* the rest of this chain is for the next step */
        walk->bucket++;
    }
    assert(walk->count <= REMOVE_STEP);
    return walk->bucket < table->bucket_count;
}

/* Removes what the filter covers in one table. */
static void remove_from_table(kvt_store *store, const entry_table *table, remove_walk *walk)
{
    walk->table = table;
    walk->bucket = 0;
    bool more = true;
    while (more) {
        pthread_mutex_lock(&store->lock);
        more = remove_collect(walk);
        pthread_mutex_unlock(&store->lock);
        for (uint32_t i = 0; i < walk->count; i++) {
            const remove_result result = remove_key(store, &walk->keys[i], walk->filter);
            walk->removed += (uint64_t)result.stored + (uint64_t)result.unseen;
            walk->held |= result.held;
        }
    }
}

/* A number that changes when an entry goes from one table to the other. */
static uint64_t remove_crossings(kvt_store *store)
{
    pthread_mutex_lock(&store->lock);
    uint64_t crossings = store->counters.quarantined + store->counters.readmitted;
    pthread_mutex_unlock(&store->lock);
    return crossings;
}

/* The copies for other hosts that a filter covers count no longer. */
static void remove_copies(kvt_store *store, const kvt_clear_filter *filter)
{
    pthread_mutex_lock(&store->lock);
    publisher_clear(store, filter);
    pthread_mutex_unlock(&store->lock);
}

kvt_status kvt_store_clear(kvt_store *store, const kvt_clear_filter *filter, uint64_t *removed_out)
{
    const base_store_calls *other = base_store_calls_of(store);
    if (other != NULL) return BASE_CALL(other, clear, store, filter, removed_out);
    if (!fork_guard_is_ours(store)) return KVT_E_STATE;
    if (removed_out != NULL) *removed_out = 0;
    kvt_clear_filter whole = {.struct_size = sizeof whole};
    remove_walk walk = {.removed = 0};
    if (filter != NULL)
        walk.filter = struct_size_in(filter, &whole, sizeof whole, REMOVE_FILTER_LEAST);
    if (walk.filter == NULL || !spaces_filter_is_sound(walk.filter)) return KVT_E_ARGUMENT;
    /* Before: no get brings back what is removed. Once more behind: nothing that was published from
     * here meanwhile counts. */
    remove_copies(store, walk.filter);
    /* An entry that crossed between the two walks was seen by neither: both are made again. */
    uint64_t crossings = remove_crossings(store), before;
    do {
        before = crossings;
        walk.held = false;
        remove_from_table(store, &store->table, &walk);
        remove_from_table(store, &store->quarantined, &walk);
        crossings = remove_crossings(store);
    } while (crossings != before);
    remove_copies(store, walk.filter);
    if (removed_out != NULL) *removed_out = walk.removed;
    return walk.held ? KVT_BUSY : KVT_OK;
}
