/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_tiers_device_throttle.c - the throttle is never faster than its caps, keeps order, statuses
 * and facts. Only lower bounds of time are judged: a busy machine may be slower. The sim device's
 * clock follows its model to the nanosecond.
 */
#include "base/clock.h"
#include "device_scratch.h"

#include "fault_device.h"
#include <errno.h>
#include <tiers/devices/device_internal.h>

enum { BLOCK = 65536, CAPACITY = 1 << 20 };

static kvt_device *throttle_make(uint64_t read_bytes_per_s, uint64_t write_bytes_per_s,
                                 uint64_t latency_ns, uint32_t depth)
{
    kvt_device_config config = scratch_memory(CAPACITY);
    config.read_bytes_per_s = read_bytes_per_s;
    config.write_bytes_per_s = write_bytes_per_s;
    config.latency_ns = latency_ns;
    config.depth = depth;
    return scratch_open(&config);
}

/* The memory device's own name goes on with what this machine gives it. */
static void expect_engine(const kvt_device *device, const char *tail)
{
    const char *engine = device->facts.engine;
    assert_int_equal(strncmp(engine, "memcpy", 6), 0);
    assert_true(strlen(engine) >= 6 + strlen(tail));
    assert_string_equal(engine + strlen(engine) - strlen(tail), tail);
}

/* Around a sim device, which is always done long before the due time on any machine, however busy:
 * so finish times are exactly what the throttle computes. */
static kvt_device *throttle_exact(uint64_t read_bytes_per_s, uint64_t latency_ns, uint32_t depth)
{
    kvt_device_config config = scratch_memory(CAPACITY);
    config.backend = "sim";
    config.read_bytes_per_s = config.write_bytes_per_s = 1000000000u;
    kvt_device *sim = scratch_open(&config);
    kvt_device *device = NULL;
    config.read_bytes_per_s = config.write_bytes_per_s = read_bytes_per_s;
    config.latency_ns = latency_ns;
    config.depth = depth;
    assert_ok(tiers_throttle_wrap(sim, &config, &device));
    return device;
}

/* Moves `count` blocks at full depth and gives the time from the first submit to the last reap. */
static uint64_t run_blocks(kvt_device *device, kvt_io_kind kind, uint32_t count, void *buffer)
{
    enum { DEPTH = 4 };
    kvt_io operations[DEPTH];
    kvt_io *done[DEPTH];
    uint32_t submitted = 0;
    uint64_t last_finish = 0;
    uint64_t start = base_clock_ns();
    for (; submitted < DEPTH && submitted < count; submitted++) {
        operations[submitted] = (kvt_io){.kind = kind, .bytes = BLOCK, .buffer = buffer};
        assert_int_equal(kvt_device_submit(device, &operations[submitted]), KVT_QUEUED);
    }
    for (uint32_t reaped = 0; reaped < count;) {
        size_t found = kvt_device_reap(device, done, 1, DEPTH, UINT64_MAX);
        assert_true(found >= 1);
        for (size_t i = 0; i < found; i++, reaped++) {
            assert_ok(done[i]->status);
            assert_true(done[i]->finished_ns >= last_finish); /* one pipe keeps the order */
            assert_true(done[i]->finished_ns <= base_clock_ns());
            last_finish = done[i]->finished_ns;
            if (submitted == count) continue;
            assert_int_equal(kvt_device_submit(device, done[i]), KVT_QUEUED);
            submitted++;
        }
    }
    assert_true(base_clock_ns() >= last_finish);
    return last_finish - start;
}

TEST(never_faster)
{
    unsigned char *buffer = scratch_buffer(BLOCK);
    kvt_device *device = throttle_make(200000000u, 100000000u, 0, 4);
    expect_engine(device, "+throttle");
    assert_int_equal(device->facts.depth_max, 4);
    for (uint32_t count = 1; count <= 64; count *= 4) {
        uint64_t bytes = (uint64_t)count * BLOCK;
        assert_true(run_blocks(device, KVT_IO_READ, count, buffer) >= bytes * 5);
        assert_true(run_blocks(device, KVT_IO_WRITE, count, buffer) >= bytes * 10);
    }
    assert_int_equal(device->facts.depth_achieved, 4);
    kvt_device_close(device);
}

/* Idle time earns nothing: after a pause a burst is as slow as before. */
TEST(no_credit)
{
    unsigned char *buffer = scratch_buffer(BLOCK);
    kvt_device *device = throttle_make(100000000u, 100000000u, 0, 4);
    base_sleep_until(base_clock_ns() + 50000000u);
    assert_true(run_blocks(device, KVT_IO_READ, 16, buffer) >= UINT64_C(16) * BLOCK * 10);
    kvt_device_close(device);
}

/* The latency is added to each operation, but the operations overlap in it. */
TEST(latency_overlaps)
{
    enum { LATENCY_NS = 20000000, COUNT = 4 };
    unsigned char *buffer = scratch_buffer(COUNT * 4096);
    kvt_device *device = throttle_exact(0, LATENCY_NS, COUNT);
    kvt_io operations[COUNT];
    kvt_io *done[COUNT];
    for (uint32_t i = 0; i < COUNT; i++) {
        operations[i] =
            (kvt_io){.kind = KVT_IO_WRITE, .bytes = 4096, .buffer = buffer + (size_t)i * 4096};
        assert_int_equal(kvt_device_submit(device, &operations[i]), KVT_QUEUED);
    }
    assert_int_equal(kvt_device_reap(device, done, COUNT, COUNT, UINT64_MAX), COUNT);
    for (uint32_t i = 0; i < COUNT; i++) {
        assert_int_equal(operations[i].finished_ns, operations[i].submitted_ns + LATENCY_NS);
    }
    kvt_device_close(device);
}

/* A timeout ends a wait for something that is far away. */
TEST(reap_timeout)
{
    unsigned char *buffer = scratch_buffer(BLOCK);
    kvt_device *device = throttle_exact(655360u, 0, 2); /* 100 ms a block */
    kvt_io io = {.kind = KVT_IO_READ, .bytes = BLOCK, .buffer = buffer};
    kvt_io *done;
    assert_int_equal(kvt_device_submit(device, &io), KVT_QUEUED);
    uint64_t start = base_clock_ns();
    size_t early = kvt_device_reap(device, &done, 1, 1, 5000000);
    uint64_t waited = base_clock_ns() - start;
    assert_true(waited >= 5000000);
    if (early == 0) {
        assert_int_equal(io.state, KVT_IO_IN_FLIGHT);
        assert_int_equal(kvt_device_reap(device, &done, 1, 1, UINT64_MAX), 1);
    }
    assert_int_equal(io.finished_ns, io.submitted_ns + 100000000u);
    kvt_device_close(device);
}

/* Failures inside come out with their status; busy inside is busy outside and costs nothing. */
TEST(passes_faults_on)
{
    unsigned char *buffer = scratch_buffer(BLOCK);
    kvt_device_config config = scratch_memory(CAPACITY);
    kvt_device *memory = scratch_open(&config);
    kvt_device *faulty = NULL;
    kvt_device *device = NULL;
    assert_ok(tiers_fault_open(memory, &faulty));
    config.read_bytes_per_s = 1000000000u;
    config.emulated = true;
    assert_ok(tiers_throttle_wrap(faulty, &config, &device));
    assert_int_equal(device->facts.flags, KVT_DEVICE_EMULATED);
    expect_engine(device, "+fault+throttle");
    const tiers_fault_rule busy = {
        .action = TIERS_FAULT_BUSY, .kinds = TIERS_FAULT_READS, .hits = 1};
    const tiers_fault_rule fail = {.action = TIERS_FAULT_FAIL,
                                   .kinds = TIERS_FAULT_READS,
                                   .hits = 1,
                                   .status = KVT_E_IO,
                                   .os_error = EIO};
    const tiers_fault_rule slow = {
        .action = TIERS_FAULT_DELAY, .kinds = TIERS_FAULT_READS, .delay_ns = 5000000};
    assert_ok(tiers_fault_add(faulty, &busy));
    assert_ok(tiers_fault_add(faulty, &fail));
    assert_ok(tiers_fault_add(faulty, &slow));
    kvt_io io = {.kind = KVT_IO_READ, .bytes = BLOCK, .buffer = buffer};
    kvt_io *done;
    assert_int_equal(kvt_device_submit(device, &io), KVT_BUSY);
    assert_int_equal(kvt_device_submit(device, &io), KVT_QUEUED);
    assert_int_equal(kvt_device_reap(device, &done, 1, 1, UINT64_MAX), 1);
    assert_int_equal(io.status, KVT_E_IO);
    assert_int_equal(io.os_error, EIO);
    assert_true(io.finished_ns >= io.submitted_ns + BLOCK);
    assert_int_equal(kvt_device_submit(device, &io), KVT_QUEUED); /* later inside than its due */
    assert_int_equal(kvt_device_reap(device, &done, 1, 1, UINT64_MAX), 1);
    assert_ok(io.status);
    assert_true(io.finished_ns >= io.submitted_ns + 5000000);
    assert_ok(kvt_device_sync(device));
    kvt_device_close(device);
}

/* ---- sim ---- */

enum { LATENCY_NS = 80000 };

TEST(one_server)
{
    unsigned char *buffer = scratch_buffer(8192);
    kvt_device_config config = scratch_memory(1 << 20);
    config.backend = "sim";
    config.depth = 3;
    config.read_bytes_per_s = 1000000000u; /* 1 ns a byte */
    config.write_bytes_per_s = 250000000u; /* 4 ns a byte */
    config.latency_ns = LATENCY_NS;
    kvt_device *device = scratch_open(&config);
    kvt_io *done[3];
    kvt_io operations[3] = {{.kind = KVT_IO_READ, .bytes = 4096, .buffer = buffer},
                            {.kind = KVT_IO_WRITE, .bytes = 4096, .buffer = buffer},
                            {.kind = KVT_IO_READ, .bytes = 8192, .buffer = buffer}};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(kvt_device_submit(device, &operations[i]), KVT_QUEUED);
    }
    const uint64_t first = LATENCY_NS + 4096;
    const uint64_t second = first + LATENCY_NS + 4 * 4096;
    const uint64_t third = second + LATENCY_NS + 8192;
    assert_int_equal(kvt_device_reap(device, done, 1, 1, 0), 1);
    assert_ptr_equal(done[0], &operations[0]);
    assert_int_equal(operations[0].finished_ns, first);
    assert_int_equal(kvt_device_reap(device, done, 0, 3, 0), 2);
    assert_int_equal(operations[1].finished_ns, second);
    assert_int_equal(operations[2].finished_ns, third);
    for (int i = 0; i < 3; i++)
        assert_int_equal(operations[i].submitted_ns, 0);

    kvt_io later = {.kind = KVT_IO_READ, .bytes = 64, .buffer = buffer};
    assert_int_equal(kvt_device_submit(device, &later), KVT_QUEUED);
    assert_int_equal(kvt_device_reap(device, done, 1, 1, 0), 1);
    assert_int_equal(later.submitted_ns, third);
    assert_int_equal(later.finished_ns, third + LATENCY_NS + 64);
    kvt_device_close(device);
}

/* An hour of virtual time takes no real one: this would time out otherwise. */
TEST(never_waits)
{
    unsigned char *buffer = scratch_buffer(4096);
    kvt_device_config config = scratch_memory(1 << 20);
    config.backend = "sim";
    config.read_bytes_per_s = config.write_bytes_per_s = 1; /* 4096 s each */
    kvt_device *device = scratch_open(&config);
    assert_int_equal(device->facts.flags, KVT_DEVICE_VIRTUAL_TIME | KVT_DEVICE_NO_DATA);
    assert_string_equal(device->facts.engine, "sim"); /* the caps are its model, not a throttle */
    for (int i = 0; i < 1000; i++) {
        assert_ok(kvt_device_transfer(device, KVT_IO_WRITE, 0, buffer, 4096));
    }
    kvt_io last = {.kind = KVT_IO_READ, .bytes = 64, .buffer = buffer};
    kvt_io *done;
    assert_int_equal(kvt_device_submit(device, &last), KVT_QUEUED);
    assert_int_equal(kvt_device_reap(device, &done, 1, 1, 0), 1);
    assert_int_equal(last.submitted_ns, UINT64_C(4096000) * 1000000000u);
    kvt_device_close(device);
}
