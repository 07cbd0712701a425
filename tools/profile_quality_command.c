/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile_quality_command.c - kvterrace profile quality: what every variant does to the answers of
 * a model, into a profile database.
 *
 * The main thread waits; the measurement has threads of its own. Interrupting (SIGINT, SIGTERM)
 * stops after the present row; what was measured stays and the same command goes on from there.
 */
#include "profile_measure.h"
#include "profile_reports.h"

#include <stdlib.h>
#include <string.h>

#define QUALITY_TEXTS_MAX 32

/* What the options of the measurement point into. */
typedef struct quality_work {
    char names[QUALITY_CLASSES_MAX][64];
    const char *paths[QUALITY_CLASSES_MAX][QUALITY_TEXTS_MAX];
    quality_class classes[QUALITY_CLASSES_MAX];
    quality_variant variants[QUALITY_VARIANTS_MAX];
    quality_profile_options options;
} quality_work;

static const command_option quality_rows[] = {
    MEASURE_MODEL,
    MEASURE_TEXT(name, "name", "NAME", "What the profile calls it (from the path)"),
    MEASURE_TOKENIZER,
    MEASURE_TEXTS("[CLASS=]FILE", QUALITY_TEXTS_MAX),
    MEASURE_CLASS_ROW,
    MEASURE_VARIANTS(""),
    MEASURE_METRIC,
    MEASURE_CONTEXTS(100000, "Entries of each class (100)"),
    MEASURE_LENGTHS,
    COUNT_OPTION(measure_arguments, answer_tokens, "answer-tokens", 0, 4096,
                 "Tokens of a greedy answer, 0 for none (32)"),
    MEASURE_THREADS,
    DATABASE_OPTION,
    QUICK_OPTION(measure_arguments, quick,
                 "8 entries of each class, 5 variants, answers of 16 tokens"),
    {0},
};

/* Puts a text to the others of its class. */
static kvt_status quality_add_class(quality_work *work, const char *standard, const char *text,
                                    char *message, size_t message_size)
{
    quality_profile_options *options = &work->options;
    const char *mark = strchr(text, '='), *path = mark != NULL ? mark + 1 : text;
    const char *name = mark != NULL ? text : standard;
    size_t length = mark != NULL ? (size_t)(mark - text) : strlen(name);
    uint32_t i = 0;
    while (i < options->class_count &&
           (strlen(work->names[i]) != length || memcmp(work->names[i], name, length) != 0)) {
        i++;
    }
    if (i == QUALITY_CLASSES_MAX || length == 0 || length >= sizeof work->names[0]) {
        (void)snprintf(message, message_size, "%.200s: at most %d classes, of 1 to 63 bytes", text,
                       (int)QUALITY_CLASSES_MAX);
        return KVT_E_ARGUMENT;
    }
    if (i == options->class_count) {
        (void)snprintf(work->names[i], sizeof work->names[i], "%.*s", (int)length, name);
        work->classes[options->class_count++] =
            (quality_class){.name = work->names[i], .texts = work->paths[i]};
    }
    work->paths[i][work->classes[i].text_count++] = path;
    return KVT_OK;
}

static kvt_status quality_prepare(const measure_arguments *arguments, quality_work *work,
                                  char *message, size_t message_size)
{
    quality_profile_options *options = &work->options;
    const char *standard = arguments->class_name != NULL ? arguments->class_name : MEASURE_CLASS;
    kvt_status status = KVT_OK;
    for (size_t i = 0; status == KVT_OK && i < arguments->texts.count; i++)
        status =
            quality_add_class(work, standard, arguments->texts.items[i], message, message_size);
    if (status == KVT_OK)
        status = command_parse_variants(arguments->variants, arguments->quick, work->variants,
                                        QUALITY_VARIANTS_MAX, &options->variant_count, message,
                                        message_size);
    options->name = arguments->name;
    options->model = arguments->model;
    options->tokenizer = arguments->tokenizer;
    options->metric = (quality_metric)arguments->metric;
    options->threads = arguments->threads;
    options->classes = work->classes;
    options->variants = work->variants;
    options->command_line = arguments->common.line;
    options->contexts = measure_or(arguments->contexts, arguments->quick ? 8 : 100);
    options->context_tokens = measure_or(arguments->context_tokens, MEASURE_CONTEXT_TOKENS);
    options->continuation_tokens =
        measure_or(arguments->continuation_tokens, MEASURE_CONTINUATION_TOKENS);
    options->answer_tokens = arguments->answer_tokens;
    if (options->answer_tokens == UINT32_MAX) options->answer_tokens = arguments->quick ? 16 : 32;
    return status;
}

static int quality_measure_all(measure_arguments *arguments, quality_profile_options *options,
                               kvt_profile *profile)
{
    char message[COMMAND_MESSAGE_BYTES] = "";
    quality_report report;
    int code = EXIT_FINE;
    measure_begin(arguments);
    options->progress = progress_ask;
    options->progress_context = &arguments->bar;
    kvt_status status = quality_profile_run(profile, options, &report, message, sizeof message);
    progress_end(&arguments->bar);
    if (status != KVT_OK) {
        code = measure_fail(status, message);
    } else if (!arguments->common.json) {
        profile_quality_print(stdout, &report, options);
    } else if (!profile_quality_print_json(stdout, &report, options)) {
        code = command_fail(KVT_E_MEMORY, "");
    }
    quality_report_free(&report);
    return code;
}

static int quality_run(void *context)
{
    measure_arguments *arguments = context;
    char message[COMMAND_MESSAGE_BYTES] = "";
    command_profile profile = {0};
    command_choose_blas();
    quality_work *work = calloc(1, sizeof *work);
    if (work == NULL) return command_fail(KVT_E_MEMORY, "");
    kvt_status status = quality_prepare(arguments, work, message, sizeof message);
    if (status == KVT_OK)
        status = command_profile_begin(arguments->common.config, &profile, message, sizeof message);
    int code = status == KVT_OK ? quality_measure_all(arguments, &work->options, profile.profile)
                                : command_fail_input(status, message);
    code = command_profile_finish(&profile, code);
    free(work);
    return code;
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
