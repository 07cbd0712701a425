/* SPDX-License-Identifier: Apache-2.0 */
/*
 * load_share.c - reads of one place that several layered loads want, or loads and a get
 * (docs/CALLS.md, Shared reads). The file starts no read and decodes nothing.
 *
 *     share --- members   entries of loads that have the place open
 *          \--- reads     under way: of cells, and of a get; each with the cells that have joined
 *
 * A read that ends hands its bytes to the cells that have joined, as their tasks, and offers a
 * layer to the members that have not asked for it. A cell that has joined is in its read's list or
 * has its task posted, never both; the lock decides which.
 *
 * The one lock of all shares of a store guards these lists; it is held for a few steps. It comes
 * after the store's and a load's, and before a queue's.
 */
#include "store/read/load_internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

typedef struct load_share {
    struct load_share *next; /* hash chain */
    uint64_t serial;         /* of the place */
    load_entry *members;
    load_read *reads;
    void (*take_offer)(void *offer);
} load_share;

/* ---- members ---- */

/* The link to a place's share, or to the end of its chain. Lock held. */
static load_share **share_link(kvt_store *store, uint64_t serial)
{
    load_share **link = &store->shares[serial % STORE_SHARES];
    while (*link != NULL && (*link)->serial != serial)
        link = &(*link)->next;
    return link;
}

/* Lists a read that others may join. Lock held. */
static void share_list(load_share *share, load_read *read)
{
    assert(read->share == NULL && read->waiters == NULL);
    read->share = share;
    read->next = share->reads;
    share->reads = read;
}

/* Nobody can join a read any more. Lock held. */
static void share_unlist(load_read *read)
{
    load_read **link = &read->share->reads;
    while (*link != read)
        link = &(*link)->next;
    *link = read->next;
    read->share = NULL;
}

/* Makes the read of a get one that loads can join. Without memory they cannot. Lock held. */
static void share_list_get(load_share *share, store_load *get)
{
    if (get == NULL || get->finished || get->shared != NULL) return;
    get->shared = calloc(1, sizeof *get->shared);
    if (get->shared == NULL) return;
    get->shared->layer = LOAD_WHOLE;
    share_list(share, get->shared);
}

void load_share_enter(load_entry *entry, store_load *read, void (*take_offer)(void *offer))
{
    kvt_store *store = entry->load->store;
    assert(store_is_locked(store) && entry->share == NULL && entry->place != NULL);
    pthread_mutex_lock(&store->shares_lock);
    load_share **link = share_link(store, entry->place->serial), *share = *link;
    if (share == NULL) share = *link = calloc(1, sizeof *share);
    if (share != NULL) {
        share->serial = entry->place->serial;
        share->take_offer = take_offer;
        entry->share = share;
        entry->share_next = share->members;
        if (share->members != NULL) share->members->share_previous = entry;
        share->members = entry;
        share_list_get(share, read);
    }
    pthread_mutex_unlock(&store->shares_lock);
}

void load_share_leave(load_entry *entry)
{
    kvt_store *store = entry->load->store;
    load_share *share = entry->share;
    if (share == NULL) return;
    pthread_mutex_lock(&store->shares_lock);
    if (entry->share_next != NULL) entry->share_next->share_previous = entry->share_previous;
    if (entry->share_previous != NULL)
        entry->share_previous->share_next = entry->share_next;
    else
        share->members = entry->share_next;
    entry->share = NULL;
    if (share->members == NULL) {
        while (share->reads != NULL) /* of gets: cells have left */
            share_unlist(share->reads);
        *share_link(store, share->serial) = share->next;
        free(share);
    }
    pthread_mutex_unlock(&store->shares_lock);
}

/* ---- heads ---- */

/* Copies the heads of an entry of the same place. False: without memory. Lock held. */
static bool share_copy_heads(load_entry *entry, const load_entry *from)
{
    assert(entry->section_count == from->section_count);
    for (uint32_t i = 0; i < entry->section_count; i++) {
        load_section *to = &entry->sections[i];
        const load_section *section = &from->sections[i];
        to->offset = section->offset;
        to->bytes = section->bytes;
        to->head_bytes = section->head_bytes;
        if (section->head == NULL) continue;
        if (to->head == NULL) to->head = malloc(section->kept_bytes);
        if (to->head == NULL) return false;
        memcpy(to->head, section->head, section->kept_bytes);
        to->kept_bytes = section->kept_bytes;
    }
    return true;
}

bool load_share_heads(load_entry *entry)
{
    kvt_store *store = entry->load->store;
    bool copied = false;
    if (entry->share == NULL) return false;
    pthread_mutex_lock(&store->shares_lock);
    const load_entry *from = entry->share->members;
    while (from != NULL && !from->opened)
        from = from->share_next;
    if (from != NULL) copied = share_copy_heads(entry, from);
    entry->opened = copied;
    pthread_mutex_unlock(&store->shares_lock);
    for (uint32_t i = 0; !copied && i < entry->section_count; i++) { /* half a copy is none */
        free(entry->sections[i].head);
        entry->sections[i].head = NULL;
    }
    return copied;
}

void load_share_opened(load_entry *entry)
{
    if (entry->share == NULL) return;
    pthread_mutex_lock(&entry->load->store->shares_lock);
    entry->opened = true;
    pthread_mutex_unlock(&entry->load->store->shares_lock);
}

/* ---- joining ---- */

bool load_share_join(load_cell *cell)
{
    kvt_load *load = cell->load;
    const load_share *share = load->entries[cell->entry].share;
    if (share == NULL) return false;
    pthread_mutex_lock(&load->store->shares_lock);
    load_read *read = share->reads;
    while (read != NULL && read->layer != cell->layer && read->layer != LOAD_WHOLE)
        read = read->next;
    cell->joins = read != NULL;
    if (read != NULL) {
        assert(read != &cell->read && cell->joined == NULL);
        cell->joined = read;
        cell->brought = NULL;
        cell->next_waiter = read->waiters;
        read->waiters = cell;
    }
    pthread_mutex_unlock(&load->store->shares_lock);
    return read != NULL;
}

void load_share_fly(load_cell *cell)
{
    kvt_load *load = cell->load;
    load_share *share = load->entries[cell->entry].share;
    if (share == NULL) return;
    pthread_mutex_lock(&load->store->shares_lock);
    cell->read.layer = cell->layer;
    share_list(share, &cell->read);
    pthread_mutex_unlock(&load->store->shares_lock);
}

void load_share_started(load_cell *const *cells, uint32_t count)
{
    if (count == 0) return;
    kvt_store *store = cells[0]->load->store;
    pthread_mutex_lock(&store->shares_lock);
    for (uint32_t i = 0; i < count; i++)
        cells[i]->read.flight = cells[i]->flight;
    pthread_mutex_unlock(&store->shares_lock);
}

/* Hands what a read has brought to the cells that have joined; NULL: it was lost. Lock held. */
static void share_hand_over(load_read *read, load_brought *brought)
{
    for (load_cell *cell = read->waiters; cell != NULL;) {
        load_cell *next = cell->next_waiter; /* the cell is its task's once that is posted */
        assert(cell->joins && cell->joined == read);
        cell->joined = NULL;
        cell->brought = brought;
        if (brought != NULL) atomic_fetch_add(&brought->users, 1);
        queue_post(cell->load->queue, &cell->task);
        cell = next;
    }
    read->waiters = NULL;
}

/* Takes a cell out of the read that it has joined. False: it was handed over. Lock held. */
static bool share_part(load_cell *cell, bool stuck_alone)
{
    load_read *read = cell->joined;
    if (read == NULL) return false;
    if (stuck_alone && (read->flight == NULL || !transfer_is_stuck(read->flight))) return false;
    load_cell **link = &read->waiters;
    while (*link != cell)
        link = &(*link)->next_waiter;
    *link = cell->next_waiter;
    cell->joined = NULL;
    return true;
}

bool load_share_give_up(load_cell *cell, bool stuck_alone)
{
    kvt_load *load = cell->load;
    bool done;
    pthread_mutex_lock(&load->store->shares_lock);
    if (cell->joins) {
        done = share_part(cell, stuck_alone);
    } else {
        done = !(stuck_alone && !transfer_is_stuck(cell->flight)) && transfer_give_up(cell->flight);
        if (done && cell->read.share != NULL) {
            share_unlist(&cell->read);
            cell->read.flight = NULL;
            share_hand_over(&cell->read, NULL);
        }
    }
    pthread_mutex_unlock(&load->store->shares_lock);
    if (done) cell->flight = NULL;
    return done;
}

/* ---- what reads bring ---- */

void load_share_drop(kvt_store *store, load_brought *brought)
{
    if (brought == NULL || atomic_fetch_sub(&brought->users, 1) != 1) return;
    store_load *get = brought->get;
    staging_release(store->staging, &brought->buffer);
    free(brought);
    if (get == NULL) return;
    pthread_mutex_lock(&store->lock);
    assert(get->users > 0 && get->finished);
    const bool last = --get->users == 0;
    pthread_mutex_unlock(&store->lock);
    if (!last) return;
    staging_release(store->staging, &get->buffer);
    free(get);
}

/* Whether an entry may want an offered layer, or any layer. The answer is looked at again. */
static bool share_lacks(const load_entry *entry, uint32_t layer)
{
    if (!entry->opened || entry->layers == NULL) return false;
    return layer == LOAD_WHOLE ||
           atomic_load_explicit(&entry->layers[layer], memory_order_relaxed) == LOAD_LACKS;
}

/* Offers a layer, or all of them, to the members but for one. Lock held. */
static void share_offer(const load_share *share, const load_entry *owner, uint32_t layer,
                        load_brought *brought)
{
    for (load_entry *entry = share->members; entry != NULL; entry = entry->share_next) {
        if (entry == owner || !share_lacks(entry, layer)) continue;
        load_offer *offer = malloc(sizeof *offer);
        if (offer == NULL) return; /* the others read for themselves */
        *offer = (load_offer){.task = {.run = share->take_offer, .context = offer},
                              .entry = entry,
                              .brought = brought,
                              .layer = layer};
        atomic_fetch_add(&brought->users, 1);
        atomic_fetch_add(&entry->load->busy, 1); /* it is not freed before */
        queue_post(entry->load->queue, &offer->task);
    }
}

kvt_status load_share_take(load_cell *cell, staging_buffer *buffer, load_brought **brought_out)
{
    kvt_load *load = cell->load;
    const load_entry *entry = &load->entries[cell->entry];
    const load_share *share = entry->share;
    pthread_mutex_t *lock = &load->store->shares_lock;
    transfer_report report;
    bool alone = true;
    *brought_out = NULL;
    if (share != NULL) {
        pthread_mutex_lock(lock);
        share_unlist(&cell->read);
        cell->read.flight = NULL; /* nobody looks at the transfer any more */
        alone = cell->read.waiters == NULL && share->members == entry && entry->share_next == NULL;
        pthread_mutex_unlock(lock);
    }
    const kvt_status status = transfer_take(cell->flight, buffer, &report);
    cell->flight = NULL;
    if (alone) return status;
    load_brought *brought = status == KVT_OK ? calloc(1, sizeof *brought) : NULL;
    if (brought != NULL) {
        atomic_init(&brought->users, 1);
        brought->buffer = *buffer;
        brought->payload = buffer->memory;
        *buffer = (staging_buffer){0};
    }
    pthread_mutex_lock(lock);
    share_hand_over(&cell->read, brought);
    if (brought != NULL && cell->layer < LOAD_WHOLE)
        share_offer(share, entry, cell->layer, brought);
    pthread_mutex_unlock(lock);
    *brought_out = brought;
    return status;
}

/* ---- gets ---- */

void load_share_get(kvt_store *store, uint64_t serial, store_load *read)
{
    assert(store_is_locked(store));
    pthread_mutex_lock(&store->shares_lock);
    load_share *share = *share_link(store, serial);
    if (share != NULL) share_list_get(share, read);
    pthread_mutex_unlock(&store->shares_lock);
}

void load_share_published(kvt_store *store, store_load *get)
{
    load_read *read = get->shared;
    assert(store_is_locked(store) && get->finished);
    if (read == NULL) return;
    pthread_mutex_lock(&store->shares_lock);
    load_share *share = read->share; /* NULL: the loads have gone */
    load_brought *brought =
        share != NULL && get->status == KVT_OK ? calloc(1, sizeof *brought) : NULL;
    if (brought != NULL) {
        atomic_init(&brought->users, 1);
        brought->payload = get->record;
        brought->whole = true;
        brought->get = get;
        get->users++;
    }
    if (share != NULL) share_unlist(read);
    share_hand_over(read, brought);
    if (brought != NULL) share_offer(share, NULL, LOAD_WHOLE, brought);
    /* The use that made it is given up here: the get is a user still, so nothing is freed. */
    if (brought != NULL && atomic_fetch_sub(&brought->users, 1) == 1) {
        get->users--;
        free(brought);
    }
    pthread_mutex_unlock(&store->shares_lock);
    get->shared = NULL;
    free(read);
}
