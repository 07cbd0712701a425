/* SPDX-License-Identifier: Apache-2.0 */
/*
 * queue_run.c - the threads of a queue: they take requests in chunks of one kind, the most urgent
 * class first, and carry them out. The file knows no device and no codec.
 *
 *     a thread    arrived reads are finished -> reads past their deadline are given up ->
 *                 a chunk of waiting requests is begun, and a share decoded, in turns -> it sleeps
 *
 * Reads that have arrived go first, because they hold staging. A thread never waits for a device:
 * queue_get.c starts reads, and the last completion of one calls queue_arrive.
 *
 * Puts and deletes have a thread of their own: they may wait for a move, which may wait for room
 * that a get holds which has landed in this queue or in another one.
 *
 * Thread rule: queue_main and queue_call_main on the queue's threads.
 */
#include "store/read/load_internal.h"

#include <kvterrace/lookup.h>
#include <kvterrace/names.h>

#include "base/wait.h"
#include "codecs/codec_table.h"
#include "store/core/executor_flights.h"
#include "store/core/handover.h"
#include "store/core/put_plan.h"
#include "store/hosts/remote_tier.h"

#include <assert.h>
#include <stdlib.h>

#define QUEUE_CHECK_NS     UINT64_C(100000000) /* between two looks at devices */
#define QUEUE_STARVE_NS    UINT64_C(1000000)   /* until a get without staging is begun again */
#define QUEUE_PUT_PAUSE_NS UINT64_C(500000)    /* between two tries of a put */
#define QUEUE_FLYING       256u /* reads under way, or shares, beyond which no get is begun */
#define QUEUE_PUTS         32u  /* of one thread whose records are being written */

/* Carries out the items that a thread has taken. No lock held. */
typedef void queue_run(kvt_queue *queue, queue_item **items, uint32_t count);

/* ---- requests that read no entry ---- */

/* Counts a use of one key. */
static kvt_status queue_touch(kvt_store *store, const kvt_key *key)
{
    size_t touched = 0;
    kvt_status status = kvt_store_touch(store, key, 1, &touched);
    return status == KVT_OK && touched == 0 ? KVT_MISS : status;
}

/* Whether a request is called off, with its batch or with the whole queue. No lock held. */
static bool queue_called_off(kvt_queue *queue, const queue_item *item)
{
    pthread_mutex_lock(&queue->lock);
    bool ends = queue->stopping || item->called_off;
    pthread_mutex_unlock(&queue->lock);
    return ends;
}

/* Tries a put again that found its staging or a tier's writes behind, until its deadline or until
 * it is called off. No lock held. */
static kvt_status queue_put_again(kvt_store *store, const queue_item *item)
{
    kvt_status status = KVT_BUSY;
    while (status == KVT_BUSY && base_clock_ns() < item->deadline_ns) {
        if (queue_called_off(item->queue, item)) return KVT_E_CANCELLED;
        base_sleep(QUEUE_PUT_PAUSE_NS);
        status = kvt_store_put(store, item->entry, item->view);
    }
    return status;
}

/* As kvt_store_exists; for an entry that is not here, a guess from what other hosts have. */
static kvt_status queue_exists(kvt_store *store, queue_item *item)
{
    const kvt_status status = kvt_store_exists(store, &item->key);
    item->guess = status == KVT_MISS && !item->queue->blocks && store->remote != NULL;
    if (!item->guess) return status;
    return remote_match_hint(store, &item->key) == HINT_THERE ? KVT_OK : KVT_MISS;
}

/* A get of a queue whose calls block. What a lossy variant may lose is not known there. */
static kvt_status queue_get_blocking(kvt_store *store, queue_item *item)
{
    assert(item->queue->blocks);
    const kvt_status status =
        kvt_store_get(store, &item->key, item->view, item->deadline_ns, &item->info);
    if (status != KVT_OK || item->loss_max == 0 || item->loss_max == 1) return status;
    item->refused_loss = !kvt_codec_is_exact(item->info.variant);
    return item->refused_loss ? KVT_MISS : KVT_OK;
}

/* Carries one request out that is in flight nowhere, a get where all calls block. A deadline bounds
 * waiting, and of the other requests a put alone waits for room (queue_run_puts). No lock held. */
static kvt_status queue_run_one(kvt_store *store, queue_item *item)
{
    switch (item->kind) {
    case KVT_REQUEST_GET: return queue_get_blocking(store, item);
    case KVT_REQUEST_EXISTS: return queue_exists(store, item);
    case KVT_REQUEST_PREFETCH: return kvt_store_prefetch(store, &item->key, (kvt_tier)item->tier);
    case KVT_REQUEST_TOUCH: return queue_touch(store, &item->key);
    case KVT_REQUEST_DELETE: return kvt_store_delete(store, &item->key);
    default: assert(!"a kind that the submit accepts"); return KVT_E_ARGUMENT;
    }
}

/* Puts of a queue's thread whose records are written together. */
typedef struct queue_puts {
    executor_flights flights;
    uint32_t count;
    struct {
        put_call call;
        executor_flight flight;
        queue_item *item;
    } all[QUEUE_PUTS];
} queue_puts;

/* Waits for the records that are being written; their items have a status then. */
static void queue_puts_end(kvt_store *store, queue_puts *puts)
{
    for (uint32_t i = 0; i < puts->count; i++)
        puts->all[i].item->status = put_end(store, &puts->all[i].call);
    puts->count = 0;
}

/* A put that may be written behind the next ones. KVT_QUEUED: queue_puts_end gives its status. */
static kvt_status queue_puts_add(kvt_store *store, queue_puts *puts, queue_item *item)
{
    if (puts->count == QUEUE_PUTS) queue_puts_end(store, puts);
    put_call *call = &puts->all[puts->count].call;
    executor_flight *flight = &puts->all[puts->count].flight;
    call->whole = (kvt_entry){0};
    call->work = (put_work){.flight = flight};
    *flight = (executor_flight){.flights = &puts->flights};
    puts->all[puts->count].item = item;
    const kvt_status status = put_begin(store, call, item->entry, item->view);
    puts->count += status == KVT_QUEUED;
    return status;
}

/* Carries a chunk of puts out. Those that have ended are completed before one waits for room. No
 * lock held. */
static void queue_run_puts(kvt_queue *queue, queue_item **items, uint32_t count)
{
    kvt_store *store = queue->store;
    /* With put staging, or through a connection, a put returns before its record is written. */
    const bool behind = count == 1 || queue->blocks || handover_is_on(store);
    queue_puts *puts = behind ? NULL : malloc(sizeof *puts);
    uint32_t completed = 0;
    if (puts != NULL) {
        executor_flights_open(&puts->flights, store);
        puts->count = 0;
    }
    for (uint32_t i = 0; i < count; i++) {
        queue_item *item = items[i];
        item->status = KVT_E_CANCELLED;
        if (queue_called_off(queue, item)) continue;
        item->status = puts != NULL ? queue_puts_add(store, puts, item)
                                    : kvt_store_put(store, item->entry, item->view);
        if (item->status != KVT_BUSY) continue;
        if (puts != NULL) queue_puts_end(store, puts);
        queue_complete(queue, items + completed, i - completed);
        completed = i;
        item->status = queue_put_again(store, item);
    }
    if (puts != NULL) {
        queue_puts_end(store, puts);
        executor_flights_close(&puts->flights);
        free(puts);
    }
    queue_complete(queue, items + completed, count - completed);
}

/* Carries a chunk out that reads no entry. Puts and deletes may wait; requests behind them may be
 * called off meanwhile, because they have not begun. No lock held. */
static void queue_run_calls(kvt_queue *queue, queue_item **items, uint32_t count)
{
    assert(count > 0 && count <= QUEUE_CHUNK);
    const uint32_t kind = items[0]->kind;
    if (kind == KVT_REQUEST_PUT) {
        queue_run_puts(queue, items, count);
        return;
    }
    for (uint32_t i = 0; i < count; i++) {
        queue_item *item = items[i];
        item->status = KVT_E_CANCELLED;
        if (kind == KVT_REQUEST_DELETE && queue_called_off(queue, item)) continue;
        item->status = queue_run_one(queue->store, item);
    }
    queue_complete(queue, items, count);
}

/* ---- a thread ---- */

/* The most urgent class of `lists` that has requests: a class is served only while those above it
 * are empty. NULL: none has. Lock held. */
static queue_list *queue_first_class(queue_list *lists)
{
    for (uint32_t i = 0; i < QUEUE_CLASSES; i++)
        if (lists[i].count != 0) return &lists[i];
    return NULL;
}

/* Takes up to `most` requests of one kind from the front of the most urgent class of `lists`. Lock
 * held. */
static uint32_t queue_take_chunk(kvt_queue *queue, queue_list *lists, uint32_t most,
                                 queue_item **items)
{
    queue_list *list = queue_first_class(lists);
    if (list == NULL) return 0;
    assert(most <= QUEUE_CHUNK);
    uint32_t count = 0, kind = list->first->kind;
    while (count < most && list->first != NULL && list->first->kind == kind) {
        items[count] = queue_take(list);
        assert(items[count]->state == QUEUE_WAITING);
        items[count]->state = QUEUE_BEGUN;
        count++;
    }
    queue->begun += count;
    assert(queue_adds_up(queue));
    return count;
}

/* Takes one thread's share of gets whose bytes are in memory: reads that have arrived, or a list
 * that another thread has handed on. The next thread takes the rest. Lock held. */
static uint32_t queue_take_share(queue_list *list, queue_item **items)
{
    queue_share share = {0};
    while (share.count < QUEUE_CHUNK && list->first != NULL &&
           queue_share_take(&share, list->first)) {
        queue_item *item = queue_take(list);
        assert(item->state == QUEUE_BEGUN && !item->in_flight);
        items[share.count - 1] = item;
    }
    return share.count;
}

/* Takes reads in flight that are to be given up: past their deadline, called off, or due for a look
 * at their device. *next_ns_out: when this is to be done again. Lock held. */
static uint32_t queue_take_late(kvt_queue *queue, queue_item **items, uint64_t *next_ns_out)
{
    uint32_t count = 0;
    uint64_t now_ns = base_clock_ns(), next_ns = BASE_CLOCK_NEVER;
    bool check = queue->flying != NULL && now_ns >= queue->checked_ns + QUEUE_CHECK_NS;
    for (queue_item *item = queue->flying; item != NULL; item = item->next_flying) {
        assert(item->state == QUEUE_BEGUN);
        if (!item->in_flight || !item->begun_wholly || item->given_up || item->decodes) continue;
        bool late = item->called_off || item->deadline_ns <= now_ns;
        if (late || check) {
            if (count == QUEUE_CHUNK) return count; /* the others are seen by the next look */
            item->given_up = true;
            item->cancels = item->called_off; /* a later cancel is seen by the next look */
            items[count++] = item;
        } else if (item->deadline_ns < next_ns) {
            next_ns = item->deadline_ns;
        }
    }
    if (check) queue->checked_ns = now_ns;
    uint64_t check_ns = queue->checked_ns + QUEUE_CHECK_NS;
    if (queue->flying != NULL && check_ns < next_ns) next_ns = check_ns;
    *next_ns_out = next_ns;
    return count;
}

/* Whether a chunk may be begun now. *next_ns: when one that starved may. Lock held. */
static bool queue_may_begin(kvt_queue *queue, uint64_t *next_ns)
{
    if (queue->flying_count >= QUEUE_FLYING || queue->shares.count >= QUEUE_FLYING) return false;
    /* Staging comes back with the reads under way: asking at once would find none again. */
    if (queue->starved_ns == 0) return true;
    uint64_t again_ns = queue->starved_ns + QUEUE_STARVE_NS;
    if (base_clock_ns() >= again_ns) {
        queue->starved_ns = 0;
        return true;
    }
    if (again_ns < *next_ns) *next_ns = again_ns;
    return false;
}

/* Runs the first task. False: there is none. Lock held, and released meanwhile. */
static bool queue_run_task(kvt_queue *queue)
{
    queue_task *task = queue->tasks;
    if (task == NULL) return false;
    queue->tasks = task->next;
    /* The task may be posted again, or freed, while it runs: it is not touched afterwards. */
    pthread_mutex_unlock(&queue->lock);
    task->run(task->context);
    pthread_mutex_lock(&queue->lock);
    return true;
}

#define QUEUE_TICKS 16u

/* Lets loads that found no staging try again, when it is time. *next_ns: when it will be. True when
 * some did. Lock held, and released meanwhile. */
static bool queue_tick_loads(kvt_queue *queue, uint64_t *next_ns)
{
    kvt_load *loads[QUEUE_TICKS];
    uint32_t count = 0;
    if (queue->loads_starved_ns == 0) return false;
    uint64_t due_ns = queue->loads_starved_ns + QUEUE_STARVE_NS;
    if (base_clock_ns() < due_ns) {
        if (due_ns < *next_ns) *next_ns = due_ns;
        return false;
    }
    queue->loads_starved_ns = 0;
    for (kvt_load *load = queue->loads; load != NULL && count < QUEUE_TICKS; load = load->next) {
        assert(load->listed && load->queue == queue);
        atomic_fetch_add(&load->busy, 1); /* it is not freed before its tick */
        loads[count++] = load;
    }
    pthread_mutex_unlock(&queue->lock);
    for (uint32_t i = 0; i < count; i++)
        load_tick(loads[i]);
    pthread_mutex_lock(&queue->lock);
    return true;
}

/* Takes a chunk that may be begun, or a share to decode: in turns where there are both, so that a
 * small get waits for one share of others, and shares do not wait for ever. Lock held. */
static uint32_t queue_take_next(kvt_queue *queue, queue_item **items, queue_run **run_out,
                                uint64_t *next_ns)
{
    uint32_t count = 0;
    *run_out = queue_gets_share;
    const bool decodes = queue->shares.count != 0 && queue_may_decode(queue);
    const bool begins = !queue->shares_next || !decodes;
    if (begins && queue_may_begin(queue, next_ns))
        count = queue_take_chunk(queue, queue->waiting, queue->blocks ? 1 : QUEUE_CHUNK, items);
    queue->shares_next = count != 0;
    if (count == 0) return decodes ? queue_take_share(&queue->shares, items) : 0;
    const bool begins_get = items[0]->kind == KVT_REQUEST_GET && !queue->blocks;
    *run_out = begins_get ? queue_gets_begin : queue_run_calls;
    return count;
}

/* Does one piece of work, or sleeps until there may be some. False: the queue has ended. Lock held,
 * and released meanwhile. */
static bool queue_step(kvt_queue *queue)
{
    queue_item *items[QUEUE_CHUNK];
    uint64_t next_ns = BASE_CLOCK_NEVER;
    if (queue_run_task(queue)) return true;
    queue_run *run = queue_gets_arrived;
    uint32_t count = queue_take_share(&queue->arrived, items);
    if (count == 0) {
        uint64_t late_ns = BASE_CLOCK_NEVER;
        count = queue_take_late(queue, items, &late_ns);
        if (late_ns < next_ns) next_ns = late_ns;
        run = queue_gets_give_up;
    }
    if (count == 0) count = queue_take_next(queue, items, &run, &next_ns);
    if (count == 0) {
        if (queue_tick_loads(queue, &next_ns)) return true;
        /* The last begun item wakes the others, so that every thread comes by here. */
        if (queue->stopping && queue->begun == 0 && !queue->ends_loads) return false;
        base_condition_wait_until(&queue->work, &queue->lock, next_ns);
        return true;
    }
    const uint32_t decodes = run == queue_gets_share;
    queue->decoders += decodes;
    pthread_mutex_unlock(&queue->lock);
    run(queue, items, count);
    pthread_mutex_lock(&queue->lock);
    queue->decoders -= decodes;
    if (queue->stopping && queue->begun == 0) pthread_cond_broadcast(&queue->work);
    return true;
}

bool queue_help(kvt_queue *queue)
{
    queue_item *items[QUEUE_CHUNK];
    uint64_t next_ns;
    queue_run *run = queue_gets_share;
    /* A read under way may land at once, and its completion shall not wait for these. */
    if (queue->flying != NULL || queue->blocks) return false;
    uint32_t count = queue_take_share(&queue->shares, items);
    if (count == 0) {
        const queue_list *list = queue_first_class(queue->waiting);
        if (list == NULL || list->first->kind != KVT_REQUEST_GET) return false;
        if (!queue_may_begin(queue, &next_ns)) return false;
        count = queue_take_chunk(queue, queue->waiting, QUEUE_HELP, items);
        run = queue_gets_begin_waiting;
    }
    pthread_mutex_unlock(&queue->lock);
    run(queue, items, count);
    pthread_mutex_lock(&queue->lock);
    if (queue->stopping && queue->begun == 0) pthread_cond_broadcast(&queue->work);
    return true;
}

void queue_carry_out(kvt_queue *queue)
{
    pthread_mutex_lock(&queue->lock);
    while (queue->free.count + queue->completed.count != queue->made)
        (void)queue_step(queue);
    pthread_mutex_unlock(&queue->lock);
}

void *queue_main(void *argument)
{
    kvt_queue *queue = argument;
    pthread_mutex_lock(&queue->lock);
    while (queue_step(queue))
        continue;
    assert(queue->stopping && queue->begun == 0 && queue->flying == NULL);
    pthread_mutex_unlock(&queue->lock);
    return NULL;
}

void *queue_call_main(void *argument)
{
    kvt_queue *queue = argument;
    queue_item *items[QUEUE_CHUNK];
    pthread_mutex_lock(&queue->lock);
    for (;;) {
        uint32_t count = queue_take_chunk(queue, queue->calls, QUEUE_CHUNK, items);
        if (count == 0) {
            if (queue->stopping) break;
            pthread_cond_wait(&queue->call, &queue->lock);
            continue;
        }
        pthread_mutex_unlock(&queue->lock);
        queue_run_calls(queue, items, count);
        pthread_mutex_lock(&queue->lock);
        if (queue->stopping && queue->begun == 0) pthread_cond_broadcast(&queue->work);
    }
    pthread_mutex_unlock(&queue->lock);
    return NULL;
}
