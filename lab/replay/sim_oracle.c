/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim_oracle.c - oracle frequency: the utility engine gets the future number of uses of each block,
 * and blocks that will not be used are not offered to it. The gap between this run and the interval
 * bound is the price of three things: one rate where the bound knows moments, the tree, and moves
 * that take time.
 *
 * The rate is the count of uses in the horizon ahead, half life / ln 2 long: one use in it is a
 * count of 1, as one use just now is to the counters. One thread.
 */
#include "sim_state.h"

#include <stdlib.h>

#define ORACLE_LN2    0x1.62e42fefa39efp-1
#define ORACLE_ROUNDS 16.0 /* refreshes per horizon */

kvt_status sim_oracle_open(sim_state *sim)
{
    sim_oracle *oracle = &sim->oracle;
    const replay_workload *workload = sim->workload;
    if (!oracle->on) return KVT_OK;
    oracle->horizon_s = sim->options->half_life_seconds / ORACLE_LN2;
    oracle->first = calloc((size_t)workload->distinct_blocks + 2, sizeof *oracle->first);
    oracle->uses = malloc(((size_t)workload->block_refs + 1) * sizeof *oracle->uses);
    if (oracle->first == NULL || oracle->uses == NULL) return KVT_E_MEMORY;
    /* Counting sort: counts two places on, so that filling turns ends into starts. */
    for (uint64_t i = 0; i < workload->block_refs; i++)
        oracle->first[workload->blocks[i] + 2]++;
    for (uint64_t i = 0; i < workload->distinct_blocks; i++)
        oracle->first[i + 2] += oracle->first[i + 1];
    for (uint64_t i = 0; i < workload->request_count; i++) {
        const replay_request *request = &workload->requests[i];
        for (uint32_t j = 0; j < request->block_count; j++) {
            uint32_t block = workload->blocks[request->first_block + j];
            oracle->uses[oracle->first[block + 1]++] = (uint32_t)i;
        }
    }
    return KVT_OK;
}

void sim_oracle_close(sim_state *sim)
{
    free(sim->oracle.first);
    free(sim->oracle.uses);
}

/* Uses of a block at requests that arrive up to until_ns. */
static uint64_t oracle_until(const sim_state *sim, uint32_t block, uint64_t until_ns)
{
    const sim_oracle *oracle = &sim->oracle;
    uint64_t low = oracle->first[block], high = oracle->first[block + 1];
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        if (sim->workload->requests[oracle->uses[middle]].arrival_ns <= until_ns)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

uint32_t sim_oracle_uses(const sim_state *sim, uint32_t block, uint64_t request)
{
    const sim_oracle *oracle = &sim->oracle;
    if (!oracle->on) return 0;
    uint64_t low = oracle->first[block], high = oracle->first[block + 1];
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        if (oracle->uses[middle] <= request)
            low = middle + 1;
        else
            high = middle;
    }
    uint64_t until_ns = sim->workload->requests[request].arrival_ns + sim_to_ns(oracle->horizon_s);
    return (uint32_t)(oracle_until(sim, block, until_ns) - low);
}

kvt_status sim_oracle_tell(sim_state *sim, uint32_t block, double uses)
{
    if (!sim->oracle.on) return KVT_OK;
    kvt_status status =
        kvt_policy_set_rate(sim->policy, sim_handle(block), uses / sim->oracle.horizon_s);
    return status == KVT_MISS ? KVT_OK : status;
}

kvt_status sim_oracle_refresh(sim_state *sim, uint64_t request, uint64_t now_ns)
{
    sim_oracle *oracle = &sim->oracle;
    if (!oracle->on || now_ns < oracle->refresh_ns) return KVT_OK;
    oracle->refresh_ns = now_ns + sim_to_ns(oracle->horizon_s / ORACLE_ROUNDS);
    for (uint32_t block = 0; block < sim->workload->distinct_blocks; block++) {
        if (kvt_policy_option(sim->policy, sim_handle(block)) == KVT_OPTION_NONE) continue;
        double uses = (double)sim_oracle_uses(sim, block, request > 0 ? request - 1 : 0);
        kvt_status status = sim_oracle_tell(sim, block, uses);
        if (status != KVT_OK) return status;
    }
    return KVT_OK;
}
