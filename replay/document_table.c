/* SPDX-License-Identifier: Apache-2.0 */
/*
 * document_table.c - lists of a document as tables. Each number stands with the unit that its key
 * ends with, as on the page of `kvterrace report`.
 */
#include "document.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TABLE_COLUMNS_MAX = 24, TABLE_KEY_BYTES = 48, TABLE_CELL_BYTES = 96 };

/* Whether a key has a word between underlines and dots. */
static bool key_has(const char *key, const char *word)
{
    const size_t length = strlen(word);
    for (const char *at = strstr(key, word); at != NULL; at = strstr(at + 1, word)) {
        const bool begins = at == key || at[-1] == '_' || at[-1] == '.';
        if (begins && strchr("_.", at[length]) != NULL) return true;
    }
    return false;
}

static void write_seconds(double value, char *cell)
{
    static const char *const units[] = {"s", "ms", "us", "ns"};
    int unit = 0;
    for (; unit < 3 && value != 0 && fabs(value) < 1; unit++)
        value *= 1e3;
    snprintf(cell, TABLE_CELL_BYTES, "%.4g %s", value, units[unit]);
}

static void write_bytes(double value, double step, const char *const *units, char *cell)
{
    int unit = 0;
    for (; unit < 3 && fabs(value) >= step; unit++)
        value /= step;
    snprintf(cell, TABLE_CELL_BYTES, "%.4g %s", value, units[unit]);
}

static void write_number(const char *key, double value, char *cell)
{
    static const char *const sizes[] = {"B", "KiB", "MiB", "GiB"};
    static const char *const rates[] = {"B/s", "kB/s", "MB/s", "GB/s"};
    if (key_has(key, "bytes_per_s"))
        write_bytes(value, 1e3, rates, cell);
    else if (key_has(key, "bytes"))
        write_bytes(value, 1024, sizes, cell);
    else if (key_has(key, "per"))
        snprintf(cell, TABLE_CELL_BYTES, fabs(value) < 1e5 ? "%.5g" : "%.0f", value);
    else if (key_has(key, "s") || key_has(key, "seconds"))
        write_seconds(value, cell);
    else if (key_has(key, "ns"))
        write_seconds(value * 1e-9, cell);
    else
        snprintf(cell, TABLE_CELL_BYTES, "%.4g", value);
}

/* A member by its name, "a.b" for b of the object a. */
static json_t *find_member(const json_t *object, const char *name)
{
    char part[TABLE_KEY_BYTES];
    const char *dot = strchr(name, '.');
    if (dot == NULL) return json_object_get(object, name);
    snprintf(part, sizeof part, "%.*s", (int)(dot - name), name);
    return json_object_get(json_object_get(object, part), dot + 1);
}

static void write_cell(const json_t *row, const char *key, char *cell)
{
    const json_t *value = find_member(row, key);
    snprintf(cell, TABLE_CELL_BYTES, "-");
    if (json_is_string(value))
        snprintf(cell, TABLE_CELL_BYTES, "%s", json_string_value(value));
    else if (json_is_boolean(value))
        snprintf(cell, TABLE_CELL_BYTES, "%s", json_is_true(value) ? "yes" : "no");
    else if (json_is_integer(value) && !key_has(key, "bytes") && !key_has(key, "ns"))
        snprintf(cell, TABLE_CELL_BYTES, "%lld", (long long)json_integer_value(value));
    else if (json_is_number(value))
        write_number(key, json_number_value(value), cell);
}

typedef struct table_column {
    char title[TABLE_KEY_BYTES], key[TABLE_KEY_BYTES];
    int width; /* below 0: text, to the left; numbers stand to the right */
} table_column;

/* Reads "key title=key ..."; a column without a title has its key for one. */
static uint32_t read_columns(const char *text, table_column *columns)
{
    uint32_t count = 0;
    while (*text != '\0' && count < TABLE_COLUMNS_MAX) {
        const int length = (int)strcspn(text, " "), title = (int)strcspn(text, "= ");
        const int from = text[title] == '=' ? title + 1 : 0;
        table_column *column = &columns[count++];
        snprintf(column->title, sizeof column->title, "%.*s", title, text);
        snprintf(column->key, sizeof column->key, "%.*s", length - from, text + from);
        column->width = title;
        text += length + (text[length] == ' ');
    }
    return count;
}

/* Text in the last column may be longer than a cell. */
static void print_row(FILE *out, const json_t *row, const table_column *columns, uint32_t count)
{
    char cell[TABLE_CELL_BYTES];
    for (uint32_t i = 0; i < count; i++) {
        const char *whole = json_string_value(find_member(row, columns[i].key));
        write_cell(row, columns[i].key, cell);
        if (i + 1 == count && whole != NULL)
            fprintf(out, "%s%s", i > 0 ? "  " : "", whole);
        else
            fprintf(out, "%s%*s", i > 0 ? "  " : "", columns[i].width, cell);
    }
    fputc('\n', out);
}

static void print_table(FILE *out, const json_t *rows, const char *text)
{
    table_column columns[TABLE_COLUMNS_MAX];
    char cell[TABLE_CELL_BYTES];
    const uint32_t count = read_columns(text, columns);
    const json_t *row;
    size_t i;
    json_array_foreach(rows, i, row)
    {
        for (uint32_t k = 0; k < count; k++) {
            write_cell(row, columns[k].key, cell);
            const int width = (int)strlen(cell), before = abs(columns[k].width);
            const bool left =
                columns[k].width < 0 || json_is_string(find_member(row, columns[k].key));
            columns[k].width = width > before ? width : before;
            if (left) columns[k].width = -columns[k].width;
        }
    }
    if (columns[count - 1].width < 0) columns[count - 1].width = 0; /* nothing stands behind it */
    for (uint32_t k = 0; k < count; k++)
        fprintf(out, "%s%*s", k > 0 ? "  " : "", columns[k].width, columns[k].title);
    fputc('\n', out);
    json_array_foreach(rows, i, row) print_row(out, row, columns, count);
}

/* The rows of a list, in an array of their own. */
static json_t *table_rows(json_t *root, const char *list)
{
    char name[TABLE_KEY_BYTES];
    const size_t length = strcspn(list, ":");
    const char *kind = list[length] == ':' ? list + length + 1 : NULL;
    snprintf(name, sizeof name, "%.*s", (int)length, list);
    json_t *found = length > 0 ? find_member(root, name) : root;
    json_t *rows = json_array(), *row;
    size_t i;
    if (json_is_object(found)) json_array_append(rows, found);
    json_array_foreach(found, i, row)
    {
        const char *of = json_string_value(json_object_get(row, "case"));
        const json_t *member = kind != NULL ? json_object_get(row, kind) : NULL;
        if (kind == NULL || (of != NULL && strcmp(of, kind) == 0) ||
            (member != NULL && !json_is_null(member) && !json_is_false(member)))
            json_array_append(rows, row);
    }
    return rows;
}

/* The texts of a row, in front of a list that it has. */
static void print_heading(FILE *out, json_t *row)
{
    const char *key;
    json_t *value;
    bool first = true;
    json_object_foreach(row, key, value)
    {
        if (!json_is_string(value)) continue;
        fprintf(out, "%s%s %s", first ? "" : ", ", key, json_string_value(value));
        first = false;
    }
    fputc('\n', out);
}

void document_print_tables(json_t *root, const document_table *tables, FILE *out)
{
    bool first = true;
    for (const document_table *table = tables; table->list != NULL; table++) {
        const char *inner = strchr(table->list, '/');
        char outer[TABLE_KEY_BYTES] = "";
        if (inner != NULL)
            snprintf(outer, sizeof outer, "%.*s", (int)(inner - table->list), table->list);
        json_t *parents = table_rows(root, outer), *parent;
        size_t i;
        json_array_foreach(parents, i, parent)
        {
            json_t *rows = table_rows(parent, inner != NULL ? inner + 1 : table->list);
            if (json_array_size(rows) > 0) {
                if (!first) fputc('\n', out);
                if (inner != NULL)
                    print_heading(out, parent);
                else if (!first && table->list[0] != '\0')
                    fprintf(out, "%s\n", table->list);
                print_table(out, rows, table->columns);
                first = false;
            }
            json_decref(rows);
        }
        json_decref(parents);
    }
}
