/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_policy_command.c - kvterrace bench policy. One thread.
 */
#include "command.h"

#include "lab/bench/bench.h"

#include <stdio.h>

typedef struct bench_policy_arguments {
    command_common common;
    bench_policy_options options;
    bool drift;
} bench_policy_arguments;

static const struct argp_option bench_policy_argp_options[] = {
    {"quick", 'Q', NULL, 0, "A thousand entries: shows that it runs, not how fast", 0},
    {"entries", 'n', "COUNT", 0,
     "Instances of this size (default: 1000, 100000 and 1000000; above 2000000 the engine alone)",
     0},
    {"seeds", 's', "COUNT", 0, "Instances of each kind, 1 to 7 (default: 3; one of a million)", 0},
    {"drift", 'D', NULL, 0,
     "Popularity drifts instead: nested planes and AdaptCache's greedy beside a store with an "
     "unlimited exact copy (default: 1100 entries, 5 seeds)",
     0},
    {0}};

static error_t bench_policy_parse(int key, char *argument, struct argp_state *state)
{
    bench_policy_arguments *arguments = state->input;
    uint32_t *to = key == 'n' ? &arguments->options.entries : &arguments->options.seeds;
    uint32_t most = key == 'n' ? 20000000 : 7;
    switch (key) {
    case ARGP_KEY_INIT: state->child_inputs[0] = &arguments->common; return 0;
    case 'D': arguments->drift = true; return 0;
    case 'Q': arguments->options.quick = true; return 0;
    case 'n':
    case 's':
        if (!command_parse_count(argument, most, to)) {
            argp_error(state, "--%s: '%s' is not from 1 to %u", key == 'n' ? "entries" : "seeds",
                       argument, (unsigned)most);
        }
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

int command_bench_policy(int argc, char **argv)
{
    static const char *const no_sections[] = {NULL};
    const struct argp_child children[] = COMMAND_CHILDREN;
    const struct argp argp = {
        .options = bench_policy_argp_options,
        .parser = bench_policy_parse,
        .doc = "Draws instances from seeds and compares our choice with its dual bound, with "
               "AdaptCache's greedy, with the best uniform variant and with LRU order; then lets "
               "the engine work on them, ten calls an entry, and says how far its own state is "
               "from the bound and how long its decisions take.",
        .children = children};
    bench_policy_arguments arguments = {.options = {.out = stdout}};
    int code = command_load(&argp, argc, argv, &arguments);
    if (code != EXIT_FINE) return command_finish(code);
    code = command_report_unused(&arguments.common, no_sections);
    if (code == EXIT_FINE) {
        char message[COMMAND_MESSAGE_BYTES] = "";
        arguments.options.json = arguments.common.json;
        arguments.options.quiet = arguments.common.quiet;
        kvt_status status =
            arguments.drift ? bench_policy_drift_run(&arguments.options, message, sizeof message)
                            : bench_policy_run(&arguments.options, message, sizeof message);
        code = status == KVT_OK ? EXIT_FINE : command_fail(status, message);
    }
    command_unload(&arguments.common);
    return command_finish(code);
}
