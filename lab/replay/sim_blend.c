/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim_blend.c - a blend: each tier offers an entry one of two variants, chosen by a hash of the
 * entry.
 *
 * A mask has a bit per tier, set where the entry gets the tier's second variant; each mask is a
 * ladder of its own in the policy. The policy's option i of a mask is our option
 * blend_option[mask][i]. One thread.
 */
#include "random.h"
#include "sim_state.h"

#include <string.h>

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

uint8_t sim_option_of(const sim_state *sim, uint32_t block)
{
    uint8_t option = kvt_policy_option(sim->policy, sim_handle(block));
    if (option == KVT_OPTION_NONE || !sim->options->blend.set) return option;
    return sim->blend_option[sim_blend_mask(sim, block)][option];
}
