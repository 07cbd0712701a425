/* SPDX-License-Identifier: Apache-2.0 */
/*
 * exchange_views.c - rows of a profile for files and for people: its tables with names for keys,
 * what answers for each thing, and the figures by which two profiles are compared. Nothing is
 * decided on these; kvt_profile_device and its neighbours give the numbers to decide on.
 *
 * Thread rule: as profile.h says.
 */
#include "estimator/exchange/exchange.h"
#include "estimator/exchange/exchange_rows.h"
#include "estimator/profile/profile_internal.h"

#include <assert.h>
#include <math.h>
#include <string.h>

/* ---- rows of a statement ---- */

static json_t *view_cell(sqlite3_stmt *statement, int column)
{
    json_t *cell = NULL;
    switch (sqlite3_column_type(statement, column)) {
    case SQLITE_INTEGER: return json_integer(sqlite3_column_int64(statement, column));
    case SQLITE_FLOAT: cell = json_real(sqlite3_column_double(statement, column)); break;
    case SQLITE_TEXT:
        /* A text of the database need not be UTF-8. */
        cell = json_string((const char *)sqlite3_column_text(statement, column));
        return cell != NULL ? cell : json_string("?");
    default: break;
    }
    return cell != NULL ? cell : json_null();
}

kvt_status exchange_select(kvt_profile *profile, const char *sql, const char *name, json_t *into)
{
    json_t *rows = json_array();
    sqlite3_stmt *statement = NULL;
    bool sound = json_object_set_new(into, name, rows) == 0;
    int result = sql != NULL && sound
                     ? sqlite3_prepare_v2(profile->database, sql, -1, &statement, NULL)
                     : SQLITE_NOMEM;
    const int columns = sqlite3_column_count(statement);
    while (result == SQLITE_OK && sound) {
        result = sqlite3_step(statement);
        if (result != SQLITE_ROW) break;
        result = SQLITE_OK;
        json_t *row = json_object();
        for (int i = 0; i < columns; i++)
            sound &= json_object_set_new(row, sqlite3_column_name(statement, i),
                                         view_cell(statement, i)) == 0;
        sound &= json_array_append_new(rows, row) == 0;
    }
    sqlite3_finalize(statement);
    if (!sound) return KVT_E_MEMORY;
    const kvt_status status = profile_status(result);
    return status == KVT_OK || status == KVT_E_MEMORY ? status : KVT_E_DATABASE;
}

/* ---- tables as import takes them ---- */

/* variant_name(codec, mode, rate) in SQL. */
static void view_variant_name(sqlite3_context *context, int count, sqlite3_value **values)
{
    char name[160];
    const kvt_variant variant = {.codec = (uint16_t)sqlite3_value_int(values[0]),
                                 .mode = (uint16_t)sqlite3_value_int(values[1]),
                                 .rate = (uint32_t)sqlite3_value_int64(values[2])};
    (void)count;
    rows_variant_name(variant, name);
    sqlite3_result_text(context, name, -1, SQLITE_TRANSIENT);
}

static kvt_status view_table(kvt_profile *profile, const rows_table *table, json_t *tables)
{
    sqlite3_str *sql = sqlite3_str_new(NULL);
    for (size_t i = 0; i < table->column_count; i++)
        sqlite3_str_appendf(sql, "%s%s AS %s", i == 0 ? "SELECT " : ", ", table->columns[i].sql,
                            table->columns[i].name);
    sqlite3_str_appendf(sql, "%s%s", table->column_count > 0 ? " FROM " : "", table->from);
    char *text = sqlite3_str_finish(sql);
    const kvt_status status = exchange_select(profile, text, table->name, tables);
    sqlite3_free(text);
    if (status == KVT_OK && json_array_size(json_object_get(tables, table->name)) == 0)
        (void)json_object_del(tables, table->name);
    return status;
}

kvt_status exchange_export(kvt_profile *profile, const char *name, json_t *tables)
{
    const rows_table *table;
    kvt_status status = name != NULL ? KVT_E_ARGUMENT : KVT_OK;
    int result = sqlite3_create_function(profile->database, "variant_name", 3,
                                         SQLITE_UTF8 | SQLITE_DETERMINISTIC | SQLITE_INNOCUOUS,
                                         NULL, view_variant_name, NULL, NULL);
    /* One snapshot, so that curves of a writer in between do not come without their device. */
    if (result == SQLITE_OK) result = sqlite3_exec(profile->database, "BEGIN", NULL, NULL, NULL);
    if (result != SQLITE_OK) return profile_status(result);
    for (size_t i = 0; status == KVT_OK || status == KVT_E_ARGUMENT; i++) {
        if ((table = rows_table_at(i)) == NULL) break;
        if (name != NULL ? strcmp(table->name, name) == 0 : table->checks != NULL)
            status = view_table(profile, table, tables);
    }
    (void)sqlite3_exec(profile->database, "COMMIT", NULL, NULL, NULL);
    return status;
}

json_t *exchange_document(const char *database, json_t *tables)
{
    return json_pack("{s:s, s:s, s:s, s:o}", "schema", ROWS_SCHEMA, "version",
                     profile_library_version, "database", database, "tables", tables);
}

/* ---- what answers ---- */

/* The row that answers among those that are about the same thing; between the two stands what makes
 * things the same. */
#define PLACE_BY    "row_number() OVER (PARTITION BY "
#define PLACE_ORDER " ORDER BY " PROFILE_ORDER ") AS place "

/* Newest sets that have curves; imports of several sources stand beside each other. */
#define LIST_SETS                                                                                  \
    "(SELECT s.*, m.name AS model, r.complete, r.source, r.started_utc, r.host_name, "             \
    "r.library_version, " PLACE_BY "s.model_id, s.class, s.method, r.source" PLACE_ORDER           \
    "FROM quality_set s JOIN model m ON m.id = s.model_id JOIN run r ON r.id = s.run_id "          \
    "WHERE EXISTS (SELECT 1 FROM quality_curve c WHERE c.set_id = s.id))"

#define LIST_CALIBRATIONS                                                                          \
    "(SELECT k.*, m.name AS model, r.complete, r.started_utc, r.host_name, "                       \
    "r.library_version, " PLACE_BY "k.model_id, k.class" PLACE_ORDER                               \
    "FROM calibration k JOIN model m ON m.id = k.model_id JOIN run r ON r.id = k.run_id)"

/* All sizes and depths of one run. */
#define LIST_MIXED                                                                                 \
    "(SELECT d.name AS device, x.*, rank() OVER (PARTITION BY d.name" PLACE_ORDER                  \
    "FROM device_mixed x JOIN device d ON d.id = x.device_id JOIN run r ON r.id = d.run_id)"

#define LIST_CODECS                                                                                \
    "(SELECT c.*, r.kind = 'import' AS imported, r.source AS import_source, " PLACE_BY             \
    "c.codec, c.mode, c.rate, c.isa, c.threads, c.source" PLACE_ORDER                              \
    "FROM codec_curve c JOIN run r ON r.id = c.run_id)"

#define LIST_LEARNED                                                                               \
    "(SELECT l.*, r.started_utc, " PLACE_BY "l.kind, l.name, l.part" PLACE_ORDER                   \
    "FROM learned l JOIN run r ON r.id = l.run_id)"

#define LIST_PREFILL                                                                               \
    "(SELECT p.*, r.source, " PLACE_BY "p.name" PLACE_ORDER                                        \
    "FROM prefill p JOIN run r ON r.id = p.run_id)"

/* All places of one table. */
#define LIST_PASSES                                                                                \
    "(SELECT p.*, r.source, rank() OVER (PARTITION BY p.name" PLACE_ORDER                          \
    "FROM pass p JOIN run r ON r.id = p.run_id)"

static const struct {
    const char *name;
    const char *sql;
} list_views[] = {
    {"runs",
     "SELECT id, kind, complete, source, started_utc, finished_utc, host_name, cpu_model, "
     "cpu_count, memory_bytes, kernel, library_version, sqlite_version, zstd_version, "
     "seed, command_line, (SELECT name FROM device WHERE run_id = run.id) AS device, "
     "(SELECT identity FROM device WHERE run_id = run.id) AS identity FROM run ORDER BY id"},
    {"mixed", "SELECT device, request_bytes, depth, read_share, repetitions, bytes_per_s, "
              "unmixed_bytes_per_s, read_latency_seconds_p50, read_latency_seconds_p99 "
              "FROM " LIST_MIXED " WHERE place = 1 ORDER BY device, request_bytes, depth"},
    /* gain: over a begin at 4 KiB. */
    {"starts",
     PROFILE_DEVICES " SELECT a.name AS device, s.request_bytes, s.begins_at, s.depth, "
                     "s.repetitions, s.bytes_per_s, s.bytes_per_s / f.bytes_per_s AS gain "
                     "FROM reads a JOIN device_start s USING (device_id) LEFT JOIN device_start f "
                     "ON f.device_id = s.device_id AND f.request_bytes = s.request_bytes AND "
                     "f.begins_at = 4096 ORDER BY device, s.request_bytes, s.begins_at"},
    {"codecs", "SELECT name, isa, threads, source, stored_share, encode_bytes_per_s, "
               "decode_bytes_per_s, source_bytes, repetitions, run_id AS run, imported, "
               "import_source FROM " LIST_CODECS
               " WHERE place = 1 ORDER BY imported, source <> 'sample', source, isa, threads, "
               "stored_share DESC, name"},
    {"models", "SELECT name, digest, parameters, layers, heads, kv_heads, head_dim, vocab "
               "FROM model ORDER BY name, digest"},
    {"quality_sets", "SELECT id AS set_id, model, class, method, entries, context_tokens, "
                     "continuation_tokens, nll_nats, spearman_variants, sensitivity_sd, "
                     "repeatability, complete, source, started_utc, host_name, library_version, "
                     "settings FROM " LIST_SETS " WHERE place = 1 ORDER BY model, class, method"},
    {"quality", "SELECT c.* FROM quality_curve c JOIN " LIST_SETS " s ON s.id = c.set_id "
                "WHERE s.place = 1 ORDER BY s.model, s.class, s.method, c.set_id, "
                "c.bits_per_element DESC, c.name"},
    {"calibrations",
     "SELECT id AS calibration_id, model, class, complete, started_utc, "
     "host_name, library_version FROM " LIST_CALIBRATIONS " WHERE place = 1 ORDER BY model, class"},
    {"rungs", "SELECT g.calibration_id, g.position, g.name, g.bits_per_element, g.loss, "
              "g.loss_upper, g.accepted, g.evidence FROM calibration_rung g "
              "JOIN " LIST_CALIBRATIONS " k ON k.id = g.calibration_id WHERE k.place = 1 "
              "ORDER BY g.calibration_id, g.position"},
    {"choices", "SELECT q.calibration_id, q.question, q.chosen, q.evidence "
                "FROM calibration_choice q JOIN " LIST_CALIBRATIONS
                " k ON k.id = q.calibration_id WHERE k.place = 1 "
                "ORDER BY q.calibration_id, q.question"},
    {"learned",
     "SELECT kind, name, part, value, weight, observations, error_p50, error_p90, "
     "log_likelihood, started_utc FROM " LIST_LEARNED " WHERE place = 1 ORDER BY kind, name, part"},
    {"bases", "SELECT b.hash, printf('transform:%05X', b.start) AS variants, m.name AS model, "
              "b.span, b.metric, b.tokens, length(b.object) AS bytes, r.kind, r.source, "
              "r.complete, r.started_utc FROM basis b JOIN model m ON "
              "m.id = b.model_id JOIN run r ON r.id = b.run_id ORDER BY m.name, b.span, b.hash"},
    {"prefill", "SELECT name, linear_seconds_per_token, square_seconds_per_token2, "
                "fixed_seconds, source FROM " LIST_PREFILL " WHERE place = 1 ORDER BY name"},
    {"passes", "SELECT name, new_tokens, prefix_tokens, layer_seconds, source FROM " LIST_PASSES
               " WHERE place = 1 ORDER BY name, new_tokens, prefix_tokens"},
};

kvt_status exchange_view(kvt_profile *profile, const char *view, json_t *views)
{
    assert(profile != NULL && view != NULL && views != NULL);
    for (size_t i = 0; i < sizeof list_views / sizeof list_views[0]; i++)
        if (strcmp(list_views[i].name, view) == 0)
            return exchange_select(profile, list_views[i].sql, view, views);
    return KVT_E_ARGUMENT;
}

/* ---- two profiles curve by curve ---- */

/*
 * A difference has what answers in each profile, how much it changed, and whether the repetitions
 * behind it explain that.
 */

/* Rows that answer, beside PROFILE_DEVICES. */
static const char diff_rows[] =
    ", prefills AS (SELECT t.*, min(p.place) FROM prefill t JOIN place p USING (run_id) GROUP BY "
    "t.name), "
    "maps AS (SELECT t.*, min(p.place) FROM quality_map t JOIN place p USING (run_id) GROUP BY "
    "t.model_id, t.family, t.position), "
    "calibrations AS (SELECT t.*, min(p.place) FROM calibration t JOIN place p USING (run_id) "
    "GROUP BY t.model_id, t.class), "
    "qualities AS (SELECT s.model_id, s.class, s.method, c.*, min(p.place) FROM quality_set s JOIN "
    "place p USING (run_id) JOIN quality_curve c ON c.set_id = s.id GROUP BY s.model_id, s.class, "
    "s.method, c.metric, c.codec, c.mode, c.rate), "
    "models AS (SELECT id, name || ' ' || substr(digest, 1, 8) AS label FROM model), "
    /* A repetition's share of the median, averaged over a direction's points: its fit's spread. */
    "spreads AS (SELECT device_id, kind, avg(bytes_per_s_min / bytes_per_s) AS slow, "
    "avg(bytes_per_s_max / bytes_per_s) AS fast FROM device_point GROUP BY device_id, kind) ";

#define DIFF_RATE(table, kind, word)                                                               \
    "SELECT 'device ' || a.name || ' " word "' AS curve, 'bytes_per_s' AS quantity, "              \
    "f.bytes_per_s AS value, f.bytes_per_s * s.slow AS low, f.bytes_per_s * s.fast AS high "       \
    "FROM " table " a JOIN device_fit f ON f.device_id = a.device_id AND f.kind = " kind           \
    " LEFT JOIN spreads s ON s.device_id = f.device_id AND s.kind = f.kind"

#define DIFF_WAIT(table, kind, word)                                                               \
    "SELECT 'device ' || a.name || ' " word "', 'request_seconds', f.request_seconds, "            \
    "f.request_seconds / s.fast, f.request_seconds / s.slow FROM " table " a JOIN device_fit f "   \
    "ON f.device_id = a.device_id AND f.kind = " kind                                              \
    " LEFT JOIN spreads s ON s.device_id = f.device_id AND s.kind = f.kind"

#define DIFF_POINT(table, kind, word)                                                              \
    "SELECT printf('device %s " word " %d B x %d', a.name, p.request_bytes, p.depth), "            \
    "'bytes_per_s', p.bytes_per_s, p.bytes_per_s_min, p.bytes_per_s_max FROM " table " a JOIN "    \
    "device_point p ON p.device_id = a.device_id AND p.kind = " kind

#define DIFF_CODEC(column)                                                                         \
    "SELECT printf('codec %s %s x %d on %s', name, isa, threads, source), '" column "', " column   \
    ", NULL, NULL FROM speeds"

#define DIFF_PREFILL(column)                                                                       \
    "SELECT 'prefill ' || name, '" column "', " column ", NULL, NULL FROM prefills"

#define DIFF_RUNG(quantity, low, high)                                                             \
    "SELECT printf('calibration %s %s %s', m.label, c.class, g.name), '" quantity "', g." quantity \
    ", " low ", " high " FROM calibrations c JOIN models m ON m.id = c.model_id JOIN "             \
    "calibration_rung g ON g.calibration_id = c.id"

/* Each gives curve, quantity, value, and where known the lowest and highest of its repetitions. */
static const char *const diff_parts[] = {
    DIFF_RATE("reads", "0", "read"),
    DIFF_RATE("writes", "1", "write"),
    DIFF_WAIT("reads", "0", "read"),
    DIFF_WAIT("writes", "1", "write"),
    DIFF_POINT("reads", "0", "read"),
    DIFF_POINT("writes", "1", "write"),
    "SELECT printf('device %s mixed %d B x %d, %g reads', a.name, x.request_bytes, x.depth, "
    "x.read_share), 'bytes_per_s', x.bytes_per_s, NULL, NULL FROM mixed a JOIN device_mixed x ON "
    "x.device_id = a.device_id",
    "SELECT printf('device %s read %d B at multiples of %d', a.name, s.request_bytes, "
    "s.begins_at), 'bytes_per_s', s.bytes_per_s, s.bytes_per_s_min, s.bytes_per_s_max FROM reads a "
    "JOIN device_start s ON s.device_id = a.device_id",
    DIFF_CODEC("stored_share"),
    DIFF_CODEC("encode_bytes_per_s"),
    DIFF_CODEC("decode_bytes_per_s"),
    DIFF_PREFILL("linear_seconds_per_token"),
    DIFF_PREFILL("square_seconds_per_token2"),
    DIFF_PREFILL("fixed_seconds"),
    "SELECT printf('pass %s %d new behind %d', t.name, t.new_tokens, t.prefix_tokens), "
    "'layer_seconds', t.layer_seconds, NULL, NULL FROM passing a JOIN pass t ON t.run_id = "
    "a.run_id "
    "AND t.name = a.name",
    "SELECT printf('learned %s %s %s', kind, name, part), 'value', value, NULL, NULL FROM learning",
    "SELECT printf('quality %s %s %s', m.label, q.class, q.name), q.metric || ' by ' || q.method, "
    "q.loss_mean, q.loss_low, q.loss_high FROM qualities q JOIN models m ON m.id = q.model_id",
    "SELECT printf('map %s %s', m.label, q.family), 'loss at step ' || q.position, q.loss, NULL, "
    "NULL FROM maps q JOIN models m ON m.id = q.model_id",
    "SELECT printf('basis %s span %d %s', m.label, b.span, substr(b.hash, 1, 16)), 'bytes', "
    "length(b.object), NULL, NULL FROM basis b JOIN models m ON m.id = b.model_id",
    DIFF_RUNG("loss", "2 * g.loss - g.loss_upper", "g.loss_upper"),
    DIFF_RUNG("accepted", "NULL", "NULL"),
};

/* All of them as one statement, released by sqlite3_free. */
static char *diff_statement(void)
{
    sqlite3_str *sql = sqlite3_str_new(NULL);
    sqlite3_str_appendall(sql, PROFILE_DEVICES);
    sqlite3_str_appendall(sql, diff_rows);
    for (size_t i = 0; i < sizeof diff_parts / sizeof diff_parts[0]; i++) {
        sqlite3_str_appendall(sql, i == 0 ? "SELECT * FROM (" : " UNION ALL ");
        sqlite3_str_appendall(sql, diff_parts[i]);
    }
    sqlite3_str_appendall(sql, ") ORDER BY curve, quantity");
    return sqlite3_str_finish(sql);
}

static json_t *diff_number(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

static double diff_value(const json_t *figure, const char *key)
{
    const json_t *value = json_object_get(figure, key);
    return json_is_number(value) ? json_number_value(value) : (double)NAN;
}

/* One change; a figure that is only in the other profile is NULL. */
static json_t *diff_change(const json_t *before, const json_t *after)
{
    const json_t *named = before != NULL ? before : after;
    const double from = diff_value(before, "value"), to = diff_value(after, "value");
    const char *spread = "unknown";
    /* Repetitions overlap, or do not; without any there is nothing to compare. */
    if (diff_value(before, "low") <= diff_value(after, "high") &&
        diff_value(after, "low") <= diff_value(before, "high"))
        spread = "within";
    else if (diff_value(before, "low") > diff_value(after, "high") ||
             diff_value(after, "low") > diff_value(before, "high"))
        spread = "beyond";
    return json_pack("{s:O, s:O, s:o, s:o, s:o, s:s}", "curve", json_object_get(named, "curve"),
                     "quantity", json_object_get(named, "quantity"), "before", diff_number(from),
                     "after", diff_number(to), "change",
                     diff_number(from == to ? 0.0 : (to - from) / fabs(from)), "spread", spread);
}

/* Below 0: the figure is only in the first profile, or the second one has no more. */
static int diff_order(const json_t *before, const json_t *after)
{
    static const char *const keys[] = {"curve", "quantity"};
    int order = 0;
    if (before == NULL || after == NULL) return before != NULL ? -1 : 1;
    for (size_t i = 0; i < 2 && order == 0; i++)
        order = strcmp(json_string_value(json_object_get(before, keys[i])),
                       json_string_value(json_object_get(after, keys[i])));
    return order;
}

kvt_status exchange_diff(kvt_profile *before, kvt_profile *after, json_t *changes)
{
    json_t *figures = json_object();
    char *sql = diff_statement();
    kvt_status status = exchange_select(before, sql, "before", figures);
    if (status == KVT_OK) status = exchange_select(after, sql, "after", figures);
    sqlite3_free(sql);
    const json_t *sides[2] = {json_object_get(figures, "before"),
                              json_object_get(figures, "after")};
    size_t at[2] = {0, 0};
    while (status == KVT_OK) {
        const json_t *first = json_array_get(sides[0], at[0]);
        const json_t *second = json_array_get(sides[1], at[1]);
        if (first == NULL && second == NULL) break;
        const int order = diff_order(first, second);
        json_t *change = diff_change(order <= 0 ? first : NULL, order >= 0 ? second : NULL);
        if (json_array_append_new(changes, change) != 0) status = KVT_E_MEMORY;
        at[0] += order <= 0;
        at[1] += order >= 0;
    }
    json_decref(figures);
    return status;
}
