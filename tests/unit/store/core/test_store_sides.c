/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_sides.c - entries of one side in a store: through put staging, memory and SSD, over a
 * restart, beside entries of two sides, whose rows stay what they were. test_store_rebuild has them
 * without a catalog, test_store_ladder under pressure.
 */
#include "store_site.h"

#include <kvterrace/names.h>
#include <kvterrace/view.h>

#include <sqlite3.h>

enum { ENTRIES = 40, DATA_BYTES = 96 * 576 * 2 * 2 };

/* One file below memory, and puts that are handed over. */
TEST_BEFORE_EACH
{
    site *s = site_new(state, (site_shape){.disks = 1,
                                           .disk_bytes = 32 << 20,
                                           .plain = true,
                                           .staged = true,
                                           .memory_bytes = 16 << 20});
    s->options.limits.put_backlog_seconds = 0;
}

/* MLA's latent, V alone, and K and V under both of their names. */
static kvt_layout layout_of(uint32_t number)
{
    static const uint16_t dims[] = {576, 512, 64, 128};
    kvt_layout layout = {.layers = 2,
                         .kv_heads = 1,
                         .head_dim = dims[number % 4],
                         .dtype = number % 3 == 0 ? KVT_DTYPE_FP16 : KVT_DTYPE_BF16,
                         .order = (uint8_t)(number % 2),
                         .tokens = 96};
    layout.sides = number % 4 == 2   ? KVT_SIDES_V
                   : number % 4 < 3  ? KVT_SIDES_ONE
                   : number % 8 == 3 ? 0
                                     : KVT_SIDES_BOTH;
    return layout;
}

static uint64_t fill(uint32_t number, void *data)
{
    const kvt_layout layout = layout_of(number);
    uint64_t bytes;
    assert_ok(kvt_layout_bytes(&layout, &bytes));
    assert_true(bytes <= DATA_BYTES);
    codecs_kv_sample_fill(&layout, number, data);
    return bytes;
}

static void put_all(kvt_store *store)
{
    static char data[DATA_BYTES];
    for (uint32_t i = 0; i < ENTRIES; i++) {
        const uint64_t bytes = fill(i, data);
        const kvt_entry entry = support_entry(support_key(i), layout_of(i), 1);
        assert_int_equal(kvt_store_put(store, &entry, KVT_PACKED(data, bytes + 1)), KVT_E_ARGUMENT);
        kvt_status status = kvt_store_put(store, &entry, KVT_PACKED(data, bytes));
        while (status == KVT_BUSY) {
            assert_ok(kvt_store_flush(store));
            status = kvt_store_put(store, &entry, KVT_PACKED(data, bytes));
        }
        assert_ok(status);
    }
}

static void check_all(kvt_store *store)
{
    static char got[DATA_BYTES], wanted[DATA_BYTES];
    for (uint32_t i = 0; i < ENTRIES; i++) {
        const uint64_t bytes = fill(i, wanted);
        const kvt_key key = support_key(i);
        kvt_description description = {.struct_size = sizeof description};
        memset(got, 0xee, sizeof got);
        assert_ok(kvt_store_get(store, &key, KVT_PACKED(got, bytes), KVT_STORE_DEADLINE, NULL));
        assert_memory_equal(got, wanted, bytes);
        assert_ok(kvt_store_describe(store, &key, &description));
        kvt_layout layout = layout_of(i);
        if (layout.sides == 2) layout.sides = 0;
        assert_memory_equal(&description.layout, &layout, sizeof layout);
        assert_int_equal(description.bytes, bytes);
    }
}

TEST(entries_of_one_side_survive)
{
    site *s = *state;
    site_open(s);
    put_all(s->store);
    check_all(s->store); /* from staging, mostly */
    assert_ok(kvt_store_flush(s->store));
    check_all(s->store);
    site_close(s);
    s->options.tiers[KVT_TIER_DRAM].capacity_bytes = 0;
    site_open(s);
    check_all(s->store);
}

enum { BLOCK = 16, BLOCKS = 12 };

/* A paged pool of one layer each, as engines keep a latent. */
typedef struct pool {
    void *bases[2];
    uint32_t blocks[6];
    kvt_view view;
} pool;

static void pool_make(pool *p, uint32_t number, uint32_t first)
{
    const kvt_layout layout = layout_of(number);
    assert_ok(kvt_view_make(&layout, "bth", BLOCK, BLOCKS, &p->view));
    assert_int_equal(p->view.bases_kind, KVT_BASES_LAYERS);
    for (uint32_t i = 0; i < 2; i++) {
        p->bases[i] = test_alloc(p->view.base_bytes[0]);
        assert_non_null(p->bases[i]);
        memset(p->bases[i], 0x77, p->view.base_bytes[0]);
    }
    for (uint32_t i = 0; i < 6; i++)
        p->blocks[i] = (5 * i + first) % BLOCKS;
    p->view.bases = p->bases;
    p->view.blocks = p->blocks;
    p->view.block_count = 6;
}

static void *pool_block(const pool *p, uint32_t layer, uint32_t block, uint64_t block_bytes)
{
    return (char *)p->bases[layer] + p->blocks[block] * block_bytes;
}

/* Out of a paged pool and into another one, from staging, memory and SSD. */
TEST(views_of_one_side_are_stored)
{
    static char data[DATA_BYTES], again[DATA_BYTES];
    site *s = *state;
    site_open(s);
    for (uint32_t round = 0; round < 3; round++) {
        for (uint32_t i = 0; i < ENTRIES; i++) {
            if (i % 4 == 3) continue; /* of two sides */
            const uint64_t bytes = fill(i, data), block = bytes / 2 / 6;
            const kvt_entry entry = support_entry(support_key(i), layout_of(i), 1);
            pool p;
            pool_make(&p, i, i);
            if (round == 0) {
                for (uint32_t b = 0; b < 12; b++)
                    memcpy(pool_block(&p, b / 6, b % 6, block), data + b * block, block);
                kvt_status status = kvt_store_put(s->store, &entry, &p.view);
                while (status == KVT_BUSY) {
                    assert_ok(kvt_store_flush(s->store));
                    status = kvt_store_put(s->store, &entry, &p.view);
                }
                assert_ok(status);
            }
            pool_make(&p, i, i + 3);
            assert_ok(kvt_store_get(s->store, &entry.key, &p.view, KVT_NO_DEADLINE, NULL));
            for (uint32_t b = 0; b < 12; b++)
                memcpy(again + b * block, pool_block(&p, b / 6, b % 6, block), block);
            assert_memory_equal(again, data, bytes);
        }
        if (round == 0) assert_ok(kvt_store_flush(s->store));
        if (round != 1) continue;
        site_close(s);
        s->options.tiers[KVT_TIER_DRAM].capacity_bytes = 0;
        site_open(s);
    }
}

/* What the rows say; an entry of two sides has the row that it had before there was another. */
TEST(rows_say_so)
{
    site *s = *state;
    s->options.tiers[KVT_TIER_DRAM].capacity_bytes = 0;
    site_open(s);
    put_all(s->store);
    site_close(s);
    sqlite3 *database;
    sqlite3_stmt *statement;
    assert_int_equal(sqlite3_open(s->catalog, &database), SQLITE_OK);
    assert_int_equal(
        sqlite3_prepare_v2(database, "SELECT key, axis_order FROM entry", -1, &statement, NULL),
        SQLITE_OK);
    uint32_t rows = 0;
    for (; sqlite3_step(statement) == SQLITE_ROW; rows++) {
        uint32_t number;
        memcpy(&number, sqlite3_column_blob(statement, 0), sizeof number);
        const kvt_layout layout = layout_of(number);
        const int one = kvt_layout_sides(&layout) == 1 ? 2 : 0;
        assert_int_equal(sqlite3_column_int(statement, 1),
                         layout.order + one + (layout.sides == KVT_SIDES_V ? 4 : 0));
    }
    assert_int_equal(rows, ENTRIES);
    sqlite3_finalize(statement);
    sqlite3_close(database);
}
