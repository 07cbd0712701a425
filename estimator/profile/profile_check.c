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
        *fault = "is missing or has other columns or rules than in this build";
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
    profile_say(message, size, "%s: damaged: %s %s; the file is left unchanged", path, where,
                fault);
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
        "kind IN ('device', 'codecs', 'learned', 'slack') ORDER BY id DESC",
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
