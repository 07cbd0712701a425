/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_tiers_pool_faults.c - members that fail, are busy or go away, and the order of the queues.
 */

#include <errno.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>

#include "cases.h"
#include "pool_scratch.h"
#include "tiers/devices/device_fault.h"

enum { UNIT = 16384, GRAIN = TIERS_GRAIN_BYTES };

static uint32_t share_of(const tiers_location *location, uint32_t member)
{
    for (uint32_t i = 0; i < location->share_count; i++)
        if (location->shares[i].member == member) return location->shares[i].units;
    return 0;
}

/* ---- members that fail ---- */

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
    assert_int_equal(tiers_fault_open(pool_scratch_memory(bytes), &f->device), KVT_OK);
    members[0] = pool_scratch_member(pool_scratch_memory(bytes), 2e9);
    members[1] = pool_scratch_member(f->device, 1e9);
    assert_int_equal(tiers_pool_open(members, 2, &options, &f->pool, NULL, 0), KVT_OK);
    assert_int_equal(tiers_pool_reserve(f->pool, GRAIN, &f->first_only), KVT_OK);
    assert_int_equal(share_of(f->first_only, 0), 1);
    assert_int_equal(tiers_pool_reserve(f->pool, 30 * UNIT, &f->both), KVT_OK);
    assert_int_equal(share_of(f->both, 1), 10);
    f->buffer = pool_scratch_buffer(30 * UNIT);
    pool_scratch_fill(f->buffer, 30 * UNIT, 3);
}

static void faulty_close(faulty *f)
{
    tiers_pool_release(f->pool, f->both);
    tiers_pool_release(f->pool, f->first_only);
    tiers_pool_close(f->pool);
    free(f->buffer);
}

static kvt_status faulty_move(faulty *f, kvt_io_kind kind, const tiers_location *location)
{
    return tiers_pool_transfer(f->pool, kind, location, f->buffer, location->bytes);
}

static bool faulty_retired(faulty *f)
{
    tiers_member_stats stats;
    assert_int_equal(tiers_pool_member(f->pool, 1, &stats), KVT_OK);
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
        assert_int_equal(tiers_fault_add(f.device, &rule), KVT_OK);
        assert_int_equal(faulty_move(&f, KVT_IO_WRITE, f.both), statuses[i]);
        tiers_fault_clear(f.device);
        assert_int_equal(faulty_move(&f, KVT_IO_WRITE, f.both), KVT_OK);
    }
    assert_false(faulty_retired(&f));
    memset(f.buffer, 0, 30 * UNIT);
    assert_int_equal(faulty_move(&f, KVT_IO_READ, f.both), KVT_OK);
    assert_true(pool_scratch_holds(f.buffer, 30 * UNIT, 3));
    faulty_close(&f);
}

TEST(a_member_that_goes_is_retired_and_others_serve)
{
    faulty f;
    tiers_location *later;
    faulty_open(&f);
    assert_int_equal(faulty_move(&f, KVT_IO_WRITE, f.both), KVT_OK);
    tiers_fault_set_gone(f.device, true);
    assert_int_equal(faulty_move(&f, KVT_IO_READ, f.both), KVT_E_GONE);
    assert_true(faulty_retired(&f));
    tiers_fault_set_gone(f.device, false); /* retired for good, whatever the device says */
    assert_int_equal(faulty_move(&f, KVT_IO_READ, f.both), KVT_E_GONE);
    assert_int_equal(faulty_move(&f, KVT_IO_WRITE, f.first_only), KVT_OK);
    assert_int_equal(faulty_move(&f, KVT_IO_READ, f.first_only), KVT_OK);
    assert_int_equal(tiers_pool_sync(f.pool), KVT_OK);
    assert_int_equal(tiers_pool_reserve(f.pool, 12 * UNIT, &later), KVT_OK);
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
    assert_int_equal(faulty_move(&f, KVT_IO_READ, f.first_only), KVT_OK);
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
    assert_int_equal(tiers_fault_add(f.device, &rule), KVT_OK);
    assert_int_equal(faulty_move(&f, KVT_IO_WRITE, f.both), KVT_OK);
    tiers_fault_counts counts;
    tiers_fault_counts_get(f.device, &counts);
    assert_int_equal(counts.hits, 5);
    memset(f.buffer, 0, 30 * UNIT);
    assert_int_equal(faulty_move(&f, KVT_IO_READ, f.both), KVT_OK);
    assert_true(pool_scratch_holds(f.buffer, 30 * UNIT, 3));
    faulty_close(&f);
}

TEST(sync_reports_and_reaches_each_member)
{
    faulty f;
    tiers_fault_counts counts;
    faulty_open(&f);
    assert_int_equal(tiers_pool_sync(f.pool), KVT_OK);
    tiers_fault_counts_get(f.device, &counts);
    assert_int_equal(counts.syncs, 1);
    tiers_fault_rule rule = {.action = TIERS_FAULT_FAIL,
                             .kinds = TIERS_FAULT_SYNCS,
                             .hits = 1,
                             .status = KVT_E_IO,
                             .os_error = EIO};
    assert_int_equal(tiers_fault_add(f.device, &rule), KVT_OK);
    assert_int_equal(tiers_pool_sync(f.pool), KVT_E_IO);
    assert_int_equal(tiers_pool_sync(f.pool), KVT_OK);
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
    assert_int_equal(tiers_pool_open(&member, 1, &options, &pool, NULL, 0), KVT_OK);
    assert_int_equal(tiers_pool_reserve(pool, PIECES * GRAIN, &location), KVT_OK);
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
    assert_int_equal(tiers_transfer_wait(pool, &read), KVT_OK);
    assert_int_equal(tiers_transfer_wait(pool, &write), KVT_OK);
    tiers_pool_release(pool, location);
    tiers_pool_close(pool);
    assert_int_equal(gate->count, 2 * PIECES);
    /* One write that was first, then 15 reads and a write in turn until the reads are done. */
    for (uint32_t i = 1; i <= 64; i++)
        assert_int_equal(gate->kinds[i], i % 16 == 0 ? KVT_IO_WRITE : KVT_IO_READ);
    sem_destroy(&gate->arrived);
    sem_destroy(&gate->open);
    free(buffer);
    free(gate);
}
