/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_file.h - the parts of the file back end: opening (device_file.c), what the storage grants
 * (device_file_probe.c) and transfers (device_file_transfer.c).
 *
 * Thread rule: as device_ops.h.
 */
#ifndef TIERS_DEVICE_FILE_H
#define TIERS_DEVICE_FILE_H

#include "device_ops.h"
#include "device_queue.h"
#include "file_claim.h"

enum {
    /* Of capacities, and of every transfer through the page cache, which would else read before it
     * writes. */
    FILE_BLOCK_BYTES = 4096,
    /* Larger requests are split by the kernel (128 segments of 4 KiB on many drives) and charged
     * twice where a block throttle is at work; they gain nothing. */
    FILE_REQUEST_BYTES_MAX = 512 * 1024,
    FILE_CAPACITY_BYTES_MIN = 64 * 1024
};

/* An open file. fd is valid from reach to release. direct says whether the descriptor has O_DIRECT
 * now; every later fact depends on it, so it changes during an open alone. */
typedef struct file_device {
    tiers_queued queued;
    int fd;
    bool direct;
    bool block; /* a block device, else a regular file */
    bool reads; /* opened for reading alone, without a claim */
    bool made;  /* by this open */
    bool draft; /* made, and still under the name of its draft */
    tiers_claim claim;
} file_device;

/* Moves the rest of an operation, from `moved` on, by pread or pwrite; sets status and os_error.
 * Several threads may call it at once, for different operations. */
void file_run(kvt_device *device, kvt_io *io, uint32_t moved);
extern const tiers_queue_calls file_queue_calls;

/* Turns O_DIRECT on or off. */
bool file_set_direct(file_device *file, bool direct);

/* Turns O_DIRECT on if a read through it works; some file systems accept the flag and then refuse
 * each transfer. `block` has FILE_BLOCK_BYTES. KVT_OK, or why the first block cannot be read. */
KVT_NODISCARD kvt_status file_probe_direct(file_device *file, void *block, int *os_error_out);

/* Sets alignment, largest request, identity and whether trimming works. */
void file_probe_facts(file_device *file, const kvt_device_config *config, void *block);

#endif
