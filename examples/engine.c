/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine.c - kvterrace under a serving engine: a paged KV pool, entries of 64 tokens in DRAM and on
 * an SSD, one request that computes them and a second one that finds them. It shows keys from a
 * space, paged views, batches through a queue whose descriptor an event loop polls, the worth of a
 * prefix, prefetches, a lease and what it holds, a layered load with a deadline, and metrics.
 *
 * The SSD is a file in a temporary folder, which the program removes at its end.
 *
 * Compile: cc -std=c11 engine.c $(pkg-config --cflags --libs kvterrace)
 */
#define _POSIX_C_SOURCE 200809L /* clock_gettime, mkdtemp */

#include <kvterrace/gpu.h>
#include <kvterrace/key.h>
#include <kvterrace/kvterrace.h>
#include <kvterrace/lookup.h>
#include <kvterrace/queue.h>
#include <kvterrace/watch.h>

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { LAYERS = 8, HEADS = 2, DIM = 64, BLOCK_TOKENS = 16, BLOCKS = 256, ENTRIES = 16 };
enum { ENTRY_TOKENS = 64, ENTRY_BLOCKS = ENTRY_TOKENS / BLOCK_TOKENS };

/* The pool of a flash-attention engine: [layer][block][token][head][K, V]. */
#define BLOCK_BYTES ((size_t)BLOCK_TOKENS * HEADS * 2 * DIM * 2)
#define LAYER_BYTES (BLOCKS * BLOCK_BYTES)
#define POOL_BYTES  (LAYERS * LAYER_BYTES)

/* DRAM for half of the entries, so that the others lie on the SSD. */
#define ENTRY_BYTES ((size_t)LAYERS * ENTRY_BLOCKS * BLOCK_BYTES)
#define DRAM_BYTES  (ENTRIES / 2 * ENTRY_BYTES)
#define SSD_BYTES   (16 * ENTRIES * ENTRY_BYTES)

typedef struct engine {
    unsigned char *pool;
    kvt_layout layout; /* of an entry */
    kvt_space_hash space;
    kvt_store *store;
    kvt_queue *queue;
    kvt_key keys[ENTRIES];
    kvt_view views[ENTRIES];
    const kvt_view *view_pointers[ENTRIES];
    uint32_t blocks[ENTRIES][ENTRY_BLOCKS]; /* the engine's block table, cut by entries */
    void *stream; /* that computes, where the pool is memory of a GPU (gpu.h); NULL: the host's */
} engine;

static int fail(const char *what, kvt_status status)
{
    fprintf(stderr, "engine: %s: %s\n", what, kvt_status_text(status));
    return 1;
}

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Everything that changes the bytes of an entry is part of its key. */
static kvt_status name_entries(engine *own)
{
    kvt_space space;
    kvt_space_init(&space);
    space.model = "example-8l";
    space.revision = "r1";
    space.dtype = "bf16";
    space.layers = LAYERS;
    space.kv_heads = HEADS;
    space.head_dim = DIM;
    space.sides = 2;
    space.block_tokens = ENTRY_TOKENS;
    kvt_status status = kvt_space_make(&space, &own->space);
    for (uint32_t i = 0; i < ENTRIES && status == KVT_OK; i++) {
        char name[32]; /* an engine takes its own hash over the tokens so far */
        int length = snprintf(name, sizeof name, "prefix-of-%u-tokens", (i + 1) * ENTRY_TOKENS);
        status = kvt_key_make(&own->space, name, (size_t)length, 0, &own->keys[i]);
    }
    return status;
}

/* Where each entry lies: four blocks of the pool. `stride` scatters them, as a pool in use does. */
static kvt_status place_entries(engine *own, uint32_t stride)
{
    for (uint32_t i = 0; i < ENTRIES; i++) {
        kvt_view *view = &own->views[i];
        kvt_status status = kvt_view_make(&own->layout, "lbths", BLOCK_TOKENS, BLOCKS, view);
        if (status != KVT_OK) return status;
        for (uint32_t j = 0; j < ENTRY_BLOCKS; j++)
            own->blocks[i][j] = (i * ENTRY_BLOCKS + j) * stride % BLOCKS;
        view->base[0] = own->pool;
        view->blocks = own->blocks[i];
        view->block_count = ENTRY_BLOCKS;
        own->view_pointers[i] = view;
        char message[128];
        status = kvt_view_check(view, &own->layout, message, sizeof message);
        if (status != KVT_OK) return status;
    }
    return KVT_OK;
}

/* Stands for attention over one layer: a number that depends on each byte of the entries' KV. */
static uint64_t compute(const engine *own, uint32_t layer)
{
    uint64_t sum = layer;
    for (uint32_t i = 0; i < ENTRIES; i++) {
        for (uint32_t j = 0; j < ENTRY_BLOCKS; j++) {
            const unsigned char *block =
                own->pool + layer * LAYER_BYTES + own->blocks[i][j] * BLOCK_BYTES;
            for (size_t at = 0; at < BLOCK_BYTES; at++)
                sum = sum * 31 + block[at];
        }
    }
    return sum;
}

/* The event loop, until the batches that were submitted have completed. An engine polls its sockets
 * and its GPU beside the queue's descriptor, and goes on with other requests between two events.
 * refused: how many requests the store would not carry out; that is no failure. */
static kvt_status run_events(engine *own, uint32_t expected, uint32_t *refused)
{
    kvt_completion done[ENTRIES] = {{.struct_size = sizeof(kvt_completion)}};
    struct pollfd event = {.fd = kvt_queue_fd(own->queue), .events = POLLIN};
    kvt_status status = KVT_OK;
    *refused = 0;
    while (expected > 0) {
        if (poll(&event, 1, -1) < 0) continue; /* a signal */
        size_t count = kvt_queue_drain(own->queue, done, ENTRIES);
        for (size_t i = 0; i < count; i++) {
            if (done[i].status < 0) status = done[i].status;
            if (done[i].status > 0) ++*refused;
        }
        expected -= (uint32_t)count;
    }
    return status;
}

/* Puts all entries in one call. What the store refuses is recomputed when it is asked for. */
static kvt_status put_entries(engine *own)
{
    kvt_request requests[ENTRIES];
    kvt_entry entries[ENTRIES];
    uint32_t refused;
    for (uint32_t i = 0; i < ENTRIES; i++) {
        entries[i] = (kvt_entry){.struct_size = sizeof(kvt_entry),
                                 .key = own->keys[i],
                                 .parent = i > 0 ? &own->keys[i - 1] : NULL,
                                 .layout = own->layout,
                                 .first_position = i * ENTRY_TOKENS,
                                 .recompute_seconds = 0.1};
        requests[i] = (kvt_request){.struct_size = sizeof(kvt_request),
                                    .kind = KVT_REQUEST_PUT,
                                    .entry = &entries[i],
                                    .view = &own->views[i],
                                    .deadline_ns = KVT_NO_DEADLINE, /* waits for room */
                                    .user = i};
    }
    kvt_status status = kvt_queue_submit(own->queue, requests, ENTRIES, NULL);
    if (status != KVT_OK) return status;
    /* Entries and views are borrowed until their completions. */
    status = run_events(own, ENTRIES, &refused);
    printf("put %u entries, refused %u\n", (unsigned)ENTRIES, refused);
    return status;
}

/* The second request has arrived and waits for its turn: what lies on the SSD is offered for a move
 * up. The policy takes what is worth it; the rest is loaded from where it lies. */
static kvt_status prefetch_entries(engine *own)
{
    kvt_request requests[ENTRIES];
    uint32_t refused;
    for (uint32_t i = 0; i < ENTRIES; i++)
        requests[i] = (kvt_request){.struct_size = sizeof(kvt_request),
                                    .kind = KVT_REQUEST_PREFETCH,
                                    .urgency = KVT_CLASS_PREFETCH,
                                    .tier = KVT_TIER_DRAM,
                                    .key = own->keys[i]};
    kvt_status status = kvt_queue_submit(own->queue, requests, ENTRIES, NULL);
    if (status == KVT_OK) status = run_events(own, ENTRIES, &refused);
    if (status == KVT_OK)
        printf("prefetch: %u are in DRAM or on their way, %u stay\n", ENTRIES - refused, refused);
    return status;
}

/* Computes each layer as it comes. sums: of the first request, by layer. */
static kvt_status load_entries(engine *own, uint64_t until_ns, const uint64_t *sums,
                               uint32_t *layers_equal)
{
    const kvt_load_options options = {.struct_size = sizeof options, .deadline_ns = until_ns};
    kvt_load *load;
    kvt_status status =
        kvt_load_begin(own->queue, own->keys, own->view_pointers, ENTRIES, &options, &load);
    if (status != KVT_OK) return status; /* the lease ends with the queue, or at its instant */
    for (uint32_t layer = 0; layer < LAYERS && status == KVT_OK; layer++) {
        status = own->stream != NULL
                     ? kvt_load_wait_layer(load, layer, own->stream)
                     : kvt_load_wait(load, layer + 1, until_ns); /* layer + 1 is on its way */
        if (status == KVT_OK && compute(own, layer) == sums[layer]) ++*layers_equal;
        kvt_load_release(load, layer + 1);
    }
    kvt_status statuses[ENTRIES];
    (void)kvt_load_end(load, statuses, NULL); /* what it says counts: an entry may have failed */
    for (uint32_t i = 0; i < ENTRIES; i++)
        if (statuses[i] != KVT_OK) status = statuses[i];
    return status;
}

/* The second request: finds the prefix, brings it up, holds what it may, and loads it. */
static kvt_status serve(engine *own, const uint64_t *sums, uint32_t *layers_equal)
{
    kvt_worth worth = {.struct_size = sizeof worth};
    kvt_status status =
        kvt_store_match(own->store, own->keys, ENTRIES, KVT_MATCH(.worth = &worth), NULL);
    if (status != KVT_OK) return status;
    printf("stored %zu entries, worth loading %zu: %.1f ms instead of %.1f ms\n", worth.stored,
           worth.to_load, worth.load_seconds * 1e3, worth.recompute_seconds * 1e3);
    if (worth.to_load != ENTRIES) return KVT_MISS; /* an engine recomputes the rest */
    status = prefetch_entries(own);
    if (status != KVT_OK) return status;

    /* Leases hold at most half of a tier: the entries beyond that may move, and are loaded all the
     * same while they are stored. */
    bool held[ENTRIES];
    uint32_t held_count = 0;
    uint64_t lease, until_ns = now_ns() + 10000000000u;
    status = kvt_lease_begin(own->store, own->queue, own->keys, ENTRIES, until_ns, held, &lease);
    if (status < 0) return status; /* KVT_MISS: none could be held */
    for (uint32_t i = 0; i < ENTRIES; i++)
        held_count += held[i];
    printf("leased %u of %u entries\n", held_count, (unsigned)ENTRIES);
    status = load_entries(own, until_ns, sums, layers_equal);
    /* KVT_MISS: the lease ended by itself, because its entries left it. */
    kvt_status ended = lease != 0 ? kvt_lease_end(own->store, lease) : KVT_OK;
    return status == KVT_OK && ended < 0 ? ended : status;
}

/* Prints the lines of the metrics that begin with a name. */
static void print_metrics(kvt_store *store, const char *name)
{
    size_t size = kvt_metrics_write(store, NULL, 0) + 1024; /* counters grow meanwhile */
    char *text = malloc(size);
    if (text == NULL) return;
    (void)kvt_metrics_write(store, text, size);
    for (const char *line = text; *line != 0;) {
        size_t length = strcspn(line, "\n");
        if (strncmp(line, name, strlen(name)) == 0) printf("%.*s\n", (int)length, line);
        line += length + (line[length] != 0);
    }
    free(text);
}

/* Opens a store of DRAM and of an SSD, which is a file at a path. */
static int open_store(engine *own, const char *path)
{
    const kvt_device_config device = {.struct_size = sizeof device,
                                      .name = "ssd0",
                                      .backend = "file",
                                      .path = path,
                                      .capacity_bytes = SSD_BYTES};
    kvt_store_options options;
    char message[256];
    kvt_store_options_init(&options);
    options.tiers[KVT_TIER_DRAM].capacity_bytes = DRAM_BYTES;
    options.tiers[KVT_TIER_SSD].devices = &device;
    options.tiers[KVT_TIER_SSD].device_count = 1;
    kvt_status status = kvt_store_open(&options, &own->store, message, sizeof message);
    if (status != KVT_OK) return fail(message, status);
    status = kvt_queue_open(own->store, NULL, &own->queue);
    if (status == KVT_OK) return 0;
    kvt_store_close(own->store);
    return fail("no queue", status);
}

/* Two requests for one prefix: the first computes it, the second finds it. */
static int run_requests(engine *own)
{
    uint64_t sums[LAYERS];
    uint32_t layers_equal = 0;
    for (size_t i = 0; i < POOL_BYTES; i++)
        own->pool[i] = (unsigned char)(i * 31 + (i >> 11));
    kvt_status status = name_entries(own);
    if (status == KVT_OK) status = place_entries(own, 1);
    if (status != KVT_OK) return fail("names and places", status);
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        sums[layer] = compute(own, layer);
    status = put_entries(own);
    if (status != KVT_OK) return fail("put", status);

    /* The pool is another request's by now; the second one gets other blocks. */
    memset(own->pool, 0, POOL_BYTES);
    status = place_entries(own, 37);
    if (status == KVT_OK) status = serve(own, sums, &layers_equal);
    print_metrics(own->store, "kvterrace_hits_total");
    if (status != KVT_OK) return fail("serve", status);
    printf("%u of %u layers as computed\n", layers_equal, (unsigned)LAYERS);
    return layers_equal == LAYERS ? 0 : 1;
}

int main(void)
{
    engine own = {.layout = {.layers = LAYERS,
                             .kv_heads = HEADS,
                             .head_dim = DIM,
                             .dtype = KVT_DTYPE_BF16,
                             .tokens = ENTRY_TOKENS}};
    char folder[] = "/tmp/kvterrace-engine-XXXXXX", path[sizeof folder + 8];
    own.pool = malloc(POOL_BYTES);
    if (own.pool == NULL || mkdtemp(folder) == NULL) return fail("no pool or folder", KVT_E_MEMORY);
    (void)snprintf(path, sizeof path, "%s/ssd0", folder);
    int result = open_store(&own, path);
    if (result == 0) {
        result = run_requests(&own);
        kvt_queue_close(own.queue);
        kvt_store_close(own.store);
    }
    (void)unlink(path);
    (void)rmdir(folder);
    free(own.pool);
    return result;
}
