/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_adaptcache_command.c - kvterrace bench adaptcache. One thread.
 */
#include "commands.h"
#include "data_files.h"

#include "lab/experiments/adaptcache_experiment.h"

typedef struct bench_adaptcache_arguments {
    command_common common;
    bool quick;
    uint32_t seeds; /* 0: the experiment's own */
    double zipf;
    const char *ladders, *texts; /* or NULL */
} bench_adaptcache_arguments;

static const command_option bench_adaptcache_options[] = {
    QUICK_OPTION(bench_adaptcache_arguments, quick, "60 contexts, one seed: shows that it runs"),
    COUNT_OPTION(bench_adaptcache_arguments, seeds, "seeds", 1, EXPERIMENT_SEEDS,
                 "Runs of everything, 1 to 20 (default: 5)"),
    {.name = "zipf",
     .argument = "X",
     .text = "Exponent of popularity, 0 to 2 (default: 0, every context alike)",
     .kind = OPTION_NUMBER,
     .offset = offsetof(bench_adaptcache_arguments, zipf),
     .most = 2},
    TEXT_OPTION(bench_adaptcache_arguments, ladders, "ladders", 0, "DIR",
                "Where ladder-adaptcache-*.csv are (default: profiles)"),
    TEXT_OPTION(bench_adaptcache_arguments, texts, "texts", 0, "DIR",
                "Real texts below DIR (leval, longbench, qmsum; .jsonl.zst) instead of the "
                "built-in table of their lengths"),
    {0},
};

static int bench_adaptcache_run(void *context)
{
    bench_adaptcache_arguments *arguments = context;
    char message[COMMAND_MESSAGE_BYTES] = "";
    experiment_options options;
    experiment_options_init(&options);
    if (arguments->quick) {
        options.contexts = 60;
        options.seeds = 1;
    }
    if (arguments->seeds > 0) options.seeds = arguments->seeds;
    if (arguments->ladders != NULL) options.ladders = arguments->ladders;
    options.ladders = command_data_path(&arguments->common, options.ladders);
    options.texts = arguments->texts;
    options.zipf = arguments->zipf;
    options.json = arguments->common.json;
    options.quiet = arguments->common.quiet;
    kvt_status status = experiment_run(&options, message, sizeof message);
    return status == KVT_OK ? EXIT_FINE : command_fail(status, message);
}

const command_spec bench_adaptcache_spec = {
    .name = "adaptcache",
    .summary = "AdaptCache's own experiment",
    .about = "AdaptCache's own experiment in virtual time: whole contexts of three task types on "
             "one A100 with 100 GB of DRAM and 400 GB of SSD at 1 GB/s. Its policy and ours at "
             "four weights of quality, against fixed compression in LRU order, no compression and "
             "prefill, at four rates.",
    .example = "  kvterrace bench adaptcache --quick",
    .options = bench_adaptcache_options,
    .argument_bytes = sizeof(bench_adaptcache_arguments),
    .run = bench_adaptcache_run,
};
