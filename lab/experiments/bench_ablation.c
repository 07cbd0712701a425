/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_ablation.c - what pooling, O_DIRECT, layerwise and asynchronous loading each gain: the
 * ablation of Unified KV Pooling (sections II-B, III, V-C) on scaled bytes and drives.
 *
 * Every row keeps the same bytes in memory and on SSDs; docs/BENCHMARKS.md says what a row is and
 * what is given. A layer is a range of an object: pools deal units in layer order, so the range of
 * a layer is on all members. A loader thread brings layers in; the main thread stands for the GPU,
 * waits for each layer and then sleeps for as long as computing it takes.
 *
 * Thread rule: one bench at a time.
 */
#include "bench_ablation.h"

#include "base/clock.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MIB ((uint64_t)1 << 20)

enum {
    TOKEN_BYTES = 4096, /* 1/32 of Llama-3.1-8B's 128 KiB in 16 bits */
    ITERATIONS_DEFAULT = 5,
    QUEUE_LAYERS = 4,
    OWN_DRIVES = 4
};

/* Two memory modules of together 21.3 GB/s against SSDs of together 63 GB/s (section III-A). */
#define MEMORY_TO_SSD (21.3 / 63.0)
/* Computing a layer takes half as long as all devices together need to load it. */
#define COMPUTE_SHARE 0.5
#define ALONE_BYTES   (32 * MIB)
#define LONG_BYTES    (256 * MIB) /* so much takes seconds, which one repetition of five measures */

const ablation_way ablation_ways[ABLATION_ROWS] = {
    {.name = "serialized"},
    {.name = "+layerwise", .layerwise = true},
    {.name = "+async", .layerwise = true, .async = true},
    {.name = "pooled, buffered", .pooled = true, .layerwise = true, .async = true},
    {.name = "direct, unpooled", .direct = true, .layerwise = true, .async = true},
    {.name = "full", .pooled = true, .direct = true, .layerwise = true, .async = true},
};

static const uint32_t ablation_tokens[ABLATION_CONTEXTS] = {1024, 4096, 16384, 65536, 131072};

/* The part of an object that lies in one pool: all of it, or what one tier has of every layer. */
typedef struct ablation_part {
    tiers_pool *pool;
    tiers_location *location;
    uint64_t begin[ABLATION_LAYERS + 1]; /* where a layer starts in the part */
    uint64_t before[ABLATION_LAYERS];    /* bytes of the layer that other parts have before it */
} ablation_part;

typedef struct ablation_run {
    const ablation_way *way;
    const ablation_context *context;
    uint64_t layer_bytes;
    unsigned char *buffer;
    uint32_t part_count; /* 1 = pooled; 2 = memory, then SSD */
    ablation_part parts[2];

    pthread_mutex_t mutex;
    pthread_cond_t changed;
    uint32_t granted; /* layers that may be loaded */
    uint32_t arrived; /* layers that are in */
    uint64_t arrived_ns[ABLATION_LAYERS];
    kvt_status status;
    uint64_t busy_ns; /* loading anything */
} ablation_run;

static int ablation_complain(const char *what, kvt_status status, const char *message)
{
    fprintf(stderr, "kvterrace bench ablation: %s: %s\n", what,
            message[0] != '\0' ? message : kvt_status_text(status));
    return 1;
}

/* ---- the loader ---- */

static uint64_t ablation_layer_bytes(const ablation_part *part, uint32_t layer)
{
    return part->begin[layer + 1] - part->begin[layer];
}

static tiers_transfer ablation_transfer(const ablation_run *run, const ablation_part *part,
                                        kvt_io_kind kind, uint32_t layer)
{
    return (tiers_transfer){.kind = kind,
                            .location = part->location,
                            .buffer = run->buffer + layer * run->layer_bytes + part->before[layer],
                            .offset = part->begin[layer],
                            .bytes = ablation_layer_bytes(part, layer)};
}

static void ablation_arrive(ablation_run *run, kvt_status status)
{
    pthread_mutex_lock(&run->mutex);
    run->arrived_ns[run->arrived++] = base_clock_ns();
    if (run->status == KVT_OK) run->status = status;
    pthread_cond_broadcast(&run->changed);
    pthread_mutex_unlock(&run->mutex);
}

static void ablation_await_grant(ablation_run *run, uint32_t layer)
{
    pthread_mutex_lock(&run->mutex);
    while (run->granted <= layer)
        pthread_cond_wait(&run->changed, &run->mutex);
    pthread_mutex_unlock(&run->mutex);
}

/* All layers are asked for at once and come in on all devices. */
static void ablation_load_pooled(ablation_run *run)
{
    tiers_transfer transfers[ABLATION_LAYERS];
    tiers_transfer *all[ABLATION_LAYERS];
    const ablation_part *part = &run->parts[0];
    ablation_await_grant(run, ABLATION_LAYERS - 1);
    uint64_t started = base_clock_ns();
    for (uint32_t layer = 0; layer < ABLATION_LAYERS; layer++) {
        transfers[layer] = ablation_transfer(run, part, KVT_IO_READ, layer);
        all[layer] = &transfers[layer];
    }
    tiers_transfers_start(part->pool, all, ABLATION_LAYERS);
    for (uint32_t layer = 0; layer < ABLATION_LAYERS; layer++)
        ablation_arrive(run, tiers_transfer_wait(part->pool, &transfers[layer]));
    run->busy_ns = base_clock_ns() - started;
}

/* One layer after the other, its part in memory first and then its part on the SSD. */
static void ablation_load_serialized(ablation_run *run)
{
    for (uint32_t layer = 0; layer < ABLATION_LAYERS; layer++) {
        kvt_status status = KVT_OK;
        ablation_await_grant(run, layer);
        uint64_t started = base_clock_ns();
        for (uint32_t i = 0; i < run->part_count && status == KVT_OK; i++) {
            tiers_transfer transfer = ablation_transfer(run, &run->parts[i], KVT_IO_READ, layer);
            if (transfer.bytes == 0) continue;
            tiers_transfer_start(run->parts[i].pool, &transfer);
            status = tiers_transfer_wait(run->parts[i].pool, &transfer);
        }
        run->busy_ns += base_clock_ns() - started;
        ablation_arrive(run, status);
    }
}

static void *ablation_loader(void *argument)
{
    ablation_run *run = argument;
    if (run->way->pooled)
        ablation_load_pooled(run);
    else
        ablation_load_serialized(run);
    return NULL;
}

/* ---- the request ---- */

static void ablation_grant(ablation_run *run, uint32_t layers)
{
    pthread_mutex_lock(&run->mutex);
    if (layers > run->granted) run->granted = layers;
    pthread_cond_broadcast(&run->changed);
    pthread_mutex_unlock(&run->mutex);
}

/* When the layer came in. */
static uint64_t ablation_await(ablation_run *run, uint32_t layer)
{
    pthread_mutex_lock(&run->mutex);
    while (run->arrived <= layer)
        pthread_cond_wait(&run->changed, &run->mutex);
    uint64_t arrived_ns = run->arrived_ns[layer];
    pthread_mutex_unlock(&run->mutex);
    return arrived_ns;
}

/* One request; its blocked and loading seconds. */
static kvt_status ablation_request(ablation_run *run, double *blocked, double *loading)
{
    pthread_t loader;
    const uint64_t layer_ns = (uint64_t)(run->context->layer_seconds * 1e9);
    run->granted = run->arrived = 0;
    run->busy_ns = 0;
    run->status = KVT_OK;
    if (pthread_create(&loader, NULL, ablation_loader, run) != 0) return KVT_E_MEMORY;
    uint64_t start = base_clock_ns() + (uint64_t)(run->context->queue_seconds * 1e9);
    if (run->way->async) ablation_grant(run, ABLATION_LAYERS);
    base_sleep_until(start);
    uint64_t free_at = start;
    uint64_t blocked_ns = 0;
    for (uint32_t layer = 0; layer < ABLATION_LAYERS; layer++) {
        ablation_grant(run, layer + 1);
        /* By the clock of arrivals: a sleep that ends late is this machine's, not the load's. */
        uint64_t arrived_ns = ablation_await(run, layer);
        if (arrived_ns > free_at) {
            blocked_ns += arrived_ns - free_at;
            free_at = arrived_ns;
        }
        if (run->way->layerwise) ablation_grant(run, layer + 2);
        free_at += layer_ns;
        base_sleep_until(free_at);
    }
    pthread_join(loader, NULL);
    *blocked = (double)blocked_ns * 1e-9;
    *loading = (double)run->busy_ns * 1e-9;
    return run->status;
}

/* ---- objects ---- */

/* Reserves the parts: one that is all, or memory's units spread evenly over the layers and the rest
 * on the SSD. */
static kvt_status ablation_reserve(ablation_run *run, uint64_t unit_bytes)
{
    uint64_t memory_units = run->context->memory_bytes / unit_bytes;
    uint64_t begin[2] = {0, 0};
    for (uint32_t layer = 0; layer < ABLATION_LAYERS; layer++) {
        uint64_t inside = run->layer_bytes;
        if (run->part_count == 2)
            inside = (memory_units * (layer + 1) / ABLATION_LAYERS -
                      memory_units * layer / ABLATION_LAYERS) *
                     unit_bytes;
        for (uint32_t i = 0; i < run->part_count; i++) {
            run->parts[i].begin[layer] = begin[i];
            run->parts[i].before[layer] = i == 0 ? 0 : inside;
            begin[i] += i == 0 ? inside : run->layer_bytes - inside;
            run->parts[i].begin[layer + 1] = begin[i];
        }
    }
    for (uint32_t i = 0; i < run->part_count; i++) {
        kvt_status status =
            tiers_pool_reserve(run->parts[i].pool, begin[i], &run->parts[i].location);
        if (status != KVT_OK) return status;
    }
    return KVT_OK;
}

static kvt_status ablation_write(ablation_run *run)
{
    for (uint32_t i = 0; i < run->part_count; i++) {
        for (uint32_t layer = 0; layer < ABLATION_LAYERS; layer++) {
            tiers_transfer transfer = ablation_transfer(run, &run->parts[i], KVT_IO_WRITE, layer);
            if (transfer.bytes == 0) continue;
            tiers_transfer_start(run->parts[i].pool, &transfer);
            kvt_status status = tiers_transfer_wait(run->parts[i].pool, &transfer);
            if (status != KVT_OK) return status;
        }
        kvt_status status = tiers_pool_sync(run->parts[i].pool);
        if (status != KVT_OK) return status;
    }
    return KVT_OK;
}

/* Bytes that no other place has, in place of a copy to compare with. */
static void ablation_fill(unsigned char *buffer, uint64_t bytes, uint64_t seed)
{
    uint64_t *words = (uint64_t *)(void *)buffer;
    for (uint64_t i = 0; i < bytes / 8; i++)
        words[i] = (i ^ seed) * 0x9e3779b97f4a7c15u;
}

static bool ablation_is_filled(const unsigned char *buffer, uint64_t bytes, uint64_t seed)
{
    const uint64_t *words = (const uint64_t *)(const void *)buffer;
    for (uint64_t i = 0; i < bytes / 8; i++)
        if (words[i] != (i ^ seed) * 0x9e3779b97f4a7c15u) return false;
    return true;
}

/* What the page cache still has of the files would be read from memory. */
static void ablation_forget_pages(const bench_options *options)
{
    for (uint32_t i = 0; i < options->device_count; i++) {
        if (options->devices[i].path == NULL) continue;
        int file = open(options->devices[i].path, O_RDONLY | O_CLOEXEC);
        if (file < 0) continue;
        (void)posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
        close(file);
    }
}

/* Writes the context's object as the rows' parts want it and loads it in each of these rows. */
static kvt_status ablation_measure(const bench_options *options, ablation_results *results,
                                   ablation_run *run, uint32_t context, const uint32_t *rows,
                                   uint32_t row_count)
{
    static double blocked[BENCH_ITERATIONS_MAX];
    static double loading[BENCH_ITERATIONS_MAX];
    ablation_context *about = &results->contexts[context];
    uint64_t unit_bytes = about->bytes / ABLATION_LAYERS;
    if (unit_bytes > TIERS_UNIT_BYTES_DEFAULT) unit_bytes = TIERS_UNIT_BYTES_DEFAULT;
    run->context = about;
    run->layer_bytes = about->bytes / ABLATION_LAYERS;
    kvt_status status = ablation_reserve(run, unit_bytes);
    uint64_t seed = (uint64_t)rows[0] << 40;
    ablation_fill(run->buffer, about->bytes, seed);
    if (status == KVT_OK) status = ablation_write(run);
    for (uint32_t r = 0; r < row_count && status == KVT_OK; r++) {
        ablation_cell *cell = &about->cells[rows[r]];
        run->way = &ablation_ways[rows[r]];
        for (uint32_t i = 0; i < about->repetitions && status == KVT_OK; i++) {
            memset(run->buffer, 0, about->bytes);
            ablation_forget_pages(options);
            status = ablation_request(run, &blocked[i], &loading[i]);
            if (status == KVT_OK && !ablation_is_filled(run->buffer, about->bytes, seed))
                status = KVT_E_CORRUPT;
        }
        cell->blocked = bench_rate_of(blocked, about->repetitions);
        cell->loading = bench_rate_of(loading, about->repetitions);
    }
    for (uint32_t i = 0; i < run->part_count; i++) {
        tiers_pool_release(run->parts[i].pool, run->parts[i].location);
        run->parts[i].location = NULL;
    }
    return status;
}

/* ---- pools ---- */

typedef struct ablation_member {
    kvt_device_config config;
    double bytes_per_s;
} ablation_member;

static kvt_status ablation_open(const ablation_member *wanted, uint32_t count, uint32_t unit_bytes,
                                tiers_pool **pool_out, char *message, size_t message_size)
{
    tiers_member_options members[TIERS_MEMBERS_MAX] = {{0}};
    tiers_pool_options options = {.unit_bytes = unit_bytes, .striping = KVT_STRIPE_PROPORTIONAL};
    kvt_status status = KVT_OK;
    for (uint32_t i = 0; i < count && status == KVT_OK; i++) {
        kvt_device *device = NULL;
        status = kvt_device_open(&wanted[i].config, &device, message, message_size);
        members[i] = tiers_member_options_of(&wanted[i].config, device, wanted[i].bytes_per_s,
                                             wanted[i].bytes_per_s, NULL);
    }
    if (status == KVT_OK)
        status = tiers_pool_open(members, count, &options, pool_out, message, message_size);
    for (uint32_t i = 0; i < count && status != KVT_OK; i++)
        kvt_device_close(members[i].device);
    return status;
}

static ablation_member ablation_memory(const ablation_results *results, uint32_t index,
                                       uint64_t bytes)
{
    static const char *const names[ABLATION_MEMORIES] = {"memory-0", "memory-1"};
    uint64_t rate = (uint64_t)results->memory_bytes_per_s;
    return (ablation_member){.config = {.struct_size = sizeof(kvt_device_config),
                                        .name = names[index],
                                        .backend = "memory",
                                        .capacity_bytes = bytes + 4 * MIB,
                                        .read_bytes_per_s = rate,
                                        .write_bytes_per_s = rate},
                             .bytes_per_s = results->memory_bytes_per_s};
}

static ablation_member ablation_drive(const bench_options *options, const ablation_results *results,
                                      uint32_t index, bool direct)
{
    ablation_member member = {.config = options->devices[index],
                              .bytes_per_s = results->drive_bytes_per_s[index]};
    if (!direct && results->page_cache) { /* as a file is read that is opened and read */
        member.config.buffered = true;
        member.config.synchronous = true;
        member.config.depth = 1;
    }
    return member;
}

/* Opens the pools of a way for objects of one unit size. */
static kvt_status ablation_open_way(const bench_options *options, const ablation_results *results,
                                    const ablation_way *way, uint32_t unit_bytes,
                                    uint64_t memory_bytes, ablation_run *run)
{
    char message[256] = "";
    ablation_member members[TIERS_MEMBERS_MAX];
    uint32_t memories = way->pooled ? ABLATION_MEMORIES : 1;
    kvt_status status = KVT_OK;
    for (uint32_t i = 0; i < memories; i++)
        members[i] = ablation_memory(results, i, memory_bytes);
    run->part_count = way->pooled ? 1 : 2;
    if (way->pooled) {
        for (uint32_t i = 0; i < results->drive_count; i++)
            members[memories + i] = ablation_drive(options, results, i, way->direct);
        status = ablation_open(members, memories + results->drive_count, unit_bytes,
                               &run->parts[0].pool, message, sizeof message);
    } else {
        status =
            ablation_open(members, 1, unit_bytes, &run->parts[0].pool, message, sizeof message);
        members[1] = ablation_drive(options, results, results->fastest, way->direct);
        if (status == KVT_OK)
            status = ablation_open(&members[1], 1, unit_bytes, &run->parts[1].pool, message,
                                   sizeof message);
    }
    if (status != KVT_OK) ablation_complain(way->name, status, message);
    return status;
}

static void ablation_close_way(ablation_run *run)
{
    for (uint32_t i = 0; i < 2; i++) {
        tiers_pool_close(run->parts[i].pool);
        run->parts[i].pool = NULL;
    }
}

/* All contexts in rows that keep their bytes in the same way. */
static int ablation_rows(const bench_options *options, ablation_results *results, ablation_run *run,
                         const uint32_t *rows, uint32_t row_count)
{
    const ablation_way *way = &ablation_ways[rows[0]];
    const ablation_context *largest = &results->contexts[results->context_count - 1];
    kvt_status status = KVT_OK;
    uint32_t open_unit = 0;
    for (uint32_t i = 0; i < results->context_count && status == KVT_OK; i++) {
        uint64_t unit = results->contexts[i].bytes / ABLATION_LAYERS;
        if (unit > TIERS_UNIT_BYTES_DEFAULT) unit = TIERS_UNIT_BYTES_DEFAULT;
        if (unit != open_unit) { /* the unit is a pool's */
            ablation_close_way(run);
            status = ablation_open_way(options, results, way, (uint32_t)unit, largest->memory_bytes,
                                       run);
            if (status != KVT_OK) return 1;
            open_unit = (uint32_t)unit;
        }
        status = ablation_measure(options, results, run, i, rows, row_count);
    }
    ablation_close_way(run);
    return status == KVT_OK ? 0 : ablation_complain(way->name, status, "");
}

/* ---- what is given ---- */

/* The speed of a drive alone. */
static int ablation_measure_drive(const bench_options *options, ablation_results *results,
                                  uint32_t index, unsigned char *buffer)
{
    char message[256] = "";
    tiers_pool *pool = NULL;
    tiers_location *location = NULL;
    double rates[3];
    ablation_member member = {.config = options->devices[index], .bytes_per_s = 1};
    kvt_status status = ablation_open(&member, 1, 0, &pool, message, sizeof message);
    if (status == KVT_OK) status = tiers_pool_reserve(pool, ALONE_BYTES, &location);
    if (status == KVT_OK)
        status = bench_move(pool, KVT_IO_WRITE, location, buffer, &rates[0], NULL);
    for (int i = 0; i < 3 && status == KVT_OK; i++)
        status = bench_move(pool, KVT_IO_READ, location, buffer, &rates[i], NULL);
    if (status == KVT_OK) {
        results->drive_bytes_per_s[index] = bench_rate_of(rates, 3).median;
        tiers_member_stats stats;
        if (tiers_pool_member(pool, 0, &stats) == KVT_OK)
            results->emulated |= (stats.facts.flags & KVT_DEVICE_EMULATED) != 0;
        tiers_pool_release(pool, location);
    }
    tiers_pool_close(pool);
    const char *name = options->devices[index].name;
    return status == KVT_OK ? 0 : ablation_complain(name, status, message);
}

/* Bytes that the pooled rows keep in memory: the units of the memory members. */
static kvt_status ablation_memory_bytes(const ablation_results *results, uint64_t bytes,
                                        uint64_t *memory_bytes)
{
    tiers_stripe_member members[TIERS_MEMBERS_MAX];
    uint32_t units[TIERS_MEMBERS_MAX];
    uint32_t count = ABLATION_MEMORIES + results->drive_count;
    uint64_t unit = bytes / ABLATION_LAYERS;
    if (unit > TIERS_UNIT_BYTES_DEFAULT) unit = TIERS_UNIT_BYTES_DEFAULT;
    for (uint32_t i = 0; i < count; i++) {
        bool memory = i < ABLATION_MEMORIES;
        members[i].weight = memory ? results->memory_bytes_per_s
                                   : results->drive_bytes_per_s[i - ABLATION_MEMORIES];
        members[i].room_units = TIERS_UNITS_MAX;
    }
    kvt_status status = tiers_stripe_share(members, count, (uint32_t)(bytes / unit), units);
    *memory_bytes = 0;
    for (uint32_t i = 0; i < ABLATION_MEMORIES && status == KVT_OK; i++)
        *memory_bytes += units[i] * unit;
    return status;
}

static kvt_status ablation_set_context(const ablation_results *results, uint32_t tokens,
                                       ablation_context *context)
{
    context->tokens = tokens;
    context->bytes = (uint64_t)tokens * TOKEN_BYTES;
    context->repetitions = results->repetitions;
    if (context->bytes >= LONG_BYTES) context->repetitions = (results->repetitions + 4) / 5;
    context->ideal_loading = (double)context->bytes / results->sum_bytes_per_s;
    context->layer_seconds = context->ideal_loading / ABLATION_LAYERS * COMPUTE_SHARE;
    context->queue_seconds = context->layer_seconds * QUEUE_LAYERS;
    double free_at = context->queue_seconds;
    context->ideal_blocked = 0;
    for (uint32_t layer = 0; layer < ABLATION_LAYERS; layer++) {
        double arrives = context->ideal_loading * (layer + 1) / ABLATION_LAYERS;
        if (arrives > free_at) context->ideal_blocked += arrives - free_at;
        free_at = (arrives > free_at ? arrives : free_at) + context->layer_seconds;
    }
    return ablation_memory_bytes(results, context->bytes, &context->memory_bytes);
}

static int ablation_give(const bench_options *options, ablation_results *results,
                         unsigned char *buffer)
{
    double sum = 0;
    for (uint32_t i = 0; i < results->drive_count; i++) {
        if (ablation_measure_drive(options, results, i, buffer) != 0) return 1;
        sum += results->drive_bytes_per_s[i];
        if (results->drive_bytes_per_s[i] > results->drive_bytes_per_s[results->fastest])
            results->fastest = i;
    }
    results->memory_bytes_per_s = sum * MEMORY_TO_SSD / ABLATION_MEMORIES;
    results->sum_bytes_per_s = sum * (1 + MEMORY_TO_SSD);
    for (uint32_t i = 0; i < results->context_count; i++) {
        uint32_t tokens = ablation_tokens[options->quick ? 2 * i : i];
        kvt_status status = ablation_set_context(results, tokens, &results->contexts[i]);
        if (status != KVT_OK) return ablation_complain("shares", status, "");
    }
    return 0;
}

/* ---- the whole ---- */

static int ablation_run_all(const bench_options *options, ablation_results *results)
{
    static const uint32_t groups[4][3] = {{0, 1, 2}, {3}, {4}, {5}}; /* rows of the same parts */
    static const uint32_t sizes[4] = {3, 1, 1, 1};
    uint64_t bytes =
        (uint64_t)ablation_tokens[options->quick ? 2 : ABLATION_CONTEXTS - 1] * TOKEN_BYTES;
    ablation_run run = {.buffer = bench_buffer(bytes)};
    if (run.buffer == NULL) return ablation_complain("all", KVT_E_MEMORY, "");
    pthread_mutex_init(&run.mutex, NULL);
    pthread_cond_init(&run.changed, NULL);
    int code = ablation_give(options, results, run.buffer);
    for (uint32_t i = 0; i < 4 && code == 0; i++) {
        bench_tell(options, i, 4, "ways to load");
        code = ablation_rows(options, results, &run, groups[i], sizes[i]);
    }
    pthread_cond_destroy(&run.changed);
    pthread_mutex_destroy(&run.mutex);
    free(run.buffer);
    bench_tell(options, 1, 1, NULL);
    return code != 0 ? code : bench_ablation_report(options, results);
}

/* Memory behind a throttle, where no drives are configured. */
static void ablation_make_own(bool quick, kvt_device_config *own)
{
    static const char *const names[OWN_DRIVES] = {"ssd-0", "ssd-1", "ssd-2", "ssd-3"};
    static const uint64_t rates[OWN_DRIVES] = {100000000, 100000000, 200000000, 400000000};
    for (uint32_t i = 0; i < OWN_DRIVES; i++)
        own[i] = (kvt_device_config){.struct_size = sizeof own[i],
                                     .name = names[i],
                                     .backend = "memory",
                                     .capacity_bytes = (quick ? 64 : 448) * MIB,
                                     .emulated = true,
                                     .read_bytes_per_s = rates[i],
                                     .write_bytes_per_s = rates[i]};
}

int bench_ablation_run(const bench_options *options)
{
    kvt_device_config own[OWN_DRIVES];
    bench_options given = *options;
    if (given.device_count == 0) {
        ablation_make_own(given.quick, own);
        given.devices = own;
        given.device_count = OWN_DRIVES;
        given.overwrite = NULL;
    }
    if (given.device_count < 2 || given.device_count > TIERS_MEMBERS_MAX - ABLATION_MEMORIES)
        return ablation_complain("all", KVT_E_ARGUMENT, "it takes 2 to 62 drives");
    ablation_results results = {
        .repetitions = bench_repetitions(given.iterations, ITERATIONS_DEFAULT, given.quick),
        .drive_count = given.device_count,
        .page_cache = true,
        .context_count = given.quick ? 2 : ABLATION_CONTEXTS};
    for (uint32_t i = 0; i < given.device_count; i++) {
        if (given.overwrite != NULL && !given.overwrite[i])
            return ablation_complain(given.devices[i].name, KVT_E_MISMATCH,
                                     "may hold data; store.format = yes gives it up");
        if (strcmp(given.devices[i].backend, "file") != 0) results.page_cache = false;
    }
    return ablation_run_all(&given, &results);
}
