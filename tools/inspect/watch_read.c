/* SPDX-License-Identifier: Apache-2.0 */
/*
 * watch_read.c - reads the file by which a store shows itself (watch_read.h). Lines are taken apart
 * where they lie. One thread.
 */
#include "tools/inspect/watch_read.h"

#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

typedef struct watch_line {
    watch_read_field fields[WATCH_READ_FIELDS_MAX];
    size_t count;
} watch_line;

/* Takes `name=value name=value ...` apart. */
static bool watch_split_fields(char *text, watch_line *line)
{
    line->count = 0;
    while (*text != '\0') {
        char *equals = strchr(text, '=');
        if (equals == NULL || line->count == WATCH_READ_FIELDS_MAX) return false;
        char *end = equals + strcspn(equals, " ");
        const bool last = *end == '\0';
        *equals = *end = '\0';
        line->fields[line->count++] = (watch_read_field){text, equals + 1};
        text = last ? end : end + 1;
    }
    return line->count != 0;
}

/* Undoes the escapes of a quoted text in place and ends it at its closing quote. Returns what
 * follows that quote; NULL: there is none. */
static char *watch_unquote(char *text)
{
    char *to = text;
    for (; *text != '"'; text++) {
        if (*text == '\0') return NULL;
        if (*text == '\\' && *++text == '\0') return NULL;
        *to++ = text[-1] == '\\' && *text == 'n' ? '\n' : *text;
    }
    char *rest = text + 1;
    *to = '\0';
    return rest;
}

/* Takes `name="value",...}` apart; returns what follows the brace, or NULL. */
static char *watch_split_labels(char *text, watch_line *line)
{
    while (line->count != WATCH_READ_FIELDS_MAX) {
        char *equals = strchr(text, '=');
        if (equals == NULL || equals[1] != '"') return NULL;
        *equals = '\0';
        line->fields[line->count++] = (watch_read_field){text, equals + 2};
        text = watch_unquote(equals + 2);
        if (text == NULL) return NULL;
        if (*text == '}') return text + 1;
        if (*text++ != ',') return NULL;
    }
    return NULL;
}

static kvt_status watch_take_sample(char *text, const watch_read_visitor *visitor)
{
    watch_line line = {.count = 0};
    char *end = text + strcspn(text, "{ ");
    const char after = *end;
    if (end == text || after == '\0') return KVT_E_PARSE;
    *end++ = '\0';
    if (after == '{') {
        end = watch_split_labels(end, &line);
        if (end == NULL || *end++ != ' ') return KVT_E_PARSE;
    }
    char *rest;
    const double value = strtod(end, &rest);
    if (rest == end || *rest != '\0') return KVT_E_PARSE;
    return visitor->sample(visitor->context, text, line.fields, line.count, value) ? KVT_OK
                                                                                   : KVT_E_MEMORY;
}

static kvt_status watch_take_line(char *text, const watch_read_visitor *visitor)
{
    static const char operation[] = "# operation ", mark[] = WATCH_READ_MARK;
    watch_line line;
    if (*text == '\0') return KVT_OK;
    if (*text != '#') return watch_take_sample(text, visitor);
    const bool head = strncmp(text, mark, sizeof mark - 1) == 0;
    if (!head && strncmp(text, operation, sizeof operation - 1) != 0) return KVT_OK;
    text += head ? sizeof mark - 1 : sizeof operation - 1;
    if (!watch_split_fields(text, &line)) return KVT_E_PARSE;
    const bool taken = head ? visitor->head(visitor->context, line.fields, line.count)
                            : visitor->operation(visitor->context, line.fields, line.count);
    return taken ? KVT_OK : KVT_E_MEMORY;
}

kvt_status watch_read_stream(FILE *file, const watch_read_visitor *visitor, size_t *lines_out)
{
    char *text = NULL;
    size_t size = 0;
    kvt_status status = KVT_OK;
    ssize_t length;
    *lines_out = 0;
    while (status == KVT_OK && (length = getline(&text, &size, file)) > 0) {
        ++*lines_out;
        if (text[length - 1] == '\n') text[length - 1] = '\0';
        status = watch_take_line(text, visitor);
    }
    free(text);
    if (status == KVT_OK && ferror(file)) status = KVT_E_IO;
    return status;
}

kvt_status watch_read(const char *path, const watch_read_visitor *visitor, char *message,
                      size_t message_size)
{
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        (void)snprintf(message, message_size, "%.300s: %m", path);
        return KVT_E_IO;
    }
    size_t lines;
    const kvt_status status = watch_read_stream(file, visitor, &lines);
    if (status != KVT_OK)
        (void)snprintf(message, message_size, "%.300s:%zu: %s", path, lines,
                       kvt_status_text(status));
    (void)fclose(file);
    return status;
}
