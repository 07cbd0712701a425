/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_queue_loss.c - batches of requests over devices that go: what was lost ends, whoever
 * holds it, and a device that comes back brings its entries while requests come.
 */
#include "store_support.h"

#include "base/clock.h"
#include "queued.h"

#include <kvterrace/load.h>
#include <pthread.h>
#include <stdatomic.h>

enum { ENTRIES = 12, DISKS = 2, RETURNS = 25 };

static char *buffers; /* ENTRIES entries */
static kvt_view views[ENTRIES];
static kvt_request requests[ENTRIES];

static void make_requests(uint32_t kind)
{
    for (uint32_t i = 0; i < ENTRIES; i++) {
        views[i] = kvt_view_packed(&support_layout, buffers + (size_t)i * SUPPORT_ENTRY_BYTES);
        requests[i] = (kvt_request){.struct_size = sizeof(kvt_request),
                                    .kind = kind,
                                    .key = support_key(i),
                                    .view = kind == KVT_REQUEST_GET ? &views[i] : NULL,
                                    .deadline_ns = KVT_NO_DEADLINE,
                                    .user = i};
    }
}

static kvt_queue *open_queue(kvt_store *store, uint32_t threads)
{
    const kvt_queue_options options = {.struct_size = sizeof options, .threads = threads};
    kvt_queue *queue = NULL;
    assert_int_equal(kvt_queue_open(store, &options, &queue), KVT_OK);
    return queue;
}

/* DRAM of one device whose content goes with it; every get is a read. */
static kvt_store *open_memory(support_fault *fault, kvt_device_config *device)
{
    kvt_store_options options;
    *fault = (support_fault){.capacity_bytes = 8 << 20};
    *device = support_fault_config(fault, "mem");
    kvt_store_options_init(&options);
    options.put_staging_bytes = 0;
    options.staging_bytes = 16 << 20;
    options.policy = "lru";
    options.tick_seconds = 0;
    options.lossless = false;
    options.tiers[KVT_TIER_DRAM].devices = device;
    options.tiers[KVT_TIER_DRAM].device_count = 1;
    kvt_store *store = NULL;
    assert_int_equal(kvt_open(&options, &store, NULL, 0), KVT_OK);
    for (uint32_t i = 0; i < ENTRIES; i++)
        assert_int_equal(support_put(store, i), KVT_OK);
    return store;
}

/* The reads of a chunk fail together. The first that ends takes all entries of the device out of
 * the store, while the others, in the hands of the same thread, are readers of theirs. */
TEST(a_chunk_whose_device_goes)
{
    support_fault fault;
    kvt_device_config device;
    kvt_completion done[ENTRIES];
    kvt_store *store = open_memory(&fault, &device);
    kvt_queue *queue = open_queue(store, 1);
    const tiers_fault_rule hang = {.action = TIERS_FAULT_HANG, .kinds = TIERS_FAULT_READS};
    assert_int_equal(tiers_fault_add(fault.device, &hang), KVT_OK);
    make_requests(KVT_REQUEST_GET);
    assert_int_equal(kvt_submit(queue, requests, ENTRIES, NULL), KVT_OK);
    kvt_queue_stats stats = {.struct_size = sizeof stats};
    do
        assert_int_equal(kvt_queue_stats_get(queue, &stats), KVT_OK);
    while (stats.device_reads < ENTRIES);
    tiers_fault_set_gone(fault.device, true);
    tiers_fault_clear(fault.device);
    queued_await(queue, ENTRIES, done);
    for (uint32_t i = 0; i < ENTRIES; i++)
        assert_int_equal(done[i].status, KVT_MISS);
    kvt_queue_close(queue);
    kvt_store_stats after = support_stats(store);
    assert_int_equal(after.tiers[KVT_TIER_DRAM].entries, 0);
    assert_int_equal(after.tiers[KVT_TIER_DRAM].used_bytes, 0);
    assert_int_equal(after.staging_bytes, 0);
    kvt_close(store);
}

/* The thread that loads an entry deletes it in the middle: the load goes on with what it holds, and
 * the room is free when the load has ended. */
TEST(a_delete_in_the_middle_of_a_load)
{
    static char expected[SUPPORT_ENTRY_BYTES];
    support_fault fault;
    kvt_device_config device;
    kvt_store *store = open_memory(&fault, &device);
    kvt_queue *queue = open_queue(store, 1);
    make_requests(KVT_REQUEST_GET);
    const kvt_key key = support_key(3);
    const kvt_view *view = &views[3];
    kvt_load *load = NULL;
    kvt_status status = KVT_MISS;
    assert_int_equal(kvt_load_begin(queue, &key, &view, 1, NULL, &load), KVT_OK);
    assert_int_equal(kvt_load_wait(load, 1, KVT_NO_DEADLINE), KVT_OK);
    assert_int_equal(queued_delete(queue, &key), KVT_OK);
    assert_int_equal(kvt_exists(store, &key), KVT_MISS);
    assert_int_equal(support_put(store, 3), KVT_OK);
    uint64_t both = support_stats(store).tiers[KVT_TIER_DRAM].used_bytes;
    assert_int_equal(kvt_load_wait(load, support_layout.layers, KVT_NO_DEADLINE), KVT_OK);
    assert_int_equal(kvt_load_end(load, &status, NULL), KVT_OK);
    assert_int_equal(status, KVT_OK);
    support_fill(3, expected);
    assert_memory_equal(buffers + 3 * (size_t)SUPPORT_ENTRY_BYTES, expected, sizeof expected);
    assert_true(support_stats(store).tiers[KVT_TIER_DRAM].used_bytes < both);
    assert_int_equal(support_get(store, 3, NULL), KVT_OK);
    kvt_queue_close(queue);
    kvt_close(store);
}

/* ---- a device that comes back ---- */

typedef struct site {
    char folder[64], catalog[96], paths[DISKS][96];
    support_fault disks[DISKS];
    kvt_device_config configs[DISKS];
    kvt_store *store;
    atomic_bool stop;
    atomic_uint hits, misses, wrong;
} site;

/* SSD alone; every entry is striped over both disks. */
static void site_make(site *s)
{
    static const char *const names[DISKS] = {"disk0", "disk1"};
    kvt_store_options options;
    support_make_folder(s->folder, sizeof s->folder);
    snprintf(s->catalog, sizeof s->catalog, "%s/catalog.db", s->folder);
    for (int i = 0; i < DISKS; i++) {
        snprintf(s->paths[i], sizeof s->paths[i], "%s/%s", s->folder, names[i]);
        s->disks[i] = (support_fault){.capacity_bytes = 2 << 20, .path = s->paths[i]};
        s->configs[i] = support_fault_config(&s->disks[i], names[i]);
    }
    kvt_store_options_init(&options);
    options.put_staging_bytes = 0;
    options.staging_bytes = 8 << 20;
    options.catalog_path = s->catalog;
    options.policy = "lru";
    options.tick_seconds = 0;
    options.tiers[KVT_TIER_SSD] = (kvt_tier_options){
        .devices = s->configs, .device_count = DISKS, .unit_bytes = 4096, .weights_fixed = true};
    assert_int_equal(kvt_open(&options, &s->store, NULL, 0), KVT_OK);
    for (uint32_t i = 0; i < ENTRIES; i++)
        assert_int_equal(support_put(s->store, i), KVT_OK);
    assert_int_equal(kvt_flush(s->store), KVT_OK);
}

/* Batches of gets, one after the other. */
static void *traffic_main(void *argument)
{
    static char expected[SUPPORT_ENTRY_BYTES];
    site *s = argument;
    kvt_completion done[ENTRIES];
    kvt_queue *queue = open_queue(s->store, 2);
    while (!atomic_load(&s->stop)) {
        if (kvt_submit(queue, requests, ENTRIES, NULL) != KVT_OK) abort();
        queued_await(queue, ENTRIES, done);
        for (uint32_t i = 0; i < ENTRIES; i++) {
            support_fill(i, expected);
            const char *got = buffers + (size_t)i * SUPPORT_ENTRY_BYTES;
            if (done[i].status == KVT_MISS)
                s->misses++;
            else if (done[i].status == KVT_OK && memcmp(got, expected, sizeof expected) == 0)
                s->hits++;
            else
                s->wrong++;
        }
    }
    kvt_queue_close(queue);
    return NULL;
}

static uint32_t count_stored(site *s)
{
    uint32_t stored = 0;
    for (uint32_t i = 0; i < ENTRIES; i++) {
        const kvt_key key = support_key(i);
        stored += kvt_exists(s->store, &key) == KVT_OK;
    }
    return stored;
}

/* A disk goes and comes back, again and again, while batches are under way: nothing is lost. */
TEST(a_device_comes_back_under_batches)
{
    static site s;
    pthread_t thread;
    site_make(&s);
    make_requests(KVT_REQUEST_GET);
    assert_int_equal(pthread_create(&thread, NULL, traffic_main, &s), 0);
    for (uint32_t i = 0; i < RETURNS; i++) {
        uint32_t disk = i % DISKS, hits = s.hits;
        while (s.hits == hits) /* until gets are served again */
            base_sleep(100000);
        tiers_fault_set_gone(s.disks[disk].device, true);
        while (count_stored(&s) != 0) /* until a get has met it */
            base_sleep(100000);
        kvt_status status;
        do
            status = kvt_store_device_add(s.store, KVT_TIER_SSD, &s.configs[disk], NULL, 0);
        while (status == KVT_BUSY);
        assert_int_equal(status, KVT_OK);
        assert_int_equal(count_stored(&s), ENTRIES);
    }
    atomic_store(&s.stop, true);
    pthread_join(thread, NULL);
    assert_int_equal(s.wrong, 0);
    assert_true(s.misses > 0);
    for (uint32_t i = 0; i < ENTRIES; i++)
        assert_int_equal(support_get(s.store, i, NULL), KVT_OK);
    kvt_store_stats stats = support_stats(s.store);
    assert_int_equal(stats.quarantined, RETURNS * ENTRIES);
    assert_int_equal(stats.readmitted, RETURNS * ENTRIES);
    kvt_close(s.store);
    support_remove_folder(s.folder);
}

int main(void)
{
    buffers = malloc((size_t)ENTRIES * SUPPORT_ENTRY_BYTES);
    if (buffers == NULL) return 1;
    int failed = tests_run();
    free(buffers);
    return failed;
}
