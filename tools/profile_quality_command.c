/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile_quality_command.c - kvterrace profile quality: what every variant does to the answers of
 * a model, into a profile database.
 *
 * The main thread waits; the measurement has threads of its own. Interrupting (SIGINT, SIGTERM)
 * stops after the present row; what was measured stays and the same command goes on from there.
 */
#include "profile_document.h"
#include "profile_measure.h"

#include <jansson.h>

#include <math.h>
#include <stdlib.h>
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

static void print_set(FILE *out, const quality_set_report *set, const calibrate_options *options)
{
    const quality_spread *spread = &set->spread;
    fprintf(out, "\nclass %s: %u entries of %u documents", set->class_name, (unsigned)set->entries,
            (unsigned)set->documents);
    fprintf(out, ", the first of %u + %u tokens", (unsigned)set->context_tokens,
            (unsigned)set->continuation_tokens);
    fprintf(out, "; exact KV: %.4f nats per token", spread->nll_nats);
    if (isfinite(spread->answers))
        fprintf(out, ", %.1f %% of questions answered", 100.0 * spread->answers);
    if (isfinite(set->likelihood.unigram_nats))
        fprintf(out, "; a unigram model of the texts: %.4f", set->likelihood.unigram_nats);
    fprintf(out, "\n%-36s %6s %8s %8s %8s %8s %5s %9s %8s %6s %7s %6s %6s %6s %6s %5s %5s\n",
            "variant", "bits", "loss", "low", "high", "p90", "cv", "KL e-3", "+95%", "top1%",
            "dNLL", "rougeL", "F1", "answer", "att%", "rho", "rep");
    for (uint32_t i = 0; i < options->wanted->count; i++)
        if (set->curves[i].entries > 0)
            print_curve(out, options->wanted->variants[i].name, &set->curves[i]);
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

static void profile_quality_print(FILE *out, const quality_report *report,
                                  const calibrate_options *options)
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

static json_t *pack_curve(const char *name, const quality_curve *curve)
{
    const view_member members[] = {{"bits_per_element", curve->bits_per_element},
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
    if (view_put_numbers(row, members, sizeof members / sizeof members[0])) return row;
    json_decref(row);
    return NULL;
}

static int put_spread(json_t *object, const quality_set_report *set)
{
    const quality_spread *spread = &set->spread;
    const view_member members[] = {{"nll_nats", spread->nll_nats},
                                   {"unigram_nats", set->likelihood.unigram_nats},
                                   {"answers", spread->answers},
                                   {"spearman_variants", spread->spearman_variants},
                                   {"spearman_entries", spread->spearman_entries},
                                   {"sensitivity_sd", spread->sensitivity_sd},
                                   {"repeatability", spread->repeatability}};
    return json_object_set_new(object, "entries", json_integer(set->entries)) != 0 ||
           json_object_set_new(object, "understood",
                               json_boolean(quality_understands(&set->likelihood))) != 0 ||
           !view_put_numbers(object, members, sizeof members / sizeof members[0]) ||
           json_object_set_new(object, "sensitivity_variants", json_integer(spread->variants)) != 0;
}

static json_t *pack_set(const quality_set_report *set, const char *model_name,
                        const calibrate_options *options)
{
    json_t *rows = json_array(), *effects = json_array();
    json_t *root =
        json_pack("{s:o, s:o, s:I, s:I}", "model", view_string(model_name), "class",
                  view_string(set->class_name), "context_tokens", (json_int_t)set->context_tokens,
                  "continuation_tokens", (json_int_t)set->continuation_tokens);
    int failed = root == NULL || put_spread(root, set) != 0;
    for (uint32_t i = 0; i < options->wanted->count; i++)
        if (set->curves[i].entries > 0)
            failed |= json_array_append_new(
                rows, pack_curve(options->wanted->variants[i].name, &set->curves[i]));
    for (uint32_t i = 0; i < set->entries; i++)
        failed |= json_array_append_new(effects, view_real(set->sensitivity[i]));
    failed |= json_object_set_new(root, "variants", rows);
    failed |= json_object_set_new(root, "sensitivity", effects);
    if (failed == 0) return root;
    json_decref(root);
    return NULL;
}

static int profile_quality_print_json(const quality_report *report,
                                      const calibrate_options *options)
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
    if (failed == 0) return command_print_document(root);
    json_decref(root);
    return command_fail(KVT_E_MEMORY, "");
}

static const command_option quality_rows[] = {
    MEASURE_MODEL,
    MEASURE_TEXT(name, "name", "NAME", "What the profile calls it (from the path)"),
    MEASURE_TOKENIZER,
    MEASURE_TEXTS("[CLASS=]FILE", QUALITY_CLASSES_MAX *MEASURE_TEXTS_MAX),
    MEASURE_CLASS_ROW,
    MEASURE_VARIANTS(""),
    MEASURE_METRIC,
    MEASURE_USE,
    MEASURE_CONTEXTS(100000, "Entries of each class (100)"),
    MEASURE_LENGTHS,
    COUNT_OPTION(measure_arguments, answer_tokens, "answer-tokens", 0, 4096,
                 "Tokens of a greedy answer, 0 for none (32)"),
    MEASURE_THREADS,
    MEASURE_MINUTES(
        "Stop after so many and at least one variant of an entry; the same command goes on"),
    FLAG_OPTION(measure_arguments, finish, "finish", 0,
                "Measure nothing more: what is there counts as all"),
    DATABASE_OPTION,
    QUICK_OPTION(measure_arguments, quick,
                 "8 entries of each class, 5 variants, answers of 16 tokens"),
    {0},
};

static kvt_status quality_prepare(measure_arguments *arguments, measure_work *work, char *message,
                                  size_t message_size)
{
    calibrate_options *options = &work->options;
    options->wanted = &work->wanted;
    options->contexts = measure_or(arguments->contexts, arguments->quick ? 8 : 100);
    options->answer_tokens = arguments->answer_tokens;
    if (options->answer_tokens == UINT32_MAX) options->answer_tokens = arguments->quick ? 16 : 32;
    return command_parse_variants(arguments->variants, arguments->quick, work->variants,
                                  QUALITY_VARIANTS_MAX, &work->wanted.count, message, message_size);
}

static int quality_measure_all(measure_arguments *arguments, measure_work *work,
                               kvt_profile *profile)
{
    char message[COMMAND_MESSAGE_BYTES] = "";
    quality_report report;
    int code = EXIT_FINE;
    measure_begin(arguments);
    kvt_status status =
        quality_profile_run(profile, &work->options, &report, message, sizeof message);
    progress_end(&arguments->bar);
    /* Of a model that does not understand its texts the figures are what says so. */
    const bool whole = status == KVT_OK || status == KVT_E_MISMATCH;
    if (!arguments->common.json && (whole || status == KVT_E_CANCELLED) && report.set_count > 0)
        profile_quality_print(stdout, &report, &work->options);
    else if (whole && report.set_count > 0)
        code = profile_quality_print_json(&report, &work->options);
    if (status != KVT_OK) code = measure_fail(status, message);
    quality_report_free(&report);
    return code;
}

static int quality_run(void *context)
{
    return measure_into_profile(context, quality_prepare, quality_measure_all);
}

static const measure_arguments quality_standard = {.answer_tokens = UINT32_MAX};

const command_spec profile_quality_spec = {
    .name = "quality",
    .summary = "measure what variants do to a model's answers",
    .about = "Measures what every variant does to the answers of a model: its own KV of real texts "
             "goes through records, the model goes on from what comes back and is compared with "
             "going on from the exact KV. Texts are JSONL with a \"text\" in each line, and may "
             "say what is asked about them. With two classes or more they are judged together as "
             "well, as \"pooled\". A run that was stopped goes on when it is given again.",
    .synopsis = "--model FILE --text [CLASS=]FILE...",
    .example = "  kvterrace profile quality --model reference_model/model \\\n"
               "    --text recall=reference_model/texts/recall-768.jsonl --quick",
    .options = quality_rows,
    .argument_bytes = sizeof(measure_arguments),
    .standard = &quality_standard,
    .check = measure_need_model,
    .run = quality_run,
    .settings = SETTINGS_PROFILE,
    .lists = LISTS_VARIANTS,
};
