/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile_schema.c - the tables of the profile database (docs/PROFILE.md explains the columns).
 *
 * Every bound that a reader relies on stands in its table's CHECK, and is asked for once more at
 * open: SQLite's quick_check leaves CHECKs out on read-only connections. 1e300 keeps infinity out.
 * The primary key's columns come first in their declared order; SQLite 3.40 reports false NULLs in
 * WITHOUT ROWID tables otherwise.
 */
#include "estimator/profile/profile_internal.h"

#define RUN_BOUNDS                                                                                 \
    "kind IN ('device', 'codecs', 'quality', 'calibration', 'import', 'learned') AND "             \
    "complete IN (0, 1) AND (kind <> 'import' OR length(source) > 0)"

#define DEVICE_BOUNDS                                                                              \
    "length(name) BETWEEN 1 AND 31 AND tier BETWEEN 1 AND 3 AND direct IN (0, 1) AND "             \
    "emulated IN (0, 1) AND virtual_time IN (0, 1) AND capacity_bytes >= 0 AND "                   \
    "request_bytes_max > 0 AND depth_max > 0 AND depth_achieved >= 0"

#define POINT_BOUNDS                                                                               \
    "kind IN (0, 1) AND request_bytes BETWEEN 1 AND 4294967295 AND "                               \
    "depth BETWEEN 1 AND 4294967295 AND repetitions BETWEEN 1 AND 4294967295 AND "                 \
    "bytes_per_s_min > 0 AND bytes_per_s_max < 1e300 AND "                                         \
    "bytes_per_s BETWEEN bytes_per_s_min AND bytes_per_s_max AND latency_seconds_p50 >= 0 AND "    \
    "latency_seconds_p50 <= latency_seconds_p99 AND latency_seconds_p99 < 1e300"

#define FIT_BOUNDS                                                                                 \
    "kind IN (0, 1) AND request_seconds >= 0 AND request_seconds < 1e300 AND "                     \
    "bytes_per_s > 0 AND bytes_per_s < 1e300 AND residual >= 0 AND residual < 1e300"

#define MIXED_BOUNDS                                                                               \
    "request_bytes BETWEEN 1 AND 4294967295 AND depth BETWEEN 1 AND 4294967295 AND "               \
    "read_share > 0 AND read_share < 1 AND repetitions > 0 AND bytes_per_s > 0 AND "               \
    "bytes_per_s < 1e300 AND unmixed_bytes_per_s > 0 AND unmixed_bytes_per_s < 1e300 AND "         \
    "read_latency_seconds_p50 >= 0 AND "                                                           \
    "read_latency_seconds_p50 <= read_latency_seconds_p99 AND read_latency_seconds_p99 < 1e300"

#define CODEC_BOUNDS                                                                               \
    "codec BETWEEN 0 AND 65535 AND mode BETWEEN 0 AND 65535 AND "                                  \
    "rate BETWEEN 0 AND 4294967295 AND length(isa) > 0 AND threads > 0 AND "                       \
    "length(source) > 0 AND stored_share > 0 AND stored_share < 64 AND "                           \
    "encode_bytes_per_s > 0 AND encode_bytes_per_s < 1e300 AND decode_bytes_per_s > 0 AND "        \
    "decode_bytes_per_s < 1e300 AND source_bytes > 0 AND repetitions > 0"

static const profile_table profile_measured_tables[] = {
    {"run",
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
     "  source TEXT NOT NULL DEFAULT '',\n"
     "  CHECK (" RUN_BOUNDS ")\n"
     ") STRICT",
     RUN_BOUNDS},
    {"device",
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
     "  CHECK (" DEVICE_BOUNDS ")\n"
     ") STRICT",
     DEVICE_BOUNDS},
    {"device_point",
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
     "  CHECK (" POINT_BOUNDS ")\n"
     ") STRICT, WITHOUT ROWID",
     POINT_BOUNDS},
    {"device_fit",
     "CREATE TABLE device_fit (\n"
     "  device_id INTEGER NOT NULL REFERENCES device (id) ON DELETE CASCADE,\n"
     "  kind INTEGER NOT NULL,\n"
     "  request_seconds REAL NOT NULL,\n"
     "  bytes_per_s REAL NOT NULL,\n"
     "  residual REAL NOT NULL,\n"
     "  PRIMARY KEY (device_id, kind),\n"
     "  CHECK (" FIT_BOUNDS ")\n"
     ") STRICT, WITHOUT ROWID",
     FIT_BOUNDS},
    {"device_mixed",
     "CREATE TABLE device_mixed (\n"
     "  device_id INTEGER NOT NULL REFERENCES device (id) ON DELETE CASCADE,\n"
     "  request_bytes INTEGER NOT NULL,\n"
     "  depth INTEGER NOT NULL,\n"
     "  read_share REAL NOT NULL,\n"
     "  repetitions INTEGER NOT NULL,\n"
     "  bytes_per_s REAL NOT NULL,\n"
     "  unmixed_bytes_per_s REAL NOT NULL,\n"
     "  read_latency_seconds_p50 REAL NOT NULL,\n"
     "  read_latency_seconds_p99 REAL NOT NULL,\n"
     "  PRIMARY KEY (device_id, request_bytes, depth, read_share),\n"
     "  CHECK (" MIXED_BOUNDS ")\n"
     ") STRICT, WITHOUT ROWID",
     MIXED_BOUNDS},
    {"codec_curve",
     "CREATE TABLE codec_curve (\n"
     "  run_id INTEGER NOT NULL REFERENCES run (id) ON DELETE CASCADE,\n"
     "  codec INTEGER NOT NULL,\n"
     "  mode INTEGER NOT NULL,\n"
     "  rate INTEGER NOT NULL,\n"
     "  isa TEXT NOT NULL,\n"
     "  threads INTEGER NOT NULL,\n"
     "  source TEXT NOT NULL,\n"
     "  name TEXT NOT NULL,\n"
     "  stored_share REAL NOT NULL,\n"
     "  encode_bytes_per_s REAL NOT NULL,\n"
     "  decode_bytes_per_s REAL NOT NULL,\n"
     "  source_bytes INTEGER NOT NULL,\n"
     "  repetitions INTEGER NOT NULL,\n"
     "  PRIMARY KEY (run_id, codec, mode, rate, isa, threads, source),\n"
     "  CHECK (" CODEC_BOUNDS ")\n"
     ") STRICT, WITHOUT ROWID",
     CODEC_BOUNDS},
};

#define MEASURED_COUNT (sizeof profile_measured_tables / sizeof profile_measured_tables[0])

const profile_table *profile_table_at(size_t index)
{
    if (index < MEASURED_COUNT) return &profile_measured_tables[index];
    index -= MEASURED_COUNT;
    return index < PROFILE_QUALITY_TABLE_COUNT ? &profile_quality_tables[index] : NULL;
}
