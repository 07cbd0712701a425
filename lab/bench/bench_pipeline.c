/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_pipeline.c - tokens per second of several sequences that decode over one set of drives:
 * select of one, fetch of another and compute of a third at the same time, beside published
 * methods with the schedules that they were published with.
 *
 * Each sequence has LAYERS layers of the generator of lab/decode, and queries of its own. What a
 * GPU would compute is a wait of so long for each layer and sequence, one after the other, so that
 * nothing of it takes a processor. Three stages hand micro-batches of sequences on:
 *
 *     select    ends the step before, scores, plans, starts the reads (a thread)
 *     bring     waits for the reads, decodes, estimates (a thread)
 *     compute   waits out the layer (a thread), then select of the next layer
 *
 * The drives work meanwhile: "fetch". Windows are tried, each with the budget that keeps the error:
 * the one stays whose steps take the least of what takes longer, processor or drives. Then the
 * micro-batch is the fastest of those that divide the sequences.
 *
 * Methods plan in memory beforehand, at the least budget whose error is ours, and carry their reads
 * out on the drives; their scoring takes no time here. `compute` is the best method's own fetch
 * time, unless it is given; then everything again with 0.
 *
 *     stage_seconds   of all sequences and one token; fetch: bytes over bandwidth of the drive that
 *                     has most to do, other stages as the thread's processor time, compute as set
 *     overlap         the largest stage over the time that a token of all sequences takes
 *
 * Thread rule: one case at a time.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <kvterrace/kvterrace.h>
#include <kvterrace/sparse.h>

#include "bench_parts.h"
#include "bench_reads.h"
#include "lab/private.h"

#define MIB ((uint64_t)1 << 20)

enum {
    JUDGED = 8,
    WINDOWS_TRIED = 3,
    OWN_DRIVE_MIB = 512,
    FLOWS = 4, /* runs of all tokens; each has tokens of its own, which no window knows */
    TRIES = 4  /* micro-batches that divide the most sequences, but for all of them */
};

/* Of a layer's bytes: 1/CODED_SHARE a step sets the error that all have; windows that are tried. */
#define CODED_SHARE 64
static const uint32_t window_shares[WINDOWS_TRIED] = {32, 16, 8};

enum {
    PIPELINE_LAYERS = 2,
    PIPELINE_SEQUENCES_MAX = 16,
    PIPELINE_OBSERVED = 32,
    PIPELINE_APART = 4, /* steps between two sequences' and layers' first ones */
    PIPELINE_METHODS = 4
};

/* How a method goes through the layers of its sequences. */
typedef enum pipeline_schedule {
    ONE_BY_ONE, /* fetch of all sequences, then compute of all */
    PREFETCH    /* fetch of the next sequence while one computes */
} pipeline_schedule;

typedef struct pipeline_method {
    decode_method method;
    pipeline_schedule schedule;
    tiers_striping striping;
    bool whole; /* reads all of it */
} pipeline_method;

static const pipeline_method pipeline_methods[PIPELINE_METHODS] = {
    {{.name = "full load (FlexGen)", .index = DECODE_MEAN, .layout = DECODE_RUNS, .run = 128},
     PREFETCH,
     TIERS_STRIPE_PROPORTIONAL,
     true},
    {{.name = "quest, no window", .index = DECODE_QUEST, .layout = DECODE_RUNS, .run = 16},
     ONE_BY_ONE,
     TIERS_STRIPE_ROUND_ROBIN,
     false},
    {{.name = "mean, LRU x1 (ShadowKV)",
      .index = DECODE_MEAN,
      .layout = DECODE_RUNS,
      .run = 8,
      .rule = WINDOWS_LRU,
      .window = 1.0},
     ONE_BY_ONE,
     TIERS_STRIPE_ROUND_ROBIN,
     false},
    {{.name = "clusters, LRU x2 (RetroInfer)",
      .index = DECODE_CENTROID,
      .layout = DECODE_CLUSTERS,
      .estimate = true,
      .rule = WINDOWS_LRU,
      .window = 2.0},
     ONE_BY_ONE,
     TIERS_STRIPE_ROUND_ROBIN,
     false},
};

enum { OURS = PIPELINE_METHODS, OURS_APART, PIPELINE_CASES };

typedef struct pipeline_row {
    double tokens_per_s, error, bytes; /* read, of a layer and sequence */
    double step_seconds;               /* of a token of all sequences */
    double select, fetch, bring, compute, overlap;
} pipeline_row;

/* The reads of a method at the error that all have. */
typedef struct method_plan {
    double window_bytes; /* of a layer and sequence */
    decode_trial trial;
    decode_reads reads;
    decode_figures figures;
} method_plan;

typedef struct pipeline_site {
    const bench_options *options;
    bench_report *report;
    decode_layer layer;
    method_plan plans[PIPELINE_METHODS];
    uint32_t tokens, steps, sequences; /* steps: tokens of each sequence */
    decode_data data;                  /* of a layer */
    double target_error, error;
    uint64_t budget_bytes, window_bytes; /* of a layer, as calibrated */
    uint32_t micro_batch;
    uint32_t next; /* token that no run of ours has had */
    double compute_seconds[2];
    double method_fetch[PIPELINE_METHODS]; /* of a layer and sequence */
    pipeline_row rows[PIPELINE_CASES][2];
} pipeline_site;

/* The first step of a layer of a sequence. */
static inline uint32_t pipeline_first_step(uint32_t sequence, uint32_t layer)
{
    return (sequence * PIPELINE_LAYERS + layer) * PIPELINE_APART;
}

/* Fills in what follows from a run of all sequences. */
static void pipeline_finish_row(const pipeline_site *site, pipeline_row *row, uint32_t steps,
                                double wall_seconds)
{
    row->step_seconds = wall_seconds / steps;
    row->tokens_per_s = site->sequences / row->step_seconds;
    row->select /= steps;
    row->fetch /= steps;
    row->bring /= steps;
    row->compute /= steps;
    row->overlap =
        fmax(fmax(row->select, row->fetch), fmax(row->bring, row->compute)) / row->step_seconds;
}

/* ---- data ---- */

static const float *queries_of(const pipeline_site *site, uint32_t step)
{
    return site->data.queries + (PIPELINE_OBSERVED + step) * site->data.row;
}

/* Of a try of a micro-batch. */
static uint32_t try_steps(const pipeline_site *site)
{
    return site->steps / 4 + 1;
}

static kvt_status make_data(pipeline_site *site)
{
    const uint32_t steps =
        pipeline_first_step(site->sequences, 0) + FLOWS * site->steps + TRIES * try_steps(site);
    kvt_status status =
        decode_layer_open(site->tokens, PIPELINE_OBSERVED, steps, JUDGED, 1, &site->layer);
    if (status != KVT_OK) return status;
    return decode_data_make(&site->layer, &site->data);
}

/* ---- ours: sequences ---- */

typedef struct group {
    kvt_store *store;
    uint32_t count, layers;
    kvt_sparse *sequences[PIPELINE_SEQUENCES_MAX];
} group;

static void close_group(group *g)
{
    for (uint32_t i = 0; i < g->count; i++)
        kvt_sparse_close(g->sequences[i]);
    kvt_store_close(g->store);
    *g = (group){.store = NULL};
}

static kvt_status open_group(const pipeline_site *site, uint32_t count, uint32_t layers,
                             uint64_t window_bytes, uint64_t budget_bytes, group *g)
{
    const decode_source *source = &site->layer.source;
    const kvt_layout layout = {.layers = (uint16_t)layers,
                               .kv_heads = (uint16_t)source->kv_heads,
                               .head_dim = (uint16_t)source->head_dim,
                               .dtype = KVT_DTYPE_FP16,
                               .tokens = site->tokens};
    kvt_sparse_options options;
    kvt_sparse_options_init(&options, &layout);
    options.query_heads = source->kv_heads * source->group;
    options.variants = 1u << KVT_SPARSE_BITS_4 | 1u << KVT_SPARSE_BITS_8;
    options.budget_bytes = budget_bytes;
    options.window_bytes[KVT_TIER_DRAM] = layers * window_bytes;
    *g = (group){.count = 0, .layers = layers};
    kvt_status status =
        bench_reads_store(site->options, TIERS_STRIPE_PROPORTIONAL,
                          2 * count * layers * window_bytes + 16 * MIB, &g->store, site->report);
    for (uint32_t i = 0; i < count && status == KVT_OK; i++) {
        status = kvt_sparse_open_live(g->store, &options, &g->sequences[i], site->report->message,
                                      BENCH_MESSAGE_BYTES);
        if (status == KVT_OK) g->count++;
        for (uint32_t l = 0; l < layers && status == KVT_OK; l++)
            status = kvt_sparse_give(g->sequences[i], l, site->data.k, site->data.v);
        for (uint32_t l = 0; l < layers && status == KVT_OK; l++)
            status = kvt_sparse_observe(g->sequences[i], l, site->data.queries, PIPELINE_OBSERVED);
    }
    if (status != KVT_OK) close_group(g);
    return status;
}

/* ---- ours: calibration ---- */

/* All steps of one layer of one sequence, one after the other. */
static kvt_status run_apart(const pipeline_site *site, kvt_sparse *sequence, double *error_out,
                            double *look_up_out, double *fetch_out)
{
    const decode_source *source = &site->layer.source;
    const size_t width = (size_t)source->group * source->head_dim;
    float *output = malloc(site->data.row * sizeof *output);
    double difference = 0, norm = 0, cpu = 0;
    kvt_sparse_stats before = {.struct_size = sizeof before}, after = before;
    kvt_status status = output != NULL ? kvt_sparse_stats_get(sequence, &before) : KVT_E_MEMORY;
    for (uint32_t i = 0; i < site->layer.steps && status == KVT_OK; i++) {
        kvt_sparse_step *step;
        const kvt_sparse_pages *pages;
        double begin = base_cpu_seconds();
        status = kvt_sparse_select(sequence, 0, queries_of(site, i), &step);
        if (status != KVT_OK) break;
        status = kvt_sparse_wait(sequence, step, KVT_NO_DEADLINE, &pages);
        cpu += base_cpu_seconds() - begin;
        const bool judged = decode_layer_judged(&site->layer, i) >= 0;
        if (status == KVT_OK && judged)
            status = kvt_sparse_attend(pages, queries_of(site, i), output, NULL);
        for (uint32_t q = 0; status == KVT_OK && judged && q < site->data.row; q++) {
            const decode_unit *unit = &site->layer.units[q / width];
            const double wanted = (double)unit->exact[(PIPELINE_OBSERVED + i) * width + q % width];
            difference += ((double)output[q] - wanted) * ((double)output[q] - wanted);
            norm += wanted * wanted;
        }
        begin = base_cpu_seconds();
        kvt_sparse_done(sequence, step);
        cpu += base_cpu_seconds() - begin;
    }
    if (status == KVT_OK) status = kvt_sparse_stats_get(sequence, &after);
    free(output);
    *error_out = norm > 0 ? sqrt(difference / norm) : 0;
    *look_up_out = cpu / site->layer.steps;
    *fetch_out = (double)(after.io_ns - before.io_ns) * 1e-9 / site->layer.steps;
    return status;
}

/* The least budget, to a fifth, that has the error that all have; sets it. */
static kvt_status find_budget(pipeline_site *site, kvt_sparse *sequence, uint64_t *budget_out,
                              double *error_out, double *look_up_out, double *fetch_out)
{
    double low = (double)site->data.bytes / 4096, high = (double)site->data.bytes / 16;
    kvt_status status = KVT_OK;
    while (high / low > 1.2 && status == KVT_OK) {
        const double middle = sqrt(low * high);
        sequence->options.budget_bytes = (uint64_t)middle;
        status = run_apart(site, sequence, error_out, look_up_out, fetch_out);
        *(*error_out <= site->target_error ? &high : &low) = middle;
    }
    *budget_out = (uint64_t)high;
    sequence->options.budget_bytes = *budget_out;
    if (status == KVT_OK) status = run_apart(site, sequence, error_out, look_up_out, fetch_out);
    return status;
}

/* The error of a budget and a window of two of its rows; then the window whose steps take least. */
static kvt_status calibrate_windows(pipeline_site *site)
{
    kvt_status status = KVT_OK;
    double least = INFINITY;
    for (int i = -1; i < WINDOWS_TRIED && status == KVT_OK; i++) {
        const uint64_t window = site->data.bytes / window_shares[i < 0 ? 0 : i];
        double look_up, fetch;
        group g;
        status = open_group(site, 1, 1, window, site->data.bytes / CODED_SHARE, &g);
        if (status != KVT_OK) return status;
        if (i < 0) {
            status = run_apart(site, g.sequences[0], &site->target_error, &look_up, &fetch);
        } else {
            uint64_t budget;
            double error;
            status = find_budget(site, g.sequences[0], &budget, &error, &look_up, &fetch);
            if (status == KVT_OK && fmax(look_up, fetch) < least) {
                least = fmax(look_up, fetch);
                site->budget_bytes = budget;
                site->window_bytes = window;
                site->error = error;
            }
        }
        close_group(&g);
    }
    return status;
}

/* ---- ours: the pipeline ---- */

typedef struct micro_batch {
    uint32_t first, count, layer, token;
    uint64_t ready_ns; /* of the stage before */
    kvt_sparse_step *steps[PIPELINE_SEQUENCES_MAX];
    bool begun;
} micro_batch;

/* Micro-batches on their way to a stage, in order. */
typedef struct stage_queue {
    pthread_mutex_t lock;
    pthread_cond_t more;
    micro_batch *items[PIPELINE_SEQUENCES_MAX];
    uint32_t head, count;
    bool ended;
} stage_queue;

typedef struct flow {
    const pipeline_site *site;
    group *g;
    uint64_t compute_ns;   /* of a layer and sequence */
    uint32_t first, steps; /* tokens */
    micro_batch batches[PIPELINE_SEQUENCES_MAX];
    uint32_t batch_count, running;
    stage_queue select, bring, compute;
    double select_seconds, bring_seconds;
    uint64_t read_bytes;
    _Atomic int status;
} flow;

static void queue_open(stage_queue *q)
{
    (void)pthread_mutex_init(&q->lock, NULL);
    base_condition_init(&q->more);
}

static void queue_close(stage_queue *q)
{
    (void)pthread_mutex_destroy(&q->lock);
    (void)pthread_cond_destroy(&q->more);
}

/* NULL ends the stage. */
static void queue_put(stage_queue *q, micro_batch *batch)
{
    (void)pthread_mutex_lock(&q->lock);
    if (batch != NULL)
        q->items[(q->head + q->count++) % PIPELINE_SEQUENCES_MAX] = batch;
    else
        q->ended = true;
    (void)pthread_cond_signal(&q->more);
    (void)pthread_mutex_unlock(&q->lock);
}

static micro_batch *queue_take(stage_queue *q)
{
    micro_batch *batch = NULL;
    (void)pthread_mutex_lock(&q->lock);
    while (q->count == 0 && !q->ended)
        (void)base_condition_wait_until(&q->more, &q->lock, BASE_CLOCK_NEVER);
    if (q->count > 0) {
        batch = q->items[q->head];
        q->head = (q->head + 1) % PIPELINE_SEQUENCES_MAX;
        q->count--;
    }
    (void)pthread_mutex_unlock(&q->lock);
    return batch;
}

static void note(flow *f, kvt_status status)
{
    int fine = KVT_OK;
    if (status != KVT_OK) (void)atomic_compare_exchange_strong(&f->status, &fine, (int)status);
}

/* Ends the steps of the layer before. */
static void end_steps(flow *f, micro_batch *b)
{
    for (uint32_t i = 0; i < b->count; i++) {
        kvt_sparse_done(f->g->sequences[b->first + i], b->steps[i]);
        b->steps[i] = NULL;
    }
}

static void select_steps(flow *f, micro_batch *b)
{
    for (uint32_t i = 0; i < b->count; i++) {
        const uint32_t s = b->first + i;
        const float *queries =
            queries_of(f->site, pipeline_first_step(s, b->layer) + f->first + b->token);
        note(f, kvt_sparse_select(f->g->sequences[s], b->layer, queries, &b->steps[i]));
    }
}

/* The next layer of a micro-batch. False: it has all of its tokens. */
static bool advance(const flow *f, micro_batch *b)
{
    if (!b->begun)
        b->begun = true;
    else if (++b->layer == f->g->layers) {
        b->layer = 0;
        b->token++;
    }
    return b->token < f->steps;
}

static void select_stage(flow *f)
{
    for (micro_batch *b; f->running > 0 && (b = queue_take(&f->select)) != NULL;) {
        const double begin = base_cpu_seconds();
        end_steps(f, b);
        if (advance(f, b) && atomic_load(&f->status) == KVT_OK) {
            select_steps(f, b);
            queue_put(&f->bring, b);
        } else {
            f->running--;
        }
        f->select_seconds += base_cpu_seconds() - begin;
    }
    queue_put(&f->bring, NULL);
}

static void *bring_stage(void *argument)
{
    flow *f = argument;
    for (micro_batch *b; (b = queue_take(&f->bring)) != NULL;) {
        const double begin = base_cpu_seconds();
        for (uint32_t i = 0; i < b->count; i++) {
            const kvt_sparse_pages *pages;
            if (b->steps[i] == NULL) continue;
            const kvt_status status = kvt_sparse_wait(f->g->sequences[b->first + i], b->steps[i],
                                                      KVT_NO_DEADLINE, &pages);
            if (status == KVT_OK) f->read_bytes += pages->read_bytes;
            note(f, status);
        }
        f->bring_seconds += base_cpu_seconds() - begin;
        b->ready_ns = base_clock_ns();
        queue_put(&f->compute, b);
    }
    queue_put(&f->compute, NULL);
    return NULL;
}

/* A late wake-up delays one micro-batch and is not added up. */
static void *compute_stage(void *argument)
{
    flow *f = argument;
    uint64_t free_ns = 0;
    for (micro_batch *b; (b = queue_take(&f->compute)) != NULL;) {
        if (free_ns < b->ready_ns) free_ns = b->ready_ns;
        free_ns += f->compute_ns * b->count;
        if (f->compute_ns > 0) base_sleep_until(free_ns);
        queue_put(&f->select, b);
    }
    return NULL;
}

static kvt_status run_flow(flow *f, uint32_t micro_batch_size, pipeline_row *row)
{
    pthread_t bring, compute;
    bench_reads_drives drives[2];
    queue_open(&f->select);
    queue_open(&f->bring);
    queue_open(&f->compute);
    for (uint32_t s = 0; s < f->site->sequences; s += micro_batch_size) {
        micro_batch *b = &f->batches[f->batch_count++];
        *b = (micro_batch){.first = s, .count = micro_batch_size};
        queue_put(&f->select, b);
    }
    f->running = f->batch_count;
    bench_reads_count(f->g->store, &drives[0]);
    const uint64_t begin_ns = base_clock_ns();
    if (base_thread_start(&bring, bring_stage, f) != 0) return KVT_E_MEMORY;
    if (base_thread_start(&compute, compute_stage, f) != 0) {
        queue_put(&f->bring, NULL);
        (void)pthread_join(bring, NULL);
        return KVT_E_MEMORY;
    }
    select_stage(f);
    const double wall = (double)(base_clock_ns() - begin_ns) * 1e-9;
    (void)pthread_join(bring, NULL);
    (void)pthread_join(compute, NULL);
    bench_reads_count(f->g->store, &drives[1]);
    queue_close(&f->select);
    queue_close(&f->bring);
    queue_close(&f->compute);
    const uint32_t calls = f->site->sequences * PIPELINE_LAYERS * f->steps;
    row->select = f->select_seconds;
    row->bring = f->bring_seconds;
    row->fetch = bench_reads_busiest(&drives[0], &drives[1]);
    row->compute = (double)f->compute_ns * 1e-9 * calls;
    row->bytes = (double)f->read_bytes / calls;
    row->error = f->site->error;
    pipeline_finish_row(f->site, row, f->steps, wall);
    return (kvt_status)atomic_load(&f->status);
}

static kvt_status try_flow(pipeline_site *site, group *g, double compute_seconds, uint32_t size,
                           uint32_t steps, pipeline_row *row)
{
    flow f = {.site = site,
              .g = g,
              .compute_ns = (uint64_t)(compute_seconds * 1e9),
              .first = site->next,
              .steps = steps};
    site->next += steps;
    *row = (pipeline_row){.error = 0};
    return run_flow(&f, size, row);
}

/* The micro-batch that is fastest over a few tokens, then all tokens with it; and with one batch,
 * which is one stage after the other. */
static kvt_status run_ours(pipeline_site *site)
{
    group g;
    kvt_status status = open_group(site, site->sequences, PIPELINE_LAYERS, site->window_bytes,
                                   site->budget_bytes, &g);
    if (status != KVT_OK) return status;
    double best = 0;
    site->micro_batch = 1;
    for (uint32_t m = 1; m <= site->sequences / 2 && status == KVT_OK; m++) {
        pipeline_row row;
        if (site->sequences % m != 0) continue;
        status = try_flow(site, &g, site->compute_seconds[0], m, try_steps(site), &row);
        if (row.tokens_per_s <= best) continue;
        best = row.tokens_per_s;
        site->micro_batch = m;
    }
    for (int which = 0; which < 2 && status == KVT_OK; which++) {
        const double seconds = site->compute_seconds[which];
        status =
            try_flow(site, &g, seconds, site->micro_batch, site->steps, &site->rows[OURS][which]);
        if (status == KVT_OK)
            status = try_flow(site, &g, seconds, site->sequences, site->steps,
                              &site->rows[OURS_APART][which]);
    }
    close_group(&g);
    return status;
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
    base_sleep((uint64_t)(run->compute_seconds * sequences * 1e9));
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
        base_sleep((uint64_t)(run->compute_seconds * 1e9));
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

/* Finds what a method reads at the error that all have. */
static kvt_status pipeline_method_plan(pipeline_site *site, uint32_t number)
{
    const pipeline_method *method = &pipeline_methods[number];
    method_plan *plan = &site->plans[number];
    double budget = 1;
    kvt_status status = decode_trial_open(&site->layer, &method->method, &plan->trial);
    if (status == KVT_OK && !method->whole)
        status = decode_trial_find(&site->layer, &plan->trial, site->target_error, &budget);
    plan->window_bytes = method->method.window * budget * (double)site->data.bytes;
    return status != KVT_OK
               ? status
               : decode_trial_run(&site->layer, &plan->trial, budget, &plan->reads, &plan->figures);
}

/* With 0 first, which tells how long a layer's fetch takes; with the other when all have. */
static kvt_status pipeline_method_run(pipeline_site *site, uint32_t number, int which)
{
    const method_plan *plan = &site->plans[number];
    method_run run = {.site = site,
                      .method = &pipeline_methods[number],
                      .reads = &plan->reads,
                      .compute_seconds = site->compute_seconds[which]};
    pipeline_row *row = &site->rows[number][which];
    kvt_store *store = NULL;
    kvt_status status =
        bench_reads_store(site->options, run.method->striping, 16 * MIB, &store, site->report);
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
    kvt_store_close(store);
    return status;
}

/* ---- reports ---- */

/* Tokens per second of ours over the best method's. */
static double gain_of(const pipeline_site *site, int which)
{
    double best = 0;
    for (uint32_t i = 0; i < PIPELINE_METHODS; i++)
        best = fmax(best, site->rows[i][which].tokens_per_s);
    return best > 0 ? site->rows[OURS][which].tokens_per_s / best : 0;
}

static void report_fill(const pipeline_site *site)
{
    for (int i = 0; i < 2 * PIPELINE_CASES; i++) {
        const int number = i % PIPELINE_CASES, which = i / PIPELINE_CASES;
        const pipeline_row *row = &site->rows[number][which];
        bench_report_row(
            site->report, "results",
            json_pack(
                "{s:s, s:f, s:f, s:f, s:f, s:f, s:f, s:{s:f, s:f, s:f, s:f}, s:f}", "case",
                number < PIPELINE_METHODS ? pipeline_methods[number].method.name
                : number == OURS          ? "ours"
                                          : "ours, one stage after the other",
                "compute_seconds", site->compute_seconds[which], "tokens_per_s", row->tokens_per_s,
                "step_seconds", row->step_seconds, "bytes_per_layer", row->bytes, "window_bytes",
                number < PIPELINE_METHODS ? site->plans[number].window_bytes
                                          : (double)site->window_bytes,
                "error", row->error, "stage_seconds", "select", row->select, "fetch", row->fetch,
                "bring", row->bring, "compute", row->compute, "overlap", row->overlap));
    }
    bench_report_add(
        site->report,
        json_pack("{s:i, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:f}", "repetitions", 1, "tokens",
                  (json_int_t)site->tokens, "layers", (json_int_t)PIPELINE_LAYERS, "sequences",
                  (json_int_t)site->sequences, "micro_batch", (json_int_t)site->micro_batch,
                  "window_bytes", (json_int_t)site->window_bytes, "budget_bytes",
                  (json_int_t)site->budget_bytes, "target_error", site->target_error, "gain",
                  gain_of(site, 0), "gain_without_compute", gain_of(site, 1)));
}

/* ---- all of it ---- */

static kvt_status run_all(pipeline_site *site)
{
    (void)bench_tell(site->options, 0, PIPELINE_CASES + 1, "context");
    kvt_status status = make_data(site);
    if (status == KVT_OK) status = calibrate_windows(site);
    for (uint32_t i = 0; i < PIPELINE_METHODS && status == KVT_OK; i++) {
        (void)bench_tell(site->options, i + 1, PIPELINE_CASES + 1, pipeline_methods[i].method.name);
        status = pipeline_method_plan(site, i);
        if (status == KVT_OK) status = pipeline_method_run(site, i, 1);
    }
    if (status != KVT_OK) return status;
    double fastest = 0;
    uint32_t best = 1;
    for (uint32_t i = 0; i < PIPELINE_METHODS; i++) {
        if (site->rows[i][1].tokens_per_s <= fastest) continue;
        fastest = site->rows[i][1].tokens_per_s;
        best = i;
    }
    site->compute_seconds[0] =
        site->options->compute_us > 0 ? site->options->compute_us * 1e-6 : site->method_fetch[best];
    for (uint32_t i = 0; i < PIPELINE_METHODS && status == KVT_OK; i++)
        status = pipeline_method_run(site, i, 0);
    (void)bench_tell(site->options, PIPELINE_CASES, PIPELINE_CASES + 1, "ours");
    return status == KVT_OK ? run_ours(site) : status;
}

static kvt_status pipeline_run(const bench_options *given, bench_report *report)
{
    static kvt_device_config own[BENCH_OWN_DRIVES];
    bench_options options = *given;
    kvt_status status =
        bench_take_drives(&options, (options.quick ? 96 : OWN_DRIVE_MIB) * MIB, 80000, own, report);
    if (status != KVT_OK) return status;
    pipeline_site site = {.options = &options,
                          .report = report,
                          .tokens = options.quick ? 4096 : 32768,
                          .steps = options.quick ? 4 : 24,
                          .sequences = options.sequences > 0 ? options.sequences : 4};
    status = run_all(&site);
    if (status == KVT_OK) report_fill(&site);
    for (uint32_t i = 0; i < PIPELINE_METHODS; i++) {
        decode_reads_close(&site.plans[i].reads);
        decode_trial_close(&site.plans[i].trial);
    }
    decode_data_free(&site.data);
    decode_layer_close(&site.layer);
    return status;
}

/* Stages are of all sequences and one token. Methods score in no time. */
const bench_case bench_pipeline_case = {
    .name = "pipeline",
    .schema = "kvterrace-bench-pipeline-1",
    .tables = (const document_table[]){{"", "sequences layers tokens window_bytes budget_bytes "
                                            "micro_batch gain gain_without_compute"},
                                       {"results",
                                        "case compute_seconds tokens_per_s error bytes_per_layer "
                                        "window_bytes "
                                        "step_seconds stage_seconds.select stage_seconds.fetch "
                                        "stage_seconds.bring stage_seconds.compute overlap"},
                                       {0}},
    .run = pipeline_run,
};
