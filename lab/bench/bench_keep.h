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
 * many alone) that a store before has left, plain and with serve_early, the smaller one also
 * churned by puts and deletes of three times its entries: seconds until it returns,
 * until a first hit and until all is known, and processor seconds; 17 GB in the working folder.
 * KVT_E_CORRUPT: an entry was not known, or gave other bytes. */
KVT_NODISCARD kvt_status bench_keep_reopen(const bench_options *options, bench_report *report);

/* Rows of "scrub" and "scrub_drives": a store with 1,000 damaged records that nobody reads among
 * 4,000, beside gets of others: what the scrub finds within its period, its share of each drive,
 * and p99 of gets in blocks with it and without. KVT_E_CORRUPT: a fault was not found, or an entry
 * was lost or gave other bytes. */
KVT_NODISCARD kvt_status bench_keep_scrub(const bench_options *options, bench_report *report);

/* Rows of "slow" and "slow_gets": puts and gets on four drives, one of which answers 50 ms, then
 * 2 s late for a while. KVT_E_CORRUPT as above. */
KVT_NODISCARD kvt_status bench_keep_slow(const bench_options *options, bench_report *report);

#endif
