/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_grid.c - replays the chosen cells of the grid: which policies run in which variants, the
 * jobs and their threads, the budget.
 *
 * A job is one seed of one cell: it draws the workload, finds its bound and replays it with every
 * policy, so that all see the same requests. Jobs run on several threads; each writes the samples
 * of its seed alone. A result does not depend on the threads. One run at a time.
 */
#include "bench_grid.h"
#include "base/clock.h"
#include "bench_parts.h"

#include "tools/command/worker_pool.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define GRID_SEEDS       10u
#define GRID_QUICK_SEEDS 3u

/* The cost of a job of each family beside one of generated sessions, measured: 3,000 requests
 * there, and a million references to small blocks in the agentic trace. For the budget alone. */
static const double grid_cost[GRID_FAMILIES] = {1.0, 3.0, 1.0, 1.0, 1.0, 2.0, 0.5, 20.0};

/* The policies of the grid. The first ones store one variant and are tried with every variant of
 * the cell; the others choose for themselves. */
static const char *const grid_fixed[] = {"lru",    "lru-leaf",  "gdsf",
                                         "s3fifo", "w-tinylfu", "pensieve"};
static const char *const grid_choosing[] = {"none", "adaptcache", GRID_OURS};
#define GRID_FIXED    (sizeof grid_fixed / sizeof grid_fixed[0])
#define GRID_CHOOSING (sizeof grid_choosing / sizeof grid_choosing[0])
_Static_assert(2 * GRID_FIXED + GRID_CHOOSING <= GRID_RUNS_MAX, "a cell holds all its runs");

typedef struct grid_state {
    const bench_options *common;
    const grid_options *options;
    bench_report *report;
    grid_sources sources;
    grid_result *results;
    size_t count;
    uint32_t seeds;
    pthread_mutex_t lock; /* over what follows, and the callbacks */
    double done, total;   /* cost of the jobs */
    kvt_status status;
} grid_state;

bool grid_is_chosen(const bench_options *common, size_t index)
{
    const grid_options *options = common->own;
    const grid_cell *cell = grid_cell_at(index);
    bool hidden = grid_is_hidden(index);
    if (options->cell != NULL && strcmp(options->cell, cell->name) != 0) return false;
    if (options->cell == NULL && common->quick && !cell->quick) return false;
    return options->half == GRID_HALF_ALL || hidden == (options->half == GRID_HALF_HIDDEN);
}

/* ---- one job ---- */

static grid_sample job_sample(const replay_result *found)
{
    double requests = found->requests > 0 ? (double)found->requests : 1.0;
    grid_sample sample = {.stable = found->rho < 1.0 && found->rho_peak < 1.0,
                          .ttft_s = found->times.ttft_mean,
                          .wait_s = found->times.wait_mean,
                          .service_s = found->times.service_mean,
                          .loaded = found->used_token_ratio,
                          .puts = (double)found->puts / requests,
                          .refused = (double)found->refused / requests,
                          .busy = (double)found->puts_busy / requests,
                          .evicted = (double)found->evictions / requests,
                          .aborted = (double)found->moves_aborted / requests,
                          .counters_s = found->regret_counters_s,
                          .foresight_s = found->regret_foresight_s};
    for (int tier = 0; tier < KVT_TIER_COUNT; tier++) {
        sample.found[tier] = found->hit_token_ratio[tier];
        sample.read_bytes[tier] = (double)found->bytes_read[tier];
        sample.written_bytes[tier] = (double)found->bytes_written[tier];
    }
    return sample;
}

static kvt_status job_bound(grid_result *result, uint32_t seed, const replay_options *options,
                            const replay_workload *workload, char *message, size_t message_size)
{
    replay_bound bound;
    kvt_status status = replay_bound_find(options, workload, &bound);
    snprintf(message, message_size, "the bound of %s: %s", workload->name, kvt_status_text(status));
    result->bound_s[seed] = bound.recompute_s - bound.moving_s;
    result->kept_bound_s[seed] = bound.recompute_s - bound.interval_s;
    result->servers[seed] = options->servers;
    result->requests[seed] = workload->request_count;
    result->footprint_bytes[seed] = (double)workload->distinct_blocks *
                                    (double)workload->block_tokens *
                                    (double)options->bytes_per_token;
    return status;
}

static kvt_status job_replay(grid_state *state, grid_result *result, uint32_t seed, char *message,
                             size_t message_size)
{
    const grid_cell *cell = grid_cell_at(result->index);
    replay_workload workload;
    replay_options options;
    kvt_status status = grid_draw_workload(&state->sources, cell, seed + 1, &workload, &options,
                                           message, message_size);
    if (status != KVT_OK) return status;
    status = job_bound(result, seed, &options, &workload, message, message_size);
    for (uint32_t i = 0; i < result->run_count && status == KVT_OK; i++) {
        grid_run *run = &result->runs[i];
        replay_result found;
        if (state->options->interrupted()) {
            status = KVT_E_CANCELLED;
            break;
        }
        options.variant = options.model.variants[run->lossless ? 1 : 0].variant;
        options.bounds = strcmp(run->policy, GRID_OURS) == 0;
        status = replay_run_sim(&options, &workload, run->policy, &found, message, message_size);
        if (status == KVT_OK) run->samples[seed] = job_sample(&found);
    }
    replay_workload_free(&workload);
    return status;
}

/* Jobs are numbered cell after cell, so that cells are finished in order. */
static void job_run(void *argument, uint32_t index, uint32_t worker)
{
    grid_state *state = argument;
    grid_result *result = &state->results[index / state->seeds];
    const grid_cell *cell = grid_cell_at(result->index);
    char message[512] = "";
    (void)worker;
    (void)pthread_mutex_lock(&state->lock);
    bool ended = state->status != KVT_OK;
    (void)pthread_mutex_unlock(&state->lock);
    if (ended || result->skipped) return;
    kvt_status status = job_replay(state, result, index % state->seeds, message, sizeof message);
    if (status == KVT_OK) atomic_fetch_add(&result->seeds_done, 1);
    (void)pthread_mutex_lock(&state->lock);
    if (status != KVT_OK && state->status == KVT_OK) {
        state->status = status;
        snprintf(state->report->message, BENCH_MESSAGE_BYTES, "%s: %.400s", cell->name, message);
    }
    state->done += grid_cost[cell->family];
    if (state->status == KVT_OK)
        (void)bench_tell(state->common, state->done, state->total, cell->name);
    (void)pthread_mutex_unlock(&state->lock);
}

/* ---- the whole ---- */

static kvt_status grid_add_runs(grid_result *result)
{
    const bool both = grid_cell_at(result->index)->lossless;
    result->runs = calloc(GRID_RUNS_MAX, sizeof *result->runs);
    if (result->runs == NULL) return KVT_E_MEMORY;
    for (size_t i = 0; i < GRID_FIXED; i++)
        for (unsigned form = 0; form < (both ? 2u : 1u); form++)
            result->runs[result->run_count++] =
                (grid_run){.policy = grid_fixed[i], .lossless = form == 1};
    for (size_t i = 0; i < GRID_CHOOSING; i++)
        result->runs[result->run_count++] = (grid_run){.policy = grid_choosing[i]};
    return KVT_OK;
}

static kvt_status grid_choose(grid_state *state)
{
    size_t cells = grid_cell_count();
    state->results = calloc(cells, sizeof *state->results);
    if (state->results == NULL) return KVT_E_MEMORY;
    for (size_t i = 0; i < cells; i++) {
        if (!grid_is_chosen(state->common, i)) continue;
        grid_result *result = &state->results[state->count++];
        result->index = i;
        kvt_status status = grid_add_runs(result);
        if (status != KVT_OK) return status;
    }
    if (state->count > 0) return KVT_OK;
    snprintf(state->report->message, BENCH_MESSAGE_BYTES,
             "no cell is named \"%.100s\" in this half: see --list",
             state->options->cell != NULL ? state->options->cell : "");
    return KVT_E_CONFIG;
}

static kvt_status grid_open_sources(grid_state *state)
{
    bool needed[GRID_FAMILIES] = {false};
    uint32_t skipped[GRID_FAMILIES] = {0};
    for (size_t i = 0; i < state->count; i++)
        needed[grid_cell_at(state->results[i].index)->family] = true;
    state->sources.quick = state->common->quick;
    kvt_status status = grid_sources_open(&state->sources, state->options->traces, needed,
                                          state->report->message, BENCH_MESSAGE_BYTES);
    for (size_t i = 0; i < state->count && status == KVT_OK; i++) {
        grid_family family = grid_cell_at(state->results[i].index)->family;
        state->results[i].skipped = state->sources.missing[family][0] != '\0';
        skipped[family] += state->results[i].skipped;
    }
    for (unsigned family = 0; family < GRID_FAMILIES; family++)
        if (skipped[family] > 0)
            bench_note(state->common, "%u cells of %s are skipped: %s (--data, KVT_DATA_DIR)",
                       skipped[family], grid_family_name(family), state->sources.missing[family]);
    return status;
}

/* Runs the first job of a cell that is there by itself; its seconds tell what the others take. */
static void grid_tell_budget(grid_state *state)
{
    uint64_t replays = 0;
    uint32_t cells = 0;
    double first_cost = 0.0, seconds = 0.0;
    for (size_t i = 0; i < state->count; i++) {
        if (state->results[i].skipped) continue;
        cells++;
        replays += (uint64_t)state->results[i].run_count * state->seeds;
        state->total += grid_cost[grid_cell_at(state->results[i].index)->family] * state->seeds;
    }
    for (size_t i = 0; i < state->count && first_cost <= 0.0; i++) {
        grid_result *result = &state->results[i];
        char message[512];
        if (result->skipped) continue;
        double begin_s = base_clock_seconds();
        first_cost = grid_cost[grid_cell_at(result->index)->family];
        if (job_replay(state, result, 0, message, sizeof message) != KVT_OK) return;
        seconds = base_clock_seconds() - begin_s;
    }
    if (first_cost <= 0.0) return;
    double minutes = seconds / first_cost * state->total / state->options->threads / 60.0;
    bench_note(state->common, "budget: %u cells, %llu replays, about %.1f minutes on %u threads",
               cells, (unsigned long long)replays, minutes, state->options->threads);
}

static void grid_run_jobs(grid_state *state)
{
    worker_pool pool;
    worker_pool_open(&pool, state->options->threads);
    worker_pool_run(&pool, (uint32_t)state->count * state->seeds, job_run, state);
    worker_pool_close(&pool);
    for (size_t i = 0; i < state->count; i++)
        if (atomic_load(&state->results[i].seeds_done) == state->seeds)
            grid_judge(&state->results[i], state->seeds);
}

static kvt_status grid_run_case(const bench_options *options, bench_report *report)
{
    grid_state state = {
        .common = options, .options = options->own, .report = report, .status = KVT_OK};
    const double begin_s = base_clock_seconds();
    state.seeds = state.options->seeds > 0 ? state.options->seeds
                  : options->quick         ? GRID_QUICK_SEEDS
                                           : GRID_SEEDS;
    if (pthread_mutex_init(&state.lock, NULL) != 0) return KVT_E_MEMORY;
    kvt_status status = grid_choose(&state);
    if (status == KVT_OK) status = grid_open_sources(&state);
    if (status == KVT_OK) {
        grid_tell_budget(&state);
        grid_run_jobs(&state);
        status = state.status;
    }
    if (status == KVT_OK || status == KVT_E_CANCELLED)
        grid_report(options, state.seeds, state.results, state.count,
                    base_clock_seconds() - begin_s, report);
    for (size_t i = 0; i < state.count; i++)
        free(state.results[i].runs);
    free(state.results);
    grid_sources_close(&state.sources);
    (void)pthread_mutex_destroy(&state.lock);
    return status;
}

/* Mean TTFT with the defaults; the ratio of utility to the best rival is paired, with its 95 %
 * interval; no policy can be faster than the bound. */
const bench_case bench_grid_case = {
    .name = "grid",
    .schema = "kvterrace-bench-grid-1",
    .tables =
        (const bench_table[]){
            {"cells",
             "cell half best_rival rival_ttft_s utility_ttft_s ratio ratio_low ratio_high bound"},
            {"totals", "cells skipped unfinished intervals_above_1_02 cells_with_room "
                       "geometric_mean_with_room"},
            {"totals.worst", "cell ratio best_rival why"},
            {"", "repetitions half seconds"},
            {0}},
    .run = grid_run_case,
};
