/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile_sheet.h - a profile as tables for people: one row per curve or point, with names where
 * the database has keys. What export writes, import takes. Constant data; any thread.
 */
#ifndef ESTIMATOR_PROFILE_SHEET_H
#define ESTIMATOR_PROFILE_SHEET_H

#include "estimator/profile/quality_row.h"

#include <stddef.h>
#include <stdint.h>

/* Names of variants that were coded as if a row were one head end so (QUALITY_MERGED_MODE). */
#define PROFILE_ROW "@row"

/* What a field of a column may hold. */
typedef enum sheet_kind {
    SHEET_TEXT,
    SHEET_COUNT,     /* a whole number, not negative */
    SHEET_REAL,      /* any finite number */
    SHEET_AMOUNT,    /* not negative */
    SHEET_RATE,      /* above 0 */
    SHEET_SHARE,     /* from 0 to 1 */
    SHEET_SIGNED,    /* from -1 to 1 */
    SHEET_SWITCH,    /* 0 or 1 */
    SHEET_TIER,      /* hbm, dram, ssd */
    SHEET_DIRECTION, /* read, write */
    SHEET_VARIANT,   /* as kvt_variant_parse reads it; blanks may stand for commas */
    SHEET_BYTES      /* hexadecimal digits */
} sheet_kind;

typedef struct sheet_column {
    const char *name;
    sheet_kind kind;
    const char *standard; /* of an empty or absent field; NULL: required; "": NULL, for text '' */
    const char *sql;      /* exported expression */
} sheet_column;

/* steps: SQL run for each imported row, with :run and the columns by name (of a variant :codec,
 * :mode, :rate and :name). A step that is a SELECT and finds a row refuses it with that text. */
typedef struct profile_sheet {
    const char *name;
    const sheet_column *columns;
    size_t column_count;
    const char *from;         /* exported rows, best order for an import */
    const char *const *steps; /* ends with NULL; NULL for a sheet that is exported alone */
} profile_sheet;

#define SHEET_COLUMNS_MAX 48u

/* NULL past the last. */
const profile_sheet *profile_sheet_at(size_t index);

#endif
