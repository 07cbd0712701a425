/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_device_command.c - kvterrace bench devices, stripe and extent: configured devices, or the
 * emulated drives that tests/support/drives set up.
 *
 * One thread. Which devices may be overwritten is decided as for profile: see device_list.h.
 */
#include "command.h"
#include "device_list.h"

#include "lab/bench/bench.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* What tests/support/drives writes. Only root can, so nobody else chooses what is overwritten. */
#define BENCH_DRIVES "/run/kvterrace-drives/drives.ini"

typedef struct bench_arguments {
    command_common common;
    bool quick;
    bool no_devices; /* the bench takes none */
    uint32_t iterations;
    const char *directory;
} bench_arguments;

enum { BENCH_REPETITIONS_MAX = 999999, BENCH_OPERATIONS_MAX = 100000000 };

#define BENCH_COMMON_OPTIONS                                                                       \
    {"quick", 'Q', NULL, 0, "One short iteration: shows that it runs, not how fast", 0},           \
    {                                                                                              \
        "iterations", 'n', "N", 0, "Repetitions of each measurement", 0                            \
    }

static const struct argp_option bench_devices_options[] = {
    BENCH_COMMON_OPTIONS,
    {"directory", 'D', "DIR", 0, "Where test files go; they are removed afterwards", 0},
    {0},
};

static const struct argp_option bench_stripe_options[] = {
    BENCH_COMMON_OPTIONS,
    {0},
};

/* Takes the emulated drives' configuration when the command line names neither a file nor a
 * setting. */
static void bench_take_drives(command_common *common)
{
    if (common->file_count > 0 || common->setting_count > 0) return;
    if (access(BENCH_DRIVES, R_OK) == 0) command_add_file(common, BENCH_DRIVES);
}

static error_t bench_parse(int key, char *argument, struct argp_state *state)
{
    bench_arguments *arguments = state->input;
    const uint32_t most = arguments->no_devices ? BENCH_OPERATIONS_MAX : BENCH_REPETITIONS_MAX;
    switch (key) {
    case ARGP_KEY_INIT: state->child_inputs[0] = &arguments->common; return 0;
    case 'Q': arguments->quick = true; return 0;
    case 'D': arguments->directory = argument; return 0;
    case 'n':
        if (!command_parse_count(argument, most, &arguments->iterations)) {
            argp_error(state, "--iterations: '%s' is not from 1 to %u", argument, (unsigned)most);
        }
        return 0;
    case ARGP_KEY_SUCCESS:
        if (!arguments->no_devices) bench_take_drives(&arguments->common);
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

/* A folder for test files that is not there is the user's mistake. */
static int bench_check_directory(const bench_arguments *arguments)
{
    struct stat facts;
    char message[COMMAND_MESSAGE_BYTES];
    if (arguments->directory == NULL) return EXIT_FINE;
    int reason = stat(arguments->directory, &facts) != 0 ? errno
                 : S_ISDIR(facts.st_mode)                ? 0
                                                         : ENOTDIR;
    if (reason == 0) return EXIT_FINE;
    (void)snprintf(message, sizeof message, "--directory: %.300s: %s", arguments->directory,
                   strerror(reason));
    return command_fail(KVT_E_CONFIG, message);
}

/* Runs over the configured devices, those of SSD tiers alone if so wanted, or over what the bench
 * makes for itself. */
static int bench_run_list(bench_arguments *arguments, bool ssd_only,
                          int (*run)(const bench_options *options))
{
    kvt_device_config configs[DEVICE_LIST_MAX];
    bool overwrite[DEVICE_LIST_MAX];
    bool fast_path[DEVICE_LIST_MAX];
    bench_options options = {.out = stdout,
                             .json = arguments->common.json,
                             .quick = arguments->quick,
                             .iterations = arguments->iterations,
                             .scratch_folder = arguments->directory};
    static const char *const sections[] = {"device.*", NULL};
    char message[COMMAND_MESSAGE_BYTES] = "";
    device_list list = {0};
    kvt_status status = KVT_OK;
    if (kvt_config_device_at(arguments->common.config, 0)) {
        status = device_list_make(arguments->common.config, ".", 0, &list, message, sizeof message);
    }
    int code = status == KVT_OK ? command_report_unused(&arguments->common, sections)
                                : command_fail(status, message);
    if (code == EXIT_FINE) code = bench_check_directory(arguments);
    if (code == EXIT_FINE) {
        for (size_t i = 0; i < list.count; i++) {
            const device_item *item = &list.items[i];
            if (ssd_only && item->tier != KVT_TIER_SSD) continue;
            configs[options.device_count] = item->config;
            overwrite[options.device_count] = item->overwrite;
            /* A file in the tier of memory is a RAM-backed drive: what it takes is our own time. */
            fast_path[options.device_count++] =
                item->tier == KVT_TIER_DRAM && strcmp(item->config.backend, "file") == 0;
        }
        options.devices = options.device_count ? configs : NULL;
        options.overwrite = options.device_count ? overwrite : NULL;
        options.fast_path = options.device_count ? fast_path : NULL;
        code = run(&options);
    }
    device_list_free(&list);
    return code;
}

int command_bench_devices(int argc, char **argv)
{
    const struct argp_child children[] = COMMAND_CHILDREN;
    const struct argp argp = {
        .options = bench_devices_options,
        .parser = bench_parse,
        .doc = "Reads and writes every configured device through a pool, beside memcpy, and a "
               "stripe over two throttled members with proportional and with equal shares. A "
               "device with content is only read, unless store.format gives it up.\v"
               "Without --config and --set it takes the drives of tests/support/drives, where "
               "they are up, and else a memory device and a file.",
        .children = children};
    bench_arguments arguments = {0};
    int code = command_load(&argp, argc, argv, &arguments);
    if (code != EXIT_FINE) return code;
    code = bench_run_list(&arguments, false, bench_devices_run);
    command_unload(&arguments.common);
    return command_finish(code);
}

int command_bench_stripe(int argc, char **argv)
{
    const struct argp_child children[] = COMMAND_CHILDREN;
    const struct argp argp = {
        .options = bench_stripe_options,
        .parser = bench_parse,
        .doc = "Overwrites and reads every configured device of the tier ssd alone, then all of "
               "them as one pool, with proportional and equal shares and in turn (round robin), "
               "objects of 16, 64 and 256 MiB.\v"
               "Without --config and --set it takes the drives of tests/support/drives, where "
               "they are up, and else four throttled memory devices.",
        .children = children};
    bench_arguments arguments = {0};
    int code = command_load(&argp, argc, argv, &arguments);
    if (code != EXIT_FINE) return code;
    code = bench_run_list(&arguments, true, bench_stripe_run);
    command_unload(&arguments.common);
    return command_finish(code);
}

int command_bench_loads(int argc, char **argv)
{
    const struct argp_child children[] = COMMAND_CHILDREN;
    const struct argp argp = {
        .options = bench_stripe_options,
        .parser = bench_parse,
        .doc =
            "A store on every configured device of the tier ssd, which are overwritten, predicts "
            "how long each load will take: one reader, four, and four beside a writer. How far "
            "the predictions are off, and the same loads off themselves when done twice.\v"
            "Without --config and --set it takes the drives of tests/support/drives, where "
            "they are up, and else four throttled memory devices.",
        .children = children};
    bench_arguments arguments = {0};
    int code = command_load(&argp, argc, argv, &arguments);
    if (code != EXIT_FINE) return code;
    code = bench_run_list(&arguments, true, bench_loads_run);
    command_unload(&arguments.common);
    return command_finish(code);
}

int command_bench_drift(int argc, char **argv)
{
    const struct argp_child children[] = COMMAND_CHILDREN;
    const struct argp argp = {
        .options = bench_devices_options,
        .parser = bench_parse,
        .doc =
            "A store serves from emulated drives. The last one halves its speed: how long until "
            "new objects are read at 0.9 of the new sum, what old ones get, what moving the hot "
            "ones costs. The second one's server is killed and comes back: reads that were wrong "
            "or late, and what returns.\v"
            "Takes the drives of tests/support/drives, where they are up, without --config and "
            "--set.",
        .children = children};
    bench_arguments arguments = {0};
    int code = command_load(&argp, argc, argv, &arguments);
    if (code != EXIT_FINE) return code;
    code = bench_run_list(&arguments, true, bench_drift_run);
    command_unload(&arguments.common);
    return command_finish(code);
}

int command_bench_ablation(int argc, char **argv)
{
    const struct argp_child children[] = COMMAND_CHILDREN;
    const struct argp argp = {
        .options = bench_stripe_options,
        .parser = bench_parse,
        .doc = "Loads KV of 1K to 128K tokens in six ways, from two throttled memory members and "
               "every configured device of the tier ssd, which are overwritten: one after the "
               "other or as one pool, through the page cache or not, layer by layer or not.\v"
               "Without --config and --set it takes the drives of tests/support/drives, where "
               "they are up, and else four throttled memory devices, which have no page cache.",
        .children = children};
    bench_arguments arguments = {0};
    int code = command_load(&argp, argc, argv, &arguments);
    if (code != EXIT_FINE) return code;
    code = bench_run_list(&arguments, true, bench_ablation_run);
    command_unload(&arguments.common);
    return command_finish(code);
}

int command_bench_restart(int argc, char **argv)
{
    static const struct argp_option rows[] = {
        {"quick", 'Q', NULL, 0, "2,000 entries, one run: shows that it runs", 0},
        {"iterations", 'n', "N", 0, "Entries (default 100,000 and 1,000,000)", 0},
        {"directory", 'D', "DIR", 0, "Where the members go; they are removed afterwards", 0},
        {0},
    };
    static const char *const sections[] = {NULL};
    const struct argp_child children[] = COMMAND_CHILDREN;
    const struct argp argp = {
        .options = rows,
        .parser = bench_parse,
        .doc = "Stores of many small entries on four members end by a close and by kill -9, with "
               "copies and write-back and without: seconds until they are open again, and the "
               "share of the bytes that comes back. Then gets beside the background's "
               "write-back.\v"
               "Up to 200,000 entries the members are files of 24 KiB an entry in DIR (/var/tmp); "
               "beyond, they keep their labels alone, which the output marks.",
        .children = children};
    bench_arguments arguments = {.no_devices = true};
    int code = command_load(&argp, argc, argv, &arguments);
    if (code != EXIT_FINE) return code;
    const bench_options options = {.out = stdout,
                                   .json = arguments.common.json,
                                   .quick = arguments.quick,
                                   .iterations = arguments.iterations,
                                   .scratch_folder = arguments.directory};
    code = command_report_unused(&arguments.common, sections);
    if (code == EXIT_FINE) code = bench_check_directory(&arguments);
    if (code == EXIT_FINE) code = bench_restart_run(&options);
    command_unload(&arguments.common);
    return command_finish(code);
}

int command_bench_extent(int argc, char **argv)
{
    static const struct argp_option rows[] = {
        {"quick", 'Q', NULL, 0, "200,000 operations", 0},
        {"iterations", 'n', "N", 0, "Operations (default 10,000,000)", 0},
        {0},
    };
    static const char *const sections[] = {NULL};
    const struct argp_child children[] = COMMAND_CHILDREN;
    const struct argp argp = {.options = rows,
                              .parser = bench_parse,
                              .doc = "Random operations on the extent allocator, each timed and "
                                     "checked against a bitmap.",
                              .children = children};
    bench_arguments arguments = {.no_devices = true};
    int code = command_load(&argp, argc, argv, &arguments);
    if (code != EXIT_FINE) return code;
    const bench_options options = {.out = stdout,
                                   .json = arguments.common.json,
                                   .quick = arguments.quick,
                                   .iterations = arguments.iterations};
    code = command_report_unused(&arguments.common, sections);
    if (code == EXIT_FINE) code = bench_extent_run(&options);
    command_unload(&arguments.common);
    return command_finish(code);
}
