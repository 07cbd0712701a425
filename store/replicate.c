/* SPDX-License-Identifier: Apache-2.0 */
/*
 * replicate.c - second copies of hot records in their tier (docs/TIERS.md, Replicas).
 *
 * A replica is a place that hangs on another place and takes only room that nothing else wants:
 * neither the policy nor the catalog knows it. Reads warm a place; the background copies hot ones,
 * within the tier's budget of background bytes and the pool's share for replicas. It goes when room
 * is short, when its place goes, or when its own member leaves.
 *
 * Who reads from a replica is a reader of its original as well, so a place without readers has a
 * replica without readers.
 *
 * Thread rule: as each function says in store.h.
 */
#include "store/store.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define REPLICATE_HALF_LIFE_NS 5e9                  /* of a place's heat */
#define REPLICATE_HOT          8.0                  /* reads within about that time */
#define REPLICATE_COLD         2.0                  /* gives its room to a hot one */
#define REPLICATE_PAUSE_NS     UINT64_C(1000000000) /* without new ones after room was short */

/* ---- the tier's list, by last read; lock held ---- */

static void replicate_unlink(kvt_store *store, store_place *replica)
{
    store_replicas *replicas = &store->replicas[replica->tier];
    if (replica->older != NULL) {
        replica->older->newer = replica->newer;
    } else {
        replicas->oldest = replica->newer;
    }
    if (replica->newer != NULL) {
        replica->newer->older = replica->older;
    } else {
        replicas->newest = replica->older;
    }
}

static void replicate_link_newest(kvt_store *store, store_place *replica)
{
    store_replicas *replicas = &store->replicas[replica->tier];
    replica->older = replicas->newest;
    replica->newer = NULL;
    if (replicas->newest != NULL) {
        replicas->newest->newer = replica;
    } else {
        replicas->oldest = replica;
    }
    replicas->newest = replica;
}

static store_place *replicate_detach(kvt_store *store, store_place *place)
{
    store_place *replica = place->replica;
    replicate_unlink(store, replica);
    place->replica = NULL;
    return replica;
}

/* ---- heat ---- */

static double replicate_heat(const store_place *place, uint64_t now_ns)
{
    return place->heat * exp2(-(double)(now_ns - place->heat_ns) / REPLICATE_HALF_LIFE_NS);
}

void replicate_note_read(kvt_store *store, store_entry *entry)
{
    store_place *place = entry->place;
    store_replicas *replicas = &store->replicas[place->tier];
    if (!replicas->wanted) return;
    uint64_t now_ns = store_now_ns(store);
    place->heat = replicate_heat(place, now_ns) + 1;
    place->heat_ns = now_ns;
    if (place->heat < REPLICATE_HOT || place->replica != NULL) return;
    if (entry->state != ENTRY_RESIDENT || now_ns < replicas->resume_ns) return;
    if (replicas->count == STORE_RELAYOUTS_QUEUED) return;
    for (uint32_t i = 0; i < replicas->count; i++) {
        if (replicas->handles[i] == entry->handle) return;
    }
    replicas->handles[replicas->count++] = entry->handle;
}

/* ---- reading ---- */

/* Lock held. */
static store_place *replicate_hold(kvt_store *store, store_place *place)
{
    store_place *replica = place->replica;
    if (replica == NULL) return NULL;
    replica->readers++;
    replicate_unlink(store, replica);
    replicate_link_newest(store, replica);
    return replica;
}

/* Once more, from the copies that did not fail. The first try may have left its buffer to a device
 * that does not answer. */
static kvt_status replicate_read_again(kvt_store *store, kvt_tier tier, tiers_transfer *read,
                                       uint64_t buffer_bytes, uint64_t deadline_ns,
                                       const flight_watch *watch, staging_buffer *buffer,
                                       flight_report *report)
{
    read->avoid = report->failed;
    if (buffer->memory == NULL) {
        kvt_status status = staging_take_now(store->staging, buffer_bytes, buffer);
        if (status != KVT_OK) return status;
    }
    read->buffer = buffer->memory;
    return flight_run(store->staging, store->pools[tier], read, deadline_ns, watch, buffer, report);
}

kvt_status replicate_read(kvt_store *store, store_place *place, uint64_t deadline_ns,
                          learn_flight *flight, staging_buffer *buffer, uint64_t *read_ns_out)
{
    kvt_tier tier = place->tier;
    uint64_t buffer_bytes = buffer->bytes;
    store_place *replica = NULL;
    if (store->replicas[tier].wanted) {
        pthread_mutex_lock(&store->lock);
        replica = replicate_hold(store, place);
        pthread_mutex_unlock(&store->lock);
    }
    flight_report report;
    const flight_watch *watch = learn_watch(store, tier, KVT_IO_READ, flight);
    tiers_transfer read = {.kind = KVT_IO_READ,
                           .location = place->location,
                           .replica = replica != NULL ? replica->location : NULL,
                           .buffer = buffer->memory,
                           .bytes = place->record_bytes};
    kvt_status status =
        flight_run(store->staging, store->pools[tier], &read, deadline_ns, watch, buffer, &report);
    if (status != KVT_OK && status != KVT_E_TIMEOUT && replica != NULL) {
        status = replicate_read_again(store, tier, &read, buffer_bytes, deadline_ns, watch, buffer,
                                      &report);
    }
    if (read_ns_out != NULL) *read_ns_out = report.finished_ns - report.started_ns;
    if (replica == NULL) return status;
    pthread_mutex_lock(&store->lock);
    if (report.used_replica) store->counters.replica_reads[tier]++;
    replica->readers--;
    pthread_cond_broadcast(&store->changed);
    pthread_mutex_unlock(&store->lock);
    return status;
}

/* ---- dropping ---- */

void replicate_forget(kvt_store *store, store_place *place)
{
    if (place->replica == NULL) return;
    executor_release_place(store, replicate_detach(store, place));
}

void replicate_drop(kvt_store *store, store_place *place)
{
    if (place->replica == NULL) return;
    executor_drain_place(store, replicate_detach(store, place));
}

bool replicate_reclaim(kvt_store *store, kvt_tier tier, uint64_t bytes, uint64_t drained)
{
    store_replicas *replicas = &store->replicas[tier];
    if (!replicas->wanted) return false;
    uint64_t freed = 0;
    pthread_mutex_lock(&store->lock);
    while (replicas->oldest != NULL && freed < bytes) {
        freed += replicas->oldest->location->bytes;
        replicate_drop(store, replicas->oldest->original);
    }
    if (freed != 0) replicas->resume_ns = store_now_ns(store) + REPLICATE_PAUSE_NS;
    bool changed = freed != 0 || store->drained != drained;
    pthread_mutex_unlock(&store->lock);
    return changed;
}

/* A replica may be what keeps an entry whole that has lost a member; that one stays. */
void replicate_clear_members(kvt_store *store, kvt_tier tier, uint64_t members)
{
    uint64_t gone = store->retired_members[tier];
    store_place *replica = store->replicas[tier].oldest;
    while (replica != NULL) {
        bool leaves = park_touches(replica, members) && !park_touches(replica->original, gone);
        if (leaves) replicate_drop(store, replica->original);
        /* The lock was let go meanwhile: begin the list again. */
        replica = leaves ? store->replicas[tier].oldest : replica->newer;
    }
}

bool replicate_survives(const store_place *place, uint64_t members)
{
    const tiers_location *second = place->replica != NULL ? place->replica->location : NULL;
    return tiers_location_survives(place->location, second, members);
}

/* ---- making ---- */

/* A replica in the making. */
typedef struct replicate_op {
    kvt_store *store;
    kvt_tier tier;
    kvt_key key;
    uint64_t handle;
    store_place *original; /* held as a reader */
    store_place *replica;  /* the new place, before it hangs on the original */
    tiers_location *location;
    staging_buffer staging;
} replicate_op;

/* The entry's place if it is at rest in the tier and has no replica yet. Lock held. */
static store_place *replicate_find(const kvt_store *store, kvt_tier tier, uint64_t handle)
{
    const store_entry *entry = entry_find_handle(&store->table, handle);
    bool fits = entry != NULL && entry->state == ENTRY_RESIDENT && entry->place->tier == tier &&
                entry->place->replica == NULL;
    return fits ? entry->place : NULL;
}

/* Takes the staging memory first, then holds the place: nobody who holds one waits for the other.
 * Until it ends the replica is room that others may wait for. */
static kvt_status replicate_begin(replicate_op *op)
{
    kvt_store *store = op->store;
    pthread_mutex_lock(&store->lock);
    store_place *place = replicate_find(store, op->tier, op->handle);
    uint64_t bytes = place != NULL ? staging_round(place->record_bytes) : 0;
    pthread_mutex_unlock(&store->lock);
    if (place == NULL) return KVT_MISS;
    kvt_status status = staging_take(store->staging, bytes, STAGING_PATIENT, &op->staging);
    if (status != KVT_OK) return status;
    pthread_mutex_lock(&store->lock);
    place = replicate_find(store, op->tier, op->handle);
    if (place == NULL || staging_round(place->record_bytes) != bytes) {
        status = KVT_MISS;
    } else {
        op->original = place;
        op->key = entry_find_handle(&store->table, op->handle)->key;
        place->readers++;
        store->draining[op->tier]++;
    }
    pthread_mutex_unlock(&store->lock);
    return status;
}

/* A record that rotted is not copied. */
static kvt_status replicate_copy(replicate_op *op)
{
    tiers_pool *pool = op->store->pools[op->tier];
    const store_place *original = op->original;
    void *record = op->staging.memory;
    kvt_record_info info;
    kvt_status status = tiers_pool_reserve_replica(pool, original->location, &op->location);
    if (status != KVT_OK) return status;
    status = flight_move(op->store->staging, pool, KVT_IO_READ, original->location, record,
                         original->record_bytes, NULL, &op->staging);
    if (status == KVT_OK) status = kvt_record_verify(record, original->record_bytes, &info);
    if (status == KVT_OK && (memcmp(&info.spec.key, &op->key, sizeof op->key) != 0 ||
                             info.spec.generation != original->generation)) {
        status = KVT_E_MISMATCH;
    }
    if (status == KVT_OK) {
        status = flight_move(op->store->staging, pool, KVT_IO_WRITE, op->location, record,
                             original->record_bytes, NULL, &op->staging);
    }
    return status;
}

/* Hangs the replica on its original, if that is still the entry's. */
static void replicate_attach(replicate_op *op)
{
    kvt_store *store = op->store;
    const store_entry *entry = entry_find_handle(&store->table, op->handle);
    bool there = entry != NULL && entry->place == op->original && entry_is_visible(entry);
    if (!there || op->original->replica != NULL) return;
    *op->replica = (store_place){.tier = op->tier,
                                 .record_bytes = op->original->record_bytes,
                                 .location = op->location,
                                 .original = op->original};
    op->original->replica = op->replica;
    replicate_link_newest(store, op->replica);
    store->counters.replicas++;
    op->replica = NULL;
    op->location = NULL;
}

static void replicate_end(replicate_op *op, bool attach)
{
    kvt_store *store = op->store;
    staging_give(store->staging, &op->staging);
    if (op->original != NULL) {
        pthread_mutex_lock(&store->lock);
        if (attach) replicate_attach(op);
        op->original->readers--;
        pthread_mutex_unlock(&store->lock);
    }
    if (op->location != NULL) tiers_pool_release(store->pools[op->tier], op->location);
    free(op->replica);
    if (op->original == NULL) return;
    pthread_mutex_lock(&store->lock);
    store->draining[op->tier]--;
    store->drained++;
    pthread_cond_broadcast(&store->changed);
    pthread_mutex_unlock(&store->lock);
}

static kvt_status replicate_make(kvt_store *store, kvt_tier tier, uint64_t handle)
{
    replicate_op op = {.store = store, .tier = tier, .handle = handle};
    op.replica = malloc(sizeof *op.replica);
    kvt_status status = op.replica != NULL ? replicate_begin(&op) : KVT_E_MEMORY;
    if (status == KVT_OK) status = replicate_copy(&op);
    replicate_end(&op, status == KVT_OK);
    return status;
}

/* Takes the oldest hot object that the budget allows; 0 = none. Lock held. */
static uint64_t replicate_take(kvt_store *store, kvt_tier tier)
{
    store_replicas *replicas = &store->replicas[tier];
    uint64_t now_ns = store_now_ns(store);
    while (replicas->count > 0 && !store->stopping) {
        uint64_t handle = replicas->handles[0];
        const store_place *place = replicate_find(store, tier, handle);
        bool hot = place != NULL && replicate_heat(place, now_ns) >= REPLICATE_COLD &&
                   now_ns >= replicas->resume_ns;
        if (hot && !relayout_spend(store, tier, place->record_bytes)) return 0;
        replicas->count--;
        memmove(&replicas->handles[0], &replicas->handles[1],
                replicas->count * sizeof replicas->handles[0]);
        if (hot) return handle;
    }
    return 0;
}

/* Drops the replica that was not read for the longest time when it is cold, or when replicas have
 * more than their share since a device left. Lock held. */
static bool replicate_give_way(kvt_store *store, kvt_tier tier, bool cold)
{
    store_place *oldest = store->replicas[tier].oldest;
    tiers_pool_facts facts;
    if (oldest == NULL) return false;
    tiers_pool_facts_get(store->pools[tier], &facts);
    cold = cold && replicate_heat(oldest->original, store_now_ns(store)) < REPLICATE_COLD;
    if (!cold && facts.replica_bytes <= facts.replica_bytes_max) return false;
    replicate_drop(store, oldest->original);
    return true;
}

/* There is no room for hot objects now; asked again after a while. */
static void replicate_pause(kvt_store *store, kvt_tier tier)
{
    pthread_mutex_lock(&store->lock);
    store->replicas[tier].resume_ns = store_now_ns(store) + REPLICATE_PAUSE_NS;
    pthread_mutex_unlock(&store->lock);
}

void replicate_round(kvt_store *store, kvt_tier tier, uint32_t *moves_done)
{
    if (!store->replicas[tier].wanted) return;
    pthread_mutex_lock(&store->lock);
    /* Reads that got around a member may have been the only ones to notice that it is gone. */
    if ((park_gone_members(store, tier) & ~store->retired_members[tier]) != 0)
        park_refresh_tier(store, tier);
    while (replicate_give_way(store, tier, false)) {
    }
    pthread_mutex_unlock(&store->lock);
    for (;;) {
        pthread_mutex_lock(&store->lock);
        uint64_t handle = replicate_take(store, tier);
        pthread_mutex_unlock(&store->lock);
        if (handle == 0) return;
        kvt_status status = replicate_make(store, tier, handle);
        while (status == KVT_E_SPACE) {
            pthread_mutex_lock(&store->lock);
            bool gave = replicate_give_way(store, tier, true);
            pthread_mutex_unlock(&store->lock);
            if (!gave) break;
            status = replicate_make(store, tier, handle);
        }
        if (status == KVT_OK) ++*moves_done;
        if (status == KVT_E_SPACE) replicate_pause(store, tier);
    }
}
