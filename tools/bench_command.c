/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_command.c - kvterrace bench: the library's own parts beside this machine's limits.
 *
 * This file has the codecs' bench; those of devices are in bench_device_command.c. Each runs in
 * a process of its own (bench_guard.h). One thread.
 */
#include "bench_guard.h"
#include "command.h"
#include "data_files.h"

#include "lab/bench/bench.h"

#include <stdlib.h>
#include <string.h>

enum { BENCH_KEY_PLOT = 0x100, BENCH_KEY_MODEL, BENCH_KEY_TOKENIZER, BENCH_KEY_TEXT };

/* Strings that an option adds to; they belong to argv, or to a copy of it. */
typedef struct bench_strings {
    const char **items;
    uint32_t count;
} bench_strings;

typedef struct bench_codecs_arguments {
    command_common common;
    bench_codecs_options options;
    bench_strings variants, models, texts;
    char *names; /* what variants point into */
} bench_codecs_arguments;

static const struct argp_option bench_codecs_argp_options[] = {
    {"quick", 'Q', NULL, 0, "32 MiB, the best instruction set, 8 contexts", 0},
    {"variants", 'V', "LIST", 0, "Variants to measure, with blanks or ';' between them", 0},
    {"isa", 'i', "NAME", 0, "Only scalar, avx2 or avx512; KVT_CPU in the environment too", 0},
    {"plot", BENCH_KEY_PLOT, "FILE", OPTION_HIDDEN, NULL, 0},
    {"model", BENCH_KEY_MODEL, "FILE", 0, "Judge on this model's KV; may be repeated", 0},
    {"tokenizer", BENCH_KEY_TOKENIZER, "FILE", 0, "The models' vocabulary", 0},
    {"text", BENCH_KEY_TEXT, "FILE", 0, "JSONL with texts for the models; may be repeated", 0},
    {"contexts", 'n', "N", 0, "Contexts per model (default 40)", 0},
    {"threads", 't', "N", 0, "Threads that judge (default: one per processor)", 0},
    {"workers", 'w', "N", 0, "Time whole records on N threads as well (wall clock)", 0},
    {0},
};

static void bench_add_string(struct argp_state *state, bench_strings *strings, const char *text)
{
    const char **grown = realloc(strings->items, (strings->count + 1) * sizeof *grown);
    if (grown == NULL) argp_failure(state, EXIT_FAILED, 0, "out of memory");
    strings->items = grown;
    strings->items[strings->count++] = text;
}

static void bench_add_variants(struct argp_state *state, bench_codecs_arguments *arguments,
                               const char *list)
{
    char *rest = NULL;
    if (arguments->names != NULL) argp_error(state, "--variants: given twice");
    arguments->names = strdup(list);
    if (arguments->names == NULL) argp_failure(state, EXIT_FAILED, 0, "out of memory");
    for (char *name = strtok_r(arguments->names, "; \t\n", &rest); name != NULL;
         name = strtok_r(NULL, "; \t\n", &rest)) {
        bench_add_string(state, &arguments->variants, name);
    }
    if (arguments->variants.count == 0) argp_error(state, "--variants: no name");
}

static error_t bench_codecs_parse(int key, char *argument, struct argp_state *state)
{
    bench_codecs_arguments *arguments = state->input;
    bench_codecs_options *options = &arguments->options;
    switch (key) {
    case ARGP_KEY_INIT: state->child_inputs[0] = &arguments->common; return 0;
    case 'Q': options->quick = true; return 0;
    case 'V': bench_add_variants(state, arguments, argument); return 0;
    case 'i': options->isa = argument; return 0;
    case BENCH_KEY_PLOT:
        argp_error(state, "--plot: figures come from --json | kvterrace report - -o PAGE.html");
        return 0;
    case BENCH_KEY_MODEL:
        bench_add_string(state, &arguments->models,
                         command_data_path(&arguments->common, argument));
        return 0;
    case BENCH_KEY_TOKENIZER: options->tokenizer = argument; return 0;
    case BENCH_KEY_TEXT:
        bench_add_string(state, &arguments->texts, command_data_path(&arguments->common, argument));
        return 0;
    case 'n':
        options->contexts = command_option_count(state, "--contexts", argument, 10000);
        return 0;
    case 't': options->threads = command_option_count(state, "--threads", argument, 16); return 0;
    case 'w': options->workers = command_option_count(state, "--workers", argument, 16); return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static int bench_run_codecs(bench_codecs_arguments *arguments)
{
    static const char *const no_sections[] = {NULL};
    bench_codecs_options *options = &arguments->options;
    char message[COMMAND_MESSAGE_BYTES] = "";
    int code = command_report_unused(&arguments->common, no_sections);
    if (code != EXIT_FINE) return code;
    options->out = stdout;
    options->json = arguments->common.json;
    options->quiet = arguments->common.quiet;
    options->variants = arguments->variants.items;
    options->variant_count = arguments->variants.count;
    options->models = arguments->models.items;
    options->model_count = arguments->models.count;
    options->texts = arguments->texts.items;
    options->text_count = arguments->texts.count;
    /* The library does not look at the environment; this bench does, so that one instruction set
     * can be chosen for it as for the tests. */
    const char *forced = getenv("KVT_CPU");
    if (options->isa == NULL && forced != NULL && forced[0] != '\0') options->isa = forced;
    kvt_status status = bench_codecs_run(options, message, sizeof message);
    return status == KVT_OK ? EXIT_FINE : command_fail_content(status, message);
}

static int bench_codecs(int argc, char **argv)
{
    const struct argp_child children[] = COMMAND_CHILDREN;
    const struct argp argp = {
        .options = bench_codecs_argp_options,
        .parser = bench_codecs_parse,
        .doc = "Encodes and decodes generated bf16 KV with every variant on every instruction set, "
               "one thread, beside memcpy; says what each variant costs in bits and does to the "
               "numbers. With models it runs their own KV through records and compares what they "
               "predict on top of it.",
        .children = children};
    bench_codecs_arguments arguments = {.names = NULL};
    int code = command_load(&argp, argc, argv, &arguments);
    if (code == EXIT_FINE && arguments.models.count > 0) command_choose_blas();
    if (code == EXIT_FINE) {
        code = bench_run_codecs(&arguments);
        command_unload(&arguments.common);
    }
    free(arguments.variants.items);
    free(arguments.models.items);
    free(arguments.texts.items);
    free(arguments.names);
    return command_finish(code);
}

int command_bench(int argc, char **argv)
{
    static const command_entry table[] = {
        {"ablation", "loading: pooled or not, direct or not", command_bench_ablation},
        {"adaptcache", "AdaptCache's own experiment", command_bench_adaptcache},
        {"codecs", "codecs: speed, bits and loss", bench_codecs},
        {"policy", "the decision engine: distance to its bound, nanoseconds", command_bench_policy},
        {"devices", "each device: bytes per second", command_bench_devices},
        {"drift", "a drive slows, one vanishes and returns", command_bench_drift},
        {"extent", "the extent allocator: nanoseconds and mistakes", command_bench_extent},
        {"grid", "many workloads: the engine beside its rivals, and the bound", command_bench_grid},
        {"live", "a store beside its simulation: mean times, ranks", command_bench_live},
        {"loads", "predicted load seconds beside achieved ones", command_bench_loads},
        {"restart", "reopening a store: seconds, and what comes back", command_bench_restart},
        {"stripe", "all devices as one pool, by layout and size", command_bench_stripe},
        {0},
    };
    int code;
    /* The grid looks at the flag itself, and prints what was finished. */
    bool grid = argc > 1 && strcmp(argv[1], "grid") == 0;
    if (!grid && bench_guard(&code)) return code;
    return command_choose(table, "COMMAND [OPTION...]",
                          "Measures parts of the library beside this machine's own limits.\v", argc,
                          argv);
}
