/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvlab.h - what the cases of kvlab take from the command line. One thread.
 */
#ifndef LAB_KVLAB_H
#define LAB_KVLAB_H

#include "estimator/quality/quality.h"
#include "lab/bench/bench.h"
#include "lab/decode/decode.h"
#include "lab/experiments/adaptcache_experiment.h"
#include "tools/command/command.h"

typedef struct lab_arguments lab_arguments;

/* One case of the program. */
typedef struct lab_case {
    const bench_case *bench;
    /* Makes the case's own options of the arguments; EXIT_FINE, or the code of a message that was
     * said. NULL: it has none. */
    int (*prepare)(lab_arguments *arguments);
    bool ends_between_runs; /* an interruption ends it there, and it prints what was finished */
    bool drives;            /* runs on the configured devices of SSD tiers, where there are any */
} lab_case;

/* All options of all cases; each case has some of them. 0 and NULL: not given. */
struct lab_arguments {
    command_common common;
    lab_case one;
    bench_options options;
    command_progress bar;
    uint32_t seeds, seed, threads, uses, rate, size, tokens, workers, loads, seconds;
    unsigned loss; /* the place in the choices */
    bool coarse;
    const char *variants, *ladders, *profile;
    command_list classes, dumps, names;
    double dram_gb, ssd_gb, ssd_gb_per_s, prefill_speed;
    char path[1024];
    /* What prepare makes for options.own. */
    bench_policy_options policy;
    bench_codecs_options codecs;
    decode_given_options given;
    bench_gpu_options gpu;
    decode_options decode;
    experiment_options experiment;
};

/* Runs the case of the arguments. */
int lab_run(void *arguments);

/* A check of a case that takes devices: the emulated drives' configuration where the command line
 * names neither a file nor a setting. */
int lab_take_drives(void *arguments);

extern const command_spec *const lab_commands[];

#endif
