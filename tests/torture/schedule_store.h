/* SPDX-License-Identifier: Apache-2.0 */
/*
 * schedule_store.h - a store under a schedule: one seed makes the store, its disks, what its
 * callers do, what fails, and who runs when.
 */
#ifndef TESTS_SCHEDULE_STORE_H
#define TESTS_SCHEDULE_STORE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct schedule_try {
    uint64_t seed;
    bool print_log;      /* on standard output, in the process that runs */
    bool quiet;          /* nothing on standard error either: a finding is expected */
    bool signals_narrow; /* a planted bug, see schedule.h */
    bool faultless;      /* no disk fails, so that every failed load is a finding; no kill */
} schedule_try;

/* What runs met, so that a workload that meets nothing is seen. */
typedef struct schedule_counts {
    uint64_t puts, refused, busy, hits, staged_hits, shared_reads, misses, timeouts;
    uint64_t promotions, demotions, evictions, aborted, copies, persisted, recovered;
    uint64_t load_failures, failed_operations, quarantined, readmitted, device_changes;
    uint64_t trims, outlived; /* entries that a close and an open had to keep, and did */
    uint64_t kills;
    uint64_t batches; /* of requests, through queues */
} schedule_counts;

typedef struct schedule_outcome {
    bool passed;
    uint64_t steps, hash;
    schedule_counts counts;
} schedule_outcome;

/* Runs one seed in a child process; in two when the seed kills the first. */
schedule_outcome schedule_store_try(const schedule_try *options);

/* Adds what one run met to what others did. */
void schedule_counts_add(schedule_counts *sum, const schedule_counts *more);

#endif
