/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client_queue.c - a queue of a connected store: a channel of its own, and items for the requests
 * that were submitted. Those that find no room wait here, by class; the others are the server's.
 *
 *     free -> waiting -> posted -> arrived -> free
 *                 \------------------/     an unsound request, one that was called off or lost
 *
 * Thread rule: as queue.h. Items belong to the channel's lock, but for one that a drain has taken.
 */
#include "serve/client/client_calls.h"
#include "serve/client/client_load_state.h"

#include "base/clock.h"
#include "base/struct_size.h"
#include "serve/client/client_transfer.h"
#include "serve/wire/shared_memory.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define QUEUE_DEPTH            4096u
#define QUEUE_DEPTH_MAX        (UINT32_C(1) << 20)
#define QUEUE_RING             1024u
#define QUEUE_CLASSES          3u
#define QUEUE_OPTIONS_LEAST    STRUCT_SIZE_THROUGH(kvt_queue_options, reserved)
#define QUEUE_REQUEST_LEAST    STRUCT_SIZE_THROUGH(kvt_request, info)
#define QUEUE_COMPLETION_LEAST STRUCT_SIZE_THROUGH(kvt_completion, elapsed_ns)
#define QUEUE_STATS_LEAST      STRUCT_SIZE_THROUGH(kvt_queue_stats, wakes)

typedef struct queue_item {
    client_transfer transfer; /* first; of other kinds than get and put its request alone */
    struct queue_item *next;
    uint64_t batch, user, submitted_ns;
    uint64_t segment; /* of the posted ones: a batch as the server has it */
    uint32_t index, kind;
    kvt_status status; /* of one that was never posted; KVT_QUEUED: the request tells */
    bool whole;        /* of gets and puts: transfer is to be ended */
} queue_item;

typedef struct queue_list {
    queue_item *first, *last;
} queue_list;

typedef struct client_queue {
    const base_queue_calls *elsewhere; /* first, as in every handle */
    uint32_t forks;
    uint32_t depth;
    int bell;         /* rung here: for what has arrived without the server's bell */
    int timer;        /* rings while requests wait for a server */
    bool rung, looks; /* that bell has been; the timer is set */
    client_channel channel;
    /* All under the channel's lock. */
    queue_item *items;
    queue_item *free;
    queue_list waiting[QUEUE_CLASSES], arrived;
    uint32_t waiting_count, posted_count, arrived_count;
    uint64_t batches;
    uint64_t lost_ns;                /* since when what waits has had no server; 0: it has one */
    uint64_t segment, segment_batch; /* the last one that was posted to, and its batch */
    bool draining;                   /* a drain takes: it needs no bell */
    kvt_queue_stats counts;
} client_queue;

static const base_queue_calls client_queue_calls;

static client_queue *queue_of(const kvt_queue *handle)
{
    return (client_queue *)(uintptr_t)handle;
}

client_channel *client_queue_channel(kvt_queue *handle)
{
    return &queue_of(handle)->channel;
}

/* ---- lists ---- */

static void list_append(queue_list *list, queue_item *item)
{
    item->next = NULL;
    if (list->last != NULL)
        list->last->next = item;
    else
        list->first = item;
    list->last = item;
}

static void list_push(queue_list *list, queue_item *item)
{
    item->next = list->first;
    list->first = item;
    if (list->last == NULL) list->last = item;
}

static queue_item *list_take(queue_list *list)
{
    queue_item *item = list->first;
    if (item == NULL) return NULL;
    list->first = item->next;
    if (list->first == NULL) list->last = NULL;
    return item;
}

static queue_list *waiting_of(client_queue *queue, const queue_item *item)
{
    return &queue->waiting[item->transfer.urgency];
}

static void queue_ring(client_queue *queue)
{
    queue->rung = true;
    const kvt_status status = wire_bell_ring(queue->bell);
    (void)status;
}

static void item_arrives(client_queue *queue, queue_item *item)
{
    if (queue->arrived.first == NULL && !queue->draining) queue_ring(queue);
    list_append(&queue->arrived, item);
    queue->arrived_count++;
}

static void item_free(client_queue *queue, queue_item *item)
{
    if (item->whole) client_transfer_end(&queue->channel, &item->transfer);
    item->whole = false;
    item->next = queue->free;
    queue->free = item;
}

/* Of a request that has completed; what was described is asked for next. */
static void queue_completed(client_channel *channel, client_request *request)
{
    client_queue *queue =
        (client_queue *)(void *)((char *)channel - offsetof(client_queue, channel));
    queue_item *item = (queue_item *)(void *)request;
    assert(queue->posted_count > 0);
    queue->posted_count--;
    if (item->kind == WIRE_CANCEL) { /* of our own: nobody waits for it */
        item_free(queue, item);
        return;
    }
    if (request->untaken && channel->store->patience_ns > 0) {
        client_request_free(channel, request); /* the next server has it */
        list_push(waiting_of(queue, item), item);
        queue->waiting_count++;
        return;
    }
    if (item->whole && item->transfer.step == TRANSFER_DESCRIBES) {
        item->status = client_transfer_finish(&item->transfer);
        if (item->status == KVT_QUEUED) {
            client_request_free(channel, request);
            list_push(waiting_of(queue, item), item);
            queue->waiting_count++;
            return;
        }
    }
    item_arrives(queue, item);
}

/* ---- posting ---- */

/* Posts an item. KVT_OK; KVT_BUSY; what ends it. */
static kvt_status item_post(client_queue *queue, queue_item *item)
{
    client_channel *channel = &queue->channel;
    client_request *request = &item->transfer.request;
    if (channel->area == NULL) return KVT_E_GONE;
    if (channel->area->pending.open == channel->area->places.entries) return KVT_BUSY;
    kvt_status status = item->whole ? client_transfer_prepare(channel, &item->transfer) : KVT_OK;
    if (status != KVT_OK) return status;
    if (item->whole) client_transfer_fill(&item->transfer);
    request->body.urgency = (uint16_t)item->transfer.urgency;
    if (item->batch != queue->segment_batch) {
        queue->segment_batch = item->batch;
        queue->segment++;
        request->body.urgency |= WIRE_BATCH_BEGINS;
    }
    item->segment = queue->segment;
    status = client_request_post(channel, request);
    if (status != KVT_OK) client_request_free(channel, request);
    return status;
}

/* Whether what waits keeps waiting for a server that is not there. */
static bool queue_is_patient(client_queue *queue)
{
    const client_store *store = queue->channel.store;
    if (queue->channel.area != NULL && !atomic_load(&store->leaving)) {
        queue->lost_ns = 0;
        return false;
    }
    const uint64_t now_ns = base_clock_ns();
    if (queue->lost_ns == 0) queue->lost_ns = now_ns;
    return now_ns - queue->lost_ns < store->patience_ns;
}

/* Posts what waits, as far as there is room. */
static void queue_pump(client_queue *queue)
{
    if (queue_is_patient(queue)) return;
    for (uint32_t class = 0; class < QUEUE_CLASSES; class ++) {
        queue_item *item;
        while ((item = queue->waiting[class].first) != NULL) {
            const kvt_status status = item_post(queue, item);
            if (status == KVT_BUSY) return;
            if (status == KVT_E_SPACE && client_channel_look(&queue->channel)) {
                /* Too large for a server that is gone; others may wait again now. */
                if (queue_is_patient(queue)) return;
                continue;
            }
            (void)list_take(&queue->waiting[class]);
            queue->waiting_count--;
            if (status == KVT_OK) {
                queue->posted_count++;
                continue;
            }
            item->status = status == KVT_E_GONE ? client_lost(item->kind, false) : status;
            item_arrives(queue, item);
        }
    }
}

/* Takes what the server has completed and posts what has room now. */
static bool queue_move(client_queue *queue)
{
    client_channel *channel = &queue->channel;
    const bool moved = client_channel_take(channel);
    client_loads_announce(channel);
    if (queue->waiting_count > 0 && queue_is_patient(queue)) {
        pthread_mutex_unlock(&channel->lock);
        const kvt_status status = client_restore(channel->store, channel);
        (void)status;
        pthread_mutex_lock(&channel->lock);
    }
    queue_pump(queue);
    return moved;
}

/* Makes the descriptor say whether something has arrived, and wakes it for what comes. */
static void queue_arm(client_queue *queue)
{
    client_area *area = queue->channel.area;
    if (area != NULL && !queue->channel.reading) wire_bell_clear(area->bells[1]);
    if (queue->rung) wire_bell_clear(queue->bell);
    queue->rung = false;
    const bool looks = queue->waiting_count > 0 && queue_is_patient(queue);
    if (looks || queue->looks) {
        const struct itimerspec pause = {.it_value.tv_nsec = looks ? CLIENT_LOOK_NS : 0};
        wire_bell_clear(queue->timer);
        (void)timerfd_settime(queue->timer, 0, &pause, NULL);
    }
    queue->looks = looks;
    bool more = area != NULL && !base_ring_sleeps(&area->completions, area->next);
    if (client_loads_take(&queue->channel, &more) != KVT_OK) more = true;
    if (more) pthread_cond_broadcast(&queue->channel.arrived);
    if (more || queue->arrived.first != NULL) queue_ring(queue);
}

void client_queue_rearm(client_channel *channel)
{
    client_queue *queue =
        (client_queue *)(void *)((char *)channel - offsetof(client_queue, channel));
    queue_pump(queue);
    queue_arm(queue);
}

/* ---- submit ---- */

static kvt_status item_init(queue_item *item, const kvt_request *request)
{
    kvt_status status = KVT_OK;
    if (request->urgency >= QUEUE_CLASSES) return KVT_E_ARGUMENT;
    if (!(request->loss_max <= 1)) return KVT_E_ARGUMENT; /* NAN, too */
    switch (request->kind) {
    case KVT_REQUEST_GET:
        status = client_transfer_init_get(&item->transfer, &request->key, request->view,
                                          request->deadline_ns, request->info);
        item->transfer.get.loss_max = request->loss_max;
        item->transfer.get.first_layer = request->first_layer;
        item->transfer.get.layer_count = request->layer_count;
        item->whole = true;
        break;
    case KVT_REQUEST_PUT:
        status = client_transfer_init_put(&item->transfer, request->entry, request->view,
                                          request->deadline_ns);
        item->whole = true;
        break;
    case KVT_REQUEST_PREFETCH:
        if (request->tier >= KVT_TIER_PLACES) status = KVT_E_ARGUMENT;
        item->transfer.request.body.argument = request->tier;
        break;
    case KVT_REQUEST_EXISTS:
    case KVT_REQUEST_DELETE:
    case KVT_REQUEST_TOUCH: break;
    default: return KVT_E_ARGUMENT;
    }
    item->transfer.urgency = request->urgency;
    if (!item->whole) {
        item->transfer.request.body.kind = (uint16_t)request->kind;
        item->transfer.request.body.key = request->key;
    }
    return status;
}

/* Accepts one request of a batch. */
static void queue_accept(client_queue *queue, const kvt_request *request, uint64_t batch,
                         uint32_t index)
{
    queue_item *item = queue->free;
    queue->free = item->next;
    *item = (queue_item){.batch = batch,
                         .user = request->user,
                         .index = index,
                         .kind = request->kind,
                         .submitted_ns = base_clock_ns()};
    item->status = item_init(item, request);
    if (item->status != KVT_OK) {
        item_arrives(queue, item);
        return;
    }
    item->status = KVT_QUEUED;
    if (item->whole) client_transfer_enter(&queue->channel, &item->transfer);
    list_append(waiting_of(queue, item), item);
    queue->waiting_count++;
}

static uint32_t queue_accepted(const client_queue *queue)
{
    return queue->waiting_count + queue->posted_count + queue->arrived_count;
}

static kvt_status queue_submit(kvt_queue *handle, const kvt_request *requests, size_t count,
                               uint64_t *batch_out)
{
    client_queue *queue = queue_of(handle);
    client_channel *channel = &queue->channel;
    if (requests == NULL && count != 0) return KVT_E_ARGUMENT;
    if (!fork_guard_is_current(queue->forks)) return KVT_E_STATE;
    if (count > queue->depth) return KVT_E_ARGUMENT;
    const uint32_t stride = count != 0 ? struct_size_of(requests) : 0;
    if (count != 0 && !struct_size_is_sound(requests, QUEUE_REQUEST_LEAST)) return KVT_E_ARGUMENT;
    const unsigned char *at = (const unsigned char *)requests;
    for (size_t i = 0; i < count; i++)
        if (struct_size_of(at + i * stride) != stride) return KVT_E_ARGUMENT;
    pthread_mutex_lock(&channel->lock);
    if (channel->area == NULL) {
        pthread_mutex_unlock(&channel->lock);
        /* Without a connection requests are accepted and end as lost ones do. */
        if (client_restore(channel->store, channel) == KVT_E_STATE) return KVT_E_STATE;
        pthread_mutex_lock(&channel->lock);
    }
    if (queue_accepted(queue) + count > queue->depth) {
        queue->counts.refused_busy++;
        pthread_mutex_unlock(&channel->lock);
        return KVT_BUSY;
    }
    const uint64_t batch = ++queue->batches;
    for (size_t i = 0; i < count; i++) {
        kvt_request whole = {.struct_size = sizeof whole};
        const kvt_request *request =
            struct_size_in(at + i * stride, &whole, sizeof whole, QUEUE_REQUEST_LEAST);
        queue_accept(queue, request != NULL ? request : &whole, batch, (uint32_t)i);
    }
    queue->counts.batches++;
    queue->counts.requests += count;
    queue_pump(queue);
    if (queue->lost_ns != 0) queue_arm(queue);
    pthread_mutex_unlock(&channel->lock);
    if (batch_out != NULL) *batch_out = batch;
    return KVT_OK;
}

/* ---- completions ---- */

static void item_tell(const queue_item *item, kvt_status status, kvt_completion *out)
{
    const client_request *request = &item->transfer.request;
    const wire_completion *done = &request->done;
    *out = (kvt_completion){.struct_size = sizeof *out,
                            .status = status,
                            .batch = item->batch,
                            .user = item->user,
                            .index = item->index,
                            .kind = item->kind,
                            .elapsed_ns = base_clock_ns() - item->submitted_ns};
    if (!request->posted) return;
    const bool got = item->kind == KVT_REQUEST_GET;
    out->tier = got && status == KVT_OK ? done->tier : 0;
    out->timed_out = got && (done->flags & WIRE_TIMED_OUT) != 0;
    out->refused_loss = (done->flags & WIRE_REFUSED_LOSS) != 0;
    out->refused_tokens = (done->flags & WIRE_REFUSED_TOKENS) != 0;
    out->guess = (done->flags & WIRE_GUESS) != 0;
    out->variant = done->variant;
    out->stored_bytes = done->stored_bytes;
}

/* Ends an item that a drain has taken: copies without the lock. The lock is held before and after.
 */
static void item_finish(client_queue *queue, queue_item *item, kvt_completion *out)
{
    kvt_status status = item->status;
    if (status == KVT_QUEUED && item->whole) {
        pthread_mutex_unlock(&queue->channel.lock);
        status = client_transfer_finish(&item->transfer);
        pthread_mutex_lock(&queue->channel.lock);
    } else if (status == KVT_QUEUED) {
        status = item->transfer.request.done.status;
    }
    item_tell(item, status, out);
    queue->counts.completed++;
    if (status == KVT_E_CANCELLED) queue->counts.cancelled++;
    if (out->timed_out) queue->counts.timed_out++;
    item_free(queue, item);
}

static size_t queue_drain(kvt_queue *handle, kvt_completion *completions, size_t capacity)
{
    client_queue *queue = queue_of(handle);
    client_channel *channel = &queue->channel;
    size_t count = 0;
    if (!fork_guard_is_current(queue->forks) || completions == NULL || capacity == 0) return 0;
    if (!struct_size_is_sound(completions, QUEUE_COMPLETION_LEAST)) return 0;
    const uint32_t stride = struct_size_of(completions);
    pthread_mutex_lock(&channel->lock);
    queue->draining = true;
    if (!queue_move(queue) && queue->arrived.first == NULL && client_channel_look(channel))
        queue_pump(queue);
    while (count < capacity && queue->arrived.first != NULL) {
        kvt_completion whole;
        unsigned char *at = (unsigned char *)completions + count * stride;
        queue_item *item = list_take(&queue->arrived);
        queue->arrived_count--;
        item_finish(queue, item, &whole);
        memcpy(at, &stride, sizeof stride);
        struct_size_out(at, &whole, sizeof whole);
        count++;
    }
    queue->draining = false;
    queue_pump(queue);
    queue_arm(queue);
    pthread_mutex_unlock(&channel->lock);
    return count;
}

static kvt_status queue_wait(kvt_queue *handle, uint64_t deadline_ns)
{
    client_queue *queue = queue_of(handle);
    client_channel *channel = &queue->channel;
    kvt_status status = KVT_OK;
    if (!fork_guard_is_current(queue->forks)) return KVT_E_STATE;
    pthread_mutex_lock(&channel->lock);
    (void)queue_move(queue);
    while (status == KVT_OK && queue->arrived.first == NULL) {
        if (queue->waiting_count + queue->posted_count == 0) {
            status = KVT_END;
        } else {
            status = client_channel_wait(channel, deadline_ns);
            (void)queue_move(queue);
        }
    }
    if (queue->arrived.first != NULL) status = KVT_OK;
    queue_arm(queue);
    pthread_mutex_unlock(&channel->lock);
    return status;
}

/* ---- calling off ---- */

/* Asks the server to call off the batch that a posted item belongs to. */
static void queue_call_off(client_queue *queue, const queue_item *posted)
{
    queue_item *item = queue->free;
    if (item == NULL) return;
    queue->free = item->next;
    *item = (queue_item){.kind = WIRE_CANCEL, .batch = posted->batch, .status = KVT_QUEUED};
    item->transfer.request.body =
        (wire_request){.kind = WIRE_CANCEL, .argument = posted->transfer.request.body.number};
    if (client_request_post(&queue->channel, &item->transfer.request) == KVT_OK)
        queue->posted_count++;
    else
        item_free(queue, item);
}

/* Calls off the items of a batch that wait; how many. */
static uint32_t queue_drop_waiting(client_queue *queue, uint64_t batch)
{
    uint32_t found = 0;
    for (uint32_t class = 0; class < QUEUE_CLASSES; class ++) {
        queue_list kept = {NULL, NULL};
        queue_item *item;
        while ((item = list_take(&queue->waiting[class])) != NULL) {
            if (item->batch != batch) {
                list_append(&kept, item);
                continue;
            }
            item->status = KVT_E_CANCELLED;
            queue->waiting_count--;
            item_arrives(queue, item);
            found++;
        }
        queue->waiting[class] = kept;
    }
    return found;
}

static kvt_status queue_cancel(kvt_queue *handle, uint64_t batch)
{
    client_queue *queue = queue_of(handle);
    client_channel *channel = &queue->channel;
    uint64_t segment = 0;
    if (!fork_guard_is_current(queue->forks)) return KVT_E_STATE;
    pthread_mutex_lock(&channel->lock);
    uint32_t found = queue_drop_waiting(queue, batch);
    const client_area *area = channel->area;
    for (uint32_t i = 0; area != NULL && i < area->places.entries; i++) {
        const queue_item *item = (const queue_item *)(const void *)area->open[i];
        if (item == NULL || item->transfer.request.waited || item->batch != batch ||
            item->kind == WIRE_CANCEL)
            continue;
        found++;
        if (item->segment == segment) continue;
        segment = item->segment;
        queue_call_off(queue, item);
    }
    pthread_mutex_unlock(&channel->lock);
    return found > 0 ? KVT_OK : KVT_MISS;
}

/* ---- the rest ---- */

static int queue_fd(const kvt_queue *handle)
{
    const client_queue *queue = queue_of(handle);
    return fork_guard_is_current(queue->forks) ? queue->channel.poller : -1;
}

static kvt_status queue_stats(kvt_queue *handle, kvt_queue_stats *stats)
{
    client_queue *queue = queue_of(handle);
    if (stats == NULL || !struct_size_is_sound(stats, QUEUE_STATS_LEAST)) return KVT_E_ARGUMENT;
    if (!fork_guard_is_current(queue->forks)) return KVT_E_STATE;
    pthread_mutex_lock(&queue->channel.lock);
    kvt_queue_stats whole = queue->counts;
    whole.struct_size = sizeof whole;
    whole.waiting = queue->waiting_count;
    whole.begun = queue->posted_count;
    whole.undrained = queue->arrived_count;
    pthread_mutex_unlock(&queue->channel.lock);
    struct_size_out(stats, &whole, sizeof whole);
    return KVT_OK;
}

static void queue_free(client_queue *queue)
{
    if (queue->channel.poller >= 0) close(queue->channel.poller);
    if (queue->bell >= 0) close(queue->bell);
    if (queue->timer >= 0) close(queue->timer);
    free(queue->items);
    free(queue);
}

static void queue_close(kvt_queue *handle)
{
    client_queue *queue = queue_of(handle);
    if (!fork_guard_is_current(queue->forks)) return;
    client_store *store = queue->channel.store;
    client_channel_end(&queue->channel);
    client_loads_leave(&queue->channel);
    /* The lock is gone, and so are all other threads. */
    for (uint32_t i = 0; i < queue->depth; i++)
        if (queue->items[i].whole) item_free(queue, &queue->items[i]);
    queue_free(queue);
    client_let_go(store);
}

static const base_queue_calls client_queue_calls = {.close = queue_close,
                                                    .fd = queue_fd,
                                                    .submit = queue_submit,
                                                    .drain = queue_drain,
                                                    .wait = queue_wait,
                                                    .cancel = queue_cancel,
                                                    .stats = queue_stats,
                                                    .load_begin = client_load_begin};

/* A ring for so many requests, but no larger than is of use. */
static uint32_t ring_of(uint32_t depth)
{
    uint32_t entries = 2;
    while (entries < depth && entries < QUEUE_RING)
        entries *= 2;
    return entries;
}

/* Fills a queue that is zero. */
static kvt_status queue_fill(client_queue *queue, const client_store *store, uint32_t depth)
{
    *queue = (client_queue){.elsewhere = &client_queue_calls,
                            .forks = store->forks,
                            .depth = depth,
                            .bell = -1,
                            .timer = -1,
                            .channel = {.entries = ring_of(depth),
                                        .staging_bytes = store->calls.staging_bytes,
                                        .poller = -1,
                                        .completed = queue_completed}};
    queue->items = calloc(depth, sizeof *queue->items);
    queue->channel.poller = epoll_create1(EPOLL_CLOEXEC);
    if (queue->items == NULL || queue->channel.poller < 0) return KVT_E_MEMORY;
    queue->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (queue->timer < 0 || wire_bell_make(&queue->bell) != KVT_OK) return KVT_E_MEMORY;
    for (uint32_t i = depth; i > 0; i--) {
        queue->items[i - 1].next = queue->free;
        queue->free = &queue->items[i - 1];
    }
    struct epoll_event event = {.events = EPOLLIN};
    const int own[] = {queue->bell, queue->timer};
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (epoll_ctl(queue->channel.poller, EPOLL_CTL_ADD, own[i], &event) != 0)
            return KVT_E_MEMORY;
    return KVT_OK;
}

kvt_status client_queue_open(kvt_store *handle, const kvt_queue_options *options,
                             kvt_queue **queue_out)
{
    client_store *store;
    kvt_queue_options whole = {.struct_size = sizeof whole};
    if (queue_out == NULL) return KVT_E_ARGUMENT;
    *queue_out = NULL;
    kvt_status status = client_enter(handle, &store);
    if (status != KVT_OK) return status;
    if (options == NULL) options = &whole;
    options = struct_size_in(options, &whole, sizeof whole, QUEUE_OPTIONS_LEAST);
    if (options == NULL || options->depth > QUEUE_DEPTH_MAX) return KVT_E_ARGUMENT;
    client_queue *queue = malloc(sizeof *queue);
    if (queue == NULL) return KVT_E_MEMORY;
    status = queue_fill(queue, store, options->depth != 0 ? options->depth : QUEUE_DEPTH);
    if (status == KVT_OK) status = client_restore(store, NULL);
    if (status == KVT_OK) status = client_channel_begin(store, &queue->channel);
    if (status != KVT_OK) {
        queue_free(queue);
        return status;
    }
    atomic_fetch_add(&store->holders, 1);
    *queue_out = (kvt_queue *)(void *)queue;
    return KVT_OK;
}
