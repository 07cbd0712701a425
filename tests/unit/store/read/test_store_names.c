/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_names.c - the calls that name entries without reading them: describe, touch, clear,
 * and spaces.
 */
#include "lock_count.h"
#include "open_support.h"

#include "codecs/record.h"

#include <kvterrace/key.h>
#include <kvterrace/lookup.h>
#include <kvterrace/names.h>
#include <pthread.h>
#include <stdatomic.h>

enum { STEP = 256 };

/* ---- the stores ---- */

static kvt_store *open_memory(uint64_t capacity_bytes, uint64_t put_staging_bytes)
{
    return support_open_memory("lru", capacity_bytes, put_staging_bytes);
}

static uint64_t space_number(uint32_t number)
{
    kvt_space space;
    kvt_space_hash hash;
    kvt_space_init(&space);
    space.model = "model";
    space.block_tokens = number + 1;
    assert_ok(kvt_space_make(&space, &hash));
    return kvt_space_id(&hash);
}

/* The key of an entry in a space. */
static kvt_key space_key(uint32_t space_index, uint32_t number)
{
    kvt_space space;
    kvt_space_hash hash;
    kvt_key key;
    kvt_space_init(&space);
    space.model = "model";
    space.block_tokens = space_index + 1;
    assert_ok(kvt_space_make(&space, &hash));
    assert_ok(kvt_key_make(&hash, &number, sizeof number, 0, &key));
    return key;
}

/* Puts an entry, also when the put's staging is full. */
static void put_surely(kvt_store *store, const kvt_key *key, uint32_t tenant)
{
    kvt_status status;
    while ((status = support_put_small(store, key, tenant)) == KVT_BUSY)
        assert_ok(kvt_store_flush(store));
    assert_ok(status);
}

/* Puts entries 0 to count - 1 of a space; entry i is tenant i % 3's. */
static void put_space(kvt_store *store, uint32_t space, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        kvt_key key = space_key(space, i);
        put_surely(store, &key, i % 3);
    }
}

static uint32_t count_space(kvt_store *store, uint32_t space, uint32_t count)
{
    uint32_t found = 0;
    for (uint32_t i = 0; i < count; i++) {
        kvt_key key = space_key(space, i);
        found += kvt_store_exists(store, &key) == KVT_OK;
    }
    return found;
}

static kvt_clear_filter clear_of_space(uint64_t space)
{
    return (kvt_clear_filter){
        .struct_size = sizeof(kvt_clear_filter), .by_space = true, .space = space};
}

static kvt_clear_filter clear_of_tenant(uint32_t tenant)
{
    return (kvt_clear_filter){
        .struct_size = sizeof(kvt_clear_filter), .by_tenant = true, .tenant = tenant};
}

static uint64_t clear_now(kvt_store *store, kvt_clear_filter filter)
{
    uint64_t removed = UINT64_MAX;
    assert_ok(kvt_store_clear(store, &filter, &removed));
    return removed;
}

/* ---- describe ---- */

TEST(describe_says_what_was_put)
{
    static char data[SUPPORT_ENTRY_BYTES];
    open_site site;
    open_prepare(&site);
    site.options.variant = (kvt_variant){.codec = KVT_CODEC_LOSSLESS, .mode = KVT_LOSSLESS_DENSE};
    kvt_store *store = open_now(&site);
    kvt_key parent = support_key(1);
    assert_ok(support_put(store, 1));
    kvt_entry entry = {.struct_size = sizeof entry,
                       .key = support_key(2),
                       .parent = &parent,
                       .layout = support_layout,
                       .first_position = 32,
                       .recompute_seconds = 1,
                       .class_id = 9,
                       .tenant = 4,
                       .request_tokens = 777};
    support_fill(2, data);
    assert_ok(kvt_store_put(store, &entry, KVT_PACKED(data, sizeof data)));
    kvt_description found = {.struct_size = sizeof found};
    uint64_t uses = support_stats(store).policy.accesses;
    assert_ok(kvt_store_describe(store, &entry.key, &found));
    assert_int_equal(support_stats(store).policy.accesses, uses);
    assert_int_equal(found.struct_size, sizeof found);
    assert_int_equal(found.tier, KVT_TIER_SSD);
    assert_memory_equal(&found.layout, &support_layout, sizeof support_layout);
    assert_int_equal(found.bytes, sizeof data);
    assert_int_equal(found.variant.codec, KVT_CODEC_LOSSLESS);
    assert_true(found.stored_bytes > 0 && found.stored_bytes < sizeof data + 65536);
    assert_int_equal(found.copy_bytes, 0);
    assert_true(found.has_parent);
    assert_memory_equal(&found.parent, &parent, sizeof parent);
    assert_int_equal(found.first_position, 32);
    assert_int_equal(found.request_tokens, 777);
    assert_int_equal(found.class_id, 9);
    assert_int_equal(found.tenant, 4);
    assert_false(found.moving);
    assert_true(found.lifetime_seconds == 0 && found.age_seconds >= 0);
    /* The size that a get demands. */
    assert_ok(
        kvt_store_get(store, &entry.key, KVT_PACKED(data, found.bytes), KVT_STORE_DEADLINE, NULL));
    assert_ok(kvt_store_describe(store, &parent, &found));
    assert_false(found.has_parent);
    kvt_store_close(store);
}

TEST(describe_of_nothing_and_with_nothing)
{
    kvt_store *store = open_memory(1 << 20, 0);
    static const kvt_description zero;
    kvt_description found;
    kvt_key key = support_key(1);
    memset(&found, 1, sizeof found);
    found.struct_size = sizeof found;
    found.groups = NULL; /* the caller's, with its capacity */
    found.groups_capacity = 0;
    assert_int_equal(kvt_store_describe(store, &key, &found), KVT_MISS);
    found.struct_size = 0;
    assert_memory_equal(&found, &zero, sizeof found);
    assert_int_equal(kvt_store_describe(store, &key, &found), KVT_E_ARGUMENT);
    found.struct_size = sizeof found;
    found.groups_capacity = 1;
    assert_int_equal(kvt_store_describe(store, &key, &found), KVT_E_ARGUMENT);
    found.groups_capacity = 0;
    found.struct_size = 8;
    assert_int_equal(kvt_store_describe(store, &key, &found), KVT_E_ARGUMENT);
    found.struct_size = sizeof found;
    assert_int_equal(kvt_store_describe(store, NULL, &found), KVT_E_ARGUMENT);
    assert_int_equal(kvt_store_describe(store, &key, NULL), KVT_E_ARGUMENT);
    kvt_store_close(store);
}

/* ---- touch ---- */

/* Under lru what was touched outlives what was put after it. */
TEST(touch_counts_as_a_use)
{
    kvt_store *store = open_memory(10 * 48 * 1024, 0);
    uint32_t held = 0;
    while (support_stats(store).evictions == 0)
        assert_ok(support_put(store, held++));
    kvt_key oldest = support_key(1), missing = support_key(1000);
    const kvt_key keys[] = {oldest, missing, oldest};
    size_t touched = 99;
    uint64_t gets = support_stats(store).gets;
    assert_ok(kvt_store_exists(store, &oldest));
    assert_ok(kvt_store_touch(store, keys, 3, &touched));
    assert_int_equal(touched, 2);
    assert_int_equal(support_stats(store).gets, gets);
    for (uint32_t i = 0; i < 3; i++)
        assert_ok(support_put(store, held + i));
    kvt_key next = support_key(2);
    assert_ok(kvt_store_exists(store, &oldest));
    assert_int_equal(kvt_store_exists(store, &next), KVT_MISS);
    kvt_store_close(store);
}

TEST(touch_lets_the_lock_go)
{
    enum { KEYS = 1100 };
    kvt_store *store = open_memory(64 << 20, 0);
    kvt_key *keys = test_alloc(KEYS * sizeof *keys);
    for (uint32_t i = 0; i < KEYS; i++) {
        keys[i] = support_key(i);
        if (i % 2 == 0) assert_ok(support_put_small(store, &keys[i], 0));
    }
    size_t touched = 0;
    lock_count_begin();
    assert_ok(kvt_store_touch(store, keys, KEYS, &touched));
    uint32_t holds = lock_count_end();
    assert_int_equal(touched, KEYS / 2);
    /* One for each step, and one for what is learned of each use. */
    if (LOCK_COUNTS) assert_true(holds >= (KEYS + STEP - 1) / STEP + KEYS / 2);
    assert_ok(kvt_store_touch(store, NULL, 0, &touched));
    assert_int_equal(touched, 0);
    assert_ok(kvt_store_touch(store, keys, 0, NULL));
    assert_int_equal(kvt_store_touch(store, NULL, 1, NULL), KVT_E_ARGUMENT);
    kvt_store_close(store);
}

/* ---- clear ---- */

TEST(clear_takes_one_space)
{
    enum { MANY = 3000 };
    kvt_store *store = open_memory(128 << 20, 0);
    put_space(store, 0, MANY);
    put_space(store, 1, MANY);
    lock_count_begin();
    assert_int_equal(clear_now(store, clear_of_space(space_number(0))), MANY);
    uint32_t holds = lock_count_end();
    if (LOCK_COUNTS) assert_true(holds >= MANY + 2 * MANY / STEP);
    assert_int_equal(count_space(store, 0, MANY), 0);
    assert_int_equal(count_space(store, 1, MANY), MANY);
    assert_int_equal(clear_now(store, clear_of_space(space_number(0))), 0);
    assert_int_equal(support_stats(store).tiers[KVT_TIER_DRAM].entries, MANY);
    kvt_store_close(store);
}

TEST(clear_takes_one_tenant)
{
    kvt_store *store = open_memory(16 << 20, 0);
    put_space(store, 0, 30);
    put_space(store, 1, 30);
    assert_int_equal(clear_now(store, clear_of_tenant(2)), 20);
    assert_int_equal(count_space(store, 0, 30), 20);
    kvt_clear_filter both = clear_of_tenant(1);
    both.by_space = true;
    both.space = space_number(1);
    assert_int_equal(clear_now(store, both), 10);
    assert_int_equal(count_space(store, 0, 30), 20);
    assert_int_equal(count_space(store, 1, 30), 10);
    assert_int_equal(clear_now(store, clear_of_tenant(0)), 20);
    assert_int_equal(count_space(store, 0, 30), 10);
    kvt_store_close(store);
}

TEST(clear_of_nothing_in_particular_is_refused)
{
    kvt_store *store = open_memory(1 << 20, 0);
    kvt_clear_filter filter = {.struct_size = sizeof filter};
    uint64_t removed = 7;
    assert_ok(support_put(store, 1));
    assert_int_equal(kvt_store_clear(store, &filter, &removed), KVT_E_ARGUMENT);
    assert_int_equal(removed, 0);
    assert_int_equal(kvt_store_clear(store, NULL, NULL), KVT_E_ARGUMENT);
    filter = clear_of_tenant(KVT_TENANTS_MAX);
    assert_int_equal(kvt_store_clear(store, &filter, NULL), KVT_E_ARGUMENT);
    filter = clear_of_tenant(0);
    filter.struct_size = 4;
    assert_int_equal(kvt_store_clear(store, &filter, NULL), KVT_E_ARGUMENT);
    assert_ok(support_get(store, 1, NULL));
    filter.struct_size = sizeof filter;
    assert_ok(kvt_store_clear(store, &filter, NULL));
    assert_int_equal(support_get(store, 1, NULL), KVT_MISS);
    kvt_store_close(store);
}

/* Entries that no executor has written are cleared as well. */
TEST(clear_takes_puts_that_were_handed_over)
{
    kvt_store *store = open_memory(64 << 20, 16 << 20);
    put_space(store, 0, 200);
    assert_int_equal(clear_now(store, clear_of_space(space_number(0))), 200);
    assert_ok(kvt_store_flush(store));
    assert_int_equal(count_space(store, 0, 200), 0);
    assert_int_equal(support_stats(store).puts_lost, 0);
    assert_int_equal(support_stats(store).tiers[KVT_TIER_DRAM].used_bytes, 0);
    kvt_store_close(store);
}

/* What was cleared stays away over a restart, with its copies; tenants are kept over one. */
TEST(clear_is_durable)
{
    open_site site;
    open_prepare(&site);
    site.options.tiers[KVT_TIER_DRAM].capacity_bytes = 8 << 20;
    kvt_store *store = open_now(&site);
    put_space(store, 0, 30);
    put_space(store, 1, 30);
    assert_ok(kvt_store_persist(store, KVT_NO_DEADLINE, NULL)); /* copies below */
    assert_int_equal(support_stats(store).copies.count, 60);
    assert_int_equal(clear_now(store, clear_of_space(space_number(0))), 30);
    assert_int_equal(support_stats(store).copies.count, 30);
    assert_ok(kvt_store_flush(store));
    assert_int_equal(open_count_elsewhere(site.catalog, "SELECT count(*) FROM entry"), 30);
    kvt_store_close(store);
    store = open_now(&site);
    assert_int_equal(count_space(store, 0, 30), 0);
    assert_int_equal(count_space(store, 1, 30), 30);
    assert_int_equal(clear_now(store, clear_of_tenant(1)), 10);
    assert_ok(kvt_store_flush(store));
    kvt_store_close(store);
    assert_int_equal(open_count_elsewhere(site.catalog, "SELECT count(*) FROM entry"), 20);
}

/* Entries on a device that is gone do not come back with it. */
TEST(clear_takes_quarantined_entries)
{
    open_site site;
    open_prepare(&site);
    support_fault disk = {.capacity_bytes = 8 << 20, .path = site.path};
    kvt_device_config config = support_fault_config(&disk, "ssd");
    site.options.tiers[KVT_TIER_SSD].devices = &config;
    kvt_store *store = open_now(&site);
    put_space(store, 0, 12);
    put_space(store, 1, 12);
    assert_ok(kvt_store_flush(store));
    char data[64];
    kvt_key first = space_key(0, 0);
    tiers_fault_set_gone(disk.device, true);
    assert_int_equal(
        kvt_store_get(store, &first, KVT_PACKED(data, sizeof data), KVT_STORE_DEADLINE, NULL),
        KVT_MISS);
    assert_int_equal(support_stats(store).quarantined, 24);
    assert_int_equal(clear_now(store, clear_of_space(space_number(0))), 12);
    assert_int_equal(clear_now(store, clear_of_space(space_number(0))), 0);
    assert_ok(kvt_device_add(store, KVT_TIER_SSD, &config, NULL, 0));
    assert_int_equal(support_stats(store).readmitted, 12);
    assert_int_equal(count_space(store, 0, 12), 0);
    assert_int_equal(count_space(store, 1, 12), 12);
    kvt_store_close(store);
}

/* What a lease holds stays until the lease ends. */
TEST(clear_leaves_what_is_leased)
{
    kvt_store *store = open_memory(16 << 20, 0);
    put_space(store, 0, 20);
    kvt_key keys[] = {space_key(0, 3), space_key(0, 7)};
    uint64_t lease = 0, removed = 0;
    assert_ok(kvt_lease_begin(store, NULL, keys, 2, UINT64_MAX, NULL, &lease));
    const kvt_clear_filter filter = clear_of_space(space_number(0));
    assert_int_equal(kvt_store_clear(store, &filter, &removed), KVT_BUSY);
    assert_int_equal(removed, 18);
    assert_ok(kvt_store_exists(store, &keys[0]));
    assert_ok(kvt_lease_end(store, lease));
    assert_int_equal(clear_now(store, filter), 2);
    kvt_store_close(store);
}

/* ---- clear beside puts, gets and moves ---- */

typedef struct names_traffic {
    kvt_store *store;
    _Atomic bool ends;
    uint32_t first;
} names_traffic;

/* Puts entries of a space again and again, reads them and moves them. */
static void *traffic_run(void *argument)
{
    names_traffic *traffic = argument;
    for (uint32_t i = 0; !traffic->ends; i++) {
        char data[64];
        kvt_key key = space_key(0, traffic->first + i % 100);
        kvt_status status = support_put_small(traffic->store, &key, 1);
        assert_true(status == KVT_OK || status == KVT_EXISTS || status == KVT_BUSY);
        status = kvt_store_get(traffic->store, &key, KVT_PACKED(data, sizeof data),
                               KVT_STORE_DEADLINE, NULL);
        assert_true(status == KVT_OK || status == KVT_MISS);
        if (i % 64 == 0) (void)!kvt_store_maintain(traffic->store, NULL);
    }
    return NULL;
}

/* Whatever runs beside it, a clear ends, and takes all that was there before it and not put again.
 */
TEST(clear_beside_traffic)
{
    open_site site;
    open_prepare(&site);
    site.options.limits.put_staging_bytes = 1 << 20;
    site.options.tiers[KVT_TIER_DRAM].capacity_bytes = 1 << 20;
    kvt_store *store = open_now(&site);
    names_traffic traffic[2] = {{.store = store, .first = 1000}, {.store = store, .first = 1050}};
    pthread_t threads[2];
    put_space(store, 1, 50);
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, traffic_run, &traffic[i]), 0);
    for (int round = 0; round < 30; round++) {
        for (uint32_t i = 0; i < 50; i++) {
            kvt_key key = space_key(0, i);
            put_surely(store, &key, 1);
        }
        (void)clear_now(store, clear_of_space(space_number(0)));
        assert_int_equal(count_space(store, 0, 50), 0);
    }
    for (int i = 0; i < 2; i++)
        traffic[i].ends = true;
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    (void)clear_now(store, clear_of_space(space_number(0)));
    assert_int_equal(count_space(store, 0, 1200), 0);
    assert_int_equal(count_space(store, 1, 50), 50);
    kvt_store_close(store);
}

/* ---- spaces ---- */

static kvt_space_stats space_stats(kvt_store *store, uint32_t space)
{
    kvt_space_stats stats = {.struct_size = sizeof stats};
    assert_ok(kvt_space_stats_get(store, space_number(space), &stats));
    return stats;
}

TEST(a_space_is_counted)
{
    open_site site;
    open_prepare(&site);
    site.options.tiers[KVT_TIER_DRAM].capacity_bytes = 8 << 20;
    kvt_store *store = open_now(&site);
    put_space(store, 0, 30);
    put_space(store, 1, 7);
    assert_ok(kvt_store_persist(store, KVT_NO_DEADLINE, NULL));
    kvt_space_stats stats = space_stats(store, 0);
    assert_int_equal(stats.entries, 30);
    assert_int_equal(stats.bytes, 30 * 64);
    assert_int_equal(stats.tier_entries[KVT_TIER_DRAM], 30);
    assert_int_equal(stats.tier_entries[KVT_TIER_SSD], 0);
    assert_int_equal(stats.copies, 30);
    kvt_key key = space_key(0, 3);
    kvt_description found = {.struct_size = sizeof found};
    assert_ok(kvt_store_describe(store, &key, &found));
    assert_true(stats.tier_bytes[KVT_TIER_DRAM] == 30 * found.stored_bytes);
    assert_true(stats.copy_bytes == 30 * found.copy_bytes && found.copy_bytes != 0);
    assert_int_equal(space_stats(store, 1).entries, 7);
    assert_int_equal(space_stats(store, 2).entries, 0);
    stats.struct_size = 1;
    assert_int_equal(kvt_space_stats_get(store, 0, &stats), KVT_E_ARGUMENT);
    assert_int_equal(kvt_space_stats_get(store, 0, NULL), KVT_E_ARGUMENT);
    kvt_store_close(store);
}

/* A space that is a tenant's stays within the tenant's share; a put that names a tenant is that
 * one's. */
TEST(a_space_has_its_tenants_limits)
{
    kvt_store *store = support_open_memory("utility", 16 << 20, 0);
    put_space(store, 1, 1);
    uint64_t record = space_stats(store, 1).tier_bytes[KVT_TIER_DRAM];
    kvt_tenant limits = {.struct_size = sizeof limits, .alpha_seconds = 10, .loss_limit = 1};
    limits.share_bytes[KVT_TIER_DRAM] = 8 * record;
    assert_ok(kvt_tenant_set(store, 5, &limits));
    assert_ok(kvt_space_set(store, space_number(0), 5));
    for (uint32_t i = 0; i < 40; i++) {
        for (uint32_t space = 0; space < 2; space++) {
            kvt_key key = space_key(space, 100 + i);
            kvt_status status = support_put_small(store, &key, 0);
            assert_true(status == KVT_OK || (status == KVT_REFUSED && space == 0));
        }
    }
    assert_true(space_stats(store, 0).tier_bytes[KVT_TIER_DRAM] <= 8 * record);
    assert_true(space_stats(store, 0).entries > 0);
    assert_int_equal(space_stats(store, 1).entries, 41);
    kvt_key named = space_key(0, 500);
    kvt_description found = {.struct_size = sizeof found};
    assert_ok(support_put_small(store, &named, 7));
    assert_ok(kvt_store_describe(store, &named, &found));
    assert_int_equal(found.tenant, 7);
    uint64_t others = space_stats(store, 0).entries - 1;
    assert_int_equal(clear_now(store, clear_of_tenant(5)), others);
    assert_int_equal(space_stats(store, 0).entries, 1);
    kvt_store_close(store);
}

TEST(spaces_are_given_and_taken_back)
{
    kvt_store *store = open_memory(16 << 20, 0);
    kvt_description found = {.struct_size = sizeof found};
    assert_int_equal(kvt_space_set(store, 1, KVT_TENANTS_MAX), KVT_E_ARGUMENT);
    for (uint32_t i = 0; i < 4096; i++) /* in an order of its own */
        assert_ok(kvt_space_set(store, space_number(i * 7 % 4096), 1 + i % 200));
    assert_int_equal(kvt_space_set(store, space_number(4096), 1), KVT_E_SPACE);
    assert_ok(kvt_space_set(store, space_number(4096), 0));
    assert_ok(kvt_space_set(store, space_number(7), 9));
    assert_ok(kvt_space_set(store, space_number(14), 0));
    for (uint32_t i = 0; i < 4; i++) {
        static const uint32_t wanted[] = {1, 9, 0, 4};
        kvt_key key = space_key(i * 7, 0);
        assert_ok(support_put_small(store, &key, 0));
        assert_ok(kvt_store_describe(store, &key, &found));
        assert_int_equal(found.tenant, wanted[i]);
    }
    kvt_store_close(store);
}
