/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_keep.h - the parts of the case keep.
 *
 * Thread rule: one case at a time.
 */
#ifndef BENCH_BENCH_KEEP_H
#define BENCH_BENCH_KEEP_H

#include "bench.h"

/* Rows of "seal_cores": encryption and decryption by unit, and of "seal_drives": a drive alone and
 * all as one pool, plain and encrypted. The devices are overwritten. */
KVT_NODISCARD kvt_status bench_keep_seal(const bench_options *options, bench_report *report);

/* Rows of "reopen": opens of a store with 1e5 and with 1e6 entries (options->iterations: with so
 * many alone) that a store before has left, plain and with serve_early: seconds until it returns,
 * until a first hit and until all is known, and processor seconds; 17 GB in the working folder.
 * KVT_E_CORRUPT: an entry was not known, or gave other bytes. */
KVT_NODISCARD kvt_status bench_keep_reopen(const bench_options *options, bench_report *report);

#endif
