/* SPDX-License-Identifier: Apache-2.0 */
/*
 * exchange_tables.c - the tables, their columns and how their rows go into the database
 * (docs/PROFILE.md describes them for users). Constant data; any thread.
 *
 * Exports leave interrupted runs out. What was measured says so as its source, so that an import of
 * it elsewhere still tells where it is from.
 */
#include "estimator/exchange/exchange_rows.h"
#include "estimator/profile/profile_internal.h"

#define COUNT_OF(array) (sizeof(array) / sizeof(array)[0])

#define SOURCE_SQL                                                                                 \
    "CASE WHEN r.source <> '' THEN r.source ELSE 'run ' || r.id || ', measured ' || "              \
    "r.started_utc || ' on ' || r.host_name || ' (' || r.cpu_model || ', ' || r.kernel || "        \
    "')" PROFILE_MEASURED_BY "' || r.library_version || coalesce(': ' || r.command_line, '') || "  \
    "', seed ' || r.seed END"
#define SOURCE_COLUMN                                                                              \
    {                                                                                              \
        "source", ROWS_TEXT, "''", SOURCE_SQL                                                      \
    }
#define COMPLETE "r.complete = 1"

/* A column whose name is the database's. */
#define PLAIN(table, name, kind, standard)                                                         \
    {                                                                                              \
        name, ROWS_##kind, standard, table "." name                                                \
    }
#define VARIANT_COLUMN(table)                                                                      \
    {                                                                                              \
        "variant", ROWS_VARIANT, NULL,                                                             \
            "variant_name(" table ".codec, " table ".mode, " table ".rate)"                        \
    }

/* ---- devices ---- */

#define DIRECTION_COLUMN(table)                                                                    \
    {                                                                                              \
        "direction", ROWS_DIRECTION, NULL, "iif(" table ".kind = 0, 'read', 'write')"              \
    }
#define DEVICE_OF_ROW "FROM device d WHERE d.run_id = :run AND d.name = v.device"
#define DEVICE_ID     "(SELECT id " DEVICE_OF_ROW ")"
#define DEVICE_FACTS                                                                               \
    "tier, identity, engine, direct, emulated, virtual_time, capacity_bytes, request_bytes_max, "  \
    "depth_max, depth_achieved"

static const rows_column device_columns[] = {
    {"device", ROWS_TEXT, NULL, "d.name"},
    {"tier", ROWS_TIER, NULL, "CASE d.tier WHEN 1 THEN 'hbm' WHEN 2 THEN 'dram' ELSE 'ssd' END"},
    DIRECTION_COLUMN("f"),
    PLAIN("f", "bytes_per_s", RATE, NULL),
    PLAIN("f", "request_seconds", AMOUNT, NULL),
    PLAIN("f", "residual", AMOUNT, "0.0"),
    PLAIN("d", "identity", TEXT, "''"),
    PLAIN("d", "engine", TEXT, "'imported'"),
    PLAIN("d", "direct", SWITCH, "0"),
    PLAIN("d", "emulated", SWITCH, "0"),
    PLAIN("d", "virtual_time", SWITCH, "0"),
    PLAIN("d", "capacity_bytes", COUNT, "0"),
    PLAIN("d", "request_bytes_max", COUNT, "1048576"),
    PLAIN("d", "depth_max", COUNT, "1"),
    PLAIN("d", "depth_achieved", COUNT, "0"),
    SOURCE_COLUMN,
};

static const char *const device_checks[] = {
    "SELECT 'an earlier row of this device and source has other facts' FROM v WHERE " DEVICE_ID
    " IS NOT NULL AND (SELECT " DEVICE_FACTS " " DEVICE_OF_ROW ") IS NOT (" DEVICE_FACTS ")",
    "INSERT INTO device (run_id, name, " DEVICE_FACTS ") SELECT :run, device, " DEVICE_FACTS
    " FROM v WHERE " DEVICE_ID " IS NULL",
    NULL};

static const char *const device_known[] = {
    "SELECT 'no row of \"device\" has this device and source' FROM v WHERE " DEVICE_ID " IS NULL",
    NULL};

static const rows_column point_columns[] = {
    {"device", ROWS_TEXT, NULL, "d.name"},
    DIRECTION_COLUMN("p"),
    PLAIN("p", "request_bytes", COUNT, NULL),
    PLAIN("p", "depth", COUNT, NULL),
    PLAIN("p", "repetitions", COUNT, "1"),
    PLAIN("p", "bytes_per_s", RATE, NULL),
    PLAIN("p", "bytes_per_s_min", RATE, ":bytes_per_s"),
    PLAIN("p", "bytes_per_s_max", RATE, ":bytes_per_s"),
    PLAIN("p", "latency_seconds_p50", AMOUNT, NULL),
    PLAIN("p", "latency_seconds_p99", AMOUNT, ":latency_seconds_p50"),
    SOURCE_COLUMN,
};

static const rows_column mixed_columns[] = {
    {"device", ROWS_TEXT, NULL, "d.name"},
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

static const rows_column start_columns[] = {
    {"device", ROWS_TEXT, NULL, "d.name"},
    PLAIN("s", "request_bytes", COUNT, NULL),
    PLAIN("s", "begins_at", COUNT, NULL),
    PLAIN("s", "depth", COUNT, NULL),
    PLAIN("s", "repetitions", COUNT, "1"),
    PLAIN("s", "bytes_per_s", RATE, NULL),
    PLAIN("s", "bytes_per_s_min", RATE, ":bytes_per_s"),
    PLAIN("s", "bytes_per_s_max", RATE, ":bytes_per_s"),
    SOURCE_COLUMN,
};

/* ---- codecs, prefill ---- */

#define FORM_KEYS "codec, mode, rate"

static const char *const no_checks[] = {NULL};

static const rows_column codec_columns[] = {
    VARIANT_COLUMN("c"),
    PLAIN("c", "isa", TEXT, "'unknown'"),
    PLAIN("c", "threads", COUNT, "1"),
    {"kv", ROWS_TEXT, "'unknown'", "c.source"},
    PLAIN("c", "stored_share", RATE, NULL),
    PLAIN("c", "encode_bytes_per_s", RATE, NULL),
    PLAIN("c", "decode_bytes_per_s", RATE, NULL),
    PLAIN("c", "source_bytes", COUNT, "1"),
    PLAIN("c", "repetitions", COUNT, "1"),
    SOURCE_COLUMN,
};

static const rows_column prefill_columns[] = {
    PLAIN("p", "name", TEXT, NULL),
    PLAIN("p", "linear_seconds_per_token", AMOUNT, NULL),
    PLAIN("p", "square_seconds_per_token2", AMOUNT, NULL),
    PLAIN("p", "fixed_seconds", AMOUNT, "0.0"),
    SOURCE_COLUMN,
};

static const rows_column pass_columns[] = {
    PLAIN("p", "name", TEXT, NULL),
    PLAIN("p", "new_tokens", COUNT, NULL),
    PLAIN("p", "prefix_tokens", COUNT, NULL),
    PLAIN("p", "layer_seconds", RATE, NULL),
    SOURCE_COLUMN,
};

/* ---- quality ---- */

#define MODEL_COLUMNS                                                                              \
    {"model", ROWS_TEXT, NULL, "m.name"},                                                          \
    {                                                                                              \
        "digest", ROWS_TEXT, "''", "m.digest"                                                      \
    }
#define MODEL_ID "(SELECT id FROM model m WHERE m.name = v.model AND m.digest = v.digest)"
#define MODEL_MADE                                                                                 \
    "INSERT INTO model (name, digest, parameters, layers, heads, kv_heads, head_dim, vocab) "      \
    "SELECT model, digest, 0, 0, 0, 0, 0, 0 FROM v WHERE " MODEL_ID " IS NULL"

#define SET_KEY_COLUMNS                                                                            \
    MODEL_COLUMNS, PLAIN("s", "class", TEXT, NULL), PLAIN("s", "method", TEXT, "'import'"),        \
        PLAIN("s", "settings", TEXT, "''"), PLAIN("s", "context_tokens", COUNT, "0"),              \
        PLAIN("s", "continuation_tokens", COUNT, "0")
#define SET_KEYS "class, method, settings, context_tokens, continuation_tokens"
#define SET_OF_ROW                                                                                 \
    "FROM quality_set s WHERE s.run_id = :run AND s.model_id = " MODEL_ID                          \
    " AND s.class = v.class AND s.method = v.method AND s.settings = v.settings AND "              \
    "s.context_tokens = v.context_tokens AND s.continuation_tokens = v.continuation_tokens"
#define SET_ID    "(SELECT id " SET_OF_ROW ")"
#define SET_FACTS "entries, nll_nats, spearman_variants, sensitivity_sd, repeatability, answers"
#define SET_VALUES                                                                                 \
    "set_entries, set_nll_nats, set_spearman_variants, set_sensitivity_sd, set_repeatability, "    \
    "set_answers"
#define LOSS_OF_SCORE "max(0.0, 1.0 - :score / :score_exact)" /* above the exact one: no loss */

/* What a variant does to answers: of a set in the mean, and of an entry. */
#define FIGURES(table)                                                                             \
    PLAIN(table, "top1", SHARE, "NULL"), PLAIN(table, "nll_delta", REAL, "NULL"),                  \
        PLAIN(table, "rouge_l", SHARE, "NULL"), PLAIN(table, "f1", SHARE, "NULL"),                 \
        PLAIN(table, "answers", SHARE, "NULL"), PLAIN(table, "attention_error", AMOUNT, "NULL"),   \
        PLAIN(table, "attention_error_high", AMOUNT, "NULL"),                                      \
        PLAIN(table, "retained_mass", SHARE, "NULL"), PLAIN(table, "flip_rate", SHARE, "NULL")

static const rows_column quality_columns[] = {
    SET_KEY_COLUMNS,
    VARIANT_COLUMN("q"),
    PLAIN("q", "metric", TEXT, NULL),
    PLAIN("q", "bits_per_element", RATE, NULL),
    PLAIN("q", "loss_mean", SHARE, LOSS_OF_SCORE),
    PLAIN("q", "loss_low", SHARE, "coalesce(:loss_mean, " LOSS_OF_SCORE ")"),
    PLAIN("q", "loss_high", SHARE, "coalesce(:loss_mean, " LOSS_OF_SCORE ")"),
    PLAIN("q", "loss_p90", SHARE, "NULL"),
    PLAIN("q", "loss_cv", AMOUNT, "NULL"),
    {"score", ROWS_REAL, "NULL", "NULL"},
    {"score_exact", ROWS_RATE, "NULL", "NULL"},
    PLAIN("q", "entries", COUNT, "1"),
    PLAIN("q", "physical_bits_per_element", RATE, "NULL"),
    PLAIN("q", "kl", REAL, "NULL"),
    PLAIN("q", "kl_low", REAL, "NULL"),
    PLAIN("q", "kl_high", REAL, "NULL"),
    PLAIN("q", "kl_p90", REAL, "NULL"),
    FIGURES("q"),
    PLAIN("q", "spearman_entries", SIGNED, "NULL"),
    PLAIN("q", "repeatability", SIGNED, "NULL"),
    {"set_entries", ROWS_COUNT, "0", "s.entries"},
    {"set_nll_nats", ROWS_AMOUNT, "NULL", "s.nll_nats"},
    {"set_spearman_variants", ROWS_SIGNED, "NULL", "s.spearman_variants"},
    {"set_sensitivity_sd", ROWS_AMOUNT, "NULL", "s.sensitivity_sd"},
    {"set_repeatability", ROWS_SIGNED, "NULL", "s.repeatability"},
    {"set_answers", ROWS_SHARE, "NULL", "s.answers"},
    SOURCE_COLUMN,
};

static const char *const quality_checks[] = {
    "SELECT 'needs loss_mean, or score and score_exact' FROM v WHERE loss_mean IS NULL", MODEL_MADE,
    "SELECT 'an earlier row of this set has other set_ values' FROM v WHERE " SET_ID
    " IS NOT NULL AND (SELECT " SET_FACTS " " SET_OF_ROW ") IS NOT (" SET_VALUES ")",
    "INSERT INTO quality_set (run_id, model_id, " SET_KEYS ", " SET_FACTS ") SELECT :run, " MODEL_ID
    ", " SET_KEYS ", " SET_VALUES " FROM v WHERE " SET_ID " IS NULL",
    NULL};

static const rows_column entry_columns[] = {
    SET_KEY_COLUMNS,
    PLAIN("e", "entry", COUNT, NULL),
    VARIANT_COLUMN("e"),
    PLAIN("e", "bits_per_element", RATE, NULL),
    PLAIN("e", "loss", SHARE, "NULL"),
    PLAIN("e", "kl", REAL, "NULL"),
    PLAIN("e", "kl_first", REAL, "NULL"),
    PLAIN("e", "kl_second", REAL, "NULL"),
    FIGURES("e"),
    SOURCE_COLUMN,
};

static const char *const entry_checks[] = {
    "SELECT 'no row of \"quality\" has this set and source' FROM v WHERE " SET_ID " IS NULL", NULL};

static const rows_column map_columns[] = {
    MODEL_COLUMNS,
    PLAIN("q", "family", TEXT, NULL),
    PLAIN("q", "position", COUNT, NULL),
    PLAIN("q", "attention_error", AMOUNT, NULL),
    PLAIN("q", "loss", SHARE, NULL),
    PLAIN("q", "loss_upper", SHARE, ":loss"),
    SOURCE_COLUMN,
};

static const char *const model_made[] = {MODEL_MADE, NULL};

/* ---- models and calibrations ---- */

/* Shapes are told once, so that curves need not repeat them; 0 is unknown. */
static const rows_column model_columns[] = {
    MODEL_COLUMNS,
    PLAIN("m", "parameters", COUNT, "0"),
    PLAIN("m", "layers", COUNT, "0"),
    PLAIN("m", "heads", COUNT, "0"),
    PLAIN("m", "kv_heads", COUNT, "0"),
    PLAIN("m", "head_dim", COUNT, "0"),
    PLAIN("m", "vocab", COUNT, "0"),
};

#define MODEL_OTHER(fact) " OR NOT (m." fact " IN (0, v." fact ") OR v." fact " = 0)"
#define MODEL_TOLD(fact)  ", " fact " = max(m." fact ", v." fact ")"

static const char *const model_checks[] = {
    MODEL_MADE,
    "SELECT 'the profile knows this model with another shape' FROM v JOIN model m ON m.id "
    "= " MODEL_ID " WHERE 0" MODEL_OTHER("parameters") MODEL_OTHER("layers") MODEL_OTHER("heads")
        MODEL_OTHER("kv_heads") MODEL_OTHER("head_dim") MODEL_OTHER("vocab"),
    "UPDATE model AS m SET name = m.name" MODEL_TOLD("parameters") MODEL_TOLD("layers")
        MODEL_TOLD("heads") MODEL_TOLD("kv_heads") MODEL_TOLD("head_dim")
            MODEL_TOLD("vocab") " FROM v WHERE m.id = " MODEL_ID,
    NULL};

#define CALIBRATION_ID                                                                             \
    "(SELECT id FROM calibration c WHERE c.run_id = :run AND c.model_id = " MODEL_ID               \
    " AND c.class = v.class)"
#define CALIBRATION_MADE                                                                           \
    "INSERT INTO calibration (run_id, model_id, class) SELECT :run, " MODEL_ID                     \
    ", class FROM v WHERE " CALIBRATION_ID " IS NULL"

static const rows_column rung_columns[] = {
    MODEL_COLUMNS,
    PLAIN("c", "class", TEXT, NULL),
    PLAIN("g", "position", COUNT, NULL),
    VARIANT_COLUMN("g"),
    PLAIN("g", "bits_per_element", RATE, NULL),
    PLAIN("g", "loss", SHARE, NULL),
    PLAIN("g", "loss_upper", SHARE, ":loss"),
    PLAIN("g", "accepted", SWITCH, "1"),
    PLAIN("g", "evidence", TEXT, "'imported'"),
    {"counts", ROWS_BYTES, "NULL", "nullif(hex(g.counts), '')"},
    SOURCE_COLUMN,
};

static const char *const calibration_made[] = {MODEL_MADE, CALIBRATION_MADE, NULL};

static const rows_column choice_columns[] = {
    MODEL_COLUMNS,
    PLAIN("c", "class", TEXT, NULL),
    PLAIN("h", "question", TEXT, NULL),
    PLAIN("h", "chosen", TEXT, NULL),
    PLAIN("h", "evidence", TEXT, "'imported'"),
    SOURCE_COLUMN,
};

#define TABLE(columns) columns##_columns, COUNT_OF(columns##_columns)
#define DEVICE_JOIN                                                                                \
    "JOIN run r ON r.id = d.run_id WHERE " COMPLETE                                                \
    " AND EXISTS (SELECT 1 FROM device_fit f WHERE f.device_id = d.id) ORDER BY r.id, d.id, "
#define SET_JOIN "JOIN model m ON m.id = s.model_id JOIN run r ON r.id = s.run_id WHERE " COMPLETE
#define CALIBRATION_JOIN                                                                           \
    "JOIN model m ON m.id = c.model_id JOIN run r ON r.id = c.run_id WHERE " COMPLETE              \
    " ORDER BY c.id, "

static const rows_table tables[] = {
    {"model", TABLE(model), "model m ORDER BY m.id", model_checks, NULL, NULL, NULL, 0},
    {"device", TABLE(device),
     "device d JOIN device_fit f ON f.device_id = d.id JOIN run r ON r.id = d.run_id "
     "WHERE " COMPLETE " ORDER BY r.id, d.id, f.kind",
     device_checks, "device_fit", "device_id, kind", DEVICE_ID ", direction", 'f'},
    {"device_point", TABLE(point),
     "device_point p JOIN device d ON d.id = p.device_id " DEVICE_JOIN
     "p.kind, p.request_bytes, p.depth",
     device_known, "device_point", "device_id, kind", DEVICE_ID ", direction", 'p'},
    {"device_mixed", TABLE(mixed),
     "device_mixed m JOIN device d ON d.id = m.device_id " DEVICE_JOIN
     "m.request_bytes, m.depth, m.read_share",
     device_known, "device_mixed", "device_id", DEVICE_ID, 'm'},
    {"device_start", TABLE(start),
     "device_start s JOIN device d ON d.id = s.device_id " DEVICE_JOIN
     "s.request_bytes, s.begins_at",
     device_known, "device_start", "device_id", DEVICE_ID, 's'},
    {"codec", TABLE(codec),
     "codec_curve c JOIN run r ON r.id = c.run_id WHERE " COMPLETE
     " ORDER BY r.id, c.codec, c.mode, c.rate, c.isa, c.threads, c.source",
     no_checks, "codec_curve", "run_id, codec, mode, rate, name, source",
     ":run, codec, mode, rate, name, kv", 'c'},
    {"prefill", TABLE(prefill),
     "prefill p JOIN run r ON r.id = p.run_id WHERE " COMPLETE " ORDER BY r.id, p.name", no_checks,
     "prefill", "run_id", ":run", 'p'},
    {"pass", TABLE(pass),
     "pass p JOIN run r ON r.id = p.run_id WHERE " COMPLETE
     " ORDER BY r.id, p.name, p.new_tokens, p.prefix_tokens",
     no_checks, "pass", "run_id", ":run", 'p'},
    {"quality", TABLE(quality),
     "quality_curve q JOIN quality_set s ON s.id = q.set_id " SET_JOIN
     " ORDER BY s.id, q.bits_per_element DESC, q.codec, q.mode, q.rate",
     quality_checks, "quality_curve", "set_id, codec, mode, rate, name",
     SET_ID ", codec, mode, rate, name", 'q'},
    {"quality_entry", TABLE(entry),
     "quality_entry e JOIN quality_set s ON s.id = e.set_id " SET_JOIN
     " AND EXISTS (SELECT 1 FROM quality_curve q WHERE q.set_id = s.id) "
     "ORDER BY s.id, e.entry, e.codec, e.mode, e.rate",
     entry_checks, "quality_entry", "set_id, codec, mode, rate", SET_ID ", codec, mode, rate", 'e'},
    {"quality_map", TABLE(map),
     "quality_map q JOIN model m ON m.id = q.model_id JOIN run r ON r.id = q.run_id "
     "WHERE " COMPLETE " ORDER BY r.id, m.id, q.family, q.position",
     model_made, "quality_map", "run_id, model_id", ":run, " MODEL_ID, 'q'},
    {"calibration", TABLE(rung),
     "calibration_rung g JOIN calibration c ON c.id = g.calibration_id " CALIBRATION_JOIN
     "g.position",
     calibration_made, "calibration_rung", "calibration_id, codec, mode, rate, name, counts",
     CALIBRATION_ID ", codec, mode, rate, name, counts", 'g'},
    {"calibration_choice", TABLE(choice),
     "calibration_choice h JOIN calibration c ON c.id = h.calibration_id " CALIBRATION_JOIN
     "h.question",
     calibration_made, "calibration_choice", "calibration_id", CALIBRATION_ID, 'h'},
    /* For reading alone: a store's experience and who measured stay with their host. */
    {.name = "learned",
     .from = "SELECT l.kind, l.name, l.part, l.value, l.weight, l.observations, l.error_p50, "
             "l.error_p90, l.log_likelihood, " SOURCE_SQL " AS source FROM learned l JOIN run r ON "
             "r.id = l.run_id ORDER BY r.id, l.kind, l.name, l.part"},
    {.name = "run", .from = "SELECT r.* FROM run r ORDER BY r.id"},
};

const rows_table *rows_table_at(size_t index)
{
    return index < COUNT_OF(tables) ? &tables[index] : NULL;
}

/* A ladder of variants in a file of its own; it comes into no database. */
static const rows_column ladder_columns[] = {
    [LADDER_VARIANT] = {"variant", ROWS_VARIANT, NULL, NULL},
    [LADDER_BITS] = {"bits", ROWS_RATE, NULL, NULL},
    [LADDER_LOSS] = {"loss", ROWS_SHARE, NULL, NULL},
    [LADDER_UPPER] = {"loss_upper", ROWS_SHARE, NULL, NULL},
    [LADDER_ENCODE] = {"encode_bytes_per_s", ROWS_RATE, NULL, NULL},
    [LADDER_DECODE] = {"decode_bytes_per_s", ROWS_RATE, NULL, NULL},
    {"source", ROWS_TEXT, NULL, NULL},
};

const rows_table rows_ladder = {.name = "ladder", TABLE(ladder)};
