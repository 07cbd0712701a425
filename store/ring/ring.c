/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ring.c - what the owner of a ring calls, and the memory that it shares with producers
 * (docs/CALLS.md, Rings). The file carries no block out; ring_run.c does.
 *
 * Thread rule: as the public header says.
 */
#include "store/ring/ring_internal.h"

#include "base/clock.h"
#include "base/struct_size.h"
#include "base/thread.h"
#include "base/wait.h"
#include "store/background/lifetime.h"
#include "store/learn/token_drop.h"
#include "store/learn/uses.h"
#include "store/read/access_get.h"
#include "store/read/lookups.h"

#include <assert.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#define RING_THREADS_DEFAULT 2u
#define RING_LOST_MS         5000u
#define RING_LOST_MS_MAX     3600000u
#define RING_STEP            256u /* entries under one hold of the store's lock */

/* ---- memory ---- */

/* Makes the memory that producers may map, which none of them can make shorter. */
static kvt_status ring_map(kvt_ring *ring)
{
    ring->bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    ring->done = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    ring->fd = memfd_create("kvterrace-ring", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (ring->bell < 0 || ring->done < 0 || ring->fd < 0) return KVT_E_MEMORY;
    const off_t bytes = (off_t)ring->head.bytes;
    if (ftruncate(ring->fd, bytes) != 0) return KVT_E_MEMORY;
    if (fcntl(ring->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
        return KVT_E_MEMORY;
    void *memory = mmap(NULL, ring->head.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, ring->fd, 0);
    if (memory == MAP_FAILED) return KVT_E_MEMORY;
    ring->memory = memory;
    memcpy(memory, &ring->head, sizeof ring->head);
    uint8_t *submissions = ring->memory + ring->head.submissions_at;
    uint8_t *completions = ring->memory + ring->head.completions_at;
    const uint32_t depth = ring->head.depth;
    base_ring_make(submissions, depth);
    base_ring_make(completions, depth);
    const size_t words = base_ring_bytes(depth);
    kvt_status status = base_ring_attach(&ring->submissions, submissions, words, depth);
    if (status == KVT_OK) status = base_ring_attach(&ring->completions, completions, words, depth);
    return status;
}

/* ---- open and close ---- */

static void ring_free(kvt_ring *ring)
{
    for (uint32_t i = 0; i < ring->worker_count && ring->workers != NULL; i++)
        ring_worker_free(&ring->workers[i]);
    for (uint32_t i = 0; i < ring->object_count; i++)
        ring_opened_leave(ring->objects[i].opened);
    if (ring->memory != NULL) munmap(ring->memory, ring->head.bytes);
    if (ring->fd >= 0) close(ring->fd);
    if (ring->bell >= 0) close(ring->bell);
    if (ring->done >= 0) close(ring->done);
    pthread_mutex_destroy(&ring->lock);
    pthread_mutex_destroy(&ring->done_lock);
    pthread_mutex_destroy(&ring->gpu.lock);
    pthread_cond_destroy(&ring->work);
    pthread_cond_destroy(&ring->complete);
    free(ring->claims);
    free(ring->slots);
    free(ring->objects);
    free(ring->workers);
    free(ring);
}

/* Makes a ring without threads. */
static kvt_status ring_make(kvt_store *store, kvt_ring *ring)
{
    const uint32_t depth = ring->head.depth;
    ring->claims = calloc(depth, sizeof *ring->claims);
    ring->slots = calloc(depth, sizeof *ring->slots);
    ring->workers = calloc(ring->worker_count, sizeof *ring->workers);
    if (ring->claims == NULL || ring->slots == NULL || ring->workers == NULL) return KVT_E_MEMORY;
    for (uint32_t i = 0; i < ring->worker_count; i++)
        if (!ring_worker_make(&ring->workers[i], ring, store)) return KVT_E_MEMORY;
    return ring_map(ring);
}

static void ring_register(kvt_store *store, kvt_ring *ring)
{
    pthread_mutex_lock(&store->lock);
    ring->next = store->rings;
    if (ring->next != NULL) ring->next->previous = ring;
    store->rings = ring;
    pthread_mutex_unlock(&store->lock);
}

/* Takes a ring off its store's list. The store's lock is held. */
static void ring_unlist(kvt_store *store, kvt_ring *ring)
{
    assert(store_is_locked(store));
    if (ring->previous != NULL)
        ring->previous->next = ring->next;
    else
        store->rings = ring->next;
    if (ring->next != NULL) ring->next->previous = ring->previous;
    ring->next = ring->previous = NULL;
}

/* Whether options are within their ranges. */
static bool ring_takes_options(const kvt_ring_options *options)
{
    return options->threads <= RING_THREADS_MAX && options->poll_us <= RING_POLL_NS / 1000 &&
           options->lost_ms <= RING_LOST_MS_MAX && options->loss_max == options->loss_max;
}

kvt_status kvt_ring_open(kvt_store *store, uint32_t depth, const kvt_ring_options *options,
                         kvt_ring **ring_out)
{
    kvt_ring_options whole = {.struct_size = sizeof whole};
    if (ring_out == NULL || store == NULL) return KVT_E_ARGUMENT;
    *ring_out = NULL;
    if (base_store_calls_of(store) != NULL) return KVT_E_UNSUPPORTED;
    if (!fork_guard_is_ours(store)) return KVT_E_STATE;
    if (options == NULL) options = &whole;
    options = struct_size_in(options, &whole, sizeof whole,
                             STRUCT_SIZE_THROUGH(kvt_ring_options, loss_max));
    if (options == NULL || !ring_takes_options(options)) return KVT_E_ARGUMENT;
    ring_head head;
    const uint32_t contexts = options->contexts != 0 ? options->contexts : KVT_RING_CONTEXTS_MAX;
    if (!ring_head_of(depth, contexts, options->tables, &head)) return KVT_E_ARGUMENT;
    kvt_ring *ring = calloc(1, sizeof *ring);
    if (ring == NULL) return KVT_E_MEMORY;
    ring->forks = base_fork_guard_start();
    ring->store = store;
    ring->head = head;
    ring->fd = ring->bell = ring->done = -1;
    ring->loss_max = options->loss_max;
    ring->poll_ns = options->poll_us != 0 ? options->poll_us * UINT64_C(1000) : RING_POLL_NS;
    ring->lost_ns = (options->lost_ms != 0 ? options->lost_ms : RING_LOST_MS) * UINT64_C(1000000);
    ring->worker_count = options->threads != 0 ? options->threads : RING_THREADS_DEFAULT;
    pthread_mutex_init(&ring->lock, NULL);
    pthread_mutex_init(&ring->done_lock, NULL);
    pthread_mutex_init(&ring->gpu.lock, NULL);
    base_condition_init(&ring->work);
    base_condition_init(&ring->complete);
    kvt_status status = ring_make(store, ring);
    for (uint32_t i = 0; i < ring->worker_count && status == KVT_OK; i++) {
        status = base_thread_start(&ring->workers[i].thread, ring_main, &ring->workers[i]);
        ring->started += status == KVT_OK;
    }
    if (status != KVT_OK) {
        if (ring->started != 0) ring_stop(ring, KVT_E_CANCELLED);
        ring_free(ring);
        return status;
    }
    ring_register(store, ring);
    *ring_out = ring;
    return KVT_OK;
}

void ring_stop_all(kvt_store *store)
{
    for (;;) {
        pthread_mutex_lock(&store->lock);
        kvt_ring *ring = store->rings;
        if (ring != NULL) ring_unlist(store, ring);
        pthread_mutex_unlock(&store->lock);
        if (ring == NULL) return;
        ring_stop(ring, KVT_E_CANCELLED);
        pthread_mutex_lock(&ring->lock);
        ring->store = NULL;
        pthread_mutex_unlock(&ring->lock);
    }
}

void kvt_ring_close(kvt_ring *ring)
{
    if (!ring_is_ours(ring)) return;
    pthread_mutex_lock(&ring->lock);
    kvt_store *store = ring->store;
    pthread_mutex_unlock(&ring->lock);
    if (store != NULL) {
        pthread_mutex_lock(&store->lock);
        ring_unlist(store, ring);
        pthread_mutex_unlock(&store->lock);
    }
    ring_stop(ring, KVT_E_CANCELLED);
    ring_free(ring);
}

kvt_status kvt_ring_describe(kvt_ring *ring, kvt_ring_memory *memory_out)
{
    if (memory_out == NULL || ring == NULL) return KVT_E_ARGUMENT;
    if (!struct_size_is_sound(memory_out, STRUCT_SIZE_THROUGH(kvt_ring_memory, done)))
        return KVT_E_ARGUMENT;
    if (!ring_is_ours(ring)) return KVT_E_STATE;
    const kvt_ring_memory memory = {.fd = ring->fd,
                                    .memory = ring->memory,
                                    .bytes = ring->head.bytes,
                                    .bell = ring->bell,
                                    .done = ring->done};
    struct_size_out(memory_out, &memory, sizeof memory);
    return KVT_OK;
}

/* ---- regions and objects ---- */

kvt_status kvt_ring_region_add(kvt_ring *ring, void *memory, uint64_t bytes, uint32_t *region_out)
{
    if (ring == NULL || memory == NULL || region_out == NULL || bytes == 0) return KVT_E_ARGUMENT;
    if ((uintptr_t)memory > UINTPTR_MAX - bytes) return KVT_E_ARGUMENT;
    kvt_status status = ring_state(ring);
    if (status != KVT_OK) return status;
    pthread_mutex_lock(&ring->lock);
    uint32_t place = 0;
    while (place < RING_REGIONS_MAX && ring->regions[place].memory != NULL)
        place++;
    if (place < RING_REGIONS_MAX) {
        ring_region *region = &ring->regions[place];
        region->memory = memory;
        region->bytes = bytes;
        region->generation = region->generation % (UINT32_MAX / RING_REGIONS_MAX) + 1;
        *region_out = region->generation * RING_REGIONS_MAX + place;
    } else {
        status = KVT_BUSY;
    }
    pthread_mutex_unlock(&ring->lock);
    return status;
}

kvt_status kvt_ring_region_end(kvt_ring *ring, uint32_t number)
{
    if (ring == NULL) return KVT_E_ARGUMENT;
    if (!ring_is_ours(ring)) return KVT_E_STATE;
    kvt_status status = KVT_OK;
    pthread_mutex_lock(&ring->lock);
    ring_region *region = ring_find_region(ring, number);
    if (region == NULL)
        status = KVT_MISS;
    else if (region->users != 0)
        status = KVT_BUSY;
    else
        region->memory = NULL;
    pthread_mutex_unlock(&ring->lock);
    return status;
}

/* Counts the uses of entries, as of a get, and says which of them can be read: a byte a key. */
static size_t ring_use_entries(kvt_ring *ring, kvt_store *store, const kvt_key *keys, size_t count,
                               uint64_t *objects_out, uint64_t *handles)
{
    size_t there = 0;
    for (size_t from = 0; from < count; from += RING_STEP) {
        const size_t step = count - from < RING_STEP ? count - from : RING_STEP;
        uint64_t clock_ns = 0;
        entry_sight sight;
        entry_sight_begin(&sight, &store->secret, &keys[from], step);
        pthread_mutex_lock(&store->lock);
        for (size_t i = 0; i < step; i++) {
            store_entry *found = entry_sight_find(&store->table, &sight, i);
            const bool fits = lookup_finds(store, found) && !token_drop_is_uncounted(found) &&
                              !access_loses_too_much(store, found, ring->loss_max);
            store->counters.gets++;
            store->counters.misses += !fits;
            handles[from + i] = sight.handles[i];
            objects_out[from + i] = fits;
            there += fits;
            if (!fits) continue;
            const bool staged = found->state == ENTRY_STAGED;
            store->counters.tiers[staged ? KVT_TIER_DRAM : found->place->tier].hits++;
            store->counters.staged_hits += staged;
            uses_count(store, found, &clock_ns);
        }
        pthread_mutex_unlock(&store->lock);
    }
    return there;
}

/* Makes room for more objects. `lock` is held. */
static kvt_status ring_make_objects(kvt_ring *ring, size_t more)
{
    const uint64_t wanted = ring->object_count + (uint64_t)more;
    if (wanted > RING_OBJECTS_MAX) return KVT_BUSY;
    if (wanted <= ring->object_room) return KVT_OK;
    uint64_t room = 2 * wanted < RING_OBJECTS_MAX ? 2 * wanted : RING_OBJECTS_MAX;
    ring_object *objects = realloc(ring->objects, room * sizeof *objects);
    if (objects == NULL) return KVT_E_MEMORY;
    ring->objects = objects;
    ring->object_room = (uint32_t)room;
    return KVT_OK;
}

/* Opens an object in a free place, or in the next one. `lock` is held. */
static uint64_t ring_add_object(kvt_ring *ring, const kvt_key *key, uint64_t handle)
{
    uint32_t place = ring->object_count;
    if (ring->free_object != 0) {
        place = ring->free_object - 1;
        ring->free_object = ring->objects[place].next_free;
    } else {
        ring->objects[ring->object_count++] = (ring_object){0};
    }
    ring_object *object = &ring->objects[place];
    const uint32_t generation = object->generation == UINT32_MAX ? 1 : object->generation + 1;
    *object = (ring_object){
        .key = *key, .handle = handle, .generation = generation, .open = true, .near = true};
    return (uint64_t)generation << 32 | place;
}

kvt_status kvt_ring_object_open(kvt_ring *ring, const kvt_key *keys, size_t count,
                                uint64_t *objects_out)
{
    if (ring == NULL || keys == NULL || objects_out == NULL) return KVT_E_ARGUMENT;
    if (count == 0 || count > RING_OBJECTS_MAX) return KVT_E_ARGUMENT;
    kvt_status status = ring_state(ring);
    if (status != KVT_OK) return status;
    uint64_t *handles = malloc(count * sizeof *handles);
    if (handles == NULL) return KVT_E_MEMORY;
    const size_t there = ring_use_entries(ring, ring->store, keys, count, objects_out, handles);
    pthread_mutex_lock(&ring->lock);
    status = there == 0 ? KVT_MISS : ring_make_objects(ring, there);
    for (size_t i = 0; i < count; i++) {
        const bool open = status == KVT_OK && objects_out[i] != 0;
        objects_out[i] = open ? ring_add_object(ring, &keys[i], handles[i]) : 0;
    }
    pthread_mutex_unlock(&ring->lock);
    free(handles);
    return status;
}

void kvt_ring_object_close(kvt_ring *ring, const uint64_t *objects, size_t count)
{
    if (!ring_is_ours(ring) || objects == NULL) return;
    pthread_mutex_lock(&ring->lock);
    for (size_t i = 0; i < count; i++) {
        ring_object *object = ring_find_object(ring, objects[i]);
        if (object == NULL) continue;
        object->open = false;
        ring_object_settle(ring, object);
    }
    pthread_mutex_unlock(&ring->lock);
}

/* ---- blocks ---- */

static kvt_ring_context *ring_contexts(const kvt_ring *ring, uint32_t table)
{
    uint8_t *tables = ring->memory + ring->head.tables_at;
    return (kvt_ring_context *)(void *)tables + (uint64_t)table * ring->head.contexts;
}

/* The word of a completion's place. */
static uint64_t ring_done_word(const kvt_ring *ring, uint64_t index)
{
    return atomic_load_explicit(base_ring_word(&ring->completions, index), memory_order_acquire);
}

/* Whether the places of blocks are free: nobody claims one before its last completion was taken.
 * KVT_OK; KVT_BUSY; KVT_E_CORRUPT: a word that no completion leaves. */
static kvt_status ring_places_free(const kvt_ring *ring, uint64_t first, uint32_t count)
{
    for (uint64_t index = first; index < first + count; index++) {
        const uint64_t word = ring_done_word(ring, index), before = index - ring->head.depth;
        if (word == index) continue;
        return word == before || word == before + 1 ? KVT_BUSY : KVT_E_CORRUPT;
    }
    return KVT_OK;
}

kvt_status kvt_ring_get_iocb(kvt_ring *ring, uint32_t count, kvt_ring_iocb *iocbs_out)
{
    if (ring == NULL || iocbs_out == NULL) return KVT_E_ARGUMENT;
    kvt_status status = ring_state(ring);
    if (status != KVT_OK) return status;
    const uint32_t depth = ring->head.depth;
    if (count == 0 || count > depth) return KVT_E_ARGUMENT;
    _Atomic uint64_t *claimed = &ring->submissions.words->claimed;
    uint64_t first = atomic_load(claimed);
    /* Another producer has claimed meanwhile, or plays with the counter: looks are bounded. */
    for (uint32_t look = 0;; look++) {
        const uint64_t seen = first;
        if (first >= RING_CLAIMS_OF_GPU) return KVT_E_STATE;
        status = ring_places_free(ring, first, count);
        if (status == KVT_OK && atomic_compare_exchange_strong(claimed, &first, first + count))
            break;
        if (status != KVT_OK) first = atomic_load(claimed);
        if (status != KVT_OK && first == seen) return status;
        if (look > depth + 64) return KVT_BUSY;
    }
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t table = (uint32_t)(first + i) & (depth - 1);
        atomic_store(&ring->claims[table], first + i + 1);
        iocbs_out[i] = (kvt_ring_iocb){.index = first + i,
                                       .contexts = ring_contexts(ring, table),
                                       .block = {.table = table, .deadline_ns = KVT_NO_DEADLINE}};
    }
    return KVT_OK;
}

kvt_ring_context *kvt_ring_table(kvt_ring *ring, uint32_t kept, uint32_t *table_out)
{
    if (!ring_is_ours(ring) || table_out == NULL) return NULL;
    if (kept >= ring->head.tables - ring->head.depth) return NULL;
    *table_out = ring->head.depth + kept;
    return ring_contexts(ring, *table_out);
}

kvt_status kvt_ring_submit(kvt_ring *ring, const kvt_ring_iocb *iocbs, uint32_t count)
{
    static const uint64_t one = 1;
    if (ring == NULL || (iocbs == NULL && count != 0)) return KVT_E_ARGUMENT;
    kvt_status status = ring_state(ring);
    if (status != KVT_OK) return status;
    for (uint32_t i = 0; i < count; i++) {
        base_ring_body body;
        const uint32_t place = (uint32_t)iocbs[i].index & (ring->head.depth - 1);
        uint64_t claim = iocbs[i].index + 1;
        memcpy(&body, &iocbs[i].block, sizeof body);
        kvt_status posted = KVT_E_ARGUMENT;
        if (claim != 0 && atomic_compare_exchange_strong(&ring->claims[place], &claim, 0))
            posted = base_ring_post(&ring->submissions, iocbs[i].index, &body);
        if (status == KVT_OK) status = posted;
    }
    if (base_ring_wakes(&ring->submissions) && write(ring->bell, &one, sizeof one) < 0)
        return status; /* it is rung already */
    return status;
}

kvt_status ring_look_done(const kvt_ring *ring, uint64_t index, uint32_t count)
{
    const uint64_t claimed = atomic_load(&ring->submissions.words->claimed);
    bool all = true;
    if (index >= claimed || count > claimed - index) return KVT_E_ARGUMENT;
    for (uint64_t at = index; at < index + count; at++) {
        const uint64_t word = ring_done_word(ring, at);
        if (word == at)
            all = false;
        else if (word != at + 1)
            /* A later round of the place, or nonsense. */
            return (word - at) % ring->head.depth <= 1 && word - at < UINT64_MAX / 2
                       ? KVT_MISS
                       : KVT_E_CORRUPT;
    }
    return all ? KVT_OK : KVT_QUEUED;
}

/* Takes completions that are there, and copies what belongs to them first. done_lock is held. */
static kvt_status ring_take_done(kvt_ring *ring, uint64_t index, uint32_t count,
                                 kvt_ring_result *results, signed char *statuses)
{
    const uint32_t contexts = ring->head.contexts;
    for (uint32_t i = 0; i < count; i++) {
        base_ring_body body;
        const uint64_t at = index + i;
        const uint8_t *said =
            ring->memory + ring->head.statuses_at + (at & (ring->head.depth - 1)) * contexts;
        if (statuses != NULL) memcpy(statuses + (uint64_t)i * contexts, said, contexts);
        const kvt_status status = base_ring_take(&ring->completions, at, &body);
        if (status != KVT_OK) return KVT_E_CORRUPT;
        if (results != NULL) memcpy(&results[i], &body, sizeof body);
    }
    return KVT_OK;
}

kvt_status kvt_ring_wait(kvt_ring *ring, uint64_t index, uint32_t count, uint64_t deadline_ns,
                         kvt_ring_result *results, signed char *statuses)
{
    if (ring == NULL) return KVT_E_ARGUMENT;
    if (!ring_is_ours(ring)) return KVT_E_STATE;
    if (count == 0 || count > ring->head.depth) return KVT_E_ARGUMENT;
    bool waiting = true, over = false;
    pthread_mutex_lock(&ring->done_lock);
    ring_waiter waiter = {.next = ring->waits, .index = index, .count = count};
    ring->waits = &waiter;
    atomic_fetch_add(&ring->waiters, 1);
    kvt_status status = ring_look_done(ring, index, count);
    while (status == KVT_QUEUED && waiting && !over) {
        /* A ring that was given up has completed all but what is under way. */
        over = atomic_load(&ring->given_up) != KVT_OK && atomic_load(&ring->under_way) == 0;
        if (!over)
            waiting = base_condition_wait_until(&ring->complete, &ring->done_lock, deadline_ns);
        status = ring_look_done(ring, index, count);
    }
    if (status == KVT_QUEUED) status = over ? KVT_E_STATE : KVT_E_TIMEOUT;
    if (status == KVT_OK) status = ring_take_done(ring, index, count, results, statuses);
    atomic_fetch_sub(&ring->waiters, 1);
    ring_waiter **link = &ring->waits;
    while (*link != &waiter)
        link = &(*link)->next;
    *link = waiter.next;
    pthread_mutex_unlock(&ring->done_lock);
    return status;
}

kvt_status kvt_ring_stats_get(kvt_ring *ring, kvt_ring_stats *stats)
{
    if (ring == NULL || stats == NULL) return KVT_E_ARGUMENT;
    if (!struct_size_is_sound(stats, STRUCT_SIZE_THROUGH(kvt_ring_stats, bells)))
        return KVT_E_ARGUMENT;
    if (!ring_is_ours(ring)) return KVT_E_STATE;
    pthread_mutex_lock(&ring->lock);
    kvt_ring_stats now = ring->stats;
    pthread_mutex_unlock(&ring->lock);
    now.under_way = atomic_load(&ring->under_way);
    struct_size_out(stats, &now, sizeof now);
    return KVT_OK;
}
