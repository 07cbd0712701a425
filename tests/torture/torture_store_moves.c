/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torture_store_moves.c - writes of background moves that fail: changes of form, demotions,
 * promotions, new layouts. Whatever the device says, the entry stays where it was, also over a
 * reopen, and the moves that fail are tried less and less often.
 */
#include "small_filesystem.h"
#include "store_site.h"

#include "store/core/store.h"
#include "tiers/devices/superblock.h"

enum { ENTRIES = 40, ROUNDS = 60 };

/* SSDs, and DRAM above them where it has bytes. */
static site *site_make(uint32_t disks, uint64_t dram_bytes)
{
    site *s = site_prepare((site_shape){.disks = disks,
                                        .disk_bytes = 8 << 20,
                                        .unit_bytes = 4096,
                                        .fast = true,
                                        .dram_bytes = dram_bytes});
    return s;
}

static void fail_writes(kvt_device *device, kvt_status status)
{
    const tiers_fault_rule rule = {.action = TIERS_FAULT_FAIL,
                                   .kinds = TIERS_FAULT_WRITES,
                                   .status = status,
                                   .os_error = status == KVT_E_SPACE ? ENOSPC : EIO};
    assert_ok(tiers_fault_add(device, &rule));
}

/* Every sector but those of the label is bad; with these, too, the device would be out of service.
 */
static void fail_reads(kvt_device *device)
{
    const tiers_fault_rule rule = {.action = TIERS_FAULT_FAIL,
                                   .kinds = TIERS_FAULT_READS,
                                   .offset = TIERS_SUPERBLOCK_BYTES,
                                   .bytes = UINT32_MAX,
                                   .status = KVT_E_IO,
                                   .os_error = EIO};
    assert_ok(tiers_fault_add(device, &rule));
}

/* Nothing was lost or given up. */
static void check_nothing_lost(site *s, uint32_t before, uint64_t evictions)
{
    kvt_store_stats stats = support_stats(s->store);
    assert_int_equal(stats.evictions, evictions);
    assert_int_equal(stats.given_up, 0);
    assert_int_equal(stats.load_failures, 0);
    assert_int_equal(site_stored(s, 2 * ENTRIES), before);
    assert_int_equal(site_hits(s, 2 * ENTRIES), before);
}

/* ---- changes of form inside a tier ---- */

static site *store_lossless(void)
{
    site *s = site_make(1, 0);
    s->options.variant = (kvt_variant){.codec = KVT_CODEC_LOSSLESS, .mode = KVT_LOSSLESS_DENSE};
    site_open(s);
    return s;
}

/* Reopens under a policy that wants the entries raw, because decoding takes longer than reading. */
static void want_raw(site *s)
{
    s->options.policy = "utility";
    s->options.variant = (kvt_variant){.codec = KVT_CODEC_RAW};
    site_reopen(s);
    assert_int_equal(site_stored(s, 2 * ENTRIES), ENTRIES);
}

static void work(site *s, uint32_t rounds)
{
    for (uint32_t i = 0; i < rounds; i++) {
        for (uint32_t j = 0; j < ENTRIES; j++)
            (void)!support_get(s->store, j, NULL);
        assert_ok(kvt_store_maintain(s->store, NULL));
    }
}

static uint32_t count_raw(site *s)
{
    uint32_t raw = 0;
    for (uint32_t i = 0; i < ENTRIES; i++) {
        kvt_get_info info = {.struct_size = sizeof info};
        if (support_get(s->store, i, &info) == KVT_OK) raw += info.variant.codec == KVT_CODEC_RAW;
    }
    return raw;
}

static void check_failed_changes(site *s, uint64_t failed)
{
    check_nothing_lost(s, ENTRIES, 0);
    /* Moves did fail, but a few times an entry, however many rounds there were: the pauses between
     * them are 0.25, 0.5, 1 s and so on, so that eight take half a minute. */
    assert_true(failed > 0);
    assert_true(failed <= 8 * ENTRIES);
}

TEST(a_change_of_form_that_cannot_be_written)
{
    static const kvt_status faults[] = {KVT_E_IO, KVT_E_SPACE};
    for (int i = 0; i < 2; i++) {
        site *s = store_lossless();
        site_put(s, 0, ENTRIES);
        want_raw(s);
        fail_writes(s->disks[0].device, faults[i]);
        work(s, ROUNDS);
        kvt_store_stats stats = support_stats(s->store);
        check_failed_changes(s, i == 0 ? stats.moves.failed_io : stats.moves.failed_space);
        tiers_fault_clear(s->disks[0].device);
        site_reopen(s);
        check_nothing_lost(s, ENTRIES, 0);
        /* Without faults the same moves are carried out. */
        work(s, 8);
        assert_true(count_raw(s) > 0);
        check_nothing_lost(s, ENTRIES, 0);
        site_end(s);
    }
}

/* ---- between tiers ---- */

/* Puts into a full DRAM above an SSD that takes no writes: they fail, and what is stored stays. */
TEST(a_demotion_that_cannot_be_written)
{
    static const kvt_status faults[] = {KVT_E_IO, KVT_E_SPACE};
    for (int i = 0; i < 2; i++) {
        site *s = site_make(1, 400 << 10);
        site_open(s);
        site_put(s, 0, 30);
        uint32_t before = site_stored(s, 2 * ENTRIES);
        assert_int_equal(before, 30);
        fail_writes(s->disks[0].device, faults[i]);
        for (uint32_t j = 30; j < 60; j++) {
            kvt_status status = support_put(s->store, j);
            assert_true(status == KVT_OK || status == KVT_E_IO || status == KVT_E_SPACE ||
                        status == KVT_REFUSED);
            before += status == KVT_OK;
            assert_ok(kvt_store_maintain(s->store, NULL));
        }
        check_nothing_lost(s, before, 0);
        kvt_store_stats stats = support_stats(s->store);
        assert_true((i == 0 ? stats.moves.failed_io : stats.moves.failed_space) > 0);
        uint64_t below = stats.policy.entries_by_tier[KVT_TIER_SSD];
        assert_true(below > 0);
        tiers_fault_clear(s->disks[0].device);
        site_reopen(s);
        assert_true(site_hits(s, 2 * ENTRIES) >= below);
        site_end(s);
    }
}

/* Takes a part of the SSD behind the policy's back. */
static tiers_location *take_room(site *s, uint64_t bytes)
{
    tiers_location *location = NULL;
    assert_ok(tiers_pool_reserve(s->store->pools[KVT_TIER_SSD], bytes, &location));
    return location;
}

static uint64_t free_room(site *s)
{
    tiers_pool_facts facts;
    tiers_pool_facts_get(s->store->pools[KVT_TIER_SSD], &facts);
    return facts.capacity_bytes - facts.used_bytes;
}

/* The policy counts on room below that is not there. Only then, and only for a put, does an entry
 * go that was to make room: a tick's demotions and promotions give nothing up. */
TEST(room_that_is_not_there)
{
    site *s = site_make(1, 400 << 10);
    s->options.limits.high_watermark = 0.5;
    s->options.limits.low_watermark = 0.4;
    site_open(s);
    support_puts(s->store, 0, 10);
    tiers_location *taken = take_room(s, free_room(s) - 4096);
    uint32_t before = site_stored(s, 2 * ENTRIES);
    work(s, ROUNDS);
    kvt_store_stats stats = support_stats(s->store);
    assert_true(stats.moves.failed_space > 0);
    check_nothing_lost(s, before, 0);
    /* A put needs the room of one entry, and gets it. */
    support_puts(s->store, ENTRIES, ENTRIES + 4);
    stats = support_stats(s->store);
    assert_true(stats.given_up > 0);
    assert_true(stats.given_up <= 8);
    assert_int_equal(stats.evictions, 0);
    assert_int_equal(site_stored(s, 2 * ENTRIES), before + 4 - stats.given_up);
    tiers_pool_release(s->store->pools[KVT_TIER_SSD], taken);
}

/* Hot entries go up into a DRAM that takes no writes. */
TEST(a_promotion_that_cannot_be_written)
{
    static const kvt_status faults[] = {KVT_E_IO, KVT_E_SPACE};
    for (int i = 0; i < 2; i++) {
        site *s = site_make(1, 0);
        site_open(s);
        site_put(s, 0, ENTRIES);
        site_close(s);
        site_add_dram(s, 4 << 20);
        site_open(s);
        fail_writes(s->dram.device, faults[i]);
        work(s, 10);
        kvt_store_stats stats = support_stats(s->store);
        check_failed_changes(s, i == 0 ? stats.moves.failed_io : stats.moves.failed_space);
        site_reopen(s);
        check_nothing_lost(s, ENTRIES, 0);
        site_end(s);
    }
}

/* ---- new layouts ---- */

/* A device drains onto one that takes no writes: what lies on it stays there. */
TEST(a_drain_that_cannot_be_written)
{
    static const kvt_status faults[] = {KVT_E_IO, KVT_E_SPACE};
    for (int i = 0; i < 2; i++) {
        site *s = site_make(2, 0);
        site_open(s);
        site_put(s, 0, ENTRIES);
        assert_ok(kvt_device_change(s->store, "disk0", KVT_DEVICE_DRAIN));
        fail_writes(s->disks[1].device, faults[i]);
        for (uint32_t j = 0; j < ROUNDS; j++)
            assert_ok(kvt_store_maintain(s->store, NULL));
        tiers_fault_counts counts;
        tiers_fault_counts_get(s->disks[1].device, &counts);
        assert_true(counts.hits > 0);
        tiers_fault_clear(s->disks[1].device);
        check_nothing_lost(s, ENTRIES, 0);
        site_reopen(s);
        check_nothing_lost(s, ENTRIES, 0);
        site_end(s);
    }
}

/* ---- reads ---- */

/* Neither a get nor a move that cannot read an entry costs it, and a put of its key stores it anew
 * until a read has succeeded. */
TEST(a_source_that_cannot_be_read)
{
    site *s = store_lossless();
    site_put(s, 0, ENTRIES);
    want_raw(s);
    work(s, 1); /* its gets plan changes */
    fail_reads(s->disks[0].device);
    work(s, ROUNDS);
    assert_int_equal(site_hits(s, 2 * ENTRIES), 0);
    assert_int_equal(site_stored(s, 2 * ENTRIES), ENTRIES);
    kvt_store_stats stats = support_stats(s->store);
    assert_true(stats.load_failures > 0 && s->store->tallies.checksum_failures == 0);
    tiers_fault_clear(s->disks[0].device);
    assert_ok(support_put(s->store, 0));
    assert_int_equal(site_hits(s, 2 * ENTRIES), ENTRIES);
    assert_int_equal(support_put(s->store, 1), KVT_EXISTS);
    assert_int_equal(support_stats(s->store).evictions, 0);
    site_reopen(s);
    check_nothing_lost(s, ENTRIES, 0);
}

/* Sets an entry's failed moves to as many as a minute of them makes. */
static void spend_tries(kvt_store *store, uint32_t number)
{
    const kvt_key key = support_key(number);
    pthread_mutex_lock(&store->lock);
    store_entry *entry = entry_find_key(&store->table, &key);
    if (entry != NULL) backoff_note_success(store, entry);
    if (entry != NULL) entry->failed_moves = 8;
    pthread_mutex_unlock(&store->lock);
}

/* A drain ends, at the cost of what cannot be read for good; before that, nothing goes. */
TEST(a_drain_of_what_cannot_be_read)
{
    site *s = site_make(2, 0);
    site_open(s);
    site_put(s, 0, ENTRIES);
    fail_reads(s->disks[0].device);
    assert_ok(kvt_device_change(s->store, "disk0", KVT_DEVICE_DRAIN));
    for (uint32_t i = 0; i < 4; i++)
        assert_ok(kvt_store_maintain(s->store, NULL));
    assert_int_equal(site_stored(s, 2 * ENTRIES), ENTRIES);
    for (uint32_t i = 0; i < ENTRIES; i++)
        spend_tries(s->store, i);
    for (uint32_t i = 0; i < 4; i++)
        assert_ok(kvt_store_maintain(s->store, NULL));
    assert_true(site_stored(s, 2 * ENTRIES) < ENTRIES);
    assert_int_equal(site_hits(s, 2 * ENTRIES), site_stored(s, 2 * ENTRIES));
    assert_ok(kvt_store_flush(s->store));
    assert_ok(kvt_store_maintain(s->store, NULL));
    assert_ok(kvt_device_change(s->store, "disk0", KVT_DEVICE_REMOVE));
}

/* A member on a file system that is full: its file has holes that nothing can fill any more.
 * Last, because its mounts are its own. */
TEST(a_file_system_that_fills)
{
    char folder[64];
    support_make_folder(folder, sizeof folder);
    if (!small_filesystem_mount(folder, "size=16m")) skip();
    site *s = site_make(1, 0);
    snprintf(s->paths[0], sizeof s->paths[0], "%s/disk0", folder);
    s->options.variant = (kvt_variant){.codec = KVT_CODEC_LOSSLESS, .mode = KVT_LOSSLESS_DENSE};
    site_open(s);
    /* The measurement has written the file; what holds no label becomes a hole again. */
    int file = open(s->paths[0], O_RDWR);
    assert_true(file >= 0);
    assert_int_equal(fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 1 << 20, 7 << 20),
                     0);
    assert_int_equal(close(file), 0);
    site_put(s, 0, ENTRIES);
    want_raw(s);
    small_filesystem_fill(folder);
    work(s, ROUNDS);
    check_failed_changes(s, support_stats(s->store).moves.failed_space);
    site_reopen(s);
    check_nothing_lost(s, ENTRIES, 0);
    site_end(s);
    small_filesystem_unmount(folder);
}
