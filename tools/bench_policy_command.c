/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_policy_command.c - kvterrace bench policy. One thread.
 */
#include "commands.h"

#include "lab/bench/bench.h"

typedef struct bench_policy_arguments {
    command_common common;
    bench_policy_options options;
    command_progress bar;
    bool drift;
} bench_policy_arguments;

static const command_option bench_policy_rows[] = {
    QUICK_OPTION(bench_policy_arguments, options.quick,
                 "A thousand entries: shows that it runs, not how fast"),
    COUNT_OPTION(bench_policy_arguments, options.entries, "size", 1, 20000000,
                 "Instances of so many entries (default: 1k, 100k and 1m; above 2m the engine "
                 "alone)"),
    COUNT_OPTION(bench_policy_arguments, options.seeds, "seeds", 1, 7,
                 "Instances of each kind, 1 to 7 (default: 3; one of a million)"),
    FLAG_OPTION(bench_policy_arguments, drift, "drift", 0,
                "Popularity drifts instead: nested planes and AdaptCache's greedy beside a store "
                "with an unlimited exact copy (default: 1100 entries, 5 seeds)"),
    {0},
};

static int bench_policy_start(void *context)
{
    bench_policy_arguments *arguments = context;
    bench_policy_options *options = &arguments->options;
    char message[COMMAND_MESSAGE_BYTES] = "";
    options->out = stdout;
    options->json = arguments->common.json;
    options->quiet = arguments->common.quiet;
    options->progress = progress_show;
    options->progress_context = &arguments->bar;
    progress_start(&arguments->bar, &arguments->common);
    kvt_status status = arguments->drift ? bench_policy_drift_run(options, message, sizeof message)
                                         : bench_policy_run(options, message, sizeof message);
    progress_end(&arguments->bar);
    return status == KVT_OK ? EXIT_FINE : command_fail(status, message);
}

const command_spec bench_policy_spec = {
    .name = "policy",
    .summary = "the decision engine: distance to its bound, nanoseconds",
    .about = "Draws instances from seeds and compares our choice with its dual bound, with "
             "AdaptCache's greedy, with the best uniform variant and with LRU order; then lets "
             "the engine work on them, ten calls an entry, and says how far its own state is from "
             "the bound and how long its decisions take.",
    .example = "  kvterrace bench policy --size 100k --seeds 1",
    .options = bench_policy_rows,
    .argument_bytes = sizeof(bench_policy_arguments),
    .run = bench_policy_start,
};
