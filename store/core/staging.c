/* SPDX-License-Identifier: Apache-2.0 */
/*
 * staging.c - the arena, its queue of waiters and its account of bytes. The contracts are in
 * staging.h. The file moves no bytes and knows no record.
 *
 *     free -> granted (counts in out_bytes) ---- released ----------------> free
 *                  \-- abandoned, kept (counts in abandoned_bytes) -- released --> free
 *
 * `lock` guards the space, the queue and the accounts; memory from the heap is allocated and freed
 * without it. A staging that is closed while buffers are out is destroyed by the last release.
 *
 * Thread rule: any thread.
 */
#include "store/core/staging.h"

#include "base/wait.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#define STAGING_CLOSE(memory, bytes) ASAN_POISON_MEMORY_REGION(memory, bytes)
#define STAGING_OPEN(memory, bytes)  ASAN_UNPOISON_MEMORY_REGION(memory, bytes)
#else
#define STAGING_CLOSE(memory, bytes) ((void)(memory), (void)(bytes))
#define STAGING_OPEN(memory, bytes)  ((void)(memory), (void)(bytes))
#endif

#define STAGING_HUGE_BYTES (UINT64_C(2) << 20)
#define STAGING_MEMORY_SHARE                                                                       \
    4 /* the arena takes no more than this part of the machine's memory                            \
       */

/* Touches every page, so that no transfer pays for it later. False without memory. */
static bool staging_touch(char *memory, uint64_t bytes)
{
    int refused;
    (void)madvise(memory, bytes, MADV_HUGEPAGE);
    do {
        refused = madvise(memory, bytes, MADV_POPULATE_WRITE);
    } while (refused != 0 && errno == EINTR);
    if (refused == 0) return true;
    if (errno != EINVAL) return false;
    for (uint64_t at = 0; at < bytes; at += STAGING_ALIGN) /* kernels before 5.14 */
        memory[at] = 0;
    return true;
}

void staging_make_arena(store_staging *staging, bool touch)
{
    long pages = sysconf(_SC_PHYS_PAGES);
    uint64_t most = pages > 0 ? (uint64_t)pages * STAGING_ALIGN / STAGING_MEMORY_SHARE : 0;
    uint64_t bytes = staging->limit_bytes < most ? staging->limit_bytes : most;
    bytes = bytes / STAGING_ALIGN * STAGING_ALIGN;
    if (bytes == 0) return;
    uint64_t mapping_bytes = bytes + STAGING_HUGE_BYTES;
    void *mapping =
        mmap(NULL, mapping_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapping == MAP_FAILED) return;
    uintptr_t begin = ((uintptr_t)mapping + STAGING_HUGE_BYTES - 1) & ~(STAGING_HUGE_BYTES - 1);
    char *arena = (char *)mapping + (begin - (uintptr_t)mapping);
    if (!touch) (void)madvise(arena, bytes, MADV_HUGEPAGE);
    bool there = !touch || staging_touch(arena, bytes);
    if (!there || tiers_space_open(0, bytes, &staging->space) != KVT_OK) {
        (void)munmap(mapping, mapping_bytes);
        return;
    }
    staging->arena = arena;
    staging->arena_bytes = bytes;
    staging->mapping = mapping;
    staging->mapping_bytes = mapping_bytes;
    STAGING_CLOSE(arena, bytes);
}

kvt_status staging_open(uint64_t limit_bytes, store_staging **staging_out)
{
    store_staging *staging = calloc(1, sizeof *staging);
    *staging_out = staging;
    if (staging == NULL) return KVT_E_MEMORY;
    pthread_mutex_init(&staging->lock, NULL);
    base_condition_init(&staging->freed);
    staging->limit_bytes = limit_bytes;
    return KVT_OK;
}

/* Frees the arena and the object. No buffer is out. */
static void staging_destroy(store_staging *staging)
{
    if (staging->arena != NULL) {
        STAGING_OPEN(staging->arena, staging->arena_bytes);
        tiers_space_close(staging->space);
        (void)munmap(staging->mapping, staging->mapping_bytes);
    }
    pthread_cond_destroy(&staging->freed);
    pthread_mutex_destroy(&staging->lock);
    free(staging);
}

void staging_close(store_staging *staging)
{
    if (staging == NULL) return;
    pthread_mutex_lock(&staging->lock);
    staging->closed = true;
    bool last = staging->buffers == 0;
    pthread_mutex_unlock(&staging->lock);
    if (last) staging_destroy(staging);
}

/* Counts a buffer as out, and finds it a piece of the arena, or NULL. Lock held. */
static void *staging_grant(store_staging *staging, uint64_t bytes)
{
    staging->out_bytes += bytes;
    staging->buffers++;
    /* The piece has to be contiguous. */
    tiers_range range;
    if (staging->arena == NULL || bytes == 0 || bytes > staging->arena_bytes) return NULL;
    if (tiers_space_acquire(staging->space, bytes, &range) != KVT_OK) return NULL;
    if (range.bytes < bytes) { /* no free range holds it */
        tiers_space_release(staging->space, range);
        return NULL;
    }
    STAGING_OPEN(staging->arena + range.offset, bytes);
    return staging->arena + range.offset;
}

/* Makes a buffer of granted bytes: from the arena's piece, or from the heap when memory is NULL.
 * KVT_E_MEMORY takes the grant back. No lock held. */
static kvt_status staging_deliver(store_staging *staging, void *memory, uint64_t bytes,
                                  staging_buffer *buffer_out)
{
    if (memory == NULL) {
        memory = aligned_alloc(STAGING_ALIGN, bytes);
        if (memory == NULL) {
            pthread_mutex_lock(&staging->lock);
            staging->out_bytes -= bytes;
            staging->buffers--;
            pthread_cond_broadcast(&staging->freed);
            pthread_mutex_unlock(&staging->lock);
            return KVT_E_MEMORY;
        }
        if (bytes >= STAGING_HUGE_BYTES) (void)madvise(memory, bytes, MADV_HUGEPAGE);
    }
    *buffer_out = (staging_buffer){.memory = memory, .bytes = bytes};
    return KVT_OK;
}

kvt_status staging_acquire(store_staging *staging, uint64_t bytes, uint64_t deadline_ns,
                           staging_buffer *buffer_out)
{
    assert(buffer_out != NULL && bytes > 0);
    *buffer_out = (staging_buffer){0};
    if (bytes > UINT64_MAX / 4) return KVT_E_MEMORY;
    bytes = staging_round(bytes);
    void *memory = NULL;
    pthread_mutex_lock(&staging->lock);
    /* Wait until the caller is first in the queue and the bound has room for its bytes, or until
     * nothing is out. Lock held, and released while waiting. */
    staging_waiter self = {NULL};
    staging_waiter **link = &staging->waiters;
    while (*link != NULL)
        link = &(*link)->next;
    *link = &self;
    bool expired = false;
    bool room = false;
    while (!room && !expired) {
        room = staging->waiters == &self &&
               (staging->out_bytes == 0 || staging->out_bytes + bytes <= staging->limit_bytes);
        if (!room)
            expired = !base_condition_wait_until(&staging->freed, &staging->lock, deadline_ns);
    }
    for (link = &staging->waiters; *link != &self;)
        link = &(*link)->next;
    *link = self.next;
    pthread_cond_broadcast(&staging->freed); /* another one is first now */
    kvt_status status = room ? KVT_OK : KVT_E_TIMEOUT;
    if (status == KVT_OK) memory = staging_grant(staging, bytes);
    pthread_mutex_unlock(&staging->lock);
    return status == KVT_OK ? staging_deliver(staging, memory, bytes, buffer_out) : status;
}

kvt_status staging_acquire_now(store_staging *staging, uint64_t bytes, staging_buffer *buffer_out)
{
    *buffer_out = (staging_buffer){0};
    if (bytes > UINT64_MAX / 4) return KVT_E_MEMORY;
    bytes = staging_round(bytes);
    pthread_mutex_lock(&staging->lock);
    void *memory = staging_grant(staging, bytes);
    pthread_mutex_unlock(&staging->lock);
    return staging_deliver(staging, memory, bytes, buffer_out);
}

/* Counts a buffer no longer against the bound, unless so many bytes are beside it then. */
static void staging_leave(store_staging *staging, staging_buffer *buffer, uint64_t most)
{
    if (buffer->memory == NULL) return;
    pthread_mutex_lock(&staging->lock);
    if (!buffer->abandoned && buffer->bytes <= most &&
        staging->abandoned_bytes <= most - buffer->bytes) {
        buffer->abandoned = true;
        staging->out_bytes -= buffer->bytes;
        staging->abandoned_bytes += buffer->bytes;
        pthread_cond_broadcast(&staging->freed);
    }
    pthread_mutex_unlock(&staging->lock);
}

void staging_abandon(store_staging *staging, staging_buffer *buffer)
{
    staging_leave(staging, buffer, UINT64_MAX);
}

void staging_keep(store_staging *staging, staging_buffer *buffer)
{
    staging_leave(staging, buffer, staging->limit_bytes);
}

uint64_t staging_room_to_keep(store_staging *staging)
{
    pthread_mutex_lock(&staging->lock);
    const uint64_t most = staging->limit_bytes / 2, kept = staging->abandoned_bytes;
    pthread_mutex_unlock(&staging->lock);
    return kept < most ? most - kept : 0;
}

uint64_t staging_bytes_out(store_staging *staging)
{
    pthread_mutex_lock(&staging->lock);
    uint64_t bytes = staging->out_bytes + staging->abandoned_bytes;
    pthread_mutex_unlock(&staging->lock);
    return bytes;
}

void staging_release(store_staging *staging, staging_buffer *buffer)
{
    if (buffer->memory == NULL) return;
    uintptr_t at = (uintptr_t)buffer->memory - (uintptr_t)staging->arena;
    bool piece = staging->arena != NULL && at < staging->arena_bytes;
    if (!piece) free(buffer->memory);
    pthread_mutex_lock(&staging->lock);
    *(buffer->abandoned ? &staging->abandoned_bytes : &staging->out_bytes) -= buffer->bytes;
    if (piece) {
        STAGING_CLOSE(buffer->memory, buffer->bytes);
        tiers_space_release(staging->space, (tiers_range){.offset = at, .bytes = buffer->bytes});
    }
    /* A device may answer after the store was closed: the last buffer takes the arena along. */
    bool last = --staging->buffers == 0 && staging->closed;
    pthread_cond_broadcast(&staging->freed);
    pthread_mutex_unlock(&staging->lock);
    *buffer = (staging_buffer){0};
    if (last) staging_destroy(staging);
}
