/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_members.c - devices that drain, vanish, come back and join while a store serves, and
 * objects that are laid out anew.
 */
#include "store_site.h"

#include "store/core/store.h"
#include "tiers/devices/superblock.h"

#include <pthread.h>

enum { DISKS = 3, ENTRIES = 40 };

/* SSD alone, striped over three disks in units of 4 KiB; a fourth one may join. */
TEST_BEFORE_EACH
{
    site *s =
        site_new(state, (site_shape){.disks = DISKS, .disk_bytes = 2 << 20, .unit_bytes = 4096});
    s->options.tiers[KVT_TIER_SSD].rebalance_bytes_per_s = UINT64_C(1) << 40;
    site_open(s);
}

static kvt_device_stats disk_stats(site *s, size_t index)
{
    kvt_device_stats stats = {.struct_size = sizeof stats};
    assert_ok(kvt_device_stats_get(s->store, index, &stats));
    return stats;
}

/* The disk's answers are KVT_E_GONE from now on, and the store has seen one. */
static void vanish(site *s, int disk)
{
    tiers_fault_set_gone(s->disks[disk].device, true);
    for (uint32_t i = 0; i < ENTRIES && disk_stats(s, (size_t)disk).state != KVT_DEVICE_GONE; i++) {
        (void)!support_get(s->store, i, NULL);
    }
    assert_int_equal(disk_stats(s, (size_t)disk).state, KVT_DEVICE_GONE);
}

static kvt_status come_back(site *s, int disk)
{
    return kvt_device_add(s->store, KVT_TIER_SSD, &s->files[disk], NULL, 0);
}

static void copy_file(const char *from, const char *to)
{
    char command[256];
    snprintf(command, sizeof command, "cp '%s' '%s'", from, to);
    assert_int_equal(system(command), 0);
}

/* ---- drain ---- */

TEST(a_drain_empties_a_disk_while_serving)
{
    site *s = *state;
    site_put(s, 0, ENTRIES);
    assert_true(disk_stats(s, 1).used_bytes > 0);
    assert_int_equal(kvt_device_change(s->store, "disk1", KVT_DEVICE_REMOVE), KVT_BUSY);
    assert_int_equal(kvt_device_change(s->store, "nobody", KVT_DEVICE_DRAIN), KVT_E_ARGUMENT);
    assert_ok(kvt_device_change(s->store, "disk1", KVT_DEVICE_DRAIN));
    assert_int_equal(disk_stats(s, 1).state, KVT_DEVICE_DRAINING);
    assert_int_equal(kvt_device_change(s->store, "disk1", KVT_DEVICE_REMOVE), KVT_BUSY);
    assert_int_equal(site_hits(s, ENTRIES), ENTRIES);
    site_maintain(s, 3);
    assert_int_equal(disk_stats(s, 1).used_bytes, 0);
    assert_int_equal(support_stats(s->store).relayouts.records, ENTRIES);
    assert_int_equal(site_hits(s, ENTRIES), ENTRIES);
    assert_ok(kvt_device_change(s->store, "disk1", KVT_DEVICE_REMOVE));
    assert_int_equal(disk_stats(s, 1).state, KVT_DEVICE_ABSENT);
    assert_int_equal(kvt_device_change(s->store, "disk1", KVT_DEVICE_DRAIN), KVT_E_STATE);
    assert_int_equal(site_hits(s, ENTRIES), ENTRIES);
    /* A new disk takes the place, and what is put now uses it. */
    assert_int_equal(unlink(s->paths[1]), 0);
    assert_ok(come_back(s, 1));
    assert_int_equal(come_back(s, 1), KVT_E_STATE);
    assert_int_equal(disk_stats(s, 1).state, KVT_DEVICE_SERVING);
    assert_ok(support_put(s->store, ENTRIES));
    assert_true(disk_stats(s, 1).used_bytes > 0);
    assert_ok(kvt_store_flush(s->store));
    site_reopen(s);
    assert_int_equal(site_hits(s, ENTRIES), ENTRIES);
    assert_ok(support_get(s->store, ENTRIES, NULL));
}

TEST(a_drain_without_room_lets_the_policy_make_some)
{
    site *s = *state;
    uint32_t stored = 0;
    while (support_stats(s->store).evictions == 0)
        assert_ok(support_put(s->store, stored++)); /* full */
    assert_ok(kvt_device_change(s->store, "disk2", KVT_DEVICE_DRAIN));
    site_maintain(s, 40);
    assert_int_equal(disk_stats(s, 2).used_bytes, 0);
    assert_true(site_hits(s, stored) >= stored / 2);
}

/* ---- vanishing and coming back ---- */

TEST(what_a_disk_held_comes_back_with_it)
{
    site *s = *state;
    site_put(s, 0, ENTRIES);
    vanish(s, 1);
    uint32_t left = site_hits(s, ENTRIES);
    kvt_store_stats stats = support_stats(s->store);
    assert_int_equal(left, 0); /* all are striped over all */
    assert_int_equal(stats.quarantined, ENTRIES);
    assert_int_equal(stats.load_failures, 1); /* the rest was not tried one by one */

    kvt_key deleted = support_key(0);
    assert_int_equal(kvt_store_delete(s->store, &deleted), KVT_MISS);
    assert_ok(support_put(s->store, 1)); /* on the others */
    assert_ok(support_get(s->store, 1, NULL));
    assert_ok(come_back(s, 1));
    stats = support_stats(s->store);
    assert_int_equal(stats.readmitted, ENTRIES - 2);
    assert_int_equal(site_hits(s, ENTRIES), ENTRIES - 1);
    assert_int_equal(support_get(s->store, 0, NULL), KVT_MISS);
    assert_ok(kvt_store_flush(s->store));
    site_reopen(s);
    assert_int_equal(site_hits(s, ENTRIES), ENTRIES - 1);
}

static void *run_maintain(void *store)
{
    (void)!kvt_store_maintain(store, NULL); /* the move that it carries out fails */
    return NULL;
}

/* The entry's disk goes while the entry is promoted, and the promotion fails: the entry leaves at
 * the end of that move. */
TEST(an_entry_that_moved_when_its_disk_went_leaves)
{
    site *s = *state;
    static support_fault memory = {.capacity_bytes = 1 << 20};
    kvt_device_config config = support_fault_config(&memory, "memory");
    static const tiers_fault_rule hang = {.action = TIERS_FAULT_HANG, .kinds = TIERS_FAULT_WRITES};
    kvt_key key = support_key(0);
    tiers_fault_counts counts = {0};
    pthread_t mover;
    site_put(s, 0, ENTRIES);
    s->options.tiers[KVT_TIER_DRAM] =
        (kvt_tier_options){.devices = &config, .device_count = 1, .unit_bytes = 4096};
    site_reopen(s);
    assert_ok(tiers_fault_add(memory.device, &hang));
    assert_ok(support_get(s->store, 0, NULL));
    assert_int_equal(pthread_create(&mover, NULL, run_maintain, s->store), 0);
    while (counts.hung == 0) {
        usleep(1000);
        tiers_fault_counts_get(memory.device, &counts);
    }
    assert_ok(kvt_device_change(s->store, "disk1", KVT_DEVICE_RETIRE));
    assert_int_equal(support_stats(s->store).quarantined, ENTRIES - 1);
    assert_ok(kvt_store_exists(s->store, &key));
    tiers_fault_set_gone(memory.device, true);
    assert_int_equal(pthread_join(mover, NULL), 0);
    assert_int_equal(kvt_store_exists(s->store, &key), KVT_MISS);
    assert_int_equal(support_stats(s->store).quarantined, ENTRIES);
    assert_ok(kvt_device_change(s->store, "disk1", KVT_DEVICE_REMOVE));
    assert_ok(come_back(s, 1));
    assert_ok(kvt_store_exists(s->store, &key));
    assert_int_equal(site_hits(s, ENTRIES), ENTRIES);
}

TEST(quarantined_entries_survive_a_restart)
{
    site *s = *state;
    site_put(s, 0, ENTRIES);
    vanish(s, 0);
    assert_int_equal(site_hits(s, ENTRIES), 0);
    site_reopen(s); /* the disk is back, and was not away during an open */
    assert_int_equal(site_hits(s, ENTRIES), ENTRIES);
}

TEST(quarantined_entries_give_way)
{
    site *s = *state;
    site_put(s, 0, ENTRIES);
    vanish(s, 2);
    for (uint32_t i = 0; i < 150; i++) /* more than two disks hold */
        assert_ok(support_put(s->store, 1000 + i));
    assert_ok(come_back(s, 2));
    kvt_store_stats stats = support_stats(s->store);
    assert_true(stats.readmitted < ENTRIES);
    assert_int_equal(site_hits(s, ENTRIES), stats.readmitted);
    assert_ok(support_get(s->store, 1149, NULL));
}

TEST(a_disk_that_lost_its_writes_serves_no_older_bytes)
{
    site *s = *state;
    char copy[128];
    snprintf(copy, sizeof copy, "%s/copy", s->folder);
    for (uint32_t i = 0; i < ENTRIES; i++) /* others, in whose place the entries come */
        assert_ok(support_put(s->store, 2000 + i));
    copy_file(s->paths[1], copy);
    for (uint32_t i = 0; i < ENTRIES; i++) {
        kvt_key key = support_key(2000 + i);
        assert_ok(kvt_store_delete(s->store, &key));
    }
    assert_ok(kvt_store_flush(s->store));
    site_put(s, 0, ENTRIES);
    vanish(s, 1);
    copy_file(copy, s->paths[1]); /* label and epoch are right, the records are of before */
    assert_ok(come_back(s, 1));
    assert_int_equal(support_stats(s->store).readmitted, ENTRIES);
    assert_int_equal(site_hits(s, ENTRIES), 0);
}

TEST(a_stale_disk_comes_back_empty)
{
    site *s = *state;
    char copy[128];
    snprintf(copy, sizeof copy, "%s/copy", s->folder);
    site_put(s, 0, ENTRIES);
    site_close(s);
    copy_file(s->paths[1], copy);
    site_open(s); /* the next epoch */
    assert_int_equal(site_hits(s, ENTRIES), ENTRIES);
    vanish(s, 1);
    copy_file(copy, s->paths[1]); /* every record on it is sound */
    assert_ok(come_back(s, 1));
    assert_int_equal(support_stats(s->store).readmitted, 0);
    assert_int_equal(disk_stats(s, 1).used_bytes, 0);
    assert_int_equal(site_hits(s, ENTRIES), 0);
    site_put(s, 0, ENTRIES);
    assert_int_equal(site_hits(s, ENTRIES), ENTRIES);
    site_reopen(s);
    assert_int_equal(site_hits(s, ENTRIES), ENTRIES);
}

TEST(a_foreign_disk_is_refused)
{
    site *s = *state;
    char message[256] = "";
    site_put(s, 0, ENTRIES);
    vanish(s, 1);
    copy_file(s->paths[0], s->paths[1]); /* the label of another member */
    assert_int_equal(kvt_device_add(s->store, KVT_TIER_SSD, &s->files[1], message, sizeof message),
                     KVT_E_MISMATCH);
    assert_non_null(strstr(message, "disk1"));
    assert_int_equal(disk_stats(s, 1).state, KVT_DEVICE_GONE);
    assert_ok(support_put(s->store, 0));
    kvt_device_config absent = s->files[1];
    s->disks[1].path = "/nowhere/at/all";
    assert_int_equal(kvt_device_add(s->store, KVT_TIER_SSD, &absent, NULL, 0), KVT_E_GONE);
    s->disks[1].path = s->paths[1];
    assert_int_equal(kvt_device_add(s->store, KVT_TIER_DRAM, &absent, NULL, 0), KVT_E_UNSUPPORTED);
}

/* Some file systems begin behind the place of a label: their drives look blank. */
TEST(a_disk_with_a_file_system_is_refused)
{
    site *s = *state;
    unsigned char written[4096];
    s->disks[3].foreign = true;
    assert_int_equal(come_back(s, 3), KVT_E_MISMATCH);
    FILE *file = fopen(s->paths[3], "rb");
    assert_non_null(file);
    while (fread(written, sizeof written, 1, file) == 1)
        for (size_t i = 0; i < sizeof written; i++)
            assert_int_equal(written[i], 0);
    fclose(file);
    s->disks[3].foreign = false;
    assert_ok(come_back(s, 3));
}

/* A disk that joined, and that the options of the next open do not name, is missing like any other:
 * what it holds is not given up in passing. */
TEST(a_disk_that_joined_is_missed)
{
    site *s = *state;
    assert_ok(come_back(s, 3));
    site_put(s, 0, ENTRIES);
    assert_true(disk_stats(s, 3).used_bytes > 0);
    site_close(s);
    assert_int_equal(site_try_open(s), KVT_E_GONE);
    assert_non_null(strstr(s->message, "disk3"));
    s->options.tiers[KVT_TIER_SSD].device_count = DISKS + 1;
    site_open(s);
    assert_int_equal(site_hits(s, ENTRIES), ENTRIES);
    s->options.tiers[KVT_TIER_SSD].device_count = DISKS;
    s->options.format = true;
    site_reopen(s);
    assert_true(support_stats(s->store).recovery_drops > 0);
}

TEST(a_tier_grows_by_a_disk)
{
    site *s = *state;
    site_put(s, 0, ENTRIES);
    uint64_t before = support_stats(s->store).tiers[KVT_TIER_SSD].capacity_bytes;
    assert_ok(come_back(s, 3));
    assert_true(support_stats(s->store).tiers[KVT_TIER_SSD].capacity_bytes > before);
    for (uint32_t i = 0; i < ENTRIES; i++)
        assert_ok(support_put(s->store, 500 + i));
    assert_true(disk_stats(s, 3).used_bytes > 0);
    assert_ok(kvt_store_flush(s->store));
    s->options.tiers[KVT_TIER_SSD].device_count = DISKS + 1;
    site_reopen(s);
    assert_int_equal(site_hits(s, ENTRIES), ENTRIES);
    for (uint32_t i = 0; i < ENTRIES; i++)
        assert_ok(support_get(s->store, 500 + i, NULL));
}

TEST(a_retired_disk_is_as_one_that_vanished)
{
    site *s = *state;
    site_put(s, 0, ENTRIES);
    assert_ok(kvt_device_change(s->store, "disk1", KVT_DEVICE_RETIRE));
    assert_int_equal(site_hits(s, ENTRIES), 0);
    assert_ok(kvt_device_change(s->store, "disk1", KVT_DEVICE_REMOVE));
    assert_ok(come_back(s, 1));
    assert_int_equal(site_hits(s, ENTRIES), ENTRIES);
}

/* ---- layouts ---- */

/* A sync that failed is for the caller's flush to report: a put that waits for the catalog on its
 * own account neither fails by it nor hides it. */
TEST(a_failed_sync_is_left_to_the_flush)
{
    site *s = *state;
    tiers_fault_rule rule = {
        .action = TIERS_FAULT_FAIL, .kinds = TIERS_FAULT_SYNCS, .hits = 1, .status = KVT_E_IO};
    site_put(s, 0, ENTRIES);
    site_fault(s, 1, rule);
    uint32_t number = 1000;
    while (disk_stats(s, 1).state != KVT_DEVICE_GONE) {
        assert_ok(support_put(s->store, number++));
        usleep(1000);
    }
    for (uint32_t i = 0; i < 400; i++)
        assert_ok(support_put(s->store, number++));
    assert_int_equal(kvt_store_flush(s->store), KVT_E_IO);
    assert_ok(kvt_store_flush(s->store));
}

TEST(hot_objects_are_laid_out_anew)
{
    site *s = *state;
    assert_ok(kvt_device_change(s->store, "disk1", KVT_DEVICE_DRAIN));
    site_put(s, 0, ENTRIES);
    assert_int_equal(disk_stats(s, 1).used_bytes, 0);
    assert_ok(kvt_device_change(s->store, "disk1", KVT_DEVICE_SERVE));
    for (uint32_t i = 0; i < 10; i++) /* read once: not hot */
        assert_ok(support_get(s->store, i, NULL));
    site_maintain(s, 2);
    assert_int_equal(support_stats(s->store).relayouts.records, 0);
    support_gets(s->store, 0, 5);
    site_maintain(s, 2);
    kvt_store_stats stats = support_stats(s->store);
    assert_int_equal(stats.relayouts.records, 5);
    assert_int_equal(stats.relayouts.bytes, 5 * stats.tiers[KVT_TIER_SSD].used_bytes / ENTRIES);
    assert_true(disk_stats(s, 1).used_bytes > 0);
    for (uint32_t i = 0; i < 5; i++) { /* now they are as they should be */
        assert_ok(support_get(s->store, i, NULL));
        assert_ok(support_get(s->store, i, NULL));
    }
    site_maintain(s, 2);
    assert_int_equal(support_stats(s->store).relayouts.records, 5);
    site_reopen(s);
    assert_int_equal(site_hits(s, ENTRIES), ENTRIES);
}

TEST(a_failed_move_leaves_the_object_where_it_was)
{
    site *s = *state;
    assert_ok(kvt_device_change(s->store, "disk1", KVT_DEVICE_DRAIN));
    site_put(s, 0, ENTRIES);
    assert_ok(kvt_device_change(s->store, "disk1", KVT_DEVICE_SERVE));
    tiers_fault_rule rule = {
        .action = TIERS_FAULT_FAIL, .kinds = TIERS_FAULT_WRITES, .status = KVT_E_IO};
    site_fault(s, 1, rule);
    for (int i = 0; i < 3; i++)
        assert_int_equal(site_hits(s, ENTRIES), ENTRIES);
    assert_ok(kvt_store_maintain(s->store, NULL));
    tiers_fault_clear(s->disks[1].device);
    assert_int_equal(support_stats(s->store).relayouts.records, 0);
    assert_int_equal(site_hits(s, ENTRIES), ENTRIES);
    assert_int_equal(support_stats(s->store).evictions, 0);
}

/* A put whose write a silent disk does not answer is made on the others, while the disk is silent.
 * Its late answers hurt nothing, and it has no part of what was put. */
TEST(a_silent_disk_holds_up_no_put)
{
    site *s = *state;
    const tiers_fault_rule hang = {.action = TIERS_FAULT_HANG, .kinds = TIERS_FAULT_WRITES};
    tiers_fault_counts counts;
    site_close(s);
    s->options.durability.catalog_path = NULL;
    s->options.tiers[KVT_TIER_SSD].weights_fixed = false;
    for (int i = 0; i < DISKS; i++) { /* of memory, by the clock that all have */
        s->disks[i].path = NULL;
        s->disks[i].depth = 4;
    }
    site_open(s);
    const uint64_t before = disk_stats(s, 1).bytes_written;
    site_fault(s, 1, hang);
    support_puts(s->store, 0, 8);
    tiers_fault_counts_get(s->disks[1].device, &counts);
    assert_true(counts.hung > 0);
    assert_int_equal(disk_stats(s, 1).bytes_written, before);
    assert_int_equal(disk_stats(s, 1).state, KVT_DEVICE_SERVING);
    assert_true(support_stats(s->store).moves.failed_io > 0);
    support_gets(s->store, 0, 8);
    tiers_fault_clear(s->disks[1].device);
    assert_ok(kvt_store_flush(s->store));
    support_gets(s->store, 0, 8);
}

TEST(the_budget_holds_moves_back)
{
    site *s = *state;
    s->options.tiers[KVT_TIER_SSD].rebalance_bytes_per_s = 1;
    site_reopen(s);
    assert_ok(kvt_device_change(s->store, "disk1", KVT_DEVICE_DRAIN));
    site_put(s, 0, ENTRIES);
    assert_ok(kvt_device_change(s->store, "disk1", KVT_DEVICE_SERVE));
    for (int i = 0; i < 3; i++) {
        assert_int_equal(site_hits(s, ENTRIES), ENTRIES);
        site_maintain(s, 2);
    }
    assert_int_equal(support_stats(s->store).relayouts.records, 0);
}

/* ---- memory and disks in one tier ---- */

TEST(a_unified_pool_uses_memory_until_it_is_full)
{
    site *s = *state;
    kvt_device_config unified[DISKS] = {
        {.struct_size = sizeof unified[0],
         .name = "module",
         .backend = "memory",
         .capacity_bytes = 128 << 10},
        s->files[1],
        s->files[2],
    };
    site_close(s);
    support_remove_folder(s->folder);
    char made[128];
    snprintf(made, sizeof made, "mkdir '%s'", s->folder);
    assert_int_equal(system(made), 0);
    s->options.tiers[KVT_TIER_SSD].devices = unified;
    site_open(s);
    /* Speeds decide nothing here. */
    tiers_pool_set_striping(s->store->pools[KVT_TIER_SSD], TIERS_STRIPE_EQUAL);
    site_put(s, 0, ENTRIES);
    assert_int_equal(site_hits(s, ENTRIES), ENTRIES);
    kvt_device_stats module = disk_stats(s, 0);
    assert_true(module.used_bytes > 0 && module.free_bytes < 4096 * ENTRIES);
    assert_int_equal(module.free_bytes + module.used_bytes, 128 << 10);
    /* What has a unit in memory ends with the process; what found it full is on disk. */
    site_reopen(s);
    uint32_t left = site_hits(s, ENTRIES);
    assert_true(left > 0 && left < ENTRIES);
    assert_int_equal(support_stats(s->store).load_failures, 0);
    assert_ok(kvt_device_change(s->store, "module", KVT_DEVICE_RETIRE));
    assert_int_equal(support_stats(s->store).quarantined, 0); /* memory does not come back */
    assert_int_equal(site_hits(s, ENTRIES), left);
}

/* ---- wear ---- */

TEST(wear_survives_a_restart)
{
    site *s = *state;
    site_put(s, 0, ENTRIES);
    uint64_t written = disk_stats(s, 1).bytes_written_ever;
    assert_true(written >= 40 * 3 * 4096);
    site_reopen(s);
    assert_int_equal(disk_stats(s, 1).bytes_written, 0);
    assert_int_equal(disk_stats(s, 1).bytes_written_ever, written);
    s->files[1].write_bytes_per_day = 1; /* the first byte spends it */
    site_reopen(s);
    assert_int_equal(disk_stats(s, 1).write_budget_bytes_per_day, 1);
    for (uint32_t i = 0; i < 4; i++)
        assert_ok(support_put(s->store, 300 + i));
    assert_int_equal(disk_stats(s, 1).write_budget_left_bytes, 0);
    assert_true(disk_stats(s, 1).bytes_written < 2 * 3 * 4096 + 1);
    assert_int_equal(site_hits(s, ENTRIES), ENTRIES);
    /* In shadow the budget closes nothing, and says what it would have refused. */
    s->files[1].write_budget_shadow = true;
    site_reopen(s);
    for (uint32_t i = 0; i < 8; i++)
        assert_ok(support_put(s->store, 400 + i));
    const kvt_device_stats shadow = disk_stats(s, 1);
    assert_true(shadow.bytes_written >= 8 * 3 * 4096);
    assert_true(shadow.write_budget_beyond_bytes + 4096 >= shadow.bytes_written);
    assert_true(shadow.write_budget_beyond_bytes <= shadow.bytes_written + 4096 * 3 * 3);
}
