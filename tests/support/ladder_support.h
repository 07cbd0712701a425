/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ladder_support.h - profiles with a made-up calibration, for tests of stores with a ladder.
 */
#ifndef TESTS_LADDER_SUPPORT_H
#define TESTS_LADDER_SUPPORT_H

#include "estimator/profile/profile.h"
#include "store_support.h"

#include <sqlite3.h>

typedef struct test_rung {
    const char *name;
    double bits, loss, upper;
    bool accepted;
} test_rung;

static inline void ladder_run_sql(sqlite3 *database, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    char *sql = sqlite3_vmprintf(format, arguments);
    va_end(arguments);
    char *error = NULL;
    if (sqlite3_exec(database, sql, NULL, NULL, &error) != SQLITE_OK)
        fail_msg("%s: %s", sql, error != NULL ? error : "");
    sqlite3_free(sql);
}

/* A profile with a calibration of the model "tiny" (2 layers x 2 KV heads x 64) for the class
 * "stories"; without rungs there is none. */
static inline void ladder_make_profile(const char *path, const test_rung *rungs, uint32_t count)
{
    kvt_profile *profile = NULL;
    sqlite3 *database = NULL;
    char message[256] = "";
    assert_ok(kvt_profile_open(path, KVT_PROFILE_WRITE, &profile, message, sizeof message));
    kvt_profile_close(profile);
    if (count == 0) return;
    assert_int_equal(sqlite3_open(path, &database), SQLITE_OK);
    ladder_run_sql(database,
                   "INSERT INTO run (id, kind, complete, host_identity, host_name, kernel, "
                   "cpu_model, cpu_count, memory_bytes, started_utc, library_version, "
                   "sqlite_version, zstd_version, seed) VALUES (1, 'calibration', 1, '', '', '', "
                   "'', 1, 1, '', '0', '', '', 1)");
    ladder_run_sql(database, "INSERT INTO model VALUES (1, 'tiny', '', 0, 2, 4, 2, 64, 0)");
    ladder_run_sql(database, "INSERT INTO calibration VALUES (1, 1, 1, 'stories')");
    for (uint32_t i = 0; i < count; i++) {
        const test_rung *rung = &rungs[i];
        kvt_variant variant;
        assert_ok(kvt_variant_parse(rung->name, &variant));
        ladder_run_sql(database,
                       "INSERT INTO calibration_rung (calibration_id, position, codec, mode, rate, "
                       "name, bits_per_element, loss, loss_upper, accepted, evidence) VALUES (1, "
                       "%u, %d, %d, %u, %Q, %f, %f, %f, %d, 'made up')",
                       (unsigned)i, variant.codec, variant.mode, (unsigned)variant.rate, rung->name,
                       rung->bits, rung->loss, rung->upper, rung->accepted);
    }
    assert_int_equal(sqlite3_close(database), SQLITE_OK);
}

/* Options of a store in memory whose entries of that layout take their forms from a profile. */
static inline kvt_store_options ladder_store_options(const char *profile_path,
                                                     const kvt_layout *layout, uint64_t dram_bytes)
{
    kvt_store_options options;
    kvt_store_options_init(&options);
    options.limits.put_staging_bytes = 0; /* a put says how its write went */
    options.limits.staging_bytes = 16 << 20;
    options.tiers[KVT_TIER_DRAM].capacity_bytes = dram_bytes;
    options.limits.tick_seconds = 0;
    options.learning.profile_path = profile_path;
    options.loss.ladder = true;
    options.loss.ladder_layout = *layout;
    options.loss.alpha_seconds = 1;
    return options;
}

#endif
