/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_report.c - medians of samples, and rows printed as JSON or tables.
 *
 * Thread rule: one bench at a time.
 */
#include "bench_case.h"

#include "lab/private.h"

#include <kvterrace/kvterrace.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

enum { REPORT_HEAD = 5 };

/* ---- samples ---- */

bench_rate bench_rate_of(double *samples, uint32_t count)
{
    qsort(samples, count, sizeof *samples, base_order_doubles);
    double middle = samples[count / 2];
    if (count % 2 == 0) middle = (middle + samples[count / 2 - 1]) / 2;
    return (bench_rate){.median = middle, .min = samples[0], .max = samples[count - 1]};
}

double bench_bytes_per_s(uint64_t bytes, uint64_t nanoseconds)
{
    return (double)bytes * 1e9 / (double)(nanoseconds > 0 ? nanoseconds : 1);
}

/* ---- the document ---- */

void bench_report_open(bench_report *report, const char *schema)
{
    struct utsname host = {.nodename = ""};
    (void)uname(&host);
    report->root =
        json_pack("{s:s, s:s, s:s, s:s, s:s}", "schema", schema, "version", kvt_version(), "host",
                  host.nodename, "kernel", host.release, "machine", host.machine);
    report->failed = report->root == NULL;
    report->message[0] = '\0';
}

bool bench_report_holds(const bench_report *report)
{
    return json_object_size(report->root) > REPORT_HEAD;
}

kvt_status bench_blame(bench_report *report, kvt_status status, const char *what, const char *why)
{
    if (status != KVT_OK)
        snprintf(report->message, sizeof report->message, "%.120s: %.380s", what,
                 why[0] != '\0' ? why : kvt_status_text(status));
    return status;
}

void bench_report_set(bench_report *report, const char *key, json_t *value)
{
    report->failed |= json_object_set_new(report->root, key, value) != 0;
}

void bench_report_add(bench_report *report, json_t *members)
{
    report->failed |= json_object_update(report->root, members) != 0;
    json_decref(members);
}

void bench_report_row(bench_report *report, const char *list, json_t *row)
{
    json_t *rows = json_object_get(report->root, list);
    if (rows == NULL) bench_report_set(report, list, rows = json_array());
    report->failed |= json_array_append_new(rows, row) != 0;
}

json_t *bench_with_rate(json_t *row, const char *key, const bench_rate *rate)
{
    const double values[] = {rate->median, rate->min, rate->max};
    const char *const tails[] = {"", "_min", "_max"};
    for (int i = 0; i < 3; i++) {
        char name[64];
        snprintf(name, sizeof name, "%s%s", key, tails[i]);
        json_t *value = rate->median > 0 ? json_real(values[i]) : json_null();
        if (json_object_set_new(row, name, value) == 0) continue;
        json_decref(row);
        return NULL;
    }
    return row;
}

json_t *bench_number(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

int bench_report_print(bench_report *report, FILE *out, bool json, const document_table *tables)
{
    json_t *root = report->root;
    report->root = NULL;
    if (json) return document_print(root, !report->failed, 9, out) != KVT_OK;
    if (!report->failed) document_print_tables(root, tables, out);
    json_decref(root);
    return report->failed || ferror(out) != 0;
}

/* ---- a case ---- */

void bench_note(const bench_options *options, const char *format, ...)
{
    va_list arguments;
    if (options->quiet) return;
    fputs("kvlab: ", stderr);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
}

kvt_status bench_case_run(const bench_case *one, const bench_options *options, FILE *out, bool json,
                          char *message, size_t message_size)
{
    bench_report report;
    bench_report_open(&report, one->schema);
    kvt_status status = one->run(options, &report);
    (void)bench_tell(options, 1, 1, NULL);
    const bool holds = bench_report_holds(&report);
    snprintf(message, message_size, "%s", report.message);
    if (status != KVT_OK && !holds)
        json_decref(report.root);
    else if (bench_report_print(&report, out, json, one->tables) != 0)
        status = KVT_E_IO;
    return status;
}
