/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_adaptcache_command.c - kvterrace bench adaptcache. One thread.
 */
#include "command.h"
#include "data_files.h"

#include "lab/experiments/adaptcache_experiment.h"

#include <stdlib.h>
#include <string.h>

typedef struct bench_adaptcache_arguments {
    command_common common;
    experiment_options options;
} bench_adaptcache_arguments;

static const struct argp_option bench_adaptcache_argp_options[] = {
    {"quick", 'Q', NULL, 0, "60 contexts, one seed: shows that it runs", 0},
    {"seeds", 's', "COUNT", 0, "Runs of everything, 1 to 20 (default: 5)", 0},
    {"zipf", 'z', "X", 0, "Exponent of popularity, 0 to 2 (default: 0, every context alike)", 0},
    {"ladders", 'l', "DIR", 0, "Where ladder-adaptcache-*.csv are (default: profiles)", 0},
    {"texts", 't', "DIR", 0,
     "Real texts below DIR (leval, longbench, qmsum; .jsonl.zst) instead of the built-in table of "
     "their lengths",
     0},
    {0}};

static error_t bench_adaptcache_parse(int key, char *argument, struct argp_state *state)
{
    bench_adaptcache_arguments *arguments = state->input;
    experiment_options *options = &arguments->options;
    char *end;
    switch (key) {
    case ARGP_KEY_INIT: state->child_inputs[0] = &arguments->common; return 0;
    case 'Q':
        options->contexts = 60;
        options->seeds = 1;
        return 0;
    case 's':
        if (!command_parse_count(argument, EXPERIMENT_SEEDS, &options->seeds)) {
            argp_error(state, "--seeds: '%s' is not from 1 to %u", argument, EXPERIMENT_SEEDS);
        }
        return 0;
    case 'z':
        options->zipf = strtod(argument, &end);
        if (end == argument || *end != '\0' || !(options->zipf >= 0.0 && options->zipf <= 2.0)) {
            argp_error(state, "--zipf: '%s' is not a number from 0 to 2", argument);
        }
        return 0;
    case 'l': options->ladders = argument; return 0;
    case 't': options->texts = argument; return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

int command_bench_adaptcache(int argc, char **argv)
{
    static const char *const no_sections[] = {NULL};
    const struct argp_child children[] = COMMAND_CHILDREN;
    const struct argp argp = {
        .options = bench_adaptcache_argp_options,
        .parser = bench_adaptcache_parse,
        .doc = "AdaptCache's own experiment in virtual time: whole contexts of three task types on "
               "one A100 with 100 GB of DRAM and 400 GB of SSD at 1 GB/s. Its policy and ours at "
               "four weights of quality, against fixed compression in LRU order, no compression "
               "and prefill, at four rates.",
        .children = children};
    bench_adaptcache_arguments arguments;
    memset(&arguments, 0, sizeof arguments);
    experiment_options_init(&arguments.options);
    int code = command_load(&argp, argc, argv, &arguments);
    if (code != EXIT_FINE) return command_finish(code);
    code = command_report_unused(&arguments.common, no_sections);
    if (code == EXIT_FINE) {
        char message[COMMAND_MESSAGE_BYTES] = "";
        arguments.options.ladders = command_data_path(&arguments.common, arguments.options.ladders);
        arguments.options.json = arguments.common.json;
        arguments.options.quiet = arguments.common.quiet;
        kvt_status status = experiment_run(&arguments.options, message, sizeof message);
        code = status == KVT_OK ? EXIT_FINE : command_fail(status, message);
    }
    command_unload(&arguments.common);
    return command_finish(code);
}
