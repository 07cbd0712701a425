/* SPDX-License-Identifier: Apache-2.0 */
/*
 * size_grid.c - the runs of kvterrace size: a workload that some minutes of a core can simulate,
 * cells around a machine, and threads that simulate them. One thread, but for
 * tools_size_grid_run's own.
 */
#include "size.h"

#include "tools/command/worker_pool.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define GRID_VISITS      48e6 /* block references of all runs together: a minute on two threads */
#define GRID_MONTH_DAYS  30.4
#define GRID_GROWTHS     5u
#define GRID_LEAST_BYTES (UINT64_C(4) << 30) /* smaller rooms are not halved */

const char *const tools_size_policy_names[SIZE_POLICIES] = {"none", "lru", "utility"};
const uint8_t tools_size_tiers[SIZE_AXES] = {KVT_TIER_DRAM, KVT_TIER_SSD};

/* A tier that the machine does not have stays absent. */
static void grid_place(size_study *study)
{
    static const double steps[SIZE_AXES][5] = {{0.25, 0.5, 1, 2}, {0, 0.25, 0.5, 1, 2}};
    static const uint32_t counts[SIZE_AXES] = {4, 5};
    for (size_axis_name axis = 0; axis < SIZE_AXES; axis++) {
        size_axis *own = &study->axes[axis];
        const uint64_t bytes = study->options.tiers[tools_size_tiers[axis]].capacity_bytes;
        own->grows = own->count == 0 && bytes > 0;
        for (uint32_t i = 0; own->grows && i < counts[axis]; i++)
            own->bytes[own->count++] = (uint64_t)((double)bytes * steps[axis][i]);
        if (own->count == 0) own->count = 1;
    }
}

/* Share of the sessions that the runs can have. Leaving out fewer than half of them costs more
 * accuracy than it saves seconds. */
static double grid_share(const size_study *study)
{
    const double cells = (double)study->axes[SIZE_DRAM].count * (double)study->axes[SIZE_SSD].count;
    const double runs = 1.0 + 2.0 * cells + (double)(SIZE_POLICIES * study->draws);
    const double share = GRID_VISITS / ((double)study->workload.block_refs * runs);
    if (study->sample >= 0.0) return study->sample;
    return share < 0.5 ? share : 1.0;
}

/* Puts a share of the sessions in the workload's place. Its times shrink as its tokens do, so that
 * servers and drives are asked for as much in a second; cells will shrink as its blocks do. */
static kvt_status grid_sample(size_study *study, double share)
{
    replay_workload *whole = &study->workload, sample = {0};
    const double tokens = (double)whole->input_tokens, blocks = (double)whole->distinct_blocks;
    kvt_status status = replay_resample(whole, study->options.seed, 0, &sample);
    if (status != KVT_OK) return status;
    for (uint64_t i = 0; i < sample.request_count; i++)
        if (sample.requests[i].session >= study->sessions)
            study->sessions = sample.requests[i].session + 1;
    replay_workload_free(&sample);
    study->sampled = (uint32_t)ceil(share * study->sessions);
    status = replay_resample(whole, study->options.seed, study->sampled, &sample);
    if (status != KVT_OK) return status;
    study->room = (double)sample.distinct_blocks / blocks;
    study->pace = (double)sample.input_tokens / tokens;
    for (uint64_t i = 0; i < sample.request_count; i++)
        sample.requests[i].arrival_ns =
            (uint64_t)((double)sample.requests[i].arrival_ns * study->pace);
    replay_workload_free(whole);
    *whole = sample;
    study->generator = NULL;
    return KVT_OK;
}

kvt_status tools_size_grid_make(size_study *study)
{
    const replay_workload *whole = &study->workload;
    const replay_request *last = &whole->requests[whole->request_count - 1];
    const double span_s = (double)(last->arrival_ns - whole->requests[0].arrival_ns) * 1e-9;
    kvt_status status = KVT_OK;
    grid_place(study);
    study->requests = whole->request_count;
    study->tokens_per_s = (double)whole->input_tokens / span_s;
    study->footprint = (double)whole->distinct_blocks * (double)whole->block_tokens *
                       (double)study->options.bytes_per_token;
    study->room = study->pace = 1.0;
    const double share = grid_share(study);
    if (share < 1.0) status = grid_sample(study, share);
    for (uint32_t draw = 0; draw < study->draws && status == KVT_OK; draw++) {
        const uint64_t seed = study->options.seed + 1 + draw;
        if (study->generator == NULL) {
            status = replay_resample(whole, seed, 0, &study->drawn[draw]);
        } else {
            replay_generator generator = *study->generator;
            generator.seed = seed;
            status = replay_workload_generate(&generator, &study->drawn[draw], study->message,
                                              sizeof study->message);
        }
    }
    return status;
}

/* By draw, sizes and policy, as a reader wants to see them. */
static int grid_order(const void *left, const void *right)
{
    const size_run *a = left, *b = right;
    const uint64_t keys[2][4] = {{a->draw, a->bytes[SIZE_DRAM], a->bytes[SIZE_SSD], a->policy},
                                 {b->draw, b->bytes[SIZE_DRAM], b->bytes[SIZE_SSD], b->policy}};
    for (size_t i = 0; i < 4; i++)
        if (keys[0][i] != keys[1][i]) return keys[0][i] < keys[1][i] ? -1 : 1;
    return 0;
}

/* Adds a run that is not there yet. */
static kvt_status grid_add(size_study *study, const size_run *run)
{
    for (size_t i = 0; i < study->run_count; i++)
        if (grid_order(&study->runs[i], run) == 0) return KVT_OK;
    size_run *grown = realloc(study->runs, (study->run_count + 1) * sizeof *grown);
    if (grown == NULL) return KVT_E_MEMORY;
    study->runs = grown;
    study->runs[study->run_count++] = *run;
    return KVT_OK;
}

/* One without any room is no cache. */
static kvt_status grid_add_cells(size_study *study)
{
    const size_axis *dram = &study->axes[SIZE_DRAM], *ssd = &study->axes[SIZE_SSD];
    kvt_status status = grid_add(study, &(size_run){.policy = SIZE_NONE});
    for (uint32_t i = 0; i < dram->count * ssd->count; i++) {
        size_run run = {.bytes = {dram->bytes[i / ssd->count], ssd->bytes[i % ssd->count]}};
        if (run.bytes[SIZE_DRAM] == 0 && run.bytes[SIZE_SSD] == 0) continue;
        for (run.policy = SIZE_LRU; run.policy < SIZE_POLICIES && status == KVT_OK; run.policy++)
            status = grid_add(study, &run);
    }
    return status;
}

/* The least cost of a cell where an axis has this size. */
static double grid_cost_at(const size_study *study, size_axis_name axis, uint64_t bytes)
{
    double cost = INFINITY;
    for (size_t i = 0; i < study->run_count; i++) {
        const size_run *run = &study->runs[i];
        if (run->done && run->policy != SIZE_NONE && run->bytes[axis] == bytes)
            cost = fmin(cost, run->cost);
    }
    return cost;
}

/* An edge says nothing of what lies behind it: where a cell at one is as cheap as the cheapest,
 * there is half or twice as much to try. The lower edge of sizes that begin with none is the
 * smallest of the others, and between it and none there is room for the cheapest too. False: no
 * edge is cheap. */
static bool grid_grow(size_study *study)
{
    const size_run *best = tools_size_choose(study);
    bool grown = false;
    for (size_axis_name name = 0; name < SIZE_AXES && best != NULL; name++) {
        size_axis *axis = &study->axes[name];
        const uint32_t first = axis->bytes[0] == 0 && axis->count > 1;
        const uint64_t least = axis->bytes[first], most = axis->bytes[axis->count - 1];
        const double cheap = best->cost * (1.0 + SIZE_TIE);
        const bool less = least >= GRID_LEAST_BYTES &&
                          (best->bytes[name] < least || grid_cost_at(study, name, least) <= cheap);
        const bool more =
            (double)most < study->footprint && grid_cost_at(study, name, most) <= cheap;
        if (!axis->grows || axis->count + less + more > SIZE_AXIS_MAX) continue;
        if (more) axis->bytes[axis->count++] = most * 2;
        if (less) {
            memmove(&axis->bytes[first + 1], &axis->bytes[first],
                    (axis->count++ - first) * sizeof axis->bytes[0]);
            axis->bytes[first] = least / 2;
        }
        grown |= less || more;
    }
    return grown;
}

static kvt_status grid_add_draws(size_study *study)
{
    const size_run *best = tools_size_choose(study);
    if (best == NULL) return KVT_OK;
    const size_run cell = {.bytes = {best->bytes[SIZE_DRAM], best->bytes[SIZE_SSD]}};
    kvt_status status = KVT_OK;
    for (uint32_t i = 0; i < study->draws * SIZE_POLICIES && status == KVT_OK; i++) {
        size_run run = i % SIZE_POLICIES == SIZE_NONE ? (size_run){.bytes = {0}} : cell;
        run.policy = i % SIZE_POLICIES;
        run.draw = 1 + i / SIZE_POLICIES;
        status = grid_add(study, &run);
    }
    return status;
}

/* ---- the threads ---- */

typedef struct grid_batch {
    size_study *study;
    size_t first;         /* of the study's runs: those before it are done */
    pthread_mutex_t lock; /* over what follows */
    command_progress *bar;
    double done;     /* runs, parts of them included */
    double expected; /* runs of the whole command */
    kvt_status status;
} grid_batch;

typedef struct grid_place_of_run {
    grid_batch *batch;
    const char *what;
    double done; /* as the batch knows it */
} grid_place_of_run;

/* Says how far a run is; false: nobody waits for it any more. */
static bool grid_proceed(void *context, double done)
{
    grid_place_of_run *place = context;
    grid_batch *batch = place->batch;
    pthread_mutex_lock(&batch->lock);
    batch->done += done - place->done;
    place->done = done;
    const bool on = progress_ask(batch->bar, batch->done / batch->expected, place->what);
    if (!on && batch->status == KVT_OK) batch->status = KVT_E_CANCELLED;
    const bool sound = batch->status == KVT_OK;
    pthread_mutex_unlock(&batch->lock);
    return sound;
}

/* The machine of a cell, made smaller as the workload was. */
static kvt_status grid_options(const size_study *study, const size_run *run,
                               replay_options *options, char *message, size_t message_size)
{
    *options = study->options;
    for (size_axis_name axis = 0; axis < SIZE_AXES && run->policy != SIZE_NONE; axis++)
        options->tiers[tools_size_tiers[axis]].capacity_bytes = run->bytes[axis];
    for (int tier = 1; tier < KVT_TIER_COUNT; tier++) {
        uint64_t *bytes = &options->tiers[tier].capacity_bytes;
        *bytes = (uint64_t)((double)*bytes * study->room);
    }
    options->clock_scale = 1.0 / study->pace;
    options->bounds = false;
    return replay_options_check(options, message, message_size);
}

static void grid_take(const size_study *study, const replay_workload *workload,
                      const replay_result *result, size_run *run)
{
    const double tokens = (double)workload->input_tokens / (double)workload->request_count;
    /* Seconds that servers spend on a token, times the tokens that come in a second. */
    run->gpu_hours = result->times.service_mean / tokens * study->tokens_per_s * 24.0;
    run->mean_s = result->times.ttft_mean;
    run->p99_s = result->times.ttft_p99;
    run->steady = result->rho < 1.0 && result->rho_peak < 1.0;
    run->hits = result->hit_token_ratio[0];
    run->gpu = run->gpu_hours * GRID_MONTH_DAYS * study->prices[SIZE_AXES];
    run->cost = run->gpu;
    for (size_axis_name axis = 0; axis < SIZE_AXES; axis++) {
        run->room[axis] = (double)run->bytes[axis] * 1e-9 * study->prices[axis];
        run->cost += run->room[axis];
    }
    run->done = true;
}

static void grid_task(void *argument, uint32_t index, uint32_t worker)
{
    grid_batch *batch = argument;
    size_study *study = batch->study;
    size_run *run = &study->runs[batch->first + index];
    const replay_workload *workload =
        run->draw > 0 ? &study->drawn[run->draw - 1] : &study->workload;
    replay_options options;
    replay_result result = {.requests = 0};
    char message[COMMAND_MESSAGE_BYTES] = "", what[64], text[SIZE_AXES][SIZE_TEXT_BYTES];
    (void)worker;
    (void)snprintf(what, sizeof what, "%s, %s + %s", tools_size_policy_names[run->policy],
                   tools_size_format_bytes(text[SIZE_DRAM], run->bytes[SIZE_DRAM]),
                   tools_size_format_bytes(text[SIZE_SSD], run->bytes[SIZE_SSD]));
    grid_place_of_run place = {.batch = batch, .what = what};
    if (!grid_proceed(&place, 0.0)) return;
    kvt_status status = grid_options(study, run, &options, message, sizeof message);
    options.proceed = grid_proceed;
    options.proceed_context = &place;
    if (status == KVT_OK)
        status = replay_run_sim(&options, workload, tools_size_policy_names[run->policy], &result,
                                message, sizeof message);
    if (status == KVT_OK) grid_take(study, workload, &result, run);
    replay_result_free(&result);
    if (status == KVT_OK) (void)grid_proceed(&place, 1.0);
    pthread_mutex_lock(&batch->lock);
    if (status != KVT_OK && batch->status == KVT_OK) {
        batch->status = status;
        (void)snprintf(study->message, sizeof study->message, "%s", message);
    }
    pthread_mutex_unlock(&batch->lock);
}

/* Runs those from `first` on; `more` of them will follow. */
static kvt_status grid_run(size_study *study, command_progress *bar, size_t first, size_t more)
{
    grid_batch batch = {.study = study,
                        .first = first,
                        .bar = bar,
                        .done = (double)first,
                        .expected = (double)(study->run_count + more),
                        .status = KVT_OK};
    worker_pool pool;
    pthread_mutex_init(&batch.lock, NULL);
    worker_pool_open(&pool, study->threads);
    worker_pool_run(&pool, (uint32_t)(study->run_count - first), grid_task, &batch);
    worker_pool_close(&pool);
    pthread_mutex_destroy(&batch.lock);
    return batch.status;
}

kvt_status tools_size_grid_run(size_study *study)
{
    command_progress bar;
    progress_start(&bar, study->common);
    kvt_status status = grid_add_cells(study);
    const size_t draws = (size_t)study->draws * SIZE_POLICIES;
    if (status == KVT_OK) status = grid_run(study, &bar, 0, draws);
    size_t cells = study->run_count;
    for (uint32_t i = 0; i < GRID_GROWTHS && status == KVT_OK && grid_grow(study); i++) {
        status = grid_add_cells(study);
        if (status == KVT_OK) status = grid_run(study, &bar, cells, draws);
        cells = study->run_count;
    }
    if (status == KVT_OK) status = grid_add_draws(study);
    if (status == KVT_OK) status = grid_run(study, &bar, cells, 0);
    progress_end(&bar);
    if (study->run_count > 0) qsort(study->runs, study->run_count, sizeof *study->runs, grid_order);
    return status;
}

void tools_size_study_free(size_study *study)
{
    free(study->runs);
    replay_workload_free(&study->workload);
    for (uint32_t i = 0; i < study->draws; i++)
        replay_workload_free(&study->drawn[i]);
    replay_options_free(&study->options);
}
