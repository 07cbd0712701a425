/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_gpu_site.c - memory, timing and rows of the case `gpu`, and the kernel that stands for an
 * engine. Thread rule: as bench_gpu.h.
 */
#include "bench_gpu.h"

#include <stdlib.h>
#include <string.h>

enum { SITE_TIMES_MOST = 64 };

#define SITE_PIECE (UINT64_C(64) << 20) /* pinned memory of a copy that is no measurement */

/* ---- rows ---- */

static json_t *site_number(double value)
{
    return value > 0 ? bench_number(value) : json_null();
}

static json_t *site_text(const char *text)
{
    return text != NULL ? json_string(text) : json_null();
}

void bench_gpu_add(gpu_bench *bench, const gpu_bench_row *row)
{
    const bool asked = row->measure != NULL && row->why == NULL;
    const bool met = row->most ? row->reached <= row->asked : row->reached >= row->asked;
    json_t *bits = row->bit_exact == 0 ? json_null() : json_boolean(row->bit_exact > 0);
    bench_report_row(
        bench->report, "gpu",
        json_pack("{s:i, s:s, s:o, s:o, s:o, s:i, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:s, s:o, "
                  "s:o, s:o}",
                  "bar", (int)bench->bar, "case", row->name, "variant", site_text(row->variant),
                  "side", site_text(row->side), "isa", site_text(row->isa), "entries",
                  (int)row->entries, "bytes_per_s", site_number(row->bytes_per_s), "traffic_ratio",
                  site_number(row->traffic_ratio), "link_ratio", site_number(row->link_ratio),
                  "cpu_s_per_gb", site_number(row->cpu_s_per_gb), "bit_exact", bits, "measure",
                  site_text(row->measure), "asked",
                  row->measure != NULL ? bench_number(row->asked) : json_null(), "bound",
                  row->most ? "most" : "least", "reached",
                  asked ? bench_number(row->reached) : json_null(), "met",
                  asked ? json_boolean(met && row->bit_exact >= 0) : json_null(), "not_run",
                  site_text(row->why)));
}

bool bench_gpu_late(gpu_bench *bench, const char *name)
{
    if (base_clock_ns() < bench->until_ns) return false;
    bench_gpu_add(bench, &(gpu_bench_row){.name = name, .why = "not run: the time is over"});
    return true;
}

/* ---- the driver ---- */

kvt_status bench_gpu_call(gpu_bench *bench, int error, const char *what)
{
    if (error == GPU_SUCCESS) return KVT_OK;
    char why[64];
    snprintf(why, sizeof why, "CUDA error %d", error);
    return bench_blame(bench->report,
                       error == GPU_OUT_OF_MEMORY  ? KVT_E_MEMORY
                       : gpu_error_is_fatal(error) ? KVT_E_GONE
                                                   : KVT_E_IO,
                       what, why);
}

kvt_status bench_gpu_memory(gpu_bench *bench, uint64_t bytes, gpu_address *address_out)
{
    return bench_gpu_call(bench, bench->site->driver.memory_allocate(address_out, bytes),
                          "memory of the GPU");
}

void bench_gpu_free(gpu_bench *bench, gpu_address *address)
{
    if (*address != 0) (void)bench->site->driver.memory_free(*address);
    *address = 0;
}

static kvt_status site_rest(gpu_bench *bench, gpu_way way, const char *what)
{
    return bench_gpu_call(bench, bench->site->driver.stream_wait(bench->site->streams[way]), what);
}

kvt_status bench_gpu_write(gpu_bench *bench, gpu_address target, const void *source, uint64_t bytes)
{
    gpu_host *host;
    const uint64_t piece = bytes < SITE_PIECE ? bytes : SITE_PIECE;
    kvt_status status = gpu_host_take(bench->site, piece, &host);
    if (status != KVT_OK) return bench_blame(bench->report, status, "pinned memory", "");
    for (uint64_t at = 0; at < bytes && status == KVT_OK; at += piece) {
        const uint64_t count = bytes - at < piece ? bytes - at : piece;
        memcpy(host->memory, (const uint8_t *)source + at, count);
        status = gpu_copy_bytes(bench->site, GPU_IN, target + at, host->memory, count);
        if (status == KVT_OK) status = site_rest(bench, GPU_IN, "a copy");
    }
    gpu_host_give(bench->site, host);
    return status;
}

kvt_status bench_gpu_read(gpu_bench *bench, void *target, gpu_address source, uint64_t bytes)
{
    gpu_host *host;
    const uint64_t piece = bytes < SITE_PIECE ? bytes : SITE_PIECE;
    kvt_status status = gpu_host_take(bench->site, piece, &host);
    if (status != KVT_OK) return bench_blame(bench->report, status, "pinned memory", "");
    for (uint64_t at = 0; at < bytes && status == KVT_OK; at += piece) {
        const uint64_t count = bytes - at < piece ? bytes - at : piece;
        uint8_t *from = (uint8_t *)(uintptr_t)(source + at);
        status = gpu_copy_rows(bench->site, GPU_OUT, VIEW_ROWS_PACKED(from, count), host->memory);
        if (status == KVT_OK) status = site_rest(bench, GPU_OUT, "a copy");
        if (status == KVT_OK) memcpy((uint8_t *)target + at, host->memory, count);
    }
    gpu_host_give(bench->site, host);
    return status;
}

kvt_status bench_gpu_time(gpu_bench *bench, uint32_t times, gpu_bench_work *work, void *context,
                          double *seconds_out)
{
    const gpu_driver *driver = &bench->site->driver;
    void *stream = bench->site->streams[GPU_IN];
    double samples[SITE_TIMES_MOST];
    kvt_status status = work(context);
    if (times > SITE_TIMES_MOST) times = SITE_TIMES_MOST;
    if (status == KVT_OK) status = site_rest(bench, GPU_IN, "the first run");
    for (uint32_t i = 0; i < times && status == KVT_OK; i++) {
        float milliseconds = 0;
        status = bench_gpu_call(bench, driver->event_record(bench->events[0], stream), "an event");
        if (status == KVT_OK) status = work(context);
        if (status == KVT_OK)
            status =
                bench_gpu_call(bench, driver->event_record(bench->events[1], stream), "an event");
        if (status == KVT_OK) status = site_rest(bench, GPU_IN, "a run");
        if (status == KVT_OK)
            status = bench_gpu_call(
                bench, bench->calls.elapsed(&milliseconds, bench->events[0], bench->events[1]),
                "the time of a run");
        samples[i] = (double)milliseconds / 1e3;
    }
    if (status == KVT_OK) *seconds_out = bench_rate_of(samples, times).median;
    return status;
}

/* ---- entries ---- */

void bench_gpu_sample(const kvt_layout *layout, uint32_t entry, void *target)
{
    codecs_kv_sample_fill(layout, 1 + entry % GPU_BENCH_SAMPLES, target);
}

uint32_t bench_gpu_block(uint64_t index, uint64_t count)
{
    uint64_t step = count / 2 + 1;
    for (;; step++) { /* coprime, so that each number comes once */
        uint64_t a = step, b = count;
        while (b != 0) {
            const uint64_t rest = a % b;
            a = b;
            b = rest;
        }
        if (a == 1) return (uint32_t)(index * step % count);
    }
}

/* ---- the kernel that stands for an engine ---- */

/* Each thread takes `turns` steps that depend on each other, and touches no memory: the word that
 * it could write is never 0. */
const char bench_gpu_spin_ptx[] = ".version 7.0\n"
                                  ".target sm_80\n"
                                  ".address_size 64\n"
                                  ".visible .entry " GPU_BENCH_SPIN "(\n"
                                  "\t.param .u64 spin_turns,\n"
                                  "\t.param .u64 spin_target\n"
                                  ")\n"
                                  "{\n"
                                  "\t.reg .pred %p<3>;\n"
                                  "\t.reg .b64 %rd<4>;\n"
                                  "\tld.param.u64 %rd1, [spin_turns];\n"
                                  "\tld.param.u64 %rd2, [spin_target];\n"
                                  "\tmov.u64 %rd3, 1;\n"
                                  "$SPIN:\n"
                                  "\tsetp.eq.s64 %p1, %rd1, 0;\n"
                                  "\t@%p1 bra $DONE;\n"
                                  "\tmul.lo.s64 %rd3, %rd3, 6364136223846793005;\n"
                                  "\tadd.s64 %rd3, %rd3, 1442695040888963407;\n"
                                  "\tadd.s64 %rd1, %rd1, -1;\n"
                                  "\tbra $SPIN;\n"
                                  "$DONE:\n"
                                  "\tsetp.ne.s64 %p2, %rd3, 0;\n"
                                  "\t@%p2 bra $END;\n"
                                  "\tst.global.u64 [%rd2], %rd3;\n"
                                  "$END:\n"
                                  "\tret;\n"
                                  "}\n";

kvt_status bench_gpu_spin(gpu_bench *bench, uint64_t turns, uint32_t blocks, uint32_t threads,
                          void *stream)
{
    const gpu_driver *driver = &bench->site->driver;
    uint64_t target = 0;
    void *parameters[] = {&turns, &target};
    int error = GPU_SUCCESS;
    if (bench->spin_module == NULL) {
        error = driver->module_load(&bench->spin_module, bench_gpu_spin_ptx);
        if (error == GPU_SUCCESS)
            error = driver->module_function(&bench->spin, bench->spin_module, GPU_BENCH_SPIN);
    }
    if (error == GPU_SUCCESS)
        error =
            driver->launch(bench->spin, blocks, 1, 1, threads, 1, 1, 0, stream, parameters, NULL);
    return bench_gpu_call(bench, error, "the kernel that stands for an engine");
}
