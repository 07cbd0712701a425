/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_file_transfer.c - reads and writes of the file back end, blocking and as ring entries, and
 * what their results mean.
 *
 * Thread rule: as device_ops.h; file_run also by the queue's threads, several at once.
 */
#include "base/clock.h"
#include "device_file.h"

#include <errno.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

/* A transfer met the end of the storage, which ought to reach further: KVT_E_GONE when it is empty
 * or cannot be asked (a drive or loop that was detached), else KVT_E_IO. A short file is damage, an
 * empty one a device that went away. */
static kvt_status file_status_of_end(const file_device *file)
{
    struct stat facts;
    uint64_t bytes = 0;
    if (file->block) {
        if (ioctl(file->fd, BLKGETSIZE64, &bytes) != 0) bytes = 0;
    } else if (fstat(file->fd, &facts) == 0) {
        bytes = (uint64_t)facts.st_size;
    }
    return bytes != 0 ? KVT_E_IO : KVT_E_GONE;
}

/* Books the result of one call, bytes or a negative errno. True when it finished the operation.
 * *moved counts the bytes that are done; a direct transfer that stopped inside a sector repeats
 * that sector. */
static bool file_settle(kvt_device *device, kvt_io *io, int32_t result, uint32_t *moved)
{
    const file_device *file = (const file_device *)device;
    if (result == 0) {
        tiers_io_finish(io, file_status_of_end(file), 0, base_clock_ns());
        return true;
    }
    if (result > 0) {
        *moved += (uint32_t)result;
        if (*moved >= io->bytes) {
            tiers_io_finish(io, KVT_OK, 0, base_clock_ns());
            return true;
        }
        /* A direct transfer may go on only at its alignment. */
        if (file->direct) *moved &= ~(file->queued.base.facts.align_bytes - 1u);
        return false;
    }
    if (result == -EAGAIN || result == -EINTR) return false;
    tiers_io_finish(io, tiers_status_of_transfer(-result), -result, base_clock_ns());
    return true;
}

/* A transfer that makes no progress for TIERS_QUEUE_RETRIES_MAX tries fails, so that a storage
 * which answers 0 or EAGAIN for ever ends too. */
void file_run(kvt_device *device, kvt_io *io, uint32_t moved)
{
    const file_device *file = (const file_device *)device;
    for (uint32_t retries = 0; retries <= TIERS_QUEUE_RETRIES_MAX;) {
        uint32_t before = moved;
        char *buffer = (char *)io->buffer + moved;
        off_t at = (off_t)(io->offset + moved);
        size_t rest = io->bytes - moved;
        ssize_t result = io->kind == KVT_IO_READ ? pread(file->fd, buffer, rest, at)
                                                 : pwrite(file->fd, buffer, rest, at);
        if (file_settle(device, io, result < 0 ? -errno : (int32_t)result, &moved)) return;
        retries = moved > before ? 0 : retries + 1;
    }
    tiers_io_finish(io, KVT_E_IO, EIO, base_clock_ns());
}

/* Fills a ring entry with the rest of an operation. A buffer in a registered region names its
 * index, which spares the kernel to pin its pages. */
static void file_prepare(kvt_device *device, struct io_uring_sqe *entry, const kvt_io *io,
                         uint32_t moved, int buffer_index)
{
    (void)device;
    char *buffer = (char *)io->buffer + moved;
    uint32_t rest = io->bytes - moved;
    uint64_t at = io->offset + moved;
    bool reads = io->kind == KVT_IO_READ;
    if (buffer_index < 0) {
        io_uring_prep_rw(reads ? IORING_OP_READ : IORING_OP_WRITE, entry, -1, buffer, rest, at);
    } else {
        io_uring_prep_rw(reads ? IORING_OP_READ_FIXED : IORING_OP_WRITE_FIXED, entry, -1, buffer,
                         rest, at);
        entry->buf_index = (uint16_t)buffer_index;
    }
}

const tiers_queue_calls file_queue_calls = {.names = {"pread", "io_uring", "threads"},
                                            .run = file_run,
                                            .prepare = file_prepare,
                                            .settle = file_settle};
