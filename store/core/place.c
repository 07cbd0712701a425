/* SPDX-License-Identifier: Apache-2.0 */
/*
 * place.c - what the record at a place must be, and places that are no longer an entry's: extents
 * are given back by the last reader, after the deletion of the catalog row was committed. Nobody
 * waits for readers without a bound: a reader may be a get that has landed in a queue whose thread
 * is the one that would wait, or a layered load, which lasts as long as its owner likes.
 *
 * The file decides for no entry whether its place goes; quarantine.c, copies.c and executor.c do.
 *
 * Thread rule: the store's lock, as each function says in place.h.
 */
#include "store/core/kill_note.h"
#include "store/core/store.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* ---- the record ---- */

kvt_record_spec place_expects(const kvt_store *store, const kvt_key *key, const store_place *place)
{
    return (kvt_record_spec){
        .key = *key, .generation = place->generation, .bases = bases_of(store, place->variant)};
}

kvt_status place_check(const kvt_record_spec *expected, const void *record, uint64_t bytes)
{
    kvt_record_info info;
    kvt_status status = kvt_record_verify(record, bytes, &info);
    if (status != KVT_OK) return status;
    const bool same = memcmp(&info.spec.key, &expected->key, sizeof expected->key) == 0 &&
                      info.spec.generation == expected->generation;
    return same ? KVT_OK : KVT_E_CORRUPT;
}

kvt_status place_judge(const kvt_record_spec *expected, const void *record, uint64_t bytes,
                       kvt_status failure)
{
    if (failure != KVT_E_CORRUPT && failure != KVT_E_MISMATCH) return failure;
    const kvt_status status = place_check(expected, record, bytes);
    if (status != KVT_OK) return status;
    return failure == KVT_E_MISMATCH ? failure : KVT_E_UNSUPPORTED;
}

/* ---- places that are left ---- */

void place_drain(kvt_store *store, store_place *place)
{
    assert(store_is_locked(store) && place->left == PLACE_HELD);
    assert(place->tier != KVT_TIER_NONE && store->pools[place->tier] != NULL);
    if (place->readers == 0) {
        store->drained++;
        place_release(store, place);
        pthread_cond_broadcast(&store->changed);
        return;
    }
    /* The row is deleted at once, although gets still read the place: a flush promises that rows
     * are gone and must not wait for readers. Only the extents wait, in a node; without a row, or
     * the memory for the node, both wait. */
    catalog_later *later = NULL;
    place->left = PLACE_LEFT;
    if (place->ticket != NULL && catalog_later_new(&later) == KVT_OK) {
        catalog_delete(store->catalog, place->ticket, NULL);
        place->later = later; /* in the place of the ticket */
        place->left = PLACE_LEFT_LATER;
    }
    /* A visit may last as long as its sequence: its room is lent, and no move waits for it. */
    if (place->visited)
        visit_lose_entry(store, place);
    else
        store->draining[place->tier]++;
}

void place_leave(kvt_store *store, store_place *place)
{
    assert(store_is_locked(store) && place->readers > 0);
    if (--place->readers != 0 || place->left == PLACE_HELD) return;
    assert(store->draining[place->tier] > 0);
    store->draining[place->tier]--;
    store->drained++;
    if (place->left == PLACE_LEFT_LATER) {
        catalog_release(store->catalog, place->later, place->location);
        entry_place_free(&store->memory, place);
    } else {
        place_release(store, place);
    }
    pthread_cond_broadcast(&store->changed);
}

void place_release(kvt_store *store, store_place *place)
{
    assert(place->tier != KVT_TIER_NONE && place->location != NULL);
    assert(store_is_locked(store));
    assert(place->readers == 0);
    if (place->ticket != NULL) {
        catalog_delete(store->catalog, place->ticket, place->location);
    } else {
        tiers_pool_release(store->pools[place->tier], place->location);
    }
    entry_place_free(&store->memory, place);
}

bool place_touches(const store_place *place, uint64_t members)
{
    assert(place->location != NULL);
    for (uint32_t i = 0; i < place->location->share_count; i++) {
        if ((members >> place->location->shares[i].member & 1) != 0) return true;
    }
    return false;
}
