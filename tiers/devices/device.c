/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device.c - the asserting wrapper around every device, and what back ends share.
 *
 * Nothing else calls the pointers of kvt_device_ops. The wrapper asserts every rule that a caller
 * could break, so that back ends hold no argument checks; a fault of the outside world comes back
 * as a status.
 *
 * Thread rule: one thread at a time per device.
 */
#include "base/clock.h"
#include "device_internal.h"
#include "watchdog.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

uint64_t tiers_device_deadline(uint64_t now_ns, uint64_t timeout_ns)
{
    /* Half the range is 292 years, and still fits a signed time_t. */
    const uint64_t limit = UINT64_MAX / 2;
    return timeout_ns > limit - now_ns ? limit : now_ns + timeout_ns;
}

/* One second has 10^9 nanoseconds, so the product is exact and only the division rounds; the
 * remainder is carried on to the next call. */
uint64_t tiers_device_duration(uint64_t bytes, uint64_t bytes_per_s, uint64_t *carry)
{
    /* Fits: an operation is below 2^32 bytes, and 2^32 * 10^9 < 2^62. */
    uint64_t scaled = bytes * 1000000000u + *carry;
    *carry = scaled % bytes_per_s;
    return scaled / bytes_per_s;
}

void tiers_device_init(kvt_device *device, const kvt_device_ops *ops,
                       const kvt_device_config *config)
{
    device->ops = ops;
    snprintf(device->name, sizeof device->name, "%s", config->name);
    if (config->emulated) device->facts.flags |= KVT_DEVICE_EMULATED;
}

void tiers_device_message(char *message, size_t message_size, const kvt_device_config *config,
                          const char *format, ...)
{
    if (message_size == 0) return;
    int head = snprintf(message, message_size, "device '%s': ", config->name);
    if (head < 0 || (size_t)head >= message_size) return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message + head, message_size - (size_t)head, format, arguments);
    va_end(arguments);
}

uint64_t tiers_device_capacity(const kvt_device_config *config, uint32_t align_bytes, char *message,
                               size_t message_size)
{
    assert(align_bytes > 0);
    uint64_t capacity = config->capacity_bytes / align_bytes * align_bytes;
    if (capacity == 0)
        tiers_device_message(message, message_size, config,
                             "a capacity of %" PRIu64 " bytes is too small",
                             config->capacity_bytes);
    return capacity;
}

/* Any errno that no line names is KVT_E_IO: a device that fails in a new way is a failing
 * device. */
kvt_status tiers_status_of_errno(int os_error)
{
    switch (os_error) {
    case ENOENT:
    case ENOTDIR:
    case ELOOP:
    case ENODEV:
    case ENXIO:
    case ENOTCONN:
    case ECONNABORTED: /* in flight when a FUSE server ended */
    case ENOMEDIUM:
    case ESHUTDOWN:
    case ESTALE: return KVT_E_GONE;
    case EROFS:
    case EPERM:
    case EACCES: return KVT_E_READ_ONLY;
    case ENOSPC:
    case EDQUOT:
    case EFBIG: return KVT_E_SPACE;
    case EBUSY:
    case EEXIST:
    case ETXTBSY:
    case EWOULDBLOCK: return KVT_E_LOCKED;
    case ENOMEM: return KVT_E_MEMORY;
    default: return KVT_E_IO;
    }
}

kvt_status tiers_refuse(const tiers_opening *opening, kvt_status status, const char *reason)
{
    tiers_device_message(opening->message, opening->message_size, opening->config, "%s: %s",
                         opening->config->path, reason);
    return status;
}

kvt_status tiers_refuse_errno(const tiers_opening *opening, int os_error)
{
    return tiers_refuse(opening, tiers_status_of_errno(os_error), strerror(os_error));
}

/* A transfer cannot be locked out or lack memory for good, so both count as a failed transfer,
 * which the caller may try again. */
kvt_status tiers_status_of_transfer(int os_error)
{
    kvt_status status = tiers_status_of_errno(os_error);
    return status == KVT_E_LOCKED || status == KVT_E_MEMORY ? KVT_E_IO : status;
}

/* A device in flight must not be closed: the kernel may still write into the buffers of its
 * operations. */
void kvt_device_close(kvt_device *device)
{
    if (device == NULL) return;
    assert(device->in_flight == 0);
    if (device->attached) kvt_device_detach(device);
    device->ops->close(device);
}

/* A write to a device that is read-only ends here, because back ends need not know the case. The
 * state of an operation changes in this function and in kvt_device_reap alone. */
kvt_status kvt_device_submit(kvt_device *device, kvt_io *io)
{
    assert(device != NULL && io != NULL);
    /* The contract of one operation: inside the device, aligned, within the request size, not in
     * flight already. A caller that breaks it has a bug, so it is an assert and no status. A
     * release build checks nothing: the pool has made the operation from its own numbers. */
#ifndef NDEBUG
    const kvt_device_facts *facts = &device->facts;
    uint64_t mask = facts->align_bytes - 1u;
    assert(io->kind == KVT_IO_READ || io->kind == KVT_IO_WRITE);
    assert(io->state != KVT_IO_IN_FLIGHT);
    assert(io->bytes >= 1 && io->bytes <= facts->request_bytes_max);
    assert((io->bytes & mask) == 0 && (io->offset & mask) == 0);
    assert(io->offset <= facts->capacity_bytes);
    assert(io->bytes <= facts->capacity_bytes - io->offset);
    assert(io->buffer != NULL && ((uintptr_t)io->buffer & mask) == 0);
#endif
    if (device->in_flight >= device->facts.depth_max) return KVT_BUSY;
    if (io->kind == KVT_IO_WRITE && (device->facts.flags & KVT_DEVICE_READ_ONLY) != 0) {
        uint64_t now = base_clock_ns();
        tiers_io_begin(io, now);
        tiers_io_finish(io, KVT_E_READ_ONLY, EROFS, now);
        io->state = KVT_IO_DONE;
        return KVT_OK;
    }
    kvt_status status = device->ops->submit(device, io);
    assert(status == KVT_OK || status == KVT_QUEUED || status == KVT_BUSY);
    if (status == KVT_BUSY) return status;
    /* The one field of the facts that changes; other threads may look at it meanwhile. */
    if (device->in_flight >= device->facts.depth_achieved)
        __atomic_store_n(&device->facts.depth_achieved, device->in_flight + 1, __ATOMIC_RELAXED);
    if (status == KVT_QUEUED) {
        assert(device->ops->reap != NULL);
        io->state = KVT_IO_IN_FLIGHT;
        device->in_flight++;
    } else {
        io->state = KVT_IO_DONE;
        tiers_watchdog_progress();
    }
    return status;
}

void kvt_device_flush(kvt_device *device)
{
    assert(device != NULL);
    if (device->ops->flush != NULL) device->ops->flush(device);
}

/* `min` is cut to what is in flight, so a caller that asks for more does not wait for ever. */
size_t kvt_device_reap(kvt_device *device, kvt_io **done, size_t min, size_t max,
                       uint64_t timeout_ns)
{
    assert(device != NULL && min <= max && (done != NULL || max == 0));
    if (device->in_flight == 0 || max == 0) return 0;
    if (min > device->in_flight) min = device->in_flight; /* more can never come */
    size_t count = device->ops->reap(device, done, min, max, timeout_ns);
    assert(count <= max && count <= device->in_flight);
    for (size_t i = 0; i < count; i++) {
        assert(done[i]->state == KVT_IO_IN_FLIGHT);
        done[i]->state = KVT_IO_DONE;
    }
    device->in_flight -= (uint32_t)count;
    if (count > 0) tiers_watchdog_progress();
    return count;
}

kvt_status kvt_device_sync(kvt_device *device)
{
    assert(device != NULL);
    return device->ops->sync != NULL ? device->ops->sync(device) : KVT_OK;
}

void kvt_device_wake(kvt_device *device)
{
    assert(device != NULL);
    if (device->ops->wake != NULL) device->ops->wake(device);
}

void kvt_device_attach(kvt_device *device)
{
    assert(device != NULL && !device->attached && device->in_flight == 0);
    if (device->ops->attach != NULL) device->ops->attach(device);
    device->attached = true;
}

/* `wakes` falls first: a wake that comes later has nobody to wake. */
void kvt_device_detach(kvt_device *device)
{
    assert(device != NULL && device->attached && device->in_flight == 0);
    device->attached = device->wakes = false;
    if (device->ops->detach != NULL) device->ops->detach(device);
}

/* The regions must be page-aligned, because drives and GPUs pin whole pages. */
kvt_status kvt_device_register_buffers(kvt_device *device, const kvt_device_region *regions,
                                       uint32_t count)
{
    assert(device != NULL && !device->attached && (regions != NULL || count == 0));
    for (uint32_t i = 0; i < count; i++) {
        assert(regions[i].memory != NULL && regions[i].bytes != 0);
        assert((((uintptr_t)regions[i].memory | regions[i].bytes) & 4095u) == 0);
    }
    if (device->ops->register_buffers == NULL) return KVT_E_UNSUPPORTED;
    return device->ops->register_buffers(device, regions, count);
}

/* The facts say whether a trim can work, so a back end without it is never called. A sparse file
 * can be trimmed whether or not its owner wants what becomes free to be. */
kvt_status kvt_device_trim(kvt_device *device, uint64_t offset, uint64_t bytes)
{
    assert(device != NULL);
    assert(((offset | bytes) & (device->facts.align_bytes - 1u)) == 0 && bytes != 0);
    assert(offset <= device->facts.capacity_bytes);
    assert(bytes <= device->facts.capacity_bytes - offset);
    const bool advice = (device->facts.flags & KVT_DEVICE_TRIM) != 0;
    if (!advice && (device->facts.flags & KVT_DEVICE_SPARSE) == 0) return KVT_E_UNSUPPORTED;
    if (device->ops->trim == NULL) return KVT_E_UNSUPPORTED; /* a layer above a sparse file */
    if ((device->facts.flags & KVT_DEVICE_READ_ONLY) != 0) return KVT_E_READ_ONLY;
    return device->ops->trim(device, offset, bytes);
}

void *kvt_device_memory(kvt_device *device)
{
    assert(device != NULL);
    return device->ops->memory != NULL ? device->ops->memory(device) : NULL;
}

uint64_t kvt_device_address(kvt_device *device)
{
    assert(device != NULL);
    if (device->ops->address != NULL) return device->ops->address(device);
    return (uintptr_t)kvt_device_memory(device);
}

/* An idle device that keeps saying busy is broken; a second of tries covers a passing shortage of
 * kernel memory. The operation fails with KVT_E_IO after a second. */
static kvt_status device_submit_retrying(kvt_device *device, kvt_io *io)
{
    enum { SUBMIT_TRIES = 1000, STEP_NS = 1000000 };
    for (int step = 0; step < SUBMIT_TRIES; step++) {
        kvt_status status = kvt_device_submit(device, io);
        if (status != KVT_BUSY) return status;
        base_sleep_until(base_clock_ns() + STEP_NS);
    }
    tiers_io_finish(io, KVT_E_IO, EBUSY, base_clock_ns());
    return KVT_OK;
}

/* The caller blocks until the operation has ended, however long that takes. Code that must not wait
 * for a device that hangs runs it under a watchdog (watchdog.h). */
kvt_status kvt_device_transfer(kvt_device *device, kvt_io_kind kind, uint64_t offset, void *buffer,
                               uint32_t bytes)
{
    assert(device != NULL && device->in_flight == 0);
    kvt_io io = {.kind = kind, .bytes = bytes, .offset = offset, .buffer = buffer};
    if (device_submit_retrying(device, &io) == KVT_QUEUED) {
        kvt_io *done = NULL;
        kvt_device_flush(device);
        while (kvt_device_reap(device, &done, 1, 1, TIERS_DEVICE_FOREVER) == 0)
            continue;
        assert(done == &io);
    }
    return io.status;
}
