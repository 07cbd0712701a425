/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile_dumps_command.c - kvterrace profile quality --kv: what every variant does to attention,
 * from KV dumps with queries; and --write-dumps, which makes such dumps of a model.
 *
 * The main thread waits; the measurement has threads of its own. Interrupting (SIGINT, SIGTERM)
 * stops after the present dump; what was measured stays and the same command goes on from there.
 */
#include "command.h"
#include "data_files.h"
#include "profile_dumps.h"
#include "profile_open.h"
#include "variant_list.h"

#include <stdlib.h>
#include <string.h>

enum {
    DUMPS_KEY_KV = 0x100,
    DUMPS_KEY_MODEL,
    DUMPS_KEY_CLASS,
    DUMPS_KEY_QUERIES,
    DUMPS_KEY_WRITE,
    DUMPS_KEY_TOKENIZER,
    DUMPS_KEY_TEXT,
    DUMPS_KEY_CONTEXT,
    DUMPS_KEY_CONTINUATION,

    DUMPS_MAX = 4096,
    DUMPS_TEXTS_MAX = 32,
    DUMPS_VARIANTS_MAX = 128
};

#define DUMPS_STANDARD_CLASS "text"
#define DUMPS_STANDARD_MODEL "model"

typedef struct dumps_arguments {
    command_common common;
    bool quick;
    const char *variant_list;
    char command_line[1024];
    const char *paths[DUMPS_MAX];
    const char *texts[DUMPS_TEXTS_MAX];
    quality_variant variants[DUMPS_VARIANTS_MAX];
    quality_dumps_options options;
    quality_dumps_make_options make; /* folder NULL: dumps are measured */
} dumps_arguments;

static const struct argp_option dumps_table[] = {
    {"kv", DUMPS_KEY_KV, "FILE", 0, "A KV dump; more may follow without the option", 0},
    {"model", DUMPS_KEY_MODEL, "NAME", 0,
     "What the profile calls the model that the KV is of (" DUMPS_STANDARD_MODEL
     "); with --write-dumps its file",
     0},
    {"class", DUMPS_KEY_CLASS, "NAME", 0, "The class of the texts (" DUMPS_STANDARD_CLASS ")", 0},
    {"variants", 'V', "LIST", 0, "Variants, with blanks or ';' between them", 0},
    {"queries", DUMPS_KEY_QUERIES, "N", 0, "Queries of each layer and head (8)", 0},
    {"threads", 't', "N", 0, "Threads (default: one per processor)", 0},
    PROFILE_DATABASE_OPTION,
    {"quick", 'Q', NULL, 0, "5 variants", 0},
    {"write-dumps", DUMPS_KEY_WRITE, "DIR", 0, "Make dumps of a model and texts instead", 1},
    {"tokenizer", DUMPS_KEY_TOKENIZER, "FILE", 0, "Its vocabulary (tokenizer.bin beside it)", 1},
    {"text", DUMPS_KEY_TEXT, "FILE", 0, "JSONL with texts; may be repeated", 1},
    {"contexts", 'n', "N", 0, "Dumps to make (24)", 1},
    {"context-tokens", DUMPS_KEY_CONTEXT, "N", 0, "Tokens of a context (768)", 1},
    {"continuation-tokens", DUMPS_KEY_CONTINUATION, "N", 0,
     "Tokens after it, whose queries are taken (200)", 1},
    {0},
};

bool command_has_word(int argc, char **argv, const char *word)
{
    size_t length = strlen(word);
    for (int i = 1; i < argc; i++)
        if (strncmp(argv[i], word, length) == 0 &&
            (argv[i][length] == '\0' || argv[i][length] == '='))
            return true;
    return false;
}

/* ---- the command line ---- */

static void dumps_add(struct argp_state *state, dumps_arguments *arguments, const char *path)
{
    if (arguments->options.count == DUMPS_MAX) argp_error(state, "too many dumps");
    arguments->paths[arguments->options.count++] = path;
}

static void dumps_check_words(struct argp_state *state, const dumps_arguments *arguments)
{
    const quality_dumps_make_options *make = &arguments->make;
    size_t name = strlen(arguments->options.class_name);
    if (make->folder == NULL && make->text_count > 0)
        argp_error(state, "--text goes with --write-dumps");
    if (name < 1 || name > 63) argp_error(state, "--class: a name of 1 to 63 bytes");
    if (make->folder == NULL) return;
    if (arguments->options.count > 0)
        argp_error(state, "--kv and --write-dumps do not go together");
    if (arguments->options.name == NULL) argp_error(state, "--model is missing");
    if (make->text_count == 0) argp_error(state, "--text is missing");
}

static error_t dumps_parse(int key, char *argument, struct argp_state *state)
{
    dumps_arguments *arguments = state->input;
    quality_dumps_options *options = &arguments->options;
    quality_dumps_make_options *make = &arguments->make;
    switch (key) {
    case ARGP_KEY_INIT: state->child_inputs[0] = &arguments->common; return 0;
    case DUMPS_KEY_KV:
    case ARGP_KEY_ARG: dumps_add(state, arguments, argument); return 0;
    case DUMPS_KEY_MODEL: options->name = argument; return 0;
    case DUMPS_KEY_CLASS: options->class_name = argument; return 0;
    case DUMPS_KEY_QUERIES:
        options->queries = command_option_count(state, "--queries", argument, 65536);
        return 0;
    case DUMPS_KEY_WRITE: make->folder = argument; return 0;
    case DUMPS_KEY_TOKENIZER: make->tokenizer = argument; return 0;
    case DUMPS_KEY_TEXT:
        if (make->text_count == DUMPS_TEXTS_MAX) argp_error(state, "--text: too many");
        arguments->texts[make->text_count++] = command_data_path(&arguments->common, argument);
        return 0;
    case DUMPS_KEY_CONTEXT:
        make->context_tokens = command_option_count(state, "--context-tokens", argument, 65536);
        return 0;
    case DUMPS_KEY_CONTINUATION:
        make->continuation_tokens =
            command_option_count(state, "--continuation-tokens", argument, 65536);
        return 0;
    case 'V': arguments->variant_list = argument; return 0;
    case 'n': make->contexts = command_option_count(state, "--contexts", argument, 9999); return 0;
    case 't':
        options->threads = command_option_count(state, "--threads", argument, QUALITY_THREADS_MAX);
        return 0;
    case 'd': command_add_setting(&arguments->common, "store.profile", argument); return 0;
    case 'Q': arguments->quick = true; return 0;
    case ARGP_KEY_END: dumps_check_words(state, arguments); return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

/* ---- what is done ---- */

static bool dumps_progress(void *context, double done, const char *what)
{
    progress_update(context, done, what);
    return !command_interrupted();
}

static int dumps_make(dumps_arguments *arguments, command_progress *bar)
{
    quality_dumps_make_options *make = &arguments->make;
    char message[COMMAND_MESSAGE_BYTES] = "";
    uint32_t count = 0;
    make->model = command_data_path(&arguments->common, arguments->options.name);
    make->texts = arguments->texts;
    make->queries = arguments->options.queries != 0 ? arguments->options.queries
                                                    : (uint32_t)QUALITY_DUMPS_QUERIES;
    if (make->contexts == 0) make->contexts = 24;
    if (make->context_tokens == 0) make->context_tokens = 768;
    if (make->continuation_tokens == 0) make->continuation_tokens = 200;
    make->progress = dumps_progress;
    make->progress_context = bar;
    progress_start(bar, &arguments->common);
    kvt_status status = quality_dumps_make(make, &count, message, sizeof message);
    progress_end(bar);
    if (status != KVT_OK) return command_fail_content(status, message);
    command_note(&arguments->common, "%u dumps of %u tokens in %s", (unsigned)count,
                 (unsigned)make->context_tokens, make->folder);
    return EXIT_FINE;
}

static int dumps_measure(dumps_arguments *arguments, kvt_profile *profile, command_progress *bar)
{
    quality_dumps_options *options = &arguments->options;
    char message[COMMAND_MESSAGE_BYTES] = "";
    quality_dumps_report report;
    options->progress = dumps_progress;
    options->progress_context = bar;
    progress_start(bar, &arguments->common);
    kvt_status status = quality_dumps_run(profile, options, &report, message, sizeof message);
    progress_end(bar);
    int code = EXIT_FINE;
    if (status == KVT_E_CANCELLED)
        (void)snprintf(message, sizeof message,
                       "stopped; the same command goes on with what was measured");
    if (status != KVT_OK) {
        code = command_fail_content(status, message);
    } else if (!arguments->common.json) {
        profile_dumps_print(stdout, &report, options);
    } else if (!profile_dumps_print_json(stdout, &report, options)) {
        code = command_fail(KVT_E_MEMORY, "");
    }
    quality_dumps_report_free(&report);
    return code;
}

static int dumps_run(dumps_arguments *arguments)
{
    static const char *const no_sections[] = {NULL};
    quality_dumps_options *options = &arguments->options;
    char message[COMMAND_MESSAGE_BYTES] = "";
    kvt_profile *profile = NULL;
    command_progress bar;
    kvt_status status = KVT_OK;
    command_catch_interrupts();
    if (arguments->make.folder != NULL) {
        int code = command_report_unused(&arguments->common, no_sections);
        return code == EXIT_FINE ? dumps_make(arguments, &bar) : code;
    }
    if (options->name == NULL) options->name = DUMPS_STANDARD_MODEL;
    options->paths = arguments->paths;
    options->variants = arguments->variants;
    options->command_line = arguments->command_line;
    status = command_parse_variants(arguments->variant_list, arguments->quick, arguments->variants,
                                    DUMPS_VARIANTS_MAX, &options->variant_count, message,
                                    sizeof message);
    if (status == KVT_OK)
        status = command_profile_open(arguments->common.config, KVT_PROFILE_WRITE, &profile,
                                      message, sizeof message);
    if (status != KVT_OK) return command_fail_input(status, message);
    int code = command_report_unused(&arguments->common, no_sections);
    if (code == EXIT_FINE) code = dumps_measure(arguments, profile, &bar);
    kvt_profile_close(profile);
    return code;
}

int command_profile_dumps(int argc, char **argv)
{
    const struct argp_child children[] = COMMAND_CHILDREN;
    const struct argp argp = {
        .options = dumps_table,
        .parser = dumps_parse,
        .args_doc = "--kv FILE...\n--write-dumps DIR --model FILE --text FILE",
        .doc = "Measures what every variant does to attention, from KV dumps with queries "
               "(safetensors: k.N, v.N, q.N), and what that means for answers as far as the "
               "profile has losses of the same model. A run that was stopped goes on when it is "
               "given again.",
        .children = children};
    dumps_arguments *arguments = calloc(1, sizeof *arguments);
    if (arguments == NULL) return command_fail(KVT_E_MEMORY, "");
    arguments->options.class_name = DUMPS_STANDARD_CLASS;
    command_keep_line(argc, argv, arguments->command_line, sizeof arguments->command_line);
    int code = command_load(&argp, argc, argv, arguments);
    if (code == EXIT_FINE) {
        command_choose_blas();
        code = dumps_run(arguments);
        command_unload(&arguments->common);
    }
    free(arguments);
    return command_finish(code);
}
