/* SPDX-License-Identifier: Apache-2.0 */
/*
 * executor_flights.c - the writes of several puts under way at once. The contract is
 * executor_flights.h's.
 *
 * A device is woken for FLIGHTS_GROUP_BYTES of writes at a time, and the thread once, by the last
 * write that lands: on a busy host each further hand-over between threads costs a turn in the run
 * queue.
 */
#include "store/core/executor_flights.h"

#include "base/wait.h"
#include "store/core/plans.h"
#include "tiers/devices/watchdog.h"

#include <assert.h>

#define FLIGHTS_GROUP_BYTES (UINT64_C(4) << 20)
#define FLIGHTS_TIER_PARTS  8u /* of a tier: what is in motion makes no room for other entries */
#define FLIGHTS_START       64u

void executor_flights_open(executor_flights *flights, kvt_store *store)
{
    *flights = (executor_flights){.store = store, .limit_bytes = UINT64_MAX};
    pthread_mutex_lock(&store->lock);
    for (int tier = KVT_TIER_HBM; tier < KVT_TIER_COUNT; tier++) {
        if (store->pools[tier] == NULL) continue;
        const uint64_t share = store_policy_capacity(store, (kvt_tier)tier) / FLIGHTS_TIER_PARTS;
        if (share < flights->limit_bytes) flights->limit_bytes = share;
    }
    pthread_mutex_unlock(&store->lock);
    flights->last = &flights->first;
    pthread_mutex_init(&flights->lock, NULL);
    base_condition_init(&flights->landed);
}

void executor_flights_close(executor_flights *flights)
{
    assert(flights->first == NULL && flights->flying == 0);
    pthread_cond_destroy(&flights->landed);
    pthread_mutex_destroy(&flights->lock);
}

/* A write has landed, with any outcome. On the device's thread, or on the one that starts it. */
static void flights_note_landed(void *context)
{
    executor_flight *flight = context;
    executor_flights *flights = flight->flights;
    pthread_mutex_lock(&flights->lock);
    assert(flights->flying > 0 && !flight->down);
    flight->down = true;
    if (--flights->flying == 0) pthread_cond_signal(&flights->landed);
    pthread_mutex_unlock(&flights->lock);
}

/* Begins the writes that are held, all of a device before it is woken. */
static void flights_start(executor_flights *flights)
{
    store_transfer *writes[FLIGHTS_START];
    while (flights->held != NULL) {
        uint32_t count = 0;
        for (; flights->held != NULL && count < FLIGHTS_START; flights->held = flights->held->next)
            writes[count++] = flights->held->write;
        pthread_mutex_lock(&flights->lock);
        flights->flying += count;
        pthread_mutex_unlock(&flights->lock);
        transfer_start_all(writes, count);
    }
    flights->held_bytes = 0;
}

/* Gives up the writes that are stuck, which lands them. */
static void flights_give_up(executor_flights *flights)
{
    for (executor_flight *flight = flights->first; flight != NULL; flight = flight->next) {
        pthread_mutex_lock(&flights->lock);
        const bool flies = !flight->down;
        pthread_mutex_unlock(&flights->lock);
        if (!flies || !transfer_is_stuck(flight->write) || !transfer_give_up(flight->write))
            continue;
        flight->write = NULL;
        flights_note_landed(flight);
    }
}

/* Waits until all writes have landed. */
static void flights_wait(executor_flights *flights)
{
    pthread_mutex_lock(&flights->lock);
    while (flights->flying != 0) {
        const uint64_t check_ns = base_clock_ns() + TIERS_CHECK_NS;
        while (flights->flying != 0 && base_clock_ns() < check_ns)
            base_condition_wait_until(&flights->landed, &flights->lock, check_ns);
        if (flights->flying == 0) break;
        pthread_mutex_unlock(&flights->lock);
        flights_give_up(flights);
        pthread_mutex_lock(&flights->lock);
    }
    pthread_mutex_unlock(&flights->lock);
}

void executor_flights_end(executor_flights *flights)
{
    if (flights->first == NULL) return;
    flights_start(flights);
    flights_wait(flights);
    while (flights->first != NULL) {
        executor_flight *flight = flights->first;
        assert(flight->down && !flight->ended);
        flights->first = flight->next;
        flight->status = executor_walk(&flight->op, &flight->cause);
        flight->ended = true;
    }
    flights->last = &flights->first;
    flights->bytes = 0;
}

void executor_before_wait(const store_op *op)
{
    if (op->flights != NULL) executor_flights_end(op->flights);
}

kvt_status executor_take_staging(store_op *op, uint64_t bytes)
{
    store_staging *staging = op->store->staging;
    if (op->flights != NULL && op->flights->first != NULL) {
        if (op->flights->bytes + bytes > op->flights->limit_bytes) executor_before_wait(op);
        const kvt_status status = staging_acquire(staging, bytes, 0, &op->staging);
        if (status != KVT_E_TIMEOUT) return status;
        executor_before_wait(op);
    }
    return staging_acquire(staging, bytes, STAGING_NO_DEADLINE, &op->staging);
}

/* The outcome of a write that has landed. A write that was given up has left its staging to the
 * device. */
static kvt_status executor_land(store_op *op)
{
    executor_flight *flight = op->flight;
    transfer_report report = {0};
    assert(flight->down);
    if (flight->write == NULL) return KVT_E_GONE;
    const kvt_status status = transfer_take(flight->write, &op->staging, &report);
    op->device_ns += report.finished_ns - report.started_ns;
    return status;
}

kvt_status executor_fly(store_op *op)
{
    executor_flight *flight = op->flight;
    executor_flights *flights = op->flights;
    if (flight->down) return executor_land(op);
    const transfer_watch *watch = learn_watch(op->store, op->tier, KVT_IO_WRITE, &flight->watched);
    const tiers_transfer write = {.kind = KVT_IO_WRITE,
                                  .waited = op->for_put,
                                  .location = op->location,
                                  .buffer = op->record,
                                  .bytes = op->record_bytes};
    const transfer_owner owner = {.landed = flights_note_landed, .context = flight};
    flight->write = transfer_prepare(op->store->staging, op->store->pools[op->tier], &write, watch,
                                     &op->staging, &owner);
    if (flight->write == NULL) return KVT_E_MEMORY;
    *flights->last = flight;
    flights->last = &flight->next;
    flights->bytes += op->entry->kind->source_bytes;
    if (flights->held == NULL) flights->held = flight;
    flights->held_bytes += op->record_bytes;
    if (flights->held_bytes >= FLIGHTS_GROUP_BYTES) flights_start(flights);
    return KVT_QUEUED;
}

kvt_status executor_flight_end(executor_flight *flight, executor_result *result_out)
{
    if (!flight->ended) executor_flights_end(flight->flights);
    assert(flight->ended);
    const kvt_status status = flight->status;
    result_out->cause = flight->cause;
    result_out->put_bytes = flight->op.record_bytes;
    result_out->committed += status == KVT_OK;
    plan_report(flight->op.store, flight->op.move, status);
    return status;
}
