/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_tiers_device_sim.c - the sim device's clock follows its model to the nanosecond.
 */
#include "device_scratch.h"

enum { LATENCY_NS = 80000 };

static kvt_device *sim_make(uint32_t depth)
{
    kvt_device_config config = scratch_memory(1 << 20);
    config.backend = "sim";
    config.depth = depth;
    config.read_bytes_per_s = 1000000000u; /* 1 ns a byte */
    config.write_bytes_per_s = 250000000u; /* 4 ns a byte */
    config.latency_ns = LATENCY_NS;
    return scratch_open(&config);
}

TEST(one_server)
{
    unsigned char *buffer = scratch_buffer(8192);
    kvt_device *device = sim_make(3);
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
    free(buffer);
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
        assert_int_equal(kvt_device_transfer(device, KVT_IO_WRITE, 0, buffer, 4096), KVT_OK);
    }
    kvt_io last = {.kind = KVT_IO_READ, .bytes = 64, .buffer = buffer};
    kvt_io *done;
    assert_int_equal(kvt_device_submit(device, &last), KVT_QUEUED);
    assert_int_equal(kvt_device_reap(device, &done, 1, 1, 0), 1);
    assert_int_equal(last.submitted_ns, UINT64_C(4096000) * 1000000000u);
    kvt_device_close(device);
    free(buffer);
}
