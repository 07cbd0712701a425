/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_ablation_report.c - the ablation bench as a table or as JSON, schema
 * "kvterrace-bench-ablation-1".
 *
 * Thread rule: one bench at a time.
 */
#include "bench_ablation.h"

static const char report_no_cache[] =
    "the drives are no files: without a page cache, buffered rows do not show its cost";

static double report_ratio(double part, double whole)
{
    return whole > 0 ? part / whole : 0;
}

/* ---- JSON ---- */

static json_t *report_row(const ablation_context *context, uint32_t row)
{
    const ablation_way *way = &ablation_ways[row];
    const ablation_cell *cell = &context->cells[row];
    const ablation_cell *full = &context->cells[ABLATION_ROWS - 1];
    json_t *object = json_pack(
        "{s:s, s:I, s:I, s:I, s:I, s:b, s:b, s:b, s:b}", "row", way->name, "repetitions",
        (json_int_t)context->repetitions, "tokens", (json_int_t)context->tokens, "bytes",
        (json_int_t)context->bytes, "memory_bytes", (json_int_t)context->memory_bytes, "pooled",
        way->pooled, "direct", way->direct, "layerwise", way->layerwise, "async", way->async);
    json_t *seconds = json_pack(
        "{s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "layer_compute_seconds", context->layer_seconds,
        "queue_seconds", context->queue_seconds, "ideal_loading_seconds", context->ideal_loading,
        "ideal_blocked_seconds", context->ideal_blocked, "of_ideal",
        report_ratio(context->ideal_loading, cell->loading.median), "blocked_of_ideal",
        report_ratio(context->ideal_blocked, cell->blocked.median), "times_full",
        report_ratio(cell->blocked.median, full->blocked.median));
    int failed = object == NULL || seconds == NULL || json_object_update(object, seconds) != 0;
    failed = failed || bench_put_rate(object, "blocked_seconds", &cell->blocked) != 0 ||
             bench_put_rate(object, "loading_seconds", &cell->loading) != 0;
    json_decref(seconds);
    if (!failed) return object;
    json_decref(object);
    return NULL;
}

static int report_json(FILE *out, const ablation_results *results)
{
    json_t *root = bench_report_head("kvterrace-bench-ablation-1", results->repetitions);
    json_t *rows = json_array();
    json_t *drives = json_array();
    int failed = root == NULL;
    for (uint32_t i = 0; i < results->drive_count; i++)
        failed |= json_array_append_new(drives, json_real(results->drive_bytes_per_s[i]));
    for (uint32_t i = 0; i < results->context_count; i++)
        for (uint32_t row = 0; row < ABLATION_ROWS; row++)
            failed |= json_array_append_new(rows, report_row(&results->contexts[i], row));
    failed = failed || json_object_set_new(root, "layers", json_integer(ABLATION_LAYERS)) != 0 ||
             json_object_set_new(root, "emulated", json_boolean(results->emulated)) != 0 ||
             json_object_set_new(root, "page_cache", json_boolean(results->page_cache)) != 0 ||
             json_object_set_new(root, "memory_bytes_per_s",
                                 json_real(results->memory_bytes_per_s)) != 0 ||
             json_object_set_new(root, "device_sum_bytes_per_s",
                                 json_real(results->sum_bytes_per_s)) != 0 ||
             json_object_set(root, "drive_bytes_per_s", drives) != 0 ||
             json_object_set(root, "results", rows) != 0;
    json_decref(rows);
    json_decref(drives);
    if (failed) {
        json_decref(root);
        root = NULL;
    }
    return bench_report_print(out, root);
}

/* ---- text ---- */

static void report_context(FILE *out, const ablation_context *context)
{
    const ablation_cell *full = &context->cells[ABLATION_ROWS - 1];
    fprintf(
        out,
        "\n%u tokens: %.0f MiB, %.1f MiB of them in memory; a layer computes %.2f ms, the queue "
        "takes %.2f ms; median of %u\n",
        context->tokens, (double)context->bytes / 1048576.0,
        (double)context->memory_bytes / 1048576.0, context->layer_seconds * 1e3,
        context->queue_seconds * 1e3, context->repetitions);
    fprintf(out, "  %-18s %12s %12s %10s %12s\n", "", "blocked, ms", "loading, ms", "of ideal",
            "blocked/full");
    for (uint32_t row = 0; row < ABLATION_ROWS; row++) {
        const ablation_cell *cell = &context->cells[row];
        fprintf(out, "  %-18s %12.1f %12.1f %10.3f %12.2f\n", ablation_ways[row].name,
                cell->blocked.median * 1e3, cell->loading.median * 1e3,
                report_ratio(context->ideal_loading, cell->loading.median),
                report_ratio(cell->blocked.median, full->blocked.median));
    }
    fprintf(out, "  %-18s %12.1f %12.1f %10.3f %12.2f\n", "ideal", context->ideal_blocked * 1e3,
            context->ideal_loading * 1e3, 1.0,
            report_ratio(context->ideal_blocked, full->blocked.median));
}

static int report_text(FILE *out, const ablation_results *results)
{
    fprintf(out, "2 memory members of %.0f MB/s, %u drives of", results->memory_bytes_per_s / 1e6,
            results->drive_count);
    for (uint32_t i = 0; i < results->drive_count; i++)
        fprintf(out, " %.0f", results->drive_bytes_per_s[i] / 1e6);
    fprintf(out, " MB/s%s; together %.0f MB/s\n", results->emulated ? " (emulated)" : "",
            results->sum_bytes_per_s / 1e6);
    if (!results->page_cache) fprintf(out, "%s\n", report_no_cache);
    for (uint32_t i = 0; i < results->context_count; i++)
        report_context(out, &results->contexts[i]);
    return ferror(out) != 0;
}

int bench_ablation_report(const bench_options *options, const ablation_results *results)
{
    if (!options->json) return report_text(options->out, results);
    if (!results->page_cache) fprintf(stderr, "kvterrace bench ablation: %s\n", report_no_cache);
    return report_json(options->out, results);
}
