/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torture_store_corners.c - interleavings and inputs that once hung, jammed or misled the store.
 */
#include "codecs/record.h"
#include "store_support.h"

#include <fcntl.h>
#include <pthread.h>
#include <sqlite3.h>

static kvt_store *corners_open(const kvt_store_options *options)
{
    char message[256] = "";
    kvt_store *store = NULL;
    kvt_status status = kvt_open(options, &store, message, sizeof message);
    if (status != KVT_OK) fail_msg("open: %s: %s", kvt_status_name(status), message);
    return store;
}

static kvt_store_options corners_options(const char *policy)
{
    kvt_store_options options;
    kvt_store_options_init(&options);
    options.put_staging_bytes = 0; /* a put says how its write went */
    options.staging_bytes = 8 << 20;
    options.policy = policy;
    options.tick_seconds = 0;
    return options;
}

static void corners_set_tier(kvt_store_options *options, kvt_tier tier, kvt_device_config *devices,
                             uint32_t count)
{
    options->tiers[tier].devices = devices;
    options->tiers[tier].device_count = count;
}

static void corners_add_rule(kvt_device *device, tiers_fault_rule rule)
{
    assert_int_equal(tiers_fault_add(device, &rule), KVT_OK);
}

/* An entry of any size with its own bytes. */
static kvt_status corners_put(kvt_store *store, uint32_t number, const kvt_layout *layout)
{
    uint64_t bytes;
    assert_int_equal(kvt_layout_bytes(layout, &bytes), KVT_OK);
    char *data = malloc(bytes);
    codecs_kv_sample_fill(layout, number, data);
    kvt_entry entry = support_entry(support_key(number), *layout, 1);
    kvt_status status = kvt_put(store, &entry, data, bytes);
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
    thread->status = kvt_get(thread->store, &key, data, bytes, NULL);
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
    thread->status = kvt_maintain(thread->store, NULL);
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
    kvt_device_config devices[2] = {support_fault_config(&faults[0], "dram"),
                                    support_fault_config(&faults[1], "ssd")};
    kvt_store_options options = corners_options("lru");
    options.staging_bytes = 1 << 20;
    corners_set_tier(&options, KVT_TIER_DRAM, &devices[0], 1);
    corners_set_tier(&options, KVT_TIER_SSD, &devices[1], 1);
    kvt_store *store = corners_open(&options);
    corners_add_rule(faults[0].device, (tiers_fault_rule){.action = TIERS_FAULT_TEAR,
                                                          .kinds = TIERS_FAULT_WRITES,
                                                          .status = KVT_OK,
                                                          .torn_bytes = 65536});
    assert_int_equal(corners_put(store, 1, &layout), KVT_OK);
    tiers_fault_clear(faults[0].device);
    assert_int_equal(corners_put(store, 2, &layout), KVT_OK);
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
    assert_int_equal(putter.status, KVT_OK);
    kvt_close(store);
}

/* ---- a file device with faults ---- */

typedef struct corners_file {
    const char *path;
    uint64_t capacity_bytes;
    kvt_device *device;
    stand_in stand_in;
} corners_file;

static kvt_status corners_file_open(const kvt_device_config *config, kvt_device **device_out,
                                    char *message, size_t message_size)
{
    corners_file *file = stand_in_context(config);
    const kvt_device_config inner_config =
        support_file_config(config->name, file->path, file->capacity_bytes);
    kvt_device *inner;
    kvt_status status = kvt_device_open(&inner_config, &inner, message, message_size);
    if (status != KVT_OK) return status;
    status = tiers_fault_open(inner, device_out);
    file->device = *device_out;
    return status;
}

static const kvt_device_ops corners_file_ops = {.struct_size = sizeof corners_file_ops,
                                                .abi_version = KVT_DEVICE_ABI,
                                                .name = "corners-file",
                                                .open = corners_file_open};

static kvt_device_config corners_file_config(corners_file *file, const char *name)
{
    return (kvt_device_config){.struct_size = sizeof(kvt_device_config),
                               .name = name,
                               .backend = stand_in_set(&file->stand_in, &corners_file_ops, file),
                               .timeout_ns = UINT64_MAX};
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

/* An entry goes up and comes down again while a slow reader still holds its first place: the
 * deletion of the first place's row, which comes last, must not take the new row. */
TEST(up_and_down_under_a_reader)
{
    char folder[64], catalog[96], path[96];
    support_make_folder(folder, sizeof folder);
    snprintf(catalog, sizeof catalog, "%s/catalog.db", folder);
    snprintf(path, sizeof path, "%s/ssd", folder);
    support_fault memory = {.capacity_bytes = 100 << 10};
    corners_file file = {.path = path, .capacity_bytes = 8 << 20};
    kvt_device_config devices[2] = {support_fault_config(&memory, "dram"),
                                    corners_file_config(&file, "ssd")};
    kvt_store_options options = corners_options("lru");
    options.catalog_path = catalog;
    options.copies = false; /* the row that stays with a copy would have no successor */
    corners_set_tier(&options, KVT_TIER_DRAM, &devices[0], 1);
    corners_set_tier(&options, KVT_TIER_SSD, &devices[1], 1);
    kvt_store *store = corners_open(&options);
    for (uint32_t i = 1; i <= 4; i++) {
        assert_int_equal(support_put(store, i), KVT_OK);
    }
    kvt_key third = support_key(3);
    assert_int_equal(kvt_delete(store, &third), KVT_OK); /* room above, so that 1 can go up */
    assert_int_equal(kvt_flush(store), KVT_OK);
    corners_add_rule(file.device, (tiers_fault_rule){.action = TIERS_FAULT_DELAY,
                                                     .kinds = TIERS_FAULT_READS,
                                                     .delay_ns = 600000000,
                                                     .hits = 1});
    corners_thread getter = {.store = store, .layout = &support_layout, .number = 1};
    corners_thread maintainer = {.store = store};
    pthread_t threads[2];
    uint64_t before = corners_reads(file.device);
    assert_int_equal(pthread_create(&threads[0], NULL, corners_get_thread, &getter), 0);
    corners_wait_read(file.device, before);
    assert_int_equal(pthread_create(&threads[1], NULL, corners_maintain_thread, &maintainer), 0);
    for (int i = 0; i < 300 && support_stats(store).promotions == 0; i++) {
        usleep(1000);
    }
    assert_int_equal(support_put(store, 4), KVT_EXISTS);
    assert_int_equal(support_put(store, 10), KVT_OK);
    assert_int_equal(pthread_join(threads[0], NULL), 0);
    assert_int_equal(pthread_join(threads[1], NULL), 0);
    assert_int_equal(getter.status, KVT_OK);
    assert_int_equal(kvt_flush(store), KVT_OK);
    uint64_t on_ssd = support_stats(store).tiers[KVT_TIER_SSD].entries;
    assert_true(on_ssd > 0);
    assert_int_equal(corners_count_rows(catalog), on_ssd);
    kvt_close(store);
    store = corners_open(&options);
    assert_int_equal(support_stats(store).recovered, on_ssd);
    kvt_close(store);
    support_remove_folder(folder);
}

/* An entry has gone up, and a slow reader still holds the place below. A delete that a flush has
 * confirmed does not leave the row of that place behind, which a kill would bring back. */
TEST(deleted_above_a_reader)
{
    char folder[64], catalog[96], path[96];
    support_make_folder(folder, sizeof folder);
    snprintf(catalog, sizeof catalog, "%s/catalog.db", folder);
    snprintf(path, sizeof path, "%s/ssd", folder);
    support_fault memory = {.capacity_bytes = 100 << 10};
    corners_file file = {.path = path, .capacity_bytes = 8 << 20};
    kvt_device_config devices[2] = {support_fault_config(&memory, "dram"),
                                    corners_file_config(&file, "ssd")};
    kvt_store_options options = corners_options("lru");
    options.catalog_path = catalog;
    options.copies = false;
    corners_set_tier(&options, KVT_TIER_DRAM, &devices[0], 1);
    corners_set_tier(&options, KVT_TIER_SSD, &devices[1], 1);
    kvt_store *store = corners_open(&options);
    for (uint32_t i = 1; i <= 4; i++)
        assert_int_equal(support_put(store, i), KVT_OK);
    kvt_key third = support_key(3), first = support_key(1);
    assert_int_equal(kvt_delete(store, &third), KVT_OK); /* room above, so that 1 can go up */
    assert_int_equal(kvt_flush(store), KVT_OK);
    corners_add_rule(file.device, (tiers_fault_rule){.action = TIERS_FAULT_DELAY,
                                                     .kinds = TIERS_FAULT_READS,
                                                     .delay_ns = 600000000,
                                                     .hits = 1});
    corners_thread getter = {.store = store, .layout = &support_layout, .number = 1};
    corners_thread maintainer = {.store = store};
    pthread_t threads[2];
    uint64_t before = corners_reads(file.device);
    assert_int_equal(pthread_create(&threads[0], NULL, corners_get_thread, &getter), 0);
    corners_wait_read(file.device, before);
    assert_int_equal(pthread_create(&threads[1], NULL, corners_maintain_thread, &maintainer), 0);
    while (support_stats(store).promotions == 0)
        usleep(1000);
    assert_int_equal(kvt_delete(store, &first), KVT_OK);
    assert_int_equal(kvt_flush(store), KVT_OK);
    uint64_t rows = (uint64_t)corners_count_rows(catalog);
    assert_int_equal(rows, support_stats(store).tiers[KVT_TIER_SSD].entries);
    assert_int_equal(pthread_join(threads[0], NULL), 0);
    assert_int_equal(pthread_join(threads[1], NULL), 0);
    assert_int_equal(getter.status, KVT_OK);
    /* The room of the place below comes back once its reader has gone. */
    for (uint32_t i = 1; i <= 4; i++) {
        kvt_key key = support_key(i);
        (void)!kvt_delete(store, &key);
    }
    assert_int_equal(kvt_flush(store), KVT_OK);
    assert_int_equal(support_stats(store).tiers[KVT_TIER_SSD].used_bytes, 0);
    kvt_close(store);
    support_remove_folder(folder);
}

/* The lower tier is lost: the upper one evicts and goes on. */
TEST(dead_lower_tier)
{
    static const char *const policies[] = {"lru", "utility"};
    for (int p = 0; p < 2; p++) {
        support_fault faults[2] = {{.capacity_bytes = 300 << 10}, {.capacity_bytes = 8 << 20}};
        kvt_device_config devices[2] = {support_fault_config(&faults[0], "dram"),
                                        support_fault_config(&faults[1], "ssd")};
        kvt_store_options options = corners_options(policies[p]);
        corners_set_tier(&options, KVT_TIER_DRAM, &devices[0], 1);
        corners_set_tier(&options, KVT_TIER_SSD, &devices[1], 1);
        kvt_store *store = corners_open(&options);
        support_puts(store, 0, 20);
        tiers_fault_set_gone(faults[1].device, true);
        uint32_t failed = 0;
        for (uint32_t i = 100; i < 200; i++) {
            kvt_status status = support_put(store, i);
            failed += status < 0;
            if (p == 0) assert_true(status != KVT_REFUSED); /* utility may prefer what it has */
            if (status == KVT_OK) assert_int_equal(support_get(store, i, NULL), KVT_OK);
        }
        assert_int_equal(failed, 0);
        assert_int_equal(support_stats(store).tiers[KVT_TIER_SSD].used_bytes, 0);
        kvt_close(store);
    }
}

/* Several drives, almost full: whole stripe units cannot use the last bytes of each, and the policy
 * must know. */
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
    kvt_store_options options = corners_options("lru");
    corners_set_tier(&options, KVT_TIER_SSD, devices, 3);
    kvt_store *store = corners_open(&options);
    for (uint32_t i = 0; i < 150; i++) {
        assert_int_equal(corners_put(store, i, &layout), KVT_OK);
    }
    kvt_close(store);
}

/* Entries that the lossless form does not shrink come out larger than planned. */
TEST(incompressible)
{
    static const kvt_layout layout = {.dtype = KVT_DTYPE_OPAQUE, .opaque_bytes = 100000};
    for (uint64_t capacity = 424 << 10; capacity <= 448 << 10; capacity += 8 << 10) {
        kvt_store_options options = corners_options("lru");
        options.variant.codec = KVT_CODEC_LOSSLESS;
        options.variant.mode = KVT_LOSSLESS_DENSE;
        options.tiers[KVT_TIER_DRAM].capacity_bytes = capacity;
        kvt_store *store = corners_open(&options);
        for (uint32_t i = 0; i < 40; i++) {
            assert_int_equal(corners_put(store, i, &layout), KVT_OK);
        }
        kvt_close(store);
    }
}

/* A failed sync is told to the flush that relies on it, and the drive is trusted no more. */
TEST(failed_sync)
{
    char folder[64], catalog[96], path[96];
    support_make_folder(folder, sizeof folder);
    snprintf(catalog, sizeof catalog, "%s/catalog.db", folder);
    snprintf(path, sizeof path, "%s/ssd", folder);
    corners_file file = {.path = path, .capacity_bytes = 4 << 20};
    kvt_device_config device = corners_file_config(&file, "ssd");
    kvt_store_options options = corners_options("lru");
    options.catalog_path = catalog;
    corners_set_tier(&options, KVT_TIER_SSD, &device, 1);
    kvt_store *store = corners_open(&options);
    corners_add_rule(file.device, (tiers_fault_rule){.action = TIERS_FAULT_FAIL,
                                                     .kinds = TIERS_FAULT_SYNCS,
                                                     .status = KVT_E_IO,
                                                     .hits = 1});
    assert_int_equal(support_put(store, 1), KVT_OK);
    assert_int_equal(kvt_flush(store), KVT_E_IO);
    kvt_device_stats stats = {.struct_size = sizeof stats};
    assert_int_equal(kvt_device_stats_at(store, 0, &stats), KVT_OK);
    assert_true(stats.retired);
    assert_int_equal(support_get(store, 1, NULL), KVT_MISS);
    kvt_close(store);
    support_remove_folder(folder);
}

/* A delete of an entry whose eviction is planned and not begun holds, whatever becomes of the plan.
 */
TEST(delete_of_a_planned_victim)
{
    support_fault faults[2] = {{.capacity_bytes = 100 << 10}, {.capacity_bytes = 100 << 10}};
    kvt_device_config devices[2] = {support_fault_config(&faults[0], "dram"),
                                    support_fault_config(&faults[1], "ssd")};
    kvt_store_options options = corners_options("lru");
    corners_set_tier(&options, KVT_TIER_DRAM, &devices[0], 1);
    corners_set_tier(&options, KVT_TIER_SSD, &devices[1], 1);
    kvt_store *store = corners_open(&options);
    for (uint32_t i = 1; i <= 6; i++) {
        assert_int_equal(support_put(store, i), KVT_OK);
    }
    bool there[7];
    for (uint32_t i = 1; i <= 6; i++) {
        kvt_key key = support_key(i);
        there[i] = kvt_exists(store, &key) == KVT_OK;
    }
    uint32_t victim = 0, risen = 0;
    for (uint32_t i = 6; i >= 1 && victim == 0; i--) {
        kvt_get_info info = {.struct_size = sizeof info};
        if (support_get(store, i, &info) != KVT_OK || info.tier != KVT_TIER_SSD) continue;
        risen = i;
        for (uint32_t j = 1; j <= 6; j++) {
            kvt_key key = support_key(j);
            if (there[j] && kvt_exists(store, &key) == KVT_MISS) victim = j;
        }
    }
    assert_true(victim != 0 && risen != 0);
    kvt_key key = support_key(victim), other = support_key(risen);
    assert_int_equal(kvt_delete(store, &key), KVT_OK);
    assert_int_equal(kvt_delete(store, &other), KVT_OK);
    assert_int_equal(support_get(store, victim, NULL), KVT_MISS);
    kvt_close(store);
}

/* One catalog, one store. */
TEST(catalog_of_another_store)
{
    char folder[64], catalog[96], paths[2][96], message[256];
    support_make_folder(folder, sizeof folder);
    snprintf(catalog, sizeof catalog, "%s/catalog.db", folder);
    kvt_device_config devices[2];
    for (int i = 0; i < 2; i++) {
        snprintf(paths[i], sizeof paths[i], "%s/ssd%d", folder, i);
        devices[i] = support_file_config("ssd", paths[i], 2 << 20);
    }
    kvt_store_options options = corners_options("lru");
    options.catalog_path = catalog;
    corners_set_tier(&options, KVT_TIER_SSD, &devices[0], 1);
    kvt_store *store = corners_open(&options), *second;
    support_puts(store, 0, 10);
    kvt_store_options rival = options;
    corners_set_tier(&rival, KVT_TIER_SSD, &devices[1], 1);
    assert_int_equal(kvt_open(&rival, &second, message, sizeof message), KVT_E_LOCKED);
    assert_int_equal(kvt_flush(store), KVT_OK);
    kvt_close(store);
    /* Opening without the tier that the rows are on would lose them. */
    kvt_store_options without = corners_options("lru");
    without.catalog_path = catalog;
    without.tiers[KVT_TIER_DRAM].capacity_bytes = 1 << 20;
    assert_int_equal(kvt_open(&without, &second, message, sizeof message), KVT_E_MISMATCH);
    /* A failed open takes nothing over, format or not. */
    char other[96];
    snprintf(other, sizeof other, "%s/other.db", folder);
    kvt_store_options broken = options;
    broken.catalog_path = other;
    broken.format = true;
    broken.policy = "lruu";
    assert_int_equal(kvt_open(&broken, &second, message, sizeof message), KVT_E_UNSUPPORTED);
    store = corners_open(&options);
    assert_int_equal(support_stats(store).recovered, 10);
    kvt_close(store);
    support_remove_folder(folder);
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
    kvt_store_options options = corners_options("lru");
    options.catalog_path = catalog;
    options.tiers[KVT_TIER_DRAM].capacity_bytes = 1 << 20;
    kvt_close(corners_open(&options));
    support_remove_folder(folder);
}

/* A small move budget is saved up until an entry can move. */
TEST(small_move_budget)
{
    support_fault fault = {.capacity_bytes = 8 << 20};
    kvt_device_config device = support_fault_config(&fault, "ssd");
    kvt_store_options options = corners_options("utility");
    options.tick_seconds = 0.001;
    options.move_bytes_per_s = 2000000; /* 2 KB per tick, entries of 44 KB */
    options.high_watermark = 0.5;
    options.low_watermark = 0.4;
    options.tiers[KVT_TIER_DRAM].capacity_bytes = 1 << 20;
    corners_set_tier(&options, KVT_TIER_SSD, &device, 1);
    kvt_store *store = corners_open(&options);
    for (uint32_t i = 0; i < 30; i++) {
        kvt_status status = support_put(store, i);
        assert_true(status == KVT_OK || status == KVT_REFUSED);
    }
    uint64_t used = UINT64_MAX;
    while (used > (1 << 20) * 6 / 10) { /* the time limit ends what never comes */
        usleep(5000);
        used = support_stats(store).tiers[KVT_TIER_DRAM].used_bytes;
    }
    kvt_close(store);
}
