/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rows_text.h - documents of rows for tests, from tables that are short to write: a line [table],
 * a line of names, then a line of values for each row, with commas between. An empty value is no
 * field, a value that reads as a number is one. One thread.
 */
#ifndef TESTS_ROWS_TEXT_H
#define TESTS_ROWS_TEXT_H

#include "cases.h"

#include "estimator/exchange/exchange.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The next value, without its comma; false at the end of the line. */
static inline bool rows_text_value(const char **line, char *value, size_t size)
{
    const size_t length = strcspn(*line, ",\n");
    if (length == 0 && **line != ',') return false;
    assert_true(length < size);
    memcpy(value, *line, length);
    value[length] = '\0';
    *line += length + ((*line)[length] == ',');
    return true;
}

static inline json_t *rows_text_row(const char *names, const char *line)
{
    json_t *row = json_object();
    char name[64], value[256];
    while (rows_text_value(&names, name, sizeof name)) {
        if (!rows_text_value(&line, value, sizeof value)) break;
        json_t *cell = json_loads(value, JSON_DECODE_ANY, NULL);
        if (!json_is_number(cell)) {
            json_decref(cell);
            cell = json_string(value);
        }
        if (value[0] != '\0') assert_int_equal(json_object_set(row, name, cell), 0);
        json_decref(cell);
    }
    return row;
}

/* Released by json_decref. */
static inline json_t *rows_text_tables(const char *text)
{
    json_t *tables = json_object(), *rows = NULL;
    const char *names = NULL;
    while (*text != '\0') {
        const size_t length = strcspn(text, "\n");
        char name[64];
        if (text[0] == '[') {
            assert_true(length >= 2 && length < sizeof name);
            snprintf(name, sizeof name, "%.*s", (int)length - 2, text + 1);
            rows = json_array();
            assert_int_equal(json_object_set_new(tables, name, rows), 0);
            names = NULL;
        } else if (names == NULL) {
            names = text;
        } else {
            assert_int_equal(json_array_append_new(rows, rows_text_row(names, text)), 0);
        }
        text += length + (text[length] == '\n');
    }
    return tables;
}

/* The document of such tables as a file. */
static inline void rows_text_write(const char *path, const char *text)
{
    json_t *document = exchange_document("", rows_text_tables(text));
    assert_int_equal(json_dump_file(document, path, JSON_INDENT(1)), 0);
    json_decref(document);
}

static inline void rows_text_import(kvt_profile *profile, const char *text, const char *source)
{
    char message[512] = "";
    json_t *tables = rows_text_tables(text);
    if (exchange_import_tables(profile, tables, source, message, sizeof message) != KVT_OK)
        fail_msg("%s", message);
    json_decref(tables);
}

#endif
