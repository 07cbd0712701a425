/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_memory.c - entries in memory are put and got on the caller's thread: no worker gets a
 * job, the bytes are those that were put, accounts are kept, and damage is found; a device that
 * wraps memory has a worker; a record in several pieces is gathered without one.
 *
 * The linker sends jobs for workers here first (cmake/tests.cmake). No background.
 */
#include "codecs/record_format.h"
#include "store/core/store.h"
#include "store_support.h"
#include "tiers/pool/worker.h"

#include <stdatomic.h>

kvt_status __real_tiers_worker_queue(tiers_worker *worker, tiers_transfer *transfer, uint32_t share,
                                     uint64_t bytes, uint64_t deadline_ns);
kvt_status __wrap_tiers_worker_queue(tiers_worker *worker, tiers_transfer *transfer, uint32_t share,
                                     uint64_t bytes, uint64_t deadline_ns);

static atomic_uint jobs; /* that workers got */

kvt_status __wrap_tiers_worker_queue(tiers_worker *worker, tiers_transfer *transfer, uint32_t share,
                                     uint64_t bytes, uint64_t deadline_ns)
{
    atomic_fetch_add(&jobs, 1);
    return __real_tiers_worker_queue(worker, transfer, share, bytes, deadline_ns);
}

/* put_staging_bytes: 0 = puts carry their plans out themselves. */
static kvt_store *memory_open_staging(const kvt_device_config *device, uint64_t capacity_bytes,
                                      kvt_variant variant, uint64_t put_staging_bytes)
{
    kvt_store_options options;
    kvt_store_options_init(&options);
    options.limits.put_staging_bytes = put_staging_bytes;
    options.limits.staging_bytes = 8 << 20;
    options.policy = "lru";
    options.variant = variant;
    options.limits.tick_seconds = 0;
    options.learning.learn = false;
    options.tiers[KVT_TIER_DRAM].capacity_bytes = device == NULL ? capacity_bytes : 0;
    support_tier(&options, KVT_TIER_DRAM, device, device != NULL);
    kvt_store *store = support_open(&options);
    return store;
}

static kvt_store *memory_open(const kvt_device_config *device, uint64_t capacity_bytes,
                              kvt_variant variant)
{
    return memory_open_staging(device, capacity_bytes, variant, 0);
}

static const kvt_variant memory_raw = {.codec = KVT_CODEC_RAW};
static const kvt_variant memory_lossless = {.codec = KVT_CODEC_LOSSLESS,
                                            .mode = KVT_LOSSLESS_DENSE};

/* The place of an entry. One thread uses the store, so the entry stays. */
static store_place *memory_place(kvt_store *store, uint32_t number)
{
    kvt_key key = support_key(number);
    pthread_mutex_lock(&store->lock);
    store_entry *entry = entry_find_key(&store->table, &key);
    pthread_mutex_unlock(&store->lock);
    assert_non_null(entry);
    return entry->place;
}

/* Changes one byte of an entry's record in its tier. */
static void memory_damage(kvt_store *store, uint32_t number, uint64_t offset)
{
    const store_place *place = memory_place(store, number);
    tiers_pool *pool = store->pools[KVT_TIER_DRAM];
    unsigned char *record = tiers_pool_lend(pool, place->location);
    assert_non_null(record);
    assert_true(offset < place->record_bytes);
    record[offset] ^= 0x10;
    tiers_pool_take_back(pool, place->location, KVT_IO_WRITE, 0);
}

TEST(no_worker_is_asked)
{
    const kvt_variant variants[] = {memory_raw, memory_lossless};
    for (size_t i = 0; i < 2; i++) {
        kvt_store *store = memory_open(NULL, 4 << 20, variants[i]);
        kvt_get_info info = {.struct_size = sizeof info};
        for (uint32_t number = 0; number < 8; number++)
            assert_ok(support_put(store, number));
        uint64_t read_bytes = support_stats(store).tiers[KVT_TIER_DRAM].bytes_read;
        atomic_store(&jobs, 0);
        uint64_t record_bytes = 0;
        for (uint32_t number = 0; number < 8; number++) {
            assert_ok(support_get(store, number, &info));
            assert_int_equal(info.variant.codec, variants[i].codec);
            assert_int_equal(info.tier, KVT_TIER_DRAM);
            assert_int_equal(info.read_ns, 0);
            assert_false(info.shared);
            record_bytes += info.stored_bytes;
        }
        assert_int_equal(atomic_load(&jobs), 0);
        kvt_store_stats stats = support_stats(store);
        assert_int_equal(stats.gets, 8);
        assert_int_equal(stats.tiers[KVT_TIER_DRAM].hits, 8);
        assert_int_equal(stats.tiers[KVT_TIER_DRAM].bytes_read - read_bytes, record_bytes);
        assert_int_equal(stats.tiers[KVT_TIER_DRAM].loads.loads, 8);
        assert_int_equal(stats.staging_bytes, 0);
        kvt_store_close(store);
    }
}

/* A put that needs nothing but a copy is stored when it returns, also where others are handed over.
 */
TEST(a_put_is_a_copy)
{
    for (int staged = 0; staged < 2; staged++) {
        kvt_store *store =
            memory_open_staging(NULL, 4 << 20, memory_raw, staged != 0 ? KVT_PUT_STAGING_AUTO : 0);
        atomic_store(&jobs, 0);
        uint64_t record_bytes = 0;
        for (uint32_t number = 0; number < 8; number++) {
            assert_ok(support_put(store, number));
            record_bytes += memory_place(store, number)->record_bytes;
            assert_ok(support_get(store, number, NULL));
        }
        assert_int_equal(atomic_load(&jobs), 0);
        kvt_store_stats stats = support_stats(store);
        assert_int_equal(stats.staged_hits, 0);
        assert_int_equal(stats.puts_waiting, 0);
        assert_int_equal(stats.put_staging_bytes, 0);
        assert_int_equal(stats.tiers[KVT_TIER_DRAM].bytes_written, record_bytes);
        assert_int_equal(stats.tiers[KVT_TIER_DRAM].entries, 8);
        kvt_store_close(store);
    }
}

/* A full tier: plans that evict first are handed over, and everything fits all the same. */
TEST(puts_into_a_full_tier)
{
    kvt_store *store = memory_open_staging(NULL, 1 << 20, memory_raw, KVT_PUT_STAGING_AUTO);
    for (uint32_t number = 0; number < 100; number++) {
        kvt_status status = support_put(store, number);
        if (status == KVT_BUSY) {
            assert_ok(kvt_store_flush(store));
            status = support_put(store, number);
        }
        assert_true(status == KVT_OK || status == KVT_REFUSED);
        kvt_tier_stats tier = support_stats(store).tiers[KVT_TIER_DRAM];
        assert_true(tier.used_bytes <= tier.capacity_bytes);
    }
    assert_ok(kvt_store_flush(store));
    uint32_t found = 0;
    for (uint32_t number = 0; number < 100; number++) {
        kvt_status status = support_get(store, number, NULL);
        assert_true(status == KVT_OK || status == KVT_MISS);
        found += status == KVT_OK;
    }
    kvt_store_stats stats = support_stats(store);
    assert_int_equal(found, stats.tiers[KVT_TIER_DRAM].entries);
    assert_true(found > 10 && stats.evictions > 0);
    assert_int_equal(stats.puts_lost, 0);
    kvt_store_close(store);
}

/* A cap on the device costs time, so its operations are its worker's. */
TEST(a_throttled_device_has_a_worker)
{
    const kvt_device_config device = {.struct_size = sizeof device,
                                      .name = "slow",
                                      .backend = "memory",
                                      .capacity_bytes = 4 << 20,
                                      .read_bytes_per_s = UINT64_C(1000000000),
                                      .write_bytes_per_s = UINT64_C(1000000000)};
    kvt_store *store = memory_open(&device, 0, memory_raw);
    assert_ok(support_put(store, 1));
    atomic_store(&jobs, 0);
    assert_ok(support_get(store, 1, NULL));
    assert_int_equal(atomic_load(&jobs), 1);
    kvt_store_close(store);
}

/* Free ranges smaller than a record: the next record lies in several. */
TEST(a_record_in_pieces)
{
    kvt_store *store = memory_open(NULL, 4 << 20, memory_raw);
    kvt_store_stats stats = support_stats(store);
    atomic_store(&jobs, 0);
    tiers_pool *pool = store->pools[KVT_TIER_DRAM];
    tiers_location *held[1024];
    uint32_t count = 0;
    while (count < 1024 && tiers_pool_reserve(pool, TIERS_GRAIN_BYTES, &held[count]) == KVT_OK)
        count++;
    assert_int_equal(count, stats.tiers[KVT_TIER_DRAM].capacity_bytes / TIERS_GRAIN_BYTES);
    for (uint32_t i = 0; i < count; i += 2)
        tiers_pool_release(pool, held[i]);
    assert_ok(support_put(store, 1));
    assert_true(memory_place(store, 1)->location->extent_count > 1);
    assert_false(tiers_pool_lends(pool, memory_place(store, 1)->location));
    uint64_t read_bytes = support_stats(store).tiers[KVT_TIER_DRAM].bytes_read;
    assert_ok(support_get(store, 1, NULL));
    assert_int_equal(atomic_load(&jobs), 0);
    assert_int_equal(support_stats(store).tiers[KVT_TIER_DRAM].bytes_read - read_bytes,
                     memory_place(store, 1)->record_bytes);
    for (uint32_t i = 1; i < count; i += 2)
        tiers_pool_release(pool, held[i]);
    kvt_store_close(store);
}

/* An object over two members of memory goes and comes as copies, and so does a part of it. */
TEST(a_striped_object_is_copied)
{
    enum { UNIT = 65536, BYTES = 7 * UNIT + 4096 };
    tiers_member_options members[2] = {{0}};
    const char *const names[] = {"one", "two"};
    for (int i = 0; i < 2; i++) {
        const kvt_device_config config = {.struct_size = sizeof config,
                                          .name = names[i],
                                          .backend = "memory",
                                          .capacity_bytes = 1 << 20};
        kvt_device *device = NULL;
        assert_ok(kvt_device_open(&config, &device, NULL, 0));
        members[i] = tiers_member_options_of(&config, device, 1e9, 1e9, NULL);
    }
    const tiers_pool_options options = {.unit_bytes = UNIT};
    tiers_pool *pool = NULL;
    tiers_location *location = NULL;
    assert_ok(tiers_pool_open(members, 2, &options, &pool, NULL, 0));
    assert_ok(tiers_pool_reserve(pool, BYTES, &location));
    assert_int_equal(location->share_count, 2);
    char *put = test_aligned(4096, BYTES), *got = test_aligned(4096, BYTES);
    for (uint32_t i = 0; i < BYTES; i++)
        put[i] = (char)(i * 2654435761u >> 24);
    memset(got, 0, BYTES);
    tiers_part parts[TIERS_MEMBERS_MAX];
    tiers_transfer write = {
        .kind = KVT_IO_WRITE, .location = location, .buffer = put, .bytes = BYTES, .parts = parts};
    atomic_store(&jobs, 0);
    assert_true(tiers_transfer_copy(pool, &write));
    assert_int_equal(write.part_count, 2);
    assert_int_equal(parts[0].bytes + parts[1].bytes, BYTES);
    assert_int_equal(atomic_load(&jobs), 0);
    assert_ok(tiers_pool_transfer(pool, KVT_IO_READ, location, got, BYTES));
    assert_memory_equal(got, put, BYTES);
    memset(got, 0, BYTES);
    tiers_transfer tail = {.kind = KVT_IO_READ,
                           .location = location,
                           .buffer = got,
                           .offset = 5 * UNIT,
                           .bytes = BYTES - 5 * UNIT};
    assert_true(tiers_transfer_copy(pool, &tail));
    assert_memory_equal(got, put + 5 * UNIT, BYTES - 5 * UNIT);
    tiers_pool_retire(pool, 1);
    tiers_transfer late = {
        .kind = KVT_IO_READ, .location = location, .buffer = got, .bytes = BYTES};
    assert_false(tiers_transfer_copy(pool, &late));
    kvt_device *device = NULL;
    assert_ok(tiers_pool_eject(pool, 1, &device)); /* no loan was kept */
    kvt_device_close(device);
    tiers_pool_release(pool, location);
    tiers_pool_close(pool);
}

/* In the header, in the table, in the first and last byte of the payload. */
TEST(damage_is_found)
{
    const kvt_variant variants[] = {memory_raw, memory_lossless};
    for (size_t i = 0; i < 8; i++) {
        kvt_store *store = memory_open(NULL, 4 << 20, variants[i / 4]);
        assert_ok(support_put(store, 1));
        assert_ok(support_get(store, 1, NULL));
        const uint64_t payload = RECORD_TABLE_OFFSET + 4096;
        const uint64_t offsets[] = {RECORD_SLOT_BYTES - 100, RECORD_TABLE_OFFSET + 8, payload,
                                    memory_place(store, 1)->record_bytes - 1};
        memory_damage(store, 1, offsets[i % 4]);
        assert_int_equal(support_get(store, 1, NULL), KVT_MISS);
        kvt_store_stats stats = support_stats(store);
        assert_int_equal(stats.load_failures, 1);
        assert_int_equal(stats.misses, 1);
        assert_int_equal(stats.tiers[KVT_TIER_DRAM].entries, 0);
        assert_ok(support_put(store, 1));
        assert_ok(support_get(store, 1, NULL));
        kvt_store_close(store);
    }
}

/* Memory that its owner retired serves nothing, and comes out only when nothing of it is lent. */
TEST(a_retired_device)
{
    kvt_store *store = memory_open(NULL, 4 << 20, memory_raw);
    assert_ok(support_put(store, 1));
    kvt_device_stats device = {.struct_size = sizeof device};
    assert_ok(kvt_device_stats_get(store, 0, &device));
    tiers_pool *pool = store->pools[KVT_TIER_DRAM];
    const tiers_location *location = memory_place(store, 1)->location;
    void *record = tiers_pool_lend(pool, location);
    assert_non_null(record);
    tiers_pool_retire(pool, 0);
    assert_null(tiers_pool_lend(pool, location));
    kvt_device *ejected = NULL;
    assert_int_equal(tiers_pool_eject(pool, 0, &ejected), KVT_BUSY);
    kvt_record_info info;
    assert_ok(kvt_record_verify(record, location->bytes, &info));
    tiers_pool_take_back(pool, location, KVT_IO_READ, 0);
    assert_int_equal(support_get(store, 1, NULL), KVT_MISS);
    assert_ok(kvt_device_change(store, device.name, KVT_DEVICE_REMOVE));
    assert_int_equal(support_get(store, 1, NULL), KVT_MISS);
    kvt_store_close(store);
}
