/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_scrub.c - the background finds damage on SSD before a request does, within its budget,
 * does not read what gets have verified, and drains a device that rots.
 */
#include "copies_site.h"
#include "dice.h"

#include "base/clock.h"

#include "store/background/scrub.h"
#include "store/core/store.h"
#include "tiers/pool/stripe.h"

#include <fcntl.h>
#include <unistd.h>

enum { MANY = 1000 };

/* Two disks alone, or with memory above them; the scrub may read without a bound. */
static site *scrub_site(uint64_t disk_bytes, uint32_t unit_bytes, uint64_t dram_bytes)
{
    site *s = site_prepare((site_shape){.disks = DISKS,
                                        .disk_bytes = disk_bytes,
                                        .unit_bytes = unit_bytes,
                                        .dram_bytes = dram_bytes});
    s->options.durability.persist_bytes_per_s = 0;
    s->options.scrub.share = 1;
    s->options.scrub.faults = 0;
    site_open(s);
    return s;
}

/* The next lap is due. */
static void pass_lap(site *s)
{
    s->store->scrub.lap_began_ns = store_now_ns(s->store) - s->store->scrub.lap_ns;
}

/* Rounds until a lap that is under way has ended. */
static void end_lap(site *s)
{
    for (int i = 0; i < 2000; i++) {
        site_maintain(s, 1);
        if (s->store->scrub.bucket >= s->store->table.bucket_count) return;
        usleep(1000);
    }
    fail_msg("a lap did not end");
}

static store_place *ssd_place(site *s, uint32_t number)
{
    const kvt_key key = support_key(number);
    store_entry *entry = entry_find_key(&s->store->table, &key);
    assert_non_null(entry);
    return entry->place->tier == KVT_TIER_SSD ? entry->place : entry->copy;
}

/* Flips a bit of the byte at an offset of a record on SSD. Returns the disk. */
static uint32_t flip_byte(site *s, uint32_t number, uint64_t offset)
{
    const tiers_location *location = ssd_place(s, number)->location;
    for (uint32_t i = 0; i < location->share_count; i++) {
        tiers_walk walk;
        tiers_piece piece;
        tiers_walk_init(&walk, location, i, offset / 4096 * 4096, 4096);
        if (!tiers_walk_next(&walk, 4096, &piece)) continue;
        const uint32_t disk = location->shares[i].member;
        unsigned char byte;
        const off_t at = (off_t)(piece.device_offset + offset % 4096);
        const int file = open(s->paths[disk], O_RDWR | O_CLOEXEC);
        assert_int_equal(pread(file, &byte, 1, at), 1);
        byte ^= 0x10;
        assert_int_equal(pwrite(file, &byte, 1, at), 1);
        close(file);
        return disk;
    }
    fail_msg("no disk has offset %llu", (unsigned long long)offset);
    return 0;
}

static kvt_device_stats disk_stats(site *s, size_t index)
{
    kvt_device_stats stats = {.struct_size = sizeof stats};
    assert_ok(kvt_device_stats_get(s->store, index, &stats));
    return stats;
}

/* A thousand records with a flipped bit each, wherever in the record it is, among two thousand: a
 * lap finds all, no get does, and no other record goes. */
TEST(a_lap_finds_all_damage)
{
    site *s = scrub_site(64 << 20, 4096, 0);
    uint64_t random = 7;
    uint64_t alone[DISKS] = {0};
    site_put(s, 0, 2 * MANY);
    for (uint32_t i = 0; i < MANY; i++) {
        const uint32_t disk =
            flip_byte(s, 2 * i, dice_next(&random) % ssd_place(s, 2 * i)->record_bytes);
        alone[disk]++;
    }
    end_lap(s);
    kvt_store_stats stats = support_stats(s->store);
    assert_int_equal(s->store->scrub.read.records, 2 * MANY);
    assert_int_equal(s->store->scrub.damaged, MANY);
    assert_int_equal(stats.load_failures, 0);
    for (int i = 0; i < DISKS; i++) /* damage whose segment is on both disks is nobody's */
        assert_true(disk_stats(s, (size_t)i).scrub_faults <= alone[i]);
    for (uint32_t i = 0; i < 2 * MANY; i++)
        assert_int_equal(support_get(s->store, i, NULL), i % 2 == 1 ? KVT_OK : KVT_MISS);
    assert_int_equal(support_stats(s->store).load_failures, 0);
    site_reopen(s); /* what went stays gone */
    assert_int_equal(support_stats(s->store).recovered, MANY);
}

/* Records that gets verified in this lap or the one before are not read; all are after three. */
TEST(gets_verify_too)
{
    site *s = scrub_site(8 << 20, 4096, 0);
    end_lap(s); /* the first lap, of nothing */
    site_put(s, 0, ENTRIES);
    support_gets(s->store, 0, ENTRIES);
    for (uint32_t lap = 2; lap <= 5; lap++) {
        const uint64_t before = s->store->scrub.read.records;
        pass_lap(s);
        end_lap(s);
        const uint64_t read = s->store->scrub.read.records - before;
        assert_int_equal(read, lap == 3 || lap == 5 ? ENTRIES : 0);
    }
    pass_lap(s);
    site_maintain(s, 1);
    s->store->scrub.lap_began_ns = store_now_ns(s->store);
    end_lap(s);
    const uint64_t before = s->store->scrub.read.records;
    site_put(s, ENTRIES, 2 * ENTRIES); /* between two laps nothing is read */
    site_maintain(s, 5);
    assert_int_equal(s->store->scrub.read.records, before);
}

/* Each device reads its share of its own bandwidth, and one record more. */
TEST(the_budget_holds)
{
    site *s = scrub_site(8 << 20, 4096, 0);
    site_put(s, 0, ENTRIES);
    s->store->scrub.share = 1e-9; /* a record takes longer than the test */
    site_maintain(s, 20);
    assert_int_equal(s->store->scrub.read.records, 1);
    s->store->scrub.share = 1;
    end_lap(s);
    assert_int_equal(s->store->scrub.read.records, ENTRIES);
    site_close(s);
    s->options.scrub.period_seconds = 0;
    site_open(s);
    site_maintain(s, 20);
    assert_int_equal(s->store->scrub.read.records, 0);
}

/* A device that has read its share waits, whatever the others have left. */
TEST(budgets_are_of_single_devices)
{
    site *s = scrub_site(8 << 20, 64 << 10, 0); /* a record lies on one disk */
    site_put(s, 0, ENTRIES);
    const uint64_t before = disk_stats(s, 1).bytes_read;
    s->store->scrub.tokens[1] = -1e18;
    site_maintain(s, 50);
    assert_int_equal(disk_stats(s, 1).bytes_read, before);
    assert_true(s->store->scrub.read.records < ENTRIES);
    s->store->scrub.tokens[1] = 0;
    end_lap(s);
    assert_int_equal(s->store->scrub.read.records, ENTRIES);
    assert_true(disk_stats(s, 1).bytes_read > before);
}

/* A device with too much damage is drained: what is sound on it moves to the other one. The last
 * device of a tier is kept, whatever it does. */
TEST(a_device_that_rots_is_drained)
{
    enum { COUNT = 40, FAULTS = 4 };
    site *s = scrub_site(8 << 20, 64 << 10, 0); /* a record lies on one disk */
    site_put(s, 0, COUNT);
    uint32_t found = 0;
    for (uint32_t i = 0; i < COUNT && found < FAULTS; i++) {
        if (ssd_place(s, i)->location->shares[0].member != 1) continue;
        assert_int_equal(flip_byte(s, i, 20000), 1);
        found++;
    }
    assert_int_equal(found, FAULTS);
    s->store->scrub.faults_most = FAULTS;
    end_lap(s);
    assert_int_equal(s->store->scrub.damaged, FAULTS);
    assert_int_equal(disk_stats(s, 1).scrub_faults, FAULTS);
    assert_int_equal(disk_stats(s, 0).scrub_faults, 0);
    assert_int_equal(disk_stats(s, 1).state, KVT_DEVICE_DRAINING);
    kvt_health_item item = {.struct_size = sizeof item};
    size_t items;
    kvt_status overall;
    assert_ok(kvt_health_get(s->store, &item, 1, &items, &overall));
    assert_int_equal(overall, KVT_E_CORRUPT);
    assert_string_equal(item.name, "disk1");
    site_maintain(s, 200);
    assert_int_equal(disk_stats(s, 1).used_bytes, 0);
    assert_int_equal(site_hits(s, COUNT), COUNT - FAULTS);
    uint32_t more = 0;
    for (uint32_t i = 0; i < COUNT && more < FAULTS; i++) {
        const kvt_key key = support_key(i);
        if (kvt_store_exists(s->store, &key) != KVT_OK) continue;
        assert_int_equal(flip_byte(s, i, 20000), 0);
        more++;
    }
    for (int lap = 0; lap < 3; lap++) {
        pass_lap(s);
        end_lap(s);
    }
    assert_int_equal(disk_stats(s, 0).scrub_faults, FAULTS);
    assert_int_equal(disk_stats(s, 0).state, KVT_DEVICE_SERVING);
    assert_int_equal(site_hits(s, COUNT), COUNT - 2 * FAULTS);
}

/* A copy that rots leaves its entry in memory, and is written again. */
TEST(a_rotten_copy_is_made_anew)
{
    site *s = scrub_site(2 << 20, 4096, DRAM_ENTRIES * RECORD_BYTES + 16 * 1024);
    kvt_persist_info info = {.struct_size = sizeof info};
    site_put(s, 0, DRAM_ENTRIES);
    assert_ok(kvt_store_persist(s->store, KVT_NO_DEADLINE, &info));
    assert_int_equal(support_stats(s->store).copies.count, DRAM_ENTRIES);
    (void)flip_byte(s, 0, 20000);
    end_lap(s);
    assert_int_equal(s->store->scrub.damaged, 1);
    assert_int_equal(support_stats(s->store).copies.count, DRAM_ENTRIES - 1);
    support_gets(s->store, 0, DRAM_ENTRIES);
    assert_ok(kvt_store_persist(s->store, KVT_NO_DEADLINE, &info));
    assert_int_equal(info.written, 1);
    pass_lap(s);
    end_lap(s);
    pass_lap(s);
    end_lap(s);
    assert_int_equal(s->store->scrub.damaged, 1);
    site_reopen(s);
    support_gets(s->store, 0, DRAM_ENTRIES);
}

/* Reads that fail cost no entry, and no lap hangs on them. */
TEST(reads_that_fail)
{
    site *s = scrub_site(8 << 20, 4096, 0);
    site_put(s, 0, ENTRIES);
    const tiers_fault_rule fail = {.action = TIERS_FAULT_FAIL,
                                   .kinds = TIERS_FAULT_READS,
                                   .hits = 2,
                                   .status = KVT_E_IO,
                                   .os_error = 5};
    for (uint32_t i = 0; i < DISKS; i++)
        site_fault(s, i, fail);
    end_lap(s);
    for (int i = 0; i < DISKS; i++)
        tiers_fault_clear(s->disks[i].device);
    assert_int_equal(s->store->scrub.damaged, 0);
    support_gets(s->store, 0, ENTRIES);
}

/* A device goes in the middle of a lap: the lap ends, no record counts as rotten, and those of the
 * other device are whole. A device that is there again has all of its own. */
TEST(a_device_that_goes)
{
    site *s = scrub_site(8 << 20, 64 << 10, 0); /* a record lies on one disk */
    site_put(s, 0, ENTRIES);
    uint32_t kept = 0;
    for (uint32_t i = 0; i < ENTRIES; i++)
        kept += ssd_place(s, i)->location->shares[0].member == 0;
    assert_true(kept > 0 && kept < ENTRIES);
    const tiers_fault_rule gone = {.action = TIERS_FAULT_FAIL,
                                   .kinds = TIERS_FAULT_READS,
                                   .skip = 2,
                                   .status = KVT_E_GONE,
                                   .os_error = 19};
    s->store->scrub.faults_most = 1; /* a single fault would drain */
    site_fault(s, 1, gone);
    end_lap(s);
    assert_int_equal(disk_stats(s, 1).state, KVT_DEVICE_GONE);
    assert_int_equal(disk_stats(s, 0).state, KVT_DEVICE_SERVING);
    assert_int_equal(s->store->scrub.damaged, 0);
    for (int lap = 0; lap < 3; lap++) { /* with the device away all along */
        pass_lap(s);
        end_lap(s);
    }
    assert_int_equal(s->store->scrub.damaged, 0);
    assert_int_equal(disk_stats(s, 0).scrub_faults + disk_stats(s, 1).scrub_faults, 0);
    assert_int_equal(site_hits(s, ENTRIES), kept);
    tiers_fault_clear(s->disks[1].device);
    site_reopen(s);
    support_gets(s->store, 0, ENTRIES);
}

/* A clock that jumps by a month: the budget has saved no more than at any time, and the lap goes on
 * where it was. */
TEST(a_clock_that_jumps)
{
    site *s = scrub_site(8 << 20, 4096, 0);
    site_put(s, 0, ENTRIES);
    s->store->scrub.share = 1e-9;
    site_maintain(s, 5);
    assert_int_equal(s->store->scrub.read.records, 1);
    const uint8_t lap = s->store->scrub.lap;
    base_clock_leap(UINT64_C(30) * 86400 * 1000000000);
    site_maintain(s, 20);
    assert_int_equal(s->store->scrub.read.records, 2);
    assert_int_equal(s->store->scrub.lap, lap);
    s->store->scrub.share = 1;
    end_lap(s);
    assert_int_equal(s->store->scrub.read.records, ENTRIES);
    assert_int_equal(s->store->scrub.damaged, 0);
    support_gets(s->store, 0, ENTRIES);
}
