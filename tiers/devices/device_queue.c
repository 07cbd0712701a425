/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_queue.c - the choice between ring, threads and single calls; see device_queue.h.
 *
 * The kind is chosen at open and can only fall: from a ring to threads, from threads to single
 * calls. A back end therefore names its engine anew after attach.
 */
#include "device_queue.h"

#include "base/clock.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    QUEUE_RING_DEPTH_DEFAULT = 32,
    QUEUE_REGIONS_MAX = 1024 /* the kernel takes 16384; finding one is a search by halves */
};

/* The kernel takes no more in one registered buffer. */
#define QUEUE_REGION_BYTES_MAX (UINT64_C(1) << 30)

/* Appends; `next` belongs to the list that an operation is in. */
void tiers_io_list_push(tiers_io_list *list, kvt_io *io)
{
    io->next = NULL;
    if (list->head == NULL) {
        list->head = io;
    } else {
        list->tail->next = io;
    }
    list->tail = io;
}

/* Takes the oldest, so lists are queues. tail is stale when the list is empty, and push sets it. */
kvt_io *tiers_io_list_pop(tiers_io_list *list)
{
    kvt_io *io = list->head;
    if (io != NULL) list->head = io->next;
    return io;
}

/* Returns the queue of a back end that begins with tiers_queued. */
static tiers_queue *queue_of(kvt_device *device)
{
    return &((tiers_queued *)device)->queue;
}

/* Names the engine after what was achieved. Fixed buffers are about the ring alone: the other kinds
 * pin pages for every transfer. The name is for people and profiles; no code depends on it. */
static void queue_name_engine(kvt_device *device)
{
    const tiers_queue *queue = queue_of(device);
    bool fixed = queue->kind == TIERS_QUEUE_RING && queue->ring.fixed_buffers;
    snprintf(device->facts.engine, sizeof device->facts.engine, "%s+%s%s",
             queue->calls->names[queue->kind],
             (device->facts.flags & KVT_DEVICE_DIRECT) != 0 ? "direct" : "buffered",
             fixed ? "+fixed" : "");
}

/* The ring is tried even though another thread will use it: what the kernel grants decides the
 * depth that the facts promise. */
void tiers_queued_open(tiers_queued *queued, const tiers_queue_calls *calls, int fd,
                       const kvt_device_config *config)
{
    tiers_queue *queue = &queued->queue;
    const uint32_t depth = config->depth;
    assert(depth <= TIERS_QUEUE_DEPTH_MAX);
    *queue = (tiers_queue){.device = &queued->base,
                           .calls = calls,
                           .fd = fd,
                           .depth = depth != 0 ? depth : QUEUE_RING_DEPTH_DEFAULT,
                           .kind = TIERS_QUEUE_RING};
    if (config->synchronous || !tiers_ring_open(queue)) {
        if (depth == 0) queue->depth = TIERS_QUEUE_THREADS_DEFAULT;
        if (queue->depth > TIERS_QUEUE_THREADS_MAX) queue->depth = TIERS_QUEUE_THREADS_MAX;
        queue->kind = queue->depth > 1 ? TIERS_QUEUE_THREADS : TIERS_QUEUE_INLINE;
    }
    queued->base.facts.depth_max = queue->depth;
    queue_name_engine(&queued->base);
}

void tiers_queue_close(tiers_queue *queue)
{
    assert(!queue->attached);
    if (queue->ring.open) tiers_ring_close(queue);
    free(queue->regions);
    queue->regions = NULL;
    queue->region_count = 0;
}

/* Enabling may fail although the open succeeded; the queue falls back to threads then, and to
 * single calls when no thread starts. */
void tiers_queued_attach(kvt_device *device)
{
    tiers_queue *queue = queue_of(device);
    assert(!queue->attached && queue->depth > 0);
    queue->attached = true;
    /* A second life needs a ring of its own: the first one was the other thread's. */
    const bool ring = queue->kind == TIERS_QUEUE_RING &&
                      (queue->ring.open || tiers_ring_open(queue)) && tiers_ring_enable(queue);
    if (!ring) {
        const bool threads = queue->kind != TIERS_QUEUE_INLINE && tiers_threads_start(queue);
        queue->kind = threads ? TIERS_QUEUE_THREADS : TIERS_QUEUE_INLINE;
        device->wakes = threads;
    }
    queue_name_engine(device);
}

void tiers_queued_detach(kvt_device *device)
{
    tiers_queue *queue = queue_of(device);
    assert(queue->attached);
    queue->attached = false;
    if (queue->kind == TIERS_QUEUE_RING) tiers_ring_close(queue);
    if (queue->kind == TIERS_QUEUE_THREADS) tiers_threads_stop(queue);
}

/* Orders by address for qsort; regions do not overlap. */
static int queue_compare_regions(const void *left, const void *right)
{
    uintptr_t a = (uintptr_t)((const kvt_device_region *)left)->memory;
    uintptr_t b = (uintptr_t)((const kvt_device_region *)right)->memory;
    return (a > b) - (a < b);
}

/* A ring that is open takes the regions at once, another one when it opens. */
static kvt_status queue_register(tiers_queue *queue, const kvt_device_region *regions,
                                 uint32_t count)
{
    if (queue->kind != TIERS_QUEUE_RING) return KVT_E_UNSUPPORTED;
    free(queue->regions);
    queue->regions = NULL;
    queue->region_count = 0;
    if (count != 0) {
        /* A sorted copy in pieces that the kernel takes. On failure no region is kept. */
        uint64_t pieces = 0;
        for (uint32_t i = 0; i < count; i++)
            pieces += (regions[i].bytes + QUEUE_REGION_BYTES_MAX - 1) / QUEUE_REGION_BYTES_MAX;
        if (pieces > QUEUE_REGIONS_MAX) return KVT_E_MEMORY;
        queue->regions = calloc(pieces, sizeof *queue->regions);
        if (queue->regions == NULL) return KVT_E_MEMORY;
        for (uint32_t i = 0; i < count; i++) {
            for (uint64_t at = 0; at < regions[i].bytes; at += QUEUE_REGION_BYTES_MAX) {
                uint64_t rest = regions[i].bytes - at;
                queue->regions[queue->region_count++] = (kvt_device_region){
                    .memory = (char *)regions[i].memory + at,
                    .bytes = rest < QUEUE_REGION_BYTES_MAX ? rest : QUEUE_REGION_BYTES_MAX};
            }
        }
        assert(queue->region_count == pieces && "every piece has its place");
        qsort(queue->regions, queue->region_count, sizeof *queue->regions, queue_compare_regions);
    }
    if (!queue->ring.open && count == 0) return KVT_OK; /* the next ring begins without */
    if (!queue->ring.open && !tiers_ring_open(queue)) return KVT_E_MEMORY;
    return tiers_ring_register(queue) ? KVT_OK : KVT_E_MEMORY;
}

kvt_status tiers_queued_register(kvt_device *device, const kvt_device_region *regions,
                                 uint32_t count)
{
    kvt_status status = queue_register(queue_of(device), regions, count);
    queue_name_engine(device);
    return status;
}

kvt_status tiers_queued_submit(kvt_device *device, kvt_io *io)
{
    tiers_queue *queue = queue_of(device);
    tiers_io_begin(io, base_clock_ns());
    if (queue->attached && queue->kind == TIERS_QUEUE_RING) return tiers_ring_submit(queue, io);
    if (queue->attached && queue->kind == TIERS_QUEUE_THREADS) {
        tiers_threads_submit(queue, io);
        return KVT_QUEUED;
    }
    queue->calls->run(device, io, 0);
    return KVT_OK;
}

void tiers_queued_flush(kvt_device *device)
{
    tiers_queue *queue = queue_of(device);
    if (queue->attached && queue->kind == TIERS_QUEUE_RING) tiers_ring_flush(queue);
}

size_t tiers_queued_reap(kvt_device *device, kvt_io **done, size_t min, size_t max,
                         uint64_t timeout_ns)
{
    tiers_queue *queue = queue_of(device);
    if (queue->kind == TIERS_QUEUE_RING) return tiers_ring_reap(queue, done, min, max, timeout_ns);
    if (queue->kind == TIERS_QUEUE_THREADS)
        return tiers_threads_reap(queue, done, min, max, timeout_ns);
    return 0;
}

/* Callers wake a device only while it is attached, so the kind does not change meanwhile. */
void tiers_queued_wake(kvt_device *device)
{
    tiers_queue *queue = queue_of(device);
    if (queue->kind == TIERS_QUEUE_RING) tiers_ring_wake(queue);
    if (queue->kind == TIERS_QUEUE_THREADS) tiers_threads_wake(queue);
}
