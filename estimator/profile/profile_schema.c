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
    "kind IN ('device', 'codecs', 'quality', 'calibration', 'import', 'learned', 'slack') AND "    \
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

#define START_BOUNDS                                                                               \
    "request_bytes BETWEEN 1 AND 4294967295 AND "                                                  \
    "begins_at IN (4096, 8192, 16384, 32768, 65536, 131072) AND "                                  \
    "depth BETWEEN 1 AND 4294967295 AND repetitions BETWEEN 1 AND 4294967295 AND "                 \
    "bytes_per_s_min > 0 AND bytes_per_s_max < 1e300 AND "                                         \
    "bytes_per_s BETWEEN bytes_per_s_min AND bytes_per_s_max"

#define CODEC_BOUNDS                                                                               \
    "codec BETWEEN 0 AND 65535 AND mode BETWEEN 0 AND 65535 AND "                                  \
    "rate BETWEEN 0 AND 4294967295 AND length(isa) > 0 AND threads > 0 AND "                       \
    "length(source) > 0 AND stored_share > 0 AND stored_share < 64 AND "                           \
    "encode_bytes_per_s > 0 AND encode_bytes_per_s < 1e300 AND decode_bytes_per_s > 0 AND "        \
    "decode_bytes_per_s < 1e300 AND source_bytes > 0 AND repetitions > 0"

#define ROWS  "STRICT"
#define KEYED "STRICT, WITHOUT ROWID"
#define TABLE(name, kind, bounds, columns)                                                         \
    {                                                                                              \
        name, "CREATE TABLE " name " (\n" columns "  CHECK (" bounds ")\n) " kind, bounds          \
    }

static const profile_table profile_measured_tables[] = {
    TABLE("run", ROWS, RUN_BOUNDS,
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
          "  source TEXT NOT NULL DEFAULT '',\n"),
    TABLE("device", ROWS, DEVICE_BOUNDS,
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
          "  UNIQUE (name, run_id),\n"),
    TABLE("device_point", KEYED, POINT_BOUNDS,
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
          "  PRIMARY KEY (device_id, kind, request_bytes, depth),\n"),
    TABLE("device_fit", KEYED, FIT_BOUNDS,
          "  device_id INTEGER NOT NULL REFERENCES device (id) ON DELETE CASCADE,\n"
          "  kind INTEGER NOT NULL,\n"
          "  request_seconds REAL NOT NULL,\n"
          "  bytes_per_s REAL NOT NULL,\n"
          "  residual REAL NOT NULL,\n"
          "  PRIMARY KEY (device_id, kind),\n"),
    TABLE("device_mixed", KEYED, MIXED_BOUNDS,
          "  device_id INTEGER NOT NULL REFERENCES device (id) ON DELETE CASCADE,\n"
          "  request_bytes INTEGER NOT NULL,\n"
          "  depth INTEGER NOT NULL,\n"
          "  read_share REAL NOT NULL,\n"
          "  repetitions INTEGER NOT NULL,\n"
          "  bytes_per_s REAL NOT NULL,\n"
          "  unmixed_bytes_per_s REAL NOT NULL,\n"
          "  read_latency_seconds_p50 REAL NOT NULL,\n"
          "  read_latency_seconds_p99 REAL NOT NULL,\n"
          "  PRIMARY KEY (device_id, request_bytes, depth, read_share),\n"),
    TABLE("device_start", KEYED, START_BOUNDS,
          "  device_id INTEGER NOT NULL REFERENCES device (id) ON DELETE CASCADE,\n"
          "  request_bytes INTEGER NOT NULL,\n"
          "  begins_at INTEGER NOT NULL,\n"
          "  depth INTEGER NOT NULL,\n"
          "  repetitions INTEGER NOT NULL,\n"
          "  bytes_per_s REAL NOT NULL,\n"
          "  bytes_per_s_min REAL NOT NULL,\n"
          "  bytes_per_s_max REAL NOT NULL,\n"
          "  PRIMARY KEY (device_id, request_bytes, begins_at),\n"),
    TABLE("codec_curve", KEYED, CODEC_BOUNDS,
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
          "  PRIMARY KEY (run_id, codec, mode, rate, isa, threads, source),\n"),
};

#define MEASURED_COUNT (sizeof profile_measured_tables / sizeof profile_measured_tables[0])

const profile_table *profile_table_at(size_t index)
{
    if (index < MEASURED_COUNT) return &profile_measured_tables[index];
    index -= MEASURED_COUNT;
    return index < PROFILE_QUALITY_TABLE_COUNT ? &profile_quality_tables[index] : NULL;
}

/* ---- the tables of quality ---- */

/*
 * Models, what variants do to answers, calibrations, and what a running store has learned
 * (docs/PROFILE.md explains the columns). NULL in a column means: not measured by this set's
 * method.
 */

#define SHARE(column)  "(" column " IS NULL OR " column " BETWEEN 0 AND 1) AND "
#define SIGNED(column) "(" column " IS NULL OR " column " BETWEEN -1 AND 1) AND "
#define AMOUNT(column) "(" column " IS NULL OR " column " BETWEEN 0 AND 1e300) AND "
#define REAL(column)   "(" column " IS NULL OR " column " BETWEEN -1e300 AND 1e300) AND "
#define VARIANT                                                                                    \
    "codec BETWEEN 0 AND 65535 AND mode BETWEEN 0 AND 65535 AND rate BETWEEN 0 AND 4294967295"

/* Losses of a variant: of one entry's answers, or the mean over a set's entries. */
#define FIGURE_BOUNDS                                                                              \
    SHARE("top1")                                                                                  \
    REAL("nll_delta")                                                                              \
    SHARE("rouge_l")                                                                               \
    SHARE("f1")                                                                                    \
    SHARE("answers")                                                                               \
    AMOUNT("attention_error")                                                                      \
    AMOUNT("attention_error_high")                                                                 \
    SHARE("retained_mass")                                                                         \
    SHARE("flip_rate")

#define FIGURE_COLUMNS                                                                             \
    "  top1 REAL,\n"                                                                               \
    "  nll_delta REAL,\n"                                                                          \
    "  rouge_l REAL,\n"                                                                            \
    "  f1 REAL,\n"                                                                                 \
    "  answers REAL,\n"                                                                            \
    "  attention_error REAL,\n"                                                                    \
    "  attention_error_high REAL,\n"                                                               \
    "  retained_mass REAL,\n"                                                                      \
    "  flip_rate REAL,\n"

#define VARIANT_COLUMNS                                                                            \
    "  codec INTEGER NOT NULL,\n"                                                                  \
    "  mode INTEGER NOT NULL,\n"                                                                   \
    "  rate INTEGER NOT NULL,\n"

#define MODEL_BOUNDS                                                                               \
    "length(name) BETWEEN 1 AND 95 AND parameters >= 0 AND layers BETWEEN 0 AND 65535 AND "        \
    "heads BETWEEN 0 AND 65535 AND kv_heads BETWEEN 0 AND 65535 AND "                              \
    "head_dim BETWEEN 0 AND 65535 AND vocab >= 0"

#define SET_BOUNDS                                                                                 \
    AMOUNT("nll_nats")                                                                             \
    SIGNED("spearman_variants")                                                                    \
    AMOUNT("sensitivity_sd")                                                                       \
    SIGNED("repeatability")                                                                        \
    SHARE("answers")                                                                               \
    "length(class) BETWEEN 1 AND 63 AND method IN ('continuation', 'attention', 'import') AND "    \
    "context_tokens >= 0 AND continuation_tokens >= 0 AND entries >= 0"

#define QUALITY_BOUNDS                                                                             \
    AMOUNT("physical_bits_per_element")                                                            \
    SHARE("loss_p90")                                                                              \
    AMOUNT("loss_cv")                                                                              \
    REAL("kl")                                                                                     \
    REAL("kl_low")                                                                                 \
    REAL("kl_high")                                                                                \
    REAL("kl_p90")                                                                                 \
    FIGURE_BOUNDS                                                                                  \
    SIGNED("spearman_entries")                                                                     \
    SIGNED("repeatability")                                                                        \
    "length(name) > 0 AND length(metric) > 0 AND bits_per_element > 0 AND "                        \
    "bits_per_element <= 1024 AND entries > 0 AND loss_low <= loss_mean AND "                      \
    "loss_mean <= loss_high AND loss_low >= 0 AND loss_high <= 1 AND " VARIANT

#define ENTRY_BOUNDS                                                                               \
    SHARE("loss")                                                                                  \
    REAL("kl")                                                                                     \
    REAL("kl_first")                                                                               \
    REAL("kl_second")                                                                              \
    FIGURE_BOUNDS                                                                                  \
    "entry >= 0 AND bits_per_element > 0 AND bits_per_element <= 1024 AND " VARIANT

#define MAP_BOUNDS                                                                                 \
    "length(family) > 0 AND position >= 0 AND attention_error BETWEEN 0 AND 1e300 AND "            \
    "loss BETWEEN 0 AND 1 AND loss_upper BETWEEN loss AND 1"

#define CALIBRATION_BOUNDS "length(class) BETWEEN 1 AND 63"

#define RUNG_BOUNDS                                                                                \
    "position >= 0 AND accepted IN (0, 1) AND length(name) > 0 AND bits_per_element > 0 AND "      \
    "bits_per_element <= 1024 AND loss BETWEEN 0 AND 1 AND loss_upper BETWEEN loss AND 1 "         \
    "AND length(evidence) > 0 AND " VARIANT

#define CHOICE_BOUNDS "length(question) > 0 AND length(chosen) > 0 AND length(evidence) > 0"

#define LEARNED_BOUNDS                                                                             \
    AMOUNT("error_p50")                                                                            \
    AMOUNT("error_p90")                                                                            \
    REAL("log_likelihood")                                                                         \
    "kind IN ('device', 'codec', 'loss', 'reuse') AND length(name) > 0 AND length(part) > 0 AND "  \
    "value BETWEEN 0 AND 1e300 AND weight BETWEEN 0 AND 1e300 AND observations >= 0"

#define PREFILL_BOUNDS                                                                             \
    "length(name) > 0 AND linear_seconds_per_token BETWEEN 0 AND 1e300 AND "                       \
    "square_seconds_per_token2 BETWEEN 0 AND 1e300 AND fixed_seconds BETWEEN 0 AND 1e300"

#define PASS_BOUNDS                                                                                \
    "length(name) BETWEEN 1 AND 63 AND new_tokens BETWEEN 1 AND 4294967295 AND "                   \
    "prefix_tokens BETWEEN 0 AND 4294967295 AND layer_seconds > 0 AND layer_seconds < 1e300"

#define BASIS_BOUNDS                                                                               \
    "length(hash) = 64 AND start BETWEEN 0 AND 1048575 AND span BETWEEN 1 AND 3 AND "              \
    "metric BETWEEN 0 AND 3 AND tokens >= 0 AND length(object) BETWEEN 4096 AND 536870912"

const profile_table profile_quality_tables[PROFILE_QUALITY_TABLE_COUNT] = {
    TABLE("model", ROWS, MODEL_BOUNDS,
          "  id INTEGER PRIMARY KEY,\n"
          "  name TEXT NOT NULL,\n"
          "  digest TEXT NOT NULL,\n"
          "  parameters INTEGER NOT NULL,\n"
          "  layers INTEGER NOT NULL,\n"
          "  heads INTEGER NOT NULL,\n"
          "  kv_heads INTEGER NOT NULL,\n"
          "  head_dim INTEGER NOT NULL,\n"
          "  vocab INTEGER NOT NULL,\n"
          "  UNIQUE (name, digest),\n"),
    TABLE("quality_set", ROWS, SET_BOUNDS,
          "  id INTEGER PRIMARY KEY,\n"
          "  run_id INTEGER NOT NULL REFERENCES run (id) ON DELETE CASCADE,\n"
          "  model_id INTEGER NOT NULL REFERENCES model (id) ON DELETE CASCADE,\n"
          "  class TEXT NOT NULL,\n"
          "  method TEXT NOT NULL,\n"
          "  settings TEXT NOT NULL,\n"
          "  context_tokens INTEGER NOT NULL,\n"
          "  continuation_tokens INTEGER NOT NULL,\n"
          "  entries INTEGER NOT NULL,\n"
          "  nll_nats REAL,\n"
          "  spearman_variants REAL,\n"
          "  sensitivity_sd REAL,\n"
          "  repeatability REAL,\n"
          "  answers REAL,\n"),
    TABLE(
        "quality_curve", KEYED, QUALITY_BOUNDS,
        "  set_id INTEGER NOT NULL REFERENCES quality_set (id) ON DELETE CASCADE,\n" VARIANT_COLUMNS
        "  name TEXT NOT NULL,\n"
        "  metric TEXT NOT NULL,\n"
        "  bits_per_element REAL NOT NULL,\n"
        "  physical_bits_per_element REAL,\n"
        "  entries INTEGER NOT NULL,\n"
        "  loss_mean REAL NOT NULL,\n"
        "  loss_low REAL NOT NULL,\n"
        "  loss_high REAL NOT NULL,\n"
        "  loss_p90 REAL,\n"
        "  loss_cv REAL,\n"
        "  kl REAL,\n"
        "  kl_low REAL,\n"
        "  kl_high REAL,\n"
        "  kl_p90 REAL,\n" FIGURE_COLUMNS "  spearman_entries REAL,\n"
        "  repeatability REAL,\n"
        "  PRIMARY KEY (set_id, codec, mode, rate),\n"),
    TABLE("quality_entry", KEYED, ENTRY_BOUNDS,
          "  set_id INTEGER NOT NULL REFERENCES quality_set (id) ON DELETE CASCADE,\n"
          "  entry INTEGER NOT NULL,\n" VARIANT_COLUMNS "  bits_per_element REAL NOT NULL,\n"
          "  loss REAL,\n"
          "  kl REAL,\n"
          "  kl_first REAL,\n"
          "  kl_second REAL,\n" FIGURE_COLUMNS
          "  PRIMARY KEY (set_id, entry, codec, mode, rate),\n"),
    TABLE("quality_map", KEYED, MAP_BOUNDS,
          "  run_id INTEGER NOT NULL REFERENCES run (id) ON DELETE CASCADE,\n"
          "  model_id INTEGER NOT NULL REFERENCES model (id) ON DELETE CASCADE,\n"
          "  family TEXT NOT NULL,\n"
          "  position INTEGER NOT NULL,\n"
          "  attention_error REAL NOT NULL,\n"
          "  loss REAL NOT NULL,\n"
          "  loss_upper REAL NOT NULL,\n"
          "  PRIMARY KEY (run_id, model_id, family, position),\n"),
    TABLE("calibration", ROWS, CALIBRATION_BOUNDS,
          "  id INTEGER PRIMARY KEY,\n"
          "  run_id INTEGER NOT NULL REFERENCES run (id) ON DELETE CASCADE,\n"
          "  model_id INTEGER NOT NULL REFERENCES model (id) ON DELETE CASCADE,\n"
          "  class TEXT NOT NULL,\n"),
    TABLE("calibration_rung", KEYED, RUNG_BOUNDS,
          "  calibration_id INTEGER NOT NULL REFERENCES calibration (id) ON DELETE CASCADE,\n"
          "  position INTEGER NOT NULL,\n" VARIANT_COLUMNS "  name TEXT NOT NULL,\n"
          "  bits_per_element REAL NOT NULL,\n"
          "  loss REAL NOT NULL,\n"
          "  loss_upper REAL NOT NULL,\n"
          "  accepted INTEGER NOT NULL,\n"
          "  evidence TEXT NOT NULL,\n"
          "  counts BLOB,\n"
          "  PRIMARY KEY (calibration_id, position),\n"),
    TABLE("calibration_choice", KEYED, CHOICE_BOUNDS,
          "  calibration_id INTEGER NOT NULL REFERENCES calibration (id) ON DELETE CASCADE,\n"
          "  question TEXT NOT NULL,\n"
          "  chosen TEXT NOT NULL,\n"
          "  evidence TEXT NOT NULL,\n"
          "  PRIMARY KEY (calibration_id, question),\n"),
    TABLE("learned", KEYED, LEARNED_BOUNDS,
          "  run_id INTEGER NOT NULL REFERENCES run (id) ON DELETE CASCADE,\n"
          "  kind TEXT NOT NULL,\n"
          "  name TEXT NOT NULL,\n"
          "  part TEXT NOT NULL,\n"
          "  value REAL NOT NULL,\n"
          "  weight REAL NOT NULL,\n"
          "  observations INTEGER NOT NULL,\n"
          "  error_p50 REAL,\n"
          "  error_p90 REAL,\n"
          "  log_likelihood REAL,\n"
          "  PRIMARY KEY (run_id, kind, name, part),\n"),
    TABLE("prefill", KEYED, PREFILL_BOUNDS,
          "  run_id INTEGER NOT NULL REFERENCES run (id) ON DELETE CASCADE,\n"
          "  name TEXT NOT NULL,\n"
          "  linear_seconds_per_token REAL NOT NULL,\n"
          "  square_seconds_per_token2 REAL NOT NULL,\n"
          "  fixed_seconds REAL NOT NULL,\n"
          "  PRIMARY KEY (run_id, name),\n"),
    TABLE("pass", KEYED, PASS_BOUNDS,
          "  run_id INTEGER NOT NULL REFERENCES run (id) ON DELETE CASCADE,\n"
          "  name TEXT NOT NULL,\n"
          "  new_tokens INTEGER NOT NULL,\n"
          "  prefix_tokens INTEGER NOT NULL,\n"
          "  layer_seconds REAL NOT NULL,\n"
          "  PRIMARY KEY (run_id, name, new_tokens, prefix_tokens),\n"),
    TABLE("basis", ROWS, BASIS_BOUNDS,
          "  hash TEXT PRIMARY KEY,\n"
          "  start INTEGER NOT NULL UNIQUE,\n"
          "  run_id INTEGER NOT NULL REFERENCES run (id) ON DELETE CASCADE,\n"
          "  model_id INTEGER NOT NULL REFERENCES model (id) ON DELETE CASCADE,\n"
          "  lesson TEXT NOT NULL,\n"
          "  span INTEGER NOT NULL,\n"
          "  metric INTEGER NOT NULL,\n"
          "  tokens INTEGER NOT NULL,\n"
          "  object BLOB NOT NULL,\n"),
};
