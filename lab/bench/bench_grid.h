/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_grid.h - the grid: many workloads replayed in virtual time, the engine with its defaults
 * beside every policy that it would replace. Shared by the files bench_grid*.c.
 *
 * A cell is a workload, a capacity, its devices and the variants that all policies may use. Half of
 * the cells of every family are hidden: nobody looks at them while the engine is being tuned.
 */
#ifndef BENCH_BENCH_GRID_H
#define BENCH_BENCH_GRID_H

#include "bench.h"

#include "replay/replay.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GRID_SEEDS_MAX 100u
#define GRID_RUNS_MAX  16u /* of a cell: policies, the single-variant ones once for each variant */
#define GRID_OURS      "utility"
#define GRID_WORST     5u
#define GRID_LIMIT     1.02 /* a cell is lost when its interval lies above it */
#define GRID_ROOM                                                                                  \
    1.05 /* a cell counts in the geometric mean when its best rival lies so far                    \
            above the bound */

typedef enum grid_family {
    GRID_SESSIONS, /* generated sessions: turns, popularity, capacity and devices vary */
    GRID_LONG,     /* contexts of 100,000 tokens */
    GRID_DRIFT,    /* popularity that drifts */
    GRID_SCAN,     /* scans that wash through */
    GRID_CROWD,    /* flash crowds */
    GRID_CONVERSATION,
    GRID_TOOLAGENT,
    GRID_AGENTIC,
    GRID_FAMILIES
} grid_family;

typedef struct grid_cell {
    const char *name;
    grid_family family;
    uint32_t turns; /* mean of a session; 0 = a trace has its own */
    double zipf;
    uint32_t capacity_percent; /* of the bytes of all distinct blocks of the workload, raw */
    double ssd_gb_per_s;       /* 0: all capacity is DRAM; else a fifth is DRAM, the rest SSD */
    bool lossless;             /* the variants are raw and lossless, else raw alone */
    double load;     /* of the servers in the busiest tenth of the span, if all is computed */
    bool quick;      /* a part of --quick */
    double strength; /* drift: trades per second; scan: share of the requests; crowd: sessions per
                        second beside the others */
} grid_cell;

typedef enum grid_half { GRID_HALF_ALL, GRID_HALF_TUNING, GRID_HALF_HIDDEN } grid_half;

size_t grid_cell_count(void);
const grid_cell *grid_cell_at(size_t index);

/* Whether the seed drew this cell for the hidden half. */
bool grid_is_hidden(size_t index);

/* ---- workloads ---- */

/* The traces and settings that all cells of a run share, read once. */
typedef struct grid_sources {
    bool quick;
    replay_options base; /* the defaults; no tier */
    replay_workload
        traces[GRID_FAMILIES];        /* of the families that have one and whose file is there */
    char missing[GRID_FAMILIES][128]; /* why a family has no trace, or "" */
} grid_sources;

/* Reads the traces that the chosen cells need from a folder; NULL: there is none. A trace that is
 * not there is no fault. KVT_OK; what replay_workload_read says of a file that is there. */
KVT_NODISCARD kvt_status grid_sources_open(grid_sources *sources, const char *folder,
                                           const bool needed[GRID_FAMILIES], char *message,
                                           size_t message_size);
void grid_sources_close(grid_sources *sources);

/* The workload of a cell and a seed, and what it is replayed with. Release the workload; options
 * point to nothing. */
KVT_NODISCARD kvt_status grid_draw_workload(const grid_sources *sources, const grid_cell *cell,
                                            uint64_t seed, replay_workload *workload,
                                            replay_options *options, char *message,
                                            size_t message_size);

/* ---- figures (bench_grid_figures.c) ---- */

/* One replay, cut down to what the report needs. */
typedef struct grid_sample {
    bool stable; /* the mean exists: the servers were never asked for more than they have */
    double ttft_s, wait_s, service_s;
    double loaded;                /* share of the tokens */
    double found[KVT_TIER_COUNT]; /* share of the tokens, by tier; [0]: together */
    double read_bytes[KVT_TIER_COUNT], written_bytes[KVT_TIER_COUNT];
    double puts, refused, busy, evicted, aborted; /* a request */
    /* Of the engine, seconds a request, or NAN (docs/decisions/0007-regrets.md): how far what it
     * holds is from the best at its own rates, and from the best for the uses that came. */
    double counters_s, foresight_s;
} grid_sample;

typedef struct grid_run {
    const char *policy;
    bool lossless; /* the variant of a policy that has one; false for those that choose */
    grid_sample samples[GRID_SEEDS_MAX];
} grid_run;

/* A mean and its 95 % interval. */
typedef struct grid_interval {
    double mean, low, high;
} grid_interval;

typedef struct grid_row {
    const grid_run *run;
    grid_sample mean;    /* over the seeds */
    grid_interval ratio; /* to the best rival, seed by seed; NAN: one of the two has no mean */
} grid_row;

/* A cell: its replays, and what is read from them. */
typedef struct grid_result {
    size_t index; /* of the cell */
    bool skipped;
    atomic_uint seeds_done;
    uint32_t run_count;
    grid_run *runs;
    double bound_s[GRID_SEEDS_MAX], kept_bound_s[GRID_SEEDS_MAX], footprint_bytes[GRID_SEEDS_MAX];
    uint32_t servers[GRID_SEEDS_MAX];
    uint64_t requests[GRID_SEEDS_MAX];
    /* grid_judge fills these. */
    bool judged;
    uint32_t row_count, best, ours; /* rows, one for each policy in its better variant */
    grid_row rows[GRID_RUNS_MAX];
    double bound_mean_s, kept_bound_mean_s;
} grid_result;

/* Mean and interval by Student's t; one value has no interval (NAN). */
grid_interval grid_interval_of(const double *values, uint32_t count);

/* Fills rows, best and ours from the samples of `seeds` seeds. */
void grid_judge(grid_result *result, uint32_t seeds);

typedef struct grid_totals {
    uint32_t cells, skipped, unfinished;
    uint32_t lost; /* intervals above GRID_LIMIT, and cells in which only rivals have a mean */
    uint32_t roomy;
    double geometric_mean; /* of the ratios of the roomy cells; NAN without one */
    uint32_t worst_count;
    const grid_result *worst[GRID_WORST];
} grid_totals;

void grid_sum(const grid_result *results, size_t count, grid_totals *totals);

/* One sentence: where the engine's seconds go that the best rival's do not. */
void grid_explain(const grid_result *result, char *text, size_t size);

/* ---- the run (bench_grid.c) and its report (bench_grid_report.c) ---- */

/* The cases' own options. */
typedef struct grid_options {
    grid_half half;
    const char *cell;   /* one cell by its name, or NULL */
    const char *traces; /* the folder of the traces, or NULL */
    uint32_t seeds;     /* 0 = 10, or 3 when quick */
    uint32_t threads;   /* 1 .. 64 */
    bool (*interrupted)(void);
} grid_options;

/* Replays the chosen cells. KVT_E_CANCELLED: interrupted; the cells that were finished are
 * reported. KVT_E_CONFIG: no such cell. */
extern const bench_case bench_grid_case;

/* The chosen cells alone. */
extern const bench_case bench_grid_list_case;

/* Whether the options choose this cell. */
bool grid_is_chosen(const bench_options *options, size_t index);

void grid_report(const bench_options *options, uint32_t seeds, const grid_result *results,
                 size_t count, double wall_s, bench_report *report);

const char *grid_family_name(grid_family family);
const char *grid_half_name(grid_half half);

#endif
