/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_put_view.c - puts from views and gets into views: for each layout of an engine the
 * same bytes as with packed buffers, from a put's staging, from memory where the record lies, and
 * through the store's staging; and views that no call takes.
 */
#include "codecs/view_rows.h"
#include "engine_views.h"
#include "store_site.h"

enum { DRAM_BYTES = 16 << 20, FILL = 0x5a };

static const tiers_fault_rule hang_writes = {.action = TIERS_FAULT_HANG,
                                             .kinds = TIERS_FAULT_WRITES};

/* A store in DRAM; faulty: on a device that the test can hold, and that lends no records. */
static site *prepare(bool faulty)
{
    site *s = site_prepare((site_shape){.staged = true,
                                        .memory_bytes = faulty ? 0 : DRAM_BYTES,
                                        .dram_bytes = faulty ? DRAM_BYTES : 0});
    return s;
}

/* Writes entry `number` into the pool's view, by its definition, or compares it; then all else is
 * FILL. */
static void pool_walk(const engine_pool *pool, uint32_t number, bool compare)
{
    static uint8_t expected[SUPPORT_ENTRY_BYTES];
    const kvt_layout *layout = &support_layout;
    const uint32_t head_bytes = 2u * layout->head_dim;
    support_fill(number, expected);
    const uint8_t *from = expected;
    for (uint32_t m = 0; m < 2u * layout->layers; m++) {
        for (uint32_t token = 0; token < layout->tokens; token++) {
            for (uint32_t head = 0; head < layout->kv_heads; head++, from += head_bytes) {
                uint8_t *at = engine_head_at(&pool->view, 2, m / 2, m % 2, token, head);
                if (compare) assert_memory_equal(at, from, head_bytes);
                memcpy(at, from, head_bytes);
                if (compare) memset(at, FILL, head_bytes);
            }
        }
    }
    for (uint32_t i = 0; compare && i < pool->pools; i++) {
        for (uint64_t k = 0; k < pool->pool_bytes; k++) {
            assert_int_equal(((uint8_t *)pool->memory[i])[k], FILL);
        }
    }
}

static kvt_status put_view(kvt_store *store, const kvt_view *view, uint32_t number)
{
    kvt_entry entry = support_entry(support_key(number), support_layout, 1);
    return kvt_store_put(store, &entry, view);
}

/* Gets entry `number` into every layout. */
static void check_gets(kvt_store *store, uint32_t number)
{
    const kvt_key key = support_key(number);
    for (uint32_t i = 0; i < ENGINE_VIEWS; i++) {
        engine_pool pool;
        kvt_kept_tokens kept = {.struct_size = sizeof kept};
        kvt_get_info info = {.struct_size = sizeof info, .kept = &kept};
        assert_true(engine_pool_open(&pool, &engine_views[i], &support_layout, 1, FILL));
        assert_ok(kvt_store_get(store, &key, &pool.view, KVT_NO_DEADLINE, &info));
        assert_int_equal(kept.count, support_layout.tokens);
        assert_int_equal(info.tier, KVT_TIER_DRAM);
        pool_walk(&pool, number, true);
        engine_pool_close(&pool);
    }
}

/* Puts entries from all layouts, numbered from 1 on. */
static void put_all(kvt_store *store)
{
    for (uint32_t i = 0; i < ENGINE_VIEWS; i++) {
        engine_pool pool;
        assert_true(engine_pool_open(&pool, &engine_views[i], &support_layout, 1, FILL));
        pool_walk(&pool, 1 + i, false);
        assert_ok(put_view(store, &pool.view, 1 + i));
        /* The put has copied the bytes. */
        for (uint32_t k = 0; k < pool.pools; k++)
            memset(pool.memory[k], 0, pool.pool_bytes);
        engine_pool_close(&pool);
    }
}

static void get_all(kvt_store *store)
{
    for (uint32_t i = 0; i < ENGINE_VIEWS; i++) {
        assert_ok(support_get(store, 1 + i, NULL));
        if (i % 4 == 0) check_gets(store, 1 + i);
    }
}

TEST(views_reach_the_memory_of_a_tier)
{
    for (uint32_t lossless = 0; lossless < 2; lossless++) {
        site *s = prepare(false);
        if (lossless) assert_ok(kvt_variant_parse("lossless", &s->options.variant));
        site_open(s);
        put_all(s->store);
        assert_ok(kvt_store_flush(s->store));
        get_all(s->store);
        site_close(s);
    }
}

TEST(views_reach_staged_puts_and_devices)
{
    site *s = prepare(true);
    site_open(s);
    assert_ok(tiers_fault_add(s->dram.device, &hang_writes));
    put_all(s->store);
    uint64_t hits = support_stats(s->store).staged_hits;
    get_all(s->store);
    assert_true(support_stats(s->store).staged_hits > hits + ENGINE_VIEWS);
    tiers_fault_clear(s->dram.device);
    assert_ok(kvt_store_flush(s->store));
    hits = support_stats(s->store).staged_hits;
    get_all(s->store);
    assert_int_equal(support_stats(s->store).staged_hits, hits);
}

TEST(views_are_put_without_put_staging)
{
    static const char *const variants[] = {"raw", "lossless"};
    for (uint32_t i = 0; i < 4; i++) {
        site *s = prepare(i >= 2);
        s->options.limits.put_staging_bytes = 0;
        assert_ok(kvt_variant_parse(variants[i % 2], &s->options.variant));
        site_open(s);
        put_all(s->store);
        get_all(s->store);
        assert_int_equal(support_put(s->store, 1), KVT_EXISTS);
        site_close(s);
    }
}

TEST(opaque_entries_are_one_run)
{
    enum { BYTES = 5001 };
    static uint8_t data[BYTES], got[BYTES + 1];
    site *s = prepare(false);
    site_open(s);
    kvt_entry entry = {.struct_size = sizeof entry,
                       .key = support_key(7),
                       .layout = {.dtype = KVT_DTYPE_OPAQUE, .opaque_bytes = BYTES},
                       .recompute_seconds = 1};
    for (uint32_t i = 0; i < BYTES; i++)
        data[i] = (uint8_t)(i * 7 + i / 256);
    kvt_view view = codecs_packed_view(&entry.layout, data);
    assert_ok(kvt_store_put(s->store, &entry, &view));
    for (uint32_t turn = 0; turn < 2; turn++) {
        memset(got, FILL, sizeof got);
        view = codecs_packed_view(&entry.layout, got);
        assert_ok(kvt_store_get(s->store, &entry.key, &view, KVT_NO_DEADLINE, NULL));
        assert_memory_equal(got, data, BYTES);
        assert_int_equal(got[BYTES], FILL);
        assert_ok(kvt_store_flush(s->store));
    }
}

TEST(bad_views_are_refused_untouched)
{
    engine_pool pool;
    site *s = prepare(false);
    site_open(s);
    assert_true(engine_pool_open(&pool, &engine_views[2], &support_layout, 1, FILL));
    assert_int_equal(pool.view.tokens_per_block, 16);
    const kvt_key key = support_key(1);
    kvt_get_info info = {.struct_size = sizeof info};
    assert_int_equal(kvt_store_get(s->store, &key, &pool.view, KVT_NO_DEADLINE, &info), KVT_MISS);
    assert_int_equal(support_stats(s->store).misses, 1);
    kvt_view bad = pool.view;
    bad.block_count = 1;
    assert_int_equal(put_view(s->store, &bad, 1), KVT_E_ARGUMENT);
    assert_int_equal(kvt_store_exists(s->store, &key), KVT_MISS);
    assert_ok(support_put(s->store, 1));
    for (uint32_t turn = 0; turn < 2; turn++) {
        assert_int_equal(kvt_store_get(s->store, &key, &bad, KVT_NO_DEADLINE, &info),
                         KVT_E_ARGUMENT);
        bad.block_count = pool.view.block_count;
        bad.base_bytes[0]--;
        pool.blocks[1] = (uint32_t)(2 * pool.used);
        assert_int_equal(kvt_store_get(s->store, &key, &bad, KVT_NO_DEADLINE, &info),
                         KVT_E_ARGUMENT);
        bad.base_bytes[0]++;
        pool.blocks[1] = pool.blocks[0];
        assert_int_equal(kvt_store_get(s->store, &key, &bad, KVT_NO_DEADLINE, &info),
                         KVT_E_ARGUMENT);
        bad.memory = (kvt_memory)7;
        assert_int_equal(kvt_store_get(s->store, &key, &bad, KVT_NO_DEADLINE, &info),
                         KVT_E_UNSUPPORTED);
        bad = pool.view;
        bad.block_count = 1;
        assert_ok(kvt_store_flush(s->store));
    }
    assert_int_equal(kvt_store_get(s->store, &key, NULL, KVT_NO_DEADLINE, &info), KVT_E_ARGUMENT);
    assert_int_equal(kvt_store_get(s->store, NULL, &pool.view, KVT_NO_DEADLINE, NULL),
                     KVT_E_ARGUMENT);
    assert_int_equal(kvt_store_put(s->store, NULL, &pool.view), KVT_E_ARGUMENT);
    for (uint64_t k = 0; k < pool.pool_bytes; k++)
        assert_int_equal(((uint8_t *)pool.memory[0])[k], FILL);
    engine_pool_close(&pool);
}
