/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_grid_command.c - kvterrace bench grid. SIGINT and SIGTERM end the run between two replays,
 * and what was finished is printed. One thread; the replays have their own.
 */
#include "command.h"

#include "lab/bench/bench_grid.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct grid_arguments {
    command_common common;
    grid_options options;
    command_progress bar;
    unsigned tenths; /* told on stderr */
    bool list;
    char traces[1024];
} grid_arguments;

enum {
    GRID_KEY_HALF = 0x100,
    GRID_KEY_DATA,
    GRID_KEY_LIST,
    GRID_KEY_THREADS,
    GRID_KEY_STORE_MODEL
};

static const struct argp_option grid_argp_options[] = {
    {"quick", 'Q', NULL, 0, "A quarter of the cells, smaller, with 3 seeds", 0},
    {"seeds", 's', "COUNT", 0, "Paired seeds of each cell, 1 to 100 (default: 10)", 0},
    {"half", GRID_KEY_HALF, "tuning|hidden|all", 0,
     "Only this half of the cells (default: all); whoever tunes looks at tuning alone", 0},
    {"cell", 'c', "NAME", 0, "Only this cell", 0},
    {"list", GRID_KEY_LIST, NULL, 0, "List the cells and run none", 0},
    {"data", GRID_KEY_DATA, "DIR", 0,
     "Where traces/ with the real traces is (default: $KVT_DATA_DIR); cells without their trace "
     "are "
     "skipped",
     0},
    {"store-model", GRID_KEY_STORE_MODEL, NULL, 0,
     "A modelled store, as replay.store_model, instead of an ideal one whose writes are free", 0},
    {"threads", GRID_KEY_THREADS, "N", 0, "Seeds at a time, 1 to 64 (one per processor)", 0},
    {0}};

static void grid_take_half(grid_options *options, const char *name, struct argp_state *state)
{
    for (int half = GRID_HALF_ALL; half <= GRID_HALF_HIDDEN; half++) {
        if (strcmp(grid_half_name((grid_half)half), name) != 0) continue;
        options->half = (grid_half)half;
        return;
    }
    argp_error(state, "--half: tuning, hidden or all, not '%s'", name);
}

static void grid_take_data(grid_arguments *arguments, const char *folder)
{
    if (folder == NULL || folder[0] == '\0') return;
    (void)snprintf(arguments->traces, sizeof arguments->traces, "%.1000s/traces", folder);
    arguments->options.traces = arguments->traces;
}

static error_t grid_parse(int key, char *argument, struct argp_state *state)
{
    grid_arguments *arguments = state->input;
    grid_options *options = &arguments->options;
    switch (key) {
    case ARGP_KEY_INIT: state->child_inputs[0] = &arguments->common; return 0;
    case 'Q': options->quick = true; return 0;
    case 's':
        options->seeds = command_option_count(state, "--seeds", argument, GRID_SEEDS_MAX);
        return 0;
    case 'c': options->cell = argument; return 0;
    case GRID_KEY_HALF: grid_take_half(options, argument, state); return 0;
    case GRID_KEY_DATA: grid_take_data(arguments, argument); return 0;
    case GRID_KEY_LIST: arguments->list = true; return 0;
    case GRID_KEY_STORE_MODEL: options->store_model = true; return 0;
    case GRID_KEY_THREADS:
        options->threads = command_option_count(state, "--threads", argument, 64);
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
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

static int grid_run_command(grid_arguments *arguments)
{
    char message[COMMAND_MESSAGE_BYTES] = "";
    grid_options *options = &arguments->options;
    options->json = arguments->common.json;
    if (arguments->list) {
        kvt_status listed = grid_print_list(options);
        return listed == KVT_OK ? EXIT_FINE : command_fail(listed, "");
    }
    command_catch_interrupts();
    progress_start(&arguments->bar, &arguments->common);
    kvt_status status = grid_run_all(options, message, sizeof message);
    progress_end(&arguments->bar);
    if (status == KVT_OK) return EXIT_FINE;
    if (status == KVT_E_CANCELLED) {
        fputs("kvterrace bench: interrupted\n", stderr);
        return EXIT_INTERRUPTED;
    }
    return command_fail_content(status, message);
}

int command_bench_grid(int argc, char **argv)
{
    static const char *const no_sections[] = {NULL};
    const struct argp_child children[] = COMMAND_CHILDREN;
    const struct argp argp = {
        .options = grid_argp_options,
        .parser = grid_parse,
        .doc =
            "Replays many workloads in virtual time, the engine with its defaults beside every "
            "policy that it would replace, all with the same forms: generated sessions by turns, "
            "popularity, capacity and devices, long contexts, drift, scans, crowds, and real "
            "traces. Says for each cell the ratio to its best rival and the bound that no policy "
            "can pass.",
        .children = children};
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    grid_arguments arguments;
    memset(&arguments, 0, sizeof arguments);
    arguments.options = (grid_options){.out = stdout,
                                       .threads = online > 64  ? 64
                                                  : online > 0 ? (uint32_t)online
                                                               : 1,
                                       .interrupted = command_interrupted,
                                       .budget = grid_tell_budget,
                                       .skipped = grid_tell_skipped,
                                       .progress = grid_show,
                                       .context = &arguments};
    grid_take_data(&arguments, getenv("KVT_DATA_DIR"));
    int code = command_load(&argp, argc, argv, &arguments);
    if (code != EXIT_FINE) return command_finish(code);
    code = command_report_unused(&arguments.common, no_sections);
    if (code == EXIT_FINE) code = grid_run_command(&arguments);
    command_unload(&arguments.common);
    return command_finish(code);
}
