/* SPDX-License-Identifier: Apache-2.0 */
/*
 * catalog.c - opening and checking the catalog, its identity and devices; catalog_rows.c has the
 * entries, catalog_writer.c the writer.
 *
 *     reach (files, lock) -> examine -> [new: make] -> WAL mode -> identity -> [old: migrate]
 *
 * A catalog that is damaged, of another application or of another version is refused before a byte
 * of it changes. Two numbers order the lives of a store: `epoch` is the last life whose labels are
 * on all devices, and `opening` is the life that an open announced before it wrote the first label.
 *
 * Thread rule: see catalog.h. Nothing here runs once the writer has been started.
 */
#include "base/clock.h"
#include "base/kill_point.h"
#include "base/wait.h"
#include "store/catalog/catalog_internal.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

static const char catalog_schema[] =
    "CREATE TABLE meta(name TEXT PRIMARY KEY, value ANY NOT NULL) STRICT, WITHOUT ROWID;"
    "CREATE TABLE device(tier INTEGER NOT NULL, member INTEGER NOT NULL, name TEXT NOT NULL,"
    " capacity_bytes INTEGER NOT NULL, PRIMARY KEY(tier, member)) STRICT, WITHOUT ROWID;";

void catalog_bind_device(sqlite3_stmt *statement, const catalog_device *device)
{
    sqlite3_bind_int(statement, 1, (int)device->tier);
    sqlite3_bind_int64(statement, 2, device->member);
    sqlite3_bind_text(statement, 3, device->name, -1, SQLITE_STATIC);
    sqlite3_bind_int64(statement, 4, (int64_t)device->capacity_bytes);
}

/* Writes one row of meta: the blob, or the number when the blob is NULL. */
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

/* The checksum over pool id, secret and epoch. A flipped bit in one of them would make the devices
 * look like another store's, so the identity has a checksum of its own. */
static int64_t catalog_sum_identity(const store_catalog *catalog, uint64_t epoch)
{
    unsigned char words[sizeof catalog->pool + sizeof catalog->secret + sizeof epoch];
    memcpy(words, catalog->pool, sizeof catalog->pool);
    memcpy(words + sizeof catalog->pool, catalog->secret, sizeof catalog->secret);
    memcpy(words + sizeof catalog->pool + sizeof catalog->secret, &epoch, sizeof epoch);
    return (int64_t)XXH3_64bits(words, sizeof words);
}

/* The "opening" row: the epoch that an open has announced, with a checksum of its own over both the
 * pool's id and it. */
typedef struct catalog_announced {
    uint64_t epoch;
    uint64_t checksum;
} catalog_announced;

/* The "opening" row of an epoch, with its checksum. */
static catalog_announced catalog_announcement(const store_catalog *catalog, uint64_t epoch)
{
    unsigned char words[sizeof catalog->pool + sizeof epoch];
    memcpy(words, catalog->pool, sizeof catalog->pool);
    memcpy(words + sizeof catalog->pool, &epoch, sizeof epoch);
    return (catalog_announced){.epoch = epoch, .checksum = XXH3_64bits(words, sizeof words)};
}

/* Writes the "opening" row. Inside a transaction. */
static kvt_status catalog_set_opening(store_catalog *catalog, uint64_t epoch)
{
    const catalog_announced row = catalog_announcement(catalog, epoch);
    return catalog_set_meta(catalog, "opening", &row, sizeof row, 0);
}

/* Writes pool id, secret, epoch, announcement and checksum. Inside a transaction. */
static kvt_status catalog_set_identity(store_catalog *catalog, uint64_t epoch)
{
    kvt_status status = catalog_set_meta(catalog, "pool", catalog->pool, sizeof catalog->pool, 0);
    if (status == KVT_OK) {
        status = catalog_set_meta(catalog, "secret", catalog->secret, sizeof catalog->secret, 0);
    }
    if (status == KVT_OK) status = catalog_set_meta(catalog, "epoch", NULL, 0, (int64_t)epoch);
    if (status == KVT_OK) status = catalog_set_opening(catalog, epoch);
    if (status == KVT_OK) {
        status = catalog_set_meta(catalog, "identity_checksum", NULL, 0,
                                  catalog_sum_identity(catalog, epoch));
    }
    return status;
}

/* Draws random bytes from the kernel. */
static kvt_status catalog_draw(void *out, size_t bytes)
{
    return getrandom(out, bytes, 0) == (ssize_t)bytes ? KVT_OK : KVT_E_IO;
}

/* An epoch that is in the log alone would be lost with the log. */
void catalog_carry_over(store_catalog *catalog)
{
    (void)sqlite3_wal_checkpoint_v2(catalog->db, NULL, SQLITE_CHECKPOINT_PASSIVE, NULL, NULL);
}

/* Makes the tables and the identity of a new catalog, in one transaction. */
static kvt_status catalog_make(store_catalog *catalog)
{
    kvt_status status = catalog_draw(catalog->pool, sizeof catalog->pool);
    if (status == KVT_OK) status = catalog_draw(catalog->secret, sizeof catalog->secret);
    if (status == KVT_OK) status = catalog_exec(catalog, "BEGIN IMMEDIATE");
    if (status != KVT_OK) return status;
    status = catalog_exec(catalog, catalog_schema);
    if (status == KVT_OK) status = catalog_make_entries(catalog, "entry");
    if (status == KVT_OK) status = catalog_set_identity(catalog, 0);
    if (status == KVT_OK) {
        char marks[96];
        snprintf(marks, sizeof marks, "PRAGMA application_id=%d; PRAGMA user_version=%d",
                 CATALOG_APPLICATION, CATALOG_VERSION);
        status = catalog_exec(catalog, marks);
    }
    KILL_POINT("first open: catalog made, not committed");
    status = catalog_end(catalog, status);
    KILL_POINT("first open: catalog committed");
    return status;
}

/* Looks a row of meta up. Returns SQLite's code; *statement_out, which has the value when that is
 * SQLITE_ROW, is to be finalized either way. */
static int catalog_find_meta(store_catalog *catalog, const char *name, sqlite3_stmt **statement_out)
{
    int code = sqlite3_prepare_v2(catalog->db, "SELECT value FROM meta WHERE name=?1", -1,
                                  statement_out, NULL);
    if (code != SQLITE_OK) return code;
    sqlite3_bind_text(*statement_out, 1, name, -1, SQLITE_TRANSIENT);
    return sqlite3_step(*statement_out);
}

/* A blob of meta; KVT_E_CORRUPT when it is missing or of another size. */
static kvt_status catalog_get_blob(store_catalog *catalog, const char *name, void *out, int bytes)
{
    sqlite3_stmt *statement = NULL;
    const int code = catalog_find_meta(catalog, name, &statement);
    kvt_status status = catalog_status(code);
    if (status == KVT_OK && (code != SQLITE_ROW || sqlite3_column_bytes(statement, 0) != bytes))
        status = KVT_E_CORRUPT;
    if (status == KVT_OK) memcpy(out, sqlite3_column_blob(statement, 0), (size_t)bytes);
    sqlite3_finalize(statement);
    return status;
}

/* Loads and checks pool id, epoch, secret and announcement. KVT_E_CORRUPT when one is missing, out
 * of range, or fails the checksum. */
static kvt_status catalog_load_identity(store_catalog *catalog)
{
    int64_t epoch = 0, sum = 0;
    kvt_status status = catalog_get_blob(catalog, "pool", catalog->pool, (int)sizeof catalog->pool);
    if (status == KVT_OK) {
        status = catalog_integer(catalog, "SELECT value FROM meta WHERE name='epoch'", &epoch);
        /* Serials of a life begin with its epoch: one above this has none. */
        if (status == KVT_E_DATABASE || epoch < 0 || epoch > CATALOG_EPOCH_MAX)
            status = KVT_E_CORRUPT;
    }
    catalog->epoch = (uint64_t)epoch;
    if (status != KVT_OK) return status;
    status = catalog_get_blob(catalog, "secret", catalog->secret, (int)sizeof catalog->secret);
    if (status == KVT_OK) {
        status =
            catalog_integer(catalog, "SELECT value FROM meta WHERE name='identity_checksum'", &sum);
        if (status == KVT_E_DATABASE) status = KVT_E_CORRUPT;
    }
    if (status == KVT_OK && sum != catalog_sum_identity(catalog, catalog->epoch))
        status = KVT_E_CORRUPT;
    if (status != KVT_OK) return status;
    /* The epoch that the last open announced: that of the identity, or the next one. */
    catalog_announced row;
    status = catalog_get_blob(catalog, "opening", &row, (int)sizeof row);
    if (status != KVT_OK) return status;
    if (row.checksum != catalog_announcement(catalog, row.epoch).checksum) return KVT_E_CORRUPT;
    if (row.epoch < catalog->epoch || row.epoch > catalog->epoch + 1) return KVT_E_CORRUPT;
    catalog->opening = row.epoch;
    return KVT_OK;
}

kvt_status catalog_check_structure(store_catalog *catalog)
{
    sqlite3_stmt *statement = NULL;
    if (catalog->kept_file >= 0) return KVT_OK;
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

kvt_status catalog_leave_kept(store_catalog *catalog)
{
    if (catalog->kept_file < 0) return KVT_OK;
    close(catalog->kept_file);
    catalog->kept_file = -1;
    return catalog_check_structure(catalog);
}

kvt_status catalog_confirm_kept(store_catalog *catalog)
{
    const catalog_kept_head *head = &catalog->kept;
    if (catalog->kept_file < 0) return KVT_OK;
    const bool same = memcmp(head->pool, catalog->pool, sizeof head->pool) == 0 &&
                      head->epoch == catalog->epoch && head->epoch == catalog->opening;
    return same ? KVT_OK : catalog_leave_kept(catalog);
}

/* Decides what the file is before anything in it is changed. A database with no page is new. */
static kvt_status catalog_examine(store_catalog *catalog, uint32_t flags, bool *fresh_out)
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
        return (flags & CATALOG_READ) != 0 ? KVT_E_MISMATCH : KVT_OK;
    }
    if (application != CATALOG_APPLICATION) status = KVT_E_MISMATCH;
    if (status == KVT_OK && version != CATALOG_VERSION) status = KVT_E_VERSION;
    const uint32_t later = CATALOG_BESIDE | CATALOG_WITHIN | CATALOG_UNCHECKED;
    if (status == KVT_OK && (flags & later) == 0) status = catalog_check_structure(catalog);
    return status;
}

/* The text for the message of a refused open. */
static const char *catalog_reason(const store_catalog *catalog, kvt_status status)
{
    if (catalog->reason != NULL) return catalog->reason;
    switch (status) {
    case KVT_E_MISMATCH: return "it is a database of another application; it was left as it is";
    case KVT_E_VERSION: return "it was written by another version; it was left as it is";
    case KVT_E_CORRUPT:
        return "it is damaged; it was left as it is; kvterrace recover makes a new one from the "
               "devices";
    case KVT_E_LOCKED: /* SQLite reports a file system that cannot lock in the same way */
        return catalog->claim.held
                   ? "another program has it open, or its file system locks no files"
                   : "another store has it open";
    default: return kvt_status_text(status);
    }
}

/* Everything between the connection and being ready. A new catalog is made in rollback mode: its
 * identity is in the file itself, and not in a log, before a device can carry it. */
static kvt_status catalog_prepare(store_catalog *catalog, uint32_t flags)
{
    const bool read_only = (flags & CATALOG_READ) != 0;
    bool fresh = false;
    sqlite3_busy_timeout(catalog->db, CATALOG_BUSY_MS);
    if (!read_only) catalog_find_kept(catalog);
    kvt_status status = catalog_examine(catalog, flags, &fresh);
    KILL_POINT("open: catalog examined");
    if (status == KVT_OK && fresh) {
        status = catalog_exec(catalog, "PRAGMA journal_mode=DELETE; PRAGMA synchronous=EXTRA");
        if (status == KVT_OK) status = catalog_make(catalog);
        if (status == KVT_OK && tiers_sync_folder(catalog->path) != 0) status = KVT_E_IO;
    }
    if (status == KVT_OK && !read_only) {
        status = catalog_exec(catalog, "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; "
                                       "PRAGMA journal_size_limit=" CATALOG_LOG_LIMIT);
    }
    KILL_POINT("open: catalog in WAL mode");
    if (status == KVT_OK && !fresh) status = catalog_load_identity(catalog);
    return status == KVT_OK ? catalog_confirm_kept(catalog) : status;
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
    catalog->kept_file = -1;
    catalog->within = (flags & CATALOG_WITHIN) != 0;
    pthread_mutex_init(&catalog->lock, NULL);
    base_condition_init(&catalog->wake);
    base_condition_init(&catalog->done);
    kvt_status status = catalog_reach(catalog, path, flags);
    if (status == KVT_OK && (flags & CATALOG_LOCK) == 0) status = catalog_prepare(catalog, flags);
    if (status != KVT_OK) {
        snprintf(message, message_size, "catalog %s: %s", path, catalog_reason(catalog, status));
        catalog_discard_new(catalog);
        catalog_close(catalog);
        return status;
    }
    *catalog_out = catalog;
    return KVT_OK;
}

void catalog_check_late(store_catalog *catalog)
{
    char message[256];
    store_catalog *beside;
    if (catalog->check_due_ns == 0 || base_clock_ns() < catalog->check_due_ns) return;
    catalog->check_due_ns = 0;
    kvt_status status = catalog_open(catalog->path, CATALOG_READ | CATALOG_WITHIN, &beside, message,
                                     sizeof message);
    if (status == KVT_OK) {
        status = catalog_check_structure(beside);
        catalog_close(beside);
    }
    if (status != KVT_E_CORRUPT) return;
    pthread_mutex_lock(&catalog->lock);
    catalog->damaged_ns = base_clock_ns();
    pthread_mutex_unlock(&catalog->lock);
}

void catalog_identity(const store_catalog *catalog, uint8_t pool_out[16], uint64_t *epoch_out)
{
    memcpy(pool_out, catalog->pool, 16);
    *epoch_out = catalog->epoch;
}

uint64_t catalog_opening(const store_catalog *catalog)
{
    return catalog->opening;
}

kvt_status catalog_announce(store_catalog *catalog, uint64_t epoch)
{
    assert(!catalog->running);
    kvt_status status = catalog_exec(catalog, "BEGIN IMMEDIATE");
    if (status != KVT_OK) return status;
    status = catalog_end(catalog, catalog_set_opening(catalog, epoch));
    if (status != KVT_OK) return status;
    catalog->opening = epoch;
    catalog_carry_over(catalog);
    return KVT_OK;
}

void catalog_secret(const store_catalog *catalog, uint8_t secret_out[16])
{
    memcpy(secret_out, catalog->secret, sizeof catalog->secret);
}

kvt_status catalog_adopt_pool(store_catalog *catalog, const uint8_t pool[16])
{
    assert(!catalog->running);
    kvt_status status = catalog_exec(catalog, "BEGIN IMMEDIATE");
    if (status != KVT_OK) return status;
    /* The checksum of the identity is over the pool's id, so all of it is written anew. */
    memcpy(catalog->pool, pool, sizeof catalog->pool);
    return catalog_end(catalog, catalog_set_identity(catalog, catalog->epoch));
}

kvt_status catalog_read_wear(store_catalog *catalog, const char *device, tiers_wear *out)
{
    char name[48];
    sqlite3_stmt *statement = NULL;
    memset(out, 0, sizeof *out);
    snprintf(name, sizeof name, "wear:%s", device);
    const int code = catalog_find_meta(catalog, name, &statement);
    const char *text = NULL;
    if (code == SQLITE_ROW) text = (const char *)sqlite3_column_text(statement, 0);
    unsigned long long written, at;
    double left;
    /* A row that cannot be read leaves the wear at 0, so that it is counted from now on. */
    if (text != NULL && sscanf(text, "%llu %lf %llu", &written, &left, &at) == 3 && left > -1e18 &&
        left < 1e18)
        *out = (tiers_wear){.written_bytes = written, .left_bytes = left, .at_ns = at};
    sqlite3_finalize(statement);
    return catalog_status(code);
}

kvt_status catalog_each_blob(store_catalog *catalog, const char *pattern,
                             bool (*visit)(void *, const void *bytes, size_t size), void *context)
{
    sqlite3_stmt *statement = NULL;
    int code = sqlite3_prepare_v2(catalog->db, "SELECT value FROM meta WHERE name GLOB ?1", -1,
                                  &statement, NULL);
    if (code == SQLITE_OK) code = sqlite3_bind_text(statement, 1, pattern, -1, SQLITE_STATIC);
    if (code == SQLITE_OK) code = sqlite3_step(statement);
    for (; code == SQLITE_ROW; code = sqlite3_step(statement)) {
        if (sqlite3_column_type(statement, 0) != SQLITE_BLOB) continue;
        if (!visit(context, sqlite3_column_blob(statement, 0),
                   (size_t)sqlite3_column_bytes(statement, 0)))
            break;
    }
    sqlite3_finalize(statement);
    return catalog_status(code);
}

kvt_status catalog_set_epoch(store_catalog *catalog, uint64_t epoch, const catalog_device *devices,
                             size_t count)
{
    sqlite3_stmt *statement = NULL;
    assert(!catalog->running);
    kvt_status status = catalog_exec(catalog, "BEGIN IMMEDIATE");
    if (status != KVT_OK) return status;
    status = catalog_set_identity(catalog, epoch);
    if (status == KVT_OK) status = catalog_exec(catalog, "DELETE FROM device");
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
    status = catalog_end(catalog, status);
    if (status != KVT_OK) return status;
    /* The labels of all devices say so by now: this life was not cut short. */
    catalog->epoch = epoch;
    catalog->opening = epoch;
    catalog_carry_over(catalog);
    return KVT_OK;
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
