/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_tiers_device.c - the wrapper: configurations it refuses, the table, read-only devices,
 * durations, and the null and memory devices' own facts.
 */
#include "device_scratch.h"

#include <tiers/devices/device_internal.h>

TEST(table)
{
    static const char *const names[] = {"memory", "hbm", "file", "nvme", "null", "sim"};
    const size_t expected = sizeof names / sizeof names[0];
    size_t count = 0;
    for (; kvt_device_backend_at(count) != NULL; count++) {
        const kvt_device_ops *ops = kvt_device_backend_at(count);
        assert_true(count < expected);
        assert_string_equal(ops->name, names[count]);
        assert_int_equal(ops->abi_version, KVT_DEVICE_ABI);
        assert_int_equal(ops->struct_size, sizeof *ops);
        assert_true(ops->open != NULL && ops->close != NULL && ops->submit != NULL);
    }
    assert_int_equal(count, expected);
    assert_null(kvt_device_backend_at(SIZE_MAX));
}

TEST(refused_head)
{
    kvt_device_config config = scratch_memory(65536);
    kvt_device *device = scratch_open(&config);
    kvt_device_close(device); /* leaves a pointer that a refused open must clear */
    char message[64];
    assert_int_equal(kvt_device_open(NULL, &device, message, sizeof message), KVT_E_ARGUMENT);
    assert_null(device);
    config.struct_size--;
    scratch_refused(&config, KVT_E_ARGUMENT, "another version");
    config = scratch_memory(65536);
    config.name = NULL;
    scratch_refused(&config, KVT_E_ARGUMENT, "1 to 31 characters");
    config.name = "";
    scratch_refused(&config, KVT_E_ARGUMENT, "1 to 31 characters");
    config.name = "01234567890123456789012345678901";
    scratch_refused(&config, KVT_E_ARGUMENT, "1 to 31 characters");
    config = scratch_memory(65536);
    config.backend = NULL;
    scratch_refused(&config, KVT_E_ARGUMENT, "no back end");
    config.backend = "tape";
    scratch_refused(&config, KVT_E_UNSUPPORTED, "'tape'");
    assert_int_equal(kvt_device_open(&config, &device, NULL, 0), KVT_E_UNSUPPORTED);
}

TEST(refused_settings)
{
    kvt_device_config config = scratch_memory(0);
    scratch_refused(&config, KVT_E_ARGUMENT, "'m0': a capacity is required");
    config = scratch_memory(65536);
    config.path = "x";
    scratch_refused(&config, KVT_E_ARGUMENT, "path");
    config = scratch_memory(65536);
    config.buffered = true;
    scratch_refused(&config, KVT_E_ARGUMENT, "only for file");
    config = scratch_memory(65536);
    config.synchronous = true;
    scratch_refused(&config, KVT_E_ARGUMENT, "only for file");
    config = scratch_memory(65536);
    config.backend = "file";
    scratch_refused(&config, KVT_E_ARGUMENT, "path");
    config.backend = "sim";
    scratch_refused(&config, KVT_E_ARGUMENT, "bandwidth");
    config.read_bytes_per_s = 1;
    scratch_refused(&config, KVT_E_ARGUMENT, "bandwidth");
}

TEST(refused_sizes)
{
    kvt_device_config config = scratch_memory(63);
    scratch_refused(&config, KVT_E_SPACE, "too small");
    config.backend = "null";
    scratch_refused(&config, KVT_E_SPACE, "too small");
    config.backend = "sim";
    config.read_bytes_per_s = config.write_bytes_per_s = 1;
    scratch_refused(&config, KVT_E_SPACE, "too small");
    config = scratch_memory(UINT64_C(1) << 46); /* 64 TiB */
    scratch_refused(&config, KVT_E_MEMORY, "memory");
    config = scratch_memory(UINT64_MAX);
    scratch_refused(&config, KVT_E_MEMORY, "memory");
}

TEST(capacity_is_rounded_down)
{
    kvt_device_config config = scratch_memory(100000);
    config.emulated = true;
    kvt_device *device = scratch_open(&config);
    assert_int_equal(device->facts.capacity_bytes, 100000 / 64 * 64);
    assert_int_equal(device->facts.flags, KVT_DEVICE_EMULATED);
    kvt_device_close(device);
    kvt_device_close(NULL);
}

TEST(new_memory_is_zero)
{
    kvt_device_config config = scratch_memory(65536);
    kvt_device *device = scratch_open(&config);
    unsigned char *got = scratch_buffer(65536);
    assert_ok(kvt_device_transfer(device, KVT_IO_READ, 0, got, 65536));
    for (size_t i = 0; i < 65536; i++)
        assert_int_equal(got[i], 0);
    kvt_device_close(device);
}

/* No back end opens read-only so far, so the flag is set by hand. */
TEST(read_only_flag)
{
    kvt_device_config config = scratch_memory(65536);
    kvt_device *device = scratch_open(&config);
    unsigned char *buffer = scratch_buffer(4096);
    device->facts.flags |= KVT_DEVICE_READ_ONLY;
    kvt_io io = {.kind = KVT_IO_WRITE, .bytes = 4096, .buffer = buffer};
    assert_ok(kvt_device_submit(device, &io));
    assert_int_equal(io.status, KVT_E_READ_ONLY);
    assert_int_equal(io.state, KVT_IO_DONE);
    assert_ok(kvt_device_transfer(device, KVT_IO_READ, 0, buffer, 4096));
    for (size_t i = 0; i < 4096; i++)
        assert_int_equal(buffer[i], 0); /* nothing was written */
    kvt_device_close(device);
}

/* Many small durations add up to the duration of the sum. */
TEST(duration_carries)
{
    uint64_t carry = 0;
    uint64_t sum = 0;
    for (int i = 0; i < 3000000; i++)
        sum += tiers_device_duration(1, 3000000, &carry);
    assert_int_equal(sum, 1000000000);
    assert_int_equal(carry, 0);
    assert_int_equal(tiers_device_duration(UINT32_MAX, 1, &carry),
                     UINT32_MAX * UINT64_C(1000000000));
}

TEST(deadline_saturates)
{
    assert_int_equal(tiers_device_deadline(5, 7), 12);
    assert_int_equal(tiers_device_deadline(5, UINT64_MAX), UINT64_MAX / 2);
    assert_int_equal(tiers_device_deadline(5, UINT64_MAX / 2), UINT64_MAX / 2);
}
