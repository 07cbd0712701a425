/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reuse.h - how soon entries of a class come back.
 *
 * Thread rule: one thread at a time per object.
 */
#ifndef ESTIMATOR_REUSE_H
#define ESTIMATOR_REUSE_H

#include <kvterrace/kvterrace.h>

/*
 * Watches a sample of the entries and fits, for each class,
 *
 *     rate of uses at t = branching * (ln 2 / h) * sum over uses before t of 2^(-(t - t_use) / h),
 *
 * which is what the policy's decayed counters predict with, for half lives h from 10 s to 6 h at
 * once. One thread at a time; memory is taken at open alone.
 */
typedef struct kvt_reuse kvt_reuse;

#define KVT_REUSE_CLASSES 64u /* higher numbers count as class 0 */

/* entries: how many are watched at most, 64 to 2^20; 0 = 4096. KVT_OK; KVT_E_ARGUMENT;
 * KVT_E_MEMORY.
 */
KVT_NODISCARD kvt_status kvt_reuse_open(uint32_t entries, kvt_reuse **reuse_out);
void kvt_reuse_close(kvt_reuse *reuse);

/* One use of an entry. handle: not 0, well mixed. Time never steps back. */
void kvt_reuse_use(kvt_reuse *reuse, uint64_t now_ns, uint64_t handle, uint32_t class_id);

/* KVT_OK; KVT_E_ARGUMENT (no such class). Some milliseconds. */
KVT_NODISCARD kvt_status kvt_reuse_read(kvt_reuse *reuse, uint64_t now_ns, uint32_t class_id,
                                        kvt_reuse_class *out);

#endif
