/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile_export.c - a profile's curves as rows with names, for files that import takes and for
 * people. Thread rule: as profile.h says.
 */
#include "estimator/profile/profile_internal.h"
#include "estimator/profile/profile_sheet.h"

#include <kvterrace/codec.h>

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
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
static char *export_statement(const profile_sheet *sheet)
{
    sqlite3_str *sql = sqlite3_str_new(NULL);
    for (size_t i = 0; i < sheet->column_count; i++)
        sqlite3_str_appendf(sql, "%s%s", i == 0 ? "SELECT " : ", ", sheet->columns[i].sql);
    sqlite3_str_appendf(sql, " FROM %s", sheet->from);
    return sqlite3_str_finish(sql);
}

static void export_cells(sqlite3_stmt *row, const profile_sheet *sheet, kvt_profile_cell *cells)
{
    for (size_t i = 0; i < sheet->column_count; i++) {
        kvt_profile_cell *cell = &cells[i];
        int column = (int)i;
        *cell = (kvt_profile_cell){.column = sheet->columns[i].name};
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

static kvt_status export_sheet(kvt_profile *profile, const profile_sheet *sheet,
                               kvt_profile_visit *visit, void *context)
{
    kvt_profile_cell cells[SHEET_COLUMNS_MAX];
    sqlite3_stmt *row = NULL;
    assert(sheet->column_count <= SHEET_COLUMNS_MAX);
    char *sql = export_statement(sheet);
    int result =
        sql != NULL ? sqlite3_prepare_v2(profile->database, sql, -1, &row, NULL) : SQLITE_NOMEM;
    sqlite3_free(sql);
    bool proceed = true;
    while (result == SQLITE_OK && proceed) {
        result = sqlite3_step(row);
        if (result != SQLITE_ROW) break;
        result = SQLITE_OK;
        export_cells(row, sheet, cells);
        proceed = visit(context, sheet->name, cells, sheet->column_count);
    }
    sqlite3_finalize(row);
    if (!proceed) return KVT_E_CANCELLED;
    kvt_status status = profile_status(result);
    return status == KVT_OK || status == KVT_E_MEMORY ? status : KVT_E_DATABASE;
}

kvt_status kvt_profile_export(kvt_profile *profile, const char *table, kvt_profile_visit *visit,
                              void *context)
{
    assert(profile != NULL && visit != NULL);
    const profile_sheet *sheet;
    kvt_status status = table != NULL ? KVT_E_ARGUMENT : KVT_OK;
    for (size_t i = 0; table != NULL && (sheet = profile_sheet_at(i)) != NULL; i++)
        if (strcmp(sheet->name, table) == 0) status = KVT_OK;
    if (status != KVT_OK) return status;
    int result = sqlite3_create_function(profile->database, "variant_name", 3,
                                         SQLITE_UTF8 | SQLITE_DETERMINISTIC | SQLITE_INNOCUOUS,
                                         NULL, export_variant_name, NULL, NULL);
    /* One snapshot, so that curves of a writer in between do not come without their device. */
    if (result == SQLITE_OK) result = sqlite3_exec(profile->database, "BEGIN", NULL, NULL, NULL);
    if (result != SQLITE_OK) return profile_status(result);
    for (size_t i = 0; status == KVT_OK && (sheet = profile_sheet_at(i)) != NULL; i++) {
        bool wanted = table != NULL ? strcmp(sheet->name, table) == 0 : sheet->steps != NULL;
        if (wanted) status = export_sheet(profile, sheet, visit, context);
    }
    (void)sqlite3_exec(profile->database, "COMMIT", NULL, NULL, NULL);
    return status;
}
