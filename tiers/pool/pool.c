/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pool.c - a pool's life and its transfers; its members are in pool_members.c, its space is in
 * reserve.c.
 *
 * A transfer becomes one job per share. Each worker reports its job once; the last report finishes
 * the transfer and wakes the waiters.
 *
 * A transfer cannot fail for memory and is never lost: each of its parts is reported exactly once,
 * by the worker or by this file where the worker did not take it.
 *
 * Thread rule: all functions from any thread, open and close excepted; lock order as in
 * pool_internal.h.
 */
#include "pool.h"

#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/wait.h"
#include "location.h"
#include "pool_internal.h"
#include "pool_slots.h"
#include "tiers/devices/device_internal.h"
#include "tiers/devices/watchdog.h"

/* ---- open and close ---- */

/* Writes the one-line message of a refused open; the buffer may be NULL. */
static void pool_message(char *message, size_t message_size, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void pool_message(char *message, size_t message_size, const char *format, ...)
{
    if (message == NULL || message_size == 0) return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, message_size, format, arguments);
    va_end(arguments);
}

/* Far above any device; keeps sums of weights finite. */
#define POOL_BANDWIDTH_MAX 1e300

#define POOL_GUARD_NS UINT64_C(500000) /* of the gate, beside the latency of a request */

/* The text completes a sentence that begins with the device's name. */
const char *pool_member_fault(const tiers_member_options *options)
{
    const kvt_device *device = options->device;
    if (!options->present) return NULL;
    if (device == NULL) return "is present but has no device";
    if (!(options->read_bytes_per_s > 0) || options->read_bytes_per_s > POOL_BANDWIDTH_MAX)
        return "has no measured read bandwidth";
    if (device->facts.align_bytes > TIERS_GRAIN_BYTES)
        return "needs a larger alignment than 4096 bytes";
    if (device->facts.request_bytes_max < TIERS_GRAIN_BYTES)
        return "takes no requests of 4096 bytes";
    return NULL;
}

/* Settles the budget. An absent member's size is unknown, so then the budget may be too large.
 * UINT64_MAX stands for no budget, so that sums can be compared with it. */
static kvt_status pool_settle_budget(tiers_pool *pool, uint64_t wanted, char *message,
                                     size_t message_size)
{
    uint64_t sum = 0;
    bool all_present = true;
    for (uint32_t i = 0; i < pool->member_count; i++) {
        sum += pool->members[i].capacity_bytes;
        all_present = all_present && pool->members[i].worker != NULL;
    }
    pool->budget_bytes = wanted == 0 ? UINT64_MAX : wanted;
    if (wanted <= sum || !all_present) return KVT_OK;
    pool_message(message, message_size, "budget of %llu bytes, but the devices hold %llu",
                 (unsigned long long)wanted, (unsigned long long)sum);
    return KVT_E_SPACE;
}

/* The pool's answers to its workers when an abandoned thread ends, and when bytes have come. */
static tiers_worker_ended pool_drop_hold;
static tiers_worker_arrived pool_count_arrived;

/* Space that holds extents is kept: the device that comes back must have them where they were. The
 * mutex is held, or the pool is not open yet. */
kvt_status pool_start_member(tiers_pool *pool, pool_member *member,
                             const tiers_member_options *options)
{
    const uint64_t grain = TIERS_GRAIN_BYTES;
    kvt_device *device = options->device;
    assert(options->present && pool_member_fault(options) == NULL);
    uint64_t head = (options->reserved_head_bytes + grain - 1) / grain * grain;
    uint64_t end = device->facts.capacity_bytes / grain * grain;
    if (head > end) head = end;
    pool_slots_leave(pool, (uint32_t)(member - pool->members));
    tiers_worker_options worker = {.read_bytes_per_s = options->read_bytes_per_s,
                                   .write_bytes_per_s = options->write_bytes_per_s,
                                   .request_seconds = options->request_seconds,
                                   .in_flight_bytes_max = options->in_flight_bytes_max,
                                   .timeout_ns = options->timeout_ns,
                                   .reweigh = pool->reweigh,
                                   .gate = pool->gate,
                                   .member = (uint32_t)(member - pool->members),
                                   .needs = &pool->needs,
                                   .hurry = &pool->hurry,
                                   .log = &pool->log,
                                   .spare = pool_trim_step,
                                   .arrived = pool_count_arrived};
    worker.gate.mix_loss = options->mix_kept > 0 ? 1 - options->mix_kept : NAN;
    worker.gate.guard_ns = POOL_GUARD_NS + (uint64_t)(options->request_seconds * 1e9);
    tiers_space *space = member->space;
    kvt_status status = KVT_OK;
    if (member->used_bytes == 0) status = tiers_space_open(head, end, &space);
    if (status == KVT_OK && member->worker == NULL) {
        status = tiers_worker_start(device, &worker, pool_job_finished, pool_drop_hold, pool,
                                    &member->worker);
        if (status != KVT_OK && space != member->space) tiers_space_close(space);
    } else if (status == KVT_OK) {
        /* Without a device it has nothing to wait for. */
        status = tiers_worker_change_device(member->worker, device, &worker);
    }
    if (status != KVT_OK) return status;
    if (space != member->space) tiers_space_close(member->space);
    member->space = space;
    member->capacity_bytes = end - head;
    assert(member->used_bytes <= member->capacity_bytes && member->slot_bytes == 0);
    const uint64_t align = options->align_bytes;
    const bool power = align != 0 && (align & (align - 1)) == 0;
    if (member->used_bytes == 0) member->align_bytes = power ? align : TIERS_GRAIN_BYTES;
    member->device = device;
    atomic_store(&member->memory, kvt_device_memory(device));
    atomic_store(&member->gpu, options->gpu);
    atomic_store(&member->address, kvt_device_address(device));
    member->facts = device->facts;
    member->draining = false;
    member->passed_over = 0;
    pool_count_wear(member); /* the worker's writes so far went to the device before this one */
    member->wear = options->wear;
    memcpy(member->name, device->name, sizeof member->name);
    return KVT_OK;
}

/* Drops one hold on the pool. The thread that drops the last one frees the pool; with an abandoned
 * worker that is the worker's own thread, which also closes its device. The first hold is the
 * owner's; each worker that could not be joined has another one. */
static void pool_drop_hold(void *context)
{
    tiers_pool *pool = context;
    uint32_t holds = atomic_fetch_sub(&pool->holds, 1);
    assert(holds > 0 && "each hold is dropped once");
    if (holds > 1) return;
    for (uint32_t i = 0; i < pool->member_count; i++) {
        tiers_worker_free(pool->members[i].worker);
        pool->members[i].worker = NULL;
    }
    pool_collect_late(pool);
    for (uint32_t i = 0; i < pool->member_count; i++) {
        kvt_device_close(pool->members[i].device);
        tiers_space_close(pool->members[i].space);
    }
    needs_destroy(&pool->needs);
    pool_slots_close(pool->slots);
    pthread_cond_destroy(&pool->done);
    pthread_mutex_destroy(&pool->done_mutex);
    pthread_mutex_destroy(&pool->mutex);
    free(pool);
}

/* Stops the workers, lets their devices go, and frees the pool. False when a worker goes on. All
 * workers are asked to end before any is joined, so they end at the same time. */
static bool pool_end(tiers_pool *pool, bool close_devices)
{
    bool all = true;
    for (uint32_t i = 0; i < pool->member_count; i++) {
        if (pool->members[i].worker != NULL) tiers_worker_end(pool->members[i].worker);
    }
    for (uint32_t i = 0; i < pool->member_count; i++) {
        pool_member *member = &pool->members[i];
        atomic_fetch_add(&pool->holds, 1); /* the worker's, unless it is joined */
        if (member->worker != NULL && !tiers_worker_join(member->worker)) {
            all = false;
            continue;
        }
        atomic_fetch_sub(&pool->holds, 1);
        if (close_devices) kvt_device_close(member->device);
        member->device = NULL;
    }
    pool_drop_hold(pool);
    return all;
}

/* Refuses options that no pool can be made of, with one line that says which. */
static kvt_status pool_accepts(const tiers_member_options *members, uint32_t count,
                               const tiers_pool_options *options, char *message,
                               size_t message_size)
{
    if (count == 0 || count > TIERS_MEMBERS_MAX) {
        pool_message(message, message_size, "a pool has 1 to %u devices, not %u", TIERS_MEMBERS_MAX,
                     count);
        return KVT_E_ARGUMENT;
    }
    if (options->unit_bytes % TIERS_GRAIN_BYTES != 0) {
        pool_message(message, message_size, "stripe unit %u is not a multiple of %u bytes",
                     options->unit_bytes, TIERS_GRAIN_BYTES);
        return KVT_E_ARGUMENT;
    }
    for (uint32_t i = 0; i < count; i++) {
        const char *fault = pool_member_fault(&members[i]);
        if (fault == NULL) continue;
        const char *name = members[i].device != NULL ? members[i].device->name : "";
        pool_message(message, message_size, "device %u '%s' %s", i, name, fault);
        return KVT_E_ARGUMENT;
    }
    const char *slots_fault = pool_slots_fault(options);
    if (slots_fault != NULL) {
        pool_message(message, message_size, "%s", slots_fault);
        return KVT_E_ARGUMENT;
    }
    return KVT_OK;
}

/* A failure closes no device: they are the caller's until the open has succeeded. */
kvt_status tiers_pool_open(const tiers_member_options *members, uint32_t count,
                           const tiers_pool_options *options, tiers_pool **pool_out, char *message,
                           size_t message_size)
{
    kvt_status status = pool_accepts(members, count, options, message, message_size);
    if (status != KVT_OK) return status;
    tiers_pool *pool = calloc(1, sizeof *pool);
    if (pool == NULL) {
        pool_message(message, message_size, "no memory for a pool");
        return KVT_E_MEMORY;
    }
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_mutex_init(&pool->done_mutex, NULL);
    base_condition_init(&pool->done);
    pool->holds = 1;
    pool->member_count = count;
    pool->unit_bytes = options->unit_bytes != 0 ? options->unit_bytes : TIERS_UNIT_BYTES_DEFAULT;
    pool->striping = options->striping;
    pool->reweigh = options->reweigh;
    pool->gate = (slack_settings){
        .order = options->order,
        .grain_ns = options->write_grain_ns != 0 ? options->write_grain_ns : TIERS_WRITE_GRAIN_NS,
        .patience_ns =
            options->write_patience_ns != 0 ? options->write_patience_ns : TIERS_WRITE_PATIENCE_NS};
    needs_init(&pool->needs, pool->gate.patience_ns);
    pool->virtual_time = true;
    status = pool_slots_open(pool, options, &pool->slots);
    for (uint32_t i = 0; i < count && status == KVT_OK; i++) {
        const kvt_device *device = members[i].device;
        pool->members[i].device = members[i].device;
        if (device != NULL) memcpy(pool->members[i].name, device->name, sizeof device->name);
        if (!members[i].present) continue;
        if ((device->facts.flags & KVT_DEVICE_VIRTUAL_TIME) == 0) pool->virtual_time = false;
        status = pool_start_member(pool, &pool->members[i], &members[i]);
        if (status != KVT_OK)
            pool_message(message, message_size, "a pool: %s", kvt_status_text(status));
    }
    if (status == KVT_OK)
        status = pool_settle_budget(pool, options->capacity_bytes, message, message_size);
    if (status == KVT_OK && options->slot_count != 0) {
        uint64_t capacity, used;
        const uint64_t largest = options->slots[options->slot_count - 1].bytes;
        pool_sum(pool, &capacity, &used);
        if (largest > capacity) {
            pool_message(message, message_size, "slots of %llu bytes, but the devices hold %llu",
                         (unsigned long long)largest, (unsigned long long)capacity);
            status = KVT_E_SPACE;
        }
    }
    if (status != KVT_OK) {
        (void)pool_end(pool, false);
        return status;
    }
    pool_slots_replan(pool);
    *pool_out = pool;
    return KVT_OK;
}

bool tiers_pool_close(tiers_pool *pool)
{
    return pool == NULL || pool_end(pool, true);
}

/* ---- the gate ---- */

void tiers_pool_hurry_writes(tiers_pool *pool, bool hurry)
{
    atomic_store(&pool->hurry, hurry);
}

void tiers_pool_log_decisions(tiers_pool *pool, FILE *log)
{
    atomic_store(&pool->log, log);
}

/* ---- transfers ---- */

void pool_count_left(tiers_pool *pool, const tiers_location *location, bool left)
{
    for (uint32_t i = 0; i < location->extent_count; i++) {
        const tiers_extent *extent = &location->extents[i];
        uint64_t *bytes = &pool->members[extent->member].left_bytes;
        assert(left || *bytes >= extent->bytes);
        *bytes += left ? extent->bytes : -extent->bytes;
    }
    atomic_fetch_add(&pool->left_objects, left ? 1u : UINT32_MAX);
}

void pool_pin(const tiers_location *copy)
{
    tiers_location *location = (tiers_location *)(uintptr_t)copy;
    if (location != NULL) location->pins++;
}

/* Drops one pin. The last pin of a location that its owner has released meanwhile leaves it on the
 * list of late ones, from which the next call on the pool takes it. done_mutex is held. The extents
 * cannot be given back here, because that takes the mutex. */
void pool_unpin(tiers_pool *pool, const tiers_location *copy)
{
    tiers_location *location = (tiers_location *)(uintptr_t)copy;
    if (location == NULL) return;
    assert(location->pins > 0);
    if (--location->pins != 0 || !location->released) return;
    pool_count_left(pool, location, false);
    location->next = pool->late;
    pool->late = location;
}

/* Books one member's part of a transfer, on that member's thread. The last part finishes the
 * transfer, wakes its waiters and, when it was abandoned, releases it: after the lock is let go,
 * because the receiver may free everything the transfer stands in. */
void pool_job_finished(void *context, tiers_transfer *transfer, const tiers_job_result *result)
{
    tiers_pool *pool = context;
    uint64_t finished_ns = pool->virtual_time ? result->finished_ns : base_clock_ns();
    pthread_mutex_lock(&pool->done_mutex);
    assert(!transfer->finished && "a member reports its part once");
    assert((transfer->members >> result->member & 1) != 0 && "and only a part that it has");
    if (transfer->status == KVT_OK) transfer->status = result->status;
    if (result->bytes > 0) {
        if (pool->virtual_time && result->submitted_ns < transfer->started_ns)
            transfer->started_ns = result->submitted_ns;
        uint64_t first_ns = transfer->member_finished_ns_first;
        if (first_ns == 0 || finished_ns < first_ns)
            transfer->member_finished_ns_first = finished_ns;
    }
    if (finished_ns > transfer->finished_ns) transfer->finished_ns = finished_ns;
    for (uint32_t i = 0; i < transfer->part_count; i++) {
        if (transfer->parts[i].member == result->member)
            transfer->parts[i].finished_ns = finished_ns;
    }
    assert(transfer->units_pending > 0);
    tiers_transfer_released *released = NULL;
    void *released_context = NULL;
    if (--transfer->units_pending == 0) {
        if (transfer->started_ns == UINT64_MAX) transfer->started_ns = transfer->finished_ns;
        transfer->finished = true;
        pool_unpin(pool, transfer->location);
        released = transfer->released;
        released_context = transfer->released_context;
        pthread_cond_broadcast(&pool->done);
    }
    pthread_mutex_unlock(&pool->done_mutex);
    if (released != NULL) released(released_context);
}

#define POOL_PIECE_LEAST UINT64_C(131072)

uint64_t tiers_piece_bytes(uint64_t bytes)
{
    const uint64_t wanted = TIERS_PIECES_MAX / 2; /* a request is no longer than a piece */
    const uint64_t grains = (bytes / TIERS_GRAIN_BYTES + wanted - 1) / wanted;
    const uint64_t piece = grains * TIERS_GRAIN_BYTES;
    return piece > POOL_PIECE_LEAST ? piece : POOL_PIECE_LEAST;
}

/* Bytes of a transfer that have come, from its first one on: whole pieces. done_mutex is held. */
static uint64_t pool_arrived(const tiers_transfer *transfer)
{
    const tiers_arrival *arrival = transfer->arrival;
    uint64_t bytes = 0;
    for (uint32_t i = 0; bytes < transfer->bytes && arrival->left[i] == 0; i++)
        bytes += arrival->piece_bytes;
    return bytes < transfer->bytes ? bytes : transfer->bytes;
}

/* Sets how much of each piece is to come. done_mutex is held. */
static void pool_expect(const tiers_transfer *transfer)
{
    tiers_arrival *arrival = transfer->arrival;
    assert(arrival->piece_bytes > 0 && arrival->piece_bytes % TIERS_GRAIN_BYTES == 0);
    assert(transfer->bytes <= TIERS_PIECES_MAX * arrival->piece_bytes);
    for (uint32_t i = 0; i < TIERS_PIECES_MAX; i++) {
        const uint64_t start = i * arrival->piece_bytes;
        const uint64_t left = start < transfer->bytes ? transfer->bytes - start : 0;
        arrival->left[i] = left < arrival->piece_bytes ? left : arrival->piece_bytes;
    }
    arrival->wanted_bytes = arrival->come != NULL ? arrival->piece_bytes : UINT64_MAX;
}

/* Counts a range that has come, and wakes the thread that waits for so many bytes: once. */
static void pool_count_arrived(void *context, tiers_transfer *transfer, uint64_t at, uint64_t bytes)
{
    tiers_pool *pool = context;
    tiers_arrival *arrival = transfer->arrival;
    bool whole = false;
    assert(at <= transfer->bytes && bytes <= transfer->bytes - at);
    pthread_mutex_lock(&pool->done_mutex);
    while (bytes > 0) {
        uint64_t *left = &arrival->left[at / arrival->piece_bytes];
        uint64_t in = arrival->piece_bytes - at % arrival->piece_bytes;
        if (in > bytes) in = bytes;
        assert(*left >= in && "a byte comes once");
        *left -= in;
        whole = whole || *left == 0;
        at += in;
        bytes -= in;
    }
    if (whole && pool_arrived(transfer) >= arrival->wanted_bytes) {
        arrival->wanted_bytes = UINT64_MAX;
        if (arrival->come != NULL)
            arrival->come(arrival->context);
        else
            pthread_cond_broadcast(&pool->done);
    }
    pthread_mutex_unlock(&pool->done_mutex);
}

bool tiers_pool_serves(const tiers_pool *pool, const tiers_location *location)
{
    for (uint32_t i = 0; i < location->share_count; i++) {
        assert(location->shares[i].member < pool->member_count);
        if (!pool_member_serves(&pool->members[location->shares[i].member])) return false;
    }
    return true;
}

/* One member's part of a transfer. It lives on the stack of the call that starts the transfer. */
typedef struct pool_part {
    uint32_t member;
    uint32_t share; /* of the location */
    uint64_t bytes; /* about */
} pool_part;

/* The parts of a transfer; 0 = a member does not serve. The bytes of a partial transfer are in
 * proportion to the units: an estimate for queues and predictions. */
static uint32_t pool_list_parts(const tiers_pool *pool, const tiers_transfer *transfer,
                                pool_part *parts)
{
    const tiers_location *location = transfer->location;
    assert(location->share_count >= 1 && location->share_count <= TIERS_MEMBERS_MAX);
    if (!tiers_pool_serves(pool, location)) return 0;
    const uint64_t units = tiers_location_unit_count(location);
    for (uint32_t i = 0; i < location->share_count; i++)
        parts[i] = (pool_part){.member = location->shares[i].member,
                               .share = i,
                               .bytes = transfer->bytes / units * location->shares[i].units};
    if (transfer->bytes == location->bytes) {
        /* The extents of a whole object give the exact bytes of each part, a short last unit
         * included; of a part of an object the bytes are an estimate. */
        uint32_t share = 0;
        for (uint32_t i = 0; i < location->share_count; i++)
            parts[i].bytes = 0;
        for (uint32_t i = 0; i < location->extent_count; i++) {
            while (location->shares[share].member != location->extents[i].member)
                share++;
            assert(share < location->share_count && "extents lie in share order");
            parts[share].bytes += location->extents[i].bytes;
        }
    }
    return location->share_count;
}

void tiers_transfer_start(tiers_pool *pool, tiers_transfer *transfer)
{
    tiers_transfer_start_until(pool, transfer, UINT64_MAX);
}

/* Fills in what each member is asked for and what it has to do before. The figures change while
 * they are read; they are good for a prediction and nothing else. */
static uint32_t pool_sum_parts(const tiers_pool *pool, tiers_rank rank, const pool_part *from,
                               uint32_t count, tiers_part *parts)
{
    uint64_t now_ns = pool->virtual_time ? 0 : base_clock_ns();
    for (uint32_t i = 0; i < count; i++) {
        const tiers_worker *worker = pool->members[from[i].member].worker;
        parts[i] = (tiers_part){.member = from[i].member,
                                .bytes = from[i].bytes,
                                .ahead_bytes = {tiers_worker_ahead(worker, rank, KVT_IO_READ),
                                                tiers_worker_ahead(worker, rank, KVT_IO_WRITE)}};
        uint64_t moved_ns = tiers_worker_moved_ns(worker);
        if (now_ns > moved_ns) parts[i].since_ns = now_ns - moved_ns;
    }
    return count;
}

uint32_t tiers_pool_parts(tiers_pool *pool, const tiers_location *location, tiers_part *parts)
{
    pool_part asked[TIERS_MEMBERS_MAX];
    const tiers_transfer read = {.location = location, .bytes = location->bytes};
    uint32_t count = pool_list_parts(pool, &read, asked);
    return pool_sum_parts(pool, TIERS_RANK_WAITED, asked, count, parts);
}

bool tiers_pool_is_pressed(tiers_pool *pool)
{
    bool pressed = false;
    if (pool->virtual_time) return false;
    pthread_mutex_lock(&pool->mutex);
    for (uint32_t i = 0; i < pool->member_count && !pressed; i++) {
        const pool_member *member = &pool->members[i];
        pressed = pool_member_serves(member) && tiers_worker_is_pressed(member->worker);
    }
    pthread_mutex_unlock(&pool->mutex);
    return pressed;
}

/* Without parts it has finished. started_ns is UINT64_MAX in virtual time until a part reports the
 * first instant. */
void pool_begin_transfer(tiers_pool *pool, tiers_transfer *transfer, uint64_t members,
                         uint32_t count)
{
    uint64_t now = base_clock_ns();
    assert(count <= TIERS_MEMBERS_MAX && (count == 0) == (members == 0));
    transfer->status = count > 0 ? KVT_OK : KVT_E_GONE;
    transfer->started_ns = pool->virtual_time ? UINT64_MAX : now;
    transfer->finished_ns = 0;
    transfer->member_finished_ns_first = 0;
    transfer->units_pending = count;
    transfer->finished = count == 0;
    transfer->members = members;
    if (count > 0) {
        pool_pin(transfer->location);
        return;
    }
    transfer->started_ns = transfer->finished_ns = pool->virtual_time ? 0 : now;
    pthread_cond_broadcast(&pool->done);
}

void pool_note_call(const tiers_pool *pool, pool_calls *calls, uint32_t member)
{
    bool drive = (pool->members[member].facts.flags & KVT_DEVICE_DURABLE) != 0;
    *(drive ? &calls->drives : &calls->copying) |= UINT64_C(1) << member;
}

/* Queues the parts of a transfer with their members, which are not called yet. A part that a member
 * does not take is reported as failed at once, so every transfer ends by the same report. The
 * asserts are the rules for callers: whole grains, inside the object, an
 * aligned buffer. */
static void pool_queue_transfer(tiers_pool *pool, tiers_transfer *transfer, uint64_t deadline_ns,
                                pool_calls *calls)
{
    assert(transfer->kind == KVT_IO_READ || transfer->kind == KVT_IO_WRITE);
    assert(transfer->bytes % TIERS_GRAIN_BYTES == 0 &&
           transfer->bytes <= transfer->location->bytes);
    assert(transfer->offset % TIERS_GRAIN_BYTES == 0);
    assert(transfer->offset <= transfer->location->bytes - transfer->bytes);
    assert((uintptr_t)transfer->buffer % TIERS_GRAIN_BYTES == 0);
    pool_part parts[TIERS_MEMBERS_MAX];
    uint32_t count = pool_list_parts(pool, transfer, parts);
    transfer->part_count = 0;
    if (transfer->parts != NULL)
        transfer->part_count =
            pool_sum_parts(pool, tiers_worker_rank(transfer), parts, count, transfer->parts);
    uint64_t members = 0;
    for (uint32_t i = 0; i < count; i++)
        members |= UINT64_C(1) << parts[i].member;
    pthread_mutex_lock(&pool->done_mutex);
    pool_begin_transfer(pool, transfer, members, count);
    if (transfer->arrival != NULL) pool_expect(transfer);
    pthread_mutex_unlock(&pool->done_mutex);
    if (count == 0 && transfer->released != NULL) {
        transfer->released(transfer->released_context);
        return;
    }
    /* The transfer, and so its pins, last until each part was reported: a member is another
     * device's at the earliest when its own part was. */
    for (uint32_t i = 0; i < count; i++) {
        tiers_job_result result = {.member = parts[i].member};
        pool_note_call(pool, calls, result.member);
        result.status = tiers_worker_queue(pool->members[result.member].worker, transfer,
                                           parts[i].share, parts[i].bytes, deadline_ns);
        if (result.status != KVT_OK) pool_job_finished(pool, transfer, &result);
    }
}

/* Wakes each member in the mask for its queued jobs. A member that was called before finds its mail
 * empty and does nothing. */
static void pool_call_members(tiers_pool *pool, uint64_t members)
{
    for (uint32_t i = 0; i < TIERS_MEMBERS_MAX && members >> i != 0; i++) {
        if ((members >> i & 1) != 0) tiers_worker_call(pool->members[i].worker);
    }
}

/* Drives first: they work by themselves while the worker of a memory member copies. The order costs
 * nothing and hides the drives' latency behind the copies. */
void pool_call(tiers_pool *pool, const pool_calls *calls)
{
    pool_call_members(pool, calls->drives);
    pool_call_members(pool, calls->copying);
}

void tiers_transfer_start_until(tiers_pool *pool, tiers_transfer *transfer, uint64_t deadline_ns)
{
    pool_calls calls = {0, 0};
    pool_queue_transfer(pool, transfer, deadline_ns, &calls);
    pool_call(pool, &calls);
}

void tiers_transfers_start(tiers_pool *pool, tiers_transfer *const *transfers, uint32_t count)
{
    pool_calls calls = {0, 0};
    for (uint32_t i = 0; i < count; i++)
        pool_queue_transfer(pool, transfers[i], UINT64_MAX, &calls);
    pool_call(pool, &calls);
}

kvt_status tiers_transfer_wait(tiers_pool *pool, tiers_transfer *transfer)
{
    pthread_mutex_lock(&pool->done_mutex);
    while (!transfer->finished)
        pthread_cond_wait(&pool->done, &pool->done_mutex);
    kvt_status status = transfer->status;
    pthread_mutex_unlock(&pool->done_mutex);
    return status;
}

/* Looks after the members in a mask. True when one is out of service. The caller holds no lock. */
static bool pool_check(tiers_pool *pool, uint64_t members)
{
    bool gone = false;
    for (uint32_t i = 0; i < TIERS_MEMBERS_MAX && members >> i != 0; i++) {
        if ((members >> i & 1) != 0 && tiers_worker_check(pool->members[i].worker)) gone = true;
    }
    return gone;
}

/* For how many bytes to wake somebody who lacks `bytes`: twice what is there, or half of the rest,
 * so that a few wakes do for a fast reader of them, and a slow one begins early. */
static uint64_t pool_wake_at(const tiers_transfer *transfer, uint64_t arrived, uint64_t bytes)
{
    const uint64_t half = (transfer->bytes - arrived) / 2;
    const uint64_t more = arrived + (arrived < half ? arrived : half);
    return more > bytes ? more : bytes;
}

/* Waits until so many bytes have come, or all. KVT_E_TIMEOUT and KVT_E_GONE leave the transfer in
 * flight: the caller abandons it or waits again. Between two wake-ups the waiter looks after the
 * members itself. */
static kvt_status pool_await(tiers_pool *pool, tiers_transfer *transfer, uint64_t bytes,
                             uint64_t deadline_ns, uint64_t *arrived_out)
{
    kvt_status status = KVT_OK;
    uint64_t check_ns = base_clock_ns() + TIERS_CHECK_NS;
    pthread_mutex_lock(&pool->done_mutex);
    if (arrived_out != NULL && !transfer->finished && pool_arrived(transfer) < bytes)
        bytes = pool_wake_at(transfer, pool_arrived(transfer), bytes);
    while (!transfer->finished && status == KVT_OK) {
        uint64_t now = base_clock_ns();
        if (arrived_out != NULL) {
            *arrived_out = pool_arrived(transfer);
            transfer->arrival->wanted_bytes = bytes;
        }
        if (now >= deadline_ns) {
            status = KVT_E_TIMEOUT;
        } else if (arrived_out != NULL && *arrived_out >= bytes && *arrived_out < transfer->bytes) {
            status = KVT_QUEUED; /* with all bytes there the last word comes at once */
        } else if (now >= check_ns) {
            check_ns = now + TIERS_CHECK_NS;
            uint64_t members = transfer->members;
            pthread_mutex_unlock(&pool->done_mutex);
            bool gone = pool_check(pool, members);
            pthread_mutex_lock(&pool->done_mutex);
            if (gone) status = KVT_E_GONE;
        } else {
            uint64_t wake_ns = check_ns < deadline_ns ? check_ns : deadline_ns;
            base_condition_wait_until(&pool->done, &pool->done_mutex, wake_ns);
        }
    }
    if (transfer->finished) status = transfer->status;
    pthread_mutex_unlock(&pool->done_mutex);
    return status;
}

kvt_status tiers_transfer_wait_until(tiers_pool *pool, tiers_transfer *transfer,
                                     uint64_t deadline_ns)
{
    return pool_await(pool, transfer, 0, deadline_ns, NULL);
}

kvt_status tiers_transfer_await(tiers_pool *pool, tiers_transfer *transfer, uint64_t bytes,
                                uint64_t deadline_ns, uint64_t *arrived_out)
{
    assert(transfer->arrival != NULL && bytes <= transfer->bytes);
    return pool_await(pool, transfer, bytes, deadline_ns, arrived_out);
}

uint64_t tiers_transfer_arrived(tiers_pool *pool, tiers_transfer *transfer, uint64_t bytes)
{
    assert(transfer->arrival != NULL);
    pthread_mutex_lock(&pool->done_mutex);
    const uint64_t arrived = transfer->finished ? 0 : pool_arrived(transfer);
    transfer->arrival->wanted_bytes =
        arrived < bytes ? pool_wake_at(transfer, arrived, bytes) : UINT64_MAX;
    pthread_mutex_unlock(&pool->done_mutex);
    return arrived;
}

/* Wakes each member in the mask, to end the jobs of cancelled transfers. */
static void pool_sweep(tiers_pool *pool, uint64_t members)
{
    for (uint32_t i = 0; i < TIERS_MEMBERS_MAX && members >> i != 0; i++) {
        if ((members >> i & 1) != 0) tiers_worker_sweep(pool->members[i].worker);
    }
}

void tiers_transfer_abandon(tiers_pool *pool, tiers_transfer *transfer,
                            tiers_transfer_released *released, void *context)
{
    assert(released != NULL);
    uint64_t members = 0; /* the transfer may go as soon as the lock is let go */
    pthread_mutex_lock(&pool->done_mutex);
    bool finished = transfer->finished;
    if (!finished) {
        assert(transfer->released == NULL && "a transfer is abandoned once");
        members = transfer->members;
        transfer->released = released;
        transfer->released_context = context;
        atomic_store(&transfer->cancelled, true);
    }
    pthread_mutex_unlock(&pool->done_mutex);
    if (finished) released(context);
    pool_sweep(pool, members);
}

void tiers_transfer_cancel(tiers_pool *pool, tiers_transfer *transfer)
{
    assert(transfer->released != NULL && "and its last word cannot free it before this returns");
    atomic_store(&transfer->cancelled, true);
    pool_sweep(pool, transfer->members);
}

bool tiers_transfer_is_stuck(tiers_pool *pool, const tiers_transfer *transfer)
{
    return pool_check(pool, transfer->members);
}

kvt_status tiers_pool_transfer(tiers_pool *pool, kvt_io_kind kind, const tiers_location *location,
                               void *buffer, uint64_t bytes)
{
    tiers_transfer transfer = {
        .kind = kind, .location = location, .buffer = buffer, .bytes = bytes};
    tiers_transfer_start(pool, &transfer);
    return tiers_transfer_wait(pool, &transfer);
}

kvt_status tiers_pool_sync(tiers_pool *pool)
{
    tiers_worker_sync syncs[TIERS_MEMBERS_MAX];
    bool begun[TIERS_MEMBERS_MAX];
    uint32_t count = pool->member_count;
    pthread_mutex_lock(&pool->mutex);
    for (uint32_t i = 0; i < count; i++) {
        begun[i] = pool_member_serves(&pool->members[i]);
        if (!begun[i]) continue;
        pool->members[i].syncs++;
        tiers_worker_sync_begin(pool->members[i].worker, &syncs[i]);
    }
    pthread_mutex_unlock(&pool->mutex);
    kvt_status first = KVT_OK;
    for (uint32_t i = 0; i < count; i++) {
        if (!begun[i]) continue;
        kvt_status status = tiers_worker_sync_wait(pool->members[i].worker, &syncs[i]);
        /* After a failed sync the device may have dropped writes that it had acknowledged, and a
         * second sync would succeed without them. */
        pthread_mutex_lock(&pool->mutex);
        if (status != KVT_OK && status != KVT_E_MEMORY)
            tiers_worker_retire(pool->members[i].worker, TIERS_RETIRED_SYNC);
        assert(pool->members[i].syncs > 0);
        pool->members[i].syncs--;
        pthread_mutex_unlock(&pool->mutex);
        if (first == KVT_OK) first = status;
    }
    return first;
}
