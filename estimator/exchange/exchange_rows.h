/* SPDX-License-Identifier: Apache-2.0 */
/*
 * exchange_rows.h - documents of rows: their tables, their columns, and the reader that import and
 * ladders share (docs/PROFILE.md, Import and export, has the format).
 *
 * A table has one row per curve or point, with names where the database has keys. Import reads what
 * export writes. Thread rule: one thread per rows_file; tables are constant data.
 */
#ifndef EXCHANGE_ROWS_H
#define EXCHANGE_ROWS_H

#include "estimator/profile/profile.h"

#include <kvterrace/codec.h>

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#define ROWS_SCHEMA "kvterrace-profile-export-1"

/* Names of variants that were coded as if a row were one head end so (QUALITY_MERGED_MODE). */
#define ROWS_MERGED "@row"

/* The values that a column's field may hold. */
typedef enum rows_kind {
    ROWS_COUNT,  /* a whole number, not negative */
    ROWS_SWITCH, /* 0 or 1 */
    ROWS_REAL,
    ROWS_AMOUNT,    /* not negative */
    ROWS_RATE,      /* above 0 */
    ROWS_SHARE,     /* from 0 to 1 */
    ROWS_SIGNED,    /* from -1 to 1 */
    ROWS_TEXT,      /* not empty where it is required */
    ROWS_TIER,      /* hbm, dram, ssd */
    ROWS_DIRECTION, /* read, write */
    ROWS_BYTES,     /* hexadecimal digits */
    ROWS_VARIANT    /* as kvt_variant_parse reads it; blanks may stand for commas */
} rows_kind;

typedef struct rows_column {
    const char *name;
    rows_kind kind;
    const char *standard; /* SQL for an absent field, from the other fields; NULL: required */
    const char *sql;      /* exported expression; of the target's alias and the name: inserted so */
} rows_column;

/* An imported row is first one of `v`: its fields by name, standard values where they are absent,
 * of a variant codec, mode, rate and name; :run is its run. Checks run in order, and one that is a
 * SELECT and finds something refuses the row with that text; then the row goes into its target:
 * `keys` are `values`, and columns of the target's alias follow. */
typedef struct rows_table {
    const char *name;
    const rows_column *columns;
    size_t column_count;
    const char *from;          /* exported rows, best order for an import */
    const char *const *checks; /* ends with NULL; NULL: exported alone, and from is the SELECT */
    const char *target, *keys, *values;
    char alias;
} rows_table;

/* The ladder's columns are in the order of the enumeration. */
enum { LADDER_VARIANT, LADDER_BITS, LADDER_LOSS, LADDER_UPPER, LADDER_ENCODE, LADDER_DECODE };
extern const rows_table rows_ladder;

/* Tables of a database, those that others refer to first; NULL past the last. */
const rows_table *rows_table_at(size_t index);

/* Puts the rows of a statement, NULL without memory, under a name. KVT_OK; KVT_E_DATABASE;
 * KVT_E_MEMORY. */
KVT_NODISCARD kvt_status exchange_select(kvt_profile *profile, const char *sql, const char *name,
                                         json_t *into);

/* ---- a document ---- */

typedef struct rows_file {
    char path[4096];
    json_t *root;
    char *message;
    size_t message_size;
} rows_file;

/* Reads a document and its members but the rows: sound JSON without a field twice, of this schema,
 * with tables of these names. KVT_OK; KVT_E_PARSE; KVT_E_GONE; KVT_E_IO; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status rows_open(rows_file *file, const char *path, char *message,
                                   size_t message_size);
void rows_close(rows_file *file);

/* The rows of a table; NULL: none. */
const json_t *rows_of(const rows_file *file, const rows_table *table);

/* A row with its table's fields alone, the required ones, each as its column's kind. KVT_OK or
 * KVT_E_PARSE. */
KVT_NODISCARD kvt_status rows_check(const rows_file *file, const rows_table *table, size_t index);

/* Writes "path: table[index].column: reason", where column may be NULL, and gives KVT_E_PARSE. */
kvt_status rows_fail(const rows_file *file, const rows_table *table, size_t index,
                     const char *column, const char *reason);

/* The words' place in the list of a TIER or DIRECTION from its first number on; -1: not there. */
int rows_choice(rows_kind kind, const char *text);

/* A variant and its name; one that was coded as if a row were one head has QUALITY_MERGED_MODE. */
bool rows_variant(const char *text, kvt_variant *variant_out, char name[160]);

/* A variant's name of the database's columns. */
void rows_variant_name(kvt_variant variant, char name[160]);

#endif
