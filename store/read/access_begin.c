/* SPDX-License-Identifier: Apache-2.0 */
/*
 * access_begin.c - how gets begin, those of a caller that waits and those of a queue, whose threads
 * never wait for a device.
 *
 * One hold of the control lock looks all keys of a call up, a second one enters those that needed
 * staging. Staging is taken before a place is held, because a holder of staging may wait for
 * readers; so the table is looked at again. A get of a queue that finds no staging does not wait
 * for it: it starves, and is begun again.
 *
 * Thread rule: a get belongs to one thread at a time; its waiter is told on any.
 */
#include "base/clock.h"
#include "codecs/codecs.h"
#include "store/background/lifetime.h"
#include "store/gpu/gpu_far.h"
#include "store/hosts/remote_tier.h"
#include "store/learn/token_drop.h"
#include "store/learn/uses.h"
#include "store/read/access_get.h"
#include "store/read/lookups.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* The table's answer to a get that is about to begin; valid under one hold of the lock. */
typedef struct begin_view {
    store_entry *entry;
    bool in_memory; /* the record can be read in place */
    bool join;      /* a read of the place is in flight already */
    uint64_t far;   /* the record is lent to the target's GPU, at this address; or 0 */
    uint64_t staging_bytes;
} begin_view;

/* ---- looking ---- */

bool access_loses_too_much(const kvt_store *store, const store_entry *entry, double loss_max)
{
    assert(store_is_locked(store));
    if (loss_max == 0 || entry->place == NULL) return false;
    double upper = learn_variant_loss_upper(store, entry, entry->place->variant);
    return loss_max < 0 ? upper > 0 : upper > loss_max;
}

/* Whether the target's views were checked for entries of this kind. */
static bool begin_has_layout(const entry_kind *kind, const access_target *target)
{
    return memcmp(&kind->layout, &target->layout, sizeof kind->layout) == 0 &&
           kind->group_count == target->group_count &&
           (kind->group_count == 0 ||
            memcmp(kind->groups, target->groups, kind->group_count * sizeof *kind->groups) == 0);
}

/* Whether a get accepts a readable entry: KVT_OK, or how the get ends. Lock held. */
static kvt_status begin_fits(kvt_store *store, const store_entry *entry, access_get *get)
{
    const access_target *target = &get->target;
    if (entry->kind->source_bytes != target->bytes) return KVT_E_ARGUMENT;
    kvt_status status = token_drop_fits(target, &entry->kind->layout);
    if (status != KVT_OK || entry->state == ENTRY_STAGED) return status;
    status = token_drop_admits(target, &entry->kind->layout, entry->place->variant);
    get->refused_tokens = status == KVT_REFUSED;
    if (status != KVT_OK) return status;
    get->lacks_basis = lookup_lacks_basis(store, entry);
    if (get->lacks_basis) {
        get->variant = entry->place->variant;
        get->tier = entry->place->tier;
        return KVT_E_MISMATCH;
    }
    get->refused_loss = access_loses_too_much(store, entry, get->loss_max);
    store->counters.refused.loss += get->refused_loss;
    return get->refused_loss ? KVT_MISS : KVT_OK;
}

/* Becomes a user of the bytes that a put has handed over. No promotion is planned: the entry has no
 * place yet. Lock held. */
static void begin_staged(kvt_store *store, const store_entry *entry, access_get *get)
{
    assert(entry->state == ENTRY_STAGED && entry->staged != NULL && get->place == NULL);
    assert(store_is_locked(store));
    get->staged = entry->staged;
    get->tokens = entry->kind->layout.tokens;
    handover_join(get->staged);
    if (!get->quiet)
        (void)!kvt_policy_access(store->policy, store_now_ns(store), entry->handle, NULL);
}

/* Joins the read under way of the entry's place, or makes one. Lock held. */
static kvt_status begin_read_of(kvt_store *store, store_entry *entry, access_get *get)
{
    assert(store_is_locked(store) && get->owner == (entry->read == NULL));
    if (!get->owner) {
        get->read = entry->read;
        read_join(store, get->read, get->waiter.ended != NULL ? &get->waiter : NULL);
        store->counters.shared_reads++;
        return KVT_OK;
    }
    get->read = read_make(READ_WHOLE);
    if (get->read == NULL) return KVT_E_MEMORY;
    get->read->handle = get->handle;
    get->read->buffer = get->flying = get->staging;
    get->staging = (staging_buffer){0};
    /* Gets that come before the read has ended join it. */
    entry->read = get->read;
    load_share_get(store, entry->place->serial, get->read);
    return KVT_OK;
}

/* Becomes a reader of the entry's place, with a read or with the memory in which the record lies,
 * then counts the use. Everything that decoding needs was worked out when the place was
 * published, so no codec is asked here. Lock held; staging is in the get already. *clock_ns as of
 * uses_count. */
static access_stage begin_enter(kvt_store *store, const begin_view *view, access_get *get,
                                uint64_t *clock_ns)
{
    store_entry *entry = view->entry;
    store_place *place = entry->place;
    assert(store_is_locked(store) && place != NULL && entry_is_visible(entry));
    get->class_id = entry->class_id;
    get->layout = entry->kind->layout;
    get->grouped = entry->kind->group_count != 0;
    get->first_position = entry->first_position;
    get->tokens = get->layout.tokens;
    get->in_memory = view->in_memory;
    get->owner = !view->in_memory && !view->join;
    get->status = KVT_OK;
    get->far = view->far != 0;
    if (get->far)
        get->record = (const void *)(uintptr_t)view->far;
    else if (get->in_memory)
        get->record = tiers_pool_lend(store->pools[place->tier], place->location);
    else
        get->status = begin_read_of(store, entry, get);
    if (get->status == KVT_OK) {
        get->place = place;
        get->record_bytes = place->record_bytes;
        /* The record stays what it is: the last reader gives the extents back (place_leave). */
        place->readers++;
        get->tier = place->tier;
        get->variant = place->variant;
        get->expected = place_expects(store, &entry->key, place);
        get->serial = place->serial;
        get->by_cpu = place->by_cpu;
        if (get->in_memory)
            learn_begin_in_memory(store, get->tier, place->location, &get->transfer);
    }
    if (!get->quiet) {
        uses_count(store, entry, clock_ns);
        relayout_note_get(store, entry);
    }
    if (get->status != KVT_OK) return ACCESS_ENDED;
    return get->in_memory ? ACCESS_READY : ACCESS_FLIES;
}

/* Looks at the entry under a get's key, or NULL, and becomes a reader of it at once where no
 * staging is needed. ACCESS_STARVES: the get is to bring the staging that the view states, or,
 * where it has brought what an earlier view stated, other staging. Lock held. */
static access_stage begin_look(kvt_store *store, store_entry *entry, access_get *get,
                               begin_view *view, uint64_t *clock_ns)
{
    const bool brings = get->staging.memory != NULL;
    begin_view now = {.entry = entry};
    assert(store_is_locked(store) && get->place == NULL && get->staged == NULL);
    get->status = KVT_MISS;
    if (!lifetime_shows(store, entry)) return ACCESS_ENDED;
    if (get->target.view != NULL && !begin_has_layout(entry->kind, &get->target))
        return ACCESS_CHANGED;
    get->status = begin_fits(store, entry, get);
    if (get->status != KVT_OK) return ACCESS_ENDED;
    if (entry->state == ENTRY_STAGED) {
        if (brings) return ACCESS_STARVES;
        begin_staged(store, entry, get);
        return ACCESS_READY;
    }
    const store_place *place = entry->place;
    now.in_memory = tiers_pool_lends(store->pools[place->tier], place->location);
    /* A get that has brought staging was to have none of this, and begins as it was to. */
    if (!now.in_memory && !brings && get->target.gpu != NULL)
        now.far = store_gpu_far_lend(store, place, get->target.view->gpu);
    now.in_memory = now.in_memory || now.far != 0;
    now.staging_bytes = now.far != 0 ? 0 : place->scratch_bytes;
    now.join = !now.in_memory && entry->read != NULL;
    if (!now.in_memory && !now.join) now.staging_bytes += staging_round(place->record_bytes);
    const bool same = now.join == view->join && now.in_memory == view->in_memory &&
                      now.staging_bytes == view->staging_bytes;
    *view = now;
    if (brings ? !same : now.staging_bytes != 0) return ACCESS_STARVES;
    return begin_enter(store, view, get, clock_ns);
}

/* ---- staging ---- */

/* Takes the staging that a get needs. A get that joins must not wait: the read's owner, who may
 * hold all staging that there is, waits for it. ACCESS_STARVES: it is there, and the entry is to be
 * looked at again; or there is none now. */
static access_stage begin_acquire(kvt_store *store, const begin_view *view, access_get *get)
{
    const uint64_t deadline_ns = get->waiter.ended == NULL ? get->deadline_ns : 0;
    get->status =
        view->join
            ? staging_acquire_now(store->staging, view->staging_bytes, &get->staging)
            : staging_acquire(store->staging, view->staging_bytes, deadline_ns, &get->staging);
    const bool late = get->status == KVT_E_TIMEOUT && get->waiter.ended != NULL;
    return get->status == KVT_OK || late ? ACCESS_STARVES : ACCESS_ENDED;
}

/* Begins the gets that needed staging, those in the mask. */
static void begin_with_staging(kvt_store *store, access_get *const *gets, begin_view *views,
                               uint64_t mask)
{
    uint64_t clock_ns = 0;
    for (uint32_t i = 0; i < ACCESS_ALL_MOST && mask >> i != 0; i++)
        if ((mask >> i & 1) != 0) gets[i]->stage = begin_acquire(store, &views[i], gets[i]);
    pthread_mutex_lock(&store->lock);
    for (uint32_t i = 0; i < ACCESS_ALL_MOST && mask >> i != 0; i++) {
        access_get *get = gets[i];
        if ((mask >> i & 1) == 0 || get->staging.memory == NULL) continue;
        store_entry *entry = entry_find_hashed(&store->table, get->handle, get->key);
        get->stage = begin_look(store, entry, get, &views[i], &clock_ns);
    }
    pthread_mutex_unlock(&store->lock);
    for (uint32_t i = 0; i < ACCESS_ALL_MOST && mask >> i != 0; i++)
        if ((mask >> i & 1) != 0 && gets[i]->place == NULL && gets[i]->staging.memory != NULL)
            staging_release(store->staging, &gets[i]->staging);
}

/* ---- reads ---- */

/* Asks other hosts for an entry that is not here, for a get of a queue; without staging for it the
 * get starves. The get may have arrived when this returns. */
static void begin_elsewhere(kvt_store *store, access_get *get)
{
    if (get->status != KVT_MISS || get->refused_loss || get->waiter.ended == NULL) return;
    if (get->target.gpu != NULL) return; /* a prefetch brings it */
    if (!remote_get_is_worth(store, get)) return;
    get->stage = ACCESS_FLIES; /* before it can arrive */
    const kvt_status started = remote_get_start(store, get);
    if (started == KVT_BUSY) get->stage = ACCESS_STARVES;
    if (started == KVT_MISS) get->stage = ACCESS_ENDED;
}

/* Prepares the read of a queue's get that owns its read. NULL: there was no memory, or its deadline
 * has passed, and the get is READY to end with that. */
static store_transfer *begin_read(kvt_store *store, access_get *get)
{
    store_read *read = get->read;
    assert(get->owner && get->place != NULL && read->flight == NULL);
    kvt_status status = KVT_E_TIMEOUT;
    if (get->deadline_ns == KVT_NO_DEADLINE || base_clock_ns() < get->deadline_ns) {
        const tiers_transfer wanted = access_transfer(get);
        const transfer_watch *watch = learn_watch(store, get->tier, KVT_IO_READ, &get->transfer);
        const transfer_owner owner = {.landed = get->waiter.ended,
                                      .come = get->come,
                                      .context = get->waiter.context,
                                      .piece_bytes = access_piece_bytes(get)};
        read->flight = transfer_prepare(store->staging, store->pools[get->tier], &wanted, watch,
                                        &read->buffer, &owner);
        if (read->flight != NULL) return read->flight;
        status = KVT_E_MEMORY;
    }
    read_end(store, read, status, 0, false);
    get->stage = ACCESS_READY;
    return NULL;
}

uint32_t access_begin_all(kvt_store *store, access_get *const *gets, uint32_t count)
{
    assert(count <= ACCESS_ALL_MOST);
    begin_view views[ACCESS_ALL_MOST];
    store_transfer *flights[ACCESS_ALL_MOST];
    learn_use uses[ACCESS_ALL_MOST];
    uint64_t needy = 0, clock_ns = 0;
    const uint64_t began_ns = store_now_ns(store);
    uint32_t started = 0, used = 0;
    pthread_mutex_lock(&store->lock);
    for (uint32_t i = 0; i < count; i++) {
        access_get *get = gets[i];
        views[i] = (begin_view){0};
        get->source_bytes = get->target.bytes;
        if (get->began_ns == 0) get->began_ns = began_ns;
        store_entry *entry = entry_find_hashed(&store->table, get->handle, get->key);
        get->stage = begin_look(store, entry, get, &views[i], &clock_ns);
        if (get->stage == ACCESS_STARVES) needy |= UINT64_C(1) << i;
    }
    pthread_mutex_unlock(&store->lock);
    if (store->remote != NULL)
        for (uint32_t i = 0; i < count; i++)
            if (gets[i]->stage == ACCESS_ENDED) begin_elsewhere(store, gets[i]);
    if (needy != 0) begin_with_staging(store, gets, views, needy);
    for (uint32_t i = 0; i < count; i++) {
        access_get *get = gets[i];
        if (get->remote_asked) continue; /* it may be another thread's by now */
        if (get->place != NULL && !get->quiet)
            uses[used++] = (learn_use){get->handle, get->class_id};
        /* The record's head is prefetched while its use is counted. */
        if (count == 1 && get->record != NULL) kvt_record_prefetch(get->record);
        if (get->stage != ACCESS_FLIES || !get->owner || get->waiter.ended == NULL) continue;
        store_transfer *flight = begin_read(store, get);
        if (flight != NULL) flights[started++] = flight;
    }
    /* Not under the control lock: the estimator of reuse has a lock of its own. */
    learn_note_uses(store, uses, used);
    assert(started <= count);
    transfer_sort(flights, started);
    transfer_start_all(flights, started);
    return started;
}
