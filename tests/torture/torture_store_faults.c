/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torture_store_faults.c - fails the n-th read, write, or both, for n = 0, 1, 2, ..., under every
 * policy; then many threads at once with faults coming and going. Whatever fails: right bytes or a
 * miss, no leak of room, and a store that works again once the fault is gone.
 */
#include "store_support.h"

#include <pthread.h>
#include <stdatomic.h>

enum { FAULT_DRAM, FAULT_SSD, FAULT_DEVICES };

typedef struct faults_site {
    support_fault faults[FAULT_DEVICES];
    kvt_device_config devices[FAULT_DEVICES];
    kvt_store *store;
} faults_site;

static void faults_open(faults_site *site, const char *policy, double tick_seconds)
{
    kvt_store_options options;
    kvt_store_options_init(&options);
    options.limits.put_staging_bytes = 0; /* a put says how its write went */
    options.limits.staging_bytes = 8 << 20;
    options.policy = policy;
    options.limits.tick_seconds = tick_seconds;
    site->faults[FAULT_DRAM].capacity_bytes = 400 << 10;
    site->faults[FAULT_SSD].capacity_bytes = 800 << 10;
    site->devices[FAULT_DRAM] = support_fault_config(&site->faults[FAULT_DRAM], "dram");
    site->devices[FAULT_SSD] = support_fault_config(&site->faults[FAULT_SSD], "ssd");
    support_tier(&options, KVT_TIER_DRAM, &site->devices[FAULT_DRAM], 1);
    options.tiers[KVT_TIER_DRAM].unit_bytes = 16384;
    support_tier(&options, KVT_TIER_SSD, &site->devices[FAULT_SSD], 1);
    options.tiers[KVT_TIER_SSD].unit_bytes = 16384;
    char message[256];
    kvt_status status = kvt_store_open(&options, &site->store, message, sizeof message);
    if (status != KVT_OK) fail_msg("open: %s: %s", kvt_status_name(status), message);
}

static void faults_check_get(kvt_status status)
{
    if (status != KVT_OK && status != KVT_MISS) fail_msg("get: %s", kvt_status_name(status));
}

/* Puts, gets and maintenance with more entries than fit. */
static void faults_work(kvt_store *store)
{
    for (uint32_t i = 0; i < 40; i++) {
        kvt_status status = support_put(store, i);
        /* Busy: a promotion that waits for the next round is to evict the entry. */
        assert_true(status == KVT_OK || status == KVT_EXISTS || status == KVT_REFUSED ||
                    status == KVT_BUSY || status == KVT_E_IO || status == KVT_E_SPACE ||
                    status == KVT_E_CORRUPT || status == KVT_E_MISMATCH);
        faults_check_get(support_get(store, i / 2, NULL));
        if (i % 4 == 0) assert_ok(kvt_store_maintain(store, NULL));
    }
}

static void faults_check_empty(kvt_store *store)
{
    for (uint32_t i = 0; i < 64; i++) {
        kvt_key key = support_key(i);
        kvt_status status = kvt_store_delete(store, &key);
        assert_true(status == KVT_OK || status == KVT_MISS);
    }
    kvt_store_stats stats = support_stats(store);
    for (int tier = KVT_TIER_HBM; tier < KVT_TIER_COUNT; tier++) {
        assert_int_equal(stats.tiers[tier].used_bytes, 0);
        assert_int_equal(stats.policy.used_bytes[tier], 0);
    }
    assert_int_equal(stats.policy.moves_in_flight, 0);
}

static void faults_nth(const char *policy, tiers_fault_action action, uint32_t kinds, uint64_t skip,
                       uint64_t *hits_out)
{
    faults_site site = {0};
    faults_open(&site, policy, 0);
    for (int i = 0; i < FAULT_DEVICES; i++) {
        tiers_fault_rule rule = {.action = action,
                                 .kinds = kinds,
                                 .skip = skip,
                                 .hits = 1,
                                 .status = action == TIERS_FAULT_TEAR ? KVT_OK : KVT_E_IO,
                                 .flip_bit = 12345 + skip};
        assert_ok(tiers_fault_add(site.faults[i].device, &rule));
    }
    faults_work(site.store);
    uint64_t hits = 0;
    for (int i = 0; i < FAULT_DEVICES; i++) {
        tiers_fault_counts counts;
        tiers_fault_counts_get(site.faults[i].device, &counts);
        hits += counts.hits;
    }
    *hits_out = hits;
    for (int i = 0; i < FAULT_DEVICES; i++) {
        tiers_fault_clear(site.faults[i].device);
    }
    faults_work(site.store);
    faults_check_empty(site.store);
    assert_ok(support_put(site.store, 1));
    assert_ok(support_get(site.store, 1, NULL));
    kvt_store_close(site.store);
}

TEST(nth_fault)
{
    static const char *const policies[] = {"lru", "utility"};
    static const struct {
        tiers_fault_action action;
        uint32_t kinds;
    } faults[] = {{TIERS_FAULT_FAIL, TIERS_FAULT_READS},
                  {TIERS_FAULT_FAIL, TIERS_FAULT_WRITES},
                  {TIERS_FAULT_FLIP, TIERS_FAULT_READS},
                  {TIERS_FAULT_TEAR, TIERS_FAULT_WRITES}};
    for (size_t p = 0; p < 2; p++) {
        for (size_t f = 0; f < 4; f++) {
            uint64_t hits = 1, total = 0;
            for (uint64_t skip = 0; hits != 0 && skip < 50; skip += skip < 5 ? 1 : 9) {
                faults_nth(policies[p], faults[f].action, faults[f].kinds, skip, &hits);
                total += hits;
            }
            assert_true(total > 0);
        }
    }
}

/* A vanished device: everything on it becomes a miss, the other one keeps serving. */
TEST(gone)
{
    faults_site site = {0};
    faults_open(&site, "lru", 0);
    support_puts(site.store, 0, 30);
    tiers_fault_set_gone(site.faults[FAULT_SSD].device, true);
    uint32_t found = 0, missed = 0;
    for (uint32_t i = 0; i < 30; i++) {
        kvt_status status = support_get(site.store, i, NULL);
        faults_check_get(status);
        found += status == KVT_OK;
        missed += status == KVT_MISS;
    }
    assert_true(found > 0 && missed > 0);
    kvt_device_stats device = {.struct_size = sizeof device};
    assert_ok(kvt_device_stats_get(site.store, 1, &device));
    assert_int_equal(device.tier, KVT_TIER_SSD);
    assert_true(device.retired);
    assert_int_equal(kvt_device_stats_get(site.store, 2, &device), KVT_END);
    faults_check_empty(site.store);
    kvt_store_close(site.store);
}

typedef struct faults_thread {
    kvt_store *store;
    uint32_t seed;
    atomic_uint *wrong;
} faults_thread;

static void *faults_hammer(void *argument)
{
    faults_thread *thread = argument;
    uint32_t random = thread->seed * 2654435761u + 1;
    for (int i = 0; i < 400; i++) {
        random = random * 1664525u + 1013904223u;
        uint32_t number = (random >> 16) % 48;
        kvt_key key = support_key(number);
        kvt_status status = KVT_OK;
        switch ((random >> 8) % 8) {
        case 0:
        case 1:
        case 2: status = support_put(thread->store, number); break;
        case 3:
            status = kvt_store_delete(thread->store, &key);
            if (status != KVT_OK && status != KVT_MISS) atomic_fetch_add(thread->wrong, 1);
            break;
        default:
            status = support_get(thread->store, number, NULL);
            if (status != KVT_OK && status != KVT_MISS) atomic_fetch_add(thread->wrong, 1);
            break;
        }
    }
    return NULL;
}

TEST(threads)
{
    static const char *const policies[] = {"lru", "utility"};
    for (size_t p = 0; p < 2; p++) {
        faults_site site = {0};
        faults_open(&site, policies[p], 0.001);
        atomic_uint wrong = 0;
        pthread_t threads[4];
        faults_thread arguments[4];
        for (int i = 0; i < FAULT_DEVICES; i++) {
            tiers_fault_rule rule = {.action = TIERS_FAULT_FAIL,
                                     .kinds = TIERS_FAULT_READS | TIERS_FAULT_WRITES,
                                     .skip = 500,
                                     .hits = 20,
                                     .status = KVT_E_IO};
            assert_ok(tiers_fault_add(site.faults[i].device, &rule));
        }
        for (uint32_t i = 0; i < 4; i++) {
            arguments[i] = (faults_thread){.store = site.store, .seed = i, .wrong = &wrong};
            assert_int_equal(pthread_create(&threads[i], NULL, faults_hammer, &arguments[i]), 0);
        }
        for (int i = 0; i < 4; i++) {
            assert_int_equal(pthread_join(threads[i], NULL), 0);
        }
        assert_int_equal(atomic_load(&wrong), 0);
        faults_check_empty(site.store);
        kvt_store_close(site.store);
    }
}
