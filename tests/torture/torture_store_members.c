/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torture_store_members.c - gets, puts and deletes from several threads while devices vanish, come
 * back, drain and are removed; every answer is the right bytes, a miss or an open refusal.
 */
#include "store_support.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

/* What never comes is ended by the time limit. */
enum { DISKS = 3, THREADS = 3, KEYS = 64, ROUNDS = 12 };

typedef struct crowd {
    kvt_store *store;
    atomic_bool stop;
    atomic_int wrong;
    atomic_uint gets, hits;
} crowd;

static void crowd_note(crowd *c, const char *what, kvt_status status)
{
    if (atomic_fetch_add(&c->wrong, 1) == 0) {
        fprintf(stderr, "%s: %s\n", what, kvt_status_name(status));
    }
}

static void *crowd_use(void *argument)
{
    crowd *c = argument;
    uint64_t seed = (uint64_t)(uintptr_t)&seed | 1;
    while (!atomic_load(&c->stop)) {
        seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
        uint32_t number = (uint32_t)(seed >> 40) % KEYS;
        uint32_t what = (uint32_t)(seed >> 33) % 16;
        kvt_key key = support_key(number);
        if (what < 5) {
            kvt_status status = support_put(c->store, number);
            bool fine = status == KVT_OK || status == KVT_EXISTS || status == KVT_BUSY ||
                        status == KVT_REFUSED || status == KVT_E_SPACE || status == KVT_E_IO;
            if (!fine) crowd_note(c, "put", status);
        } else if (what == 5) {
            kvt_status status = kvt_store_delete(c->store, &key);
            if (status != KVT_OK && status != KVT_MISS) crowd_note(c, "delete", status);
        } else {
            kvt_status status = support_get(c->store, number, NULL);
            if (status == KVT_OK) atomic_fetch_add(&c->hits, 1);
            if (status != KVT_OK && status != KVT_MISS) crowd_note(c, "get", status);
            atomic_fetch_add(&c->gets, 1);
        }
    }
    return NULL;
}

static void crowd_wait(crowd *c, unsigned gets)
{
    unsigned until = atomic_load(&c->gets) + gets;
    while (atomic_load(&c->gets) < until)
        sched_yield();
}

static kvt_device_stats disk_stats(kvt_store *store, size_t index)
{
    kvt_device_stats stats = {.struct_size = sizeof stats};
    assert_ok(kvt_device_stats_get(store, index, &stats));
    return stats;
}

/* Out: drained, gone by itself, or retired by hand. */
static void take_out(crowd *c, support_fault *disk, const char *name, int round)
{
    if (round % 3 == 0) {
        assert_ok(kvt_device_change(c->store, name, KVT_DEVICE_DRAIN));
        while (disk_stats(c->store, 2).used_bytes != 0)
            usleep(1000); /* the background drains */
        kvt_status status = KVT_BUSY;
        while (status == KVT_BUSY) {
            usleep(1000);
            status = kvt_device_change(c->store, name, KVT_DEVICE_REMOVE);
        }
        assert_ok(status);
    } else if (round % 3 == 1) {
        tiers_fault_set_gone(disk->device, true);
        while (disk_stats(c->store, 2).state != KVT_DEVICE_GONE)
            sched_yield();
    } else {
        assert_ok(kvt_device_change(c->store, name, KVT_DEVICE_RETIRE));
    }
}

TEST(devices_come_and_go)
{
    static const char *const names[DISKS] = {"disk0", "disk1", "disk2"};
    char folder[64], catalog[96], paths[DISKS][96];
    support_fault disks[DISKS];
    kvt_device_config configs[DISKS];
    pthread_t threads[THREADS];
    crowd c = {0};
    support_make_folder(folder, sizeof folder);
    snprintf(catalog, sizeof catalog, "%s/catalog.db", folder);
    for (int i = 0; i < DISKS; i++) {
        snprintf(paths[i], sizeof paths[i], "%s/disk%d", folder, i);
        disks[i] = (support_fault){.capacity_bytes = 1 << 20, .path = paths[i]};
        configs[i] = support_fault_config(&disks[i], names[i]);
    }
    kvt_store_options options;
    kvt_store_options_init(&options);
    options.limits.put_staging_bytes = 0; /* a put says how its write went */
    options.limits.staging_bytes = 4 << 20;
    options.durability.catalog_path = catalog;
    options.policy = "lru";
    options.limits.tick_seconds = 0.002;
    options.tiers[KVT_TIER_SSD] = (kvt_tier_options){.devices = configs,
                                                     .device_count = DISKS,
                                                     .unit_bytes = 4096,
                                                     .rebalance_bytes_per_s = UINT64_C(1) << 40};
    options.tiers[KVT_TIER_DRAM].capacity_bytes = 256 << 10;
    assert_ok(kvt_store_open(&options, &c.store, NULL, 0));
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, crowd_use, &c), 0);
    uint64_t readmitted = 0;
    for (int round = 0; round < ROUNDS; round++) {
        crowd_wait(&c, 100);
        take_out(&c, &disks[1], names[1], round);
        crowd_wait(&c, 50);
        kvt_status status = KVT_BUSY;
        while (status == KVT_BUSY) {
            usleep(1000);
            status = kvt_device_add(c.store, KVT_TIER_SSD, &configs[1], NULL, 0);
        }
        assert_ok(status);
        readmitted = support_stats(c.store).readmitted;
    }
    atomic_store(&c.stop, true);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(atomic_load(&c.wrong), 0);
    assert_true(atomic_load(&c.hits) > 0);
    assert_true(readmitted > 0);
    /* Nothing leaked: without entries no extent is held. */
    for (uint32_t i = 0; i < KEYS; i++) {
        kvt_key key = support_key(i);
        (void)!kvt_store_delete(c.store, &key);
    }
    (void)!kvt_store_flush(c.store); /* may tell of a batch that failed while a disk was away */
    assert_ok(kvt_store_flush(c.store));
    for (size_t i = 0; i <= DISKS; i++)
        assert_int_equal(disk_stats(c.store, i).used_bytes, 0);
    kvt_store_close(c.store);
}
