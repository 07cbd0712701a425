/*
 * staging.c - see staging.h. Kept buffers count towards nothing while idle beyond
 * STAGING_KEPT_COUNT of them; the limit is on what is in use.
 */
#include "store/staging.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

void store_cond_init(pthread_cond_t *condition)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(condition, &attributes);
    pthread_condattr_destroy(&attributes);
}

void staging_init(store_staging *staging, uint64_t limit_bytes)
{
    memset(staging, 0, sizeof *staging);
    pthread_mutex_init(&staging->lock, NULL);
    store_cond_init(&staging->freed);
    staging->limit_bytes = limit_bytes;
}

void staging_deinit(store_staging *staging)
{
    for (size_t i = 0; i < STAGING_KEPT_COUNT; i++) {
        free(staging->kept[i].memory);
    }
    pthread_cond_destroy(&staging->freed);
    pthread_mutex_destroy(&staging->lock);
}

/* The smallest kept buffer that holds `bytes` without wasting more than its half. */
static staging_buffer staging_find_kept(store_staging *staging, uint64_t bytes)
{
    staging_buffer none = {NULL, 0};
    staging_buffer *best = NULL;
    for (size_t i = 0; i < STAGING_KEPT_COUNT; i++) {
        staging_buffer *kept = &staging->kept[i];
        if (kept->bytes < bytes || kept->bytes > bytes * 2) continue;
        if (best == NULL || kept->bytes < best->bytes) best = kept;
    }
    if (best == NULL) return none;
    staging_buffer found = *best;
    *best = none;
    staging->kept_bytes -= found.bytes;
    return found;
}

kvt_status staging_take(store_staging *staging, uint64_t bytes, bool wait,
                        staging_buffer *buffer_out)
{
    buffer_out->memory = NULL;
    buffer_out->bytes = 0;
    if (bytes > UINT64_MAX / 4) return KVT_E_MEMORY;
    bytes = staging_round(bytes);
    pthread_mutex_lock(&staging->lock);
    if (wait) {
        uint64_t ticket = staging->next_ticket++;
        while (ticket != staging->served ||
               (staging->out_bytes != 0 && staging->out_bytes + bytes > staging->limit_bytes)) {
            pthread_cond_wait(&staging->freed, &staging->lock);
        }
        staging->served++;
        pthread_cond_broadcast(&staging->freed);
    }
    staging_buffer buffer = staging_find_kept(staging, bytes);
    staging->out_bytes += buffer.memory != NULL ? buffer.bytes : bytes;
    pthread_mutex_unlock(&staging->lock);

    if (buffer.memory == NULL) {
        buffer.bytes = bytes;
        buffer.memory = aligned_alloc(STAGING_ALIGN, bytes);
        if (buffer.memory == NULL) {
            pthread_mutex_lock(&staging->lock);
            staging->out_bytes -= bytes;
            pthread_cond_broadcast(&staging->freed);
            pthread_mutex_unlock(&staging->lock);
            return KVT_E_MEMORY;
        }
        if (bytes >= (UINT64_C(2) << 20)) (void)madvise(buffer.memory, bytes, MADV_HUGEPAGE);
    }
    *buffer_out = buffer;
    return KVT_OK;
}

void staging_give(store_staging *staging, staging_buffer *buffer)
{
    if (buffer->memory == NULL) return;
    void *surplus = buffer->memory;
    pthread_mutex_lock(&staging->lock);
    staging->out_bytes -= buffer->bytes;
    bool keep = staging->out_bytes + staging->kept_bytes + buffer->bytes <= staging->limit_bytes;
    for (size_t i = 0; keep && i < STAGING_KEPT_COUNT; i++) {
        if (staging->kept[i].memory == NULL) {
            staging->kept[i] = *buffer;
            staging->kept_bytes += buffer->bytes;
            surplus = NULL;
            break;
        }
    }
    pthread_cond_broadcast(&staging->freed);
    pthread_mutex_unlock(&staging->lock);
    free(surplus);
    buffer->memory = NULL;
    buffer->bytes = 0;
}
