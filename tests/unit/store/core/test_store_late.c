/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_late.c - a store on devices of which one answers nothing for a while: what is put
 * meanwhile goes to the others, also when the store is full, and the device's room comes back.
 *
 * The device is silent until a case says otherwise; waits have no bound, so no timing decides. The
 * others are files that have a clock of their own, on which nothing is ever late.
 */
#include "queued.h"
#include "store/core/store.h"
#include "store_support.h"

#include "base/clock.h"

enum { DEVICES = 4, SILENT = 3, CAPACITY = 1 << 20, FILLED = 160, PUTS = 64, BATCH = 24 };

static const tiers_fault_rule hang_all = {.action = TIERS_FAULT_HANG,
                                          .kinds = TIERS_FAULT_READS | TIERS_FAULT_WRITES};

static support_fault faults[DEVICES];
static char folder[64], paths[DEVICES][96];
static kvt_store *store;

static int late_close(void **state)
{
    (void)state;
    if (store != NULL) tiers_fault_clear(faults[SILENT].device);
    kvt_store_close(store);
    store = NULL;
    support_remove_folder(folder);
    return 0;
}

TEST_EACH(NULL, late_close);

/* A store on four devices of 100 MB/s, whose weights follow what they do. memory_bytes: above. */
static void late_open(kvt_placement placement, uint64_t memory_bytes)
{
    static const char *const names[DEVICES] = {"d0", "d1", "d2", "d3"};
    static kvt_device_config configs[DEVICES];
    kvt_store_options options = support_options(4 << 20, "lru");
    options.lossless = false;
    support_make_folder(folder, sizeof folder);
    for (int i = 0; i < DEVICES; i++) {
        snprintf(paths[i], sizeof paths[i], "%s/%s", folder, names[i]);
        faults[i] = (support_fault){
            .capacity_bytes = CAPACITY, .path = i == SILENT ? NULL : paths[i], .depth = BATCH};
        configs[i] = support_fault_config(&faults[i], names[i]);
    }
    configs[SILENT].read_bytes_per_s = configs[SILENT].write_bytes_per_s = 100000000;
    support_tier(&options, KVT_TIER_SSD, configs, DEVICES);
    options.tiers[KVT_TIER_SSD].unit_bytes = 4096;
    options.tiers[KVT_TIER_SSD].placement = (uint32_t)placement;
    options.tiers[KVT_TIER_DRAM].capacity_bytes = memory_bytes;
    store = support_open(&options);
}

static tiers_pool *late_pool(void)
{
    return store->pools[KVT_TIER_SSD];
}

/* Whether an entry has bytes on the device. */
static bool lies_there(uint32_t number)
{
    const kvt_key key = support_key(number);
    bool lies = false;
    pthread_mutex_lock(&store->lock);
    const store_entry *entry = entry_find_key(&store->table, &key);
    assert_non_null(entry);
    const tiers_location *location = entry->place->location;
    for (uint32_t i = 0; i < location->share_count && entry->place->tier == KVT_TIER_SSD; i++)
        lies = lies || location->shares[i].member == SILENT;
    pthread_mutex_unlock(&store->lock);
    return lies;
}

/* How many of these that are stored do. */
static uint32_t lie_there(uint32_t from, uint32_t to)
{
    uint32_t count = 0;
    for (uint32_t i = from; i < to; i++) {
        const kvt_key key = support_key(i);
        count += kvt_store_exists(store, &key) == KVT_OK && lies_there(i);
    }
    return count;
}

static uint32_t stored(uint32_t count)
{
    uint32_t there = 0;
    for (uint32_t i = 0; i < count; i++) {
        const kvt_key key = support_key(i);
        there += kvt_store_exists(store, &key) == KVT_OK;
    }
    return there;
}

/* Whether the pool sees that the device answers nothing. */
static bool is_silent(uint32_t number)
{
    const kvt_key key = support_key(number);
    pthread_mutex_lock(&store->lock);
    const store_entry *entry = entry_find_key(&store->table, &key);
    assert_non_null(entry);
    const bool silent = tiers_pool_stalls(late_pool(), entry->place->location);
    pthread_mutex_unlock(&store->lock);
    return silent;
}

/* Makes the device silent, and waits until the pool has seen it: a get of an entry that lies there
 * waits for it, and leaves its read behind. */
static void fall_silent(uint32_t entries)
{
    static char data[SUPPORT_ENTRY_BYTES];
    uint32_t at = 0;
    while (at < entries && lie_there(at, at + 1) == 0)
        at++;
    assert_true(at < entries);
    assert_ok(tiers_fault_add(faults[SILENT].device, &hang_all));
    const kvt_key key = support_key(at);
    while (!is_silent(at)) {
        assert_int_equal(kvt_store_get(store, &key, KVT_PACKED(data, sizeof data),
                                       base_clock_ns() + 10000000, NULL),
                         KVT_MISS);
    }
}

/* Puts find room on the other devices by evictions there, which the silent one's free room does not
 * stand in for. Afterwards that is filled again, with evictions still, so that new entries lie on
 * all devices. */
static void a_full_store(kvt_placement placement, uint64_t memory_bytes)
{
    late_open(placement, memory_bytes);
    support_puts(store, 0, FILLED);
    const uint32_t full = stored(FILLED);
    assert_in_range(full, FILLED / 4, FILLED - 1);
    fall_silent(FILLED);
    for (uint32_t i = FILLED; i < FILLED + PUTS; i++) {
        assert_ok(support_put(store, i));
        assert_false(lies_there(i));
    }
    assert_int_equal(lie_there(FILLED, FILLED + PUTS), 0); /* they may have moved since */
    assert_true(tiers_pool_withheld(late_pool()) > 0);
    const uint32_t left = stored(FILLED + PUTS);
    assert_in_range(left, full / 2, full); /* no more went than lay there, and some ahead */
    support_gets(store, FILLED + PUTS - 8, FILLED + PUTS);
    assert_int_equal(support_stats(store).load_failures, 0);

    tiers_fault_clear(faults[SILENT].device);
    while (tiers_pool_withheld(late_pool()) > 0) /* until it is found to be well */
        base_sleep(1000000);
    support_puts(store, FILLED + PUTS, FILLED + 5 * PUTS);
    assert_true(lie_there(FILLED + PUTS, FILLED + 5 * PUTS) > 0);
    assert_in_range(stored(FILLED + 5 * PUTS), full - full / 16, full + full / 16);
}

TEST(a_full_store_makes_room_on_the_others)
{
    a_full_store(KVT_PLACE_PROPORTIONAL, 0);
}

TEST(a_full_store_of_whole_entries_makes_room_on_the_others)
{
    a_full_store(KVT_PLACE_ENTRY, 0);
}

/* Entries of memory that make way for puts are written to the other devices. */
TEST(demotions_of_a_full_store_make_room_on_the_others)
{
    a_full_store(KVT_PLACE_PROPORTIONAL, 512 << 10);
}

/* Room that the policy counts on and that is not there is not had of the silent device either: the
 * put makes more of it. */
TEST(a_put_that_finds_less_room_than_planned_makes_more)
{
    enum { PIECES = 256, OTHERS = 1 << SILENT };
    tiers_location *held[PIECES];
    uint32_t count = 0;
    late_open(KVT_PLACE_PROPORTIONAL, 0);
    support_puts(store, 0, FILLED);
    fall_silent(FILLED);
    support_puts(store, FILLED, FILLED + 8);
    for (uint32_t i = FILLED - 2; i < FILLED; i++) { /* for the policy to count on */
        const kvt_key key = support_key(i);
        assert_ok(kvt_store_delete(store, &key));
    }
    while (count < PIECES &&
           tiers_pool_reserve_on(late_pool(), 4096, 4096, OTHERS - 1, &held[count]) == KVT_OK &&
           !held[count]->on_late)
        count++;
    assert_in_range(count, 1, PIECES - 1);
    assert_ok(support_put(store, FILLED + 8));
    assert_false(lies_there(FILLED + 8));
    tiers_fault_clear(faults[SILENT].device);
    while (count > 0)
        tiers_pool_release(late_pool(), held[--count]);
}

/* The writes of a batch leave a device that falls silent under them. */
TEST(a_batch_of_puts_leaves_a_silent_device)
{
    static char data[BATCH][SUPPORT_ENTRY_BYTES];
    static kvt_view views[BATCH];
    static kvt_entry entries[BATCH];
    static kvt_request requests[BATCH];
    const kvt_queue_options options = {.struct_size = sizeof options};
    kvt_completion done = {.struct_size = sizeof done};
    kvt_queue *queue = NULL;
    uint64_t batch;
    late_open(KVT_PLACE_PROPORTIONAL, 0);
    assert_ok(kvt_queue_open(store, &options, &queue));
    for (uint32_t i = 0; i < BATCH; i++) {
        support_fill(i, data[i]);
        views[i] = kvt_view_packed(data[i], SUPPORT_ENTRY_BYTES);
        entries[i] = support_entry(support_key(i), support_layout, 1);
        requests[i] = (kvt_request){.struct_size = sizeof(kvt_request),
                                    .kind = KVT_REQUEST_PUT,
                                    .entry = &entries[i],
                                    .view = &views[i],
                                    .deadline_ns = KVT_NO_DEADLINE};
    }
    assert_ok(tiers_fault_add(faults[SILENT].device, &hang_all));
    assert_ok(kvt_queue_submit(queue, requests, BATCH, &batch));
    for (uint32_t i = 0; i < BATCH; i++) {
        assert_ok(kvt_queue_wait(queue, KVT_NO_DEADLINE));
        assert_int_equal(kvt_queue_drain(queue, &done, 1), 1);
        assert_ok(done.status);
    }
    support_gets(store, 0, BATCH);
    for (uint32_t i = 0; i < BATCH; i++)
        assert_false(lies_there(i));
    tiers_fault_clear(faults[SILENT].device);
    kvt_queue_close(queue);
}
