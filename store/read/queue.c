/* SPDX-License-Identifier: Apache-2.0 */
/*
 * queue.c - a queue's life, and what its owner calls: submit, drain, wait, cancel. The file carries
 * no request out; queue_run.c does.
 *
 * A request's view and entry are the caller's until the request completes, so a submit copies no
 * arrays.
 *
 * Thread rule: as the public header says.
 */
#include "store/read/load_internal.h"

#include "base/struct_size.h"
#include "base/thread.h"
#include "base/wait.h"
#include "codecs/view_rows.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define QUEUE_THREADS_DEFAULT 2u

/* Sizes in version 0.2.0. */
#define QUEUE_OPTIONS_LEAST    STRUCT_SIZE_THROUGH(kvt_queue_options, depth)
#define QUEUE_REQUEST_LEAST    STRUCT_SIZE_THROUGH(kvt_request, info)
#define QUEUE_COMPLETION_LEAST STRUCT_SIZE_THROUGH(kvt_completion, elapsed_ns)
#define QUEUE_STATS_LEAST      STRUCT_SIZE_THROUGH(kvt_queue_stats, wakes)

/* ---- open and close ---- */

/* Adds a queue to those that kvt_store_close ends. */
static void queue_register(kvt_queue *queue)
{
    const queue_owner owner = queue->owner;
    assert(queue->next == NULL && queue->previous == NULL);
    pthread_mutex_lock(owner.lock);
    assert(*owner.first == NULL || (*owner.first)->previous == NULL);
    queue->next = *owner.first;
    if (queue->next != NULL) queue->next->previous = queue;
    *owner.first = queue;
    pthread_mutex_unlock(owner.lock);
}

/* Takes a queue out of the store's list. NULL: kvt_store_close has done so, and the store may be
 * freed. */
static kvt_store *queue_unregister(kvt_queue *queue)
{
    pthread_mutex_lock(&queue->lock);
    kvt_store *store = queue->store;
    pthread_mutex_unlock(&queue->lock);
    if (store == NULL) return NULL;
    const queue_owner owner = queue->owner;
    pthread_mutex_lock(owner.lock);
    if (queue->previous != NULL)
        queue->previous->next = queue->next;
    else
        *owner.first = queue->next;
    if (queue->next != NULL) queue->next->previous = queue->previous;
    pthread_mutex_unlock(owner.lock);
    return store;
}

void queue_free(kvt_queue *queue)
{
    assert(queue->begun == 0 && queue->flying == NULL && queue->loads == NULL);
    if (queue->event_fd >= 0) close(queue->event_fd);
    pthread_cond_destroy(&queue->work);
    pthread_cond_destroy(&queue->call);
    pthread_cond_destroy(&queue->ended);
    pthread_mutex_destroy(&queue->lock);
    free(queue->whole.left);
    free(queue->whole.spare);
    free(queue->items);
    free(queue);
}

/* Counts requests of batches from here on, for a queue of `depth`. False without memory. */
static bool queue_count_batches(kvt_queue *queue)
{
    queue_batches *whole = &queue->whole;
    whole->left = calloc(queue->depth, sizeof *whole->left);
    whole->spare = calloc(queue->depth, sizeof *whole->spare);
    if (whole->left == NULL || whole->spare == NULL) return false;
    while (whole->spare_count < queue->depth) {
        whole->spare[whole->spare_count] = whole->spare_count;
        whole->spare_count++;
    }
    return true;
}

kvt_queue *queue_make(kvt_store *store, uint32_t depth, bool signals)
{
    kvt_queue *queue = calloc(1, sizeof *queue);
    if (queue == NULL) return NULL;
    queue->store = store;
    const base_handle *other = base_store_calls_of(store) != NULL ? (const void *)store : NULL;
    queue->forks = other != NULL ? other->forks : store->forks;
    queue->depth = depth;
    pthread_mutex_init(&queue->lock, NULL);
    base_condition_init(&queue->work);
    base_condition_init(&queue->call);
    base_condition_init(&queue->ended);
    queue->event_fd = signals ? eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK) : -1;
    queue->items = calloc(depth, sizeof *queue->items);
    if ((signals && queue->event_fd < 0) || queue->items == NULL) {
        queue_free(queue);
        return NULL;
    }
    assert(queue->made == 0 && queue_adds_up(queue));
    return queue;
}

/* The number asked for, or the default for 0. */
static uint32_t queue_or(uint32_t asked, uint32_t otherwise)
{
    return asked != 0 ? asked : otherwise;
}

/* Starts threads until there are `wanted`. False: the system gives no more. */
static bool queue_start(kvt_queue *queue, pthread_t *threads, uint32_t *count, uint32_t wanted,
                        void *(*run)(void *))
{
    for (; *count < wanted; ++*count)
        if (base_thread_start(&threads[*count], run, queue) != KVT_OK) return false;
    return true;
}

/* Completes everything that waits as called off. Lock held. */
static void queue_call_off_waiting(kvt_queue *queue)
{
    for (uint32_t i = 0; i < QUEUE_CLASSES; i++) {
        queue_item *item;
        while ((item = queue_take(&queue->waiting[i])) != NULL ||
               (item = queue_take(&queue->calls[i])) != NULL) {
            assert(item->state == QUEUE_WAITING && item->urgency == i);
            item->status = KVT_E_CANCELLED;
            queue_complete_one(queue, item, base_clock_ns());
        }
    }
}

/* Ends the loads that are open. */
static void queue_stop_loads(kvt_queue *queue)
{
    for (;;) {
        pthread_mutex_lock(&queue->lock);
        struct kvt_load *load = queue->loads;
        if (load != NULL) queue_unlist_load(queue, load);
        pthread_mutex_unlock(&queue->lock);
        if (load == NULL) break;
        load_orphan(load);
    }
    pthread_mutex_lock(&queue->lock);
    queue->ends_loads = false;
    pthread_cond_broadcast(&queue->work);
    pthread_mutex_unlock(&queue->lock);
}

/* Ends the threads of a queue, and completes what waits with KVT_E_CANCELLED. Once is enough; more
 * do no harm. No lock held. */
static void queue_stop(kvt_queue *queue)
{
    pthread_mutex_lock(&queue->lock);
    /* The store and the owner may both end a queue: the threads are joined once. */
    bool first = !queue->stopping;
    queue->stopping = true;
    if (first) queue->ends_loads = true;
    queue_call_off_waiting(queue);
    for (uint32_t i = 0; i < queue->made; i++)
        if (queue->items[i].state == QUEUE_BEGUN) queue->items[i].called_off = true;
    queue_signal(queue);
    pthread_cond_broadcast(&queue->call);
    pthread_cond_broadcast(&queue->work);
    pthread_cond_broadcast(&queue->ended);
    pthread_mutex_unlock(&queue->lock);
    if (first) queue_stop_loads(queue);
    /* The threads finish begun items, so no target of the caller is left in their hands. */
    for (uint32_t i = 0; first && i < queue->thread_count; i++)
        pthread_join(queue->threads[i], NULL);
    for (uint32_t i = 0; first && i < queue->caller_count; i++)
        pthread_join(queue->callers[i], NULL);
}

kvt_status kvt_queue_open(kvt_store *store, const kvt_queue_options *options, kvt_queue **queue_out)
{
    const base_store_calls *other = base_store_calls_of(store);
    if (other != NULL) return BASE_CALL(other, queue_open, store, options, queue_out);
    if (store == NULL) return KVT_E_ARGUMENT;
    if (!fork_guard_is_ours(store)) return queue_out == NULL ? KVT_E_ARGUMENT : KVT_E_STATE;
    const queue_owner owner = {&store->lock, &store->queues};
    return queue_open_owned(store, owner, false, options, queue_out);
}

kvt_status queue_open_owned(kvt_store *store, queue_owner owner, bool blocks,
                            const kvt_queue_options *options, kvt_queue **queue_out)
{
    kvt_queue_options whole = {.struct_size = sizeof whole};
    if (queue_out == NULL) return KVT_E_ARGUMENT;
    if (options == NULL) options = &whole;
    options = struct_size_in(options, &whole, sizeof whole, QUEUE_OPTIONS_LEAST);
    if (options == NULL) return KVT_E_ARGUMENT;
    uint32_t threads = queue_or(options->threads, QUEUE_THREADS_DEFAULT);
    uint32_t depth = queue_or(options->depth, QUEUE_DEPTH_DEFAULT);
    if (threads > QUEUE_THREADS_MAX || depth > QUEUE_DEPTH_MAX) return KVT_E_ARGUMENT;
    kvt_queue *queue = queue_make(store, depth, true);
    if (queue == NULL) return KVT_E_MEMORY;
    queue->owner = owner;
    queue->blocks = blocks;
    kvt_status status = KVT_OK;
    queue->submitter_waits = options->submitter_waits;
    if (options->whole_batches && !queue_count_batches(queue))
        status = KVT_E_MEMORY;
    else if (!queue_start(queue, queue->threads, &queue->thread_count, threads + 1, queue_main) ||
             !queue_start(queue, queue->callers, &queue->caller_count, 1, queue_call_main))
        status = KVT_E_THREAD;
    if (status != KVT_OK) {
        queue_stop(queue);
        queue_free(queue);
        return status;
    }
    queue_register(queue);
    *queue_out = queue;
    return KVT_OK;
}

void queue_stop_all(queue_owner owner)
{
    for (;;) {
        pthread_mutex_lock(owner.lock);
        kvt_queue *queue = *owner.first;
        if (queue != NULL) {
            assert(queue->owner.first == owner.first && queue->previous == NULL);
            *owner.first = queue->next;
            if (queue->next != NULL) queue->next->previous = NULL;
        }
        pthread_mutex_unlock(owner.lock);
        if (queue == NULL) return;
        /* The owner may drain and close the queue later, when the store is freed. */
        queue_stop(queue);
        pthread_mutex_lock(&queue->lock);
        queue->store = NULL;
        pthread_mutex_unlock(&queue->lock);
    }
}

void kvt_queue_close(kvt_queue *queue)
{
    const base_queue_calls *other = base_queue_calls_of(queue);
    if (other != NULL) {
        other->close(queue);
        return;
    }
    if (!queue_is_ours(queue)) return;
    kvt_store *store = queue_unregister(queue);
    queue_stop(queue);
    if (store != NULL && !queue->blocks) {
        pthread_mutex_lock(&store->lock);
        lease_end_owner(store, queue);
        pthread_mutex_unlock(&store->lock);
    }
    queue_free(queue);
}

int kvt_queue_fd(const kvt_queue *queue)
{
    const base_queue_calls *other = base_queue_calls_of(queue);
    if (other != NULL) return other->fd(queue);
    return queue_is_ours(queue) ? queue->event_fd : -1;
}

/* ---- submit ---- */

/* The caller's requests, whose struct_size is sound and the same in all. */
typedef struct queue_given {
    const unsigned char *first;
    size_t stride;
    size_t count;
} queue_given;

/* One of the caller's requests as this library knows it. */
static const kvt_request *queue_request(const queue_given *given, size_t index, kvt_request *whole)
{
    *whole = (kvt_request){0};
    const void *at = given->first + index * given->stride;
    return struct_size_in(at, whole, sizeof *whole, QUEUE_REQUEST_LEAST);
}

/* Whether a request's fields fit its kind; views are checked apart. */
static kvt_status queue_check(const kvt_queue *queue, const kvt_request *request)
{
    if (request == NULL || request->urgency >= QUEUE_CLASSES) return KVT_E_ARGUMENT;
    if (!(request->loss_max <= 1)) return KVT_E_ARGUMENT; /* NAN, too */
    switch (request->kind) {
    case KVT_REQUEST_GET:
        if (!access_info_is_sound(request->info)) return KVT_E_ARGUMENT;
        if (request->view == NULL) return KVT_E_ARGUMENT;
        /* A blocking get gives every layer. */
        if (queue->blocks && (request->first_layer != 0 || request->layer_count != 0 ||
                              (request->info != NULL && request->info->kept != NULL)))
            return KVT_E_UNSUPPORTED;
        return queue->blocks && view_is_far(request->view) ? KVT_E_UNSUPPORTED : KVT_OK;
    case KVT_REQUEST_PUT:
        return request->view != NULL && request->entry != NULL ? KVT_OK : KVT_E_ARGUMENT;
    case KVT_REQUEST_PREFETCH:
        if (request->tier == KVT_TIER_NONE || request->tier >= KVT_TIER_PLACES)
            return KVT_E_ARGUMENT;
        return request->tier < KVT_TIER_COUNT ? KVT_OK : KVT_E_UNSUPPORTED;
    case KVT_REQUEST_EXISTS:
    case KVT_REQUEST_DELETE:
    case KVT_REQUEST_TOUCH: return KVT_OK;
    default: return KVT_E_ARGUMENT;
    }
}

/* Fills a free item from a request. An unsound request gets its status here, and its user word all
 * the same. Lock held: a cancel looks at all items. */
static void queue_fill(kvt_queue *queue, queue_item *item, const queue_given *given, uint32_t index,
                       uint64_t now_ns)
{
    kvt_request whole, known = {0};
    const kvt_request *request = queue_request(given, index, &whole);
    memcpy(&known, given->first + index * given->stride,
           given->stride < sizeof known ? given->stride : sizeof known);
    *item = (queue_item){.queue = queue,
                         .index = index,
                         .kind = known.kind,
                         .user = known.user,
                         .submitted_ns = now_ns,
                         .status = queue_check(queue, request),
                         .info = {.struct_size = sizeof item->info}};
    if (item->status != KVT_OK) return;
    item->urgency = request->urgency;
    item->tier = request->tier;
    item->key = request->key;
    item->deadline_ns =
        queue->blocks ? request->deadline_ns : access_deadline(queue->store, request->deadline_ns);
    item->loss_max = request->loss_max;
    item->view = request->view;
    item->first_layer = request->first_layer;
    item->layer_count = request->layer_count;
    item->entry = request->entry;
    item->given = request->info;
}

/* Gives a batch that is not empty a slot, where the queue counts open requests of batches. Each
 * batch with a slot has an item that is not free, so there are as many slots as items. Lock
 * held. */
static uint32_t queue_begin_batch(kvt_queue *queue, size_t count)
{
    queue_batches *whole = &queue->whole;
    if (whole->left == NULL || count == 0) return 0;
    assert(whole->spare_count > 0);
    const uint32_t slot = whole->spare[--whole->spare_count];
    assert(whole->left[slot] == 0);
    whole->left[slot] = (uint32_t)count;
    return slot;
}

/* An item for a request: one that was drained, or else the next of those that were never accepted.
 * Lock held; there is one. */
static queue_item *queue_take_free(kvt_queue *queue)
{
    queue_item *item = queue_take(&queue->free);
    if (item != NULL) return item;
    assert(queue->made < queue->depth);
    return &queue->items[queue->made++];
}

/* How many requests the queue can still accept. Lock held. */
static uint32_t queue_room(const kvt_queue *queue)
{
    return queue->free.count + (queue->depth - queue->made);
}

/* Wakes as many threads as there is work for: an idle one would take the lock, and maybe a core,
 * from a busy one. Lock held. */
static void queue_wake(kvt_queue *queue, uint32_t requests)
{
    for (uint32_t i = 0; i < queue->thread_count && i * QUEUE_CHUNK < requests; i++)
        pthread_cond_signal(&queue->work);
}

/* Wakes threads for requests that a caller who waits leaves to them, and of which they have not
 * been told. Lock held. */
static void queue_leave(kvt_queue *queue)
{
    uint32_t left = 0;
    if (!queue->submitter_waits) return;
    for (uint32_t i = 0; i < QUEUE_CLASSES; i++)
        left += queue->waiting[i].count;
    queue_wake(queue, left);
}

/* Takes items for a batch and hands them to the threads; completes those that are unsound. Lock
 * held. Returns the batch's number. */
static uint64_t queue_enqueue(kvt_queue *queue, const queue_given *given)
{
    uint64_t now_ns = base_clock_ns(), number = ++queue->batches;
    uint32_t added[2] = {0}; /* gets and the like, and calls */
    assert(!queue->stopping && queue_room(queue) >= given->count);
    const uint32_t slot = queue_begin_batch(queue, given->count);
    for (size_t i = 0; i < given->count; i++) {
        queue_item *item = queue_take_free(queue);
        assert(item->state == QUEUE_FREE);
        queue_fill(queue, item, given, (uint32_t)i, now_ns);
        item->batch = number;
        item->slot = slot;
        item->state = QUEUE_WAITING;
        if (item->status != KVT_OK) {
            queue_complete_one(queue, item, now_ns);
            continue;
        }
        queue_list *list = queue_list_of(queue, item);
        added[list == &queue->calls[item->urgency]]++;
        queue_append(list, item);
    }
    assert(queue_adds_up(queue));
    queue->counts.requests += given->count;
    queue->counts.batches++;
    queue_signal(queue);
    if (queue->completed.count != 0) pthread_cond_broadcast(&queue->ended);
    const uint32_t own = queue->submitter_waits ? QUEUE_HELP : 0; /* left to the submitter */
    if (added[0] > own) queue_wake(queue, added[0] - own);
    if (added[1] != 0) pthread_cond_broadcast(&queue->call);
    return number;
}

kvt_status kvt_queue_submit(kvt_queue *queue, const kvt_request *requests, size_t count,
                            uint64_t *batch_out)
{
    const base_queue_calls *other = base_queue_calls_of(queue);
    if (other != NULL) return other->submit(queue, requests, count, batch_out);
    if (queue == NULL || (requests == NULL && count != 0)) return KVT_E_ARGUMENT;
    if (!queue_is_ours(queue)) return KVT_E_STATE;
    if (count > queue->depth) return KVT_E_ARGUMENT;
    queue_given given = {.first = (const unsigned char *)requests, .count = count};
    if (count != 0) {
        if (!struct_size_is_sound(requests, QUEUE_REQUEST_LEAST)) return KVT_E_ARGUMENT;
        given.stride = struct_size_of(requests);
    }
    for (size_t i = 0; i < count; i++)
        if (struct_size_of(given.first + i * given.stride) != given.stride) return KVT_E_ARGUMENT;
    kvt_status status = KVT_OK;
    uint64_t number = 0;
    pthread_mutex_lock(&queue->lock);
    if (queue->stopping)
        status = KVT_E_STATE;
    else if (queue_room(queue) < count)
        status = KVT_BUSY;
    else
        number = queue_enqueue(queue, &given);
    if (status == KVT_BUSY) queue->counts.refused_busy++;
    pthread_mutex_unlock(&queue->lock);
    if (status == KVT_OK && batch_out != NULL) *batch_out = number;
    return status;
}

/* ---- drain, wait, cancel ---- */

/* Fills in the completion of an item. */
static kvt_completion queue_completion(const queue_item *item)
{
    const bool get = item->kind == KVT_REQUEST_GET, read = get && item->status == KVT_OK;
    const bool lacking = get && item->status == KVT_E_MISMATCH;
    return (kvt_completion){.struct_size = sizeof(kvt_completion),
                            .status = item->status,
                            .batch = item->batch,
                            .user = item->user,
                            .index = item->index,
                            .kind = item->kind,
                            .tier = read ? (uint32_t)item->info.tier : 0,
                            .timed_out = item->info.timed_out,
                            .refused_loss = item->refused_loss,
                            .refused_tokens = item->info.refused_tokens,
                            .guess = item->kind == KVT_REQUEST_EXISTS && item->guess,
                            .variant = read || lacking ? item->info.variant : (kvt_variant){0},
                            .stored_bytes = read ? item->info.stored_bytes : 0,
                            .elapsed_ns = item->info.elapsed_ns};
}

size_t kvt_queue_drain(kvt_queue *queue, kvt_completion *completions, size_t capacity)
{
    const base_queue_calls *other = base_queue_calls_of(queue);
    if (other != NULL) return other->drain(queue, completions, capacity);
    if (!queue_is_ours(queue) || completions == NULL || capacity == 0) return 0;
    if (!struct_size_is_sound(completions, QUEUE_COMPLETION_LEAST)) return 0;
    uint32_t stride = struct_size_of(completions);
    unsigned char *at = (unsigned char *)completions;
    size_t count = 0;
    pthread_mutex_lock(&queue->lock);
    queue_item *item;
    while (count < capacity && (item = queue_take(&queue->completed)) != NULL) {
        assert(item->state == QUEUE_COMPLETED && item->view == NULL);
        const kvt_completion completion = queue_completion(item);
        memcpy(at, &stride, sizeof stride);
        struct_size_out(at, &completion, sizeof completion);
        at += stride;
        count++;
        item->state = QUEUE_FREE;
        queue_push(&queue->free, item); /* an item that a cache still has is taken first */
    }
    assert(queue_adds_up(queue));
    if (queue->completed.count == 0 && queue->signalled) {
        uint64_t ignored;
        ssize_t got = read(queue->event_fd, &ignored, sizeof ignored);
        (void)got; /* the caller may have read it; then it is clear, too */
        queue->signalled = false;
    }
    if (queue->completed.count == 0) queue->whole.ended = false;
    pthread_mutex_unlock(&queue->lock);
    return count;
}

kvt_status kvt_queue_wait(kvt_queue *queue, uint64_t deadline_ns)
{
    const base_queue_calls *other = base_queue_calls_of(queue);
    if (other != NULL) return other->wait(queue, deadline_ns);
    if (queue == NULL) return KVT_E_ARGUMENT;
    if (!queue_is_ours(queue)) return KVT_E_STATE;
    bool waiting = true;
    pthread_mutex_lock(&queue->lock);
    for (;;) {
        bool accepted = queue->free.count + queue->completed.count != queue->made;
        if (queue->completed.count != 0 || !accepted || !waiting) break;
        waiting = base_clock_ns() < deadline_ns;
        /* The caller's thread has nothing else to do; a wake of another one would take longer. */
        if (!waiting || queue_help(queue)) continue;
        queue_leave(queue);
        queue->sleepers++;
        waiting = base_condition_wait_until(&queue->ended, &queue->lock, deadline_ns);
        queue->sleepers--;
    }
    kvt_status status = KVT_E_TIMEOUT;
    if (queue->completed.count != 0)
        status = KVT_OK;
    else if (queue->free.count == queue->made)
        status = KVT_END;
    queue_leave(queue);
    pthread_mutex_unlock(&queue->lock);
    return status;
}

/* Takes the items of a batch out of one class, and completes them as called off. Lock held. */
static uint32_t queue_cancel_waiting(kvt_queue *queue, queue_list *list, uint64_t batch)
{
    queue_list kept = {0};
    uint32_t count = 0;
    queue_item *item;
    while ((item = queue_take(list)) != NULL) {
        if (item->batch != batch) {
            queue_append(&kept, item);
            continue;
        }
        assert(item->state == QUEUE_WAITING);
        item->status = KVT_E_CANCELLED;
        queue_complete_one(queue, item, base_clock_ns());
        count++;
    }
    *list = kept;
    return count;
}

kvt_status kvt_queue_cancel(kvt_queue *queue, uint64_t batch)
{
    const base_queue_calls *other = base_queue_calls_of(queue);
    if (other != NULL) return other->cancel(queue, batch);
    if (queue == NULL) return KVT_E_ARGUMENT;
    if (!queue_is_ours(queue)) return KVT_E_STATE;
    uint32_t found = 0;
    pthread_mutex_lock(&queue->lock);
    for (uint32_t i = 0; i < QUEUE_CLASSES; i++)
        found += queue_cancel_waiting(queue, &queue->waiting[i], batch) +
                 queue_cancel_waiting(queue, &queue->calls[i], batch);
    for (uint32_t i = 0; i < queue->made && queue->begun != 0; i++) {
        queue_item *item = &queue->items[i];
        if (item->state != QUEUE_BEGUN || item->batch != batch) continue;
        item->called_off = true;
        found++;
    }
    assert(queue_adds_up(queue));
    queue_signal(queue);
    pthread_cond_broadcast(&queue->work); /* reads in flight are looked at */
    if (found != 0) pthread_cond_broadcast(&queue->ended);
    pthread_mutex_unlock(&queue->lock);
    return found != 0 ? KVT_OK : KVT_MISS;
}

kvt_status kvt_queue_stats_get(kvt_queue *queue, kvt_queue_stats *stats)
{
    const base_queue_calls *other = base_queue_calls_of(queue);
    if (other != NULL) return other->stats(queue, stats);
    if (queue == NULL || stats == NULL) return KVT_E_ARGUMENT;
    if (!struct_size_is_sound(stats, QUEUE_STATS_LEAST)) return KVT_E_ARGUMENT;
    if (!queue_is_ours(queue)) return KVT_E_STATE;
    pthread_mutex_lock(&queue->lock);
    kvt_queue_stats whole = queue->counts;
    whole.begun = queue->begun;
    whole.undrained = queue->completed.count;
    for (uint32_t i = 0; i < QUEUE_CLASSES; i++)
        whole.waiting += queue->waiting[i].count + queue->calls[i].count;
    pthread_mutex_unlock(&queue->lock);
    struct_size_out(stats, &whole, sizeof whole);
    return KVT_OK;
}
