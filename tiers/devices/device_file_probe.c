/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_file_probe.c - finds the facts of a file or block device: O_DIRECT, alignment, the largest
 * request that is not split, a name that stays, trimming. Each fact is tried or asked for, never
 * assumed.
 *
 * A probe never changes a byte of the storage: it reads, asks the kernel, or punches a hole behind
 * the end of a file.
 */
#include "device_file.h"
#include "device_limits.h"
#include "device_signature.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/falloc.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>
#include <xxhash.h>

/* The least alignment that a drive can have, and room for a path in sysfs. */
enum { FILE_SECTOR_BYTES_MIN = 512, FILE_SYSFS_BYTES = 64 };

bool file_set_direct(file_device *file, bool direct)
{
    int flags = fcntl(file->fd, F_GETFL);
    if (flags < 0) return false;
    file->direct = direct;
    return fcntl(file->fd, F_SETFL, direct ? flags | O_DIRECT : flags & ~O_DIRECT) == 0;
}

kvt_status file_probe_direct(file_device *file, void *block, int *os_error_out)
{
    if (!file_set_direct(file, true)) {
        file->direct = false;
        return KVT_OK;
    }
    kvt_io probe = {.kind = KVT_IO_READ, .bytes = FILE_BLOCK_BYTES, .buffer = block};
    file_run(&file->queued.base, &probe, 0);
    *os_error_out = probe.os_error;
    if (probe.status == KVT_OK) return KVT_OK;
    if (probe.os_error != EINVAL && probe.os_error != EOPNOTSUPP) return probe.status;
    if (file_set_direct(file, false)) return KVT_OK;
    *os_error_out = errno;
    return tiers_status_of_errno(errno);
}

/* A block device is aligned to its physical sectors, below which it reads before it writes. A block
 * device that cannot be asked gets 4 KiB, which every device takes. */
static uint32_t file_block_align(const file_device *file)
{
    int logical = 0;
    unsigned physical = 0;
    if (ioctl(file->fd, BLKSSZGET, &logical) != 0 || ioctl(file->fd, BLKPBSZGET, &physical) != 0)
        return FILE_BLOCK_BYTES;
    uint32_t sector = physical > (uint32_t)logical ? physical : (uint32_t)logical;
    return sector;
}

/* The alignment of a regular file: statx's where the kernel has it, else tried by a read. The
 * larger of the alignments of memory and offset counts, because callers know one alone. */
static uint32_t file_regular_align(file_device *file, void *block)
{
#ifdef STATX_DIOALIGN
    struct statx facts = {0};
    if (statx(file->fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &facts) == 0 &&
        (facts.stx_mask & STATX_DIOALIGN) != 0 && facts.stx_dio_offset_align != 0) {
        uint32_t memory = facts.stx_dio_mem_align;
        uint32_t offset = facts.stx_dio_offset_align;
        return memory > offset ? memory : offset;
    }
#endif
    /* A buffer that is aligned to a sector and not to a page tests both alignments at once. */
    char *buffer = (char *)block + FILE_SECTOR_BYTES_MIN;
    const ssize_t read = pread(file->fd, buffer, FILE_SECTOR_BYTES_MIN, FILE_SECTOR_BYTES_MIN);
    return read == FILE_SECTOR_BYTES_MIN ? FILE_SECTOR_BYTES_MIN : FILE_BLOCK_BYTES;
}

/* The alignment of requests: a power of two between a sector and 4 KiB. Through the page cache it
 * is 4 KiB. An answer that makes no sense counts as 4 KiB. */
static uint32_t file_probe_align(file_device *file, void *block)
{
    if (!file->direct) return FILE_BLOCK_BYTES;
    uint32_t align = file->block ? file_block_align(file) : file_regular_align(file, block);
    bool power = align != 0 && (align & (align - 1)) == 0;
    if (!power || align > FILE_BLOCK_BYTES) return FILE_BLOCK_BYTES;
    return align < FILE_SECTOR_BYTES_MIN ? FILE_SECTOR_BYTES_MIN : align;
}

/* The drive below a file, or the block device itself. A partition has the queue of its drive.
 * Limits that cannot be read are unknown, never 0 bytes. */
static void file_find_limits(dev_t drive, tiers_block_limits *out)
{
    char folder[FILE_SYSFS_BYTES];
    const char *const queues[] = {"queue", "../queue"};
    *out = (tiers_block_limits){0};
    for (size_t i = 0; i < 2 && out->transfer_bytes_max == 0; i++) {
        snprintf(folder, sizeof folder, "/sys/dev/block/%u:%u/%s", major(drive), minor(drive),
                 queues[i]);
        tiers_limits_read(folder, false, out);
    }
}

/* Behind the end of a file there is nothing to lose. The hole is of one block, at the first whole
 * block behind the end. */
static bool file_can_punch(const file_device *file)
{
    struct stat facts;
    return fstat(file->fd, &facts) == 0 &&
           fallocate(file->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                     (facts.st_size + FILE_BLOCK_BYTES - 1) / FILE_BLOCK_BYTES * FILE_BLOCK_BYTES,
                     FILE_BLOCK_BYTES) == 0;
}

/* A drive by its serial number, which stays when it moves to another port; a file by device, inode
 * and path. A path that is too long keeps its tail and a hash of the whole. The identity keeps
 * learned figures with the drive that they were measured on. */
static void file_identify(file_device *file, const struct stat *facts, const char *path)
{
    char *identity = file->queued.base.facts.identity;
    const size_t size = sizeof file->queued.base.facts.identity;
    char folder[FILE_SYSFS_BYTES];
    char word[48];
    char part[16] = "0";
    if (file->block) {
        snprintf(folder, sizeof folder, "/sys/dev/block/%u:%u", major(facts->st_rdev),
                 minor(facts->st_rdev));
        (void)tiers_sysfs_word(folder, "partition", part, sizeof part);
        if (tiers_sysfs_word(folder, "serial", word, sizeof word) ||
            tiers_sysfs_word(folder, "device/serial", word, sizeof word) ||
            tiers_sysfs_word(folder, "../device/serial", word, sizeof word)) {
            snprintf(identity, size, "block serial=%s part=%s", word, part);
            return;
        }
        snprintf(word, sizeof word, "block %u:%u", major(facts->st_rdev), minor(facts->st_rdev));
    } else {
        snprintf(word, sizeof word, "file %u:%u/%" PRIu64, major(facts->st_dev),
                 minor(facts->st_dev), (uint64_t)facts->st_ino);
    }
    char *real = realpath(path, NULL);
    const char *name = real != NULL ? real : path;
    size_t length = strlen(name);
    size_t room = size - strlen(word) - 2;
    if (length <= room) {
        snprintf(identity, size, "%s %.*s", word, (int)length, name);
    } else {
        snprintf(identity, size, "%s %016" PRIx64 "..%s", word, (uint64_t)XXH3_64bits(name, length),
                 name + length - (room - 18));
    }
    free(real);
}

/* Marks of another use are looked for on block devices alone: a file of ours has its own name. The
 * identity comes last, because it needs the storage's numbers. */
void file_probe_facts(file_device *file, const kvt_device_config *config, void *block)
{
    kvt_device_facts *facts = &file->queued.base.facts;
    tiers_block_limits limits;
    struct stat storage = {0};
    (void)fstat(file->fd, &storage);
    file_find_limits(file->block ? storage.st_rdev : storage.st_dev, &limits);
    facts->align_bytes = file_probe_align(file, block);
    facts->request_bytes_max = tiers_limits_request_bytes(&limits, 0, FILE_REQUEST_BYTES_MAX);
    facts->flags |= KVT_DEVICE_DURABLE;
    if (file->direct) facts->flags |= KVT_DEVICE_DIRECT;
    bool can_trim = file->block ? limits.discard_bytes_max != 0 : file_can_punch(file);
    if (config->trim && can_trim) facts->flags |= KVT_DEVICE_TRIM;
    if (config->sparse && can_trim && !file->block) facts->flags |= KVT_DEVICE_SPARSE;
    uint64_t drive_bytes = 0;
    if (file->block && ioctl(file->fd, BLKGETSIZE64, &drive_bytes) == 0 &&
        tiers_signature_found(&file->queued.base, file_run, drive_bytes, block))
        facts->flags |= KVT_DEVICE_FOREIGN;
    file_identify(file, &storage, config->path);
}
