/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_tiers_device_fault.c - each fault hits exactly the operations that its rule names.
 */
#include "device_scratch.h"

#include "fault_device.h"
#include <errno.h>
#include <pthread.h>

enum { BLOCK = 4096, CAPACITY = 64 * BLOCK };

typedef struct fixture {
    kvt_device *device;
    unsigned char *buffer;
} fixture;

static fixture fixture_make(void)
{
    fixture made;
    kvt_device_config config = scratch_memory(CAPACITY);
    kvt_device *memory = scratch_open(&config);
    assert_ok(tiers_fault_open(memory, &made.device));
    made.buffer = scratch_buffer(CAPACITY);
    return made;
}

static void fixture_free(fixture *made)
{
    kvt_device_close(made->device);
}

static void add(const fixture *made, tiers_fault_rule rule)
{
    assert_ok(tiers_fault_add(made->device, &rule));
}

static kvt_status move(const fixture *made, kvt_io_kind kind, uint32_t block)
{
    return kvt_device_transfer(made->device, kind, (uint64_t)block * BLOCK, made->buffer, BLOCK);
}

TEST(nth)
{
    fixture made = fixture_make();
    tiers_fault_counts counts;
    add(&made, (tiers_fault_rule){.action = TIERS_FAULT_FAIL,
                                  .kinds = TIERS_FAULT_WRITES,
                                  .skip = 2,
                                  .hits = 2,
                                  .status = KVT_E_SPACE,
                                  .os_error = ENOSPC});
    for (uint32_t i = 0; i < 6; i++) {
        kvt_status expected = i == 2 || i == 3 ? KVT_E_SPACE : KVT_OK;
        assert_ok(move(&made, KVT_IO_READ, i));
        assert_int_equal(move(&made, KVT_IO_WRITE, i), expected);
    }
    assert_ok(kvt_device_sync(made.device));
    tiers_fault_counts_get(made.device, &counts);
    assert_int_equal(counts.reads, 6);
    assert_int_equal(counts.writes, 6);
    assert_int_equal(counts.syncs, 1);
    assert_int_equal(counts.hits, 2);
    fixture_free(&made);
}

TEST(range)
{
    fixture made = fixture_make();
    add(&made, (tiers_fault_rule){.action = TIERS_FAULT_FAIL,
                                  .kinds = TIERS_FAULT_READS | TIERS_FAULT_WRITES,
                                  .offset = 3 * BLOCK + 100,
                                  .bytes = BLOCK,
                                  .status = KVT_E_IO,
                                  .os_error = EIO});
    for (uint32_t i = 0; i < 8; i++) {
        kvt_status expected = i == 3 || i == 4 ? KVT_E_IO : KVT_OK;
        assert_int_equal(move(&made, KVT_IO_READ, i), expected);
        assert_int_equal(move(&made, KVT_IO_WRITE, i), expected);
    }
    tiers_fault_clear(made.device);
    assert_ok(move(&made, KVT_IO_READ, 3));
    fixture_free(&made);
}

/* A failed write leaves what was there, and a failed read leaves the buffer. */
TEST(fail_moves_nothing)
{
    fixture made = fixture_make();
    memset(made.buffer, 1, BLOCK);
    assert_ok(move(&made, KVT_IO_WRITE, 0));
    add(&made, (tiers_fault_rule){.action = TIERS_FAULT_FAIL,
                                  .kinds = TIERS_FAULT_READS | TIERS_FAULT_WRITES,
                                  .hits = 2,
                                  .status = KVT_E_IO});
    memset(made.buffer, 2, BLOCK);
    assert_int_equal(move(&made, KVT_IO_WRITE, 0), KVT_E_IO);
    assert_int_equal(move(&made, KVT_IO_READ, 0), KVT_E_IO);
    assert_int_equal(made.buffer[0], 2);
    assert_ok(move(&made, KVT_IO_READ, 0));
    assert_int_equal(made.buffer[0], 1);
    fixture_free(&made);
}

TEST(flip)
{
    fixture made = fixture_make();
    memset(made.buffer, 0, BLOCK);
    assert_ok(move(&made, KVT_IO_WRITE, 5));
    add(&made, (tiers_fault_rule){.action = TIERS_FAULT_FLIP,
                                  .kinds = TIERS_FAULT_READS,
                                  .skip = 1,
                                  .hits = 1,
                                  .flip_bit = UINT64_C(8) * BLOCK + 8 * 77 + 3});
    for (int pass = 0; pass < 3; pass++) {
        assert_ok(move(&made, KVT_IO_READ, 5));
        for (int i = 0; i < BLOCK; i++) {
            assert_int_equal(made.buffer[i], pass == 1 && i == 77 ? 8 : 0);
        }
    }
    fixture_free(&made);
}

TEST(tear)
{
    fixture made = fixture_make();
    memset(made.buffer, 1, BLOCK);
    assert_ok(move(&made, KVT_IO_WRITE, 0));
    assert_ok(move(&made, KVT_IO_WRITE, 1));
    add(&made, (tiers_fault_rule){.action = TIERS_FAULT_TEAR,
                                  .kinds = TIERS_FAULT_WRITES,
                                  .hits = 1,
                                  .torn_bytes = 1000}); /* 960 is the last multiple of 64 */
    add(&made, (tiers_fault_rule){.action = TIERS_FAULT_TEAR,
                                  .kinds = TIERS_FAULT_WRITES,
                                  .hits = 1,
                                  .status = KVT_E_IO});
    memset(made.buffer, 2, BLOCK);
    assert_ok(move(&made, KVT_IO_WRITE, 0));                  /* a lie, as after a power cut */
    assert_int_equal(move(&made, KVT_IO_WRITE, 1), KVT_E_IO); /* nothing at all */
    assert_ok(move(&made, KVT_IO_READ, 0));
    for (int i = 0; i < BLOCK; i++)
        assert_int_equal(made.buffer[i], i < 960 ? 2 : 1);
    assert_ok(move(&made, KVT_IO_READ, 1));
    for (int i = 0; i < BLOCK; i++)
        assert_int_equal(made.buffer[i], 1);
    fixture_free(&made);
}

TEST(busy)
{
    fixture made = fixture_make();
    add(&made,
        (tiers_fault_rule){.action = TIERS_FAULT_BUSY, .kinds = TIERS_FAULT_READS, .hits = 2});
    kvt_io io = {.kind = KVT_IO_READ, .bytes = BLOCK, .buffer = made.buffer, .status = 77};
    assert_int_equal(kvt_device_submit(made.device, &io), KVT_BUSY);
    assert_int_equal(io.status, 77);
    assert_int_equal(io.state, KVT_IO_IDLE);
    assert_ok(move(&made, KVT_IO_READ, 0)); /* transfer tries again */
    tiers_fault_counts counts;
    tiers_fault_counts_get(made.device, &counts);
    assert_int_equal(counts.hits, 2);
    assert_int_equal(counts.reads, 1);
    fixture_free(&made);
}

TEST(delay)
{
    fixture made = fixture_make();
    add(&made, (tiers_fault_rule){.action = TIERS_FAULT_DELAY,
                                  .kinds = TIERS_FAULT_READS,
                                  .hits = 1,
                                  .delay_ns = 20000000});
    kvt_io io = {.kind = KVT_IO_READ, .bytes = BLOCK, .buffer = made.buffer};
    kvt_io *done;
    assert_int_equal(kvt_device_submit(made.device, &io), KVT_QUEUED);
    assert_int_equal(kvt_device_reap(made.device, &done, 1, 1, UINT64_MAX), 1);
    assert_ok(io.status);
    assert_true(io.finished_ns >= io.submitted_ns + 20000000);
    fixture_free(&made);
}

TEST(gone)
{
    fixture made = fixture_make();
    add(&made, (tiers_fault_rule){.action = TIERS_FAULT_DELAY,
                                  .kinds = TIERS_FAULT_READS,
                                  .hits = 1,
                                  .delay_ns = 1000000});
    kvt_io io = {.kind = KVT_IO_READ, .bytes = BLOCK, .buffer = made.buffer};
    kvt_io *done;
    assert_int_equal(kvt_device_submit(made.device, &io), KVT_QUEUED);
    tiers_fault_set_gone(made.device, true);
    assert_int_equal(kvt_device_reap(made.device, &done, 1, 1, UINT64_MAX), 1);
    assert_int_equal(io.status, KVT_E_GONE); /* was in flight */
    assert_int_equal(move(&made, KVT_IO_READ, 0), KVT_E_GONE);
    assert_int_equal(move(&made, KVT_IO_WRITE, 0), KVT_E_GONE);
    assert_int_equal(kvt_device_sync(made.device), KVT_E_GONE);
    tiers_fault_set_gone(made.device, false);
    assert_ok(move(&made, KVT_IO_READ, 0));
    fixture_free(&made);
}

TEST(sync_fails)
{
    fixture made = fixture_make();
    add(&made, (tiers_fault_rule){.action = TIERS_FAULT_FAIL,
                                  .kinds = TIERS_FAULT_SYNCS,
                                  .skip = 1,
                                  .hits = 1,
                                  .status = KVT_E_IO});
    assert_ok(kvt_device_sync(made.device));
    assert_int_equal(kvt_device_sync(made.device), KVT_E_IO);
    assert_ok(kvt_device_sync(made.device));
    fixture_free(&made);
}

TEST(rules_are_bounded)
{
    fixture made = fixture_make();
    const tiers_fault_rule rule = {.action = TIERS_FAULT_BUSY, .kinds = TIERS_FAULT_READS};
    for (int i = 0; i < TIERS_FAULT_RULES_MAX; i++)
        add(&made, rule);
    assert_int_equal(tiers_fault_add(made.device, &rule), KVT_E_SPACE);
    fixture_free(&made);
}

static void *breaks_and_heals(void *argument)
{
    for (int i = 0; i < 2000; i++)
        tiers_fault_set_gone(argument, i % 2 == 0);
    return NULL;
}

/* Another thread changes the faults while operations run; every status is one of the two. */
TEST(changes_while_running)
{
    fixture made = fixture_make();
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, breaks_and_heals, made.device), 0);
    for (uint32_t i = 0; i < 2000; i++) {
        kvt_status status = move(&made, KVT_IO_READ, i % 64);
        assert_true(status == KVT_OK || status == KVT_E_GONE);
    }
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_ok(move(&made, KVT_IO_READ, 0));
    fixture_free(&made);
}
