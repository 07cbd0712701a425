/* SPDX-License-Identifier: Apache-2.0 */
/*
 * catalog.c - opening, checking and reading the catalog; the writer is catalog_writer.c.
 *
 * Thread rule: see catalog.h. Nothing here runs once the writer has been started.
 */
#include "store/catalog_internal.h"
#include "tiers/kill_point.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

static const char catalog_schema[] =
    "CREATE TABLE meta(name TEXT PRIMARY KEY, value ANY NOT NULL) STRICT, WITHOUT ROWID;"
    "CREATE TABLE device(tier INTEGER NOT NULL, member INTEGER NOT NULL, name TEXT NOT NULL,"
    " capacity_bytes INTEGER NOT NULL, PRIMARY KEY(tier, member)) STRICT, WITHOUT ROWID;"
    "CREATE TABLE entry(key BLOB PRIMARY KEY, generation INTEGER NOT NULL, parent BLOB,"
    " layers INTEGER NOT NULL, kv_heads INTEGER NOT NULL, head_dim INTEGER NOT NULL,"
    " dtype INTEGER NOT NULL, axis_order INTEGER NOT NULL, tokens INTEGER NOT NULL,"
    " tokens_may_drop INTEGER NOT NULL, opaque_bytes INTEGER NOT NULL,"
    " first_position INTEGER NOT NULL, recompute_seconds REAL NOT NULL, codec INTEGER NOT NULL,"
    " mode INTEGER NOT NULL, rate INTEGER NOT NULL, record_bytes INTEGER NOT NULL,"
    " location BLOB NOT NULL, serial INTEGER NOT NULL) STRICT, WITHOUT ROWID;";

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

static kvt_status catalog_exec(store_catalog *catalog, const char *sql)
{
    return catalog_status(sqlite3_exec(catalog->db, sql, NULL, NULL, NULL));
}

/* One integer from a pragma or query; KVT_E_DATABASE when it gives no row. */
static kvt_status catalog_integer(store_catalog *catalog, const char *sql, int64_t *out)
{
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

static kvt_status catalog_quick_check(store_catalog *catalog)
{
    sqlite3_stmt *statement = NULL;
    int code = sqlite3_prepare_v2(catalog->db, "PRAGMA quick_check(1)", -1, &statement, NULL);
    kvt_status status = catalog_status(code);
    if (status == KVT_OK) {
        code = sqlite3_step(statement);
        status = catalog_status(code);
        const char *text =
            code == SQLITE_ROW ? (const char *)sqlite3_column_text(statement, 0) : "";
        if (status == KVT_OK && (text == NULL || strcmp(text, "ok") != 0)) status = KVT_E_CORRUPT;
    }
    sqlite3_finalize(statement);
    return status;
}

static kvt_status catalog_set_meta(store_catalog *catalog, const char *name, const void *blob,
                                   size_t bytes, int64_t number)
{
    sqlite3_stmt *statement = NULL;
    int code = sqlite3_prepare_v2(catalog->db, "INSERT OR REPLACE INTO meta VALUES(?1, ?2)", -1,
                                  &statement, NULL);
    if (code == SQLITE_OK) {
        sqlite3_bind_text(statement, 1, name, -1, SQLITE_STATIC);
        if (blob != NULL) {
            sqlite3_bind_blob(statement, 2, blob, (int)bytes, SQLITE_STATIC);
        } else {
            sqlite3_bind_int64(statement, 2, number);
        }
        code = sqlite3_step(statement);
    }
    sqlite3_finalize(statement);
    return catalog_status(code);
}

static kvt_status catalog_make(store_catalog *catalog)
{
    if (getrandom(catalog->pool, sizeof catalog->pool, 0) != (ssize_t)sizeof catalog->pool) {
        return KVT_E_IO;
    }
    char marks[96];
    snprintf(marks, sizeof marks, "PRAGMA application_id=%d; PRAGMA user_version=%d",
             CATALOG_APPLICATION, CATALOG_VERSION);
    kvt_status status = catalog_exec(catalog, "BEGIN IMMEDIATE");
    if (status == KVT_OK) status = catalog_exec(catalog, catalog_schema);
    if (status == KVT_OK) {
        status = catalog_set_meta(catalog, "pool", catalog->pool, sizeof catalog->pool, 0);
    }
    if (status == KVT_OK) status = catalog_set_meta(catalog, "epoch", NULL, 0, 0);
    if (status == KVT_OK) status = catalog_exec(catalog, marks);
    KILL_POINT("first open: catalog made, not committed");
    if (status == KVT_OK) status = catalog_exec(catalog, "COMMIT");
    KILL_POINT("first open: catalog committed");
    return status;
}

static kvt_status catalog_load_identity(store_catalog *catalog)
{
    sqlite3_stmt *statement = NULL;
    int code = sqlite3_prepare_v2(catalog->db, "SELECT value FROM meta WHERE name='pool'", -1,
                                  &statement, NULL);
    if (code == SQLITE_OK) code = sqlite3_step(statement);
    kvt_status status = catalog_status(code);
    if (status == KVT_OK) {
        if (code != SQLITE_ROW || sqlite3_column_bytes(statement, 0) != 16) {
            status = KVT_E_CORRUPT;
        } else {
            memcpy(catalog->pool, sqlite3_column_blob(statement, 0), 16);
        }
    }
    sqlite3_finalize(statement);
    int64_t epoch = 0;
    if (status == KVT_OK) {
        status = catalog_integer(catalog, "SELECT value FROM meta WHERE name='epoch'", &epoch);
        if (status == KVT_E_DATABASE || epoch < 0) status = KVT_E_CORRUPT;
    }
    catalog->epoch = (uint64_t)epoch;
    return status;
}

/* Decides what the file is before anything in it is changed. A database with no page is new. */
static kvt_status catalog_examine(store_catalog *catalog, bool read_only, bool *fresh_out)
{
    int64_t pages = 0, application = 0, version = 0;
    *fresh_out = false;
    kvt_status status = catalog_integer(catalog, "PRAGMA page_count", &pages);
    if (status == KVT_OK) status = catalog_integer(catalog, "PRAGMA application_id", &application);
    if (status == KVT_OK) status = catalog_integer(catalog, "PRAGMA user_version", &version);
    if (status != KVT_OK) return status;
    /* A first open that was cut short leaves a database without a table: as good as none. */
    int64_t tables = 0;
    if (pages != 0) {
        status = catalog_integer(catalog, "SELECT count(*) FROM sqlite_schema", &tables);
        if (status != KVT_OK) return status;
    }
    if (tables == 0 && application == 0 && version == 0) {
        if (catalog->log_bytes > 0) return KVT_E_CORRUPT; /* its content was in the log alone */
        *fresh_out = true;
        return read_only ? KVT_E_MISMATCH : KVT_OK;
    }
    if (application != CATALOG_APPLICATION) status = KVT_E_MISMATCH;
    if (status == KVT_OK && version != CATALOG_VERSION) status = KVT_E_VERSION;
    if (status == KVT_OK) status = catalog_quick_check(catalog);
    return status;
}

static const char *catalog_reason(const store_catalog *catalog, kvt_status status)
{
    if (catalog->reason != NULL) return catalog->reason;
    switch (status) {
    case KVT_E_MISMATCH: return "it is a database of another application; it was left as it is";
    case KVT_E_VERSION: return "it was written by another version; it was left as it is";
    case KVT_E_CORRUPT:
        return "it is damaged; it was left as it is; kvterrace recover makes a new one from the "
               "devices";
    case KVT_E_LOCKED: return "another store has it open";
    default: return kvt_status_text(status);
    }
}

/* Everything between the connection and being ready. A new catalog is made in rollback mode: its
 * identity is in the file itself, and not in a log, before a device can carry it. */
static kvt_status catalog_prepare(store_catalog *catalog, bool read_only)
{
    bool fresh = false;
    sqlite3_busy_timeout(catalog->db, 2000);
    kvt_status status = catalog_examine(catalog, read_only, &fresh);
    KILL_POINT("open: catalog examined");
    if (status == KVT_OK && fresh) {
        status = catalog_exec(catalog, "PRAGMA journal_mode=DELETE; PRAGMA synchronous=EXTRA");
        if (status == KVT_OK) status = catalog_make(catalog);
        if (status == KVT_OK && tiers_sync_folder(catalog->path) != 0) status = KVT_E_IO;
    }
    if (status == KVT_OK && !read_only) {
        status = catalog_exec(catalog, "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL");
    }
    KILL_POINT("open: catalog in WAL mode");
    if (status == KVT_OK && !fresh) status = catalog_load_identity(catalog);
    return status;
}

kvt_status catalog_open(const char *path, uint32_t flags, store_catalog **catalog_out,
                        char *message, size_t message_size)
{
    bool read_only = (flags & CATALOG_READ) != 0;
    *catalog_out = NULL;
    if (read_only && access(path, F_OK) != 0) {
        snprintf(message, message_size, "catalog %s: no such file", path);
        return KVT_MISS;
    }
    store_catalog *catalog = calloc(1, sizeof *catalog);
    if (catalog == NULL) {
        snprintf(message, message_size, "catalog %s: out of memory", path);
        return KVT_E_MEMORY;
    }
    catalog->tail = &catalog->head;
    catalog->lock_file = -1;
    pthread_mutex_init(&catalog->lock, NULL);
    store_cond_init(&catalog->wake);
    store_cond_init(&catalog->done);
    kvt_status status = catalog_reach(catalog, path, flags);
    if (status == KVT_OK) status = catalog_prepare(catalog, read_only);
    if (status != KVT_OK) {
        snprintf(message, message_size, "catalog %s: %s", path, catalog_reason(catalog, status));
        catalog_discard_new(catalog);
        catalog_close(catalog);
        return status;
    }
    *catalog_out = catalog;
    return KVT_OK;
}

void catalog_identity(const store_catalog *catalog, uint8_t pool_out[16], uint64_t *epoch_out)
{
    memcpy(pool_out, catalog->pool, 16);
    *epoch_out = catalog->epoch;
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

kvt_status catalog_read_wear(store_catalog *catalog, const char *device, tiers_wear *out)
{
    char name[48];
    sqlite3_stmt *statement = NULL;
    memset(out, 0, sizeof *out);
    snprintf(name, sizeof name, "wear:%s", device);
    int code = sqlite3_prepare_v2(catalog->db, "SELECT value FROM meta WHERE name=?1", -1,
                                  &statement, NULL);
    if (code == SQLITE_OK) {
        sqlite3_bind_text(statement, 1, name, -1, SQLITE_STATIC);
        code = sqlite3_step(statement);
    }
    const char *text = NULL;
    if (code == SQLITE_ROW) text = (const char *)sqlite3_column_text(statement, 0);
    unsigned long long written, at;
    double left;
    /* What cannot be read counts from now. */
    if (text != NULL && sscanf(text, "%llu %lf %llu", &written, &left, &at) == 3 && left > -1e18 &&
        left < 1e18)
        *out = (tiers_wear){.written_bytes = written, .left_bytes = left, .at_ns = at};
    sqlite3_finalize(statement);
    return catalog_status(code);
}

void catalog_bind_device(sqlite3_stmt *statement, const catalog_device *device)
{
    sqlite3_bind_int(statement, 1, (int)device->tier);
    sqlite3_bind_int64(statement, 2, device->member);
    sqlite3_bind_text(statement, 3, device->name, -1, SQLITE_STATIC);
    sqlite3_bind_int64(statement, 4, (int64_t)device->capacity_bytes);
}

kvt_status catalog_set_epoch(store_catalog *catalog, uint64_t epoch, const catalog_device *devices,
                             size_t count)
{
    sqlite3_stmt *statement = NULL;
    kvt_status status = catalog_exec(catalog, "BEGIN IMMEDIATE");
    if (status != KVT_OK) return status;
    status = catalog_set_meta(catalog, "epoch", NULL, 0, (int64_t)epoch);
    if (status == KVT_OK) status = catalog_exec(catalog, "DELETE FROM device");
    /* A row that no key can name would stay for ever. */
    if (status == KVT_OK) {
        status = catalog_exec(catalog, "DELETE FROM entry WHERE length(key) <> 32");
    }
    if (status == KVT_OK) {
        status = catalog_status(sqlite3_prepare_v2(
            catalog->db, "INSERT INTO device VALUES(?1, ?2, ?3, ?4)", -1, &statement, NULL));
    }
    for (size_t i = 0; i < count && status == KVT_OK; i++) {
        catalog_bind_device(statement, &devices[i]);
        status = catalog_status(sqlite3_step(statement));
        sqlite3_reset(statement);
    }
    sqlite3_finalize(statement);
    if (status == KVT_OK) {
        status = catalog_exec(catalog, "COMMIT");
    } else {
        (void)catalog_exec(catalog, "ROLLBACK");
    }
    if (status != KVT_OK) return status;
    catalog->epoch = epoch;
    /* Into the file itself, so that a log that is lost does not take the epoch along. */
    (void)sqlite3_wal_checkpoint_v2(catalog->db, NULL, SQLITE_CHECKPOINT_PASSIVE, NULL, NULL);
    return KVT_OK;
}

kvt_status catalog_drop_rows(store_catalog *catalog, const catalog_name *names, size_t count)
{
    if (count == 0) return KVT_OK;
    sqlite3_stmt *statement = NULL;
    kvt_status status = catalog_exec(catalog, "BEGIN IMMEDIATE");
    if (status != KVT_OK) return status;
    status = catalog_status(sqlite3_prepare_v2(
        catalog->db, "DELETE FROM entry WHERE key=?1 AND ?2 IN (serial, 0)", -1, &statement, NULL));
    for (size_t i = 0; i < count && status == KVT_OK; i++) {
        sqlite3_bind_blob(statement, 1, &names[i].key, sizeof names[i].key, SQLITE_STATIC);
        sqlite3_bind_int64(statement, 2, (int64_t)names[i].serial);
        status = catalog_status(sqlite3_step(statement));
        sqlite3_reset(statement);
    }
    sqlite3_finalize(statement);
    if (status == KVT_OK) {
        status = catalog_exec(catalog, "COMMIT");
    } else {
        (void)!catalog_exec(catalog, "ROLLBACK");
    }
    return status;
}

kvt_status catalog_each_device(store_catalog *catalog,
                               bool (*visit)(void *, const catalog_device *), void *context)
{
    sqlite3_stmt *statement = NULL;
    int code = sqlite3_prepare_v2(
        catalog->db, "SELECT tier, member, name, capacity_bytes FROM device ORDER BY tier, member",
        -1, &statement, NULL);
    while (code == SQLITE_OK || code == SQLITE_ROW) {
        code = sqlite3_step(statement);
        if (code != SQLITE_ROW) break;
        catalog_device device = {.tier = (kvt_tier)sqlite3_column_int(statement, 0),
                                 .member = (uint32_t)sqlite3_column_int64(statement, 1),
                                 .capacity_bytes = (uint64_t)sqlite3_column_int64(statement, 3)};
        snprintf(device.name, sizeof device.name, "%s",
                 (const char *)sqlite3_column_text(statement, 2));
        if (!visit(context, &device)) break;
    }
    sqlite3_finalize(statement);
    return catalog_status(code);
}

/* An integer column that must lie in 0..limit; clears *sound otherwise. */
static uint64_t catalog_column(sqlite3_stmt *statement, int column, uint64_t limit, bool *sound)
{
    int64_t value = sqlite3_column_int64(statement, column);
    if (value < 0 || (uint64_t)value > limit) {
        *sound = false;
        return 0;
    }
    return (uint64_t)value;
}

/* Fills a row from the statement; an unsound one gets location NULL but keeps its key. */
static void catalog_read_row(sqlite3_stmt *statement, catalog_row *row)
{
    bool sound = true;
    memset(row, 0, sizeof *row);
    if (sqlite3_column_bytes(statement, 0) == (int)sizeof row->key) {
        memcpy(&row->key, sqlite3_column_blob(statement, 0), sizeof row->key);
    } else {
        sound = false;
    }
    row->generation = catalog_column(statement, 1, INT64_MAX, &sound);
    if (sqlite3_column_type(statement, 2) != SQLITE_NULL) {
        row->has_parent = sqlite3_column_bytes(statement, 2) == (int)sizeof row->parent;
        if (row->has_parent) {
            memcpy(&row->parent, sqlite3_column_blob(statement, 2), sizeof row->parent);
        } else {
            sound = false;
        }
    }
    row->layout.layers = (uint16_t)catalog_column(statement, 3, UINT16_MAX, &sound);
    row->layout.kv_heads = (uint16_t)catalog_column(statement, 4, UINT16_MAX, &sound);
    row->layout.head_dim = (uint16_t)catalog_column(statement, 5, UINT16_MAX, &sound);
    row->layout.dtype = (uint8_t)catalog_column(statement, 6, UINT8_MAX, &sound);
    row->layout.order = (uint8_t)catalog_column(statement, 7, UINT8_MAX, &sound);
    row->layout.tokens = (uint32_t)catalog_column(statement, 8, UINT32_MAX, &sound);
    row->layout.tokens_may_drop = (uint8_t)catalog_column(statement, 9, 1, &sound);
    row->layout.opaque_bytes = catalog_column(statement, 10, INT64_MAX, &sound);
    row->first_position = (uint32_t)catalog_column(statement, 11, UINT32_MAX, &sound);
    row->recompute_seconds = sqlite3_column_double(statement, 12);
    row->variant.codec = (uint16_t)catalog_column(statement, 13, UINT16_MAX, &sound);
    row->variant.mode = (uint16_t)catalog_column(statement, 14, UINT16_MAX, &sound);
    row->variant.rate = (uint32_t)catalog_column(statement, 15, UINT32_MAX, &sound);
    row->record_bytes = catalog_column(statement, 16, UINT64_C(1) << 47, &sound);
    row->serial = catalog_column(statement, 18, INT64_MAX, &sound);
    uint64_t source_bytes;
    if (row->generation == 0 || row->serial == 0 || !(row->recompute_seconds >= 0) ||
        kvt_layout_bytes(&row->layout, &source_bytes) != KVT_OK ||
        row->record_bytes % KVT_RECORD_ALIGN != 0 || row->record_bytes == 0) {
        sound = false;
    }
    if (sound) {
        /* SQLite keeps the blob until the next step; visitors copy what they keep. */
        union {
            const void *constant;
            void *plain;
        } blob = {.constant = sqlite3_column_blob(statement, 17)};
        row->location = blob.plain;
        row->location_bytes = (size_t)sqlite3_column_bytes(statement, 17);
    }
}

kvt_status catalog_each_entry(store_catalog *catalog, bool (*visit)(void *, const catalog_row *),
                              void *context)
{
    sqlite3_stmt *statement = NULL;
    int code = sqlite3_prepare_v2(
        catalog->db,
        "SELECT key, generation, parent, layers, kv_heads, head_dim, dtype, axis_order, tokens,"
        " tokens_may_drop, opaque_bytes, first_position, recompute_seconds, codec, mode, rate,"
        " record_bytes, location, serial FROM entry ORDER BY first_position, generation, key",
        -1, &statement, NULL);
    while (code == SQLITE_OK || code == SQLITE_ROW) {
        code = sqlite3_step(statement);
        if (code != SQLITE_ROW) break;
        catalog_row row;
        catalog_read_row(statement, &row);
        if (!visit(context, &row)) break;
    }
    sqlite3_finalize(statement);
    return catalog_status(code);
}
