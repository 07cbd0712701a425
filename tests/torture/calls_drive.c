/* SPDX-License-Identifier: Apache-2.0 */
/*
 * calls_drive.c - drives of memory with a latency, which fail, fall silent, fill and go when they
 * are told. Operations end in any order; half of the bytes move at the submission and half at the
 * end, so that a buffer or extent that is used too early shows.
 *
 * Thread rule: orders by any thread; all else the thread that has the device.
 */
#include "calls.h"

#include "base/wait.h"
#include "expected.h"
#include "tiers/devices/device_ops.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DRIVE_DEPTH = 8, DRIVE_ALIGN = 4096, DRIVE_REQUEST_BYTES = 65536 };

typedef struct drive_device {
    kvt_device base;
    calls_drive *drive;
    uint64_t random;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool woken;
    kvt_io *flying[DRIVE_DEPTH]; /* device_word: when it ends */
    uint32_t count;
} drive_device;

static const kvt_device_ops drive_ops;

static kvt_status drive_open(const kvt_device_config *config, kvt_device **device_out,
                             char *message, size_t message_size)
{
    calls_drive *drive = config->ops_context;
    if (drive->gone) {
        if (message_size != 0) snprintf(message, message_size, "%s is gone", drive->name);
        return KVT_E_GONE;
    }
    drive_device *self = calloc(1, sizeof *self);
    if (self == NULL) return KVT_E_MEMORY;
    self->drive = drive;
    self->random = drive->operations + 1;
    self->base.ops = &drive_ops;
    snprintf(self->base.name, sizeof self->base.name, "%s", config->name);
    self->base.facts = (kvt_device_facts){.capacity_bytes = drive->capacity_bytes,
                                          .align_bytes = DRIVE_ALIGN,
                                          .request_bytes_max = DRIVE_REQUEST_BYTES,
                                          .depth_max = DRIVE_DEPTH,
                                          .flags = KVT_DEVICE_DURABLE};
    snprintf(self->base.facts.engine, sizeof self->base.facts.engine, "calls");
    snprintf(self->base.facts.identity, sizeof self->base.facts.identity, "calls %s", drive->name);
    pthread_mutex_init(&self->lock, NULL);
    base_condition_init(&self->changed);
    *device_out = &self->base;
    return KVT_OK;
}

static void drive_close(kvt_device *device)
{
    drive_device *self = (drive_device *)device;
    if (self->count != 0) abort();
    pthread_cond_destroy(&self->changed);
    pthread_mutex_destroy(&self->lock);
    free(self);
}

static void drive_move(const drive_device *self, const kvt_io *io, bool second)
{
    uint32_t half = io->bytes / 2, at = second ? half : 0, bytes = second ? io->bytes - half : half;
    unsigned char *there = self->drive->bytes + io->offset + at;
    unsigned char *here = (unsigned char *)io->buffer + at;
    if (io->kind == KVT_IO_READ)
        memcpy(here, there, bytes);
    else
        memcpy(there, here, bytes);
}

static bool drive_fails(drive_device *self)
{
    uint32_t one_in = self->drive->fail_one_in;
    if (one_in == 0 || expected_random(&self->random) % one_in != 0) return false;
    atomic_fetch_add(&self->drive->failed, 1);
    return true;
}

static kvt_status drive_submit(kvt_device *device, kvt_io *io)
{
    drive_device *self = (drive_device *)device;
    calls_drive *drive = self->drive;
    if (self->count == DRIVE_DEPTH) return KVT_BUSY;
    uint64_t now_ns = base_clock_ns();
    uint32_t latency_ns = drive->latency_ns;
    atomic_fetch_add(&drive->operations, 1);
    io->status = KVT_OK;
    io->os_error = 0;
    io->submitted_ns = now_ns;
    io->next = NULL;
    io->device_word = now_ns + latency_ns + expected_random(&self->random) % (4 * latency_ns + 1);
    if (drive_fails(self)) io->status = KVT_E_IO;
    if (io->kind == KVT_IO_WRITE && drive->full) io->status = KVT_E_SPACE;
    if (drive->gone) io->status = KVT_E_GONE;
    if (io->status == KVT_OK) drive_move(self, io, false);
    self->flying[self->count++] = io;
    return KVT_QUEUED;
}

static size_t drive_collect(drive_device *self, kvt_io **done, size_t max, uint64_t now_ns)
{
    calls_drive *drive = self->drive;
    size_t count = 0;
    bool gone = drive->gone;
    if (now_ns < drive->silent_until_ns && !gone) return 0;
    for (uint32_t i = 0; i < self->count && count < max;) {
        kvt_io *io = self->flying[i];
        if (io->device_word > now_ns) {
            i++;
            continue;
        }
        if (gone && io->status == KVT_OK) io->status = KVT_E_GONE;
        if (io->status == KVT_OK) drive_move(self, io, true);
        if (io->status != KVT_OK) io->os_error = io->status == KVT_E_SPACE ? ENOSPC : EIO;
        io->finished_ns = now_ns;
        done[count++] = io;
        self->flying[i] = self->flying[--self->count];
    }
    return count;
}

/* When something may happen next; orders may come at any time, so a look is never far. */
static uint64_t drive_next(const drive_device *self, uint64_t now_ns, uint64_t deadline_ns)
{
    uint64_t next = now_ns + 5 * CALLS_MS;
    for (uint32_t i = 0; i < self->count; i++)
        if (self->flying[i]->device_word < next) next = self->flying[i]->device_word;
    if (next > deadline_ns) next = deadline_ns;
    return next > now_ns ? next : now_ns + CALLS_MS;
}

static size_t drive_reap(kvt_device *device, kvt_io **done, size_t min, size_t max,
                         uint64_t timeout_ns)
{
    drive_device *self = (drive_device *)device;
    uint64_t begun_ns = base_clock_ns();
    uint64_t deadline_ns = timeout_ns > UINT64_MAX / 4 ? UINT64_MAX / 2 : begun_ns + timeout_ns;
    size_t count = 0;
    pthread_mutex_lock(&self->lock);
    for (;;) {
        uint64_t now_ns = base_clock_ns();
        count += drive_collect(self, done + count, max - count, now_ns);
        if (count >= min || now_ns >= deadline_ns || self->woken) break;
        base_condition_wait_until(&self->changed, &self->lock,
                                  drive_next(self, now_ns, deadline_ns));
    }
    self->woken = false;
    pthread_mutex_unlock(&self->lock);
    return count;
}

static void drive_wake(kvt_device *device)
{
    drive_device *self = (drive_device *)device;
    pthread_mutex_lock(&self->lock);
    self->woken = true;
    pthread_cond_signal(&self->changed);
    pthread_mutex_unlock(&self->lock);
}

static void drive_attach(kvt_device *device)
{
    device->wakes = true;
}

static void drive_detach(kvt_device *device)
{
    device->wakes = false;
}

static kvt_status drive_sync(kvt_device *device)
{
    drive_device *self = (drive_device *)device;
    while (base_clock_ns() < self->drive->silent_until_ns && !self->drive->gone)
        base_sleep(CALLS_MS);
    base_sleep(self->drive->latency_ns);
    if (self->drive->gone) return KVT_E_GONE;
    return drive_fails(self) ? KVT_E_IO : KVT_OK;
}

static const kvt_device_ops drive_ops = {.struct_size = sizeof drive_ops,
                                         .abi_version = KVT_DEVICE_ABI,
                                         .name = "calls",
                                         .open = drive_open,
                                         .close = drive_close,
                                         .submit = drive_submit,
                                         .reap = drive_reap,
                                         .sync = drive_sync,
                                         .attach = drive_attach,
                                         .detach = drive_detach,
                                         .wake = drive_wake};

kvt_device_config calls_drive_config(calls_drive *drive)
{
    return (kvt_device_config){.struct_size = sizeof(kvt_device_config),
                               .name = drive->name,
                               .backend = "calls",
                               .ops = &drive_ops,
                               .ops_context = drive,
                               .capacity_bytes = drive->capacity_bytes,
                               .timeout_ns = drive->timeout_ns};
}
