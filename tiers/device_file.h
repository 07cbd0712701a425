/*
 * device_file.h - the parts of the file back end: opening (device_file.c), the io_uring engine
 * (device_file_uring.c) and the blocking engine (device_file_sync.c).
 *
 * Thread rule: as device.h.
 */
#ifndef TIERS_DEVICE_FILE_H
#define TIERS_DEVICE_FILE_H

#include "device_internal.h"

#include <liburing.h>

enum {
    /* One page in every mode: what O_DIRECT needs on any drive up to 4 KiB sectors, and what keeps
     * the page cache from reading before it writes. */
    FILE_ALIGN_BYTES = 4096,
    /* Larger requests are split by the kernel (128 segments of 4 KiB) and charged twice where a
     * block throttle is at work. */
    FILE_REQUEST_BYTES_MAX = 512 * 1024,
    FILE_CAPACITY_BYTES_MIN = 64 * 1024,
    FILE_DEPTH_DEFAULT = 32,
    FILE_DEPTH_MAX = 4096,
    FILE_RETRIES_MAX = 64 /* of one operation, without progress */
};

/* A list of operations through kvt_io.next. */
typedef struct file_list {
    kvt_io *head;
    kvt_io *tail;
} file_list;

typedef struct file_ring {
    struct io_uring uring;
    file_list queued; /* in the submission queue, not yet taken by the kernel; in order */
    uint32_t queued_count;
    uint32_t kernel_count; /* taken by the kernel, completion not yet seen */
    uint32_t refusals;     /* in a row, with nothing in the kernel */
    file_list ready;       /* finished by the blocking engine after the ring broke */
    bool fixed_file;
    bool broken; /* the kernel refused to take entries: nothing is submitted to it any more */
} file_ring;

typedef struct file_device {
    kvt_device base;
    int fd;
    bool direct;
    bool block; /* a block device, else a regular file */
    bool made;  /* by this open */
    bool has_ring;
    file_ring ring;
} file_device;

/* What an errno of an open or sync means to our callers; of a read or write, where only the
 * statuses of kvt_io.status can be. */
kvt_status file_status_of_errno(int os_error);
kvt_status file_status_of_transfer(int os_error);

/* A transfer met the end of the storage, which ought to reach further: KVT_E_GONE when it is empty
 * or cannot be asked (a drive or loop that was detached), else KVT_E_IO. */
kvt_status file_status_of_end(const file_device *file);

/* Moves the rest of an operation, from `moved` on, by pread or pwrite; sets status and os_error. */
void file_sync_run(file_device *file, kvt_io *io, uint32_t moved);

/* Takes a count of moved bytes back to where a direct transfer may continue. */
static inline uint32_t file_round_moved(const file_device *file, uint32_t moved)
{
    return file->direct ? moved & ~(uint32_t)(FILE_ALIGN_BYTES - 1) : moved;
}

/* Makes the ring. False when the kernel refuses: the blocking engine does the work then. */
bool file_ring_open(file_device *file, uint32_t depth);
void file_ring_close(file_device *file);
kvt_status file_ring_submit(file_device *file, kvt_io *io);
void file_ring_flush(file_device *file);
size_t file_ring_reap(file_device *file, kvt_io **done, size_t min, size_t max,
                      uint64_t timeout_ns);

#endif
