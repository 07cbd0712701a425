/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile_export.c - a profile's curves as rows with names, for files that import takes and for
 * people. Thread rule: as profile.h says.
 */
#include "estimator/profile/csv.h"
#include "estimator/profile/profile_internal.h"

#include <kvterrace/codec.h>

#include <assert.h>
#include <stdio.h>
#include <string.h>

/* variant_name(codec, mode, rate) in SQL. */
static void export_variant_name(sqlite3_context *context, int count, sqlite3_value **values)
{
    char name[128], text[160];
    kvt_variant variant = {.codec = (uint16_t)sqlite3_value_int(values[0]),
                           .mode = (uint16_t)sqlite3_value_int(values[1]),
                           .rate = (uint32_t)sqlite3_value_int64(values[2])};
    bool row = (variant.mode & QUALITY_MERGED_MODE) != 0;
    (void)count;
    variant.mode = (uint16_t)(variant.mode & ~QUALITY_MERGED_MODE);
    (void)kvt_variant_format(variant, name, sizeof name);
    snprintf(text, sizeof text, "%s%s", name, row ? PROFILE_ROW : "");
    sqlite3_result_text(context, text, -1, SQLITE_TRANSIENT);
}

/* "SELECT expressions FROM ...", released by sqlite3_free. */
static char *export_statement(const csv_table *table)
{
    sqlite3_str *sql = sqlite3_str_new(NULL);
    for (size_t i = 0; i < table->column_count; i++)
        sqlite3_str_appendf(sql, "%s%s", i == 0 ? "SELECT " : ", ", table->columns[i].sql);
    sqlite3_str_appendf(sql, " FROM %s", table->from);
    return sqlite3_str_finish(sql);
}

static void export_cells(sqlite3_stmt *row, const csv_table *table, kvt_profile_cell *cells)
{
    for (size_t i = 0; i < table->column_count; i++) {
        kvt_profile_cell *cell = &cells[i];
        int column = (int)i;
        *cell = (kvt_profile_cell){.column = table->columns[i].name};
        switch (sqlite3_column_type(row, column)) {
        case SQLITE_INTEGER:
            cell->kind = KVT_CELL_INTEGER;
            cell->integer = sqlite3_column_int64(row, column);
            break;
        case SQLITE_FLOAT:
            cell->kind = KVT_CELL_REAL;
            cell->real = sqlite3_column_double(row, column);
            break;
        case SQLITE_TEXT:
            cell->kind = KVT_CELL_TEXT;
            cell->text = (const char *)sqlite3_column_text(row, column);
            if (cell->text == NULL) cell->text = "";
            break;
        default: break;
        }
    }
}

static kvt_status export_table(kvt_profile *profile, const csv_table *table,
                               kvt_profile_visit *visit, void *context)
{
    kvt_profile_cell cells[CSV_COLUMNS_MAX];
    sqlite3_stmt *row = NULL;
    assert(table->column_count <= CSV_COLUMNS_MAX);
    char *sql = export_statement(table);
    int result =
        sql != NULL ? sqlite3_prepare_v2(profile->database, sql, -1, &row, NULL) : SQLITE_NOMEM;
    sqlite3_free(sql);
    bool proceed = true;
    while (result == SQLITE_OK && proceed) {
        result = sqlite3_step(row);
        if (result != SQLITE_ROW) break;
        result = SQLITE_OK;
        export_cells(row, table, cells);
        proceed = visit(context, table->name, cells, table->column_count);
    }
    sqlite3_finalize(row);
    if (!proceed) return KVT_E_CANCELLED;
    kvt_status status = profile_status(result);
    return status == KVT_OK || status == KVT_E_MEMORY ? status : KVT_E_DATABASE;
}

kvt_status kvt_profile_export(kvt_profile *profile, const char *name, kvt_profile_visit *visit,
                              void *context)
{
    assert(profile != NULL && visit != NULL);
    const csv_table *table;
    kvt_status status = name != NULL ? KVT_E_ARGUMENT : KVT_OK;
    for (size_t i = 0; name != NULL && (table = csv_table_at(i)) != NULL; i++)
        if (strcmp(table->name, name) == 0) status = KVT_OK;
    if (status != KVT_OK) return status;
    int result = sqlite3_create_function(profile->database, "variant_name", 3,
                                         SQLITE_UTF8 | SQLITE_DETERMINISTIC | SQLITE_INNOCUOUS,
                                         NULL, export_variant_name, NULL, NULL);
    /* One snapshot, so that curves of a writer in between do not come without their device. */
    if (result == SQLITE_OK) result = sqlite3_exec(profile->database, "BEGIN", NULL, NULL, NULL);
    if (result != SQLITE_OK) return profile_status(result);
    for (size_t i = 0; status == KVT_OK && (table = csv_table_at(i)) != NULL; i++) {
        bool wanted = name != NULL ? strcmp(table->name, name) == 0 : table->steps != NULL;
        if (wanted) status = export_table(profile, table, visit, context);
    }
    (void)sqlite3_exec(profile->database, "COMMIT", NULL, NULL, NULL);
    return status;
}
