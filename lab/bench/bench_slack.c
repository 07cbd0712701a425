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
 * Thread rule: one case at a time; the writes have a thread of their own.
 */
#include "bench_slack.h"

#include "lab/private.h"
#include "replay/drive_model.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB ((uint64_t)1 << 20)

enum {
    SLACK_ENTRIES_QUICK = 8,
    SLACK_WRITES_MAX = 4096,
    SLACK_ITERATIONS = 5,
    SLACK_HITS = 5,
    SLACK_ASKS = 3,
    SLACK_RING_AHEAD = 4 /* layers */
};

#define ENTRY_BYTES   (2 * MIB)
#define MATRIX_BYTES  (ENTRY_BYTES / SLACK_LAYERS / 2)
#define HEAD_BYTES    (UINT64_C(12) << 10) /* of a record, read before its layers */
#define WRITE_BYTES   (2 * MIB)
#define CROSSOVER     6.0 /* seconds of computing a layer over those of loading it */
#define WRONG_HIT     0.5
#define WRONG_ASK     0.6
#define DRIVE_BYTES   (256 * MIB)
#define DRIVE_LATENCY 80000

static const double slack_hits[SLACK_HITS] = {0.25, 0.5, 0.75, 0.9, 0.99};
static const double slack_asks[SLACK_ASKS] = {0.3, 0.6, 0.9};
const char *const bench_slack_names[SLACK_ORDERS_MOST] = {"reads_first", "fifo", "round_robin",
                                                          "table", "slack"};

const kvt_layout bench_slack_layout = {
    .layers = SLACK_LAYERS, .kv_heads = 8, .head_dim = 128, .dtype = KVT_DTYPE_BF16, .tokens = 64};

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

double bench_slack_left(const slack_bench *bench, double hit, double *seconds_out)
{
    const double compute = slack_compute(bench, hit), reading = slack_reading(bench, hit);
    const double length = fmax(compute, reading) * (SLACK_LAYERS - 1) + reading + compute;
    *seconds_out = length;
    return length - reading * SLACK_LAYERS;
}

/* The pass was computed at an instant. */
static void slack_end(slack_run *run, uint64_t computed_ns)
{
    run->seconds = (double)(computed_ns - run->began_ns) * 1e-9;
    const uint32_t ended = atomic_load(&run->ended);
    run->written = run->count > 0 ? (double)ended / run->count : 1;
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
    slack_end(run, base_clock_ns());
    return status;
}

/* The ways that a pass loads by: a load, or blocks of a ring. */
typedef struct slack_source {
    slack_bench *bench;
    uint64_t pass;
    uint32_t count; /* of entries */
    kvt_load *load;
    uint64_t objects[SLACK_ENTRIES];
} slack_source;

/* Posts a layer: K and V of all entries. */
static kvt_status slack_post_layer(slack_source *source, uint32_t layer)
{
    kvt_ring_iocb iocb;
    kvt_ring *ring = source->bench->ring;
    kvt_status status = layer < SLACK_LAYERS ? kvt_ring_get_iocb(ring, 1, &iocb) : KVT_END;
    if (status != KVT_OK) return status == KVT_END ? KVT_OK : status;
    for (uint32_t i = 0; i < 2 * source->count; i++)
        iocb.contexts[i] = (kvt_ring_context){
            .object = source->objects[i / 2],
            .layer = layer,
            .side = i % 2,
            .bytes = MATRIX_BYTES,
            .region = source->bench->region,
            .target = i / 2 * ENTRY_BYTES +
                      kvt_layout_matrix_offset(&bench_slack_layout, layer, (kvt_side)(i % 2))};
    iocb.block.count = 2 * source->count;
    iocb.block.pass = source->pass;
    return kvt_ring_submit(ring, &iocb, 1);
}

static kvt_status slack_begin_load(slack_source *source)
{
    slack_bench *bench = source->bench;
    const kvt_view *pointers[SLACK_ENTRIES];
    const kvt_load_options options = {
        .struct_size = sizeof options, .deadline_ns = KVT_NO_DEADLINE, .pass = source->pass};
    for (uint32_t i = 0; i < source->count; i++)
        pointers[i] = &bench->views[i];
    return kvt_load_begin(bench->queue, bench->keys, pointers, source->count, &options,
                          &source->load);
}

/* Waits for a layer. A ring posts a later one. */
static kvt_status slack_await(slack_source *source, uint32_t layer)
{
    slack_bench *bench = source->bench;
    kvt_ring_result result;
    if (bench->ring == NULL) return kvt_load_wait(source->load, layer + 1, KVT_NO_DEADLINE);
    kvt_status status =
        kvt_ring_wait(bench->ring, bench->ring_next++, 1, KVT_NO_DEADLINE, &result, NULL);
    if (status == KVT_OK) status = result.status;
    return status == KVT_OK ? slack_post_layer(source, layer + SLACK_RING_AHEAD) : status;
}

/* Loads and computes; the writes are under way. */
static kvt_status slack_pass(slack_run *run)
{
    slack_bench *bench = run->bench;
    slack_source source = {.bench = bench, .count = slack_entries_of(bench, run->hit)};
    const double compute = slack_compute(bench, run->hit);
    const kvt_pass pass = {.struct_size = sizeof pass,
                           .new_tokens = 64 * (bench->entries - source.count) + 1,
                           .prefix_tokens = 64 * source.count,
                           .layers = SLACK_LAYERS,
                           .layer_seconds = compute * run->table};
    kvt_status status = kvt_pass_begin(bench->store, &pass, &source.pass);
    if (status == KVT_OK && bench->ring == NULL) status = slack_begin_load(&source);
    if (status == KVT_OK && bench->ring != NULL)
        status = kvt_ring_object_open(bench->ring, bench->keys, source.count, source.objects);
    for (uint32_t layer = 0; bench->ring != NULL && layer < SLACK_RING_AHEAD; layer++)
        if (status == KVT_OK) status = slack_post_layer(&source, layer);
    uint64_t computed_ns = run->began_ns;
    for (uint32_t layer = 0; layer < SLACK_LAYERS && status == KVT_OK; layer++) {
        status = slack_await(&source, layer);
        const uint64_t now_ns = base_clock_ns();
        run->blocked += (double)(now_ns - computed_ns) * 1e-9;
        (void)kvt_pass_layer(bench->store, source.pass, layer);
        computed_ns = now_ns + (uint64_t)(compute * 1e9);
        base_sleep_until(computed_ns);
        computed_ns = base_clock_ns(); /* a late wake-up is no blocked time */
        kvt_load_release(source.load, layer + 1);
    }
    slack_end(run, computed_ns);
    kvt_status statuses[SLACK_ENTRIES];
    const kvt_status end = source.load != NULL ? kvt_load_end(source.load, statuses, NULL) : KVT_OK;
    (void)kvt_pass_end(bench->store, source.pass);
    for (uint32_t i = 0; i < source.count && status == KVT_OK && source.load != NULL; i++)
        status = statuses[i];
    if (bench->ring != NULL) kvt_ring_object_close(bench->ring, source.objects, source.count);
    return status != KVT_OK ? status : end;
}

/* A pass with writes, until the last of them has ended; waits_out has room for all. */
static kvt_status slack_once(slack_run *run, double *waits_out)
{
    slack_bench *bench = run->bench;
    double length;
    (void)bench_slack_left(bench, run->hit, &length);
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
    status = run->serial ? slack_serial_pass(run) : slack_pass(run);
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

void bench_slack_close(slack_bench *bench)
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

kvt_status bench_slack_open(slack_bench *bench, const slack_site *site)
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
    options.loss.ladder_layout = bench_slack_layout;
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
    const kvt_ring_options ring = {.struct_size = sizeof ring};
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
                                 .layout = bench_slack_layout,
                                 .request_tokens = bench_slack_layout.tokens};
        status = kvt_store_put(bench->store, &entry, KVT_PACKED(bench->source, bytes));
    }
    tiers_pool *pool = bench->store->pools[KVT_TIER_SSD];
    tiers_pool_log_decisions(pool, bench->log);
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

kvt_status bench_slack_repeat(slack_bench *bench, kvt_io_order order, bool serial, double hit,
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
    static const char *const names[] = {"idle",         "fits",        "share",     "waits_reads",
                                        "waits_layers", "waits_grain", "waits_turn"};
    enum { COUNT = sizeof names / sizeof names[0] };
    uint64_t sums[COUNT] = {0}, one[COUNT];
    kvt_device_stats stats = {.struct_size = sizeof stats};
    json_t *object = json_object();
    _Static_assert(sizeof stats.decisions == sizeof one, "all of them have names");
    for (uint32_t i = 0; kvt_device_stats_get(bench->store, i, &stats) == KVT_OK; i++) {
        memcpy(one, &stats.decisions, sizeof one);
        for (int k = 0; k < COUNT; k++)
            sums[k] += one[k];
    }
    for (int k = 0; k < COUNT; k++)
        (void)json_object_set_new(object, names[k], json_integer((json_int_t)sums[k]));
    return object;
}

/* Makes the decisions of a log again. */
static kvt_status slack_decide_again(bench_report *report, const char *path)
{
    slack_log_sums sums;
    FILE *log = fopen(path, "r");
    if (log == NULL) return bench_blame(report, KVT_E_IO, path, strerror(errno));
    kvt_status status = tiers_slack_log_check(log, &sums);
    (void)fclose(log);
    bench_report_row(report, "decided",
                     json_pack("{s:I, s:I, s:I}", "lines", (json_int_t)sums.lines, "decisions",
                               (json_int_t)sums.decisions, "differ", (json_int_t)sums.differ));
    char why[64];
    snprintf(why, sizeof why, status == KVT_OK ? "%llu decisions differ" : "line %llu is none",
             (unsigned long long)(status == KVT_OK ? sums.differ : sums.lines));
    if (status == KVT_OK && sums.differ != 0) status = KVT_E_MISMATCH;
    return bench_blame(report, status, path, why);
}

bench_rate bench_slack_ms(bench_rate rate)
{
    return (bench_rate){rate.median * 1e3, rate.min * 1e3, rate.max * 1e3};
}

static void slack_row(slack_bench *bench, const char *order, double hit, double ask, double bound,
                      double table, const slack_figures *figures)
{
    const bench_rate blocked = bench_slack_ms(figures->blocked),
                     ttft = bench_slack_ms(figures->seconds);
    const bench_rate alone = bench_slack_ms(figures->alone);
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
    kvt_status status = bench_slack_open(bench, &(slack_site){.order = order});
    for (uint32_t k = 0; k < SLACK_ASKS && status == KVT_OK; k++) {
        double blocked[SLACK_HITS];
        if (!slack_wants(bench->options->asked_percent, slack_asks[k])) continue;
        for (uint32_t i = 0; i < hits && status == KVT_OK; i++) {
            if (!slack_wants(bench->options->hit_percent, slack_hits[i])) continue;
            const double left = bench_slack_left(bench, slack_hits[i], &length);
            const double asked = slack_asks[k] * fmax(left, SLACK_LEAST_LEFT * length);
            status = bench_slack_repeat(bench, order, false, slack_hits[i], asked, 1, &figures);
            blocked[i] = figures.blocked.median;
            if (status == KVT_OK)
                slack_row(bench, bench_slack_names[order], slack_hits[i], slack_asks[k],
                          left / asked, 1, &figures);
        }
        if (status != KVT_OK || hits < SLACK_HITS || bench->options->hit_percent != 0) continue;
        bench_report_row(bench->report, "crossovers",
                         json_pack("{s:s, s:o, s:f, s:o}", "order", bench_slack_names[order], "mix",
                                   bench_number(bench->mix), "asked", slack_asks[k],
                                   "crossover_hit_rate",
                                   bench_number(slack_crossover(bench, blocked))));
    }
    for (int k = 0; k < 2 && order == KVT_IO_SLACK && status == KVT_OK; k++) {
        const double left = bench_slack_left(bench, WRONG_HIT, &length);
        const double table = k == 0 ? 0.5 : 2;
        status =
            bench_slack_repeat(bench, order, false, WRONG_HIT, WRONG_ASK * left, table, &figures);
        if (status == KVT_OK)
            slack_row(bench, bench_slack_names[order], WRONG_HIT, WRONG_ASK, 1 / WRONG_ASK, table,
                      &figures);
    }
    if (status == KVT_OK)
        bench_report_row(bench->report, "decisions",
                         json_pack("{s:s, s:o, s:o}", "order", bench_slack_names[order], "mix",
                                   bench_number(bench->mix), "decisions", slack_decisions(bench)));
    bench_slack_close(bench);
    return bench_blame(bench->report, status, bench_slack_names[order], bench->report->message);
}

/* ---- the cases ---- */

static kvt_status slack_orders(slack_bench *bench, uint32_t done, uint32_t count)
{
    kvt_status status = KVT_OK;
    for (int order = 0; order < SLACK_ORDERS_MOST && status == KVT_OK; order++) {
        (void)bench_tell(bench->options, done * SLACK_ORDERS_MOST + (uint32_t)order,
                         count * SLACK_ORDERS_MOST, bench_slack_names[order]);
        status = slack_order(bench, (kvt_io_order)order);
    }
    return status;
}

kvt_status bench_slack_case_of(const bench_options *options, bench_report *report,
                               kvt_status (*all)(slack_bench *bench, uint32_t done, uint32_t count))
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
    if (given.decisions != NULL && (bench.log = fopen(given.decisions, "w")) == NULL)
        status = bench_blame(report, KVT_E_IO, given.decisions, strerror(errno));
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
        status = all(&bench, m, rounds);
    }
    if (sets) (void)slack_set_mix(&given, 0);
    bench_report_set(report, "repetitions", json_integer(bench.iterations));
    if (bench.log != NULL && (ferror(bench.log) | fclose(bench.log)) != 0 && status == KVT_OK)
        status = bench_blame(report, KVT_E_IO, given.decisions, "write failed");
    free(bench.source);
    free(bench.targets);
    return status;
}

static kvt_status slack_case(const bench_options *options, bench_report *report)
{
    if (options->check != NULL) return slack_decide_again(report, options->check);
    const kvt_status status = bench_slack_case_of(options, report, slack_orders);
    if (status != KVT_OK || options->decisions == NULL) return status;
    return slack_decide_again(report, options->decisions);
}

const bench_case bench_slack_case = {
    .name = "slack",
    .schema = "kvterrace-bench-slack-1",
    .tables =
        (const document_table[]){{"results",
                                  "order mix hit_rate asked table bound blocked_ms blocked_ratio "
                                  "write_share write_wait_p99_s ttft_ms model_ms over_model"},
                                 {"crossovers", "order mix asked crossover_hit_rate"},
                                 {"decided", "lines decisions differ"},
                                 {0}},
    .run = slack_case,
};
