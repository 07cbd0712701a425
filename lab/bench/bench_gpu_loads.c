/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_gpu_loads.c - loads of a context into pages of a GPU: from DRAM, beside gets that the
 * processor decodes on all cores, from throttled drives, and layer by layer beside a kernel that
 * computes for as long as a layer takes to load.
 *
 * Thread rule: as bench_gpu.h; the gets of the processor have threads of their own.
 */
#include "bench_gpu.h"
#include "bench_parts.h"

#include <kvterrace/queue.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LOADS_TIMES = 5, LOADS_TIMES_QUICK = 2, LOADS_THREADS_MAX = 256, LOADS_TIMES_MOST = 32 };

#define LOADS_PLANES "planes:k4v4,g64"

/* What loads of a whole context take, in the median. */
typedef struct loads_figures {
    double seconds, cpu_seconds;
    double link_seconds; /* of copies of as many bytes as crossed the link */
    bool exact;
} loads_figures;

static uint32_t loads_times(const gpu_bench *bench)
{
    return bench->options->quick ? LOADS_TIMES_QUICK : LOADS_TIMES;
}

static uint64_t loads_bytes_in(const gpu_bench_store *store)
{
    kvt_gpu_stats stats = {.struct_size = sizeof stats};
    return kvt_gpu_stats_get(store->store, 0, &stats) == KVT_OK ? stats.bytes_in : 0;
}

/* The first and the last entry. */
static kvt_status loads_same(gpu_bench_store *store, bool *exact_out)
{
    uint8_t *packed = malloc(2 * store->entry_bytes);
    bool first = false, last = false;
    if (packed == NULL) return KVT_E_MEMORY;
    kvt_status status = bench_gpu_store_same(store, 0, packed, &first);
    if (status == KVT_OK) status = bench_gpu_store_same(store, store->entries - 1, packed, &last);
    *exact_out = first && last;
    free(packed);
    return status;
}

/* ---- the processor's way ---- */

typedef struct loads_get {
    gpu_bench_store *store;
    atomic_uint next;
    _Atomic kvt_status status;
} loads_get;

static void *loads_get_some(void *argument)
{
    loads_get *get = argument;
    for (;;) {
        const uint32_t entry = atomic_fetch_add(&get->next, 1);
        if (entry >= get->store->entries) return NULL;
        const kvt_status status = kvt_store_get(get->store->store, &get->store->keys[entry],
                                                &get->store->views[entry], KVT_NO_DEADLINE, NULL);
        if (status != KVT_OK) atomic_store(&get->status, status);
    }
}

/* Gets of all entries into the pages, decoded by all cores. */
static kvt_status loads_by_processor(gpu_bench_store *store, gpu_bench_load *load)
{
    pthread_t threads[LOADS_THREADS_MAX];
    loads_get get = {.store = store, .status = KVT_OK};
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    const uint32_t wanted = cores > 1 && cores < LOADS_THREADS_MAX ? (uint32_t)cores - 1 : 0;
    uint32_t started = 0;
    const uint64_t from_ns = base_clock_ns();
    while (started < wanted && pthread_create(&threads[started], NULL, loads_get_some, &get) == 0)
        started++;
    (void)loads_get_some(&get);
    for (uint32_t i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    load->seconds = (double)(base_clock_ns() - from_ns) / 1e9;
    return bench_blame(store->bench->report, atomic_load(&get.status), "a get into pages", "");
}

static kvt_status loads_measure(gpu_bench_store *store, bool by_gpu, loads_figures *figures)
{
    double seconds[LOADS_TIMES_MOST], cpu[LOADS_TIMES_MOST];
    const uint32_t times = loads_times(store->bench);
    uint64_t bytes = 0;
    kvt_status status = KVT_OK;
    for (uint32_t i = 0; i <= times && status == KVT_OK; i++) { /* the first one warms up */
        const uint64_t before = loads_bytes_in(store);
        const double began = bench_process_seconds();
        gpu_bench_load load = {.turns = 0};
        status = by_gpu ? bench_gpu_store_load(store, &load) : loads_by_processor(store, &load);
        if (i == 0) continue;
        seconds[i - 1] = load.seconds;
        cpu[i - 1] = bench_process_seconds() - began;
        bytes = loads_bytes_in(store) - before;
    }
    if (status != KVT_OK) return status;
    *figures = (loads_figures){.seconds = bench_rate_of(seconds, times).median,
                               .cpu_seconds = bench_rate_of(cpu, times).median,
                               .link_seconds = (double)bytes / store->bench->link_bytes_per_s};
    return loads_same(store, &figures->exact);
}

/* The columns that figures fill. */
static gpu_bench_row loads_row(const gpu_bench_store *store, const char *name, const char *variant,
                               const loads_figures *figures)
{
    const double made = (double)store->entry_bytes * store->entries;
    return (gpu_bench_row){.name = name,
                           .variant = variant,
                           .side = "both",
                           .isa = "cuda",
                           .entries = store->entries,
                           .bytes_per_s = made / figures->seconds,
                           .link_ratio = figures->link_seconds / figures->seconds,
                           .cpu_s_per_gb = figures->cpu_seconds / (made / 1e9),
                           .bit_exact = figures->exact ? 1 : -1};
}

/* ---- bar 4 ---- */

static kvt_status memory_loads(gpu_bench *bench, const char *variant, double asked)
{
    gpu_bench_store store;
    loads_figures gpu = {0}, processor = {0};
    kvt_status status = bench_gpu_store_open(bench, &bench->own.shape, bench->own.context, variant,
                                             NULL, 0, KVT_TIER_DRAM, &store);
    if (status == KVT_OK) status = loads_measure(&store, true, &gpu);
    if (status == KVT_OK) status = loads_measure(&store, false, &processor);
    if (status == KVT_OK) {
        gpu_bench_row row = loads_row(&store, "DRAM to pages", variant, &gpu);
        row.measure = "link_ratio";
        row.asked = asked;
        row.reached = row.link_ratio;
        bench_gpu_add(bench, &row);
        gpu_bench_row beside = loads_row(&store, "DRAM to pages, all cores", variant, &processor);
        beside.isa = codecs_cpu_name(codecs_cpu_level());
        bench_gpu_add(bench, &beside);
        row.name = "processor time of both";
        row.measure = "cpu_s_per_gb ratio";
        row.asked = 0.1;
        row.most = true;
        row.reached = row.cpu_s_per_gb / beside.cpu_s_per_gb;
        bench_gpu_add(bench, &row);
    }
    bench_gpu_store_close(&store);
    return status;
}

kvt_status bench_gpu_memory_loads(gpu_bench *bench)
{
    const kvt_status status = memory_loads(bench, LOADS_PLANES, 0.85);
    return status == KVT_OK ? memory_loads(bench, "raw", 0.9) : status;
}

/* ---- bar 5 ---- */

static kvt_status drive_loads(gpu_bench *bench, const char *variant, double *seconds_out,
                              uint64_t *bytes_out)
{
    const kvt_layout *shape = &bench->own.shape;
    const uint32_t entries =
        bench->options->quick ? (bench->own.context + 1) / 2 : bench->own.context;
    kvt_device_config devices[BENCH_OWN_DRIVES];
    bench_options options = {.quick = bench->options->quick};
    loads_figures figures = {0};
    gpu_bench_store store;
    uint64_t bytes = 0;
    double sum = 0;
    kvt_status status = kvt_layout_bytes(shape, &bytes);
    if (status == KVT_OK)
        status = bench_take_drives(&options, codecs_align(entries * bytes, 1 << 20) + (64 << 20), 0,
                                   devices, bench->report);
    if (status != KVT_OK) return status;
    for (int i = 0; i < BENCH_OWN_DRIVES; i++)
        sum += (double)devices[i].read_bytes_per_s;
    status = bench_gpu_store_open(bench, shape, entries, variant, devices, BENCH_OWN_DRIVES,
                                  KVT_TIER_SSD, &store);
    if (status == KVT_OK) status = loads_measure(&store, true, &figures);
    if (status == KVT_OK) {
        gpu_bench_row row = loads_row(&store, "SSD to pages", variant, &figures);
        row.measure = "share of the drives' sum";
        row.asked = 0.93;
        row.reached = (double)store.stored_bytes / figures.seconds / sum;
        bench_gpu_add(bench, &row);
        *seconds_out = figures.seconds;
        *bytes_out = store.stored_bytes;
    }
    bench_gpu_store_close(&store);
    return status;
}

kvt_status bench_gpu_drive_loads(gpu_bench *bench)
{
    double raw = 0, planes = 0;
    uint64_t raw_bytes = 0, plane_bytes = 0;
    kvt_status status = drive_loads(bench, "raw", &raw, &raw_bytes);
    if (status == KVT_OK) status = drive_loads(bench, LOADS_PLANES, &planes, &plane_bytes);
    if (status != KVT_OK) return status;
    const double apart = planes / raw / ((double)plane_bytes / (double)raw_bytes) - 1;
    bench_gpu_add(bench, &(gpu_bench_row){.name = "SSD to pages",
                                          .variant = LOADS_PLANES " over raw",
                                          .measure = "times apart from bytes",
                                          .asked = 0.05,
                                          .reached = apart < 0 ? -apart : apart,
                                          .most = true});
    return KVT_OK;
}

/* ---- bar 6 ---- */

/* Turns of the engine's kernel that take so long on so many blocks. */
static kvt_status layers_turns(gpu_bench *bench, gpu_bench_load *load, double seconds)
{
    uint64_t turns = 1 << 14;
    kvt_status status = KVT_OK;
    load->turns = turns;
    for (int i = 0; i < 3 && status == KVT_OK; i++) { /* each time closer */
        const gpu_driver *driver = &bench->site->driver;
        void *stream = bench->site->streams[GPU_IN];
        float milliseconds = 0;
        int error = driver->event_record(bench->events[0], stream);
        status = bench_gpu_call(bench, error, "an event");
        if (status == KVT_OK)
            status = bench_gpu_spin(bench, load->turns, load->blocks, load->threads, stream);
        if (status != KVT_OK) break;
        error = driver->event_record(bench->events[1], stream);
        if (error == GPU_SUCCESS) error = driver->stream_wait(stream);
        if (error == GPU_SUCCESS)
            error = bench->calls.elapsed(&milliseconds, bench->events[0], bench->events[1]);
        status = bench_gpu_call(bench, error, "the engine's kernel");
        const double took = milliseconds > 0.001f ? (double)milliseconds / 1e3 : 1e-6;
        load->turns = (uint64_t)((double)load->turns * seconds / took) + 1;
    }
    return status;
}

/* Loads a layer at a time while the engine computes as long as a layer takes; the rest of the time
 * it was blocked. */
static kvt_status layers_beside(gpu_bench_store *store, const char *name, bool all, double loading)
{
    gpu_bench *bench = store->bench;
    gpu_bench_load load = {.blocks = all ? 2 * bench->multiprocessors : 1,
                           .threads = all ? 1024 : 32};
    double seconds[LOADS_TIMES_MOST];
    const uint32_t times = loads_times(bench);
    kvt_status status = layers_turns(bench, &load, loading / store->layout.layers);
    for (uint32_t i = 0; i < times && status == KVT_OK; i++) {
        status = bench_gpu_store_load(store, &load);
        seconds[i] = load.seconds;
    }
    if (status != KVT_OK) return status;
    const double blocked = bench_rate_of(seconds, times).median - loading;
    bench_gpu_add(bench, &(gpu_bench_row){.name = name,
                                          .variant = LOADS_PLANES,
                                          .side = "both",
                                          .isa = "cuda",
                                          .entries = store->entries,
                                          .measure = "blocked over loading",
                                          .asked = 0.1,
                                          .reached = blocked > 0 ? blocked / loading : 0,
                                          .most = true});
    return KVT_OK;
}

kvt_status bench_gpu_layers(gpu_bench *bench)
{
    gpu_bench_store store;
    double seconds[LOADS_TIMES_MOST], ends[LOADS_TIMES_MOST];
    const uint32_t times = loads_times(bench);
    kvt_status status = bench_gpu_store_open(bench, &bench->own.shape, bench->own.context,
                                             LOADS_PLANES, NULL, 0, KVT_TIER_DRAM, &store);
    for (uint32_t i = 0; i <= times && status == KVT_OK; i++) { /* the first one warms up */
        gpu_bench_load load = {.turns = 0};
        status = bench_gpu_store_load(&store, &load);
        if (i == 0) continue;
        seconds[i - 1] = load.seconds;
        ends[i - 1] = (double)load.end_ns / 1e3;
    }
    if (status == KVT_OK) {
        const double loading = bench_rate_of(seconds, times).median;
        status = layers_beside(&store, "layers beside one block", false, loading);
        if (status == KVT_OK)
            status = layers_beside(&store, "layers beside every processor", true, loading);
        if (status == KVT_OK)
            bench_gpu_add(bench, &(gpu_bench_row){.name = "the end behind the last event",
                                                  .variant = LOADS_PLANES,
                                                  .side = "both",
                                                  .isa = "cuda",
                                                  .entries = store.entries,
                                                  .measure = "us",
                                                  .asked = 50,
                                                  .reached = bench_rate_of(ends, times).median,
                                                  .most = true});
    }
    bench_gpu_store_close(&store);
    return status;
}
