/* SPDX-License-Identifier: Apache-2.0 */
/*
 * prefill_model.c - the seconds that recomputing a run of tokens would take: a FLOP model of two
 * coefficients, or a table of measured times. Pure; any thread.
 */
#include <kvterrace/prefill.h>

#include <assert.h>
#include <stddef.h>
#include <string.h>

/*
 * Llama-3.1-8B has L = 32 layers and model width d = 4096. Per layer and token the matrices hold,
 * in units of d^2: queries 1, keys and values together 0.5 (8 of 32 heads), output 1, and the
 * SwiGLU MLP 10.5 (three matrices of 3.5). Two FLOPs per weight make 26 L d^2 per token. Causal
 * attention spends 4 L d per pair of tokens, half of the pairs count, so 2 L d (end^2 - start^2).
 */
#define PREFILL_LLAMA_LAYERS 32.0
#define PREFILL_LLAMA_WIDTH  4096.0
#define PREFILL_TOKEN_FLOPS                                                                        \
    (26.0 * PREFILL_LLAMA_LAYERS * PREFILL_LLAMA_WIDTH * PREFILL_LLAMA_WIDTH)
#define PREFILL_PAIR_FLOPS (2.0 * PREFILL_LLAMA_LAYERS * PREFILL_LLAMA_WIDTH)

/*
 * What a GPU sustains is imported, not measured here: the vendor's dense bf16 peak (A100 312e12,
 * H100 SXM 989e12 FLOP/s, NVIDIA data tables) times the utilisation that published prefill times
 * imply, 0.50 and 0.60. For comparison, NVIDIA's 407 ms for 5,000 tokens of a 70B model in fp8 on
 * two H100 is 0.45, and a measured RTX 3090 reaches 60e12 FLOP/s. A measured table
 * (kvt_prefill_read_csv) replaces the preset where one exists.
 */
typedef struct prefill_preset {
    const char *name;
    double flops_per_s;
} prefill_preset;

static const prefill_preset prefill_presets[] = {
    {"llama-3.1-8b:a100", 156e12},
    {"llama-3.1-8b:h100", 593e12},
};

kvt_status kvt_prefill_preset(const char *name, kvt_prefill *out)
{
    assert(name != NULL && out != NULL);
    memset(out, 0, sizeof *out);
    for (size_t i = 0; i < sizeof prefill_presets / sizeof prefill_presets[0]; i++) {
        if (strcmp(prefill_presets[i].name, name) != 0) continue;
        out->linear_seconds_per_token = PREFILL_TOKEN_FLOPS / prefill_presets[i].flops_per_s;
        out->square_seconds_per_token2 = PREFILL_PAIR_FLOPS / prefill_presets[i].flops_per_s;
        return KVT_OK;
    }
    return KVT_E_ARGUMENT;
}

const char *kvt_prefill_preset_at(size_t index)
{
    const size_t count = sizeof prefill_presets / sizeof prefill_presets[0];
    return index < count ? prefill_presets[index].name : NULL;
}

/* Seconds from token 0 to `tokens`, linear between rows. The last slope goes on past the end: it
 * underestimates there, because attention keeps growing; a longer table is the cure. */
static double prefill_table_at(const kvt_prefill *prefill, uint32_t tokens)
{
    const double *seconds = prefill->table_seconds;
    uint32_t row = tokens / prefill->table_step;
    if (row > prefill->table_count - 2u) row = prefill->table_count - 2u;
    double past_row = (double)tokens - (double)row * (double)prefill->table_step;
    double slope = (seconds[row + 1u] - seconds[row]) / (double)prefill->table_step;
    return seconds[row] + slope * past_row;
}

double kvt_prefill_seconds(const kvt_prefill *prefill, uint32_t start, uint32_t end)
{
    assert(prefill != NULL);
    if (end <= start) return 0.0;
    if (prefill->table_seconds != NULL) {
        assert(prefill->table_count >= 2 && prefill->table_step > 0);
        return prefill_table_at(prefill, end) - prefill_table_at(prefill, start);
    }
    double count = (double)end - (double)start;
    double sum = (double)end + (double)start;
    return prefill->linear_seconds_per_token * count +
           prefill->square_seconds_per_token2 * count * sum;
}
