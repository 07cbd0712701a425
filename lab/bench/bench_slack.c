/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_slack.c - layered loads of a pass beside writes, in each order in which drives begin
 * requests (docs/TIERS.md, Passes and slack).
 *
 * A pass loads `hit_rate` of a context layer by layer and computes the rest, which takes CROSSOVER
 * times as long as loading it: computing is a sleep. Writes of WRITE_BYTES, every other one of the
 * class background, are asked for in even steps of the pass's first four fifths, and add up to a
 * share of the time that the loads leave of the drives. Blocked time is what the pass waits for
 * layers. Emulated drives with their controls beside them run without a loss by mixing and with one
 * of 0.6, and beside the same pass in the model of drives of replays (replay/drive_model.h).
 *
 * The ablation runs such a pass on stores with more and more of the parts; behind it stand
 * progressive loads (bench_coarse.c).
 *
 * Thread rule: one case at a time; the writes have a thread of their own.
 */
#include "bench.h"
#include "bench_parts.h"
#include "bench_store.h"

#include "estimator/exchange/exchange.h"
#include "lab/private.h"
#include "replay/drive_model.h"

#include <kvterrace/load.h>
#include <kvterrace/ring.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MIB ((uint64_t)1 << 20)

enum {
    SLACK_LAYERS = 8,
    SLACK_ENTRIES = 32, /* of the whole context */
    SLACK_ENTRIES_QUICK = 8,
    SLACK_WRITES_MAX = 4096,
    SLACK_PLACES = 64, /* that writes go to in turn */
    SLACK_ITERATIONS = 5,
    SLACK_HITS = 5,
    SLACK_ASKS = 3,
    SLACK_ORDERS_MOST = 5,
    SLACK_RING_AHEAD = 4 /* layers */
};

#define ENTRY_BYTES   (2 * MIB)
#define MATRIX_BYTES  (ENTRY_BYTES / SLACK_LAYERS / 2)
#define HEAD_BYTES    (UINT64_C(12) << 10) /* of a record, read before its layers */
#define WRITE_BYTES   (2 * MIB)
#define CROSSOVER     6.0 /* seconds of computing a layer over those of loading it */
#define LEAST_LEFT    0.1 /* of a pass that leaves nothing: writes are asked for all the same */
#define WRONG_HIT     0.5
#define WRONG_ASK     0.6
#define DRIVE_BYTES   (256 * MIB)
#define DRIVE_LATENCY 80000

static const double slack_hits[SLACK_HITS] = {0.25, 0.5, 0.75, 0.9, 0.99};
static const double slack_asks[SLACK_ASKS] = {0.3, 0.6, 0.9};
static const char *const slack_names[SLACK_ORDERS_MOST] = {"reads_first", "fifo", "round_robin",
                                                           "table", "slack"};

/* 2 x 64 tokens x 8 heads x 128 x bf16: 256 KiB a layer, 2 MiB an entry. */
static const kvt_layout slack_layout = {
    .layers = SLACK_LAYERS, .kv_heads = 8, .head_dim = 128, .dtype = KVT_DTYPE_BF16, .tokens = 64};

typedef struct slack_bench {
    const bench_options *options;
    bench_report *report;
    uint32_t iterations, entries;
    double mix;         /* that the drives lose; NAN: as they are */
    double bytes_per_s; /* of all drives */
    kvt_store *store;
    kvt_queue *queue;
    kvt_ring *ring; /* or NULL */
    uint64_t ring_next;
    uint32_t region;
    kvt_key keys[SLACK_ENTRIES];
    kvt_view views[SLACK_ENTRIES];
    char *source, *targets;
    tiers_location *places[SLACK_PLACES];
} slack_bench;

/* One pass with its writes. */
typedef struct slack_run {
    slack_bench *bench;
    double hit, ask_seconds; /* of the drives */
    double table;            /* what the announced seconds are multiplied by */
    bool serial;             /* gets one by one, and the computing behind them */
    uint64_t began_ns, step_ns;
    uint32_t count; /* of writes */
    atomic_uint ended;
    _Atomic uint64_t finished_ns[SLACK_WRITES_MAX];
    tiers_transfer writes[SLACK_WRITES_MAX];
    /* Results. */
    double blocked, seconds, asked_bytes, written;
} slack_run;

/* ---- writes ---- */

typedef struct slack_write {
    slack_run *run;
    uint32_t index;
} slack_write;

static slack_write slack_writes[SLACK_WRITES_MAX];

static void slack_written(void *context)
{
    const slack_write *write = context;
    atomic_store(&write->run->finished_ns[write->index], base_clock_ns());
    atomic_fetch_add(&write->run->ended, 1);
}

/* Starts every write at its instant, but not while the last one of its place is under way. */
static void *slack_write_all(void *argument)
{
    slack_run *run = argument;
    slack_bench *bench = run->bench;
    for (uint32_t i = 0; i < run->count; i++) {
        base_sleep_until(run->began_ns + i * run->step_ns);
        while (i >= SLACK_PLACES && atomic_load(&run->finished_ns[i - SLACK_PLACES]) == 0)
            base_sleep(200000);
        slack_writes[i] = (slack_write){run, i};
        const tiers_transfer write = {.kind = KVT_IO_WRITE,
                                      .waited = i % 2 == 0,
                                      .location = bench->places[i % SLACK_PLACES],
                                      .buffer = bench->source,
                                      .bytes = WRITE_BYTES,
                                      .released = slack_written,
                                      .released_context = &slack_writes[i]};
        memcpy(&run->writes[i], &write, sizeof write);
        tiers_transfer_start(bench->store->pools[KVT_TIER_SSD], &run->writes[i]);
    }
    return NULL;
}

/* ---- a pass ---- */

static uint32_t slack_entries_of(const slack_bench *bench, double hit)
{
    const uint32_t count = (uint32_t)lround(hit * bench->entries);
    return count == 0 ? 1 : count;
}

/* Seconds of computing a layer, and of reading it from all drives. */
static double slack_compute(const slack_bench *bench, double hit)
{
    const double whole = (double)ENTRY_BYTES / SLACK_LAYERS * bench->entries;
    return CROSSOVER * (1 - hit) * whole / bench->bytes_per_s;
}

static double slack_reading(const slack_bench *bench, double hit)
{
    const double bytes = (double)ENTRY_BYTES / SLACK_LAYERS;
    return bytes * slack_entries_of(bench, hit) / bench->bytes_per_s;
}

/* Seconds of the drives that a pass without writes leaves, and its length. */
static double slack_left(const slack_bench *bench, double hit, double *seconds_out)
{
    const double compute = slack_compute(bench, hit), reading = slack_reading(bench, hit);
    const double length = fmax(compute, reading) * (SLACK_LAYERS - 1) + reading + compute;
    *seconds_out = length;
    return length - reading * SLACK_LAYERS;
}

/* One call for each entry, one after the other; then all layers are computed. */
static kvt_status slack_serial_pass(slack_run *run)
{
    slack_bench *bench = run->bench;
    const uint32_t count = slack_entries_of(bench, run->hit);
    kvt_status status = KVT_OK;
    for (uint32_t i = 0; i < count && status == KVT_OK; i++)
        status =
            kvt_store_get(bench->store, &bench->keys[i], &bench->views[i], KVT_NO_DEADLINE, NULL);
    const uint64_t now_ns = base_clock_ns();
    run->blocked = (double)(now_ns - run->began_ns) * 1e-9;
    base_sleep_until(now_ns + (uint64_t)(SLACK_LAYERS * slack_compute(bench, run->hit) * 1e9));
    run->seconds = (double)(base_clock_ns() - run->began_ns) * 1e-9;
    const uint32_t ended = atomic_load(&run->ended);
    run->written = run->count > 0 ? (double)ended / run->count : 1;
    return status;
}

/* Loads and computes; the writes are under way. */
static kvt_status slack_pass(slack_run *run)
{
    slack_bench *bench = run->bench;
    const uint32_t count = slack_entries_of(bench, run->hit);
    const double compute = slack_compute(bench, run->hit);
    const kvt_view *pointers[SLACK_ENTRIES];
    const kvt_pass pass = {.struct_size = sizeof pass,
                           .new_tokens = 64 * (bench->entries - count) + 1,
                           .prefix_tokens = 64 * count,
                           .layers = SLACK_LAYERS,
                           .layer_seconds = compute * run->table};
    kvt_load_options options = {.struct_size = sizeof options, .deadline_ns = KVT_NO_DEADLINE};
    kvt_load *load = NULL;
    for (uint32_t i = 0; i < count; i++)
        pointers[i] = &bench->views[i];
    kvt_status status = kvt_pass_begin(bench->store, &pass, &options.pass);
    if (status == KVT_OK)
        status = kvt_load_begin(bench->queue, bench->keys, pointers, count, &options, &load);
    uint64_t computed_ns = run->began_ns;
    for (uint32_t layer = 0; layer < SLACK_LAYERS && status == KVT_OK; layer++) {
        status = kvt_load_wait(load, layer + 1, KVT_NO_DEADLINE);
        const uint64_t now_ns = base_clock_ns();
        run->blocked += (double)(now_ns - computed_ns) * 1e-9;
        (void)kvt_pass_layer(bench->store, options.pass, layer);
        computed_ns = now_ns + (uint64_t)(compute * 1e9);
        base_sleep_until(computed_ns);
        computed_ns = base_clock_ns(); /* a late wake-up is no blocked time */
        kvt_load_release(load, layer + 1);
    }
    run->seconds = (double)(computed_ns - run->began_ns) * 1e-9;
    const uint32_t ended = atomic_load(&run->ended);
    run->written = run->count > 0 ? (double)ended / run->count : 1;
    kvt_status statuses[SLACK_ENTRIES];
    const kvt_status end = load != NULL ? kvt_load_end(load, statuses, NULL) : KVT_OK;
    (void)kvt_pass_end(bench->store, options.pass);
    for (uint32_t i = 0; i < count && status == KVT_OK && load != NULL; i++)
        status = statuses[i];
    return status != KVT_OK ? status : end;
}

/* Posts a layer: K and V of all entries, by a table that all layers share. */
static kvt_status slack_post_layer(slack_bench *bench, uint32_t table, uint32_t layer,
                                   uint32_t contexts)
{
    kvt_ring_iocb iocb;
    kvt_status status = kvt_ring_get_iocb(bench->ring, 1, &iocb);
    if (status != KVT_OK) return status;
    iocb.block.table = table;
    iocb.block.count = contexts;
    iocb.block.layer = layer;
    iocb.block.target = kvt_layout_matrix_offset(&slack_layout, layer, KVT_SIDE_K);
    return kvt_ring_submit(bench->ring, &iocb, 1);
}

/* Reads by a ring, some layers ahead. No pass is announced: rings know of none. */
static kvt_status slack_ring_pass(slack_run *run)
{
    slack_bench *bench = run->bench;
    const uint32_t count = slack_entries_of(bench, run->hit);
    const double compute = slack_compute(bench, run->hit);
    uint64_t objects[SLACK_ENTRIES], next = bench->ring_next;
    uint32_t table = 0;
    kvt_ring_context *contexts = kvt_ring_table(bench->ring, 0, &table);
    kvt_status status = kvt_ring_object_open(bench->ring, bench->keys, count, objects);
    if (status != KVT_OK || contexts == NULL) return status != KVT_OK ? status : KVT_E_STATE;
    const uint64_t value = kvt_layout_matrix_offset(&slack_layout, 0, KVT_SIDE_V);
    for (uint32_t i = 0; i < 2 * count; i++)
        contexts[i] = (kvt_ring_context){.object = objects[i / 2],
                                         .side = i % 2,
                                         .bytes = kvt_layout_matrix_bytes(&slack_layout),
                                         .region = bench->region,
                                         .target = i / 2 * ENTRY_BYTES + i % 2 * value};
    for (uint32_t layer = 0; layer < SLACK_RING_AHEAD && status == KVT_OK; layer++)
        status = slack_post_layer(bench, table, layer, 2 * count);
    uint64_t computed_ns = run->began_ns;
    for (uint32_t layer = 0; layer < SLACK_LAYERS && status == KVT_OK; layer++) {
        kvt_ring_result result;
        status = kvt_ring_wait(bench->ring, next++, 1, KVT_NO_DEADLINE, &result, NULL);
        if (status == KVT_OK) status = result.status;
        const uint64_t now_ns = base_clock_ns();
        run->blocked += (double)(now_ns - computed_ns) * 1e-9;
        if (status == KVT_OK && layer + SLACK_RING_AHEAD < SLACK_LAYERS)
            status = slack_post_layer(bench, table, layer + SLACK_RING_AHEAD, 2 * count);
        computed_ns = now_ns + (uint64_t)(compute * 1e9);
        base_sleep_until(computed_ns);
        computed_ns = base_clock_ns();
    }
    bench->ring_next = next;
    kvt_ring_object_close(bench->ring, objects, count);
    run->seconds = (double)(computed_ns - run->began_ns) * 1e-9;
    const uint32_t ended = atomic_load(&run->ended);
    run->written = run->count > 0 ? (double)ended / run->count : 1;
    return status;
}

/* A pass with writes, until the last of them has ended; waits_out has room for all. */
static kvt_status slack_once(slack_run *run, double *waits_out)
{
    slack_bench *bench = run->bench;
    double length;
    (void)slack_left(bench, run->hit, &length);
    run->asked_bytes = run->ask_seconds * bench->bytes_per_s;
    run->count = (uint32_t)lround(run->asked_bytes / WRITE_BYTES);
    if (run->ask_seconds > 0 && run->count == 0) run->count = 1;
    if (run->count > SLACK_WRITES_MAX) run->count = SLACK_WRITES_MAX;
    run->step_ns = run->count > 0 ? (uint64_t)(0.8 * length * 1e9) / run->count : 0;
    run->blocked = 0;
    atomic_store(&run->ended, 0);
    for (uint32_t i = 0; i < run->count; i++)
        atomic_store(&run->finished_ns[i], 0);
    pthread_t writer;
    run->began_ns = base_clock_ns();
    kvt_status status = base_thread_start(&writer, slack_write_all, run);
    if (status != KVT_OK) return status;
    if (run->serial)
        status = slack_serial_pass(run);
    else
        status = bench->ring != NULL ? slack_ring_pass(run) : slack_pass(run);
    pthread_join(writer, NULL);
    while (atomic_load(&run->ended) < run->count)
        base_sleep(1000000);
    for (uint32_t i = 0; i < run->count; i++) {
        const uint64_t asked_ns = run->began_ns + i * run->step_ns;
        if (status == KVT_OK) status = run->writes[i].status;
        waits_out[i] = (double)(atomic_load(&run->finished_ns[i]) - asked_ns) * 1e-9;
    }
    return status;
}

/* ---- the same in virtual time ---- */

static void slack_model_loaded(void *context, uint32_t tag, const drive_loaded *result)
{
    (void)tag;
    *(drive_loaded *)context = *result;
}

static void slack_model_ended(void *context, uint32_t tag, uint64_t now_ns)
{
    (void)context;
    (void)tag;
    (void)now_ns;
}

/* Blocked seconds of the run's pass in the model; NAN: the drives' mixing is not known, or memory
 * is short. */
static double slack_in_model(const slack_run *run, kvt_io_order order)
{
    const slack_bench *bench = run->bench;
    drive_loaded loaded = {.blocked_seconds = NAN};
    const drive_calls calls = {slack_model_loaded, slack_model_ended, &loaded};
    const drive_settings settings = {.order = (tiers_order)order,
                                     .read_bytes_per_s = bench->bytes_per_s,
                                     .write_bytes_per_s = bench->bytes_per_s,
                                     .request_seconds = DRIVE_LATENCY * 1e-9,
                                     .mix = bench->mix,
                                     .grain_seconds = 0.002,
                                     .patience_seconds = 10};
    const double compute = slack_compute(bench, run->hit);
    const drive_pass pass = {.layers = SLACK_LAYERS,
                             .head_bytes = slack_entries_of(bench, run->hit) * HEAD_BYTES,
                             .layer_bytes =
                                 slack_entries_of(bench, run->hit) * (ENTRY_BYTES / SLACK_LAYERS),
                             .layer_seconds = compute,
                             .announced_seconds = compute * run->table};
    drive_model *model = NULL;
    if (isnan(bench->mix) || drive_open(&settings, &calls, &model) != KVT_OK) return NAN;
    kvt_status status = drive_load(model, 0, 0, &pass);
    for (uint32_t i = 0; i < run->count && status == KVT_OK; i++)
        status =
            drive_add(model, i * run->step_ns,
                      i % 2 == 0 ? TIERS_RANK_WRITE : TIERS_RANK_BACKGROUND, WRITE_BYTES, i, true);
    while (status == KVT_OK && drive_next_ns(model) != UINT64_MAX)
        status = drive_advance(model, drive_next_ns(model));
    drive_close(model);
    return status == KVT_OK ? loaded.blocked_seconds : NAN;
}

/* ---- the site ---- */

/* Sets what emulated drives lose by mixing, by the control beside each. False: one has none. */
static bool slack_set_mix(const bench_options *options, double mix)
{
    for (uint32_t i = 0; i < options->device_count; i++) {
        char path[1024];
        const char *drive = options->devices[i].path;
        const char *name = drive != NULL ? strrchr(drive, '/') : NULL;
        if (name == NULL || !options->devices[i].emulated) return false;
        snprintf(path, sizeof path, "%.*s/control", (int)(name - drive), drive);
        FILE *control = fopen(path, "r+");
        if (control == NULL) return false;
        fprintf(control, "mix=%.3f", mix);
        if (fclose(control) != 0) return false;
    }
    return true;
}

static void slack_close(slack_bench *bench)
{
    for (uint32_t i = 0; i < SLACK_PLACES && bench->store != NULL; i++) {
        if (bench->places[i] == NULL) continue;
        tiers_pool_release(bench->store->pools[KVT_TIER_SSD], bench->places[i]);
        bench->places[i] = NULL;
    }
    kvt_ring_close(bench->ring);
    if (bench->queue != NULL) kvt_queue_close(bench->queue);
    if (bench->store != NULL) kvt_store_close(bench->store);
    bench->ring = NULL;
    bench->queue = NULL;
    bench->store = NULL;
}

/* How a store lies on the drives and uses them. */
typedef struct slack_site {
    bool ring; /* layers are read by one */
    kvt_io_order order;
    kvt_placement placement;
    const char *slots;   /* of the tier, or NULL */
    const char *profile; /* with a ladder of raw and of this variant, or NULL */
    const char *variant;
} slack_site;

/* Opens a store on the drives, with the context on them. */
static kvt_status slack_open(slack_bench *bench, const slack_site *site)
{
    kvt_device_config devices[TIERS_MEMBERS_MAX];
    kvt_store_options options;
    kvt_store_options_init(&options);
    for (uint32_t i = 0; i < bench->options->device_count; i++) {
        devices[i] = bench->options->devices[i];
        if (!isnan(bench->mix)) devices[i].mix_kept = 1 - bench->mix;
    }
    options.format = true;
    options.policy = "lru";
    options.limits.tick_seconds = 0;
    options.limits.put_staging_bytes = 0;
    options.io.order = site->order;
    options.tiers[KVT_TIER_SSD] = (kvt_tier_options){.devices = devices,
                                                     .device_count = bench->options->device_count,
                                                     .weights_fixed = true,
                                                     .placement = site->placement,
                                                     .slots = site->slots};
    options.loss.ladder_layout = slack_layout;
    options.learning.profile_path = site->profile;
    options.loss.ladder = site->profile != NULL;
    options.learning.profile_foreign = true;
    options.learning.learn = false;
    kvt_status status = KVT_OK;
    if (site->variant != NULL) status = kvt_variant_parse(site->variant, &options.variant);
    if (status != KVT_OK) return status;
    status = kvt_store_open(&options, &bench->store, bench->report->message, BENCH_MESSAGE_BYTES);
    if (status != KVT_OK) return status;
    const kvt_queue_options queue = {.struct_size = sizeof queue};
    status = kvt_queue_open(bench->store, &queue, &bench->queue);
    const kvt_ring_options ring = {.struct_size = sizeof ring, .tables = 1};
    bench->ring_next = 0;
    if (status == KVT_OK && site->ring)
        status = kvt_ring_open(bench->store, 2 * SLACK_RING_AHEAD, &ring, &bench->ring);
    if (status == KVT_OK && site->ring)
        status = kvt_ring_region_add(bench->ring, bench->targets, bench->entries * ENTRY_BYTES,
                                     &bench->region);
    const uint64_t bytes = ENTRY_BYTES;
    for (uint32_t i = 0; i < bench->entries && status == KVT_OK; i++) {
        const kvt_entry entry = {.struct_size = sizeof entry,
                                 .key = bench->keys[i],
                                 .layout = slack_layout,
                                 .request_tokens = slack_layout.tokens};
        status = kvt_store_put(bench->store, &entry, KVT_PACKED(bench->source, bytes));
    }
    tiers_pool *pool = bench->store->pools[KVT_TIER_SSD];
    tiers_slot_stats slots = {0};
    (void)!tiers_pool_slot_class(pool, 0, &slots);
    const uint64_t place = slots.bytes > WRITE_BYTES ? slots.bytes : WRITE_BYTES;
    for (uint32_t i = 0; i < SLACK_PLACES && status == KVT_OK; i++)
        status = tiers_pool_reserve_tensors(pool, place, MATRIX_BYTES, &bench->places[i]);
    tiers_pool_facts facts;
    tiers_pool_facts_get(pool, &facts);
    bench->bytes_per_s = facts.read_bytes_per_s;
    return status;
}

/* ---- rows ---- */

/* Medians over repetitions of one case; alone: of the same passes without writes, which are run in
 * turn with those with them. */
typedef struct slack_figures {
    bench_rate blocked, written, seconds, alone;
    double wait_p99, modelled;
} slack_figures;

static kvt_status slack_repeat(slack_bench *bench, kvt_io_order order, bool serial, double hit,
                               double ask_seconds, double table, slack_figures *out)
{
    static double blocked[BENCH_ITERATIONS_MAX], written[BENCH_ITERATIONS_MAX];
    static double seconds[BENCH_ITERATIONS_MAX], waits[SLACK_WRITES_MAX];
    static double p99[BENCH_ITERATIONS_MAX], alone[BENCH_ITERATIONS_MAX];
    slack_run *run = calloc(1, sizeof *run);
    kvt_status status = run == NULL ? KVT_E_MEMORY : KVT_OK;
    for (uint32_t i = 0; i < bench->iterations && status == KVT_OK; i++) {
        run->bench = bench;
        run->hit = hit;
        run->serial = serial;
        run->table = 1;
        run->ask_seconds = 0;
        status = slack_once(run, waits);
        alone[i] = run->blocked;
        run->table = table;
        run->ask_seconds = ask_seconds;
        if (status == KVT_OK && ask_seconds > 0) status = slack_once(run, waits);
        blocked[i] = run->blocked;
        written[i] = run->written;
        seconds[i] = run->seconds;
        out->modelled = slack_in_model(run, order);
        p99[i] = 0;
        if (run->count == 0) continue;
        qsort(waits, run->count, sizeof waits[0], base_order_doubles);
        p99[i] = waits[(run->count - 1) * 99 / 100];
    }
    free(run);
    if (status != KVT_OK) return status;
    out->blocked = bench_rate_of(blocked, bench->iterations);
    out->alone = bench_rate_of(alone, bench->iterations);
    out->written = bench_rate_of(written, bench->iterations);
    out->seconds = bench_rate_of(seconds, bench->iterations);
    out->wait_p99 = bench_rate_of(p99, bench->iterations).median;
    return KVT_OK;
}

/* What the drives decided, ever, over all of them. */
static json_t *slack_decisions(const slack_bench *bench)
{
    kvt_io_decisions sum = {0};
    kvt_device_stats stats = {.struct_size = sizeof stats};
    for (uint32_t i = 0; kvt_device_stats_get(bench->store, i, &stats) == KVT_OK; i++) {
        sum.idle += stats.decisions.idle;
        sum.fits += stats.decisions.fits;
        sum.share += stats.decisions.share;
        sum.waits_reads += stats.decisions.waits_reads;
        sum.waits_layers += stats.decisions.waits_layers;
        sum.waits_grain += stats.decisions.waits_grain;
        sum.waits_turn += stats.decisions.waits_turn;
    }
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "idle", (json_int_t)sum.idle, "fits",
                     (json_int_t)sum.fits, "share", (json_int_t)sum.share, "waits_reads",
                     (json_int_t)sum.waits_reads, "waits_layers", (json_int_t)sum.waits_layers,
                     "waits_grain", (json_int_t)sum.waits_grain, "waits_turn",
                     (json_int_t)sum.waits_turn);
}

/* Scaled to milliseconds. */
static bench_rate slack_ms(bench_rate rate)
{
    return (bench_rate){rate.median * 1e3, rate.min * 1e3, rate.max * 1e3};
}

static void slack_row(slack_bench *bench, const char *order, double hit, double ask, double bound,
                      double table, const slack_figures *figures)
{
    const bench_rate blocked = slack_ms(figures->blocked), ttft = slack_ms(figures->seconds);
    const bench_rate alone = slack_ms(figures->alone);
    json_t *row =
        json_pack("{s:s, s:o, s:f, s:f, s:f, s:o, s:f, s:o}", "order", order, "mix",
                  bench_number(bench->mix), "hit_rate", hit, "asked", ask, "table", table, "bound",
                  bench_number(bound), "write_wait_p99_s", figures->wait_p99, "blocked_ratio",
                  bench_number(alone.median > 0 ? blocked.median / alone.median : NAN));
    json_object_set_new(row, "model_ms", bench_number(figures->modelled * 1e3));
    json_object_set_new(row, "over_model",
                        bench_number(blocked.median / (figures->modelled * 1e3)));
    row = bench_with_rate(row, "blocked_ms", &blocked);
    row = bench_with_rate(row, "alone_ms", &alone);
    row = bench_with_rate(row, "write_share", &figures->written);
    bench_report_row(bench->report, "results", bench_with_rate(row, "ttft_ms", &ttft));
}

/* Where blocked time passes a tenth of computing, between two hit rates; null: nowhere. */
static double slack_crossover(const slack_bench *bench, const double blocked[SLACK_HITS])
{
    double before = 0;
    for (uint32_t i = 0; i < SLACK_HITS; i++) {
        const double compute = SLACK_LAYERS * slack_compute(bench, slack_hits[i]);
        const double over = blocked[i] / compute - 0.1;
        if (over > 0) {
            if (i == 0) return slack_hits[0];
            return slack_hits[i - 1] +
                   (slack_hits[i] - slack_hits[i - 1]) * before / (before + over);
        }
        before = -over;
    }
    return NAN;
}

/* Whether a case is asked for. */
static bool slack_wants(uint32_t percent, double share)
{
    return percent == 0 || percent == (uint32_t)lround(100 * share);
}

/* All cases of one order. */
static kvt_status slack_order(slack_bench *bench, kvt_io_order order)
{
    double length;
    const uint32_t hits = bench->options->quick ? 2 : SLACK_HITS;
    slack_figures figures;
    kvt_status status = slack_open(bench, &(slack_site){.order = order});
    for (uint32_t k = 0; k < SLACK_ASKS && status == KVT_OK; k++) {
        double blocked[SLACK_HITS];
        if (!slack_wants(bench->options->asked_percent, slack_asks[k])) continue;
        for (uint32_t i = 0; i < hits && status == KVT_OK; i++) {
            if (!slack_wants(bench->options->hit_percent, slack_hits[i])) continue;
            const double left = slack_left(bench, slack_hits[i], &length);
            const double asked = slack_asks[k] * fmax(left, LEAST_LEFT * length);
            status = slack_repeat(bench, order, false, slack_hits[i], asked, 1, &figures);
            blocked[i] = figures.blocked.median;
            if (status == KVT_OK)
                slack_row(bench, slack_names[order], slack_hits[i], slack_asks[k], left / asked, 1,
                          &figures);
        }
        if (status != KVT_OK || hits < SLACK_HITS || bench->options->hit_percent != 0) continue;
        bench_report_row(bench->report, "crossovers",
                         json_pack("{s:s, s:o, s:f, s:o}", "order", slack_names[order], "mix",
                                   bench_number(bench->mix), "asked", slack_asks[k],
                                   "crossover_hit_rate",
                                   bench_number(slack_crossover(bench, blocked))));
    }
    for (int k = 0; k < 2 && order == KVT_IO_SLACK && status == KVT_OK; k++) {
        const double left = slack_left(bench, WRONG_HIT, &length);
        const double table = k == 0 ? 0.5 : 2;
        status = slack_repeat(bench, order, false, WRONG_HIT, WRONG_ASK * left, table, &figures);
        if (status == KVT_OK)
            slack_row(bench, slack_names[order], WRONG_HIT, WRONG_ASK, 1 / WRONG_ASK, table,
                      &figures);
    }
    if (status == KVT_OK)
        bench_report_row(bench->report, "decisions",
                         json_pack("{s:s, s:o, s:o}", "order", slack_names[order], "mix",
                                   bench_number(bench->mix), "decisions", slack_decisions(bench)));
    slack_close(bench);
    return bench_blame(bench->report, status, slack_names[order], bench->report->message);
}

/* ---- what each part gives (Tutti 4.2.5) ---- */

#define ABLATION_VARIANT "planes:k4v4,g64"
#define ABLATION_HIT     0.75
#define ABLATION_ASK     0.6

/* A profile with a made-up ladder of raw and planes at 4 bits, without a loss, for entries of the
 * case's layout. */
static kvt_status ablation_profile(const char *path, char *message, size_t message_size)
{
    kvt_profile *profile = NULL;
    kvt_status status = kvt_profile_open(path, KVT_PROFILE_WRITE, &profile, message, message_size);
    if (status != KVT_OK) return status;
    json_t *tables =
        json_pack("{s:[{s:s, s:i, s:i, s:i}], s:[{s:s, s:s, s:i, s:s, s:f, s:f}]}", "model",
                  "model", "m", "layers", SLACK_LAYERS, "kv_heads", (int)slack_layout.kv_heads,
                  "head_dim", (int)slack_layout.head_dim, "calibration", "model", "m", "class", "c",
                  "position", 1, "variant", ABLATION_VARIANT, "bits_per_element", 4.5, "loss", 0.0);
    status = tables == NULL
                 ? KVT_E_MEMORY
                 : exchange_import_tables(profile, tables, "made up", message, message_size);
    json_decref(tables);
    kvt_profile_close(profile);
    return status;
}

/* One row: the same pass and the same writes on a store with so many of the parts. */
static kvt_status ablation_row(slack_bench *bench, const char *name, bool serial,
                               const slack_site *site)
{
    double length;
    slack_figures figures;
    const double left = slack_left(bench, ABLATION_HIT, &length);
    const double asked = ABLATION_ASK * fmax(left, LEAST_LEFT * length);
    kvt_status status = slack_open(bench, site);
    if (status == KVT_OK)
        status = slack_repeat(bench, site->order, serial, ABLATION_HIT, asked, 1, &figures);
    if (status == KVT_OK) {
        const bench_rate blocked = slack_ms(figures.blocked), ttft = slack_ms(figures.seconds);
        const bench_rate alone = slack_ms(figures.alone);
        json_t *row = json_pack(
            "{s:s, s:o, s:s, s:s}", "parts", name, "mix", bench_number(bench->mix), "variant",
            site->variant != NULL ? site->variant : "raw", "io_order", slack_names[site->order]);
        row = bench_with_rate(row, "bubble_ms", &blocked);
        row = bench_with_rate(row, "alone_ms", &alone);
        row = bench_with_rate(row, "write_share", &figures.written);
        bench_report_row(bench->report, "results", bench_with_rate(row, "ttft_ms", &ttft));
    }
    slack_close(bench);
    return bench_blame(bench->report, status, name, bench->report->message);
}

/* The rows of one mixture of the drives. Each has the parts of those before it, but for the ring:
 * passes do not know of it, and what follows is read by loads. */
static kvt_status ablation_rows(slack_bench *bench, const char *profile)
{
    const kvt_placement placed =
        bench->options->device_count > 1 ? KVT_PLACE_TENSOR : KVT_PLACE_PROPORTIONAL;
    const slack_site plain = {.order = KVT_IO_READS_FIRST};
    const slack_site ring = {.ring = true, .order = KVT_IO_READS_FIRST};
    const slack_site slots = {.placement = placed, .slots = "raw@64"};
    const slack_site slack = {.order = KVT_IO_SLACK, .placement = placed, .slots = "raw@64"};
    const slack_site planes = {.order = KVT_IO_SLACK,
                               .slots = ABLATION_VARIANT "@64",
                               .profile = profile,
                               .variant = ABLATION_VARIANT};
    const slack_site bytes = {.profile = profile, .variant = ABLATION_VARIANT};
    kvt_status status = ablation_row(bench, "serial", true, &plain);
    if (status == KVT_OK) status = ablation_row(bench, "serial, 4 bits", true, &bytes);
    if (status == KVT_OK) status = ablation_row(bench, "+ layerwise", false, &plain);
    if (status == KVT_OK) status = ablation_row(bench, "+ ring", false, &ring);
    if (status == KVT_OK) status = ablation_row(bench, "+ slots, placement", false, &slots);
    if (status == KVT_OK) status = ablation_row(bench, "+ slack", false, &slack);
    return status == KVT_OK ? ablation_row(bench, "+ 4 bits", false, &planes) : status;
}

static kvt_status ablation_run(slack_bench *bench)
{
    char folder[] = "/tmp/kvlab-ablation-XXXXXX", path[64];
    char *message = bench->report->message;
    if (mkdtemp(folder) == NULL) return KVT_E_IO;
    snprintf(path, sizeof path, "%s/p.db", folder);
    kvt_status status = ablation_profile(path, message, BENCH_MESSAGE_BYTES);
    status = bench_blame(bench->report, status, "a profile", message);
    if (status == KVT_OK) status = ablation_rows(bench, path);
    (void)unlink(path);
    (void)rmdir(folder);
    return status;
}

/* ---- the cases ---- */

static kvt_status slack_orders(slack_bench *bench, uint32_t done, uint32_t all)
{
    kvt_status status = KVT_OK;
    for (int order = 0; order < SLACK_ORDERS_MOST && status == KVT_OK; order++) {
        (void)bench_tell(bench->options, done * SLACK_ORDERS_MOST + (uint32_t)order,
                         all * SLACK_ORDERS_MOST, slack_names[order]);
        status = slack_order(bench, (kvt_io_order)order);
    }
    return status;
}

static kvt_status slack_case_of(const bench_options *options, bench_report *report, bool ablation)
{
    kvt_device_config own[BENCH_OWN_DRIVES];
    bench_options given = *options;
    kvt_status status = bench_take_drives(&given, DRIVE_BYTES, DRIVE_LATENCY, own, report);
    if (status != KVT_OK) return status;
    static slack_bench bench;
    bench = (slack_bench){.options = &given,
                          .report = report,
                          .iterations =
                              bench_repetitions(given.iterations, SLACK_ITERATIONS, given.quick),
                          .entries = given.quick ? SLACK_ENTRIES_QUICK : SLACK_ENTRIES};
    const uint64_t bytes = ENTRY_BYTES;
    bench.source = bench_buffer(WRITE_BYTES);
    bench.targets = bench_buffer(bench.entries * bytes);
    if (bench.source == NULL || bench.targets == NULL) status = KVT_E_MEMORY;
    for (uint32_t i = 0; i < bench.entries && status == KVT_OK; i++) {
        bench.keys[i] = store_bench_key(i);
        bench.views[i] = kvt_view_packed(bench.targets + i * bytes, bytes);
    }
    static const double mixes[] = {0, 0.6};
    const bool sets = slack_set_mix(&given, 0);
    const uint32_t rounds = sets ? 2 : 1;
    for (uint32_t m = sets && given.mixing ? 1 : 0; m < rounds && status == KVT_OK; m++) {
        bench.mix = sets ? mixes[m] : NAN;
        if (sets) (void)slack_set_mix(&given, mixes[m]);
        status = ablation ? ablation_run(&bench) : slack_orders(&bench, m, rounds);
    }
    if (sets) (void)slack_set_mix(&given, 0);
    bench_report_set(report, "repetitions", json_integer(bench.iterations));
    free(bench.source);
    free(bench.targets);
    return status;
}

static kvt_status slack_case(const bench_options *options, bench_report *report)
{
    return slack_case_of(options, report, false);
}

static kvt_status ablation_case(const bench_options *options, bench_report *report)
{
    const kvt_status status = slack_case_of(options, report, true);
    return status == KVT_OK ? bench_coarse_rows(options, report) : status;
}

const bench_case bench_ablation_case = {
    .name = "ablation",
    .schema = "kvterrace-bench-ablation-1",
    .tables = (const document_table[]){{"results", "parts mix variant io_order bubble_ms alone_ms "
                                                   "ttft_ms write_share"},
                                       {"coarse", "variant coarse loss coarse_loss plain_ms "
                                                  "coarse_ms refined_ms time_ratio bytes_ratio "
                                                  "read_ratio left_out"},
                                       {0}},
    .run = ablation_case,
};

const bench_case bench_slack_case = {
    .name = "slack",
    .schema = "kvterrace-bench-slack-1",
    .tables =
        (const document_table[]){{"results",
                                  "order mix hit_rate asked table bound blocked_ms blocked_ratio "
                                  "write_share write_wait_p99_s ttft_ms model_ms over_model"},
                                 {"crossovers", "order mix asked crossover_hit_rate"},
                                 {0}},
    .run = slack_case,
};
