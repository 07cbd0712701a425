/* SPDX-License-Identifier: Apache-2.0 */
/*
 * size.h - the parts of kvterrace size: a grid of DRAM and SSD around a machine, simulated for
 * three policies, and the cheapest place in it.
 *
 * A cell costs DRAM and SSD at their prices, and the hours that servers spend on requests before
 * their first tokens (prefill, waiting for loads) at the price of a GPU hour. Queues hold no GPU.
 *
 * Thread rule: one thread, but for tools_size_grid_run, which simulates in threads of its own.
 */
#ifndef TOOLS_SIZE_H
#define TOOLS_SIZE_H

#include "commands.h"
#include "replay/replay.h"

#define SIZE_TIE 0.01 /* costs that differ by a smaller share are one */

enum { SIZE_AXIS_MAX = 24, SIZE_DRAWS_MAX = 100, SIZE_TEXT_BYTES = 32 };

typedef enum size_policy { SIZE_NONE, SIZE_LRU, SIZE_OURS, SIZE_POLICIES } size_policy;
extern const char *const tools_size_policy_names[SIZE_POLICIES];

typedef enum size_axis_name { SIZE_DRAM, SIZE_SSD, SIZE_AXES } size_axis_name;
extern const uint8_t tools_size_tiers[SIZE_AXES];

/* Capacities in rising order. */
typedef struct size_axis {
    uint64_t bytes[SIZE_AXIS_MAX];
    uint32_t count;
    bool grows; /* no option gave them */
} size_axis;

/* One simulation: a policy in a cell, on the workload itself (draw 0) or on one of its draws. */
typedef struct size_run {
    uint64_t bytes[SIZE_AXES]; /* of the machine, not of a sampled simulation */
    size_policy policy;
    uint32_t draw;
    bool done;
    bool steady;                 /* the servers keep up, so that a mean exists */
    double mean_s, p99_s;        /* time to the first token */
    double gpu_hours;            /* of all servers together, a day */
    double room[SIZE_AXES], gpu; /* costs of a month */
    double cost;                 /* their sum */
    double hits;                 /* share of the tokens */
} size_run;

typedef struct size_study {
    const command_common *common;
    replay_options options;       /* of the machine that the grid is around */
    uint64_t owned[SIZE_AXES];    /* of it, what is there already */
    size_axis axes[SIZE_AXES];    /* empty ones are filled with sizes around it */
    double prices[SIZE_AXES + 1]; /* of a GB (1e9 bytes) a month; of an hour of a server */
    uint32_t threads, draws;
    double sample; /* share of the sessions; below 0: as many as some minutes of a core can do */
    const replay_generator *generator;     /* NULL: the workload is a trace, or sampled */
    replay_workload workload;              /* as read or generated; then a sample of it */
    replay_workload drawn[SIZE_DRAWS_MAX]; /* sessions of it with replacement, or other seeds */
    uint32_t sessions, sampled;            /* 0: all of them are simulated */
    double room, pace; /* of a sample: its share of the blocks, and of the tokens and the time */
    uint64_t requests; /* these are of the whole workload */
    double tokens_per_s;
    double footprint; /* bytes of all its blocks */
    size_run *runs;   /* after tools_size_grid_run by draw, sizes, policy */
    size_t run_count;
    char message[COMMAND_MESSAGE_BYTES];
} size_study;

/* ---- size_machine.c: what the options say; EXIT_FINE, or EXIT_USAGE after a message ---- */

/* Reads "dram 64GiB, ssd 2TB at 6GB/s x2" and adds the settings that it stands for. */
int tools_size_machine_read(command_common *common, const char *text);

/* Reads "dram=0.14,ssd=0.01,gpu_hour=3" over what is there. */
int tools_size_prices_read(const char *text, double prices[SIZE_AXES + 1]);

/* Reads "64GiB,128GiB,0". */
int tools_size_axis_read(const char *option, const char *text, size_axis *axis);

/* Adds the settings that --model and --gpu stand for; either may be NULL. */
int tools_size_model_read(command_common *common, const char *model, const char *gpu);

/* size_grid.c: fills empty axes, and draws workloads. KVT_OK; KVT_E_MEMORY; KVT_E_SPACE. */
KVT_NODISCARD kvt_status tools_size_grid_make(size_study *study);

/* Simulates the grid, then draws of its advised cell. KVT_OK; KVT_E_CANCELLED, with what was
 * finished in place; what replay_run_sim returns. */
KVT_NODISCARD kvt_status tools_size_grid_run(size_study *study);

void tools_size_study_free(size_study *study);

/* ---- size_advice.c: what the runs say ---- */

/* The engine's cheapest run, unless LRU's is cheaper by more than 1 %. NULL: none is done. */
const size_run *tools_size_choose(const size_study *study);

typedef struct size_interval {
    double value, low, high; /* low and high NAN: no draws */
} size_interval;

enum { SIZE_SECONDS, SIZE_HOURS, SIZE_SAVINGS };
enum { SIZE_SENTENCES = 3, SIZE_SENTENCE_BYTES = 640 };

typedef struct size_advice {
    const size_run *run, *none;                   /* run NULL: nothing can be said */
    size_interval saved[SIZE_OURS][SIZE_SAVINGS]; /* over another policy: a request, a day */
    uint32_t cells, dearer; /* of the engine, and of them those that cost more than no cache */
    bool pays;
    char sentences[SIZE_SENTENCES][SIZE_SENTENCE_BYTES];
} size_advice;

void tools_size_advise(const size_study *study, size_advice *advice);

/* ---- size_print.c: how it is said ---- */

/* "64 GiB", "2 TB", "none". */
const char *tools_size_format_bytes(char text[SIZE_TEXT_BYTES], uint64_t bytes);

/* The document, schema "kvterrace-size-1"; NULL: out of memory. */
json_t *tools_size_document(const size_study *study, const size_advice *advice);
void tools_size_print_text(json_t *document, FILE *out);

/* size_config.c: the run's settings with the advised sizes and policy. KVT_OK; KVT_E_CONFIG;
 * KVT_E_IO; KVT_E_MEMORY. */
KVT_NODISCARD kvt_status tools_size_config_write(size_study *study, const size_advice *advice,
                                                 const char *path);

#endif
