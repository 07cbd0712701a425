/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_costs.c - the brief measurement at open: a device that was busy while it began is not
 * taken for slow, and no clock makes a figure that nothing can be decided with.
 */
#include "store/learn/costs.h"
#include "store_support.h"

#include <math.h>

#define REQUEST_NS    20000u /* of every request, beside a nanosecond for each of its bytes */
#define BUSY_REQUESTS 12u    /* from the first one on */
#define BUSY_FACTOR   20u

/* Carries nothing out; its clock is its own. */
typedef struct busy_device {
    kvt_device base;
    uint64_t clock_ns;
    uint64_t requests;
    double pace; /* of its clock: 0 = it stands still */
} busy_device;

static void busy_close(kvt_device *device)
{
    (void)device;
}

static kvt_status busy_submit(kvt_device *device, kvt_io *io)
{
    busy_device *busy = (busy_device *)device;
    uint64_t factor = busy->requests++ < BUSY_REQUESTS ? BUSY_FACTOR : 1;
    io->submitted_ns = busy->clock_ns;
    busy->clock_ns += (uint64_t)(busy->pace * (double)(factor * (REQUEST_NS + io->bytes)));
    io->finished_ns = busy->clock_ns;
    io->status = KVT_OK;
    return KVT_OK;
}

static kvt_status busy_sync(kvt_device *device)
{
    (void)device;
    return KVT_OK;
}

static const kvt_device_ops busy_ops = {.struct_size = sizeof busy_ops,
                                        .abi_version = KVT_DEVICE_ABI,
                                        .name = "busy",
                                        .close = busy_close,
                                        .submit = busy_submit,
                                        .sync = busy_sync};

static busy_device busy_make(double pace)
{
    return (busy_device){.base = {.ops = &busy_ops,
                                  .facts = {.capacity_bytes = 64 << 20,
                                            .align_bytes = 4096,
                                            .request_bytes_max = 1 << 20,
                                            .depth_max = 1}},
                         .clock_ns = 1,
                         .pace = pace};
}

TEST(busy_moment_is_not_the_device)
{
    busy_device busy = busy_make(1);
    cost_device measured;
    assert_ok(costs_probe_device(&busy.base, false, 4096, &measured));
    print_message("%.1f us and %.0f MB/s of %.1f and %.0f, %llu requests\n",
                  measured.read.request_seconds * 1e6, measured.read.bytes_per_s * 1e-6,
                  REQUEST_NS * 1e-3, 1e3, (unsigned long long)busy.requests);
    /* A request of 256 KiB takes 20 us beside its bytes: the speed of such requests. */
    double speed = 262144.0 / (262144.0 + REQUEST_NS) * 1e9;
    assert_true(measured.read.bytes_per_s > 0.999 * speed);
    assert_true(measured.read.bytes_per_s < 1.001 * speed);
    assert_true(measured.read.request_seconds < 1.01e-9 * REQUEST_NS);
    assert_true(measured.read.request_seconds > 0.98e-9 * REQUEST_NS);
}

/* A clock that stands still, one with steps of hardly anything, and one that runs away. */
TEST(no_clock_makes_figures_that_cannot_be)
{
    static const double paces[] = {0, 1e-7, 1e-4, 1e4};
    for (size_t i = 0; i < sizeof paces / sizeof paces[0]; i++) {
        busy_device busy = busy_make(paces[i]);
        cost_device measured;
        assert_ok(costs_probe_device(&busy.base, true, 4096, &measured));
        assert_true(online_figures_are_sound(&measured.read));
        assert_true(online_figures_are_sound(&measured.write));
        kvt_affine both = costs_combine(&measured, 1, KVT_IO_READ);
        assert_true(isfinite(both.bytes_per_s) && isfinite(both.request_seconds));
    }
}
