/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_grid_command.c - kvterrace bench grid. SIGINT and SIGTERM end the run between two replays,
 * and what was finished is printed. One thread; the replays have their own.
 */
#include "commands.h"

#include "lab/bench/bench_grid.h"

#include <stdlib.h>
#include <unistd.h>

typedef struct grid_arguments {
    command_common common;
    grid_options options;
    command_progress bar;
    unsigned tenths; /* told on stderr */
    unsigned half;   /* grid_half */
    bool list;
    const char *data;
    char traces[1024];
} grid_arguments;

static const command_option grid_rows[] = {
    QUICK_OPTION(grid_arguments, options.quick, "A quarter of the cells, smaller, with 3 seeds"),
    COUNT_OPTION(grid_arguments, options.seeds, "seeds", 1, GRID_SEEDS_MAX,
                 "Paired seeds of each cell, 1 to 100 (default: 10)"),
    {.name = "half",
     .argument = "NAME",
     .text = "all, tuning or hidden: only this half of the cells (default: all); tuning must look "
             "at the half of that name alone",
     .kind = OPTION_CHOICE,
     .offset = offsetof(grid_arguments, half),
     .extra = "all|tuning|hidden"},
    TEXT_OPTION(grid_arguments, options.cell, "cell", 0, "NAME", "Only this cell"),
    FLAG_OPTION(grid_arguments, list, "list", 0, "List the cells and run none"),
    TEXT_OPTION(grid_arguments, data, "data", 0, "DIR",
                "Where traces/ with the real traces is (default: $KVT_DATA_DIR); cells without "
                "their trace are skipped"),
    FLAG_OPTION(grid_arguments, options.store_model, "store-model", 0,
                "A modelled store, as replay.store_model, instead of an ideal one whose writes "
                "are free"),
    THREADS_OPTION(grid_arguments, options.threads, 64,
                   "Seeds at a time, 1 to 64 (one per processor)"),
    {0},
};

static void grid_take_data(grid_arguments *arguments, const char *folder)
{
    if (folder == NULL || folder[0] == '\0') return;
    (void)snprintf(arguments->traces, sizeof arguments->traces, "%.1000s/traces", folder);
    arguments->options.traces = arguments->traces;
}

static void grid_tell_budget(void *context, uint32_t cells, uint64_t replays, double minutes)
{
    const grid_arguments *arguments = context;
    command_note(&arguments->common,
                 "budget: %u cells, %llu replays, about %.1f minutes on %u threads", cells,
                 (unsigned long long)replays, minutes, arguments->options.threads);
}

static void grid_tell_skipped(void *context, const char *family, uint32_t cells, const char *why)
{
    const grid_arguments *arguments = context;
    command_note(&arguments->common, "%u cells of %s are skipped: %s (--data, KVT_DATA_DIR)", cells,
                 family, why);
}

static void grid_show(void *context, double done, const char *what)
{
    grid_arguments *arguments = context;
    progress_update(&arguments->bar, done, what);
    if (arguments->bar.shown || (unsigned)(done * 10.0) <= arguments->tenths) return;
    arguments->tenths = (unsigned)(done * 10.0);
    command_note(&arguments->common, "%u %%: %s", arguments->tenths * 10, what);
}

static int grid_start(void *context)
{
    grid_arguments *arguments = context;
    char message[COMMAND_MESSAGE_BYTES] = "";
    grid_options *options = &arguments->options;
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    if (options->threads == 0)
        options->threads = online > 64 ? 64 : online > 0 ? (uint32_t)online : 1;
    options->out = stdout;
    options->json = arguments->common.json;
    options->half = (grid_half)arguments->half;
    options->interrupted = command_interrupted;
    options->budget = grid_tell_budget;
    options->skipped = grid_tell_skipped;
    options->progress = grid_show;
    options->context = arguments;
    grid_take_data(arguments, arguments->data != NULL ? arguments->data : getenv("KVT_DATA_DIR"));
    if (arguments->list) {
        kvt_status listed = grid_print_list(options);
        return listed == KVT_OK ? EXIT_FINE : command_fail(listed, "");
    }
    command_catch_interrupts();
    progress_start(&arguments->bar, &arguments->common);
    kvt_status status = grid_run_all(options, message, sizeof message);
    progress_end(&arguments->bar);
    if (status == KVT_E_CANCELLED) return command_fail(status, "interrupted");
    return status == KVT_OK ? EXIT_FINE : command_fail_content(status, message);
}

const command_spec bench_grid_spec = {
    .name = "grid",
    .summary = "many workloads: the engine beside its rivals, and the bound",
    .about = "Replays many workloads in virtual time, the engine with its defaults beside every "
             "policy that it would replace, all with the same variants: generated sessions by "
             "turns, popularity, capacity and devices, long contexts, drift, scans, crowds, and "
             "real traces. Says for each cell the ratio to its best rival and the bound that no "
             "policy can pass.",
    .example = "  kvterrace bench grid --quick",
    .options = grid_rows,
    .argument_bytes = sizeof(grid_arguments),
    .run = grid_start,
    .own_guard = true,
};
