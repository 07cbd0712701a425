/*
 * profile_schema.c - the tables of the profile database (docs/PROFILE.md explains the columns).
 *
 * Every bound that a reader relies on is a CHECK, so the check at open (quick_check covers CHECK,
 * NOT NULL and STRICT types) leaves no impossible figure to a decision. 1e300 keeps infinity out.
 */
#include "estimator/profile_internal.h"

const profile_table profile_tables[PROFILE_TABLE_COUNT] = {
    {"run", "CREATE TABLE run (\n"
            "  id INTEGER PRIMARY KEY,\n"
            "  kind TEXT NOT NULL CHECK (kind IN ('device', 'codecs')),\n"
            "  complete INTEGER NOT NULL DEFAULT 0 CHECK (complete IN (0, 1)),\n"
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
            "  seed INTEGER NOT NULL\n"
            ") STRICT"},
    {"device", "CREATE TABLE device (\n"
               "  id INTEGER PRIMARY KEY,\n"
               "  run_id INTEGER NOT NULL REFERENCES run (id) ON DELETE CASCADE,\n"
               "  name TEXT NOT NULL CHECK (length(name) BETWEEN 1 AND 31),\n"
               "  identity TEXT NOT NULL,\n"
               "  engine TEXT NOT NULL,\n"
               "  tier INTEGER NOT NULL CHECK (tier BETWEEN 1 AND 3),\n"
               "  direct INTEGER NOT NULL CHECK (direct IN (0, 1)),\n"
               "  emulated INTEGER NOT NULL CHECK (emulated IN (0, 1)),\n"
               "  virtual_time INTEGER NOT NULL CHECK (virtual_time IN (0, 1)),\n"
               "  capacity_bytes INTEGER NOT NULL CHECK (capacity_bytes >= 0),\n"
               "  request_bytes_max INTEGER NOT NULL CHECK (request_bytes_max > 0),\n"
               "  depth_max INTEGER NOT NULL CHECK (depth_max > 0),\n"
               "  depth_achieved INTEGER NOT NULL CHECK (depth_achieved >= 0),\n"
               "  UNIQUE (name, run_id)\n"
               ") STRICT"},
    {"device_point",
     "CREATE TABLE device_point (\n"
     "  device_id INTEGER NOT NULL REFERENCES device (id) ON DELETE CASCADE,\n"
     "  kind INTEGER NOT NULL CHECK (kind IN (0, 1)),\n"
     "  request_bytes INTEGER NOT NULL CHECK (request_bytes BETWEEN 1 AND 4294967295),\n"
     "  depth INTEGER NOT NULL CHECK (depth BETWEEN 1 AND 4294967295),\n"
     "  repetitions INTEGER NOT NULL CHECK (repetitions BETWEEN 1 AND 4294967295),\n"
     "  bytes_per_s REAL NOT NULL CHECK (bytes_per_s > 0 AND bytes_per_s < 1e300),\n"
     "  bytes_per_s_min REAL NOT NULL CHECK (bytes_per_s_min > 0),\n"
     "  bytes_per_s_max REAL NOT NULL CHECK (bytes_per_s_max < 1e300),\n"
     "  latency_seconds_p50 REAL NOT NULL CHECK (latency_seconds_p50 >= 0),\n"
     "  latency_seconds_p99 REAL NOT NULL CHECK (latency_seconds_p99 < 1e300),\n"
     "  CHECK (bytes_per_s BETWEEN bytes_per_s_min AND bytes_per_s_max),\n"
     "  CHECK (latency_seconds_p50 <= latency_seconds_p99),\n"
     "  PRIMARY KEY (device_id, kind, request_bytes, depth)\n"
     ") STRICT, WITHOUT ROWID"},
    {"device_fit",
     "CREATE TABLE device_fit (\n"
     "  device_id INTEGER NOT NULL REFERENCES device (id) ON DELETE CASCADE,\n"
     "  kind INTEGER NOT NULL CHECK (kind IN (0, 1)),\n"
     "  request_seconds REAL NOT NULL CHECK (request_seconds >= 0 AND request_seconds < 1e300),\n"
     "  bytes_per_s REAL NOT NULL CHECK (bytes_per_s > 0 AND bytes_per_s < 1e300),\n"
     "  residual REAL NOT NULL CHECK (residual >= 0 AND residual < 1e300),\n"
     "  PRIMARY KEY (device_id, kind)\n"
     ") STRICT, WITHOUT ROWID"},
    {"codec_curve",
     "CREATE TABLE codec_curve (\n"
     "  run_id INTEGER NOT NULL REFERENCES run (id) ON DELETE CASCADE,\n"
     "  codec INTEGER NOT NULL CHECK (codec BETWEEN 0 AND 65535),\n"
     "  mode INTEGER NOT NULL CHECK (mode BETWEEN 0 AND 65535),\n"
     "  rate INTEGER NOT NULL CHECK (rate BETWEEN 0 AND 4294967295),\n"
     "  name TEXT NOT NULL,\n"
     "  stored_share REAL NOT NULL CHECK (stored_share > 0 AND stored_share < 64),\n"
     "  encode_bytes_per_s REAL NOT NULL CHECK (encode_bytes_per_s > 0 AND encode_bytes_per_s < "
     "1e300),\n"
     "  decode_bytes_per_s REAL NOT NULL CHECK (decode_bytes_per_s > 0 AND decode_bytes_per_s < "
     "1e300),\n"
     "  source_bytes INTEGER NOT NULL CHECK (source_bytes > 0),\n"
     "  repetitions INTEGER NOT NULL CHECK (repetitions > 0),\n"
     "  PRIMARY KEY (run_id, codec, mode, rate)\n"
     ") STRICT, WITHOUT ROWID"},
};
