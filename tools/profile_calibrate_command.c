/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile_calibrate_command.c - kvterrace profile calibrate: the choices of a model's ladder,
 * measured, into a profile database.
 *
 * The main thread waits; the measurement has threads of its own. Interrupting (SIGINT, SIGTERM)
 * stops after the present row; what was measured stays and the same command goes on from there.
 */
#include "estimator/quality/calibrate.h"
#include "profile_document.h"
#include "profile_measure.h"

#include <stdlib.h>
#include <string.h>

enum { CALIBRATE_PATHS_MAX = 4096, CALIBRATE_ANSWER_TOKENS = 32 };

static const command_option calibrate_table[] = {
    MEASURE_MODEL,
    MEASURE_TOKENIZER,
    MEASURE_TEXTS("[CLASS=]FILE", CALIBRATE_PATHS_MAX),
    LIST_OPTION(measure_arguments, dumps, "kv", "FILE", CALIBRATE_PATHS_MAX, 0,
                "A KV dump with queries instead of a model; more may follow without the option"),
    OPERANDS(measure_arguments, dumps, "FILE", 0, CALIBRATE_PATHS_MAX, 0),
    MEASURE_TEXT(name, "name", "NAME", "What the profile calls the model (from its path; 'model')"),
    MEASURE_CLASS_ROW,
    MEASURE_METRIC,
    MEASURE_CONTEXTS(100000, "Entries (40)"),
    MEASURE_LENGTHS,
    MEASURE_QUERIES,
    MEASURE_THREADS,
    DATABASE_OPTION,
    QUICK_OPTION(measure_arguments, quick, "12 entries"),
    {0},
};

/* ---- the command line ---- */

/* A calibration is of one class, however often it is named: by --class, or before a text. Cuts the
 * class off each text. EXIT_FINE, or a code after a message. */
static int calibrate_find_class(measure_arguments *arguments, char class_name[64])
{
    class_name[0] = '\0';
    for (size_t i = 0; i <= arguments->texts.count; i++) {
        const bool last = i == arguments->texts.count;
        const char *text = last ? arguments->class_name : arguments->texts.items[i];
        const char *mark = last || text == NULL ? NULL : strchr(text, '=');
        const size_t length = last && text != NULL ? strlen(text)
                              : mark != NULL       ? (size_t)(mark - text)
                                                   : 0;
        if (mark != NULL) arguments->texts.items[i] = mark + 1;
        if (mark == NULL && (!last || text == NULL)) continue;
        if (length == 0 || length >= 64)
            return command_misuse("%.*s: a class has 1 to 63 bytes",
                                  (int)(length > 80 ? 80 : length), text);
        if (class_name[0] != '\0' &&
            (strlen(class_name) != length || memcmp(class_name, text, length) != 0))
            return command_misuse("a calibration is of one class: %s and %.*s", class_name,
                                  (int)length, text);
        (void)snprintf(class_name, 64, "%.*s", (int)length, text);
    }
    if (class_name[0] == '\0') (void)snprintf(class_name, 64, "%s", MEASURE_CLASS);
    return EXIT_FINE;
}

static int calibrate_check(void *context)
{
    const measure_arguments *arguments = context;
    const bool named = arguments->model != NULL, dumps = arguments->dumps.count > 0;
    if (!named && !dumps) return command_misuse("--model or --kv is missing");
    if (named && dumps) return command_misuse("--model and --kv do not go together");
    if (named && arguments->texts.count == 0) return command_misuse("--text is missing");
    if (!named && arguments->texts.count > 0) return command_misuse("--text goes with --model");
    return EXIT_FINE;
}

/* ---- the report ---- */

static void calibrate_print(FILE *out, const calibrate_report *report,
                            const calibrate_options *options)
{
    const calibrate_ladder *ladder = &report->ladder;
    fprintf(out, "%s, class %s: %u layers x %u KV heads x %u, %u entries, %u variants, %.0f s",
            report->model.name, options->class_name, (unsigned)report->model.layers,
            (unsigned)report->model.kv_heads, (unsigned)report->model.head_dim,
            (unsigned)report->entries, (unsigned)report->measured, report->seconds);
    if (report->resumed > 0)
        fprintf(out, ", %llu rows were there", (unsigned long long)report->resumed);
    fputs("\n\n", out);
    for (uint32_t i = 0; i < ladder->choice_count; i++)
        fprintf(out, "%-20s %s\n    %s\n", ladder->choices[i].question, ladder->choices[i].chosen,
                ladder->choices[i].evidence);
    fprintf(out, "\n%-44s %6s %8s %8s  %s\n", "rung", "bits", "loss", "upper", "evidence");
    for (uint32_t i = 0; i < ladder->rung_count; i++) {
        const calibrate_rung *rung = &ladder->rungs[i];
        fprintf(out, "%s %-42s %6.2f %8.4f %8.4f  %s\n", rung->accepted ? " " : "x",
                rung->variant.name, rung->bits_per_element, rung->loss, rung->loss_upper,
                rung->evidence);
    }
}

static json_t *calibrate_document(const calibrate_report *report, const calibrate_options *options)
{
    const calibrate_ladder *ladder = &report->ladder;
    json_t *rungs = json_array(), *choices = json_array();
    int failed = rungs == NULL || choices == NULL;
    for (uint32_t i = 0; failed == 0 && i < ladder->rung_count; i++) {
        const calibrate_rung *rung = &ladder->rungs[i];
        failed = json_array_append_new(
            rungs, json_pack("{s:s, s:f, s:f, s:f, s:b, s:s}", "variant", rung->variant.name,
                             "bits_per_element", rung->bits_per_element, "loss", rung->loss,
                             "loss_upper", rung->loss_upper, "accepted", (int)rung->accepted,
                             "evidence", rung->evidence));
    }
    for (uint32_t i = 0; failed == 0 && i < ladder->choice_count; i++) {
        const calibrate_choice *choice = &ladder->choices[i];
        failed = json_array_append_new(
            choices, json_pack("{s:s, s:s, s:s}", "question", choice->question, "chosen",
                               choice->chosen, "evidence", choice->evidence));
    }
    json_t *root = json_pack(
        "{s:s, s:o, s:s, s:o, s:s, s:I, s:I, s:I, s:f, s:o, s:o}", "schema",
        "kvterrace-profile-calibrate-1", "model", view_string(report->model.name), "digest",
        report->model.digest, "class", view_string(options->class_name), "metric",
        options->model != NULL ? quality_metric_name(options->metric) : "attention", "entries",
        (json_int_t)report->entries, "variants", (json_int_t)report->measured, "resumed_rows",
        (json_int_t)report->resumed, "seconds", report->seconds, "choices", choices, "rungs",
        rungs);
    if (failed == 0) return root;
    json_decref(root);
    return NULL;
}

/* ---- the calibration ---- */

static void calibrate_prepare(measure_arguments *arguments, const char *class_name,
                              calibrate_options *options)
{
    const quality_metric metric = (quality_metric)arguments->metric;
    const bool answers = metric == QUALITY_ROUGE_L || metric == QUALITY_F1;
    *options = (calibrate_options){
        .name = arguments->name,
        .class_name = class_name,
        .model = arguments->model,
        .tokenizer = arguments->tokenizer,
        .texts = arguments->texts.items,
        .text_count = (uint32_t)arguments->texts.count,
        .contexts = measure_or(arguments->contexts, arguments->quick ? 12 : 40),
        .context_tokens = measure_or(arguments->context_tokens, MEASURE_CONTEXT_TOKENS),
        .continuation_tokens =
            measure_or(arguments->continuation_tokens, MEASURE_CONTINUATION_TOKENS),
        .answer_tokens = answers ? (uint32_t)CALIBRATE_ANSWER_TOKENS : 0,
        .metric = metric,
        .dumps = arguments->dumps.items,
        .dump_count = (uint32_t)arguments->dumps.count,
        .queries = arguments->queries,
        .threads = arguments->threads,
        .command_line = arguments->common.line,
        .progress = progress_ask,
        .progress_context = &arguments->bar};
    if (options->name == NULL && options->model == NULL) options->name = "model";
}

static int calibrate_measure_all(measure_arguments *arguments, const calibrate_options *options,
                                 kvt_profile *profile)
{
    char message[COMMAND_MESSAGE_BYTES] = "";
    calibrate_report *report = malloc(sizeof *report);
    int code = EXIT_FINE;
    if (report == NULL) return command_fail(KVT_E_MEMORY, "");
    measure_begin(arguments);
    kvt_status status = calibrate_profile_run(profile, options, report, message, sizeof message);
    progress_end(&arguments->bar);
    if (status != KVT_OK)
        code = measure_fail(status, message);
    else if (arguments->common.json)
        code = command_print_document(calibrate_document(report, options));
    else
        calibrate_print(stdout, report, options);
    free(report);
    return code;
}

static int calibrate_start(void *context)
{
    measure_arguments *arguments = context;
    char message[COMMAND_MESSAGE_BYTES] = "", class_name[64];
    calibrate_options options;
    command_profile profile = {0};
    int code = calibrate_find_class(arguments, class_name);
    if (code != EXIT_FINE) return code;
    command_choose_blas();
    calibrate_prepare(arguments, class_name, &options);
    kvt_status status =
        command_profile_begin(arguments->common.config, &profile, message, sizeof message);
    code = status == KVT_OK ? calibrate_measure_all(arguments, &options, profile.profile)
                            : command_fail_input(status, message);
    code = command_profile_finish(&profile, code);
    return code;
}

const command_spec profile_calibrate_spec = {
    .name = "calibrate",
    .summary = "choose and measure a model's ladder of variants",
    .about = "Measures the choices of a model's ladder of variants (K:V bits, axes, steps, "
             "rotation, drop score) pair by pair on the same entries, and stores the ladder with "
             "the evidence for each variant; one that a cheaper variant beats is refused. The "
             "store takes it with store.ladder = calibrated, the simulation with replay.ladder = "
             "profile:NAME:CLASS. A calibration that was stopped goes on when it is given again.",
    .synopsis = "--model FILE --text FILE...\n--kv FILE...",
    .example = "  kvterrace profile calibrate --model reference_model/model \\\n"
               "    --text chat=reference_model/texts/recall-768.jsonl --quick",
    .options = calibrate_table,
    .argument_bytes = sizeof(measure_arguments),
    .check = calibrate_check,
    .run = calibrate_start,
    .settings = SETTINGS_PROFILE,
};
