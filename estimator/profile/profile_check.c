/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile_check.c - whether an open database is a sound profile, of this build's schema and of this
 * host. Nothing here writes. Thread rule: as profile.h says.
 */
#include "estimator/profile/profile_internal.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void profile_say(char *message, size_t size, const char *format, ...)
{
    if (message == NULL || size == 0) return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, size, format, arguments);
    va_end(arguments);
}

kvt_status profile_status(int sqlite_result)
{
    switch (sqlite_result & 0xff) {
    case SQLITE_OK:
    case SQLITE_ROW:
    case SQLITE_DONE: return KVT_OK;
    case SQLITE_NOMEM: return KVT_E_MEMORY;
    case SQLITE_READONLY: return KVT_E_READ_ONLY;
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB: return KVT_E_CORRUPT;
    default: return KVT_E_DATABASE;
    }
}

int profile_text(sqlite3 *database, const char *sql, const char *bound, char *text, size_t size,
                 bool *found)
{
    sqlite3_stmt *statement = NULL;
    *found = false;
    int result = sqlite3_prepare_v2(database, sql, -1, &statement, NULL);
    if (result == SQLITE_OK && bound != NULL) {
        result = sqlite3_bind_text(statement, 1, bound, -1, SQLITE_STATIC);
    }
    if (result == SQLITE_OK) result = sqlite3_step(statement);
    if (result == SQLITE_ROW) {
        const unsigned char *value = sqlite3_column_text(statement, 0);
        *found = value != NULL;
        snprintf(text, size, "%s", value != NULL ? (const char *)value : "");
        result = SQLITE_OK;
    }
    sqlite3_finalize(statement);
    return result == SQLITE_DONE ? SQLITE_OK : result;
}

/* One table: its text as ours, its rows within bounds. fault gets a phrase when they are not. */
static int profile_check_table(sqlite3 *database, const profile_table *table, const char **fault)
{
    char text[8192], sql[8192];
    bool found;
    int result =
        profile_text(database, "SELECT sql FROM sqlite_schema WHERE type = 'table' AND name = ?1",
                     table->name, text, sizeof text, &found);
    if (result != SQLITE_OK) return result;
    if (!found || strcmp(text, table->sql) != 0) {
        *fault = "is not as this build makes it";
        return SQLITE_OK;
    }
    int length = snprintf(sql, sizeof sql, "SELECT 1 FROM %s WHERE (%s) IS NOT 1 LIMIT 1",
                          table->name, table->bounds);
    assert(length > 0 && (size_t)length < sizeof sql);
    (void)length;
    result = profile_text(database, sql, NULL, text, sizeof text, &found);
    if (result == SQLITE_OK && found) *fault = "holds an impossible value";
    return result;
}

kvt_status profile_compare_version(const char *path, uint32_t version, char *message, size_t size)
{
    if (version == PROFILE_SCHEMA_VERSION) return KVT_OK;
    profile_say(message, size,
                "%s: schema version %u, this build reads %d; measure into another file", path,
                version, PROFILE_SCHEMA_VERSION);
    return KVT_E_VERSION;
}

/* The version as SQLite sees it: a newer one may still be in the write-ahead log. */
kvt_status profile_check_version(kvt_profile *profile, const char *path, char *message, size_t size)
{
    char text[32];
    bool found;
    int result =
        profile_text(profile->database, "PRAGMA user_version", NULL, text, sizeof text, &found);
    if (result != SQLITE_OK) {
        profile_say(message, size, "%s: %s", path, sqlite3_errmsg(profile->database));
        return profile_status(result);
    }
    return profile_compare_version(path, (uint32_t)strtoul(text, NULL, 10), message, size);
}

/* SQLite's report has lines; the message is one. */
static const char *profile_one_line(char *text)
{
    for (char *at = text; *at != '\0'; at++) {
        if (*at == '\n') *at = ' ';
    }
    return text;
}

kvt_status profile_check_content(const kvt_profile *profile, const char *path, char *message,
                                 size_t size)
{
    char text[256];
    const char *fault = NULL, *where = "";
    bool found;
    sqlite3 *database = profile->database;
    int result = profile_text(database, "PRAGMA quick_check(1)", NULL, text, sizeof text, &found);
    if (result == SQLITE_OK && (!found || strcmp(text, "ok") != 0)) fault = profile_one_line(text);
    size_t tables = 0;
    for (size_t i = 0; result == SQLITE_OK && fault == NULL && profile_table_at(i) != NULL; i++) {
        where = profile_table_at(i)->name;
        result = profile_check_table(database, profile_table_at(i), &fault);
        tables++;
    }
    if (result == SQLITE_OK && fault == NULL) {
        result = profile_text(database, "SELECT count(*) FROM sqlite_schema WHERE sql IS NOT NULL",
                              NULL, text, sizeof text, &found);
        where = "the database";
        if (strtoul(text, NULL, 10) != tables) {
            fault = "holds other tables, views or triggers";
        }
    }
    if (result == SQLITE_OK && fault == NULL) {
        result =
            profile_text(database, "PRAGMA foreign_key_check", NULL, text, sizeof text, &found);
        where = text;
        if (result == SQLITE_OK && found) fault = "has a row whose run or model is not there";
    }
    if (result != SQLITE_OK) {
        profile_say(message, size, "%s: %s", path, sqlite3_errmsg(database));
        return profile_status(result);
    }
    if (fault == NULL) return KVT_OK;
    profile_say(message, size, "%s: damaged: %s %s; left as it is", path, where, fault);
    return KVT_E_CORRUPT;
}

/* Library versions of one major.minor measure alike; a patch changes no variant and no rate. */
static bool profile_same_library(const char *version)
{
    const char *own = profile_library_version;
    const char *dot = strrchr(own, '.');
    size_t length = (size_t)(dot - own);
    return strncmp(version, own, length) == 0 &&
           (version[length] == '.' || version[length] == '\0');
}

/* A run as SELECTed below against this host. True when it is of here; otherwise the message says
 * what differs. */
static bool profile_compare_host(const kvt_profile *profile, sqlite3_stmt *row, const char *path,
                                 char *message, size_t size)
{
    const estimator_host *host = &profile->host;
    const char *texts[4];
    for (int i = 0; i < 4; i++) {
        texts[i] = (const char *)sqlite3_column_text(row, i);
        if (texts[i] == NULL) texts[i] = "?";
    }
    bool machine = strcmp(texts[0], host->identity) == 0;
    bool cpu = strcmp(texts[2], host->cpu_model) == 0;
    bool library = profile_same_library(texts[3]);
    if (machine && cpu && library) return true;
    profile_say(message, size,
                "%s: measured %s (%s%s%s%s%s differs): %s (%s, %s, kvterrace %s), this is %s (%s, "
                "%s, kvterrace %s); store.profile_foreign=yes takes it all the same",
                path, machine && cpu ? "by another version" : "on another host",
                machine ? "" : "identity", machine || cpu ? "" : ", ", cpu ? "" : "cpu model",
                (machine && cpu) || library ? "" : ", ", library ? "" : "library version", texts[1],
                texts[0], texts[2], texts[3], host->name, host->identity, host->cpu_model,
                profile_library_version);
    return false;
}

/* The newest run of another machine decides the message; any such run is a mismatch. A run of
 * another library version is one as long as it answers for something. What variants do to answers,
 * and what was imported, is the same on every machine. */
kvt_status profile_check_host(const kvt_profile *profile, const char *path, char *message,
                              size_t size)
{
    sqlite3_stmt *row = NULL;
    kvt_status status = KVT_OK;
    int result = sqlite3_prepare_v2(
        profile->database,
        PROFILE_ANSWERING
        "SELECT host_identity, host_name, cpu_model, CASE WHEN id IN (SELECT run_id FROM "
        "answering) THEN library_version ELSE ?4 END FROM run WHERE "
        "kind IN ('device', 'codecs', 'learned') ORDER BY id DESC",
        -1, &row, NULL);
    if (result == SQLITE_OK) result = sqlite3_bind_null(row, 1);
    if (result == SQLITE_OK) {
        result = sqlite3_bind_text(row, 4, profile_library_version, -1, SQLITE_STATIC);
    }
    while (result == SQLITE_OK && status == KVT_OK) {
        result = sqlite3_step(row);
        if (result != SQLITE_ROW) break;
        result = SQLITE_OK;
        if (!profile_compare_host(profile, row, path, message, size)) status = KVT_E_MISMATCH;
    }
    if (status == KVT_OK && result != SQLITE_DONE) {
        profile_say(message, size, "%s: %s", path, sqlite3_errmsg(profile->database));
        status = profile_status(result);
    }
    sqlite3_finalize(row);
    return status;
}

/* ---- collecting runs that answer for nothing any more ---- */

/*
 * Such runs leave the database, with models that nothing refers to, and the file shrinks. Imports
 * and measurements are looked at apart from each other: a published curve stays beside a measured
 * one. A quality set stays as long as a newer one does not cover each of its variants with at
 * least as many entries.
 */

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
                              GC_BASES "DELETE " GC_MODELS
                                       "; DELETE FROM run WHERE id IN (SELECT run_id "
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
