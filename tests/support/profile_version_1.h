/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile_version_1.h - a profile database as schema version 1 made it, in the scratch folder. One
 * thread; cmocka's headers come first.
 */
#ifndef TESTS_PROFILE_VERSION_1_H
#define TESTS_PROFILE_VERSION_1_H

#include "profile_scratch.h"

#include "estimator/profile/host_identity.h"

/* The tables as version 1 wrote them. */
static const char *const version_1[] = {
    "CREATE TABLE run (\n"
    "  id INTEGER PRIMARY KEY,\n"
    "  kind TEXT NOT NULL,\n"
    "  complete INTEGER NOT NULL DEFAULT 0,\n"
    "  host_identity TEXT NOT NULL,\n"
    "  host_name TEXT NOT NULL,\n"
    "  kernel TEXT NOT NULL,\n"
    "  cpu_model TEXT NOT NULL,\n"
    "  cpu_count INTEGER NOT NULL,\n"
    "  memory_bytes INTEGER NOT NULL,\n"
    "  started_utc TEXT NOT NULL,\n"
    "  finished_utc TEXT,\n"
    "  library_version TEXT NOT NULL,\n"
    "  sqlite_version TEXT NOT NULL,\n"
    "  zstd_version TEXT NOT NULL,\n"
    "  command_line TEXT,\n"
    "  seed INTEGER NOT NULL,\n"
    "  CHECK (kind IN ('device', 'codecs') AND complete IN (0, 1))\n"
    ") STRICT",
    "CREATE TABLE device (\n"
    "  id INTEGER PRIMARY KEY,\n"
    "  run_id INTEGER NOT NULL REFERENCES run (id) ON DELETE CASCADE,\n"
    "  name TEXT NOT NULL,\n"
    "  identity TEXT NOT NULL,\n"
    "  engine TEXT NOT NULL,\n"
    "  tier INTEGER NOT NULL,\n"
    "  direct INTEGER NOT NULL,\n"
    "  emulated INTEGER NOT NULL,\n"
    "  virtual_time INTEGER NOT NULL,\n"
    "  capacity_bytes INTEGER NOT NULL,\n"
    "  request_bytes_max INTEGER NOT NULL,\n"
    "  depth_max INTEGER NOT NULL,\n"
    "  depth_achieved INTEGER NOT NULL,\n"
    "  UNIQUE (name, run_id),\n"
    "  CHECK (length(name) BETWEEN 1 AND 31 AND tier BETWEEN 1 AND 3 AND direct IN (0, 1) AND "
    "emulated IN (0, 1) AND virtual_time IN (0, 1) AND capacity_bytes >= 0 AND "
    "request_bytes_max > 0 AND depth_max > 0 AND depth_achieved >= 0)\n"
    ") STRICT",
    "CREATE TABLE device_point (\n"
    "  device_id INTEGER NOT NULL REFERENCES device (id) ON DELETE CASCADE,\n"
    "  kind INTEGER NOT NULL,\n"
    "  request_bytes INTEGER NOT NULL,\n"
    "  depth INTEGER NOT NULL,\n"
    "  repetitions INTEGER NOT NULL,\n"
    "  bytes_per_s REAL NOT NULL,\n"
    "  bytes_per_s_min REAL NOT NULL,\n"
    "  bytes_per_s_max REAL NOT NULL,\n"
    "  latency_seconds_p50 REAL NOT NULL,\n"
    "  latency_seconds_p99 REAL NOT NULL,\n"
    "  PRIMARY KEY (device_id, kind, request_bytes, depth),\n"
    "  CHECK (kind IN (0, 1) AND request_bytes BETWEEN 1 AND 4294967295 AND "
    "depth BETWEEN 1 AND 4294967295 AND repetitions BETWEEN 1 AND 4294967295 AND "
    "bytes_per_s_min > 0 AND bytes_per_s_max < 1e300 AND "
    "bytes_per_s BETWEEN bytes_per_s_min AND bytes_per_s_max AND latency_seconds_p50 >= 0 AND "
    "latency_seconds_p50 <= latency_seconds_p99 AND latency_seconds_p99 < 1e300)\n"
    ") STRICT, WITHOUT ROWID",
    "CREATE TABLE device_fit (\n"
    "  device_id INTEGER NOT NULL REFERENCES device (id) ON DELETE CASCADE,\n"
    "  kind INTEGER NOT NULL,\n"
    "  request_seconds REAL NOT NULL,\n"
    "  bytes_per_s REAL NOT NULL,\n"
    "  residual REAL NOT NULL,\n"
    "  PRIMARY KEY (device_id, kind),\n"
    "  CHECK (kind IN (0, 1) AND request_seconds >= 0 AND request_seconds < 1e300 AND "
    "bytes_per_s > 0 AND bytes_per_s < 1e300 AND residual >= 0 AND residual < 1e300)\n"
    ") STRICT, WITHOUT ROWID",
    "CREATE TABLE codec_curve (\n"
    "  run_id INTEGER NOT NULL REFERENCES run (id) ON DELETE CASCADE,\n"
    "  codec INTEGER NOT NULL,\n"
    "  mode INTEGER NOT NULL,\n"
    "  rate INTEGER NOT NULL,\n"
    "  name TEXT NOT NULL,\n"
    "  stored_share REAL NOT NULL,\n"
    "  encode_bytes_per_s REAL NOT NULL,\n"
    "  decode_bytes_per_s REAL NOT NULL,\n"
    "  source_bytes INTEGER NOT NULL,\n"
    "  repetitions INTEGER NOT NULL,\n"
    "  PRIMARY KEY (run_id, codec, mode, rate),\n"
    "  CHECK (codec BETWEEN 0 AND 65535 AND mode BETWEEN 0 AND 65535 AND "
    "rate BETWEEN 0 AND 4294967295 AND stored_share > 0 AND stored_share < 64 AND "
    "encode_bytes_per_s > 0 AND encode_bytes_per_s < 1e300 AND decode_bytes_per_s > 0 AND "
    "decode_bytes_per_s < 1e300 AND source_bytes > 0 AND repetitions > 0)\n"
    ") STRICT, WITHOUT ROWID",
};

static inline void version_1_run(sqlite3 *database, const char *sql)
{
    char *error = NULL;
    if (sqlite3_exec(database, sql, NULL, NULL, &error) != SQLITE_OK) fail_msg("%s", error);
}

/* Two runs of a device, one of codecs, of this host; extra is run on top. */
static inline void make_version_1(const char *extra)
{
    sqlite3 *database = NULL;
    estimator_host host;
    char run[1024];
    scratch_remove_profile();
    assert_int_equal(sqlite3_open(scratch.path, &database), SQLITE_OK);
    version_1_run(database, "PRAGMA synchronous = OFF; BEGIN");
    for (size_t i = 0; i < sizeof version_1 / sizeof version_1[0]; i++)
        version_1_run(database, version_1[i]);
    estimator_host_read(&host);
    for (int id = 1; id <= 3; id++) {
        snprintf(run, sizeof run,
                 "INSERT INTO run VALUES (%d, '%s', 1, '%s', '%s', 'k', '%s', 2, 4096, "
                 "'2026-01-02T03:04:05Z', '2026-01-02T03:05:05Z', '0.1.0', '3', '1', 'x', 7)",
                 id, id == 3 ? "codecs" : "device", host.identity, host.name, host.cpu_model);
        version_1_run(database, run);
    }
    version_1_run(
        database,
        "INSERT INTO device VALUES (1, 1, 'disk', 'serial', 'io', 3, 1, 0, 0, 99, 9, 9, 9), "
        "(2, 2, 'disk', 'serial', 'io', 3, 1, 0, 0, 99, 9, 9, 9); "
        "INSERT INTO device_point VALUES (1, 1, 4096, 1, 5, 2e9, 1e9, 3e9, 1e-5, 2e-5), "
        "(2, 0, 4096, 1, 5, 2e9, 1e9, 3e9, 1e-5, 2e-5); "
        "INSERT INTO device_fit VALUES (1, 0, 1e-5, 1e9, 0.1), (1, 1, 2e-5, 7e8, 0.2), "
        "(2, 0, 3e-5, 4e9, 0.3); "
        "INSERT INTO codec_curve VALUES (3, 1, 0, 0, 'raw', 1.0, 5e9, 6e9, 1048576, 5); COMMIT");
    if (extra != NULL) version_1_run(database, extra);
    version_1_run(database, "PRAGMA application_id = 1263948880; PRAGMA user_version = 1; "
                            "PRAGMA journal_mode = WAL");
    assert_int_equal(sqlite3_close(database), SQLITE_OK);
}

#endif
