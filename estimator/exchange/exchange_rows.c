/* SPDX-License-Identifier: Apache-2.0 */
/*
 * exchange_rows.c - reads a document of rows and says what is wrong with it, down to the field. Any
 * bytes are safe to read. Thread rule: one thread per rows_file.
 */
#include "estimator/exchange/exchange_rows.h"

#include "estimator/exchange/exchange.h"
#include "estimator/exchange/text_file.h"
#include "estimator/profile/profile_quality.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define ROWS_TEXT_MAX  4095u
#define ROWS_RATE_MOST 1e18 /* beyond what any device or codec does */

static kvt_status rows_say(const rows_file *file, const char *where, const char *reason)
{
    if (file->message != NULL && file->message_size > 0)
        (void)snprintf(file->message, file->message_size, "%s: %s: %s", file->path, where, reason);
    return KVT_E_PARSE;
}

kvt_status rows_fail(const rows_file *file, const rows_table *table, size_t index,
                     const char *column, const char *reason)
{
    char where[160];
    (void)snprintf(where, sizeof where, "%s[%zu]%s%.64s", table->name, index,
                   column != NULL ? "." : "", column != NULL ? column : "");
    return rows_say(file, where, reason);
}

/* ---- one field ---- */

/* Numbers by kind, and what is said of others. */
static const struct {
    double least, most;
    const char *wanted;
} rows_numbers[] = {
    [ROWS_COUNT] = {0, DBL_MAX, "not a whole number"},
    [ROWS_SWITCH] = {0, 1, "not 0 or 1"},
    [ROWS_REAL] = {-DBL_MAX, DBL_MAX, "not a number"},
    [ROWS_AMOUNT] = {0, DBL_MAX, "not a number of at least 0"},
    [ROWS_RATE] = {DBL_TRUE_MIN, ROWS_RATE_MOST, "not a number above 0, up to 1e18"},
    [ROWS_SHARE] = {0, 1, "not a number from 0 to 1"},
    [ROWS_SIGNED] = {-1, 1, "not a number from -1 to 1"},
};

int rows_choice(rows_kind kind, const char *text)
{
    static const char *const tiers[] = {"hbm", "dram", "ssd", NULL};
    static const char *const directions[] = {"read", "write", NULL};
    const char *const *names = kind == ROWS_TIER ? tiers : directions;
    for (int i = 0; names[i] != NULL; i++)
        if (strcmp(text, names[i]) == 0) return i + (kind == ROWS_TIER ? (int)KVT_TIER_HBM : 0);
    return -1;
}

bool rows_variant(const char *text, kvt_variant *variant_out, char name[160])
{
    char plain[128];
    size_t length = strlen(text);
    const size_t ending = strlen(ROWS_MERGED);
    const bool merged = length > ending && strcmp(text + length - ending, ROWS_MERGED) == 0;
    if (merged) length -= ending;
    if (length >= sizeof plain) return false;
    (void)snprintf(plain, sizeof plain, "%.*s", (int)length, text);
    for (char *c = plain; *c != '\0'; c++)
        if (*c == ' ') *c = ',';
    if (kvt_variant_parse(plain, variant_out) != KVT_OK) return false;
    if (merged) variant_out->mode |= QUALITY_MERGED_MODE;
    rows_variant_name(*variant_out, name);
    return true;
}

void rows_variant_name(kvt_variant variant, char name[160])
{
    char plain[128];
    const bool merged = (variant.mode & QUALITY_MERGED_MODE) != 0;
    variant.mode = (uint16_t)(variant.mode & ~QUALITY_MERGED_MODE);
    (void)kvt_variant_format(variant, plain, sizeof plain);
    (void)snprintf(name, 160, "%s%s", plain, merged ? ROWS_MERGED : "");
}

/* A text that says what the field has to be, or NULL when it is right. */
static const char *rows_fault(const rows_column *column, const json_t *value)
{
    kvt_variant variant;
    char name[160];
    if (column->kind < ROWS_TEXT) {
        const bool whole = column->kind <= ROWS_SWITCH;
        const double number = json_number_value(value);
        const bool fits = whole ? json_is_integer(value) : json_is_number(value);
        return fits && number >= rows_numbers[column->kind].least &&
                       number <= rows_numbers[column->kind].most
                   ? NULL
                   : rows_numbers[column->kind].wanted;
    }
    const char *text = json_string_value(value);
    if (text == NULL) return "not a text";
    const size_t length = strlen(text);
    if (length > ROWS_TEXT_MAX) return "too long";
    switch (column->kind) {
    case ROWS_TIER: return rows_choice(column->kind, text) >= 0 ? NULL : "not hbm, dram or ssd";
    case ROWS_DIRECTION: return rows_choice(column->kind, text) >= 0 ? NULL : "not read or write";
    case ROWS_BYTES:
        return length % 2 == 0 && strspn(text, "0123456789abcdefABCDEF") == length
                   ? NULL
                   : "not hexadecimal bytes";
    case ROWS_VARIANT: return rows_variant(text, &variant, name) ? NULL : "no such variant";
    default: return length > 0 || column->standard != NULL ? NULL : "is empty";
    }
}

/* ---- one row ---- */

kvt_status rows_check(const rows_file *file, const rows_table *table, size_t index)
{
    json_t *row = json_array_get(rows_of(file, table), index);
    const char *key;
    json_t *value;
    size_t known = 0;
    if (!json_is_object(row)) return rows_fail(file, table, index, NULL, "not an object");
    for (size_t c = 0; c < table->column_count; c++) {
        const rows_column *column = &table->columns[c];
        value = json_object_get(row, column->name);
        known += value != NULL;
        const bool absent = value == NULL || json_is_null(value);
        const char *fault = !absent                    ? rows_fault(column, value)
                            : column->standard == NULL ? "is missing"
                                                       : NULL;
        if (fault != NULL) return rows_fail(file, table, index, column->name, fault);
    }
    if (known == json_object_size(row)) return KVT_OK;
    json_object_foreach(row, key, value)
    {
        size_t c = 0;
        while (c < table->column_count && strcmp(table->columns[c].name, key) != 0)
            c++;
        if (c == table->column_count)
            return rows_fail(file, table, index, key, "the table has no such field");
    }
    return KVT_OK;
}

/* ---- the document ---- */

const json_t *rows_of(const rows_file *file, const rows_table *table)
{
    return json_object_get(json_object_get(file->root, "tables"), table->name);
}

/* A table that is not there, with the names of those that an import takes. */
static kvt_status rows_refuse_table(const rows_file *file, const char *name)
{
    char reason[512] = "no such table: it is none of";
    size_t used = strlen(reason);
    const rows_table *table;
    for (size_t i = 0; (table = rows_table_at(i)) != NULL; i++)
        if (table->checks != NULL && used < sizeof reason)
            used += (size_t)snprintf(reason + used, sizeof reason - used, " %s", table->name);
    char where[80];
    (void)snprintf(where, sizeof where, "tables.%.64s", name);
    return rows_say(file, where, reason);
}

static bool rows_has_table(const char *name)
{
    const rows_table *table;
    for (size_t i = 0; (table = rows_table_at(i)) != NULL; i++)
        if (strcmp(table->name, name) == 0) return true;
    return strcmp(rows_ladder.name, name) == 0;
}

static kvt_status rows_members(const rows_file *file)
{
    static const char *const known[] = {"schema", "version", "database", "note", "tables", NULL};
    const char *key, *schema = json_string_value(json_object_get(file->root, "schema"));
    json_t *tables = json_object_get(file->root, "tables"), *value;
    if (schema == NULL || strcmp(schema, ROWS_SCHEMA) != 0)
        return rows_say(file, "schema", "not \"" ROWS_SCHEMA "\"");
    json_object_foreach(file->root, key, value)
    {
        size_t i = 0;
        while (known[i] != NULL && strcmp(known[i], key) != 0)
            i++;
        char where[80];
        (void)snprintf(where, sizeof where, "%.64s", key);
        if (known[i] == NULL) return rows_say(file, where, "a document has no such member");
    }
    if (!json_is_object(tables)) return rows_say(file, "tables", "not an object");
    json_object_foreach(tables, key, value)
    {
        if (!rows_has_table(key)) return rows_refuse_table(file, key);
        if (!json_is_array(value)) return rows_say(file, key, "not an array of rows");
    }
    return KVT_OK;
}

kvt_status rows_open(rows_file *file, const char *path, char *message, size_t message_size)
{
    text_file text;
    json_error_t error;
    *file = (rows_file){.message = message, .message_size = message_size};
    kvt_status status = text_file_read(&text, path, message, message_size);
    if (status != KVT_OK) return status;
    memcpy(file->path, text.path, sizeof file->path);
    file->root = json_loadb(text.bytes, text.size, JSON_REJECT_DUPLICATES, &error);
    const char first = text.size > 0 ? text.bytes[0] : '{';
    text_file_free(&text);
    if (file->root == NULL) {
        char where[48], reason[JSON_ERROR_TEXT_LENGTH + 128];
        (void)snprintf(where, sizeof where, "line %d, column %d", error.line, error.column);
        (void)snprintf(reason, sizeof reason, "%s%s", error.text,
                       first != '{'
                           ? "; rows of a profile are JSON, as kvterrace profile export writes them"
                           : "");
        status = rows_say(file, where, reason);
        return json_error_code(&error) == json_error_out_of_memory ? KVT_E_MEMORY : status;
    }
    status = json_is_object(file->root) ? rows_members(file)
                                        : rows_say(file, "the document", "not an object");
    if (status != KVT_OK) rows_close(file);
    return status;
}

void rows_close(rows_file *file)
{
    json_decref(file->root);
    file->root = NULL;
}
