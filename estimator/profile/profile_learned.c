/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile_learned.c - what a running store has learned, read and written. Thread rule: as profile.h
 * says.
 */
#include "estimator/profile/profile.h"

#include "estimator/profile/profile_internal.h"

#include <math.h>
#include <stdio.h>

static int learned_execute(kvt_profile *profile, const char *sql, int64_t run)
{
    profile_row row = profile_row_begin(profile, sql);
    profile_row_integer(&row, (uint64_t)run);
    return profile_row_end(&row);
}

static int learned_insert(kvt_profile *profile, int64_t run, const profile_learned *learned)
{
    profile_row row = profile_row_begin(
        profile, "INSERT OR REPLACE INTO learned (run_id, kind, name, part, value, weight, "
                 "observations, error_p50, error_p90, log_likelihood) "
                 "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)");
    profile_row_integer(&row, (uint64_t)run);
    profile_row_text(&row, learned->kind);
    profile_row_text(&row, learned->name);
    profile_row_text(&row, learned->part);
    profile_row_real(&row, learned->value);
    profile_row_real(&row, learned->weight);
    profile_row_integer(&row, learned->observations);
    profile_row_measure(&row, learned->error_p50);
    profile_row_measure(&row, learned->error_p90);
    profile_row_measure(&row, learned->log_likelihood);
    return profile_row_end(&row);
}

/* Whoever writes waits in a store's background round or close; the next round tries again. */
#define LEARNED_BUSY_TIMEOUT_MS 250

/* A run that somebody deleted meanwhile, or whose number is another's now, is none to go on with.
 */
static int learned_find_run(kvt_profile *profile, int64_t *run)
{
    profile_row row =
        profile_row_begin(profile, "SELECT 1 FROM run WHERE id = ? AND kind = 'learned' AND "
                                   "host_identity = ? AND library_version = ?");
    profile_row_integer(&row, (uint64_t)*run);
    profile_row_text(&row, profile->host.identity);
    profile_row_text(&row, profile_library_version);
    int result = row.result == SQLITE_OK ? sqlite3_step(row.statement) : row.result;
    sqlite3_finalize(row.statement);
    if (result == SQLITE_DONE) *run = 0;
    return result == SQLITE_ROW || result == SQLITE_DONE ? SQLITE_OK : result;
}

static kvt_status learned_write(kvt_profile *profile, const char *command_line,
                                const profile_learned *rows, size_t count, int64_t *run)
{
    kvt_status status = profile_status(learned_find_run(profile, run));
    if (status == KVT_OK && *run == 0)
        status = profile_run_begin(profile, "learned", command_line, 0, run);
    if (status != KVT_OK) return status;
    int result = learned_execute(profile, "DELETE FROM learned WHERE run_id = ?", *run);
    for (size_t i = 0; i < count && result == SQLITE_OK; i++)
        result = learned_insert(profile, *run, &rows[i]);
    if (result != SQLITE_OK) return profile_status(result);
    return profile_run_complete(profile, *run);
}

kvt_status profile_learned_write(kvt_profile *profile, const char *command_line,
                                 const profile_learned *rows, size_t count, int64_t *run)
{
    int64_t before = *run;
    if (!profile->writable) return KVT_E_READ_ONLY;
    int result = sqlite3_busy_timeout(profile->database, LEARNED_BUSY_TIMEOUT_MS);
    if (result == SQLITE_OK)
        result = sqlite3_exec(profile->database, "BEGIN IMMEDIATE", NULL, NULL, NULL);
    if (result != SQLITE_OK) return profile_status(result);
    kvt_status status = learned_write(profile, command_line, rows, count, run);
    if (status == KVT_OK)
        status = profile_status(sqlite3_exec(profile->database, "COMMIT", NULL, NULL, NULL));
    if (status == KVT_OK) return KVT_OK;
    (void)sqlite3_exec(profile->database, "ROLLBACK", NULL, NULL, NULL);
    *run = before;
    return status;
}

/* ---- reading ---- */

static void learned_text(sqlite3_stmt *row, int column, char *target, size_t size)
{
    const char *text = (const char *)sqlite3_column_text(row, column);
    (void)snprintf(target, size, "%s", text != NULL ? text : "");
}

static double learned_real(sqlite3_stmt *row, int column)
{
    bool there = sqlite3_column_type(row, column) != SQLITE_NULL;
    return there ? sqlite3_column_double(row, column) : (double)NAN;
}

static profile_learned learned_take(sqlite3_stmt *row)
{
    profile_learned learned;
    learned_text(row, 0, learned.kind, sizeof learned.kind);
    learned_text(row, 1, learned.name, sizeof learned.name);
    learned_text(row, 2, learned.part, sizeof learned.part);
    learned.value = sqlite3_column_double(row, 3);
    learned.weight = sqlite3_column_double(row, 4);
    learned.observations = (uint64_t)sqlite3_column_int64(row, 5);
    learned.error_p50 = learned_real(row, 6);
    learned.error_p90 = learned_real(row, 7);
    learned.log_likelihood = learned_real(row, 8);
    learned.age_seconds = fmax(sqlite3_column_double(row, 9), 0.0);
    return learned;
}

/* A figure that was measured after a learned one replaces it. */
#define LEARNED_SQL                                                                                \
    "SELECT kind, name, part, value, weight, observations, error_p50, error_p90, log_likelihood, " \
    "86400 * (julianday('now') - julianday(written_utc)) FROM (SELECT l.*, coalesce("              \
    "r.finished_utc, r.started_utc) AS written_utc, row_number() OVER (PARTITION BY l.kind, "      \
    "l.name, l.part ORDER BY r.id "                                                                \
    "DESC) AS place FROM learned l JOIN run r ON r.id = l.run_id WHERE r.complete = 1 AND "        \
    "r.host_identity = ?1 AND r.library_version = ?2) AS l WHERE place = 1 AND NOT (kind = "       \
    "'device' AND EXISTS (SELECT 1 FROM device d JOIN run m ON m.id = d.run_id WHERE m.complete "  \
    "= 1 AND d.identity = l.name AND m.id > l.run_id)) AND NOT (kind = 'codec' AND EXISTS "        \
    "(SELECT 1 FROM run m WHERE m.kind = 'codecs' AND m.complete = 1 AND m.id > l.run_id)) "       \
    "ORDER BY kind, name, part"

kvt_status profile_learned_read(kvt_profile *profile, profile_learned_visit *visit, void *context)
{
    sqlite3_stmt *row = NULL;
    int result = sqlite3_prepare_v2(profile->database, LEARNED_SQL, -1, &row, NULL);
    if (result == SQLITE_OK)
        result = sqlite3_bind_text(row, 1, profile->host.identity, -1, SQLITE_STATIC);
    if (result == SQLITE_OK)
        result = sqlite3_bind_text(row, 2, profile_library_version, -1, SQLITE_STATIC);
    while (result == SQLITE_OK && (result = sqlite3_step(row)) == SQLITE_ROW) {
        profile_learned learned = learned_take(row);
        visit(context, &learned);
        result = SQLITE_OK;
    }
    sqlite3_finalize(row);
    return result == SQLITE_DONE ? KVT_OK : profile_status(result);
}

#define SENSITIVITY_SQL                                                                            \
    "SELECT s.sensitivity_sd, s.repeatability FROM quality_set s JOIN run r ON r.id = s.run_id "   \
    "JOIN model m ON m.id = s.model_id WHERE r.complete = 1 AND s.sensitivity_sd IS NOT NULL AND " \
    "s.repeatability IS NOT NULL AND (?1 = 0 OR (m.layers = ?1 AND m.kv_heads = ?2 AND "           \
    "m.head_dim = ?3)) AND "                                                                       \
    "(?4 IS NULL OR m.name = ?4) AND (?5 IS NULL OR s.class = ?5) ORDER BY r.id DESC, s.id DESC "  \
    "LIMIT 1"

kvt_status profile_sensitivity_read(kvt_profile *profile, const kvt_layout *layout,
                                    const char *model, const char *class_name, double *sd_out,
                                    double *repeatability_out)
{
    profile_row row = profile_row_begin(profile, SENSITIVITY_SQL);
    profile_row_integer(&row, layout != NULL ? layout->layers : 0);
    profile_row_integer(&row, layout != NULL ? layout->kv_heads : 0);
    profile_row_integer(&row, layout != NULL ? layout->head_dim : 0);
    profile_row_text(&row, model);
    profile_row_text(&row, class_name);
    int result = row.result == SQLITE_OK ? sqlite3_step(row.statement) : row.result;
    if (result == SQLITE_ROW) {
        *sd_out = sqlite3_column_double(row.statement, 0);
        *repeatability_out = sqlite3_column_double(row.statement, 1);
    }
    sqlite3_finalize(row.statement);
    if (result == SQLITE_ROW) return KVT_OK;
    return result == SQLITE_DONE ? KVT_MISS : profile_status(result);
}
