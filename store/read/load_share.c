/* SPDX-License-Identifier: Apache-2.0 */
/*
 * load_share.c - reads of one place that several layered loads want, or loads and a get
 * (docs/READS.md). The file starts no read and decodes nothing.
 *
 *     share --- members   entries of loads that have the place open
 *          \--- reads     under way: of cells, and of a get
 *
 * A read that ends is told to the cells that have joined, whose tasks take it, and offers a layer
 * to the members that have not asked for it. The reads' lock guards the shares (read.h).
 */
#include "store/read/load_internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

typedef struct load_share {
    struct load_share *next; /* hash chain */
    uint64_t serial;         /* of the place */
    load_entry *members;
    store_read *reads;
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

/* Lists a read that loads may join. Lock held. */
static void share_list(load_share *share, store_read *read)
{
    assert(read->share == NULL && !read->finished);
    read->share = share;
    read->next = share->reads;
    share->reads = read;
}

/* No load can join a read any more. Lock held. */
static void share_unlist(store_read *read)
{
    store_read **link = &read->share->reads;
    while (*link != read)
        link = &(*link)->next;
    *link = read->next;
    read->share = NULL;
}

void load_share_enter(load_entry *entry, store_read *read, void (*take_offer)(void *offer))
{
    kvt_store *store = entry->load->store;
    assert(store_is_locked(store) && entry->share == NULL && entry->place != NULL);
    pthread_mutex_lock(&store->reads_lock);
    load_share **link = share_link(store, entry->place->serial), *share = *link;
    if (share == NULL) share = *link = calloc(1, sizeof *share);
    if (share != NULL) {
        share->serial = entry->place->serial;
        share->take_offer = take_offer;
        entry->share = share;
        entry->share_next = share->members;
        if (share->members != NULL) share->members->share_previous = entry;
        share->members = entry;
        if (read != NULL && read->share == NULL) share_list(share, read);
    }
    pthread_mutex_unlock(&store->reads_lock);
}

void load_share_leave(load_entry *entry)
{
    kvt_store *store = entry->load->store;
    load_share *share = entry->share;
    if (share == NULL) return;
    pthread_mutex_lock(&store->reads_lock);
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
    pthread_mutex_unlock(&store->reads_lock);
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
    pthread_mutex_lock(&store->reads_lock);
    const load_entry *from = entry->share->members;
    while (from != NULL && !from->opened)
        from = from->share_next;
    if (from != NULL) copied = share_copy_heads(entry, from);
    entry->opened = copied;
    pthread_mutex_unlock(&store->reads_lock);
    for (uint32_t i = 0; !copied && i < entry->section_count; i++) { /* half a copy is none */
        free(entry->sections[i].head);
        entry->sections[i].head = NULL;
    }
    return copied;
}

void load_share_opened(load_entry *entry)
{
    if (entry->share == NULL) return;
    pthread_mutex_lock(&entry->load->store->reads_lock);
    entry->opened = true;
    pthread_mutex_unlock(&entry->load->store->reads_lock);
}

/* ---- joining ---- */

bool load_share_join(load_cell *cell)
{
    kvt_load *load = cell->load;
    const load_share *share = load->entries[cell->entry].share;
    if (share == NULL) return false;
    pthread_mutex_lock(&load->store->reads_lock);
    store_read *read = share->reads;
    while (read != NULL && read->what != cell->layer && read->what != READ_WHOLE)
        read = read->next;
    cell->joins = read != NULL;
    if (read != NULL) {
        assert(cell->read == NULL);
        cell->read = read;
        read_join_locked(read, &cell->waiter);
    }
    pthread_mutex_unlock(&load->store->reads_lock);
    return read != NULL;
}

void load_share_fly(load_cell *cell)
{
    kvt_load *load = cell->load;
    load_share *share = load->entries[cell->entry].share;
    if (share == NULL) return;
    pthread_mutex_lock(&load->store->reads_lock);
    share_list(share, cell->read);
    pthread_mutex_unlock(&load->store->reads_lock);
}

void load_share_get(kvt_store *store, uint64_t serial, store_read *read)
{
    assert(store_is_locked(store));
    pthread_mutex_lock(&store->reads_lock);
    load_share *share = *share_link(store, serial);
    if (share != NULL) share_list(share, read);
    pthread_mutex_unlock(&store->reads_lock);
}

/* ---- what reads bring ---- */

/* Whether an entry may want what a read has brought, a layer or all. The answer is looked at again.
 */
static bool share_lacks(const load_entry *entry, const store_read *read)
{
    if (entry == read->loader || !entry->opened || entry->layers == NULL) return false;
    return read->what == READ_WHOLE ||
           atomic_load_explicit(&entry->layers[read->what], memory_order_relaxed) == LOAD_LACKS;
}

void load_share_ended(store_read *read)
{
    const load_share *share = read->share;
    share_unlist(read);
    if (read->status != KVT_OK || read->what > READ_WHOLE) return;
    for (load_entry *entry = share->members; entry != NULL; entry = entry->share_next) {
        if (!share_lacks(entry, read)) continue;
        load_offer *offer = malloc(sizeof *offer);
        if (offer == NULL) return; /* the others read for themselves */
        *offer = (load_offer){
            .task = {.run = share->take_offer, .context = offer}, .entry = entry, .read = read};
        atomic_fetch_add(&read->users, 1);
        atomic_fetch_add(&entry->load->busy, 1); /* it is not freed before */
        queue_post(entry->load->queue, &offer->task);
    }
}
