/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_open.c - an open that is refused or fails harms nothing: locks, logs, links, modes,
 * forks.
 */
#include "store_support.h"

#include <fcntl.h>
#include <signal.h>
#include <sqlite3.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define OPEN_ENTRIES 20u

typedef struct open_site {
    char folder[64];
    char catalog[96];
    char path[96];
    char message[256];
    kvt_device_config device;
    kvt_store_options options;
} open_site;

static void open_prepare(open_site *site)
{
    memset(site, 0, sizeof *site);
    support_make_folder(site->folder, sizeof site->folder);
    snprintf(site->catalog, sizeof site->catalog, "%s/catalog.db", site->folder);
    snprintf(site->path, sizeof site->path, "%s/ssd", site->folder);
    kvt_store_options_init(&site->options);
    site->options.staging_bytes = 8 << 20;
    site->options.policy = "lru";
    site->options.tick_seconds = 0;
    site->options.catalog_path = site->catalog;
    site->device = support_file_config("ssd", site->path, 8 << 20);
    site->device.sparse = true;
    site->options.tiers[KVT_TIER_SSD].devices = &site->device;
    site->options.tiers[KVT_TIER_SSD].device_count = 1;
    site->options.tiers[KVT_TIER_SSD].unit_bytes = 16384;
}

static kvt_status open_try(open_site *site, kvt_store **store_out)
{
    return kvt_open(&site->options, store_out, site->message, sizeof site->message);
}

static kvt_store *open_now(open_site *site)
{
    kvt_store *store = NULL;
    kvt_status status = open_try(site, &store);
    if (status != KVT_OK) fail_msg("%s: %s", kvt_status_name(status), site->message);
    return store;
}

static void open_put_all(kvt_store *store)
{
    for (uint32_t i = 0; i < OPEN_ENTRIES; i++) {
        assert_int_equal(support_put(store, i), KVT_OK);
        assert_int_equal(kvt_flush(store), KVT_OK); /* a transaction each */
    }
}

static void open_expect_all(open_site *site)
{
    kvt_store *store = open_now(site);
    for (uint32_t i = 0; i < OPEN_ENTRIES; i++)
        assert_int_equal(support_get(store, i, NULL), KVT_OK);
    kvt_close(store);
}

static void open_refused(open_site *site, kvt_status expected, const char *part)
{
    kvt_store *store = NULL;
    kvt_status status = open_try(site, &store);
    if (status != expected || strstr(site->message, part) == NULL)
        fail_msg("%s: %s", kvt_status_name(status), site->message);
}

/* A child that fills the store and ends like one that is killed. */
static void open_leave_unclosed(open_site *site)
{
    int status;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        open_put_all(open_now(site));
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static long open_size(const char *folder, const char *name)
{
    char path[200];
    struct stat facts;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return stat(path, &facts) == 0 ? (long)facts.st_size : -1;
}

static void open_read_file(const char *path, char *out, size_t bytes)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fread(out, 1, bytes, file), bytes);
    fclose(file);
}

/* Runs a program that reads the database in another process. */
static int open_count_elsewhere(const char *database, const char *sql)
{
    int status;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        sqlite3 *db = NULL;
        sqlite3_stmt *statement = NULL;
        if (sqlite3_open(database, &db) != SQLITE_OK) _exit(255);
        sqlite3_busy_timeout(db, 5000);
        if (sqlite3_prepare_v2(db, sql, -1, &statement, NULL) != SQLITE_OK) _exit(254);
        if (sqlite3_step(statement) != SQLITE_ROW) _exit(253);
        int rows = sqlite3_column_int(statement, 0);
        sqlite3_finalize(statement);
        sqlite3_close(db);
        _exit(rows);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

/* ---- locks ---- */

/* Flushed entries stay flushed when the process tries to open the store a second time, and another
 * program then reads the catalog as the last one that seems to have it. */
static void test_refused_second_open(void **state)
{
    (void)state;
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
        if (kvt_flush(store) != KVT_OK) _exit(3);
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
        if (kvt_flush(store) != KVT_OK) _exit(7);
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
    support_remove_folder(site.folder);
}

/* A profile that is written, and opened once more. */
static void open_hold_profile(const char *path)
{
    kvt_profile *profile = NULL, *other = NULL;
    sqlite3 *db = NULL;
    if (kvt_profile_open(path, KVT_PROFILE_WRITE, &profile, NULL, 0) != KVT_OK) _exit(2);
    if (sqlite3_open(path, &db) != SQLITE_OK) _exit(3);
    if (sqlite3_exec(db, "CREATE TABLE x(y); DROP TABLE x", NULL, NULL, NULL) != SQLITE_OK)
        _exit(4);
    if (kvt_profile_open(path, KVT_PROFILE_READ, &other, NULL, 0) != KVT_OK) _exit(5);
    kvt_profile_close(other);
}

/* The same with a profile: opening it again must not drop the locks of who reads it. */
static void test_profile_keeps_locks(void **state)
{
    (void)state;
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
        open_hold_profile(path);
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
    support_remove_folder(folder);
}

/* Who was killed lets go of a file late: the next open waits. */
static void test_waits_for_a_late_lock(void **state)
{
    (void)state;
    open_site site;
    open_prepare(&site);
    kvt_close(open_now(&site));
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
    kvt_close(open_now(&site));
    assert_int_equal(waitpid(child, NULL, 0), child);
    close(ends[0]);
    close(ends[1]);
    support_remove_folder(site.folder);
}

/* ---- damage ---- */

static void open_flip(const char *path, long at)
{
    int file = open(path, O_RDWR);
    assert_true(file >= 0);
    unsigned char byte;
    assert_int_equal(pread(file, &byte, 1, at), 1);
    byte ^= 0xff;
    assert_int_equal(pwrite(file, &byte, 1, at), 1);
    close(file);
}

/* A log that is damaged in front of what was acknowledged is told, and everything stays. */
static void test_damaged_log(void **state)
{
    (void)state;
    static const long places[] = {4, 20, 40, 600, 5000};
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        static char before[2][1 << 16], after[2][1 << 16];
        open_site site;
        char log[128];
        open_prepare(&site);
        open_leave_unclosed(&site);
        snprintf(log, sizeof log, "%s-wal", site.catalog);
        assert_true(open_size(site.folder, "catalog.db-wal") > 65536);
        open_flip(log, places[i]);
        size_t catalog_bytes = (size_t)open_size(site.folder, "catalog.db");
        if (catalog_bytes > 65536) catalog_bytes = 65536;
        open_read_file(site.catalog, before[0], catalog_bytes);
        open_read_file(log, before[1], 65536);
        for (int again = 0; again < 2; again++)
            open_refused(&site, KVT_E_CORRUPT, "recover");
        assert_null(strstr(site.message, "store.format"));
        open_read_file(site.catalog, after[0], catalog_bytes);
        open_read_file(log, after[1], 65536);
        assert_memory_equal(before[0], after[0], catalog_bytes);
        assert_memory_equal(before[1], after[1], 65536);
        open_flip(log, places[i]);
        open_expect_all(&site);
        support_remove_folder(site.folder);
    }
}

/* The log is gone: what the catalog itself holds stays, and the store opens. */
static void test_missing_log(void **state)
{
    (void)state;
    open_site site;
    char log[128];
    open_prepare(&site);
    open_leave_unclosed(&site);
    snprintf(log, sizeof log, "%s-wal", site.catalog);
    assert_int_equal(unlink(log), 0);
    kvt_close(open_now(&site));
    open_leave_unclosed(&site);
    assert_int_equal(unlink(site.catalog), 0);
    open_refused(&site, KVT_E_CORRUPT, "log");
    assert_true(open_size(site.folder, "catalog.db-wal") > 0);
    assert_int_equal(open_size(site.folder, "catalog.db"), -1);
    support_remove_folder(site.folder);
}

/* A failed open removes what it made and nothing else. */
static void test_failed_open_removes_its_own(void **state)
{
    (void)state;
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
    kvt_close(open_now(&site));
    support_remove_folder(site.folder);
}

/* ---- files ---- */

static void open_expect_mode(const char *path, const char *end)
{
    char name[200];
    struct stat facts;
    snprintf(name, sizeof name, "%s%s", path, end);
    assert_int_equal(stat(name, &facts), 0);
    assert_int_equal(facts.st_mode & 0777, 0600);
}

static void test_modes(void **state)
{
    (void)state;
    static const char *const ends[] = {"", "-wal", "-shm", "-lock"};
    open_site site;
    char profile_path[128];
    open_prepare(&site);
    mode_t mask = umask(0);
    kvt_store *store = open_now(&site);
    assert_int_equal(support_put(store, 1), KVT_OK);
    assert_int_equal(kvt_flush(store), KVT_OK);
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++)
        open_expect_mode(site.catalog, ends[i]);
    open_expect_mode(site.path, "");
    kvt_profile *profile = NULL;
    snprintf(profile_path, sizeof profile_path, "%s/profile.db", site.folder);
    assert_int_equal(kvt_profile_open(profile_path, KVT_PROFILE_WRITE, &profile, NULL, 0), KVT_OK);
    open_expect_mode(profile_path, "");
    kvt_profile_close(profile);
    kvt_close(store);
    umask(mask);
    support_remove_folder(site.folder);
}

static void test_links(void **state)
{
    (void)state;
    open_site site;
    char member[128], catalog[128];
    open_prepare(&site);
    open_put_all(open_now(&site)); /* left open: below it is refused for the links alone */
    snprintf(member, sizeof member, "%s/member-link", site.folder);
    snprintf(catalog, sizeof catalog, "%s/catalog-link", site.folder);
    assert_int_equal(symlink("ssd", member), 0);
    assert_int_equal(symlink("catalog.db", catalog), 0);
    site.options.catalog_path = catalog;
    open_refused(&site, KVT_E_ARGUMENT, "symbolic link");
    site.options.follow_symlinks = true;
    open_refused(&site, KVT_E_LOCKED, "another store"); /* the same lock, whatever the name */
    site.options.follow_symlinks = false;
    support_remove_folder(site.folder);

    open_prepare(&site);
    kvt_store *store = open_now(&site);
    open_put_all(store);
    kvt_close(store);
    snprintf(member, sizeof member, "%s/member-link", site.folder);
    snprintf(catalog, sizeof catalog, "%s/catalog-link", site.folder);
    assert_int_equal(symlink("ssd", member), 0);
    assert_int_equal(symlink("catalog.db", catalog), 0);
    site.device.path = member;
    open_refused(&site, KVT_E_ARGUMENT, "symbolic link");
    site.options.catalog_path = catalog;
    site.options.follow_symlinks = true;
    open_expect_all(&site);
    assert_int_equal(unlink(member), 0);
    assert_int_equal(symlink("nowhere", member), 0);
    site.options.format = true; /* the member is missing by design */
    open_refused(&site, KVT_E_GONE, "leads nowhere");
    support_remove_folder(site.folder);
}

/* The store's own database is no member, whatever store.format says. */
static void test_database_as_member(void **state)
{
    (void)state;
    open_site site;
    open_prepare(&site);
    kvt_close(open_now(&site));
    site.device.path = site.catalog;
    site.device.capacity_bytes = 0;
    site.options.format = true;
    open_refused(&site, KVT_E_ARGUMENT, "catalog");
    support_remove_folder(site.folder);
}

/* ---- rows ---- */

static void open_run_sql(const char *catalog, const char *sql)
{
    sqlite3 *db = NULL;
    char *fault = NULL;
    assert_int_equal(sqlite3_open(catalog, &db), SQLITE_OK);
    if (sqlite3_exec(db, sql, NULL, NULL, &fault) != SQLITE_OK) fail_msg("%s: %s", sql, fault);
    sqlite3_close(db);
}

static void open_fill_and_close(open_site *site)
{
    kvt_store *store = open_now(site);
    open_put_all(store);
    kvt_close(store);
}

/* Every key is either there with its bytes or can be put again. */
static void open_expect_usable(open_site *site, uint64_t dropped, const char *what)
{
    kvt_store *store = open_now(site);
    if (support_stats(store).recovery_drops != dropped)
        fail_msg("%s: %llu dropped", what, (unsigned long long)support_stats(store).recovery_drops);
    for (uint32_t i = 0; i < OPEN_ENTRIES; i++) {
        kvt_status status = support_get(store, i, NULL);
        if (status == KVT_MISS) status = support_put(store, i);
        if (status == KVT_OK) status = support_get(store, i, NULL);
        if (status != KVT_OK) fail_msg("%s: entry %u: %s", what, i, kvt_status_name(status));
    }
    assert_int_equal(kvt_flush(store), KVT_OK);
    kvt_close(store);
    store = open_now(site);
    assert_int_equal(support_stats(store).recovered, OPEN_ENTRIES);
    assert_int_equal(support_stats(store).recovery_drops, 0);
    kvt_close(store);
}

/* Any column of a row may be damaged, also so that it looks right. */
static void test_damaged_rows(void **state)
{
    (void)state;
    static const char *const changes[] = {"generation=generation+1",
                                          "parent=key",
                                          "layers=layers*2",
                                          "kv_heads=kv_heads*2",
                                          "head_dim=32",
                                          "dtype=3-dtype",
                                          "axis_order=1-axis_order",
                                          "tokens=tokens+1",
                                          "tokens_may_drop=1",
                                          "opaque_bytes=4096",
                                          "first_position=7",
                                          "recompute_seconds=2.5",
                                          "codec=2",
                                          "mode=1",
                                          "rate=4",
                                          "record_bytes=record_bytes+4096",
                                          "location=zeroblob(length(location))",
                                          "serial=serial+1"};
    open_site site;
    open_prepare(&site);
    open_fill_and_close(&site);
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        char sql[256];
        snprintf(sql, sizeof sql,
                 "UPDATE entry SET %s WHERE key=(SELECT key FROM entry ORDER BY key LIMIT 1 "
                 "OFFSET 4)",
                 changes[i]);
        open_run_sql(site.catalog, sql);
        open_expect_usable(&site, 1, changes[i]);
    }
    support_remove_folder(site.folder);
}

/* A key that was damaged stands where no search finds it. */
static void test_damaged_keys(void **state)
{
    (void)state;
    for (uint32_t number = 0; number < OPEN_ENTRIES; number += 5) {
        static char file[1 << 20];
        open_site site;
        open_prepare(&site);
        open_fill_and_close(&site);
        size_t bytes = (size_t)open_size(site.folder, "catalog.db");
        assert_true(bytes < sizeof file);
        open_read_file(site.catalog, file, bytes);
        kvt_key key = support_key(number);
        const char *at = memmem(file, bytes, &key, sizeof key);
        assert_non_null(at);
        open_flip(site.catalog, at - file);
        open_expect_usable(&site, 1, "a key");
        support_remove_folder(site.folder);
    }
}

/* What names the catalog is refused at once when it is damaged, and stays. */
static void test_damaged_identity(void **state)
{
    (void)state;
    static const char *const changes[][2] = {
        {"UPDATE meta SET value=9223372036854775807 WHERE name='epoch'",
         "UPDATE meta SET value=1 WHERE name='epoch'"},
        {"UPDATE meta SET value=value+2 WHERE name='epoch'",
         "UPDATE meta SET value=1 WHERE name='epoch'"},
        {"UPDATE meta SET value=-1 WHERE name='epoch'",
         "UPDATE meta SET value=1 WHERE name='epoch'"},
        {"CREATE TABLE kept AS SELECT * FROM meta; UPDATE meta SET value=zeroblob(16) WHERE "
         "name='pool'",
         "DELETE FROM meta; INSERT INTO meta SELECT * FROM kept; DROP TABLE kept"}};
    open_site site;
    open_prepare(&site);
    open_fill_and_close(&site);
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        open_run_sql(site.catalog, changes[i][0]);
        for (int again = 0; again < 2; again++)
            open_refused(&site, KVT_E_CORRUPT, "damaged");
        open_run_sql(site.catalog, changes[i][1]);
    }
    open_expect_all(&site);
    support_remove_folder(site.folder);
}

/* A catalog of version 1, as it was before rows had checksums. */
static void test_version_1(void **state)
{
    (void)state;
    static const char columns[] =
        "key, generation, parent, layers, kv_heads, head_dim, dtype, axis_order, tokens, "
        "tokens_may_drop, opaque_bytes, first_position, recompute_seconds, codec, mode, rate, "
        "record_bytes, location, serial";
    open_site site;
    char sql[2048];
    open_prepare(&site);
    open_fill_and_close(&site);
    snprintf(sql, sizeof sql,
             "BEGIN; CREATE TABLE old(key BLOB PRIMARY KEY, generation INTEGER NOT NULL, parent "
             "BLOB, layers INTEGER NOT NULL, kv_heads INTEGER NOT NULL, head_dim INTEGER NOT NULL,"
             " dtype INTEGER NOT NULL, axis_order INTEGER NOT NULL, tokens INTEGER NOT NULL,"
             " tokens_may_drop INTEGER NOT NULL, opaque_bytes INTEGER NOT NULL,"
             " first_position INTEGER NOT NULL, recompute_seconds REAL NOT NULL, codec INTEGER NOT "
             "NULL, mode INTEGER NOT NULL, rate INTEGER NOT NULL, record_bytes INTEGER NOT NULL,"
             " location BLOB NOT NULL, serial INTEGER NOT NULL) STRICT, WITHOUT ROWID;"
             "INSERT INTO old SELECT %s FROM entry; DROP TABLE entry; ALTER TABLE old RENAME TO "
             "entry; DELETE FROM meta WHERE name IN ('secret', 'identity_checksum');"
             "UPDATE entry SET layers=70000 WHERE key=(SELECT max(key) FROM entry);"
             "PRAGMA user_version=1; COMMIT",
             columns);
    open_run_sql(site.catalog, sql);
    assert_int_equal(chmod(site.catalog, 0644), 0);
    open_expect_usable(&site, 1, "version 1");
    open_expect_mode(site.catalog, "");
    assert_int_equal(open_count_elsewhere(site.catalog, "PRAGMA user_version"), 2);
    support_remove_folder(site.folder);
}

/* ---- handles ---- */

/* What handles were before they had a secret: anybody can compute two keys that meet. */
static uint64_t open_plain_step(uint64_t hash, uint64_t word)
{
    hash ^= word;
    hash *= UINT64_C(0xD6E8FEB86659FD93);
    hash ^= hash >> 32;
    hash *= UINT64_C(0xC2B2AE3D27D4EB4F);
    return hash ^ hash >> 29;
}

static kvt_status open_put_key(kvt_store *store, const kvt_key *key)
{
    static char data[SUPPORT_ENTRY_BYTES];
    support_fill(1, data);
    kvt_entry entry = {.key = *key, .layout = support_layout, .recompute_seconds = 1};
    return kvt_put(store, &entry, data, sizeof data);
}

static void test_crafted_keys(void **state)
{
    (void)state;
    open_site site;
    open_prepare(&site);
    kvt_store *store = open_now(&site);
    for (uint64_t i = 1; i <= 20; i++) {
        uint64_t words[2][4] = {{i, 2, 3, 4}, {i, 5, 6, 0}}, hash[2];
        kvt_key keys[2];
        for (int k = 0; k < 2; k++) {
            hash[k] = UINT64_C(0x9E3779B97F4A7C15);
            for (int j = 0; j < 3; j++)
                hash[k] = open_plain_step(hash[k], words[k][j]);
        }
        words[1][3] = words[0][3] ^ hash[0] ^ hash[1];
        for (int k = 0; k < 2; k++) {
            memcpy(&keys[k], words[k], sizeof keys[k]);
            assert_int_equal(open_put_key(store, &keys[k]), KVT_OK);
        }
    }
    kvt_close(store);
    support_remove_folder(site.folder);
}

static void open_note_handle(void *context, const kvt_move *move, kvt_status outcome)
{
    (void)outcome;
    *(uint64_t *)context = move->handle;
}

/* The handle of the same key in a store's next life. */
static uint64_t open_handle(open_site *site)
{
    uint64_t handle = 0;
    site->options.observer = open_note_handle;
    site->options.observer_context = &handle;
    kvt_store *store = open_now(site);
    kvt_key key = support_key(1);
    (void)!kvt_delete(store, &key);
    assert_int_equal(support_put(store, 1), KVT_OK);
    kvt_close(store);
    assert_true(handle != 0);
    return handle;
}

static void test_handles(void **state)
{
    (void)state;
    open_site sites[2];
    uint64_t drawn[2];
    for (int i = 0; i < 2; i++) {
        open_prepare(&sites[i]);
        drawn[i] = open_handle(&sites[i]);
        assert_int_equal(open_handle(&sites[i]), drawn[i]); /* the catalog keeps the secret */
        sites[i].options.handle_seed = 7;
    }
    assert_true(drawn[0] != drawn[1]);
    assert_int_equal(open_handle(&sites[0]), open_handle(&sites[1]));
    assert_true(open_handle(&sites[0]) != drawn[0]);
    for (int i = 0; i < 2; i++)
        support_remove_folder(sites[i].folder);
}

/* ---- forks ---- */

/* Every call on a store that is the parent's. */
static void open_expect_no_store(kvt_store *store)
{
    static char data[SUPPORT_ENTRY_BYTES];
    kvt_key key = support_key(1);
    kvt_entry entry = {.key = key, .layout = support_layout, .recompute_seconds = 1};
    kvt_store_stats stats = {.struct_size = sizeof stats};
    kvt_device_stats device;
    kvt_explanation explanation;
    kvt_class_stats of_class;
    kvt_tenant tenant = {0};
    kvt_variant variant = {.codec = KVT_CODEC_RAW};
    kvt_device_config config = {.struct_size = sizeof config, .name = "x"};
    double seconds;
    size_t matched;
    const kvt_status got[] = {
        kvt_put(store, &entry, data, sizeof data),
        kvt_get(store, &key, data, sizeof data, NULL),
        kvt_get_until(store, &key, data, sizeof data, UINT64_MAX, NULL),
        kvt_exists(store, &key),
        kvt_delete(store, &key),
        kvt_predict_loads(store, &key, 1, &seconds),
        kvt_match_prefix(store, &key, 1, &matched),
        kvt_flush(store),
        kvt_maintain(store, NULL),
        kvt_observe_quality(store, &key, variant, 0.5, 1),
        kvt_class_stats_at(store, 0, &of_class),
        kvt_tenant_set(store, 0, &tenant),
        kvt_explain(store, &key, &explanation),
        kvt_stats(store, &stats),
        kvt_device_stats_at(store, 0, &device),
        kvt_store_device_change(store, "ssd", KVT_DEVICE_RETIRE),
        kvt_store_device_add(store, KVT_TIER_SSD, &config, NULL, 0),
    };
    for (int i = 0; i < (int)(sizeof got / sizeof got[0]); i++)
        if (got[i] != KVT_E_STATE) _exit(10 + i);
    kvt_close(store);
}

/* A child has no part in its parent's store, hinders no reopen, and harms nothing. */
static void test_fork(void **state)
{
    (void)state;
    open_site site;
    int ends[2], status;
    open_prepare(&site);
    kvt_store *store = open_now(&site);
    open_put_all(store);
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        alarm(20); /* a call that hangs ends the test, and fails it */
        close(ends[1]);
        open_expect_no_store(store);
        char byte; /* lives until the parent has closed and opened again */
        _exit(read(ends[0], &byte, 1) == 0 ? 0 : 1);
    }
    for (uint32_t i = 0; i < OPEN_ENTRIES; i++)
        assert_int_equal(support_get(store, i, NULL), KVT_OK);
    kvt_close(store);
    open_expect_all(&site);
    close(ends[0]);
    close(ends[1]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    open_expect_all(&site);
    support_remove_folder(site.folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refused_second_open),
        cmocka_unit_test(test_profile_keeps_locks),
        cmocka_unit_test(test_waits_for_a_late_lock),
        cmocka_unit_test(test_damaged_log),
        cmocka_unit_test(test_missing_log),
        cmocka_unit_test(test_failed_open_removes_its_own),
        cmocka_unit_test(test_modes),
        cmocka_unit_test(test_links),
        cmocka_unit_test(test_database_as_member),
        cmocka_unit_test(test_damaged_rows),
        cmocka_unit_test(test_damaged_keys),
        cmocka_unit_test(test_damaged_identity),
        cmocka_unit_test(test_version_1),
        cmocka_unit_test(test_crafted_keys),
        cmocka_unit_test(test_handles),
        cmocka_unit_test(test_fork),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
