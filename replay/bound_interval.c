/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bound_interval.c - the interval bound of a workload: every block, kept from one use to the next,
 * is one item of a knapsack over capacity times horizon.
 *
 *     request       k          k+1   ...   i-1        i
 *     occupied at              w     ...    w         w      w_j = arrival j - arrival j-1
 *
 * A block that hits at request i is in the store at every service after k up to i, and what is in
 * the store then fits. Weighing services by the arrivals, which are the same for all policies,
 * keeps the sum a bound for every policy however late its services begin. One thread.
 */
#include "base/clock.h"
#include "bound.h"

#include "live.h"
#include "results.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define INTERVAL_TOLERANCE 1e-6 /* of the bound, see bound_solve */

typedef struct interval_walk {
    const bound_source *source;
    uint64_t skip;      /* requests of the warm-up */
    uint64_t *last_use; /* by block: request + 1; 0 = none yet */
} interval_walk;

/* Seconds from the first counted request on; what is held before costs nothing. */
static double interval_at(const interval_walk *walk, uint64_t request)
{
    const replay_request *requests = walk->source->workload->requests;
    if (request <= walk->skip) return 0.0;
    return (double)(requests[request].arrival_ns - requests[walk->skip].arrival_ns) * 1e-9;
}

static kvt_status interval_walk_request(const interval_walk *walk, uint64_t index,
                                        bound_instance *instance)
{
    const replay_workload *workload = walk->source->workload;
    const replay_request *request = &workload->requests[index];
    const uint32_t *prefix = &workload->blocks[request->first_block];
    uint32_t run = 0, run_tokens = 0;
    while (run < request->block_count && walk->last_use[prefix[run]] != 0)
        run++;
    uint64_t most = (uint64_t)run * workload->block_tokens;
    run_tokens = most < request->input_tokens ? (uint32_t)most : request->input_tokens;
    double now = interval_at(walk, index), before = index > 0 ? interval_at(walk, index - 1) : 0.0;
    for (uint32_t j = 0; j < run && index >= walk->skip; j++) {
        bound_stay stay = bound_use(walk->source, request, j, run_tokens);
        stay.span = (float)(now - interval_at(walk, walk->last_use[prefix[j]] - 1));
        stay.last = (float)(now - before);
        if (stay.recompute_s <= 0.0f) continue;
        kvt_status status = bound_add(instance, &stay);
        if (status != KVT_OK) return status;
    }
    for (uint32_t j = 0; j < request->block_count; j++)
        walk->last_use[prefix[j]] = index + 1;
    return KVT_OK;
}

/* One stay for each use that a store could serve. */
static kvt_status interval_collect(interval_walk *walk, bound_instance *instance)
{
    const replay_workload *workload = walk->source->workload;
    kvt_status status = KVT_OK;
    walk->last_use = calloc((size_t)workload->distinct_blocks + 1, sizeof *walk->last_use);
    if (walk->last_use == NULL) return KVT_E_MEMORY;
    for (uint64_t i = 0; i < workload->request_count && status == KVT_OK; i++)
        status = interval_walk_request(walk, i, instance);
    free(walk->last_use);
    return status;
}

/*
 * Tiers are read at the same time, so a request waits for the slowest of them: for at least any
 * weighted mean of its tiers' loads. The dual is a bound with every choice of weights; two are
 * tried, the lowest tier alone and all alike.
 */
static kvt_status interval_solve(bound_instance *instance, const bound_source *source,
                                 double horizon, replay_bound *out)
{
    const replay_options *options = source->options;
    double weight[KVT_TIER_COUNT] = {0.0}, price[BOUND_LEVELS];
    double tiers = 0.0;
    int lowest = 0;
    for (int tier = 1; tier < KVT_TIER_COUNT; tier++) {
        if (options->tiers[tier].capacity_bytes == 0) continue;
        tiers += 1.0;
        lowest = tier;
    }
    out->ideal_s = out->interval_s = INFINITY;
    for (int all = 0; all < (tiers > 1.0 ? 2 : 1); all++) {
        for (int tier = 1; tier < KVT_TIER_COUNT && !options->overlap; tier++)
            weight[tier] = all != 0 ? 1.0 / tiers : tier == lowest ? 1.0 : 0.0;
        kvt_status status = bound_begin(instance, source, weight, horizon);
        if (status != KVT_OK) return status;
        instance->moving = false;
        out->ideal_s = fmin(out->ideal_s, bound_ideal(instance));
        double found = bound_solve(instance, INTERVAL_TOLERANCE, price);
        if (found < out->interval_s) {
            out->interval_s = found;
            memcpy(&out->price[1], price, sizeof price);
        }
    }
    /* Of two bounds this is the weaker one, so the last weights have to do. */
    instance->moving = true;
    out->moving_s = fmin(out->ideal_s, bound_solve(instance, INTERVAL_TOLERANCE, NULL));
    out->interval_s = fmin(out->interval_s, out->moving_s);
    return KVT_OK;
}

/* Blocks of the variant that the fixed policies store, in all tiers together. */
static double interval_belady(const bound_source *source)
{
    const replay_options *options = source->options;
    kvt_option built[KVT_OPTIONS_MAX];
    uint32_t count;
    uint64_t room = 0;
    if (block_options(options, source->workload->block_tokens, built, &count) != KVT_OK)
        return -1.0;
    for (int tier = 1; tier < KVT_TIER_COUNT; tier++) {
        for (uint32_t o = 1; o < count; o++) {
            const kvt_variant *one = &built[o].variant, *fixed = &options->variant;
            if (built[o].read_bytes[tier] == 0 || one->codec != fixed->codec ||
                one->mode != fixed->mode || one->rate != fixed->rate) {
                continue;
            }
            room += options->tiers[tier].capacity_bytes / built[o].read_bytes[tier];
        }
    }
    return replay_belady(source->workload, room);
}

kvt_status replay_bound_find(const replay_options *options, const replay_workload *workload,
                             replay_bound *out)
{
    assert(options != NULL && workload != NULL && out != NULL);
    memset(out, 0, sizeof *out);
    uint64_t skip = results_skip(workload, options->warmup);
    if (skip >= workload->request_count) return KVT_OK;
    double begin_s = base_clock_seconds();
    double requests = (double)(workload->request_count - skip);
    bound_instance instance = {.count = 0};
    bound_source source;
    kvt_status status = bound_source_open(&source, options, workload);
    if (status != KVT_OK) return status;
    interval_walk walk = {.source = &source, .skip = skip};
    status = interval_collect(&walk, &instance);
    if (status == KVT_OK) {
        double horizon = interval_at(&walk, workload->request_count - 1);
        status = interval_solve(&instance, &source, horizon, out);
    }
    out->ideal_s /= requests;
    out->interval_s /= requests;
    out->moving_s /= requests;
    for (uint64_t i = skip; i < workload->request_count; i++)
        out->recompute_s +=
            kvt_prefill_seconds(&options->model.prefill, 0, workload->requests[i].input_tokens);
    out->recompute_s = out->recompute_s / requests + options->model.prefill.fixed_seconds;
    out->intervals = instance.count;
    out->belady_block_ratio = interval_belady(&source);
    out->seconds = base_clock_seconds() - begin_s;
    out->known = status == KVT_OK;
    bound_end(&instance);
    bound_source_close(&source);
    return status;
}
