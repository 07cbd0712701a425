/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transfer.c - a transfer and its staging buffer in one allocation, which the pool keeps until the
 * device answers when the waiter gives up. The contract is transfer.h's.
 */
#include "store/transfer.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

typedef struct store_transfer {
    tiers_transfer transfer;
    store_staging *staging;
    staging_buffer buffer;
    tiers_part parts[]; /* of a transfer that is watched */
} store_transfer;

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
