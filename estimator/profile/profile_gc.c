/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile_gc.c - runs that answer for nothing any more leave the database, with models that nothing
 * refers to, and the file shrinks. Thread rule: as profile.h says.
 *
 * Imports and measurements are looked at apart from each other: a published curve stays beside a
 * measured one. A quality set stays as long as a newer one does not cover each of its variants with
 * at least as many entries.
 */
#include "estimator/profile/profile_internal.h"
#include "estimator/profile/profile_newest.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

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
    "u.name = t.name)";

/* What goes, and why. A store's run may stay open as long as the store: age says nothing of it. The
 * newest run stays, so that no later one gets a number that somebody still holds. */
static const char gc_candidates[] =
    "SELECT id, kind, started_utc, source, CASE complete WHEN 1 THEN 'superseded' ELSE "
    "'interrupted' END FROM run WHERE id NOT IN (SELECT run_id FROM temp.kept) AND (complete = 1 "
    "OR kind <> 'learned' AND 86400 * (julianday('now') - julianday(started_utc)) > ?1) "
    "AND id < (SELECT max(id) FROM run) ORDER BY id";

static int gc_find_kept(sqlite3 *database)
{
    int result =
        sqlite3_exec(database, "CREATE TEMP TABLE kept (run_id INTEGER)", NULL, NULL, NULL);
    for (int imports = 0; result == SQLITE_OK && imports < 2; imports++) {
        sqlite3_stmt *fill = NULL;
        result = sqlite3_prepare_v2(database, gc_kept, -1, &fill, NULL);
        if (result == SQLITE_OK) result = sqlite3_bind_int(fill, 1, imports);
        if (result == SQLITE_OK) result = sqlite3_step(fill);
        sqlite3_finalize(fill);
        if (result == SQLITE_DONE) result = SQLITE_OK;
    }
    return result;
}

static const char *gc_text(sqlite3_stmt *row, int column)
{
    const char *text = (const char *)sqlite3_column_text(row, column);
    return text != NULL ? text : "";
}

/* Reports what goes and notes it, before anything is deleted: temp.gone. */
static int gc_find_gone(sqlite3 *database, const kvt_profile_gc_request *request,
                        kvt_profile_gc_result *out, bool *proceed)
{
    sqlite3_stmt *row = NULL, *note = NULL;
    int result = sqlite3_exec(database, "CREATE TEMP TABLE gone (run_id INTEGER PRIMARY KEY)", NULL,
                              NULL, NULL);
    if (result == SQLITE_OK) {
        result = sqlite3_prepare_v2(database, "INSERT INTO temp.gone VALUES (?1)", -1, &note, NULL);
    }
    if (result == SQLITE_OK) result = sqlite3_prepare_v2(database, gc_candidates, -1, &row, NULL);
    if (result == SQLITE_OK) {
        result = sqlite3_bind_double(row, 1, request->interrupted_seconds);
    }
    while (result == SQLITE_OK && *proceed) {
        result = sqlite3_step(row);
        if (result != SQLITE_ROW) break;
        kvt_profile_gc_run run = {.id = sqlite3_column_int64(row, 0),
                                  .kind = gc_text(row, 1),
                                  .started_utc = gc_text(row, 2),
                                  .source = gc_text(row, 3),
                                  .reason = gc_text(row, 4)};
        out->runs++;
        *proceed = request->visit == NULL || request->visit(request->context, &run);
        result = sqlite3_bind_int64(note, 1, run.id);
        if (result == SQLITE_OK) result = sqlite3_step(note);
        if (result == SQLITE_DONE) result = sqlite3_reset(note);
    }
    sqlite3_finalize(row);
    sqlite3_finalize(note);
    return result == SQLITE_DONE ? SQLITE_OK : result;
}

/* Models that neither a run that stays nor anything else refers to. */
#define GC_MODELS                                                                                  \
    "FROM model WHERE id NOT IN (SELECT model_id FROM quality_set WHERE run_id NOT IN (SELECT "    \
    "run_id FROM temp.gone) UNION SELECT model_id FROM quality_map WHERE run_id NOT IN (SELECT "   \
    "run_id FROM temp.gone) UNION SELECT model_id FROM calibration WHERE run_id NOT IN (SELECT "   \
    "run_id FROM temp.gone))"

static int gc_count(sqlite3 *database, const char *sql, uint64_t *out)
{
    char text[32] = "0";
    bool found;
    int result = profile_text(database, sql, NULL, text, sizeof text, &found);
    *out = strtoull(text, NULL, 10);
    return result;
}

static int gc_bytes(sqlite3 *database, uint64_t *out)
{
    return gc_count(database,
                    "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size", out);
}

static int gc_inside(sqlite3 *database, const kvt_profile_gc_request *request,
                     kvt_profile_gc_result *out, bool *proceed)
{
    int result = gc_find_kept(database);
    if (result == SQLITE_OK) result = gc_find_gone(database, request, out, proceed);
    if (result == SQLITE_OK)
        result = gc_count(database, "SELECT count(*) " GC_MODELS, &out->models);
    if (result == SQLITE_OK && !request->dry_run) {
        result = sqlite3_exec(database,
                              "DELETE " GC_MODELS "; DELETE FROM run WHERE id IN (SELECT run_id "
                              "FROM temp.gone)",
                              NULL, NULL, NULL);
    }
    return result;
}

kvt_status kvt_profile_gc(kvt_profile *profile, const kvt_profile_gc_request *request,
                          kvt_profile_gc_result *out)
{
    assert(profile != NULL && request != NULL && out != NULL);
    memset(out, 0, sizeof *out);
    if (request->struct_size != sizeof *request || !(request->interrupted_seconds >= 0))
        return KVT_E_ARGUMENT;
    if (!profile->writable && !request->dry_run) return KVT_E_READ_ONLY;
    sqlite3 *database = profile->database;
    bool proceed = true;
    /* What would go is listed in temporary tables, which a profile that is read alone refuses. */
    int result = sqlite3_exec(database, "PRAGMA query_only = OFF", NULL, NULL, NULL);
    if (result == SQLITE_OK) result = gc_bytes(database, &out->bytes_before);
    if (result == SQLITE_OK) {
        result = sqlite3_exec(database, request->dry_run ? "BEGIN" : "BEGIN IMMEDIATE", NULL, NULL,
                              NULL);
    }
    if (result == SQLITE_OK) {
        result = gc_inside(database, request, out, &proceed);
        bool keep = result == SQLITE_OK && proceed && !request->dry_run;
        int ended = sqlite3_exec(database, keep ? "COMMIT" : "ROLLBACK", NULL, NULL, NULL);
        if (result == SQLITE_OK) result = ended;
        /* A commit that failed is still open. */
        if (ended != SQLITE_OK) (void)sqlite3_exec(database, "ROLLBACK", NULL, NULL, NULL);
    }
    (void)sqlite3_exec(database, "DROP TABLE IF EXISTS temp.kept; DROP TABLE IF EXISTS temp.gone",
                       NULL, NULL, NULL);
    if (!profile->writable)
        (void)sqlite3_exec(database, "PRAGMA query_only = ON", NULL, NULL, NULL);
    if (result == SQLITE_OK && proceed && !request->dry_run) {
        /* Somebody who reads meanwhile keeps the file as long as it is; the rows are gone anyway.
         */
        (void)sqlite3_exec(database, "VACUUM; PRAGMA wal_checkpoint(TRUNCATE)", NULL, NULL, NULL);
    }
    if (result == SQLITE_OK) result = gc_bytes(database, &out->bytes_after);
    if (result == SQLITE_OK && !proceed) return KVT_E_CANCELLED;
    kvt_status status = profile_status(result);
    return status == KVT_OK || status == KVT_E_MEMORY || status == KVT_E_READ_ONLY ? status
                                                                                   : KVT_E_DATABASE;
}
