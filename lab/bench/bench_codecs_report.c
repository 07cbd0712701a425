/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_codecs_report.c - the codecs bench as JSON, schema "kvterrace-bench-codecs-1", and as
 * tables.
 *
 * Thread rule: one bench at a time.
 */
#include "bench_codecs.h"

#include <jansson.h>
#include <kvterrace/kvterrace.h>
#include <math.h>
#include <sys/utsname.h>

static const char *report_side(int side)
{
    return side == KVT_SIDE_K ? "k" : side == KVT_SIDE_V ? "v" : "both";
}

static const char *report_dtype(uint8_t dtype)
{
    return dtype == KVT_DTYPE_BF16 ? "bf16" : dtype == KVT_DTYPE_FP16 ? "fp16" : "fp32";
}

static double report_ratio(double part, double whole)
{
    return whole > 0 ? part / whole : 0;
}

/* ---- JSON ---- */

/* Null for what was not measured or is no number. */
static int report_put(json_t *object, const char *key, double value, bool present)
{
    return json_object_set_new(object, key,
                               present && isfinite(value) ? json_real(value) : json_null());
}

static int report_put_loss(json_t *object, const bench_codec_loss *loss, const kvt_layout *layout)
{
    double bits = 8.0 * kvt_dtype_bytes(layout->dtype);
    bool shown = loss->present, judged = loss->judged;
    int failed = report_put(object, "bits_per_element", loss->bits_per_element, shown);
    failed |=
        report_put(object, "physical_bits_per_element", loss->physical_bits_per_element, shown);
    failed |= report_put(object, "ratio", report_ratio(bits, loss->bits_per_element), shown);
    failed |= report_put(object, "nmse_k", loss->nmse[0], shown);
    failed |= report_put(object, "nmse_v", loss->nmse[1], shown);
    failed |= report_put(object, "attention_error", loss->attention_error, shown);
    if (!judged) return failed;
    failed |= report_put(object, "kl", loss->kl, true);
    failed |= report_put(object, "kl_p90", loss->kl_p90, true);
    failed |= report_put(object, "top1", loss->top1, true);
    failed |= report_put(object, "nll_delta", loss->nll_delta, true);
    failed |= report_put(object, "retained_mass", loss->retained_mass, true);
    return failed;
}

static int report_append(json_t *rows, json_t *row, int failed)
{
    if (row == NULL) return 1;
    if (failed != 0) {
        json_decref(row);
        return 1;
    }
    return json_array_append_new(rows, row);
}

/* One row per timing, with the losses of the source that is shown. */
static int report_speeds(const bench_codec_results *results, json_t *rows)
{
    const bench_codec_source *source = bench_codecs_shown(results);
    int failed = 0;
    for (uint32_t i = 0; i < results->speed_count && failed == 0; i++) {
        const bench_codec_speed *speed = &results->speeds[i];
        const bench_codec_variant *variant = &results->variants[speed->variant];
        const bench_codec_loss *loss = &source->losses[speed->variant];
        json_t *row = json_pack(
            "{s:s, s:s, s:s, s:s, s:s, s:s, s:I, s:f, s:f, s:f, s:I, s:f, s:s}", "codec",
            variant->codec, "variant", variant->name, "isa", codecs_cpu_name(speed->isa),
            "direction", speed->decode ? "decode" : "encode", "side", report_side(speed->side),
            "scope", speed->side == BENCH_SIDE_BOTH ? "record" : "kernels", "threads",
            (json_int_t)speed->threads, "bytes_per_s", speed->bytes_per_s, "bytes_per_s_min",
            speed->min, "bytes_per_s_max", speed->max, "samples", (json_int_t)speed->samples,
            "memcpy_ratio", report_ratio(speed->bytes_per_s, results->memcpy_bytes_per_s), "source",
            source->name);
        int put = row != NULL ? report_put_loss(row, loss, &source->layout) : 0;
        failed = report_append(rows, row, put);
    }
    return failed;
}

/* One row per variant and layout of an engine. */
static int report_views(const bench_codec_results *results, json_t *rows)
{
    int failed = 0;
    for (uint32_t i = 0; i < results->view_count && failed == 0; i++) {
        const bench_codec_view *view = &results->views[i];
        const bench_codec_variant *variant = &results->variants[view->variant];
        json_t *row =
            json_pack("{s:s, s:s, s:s, s:f, s:f, s:I}", "codec", variant->codec, "variant",
                      variant->name, "view", view->name, "bytes_per_s", view->bytes_per_s,
                      "packed_ratio", view->packed_ratio, "samples", (json_int_t)view->samples);
        failed = report_append(rows, row, 0);
    }
    return failed;
}

static int report_loss_row(json_t *rows, const bench_codec_source *source, const char *codec,
                           const char *name, const bench_codec_loss *loss)
{
    json_t *row =
        json_pack("{s:s, s:s, s:s}", "source", source->name, "codec", codec, "variant", name);
    int put = row != NULL ? report_put_loss(row, loss, &source->layout) : 0;
    return report_append(rows, row, put);
}

static int report_losses(const bench_codec_results *results, json_t *rows)
{
    int failed = 0;
    for (uint32_t s = 0; s < results->source_count; s++) {
        const bench_codec_source *source = &results->sources[s];
        if (source->exact.judged)
            failed |= report_loss_row(rows, source, "exact", "exact", &source->exact);
        for (uint32_t i = 0; i < results->variant_count; i++) {
            const bench_codec_variant *variant = &results->variants[i];
            if (!source->losses[i].present) continue;
            failed |=
                report_loss_row(rows, source, variant->codec, variant->name, &source->losses[i]);
        }
    }
    return failed;
}

static json_t *report_layout(const kvt_layout *layout)
{
    return json_pack("{s:i, s:I, s:i, s:i, s:s}", "layers", (int)layout->layers, "tokens",
                     (json_int_t)layout->tokens, "kv_heads", (int)layout->kv_heads, "head_dim",
                     (int)layout->head_dim, "dtype", report_dtype(layout->dtype));
}

static int report_sources(const bench_codec_results *results, json_t *rows)
{
    int failed = 0;
    for (uint32_t s = 0; s < results->source_count; s++) {
        const bench_codec_source *source = &results->sources[s];
        const bench_codec_lossless *exact = &source->lossless;
        json_t *row = json_pack("{s:s, s:o, s:I, s:f}", "source", source->name, "entry",
                                report_layout(&source->layout), "contexts",
                                (json_int_t)source->contexts, "seconds", source->seconds);
        int put = 0;
        if (row != NULL) {
            put |= report_put(row, "bf16_matrix_entropy_ratio", exact->matrix_bound_ratio, true);
            put |= report_put(row, "bf16_channel_entropy_ratio", exact->channel_bound_ratio, true);
            put |=
                report_put(row, "bf16_lossless_ratio", exact->dense_ratio, exact->dense_ratio > 0);
            put |= report_put(row, "bf16_lossless_fast_ratio", exact->fast_ratio,
                              exact->fast_ratio > 0);
        }
        failed |= report_append(rows, row, put);
    }
    return failed;
}

static int report_checks(const bench_codec_check *checks, uint32_t count, json_t *rows)
{
    int failed = 0;
    for (uint32_t i = 0; i < count; i++) {
        const bench_codec_check *check = &checks[i];
        json_t *row = json_pack("{s:s, s:s, s:s, s:f, s:s, s:f, s:b}", "source", check->source,
                                "check", check->name, "what", check->what, "value", check->value,
                                "asked", check->at_least ? "at_least" : "at_most", "limit",
                                check->limit, "ok", check->ok);
        failed |= report_append(rows, row, 0);
    }
    return failed;
}

int bench_codecs_report_json(const bench_codec_results *results, const bench_codec_check *checks,
                             uint32_t check_count)
{
    struct utsname host;
    json_t *speeds = json_array(), *losses = json_array();
    json_t *sources = json_array(), *asked = json_array(), *views = json_array();
    int failed = uname(&host);
    failed |= report_speeds(results, speeds);
    failed |= report_views(results, views);
    failed |= report_losses(results, losses);
    failed |= report_sources(results, sources);
    failed |= report_checks(checks, check_count, asked);
    json_t *root = json_pack(
        "{s:s, s:s, s:{s:s, s:s, s:s}, s:f, s:I, s:I, s:o, s:o, s:o, s:o, s:o, s:o}", "schema",
        "kvterrace-bench-codecs-1", "version", kvt_version(), "machine", "kernel", host.release,
        "architecture", host.machine, "isa", codecs_cpu_name(codecs_cpu_best()),
        "memcpy_bytes_per_s", results->memcpy_bytes_per_s, "memcpy_bytes",
        (json_int_t)results->memcpy_bytes, "working_set_bytes",
        (json_int_t)results->working_set_bytes, "entry", report_layout(&results->entry), "results",
        speeds, "views", views, "losses", losses, "sources", sources, "checks", asked);
    if (root == NULL) return 1; /* the arrays went with it */
    if (failed == 0)
        failed = json_dumpf(root, results->options->out, JSON_INDENT(1) | JSON_REAL_PRECISION(6));
    if (failed == 0) failed = fputc('\n', results->options->out) == EOF;
    json_decref(root);
    return failed != 0;
}

/* ---- text ---- */

/* The rate of one timing over memcpy, or a dash. */
static void report_cell(const bench_codec_results *results, uint32_t variant, codecs_cpu isa,
                        bool decode, int side, uint32_t threads)
{
    for (uint32_t i = 0; i < results->speed_count; i++) {
        const bench_codec_speed *speed = &results->speeds[i];
        if (speed->variant != variant || speed->isa != isa || speed->decode != decode ||
            speed->side != side || speed->threads != threads) {
            continue;
        }
        fprintf(results->options->out, " %7.3f",
                report_ratio(speed->bytes_per_s, results->memcpy_bytes_per_s));
        return;
    }
    fprintf(results->options->out, " %7s", "-");
}

static bool report_timed(const bench_codec_results *results, uint32_t variant, codecs_cpu isa)
{
    for (uint32_t i = 0; i < results->speed_count; i++)
        if (results->speeds[i].variant == variant && results->speeds[i].isa == isa) return true;
    return false;
}

static void report_text_speeds(const bench_codec_results *results)
{
    FILE *out = results->options->out;
    const uint32_t workers = results->options->workers;
    fprintf(out,
            "memcpy %.2f GB/s over %.0f MiB, one thread, CPU time. Speeds as ratios to it, in "
            "original bytes:\nwhole records, then the kernels of each side alone%s.\n\n",
            results->memcpy_bytes_per_s / 1e9, (double)results->memcpy_bytes / 1048576.0,
            workers > 1 ? ", then whole records on threads, wall clock" : "");
    fprintf(out, "%-40s %-7s %7s %7s %7s %7s %7s %7s", "variant", "isa", "encode", "decode",
            "enc K", "dec K", "enc V", "dec V");
    if (workers > 1) fprintf(out, "  enc x%-2u  dec x%-2u", (unsigned)workers, (unsigned)workers);
    fputc('\n', out);
    for (int isa = BENCH_ISA_COUNT - 1; isa >= 0; isa--) {
        for (uint32_t i = 0; i < results->variant_count; i++) {
            if (!report_timed(results, i, (codecs_cpu)isa)) continue;
            fprintf(out, "%-40s %-7s", results->variants[i].name, codecs_cpu_name((codecs_cpu)isa));
            report_cell(results, i, (codecs_cpu)isa, false, BENCH_SIDE_BOTH, 1);
            report_cell(results, i, (codecs_cpu)isa, true, BENCH_SIDE_BOTH, 1);
            for (int side = KVT_SIDE_K; side <= KVT_SIDE_V; side++) {
                report_cell(results, i, (codecs_cpu)isa, false, side, 1);
                report_cell(results, i, (codecs_cpu)isa, true, side, 1);
            }
            if (workers > 1) {
                report_cell(results, i, (codecs_cpu)isa, false, BENCH_SIDE_BOTH, workers);
                report_cell(results, i, (codecs_cpu)isa, true, BENCH_SIDE_BOTH, workers);
            }
            fputc('\n', out);
        }
    }
}

/* The layouts of engines, variant by variant. */
static void report_text_views(const bench_codec_results *results)
{
    FILE *out = results->options->out;
    const bench_codec_view *views = results->views;
    uint32_t rows = 0;
    while (rows < results->view_count && views[rows].variant == views[0].variant)
        rows++;
    if (rows == 0) return;
    fprintf(out, "\nrecords of 4 MiB decoded into engines' layouts, as ratios to packed:\n");
    for (uint32_t k = 0; k < results->view_count; k += rows) {
        fprintf(out, "%-40s\n", results->variants[views[k].variant].name);
        for (uint32_t i = k; i < k + rows && i < results->view_count; i++)
            fprintf(out, "  %-38s %7.3f  %6.2f GB/s\n", views[i].name, views[i].packed_ratio,
                    views[i].bytes_per_s / 1e9);
    }
}

static void report_text_loss(FILE *out, const char *name, const bench_codec_loss *loss,
                             const kvt_layout *layout)
{
    double bits = 8.0 * kvt_dtype_bytes(layout->dtype);
    fprintf(out, "%-40s %6.3f %6.3f %6.2f %9.2e %9.2e %9.2e", name, loss->bits_per_element,
            loss->physical_bits_per_element, report_ratio(bits, loss->bits_per_element),
            loss->nmse[0], loss->nmse[1], loss->attention_error);
    if (loss->judged) fprintf(out, " %9.2e %9.2e %6.2f", loss->kl, loss->kl_p90, loss->top1 * 100);
    fputc('\n', out);
}

static void report_text_source(const bench_codec_results *results, const bench_codec_source *source)
{
    FILE *out = results->options->out;
    bool judged = source->exact.judged;
    fprintf(out, "\n%s: %u layers x %u tokens x %u heads x %u in %s", source->name,
            source->layout.layers, (unsigned)source->layout.tokens, source->layout.kv_heads,
            source->layout.head_dim, report_dtype(source->layout.dtype));
    if (judged) fprintf(out, ", %u contexts", (unsigned)source->contexts);
    fprintf(out, ", %.0f s\n%-40s %6s %6s %6s %9s %9s %9s%s\n", source->seconds, "variant", "bits",
            "phys", "ratio", "nmse K", "nmse V", "attention",
            judged ? "        KL       p90  top-1" : "");
    if (judged) report_text_loss(out, "exact", &source->exact, &source->layout);
    for (uint32_t i = 0; i < results->variant_count; i++)
        if (source->losses[i].present)
            report_text_loss(out, results->variants[i].name, &source->losses[i], &source->layout);
    fprintf(out,
            "as bf16, stored exactly: dense %.3fx, fast %.3fx; order-0 entropy of exponents %.3fx "
            "with one table per layer and side, %.3fx with one per channel\n",
            source->lossless.dense_ratio, source->lossless.fast_ratio,
            source->lossless.matrix_bound_ratio, source->lossless.channel_bound_ratio);
}

int bench_codecs_report_text(const bench_codec_results *results, const bench_codec_check *checks,
                             uint32_t check_count)
{
    FILE *out = results->options->out;
    report_text_speeds(results);
    report_text_views(results);
    for (uint32_t i = 0; i < results->source_count; i++)
        report_text_source(results, &results->sources[i]);
    if (check_count > 0) fprintf(out, "\nasked for\n");
    for (uint32_t i = 0; i < check_count; i++) {
        const bench_codec_check *check = &checks[i];
        fprintf(out, "%-6s %-15s %-40s %7.3f, %s %.3f  %s\n", check->ok ? "met" : "missed",
                check->source, check->name, check->value, check->at_least ? "at least" : "at most",
                check->limit, check->what);
    }
    return ferror(out) != 0;
}
