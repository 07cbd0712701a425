/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_limits.h - the kernel's figures of a drive in sysfs. Text from there is not trusted: an
 * absent or malformed value is an unknown one.
 *
 * Thread rule: pure, but for reading files.
 */
#ifndef TIERS_DEVICE_LIMITS_H
#define TIERS_DEVICE_LIMITS_H

#include <kvterrace/types.h>

/* Of one request; 0 = unknown. */
typedef struct tiers_block_limits {
    uint64_t transfer_bytes_max; /* the kernel splits, or for passthrough refuses, above it */
    uint64_t segments_max;       /* of 4 KiB in the worst case */
    uint64_t discard_bytes_max;
} tiers_block_limits;

/* First word of folder/name; false when there is none or it does not fit. */
bool tiers_sysfs_word(const char *folder, const char *name, char *word, size_t size);

/* That word as a decimal number; 0 when it is none or above 2^53. */
uint64_t tiers_sysfs_number(const char *folder, const char *name);
uint64_t tiers_limits_parse(const char *word);

/* Reads a block device's queue folder. `hard` takes the hardware's transfer limit, for passthrough;
 * else the one at which the kernel splits. */
void tiers_limits_read(const char *folder, bool hard, tiers_block_limits *out);

/* Where a drive likes requests to begin, by its queue folder: at multiples of its chunk, else of
 * its optimal size; a power of two from 8 to 128 KiB, 0: it says neither. */
uint64_t tiers_limits_start(const char *folder);

/* The same of the block device at a path. 0 for a file, whose place on the drive is not known. */
uint64_t tiers_limits_path_start(const char *path);

/* The largest request, a multiple of 4 KiB and at least that, that fits the limits and `bytes_max`;
 * spare segments are left for buffers that do not begin at a page. */
uint32_t tiers_limits_request_bytes(const tiers_block_limits *limits, uint32_t spare_segments,
                                    uint32_t bytes_max);

#endif
