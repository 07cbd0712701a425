/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_parts.h - what the benches of devices and stores share: repetitions of a measurement,
 * transfers through a pool as one, reports, the folder for files.
 *
 * Thread rule: one bench at a time.
 */
#ifndef BENCH_BENCH_PARTS_H
#define BENCH_BENCH_PARTS_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "bench.h"
#include "tiers/devices/device_ops.h"
#include "tiers/pool/pool.h"

enum { BENCH_ITERATIONS_MAX = 1000 };

/* Over the repetitions; all zero = not measured. */
typedef struct bench_rate {
    double median;
    double min;
    double max;
} bench_rate;

/* Sorts the samples. */
bench_rate bench_rate_of(double *samples, uint32_t count);

double bench_bytes_per_s(uint64_t bytes, uint64_t nanoseconds);

/* wanted, or what a bench does by default, within bounds; 1 when quick. */
uint32_t bench_repetitions(uint32_t wanted, uint32_t usual, bool quick);

/* Bytes that do not compress and are there: a zero page would be copied from the cache. Aligned for
 * transfers; NULL without memory. */
void *bench_buffer(uint64_t bytes);

enum { BENCH_OWN_DRIVES = 4 };

/* Gives a bench without devices memory devices behind a throttle: 100, 100, 200 and 400 MB/s, of so
 * many bytes, and with so much added to each operation. `own` lasts as long as the options. */
void bench_give_drives(bench_options *given, uint64_t capacity_bytes, uint64_t latency_ns,
                       kvt_device_config own[BENCH_OWN_DRIVES]);

/* The first device whose content may not be lost; NULL: none. */
const kvt_device_config *bench_kept_drive(const bench_options *options);

/* One transfer of a whole object. spread_out may be NULL: how much later the last member was done
 * than the first, as a share of the first one's time. */
kvt_status bench_move(tiers_pool *pool, kvt_io_kind kind, const tiers_location *location,
                      void *buffer, double *bytes_per_s, double *spread_out);

/* key, key_min and key_max; null when it was not measured. Not 0 = out of memory. */
int bench_put_rate(json_t *object, const char *key, const bench_rate *rate);

/* An object with what every report begins with: schema, version, host, repetitions. */
json_t *bench_report_head(const char *schema, uint32_t repetitions);

/* Prints a document, which it frees, with its final newline; NULL is a failure. */
int bench_report_print(FILE *out, json_t *root);

/* Megabytes per second with its spread, or a dash, in a cell of 22 columns. */
void bench_print_cell(FILE *out, const bench_rate *rate);

/* ---- scratch ---- */

/*
 * The folder that a bench puts its files into, and its removal: by the bench, or by the process
 * above it when the bench was interrupted.
 */

/* Makes the folder parent/kvterrace-NAME-XXXXXX (parent NULL: /var/tmp). Not 0: it cannot be made,
 * and errno says why. One at a time. */
int bench_scratch_make(const char *parent, const char *name, char *folder, size_t size);

/* Removes the folder that was made last with the files in it; nothing when there is none. */
void bench_scratch_remove(void);

/* From now on the folder's name is known to the processes on both sides of a fork. Call it before
 * the fork. Not 0: no memory. */
int bench_scratch_share(void);

#endif
