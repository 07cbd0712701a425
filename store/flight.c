/* SPDX-License-Identifier: Apache-2.0 */
/*
 * flight.c - see flight.h.
 */
#include "store/flight.h"

#include <stdlib.h>
#include <string.h>

typedef struct store_flight {
    tiers_transfer transfer;
    store_staging *staging;
    staging_buffer buffer;
    tiers_part parts[]; /* of a transfer that is watched */
} store_flight;

/* The last word on an abandoned transfer. */
static void flight_end(void *context)
{
    store_flight *flight = context;
    staging_give(flight->staging, &flight->buffer);
    free(flight);
}

kvt_status flight_run(store_staging *staging, tiers_pool *pool, const tiers_transfer *wanted,
                      uint64_t deadline_ns, const flight_watch *watch, staging_buffer *buffer,
                      flight_report *report_out)
{
    memset(report_out, 0, sizeof *report_out);
    size_t parts_bytes = watch != NULL ? TIERS_MEMBERS_MAX * sizeof(tiers_part) : 0;
    store_flight *flight = malloc(sizeof *flight + parts_bytes);
    if (flight == NULL) return KVT_E_MEMORY;
    memset(flight, 0, sizeof *flight);
    tiers_transfer *transfer = &flight->transfer;
    transfer->parts = watch != NULL ? flight->parts : NULL;
    transfer->kind = wanted->kind;
    transfer->location = wanted->location;
    transfer->buffer = wanted->buffer;
    transfer->bytes = wanted->bytes;
    transfer->offset = wanted->offset;
    tiers_transfer_start_until(pool, transfer, deadline_ns);
    if (watch != NULL) watch->started(watch->context, flight->parts, transfer->part_count);
    kvt_status status = tiers_transfer_wait_until(pool, transfer, deadline_ns);
    if (status == KVT_OK) {
        report_out->started_ns = transfer->started_ns;
        report_out->finished_ns = transfer->finished_ns;
        if (watch != NULL)
            watch->finished(watch->context, flight->parts, transfer->part_count,
                            transfer->started_ns);
        free(flight);
        return KVT_OK;
    }
    flight->staging = staging;
    flight->buffer = *buffer;
    *buffer = (staging_buffer){0};
    staging_abandon(staging, &flight->buffer);
    tiers_transfer_abandon(pool, transfer, flight_end, flight);
    return status;
}

kvt_status flight_move(store_staging *staging, tiers_pool *pool, kvt_io_kind kind,
                       const tiers_location *location, void *record, uint64_t bytes,
                       const flight_watch *watch, staging_buffer *buffer)
{
    flight_report report;
    const tiers_transfer wanted = {
        .kind = kind, .location = location, .buffer = record, .bytes = bytes};
    return flight_run(staging, pool, &wanted, FLIGHT_PATIENT, watch, buffer, &report);
}
