/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile_quality_report.c - what was measured of quality, as tables and as JSON. One thread.
 */
#include "profile_document.h"
#include "profile_reports.h"

#include <jansson.h>
#include <math.h>
#include <string.h>

/* ---- tables ---- */

/* A number, or a dash for what was not measured, `width` columns wide. */
static void print_number(FILE *out, int width, int decimals, double value)
{
    if (isfinite(value)) {
        fprintf(out, " %*.*f", width, decimals, value);
    } else {
        fprintf(out, " %*s", width, "-");
    }
}

static const char *print_metric(quality_metric metric)
{
    switch (metric) {
    case QUALITY_TOP1: return "1 - share of tokens with the same most probable successor";
    case QUALITY_ROUGE_L: return "1 - ROUGE-L of greedy answers";
    case QUALITY_F1: return "1 - F1 of greedy answers";
    case QUALITY_KL: return "1 - exp(-KL per token)";
    case QUALITY_ANSWERS: return "share of right answers lost";
    case QUALITY_METRICS: break;
    }
    return "";
}

static void print_curve(FILE *out, const char *name, const quality_curve *curve)
{
    fprintf(out, "%-36s", name);
    print_number(out, 6, 2, curve->bits_per_element);
    print_number(out, 8, 4, curve->loss_mean);
    print_number(out, 8, 4, curve->loss_low);
    print_number(out, 8, 4, curve->loss_high);
    print_number(out, 8, 4, curve->loss_p90);
    print_number(out, 5, 2, curve->loss_cv);
    print_number(out, 9, 4, 1e3 * curve->kl);
    print_number(out, 8, 4, 1e3 * curve->kl_high - 1e3 * curve->kl);
    print_number(out, 6, 2, 100.0 * curve->top1);
    print_number(out, 7, 2, 1e3 * curve->nll_delta);
    print_number(out, 6, 3, curve->rouge_l);
    print_number(out, 6, 3, curve->f1);
    print_number(out, 6, 3, curve->answers);
    print_number(out, 6, 2, 100.0 * curve->attention_error);
    print_number(out, 5, 2, curve->spearman_entries);
    print_number(out, 5, 2, curve->repeatability);
    fputc('\n', out);
}

static void print_set(FILE *out, const quality_set_report *set,
                      const quality_profile_options *options)
{
    const quality_spread *spread = &set->spread;
    fprintf(out, "\nclass %s: %u entries", set->class_name, (unsigned)set->entries);
    fprintf(out, " of %u + %u tokens", (unsigned)set->context_tokens,
            (unsigned)set->continuation_tokens);
    fprintf(out, "; exact KV: %.4f nats per token", spread->nll_nats);
    if (isfinite(spread->answers))
        fprintf(out, ", %.1f %% of questions answered", 100.0 * spread->answers);
    fprintf(out, "\n%-36s %6s %8s %8s %8s %8s %5s %9s %8s %6s %7s %6s %6s %6s %6s %5s %5s\n",
            "variant", "bits", "loss", "low", "high", "p90", "cv", "KL e-3", "+95%", "top1%",
            "dNLL", "rougeL", "F1", "answer", "att%", "rho", "rep");
    for (uint32_t i = 0; i < options->variant_count; i++)
        if (set->curves[i].entries > 0)
            print_curve(out, options->variants[i].name, &set->curves[i]);
    if (isfinite(spread->sensitivity_sd)) {
        fprintf(out, "entries differ by a factor of exp(+-%.2f)", spread->sensitivity_sd);
        fprintf(out, " over %u variants; on the other half of the continuation it repeats with r",
                (unsigned)spread->variants);
        print_number(out, 0, 2, spread->repeatability);
        fputc('\n', out);
    }
    fputs("attention error against KL, rank correlation: over variants", out);
    print_number(out, 0, 2, spread->spearman_variants);
    fputs(", over entries (rho, median)", out);
    print_number(out, 0, 2, spread->spearman_entries);
    fputc('\n', out);
}

void profile_quality_print(FILE *out, const quality_report *report,
                           const quality_profile_options *options)
{
    const profile_model *facts = &report->model;
    fprintf(out, "%s: %.2f M parameters, %u layers x %u KV heads x %u, weights %s\n", facts->name,
            1e-6 * (double)facts->parameters, (unsigned)facts->layers, (unsigned)facts->kv_heads,
            (unsigned)facts->head_dim, facts->digest);
    fprintf(out, "loss: %s; %.0f s", print_metric(report->metric), report->seconds);
    if (report->resumed > 0)
        fprintf(out, ", %llu rows were there", (unsigned long long)report->resumed);
    fputc('\n', out);
    for (uint32_t i = 0; i < report->set_count; i++)
        print_set(out, &report->sets[i], options);
}

/* ---- JSON ---- */

/* Null for what was not measured. */
static int put_real(json_t *object, const char *key, double value)
{
    return json_object_set_new(object, key, isfinite(value) ? json_real(value) : json_null());
}

static json_t *pack_curve(const char *name, const quality_curve *curve)
{
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
                   {"kl", curve->kl},
                   {"kl_low", curve->kl_low},
                   {"kl_high", curve->kl_high},
                   {"kl_p90", curve->kl_p90},
                   {"top1", curve->top1},
                   {"nll_delta", curve->nll_delta},
                   {"perplexity_ratio", exp(curve->nll_delta)},
                   {"rouge_l", curve->rouge_l},
                   {"f1", curve->f1},
                   {"answers", curve->answers},
                   {"attention_error", curve->attention_error},
                   {"attention_error_high", curve->attention_error_high},
                   {"retained_mass", curve->retained_mass},
                   {"spearman_entries", curve->spearman_entries},
                   {"repeatability", curve->repeatability}};
    json_t *row = json_pack("{s:s, s:I}", "variant", name, "entries", (json_int_t)curve->entries);
    int failed = row == NULL;
    for (size_t i = 0; failed == 0 && i < sizeof members / sizeof members[0]; i++)
        failed = put_real(row, members[i].key, members[i].value);
    if (failed == 0) return row;
    json_decref(row);
    return NULL;
}

static int put_spread(json_t *object, const quality_set_report *set)
{
    const quality_spread *spread = &set->spread;
    return json_object_set_new(object, "entries", json_integer(set->entries)) != 0 ||
           put_real(object, "nll_nats", spread->nll_nats) != 0 ||
           put_real(object, "answers", spread->answers) != 0 ||
           put_real(object, "spearman_variants", spread->spearman_variants) != 0 ||
           put_real(object, "spearman_entries", spread->spearman_entries) != 0 ||
           put_real(object, "sensitivity_sd", spread->sensitivity_sd) != 0 ||
           put_real(object, "repeatability", spread->repeatability) != 0 ||
           json_object_set_new(object, "sensitivity_variants", json_integer(spread->variants)) != 0;
}

static json_t *pack_set(const quality_set_report *set, const char *model_name,
                        const quality_profile_options *options)
{
    json_t *rows = json_array(), *effects = json_array();
    json_t *root =
        json_pack("{s:o, s:o, s:I, s:I}", "model", view_string(model_name), "class",
                  view_string(set->class_name), "context_tokens", (json_int_t)set->context_tokens,
                  "continuation_tokens", (json_int_t)set->continuation_tokens);
    int failed = root == NULL || put_spread(root, set) != 0;
    for (uint32_t i = 0; i < options->variant_count; i++)
        if (set->curves[i].entries > 0)
            failed |=
                json_array_append_new(rows, pack_curve(options->variants[i].name, &set->curves[i]));
    for (uint32_t i = 0; i < set->entries; i++)
        failed |= json_array_append_new(
            effects, isfinite(set->sensitivity[i]) ? json_real(set->sensitivity[i]) : json_null());
    failed |= json_object_set_new(root, "variants", rows);
    failed |= json_object_set_new(root, "sensitivity", effects);
    if (failed == 0) return root;
    json_decref(root);
    return NULL;
}

bool profile_quality_print_json(FILE *out, const quality_report *report,
                                const quality_profile_options *options)
{
    const profile_model *facts = &report->model;
    json_t *sets = json_array();
    json_t *root = json_pack("{s:s, s:o, s:s, s:I, s:s, s:I, s:I, s:f}", "schema",
                             "kvterrace-profile-quality-1", "model", view_string(facts->name),
                             "digest", facts->digest, "parameters", (json_int_t)facts->parameters,
                             "metric", quality_metric_name(report->metric), "answer_tokens",
                             (json_int_t)options->answer_tokens, "resumed_rows",
                             (json_int_t)report->resumed, "seconds", report->seconds);
    /* What the whole says stands at the top as well: the pooled set, or the only one. */
    int failed = root == NULL || (report->set_count > 0 &&
                                  put_spread(root, &report->sets[report->set_count - 1]) != 0);
    for (uint32_t i = 0; i < report->set_count; i++)
        failed |= json_array_append_new(sets, pack_set(&report->sets[i], facts->name, options));
    failed |= json_object_set_new(root, "sets", sets);
    if (failed == 0) {
        failed = json_dumpf(root, out, JSON_INDENT(1) | JSON_REAL_PRECISION(9));
        fputc('\n', out);
    }
    json_decref(root);
    return failed == 0;
}
