/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_gpu.c - the case `gpu`: copies within the GPU and to it, then the bars. A bar that fails is
 * a row that says why, and the others go on, unless the GPU is gone.
 *
 * Thread rule: as bench_gpu.h.
 */
#include "bench_gpu.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

enum { GPU_MULTIPROCESSORS = 16, GPU_TIMING = 0 }; /* an attribute; flags of an event */

#define GPU_COPY_BYTES (UINT64_C(512) << 20)
#define GPU_LINK_BYTES (UINT64_C(256) << 20)
/* Of 8 minutes and of one: what has begun ends. */
enum { GPU_SECONDS = 420, GPU_SECONDS_QUICK = 80 };

static const struct gpu_bar {
    const char *name;
    kvt_status (*run)(gpu_bench *bench);
} gpu_bars[] = {
    {"decode", bench_gpu_decode},
    {"entropy", bench_gpu_entropy},
    {"check", bench_gpu_check},
    {"DRAM to pages", bench_gpu_memory_loads},
    {"SSD to pages", bench_gpu_drive_loads},
    {"layers", bench_gpu_layers},
    {"modules", bench_gpu_modules},
    {"faults", bench_gpu_faults},
};

enum { GPU_BARS = sizeof gpu_bars / sizeof gpu_bars[0] };

bool bench_gpu_answers(char *reason, size_t reason_size)
{
    gpu_driver driver;
    int count = 0;
    memset(&driver, 0, sizeof driver);
    if (!gpu_driver_load(&driver, &count, reason, reason_size)) return false;
    gpu_driver_unload(&driver);
    return true;
}

/* ---- the GPU ---- */

static bool gpu_find_calls(gpu_bench *bench)
{
    void *library = bench->site->driver.library;
    const struct {
        const char *name;
        void *call;
    } wanted[] = {{"cuMemcpyDtoDAsync_v2", &bench->calls.copy_within},
                  {"cuEventElapsedTime", &bench->calls.elapsed},
                  {"cuDeviceGetAttribute", &bench->calls.attribute}};
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        void *symbol = dlsym(library, wanted[i].name);
        if (symbol == NULL) return false;
        memcpy(wanted[i].call, &symbol, sizeof symbol);
    }
    return true;
}

static kvt_status gpu_open(gpu_bench *bench)
{
    char reason[GPU_BENCH_TEXT] = "";
    kvt_status status =
        gpu_site_open(0, GPU_ROOM_BYTES, GPU_ROOM_BYTES, &bench->site, reason, sizeof reason);
    if (status != KVT_OK) return bench_blame(bench->report, status, "no GPU", reason);
    const gpu_driver *driver = &bench->site->driver;
    int count = 1;
    char name[96] = "";
    if (!gpu_find_calls(bench))
        return bench_blame(bench->report, KVT_E_UNSUPPORTED, "the driver", "it lacks a call");
    status = bench_gpu_call(bench, driver->context_push(bench->site->context), "its context");
    bench->entered = status == KVT_OK;
    for (int i = 0; i < 2 && status == KVT_OK; i++)
        status =
            bench_gpu_call(bench, driver->event_create(&bench->events[i], GPU_TIMING), "an event");
    if (status == KVT_OK)
        status = bench_gpu_call(
            bench, bench->calls.attribute(&count, GPU_MULTIPROCESSORS, bench->site->device),
            "its multiprocessors");
    bench->multiprocessors = count > 0 ? (uint32_t)count : 1;
    (void)driver->device_name(name, sizeof name - 1, bench->site->device);
    if (status == KVT_OK)
        bench_report_add(bench->report,
                         json_pack("{s:s, s:i}", "device", name, "multiprocessors", count));
    return status;
}

static void gpu_close(gpu_bench *bench)
{
    void *ours;
    if (bench->site == NULL) return;
    const gpu_driver *driver = &bench->site->driver;
    for (int i = 0; i < 2; i++)
        if (bench->events[i] != NULL) (void)driver->event_destroy(bench->events[i]);
    if (bench->spin_module != NULL) (void)driver->module_unload(bench->spin_module);
    if (bench->entered) (void)driver->context_pop(&ours);
    gpu_site_close(bench->site);
}

/* ---- copies ---- */

typedef struct gpu_copy {
    gpu_bench *bench;
    gpu_address from, to;
    gpu_host *host;
    uint64_t bytes;
} gpu_copy;

static kvt_status copy_run(void *context)
{
    gpu_copy *copy = context;
    gpu_bench *bench = copy->bench;
    if (copy->host != NULL)
        return gpu_copy_bytes(bench->site, GPU_IN, copy->to, copy->host->memory, copy->bytes);
    return bench_gpu_call(
        bench,
        bench->calls.copy_within(copy->to, copy->from, copy->bytes, bench->site->streams[GPU_IN]),
        "a copy within the GPU");
}

/* Copies of the sizes that are asked for, or of the entries of a small shape. */
static kvt_status gpu_measure_copies(gpu_bench *bench)
{
    const bool whole = bench->own.decode_bytes >= GPU_COPY_BYTES;
    const uint32_t times = bench->options->quick ? 5 : 15;
    gpu_copy within = {.bench = bench, .bytes = whole ? GPU_COPY_BYTES : bench->own.decode_bytes};
    gpu_copy link = {.bench = bench, .bytes = whole ? GPU_LINK_BYTES : bench->own.decode_bytes};
    double seconds = 0;
    kvt_status status = bench_gpu_memory(bench, within.bytes, &within.from);
    if (status == KVT_OK) status = bench_gpu_memory(bench, within.bytes, &within.to);
    if (status == KVT_OK) status = gpu_host_take(bench->site, link.bytes, &link.host);
    if (status == KVT_OK) {
        memset(link.host->memory, 1, link.bytes);
        status = bench_gpu_time(bench, times, copy_run, &within, &seconds);
    }
    if (status == KVT_OK) {
        bench->traffic_bytes_per_s = 2 * (double)within.bytes / seconds;
        link.to = within.to;
        status = bench_gpu_time(bench, times, copy_run, &link, &seconds);
    }
    if (status == KVT_OK) {
        bench->link_bytes_per_s = (double)link.bytes / seconds;
        bench_report_add(bench->report, json_pack("{s:f, s:f}", "copy_traffic_bytes_per_s",
                                                  bench->traffic_bytes_per_s, "link_bytes_per_s",
                                                  bench->link_bytes_per_s));
    }
    gpu_host_give(bench->site, link.host);
    bench_gpu_free(bench, &within.from);
    bench_gpu_free(bench, &within.to);
    return status;
}

/* ---- the case ---- */

static void gpu_take_options(gpu_bench *bench, const bench_options *options)
{
    const bench_gpu_options *own = options->own;
    if (own != NULL) bench->own = *own;
    bench_gpu_options *wanted = &bench->own;
    if (wanted->shape.layers == 0)
        wanted->shape = (kvt_layout){
            .layers = 32, .kv_heads = 8, .head_dim = 128, .dtype = KVT_DTYPE_BF16, .tokens = 256};
    if (wanted->decode_bytes == 0) wanted->decode_bytes = GPU_COPY_BYTES;
    if (wanted->context == 0) wanted->context = 32;
    if (wanted->seconds == 0) wanted->seconds = options->quick ? GPU_SECONDS_QUICK : GPU_SECONDS;
    if (wanted->loads == 0) wanted->loads = options->quick ? 1000 : 10000;
    if (wanted->loads_seconds <= 0) wanted->loads_seconds = options->quick ? 15 : 120;
}

static kvt_status gpu_run(const bench_options *options, bench_report *report)
{
    gpu_bench bench = {.options = options, .report = report, .began_ns = base_clock_ns()};
    gpu_take_options(&bench, options);
    bench.until_ns = bench.began_ns + bench.own.seconds * UINT64_C(1000000000);
    kvt_status status = gpu_open(&bench);
    if (status == KVT_OK && bench.own.bar == 0) status = gpu_measure_copies(&bench);
    for (uint32_t i = 0; i < GPU_BARS && status == KVT_OK; i++) {
        char why[BENCH_MESSAGE_BYTES];
        if (bench.own.bar != 0 && bench.own.bar != i + 1) continue;
        (void)bench_tell(options, i, GPU_BARS, gpu_bars[i].name);
        bench.bar = i + 1;
        report->message[0] = '\0';
        if (bench_gpu_late(&bench, gpu_bars[i].name)) continue;
        status = gpu_bars[i].run(&bench);
        if (status == KVT_OK) continue;
        snprintf(why, sizeof why, "not run: %.400s",
                 report->message[0] != '\0' ? report->message : kvt_status_text(status));
        bench_gpu_add(&bench, &(gpu_bench_row){.name = gpu_bars[i].name, .why = why});
        if (status != KVT_E_GONE) status = KVT_OK; /* the other bars go on */
    }
    if (bench.bar != 0)
        bench_report_set(report, "seconds",
                         json_real((double)(base_clock_ns() - bench.began_ns) / 1e9));
    gpu_close(&bench);
    return status;
}

const bench_case bench_gpu_case = {
    .name = "gpu",
    .schema = "kvterrace-bench-gpu-1",
    .tables =
        (const document_table[]){
            {"", "device copy_traffic_bytes_per_s link_bytes_per_s seconds"},
            {"gpu", "bar case variant side isa entries bytes_per_s traffic_ratio link_ratio "
                    "cpu_s_per_gb bit_exact measure asked bound reached met not_run"},
            {"faults", "variant loads flips copies launches deadlines right wrong failed"},
            {0}},
    .run = gpu_run,
};
