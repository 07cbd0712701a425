/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_copies.c - records that stay on SSD beside entries in DRAM: kept by promotions, found
 * by demotions, read when memory rots, and in nobody's way.
 */
#include "store_support.h"

enum { DISKS = 2, ENTRIES = 16, DRAM_ENTRIES = 6 };

/* A record of the tests: 32 KiB of elements, with headers and padding. */
#define RECORD_BYTES (44u * 1024u)

typedef struct site {
    char folder[64];
    char catalog[96];
    char paths[DISKS][96];
    support_fault dram;
    support_fault disks[DISKS];
    kvt_device_config memory;
    kvt_device_config files[DISKS];
    kvt_store_options options;
    kvt_store *store;
} site;

static const char *const disk_names[DISKS] = {"disk0", "disk1"};

static void site_open(site *s)
{
    assert_int_equal(kvt_open(&s->options, &s->store, NULL, 0), KVT_OK);
}

/* DRAM for a few entries above two disks of so many bytes. */
static void site_make(site *s, uint64_t disk_bytes)
{
    support_make_folder(s->folder, sizeof s->folder);
    snprintf(s->catalog, sizeof s->catalog, "%s/catalog.db", s->folder);
    kvt_store_options_init(&s->options);
    s->options.staging_bytes = 8 << 20;
    s->options.catalog_path = s->catalog;
    s->options.policy = "lru";
    s->options.tick_seconds = 0;
    s->options.persist_bytes_per_s = 0; /* but where a test asks for it */
    /* A plan counts on a little more than a record comes out with. */
    s->dram = (support_fault){.capacity_bytes = DRAM_ENTRIES * RECORD_BYTES + 16 * 1024};
    s->memory = support_fault_config(&s->dram, "memory");
    for (int i = 0; i < DISKS; i++) {
        snprintf(s->paths[i], sizeof s->paths[i], "%s/disk%d", s->folder, i);
        s->disks[i] = (support_fault){.capacity_bytes = disk_bytes, .path = s->paths[i]};
        s->files[i] = support_fault_config(&s->disks[i], disk_names[i]);
    }
    s->options.tiers[KVT_TIER_DRAM] =
        (kvt_tier_options){.devices = &s->memory, .device_count = 1, .unit_bytes = 4096};
    s->options.tiers[KVT_TIER_SSD] = (kvt_tier_options){
        .devices = s->files, .device_count = DISKS, .unit_bytes = 4096, .weights_fixed = true};
    site_open(s);
}

static void site_end(site *s)
{
    kvt_close(s->store);
    support_remove_folder(s->folder);
}

static void maintain(site *s)
{
    assert_int_equal(kvt_maintain(s->store, NULL), KVT_OK);
    assert_int_equal(kvt_flush(s->store), KVT_OK);
}

static uint64_t ssd_written(site *s)
{
    return support_stats(s->store).tiers[KVT_TIER_SSD].bytes_written;
}

static void put_some(site *s, uint32_t from, uint32_t to)
{
    for (uint32_t i = from; i < to; i++)
        assert_int_equal(support_put(s->store, i), KVT_OK);
    assert_int_equal(kvt_flush(s->store), KVT_OK);
}

/* Every entry is on SSD once: an entry that is read comes up and keeps its record below. */
static void promote(site *s, uint32_t number)
{
    kvt_get_info info;
    assert_int_equal(support_get(s->store, number, NULL), KVT_OK);
    maintain(s);
    assert_int_equal(support_get(s->store, number, &info), KVT_OK);
    assert_int_equal(info.tier, KVT_TIER_DRAM);
}

static void check_budget(site *s)
{
    kvt_store_stats stats = support_stats(s->store);
    for (int tier = KVT_TIER_HBM; tier < KVT_TIER_COUNT; tier++)
        assert_true(stats.tiers[tier].used_bytes <= stats.tiers[tier].capacity_bytes);
    assert_true(stats.copy_bytes <= stats.tiers[KVT_TIER_SSD].used_bytes);
}

static void test_promotion_keeps_a_copy(void **state)
{
    (void)state;
    site s;
    site_make(&s, 2 << 20);
    put_some(&s, 0, ENTRIES);
    assert_int_equal(support_stats(s.store).copies, 0);
    promote(&s, 0);
    kvt_store_stats stats = support_stats(s.store);
    assert_int_equal(stats.copies, 1);
    assert_int_equal(stats.copies_kept, 1);
    assert_int_equal(stats.copy_bytes, RECORD_BYTES);
    check_budget(&s);
    site_end(&s);
}

/* The entry that a promotion pushes down finds its record where it was. */
static void test_demotion_onto_a_copy_writes_nothing(void **state)
{
    (void)state;
    site s;
    site_make(&s, 2 << 20);
    put_some(&s, 0, ENTRIES);
    for (uint32_t i = 0; i < DRAM_ENTRIES; i++)
        promote(&s, i);
    assert_int_equal(support_stats(s.store).copies, DRAM_ENTRIES);
    uint64_t written = ssd_written(&s);
    for (uint32_t i = DRAM_ENTRIES; i < ENTRIES - DRAM_ENTRIES; i++)
        promote(&s, i);
    kvt_store_stats stats = support_stats(s.store);
    assert_int_equal(stats.copy_demotions, ENTRIES - 2 * DRAM_ENTRIES);
    assert_int_equal(ssd_written(&s), written);
    assert_int_equal(stats.copies, DRAM_ENTRIES);
    for (uint32_t i = 0; i < ENTRIES; i++)
        assert_int_equal(support_get(s.store, i, NULL), KVT_OK);
    check_budget(&s);
    site_end(&s);
}

static void test_rotten_memory_is_served_from_the_copy(void **state)
{
    (void)state;
    site s;
    site_make(&s, 2 << 20);
    put_some(&s, 0, ENTRIES);
    promote(&s, 0);
    tiers_fault_rule rot = {
        .action = TIERS_FAULT_FLIP, .kinds = TIERS_FAULT_READS, .flip_bit = 8 * 20000};
    assert_int_equal(tiers_fault_add(s.dram.device, &rot), KVT_OK);
    kvt_get_info info;
    assert_int_equal(support_get(s.store, 0, &info), KVT_OK);
    assert_int_equal(info.tier, KVT_TIER_SSD);
    tiers_fault_clear(s.dram.device);
    kvt_store_stats stats = support_stats(s.store);
    assert_int_equal(stats.copy_fallbacks, 1);
    assert_int_equal(stats.load_failures, 1);
    assert_int_equal(stats.copies, 0);
    assert_int_equal(stats.misses, 0);
    /* The copy is the place: it is promoted and kept as any other. */
    promote(&s, 0);
    assert_int_equal(support_stats(s.store).copies, 1);
    site_end(&s);
}

/* Stored entries and copies fill the disks several times over; nothing is refused for copies. */
static void test_copies_make_way(void **state)
{
    (void)state;
    site s;
    site_make(&s, 20 * RECORD_BYTES);
    uint32_t next = 0;
    put_some(&s, 0, 38);
    next = 38;
    for (uint32_t round = 0; round < 40; round++) {
        for (uint32_t i = 0; i < 4; i++) {
            uint32_t number = next - 1 - (i * 7 + round) % 30;
            kvt_status status = support_get(s.store, number, NULL);
            assert_true(status == KVT_OK || status == KVT_MISS);
            check_budget(&s);
        }
        if (round % 3 == 0) assert_int_equal(kvt_maintain(s.store, NULL), KVT_OK);
        assert_int_equal(support_put(s.store, next++), KVT_OK);
        check_budget(&s);
    }
    kvt_store_stats stats = support_stats(s.store);
    assert_true(stats.copies_kept > 0);
    assert_true(stats.copies_dropped > 0);
    assert_int_equal(stats.moves_aborted, 0);
    assert_int_equal(stats.puts_refused, 0);
    site_end(&s);
}

static void test_delete_takes_the_copy(void **state)
{
    (void)state;
    site s;
    site_make(&s, 2 << 20);
    put_some(&s, 0, ENTRIES);
    promote(&s, 0);
    kvt_key key = support_key(0);
    assert_int_equal(kvt_delete(s.store, &key), KVT_OK);
    assert_int_equal(kvt_flush(s.store), KVT_OK);
    kvt_store_stats stats = support_stats(s.store);
    assert_int_equal(stats.copies, 0);
    assert_int_equal(stats.tiers[KVT_TIER_SSD].used_bytes,
                     stats.policy.entries_by_tier[KVT_TIER_SSD] * RECORD_BYTES);
    kvt_close(s.store);
    site_open(&s);
    assert_int_equal(kvt_exists(s.store, &key), KVT_MISS);
    site_end(&s);
}

/* A copy ends with its device; the entry above it stays. */
static void test_devices_go(void **state)
{
    (void)state;
    site s;
    site_make(&s, 2 << 20);
    put_some(&s, 0, ENTRIES);
    for (uint32_t i = 0; i < DRAM_ENTRIES; i++)
        promote(&s, i);
    assert_int_equal(support_stats(s.store).copies, DRAM_ENTRIES);
    assert_int_equal(kvt_store_device_change(s.store, "disk0", KVT_DEVICE_DRAIN), KVT_OK);
    for (int i = 0; i < 4; i++)
        maintain(&s);
    kvt_device_stats disk;
    assert_int_equal(kvt_device_stats_at(s.store, 1, &disk), KVT_OK);
    assert_string_equal(disk.name, "disk0");
    assert_int_equal(disk.used_bytes, 0);
    assert_int_equal(support_stats(s.store).copies, 0);
    for (uint32_t i = 0; i < ENTRIES; i++)
        assert_int_equal(support_get(s.store, i, NULL), KVT_OK);
    maintain(&s);
    assert_true(support_stats(s.store).copies > 0);
    assert_int_equal(kvt_store_device_change(s.store, "disk1", KVT_DEVICE_RETIRE), KVT_OK);
    assert_int_equal(support_stats(s.store).copies, 0);
    check_budget(&s);
    site_end(&s);
}

static void test_memory_goes(void **state)
{
    (void)state;
    site s;
    site_make(&s, 2 << 20);
    put_some(&s, 0, ENTRIES);
    for (uint32_t i = 0; i < DRAM_ENTRIES; i++)
        promote(&s, i);
    assert_int_equal(kvt_store_device_change(s.store, "memory", KVT_DEVICE_RETIRE), KVT_OK);
    assert_int_equal(support_stats(s.store).copy_fallbacks, DRAM_ENTRIES);
    for (uint32_t i = 0; i < ENTRIES; i++)
        assert_int_equal(support_get(s.store, i, NULL), KVT_OK);
    site_end(&s);
}

static void test_without_copies_or_catalog(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        site s;
        site_make(&s, 2 << 20);
        kvt_close(s.store);
        if (i == 0) s.options.copies = false;
        if (i == 1) s.options.catalog_path = NULL;
        s.options.format = true;
        site_open(&s);
        put_some(&s, 0, ENTRIES);
        promote(&s, 0);
        assert_int_equal(support_stats(s.store).copies, 0);
        site_end(&s);
    }
}

/* What DRAM alone holds is written to SSD once, and again only when it has changed. */
static void test_persist(void **state)
{
    (void)state;
    site s;
    kvt_persist_info info;
    site_make(&s, 2 << 20);
    put_some(&s, 0, ENTRIES);
    assert_int_equal(kvt_persist(s.store, UINT64_MAX, &info), KVT_OK);
    assert_int_equal(info.written, DRAM_ENTRIES);
    assert_int_equal(info.written_bytes, DRAM_ENTRIES * RECORD_BYTES);
    assert_int_equal(info.left + info.without_room + info.displaced, 0);
    assert_int_equal(support_stats(s.store).copies, DRAM_ENTRIES);
    assert_int_equal(support_stats(s.store).persisted, DRAM_ENTRIES);
    uint64_t written = ssd_written(&s);
    assert_int_equal(kvt_persist(s.store, UINT64_MAX, &info), KVT_OK);
    assert_int_equal(info.written, 0);
    assert_int_equal(ssd_written(&s), written);
    check_budget(&s);
    site_end(&s);
}

static void test_persist_says_what_is_left(void **state)
{
    (void)state;
    site s;
    kvt_persist_info info;
    site_make(&s, 2 << 20);
    put_some(&s, 0, ENTRIES);
    assert_int_equal(kvt_persist(s.store, 1, &info), KVT_E_TIMEOUT);
    assert_int_equal(info.written, 0);
    assert_int_equal(info.left, DRAM_ENTRIES);
    assert_int_equal(info.left_bytes, DRAM_ENTRIES * RECORD_BYTES);
    s.options.close_deadline_seconds = 0; /* and such a close writes nothing */
    kvt_close(s.store);
    site_open(&s);
    assert_int_equal(kvt_persist(s.store, 1, &info), KVT_OK); /* all that came back is on SSD */
    site_end(&s);
}

/* A failing device costs no entry: what was not written is above still. */
static void test_persist_beside_faults(void **state)
{
    (void)state;
    site s;
    kvt_persist_info info;
    site_make(&s, 2 << 20);
    put_some(&s, 0, ENTRIES);
    tiers_fault_rule fail = {
        .action = TIERS_FAULT_FAIL, .kinds = TIERS_FAULT_WRITES, .status = KVT_E_IO, .os_error = 5};
    for (int i = 0; i < DISKS; i++)
        assert_int_equal(tiers_fault_add(s.disks[i].device, &fail), KVT_OK);
    assert_int_equal(kvt_persist(s.store, UINT64_MAX, &info), KVT_E_IO);
    assert_int_equal(info.written, 0);
    assert_int_equal(info.left, DRAM_ENTRIES);
    for (int i = 0; i < DISKS; i++)
        tiers_fault_clear(s.disks[i].device);
    assert_int_equal(support_stats(s.store).copies, 0);
    for (uint32_t i = 0; i < ENTRIES; i++)
        assert_int_equal(support_get(s.store, i, NULL), KVT_OK);
    assert_int_equal(kvt_persist(s.store, UINT64_MAX, &info), KVT_OK);
    assert_int_equal(info.left, 0);
    site_end(&s);
}

/* Disks that hold less than all: the entries that were used last are there after a close, and the
 * ones that made way are the oldest. */
static void test_close_keeps_the_best(void **state)
{
    (void)state;
    enum { ALL = 30 };
    site s;
    site_make(&s, 12 * RECORD_BYTES);
    put_some(&s, 0, ALL);
    kvt_close(s.store);
    site_open(&s);
    kvt_store_stats stats = support_stats(s.store);
    uint32_t back = (uint32_t)stats.recovered;
    assert_true(back >= 18);
    assert_int_equal(stats.recovery_drops, 0);
    for (uint32_t i = ALL - DRAM_ENTRIES; i < ALL; i++)
        assert_int_equal(support_get(s.store, i, NULL), KVT_OK);
    check_budget(&s);
    site_end(&s);
}

/* The background fills free room, in bounded steps, and nothing else. */
static void test_background_writes_back(void **state)
{
    (void)state;
    site s;
    site_make(&s, 2 << 20);
    kvt_close(s.store);
    s.options.persist_bytes_per_s = 32000000;
    site_open(&s);
    put_some(&s, 0, ENTRIES);
    for (int i = 0; i < 50 && support_stats(s.store).copies < DRAM_ENTRIES; i++) {
        usleep(20000); /* the budget grows with time */
        maintain(&s);
    }
    assert_int_equal(support_stats(s.store).copies, DRAM_ENTRIES);
    assert_int_equal(support_stats(s.store).persisted, DRAM_ENTRIES);
    uint64_t written = ssd_written(&s);
    maintain(&s);
    assert_int_equal(ssd_written(&s), written);
    check_budget(&s);
    kvt_close(s.store);
    s.options.persist_bytes_per_s = 0;
    site_open(&s);
    for (uint32_t i = 0; i < ENTRIES; i++)
        assert_int_equal(support_get(s.store, i, NULL), KVT_OK);
    put_some(&s, ENTRIES, ENTRIES + 2);
    maintain(&s);
    assert_int_equal(support_stats(s.store).persisted, 0);
    site_end(&s);
}

static void test_persist_needs_a_catalog(void **state)
{
    (void)state;
    site s;
    kvt_persist_info info;
    site_make(&s, 2 << 20);
    kvt_close(s.store);
    s.options.catalog_path = NULL;
    s.options.format = true;
    site_open(&s);
    put_some(&s, 0, 2);
    assert_int_equal(kvt_persist(s.store, UINT64_MAX, &info), KVT_E_UNSUPPORTED);
    site_end(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_promotion_keeps_a_copy),
        cmocka_unit_test(test_demotion_onto_a_copy_writes_nothing),
        cmocka_unit_test(test_rotten_memory_is_served_from_the_copy),
        cmocka_unit_test(test_copies_make_way),
        cmocka_unit_test(test_delete_takes_the_copy),
        cmocka_unit_test(test_devices_go),
        cmocka_unit_test(test_memory_goes),
        cmocka_unit_test(test_without_copies_or_catalog),
        cmocka_unit_test(test_persist),
        cmocka_unit_test(test_persist_says_what_is_left),
        cmocka_unit_test(test_persist_beside_faults),
        cmocka_unit_test(test_close_keeps_the_best),
        cmocka_unit_test(test_background_writes_back),
        cmocka_unit_test(test_persist_needs_a_catalog),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
