/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_command.c - kvterrace bench: the library's own parts beside this machine's limits.
 *
 * This file has the codecs' bench; those of devices are in bench_device_command.c. Each runs in
 * a process of its own (bench_guard.h). One thread.
 */
#include "bench_guard.h"
#include "commands.h"

#include "lab/bench/bench.h"

#include <stdlib.h>
#include <string.h>

typedef struct bench_codecs_arguments {
    command_common common;
    bench_codecs_options options;
    command_progress bar;
    const char *variants; /* names with blanks or ';' between them */
    command_list models, texts;
} bench_codecs_arguments;

static const command_option bench_codecs_rows[] = {
    QUICK_OPTION(bench_codecs_arguments, options.quick,
                 "32 MiB, the best instruction set, 8 contexts"),
    TEXT_OPTION(bench_codecs_arguments, variants, "variants", 0, "LIST",
                "Variants to measure, with blanks or ';' between them"),
    TEXT_OPTION(bench_codecs_arguments, options.isa, "isa", 'i', "NAME",
                "Only scalar, avx2 or avx512; KVT_CPU in the environment too"),
    GONE_OPTION("plot", "figures come from --json | kvterrace report - -o PAGE.html"),
    LIST_OPTION(bench_codecs_arguments, models, "model", "FILE", 0, OPTION_DATA,
                "Judge on this model's KV; may be repeated"),
    TEXT_OPTION(bench_codecs_arguments, options.tokenizer, "tokenizer", 0, "FILE",
                "The models' vocabulary"),
    LIST_OPTION(bench_codecs_arguments, texts, "text", "FILE", 0, OPTION_DATA,
                "JSONL with texts for the models; may be repeated"),
    COUNT_OPTION(bench_codecs_arguments, options.contexts, "contexts", 1, 10000,
                 "Contexts per model (default 40)"),
    THREADS_OPTION(bench_codecs_arguments, options.threads, 16,
                   "Threads that judge (default: one per processor)"),
    COUNT_OPTION(bench_codecs_arguments, options.workers, "workers", 1, 16,
                 "Time whole records on N threads as well (wall clock)"),
    {0},
};

/* Cuts the names apart; they point into a copy. */
static void bench_codecs_cut(bench_codecs_arguments *arguments, command_list *names)
{
    char *copy = strdup(arguments->variants != NULL ? arguments->variants : ""), *rest = NULL;
    if (copy == NULL) return;
    (void)command_keep(&arguments->common, copy);
    for (char *name = strtok_r(copy, "; \t\n", &rest); name != NULL;
         name = strtok_r(NULL, "; \t\n", &rest))
        command_list_add(names, name);
}

static int bench_codecs_start(void *context)
{
    bench_codecs_arguments *arguments = context;
    bench_codecs_options *options = &arguments->options;
    char message[COMMAND_MESSAGE_BYTES] = "";
    command_list names = {0};
    bench_codecs_cut(arguments, &names);
    if (arguments->variants != NULL && names.count == 0)
        return command_misuse("--variants: no name");
    if (arguments->models.count > 0) command_choose_blas();
    options->out = stdout;
    options->json = arguments->common.json;
    options->quiet = arguments->common.quiet;
    options->variants = names.items;
    options->variant_count = (uint32_t)names.count;
    options->models = arguments->models.items;
    options->model_count = (uint32_t)arguments->models.count;
    options->texts = arguments->texts.items;
    options->text_count = (uint32_t)arguments->texts.count;
    options->progress = progress_show;
    options->progress_context = &arguments->bar;
    /* The library does not look at the environment; this bench does, so that one instruction set
     * can be chosen for it as for the tests. */
    const char *forced = getenv("KVT_CPU");
    if (options->isa == NULL && forced != NULL && forced[0] != '\0') options->isa = forced;
    progress_start(&arguments->bar, &arguments->common);
    kvt_status status = bench_codecs_run(options, message, sizeof message);
    progress_end(&arguments->bar);
    free(names.items);
    return status == KVT_OK ? EXIT_FINE : command_fail_content(status, message);
}

const command_spec bench_codecs_spec = {
    .name = "codecs",
    .summary = "codecs: speed, bits and loss",
    .about = "Encodes and decodes generated bf16 KV with every variant on every instruction set, "
             "one thread, beside memcpy; says what each variant costs in bits and does to the "
             "numbers. With models it runs their own KV through records and compares what they "
             "predict on top of it.",
    .example = "  kvterrace bench codecs --quick --variants 'lossless planes:k4v4,g64'",
    .options = bench_codecs_rows,
    .argument_bytes = sizeof(bench_codecs_arguments),
    .run = bench_codecs_start,
    .lists = LISTS_VARIANTS,
};

static const command_spec *const bench_commands[] = {
    &bench_ablation_spec,
    &bench_adaptcache_spec,
    &bench_codecs_spec,
    &bench_devices_spec,
    &bench_drift_spec,
    &bench_extent_spec,
    &bench_grid_spec,
    &bench_live_spec,
    &bench_loads_spec,
    &bench_policy_spec,
    &bench_restart_spec,
    &bench_stripe_spec,
    NULL,
};

const command_spec bench_spec = {
    .name = "bench",
    .summary = "measure the library's own parts beside this machine's limits",
    .about = "Measures parts of the library beside this machine's own limits. An interruption "
             "prints the rows that were finished and removes what the bench made.",
    .commands = bench_commands,
    .guard = bench_guard,
    .example = "  kvterrace bench codecs --quick",
};
