/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_live_command.c - kvterrace bench live. One thread.
 */
#include "command.h"

#include "lab/bench/bench.h"

typedef struct bench_live_arguments {
    command_common common;
    bench_options options;
} bench_live_arguments;

static const struct argp_option bench_live_argp_options[] = {
    {"quick", 'Q', NULL, 0, "Two settings and half the requests", 0}, {0}};

static error_t bench_live_parse(int key, char *argument, struct argp_state *state)
{
    (void)argument;
    bench_live_arguments *arguments = state->input;
    switch (key) {
    case ARGP_KEY_INIT: state->child_inputs[0] = &arguments->common; return 0;
    case 'Q': arguments->options.quick = true; return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

int command_bench_live(int argc, char **argv)
{
    static const char *const no_sections[] = {NULL};
    const struct argp_child children[] = COMMAND_CHILDREN;
    const struct argp argp = {
        .options = bench_live_argp_options,
        .parser = bench_live_parse,
        .doc = "A store on throttled memory serves requests by the clock, with real bytes, and the "
               "simulator serves the same ones: 8 settings of devices and load, 6 policies. Says "
               "how far the mean times to the first token lie apart and whether both rank the "
               "policies alike. Exits 1 when a mean differs by more than 10 %, when policies that "
               "the simulator tells apart by more than 5 % rank otherwise, or when bytes are "
               "wrong.",
        .children = children};
    bench_live_arguments arguments = {.options = {.out = stdout}};
    int code = command_load(&argp, argc, argv, &arguments);
    if (code != EXIT_FINE) return command_finish(code);
    code = command_report_unused(&arguments.common, no_sections);
    if (code == EXIT_FINE) {
        arguments.options.json = arguments.common.json;
        code = bench_live_run(&arguments.options) == 0 ? EXIT_FINE : EXIT_FAILED;
    }
    command_unload(&arguments.common);
    return command_finish(code);
}
