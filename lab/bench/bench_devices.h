/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_devices.h - what the devices bench hands to its report.
 */
#ifndef BENCH_BENCH_DEVICES_H
#define BENCH_BENCH_DEVICES_H

#include "bench.h"
#include "bench_parts.h"
#include "tiers/devices/device_ops.h"

typedef struct bench_device_row {
    char device[32]; /* its name, or "stripe" */
    char engine[32];
    const char *layout; /* stripe: "proportional" or "equal"; NULL for a device */
    uint64_t object_bytes;
    uint32_t unit_bytes;
    uint32_t members;
    uint32_t depth_achieved;
    bool direct;
    bool emulated;
    bench_rate read; /* bytes per second */
    bench_rate write;
    double device_sum_bytes_per_s; /* stripe: what its members are capped to, together */
} bench_device_row;

typedef struct bench_device_results {
    uint32_t iterations;
    bench_rate memcpy_rate; /* bytes per second, one thread */
    uint32_t row_count;
    bench_device_row *rows;
} bench_device_results;

#endif
