/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_ablation.h - what the ablation bench hands to its report.
 */
#ifndef BENCH_BENCH_ABLATION_H
#define BENCH_BENCH_ABLATION_H

#include "lab/bench/bench.h"
#include "lab/bench/bench_parts.h"

#include "tiers/pool/stripe.h"

enum { ABLATION_ROWS = 6, ABLATION_CONTEXTS = 5, ABLATION_LAYERS = 32, ABLATION_MEMORIES = 2 };

/* One way to load; each row but the last lacks something of the last one. */
typedef struct ablation_way {
    const char *name;
    bool pooled;    /* all devices at once, else one memory module and then one SSD */
    bool direct;    /* O_DIRECT with io_uring, else files through the page cache */
    bool layerwise; /* a layer loads while the one before is computed */
    bool async;     /* loading begins when the request arrives, and all of it is asked for */
} ablation_way;

extern const ablation_way ablation_ways[ABLATION_ROWS];

typedef struct ablation_cell {
    bench_rate blocked; /* seconds in which nothing is computed, after the queue */
    bench_rate loading; /* seconds in which anything is loaded */
} ablation_cell;

typedef struct ablation_context {
    uint32_t tokens;
    uint32_t repetitions;
    uint64_t bytes;
    uint64_t memory_bytes; /* of them in the memory members, in every row */
    double layer_seconds;  /* of computing one layer; given */
    double queue_seconds;  /* from arrival to the first layer's turn; given */
    double ideal_loading;  /* all devices at their own speed, all the time */
    double ideal_blocked;
    ablation_cell cells[ABLATION_ROWS];
} ablation_context;

typedef struct ablation_results {
    uint32_t repetitions;
    bool page_cache; /* the SSDs are files: what is buffered goes through it */
    bool emulated;
    uint32_t drive_count;
    double drive_bytes_per_s[TIERS_MEMBERS_MAX]; /* measured alone */
    double memory_bytes_per_s;                   /* cap of each memory member */
    double sum_bytes_per_s;
    uint32_t fastest; /* the drive that the rows without a pool use */
    uint32_t context_count;
    ablation_context contexts[ABLATION_CONTEXTS];
} ablation_results;

/* Prints as options say. 0, or 1 when out cannot be written or memory is short. */
int bench_ablation_report(const bench_options *options, const ablation_results *results);

#endif
