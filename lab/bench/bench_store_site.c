/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_store_site.c - the store bench's store, its entries, and the timed loops.
 *
 * The bytes of entry i are those at (i modulo the number of sources) x bytes of the source. A get
 * is compared with them at both ends, and now and then whole, outside the timed part.
 *
 * Thread rule: as bench_store.h.
 */
#include "bench_store.h"

#include "lab/private.h"

#include <kvterrace/lookup.h>
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define STORE_RING_BYTES (UINT64_C(128) << 20)
#define STORE_HUGE_BYTES (UINT64_C(2) << 20)
#define STORE_PUT_FIRST  UINT32_C(0x80000000) /* numbers of entries that puts add */

/* ---- a device that keeps nothing, for a table of many entries ---- */

static kvt_status hollow_submit(kvt_device *device, kvt_io *io)
{
    (void)device;
    io->status = KVT_OK;
    io->submitted_ns = base_clock_ns();
    if (io->kind == KVT_IO_READ) memset(io->buffer, 0, io->bytes);
    io->finished_ns = base_clock_ns() + 1;
    return KVT_OK;
}

static kvt_status hollow_open(const kvt_device_config *config, kvt_device **device_out,
                              char *message, size_t message_size);

static void hollow_close(kvt_device *device)
{
    free(device);
}

static const kvt_device_ops hollow_ops = {.struct_size = sizeof hollow_ops,
                                          .abi_version = KVT_DEVICE_ABI,
                                          .name = "bench-hollow-memory",
                                          .open = hollow_open,
                                          .close = hollow_close,
                                          .submit = hollow_submit};

static kvt_status hollow_open(const kvt_device_config *config, kvt_device **device_out,
                              char *message, size_t message_size)
{
    kvt_device *device = calloc(1, sizeof *device);
    (void)message;
    (void)message_size;
    if (device == NULL) return KVT_E_MEMORY;
    device->ops = &hollow_ops;
    device->facts = (kvt_device_facts){.capacity_bytes = config->capacity_bytes,
                                       .align_bytes = 64,
                                       .request_bytes_max = 1 << 20,
                                       .depth_max = 1,
                                       .engine = "hollow",
                                       .identity = "hollow"};
    memcpy(device->name, config->name, strlen(config->name));
    *device_out = device;
    return KVT_OK;
}

static const kvt_device_ops *hollow_find(const char *backend)
{
    return strcmp(backend, hollow_ops.name) == 0 ? &hollow_ops : NULL;
}

/* ---- entries ---- */

kvt_key store_bench_key(uint32_t number)
{
    kvt_key key = {{'s', 't', 'o', 'r', 'e'}};
    memcpy(key.bytes + 8, &number, sizeof number);
    return key;
}

static char *store_bytes_at(const store_bench_site *site, uint32_t number)
{
    return site->source + (uint64_t)(number % site->sources) * site->bytes;
}

/* Puts one entry; one that finds the put's staging full is put again after a flush. */
static kvt_status store_put(store_bench_site *site, uint32_t number)
{
    const kvt_entry entry = {
        .struct_size = sizeof entry,
        .key = store_bench_key(number),
        .layout = {.dtype = KVT_DTYPE_OPAQUE, .opaque_bytes = site->bytes, .tokens = 1},
        .recompute_seconds = 1};
    return kvt_store_put(site->store, &entry,
                         KVT_PACKED(store_bytes_at(site, number), site->bytes));
}

/* Bytes of the process in memory. */
static double store_resident_bytes(void)
{
    unsigned long pages = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    if (file == NULL) return 0;
    if (fscanf(file, "%lu %lu", &pages, &resident) != 2) resident = 0;
    fclose(file);
    return (double)resident * (double)sysconf(_SC_PAGESIZE);
}

static kvt_status store_fill(store_bench_site *site)
{
    kvt_status status = KVT_OK;
    double before = store_resident_bytes();
    for (uint32_t i = 0; i < site->entries && status == KVT_OK; i++) {
        status = store_put(site, i);
        if (status != KVT_BUSY) continue;
        status = kvt_store_flush(site->store);
        if (status == KVT_OK) status = store_put(site, i);
    }
    if (status == KVT_OK) status = kvt_store_flush(site->store);
    (void)malloc_trim(0); /* what the heap has free is no entry's */
    site->memory_per_entry = (store_resident_bytes() - before) / site->entries;
    return status;
}

/* ---- the site ---- */

static char *store_memory(uint64_t bytes)
{
    bytes = (bytes + STORE_HUGE_BYTES - 1) / STORE_HUGE_BYTES * STORE_HUGE_BYTES;
    uint64_t *words = aligned_alloc(STORE_HUGE_BYTES, bytes);
    if (words == NULL) return NULL;
    (void)madvise(words, bytes, MADV_HUGEPAGE);
    for (uint64_t i = 0; i < bytes / sizeof *words; i++)
        words[i] = i * UINT64_C(0x9e3779b97f4a7c15);
    return (char *)words;
}

static uint64_t store_record_bytes(uint64_t bytes)
{
    const kvt_record_spec spec = {
        .generation = 1,
        .layout = {.dtype = KVT_DTYPE_OPAQUE, .opaque_bytes = bytes, .tokens = 1},
        .variant = {.codec = KVT_CODEC_RAW}};
    uint64_t record_bytes = 0, scratch;
    return kvt_record_bound(&spec, &record_bytes, &scratch) == KVT_OK ? record_bytes : 0;
}

static kvt_status store_open(store_bench_site *site, bool hollow, char *message,
                             size_t message_bytes)
{
    const uint64_t grain = UINT64_C(1) << 20;
    /* A tier above its high watermark would evict. */
    uint64_t capacity = (site->entries + site->puts) * store_record_bytes(site->bytes);
    capacity = (capacity + capacity / 4) / grain * grain + 64 * grain;
    const kvt_device_config device = {.struct_size = sizeof device,
                                      .name = "dram",
                                      .backend = hollow ? hollow_ops.name : "memory",
                                      .capacity_bytes = capacity};
    kvt_store_options options;
    tiers_stand_in = hollow ? hollow_find : NULL;
    kvt_store_options_init(&options);
    options.policy = "lru";
    options.lossless = false;
    options.learning.learn = false;
    if (hollow) options.limits.put_staging_bytes = 0; /* its memory is no entry's */
    options.tiers[KVT_TIER_DRAM] = (kvt_tier_options){.devices = &device, .device_count = 1};
    return kvt_store_open(&options, &site->store, message, message_bytes);
}

kvt_status store_bench_open(store_bench_site *site, uint64_t bytes, uint32_t entries, uint32_t puts,
                            bool hollow, bench_report *report)
{
    *site = (store_bench_site){.bytes = bytes, .entries = entries, .puts = puts};
    site->ring_bytes = STORE_RING_BYTES < bytes ? bytes : STORE_RING_BYTES / bytes * bytes;
    site->sources = hollow ? 1 : entries;
    if (hollow) site->ring_bytes = bytes;
    site->source = store_memory(site->sources * bytes);
    site->ring = store_memory(site->ring_bytes);
    kvt_status status = site->source != NULL && site->ring != NULL ? KVT_OK : KVT_E_MEMORY;
    if (status == KVT_OK) status = store_open(site, hollow, report->message, BENCH_MESSAGE_BYTES);
    if (status == KVT_OK) status = kvt_queue_open(site->store, NULL, &site->queue);
    if (status == KVT_OK) status = store_fill(site);
    if (status != KVT_OK) store_bench_close(site);
    return status;
}

void store_bench_close(store_bench_site *site)
{
    kvt_queue_close(site->queue);
    kvt_store_close(site->store);
    free(site->source);
    free(site->ring);
    *site = (store_bench_site){0};
}

/* ---- loops ---- */

/* A slot of the ring for one call; threads have parts of their own. */
static char *store_slot(const store_bench_loop *loop, uint32_t call)
{
    const store_bench_site *site = loop->site;
    uint64_t slots = site->ring_bytes / site->bytes;
    return site->ring + (call * loop->threads + loop->thread) % slots * site->bytes;
}

static bool store_is_right(const store_bench_site *site, uint32_t number, const char *got,
                           bool whole)
{
    const char *wanted = store_bytes_at(site, number);
    uint64_t at = site->bytes - sizeof(uint64_t);
    if (whole) return memcmp(got, wanted, site->bytes) == 0;
    return memcmp(got, wanted, sizeof(uint64_t)) == 0 &&
           memcmp(got + at, wanted + at, sizeof(uint64_t)) == 0;
}

/* One call, timed. */
static void store_call_once(store_bench_loop *loop, uint32_t call, uint32_t number)
{
    store_bench_site *site = loop->site;
    char *slot = store_slot(loop, call);
    const kvt_key key = store_bench_key(number);
    kvt_get_info info = {.struct_size = sizeof info};
    kvt_status status = KVT_OK;
    uint64_t began_ns = base_clock_ns();
    switch (loop->call) {
    case STORE_BENCH_COPY: memcpy(slot, store_bytes_at(site, number), site->bytes); break;
    case STORE_BENCH_GET:
        status = kvt_store_get(site->store, &key, KVT_PACKED(slot, site->bytes), KVT_STORE_DEADLINE,
                               &info);
        break;
    case STORE_BENCH_PUT: status = store_put(site, number); break;
    case STORE_BENCH_EXISTS: status = kvt_store_exists(site->store, &key); break;
    case STORE_BENCH_BATCH:
    case STORE_BENCH_PREFIX: break; /* store_batch_once */
    }
    loop->ns[call] = base_clock_ns() - began_ns;
    loop->sum_ns += loop->ns[call];
    loop->parts[STORE_BENCH_READ][call] = info.read_ns;
    loop->parts[STORE_BENCH_DECODE][call] = info.decode_ns;
    loop->parts[STORE_BENCH_ELAPSED][call] = info.elapsed_ns;
    bool right = status == KVT_OK;
    if (right && loop->call == STORE_BENCH_GET)
        right = store_is_right(site, number, slot, call % 64 == 0);
    if (!right) loop->failed++;
}

/* Gets that are one batch, `count` of them. */
typedef struct store_batch {
    uint32_t count;
    kvt_key keys[STORE_BENCH_BATCH_OF];
    kvt_view views[STORE_BENCH_BATCH_OF];
    const kvt_view *pointers[STORE_BENCH_BATCH_OF];
    uint32_t numbers[STORE_BENCH_BATCH_OF];
} store_batch;

/* Submits a batch and drains it. Returns how many gets went well. */
static size_t store_submit(kvt_queue *queue, const store_batch *batch)
{
    kvt_request requests[STORE_BENCH_BATCH_OF];
    kvt_completion done[STORE_BENCH_BATCH_OF];
    size_t drained = 0, good = 0;
    for (uint32_t i = 0; i < batch->count; i++)
        requests[i] = (kvt_request){.struct_size = sizeof requests[i],
                                    .kind = KVT_REQUEST_GET,
                                    .key = batch->keys[i],
                                    .view = &batch->views[i],
                                    .deadline_ns = KVT_NO_DEADLINE};
    if (kvt_queue_submit(queue, requests, batch->count, NULL) != KVT_OK) return 0;
    while (drained < batch->count && kvt_queue_wait(queue, KVT_NO_DEADLINE) == KVT_OK) {
        done[0].struct_size = sizeof done[0];
        size_t count = kvt_queue_drain(queue, done, STORE_BENCH_BATCH_OF);
        for (size_t i = 0; i < count; i++)
            good += done[i].status == KVT_OK;
        drained += count;
    }
    return good;
}

/* One batch, timed as a whole; each of its gets is given an equal share. */
static void store_batch_once(store_bench_loop *loop, uint32_t call, uint32_t number)
{
    store_bench_site *site = loop->site;
    store_batch batch = {.count = loop->batch};
    for (uint32_t i = 0; i < batch.count; i++) {
        batch.numbers[i] = (number + i) % site->entries;
        batch.keys[i] = store_bench_key(batch.numbers[i]);
        batch.views[i] = kvt_view_packed(store_slot(loop, call + i), site->bytes);
        batch.pointers[i] = &batch.views[i];
    }
    size_t good = 0;
    uint64_t began_ns = base_clock_ns();
    if (loop->call == STORE_BENCH_BATCH)
        good = store_submit(site->queue, &batch);
    else if (kvt_prefix_get(site->store, batch.keys, batch.pointers, batch.count, KVT_NO_DEADLINE,
                            &good) != KVT_OK)
        good = 0;
    uint64_t elapsed_ns = base_clock_ns() - began_ns;
    loop->sum_ns += elapsed_ns;
    loop->failed += (uint32_t)(batch.count - good);
    for (uint32_t i = 0; i < batch.count; i++) {
        loop->ns[call + i] = elapsed_ns / batch.count;
        if (!store_is_right(site, batch.numbers[i], batch.views[i].base[0], i == 0)) loop->failed++;
    }
}

/* Batches, on one thread. */
static void store_batch_loop(store_bench_loop *loop)
{
    for (uint32_t i = 0; i + loop->batch <= loop->calls; i += loop->batch)
        store_batch_once(loop, i, (loop->first + i) % loop->site->entries);
    loop->first = (loop->first + loop->calls) % loop->site->entries;
}

/* Puts in a row without a flush: fewer bytes than put staging holds. */
#define STORE_PUT_BYTES (UINT64_C(16) << 20)

static void *store_loop(void *argument)
{
    store_bench_loop *loop = argument;
    uint64_t put_bytes = 0;
    if (loop->call >= STORE_BENCH_BATCH) {
        store_batch_loop(loop);
        return NULL;
    }
    for (uint32_t i = 0; i < loop->calls; i++) {
        uint32_t number = loop->call == STORE_BENCH_PUT
                              ? STORE_PUT_FIRST + i * loop->threads + loop->thread
                              : (loop->first + i * loop->threads) % loop->site->entries;
        store_call_once(loop, i, number);
        put_bytes += loop->call == STORE_BENCH_PUT ? loop->site->bytes : 0;
        if (put_bytes < STORE_PUT_BYTES) continue;
        (void)!kvt_store_flush(loop->site->store);
        put_bytes = 0;
    }
    loop->first = (loop->first + loop->calls * loop->threads) % loop->site->entries;
    return NULL;
}

uint64_t store_bench_run(store_bench_loop *loops, uint32_t threads)
{
    pthread_t others[STORE_BENCH_THREADS_MAX];
    bool started[STORE_BENCH_THREADS_MAX] = {false};
    uint64_t began_ns = base_clock_ns();
    for (uint32_t i = 1; i < threads; i++)
        started[i] = pthread_create(&others[i], NULL, store_loop, &loops[i]) == 0;
    (void)store_loop(&loops[0]);
    for (uint32_t i = 1; i < threads; i++) {
        if (started[i])
            pthread_join(others[i], NULL);
        else
            loops[i].failed = loops[i].calls;
    }
    return base_clock_ns() - began_ns;
}

void store_bench_unput(store_bench_site *site, uint32_t calls)
{
    (void)!kvt_store_flush(site->store);
    for (uint32_t i = 0; i < calls; i++) {
        const kvt_key key = store_bench_key(STORE_PUT_FIRST + i);
        (void)!kvt_store_delete(site->store, &key);
    }
}

/* ---- lookups of many keys ---- */

uint32_t store_match_run(const store_bench_site *site, bool scattered, uint64_t *ns, uint32_t calls)
{
    static kvt_key keys[STORE_MATCH_KEYS];
    uint32_t failed = 0, number = 0;
    for (uint32_t call = 0; call < calls; call++) {
        for (uint32_t i = 0; i < STORE_MATCH_KEYS; i++) {
            if (scattered || i == 0) number = number * UINT32_C(1664525) + UINT32_C(1013904223);
            uint32_t drawn = (uint32_t)((uint64_t)number * site->entries >> 32);
            keys[i] = store_bench_key(scattered ? drawn : (drawn + i) % site->entries);
        }
        kvt_worth worth = {.struct_size = sizeof worth};
        uint64_t began_ns = base_clock_ns();
        kvt_status status =
            kvt_store_match(site->store, keys, STORE_MATCH_KEYS, KVT_MATCH(.worth = &worth), NULL);
        ns[call] = base_clock_ns() - began_ns;
        failed += status != KVT_OK || worth.stored != STORE_MATCH_KEYS;
    }
    return failed;
}
