/* SPDX-License-Identifier: Apache-2.0 */
/*
 * csv_table.c - the tables, their columns and how their rows go into the database
 * (docs/PROFILE.md describes them for users). Constant data; any thread.
 *
 * Exports leave interrupted runs out. What was measured says so as its source, so that an import of
 * it elsewhere still tells where it is from.
 */
#include "estimator/profile/csv.h"
#include "estimator/profile/profile_internal.h"

#define COUNT_OF(array) (sizeof(array) / sizeof(array)[0])

#define SOURCE_SQL                                                                                 \
    "CASE WHEN r.source <> '' THEN r.source ELSE 'run ' || r.id || ', measured ' || "              \
    "r.started_utc || ' on ' || r.host_name || ' (' || r.cpu_model || ', ' || r.kernel || "        \
    "')" PROFILE_MEASURED_BY "' || r.library_version || coalesce(': ' || r.command_line, '') || "  \
    "', seed ' || r.seed END"
#define SOURCE_COLUMN                                                                              \
    {                                                                                              \
        "source", CSV_TEXT, "", SOURCE_SQL                                                         \
    }
#define COMPLETE "r.complete = 1"

/* A column whose name is the database's. */
#define PLAIN(table, name, kind, standard)                                                         \
    {                                                                                              \
        name, CSV_##kind, standard, table "." name                                                 \
    }
#define VARIANT_COLUMN(table)                                                                      \
    {                                                                                              \
        "variant", CSV_VARIANT, NULL,                                                              \
            "variant_name(" table ".codec, " table ".mode, " table ".rate)"                        \
    }

/* ---- devices ---- */

#define DIRECTION_SQL(table)                                                                       \
    {                                                                                              \
        "direction", CSV_DIRECTION, NULL, "iif(" table ".kind = 0, 'read', 'write')"               \
    }
#define DEVICE_KNOWN                                                                               \
    "SELECT 'no row of [device] with this device and source comes before' WHERE NOT EXISTS "       \
    "(SELECT 1 FROM device WHERE run_id = :run AND name = :device)"
#define DEVICE_ID "(SELECT id FROM device WHERE run_id = :run AND name = :device)"

#define DEVICE_FACTS                                                                               \
    "tier, identity, engine, direct, emulated, virtual_time, capacity_bytes, request_bytes_max, "  \
    "depth_max, depth_achieved"
#define DEVICE_VALUES                                                                              \
    ":tier, :identity, :engine, :direct, :emulated, :virtual_time, :capacity_bytes, "              \
    ":request_bytes_max, :depth_max, :depth_achieved"

static const csv_column device_columns[] = {
    {"device", CSV_TEXT, NULL, "d.name"},
    {"tier", CSV_TIER, NULL, "CASE d.tier WHEN 1 THEN 'hbm' WHEN 2 THEN 'dram' ELSE 'ssd' END"},
    DIRECTION_SQL("f"),
    PLAIN("f", "bytes_per_s", RATE, NULL),
    PLAIN("f", "request_seconds", AMOUNT, NULL),
    PLAIN("f", "residual", AMOUNT, "0"),
    PLAIN("d", "identity", TEXT, ""),
    PLAIN("d", "engine", TEXT, "imported"),
    PLAIN("d", "direct", SWITCH, "0"),
    PLAIN("d", "emulated", SWITCH, "0"),
    PLAIN("d", "virtual_time", SWITCH, "0"),
    PLAIN("d", "capacity_bytes", COUNT, "0"),
    PLAIN("d", "request_bytes_max", COUNT, "1048576"),
    PLAIN("d", "depth_max", COUNT, "1"),
    PLAIN("d", "depth_achieved", COUNT, "0"),
    SOURCE_COLUMN,
};

static const char *const device_steps[] = {
    "SELECT 'an earlier row of this device and source has other facts' FROM device WHERE "
    "run_id = :run AND name = :device AND (" DEVICE_FACTS ") IS NOT (" DEVICE_VALUES ")",
    "INSERT INTO device (run_id, name, " DEVICE_FACTS ") SELECT :run, :device, " DEVICE_VALUES
    " WHERE NOT EXISTS (SELECT 1 FROM device WHERE run_id = :run AND name = :device)",
    "INSERT INTO device_fit (device_id, kind, request_seconds, bytes_per_s, residual) "
    "VALUES (" DEVICE_ID ", :direction, :request_seconds, :bytes_per_s, :residual)",
    NULL};

static const csv_column point_columns[] = {
    {"device", CSV_TEXT, NULL, "d.name"},
    DIRECTION_SQL("p"),
    PLAIN("p", "request_bytes", COUNT, NULL),
    PLAIN("p", "depth", COUNT, NULL),
    PLAIN("p", "repetitions", COUNT, "1"),
    PLAIN("p", "bytes_per_s", RATE, NULL),
    PLAIN("p", "bytes_per_s_min", RATE, ""),
    PLAIN("p", "bytes_per_s_max", RATE, ""),
    PLAIN("p", "latency_seconds_p50", AMOUNT, NULL),
    PLAIN("p", "latency_seconds_p99", AMOUNT, ""),
    SOURCE_COLUMN,
};

static const char *const point_steps[] = {
    DEVICE_KNOWN,
    "INSERT INTO device_point (device_id, kind, request_bytes, depth, repetitions, bytes_per_s, "
    "bytes_per_s_min, bytes_per_s_max, latency_seconds_p50, latency_seconds_p99) VALUES "
    "(" DEVICE_ID ", :direction, :request_bytes, :depth, :repetitions, :bytes_per_s, "
    "coalesce(:bytes_per_s_min, :bytes_per_s), coalesce(:bytes_per_s_max, :bytes_per_s), "
    ":latency_seconds_p50, coalesce(:latency_seconds_p99, :latency_seconds_p50))",
    NULL};

static const csv_column mixed_columns[] = {
    {"device", CSV_TEXT, NULL, "d.name"},
    PLAIN("m", "request_bytes", COUNT, NULL),
    PLAIN("m", "depth", COUNT, NULL),
    PLAIN("m", "read_share", SHARE, NULL),
    PLAIN("m", "repetitions", COUNT, "1"),
    PLAIN("m", "bytes_per_s", RATE, NULL),
    PLAIN("m", "unmixed_bytes_per_s", RATE, NULL),
    PLAIN("m", "read_latency_seconds_p50", AMOUNT, NULL),
    PLAIN("m", "read_latency_seconds_p99", AMOUNT, NULL),
    SOURCE_COLUMN,
};

static const char *const mixed_steps[] = {
    DEVICE_KNOWN,
    "INSERT INTO device_mixed (device_id, request_bytes, depth, read_share, repetitions, "
    "bytes_per_s, unmixed_bytes_per_s, read_latency_seconds_p50, read_latency_seconds_p99) VALUES "
    "(" DEVICE_ID ", :request_bytes, :depth, :read_share, :repetitions, :bytes_per_s, "
    ":unmixed_bytes_per_s, :read_latency_seconds_p50, :read_latency_seconds_p99)",
    NULL};

/* ---- codecs, prefill ---- */

static const csv_column codec_columns[] = {
    VARIANT_COLUMN("c"),
    PLAIN("c", "isa", TEXT, "unknown"),
    PLAIN("c", "threads", COUNT, "1"),
    {"kv", CSV_TEXT, "unknown", "c.source"},
    PLAIN("c", "stored_share", RATE, NULL),
    PLAIN("c", "encode_bytes_per_s", RATE, NULL),
    PLAIN("c", "decode_bytes_per_s", RATE, NULL),
    PLAIN("c", "source_bytes", COUNT, "1"),
    PLAIN("c", "repetitions", COUNT, "1"),
    SOURCE_COLUMN,
};

static const char *const codec_steps[] = {
    "INSERT INTO codec_curve (run_id, codec, mode, rate, isa, threads, source, name, stored_share, "
    "encode_bytes_per_s, decode_bytes_per_s, source_bytes, repetitions) VALUES (:run, :codec, "
    ":mode, :rate, :isa, :threads, :kv, :name, :stored_share, :encode_bytes_per_s, "
    ":decode_bytes_per_s, :source_bytes, :repetitions)",
    NULL};

static const csv_column prefill_columns[] = {
    PLAIN("p", "name", TEXT, NULL),
    PLAIN("p", "linear_seconds_per_token", AMOUNT, NULL),
    PLAIN("p", "square_seconds_per_token2", AMOUNT, NULL),
    PLAIN("p", "fixed_seconds", AMOUNT, "0"),
    SOURCE_COLUMN,
};

static const char *const prefill_steps[] = {
    "INSERT INTO prefill (run_id, name, linear_seconds_per_token, square_seconds_per_token2, "
    "fixed_seconds) VALUES (:run, :name, :linear_seconds_per_token, :square_seconds_per_token2, "
    ":fixed_seconds)",
    NULL};

/* ---- quality ---- */

#define MODEL_COLUMNS                                                                              \
    {"model", CSV_TEXT, NULL, "m.name"},                                                           \
    {                                                                                              \
        "digest", CSV_TEXT, "", "m.digest"                                                         \
    }
#define MODEL_ID "(SELECT id FROM model WHERE name = :model AND digest = :digest)"
#define MODEL_MADE                                                                                 \
    "INSERT INTO model (name, digest, parameters, layers, heads, kv_heads, head_dim, vocab) "      \
    "SELECT :model, :digest, 0, 0, 0, 0, 0, 0 WHERE " MODEL_ID " IS NULL"

#define SET_KEY_COLUMNS                                                                            \
    MODEL_COLUMNS, PLAIN("s", "class", TEXT, NULL), PLAIN("s", "method", TEXT, "import"),          \
        PLAIN("s", "settings", TEXT, ""), PLAIN("s", "context_tokens", COUNT, "0"),                \
        PLAIN("s", "continuation_tokens", COUNT, "0")
#define SET_IS                                                                                     \
    "run_id = :run AND model_id = " MODEL_ID " AND class = :class AND method = :method AND "       \
    "settings = :settings AND context_tokens = :context_tokens AND "                               \
    "continuation_tokens = :continuation_tokens"
#define SET_ID    "(SELECT id FROM quality_set WHERE " SET_IS ")"
#define SET_FACTS "entries, nll_nats, spearman_variants, sensitivity_sd, repeatability, answers"
#define SET_VALUES                                                                                 \
    ":set_entries, :set_nll_nats, :set_spearman_variants, :set_sensitivity_sd, "                   \
    ":set_repeatability, :set_answers"

static const csv_column quality_columns[] = {
    SET_KEY_COLUMNS,
    VARIANT_COLUMN("q"),
    PLAIN("q", "metric", TEXT, NULL),
    PLAIN("q", "bits_per_element", RATE, NULL),
    PLAIN("q", "loss_mean", SHARE, ""),
    PLAIN("q", "loss_low", SHARE, ""),
    PLAIN("q", "loss_high", SHARE, ""),
    PLAIN("q", "loss_p90", SHARE, ""),
    PLAIN("q", "loss_cv", AMOUNT, ""),
    {"score", CSV_REAL, "", "NULL"},
    {"score_exact", CSV_RATE, "", "NULL"},
    PLAIN("q", "entries", COUNT, "1"),
    PLAIN("q", "physical_bits_per_element", RATE, ""),
    PLAIN("q", "kl", REAL, ""),
    PLAIN("q", "kl_low", REAL, ""),
    PLAIN("q", "kl_high", REAL, ""),
    PLAIN("q", "kl_p90", REAL, ""),
    PLAIN("q", "top1", SHARE, ""),
    PLAIN("q", "nll_delta", REAL, ""),
    PLAIN("q", "rouge_l", SHARE, ""),
    PLAIN("q", "f1", SHARE, ""),
    PLAIN("q", "answers", SHARE, ""),
    PLAIN("q", "attention_error", AMOUNT, ""),
    PLAIN("q", "attention_error_high", AMOUNT, ""),
    PLAIN("q", "retained_mass", SHARE, ""),
    PLAIN("q", "flip_rate", SHARE, ""),
    PLAIN("q", "spearman_entries", SIGNED, ""),
    PLAIN("q", "repeatability", SIGNED, ""),
    {"set_entries", CSV_COUNT, "0", "s.entries"},
    {"set_nll_nats", CSV_AMOUNT, "", "s.nll_nats"},
    {"set_spearman_variants", CSV_SIGNED, "", "s.spearman_variants"},
    {"set_sensitivity_sd", CSV_AMOUNT, "", "s.sensitivity_sd"},
    {"set_repeatability", CSV_SIGNED, "", "s.repeatability"},
    {"set_answers", CSV_SHARE, "", "s.answers"},
    SOURCE_COLUMN,
};

static const char *const quality_steps[] = {
    "SELECT 'needs loss_mean, or score and score_exact' WHERE coalesce(:loss_mean, :score / "
    ":score_exact) IS NULL",
    MODEL_MADE,
    "SELECT 'an earlier row of this set has other set_ values' FROM quality_set WHERE " SET_IS
    " AND (" SET_FACTS ") IS NOT (" SET_VALUES ")",
    "INSERT INTO quality_set (run_id, model_id, class, method, settings, context_tokens, "
    "continuation_tokens, " SET_FACTS ") SELECT :run, " MODEL_ID
    ", :class, :method, :settings, :context_tokens, :continuation_tokens, " SET_VALUES
    " WHERE " SET_ID " IS NULL",
    /* A score above the exact one is a loss of 0. */
    "WITH v (loss) AS (SELECT coalesce(:loss_mean, max(0.0, 1.0 - :score / :score_exact))) "
    "INSERT INTO quality_curve (set_id, codec, mode, rate, name, metric, bits_per_element, "
    "physical_bits_per_element, entries, loss_mean, loss_low, loss_high, loss_p90, loss_cv, kl, "
    "kl_low, kl_high, kl_p90, top1, nll_delta, rouge_l, f1, answers, attention_error, "
    "attention_error_high, retained_mass, flip_rate, spearman_entries, repeatability) "
    "SELECT " SET_ID ", :codec, :mode, :rate, :name, :metric, :bits_per_element, "
    ":physical_bits_per_element, :entries, loss, coalesce(:loss_low, loss), coalesce(:loss_high, "
    "loss), :loss_p90, :loss_cv, :kl, :kl_low, :kl_high, :kl_p90, :top1, :nll_delta, :rouge_l, "
    ":f1, :answers, :attention_error, :attention_error_high, :retained_mass, :flip_rate, "
    ":spearman_entries, :repeatability FROM v",
    NULL};

static const csv_column entry_columns[] = {
    SET_KEY_COLUMNS,
    PLAIN("e", "entry", COUNT, NULL),
    VARIANT_COLUMN("e"),
    PLAIN("e", "bits_per_element", RATE, NULL),
    PLAIN("e", "loss", SHARE, ""),
    PLAIN("e", "kl", REAL, ""),
    PLAIN("e", "kl_first", REAL, ""),
    PLAIN("e", "kl_second", REAL, ""),
    PLAIN("e", "top1", SHARE, ""),
    PLAIN("e", "nll_delta", REAL, ""),
    PLAIN("e", "rouge_l", SHARE, ""),
    PLAIN("e", "f1", SHARE, ""),
    PLAIN("e", "answers", SHARE, ""),
    PLAIN("e", "attention_error", AMOUNT, ""),
    PLAIN("e", "attention_error_high", AMOUNT, ""),
    PLAIN("e", "retained_mass", SHARE, ""),
    PLAIN("e", "flip_rate", SHARE, ""),
    SOURCE_COLUMN,
};

static const char *const entry_steps[] = {
    "SELECT 'no row of [quality] with this set and source comes before' WHERE " SET_ID " IS NULL",
    "INSERT INTO quality_entry (set_id, entry, codec, mode, rate, bits_per_element, loss, kl, "
    "kl_first, kl_second, top1, nll_delta, rouge_l, f1, answers, attention_error, "
    "attention_error_high, retained_mass, flip_rate) VALUES (" SET_ID ", :entry, :codec, :mode, "
    ":rate, :bits_per_element, :loss, :kl, :kl_first, :kl_second, :top1, :nll_delta, :rouge_l, "
    ":f1, :answers, :attention_error, :attention_error_high, :retained_mass, :flip_rate)",
    NULL};

static const csv_column map_columns[] = {
    MODEL_COLUMNS,
    PLAIN("q", "family", TEXT, NULL),
    PLAIN("q", "position", COUNT, NULL),
    PLAIN("q", "attention_error", AMOUNT, NULL),
    PLAIN("q", "loss", SHARE, NULL),
    PLAIN("q", "loss_upper", SHARE, ""),
    SOURCE_COLUMN,
};

static const char *const map_steps[] = {
    MODEL_MADE,
    "INSERT INTO quality_map (run_id, model_id, family, position, attention_error, loss, "
    "loss_upper) VALUES (:run, " MODEL_ID ", :family, :position, :attention_error, :loss, "
    "coalesce(:loss_upper, :loss))",
    NULL};

/* ---- models and calibrations ---- */

/* Shapes are told once, so that curves need not repeat them; 0 is unknown. */
static const csv_column model_columns[] = {
    MODEL_COLUMNS,
    PLAIN("m", "parameters", COUNT, "0"),
    PLAIN("m", "layers", COUNT, "0"),
    PLAIN("m", "heads", COUNT, "0"),
    PLAIN("m", "kv_heads", COUNT, "0"),
    PLAIN("m", "head_dim", COUNT, "0"),
    PLAIN("m", "vocab", COUNT, "0"),
};

static const char *const model_steps[] = {
    MODEL_MADE,
    "WITH known (mine, told) AS (SELECT parameters, :parameters FROM model WHERE id "
    "= " MODEL_ID " UNION SELECT layers, :layers FROM model WHERE id = " MODEL_ID
    " UNION SELECT heads, :heads FROM model WHERE id = " MODEL_ID
    " UNION SELECT kv_heads, :kv_heads FROM model WHERE id = " MODEL_ID
    " UNION SELECT head_dim, :head_dim FROM model WHERE id = " MODEL_ID
    " UNION SELECT vocab, :vocab FROM model WHERE id = " MODEL_ID
    ") SELECT 'the profile knows this model with another shape' FROM known WHERE mine <> 0 "
    "AND told <> 0 AND mine <> told",
    "UPDATE model SET parameters = max(parameters, :parameters), layers = max(layers, :layers), "
    "heads = max(heads, :heads), kv_heads = max(kv_heads, :kv_heads), head_dim = max(head_dim, "
    ":head_dim), vocab = max(vocab, :vocab) WHERE id = " MODEL_ID,
    NULL};

#define CALIBRATION_ID                                                                             \
    "(SELECT id FROM calibration WHERE run_id = :run AND model_id = " MODEL_ID " AND class = "     \
    ":class)"
#define CALIBRATION_MADE                                                                           \
    "INSERT INTO calibration (run_id, model_id, class) SELECT :run, " MODEL_ID                     \
    ", :class WHERE " CALIBRATION_ID " IS NULL"

static const csv_column rung_columns[] = {
    MODEL_COLUMNS,
    PLAIN("c", "class", TEXT, NULL),
    PLAIN("g", "position", COUNT, NULL),
    VARIANT_COLUMN("g"),
    PLAIN("g", "bits_per_element", RATE, NULL),
    PLAIN("g", "loss", SHARE, NULL),
    PLAIN("g", "loss_upper", SHARE, ""),
    PLAIN("g", "accepted", SWITCH, "1"),
    PLAIN("g", "evidence", TEXT, "imported"),
    {"counts", CSV_BYTES, "", "hex(g.counts)"},
    SOURCE_COLUMN,
};

static const char *const rung_steps[] = {
    MODEL_MADE, CALIBRATION_MADE,
    "INSERT INTO calibration_rung (calibration_id, position, codec, mode, rate, name, "
    "bits_per_element, loss, loss_upper, accepted, evidence, counts) VALUES (" CALIBRATION_ID
    ", :position, :codec, :mode, :rate, :name, :bits_per_element, :loss, coalesce(:loss_upper, "
    ":loss), :accepted, :evidence, :counts)",
    NULL};

static const csv_column choice_columns[] = {
    MODEL_COLUMNS,
    PLAIN("c", "class", TEXT, NULL),
    PLAIN("h", "question", TEXT, NULL),
    PLAIN("h", "chosen", TEXT, NULL),
    PLAIN("h", "evidence", TEXT, "imported"),
    SOURCE_COLUMN,
};

static const char *const choice_steps[] = {MODEL_MADE, CALIBRATION_MADE,
                                           "INSERT INTO calibration_choice (calibration_id, "
                                           "question, chosen, evidence) VALUES (" CALIBRATION_ID
                                           ", :question, :chosen, :evidence)",
                                           NULL};

/* ---- for reading alone: a store's own experience and who measured do not move to another host ---
 */

static const csv_column learned_columns[] = {
    PLAIN("l", "kind", TEXT, NULL),         PLAIN("l", "name", TEXT, NULL),
    PLAIN("l", "part", TEXT, NULL),         PLAIN("l", "value", AMOUNT, NULL),
    PLAIN("l", "weight", AMOUNT, NULL),     PLAIN("l", "observations", COUNT, NULL),
    PLAIN("l", "error_p50", AMOUNT, ""),    PLAIN("l", "error_p90", AMOUNT, ""),
    PLAIN("l", "log_likelihood", REAL, ""), SOURCE_COLUMN,
};

static const csv_column run_columns[] = {
    PLAIN("r", "id", COUNT, NULL),
    PLAIN("r", "kind", TEXT, NULL),
    PLAIN("r", "complete", SWITCH, NULL),
    PLAIN("r", "host_identity", TEXT, NULL),
    PLAIN("r", "host_name", TEXT, NULL),
    PLAIN("r", "kernel", TEXT, NULL),
    PLAIN("r", "cpu_model", TEXT, NULL),
    PLAIN("r", "cpu_count", COUNT, NULL),
    PLAIN("r", "memory_bytes", COUNT, NULL),
    PLAIN("r", "started_utc", TEXT, NULL),
    PLAIN("r", "finished_utc", TEXT, ""),
    PLAIN("r", "library_version", TEXT, NULL),
    PLAIN("r", "sqlite_version", TEXT, NULL),
    PLAIN("r", "zstd_version", TEXT, NULL),
    PLAIN("r", "command_line", TEXT, ""),
    PLAIN("r", "seed", COUNT, NULL),
    PLAIN("r", "source", TEXT, ""),
};

#define CSV_TABLE(name, columns, from, steps)                                                      \
    {                                                                                              \
        name, columns, COUNT_OF(columns), from, steps                                              \
    }
#define DEVICE_JOIN                                                                                \
    "JOIN run r ON r.id = d.run_id WHERE " COMPLETE                                                \
    " AND EXISTS (SELECT 1 FROM device_fit f WHERE f.device_id = d.id) ORDER BY r.id, d.id, "

static const csv_table tables[] = {
    CSV_TABLE("model", model_columns, "model m ORDER BY m.id", model_steps),
    CSV_TABLE("device", device_columns,
              "device d JOIN device_fit f ON f.device_id = d.id JOIN run r ON r.id = d.run_id "
              "WHERE " COMPLETE " ORDER BY r.id, d.id, f.kind",
              device_steps),
    CSV_TABLE("device_point", point_columns,
              "device_point p JOIN device d ON d.id = p.device_id " DEVICE_JOIN
              "p.kind, p.request_bytes, p.depth",
              point_steps),
    CSV_TABLE("device_mixed", mixed_columns,
              "device_mixed m JOIN device d ON d.id = m.device_id " DEVICE_JOIN
              "m.request_bytes, m.depth, m.read_share",
              mixed_steps),
    CSV_TABLE("codec", codec_columns,
              "codec_curve c JOIN run r ON r.id = c.run_id WHERE " COMPLETE
              " ORDER BY r.id, c.codec, c.mode, c.rate, c.isa, c.threads, c.source",
              codec_steps),
    CSV_TABLE("prefill", prefill_columns,
              "prefill p JOIN run r ON r.id = p.run_id WHERE " COMPLETE " ORDER BY r.id, p.name",
              prefill_steps),
    CSV_TABLE("quality", quality_columns,
              "quality_curve q JOIN quality_set s ON s.id = q.set_id JOIN model m ON m.id = "
              "s.model_id JOIN run r ON r.id = s.run_id WHERE " COMPLETE
              " ORDER BY s.id, q.bits_per_element DESC, q.codec, q.mode, q.rate",
              quality_steps),
    CSV_TABLE("quality_entry", entry_columns,
              "quality_entry e JOIN quality_set s ON s.id = e.set_id JOIN model m ON m.id = "
              "s.model_id JOIN run r ON r.id = s.run_id WHERE " COMPLETE
              " AND EXISTS (SELECT 1 FROM quality_curve q WHERE q.set_id = s.id) "
              "ORDER BY s.id, e.entry, e.codec, e.mode, e.rate",
              entry_steps),
    CSV_TABLE("quality_map", map_columns,
              "quality_map q JOIN model m ON m.id = q.model_id JOIN run r ON r.id = q.run_id "
              "WHERE " COMPLETE " ORDER BY r.id, m.id, q.family, q.position",
              map_steps),
    CSV_TABLE(
        "calibration", rung_columns,
        "calibration_rung g JOIN calibration c ON c.id = g.calibration_id JOIN model m ON m.id "
        "= c.model_id JOIN run r ON r.id = c.run_id WHERE " COMPLETE " ORDER BY c.id, g.position",
        rung_steps),
    CSV_TABLE("calibration_choice", choice_columns,
              "calibration_choice h JOIN calibration c ON c.id = h.calibration_id JOIN model m ON "
              "m.id = c.model_id JOIN run r ON r.id = c.run_id WHERE " COMPLETE
              " ORDER BY c.id, h.question",
              choice_steps),
    CSV_TABLE("learned", learned_columns,
              "learned l JOIN run r ON r.id = l.run_id ORDER BY r.id, l.kind, l.name, l.part",
              NULL),
    CSV_TABLE("run", run_columns, "run r ORDER BY r.id", NULL),
};

const csv_table *csv_table_at(size_t index)
{
    return index < COUNT_OF(tables) ? &tables[index] : NULL;
}
