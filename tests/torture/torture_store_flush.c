/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torture_store_flush.c - flushes whose catalog finds no memory, or no room in its file system:
 * what kvt_store_flush says, and that what is flushed afterwards comes back.
 */
#include "failing_sqlite.h"
#include "small_filesystem.h"
#include "store_site.h"

enum { ENTRIES = 12, BATCHES = 400 };

static site *site_make(const char *catalog_folder)
{
    site *s = site_prepare((site_shape){.disks = 1, .disk_bytes = 32 << 20, .unit_bytes = 4096});
    if (catalog_folder != NULL)
        snprintf(s->catalog, sizeof s->catalog, "%s/catalog.db", catalog_folder);
    site_open(s);
    return s;
}

static void put_some(site *s, uint32_t from, uint32_t to)
{
    support_puts(s->store, from, to);
}

/* The next flush tells of the batch that failed, the one after it of nothing any more. */
static void check_recovers(site *s, kvt_status expected)
{
    kvt_status status = kvt_store_flush(s->store);
    assert_true(status == KVT_OK || status == expected);
    assert_ok(kvt_store_flush(s->store));
    site_reopen(s);
    assert_int_equal(site_hits(s, ENTRIES), ENTRIES);
}

TEST(no_memory)
{
    site *s = site_make(NULL);
    put_some(s, 0, ENTRIES / 2);
    assert_ok(kvt_store_flush(s->store));
    allocations_left = 1;
    put_some(s, ENTRIES / 2, ENTRIES);
    assert_int_equal(kvt_store_flush(s->store), KVT_E_MEMORY);
    allocations_left = -1;
    check_recovers(s, KVT_E_MEMORY);
}

/* Last, because its mounts are its own. */
TEST(no_room)
{
    char folder[64];
    support_make_folder(folder, sizeof folder);
    if (!small_filesystem_mount(folder, "size=1m")) skip();
    site *s = site_make(folder);
    put_some(s, 0, ENTRIES / 2);
    assert_ok(kvt_store_flush(s->store));
    small_filesystem_fill(folder);
    put_some(s, ENTRIES / 2, ENTRIES);
    /* The log has pages that it may use again: it takes some batches until it has to grow. */
    kvt_status status = kvt_store_flush(s->store);
    for (uint32_t i = 0; i < BATCHES && status == KVT_OK; i++) {
        put_some(s, ENTRIES + i, ENTRIES + i + 1);
        status = kvt_store_flush(s->store);
    }
    assert_int_equal(status, KVT_E_SPACE);
    small_filesystem_make_room(folder);
    check_recovers(s, KVT_E_SPACE);
    site_end(s);
    small_filesystem_unmount(folder);
}

int main(void)
{
    if (!failing_sqlite_install()) return 1;
    return tests_run();
}
