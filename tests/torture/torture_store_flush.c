/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torture_store_flush.c - flushes whose catalog finds no memory, or no room in its file system:
 * what kvt_flush says, and that what is flushed afterwards comes back.
 */
#include "store_support.h"

#include "failing_sqlite.h"
#include "small_filesystem.h"

enum { ENTRIES = 12, BATCHES = 400 };

typedef struct site {
    char folder[64];
    char catalog[96];
    char disk[96];
    support_fault fault;
    kvt_device_config config;
    kvt_store_options options;
    kvt_store *store;
} site;

static void site_open(site *s)
{
    char message[256] = "";
    kvt_status status = kvt_open(&s->options, &s->store, message, sizeof message);
    if (status != KVT_OK) fail_msg("open: %s: %s", kvt_status_name(status), message);
}

static void site_make(site *s, const char *catalog_folder)
{
    memset(s, 0, sizeof *s);
    support_make_folder(s->folder, sizeof s->folder);
    snprintf(s->catalog, sizeof s->catalog, "%s/catalog.db",
             catalog_folder != NULL ? catalog_folder : s->folder);
    snprintf(s->disk, sizeof s->disk, "%s/disk", s->folder);
    s->fault = (support_fault){.capacity_bytes = 32 << 20, .path = s->disk};
    s->config = support_fault_config(&s->fault, "disk");
    kvt_store_options_init(&s->options);
    s->options.put_staging_bytes = 0; /* a put says how its write went */
    s->options.staging_bytes = 8 << 20;
    s->options.catalog_path = s->catalog;
    s->options.policy = "lru";
    s->options.tick_seconds = 0;
    s->options.tiers[KVT_TIER_SSD] =
        (kvt_tier_options){.devices = &s->config, .device_count = 1, .unit_bytes = 4096};
    site_open(s);
}

static void put_some(site *s, uint32_t from, uint32_t to)
{
    for (uint32_t i = from; i < to; i++)
        assert_int_equal(support_put(s->store, i), KVT_OK);
}

/* The next flush tells of the batch that failed, the one after it of nothing any more. */
static void check_recovers(site *s, kvt_status expected)
{
    kvt_status status = kvt_flush(s->store);
    assert_true(status == KVT_OK || status == expected);
    assert_int_equal(kvt_flush(s->store), KVT_OK);
    kvt_close(s->store);
    site_open(s);
    for (uint32_t i = 0; i < ENTRIES; i++)
        assert_int_equal(support_get(s->store, i, NULL), KVT_OK);
}

TEST(no_memory)
{
    site s;
    site_make(&s, NULL);
    put_some(&s, 0, ENTRIES / 2);
    assert_int_equal(kvt_flush(s.store), KVT_OK);
    allocations_left = 1;
    put_some(&s, ENTRIES / 2, ENTRIES);
    assert_int_equal(kvt_flush(s.store), KVT_E_MEMORY);
    allocations_left = -1;
    check_recovers(&s, KVT_E_MEMORY);
    kvt_close(s.store);
    support_remove_folder(s.folder);
}

/* Last, because its mounts are its own. */
TEST(no_room)
{
    char folder[64];
    support_make_folder(folder, sizeof folder);
    if (!small_filesystem_mount(folder, "size=1m")) {
        support_remove_folder(folder);
        skip();
    }
    site s;
    site_make(&s, folder);
    put_some(&s, 0, ENTRIES / 2);
    assert_int_equal(kvt_flush(s.store), KVT_OK);
    small_filesystem_fill(folder);
    put_some(&s, ENTRIES / 2, ENTRIES);
    /* The log has pages that it may use again: it takes some batches until it has to grow. */
    kvt_status status = kvt_flush(s.store);
    for (uint32_t i = 0; i < BATCHES && status == KVT_OK; i++) {
        put_some(&s, ENTRIES + i, ENTRIES + i + 1);
        status = kvt_flush(s.store);
    }
    assert_int_equal(status, KVT_E_SPACE);
    small_filesystem_make_room(folder);
    check_recovers(&s, KVT_E_SPACE);
    kvt_close(s.store);
    support_remove_folder(s.folder);
    small_filesystem_unmount(folder);
    support_remove_folder(folder);
}

int main(void)
{
    if (!failing_sqlite_install()) return 1;
    return tests_run();
}
