/* SPDX-License-Identifier: Apache-2.0 */
/*
 * queue_items.c - the items, tasks and loads of a queue as they change hands: lists, completions,
 * the event descriptor. The file begins nothing and starts no thread.
 *
 * Thread rule: as queue_internal.h says of each function.
 */
#include "base/clock.h"
#include "store/read/load_internal.h"

#include <assert.h>
#include <stdlib.h>
#include <unistd.h>

bool queue_is_ours(const kvt_queue *queue)
{
    return queue != NULL && fork_guard_is_current(queue->forks);
}

queue_list *queue_list_of(kvt_queue *queue, const queue_item *item)
{
    bool call = item->kind == KVT_REQUEST_PUT || item->kind == KVT_REQUEST_DELETE;
    return call ? &queue->calls[item->urgency] : &queue->waiting[item->urgency];
}

bool queue_adds_up(const kvt_queue *queue)
{
    uint64_t items = (uint64_t)queue->free.count + queue->completed.count + queue->begun;
    for (uint32_t i = 0; i < QUEUE_CLASSES; i++)
        items += (uint64_t)queue->waiting[i].count + queue->calls[i].count;
    return items == queue->made && queue->flying_count <= queue->begun;
}

void queue_append(queue_list *list, queue_item *item)
{
    assert((list->first == NULL) == (list->count == 0));
    item->next = NULL;
    if (list->last != NULL)
        list->last->next = item;
    else
        list->first = item;
    list->last = item;
    list->count++;
}

void queue_push(queue_list *list, queue_item *item)
{
    assert((list->first == NULL) == (list->count == 0));
    item->next = list->first;
    list->first = item;
    if (list->last == NULL) list->last = item;
    list->count++;
}

queue_item *queue_take(queue_list *list)
{
    queue_item *item = list->first;
    assert((item == NULL) == (list->count == 0));
    if (item == NULL) return NULL;
    list->first = item->next;
    if (list->first == NULL) list->last = NULL;
    list->count--;
    return item;
}

/* Moves an item to those that wait to be drained. Lock held. */
void queue_complete_one(kvt_queue *queue, queue_item *item, uint64_t now_ns)
{
    assert(item->state == QUEUE_BEGUN || item->state == QUEUE_WAITING);
    /* The views and the entry are the caller's again once the completion is seen. */
    item->view = NULL;
    free(item->groups);
    item->groups = NULL;
    item->entry = NULL;
    item->state = QUEUE_COMPLETED;
    item->info.elapsed_ns = now_ns - item->submitted_ns;
    if (item->given != NULL && item->status == KVT_OK) access_give_info(&item->info, item->given);
    item->given = NULL;
    queue->counts.completed++;
    if (item->status == KVT_E_CANCELLED) queue->counts.cancelled++;
    if (item->info.timed_out || item->status == KVT_E_TIMEOUT) queue->counts.timed_out++;
    queue_append(&queue->completed, item);
    queue_batches *whole = &queue->whole;
    if (whole->left == NULL) return;
    assert(whole->left[item->slot] > 0);
    if (--whole->left[item->slot] != 0) return;
    whole->spare[whole->spare_count++] = item->slot;
    whole->ended = true;
}

/* Makes the descriptor readable, once until the next drain empties the list. Lock held. */
void queue_signal(kvt_queue *queue)
{
    if (queue->event_fd < 0 || queue->signalled || queue->completed.count == 0) return;
    if (queue->whole.left != NULL && !queue->whole.ended) return;
    const uint64_t one = 1;
    /* A counter of one never fills an event descriptor, so the write cannot fail or block. */
    ssize_t written = write(queue->event_fd, &one, sizeof one);
    assert(written == (ssize_t)sizeof one);
    (void)written;
    queue->signalled = true;
    queue->counts.wakes++;
}

void queue_complete(kvt_queue *queue, queue_item *const *items, uint32_t count)
{
    if (count == 0) return;
    pthread_mutex_lock(&queue->lock);
    const uint64_t now_ns = base_clock_ns();
    for (uint32_t i = 0; i < count; i++) {
        queue_complete_one(queue, items[i], now_ns);
        assert(queue->begun > 0);
        queue->begun--;
    }
    assert(queue_adds_up(queue));
    queue_signal(queue);
    pthread_cond_broadcast(&queue->ended);
    pthread_mutex_unlock(&queue->lock);
}

bool queue_enter_load(kvt_queue *queue, struct kvt_load *load)
{
    assert(!load->listed);
    pthread_mutex_lock(&queue->lock);
    bool open = !queue->stopping;
    if (open) {
        load->next = queue->loads;
        load->previous = NULL;
        if (load->next != NULL) load->next->previous = load;
        load->listed = true;
        queue->loads = load;
    }
    pthread_mutex_unlock(&queue->lock);
    return open;
}

/* Takes a load off the list. Lock held. */
void queue_unlist_load(kvt_queue *queue, struct kvt_load *load)
{
    assert(load->listed && (load->previous != NULL || queue->loads == load));
    if (load->previous != NULL)
        load->previous->next = load->next;
    else
        queue->loads = load->next;
    if (load->next != NULL) load->next->previous = load->previous;
    load->listed = false;
}

bool queue_leave_load(kvt_queue *queue, struct kvt_load *load)
{
    pthread_mutex_lock(&queue->lock);
    bool listed = load->listed;
    if (listed) queue_unlist_load(queue, load);
    pthread_mutex_unlock(&queue->lock);
    return listed;
}

void queue_arrive(kvt_queue *queue, queue_item *item)
{
    pthread_mutex_lock(&queue->lock);
    assert(item->state == QUEUE_BEGUN && item->in_flight);
    item->in_flight = false;
    /* The thread that has begun it, or is taking it back, may not have let go of it yet; then that
     * thread lists it. */
    if (item->begun_wholly && !item->given_up && !item->decodes)
        queue_append(&queue->arrived, item);
    pthread_cond_signal(&queue->work);
    pthread_mutex_unlock(&queue->lock);
}

/* Hands a task to the queue's threads. Lock held. */
static void queue_post_locked(kvt_queue *queue, queue_task *task)
{
    task->next = NULL;
    assert(queue->tasks == NULL || queue->last_task->next == NULL);
    if (queue->tasks == NULL)
        queue->tasks = task;
    else
        queue->last_task->next = task;
    queue->last_task = task;
    pthread_cond_signal(&queue->work);
}

void queue_decode_more(kvt_queue *queue, queue_item *item)
{
    if (!item->more || item->decodes || !item->begun_wholly || item->given_up) return;
    assert(item->state == QUEUE_BEGUN && item->in_flight);
    item->more = false;
    item->decodes = true;
    queue_post_locked(queue, &item->decoding);
}

void queue_come(kvt_queue *queue, queue_item *item)
{
    pthread_mutex_lock(&queue->lock);
    item->more = true;
    queue_decode_more(queue, item);
    pthread_mutex_unlock(&queue->lock);
}

void queue_decoded(kvt_queue *queue, queue_item *item)
{
    pthread_mutex_lock(&queue->lock);
    assert(item->decodes);
    item->decodes = false;
    if (item->in_flight) {
        queue_decode_more(queue, item);
    } else { /* it has landed meanwhile */
        queue_append(&queue->arrived, item);
        pthread_cond_signal(&queue->work);
    }
    pthread_mutex_unlock(&queue->lock);
}

/* Lists begun gets for whoever decodes them, and wakes a caller and threads of the queue, one for
 * each share. Lock held. */
static void queue_list_shares(kvt_queue *queue, queue_item *const *items, uint32_t count)
{
    uint32_t helpers = 0;
    queue_share share = {0};
    for (uint32_t i = 0; i < count; i++) {
        assert(items[i]->state == QUEUE_BEGUN && !items[i]->in_flight);
        if (i == 0 || !queue_share_take(&share, items[i])) {
            share = (queue_share){.count = 1, .bytes = items[i]->get.target.bytes};
            helpers++;
        }
        queue_append(&queue->shares, items[i]);
    }
    /* A caller that sleeps decodes its own gets sooner than a thread brings them. */
    if (queue->sleepers != 0 && queue->flying == NULL && helpers != 0) {
        pthread_cond_signal(&queue->ended);
        helpers--;
    }
    for (uint32_t i = 0; i < helpers && i + 1 < queue->thread_count; i++)
        pthread_cond_signal(&queue->work);
}

uint32_t queue_hand_on(kvt_queue *queue, queue_item *const *items, uint32_t count, bool *decodes)
{
    queue_share own = {0};
    while (own.count < count && queue_share_take(&own, items[own.count]))
        continue;
    const bool counts = *decodes && own.bytes > QUEUE_SHARE_BYTES;
    *decodes = false;
    if (own.count == count && !counts) return count;
    pthread_mutex_lock(&queue->lock);
    if (counts && !queue_may_decode(queue)) own.count = 0;
    *decodes = counts && own.count != 0;
    queue->decoders += *decodes;
    queue_list_shares(queue, items + own.count, count - own.count);
    pthread_mutex_unlock(&queue->lock);
    return own.count;
}

void queue_end_share(kvt_queue *queue)
{
    pthread_mutex_lock(&queue->lock);
    assert(queue->decoders > 0);
    queue->decoders--;
    pthread_mutex_unlock(&queue->lock);
}

void queue_post(kvt_queue *queue, queue_task *task)
{
    pthread_mutex_lock(&queue->lock);
    queue_post_locked(queue, task);
    pthread_mutex_unlock(&queue->lock);
}

void queue_note_starved(kvt_queue *queue)
{
    pthread_mutex_lock(&queue->lock);
    if (queue->loads_starved_ns == 0) queue->loads_starved_ns = base_clock_ns();
    pthread_cond_signal(&queue->work);
    pthread_mutex_unlock(&queue->lock);
}

void queue_put_back(kvt_queue *queue, queue_item *const *items, uint32_t count)
{
    if (count == 0) return;
    pthread_mutex_lock(&queue->lock);
    /* From the last one on, so that the items keep their order at the front. */
    for (uint32_t i = count; i-- > 0;) {
        queue_item *item = items[i];
        queue_list *list = queue_list_of(queue, item);
        assert(item->state == QUEUE_BEGUN && !item->in_flight && queue->begun > 0);
        queue->begun--;
        item->state = QUEUE_WAITING;
        /* Nothing is begun any more: an item that went back into its list would wait for ever. */
        if (queue->stopping || item->called_off) {
            item->status = KVT_E_CANCELLED;
            queue_complete_one(queue, item, base_clock_ns());
            queue_signal(queue);
            pthread_cond_broadcast(&queue->ended);
            continue;
        }
        queue_push(list, item);
    }
    assert(queue_adds_up(queue));
    pthread_cond_signal(&queue->work);
    pthread_mutex_unlock(&queue->lock);
}
