/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_replicate.c - hot entries get second copies, which cost nobody anything.
 */
#include "store_support.h"

#include <pthread.h>

enum { DISKS = 3, ENTRIES = 40, HOT = 6, READS = 12 };

typedef struct site {
    char catalog[96];
    char paths[DISKS][96];
    char folder[64];
    support_fault disks[DISKS];
    kvt_device_config configs[DISKS];
    kvt_store_options options;
    kvt_store *store;
} site;

static const char *const disk_names[DISKS] = {"disk0", "disk1", "disk2"};

static void site_open(site *s, double replica_share)
{
    support_make_folder(s->folder, sizeof s->folder);
    snprintf(s->catalog, sizeof s->catalog, "%s/catalog.db", s->folder);
    for (int i = 0; i < DISKS; i++) {
        snprintf(s->paths[i], sizeof s->paths[i], "%s/disk%d", s->folder, i);
        s->disks[i] = (support_fault){.capacity_bytes = 1 << 20, .path = s->paths[i]};
        s->configs[i] = support_fault_config(&s->disks[i], disk_names[i]);
    }
    kvt_store_options_init(&s->options);
    s->options.staging_bytes = 8 << 20;
    s->options.catalog_path = s->catalog;
    s->options.policy = "lru";
    s->options.tick_seconds = 0;
    s->options.tiers[KVT_TIER_SSD] = (kvt_tier_options){.devices = s->configs,
                                                        .device_count = DISKS,
                                                        .unit_bytes = 4096,
                                                        .weights_fixed = true,
                                                        .rebalance_bytes_per_s = UINT64_C(1) << 40,
                                                        .replica_share = replica_share};
    assert_int_equal(kvt_open(&s->options, &s->store, NULL, 0), KVT_OK);
}

static void site_close(site *s)
{
    kvt_close(s->store);
    support_remove_folder(s->folder);
}

static kvt_tier_stats ssd(site *s)
{
    return support_stats(s->store).tiers[KVT_TIER_SSD];
}

static kvt_device_stats disk_stats(site *s, size_t index)
{
    kvt_device_stats stats;
    assert_int_equal(kvt_device_stats_at(s->store, index, &stats), KVT_OK);
    return stats;
}

static void put_some(site *s, uint32_t from, uint32_t to)
{
    for (uint32_t i = from; i < to; i++)
        assert_int_equal(support_put(s->store, i), KVT_OK);
    assert_int_equal(kvt_flush(s->store), KVT_OK);
}

static void maintain(site *s)
{
    assert_int_equal(kvt_maintain(s->store, NULL), KVT_OK);
    assert_int_equal(kvt_flush(s->store), KVT_OK);
}

/* Reads the first entries until they are hot, and lets the background see to it. */
static void heat(site *s, uint32_t entries)
{
    for (int i = 0; i < READS; i++)
        for (uint32_t j = 0; j < entries; j++)
            assert_int_equal(support_get(s->store, j, NULL), KVT_OK);
    maintain(s);
}

static uint64_t entry_bytes(site *s)
{
    kvt_tier_stats stats = ssd(s);
    return (stats.used_bytes - stats.replica_bytes) / stats.entries;
}

/* ---- making and dropping ---- */

static void test_hot_entries_get_a_second_copy(void **state)
{
    (void)state;
    site s = {0};
    site_open(&s, 0.5);
    put_some(&s, 0, ENTRIES);
    heat(&s, HOT);
    assert_int_equal(support_stats(s.store).replicas, HOT);
    assert_int_equal(ssd(&s).replica_bytes, HOT * entry_bytes(&s));
    heat(&s, HOT); /* nobody gets two */
    assert_int_equal(support_stats(s.store).replicas, HOT);
    for (uint32_t i = 0; i < ENTRIES; i++)
        assert_int_equal(support_get(s.store, i, NULL), KVT_OK);
    /* It goes with its entry. */
    kvt_key key = support_key(0);
    assert_int_equal(kvt_delete(s.store, &key), KVT_OK);
    assert_int_equal(kvt_flush(s.store), KVT_OK);
    assert_int_equal(ssd(&s).replica_bytes, (HOT - 1) * entry_bytes(&s));
    assert_int_equal(support_put(s.store, 0), KVT_OK);
    assert_int_equal(support_get(s.store, 0, NULL), KVT_OK);
    for (uint32_t i = 0; i < ENTRIES; i++) {
        key = support_key(i);
        assert_int_equal(kvt_delete(s.store, &key), KVT_OK);
    }
    assert_int_equal(kvt_flush(s.store), KVT_OK);
    assert_int_equal(ssd(&s).replica_bytes, 0);
    assert_int_equal(ssd(&s).used_bytes, 0);
    site_close(&s);
}

static void test_without_a_share_there_are_none(void **state)
{
    (void)state;
    site s = {0};
    site_open(&s, 0);
    put_some(&s, 0, ENTRIES);
    heat(&s, HOT);
    assert_int_equal(support_stats(s.store).replicas, 0);
    assert_int_equal(ssd(&s).replica_bytes, 0);
    site_close(&s);
    s = (site){0};
    site_open(&s, 0.5);
    s.options.tiers[KVT_TIER_SSD].replica_share = 1.5;
    kvt_store *none = NULL;
    assert_int_equal(kvt_open(&s.options, &none, NULL, 0), KVT_E_ARGUMENT);
    site_close(&s);
}

static void test_the_budget_is_kept(void **state)
{
    (void)state;
    site s = {0};
    site_open(&s, 0.05);
    put_some(&s, 0, ENTRIES);
    uint64_t most = (uint64_t)(0.05 * (double)ssd(&s).capacity_bytes);
    heat(&s, HOT);
    assert_true(ssd(&s).replica_bytes > 0);
    assert_true(ssd(&s).replica_bytes <= most);
    assert_int_equal(ssd(&s).replica_bytes / entry_bytes(&s), most / entry_bytes(&s));
    site_close(&s);
}

static void test_nothing_survives_a_restart_but_the_entries(void **state)
{
    (void)state;
    site s = {0};
    site_open(&s, 0.5);
    put_some(&s, 0, ENTRIES);
    heat(&s, HOT);
    uint64_t bytes = ENTRIES * entry_bytes(&s);
    assert_true(ssd(&s).used_bytes > bytes);
    kvt_close(s.store);
    assert_int_equal(kvt_open(&s.options, &s.store, NULL, 0), KVT_OK);
    assert_int_equal(ssd(&s).used_bytes, bytes);
    for (uint32_t i = 0; i < ENTRIES; i++)
        assert_int_equal(support_get(s.store, i, NULL), KVT_OK);
    site_close(&s);
}

/* The same puts with and without replicas: the same entries stay, and no more are evicted. */
static void test_replicas_go_before_any_entry(void **state)
{
    (void)state;
    enum { ALL = 120 };
    bool kept[2][ALL];
    uint64_t evictions[2][ALL];
    for (int i = 0; i < 2; i++) {
        site s = {0};
        site_open(&s, i == 0 ? 0 : 1.0);
        put_some(&s, 0, 50);
        heat(&s, 30);
        if (i == 1) assert_true(ssd(&s).replica_bytes >= 10 * entry_bytes(&s));
        for (uint32_t j = 50; j < ALL; j++) {
            assert_int_equal(support_put(s.store, j), KVT_OK);
            evictions[i][j] = support_stats(s.store).evictions;
            assert_true(ssd(&s).used_bytes <= ssd(&s).capacity_bytes);
        }
        assert_true(evictions[i][ALL - 1] > 0);
        assert_true(ssd(&s).replica_bytes < 3 * entry_bytes(&s));
        for (uint32_t j = 0; j < ALL; j++) {
            kvt_key key = support_key(j);
            kept[i][j] = kvt_exists(s.store, &key) == KVT_OK;
            kvt_status status = support_get(s.store, j, NULL);
            assert_int_equal(status, kept[i][j] ? KVT_OK : KVT_MISS);
        }
        site_close(&s);
    }
    assert_memory_equal(kept[0], kept[1], sizeof kept[0]);
    assert_memory_equal(&evictions[0][50], &evictions[1][50], (ALL - 50) * sizeof evictions[0][0]);
}

/* ---- reads ---- */

static void test_what_one_disk_cannot_read_comes_from_the_others(void **state)
{
    (void)state;
    site s = {0};
    site_open(&s, 0.5);
    put_some(&s, 0, ENTRIES);
    heat(&s, HOT);
    tiers_fault_rule bad = {.action = TIERS_FAULT_FAIL,
                            .kinds = TIERS_FAULT_READS,
                            .offset = 64 << 10,
                            .bytes = 1 << 20,
                            .status = KVT_E_IO,
                            .os_error = 5};
    assert_int_equal(tiers_fault_add(s.disks[1].device, &bad), KVT_OK);
    for (uint32_t i = 0; i < HOT; i++)
        assert_int_equal(support_get(s.store, i, NULL), KVT_OK);
    assert_true(ssd(&s).replica_reads > 0);
    assert_int_equal(support_stats(s.store).load_failures, 0);
    assert_int_equal(support_get(s.store, ENTRIES - 1, NULL), KVT_MISS);
    site_close(&s);
}

static void test_hot_entries_outlive_a_disk_that_vanishes(void **state)
{
    (void)state;
    site s = {0};
    site_open(&s, 0.5);
    put_some(&s, 0, ENTRIES);
    heat(&s, HOT);
    tiers_fault_set_gone(s.disks[1].device, true);
    for (uint32_t i = 0; i < HOT; i++)
        assert_int_equal(support_get(s.store, i, NULL), KVT_OK);
    assert_int_equal(disk_stats(&s, 1).state, KVT_DEVICE_GONE);
    maintain(&s); /* sees it, parks the others, and lays the hot ones out anew */
    maintain(&s);
    assert_int_equal(support_stats(s.store).relayouts, HOT);
    assert_int_equal(support_stats(s.store).parked, ENTRIES - HOT);
    for (uint32_t i = 0; i < ENTRIES; i++)
        assert_int_equal(support_get(s.store, i, NULL), i < HOT ? KVT_OK : KVT_MISS);
    /* And it comes back with what it had. */
    tiers_fault_set_gone(s.disks[1].device, false);
    assert_int_equal(kvt_store_device_add(s.store, KVT_TIER_SSD, &s.configs[1], NULL, 0), KVT_OK);
    for (uint32_t i = 0; i < ENTRIES; i++)
        assert_int_equal(support_get(s.store, i, NULL), KVT_OK);
    site_close(&s);
}

/* An empty disk takes the place of one that entries live without: they are moved off it first. */
static void test_an_empty_disk_replaces_one_that_replicas_stand_in_for(void **state)
{
    (void)state;
    site s = {0};
    site_open(&s, 0.5);
    put_some(&s, 0, HOT);
    heat(&s, HOT);
    assert_int_equal(kvt_store_device_change(s.store, "disk2", KVT_DEVICE_RETIRE), KVT_OK);
    for (uint32_t i = 0; i < HOT; i++)
        assert_int_equal(support_get(s.store, i, NULL), KVT_OK);
    assert_int_equal(remove(s.paths[2]), 0);
    assert_int_equal(kvt_store_device_add(s.store, KVT_TIER_SSD, &s.configs[2], NULL, 0), KVT_OK);
    assert_int_equal(disk_stats(&s, 2).state, KVT_DEVICE_SERVING);
    for (uint32_t i = 0; i < HOT; i++)
        assert_int_equal(support_get(s.store, i, NULL), KVT_OK);
    assert_int_equal(support_stats(s.store).load_failures, 0);
    site_close(&s);
}

static void test_a_drain_takes_replicas_along(void **state)
{
    (void)state;
    site s = {0};
    site_open(&s, 0.5);
    put_some(&s, 0, HOT);
    heat(&s, HOT);
    assert_int_equal(kvt_store_device_change(s.store, "disk0", KVT_DEVICE_DRAIN), KVT_OK);
    maintain(&s);
    maintain(&s);
    assert_int_equal(disk_stats(&s, 0).used_bytes, 0);
    assert_int_equal(kvt_store_device_change(s.store, "disk0", KVT_DEVICE_REMOVE), KVT_OK);
    heat(&s, HOT);
    for (uint32_t i = 0; i < HOT; i++)
        assert_int_equal(support_get(s.store, i, NULL), KVT_OK);
    site_close(&s);
}

/* ---- all at once ---- */

enum { THREADS = 3, STEPS = 400 };

typedef struct visitor {
    site *site;
    uint32_t seed;
    bool wrong;
} visitor;

/* Gets of a few hot entries, puts and deletes of others, in a tier that is nearly full. */
static void *visit(void *argument)
{
    visitor *v = argument;
    uint32_t random = v->seed;
    for (int i = 0; i < STEPS; i++) {
        random = random * 1664525u + 1013904223u;
        uint32_t number = (random >> 16) % 90;
        kvt_status status = KVT_OK;
        if (i % 4 != 0) {
            status = support_get(v->site->store, number % HOT, NULL);
            if (status == KVT_MISS) status = support_put(v->site->store, number % HOT);
        } else if (number % 8 == 0) {
            kvt_key key = support_key(number);
            status = kvt_delete(v->site->store, &key);
        } else {
            status = support_put(v->site->store, number);
        }
        if (status < 0) v->wrong = true;
    }
    return NULL;
}

static void test_readers_writers_and_the_background_at_once(void **state)
{
    (void)state;
    site s = {0};
    pthread_t threads[THREADS];
    visitor visitors[THREADS];
    site_open(&s, 0.5);
    kvt_close(s.store);
    s.options.tick_seconds = 0.001;
    assert_int_equal(kvt_open(&s.options, &s.store, NULL, 0), KVT_OK);
    put_some(&s, 0, ENTRIES);
    for (int i = 0; i < THREADS; i++) {
        visitors[i] = (visitor){.site = &s, .seed = 7u + (uint32_t)i};
        assert_int_equal(pthread_create(&threads[i], NULL, visit, &visitors[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        assert_false(visitors[i].wrong);
    }
    assert_true(ssd(&s).used_bytes <= ssd(&s).capacity_bytes);
    for (uint32_t i = 0; i < 90; i++) {
        kvt_key key = support_key(i);
        (void)!kvt_delete(s.store, &key);
    }
    assert_int_equal(kvt_flush(s.store), KVT_OK);
    site_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hot_entries_get_a_second_copy),
        cmocka_unit_test(test_without_a_share_there_are_none),
        cmocka_unit_test(test_the_budget_is_kept),
        cmocka_unit_test(test_nothing_survives_a_restart_but_the_entries),
        cmocka_unit_test(test_replicas_go_before_any_entry),
        cmocka_unit_test(test_what_one_disk_cannot_read_comes_from_the_others),
        cmocka_unit_test(test_hot_entries_outlive_a_disk_that_vanishes),
        cmocka_unit_test(test_an_empty_disk_replaces_one_that_replicas_stand_in_for),
        cmocka_unit_test(test_a_drain_takes_replicas_along),
        cmocka_unit_test(test_readers_writers_and_the_background_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
