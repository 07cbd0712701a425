/* SPDX-License-Identifier: Apache-2.0 */
/*
 * read.c - reads under way: joining, giving up, ending. The contract is read.h's. The file starts
 * no transfer and decodes nothing.
 *
 * Thread rule: any thread.
 */
#include "store/read/read.h"

#include "base/wait.h"
#include "store/core/store.h"

#include <assert.h>
#include <stdlib.h>

store_read *read_make(uint32_t what)
{
    store_read *read = calloc(1, sizeof *read);
    if (read == NULL) return NULL;
    read->what = what;
    atomic_init(&read->users, 1);
    return read;
}

void read_join_locked(store_read *read, read_waiter *waiter)
{
    assert(!read->finished && atomic_load(&read->users) > 0);
    atomic_fetch_add(&read->users, 1);
    if (waiter == NULL) return;
    assert(waiter->read == NULL && waiter->ended != NULL);
    waiter->read = read;
    waiter->next = read->waiters;
    read->waiters = waiter;
}

void read_join(kvt_store *store, store_read *read, read_waiter *waiter)
{
    pthread_mutex_lock(&store->reads_lock);
    read_join_locked(read, waiter);
    pthread_mutex_unlock(&store->reads_lock);
}

/* Takes a waiter off its read. False: it was told. Lock held. */
static bool read_part(read_waiter *waiter)
{
    if (waiter->read == NULL) return false;
    read_waiter **link = &waiter->read->waiters;
    while (*link != waiter)
        link = &(*link)->next;
    *link = waiter->next;
    waiter->read = NULL;
    return true;
}

bool read_give_up(kvt_store *store, store_read *read, read_waiter *waiter, bool stuck_alone)
{
    pthread_mutex_lock(&store->reads_lock);
    bool done = !stuck_alone || (read->started && transfer_is_stuck(read->flight));
    if (done && waiter != NULL)
        done = read_part(waiter);
    else if (done)
        read->started = false; /* nobody looks at the transfer any more */
    pthread_mutex_unlock(&store->reads_lock);
    if (!done || waiter != NULL) return done;
    done = transfer_give_up(read->flight);
    if (done) read->flight = NULL;
    return done;
}

kvt_status read_land(kvt_store *store, store_read *read)
{
    transfer_report report;
    pthread_mutex_lock(&store->reads_lock);
    read->started = false;
    pthread_mutex_unlock(&store->reads_lock);
    const kvt_status status = transfer_take(read->flight, &read->buffer, &report);
    read->flight = NULL;
    read_end(store, read, status, report.finished_ns - report.started_ns, false);
    return status;
}

/* A get that comes from here on starts a read of its own. The entry may have moved on, or left the
 * table, meanwhile. */
static void read_close(kvt_store *store, const store_read *read)
{
    pthread_mutex_lock(&store->lock);
    store_entry *entry = entry_find_handle(&store->table, read->handle);
    if (entry != NULL && entry->read == read) entry->read = NULL;
    pthread_mutex_unlock(&store->lock);
}

/* Gives a use up. True: it was the last one. */
static bool read_leave(store_read *read)
{
    assert(atomic_load(&read->users) > 0);
    return atomic_fetch_sub(&read->users, 1) == 1;
}

/* Frees a read that nobody uses. */
static void read_free(kvt_store *store, store_read *read)
{
    assert(read->waiters == NULL && read->share == NULL && read->flight == NULL);
    if (read->buffer.memory != NULL) staging_release(store->staging, &read->buffer);
    if (read->free != NULL)
        read->free(read);
    else
        free(read);
}

void read_end(kvt_store *store, store_read *read, kvt_status status, uint64_t read_ns, bool leaves)
{
    if (read->handle != 0) read_close(store, read);
    pthread_mutex_lock(&store->reads_lock);
    assert(!read->finished && read->flight == NULL);
    read->status = status;
    read->read_ns = read_ns;
    read->finished = true;
    if (read->share != NULL) load_share_ended(read);
    read_waiter *waiter = read->waiters;
    read->waiters = NULL;
    for (read_waiter *one = waiter; one != NULL; one = one->next)
        one->read = NULL;
    /* Whoever waited has the staging back when it lets go: the owner holds it no longer. */
    const bool last = leaves && read_leave(read);
    pthread_cond_broadcast(&store->read_ended);
    pthread_mutex_unlock(&store->reads_lock);
    while (waiter != NULL) {
        read_waiter *next = waiter->next; /* it is its owner's once it is told */
        waiter->ended(waiter->context);
        waiter = next;
    }
    if (last) read_free(store, read);
}

kvt_status read_wait(kvt_store *store, store_read *read, uint64_t deadline_ns)
{
    bool waiting = true;
    pthread_mutex_lock(&store->reads_lock);
    while (!read->finished && waiting)
        waiting = base_condition_wait_until(&store->read_ended, &store->reads_lock, deadline_ns);
    const kvt_status status = read->finished ? read->status : KVT_E_TIMEOUT;
    pthread_mutex_unlock(&store->reads_lock);
    return status;
}

void read_drop(kvt_store *store, store_read *read)
{
    if (read != NULL && read_leave(read)) read_free(store, read);
}
