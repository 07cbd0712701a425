/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim_prefetch.c - what a request that has to wait asks for when it arrives (replay.prefetch): each
 * block of its leading run that lies below DRAM is offered for a move up, as kvt_store_prefetch
 * does. The policy weighs each offer; the replay loops find the run and carry the plans out. One
 * thread.
 */
#include "sim_state.h"

#include <assert.h>

/* The tier that blocks are brought up to: DRAM, or HBM without it; NONE without both. */
static kvt_tier prefetch_top(const replay_options *options)
{
    if (options->tiers[KVT_TIER_DRAM].capacity_bytes > 0) return KVT_TIER_DRAM;
    if (options->tiers[KVT_TIER_HBM].capacity_bytes > 0) return KVT_TIER_HBM;
    return KVT_TIER_NONE;
}

kvt_status sim_prefetch_offer(sim_state *sim, uint32_t block, uint8_t option, uint64_t now_ns)
{
    kvt_tier top = prefetch_top(sim->options);
    assert(sim->options->prefetch && option != KVT_OPTION_NONE && sim->plan.count == 0);
    if (top == KVT_TIER_NONE || sim->tier_of[option] <= (int)top) return KVT_OK;
    uint64_t begin = sim_call_begin(sim);
    kvt_status status = kvt_policy_promote(sim->policy, now_ns, sim_handle(block), top, &sim->plan);
    sim_call_end(sim, begin);
    assert(status == KVT_OK || sim->plan.count == 0);
    if (sim->counting) {
        sim->result->prefetch_offered++;
        sim->result->prefetch_moved += status == KVT_OK && sim->plan.count > 0;
    }
    return status == KVT_REFUSED || status == KVT_MISS ? KVT_OK : status;
}
