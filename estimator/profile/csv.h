/* SPDX-License-Identifier: Apache-2.0 */
/*
 * csv.h - small CSV files, plain or zstd-compressed, read whole and walked line by line with
 * positions for messages. Any bytes are safe to walk. Thread rule: one thread per csv_input.
 */
#ifndef ESTIMATOR_CSV_INPUT_H
#define ESTIMATOR_CSV_INPUT_H

#include "estimator/profile/profile_quality.h"

#include <kvterrace/status.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CSV_FIELDS_MAX 64u

typedef struct csv_field {
    const char *text; /* not terminated */
    size_t length;
} csv_field;

typedef struct csv_input {
    char path[4096];
    char *bytes;
    size_t byte_count;
    size_t position;
    uint32_t line; /* of the last line walked, from 1 */
    csv_field fields[CSV_FIELDS_MAX];
    size_t field_count;
    char *message;
    size_t message_size;
} csv_input;

/* Reads `path`, or `path`.zst when there is no `path`; what ends in .zst is unpacked. KVT_OK;
 * KVT_E_GONE (neither can be opened); KVT_E_PARSE (damaged or larger than 64 MiB unpacked);
 * KVT_E_IO; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status csv_open(csv_input *input, const char *path, char *message,
                                  size_t message_size);
void csv_close(csv_input *input);

/* Walks to the next line that does not start with # and splits it at commas. A field in quotes may
 * hold commas and line ends; two quotes stand for one. KVT_OK; KVT_END; KVT_E_PARSE (not one field
 * for each name, an empty line inside the file, a NUL byte, text behind a closing quote). */
KVT_NODISCARD kvt_status csv_next(csv_input *input, const char *const *names, size_t count);

/* The same for the line that holds the names. */
KVT_NODISCARD kvt_status csv_next_header(csv_input *input, const char *const *names, size_t count);

/* The same for lines of any number of fields; empty lines are skipped. */
KVT_NODISCARD kvt_status csv_next_any(csv_input *input);

/* Fields of the present line. KVT_OK or KVT_E_PARSE. */
KVT_NODISCARD kvt_status csv_u32(csv_input *input, size_t field, uint32_t *out);
KVT_NODISCARD kvt_status csv_number(csv_input *input, size_t field, double max, double *out);
bool csv_is(const csv_input *input, size_t field, const char *text);

/* Writes "path:line: reason" and gives KVT_E_PARSE. */
kvt_status csv_fail(csv_input *input, const char *reason);

/* ---- a profile as tables for people ---- */

/*
 * A table has one row per curve or point, with names where the database has keys. Import reads the
 * format that export writes. Constant data; any thread.
 */

/* Names of variants that were coded as if a row were one head end so (QUALITY_MERGED_MODE). */
#define PROFILE_ROW "@row"

/* What a field of a column may hold. */
typedef enum csv_kind {
    CSV_TEXT,
    CSV_COUNT,     /* a whole number, not negative */
    CSV_REAL,      /* any finite number */
    CSV_AMOUNT,    /* not negative */
    CSV_RATE,      /* above 0 */
    CSV_SHARE,     /* from 0 to 1 */
    CSV_SIGNED,    /* from -1 to 1 */
    CSV_SWITCH,    /* 0 or 1 */
    CSV_TIER,      /* hbm, dram, ssd */
    CSV_DIRECTION, /* read, write */
    CSV_VARIANT,   /* as kvt_variant_parse reads it; blanks may stand for commas */
    CSV_BYTES      /* hexadecimal digits */
} csv_kind;

typedef struct csv_column {
    const char *name;
    csv_kind kind;
    const char *standard; /* of an empty or absent field; NULL: required; "": NULL, for text '' */
    const char *sql;      /* exported expression */
} csv_column;

/* steps: SQL run for each imported row, with :run and the columns by name (of a variant :codec,
 * :mode, :rate and :name). A step that is a SELECT and finds a row refuses it with that text. */
typedef struct csv_table {
    const char *name;
    const csv_column *columns;
    size_t column_count;
    const char *from;         /* exported rows, best order for an import */
    const char *const *steps; /* ends with NULL; NULL for a table that is exported alone */
} csv_table;

#define CSV_COLUMNS_MAX 48u

/* NULL past the last. */
const csv_table *csv_table_at(size_t index);

#endif
