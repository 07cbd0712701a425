/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_grid_workload.c - what a cell of the grid replays: a generated workload or a draw from a
 * trace, the tiers, the forms and the servers. The workloads that a seed gives are the same for all
 * policies. Readers of one grid_sources may be many threads.
 */
#include "bench_grid.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* The exact forms of the shipped ladder (profiles/ladder-codec-trial.csv; a test compares). */
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
    sources->base.store_model = sources->store_model;
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
