/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile_page_part.h - what the page of a profile is put together from: cells of tables, and the
 * sections on this machine. Text from the profile is escaped by page_text, and only by it. One
 * thread.
 */
#ifndef TOOLS_PROFILE_PAGE_PART_H
#define TOOLS_PROFILE_PAGE_PART_H

#include <kvterrace/types.h>

#include <jansson.h>
#include <stdio.h>

/* The head of a table, `left` columns of it aligned to the left; rows follow, then the end. */
void show_table(FILE *file, const char *const *heads, size_t count, size_t left);
void show_table_end(FILE *file);

#define SHOW_TABLE(file, left, ...)                                                                \
    do {                                                                                           \
        static const char *const show_heads[] = {__VA_ARGS__};                                     \
        show_table(file, show_heads, sizeof show_heads / sizeof show_heads[0], left);              \
    } while (0)

/* A cell of text, with a class unless that is "". */
void show_text(FILE *file, const char *class, const char *text);

/* Cells of numbers; "-" for what was not measured. A number times a factor has so many digits
 * behind the point or, for digits below 0, so many that count. */
void show_number(FILE *file, const json_t *row, const char *key, int digits, double factor,
                 const char *unit);
void show_rate(FILE *file, double bytes_per_s);
void show_seconds(FILE *file, double seconds);
void show_size(FILE *file, double bytes);

/* A line of a list of facts; nothing when the value is "". */
void show_fact(FILE *file, const char *name, const char *value);

/* Rows of a section of the document. */
size_t show_count(const json_t *document, const char *section);

/* Sections; nothing when they are empty. `number` counts the page's plots. KVT_OK; KVT_E_IO;
 * KVT_E_MEMORY. */
KVT_NODISCARD kvt_status show_devices(const json_t *document, unsigned *number, FILE *file);
KVT_NODISCARD kvt_status show_loads(const json_t *document, unsigned *number, FILE *file);
KVT_NODISCARD kvt_status show_codecs(const json_t *document, unsigned *number, FILE *file);

#endif
