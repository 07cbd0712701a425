/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_client_calls.c - calls of a connected store that are more than one request: gets of a
 * prefix, which are under way at once; a flush, which tells each client what was lost; and a store
 * with an engine on other hosts.
 */
#include "serve_site.h"
#include "store_remote_support.h"

#include <kvterrace/connect.h>
#include <kvterrace/lookup.h>
#include <pthread.h>

enum { MIB = 1 << 20, MANY = 1500 };
#define ENTRY SUPPORT_ENTRY_BYTES

static serve_site site;

static kvt_store *connect_with(uint32_t depth, uint64_t staging_bytes)
{
    char message[256];
    kvt_store *store = NULL;
    const kvt_connect_options options = {
        .struct_size = sizeof options, .depth = depth, .staging_bytes = staging_bytes};
    assert_ok(kvt_connect(site.path, &options, &store, message, sizeof message));
    return store;
}

/* Where gets of a prefix write: entries one after the other, packed or in rows with a hole behind
 * each layer. */
typedef struct prefix_place {
    char *data;
    uint64_t stride; /* of an entry */
    bool rows;
    kvt_view views[MANY];
    const kvt_view *pointers[MANY];
    kvt_key keys[MANY];
} prefix_place;

static int64_t matrix_bytes(void)
{
    return (int64_t)kvt_layout_matrix_bytes(&support_layout);
}

static void prefix_place_make(prefix_place *at, char *data, uint32_t count, bool rows)
{
    const int64_t matrix = matrix_bytes(), row = matrix / support_layout.tokens;
    at->data = data;
    at->rows = rows;
    at->stride = rows ? 2 * ENTRY : ENTRY;
    for (uint32_t i = 0; i < count; i++) {
        at->keys[i] = support_key(i);
        at->views[i] = rows ? (kvt_view){.struct_size = sizeof at->views[i],
                                         .bases_kind = KVT_BASES_ONE,
                                         .base = {data + i * at->stride},
                                         .base_bytes = {at->stride},
                                         .layer_stride = 4 * matrix,
                                         .side_stride = matrix,
                                         .token_stride = row,
                                         .head_stride = row / support_layout.kv_heads}
                            : kvt_view_packed(data + i * at->stride, ENTRY);
        at->pointers[i] = &at->views[i];
    }
}

/* Entry i is there, and nothing else was written. */
static void prefix_place_check(const prefix_place *at, uint32_t i)
{
    static _Thread_local char expected[ENTRY];
    const char *from = at->data + i * at->stride;
    support_fill(i, expected);
    if (!at->rows) {
        assert_memory_equal(from, expected, ENTRY);
        return;
    }
    const uint64_t layer = 2 * (uint64_t)matrix_bytes();
    for (uint32_t l = 0; l < support_layout.layers; l++) {
        assert_memory_equal(from + 2 * l * layer, expected + l * layer, layer);
        for (uint64_t k = 0; k < layer; k++)
            assert_int_equal(from[(2 * l + 1) * layer + k], 0x5a);
    }
}

static void get_prefix(kvt_store *store, const prefix_place *at, uint32_t count, uint32_t expected)
{
    size_t loaded = 0;
    memset(at->data, 0x5a, count * at->stride);
    assert_ok(kvt_prefix_get(store, at->keys, at->pointers, count, KVT_NO_DEADLINE, &loaded));
    assert_int_equal(loaded, expected);
    for (uint32_t i = 0; i < expected; i++)
        prefix_place_check(at, i);
}

/* Whatever room the channel has, and wherever the gets write. */
TEST(a_prefix_of_any_length_comes_whole)
{
    static prefix_place at;
    serve_site_begin(&site, support_open_memory("lru", 128 * MIB, 8 * MIB));
    support_puts(site.store, 0, MANY);
    char *plain = test_alloc((size_t)MANY * 2 * ENTRY);
    static const struct {
        uint32_t depth;
        uint64_t staging_bytes;
    } rooms[] = {{2, ENTRY}, {4, 8 * ENTRY}, {64, 64 * ENTRY}};
    for (size_t room = 0; room < sizeof rooms / sizeof *rooms; room++) {
        void *shared = NULL;
        kvt_store *store = connect_with(rooms[room].depth, rooms[room].staging_bytes);
        assert_ok(kvt_region_make(store, 512 * ENTRY, &shared));
        for (int rows = 0; rows < 2; rows++) {
            prefix_place_make(&at, plain, MANY, rows);
            static const uint32_t counts[] = {0, 1, 5, 200};
            for (size_t i = 0; i < 4; i++)
                get_prefix(store, &at, counts[i], counts[i]);
            prefix_place_make(&at, shared, rows ? 256 : 512, rows);
            get_prefix(store, &at, 200, 200);
        }
        prefix_place_make(&at, plain, MANY, false);
        if (room == 2) get_prefix(store, &at, MANY, MANY);
        assert_ok(kvt_region_free(store, shared));
        kvt_store_close(store);
    }
    serve_site_end(&site);
}

/* An entry that is not there, or a view that does not fit, ends the prefix. */
TEST(a_prefix_ends_where_a_get_does)
{
    static prefix_place at;
    size_t loaded;
    serve_site_begin(&site, support_open_memory("lru", 64 * MIB, 8 * MIB));
    support_puts(site.store, 0, 100);
    kvt_store *store = connect_with(16, 16 * ENTRY);
    char *plain = test_alloc((size_t)100 * 2 * ENTRY);
    prefix_place_make(&at, plain, 100, false);
    const kvt_key gone = support_key(70);
    assert_ok(kvt_store_delete(site.store, &gone));
    get_prefix(store, &at, 100, 70);
    at.views[30] = kvt_view_packed(plain, ENTRY - 8);
    assert_int_equal(kvt_prefix_get(store, at.keys, at.pointers, 100, KVT_NO_DEADLINE, &loaded),
                     KVT_E_ARGUMENT);
    assert_int_equal(loaded, 30);
    at.pointers[20] = NULL;
    assert_int_equal(kvt_prefix_get(store, at.keys, at.pointers, 100, KVT_NO_DEADLINE, &loaded),
                     KVT_E_ARGUMENT);
    assert_int_equal(loaded, 20);
    prefix_place_make(&at, plain, 100, false);
    assert_ok(kvt_prefix_get(store, at.keys, at.pointers, 100, 1, &loaded));
    assert_int_equal(kvt_prefix_get(store, NULL, at.pointers, 9, 1, &loaded), KVT_E_ARGUMENT);
    assert_int_equal(kvt_prefix_get(store, at.keys, NULL, 9, 1, &loaded), KVT_E_ARGUMENT);
    /* All that it took of the channel has come back. */
    get_prefix(store, &at, 70, 70);
    kvt_store_close(store);
    assert_int_equal(kvt_prefix_get(site.store, at.keys, at.pointers, 0, 1, &loaded), KVT_OK);
    serve_site_end(&site);
}

static void *gets_prefixes(void *argument)
{
    kvt_store *store = argument;
    static _Thread_local prefix_place at;
    char *plain = malloc((size_t)60 * 2 * ENTRY);
    if (plain == NULL) return argument;
    for (int i = 0; i < 40; i++) {
        prefix_place_make(&at, plain, 60, i % 2 == 1);
        get_prefix(store, &at, 60, 60);
    }
    free(plain);
    return NULL;
}

/* Threads share a channel that has room for few of them. */
TEST(threads_get_prefixes_at_once)
{
    pthread_t threads[4];
    serve_site_begin(&site, support_open_memory("lru", 64 * MIB, 8 * MIB));
    support_puts(site.store, 0, 60);
    kvt_store *store = connect_with(8, 5 * ENTRY);
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, gets_prefixes, store), 0);
    for (int i = 0; i < 4; i++) {
        void *failed;
        assert_int_equal(pthread_join(threads[i], &failed), 0);
        assert_null(failed);
    }
    kvt_store_close(store);
    serve_site_end(&site);
}

/* The store tells a loss once; each client that was there hears it, once. */
TEST(each_client_is_told_what_was_lost)
{
    support_fault dram = {.capacity_bytes = 8 * MIB};
    kvt_store_options options = support_options(4 * MIB, "lru");
    const kvt_device_config config = support_fault_config(&dram, "dram");
    support_tier(&options, KVT_TIER_DRAM, &config, 1);
    options.limits.put_staging_bytes = 2 * MIB;
    serve_site_begin(&site, support_open(&options));
    kvt_store *loses = connect_with(8, 4 * ENTRY), *other = connect_with(8, 4 * ENTRY);
    for (int round = 0; round < 2; round++) {
        const tiers_fault_rule fault = {
            .action = TIERS_FAULT_FAIL, .kinds = TIERS_FAULT_WRITES, .status = KVT_E_IO};
        assert_ok(tiers_fault_add(dram.device, &fault));
        assert_ok(support_put(loses, (uint32_t)round));
        while (support_stats(site.store).puts_waiting != 0)
            usleep(1000);
        tiers_fault_clear(dram.device);
        kvt_store *first = round == 0 ? other : loses, *second = round == 0 ? loses : other;
        assert_int_equal(kvt_store_flush(first), KVT_E_IO);
        assert_ok(kvt_store_flush(first));
        kvt_store *later = connect_with(8, 4 * ENTRY);
        assert_ok(kvt_store_flush(later));
        kvt_store_close(later);
        assert_int_equal(kvt_store_flush(second), KVT_E_IO);
        assert_ok(kvt_store_flush(second));
        assert_ok(kvt_store_flush(first));
    }
    kvt_store_close(loses);
    kvt_store_close(other);
    serve_site_end(&site);
}

/* ---- other hosts ---- */

TEST(a_connected_store_has_the_engine_of_its_server)
{
    remote_memory_clear(ENGINE);
    kvt_store *a = open_mode(KVT_PUBLISH_ALL);
    put_all(a);
    serve_site_begin(&site, open_mode(KVT_PUBLISH_ALL));
    kvt_store *store = connect_with(16, 16 * ENTRY);
    kvt_get_info info = {.struct_size = sizeof info};
    for (uint32_t i = 0; i < COUNT; i++) {
        assert_ok(support_get(store, i, &info));
        assert_int_equal(info.tier, KVT_TIER_REMOTE);
    }
    assert_ok(support_put(store, 900));
    assert_ok(kvt_remote_flush(store, KVT_NO_DEADLINE));
    const kvt_remote_stats stats = stats_of(store);
    assert_int_equal(stats.hits, COUNT);
    assert_int_equal(stats.published, 1);
    kvt_remote_node node = {.struct_size = sizeof node};
    const kvt_status behind = kvt_remote_node_get(site.store, 0, &node);
    assert_int_equal(kvt_remote_node_get(store, 0, &node), behind);
    assert_int_equal(kvt_remote_node_get(store, 1000, &node), KVT_END);
    assert_int_equal(kvt_remote_node_get(store, 0, NULL), KVT_E_ARGUMENT);
    assert_int_equal(kvt_remote_stats_get(store, NULL), KVT_E_ARGUMENT);
    kvt_store_close(store);
    serve_site_end(&site);
    kvt_store_close(a);
}
