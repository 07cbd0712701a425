/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim_explain.c - explanations at the end of a simulation, of the stored blocks that the engine
 * expects to be used soonest. One thread.
 */
#include "sim_state.h"

#include <stdlib.h>

typedef struct explain_choice {
    uint64_t handle;
    double uses_per_s;
} explain_choice;

/* Keeps the entries with the highest rates, best first; equal ones in the order of blocks. */
static void explain_keep(explain_choice *choice, uint32_t most, uint32_t *count,
                         explain_choice found)
{
    uint32_t at = *count;
    if (at == most && choice[at - 1].uses_per_s >= found.uses_per_s) return;
    if (at == most)
        at--;
    else
        ++*count;
    for (; at > 0 && choice[at - 1].uses_per_s < found.uses_per_s; at--)
        choice[at] = choice[at - 1];
    choice[at] = found;
}

/* As of the last time that the engine was told. */
static void explain_entry(const sim_state *sim, uint64_t handle, replay_explained *out)
{
    kvt_explanation *why = &out->why;
    why->struct_size = sizeof *why;
    out->block = (uint32_t)(handle - 1);
    if (kvt_policy_explain(sim->policy, 0, handle, why) != KVT_OK) return;
    const uint64_t *bytes = why->options[why->current].option.bytes;
    for (int tier = KVT_TIER_HBM; tier < KVT_TIER_COUNT && out->tier == KVT_TIER_NONE; tier++)
        if (bytes[tier] > 0) out->tier = (kvt_tier)tier;
}

kvt_status sim_explain(sim_state *sim)
{
    explain_choice choice[REPLAY_EXPLAIN_MAX];
    uint32_t count = 0, most = sim->options->explain;
    replay_result *result = sim->result;
    if (most == 0) return KVT_OK;
    for (uint32_t block = 0; block < sim->workload->distinct_blocks; block++) {
        kvt_policy_worth worth = {.struct_size = sizeof worth};
        explain_choice found = {.handle = sim_handle(block)};
        if (kvt_policy_worth_get(sim->policy, found.handle, KVT_TIER_DRAM, &worth) != KVT_OK)
            continue;
        found.uses_per_s = worth.uses_per_s;
        explain_keep(choice, most, &count, found);
    }
    result->explained = calloc(count > 0 ? count : 1, sizeof *result->explained);
    if (result->explained == NULL) return KVT_E_MEMORY;
    for (uint32_t i = 0; i < count; i++)
        explain_entry(sim, choice[i].handle, &result->explained[i]);
    result->explained_count = count;
    return KVT_OK;
}
