/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile_dumps_command.c - kvterrace profile attention: what every variant does to attention, from
 * KV dumps with queries; and profile dumps, which makes such dumps of a model.
 *
 * The main thread waits; the measurement has threads of its own. Interrupting (SIGINT, SIGTERM)
 * stops after the present dump; what was measured stays and the same command goes on from there.
 */
#include "profile_measure.h"
#include "profile_reports.h"

#include <stdlib.h>
#include <string.h>

enum { DUMPS_MAX = 4096, DUMPS_TEXTS_MAX = 32, DUMPS_VARIANTS_MAX = 128 };

static const command_option attention_rows[] = {
    OPERANDS(measure_arguments, dumps, "DUMP", 1, DUMPS_MAX, 0),
    MEASURE_TEXT(name, "name", "NAME",
                 "What the profile calls the model that the KV is of (model)"),
    MEASURE_CLASS_ROW,
    MEASURE_VARIANTS(""),
    MEASURE_QUERIES,
    MEASURE_THREADS,
    DATABASE_OPTION,
    QUICK_OPTION(measure_arguments, quick, "5 variants"),
    {0},
};

static const command_option dumps_rows[] = {
    MEASURE_MODEL,
    MEASURE_TOKENIZER,
    MEASURE_TEXTS("FILE", DUMPS_TEXTS_MAX),
    TEXT_OPTION(measure_arguments, output, "output", 'o', "DIR",
                "Where the dumps go; made when it is not there"),
    MEASURE_CONTEXTS(9999, "Dumps to make (24)"),
    MEASURE_LENGTHS,
    MEASURE_QUERIES,
    {0},
};

/* ---- making dumps ---- */

static int dumps_check(void *context)
{
    const measure_arguments *arguments = context;
    if (arguments->output == NULL) return command_misuse("--output is missing");
    return measure_need_model(context);
}

static int dumps_run(void *context)
{
    measure_arguments *arguments = context;
    char message[COMMAND_MESSAGE_BYTES] = "";
    uint32_t count = 0;
    command_choose_blas();
    const quality_dumps_make_options make = {
        .model = arguments->model,
        .tokenizer = arguments->tokenizer,
        .texts = arguments->texts.items,
        .text_count = (uint32_t)arguments->texts.count,
        .folder = arguments->output,
        .contexts = measure_or(arguments->contexts, 24),
        .context_tokens = measure_or(arguments->context_tokens, MEASURE_CONTEXT_TOKENS),
        .continuation_tokens =
            measure_or(arguments->continuation_tokens, MEASURE_CONTINUATION_TOKENS),
        .queries = measure_or(arguments->queries, QUALITY_DUMPS_QUERIES),
        .progress = progress_ask,
        .progress_context = &arguments->bar};
    measure_begin(arguments);
    kvt_status status = quality_dumps_make(&make, &count, message, sizeof message);
    progress_end(&arguments->bar);
    if (status != KVT_OK) return command_fail_content(status, message);
    if (arguments->common.json)
        return command_print_document(json_pack("{s:s, s:s, s:I, s:I}", "schema",
                                                "kvterrace-profile-dump-files-1", "folder",
                                                make.folder, "dumps", (json_int_t)count,
                                                "context_tokens", (json_int_t)make.context_tokens));
    command_note(&arguments->common, "%u dumps of %u tokens in %s", (unsigned)count,
                 (unsigned)make.context_tokens, make.folder);
    return EXIT_FINE;
}

const command_spec profile_dumps_spec = {
    .name = "dumps",
    .summary = "make KV dumps with queries of a model and texts",
    .about = "Runs a model over contexts cut from texts and writes one dump of each: its KV and "
             "the queries of the tokens that follow (safetensors: k.N, v.N, q.N).",
    .synopsis = "-o DIR --model FILE --text FILE...",
    .example = "  kvterrace profile dumps -o dumps --model reference_model/model \\\n"
               "    --text reference_model/texts/recall-768.jsonl",
    .options = dumps_rows,
    .argument_bytes = sizeof(measure_arguments),
    .check = dumps_check,
    .run = dumps_run,
};

/* ---- measuring on them ---- */

static int attention_check(void *context)
{
    const measure_arguments *arguments = context;
    const size_t length = arguments->class_name != NULL ? strlen(arguments->class_name) : 1;
    if (length >= 1 && length <= 63) return EXIT_FINE;
    return command_misuse("--class: a name of 1 to 63 bytes");
}

static int attention_measure(measure_arguments *arguments, const quality_dumps_options *options,
                             kvt_profile *profile)
{
    char message[COMMAND_MESSAGE_BYTES] = "";
    quality_dumps_report report;
    int code = EXIT_FINE;
    measure_begin(arguments);
    kvt_status status = quality_dumps_run(profile, options, &report, message, sizeof message);
    progress_end(&arguments->bar);
    if (status != KVT_OK) {
        code = measure_fail(status, message);
    } else if (!arguments->common.json) {
        profile_dumps_print(stdout, &report, options);
    } else if (!profile_dumps_print_json(stdout, &report, options)) {
        code = command_fail(KVT_E_MEMORY, "");
    }
    quality_dumps_report_free(&report);
    return code;
}

static int attention_run(void *context)
{
    measure_arguments *arguments = context;
    char message[COMMAND_MESSAGE_BYTES] = "";
    quality_variant variants[DUMPS_VARIANTS_MAX];
    command_profile profile = {0};
    command_choose_blas();
    quality_dumps_options options = {
        .paths = arguments->dumps.items,
        .count = (uint32_t)arguments->dumps.count,
        .name = arguments->name != NULL ? arguments->name : "model",
        .class_name = arguments->class_name != NULL ? arguments->class_name : MEASURE_CLASS,
        .variants = variants,
        .queries = arguments->queries,
        .threads = arguments->threads,
        .command_line = arguments->common.line,
        .progress = progress_ask,
        .progress_context = &arguments->bar};
    kvt_status status =
        command_parse_variants(arguments->variants, arguments->quick, variants, DUMPS_VARIANTS_MAX,
                               &options.variant_count, message, sizeof message);
    if (status == KVT_OK)
        status = command_profile_begin(arguments->common.config, &profile, message, sizeof message);
    int code = status == KVT_OK ? attention_measure(arguments, &options, profile.profile)
                                : command_fail_input(status, message);
    code = command_profile_finish(&profile, code);
    return code;
}

const command_spec profile_attention_spec = {
    .name = "attention",
    .summary = "measure what variants do to attention, on KV dumps",
    .about = "Measures what every variant does to attention, from KV dumps with queries "
             "(safetensors: k.N, v.N, q.N), and what that means for answers as far as the profile "
             "has losses of the same model. A run that was stopped goes on when it is given again.",
    .example = "  kvterrace profile attention dumps/*.safetensors --quick",
    .options = attention_rows,
    .argument_bytes = sizeof(measure_arguments),
    .check = attention_check,
    .run = attention_run,
    .settings = SETTINGS_PROFILE,
    .lists = LISTS_VARIANTS,
};
