/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_gpu_faults.c - thousands of loads of which most meet a fault, drawn by a seed: a bit that
 * flips on the way from the device, a call of the driver that fails, a deadline that passes. The
 * pages hold other bytes before each load, and are compared after it: an entry that is said to be
 * there must be. What a store takes of the driver is counted until it is closed.
 *
 *     the device   a stand-in, memory with a bit that flips in one of the reads to come
 *     the driver   the store's own table of calls, in which some go through this file first
 *
 * Thread rule: as bench_gpu.h; the store's threads call the device and the driver.
 */
#include "bench_gpu.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum {
    FAULTS_ENTRIES = 6,
    FAULTS_VARIANTS = 5,
    FAULTS_REFUSED = 1, /* an error that ends one call */
    FAULTS_READS = 24,  /* a fault meets one of so many reads or calls to come */
    FAULTS_ALIGN = 4096
};

#define FAULTS_BACKEND "bench-gpu-memory"
/* Of each variant. */
#define FAULTS_SHARE(loads) (((loads) + FAULTS_VARIANTS - 1) / FAULTS_VARIANTS)
#define FAULTS_LOADS(bench) FAULTS_SHARE((bench)->own.loads)
#define FAULTS_DEADLINE_NS  UINT64_C(400000)

typedef enum faults_kind {
    FAULTS_NONE,
    FAULTS_FLIP,
    FAULTS_COPY,
    FAULTS_LAUNCH,
    FAULTS_DEADLINE,
    FAULTS_KINDS
} faults_kind;

/* One set of faults at a time, for the device and the driver have no context. */
static struct {
    gpu_driver driver; /* as it was */
    atomic_int flip;   /* reads until a bit flips; 0: none */
    atomic_uint bit;   /* which */
    atomic_int copy;   /* copies until one fails; 0: none */
    atomic_int launch; /* launches */
    atomic_int memory; /* pieces of the GPU's memory that the store has */
    atomic_int pinned; /* and of pinned memory */
} faults;

/* Whether the count of things to come has come to its end. */
static bool faults_now(atomic_int *count)
{
    int left = atomic_load(count);
    while (left > 0 && !atomic_compare_exchange_weak(count, &left, left - 1))
        ;
    return left == 1;
}

/* ---- the device ---- */

typedef struct faults_device {
    kvt_device device;
    uint8_t *memory;
} faults_device;

static kvt_status faults_submit(kvt_device *device, kvt_io *io)
{
    uint8_t *at = ((faults_device *)device)->memory + io->offset;
    io->status = KVT_OK;
    io->submitted_ns = base_clock_ns();
    if (io->kind == KVT_IO_WRITE) {
        memcpy(at, io->buffer, io->bytes);
    } else {
        memcpy(io->buffer, at, io->bytes);
        if (faults_now(&faults.flip)) {
            const uint64_t bit = atomic_load(&faults.bit) % (8 * (uint64_t)io->bytes);
            ((uint8_t *)io->buffer)[bit / 8] ^= (uint8_t)(1u << bit % 8);
        }
    }
    io->finished_ns = base_clock_ns() + 1;
    return KVT_OK;
}

static void faults_device_close(kvt_device *device)
{
    free(((faults_device *)device)->memory);
    free(device);
}

static kvt_status faults_device_open(const kvt_device_config *config, kvt_device **device_out,
                                     char *message, size_t message_size);

static const kvt_device_ops faults_ops = {.struct_size = sizeof faults_ops,
                                          .abi_version = KVT_DEVICE_ABI,
                                          .name = FAULTS_BACKEND,
                                          .open = faults_device_open,
                                          .close = faults_device_close,
                                          .submit = faults_submit};

static kvt_status faults_device_open(const kvt_device_config *config, kvt_device **device_out,
                                     char *message, size_t message_size)
{
    faults_device *own = calloc(1, sizeof *own);
    uint8_t *memory = aligned_alloc(FAULTS_ALIGN, config->capacity_bytes);
    (void)message;
    (void)message_size;
    if (own == NULL || memory == NULL) {
        free(own);
        free(memory);
        return KVT_E_MEMORY;
    }
    memset(memory, 0, config->capacity_bytes);
    own->memory = memory;
    own->device.ops = &faults_ops;
    own->device.facts = (kvt_device_facts){.capacity_bytes = config->capacity_bytes,
                                           .align_bytes = 64,
                                           .request_bytes_max = 1 << 20,
                                           .depth_max = 1,
                                           .engine = "memcpy",
                                           .identity = FAULTS_BACKEND};
    memcpy(own->device.name, config->name, strlen(config->name));
    *device_out = &own->device;
    return KVT_OK;
}

static const kvt_device_ops *faults_find(const char *backend)
{
    return strcmp(backend, FAULTS_BACKEND) == 0 ? &faults_ops : NULL;
}

/* ---- the driver ---- */

static int faults_copy_in(gpu_address target, const void *source, size_t bytes, void *stream)
{
    if (faults_now(&faults.copy)) return FAULTS_REFUSED;
    return faults.driver.copy_in(target, source, bytes, stream);
}

static int faults_launch(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                         unsigned block_x, unsigned block_y, unsigned block_z,
                         unsigned shared_bytes, void *stream, void **parameters, void **extra)
{
    if (faults_now(&faults.launch)) return FAULTS_REFUSED;
    return faults.driver.launch(function, grid_x, grid_y, grid_z, block_x, block_y, block_z,
                                shared_bytes, stream, parameters, extra);
}

static int faults_allocate(gpu_address *address, size_t bytes)
{
    const int error = faults.driver.memory_allocate(address, bytes);
    if (error == GPU_SUCCESS) atomic_fetch_add(&faults.memory, 1);
    return error;
}

static int faults_free(gpu_address address)
{
    atomic_fetch_sub(&faults.memory, 1);
    return faults.driver.memory_free(address);
}

static int faults_host_allocate(void **memory, size_t bytes, unsigned flags)
{
    const int error = faults.driver.host_allocate(memory, bytes, flags);
    if (error == GPU_SUCCESS) atomic_fetch_add(&faults.pinned, 1);
    return error;
}

static int faults_host_free(void *memory)
{
    atomic_fetch_sub(&faults.pinned, 1);
    return faults.driver.host_free(memory);
}

/* Opens the store's site before anything uses it, and puts this file in front of its driver. */
static kvt_status faults_take_driver(gpu_bench_store *store)
{
    gpu_site *site = NULL;
    const kvt_status status = gpu_sites_take(&store->store->gpus, 0, &site);
    if (status != KVT_OK) return bench_blame(store->bench->report, status, "the store's GPU", "");
    faults.driver = site->driver;
    site->driver.copy_in = faults_copy_in;
    site->driver.launch = faults_launch;
    site->driver.memory_allocate = faults_allocate;
    site->driver.memory_free = faults_free;
    site->driver.host_allocate = faults_host_allocate;
    site->driver.host_free = faults_host_free;
    return KVT_OK;
}

/* ---- loads ---- */

typedef struct faults_run {
    gpu_bench_store store;
    uint8_t *poison, *pages, *found;
    uint8_t *wanted[FAULTS_ENTRIES]; /* what the store's variant decodes to */
    uint64_t seed, dice;
    uint64_t first, loads, of_kind[FAULTS_KINDS], right, wrong, failed;
} faults_run;

static uint64_t faults_draw(faults_run *run, uint64_t below)
{
    run->dice += UINT64_C(0x9E3779B97F4A7C15);
    return lab_mix(run->dice) % below;
}

static void faults_clear(void)
{
    atomic_store(&faults.flip, 0);
    atomic_store(&faults.copy, 0);
    atomic_store(&faults.launch, 0);
}

/* Draws a fault for the load to come. Returns the load's deadline. */
static uint64_t faults_arm(faults_run *run)
{
    const faults_kind kind = (faults_kind)faults_draw(run, FAULTS_KINDS);
    const int after = 1 + (int)faults_draw(run, FAULTS_READS);
    run->of_kind[kind]++;
    atomic_store(&faults.bit, (unsigned)faults_draw(run, UINT32_MAX));
    if (kind == FAULTS_FLIP) atomic_store(&faults.flip, after);
    if (kind == FAULTS_COPY) atomic_store(&faults.copy, after);
    if (kind == FAULTS_LAUNCH) atomic_store(&faults.launch, 1 + after % 4);
    return kind == FAULTS_DEADLINE ? base_clock_ns() + faults_draw(run, FAULTS_DEADLINE_NS)
                                   : KVT_NO_DEADLINE;
}

/* One load of some of the entries; all statuses of those that were not asked for are misses. */
static kvt_status faults_load(faults_run *run)
{
    gpu_bench_store *store = &run->store;
    kvt_load_options options = {.struct_size = sizeof options};
    kvt_load *load = NULL;
    run->dice = lab_mix(run->seed << 32 | (run->first + run->loads)); /* as if none were before */
    const uint32_t count = 1 + (uint32_t)faults_draw(run, store->entries);
    for (uint32_t i = 0; i < store->entries; i++)
        store->statuses[i] = KVT_MISS;
    options.deadline_ns = faults_arm(run);
    kvt_status status =
        kvt_load_begin(store->queue, store->keys, store->pointers, count, &options, &load);
    for (uint32_t layer = 0; layer < store->layout.layers && status == KVT_OK; layer++) {
        status = kvt_load_wait_layer(load, layer, store->stream);
        kvt_load_release(load, layer + 1);
    }
    (void)kvt_load_end(load, store->statuses, NULL);
    faults_clear();
    run->loads++;
    return status == KVT_E_GONE || status == KVT_E_MEMORY ? status : KVT_OK;
}

/* Compares the pages of the entries that are said to be there, and brings those back that are not:
 * a fault that a get finds, too, may have taken the record. */
static kvt_status faults_judge(faults_run *run)
{
    gpu_bench_store *store = &run->store;
    kvt_status status = bench_gpu_call(
        store->bench, store->bench->site->driver.stream_wait(store->stream), "the engine's stream");
    if (status == KVT_OK)
        status = bench_gpu_read(store->bench, run->pages, store->pages, store->page_bytes);
    for (uint32_t i = 0; i < store->entries && status == KVT_OK; i++) {
        kvt_view view = store->views[i];
        view.base[0] = run->pages;
        if (store->statuses[i] == KVT_OK) {
            view_gather_entry(&view, &store->layout, run->found);
            const bool same = memcmp(run->found, run->wanted[i], store->entry_bytes) == 0;
            run->right += same;
            run->wrong += !same;
        } else {
            run->failed += store->statuses[i] != KVT_MISS;
            if (kvt_store_exists(store->store, &store->keys[i]) == KVT_MISS)
                status = bench_gpu_store_put(store, i);
            if (status == KVT_BUSY) status = KVT_OK;
        }
    }
    return status;
}

static kvt_status faults_begin(faults_run *run, gpu_bench *bench, const char *variant)
{
    kvt_layout layout = bench->own.shape;
    uint64_t bytes;
    if (layout.layers > 4) layout.layers = 4;
    if (layout.kv_heads > 2) layout.kv_heads = 2;
    if (layout.head_dim > 64) layout.head_dim = 64;
    if (layout.tokens > 64) layout.tokens = 64;
    kvt_status status = kvt_layout_bytes(&layout, &bytes);
    if (status != KVT_OK) return status;
    const kvt_device_config device = {
        .struct_size = sizeof device,
        .name = "flips",
        .backend = FAULTS_BACKEND,
        .capacity_bytes = codecs_align(FAULTS_ENTRIES * bytes * 4 + (8 << 20), FAULTS_ALIGN)};
    tiers_stand_in = faults_find;
    status = bench_gpu_store_open(bench, &layout, FAULTS_ENTRIES, variant, &device, 1,
                                  KVT_TIER_DRAM, &run->store);
    run->poison = malloc(run->store.page_bytes);
    run->pages = malloc(run->store.page_bytes);
    run->found = malloc(bytes);
    if (run->poison == NULL || run->pages == NULL || run->found == NULL) return KVT_E_MEMORY;
    memset(run->poison, 0xa5, run->store.page_bytes);
    for (uint32_t i = 0; i < FAULTS_ENTRIES && status == KVT_OK; i++) {
        run->wanted[i] = malloc(bytes);
        status = run->wanted[i] != NULL
                     ? kvt_store_get(run->store.store, &run->store.keys[i],
                                     KVT_PACKED(run->wanted[i], bytes), KVT_NO_DEADLINE, NULL)
                     : KVT_E_MEMORY;
    }
    return status == KVT_OK ? faults_take_driver(&run->store) : status;
}

static void faults_end(faults_run *run)
{
    faults_clear();
    bench_gpu_store_close(&run->store);
    tiers_stand_in = NULL;
    free(run->poison);
    free(run->pages);
    free(run->found);
    for (uint32_t i = 0; i < FAULTS_ENTRIES; i++)
        free(run->wanted[i]);
}

/* The rows of a variant: loads, wrong bytes, what was not given back. */
static void faults_report(gpu_bench *bench, const faults_run *run, const char *variant, int memory,
                          int pinned)
{
    const struct {
        const char *measure;
        double asked, reached;
    } rows[] = {{"loads", FAULTS_LOADS(bench), (double)run->loads},
                {"wrong bytes after KVT_OK", 0, (double)run->wrong},
                {"leaks of memory of the GPU", 0, memory},
                {"leaks of pinned memory", 0, pinned}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        bench_gpu_add(bench, &(gpu_bench_row){.name = "loads with faults",
                                              .variant = variant,
                                              .side = "both",
                                              .isa = "cuda",
                                              .entries = FAULTS_ENTRIES,
                                              .measure = rows[i].measure,
                                              .asked = rows[i].asked,
                                              .reached = rows[i].reached,
                                              .most = rows[i].asked <= 0});
    bench_report_row(bench->report, "faults",
                     json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:i, s:i}",
                               "variant", variant, "first", (json_int_t)run->first, "loads",
                               (json_int_t)run->loads, "flips",
                               (json_int_t)run->of_kind[FAULTS_FLIP], "copies",
                               (json_int_t)run->of_kind[FAULTS_COPY], "launches",
                               (json_int_t)run->of_kind[FAULTS_LAUNCH], "deadlines",
                               (json_int_t)run->of_kind[FAULTS_DEADLINE], "right",
                               (json_int_t)run->right, "wrong", (json_int_t)run->wrong, "failed",
                               (json_int_t)run->failed, "leaks", memory, "pinned_leaks", pinned));
}

kvt_status bench_gpu_faults(gpu_bench *bench)
{
    static const char *const variants[FAULTS_VARIANTS] = {"raw", "planes:k4v4,g64", "kivi:k4v4,g64",
                                                          "lossless", "entropy:k0.25v0.5"};
    kvt_status status = KVT_OK;
    for (uint32_t i = 0; i < FAULTS_VARIANTS && status == KVT_OK; i++) {
        faults_run run = {.seed = i + 1, .first = FAULTS_SHARE(bench->own.first_load)};
        const uint64_t until_ns =
            base_clock_ns() + (uint64_t)(bench->own.loads_seconds * 1e9 / FAULTS_VARIANTS);
        memset(&faults, 0, sizeof faults);
        status = faults_begin(&run, bench, variants[i]);
        while (status == KVT_OK && run.loads < FAULTS_LOADS(bench) && base_clock_ns() < until_ns &&
               base_clock_ns() < bench->until_ns) {
            status = bench_gpu_write(bench, run.store.pages, run.poison, run.store.page_bytes);
            if (status == KVT_OK) status = faults_load(&run);
            if (status == KVT_OK) status = faults_judge(&run);
        }
        faults_end(&run);
        if (status == KVT_OK)
            faults_report(bench, &run, variants[i], atomic_load(&faults.memory),
                          atomic_load(&faults.pinned));
    }
    return status;
}
