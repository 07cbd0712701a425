/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_get_plan.c - a get asks no codec anything while it holds the control lock: what
 * decoding needs was worked out when the record was published.
 *
 * The linker sends the codecs' calls here first (cmake/tests.cmake). The test is one thread,
 * without background or executors, so a control lock that cannot be taken is held by this call.
 */
#include "store/core/store.h"
#include "store_support.h"
#include "tools/command/worker_pool.h"

kvt_status __real_kvt_record_bound(const kvt_record_spec *spec, uint64_t *bytes_out,
                                   uint64_t *scratch_bytes_out);
kvt_status __wrap_kvt_record_bound(const kvt_record_spec *spec, uint64_t *bytes_out,
                                   uint64_t *scratch_bytes_out);
kvt_status __real_kvt_record_scratch_parallel(const kvt_record_spec *spec, uint32_t workers,
                                              uint64_t *bytes_out);
kvt_status __wrap_kvt_record_scratch_parallel(const kvt_record_spec *spec, uint32_t workers,
                                              uint64_t *bytes_out);
kvt_status __real_kvt_record_decode_parallel(const void *record, uint64_t record_bytes,
                                             const kvt_record_spec *expected,
                                             const kvt_codec_workers *workers, void *data,
                                             uint64_t data_bytes, void *scratch,
                                             uint64_t scratch_bytes);
kvt_status __wrap_kvt_record_decode_parallel(const void *record, uint64_t record_bytes,
                                             const kvt_record_spec *expected,
                                             const kvt_codec_workers *workers, void *data,
                                             uint64_t data_bytes, void *scratch,
                                             uint64_t scratch_bytes);

static kvt_store *watched;      /* whose lock is looked at; NULL = none */
static uint32_t calls_locked;   /* of codecs, with the control lock held */
static uint32_t calls_unlocked; /* without it */

static void watch_call(void)
{
    if (watched == NULL) return;
    if (pthread_mutex_trylock(&watched->lock) != 0) {
        calls_locked++;
        return;
    }
    pthread_mutex_unlock(&watched->lock);
    calls_unlocked++;
}

kvt_status __wrap_kvt_record_bound(const kvt_record_spec *spec, uint64_t *bytes_out,
                                   uint64_t *scratch_bytes_out)
{
    watch_call();
    return __real_kvt_record_bound(spec, bytes_out, scratch_bytes_out);
}

kvt_status __wrap_kvt_record_scratch_parallel(const kvt_record_spec *spec, uint32_t workers,
                                              uint64_t *bytes_out)
{
    watch_call();
    return __real_kvt_record_scratch_parallel(spec, workers, bytes_out);
}

kvt_status __wrap_kvt_record_decode_parallel(const void *record, uint64_t record_bytes,
                                             const kvt_record_spec *expected,
                                             const kvt_codec_workers *workers, void *data,
                                             uint64_t data_bytes, void *scratch,
                                             uint64_t scratch_bytes)
{
    watch_call();
    return __real_kvt_record_decode_parallel(record, record_bytes, expected, workers, data,
                                             data_bytes, scratch, scratch_bytes);
}

static kvt_store *plan_open(kvt_store_options *options)
{
    kvt_store *store = support_open(options);
    return store;
}

static kvt_store_options plan_options(void)
{
    kvt_store_options options = support_options(8 << 20, "lru");
    options.learning.learn = false;
    return options;
}

/* Gets an entry with the lock watched. */
static void plan_get(kvt_store *store, uint32_t number)
{
    calls_locked = calls_unlocked = 0;
    watched = store;
    assert_ok(support_get(store, number, NULL));
    watched = NULL;
    assert_int_equal(calls_locked, 0);
    assert_int_equal(calls_unlocked, 1); /* the decoding alone */
}

TEST(each_form)
{
    static const kvt_variant variants[] = {
        {.codec = KVT_CODEC_RAW},
        {.codec = KVT_CODEC_LOSSLESS, .mode = KVT_LOSSLESS_DENSE},
    };
    for (size_t i = 0; i < sizeof variants / sizeof variants[0]; i++) {
        kvt_store_options options = plan_options();
        options.tiers[KVT_TIER_DRAM].capacity_bytes = 4 << 20;
        options.variant = variants[i];
        kvt_store *store = plan_open(&options);
        assert_ok(support_put(store, 1));
        plan_get(store, 1);
        plan_get(store, 1);
        kvt_store_close(store);
    }
}

/* Scratch for each worker is part of what was worked out. */
TEST(lent_workers)
{
    worker_pool pool;
    worker_pool_open(&pool, 3);
    kvt_store_options options = plan_options();
    options.tiers[KVT_TIER_DRAM].capacity_bytes = 4 << 20;
    options.variant = (kvt_variant){.codec = KVT_CODEC_LOSSLESS, .mode = KVT_LOSSLESS_DENSE};
    options.codec_workers = &pool.workers;
    kvt_store *store = plan_open(&options);
    assert_ok(support_put(store, 1));
    plan_get(store, 1);
    kvt_store_close(store);
    worker_pool_close(&pool);
}

/* A place that a change of tier has published, and one that was taken over at open. */
TEST(moved_and_recovered)
{
    char folder[32], path[64], catalog[64];
    support_make_folder(folder, sizeof folder);
    snprintf(path, sizeof path, "%s/ssd", folder);
    snprintf(catalog, sizeof catalog, "%s/catalog", folder);
    kvt_device_config device = support_file_config("ssd", path, 8 << 20);
    kvt_store_options options = plan_options();
    options.tiers[KVT_TIER_DRAM].capacity_bytes = 256 << 10;
    options.tiers[KVT_TIER_SSD] =
        (kvt_tier_options){.devices = &device, .device_count = 1, .unit_bytes = 8192};
    options.durability.catalog_path = catalog;
    kvt_store *store = plan_open(&options);
    support_puts(store, 0, 16);
    assert_true(support_stats(store).demotions > 0);
    for (uint32_t i = 0; i < 16; i++)
        plan_get(store, i);
    kvt_store_close(store);
    store = plan_open(&options);
    uint64_t recovered = support_stats(store).recovered;
    assert_true(recovered > 0);
    uint32_t found = 0;
    for (uint32_t i = 0; i < 16; i++) {
        kvt_key key = support_key(i);
        if (kvt_store_exists(store, &key) != KVT_OK) continue;
        plan_get(store, i);
        found++;
    }
    assert_int_equal(found, recovered);
    kvt_store_close(store);
}
