/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_pipeline_methods.c - published methods of sparse decode with the schedules that they were
 * published with.
 *
 * Thread rule: one bench at a time.
 */
#include <math.h>

#include "base/clock.h"
#include "bench_pipeline.h"

#define MIB ((uint64_t)1 << 20)

const pipeline_method pipeline_methods[PIPELINE_METHODS] = {
    {{.name = "full load (FlexGen)", .index = DECODE_MEAN, .layout = DECODE_RUNS, .run = 128},
     PREFETCH,
     KVT_STRIPE_PROPORTIONAL,
     true},
    {{.name = "quest, no window", .index = DECODE_QUEST, .layout = DECODE_RUNS, .run = 16},
     ONE_BY_ONE,
     KVT_STRIPE_ROUND_ROBIN,
     false},
    {{.name = "mean, LRU x1 (ShadowKV)",
      .index = DECODE_MEAN,
      .layout = DECODE_RUNS,
      .run = 8,
      .rule = WINDOWS_LRU,
      .window = 1.0},
     ONE_BY_ONE,
     KVT_STRIPE_ROUND_ROBIN,
     false},
    {{.name = "clusters, LRU x2 (RetroInfer)",
      .index = DECODE_CENTROID,
      .layout = DECODE_CLUSTERS,
      .estimate = true,
      .rule = WINDOWS_LRU,
      .window = 2.0},
     ONE_BY_ONE,
     KVT_STRIPE_ROUND_ROBIN,
     false},
};
/* Fills in what follows from a run of all sequences. */
void pipeline_finish_row(const pipeline_site *site, pipeline_row *row, uint32_t steps,
                         double wall_seconds)
{
    row->there = true;
    row->step_seconds = wall_seconds / steps;
    row->tokens_per_s = site->sequences / row->step_seconds;
    row->select /= steps;
    row->fetch /= steps;
    row->bring /= steps;
    row->compute /= steps;
    row->overlap =
        fmax(fmax(row->select, row->fetch), fmax(row->bring, row->compute)) / row->step_seconds;
}

/* ---- published methods ---- */

typedef struct method_run {
    const pipeline_site *site;
    const pipeline_method *method;
    bench_slots slots[PIPELINE_SEQUENCES_MAX];
    const decode_reads *reads;
    double compute_seconds;
    double fetch_seconds; /* that were waited for */
    uint64_t bytes, reads_done;
} method_run;

static void compute_for(double seconds)
{
    if (seconds > 0) base_sleep((uint64_t)(seconds * 1e9));
}

static kvt_status start_read(method_run *run, uint32_t sequence, uint32_t layer, uint32_t step)
{
    uint64_t bytes;
    const kvt_status status = bench_slots_start(
        &run->slots[sequence], run->reads,
        run->method->whole ? 0 : pipeline_first_step(sequence, layer) + step, &bytes);
    run->bytes += bytes;
    run->reads_done++;
    return status;
}

static kvt_status end_read(method_run *run, uint32_t sequence)
{
    uint64_t io_ns;
    return bench_slots_wait(&run->slots[sequence], &io_ns);
}

static kvt_status layer_one_by_one(method_run *run, uint32_t layer, uint32_t step)
{
    const uint32_t sequences = run->site->sequences;
    const uint64_t begin_ns = base_clock_ns();
    kvt_status status = KVT_OK;
    for (uint32_t s = 0; s < sequences && status == KVT_OK; s++)
        status = start_read(run, s, layer, step);
    for (uint32_t s = 0; s < sequences; s++) {
        const kvt_status ended = end_read(run, s);
        if (status == KVT_OK) status = ended;
    }
    run->fetch_seconds += (double)(base_clock_ns() - begin_ns) * 1e-9;
    compute_for(run->compute_seconds * sequences);
    return status;
}

/* The next sequence is read while one computes; the first is under way when a layer begins. */
static kvt_status layer_prefetched(method_run *run, uint32_t layer, uint32_t step)
{
    kvt_status status = KVT_OK;
    for (uint32_t s = 0; s < run->site->sequences && status == KVT_OK; s++) {
        const uint32_t next = (s + 1) % run->site->sequences;
        const uint64_t begin_ns = base_clock_ns();
        status = end_read(run, s);
        run->fetch_seconds += (double)(base_clock_ns() - begin_ns) * 1e-9;
        if (status == KVT_OK) status = start_read(run, next, layer, step);
        compute_for(run->compute_seconds);
    }
    return status;
}

static kvt_status play_method(method_run *run, kvt_store *store, pipeline_row *row)
{
    const pipeline_site *site = run->site;
    const uint32_t steps = run->method->whole ? (site->options->quick ? 1 : 2) : site->steps;
    bench_reads_drives drives[2];
    kvt_status status = KVT_OK;
    run->fetch_seconds = 0;
    run->bytes = run->reads_done = 0;
    if (run->method->schedule == PREFETCH) status = start_read(run, 0, 0, 0);
    bench_reads_count(store, &drives[0]);
    const uint64_t begin_ns = base_clock_ns();
    for (uint32_t step = 0; step < steps && status == KVT_OK; step++)
        for (uint32_t layer = 0; layer < PIPELINE_LAYERS && status == KVT_OK; layer++)
            status = run->method->schedule == PREFETCH ? layer_prefetched(run, layer, step)
                                                       : layer_one_by_one(run, layer, step);
    const double wall = (double)(base_clock_ns() - begin_ns) * 1e-9;
    /* Before the read for the token that nobody runs: its bytes are not of this time. */
    bench_reads_count(store, &drives[1]);
    if (run->method->schedule == PREFETCH) (void)!end_read(run, 0);
    row->fetch = bench_reads_busiest(&drives[0], &drives[1]);
    row->compute = run->compute_seconds * site->sequences * PIPELINE_LAYERS * steps;
    row->bytes = (double)run->bytes / (double)run->reads_done;
    pipeline_finish_row(site, row, steps, wall);
    return status;
}

kvt_status pipeline_method_plan(pipeline_site *site, uint32_t number)
{
    const pipeline_method *method = &pipeline_methods[number];
    method_plan *plan = &site->plans[number];
    double budget = 1;
    kvt_status status = decode_trial_open(&site->layer, &method->method, &plan->trial);
    if (status == KVT_OK && !method->whole)
        status = decode_trial_find(&site->layer, &plan->trial, site->target_error, &budget);
    return status != KVT_OK
               ? status
               : decode_trial_run(&site->layer, &plan->trial, budget, &plan->reads, &plan->figures);
}

/* With 0 first, which tells how long a layer's fetch takes; with the other when all have. */
kvt_status pipeline_method_run(pipeline_site *site, uint32_t number, int which, char *message,
                               size_t size)
{
    const method_plan *plan = &site->plans[number];
    method_run run = {.site = site,
                      .method = &pipeline_methods[number],
                      .reads = &plan->reads,
                      .compute_seconds = site->compute_seconds[which]};
    pipeline_row *row = &site->rows[number][which];
    kvt_store *store = NULL;
    kvt_status status =
        bench_reads_store(site->options, run.method->striping, 16 * MIB, &store, message, size);
    for (uint32_t s = 0; s < site->sequences && status == KVT_OK; s++)
        status = bench_slots_open(store, &site->layer, &plan->trial, &run.slots[s]);
    if (status == KVT_OK) {
        row->error = plan->figures.error;
        status = play_method(&run, store, row);
    }
    if (which == 1)
        site->method_fetch[number] =
            run.fetch_seconds / (double)(run.reads_done > 0 ? run.reads_done : 1);
    for (uint32_t s = 0; s < site->sequences; s++)
        bench_slots_close(&run.slots[s]);
    kvt_close(store);
    return status;
}
