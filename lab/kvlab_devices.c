/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvlab_devices.c - the benches of devices, pools and stores: configured devices, or the
 * emulated drives that tests/support/drives set up.
 *
 * One thread. Which devices may be overwritten is decided as for profile: see device_list.h.
 */
#include "kvlab.h"
#include "tools/command/device_list.h"
#include "tools/command/variants.h"

#include "base/config_values.h"
#include "lab/bench/bench.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* What tests/support/drives writes. Only root can, so nobody else chooses what is overwritten. */
#define BENCH_DRIVES "/run/kvterrace-drives/drives.ini"

#define BENCH_DRIVES_OR                                                                            \
    "Without --config and --set it takes the drives of tests/support/drives, where they are up, "  \
    "and "

typedef struct bench_arguments {
    command_common common;
    bench_options options;
    command_progress bar;
    int (*bench)(const bench_options *options);
    enum { BENCH_OWN, BENCH_SSD, BENCH_ANY } devices; /* makes its own; configured ones */
} bench_arguments;

#define BENCH_QUICK(help) QUICK_OPTION(bench_arguments, options.quick, help)
#define BENCH_COUNT(most, help)                                                                    \
    COUNT_OPTION(bench_arguments, options.iterations, "iterations", 1, most, help)
#define BENCH_FOLDER(help) FOLDER_OPTION(bench_arguments, options.scratch_folder, help)
#define BENCH_SHORT        BENCH_QUICK("One short iteration: shows that it runs, not how fast")
#define BENCH_REPETITIONS  BENCH_COUNT(999999, "Repetitions of each measurement")

static const command_option bench_list_options[] = {BENCH_SHORT, BENCH_REPETITIONS, {0}};

static const command_option bench_folder_options[] = {
    BENCH_SHORT,
    BENCH_REPETITIONS,
    BENCH_FOLDER("Where test files go; they are removed afterwards"),
    {0},
};

static const command_option bench_restart_options[] = {
    BENCH_QUICK("2,000 entries, one run: shows that it runs"),
    BENCH_COUNT(100000000, "Entries (default 100,000 and 1,000,000)"),
    BENCH_FOLDER("Where the members go; they are removed afterwards"),
    {0},
};

static const command_option bench_store_options[] = {
    BENCH_QUICK("160 MiB of each size, 20,000 entries looked up"),
    COUNT_OPTION(bench_arguments, options.iterations, "size", 1, 100000000,
                 "Entries that are looked up (default 1,000,000)"),
    {0},
};

static const command_option bench_live_options[] = {
    BENCH_QUICK("Two settings and half the requests"),
    {0},
};

/* Takes the emulated drives' configuration when the command line names neither a file nor a
 * setting. */
static int bench_take_drives(void *context)
{
    command_common *common = context;
    if (common->files.count == 0 && common->settings.count == 0 && access(BENCH_DRIVES, R_OK) == 0)
        command_list_add(&common->files, BENCH_DRIVES);
    return EXIT_FINE;
}

/* A folder for test files that is not there is the user's mistake. */
static int bench_check_directory(const bench_arguments *arguments)
{
    struct stat facts;
    char message[COMMAND_MESSAGE_BYTES];
    if (arguments->options.scratch_folder == NULL) return EXIT_FINE;
    int reason = stat(arguments->options.scratch_folder, &facts) != 0 ? errno
                 : S_ISDIR(facts.st_mode)                             ? 0
                                                                      : ENOTDIR;
    if (reason == 0) return EXIT_FINE;
    (void)snprintf(message, sizeof message, "--directory: %.300s: %s",
                   arguments->options.scratch_folder, strerror(reason));
    return command_fail(KVT_E_CONFIG, message);
}

static int bench_start(bench_arguments *arguments, bench_options *options)
{
    int code = bench_check_directory(arguments);
    if (code != EXIT_FINE) return code;
    options->out = stdout;
    options->json = arguments->common.json;
    options->progress = progress_show;
    options->progress_context = &arguments->bar;
    progress_start(&arguments->bar, &arguments->common);
    code = arguments->bench(options);
    progress_end(&arguments->bar);
    return code;
}

/* Runs over the configured devices, or those of SSD tiers alone; without any the bench makes its
 * own. */
static int bench_run_list(bench_arguments *arguments)
{
    static const char *const sections[] = {"device.*", NULL};
    kvt_device_config configs[DEVICE_LIST_MAX];
    bool overwrite[DEVICE_LIST_MAX];
    bench_options options = arguments->options;
    char message[COMMAND_MESSAGE_BYTES] = "";
    device_list list = {0};
    kvt_status status = KVT_OK;
    if (kvt_config_device_at(arguments->common.config, 0)) {
        status = device_list_make(arguments->common.config, ".", 0, &list, message, sizeof message);
    }
    int code = status == KVT_OK ? command_report_unused(&arguments->common, sections)
                                : command_fail(status, message);
    if (code == EXIT_FINE) {
        for (size_t i = 0; i < list.count; i++) {
            const device_item *item = &list.items[i];
            if (arguments->devices == BENCH_SSD && item->tier != KVT_TIER_SSD) continue;
            configs[options.device_count] = item->config;
            overwrite[options.device_count++] = item->overwrite;
        }
        options.devices = options.device_count ? configs : NULL;
        options.overwrite = options.device_count ? overwrite : NULL;
        code = bench_start(arguments, &options);
    }
    device_list_free(&list);
    return code;
}

static int bench_run(void *context)
{
    bench_arguments *arguments = context;
    return arguments->devices == BENCH_OWN ? bench_start(arguments, &arguments->options)
                                           : bench_run_list(arguments);
}

const command_spec bench_devices_spec = {
    .name = "devices",
    .summary = "each device: bytes per second",
    .about = "Reads and writes every configured device through a pool, beside memcpy, and a stripe "
             "over two throttled members with proportional and with equal shares. A device with "
             "content is only read, unless store.format gives it up.",
    .details = BENCH_DRIVES_OR "else a memory device and a file.",
    .example = "  kvlab devices --quick",
    .options = bench_folder_options,
    .argument_bytes = sizeof(bench_arguments),
    .standard = &(const bench_arguments){.bench = bench_devices_run, .devices = BENCH_ANY},
    .run = bench_run,
    .check = bench_take_drives,
    .settings = SETTINGS_OWN,
};

const command_spec bench_stripe_spec = {
    .name = "stripe",
    .summary = "all devices as one pool, by layout and size",
    .about = "Overwrites and reads every configured device of the tier ssd alone, then all of them "
             "as one pool, with proportional and equal shares and in turn (round robin), objects "
             "of 16, 64 and 256 MiB.",
    .details = BENCH_DRIVES_OR "else four throttled memory devices.",
    .example = "  kvlab stripe --quick",
    .options = bench_list_options,
    .argument_bytes = sizeof(bench_arguments),
    .standard = &(const bench_arguments){.bench = bench_stripe_run, .devices = BENCH_SSD},
    .run = bench_run,
    .check = bench_take_drives,
    .settings = SETTINGS_OWN,
};

const command_spec bench_sequence_spec = {
    .name = "sequence",
    .summary = "decode steps of a sparse sequence on the drives",
    .about = "One layer of a generator's context of 64K tokens lies on every configured device of "
             "the tier ssd, which are overwritten. Steps of queries: the drives' seconds and their "
             "share of what they could read, by layout, copies, window, precision and hints, with "
             "the error against full attention; beside them InfLLM, PQCache and SWARM at the same "
             "error.",
    .details = BENCH_DRIVES_OR "else four throttled memory devices.",
    .example = "  kvlab sequence --quick",
    .options = bench_list_options,
    .argument_bytes = sizeof(bench_arguments),
    .standard = &(const bench_arguments){.bench = bench_sequence_run, .devices = BENCH_SSD},
    .run = bench_run,
    .check = bench_take_drives,
    .settings = SETTINGS_OWN,
};

static const command_option bench_pipeline_options[] = {
    BENCH_QUICK("4,096 tokens, few steps: shows that it runs, not how fast"),
    COUNT_OPTION(bench_arguments, options.sequences, "sequences", 1, 16, "Sequences (default: 4)"),
    COUNT_OPTION(bench_arguments, options.compute_us, "compute", 1, 10000000,
                 "Microseconds of computing a layer of a sequence (default: the best method's "
                 "fetch)"),
    {0},
};

const command_spec bench_pipeline_spec = {
    .name = "pipeline",
    .summary = "tokens per second of several sparse sequences",
    .about = "Several sequences of two layers and 32K tokens of a generator decode over every "
             "configured device of the tier ssd, which are overwritten: select of one, fetch of "
             "another and compute of a third at once. Beside it full load, Quest, ShadowKV and "
             "RetroInfer at the same error, each with its own schedule. A layer's computing is a "
             "wait, for a GPU would do it; everything is measured again with none.",
    .details = BENCH_DRIVES_OR "else four throttled memory devices.",
    .example = "  kvlab pipeline --quick",
    .options = bench_pipeline_options,
    .argument_bytes = sizeof(bench_arguments),
    .standard = &(const bench_arguments){.bench = bench_pipeline_run, .devices = BENCH_SSD},
    .run = bench_run,
    .check = bench_take_drives,
    .settings = SETTINGS_OWN,
};

static const command_option bench_remote_options[] = {
    BENCH_QUICK("One repetition of little work: shows that it runs, not how fast"),
    FLAG_OPTION(bench_arguments, options.faults, "faults", 0,
                "Nodes are killed, stopped, filled and emptied under load"),
    {0},
};

const command_spec bench_remote_spec = {
    .name = "remote",
    .summary = "copies of entries on Valkey or Redis",
    .about = "Three servers of its own on this machine: gets and puts of objects by kvterrace's "
             "client, and gets of a store, checked and decoded; what asking for 512 keys takes, "
             "and what the engine's memory "
             "takes. With --faults: a store under load while nodes fail.",
    .example = "  kvlab remote --quick",
    .options = bench_remote_options,
    .argument_bytes = sizeof(bench_arguments),
    .standard = &(const bench_arguments){.bench = bench_remote_run},
    .run = bench_run,
};

const command_spec bench_restart_spec = {
    .name = "restart",
    .summary = "reopening a store: seconds, and what comes back",
    .about = "Stores of many small entries on four members end by a close and by kill -9, with "
             "copies and write-back and without: seconds until they are open again, and the share "
             "of the bytes that comes back. Then gets beside the background's write-back.",
    .details = "Up to 200,000 entries the members are files of 24 KiB an entry in DIR (/var/tmp); "
               "beyond, they keep their labels alone, which the output marks.",
    .example = "  kvlab restart --quick --iterations 10k",
    .options = bench_restart_options,
    .argument_bytes = sizeof(bench_arguments),
    .standard = &(const bench_arguments){.bench = bench_restart_run, .devices = BENCH_OWN},
    .run = bench_run,
};

const command_spec bench_store_spec = {
    .name = "store",
    .summary = "gets and puts in DRAM beside memcpy",
    .about =
        "Gets and puts entries of 32 KiB to 32 MiB in DRAM, one by one, beside memcpy of as "
        "many bytes that are as cold, in turns; gets in batches and on two threads; a lookup "
        "among a million entries; a prefix of 512 tiny entries. Says where the time of a get goes.",
    .details =
        "Takes 2 GiB of memory. Exits 1 when bytes are wrong. Of a get's time, checksum is what "
        "a checked copy takes beyond memcpy; below 0 where it is the faster one.",
    .example = "  kvlab store --quick",
    .options = bench_store_options,
    .argument_bytes = sizeof(bench_arguments),
    .standard = &(const bench_arguments){.bench = bench_store_run, .devices = BENCH_OWN},
    .run = bench_run,
};

const command_spec bench_live_spec = {
    .name = "live",
    .summary = "a store beside its simulation: mean times, ranks",
    .about = "A store on throttled memory serves requests by the clock, with real bytes, and the "
             "simulator serves the same ones: 8 settings of devices and load, 6 policies. Says how "
             "far the mean times to the first token lie apart and whether both rank the policies "
             "alike. Exits 1 when a mean differs by more than 10 %, when policies that the "
             "simulator tells apart by more than 5 % rank otherwise, or when bytes are wrong.",
    .example = "  kvlab live --quick",
    .options = bench_live_options,
    .argument_bytes = sizeof(bench_arguments),
    .standard = &(const bench_arguments){.bench = bench_live_run, .devices = BENCH_OWN},
    .run = bench_run,
};

static int transform_run(const bench_options *options)
{
    command_choose_blas();
    const kvt_status status = bench_transform_run(options);
    return status == KVT_OK ? EXIT_FINE : command_fail(status, "");
}

static const command_option transform_options[] = {BENCH_QUICK("Three repetitions of each timing"),
                                                   {0}};

const command_spec bench_transform_spec = {
    .name = "transform",
    .summary = "the transform codec's products beside sgemm",
    .about = "Times the matrix products of the transform codec beside OpenBLAS's sgemm on the "
             "blocks that occur, and encoding and decoding under a basis that is learnt on "
             "generated KV, on every instruction set. One thread.",
    .example = "  kvlab transform --quick",
    .options = transform_options,
    .argument_bytes = sizeof(bench_arguments),
    .standard = &(const bench_arguments){.bench = transform_run, .devices = BENCH_OWN},
    .run = bench_run,
};
