/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_live.c - kvlab live: a store on throttled memory beside the simulator, policy by
 * policy, with the same requests, capacities and speeds.
 *
 * One workload serves all settings: its arrivals are stretched until the simulated run of
 * LIVE_LOAD_POLICY has the setting's rho. The simulator is told the devices' speeds as they are
 * capped, and what a call of the store takes beside its transfers, which is measured first.
 *
 * Thread rule: one bench at a time.
 */
#include "bench_live.h"

#include "bench_parts.h"

#include "lab/private.h"
#include "replay/live.h"
#include "replay/random.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MIB ((uint64_t)1 << 20)

/* Llama-3.1-8B on an A100 with keys and values of 4 KiB a token, all bytes and seconds divided by
 * 16, so that a run takes seconds: entries of 128 KiB, 3.4 ms to recompute. Both sides see these
 * figures, so nothing is scaled between them. */
#define LIVE_DIVISOR         16.0
#define LIVE_BYTES_PER_TOKEN 256u
#define LIVE_BLOCK_TOKENS    512u
#define LIVE_SERVERS         2u
#define LIVE_WARMUP          0.2
#define LIVE_TICK_SECONDS    0.01
#define LIVE_DRAM_ALONE      (32 * MIB)
#define LIVE_DRAM_ABOVE      (16 * MIB)
#define LIVE_SSD             (64 * MIB)
#define LIVE_LOAD_POLICY     "none"
#define LIVE_LOAD_TRIES      24
#define LIVE_DRAWS           8   /* simulated runs whose means are taken */
#define LIVE_JITTER_NS       3e5 /* of arrivals, between them */

/* All loads and both writes where they matter most: at rho 0.3 writes keep up either way. */
const live_setting live_settings[LIVE_SETTINGS] = {
    {"dram rho 0.3", 0.0, 0.0, 0.3},
    {"dram rho 0.7", 0.0, 0.0, 0.7},
    {"ssd 150 w 1/3 rho 0.3", 150e6, 1.0 / 3.0, 0.3},
    {"ssd 150 w 1/1 rho 0.7", 150e6, 1.0, 0.7},
    {"ssd 150 w 1/3 rho 0.7", 150e6, 1.0 / 3.0, 0.7},
    {"ssd 600 w 1/3 rho 0.3", 600e6, 1.0 / 3.0, 0.3},
    {"ssd 600 w 1/1 rho 0.7", 600e6, 1.0, 0.7},
    {"ssd 600 w 1/3 rho 0.7", 600e6, 1.0 / 3.0, 0.7},
};

const char *const live_policies[LIVE_POLICIES] = {"lru",    "lru-leaf", "gdsf",
                                                  "s3fifo", "pensieve", "utility"};

/* The settings of --quick. */
static const uint32_t live_quick[] = {1, 4};

typedef struct live_bench {
    const bench_options *options;
    live_results *results;
    replay_workload workload;
    uint64_t *arrivals_ns; /* as generated */
    double factor;         /* that they are stretched by */
    char *message;         /* BENCH_MESSAGE_BYTES of it */
} live_bench;

/* ---- the store: throttled memory, and what its calls take beside their transfers ---- */

enum { SITE_PROBES = 48 };

static kvt_device_config site_device(const char *name, uint64_t capacity_bytes, double read,
                                     double write)
{
    return (kvt_device_config){.struct_size = sizeof(kvt_device_config),
                               .name = name,
                               .backend = "memory",
                               .capacity_bytes = capacity_bytes + SITE_SLACK_BYTES,
                               .read_bytes_per_s = (uint64_t)read,
                               .write_bytes_per_s = (uint64_t)write};
}

/* The site may not be moved afterwards. */
static void live_site_make(const live_setting *setting, const replay_options *options,
                           live_site *site)
{
    memset(site, 0, sizeof *site);
    kvt_store_options *store = &site->store;
    kvt_store_options_init(store);
    store->lossless = false;
    store->learning.learn = false;
    store->limits.staging_bytes = SITE_STAGING_BYTES;
    store->limits.put_staging_bytes = options->put_staging_bytes;
    store->limits.put_backlog_seconds = options->put_backlog_seconds;
    store->limits.tick_seconds = options->tick_seconds;
    store->prefill = options->model.prefill;
    store->loss.alpha_seconds = options->alpha_seconds;
    store->handle_seed = 1;
    for (int tier = KVT_TIER_DRAM; tier <= KVT_TIER_SSD; tier++) {
        const replay_tier *model = &options->tiers[tier];
        if (model->capacity_bytes == 0) continue;
        bool ssd = tier == KVT_TIER_SSD;
        double read = ssd ? setting->ssd_bytes_per_s : SITE_DRAM_BYTES_PER_S;
        double write = ssd ? read * setting->write_share : read;
        site->devices[tier] = site_device(ssd ? "ssd" : "dram", model->capacity_bytes, read, write);
        store->tiers[tier] = (kvt_tier_options){.capacity_bytes = model->capacity_bytes,
                                                .devices = &site->devices[tier],
                                                .device_count = 1};
    }
}

static kvt_status site_time_calls(kvt_store *store, const kvt_layout *layout, uint64_t bytes,
                                  double bytes_per_s, live_overheads *out)
{
    double gets[SITE_PROBES], puts[SITE_PROBES];
    void *buffer = malloc(bytes);
    kvt_status status = buffer == NULL ? KVT_E_MEMORY : KVT_OK;
    for (uint32_t i = 0; i < SITE_PROBES && status == KVT_OK; i++) {
        kvt_entry entry = {.struct_size = sizeof entry, .key = live_key(1, i), .layout = *layout};
        live_fill(1, i, buffer, bytes);
        do {
            status = kvt_store_flush(store);
            uint64_t begin = base_clock_ns();
            if (status == KVT_OK) status = kvt_store_put(store, &entry, KVT_PACKED(buffer, bytes));
            puts[i] = (double)(base_clock_ns() - begin) * 1e-9;
        } while (status == KVT_BUSY);
    }
    if (status == KVT_OK) status = kvt_store_flush(store);
    for (uint32_t i = 0; i < SITE_PROBES && status == KVT_OK; i++) {
        kvt_key key = live_key(1, i);
        kvt_get_info info = {.struct_size = sizeof info};
        uint64_t begin = base_clock_ns();
        status = kvt_store_get(store, &key, KVT_PACKED(buffer, bytes), KVT_STORE_DEADLINE, &info);
        if (status == KVT_MISS) status = KVT_E_IO;
        double transfer_s = (double)info.stored_bytes / bytes_per_s;
        gets[i] = (double)(base_clock_ns() - begin) * 1e-9 - transfer_s;
    }
    free(buffer);
    if (status != KVT_OK) return status;
    out->get_s = bench_rate_of(gets, SITE_PROBES).median;
    out->put_s = bench_rate_of(puts, SITE_PROBES).median;
    return KVT_OK;
}

/* Puts and gets entries of the options' size on memory of this speed. KVT_OK; kvt_store_open's,
 * kvt_store_put's and kvt_store_get's errors. */
static kvt_status live_site_measure(double bytes_per_s, const replay_options *options,
                                    live_overheads *out, char *message, size_t message_size)
{
    const uint64_t bytes = options->bytes_per_token * options->block_tokens;
    const kvt_layout layout = live_layout(options->bytes_per_token, options->block_tokens);
    kvt_device_config device =
        site_device("probe", 2 * SITE_PROBES * bytes, bytes_per_s, bytes_per_s);
    kvt_store_options probe;
    kvt_store *store = NULL;
    kvt_store_options_init(&probe);
    probe.policy = "lru";
    probe.lossless = false;
    probe.learning.learn = false;
    probe.limits.staging_bytes = SITE_STAGING_BYTES;
    probe.tiers[KVT_TIER_DRAM] = (kvt_tier_options){
        .capacity_bytes = 2 * SITE_PROBES * bytes, .devices = &device, .device_count = 1};
    kvt_status status = kvt_store_open(&probe, &store, message, message_size);
    if (status != KVT_OK) return status;
    status = site_time_calls(store, &layout, bytes, bytes_per_s, out);
    kvt_store_close(store);
    return status;
}

/* ---- the simulated side ---- */

static void live_divide_seconds(replay_options *options)
{
    kvt_prefill *prefill = &options->model.prefill;
    prefill->linear_seconds_per_token /= LIVE_DIVISOR;
    prefill->square_seconds_per_token2 /= LIVE_DIVISOR;
    prefill->fixed_seconds /= LIVE_DIVISOR;
    options->alpha_seconds /= LIVE_DIVISOR;
    options->clock_scale = LIVE_DIVISOR;
    options->put_backlog_seconds /= LIVE_DIVISOR;
}

static void live_options(const live_bench *bench, const live_setting *setting,
                         replay_options *options)
{
    const live_results *results = bench->results;
    replay_options_init(options);
    live_divide_seconds(options);
    options->scale = 1.0;
    options->servers = LIVE_SERVERS;
    options->bytes_per_token = LIVE_BYTES_PER_TOKEN;
    options->block_tokens = LIVE_BLOCK_TOKENS;
    options->warmup = LIVE_WARMUP;
    options->tick_seconds = LIVE_TICK_SECONDS;
    options->bounds = false;
    options->copies = false; /* they need a catalog */
    options->put_fixed_seconds = results->put_overhead_s;
    options->put_staging_bytes = SITE_PUT_STAGING;
    bool ssd = setting->ssd_bytes_per_s > 0;
    kvt_affine memory = {results->dram_overhead_s, SITE_DRAM_BYTES_PER_S, 0.0};
    options->tiers[KVT_TIER_DRAM] = (replay_tier){
        .capacity_bytes = ssd ? LIVE_DRAM_ABOVE : LIVE_DRAM_ALONE, .read = memory, .write = memory};
    if (!ssd) return;
    kvt_affine drive = {results->ssd_overhead_s, setting->ssd_bytes_per_s, 0.0};
    options->tiers[KVT_TIER_SSD] =
        (replay_tier){.capacity_bytes = LIVE_SSD, .read = drive, .write = drive};
    options->tiers[KVT_TIER_SSD].write.bytes_per_s *= setting->write_share;
}

static kvt_status live_generate(live_bench *bench)
{
    replay_generator generator = {.requests_per_s = LIVE_DIVISOR,
                                  .requests = bench->options->quick ? 240 : 360,
                                  .contexts = 100,
                                  .zipf = 0.8,
                                  .tokens_median = 2048,
                                  .tokens_sigma = 0.4,
                                  .tokens_max = 16384,
                                  .turns_mean = 2.0,
                                  .turn_tokens = 384,
                                  .think_seconds = 20.0 / LIVE_DIVISOR,
                                  .block_tokens = LIVE_BLOCK_TOKENS,
                                  .seed = 1};
    kvt_status status =
        replay_workload_generate(&generator, &bench->workload, bench->message, BENCH_MESSAGE_BYTES);
    if (status != KVT_OK) return status;
    bench->arrivals_ns = malloc(bench->workload.request_count * sizeof *bench->arrivals_ns);
    if (bench->arrivals_ns == NULL) return KVT_E_MEMORY;
    for (uint64_t i = 0; i < bench->workload.request_count; i++)
        bench->arrivals_ns[i] = bench->workload.requests[i].arrival_ns;
    return KVT_OK;
}

/* Arrivals as generated, times a factor, later by up to so much. */
static void live_stretch(live_bench *bench, double factor, double jitter_ns, uint64_t seed)
{
    replay_random random;
    uint64_t last_ns = 0;
    bench->factor = factor;
    replay_random_seed(&random, seed);
    for (uint64_t i = 0; i < bench->workload.request_count; i++) {
        double at = (double)bench->arrivals_ns[i] * factor;
        uint64_t at_ns = (uint64_t)(at + jitter_ns * replay_random_unit(&random));
        if (at_ns > last_ns) last_ns = at_ns;
        bench->workload.requests[i].arrival_ns = last_ns;
    }
}

static void live_take_reading(const replay_result *result, live_reading *out)
{
    *out = (live_reading){.ttft_s = result->times.ttft_mean,
                          .ttft_least_s = result->times.ttft_mean,
                          .ttft_most_s = result->times.ttft_mean,
                          .service_s = result->times.service_mean,
                          .wait_s = result->times.wait_mean,
                          .put_s = result->put_mean_s,
                          .rho = result->rho,
                          .hit_ratio = result->hit_token_ratio[0],
                          .puts = result->puts,
                          .refused = result->refused,
                          .busy = result->puts_busy,
                          .demotions = result->demotions,
                          .promotions = result->promotions,
                          .evictions = result->evictions,
                          .written_bytes = result->bytes_written[KVT_TIER_SSD],
                          .wrong_bytes = result->wrong_bytes};
}

static kvt_status live_simulate(live_bench *bench, const replay_options *options,
                                const char *policy, live_reading *out)
{
    replay_result result;
    replay_options checked = *options;
    kvt_status status = replay_options_check(&checked, bench->message, BENCH_MESSAGE_BYTES);
    if (status == KVT_OK)
        status = replay_run_sim(&checked, &bench->workload, policy, &result, bench->message,
                                BENCH_MESSAGE_BYTES);
    if (status == KVT_OK) live_take_reading(&result, out);
    return status;
}

/* Stretches the arrivals to the setting's load. What is cached hardly depends on the clock, so rho
 * goes as one over the factor, nearly. */
static kvt_status live_load(live_bench *bench, const live_setting *setting,
                            const replay_options *options)
{
    double factor = 1.0;
    for (int i = 0; i < LIVE_LOAD_TRIES; i++) {
        live_reading reading;
        live_stretch(bench, factor, 0.0, 0);
        kvt_status status = live_simulate(bench, options, LIVE_LOAD_POLICY, &reading);
        if (status != KVT_OK) return status;
        if (fabs(reading.rho / setting->rho - 1.0) < 1e-3) return KVT_OK;
        factor *= reading.rho / setting->rho;
    }
    return KVT_OK;
}

static void live_add_reading(live_reading *sum, const live_reading *one)
{
    if (!(sum->ttft_least_s > 0.0) || one->ttft_s < sum->ttft_least_s)
        sum->ttft_least_s = one->ttft_s;
    sum->ttft_most_s = fmax(sum->ttft_most_s, one->ttft_s);
    sum->ttft_s += one->ttft_s / LIVE_DRAWS;
    sum->service_s += one->service_s / LIVE_DRAWS;
    sum->wait_s += one->wait_s / LIVE_DRAWS;
    sum->rho += one->rho / LIVE_DRAWS;
    sum->hit_ratio += one->hit_ratio / LIVE_DRAWS;
    sum->busy += one->busy;
    sum->puts += one->puts;
    sum->refused += one->refused;
    sum->promotions += one->promotions;
    sum->demotions += one->demotions;
    sum->evictions += one->evictions;
    sum->written_bytes += one->written_bytes;
}

/* A store is not repeatable to the microsecond, and a policy that ranks entries by a hair decides
 * otherwise then: the simulated mean is one over runs whose arrivals differ by so little. */
static kvt_status live_simulate_draws(live_bench *bench, const replay_options *options,
                                      const char *policy, live_reading *out)
{
    kvt_status status = KVT_OK;
    *out = (live_reading){.ttft_s = 0.0};
    for (uint64_t draw = 0; draw < LIVE_DRAWS && status == KVT_OK; draw++) {
        live_reading one;
        live_stretch(bench, bench->factor, draw > 0 ? LIVE_JITTER_NS : 0.0, draw);
        status = live_simulate(bench, options, policy, &one);
        if (status == KVT_OK) live_add_reading(out, &one);
    }
    live_stretch(bench, bench->factor, 0.0, 0);
    uint64_t *const sums[] = {&out->busy,         &out->puts,      &out->refused,
                              &out->promotions,   &out->demotions, &out->evictions,
                              &out->written_bytes};
    for (size_t i = 0; i < sizeof sums / sizeof sums[0]; i++)
        *sums[i] /= LIVE_DRAWS;
    return status;
}

static const live_setting *live_setting_at(const live_bench *bench, uint32_t index,
                                           uint32_t *setting_out)
{
    *setting_out = bench->options->quick ? live_quick[index] : index;
    return &live_settings[*setting_out];
}

/* Arrivals and simulated runs of all settings; what the live ones will take. */
static kvt_status live_plan(live_bench *bench)
{
    live_results *results = bench->results;
    const replay_workload *workload = &bench->workload;
    const replay_request *last = &workload->requests[workload->request_count - 1];
    for (uint32_t i = 0; i < results->setting_count; i++) {
        uint32_t index;
        replay_options options;
        const live_setting *setting = live_setting_at(bench, i, &index);
        live_options(bench, setting, &options);
        kvt_status status = live_load(bench, setting, &options);
        if (status != KVT_OK) return status;
        results->budget_s += (double)last->arrival_ns * 1e-9 * results->policy_count;
    }
    fprintf(
        stderr,
        "bench live: %u settings x %u policies, %llu requests each: about %.0f s of live runs\n",
        results->setting_count, results->policy_count, (unsigned long long)workload->request_count,
        results->budget_s);
    return KVT_OK;
}

static kvt_status live_run_setting(live_bench *bench, uint32_t at)
{
    live_results *results = bench->results;
    uint32_t index;
    replay_options options;
    live_site site;
    const live_setting *setting = live_setting_at(bench, at, &index);
    live_options(bench, setting, &options);
    kvt_status status = live_load(bench, setting, &options);
    if (status != KVT_OK) return status;
    live_site_make(setting, &options, &site);
    const replay_live live = {.store = &site.store};
    for (uint32_t policy = 0; policy < results->policy_count && status == KVT_OK; policy++) {
        live_row *row = &results->rows[results->row_count];
        replay_result result;
        *row = (live_row){.setting = index, .policy = policy};
        (void)bench_tell(bench->options, at * results->policy_count + policy,
                         results->setting_count * results->policy_count, live_policies[policy]);
        status = live_simulate_draws(bench, &options, live_policies[policy], &row->sim);
        if (status == KVT_OK)
            status = replay_run_live(&options, &bench->workload, &live, live_policies[policy],
                                     &result, bench->message, BENCH_MESSAGE_BYTES);
        if (status != KVT_OK) break;
        live_take_reading(&result, &row->live);
        results->row_count++;
        fprintf(stderr, "%s, %s: live %.4f s, simulated %.4f s\n", setting->name,
                live_policies[policy], row->live.ttft_s, row->sim.ttft_s);
    }
    return status;
}

static kvt_status live_measure(live_bench *bench)
{
    live_results *results = bench->results;
    replay_options options;
    live_overheads dram, ssd;
    live_options(bench, &live_settings[LIVE_SETTINGS - 1], &options);
    kvt_status status = live_site_measure(SITE_DRAM_BYTES_PER_S, &options, &dram, bench->message,
                                          BENCH_MESSAGE_BYTES);
    if (status == KVT_OK)
        status = live_site_measure(live_settings[LIVE_SETTINGS - 1].ssd_bytes_per_s, &options, &ssd,
                                   bench->message, BENCH_MESSAGE_BYTES);
    if (status != KVT_OK) return status;
    results->dram_overhead_s = dram.get_s;
    results->ssd_overhead_s = ssd.get_s;
    results->put_overhead_s = ssd.put_s;
    return KVT_OK;
}

static kvt_status live_run(live_bench *bench)
{
    live_results *results = bench->results;
    uint64_t begin_ns = base_clock_ns();
    kvt_status status = live_generate(bench);
    if (status == KVT_OK) status = live_measure(bench);
    if (status == KVT_OK) status = live_plan(bench);
    for (uint32_t i = 0; i < results->setting_count && status == KVT_OK; i++)
        status = live_run_setting(bench, i);
    results->seconds = (double)(base_clock_ns() - begin_ns) * 1e-9;
    return status;
}

static kvt_status live_case_run(const bench_options *options, bench_report *report)
{
    live_results *results = calloc(1, sizeof *results);
    live_bench bench = {.options = options, .results = results, .message = report->message};
    if (results == NULL) return KVT_E_MEMORY;
    results->setting_count =
        options->quick ? sizeof live_quick / sizeof live_quick[0] : LIVE_SETTINGS;
    results->policy_count = LIVE_POLICIES;
    kvt_status status = live_run(&bench);
    if (status == KVT_OK) {
        live_judge(results);
        live_report(report, results);
        if (!results->totals.met)
            status = bench_blame(report, KVT_E_MISMATCH, "live",
                                 "a mean, a rank or a byte differs from the simulation");
    }
    replay_workload_free(&bench.workload);
    free(bench.arrivals_ns);
    free(results);
    return status;
}

const bench_case bench_live_case = {
    .name = "live",
    .schema = "kvterrace-bench-live-1",
    .tables =
        (const document_table[]){{"rows",
                                  "setting policy live_ttft_s sim_ttft_s ratio within rank_live "
                                  "rank_sim live.hit_token_ratio sim.hit_token_ratio live.rho "
                                  "sim.rho live.refused sim.refused wrong_bytes"},
                                 {"totals", "rows within ratio_min ratio_max pairs_told_apart "
                                            "pairs_inverted dram_get_overhead_s ssd_get_overhead_s "
                                            "put_overhead_s seconds"},
                                 {0}},
    .run = live_case_run,
};
