/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torture_store_early.c - a store that serves while it is being opened: the open is held at a kill
 * point, fails there, or the process is killed at each.
 */
#include "base/clock.h"
#include "base/kill_point.h"
#include "open_support.h"
#include "store/core/kill_note.h"

#include <kvterrace/lookup.h>
#include <kvterrace/queue.h>
#include <kvterrace/watch.h>
#include <pthread.h>
#include <stdatomic.h>

#define EARLY_AT "open: early"

/* The opening thread waits at the point that hold_at names; or the process dies at the nth. */
static pthread_mutex_t hold_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t hold_changed = PTHREAD_COND_INITIALIZER;
static const char *hold_at;
static bool hold_reached;
static _Atomic long die_at;

void kvt_kill_point(const char *const *point)
{
    if (atomic_load(&die_at) > 0 && atomic_fetch_sub(&die_at, 1) == 1) kill(getpid(), SIGKILL);
    pthread_mutex_lock(&hold_lock);
    while (hold_at != NULL && strcmp(*point, hold_at) == 0) {
        hold_reached = true;
        pthread_cond_broadcast(&hold_changed);
        pthread_cond_wait(&hold_changed, &hold_lock);
    }
    pthread_mutex_unlock(&hold_lock);
}

void kvt_kill_note(kill_note note, const kvt_key *key, kvt_tier tier)
{
    (void)note, (void)key, (void)tier;
}

static void hold(const char *at)
{
    pthread_mutex_lock(&hold_lock);
    hold_at = at;
    hold_reached = false;
    pthread_cond_broadcast(&hold_changed);
    pthread_mutex_unlock(&hold_lock);
}

static void hold_await(void)
{
    pthread_mutex_lock(&hold_lock);
    while (!hold_reached)
        pthread_cond_wait(&hold_changed, &hold_lock);
    pthread_mutex_unlock(&hold_lock);
}

/* A store of OPEN_ENTRIES entries, closed; its next opens serve early. */
static void early_fill_with(open_site *site, const char *key_command)
{
    open_prepare(site);
    site->device.key_command = key_command;
    kvt_store *store = open_now(site);
    support_puts(store, 0, OPEN_ENTRIES);
    assert_ok(kvt_store_flush(store));
    kvt_store_close(store);
    site->options.serve_early = true;
}

static void early_fill(open_site *site)
{
    early_fill_with(site, NULL);
}

/* Opens one whose open is held behind its beginning. */
static kvt_store *early_hold(open_site *site)
{
    hold(EARLY_AT);
    kvt_store *store = open_now(site);
    hold_await();
    assert_int_equal(kvt_store_wait(store, 0, NULL, 0), KVT_BUSY);
    return store;
}

static void early_end(open_site *site, kvt_store *store)
{
    kvt_store_close(store);
    support_remove_folder(site->folder);
}

/* What the caller gave may go as soon as the open has returned. */
static kvt_store *early_open_copied(const open_site *site)
{
    kvt_store *store = NULL;
    char message[256] = "";
    kvt_device_config device = site->device;
    kvt_store_options options = site->options;
    char *const catalog = strdup(site->catalog), *const path = strdup(site->path);
    char *const name = strdup(site->device.name), *const policy = strdup(options.policy);
    assert_true(catalog != NULL && path != NULL && name != NULL && policy != NULL);
    options.durability.catalog_path = catalog;
    options.policy = policy;
    device.path = path;
    device.name = name;
    options.tiers[KVT_TIER_SSD].devices = &device;
    assert_ok(kvt_store_open(&options, &store, message, sizeof message));
    char *const texts[] = {catalog, path, name, policy};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        memset(texts[i], 'x', strlen(texts[i]));
        free(texts[i]);
    }
    memset(&device, 0xa5, sizeof device);
    return store;
}

static void *early_delete_first(void *argument)
{
    const kvt_key first = support_key(0);
    assert_ok(kvt_store_delete(argument, &first));
    return NULL;
}

TEST(lookups_before_the_rows_are_known)
{
    open_site site;
    kvt_key keys[OPEN_ENTRIES + 1];
    char rooms[OPEN_ENTRIES][16];
    const kvt_view *views[OPEN_ENTRIES];
    kvt_view packed[OPEN_ENTRIES];
    kvt_get_info info = {.struct_size = sizeof info};
    size_t count = 99;
    pthread_t other;
    early_fill(&site);
    for (uint32_t i = 0; i <= OPEN_ENTRIES; i++)
        keys[i] = support_key(i);
    hold(EARLY_AT);
    kvt_store *store = early_open_copied(&site);
    hold_await();
    assert_int_equal(kvt_store_wait(store, 0, NULL, 0), KVT_BUSY);
    support_gets(store, 0, OPEN_ENTRIES);
    assert_ok(support_get(store, 1, &info));
    assert_int_equal(info.tier, KVT_TIER_SSD);
    assert_true(info.stored_bytes >= SUPPORT_ENTRY_BYTES);
    assert_int_equal(support_get(store, OPEN_ENTRIES, &info), KVT_MISS);
    assert_false(info.timed_out);
    assert_ok(kvt_store_exists(store, &keys[0]));
    assert_int_equal(kvt_store_exists(store, &keys[OPEN_ENTRIES]), KVT_MISS);
    assert_int_equal(kvt_store_exists(store, NULL), KVT_E_ARGUMENT);
    assert_ok(kvt_store_match(store, keys, OPEN_ENTRIES + 1, NULL, &count));
    assert_int_equal(count, OPEN_ENTRIES);
    assert_ok(kvt_store_match(store, keys, 0, NULL, &count));
    assert_int_equal(count, 0);
    char data[SUPPORT_ENTRY_BYTES];
    for (uint32_t i = 0; i < OPEN_ENTRIES; i++) {
        packed[i] = *KVT_PACKED(data, sizeof data);
        views[i] = &packed[i];
    }
    assert_ok(kvt_prefix_get(store, keys, views, OPEN_ENTRIES, KVT_NO_DEADLINE, &count));
    assert_int_equal(count, OPEN_ENTRIES);
    assert_int_equal(kvt_prefix_get(store, keys, NULL, 1, KVT_NO_DEADLINE, &count), KVT_E_ARGUMENT);
    /* A view that does not fit is the open store's to judge; a deadline ends the wait for it. */
    assert_int_equal(
        kvt_store_get(store, &keys[2], KVT_PACKED(rooms[0], sizeof rooms[0]), 0, &info), KVT_MISS);
    assert_true(info.timed_out);
    assert_int_equal(pthread_create(&other, NULL, early_delete_first, store), 0);
    assert_ok(support_get(store, 0, NULL));
    assert_int_equal(kvt_store_wait(store, 0, NULL, 0), KVT_BUSY);
    hold(NULL);
    assert_int_equal(pthread_join(other, NULL), 0);
    assert_ok(kvt_store_wait(store, KVT_NO_DEADLINE, site.message, sizeof site.message));
    assert_string_equal(site.message, "");
    assert_int_equal(support_stats(store).recovered, OPEN_ENTRIES);
    assert_int_equal(support_get(store, 0, NULL), KVT_MISS);
    support_gets(store, 1, OPEN_ENTRIES);
    assert_int_equal(kvt_store_get(store, &keys[2], KVT_PACKED(rooms[0], sizeof rooms[0]),
                                   KVT_NO_DEADLINE, NULL),
                     KVT_E_ARGUMENT);
    assert_ok(support_put(store, OPEN_ENTRIES));
    early_end(&site, store);
}

/* The reader has the key, too. */
TEST(an_encrypted_device)
{
    open_site site;
    early_fill_with(&site, "printf '%064d' 7");
    kvt_store *store = early_hold(&site);
    support_gets(store, 0, OPEN_ENTRIES);
    hold(NULL);
    assert_ok(kvt_store_wait(store, KVT_NO_DEADLINE, NULL, 0));
    support_gets(store, 0, OPEN_ENTRIES);
    assert_ok(support_put(store, OPEN_ENTRIES));
    early_end(&site, store);
}

/* Flips a byte of the device wherever an entry's bytes lie. */
static void early_damage(const open_site *site, uint32_t number)
{
    static char file[8 << 20];
    static char expected[SUPPORT_ENTRY_BYTES];
    support_fill(number, expected);
    const long bytes = open_size(site->folder, "ssd");
    assert_true(bytes > 0 && (size_t)bytes <= sizeof file);
    open_read_file(site->path, file, (size_t)bytes);
    /* A piece of it, because units may lie apart. */
    char *at = memmem(file, (size_t)bytes, expected + 100, 256);
    assert_non_null(at);
    const int device = open(site->path, O_WRONLY | O_CLOEXEC);
    const char flipped = (char)(*at ^ 1);
    assert_true(device >= 0);
    assert_int_equal(pwrite(device, &flipped, 1, at - file), 1);
    close(device);
}

/* Damage is found by the open store, which drops the entry as in any get. */
TEST(damage_waits_for_the_open_store)
{
    open_site site;
    kvt_get_info info = {.struct_size = sizeof info};
    char data[SUPPORT_ENTRY_BYTES];
    const kvt_key key = support_key(3);
    early_fill(&site);
    early_damage(&site, 3);
    kvt_store *store = early_hold(&site);
    const uint64_t soon_ns = base_clock_ns() + 50000000;
    assert_int_equal(kvt_store_get(store, &key, KVT_PACKED(data, sizeof data), soon_ns, &info),
                     KVT_MISS);
    assert_true(info.timed_out);
    assert_ok(support_get(store, 4, NULL));
    hold(NULL);
    assert_int_equal(support_get(store, 3, NULL), KVT_MISS);
    assert_int_equal(support_stats(store).load_failures, 1);
    assert_int_equal(kvt_store_exists(store, &key), KVT_MISS);
    early_end(&site, store);
}

/* Each kind of call after an open that has failed behind the caller's back. */
static void early_check_failed(kvt_store *store, kvt_status status)
{
    const kvt_key key = support_key(0);
    char data[SUPPORT_ENTRY_BYTES], message[256] = "";
    kvt_store_stats stats = {.struct_size = sizeof stats};
    kvt_queue *queue = NULL;
    size_t count;
    assert_int_equal(kvt_store_wait(store, KVT_NO_DEADLINE, message, sizeof message), status);
    assert_true(message[0] != '\0');
    assert_int_equal(kvt_store_wait(store, 0, NULL, 0), status);
    assert_int_equal(support_get(store, 0, NULL), status);
    assert_int_equal(support_put(store, 0), status);
    assert_int_equal(kvt_store_exists(store, &key), status);
    assert_int_equal(kvt_store_match(store, &key, 1, NULL, &count), status);
    assert_int_equal(kvt_prefix_get(store, &key, &(const kvt_view *){KVT_PACKED(data, sizeof data)},
                                    1, KVT_NO_DEADLINE, &count),
                     status);
    assert_int_equal(kvt_store_delete(store, &key), status);
    assert_int_equal(kvt_store_stats_get(store, &stats), status);
    assert_int_equal(kvt_health_get(store, NULL, 0, &count, NULL), status);
    assert_int_equal(kvt_store_flush(store), status);
    assert_int_equal(kvt_queue_open(store, NULL, &queue), status);
    assert_int_equal(kvt_metrics_write(store, data, sizeof data), 0);
}

/* Another program keeps the catalog from being written. */
TEST(an_open_that_fails_late)
{
    open_site site;
    sqlite3 *db = NULL;
    early_fill(&site);
    assert_int_equal(sqlite3_open(site.catalog, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, "BEGIN IMMEDIATE", NULL, NULL, NULL), SQLITE_OK);
    kvt_store *store = early_hold(&site);
    support_gets(store, 0, OPEN_ENTRIES);
    hold(NULL);
    early_check_failed(store, KVT_E_LOCKED);
    kvt_store_close(store);
    assert_int_equal(sqlite3_exec(db, "ROLLBACK", NULL, NULL, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_close(db), SQLITE_OK);
    open_expect_all(&site);
    support_remove_folder(site.folder);
}

/* A catalog whose structure is damaged serves what a search still finds, and opens no store. */
TEST(a_damaged_catalog)
{
    open_site site;
    early_fill(&site);
    const long bytes = open_size(site.folder, "catalog.db");
    const int file = open(site.catalog, O_RDWR | O_CLOEXEC);
    char page[4096];
    long last = 0;
    /* The rows' last page: a leaf of an index, whose cells' offsets lie behind its head. */
    for (long at = 4096; at < bytes; at += 4096) {
        assert_int_equal(pread(file, page, sizeof page, at), sizeof page);
        if (page[0] == 10 && page[4] >= 4) last = at;
    }
    assert_true(last != 0);
    assert_int_equal(pwrite(file, "\0\0", 2, last + 8 + 2), 2);
    close(file);
    kvt_store *store = open_now(&site);
    early_check_failed(store, KVT_E_CORRUPT);
    kvt_store_close(store);
    site.options.serve_early = false;
    open_refused(&site, KVT_E_CORRUPT, "recover");
    support_remove_folder(site.folder);
}

/* What is not as an earlier life has left it is opened as without the option. */
TEST(opens_that_are_not_early)
{
    open_site site;
    open_prepare(&site);
    site.options.serve_early = true;
    hold(EARLY_AT); /* no open comes there */
    kvt_store *store = open_now(&site);
    assert_ok(kvt_store_wait(store, 0, NULL, 0));
    support_puts(store, 0, OPEN_ENTRIES);
    kvt_store_close(store);
    hold(NULL);
    store = open_now(&site);
    assert_ok(kvt_store_wait(store, KVT_NO_DEADLINE, NULL, 0));
    kvt_store_close(store);
    site.options.policy = "nonesuch";
    open_refused(&site, KVT_E_UNSUPPORTED, "nonesuch");
    site.options.policy = "lru";
    assert_int_equal(unlink(site.path), 0);
    open_refused(&site, KVT_E_GONE, "ssd");
    assert_int_equal(kvt_store_wait(NULL, 0, NULL, 0), KVT_E_ARGUMENT);
    support_remove_folder(site.folder);
}

/* A close waits for the open, at whichever point it is. */
TEST(closed_at_once)
{
    open_site site;
    early_fill(&site);
    for (int i = 0; i < 20; i++)
        kvt_store_close(open_now(&site));
    open_expect_all(&site);
    support_remove_folder(site.folder);
}

/* A child of fork has neither the thread nor the reader. */
TEST(a_child_of_fork)
{
    open_site site;
    int ended;
    early_fill(&site);
    kvt_store *store = early_hold(&site);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        const kvt_key key = support_key(0);
        size_t count;
        alarm(60);
        bool right = support_get(store, 0, NULL) == KVT_E_STATE &&
                     kvt_store_exists(store, &key) == KVT_E_STATE &&
                     kvt_store_match(store, &key, 1, NULL, &count) == KVT_E_STATE &&
                     kvt_store_wait(store, KVT_NO_DEADLINE, NULL, 0) == KVT_E_STATE &&
                     support_put(store, 0) == KVT_E_STATE &&
                     kvt_store_delete(store, &key) == KVT_E_STATE;
        kvt_store_close(store);
        _exit(right ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &ended, 0), child);
    assert_true(WIFEXITED(ended) && WEXITSTATUS(ended) == 0);
    support_gets(store, 0, OPEN_ENTRIES);
    hold(NULL);
    assert_ok(kvt_store_wait(store, KVT_NO_DEADLINE, NULL, 0));
    early_end(&site, store);
}

/* Opens, looks, puts one and closes; killed at its nth kill point. */
static bool early_killed(open_site *site, long point)
{
    int ended;
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        kvt_store *store = NULL;
        atomic_store(&die_at, point);
        if (open_try(site, &store) != KVT_OK) _exit(1);
        for (uint32_t i = 0; i < OPEN_ENTRIES; i++)
            if (support_get(store, i, NULL) != KVT_OK) _exit(2);
        if (support_put(store, OPEN_ENTRIES) < 0) _exit(3);
        for (uint32_t i = 0; i < OPEN_ENTRIES; i++)
            if (support_get(store, i, NULL) != KVT_OK) _exit(4);
        kvt_store_close(store);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &ended, 0), child);
    if (WIFEXITED(ended) && WEXITSTATUS(ended) != 0)
        fail_msg("point %ld: the child found %d", point, WEXITSTATUS(ended));
    return WIFSIGNALED(ended);
}

TEST(killed_at_each_point)
{
    long point = 1;
    for (bool killed = true; killed; point++) {
        open_site site;
        early_fill(&site);
        killed = early_killed(&site, point);
        kvt_store *store = open_now(&site); /* early again */
        support_gets(store, 0, OPEN_ENTRIES);
        assert_ok(kvt_store_wait(store, KVT_NO_DEADLINE, NULL, 0));
        assert_int_equal(support_stats(store).recovery_drops, 0);
        support_gets(store, 0, OPEN_ENTRIES);
        kvt_store_close(store);
        support_remove_folder(site.folder);
    }
    print_message("%ld points\n", point - 2);
    assert_true(point > 15);
}
