/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transfer.c - a transfer and its staging buffer in one allocation, which the pool keeps until the
 * device answers when the waiter gives up. The contract is transfer.h's.
 */
#include "store/transfer.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

typedef enum transfer_state {
    TRANSFER_FLIES = 0,
    TRANSFER_LANDED = 1,
    TRANSFER_GIVEN_UP = 2
} transfer_state;

struct store_transfer {
    tiers_transfer transfer;
    store_staging *staging;
    staging_buffer buffer;

    /* Of one that no thread waits for. */
    tiers_pool *pool;
    const transfer_watch *watch;
    transfer_landed *landed;
    void *context;
    _Atomic int state;   /* transfer_state: the last word and a giver-up race for it */
    atomic_uint to_land; /* of the start and the last word: the later one calls `landed` */
    atomic_uint holds;   /* of the last word and the owner: the later one frees */

    tiers_part parts[]; /* of a transfer that is watched */
};

/* The last word on an abandoned transfer. */
static void transfer_end(void *context)
{
    store_transfer *kept = context;
    staging_release(kept->staging, &kept->buffer);
    free(kept);
}

kvt_status transfer_run(store_staging *staging, tiers_pool *pool, const tiers_transfer *wanted,
                        uint64_t deadline_ns, const transfer_watch *watch, staging_buffer *buffer,
                        transfer_report *report_out)
{
    assert(buffer->memory != NULL && wanted->bytes <= buffer->bytes);
    assert((char *)wanted->buffer >= (char *)buffer->memory);
    memset(report_out, 0, sizeof *report_out);
    size_t parts_bytes = watch != NULL ? TIERS_MEMBERS_MAX * sizeof(tiers_part) : 0;
    store_transfer *kept = malloc(sizeof *kept + parts_bytes);
    if (kept == NULL) return KVT_E_MEMORY;
    memset(kept, 0, sizeof *kept);
    tiers_transfer *transfer = &kept->transfer;
    transfer->parts = watch != NULL ? kept->parts : NULL;
    transfer->kind = wanted->kind;
    transfer->waited = wanted->waited;
    transfer->location = wanted->location;
    transfer->buffer = wanted->buffer;
    transfer->bytes = wanted->bytes;
    transfer->offset = wanted->offset;
    tiers_transfer_start_until(pool, transfer, deadline_ns);
    if (watch != NULL) watch->started(watch->context, kept->parts, transfer->part_count);
    kvt_status status = tiers_transfer_wait_until(pool, transfer, deadline_ns);
    if (status == KVT_OK) {
        report_out->started_ns = transfer->started_ns;
        report_out->finished_ns = transfer->finished_ns;
        if (watch != NULL)
            watch->finished(watch->context, kept->parts, transfer->part_count,
                            transfer->started_ns);
        free(kept);
        return KVT_OK;
    }
    kept->staging = staging;
    kept->buffer = *buffer;
    *buffer = (staging_buffer){0};
    staging_abandon(staging, &kept->buffer);
    tiers_transfer_abandon(pool, transfer, transfer_end, kept);
    return status;
}

kvt_status transfer_move(store_staging *staging, tiers_pool *pool, kvt_io_kind kind,
                         const tiers_location *location, void *record, uint64_t bytes,
                         const transfer_watch *watch, staging_buffer *buffer)
{
    transfer_report report;
    const tiers_transfer wanted = {
        .kind = kind, .location = location, .buffer = record, .bytes = bytes};
    return transfer_run(staging, pool, &wanted, TRANSFER_NO_DEADLINE, watch, buffer, &report);
}

/* ---- transfers that no thread waits for ---- */

/* Drops one hold. The last one frees the transfer, and the staging that its owner has not taken. */
static void transfer_drop(store_transfer *kept)
{
    if (atomic_fetch_sub(&kept->holds, 1) != 1) return;
    staging_release(kept->staging, &kept->buffer);
    free(kept);
}

/* The start has ended, or the last word was said; with both of them the transfer has landed. */
static void transfer_land(store_transfer *kept)
{
    if (atomic_fetch_sub(&kept->to_land, 1) == 1) kept->landed(kept->context);
}

/* The last word on a transfer. The owner of one that was given up has left it to this. */
static void transfer_said(void *context)
{
    store_transfer *kept = context;
    int flies = TRANSFER_FLIES;
    bool landed = atomic_compare_exchange_strong(&kept->state, &flies, TRANSFER_LANDED);
    if (landed) {
        /* The owner frees it at the earliest in `landed`. */
        atomic_fetch_sub(&kept->holds, 1);
        transfer_land(kept);
    } else {
        transfer_drop(kept);
    }
}

store_transfer *transfer_prepare(store_staging *staging, tiers_pool *pool,
                                 const tiers_transfer *wanted, const transfer_watch *watch,
                                 staging_buffer *buffer, transfer_landed *landed, void *context)
{
    assert(buffer->memory != NULL && wanted->bytes <= buffer->bytes);
    size_t parts_bytes = watch != NULL ? TIERS_MEMBERS_MAX * sizeof(tiers_part) : 0;
    store_transfer *kept = malloc(sizeof *kept + parts_bytes);
    if (kept == NULL) return NULL;
    memset(kept, 0, sizeof *kept);
    kept->transfer = (tiers_transfer){.kind = wanted->kind,
                                      .waited = wanted->waited,
                                      .location = wanted->location,
                                      .buffer = wanted->buffer,
                                      .bytes = wanted->bytes,
                                      .offset = wanted->offset,
                                      .parts = watch != NULL ? kept->parts : NULL,
                                      .released = transfer_said,
                                      .released_context = kept};
    kept->staging = staging;
    kept->buffer = *buffer;
    *buffer = (staging_buffer){0};
    kept->pool = pool;
    kept->watch = watch;
    kept->landed = landed;
    kept->context = context;
    atomic_init(&kept->to_land, 2);
    atomic_init(&kept->holds, 2);
    return kept;
}

#define TRANSFER_GROUP 64u

/* Starts those of the transfers that are of the first one's pool, and have not been started; counts
 * them. */
static uint32_t transfer_start_pool(store_transfer *const *transfers, uint32_t count,
                                    uint64_t *started)
{
    tiers_transfer *group[TRANSFER_GROUP];
    tiers_pool *pool = NULL;
    uint32_t size = 0;
    for (uint32_t i = 0; i < count; i++) {
        if ((*started >> i & 1) != 0 || (pool != NULL && transfers[i]->pool != pool)) continue;
        pool = transfers[i]->pool;
        group[size++] = &transfers[i]->transfer;
        *started |= UINT64_C(1) << i;
    }
    if (size != 0) tiers_transfers_start(pool, group, size);
    return size;
}

void transfer_start_all(store_transfer *const *transfers, uint32_t count)
{
    assert(count <= TRANSFER_GROUP);
    uint64_t started = 0;
    while (transfer_start_pool(transfers, count, &started) != 0)
        continue;
    for (uint32_t i = 0; i < count; i++) {
        store_transfer *kept = transfers[i];
        if (kept->watch != NULL)
            kept->watch->started(kept->watch->context, kept->parts, kept->transfer.part_count);
        transfer_land(kept);
    }
}

kvt_status transfer_take(store_transfer *kept, staging_buffer *buffer_out,
                         transfer_report *report_out)
{
    assert(atomic_load(&kept->state) == TRANSFER_LANDED);
    const tiers_transfer *transfer = &kept->transfer;
    kvt_status status = transfer->status;
    *report_out = (transfer_report){0};
    *buffer_out = kept->buffer;
    kept->buffer = (staging_buffer){0};
    if (status == KVT_OK) {
        report_out->started_ns = transfer->started_ns;
        report_out->finished_ns = transfer->finished_ns;
        if (kept->watch != NULL)
            kept->watch->finished(kept->watch->context, kept->parts, transfer->part_count,
                                  transfer->started_ns);
    }
    transfer_drop(kept);
    return status;
}

bool transfer_give_up(store_transfer *kept)
{
    int flies = TRANSFER_FLIES;
    if (!atomic_compare_exchange_strong(&kept->state, &flies, TRANSFER_GIVEN_UP)) return false;
    staging_abandon(kept->staging, &kept->buffer);
    tiers_transfer_cancel(kept->pool, &kept->transfer);
    transfer_drop(kept);
    return true;
}

bool transfer_is_stuck(const store_transfer *kept)
{
    return tiers_transfer_is_stuck(kept->pool, &kept->transfer);
}
