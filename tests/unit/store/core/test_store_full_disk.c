/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_full_disk.c - an open on a file system that is full, at each page that it may lack:
 * catalog, lock files, members, labels, measurements and the watch file either come whole or the
 * open fails with a message; nothing but the labels of a sparse member stays, and an open that
 * finds room afterwards has what was flushed.
 */
#include "store_support.h"

#include "small_filesystem.h"

#include <dirent.h>
#include <sys/stat.h>

enum { PAGE = 4096, MEMBER_BYTES = 4 << 20, ENTRIES = 4 };

typedef struct site {
    char folder[64], member[96], catalog[96], watch[96];
    kvt_device_config device;
    kvt_store_options options;
} site;

static void site_make(site *s, bool sparse)
{
    *s = (site){.folder = "/tmp/kvt-full-XXXXXX"};
    assert_non_null(mkdtemp(s->folder));
    snprintf(s->member, sizeof s->member, "%s/m0", s->folder);
    snprintf(s->catalog, sizeof s->catalog, "%s/catalog.db", s->folder);
    snprintf(s->watch, sizeof s->watch, "%s/watch", s->folder);
    s->device = support_file_config("m0", s->member, MEMBER_BYTES);
    s->device.sparse = sparse;
    kvt_store_options_init(&s->options);
    s->options.policy = "lru";
    s->options.limits.tick_seconds = 0;
    s->options.limits.put_staging_bytes = 0;
    s->options.limits.staging_bytes = 4 << 20;
    s->options.durability.catalog_path = s->catalog;
    s->options.watch.path = s->watch;
    s->options.tiers[KVT_TIER_SSD].devices = &s->device;
    s->options.tiers[KVT_TIER_SSD].device_count = 1;
}

/* Gives the file system another size. */
static void resize(const site *s, uint64_t bytes)
{
    char option[64];
    snprintf(option, sizeof option, "size=%llu", (unsigned long long)bytes);
    assert_int_equal(mount("none", s->folder, "tmpfs", MS_REMOUNT, option), 0);
}

static uint64_t blocks_of(const char *path)
{
    struct stat facts;
    return stat(path, &facts) == 0 ? (uint64_t)facts.st_blocks * 512 : 0;
}

/* An open with so many bytes of room, then one with plenty. What the first one kept, the second one
 * has. True when the first one succeeded. */
static bool open_with(const site *s, uint64_t bytes)
{
    char message[320] = "x";
    bool flushed[ENTRIES] = {false};
    kvt_store *store = NULL;
    resize(s, bytes);
    const kvt_status first = kvt_store_open(&s->options, &store, message, sizeof message);
    if (first == KVT_OK) {
        /* A member whose file system has no room for all of it is named. */
        assert_true(message[0] == '\0' || strstr(message, "m0") != NULL);
        assert_true(!s->device.sparse || bytes >= MEMBER_BYTES || message[0] != '\0');
        assert_true(!s->device.sparse || blocks_of(s->member) <= 2 * PAGE);
        for (uint32_t i = 0; i < ENTRIES; i++)
            flushed[i] = support_put(store, i) == KVT_OK && kvt_store_flush(store) == KVT_OK;
        kvt_store_close(store);
    } else if (message[0] == '\0') {
        fail_msg("%llu bytes: %s without a message", (unsigned long long)bytes,
                 kvt_status_name(first));
    }
    resize(s, 64 << 20);
    const kvt_status second = kvt_store_open(&s->options, &store, message, sizeof message);
    if (second != KVT_OK)
        fail_msg("after %s with %llu bytes: %s, %s", kvt_status_name(first),
                 (unsigned long long)bytes, kvt_status_name(second), message);
    for (uint32_t i = 0; i < ENTRIES; i++)
        if (flushed[i]) assert_ok(support_get(store, i, NULL));
    assert_ok(support_put(store, ENTRIES));
    assert_ok(kvt_store_flush(store));
    kvt_store_close(store);
    /* Remove what lies in the folder, which stays. */
    DIR *entries = opendir(s->folder);
    assert_non_null(entries);
    for (const struct dirent *entry; (entry = readdir(entries)) != NULL;) {
        char path[384];
        if (entry->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%s/%s", s->folder, entry->d_name);
        assert_int_equal(unlink(path), 0);
    }
    closedir(entries);
    return first == KVT_OK;
}

static void check_each_page(bool sparse)
{
    site s;
    site_make(&s, sparse);
    if (!small_filesystem_mount(s.folder, "size=64m")) skip();
    /* From no room at all to the first size at which nothing is lacking any more, the member of a
     * whole file in one step. */
    uint32_t succeeded = 0, failed = 0;
    for (uint64_t pages = 1; succeeded < 10; pages++) {
        const bool opened = open_with(&s, pages * PAGE);
        succeeded += opened;
        failed += !opened;
        if (pages == 24 && !sparse) pages += MEMBER_BYTES / PAGE - 24;
    }
    assert_true(failed > 8);
    small_filesystem_unmount(s.folder);
    support_remove_folder(s.folder);
}

TEST(a_sparse_member)
{
    check_each_page(true);
}

TEST(a_whole_member)
{
    check_each_page(false);
}

/* With half of the member's room an open leaves that room to entries. */
TEST(measuring_leaves_the_room_to_entries)
{
    site s;
    char message[320];
    kvt_store *store = NULL;
    site_make(&s, true);
    s.device.capacity_bytes = 64 << 20;
    if (!small_filesystem_mount(s.folder, "size=2m")) skip();
    assert_ok(kvt_store_open(&s.options, &store, message, sizeof message));
    assert_non_null(strstr(message, "free"));
    uint32_t kept = 0;
    for (uint32_t i = 0; i < 64; i++)
        kept += support_put(store, i) == KVT_OK && kvt_store_flush(store) == KVT_OK;
    assert_true(kept >= 32); /* of 32 KiB at most: 1 MiB of 2 */
    for (uint32_t i = 0, found = 0; i < 64; i++) {
        found += support_get(store, i, NULL) == KVT_OK;
        if (i == 63) assert_true(found >= kept);
    }
    kvt_store_close(store);
    small_filesystem_unmount(s.folder);
    support_remove_folder(s.folder);
}
