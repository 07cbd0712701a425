/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_report.h - samples and what a bench says of them: a document of lists of rows, printed as
 * JSON, or as tables of some of its columns.
 *
 * Thread rule: one bench at a time.
 */
#ifndef HARNESS_BENCH_REPORT_H
#define HARNESS_BENCH_REPORT_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include <kvterrace/types.h>

#include "replay/document.h"

/* ---- samples ---- */

/* Over the repetitions; all zero = not measured. */
typedef struct bench_rate {
    double median;
    double min;
    double max;
} bench_rate;

/* Sorts the samples. */
bench_rate bench_rate_of(double *samples, uint32_t count);

double bench_bytes_per_s(uint64_t bytes, uint64_t nanoseconds);

/* ---- the document ---- */

enum { BENCH_MESSAGE_BYTES = 512 };

/*
 * The calls take the values that they are given. A value that is NULL, as jansson gives when memory
 * is short, makes the whole report fail, which bench_report_print says.
 */
typedef struct bench_report {
    json_t *root;
    bool failed;
    char message[BENCH_MESSAGE_BYTES]; /* of a case that failed; "" = its status says all */
} bench_report;

/* What every document begins with: schema, version, host. */
void bench_report_open(bench_report *report, const char *schema);

/* Returns the status, with "what: why" as the message; "" = the status says why. */
kvt_status bench_blame(bench_report *report, kvt_status status, const char *what, const char *why);

void bench_report_set(bench_report *report, const char *key, json_t *value);
/* The members of an object. */
void bench_report_add(bench_report *report, json_t *members);
/* One more row of a list, which the first one makes. */
void bench_report_row(bench_report *report, const char *list, json_t *row);

/* The row with key, key_min and key_max of a rate, null where it was not measured. */
json_t *bench_with_rate(json_t *row, const char *key, const bench_rate *rate);

/* Null for what is no number. */
json_t *bench_number(double value);

/* Whether there is more than the head. */
bool bench_report_holds(const bench_report *report);

/* Prints and frees the document. `tables` ends with an empty one. 0; 1: memory was short, or `out`
 * cannot be written. */
int bench_report_print(bench_report *report, FILE *out, bool json, const document_table *tables);

#endif
