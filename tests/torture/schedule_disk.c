/* SPDX-License-Identifier: Apache-2.0 */
/*
 * schedule_disk.c - see schedule_disk.h.
 */
#include "schedule_disk.h"

#include "base/wait.h"
#include "schedule.h"
#include "tiers/devices/device_ops.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DISK_DEPTH = 4, DISK_ALIGN = 4096, DISK_REQUEST_BYTES = 8192 };

#define DISK_TIMEOUT_NS UINT64_C(2000000000)

typedef struct disk_device {
    kvt_device base;
    schedule_disk *disk;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool woken;
    kvt_io *flying[DISK_DEPTH]; /* device_word: when it ends */
    uint32_t count;
} disk_device;

static const kvt_device_ops disk_ops;

static kvt_status disk_open(const kvt_device_config *config, kvt_device **device_out, char *message,
                            size_t message_size)
{
    schedule_disk *disk = config->ops_context;
    if (disk->gone) {
        if (message_size != 0) snprintf(message, message_size, "%s is gone", disk->name);
        return KVT_E_GONE;
    }
    disk_device *self = calloc(1, sizeof *self);
    if (self == NULL) return KVT_E_MEMORY;
    self->disk = disk;
    self->base.ops = &disk_ops;
    snprintf(self->base.name, sizeof self->base.name, "%s", config->name);
    kvt_device_facts *facts = &self->base.facts;
    facts->capacity_bytes = disk->capacity_bytes;
    facts->align_bytes = DISK_ALIGN;
    facts->request_bytes_max = DISK_REQUEST_BYTES;
    facts->depth_max = DISK_DEPTH;
    facts->flags = disk->durable ? KVT_DEVICE_DURABLE : 0;
    if (disk->trims) facts->flags |= KVT_DEVICE_TRIM;
    snprintf(facts->engine, sizeof facts->engine, "schedule");
    snprintf(facts->identity, sizeof facts->identity, "schedule %s", disk->name);
    pthread_mutex_init(&self->lock, NULL);
    base_condition_init(&self->changed);
    *device_out = &self->base;
    return KVT_OK;
}

static void disk_close(kvt_device *device)
{
    disk_device *self = (disk_device *)device;
    if (self->count != 0) schedule_fail("a device is closed with operations in flight");
    pthread_cond_destroy(&self->changed);
    pthread_mutex_destroy(&self->lock);
    free(self);
}

/* Moves one half of an operation's bytes. */
static void disk_move(const disk_device *self, const kvt_io *io, bool second)
{
    uint32_t half = io->bytes / 2, at = second ? half : 0;
    unsigned char *there = self->disk->bytes + io->offset + at;
    unsigned char *here = (unsigned char *)io->buffer + at;
    uint32_t bytes = second ? io->bytes - half : half;
    if (io->kind == KVT_IO_READ)
        memcpy(here, there, bytes);
    else
        memcpy(there, here, bytes);
}

/* Whether this operation is one of those that were ordered to fail. */
static bool disk_fails(schedule_disk *disk)
{
    if (disk->fail_one_in == 0 || disk->fail_left == 0) return false;
    if (schedule_draw(disk->fail_one_in) != 0) return false;
    disk->fail_left--;
    disk->failed++;
    return true;
}

static kvt_status disk_submit(kvt_device *device, kvt_io *io)
{
    disk_device *self = (disk_device *)device;
    schedule_disk *disk = self->disk;
    if (self->count == DISK_DEPTH) return KVT_BUSY;
    uint64_t now_ns = base_clock_ns();
    disk->operations++;
    io->status = KVT_OK;
    io->os_error = 0;
    io->submitted_ns = now_ns;
    io->next = NULL;
    io->device_word = now_ns + disk->latency_ns + schedule_draw(9 * disk->latency_ns + 1);
    if (disk->gone) io->status = KVT_E_GONE;
    if (io->status == KVT_OK && disk_fails(disk)) io->status = KVT_E_IO;
    if (io->status == KVT_OK) disk_move(self, io, false);
    self->flying[self->count++] = io;
    schedule_step(0);
    return KVT_QUEUED;
}

/* Takes the operations that have ended, in any order. */
static size_t disk_collect(disk_device *self, kvt_io **done, size_t max, uint64_t now_ns)
{
    size_t count = 0;
    if (now_ns < self->disk->silent_until_ns && !self->disk->gone) return 0;
    for (uint32_t i = 0; i < self->count && count < max;) {
        kvt_io *io = self->flying[i];
        if (io->device_word > now_ns) {
            i++;
            continue;
        }
        if (self->disk->gone && io->status == KVT_OK) io->status = KVT_E_GONE;
        if (io->status == KVT_OK) disk_move(self, io, true);
        if (io->status != KVT_OK) io->os_error = EIO;
        io->finished_ns = now_ns;
        done[count++] = io;
        self->flying[i] = self->flying[--self->count];
    }
    return count;
}

/* When something may happen next. */
static uint64_t disk_next(const disk_device *self, uint64_t now_ns, uint64_t deadline_ns)
{
    uint64_t next = deadline_ns;
    for (uint32_t i = 0; i < self->count; i++)
        if (self->flying[i]->device_word < next) next = self->flying[i]->device_word;
    if (next < self->disk->silent_until_ns && !self->disk->gone)
        next =
            self->disk->silent_until_ns < deadline_ns ? self->disk->silent_until_ns : deadline_ns;
    return next > now_ns ? next : now_ns + 1;
}

static size_t disk_reap(kvt_device *device, kvt_io **done, size_t min, size_t max,
                        uint64_t timeout_ns)
{
    disk_device *self = (disk_device *)device;
    uint64_t begun_ns = base_clock_ns();
    uint64_t deadline_ns = timeout_ns > UINT64_MAX / 4 ? UINT64_MAX / 2 : begun_ns + timeout_ns;
    size_t count = 0;
    pthread_mutex_lock(&self->lock);
    for (;;) {
        uint64_t now_ns = base_clock_ns();
        count += disk_collect(self, done + count, max - count, now_ns);
        if (count >= min || now_ns >= deadline_ns || self->woken) break;
        base_condition_wait_until(&self->changed, &self->lock,
                                  disk_next(self, now_ns, deadline_ns));
    }
    self->woken = false;
    pthread_mutex_unlock(&self->lock);
    return count;
}

static void disk_wake(kvt_device *device)
{
    disk_device *self = (disk_device *)device;
    pthread_mutex_lock(&self->lock);
    self->woken = true;
    pthread_cond_signal(&self->changed);
    pthread_mutex_unlock(&self->lock);
}

static void disk_attach(kvt_device *device)
{
    device->wakes = ((disk_device *)device)->disk->wakes;
}

static void disk_detach(kvt_device *device)
{
    device->wakes = false;
}

static kvt_status disk_sync(kvt_device *device)
{
    schedule_disk *disk = ((disk_device *)device)->disk;
    disk->syncs++;
    while (base_clock_ns() < disk->silent_until_ns && !disk->gone)
        base_sleep(UINT64_C(10000000));
    base_sleep(disk->latency_ns + schedule_draw(disk->latency_ns + 1));
    if (disk->gone) return KVT_E_GONE;
    return disk_fails(disk) ? KVT_E_IO : KVT_OK;
}

static kvt_status disk_trim(kvt_device *device, uint64_t offset, uint64_t bytes)
{
    schedule_disk *disk = ((disk_device *)device)->disk;
    memset(disk->bytes + offset, 0xa5, bytes / 2);
    base_sleep(disk->latency_ns);
    memset(disk->bytes + offset + bytes / 2, 0xa5, bytes - bytes / 2);
    disk->trims_done++;
    return disk->gone ? KVT_E_GONE : KVT_OK;
}

static const kvt_device_ops disk_ops = {.struct_size = sizeof disk_ops,
                                        .abi_version = KVT_DEVICE_ABI,
                                        .name = "schedule",
                                        .open = disk_open,
                                        .close = disk_close,
                                        .submit = disk_submit,
                                        .reap = disk_reap,
                                        .sync = disk_sync,
                                        .attach = disk_attach,
                                        .detach = disk_detach,
                                        .trim = disk_trim,
                                        .wake = disk_wake};

kvt_device_config schedule_disk_config(schedule_disk *disk)
{
    return (kvt_device_config){.struct_size = sizeof(kvt_device_config),
                               .name = disk->name,
                               .backend = "schedule",
                               .ops = &disk_ops,
                               .ops_context = disk,
                               .capacity_bytes = disk->capacity_bytes,
                               .timeout_ns = DISK_TIMEOUT_NS};
}
