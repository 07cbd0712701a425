/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_sim.c - a device in virtual time: an affine model with one server, and no bytes kept.
 *
 *     finished = max(submitted, server free) + latency + bytes / bandwidth
 *
 * The clock starts at 0 and belongs to the device. It moves only in reap, which never waits: it
 * jumps to the finish of the last operation that it hands on, whatever the timeout, and it hands on
 * everything that fits. Reads give zeros.
 *
 * No thread, no sleep and no clock of the machine is used, so a run on sim devices is the same
 * every time. Bandwidth may change while it runs (device_sim.h); nothing else may.
 */
#include "device_sim.h"

#include "device_internal.h"
#include "device_queue.h"

#include <assert.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SIM_ALIGN_BYTES = 64, SIM_REQUEST_BYTES_MAX = 64 << 20, SIM_DEPTH_DEFAULT = 32 };

/* server_free_ns is when the last operation submitted so far will have finished; it is never before
 * clock_ns of that submission. The speeds alone are touched by other threads. */
typedef struct sim_device {
    kvt_device base;
    uint64_t clock_ns;
    uint64_t server_free_ns;
    uint64_t latency_ns;
    _Atomic uint64_t bytes_per_s[2]; /* by kvt_io_kind */
    uint64_t carry[2];               /* of tiers_device_duration */
    tiers_io_list queue;             /* first in, first out: one server keeps the order */
} sim_device;

/* The model is in the identity, so curves of one model are never taken for those of another. */
static kvt_status sim_open(const kvt_device_config *config, kvt_device **device_out, char *message,
                           size_t message_size)
{
    uint64_t capacity = tiers_device_capacity(config, SIM_ALIGN_BYTES, message, message_size);
    if (capacity == 0) return KVT_E_SPACE;
    sim_device *sim = calloc(1, sizeof *sim);
    if (sim == NULL) {
        tiers_device_message(message, message_size, config, "out of memory");
        return KVT_E_MEMORY;
    }
    tiers_device_init(&sim->base, &tiers_sim_ops, config);
    tiers_sim_set_speed(&sim->base, config->read_bytes_per_s, config->write_bytes_per_s);
    sim->latency_ns = config->latency_ns;
    kvt_device_facts *facts = &sim->base.facts;
    facts->capacity_bytes = capacity;
    facts->align_bytes = SIM_ALIGN_BYTES;
    facts->request_bytes_max = SIM_REQUEST_BYTES_MAX;
    facts->depth_max = config->depth != 0 ? config->depth : SIM_DEPTH_DEFAULT;
    facts->flags |= KVT_DEVICE_NO_DATA | KVT_DEVICE_VIRTUAL_TIME;
    snprintf(facts->engine, sizeof facts->engine, "sim");
    snprintf(facts->identity, sizeof facts->identity,
             "sim read=%" PRIu64 " write=%" PRIu64 " latency_ns=%" PRIu64, config->read_bytes_per_s,
             config->write_bytes_per_s, config->latency_ns);
    *device_out = &sim->base;
    return KVT_OK;
}

void tiers_sim_set_speed(kvt_device *device, uint64_t read_bytes_per_s, uint64_t write_bytes_per_s)
{
    sim_device *sim = (sim_device *)device;
    assert(device->ops == &tiers_sim_ops && read_bytes_per_s != 0 && write_bytes_per_s != 0);
    atomic_store(&sim->bytes_per_s[KVT_IO_READ], read_bytes_per_s);
    atomic_store(&sim->bytes_per_s[KVT_IO_WRITE], write_bytes_per_s);
}

static void sim_close(kvt_device *device)
{
    free(device);
}

/* Decides the operation's finish at once: one server, first in, first out. Latency is part of the
 * service time, so a deeper queue does not hide it. */
static kvt_status sim_submit(kvt_device *device, kvt_io *io)
{
    sim_device *sim = (sim_device *)device;
    tiers_io_begin(io, sim->clock_ns);
    uint64_t start = sim->server_free_ns > sim->clock_ns ? sim->server_free_ns : sim->clock_ns;
    sim->server_free_ns = start + sim->latency_ns +
                          tiers_device_duration(io->bytes, atomic_load(&sim->bytes_per_s[io->kind]),
                                                &sim->carry[io->kind]);
    io->device_word = sim->server_free_ns; /* its finish */
    tiers_io_list_push(&sim->queue, io);
    return KVT_QUEUED;
}

/* Hands on everything that fits, and moves the clock to the finish of the last of them. The order
 * is that of submission, since one server finishes them in it. */
static size_t sim_reap(kvt_device *device, kvt_io **done, size_t min, size_t max,
                       uint64_t timeout_ns)
{
    sim_device *sim = (sim_device *)device;
    (void)min; /* all that fits is at least min: the wrapper keeps min within what is in flight */
    (void)timeout_ns;
    size_t count = 0;
    kvt_io *io;
    while (count < max && (io = tiers_io_list_pop(&sim->queue)) != NULL) {
        assert(io->device_word >= sim->clock_ns && "virtual time does not go back");
        sim->clock_ns = io->device_word;
        if (io->kind == KVT_IO_READ) memset(io->buffer, 0, io->bytes);
        tiers_io_finish(io, KVT_OK, 0, sim->clock_ns);
        done[count++] = io;
    }
    return count;
}

const kvt_device_ops tiers_sim_ops = {
    .struct_size = sizeof(kvt_device_ops),
    .abi_version = KVT_DEVICE_ABI,
    .name = "sim",
    .open = sim_open,
    .close = sim_close,
    .submit = sim_submit,
    .reap = sim_reap,
};
