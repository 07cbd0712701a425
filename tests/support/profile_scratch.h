/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile_scratch.h - a profile database in a folder of its own, for tests: made, changed behind
 * the library's back, compared byte for byte. One thread; cmocka's headers come first.
 */
#ifndef TESTS_PROFILE_SCRATCH_H
#define TESTS_PROFILE_SCRATCH_H

#include "estimator/measure/measure.h"
#include "estimator/profile/profile.h"
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct profile_scratch {
    char folder[64];
    char path[128];
    char message[512];
} profile_scratch;

static profile_scratch scratch;

static inline int scratch_make(void **state)
{
    (void)state;
    snprintf(scratch.folder, sizeof scratch.folder, "profile-scratch-XXXXXX");
    if (mkdtemp(scratch.folder) == NULL) return -1;
    snprintf(scratch.path, sizeof scratch.path, "%s/profile.db", scratch.folder);
    return 0;
}

static inline void scratch_remove_profile(void)
{
    static const char *const endings[] = {"", "-wal", "-shm", "-journal"};
    for (size_t i = 0; i < 4; i++) {
        char name[160];
        snprintf(name, sizeof name, "%s%s", scratch.path, endings[i]);
        (void)unlink(name);
    }
}

/* Fails when anything but the profile was left in the folder. */
static inline int scratch_remove(void **state)
{
    (void)state;
    scratch_remove_profile();
    return rmdir(scratch.folder);
}

static inline kvt_profile *scratch_open(uint32_t flags)
{
    kvt_profile *profile = NULL;
    kvt_status status =
        kvt_profile_open(scratch.path, flags, &profile, scratch.message, sizeof scratch.message);
    if (status != KVT_OK) fail_msg("%s: %s", kvt_status_name(status), scratch.message);
    return profile;
}

static inline void scratch_change(const char *sql)
{
    sqlite3 *database = NULL;
    char *error = NULL;
    assert_int_equal(sqlite3_open(scratch.path, &database), SQLITE_OK);
    if (sqlite3_exec(database, sql, NULL, NULL, &error) != SQLITE_OK) fail_msg("%s", error);
    assert_int_equal(sqlite3_close(database), SQLITE_OK);
}

/* The first column of a statement's first row. */
static inline long long scratch_number(const char *sql)
{
    sqlite3 *database = NULL;
    sqlite3_stmt *statement = NULL;
    assert_int_equal(sqlite3_open(scratch.path, &database), SQLITE_OK);
    if (sqlite3_prepare_v2(database, sql, -1, &statement, NULL) != SQLITE_OK)
        fail_msg("%s", sqlite3_errmsg(database));
    assert_int_equal(sqlite3_step(statement), SQLITE_ROW);
    long long value = sqlite3_column_int64(statement, 0);
    assert_int_equal(sqlite3_finalize(statement), SQLITE_OK);
    assert_int_equal(sqlite3_close(database), SQLITE_OK);
    return value;
}

static inline char *scratch_bytes(size_t *count)
{
    FILE *file = fopen(scratch.path, "rb");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    *count = (size_t)ftell(file);
    rewind(file);
    char *bytes = test_alloc(*count + 1);
    assert_int_equal(fread(bytes, 1, *count, file), *count);
    fclose(file);
    return bytes;
}

/* Opening gives this status and not one byte changes. */
static inline void scratch_refused(uint32_t flags, kvt_status expected)
{
    size_t before_count, after_count;
    char *before = scratch_bytes(&before_count);
    kvt_profile *profile = NULL;
    kvt_status status =
        kvt_profile_open(scratch.path, flags, &profile, scratch.message, sizeof scratch.message);
    if (status != expected)
        fail_msg("flags %u: %s: %s", flags, kvt_status_name(status), scratch.message);
    assert_null(profile);
    assert_true(strlen(scratch.message) > strlen(scratch.path));
    char *after = scratch_bytes(&after_count);
    assert_int_equal(before_count, after_count);
    assert_memory_equal(before, after, before_count);
}

/* Measures a simulated device: quick, one repetition, reads alone unless there is a range. */
static inline void scratch_measure(kvt_profile *profile, const char *name, uint64_t rate,
                                   uint64_t write_bytes)
{
    kvt_device_config config = {.struct_size = sizeof config,
                                .name = name,
                                .backend = "sim",
                                .capacity_bytes = 1u << 24,
                                .read_bytes_per_s = rate,
                                .write_bytes_per_s = rate,
                                .latency_ns = 1000};
    kvt_profile_request request = {
        .struct_size = sizeof request, .repetitions = 1, .quick = true, .command_line = "x"};
    kvt_device *device = NULL;
    assert_ok(kvt_device_open(&config, &device, NULL, 0));
    assert_ok(kvt_profile_measure_device(profile, device, KVT_TIER_SSD, 0, write_bytes, &request));
    kvt_device_close(device);
}

#endif
