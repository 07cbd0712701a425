/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim_copies.c - records that promotions leave on SSD, as store/background/copies.c keeps them:
 *
 *     promotion    of an entry that lay on SSD alone: its record stays, as the copy
 *     demotion     to the variant of the copy reads and writes nothing; another one drops it
 *     eviction     drops it
 *     room         the policy counts the bytes of copies as free, so copies make way for all else
 *
 * Not modelled: an eviction from above that leaves the copy as the place, where the tier has room.
 * One thread.
 */
#include "sim_host.h"

#include <assert.h>
#include <stdlib.h>

#define COPIES_DRAWN 16u /* copies that one choice compares; all of them when they are few */
#define COPIES_FEW   64u

kvt_status sim_copies_open(sim_host *host)
{
    const replay_options *options = host->sim.options;
    size_t blocks = (size_t)host->sim.workload->distinct_blocks + 1;
    sim_copies *copies = &host->copies;
    if (!options->copies || options->tiers[KVT_TIER_SSD].capacity_bytes == 0) return KVT_OK;
    copies->option = calloc(blocks, sizeof *copies->option);
    copies->listed = malloc(blocks * sizeof *copies->listed);
    copies->index = malloc(blocks * sizeof *copies->index);
    if (copies->option == NULL || copies->listed == NULL || copies->index == NULL)
        return KVT_E_MEMORY;
    return KVT_OK;
}

void sim_copies_close(sim_host *host)
{
    free(host->copies.option);
    free(host->copies.listed);
    free(host->copies.index);
}

void sim_copies_forget(sim_host *host)
{
    sim_copies *copies = &host->copies;
    for (uint32_t i = 0; i < copies->count; i++)
        copies->option[copies->listed[i]] = KVT_OPTION_NONE;
    copies->count = 0;
    copies->bytes = 0;
}

/* Whether an option's record lies on SSD alone. */
static bool copies_is_of_ssd(const sim_state *sim, uint8_t option)
{
    for (int tier = 1; tier < KVT_TIER_COUNT; tier++)
        if ((sim->whole[option].read_bytes[tier] > 0) != (tier == KVT_TIER_SSD)) return false;
    return true;
}

static uint64_t copies_record_bytes(sim_host *host, uint32_t block, uint8_t option)
{
    return sim_block_options(&host->sim, block)[option].read_bytes[KVT_TIER_SSD];
}

static void copies_drop(sim_host *host, uint32_t block)
{
    sim_copies *copies = &host->copies;
    uint64_t bytes = copies_record_bytes(host, block, copies->option[block]);
    uint32_t last = copies->listed[--copies->count];
    assert(copies->bytes >= bytes && copies->listed[copies->index[block]] == block);
    copies->listed[copies->index[block]] = last;
    copies->index[last] = copies->index[block];
    copies->option[block] = KVT_OPTION_NONE;
    copies->bytes -= bytes;
}

bool sim_copies_hold(const sim_host *host, const kvt_move *move)
{
    uint32_t block = (uint32_t)(move->handle - 1);
    if (host->copies.count == 0 || move->kind != KVT_MOVE_CHANGE) return false;
    uint8_t option = host->copies.option[block];
    return option != KVT_OPTION_NONE && option == sim_move_option(&host->sim, block, move->to);
}

/* The copy that is worth least per byte of some that are drawn. */
static uint32_t copies_choose(sim_host *host)
{
    sim_copies *copies = &host->copies;
    bool all = copies->count <= COPIES_FEW;
    uint32_t looks = all ? copies->count : COPIES_DRAWN, least = copies->listed[0];
    double least_worth = 0.0;
    for (uint32_t i = 0; i < looks; i++) {
        copies->draw = copies->draw * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        uint32_t block = copies->listed[all ? i : (uint32_t)((copies->draw >> 33) % copies->count)];
        kvt_policy_worth worth = {.struct_size = sizeof worth};
        if (kvt_policy_worth_get(host->sim.policy, sim_handle(block), KVT_TIER_SSD, &worth) !=
            KVT_OK)
            worth.per_byte = 0.0;
        if (i > 0 && worth.per_byte >= least_worth) continue;
        least = block;
        least_worth = worth.per_byte;
    }
    return least;
}

/* Drops copies until the tier has room for them beside what the policy stores there: its high
 * watermark, less a 64th of the tier. */
static void copies_trim(sim_host *host)
{
    const replay_options *options = host->sim.options;
    uint64_t capacity = options->tiers[KVT_TIER_SSD].capacity_bytes;
    uint64_t limit = (uint64_t)(options->high_watermark * (double)capacity) - capacity / 64;
    while (host->copies.count > 0 &&
           host->sim.used_bytes[KVT_TIER_SSD] + host->copies.bytes > limit)
        copies_drop(host, copies_choose(host));
}

void sim_copies_note(sim_host *host, uint32_t block, uint8_t before)
{
    const sim_state *sim = &host->sim;
    sim_copies *copies = &host->copies;
    uint8_t now = sim->stored[block];
    if (copies->option == NULL) return;
    bool above = now != KVT_OPTION_NONE && sim->whole[now].read_bytes[KVT_TIER_SSD] == 0;
    if (copies->option[block] != KVT_OPTION_NONE) {
        if (!above) copies_drop(host, block);
    } else if (above && before != KVT_OPTION_NONE && copies_is_of_ssd(sim, before)) {
        copies->option[block] = before;
        copies->index[block] = copies->count;
        copies->listed[copies->count++] = block;
        copies->bytes += copies_record_bytes(host, block, before);
    }
    copies_trim(host);
}
