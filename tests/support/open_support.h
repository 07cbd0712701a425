/* SPDX-License-Identifier: Apache-2.0 */
/*
 * open_support.h - a store of one member and a catalog that tests open, leave, damage and open
 * again.
 */
#ifndef TESTS_OPEN_SUPPORT_H
#define TESTS_OPEN_SUPPORT_H

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

static inline void open_prepare(open_site *site)
{
    memset(site, 0, sizeof *site);
    support_make_folder(site->folder, sizeof site->folder);
    snprintf(site->catalog, sizeof site->catalog, "%.63s/catalog.db", site->folder);
    snprintf(site->path, sizeof site->path, "%.63s/ssd", site->folder);
    site->options = support_options(8 << 20, "lru");
    site->options.durability.catalog_path = site->catalog;
    site->device = support_file_config("ssd", site->path, 8 << 20);
    site->device.sparse = true;
    support_tier(&site->options, KVT_TIER_SSD, &site->device, 1);
    site->options.tiers[KVT_TIER_SSD].unit_bytes = 16384;
}

static inline kvt_status open_try(open_site *site, kvt_store **store_out)
{
    return kvt_store_open(&site->options, store_out, site->message, sizeof site->message);
}

static inline kvt_store *open_now(open_site *site)
{
    kvt_store *store = NULL;
    kvt_status status = open_try(site, &store);
    if (status != KVT_OK) fail_msg("%s: %s", kvt_status_name(status), site->message);
    return store;
}

static inline void open_put_all(kvt_store *store)
{
    for (uint32_t i = 0; i < OPEN_ENTRIES; i++) {
        assert_ok(support_put(store, i));
        assert_ok(kvt_store_flush(store)); /* a transaction each */
    }
}

static inline void open_expect_all(open_site *site)
{
    kvt_store *store = open_now(site);
    support_gets(store, 0, OPEN_ENTRIES);
    kvt_store_close(store);
}

static inline void open_refused(open_site *site, kvt_status expected, const char *part)
{
    kvt_store *store = NULL;
    kvt_status status = open_try(site, &store);
    if (status != expected || strstr(site->message, part) == NULL)
        fail_msg("%s: %s", kvt_status_name(status), site->message);
}

/* A child that fills the store and ends like one that is killed. */
static inline void open_leave_unclosed(open_site *site)
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

static inline long open_size(const char *folder, const char *name)
{
    char path[200];
    struct stat facts;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return stat(path, &facts) == 0 ? (long)facts.st_size : -1;
}

static inline void open_read_file(const char *path, char *out, size_t bytes)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fread(out, 1, bytes, file), bytes);
    fclose(file);
}

/* Runs a program that reads the database in another process. */
static inline int open_count_elsewhere(const char *database, const char *sql)
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

static inline void open_flip(const char *path, long at)
{
    int file = open(path, O_RDWR);
    assert_true(file >= 0);
    unsigned char byte;
    assert_int_equal(pread(file, &byte, 1, at), 1);
    byte ^= 0xff;
    assert_int_equal(pwrite(file, &byte, 1, at), 1);
    close(file);
}

static inline void open_expect_mode(const char *path, const char *end)
{
    char name[200];
    struct stat facts;
    snprintf(name, sizeof name, "%s%s", path, end);
    assert_int_equal(stat(name, &facts), 0);
    assert_int_equal(facts.st_mode & 0777, 0600);
}

#endif
