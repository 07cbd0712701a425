/* SPDX-License-Identifier: Apache-2.0 */
/*
 * belady.h - the offline optimum for blocks of one size: evict the block whose next use is the
 * farthest. A bound on hit ratios, not a policy. One thread.
 */
#ifndef REPLAY_BELADY_H
#define REPLAY_BELADY_H

#include "workload.h"

/* Share of the workload's block references that hit in a cache of `blocks` blocks that knows the
 * future (Belady's MIN; a block that is not used again is never kept in favour of one that is).
 * Below 0 without memory. */
double replay_belady(const replay_workload *workload, uint64_t blocks);

#endif
