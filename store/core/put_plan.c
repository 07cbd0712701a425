/* SPDX-License-Identifier: Apache-2.0 */
/*
 * put_plan.c - the plans of one put: asked of the policy, carried out, and asked for again as long
 * as the next plan can succeed where the last one failed.
 *
 * Thread rule: the caller of the put or one executor; the control lock for the moment of a
 * decision.
 */
#include "codecs/record_groups.h"
#include "store/background/lifetime.h"
#include "store/core/executor_flights.h"
#include "store/core/handover.h"
#include "store/core/plans.h"
#include "store/core/store_offer.h"
#include "store/hosts/remote_tier.h"
#include "store/learn/token_drop.h"
#include "store/read/lookups.h"

#include <assert.h>
#include <string.h>

/*
 * A plan can fail for reasons that the next one does not have: a victim could not be demoted (it is
 * gone now, and so is the need, or it backs off, and the next plan takes another one), or the
 * record came out larger than the estimate (now it is known). Each try makes such progress, so a
 * few are enough.
 */
#define PUT_TRIES 8

/* Plans after which the record may lie on devices that answer late: evictions have made no room on
 * the others by then. */
#define PUT_TRIES_IN_TIME 4

/* Records' room that a put makes for its own at most, where a tier's free room fits none. */
#define PUT_ROOM_MOST 4u

/* Entries that one put may find larger than planned in another variant, each of them once. */
#define PUT_LARGER 64

/* The entry's part of a decision; the policy does not hold the entry. Lock held. */
static kvt_status put_admit(kvt_store *store, store_entry *entry, const put_progress *progress,
                            kvt_plan *plan)
{
    assert(entry->place == NULL);
    assert(entry->state == ENTRY_ARRIVING || entry->state == ENTRY_STAGED);
    kvt_option options[KVT_OPTIONS_MAX];
    kvt_policy_entry offer;
    const kvt_known_size measured = {progress->larger_variant, progress->larger_bytes};
    kvt_status status = store_offer_at(store, &store->costs, entry, &measured, options, &offer);
    if (status != KVT_OK) return status;
    entry->curve_epoch = (uint16_t)store->curve_epoch;
    backoff_expire(store);
    store_withhold(store);
    if (trust_try_due(store, entry, &offer, plan) == KVT_OK) return KVT_OK;
    offer.copy_seconds = remote_costs_of_entry(store, entry);
    uint64_t started_ns = store_now_ns(store);
    status = kvt_policy_admit(store->policy, started_ns, &offer, plan);
    store_count_decision(store, started_ns, store_now_ns(store));
    if (status == KVT_OK) trust_note_plan(store, plan);
    if (status == KVT_REFUSED) status = trust_note_refused(store, entry, &offer, plan);
    return status;
}

/* Whether the parent of a new entry is stored as a whole context, which may drop tokens: KV
 * computed after all of its tokens is of no use after some of them. Lock held. */
static bool put_follows_context(const kvt_store *store, const kvt_entry *source)
{
    if (source->parent == NULL) return false;
    const store_entry *parent = entry_find_key(&store->table, source->parent);
    return parent != NULL && lifetime_shows(store, parent) && token_drop_is_uncounted(parent);
}

/* Whether an entry at rest makes way for a put of its key: it has ended, lacks its basis, or could
 * not be read the last time it was tried. Lock held. */
static bool put_displaces(const kvt_store *store, const store_entry *entry)
{
    if (entry->state != ENTRY_RESIDENT) return false;
    return !lookup_finds(store, entry) || (entry->place->unread && !entry->leased);
}

/* Makes an ARRIVING entry for a key that is not stored, with the copy of its scores. Lock held. */
static kvt_status put_enter(kvt_store *store, put_work *work, store_entry **entry_out)
{
    const kvt_entry *source = work->source;
    quarantine_forget_key(store, &source->key);
    store_entry *entry = entry_find_key(&store->table, &source->key);
    while (entry != NULL && put_displaces(store, entry)) {
        const bool over = lifetime_is_over(store, entry);
        store->counters.expired += over;
        /* A stored entry that cannot be read makes way for the same entry, recomputed. */
        quarantine_drop_entry(store, entry, over ? KVT_REMOVED_EXPIRED : KVT_REMOVED_LOST);
        entry = entry_find_key(&store->table, &source->key); /* the lock may have been released */
    }
    if (entry != NULL) {
        if (!lookup_finds(store, entry)) {
            store->tallies.refusals[STORE_REFUSAL_IN_MOTION]++;
            return KVT_BUSY;
        }
        (void)!kvt_policy_access(store->policy, store_now_ns(store), entry->handle, NULL);
        store->counters.puts_existing++;
        return KVT_EXISTS;
    }
    if (put_follows_context(store, source)) return KVT_E_ARGUMENT;
    kvt_layout layout = source->layout, groups[KVT_GROUPS_MAX];
    if (layout.sides == 2) layout.sides = 0; /* one name of the two */
    for (uint32_t i = 0; i < source->group_count; i++) {
        groups[i] = source->groups[i];
        if (groups[i].sides == 2) groups[i].sides = 0;
    }
    const entry_shape shape = {&layout, groups, source->group_count};
    kvt_status status = entry_insert(&store->table, &source->key, &shape, &entry);
    if (status != KVT_OK) return status;
    status = token_drop_give_scores(entry, &work->scores);
    if (status != KVT_OK) {
        entry_erase(&store->table, entry);
        return status;
    }
    entry->has_parent = source->parent != NULL;
    if (entry->has_parent) entry->parent = *source->parent;
    entry->born = store->next_serial;
    entry->first_position = source->first_position;
    entry->recompute_seconds = (float)source->recompute_seconds;
    entry->class_id = (uint16_t)source->class_id;
    entry->tenant =
        (uint8_t)(source->tenant != 0 ? source->tenant : spaces_tenant(store, &source->key));
    lifetime_begin(store, entry, source->lifetime_seconds);
    entry->request_tokens = source->request_tokens;
    *entry_out = entry;
    return KVT_OK;
}

/* The store cannot keep up with a put that the policy was not asked about: the use counts all the
 * same. Lock held. */
static kvt_status put_note_busy(kvt_store *store, const store_entry *entry, store_refusal why)
{
    (void)!kvt_policy_access(store->policy, store_now_ns(store), entry->handle, NULL);
    store->counters.puts_busy++;
    store->tallies.refusals[why]++;
    return KVT_BUSY;
}

/*
 * Whether the entry before a new one was accepted and the policy has not taken it in: an executor
 * has yet to decide on it, or decides again because its plan failed. The policy would take the new
 * entry for one behind a hole, and refuse it. own: the new entry's put, when an executor has it,
 * which waits for earlier puts alone; those have all been begun. Lock held.
 */
static bool put_parent_is_undecided(const kvt_store *store, const kvt_entry *source,
                                    const store_staged *own)
{
    if (source->parent == NULL) return false;
    const store_entry *parent = entry_find_key(&store->table, source->parent);
    if (parent == NULL) return false;
    if (parent->state != ENTRY_STAGED && parent->state != ENTRY_ARRIVING) return false;
    const bool earlier =
        parent->state == ENTRY_STAGED && (own == NULL || parent->staged->number < own->number);
    if (own != NULL && !earlier) return false;
    kvt_policy_worth worth = {.struct_size = sizeof worth};
    return kvt_policy_worth_get(store->policy, parent->handle, KVT_TIER_SSD, &worth) == KVT_MISS;
}

/* Decides on an entry that is in the table. KVT_QUEUED: an executor decides, when it takes the put.
 * Lock held. */
static kvt_status put_plan(kvt_store *store, put_work *work, store_entry *entry)
{
    assert(store_is_locked(store));
    if (work->full) return put_note_busy(store, entry, STORE_REFUSAL_STAGING);
    bool hands_over = handover_is_on(store) && work->staged == NULL;
    /* With enough puts handed over the next one is decided when an executor takes it. */
    if (hands_over && (store->handover.count >= STORE_HANDOVER_THREADS ||
                       put_parent_is_undecided(store, work->source, NULL))) {
        if (!handover_lags_unplanned(store, work->data_bytes)) return KVT_QUEUED;
        return put_note_busy(store, entry, STORE_REFUSAL_BACKLOG);
    }
    kvt_status status = put_admit(store, entry, &work->progress, work->plan);
    if (status != KVT_OK) return status;
    /* An executor's put has its place in the queue already. */
    if (hands_over && handover_lags(store, work->plan)) {
        plan_withdraw(store, work->plan);
        store->counters.puts_busy++;
        store->tallies.refusals[STORE_REFUSAL_BACKLOG]++;
        return KVT_BUSY;
    }
    plan_mark(store, work->plan);
    if (work->staged == NULL) return KVT_OK;
    handover_note_plan(store, work->staged, work->plan);
    pthread_cond_broadcast(&store->changed); /* puts behind this one may be decided on now */
    return KVT_OK;
}

/* Asks for one plan, under one hold of the lock. An entry that this call made leaves the table
 * again unless the put goes on. */
static kvt_status put_decide_once(kvt_store *store, put_work *work)
{
    store_entry *entry = NULL;
    kvt_status status = KVT_OK;
    work->plan->count = 0;
    /* Outside of the lock: they may be many. A plan that failed took the last copy with its entry.
     */
    if (work->staged == NULL && work->scores == NULL)
        status = token_drop_copy_scores(store, work->source, &work->scores);
    if (status != KVT_OK) return status;
    pthread_mutex_lock(&store->lock);
    uint64_t trials = store->counters.learned.puts_tried;
    if (work->staged != NULL) {
        while (!store->handover.stopping &&
               put_parent_is_undecided(store, work->source, work->staged))
            pthread_cond_wait(&store->changed, &store->lock);
        entry = entry_find_handle(&store->table, work->staged->handle);
        assert(entry != NULL && entry->state == ENTRY_STAGED);
        if (store->handover.stopping) status = KVT_E_CANCELLED;
    } else {
        status = put_enter(store, work, &entry);
    }
    if (status == KVT_OK) {
        status = put_plan(store, work, entry);
        /* KVT_EXISTS cannot be: the policy knows no handle that the table does not. */
        assert(status != KVT_EXISTS);
        bool ends = status != KVT_OK && status != KVT_QUEUED;
        if (ends && work->staged == NULL) {
            token_drop_take_scores(entry, &work->scores);
            entry_erase(&store->table, entry);
        }
    }
    work->progress.trial = store->counters.learned.puts_tried != trials;
    pthread_mutex_unlock(&store->lock);
    return status;
}

/* A put that finds no room lets the entries that lacked only room into plans again: one of them may
 * be given up for it. */
static bool put_find_victims(kvt_store *store, put_progress *progress, kvt_status status)
{
    if (progress->yielded || (status != KVT_E_SPACE && status != KVT_REFUSED)) return false;
    pthread_mutex_lock(&store->lock);
    progress->yielded = backoff_yield(store);
    pthread_mutex_unlock(&store->lock);
    return progress->yielded;
}

/* Ends the puts of this thread that fly where one of them may be what a further one lacks: its
 * key, or room. */
static bool put_waits_for_flights(const put_work *work)
{
    const kvt_status last = work->progress.last;
    if (work->flight == NULL || (last != KVT_BUSY && last != KVT_E_SPACE)) return false;
    executor_flights *flights = work->flight->flights;
    if (flights->first == NULL) return false;
    executor_flights_end(flights);
    return true;
}

kvt_status put_decide(kvt_store *store, put_work *work)
{
    put_progress *progress = &work->progress;
    while (progress->tries - progress->larger_changes < PUT_TRIES) {
        progress->tries++;
        progress->last = put_decide_once(store, work);
        if (progress->last == KVT_OK) return KVT_OK;
        if (put_waits_for_flights(work)) continue;
        if (!put_find_victims(store, progress, progress->last)) break;
    }
    return progress->last;
}

/* Learns from a failed put the size to plan the next one with. A record that came out larger is
 * planned at its size. When the room was too scattered, as after a restart with larger stripe
 * units, the next plan makes room for twice as much, up to PUT_ROOM_MOST records. False: another
 * plan could use nothing of it. */
static bool put_learn_size(put_progress *progress, const kvt_move *put,
                           const executor_result *result)
{
    assert(put->kind == KVT_MOVE_PUT && result->cause != EXECUTOR_DONE);
    uint64_t planned = store_bytes_of(put->to_bytes);
    bool larger = result->put_bytes > planned;
    const executor_cause cause = result->cause;
    bool lacks_room = cause == EXECUTOR_ROOM || cause == EXECUTOR_LATE || cause == EXECUTOR_FULL;
    bool crowded = lacks_room && planned < PUT_ROOM_MOST * result->put_bytes;
    if (!larger && !crowded) return false;
    progress->larger_variant = put->to_variant;
    progress->larger_bytes = larger ? result->put_bytes : 2 * planned;
    return true;
}

/* Whether a plan that ended so is followed by another. */
static bool put_tries_again(kvt_store *store, put_work *work, const executor_result *result)
{
    assert(work->progress.last != KVT_OK && result->cause != EXECUTOR_DONE);
    put_progress *progress = &work->progress;
    if (result->cause == EXECUTOR_HELD) return false; /* a further plan would wait as long */
    if (put_find_victims(store, progress, progress->last)) return true;
    if (progress->last >= 0) return false;
    /* A trial that fails is no fault of the put, which is decided on its merit next. */
    if (progress->trial) return true;
    if (result->cause == EXECUTOR_MEMORY) return false;
    if (result->before_put) {
        if (result->cause == EXECUTOR_LARGER && progress->larger_changes < PUT_LARGER)
            progress->larger_changes++;
        return true;
    }
    bool sized = put_learn_size(progress, &work->plan->moves[work->plan->count - 1], result);
    /* The next plan does without the device, or makes room on those that are not late. */
    if (result->cause == EXECUTOR_DEVICE || result->cause == EXECUTOR_LATE) return true;
    return result->cause != EXECUTOR_OTHER && sized;
}

bool put_is_copy(const kvt_store *store, const put_work *work)
{
    const kvt_move *put = &work->plan->moves[0];
    if (work->plan->count != 1 || put->to_variant.codec != KVT_CODEC_RAW) return false;
    kvt_tier tier = store_tier_of(put->to_bytes);
    return tier < KVT_TIER_SSD && tiers_pool_in_memory(store->pools[tier]);
}

kvt_status put_run(kvt_store *store, put_work *work)
{
    assert(work->progress.last == KVT_OK || work->staged != NULL || work->flies);
    assert(work->plan->count > 0);
    put_progress *progress = &work->progress;
    kvt_status status = KVT_OK;
    while (status == KVT_OK) {
        executor_result result = {0};
        const kvt_plan *plan = work->plan;
        const executor_source source = {work->views, work->gpu, work->flight,
                                        progress->tries - progress->larger_changes >
                                            PUT_TRIES_IN_TIME};
        if (work->flies)
            progress->last = executor_flight_end(work->flight, &result);
        else
            progress->last = executor_run_plan(store, plan->moves, plan->count, source, &result);
        if (work->flies) work->flight = NULL; /* further plans are carried out at once */
        work->flies = progress->last == KVT_QUEUED;
        if (work->flies) return KVT_QUEUED;
        if (progress->last == KVT_OK || !put_tries_again(store, work, &result))
            return progress->last;
        work->failure = progress->last;
        status = put_decide(store, work);
        if (work->here && status == KVT_OK) return KVT_QUEUED;
    }
    return status;
}

void put_pack_views(const kvt_entry *source, void *data, kvt_view views[KVT_GROUPS_MAX])
{
    if (source->group_count != 0)
        record_groups_pack(source->groups, source->group_count, data, views);
    else
        views[0] = codecs_packed_view(&source->layout, data);
}

kvt_status put_finish(kvt_store *store, store_staged *staged, kvt_plan *plan)
{
    assert(staged->begun && staged->count <= plan->capacity);
    memcpy(plan->moves, staged->moves, staged->count * sizeof *plan->moves);
    plan->count = staged->count;
    kvt_view views[KVT_GROUPS_MAX];
    put_pack_views(&staged->source, staged->buffer.memory, views);
    put_work work = {.source = &staged->source,
                     .views = views,
                     .staged = staged,
                     .plan = plan,
                     .progress = staged->progress};
    kvt_status status = staged->count == 0 ? put_decide(store, &work) : KVT_OK;
    if (status == KVT_OK) status = put_run(store, &work);
    /* The put was accepted: that no further plan was to be had is not why it failed. */
    if (status > 0 && work.failure != KVT_OK) status = work.failure;
    return put_status(status);
}

kvt_status put_status(kvt_status status)
{
    switch (status) {
    case KVT_E_GONE:
    case KVT_E_READ_ONLY:
    case KVT_E_LOCKED:
    case KVT_E_CORRUPT:
    case KVT_E_VERSION:
    case KVT_E_MISMATCH:
    case KVT_E_DATABASE: return KVT_E_IO;
    default: return status;
    }
}
