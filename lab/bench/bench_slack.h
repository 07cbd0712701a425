/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_slack.h - a pass that loads layer by layer beside writes, on a store with given parts: for
 * the cases slack (bench_slack.c) and ablation (bench_ablation.c).
 *
 * Thread rule: one case at a time.
 */
#ifndef BENCH_BENCH_SLACK_H
#define BENCH_BENCH_SLACK_H

#include "bench_parts.h"
#include "bench_store.h"

#include <kvterrace/load.h>
#include <kvterrace/ring.h>

enum {
    SLACK_LAYERS = 8,
    SLACK_ENTRIES = 32, /* of the whole context */
    SLACK_PLACES = 64,  /* that writes go to in turn */
    SLACK_ORDERS_MOST = 5
};

#define SLACK_LEAST_LEFT 0.1 /* of a pass that leaves nothing: writes are asked for all the same */

extern const char *const bench_slack_names[SLACK_ORDERS_MOST];

/* 2 x 64 tokens x 8 heads x 128 x bf16: 256 KiB a layer, 2 MiB an entry. */
extern const kvt_layout bench_slack_layout;

typedef struct slack_bench {
    const bench_options *options;
    bench_report *report;
    uint32_t iterations, entries;
    double mix;         /* that the drives lose; NAN: as they are */
    double bytes_per_s; /* of all drives */
    kvt_store *store;
    kvt_queue *queue;
    kvt_ring *ring; /* or NULL */
    uint64_t ring_next;
    uint32_t region;
    kvt_key keys[SLACK_ENTRIES];
    kvt_view views[SLACK_ENTRIES];
    char *source, *targets;
    tiers_location *places[SLACK_PLACES];
    FILE *log; /* of decisions, or NULL */
} slack_bench;

/* How a store lies on the drives and uses them. */
typedef struct slack_site {
    bool ring; /* layers are read by one */
    kvt_io_order order;
    kvt_placement placement;
    const char *slots;   /* of the tier, or NULL */
    const char *profile; /* with a ladder of raw and of this variant, or NULL */
    const char *variant;
} slack_site;

/* Opens a store on the drives, with the context on them; closes it. */
kvt_status bench_slack_open(slack_bench *bench, const slack_site *site);
void bench_slack_close(slack_bench *bench);

/* Seconds of the drives that a pass without writes leaves, and its length. */
double bench_slack_left(const slack_bench *bench, double hit, double *seconds_out);

/* Medians over repetitions of one case; alone: of the same passes without writes, which are run in
 * turn with those with them. */
typedef struct slack_figures {
    bench_rate blocked, written, seconds, alone;
    double wait_p99, modelled;
} slack_figures;

/* Repeats one case: a hit rate, and writes that ask for so many seconds of the drives. table: what
 * the announced seconds are multiplied by. */
kvt_status bench_slack_repeat(slack_bench *bench, kvt_io_order order, bool serial, double hit,
                              double ask_seconds, double table, slack_figures *out);

/* Scaled to milliseconds. */
bench_rate bench_slack_ms(bench_rate rate);

/* Runs `all` on the case's drives, without a loss by mixing and with one where they are emulated;
 * done and count: of these rounds. */
kvt_status bench_slack_case_of(const bench_options *options, bench_report *report,
                               kvt_status (*all)(slack_bench *bench, uint32_t done,
                                                 uint32_t count));

#endif
