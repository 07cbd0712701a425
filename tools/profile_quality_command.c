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
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the report ---- */

#define CURVE(member)  DOCUMENT_FIELD(quality_curve, #member, member)
#define SPREAD(member) DOCUMENT_FIELD(quality_spread, #member, member)

static json_t *pack_curve(const char *name, const quality_curve *curve, bool *sound)
{
    json_t *row = json_pack("{s:s}", "variant", name);
    DOCUMENT_PUT_FIELDS(row, curve, sound, CURVE(entries), CURVE(bits_per_element),
                        CURVE(physical_bits_per_element), CURVE(loss_mean), CURVE(loss_low),
                        CURVE(loss_high), CURVE(loss_p90), CURVE(loss_cv), CURVE(kl), CURVE(kl_low),
                        CURVE(kl_high), CURVE(kl_p90), CURVE(top1), CURVE(nll_delta),
                        CURVE(rouge_l), CURVE(f1), CURVE(answers), CURVE(attention_error),
                        CURVE(attention_error_high), CURVE(retained_mass), CURVE(spearman_entries),
                        CURVE(repeatability));
    document_put(row, "perplexity_ratio", document_number(exp(curve->nll_delta)), sound);
    return row;
}

static void put_spread(json_t *object, const quality_set_report *set, bool *sound)
{
    document_put(object, "entries", json_integer(set->entries), sound);
    document_put(object, "understood", json_boolean(quality_understands(&set->likelihood)), sound);
    document_put(object, "unigram_nats", document_number(set->likelihood.unigram_nats), sound);
    DOCUMENT_PUT_FIELDS(object, &set->spread, sound, SPREAD(nll_nats), SPREAD(answers),
                        SPREAD(spearman_variants), SPREAD(spearman_entries), SPREAD(sensitivity_sd),
                        SPREAD(repeatability),
                        DOCUMENT_FIELD(quality_spread, "sensitivity_variants", variants));
}

static json_t *pack_set(const quality_set_report *set, const char *model_name,
                        const calibrate_options *options, bool *sound)
{
    json_t *rows = json_array(), *effects = json_array();
    json_t *root =
        json_pack("{s:o, s:o, s:I, s:I}", "model", view_string(model_name), "class",
                  view_string(set->class_name), "context_tokens", (json_int_t)set->context_tokens,
                  "continuation_tokens", (json_int_t)set->continuation_tokens);
    put_spread(root, set, sound);
    for (uint32_t i = 0; i < options->wanted->count; i++)
        if (set->curves[i].entries > 0)
            document_add(
                rows, pack_curve(options->wanted->variants[i].name, &set->curves[i], sound), sound);
    for (uint32_t i = 0; i < set->entries; i++)
        document_add(effects, document_number(set->sensitivity[i]), sound);
    document_put(root, "variants", rows, sound);
    document_put(root, "sensitivity", effects, sound);
    return root;
}

#define VERDICT_LIMIT 0.01 /* the usual limit on loss */

/* The variant with the fewest bits below the usual limit on loss, as a sentence. */
static json_t *verdict_of_set(const quality_set_report *set, const calibrate_wanted *wanted)
{
    char text[512];
    const quality_curve *best = NULL;
    const char *name = NULL;
    for (uint32_t i = 0; i < wanted->count; i++) {
        const quality_curve *curve = &set->curves[i];
        if (curve->entries == 0 || !(curve->loss_high <= VERDICT_LIMIT)) continue;
        if (best != NULL && best->bits_per_element <= curve->bits_per_element) continue;
        best = curve;
        name = wanted->variants[i].name;
    }
    if (best == NULL)
        (void)snprintf(text, sizeof text, "%s: no variant has a loss below %g with confidence.",
                       set->class_name, VERDICT_LIMIT);
    else
        (void)snprintf(text, sizeof text,
                       "%s: of the variants with a loss below %g %s has the fewest bits, %.3g an "
                       "element: %.4f [%.4f, %.4f], from %u entries.",
                       set->class_name, VERDICT_LIMIT, name, best->bits_per_element,
                       best->loss_mean, best->loss_low, best->loss_high, best->entries);
    return view_string(text);
}

static json_t *verdict_of_sets(const quality_report *report, const calibrate_wanted *wanted)
{
    json_t *sentences = json_array();
    for (uint32_t i = 0; i < report->set_count; i++)
        (void)json_array_append_new(sentences, verdict_of_set(&report->sets[i], wanted));
    (void)json_array_append_new(
        sentences,
        json_string("profile calibrate makes a ladder of these losses, which a store takes."));
    return sentences;
}

/* NULL: memory is short. */
static json_t *quality_document(const quality_report *report, const calibrate_options *options)
{
    const profile_model *facts = &report->model;
    bool sound = true;
    json_t *sets = json_array();
    json_t *root = json_pack("{s:s, s:o, s:s, s:I, s:s, s:I, s:I, s:f}", "schema",
                             "kvterrace-profile-quality-1", "model", view_string(facts->name),
                             "digest", facts->digest, "parameters", (json_int_t)facts->parameters,
                             "metric", quality_metric_name(report->metric), "answer_tokens",
                             (json_int_t)options->answer_tokens, "resumed_rows",
                             (json_int_t)report->resumed, "seconds", report->seconds);
    /* What the whole says stands at the top as well: the pooled set, or the only one. */
    if (report->set_count > 0) put_spread(root, &report->sets[report->set_count - 1], &sound);
    for (uint32_t i = 0; i < report->set_count; i++)
        document_add(sets, pack_set(&report->sets[i], facts->name, options, &sound), &sound);
    document_put(root, "sets", sets, &sound);
    document_put(root, "verdict", verdict_of_sets(report, options->wanted), &sound);
    if (sound) return root;
    json_decref(root);
    return NULL;
}

static const document_table quality_tables[] = {
    {"", "model metric resumed_rows seconds"},
    {"sets", "class entries nats=nll_nats unigram_nats answers entries_differ=sensitivity_sd "
             "repeats=repeatability rho_variants=spearman_variants rho_entries=spearman_entries"},
    {"sets/variants",
     "variant bits=bits_per_element loss=loss_mean low=loss_low high=loss_high p90=loss_p90 "
     "cv=loss_cv kl top1 dNLL=nll_delta rougeL=rouge_l F1=f1 answers att=attention_error "
     "rho=spearman_entries rep=repeatability"},
    {0},
};

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
    if (report.set_count > 0 && (whole || (status == KVT_E_CANCELLED && !arguments->common.json)))
        code = command_print_tables(&arguments->common, quality_document(&report, &work->options),
                                    quality_tables);
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
