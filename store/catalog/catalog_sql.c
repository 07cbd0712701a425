/* SPDX-License-Identifier: Apache-2.0 */
/*
 * catalog_sql.c - one statement at a time, for the files of the catalog: SQLite's codes as
 * statuses, statements without results, single integers, and the columns of the tables `device` and
 * `meta`.
 *
 * The file knows no transaction and no thread; the rows of `entry` are catalog_rows.c's.
 */
#include "codecs/transform_basis.h"
#include "store/catalog/catalog_internal.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

/* SQLite's result as a status: what the outside did, not what we asked for. */
kvt_status catalog_status(int code)
{
    switch (code & 0xff) {
    case SQLITE_OK:
    case SQLITE_ROW:
    case SQLITE_DONE: return KVT_OK;
    case SQLITE_NOMEM: return KVT_E_MEMORY;
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB: return KVT_E_CORRUPT;
    case SQLITE_READONLY:
    case SQLITE_PERM: return KVT_E_READ_ONLY;
    case SQLITE_BUSY:
    case SQLITE_LOCKED: return KVT_E_LOCKED;
    case SQLITE_FULL: return KVT_E_SPACE;
    case SQLITE_IOERR: return KVT_E_IO;
    default: return KVT_E_DATABASE;
    }
}

kvt_status catalog_exec(store_catalog *catalog, const char *sql)
{
    assert(catalog->db != NULL && sql != NULL);
    return catalog_status(sqlite3_exec(catalog->db, sql, NULL, NULL, NULL));
}

kvt_status catalog_integer(store_catalog *catalog, const char *sql, int64_t *out)
{
    assert(catalog->db != NULL && out != NULL);
    sqlite3_stmt *statement = NULL;
    int code = sqlite3_prepare_v2(catalog->db, sql, -1, &statement, NULL);
    if (code == SQLITE_OK) {
        code = sqlite3_step(statement);
        if (code == SQLITE_ROW) {
            *out = sqlite3_column_int64(statement, 0);
        } else if (code == SQLITE_DONE) {
            code = SQLITE_ERROR;
        }
    }
    sqlite3_finalize(statement);
    return catalog_status(code);
}

/* name = "wear:DEVICE"; value = "written left at", decimal: bytes ever, bytes of the day's budget
 * that are left (negative: overdrawn), nanoseconds since 1970. */
void catalog_bind_wear(sqlite3_stmt *statement, const char *device, const tiers_wear *wear)
{
    char name[48], value[96];
    snprintf(name, sizeof name, "wear:%s", device);
    snprintf(value, sizeof value, "%llu %.0f %llu", (unsigned long long)wear->written_bytes,
             wear->left_bytes, (unsigned long long)wear->at_ns);
    sqlite3_bind_text(statement, 1, name, -1, SQLITE_TRANSIENT);
    sqlite3_bind_text(statement, 2, value, -1, SQLITE_TRANSIENT);
}

/* name = "basis:" and the first five hexadecimal digits of the hash; value = the hash. */
void catalog_bind_basis(sqlite3_stmt *statement, const catalog_basis *basis)
{
    char name[16];
    snprintf(name, sizeof name, "basis:%05X", (unsigned)transform_hash_start(basis->hash));
    sqlite3_bind_text(statement, 1, name, -1, SQLITE_TRANSIENT);
    sqlite3_bind_blob(statement, 2, basis->hash, sizeof basis->hash, SQLITE_STATIC);
}

void catalog_bind_device(sqlite3_stmt *statement, const catalog_device *device)
{
    sqlite3_bind_int(statement, 1, (int)device->tier);
    sqlite3_bind_int64(statement, 2, device->member);
    sqlite3_bind_text(statement, 3, device->name, -1, SQLITE_STATIC);
    sqlite3_bind_int64(statement, 4, (int64_t)device->capacity_bytes);
}
