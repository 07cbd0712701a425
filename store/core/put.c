/* SPDX-License-Identifier: Apache-2.0 */
/*
 * put.c - puts: the caller decides, copies and hands over; an executor carries the plan out.
 *
 *     caller      find -> options -> admit -> copy -> handed over
 *     caller      find -> options -> admit -> copied into memory that is the entry's place
 *     caller      find -> options -> admit -> encoded by a GPU, where the KV is -> written
 *     executor    what the plan says, ending with the put itself; a plan that fails is made again
 *
 * Without put staging (store.put_staging = 0) the caller does both.
 *
 * Thread rule: any thread; the control lock for the moment of a decision.
 */
#include "base/struct_size.h"
#include "codecs/view_rows.h"
#include "store/core/executor_flights.h"
#include "store/core/handover.h"
#include "store/gpu/gpu_put.h"
#include "store/gpu/gpu_views.h"
#include "store/learn/token_drop.h"
#include "store/read/groups.h"
#include "store/watch/watching.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* Checks a put's entry: every number within its range. */
static kvt_status put_check_entry(const kvt_entry *entry, uint64_t *source_bytes_out)
{
    kvt_status status = kvt_layout_bytes(&entry->layout, source_bytes_out);
    if (status != KVT_OK) return status;
    if (entry->class_id > UINT16_MAX || entry->tenant >= KVT_TENANTS_MAX) return KVT_E_ARGUMENT;
    if (!(entry->recompute_seconds >= 0 && entry->recompute_seconds <= 1e9)) return KVT_E_ARGUMENT;
    if (!(entry->lifetime_seconds >= 0 && entry->lifetime_seconds <= 1e9)) return KVT_E_ARGUMENT;
    /* With groups the layout is that of all of them: groups_take_entry has checked theirs. */
    if (UINT32_MAX - entry->first_position < entry->layout.tokens) return KVT_E_ARGUMENT;
    if (entry->reserved != 0) return KVT_E_ARGUMENT;
    if (entry->parent != NULL && memcmp(entry->parent, &entry->key, sizeof entry->key) == 0) {
        return KVT_E_ARGUMENT; /* a chain ends at a root */
    }
    return token_drop_check_scores(entry);
}

/* ---- the call ---- */

/* Whether a GPU may encode what a plan puts: the caller carries the plan out then, while the KV is
 * where it is. */
static bool put_is_encoded_there(const put_work *work)
{
    const kvt_plan *plan = work->plan;
    return work->gpu != NULL && work->gpu->count == 1 &&
           store_gpu_may_encode(work->gpu->site, plan->moves[plan->count - 1].to_variant);
}

/* Copies an entry out of a GPU's memory. False: it could not be read. */
static bool put_bring(put_work *work)
{
    if (work->gpu == NULL) return true;
    if (store_gpu_bring(work->gpu) != KVT_OK) return false;
    work->views = work->gpu->packed;
    work->gpu = NULL;
    return true;
}

/* Decides, and stores the bytes where the plan is to copy them into memory, or a GPU encodes them;
 * else copies them into put staging and hands the put over. Staging is taken before the decision,
 * so that no plan is made for bytes that find no room. */
static kvt_status put_hand_over(kvt_store *store, put_work *work)
{
    staging_buffer buffer;
    kvt_status status = handover_stage(store, work->data_bytes, &buffer);
    if (status < 0) return status;
    work->full = status == KVT_BUSY;
    status = put_decide(store, work);
    work->here = status == KVT_OK && (put_is_copy(store, work) || put_is_encoded_there(work));
    if (work->here) status = put_run(store, work);
    if ((status == KVT_OK && !work->here) || status == KVT_QUEUED) {
        const kvt_view *views = put_bring(work) ? work->views : NULL;
        status = handover_accept(store, work->source, views, work->plan, &work->progress, &buffer);
    }
    staging_release(store->handover.staging, &buffer);
    return status;
}

static void put_free(put_work *work)
{
    free(work->own.moves);
    free(work->scores);
}

/* Decides on an entry and stores it, or hands it over. */
static kvt_status put_enter_entry(kvt_store *store, put_work *work)
{
    work->own = (kvt_plan){.capacity = STORE_PLAN_MOVES};
    work->own.moves = malloc(STORE_PLAN_MOVES * sizeof *work->own.moves);
    if (work->own.moves == NULL) return KVT_E_MEMORY;
    work->plan = &work->own;
    const bool behind = handover_is_on(store);
    kvt_status status = behind ? put_hand_over(store, work) : put_decide(store, work);
    if (!behind && status == KVT_OK) status = put_run(store, work);
    if (!work->flies) put_free(work);
    return status;
}

/* Counts a put that has ended; its status in the words of the public contract. */
static kvt_status put_count(kvt_store *store, const put_work *work, kvt_status status)
{
    const kvt_entry *source = work->source;
    const uint64_t handle = entry_handle(&store->secret, &source->key);
    pthread_mutex_lock(&store->lock);
    store->counters.puts++;
    if (status == KVT_REFUSED) trust_count_refused(store, handle);
    store->tallies.put_tokens[status != KVT_EXISTS] += source->layout.tokens;
    pthread_mutex_unlock(&store->lock);
    status = put_status(status);
    kvt_operation operation =
        watch_operation(store, KVT_OPERATION_PUT, &source->key, work->began_ns, status);
    operation.bytes = work->data_bytes;
    watch_note(store, &operation);
    return status;
}

/* A put whose arguments have been checked. */
static kvt_status put_offer(kvt_store *store, put_work *work)
{
    const kvt_entry *source = work->source;
    work->began_ns = store_now_ns(store);
    learn_note_use(store, entry_handle(&store->secret, &source->key), source->class_id);
    const kvt_status status = put_enter_entry(store, work);
    return work->flies ? KVT_QUEUED : put_count(store, work, status);
}

kvt_status put_end(kvt_store *store, put_call *call)
{
    assert(call->work.flies);
    const kvt_status status = put_run(store, &call->work);
    put_free(&call->work);
    return put_count(store, &call->work, status);
}

kvt_status put_take_in(kvt_store *store, const kvt_entry *entry, const kvt_view *view)
{
    put_work work = {.source = entry, .views = view};
    const kvt_status status = put_check_entry(entry, &work.data_bytes);
    if (status != KVT_OK) return status;
    learn_note_use(store, entry_handle(&store->secret, &entry->key), entry->class_id);
    return put_enter_entry(store, &work);
}

/* The caller's entry as this library knows it; NULL as struct_size_in, and as groups_take_entry. */
static const kvt_entry *put_take_entry(const kvt_entry *given, kvt_entry *whole)
{
    given = struct_size_in(given, whole, sizeof *whole, STRUCT_SIZE_THROUGH(kvt_entry, groups));
    return given != NULL ? groups_take_entry(given, whole) : NULL;
}

/* Puts an entry that lies in a GPU's memory. */
static kvt_status put_far(kvt_store *store, put_work *work, const kvt_layout *layouts,
                          const kvt_view *views, uint32_t count)
{
    store_gpu_views gpu;
    gpu_site *site;
    kvt_status status = store_gpu_site(store, layouts, views, count, &site);
    if (status != KVT_OK) return status;
    store_gpu_begin(site, layouts, views, count, &gpu);
    work->views = NULL;
    work->gpu = &gpu;
    status = put_offer(store, work);
    store_gpu_end(&gpu);
    if (status == KVT_OK) learn_note_put_from_gpu(store);
    return status != KVT_OK && gpu.failure != KVT_OK ? gpu.failure : status;
}

kvt_status put_begin(kvt_store *store, put_call *call, const kvt_entry *given, const kvt_view *view)
{
    if (given == NULL || view == NULL) return KVT_E_ARGUMENT;
    put_work *work = &call->work;
    work->source = put_take_entry(given, &call->whole);
    if (work->source == NULL) return KVT_E_ARGUMENT;
    work->views = call->views;
    const bool grouped = work->source->group_count != 0;
    const kvt_layout *layouts = grouped ? work->source->groups : &work->source->layout;
    const uint32_t count = grouped ? work->source->group_count : 1;
    kvt_status status = put_check_entry(work->source, &work->data_bytes);
    if (status == KVT_OK) status = groups_take_view(layouts, count, grouped, view, call->views);
    if (status != KVT_OK) return status;
    if (!view_is_far(view)) return put_offer(store, work);
    if (work->flight != NULL) executor_flights_end(work->flight->flights);
    work->flight = NULL;
    return put_far(store, work, layouts, call->views, count);
}

kvt_status kvt_store_put(kvt_store *store, const kvt_entry *given, const kvt_view *view)
{
    const base_store_calls *other = base_store_calls_of(store);
    if (other != NULL) return BASE_CALL(other, put, store, given, view);
    if (!fork_guard_is_ours(store)) return KVT_E_STATE;
    put_call call;
    call.whole = (kvt_entry){0};
    call.work = (put_work){.source = NULL};
    return put_begin(store, &call, given, view);
}
