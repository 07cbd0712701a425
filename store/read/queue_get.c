/* SPDX-License-Identifier: Apache-2.0 */
/*
 * queue_get.c - the gets of a queue: a chunk is begun in two holds of the control lock, what lies
 * in memory is decoded at once, and what is read is decoded when it arrives. The file decides no
 * order; queue_run.c does.
 *
 * Thread rule: a queue's threads, each with its own items; no lock held at entry.
 */
#include "base/clock.h"
#include "codecs/view_rows.h"
#include "store/gpu/gpu_views.h"
#include "store/hosts/remote_tier.h"
#include "store/learn/token_drop.h"
#include "store/read/groups.h"
#include "store/read/queue_internal.h"
#include "store/watch/watching.h"

#include <assert.h>
#include <stdlib.h>

/* A chunk's items by outcome: done, or to begin again. */
typedef struct get_outcome {
    queue_item *done[QUEUE_CHUNK];
    queue_item *back[QUEUE_CHUNK];
    uint32_t done_count;
    uint32_t back_count;
} get_outcome;

/* Ends the chunk: completes its items, and queues again those that have to begin again. */
static void get_settle(kvt_queue *queue, const get_outcome *outcome)
{
    assert(outcome->done_count + outcome->back_count <= QUEUE_CHUNK);
    queue_complete(queue, outcome->done, outcome->done_count);
    queue_put_back(queue, outcome->back, outcome->back_count);
}

/* The bytes that a get asks for: of one that found nothing, those of its packed buffer. */
static uint64_t get_bytes(const queue_item *item)
{
    const kvt_view *view = item->view;
    if (item->get.target.bytes != 0 || view == NULL) return item->get.target.bytes;
    return view->bases_kind == KVT_BASES_PACKED ? view->base_bytes[0] : 0;
}

/* Shows a get that has ended to those who watch. */
static void get_note(kvt_store *store, const queue_item *item)
{
    const access_get *get = &item->get;
    watch_note_get(store, &(watch_get){.key = &item->key,
                                       .info = &item->info,
                                       .began_ns = get->began_ns,
                                       .status = item->status,
                                       .failure = get->failure,
                                       .tokens = get->tokens,
                                       .data_bytes = get_bytes(item),
                                       .refused_loss = item->refused_loss});
}

/* The item has ended with the status of its get. */
static void get_done(kvt_store *store, queue_item *item, kvt_status status, get_outcome *outcome)
{
    item->status = status;
    item->refused_loss = item->get.refused_loss;
    item->info.refused_tokens = item->get.refused_tokens;
    const bool refused = item->refused_loss || item->info.refused_tokens;
    if (status == KVT_E_MISMATCH) item->info.variant = item->get.variant;
    if (status == KVT_MISS)
        item->info.timed_out =
            !refused && (item->info.timed_out || base_clock_ns() >= item->deadline_ns);
    get_note(store, item);
    assert(outcome->done_count < QUEUE_CHUNK);
    outcome->done[outcome->done_count++] = item;
}

/* A get that has come has ended with a status. KVT_BUSY: it begins again. */
static void get_ended(kvt_store *store, queue_item *item, kvt_status status, get_outcome *outcome)
{
    if (status != KVT_BUSY) {
        get_done(store, item, status, outcome);
        return;
    }
    assert(outcome->back_count < QUEUE_CHUNK);
    outcome->back[outcome->back_count++] = item;
}

/* Carries out gets whose records are read in place. */
static void get_end_all(kvt_store *store, queue_item *const *items, uint32_t count,
                        get_outcome *outcome)
{
    access_get *gets[QUEUE_CHUNK];
    kvt_get_info *infos[QUEUE_CHUNK];
    kvt_status statuses[QUEUE_CHUNK];
    _Static_assert(QUEUE_CHUNK <= ACCESS_ALL_MOST, "a chunk is ended in one call");
    if (count == 0) return;
    for (uint32_t i = 0; i < count; i++) {
        gets[i] = &items[i]->get;
        infos[i] = &items[i]->info;
    }
    access_complete_all(store, gets, count, infos, statuses);
    for (uint32_t i = 0; i < count; i++)
        get_ended(store, items[i], statuses[i], outcome);
}

/* Carries out gets whose bytes are in memory. */
static void get_end_ready(kvt_store *store, queue_item *const *items, uint32_t count,
                          get_outcome *outcome)
{
    queue_item *lying[QUEUE_CHUNK];
    uint32_t lying_count = 0;
    for (uint32_t i = 0; i < count; i++) {
        queue_item *item = items[i];
        assert(item->get.stage == ACCESS_READY);
        if (item->get.in_memory)
            lying[lying_count++] = item;
        else
            get_ended(store, item, access_end_ready(store, &item->get, &item->info), outcome);
    }
    get_end_all(store, lying, lying_count, outcome);
}

/* An item's read has landed, or the one that it has joined has ended. */
static void get_landed(void *context)
{
    queue_item *item = context;
    queue_arrive(item->queue, item);
}

/* Bytes that an item's decoding lacked have come. */
static void get_come(void *context)
{
    queue_item *item = context;
    queue_come(item->queue, item);
}

/* The task of an item's decoding. */
static void get_decode(void *context)
{
    queue_item *item = context;
    access_decode_some(item->queue->store, &item->get);
    queue_decoded(item->queue, item);
}

/* Makes a get of a request, as far as it does not depend on the stored entry. Its status says
 * whether it may go on. */
static void get_make(queue_item *item, uint64_t handle)
{
    item->get = (access_get){.deadline_ns = item->deadline_ns,
                             .handle = handle,
                             .waited = item->urgency == KVT_CLASS_WAITED,
                             .key = &item->key,
                             .target = {.view = item->view,
                                        .first_layer = item->first_layer,
                                        .layer_count = item->layer_count},
                             .loss_max = item->loss_max,
                             .again = item->get.again,
                             .waiter = {.ended = get_landed, .context = item},
                             .come = get_come};
    item->status = token_drop_ask(item->given, &item->get.target);
    const bool named = groups_are_named(item->view);
    const bool packed = item->view->bases_kind == KVT_BASES_PACKED;
    /* A packed buffer of a GPU takes groups one by one, too. */
    if (!named && !(packed && view_is_far(item->view))) return;
    const uint32_t views = named ? item->view->group_count : KVT_GROUPS_MAX;
    if (item->groups == NULL) /* it may have begun before */
        item->groups = malloc(sizeof *item->groups + views * sizeof item->groups->views[0]);
    if (item->groups != NULL)
        item->get.target.view = item->groups->views;
    else
        item->status = KVT_E_MEMORY;
}

/* Prepares the gets of a chunk, with the layouts of the entries that are stored now: one hold of
 * the store's lock. */
static void get_prepare(kvt_queue *queue, queue_item **items, uint32_t count)
{
    kvt_store *store = queue->store;
    kvt_key keys[QUEUE_CHUNK];
    entry_sight sight;
    uint64_t bytes = 0;
    assert(count > 0 && count <= QUEUE_CHUNK);
    keys[0] = items[0]->key;
    for (uint32_t i = 1; i < count; i++)
        keys[i] = items[i]->key;
    entry_sight_begin(&sight, &store->secret, keys, count);
    for (uint32_t i = 0; i < count; i++)
        get_make(items[i], sight.handles[i]);
    pthread_mutex_lock(&store->lock);
    for (uint32_t i = 0; i < count; i++) {
        access_target *target = &items[i]->get.target;
        queue_groups *groups = items[i]->groups;
        bool there = access_take_layout(store, entry_sight_find(&store->table, &sight, i), target,
                                        groups != NULL ? groups->layouts : NULL);
        if (!there) items[i]->status = KVT_MISS;
        bytes += target->bytes;
    }
    pthread_mutex_unlock(&store->lock);
    for (uint32_t i = 0; i < count; i++)
        items[i]->get.of_many = bytes >= VIEW_STREAM_BYTES;
}

/* Layouts that a get's views are for: those of its entry's groups, or the entry's own. */
static const kvt_layout *get_layouts(const access_target *target, uint32_t *count_out)
{
    *count_out = target->group_count != 0 ? target->group_count : 1;
    return target->group_count != 0 ? target->groups : &target->layout;
}

/* Makes the target of a get of all groups the packed buffer of its view. */
static kvt_status get_take_packed(queue_item *item)
{
    access_target *target = &item->get.target;
    if (item->first_layer != 0 || item->layer_count != 0) return KVT_E_ARGUMENT;
    target->view = NULL;
    target->data = item->view->base[0];
    return kvt_view_check(item->view, &target->layout, NULL, 0);
}

/* Checks views in a GPU's memory. KVT_QUEUED: their events are not over, and a thread of a queue
 * does not wait for the engine. */
static kvt_status get_check_gpu(kvt_store *store, access_target *target, const kvt_layout *layouts,
                                uint32_t count)
{
    kvt_status status = store_gpu_site(store, layouts, target->view, count, &target->gpu);
    for (uint32_t i = 0; i < count && status == KVT_OK; i++)
        if (target->view[i].ready != NULL)
            status = gpu_site_ready(target->gpu, target->view[i].ready);
    return status;
}

/* Checks the view and the layers of a get for the layouts of its entry. */
static kvt_status get_check(kvt_store *store, queue_item *item)
{
    access_target *target = &item->get.target;
    const bool packed = item->view->bases_kind == KVT_BASES_PACKED;
    const bool grouped = target->group_count != 0, far = view_is_far(item->view);
    kvt_status status = item->status;
    if (status != KVT_OK) return status;
    if (grouped && packed && !far) return get_take_packed(item);
    if (grouped && item->groups == NULL) return KVT_E_ARGUMENT;
    uint32_t count;
    const kvt_layout *layouts = get_layouts(target, &count);
    const uint32_t layers = record_groups_layers(layouts, count);
    if (item->first_layer > layers || item->layer_count > layers - item->first_layer)
        return KVT_E_ARGUMENT;
    if (item->first_layer == layers && layers != 0) return KVT_E_ARGUMENT;
    if (item->groups != NULL) {
        status = groups_take_view(layouts, count, grouped, item->view, item->groups->views);
    } else if (packed) {
        target->view = &item->packed;
        status = groups_take_view(layouts, 1, false, item->view, &item->packed);
    } else {
        status = kvt_view_check(item->view, layouts, NULL, 0);
    }
    return status == KVT_OK && far ? get_check_gpu(store, target, layouts, count) : status;
}

/* Refuses gets of a chunk that would write memory that an earlier one writes, or the same twice.
 * Without memory for the views of many groups none is refused: bytes of overlapping views are
 * undefined, no more. */
static void get_check_overlaps(queue_item *const *items, uint32_t count)
{
    queue_view few[QUEUE_CHUNK], *views = few;
    uint32_t wanted = 0, sound = 0;
    for (uint32_t i = 0; i < count; i++)
        wanted += items[i]->groups != NULL ? items[i]->view->group_count : 1;
    if (wanted > QUEUE_CHUNK) views = malloc(wanted * sizeof *views);
    for (uint32_t i = 0; i < count && views != NULL; i++) {
        const access_target *target = &items[i]->get.target;
        uint32_t groups;
        if (items[i]->status != KVT_OK) continue;
        const kvt_layout *layouts = get_layouts(target, &groups);
        if (target->view == NULL) { /* packed, of all groups */
            views[sound++] = (queue_view){
                .view = items[i]->view, .bytes = target->bytes, .status = &items[i]->status};
            continue;
        }
        for (uint32_t k = 0; k < groups; k++)
            views[sound++] = (queue_view){
                .view = &target->view[k],
                .tokens = layouts[k].tokens,
                .bytes = target->group_count != 0 ? groups_bytes(&layouts[k]) : target->bytes,
                .status = &items[i]->status};
    }
    if (views != NULL) queue_views_check(views, sound);
    if (views != few) free(views);
}

/* Ends the gets of a chunk that cannot be begun, or puts them back; returns how many are left, at
 * the front. */
static uint32_t get_sift(kvt_queue *queue, queue_item **items, uint32_t count, get_outcome *outcome)
{
    uint32_t left = 0;
    for (uint32_t i = 0; i < count; i++)
        items[i]->status = get_check(queue->store, items[i]);
    get_check_overlaps(items, count);
    for (uint32_t i = 0; i < count; i++) {
        queue_item *item = items[i];
        /* What is not here may be on another host; its view is checked when it has come. */
        const bool elsewhere = item->status == KVT_MISS && item->groups == NULL &&
                               queue->store->remote != NULL && !view_is_far(item->view) &&
                               remote_get_is_worth(queue->store, &item->get);
        if (item->status == KVT_OK || elsewhere) {
            items[left++] = item;
            continue;
        }
        const bool late = item->status == KVT_QUEUED && base_clock_ns() >= item->deadline_ns;
        if (item->status == KVT_QUEUED && !late) {
            outcome->back[outcome->back_count++] = item;
            continue;
        }
        if (late) item->status = KVT_E_TIMEOUT;
        get_done(queue->store, item,
                 access_refuse(queue->store, &item->get, item->status, &item->info), outcome);
        item->info.timed_out = late;
    }
    assert(left + outcome->done_count + outcome->back_count == count);
    return left;
}

/* Marks all items of a chunk as in flight, before their reads can land; those that fly are listed
 * then, and a thread may give them up. */
static void get_mark(queue_item **items, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        items[i]->in_flight = true;
        items[i]->begun_wholly = false;
        items[i]->given_up = false;
        items[i]->more = false;
        items[i]->decoding = (queue_task){.run = get_decode, .context = items[i]};
    }
}

/* Takes the mark from the items that do not fly, and lists the others. */
static void get_list_flying(kvt_queue *queue, queue_item **items, const access_stage *stages,
                            uint32_t count, uint32_t started)
{
    uint32_t flying = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (stages[i] == ACCESS_FLIES)
            flying++;
        else
            items[i]->in_flight = false;
    }
    if (flying == 0) return; /* no read was started */
    pthread_mutex_lock(&queue->lock);
    queue->counts.device_reads += started;
    for (uint32_t i = 0; i < count; i++) {
        queue_item *item = items[i];
        if (stages[i] != ACCESS_FLIES) continue;
        item->begun_wholly = true;
        item->next_flying = queue->flying;
        queue->flying = item;
        queue->flying_count++;
        if (item->in_flight) {
            queue_decode_more(queue, item);
            continue;
        }
        queue_append(&queue->arrived, item);
        pthread_cond_signal(&queue->work);
    }
    /* One thread is enough to watch deadlines: each looks at them before it sleeps. */
    pthread_cond_signal(&queue->work);
    pthread_mutex_unlock(&queue->lock);
}

/* Takes items off the list of those that fly. */
static void get_unlist(kvt_queue *queue, queue_item *const *items, uint32_t count)
{
    pthread_mutex_lock(&queue->lock);
    for (uint32_t i = 0; i < count; i++) {
        queue_item **at = &queue->flying;
        while (*at != items[i])
            at = &(*at)->next_flying;
        assert(items[i]->state == QUEUE_BEGUN && items[i]->begun_wholly);
        *at = items[i]->next_flying;
        assert(queue->flying_count > 0);
        queue->flying_count--;
    }
    assert((queue->flying == NULL) == (queue->flying_count == 0));
    pthread_mutex_unlock(&queue->lock);
}

/* Sorts the gets of a chunk whose bytes are in memory: long ones behind short ones, which would
 * wait for them. */
static uint32_t get_sort_ready(queue_item *const *items, const access_stage *stages, uint32_t count,
                               queue_item **ready)
{
    uint32_t ready_count = 0;
    for (int large = 0; large < 2; large++)
        for (uint32_t i = 0; i < count; i++)
            if (stages[i] == ACCESS_READY &&
                (items[i]->get.target.bytes > QUEUE_SHARE_BYTES) == (large != 0))
                ready[ready_count++] = items[i];
    return ready_count;
}

/* Decodes this thread's share of the gets whose bytes are in memory, and hands the rest on.
 * threads: the thread is one of the queue's. */
static void get_divide(kvt_queue *queue, queue_item *const *ready, uint32_t count, bool threads,
                       get_outcome *outcome)
{
    bool decodes = threads && queue->thread_count != 0;
    if (queue->thread_count != 0) count = queue_hand_on(queue, ready, count, &decodes);
    get_end_ready(queue->store, ready, count, outcome);
    if (decodes) queue_end_share(queue);
}

/* Begins a chunk. threads: the thread is one of the queue's. */
static void get_begin(kvt_queue *queue, queue_item **items, uint32_t count, bool threads)
{
    get_outcome outcome = {.done_count = 0};
    access_get *gets[QUEUE_CHUNK] = {NULL};
    access_stage stages[QUEUE_CHUNK];
    assert(count > 0 && count <= QUEUE_CHUNK);
    get_prepare(queue, items, count);
    count = get_sift(queue, items, count, &outcome);
    bool starved = outcome.back_count != 0;
    for (uint32_t i = 0; i < count; i++)
        gets[i] = &items[i]->get;
    get_mark(items, count);
    /* From here on a get that flies may land on another thread; the mark keeps it off `arrived`. */
    uint32_t started = access_begin_all(queue->store, gets, count);
    for (uint32_t i = 0; i < count; i++)
        stages[i] = gets[i]->stage; /* flying gets are another thread's from get_list_flying on */
    get_list_flying(queue, items, stages, count, started);
    for (uint32_t i = 0; i < count; i++) {
        queue_item *item = items[i];
        if (stages[i] == ACCESS_ENDED) {
            const kvt_status status = item->get.status;
            get_done(queue->store, item,
                     access_refuse(queue->store, &item->get, status, &item->info), &outcome);
        } else if (stages[i] == ACCESS_STARVES || stages[i] == ACCESS_CHANGED) {
            starved = true;
            if (base_clock_ns() >= item->deadline_ns)
                get_done(queue->store, item,
                         access_refuse(queue->store, &item->get, KVT_E_TIMEOUT, &item->info),
                         &outcome);
            else
                outcome.back[outcome.back_count++] = item;
        }
    }
    queue_item *ready[QUEUE_CHUNK];
    const uint32_t ready_count = get_sort_ready(items, stages, count, ready);
    get_divide(queue, ready, ready_count, threads, &outcome);
    if (starved) {
        pthread_mutex_lock(&queue->lock);
        queue->starved_ns = base_clock_ns();
        pthread_mutex_unlock(&queue->lock);
    }
    get_settle(queue, &outcome);
}

void queue_gets_begin(kvt_queue *queue, queue_item **items, uint32_t count)
{
    get_begin(queue, items, count, true);
}

void queue_gets_begin_waiting(kvt_queue *queue, queue_item **items, uint32_t count)
{
    get_begin(queue, items, count, false);
}

void queue_gets_arrived(kvt_queue *queue, queue_item **items, uint32_t count)
{
    get_outcome outcome = {.done_count = 0};
    get_unlist(queue, items, count);
    for (uint32_t i = 0; i < count; i++) {
        queue_item *item = items[i];
        access_land(queue->store, &item->get);
        if (item->get.stage == ACCESS_READY)
            get_end_ready(queue->store, &item, 1, &outcome);
        else /* STARVES */
            outcome.back[outcome.back_count++] = item;
    }
    get_settle(queue, &outcome);
}

void queue_gets_share(kvt_queue *queue, queue_item **items, uint32_t count)
{
    get_outcome outcome = {.done_count = 0};
    get_end_ready(queue->store, items, count, &outcome);
    get_settle(queue, &outcome);
}

/* Why a get has to be given up; KVT_OK: it has not. */
static kvt_status get_fault(const queue_item *item)
{
    if (item->cancels) return KVT_E_CANCELLED;
    if (base_clock_ns() >= item->deadline_ns) return KVT_E_TIMEOUT;
    /* A device that does not answer would hold the get for ever where it has no deadline. */
    return access_is_stuck(&item->get) ? KVT_E_GONE : KVT_OK;
}

void queue_gets_give_up(kvt_queue *queue, queue_item **items, uint32_t count)
{
    get_outcome outcome = {.done_count = 0};
    queue_item *kept[QUEUE_CHUNK];
    uint32_t kept_count = 0;
    for (uint32_t i = 0; i < count; i++) {
        queue_item *item = items[i];
        kvt_status fault = get_fault(item);
        if (fault == KVT_OK || !access_give_up(queue->store, &item->get, fault, &item->info)) {
            kept[kept_count++] = item;
            continue;
        }
        get_done(queue->store, item, fault == KVT_E_CANCELLED ? fault : item->get.status, &outcome);
        item->info.timed_out = fault == KVT_E_TIMEOUT;
    }
    assert(outcome.done_count + kept_count == count);
    if (outcome.done_count != 0) get_unlist(queue, outcome.done, outcome.done_count);
    get_settle(queue, &outcome);
    pthread_mutex_lock(&queue->lock);
    for (uint32_t i = 0; i < kept_count; i++) {
        kept[i]->given_up = false;
        if (kept[i]->in_flight)
            queue_decode_more(queue, kept[i]);
        else /* it landed meanwhile */
            queue_append(&queue->arrived, kept[i]);
    }
    if (kept_count != 0) pthread_cond_broadcast(&queue->work);
    pthread_mutex_unlock(&queue->lock);
}
