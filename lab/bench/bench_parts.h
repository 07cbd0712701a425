/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_parts.h - what the cases of devices and stores share: repetitions of a measurement,
 * transfers through a pool as one, drives.
 *
 * Thread rule: one bench at a time.
 */
#ifndef BENCH_BENCH_PARTS_H
#define BENCH_BENCH_PARTS_H

#include <stdbool.h>
#include <stddef.h>

#include "bench.h"
#include "lab/private.h"

enum { BENCH_ITERATIONS_MAX = 1000 };

/* wanted, or what a bench does by default, within bounds; 1 when quick. */
uint32_t bench_repetitions(uint32_t wanted, uint32_t usual, bool quick);

/* Bytes that do not compress and are there: a zero page would be copied from the cache. Aligned for
 * transfers; NULL without memory. */
void *bench_buffer(uint64_t bytes);

/* The processor time of the process, all threads together, in seconds. */
double bench_process_seconds(void);

enum { BENCH_OWN_DRIVES = 4 };

/* The case's options with the devices that it may overwrite: the given ones, or memory devices
 * behind a throttle of 100, 100, 200 and 400 MB/s, of so many bytes, and with so much added to each
 * operation. `own` lasts as long as the options. KVT_E_MISMATCH: a device's content may not be
 * lost. */
KVT_NODISCARD kvt_status bench_take_drives(bench_options *options, uint64_t capacity_bytes,
                                           uint64_t latency_ns,
                                           kvt_device_config own[BENCH_OWN_DRIVES],
                                           bench_report *report);

/* Rows of a table "coarse": progressive loads beside plain ones, on the case's drives. Without the
 * shipped profile of losses, which is looked for in the working folder, a row that says so. */
KVT_NODISCARD kvt_status bench_coarse_rows(const bench_options *options, bench_report *report);

/* One transfer of a whole object. spread_out may be NULL: how much later the last member was done
 * than the first, as a share of the first one's time. */
kvt_status bench_move(tiers_pool *pool, kvt_io_kind kind, const tiers_location *location,
                      void *buffer, double *bytes_per_s, double *spread_out);

/* Learns a basis of the transform codec of generated entries of a layout: its object, which free()
 * takes, and the basis in it. Rotary channels are all of a head. */
KVT_NODISCARD kvt_status bench_learn_basis(const kvt_layout *layout, uint8_t span,
                                           uint8_t **object_out, transform_basis *basis_out);

#endif
