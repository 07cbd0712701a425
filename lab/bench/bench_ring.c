/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_ring.c - layers of 16 to 4,096 KV blocks through a ring (docs/CALLS.md, Rings): calls and
 * processor time of the caller, beside a get a block; what comes of the drives' sum, by the bytes
 * of a context; and contexts per second from drives of memory alone.
 *
 *     host          the caller posts blocks that name tables which it has filled once, beforehand
 *                   (table_cpu_us)
 *     host-threads  a thread fills tables and posts through the mapped words, without a call, as a
 *                   kernel of a GPU would; the caller waits alone
 *     gpu           where a GPU answers: kernels post what lies in its memory, one a layer, and
 *                   wait; the caller launches them. Then empty blocks: posts per second, and the
 *                   time from a launch to its end
 *     gets          the caller submits a get of the layer for each KV block, and drains
 *
 * Each KV block is an entry. Two layers are in flight. The caller's time has no part of the threads
 * that post; what is left of the process is the store's.
 *
 * Thread rule: one case at a time.
 */
#include "bench.h"
#include "bench_parts.h"

#include "lab/private.h"

#include <kvterrace/queue.h>
#include <kvterrace/ring.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KIB UINT64_C(1024)
#define MIB (1024 * KIB)

enum {
    ITERATIONS_DEFAULT = 5,
    LAYERS = 8,
    FLIGHT = 2, /* layers at once */
    DEPTH = 16,
    BLOCKS_MAX = 4096,
    TABLES = 2 * BLOCKS_MAX / KVT_RING_CONTEXTS_MAX, /* of a layer: K and V of a block */
    SAMPLES = 4096
};

#define DRIVE_BYTES (384 * MIB)
#define LAYER_BYTES (16 * MIB)
#define ALONE_BYTES (24 * MIB)

typedef enum ring_initiator {
    HOST = 0,
    HOST_THREADS = 1,
    GETS = 2,
    INITIATORS = 3,
    GPU = INITIATORS, /* on a ring of its own */
    ROWS
} ring_initiator;
static const char *const initiator_names[ROWS] = {"host", "host-threads", "gets", "gpu"};

/* The GPU whose kernels post, and memory of it. */
typedef struct ring_far {
    gpu_site *site; /* NULL: none */
    gpu_address posts, contexts;
    gpu_host *host; /* an image of both */
} ring_far;

typedef struct ring_bench {
    const bench_options *options;
    bench_report *report;
    const char *drives;
    kvt_placement placement;
    uint32_t iterations;
    double read_sum;
    kvt_store *store;
    kvt_queue *queue;
    kvt_ring *ring;
    base_ring submissions, completions;
    kvt_ring_context *tables; /* of the places, and then the kept ones */
    kvt_layout layout;
    uint64_t matrix;        /* bytes of a context */
    uint32_t blocks, posts; /* KV blocks, and ring blocks of a layer */
    uint64_t objects[BLOCKS_MAX];
    kvt_key keys[BLOCKS_MAX];
    uint32_t region;
    char *target;  /* of FLIGHT layers */
    uint64_t next; /* index of the next block */
    uint64_t posted_ns[LAYERS];
    uint64_t producer_ns; /* processor time of the thread that posts */
    uint64_t samples[SAMPLES];
    uint32_t sample_count;
    uint64_t calls;
    ring_far far;
} ring_bench;

static uint64_t layer_bytes(const ring_bench *bench)
{
    return bench->blocks * 2 * bench->matrix;
}

/* What each drive reads alone. */
static kvt_status ring_alone(ring_bench *bench, uint32_t index, char *buffer)
{
    static double rates[BENCH_ITERATIONS_MAX];
    double written;
    char message[256] = "";
    const kvt_device_config *config = &bench->options->devices[index];
    kvt_device *device = NULL;
    tiers_pool *pool = NULL;
    tiers_location *location = NULL;
    const tiers_pool_options options = {0};
    kvt_status status = kvt_device_open(config, &device, message, sizeof message);
    if (status != KVT_OK) return bench_blame(bench->report, status, config->name, message);
    const tiers_member_options member = tiers_member_options_of(config, device, 1, 1, NULL);
    status = tiers_pool_open(&member, 1, &options, &pool, message, sizeof message);
    if (status != KVT_OK) {
        kvt_device_close(device);
        return bench_blame(bench->report, status, config->name, message);
    }
    status = tiers_pool_reserve(pool, ALONE_BYTES, &location);
    if (status == KVT_OK) status = bench_move(pool, KVT_IO_WRITE, location, buffer, &written, NULL);
    for (uint32_t i = 0; i < bench->iterations && status == KVT_OK; i++)
        status = bench_move(pool, KVT_IO_READ, location, buffer, &rates[i], NULL);
    if (status == KVT_OK) bench->read_sum += bench_rate_of(rates, bench->iterations).median;
    tiers_pool_release(pool, location);
    tiers_pool_close(pool);
    return bench_blame(bench->report, status, config->name, "");
}

/* ---- the site ---- */

static void ring_site_close(ring_bench *bench)
{
    if (bench->ring != NULL) {
        kvt_ring_object_close(bench->ring, bench->objects, bench->blocks);
        (void)!kvt_ring_region_end(bench->ring, bench->region);
    }
    kvt_ring_close(bench->ring);
    if (bench->queue != NULL) kvt_queue_close(bench->queue);
    kvt_store_close(bench->store);
    free(bench->target);
    bench->ring = NULL;
    bench->queue = NULL;
    bench->store = NULL;
    bench->target = NULL;
}

/* Puts the KV blocks. */
static kvt_status ring_site_put(ring_bench *bench)
{
    uint64_t bytes;
    kvt_status status = kvt_layout_bytes(&bench->layout, &bytes);
    char *source = status == KVT_OK ? bench_buffer(bytes) : NULL;
    if (status == KVT_OK && source == NULL) status = KVT_E_MEMORY;
    for (uint32_t i = 0; i < bench->blocks && status == KVT_OK; i++) {
        memset(&bench->keys[i], 0, sizeof bench->keys[i]);
        memcpy(bench->keys[i].bytes, &i, sizeof i);
        memcpy(source, &i, sizeof i);
        const kvt_entry entry = {.struct_size = sizeof entry,
                                 .key = bench->keys[i],
                                 .layout = bench->layout,
                                 .recompute_seconds = 1};
        status = kvt_store_put(bench->store, &entry, KVT_PACKED(source, bytes));
    }
    free(source);
    return status;
}

/* Attaches to the words as another producer does, by the page of the memory alone. */
static kvt_status ring_site_attach(ring_bench *bench)
{
    kvt_ring_memory memory = {.struct_size = sizeof memory};
    kvt_status status = kvt_ring_describe(bench->ring, &memory);
    if (status != KVT_OK) return status;
    uint64_t places[3]; /* submissions, completions, tables */
    char *head = memory.memory;
    memcpy(places, head + 24, sizeof places);
    bench->tables = (kvt_ring_context *)(void *)(head + places[2]);
    status = base_ring_attach(&bench->submissions, head + places[0], memory.bytes, DEPTH);
    if (status == KVT_OK)
        status = base_ring_attach(&bench->completions, head + places[1], memory.bytes, DEPTH);
    return status;
}

static kvt_status ring_site_open(ring_bench *bench, uint32_t blocks, uint64_t matrix,
                                 uint32_t threads)
{
    kvt_store_options options;
    kvt_store_options_init(&options);
    options.format = true;
    options.policy = "lru";
    options.lossless = false;
    options.limits.tick_seconds = 0;
    options.limits.put_staging_bytes = 0;
    options.tiers[KVT_TIER_SSD] = (kvt_tier_options){.devices = bench->options->devices,
                                                     .device_count = bench->options->device_count,
                                                     .placement = bench->placement,
                                                     .weights_fixed = true};
    bench->blocks = blocks;
    bench->posts = (2 * blocks + KVT_RING_CONTEXTS_MAX - 1) / KVT_RING_CONTEXTS_MAX;
    bench->matrix = matrix;
    bench->next = 0;
    bench->layout = (kvt_layout){.layers = LAYERS,
                                 .kv_heads = 1,
                                 .head_dim = 256,
                                 .dtype = KVT_DTYPE_BF16,
                                 .tokens = (uint32_t)(matrix / 512)};
    kvt_status status =
        kvt_store_open(&options, &bench->store, bench->report->message, BENCH_MESSAGE_BYTES);
    if (status == KVT_OK) status = ring_site_put(bench);
    const kvt_ring_options ring = {
        .struct_size = sizeof ring, .tables = FLIGHT * TABLES, .threads = threads, .poll_us = 50};
    if (status == KVT_OK) status = kvt_queue_open(bench->store, NULL, &bench->queue);
    if (status == KVT_OK) status = kvt_ring_open(bench->store, DEPTH, &ring, &bench->ring);
    if (status == KVT_OK) status = ring_site_attach(bench);
    if (status == KVT_OK)
        status = kvt_ring_object_open(bench->ring, bench->keys, blocks, bench->objects);
    bench->target = status == KVT_OK ? bench_buffer(FLIGHT * layer_bytes(bench)) : NULL;
    if (status == KVT_OK && bench->target == NULL) status = KVT_E_MEMORY;
    if (status == KVT_OK)
        status = kvt_ring_region_add(bench->ring, bench->target, FLIGHT * layer_bytes(bench),
                                     &bench->region);
    return status;
}

/* ---- producers ---- */

/* Fills a table with the part of a layer that one post has. Returns how many contexts that are. */
static uint32_t ring_fill(const ring_bench *bench, kvt_ring_context *contexts, uint32_t post,
                          uint32_t layer)
{
    const uint32_t first = post * KVT_RING_CONTEXTS_MAX;
    const uint32_t left = 2 * bench->blocks - first;
    const uint32_t count = left < KVT_RING_CONTEXTS_MAX ? left : KVT_RING_CONTEXTS_MAX;
    for (uint32_t i = 0; i < count; i++)
        contexts[i] = (kvt_ring_context){.object = bench->objects[(first + i) / 2],
                                         .layer = layer,
                                         .side = (first + i) % 2,
                                         .bytes = bench->matrix,
                                         .region = bench->region,
                                         .target = (first + i) * bench->matrix};
    return count;
}

static kvt_ring_block ring_block(const ring_bench *bench, uint32_t table, uint32_t count,
                                 uint32_t layer, bool adds)
{
    return (kvt_ring_block){.table = table,
                            .count = count,
                            .layer = adds ? layer : 0,
                            .target = layer % FLIGHT * layer_bytes(bench),
                            .deadline_ns = KVT_NO_DEADLINE,
                            .user = layer};
}

/* The thread that stands for a GPU: it fills each layer's tables, and posts without a call. */
static void *ring_produce(void *argument)
{
    ring_bench *bench = argument;
    const double began = base_cpu_seconds();
    uint64_t position = bench->next;
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        for (uint32_t post = 0; post < bench->posts; post++, position++) {
            /* A place is free once its last completion was taken. */
            while (atomic_load_explicit(base_ring_word(&bench->completions, position),
                                        memory_order_acquire) != position)
                base_sleep(20000);
            uint64_t claimed;
            if (base_ring_claim(&bench->submissions, &bench->submissions.words->claimed, 1,
                                &claimed) != KVT_OK)
                return NULL;
            const uint32_t table = (uint32_t)(claimed % DEPTH);
            const uint32_t count = ring_fill(
                bench, bench->tables + (size_t)table * KVT_RING_CONTEXTS_MAX, post, layer);
            const kvt_ring_block block = ring_block(bench, table, count, layer, false);
            base_ring_body body;
            memcpy(&body, &block, sizeof body);
            if (post == 0) bench->posted_ns[layer] = base_clock_ns();
            if (base_ring_post(&bench->submissions, claimed, &body) != KVT_OK) return NULL;
        }
        /* As many layers are on their way as there are targets. */
        while (layer + 1 < LAYERS && layer + 1 >= FLIGHT &&
               !base_ring_was_taken(&bench->completions,
                                    bench->next + (layer + 2 - FLIGHT) * bench->posts - 1))
            base_sleep(20000);
    }
    bench->producer_ns = (uint64_t)((base_cpu_seconds() - began) * 1e9);
    return bench;
}

/* ---- passes ---- */

static kvt_status ring_wait_layer(ring_bench *bench, uint32_t layer)
{
    kvt_ring_result results[DEPTH];
    const uint64_t first = bench->next + layer * bench->posts;
    kvt_status status = KVT_E_ARGUMENT;
    /* The thread that posts may not have claimed it yet. */
    while (status == KVT_E_ARGUMENT) {
        status = kvt_ring_wait(bench->ring, first, bench->posts, KVT_NO_DEADLINE, results, NULL);
        if (status == KVT_E_ARGUMENT) base_sleep(20000);
    }
    bench->calls++;
    uint64_t done_ns = 0;
    for (uint32_t i = 0; i < bench->posts && status == KVT_OK; i++) {
        status = results[i].status;
        if (results[i].done_ns > done_ns) done_ns = results[i].done_ns;
    }
    if (status == KVT_OK && bench->sample_count < SAMPLES)
        bench->samples[bench->sample_count++] = done_ns - bench->posted_ns[layer];
    return status;
}

static kvt_status ring_post_layer(ring_bench *bench, uint32_t layer)
{
    kvt_ring_iocb iocbs[DEPTH];
    kvt_status status = kvt_ring_get_iocb(bench->ring, bench->posts, iocbs);
    for (uint32_t post = 0; post < bench->posts && status == KVT_OK; post++) {
        const uint32_t left = 2 * bench->blocks - post * KVT_RING_CONTEXTS_MAX;
        const uint32_t count = left < KVT_RING_CONTEXTS_MAX ? left : KVT_RING_CONTEXTS_MAX;
        iocbs[post].block = ring_block(bench, DEPTH + post, count, layer, true);
    }
    bench->posted_ns[layer] = base_clock_ns();
    if (status == KVT_OK) status = kvt_ring_submit(bench->ring, iocbs, bench->posts);
    bench->calls += 2;
    return status;
}

/* Fills the tables that all layers share, as a caller does once for its KV blocks. *seconds_out: of
 * the caller's processor. */
static kvt_status ring_fill_kept(ring_bench *bench, double *seconds_out)
{
    const double began = base_cpu_seconds();
    for (uint32_t post = 0; post < bench->posts; post++) {
        uint32_t table;
        kvt_ring_context *kept = kvt_ring_table(bench->ring, post, &table);
        if (kept == NULL) return KVT_E_STATE;
        (void)ring_fill(bench, kept, post, 0);
    }
    *seconds_out = base_cpu_seconds() - began;
    return KVT_OK;
}

/* Three calls a layer. */
static kvt_status ring_pass_host(ring_bench *bench)
{
    kvt_status status = KVT_OK;
    for (uint32_t layer = 0; layer < FLIGHT && status == KVT_OK; layer++)
        status = ring_post_layer(bench, layer);
    for (uint32_t layer = 0; layer < LAYERS && status == KVT_OK; layer++) {
        status = ring_wait_layer(bench, layer);
        if (status == KVT_OK && layer + FLIGHT < LAYERS)
            status = ring_post_layer(bench, layer + FLIGHT);
    }
    return status;
}

static kvt_status ring_pass_threads(ring_bench *bench)
{
    pthread_t producer;
    void *sound = NULL;
    kvt_status status = base_thread_start(&producer, ring_produce, bench);
    if (status != KVT_OK) return status;
    for (uint32_t layer = 0; layer < LAYERS && status == KVT_OK; layer++)
        status = ring_wait_layer(bench, layer);
    pthread_join(producer, &sound);
    return status == KVT_OK && sound == NULL ? KVT_E_CORRUPT : status;
}

/* One get a KV block and layer. */
static kvt_status ring_pass_gets(ring_bench *bench)
{
    kvt_status status = KVT_OK;
    kvt_completion done[64];
    uint64_t entry_bytes;
    (void)!kvt_layout_bytes(&bench->layout, &entry_bytes);
    kvt_view view = {0};
    status = kvt_view_make(&bench->layout, "lsth", 0, bench->layout.tokens, &view);
    kvt_view *views = calloc(bench->blocks, sizeof *views);
    char *target = bench_buffer(bench->blocks * entry_bytes);
    if (views == NULL || target == NULL) {
        free(views);
        free(target);
        return KVT_E_MEMORY;
    }
    done[0].struct_size = sizeof done[0];
    for (uint32_t layer = 0; layer < LAYERS && status == KVT_OK; layer++) {
        uint32_t left = bench->blocks;
        bench->posted_ns[layer] = base_clock_ns();
        for (uint32_t i = 0; i < bench->blocks && status == KVT_OK; i++) {
            views[i] = view;
            views[i].base[0] = target + i * entry_bytes;
            const kvt_request request = {.struct_size = sizeof request,
                                         .kind = KVT_REQUEST_GET,
                                         .key = bench->keys[i],
                                         .view = &views[i],
                                         .deadline_ns = KVT_NO_DEADLINE,
                                         .first_layer = layer,
                                         .layer_count = 1};
            status = kvt_queue_submit(bench->queue, &request, 1, NULL);
            bench->calls++;
        }
        while (left > 0 && status == KVT_OK) {
            status = kvt_queue_wait(bench->queue, KVT_NO_DEADLINE);
            const size_t count = kvt_queue_drain(bench->queue, done, 64);
            bench->calls += 2;
            left -= (uint32_t)count;
            for (size_t i = 0; i < count && status == KVT_OK; i++)
                status = done[i].status;
        }
        bench->samples[bench->sample_count++ % SAMPLES] = base_clock_ns() - bench->posted_ns[layer];
    }
    free(views);
    free(target);
    return status;
}

/* ---- a kernel ---- */

enum {
    FAR_POSTS = (LAYERS + 1) * 2 * TABLES,
    FAR_POST_BYTES = FAR_POSTS * sizeof(kvt_ring_post),
    FAR_BYTES = FAR_POST_BYTES + 2 * BLOCKS_MAX * sizeof(kvt_ring_context),
    FAR_LAUNCHES = 64
};
#define FAR_WAIT_NS UINT64_C(10000000000)

static void ring_far_close(ring_far *far)
{
    if (far->site == NULL) return;
    gpu_host_give(far->site, far->host);
    if (gpu_site_enter(far->site) == KVT_OK) {
        if (far->posts != 0) (void)far->site->driver.memory_free(far->posts);
        (void)!gpu_site_leave(far->site, GPU_SUCCESS);
    }
    gpu_site_close(far->site);
    *far = (ring_far){0};
}

static kvt_status ring_far_open(ring_far *far, char *reason, size_t reason_size)
{
    kvt_status status =
        gpu_site_open(0, GPU_ROOM_BYTES, GPU_ROOM_BYTES, &far->site, reason, reason_size);
    if (status == KVT_OK) status = gpu_host_take(far->site, FAR_BYTES, &far->host);
    if (status == KVT_OK) status = gpu_site_enter(far->site);
    if (status == KVT_OK)
        status =
            gpu_site_leave(far->site, far->site->driver.memory_allocate(&far->posts, FAR_BYTES));
    far->contexts = far->posts + FAR_POST_BYTES;
    return status;
}

/* Copies bytes of the image to the GPU, or back. */
static kvt_status ring_far_copy(const ring_far *far, gpu_way way, uint64_t bytes)
{
    const kvt_status status =
        way == GPU_IN ? gpu_copy_bytes(far->site, way, far->posts, far->host->memory, bytes)
                      : gpu_copy_back(far->site, far->host->memory, far->posts, bytes);
    return gpu_settle(far->site, way, status);
}

static kvt_status ring_far_launch(const ring_bench *bench, uint32_t first, uint32_t count)
{
    const uint64_t posts = bench->far.posts + first * sizeof(kvt_ring_post);
    return kvt_ring_gpu_launch(bench->ring, (void *)(uintptr_t)posts, count,
                               bench->far.site->streams[GPU_IN]);
}

/* Writes the posts of all kernels: kernel n posts layer n and waits for the one before. */
static kvt_status ring_far_prepare(ring_bench *bench)
{
    kvt_ring_post *posts = bench->far.host->memory;
    memset(posts, 0, FAR_POST_BYTES);
    for (uint32_t i = 0; i < (LAYERS + 1) * 2 * bench->posts; i++) {
        const uint32_t layer = i / 2 / bench->posts, post = i % bench->posts;
        const uint32_t left = 2 * bench->blocks - post * KVT_RING_CONTEXTS_MAX;
        const uint32_t count = left < KVT_RING_CONTEXTS_MAX ? left : KVT_RING_CONTEXTS_MAX;
        if (i / bench->posts % 2 == 0 && layer < LAYERS) {
            posts[i].mode = KVT_RING_POST;
            posts[i].wait_ns = FAR_WAIT_NS;
            posts[i].contexts =
                bench->far.contexts + post * KVT_RING_CONTEXTS_MAX * sizeof(kvt_ring_context);
            posts[i].block = ring_block(bench, 0, count, layer, true);
        } else if (i / bench->posts % 2 == 1 && layer > 0) {
            posts[i].mode = KVT_RING_WAIT;
            posts[i].wait_ns = FAR_WAIT_NS;
            posts[i].index = bench->next + (layer - 1) * bench->posts + post;
        }
    }
    kvt_ring_context *contexts =
        (kvt_ring_context *)(void *)((char *)bench->far.host->memory + FAR_POST_BYTES);
    for (uint32_t post = 0; post < bench->posts; post++)
        (void)ring_fill(bench, contexts + post * KVT_RING_CONTEXTS_MAX, post, 0);
    return ring_far_copy(&bench->far, GPU_IN, FAR_BYTES);
}

/* A kernel a layer, and one more. */
static kvt_status ring_pass_gpu(ring_bench *bench)
{
    kvt_status status = ring_far_prepare(bench);
    const double began = base_cpu_seconds();
    for (uint32_t layer = 0; layer <= LAYERS && status == KVT_OK; layer++)
        status = ring_far_launch(bench, layer * 2 * bench->posts, 2 * bench->posts);
    bench->calls += LAYERS + 1;
    bench->producer_ns = (uint64_t)((base_cpu_seconds() - began) * 1e9); /* of the launches */
    if (status == KVT_OK) status = gpu_settle(bench->far.site, GPU_IN, KVT_OK);
    if (status == KVT_OK) status = ring_far_copy(&bench->far, GPU_OUT, FAR_POST_BYTES);
    const kvt_ring_post *posts = bench->far.host->memory;
    for (uint32_t i = 0; i < (LAYERS + 1) * 2 * bench->posts && status == KVT_OK; i++) {
        if (posts[i].mode == KVT_RING_POST && posts[i].status != KVT_QUEUED)
            status = posts[i].status == KVT_OK ? KVT_E_CORRUPT : (kvt_status)posts[i].status;
        if (posts[i].mode != KVT_RING_WAIT) continue;
        status = posts[i].status != KVT_OK ? (kvt_status)posts[i].status
                                           : (kvt_status)posts[i].result.status;
        if (bench->sample_count < SAMPLES)
            bench->samples[bench->sample_count++] =
                posts[i].result.done_ns - posts[i].result.taken_ns;
    }
    return status;
}

/* Whether the last layer that kernels asked for is what gets bring. */
static kvt_status ring_far_same(const ring_bench *bench, bool *same_out)
{
    uint64_t bytes;
    kvt_status status = kvt_layout_bytes(&bench->layout, &bytes);
    char *packed = status == KVT_OK ? malloc(bytes) : NULL;
    if (packed == NULL) return status == KVT_OK ? KVT_E_MEMORY : status;
    const char *layer = bench->target + (LAYERS - 1) % FLIGHT * layer_bytes(bench);
    *same_out = true;
    for (uint32_t i = 0; i < bench->blocks && status == KVT_OK; i++) {
        status = kvt_store_get(bench->store, &bench->keys[i], KVT_PACKED(packed, bytes),
                               KVT_NO_DEADLINE, NULL);
        *same_out =
            *same_out && memcmp(layer + i * 2 * bench->matrix,
                                packed + (LAYERS - 1) * 2 * bench->matrix, 2 * bench->matrix) == 0;
    }
    free(packed);
    return status;
}

static kvt_status ring_pass(ring_bench *bench, ring_initiator initiator)
{
    kvt_status status = KVT_OK;
    bench->producer_ns = 0;
    if (initiator == HOST) status = ring_pass_host(bench);
    if (initiator == HOST_THREADS) status = ring_pass_threads(bench);
    if (initiator == GETS) return ring_pass_gets(bench);
    if (initiator == GPU) status = ring_pass_gpu(bench);
    bench->next += LAYERS * bench->posts;
    return status;
}

/* ---- rows ---- */

static int ring_compare_ns(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static double ring_share(ring_bench *bench, uint32_t percent)
{
    const uint32_t count = bench->sample_count < SAMPLES ? bench->sample_count : SAMPLES;
    qsort(bench->samples, count, sizeof bench->samples[0], ring_compare_ns);
    return count == 0 ? 0 : (double)bench->samples[(count - 1) * percent / 100] * 1e-3;
}

static kvt_status ring_measure(ring_bench *bench, ring_initiator initiator)
{
    static double rates[BENCH_ITERATIONS_MAX], users[BENCH_ITERATIONS_MAX],
        stores[BENCH_ITERATIONS_MAX];
    const double bytes = (double)layer_bytes(bench) * LAYERS;
    double filled = 0; /* once more, when the pages are there */
    kvt_status status = initiator == HOST ? ring_fill_kept(bench, &filled) : KVT_OK;
    if (status == KVT_OK && initiator == HOST) status = ring_fill_kept(bench, &filled);
    if (status == KVT_OK) status = ring_pass(bench, initiator); /* not counted: heads */
    bench->sample_count = 0;
    bench->calls = 0;
    for (uint32_t i = 0; i < bench->iterations && status == KVT_OK; i++) {
        const uint64_t began_ns = base_clock_ns();
        const double process = bench_process_seconds(), user = base_cpu_seconds();
        status = ring_pass(bench, initiator);
        double mine = base_cpu_seconds() - user;
        if (initiator == GPU) mine = (double)bench->producer_ns * 1e-9;
        rates[i] = bytes * 1e9 / (double)(base_clock_ns() - began_ns);
        users[i] = mine * 1e6 / LAYERS;
        if (initiator == HOST_THREADS) mine += (double)bench->producer_ns * 1e-9;
        stores[i] = (bench_process_seconds() - process - mine) / (bytes * 1e-9);
    }
    if (status != KVT_OK) return bench_blame(bench->report, status, initiator_names[initiator], "");
    const bench_rate rate = bench_rate_of(rates, bench->iterations);
    json_t *row = json_pack(
        "{s:s, s:s, s:s, s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "drives",
        bench->drives, "initiator", initiator_names[initiator], "data_path", "staged",
        "context_bytes", (json_int_t)bench->matrix, "blocks", (json_int_t)bench->blocks,
        "calls_per_layer", (double)bench->calls / bench->iterations / LAYERS,
        "user_cpu_us_per_layer", bench_rate_of(users, bench->iterations).median, "table_cpu_us",
        filled * 1e6, "store_cpu_s_per_gb", bench_rate_of(stores, bench->iterations).median,
        "post_to_done_us_p50", ring_share(bench, 50), "post_to_done_us_p99", ring_share(bench, 99),
        "ratio", bench->read_sum > 0 ? rate.median / bench->read_sum : 0, "contexts_per_s",
        rate.median / (double)bench->matrix);
    bench_report_row(bench->report, "results", bench_with_rate(row, "bytes_per_s", &rate));
    return KVT_OK;
}

/* All initiators of one size. */
static kvt_status ring_rows(ring_bench *bench, uint32_t blocks, uint64_t matrix, uint32_t threads,
                            ring_initiator end)
{
    kvt_status status = ring_site_open(bench, blocks, matrix, threads);
    for (int i = HOST; i < (int)end && status == KVT_OK; i++)
        status = ring_measure(bench, (ring_initiator)i);
    kvt_ring_stats stats = {.struct_size = sizeof stats};
    if (status == KVT_OK) status = kvt_ring_stats_get(bench->ring, &stats);
    if (status == KVT_OK && stats.failed != 0) status = KVT_E_CORRUPT;
    ring_site_close(bench);
    return bench_blame(bench->report, status, bench->drives, "");
}

/* Empty blocks of so many warps at once. */
static kvt_status ring_far_empty(ring_bench *bench, uint32_t lanes, bool same)
{
    const uint32_t warps = lanes / 32;
    kvt_ring_post *posts = bench->far.host->memory;
    for (uint32_t i = 0; i < warps; i++)
        posts[i] = (kvt_ring_post){.mode = KVT_RING_POST | KVT_RING_WAIT,
                                   .wait_ns = FAR_WAIT_NS,
                                   .contexts = bench->far.contexts,
                                   .block = {.deadline_ns = KVT_NO_DEADLINE}};
    kvt_status status = ring_far_copy(&bench->far, GPU_IN, warps * sizeof *posts);
    bench->sample_count = 0;
    for (uint32_t i = 0; i < FAR_LAUNCHES && status == KVT_OK; i++) {
        const uint64_t began_ns = base_clock_ns();
        status = ring_far_launch(bench, 0, warps);
        if (status == KVT_OK) status = gpu_settle(bench->far.site, GPU_IN, KVT_OK);
        bench->samples[bench->sample_count++] = base_clock_ns() - began_ns;
    }
    if (status == KVT_OK) status = ring_far_copy(&bench->far, GPU_OUT, warps * sizeof *posts);
    for (uint32_t i = 0; i < warps && status == KVT_OK; i++)
        status = posts[i].status;
    if (status != KVT_OK) return status;
    const double median_us = ring_share(bench, 50);
    bench_report_row(bench->report, "gpu",
                     json_pack("{s:i, s:f, s:f, s:f, s:b, s:n}", "lanes", (int)lanes,
                               "round_trip_us_p50", median_us, "round_trip_us_p99",
                               ring_share(bench, 99), "posts_per_s", warps * 1e6 / median_us,
                               "same_bytes", same, "not_run"));
    return KVT_OK;
}

/* Kernels of a GPU as the producer, or a row that says why not. */
static kvt_status ring_rows_gpu(ring_bench *bench, uint32_t blocks, uint64_t matrix)
{
    char reason[160] = "";
    bool same = false;
    kvt_status status = ring_far_open(&bench->far, reason, sizeof reason);
    const bool there = status == KVT_OK;
    if (there) status = ring_site_open(bench, blocks, matrix, 0);
    if (there && status == KVT_OK) status = kvt_ring_gpu_open(bench->ring, 0);
    if (status == KVT_E_UNSUPPORTED && reason[0] == '\0')
        (void)snprintf(reason, sizeof reason, "the driver takes no kernels");
    if (status == KVT_OK) status = ring_measure(bench, GPU);
    if (status == KVT_OK) status = ring_far_same(bench, &same);
    if (status == KVT_OK && !same) status = KVT_E_CORRUPT;
    if (status == KVT_OK) status = ring_far_empty(bench, 32, same);
    if (status == KVT_OK) status = ring_far_empty(bench, 2048, same);
    if (there) ring_site_close(bench);
    ring_far_close(&bench->far);
    if (reason[0] == '\0') return bench_blame(bench->report, status, "gpu", "");
    bench_report_row(bench->report, "gpu",
                     json_pack("{s:n, s:n, s:n, s:n, s:n, s:s}", "lanes", "round_trip_us_p50",
                               "round_trip_us_p99", "posts_per_s", "same_bytes", "not_run",
                               reason));
    return KVT_OK;
}

/* Drives of memory alone, without a throttle. */
static void ring_take_memory(kvt_device_config own[BENCH_OWN_DRIVES])
{
    static const char *const names[BENCH_OWN_DRIVES] = {"ram0", "ram1", "ram2", "ram3"};
    for (uint32_t i = 0; i < BENCH_OWN_DRIVES; i++)
        own[i] = (kvt_device_config){.struct_size = sizeof own[i],
                                     .name = names[i],
                                     .backend = "memory",
                                     .capacity_bytes = DRIVE_BYTES / 4};
}

static kvt_status ring_run(const bench_options *options, bench_report *report)
{
    kvt_device_config own[BENCH_OWN_DRIVES], memory[BENCH_OWN_DRIVES];
    bench_options given = *options;
    kvt_status status = bench_take_drives(&given, DRIVE_BYTES, 0, own, report);
    if (status != KVT_OK) return status;
    ring_bench *bench = calloc(1, sizeof *bench);
    char *buffer = bench_buffer(ALONE_BYTES);
    if (bench == NULL || buffer == NULL) status = KVT_E_MEMORY;
    if (status == KVT_OK) {
        bench->options = &given;
        bench->report = report;
        bench->drives = "given";
        bench->placement = KVT_PLACE_TENSOR;
        bench->iterations = bench_repetitions(given.iterations, ITERATIONS_DEFAULT, given.quick);
    }
    for (uint32_t i = 0; i < given.device_count && status == KVT_OK; i++)
        status = ring_alone(bench, i, buffer);
    const uint32_t most = given.quick ? 64 : BLOCKS_MAX;
    for (uint32_t blocks = 16; blocks <= most && status == KVT_OK; blocks *= 4) {
        (void)bench_tell(options, blocks, 2 * most, "blocks");
        status = ring_rows(bench, blocks, 4 * KIB, 0, INITIATORS);
    }
    for (uint64_t matrix = 16 * KIB; matrix <= 256 * KIB && status == KVT_OK; matrix *= 4) {
        (void)bench_tell(options, most, 2 * most, "sizes");
        const uint64_t bytes = given.quick ? MIB : LAYER_BYTES;
        status = ring_rows(bench, (uint32_t)(bytes / matrix / 2), matrix, 0, GETS);
    }
    if (status == KVT_OK) status = ring_rows_gpu(bench, most / 4, 4 * KIB);
    if (status == KVT_OK) {
        const bench_options real = given;
        ring_take_memory(memory);
        given.devices = memory;
        given.device_count = BENCH_OWN_DRIVES;
        bench->drives = "memory";
        bench->placement = KVT_PLACE_ENTRY; /* read where they lie */
        bench_report_set(report, "device_sum_bytes_per_s", json_real(bench->read_sum));
        bench->read_sum = 0;
        for (uint64_t matrix = KIB; matrix <= 4 * KIB && status == KVT_OK; matrix *= 4)
            status = ring_rows(bench, given.quick ? 64 : 1024, matrix, 1, GETS);
        given = real;
    }
    if (status == KVT_OK) bench_report_set(report, "repetitions", json_integer(bench->iterations));
    free(buffer);
    free(bench);
    return status;
}

const bench_case bench_ring_case = {
    .name = "ring",
    .schema = "kvterrace-bench-ring-1",
    .tables =
        (const document_table[]){{"results", "drives initiator data_path context_bytes blocks "
                                             "calls_per_layer user_cpu_us_per_layer table_cpu_us "
                                             "store_cpu_s_per_gb "
                                             "post_to_done_us_p50 post_to_done_us_p99 ratio "
                                             "contexts_per_s bytes_per_s"},
                                 {"gpu", "lanes round_trip_us_p50 round_trip_us_p99 posts_per_s "
                                         "same_bytes not_run"},
                                 {0}},
    .run = ring_run,
};
