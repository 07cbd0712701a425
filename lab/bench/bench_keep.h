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

#endif
