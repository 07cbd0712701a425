/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_tiers_pool_timeout.c - members that neither answer nor fail: deadlines, transfers that are
 * abandoned, the timeout, and closing.
 */

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "cases.h"
#include "fault_device.h"
#include "pool_scratch.h"
#include "tiers/devices/watchdog.h"
#include "tiers/pool/worker.h"

enum { UNIT = 16384, MS = 1000000, OBJECTS = 40 };

#define NEVER UINT64_MAX

static const tiers_fault_rule hang_all = {.action = TIERS_FAULT_HANG,
                                          .kinds = TIERS_FAULT_READS | TIERS_FAULT_WRITES};

static void nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = MS}, NULL);
}

/* ---- the watch ---- */

TEST(the_watch_counts_time_without_progress)
{
    tiers_timeout timeout;
    tiers_timeout_init(&timeout, 800 * MS, 1000 * MS);
    for (uint64_t at = 1100; at < 1900; at += 100)
        assert_false(tiers_timeout_check(&timeout, at * MS, at != 1100, 0));
    assert_true(tiers_timeout_check(&timeout, UINT64_C(1900) * MS, true, 0));
    assert_false(tiers_timeout_check(&timeout, UINT64_C(2000) * MS, true, 1)); /* it answered */
    /* Nobody looked for an hour: the process stood still, and so may the device have. */
    assert_false(tiers_timeout_check(&timeout, UINT64_C(3602000) * MS, true, 1));
    for (uint64_t i = 1; i <= 7; i++)
        assert_int_equal(tiers_timeout_check(&timeout, (UINT64_C(3602000) + 100 * i) * MS, true, 1),
                         i == 7);
    assert_false(
        tiers_timeout_check(&timeout, UINT64_C(3603000) * MS, false, 1)); /* nothing to do */
    tiers_timeout_init(&timeout, TIERS_TIMEOUT_NEVER, 0);
    for (uint64_t i = 0; i < 100000; i++)
        assert_false(tiers_timeout_check(&timeout, i * 100 * MS, true, 0));
}

/* Host memory is never late by itself; a layer over it may be. */
TEST(host_memory_has_no_timeout)
{
    kvt_device *memory = pool_scratch_memory(UNIT), *layer;
    assert_true(tiers_timeout_of(memory, 0) == TIERS_TIMEOUT_NEVER);
    assert_true(tiers_timeout_of(memory, 5 * MS) == TIERS_TIMEOUT_NEVER);
    assert_ok(tiers_fault_open(memory, &layer));
    assert_true(tiers_timeout_of(layer, 0) == TIERS_TIMEOUT_NS_DEFAULT);
    assert_true(tiers_timeout_of(layer, 5 * MS) == 5 * MS);
    kvt_device_close(layer);
}

/* ---- a pool whose second member can hang ---- */

typedef struct unresponsive {
    tiers_pool *pool;
    kvt_device *device; /* the second member */
    tiers_location *both;
    tiers_location *first_only;
    char *buffer;
} unresponsive;

static bool reweighs;            /* of the next pool */
static uint64_t first_parts = 1; /* the second member has so many times the first one's bytes */

static void unresponsive_open(unresponsive *s, uint64_t timeout_ns)
{
    const uint64_t bytes = 4 * OBJECTS * UNIT;
    tiers_member_options members[2];
    tiers_pool_options options = {.unit_bytes = UNIT, .reweigh = reweighs};
    kvt_device *inner = pool_scratch_memory(bytes);
    inner->facts.depth_max = 4; /* so that others come while one hangs */
    assert_ok(tiers_fault_open(inner, &s->device));
    members[0] = pool_scratch_member(pool_scratch_memory(bytes / first_parts), 1e9);
    members[1] = pool_scratch_member(s->device, 1e9);
    members[1].timeout_ns = timeout_ns;
    if (reweighs) members[1].request_seconds = 1e-4;
    assert_ok(tiers_pool_open(members, 2, &options, &s->pool, NULL, 0));
    assert_ok(tiers_pool_reserve(s->pool, TIERS_GRAIN_BYTES, &s->first_only));
    assert_int_equal(s->first_only->shares[0].member, 0);
    assert_ok(tiers_pool_reserve(s->pool, 8 * UNIT, &s->both));
    assert_int_equal(s->both->share_count, 2);
    s->buffer = pool_scratch_buffer(8 * UNIT);
    pool_scratch_fill(s->buffer, 8 * UNIT, 5);
    assert_ok(tiers_pool_transfer(s->pool, KVT_IO_WRITE, s->both, s->buffer, 8 * UNIT));
    assert_ok(
        tiers_pool_transfer(s->pool, KVT_IO_WRITE, s->first_only, s->buffer, TIERS_GRAIN_BYTES));
    memset(s->buffer, 0, 8 * UNIT);
}

/* Nothing of the pool is held by an operation any more. */
static void unresponsive_close(unresponsive *s)
{
    tiers_pool_release(s->pool, s->both);
    tiers_pool_release(s->pool, s->first_only);
    assert_true(tiers_pool_close(s->pool));
}

static void unresponsive_hang(unresponsive *s, const tiers_fault_rule *rule)
{
    assert_ok(tiers_fault_add(s->device, rule));
}

static uint64_t unresponsive_hung(unresponsive *s)
{
    tiers_fault_counts counts;
    tiers_fault_counts_get(s->device, &counts);
    return counts.hung;
}

static kvt_device_state unresponsive_state(unresponsive *s)
{
    tiers_member_stats stats;
    assert_ok(tiers_pool_member(s->pool, 1, &stats));
    return stats.state;
}

static double unresponsive_weight(unresponsive *s)
{
    tiers_member_stats stats;
    assert_ok(tiers_pool_member(s->pool, 1, &stats));
    return stats.weight_bytes_per_s;
}

static uint64_t silent_free(unresponsive *s)
{
    tiers_member_stats stats;
    assert_ok(tiers_pool_member(s->pool, 1, &stats));
    return stats.free_bytes;
}

static tiers_transfer unresponsive_read(const tiers_location *location, void *buffer)
{
    return (tiers_transfer){
        .kind = KVT_IO_READ, .location = location, .buffer = buffer, .bytes = location->bytes};
}

static void count_released(void *context)
{
    atomic_fetch_add((atomic_uint *)context, 1);
}

static void await(atomic_uint *count, unsigned wanted)
{
    while (atomic_load(count) != wanted)
        nap();
}

/* ---- deadlines ---- */

/* A member that has work and answers none of it loses its share while its timeout is far, and new
 * objects go to the others at once. The answer that comes at last costs the share, too; then the
 * member is asked by itself whether it is well. */
TEST(a_silent_member_loses_its_share)
{
    unresponsive s;
    reweighs = true;
    unresponsive_open(&s, TIERS_TIMEOUT_NEVER);
    reweighs = false;
    unresponsive_hang(&s, &hang_all);
    tiers_transfer transfer = unresponsive_read(s.both, s.buffer);
    tiers_transfer_start(s.pool, &transfer);
    assert_false(tiers_pool_stalls(s.pool, s.both));
    while (unresponsive_weight(&s) > 1e9 / 32) /* until it is seen */
        nap();
    assert_true(tiers_pool_stalls(s.pool, s.both));
    assert_false(tiers_pool_stalls(s.pool, s.first_only));
    assert_int_equal(unresponsive_state(&s), KVT_DEVICE_SERVING);
    uint32_t units = 0;
    for (int i = 0; i < 8; i++) {
        tiers_location *location;
        assert_ok(tiers_pool_reserve(s.pool, 8 * UNIT, &location));
        for (uint32_t k = 0; k < location->share_count; k++)
            if (location->shares[k].member == 1) units += location->shares[k].units;
        tiers_pool_release(s.pool, location);
    }
    assert_int_equal(units, 0);
    tiers_location *full[OBJECTS]; /* where the others have no room, it takes them all the same */
    uint32_t count = 0;
    for (; units == 0; count++) {
        assert_true(count < OBJECTS);
        assert_ok(tiers_pool_reserve(s.pool, 8 * UNIT, &full[count]));
        for (uint32_t k = 0; k < full[count]->share_count; k++)
            units += full[count]->shares[k].member == 1;
        assert_int_equal(full[count]->on_late, units > 0);
        assert_int_equal(full[count]->unwanted, units > 0);
    }
    assert_false(tiers_pool_stalls(s.pool, full[count - 1])); /* there is nowhere else to write */
    assert_int_equal(tiers_pool_withheld(s.pool), silent_free(&s));
    while (count > 0)
        tiers_pool_release(s.pool, full[--count]);
    tiers_fault_clear(s.device);
    assert_ok(tiers_transfer_wait(s.pool, &transfer));
    assert_true(unresponsive_weight(&s) <= 1e9 / 32);
    while (unresponsive_weight(&s) < 1e9 / 2) /* without a request of ours */
        nap();
    assert_int_equal(tiers_pool_withheld(s.pool), 0);
    assert_ok(tiers_pool_reserve(s.pool, 8 * UNIT, &full[0]));
    assert_int_equal(full[0]->share_count, 2);
    assert_false(full[0]->on_late || full[0]->unwanted);
    tiers_pool_release(s.pool, full[0]);
    unresponsive_close(&s);
}

/* Room on a late member is room where the members that answer hold less than half: one of two that
 * drains, so that none is left, or one that is small. */
TEST(room_on_a_late_member_that_is_most_of_the_pool_is_room)
{
    for (int small = 0; small < 2; small++) {
        unresponsive s;
        tiers_location *held[OBJECTS];
        uint32_t count = 0;
        reweighs = true;
        first_parts = small ? 2 : 1;
        unresponsive_open(&s, TIERS_TIMEOUT_NEVER);
        reweighs = false;
        first_parts = 1;
        unresponsive_hang(&s, &hang_all);
        tiers_transfer transfer = unresponsive_read(s.both, s.buffer);
        tiers_transfer_start(s.pool, &transfer);
        while (unresponsive_weight(&s) > 1e9 / 32)
            nap();
        if (!small) assert_int_equal(tiers_pool_withheld(s.pool), silent_free(&s));
        if (!small) assert_ok(tiers_pool_drain(s.pool, 0, true));
        assert_int_equal(tiers_pool_withheld(s.pool), 0);
        do { /* the small one is filled first */
            assert_true(count < OBJECTS);
            assert_ok(tiers_pool_reserve(s.pool, 8 * UNIT, &held[count]));
        } while (!held[count++]->on_late);
        assert_false(held[count - 1]->unwanted);
        assert_false(tiers_pool_stalls(s.pool, held[count - 1]));
        while (count > 0)
            tiers_pool_release(s.pool, held[--count]);
        tiers_fault_clear(s.device);
        assert_ok(tiers_transfer_wait(s.pool, &transfer));
        if (!small) assert_ok(tiers_pool_drain(s.pool, 0, false));
        unresponsive_close(&s);
    }
}

/* Room that an abandoned transfer may still write to is none until the transfer has ended. */
TEST(what_a_member_may_still_write_to_is_withheld)
{
    unresponsive s;
    atomic_uint released = 0;
    unresponsive_open(&s, TIERS_TIMEOUT_NEVER);
    unresponsive_hang(&s, &hang_all);
    tiers_location *location;
    assert_ok(tiers_pool_reserve(s.pool, 8 * UNIT, &location));
    tiers_transfer write = {
        .kind = KVT_IO_WRITE, .location = location, .buffer = s.buffer, .bytes = 8 * UNIT};
    tiers_transfer_start(s.pool, &write);
    while (unresponsive_hung(&s) == 0)
        nap();
    tiers_transfer_abandon(s.pool, &write, count_released, &released);
    assert_int_equal(tiers_pool_withheld(s.pool), 0); /* it is an object's */
    tiers_pool_release(s.pool, location);
    assert_int_equal(tiers_pool_withheld(s.pool), 8 * UNIT);
    tiers_fault_clear(s.device);
    await(&released, 1);
    assert_int_equal(tiers_pool_withheld(s.pool), 0);
    unresponsive_close(&s);
}

/* A member that answers, but each time late, with one transfer at a time: some transfers find it
 * out, and reads that are well give the share back. */
TEST(a_member_that_answers_late_loses_its_share)
{
    const tiers_fault_rule late = {
        .action = TIERS_FAULT_DELAY, .kinds = TIERS_FAULT_READS, .delay_ns = 50 * MS};
    unresponsive s;
    uint32_t reads = 0;
    reweighs = true;
    unresponsive_open(&s, TIERS_TIMEOUT_NEVER);
    reweighs = false;
    const double weight = unresponsive_weight(&s);
    unresponsive_hang(&s, &late);
    for (; unresponsive_weight(&s) > weight / 8; reads++) {
        assert_true(reads < 100);
        assert_ok(tiers_pool_transfer(s.pool, KVT_IO_READ, s.both, s.buffer, 8 * UNIT));
    }
    assert_true(reads >= 4); /* no single one does it */
    tiers_fault_clear(s.device);
    while (unresponsive_weight(&s) < weight) {
        assert_ok(tiers_pool_transfer(s.pool, KVT_IO_READ, s.both, s.buffer, 8 * UNIT));
        nap();
    }
    assert_int_equal(unresponsive_state(&s), KVT_DEVICE_SERVING);
    unresponsive_close(&s);
}

TEST(a_deadline_ends_the_wait_and_not_the_transfer)
{
    unresponsive s;
    atomic_uint released = 0;
    unresponsive_open(&s, TIERS_TIMEOUT_NEVER);
    unresponsive_hang(&s, &hang_all);
    tiers_transfer read = unresponsive_read(s.both, s.buffer);
    tiers_transfer_start(s.pool, &read);
    assert_int_equal(tiers_transfer_wait_until(s.pool, &read, 0), KVT_E_TIMEOUT);
    assert_int_equal(tiers_transfer_wait_until(s.pool, &read, base_clock_ns() + 30 * MS),
                     KVT_E_TIMEOUT);
    assert_int_equal(unresponsive_state(&s), KVT_DEVICE_SERVING);
    char *grain = pool_scratch_buffer(TIERS_GRAIN_BYTES);
    tiers_transfer other = unresponsive_read(s.first_only, grain);
    tiers_transfer_start(s.pool, &other);
    assert_ok(tiers_transfer_wait_until(s.pool, &other, NEVER));
    assert_true(pool_scratch_holds(grain, TIERS_GRAIN_BYTES, 5));
    tiers_fault_clear(s.device);
    assert_ok(tiers_transfer_wait_until(s.pool, &read, NEVER));
    assert_true(pool_scratch_holds(s.buffer, 8 * UNIT, 5));
    tiers_transfer_abandon(s.pool, &read, count_released, &released); /* it has ended */
    assert_int_equal(released, 1);
    tiers_pool_release(s.pool, s.both);
    tiers_pool_release(s.pool, s.first_only);
    assert_int_equal(pool_scratch_used(s.pool), 0);
    assert_true(tiers_pool_close(s.pool));
}

/* Reads whose third unit on the second member hangs: the bytes before it are there, whatever the
 * size of the pieces, and no byte behind it is promised. */
TEST(the_first_bytes_come_while_others_hang)
{
    static const uint64_t pieces[] = {4096, 12288, UNIT, 5 * 4096, 8 * UNIT};
    unresponsive s;
    atomic_uint released = 0;
    unresponsive_open(&s, TIERS_TIMEOUT_NEVER);
    const tiers_extent *extent = &s.both->extents[0];
    while (extent->member != 1)
        extent++;
    const tiers_fault_rule hang = {.action = TIERS_FAULT_HANG,
                                   .kinds = TIERS_FAULT_READS,
                                   .offset = extent->offset + 2 * UNIT,
                                   .bytes = UNIT};
    for (uint32_t i = 0; i < sizeof pieces / sizeof pieces[0]; i++) {
        uint64_t arrived = 0;
        tiers_arrival arrival = {.piece_bytes = pieces[i] < UNIT / 4 ? UNIT / 4 : pieces[i]};
        tiers_transfer read = unresponsive_read(s.both, s.buffer);
        const uint64_t piece = arrival.piece_bytes, there = 4 * UNIT / piece * piece;
        read.arrival = &arrival;
        memset(s.buffer, 0, 8 * UNIT);
        unresponsive_hang(&s, &hang);
        tiers_transfer_start(s.pool, &read);
        /* A wait that asks for more than will come ends with its time. */
        while (arrived < there) {
            const kvt_status status =
                tiers_transfer_await(s.pool, &read, arrived + 1, base_clock_ns() + MS, &arrived);
            assert_true(status == KVT_QUEUED || status == KVT_E_TIMEOUT);
            assert_true(arrived % piece == 0 && arrived <= 5 * UNIT);
            assert_true(pool_scratch_holds(s.buffer, arrived, 5));
        }
        assert_int_equal(tiers_transfer_await(s.pool, &read, there, NEVER, &arrived), KVT_QUEUED);
        assert_int_equal(
            tiers_transfer_await(s.pool, &read, 5 * UNIT + 1, base_clock_ns() + 5 * MS, &arrived),
            KVT_E_TIMEOUT);
        assert_int_equal(tiers_transfer_await(s.pool, &read, 1, 0, &arrived), KVT_E_TIMEOUT);
        if (i % 2 == 0) tiers_fault_clear(s.device);
        if (i % 2 == 0)
            assert_ok(tiers_transfer_await(s.pool, &read, 8 * UNIT, NEVER, &arrived));
        else
            tiers_transfer_abandon(s.pool, &read, count_released, &released);
        tiers_fault_clear(s.device);
        await(&released, (i + 1) / 2);
        if (i % 2 == 0) assert_true(pool_scratch_holds(s.buffer, 8 * UNIT, 5));
    }
    unresponsive_close(&s);
}

/* A read that fails is told as a whole. */
TEST(a_failed_read_ends_the_wait_for_its_first_bytes)
{
    unresponsive s;
    uint64_t arrived = 0;
    unresponsive_open(&s, TIERS_TIMEOUT_NEVER);
    const tiers_fault_rule fail = {.action = TIERS_FAULT_FAIL,
                                   .kinds = TIERS_FAULT_READS,
                                   .skip = 2,
                                   .hits = 1,
                                   .status = KVT_E_IO};
    unresponsive_hang(&s, &fail);
    tiers_arrival arrival = {.piece_bytes = UNIT};
    tiers_transfer read = unresponsive_read(s.both, s.buffer);
    read.arrival = &arrival;
    tiers_transfer_start(s.pool, &read);
    kvt_status status;
    do
        status = tiers_transfer_await(s.pool, &read, arrived + 1, NEVER, &arrived);
    while (status == KVT_QUEUED);
    assert_int_equal(status, KVT_E_IO);
    assert_true(arrived <= 5 * UNIT);
    unresponsive_close(&s);
}

/* An abandoned write may land late: its extents are nobody else's until then. */
TEST(extents_of_an_abandoned_write_stay_held)
{
    unresponsive s;
    atomic_uint released = 0;
    unresponsive_open(&s, TIERS_TIMEOUT_NEVER);
    unresponsive_hang(&s, &hang_all);
    tiers_transfer write = unresponsive_read(s.both, s.buffer);
    write.kind = KVT_IO_WRITE;
    tiers_transfer_start(s.pool, &write);
    while (unresponsive_hung(&s) == 0)
        nap();
    assert_int_equal(tiers_transfer_wait_until(s.pool, &write, base_clock_ns()), KVT_E_TIMEOUT);
    tiers_transfer_abandon(s.pool, &write, count_released, &released);
    tiers_pool_release(s.pool, s.both);
    assert_int_equal(pool_scratch_used(s.pool), 8 * UNIT + TIERS_GRAIN_BYTES);
    assert_int_equal(released, 0);
    tiers_fault_clear(s.device);
    await(&released, 1);
    assert_int_equal(pool_scratch_used(s.pool), TIERS_GRAIN_BYTES);
    tiers_pool_release(s.pool, s.first_only);
    assert_true(tiers_pool_close(s.pool));
    assert_int_equal(released, 1);
}

/* All jobs of a worker are taken: who comes then waits for one, but not for ever. */
TEST(a_full_queue_has_a_deadline)
{
    unresponsive s;
    atomic_uint released = 0;
    unresponsive_open(&s, TIERS_TIMEOUT_NEVER);
    unresponsive_hang(&s, &hang_all);
    tiers_transfer *reads = test_zeros((TIERS_WORKER_JOBS + 1) * sizeof *reads);
    for (uint32_t i = 0; i <= TIERS_WORKER_JOBS; i++)
        reads[i] = unresponsive_read(s.both, s.buffer);
    for (uint32_t i = 0; i < TIERS_WORKER_JOBS; i++)
        tiers_transfer_start(s.pool, &reads[i]);
    tiers_transfer *last = &reads[TIERS_WORKER_JOBS];
    tiers_transfer_start_until(s.pool, last, base_clock_ns() + 20 * MS);
    assert_int_equal(tiers_transfer_wait_until(s.pool, last, NEVER), KVT_E_TIMEOUT);
    tiers_transfer_abandon(s.pool, last, count_released, &released);
    /* Cancelled ones leave the queue, though it is full of operations that hang. */
    for (uint32_t i = 0; i < TIERS_WORKER_JOBS; i++)
        tiers_transfer_abandon(s.pool, &reads[i], count_released, &released);
    while (atomic_load(&released) < TIERS_WORKER_JOBS / 2)
        nap();
    assert_true(atomic_load(&released) <= TIERS_WORKER_JOBS);
    tiers_fault_clear(s.device);
    await(&released, TIERS_WORKER_JOBS + 1);
    unresponsive_close(&s);
}

/* ---- timeout ---- */

TEST(a_unresponsive_member_is_retired_with_its_queue)
{
    unresponsive s;
    atomic_uint released = 0;
    tiers_transfer reads[OBJECTS];
    char *buffers = pool_scratch_buffer(8 * UNIT * OBJECTS);
    unresponsive_open(&s, 100 * MS);
    unresponsive_hang(&s, &hang_all);
    for (uint32_t i = 0; i < OBJECTS; i++) {
        reads[i] = unresponsive_read(s.both, buffers + 8 * UNIT * i);
        tiers_transfer_start(s.pool, &reads[i]);
    }
    for (uint32_t i = 0; i < OBJECTS; i++) {
        assert_int_equal(tiers_transfer_wait_until(s.pool, &reads[i], NEVER), KVT_E_GONE);
        tiers_transfer_abandon(s.pool, &reads[i], count_released, &released);
    }
    assert_int_equal(unresponsive_state(&s), KVT_DEVICE_GONE);
    uint64_t hung = unresponsive_hung(&s);
    assert_int_equal(tiers_pool_transfer(s.pool, KVT_IO_READ, s.both, s.buffer, 8 * UNIT),
                     KVT_E_GONE);
    assert_int_equal(unresponsive_hung(&s), hung); /* nothing more reaches it */
    assert_ok(tiers_pool_transfer(s.pool, KVT_IO_READ, s.first_only, s.buffer, TIERS_GRAIN_BYTES));
    kvt_device *device;
    assert_int_equal(tiers_pool_eject(s.pool, 1, &device), KVT_BUSY);
    tiers_fault_clear(s.device);
    await(&released, OBJECTS);
    /* It answers again: the device can be taken out, and put in again with what lies there. */
    while (tiers_pool_eject(s.pool, 1, &device) == KVT_BUSY)
        nap();
    assert_ptr_equal(device, s.device);
    tiers_member_options member = pool_scratch_member(device, 1e9);
    assert_ok(tiers_pool_insert(s.pool, 1, &member));
    assert_ok(tiers_pool_transfer(s.pool, KVT_IO_READ, s.both, s.buffer, 8 * UNIT));
    assert_true(pool_scratch_holds(s.buffer, 8 * UNIT, 5));
    tiers_pool_release(s.pool, s.both);
    tiers_pool_release(s.pool, s.first_only);
    assert_int_equal(pool_scratch_used(s.pool), 0);
    assert_true(tiers_pool_close(s.pool));
}

/* One operation never ends while all others do: the device is not unresponsive, but has lost it. */
TEST(a_lost_operation_retires_its_member)
{
    unresponsive s;
    atomic_uint released = 0;
    unresponsive_open(&s, 50 * MS);
    tiers_fault_rule once = hang_all;
    once.hits = 1;
    unresponsive_hang(&s, &once);
    char *buffer = pool_scratch_buffer(8 * UNIT);
    tiers_transfer lost = unresponsive_read(s.both, s.buffer);
    tiers_transfer_start(s.pool, &lost);
    while (unresponsive_hung(&s) == 0)
        nap();
    kvt_status status = KVT_OK;
    while (status == KVT_OK)
        status = tiers_pool_transfer(s.pool, KVT_IO_READ, s.both, buffer, 8 * UNIT);
    assert_int_equal(status, KVT_E_GONE);
    assert_int_equal(tiers_transfer_wait_until(s.pool, &lost, NEVER), KVT_E_GONE);
    tiers_transfer_abandon(s.pool, &lost, count_released, &released);
    tiers_fault_clear(s.device);
    await(&released, 1);
    unresponsive_close(&s);
}

/* A device that says busy has taken nothing, so its answers are no progress. No operation of a
 * device in virtual time is taken for lost; only the watch is left. */
TEST(a_busy_device_shows_no_progress)
{
    unresponsive s;
    atomic_uint released = 0;
    tiers_transfer reads[2];
    char *buffers = pool_scratch_buffer(16 * UNIT);
    unresponsive_open(&s, 100 * MS);
    s.device->facts.flags |= KVT_DEVICE_VIRTUAL_TIME;
    tiers_fault_rule once = hang_all;
    once.hits = 1;
    unresponsive_hang(&s, &once);
    const tiers_fault_rule busy = {.action = TIERS_FAULT_BUSY, .kinds = TIERS_FAULT_READS};
    assert_ok(tiers_fault_add(s.device, &busy));
    for (uint32_t i = 0; i < 2; i++) {
        reads[i] = unresponsive_read(s.both, buffers + 8 * UNIT * i);
        tiers_transfer_start(s.pool, &reads[i]);
    }
    for (uint32_t i = 0; i < 2; i++) {
        uint64_t deadline_ns =
            base_clock_ns() + UINT64_C(10000) * MS; /* is reached by a failure alone */
        assert_int_equal(tiers_transfer_wait_until(s.pool, &reads[i], deadline_ns), KVT_E_GONE);
        tiers_transfer_abandon(s.pool, &reads[i], count_released, &released);
    }
    assert_int_equal(unresponsive_state(&s), KVT_DEVICE_GONE);
    tiers_fault_clear(s.device);
    await(&released, 2);
    unresponsive_close(&s);
}

TEST(a_sync_that_hangs_ends_at_the_limit)
{
    unresponsive s;
    const tiers_fault_rule hang_syncs = {.action = TIERS_FAULT_HANG, .kinds = TIERS_FAULT_SYNCS};
    unresponsive_open(&s, 50 * MS);
    unresponsive_hang(&s, &hang_syncs);
    assert_int_equal(tiers_pool_sync(s.pool), KVT_E_GONE);
    assert_int_equal(unresponsive_state(&s), KVT_DEVICE_GONE);
    assert_ok(tiers_pool_sync(s.pool)); /* of the others */
    kvt_device *device;
    assert_int_equal(tiers_pool_eject(s.pool, 1, &device), KVT_BUSY);
    tiers_fault_clear(s.device);
    while (tiers_pool_eject(s.pool, 1, &device) == KVT_BUSY)
        nap();
    kvt_device_close(device);
    unresponsive_close(&s);
}

/* Some time after the sync has begun to wait for the operation. */
static void *retire_when_hung(void *context)
{
    unresponsive *s = context;
    while (unresponsive_hung(s) == 0)
        nap();
    for (int i = 0; i < 20; i++)
        nap();
    tiers_pool_retire(s->pool, 1);
    return NULL;
}

/* Its owner takes a member out of service that is to be synced: nothing has failed. */
TEST(a_sync_goes_on_without_a_member_that_is_retired)
{
    unresponsive s;
    pthread_t thread;
    unresponsive_open(&s, UINT64_MAX);
    unresponsive_hang(&s, &hang_all);
    tiers_transfer read = unresponsive_read(s.both, s.buffer);
    tiers_transfer_start(s.pool, &read);
    assert_int_equal(pthread_create(&thread, NULL, retire_when_hung, &s), 0);
    assert_ok(tiers_pool_sync(s.pool));
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(unresponsive_state(&s), KVT_DEVICE_GONE);
    tiers_fault_clear(s.device);
    (void)!tiers_transfer_wait(s.pool, &read); /* it may have come before the member went */
    unresponsive_close(&s);
}

/* ---- closing ---- */

/* The pool closes without its unresponsive member, whose operation ends much later, in memory that
 * is still there for it. */
TEST(close_abandons_an_unresponsive_member)
{
    unresponsive s;
    atomic_uint released = 0;
    unresponsive_open(&s, 50 * MS);
    unresponsive_hang(&s, &hang_all);
    tiers_transfer read = unresponsive_read(s.both, s.buffer);
    tiers_transfer_start(s.pool, &read);
    while (unresponsive_hung(&s) == 0)
        nap();
    assert_int_equal(tiers_transfer_wait_until(s.pool, &read, 0), KVT_E_TIMEOUT);
    tiers_transfer_abandon(s.pool, &read, count_released, &released);
    tiers_pool_forget(s.pool, s.both);
    tiers_pool_forget(s.pool, s.first_only);
    assert_false(tiers_pool_close(s.pool));
    assert_int_equal(released, 0);
    tiers_fault_clear(s.device);
    await(&released, 1);
}
