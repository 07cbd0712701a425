/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gate_device.h - a device that takes one operation at a time and answers while its gate is open:
 * the order of operations is exact whatever the threads do. It moves no bytes.
 */
#ifndef SUPPORT_GATE_DEVICE_H
#define SUPPORT_GATE_DEVICE_H

#include <stdatomic.h>

#include "base/clock.h"
#include "tiers/devices/device_ops.h"

enum { GATE_OPERATIONS_MAX = 256 };

/* Takes one operation, and answers it when the gate is open. */
typedef struct gate {
    kvt_device base;
    atomic_bool open;
    atomic_uint taken;
    kvt_io *held;
    uint64_t
        offsets[GATE_OPERATIONS_MAX]; /* in the order of submission; the worker's until the end */
} gate;

static inline void gate_close(kvt_device *device)
{
    (void)device; /* the test's */
}

static inline kvt_status gate_submit(kvt_device *device, kvt_io *io)
{
    gate *g = (gate *)device;
    if (g->held != NULL) return KVT_BUSY;
    io->submitted_ns = base_clock_ns();
    g->held = io;
    uint32_t index = atomic_load(&g->taken);
    if (index < GATE_OPERATIONS_MAX) g->offsets[index] = io->offset;
    atomic_store(&g->taken, index + 1);
    return KVT_QUEUED;
}

static inline size_t gate_reap(kvt_device *device, kvt_io **done, size_t min, size_t max,
                               uint64_t timeout_ns)
{
    gate *g = (gate *)device;
    (void)max, (void)timeout_ns;
    if (g->held == NULL) return 0;
    if (!atomic_load(&g->open)) {
        if (min > 0) base_sleep(100000);
        return 0;
    }
    g->held->status = KVT_OK;
    g->held->finished_ns = base_clock_ns();
    done[0] = g->held;
    g->held = NULL;
    return 1;
}

static const kvt_device_ops gate_ops = {.struct_size = sizeof(kvt_device_ops),
                                        .abi_version = KVT_DEVICE_ABI,
                                        .name = "gate",
                                        .close = gate_close,
                                        .submit = gate_submit,
                                        .reap = gate_reap};

/* A closed gate, on the caller's memory. */
static inline void gate_make(gate *g, uint64_t capacity_bytes)
{
    *g = (gate){.base = {.ops = &gate_ops,
                         .facts = {.capacity_bytes = capacity_bytes,
                                   .align_bytes = 512,
                                   .request_bytes_max = 1 << 20,
                                   .depth_max = 1}}};
}

#endif
