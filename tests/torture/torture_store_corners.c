/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torture_store_corners.c - interleavings and inputs that once hung, jammed or misled the store.
 */
#include "codecs/record.h"
#include "store_site.h"

#include <fcntl.h>
#include <pthread.h>
#include <sqlite3.h>

/* A store on two memories that may fail, the first one above the other. */
static kvt_store *corners_layers(support_fault faults[2], uint64_t staging_bytes,
                                 const char *policy)
{
    kvt_device_config dram = support_fault_config(&faults[0], "dram");
    kvt_device_config ssd = support_fault_config(&faults[1], "ssd");
    kvt_store_options options = support_options(staging_bytes, policy);
    support_tier(&options, KVT_TIER_DRAM, &dram, 1);
    support_tier(&options, KVT_TIER_SSD, &ssd, 1);
    return support_open(&options);
}

static void corners_add_rule(kvt_device *device, tiers_fault_rule rule)
{
    assert_ok(tiers_fault_add(device, &rule));
}

/* An entry of any size with its own bytes. */
static kvt_status corners_put(kvt_store *store, uint32_t number, const kvt_layout *layout)
{
    uint64_t bytes;
    assert_ok(kvt_layout_bytes(layout, &bytes));
    char *data = malloc(bytes);
    codecs_kv_sample_fill(layout, number, data);
    kvt_entry entry = support_entry(support_key(number), *layout, 1);
    kvt_status status = kvt_store_put(store, &entry, KVT_PACKED(data, bytes));
    free(data);
    return status;
}

typedef struct corners_thread {
    kvt_store *store;
    const kvt_layout *layout;
    uint32_t number;
    kvt_status status;
} corners_thread;

static void *corners_get_thread(void *argument)
{
    corners_thread *thread = argument;
    uint64_t bytes;
    (void)!kvt_layout_bytes(thread->layout, &bytes);
    char *data = malloc(bytes);
    kvt_key key = support_key(thread->number);
    thread->status =
        kvt_store_get(thread->store, &key, KVT_PACKED(data, bytes), KVT_STORE_DEADLINE, NULL);
    free(data);
    return NULL;
}

static void *corners_put_thread(void *argument)
{
    corners_thread *thread = argument;
    thread->status = corners_put(thread->store, thread->number, thread->layout);
    return NULL;
}

static void *corners_maintain_thread(void *argument)
{
    corners_thread *thread = argument;
    thread->status = kvt_store_maintain(thread->store, NULL);
    return NULL;
}

static uint64_t corners_reads(kvt_device *device)
{
    tiers_fault_counts counts;
    tiers_fault_counts_get(device, &counts);
    return counts.reads;
}

/* Waits until the device has been asked for more reads than `before`. */
static void corners_wait_read(kvt_device *device, uint64_t before)
{
    while (corners_reads(device) == before) {
        usleep(1000);
    }
}

/* A get finds its entry rotten while a move of the same entry waits for staging memory: the get
 * must not hold its own while it waits for the move. A hang ends in the test's time limit. */
TEST(rot_under_a_move)
{
    static const kvt_layout layout = {
        .layers = 2, .kv_heads = 2, .head_dim = 64, .dtype = KVT_DTYPE_BF16, .tokens = 640};
    support_fault faults[2] = {{.capacity_bytes = 1500 << 10}, {.capacity_bytes = 8 << 20}};
    kvt_store *store = corners_layers(faults, 1 << 20, "lru");
    corners_add_rule(faults[0].device, (tiers_fault_rule){.action = TIERS_FAULT_TEAR,
                                                          .kinds = TIERS_FAULT_WRITES,
                                                          .status = KVT_OK,
                                                          .torn_bytes = 65536});
    assert_ok(corners_put(store, 1, &layout));
    tiers_fault_clear(faults[0].device);
    assert_ok(corners_put(store, 2, &layout));
    corners_add_rule(faults[0].device, (tiers_fault_rule){.action = TIERS_FAULT_DELAY,
                                                          .kinds = TIERS_FAULT_READS,
                                                          .delay_ns = 300000000,
                                                          .hits = 1});
    corners_thread getter = {.store = store, .layout = &layout, .number = 1};
    corners_thread putter = {.store = store, .layout = &layout, .number = 3};
    pthread_t threads[2];
    uint64_t before = corners_reads(faults[0].device);
    assert_int_equal(pthread_create(&threads[0], NULL, corners_get_thread, &getter), 0);
    corners_wait_read(faults[0].device, before);
    assert_int_equal(corners_put(store, 2, &layout), KVT_EXISTS); /* 1 is the older one again */
    assert_int_equal(pthread_create(&threads[1], NULL, corners_put_thread, &putter), 0);
    assert_int_equal(pthread_join(threads[0], NULL), 0);
    assert_int_equal(pthread_join(threads[1], NULL), 0);
    assert_int_equal(getter.status, KVT_MISS);
    assert_ok(putter.status);
    kvt_store_close(store);
}

static int corners_count_rows(const char *catalog)
{
    sqlite3 *db;
    sqlite3_stmt *statement = NULL;
    assert_int_equal(sqlite3_open(catalog, &db), SQLITE_OK);
    assert_int_equal(sqlite3_prepare_v2(db, "SELECT count(*) FROM entry", -1, &statement, NULL),
                     SQLITE_OK);
    assert_int_equal(sqlite3_step(statement), SQLITE_ROW);
    int rows = sqlite3_column_int(statement, 0);
    sqlite3_finalize(statement);
    sqlite3_close(db);
    return rows;
}

/* A disk below memory with room for two entries: a slow reader of entry 1 holds its place on the
 * disk while a round of maintenance takes the entry up. */
typedef struct rise {
    site *s;
    corners_thread getter, maintainer;
    pthread_t threads[2];
} rise;

static void rise_begin(rise *r)
{
    site *s =
        site_prepare((site_shape){.disks = 1, .disk_bytes = 8 << 20, .dram_bytes = 100 << 10});
    s->options.tiers[KVT_TIER_DRAM].unit_bytes = 0;
    s->options.durability.copies =
        false; /* the row that stays with a copy would have no successor */
    site_open(s);
    support_puts(s->store, 1, 5);
    kvt_key third = support_key(3);
    assert_ok(kvt_store_delete(s->store, &third)); /* room above, so that 1 can go up */
    assert_ok(kvt_store_flush(s->store));
    site_fault(s, 0,
               (tiers_fault_rule){.action = TIERS_FAULT_DELAY,
                                  .kinds = TIERS_FAULT_READS,
                                  .delay_ns = 600000000,
                                  .hits = 1});
    *r = (rise){.s = s,
                .getter = {.store = s->store, .layout = &support_layout, .number = 1},
                .maintainer = {.store = s->store}};
    uint64_t before = corners_reads(s->disks[0].device);
    assert_int_equal(pthread_create(&r->threads[0], NULL, corners_get_thread, &r->getter), 0);
    corners_wait_read(s->disks[0].device, before);
    assert_int_equal(pthread_create(&r->threads[1], NULL, corners_maintain_thread, &r->maintainer),
                     0);
    while (support_stats(s->store).promotions == 0)
        usleep(1000);
}

static void rise_end(rise *r)
{
    assert_int_equal(pthread_join(r->threads[0], NULL), 0);
    assert_int_equal(pthread_join(r->threads[1], NULL), 0);
    assert_ok(r->getter.status);
}

/* An entry goes up and comes down again while a slow reader still holds its first place: the
 * deletion of the first place's row, which comes last, must not take the new row. */
TEST(up_and_down_under_a_reader)
{
    rise r;
    rise_begin(&r);
    assert_int_equal(support_put(r.s->store, 4), KVT_EXISTS);
    assert_ok(support_put(r.s->store, 10));
    rise_end(&r);
    assert_ok(kvt_store_flush(r.s->store));
    uint64_t on_ssd = support_stats(r.s->store).tiers[KVT_TIER_SSD].entries;
    assert_true(on_ssd > 0);
    assert_int_equal(corners_count_rows(r.s->catalog), on_ssd);
    site_reopen(r.s);
    assert_int_equal(support_stats(r.s->store).recovered, on_ssd);
}

/* An entry has gone up, and a slow reader still holds the place below. A delete that a flush has
 * confirmed does not leave the row of that place behind, which a kill would bring back. */
TEST(deleted_above_a_reader)
{
    rise r;
    rise_begin(&r);
    kvt_key first = support_key(1);
    assert_ok(kvt_store_delete(r.s->store, &first));
    assert_ok(kvt_store_flush(r.s->store));
    uint64_t rows = (uint64_t)corners_count_rows(r.s->catalog);
    assert_int_equal(rows, support_stats(r.s->store).tiers[KVT_TIER_SSD].entries);
    rise_end(&r);
    /* The room of the place below comes back once its reader has gone. */
    for (uint32_t i = 1; i <= 4; i++) {
        kvt_key key = support_key(i);
        (void)!kvt_store_delete(r.s->store, &key);
    }
    assert_ok(kvt_store_flush(r.s->store));
    assert_int_equal(support_stats(r.s->store).tiers[KVT_TIER_SSD].used_bytes, 0);
}

/* The lower tier is lost: the upper one evicts and goes on. */
TEST(dead_lower_tier)
{
    static const char *const policies[] = {"lru", "utility"};
    for (int p = 0; p < 2; p++) {
        support_fault faults[2] = {{.capacity_bytes = 300 << 10}, {.capacity_bytes = 8 << 20}};
        kvt_store *store = corners_layers(faults, 8 << 20, policies[p]);
        support_puts(store, 0, 20);
        tiers_fault_set_gone(faults[1].device, true);
        uint32_t failed = 0;
        for (uint32_t i = 100; i < 200; i++) {
            kvt_status status = support_put(store, i);
            failed += status < 0;
            if (p == 0) assert_true(status != KVT_REFUSED); /* utility may prefer what it has */
            if (status == KVT_OK) assert_ok(support_get(store, i, NULL));
        }
        assert_int_equal(failed, 0);
        assert_int_equal(support_stats(store).tiers[KVT_TIER_SSD].used_bytes, 0);
        kvt_store_close(store);
    }
}

/* Drives almost full: stripe units cannot use the last bytes of each, and the policy must know. */
TEST(nearly_full_drives)
{
    static const kvt_layout layout = {
        .layers = 2, .kv_heads = 2, .head_dim = 64, .dtype = KVT_DTYPE_BF16, .tokens = 300};
    static const char *const names[] = {"ssd0", "ssd1", "ssd2"};
    support_fault faults[3];
    kvt_device_config devices[3];
    for (int i = 0; i < 3; i++) {
        faults[i] = (support_fault){.capacity_bytes = (5 << 20) + (uint64_t)i * (100 << 10)};
        devices[i] = support_fault_config(&faults[i], names[i]);
    }
    kvt_store_options options = support_options(8 << 20, "lru");
    support_tier(&options, KVT_TIER_SSD, devices, 3);
    kvt_store *store = support_open(&options);
    for (uint32_t i = 0; i < 150; i++) {
        assert_ok(corners_put(store, i, &layout));
    }
    kvt_store_close(store);
}

/* Entries that the lossless form does not shrink come out larger than planned. */
TEST(incompressible)
{
    static const kvt_layout layout = {.dtype = KVT_DTYPE_OPAQUE, .opaque_bytes = 100000};
    for (uint64_t capacity = 424 << 10; capacity <= 448 << 10; capacity += 8 << 10) {
        kvt_store_options options = support_options(8 << 20, "lru");
        options.variant.codec = KVT_CODEC_LOSSLESS;
        options.variant.mode = KVT_LOSSLESS_DENSE;
        options.tiers[KVT_TIER_DRAM].capacity_bytes = capacity;
        kvt_store *store = support_open(&options);
        for (uint32_t i = 0; i < 40; i++) {
            assert_ok(corners_put(store, i, &layout));
        }
        kvt_store_close(store);
    }
}

/* A failed sync is told to the flush that relies on it, and the drive is trusted no more. */
TEST(failed_sync)
{
    site *s = site_prepare((site_shape){.disks = 1, .disk_bytes = 4 << 20});
    site_open(s);
    site_fault(
        s, 0,
        (tiers_fault_rule){
            .action = TIERS_FAULT_FAIL, .kinds = TIERS_FAULT_SYNCS, .status = KVT_E_IO, .hits = 1});
    assert_ok(support_put(s->store, 1));
    assert_int_equal(kvt_store_flush(s->store), KVT_E_IO);
    kvt_device_stats stats = {.struct_size = sizeof stats};
    assert_ok(kvt_device_stats_get(s->store, 0, &stats));
    assert_true(stats.retired);
    assert_int_equal(support_get(s->store, 1, NULL), KVT_MISS);
}

/* A delete of an entry whose eviction is planned and not begun holds, whatever becomes of the plan.
 */
TEST(delete_of_a_planned_victim)
{
    support_fault faults[2] = {{.capacity_bytes = 100 << 10}, {.capacity_bytes = 100 << 10}};
    kvt_store *store = corners_layers(faults, 8 << 20, "lru");
    support_puts(store, 1, 7);
    bool there[7];
    for (uint32_t i = 1; i <= 6; i++) {
        kvt_key key = support_key(i);
        there[i] = kvt_store_exists(store, &key) == KVT_OK;
    }
    uint32_t victim = 0, risen = 0;
    for (uint32_t i = 6; i >= 1 && victim == 0; i--) {
        kvt_get_info info = {.struct_size = sizeof info};
        if (support_get(store, i, &info) != KVT_OK || info.tier != KVT_TIER_SSD) continue;
        risen = i;
        for (uint32_t j = 1; j <= 6; j++) {
            kvt_key key = support_key(j);
            if (there[j] && kvt_store_exists(store, &key) == KVT_MISS) victim = j;
        }
    }
    assert_true(victim != 0 && risen != 0);
    kvt_key key = support_key(victim), other = support_key(risen);
    assert_ok(kvt_store_delete(store, &key));
    assert_ok(kvt_store_delete(store, &other));
    assert_int_equal(support_get(store, victim, NULL), KVT_MISS);
    kvt_store_close(store);
}

/* One catalog, one store. */
TEST(catalog_of_another_store)
{
    site *s = site_prepare((site_shape){.disks = 1, .disk_bytes = 2 << 20, .plain = true});
    site_open(s);
    support_puts(s->store, 0, 10);
    kvt_store *second;
    char message[256];
    kvt_store_options rival = s->options;
    support_tier(&rival, KVT_TIER_SSD, &s->files[1], 1);
    assert_int_equal(kvt_store_open(&rival, &second, message, sizeof message), KVT_E_LOCKED);
    assert_ok(kvt_store_flush(s->store));
    site_close(s);
    /* Opening without the tier that the rows are on would lose them. */
    kvt_store_options without = s->options;
    support_tier(&without, KVT_TIER_SSD, NULL, 0);
    without.tiers[KVT_TIER_DRAM].capacity_bytes = 1 << 20;
    assert_int_equal(kvt_store_open(&without, &second, message, sizeof message), KVT_E_MISMATCH);
    /* A failed open takes nothing over, format or not. */
    char other[96];
    snprintf(other, sizeof other, "%s/other.db", s->folder);
    kvt_store_options broken = s->options;
    broken.durability.catalog_path = other;
    broken.format = true;
    broken.policy = "lruu";
    assert_int_equal(kvt_store_open(&broken, &second, message, sizeof message), KVT_E_UNSUPPORTED);
    site_open(s);
    assert_int_equal(support_stats(s->store).recovered, 10);
}

/* The very first open was cut short after SQLite had made the file. */
TEST(unfinished_catalog)
{
    char folder[64], catalog[96];
    support_make_folder(folder, sizeof folder);
    snprintf(catalog, sizeof catalog, "%s/catalog.db", folder);
    sqlite3 *db;
    assert_int_equal(sqlite3_open(catalog, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, "PRAGMA journal_mode=WAL", NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
    kvt_store_options options = support_options(8 << 20, "lru");
    options.durability.catalog_path = catalog;
    options.tiers[KVT_TIER_DRAM].capacity_bytes = 1 << 20;
    kvt_store_close(support_open(&options));
}

/* A small move budget is saved up until an entry can move. */
TEST(small_move_budget)
{
    support_fault fault = {.capacity_bytes = 8 << 20};
    kvt_device_config device = support_fault_config(&fault, "ssd");
    kvt_store_options options = support_options(8 << 20, "utility");
    options.limits.tick_seconds = 0.001;
    options.limits.move_bytes_per_s = 2000000; /* 2 KB per tick, entries of 44 KB */
    options.limits.high_watermark = 0.5;
    options.limits.low_watermark = 0.4;
    options.tiers[KVT_TIER_DRAM].capacity_bytes = 1 << 20;
    support_tier(&options, KVT_TIER_SSD, &device, 1);
    kvt_store *store = support_open(&options);
    for (uint32_t i = 0; i < 30; i++) {
        kvt_status status = support_put(store, i);
        assert_true(status == KVT_OK || status == KVT_REFUSED);
    }
    uint64_t used = UINT64_MAX;
    while (used > (1 << 20) * 6 / 10) { /* the time limit ends what never comes */
        usleep(5000);
        used = support_stats(store).tiers[KVT_TIER_DRAM].used_bytes;
    }
    kvt_store_close(store);
}
