/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_store_engine.c - the memory of a store's decision engine an entry. The file looks into the
 * engine, whose sizes no call tells.
 *
 * Thread rule: no call on the store meanwhile.
 */
#include "policy/engine.h"

#include "bench_store_entries.h"

void store_memory_decide(const kvt_policy *policy, store_memory *out)
{
    const double entries = out->entries;
    out->decision = (double)(sizeof *policy->entries * policy->entries_used) / entries;
    out->decision_lookup = (double)(sizeof *policy->buckets * policy->buckets_capacity) / entries;
    out->options = (double)(sizeof *policy->options * policy->options_used +
                            sizeof *policy->runs * policy->runs_capacity) /
                   entries;
}
