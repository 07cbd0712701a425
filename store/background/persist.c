/* SPDX-License-Identifier: Apache-2.0 */
/*
 * persist.c - writing back: entries of HBM and DRAM that have no record on SSD get a copy there, at
 * close, when kvt_store_persist asks for it, and a few at a time in the background (docs/STORE.md,
 * Write back).
 *
 *     collect candidates (above, without a copy) and victims (stored on SSD, and copies)
 *     -> order by worth per byte -> a chunk: victims make room, commit, records are written -> next
 *     -> the candidates that were in motion, once they are at rest -> look again
 *
 * An entry in motion is on its way to SSD, or from it, or being copied by another thread: only the
 * end of its move says whether it needs a record. Every entry that was stored at the begin is
 * looked at until it was seen on SSD or was tried once, so a store that moves entries without end
 * keeps no call for ever.
 *
 * Close and kvt_store_persist write into free room and in place of entries that are worth less: a
 * restart is near, and the SSD is to hold the best entries of all tiers. The background writes
 * into free room alone.
 *
 * Thread rule: as each function says in store.h.
 */
#include "base/clock.h"
#include "base/struct_size.h"
#include "base/thread.h"
#include "store/core/executor.h"
#include "store/core/handover.h"
#include "store/core/kill_note.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define PERSIST_SCAN    512u /* buckets looked at under one hold of the lock */
#define PERSIST_CHUNK   256u /* records between two looks at the room */
#define PERSIST_THREADS 4u   /* that write a chunk, the caller's included */

/* One entry that is a candidate or a victim, with its worth per byte when it was looked at. */
typedef struct persist_item {
    uint64_t handle;
    uint64_t bytes;
    double per_byte;
    uint32_t first_position;
} persist_item;

/* Items in an array that doubles; the list owns it. */
typedef struct persist_list {
    persist_item *items;
    size_t count;
    size_t room;
} persist_list;

/* Appends an item; false without memory. */
static bool persist_add(persist_list *list, const persist_item *item)
{
    if (list->count == list->room) {
        size_t room = list->room == 0 ? 256 : list->room * 2;
        persist_item *grown = realloc(list->items, room * sizeof *grown);
        if (grown == NULL) return false;
        list->items = grown;
        list->room = room;
    }
    assert(list->count < list->room);
    list->items[list->count++] = *item;
    return true;
}

/* Orders by worth per byte, the best first; of equals the entry that begins earlier in its
 * sequence, because later ones are useless without it. */
static int persist_compare_best(const void *left, const void *right)
{
    const persist_item *a = left, *b = right;
    if (a->per_byte != b->per_byte) return a->per_byte < b->per_byte ? 1 : -1;
    if (a->first_position != b->first_position)
        return a->first_position > b->first_position ? 1 : -1;
    return (a->handle > b->handle) - (a->handle < b->handle);
}

/* The reverse order, for victims. */
static int persist_compare_least(const void *left, const void *right)
{
    return persist_compare_best(right, left);
}

/* ---- candidates and victims ---- */

/* Handles, in order. */
typedef struct persist_names {
    uint64_t *handles;
    size_t count;
} persist_names;

/* One run of write-back. */
typedef struct persist_run {
    kvt_store *store;
    uint64_t deadline_ns;
    bool closing;
    uint64_t begin; /* entries that were put after the begin were born after it */
    persist_list wanted;
    persist_list moving; /* the candidates that were in motion */
    persist_names tried; /* of this look and those before */
    bool waits;          /* for candidates in motion, which are not put off */
    persist_list victims;
    bool victims_known;
    size_t next_victim;
    kvt_persist_info info;
    kvt_status failure; /* the first of a write */

    pthread_mutex_t lock; /* of the chunk under way, and the two above then */
    const persist_item *chunk[PERSIST_CHUNK];
    uint32_t chunk_count;
    uint32_t chunk_next;
} persist_run;

/* The order in which persist_was_tried searches. */
static int persist_compare_handles(const void *left, const void *right)
{
    const uint64_t *a = left, *b = right;
    return (*a > *b) - (*a < *b);
}

/* Whether this look or an earlier one chose the entry. */
static bool persist_was_tried(const persist_run *run, uint64_t handle)
{
    const persist_names *tried = &run->tried;
    return tried->count != 0 && bsearch(&handle, tried->handles, tried->count, sizeof handle,
                                        persist_compare_handles) != NULL;
}

/* Adds the candidates of this look to the handles that were tried. */
static kvt_status persist_note_tried(persist_run *run)
{
    persist_names *tried = &run->tried;
    size_t count = tried->count + run->wanted.count;
    uint64_t *grown = realloc(tried->handles, count * sizeof *grown);
    if (grown == NULL) return KVT_E_MEMORY;
    for (size_t i = 0; i < run->wanted.count; i++)
        grown[tried->count + i] = run->wanted.items[i].handle;
    qsort(grown, count, sizeof *grown, persist_compare_handles);
    *tried = (persist_names){grown, count};
    return KVT_OK;
}

/* Adds an entry to the list that is being made, candidates or victims, when it belongs there. False
 * without memory. Lock held. */
static bool persist_look_at(persist_run *run, const store_entry *entry, bool victims)
{
    bool wanted = entry_is_above_alone(entry) && entry->born <= run->begin &&
                  !persist_was_tried(run, entry->handle);
    bool stored = entry->state == ENTRY_RESIDENT && entry->place->tier == KVT_TIER_SSD &&
                  !entry->place->visited;
    if (victims ? !stored && entry->copy == NULL : !wanted) return true;
    kvt_policy_worth worth = {.struct_size = sizeof worth};
    if (kvt_policy_worth_get(run->store->policy, entry->handle, KVT_TIER_SSD, &worth) != KVT_OK)
        return true;
    const store_place *place = entry->copy != NULL ? entry->copy : entry->place;
    const persist_item item = {.handle = entry->handle,
                               .bytes = place->record_bytes,
                               .per_byte = worth.per_byte,
                               .first_position = entry->first_position};
    if (!victims) return worth.per_byte <= 0 || persist_add(&run->wanted, &item);
    if (stored && worth.resident_children != 0) return true; /* others need it as their prefix */
    return persist_add(&run->victims, &item);
}

/* Makes the list of candidates or of victims, in order. The lock is held for PERSIST_SCAN buckets
 * at a time, so an entry that arrives meanwhile may be overlooked. */
static kvt_status persist_collect(persist_run *run, bool victims)
{
    kvt_store *store = run->store;
    kvt_status status = KVT_OK;
    size_t bucket = 0;
    bool more = true;
    while (more && status == KVT_OK) {
        pthread_mutex_lock(&store->lock);
        for (uint32_t i = 0; i < PERSIST_SCAN && bucket < store->table.bucket_count; i++) {
            const store_entry *entry = store->table.buckets[bucket++];
            for (; entry != NULL && status == KVT_OK; entry = entry->next)
                if (!persist_look_at(run, entry, victims)) status = KVT_E_MEMORY;
        }
        more = bucket < store->table.bucket_count;
        pthread_mutex_unlock(&store->lock);
    }
    persist_list *list = victims ? &run->victims : &run->wanted;
    if (list->count > 1)
        qsort(list->items, list->count, sizeof(persist_item),
              victims ? persist_compare_least : persist_compare_best);
    return status;
}

/* Collects the victims, once in a look, and only when the free room does not hold all candidates.
 */
static kvt_status persist_prepare(persist_run *run)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < run->wanted.count; i++)
        bytes += run->wanted.items[i].bytes;
    if (bytes == 0 || run->victims_known) return KVT_OK;
    pthread_mutex_lock(&run->store->lock);
    bool fits = bytes <= copies_free_bytes(run->store, run->closing);
    pthread_mutex_unlock(&run->store->lock);
    if (fits) return KVT_OK;
    run->victims.count = run->next_victim = 0;
    run->victims_known = true;
    return persist_collect(run, true);
}

/* ---- room ---- */

/* Counts a candidate that finds no room. */
static void persist_lack_room(persist_run *run, const persist_item *item)
{
    run->info.without_room++;
    run->info.without_room_bytes += item->bytes;
}

/* Drops a victim's copy, or the victim itself. Returns the bytes that come free with the next
 * commit. Lock held. */
static uint64_t persist_displace(persist_run *run, const persist_item *victim)
{
    kvt_store *store = run->store;
    store_entry *entry = entry_find_handle(&store->table, victim->handle);
    if (entry == NULL || entry->state != ENTRY_RESIDENT) return 0;
    if (entry->copy != NULL) {
        uint64_t bytes = entry->copy->location->bytes;
        store->counters.copies.dropped++;
        /* An entry that was not tried yet is found by the next look. */
        if (persist_was_tried(run, entry->handle)) persist_lack_room(run, victim);
        copies_drop(store, entry);
        return bytes;
    }
    if (entry->place->tier != KVT_TIER_SSD || entry->place->visited) return 0;
    uint64_t bytes = entry->place->location->bytes;
    KILL_NOTE(KILL_NOTE_GIVES_WAY, &entry->key, KVT_TIER_SSD);
    store->counters.evictions++;
    run->info.displaced++;
    run->info.displaced_bytes += bytes;
    quarantine_drop_entry(store, entry, KVT_REMOVED_EVICTED);
    return bytes;
}

/* Makes room for one record at the cost of victims that are worth less per byte. *room is the room
 * that is free or comes free with the next commit. Lock held. */
static bool persist_make_room(persist_run *run, const persist_item *item, uint64_t *room)
{
    while (*room < item->bytes && run->next_victim < run->victims.count) {
        const persist_item *victim = &run->victims.items[run->next_victim];
        if (victim->per_byte >= item->per_byte) break;
        run->next_victim++;
        *room += persist_displace(run, victim);
    }
    if (*room < item->bytes) return false;
    *room -= item->bytes;
    return true;
}

/* ---- writing ---- */

/* Counts how one record went. run->lock held. */
static void persist_note(persist_run *run, const persist_item *item, kvt_status status)
{
    if (status == KVT_OK) {
        run->info.written++;
        run->info.written_bytes += item->bytes;
    } else if (status == KVT_E_SPACE) { /* in pieces that do not hold it */
        persist_lack_room(run, item);
    } else if (status != KVT_MISS) { /* it is on SSD, or has left, meanwhile */
        run->info.left++;
        run->info.left_bytes += item->bytes;
        if (run->failure == KVT_OK) run->failure = status;
    }
}

/* Writes records of the chunk until none is left; run by several threads at once. Past the deadline
 * the rest is counted as left. */
static void *persist_write_chunk(void *argument)
{
    persist_run *run = argument;
    pthread_mutex_lock(&run->lock);
    while (run->chunk_next < run->chunk_count) {
        const persist_item *item = run->chunk[run->chunk_next++];
        kvt_status status = KVT_E_TIMEOUT;
        pthread_mutex_unlock(&run->lock);
        if (base_clock_ns() < run->deadline_ns)
            status = executor_copy(run->store, item->handle, run->deadline_ns);
        pthread_mutex_lock(&run->lock);
        persist_note(run, item, status);
    }
    pthread_mutex_unlock(&run->lock);
    return NULL;
}

/* Writes the candidates chunk by chunk, until the deadline or a failure. */
static void persist_write_wanted(persist_run *run)
{
    size_t at = 0;
    run->chunk_count = run->chunk_next = 0;
    kvt_status status = persist_prepare(run);
    while (status == KVT_OK && at < run->wanted.count) {
        status = KVT_E_TIMEOUT;
        if (base_clock_ns() < run->deadline_ns) {
            /* The next records and their room. */
            kvt_store *store = run->store;
            size_t before = run->next_victim;
            run->chunk_count = run->chunk_next = 0;
            pthread_mutex_lock(&store->lock);
            uint64_t room = copies_free_bytes(store, run->closing);
            while (at < run->wanted.count && run->chunk_count < PERSIST_CHUNK) {
                const persist_item *item = &run->wanted.items[at++];
                const store_entry *entry = entry_find_handle(&store->table, item->handle);
                if (entry == NULL || !entry_is_above_alone(entry)) continue;
                /* An item in motion is put off, unless this pass waits for it. */
                if (!run->waits && entry->state != ENTRY_RESIDENT &&
                    persist_add(&run->moving, item))
                    continue;
                if (persist_make_room(run, item, &room))
                    run->chunk[run->chunk_count++] = item;
                else
                    persist_lack_room(run, item);
            }
            pthread_mutex_unlock(&store->lock);
            assert(run->chunk_count <= PERSIST_CHUNK && run->next_victim <= run->victims.count);
            status = run->next_victim != before ? catalog_settle(store->catalog) : KVT_OK;
        }
        if (status == KVT_OK) {
            /* On several threads, because one record after the other would wait for each device in
             * turn. */
            pthread_t threads[PERSIST_THREADS - 1];
            uint32_t count = 0;
            /* Fewer threads than wanted are enough: the caller writes, too. */
            while (count < PERSIST_THREADS - 1 && count + 1 < run->chunk_count &&
                   base_thread_start(&threads[count], persist_write_chunk, run) == 0)
                count++;
            (void)persist_write_chunk(run);
            while (count > 0)
                pthread_join(threads[--count], NULL);
        }
    }
    /* Count the records that were chosen and not written, and the candidates from `at` on. */
    assert(run->chunk_next <= run->chunk_count && at <= run->wanted.count);
    while (run->chunk_next < run->chunk_count)
        persist_note(run, run->chunk[run->chunk_next++], status);
    for (; at < run->wanted.count; at++)
        persist_note(run, &run->wanted.items[at], status);
}

/* Looks at all entries, and writes those that lack a record on SSD and were not tried before: what
 * is in motion last, so that it delays no other. *more_out: there were such entries. */
static kvt_status persist_look(persist_run *run, bool *more_out)
{
    run->wanted.count = run->moving.count = 0;
    run->victims_known = false;
    kvt_status status = persist_collect(run, false);
    *more_out = status == KVT_OK && run->wanted.count != 0;
    if (*more_out) status = persist_note_tried(run);
    if (status != KVT_OK) return status;
    run->waits = false;
    persist_write_wanted(run);
    persist_list moving = run->moving;
    run->moving = run->wanted;
    run->wanted = moving;
    run->waits = true;
    persist_write_wanted(run);
    return KVT_OK;
}

/* Frees the run's lists and adds its records to the store's counters. */
static void persist_end(persist_run *run)
{
    kvt_store *store = run->store;
    free(run->wanted.items);
    free(run->moving.items);
    free(run->victims.items);
    free(run->tried.handles);
    pthread_mutex_destroy(&run->lock);
    pthread_mutex_lock(&store->lock);
    store->counters.persisted.records += run->info.written;
    store->counters.persisted.bytes += run->info.written_bytes;
    pthread_mutex_unlock(&store->lock);
}

/* Writes entries above that have no record on SSD there, the most worth first, and makes what has
 * been written durable. Entries in motion are waited for. closing: nothing follows, so no room is
 * kept. No lock held. As kvt_store_persist.
 */
static kvt_status persist_all(kvt_store *store, uint64_t deadline_ns, bool closing,
                              kvt_persist_info *info_out)
{
    persist_run run = {.store = store, .deadline_ns = deadline_ns, .closing = closing};
    run.info.left = handover_drain(store, deadline_ns, &run.info.left_bytes);
    if (run.info.left != 0) run.failure = KVT_E_TIMEOUT;
    /* The serial that separates entries of before from those put later. */
    pthread_mutex_init(&run.lock, NULL);
    pthread_mutex_lock(&run.store->lock);
    run.begin = run.store->next_serial++;
    pthread_mutex_unlock(&run.store->lock);
    kvt_status status = KVT_OK;
    bool more = true;
    while (more && status == KVT_OK)
        status = persist_look(&run, &more);
    persist_end(&run);
    /* The flush covers rows of other threads too: every entry seen on SSD is durable then. */
    kvt_status flushed = catalog_flush(store->catalog);
    if (info_out != NULL) *info_out = run.info;
    if (status == KVT_OK) status = flushed;
    return status == KVT_OK ? run.failure : status;
}

kvt_status kvt_store_persist(kvt_store *store, uint64_t deadline_ns, kvt_persist_info *info_out)
{
    const base_store_calls *other = base_store_calls_of(store);
    if (other != NULL) return BASE_CALL(other, persist, store, deadline_ns, info_out);
    if (store == NULL) return KVT_E_ARGUMENT;
    if (!fork_guard_is_ours(store)) return KVT_E_STATE;
    if (info_out != NULL &&
        !struct_size_is_sound(info_out, STRUCT_SIZE_THROUGH(kvt_persist_info, left_bytes)))
        return KVT_E_ARGUMENT;
    kvt_persist_info whole = {0};
    kvt_status status = KVT_E_UNSUPPORTED;
    if (store->copies.kept && store->pools[KVT_TIER_SSD] != NULL)
        status = persist_all(store, deadline_ns, false, &whole);
    if (info_out != NULL) struct_size_out(info_out, &whole, sizeof whole);
    return status;
}

void persist_close(kvt_store *store, uint64_t deadline_ns)
{
    if (!store->copies.kept || store->pools[KVT_TIER_SSD] == NULL) return;
    if (deadline_ns == 0) return;
    /* Entries without a record on SSD are lost with the process, as by a kill. */
    (void)!persist_all(store, deadline_ns, true, NULL);
}
