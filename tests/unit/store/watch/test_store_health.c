/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_health.c - devices, threads and files that go out of order while a store serves: they
 * are named, what waits for them ends, and the rest serves on.
 */
#include "store_site.h"

#include "store/catalog/catalog_internal.h"
#include "store/core/store.h"

#include <pthread.h>

enum { DISKS = 2, ENTRIES = 24, ITEMS = 8 };

static kvt_health_item items[ITEMS];
static size_t count;
static kvt_status overall;

/* DRAM for a third of the entries, above two disks. */
TEST_BEFORE_EACH
{
    site_open(site_new(state, (site_shape){.disks = DISKS,
                                           .disk_bytes = 2 << 20,
                                           .unit_bytes = 65536,
                                           .memory_bytes = 320 << 10}));
}

static void look(site *s)
{
    items[0].struct_size = sizeof items[0];
    assert_ok(kvt_health_get(s->store, items, ITEMS, &count, &overall));
    assert_true(count <= ITEMS);
}

static const kvt_health_item *find(kvt_health_kind kind, const char *name)
{
    for (size_t i = 0; i < count; i++) {
        const kvt_health_item *item = &items[i];
        if (item->kind == kind && strstr(item->name, name) != NULL) return item;
    }
    return NULL;
}

static void check_in_order(site *s)
{
    look(s);
    assert_int_equal(count, 0);
    assert_ok(overall);
}

static void check_sentence(const kvt_health_item *item)
{
    size_t length = strlen(item->text);
    assert_true(length > 20 && length + 1 < sizeof item->text);
    assert_int_equal(item->text[length - 1], '.');
    assert_true(item->status < 0);
    assert_true(item->seconds >= 0);
}

/* A device's own code ends the worker's thread, while a get waits for it. */
TEST(a_worker_that_dies)
{
    site *s = *state;
    site_put(s, 0, ENTRIES);
    check_in_order(s);
    site_fault(s, 1, (tiers_fault_rule){.action = TIERS_FAULT_EXIT, .kinds = TIERS_FAULT_READS});
    uint32_t hits = site_hits(s, ENTRIES);
    assert_true(hits > 0 && hits < ENTRIES);
    look(s);
    const kvt_health_item *thread = find(KVT_HEALTH_THREAD, "disk1");
    const kvt_health_item *device = find(KVT_HEALTH_DEVICE, "disk1");
    assert_non_null(thread);
    assert_non_null(device);
    check_sentence(thread);
    check_sentence(device);
    assert_int_equal(count, 2);
    assert_int_equal(overall, thread->status);
    assert_int_equal(device->status, KVT_E_GONE);
    /* The others serve: what was found is found again, and puts find room. */
    assert_int_equal(site_hits(s, ENTRIES), hits);
    assert_ok(support_put(s->store, 100));
    assert_ok(support_get(s->store, 100, NULL));
    /* Whoever syncs, deletes or closes ends as well; the device can be added again. */
    (void)!kvt_store_flush(s->store);
    kvt_key key = support_key(100);
    assert_ok(kvt_store_delete(s->store, &key));
    assert_ok(kvt_device_add(s->store, KVT_TIER_SSD, &s->files[1], NULL, 0));
    check_in_order(s);
    assert_int_equal(site_hits(s, ENTRIES), ENTRIES);
}

/* The same in a write: of a put, and then at the close. */
TEST(a_worker_that_dies_writing)
{
    site *s = *state;
    for (uint32_t i = 0; i < DISKS; i++)
        site_fault(s, i,
                   (tiers_fault_rule){.action = TIERS_FAULT_EXIT, .kinds = TIERS_FAULT_WRITES});
    for (uint32_t i = 0; i < ENTRIES; i++) {
        kvt_status status = support_put(s->store, i);
        assert_true(status == KVT_OK || status == KVT_E_IO || status == KVT_REFUSED ||
                    status == KVT_E_SPACE);
    }
    look(s);
    assert_non_null(find(KVT_HEALTH_THREAD, "disk0"));
    assert_non_null(find(KVT_HEALTH_THREAD, "disk1"));
    assert_true(site_hits(s, ENTRIES) > 0);
}

TEST(devices_out_of_order)
{
    site *s = *state;
    site_put(s, 0, ENTRIES);
    /* A write that fails is told of until one succeeds. */
    site_fault(s, 0,
               (tiers_fault_rule){
                   .action = TIERS_FAULT_FAIL, .kinds = TIERS_FAULT_WRITES, .status = KVT_E_SPACE});
    for (uint32_t i = 0; i < 8; i++)
        (void)!support_put(s->store, 200 + i);
    look(s);
    const kvt_health_item *item = find(KVT_HEALTH_DEVICE, "disk0");
    assert_non_null(item);
    assert_int_equal(item->status, KVT_E_SPACE);
    check_sentence(item);
    tiers_fault_clear(s->disks[0].device);
    /* A device that is retired is told of until it is back. */
    assert_ok(kvt_device_change(s->store, "disk1", KVT_DEVICE_RETIRE));
    look(s);
    item = find(KVT_HEALTH_DEVICE, "disk1");
    assert_non_null(item);
    assert_int_equal(item->status, KVT_E_GONE);
    check_sentence(item);
    assert_ok(kvt_device_add(s->store, KVT_TIER_SSD, &s->files[1], NULL, 0));
    look(s);
    assert_null(find(KVT_HEALTH_DEVICE, "disk1"));
    /* The array may be too small, or absent. */
    assert_ok(kvt_device_change(s->store, "disk0", KVT_DEVICE_RETIRE));
    assert_ok(kvt_health_get(s->store, NULL, 0, &count, NULL));
    assert_int_equal(count, 1);
    assert_int_equal(kvt_health_get(s->store, NULL, 1, &count, NULL), KVT_E_ARGUMENT);
    assert_int_equal(kvt_health_get(s->store, items, ITEMS, NULL, NULL), KVT_E_ARGUMENT);
}

/* A batch that cannot be written: the catalog is told of until one is. */
TEST(a_catalog_that_cannot_be_written)
{
    site *s = *state;
    site_put(s, 0, ENTRIES);
    sqlite3 *other = NULL;
    assert_int_equal(sqlite3_open(s->catalog, &other), SQLITE_OK);
    assert_int_equal(sqlite3_exec(other, "BEGIN IMMEDIATE", NULL, NULL, NULL), SQLITE_OK);
    kvt_key key = support_key(0);
    for (uint32_t i = 0; i < ENTRIES; i++) {
        key = support_key(i);
        assert_ok(kvt_store_delete(s->store, &key));
    }
    assert_int_equal(kvt_store_flush(s->store), KVT_E_DATABASE);
    look(s);
    const kvt_health_item *item = find(KVT_HEALTH_FILE, "catalog.db");
    assert_non_null(item);
    check_sentence(item);
    assert_true(item != NULL && strstr(item->text, "SQLite reports 5") != NULL);
    assert_int_equal(overall, item->status);
    assert_int_equal(sqlite3_exec(other, "ROLLBACK", NULL, NULL, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_close(other), SQLITE_OK);
    (void)!kvt_store_flush(s->store); /* tells of the batch that failed */
    assert_ok(kvt_store_flush(s->store));
    check_in_order(s);
}

/* A reader keeps the log from being begun anew: it grows, the store says so, and cuts it when the
 * reader has gone, although nothing is written any more. */
TEST(a_reader_keeps_the_log_of_the_catalog)
{
    enum { BATCHES = 20, BATCH_BYTES = 1 << 20 };
    site *s = *state;
    site_put(s, 0, ENTRIES);
    sqlite3 *reader = NULL;
    assert_int_equal(sqlite3_open_v2(s->catalog, &reader, SQLITE_OPEN_READONLY, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_exec(reader, "BEGIN; SELECT count(*) FROM entry", NULL, NULL, NULL),
                     SQLITE_OK);
    void *bytes = test_zeros(BATCH_BYTES);
    for (int i = 0; i < BATCHES; i++) {
        assert_ok(catalog_note_uses(s->store->catalog, 1, bytes, BATCH_BYTES));
        assert_ok(kvt_store_flush(s->store));
    }
    kvt_store_stats stats = support_stats(s->store);
    assert_true(stats.catalog_log_bytes > CATALOG_LOG_MOST);
    look(s);
    const kvt_health_item *item = find(KVT_HEALTH_FILE, "catalog.db-wal");
    assert_non_null(item);
    assert_int_equal(item->status, KVT_E_LOCKED);
    check_sentence(item);
    assert_int_equal(sqlite3_exec(reader, "COMMIT", NULL, NULL, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_close(reader), SQLITE_OK);
    while (stats.catalog_log_bytes != 0)
        stats = support_stats(s->store);
    check_in_order(s);
    /* Without a reader the log is begun anew long before it reaches the bound. */
    for (int i = 0; i < 3 * BATCHES; i++) {
        assert_ok(catalog_note_uses(s->store->catalog, 1, bytes, BATCH_BYTES));
        assert_ok(kvt_store_flush(s->store));
        assert_true(support_stats(s->store).catalog_log_bytes <= CATALOG_LOG_MOST);
    }
}

/* The catalog's writer ends between two batches: flushes fail at once, the store serves. */
TEST(a_catalog_writer_that_ends)
{
    site *s = *state;
    site_put(s, 0, ENTRIES);
    assert_int_equal(pthread_cancel(s->store->catalog->writer), 0);
    catalog_health health = {0};
    while (!health.writer_ended)
        catalog_health_get(s->store->catalog, &health);
    assert_ok(support_put(s->store, 100));
    assert_int_equal(kvt_store_flush(s->store), KVT_E_DATABASE);
    assert_int_equal(kvt_store_flush(s->store), KVT_E_DATABASE);
    look(s);
    assert_non_null(find(KVT_HEALTH_THREAD, "catalog writer"));
    assert_non_null(find(KVT_HEALTH_FILE, "catalog.db"));
    assert_ok(support_get(s->store, 100, NULL));
    /* What was flushed before comes back. */
    site_reopen(s);
    check_in_order(s);
    assert_true(site_hits(s, ENTRIES) > 0);
}

TEST(a_background_that_ends)
{
#if defined(__SANITIZE_ADDRESS__)
    /* A cancelled thread leaves its frames marked, and the sanitizer of gcc 12 aborts on them. */
    skip();
#endif
    site *s = *state;
    site_close(s);
    s->options.limits.tick_seconds = 60;
    site_open(s);
    check_in_order(s);
    assert_int_equal(pthread_cancel(s->store->background), 0);
    do {
        look(s);
    } while (count == 0);
    const kvt_health_item *item = find(KVT_HEALTH_THREAD, "background");
    assert_non_null(item);
    check_sentence(item);
    site_put(s, 0, ENTRIES);
    assert_ok(kvt_store_maintain(s->store, NULL));
    assert_int_equal(site_hits(s, ENTRIES), ENTRIES);
}
