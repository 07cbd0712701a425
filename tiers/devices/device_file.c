/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_file.c - a regular file or a block device as a device: opening and locking it.
 *
 * A file that is absent is made and written once with zeros, because writes into space that is
 * only allocated are half as fast; `sparse` leaves that out. It has its name once it is whole.
 *
 * An open goes through these steps, and a failure at any of them releases what the earlier ones
 * took: reach the storage (or make a draft), lock it, try O_DIRECT, fill and publish a new file,
 * find the facts, choose a queue. The file transfers nothing by itself; device_file_transfer.c
 * does.
 */
#include "device_file.h"
#include "base/clock.h"
#include "base/kill_point.h"
#include "superblock.h"
#include "watchdog.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <linux/falloc.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* One opener at a time. Separate opens exclude each other even within a process. The claim waits
 * for a process that was killed and has not let go yet (file_claim.h). */
static kvt_status file_lock(file_device *file, const tiers_opening *opening)
{
    kvt_status status = tiers_claim_acquire(&file->claim, file->fd, false);
    if (status == KVT_E_LOCKED) return tiers_refuse(opening, status, "already open elsewhere");
    return status == KVT_OK ? KVT_OK : tiers_refuse_errno(opening, errno);
}

/* A file is made whole or not at all: draft, room, content, sync, name, folder. An open that finds
 * the file there changes nothing of it but its bytes. */
/* ---- making a file ---- */

/*
 * A file is made under another name and gets its own when it is whole: a process that is killed
 * meanwhile leaves a draft, which the next open begins anew.
 */
static bool file_name_draft(const char *path, char *draft, size_t size)
{
    int length = snprintf(draft, size, "%s.kvterrace-draft", path);
    return length > 0 && (size_t)length < size;
}

/* The labels' blocks of a sparse file are written, or a full file system would leave the store
 * unable to write the next label. Returns an errno, 0 when both slots have blocks. */
static int file_write_head(int fd)
{
    static const char zeros[TIERS_SUPERBLOCK_BYTES];
    for (size_t at = 0; at < sizeof zeros;) {
        ssize_t written = pwrite(fd, zeros + at, sizeof zeros - at, (off_t)at);
        if (written < 0 && errno != EINTR) return errno;
        if (written > 0) at += (size_t)written;
    }
    return 0;
}

/* Makes the draft of an absent file, with its size and without its content. The draft is locked
 * before it is changed, because two opens may make the same one. KILL_POINT marks the places at
 * which the torture tests end the process. */
static kvt_status file_make(file_device *file, const tiers_opening *opening)
{
    char draft[PATH_MAX];
    struct stat mine, named;
    const char *path = opening->config->path;
    uint64_t capacity = opening->config->capacity_bytes / FILE_BLOCK_BYTES * FILE_BLOCK_BYTES;
    if (capacity == 0 && opening->config->capacity_bytes == 0) {
        return tiers_refuse(opening, KVT_E_GONE, "no such file (a capacity would make it)");
    }
    if (capacity < FILE_CAPACITY_BYTES_MIN) {
        return tiers_refuse(opening, KVT_E_SPACE, "the capacity is below 64 KiB");
    }
    if (!file_name_draft(path, draft, sizeof draft))
        return tiers_refuse_errno(opening, ENAMETOOLONG);
    file->fd = open(draft, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (file->fd < 0) return tiers_refuse_errno(opening, errno);
    KILL_POINT("member: file made, empty");
    kvt_status status = file_lock(file, opening);
    if (status != KVT_OK) return status;
    /* Another open may have been faster: then the draft is their file by now. */
    bool same = fstat(file->fd, &mine) == 0 && lstat(draft, &named) == 0 &&
                mine.st_dev == named.st_dev && mine.st_ino == named.st_ino;
    if (!same || access(path, F_OK) == 0) {
        return tiers_refuse(opening, KVT_E_LOCKED, "another open has made it meanwhile");
    }
    if (!S_ISREG(mine.st_mode)) {
        return tiers_refuse(opening, KVT_E_ARGUMENT, "its draft is no regular file");
    }
    file->made = true;
    file->draft = true;
    int os_error = fchmod(file->fd, 0600) == 0 && ftruncate(file->fd, 0) == 0 ? 0 : errno;
    if (os_error == 0) {
        /* Give a new file its size: with blocks, or as a hole when it is sparse or the file system
         * cannot allocate. Returns an errno, 0 when it worked. An interrupted allocation begins
         * again, because a signal says nothing about the room. */
        int refused = -1;
        errno = EOPNOTSUPP;
        while (!opening->config->sparse &&
               (refused = fallocate(file->fd, 0, 0, (off_t)capacity)) != 0)
            if (errno != EINTR) break;
        if (refused != 0 && (errno == EOPNOTSUPP || errno == ENOSYS)) {
            refused = ftruncate(file->fd, (off_t)capacity);
        }
        os_error = refused == 0 ? 0 : errno;
    }
    if (os_error == 0 && opening->config->sparse) os_error = file_write_head(file->fd);
    if (os_error != 0) return tiers_refuse_errno(opening, os_error);
    KILL_POINT("member: room allocated");
    file->queued.base.facts.capacity_bytes = capacity;
    return KVT_OK;
}

/* Storage that exists is never resized. A capacity that is configured may use less of it. */
/* ---- storage that exists ---- */

/* Sets the capacity from the size that the storage has. A configured capacity may be less than the
 * storage has: the rest is left alone. */
static kvt_status file_set_size(file_device *file, const tiers_opening *opening, uint64_t size)
{
    char reason[96];
    uint64_t wanted = opening->config->capacity_bytes;
    /* A file that was made for an odd capacity has whole blocks of it. */
    if (wanted / FILE_BLOCK_BYTES * FILE_BLOCK_BYTES > size) {
        snprintf(reason, sizeof reason, "has %" PRIu64 " bytes, %" PRIu64 " are configured", size,
                 wanted);
        return tiers_refuse(opening, KVT_E_SPACE, reason);
    }
    uint64_t capacity = (wanted != 0 ? wanted : size) / FILE_BLOCK_BYTES * FILE_BLOCK_BYTES;
    if (capacity < FILE_CAPACITY_BYTES_MIN) {
        return tiers_refuse(opening, KVT_E_SPACE, "too small: at least 64 KiB are needed");
    }
    file->queued.base.facts.capacity_bytes = capacity;
    return KVT_OK;
}

enum { FILE_BUSY_NAP_NS = 50000000 };

/* Whether this process has the file open as a device already. Waiting for a file of this process
 * would wait for ever. */
static bool file_is_ours(const char *path)
{
    struct stat facts;
    return stat(path, &facts) == 0 && tiers_claim_is_ours(facts.st_dev, facts.st_ino);
}

/* Opens a block device exclusively and reads its size. Waits for a device that a killed process
 * still holds, but never for one of this process. The claim comes after the exclusive open, which
 * excludes mounts and arrays but not other readers. */
static kvt_status file_open_block(file_device *file, const tiers_opening *opening)
{
    file->block = true;
    /* O_EXCL refuses a device that is mounted or part of an array. One that a process which was
     * killed had open is let go of as late as its lock. */
    uint64_t waited = 0;
    while ((file->fd = open(opening->config->path, O_RDWR | O_EXCL | O_CLOEXEC)) < 0) {
        if (errno != EBUSY || file_is_ours(opening->config->path) || waited >= TIERS_CLAIM_WAIT_NS)
            break;
        base_sleep(FILE_BUSY_NAP_NS);
        tiers_watchdog_progress();
        waited += FILE_BUSY_NAP_NS;
        errno = EBUSY;
    }
    if (file->fd < 0 && errno == EBUSY) {
        return tiers_refuse(opening, KVT_E_LOCKED, "in use (mounted, or open elsewhere)");
    }
    if (file->fd < 0) return tiers_refuse_errno(opening, errno);
    kvt_status status = file_lock(file, opening);
    if (status != KVT_OK) return status;
    uint64_t size = 0;
    int sector_bytes = 0;
    int read_only = 0;
    if (ioctl(file->fd, BLKGETSIZE64, &size) != 0 ||
        ioctl(file->fd, BLKSSZGET, &sector_bytes) != 0 ||
        ioctl(file->fd, BLKROGET, &read_only) != 0) {
        return tiers_refuse_errno(opening, errno);
    }
    if (size == 0) return tiers_refuse(opening, KVT_E_GONE, "no medium (size 0)");
    if (read_only != 0) return tiers_refuse(opening, KVT_E_READ_ONLY, "read-only");
    if (sector_bytes > FILE_BLOCK_BYTES) {
        return tiers_refuse(opening, KVT_E_UNSUPPORTED, "sectors above 4 KiB");
    }
    return file_set_size(file, opening, size);
}

/* Opens and locks a regular file, and takes its size. The size is read after the lock, because
 * another process may have been growing the file. */
static kvt_status file_open_regular(file_device *file, const tiers_opening *opening, mode_t mode)
{
    /* root could write a read-only file all the same; its owner did not mean that. */
    if ((mode & 0222) == 0) return tiers_refuse(opening, KVT_E_READ_ONLY, "read-only");
    file->fd = open(opening->config->path, O_RDWR | O_CLOEXEC);
    if (file->fd < 0) return tiers_refuse_errno(opening, errno);
    kvt_status status = file_lock(file, opening);
    if (status != KVT_OK) return status;
    struct stat facts;
    if (fstat(file->fd, &facts) != 0) return tiers_refuse_errno(opening, errno);
    return file_set_size(file, opening, (uint64_t)facts.st_size);
}

/* Opens storage for reading alone, without a lock: beside the store that has it. */
static kvt_status file_reach_reader(file_device *file, const tiers_opening *opening,
                                    const struct stat *facts)
{
    file->block = S_ISBLK(facts->st_mode);
    if (!file->block && !S_ISREG(facts->st_mode))
        return tiers_refuse(opening, KVT_E_ARGUMENT, "is no file or block device");
    file->fd = open(opening->config->path, O_RDONLY | O_CLOEXEC);
    if (file->fd < 0) return tiers_refuse_errno(opening, errno);
    uint64_t size = (uint64_t)facts->st_size;
    if (file->block && ioctl(file->fd, BLKGETSIZE64, &size) != 0)
        return tiers_refuse_errno(opening, errno);
    return file_set_size(file, opening, size);
}

/* Refuses a symbolic link, which could lead the store's writes to another file. Links of udev are
 * let through: root owns them, and they lead to block devices. KVT_OK for a path that is no link or
 * does not exist. */
static kvt_status file_check_link(const tiers_opening *opening)
{
    struct stat link, target;
    const char *path = opening->config->path;
    if (lstat(path, &link) != 0 || !S_ISLNK(link.st_mode)) return KVT_OK;
    if (stat(path, &target) != 0) {
        return tiers_refuse(opening, KVT_E_GONE, "a symbolic link that leads nowhere");
    }
    if (opening->config->follow_symlinks) return KVT_OK;
    if (link.st_uid == 0 && S_ISBLK(target.st_mode)) return KVT_OK;
    return tiers_refuse(opening, KVT_E_ARGUMENT,
                        "a symbolic link; store.follow_symlinks = yes opens what it leads to");
}

/* Opens the storage by its kind, or makes an absent file. Any other kind of file is refused: writes
 * to a pipe or a terminal would do harm. */
static kvt_status file_reach(file_device *file, const tiers_opening *opening)
{
    struct stat facts;
    kvt_status status = file_check_link(opening);
    if (status != KVT_OK) return status;
    if (stat(opening->config->path, &facts) != 0) {
        if (errno == ENOENT && !file->reads) return file_make(file, opening);
        return tiers_refuse_errno(opening, errno);
    }
    if (file->reads) return file_reach_reader(file, opening, &facts);
    if (S_ISBLK(facts.st_mode)) return file_open_block(file, opening);
    if (S_ISREG(facts.st_mode)) return file_open_regular(file, opening, facts.st_mode);
    return tiers_refuse(opening, KVT_E_ARGUMENT,
                        S_ISDIR(facts.st_mode) ? "is a directory" : "is no file or block device");
}

/* Gives a new file its name, durably, now that its content is. The order is content, name, folder:
 * a power cut at any point leaves a draft or a whole file. */
static kvt_status file_publish(file_device *file, const tiers_opening *opening)
{
    char draft[PATH_MAX];
    const char *path = opening->config->path;
    int os_error = fsync(file->fd) == 0 ? 0 : errno;
    if (!file_name_draft(path, draft, sizeof draft)) os_error = ENAMETOOLONG;
    if (os_error == 0) os_error = tiers_publish_file(draft, path);
    if (os_error == EEXIST) {
        return tiers_refuse(opening, KVT_E_LOCKED, "another open has made it meanwhile");
    }
    if (os_error == 0) {
        file->draft = false;
        KILL_POINT("member: named, folder not synced");
        os_error = tiers_sync_folder(path);
    }
    return os_error == 0 ? KVT_OK : tiers_refuse_errno(opening, os_error);
}

/* Writes a new file once, so that later writes find written blocks. A file system that refuses
 * direct writes is found out here, and the file goes through the page cache from then on. */
static kvt_status file_fill(file_device *file, const tiers_opening *opening, void *zeros)
{
    uint64_t capacity = file->queued.base.facts.capacity_bytes;
    memset(zeros, 0, FILE_REQUEST_BYTES_MAX);
    for (uint64_t at = 0; at < capacity;) {
        uint64_t rest = capacity - at;
        kvt_io io = {.kind = KVT_IO_WRITE, .offset = at, .buffer = zeros};
        io.bytes = rest < FILE_REQUEST_BYTES_MAX ? (uint32_t)rest : FILE_REQUEST_BYTES_MAX;
        file_run(&file->queued.base, &io, 0);
        if (io.status != KVT_OK && io.os_error == EINVAL && file->direct) {
            if (!file_set_direct(file, false)) return tiers_refuse_errno(opening, errno);
            continue; /* direct reads work here and direct writes do not */
        }
        if (io.status != KVT_OK) return tiers_refuse(opening, io.status, strerror(io.os_error));
        at += io.bytes;
        KILL_POINT("member: filled in part");
    }
    return KVT_OK;
}

/* Closes the queue before the file that its ring uses, and gives up the claim while the file is
 * open. Parts that were not opened are skipped. */
static void file_release(file_device *file)
{
    tiers_queue_close(&file->queued.queue);
    tiers_claim_release(&file->claim);
    if (file->fd >= 0) close(file->fd);
    free(file);
}

/* Everything between reaching the storage and being ready. `buffer` has FILE_REQUEST_BYTES_MAX. The
 * watchdog is suspended while a new file is filled, which may take minutes without a sign of
 * progress. */
static kvt_status file_set_up(file_device *file, const tiers_opening *opening, void *buffer)
{
    const kvt_device_config *config = opening->config;
    int os_error = 0;
    kvt_status status = KVT_OK;
    if (!config->buffered) status = file_probe_direct(file, buffer, &os_error);
    if (status != KVT_OK) return tiers_refuse(opening, status, "its first block cannot be read");
    if (file->made) tiers_watchdog_suspend();
    if (file->made && !config->sparse) {
        uint64_t started_ns = base_clock_ns();
        status = file_fill(file, opening, buffer);
        file->queued.base.facts.prepare_ns = base_clock_ns() - started_ns;
    }
    if (status == KVT_OK && file->made) status = file_publish(file, opening);
    if (status != KVT_OK) return status;
    if (file->made) KILL_POINT("member: file durable");
    file_probe_facts(file, config, buffer);
    tiers_queued_open(&file->queued, &file_queue_calls, file->fd, config);
    return KVT_OK;
}

/* Says in the message of an open that succeeds that the file system has less room than the file may
 * still take: what is written beyond it fails. */
static void file_say_room(const file_device *file, const tiers_opening *opening)
{
    char reason[160];
    struct stat facts;
    struct statvfs system;
    const uint64_t capacity = file->queued.base.facts.capacity_bytes;
    if (file->block || fstat(file->fd, &facts) != 0 || fstatvfs(file->fd, &system) != 0) return;
    const uint64_t taken = (uint64_t)facts.st_blocks * 512;
    const uint64_t wanted = capacity > taken ? capacity - taken : 0;
    const uint64_t free_bytes = (uint64_t)system.f_bavail * system.f_frsize;
    if (free_bytes >= wanted) return;
    snprintf(reason, sizeof reason,
             "its file system has %" PRIu64 " KiB free, and the file may take %" PRIu64
             " KiB more: what finds no room is not kept",
             free_bytes >> 10, wanted >> 10);
    (void)tiers_refuse(opening, KVT_OK, reason);
}

/* Opens the back end. A failed open removes the file that it made, and no other. A file that
 * another open has made meanwhile is left alone. */
static kvt_status file_open_as(const kvt_device_config *config, bool reads, kvt_device **device_out,
                               char *message, size_t message_size)
{
    const tiers_opening opening = {config, message, message_size};
    if (config->depth > TIERS_QUEUE_DEPTH_MAX) {
        return tiers_refuse(&opening, KVT_E_ARGUMENT, "the depth is above 4096");
    }
    file_device *file = calloc(1, sizeof *file);
    void *buffer = aligned_alloc(FILE_BLOCK_BYTES, FILE_REQUEST_BYTES_MAX);
    kvt_status status = KVT_E_MEMORY;
    if (file == NULL || buffer == NULL) {
        tiers_refuse(&opening, status, "out of memory");
        free(file);
        free(buffer);
        return status;
    }
    file->fd = -1;
    file->reads = reads;
    tiers_device_init(&file->queued.base, &tiers_file_ops, config);
    status = file_reach(file, &opening);
    if (status == KVT_OK) status = file_set_up(file, &opening, buffer);
    free(buffer);
    if (status != KVT_OK) {
        /* The claim is still held, so nobody else can have opened what was made. */
        char draft[PATH_MAX];
        if (file->made && !file->draft)
            (void)unlink(config->path);
        else if (file->made && file_name_draft(config->path, draft, sizeof draft))
            (void)unlink(draft);
        file_release(file);
        return status;
    }
    if (!reads) file_say_room(file, &opening);
    *device_out = &file->queued.base;
    return KVT_OK;
}

static kvt_status file_open(const kvt_device_config *config, kvt_device **device_out, char *message,
                            size_t message_size)
{
    return file_open_as(config, false, device_out, message, message_size);
}

kvt_status tiers_file_open_reader(const kvt_device_config *config, kvt_device **device_out,
                                  char *message, size_t message_size)
{
    return file_open_as(config, true, device_out, message, message_size);
}

/* Gives queue, lock and descriptor back; a file that was made stays. */
static void file_close(kvt_device *device)
{
    file_release((file_device *)device);
}

/* Makes writes durable. A file whose name was removed is gone, although its bytes can be written.
 * The name is looked at after the sync, so a file that is removed meanwhile is noticed at the next
 * one at the latest. */
static kvt_status file_sync(kvt_device *device)
{
    file_device *file = (file_device *)device;
    struct stat facts;
    while (fdatasync(file->fd) != 0) {
        if (errno != EINTR) return tiers_status_of_transfer(errno);
    }
    /* Bytes in a file without a name do not survive a restart. */
    if (!file->block && (fstat(file->fd, &facts) != 0 || facts.st_nlink == 0)) return KVT_E_GONE;
    return KVT_OK;
}

/* A block device discards the range, a file punches a hole into it and keeps its size. */
static kvt_status file_trim(kvt_device *device, uint64_t offset, uint64_t bytes)
{
    const file_device *file = (const file_device *)device;
    uint64_t range[2] = {offset, bytes};
    int refused;
    do {
        refused = file->block ? ioctl(file->fd, BLKDISCARD, range)
                              : fallocate(file->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                                          (off_t)offset, (off_t)bytes);
    } while (refused != 0 && errno == EINTR);
    if (refused == 0) return KVT_OK;
    return errno == EOPNOTSUPP ? KVT_E_UNSUPPORTED : tiers_status_of_transfer(errno);
}

const kvt_device_ops tiers_file_ops = {
    .struct_size = sizeof(kvt_device_ops),
    .abi_version = KVT_DEVICE_ABI,
    .name = "file",
    .open = file_open,
    .close = file_close,
    .submit = tiers_queued_submit,
    .flush = tiers_queued_flush,
    .reap = tiers_queued_reap,
    .sync = file_sync,
    .attach = tiers_queued_attach,
    .detach = tiers_queued_detach,
    .register_buffers = tiers_queued_register,
    .trim = file_trim,
    .wake = tiers_queued_wake,
};
