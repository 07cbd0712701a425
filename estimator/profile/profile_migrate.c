/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile_migrate.c - a database of schema version 1 becomes one of version 2: one transaction that
 * is committed only when the result passes every check of an open. What fails leaves the file byte
 * for byte as it was. Thread rule: as profile.h says.
 *
 * Version 1 had devices and codecs alone; its tables run and codec_curve were narrower. SQLite can
 * neither widen a table's CHECK nor rename one without touching its text, and the texts are
 * compared at every open: so rows go to a temporary table, the table is dropped and made anew.
 */
#include "estimator/profile/profile_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OLD_RUN_BOUNDS "kind IN ('device', 'codecs') AND complete IN (0, 1)"

#define OLD_CODEC_BOUNDS                                                                           \
    "codec BETWEEN 0 AND 65535 AND mode BETWEEN 0 AND 65535 AND "                                  \
    "rate BETWEEN 0 AND 4294967295 AND stored_share > 0 AND stored_share < 64 AND "                \
    "encode_bytes_per_s > 0 AND encode_bytes_per_s < 1e300 AND decode_bytes_per_s > 0 AND "        \
    "decode_bytes_per_s < 1e300 AND source_bytes > 0 AND repetitions > 0"

static const profile_table migrate_changed[] = {
    {"run",
     "CREATE TABLE run (\n"
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
     "  CHECK (" OLD_RUN_BOUNDS ")\n"
     ") STRICT",
     OLD_RUN_BOUNDS},
    {"codec_curve",
     "CREATE TABLE codec_curve (\n"
     "  run_id INTEGER NOT NULL REFERENCES run (id) ON DELETE CASCADE,\n"
     "  codec INTEGER NOT NULL,\n"
     "  mode INTEGER NOT NULL,\n"
     "  rate INTEGER NOT NULL,\n"
     "  name TEXT NOT NULL,\n"
     "  stored_share REAL NOT NULL,\n"
     "  encode_bytes_per_s REAL NOT NULL,\n"
     "  decode_bytes_per_s REAL NOT NULL,\n"
     "  source_bytes INTEGER NOT NULL,\n"
     "  repetitions INTEGER NOT NULL,\n"
     "  PRIMARY KEY (run_id, codec, mode, rate),\n"
     "  CHECK (" OLD_CODEC_BOUNDS ")\n"
     ") STRICT, WITHOUT ROWID",
     OLD_CODEC_BOUNDS},
};

/* Version 1's tables that version 2 has with the same text. */
static const char *const migrate_kept[] = {"device", "device_point", "device_fit"};

#define CHANGED_COUNT (sizeof migrate_changed / sizeof migrate_changed[0])
#define KEPT_COUNT    (sizeof migrate_kept / sizeof migrate_kept[0])

static const profile_table *migrate_find(const char *name)
{
    const profile_table *table;
    for (size_t i = 0; (table = profile_table_at(i)) != NULL; i++)
        if (strcmp(table->name, name) == 0) return table;
    return NULL;
}

static const profile_table *migrate_old_at(size_t index)
{
    if (index < CHANGED_COUNT) return &migrate_changed[index];
    index -= CHANGED_COUNT;
    return index < KEPT_COUNT ? migrate_find(migrate_kept[index]) : NULL;
}

static int migrate_run(sqlite3 *database, const char *sql)
{
    return sqlite3_exec(database, sql, NULL, NULL, NULL);
}

/* Version 1 measured codecs on one thread, on the sample, and did not say with which instructions.
 */
static int migrate_copy(sqlite3 *database)
{
    int result = migrate_run(database, "CREATE TEMP TABLE old_run AS SELECT * FROM main.run; "
                                       "CREATE TEMP TABLE old_codec_curve AS SELECT * FROM "
                                       "main.codec_curve; "
                                       "DROP TABLE main.codec_curve; DROP TABLE main.run");
    const profile_table *table;
    for (size_t i = 0; result == SQLITE_OK && (table = profile_table_at(i)) != NULL; i++) {
        bool kept = false;
        for (size_t k = 0; k < KEPT_COUNT; k++)
            kept = kept || strcmp(table->name, migrate_kept[k]) == 0;
        if (!kept) result = migrate_run(database, table->sql);
    }
    if (result != SQLITE_OK) return result;
    return migrate_run(
        database,
        "INSERT INTO main.run (id, kind, complete, host_identity, host_name, kernel, cpu_model, "
        "cpu_count, memory_bytes, started_utc, finished_utc, library_version, sqlite_version, "
        "zstd_version, command_line, seed) SELECT id, kind, complete, host_identity, host_name, "
        "kernel, cpu_model, cpu_count, memory_bytes, started_utc, finished_utc, library_version, "
        "sqlite_version, zstd_version, command_line, seed FROM temp.old_run; "
        "INSERT INTO main.codec_curve (run_id, codec, mode, rate, isa, threads, source, name, "
        "stored_share, encode_bytes_per_s, decode_bytes_per_s, source_bytes, repetitions) "
        "SELECT run_id, codec, mode, rate, 'unknown', 1, 'sample', name, stored_share, "
        "encode_bytes_per_s, decode_bytes_per_s, source_bytes, repetitions FROM "
        "temp.old_codec_curve");
}

/* found: a row did not come over. */
static int migrate_compare(sqlite3 *database, bool *found)
{
    char text[32];
    return profile_text(database,
                        "SELECT 1 WHERE (SELECT count(*) FROM main.run) <> (SELECT count(*) "
                        "FROM temp.old_run) OR (SELECT count(*) FROM main.codec_curve) <> "
                        "(SELECT count(*) FROM temp.old_codec_curve)",
                        NULL, text, sizeof text, found);
}

/* Inside the transaction: everything that an open of version 2 would look at. */
static kvt_status migrate_inside(kvt_profile *profile, const char *path, bool foreign,
                                 char *message, size_t size)
{
    sqlite3 *database = profile->database;
    bool lost = false;
    char marks[64];
    int version = 0;
    kvt_status status = profile_check_version(profile, path, &version, message, size);
    if (status != KVT_OK || version == PROFILE_SCHEMA_VERSION) return status;
    status = profile_check_content(profile, path, migrate_old_at, message, size);
    if (status != KVT_OK) return status;
    snprintf(marks, sizeof marks, "PRAGMA user_version = %d", PROFILE_SCHEMA_VERSION);
    int result = migrate_copy(database);
    if (result == SQLITE_OK) result = migrate_run(database, marks);
    if (result == SQLITE_OK) result = migrate_compare(database, &lost);
    if (result != SQLITE_OK) {
        profile_say(message, size, "%s: cannot be migrated: %s; left as it is", path,
                    sqlite3_errmsg(database));
        return profile_status(result);
    }
    if (lost) {
        profile_say(message, size, "%s: damaged: rows would be lost; left as it is", path);
        return KVT_E_CORRUPT;
    }
    status = profile_check_content(profile, path, profile_table_at, message, size);
    if (status == KVT_OK && !foreign) status = profile_check_host(profile, path, message, size);
    return status;
}

kvt_status profile_migrate(kvt_profile *profile, const char *path, bool foreign, char *message,
                           size_t size)
{
    sqlite3 *database = profile->database;
    /* A table that is dropped must not take with it the rows that refer to it. */
    int result = migrate_run(database, "PRAGMA foreign_keys = OFF; BEGIN IMMEDIATE");
    kvt_status status = KVT_OK;
    if (result == SQLITE_OK) {
        status = migrate_inside(profile, path, foreign, message, size);
        if (status == KVT_OK) result = migrate_run(database, "COMMIT");
        if (status != KVT_OK || result != SQLITE_OK) (void)migrate_run(database, "ROLLBACK");
    }
    if (status == KVT_OK && result != SQLITE_OK) {
        profile_say(message, size, "%s: cannot be migrated: %s; left as it is", path,
                    sqlite3_errstr(result));
        status = profile_status(result);
    }
    if (status != KVT_OK) return status;
    result = migrate_run(database, "DROP TABLE IF EXISTS temp.old_run; DROP TABLE IF EXISTS "
                                   "temp.old_codec_curve; PRAGMA foreign_keys = ON");
    return profile_status(result);
}
