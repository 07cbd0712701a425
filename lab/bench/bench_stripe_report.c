/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_stripe_report.c - the stripe bench as a table or as JSON, schema
 * "kvterrace-bench-stripe-1".
 *
 * Thread rule: one bench at a time.
 */
#include "bench_stripe.h"
#include "store/options.h"

#include <kvterrace/kvterrace.h>

static double report_share(double part, double whole)
{
    return whole > 0 ? part / whole : 0;
}

/* ---- JSON ---- */

static json_t *report_drive(const bench_stripe_drive *drive)
{
    json_t *object = json_pack("{s:s, s:s, s:b, s:b, s:I, s:I}", "device", drive->name, "engine",
                               drive->engine, "direct", drive->direct, "emulated", drive->emulated,
                               "depth_achieved", (json_int_t)drive->depth_achieved, "object_bytes",
                               (json_int_t)drive->object_bytes);
    int failed = object == NULL || bench_put_rate(object, "read_bytes_per_s", &drive->read) != 0 ||
                 bench_put_rate(object, "write_bytes_per_s", &drive->write) != 0;
    if (!failed) return object;
    json_decref(object);
    return NULL;
}

static json_t *report_row(const bench_stripe_results *results, const bench_stripe_row *row)
{
    double read = report_share(row->read.median, results->read_sum);
    double write = report_share(row->write.median, results->write_sum);
    json_t *object =
        json_pack("{s:s, s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:f}", "layout",
                  kvt_striping_name(row->layout), "object_bytes", (json_int_t)row->object_bytes,
                  "unit_bytes", (json_int_t)results->unit_bytes, "repetitions",
                  (json_int_t)row->repetitions, "device_sum_bytes_per_s", results->read_sum,
                  "device_write_sum_bytes_per_s", results->write_sum, "read_ratio", read,
                  "write_ratio", write, "ratio", read < write ? read : write);
    int failed = object == NULL || bench_put_rate(object, "read_bytes_per_s", &row->read) != 0 ||
                 bench_put_rate(object, "write_bytes_per_s", &row->write) != 0 ||
                 bench_put_rate(object, "spread", &row->read_spread) != 0 ||
                 bench_put_rate(object, "write_spread", &row->write_spread) != 0;
    if (!failed) return object;
    json_decref(object);
    return NULL;
}

static int report_json(FILE *out, const bench_stripe_results *results)
{
    json_t *root = bench_report_head("kvterrace-bench-stripe-1", results->iterations);
    json_t *drives = json_array();
    json_t *rows = json_array();
    int failed = root == NULL || drives == NULL || rows == NULL;
    for (uint32_t i = 0; i < results->drive_count && !failed; i++)
        failed = json_array_append_new(drives, report_drive(&results->drives[i]));
    for (uint32_t i = 0; i < results->row_count && !failed; i++)
        failed = json_array_append_new(rows, report_row(results, &results->rows[i]));
    if (!failed) failed = json_object_set(root, "drives", drives);
    if (!failed) failed = json_object_set(root, "results", rows);
    json_decref(drives);
    json_decref(rows);
    if (!failed) return bench_report_print(out, root);
    json_decref(root);
    return 1;
}

/* ---- text ---- */

static int report_text(FILE *out, const bench_stripe_results *results)
{
    fprintf(out, "%-12s  %-18s  %22s  %22s  %6s  %5s\n", "drive alone", "engine",
            "read MB/s (min-max)", "write MB/s (min-max)", "direct", "depth");
    for (uint32_t i = 0; i < results->drive_count; i++) {
        const bench_stripe_drive *drive = &results->drives[i];
        fprintf(out, "%-12s  %-18s", drive->name, drive->engine);
        bench_print_cell(out, &drive->read);
        bench_print_cell(out, &drive->write);
        fprintf(out, "  %6s  %5u\n", drive->direct ? "yes" : "no", drive->depth_achieved);
    }
    fprintf(out, "%-12s  %-18s  %22.0f  %22.0f\n\n", "sum", "", results->read_sum / 1e6,
            results->write_sum / 1e6);
    fprintf(out, "%-12s  %6s  %22s  %22s  %6s  %6s  %6s  %6s\n", "layout", "MiB",
            "read MB/s (min-max)", "write MB/s (min-max)", "read", "write", "spread", "most");
    for (uint32_t i = 0; i < results->row_count; i++) {
        const bench_stripe_row *row = &results->rows[i];
        fprintf(out, "%-12s  %6llu", kvt_striping_name(row->layout),
                (unsigned long long)(row->object_bytes >> 20));
        bench_print_cell(out, &row->read);
        bench_print_cell(out, &row->write);
        fprintf(out, "  %6.3f  %6.3f  %6.4f  %6.4f\n",
                report_share(row->read.median, results->read_sum),
                report_share(row->write.median, results->write_sum), row->read_spread.median,
                row->read_spread.max);
    }
    fprintf(out,
            "\nMedian of %u. read and write are shares of the drives' sum alone. spread: how much "
            "later\nthe last drive was done than the first, of the first one's time (reads).\n",
            results->iterations);
    return ferror(out) != 0;
}

int bench_stripe_report(const bench_options *options, const bench_stripe_results *results)
{
    int failed =
        options->json ? report_json(options->out, results) : report_text(options->out, results);
    if (fflush(options->out) != 0) failed = 1;
    return failed;
}
