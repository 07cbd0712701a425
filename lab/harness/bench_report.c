/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_report.c - medians, documents of rows, and their tables. In a table each number stands with
 * the unit that its key ends with, as on the page of `kvterrace report`.
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

enum { REPORT_COLUMNS_MAX = 24, REPORT_KEY_BYTES = 48, REPORT_CELL_BYTES = 96, REPORT_HEAD = 5 };

/* ---- samples ---- */

bench_rate bench_rate_of(double *samples, uint32_t count)
{
    qsort(samples, count, sizeof *samples, base_order_doubles);
    double middle = samples[count / 2];
    if (count % 2 == 0) middle = (middle + samples[count / 2 - 1]) / 2;
    return (bench_rate){.median = middle, .min = samples[0], .max = samples[count - 1]};
}

double bench_quantile(double *samples, uint32_t count, double share)
{
    if (count == 0) return 0;
    qsort(samples, count, sizeof *samples, base_order_doubles);
    const uint32_t at = (uint32_t)(share * count);
    return samples[at < count ? at : count - 1];
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

/* ---- tables ---- */

/* Whether a key has a word between underlines. */
static bool key_has(const char *key, const char *word)
{
    const size_t length = strlen(word);
    for (const char *at = strstr(key, word); at != NULL; at = strstr(at + 1, word)) {
        const bool begins = at == key || at[-1] == '_';
        if (begins && (at[length] == '\0' || at[length] == '_')) return true;
    }
    return false;
}

static void write_seconds(double value, char *cell)
{
    static const char *const units[] = {"s", "ms", "us", "ns"};
    int unit = 0;
    for (; unit < 3 && value != 0 && fabs(value) < 1; unit++)
        value *= 1e3;
    snprintf(cell, REPORT_CELL_BYTES, "%.4g %s", value, units[unit]);
}

static void write_bytes(double value, double step, const char *const *units, char *cell)
{
    int unit = 0;
    for (; unit < 3 && fabs(value) >= step; unit++)
        value /= step;
    snprintf(cell, REPORT_CELL_BYTES, "%.4g %s", value, units[unit]);
}

static void write_number(const char *key, double value, char *cell)
{
    static const char *const sizes[] = {"B", "KiB", "MiB", "GiB"};
    static const char *const rates[] = {"B/s", "kB/s", "MB/s", "GB/s"};
    if (key_has(key, "bytes_per_s"))
        write_bytes(value, 1e3, rates, cell);
    else if (key_has(key, "bytes"))
        write_bytes(value, 1024, sizes, cell);
    else if (key_has(key, "per"))
        snprintf(cell, REPORT_CELL_BYTES, "%.5g", value);
    else if (key_has(key, "s") || key_has(key, "seconds"))
        write_seconds(value, cell);
    else if (key_has(key, "ns"))
        write_seconds(value * 1e-9, cell);
    else
        snprintf(cell, REPORT_CELL_BYTES, "%.4g", value);
}

/* A member by its name, "a.b" for b of the object a. */
static json_t *find_member(const json_t *object, const char *name)
{
    char part[REPORT_KEY_BYTES];
    const char *dot = strchr(name, '.');
    if (dot == NULL) return json_object_get(object, name);
    snprintf(part, sizeof part, "%.*s", (int)(dot - name), name);
    return json_object_get(json_object_get(object, part), dot + 1);
}

static void write_cell(const json_t *row, const char *key, char *cell)
{
    const json_t *value = find_member(row, key);
    const char *dot = strchr(key, '.');
    if (dot != NULL) key = dot + 1;
    snprintf(cell, REPORT_CELL_BYTES, "-");
    if (json_is_string(value))
        snprintf(cell, REPORT_CELL_BYTES, "%s", json_string_value(value));
    else if (json_is_boolean(value))
        snprintf(cell, REPORT_CELL_BYTES, "%s", json_is_true(value) ? "yes" : "no");
    else if (json_is_integer(value) && !key_has(key, "bytes") && !key_has(key, "ns"))
        snprintf(cell, REPORT_CELL_BYTES, "%lld", (long long)json_integer_value(value));
    else if (json_is_number(value))
        write_number(key, json_number_value(value), cell);
}

/* Text to the left, numbers to the right. */
static void print_line(FILE *out, uint32_t columns, char cells[][REPORT_CELL_BYTES],
                       const int *widths)
{
    for (uint32_t i = 0; i < columns; i++)
        fprintf(out, "%s%*s", i > 0 ? "  " : "", widths[i], cells[i]);
    fputc('\n', out);
}

static void print_table(FILE *out, const json_t *rows, const char *columns)
{
    char keys[REPORT_COLUMNS_MAX][REPORT_CELL_BYTES], cells[REPORT_COLUMNS_MAX][REPORT_CELL_BYTES];
    int widths[REPORT_COLUMNS_MAX];
    uint32_t count = 0;
    const json_t *row;
    size_t i;
    for (const char *at = columns; *at != '\0' && count < REPORT_COLUMNS_MAX; count++) {
        const size_t length = strcspn(at, " ");
        snprintf(keys[count], REPORT_KEY_BYTES, "%.*s", (int)length, at);
        widths[count] = (int)strlen(keys[count]);
        at += length + (at[length] == ' ');
    }
    json_array_foreach(rows, i, row)
    {
        for (uint32_t k = 0; k < count; k++) {
            write_cell(row, keys[k], cells[k]);
            const int width = (int)strlen(cells[k]);
            if (width > abs(widths[k])) widths[k] = widths[k] < 0 ? -width : width;
            const bool text = json_is_string(find_member(row, keys[k]));
            if (text && widths[k] > 0) widths[k] = -widths[k];
        }
    }
    print_line(out, count, keys, widths);
    json_array_foreach(rows, i, row)
    {
        for (uint32_t k = 0; k < count; k++)
            write_cell(row, keys[k], cells[k]);
        print_line(out, count, cells, widths);
    }
}

/* The rows of a table, in an array of their own. */
static json_t *table_rows(json_t *root, const bench_table *table)
{
    char name[REPORT_KEY_BYTES];
    const size_t length = strcspn(table->list, ":");
    const char *kind = table->list[length] == ':' ? table->list + length + 1 : NULL;
    snprintf(name, sizeof name, "%.*s", (int)length, table->list);
    json_t *found = length > 0 ? find_member(root, name) : root;
    json_t *rows = json_array(), *row;
    size_t i;
    if (json_is_object(found)) json_array_append(rows, found);
    json_array_foreach(found, i, row)
    {
        const char *of = json_string_value(json_object_get(row, "case"));
        if (kind == NULL || (of != NULL && strcmp(of, kind) == 0)) json_array_append(rows, row);
    }
    return rows;
}

static void print_tables(FILE *out, json_t *root, const bench_table *tables)
{
    for (const bench_table *table = tables; table->list != NULL; table++) {
        json_t *rows = table_rows(root, table);
        if (json_array_size(rows) > 0) {
            if (table != tables) fprintf(out, "\n%s\n", table->list);
            print_table(out, rows, table->columns);
        }
        json_decref(rows);
    }
}

int bench_report_print(bench_report *report, FILE *out, bool json, const bench_table *tables)
{
    int failed = report->failed;
    if (!failed && json)
        failed = json_dumpf(report->root, out, JSON_INDENT(2) | JSON_REAL_PRECISION(9)) != 0 ||
                 fputc('\n', out) == EOF;
    if (!failed && !json) print_tables(out, report->root, tables);
    json_decref(report->root);
    report->root = NULL;
    return failed || ferror(out) != 0;
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
