/* SPDX-License-Identifier: Apache-2.0 */
/*
 * profile_mixed_command.c - kvterrace profile quality --mixed: the loss of contexts whose parts are
 * stored in different variants, predicted and measured. Nothing is stored. One thread waits.
 */
#include "command.h"
#include "data_files.h"
#include "estimator/quality/quality_mixed.h"
#include "profile_document.h"
#include "profile_dumps.h"
#include "variant_list.h"

#include <jansson.h>
#include <stdlib.h>

enum {
    MIXED_KEY_MIXED = 0x100,
    MIXED_KEY_MODEL,
    MIXED_KEY_TOKENIZER,
    MIXED_KEY_TEXT,
    MIXED_KEY_CONTEXT,
    MIXED_KEY_CONTINUATION,
    MIXED_KEY_BLOCKS,
    MIXED_KEY_MIXES,

    MIXED_TEXTS_MAX = 32,
    MIXED_VARIANTS_MAX = 64
};

/* A ladder whose losses lie a decade and a half apart. */
#define MIXED_USUAL                                                                                \
    "planes:k8v8,g64; planes:k4v4,g64; planes:k3v3,g64; planes:k2v2,g64; "                         \
    "entropy:k0.25v0.5,vchan; entropy:k0.5v1,vchan; entropy:k1v2,vchan"

typedef struct mixed_arguments {
    command_common common;
    const char *texts[MIXED_TEXTS_MAX];
    const char *variant_list;
    quality_variant variants[MIXED_VARIANTS_MAX];
    quality_mixed_options options;
} mixed_arguments;

static const struct argp_option mixed_table[] = {
    {"mixed", MIXED_KEY_MIXED, NULL, 0, "Contexts whose blocks are stored in different variants",
     0},
    {"model", MIXED_KEY_MODEL, "FILE", 0, "The model: a folder, or a file of llama2.c", 0},
    {"tokenizer", MIXED_KEY_TOKENIZER, "FILE", 0, "Its vocabulary (tokenizer.bin beside it)", 0},
    {"text", MIXED_KEY_TEXT, "FILE", 0, "JSONL with texts; may be repeated", 0},
    {"variants", 'V', "LIST", 0, "Variants, with blanks or ';' between them (7 of the ladder)", 0},
    {"blocks", MIXED_KEY_BLOCKS, "N", 0, "Blocks of a context (4)", 0},
    {"mixes", MIXED_KEY_MIXES, "N", 0, "Draws of variants for the blocks (16)", 0},
    {"contexts", 'n', "N", 0, "Contexts (24)", 0},
    {"context-tokens", MIXED_KEY_CONTEXT, "N", 0, "Tokens of a context (768)", 0},
    {"continuation-tokens", MIXED_KEY_CONTINUATION, "N", 0, "Tokens after it (200)", 0},
    {"threads", 't', "N", 0, "Threads (default: one per processor)", 0},
    {0},
};

static error_t mixed_parse(int key, char *argument, struct argp_state *state)
{
    mixed_arguments *arguments = state->input;
    quality_mixed_options *options = &arguments->options;
    switch (key) {
    case ARGP_KEY_INIT: state->child_inputs[0] = &arguments->common; return 0;
    case MIXED_KEY_MIXED: return 0;
    case MIXED_KEY_MODEL:
        options->model = command_data_path(&arguments->common, argument);
        return 0;
    case MIXED_KEY_TOKENIZER: options->tokenizer = argument; return 0;
    case MIXED_KEY_TEXT:
        if (options->text_count == MIXED_TEXTS_MAX) argp_error(state, "--text: too many");
        arguments->texts[options->text_count++] = command_data_path(&arguments->common, argument);
        return 0;
    case 'V': arguments->variant_list = argument; return 0;
    case MIXED_KEY_BLOCKS:
        options->blocks = command_option_count(state, "--blocks", argument, 64);
        return 0;
    case MIXED_KEY_MIXES:
        options->mixes = command_option_count(state, "--mixes", argument, 4096);
        return 0;
    case 'n':
        options->contexts = command_option_count(state, "--contexts", argument, 100000);
        return 0;
    case MIXED_KEY_CONTEXT:
        options->context_tokens = command_option_count(state, "--context-tokens", argument, 65536);
        return 0;
    case MIXED_KEY_CONTINUATION:
        options->continuation_tokens =
            command_option_count(state, "--continuation-tokens", argument, 65536);
        return 0;
    case 't':
        options->threads = command_option_count(state, "--threads", argument, QUALITY_THREADS_MAX);
        return 0;
    case ARGP_KEY_END:
        if (options->model == NULL) argp_error(state, "--model is missing");
        if (options->text_count == 0) argp_error(state, "--text is missing");
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static json_t *mixed_pack(const quality_mixed_fit *fit)
{
    const struct {
        const char *key;
        double value;
    } members[] = {{"predicted", fit->predicted},
                   {"measured", fit->measured},
                   {"pearson", fit->pearson},
                   {"spearman", fit->spearman},
                   {"spearman_mixes", fit->spearman_mixes},
                   {"error_p50", fit->error_p50},
                   {"error_p90", fit->error_p90},
                   {"error_context_p50", fit->error_context_p50}};
    json_t *object = json_object();
    for (size_t i = 0; object != NULL && i < sizeof members / sizeof members[0]; i++)
        (void)json_object_set_new(object, members[i].key, view_real(members[i].value));
    return object;
}

static void mixed_print_fit(const char *name, const quality_mixed_fit *fit)
{
    printf("%-5s predicted %.4g, measured %.4g; correlation %.3f (rank %.3f; of draws %.3f); "
           "error of a draw %.0f %% (p90 %.0f %%), of one context %.0f %%\n",
           name, fit->predicted, fit->measured, fit->pearson, fit->spearman, fit->spearman_mixes,
           100.0 * fit->error_p50, 100.0 * fit->error_p90, 100.0 * fit->error_context_p50);
}

static int mixed_show(const mixed_arguments *arguments, const quality_mixed_report *report)
{
    if (!arguments->common.json) {
        printf("%s: %u contexts in %u blocks, %u draws of %u variants, %.0f s\n",
               report->model.name, (unsigned)report->contexts, (unsigned)arguments->options.blocks,
               (unsigned)report->mixes, (unsigned)arguments->options.variant_count,
               report->seconds);
        mixed_print_fit("loss", &report->loss);
        mixed_print_fit("KL", &report->kl);
        return EXIT_FINE;
    }
    json_t *root = json_pack(
        "{s:s, s:o, s:I, s:I, s:I, s:I, s:f, s:o, s:o}", "schema", "kvterrace-profile-mixed-1",
        "model", view_string(report->model.name), "contexts", (json_int_t)report->contexts,
        "blocks", (json_int_t)arguments->options.blocks, "mixes", (json_int_t)report->mixes,
        "variants", (json_int_t)arguments->options.variant_count, "seconds", report->seconds,
        "loss", mixed_pack(&report->loss), "kl", mixed_pack(&report->kl));
    int failed =
        root == NULL || json_dumpf(root, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(9)) != 0;
    json_decref(root);
    putchar('\n');
    return failed ? command_fail(KVT_E_MEMORY, "") : EXIT_FINE;
}

static bool mixed_progress(void *context, double done, const char *what)
{
    progress_update(context, done, what);
    return true;
}

static int mixed_run_command(mixed_arguments *arguments)
{
    static const char *const no_sections[] = {NULL};
    quality_mixed_options *options = &arguments->options;
    char message[COMMAND_MESSAGE_BYTES] = "";
    quality_mixed_report report;
    command_progress bar;
    options->texts = arguments->texts;
    options->variants = arguments->variants;
    options->seed = 1;
    if (options->blocks == 0) options->blocks = 4;
    if (options->mixes == 0) options->mixes = 16;
    if (options->contexts == 0) options->contexts = 24;
    if (options->context_tokens == 0) options->context_tokens = 768;
    if (options->continuation_tokens == 0) options->continuation_tokens = 200;
    kvt_status status = command_parse_variants(
        arguments->variant_list != NULL ? arguments->variant_list : MIXED_USUAL, false,
        arguments->variants, MIXED_VARIANTS_MAX, &options->variant_count, message, sizeof message);
    if (status != KVT_OK) return command_fail_input(status, message);
    int code = command_report_unused(&arguments->common, no_sections);
    if (code != EXIT_FINE) return code;
    options->progress = mixed_progress;
    options->progress_context = &bar;
    progress_start(&bar, &arguments->common);
    status = quality_mixed_run(options, &report, message, sizeof message);
    progress_end(&bar);
    return status == KVT_OK ? mixed_show(arguments, &report)
                            : command_fail_content(status, message);
}

int command_profile_mixed(int argc, char **argv)
{
    const struct argp_child children[] = COMMAND_CHILDREN;
    const struct argp argp = {
        .options = mixed_table,
        .parser = mixed_parse,
        .args_doc = "--mixed --model FILE --text FILE...",
        .doc = "Cuts contexts into blocks, stores each in a variant drawn for it, and compares the "
               "loss that is predicted (the token-weighted mean of the variants' losses on other "
               "contexts) with the one that is measured by going on from the whole.",
        .children = children};
    mixed_arguments *arguments = calloc(1, sizeof *arguments);
    if (arguments == NULL) return command_fail(KVT_E_MEMORY, "");
    int code = command_load(&argp, argc, argv, arguments);
    if (code == EXIT_FINE) {
        command_choose_blas();
        code = mixed_run_command(arguments);
        command_unload(&arguments->common);
    }
    free(arguments);
    return command_finish(code);
}
