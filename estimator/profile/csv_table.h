/* SPDX-License-Identifier: Apache-2.0 */
/*
 * csv_table.h - a profile as tables for people: one row per curve or point, with names where
 * the database has keys. What export writes, import takes. Constant data; any thread.
 */
#ifndef ESTIMATOR_CSV_TABLE_H
#define ESTIMATOR_CSV_TABLE_H

#include "estimator/profile/quality_row.h"

#include <stddef.h>
#include <stdint.h>

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
