/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_queue_loss.c - batches of requests over devices that go: what was lost ends, whoever
 * holds it, and a device that comes back brings its entries while requests come.
 */
#include "queue_site.h"
#include "store_site.h"

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
        views[i] = kvt_view_packed(buffers + (size_t)i * SUPPORT_ENTRY_BYTES, SUPPORT_ENTRY_BYTES);
        requests[i] = (kvt_request){.struct_size = sizeof(kvt_request),
                                    .kind = kind,
                                    .key = support_key(i),
                                    .view = kind == KVT_REQUEST_GET ? &views[i] : NULL,
                                    .deadline_ns = KVT_NO_DEADLINE,
                                    .user = i};
    }
}

/* The reads of a chunk fail together. The first that ends takes all entries of the device out of
 * the store, while the others, in the hands of the same thread, are readers of theirs. */
TEST(a_chunk_whose_device_goes)
{
    kvt_completion done[ENTRIES];
    queue_site_open(true, ENTRIES, 1);
    queue_site_fault((tiers_fault_rule){.action = TIERS_FAULT_HANG, .kinds = TIERS_FAULT_READS});
    make_requests(KVT_REQUEST_GET);
    assert_ok(kvt_queue_submit(queue, requests, ENTRIES, NULL));
    while (queue_site_stats().device_reads < ENTRIES)
        ;
    tiers_fault_set_gone(fault.device, true);
    tiers_fault_clear(fault.device);
    queued_await(queue, ENTRIES, done);
    for (uint32_t i = 0; i < ENTRIES; i++)
        assert_int_equal(done[i].status, KVT_MISS);
    kvt_queue_close(queue);
    queue = NULL;
    kvt_store_stats after = support_stats(store);
    assert_int_equal(after.tiers[KVT_TIER_DRAM].entries, 0);
    assert_int_equal(after.tiers[KVT_TIER_DRAM].used_bytes, 0);
    assert_int_equal(after.staging_bytes, 0);
}

/* The thread that loads an entry deletes it in the middle: the load goes on with what it holds, and
 * the room is free when the load has ended. */
TEST(a_delete_in_the_middle_of_a_load)
{
    static char expected[SUPPORT_ENTRY_BYTES];
    queue_site_open(true, ENTRIES, 1);
    make_requests(KVT_REQUEST_GET);
    const kvt_key key = support_key(3);
    const kvt_view *view = &views[3];
    kvt_load *load = NULL;
    kvt_status status = KVT_MISS;
    assert_ok(kvt_load_begin(queue, &key, &view, 1, NULL, &load));
    assert_ok(kvt_load_wait(load, 1, KVT_NO_DEADLINE));
    assert_ok(queued_delete(queue, &key));
    assert_int_equal(kvt_store_exists(store, &key), KVT_MISS);
    assert_ok(support_put(store, 3));
    uint64_t both = support_stats(store).tiers[KVT_TIER_DRAM].used_bytes;
    assert_ok(kvt_load_wait(load, support_layout.layers, KVT_NO_DEADLINE));
    assert_ok(kvt_load_end(load, &status, NULL));
    assert_ok(status);
    support_fill(3, expected);
    assert_memory_equal(buffers + 3 * (size_t)SUPPORT_ENTRY_BYTES, expected, sizeof expected);
    assert_true(support_stats(store).tiers[KVT_TIER_DRAM].used_bytes < both);
    assert_ok(support_get(store, 3, NULL));
}

/* ---- a device that comes back ---- */

static atomic_bool stop;
static atomic_uint hits, misses, wrong;

/* Batches of gets, one after the other. */
static void *traffic_main(void *argument)
{
    static char expected[SUPPORT_ENTRY_BYTES];
    kvt_completion done[ENTRIES];
    kvt_queue *own = argument;
    while (!atomic_load(&stop)) {
        if (kvt_queue_submit(own, requests, ENTRIES, NULL) != KVT_OK) abort();
        queued_await(own, ENTRIES, done);
        for (uint32_t i = 0; i < ENTRIES; i++) {
            support_fill(i, expected);
            const char *got = buffers + (size_t)i * SUPPORT_ENTRY_BYTES;
            if (done[i].status == KVT_MISS)
                misses++;
            else if (done[i].status == KVT_OK && memcmp(got, expected, sizeof expected) == 0)
                hits++;
            else
                wrong++;
        }
    }
    return NULL;
}

/* A disk goes and comes back, again and again, while batches are under way: nothing is lost. */
TEST(a_device_comes_back_under_batches)
{
    pthread_t thread;
    /* SSD alone; every entry is striped over both disks. */
    site *s = site_prepare((site_shape){.disks = DISKS, .disk_bytes = 2 << 20, .unit_bytes = 4096});
    site_open(s);
    site_put(s, 0, ENTRIES);
    store = s->store;
    queue = queue_site_queue(2, 0);
    make_requests(KVT_REQUEST_GET);
    assert_int_equal(pthread_create(&thread, NULL, traffic_main, queue), 0);
    for (uint32_t i = 0; i < RETURNS; i++) {
        uint32_t disk = i % DISKS, before = hits;
        while (hits == before) /* until gets are served again */
            base_sleep(100000);
        tiers_fault_set_gone(s->disks[disk].device, true);
        while (site_stored(s, ENTRIES) != 0) /* until a get has met it */
            base_sleep(100000);
        kvt_status status;
        do
            status = kvt_device_add(s->store, KVT_TIER_SSD, &s->files[disk], NULL, 0);
        while (status == KVT_BUSY);
        assert_ok(status);
        assert_int_equal(site_stored(s, ENTRIES), ENTRIES);
    }
    atomic_store(&stop, true);
    pthread_join(thread, NULL);
    assert_int_equal(wrong, 0);
    assert_true(misses > 0);
    assert_int_equal(site_hits(s, ENTRIES), ENTRIES);
    kvt_store_stats stats = support_stats(s->store);
    assert_int_equal(stats.quarantined, RETURNS * ENTRIES);
    assert_int_equal(stats.readmitted, RETURNS * ENTRIES);
    queue_site_close(NULL);
    s->store = NULL;
}

TEST_EACH(NULL, queue_site_close);

int main(void)
{
    buffers = test_alloc((size_t)ENTRIES * SUPPORT_ENTRY_BYTES);
    return tests_run();
}
