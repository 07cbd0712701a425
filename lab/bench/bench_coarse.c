/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_coarse.c - progressive loads beside plain ones: when a context of planes can be computed
 * with in its coarse form, when it is refined, and when a plain load has brought it, with what
 * either form loses by the calibration of SmolLM2-135M, whose shape the entries have. Nothing is
 * computed: the drives are all that is waited for. Plain and progressive loads are run in turn.
 *
 * Thread rule: one case at a time.
 */
#include "bench.h"
#include "bench_parts.h"
#include "bench_store.h"

#include "estimator/exchange/exchange.h"
#include "lab/private.h"

#include <kvterrace/load.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define COARSE_PROFILE     "profiles/smollm2-135m-instruct.json"
#define COARSE_DRIVE_BYTES (UINT64_C(256) << 20)

enum { COARSE_ENTRIES = 12, COARSE_ENTRIES_QUICK = 2, COARSE_ITERATIONS = 5 };

static const kvt_layout coarse_layout = {
    .layers = 30, .kv_heads = 3, .head_dim = 64, .dtype = KVT_DTYPE_BF16, .tokens = 256};

typedef struct coarse_bench {
    bench_report *report;
    uint32_t iterations, entries;
    uint64_t entry_bytes;
    kvt_store *store;
    kvt_queue *queue;
    kvt_key keys[COARSE_ENTRIES];
    kvt_view views[COARSE_ENTRIES];
    const kvt_view *pointers[COARSE_ENTRIES];
    char *source, *targets;
    kvt_load_quality said;
} coarse_bench;

/* One load: seconds and device bytes until all layers can be computed with, and until all is there.
 */
typedef struct coarse_times {
    double usable, whole;
    uint64_t usable_bytes, whole_bytes;
} coarse_times;

static uint64_t coarse_read(const coarse_bench *bench)
{
    kvt_device_stats stats = {.struct_size = sizeof stats};
    uint64_t bytes = 0;
    for (uint32_t i = 0; kvt_device_stats_get(bench->store, i, &stats) == KVT_OK; i++)
        bytes += stats.bytes_read;
    return bytes;
}

/* Waits for steps, and releases each as it comes. */
static kvt_status coarse_wait(kvt_load *load, uint32_t from, uint32_t steps)
{
    kvt_status status = KVT_OK;
    for (uint32_t i = from; i < steps && status == KVT_OK; i++) {
        status = kvt_load_wait(load, i + 1, KVT_NO_DEADLINE);
        kvt_load_release(load, i + 1);
    }
    return status;
}

static kvt_status coarse_load(coarse_bench *bench, uint32_t planes, coarse_times *times)
{
    const kvt_load_options options = {
        .struct_size = sizeof options, .deadline_ns = KVT_NO_DEADLINE, .coarse_planes = planes};
    kvt_status statuses[COARSE_ENTRIES];
    kvt_load *load = NULL;
    const uint64_t before = coarse_read(bench), began_ns = base_clock_ns();
    kvt_status status =
        kvt_load_begin(bench->queue, bench->keys, bench->pointers, bench->entries, &options, &load);
    if (status != KVT_OK) return status;
    status = coarse_wait(load, 0, coarse_layout.layers);
    times->usable = (double)(base_clock_ns() - began_ns) * 1e-9;
    times->usable_bytes = coarse_read(bench) - before;
    bench->said = (kvt_load_quality){.struct_size = sizeof bench->said};
    if (planes != 0 && status == KVT_OK) {
        status = kvt_load_quality_of(load, 0, &bench->said);
        if (status == KVT_OK)
            status = coarse_wait(load, coarse_layout.layers, kvt_load_total(load, NULL));
    }
    times->whole = (double)(base_clock_ns() - began_ns) * 1e-9;
    times->whole_bytes = coarse_read(bench) - before;
    const kvt_status ended = kvt_load_end(load, statuses, NULL);
    for (uint32_t i = 0; i < bench->entries && status == KVT_OK; i++)
        status = statuses[i];
    return status == KVT_OK ? ended : status;
}

static kvt_status coarse_open(coarse_bench *bench, const bench_options *given, const char *profile,
                              const char *variant)
{
    kvt_store_options options;
    kvt_store_options_init(&options);
    options.format = true;
    options.policy = "lru";
    options.limits.tick_seconds = 0;
    options.limits.put_staging_bytes = 0;
    options.tiers[KVT_TIER_SSD] = (kvt_tier_options){
        .devices = given->devices, .device_count = given->device_count, .weights_fixed = true};
    options.learning.profile_path = profile;
    options.learning.profile_foreign = true;
    options.learning.learn = false;
    options.loss.ladder = true;
    options.loss.ladder_layout = coarse_layout;
    options.loss.ladder_class = "pooled";
    options.loss.loss_limit = 0.1;
    kvt_status status = kvt_variant_parse(variant, &options.variant);
    if (status == KVT_OK)
        status =
            kvt_store_open(&options, &bench->store, bench->report->message, BENCH_MESSAGE_BYTES);
    if (status != KVT_OK) return status;
    status = kvt_queue_open(bench->store, NULL, &bench->queue);
    for (uint32_t i = 0; i < bench->entries && status == KVT_OK; i++) {
        /* The chain's first tokens, which are stored raw, lie in none of them. */
        const kvt_entry entry = {.struct_size = sizeof entry,
                                 .key = bench->keys[i],
                                 .layout = coarse_layout,
                                 .first_position = (i + 1) * coarse_layout.tokens};
        status = kvt_store_put(bench->store, &entry, KVT_PACKED(bench->source, bench->entry_bytes));
    }
    return status == KVT_OK ? kvt_store_flush(bench->store) : status;
}

/* Loads in turn, and their row. */
static kvt_status coarse_measure(coarse_bench *bench, const char *variant, uint32_t planes)
{
    static double plain[BENCH_ITERATIONS_MAX], usable[BENCH_ITERATIONS_MAX],
        refined[BENCH_ITERATIONS_MAX];
    coarse_times without = {0}, with = {0};
    char name[96] = "";
    kvt_status status = coarse_load(bench, 0, &without); /* not counted */
    for (uint32_t i = 0; i < bench->iterations && status == KVT_OK; i++) {
        status = coarse_load(bench, 0, &without);
        plain[i] = 1e3 * without.whole;
        if (status == KVT_OK) status = coarse_load(bench, planes, &with);
        usable[i] = 1e3 * with.usable;
        refined[i] = 1e3 * with.whole;
    }
    if (status != KVT_OK) return status;
    (void)kvt_variant_format(bench->said.coarse_variant, name, sizeof name);
    const bench_rate all = bench_rate_of(plain, bench->iterations);
    const bench_rate first = bench_rate_of(usable, bench->iterations);
    const bench_rate rest = bench_rate_of(refined, bench->iterations);
    json_t *row =
        json_pack("{s:s, s:s, s:o, s:o, s:f, s:f, s:f}", "variant", variant, "coarse", name, "loss",
                  bench_number(bench->said.loss), "coarse_loss",
                  bench_number(bench->said.coarse_loss), "time_ratio", first.median / all.median,
                  "bytes_ratio", (double)with.usable_bytes / (double)without.whole_bytes,
                  "read_ratio", (double)with.whole_bytes / (double)without.whole_bytes);
    row = bench_with_rate(row, "plain_ms", &all);
    row = bench_with_rate(row, "coarse_ms", &first);
    bench_report_row(bench->report, "coarse", bench_with_rate(row, "refined_ms", &rest));
    return KVT_OK;
}

static void coarse_close(coarse_bench *bench)
{
    if (bench->queue != NULL) kvt_queue_close(bench->queue);
    if (bench->store != NULL) kvt_store_close(bench->store);
    bench->queue = NULL;
    bench->store = NULL;
}

/* Brings the calibration into a profile of the case's own. */
static kvt_status coarse_profile(coarse_bench *bench, const char *path)
{
    kvt_profile *profile = NULL;
    char *message = bench->report->message;
    uint64_t rows;
    kvt_status status =
        kvt_profile_open(path, KVT_PROFILE_WRITE, &profile, message, BENCH_MESSAGE_BYTES);
    if (status == KVT_OK)
        status = exchange_import(profile, COARSE_PROFILE, NULL, "kvlab ablation", &rows, message,
                                 BENCH_MESSAGE_BYTES);
    kvt_profile_close(profile);
    return status;
}

static kvt_status coarse_forms(coarse_bench *bench, const bench_options *given, const char *path)
{
    static const struct {
        const char *variant;
        uint32_t planes;
    } forms[] = {{"planes:k8v8,g64", 1},
                 {"planes:k8v8,g64", 2},
                 {"planes:k8v8,g64", 3},
                 {"planes:k6v4,g64", 2}};
    kvt_status status = coarse_profile(bench, path);
    for (size_t i = 0; i < sizeof forms / sizeof forms[0] && status == KVT_OK; i++) {
        status = coarse_open(bench, given, path, forms[i].variant);
        if (status == KVT_OK) status = coarse_measure(bench, forms[i].variant, forms[i].planes);
        coarse_close(bench);
    }
    return bench_blame(bench->report, status, "coarse first", bench->report->message);
}

kvt_status bench_coarse_rows(const bench_options *options, bench_report *report)
{
    kvt_device_config own[BENCH_OWN_DRIVES];
    bench_options given = *options;
    char folder[] = "/tmp/kvlab-coarse-XXXXXX", path[64];
    if (access(COARSE_PROFILE, R_OK) != 0) { /* run elsewhere than in the source's folder */
        bench_report_row(report, "coarse",
                         json_pack("{s:s}", "left_out", COARSE_PROFILE " is not here"));
        return KVT_OK;
    }
    kvt_status status = bench_take_drives(&given, COARSE_DRIVE_BYTES, 80000, own, report);
    if (status != KVT_OK) return status;
    if (mkdtemp(folder) == NULL) return KVT_E_IO;
    snprintf(path, sizeof path, "%s/p.db", folder);
    static coarse_bench bench;
    bench = (coarse_bench){.report = report,
                           .iterations =
                               bench_repetitions(given.iterations, COARSE_ITERATIONS, given.quick),
                           .entries = given.quick ? COARSE_ENTRIES_QUICK : COARSE_ENTRIES};
    status = kvt_layout_bytes(&coarse_layout, &bench.entry_bytes);
    bench.source = bench_buffer(bench.entry_bytes);
    bench.targets = bench_buffer(bench.entries * bench.entry_bytes);
    if (bench.source == NULL || bench.targets == NULL) status = KVT_E_MEMORY;
    if (bench.source != NULL) codecs_kv_sample_fill(&coarse_layout, 1, bench.source);
    for (uint32_t i = 0; i < bench.entries && status == KVT_OK; i++) {
        bench.keys[i] = store_bench_key(i);
        bench.views[i] = kvt_view_packed(bench.targets + i * bench.entry_bytes, bench.entry_bytes);
        bench.pointers[i] = &bench.views[i];
    }
    if (status == KVT_OK) status = coarse_forms(&bench, &given, path);
    free(bench.source);
    free(bench.targets);
    (void)unlink(path);
    (void)rmdir(folder);
    return status;
}
