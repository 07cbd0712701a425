/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_throttle.c - caps any device to a bandwidth per direction and adds a latency, exactly.
 *
 * Each direction is a pipe that is free again at free_at. An operation of b bytes moves
 *
 *     free_at = max(now, free_at) + b / bandwidth        due = free_at + latency
 *
 * and is handed on when its due time has come and the inner device has finished it, whichever is
 * later. An idle pipe earns no credit, so no transfer is ever faster than the cap, short ones
 * included; due times are absolute, so waking late does not add up while operations overlap. The
 * inner device works while the pipe "transmits". Waiting sleeps, it never spins.
 */
#include "base/clock.h"
#include "device_internal.h"
#include "device_layer.h"

#include <assert.h>
#include <stdlib.h>

enum { THROTTLE_DEPTH_DEFAULT = 32 };

typedef enum throttle_state {
    THROTTLE_FREE = 0,
    THROTTLE_INSIDE = 1, /* the inner device has it */
    THROTTLE_LANDED = 2  /* finished inside; waits for its due time */
} throttle_state;

/* The caller's operation and the one that stands for it inside. due_ns is set at submit and never
 * changes. */
typedef struct throttle_slot {
    kvt_io inner; /* our own operation, so that the caller's stays ours alone */
    kvt_io *outer;
    uint64_t due_ns;
    throttle_state state;
} throttle_slot;

/* One direction of the cap. free_at_ns never falls, and carry is below bytes_per_s. */
typedef struct throttle_pipe {
    uint64_t bytes_per_s; /* 0 = no cap */
    uint64_t free_at_ns;
    uint64_t carry; /* of tiers_device_duration */
} throttle_pipe;

/* The slots are as many as the depth, so a submission within the depth always finds one. */
typedef struct throttle_device {
    tiers_layer layer;
    throttle_pipe pipes[2]; /* by kvt_io_kind */
    uint64_t latency_ns;
    uint32_t slot_count;
    throttle_slot slots[];
} throttle_device;

static const kvt_device_ops throttle_ops;

kvt_status tiers_throttle_wrap(kvt_device *inner, const kvt_device_config *config,
                               kvt_device **device_out)
{
    /* A device that finishes at once has depth 1; behind the pipe its operations do overlap. */
    uint32_t depth = config->depth != 0 ? config->depth : inner->facts.depth_max;
    if (config->depth == 0 && depth < THROTTLE_DEPTH_DEFAULT) depth = THROTTLE_DEPTH_DEFAULT;
    throttle_device *throttle = calloc(1, sizeof *throttle + depth * sizeof throttle->slots[0]);
    if (throttle == NULL) return KVT_E_MEMORY;
    tiers_layer_init(&throttle->layer, &throttle_ops, inner);
    tiers_device_init(&throttle->layer.base, &throttle_ops, config); /* its name, and emulated */
    throttle->layer.base.facts.depth_max = depth;
    throttle->pipes[KVT_IO_READ].bytes_per_s = config->read_bytes_per_s;
    throttle->pipes[KVT_IO_WRITE].bytes_per_s = config->write_bytes_per_s;
    throttle->latency_ns = config->latency_ns;
    throttle->slot_count = depth;
    assert(depth > 0);
    *device_out = &throttle->layer.base;
    return KVT_OK;
}

/* Nothing is in flight, so no slot is in use. */
static void throttle_close(kvt_device *device)
{
    throttle_device *throttle = (throttle_device *)device;
    kvt_device_close(throttle->layer.inner);
    free(throttle);
}

/* A slot without an operation; NULL when as many are under way as the depth allows. The depth is
 * small, so a look through all slots costs less than a list. */
static throttle_slot *throttle_slot_acquire(throttle_device *throttle)
{
    for (uint32_t i = 0; i < throttle->slot_count; i++) {
        if (throttle->slots[i].state == THROTTLE_FREE) return &throttle->slots[i];
    }
    return NULL;
}

/* The time at which an operation is due: its bytes go through the pipe of their direction one after
 * the other, and the latency is added behind it. Charged in the order of submission. A pipe that is
 * behind stays behind: its backlog is paid by the operations that follow. */
static uint64_t throttle_charge(throttle_device *throttle, const kvt_io *io, uint64_t now)
{
    throttle_pipe *pipe = &throttle->pipes[io->kind];
    if (pipe->bytes_per_s == 0) return now + throttle->latency_ns;
    if (pipe->free_at_ns < now) {
        pipe->free_at_ns = now;
        pipe->carry = 0;
    }
    assert(pipe->free_at_ns >= now && "a pipe is never free in the past");
    pipe->free_at_ns += tiers_device_duration(io->bytes, pipe->bytes_per_s, &pipe->carry);
    return pipe->free_at_ns + throttle->latency_ns;
}

/* Passes an operation on and books its due time. The inner device may be done at once; the caller
 * still learns of it through reap, when it is due. */
static kvt_status throttle_submit(kvt_device *device, kvt_io *io)
{
    throttle_device *throttle = (throttle_device *)device;
    throttle_slot *slot = throttle_slot_acquire(throttle);
    if (slot == NULL) return KVT_BUSY;
    slot->inner = (kvt_io){.kind = io->kind,
                           .bytes = io->bytes,
                           .offset = io->offset,
                           .buffer = io->buffer,
                           .user = slot};
    uint64_t now = base_clock_ns(); /* before the inner device, which may take its time */
    kvt_status status = kvt_device_submit(throttle->layer.inner, &slot->inner);
    if (status == KVT_BUSY) return KVT_BUSY;
    tiers_io_begin(io, now);
    slot->outer = io;
    slot->due_ns = throttle_charge(throttle, io, now);
    slot->state = status == KVT_QUEUED ? THROTTLE_INSIDE : THROTTLE_LANDED;
    return KVT_QUEUED;
}

/* Takes completions from the inner device, waiting up to timeout_ns for one. Batches of 32 are
 * taken until one is not full, so nothing that is there stays behind. */
static void throttle_land(throttle_device *throttle, uint64_t timeout_ns)
{
    kvt_io *done[32];
    size_t min = timeout_ns != 0 ? 1 : 0;
    size_t count;
    do {
        count = kvt_device_reap(throttle->layer.inner, done, min, 32, timeout_ns);
        for (size_t i = 0; i < count; i++) {
            throttle_slot *slot = done[i]->user;
            assert(slot->state == THROTTLE_INSIDE && "the inner device had it");
            slot->state = THROTTLE_LANDED;
        }
        min = 0;
        timeout_ns = 0;
    } while (count == 32);
}

/* The earliest due slot in the given state or, with THROTTLE_FREE, in any busy one. Of equals the
 * first slot wins. */
static throttle_slot *throttle_earliest(throttle_device *throttle, throttle_state state)
{
    throttle_slot *best = NULL;
    for (uint32_t i = 0; i < throttle->slot_count; i++) {
        throttle_slot *slot = &throttle->slots[i];
        if (slot->state == THROTTLE_FREE) continue;
        if (state != THROTTLE_FREE && slot->state != state) continue;
        if (best == NULL || slot->due_ns < best->due_ns) best = slot;
    }
    return best;
}

/* Hands on landed operations whose time has come, in the order of their due times. The finish that
 * the caller sees is the later of the due time and the inner finish, so measured speeds are the
 * capped ones. */
static size_t throttle_release(throttle_device *throttle, kvt_io **done, size_t max)
{
    size_t count = 0;
    uint64_t now = base_clock_ns();
    while (count < max) {
        throttle_slot *slot = throttle_earliest(throttle, THROTTLE_LANDED);
        if (slot == NULL || slot->due_ns > now) break;
        uint64_t finished = slot->inner.finished_ns;
        if (finished < slot->due_ns) finished = slot->due_ns;
        tiers_io_finish(slot->outer, slot->inner.status, slot->inner.os_error, finished);
        done[count++] = slot->outer;
        slot->state = THROTTLE_FREE;
    }
    return count;
}

/* Sleeps until something can change: the next due time, or a late inner completion. A late inner
 * completion is waited for in the inner device, not in a sleep. */
static void throttle_wait(throttle_device *throttle, uint64_t deadline_ns)
{
    uint64_t now = base_clock_ns();
    throttle_slot *next = throttle_earliest(throttle, THROTTLE_FREE);
    assert(next != NULL);
    if (next->due_ns > now) {
        base_sleep_until(next->due_ns < deadline_ns ? next->due_ns : deadline_ns);
        return;
    }
    if (next->state == THROTTLE_LANDED) return; /* became due just now */
    throttle_slot *landed = throttle_earliest(throttle, THROTTLE_LANDED);
    uint64_t wake = landed != NULL && landed->due_ns < deadline_ns ? landed->due_ns : deadline_ns;
    if (wake > now) throttle_land(throttle, wake - now);
}

/* Hands on completions that are due, waiting for at least `min` of them until the deadline. The
 * deadline is checked after each release, so a timeout of 0 collects what is due and returns. */
static size_t throttle_reap(kvt_device *device, kvt_io **done, size_t min, size_t max,
                            uint64_t timeout_ns)
{
    throttle_device *throttle = (throttle_device *)device;
    uint64_t deadline = tiers_device_deadline(base_clock_ns(), timeout_ns);
    size_t count = 0;
    for (;;) {
        throttle_land(throttle, 0);
        count += throttle_release(throttle, done + count, max - count);
        if (count >= min || base_clock_ns() >= deadline) return count;
        throttle_wait(throttle, deadline);
    }
}

static const kvt_device_ops throttle_ops = {
    .struct_size = sizeof(kvt_device_ops),
    .abi_version = KVT_DEVICE_ABI,
    .name = "throttle",
    .close = throttle_close,
    .submit = throttle_submit,
    .flush = tiers_layer_flush,
    .reap = throttle_reap,
    .sync = tiers_layer_sync,
    .attach = tiers_layer_attach,
    .detach = tiers_layer_detach,
    .register_buffers = tiers_layer_register_buffers,
    .trim = tiers_layer_trim,
    .address = tiers_layer_address,
};
