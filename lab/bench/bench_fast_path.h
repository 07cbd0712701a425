/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_fast_path.h - the worker's path to a RAM-backed drive beside fio's io_uring engine.
 */
#ifndef BENCH_BENCH_FAST_PATH_H
#define BENCH_BENCH_FAST_PATH_H

#include "bench.h"
#include "bench_rate.h"
#include "tiers/devices/device_ops.h"

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

#endif
