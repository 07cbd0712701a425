/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile_quality_command.c - kvterrace profile quality: what every variant does to the answers of
 * a model, into a profile database.
 *
 * The main thread waits; the measurement has threads of its own. Interrupting (SIGINT, SIGTERM)
 * stops after the present row; what was measured stays and the same command goes on from there.
 */
#include "command.h"
#include "data_files.h"
#include "profile_dumps.h"
#include "quality_command.h"
#include "variant_list.h"

#include <stdlib.h>
#include <string.h>

enum {
    QUALITY_KEY_MODEL = 0x100,
    QUALITY_KEY_NAME,
    QUALITY_KEY_TOKENIZER,
    QUALITY_KEY_TEXT,
    QUALITY_KEY_CLASS,
    QUALITY_KEY_CONTEXT,
    QUALITY_KEY_CONTINUATION,
    QUALITY_KEY_ANSWER,
    QUALITY_KEY_LOSS,

    QUALITY_TEXTS_MAX = 32
};

#define QUALITY_STANDARD_CLASS "text"
#define QUALITY_STANDARD_PATH  "kvterrace-profile.db"

typedef struct quality_arguments {
    command_common common;
    bool quick;
    const char *class_name; /* of texts that name none */
    const char *texts[QUALITY_TEXTS_MAX];
    uint32_t text_count;
    const char *variant_list;
    char command_line[1024];
    quality_profile_options options;
    /* What the options point into. */
    char names[QUALITY_CLASSES_MAX][64];
    const char *paths[QUALITY_CLASSES_MAX][QUALITY_TEXTS_MAX];
    quality_class classes[QUALITY_CLASSES_MAX];
    quality_variant variants[QUALITY_VARIANTS_MAX];
} quality_arguments;

static const struct argp_option quality_options[] = {
    {"model", QUALITY_KEY_MODEL, "FILE", 0, "The model: a folder, or a file of llama2.c", 0},
    {"name", QUALITY_KEY_NAME, "NAME", 0, "What the profile calls it (from the path)", 0},
    {"tokenizer", QUALITY_KEY_TOKENIZER, "FILE", 0, "Its vocabulary (tokenizer.bin beside it)", 0},
    {"text", QUALITY_KEY_TEXT, "[CLASS=]FILE", 0, "JSONL with texts; may be repeated", 0},
    {"class", QUALITY_KEY_CLASS, "NAME", 0,
     "The class of texts that name none (" QUALITY_STANDARD_CLASS ")", 0},
    {"variants", 'V', "LIST", 0, "Variants, with blanks or ';' between them", 0},
    {"loss", QUALITY_KEY_LOSS, "METRIC", 0,
     "What a loss is: top1, rouge_l, f1, kl or answers (top1)", 0},
    {"contexts", 'n', "N", 0, "Entries of each class (100)", 0},
    {"context-tokens", QUALITY_KEY_CONTEXT, "N", 0, "Tokens of a context (768)", 0},
    {"continuation-tokens", QUALITY_KEY_CONTINUATION, "N", 0, "Tokens after it (200)", 0},
    {"answer-tokens", QUALITY_KEY_ANSWER, "N", 0, "Tokens of a greedy answer, 0 for none (32)", 0},
    {"threads", 't', "N", 0, "Threads (default: one per processor)", 0},
    {"database", 'd', "FILE", 0, "Profile database (store.profile; " QUALITY_STANDARD_PATH ")", 0},
    {"quick", 'Q', NULL, 0, "8 entries of each class, 5 variants, answers of 16 tokens", 0},
    {0},
};

/* ---- the command line ---- */

static quality_metric quality_parse_metric(struct argp_state *state, const char *argument)
{
    unsigned metric = 0;
    while (metric < QUALITY_METRICS && strcmp(quality_metric_name(metric), argument) != 0)
        metric++;
    if (metric == QUALITY_METRICS) argp_error(state, "--loss: unknown metric '%s'", argument);
    return (quality_metric)metric;
}

static void quality_add_text(struct argp_state *state, quality_arguments *arguments,
                             const char *argument)
{
    if (arguments->text_count == QUALITY_TEXTS_MAX) argp_error(state, "--text: too many");
    arguments->texts[arguments->text_count++] = command_data_text(&arguments->common, argument);
}

static error_t quality_parse(int key, char *argument, struct argp_state *state)
{
    quality_arguments *arguments = state->input;
    quality_profile_options *options = &arguments->options;
    switch (key) {
    case ARGP_KEY_INIT: state->child_inputs[0] = &arguments->common; return 0;
    case QUALITY_KEY_MODEL:
        options->model = command_data_path(&arguments->common, argument);
        return 0;
    case QUALITY_KEY_NAME: options->name = argument; return 0;
    case QUALITY_KEY_TOKENIZER: options->tokenizer = argument; return 0;
    case QUALITY_KEY_TEXT: quality_add_text(state, arguments, argument); return 0;
    case QUALITY_KEY_CLASS: arguments->class_name = argument; return 0;
    case QUALITY_KEY_LOSS: options->metric = quality_parse_metric(state, argument); return 0;
    case QUALITY_KEY_CONTEXT:
        options->context_tokens = command_option_count(state, "--context-tokens", argument, 65536);
        return 0;
    case QUALITY_KEY_CONTINUATION:
        options->continuation_tokens =
            command_option_count(state, "--continuation-tokens", argument, 65536);
        return 0;
    case QUALITY_KEY_ANSWER:
        options->answer_tokens =
            strcmp(argument, "0") == 0
                ? 0
                : command_option_count(state, "--answer-tokens", argument, 4096);
        return 0;
    case 'V': arguments->variant_list = argument; return 0;
    case 'n':
        options->contexts = command_option_count(state, "--contexts", argument, 100000);
        return 0;
    case 't':
        options->threads = command_option_count(state, "--threads", argument, QUALITY_THREADS_MAX);
        return 0;
    case 'd': command_add_setting(&arguments->common, "store.profile", argument); return 0;
    case 'Q': arguments->quick = true; return 0;
    case ARGP_KEY_END:
        if (options->model == NULL) argp_error(state, "--model is missing");
        if (arguments->text_count == 0) argp_error(state, "--text is missing");
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

/* Puts a text to the others of its class. */
static kvt_status quality_add_class(quality_arguments *arguments, const char *text, char *message,
                                    size_t message_size)
{
    quality_profile_options *options = &arguments->options;
    const char *mark = strchr(text, '='), *path = mark != NULL ? mark + 1 : text;
    const char *name = mark != NULL ? text : arguments->class_name;
    size_t length = mark != NULL ? (size_t)(mark - text) : strlen(name);
    uint32_t i = 0;
    while (i < options->class_count && (strlen(arguments->names[i]) != length ||
                                        memcmp(arguments->names[i], name, length) != 0)) {
        i++;
    }
    if (i == QUALITY_CLASSES_MAX || length == 0 || length >= sizeof arguments->names[0]) {
        (void)snprintf(message, message_size, "%.200s: at most %d classes, of 1 to 63 bytes", text,
                       (int)QUALITY_CLASSES_MAX);
        return KVT_E_ARGUMENT;
    }
    if (i == options->class_count) {
        (void)snprintf(arguments->names[i], sizeof arguments->names[i], "%.*s", (int)length, name);
        arguments->classes[options->class_count++] =
            (quality_class){.name = arguments->names[i], .texts = arguments->paths[i]};
    }
    arguments->paths[i][arguments->classes[i].text_count++] = path;
    return KVT_OK;
}

static kvt_status quality_prepare(quality_arguments *arguments, char *message, size_t message_size)
{
    quality_profile_options *options = &arguments->options;
    kvt_status status = KVT_OK;
    for (uint32_t i = 0; status == KVT_OK && i < arguments->text_count; i++)
        status = quality_add_class(arguments, arguments->texts[i], message, message_size);
    if (status == KVT_OK)
        status = command_parse_variants(arguments->variant_list, arguments->quick,
                                        arguments->variants, QUALITY_VARIANTS_MAX,
                                        &options->variant_count, message, message_size);
    options->classes = arguments->classes;
    options->variants = arguments->variants;
    options->command_line = arguments->command_line;
    if (options->contexts == 0) options->contexts = arguments->quick ? 8 : 100;
    if (options->context_tokens == 0) options->context_tokens = 768;
    if (options->continuation_tokens == 0) options->continuation_tokens = 200;
    if (options->answer_tokens == UINT32_MAX) options->answer_tokens = arguments->quick ? 16 : 32;
    return status;
}

/* ---- the measurement ---- */

static bool quality_progress(void *context, double done, const char *what)
{
    char text[96];
    (void)snprintf(text, sizeof text, "quality: %s", what);
    progress_update(context, done, text);
    return !command_interrupted();
}

static kvt_status quality_open(const command_common *common, kvt_profile **profile, char *message,
                               size_t message_size)
{
    const char *path = kvt_config_text(common->config, "store.profile");
    uint32_t flags = KVT_PROFILE_WRITE;
    if (kvt_config_switch(common->config, "store.profile_foreign")) flags |= KVT_PROFILE_FOREIGN;
    return kvt_profile_open(path != NULL ? path : QUALITY_STANDARD_PATH, flags, profile, message,
                            message_size);
}

static int quality_measure_all(quality_arguments *arguments, kvt_profile *profile)
{
    char message[COMMAND_MESSAGE_BYTES] = "";
    command_progress bar;
    quality_report report;
    command_catch_interrupts();
    progress_start(&bar, &arguments->common);
    arguments->options.progress = quality_progress;
    arguments->options.progress_context = &bar;
    kvt_status status =
        quality_profile_run(profile, &arguments->options, &report, message, sizeof message);
    progress_end(&bar);
    int code = EXIT_FINE;
    if (status == KVT_E_CANCELLED) {
        (void)snprintf(message, sizeof message,
                       "stopped; the same command goes on with what was measured");
    }
    if (status != KVT_OK) {
        code = command_fail_content(status, message);
    } else if (!arguments->common.json) {
        profile_quality_print(stdout, &report, &arguments->options);
    } else if (!profile_quality_print_json(stdout, &report, &arguments->options)) {
        code = command_fail(KVT_E_MEMORY, "");
    }
    quality_report_free(&report);
    return code;
}

static int quality_run(quality_arguments *arguments)
{
    static const char *const no_sections[] = {NULL};
    char message[COMMAND_MESSAGE_BYTES] = "";
    kvt_profile *profile = NULL;
    kvt_status status = quality_prepare(arguments, message, sizeof message);
    if (status == KVT_OK)
        status = quality_open(&arguments->common, &profile, message, sizeof message);
    if (status != KVT_OK) return command_fail_input(status, message);
    int code = command_report_unused(&arguments->common, no_sections);
    if (code == EXIT_FINE) code = quality_measure_all(arguments, profile);
    kvt_profile_close(profile);
    return code;
}

int command_profile_quality(int argc, char **argv)
{
    const struct argp_child children[] = COMMAND_CHILDREN;
    const struct argp argp = {
        .options = quality_options,
        .parser = quality_parse,
        .doc = "Measures what every variant does to the answers of a model: its own KV of real "
               "texts goes through records, the model goes on from what comes back and is compared "
               "with going on from the exact KV. Texts are JSONL with a \"text\" in each line, and "
               "may say what is asked about them. With two classes or more they are judged "
               "together as well, as \"pooled\". A run that was stopped goes on when it is given "
               "again.\v`--kv FILE... --help` tells of KV dumps instead of a model, `--mixed "
               "--help` of contexts whose parts differ.",
        .children = children};
    if (command_has_word(argc, argv, "--mixed")) return command_profile_mixed(argc, argv);
    if (command_has_word(argc, argv, "--kv") || command_has_word(argc, argv, "--write-dumps"))
        return command_profile_dumps(argc, argv);
    quality_arguments *arguments = calloc(1, sizeof *arguments);
    if (arguments == NULL) return command_fail(KVT_E_MEMORY, "");
    arguments->class_name = QUALITY_STANDARD_CLASS;
    arguments->options.answer_tokens = UINT32_MAX;
    command_keep_line(argc, argv, arguments->command_line, sizeof arguments->command_line);
    int code = command_load(&argp, argc, argv, arguments);
    if (code == EXIT_FINE) {
        command_choose_blas();
        code = quality_run(arguments);
        command_unload(&arguments->common);
    }
    free(arguments);
    return command_finish(code);
}
