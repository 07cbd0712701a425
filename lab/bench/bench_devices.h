/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_devices.h - what the devices bench hands to its report.
 */
#ifndef BENCH_BENCH_DEVICES_H
#define BENCH_BENCH_DEVICES_H

#include "bench.h"
#include "bench_parts.h"
#include "tiers/devices/device_ops.h"

/* ---- the worker's path to a drive in memory beside fio's io_uring engine ---- */

/* One size and direction, or a drive of which nothing could be said. */
typedef struct bench_fast_row {
    char device[32];
    char engine[32];
    kvt_io_kind kind;
    uint32_t request_bytes;
    uint32_t depth;
    bool direct;
    bool registered;        /* our buffers were announced and taken; fio's always are */
    bench_rate ours;        /* bytes per second */
    bench_rate fio_default; /* submitting and waiting for one request at a time */
    bench_rate fio;         /* the better of its ways */
    uint32_t fio_batch;     /* which: requests that it submits and waits for at once */
    bench_rate ours_cpu;    /* processor seconds per 10^9 bytes */
    bench_rate fio_cpu;
    bench_rate paired; /* ours / fio, of neighbours in time */
    const char *note;  /* NULL, or why fio's part is missing; static */
} bench_fast_row;

enum { BENCH_FAST_ROWS = 4 };

/*
 * Measures one file or block device: reads and writes of 64 and 256 KiB at depth 8, in turn with
 * fio. Fills BENCH_FAST_ROWS rows and overwrites the device. KVT_OK also when fio is not installed,
 * which the rows say; else what the device says, with a message.
 */
KVT_NODISCARD kvt_status bench_fast_path(const kvt_device_config *config, uint32_t repetitions,
                                         bool quick, bench_fast_row *rows, char *message,
                                         size_t message_size);

/* ---- the devices bench ---- */

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
    uint32_t fast_count;
    bench_fast_row *fast_rows;
} bench_device_results;

#endif
