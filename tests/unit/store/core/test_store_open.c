/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_open.c - an open that is refused or fails harms nothing: locks, logs, links, modes,
 * forks.
 */
#include "estimator/profile/profile.h"
#include "open_support.h"

#include <kvterrace/names.h>

/* ---- locks ---- */

/* Flushed entries stay flushed when the process tries to open the store a second time, and another
 * program then reads the catalog as the last one that seems to have it. */
TEST(refused_second_open)
{
    open_site site;
    open_prepare(&site);
    int ends[2], status;
    char byte = 0;
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        kvt_store *store = open_now(&site), *second = NULL;
        for (uint32_t i = 0; i < OPEN_ENTRIES / 2; i++)
            if (support_put(store, i) != KVT_OK) _exit(2);
        if (kvt_store_flush(store) != KVT_OK) _exit(3);
        if (open_try(&site, &second) != KVT_E_LOCKED) _exit(4);
        if (write(ends[1], &byte, 1) != 1) _exit(5);
        for (;;) { /* until the other program has read */
            char go[96];
            snprintf(go, sizeof go, "%s/go", site.folder);
            if (access(go, F_OK) == 0) break;
            usleep(1000);
        }
        for (uint32_t i = OPEN_ENTRIES / 2; i < OPEN_ENTRIES; i++)
            if (support_put(store, i) != KVT_OK) _exit(6);
        if (kvt_store_flush(store) != KVT_OK) _exit(7);
        _exit(0);
    }
    assert_int_equal(read(ends[0], &byte, 1), 1);
    assert_int_equal(open_count_elsewhere(site.catalog, "SELECT count(*) FROM entry"),
                     OPEN_ENTRIES / 2);
    char go[96];
    snprintf(go, sizeof go, "%s/go", site.folder);
    int file = open(go, O_WRONLY | O_CREAT, 0600);
    assert_true(file >= 0);
    close(file);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    assert_int_equal(open_count_elsewhere(site.catalog, "SELECT count(*) FROM entry"),
                     OPEN_ENTRIES);
    open_expect_all(&site);
    close(ends[0]);
    close(ends[1]);
}

/* The same with a profile: opening it again must not drop the locks of who reads it. */
TEST(profile_keeps_locks)
{
    char folder[64], path[96], log[128];
    int ends[2], status;
    char byte = 0;
    support_make_folder(folder, sizeof folder);
    snprintf(path, sizeof path, "%s/profile.db", folder);
    snprintf(log, sizeof log, "%s-wal", path);
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        /* A profile that is written, and opened once more. */
        kvt_profile *profile = NULL, *other = NULL;
        sqlite3 *db = NULL;
        if (kvt_profile_open(path, KVT_PROFILE_WRITE, &profile, NULL, 0) != KVT_OK) _exit(2);
        if (sqlite3_open(path, &db) != SQLITE_OK) _exit(3);
        if (sqlite3_exec(db, "CREATE TABLE x(y); DROP TABLE x", NULL, NULL, NULL) != SQLITE_OK)
            _exit(4);
        if (kvt_profile_open(path, KVT_PROFILE_READ, &other, NULL, 0) != KVT_OK) _exit(5);
        kvt_profile_close(other);
        if (write(ends[1], &byte, 1) != 1) _exit(6);
        pause();
    }
    assert_int_equal(read(ends[0], &byte, 1), 1);
    assert_int_equal(access(log, F_OK), 0);
    assert_true(open_count_elsewhere(path, "SELECT count(*) FROM sqlite_schema") > 0);
    assert_int_equal(access(log, F_OK), 0); /* the reader was not the last one */
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    close(ends[0]);
    close(ends[1]);
}

/* Who was killed lets go of a file late: the next open waits. */
TEST(waits_for_a_late_lock)
{
    open_site site;
    open_prepare(&site);
    kvt_store_close(open_now(&site));
    int ends[2];
    char byte = 0;
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        int file = open(site.path, O_RDWR);
        if (flock(file, LOCK_EX) != 0 || write(ends[1], &byte, 1) != 1) _exit(1);
        usleep(1500000);
        _exit(0);
    }
    assert_int_equal(read(ends[0], &byte, 1), 1);
    kvt_store_close(open_now(&site));
    assert_int_equal(waitpid(child, NULL, 0), child);
    close(ends[0]);
    close(ends[1]);
}

/* ---- damage ---- */

/* SQLite ends a log at its first bad frame: what it forgets is a miss, and the store serves. */
TEST(damaged_log)
{
    static const long places[] = {4, 20, 40, 600, 5000};
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        open_site site;
        char log[128];
        open_prepare(&site);
        open_leave_unclosed(&site);
        snprintf(log, sizeof log, "%s-wal", site.catalog);
        assert_true(open_size(site.folder, "catalog.db-wal") > 65536);
        open_flip(log, places[i]);
        kvt_store *store = NULL;
        if (open_try(&site, &store) == KVT_OK) {
            for (uint32_t k = 0; k < OPEN_ENTRIES; k++)
                if (support_get(store, k, NULL) == KVT_MISS) assert_ok(support_put(store, k));
            assert_ok(kvt_store_flush(store));
            kvt_store_close(store);
            open_expect_all(&site);
        } else {
            assert_non_null(strstr(site.message, "kvterrace recover"));
        }
        support_remove_folder(site.folder);
    }
}

/* The log is gone: what the catalog itself holds stays, and the store opens. */
TEST(missing_log)
{
    open_site site;
    char log[128];
    open_prepare(&site);
    open_leave_unclosed(&site);
    snprintf(log, sizeof log, "%s-wal", site.catalog);
    assert_int_equal(unlink(log), 0);
    kvt_store_close(open_now(&site));
    open_leave_unclosed(&site);
    assert_int_equal(unlink(site.catalog), 0);
    open_refused(&site, KVT_E_CORRUPT, "log");
    assert_true(open_size(site.folder, "catalog.db-wal") > 0);
    assert_int_equal(open_size(site.folder, "catalog.db"), -1);
}

/* A failed open removes what it made and nothing else. */
TEST(failed_open_removes_its_own)
{
    open_site site;
    open_prepare(&site);
    site.device.path = "/nonexistent/member";
    open_refused(&site, KVT_E_GONE, "/nonexistent/member");
    assert_int_equal(open_size(site.folder, "catalog.db"), -1);
    int file = open(site.catalog, O_WRONLY | O_CREAT, 0600);
    assert_true(file >= 0);
    close(file);
    open_refused(&site, KVT_E_GONE, "/nonexistent/member");
    assert_true(open_size(site.folder, "catalog.db") >= 0);
    site.device.path = site.path;
    kvt_store_close(open_now(&site));
}

/* ---- files ---- */

TEST(modes)
{
    static const char *const ends[] = {"", "-wal", "-shm", "-lock"};
    open_site site;
    char profile_path[128];
    open_prepare(&site);
    mode_t mask = umask(0);
    kvt_store *store = open_now(&site);
    assert_ok(support_put(store, 1));
    assert_ok(kvt_store_flush(store));
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++)
        open_expect_mode(site.catalog, ends[i]);
    open_expect_mode(site.path, "");
    kvt_profile *profile = NULL;
    snprintf(profile_path, sizeof profile_path, "%s/profile.db", site.folder);
    assert_ok(kvt_profile_open(profile_path, KVT_PROFILE_WRITE, &profile, NULL, 0));
    open_expect_mode(profile_path, "");
    kvt_profile_close(profile);
    kvt_store_close(store);
    umask(mask);
}

TEST(links)
{
    open_site site;
    char member[128], catalog[128];
    open_prepare(&site);
    open_put_all(open_now(&site)); /* left open: below it is refused for the links alone */
    snprintf(member, sizeof member, "%s/member-link", site.folder);
    snprintf(catalog, sizeof catalog, "%s/catalog-link", site.folder);
    assert_int_equal(symlink("ssd", member), 0);
    assert_int_equal(symlink("catalog.db", catalog), 0);
    site.options.durability.catalog_path = catalog;
    open_refused(&site, KVT_E_ARGUMENT, "symbolic link");
    site.options.follow_symlinks = true;
    open_refused(&site, KVT_E_LOCKED, "another store"); /* the same lock, whatever the name */
    site.options.follow_symlinks = false;

    open_prepare(&site);
    kvt_store *store = open_now(&site);
    open_put_all(store);
    kvt_store_close(store);
    snprintf(member, sizeof member, "%s/member-link", site.folder);
    snprintf(catalog, sizeof catalog, "%s/catalog-link", site.folder);
    assert_int_equal(symlink("ssd", member), 0);
    assert_int_equal(symlink("catalog.db", catalog), 0);
    site.device.path = member;
    open_refused(&site, KVT_E_ARGUMENT, "symbolic link");
    site.options.durability.catalog_path = catalog;
    site.options.follow_symlinks = true;
    open_expect_all(&site);
    assert_int_equal(unlink(member), 0);
    assert_int_equal(symlink("nowhere", member), 0);
    site.options.format = true; /* the member is missing by design */
    open_refused(&site, KVT_E_GONE, "leads nowhere");
}

/* The store's own database is no member, whatever store.format says. */
TEST(database_as_member)
{
    open_site site;
    open_prepare(&site);
    kvt_store_close(open_now(&site));
    site.device.path = site.catalog;
    site.device.capacity_bytes = 0;
    site.options.format = true;
    open_refused(&site, KVT_E_ARGUMENT, "catalog");
}

/* ---- sizes ---- */

TEST(odd_capacity)
{
    kvt_store_options options;
    kvt_store_options_init(&options);
    options.limits.put_staging_bytes = 0; /* a put says how its write went */
    options.policy = "lru";
    options.limits.staging_bytes = 8 << 20;
    options.tiers[KVT_TIER_DRAM].capacity_bytes = (4 << 20) + 1024;
    char message[256] = "x";
    kvt_store *store = NULL;
    kvt_status status = kvt_store_open(&options, &store, message, sizeof message);
    if (status != KVT_OK) fail_msg("%s: %s", kvt_status_name(status), message);
    assert_non_null(strstr(message, "tier dram"));
    assert_non_null(strstr(message, "rounded down to 4194304"));
    assert_int_equal(support_stats(store).tiers[KVT_TIER_DRAM].capacity_bytes, 4 << 20);
    kvt_store_close(store);
    options.tiers[KVT_TIER_DRAM].capacity_bytes = 4 << 20;
    assert_ok(kvt_store_open(&options, &store, message, sizeof message));
    assert_string_equal(message, "");
    kvt_store_close(store);
}

/* A file system without room behind the labels. */
static kvt_status open_full_device(const kvt_device_config *config, kvt_device **device_out,
                                   char *message, size_t message_size)
{
    kvt_status status = support_fault_open(config, device_out, message, message_size);
    const support_fault *fault = stand_in_context(config);
    const tiers_fault_rule full = {.action = TIERS_FAULT_FAIL,
                                   .kinds = TIERS_FAULT_WRITES,
                                   .offset = 8192,
                                   .bytes = fault->capacity_bytes - 8192,
                                   .status = KVT_E_SPACE};
    if (status == KVT_OK) status = tiers_fault_add(fault->device, &full);
    return status;
}

TEST(full_file_system)
{
    static const kvt_device_ops full_ops = {.struct_size = sizeof full_ops,
                                            .abi_version = KVT_DEVICE_ABI,
                                            .name = "full",
                                            .open = open_full_device};
    open_site site;
    open_prepare(&site);
    support_fault fault = {.capacity_bytes = 8 << 20, .path = site.path};
    site.device = support_fault_config(&fault, "ssd");
    fault.stand_in.ops = &full_ops;
    kvt_store *store = open_now(&site);
    assert_true(support_put(store, 1) < 0);
    kvt_store_close(store);
}

/* ---- forks ---- */

/* A child has no part in its parent's store, hinders no reopen, and harms nothing. */
TEST(fork)
{
    open_site site;
    int ends[2], status;
    open_prepare(&site);
    kvt_store *store = open_now(&site);
    open_put_all(store);
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        close(ends[1]);
        kvt_store_close(store); /* the parent's: it ends nothing */
        char byte;              /* lives until the parent has closed and opened again */
        _exit(read(ends[0], &byte, 1) == 0 ? 0 : 1);
    }
    support_gets(store, 0, OPEN_ENTRIES);
    kvt_store_close(store);
    open_expect_all(&site);
    close(ends[0]);
    close(ends[1]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    open_expect_all(&site);
}
