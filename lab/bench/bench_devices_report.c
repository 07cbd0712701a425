/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_devices_report.c - the devices bench as a table or as JSON, schema
 * "kvterrace-bench-devices-1".
 *
 * Thread rule: one bench at a time.
 */
#include "bench_devices.h"

static double report_ratio(double part, double whole)
{
    return whole > 0 ? part / whole : 0;
}

static double report_smaller(double a, double b)
{
    return a < b ? a : b;
}

/* ---- JSON ---- */

static json_t *report_row(const bench_device_row *row)
{
    json_t *object =
        json_pack("{s:s, s:s, s:b, s:b, s:I, s:I, s:I, s:I}", "device", row->device, "engine",
                  row->engine, "direct", row->direct, "emulated", row->emulated, "depth_achieved",
                  (json_int_t)row->depth_achieved, "object_bytes", (json_int_t)row->object_bytes,
                  "unit_bytes", (json_int_t)row->unit_bytes, "members", (json_int_t)row->members);
    if (object == NULL) return NULL;
    int failed = bench_put_rate(object, "read_bytes_per_s", &row->read);
    failed |= bench_put_rate(object, "write_bytes_per_s", &row->write);
    if (row->layout != NULL) {
        double sum = row->device_sum_bytes_per_s;
        double read = report_ratio(row->read.median, sum);
        double write = report_ratio(row->write.median, sum);
        failed |= json_object_set_new(object, "layout", json_string(row->layout));
        failed |= json_object_set_new(object, "device_sum_bytes_per_s", json_real(sum));
        failed |= json_object_set_new(object, "read_ratio", json_real(read));
        failed |= json_object_set_new(object, "write_ratio", json_real(write));
        failed |= json_object_set_new(object, "ratio", json_real(report_smaller(read, write)));
    }
    if (failed == 0) return object;
    json_decref(object);
    return NULL;
}

/* Best over best; null without fio. */
static json_t *report_fast_ratio(const bench_fast_row *row, const bench_rate *fio)
{
    if (row->note != NULL) return json_null();
    return json_real(report_ratio(row->ours.max, fio->max));
}

static json_t *report_fast_row(const bench_fast_row *row)
{
    json_t *object =
        json_pack("{s:s, s:s, s:s, s:I, s:I, s:b, s:b}", "device", row->device, "engine",
                  row->engine, "direction", row->kind == KVT_IO_READ ? "read" : "write",
                  "request_bytes", (json_int_t)row->request_bytes, "depth", (json_int_t)row->depth,
                  "direct", row->direct, "registered_buffers", row->registered);
    if (object == NULL) return NULL;
    int failed = bench_put_rate(object, "bytes_per_s", &row->ours);
    failed |= bench_put_rate(object, "cpu_seconds_per_gb", &row->ours_cpu);
    failed |= bench_put_rate(object, "fio_bytes_per_s", &row->fio);
    failed |= bench_put_rate(object, "fio_cpu_seconds_per_gb", &row->fio_cpu);
    failed |= json_object_set_new(object, "fio_batch", json_integer((json_int_t)row->fio_batch));
    failed |= bench_put_rate(object, "paired_ratio", &row->paired);
    failed |= bench_put_rate(object, "fio_default_bytes_per_s", &row->fio_default);
    failed |= json_object_set_new(object, "ratio", report_fast_ratio(row, &row->fio));
    failed |=
        json_object_set_new(object, "ratio_default", report_fast_ratio(row, &row->fio_default));
    if (row->note != NULL) failed |= json_object_set_new(object, "note", json_string(row->note));
    if (failed == 0) return object;
    json_decref(object);
    return NULL;
}

static int report_json(FILE *out, const bench_device_results *results)
{
    json_t *root = bench_report_head("kvterrace-bench-devices-1", results->iterations);
    json_t *rows = json_array();
    int failed = root == NULL || rows == NULL;
    for (uint32_t i = 0; i < results->row_count && !failed; i++)
        failed = json_array_append_new(rows, report_row(&results->rows[i]));
    if (!failed) failed = bench_put_rate(root, "memcpy_bytes_per_s", &results->memcpy_rate);
    if (!failed) failed = json_object_set(root, "results", rows);
    json_t *fast_rows = json_array();
    failed = failed || fast_rows == NULL;
    for (uint32_t i = 0; i < results->fast_count && !failed; i++)
        failed = json_array_append_new(fast_rows, report_fast_row(&results->fast_rows[i]));
    if (!failed) failed = json_object_set(root, "fast_path", fast_rows);
    json_decref(fast_rows);
    json_decref(rows);
    if (!failed) return bench_report_print(out, root);
    json_decref(root);
    return 1;
}

/* ---- text ---- */

static void report_fast_text(FILE *out, const bench_device_results *results)
{
    fprintf(out, "\n%-10s  %-5s  %4s  %-18s  %22s  %22s  %5s  %6s  %7s  %s\n", "fast path", "",
            "KiB", "engine", "MB/s (min-max)", "fio MB/s (min-max)", "batch", "best", "default",
            "processor s per GB, fio's");
    for (uint32_t i = 0; i < results->fast_count; i++) {
        const bench_fast_row *row = &results->fast_rows[i];
        fprintf(out, "%-10s  %-5s  %4u  %-18s", row->device,
                row->kind == KVT_IO_READ ? "read" : "write", row->request_bytes / 1024,
                row->engine);
        bench_print_cell(out, &row->ours);
        bench_print_cell(out, &row->fio);
        if (row->note != NULL)
            fprintf(out, "  %5s  %6s  %7s  %.4f; %s\n", "", "-", "-", row->ours_cpu.median,
                    row->note);
        else
            fprintf(out, "  %5u  %6.3f  %7.3f  %.4f, %.4f\n", row->fio_batch,
                    report_ratio(row->ours.max, row->fio.max),
                    report_ratio(row->ours.max, row->fio_default.max), row->ours_cpu.median,
                    row->fio_cpu.median);
    }
}

static int report_text(FILE *out, const bench_device_results *results)
{
    fprintf(out, "%-22s  %-18s  %22s  %22s  %6s  %5s  %5s\n", "device", "engine",
            "read MB/s (min-max)", "write MB/s (min-max)", "direct", "depth", "ratio");
    for (uint32_t i = 0; i < results->row_count; i++) {
        const bench_device_row *row = &results->rows[i];
        char name[64];
        snprintf(name, sizeof name, "%s%s%s", row->device, row->layout != NULL ? " " : "",
                 row->layout != NULL ? row->layout : "");
        fprintf(out, "%-22s  %-18s", name, row->engine);
        bench_print_cell(out, &row->read);
        bench_print_cell(out, &row->write);
        fprintf(out, "  %6s  %5u", row->direct ? "yes" : "no", row->depth_achieved);
        if (row->layout != NULL) {
            double slower = report_smaller(row->read.median, row->write.median);
            fprintf(out, "  %5.3f", report_ratio(slower, row->device_sum_bytes_per_s));
        }
        fputc('\n', out);
    }
    fprintf(out, "%-22s  %-18s", "memcpy", "one thread");
    bench_print_cell(out, &results->memcpy_rate);
    fprintf(out,
            "\n\nMedian of %u. The stripe's ratio is the slower direction over the sum of its "
            "members' caps.\n",
            results->iterations);
    if (results->fast_count > 0) report_fast_text(out, results);
    return ferror(out) != 0;
}

int bench_devices_report(const bench_options *options, const bench_device_results *results)
{
    int failed =
        options->json ? report_json(options->out, results) : report_text(options->out, results);
    if (fflush(options->out) != 0) failed = 1;
    return failed;
}
