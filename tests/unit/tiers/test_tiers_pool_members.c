/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_tiers_pool_members.c - members that are drained, taken out, put back and added, alone and
 * while other threads use the pool; members that fail, are busy or go away, and the order of the
 * queues.
 */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "cases.h"
#include "fault_device.h"
#include "pool_scratch.h"

enum { UNIT = 16384, GRAIN = TIERS_GRAIN_BYTES };

static tiers_member_stats member_stats(tiers_pool *pool, uint32_t member)
{
    tiers_member_stats stats;
    assert_ok(tiers_pool_member(pool, member, &stats));
    return stats;
}

static tiers_pool *open_three(kvt_device **faulty)
{
    tiers_member_options members[3];
    tiers_pool_options options = {.unit_bytes = UNIT};
    tiers_pool *pool;
    assert_ok(tiers_fault_open(pool_scratch_memory(64 * UNIT), faulty));
    for (int i = 0; i < 3; i++) {
        kvt_device *device = i == 1 ? *faulty : pool_scratch_memory(64 * UNIT);
        members[i] = pool_scratch_member(device, 1e9);
    }
    assert_ok(tiers_pool_open(members, 3, &options, &pool, NULL, 0));
    return pool;
}

static uint64_t capacity_of(tiers_pool *pool)
{
    tiers_pool_facts facts;
    tiers_pool_facts_get(pool, &facts);
    return facts.capacity_bytes;
}

TEST(a_drained_member_leaves_empty_and_another_takes_its_place)
{
    kvt_device *faulty, *device;
    tiers_pool *pool = open_three(&faulty);
    tiers_location *old, *new;
    char *buffer = pool_scratch_buffer(12 * UNIT);
    assert_ok(tiers_pool_reserve(pool, 12 * UNIT, &old));
    assert_int_equal(share_of(old, 1), 4);
    pool_scratch_fill(buffer, 12 * UNIT, 5);
    assert_ok(tiers_pool_transfer(pool, KVT_IO_WRITE, old, buffer, 12 * UNIT));
    assert_int_equal(tiers_pool_eject(pool, 1, &device), KVT_BUSY); /* it serves */

    assert_ok(tiers_pool_drain(pool, 1, true));
    assert_int_equal(member_stats(pool, 1).state, KVT_DEVICE_DRAINING);
    assert_int_equal(capacity_of(pool), 128 * UNIT);
    assert_ok(tiers_pool_reserve(pool, 12 * UNIT, &new));
    assert_int_equal(share_of(new, 1), 0);
    memset(buffer, 0, 12 * UNIT);
    assert_ok(tiers_pool_transfer(pool, KVT_IO_READ, old, buffer, 12 * UNIT));
    assert_true(pool_scratch_holds(buffer, 12 * UNIT, 5));
    assert_int_equal(tiers_pool_eject(pool, 1, &device), KVT_BUSY); /* something lies there */
    tiers_pool_release(pool, old);
    assert_ok(tiers_pool_eject(pool, 1, &device));
    assert_ptr_equal(device, faulty);
    kvt_device_close(device);
    assert_int_equal(member_stats(pool, 1).state, KVT_DEVICE_ABSENT);
    assert_int_equal(tiers_pool_drain(pool, 1, false), KVT_E_GONE);
    assert_ok(tiers_pool_sync(pool));

    tiers_member_options larger = pool_scratch_member(pool_scratch_memory(100 * UNIT), 4e9);
    assert_ok(tiers_pool_insert(pool, 1, &larger));
    assert_int_equal(capacity_of(pool), 228 * UNIT);
    assert_int_equal(tiers_pool_insert(pool, 1, &larger), KVT_E_STATE);
    assert_ok(tiers_pool_reserve(pool, 12 * UNIT, &old));
    assert_int_equal(share_of(old, 1), 8);
    assert_ok(tiers_pool_transfer(pool, KVT_IO_WRITE, old, buffer, 12 * UNIT));
    tiers_pool_release(pool, old);
    tiers_pool_release(pool, new);
    tiers_pool_close(pool);
}

TEST(a_drain_can_be_called_off)
{
    kvt_device *faulty;
    tiers_pool *pool = open_three(&faulty);
    tiers_location *location;
    assert_ok(tiers_pool_drain(pool, 1, true));
    assert_ok(tiers_pool_drain(pool, 1, false));
    assert_int_equal(member_stats(pool, 1).state, KVT_DEVICE_SERVING);
    assert_ok(tiers_pool_reserve(pool, 3 * UNIT, &location));
    assert_int_equal(share_of(location, 1), 1);
    tiers_pool_release(pool, location);
    tiers_pool_close(pool);
}

TEST(objects_come_back_with_their_device)
{
    kvt_device *faulty, *device;
    tiers_pool *pool = open_three(&faulty);
    tiers_location *location;
    char *buffer = pool_scratch_buffer(12 * UNIT);
    assert_ok(tiers_pool_reserve(pool, 12 * UNIT, &location));
    pool_scratch_fill(buffer, 12 * UNIT, 8);
    assert_ok(tiers_pool_transfer(pool, KVT_IO_WRITE, location, buffer, 12 * UNIT));
    tiers_fault_set_gone(faulty, true);
    assert_int_equal(tiers_pool_transfer(pool, KVT_IO_READ, location, buffer, 12 * UNIT),
                     KVT_E_GONE);
    assert_int_equal(member_stats(pool, 1).state, KVT_DEVICE_GONE);
    assert_ok(tiers_pool_eject(pool, 1, &device));
    assert_int_equal(member_stats(pool, 1).state, KVT_DEVICE_GONE);
    assert_int_equal(member_stats(pool, 1).used_bytes, 4 * UNIT);
    assert_int_equal(tiers_pool_transfer(pool, KVT_IO_READ, location, buffer, 12 * UNIT),
                     KVT_E_GONE);
    tiers_member_options other = pool_scratch_member(pool_scratch_memory(65 * UNIT), 1e9);
    assert_int_equal(tiers_pool_insert(pool, 1, &other), KVT_E_MISMATCH);
    kvt_device_close(other.device);

    tiers_fault_set_gone(faulty, false);
    tiers_member_options back = pool_scratch_member(device, 1e9);
    assert_ok(tiers_pool_insert(pool, 1, &back));
    memset(buffer, 0, 12 * UNIT);
    assert_ok(tiers_pool_transfer(pool, KVT_IO_READ, location, buffer, 12 * UNIT));
    assert_true(pool_scratch_holds(buffer, 12 * UNIT, 8));
    tiers_pool_release(pool, location);
    assert_int_equal(pool_scratch_used(pool), 0);
    tiers_pool_close(pool);
}

TEST(a_pool_grows)
{
    kvt_device *faulty;
    tiers_pool *pool = open_three(&faulty);
    for (uint32_t i = 3; i < TIERS_MEMBERS_MAX; i++) {
        tiers_member_options more = pool_scratch_member(pool_scratch_memory(4 * UNIT), 1e9);
        assert_ok(tiers_pool_insert(pool, i, &more));
    }
    assert_int_equal(capacity_of(pool), (3 * 64 + 61 * 4) * UNIT);
    tiers_member_options more = pool_scratch_member(pool_scratch_memory(4 * UNIT), 1e9);
    assert_int_equal(tiers_pool_insert(pool, TIERS_MEMBERS_MAX, &more), KVT_E_ARGUMENT);
    kvt_device_close(more.device);
    tiers_location *location;
    assert_ok(tiers_pool_reserve(pool, 64 * UNIT, &location));
    assert_int_equal(location->share_count, 64);
    tiers_pool_release(pool, location);
    tiers_pool_close(pool);
}

/* ---- wear ---- */

TEST(a_days_budget_is_a_bucket)
{
    const uint64_t day_ns = UINT64_C(86400) * 1000000000, start = UINT64_C(1700000000) * 1000000000;
    tiers_wear wear = {.budget_bytes_per_day = 1000};
    tiers_wear_advance(&wear, start, 0);
    assert_true(wear.left_bytes == 1000);
    tiers_wear_advance(&wear, start, 600);
    assert_false(tiers_wear_is_spent(&wear));
    tiers_wear_advance(&wear, start, 900); /* what was on its way overdraws it */
    assert_true(tiers_wear_is_spent(&wear));
    tiers_wear_advance(&wear, start + day_ns / 4, 0);
    assert_true(tiers_wear_is_spent(&wear)); /* 250 of a debt of 500 */
    tiers_wear_advance(&wear, start + day_ns * 3 / 4, 0);
    assert_true(wear.left_bytes > 249 && wear.left_bytes < 251);
    tiers_wear_advance(&wear, start, 0); /* the clock was set back: nothing is earned */
    tiers_wear_advance(&wear, start + 1, 0);
    assert_true(wear.left_bytes > 249 && wear.left_bytes < 251);
    tiers_wear_advance(&wear, start + 30 * day_ns, 0);
    assert_true(wear.left_bytes == 1000);
    assert_int_equal(wear.written_bytes, 1500);
    wear.budget_bytes_per_day = 0;
    tiers_wear_advance(&wear, start + 31 * day_ns, 1 << 30);
    assert_false(tiers_wear_is_spent(&wear));
}

TEST(a_spent_member_takes_no_new_units)
{
    tiers_member_options members[2];
    tiers_pool_options options = {.unit_bytes = UNIT};
    tiers_pool *pool;
    tiers_location *first, *second, *third;
    char *buffer = pool_scratch_buffer(8 * UNIT);
    for (int i = 0; i < 2; i++) {
        members[i] = pool_scratch_member(pool_scratch_memory(64 * UNIT), 1e9);
        members[i].wear.budget_bytes_per_day = i == 0 ? 2 * UNIT : 8 * UNIT;
        members[i].wear.written_bytes = 100;
    }
    assert_ok(tiers_pool_open(members, 2, &options, &pool, NULL, 0));
    assert_ok(tiers_pool_reserve(pool, 8 * UNIT, &first));
    assert_int_equal(share_of(first, 0), 4);
    assert_ok(tiers_pool_transfer(pool, KVT_IO_WRITE, first, buffer, 8 * UNIT));
    assert_true(member_stats(pool, 0).wear.left_bytes <= 0);
    assert_true(member_stats(pool, 1).wear.left_bytes >= 4 * UNIT);
    assert_int_equal(member_stats(pool, 0).wear.written_bytes, 100 + 4 * UNIT);
    assert_ok(tiers_pool_reserve(pool, 8 * UNIT, &second));
    assert_int_equal(share_of(second, 0), 0);
    assert_ok(tiers_pool_transfer(pool, KVT_IO_WRITE, second, buffer, 8 * UNIT));
    assert_int_equal(tiers_pool_reserve(pool, UNIT, &third), KVT_E_SPACE); /* both are spent */
    assert_ok(tiers_pool_transfer(pool, KVT_IO_READ, first, buffer, 8 * UNIT));
    tiers_pool_release(pool, first);
    tiers_pool_release(pool, second);
    tiers_pool_close(pool);
}

/* ---- while others use it ---- */

typedef struct crowd {
    tiers_pool *pool;
    atomic_bool stop;
    atomic_int wrong;
    atomic_int finished;
    atomic_int gone;
} crowd;

static bool crowd_expects(crowd *c, kvt_status status)
{
    if (status == KVT_E_GONE) atomic_fetch_add(&c->gone, 1);
    if (status != KVT_OK && status != KVT_E_GONE && status != KVT_E_SPACE)
        atomic_fetch_add(&c->wrong, 1);
    return status == KVT_OK;
}

static void *crowd_use(void *argument)
{
    crowd *c = argument;
    char *buffer = pool_scratch_buffer(20 * UNIT);
    uint64_t seed = (uint64_t)(uintptr_t)buffer | 1;
    while (!atomic_load(&c->stop)) {
        tiers_location *location;
        uint64_t fill = pool_scratch_random(&seed);
        uint64_t bytes = (1 + fill % 19) * UNIT;
        if (!crowd_expects(c, tiers_pool_reserve(c->pool, bytes, &location))) continue;
        pool_scratch_fill(buffer, bytes, fill);
        bool whole =
            crowd_expects(c, tiers_pool_transfer(c->pool, KVT_IO_WRITE, location, buffer, bytes));
        for (int i = 0; i < 4 && whole; i++) {
            memset(buffer, 0, bytes);
            bool read = crowd_expects(
                c, tiers_pool_transfer(c->pool, KVT_IO_READ, location, buffer, bytes));
            if (read && !pool_scratch_holds(buffer, bytes, fill)) atomic_fetch_add(&c->wrong, 1);
        }
        crowd_expects(c, fill % 8 == 0 ? tiers_pool_sync(c->pool) : KVT_OK);
        tiers_pool_release(c->pool, location);
        atomic_fetch_add(&c->finished, 1);
    }
    return NULL;
}

static void crowd_wait(crowd *c, int objects)
{
    int until = atomic_load(&c->finished) + objects;
    while (atomic_load(&c->finished) < until)
        sched_yield();
}

TEST(members_come_and_go_while_serving)
{
    enum { THREADS = 3, ROUNDS = 40 };
    kvt_device *faulty, *device;
    crowd c = {.pool = open_three(&faulty)};
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, crowd_use, &c), 0);
    for (int round = 0; round < ROUNDS; round++) {
        bool vanish = round % 2 == 0;
        crowd_wait(&c, 8);
        if (vanish) tiers_fault_set_gone(faulty, true);
        if (round % 4 == 2) tiers_pool_retire(c.pool, 1);
        if (!vanish) assert_ok(tiers_pool_drain(c.pool, 1, true));
        while (tiers_pool_eject(c.pool, 1, &device) != KVT_OK)
            sched_yield();
        assert_ptr_equal(device, faulty);
        crowd_wait(&c, 4);
        tiers_fault_set_gone(faulty, false);
        tiers_member_options back = pool_scratch_member(device, 1e9 * (1 + round % 3));
        assert_ok(tiers_pool_insert(c.pool, 1, &back));
    }
    atomic_store(&c.stop, true);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(atomic_load(&c.wrong), 0);
    assert_int_equal(pool_scratch_used(c.pool), 0);
    tiers_pool_close(c.pool);
}

/* ---- failures ---- */

typedef struct faulty {
    tiers_pool *pool;
    kvt_device *device; /* the second member */
    tiers_location *both;
    tiers_location *first_only;
    char *buffer;
} faulty;

static void faulty_open(faulty *f)
{
    const uint64_t bytes = 64 * UNIT;
    tiers_member_options members[2];
    tiers_pool_options options = {.unit_bytes = UNIT};
    assert_ok(tiers_fault_open(pool_scratch_memory(bytes), &f->device));
    members[0] = pool_scratch_member(pool_scratch_memory(bytes), 2e9);
    members[1] = pool_scratch_member(f->device, 1e9);
    assert_ok(tiers_pool_open(members, 2, &options, &f->pool, NULL, 0));
    assert_ok(tiers_pool_reserve(f->pool, GRAIN, &f->first_only));
    assert_int_equal(share_of(f->first_only, 0), 1);
    assert_ok(tiers_pool_reserve(f->pool, 30 * UNIT, &f->both));
    assert_int_equal(share_of(f->both, 1), 10);
    f->buffer = pool_scratch_buffer(30 * UNIT);
    pool_scratch_fill(f->buffer, 30 * UNIT, 3);
}

static void faulty_close(faulty *f)
{
    tiers_pool_release(f->pool, f->both);
    tiers_pool_release(f->pool, f->first_only);
    tiers_pool_close(f->pool);
}

static kvt_status faulty_move(faulty *f, kvt_io_kind kind, const tiers_location *location)
{
    return tiers_pool_transfer(f->pool, kind, location, f->buffer, location->bytes);
}

static bool faulty_retired(faulty *f)
{
    tiers_member_stats stats;
    assert_ok(tiers_pool_member(f->pool, 1, &stats));
    return stats.state == KVT_DEVICE_GONE;
}

TEST(an_io_error_fails_its_transfer_alone)
{
    const kvt_status statuses[] = {KVT_E_IO, KVT_E_SPACE, KVT_E_READ_ONLY};
    faulty f;
    faulty_open(&f);
    for (int i = 0; i < 3; i++) {
        tiers_fault_rule rule = {.action = TIERS_FAULT_FAIL,
                                 .kinds = TIERS_FAULT_WRITES,
                                 .skip = 3,
                                 .hits = 1,
                                 .status = statuses[i],
                                 .os_error = EIO};
        assert_ok(tiers_fault_add(f.device, &rule));
        assert_int_equal(faulty_move(&f, KVT_IO_WRITE, f.both), statuses[i]);
        tiers_fault_clear(f.device);
        assert_ok(faulty_move(&f, KVT_IO_WRITE, f.both));
    }
    assert_false(faulty_retired(&f));
    memset(f.buffer, 0, 30 * UNIT);
    assert_ok(faulty_move(&f, KVT_IO_READ, f.both));
    assert_true(pool_scratch_holds(f.buffer, 30 * UNIT, 3));
    faulty_close(&f);
}

TEST(a_member_that_goes_is_retired_and_others_serve)
{
    faulty f;
    tiers_location *later;
    faulty_open(&f);
    assert_ok(faulty_move(&f, KVT_IO_WRITE, f.both));
    tiers_fault_set_gone(f.device, true);
    assert_int_equal(faulty_move(&f, KVT_IO_READ, f.both), KVT_E_GONE);
    assert_true(faulty_retired(&f));
    tiers_fault_set_gone(f.device, false); /* retired for good, whatever the device says */
    assert_int_equal(faulty_move(&f, KVT_IO_READ, f.both), KVT_E_GONE);
    assert_ok(faulty_move(&f, KVT_IO_WRITE, f.first_only));
    assert_ok(faulty_move(&f, KVT_IO_READ, f.first_only));
    assert_ok(tiers_pool_sync(f.pool));
    assert_ok(tiers_pool_reserve(f.pool, 12 * UNIT, &later));
    assert_int_equal(share_of(later, 0), 12);
    tiers_pool_release(f.pool, later);
    tiers_pool_facts facts;
    tiers_pool_facts_get(f.pool, &facts);
    assert_int_equal(facts.capacity_bytes, 64 * UNIT);
    faulty_close(&f);
}

TEST(retire_by_hand)
{
    faulty f;
    faulty_open(&f);
    tiers_pool_retire(f.pool, 1);
    assert_int_equal(faulty_move(&f, KVT_IO_READ, f.both), KVT_E_GONE);
    assert_ok(faulty_move(&f, KVT_IO_READ, f.first_only));
    faulty_close(&f);
}

TEST(a_busy_device_is_asked_again)
{
    faulty f;
    faulty_open(&f);
    tiers_fault_rule rule = {.action = TIERS_FAULT_BUSY,
                             .kinds = TIERS_FAULT_READS | TIERS_FAULT_WRITES,
                             .skip = 1,
                             .hits = 5};
    assert_ok(tiers_fault_add(f.device, &rule));
    assert_ok(faulty_move(&f, KVT_IO_WRITE, f.both));
    tiers_fault_counts counts;
    tiers_fault_counts_get(f.device, &counts);
    assert_int_equal(counts.hits, 5);
    memset(f.buffer, 0, 30 * UNIT);
    assert_ok(faulty_move(&f, KVT_IO_READ, f.both));
    assert_true(pool_scratch_holds(f.buffer, 30 * UNIT, 3));
    faulty_close(&f);
}

TEST(sync_reports_and_reaches_each_member)
{
    faulty f;
    tiers_fault_counts counts;
    faulty_open(&f);
    assert_ok(tiers_pool_sync(f.pool));
    tiers_fault_counts_get(f.device, &counts);
    assert_int_equal(counts.syncs, 1);
    tiers_fault_rule rule = {.action = TIERS_FAULT_FAIL,
                             .kinds = TIERS_FAULT_SYNCS,
                             .hits = 1,
                             .status = KVT_E_IO,
                             .os_error = EIO};
    assert_ok(tiers_fault_add(f.device, &rule));
    assert_int_equal(tiers_pool_sync(f.pool), KVT_E_IO);
    assert_ok(tiers_pool_sync(f.pool));
    faulty_close(&f);
}

/* ---- queue order ---- */

/* A device whose first operation waits for a gate and that writes down the order of kinds. */
typedef struct gate_device {
    kvt_device base;
    sem_t arrived;
    sem_t open;
    uint32_t count;
    kvt_io_kind kinds[512];
} gate_device;

static void gate_close(kvt_device *device)
{
    (void)device; /* the test looks into it afterwards */
}

static kvt_status gate_submit(kvt_device *device, kvt_io *io)
{
    gate_device *gate = (gate_device *)device;
    if (gate->count == 0) {
        sem_post(&gate->arrived);
        while (sem_wait(&gate->open) != 0)
            continue;
    }
    gate->kinds[gate->count++] = io->kind;
    io->status = KVT_OK;
    return KVT_OK;
}

static const kvt_device_ops gate_ops = {.struct_size = sizeof(kvt_device_ops),
                                        .abi_version = KVT_DEVICE_ABI,
                                        .name = "gate",
                                        .close = gate_close,
                                        .submit = gate_submit};

TEST(reads_go_first_but_do_not_starve_writes)
{
    enum { PIECES = 64 };
    gate_device *gate = calloc(1, sizeof *gate);
    gate->base = (kvt_device){.ops = &gate_ops,
                              .facts = {.capacity_bytes = 16 << 20,
                                        .align_bytes = 512,
                                        .request_bytes_max = GRAIN,
                                        .depth_max = 1}};
    sem_init(&gate->arrived, 0, 0);
    sem_init(&gate->open, 0, 0);
    tiers_member_options member = pool_scratch_member(&gate->base, 1e9);
    tiers_pool_options options = {.unit_bytes = UNIT};
    tiers_pool *pool;
    tiers_location *location;
    assert_ok(tiers_pool_open(&member, 1, &options, &pool, NULL, 0));
    assert_ok(tiers_pool_reserve(pool, PIECES * GRAIN, &location));
    char *buffer = pool_scratch_buffer(2 * PIECES * GRAIN);
    tiers_transfer write = {
        .kind = KVT_IO_WRITE, .location = location, .buffer = buffer, .bytes = PIECES * GRAIN};
    tiers_transfer read = write;
    read.kind = KVT_IO_READ;
    read.buffer = buffer + PIECES * GRAIN;
    tiers_transfer_start(pool, &write);
    while (sem_wait(&gate->arrived) != 0)
        continue;
    tiers_transfer_start(pool, &read);
    sem_post(&gate->open);
    assert_ok(tiers_transfer_wait(pool, &read));
    assert_ok(tiers_transfer_wait(pool, &write));
    tiers_pool_release(pool, location);
    tiers_pool_close(pool);
    assert_int_equal(gate->count, 2 * PIECES);
    /* One write that was first, then 15 reads and a write in turn until the reads are done. */
    for (uint32_t i = 1; i <= 64; i++)
        assert_int_equal(gate->kinds[i], i % 16 == 0 ? KVT_IO_WRITE : KVT_IO_READ);
    sem_destroy(&gate->arrived);
    sem_destroy(&gate->open);
    free(gate);
}
