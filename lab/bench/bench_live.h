/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_live.h - the live bench: its settings, what one run of a store and of the simulator gave,
 * and the judgement over all of them.
 *
 * Thread rule: one bench at a time; the judgement is pure.
 */
#ifndef BENCH_BENCH_LIVE_H
#define BENCH_BENCH_LIVE_H

#include "bench.h"

#include "replay/replay.h"

#include <kvterrace/kvterrace.h>

enum { LIVE_SETTINGS = 8, LIVE_POLICIES = 6, LIVE_NAME_BYTES = 40 };

/* The promises of every row. */
#define LIVE_RATIO_MOST 0.10 /* live over simulated mean time to the first token, from 1 */
#define LIVE_RANK_LEAST 0.05 /* policies whose simulated means differ by more must rank alike */

/* One set of devices and one load. */
typedef struct live_setting {
    const char *name;
    double ssd_bytes_per_s; /* reads; 0 = DRAM alone */
    double write_share;     /* of the read bandwidth, of the SSD; 0 without one */
    double rho;             /* the servers' busy share if they computed everything */
} live_setting;

extern const live_setting live_settings[LIVE_SETTINGS];
extern const char *const live_policies[LIVE_POLICIES];

/* The figures kept of one run. */
typedef struct live_reading {
    double ttft_s;                    /* mean, unscaled */
    double ttft_least_s, ttft_most_s; /* of the runs that it is a mean of */
    double service_s, wait_s, put_s;
    double rho;
    double hit_ratio; /* tokens of the leading run */
    uint64_t busy;    /* puts that the store could not take in time */
    uint64_t puts, refused, demotions, promotions, evictions;
    uint64_t written_bytes; /* to SSD */
    uint64_t wrong_bytes;
} live_reading;

/* One policy in one setting. */
typedef struct live_row {
    uint32_t setting, policy;
    live_reading live, sim;
    double ratio;                 /* live.ttft_s over sim.ttft_s */
    uint32_t rank_live, rank_sim; /* within the setting, 1 = the smallest mean */
    bool within;                  /* the ratio is as promised */
} live_row;

typedef struct live_totals {
    uint32_t rows, within;
    double ratio_least, ratio_most;
    uint32_t pairs;    /* of one setting's policies, which the simulator tells apart */
    uint32_t inverted; /* of them, those that the store ranks otherwise */
    uint64_t wrong_bytes;
    bool met; /* all promises */
} live_totals;

typedef struct live_results {
    uint32_t setting_count, policy_count;
    live_row rows[LIVE_SETTINGS * LIVE_POLICIES]; /* setting by setting */
    uint32_t row_count;
    double dram_overhead_s, ssd_overhead_s; /* of one get beside its transfer */
    double put_overhead_s;
    double budget_s, seconds;
    live_totals totals;
} live_results;

/* Fills ratio, ranks and within of every row from the readings, and the totals. Rows of one
 * setting are neighbours. */
void live_judge(live_results *results);

void live_report(bench_report *report, const live_results *results);

/* ---- live site ---- */

/*
 * The store that the live bench runs on.
 */

#define SITE_DRAM_BYTES_PER_S 4e9
#define SITE_SLACK_BYTES      (UINT64_C(1) << 20)
#define SITE_PUT_STAGING      (UINT64_C(8) << 20)
#define SITE_STAGING_BYTES    (UINT64_C(16) << 20)

typedef struct live_site {
    kvt_device_config devices[KVT_TIER_COUNT];
    kvt_store_options store; /* points into the site */
} live_site;

/* Seconds of a call beside the transfer of its bytes, medians. */
typedef struct live_overheads {
    double get_s;
    double put_s; /* of the caller */
} live_overheads;

#endif
