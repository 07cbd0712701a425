/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim_regret.c - the regrets of a run by what they bound, in seconds per request; the last, online,
 * is the interval bound less what was achieved. One thread.
 *
 *     solver     dual of all that the engine knows, at its own rates, less the best placement of
 *                that instance that was found: what the next one may be too high by
 *     counters   the same dual less the engine's state
 *     foresight  over the uses that the epoch really brings to blocks known at its start: the dual
 *                of the best placement at its start less the value of the actual one
 *
 * The first two are taken at the start of each epoch and last for it. The last two are distances of
 * the same placement, at predicted and at true rates. Each is given over what is at stake, too: the
 * sum of the same duals, against storing nothing. Reads the policy only.
 */
#include "base/clock.h"
#include "results.h"
#include "sim_state.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define REGRET_EPOCHS    10u
#define REGRET_TOLERANCE 1e-5 /* of an epoch's dual, see bound_solve */

static uint64_t regret_epoch_begin(const sim_state *sim, uint32_t epoch)
{
    uint64_t counted = sim->workload->request_count - sim->regret.skip;
    return sim->regret.skip + counted * epoch / REGRET_EPOCHS;
}

kvt_status sim_regret_open(sim_state *sim)
{
    sim_regret *regret = &sim->regret;
    const replay_workload *workload = sim->workload;
    size_t blocks = (size_t)workload->distinct_blocks + 1;
    regret->next = UINT64_MAX;
    if (!sim->options->bounds) return KVT_OK;
    regret->skip = results_skip(workload, sim->options->warmup);
    regret->next = regret->skip;
    regret->first_seen = malloc(blocks * sizeof *regret->first_seen);
    regret->item = calloc(blocks, sizeof *regret->item);
    if (regret->first_seen == NULL || regret->item == NULL) return KVT_E_MEMORY;
    memset(regret->first_seen, 0xFF, blocks * sizeof *regret->first_seen);
    for (uint64_t i = workload->request_count; i-- > 0;) {
        const replay_request *request = &workload->requests[i];
        for (uint32_t j = 0; j < request->block_count; j++)
            regret->first_seen[workload->blocks[request->first_block + j]] = i;
    }
    return bound_source_open(&regret->source, sim->options, workload);
}

void sim_regret_close(sim_state *sim)
{
    bound_source_close(&sim->regret.source);
    free(sim->regret.first_seen);
    free(sim->regret.item);
}

/* Adds the uses of one request to the blocks that were known when the epoch began. */
static kvt_status regret_add_request(sim_state *sim, uint64_t begin, uint64_t index,
                                     bound_instance *instance)
{
    sim_regret *regret = &sim->regret;
    const replay_request *request = &sim->workload->requests[index];
    const uint32_t *prefix = &sim->workload->blocks[request->first_block];
    uint32_t run = 0;
    while (run < request->block_count && regret->first_seen[prefix[run]] < begin)
        run++;
    uint64_t most = (uint64_t)run * sim->workload->block_tokens;
    uint32_t tokens = most < request->input_tokens ? (uint32_t)most : request->input_tokens;
    for (uint32_t j = 0; j < run; j++) {
        bound_stay use = bound_use(&regret->source, request, j, tokens);
        uint32_t *item = &regret->item[prefix[j]];
        if (*item == 0) {
            use.span = 1.0f;
            kvt_status status = bound_add(instance, &use);
            if (status != KVT_OK) return status;
            *item = instance->count;
            continue;
        }
        bound_stay *stay = &instance->stays[*item - 1];
        stay->recompute_s += use.recompute_s;
        stay->uses += 1.0f;
        stay->sense += use.sense;
        stay->loss_most += use.loss_most;
    }
    return KVT_OK;
}

/* The value of the uses in the variants that the policy stores now. */
static double regret_present_value(sim_state *sim, const bound_instance *instance)
{
    double value = 0.0;
    for (uint32_t i = 0; i < instance->count; i++) {
        const bound_stay *stay = &instance->stays[i];
        uint8_t option = sim->stored[stay->block];
        uint32_t place = option != KVT_OPTION_NONE ? instance->place[option] : BOUND_NONE;
        if (place != BOUND_NONE) value += bound_value(&instance->variants[place], stay);
    }
    return value;
}

static kvt_status regret_foresee(sim_state *sim, uint64_t begin, uint64_t end)
{
    sim_regret *regret = &sim->regret;
    bound_instance instance = {.count = 0};
    double one = sim->options->overlap ? 0.0 : 1.0;
    const double weight[KVT_TIER_COUNT] = {0.0, one, one, one};
    kvt_status status = bound_begin(&instance, &regret->source, weight, 1.0);
    for (uint64_t i = begin; i < end && status == KVT_OK; i++)
        status = regret_add_request(sim, begin, i, &instance);
    if (status == KVT_OK && instance.count > 0) {
        double dual = bound_solve(&instance, REGRET_TOLERANCE, NULL);
        regret->foresight_s += dual - regret_present_value(sim, &instance);
        regret->foresight_stake_s += dual;
    }
    for (uint32_t i = 0; i < instance.count; i++)
        regret->item[instance.stays[i].block] = 0;
    bound_end(&instance);
    return status;
}

/* One epoch, which begins with a request. */
static kvt_status regret_take_epoch(sim_state *sim, uint64_t request, uint64_t now_ns)
{
    sim_regret *regret = &sim->regret;
    const replay_request *requests = sim->workload->requests;
    uint64_t end = request;
    while (end == request && regret->epoch < REGRET_EPOCHS)
        end = regret_epoch_begin(sim, ++regret->epoch);
    regret->next = end < sim->workload->request_count ? end : UINT64_MAX;
    uint64_t last = end < sim->workload->request_count ? end : sim->workload->request_count - 1;
    dual_bound *bound = &regret->bound;
    kvt_status status =
        dual_solve(sim->policy, now_ns, regret->solved ? bound->price : NULL, bound);
    if (status == KVT_OK) {
        double span_s = (double)(requests[last].arrival_ns - requests[request].arrival_ns) * 1e-9;
        regret->solver_s += (bound->dual - bound->placed) * span_s;
        regret->counters_s += (bound->dual - bound->primal) * span_s;
        regret->counters_stake_s += bound->dual * span_s;
        regret->solved = true;
    } else if (status != KVT_E_UNSUPPORTED) {
        return status;
    }
    return regret_foresee(sim, request, end);
}

kvt_status sim_regret_look(sim_state *sim, uint64_t request, uint64_t now_ns)
{
    if (request != sim->regret.next) return KVT_OK;
    uint64_t begin_ns = base_clock_ns();
    kvt_status status = regret_take_epoch(sim, request, now_ns);
    sim->regret.spent_s += (double)(base_clock_ns() - begin_ns) * 1e-9;
    return status;
}

/* 0 where nothing was worth storing. */
static double regret_gap(double distance, double stake)
{
    return stake > 0.0 ? distance / stake : 0.0;
}

void sim_regret_finish(sim_state *sim)
{
    const sim_regret *regret = &sim->regret;
    replay_result *result = sim->result;
    double requests = result->requests > 0 ? (double)result->requests : 1.0;
    bool known = sim->options->bounds;
    result->saved_s = sim->saved_s / requests;
    bool solved = regret->solved;
    double counters_stake_s = regret->counters_stake_s;
    result->regret_solver_s = solved ? regret->solver_s / requests : NAN;
    result->regret_counters_s = solved ? regret->counters_s / requests : NAN;
    result->regret_foresight_s = known ? regret->foresight_s / requests : NAN;
    result->gap_solver = solved ? regret_gap(regret->solver_s, counters_stake_s) : NAN;
    result->gap_counters = solved ? regret_gap(regret->counters_s, counters_stake_s) : NAN;
    result->gap_foresight =
        known ? regret_gap(regret->foresight_s, regret->foresight_stake_s) : NAN;
}

/* ---- oracle frequency ---- */

/*
 * The utility engine gets the future number of uses of each block, and blocks that will not be
 * used are not offered to it. The gap between this run and the interval bound is the price of
 * three things: one rate where the bound knows moments, the tree, and moves that take time.
 *
 * The rate is the count of uses in the horizon ahead, half-life / ln 2 long: one use in it is a
 * count of 1, as one use just now is to the counters.
 */

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
        kvt_policy_rate_set(sim->policy, sim_handle(block), uses / sim->oracle.horizon_s);
    return status == KVT_MISS ? KVT_OK : status;
}

kvt_status sim_oracle_refresh(sim_state *sim, uint64_t request, uint64_t now_ns)
{
    sim_oracle *oracle = &sim->oracle;
    if (!oracle->on || now_ns < oracle->refresh_ns) return KVT_OK;
    oracle->refresh_ns = now_ns + sim_to_ns(oracle->horizon_s / ORACLE_ROUNDS);
    for (uint32_t block = 0; block < sim->workload->distinct_blocks; block++) {
        if (kvt_policy_option_get(sim->policy, sim_handle(block)) == KVT_OPTION_NONE) continue;
        double uses = (double)sim_oracle_uses(sim, block, request > 0 ? request - 1 : 0);
        kvt_status status = sim_oracle_tell(sim, block, uses);
        if (status != KVT_OK) return status;
    }
    return KVT_OK;
}
