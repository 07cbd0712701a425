/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim_quality.c - what the simulator knows of losses: how sensitive each block is, how much of that
 * the policy knows, what forms that were coded anew have lost, and what a request loses. One
 * thread.
 *
 *     true factor   s = exp(sigma z - sigma^2 / 2)                     z standard normal, mean of s
 * 1 known factor  exp(sigma r y - (sigma r)^2 / 2)                   y has correlation r with z
 *
 * r is the measured repeatability: what one half of a continuation tells of the other
 * (docs/BENCHMARKS.md, "Spread of sensitivity between entries"). The policy never sees z.
 *
 * A lossy form coded from another lossy one loses what both lose, the sum over the chain since the
 * exact bytes; planes dropped and steps derived lose what their own form does. Measured on the
 * trial's models (Re-quantising), against the coarser form alone: kivi 8 > 4 > 2 within 1.5 %,
 * entropy steps .25 > .5 > 1 from 8 % less to 23 % more; the sum says 2 % and 10 to 15 % more.
 */
#include "random.h"
#include "sim_state.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static double quality_normal(uint64_t seed, uint64_t block, uint64_t stream)
{
    replay_random random;
    replay_random_seed(&random, replay_mix(seed ^ replay_mix(block * 4 + stream)));
    return replay_random_normal(&random);
}

kvt_status replay_normals_draw(uint64_t seed, uint64_t blocks, replay_normals *out)
{
    *out = (replay_normals){.pairs = malloc((2 * blocks + 1) * sizeof *out->pairs)};
    if (out->pairs == NULL) return KVT_E_MEMORY;
    out->blocks = blocks;
    for (uint64_t i = 0; i < 2 * blocks; i++)
        out->pairs[i] = quality_normal(seed, i / 2, i % 2);
    return KVT_OK;
}

static double quality_normal_of(const replay_options *options, uint64_t block, uint64_t stream)
{
    const replay_normals *drawn = options->normals;
    if (drawn != NULL && block < drawn->blocks) return drawn->pairs[2 * block + stream];
    return quality_normal(options->seed, block, stream);
}

void replay_sensitivity(const replay_options *options, uint64_t block, float *true_out,
                        float *known_out)
{
    double sigma = options->sensitivity, r = options->repeatability;
    double z = quality_normal_of(options, block, 0);
    if (true_out != NULL) *true_out = (float)exp(sigma * z - 0.5 * sigma * sigma);
    if (known_out == NULL) return;
    double y = r * z + sqrt(1.0 - r * r) * quality_normal_of(options, block, 1);
    *known_out = (float)exp(sigma * r * y - 0.5 * sigma * r * sigma * r);
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
        uint32_t block = visit->path[i];
        double loss = (double)sim->inherited[block];
        double form = sim->whole[sim->run[i]].loss + (double)sim->carried[block];
        double factor = sim->sensitivity != NULL ? (double)sim->sensitivity[block] : 1.0;
        if (form > 0.0) loss += form * factor;
        double here = sim_block_tokens(sim, visit->request, i);
        sum += here * (loss < 1.0 ? loss : 1.0);
        tokens += here;
    }
    visit->loss = tokens > 0.0 ? sum / tokens : 0.0;
}

void sim_quality_move(sim_state *sim, const kvt_move *move)
{
    float *carried = &sim->carried[move->handle - 1];
    if (move->kind != KVT_MOVE_CHANGE) {
        *carried = 0.0f;
        return;
    }
    const kvt_option *from = &sim->whole[move->from], *to = &sim->whole[move->to];
    bool same = memcmp(&from->variant, &to->variant, sizeof from->variant) == 0;
    bool made = ((to->made_from | to->kept_from) >> move->from & 1) != 0;
    if (same || made) return;
    /* A variant that loses less than the one before was made from exact bytes at hand. */
    *carried = to->loss < from->loss ? 0.0f : *carried + (float)from->loss;
}
