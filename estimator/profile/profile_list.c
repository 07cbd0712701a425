/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile_list.c - the tables of a profile as rows for whoever shows them: what answers for each
 * thing, with where it is from. Nothing is decided on these; kvt_profile_device and its neighbours
 * give the numbers to decide on.
 *
 * Thread rule: as profile.h says.
 */
#include "estimator/profile/profile_internal.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#define LIST_COLUMNS_MAX 48

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
    {"bases", "SELECT b.hash, m.name AS model, b.span, b.metric, b.tokens, length(b.object) AS "
              "bytes, r.kind, r.source, r.complete, r.started_utc FROM basis b JOIN model m ON "
              "m.id = b.model_id JOIN run r ON r.id = b.run_id ORDER BY m.name, b.span, b.hash"},
    {"prefill", "SELECT name, linear_seconds_per_token, square_seconds_per_token2, "
                "fixed_seconds, source FROM " LIST_PREFILL " WHERE place = 1 ORDER BY name"},
};

static const char *list_find(const char *view)
{
    for (size_t i = 0; i < sizeof list_views / sizeof list_views[0]; i++) {
        if (strcmp(list_views[i].name, view) == 0) return list_views[i].sql;
    }
    return NULL;
}

static kvt_profile_cell list_cell(sqlite3_stmt *statement, int column)
{
    kvt_profile_cell cell = {.column = sqlite3_column_name(statement, column)};
    switch (sqlite3_column_type(statement, column)) {
    case SQLITE_INTEGER:
        cell.kind = KVT_CELL_INTEGER;
        cell.integer = sqlite3_column_int64(statement, column);
        break;
    case SQLITE_FLOAT:
        cell.kind = KVT_CELL_REAL;
        cell.real = sqlite3_column_double(statement, column);
        break;
    case SQLITE_TEXT:
        cell.kind = KVT_CELL_TEXT;
        cell.text = (const char *)sqlite3_column_text(statement, column);
        if (cell.text == NULL) cell.text = "";
        break;
    default: cell.kind = KVT_CELL_NULL; break;
    }
    return cell;
}

kvt_status kvt_profile_list(kvt_profile *profile, const char *view, kvt_profile_visit *visit,
                            void *context)
{
    assert(profile != NULL && view != NULL && visit != NULL);
    kvt_profile_cell cells[LIST_COLUMNS_MAX];
    sqlite3_stmt *statement = NULL;
    const char *sql = list_find(view);
    if (sql == NULL) return KVT_E_ARGUMENT;
    int result = sqlite3_prepare_v2(profile->database, sql, -1, &statement, NULL);
    int columns = sqlite3_column_count(statement);
    assert(columns <= LIST_COLUMNS_MAX);
    bool more = true;
    while (more && (result == SQLITE_OK || result == SQLITE_ROW)) {
        result = sqlite3_step(statement);
        if (result != SQLITE_ROW) break;
        for (int i = 0; i < columns; i++)
            cells[i] = list_cell(statement, i);
        more = visit(context, view, cells, (size_t)columns);
    }
    sqlite3_finalize(statement);
    if (!more) return KVT_E_CANCELLED;
    if (result == SQLITE_DONE) return KVT_OK;
    kvt_status status = profile_status(result);
    return status == KVT_E_MEMORY ? status : KVT_E_DATABASE;
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
    DIFF_CODEC("stored_share"),
    DIFF_CODEC("encode_bytes_per_s"),
    DIFF_CODEC("decode_bytes_per_s"),
    DIFF_PREFILL("linear_seconds_per_token"),
    DIFF_PREFILL("square_seconds_per_token2"),
    DIFF_PREFILL("fixed_seconds"),
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

typedef struct diff_side {
    sqlite3_stmt *row;
    bool present;
    const char *curve;
    const char *quantity;
    double value, low, high; /* low NAN: no repetitions to tell the spread */
} diff_side;

static int diff_next(diff_side *side)
{
    int result = sqlite3_step(side->row);
    side->present = result == SQLITE_ROW;
    if (!side->present) return result == SQLITE_DONE ? SQLITE_OK : result;
    side->curve = (const char *)sqlite3_column_text(side->row, 0);
    side->quantity = (const char *)sqlite3_column_text(side->row, 1);
    if (side->curve == NULL || side->quantity == NULL) return SQLITE_NOMEM;
    side->value = sqlite3_column_double(side->row, 2);
    bool known = sqlite3_column_type(side->row, 3) != SQLITE_NULL &&
                 sqlite3_column_type(side->row, 4) != SQLITE_NULL;
    side->low = known ? sqlite3_column_double(side->row, 3) : NAN;
    side->high = known ? sqlite3_column_double(side->row, 4) : NAN;
    return SQLITE_OK;
}

static int diff_start(diff_side *side, kvt_profile *profile)
{
    char *sql = diff_statement();
    int result = sql != NULL ? sqlite3_prepare_v2(profile->database, sql, -1, &side->row, NULL)
                             : SQLITE_NOMEM;
    sqlite3_free(sql);
    return result == SQLITE_OK ? diff_next(side) : result;
}

static int diff_order(const diff_side *before, const diff_side *after)
{
    if (!before->present || !after->present) return before->present ? -1 : 1;
    int order = strcmp(before->curve, after->curve);
    return order != 0 ? order : strcmp(before->quantity, after->quantity);
}

static kvt_profile_change diff_compare(const diff_side *before, const diff_side *after, int order)
{
    const diff_side *named = order <= 0 ? before : after;
    kvt_profile_change change = {.curve = named->curve,
                                 .quantity = named->quantity,
                                 .before = order <= 0 ? before->value : NAN,
                                 .after = order >= 0 ? after->value : NAN,
                                 .change = NAN,
                                 .spread = KVT_SPREAD_UNKNOWN};
    if (order != 0) return change;
    double step = after->value - before->value;
    change.change = step == 0.0 ? 0.0 : step / fabs(before->value);
    if (!isnan(before->low) && !isnan(after->low)) {
        bool meet = before->low <= after->high && after->low <= before->high;
        change.spread = meet ? KVT_SPREAD_WITHIN : KVT_SPREAD_BEYOND;
    }
    return change;
}

kvt_status kvt_profile_diff(kvt_profile *before, kvt_profile *after, kvt_profile_compare *visit,
                            void *context)
{
    assert(before != NULL && after != NULL && visit != NULL);
    diff_side sides[2] = {{0}, {0}};
    bool proceed = true;
    int result = diff_start(&sides[0], before);
    if (result == SQLITE_OK) result = diff_start(&sides[1], after);
    while (result == SQLITE_OK && proceed && (sides[0].present || sides[1].present)) {
        int order = diff_order(&sides[0], &sides[1]);
        kvt_profile_change change = diff_compare(&sides[0], &sides[1], order);
        proceed = visit(context, &change);
        if (order <= 0) result = diff_next(&sides[0]);
        if (order >= 0 && result == SQLITE_OK) result = diff_next(&sides[1]);
    }
    sqlite3_finalize(sides[0].row);
    sqlite3_finalize(sides[1].row);
    if (result == SQLITE_OK && !proceed) return KVT_E_CANCELLED;
    kvt_status status = profile_status(result);
    return status == KVT_OK || status == KVT_E_MEMORY ? status : KVT_E_DATABASE;
}
