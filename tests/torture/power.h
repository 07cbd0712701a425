/* SPDX-License-Identifier: Apache-2.0 */
/*
 * power.h - what a power cut leaves: a log of all changes to files, and images made from it.
 *
 * power_record.c stands before the C library's calls that change files (writes, sizes, names,
 * syncs) and logs those on one folder, in the order in which they returned. A change is durable at
 * an instant when a sync of its file that began after it has returned; a name, when its folder or
 * its file was synced. Every other change up to the instant may be dropped, kept, or torn in
 * sectors of 512 bytes. Names are dropped from the end alone, as journals do.
 */
#ifndef TESTS_TORTURE_POWER_H
#define TESTS_TORTURE_POWER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

typedef enum power_kind {
    POWER_WRITE = 1,
    POWER_SIZE, /* offset is the size */
    POWER_SYNC, /* of a file: its changes before `covered` are durable */
    POWER_SYNC_NAMES,
    POWER_CREATE, /* name, file */
    POWER_RENAME, /* name -> target */
    POWER_LINK,
    POWER_UNLINK,
    POWER_MARK /* of the caller: number, version */
} power_kind;

enum { POWER_NAME_BYTES = 64, POWER_FILES_MAX = 256 };

typedef struct power_event {
    power_kind kind;
    uint32_t file;
    uint64_t offset;
    uint64_t bytes;
    void *data;
    uint32_t covered;
    char name[POWER_NAME_BYTES];
    char target[POWER_NAME_BYTES];
    int mark; /* the caller's kind of mark */
    uint32_t number;
    uint32_t version;
} power_event;

/* Logs changes of files in the folder until power_record_end. Any thread. */
void power_record_begin(const char *folder);
void power_record_end(void);
void power_mark(int mark, uint32_t number, uint32_t version);

/* The log, once recording has ended. */
const power_event *power_log(uint32_t *count_out);

/* Writes the files as a cut after the first `count` events may leave them. Variant 0 drops all that
 * is not durable, 1 keeps all, others draw by it and the seed. */
void power_write_image(const char *folder, uint32_t count, uint64_t seed, uint32_t variant);

#endif
