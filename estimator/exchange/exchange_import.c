/* SPDX-License-Identifier: Apache-2.0 */
/*
 * exchange_import.c - curves that were measured elsewhere or published, from a document of rows
 * into a profile, each with its source. One transaction: a file comes in whole, or the first bad
 * row is named and nothing does. Thread rule: as profile.h says.
 */
#include "estimator/exchange/exchange.h"
#include "estimator/exchange/exchange_rows.h"
#include "estimator/profile/profile_internal.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define IMPORT_STEPS_MAX 6u

typedef struct import_state {
    kvt_profile *profile;
    rows_file file;
    const char *source; /* of rows that name none; NULL = they must */
    const char *command_line;
    int64_t first_run; /* runs from here on are this import's */
    const rows_table *table;
    size_t row;
    sqlite3_stmt *steps[IMPORT_STEPS_MAX];
    uint64_t rows;
} import_state;

static kvt_status import_fail(import_state *state, const char *reason)
{
    return rows_fail(&state->file, state->table, state->row, NULL, reason);
}

static kvt_status import_fail_sqlite(import_state *state)
{
    sqlite3 *database = state->profile->database;
    const int result = sqlite3_extended_errcode(database);
    if (result == SQLITE_CONSTRAINT_PRIMARYKEY || result == SQLITE_CONSTRAINT_UNIQUE)
        return import_fail(state, "the same curve or point twice");
    if (result == SQLITE_CONSTRAINT_CHECK)
        return import_fail(state, "a value out of its bounds, or values that contradict each other "
                                  "(docs/PROFILE.md, the table's CHECK)");
    (void)import_fail(state, sqlite3_errmsg(database));
    return (result & 0xff) == SQLITE_CONSTRAINT ? KVT_E_PARSE : profile_status(result);
}

/* ---- a table's statements ---- */

static void import_end_table(import_state *state)
{
    for (size_t i = 0; i < IMPORT_STEPS_MAX; i++) {
        sqlite3_finalize(state->steps[i]);
        state->steps[i] = NULL;
    }
}

/* The row `v` of a statement: what was bound, and standard values where that is NULL. */
static void import_append_row(sqlite3_str *sql, const rows_table *table)
{
    sqlite3_str_appendall(sql, "WITH v AS (SELECT ");
    for (size_t c = 0; c < table->column_count; c++) {
        const rows_column *column = &table->columns[c];
        if (c > 0) sqlite3_str_appendall(sql, ", ");
        if (column->kind == ROWS_VARIANT)
            sqlite3_str_appendall(
                sql, ":codec AS codec, :mode AS mode, :rate AS rate, :variant AS name");
        else if (column->standard == NULL)
            sqlite3_str_appendf(sql, ":%s AS %s", column->name, column->name);
        else
            sqlite3_str_appendf(sql, "coalesce(:%s, %s) AS %s", column->name, column->standard,
                                column->name);
    }
    sqlite3_str_appendall(sql, ") ");
}

static void import_append_columns(sqlite3_str *sql, const rows_table *table)
{
    for (size_t c = 0; c < table->column_count; c++) {
        const rows_column *column = &table->columns[c];
        if (column->sql[0] == table->alias && column->sql[1] == '.' &&
            strcmp(column->sql + 2, column->name) == 0)
            sqlite3_str_appendf(sql, ", %s", column->name);
    }
}

/* The step-th statement of a table, released by sqlite3_free; NULL past the last and without
 * memory. */
static char *import_statement(const rows_table *table, size_t step)
{
    size_t checks = 0;
    while (table->checks[checks] != NULL)
        checks++;
    if (step > checks || (step == checks && table->target == NULL)) return NULL;
    sqlite3_str *sql = sqlite3_str_new(NULL);
    import_append_row(sql, table);
    if (step < checks) {
        sqlite3_str_appendall(sql, table->checks[step]);
    } else {
        sqlite3_str_appendf(sql, "INSERT INTO %s (%s", table->target, table->keys);
        import_append_columns(sql, table);
        sqlite3_str_appendf(sql, ") SELECT %s", table->values);
        import_append_columns(sql, table);
        sqlite3_str_appendall(sql, " FROM v");
    }
    return sqlite3_str_finish(sql);
}

static kvt_status import_begin_table(import_state *state)
{
    int result = SQLITE_OK;
    char *sql;
    for (size_t i = 0; result == SQLITE_OK; i++) {
        if ((sql = import_statement(state->table, i)) == NULL) break;
        assert(i < IMPORT_STEPS_MAX);
        result = sqlite3_prepare_v2(state->profile->database, sql, -1, &state->steps[i], NULL);
        sqlite3_free(sql);
    }
    return result == SQLITE_OK ? KVT_OK : import_fail_sqlite(state);
}

/* ---- one row, which rows_check has found sound ---- */

static int import_bind_integer(sqlite3_stmt *step, const char *parameter, int64_t value)
{
    return sqlite3_bind_int64(step, sqlite3_bind_parameter_index(step, parameter), value);
}

/* :codec, :mode and :rate beside :variant, which is the name as the database has it. */
static int import_bind_variant(sqlite3_stmt *step, int place, const char *text)
{
    kvt_variant variant = {0};
    char name[160] = "";
    (void)rows_variant(text, &variant, name);
    int result = sqlite3_bind_text(step, place, name, -1, SQLITE_TRANSIENT);
    if (result == SQLITE_OK) result = import_bind_integer(step, ":codec", variant.codec);
    if (result == SQLITE_OK) result = import_bind_integer(step, ":mode", variant.mode);
    if (result == SQLITE_OK) result = import_bind_integer(step, ":rate", variant.rate);
    return result;
}

static int import_digit(char c)
{
    return c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10;
}

/* Hexadecimal digits in pairs as bytes. */
static int import_bind_bytes(sqlite3_stmt *step, int place, const char *text)
{
    const size_t count = strlen(text) / 2;
    unsigned char *bytes = malloc(count + 1);
    if (bytes == NULL) return SQLITE_NOMEM;
    for (size_t i = 0; i < count; i++)
        bytes[i] = (unsigned char)(16 * import_digit(text[2 * i]) + import_digit(text[2 * i + 1]));
    return sqlite3_bind_blob64(step, place, bytes, count, free);
}

static int import_bind(sqlite3_stmt *step, const rows_column *column, const json_t *value)
{
    char parameter[64];
    (void)snprintf(parameter, sizeof parameter, ":%s", column->name);
    const int place = sqlite3_bind_parameter_index(step, parameter);
    const char *text = json_string_value(value);
    assert(place > 0);
    if (value == NULL || json_is_null(value)) return sqlite3_bind_null(step, place);
    switch (column->kind) {
    case ROWS_COUNT:
    case ROWS_SWITCH: return sqlite3_bind_int64(step, place, json_integer_value(value));
    case ROWS_TEXT: return sqlite3_bind_text(step, place, text, -1, SQLITE_STATIC);
    case ROWS_TIER:
    case ROWS_DIRECTION: return sqlite3_bind_int64(step, place, rows_choice(column->kind, text));
    case ROWS_BYTES: return import_bind_bytes(step, place, text);
    case ROWS_VARIANT: return import_bind_variant(step, place, text);
    default: return sqlite3_bind_double(step, place, json_number_value(value));
    }
}

/* The run of a source: this import's, or a new one. */
static kvt_status import_run(import_state *state, const char *source, int64_t *run_out)
{
    profile_row query = profile_row_begin(state->profile, "SELECT id FROM run WHERE id >= ?1 AND "
                                                          "kind = 'import' AND source = ?2");
    profile_row_integer(&query, (uint64_t)state->first_run);
    profile_row_text(&query, source);
    if (query.result == SQLITE_OK) query.result = sqlite3_step(query.statement);
    if (query.result == SQLITE_ROW) *run_out = sqlite3_column_int64(query.statement, 0);
    sqlite3_finalize(query.statement);
    if (query.result == SQLITE_ROW) return KVT_OK;
    if (query.result != SQLITE_DONE) return import_fail_sqlite(state);
    kvt_status status =
        profile_run_begin_source(state->profile, "import", source, state->command_line, 0, run_out);
    if (status == KVT_OK) status = profile_run_complete(state->profile, *run_out);
    return status == KVT_OK ? KVT_OK : import_fail_sqlite(state);
}

static kvt_status import_step(import_state *state, sqlite3_stmt *step, const json_t *row,
                              int64_t run)
{
    const rows_table *table = state->table;
    const int place = sqlite3_bind_parameter_index(step, ":run");
    int result = place > 0 ? sqlite3_bind_int64(step, place, run) : SQLITE_OK;
    for (size_t c = 0; c < table->column_count && result == SQLITE_OK; c++)
        result =
            import_bind(step, &table->columns[c], json_object_get(row, table->columns[c].name));
    if (result == SQLITE_OK) result = sqlite3_step(step);
    kvt_status status = KVT_OK;
    if (result == SQLITE_ROW)
        status = import_fail(state, (const char *)sqlite3_column_text(step, 0));
    else if (result != SQLITE_DONE)
        status = import_fail_sqlite(state);
    (void)sqlite3_reset(step);
    return status;
}

static kvt_status import_row(import_state *state)
{
    const json_t *row = json_array_get(rows_of(&state->file, state->table), state->row);
    const char *source = json_string_value(json_object_get(row, "source"));
    /* A table without a source describes models, which belong to no run. */
    const size_t last = state->table->column_count - 1;
    const bool of_run = strcmp(state->table->columns[last].name, "source") == 0;
    int64_t run = 0;
    kvt_status status = rows_check(&state->file, state->table, state->row);
    if (source == NULL || source[0] == '\0') source = state->source;
    if (status == KVT_OK && of_run && (source == NULL || source[0] == '\0'))
        status = import_fail(state, "a row without a source, and the import names none");
    if (status == KVT_OK && of_run) status = import_run(state, source, &run);
    for (size_t i = 0; status == KVT_OK && i < IMPORT_STEPS_MAX && state->steps[i] != NULL; i++)
        status = import_step(state, state->steps[i], row, run);
    state->rows += status == KVT_OK;
    return status;
}

/* ---- the file ---- */

/* Tables in the order of their references, whatever their order in the file. */
static kvt_status import_tables(import_state *state)
{
    kvt_status status = KVT_OK;
    if (rows_of(&state->file, &rows_ladder) != NULL) {
        state->table = &rows_ladder;
        return import_fail(state, "a ladder is read by replay.ladder, not imported");
    }
    for (size_t i = 0; status == KVT_OK; i++) {
        if ((state->table = rows_table_at(i)) == NULL) break;
        const size_t count = json_array_size(rows_of(&state->file, state->table));
        state->row = 0;
        if (count > 0 && state->table->checks == NULL)
            return import_fail(state, "this table is exported for reading; it is not imported");
        if (count > 0) status = import_begin_table(state);
        for (; status == KVT_OK && state->row < count; state->row++)
            status = import_row(state);
        import_end_table(state);
    }
    if (status != KVT_OK || state->rows > 0) return status;
    profile_say(state->file.message, state->file.message_size, "%s: no row", state->file.path);
    return KVT_E_PARSE;
}

static kvt_status import_transaction(import_state *state)
{
    sqlite3 *database = state->profile->database;
    char text[32] = "";
    bool found;
    state->table = rows_table_at(0);
    int result = sqlite3_exec(database, "BEGIN IMMEDIATE", NULL, NULL, NULL);
    if (result == SQLITE_OK)
        result = profile_text(database, "SELECT coalesce(max(id), 0) + 1 FROM run", NULL, text,
                              sizeof text, &found);
    state->first_run = strtoll(text, NULL, 10);
    kvt_status status = result == SQLITE_OK ? import_tables(state) : import_fail_sqlite(state);
    if (status == KVT_OK && sqlite3_exec(database, "COMMIT", NULL, NULL, NULL) != SQLITE_OK)
        status = import_fail_sqlite(state);
    if (status != KVT_OK) (void)sqlite3_exec(database, "ROLLBACK", NULL, NULL, NULL);
    return status;
}

kvt_status exchange_import(kvt_profile *profile, const char *path, const char *source,
                           const char *command_line, uint64_t *rows_out, char *message,
                           size_t message_size)
{
    assert(profile != NULL && path != NULL && rows_out != NULL);
    *rows_out = 0;
    if (!profile->writable) return KVT_E_READ_ONLY;
    if (profile_basis_is_file(path)) {
        const kvt_status taken =
            profile_basis_import_file(profile, path, source, command_line, message, message_size);
        *rows_out = taken == KVT_OK;
        return taken == KVT_EXISTS ? KVT_OK : taken;
    }
    import_state state = {.profile = profile, .source = source, .command_line = command_line};
    kvt_status status = rows_open(&state.file, path, message, message_size);
    if (status == KVT_OK) status = import_transaction(&state);
    rows_close(&state.file);
    if (status == KVT_OK) *rows_out = state.rows;
    return status;
}

kvt_status exchange_import_tables(kvt_profile *profile, json_t *tables, const char *source,
                                  char *message, size_t message_size)
{
    import_state state = {.profile = profile,
                          .source = source,
                          .file = {.path = "rows",
                                   .message = message,
                                   .message_size = message_size,
                                   .root = json_pack("{s:O}", "tables", tables)}};
    const kvt_status status = state.file.root != NULL ? import_transaction(&state) : KVT_E_MEMORY;
    rows_close(&state.file);
    return status;
}
