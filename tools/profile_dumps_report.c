/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile_dumps_report.c - what KV dumps said of quality, as a table and as JSON. One thread.
 */
#include "profile_document.h"
#include "profile_reports.h"

#include <jansson.h>
#include <math.h>
#include <string.h>

/* Entry x variant pairs per second of one core. */
static double dumps_rate(const quality_attention_cost *cost, bool encoding)
{
    double seconds = cost->decode_seconds + cost->probe_seconds;
    if (encoding) seconds += cost->encode_seconds;
    return seconds > 0.0 ? (double)cost->pairs / seconds : (double)NAN;
}

static double dumps_gflops(const quality_attention_cost *cost)
{
    return cost->probe_seconds > 0.0 ? 1e-9 * cost->probe_flops / cost->probe_seconds : (double)NAN;
}

void profile_dumps_print(FILE *out, const quality_dumps_report *report,
                         const quality_dumps_options *options)
{
    const quality_attention_cost *cost = &report->cost;
    fprintf(out, "%s, class %s: %u dumps of %u layers x %u KV heads x %u, %u tokens, %u queries\n",
            report->model.name, options->class_name, (unsigned)report->entries,
            report->layout.layers, report->layout.kv_heads, report->layout.head_dim,
            (unsigned)report->layout.tokens, (unsigned)report->queries);
    if (report->map.family_count > 0) {
        fprintf(out, "loss: %s, fitted to attention error for",
                report->map.stored ? "as stored earlier" : report->map.metric);
        for (uint32_t i = 0; i < report->map.family_count; i++)
            fprintf(out, " %s", report->map.families[i].name);
        fputs("; <= is a bound\n", out);
    } else {
        fputs("loss: a bound (<=); the profile has no losses of this model to fit to\n", out);
    }
    fprintf(out, "\n%-36s %6s %7s %7s %6s %6s   %8s %8s\n", "variant", "bits", "att%", "high%",
            "mass", "flips", "loss", "upper");
    for (uint32_t i = 0; i < options->variant_count; i++) {
        const quality_curve *curve = &report->curves[i];
        if (curve->entries == 0) continue;
        fprintf(out, "%-36s %6.2f %7.2f %7.2f %6.3f %6.3f %s %8.4f %8.4f\n",
                options->variants[i].name, curve->bits_per_element, 100.0 * curve->attention_error,
                100.0 * curve->attention_error_high, curve->retained_mass, curve->flip_rate,
                report->mapped[i] || curve->loss_mean <= 0.0 ? " " : "<=", curve->loss_mean,
                curve->loss_high);
    }
    if (cost->pairs == 0) return;
    fprintf(out,
            "\n%llu pairs, %.0f per second of a core (%.0f with encoding); probe %.1f GFLOP/s, "
            "sgemm %.1f at its shapes and %.1f square\n",
            (unsigned long long)cost->pairs, dumps_rate(cost, false), dumps_rate(cost, true),
            dumps_gflops(cost), report->shape_gflops, report->square_gflops);
}

/* ---- JSON ---- */

static int put_real(json_t *object, const char *key, double value)
{
    return json_object_set_new(object, key, isfinite(value) ? json_real(value) : json_null());
}

static json_t *pack_curve(const quality_dumps_report *report, const quality_dumps_options *options,
                          uint32_t index)
{
    const quality_curve *curve = &report->curves[index];
    const struct {
        const char *key;
        double value;
    } members[] = {{"bits_per_element", curve->bits_per_element},
                   {"physical_bits_per_element", curve->physical_bits_per_element},
                   {"loss_mean", curve->loss_mean},
                   {"loss_low", curve->loss_low},
                   {"loss_high", curve->loss_high},
                   {"loss_p90", curve->loss_p90},
                   {"loss_cv", curve->loss_cv},
                   {"attention_error", curve->attention_error},
                   {"attention_error_high", curve->attention_error_high},
                   {"retained_mass", curve->retained_mass},
                   {"flip_rate", curve->flip_rate}};
    json_t *row = json_pack("{s:s, s:I, s:b}", "variant", options->variants[index].name, "entries",
                            (json_int_t)curve->entries, "mapped", (int)report->mapped[index]);
    int failed = row == NULL;
    for (size_t i = 0; failed == 0 && i < sizeof members / sizeof members[0]; i++)
        failed = put_real(row, members[i].key, members[i].value);
    if (failed == 0) return row;
    json_decref(row);
    return NULL;
}

static json_t *pack_map(const quality_map *map)
{
    json_t *families = json_array();
    int failed = families == NULL;
    for (uint32_t f = 0; failed == 0 && f < map->family_count; f++) {
        const quality_family *family = &map->families[f];
        json_t *steps = json_array();
        for (uint32_t i = 0; i < family->count; i++)
            failed |= json_array_append_new(
                steps, json_pack("{s:f, s:f, s:f}", "attention_error", family->steps[i].x, "loss",
                                 family->steps[i].y, "loss_upper", family->steps[i].upper));
        failed |= json_array_append_new(
            families, json_pack("{s:s, s:o}", "family", family->name, "steps", steps));
    }
    return families;
}

static int put_cost(json_t *root, const quality_dumps_report *report)
{
    const quality_attention_cost *cost = &report->cost;
    return json_object_set_new(root, "pairs", json_integer((json_int_t)cost->pairs)) != 0 ||
           put_real(root, "pairs_per_s", dumps_rate(cost, false)) != 0 ||
           put_real(root, "pairs_per_s_with_encode", dumps_rate(cost, true)) != 0 ||
           put_real(root, "encode_seconds", cost->encode_seconds) != 0 ||
           put_real(root, "decode_seconds", cost->decode_seconds) != 0 ||
           put_real(root, "probe_seconds", cost->probe_seconds) != 0 ||
           put_real(root, "probe_gflops", dumps_gflops(cost)) != 0 ||
           put_real(root, "sgemm_shape_gflops", report->shape_gflops) != 0 ||
           put_real(root, "sgemm_gflops", report->square_gflops) != 0;
}

bool profile_dumps_print_json(FILE *out, const quality_dumps_report *report,
                              const quality_dumps_options *options)
{
    json_t *rows = json_array();
    json_t *root =
        json_pack("{s:s, s:o, s:o, s:s, s:I, s:I, s:I, s:s, s:b, s:I, s:f}", "schema",
                  "kvterrace-profile-dumps-1", "model", view_string(report->model.name), "class",
                  view_string(options->class_name), "method", "attention", "entries",
                  (json_int_t)report->entries, "context_tokens", (json_int_t)report->layout.tokens,
                  "queries", (json_int_t)report->queries, "metric", report->map.metric,
                  "map_stored", (int)report->map.stored, "resumed_rows",
                  (json_int_t)report->resumed, "seconds", report->seconds);
    int failed = root == NULL || put_cost(root, report) != 0;
    for (uint32_t i = 0; i < options->variant_count; i++)
        if (report->curves[i].entries > 0)
            failed |= json_array_append_new(rows, pack_curve(report, options, i));
    failed |= json_object_set_new(root, "variants", rows);
    failed |= json_object_set_new(root, "map", pack_map(&report->map));
    if (failed == 0) {
        failed = json_dumpf(root, out, JSON_INDENT(1) | JSON_REAL_PRECISION(9));
        fputc('\n', out);
    }
    json_decref(root);
    return failed == 0;
}
