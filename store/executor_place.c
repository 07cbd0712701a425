/* SPDX-License-Identifier: Apache-2.0 */
/*
 * executor_place.c - places that are given back: when their last reader has gone, with their rows.
 *
 * Thread rule: the store's lock, as each function says in store.h.
 */
#include "store/kill_note.h"
#include "store/store.h"

#include <assert.h>
#include <stdlib.h>

/*
 * The row of a place that is still read is deleted before its readers have gone: whatever a flush
 * promises from now on must not wait for them. Only the extents wait. NULL: there is no reader, no
 * row, or no memory to do it in two steps.
 */
static catalog_later *executor_delete_row_now(kvt_store *store, store_place *place)
{
    catalog_later *later = NULL;
    if (place->readers == 0 || place->ticket == NULL) return NULL;
    if (catalog_later_new(&later) != KVT_OK) return NULL;
    catalog_delete(store->catalog, place->ticket, NULL);
    place->ticket = NULL;
    return later;
}

void executor_drain_place(kvt_store *store, store_place *place)
{
    kvt_tier tier = place->tier;
    catalog_later *later = executor_delete_row_now(store, place);
    store->draining[tier]++;
    while (place->readers != 0) {
        pthread_cond_wait(&store->changed, &store->lock);
    }
    store->draining[tier]--;
    store->drained++;
    if (later != NULL) {
        catalog_release(store->catalog, later, place->location);
        free(place);
    } else {
        executor_release_place(store, place);
    }
    pthread_cond_broadcast(&store->changed);
}

void executor_release_place(kvt_store *store, store_place *place)
{
    assert(place->readers == 0);
    if (place->ticket != NULL) {
        catalog_delete(store->catalog, place->ticket, place->location);
    } else {
        tiers_pool_release(store->pools[place->tier], place->location);
    }
    free(place);
}

void executor_drop_entry(kvt_store *store, store_entry *entry)
{
    entry_set_state(entry, ENTRY_RESIDENT, ENTRY_LEAVING);
    KILL_NOTE(KILL_NOTE_DROPPED, &entry->key, entry->place->tier);
    store_place *place = entry->place;
    entry->load = NULL;
    (void)!kvt_policy_remove(store->policy, entry->handle);
    backoff_forget(entry);
    store_place *copy = copies_detach(store, entry);
    entry->place = NULL; /* others look at the entry while this waits for readers */
    executor_drain_place(store, place);
    if (copy != NULL) executor_drain_place(store, copy);
    entry_erase(&store->table, entry);
    pthread_cond_broadcast(&store->changed);
}
