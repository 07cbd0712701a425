/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile_dumps_command.c - kvterrace profile attention: what every variant does to attention, from
 * KV dumps with queries; and profile dumps, which makes such dumps of a model.
 *
 * The main thread waits; the measurement has threads of its own. Interrupting (SIGINT, SIGTERM)
 * stops after the present row; what was measured stays and the same command goes on from there.
 */
#include "profile_document.h"
#include "profile_measure.h"

#include <jansson.h>

#include <stdlib.h>
#include <string.h>

/* ---- the report ---- */

#define CURVE(member) DOCUMENT_FIELD(quality_curve, #member, member)

static json_t *pack_curve(const quality_report *report, const calibrate_options *options,
                          uint32_t index, bool *sound)
{
    const quality_curve *curve = &report->sets[0].curves[index];
    json_t *row = json_pack("{s:s, s:b}", "variant", options->wanted->variants[index].name,
                            "mapped", (int)report->mapped[index]);
    DOCUMENT_PUT_FIELDS(row, curve, sound, CURVE(entries), CURVE(bits_per_element),
                        CURVE(physical_bits_per_element), CURVE(loss_mean), CURVE(loss_low),
                        CURVE(loss_high), CURVE(loss_p90), CURVE(loss_cv), CURVE(attention_error),
                        CURVE(attention_error_high), CURVE(retained_mass), CURVE(flip_rate));
    return row;
}

static json_t *pack_map(const quality_map *map, bool *sound)
{
    json_t *families = json_array();
    for (uint32_t f = 0; f < map->family_count; f++) {
        const quality_family *family = &map->families[f];
        json_t *steps = json_array();
        for (uint32_t i = 0; i < family->count; i++)
            document_add(steps,
                         json_pack("{s:f, s:f, s:f}", "attention_error", family->steps[i].x, "loss",
                                   family->steps[i].y, "loss_upper", family->steps[i].upper),
                         sound);
        document_add(families, json_pack("{s:s, s:o}", "family", family->name, "steps", steps),
                     sound);
    }
    return families;
}

/* NULL: memory is short. */
static json_t *attention_document(const quality_report *report, const calibrate_options *options)
{
    const quality_set_report *set = &report->sets[0];
    bool sound = true;
    json_t *rows = json_array();
    json_t *root =
        json_pack("{s:s, s:o, s:o, s:s, s:I, s:I, s:I, s:I, s:s, s:b, s:I, s:f}", "schema",
                  "kvterrace-profile-dumps-1", "model", view_string(report->model.name), "class",
                  view_string(set->class_name), "method", "attention", "entries",
                  (json_int_t)set->entries, "context_tokens", (json_int_t)set->context_tokens,
                  "queries", (json_int_t)report->queries, "pairs", (json_int_t)report->measured,
                  "metric", report->map.metric, "map_stored", (int)report->map.stored,
                  "resumed_rows", (json_int_t)report->resumed, "seconds", report->seconds);
    for (uint32_t i = 0; i < options->wanted->count; i++)
        if (set->curves[i].entries > 0)
            document_add(rows, pack_curve(report, options, i, &sound), &sound);
    document_put(root, "variants", rows, &sound);
    document_put(root, "map", pack_map(&report->map, &sound), &sound);
    if (sound) return root;
    json_decref(root);
    return NULL;
}

static const document_table attention_tables[] = {
    {"", "model class entries context_tokens queries metric"},
    {"variants", "variant bits=bits_per_element att=attention_error high=attention_error_high "
                 "mass=retained_mass flips=flip_rate fitted=mapped loss=loss_mean upper=loss_high"},
    {0},
};

enum { DUMPS_MAX = 4096, DUMPS_TEXTS_MAX = 32 };

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

static kvt_status attention_prepare(measure_arguments *arguments, measure_work *work, char *message,
                                    size_t message_size)
{
    calibrate_options *options = &work->options;
    work->classes.classes[0].name =
        arguments->class_name != NULL ? arguments->class_name : MEASURE_CLASS;
    options->class_count = 1;
    options->wanted = &work->wanted;
    options->dumps = arguments->dumps.items;
    options->dump_count = (uint32_t)arguments->dumps.count;
    return command_parse_variants(arguments->variants, arguments->quick, work->variants,
                                  QUALITY_VARIANTS_MAX, &work->wanted.count, message, message_size);
}

static int attention_measure(measure_arguments *arguments, measure_work *work, kvt_profile *profile)
{
    char message[COMMAND_MESSAGE_BYTES] = "";
    quality_report report;
    int code = EXIT_FINE;
    measure_begin(arguments);
    kvt_status status =
        quality_profile_run(profile, &work->options, &report, message, sizeof message);
    progress_end(&arguments->bar);
    if (status != KVT_OK)
        code = measure_fail(status, message);
    else
        code = command_print_tables(&arguments->common, attention_document(&report, &work->options),
                                    attention_tables);
    quality_report_free(&report);
    return code;
}

static int attention_run(void *context)
{
    return measure_into_profile(context, attention_prepare, attention_measure);
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
