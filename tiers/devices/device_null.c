/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_null.c - the device that keeps nothing: writes are dropped, reads give zeros.
 *
 * The device without a cost of its own: it shows the cost of everything around a device.
 */
#include "base/clock.h"
#include "device_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NULL_ALIGN_BYTES = 64, NULL_REQUEST_BYTES_MAX = 64 << 20 };

/* The facts are those of a device that costs nothing: any alignment of a cache line, one operation
 * at a time. */
static kvt_status null_open(const kvt_device_config *config, kvt_device **device_out, char *message,
                            size_t message_size)
{
    uint64_t capacity = tiers_device_capacity(config, NULL_ALIGN_BYTES, message, message_size);
    if (capacity == 0) return KVT_E_SPACE;
    kvt_device *device = calloc(1, sizeof *device);
    if (device == NULL) {
        tiers_device_message(message, message_size, config, "out of memory");
        return KVT_E_MEMORY;
    }
    tiers_device_init(device, &tiers_null_ops, config);
    device->facts.capacity_bytes = capacity;
    device->facts.align_bytes = NULL_ALIGN_BYTES;
    device->facts.request_bytes_max = NULL_REQUEST_BYTES_MAX;
    device->facts.depth_max = 1;
    device->facts.flags |= KVT_DEVICE_NO_DATA;
    snprintf(device->facts.engine, sizeof device->facts.engine, "null");
    snprintf(device->facts.identity, sizeof device->facts.identity, "null");
    *device_out = device;
    return KVT_OK;
}

/* There is nothing but the object itself. */
static void null_close(kvt_device *device)
{
    free(device);
}

/* Reads are zeroed, so that a reader never sees bytes of another buffer. */
static kvt_status null_submit(kvt_device *device, kvt_io *io)
{
    (void)device;
    tiers_io_begin(io, base_clock_ns());
    if (io->kind == KVT_IO_READ) memset(io->buffer, 0, io->bytes);
    tiers_io_finish(io, KVT_OK, 0, base_clock_ns());
    return KVT_OK;
}

const kvt_device_ops tiers_null_ops = {
    .struct_size = sizeof(kvt_device_ops),
    .abi_version = KVT_DEVICE_ABI,
    .name = "null",
    .open = null_open,
    .close = null_close,
    .submit = null_submit,
};
