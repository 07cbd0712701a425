/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile_calibrate_command.c - kvterrace profile calibrate: the choices of a model's ladder,
 * measured, into a profile database.
 *
 * The main thread waits; the measurement has threads of its own. Interrupting (SIGINT, SIGTERM)
 * stops after the present row; what was measured stays and the same command goes on from there.
 */
#include "command.h"
#include "data_files.h"
#include "estimator/quality/calibrate_profile.h"
#include "profile_calibrate.h"
#include "profile_document.h"
#include "profile_open.h"
#include "variant_list.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum {
    CALIBRATE_KEY_MODEL = 0x100,
    CALIBRATE_KEY_NAME,
    CALIBRATE_KEY_TOKENIZER,
    CALIBRATE_KEY_TEXT,
    CALIBRATE_KEY_CLASS,
    CALIBRATE_KEY_CONTEXT,
    CALIBRATE_KEY_CONTINUATION,
    CALIBRATE_KEY_LOSS,
    CALIBRATE_KEY_KV,
    CALIBRATE_KEY_QUERIES,

    CALIBRATE_PATHS_MAX = 4096,
    CALIBRATE_ANSWER_TOKENS = 32
};

#define CALIBRATE_STANDARD_CLASS "text"

typedef struct calibrate_arguments {
    command_common common;
    bool quick;
    const char *texts[CALIBRATE_PATHS_MAX];
    const char *dumps[CALIBRATE_PATHS_MAX];
    char class_name[64]; /* empty: none was given */
    char command_line[1024];
    calibrate_options options;
} calibrate_arguments;

static const struct argp_option calibrate_table[] = {
    {"model", CALIBRATE_KEY_MODEL, "FILE", 0, "The model: a folder, or a file of llama2.c", 0},
    {"tokenizer", CALIBRATE_KEY_TOKENIZER, "FILE", 0, "Its vocabulary (tokenizer.bin beside it)",
     0},
    {"text", CALIBRATE_KEY_TEXT, "[CLASS=]FILE", 0, "JSONL with texts; may be repeated", 0},
    {"kv", CALIBRATE_KEY_KV, "FILE", 0,
     "A KV dump with queries instead of a model; more may follow without the option", 0},
    {"name", CALIBRATE_KEY_NAME, "NAME", 0,
     "What the profile calls the model (from its path; 'model')", 0},
    {"class", CALIBRATE_KEY_CLASS, "NAME", 0,
     "The class of the texts (" CALIBRATE_STANDARD_CLASS ")", 0},
    {"loss", CALIBRATE_KEY_LOSS, "METRIC", 0,
     "What a loss is: top1, rouge_l, f1, kl or answers (top1)", 0},
    {"contexts", 'n', "N", 0, "Entries (40)", 0},
    {"context-tokens", CALIBRATE_KEY_CONTEXT, "N", 0, "Tokens of a context (768)", 0},
    {"continuation-tokens", CALIBRATE_KEY_CONTINUATION, "N", 0, "Tokens after it (200)", 0},
    {"queries", CALIBRATE_KEY_QUERIES, "N", 0, "Queries of a dump's layers and heads (8)", 0},
    {"threads", 't', "N", 0, "Threads (default: one per processor)", 0},
    PROFILE_DATABASE_OPTION,
    {"quick", 'Q', NULL, 0, "12 entries", 0},
    {0},
};

/* ---- the command line ---- */

static quality_metric calibrate_metric(struct argp_state *state, const char *argument)
{
    unsigned metric = 0;
    while (metric < QUALITY_METRICS && strcmp(quality_metric_name(metric), argument) != 0)
        metric++;
    if (metric == QUALITY_METRICS) argp_error(state, "--loss: unknown metric '%s'", argument);
    return (quality_metric)metric;
}

static void calibrate_add(struct argp_state *state, const char **paths, uint32_t *count,
                          const char *path)
{
    if (*count == CALIBRATE_PATHS_MAX) argp_error(state, "too many files");
    paths[(*count)++] = path;
}

/* A calibration is of one class, however often it is named. */
static void calibrate_set_class(struct argp_state *state, calibrate_arguments *arguments,
                                const char *name, size_t length)
{
    char *given = arguments->class_name;
    if (length == 0 || length >= sizeof arguments->class_name) {
        argp_error(state, "%.*s: a class has 1 to 63 bytes", (int)(length > 80 ? 80 : length),
                   name);
    } else if (given[0] != '\0' && (strlen(given) != length || memcmp(given, name, length) != 0)) {
        argp_error(state, "a calibration is of one class: %s and %.*s", given, (int)length, name);
    } else {
        memcpy(given, name, length);
        arguments->options.class_name = given;
    }
}

/* FILE, or CLASS=FILE as in profile quality. */
static void calibrate_add_text(struct argp_state *state, calibrate_arguments *arguments,
                               const char *text)
{
    const char *mark = strchr(text, '=');
    if (mark != NULL) calibrate_set_class(state, arguments, text, (size_t)(mark - text));
    calibrate_add(state, arguments->texts, &arguments->options.text_count,
                  command_data_path(&arguments->common, mark != NULL ? mark + 1 : text));
}

static void calibrate_check_words(struct argp_state *state, const calibrate_options *options)
{
    if (options->model == NULL && options->dump_count == 0)
        argp_error(state, "--model or --kv is missing");
    if (options->model != NULL && options->dump_count > 0)
        argp_error(state, "--model and --kv do not go together");
    if (options->model != NULL && options->text_count == 0) argp_error(state, "--text is missing");
    if (options->model == NULL && options->text_count > 0)
        argp_error(state, "--text goes with --model");
}

static error_t calibrate_parse(int key, char *argument, struct argp_state *state)
{
    calibrate_arguments *arguments = state->input;
    calibrate_options *options = &arguments->options;
    switch (key) {
    case ARGP_KEY_INIT: state->child_inputs[0] = &arguments->common; return 0;
    case CALIBRATE_KEY_MODEL:
        options->model = command_data_path(&arguments->common, argument);
        return 0;
    case CALIBRATE_KEY_NAME: options->name = argument; return 0;
    case CALIBRATE_KEY_TOKENIZER: options->tokenizer = argument; return 0;
    case CALIBRATE_KEY_CLASS:
        calibrate_set_class(state, arguments, argument, strlen(argument));
        return 0;
    case CALIBRATE_KEY_LOSS: options->metric = calibrate_metric(state, argument); return 0;
    case CALIBRATE_KEY_TEXT: calibrate_add_text(state, arguments, argument); return 0;
    case CALIBRATE_KEY_KV:
    case ARGP_KEY_ARG:
        calibrate_add(state, arguments->dumps, &options->dump_count, argument);
        return 0;
    case CALIBRATE_KEY_CONTEXT:
        options->context_tokens = command_option_count(state, "--context-tokens", argument, 65536);
        return 0;
    case CALIBRATE_KEY_CONTINUATION:
        options->continuation_tokens =
            command_option_count(state, "--continuation-tokens", argument, 65536);
        return 0;
    case CALIBRATE_KEY_QUERIES:
        options->queries = command_option_count(state, "--queries", argument, 65536);
        return 0;
    case 'n':
        options->contexts = command_option_count(state, "--contexts", argument, 100000);
        return 0;
    case 't':
        options->threads = command_option_count(state, "--threads", argument, QUALITY_THREADS_MAX);
        return 0;
    case 'd': command_add_setting(&arguments->common, "store.profile", argument); return 0;
    case 'Q': arguments->quick = true; return 0;
    case ARGP_KEY_END: calibrate_check_words(state, options); return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
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

static bool calibrate_print_json(FILE *out, const calibrate_report *report,
                                 const calibrate_options *options)
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
    failed |= root == NULL;
    if (failed == 0) failed = json_dumpf(root, out, JSON_INDENT(1) | JSON_REAL_PRECISION(9));
    if (failed == 0) fputc('\n', out);
    json_decref(root);
    return failed == 0;
}

/* ---- the calibration ---- */

static bool calibrate_progress(void *context, double done, const char *what)
{
    progress_update(context, done, what);
    return !command_interrupted();
}

static void calibrate_prepare(calibrate_arguments *arguments)
{
    calibrate_options *options = &arguments->options;
    const bool answers = options->metric == QUALITY_ROUGE_L || options->metric == QUALITY_F1;
    options->texts = arguments->texts;
    options->dumps = arguments->dumps;
    options->command_line = arguments->command_line;
    if (options->contexts == 0) options->contexts = arguments->quick ? 12 : 40;
    if (options->context_tokens == 0) options->context_tokens = 768;
    if (options->continuation_tokens == 0) options->continuation_tokens = 200;
    if (options->name == NULL && options->model == NULL) options->name = "model";
    options->answer_tokens = answers ? (uint32_t)CALIBRATE_ANSWER_TOKENS : 0;
}

static int calibrate_measure_all(calibrate_arguments *arguments, kvt_profile *profile)
{
    calibrate_options *options = &arguments->options;
    char message[COMMAND_MESSAGE_BYTES] = "";
    command_progress bar;
    command_catch_interrupts();
    calibrate_report *report = malloc(sizeof *report);
    if (report == NULL) return command_fail(KVT_E_MEMORY, "");
    options->progress = calibrate_progress;
    options->progress_context = &bar;
    progress_start(&bar, &arguments->common);
    kvt_status status = calibrate_profile_run(profile, options, report, message, sizeof message);
    progress_end(&bar);
    int code = EXIT_FINE;
    if (status == KVT_E_CANCELLED)
        (void)snprintf(message, sizeof message,
                       "stopped; the same command goes on with what was measured");
    if (status != KVT_OK) {
        code = command_fail_content(status, message);
    } else if (!arguments->common.json) {
        calibrate_print(stdout, report, options);
    } else if (!calibrate_print_json(stdout, report, options)) {
        code = command_fail(KVT_E_MEMORY, "");
    }
    free(report);
    return code;
}

static int calibrate_run_command(calibrate_arguments *arguments)
{
    static const char *const no_sections[] = {NULL};
    char message[COMMAND_MESSAGE_BYTES] = "";
    kvt_profile *profile = NULL;
    calibrate_prepare(arguments);
    kvt_status status = command_profile_open(arguments->common.config, KVT_PROFILE_WRITE, &profile,
                                             message, sizeof message);
    if (status != KVT_OK) return command_fail_input(status, message);
    int code = command_report_unused(&arguments->common, no_sections);
    if (code == EXIT_FINE) code = calibrate_measure_all(arguments, profile);
    kvt_profile_close(profile);
    return code;
}

int command_profile_calibrate(int argc, char **argv)
{
    const struct argp_child children[] = COMMAND_CHILDREN;
    const struct argp argp = {
        .options = calibrate_table,
        .parser = calibrate_parse,
        .args_doc = "--model FILE --text FILE...\n--kv FILE...",
        .doc =
            "Measures the choices of a model's ladder of forms (K:V bits, axes, steps, rotation, "
            "drop score) pair by pair on the same entries, and stores the ladder with the "
            "evidence for each rung; a rung that a cheaper one beats is refused. The store takes "
            "it with store.ladder = calibrated, the simulation with replay.ladder = "
            "profile:NAME:CLASS. A calibration that was stopped goes on when it is given again.",
        .children = children};
    calibrate_arguments *arguments = calloc(1, sizeof *arguments);
    if (arguments == NULL) return command_fail(KVT_E_MEMORY, "");
    arguments->options.class_name = CALIBRATE_STANDARD_CLASS;
    command_keep_line(argc, argv, arguments->command_line, sizeof arguments->command_line);
    int code = command_load(&argp, argc, argv, arguments);
    if (code == EXIT_FINE) {
        command_choose_blas();
        code = calibrate_run_command(arguments);
        command_unload(&arguments->common);
    }
    free(arguments);
    return command_finish(code);
}
