/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_policy_instance.c - instances for `bench policy`, drawn from a seed: contexts of 256 to
 * 128 K tokens, Zipf popularity, lognormal sensitivity, the ladder of the codec trial.
 */
#include "bench_policy.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Bits and relative loss as the codec trial (profiles/ladder-codec-trial.csv) measured them, its KL
 * mapped to loss by one factor; decode rates as this library reaches them on one core. */
const policy_rung policy_rungs[] = {
    {"raw", 16.0, 0.0, 1e13},        {"lossless", 10.6, 0.0, 3e9},    {"planes 8", 8.5, 1e-5, 8e9},
    {"planes 6", 6.5, 2e-4, 9e9},    {"planes 6/4", 5.5, 2e-3, 1e10}, {"planes 4", 4.5, 3e-3, 1e10},
    {"entropy 3.6", 3.6, 6e-3, 3e9}, {"entropy 2.6", 2.6, 5e-2, 3e9},
};
const uint32_t policy_rung_count = sizeof policy_rungs / sizeof policy_rungs[0];

#define BYTES_PER_TOKEN 131072.0 /* Llama-3.1-8B in 16 bits */

static const double tier_bandwidth[LEVELS] = {1.5e12, 25e9, 3e9};
static const double tier_seconds[LEVELS] = {2e-6, 1e-5, 1e-4};
static const double tier_share[LEVELS] = {0.01, 0.05, 0.2}; /* of all raw bytes */

static uint64_t draw(uint64_t *state)
{
    return number_mix(*state += UINT64_C(0x9E3779B97F4A7C15));
}

double policy_unit(uint64_t *state)
{
    return ((double)(draw(state) >> 11) + 0.5) * 0x1p-53;
}

static double draw_normal(uint64_t *state)
{
    double radius = sqrt(-2.0 * log(policy_unit(state)));
    return radius * cos(6.283185307179586 * policy_unit(state));
}

uint32_t policy_size_tokens(uint32_t size)
{
    /* Nine octaves from 256 tokens, seven steps each. */
    return (uint32_t)(256.0 * exp2((double)size * 9.0 / (POLICY_SIZES - 1)));
}

/* Seconds to prefill n tokens of Llama-3.1-8B on an A100 at 156 TFLOP/s, by the FLOP counts
 * that prefill.h states. */
static double prefill_seconds(double n)
{
    return (26.0 * 32.0 * 4096.0 * 4096.0 * n + 2.0 * 32.0 * 4096.0 * n * n) / 156e12;
}

kvt_status policy_instance_draw(uint32_t entries, uint32_t options, uint32_t tiers, uint64_t seed,
                                policy_instance *out)
{
    memset(out, 0, sizeof *out);
    out->entries = entries;
    out->options = options;
    out->tiers = tiers;
    out->seed = seed;
    out->alpha_seconds = 10.0;
    out->rate = malloc(entries * sizeof *out->rate);
    out->recompute = malloc(entries * sizeof *out->recompute);
    out->sensitivity = malloc(entries * sizeof *out->sensitivity);
    out->tokens = malloc(entries * sizeof *out->tokens);
    if (out->rate == NULL || out->recompute == NULL || out->sensitivity == NULL ||
        out->tokens == NULL) {
        policy_instance_free(out);
        return KVT_E_MEMORY;
    }
    uint64_t state = seed;
    double bytes = 0.0, sum = 0.0;
    for (uint32_t i = 0; i < entries; i++) {
        double size = (double)POLICY_SIZES * (0.45 + 0.16 * draw_normal(&state));
        if (size < 0.0) size = 0.0;
        if (size > POLICY_SIZES - 1) size = POLICY_SIZES - 1;
        out->tokens[i] = policy_size_tokens((uint32_t)size);
        out->recompute[i] = prefill_seconds((double)out->tokens[i]);
        out->sensitivity[i] = exp(0.7 * draw_normal(&state));
        /* Rank by the entry's number: sizes are drawn apart from it. */
        out->rate[i] = pow((double)(i + 1), -0.9);
        sum += out->rate[i];
        bytes += BYTES_PER_TOKEN * out->tokens[i];
    }
    for (uint32_t i = 0; i < entries; i++)
        out->rate[i] *= 1e-4 * (double)entries / sum;
    for (uint32_t tier = 0; tier < tiers; tier++) {
        int level = LEVELS - 1 - (int)tier;
        out->capacity[level] = (uint64_t)(tier_share[level] * bytes);
    }
    return KVT_OK;
}

void policy_instance_free(policy_instance *instance)
{
    free(instance->rate);
    free(instance->recompute);
    free(instance->sensitivity);
    free(instance->tokens);
}

void policy_instance_options(const policy_instance *instance, uint32_t number, kvt_option *options)
{
    double source = BYTES_PER_TOKEN * instance->tokens[number];
    uint32_t rungs = instance->options / instance->tiers;
    memset(options, 0, (instance->options + 1) * sizeof *options);
    options[0].load_seconds = instance->recompute[number];
    for (uint32_t i = 0; i < instance->options; i++) {
        kvt_option *o = &options[i + 1];
        const policy_rung *rung = &policy_rungs[i % rungs];
        int level = LEVELS - 1 - (int)(i / rungs);
        uint64_t bytes = (uint64_t)(source * rung->bits / 16.0 / 4096.0 + 1.0) * 4096;
        /* The rung's number stands for its variant. */
        o->variant = (kvt_variant){.codec = 4, .rate = i % rungs};
        o->bytes[level + 1] = o->read_bytes[level + 1] = bytes;
        o->load_seconds = tier_seconds[level] + (double)bytes / tier_bandwidth[level];
        o->decode_seconds = source / rung->decode_bytes_per_s;
        o->loss = rung->loss;
        /* Coarser rungs are made by dropping planes or from the form before; see codec-trial. */
        for (uint32_t k = 0; k < instance->options; k++)
            if (k % rungs < i % rungs) o->made_from |= UINT32_C(1) << (k + 1);
    }
}
