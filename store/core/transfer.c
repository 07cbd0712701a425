/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transfer.c - a transfer and its staging buffer in one allocation, which the pool keeps until the
 * device answers when the waiter gives up. The contract is transfer.h's.
 */
#include "store/core/transfer.h"

#include "base/clock.h"

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
    tiers_pool *pool;
    const transfer_watch *watch;
    tiers_arrival arrival; /* of one that is awaited piece by piece */

    /* Of a transfer that no thread waits for. */
    transfer_landed *landed;
    void *context;
    tiers_transfer *all; /* `transfer`, or one for each range */
    uint32_t count;
    atomic_uint unsaid;  /* ranges of `all` whose last completion has not come */
    _Atomic int state;   /* transfer_state: the last word and a giver-up race for it */
    atomic_uint to_land; /* of the start and the last word: the later one calls `landed` */
    atomic_uint holds;   /* of the last word and the owner: the later one frees */

    tiers_part parts[]; /* of a transfer that is watched */
};

/* The last word on an abandoned transfer. */
static void transfer_last_word(void *context)
{
    store_transfer *kept = context;
    assert(kept->buffer.abandoned);
    staging_release(kept->staging, &kept->buffer);
    free(kept);
}

kvt_status transfer_begin(store_staging *staging, tiers_pool *pool, const tiers_transfer *wanted,
                          uint64_t piece_bytes, uint64_t deadline_ns, const transfer_watch *watch,
                          store_transfer **transfer_out)
{
    size_t parts_bytes = watch != NULL ? TIERS_MEMBERS_MAX * sizeof(tiers_part) : 0;
    store_transfer *kept = malloc(sizeof *kept + parts_bytes);
    if (kept == NULL) return KVT_E_MEMORY;
    memset(kept, 0, sizeof *kept);
    kept->staging = staging;
    kept->pool = pool;
    kept->watch = watch;
    kept->arrival.piece_bytes = piece_bytes;
    tiers_transfer *transfer = &kept->transfer;
    transfer->parts = watch != NULL ? kept->parts : NULL;
    transfer->arrival = piece_bytes != 0 ? &kept->arrival : NULL;
    transfer->kind = wanted->kind;
    transfer->waited = wanted->waited;
    transfer->location = wanted->location;
    transfer->buffer = wanted->buffer;
    transfer->bytes = wanted->bytes;
    transfer->offset = wanted->offset;
    /* Members that lend their memory have no device to ask: the copy is done by now. */
    bool copied = tiers_transfer_copy(pool, transfer);
    if (!copied && deadline_ns != TRANSFER_NO_DEADLINE && base_clock_ns() >= deadline_ns) {
        free(kept);
        return KVT_E_TIMEOUT;
    }
    if (!copied) tiers_transfer_start_until(pool, transfer, deadline_ns);
    if (watch != NULL) watch->started(watch->context, kept->parts, transfer->part_count);
    *transfer_out = kept;
    return KVT_OK;
}

kvt_status transfer_await(store_transfer *kept, uint64_t bytes, uint64_t deadline_ns,
                          uint64_t *arrived_out)
{
    return tiers_transfer_await(kept->pool, &kept->transfer, bytes, deadline_ns, arrived_out);
}

kvt_status transfer_end(store_transfer *kept, uint64_t deadline_ns, staging_buffer *buffer,
                        transfer_report *report_out)
{
    tiers_transfer *transfer = &kept->transfer;
    const transfer_watch *watch = kept->watch;
    kvt_status status = tiers_transfer_wait_until(kept->pool, transfer, deadline_ns);
    *report_out = (transfer_report){0};
    if (status == KVT_OK) {
        report_out->started_ns = transfer->started_ns;
        report_out->finished_ns = transfer->finished_ns;
        if (watch != NULL)
            watch->finished(watch->context, kept->parts, transfer->part_count,
                            transfer->started_ns);
        free(kept);
        return KVT_OK;
    }
    kept->buffer = *buffer;
    *buffer = (staging_buffer){0};
    assert(!kept->buffer.abandoned);
    staging_abandon(kept->staging, &kept->buffer);
    tiers_transfer_abandon(kept->pool, transfer, transfer_last_word, kept);
    return status;
}

kvt_status transfer_move(store_staging *staging, tiers_pool *pool, const tiers_transfer *wanted,
                         const transfer_watch *watch, staging_buffer *buffer)
{
    transfer_report report;
    return transfer_run(staging, pool, wanted, TRANSFER_NO_DEADLINE, watch, buffer, &report);
}

#define TRANSFER_LOOK_NS UINT64_C(100000000)

kvt_status transfer_write(store_staging *staging, tiers_pool *pool, const tiers_transfer *wanted,
                          const transfer_watch *watch, staging_buffer *buffer)
{
    store_transfer *kept;
    transfer_report report;
    kvt_status status =
        transfer_begin(staging, pool, wanted, 0, TRANSFER_NO_DEADLINE, watch, &kept);
    if (status != KVT_OK) return status;
    do
        status =
            tiers_transfer_wait_until(pool, &kept->transfer, base_clock_ns() + TRANSFER_LOOK_NS);
    while (status == KVT_E_TIMEOUT && !tiers_pool_stalls(pool, wanted->location));
    status = transfer_end(kept, status == KVT_E_TIMEOUT ? base_clock_ns() : TRANSFER_NO_DEADLINE,
                          buffer, &report);
    return status == KVT_E_TIMEOUT ? KVT_E_GONE : status;
}

/* ---- transfers that no thread waits for ---- */

/* Drops one hold. The last one frees the transfer, and the staging that its owner has not taken. */
static void transfer_drop(store_transfer *kept)
{
    assert(atomic_load(&kept->holds) > 0);
    if (atomic_fetch_sub(&kept->holds, 1) != 1) return;
    staging_release(kept->staging, &kept->buffer);
    free(kept);
}

/* The start has ended, or the last word was said; with both of them the transfer has landed. */
static void transfer_land(store_transfer *kept)
{
    assert(atomic_load(&kept->to_land) > 0);
    if (atomic_fetch_sub(&kept->to_land, 1) == 1) kept->landed(kept->context);
}

/* The last word on one range, and with the last range on the transfer. The owner of one that was
 * given up has left it to this. */
static void transfer_said(void *context)
{
    store_transfer *kept = context;
    assert(atomic_load(&kept->unsaid) > 0);
    if (atomic_fetch_sub(&kept->unsaid, 1) != 1) return;
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

/* Makes a transfer of `count` ranges that takes the buffer over. NULL without memory. */
static store_transfer *transfer_make(store_staging *staging, tiers_pool *pool, uint32_t count,
                                     size_t tail_bytes, staging_buffer *buffer,
                                     transfer_landed *landed, void *context)
{
    assert(count > 0 && landed != NULL);
    store_transfer *kept = malloc(sizeof *kept + tail_bytes);
    if (kept == NULL) return NULL;
    memset(kept, 0, sizeof *kept);
    kept->all = &kept->transfer;
    kept->count = count;
    kept->staging = staging;
    kept->buffer = *buffer;
    *buffer = (staging_buffer){0};
    kept->pool = pool;
    kept->landed = landed;
    kept->context = context;
    atomic_init(&kept->unsaid, count);
    atomic_init(&kept->to_land, 2);
    atomic_init(&kept->holds, 2);
    return kept;
}

store_transfer *transfer_prepare(store_staging *staging, tiers_pool *pool,
                                 const tiers_transfer *wanted, const transfer_watch *watch,
                                 staging_buffer *buffer, const transfer_owner *owner)
{
    assert(buffer->memory != NULL && wanted->bytes <= buffer->bytes);
    size_t parts_bytes = watch != NULL ? TIERS_MEMBERS_MAX * sizeof(tiers_part) : 0;
    store_transfer *kept =
        transfer_make(staging, pool, 1, parts_bytes, buffer, owner->landed, owner->context);
    if (kept == NULL) return NULL;
    kept->transfer = *wanted;
    kept->transfer.parts = watch != NULL ? kept->parts : NULL;
    kept->transfer.released = transfer_said;
    kept->transfer.released_context = kept;
    kept->watch = watch;
    kept->arrival = (tiers_arrival){
        .piece_bytes = owner->piece_bytes, .come = owner->come, .context = owner->context};
    if (owner->piece_bytes != 0) kept->transfer.arrival = &kept->arrival;
    return kept;
}

store_transfer *transfer_prepare_ranges(store_staging *staging, tiers_pool *pool,
                                        const tiers_location *location,
                                        const kvt_record_range *ranges, uint32_t count,
                                        staging_buffer *buffer, transfer_landed *landed,
                                        void *context)
{
    assert(count > 0 && buffer->memory != NULL);
    store_transfer *kept = transfer_make(staging, pool, count, count * sizeof(tiers_transfer),
                                         buffer, landed, context);
    if (kept == NULL) return NULL;
    /* A transfer of ranges is not watched: the ranges lie where its parts would. */
    kept->all = (tiers_transfer *)(void *)kept->parts;
    for (uint32_t i = 0; i < count; i++) {
        assert(ranges[i].at + ranges[i].bytes <= kept->buffer.bytes);
        tiers_transfer one = {.kind = KVT_IO_READ,
                              .waited = true,
                              .location = location,
                              .buffer = (char *)kept->buffer.memory + ranges[i].at,
                              .bytes = ranges[i].bytes,
                              .offset = ranges[i].offset,
                              .released = transfer_said,
                              .released_context = kept};
        memcpy(&kept->all[i], &one, sizeof one);
    }
    return kept;
}

uint64_t transfer_arrived(store_transfer *kept, uint64_t bytes)
{
    return tiers_transfer_arrived(kept->pool, &kept->transfer, bytes);
}

/* Compares two transfers by their places: by the first member of the object, then by offset. */
static int transfer_compare(const void *a, const void *b)
{
    const tiers_transfer *left = &(*(store_transfer *const *)a)->all[0];
    const tiers_transfer *right = &(*(store_transfer *const *)b)->all[0];
    const tiers_extent *first = &left->location->extents[0];
    const tiers_extent *second = &right->location->extents[0];
    if (first->member != second->member) return first->member < second->member ? -1 : 1;
    uint64_t from = first->offset + left->offset, to = second->offset + right->offset;
    return from < to ? -1 : from > to;
}

void transfer_sort(store_transfer **transfers, uint32_t count)
{
    qsort(transfers, count, sizeof transfers[0], transfer_compare);
}

#define TRANSFER_GROUP 64u

/* Transfers of one pool that are to be started together. */
typedef struct transfer_group {
    tiers_pool *pool;
    uint32_t count;
    tiers_transfer *transfers[TRANSFER_GROUP];
} transfer_group;

/* Hands a group to its pool, which wakes each device once for all of it. */
static void transfer_flush(transfer_group *group)
{
    if (group->count != 0) tiers_transfers_start(group->pool, group->transfers, group->count);
    group->count = 0;
}

void transfer_start_all(store_transfer *const *transfers, uint32_t count)
{
    transfer_group groups[KVT_TIER_COUNT] = {{.count = 0}}; /* a tier has one pool */
    uint32_t group_count = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t at = 0;
        while (at < group_count && groups[at].pool != transfers[i]->pool)
            at++;
        /* A store has one pool a tier, so there are no more groups than tiers. */
        assert(at < KVT_TIER_COUNT);
        if (at == group_count) groups[group_count++].pool = transfers[i]->pool;
        transfer_group *group = &groups[at];
        for (uint32_t k = 0; k < transfers[i]->count; k++) {
            if (group->count == TRANSFER_GROUP) transfer_flush(group);
            group->transfers[group->count++] = &transfers[i]->all[k];
        }
    }
    for (uint32_t i = 0; i < group_count; i++)
        transfer_flush(&groups[i]);
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
    const tiers_transfer *transfer = &kept->all[0];
    kvt_status status = KVT_OK;
    for (uint32_t i = 0; i < kept->count && status == KVT_OK; i++)
        status = kept->all[i].status;
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
    if (kept->transfer.arrival != NULL) (void)transfer_arrived(kept, 0); /* nobody is told more */
    staging_abandon(kept->staging, &kept->buffer);
    assert(kept->buffer.abandoned && atomic_load(&kept->holds) > 0);
    for (uint32_t i = 0; i < kept->count; i++)
        tiers_transfer_cancel(kept->pool, &kept->all[i]);
    transfer_drop(kept);
    return true;
}

bool transfer_is_stuck(const store_transfer *kept)
{
    for (uint32_t i = 0; i < kept->count; i++)
        if (tiers_transfer_is_stuck(kept->pool, &kept->all[i])) return true;
    return kept->all[0].kind == KVT_IO_WRITE &&
           tiers_pool_stalls(kept->pool, kept->all[0].location);
}
