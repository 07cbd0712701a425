/* SPDX-License-Identifier: Apache-2.0 */
/*
 * executor_publish.c - the stages after the write: catalog row and place are prepared, then the
 * entry gets the place, keeps the record as a copy, goes onto its copy, or leaves.
 *
 * Thread rule: as executor.c; the control lock for the moments in which shared state is touched.
 */
#include "store/background/lifetime.h"
#include "store/core/executor_internal.h"
#include "store/core/kill_note.h"
#include "store/core/store_offer.h"
#include "store/hosts/remote_tier.h"
#include "store/watch/watching.h"

#include <assert.h>
#include <stdlib.h>

catalog_row executor_row_of(const kvt_store *store, const store_entry *entry,
                            const store_place *place)
{
    return (catalog_row){.key = entry->key,
                         .serial = place->serial,
                         .generation = place->generation,
                         .parent = entry->parent,
                         .has_parent = entry->has_parent,
                         .layout = entry->kind->layout,
                         .groups = entry->kind->groups,
                         .group_count = entry->kind->group_count,
                         .first_position = entry->first_position,
                         .recompute_seconds = (double)entry->recompute_seconds,
                         .variant = place->variant,
                         .record_bytes = place->record_bytes,
                         .expires_ns = lifetime_to_calendar(store, entry),
                         .tenant = entry->tenant,
                         .class_id = entry->class_id,
                         .request_tokens = entry->request_tokens};
}

/* Allocates everything that publishing needs, so that publishing cannot fail for memory. Releases
 * the staging buffer, which readers may wait for. */
kvt_status stage_prepare(store_op *op)
{
    assert(op->place == NULL && op->location != NULL && op->serial != 0);
    assert(op->record_bytes <= op->location->bytes);
    op->place = entry_place_new(&op->store->memory, op->move->to_variant);
    if (op->place == NULL) return KVT_E_MEMORY;
    op->place->tier = (uint8_t)op->tier;
    op->place->serial = op->serial;
    op->place->generation = op->spec.generation;
    op->place->record_bytes = op->record_bytes;
    op->place->scratch_bytes = op->scratch_bytes;
    staging_release(op->store->staging, &op->staging);
    if (op->store->catalog == NULL || op->tier != KVT_TIER_SSD) return KVT_OK;
    /* The catalog row of a record on SSD, and the ticket for its deletion. */
    assert(op->row == NULL && op->place->ticket == NULL && op->tier == KVT_TIER_SSD);
    const store_entry *entry = op->entry;
    kvt_status status = catalog_ticket_new(&entry->key, op->place->serial, &op->place->ticket);
    if (status != KVT_OK) return status;
    catalog_row row = executor_row_of(op->store, entry, op->place);
    row.location_bytes = tiers_location_pack(op->location, NULL, 0);
    row.location = malloc(row.location_bytes);
    if (row.location == NULL) return KVT_E_MEMORY;
    (void)tiers_location_pack(op->location, row.location, row.location_bytes);
    status = catalog_insertion_new(&row, &op->row);
    free(row.location);
    return status;
}

/* Settles the place that publishing replaced. After a promotion the place on SSD stays as the
 * entry's copy when copies have room; every other old place is drained. A copy of an entry that is
 * now on SSD itself is dropped. Lock held. */
static void executor_leave_place(kvt_store *store, store_entry *entry, store_place *old)
{
    assert(entry->place != NULL && entry->place != old && entry->state == ENTRY_RESIDENT);
    kvt_tier tier = entry->place->tier;
    if (tier == KVT_TIER_SSD) {
        copies_drop(store, entry); /* of another variant than the stored one */
    } else if (old->tier == KVT_TIER_SSD && copies_attach(store, entry, old)) {
        KILL_NOTE(KILL_NOTE_COPIED, &entry->key, KVT_TIER_SSD);
        store->counters.copies.kept++;
        copies_trim(store);
        return;
    } else if (old->tier == KVT_TIER_SSD) {
        KILL_NOTE(KILL_NOTE_GIVES_WAY, &entry->key, KVT_TIER_SSD);
    }
    place_drain(store, old);
}

/* Makes the new place the entry's: the policy's commit first, because it alone can still refuse. */
kvt_status stage_publish(store_op *op)
{
    assert(op->place != NULL && op->location != NULL);
    assert(op->staging.memory == NULL);
    kvt_store *store = op->store;
    store_entry *entry = op->entry;
    uint64_t actual[KVT_TIER_PLACES] = {0};
    actual[op->tier] = op->record_bytes;
    pthread_mutex_lock(&store->lock);
    kvt_status status = KVT_OK;
    if (op->planned) status = kvt_policy_commit(store->policy, op->move->id, actual);
    op->no_room = status == KVT_E_SPACE;
    if (status == KVT_OK) {
        store_place *old = entry->place;
        const bool staged = entry->state == ENTRY_STAGED;
        assert((old != NULL) == (entry->state == ENTRY_MOVING));
        op->place->location = op->location;
        entry->place = op->place;
        /* Later gets read the record; they must not join a read of the old place. */
        entry->read = NULL;
        op->location = NULL;
        op->place = NULL;
        if (op->record_bytes > store->record_bytes_max) store->record_bytes_max = op->record_bytes;
        if (op->row != NULL) catalog_insert(store->catalog, op->row);
        op->row = NULL;
        KILL_NOTE(old == NULL ? KILL_NOTE_PLACED : KILL_NOTE_MOVED, &entry->key, op->tier);
        KILL_POINT("publish: row queued");
        if (old != NULL) {
            if (op->tier < old->tier) store->counters.promotions++;
            if (op->tier > old->tier) store->counters.demotions++;
            old->readers--;
            op->source = NULL;
        }
        entry_set_state(entry, entry->state, ENTRY_RESIDENT);
        lease_settle(store, entry);
        backoff_note_success(store, entry);
        if (op->record_bytes > store_bytes_of(op->move->to_bytes)) store_resize(store, entry);
        pthread_cond_broadcast(&store->changed);
        /* Tell the readers of events of an entry that has a new place. Before that it was at
         * another one, read from the staging of its put, or not to be found. Lock held. */
        static const kvt_variant raw = {.codec = KVT_CODEC_RAW};
        if (old != NULL)
            watch_note_moved(op->store, op->entry, old->tier, old->variant);
        else if (staged)
            watch_note_moved(op->store, op->entry, KVT_TIER_DRAM, raw);
        else
            watch_note_stored(op->store, op->entry);
        if (old != NULL) executor_leave_place(store, entry, old);
        executor_settle_debt(op);
        if (store->remote != NULL && op->move->kind == KVT_MOVE_PUT)
            publisher_note_stored(store, entry);
    }
    pthread_mutex_unlock(&store->lock);
    return status;
}

/* change: the copy that is on SSD already becomes the place; not a byte is written. */
kvt_status stage_adopt(store_op *op)
{
    assert(op->source != NULL && op->planned);
    kvt_store *store = op->store;
    store_entry *entry = op->entry;
    store_place *old = op->source;
    uint64_t actual[KVT_TIER_PLACES] = {0};
    pthread_mutex_lock(&store->lock);
    actual[KVT_TIER_SSD] = entry->copy->record_bytes;
    kvt_status status = kvt_policy_commit(store->policy, op->move->id, actual);
    if (status == KVT_OK) {
        entry->place = copies_detach(store, entry);
        entry->read = NULL; /* later gets must not join a read of the old place */
        store->counters.demotions++;
        store->counters.copies.demotions++;
        KILL_NOTE(KILL_NOTE_MOVED, &entry->key, KVT_TIER_SSD);
        old->readers--;
        op->source = NULL;
        entry_set_state(entry, ENTRY_MOVING, ENTRY_RESIDENT);
        lease_settle(store, entry);
        backoff_note_success(store, entry);
        watch_note_moved(store, entry, old->tier, old->variant);
        pthread_cond_broadcast(&store->changed);
        place_drain(store, old);
    } else {
        copies_let_go(store, entry);
    }
    pthread_mutex_unlock(&store->lock);
    return status;
}

/* copy: the record becomes the entry's copy on SSD, and the place above stays the entry's place.
 * KVT_E_GONE: the copy could not be attached. */
kvt_status stage_keep(store_op *op)
{
    assert(!op->planned && op->source != NULL && op->tier == KVT_TIER_SSD);
    assert(op->place != NULL && op->row != NULL);
    kvt_store *store = op->store;
    pthread_mutex_lock(&store->lock);
    op->place->location = op->location;
    bool kept = copies_attach(store, op->entry, op->place);
    if (kept) {
        catalog_insert(store->catalog, op->row);
        KILL_NOTE(KILL_NOTE_COPIED, &op->entry->key, KVT_TIER_SSD);
        KILL_POINT("copy: row queued");
        op->row = NULL;
        op->location = NULL;
        op->place = NULL;
        op->source->readers--;
        op->source = NULL;
        entry_set_state(op->entry, ENTRY_MOVING, ENTRY_RESIDENT);
        lease_settle(store, op->entry);
        executor_settle_debt(op);
        pthread_cond_broadcast(&store->changed);
    }
    pthread_mutex_unlock(&store->lock);
    return kept ? KVT_OK : KVT_E_GONE;
}

/* evict: the entry leaves the table, or goes onto its copy. Gets have not found the entry since the
 * plan was made; gets that began earlier finish first. An eviction from HBM or DRAM is to free room
 * there, so a copy on SSD survives as the entry's place while SSD room is free. */
kvt_status stage_unlist(store_op *op)
{
    assert(op->move->kind == KVT_MOVE_EVICT && op->source == NULL);
    kvt_store *store = op->store;
    pthread_mutex_lock(&store->lock);
    store_entry *entry = op->entry;
    entry->read = NULL;
    kvt_status status = kvt_policy_commit(store->policy, op->move->id, NULL);
    assert(status == KVT_OK);
    if (!copies_outlast(store, entry)) {
        store_place *place = entry->place;
        watch_note_removed(store, entry, KVT_REMOVED_EVICTED);
        KILL_NOTE(KILL_NOTE_DROPPED, &entry->key, place->tier);
        entry->place = NULL;
        place_drain(store, place);
        copies_drop(store, entry);
        entry_erase(&store->table, entry);
        store->counters.evictions++;
        pthread_cond_broadcast(&store->changed);
    }
    pthread_mutex_unlock(&store->lock);
    return status;
}
