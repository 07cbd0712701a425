/* SPDX-License-Identifier: Apache-2.0 */
/*
 * catalog_rows.c - one statement at a time, with SQLite's codes as statuses; and the rows of
 * entries: reading, checking and writing one, making the table anew.
 *
 * A row carries a checksum over all its columns. A row whose checksum fails has no location; the
 * next rewrite of the table, before the store serves, leaves it out.
 *
 * Thread rule: the opener's thread, but catalog_bind_row and catalog_status, which are the writer's
 * as well.
 */
#include "codecs/record_groups.h"
#include "store/catalog/catalog_internal.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

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

kvt_status catalog_end(store_catalog *catalog, kvt_status status)
{
    if (status == KVT_OK) return catalog_exec(catalog, "COMMIT");
    (void)!catalog_exec(catalog, "ROLLBACK");
    return status;
}

/* ---- entries ---- */

kvt_status catalog_make_entries(store_catalog *catalog, const char *table)
{
    char sql[1200];
    snprintf(sql, sizeof sql,
             "CREATE TABLE %s(key BLOB PRIMARY KEY, generation INTEGER NOT NULL, parent BLOB,"
             " layers INTEGER NOT NULL, kv_heads INTEGER NOT NULL, head_dim INTEGER NOT NULL,"
             " dtype INTEGER NOT NULL, axis_order INTEGER NOT NULL, tokens INTEGER NOT NULL,"
             " tokens_may_drop INTEGER NOT NULL, opaque_bytes INTEGER NOT NULL,"
             " first_position INTEGER NOT NULL, recompute_seconds REAL NOT NULL,"
             " codec INTEGER NOT NULL, mode INTEGER NOT NULL, rate INTEGER NOT NULL,"
             " record_bytes INTEGER NOT NULL, location BLOB NOT NULL, serial INTEGER NOT NULL,"
             " expires_ns INTEGER NOT NULL, tenant INTEGER NOT NULL, class_id INTEGER NOT NULL,"
             " request_tokens INTEGER NOT NULL, layouts BLOB, checksum INTEGER NOT NULL)"
             " STRICT, WITHOUT ROWID;",
             table);
    return catalog_exec(catalog, sql);
}

/* The column axis_order: the order, and bits for a layout of one side and for one of V, which a
 * library without such layouts finds out of range. */
#define CATALOG_ONE_SIDE 2u
#define CATALOG_V_ALONE  4u

/* The order of the axes as a row stores it. */
static uint32_t catalog_order_of(const kvt_layout *layout)
{
    const uint32_t one = kvt_layout_sides(layout) == 1 ? CATALOG_ONE_SIDE : 0;
    return layout->order | one | (layout->sides == KVT_SIDES_V ? CATALOG_V_ALONE : 0);
}

/* Bytes of the column layouts: those of a row's groups. */
static size_t catalog_group_bytes(const catalog_row *row)
{
    return row->group_count * sizeof row->layout;
}

/* XXH3 over the columns as numbers of one width, seeded with that of the location. */
static uint64_t catalog_sum_row(const catalog_row *row)
{
    uint64_t words[31] = {0}, *next = words + 8, seconds;
    const kvt_layout *layout = &row->layout;
    memcpy(words, &row->key, sizeof row->key);
    if (row->has_parent) memcpy(words + 4, &row->parent, sizeof row->parent);
    memcpy(&seconds, &row->recompute_seconds, sizeof seconds);
    *next++ = row->has_parent;
    *next++ = row->generation;
    *next++ = row->serial;
    *next++ = layout->layers;
    *next++ = layout->kv_heads;
    *next++ = layout->head_dim;
    *next++ = layout->dtype;
    *next++ = catalog_order_of(layout);
    *next++ = layout->tokens;
    *next++ = layout->tokens_may_drop;
    *next++ = layout->opaque_bytes;
    *next++ = row->first_position;
    *next++ = seconds;
    *next++ = row->variant.codec;
    *next++ = row->variant.mode;
    *next++ = row->variant.rate;
    *next++ = row->record_bytes;
    *next++ = row->expires_ns;
    *next++ = row->tenant;
    *next++ = row->class_id;
    *next++ = row->request_tokens;
    *next++ = row->group_count;
    *next++ = row->group_count != 0 ? XXH3_64bits(row->groups, catalog_group_bytes(row)) : 0;
    assert(next <= words + sizeof words / sizeof words[0]);
    return XXH3_64bits_withSeed(words, (size_t)(next - words) * sizeof words[0],
                                XXH3_64bits(row->location, row->location_bytes));
}

void catalog_bind_row(sqlite3_stmt *statement, const catalog_row *row)
{
    assert(row->location_bytes > 0 && row->location != NULL);
    sqlite3_bind_blob(statement, 1, &row->key, sizeof row->key, SQLITE_STATIC);
    sqlite3_bind_int64(statement, 2, (int64_t)row->generation);
    sqlite3_bind_int64(statement, 19, (int64_t)row->serial);
    if (row->has_parent) {
        sqlite3_bind_blob(statement, 3, &row->parent, sizeof row->parent, SQLITE_STATIC);
    } else {
        sqlite3_bind_null(statement, 3);
    }
    sqlite3_bind_int(statement, 4, row->layout.layers);
    sqlite3_bind_int(statement, 5, row->layout.kv_heads);
    sqlite3_bind_int(statement, 6, row->layout.head_dim);
    sqlite3_bind_int(statement, 7, row->layout.dtype);
    sqlite3_bind_int(statement, 8, (int)catalog_order_of(&row->layout));
    sqlite3_bind_int64(statement, 9, row->layout.tokens);
    sqlite3_bind_int(statement, 10, row->layout.tokens_may_drop);
    sqlite3_bind_int64(statement, 11, (int64_t)row->layout.opaque_bytes);
    sqlite3_bind_int64(statement, 12, row->first_position);
    sqlite3_bind_double(statement, 13, row->recompute_seconds);
    sqlite3_bind_int(statement, 14, row->variant.codec);
    sqlite3_bind_int(statement, 15, row->variant.mode);
    sqlite3_bind_int64(statement, 16, row->variant.rate);
    sqlite3_bind_int64(statement, 17, (int64_t)row->record_bytes);
    sqlite3_bind_blob64(statement, 18, row->location, row->location_bytes, SQLITE_STATIC);
    sqlite3_bind_int64(statement, 20, (int64_t)row->expires_ns);
    sqlite3_bind_int64(statement, 21, row->tenant);
    sqlite3_bind_int64(statement, 22, row->class_id);
    sqlite3_bind_int64(statement, 23, row->request_tokens);
    if (row->group_count != 0)
        sqlite3_bind_blob64(statement, 24, row->groups, catalog_group_bytes(row), SQLITE_STATIC);
    else
        sqlite3_bind_null(statement, 24);
    sqlite3_bind_int64(statement, 25, (int64_t)catalog_sum_row(row));
}

/* ---- reading ---- */

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

/* Reads the groups of a row. False: they are of no number of layouts. */
static bool catalog_read_groups(sqlite3_stmt *statement, int column, catalog_row *row)
{
    const size_t bytes = (size_t)sqlite3_column_bytes(statement, column);
    if (sqlite3_column_type(statement, column) == SQLITE_NULL) return true;
    if (bytes == 0 || bytes > KVT_GROUPS_MAX * sizeof row->layout ||
        bytes % sizeof row->layout != 0)
        return false;
    row->groups = sqlite3_column_blob(statement, column);
    row->group_count = (uint32_t)(bytes / sizeof row->layout);
    return true;
}

bool catalog_row_is_sound(const catalog_row *row)
{
    kvt_layout groups[KVT_GROUPS_MAX], layout;
    uint64_t source_bytes;
    assert(row->group_count <= KVT_GROUPS_MAX);
    if (row->generation == 0 || row->generation > INT64_MAX || row->serial == 0 ||
        row->serial > INT64_MAX || row->expires_ns > INT64_MAX || !(row->recompute_seconds >= 0) ||
        kvt_layout_bytes(&row->layout, &source_bytes) != KVT_OK ||
        row->record_bytes % KVT_RECORD_ALIGN != 0 || row->record_bytes == 0 ||
        row->record_bytes > UINT64_C(1) << 47)
        return false;
    if (row->group_count == 0) return true;
    memcpy(groups, row->groups, row->group_count * sizeof groups[0]);
    return record_groups_layout(groups, row->group_count, &layout) == KVT_OK &&
           memcmp(&layout, &row->layout, sizeof layout) == 0;
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
    const uint64_t order = catalog_column(statement, 7, UINT8_MAX, &sound);
    const uint64_t sides = order & (CATALOG_ONE_SIDE | CATALOG_V_ALONE);
    row->layout.order = (uint8_t)(order - sides);
    if (sides == CATALOG_ONE_SIDE) row->layout.sides = KVT_SIDES_ONE;
    if (sides == (CATALOG_ONE_SIDE | CATALOG_V_ALONE)) row->layout.sides = KVT_SIDES_V;
    sound = sound && sides != CATALOG_V_ALONE;
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
    row->expires_ns = catalog_column(statement, 19, INT64_MAX, &sound);
    row->tenant = (uint32_t)catalog_column(statement, 20, KVT_TENANTS_MAX - 1, &sound);
    row->class_id = (uint32_t)catalog_column(statement, 21, UINT16_MAX, &sound);
    row->request_tokens = (uint32_t)catalog_column(statement, 22, UINT32_MAX, &sound);
    if (!catalog_read_groups(statement, 23, row)) sound = false;
    if (sound && catalog_row_is_sound(row)) {
        /* SQLite keeps the blob until the next step; visitors copy what they keep. */
        union {
            const void *constant;
            void *plain;
        } blob = {.constant = sqlite3_column_blob(statement, 17)};
        row->location = blob.plain;
        row->location_bytes = (size_t)sqlite3_column_bytes(statement, 17);
    }
    uint64_t sum = (uint64_t)sqlite3_column_int64(statement, 24);
    if (row->location != NULL && catalog_sum_row(row) != sum) row->location = NULL;
}

#define CATALOG_SELECT                                                                             \
    "SELECT key, generation, parent, layers, kv_heads, head_dim, dtype, axis_order, tokens,"       \
    " tokens_may_drop, opaque_bytes, first_position, recompute_seconds, codec, mode, rate,"        \
    " record_bytes, location, serial, expires_ns, tenant, class_id, request_tokens, layouts, "     \
    "checksum FROM entry "

/* All rows; visit returns false to end. */
static kvt_status catalog_walk(store_catalog *catalog, const char *order,
                               bool (*visit)(void *, const catalog_row *), void *context)
{
    sqlite3_stmt *statement = NULL;
    char sql[512];
    snprintf(sql, sizeof sql, CATALOG_SELECT "%s", order);
    int code = sqlite3_prepare_v2(catalog->db, sql, -1, &statement, NULL);
    while (code == SQLITE_OK || code == SQLITE_ROW) {
        code = sqlite3_step(statement);
        if (code != SQLITE_ROW) break;
        catalog_row row;
        catalog_read_row(statement, &row);
        catalog->unsound = catalog->unsound || row.location == NULL;
        if (!visit(context, &row)) break;
    }
    sqlite3_finalize(statement);
    return catalog_status(code);
}

kvt_status catalog_each_entry(store_catalog *catalog, bool (*visit)(void *, const catalog_row *),
                              void *context)
{
    return catalog_walk(catalog, "ORDER BY first_position, generation, key", visit, context);
}

kvt_status catalog_each_entry_unsorted(store_catalog *catalog,
                                       bool (*visit)(void *, const catalog_row *), void *context)
{
    return catalog_walk(catalog, "", visit, context);
}

kvt_status catalog_find_entry(store_catalog *catalog, const kvt_key *key,
                              void (*visit)(void *, const catalog_row *), void *context)
{
    int code = SQLITE_OK;
    if (catalog->finding == NULL)
        code = sqlite3_prepare_v2(catalog->db, CATALOG_SELECT "WHERE key=?1", -1, &catalog->finding,
                                  NULL);
    if (code == SQLITE_OK)
        code = sqlite3_bind_blob(catalog->finding, 1, key, sizeof *key, SQLITE_STATIC);
    if (code == SQLITE_OK) code = sqlite3_step(catalog->finding);
    const bool found = code == SQLITE_ROW;
    if (found) {
        catalog_row row;
        catalog_read_row(catalog->finding, &row);
        visit(context, &row);
    }
    /* Ends the statement's transaction, which keeps the log from being cut. */
    sqlite3_reset(catalog->finding);
    if (code == SQLITE_DONE) return KVT_MISS;
    return catalog_status(code);
}

/* ---- writing ---- */

typedef struct catalog_copying {
    sqlite3_stmt *insertion;
    kvt_status status;
} catalog_copying;

static bool catalog_copy_row(void *context, const catalog_row *row)
{
    catalog_copying *copying = context;
    if (row->location == NULL) return true;
    catalog_bind_row(copying->insertion, row);
    copying->status = catalog_status(sqlite3_step(copying->insertion));
    sqlite3_reset(copying->insertion);
    return copying->status == KVT_OK;
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
    if (status == KVT_OK && catalog->unsound) {
        /* Not by deleting what is unsound: a key that was damaged stands where no search finds it,
         * and leads searches for others astray. */
        catalog_copying copying = {.status = KVT_OK};
        status = catalog_make_entries(catalog, "entry_anew");
        if (status == KVT_OK) {
            status = catalog_status(sqlite3_prepare_v2(
                catalog->db, "INSERT OR REPLACE INTO entry_anew " CATALOG_ROW_VALUES, -1,
                &copying.insertion, NULL));
        }
        if (status == KVT_OK) status = catalog_walk(catalog, "", catalog_copy_row, &copying);
        if (status == KVT_OK) status = copying.status;
        sqlite3_finalize(copying.insertion);
        if (status == KVT_OK) {
            status =
                catalog_exec(catalog, "DROP TABLE entry; ALTER TABLE entry_anew RENAME TO entry");
        }
        if (status == KVT_OK) catalog->unsound = false;
    }
    return catalog_end(catalog, status);
}
