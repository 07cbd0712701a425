/* SPDX-License-Identifier: Apache-2.0 */
/*
 * access_async.c - gets that no thread waits for: a queue's thread begins many at once, their reads
 * land whenever devices are done, and a thread of the queue decodes then. The steps that these gets
 * share with those of a waiting caller are access.c's.
 *
 * One hold of the control lock looks all keys of a call up, a second one enters those that needed
 * staging. A get that finds no staging does not wait for it: it starves, and is begun again.
 *
 * Thread rule: a get belongs to one thread of its queue at a time; `arrived` is called on any.
 */
#include "base/clock.h"
#include "codecs/codecs.h"
#include "store/hosts/remote_tier.h"
#include "store/read/access_get.h"

#include <assert.h>

#define ASYNC_MOST ACCESS_ALL_MOST /* gets that are begun at once */

/* ---- begin ---- */

/* Ends a get that holds nothing. No lock held. */
static void async_refuse(kvt_store *store, access_get *get, kvt_status status)
{
    get->status = access_refuse(store, get->refused_tokens ? KVT_REFUSED : status, NULL);
    get->stage = ACCESS_ENDED;
}

bool access_loses_too_much(const kvt_store *store, const store_entry *entry, double loss_max)
{
    assert(store_is_locked(store));
    if (loss_max == 0 || entry->place == NULL) return false;
    double upper = learn_variant_loss_upper(store, entry, entry->place->variant);
    return loss_max < 0 ? upper > 0 : upper > loss_max;
}

/* Whether a get takes no form as coarse as the entry's, which is marked and counted. Lock held. */
static bool async_refuses_loss(kvt_store *store, const store_entry *entry, access_get *get)
{
    get->refused_loss = access_loses_too_much(store, entry, get->loss_max);
    store->counters.refused_loss += get->refused_loss;
    return get->refused_loss;
}

/* Becomes a reader, or takes the reason why not. Lock held; staging is in the get already. */
static kvt_status async_enter(kvt_store *store, const access_view *view, access_get *get,
                              uint64_t *clock_ns)
{
    kvt_status status = access_enter(store, view, get, clock_ns);
    if (status != KVT_OK) return status;
    get->stage = get->in_memory ? ACCESS_READY : ACCESS_FLIES;
    if (get->in_memory || get->owner) return KVT_OK;
    assert(store_is_locked(store) && get->load != NULL && get->load->users > 1);
    if (get->load->finished) {
        get->stage = ACCESS_READY;
        return KVT_OK;
    }
    get->next_waiter = get->load->waiters;
    get->load->waiters = get;
    return KVT_OK;
}

/* Looks a key up. KVT_OK: the get has a stage. KVT_BUSY: it has to bring staging, as *view says. A
 * status that ends it otherwise. Lock held. */
static kvt_status async_look(kvt_store *store, access_get *get, access_view *view,
                             uint64_t *clock_ns)
{
    assert(store_is_locked(store) && get->place == NULL && get->staged == NULL);
    store_entry *entry = entry_find_hashed(&store->table, get->handle, get->key);
    kvt_status status = access_look_at(store, entry, &get->target, view);
    access_note_form(get, view, status);
    if (status == KVT_QUEUED) {
        access_begin_staged(store, view->entry, get);
        get->stage = ACCESS_READY;
        return KVT_OK;
    }
    get->refused_tokens = status == KVT_REFUSED;
    if (status != KVT_OK) return get->refused_tokens ? KVT_MISS : status;
    if (async_refuses_loss(store, view->entry, get)) return KVT_MISS;
    return view->staging_bytes == 0 ? async_enter(store, view, get, clock_ns) : KVT_BUSY;
}

/* Takes the staging that a get needs, without waiting. */
static kvt_status async_acquire(kvt_store *store, const access_view *view, access_get *get)
{
    /* The read that a get joins may hold all staging that there is, so the get goes past it. */
    if (view->join) return staging_acquire_now(store->staging, view->staging_bytes, &get->staging);
    return staging_acquire(store->staging, view->staging_bytes, 0, &get->staging);
}

/* Looks again, with staging. Lock held. */
static kvt_status async_look_again(kvt_store *store, access_get *get, const access_view *view,
                                   uint64_t *clock_ns)
{
    access_view now;
    assert(store_is_locked(store) && get->staging.memory != NULL && get->place == NULL);
    kvt_status status = access_look(store, get->key, &get->target, &now);
    access_note_form(get, &now, status);
    bool same = status == KVT_OK && now.join == view->join && now.in_memory == view->in_memory &&
                now.staging_bytes == view->staging_bytes;
    /* A move may have made the entry coarser meanwhile. */
    if (same && async_refuses_loss(store, now.entry, get)) return KVT_MISS;
    if (same) return async_enter(store, &now, get, clock_ns);
    /* What is there has changed, and not gone: the get begins anew and asks for other staging. */
    bool again = status == KVT_OK || status == KVT_QUEUED || status == ACCESS_CHANGED;
    get->refused_tokens = status == KVT_REFUSED;
    if (get->refused_tokens) return KVT_MISS;
    return again ? KVT_BUSY : status;
}

/* Asks other hosts for what is not here; without staging for it the get starves. False: the get is
 * a miss. The get may have arrived when this returns. */
static bool async_asks_others(kvt_store *store, access_get *get, kvt_status status)
{
    if (status != KVT_MISS || get->refused_tokens || get->refused_loss) return false;
    if (!remote_get_is_worth(store, get, get->key)) return false;
    get->stage = ACCESS_FLIES; /* before it can arrive */
    const kvt_status started = remote_get_start(store, get);
    if (started == KVT_BUSY) get->stage = ACCESS_STARVES;
    return started != KVT_MISS;
}

/* Begins the gets that needed staging, those in the mask. */
static void async_begin_staging(kvt_store *store, access_get *const *gets, const access_view *views,
                                uint64_t mask)
{
    kvt_status statuses[ASYNC_MOST];
    uint64_t clock_ns = 0;
    for (uint32_t i = 0; i < ASYNC_MOST && mask >> i != 0; i++)
        if ((mask >> i & 1) != 0) statuses[i] = async_acquire(store, &views[i], gets[i]);
    pthread_mutex_lock(&store->lock);
    for (uint32_t i = 0; i < ASYNC_MOST && mask >> i != 0; i++)
        if ((mask >> i & 1) != 0 && statuses[i] == KVT_OK)
            statuses[i] = async_look_again(store, gets[i], &views[i], &clock_ns);
    pthread_mutex_unlock(&store->lock);
    for (uint32_t i = 0; i < ASYNC_MOST && mask >> i != 0; i++) {
        if ((mask >> i & 1) == 0 || statuses[i] == KVT_OK) continue;
        staging_release(store->staging, &gets[i]->staging);
        gets[i]->stage = ACCESS_STARVES;
        if (statuses[i] != KVT_BUSY && statuses[i] != KVT_E_TIMEOUT)
            async_refuse(store, gets[i], statuses[i]);
    }
}

/* Prepares the read of a get that owns its load. NULL: there was no memory, or its deadline has
 * passed, and the get is READY to end with that. */
static store_transfer *async_prepare(kvt_store *store, access_get *get)
{
    assert(get->owner && get->place != NULL && get->flight == NULL);
    if (get->deadline_ns != KVT_NO_DEADLINE && base_clock_ns() >= get->deadline_ns) {
        access_publish(store, get, KVT_E_TIMEOUT, 0);
        get->stage = ACCESS_READY;
        return NULL;
    }
    const store_place *place = get->place;
    staging_buffer *buffer = &get->load->buffer;
    const tiers_transfer read = {.kind = KVT_IO_READ,
                                 .waited = get->waited,
                                 .location = place->location,
                                 .buffer = buffer->memory,
                                 .bytes = place->record_bytes};
    const transfer_watch *watch = learn_watch(store, place->tier, KVT_IO_READ, &get->transfer);
    get->flight = transfer_prepare(store->staging, store->pools[place->tier], &read, watch, buffer,
                                   get->arrived, get->arrived_context);
    if (get->flight != NULL) return get->flight;
    access_publish(store, get, KVT_E_MEMORY, 0);
    get->stage = ACCESS_READY;
    return NULL;
}

uint32_t access_begin_all(kvt_store *store, access_get *const *gets, uint32_t count)
{
    assert(count <= ASYNC_MOST);
    access_view views[ASYNC_MOST];
    kvt_status statuses[ASYNC_MOST];
    store_transfer *flights[ASYNC_MOST];
    learn_use uses[ASYNC_MOST];
    uint64_t needy = 0, began_ns = store_now_ns(store), clock_ns = 0;
    uint32_t started = 0, used = 0;
    for (uint32_t i = 0; i < count; i++) {
        gets[i]->began_ns = began_ns;
        gets[i]->source_bytes = gets[i]->target.bytes;
    }
    pthread_mutex_lock(&store->lock);
    for (uint32_t i = 0; i < count; i++) {
        statuses[i] = async_look(store, gets[i], &views[i], &clock_ns);
        if (statuses[i] == KVT_BUSY) needy |= UINT64_C(1) << i;
    }
    pthread_mutex_unlock(&store->lock);
    for (uint32_t i = 0; i < count; i++) {
        if (statuses[i] == ACCESS_CHANGED)
            gets[i]->stage = ACCESS_STARVES; /* another entry came under the key meanwhile */
        else if (statuses[i] != KVT_OK && statuses[i] != KVT_BUSY &&
                 !async_asks_others(store, gets[i], statuses[i]))
            async_refuse(store, gets[i], statuses[i]);
    }
    if (needy != 0) async_begin_staging(store, gets, views, needy);
    for (uint32_t i = 0; i < count; i++) {
        access_get *get = gets[i];
        if (get->remote_asked) continue; /* it may be another thread's by now */
        if (get->place != NULL) uses[used++] = (learn_use){get->handle, get->class_id};
        if (get->stage != ACCESS_FLIES || !get->owner) continue;
        store_transfer *flight = async_prepare(store, get);
        if (flight != NULL) flights[started++] = flight;
    }
    /* Not under the control lock: the estimator of reuse has a lock of its own. */
    learn_note_uses(store, uses, used);
    assert(started <= count);
    transfer_sort(flights, started);
    transfer_start_all(flights, started);
    return started;
}

/* ---- end ---- */

void access_land(kvt_store *store, access_get *get)
{
    assert(get->stage == ACCESS_FLIES);
    if (get->remote != NULL) {
        get->stage = remote_get_land(store, get) ? ACCESS_READY : ACCESS_STARVES;
        return;
    }
    if (get->owner) {
        transfer_report report;
        kvt_status status = transfer_take(get->flight, &get->load->buffer, &report);
        get->flight = NULL;
        access_publish(store, get, status, report.finished_ns - report.started_ns);
    }
    get->stage = ACCESS_READY;
    assert(get->flight == NULL && get->load->finished);
    if (!access_may_begin_again(get, get->load->status)) return;
    access_let_go(store, get);
    get->stage = ACCESS_STARVES;
}

kvt_status access_end_ready(kvt_store *store, access_get *get, bool again, kvt_get_info *info)
{
    assert(get->stage == ACCESS_READY);
    kvt_status status = KVT_OK;
    if (get->remote != NULL) {
        status = remote_get_finish(store, get->key, &get->target, get, info);
        return status == KVT_OK ? KVT_OK : access_refuse(store, status, info);
    }
    if (get->in_memory && get->record == NULL) status = KVT_E_GONE;
    if (get->load != NULL) {
        assert(get->load->finished && get->flight == NULL);
        status = get->load->status;
        get->record = get->load->record;
    }
    return access_complete(store, get->key, &get->target, get, status, again, info);
}

/* Takes a get out of the list of those that wait for a load. False: the load has finished. */
static bool async_leave(kvt_store *store, access_get *get)
{
    bool found = false;
    assert(!get->owner && get->load != NULL);
    pthread_mutex_lock(&store->lock);
    for (access_get **at = &get->load->waiters; *at != NULL && !found; at = &(*at)->next_waiter) {
        if (*at != get) continue;
        *at = get->next_waiter;
        found = true;
        break;
    }
    pthread_mutex_unlock(&store->lock);
    return found;
}

bool access_give_up(kvt_store *store, access_get *get, kvt_status status, kvt_get_info *info)
{
    assert(get->stage == ACCESS_FLIES && status != KVT_OK);
    if (get->remote != NULL) {
        if (!remote_get_give_up(store, get)) return false;
        get->status = access_refuse(store, status, info);
        get->stage = ACCESS_ENDED;
        return true;
    }
    if (!(get->owner ? transfer_give_up(get->flight) : async_leave(store, get))) return false;
    /* Gets that have joined may begin anew, whatever ends this one. */
    /* A cancel is this get's alone; the others see a read that took too long. */
    if (get->owner)
        access_publish(store, get, status == KVT_E_CANCELLED ? KVT_E_TIMEOUT : status, 0);
    get->flight = NULL;
    get->status = access_complete(store, get->key, &get->target, get, status, false, info);
    get->stage = ACCESS_ENDED;
    return true;
}

bool access_is_stuck(const access_get *get)
{
    return get->owner && transfer_is_stuck(get->flight);
}
