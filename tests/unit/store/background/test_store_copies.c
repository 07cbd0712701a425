/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_copies.c - records that stay on SSD beside entries in DRAM: kept by promotions, found
 * by demotions, read when memory rots, and in nobody's way.
 */
#include "copies_site.h"

#include "store/core/store.h"

#include <errno.h>

static kvt_status adopting; /* what the policy says of a stored entry; KVT_OK: its own word */

extern __typeof__(kvt_policy_adopt) __real_kvt_policy_adopt, __wrap_kvt_policy_adopt;

kvt_status __wrap_kvt_policy_adopt(kvt_policy *policy, uint64_t now_ns,
                                   const kvt_policy_entry *entry, uint8_t option)
{
    return adopting != KVT_OK ? adopting : __real_kvt_policy_adopt(policy, now_ns, entry, option);
}

/* Every entry is on SSD once: an entry that is read comes up and keeps its record below. */
static void promote(site *s, uint32_t number)
{
    kvt_get_info info = {.struct_size = sizeof info};
    assert_ok(support_get(s->store, number, NULL));
    site_maintain(s, 1);
    assert_ok(support_get(s->store, number, &info));
    assert_int_equal(info.tier, KVT_TIER_DRAM);
}

TEST(promotion_keeps_a_copy)
{
    site *s = site_make(2 << 20);
    site_put(s, 0, ENTRIES);
    assert_int_equal(support_stats(s->store).copies.count, 0);
    promote(s, 0);
    kvt_store_stats stats = support_stats(s->store);
    assert_int_equal(stats.copies.count, 1);
    assert_int_equal(stats.copies.kept, 1);
    assert_int_equal(stats.copies.bytes, RECORD_BYTES);
    check_budget(s);
}

/* The entry that a promotion pushes down finds its record where it was. */
TEST(demotion_onto_a_copy_writes_nothing)
{
    site *s = site_make(2 << 20);
    site_put(s, 0, ENTRIES);
    for (uint32_t i = 0; i < DRAM_ENTRIES; i++)
        promote(s, i);
    assert_int_equal(support_stats(s->store).copies.count, DRAM_ENTRIES);
    uint64_t written = ssd_written(s);
    for (uint32_t i = DRAM_ENTRIES; i < ENTRIES - DRAM_ENTRIES; i++)
        promote(s, i);
    kvt_store_stats stats = support_stats(s->store);
    assert_int_equal(stats.copies.demotions, ENTRIES - 2 * DRAM_ENTRIES);
    assert_int_equal(ssd_written(s), written);
    assert_int_equal(stats.copies.count, DRAM_ENTRIES);
    support_gets(s->store, 0, ENTRIES);
    check_budget(s);
}

TEST(rotten_memory_is_served_from_the_copy)
{
    site *s = site_make(2 << 20);
    site_put(s, 0, ENTRIES);
    promote(s, 0);
    tiers_fault_rule rot = {
        .action = TIERS_FAULT_FLIP, .kinds = TIERS_FAULT_READS, .flip_bit = 8 * 20000};
    assert_ok(tiers_fault_add(s->dram.device, &rot));
    kvt_get_info info = {.struct_size = sizeof info};
    assert_ok(support_get(s->store, 0, &info));
    assert_int_equal(info.tier, KVT_TIER_SSD);
    tiers_fault_clear(s->dram.device);
    kvt_store_stats stats = support_stats(s->store);
    assert_int_equal(stats.copies.fallbacks, 1);
    assert_int_equal(stats.load_failures, 1);
    assert_int_equal(stats.copies.count, 0);
    assert_int_equal(stats.misses, 0);
    /* The copy is the place: it is promoted and kept as any other. */
    promote(s, 0);
    assert_int_equal(support_stats(s->store).copies.count, 1);
}

/* What the policy lacks for the copy costs no entry: room is made later, and without memory the
 * entry comes back with the next round. */
TEST(a_copy_is_taken_whatever_the_policy_lacks)
{
    static const kvt_status faults[] = {KVT_E_IO, KVT_OK}; /* of the read; OK: its bytes rot */
    for (int i = 0; i < 4; i++) {
        const bool rots = faults[i % 2] == KVT_OK, lacks_memory = i >= 2;
        site *s = site_make(2 << 20);
        site_put(s, 0, ENTRIES);
        promote(s, 0);
        tiers_fault_rule rule = {.action = rots ? TIERS_FAULT_FLIP : TIERS_FAULT_FAIL,
                                 .kinds = TIERS_FAULT_READS,
                                 .status = faults[i % 2],
                                 .os_error = EIO,
                                 .flip_bit = 8 * 20000};
        assert_ok(tiers_fault_add(s->dram.device, &rule));
        const uint64_t used = support_stats(s->store).policy.used_bytes[KVT_TIER_SSD];
        if (!lacks_memory) assert_ok(kvt_policy_capacity_set(s->store->policy, KVT_TIER_SSD, used));
        adopting = lacks_memory ? KVT_E_MEMORY : KVT_OK;
        assert_int_equal(support_get(s->store, 0, NULL), lacks_memory ? KVT_MISS : KVT_OK);
        adopting = KVT_OK;
        tiers_fault_clear(s->dram.device);
        assert_int_equal(support_stats(s->store).copies.fallbacks, 1);
        site_maintain(s, 1);
        assert_ok(support_get(s->store, 0, NULL));
        site_end(s);
    }
}

/* Stored entries and copies fill the disks several times over; nothing is refused for copies. */
TEST(copies_make_way)
{
    site *s = site_make(20 * RECORD_BYTES);
    uint32_t next = 0;
    site_put(s, 0, 38);
    next = 38;
    for (uint32_t round = 0; round < 40; round++) {
        for (uint32_t i = 0; i < 4; i++) {
            uint32_t number = next - 1 - (i * 7 + round) % 30;
            kvt_status status = support_get(s->store, number, NULL);
            assert_true(status == KVT_OK || status == KVT_MISS);
            check_budget(s);
        }
        if (round % 3 == 0) assert_ok(kvt_store_maintain(s->store, NULL));
        assert_ok(support_put(s->store, next++));
        check_budget(s);
    }
    kvt_store_stats stats = support_stats(s->store);
    assert_true(stats.copies.kept > 0);
    assert_true(stats.copies.dropped > 0);
    assert_int_equal(stats.moves.aborted, 0);
    assert_int_equal(stats.puts_refused, 0);
}

TEST(delete_takes_the_copy)
{
    site *s = site_make(2 << 20);
    site_put(s, 0, ENTRIES);
    promote(s, 0);
    kvt_key key = support_key(0);
    assert_ok(kvt_store_delete(s->store, &key));
    assert_ok(kvt_store_flush(s->store));
    kvt_store_stats stats = support_stats(s->store);
    assert_int_equal(stats.copies.count, 0);
    assert_int_equal(stats.tiers[KVT_TIER_SSD].used_bytes,
                     stats.policy.entries_by_tier[KVT_TIER_SSD] * RECORD_BYTES);
    site_reopen(s);
    assert_int_equal(kvt_store_exists(s->store, &key), KVT_MISS);
}

/* A copy ends with its device; the entry above it stays. */
TEST(devices_go)
{
    site *s = site_make(2 << 20);
    site_put(s, 0, ENTRIES);
    for (uint32_t i = 0; i < DRAM_ENTRIES; i++)
        promote(s, i);
    assert_int_equal(support_stats(s->store).copies.count, DRAM_ENTRIES);
    assert_ok(kvt_device_change(s->store, "disk0", KVT_DEVICE_DRAIN));
    for (int i = 0; i < 4; i++)
        site_maintain(s, 1);
    kvt_device_stats disk = {.struct_size = sizeof disk};
    assert_ok(kvt_device_stats_get(s->store, 1, &disk));
    assert_string_equal(disk.name, "disk0");
    assert_int_equal(disk.used_bytes, 0);
    assert_int_equal(support_stats(s->store).copies.count, 0);
    support_gets(s->store, 0, ENTRIES);
    site_maintain(s, 1);
    assert_true(support_stats(s->store).copies.count > 0);
    assert_ok(kvt_device_change(s->store, "disk1", KVT_DEVICE_RETIRE));
    assert_int_equal(support_stats(s->store).copies.count, 0);
    check_budget(s);
}

TEST(memory_goes)
{
    site *s = site_make(2 << 20);
    site_put(s, 0, ENTRIES);
    for (uint32_t i = 0; i < DRAM_ENTRIES; i++)
        promote(s, i);
    assert_ok(kvt_device_change(s->store, "dram", KVT_DEVICE_RETIRE));
    assert_int_equal(support_stats(s->store).copies.fallbacks, DRAM_ENTRIES);
    support_gets(s->store, 0, ENTRIES);
}

TEST(without_copies_or_catalog)
{
    for (int i = 0; i < 2; i++) {
        site *s = site_make(2 << 20);
        site_close(s);
        if (i == 0) s->options.durability.copies = false;
        if (i == 1) s->options.durability.catalog_path = NULL;
        s->options.format = true;
        site_open(s);
        site_put(s, 0, ENTRIES);
        promote(s, 0);
        assert_int_equal(support_stats(s->store).copies.count, 0);
        site_end(s);
    }
}
