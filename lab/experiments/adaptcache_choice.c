/* SPDX-License-Identifier: Apache-2.0 */
/*
 * adaptcache_choice.c - what an engine's alpha or a mix is chosen by, and what the choice is worth:
 * runs that were made, never a line between two of them. One thread.
 *
 * The chord between two alphas of an engine is no system that anybody could run: between four
 * alphas it once made a fifth slower of what was 2 % faster.
 */
#include "adaptcache_experiment.h"

#include <math.h>

experiment_group experiment_group_of_engine(const experiment *run, uint32_t engine)
{
    experiment_group group = {0, EXPERIMENT_ALPHAS};
    while (run->systems[group.first].kind != EXPERIMENT_ENGINE ||
           run->systems[group.first].engine != engine)
        group.first++;
    return group;
}

experiment_group experiment_group_of_mixes(const experiment *run)
{
    experiment_group group = {0, 0};
    while (group.first < run->system_count && run->systems[group.first].kind != EXPERIMENT_MIX)
        group.first++;
    group.count = run->system_count - group.first;
    return group;
}

/* Seeds [first, end) that tune or judge. */
static void choice_seeds(const experiment *run, bool tuning, uint32_t *first, uint32_t *end)
{
    const uint32_t seeds = run->options->seeds, half = seeds / 2;
    *first = tuning ? 0 : half;
    *end = tuning && half > 0 ? half : seeds;
}

experiment_mean experiment_mean_of(const experiment *run, uint32_t setting, uint32_t rate,
                                   uint32_t system, bool tuning)
{
    experiment_mean mean = {0};
    uint32_t first, end;
    choice_seeds(run, tuning, &first, &end);
    const double share = 1.0 / (end - first);
    for (uint32_t seed = first; seed < end; seed++) {
        const experiment_outcome *outcome = experiment_outcome_at(run, setting, rate, system, seed);
        mean.ttft += share * outcome->ttft;
        mean.quality += share * outcome->quality;
        mean.dram_hits += share * outcome->dram_hits;
        mean.ssd_hits += share * outcome->ssd_hits;
        mean.busy += share * outcome->busy;
    }
    return mean;
}

uint32_t experiment_fastest(const experiment *run, uint32_t setting, uint32_t rate,
                            experiment_group group, double quality)
{
    uint32_t chosen = UINT32_MAX;
    double least = INFINITY;
    for (uint32_t i = group.first; i < group.first + group.count; i++) {
        const experiment_mean mean = experiment_mean_of(run, setting, rate, i, true);
        if (mean.quality < quality || mean.ttft >= least) continue;
        least = mean.ttft;
        chosen = i;
    }
    return chosen;
}

uint32_t experiment_best(const experiment *run, uint32_t setting, uint32_t rate,
                         experiment_group group, double ttft)
{
    uint32_t chosen = UINT32_MAX;
    double most = -1.0;
    for (uint32_t i = group.first; i < group.first + group.count; i++) {
        const experiment_mean mean = experiment_mean_of(run, setting, rate, i, true);
        if (mean.ttft > ttft || mean.quality <= most) continue;
        most = mean.quality;
        chosen = i;
    }
    return chosen;
}

experiment_ratio experiment_compare(const experiment *run, uint32_t setting, uint32_t rate,
                                    uint32_t chosen, uint32_t other)
{
    experiment_ratio ratio = {.reached = chosen != UINT32_MAX, .chosen = chosen};
    if (!ratio.reached) return ratio;
    uint32_t first, end;
    choice_seeds(run, false, &first, &end);
    const experiment_mean ours = experiment_mean_of(run, setting, rate, chosen, false);
    const experiment_mean theirs = experiment_mean_of(run, setting, rate, other, false);
    ratio.delay = theirs.ttft / ours.ttft;
    ratio.quality = ours.quality / theirs.quality;
    ratio.least = INFINITY;
    for (uint32_t seed = first; seed < end; seed++) {
        const double by_seed = experiment_outcome_at(run, setting, rate, other, seed)->ttft /
                               experiment_outcome_at(run, setting, rate, chosen, seed)->ttft;
        ratio.least = fmin(ratio.least, by_seed);
        ratio.most = fmax(ratio.most, by_seed);
    }
    return ratio;
}
