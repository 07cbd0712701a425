/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_access.c - put, get, delete, prefixes, eviction, migration, sharing of reads.
 */
#include "codecs/record.h"
#include "store_support.h"
#include "tools/command/worker_pool.h"

#include <kvterrace/lookup.h>

#include <math.h>
#include <pthread.h>

static kvt_store *access_open(const kvt_store_options *options)
{
    kvt_store *store = support_open(options);
    return store;
}

static kvt_store_options access_options(uint64_t dram_bytes, const char *policy)
{
    kvt_store_options options = support_options(8 << 20, policy);
    options.tiers[KVT_TIER_DRAM].capacity_bytes = dram_bytes;
    return options;
}

TEST(put_get_delete)
{
    kvt_store_options options = access_options(4 << 20, "utility");
    kvt_store *store = access_open(&options);
    kvt_key key = support_key(1);
    assert_int_equal(kvt_store_exists(store, &key), KVT_MISS);
    assert_int_equal(support_get(store, 1, NULL), KVT_MISS);
    assert_ok(support_put(store, 1));
    assert_ok(kvt_store_exists(store, &key));
    assert_int_equal(support_put(store, 1), KVT_EXISTS);
    kvt_get_info info = {.struct_size = sizeof info};
    assert_ok(support_get(store, 1, &info));
    assert_int_equal(info.tier, KVT_TIER_DRAM);
    assert_true(info.stored_bytes > 0 && info.stored_bytes % KVT_RECORD_ALIGN == 0);
    assert_false(info.shared);
    assert_ok(kvt_store_delete(store, &key));
    assert_int_equal(kvt_store_delete(store, &key), KVT_MISS);
    assert_int_equal(support_get(store, 1, NULL), KVT_MISS);
    kvt_store_stats stats = support_stats(store);
    assert_int_equal(stats.tiers[KVT_TIER_DRAM].used_bytes, 0);
    assert_int_equal(stats.puts, 2);
    assert_int_equal(stats.puts_existing, 1);
    assert_int_equal(stats.gets, 3);
    assert_int_equal(stats.misses, 2);
    assert_int_equal(stats.tiers[KVT_TIER_DRAM].hits, 1);
    kvt_store_close(store);
}

TEST(layouts)
{
    static const kvt_layout layouts[] = {
        {.layers = 3, .kv_heads = 1, .head_dim = 7, .dtype = KVT_DTYPE_FP16, .tokens = 5},
        {.layers = 1, .kv_heads = 4, .head_dim = 32, .dtype = KVT_DTYPE_FP32, .tokens = 17},
        {.layers = 2, .kv_heads = 2, .head_dim = 16, .dtype = KVT_DTYPE_FP8, .tokens = 9},
        {.layers = 2,
         .kv_heads = 2,
         .head_dim = 16,
         .dtype = KVT_DTYPE_BF16,
         .order = KVT_ORDER_SIDE_LAYER,
         .tokens = 300},
        {.dtype = KVT_DTYPE_OPAQUE, .opaque_bytes = 12345},
    };
    for (int lossless = 0; lossless < 2; lossless++) {
        kvt_store_options options = access_options(8 << 20, "lru");
        options.variant.codec = lossless ? KVT_CODEC_LOSSLESS : KVT_CODEC_RAW;
        options.variant.mode = lossless ? KVT_LOSSLESS_DENSE : 0;
        kvt_store *store = access_open(&options);
        for (uint32_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
            uint64_t bytes;
            assert_ok(kvt_layout_bytes(&layouts[i], &bytes));
            char *data = test_alloc(bytes), *back = test_alloc(bytes);
            codecs_kv_sample_fill(&layouts[i], i, data);
            kvt_entry entry = {
                .struct_size = sizeof entry, .key = support_key(i), .layout = layouts[i]};
            assert_ok(kvt_store_put(store, &entry, KVT_PACKED(data, bytes)));
            assert_ok(kvt_store_get(store, &entry.key, KVT_PACKED(back, bytes), KVT_STORE_DEADLINE,
                                    NULL));
            assert_memory_equal(data, back, bytes);
            assert_int_equal(kvt_store_get(store, &entry.key, KVT_PACKED(back, bytes - 1),
                                           KVT_STORE_DEADLINE, NULL),
                             KVT_E_ARGUMENT);
        }
        kvt_store_close(store);
    }
}

TEST(bad_arguments)
{
    kvt_store_options options = access_options(4 << 20, "lru");
    kvt_store *store = access_open(&options);
    char data[SUPPORT_ENTRY_BYTES] = {0};
    kvt_entry entry = {
        .struct_size = sizeof entry, .key = support_key(1), .layout = support_layout};
    assert_int_equal(kvt_store_put(store, &entry, KVT_PACKED(data, sizeof data - 1)),
                     KVT_E_ARGUMENT);
    assert_int_equal(kvt_store_put(store, &entry, KVT_PACKED(NULL, sizeof data)), KVT_E_ARGUMENT);
    assert_int_equal(kvt_store_put(store, NULL, KVT_PACKED(data, sizeof data)), KVT_E_ARGUMENT);
    entry.layout.head_dim = 0;
    assert_int_equal(kvt_store_put(store, &entry, KVT_PACKED(data, sizeof data)), KVT_E_ARGUMENT);
    entry.layout = support_layout;
    entry.recompute_seconds = -1;
    assert_int_equal(kvt_store_put(store, &entry, KVT_PACKED(data, sizeof data)), KVT_E_ARGUMENT);
    entry.recompute_seconds = 0;
    entry.parent = &entry.key;
    assert_int_equal(kvt_store_put(store, &entry, KVT_PACKED(data, sizeof data)), KVT_E_ARGUMENT);
    entry.parent = NULL;
    entry.first_position = UINT32_MAX - 3;
    assert_int_equal(kvt_store_put(store, &entry, KVT_PACKED(data, sizeof data)), KVT_E_ARGUMENT);
    assert_int_equal(
        kvt_store_get(store, NULL, KVT_PACKED(data, sizeof data), KVT_STORE_DEADLINE, NULL),
        KVT_E_ARGUMENT);
    assert_int_equal(support_stats(store).tiers[KVT_TIER_DRAM].used_bytes, 0);
    kvt_store_close(store);
}

TEST(refused)
{
    kvt_store_options options = access_options(4 << 20, "none");
    kvt_store *store = access_open(&options);
    assert_int_equal(support_put(store, 1), KVT_REFUSED);
    assert_int_equal(support_get(store, 1, NULL), KVT_MISS);
    assert_int_equal(support_stats(store).puts_refused, 1);
    kvt_store_close(store);

    options = access_options(16 << 10, "lru"); /* smaller than any entry */
    store = access_open(&options);
    assert_int_equal(support_put(store, 1), KVT_REFUSED);
    assert_int_equal(support_stats(store).tiers[KVT_TIER_DRAM].used_bytes, 0);
    kvt_store_close(store);
}

TEST(match_prefix)
{
    kvt_store_options options = access_options(4 << 20, "lru");
    kvt_store *store = access_open(&options);
    kvt_key keys[6];
    for (uint32_t i = 0; i < 6; i++) {
        keys[i] = support_key(i);
        if (i != 3) assert_ok(support_put(store, i));
    }
    size_t matched = 99;
    assert_ok(kvt_store_match(store, keys, 6, NULL, &matched));
    assert_int_equal(matched, 3);
    assert_ok(kvt_store_match(store, keys + 4, 2, NULL, &matched));
    assert_int_equal(matched, 2);
    assert_ok(kvt_store_match(store, NULL, 0, NULL, &matched));
    assert_int_equal(matched, 0);
    assert_int_equal(kvt_store_match(store, NULL, 1, NULL, &matched), KVT_E_ARGUMENT);
    kvt_store_close(store);
}

/* Twice as many entries as fit: the recent half is there, the older is not, nothing overflows. */
TEST(eviction)
{
    kvt_store_options options = access_options(1 << 20, "lru");
    kvt_store *store = access_open(&options);
    const uint32_t count = 60;
    for (uint32_t i = 0; i < count; i++) {
        assert_ok(support_put(store, i));
        kvt_tier_stats tier = support_stats(store).tiers[KVT_TIER_DRAM];
        assert_true(tier.used_bytes <= tier.capacity_bytes);
    }
    uint32_t found = 0;
    for (uint32_t i = 0; i < count; i++) {
        kvt_status status = support_get(store, i, NULL);
        assert_true(status == KVT_OK || status == KVT_MISS);
        if (status == KVT_OK) {
            found++;
        } else {
            assert_int_equal(found, 0); /* plain recency: a prefix is gone, a suffix is there */
        }
    }
    kvt_store_stats stats = support_stats(store);
    assert_int_equal(stats.evictions, count - found);
    assert_int_equal(stats.tiers[KVT_TIER_DRAM].entries, found);
    assert_true(found >= 20);
    kvt_store_close(store);
}

typedef struct access_log {
    uint32_t committed, failed;
    uint32_t by_kind[4];
    uint32_t recoded; /* changes that stay in their tier */
} access_log;

static bool access_stays(const kvt_move *move)
{
    bool stays = move->kind == KVT_MOVE_CHANGE;
    for (int tier = KVT_TIER_HBM; tier < KVT_TIER_COUNT; tier++)
        stays = stays && (move->from_bytes[tier] > 0) == (move->to_bytes[tier] > 0);
    return stays;
}

static void access_observe(void *context, const kvt_move *move, kvt_status outcome)
{
    access_log *log = context;
    if (outcome == KVT_OK) {
        log->committed++;
        log->by_kind[move->kind]++;
        log->recoded += access_stays(move);
    } else {
        log->failed++;
    }
}

/* HBM over DRAM over two SSD members: entries sink, come back up on access, and stay right. */
TEST(tiers)
{
    char folder[64], paths[2][96];
    support_make_folder(folder, sizeof folder);
    kvt_device_config devices[2];
    for (int i = 0; i < 2; i++) {
        snprintf(paths[i], sizeof paths[i], "%s/ssd%d", folder, i);
        devices[i] =
            support_file_config(i == 0 ? "ssd0" : "ssd1", paths[i], (uint64_t)(i + 1) * (2 << 20));
    }
    static const char *const policies[] = {"lru", "lru-leaf", "utility"};
    for (size_t p = 0; p < 3; p++) {
        access_log log = {0};
        kvt_store_options options = access_options(1 << 20, policies[p]);
        options.tiers[KVT_TIER_HBM].capacity_bytes = 512 << 10;
        options.tiers[KVT_TIER_HBM].emulated = true;
        support_tier(&options, KVT_TIER_SSD, devices, 2);
        options.tiers[KVT_TIER_SSD].unit_bytes = 8192;
        options.format = true;
        options.observer.call = access_observe;
        options.observer.context = &log;
        kvt_store *store = access_open(&options);
        const uint32_t count = 100;
        for (uint32_t i = 0; i < count; i++) {
            kvt_status status = support_put(store, i);
            assert_true(status == KVT_OK || status == KVT_REFUSED);
        }
        uint32_t found = 0;
        for (int round = 0; round < 3; round++) {
            for (uint32_t i = 0; i < count; i++) {
                kvt_status status = support_get(store, i, NULL);
                assert_true(status == KVT_OK || status == KVT_MISS);
                found += status == KVT_OK;
                if (i % 10 == 0) assert_ok(kvt_store_maintain(store, NULL));
            }
        }
        kvt_store_stats stats = support_stats(store);
        assert_true(found > 100);
        assert_int_equal(stats.load_failures, 0);
        assert_int_equal(stats.moves.committed, log.committed);
        assert_int_equal(stats.promotions + stats.demotions + log.recoded,
                         log.by_kind[KVT_MOVE_CHANGE]);
        assert_int_equal(stats.evictions, log.by_kind[KVT_MOVE_EVICT]);
        assert_true(stats.tiers[KVT_TIER_HBM].emulated);
        if (p < 2) assert_true(stats.promotions > 0 && stats.demotions > 0);
        for (int tier = KVT_TIER_HBM; tier < KVT_TIER_COUNT; tier++) {
            assert_true(stats.tiers[tier].used_bytes <= stats.tiers[tier].capacity_bytes);
        }
        for (uint32_t i = 0; i < count; i++) {
            kvt_key key = support_key(i);
            (void)!kvt_store_delete(store, &key);
        }
        stats = support_stats(store);
        for (int tier = KVT_TIER_HBM; tier < KVT_TIER_COUNT; tier++) {
            assert_int_equal(stats.tiers[tier].used_bytes, 0);
        }
        kvt_store_close(store);
    }
}

/* ---- shared reads ---- */

typedef struct access_getter {
    kvt_store *store;
    kvt_status status;
    kvt_get_info info;
} access_getter;

static void *access_get_thread(void *argument)
{
    access_getter *getter = argument;
    getter->info.struct_size = sizeof getter->info;
    getter->status = support_get(getter->store, 7, &getter->info);
    return NULL;
}

/* A get that arrives while the entry is being read waits for that read instead of reading again. */
TEST(shared_read)
{
    support_fault fault = {.capacity_bytes = 1 << 20};
    kvt_device_config device = support_fault_config(&fault, "slow");
    kvt_store_options options = access_options(0, "lru");
    support_tier(&options, KVT_TIER_DRAM, &device, 1);
    kvt_store *store = access_open(&options);
    assert_ok(support_put(store, 7));
    tiers_fault_counts before, now;
    tiers_fault_counts_get(fault.device, &before);
    tiers_fault_rule hang = {.action = TIERS_FAULT_HANG, .kinds = TIERS_FAULT_READS};
    assert_ok(tiers_fault_add(fault.device, &hang));
    access_getter getters[2] = {{.store = store}, {.store = store}};
    pthread_t threads[2];
    assert_int_equal(pthread_create(&threads[0], NULL, access_get_thread, &getters[0]), 0);
    do {
        usleep(1000);
        tiers_fault_counts_get(fault.device, &now);
    } while (now.reads == before.reads);
    assert_int_equal(pthread_create(&threads[1], NULL, access_get_thread, &getters[1]), 0);
    while (support_stats(store).shared_reads == 0)
        usleep(1000);
    tiers_fault_clear(fault.device);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_ok(getters[i].status);
    }
    tiers_fault_counts_get(fault.device, &now);
    assert_int_equal(now.reads, before.reads + 1);
    assert_true(getters[1].info.shared);
    assert_int_equal(support_stats(store).shared_reads, 1);
    kvt_store_close(store);
}

TEST(explain)
{
    kvt_store_options options = access_options(4 << 20, "utility");
    kvt_store *store = access_open(&options);
    assert_ok(support_put(store, 3));
    kvt_key key = support_key(3), absent = support_key(4);
    kvt_explanation explanation = {.struct_size = sizeof explanation};
    assert_ok(kvt_store_explain(store, &key, &explanation));
    assert_int_equal(explanation.option_count, 3); /* none, raw and lossless in DRAM */
    assert_true(explanation.current != KVT_OPTION_NONE);
    assert_non_null(explanation.reason);
    assert_true(explanation.options[0].option.load_seconds == 1.0); /* as the entry said */
    assert_int_equal(kvt_store_explain(store, &absent, &explanation), KVT_MISS);
    kvt_store_close(store);
}

/* A tenant keeps no more than its share, whatever room there is; others are not touched. */
TEST(tenant)
{
    const uint64_t share = 3 * SUPPORT_ENTRY_BYTES;
    kvt_store_options options = access_options(4 << 20, "utility");
    kvt_store *store = access_open(&options);
    kvt_tenant limits = {.struct_size = sizeof limits, .alpha_seconds = 10.0, .loss_limit = 1.0};
    limits.share_bytes[KVT_TIER_DRAM] = share;
    assert_ok(kvt_tenant_set(store, 7, &limits));
    assert_int_equal(kvt_tenant_set(store, KVT_TENANTS_MAX, &limits), KVT_E_ARGUMENT);
    assert_int_equal(kvt_tenant_set(store, 7, NULL), KVT_E_ARGUMENT);
    limits.alpha_seconds = NAN;
    assert_int_equal(kvt_tenant_set(store, 7, &limits), KVT_E_ARGUMENT);
    assert_ok(support_put(store, 100));
    uint64_t alone = support_stats(store).tiers[KVT_TIER_DRAM].used_bytes;
    static char data[SUPPORT_ENTRY_BYTES];
    for (uint32_t i = 0; i < 20; i++) {
        support_fill(i, data);
        kvt_entry entry = {.struct_size = sizeof entry,
                           .key = support_key(i),
                           .layout = support_layout,
                           .recompute_seconds = 1 + i,
                           .tenant = 7,
                           .request_tokens = 1000};
        kvt_status status = kvt_store_put(store, &entry, KVT_PACKED(data, sizeof data));
        assert_true(status == KVT_OK || status == KVT_REFUSED);
        uint64_t used = support_stats(store).tiers[KVT_TIER_DRAM].used_bytes;
        assert_true(used > alone && used - alone <= share);
        entry.tenant = KVT_TENANTS_MAX;
        assert_int_equal(kvt_store_put(store, &entry, KVT_PACKED(data, sizeof data)),
                         KVT_E_ARGUMENT);
    }
    kvt_key key = support_key(100);
    assert_ok(kvt_store_exists(store, &key));
    kvt_store_close(store);
}

/* Records are encoded and decoded on the caller's threads, and are what they are without. */
TEST(codec_workers)
{
    worker_pool pool;
    worker_pool_open(&pool, 3);
    kvt_store_options options = access_options(4 << 20, "lru");
    options.variant = (kvt_variant){.codec = KVT_CODEC_LOSSLESS, .mode = KVT_LOSSLESS_DENSE};
    uint64_t used_bytes[2];
    for (int with = 0; with < 2; with++) {
        options.codec_workers = with != 0 ? &pool.workers : NULL;
        kvt_store *store = access_open(&options);
        uint64_t before = pool.calls;
        support_puts(store, 0, 8);
        uint64_t encoded = pool.calls;
        support_gets(store, 0, 8);
        used_bytes[with] = support_stats(store).tiers[KVT_TIER_DRAM].used_bytes;
        assert_int_equal(encoded > before, with);
        assert_int_equal(pool.calls > encoded, with);
        kvt_store_close(store);
    }
    assert_int_equal(used_bytes[0], used_bytes[1]);
    kvt_codec_workers empty = {.struct_size = sizeof empty};
    kvt_store *store = NULL;
    char message[128];
    options.codec_workers = &empty;
    assert_int_equal(kvt_store_open(&options, &store, message, sizeof message), KVT_E_ARGUMENT);
    assert_non_null(strstr(message, "codec_workers"));
    worker_pool_close(&pool);
}
