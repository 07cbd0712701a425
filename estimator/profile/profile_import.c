/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile_import.c - curves that were measured elsewhere or published, from CSV into a profile,
 * each with its source. One transaction: a file comes in whole, or the first bad row is named and
 * nothing does. Any bytes are safe to import. Thread rule: as profile.h says.
 */
#include "estimator/profile/csv.h"
#include "estimator/profile/profile_internal.h"

#include <kvterrace/codec.h>

#include <assert.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define IMPORT_STEPS_MAX 6u
#define IMPORT_TEXT_MAX  4096u
#define IMPORT_RATE_MOST 1e18 /* beyond what any device or codec does */

typedef struct import_state {
    kvt_profile *profile;
    csv_input input;
    const char *source; /* of rows that name none; NULL = they must */
    const char *command_line;
    locale_t plain;    /* numbers are read as in C, whatever the program's locale */
    int64_t first_run; /* runs from here on are this import's */
    const csv_table *table;
    const csv_column *columns[CSV_FIELDS_MAX]; /* of the file, in its order */
    size_t column_count;                       /* 0: a header is due */
    sqlite3_stmt *steps[IMPORT_STEPS_MAX];
    uint64_t rows;
    char reason[512];
} import_state;

static kvt_status import_fail_column(import_state *state, const csv_column *column,
                                     const char *wanted)
{
    snprintf(state->reason, sizeof state->reason, "%s: %s", column->name, wanted);
    return csv_fail(&state->input, state->reason);
}

static kvt_status import_fail_sqlite(import_state *state)
{
    sqlite3 *database = state->profile->database;
    int result = sqlite3_extended_errcode(database);
    if ((result & 0xff) != SQLITE_CONSTRAINT) {
        snprintf(state->reason, sizeof state->reason, "%s", sqlite3_errmsg(database));
        (void)csv_fail(&state->input, state->reason);
        return profile_status(result);
    }
    bool twice = result == SQLITE_CONSTRAINT_PRIMARYKEY || result == SQLITE_CONSTRAINT_UNIQUE;
    if (twice) return csv_fail(&state->input, "the same curve or point twice");
    if (result == SQLITE_CONSTRAINT_CHECK) {
        return csv_fail(&state->input, "a value out of its bounds, or values that contradict each "
                                       "other (docs/PROFILE.md, the table's CHECK)");
    }
    snprintf(state->reason, sizeof state->reason, "%s", sqlite3_errmsg(database));
    return csv_fail(&state->input, state->reason);
}

static void import_end_table(import_state *state)
{
    for (size_t i = 0; i < IMPORT_STEPS_MAX; i++) {
        sqlite3_finalize(state->steps[i]);
        state->steps[i] = NULL;
    }
    state->table = NULL;
    state->column_count = 0;
}

/* "[name]" alone on its line begins a table. */
static bool import_is_mark(const csv_input *input)
{
    const csv_field *field = &input->fields[0];
    return input->field_count == 1 && field->length > 2 && field->text[0] == '[' &&
           field->text[field->length - 1] == ']';
}

static kvt_status import_refuse_table(import_state *state, const csv_field *mark)
{
    char reason[512];
    const csv_table *table;
    int used = snprintf(reason, sizeof reason, "no such table: %.*s is none of",
                        mark->length < 64 ? (int)mark->length : 64, mark->text);
    for (size_t i = 0; (table = csv_table_at(i)) != NULL; i++) {
        if (table->steps != NULL && used > 0 && (size_t)used < sizeof reason)
            used += snprintf(reason + used, sizeof reason - (size_t)used, " [%s]", table->name);
    }
    return csv_fail(&state->input, reason);
}

static kvt_status import_begin_table(import_state *state)
{
    const csv_field *mark = &state->input.fields[0];
    const csv_table *table;
    import_end_table(state);
    for (size_t i = 0; (table = csv_table_at(i)) != NULL; i++) {
        if (strlen(table->name) == mark->length - 2 &&
            memcmp(table->name, mark->text + 1, mark->length - 2) == 0) {
            break;
        }
    }
    if (table == NULL) return import_refuse_table(state, mark);
    if (table->steps == NULL) {
        return csv_fail(&state->input, "this table is exported for reading; it is not imported");
    }
    state->table = table;
    for (size_t i = 0; table->steps[i] != NULL; i++) {
        assert(i < IMPORT_STEPS_MAX);
        int result = sqlite3_prepare_v2(state->profile->database, table->steps[i], -1,
                                        &state->steps[i], NULL);
        if (result != SQLITE_OK) return import_fail_sqlite(state);
    }
    return KVT_OK;
}

static size_t import_find(const import_state *state, const csv_column *column)
{
    size_t i = 0;
    while (i < state->column_count && state->columns[i] != column)
        i++;
    return i;
}

static kvt_status import_header(import_state *state)
{
    csv_input *input = &state->input;
    const csv_table *table = state->table;
    for (size_t i = 0; i < input->field_count; i++) {
        const csv_column *found = NULL;
        for (size_t c = 0; c < table->column_count && found == NULL; c++)
            if (csv_is(input, i, table->columns[c].name)) found = &table->columns[c];
        if (found == NULL || import_find(state, found) < state->column_count) {
            snprintf(state->reason, sizeof state->reason, "[%s] %s column '%.*s'", table->name,
                     found == NULL ? "has no" : "names twice the",
                     input->fields[i].length < 64 ? (int)input->fields[i].length : 64,
                     input->fields[i].text);
            return csv_fail(input, state->reason);
        }
        state->columns[state->column_count++] = found;
    }
    for (size_t c = 0; c < table->column_count; c++) {
        if (table->columns[c].standard != NULL ||
            import_find(state, &table->columns[c]) < state->column_count) {
            continue;
        }
        return import_fail_column(state, &table->columns[c], "the column is missing");
    }
    return KVT_OK;
}

/* ---- one field ---- */

static bool import_number(import_state *state, const char *text, double *out)
{
    char *end = NULL;
    if (text[0] == '\0' || text[strspn(text, "0123456789+-.eE")] != '\0') return false;
    locale_t before = uselocale(state->plain);
    *out = strtod(text, &end);
    (void)uselocale(before);
    return *end == '\0' && isfinite(*out);
}

static bool import_count(const char *text, int64_t *out)
{
    uint64_t value = 0;
    size_t length = strlen(text);
    if (length == 0 || length > 19 || text[strspn(text, "0123456789")] != '\0') return false;
    for (size_t i = 0; i < length; i++)
        value = 10 * value + (uint64_t)(text[i] - '0');
    *out = (int64_t)value;
    return value <= INT64_MAX;
}

static int import_choice(const char *text, const char *const *names, int first)
{
    for (int i = 0; names[i] != NULL; i++)
        if (strcmp(text, names[i]) == 0) return first + i;
    return -1;
}

static int import_digit(char c)
{
    static const char digits[] = "0123456789ABCDEF";
    if (c >= 'a' && c <= 'f') c = (char)(c - 'a' + 'A');
    const char *at = c != '\0' ? strchr(digits, c) : NULL;
    return at != NULL ? (int)(at - digits) : -1;
}

/* Binds hexadecimal digits as bytes; false when they are something else. */
static bool import_bind_bytes(sqlite3_stmt *step, int place, const char *text, int *result)
{
    size_t length = strlen(text);
    unsigned char bytes[IMPORT_TEXT_MAX / 2];
    if (length % 2 != 0 || length / 2 > sizeof bytes) return false;
    for (size_t i = 0; i < length / 2; i++) {
        int high = import_digit(text[2 * i]), low = import_digit(text[2 * i + 1]);
        if (high < 0 || low < 0) return false;
        bytes[i] = (unsigned char)(16 * high + low);
    }
    *result = sqlite3_bind_blob64(step, place, bytes, length / 2, SQLITE_TRANSIENT);
    return true;
}

/* Binds a real number within a kind's bounds; what it should have been, or NULL. */
static const char *import_bind_real(import_state *state, csv_kind kind, sqlite3_stmt *step,
                                    int place, const char *text, int *result)
{
    double value = 0;
    bool number = import_number(state, text, &value);
    *result = sqlite3_bind_double(step, place, value);
    switch (kind) {
    case CSV_AMOUNT: return number && value >= 0 ? NULL : "not a number of at least 0";
    case CSV_RATE:
        return number && value > 0 && value <= IMPORT_RATE_MOST
                   ? NULL
                   : "not a number above 0, up to 1e18";
    case CSV_SHARE: return number && value >= 0 && value <= 1 ? NULL : "not a number from 0 to 1";
    case CSV_SIGNED:
        return number && value >= -1 && value <= 1 ? NULL : "not a number from -1 to 1";
    default: return number ? NULL : "not a number";
    }
}

/* Binds one value by its column's kind; what it should have been, or NULL. */
static const char *import_bind(import_state *state, const csv_column *column, sqlite3_stmt *step,
                               int place, const char *text, int *result)
{
    static const char *const tiers[] = {"hbm", "dram", "ssd", NULL};
    static const char *const directions[] = {"read", "write", NULL};
    static const char *const switches[] = {"0", "1", NULL};
    int64_t value = -1;
    switch (column->kind) {
    case CSV_TEXT:
        *result = sqlite3_bind_text(step, place, text, -1, SQLITE_TRANSIENT);
        return NULL;
    case CSV_BYTES:
        return import_bind_bytes(step, place, text, result) ? NULL : "not hexadecimal bytes";
    case CSV_COUNT:
        if (!import_count(text, &value)) return "not a whole number";
        break;
    case CSV_TIER:
        value = import_choice(text, tiers, KVT_TIER_HBM);
        if (value < 0) return "not hbm, dram or ssd";
        break;
    case CSV_DIRECTION:
        value = import_choice(text, directions, KVT_IO_READ);
        if (value < 0) return "not read or write";
        break;
    case CSV_SWITCH:
        value = import_choice(text, switches, 0);
        if (value < 0) return "not 0 or 1";
        break;
    default: return import_bind_real(state, column->kind, step, place, text, result);
    }
    *result = sqlite3_bind_int64(step, place, value);
    return NULL;
}

/* The field of a column in the present line as text, its standard when it is empty or absent. */
static kvt_status import_text(import_state *state, const csv_column *column, char *text,
                              size_t size)
{
    size_t at = import_find(state, column);
    csv_field field = {"", 0};
    if (at < state->column_count) field = state->input.fields[at];
    if (field.length >= size) return import_fail_column(state, column, "too long");
    memcpy(text, field.text, field.length);
    text[field.length] = '\0';
    if (field.length > 0) return KVT_OK;
    if (column->standard == NULL) return import_fail_column(state, column, "is empty");
    snprintf(text, size, "%s", column->standard);
    return KVT_OK;
}

/* :codec, :mode, :rate and :name of the variant in a column. */
static kvt_status import_bind_variant(import_state *state, const csv_column *column,
                                      sqlite3_stmt *step)
{
    char text[IMPORT_TEXT_MAX];
    kvt_variant variant;
    kvt_status status = import_text(state, column, text, sizeof text);
    if (status != KVT_OK) return status;
    for (char *c = text; *c != '\0'; c++)
        if (*c == ' ') *c = ',';
    size_t length = strlen(text), ending = strlen(PROFILE_ROW);
    bool row = length > ending && strcmp(text + length - ending, PROFILE_ROW) == 0;
    if (row) text[length - ending] = '\0';
    if (kvt_variant_parse(text, &variant) != KVT_OK)
        return import_fail_column(state, column, "no such variant");
    length = kvt_variant_format(variant, text, sizeof text - ending);
    if (row) snprintf(text + length, sizeof text - length, "%s", PROFILE_ROW);
    if (row) variant.mode |= QUALITY_MERGED_MODE;
    const struct {
        const char *name;
        int64_t value;
    } parts[] = {{":codec", variant.codec}, {":mode", variant.mode}, {":rate", variant.rate}};
    int result = SQLITE_OK, place;
    for (size_t i = 0; i < 3 && result == SQLITE_OK; i++) {
        place = sqlite3_bind_parameter_index(step, parts[i].name);
        if (place > 0) result = sqlite3_bind_int64(step, place, parts[i].value);
    }
    place = sqlite3_bind_parameter_index(step, ":name");
    if (result == SQLITE_OK && place > 0)
        result = sqlite3_bind_text(step, place, text, -1, SQLITE_TRANSIENT);
    return result == SQLITE_OK ? KVT_OK : import_fail_sqlite(state);
}

static kvt_status import_bind_column(import_state *state, const csv_column *column,
                                     sqlite3_stmt *step)
{
    char text[IMPORT_TEXT_MAX], parameter[64];
    if (column->kind == CSV_VARIANT) return import_bind_variant(state, column, step);
    snprintf(parameter, sizeof parameter, ":%s", column->name);
    int place = sqlite3_bind_parameter_index(step, parameter);
    kvt_status status = import_text(state, column, text, sizeof text);
    if (place == 0 || status != KVT_OK) return status;
    int result = SQLITE_OK;
    if (text[0] == '\0' && column->kind != CSV_TEXT) {
        result = sqlite3_bind_null(step, place);
    } else {
        const char *wanted = import_bind(state, column, step, place, text, &result);
        if (wanted != NULL) return import_fail_column(state, column, wanted);
    }
    return result == SQLITE_OK ? KVT_OK : import_fail_sqlite(state);
}

/* ---- one row ---- */

/* The run of a source: this import's, or a new one. */
static kvt_status import_run(import_state *state, const char *source, int64_t *run_out)
{
    sqlite3_stmt *query = NULL;
    sqlite3 *database = state->profile->database;
    int result = sqlite3_prepare_v2(database,
                                    "SELECT id FROM run WHERE id >= ?1 AND kind = 'import' AND "
                                    "source = ?2",
                                    -1, &query, NULL);
    if (result == SQLITE_OK) result = sqlite3_bind_int64(query, 1, state->first_run);
    if (result == SQLITE_OK) result = sqlite3_bind_text(query, 2, source, -1, SQLITE_STATIC);
    if (result == SQLITE_OK) result = sqlite3_step(query);
    if (result == SQLITE_ROW) *run_out = sqlite3_column_int64(query, 0);
    sqlite3_finalize(query);
    if (result == SQLITE_ROW) return KVT_OK;
    if (result != SQLITE_DONE) return import_fail_sqlite(state);
    kvt_status status =
        profile_run_begin_source(state->profile, "import", source, state->command_line, 0, run_out);
    if (status == KVT_OK) status = profile_run_complete(state->profile, *run_out);
    return status == KVT_OK ? KVT_OK : import_fail_sqlite(state);
}

/* A table without a source column describes models, which belong to no run: *run_out stays 0. */
static kvt_status import_row_run(import_state *state, int64_t *run_out)
{
    char text[IMPORT_TEXT_MAX];
    const csv_column *column = &state->table->columns[state->table->column_count - 1];
    *run_out = 0;
    if (strcmp(column->name, "source") != 0) return KVT_OK;
    kvt_status status = import_text(state, column, text, sizeof text);
    if (status != KVT_OK) return status;
    const char *source = text[0] != '\0' ? text : state->source;
    if (source == NULL || source[0] == '\0')
        return csv_fail(&state->input, "a row without a source, and the import names none");
    return import_run(state, source, run_out);
}

static kvt_status import_step(import_state *state, sqlite3_stmt *step, int64_t run)
{
    const csv_table *table = state->table;
    kvt_status status = KVT_OK;
    int result = SQLITE_OK, place = sqlite3_bind_parameter_index(step, ":run");
    if (place > 0) result = sqlite3_bind_int64(step, place, run);
    for (size_t c = 0; c < table->column_count && status == KVT_OK; c++)
        status = import_bind_column(state, &table->columns[c], step);
    if (status == KVT_OK && result == SQLITE_OK) {
        result = sqlite3_step(step);
        if (result == SQLITE_ROW) {
            snprintf(state->reason, sizeof state->reason, "%s",
                     (const char *)sqlite3_column_text(step, 0));
            status = csv_fail(&state->input, state->reason);
        } else if (result != SQLITE_DONE) {
            status = import_fail_sqlite(state);
        }
    }
    (void)sqlite3_reset(step);
    return status;
}

static kvt_status import_refuse_fields(import_state *state)
{
    char reason[96];
    (void)snprintf(reason, sizeof reason, "%u fields, and the header has %u",
                   (unsigned)state->input.field_count, (unsigned)state->column_count);
    return csv_fail(&state->input, reason);
}

static kvt_status import_row(import_state *state)
{
    int64_t run;
    if (state->input.field_count != state->column_count) return import_refuse_fields(state);
    kvt_status status = import_row_run(state, &run);
    for (size_t i = 0; status == KVT_OK && i < IMPORT_STEPS_MAX && state->steps[i] != NULL; i++)
        status = import_step(state, state->steps[i], run);
    state->rows += status == KVT_OK;
    return status;
}

static kvt_status import_lines(import_state *state)
{
    kvt_status status;
    while ((status = csv_next_any(&state->input)) == KVT_OK) {
        if (import_is_mark(&state->input)) {
            status = import_begin_table(state);
        } else if (state->table == NULL) {
            status = csv_fail(&state->input, "a line such as [quality] comes first and says which "
                                             "table follows");
        } else if (state->column_count == 0) {
            status = import_header(state);
        } else {
            status = import_row(state);
        }
        if (status != KVT_OK) return status;
    }
    if (status != KVT_END) return status;
    return state->rows > 0 ? KVT_OK : csv_fail(&state->input, "no row");
}

static kvt_status import_transaction(import_state *state)
{
    sqlite3 *database = state->profile->database;
    char text[32];
    bool found;
    int result = sqlite3_exec(database, "BEGIN IMMEDIATE", NULL, NULL, NULL);
    if (result == SQLITE_OK) {
        result = profile_text(database, "SELECT coalesce(max(id), 0) + 1 FROM run", NULL, text,
                              sizeof text, &found);
        state->first_run = strtoll(text, NULL, 10);
    }
    kvt_status status = result == SQLITE_OK ? import_lines(state) : import_fail_sqlite(state);
    import_end_table(state);
    if (status == KVT_OK && sqlite3_exec(database, "COMMIT", NULL, NULL, NULL) != SQLITE_OK)
        status = import_fail_sqlite(state);
    if (status != KVT_OK) (void)sqlite3_exec(database, "ROLLBACK", NULL, NULL, NULL);
    return status;
}

kvt_status kvt_profile_import(kvt_profile *profile, const char *path, const char *source,
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
    import_state *state = calloc(1, sizeof *state);
    if (state == NULL) return KVT_E_MEMORY;
    state->profile = profile;
    state->source = source;
    state->command_line = command_line;
    state->plain = newlocale(LC_NUMERIC_MASK, "C", (locale_t)0);
    kvt_status status = state->plain != (locale_t)0 ? KVT_OK : KVT_E_MEMORY;
    if (status == KVT_OK) status = csv_open(&state->input, path, message, message_size);
    if (status == KVT_OK) {
        status = import_transaction(state);
        csv_close(&state->input);
    }
    if (status == KVT_OK) *rows_out = state->rows;
    if (state->plain != (locale_t)0) freelocale(state->plain);
    free(state);
    return status;
}
