/*
 * staging.h - aligned memory for records on their way between tiers, codecs and callers.
 *
 * Buffers are kept and used again while they and what is out stay within the bound. A request
 * larger than the bound is granted when nothing else is out, so that no single entry is too large
 * to move. Requests are granted in the order in which they came.
 *
 * Thread rule: own lock; take waits, give never does. A thread that holds a buffer and takes
 * another could wait for itself: an operation takes all it waits for in one call, and gives it back
 * before it waits for readers.
 */
#ifndef STORE_STAGING_H
#define STORE_STAGING_H

#include <kvterrace/status.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define STAGING_ALIGN      4096u
#define STAGING_KEPT_COUNT 16u

/* A condition variable whose timed waits follow the monotonic clock. */
void store_cond_init(pthread_cond_t *condition);

typedef struct staging_buffer {
    void *memory;
    uint64_t bytes;
} staging_buffer;

typedef struct store_staging {
    pthread_mutex_t lock;
    pthread_cond_t freed;
    uint64_t limit_bytes;
    uint64_t out_bytes;   /* granted and not yet given back */
    uint64_t kept_bytes;  /* idle, in kept */
    uint64_t next_ticket; /* first come, first served: large requests are not starved */
    uint64_t served;
    staging_buffer kept[STAGING_KEPT_COUNT];
} store_staging;

void staging_init(store_staging *staging, uint64_t limit_bytes);
void staging_deinit(store_staging *staging);

/* Bytes rounded up to STAGING_ALIGN: how parts of one buffer are laid behind each other. */
static inline uint64_t staging_round(uint64_t bytes)
{
    return (bytes + STAGING_ALIGN - 1) / STAGING_ALIGN * STAGING_ALIGN;
}

/* At least `bytes` bytes, aligned to STAGING_ALIGN. KVT_OK; KVT_E_MEMORY. With wait, waits for
 * room; without, goes past the bound: for the scratch of somebody whom the holder of staging waits
 * for. */
KVT_NODISCARD kvt_status staging_take(store_staging *staging, uint64_t bytes, bool wait,
                                      staging_buffer *buffer_out);

/* Gives a buffer back and clears it; a cleared buffer is allowed. */
void staging_give(store_staging *staging, staging_buffer *buffer);

#endif
