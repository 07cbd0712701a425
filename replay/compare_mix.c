/* SPDX-License-Identifier: Apache-2.0 */
/*
 * compare_mix.c - the best uniform mix: what a store reaches that knows its ladder and our order of
 * eviction, but nothing of its entries. One thread; runs go through the pool.
 *
 * A mix gives each tier one rung, or two of which each entry gets one by its hash. It is run with
 * the utility engine at alpha 0: the engine decides what stays and where by seconds alone, and the
 * sweep decides the quality. Sweep, on the tuning seeds, from coarse to fine:
 *
 *   1. every rung in every tier, no tier larger variants than the one above it (with two tiers and
 *      eight rungs 36 mixes): a demotion cannot make what is lost again
 *   2. per level of quality: pairs A (good enough) and B (faster, but not good enough) of these,
 *      ordered by the TTFT that a line between them promises at the level; the MIX_PAIRS first
 *      ones with three shares of B around the one that the line gives
 *   3. the best of these pairs again, MIX_STEPS times, the share halfway between the largest that
 *      was good enough and the smallest that was not
 *
 * The best of a level is the mix with the least mean TTFT whose mean quality reaches it.
 */
#include "compare.h"

#include <stdlib.h>
#include <string.h>

#define MIX_PAIRS 4u
#define MIX_STEPS 3u

uint32_t compare_rungs(const replay_options *base, uint8_t rungs[KVT_VARIANTS_MAX])
{
    uint8_t lossy[KVT_VARIANTS_MAX];
    uint32_t lossy_count = 0, count = 0;
    for (uint8_t i = 0; i < base->model.variant_count; i++) {
        if (base->model.variants[i].loss > 0.0) {
            lossy[lossy_count++] = i;
        } else {
            rungs[count++] = i;
        }
    }
    if (lossy_count > 1) rungs[count++] = lossy[(lossy_count - 1) / 2];
    if (lossy_count > 0) rungs[count++] = lossy[lossy_count - 1];
    return count;
}

uint32_t compare_levels(const replay_compare *plan, double levels[REPLAY_LEVELS_MAX])
{
    static const double losses[] = {0.0, 0.001, 0.003, 0.01};
    uint32_t count = 0;
    for (uint32_t i = 0; i < sizeof losses / sizeof losses[0]; i++) {
        if (plan->quick && i == 1) continue;
        levels[count++] = 1.0 - losses[i];
    }
    return count;
}

/* A setup whose variants a blend chooses. */
static compare_setup mix_setup(const compare_state *state, double ssd_bytes_per_s)
{
    compare_setup setup;
    memset(&setup, 0, sizeof setup);
    snprintf(setup.policy, sizeof setup.policy, "utility");
    setup.role = COMPARE_MIX;
    setup.loss_limit = 1.0;
    setup.spread = state->plan->main;
    setup.ssd_bytes_per_s = ssd_bytes_per_s;
    setup.blend.set = true;
    return setup;
}

/* One rung in every tier: the digits of `number` to the base of the rungs. Returns whether the
 * sweep looks at it. */
static bool mix_single(const compare_state *state, uint32_t number, compare_setup *setup)
{
    const kvt_cost_model *model = &state->plan->base->model;
    uint32_t rest = number, above = 0;
    bool any = false, wanted = true;
    for (int tier = 1; tier < KVT_TIER_COUNT; tier++) {
        if (!model->present[tier]) continue;
        uint8_t rung = (uint8_t)(rest % model->variant_count);
        rest /= model->variant_count;
        setup->blend.rung[tier][0] = setup->blend.rung[tier][1] = rung;
        bool larger = model->variants[rung].stored_share > model->variants[above].stored_share;
        if (any && (larger || (state->plan->quick && rung != above))) wanted = false;
        above = rung;
        any = true;
    }
    return wanted;
}

/* How many ways there are to give each tier one variant. */
static uint32_t mix_single_count(const replay_options *base)
{
    uint32_t count = 1;
    for (int tier = 1; tier < KVT_TIER_COUNT; tier++)
        if (base->model.present[tier]) count *= base->model.variant_count;
    return count;
}

/* Runs every mix of one variant per tier on the tuning seeds. */
static kvt_status mix_run_singles(compare_state *state, double speed, size_t *singles,
                                  uint32_t *count_out)
{
    uint32_t numbers = mix_single_count(state->plan->base);
    *count_out = 0;
    for (uint32_t i = 0; i < numbers; i++) {
        compare_setup setup = mix_setup(state, speed);
        if (!mix_single(state, i, &setup)) continue;
        kvt_status status = compare_add(state, &setup, &singles[*count_out]);
        if (status != KVT_OK) return status;
        ++*count_out;
    }
    return compare_run_trials(state, singles, *count_out, true, "mixes, one rung per tier");
}

typedef struct mix_pair {
    size_t fine, coarse;
    double share;    /* of the coarse one, by the line between them */
    double promised; /* TTFT by that line */
} mix_pair;

/* Keeps the pairs with the least promised times, in their order. */
static void mix_keep_pair(mix_pair *pairs, uint32_t *count, const mix_pair *found)
{
    uint32_t at = *count;
    if (at == MIX_PAIRS && pairs[at - 1].promised <= found->promised) return;
    if (at == MIX_PAIRS)
        at--;
    else
        ++*count;
    for (; at > 0 && pairs[at - 1].promised > found->promised; at--)
        pairs[at] = pairs[at - 1];
    pairs[at] = *found;
}

/* Pairs of a mix that is good enough and a faster one that is not, by promised time; returns how
 * many. */
static uint32_t mix_find_pairs(const compare_state *state, const size_t *singles, uint32_t count,
                               double level, mix_pair pairs[MIX_PAIRS])
{
    uint32_t found = 0;
    double fine_s, fine_quality, coarse_s, coarse_quality;
    for (uint32_t a = 0; a < count; a++) {
        if (!compare_tuned(state, singles[a], &fine_s, &fine_quality)) continue;
        if (fine_quality < level) continue;
        for (uint32_t b = 0; b < count; b++) {
            if (!compare_tuned(state, singles[b], &coarse_s, &coarse_quality)) continue;
            if (coarse_quality >= level || coarse_s >= fine_s) continue;
            double share = (fine_quality - level) / (fine_quality - coarse_quality);
            if (share <= 0.0) continue;
            mix_pair pair = {singles[a], singles[b], share, fine_s + share * (coarse_s - fine_s)};
            mix_keep_pair(pairs, &found, &pair);
        }
    }
    return found;
}

/* Adds the trial in which a share of the entries has the coarse mix's variants. */
static kvt_status mix_add_share(compare_state *state, const mix_pair *pair, double share,
                                size_t *trial_out)
{
    compare_setup setup;
    memcpy(&setup, &state->trials[pair->fine].setup, sizeof setup);
    const replay_blend *coarse = &state->trials[pair->coarse].setup.blend;
    for (int tier = 1; tier < KVT_TIER_COUNT; tier++) {
        setup.blend.rung[tier][1] = coarse->rung[tier][0];
        setup.blend.share[tier] =
            setup.blend.rung[tier][0] == setup.blend.rung[tier][1] ? 0.0 : share;
    }
    return compare_add(state, &setup, trial_out);
}

/* Halves the bracket of one pair's shares; improves *best. */
static kvt_status mix_refine(compare_state *state, const mix_pair *pair, double level, double low,
                             double high, size_t *best)
{
    double best_s, best_quality, ttft, quality;
    bool any = *best != COMPARE_NONE && compare_tuned(state, *best, &best_s, &best_quality);
    for (uint32_t step = 0; step < MIX_STEPS; step++) {
        size_t trial;
        double share = 0.5 * (low + high);
        kvt_status status = mix_add_share(state, pair, share, &trial);
        if (status == KVT_OK) {
            status = compare_run_trials(state, &trial, 1, true, "mixes, fine shares");
        }
        if (status != KVT_OK) return status;
        bool stable = compare_tuned(state, trial, &ttft, &quality);
        if (!stable || quality < level) {
            high = share;
            continue;
        }
        low = share;
        if (any && ttft >= best_s) continue;
        any = true;
        best_s = ttft;
        *best = trial;
    }
    return KVT_OK;
}

/* The shares that were tried of each pair, what is best, and the bracket of the pair it is of. */
static kvt_status mix_sweep_level(compare_state *state, const size_t *singles, uint32_t count,
                                  double level, size_t *best)
{
    static const double around[3] = {0.7, 0.9, 1.1};
    mix_pair pairs[MIX_PAIRS];
    size_t trials[MIX_PAIRS * 3];
    double ttft, quality, least = 0.0;
    *best = COMPARE_NONE;
    for (uint32_t i = 0; i < count; i++) {
        if (!compare_tuned(state, singles[i], &ttft, &quality) || quality < level) continue;
        if (*best != COMPARE_NONE && ttft >= least) continue;
        *best = singles[i];
        least = ttft;
    }
    uint32_t found = level < 1.0 ? mix_find_pairs(state, singles, count, level, pairs) : 0;
    for (uint32_t i = 0; i < found * 3; i++) {
        double share = pairs[i / 3].share * around[i % 3];
        kvt_status status =
            mix_add_share(state, &pairs[i / 3], share < 1.0 ? share : 1.0, &trials[i]);
        if (status != KVT_OK) return status;
    }
    kvt_status status = compare_run_trials(state, trials, found * 3, true, "mixes, coarse shares");
    uint32_t leader = MIX_PAIRS;
    double low = 0.0, high = 1.0;
    for (uint32_t i = 0; i < found * 3 && status == KVT_OK; i++) {
        if (!compare_tuned(state, trials[i], &ttft, &quality) || quality < level) continue;
        if (*best != COMPARE_NONE && ttft >= least) continue;
        *best = trials[i];
        least = ttft;
        leader = i / 3;
        low = pairs[leader].share * around[i % 3];
        high = i % 3 == 2 ? 1.0 : pairs[leader].share * around[i % 3 + 1];
    }
    if (status != KVT_OK || leader == MIX_PAIRS || low >= 1.0) return status;
    if (high > 1.0) high = 1.0;
    return mix_refine(state, &pairs[leader], level, low, high, best);
}

kvt_status compare_sweep_mixes(compare_state *state, double ssd_bytes_per_s, const double *levels,
                               uint32_t level_count, size_t *best_out)
{
    uint32_t count = 0;
    size_t *singles = malloc(mix_single_count(state->plan->base) * sizeof *singles);
    if (singles == NULL) return KVT_E_MEMORY;
    kvt_status status = mix_run_singles(state, ssd_bytes_per_s, singles, &count);
    for (uint32_t i = 0; i < level_count && status == KVT_OK; i++)
        status = mix_sweep_level(state, singles, count, levels[i], &best_out[i]);
    free(singles);
    return status;
}

uint64_t compare_mix_runs(const replay_compare *plan, uint32_t level_count)
{
    uint64_t rungs = plan->base->model.variant_count;
    uint64_t singles = plan->quick ? rungs : (mix_single_count(plan->base) + rungs) / 2;
    return plan->tuning_seeds * (singles + level_count * (MIX_PAIRS * 3 + MIX_STEPS));
}
