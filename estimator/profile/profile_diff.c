/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile_diff.c - two profiles curve by curve: what answers in each, how much it changed, and
 * whether the repetitions behind it explain that. Thread rule: as profile.h says, for both.
 */
#include "estimator/profile/profile_internal.h"
#include "estimator/profile/profile_newest.h"

#include <assert.h>
#include <math.h>
#include <string.h>

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
