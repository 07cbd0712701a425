/* SPDX-License-Identifier: Apache-2.0 */
/*
 * exchange_gc.c - drops runs that answer for nothing any more, with models that nothing refers to;
 * then the file shrinks. Imports and measurements are looked at apart from each other: a published
 * curve stays beside a measured one. A quality set stays as long as a newer one does not cover each
 * of its variants with at least as many entries. Thread rule: as profile.h says.
 */
#include "estimator/exchange/exchange.h"
#include "estimator/exchange/exchange_rows.h"
#include "estimator/profile/profile_internal.h"

#include <assert.h>
#include <stdlib.h>

/* Runs that answer, of measurements (?1 = 0) or of imports (?1 = 1): no better run has a row of the
 * same key. */
static const char gc_kept[] =
    "INSERT INTO temp.kept " PROFILE_ANSWERING "SELECT run_id FROM answering "
    "UNION SELECT s.run_id FROM quality_set s JOIN quality_curve c ON c.set_id = s.id "
    "JOIN place p USING (run_id) WHERE NOT EXISTS (SELECT 1 FROM quality_set t JOIN quality_curve "
    "d ON d.set_id = t.id JOIN place o USING (run_id) WHERE o.place < p.place AND t.model_id = "
    "s.model_id AND t.class = s.class AND t.method = s.method AND d.metric = c.metric AND "
    "d.codec = c.codec AND d.mode = c.mode AND d.rate = c.rate AND d.entries >= c.entries) "
    "UNION SELECT t.run_id FROM quality_map t JOIN place p USING (run_id) WHERE NOT EXISTS "
    "(SELECT 1 FROM quality_map u JOIN place o USING (run_id) WHERE o.place < p.place AND "
    "u.model_id = t.model_id AND u.family = t.family) "
    "UNION SELECT t.run_id FROM calibration t JOIN place p USING (run_id) WHERE NOT EXISTS "
    "(SELECT 1 FROM calibration u JOIN place o USING (run_id) WHERE o.place < p.place AND "
    "u.model_id = t.model_id AND u.class = t.class) "
    "UNION SELECT t.run_id FROM prefill t JOIN place p USING (run_id) WHERE NOT EXISTS "
    "(SELECT 1 FROM prefill u JOIN place o USING (run_id) WHERE o.place < p.place AND "
    "u.name = t.name) "
    "UNION SELECT b.run_id FROM basis b JOIN place p USING (run_id) WHERE ?1 = 1";

/* What goes, and why. A store's run may stay open as long as the store: age says nothing of it. The
 * newest run stays, so that no later one gets a number that somebody still holds. */
static const char gc_gone[] =
    "INSERT INTO temp.gone SELECT id, kind, started_utc, CASE complete WHEN 1 THEN 'superseded' "
    "ELSE 'interrupted' END, source FROM run WHERE id NOT IN (SELECT run_id FROM temp.kept) AND "
    "(complete = 1 OR kind <> 'learned' AND 86400 * (julianday('now') - julianday(started_utc)) > "
    "?1) AND id < (SELECT max(id) FROM run)";

/* Models that neither a run that stays nor anything else refers to. */
#define GC_MODELS                                                                                  \
    "FROM model WHERE id NOT IN (SELECT model_id FROM quality_set WHERE run_id NOT IN (SELECT "    \
    "run_id FROM temp.gone) UNION SELECT model_id FROM quality_map WHERE run_id NOT IN (SELECT "   \
    "run_id FROM temp.gone) UNION SELECT model_id FROM calibration WHERE run_id NOT IN (SELECT "   \
    "run_id FROM temp.gone) UNION SELECT model_id FROM basis WHERE run_id NOT IN (SELECT run_id "  \
    "FROM temp.gone))"

/* A basis that rows of a run that stays are of goes on with the newest of these runs; the others go
 * with theirs. Rows name a basis by its start in the rate of their variants. */
#define GC_BASIS_ROWS                                                                              \
    "(SELECT g.rate >> 10 AS start, c.run_id FROM calibration_rung g JOIN calibration c ON c.id "  \
    "= "                                                                                           \
    "g.calibration_id WHERE g.codec = 8 UNION ALL SELECT q.rate >> 10, s.run_id FROM "             \
    "quality_curve q JOIN quality_set s ON s.id = q.set_id WHERE q.codec = 8 UNION ALL SELECT "    \
    "rate >> 10, run_id FROM codec_curve WHERE codec = 8)"

#define GC_BASES                                                                                   \
    "WITH users AS (SELECT start, max(run_id) AS run_id FROM " GC_BASIS_ROWS                       \
    " WHERE run_id NOT IN (SELECT run_id FROM temp.gone) GROUP BY start) UPDATE basis SET run_id " \
    "= (SELECT u.run_id FROM users u WHERE u.start = basis.start) WHERE run_id IN (SELECT run_id " \
    "FROM temp.gone) AND start IN (SELECT start FROM users); "

static int gc_fill(sqlite3 *database, const char *sql, double value)
{
    sqlite3_stmt *fill = NULL;
    int result = sqlite3_prepare_v2(database, sql, -1, &fill, NULL);
    if (result == SQLITE_OK) result = sqlite3_bind_double(fill, 1, value);
    if (result == SQLITE_OK) result = sqlite3_step(fill);
    sqlite3_finalize(fill);
    return result == SQLITE_DONE ? SQLITE_OK : result;
}

/* Puts a number that a statement gives into the report. */
static int gc_number(sqlite3 *database, const char *sql, const char *name, json_t *report)
{
    char text[32] = "0";
    bool found;
    int result = profile_text(database, sql, NULL, text, sizeof text, &found);
    if (json_object_set_new(report, name, json_integer(strtoll(text, NULL, 10))) != 0)
        return SQLITE_NOMEM;
    return result;
}

/* Notes what goes, with what is said of it, before anything is deleted. */
static int gc_inside(kvt_profile *profile, bool dry_run, double interrupted_seconds, json_t *report)
{
    sqlite3 *database = profile->database;
    int result = sqlite3_exec(database,
                              "CREATE TEMP TABLE kept (run_id INTEGER); CREATE TEMP TABLE gone "
                              "(run_id INTEGER PRIMARY KEY, kind, started_utc, reason, source)",
                              NULL, NULL, NULL);
    for (int imports = 0; result == SQLITE_OK && imports < 2; imports++)
        result = gc_fill(database, gc_kept, imports);
    if (result == SQLITE_OK) result = gc_fill(database, gc_gone, interrupted_seconds);
    if (result == SQLITE_OK && exchange_select(profile,
                                               "SELECT run_id AS run, kind, started_utc, reason, "
                                               "source FROM temp.gone ORDER BY run_id",
                                               "runs", report) == KVT_E_MEMORY)
        result = SQLITE_NOMEM;
    if (result == SQLITE_OK)
        result = gc_number(database, "SELECT count(*) " GC_MODELS, "models", report);
    if (result == SQLITE_OK && !dry_run)
        result =
            sqlite3_exec(database,
                         GC_BASES "DELETE " GC_MODELS
                                  "; DELETE FROM run WHERE id IN (SELECT run_id FROM temp.gone)",
                         NULL, NULL, NULL);
    return result;
}

kvt_status exchange_gc(kvt_profile *profile, bool dry_run, double interrupted_seconds,
                       json_t *report)
{
    static const char bytes[] = "SELECT page_count * page_size FROM pragma_page_count, "
                                "pragma_page_size";
    assert(profile != NULL && interrupted_seconds >= 0 && report != NULL);
    sqlite3 *database = profile->database;
    if (!profile->writable && !dry_run) return KVT_E_READ_ONLY;
    /* What would go is listed in temporary tables, which a profile that is read alone refuses. */
    int result = sqlite3_exec(database, "PRAGMA query_only = OFF", NULL, NULL, NULL);
    if (result == SQLITE_OK) result = gc_number(database, bytes, "bytes_before", report);
    if (result == SQLITE_OK)
        result = sqlite3_exec(database, dry_run ? "BEGIN" : "BEGIN IMMEDIATE", NULL, NULL, NULL);
    if (result == SQLITE_OK) {
        result = gc_inside(profile, dry_run, interrupted_seconds, report);
        bool keep = result == SQLITE_OK && !dry_run;
        int ended = sqlite3_exec(database, keep ? "COMMIT" : "ROLLBACK", NULL, NULL, NULL);
        if (result == SQLITE_OK) result = ended;
        /* A commit that failed is still open. */
        if (ended != SQLITE_OK) (void)sqlite3_exec(database, "ROLLBACK", NULL, NULL, NULL);
    }
    (void)sqlite3_exec(database, "DROP TABLE IF EXISTS temp.kept; DROP TABLE IF EXISTS temp.gone",
                       NULL, NULL, NULL);
    if (!profile->writable)
        (void)sqlite3_exec(database, "PRAGMA query_only = ON", NULL, NULL, NULL);
    /* Somebody who reads meanwhile keeps the file as long as it is; the rows are gone anyway. */
    if (result == SQLITE_OK && !dry_run)
        (void)sqlite3_exec(database, "VACUUM; PRAGMA wal_checkpoint(TRUNCATE)", NULL, NULL, NULL);
    if (result == SQLITE_OK) result = gc_number(database, bytes, "bytes_after", report);
    kvt_status status = profile_status(result);
    return status == KVT_OK || status == KVT_E_MEMORY || status == KVT_E_READ_ONLY ? status
                                                                                   : KVT_E_DATABASE;
}
