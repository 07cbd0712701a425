/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_catalog.c - what a catalog keeps is checked: rows, identity, an older version, the
 * secret of its handles.
 */
#include "open_support.h"

#include "store/catalog/catalog.h"
#include <xxhash.h>

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
    kvt_store_close(store);
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
    assert_ok(kvt_store_flush(store));
    kvt_store_close(store);
    store = open_now(site);
    assert_int_equal(support_stats(store).recovered, OPEN_ENTRIES);
    assert_int_equal(support_stats(store).recovery_drops, 0);
    kvt_store_close(store);
}

/* Any column of a row may be damaged, also so that it looks right. */
TEST(damaged_rows)
{
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
                                          "serial=serial+1",
                                          "expires_ns=9223372036854775807",
                                          "tenant=1",
                                          "tenant=256",
                                          "class_id=1",
                                          "request_tokens=7"};
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
}

/* A key that was damaged stands where no search finds it. */
TEST(damaged_keys)
{
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
TEST(damaged_identity)
{
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
}

/* Versions that were never released have no readers. */
TEST(another_version)
{
    open_site site;
    open_prepare(&site);
    open_fill_and_close(&site);
    for (int version = 0; version < 6; version++) {
        char sql[64];
        if (version == 4) continue;
        snprintf(sql, sizeof sql, "PRAGMA user_version=%d", version);
        open_run_sql(site.catalog, sql);
        open_refused(&site, KVT_E_VERSION, "another version; it was left as it is");
    }
    open_run_sql(site.catalog, "PRAGMA user_version=4");
    open_expect_all(&site);
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
    kvt_entry entry = support_entry(*key, support_layout, 1);
    return kvt_store_put(store, &entry, KVT_PACKED(data, sizeof data));
}

TEST(crafted_keys)
{
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
            assert_ok(open_put_key(store, &keys[k]));
        }
    }
    kvt_store_close(store);
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
    site->options.observer.call = open_note_handle;
    site->options.observer.context = &handle;
    kvt_store *store = open_now(site);
    kvt_key key = support_key(1);
    (void)!kvt_store_delete(store, &key);
    assert_ok(support_put(store, 1));
    kvt_store_close(store);
    assert_true(handle != 0);
    return handle;
}

TEST(handles)
{
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
