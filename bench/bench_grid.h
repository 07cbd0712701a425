/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_grid.h - the grid: many workloads replayed in virtual time, the engine with its defaults
 * beside every policy that it would replace. Shared by the files bench_grid*.c.
 *
 * A cell is a workload, a capacity, its devices and the forms that all policies may use. Half of
 * the cells of every family are hidden: nobody looks at them while the engine is being tuned.
 */
#ifndef BENCH_BENCH_GRID_H
#define BENCH_BENCH_GRID_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

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
    bool lossless;             /* the forms are raw and lossless, else raw alone */
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

const char *grid_family_name(grid_family family);
const char *grid_half_name(grid_half half);

#endif
