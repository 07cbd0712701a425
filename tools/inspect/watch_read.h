/* SPDX-License-Identifier: Apache-2.0 */
/*
 * watch_read.h - reads the file by which a store shows itself while it runs (kvt_watch_write).
 *
 * The file is taken for any file: what is not as documented is an error with its line. One thread.
 */
#ifndef INSPECT_WATCH_READ_H
#define INSPECT_WATCH_READ_H

#include <kvterrace/status.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#define WATCH_READ_MARK       "# kvterrace-watch-1 "
#define WATCH_READ_FIELDS_MAX 16u

/* A label of a sample, or a field of an operation; the texts last until the receiver returns. */
typedef struct watch_read_field {
    const char *name;
    const char *value;
} watch_read_field;

/* Receivers of the file's lines; returning false ends the walk with KVT_E_MEMORY. */
typedef struct watch_read_visitor {
    void *context;
    bool (*head)(void *context, const watch_read_field *fields, size_t count);
    bool (*sample)(void *context, const char *name, const watch_read_field *labels, size_t count,
                   double value);
    bool (*operation)(void *context, const watch_read_field *fields, size_t count);
} watch_read_visitor;

/* Walks a file from its first line to its last. KVT_OK; KVT_E_PARSE (the message has the line);
 * KVT_E_IO; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status watch_read(const char *path, const watch_read_visitor *visitor,
                                    char *message, size_t message_size);

/* The same for an open file; lines_out: how many lines were begun. */
KVT_NODISCARD kvt_status watch_read_stream(FILE *file, const watch_read_visitor *visitor,
                                           size_t *lines_out);

#endif
