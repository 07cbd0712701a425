/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_grid_cells.c - the cells of the grid, and the draw of the hidden half. One table, no state.
 *
 * The first 64 cells are a quarter of the full product of 4 turns, 4 exponents, 4 capacities and 4
 * kinds of devices: with the levels numbered 0 to 3, devices = turns xor exponent xor capacity. Any
 * three of the four factors then meet in all 64 ways, once each, so no pair of factors is confused
 * with another. Variants and load are spread over the cells in the same manner (a fifth column over
 * the field of four elements, cut into two bits). The cells of --quick are a sixteenth of the
 * product, in which any two factors meet in all 16 ways.
 */
#include "bench_grid.h"

#include "replay/random.h"

#include <math.h>
#include <stdio.h>

/* Drawn once, before the engine was tuned on any cell. It stays. */
#define GRID_HIDDEN_SEED UINT64_C(20261122)

#define LIGHT 0.3
#define HEAVY 0.8

/* name, family, turns, Zipf exponent, capacity in %, SSD in GB/s, lossless, load, quick, strength
 */
static const grid_cell grid_cells[] = {
    /* clang-format off */
    {"turns1-zipf0-cap2-dram", GRID_SESSIONS, 1, 0.0, 2, 0.0, false, LIGHT, true, 0.0},
    {"turns1-zipf0-cap20-ssd0.5", GRID_SESSIONS, 1, 0.0, 20, 0.5, true, HEAVY, false, 0.0},
    {"turns1-zipf0-cap80-ssd3", GRID_SESSIONS, 1, 0.0, 80, 3.0, true, LIGHT, false, 0.0},
    {"turns1-zipf0-cap200-ssd14", GRID_SESSIONS, 1, 0.0, 200, 14.0, false, HEAVY, false, 0.0},
    {"turns1-zipf0.6-cap2-ssd0.5", GRID_SESSIONS, 1, 0.6, 2, 0.5, false, HEAVY, false, 0.0},
    {"turns1-zipf0.6-cap20-dram", GRID_SESSIONS, 1, 0.6, 20, 0.0, true, LIGHT, false, 0.0},
    {"turns1-zipf0.6-cap80-ssd14", GRID_SESSIONS, 1, 0.6, 80, 14.0, true, HEAVY, false, 0.0},
    {"turns1-zipf0.6-cap200-ssd3", GRID_SESSIONS, 1, 0.6, 200, 3.0, false, LIGHT, true, 0.0},
    {"turns1-zipf0.9-cap2-ssd3", GRID_SESSIONS, 1, 0.9, 2, 3.0, true, HEAVY, false, 0.0},
    {"turns1-zipf0.9-cap20-ssd14", GRID_SESSIONS, 1, 0.9, 20, 14.0, false, LIGHT, true, 0.0},
    {"turns1-zipf0.9-cap80-dram", GRID_SESSIONS, 1, 0.9, 80, 0.0, false, HEAVY, false, 0.0},
    {"turns1-zipf0.9-cap200-ssd0.5", GRID_SESSIONS, 1, 0.9, 200, 0.5, true, LIGHT, false, 0.0},
    {"turns1-zipf1.2-cap2-ssd14", GRID_SESSIONS, 1, 1.2, 2, 14.0, true, LIGHT, false, 0.0},
    {"turns1-zipf1.2-cap20-ssd3", GRID_SESSIONS, 1, 1.2, 20, 3.0, false, HEAVY, false, 0.0},
    {"turns1-zipf1.2-cap80-ssd0.5", GRID_SESSIONS, 1, 1.2, 80, 0.5, false, LIGHT, true, 0.0},
    {"turns1-zipf1.2-cap200-dram", GRID_SESSIONS, 1, 1.2, 200, 0.0, true, HEAVY, false, 0.0},
    {"turns3-zipf0-cap2-ssd0.5", GRID_SESSIONS, 3, 0.0, 2, 0.5, true, LIGHT, false, 0.0},
    {"turns3-zipf0-cap20-dram", GRID_SESSIONS, 3, 0.0, 20, 0.0, false, HEAVY, false, 0.0},
    {"turns3-zipf0-cap80-ssd14", GRID_SESSIONS, 3, 0.0, 80, 14.0, false, LIGHT, true, 0.0},
    {"turns3-zipf0-cap200-ssd3", GRID_SESSIONS, 3, 0.0, 200, 3.0, true, HEAVY, false, 0.0},
    {"turns3-zipf0.6-cap2-dram", GRID_SESSIONS, 3, 0.6, 2, 0.0, true, HEAVY, false, 0.0},
    {"turns3-zipf0.6-cap20-ssd0.5", GRID_SESSIONS, 3, 0.6, 20, 0.5, false, LIGHT, true, 0.0},
    {"turns3-zipf0.6-cap80-ssd3", GRID_SESSIONS, 3, 0.6, 80, 3.0, false, HEAVY, false, 0.0},
    {"turns3-zipf0.6-cap200-ssd14", GRID_SESSIONS, 3, 0.6, 200, 14.0, true, LIGHT, false, 0.0},
    {"turns3-zipf0.9-cap2-ssd14", GRID_SESSIONS, 3, 0.9, 2, 14.0, false, HEAVY, false, 0.0},
    {"turns3-zipf0.9-cap20-ssd3", GRID_SESSIONS, 3, 0.9, 20, 3.0, true, LIGHT, false, 0.0},
    {"turns3-zipf0.9-cap80-ssd0.5", GRID_SESSIONS, 3, 0.9, 80, 0.5, true, HEAVY, false, 0.0},
    {"turns3-zipf0.9-cap200-dram", GRID_SESSIONS, 3, 0.9, 200, 0.0, false, LIGHT, true, 0.0},
    {"turns3-zipf1.2-cap2-ssd3", GRID_SESSIONS, 3, 1.2, 2, 3.0, false, LIGHT, true, 0.0},
    {"turns3-zipf1.2-cap20-ssd14", GRID_SESSIONS, 3, 1.2, 20, 14.0, true, HEAVY, false, 0.0},
    {"turns3-zipf1.2-cap80-dram", GRID_SESSIONS, 3, 1.2, 80, 0.0, true, LIGHT, false, 0.0},
    {"turns3-zipf1.2-cap200-ssd0.5", GRID_SESSIONS, 3, 1.2, 200, 0.5, false, HEAVY, false, 0.0},
    {"turns8-zipf0-cap2-ssd3", GRID_SESSIONS, 8, 0.0, 2, 3.0, false, HEAVY, false, 0.0},
    {"turns8-zipf0-cap20-ssd14", GRID_SESSIONS, 8, 0.0, 20, 14.0, true, LIGHT, false, 0.0},
    {"turns8-zipf0-cap80-dram", GRID_SESSIONS, 8, 0.0, 80, 0.0, true, HEAVY, false, 0.0},
    {"turns8-zipf0-cap200-ssd0.5", GRID_SESSIONS, 8, 0.0, 200, 0.5, false, LIGHT, true, 0.0},
    {"turns8-zipf0.6-cap2-ssd14", GRID_SESSIONS, 8, 0.6, 2, 14.0, false, LIGHT, true, 0.0},
    {"turns8-zipf0.6-cap20-ssd3", GRID_SESSIONS, 8, 0.6, 20, 3.0, true, HEAVY, false, 0.0},
    {"turns8-zipf0.6-cap80-ssd0.5", GRID_SESSIONS, 8, 0.6, 80, 0.5, true, LIGHT, false, 0.0},
    {"turns8-zipf0.6-cap200-dram", GRID_SESSIONS, 8, 0.6, 200, 0.0, false, HEAVY, false, 0.0},
    {"turns8-zipf0.9-cap2-dram", GRID_SESSIONS, 8, 0.9, 2, 0.0, true, LIGHT, false, 0.0},
    {"turns8-zipf0.9-cap20-ssd0.5", GRID_SESSIONS, 8, 0.9, 20, 0.5, false, HEAVY, false, 0.0},
    {"turns8-zipf0.9-cap80-ssd3", GRID_SESSIONS, 8, 0.9, 80, 3.0, false, LIGHT, true, 0.0},
    {"turns8-zipf0.9-cap200-ssd14", GRID_SESSIONS, 8, 0.9, 200, 14.0, true, HEAVY, false, 0.0},
    {"turns8-zipf1.2-cap2-ssd0.5", GRID_SESSIONS, 8, 1.2, 2, 0.5, true, HEAVY, false, 0.0},
    {"turns8-zipf1.2-cap20-dram", GRID_SESSIONS, 8, 1.2, 20, 0.0, false, LIGHT, true, 0.0},
    {"turns8-zipf1.2-cap80-ssd14", GRID_SESSIONS, 8, 1.2, 80, 14.0, false, HEAVY, false, 0.0},
    {"turns8-zipf1.2-cap200-ssd3", GRID_SESSIONS, 8, 1.2, 200, 3.0, true, LIGHT, false, 0.0},
    {"turns16-zipf0-cap2-ssd14", GRID_SESSIONS, 16, 0.0, 2, 14.0, true, HEAVY, false, 0.0},
    {"turns16-zipf0-cap20-ssd3", GRID_SESSIONS, 16, 0.0, 20, 3.0, false, LIGHT, true, 0.0},
    {"turns16-zipf0-cap80-ssd0.5", GRID_SESSIONS, 16, 0.0, 80, 0.5, false, HEAVY, false, 0.0},
    {"turns16-zipf0-cap200-dram", GRID_SESSIONS, 16, 0.0, 200, 0.0, true, LIGHT, false, 0.0},
    {"turns16-zipf0.6-cap2-ssd3", GRID_SESSIONS, 16, 0.6, 2, 3.0, true, LIGHT, false, 0.0},
    {"turns16-zipf0.6-cap20-ssd14", GRID_SESSIONS, 16, 0.6, 20, 14.0, false, HEAVY, false, 0.0},
    {"turns16-zipf0.6-cap80-dram", GRID_SESSIONS, 16, 0.6, 80, 0.0, false, LIGHT, true, 0.0},
    {"turns16-zipf0.6-cap200-ssd0.5", GRID_SESSIONS, 16, 0.6, 200, 0.5, true, HEAVY, false, 0.0},
    {"turns16-zipf0.9-cap2-ssd0.5", GRID_SESSIONS, 16, 0.9, 2, 0.5, false, LIGHT, true, 0.0},
    {"turns16-zipf0.9-cap20-dram", GRID_SESSIONS, 16, 0.9, 20, 0.0, true, HEAVY, false, 0.0},
    {"turns16-zipf0.9-cap80-ssd14", GRID_SESSIONS, 16, 0.9, 80, 14.0, true, LIGHT, false, 0.0},
    {"turns16-zipf0.9-cap200-ssd3", GRID_SESSIONS, 16, 0.9, 200, 3.0, false, HEAVY, false, 0.0},
    {"turns16-zipf1.2-cap2-dram", GRID_SESSIONS, 16, 1.2, 2, 0.0, false, HEAVY, false, 0.0},
    {"turns16-zipf1.2-cap20-ssd0.5", GRID_SESSIONS, 16, 1.2, 20, 0.5, true, LIGHT, false, 0.0},
    {"turns16-zipf1.2-cap80-ssd3", GRID_SESSIONS, 16, 1.2, 80, 3.0, true, HEAVY, false, 0.0},
    {"turns16-zipf1.2-cap200-ssd14", GRID_SESSIONS, 16, 1.2, 200, 14.0, false, LIGHT, true, 0.0},
    {"long-turns1-zipf0.9-cap20-ssd0.5", GRID_LONG, 1, 0.9, 20, 0.5, false, LIGHT, false, 0.0},
    {"long-turns3-zipf0.9-cap20-ssd0.5", GRID_LONG, 3, 0.9, 20, 0.5, true, LIGHT, true, 0.0},
    {"long-turns8-zipf0.9-cap20-ssd0.5", GRID_LONG, 8, 0.9, 20, 0.5, false, HEAVY, false, 0.0},
    {"long-turns1-zipf0.9-cap80-ssd0.5", GRID_LONG, 1, 0.9, 80, 0.5, true, HEAVY, false, 0.0},
    {"long-turns3-zipf0.9-cap80-ssd0.5", GRID_LONG, 3, 0.9, 80, 0.5, false, LIGHT, false, 0.0},
    {"long-turns3-zipf0.9-cap20-ssd3", GRID_LONG, 3, 0.9, 20, 3.0, true, LIGHT, false, 0.0},
    {"drift0.02-turns1-zipf0.9-cap20-dram", GRID_DRIFT, 1, 0.9, 20, 0.0, false, LIGHT, false, 0.02},
    {"drift0.2-turns1-zipf0.9-cap20-ssd3", GRID_DRIFT, 1, 0.9, 20, 3.0, true, LIGHT, false, 0.2},
    {"drift0.2-turns3-zipf0.9-cap20-dram", GRID_DRIFT, 3, 0.9, 20, 0.0, false, HEAVY, true, 0.2},
    {"drift0.02-turns3-zipf0.9-cap20-ssd3", GRID_DRIFT, 3, 0.9, 20, 3.0, true, HEAVY, false, 0.02},
    {"drift0.2-turns1-zipf1.2-cap20-ssd0.5", GRID_DRIFT, 1, 1.2, 20, 0.5, false, LIGHT, false, 0.2},
    {"drift0.2-turns3-zipf1.2-cap2-dram", GRID_DRIFT, 3, 1.2, 2, 0.0, true, LIGHT, false, 0.2},
    {"scan0.5-turns1-zipf0.9-cap20-dram", GRID_SCAN, 1, 0.9, 20, 0.0, false, LIGHT, true, 0.5},
    {"scan0.5-turns3-zipf0.9-cap20-ssd3", GRID_SCAN, 3, 0.9, 20, 3.0, true, LIGHT, false, 0.5},
    {"scan0.2-turns3-zipf0.9-cap80-dram", GRID_SCAN, 3, 0.9, 80, 0.0, false, HEAVY, false, 0.2},
    {"scan0.2-turns1-zipf0.9-cap20-ssd0.5", GRID_SCAN, 1, 0.9, 20, 0.5, true, HEAVY, false, 0.2},
    {"crowd5-turns1-zipf0.9-cap20-dram", GRID_CROWD, 1, 0.9, 20, 0.0, false, LIGHT, false, 5.0},
    {"crowd5-turns3-zipf0.6-cap20-ssd3", GRID_CROWD, 3, 0.6, 20, 3.0, true, LIGHT, true, 5.0},
    {"crowd5-turns3-zipf0.9-cap2-dram", GRID_CROWD, 3, 0.9, 2, 0.0, false, HEAVY, false, 5.0},
    {"crowd2-turns1-zipf0.6-cap20-ssd0.5", GRID_CROWD, 1, 0.6, 20, 0.5, true, HEAVY, false, 2.0},
    {"conversation-cap2-dram", GRID_CONVERSATION, 0, 0.0, 2, 0.0, false, LIGHT, false, 0.0},
    {"conversation-cap20-dram", GRID_CONVERSATION, 0, 0.0, 20, 0.0, true, LIGHT, true, 0.0},
    {"conversation-cap20-ssd0.5", GRID_CONVERSATION, 0, 0.0, 20, 0.5, false, HEAVY, false, 0.0},
    {"conversation-cap20-ssd3", GRID_CONVERSATION, 0, 0.0, 20, 3.0, true, HEAVY, false, 0.0},
    {"conversation-cap20-ssd14", GRID_CONVERSATION, 0, 0.0, 20, 14.0, false, LIGHT, false, 0.0},
    {"conversation-cap80-ssd3", GRID_CONVERSATION, 0, 0.0, 80, 3.0, true, LIGHT, false, 0.0},
    {"toolagent-cap20-dram", GRID_TOOLAGENT, 0, 0.0, 20, 0.0, false, LIGHT, false, 0.0},
    {"toolagent-cap20-ssd3", GRID_TOOLAGENT, 0, 0.0, 20, 3.0, true, LIGHT, true, 0.0},
    {"toolagent-cap2-ssd14", GRID_TOOLAGENT, 0, 0.0, 2, 14.0, false, HEAVY, false, 0.0},
    {"toolagent-cap80-ssd0.5", GRID_TOOLAGENT, 0, 0.0, 80, 0.5, true, HEAVY, false, 0.0},
    {"agentic-cap20-dram", GRID_AGENTIC, 0, 0.0, 20, 0.0, false, LIGHT, false, 0.0},
    {"agentic-cap20-ssd3", GRID_AGENTIC, 0, 0.0, 20, 3.0, true, LIGHT, false, 0.0},
    {"agentic-cap2-ssd14", GRID_AGENTIC, 0, 0.0, 2, 14.0, false, HEAVY, true, 0.0},
    {"agentic-cap80-ssd0.5", GRID_AGENTIC, 0, 0.0, 80, 0.5, true, HEAVY, false, 0.0},
    /* clang-format on */
};
#define GRID_CELLS (sizeof grid_cells / sizeof grid_cells[0])

size_t grid_cell_count(void)
{
    return GRID_CELLS;
}

const grid_cell *grid_cell_at(size_t index)
{
    return &grid_cells[index];
}

static uint64_t grid_draw(const char *name)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325); /* FNV-1a */
    for (const char *at = name; *at != '\0'; at++)
        hash = (hash ^ (unsigned char)*at) * UINT64_C(0x100000001b3);
    return replay_mix(hash ^ GRID_HIDDEN_SEED);
}

/* Of every family the half with the smaller draws is hidden. */
bool grid_is_hidden(size_t index)
{
    uint64_t own = grid_draw(grid_cells[index].name);
    size_t family = 0, smaller = 0;
    for (size_t i = 0; i < GRID_CELLS; i++) {
        if (grid_cells[i].family != grid_cells[index].family) continue;
        family++;
        smaller += grid_draw(grid_cells[i].name) < own;
    }
    return smaller < family / 2;
}

const char *grid_family_name(grid_family family)
{
    static const char *const names[GRID_FAMILIES] = {
        "sessions", "long", "drift", "scan", "crowd", "conversation", "toolagent", "agentic"};
    return names[family];
}

const char *grid_half_name(grid_half half)
{
    return half == GRID_HALF_HIDDEN ? "hidden" : half == GRID_HALF_TUNING ? "tuning" : "all";
}

/* ---- what a cell replays ---- */

/*
 * A cell replays a generated workload or a draw from a trace, and has its tiers, variants and
 * servers. The workloads that a seed gives are the same for all policies. Many threads may read
 * one grid_sources.
 */

#define WORKLOAD_TENTHS 10u

/* A fifth of the bytes is DRAM where there is an SSD: AdaptCache's host has 100 of 500 GB. */
#define WORKLOAD_DRAM_SHARE 0.2

/* A trace's part: its first requests, drawn session by session with replacement, or so many of its
 * conversations. */
typedef struct workload_trace {
    const char *file;
    uint64_t requests, quick_requests; /* 0 = all */
    uint32_t sessions, quick_sessions; /* of a draw; 0 = as many as there are */
} workload_trace;

static const workload_trace workload_traces[GRID_FAMILIES] = {
    [GRID_CONVERSATION] = {"mooncake_conversation.jsonl.zst", 3000, 1000, 0, 0},
    [GRID_TOOLAGENT] = {"mooncake_toolagent_first1000.jsonl.zst", 0, 0, 0, 0},
    [GRID_AGENTIC] = {"agentic_coding.jsonl.zst", 0, 0, 8, 3},
};

/* Conversations of the agentic trace begin every five minutes: they last an hour, so a dozen are
 * open at a time. */
#define WORKLOAD_CONVERSATIONS_PER_S (1.0 / 300.0)

/* The exact variants of the shipped ladder (profiles/ladder-codec-trial.json; a test compares). */
static const double workload_lossless_share = 10.6 / 16.0;
static const double workload_lossless_encode = 1.3e9, workload_lossless_decode = 3.0e9;

static kvt_status sources_read(grid_sources *sources, const char *folder, grid_family family,
                               char *message, size_t message_size)
{
    const workload_trace *trace = &workload_traces[family];
    char path[1024];
    const replay_trace_options options = {.seed = 1,
                                          .limit = sources->quick ? trace->quick_requests
                                                                  : trace->requests,
                                          .conversations_per_s = WORKLOAD_CONVERSATIONS_PER_S,
                                          .keep_steps = true};
    int length = snprintf(path, sizeof path, "%s/%s", folder != NULL ? folder : "", trace->file);
    FILE *file = NULL;
    if (folder != NULL && length > 0 && (size_t)length < sizeof path) file = fopen(path, "re");
    if (file == NULL) {
        snprintf(sources->missing[family], sizeof sources->missing[family], "%s %s",
                 folder != NULL ? "there is no" : "no folder of traces is known for", trace->file);
        return KVT_OK;
    }
    (void)fclose(file);
    return replay_workload_read(path, &options, &sources->traces[family], message, message_size);
}

kvt_status grid_sources_open(grid_sources *sources, const char *folder,
                             const bool needed[GRID_FAMILIES], char *message, size_t message_size)
{
    kvt_status status = KVT_OK;
    replay_options_init(&sources->base);
    for (unsigned family = 0; family < GRID_FAMILIES && status == KVT_OK; family++)
        if (needed[family] && workload_traces[family].file != NULL)
            status = sources_read(sources, folder, family, message, message_size);
    return status;
}

void grid_sources_close(grid_sources *sources)
{
    for (unsigned family = 0; family < GRID_FAMILIES; family++)
        replay_workload_free(&sources->traces[family]);
    replay_options_free(&sources->base);
}

static replay_generator workload_generator(const grid_sources *sources, const grid_cell *cell,
                                           uint64_t seed)
{
    /* The defaults of [workload], with the counts of the acceptance runs. */
    replay_generator generator = {.requests_per_s = 1.0,
                                  .requests = sources->quick ? 1000 : 3000,
                                  .contexts = sources->quick ? 170 : 500,
                                  .zipf = cell->zipf,
                                  .tokens_median = 8192.0,
                                  .tokens_sigma = 1.0,
                                  .tokens_max = 131072,
                                  .turns_mean = (double)cell->turns,
                                  .turn_tokens = 512.0,
                                  .think_seconds = 30.0,
                                  .block_tokens = sources->base.block_tokens,
                                  .seed = seed};
    if (cell->family == GRID_LONG) {
        generator.requests_per_s = 0.3;
        generator.requests = sources->quick ? 600 : 2000;
        generator.contexts = sources->quick ? 30 : 100;
        generator.tokens_median = 1e5;
        generator.tokens_sigma = 0.3;
    }
    if (cell->family == GRID_DRIFT) generator.drift_per_s = cell->strength;
    if (cell->family == GRID_SCAN) {
        double beside = cell->strength / (1.0 - cell->strength) * generator.requests_per_s;
        generator.scan = (replay_burst){2.0 * beside, 300.0, 600.0};
    }
    if (cell->family == GRID_CROWD) generator.crowd = (replay_burst){cell->strength, 60.0, 600.0};
    return generator;
}

/* As many servers as give the cell's load in the busiest tenth of the span, were everything
 * computed. Then even a policy that keeps nothing has a mean, whatever the prompts' length. */
static uint32_t workload_servers(const replay_options *options, const replay_workload *workload,
                                 double load)
{
    const replay_request *requests = workload->requests;
    uint64_t last = workload->request_count - 1, first_ns = requests[0].arrival_ns;
    uint64_t tenth_ns = (requests[last].arrival_ns - first_ns) / WORKLOAD_TENTHS + 1;
    double busy_s[WORKLOAD_TENTHS] = {0.0}, most_s = 0.0;
    for (uint64_t i = 0; i <= last; i++) {
        uint64_t tenth = (requests[i].arrival_ns - first_ns) / tenth_ns;
        busy_s[tenth] += kvt_prefill_seconds(&options->model.prefill, 0, requests[i].input_tokens) +
                         options->model.prefill.fixed_seconds;
        if (busy_s[tenth] > most_s) most_s = busy_s[tenth];
    }
    double servers = ceil(most_s / ((double)tenth_ns * 1e-9) / load);
    return servers < 1.0 ? 1 : servers > 65536.0 ? 65536 : (uint32_t)servers;
}

static void workload_forms(replay_options *options)
{
    kvt_codec_curve *curve = &options->model.variants[1];
    *curve = (kvt_codec_curve){.stored_share = workload_lossless_share,
                               .encode_bytes_per_s = workload_lossless_encode,
                               .decode_bytes_per_s = workload_lossless_decode};
    kvt_status status = kvt_variant_parse("lossless", &curve->variant);
    options->model.variant_count = 1u + (status == KVT_OK);
}

static kvt_status workload_options(const grid_sources *sources, const grid_cell *cell,
                                   uint64_t seed, const replay_workload *workload,
                                   replay_options *options, char *message, size_t message_size)
{
    *options = sources->base;
    options->seed = seed;
    options->bounds = false; /* regrets are for the engine alone; the bound is found once for all */
    double footprint = (double)workload->distinct_blocks * (double)workload->block_tokens *
                       (double)options->bytes_per_token;
    double capacity = footprint * (double)cell->capacity_percent / 100.0;
    double dram = cell->ssd_gb_per_s > 0.0 ? WORKLOAD_DRAM_SHARE * capacity : capacity;
    options->tiers[KVT_TIER_DRAM].capacity_bytes = (uint64_t)dram;
    if (cell->ssd_gb_per_s > 0.0) {
        replay_tier *ssd = &options->tiers[KVT_TIER_SSD];
        ssd->capacity_bytes = (uint64_t)(capacity - dram);
        ssd->read.bytes_per_s = ssd->write.bytes_per_s = cell->ssd_gb_per_s * 1e9;
    }
    if (cell->lossless) workload_forms(options);
    options->servers = workload_servers(options, workload, cell->load);
    return replay_options_check(options, message, message_size);
}

kvt_status grid_draw_workload(const grid_sources *sources, const grid_cell *cell, uint64_t seed,
                              replay_workload *workload, replay_options *options, char *message,
                              size_t message_size)
{
    const workload_trace *trace = &workload_traces[cell->family];
    kvt_status status;
    if (trace->file != NULL) {
        uint32_t drawn, sessions = sources->quick ? trace->quick_sessions : trace->sessions;
        snprintf(message, message_size, "%s: no draw of its sessions", trace->file);
        status = replay_resample(&sources->traces[cell->family], seed, sessions, workload, &drawn);
    } else {
        replay_generator generator = workload_generator(sources, cell, seed);
        status = replay_workload_generate(&generator, workload, message, message_size);
    }
    if (status != KVT_OK) return status;
    status = workload_options(sources, cell, seed, workload, options, message, message_size);
    if (status != KVT_OK) replay_workload_free(workload);
    return status;
}
