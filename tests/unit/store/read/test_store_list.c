/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_list.c - the listing of a store's entries: all of them, once, whatever room there is
 * for them, with what a description says of each; filters; callers of other versions.
 */
#include "open_support.h"

#include "codecs/record.h"

#include <kvterrace/key.h>
#include <kvterrace/lookup.h>
#include <kvterrace/names.h>
#include <math.h>

enum { MANY = 3000, SPACES = 4 };

/* Entry `number` of one of the spaces: the first 8 bytes of its key. */
static kvt_key key_of(uint32_t number)
{
    kvt_key key = {{0}};
    key.bytes[0] = 0xa0;
    key.bytes[7] = (uint8_t)(number % SPACES);
    memcpy(&key.bytes[8], &number, sizeof number);
    return key;
}

static uint32_t number_of(const kvt_key *key)
{
    uint32_t number;
    memcpy(&number, &key->bytes[8], sizeof number);
    return number;
}

static uint64_t space_of(uint32_t number)
{
    const kvt_key key = key_of(number);
    return kvt_key_space(&key);
}

static kvt_store *open_many(uint32_t count)
{
    kvt_store *store = support_open_memory("lru", 64 << 20, 1 << 20);
    for (uint32_t i = 0; i < count; i++) {
        const kvt_key key = key_of(i);
        kvt_status status;
        while ((status = support_put_small(store, &key, i % 3)) == KVT_BUSY)
            assert_ok(kvt_store_flush(store));
        assert_ok(status);
    }
    return store;
}

/* How often each of MANY entries is listed, with room for `capacity` at a time. */
static uint32_t list_all(kvt_store *store, const kvt_clear_filter *filter, size_t capacity,
                         uint32_t *times)
{
    kvt_list_item *items = test_zeros(capacity * sizeof *items);
    uint64_t cursor = 0;
    uint32_t all = 0;
    size_t count;
    kvt_status status;
    memset(times, 0, MANY * sizeof *times);
    items->struct_size = sizeof *items;
    while ((status = kvt_store_list(store, filter, &cursor, items, capacity, &count)) == KVT_OK) {
        assert_true(count > 0 && count <= capacity);
        for (size_t i = 0; i < count; i++) {
            const uint32_t number = number_of(&items[i].key);
            assert_true(number < MANY);
            assert_int_equal(items[i].struct_size, sizeof *items);
            assert_int_equal(items[i].tenant, number % 3);
            times[number]++;
        }
        all += (uint32_t)count;
    }
    assert_int_equal(status, KVT_END);
    assert_int_equal(count, 0);
    return all;
}

TEST(every_entry_comes_once_whatever_fits)
{
    static uint32_t times[MANY];
    kvt_store *store = open_many(MANY);
    const size_t rooms[] = {1, 2, 7, 256, MANY - 1, MANY, 3 * MANY};
    for (size_t i = 0; i < sizeof rooms / sizeof *rooms; i++) {
        assert_int_equal(list_all(store, NULL, rooms[i], times), MANY);
        for (uint32_t entry = 0; entry < MANY; entry++)
            assert_int_equal(times[entry], 1);
    }
    kvt_store_close(store);
}

TEST(a_filter_is_the_one_of_clear)
{
    static uint32_t times[MANY];
    kvt_store *store = open_many(MANY);
    kvt_clear_filter filter = {.struct_size = sizeof filter, .everything = true};
    assert_int_equal(list_all(store, &filter, 100, times), MANY);
    filter =
        (kvt_clear_filter){.struct_size = sizeof filter, .by_space = true, .space = space_of(2)};
    assert_int_equal(list_all(store, &filter, 100, times), MANY / SPACES);
    for (uint32_t i = 0; i < MANY; i++)
        assert_int_equal(times[i], i % SPACES == 2);
    filter.by_tenant = true;
    filter.tenant = 1;
    uint32_t both = 0;
    for (uint32_t i = 0; i < MANY; i++)
        both += i % SPACES == 2 && i % 3 == 1;
    assert_int_equal(list_all(store, &filter, 100, times), both);
    filter.by_space = false;
    assert_int_equal(list_all(store, &filter, 1, times), MANY / 3);
    uint64_t removed;
    assert_ok(kvt_store_clear(store, &filter, &removed));
    assert_int_equal(removed, MANY / 3);
    assert_int_equal(list_all(store, &filter, 1, times), 0);
    assert_int_equal(list_all(store, NULL, 50, times), MANY - MANY / 3);
    kvt_store_close(store);
}

TEST(entries_come_while_the_table_grows)
{
    static uint32_t times[MANY];
    kvt_store *store = open_many(500);
    kvt_list_item items[20] = {{.struct_size = sizeof items[0]}};
    uint64_t cursor = 0;
    size_t count;
    uint32_t put = 500;
    memset(times, 0, sizeof times);
    while (kvt_store_list(store, NULL, &cursor, items, 20, &count) == KVT_OK) {
        for (size_t i = 0; i < count; i++)
            times[number_of(&items[i].key)]++;
        for (uint32_t i = 0; i < 60 && put < MANY; i++, put++) {
            const kvt_key key = key_of(put);
            if (support_put_small(store, &key, put % 3) != KVT_OK) break;
        }
    }
    assert_true(put > 600);
    for (uint32_t i = 0; i < 500; i++)
        assert_true(times[i] >= 1);
    kvt_store_close(store);
}

TEST(an_item_is_what_describe_says)
{
    open_site site;
    open_prepare(&site);
    site.options.tiers[KVT_TIER_DRAM].capacity_bytes = 4 << 20;
    site.options.variant = (kvt_variant){.codec = KVT_CODEC_LOSSLESS, .mode = KVT_LOSSLESS_DENSE};
    kvt_store *store = open_now(&site);
    support_puts(store, 0, 12);
    assert_ok(kvt_store_flush(store));
    kvt_key key = support_key(3);
    uint64_t lease;
    assert_ok(kvt_lease_begin(store, NULL, &key, 1, KVT_NO_DEADLINE - 1, NULL, &lease));
    kvt_list_item items[16] = {{.struct_size = sizeof items[0]}};
    uint64_t cursor = 0;
    size_t count;
    uint32_t held = 0;
    assert_ok(kvt_store_list(store, NULL, &cursor, items, 16, &count));
    assert_int_equal(count, 12);
    for (size_t i = 0; i < count; i++) {
        kvt_description what = {.struct_size = sizeof what};
        assert_ok(kvt_store_describe(store, &items[i].key, &what));
        assert_int_equal(items[i].tier, what.tier);
        assert_memory_equal(&items[i].variant, &what.variant, sizeof what.variant);
        assert_int_equal(items[i].stored_bytes, what.stored_bytes);
        assert_int_equal(items[i].bytes, what.bytes);
        assert_int_equal(items[i].copy_bytes, what.copy_bytes);
        assert_int_equal(items[i].tokens, what.layout.tokens);
        assert_int_equal(items[i].class_id, what.class_id);
        assert_true(items[i].age_seconds >= 0 && isfinite(items[i].age_seconds));
        assert_int_equal(items[i].flags & KVT_LIST_COPY, what.copy_bytes != 0 ? KVT_LIST_COPY : 0);
        assert_int_equal(items[i].flags & KVT_LIST_MOVING, what.moving ? KVT_LIST_MOVING : 0);
        held += (items[i].flags & KVT_LIST_HELD) != 0;
        if (items[i].flags & KVT_LIST_HELD) assert_memory_equal(&items[i].key, &key, sizeof key);
    }
    assert_int_equal(held, 1);
    assert_ok(kvt_lease_end(store, lease));
    cursor = 0;
    assert_ok(kvt_store_list(store, NULL, &cursor, items, 16, &count));
    for (size_t i = 0; i < count; i++)
        assert_int_equal(items[i].flags & KVT_LIST_HELD, 0);
    kvt_store_close(store);
}

TEST(callers_of_other_versions_and_wrong_ones)
{
    struct {
        kvt_list_item item;
        uint64_t later;
    } large[4];
    kvt_store *store = open_many(4);
    kvt_list_item item = {.struct_size = sizeof item};
    uint64_t cursor = 0;
    size_t count = 9;
    memset(large, 0xee, sizeof large);
    large[0].item.struct_size = sizeof large[0];
    assert_ok(kvt_store_list(store, NULL, &cursor, &large[0].item, 4, &count));
    assert_int_equal(count, 4);
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(large[i].item.struct_size, sizeof large[0]);
        assert_int_equal(large[i].item.stored_bytes >= 64, true);
        assert_int_equal(large[i].later, 0);
    }
    assert_int_equal(kvt_store_list(store, NULL, &cursor, &item, 1, &count), KVT_END);
    assert_int_equal(count, 0);
    /* Whatever a cursor says. */
    const uint64_t cursors[] = {1, 1000, UINT64_C(1) << 40, UINT64_MAX, UINT64_MAX << 40};
    for (size_t i = 0; i < sizeof cursors / sizeof *cursors; i++) {
        cursor = cursors[i];
        const kvt_status status = kvt_store_list(store, NULL, &cursor, &item, 1, &count);
        assert_true(status == KVT_OK || status == KVT_END);
    }
    cursor = 0;
    assert_int_equal(kvt_store_list(store, NULL, NULL, &item, 1, &count), KVT_E_ARGUMENT);
    assert_int_equal(kvt_store_list(store, NULL, &cursor, NULL, 1, &count), KVT_E_ARGUMENT);
    assert_int_equal(kvt_store_list(store, NULL, &cursor, &item, 0, &count), KVT_E_ARGUMENT);
    assert_int_equal(kvt_store_list(store, NULL, &cursor, &item, 1, NULL), KVT_E_ARGUMENT);
    item.struct_size = 8;
    assert_int_equal(kvt_store_list(store, NULL, &cursor, &item, 1, &count), KVT_E_ARGUMENT);
    item.struct_size = sizeof item;
    kvt_clear_filter filter = {.struct_size = sizeof filter};
    assert_int_equal(kvt_store_list(store, &filter, &cursor, &item, 1, &count), KVT_E_ARGUMENT);
    filter.by_tenant = true;
    filter.tenant = KVT_TENANTS_MAX;
    assert_int_equal(kvt_store_list(store, &filter, &cursor, &item, 1, &count), KVT_E_ARGUMENT);
    filter.struct_size = 4;
    assert_int_equal(kvt_store_list(store, &filter, &cursor, &item, 1, &count), KVT_E_ARGUMENT);
    assert_int_equal(cursor, 0);
    kvt_store_close(store);
}
