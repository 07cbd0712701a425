/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_limits.c - numbers and words of sysfs, read as text of somebody else: a value that is
 * missing, too long or not a number counts as 0, which means unknown. Nothing here opens a device.
 */
#include "device_limits.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

/* A page is the unit of segments, and the least request that every drive takes. */
enum { LIMITS_PAGE_BYTES = 4096, LIMITS_PATH_BYTES = 192 };

bool tiers_sysfs_word(const char *folder, const char *name, char *word, size_t size)
{
    char path[LIMITS_PATH_BYTES];
    int length = snprintf(path, sizeof path, "%s/%s", folder, name);
    if (length < 0 || (size_t)length >= sizeof path) return false;
    FILE *stream = fopen(path, "re");
    if (stream == NULL) return false;
    bool found = fgets(word, (int)size, stream) != NULL;
    bool whole = found && (strpbrk(word, " \t\n") != NULL || feof(stream));
    fclose(stream);
    if (!whole) return false;
    word[strcspn(word, " \t\n")] = '\0';
    return word[0] != '\0';
}

uint64_t tiers_limits_parse(const char *word)
{
    const uint64_t largest = UINT64_C(1) << 53;
    uint64_t value = 0;
    if (*word == '\0') return 0;
    for (; *word != '\0'; word++) {
        if (*word < '0' || *word > '9') return 0;
        value = value * 10 + (uint64_t)(*word - '0');
        if (value > largest) return 0;
    }
    return value;
}

uint64_t tiers_sysfs_number(const char *folder, const char *name)
{
    char word[32];
    return tiers_sysfs_word(folder, name, word, sizeof word) ? tiers_limits_parse(word) : 0;
}

void tiers_limits_read(const char *folder, bool hard, tiers_block_limits *out)
{
    const char *transfer = hard ? "max_hw_sectors_kb" : "max_sectors_kb";
    out->transfer_bytes_max = tiers_sysfs_number(folder, transfer) * 1024;
    out->segments_max = tiers_sysfs_number(folder, "max_segments");
    out->discard_bytes_max = tiers_sysfs_number(folder, "discard_max_bytes");
}

/* A value that is no power of two, as 3 x 64 KiB of an array, says nothing of single requests; the
 * largest power of two in it does. */
uint64_t tiers_limits_start(const char *folder)
{
    const uint64_t most = UINT64_C(128) << 10;
    uint64_t bytes = tiers_sysfs_number(folder, "chunk_sectors") * 512;
    if (bytes == 0) bytes = tiers_sysfs_number(folder, "optimal_io_size");
    bytes &= ~bytes + 1;
    if (bytes > most) bytes = most;
    return bytes > LIMITS_PAGE_BYTES ? bytes : 0;
}

uint64_t tiers_limits_path_start(const char *path)
{
    const char *const queues[] = {"queue", "../queue"}; /* of a partition: its drive's */
    struct stat facts;
    uint64_t start = 0;
    if (path == NULL || stat(path, &facts) != 0 || !S_ISBLK(facts.st_mode)) return 0;
    for (size_t i = 0; i < 2 && start == 0; i++) {
        char folder[64];
        snprintf(folder, sizeof folder, "/sys/dev/block/%u:%u/%s", major(facts.st_rdev),
                 minor(facts.st_rdev), queues[i]);
        start = tiers_limits_start(folder);
    }
    return start;
}

/* The worst case of segments counts: every page of a buffer may be a segment of its own. */
uint32_t tiers_limits_request_bytes(const tiers_block_limits *limits, uint32_t spare_segments,
                                    uint32_t bytes_max)
{
    assert(bytes_max >= LIMITS_PAGE_BYTES);
    uint64_t bytes = bytes_max;
    if (limits->transfer_bytes_max != 0 && limits->transfer_bytes_max < bytes)
        bytes = limits->transfer_bytes_max;
    if (limits->segments_max != 0) {
        uint64_t segments =
            limits->segments_max > spare_segments ? limits->segments_max - spare_segments : 1;
        if (segments < bytes / LIMITS_PAGE_BYTES) bytes = segments * LIMITS_PAGE_BYTES;
    }
    bytes = bytes / LIMITS_PAGE_BYTES * LIMITS_PAGE_BYTES;
    return bytes != 0 ? (uint32_t)bytes : LIMITS_PAGE_BYTES;
}
