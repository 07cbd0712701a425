/* SPDX-License-Identifier: Apache-2.0 */
/*
 * staging.h - aligned memory for records on their way between tiers, codecs and callers.
 *
 * One arena of the whole bound, made and touched at open, in huge pages where the system has them.
 * It stays where it is while the store is open, so devices can set it up once for all transfers
 * (kvt_device_register_buffers). Requests that do not fit into the arena come from the heap: one
 * larger than the bound, which is granted when nothing else is out, so that no single entry is too
 * large to move; scratch beyond the bound; and a request that finds the arena too fragmented.
 * Requests are granted in the order in which they came.
 *
 * A buffer that a device does not give up is abandoned: it counts no longer against the bound, so
 * that others go on, and comes back when the device answers. Devices have a bounded number of
 * operations, so a bounded number of buffers can be lost to them. A buffer that a load keeps until
 * its end is set aside in the same way. Closed staging lives until the last buffer has come back.
 *
 * Thread rule: own lock; acquire waits, release never does. A thread that holds a buffer and
 * acquires another could wait for itself: an operation acquires all its staging in one call, and
 * releases it before it waits for readers.
 */
#ifndef STORE_STAGING_H
#define STORE_STAGING_H

#include <kvterrace/status.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tiers/pool/extent.h"

#define STAGING_ALIGN 4096u

/* A granted buffer, or all zeros. Its holder alone touches it; a copy is a change of owner. */
typedef struct staging_buffer {
    void *memory;
    uint64_t bytes;
    bool abandoned; /* the device may still use it, or a load keeps it; under the staging's lock
                       where several threads have the buffer */
} staging_buffer;

/* A waiter, on its own stack. */
typedef struct staging_waiter {
    struct staging_waiter *next;
} staging_waiter;

/* The fields up to `closed` are under `lock`; the arena is fixed once it is made. At any time
 * out_bytes + abandoned_bytes is the sum over the buffers that are out. */
typedef struct store_staging {
    pthread_mutex_t lock;
    pthread_cond_t freed;
    uint64_t limit_bytes;
    uint64_t out_bytes;       /* granted and not yet given back or abandoned */
    uint64_t abandoned_bytes; /* abandoned or kept, and not yet given back */
    uint64_t buffers;         /* granted and not yet given back */
    staging_waiter *waiters;  /* first come, first served: large requests are not starved */
    bool closed;
    char *arena;          /* NULL where the system refused it: then all buffers come from the
                             heap */
    uint64_t arena_bytes; /* a multiple of STAGING_ALIGN */
    void *mapping;        /* around the arena, for its alignment */
    uint64_t mapping_bytes;
    tiers_space *space; /* of the arena */
} store_staging;

/* All is heap until staging_make_arena, which comes before the first take, and which maps memory of
 * limit_bytes. touch: every page now, else as it is first used. KVT_OK; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status staging_open(uint64_t limit_bytes, store_staging **staging_out);
void staging_make_arena(store_staging *staging, bool touch);

/* Nobody waits. The memory goes with the last buffer. NULL is allowed. */
void staging_close(store_staging *staging);

/* Bytes rounded up to STAGING_ALIGN: how parts of one buffer are laid behind each other. */
static inline uint64_t staging_round(uint64_t bytes)
{
    return (bytes + STAGING_ALIGN - 1) / STAGING_ALIGN * STAGING_ALIGN;
}

#define STAGING_NO_DEADLINE UINT64_MAX

/* At least `bytes` bytes, aligned to STAGING_ALIGN. Waits for room, to an instant of
 * CLOCK_MONOTONIC in nanoseconds. KVT_OK; KVT_E_MEMORY; KVT_E_TIMEOUT. */
KVT_NODISCARD kvt_status staging_acquire(store_staging *staging, uint64_t bytes,
                                         uint64_t deadline_ns, staging_buffer *buffer_out);

/* The same, past the bound instead of waiting: for somebody whom the holder of staging waits for.
 * KVT_OK; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status staging_acquire_now(store_staging *staging, uint64_t bytes,
                                             staging_buffer *buffer_out);

/* A device may keep the buffer for long. */
void staging_abandon(store_staging *staging, staging_buffer *buffer);

/* A load keeps the buffer for as long as its owner likes: the buffer counts as an abandoned one, so
 * that the owner's thread does not wait for itself, while such bytes are at most the bound. */
void staging_keep(store_staging *staging, staging_buffer *buffer);

/* The bytes that a further load may keep: half of the bound, without what is beside the bound. */
uint64_t staging_room_to_keep(store_staging *staging);

/* Bytes that are out, abandoned or not. */
uint64_t staging_bytes_out(store_staging *staging);

/* Gives a buffer back and clears it; a cleared buffer is allowed. */
void staging_release(store_staging *staging, staging_buffer *buffer);

#endif
