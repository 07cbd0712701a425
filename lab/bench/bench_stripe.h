/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_stripe.h - what the stripe bench hands to its report.
 */
#ifndef BENCH_BENCH_STRIPE_H
#define BENCH_BENCH_STRIPE_H

#include "bench.h"
#include "bench_rate.h"

/* One drive alone. */
typedef struct bench_stripe_drive {
    char name[32];
    char engine[32];
    bool direct;
    bool emulated;
    uint32_t depth_achieved;
    uint64_t object_bytes;
    bench_rate read; /* bytes per second */
    bench_rate write;
} bench_stripe_drive;

/* All drives at once. */
typedef struct bench_stripe_row {
    kvt_striping layout;
    uint64_t object_bytes;
    uint32_t repetitions;
    bench_rate read; /* bytes per second */
    bench_rate write;
    bench_rate read_spread; /* of the members' completion: (last - first) / first */
    bench_rate write_spread;
} bench_stripe_row;

typedef struct bench_stripe_results {
    uint32_t iterations;
    uint32_t unit_bytes;
    double read_sum; /* of the drives alone, bytes per second */
    double write_sum;
    uint32_t drive_count;
    bench_stripe_drive *drives;
    uint32_t row_count;
    bench_stripe_row *rows;
} bench_stripe_results;

/* Prints as options say. 0, or 1 when out cannot be written or memory is short. */
int bench_stripe_report(const bench_options *options, const bench_stripe_results *results);

#endif
