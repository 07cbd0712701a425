/* SPDX-License-Identifier: Apache-2.0 */
/*
 * watch_events.c - what lookups begin and cease to find, told to readers (watch.h).
 *
 *     entry      (absent) --stored--> announced --removed--> (absent)
 *                                      |    ^
 *                                      moved+
 *
 * Changes are noted under the control lock, at the place of the code that makes them; entry_erase
 * asserts that no announced entry goes without its removal. Without a reader a note is one flag of
 * the entry and one look at a counter. A reader has a ring of its own: one that is too slow loses
 * its oldest events and delays nobody.
 *
 * Thread rule: any thread. Locks: control lock, readers_lock, a reader's own.
 */
#include "base/clock.h"
#include "store/core/handover.h"
#include "store/learn/token_drop.h"
#include "store/watch/watching.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

_Static_assert(sizeof(kvt_event) == 128, "the size of an event is public");

/* A reader of events. Under `lock`: taken <= written, and no more than
 * `capacity` events lie between them. */
struct kvt_events {
    const base_events_calls *elsewhere; /* NULL: of a store of this process */
    uint32_t forks;                     /* base_fork_guard_count of the process that opened it */
    struct kvt_events *next;            /* of the store's; under readers_lock */
    int fd;                             /* an eventfd, readable while taken != written */
    uint32_t capacity;
    pthread_mutex_t lock;
    kvt_store *store; /* NULL: closed before its reader was */
    uint64_t written; /* events, ever */
    uint64_t taken;   /* of these, drained or lost */
    uint64_t lost;    /* since the last drain */
    kvt_event ring[];
};

/* ---- readers ---- */

kvt_status kvt_events_open(kvt_store *store, uint32_t capacity, kvt_events **events_out)
{
    const base_store_calls *other = base_store_calls_of(store);
    if (other != NULL) return BASE_CALL(other, events_open, store, capacity, events_out);
    if (store == NULL || events_out == NULL) return KVT_E_ARGUMENT;
    *events_out = NULL;
    if (!fork_guard_is_ours(store)) return KVT_E_STATE;
    if (capacity == 0 || capacity > KVT_EVENTS_CAPACITY_MAX) return KVT_E_ARGUMENT;
    kvt_events *reader = calloc(1, sizeof *reader + capacity * sizeof reader->ring[0]);
    if (reader == NULL) return KVT_E_MEMORY;
    reader->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (reader->fd < 0) {
        free(reader);
        return KVT_E_IO;
    }
    reader->forks = store->forks;
    reader->capacity = capacity;
    reader->store = store;
    pthread_mutex_init(&reader->lock, NULL);
    store_watch *watch = store->watch;
    pthread_mutex_lock(&watch->readers_lock);
    reader->next = watch->first;
    watch->first = reader;
    atomic_fetch_add_explicit(&watch->readers, 1, memory_order_relaxed);
    pthread_mutex_unlock(&watch->readers_lock);
    *events_out = reader;
    return KVT_OK;
}

void kvt_events_close(kvt_events *reader)
{
    const base_events_calls *other = base_events_calls_of(reader);
    if (other != NULL) {
        other->close(reader);
        return;
    }
    if (reader == NULL || !fork_guard_is_current(reader->forks)) return;
    if (reader->store != NULL) {
        /* Take a reader out of its store's list. */
        store_watch *watch = reader->store->watch;
        pthread_mutex_lock(&watch->readers_lock);
        kvt_events **link = &watch->first;
        while (*link != reader)
            link = &(*link)->next;
        *link = reader->next;
        assert(atomic_load(&watch->readers) > 0);
        atomic_fetch_sub_explicit(&watch->readers, 1, memory_order_relaxed);
        pthread_mutex_unlock(&watch->readers_lock);
    }
    close(reader->fd);
    pthread_mutex_destroy(&reader->lock);
    free(reader);
}

void watch_end_readers(kvt_store *store)
{
    store_watch *watch = store->watch;
    while (watch->first != NULL) {
        kvt_events *reader = watch->first;
        watch->first = reader->next;
        reader->store = NULL;
    }
    atomic_store(&watch->readers, 0);
}

int kvt_events_fd(const kvt_events *reader)
{
    const base_events_calls *other = base_events_calls_of(reader);
    if (other != NULL) return other->fd(reader);
    return fork_guard_is_current(reader->forks) ? reader->fd : -1;
}

/* ---- rings ---- */

/* Adds an event behind the others; a full ring loses its oldest one. */
static void events_add(kvt_events *reader, const kvt_event *event)
{
    pthread_mutex_lock(&reader->lock);
    const bool empty = reader->taken == reader->written;
    assert(reader->taken <= reader->written);
    assert(reader->written - reader->taken <= reader->capacity);
    /* The newest events are the ones that say what is stored now. */
    if (reader->written - reader->taken == reader->capacity) {
        reader->taken++;
        reader->lost++;
    }
    reader->ring[reader->written++ % reader->capacity] = *event;
    /* One write for each time that the ring was empty: a reader is woken once for many events. */
    if (empty) (void)!eventfd_write(reader->fd, 1);
    pthread_mutex_unlock(&reader->lock);
}

kvt_status kvt_events_drain(kvt_events *reader, kvt_event *events, size_t capacity,
                            size_t *count_out, uint64_t *lost_out)
{
    const base_events_calls *other = base_events_calls_of(reader);
    if (other != NULL) return other->drain(reader, events, capacity, count_out, lost_out);
    if (reader == NULL || count_out == NULL) return KVT_E_ARGUMENT;
    if (events == NULL && capacity != 0) return KVT_E_ARGUMENT;
    *count_out = 0;
    if (lost_out != NULL) *lost_out = 0;
    if (!fork_guard_is_current(reader->forks)) return KVT_E_STATE;
    pthread_mutex_lock(&reader->lock);
    /* Copy the oldest events; the last one clears the descriptor. */
    size_t count = 0;
    while (count < capacity && reader->taken != reader->written)
        events[count++] = reader->ring[reader->taken++ % reader->capacity];
    assert(reader->taken <= reader->written);
    eventfd_t waiting;
    if (count != 0 && reader->taken == reader->written) (void)!eventfd_read(reader->fd, &waiting);
    *count_out = count;
    if (lost_out != NULL) *lost_out = reader->lost;
    if (lost_out != NULL) reader->lost = 0;
    pthread_mutex_unlock(&reader->lock);
    return KVT_OK;
}

/* ---- notes ---- */

/* Tells all readers, in one order. Control lock held. */
static void events_tell(kvt_store *store, const store_entry *entry, kvt_event *event)
{
    event->instant_ns = base_clock_ns();
    event->key = entry->key;
    if (entry->has_parent) event->parent = entry->parent;
    /* Readers count tokens, and such an entry may have fewer by now. */
    event->tokens = token_drop_is_uncounted(entry) ? 0 : entry->kind->layout.tokens;
    event->first_position = entry->first_position;
    event->tenant = entry->tenant;
    if (entry->place != NULL) {
        event->bytes = entry->place->record_bytes;
        event->tier = (uint8_t)entry->place->tier;
        event->variant = entry->place->variant;
    } else {
        event->bytes = entry->kind->source_bytes;
        event->tier = KVT_TIER_DRAM;
        event->variant.codec = KVT_CODEC_RAW;
    }
    const bool gone = event->kind == KVT_EVENT_REMOVED;
    event->load_seconds = gone ? (double)NAN : learn_load_seconds(store, entry, false);
    store_watch *watch = store->watch;
    pthread_mutex_lock(&watch->readers_lock);
    /* Numbered under the lock that orders the readers: a gap tells a reader what it has lost. */
    event->number = ++watch->events;
    for (kvt_events *reader = watch->first; reader != NULL; reader = reader->next)
        events_add(reader, event);
    pthread_mutex_unlock(&watch->readers_lock);
}

/* Whether anybody wants to know. */
static bool events_are_read(const kvt_store *store)
{
    return atomic_load_explicit(&store->watch->readers, memory_order_relaxed) != 0;
}

void watch_note_stored(kvt_store *store, store_entry *entry)
{
    assert(store_is_locked(store) && entry_is_readable(entry));
    if (entry->announced) return;
    entry->announced = true;
    if (!events_are_read(store)) return;
    kvt_event event = {.kind = KVT_EVENT_STORED};
    events_tell(store, entry, &event);
}

void watch_note_removed(kvt_store *store, store_entry *entry, kvt_event_reason reason)
{
    assert(store_is_locked(store));
    if (!entry->announced) return;
    entry->announced = false;
    if (!events_are_read(store)) return;
    kvt_event event = {.kind = KVT_EVENT_REMOVED, .reason = (uint8_t)reason};
    events_tell(store, entry, &event);
}

void watch_note_moved(kvt_store *store, const store_entry *entry, kvt_tier tier,
                      kvt_variant variant)
{
    assert(store_is_locked(store) && entry->announced && entry->place != NULL);
    const store_place *place = entry->place;
    const bool same = place->tier == tier && memcmp(&place->variant, &variant, sizeof variant) == 0;
    if (same || !events_are_read(store)) return;
    kvt_event event = {.kind = KVT_EVENT_MOVED, .source_tier = (uint8_t)tier};
    events_tell(store, entry, &event);
}
