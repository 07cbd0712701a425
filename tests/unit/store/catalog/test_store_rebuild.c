/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_rebuild.c - a catalog that is lost or damaged is rebuilt from the devices: every entry
 * that was stored is there with its bytes, whatever became of the catalog; and what is lost with a
 * member is what lay there.
 */
#include "rebuild_site.h"

#include <signal.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <sys/wait.h>

TEST_ALL(group_setup, NULL);
TEST_EACH(setup, teardown);

TEST(catalog_deleted)
{
    rebuild_site *site = *state;
    remove_catalog(site);
    recover_whole(site);
    uint32_t back = check_all(site);
    print_message("%llu headers, %llu entries, %u deleted ones came back\n",
                  (unsigned long long)report.headers, (unsigned long long)report.entries, back);
    /* A second life, and again without its catalog: what is put then is newer. */
    kvt_store *store = site_open(site);
    for (uint32_t i = 0; i < 20; i++) {
        kvt_key key = support_key(i);
        kvt_status status = kvt_store_delete(store, &key);
        assert_true(status == KVT_OK || status == KVT_MISS);
        assert_ok(entry_put(store, i, 1));
    }
    kvt_store_close(store);
    remove_catalog(site);
    recover_whole(site);
    store = site_open(site);
    for (uint32_t i = 0; i < 20; i++)
        assert_int_equal(entry_get(store, i), 1);
    kvt_store_close(store);
}

/* Puts other bytes under some keys in a life that is killed before a row of them is committed. */
static void undo_puts(rebuild_site *site, uint32_t from, uint32_t to)
{
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        sqlite3 *other = NULL;
        kvt_store *store = site_open(site);
        if (sqlite3_open(site->catalog, &other) != SQLITE_OK ||
            sqlite3_exec(other, "BEGIN IMMEDIATE", NULL, NULL, NULL) != SQLITE_OK)
            _exit(1);
        for (uint32_t i = from; i < to; i++) {
            const kvt_key key = support_key(i);
            (void)!kvt_store_delete(store, &key);
            if (entry_put(store, i, 2) != KVT_OK) _exit(2);
        }
        (void)raise(SIGKILL);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
}

/* What a crash has undone does not come back once the store has been opened, whatever was put
 * since, over several crashes; what is put in the last life counts. */
TEST(puts_that_a_crash_has_undone)
{
    rebuild_site *site = *state;
    static uint8_t last[REBUILD_ENTRIES];
    memcpy(last, rebuild_last, sizeof last);
    memset(rebuild_last, 2, sizeof rebuild_last);
    uint8_t there[40];
    for (uint32_t round = 0; round < 3; round++) {
        undo_puts(site, 10 * round, 10 * round + 20);
        kvt_store *store = site_open(site);
        for (uint32_t i = 0; i < 40; i++) {
            there[i] = entry_get(store, i);
            assert_int_equal(there[i], rebuild_version[i]);
        }
        /* Serials of this life are above those of what was undone. */
        const kvt_key key = support_key(60 + round);
        (void)!kvt_store_delete(store, &key);
        assert_ok(entry_put(store, 60 + round, 1));
        assert_ok(kvt_store_flush(store));
        kvt_store_close(store);
    }
    remove_catalog(site);
    recover_whole(site);
    kvt_store *store = site_open(site);
    uint32_t compared = 0;
    for (uint32_t i = 0; i < 40; i++) {
        if (there[i] == 0) continue;
        assert_int_equal(entry_get(store, i), there[i]);
        compared++;
    }
    assert_true(compared > 20);
    kvt_store_close(store);
    /* A life that no open has followed: its puts are the newest. */
    undo_puts(site, 0, 20);
    remove_catalog(site);
    recover_whole(site);
    store = site_open(site);
    for (uint32_t i = 0; i < 20; i++)
        assert_int_equal(entry_get(store, i), 2);
    kvt_store_close(store);
    memcpy(rebuild_last, last, sizeof last);
}

/* Flips bits of the catalog, or cuts it off: as long as it opens it is not lost, and else the old
 * file is kept, and the new one has everything. */
TEST(catalog_damaged)
{
    rebuild_site *site = *state;
    struct stat facts, kept;
    assert_int_equal(stat(site->catalog, &facts), 0);
    for (int round = 0; round < 2; round++) {
        if (round == 0) {
            int file = open(site->catalog, O_RDWR);
            unsigned char bytes[512];
            assert_true(file >= 0);
            for (off_t at = 0; at < facts.st_size; at += 4096) {
                assert_true(pread(file, bytes, sizeof bytes, at) == (ssize_t)sizeof bytes);
                for (size_t i = at == 0 ? 16 : 0; i < sizeof bytes; i += 3)
                    bytes[i] ^= 0x24;
                assert_true(pwrite(file, bytes, sizeof bytes, at) == (ssize_t)sizeof bytes);
            }
            close(file);
        } else {
            assert_int_equal(stat(site->catalog, &facts), 0);
            assert_int_equal(truncate(site->catalog, facts.st_size / 2 + 100), 0);
        }
        kvt_store *store = NULL;
        kvt_status status =
            kvt_store_open(&site->options, &store, site->message, sizeof site->message);
        assert_true(status < 0);
        assert_int_equal(stat(site->catalog, &facts), 0);
        assert_int_equal(recover_with(site, false, false), KVT_EXISTS);
        assert_non_null(strstr(site->message, "replace"));
        assert_ok(recover_with(site, true, false));
        assert_true(report.written && report.complete);
        char wanted[128];
        snprintf(wanted, sizeof wanted, "%s.damaged-%d", site->catalog, round + 1);
        assert_string_equal(report.kept, wanted);
        assert_int_equal(stat(wanted, &kept), 0);
        assert_true(kept.st_ino == facts.st_ino && kept.st_size == facts.st_size);
        (void)check_all(site);
    }
}

/* The store dies without closing; its catalog and log are lost. */
TEST(killed)
{
    rebuild_site *site = *state;
    int ends[2];
    char byte;
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        kvt_store *store = NULL;
        if (kvt_store_open(&site->options, &store, NULL, 0) != KVT_OK) _exit(2);
        for (uint32_t i = 0; i < REBUILD_ENTRIES; i += 3) {
            kvt_key key = support_key(i);
            kvt_status status = kvt_store_delete(store, &key);
            if (status != KVT_OK && status != KVT_MISS) _exit(3);
            if (entry_put(store, i, 1) != KVT_OK) _exit(4);
        }
        if (kvt_store_flush(store) != KVT_OK || write(ends[1], "x", 1) != 1) _exit(5);
        for (;;)
            pause();
    }
    assert_int_equal(read(ends[0], &byte, 1), 1);
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, NULL, 0), child);
    close(ends[0]);
    close(ends[1]);
    remove_catalog(site);
    kvt_status status = KVT_E_LOCKED;
    while (status == KVT_E_LOCKED)
        status = recover_with(site, false, false);
    assert_ok(status);
    assert_true(report.complete);
    kvt_store *store = site_open(site);
    for (uint32_t i = 0; i < REBUILD_ENTRIES; i++) {
        uint8_t version = entry_get(store, i);
        if (i % 3 == 0) assert_int_equal(version, 1);
        if (i % 3 != 0 && rebuild_version[i] != 0) assert_int_equal(version, rebuild_version[i]);
    }
    kvt_store_close(store);
}

TEST(dry_run_and_refusals)
{
    rebuild_site *site = *state;
    char command[1024], before[128], after[128];
    snprintf(before, sizeof before, "%s.before", site->folder);
    snprintf(after, sizeof after, "%s.after", site->folder);
    remove_catalog(site);
    snprintf(command, sizeof command, "cd '%s' && ls >'../%s' && md5sum * >>'../%s'", site->folder,
             before, before);
    assert_int_equal(system(command), 0);
    assert_ok(recover_with(site, false, true));
    assert_true(!report.written && report.complete && report.entries > 0);
    uint64_t entries = report.entries;
    snprintf(command, sizeof command,
             "cd '%s' && ls >'../%s' && md5sum * >>'../%s' && cmp '../%s' '../%s'", site->folder,
             after, after, before, after);
    assert_int_equal(system(command), 0);
    assert_int_equal(unlink(before) | unlink(after), 0);
    recover_whole(site);
    assert_int_equal(report.entries, entries);
    /* No draft stays, and no old catalog was there to be kept. */
    assert_string_equal(report.kept, "");
    snprintf(command, sizeof command, "ls '%s' | grep -c recovering >/dev/null", site->folder);
    assert_int_not_equal(system(command), 0);
    assert_int_equal(recover_with(site, false, false), KVT_EXISTS);
    kvt_store *store = site_open(site);
    assert_int_equal(recover_with(site, true, false), KVT_E_LOCKED);
    assert_int_equal(recover_with(site, true, true), KVT_E_LOCKED);
    kvt_store_close(store);
    report.entries = entries;
    (void)check_all(site); /* it was left as it is */
    site->options.durability.catalog_path = NULL;
    assert_int_equal(recover_with(site, false, false), KVT_E_ARGUMENT);
    site->options.durability.catalog_path = "nowhere/at/all/catalog.db";
    assert_true(recover_with(site, false, false) < 0);
    site->options.durability.catalog_path = site->catalog;
    site->options.tiers[KVT_TIER_SSD].device_count = 0;
    assert_int_equal(recover_with(site, true, false), KVT_E_ARGUMENT);
}

static bool stop_at_once(void *context, kvt_recover_stage stage, uint64_t done, uint64_t total)
{
    assert_true(done <= total);
    return stage != *(kvt_recover_stage *)context;
}

TEST(cancelled)
{
    rebuild_site *site = *state;
    remove_catalog(site);
    for (int i = 0; i < 2; i++) {
        kvt_recover_stage stage = i == 0 ? KVT_RECOVER_SCAN : KVT_RECOVER_VERIFY;
        kvt_recover_options options;
        kvt_recover_options_init(&options);
        options.progress = stop_at_once;
        options.context = &stage;
        kvt_status status = kvt_store_recover(&site->options, &options, &report, site->message,
                                              sizeof site->message);
        if (i == 0 && status == KVT_OK) { /* the scan was done before it was asked */
            remove_catalog(site);
            continue;
        }
        assert_int_equal(status, KVT_E_CANCELLED);
        assert_int_equal(access(site->catalog, F_OK), -1);
    }
    recover_whole(site);
    (void)check_all(site);
}

TEST(missing_member)
{
    rebuild_site *site = *state;
    uint64_t members[REBUILD_ENTRIES];
    char kept[128];
    note_members(site, members);
    snprintf(kept, sizeof kept, "%s/kept", site->folder);
    remove_catalog(site);
    assert_int_equal(rename(site->paths[2], kept), 0);
    assert_ok(recover_with(site, false, false));
    assert_true(report.written && !report.complete && report.absent > 0);
    assert_int_equal(report.devices[2].state, KVT_RECOVER_MISSING);
    assert_int_equal(access(site->paths[2], F_OK), -1); /* no file was made in its place */
    /* It comes back, and the rebuilding is done again. */
    assert_int_equal(rename(kept, site->paths[2]), 0);
    assert_ok(recover_with(site, true, false));
    assert_true(report.complete);
    (void)check_all(site);
    remove_catalog(site);
    assert_int_equal(rename(site->paths[2], kept), 0);
    assert_ok(recover_with(site, false, false));
    check_without(site, 2, members);
}

/* A member of another store, and one that is in another's place, do not count; nor do they hurt. */
TEST(foreign_member)
{
    rebuild_site *site = *state, other;
    char folder[64], kept[128];
    uint64_t members[REBUILD_ENTRIES];
    note_members(site, members);
    memset(&other, 0, sizeof other);
    support_make_folder(folder, sizeof folder);
    site_configure(&other, folder);
    kvt_store *store = site_open(&other);
    for (uint32_t i = 0; i < 30; i++)
        assert_ok(entry_put(store, i, 2));
    kvt_store_close(store);
    remove_catalog(site);
    snprintf(kept, sizeof kept, "%s/kept", site->folder);
    assert_int_equal(rename(site->paths[2], kept), 0);
    assert_int_equal(rename(other.paths[2], site->paths[2]), 0);
    assert_ok(recover_with(site, false, false));
    assert_true(!report.complete && report.absent > 0);
    assert_int_equal(report.devices[2].state, KVT_RECOVER_FOREIGN);
    site->options.format = true; /* the other store's member is taken over */
    check_without(site, 2, members);
    site->options.format = false;
    remove_catalog(site);
    const char *first = site->devices[1].path;
    site->devices[1].path = site->devices[0].path;
    site->devices[0].path = first;
    site->options.tiers[KVT_TIER_SSD].device_count = 2;
    assert_int_equal(recover_with(site, false, false), KVT_MISS);
    assert_int_equal(report.devices[1].state, KVT_RECOVER_MISPLACED);
    assert_int_equal(access(site->catalog, F_OK), -1);
}

static void copy_file(const char *source, const char *target)
{
    char command[300];
    snprintf(command, sizeof command, "cp '%s' '%s'", source, target);
    assert_int_equal(system(command), 0);
}

/* A member that was away during an open which served, one epoch or two, is stale. One whose label
 * an open that was cut short did not get to counts. */
TEST(stale_member)
{
    rebuild_site *site = *state;
    uint64_t members[REBUILD_ENTRIES];
    char kept[128];
    snprintf(kept, sizeof kept, "%s/kept", site->folder);
    copy_file(site->paths[1], kept);
    kvt_store_close(site_open(site)); /* labels of a new epoch, nothing placed */
    copy_file(kept, site->paths[1]);
    remove_catalog(site);
    recover_whole(site);
    assert_true(report.devices[1].epoch + 1 == report.epoch);
    (void)check_all(site); /* and nothing was taken back empty */
    copy_file(site->paths[1], kept);
    kvt_store *store = site_open(site);
    for (uint32_t i = 1; i < REBUILD_ENTRIES; i += 5) { /* deleted ones, of all sizes */
        kvt_status status = rebuild_version[i] == 0 ? entry_put(store, i, 1) : KVT_OK;
        assert_true(status == KVT_OK || status == KVT_EXISTS);
    }
    kvt_store_close(store);
    note_members(site, members);
    copy_file(kept, site->paths[1]);
    remove_catalog(site);
    assert_ok(recover_with(site, false, false));
    assert_int_equal(report.devices[1].state, KVT_RECOVER_STALE);
    assert_true(!report.complete && report.absent > 0);
    check_without(site, 1, members);
}
