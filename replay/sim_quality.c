/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim_quality.c - the losses that the simulator knows: the sensitivity of each block, the part
 * of it that the policy knows, the loss of variants that were coded from lossy ones, the loss of a
 * request; and blends, which choose variants by entry. One thread.
 *
 *     true factor    s = exp(sigma z - sigma^2 / 2)      z standard normal; the mean of s is 1
 *     known factor   exp(sigma r y - (sigma r)^2 / 2)    y has correlation r with z
 *
 * r is the measured repeatability: how well one half of a continuation predicts the other half
 * (lab/results/replay.md, "Spread of sensitivity between entries"). The policy never sees z.
 *
 * A lossy variant that is coded from another lossy one loses the sum over the chain since the exact
 * bytes. An entry whose planes are dropped, or whose step is derived, loses what its new variant
 * does. The sum was compared with measurements on the trial's models (re-quantising), relative to
 * the coarser variant alone: kivi 8 > 4 > 2 lost within 1.5 % of it, where the sum says 2 % more;
 * entropy steps .25 > .5 > 1 lost from 8 % less to 23 % more, where the sum says 10 to 15 % more.
 */
#include "random.h"
#include "sim_remote.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A standard normal number that follows from seed, block and stream alone. */
static double quality_normal(uint64_t seed, uint64_t block, uint64_t stream)
{
    replay_random random;
    replay_random_seed(&random, replay_mix(seed ^ replay_mix(block * 4 + stream)));
    return replay_random_normal(&random);
}

void replay_sensitivity(const replay_options *options, uint64_t block, float *true_out,
                        float *known_out)
{
    double sigma = options->sensitivity, r = options->repeatability;
    double z = quality_normal(options->seed, block, 0);
    if (true_out != NULL) *true_out = (float)exp(sigma * z - 0.5 * sigma * sigma);
    if (known_out == NULL) return;
    double y = r * z + sqrt(1.0 - r * r) * quality_normal(options->seed, block, 1);
    *known_out = (float)exp(sigma * r * y - 0.5 * sigma * r * sigma * r);
}

double replay_alpha(const replay_options *options, uint32_t tokens)
{
    if (options->alpha_seconds > 0.0) return options->alpha_seconds;
    return options->alpha_prefills * kvt_prefill_seconds(&options->model.prefill, 0, tokens);
}

kvt_status sim_quality_open(sim_state *sim)
{
    const replay_options *options = sim->options;
    size_t blocks = (size_t)sim->workload->distinct_blocks + 1;
    sim->inherited = calloc(blocks, sizeof *sim->inherited);
    sim->carried = calloc(blocks, sizeof *sim->carried);
    if (sim->inherited == NULL || sim->carried == NULL) return KVT_E_MEMORY;
    if (options->sensitivity <= 0.0) return KVT_OK;
    sim->sensitivity = malloc(blocks * sizeof *sim->sensitivity);
    sim->known = malloc(blocks * sizeof *sim->known);
    if (sim->sensitivity == NULL || sim->known == NULL) return KVT_E_MEMORY;
    for (size_t i = 0; i < blocks; i++)
        replay_sensitivity(options, i, &sim->sensitivity[i], &sim->known[i]);
    return KVT_OK;
}

void sim_quality_close(sim_state *sim)
{
    free(sim->inherited);
    free(sim->carried);
    free(sim->sensitivity);
    free(sim->known);
}

/* Sums the loss of a request. A loaded block has the loss of its variant and the loss of the prefix
 * that it was computed on. Computed tokens inherit the mean of the loaded part, so that mean is the
 * request's. */
void sim_quality_sum(const sim_state *sim, sim_visit *visit)
{
    double sum = 0.0, tokens = 0.0;
    for (uint32_t i = 0; i < visit->loaded; i++) {
        uint32_t block = visit->prefix[i];
        if (visit->found[i] ==
            SIM_FOUND_SHARED) { /* an exact copy, of what was computed on exact ones */
            tokens += sim_block_tokens(sim, visit->request, i);
            continue;
        }
        double loss = (double)sim->inherited[block];
        double own = sim->whole[visit->found[i]].loss + (double)sim->carried[block];
        double factor = sim->sensitivity != NULL ? (double)sim->sensitivity[block] : 1.0;
        if (own > 0.0) loss += own * factor;
        double here = sim_block_tokens(sim, visit->request, i);
        sum += here * (loss < 1.0 ? loss : 1.0);
        tokens += here;
    }
    visit->loss = tokens > 0.0 ? sum / tokens : 0.0;
}

void sim_quality_move(sim_state *sim, const kvt_move *move)
{
    uint32_t block = (uint32_t)(move->handle - 1);
    float *carried = &sim->carried[block];
    if (move->kind != KVT_MOVE_CHANGE) {
        *carried = 0.0f;
        return;
    }
    uint8_t before = sim_move_option(sim, block, move->from);
    const kvt_option *from = &sim->whole[before];
    const kvt_option *to = &sim->whole[sim_move_option(sim, block, move->to)];
    bool same = memcmp(&from->variant, &to->variant, sizeof from->variant) == 0;
    bool made = ((to->made_from | to->kept_from) >> before & 1) != 0;
    if (same || (made && from->variant.codec == to->variant.codec)) return;
    /* A variant that loses less and is not made from the one before was made from exact bytes. */
    *carried = !made && to->loss < from->loss ? 0.0f : *carried + (float)from->loss;
}

/* ---- blends ---- */

/*
 * In a blend each tier offers an entry one of two variants, chosen by a hash of the entry. A mask
 * has a bit per tier, set where the entry gets the tier's second variant; each mask is a ladder of
 * its own in the policy. The policy's option i of a mask is our option blend_option[mask][i].
 */

#define BLEND_STREAM UINT64_C(0x626c656e64)

uint32_t sim_blend_mask(const sim_state *sim, uint32_t block)
{
    const replay_blend *blend = &sim->options->blend;
    uint64_t hash = replay_mix(sim->options->seed ^ replay_mix(block ^ (BLEND_STREAM << 20)));
    double drawn = (double)(hash >> 11) * 0x1p-53;
    uint32_t mask = 0;
    for (uint32_t tier = 1; tier < KVT_TIER_COUNT; tier++)
        if (drawn < blend->share[tier]) mask |= 1u << (tier - 1);
    return mask;
}

/* Our indexes of what a mask offers, NONE first; returns how many. */
static uint32_t blend_find(const sim_state *sim, uint32_t mask, uint8_t found[KVT_TIER_COUNT])
{
    const replay_blend *blend = &sim->options->blend;
    uint32_t variants = sim->options->model.variant_count, count = 1, present = 0;
    found[0] = KVT_OPTION_NONE;
    for (uint32_t tier = 1; tier < KVT_TIER_COUNT; tier++) {
        if (!sim->options->model.present[tier]) continue;
        uint32_t rung = blend->rung[tier][mask >> (tier - 1) & 1];
        found[count++] = (uint8_t)(1 + present++ * variants + rung);
    }
    return count;
}

/* The bits of a set of our options as those of the found ones. */
static uint32_t blend_bits(uint32_t bits, const uint8_t *found, uint32_t count)
{
    uint32_t out = 0;
    for (uint32_t i = 1; i < count; i++)
        if ((bits >> found[i] & 1) != 0) out |= 1u << i;
    return out;
}

uint32_t sim_blend_options(const sim_state *sim, uint32_t mask, const kvt_option *all,
                           kvt_option out[KVT_TIER_COUNT])
{
    uint8_t found[KVT_TIER_COUNT];
    uint32_t count = blend_find(sim, mask, found);
    for (uint32_t i = 0; i < count; i++) {
        out[i] = all[found[i]];
        out[i].made_from = blend_bits(all[found[i]].made_from, found, count);
        out[i].kept_from = blend_bits(all[found[i]].kept_from, found, count);
    }
    return count;
}

kvt_status sim_blend_open(sim_state *sim)
{
    for (uint32_t mask = 0; mask < SIM_BLEND_MASKS; mask++) {
        kvt_option options[KVT_TIER_COUNT];
        (void)blend_find(sim, mask, sim->blend_option[mask]);
        uint32_t count = sim_blend_options(sim, mask, sim->whole, options);
        kvt_status status =
            kvt_policy_ladder_add(sim->policy, options, count, &sim->blend_ladder[mask]);
        if (status != KVT_OK) return status;
    }
    return KVT_OK;
}

uint8_t sim_move_option(const sim_state *sim, uint32_t block, uint8_t option)
{
    if (option == KVT_OPTION_NONE || !sim->options->blend.set) return option;
    return sim->blend_option[sim_blend_mask(sim, block)][option];
}
