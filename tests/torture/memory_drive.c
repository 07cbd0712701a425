/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory_drive.c - see memory_drive.h.
 */
#include "memory_drive.h"

#include "base/wait.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DRIVE_DEPTH_MAX = 16, DRIVE_ALIGN = 4096 };

#define DRIVE_PAUSE_NS UINT64_C(2000000)

typedef struct drive_device {
    kvt_device base;
    memory_drive *drive;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool woken;
    kvt_io *flying[DRIVE_DEPTH_MAX]; /* device_word: when it ends */
    uint32_t count;
} drive_device;

static const kvt_device_ops drive_ops;

static kvt_status drive_open(const kvt_device_config *config, kvt_device **device_out,
                             char *message, size_t message_size)
{
    memory_drive *drive = stand_in_context(config);
    if (drive->gone) {
        if (message_size != 0) snprintf(message, message_size, "%s is gone", drive->name);
        return KVT_E_GONE;
    }
    drive_device *self = calloc(1, sizeof *self);
    if (self == NULL) return KVT_E_MEMORY;
    self->drive = drive;
    self->base.ops = &drive_ops;
    snprintf(self->base.name, sizeof self->base.name, "%s", config->name);
    kvt_device_facts *facts = &self->base.facts;
    facts->capacity_bytes = drive->capacity_bytes;
    facts->align_bytes = DRIVE_ALIGN;
    facts->request_bytes_max = drive->request_bytes;
    facts->depth_max = drive->depth;
    facts->flags = drive->durable ? KVT_DEVICE_DURABLE : 0;
    if (drive->trims) facts->flags |= KVT_DEVICE_TRIM;
    snprintf(facts->engine, sizeof facts->engine, "memory drive");
    snprintf(facts->identity, sizeof facts->identity, "memory drive %s", drive->name);
    pthread_mutex_init(&self->lock, NULL);
    base_condition_init(&self->changed);
    *device_out = &self->base;
    return KVT_OK;
}

static void drive_close(kvt_device *device)
{
    drive_device *self = (drive_device *)device;
    if (self->count != 0) {
        fprintf(stderr, "%s is closed with operations in flight\n", device->name);
        abort();
    }
    pthread_cond_destroy(&self->changed);
    pthread_mutex_destroy(&self->lock);
    free(self);
}

/* Moves one half of an operation's bytes. */
static void drive_move(const drive_device *self, const kvt_io *io, bool second)
{
    uint32_t half = io->bytes / 2, at = second ? half : 0;
    unsigned char *there = self->drive->bytes + io->offset + at;
    unsigned char *here = (unsigned char *)io->buffer + at;
    uint32_t bytes = second ? io->bytes - half : half;
    if (io->kind == KVT_IO_READ)
        memcpy(here, there, bytes);
    else
        memcpy(there, here, bytes);
}

static uint32_t drive_draw(const memory_drive *drive, uint32_t below)
{
    return drive->draw(drive->draw_context, below);
}

/* Whether this operation is one of those that were ordered to fail. */
static bool drive_fails(memory_drive *drive)
{
    const uint32_t one_in = drive->fail_one_in;
    if (one_in == 0 || drive->fail_left == 0 || drive_draw(drive, one_in) != 0) return false;
    drive->fail_left--;
    drive->failed++;
    return true;
}

static kvt_status drive_submit(kvt_device *device, kvt_io *io)
{
    drive_device *self = (drive_device *)device;
    memory_drive *drive = self->drive;
    if (self->count == drive->depth) return KVT_BUSY;
    uint64_t now_ns = base_clock_ns();
    drive->operations++;
    io->status = KVT_OK;
    io->os_error = 0;
    io->submitted_ns = now_ns;
    io->next = NULL;
    io->device_word =
        now_ns + drive->latency_ns + drive_draw(drive, drive->spread * drive->latency_ns + 1);
    if (drive->full && io->kind == KVT_IO_WRITE) io->status = KVT_E_SPACE;
    if (drive->gone) io->status = KVT_E_GONE;
    if (io->status == KVT_OK && drive_fails(drive)) io->status = KVT_E_IO;
    if (io->status == KVT_OK) drive_move(self, io, false);
    self->flying[self->count++] = io;
    if (drive->submitted != NULL) drive->submitted();
    return KVT_QUEUED;
}

/* Takes the operations that have ended, in any order. */
static size_t drive_collect(drive_device *self, kvt_io **done, size_t max, uint64_t now_ns)
{
    size_t count = 0;
    if (now_ns < self->drive->silent_until_ns && !self->drive->gone) return 0;
    for (uint32_t i = 0; i < self->count && count < max;) {
        kvt_io *io = self->flying[i];
        if (io->device_word > now_ns) {
            i++;
            continue;
        }
        if (self->drive->gone && io->status == KVT_OK) io->status = KVT_E_GONE;
        if (io->status == KVT_OK) drive_move(self, io, true);
        if (io->status != KVT_OK) io->os_error = io->status == KVT_E_SPACE ? ENOSPC : EIO;
        io->finished_ns = now_ns;
        done[count++] = io;
        self->flying[i] = self->flying[--self->count];
    }
    return count;
}

/* When something may happen next. An order may come at any time, so a look is never far. */
static uint64_t drive_next(const drive_device *self, uint64_t now_ns, uint64_t deadline_ns)
{
    const memory_drive *drive = self->drive;
    const uint64_t silent_ns = drive->gone ? 0 : drive->silent_until_ns;
    uint64_t next = deadline_ns, look_ns = now_ns + drive->look_ns;
    for (uint32_t i = 0; i < self->count; i++)
        if (self->flying[i]->device_word < next) next = self->flying[i]->device_word;
    if (next < silent_ns) next = silent_ns < deadline_ns ? silent_ns : deadline_ns;
    if (drive->look_ns != 0 && look_ns < next) next = look_ns;
    return next > now_ns ? next : now_ns + 1;
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
    device->wakes = ((drive_device *)device)->drive->wakes;
}

static void drive_detach(kvt_device *device)
{
    device->wakes = false;
}

static kvt_status drive_sync(kvt_device *device)
{
    memory_drive *drive = ((drive_device *)device)->drive;
    drive->syncs++;
    while (base_clock_ns() < drive->silent_until_ns && !drive->gone)
        base_sleep(DRIVE_PAUSE_NS);
    base_sleep(drive->latency_ns + drive_draw(drive, drive->latency_ns + 1));
    if (drive->gone) return KVT_E_GONE;
    return drive_fails(drive) ? KVT_E_IO : KVT_OK;
}

static kvt_status drive_trim(kvt_device *device, uint64_t offset, uint64_t bytes)
{
    memory_drive *drive = ((drive_device *)device)->drive;
    memset(drive->bytes + offset, 0xa5, bytes / 2);
    base_sleep(drive->latency_ns);
    memset(drive->bytes + offset + bytes / 2, 0xa5, bytes - bytes / 2);
    drive->trims_done++;
    return drive->gone ? KVT_E_GONE : KVT_OK;
}

static const kvt_device_ops drive_ops = {.struct_size = sizeof drive_ops,
                                         .abi_version = KVT_DEVICE_ABI,
                                         .name = "memory drive",
                                         .open = drive_open,
                                         .close = drive_close,
                                         .submit = drive_submit,
                                         .reap = drive_reap,
                                         .sync = drive_sync,
                                         .attach = drive_attach,
                                         .detach = drive_detach,
                                         .trim = drive_trim,
                                         .wake = drive_wake};

kvt_device_config memory_drive_config(memory_drive *drive)
{
    return (kvt_device_config){.struct_size = sizeof(kvt_device_config),
                               .name = drive->name,
                               .backend = stand_in_set(&drive->stand_in, &drive_ops, drive),
                               .capacity_bytes = drive->capacity_bytes,
                               .timeout_ns = drive->timeout_ns};
}
