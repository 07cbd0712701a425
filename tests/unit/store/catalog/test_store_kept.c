/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_kept.c - the rows that a close leaves beside the catalog: they count for the catalog
 * as that close left it, and for no other; whatever is wrong with them, an open finds what the
 * catalog has.
 */
#include "base/clock.h"
#include "store/catalog/catalog_internal.h"
#include "store/core/store.h"
#include "store_site.h"

#include <fcntl.h>
#include <kvterrace/names.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <xxhash.h>

#define KEPT_COUNT 24u

TEST_BEFORE_EACH
{
    site_new(state,
             (site_shape){.disks = 2, .disk_bytes = 2 << 20, .unit_bytes = 8192, .plain = true});
}

static const char *kept_name(const site *s, const char *end)
{
    static char path[2][128];
    static int turn;
    turn = !turn;
    snprintf(path[turn], sizeof path[turn], "%s%s", s->catalog, end);
    return path[turn];
}

typedef struct file_bytes {
    uint8_t *bytes;
    size_t size;
} file_bytes;

static file_bytes kept_load(const site *s)
{
    struct stat facts;
    const int file = open(kept_name(s, "-rows"), O_RDONLY);
    assert_true(file >= 0 && fstat(file, &facts) == 0);
    file_bytes all = {test_alloc((size_t)facts.st_size), (size_t)facts.st_size};
    assert_int_equal(read(file, all.bytes, all.size), (ssize_t)all.size);
    close(file);
    return all;
}

static void kept_store(const site *s, const void *bytes, size_t size)
{
    (void)unlink(kept_name(s, "-rows"));
    const int file = open(kept_name(s, "-rows"), O_WRONLY | O_CREAT | O_EXCL, 0600);
    assert_true(file >= 0);
    assert_int_equal(write(file, bytes, size), (ssize_t)size);
    close(file);
}

static bool kept_is_there(const site *s)
{
    return access(kept_name(s, "-rows"), F_OK) == 0;
}

/* How many rows the next writer of the catalog would find kept. */
static uint64_t kept_count(const site *s)
{
    char message[256];
    store_catalog *catalog;
    const file_bytes all = kept_load(s);
    assert_ok(catalog_open(s->catalog, 0, &catalog, message, sizeof message));
    const uint64_t count = catalog_kept_count(catalog);
    catalog_close(catalog);
    kept_store(s, all.bytes, all.size); /* an open has removed it */
    return count;
}

static void kept_fill(site *s)
{
    site_open(s);
    site_put(s, 0, KEPT_COUNT);
    site_close(s);
}

/* Opens, and finds all entries with their bytes. */
static void kept_open_finds_all(site *s)
{
    site_open(s);
    const kvt_store_stats stats = support_stats(s->store);
    assert_int_equal(stats.recovered, KEPT_COUNT);
    assert_int_equal(stats.recovery_drops, 0);
    assert_int_equal(site_hits(s, KEPT_COUNT), KEPT_COUNT);
}

TEST(a_close_keeps_rows_and_an_open_takes_them)
{
    site *s = *state;
    struct stat facts;
    kept_fill(s);
    for (int life = 0; life < 3; life++) {
        assert_int_equal(stat(kept_name(s, "-rows"), &facts), 0);
        assert_int_equal(facts.st_mode & 0777, 0600);
        assert_int_equal(kept_count(s), KEPT_COUNT);
        kept_open_finds_all(s);
        assert_false(kept_is_there(s)); /* none outlives a crash */
        site_close(s);
    }
    /* The next ones find the entries as they were deleted, put and put anew. */
    site_open(s);
    const kvt_key gone = support_key(3), anew = support_key(5);
    assert_ok(kvt_store_delete(s->store, &gone));
    assert_ok(kvt_store_delete(s->store, &anew));
    assert_ok(support_put(s->store, 5));
    assert_ok(support_put(s->store, KEPT_COUNT));
    site_close(s);
    assert_int_equal(kept_count(s), KEPT_COUNT);
    site_open(s);
    assert_int_equal(support_get(s->store, 3, NULL), KVT_MISS);
    assert_ok(support_get(s->store, 5, NULL));
    assert_ok(support_get(s->store, KEPT_COUNT, NULL));
    site_close(s);
}

/* All facts of entries that calls show, in one text. */
static void kept_describe(site *s, char *text, size_t size)
{
    size_t used = 0;
    for (uint32_t i = 0; i < KEPT_COUNT; i++) {
        kvt_description info = {.struct_size = sizeof info};
        const kvt_key key = support_key(i);
        assert_ok(kvt_store_describe(s->store, &key, &info));
        used +=
            (size_t)snprintf(text + used, size - used, "%u %u %llu %d %u %u %u %u %d %02x %u\n", i,
                             info.layout.tokens, (unsigned long long)info.stored_bytes,
                             info.lifetime_seconds > 900 && info.lifetime_seconds <= 1000,
                             info.tenant, info.class_id, info.request_tokens, info.first_position,
                             info.has_parent, info.parent.bytes[0], info.variant.codec);
        assert_true(used < size);
    }
}

/* Rows with parents, tenants, classes, lifetimes and layouts of their own say the same from either
 * place. */
TEST(kept_rows_say_what_the_catalog_says)
{
    site *s = *state;
    char kept[4096], read[4096];
    static char data[SUPPORT_ENTRY_BYTES];
    site_open(s);
    for (uint32_t i = 0; i < KEPT_COUNT; i++) {
        kvt_entry entry = support_entry(support_key(i), support_layout, 0.25 * (i % 3));
        const kvt_key parent = support_key(i - i % 2);
        if (i % 2 == 1) entry.parent = &parent;
        entry.tenant = i % 5;
        entry.class_id = i % 7;
        entry.request_tokens = i % 4 * 1000;
        entry.lifetime_seconds = i % 6 == 0 ? 1000 : 0;
        entry.first_position = i % 2 == 1 ? support_layout.tokens : 0;
        support_fill(i, data);
        assert_ok(kvt_store_put(s->store, &entry, KVT_PACKED(data, sizeof data)));
    }
    site_close(s);
    assert_int_equal(kept_count(s), KEPT_COUNT);
    site_open(s);
    kept_describe(s, kept, sizeof kept);
    assert_int_equal(site_hits(s, KEPT_COUNT), KEPT_COUNT);
    site_close(s);
    assert_int_equal(unlink(kept_name(s, "-rows")), 0);
    site_open(s);
    kept_describe(s, read, sizeof read);
    assert_int_equal(site_hits(s, KEPT_COUNT), KEPT_COUNT);
    assert_string_equal(kept, read);
    site_close(s);
}

static bool kept_count_row(void *context, const catalog_row *row)
{
    assert_non_null(row->location);
    ++*(uint32_t *)context;
    return true;
}

/* Whether the rows that lie there are taken as a whole. */
static bool kept_is_taken(const site *s)
{
    char message[256];
    store_catalog *catalog;
    uint32_t count = 0;
    assert_ok(catalog_open(s->catalog, 0, &catalog, message, sizeof message));
    const kvt_status status = catalog_each_kept(catalog, kept_count_row, &count);
    assert_true(status == KVT_OK || status == KVT_MISS);
    assert_true(status == KVT_MISS || count == KEPT_COUNT);
    catalog_close(catalog);
    return status == KVT_OK;
}

/* Every byte of the file in turn, and every length; some of them through a whole open. */
TEST(damaged_rows_are_read_from_the_catalog)
{
    site *s = *state;
    kept_fill(s);
    const file_bytes all = kept_load(s);
    for (size_t at = 0; at < all.size; at++) {
        all.bytes[at] ^= (uint8_t)(1u << at % 8);
        kept_store(s, all.bytes, all.size);
        assert_false(kept_is_taken(s));
        all.bytes[at] ^= (uint8_t)(1u << at % 8);
    }
    for (size_t size = 0; size < all.size; size += 7) {
        kept_store(s, all.bytes, size);
        assert_false(kept_is_taken(s));
    }
    kept_store(s, all.bytes, all.size);
    assert_true(kept_is_taken(s));
    for (size_t at = 4; at < all.size; at += all.size / 4) {
        all.bytes[at] ^= 1;
        kept_store(s, all.bytes, all.size);
        kept_open_finds_all(s);
        site_close(s);
        memcpy(all.bytes, kept_load(s).bytes, all.size);
        if (all.bytes[4] == 'O') continue;
        (void)unlink(kept_name(s, "-rows")); /* it was none of ours, and stayed */
        site_reopen(s);
        site_close(s);
        memcpy(all.bytes, kept_load(s).bytes, all.size);
    }
}

/* Rows that are wrong and have the right sums: none of them is believed. */
TEST(rows_with_right_sums_are_checked)
{
    site *s = *state;
    kept_fill(s);
    for (int fault = 0; fault < 6; fault++) {
        const file_bytes all = kept_load(s);
        catalog_kept_head head;
        uint64_t sum;
        memcpy(&head, all.bytes, sizeof head);
        uint8_t *block = all.bytes + sizeof head, *row = block + 16;
        const size_t bytes = all.size - sizeof head - 16;
        switch (fault) {
        case 0: memset(row + 40, 0, 8); break;    /* generation */
        case 1: memset(row + 48, 0xff, 8); break; /* record_bytes */
        case 2: row[68]--; break;                 /* location_bytes */
        case 3: row[72] = 0; break;               /* flags: the first row has no shape */
        case 4: row[0] ^= 1; break;               /* another key than those of the account */
        default: memcpy(row + bytes - 72, row + bytes / 2, 64); break; /* the last location */
        }
        sum = XXH3_64bits_withSeed(row, bytes, head.sum);
        memcpy(block, &sum, sizeof sum);
        kept_store(s, all.bytes, all.size);
        kept_open_finds_all(s);
        site_close(s);
        assert_true(kept_is_there(s));
    }
}

/* Rows of an earlier state of the catalog, put back, as a copy of files at different times does. */
TEST(rows_of_another_state_do_not_count)
{
    site *s = *state;
    kept_fill(s);
    const file_bytes old = kept_load(s);
    site_open(s);
    for (uint32_t i = 0; i < KEPT_COUNT; i += 2) {
        const kvt_key key = support_key(i);
        assert_ok(kvt_store_delete(s->store, &key));
    }
    site_close(s);
    kept_store(s, old.bytes, old.size);
    assert_int_equal(kept_count(s), 0);
    site_open(s);
    assert_int_equal(support_stats(s->store).recovered, KEPT_COUNT / 2);
    for (uint32_t i = 0; i < KEPT_COUNT; i++)
        assert_int_equal(support_get(s->store, i, NULL), i % 2 == 0 ? KVT_MISS : KVT_OK);
    site_close(s);
    /* Another program has deleted rows. */
    sqlite3 *db;
    assert_int_equal(sqlite3_open(s->catalog, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, "DELETE FROM entry", NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
    site_open(s);
    assert_int_equal(support_stats(s->store).recovered, 0);
    site_close(s);
}

/* A file of that name that no store has made stays as it is, and so does what a link leads to. */
TEST(what_is_not_ours_is_left_alone)
{
    site *s = *state;
    const char mine[] = "somebody else's notes, which are longer than a head of kept rows is, "
                        "so that all of one can be read from here and is found to be none";
    site_open(s);
    site_put(s, 0, KEPT_COUNT);
    kept_store(s, mine, sizeof mine);
    site_close(s);
    kept_open_finds_all(s);
    site_close(s);
    const file_bytes all = kept_load(s);
    assert_int_equal(all.size, sizeof mine);
    assert_memory_equal(all.bytes, mine, sizeof mine);
    assert_int_equal(rename(kept_name(s, "-rows"), kept_name(s, "-mine")), 0);
    assert_int_equal(symlink("catalog.db-mine", kept_name(s, "-rows")), 0);
    kept_open_finds_all(s);
    site_close(s);
    assert_int_equal(kept_load(s).size, sizeof mine);
    assert_int_equal(unlink(kept_name(s, "-rows")), 0);
    assert_int_equal(mkfifo(kept_name(s, "-rows"), 0600), 0);
    kept_open_finds_all(s);
    site_close(s);
}

/* Overwrites the root of the entries in the catalog, as a drive may: the file's times stay. */
static void kept_rot_catalog(const site *s)
{
    struct stat facts;
    char page[4096];
    sqlite3 *db;
    sqlite3_stmt *found;
    memset(page, 0x5a, sizeof page);
    assert_int_equal(stat(s->catalog, &facts), 0);
    assert_int_equal(sqlite3_open_v2(s->catalog, &db, SQLITE_OPEN_READONLY, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_prepare_v2(db, "SELECT rootpage FROM sqlite_schema WHERE name='entry'",
                                        -1, &found, NULL),
                     SQLITE_OK);
    assert_int_equal(sqlite3_step(found), SQLITE_ROW);
    const off_t root = (sqlite3_column_int64(found, 0) - 1) * (off_t)sizeof page;
    sqlite3_finalize(found);
    sqlite3_close(db);
    const int file = open(s->catalog, O_WRONLY);
    assert_true(file >= 0);
    assert_int_equal(pwrite(file, page, sizeof page, root), (ssize_t)sizeof page);
    close(file);
    const struct timespec times[2] = {facts.st_atim, facts.st_mtim};
    assert_int_equal(utimensat(AT_FDCWD, s->catalog, times, 0), 0);
}

/* The structure of a catalog whose rows are not taken from beside it is checked before they are
 * read: the open is refused. */
TEST(a_damaged_catalog_is_found_behind_damaged_rows)
{
    site *s = *state;
    kept_fill(s);
    const file_bytes all = kept_load(s);
    kept_rot_catalog(s);
    all.bytes[all.size - 1] ^= 1;
    kept_store(s, all.bytes, all.size);
    assert_int_equal(site_try_open(s), KVT_E_CORRUPT);
}

/* Where the rows are taken from beside it, the background finds the damage, and the next open does.
 */
TEST(a_damaged_catalog_is_found_late)
{
    site *s = *state;
    kvt_health_item items[8] = {{.struct_size = sizeof items[0]}};
    size_t count = 0;
    kept_fill(s);
    kept_rot_catalog(s);
    site_open(s);
    assert_int_equal(site_hits(s, KEPT_COUNT), KEPT_COUNT);
    assert_true(s->store->catalog->check_due_ns > base_clock_ns());
    s->store->catalog->check_due_ns = 1;
    assert_ok(kvt_store_maintain(s->store, NULL));
    assert_ok(kvt_health_get(s->store, items, 8, &count, NULL));
    bool found = false;
    for (size_t i = 0; i < count; i++)
        found = found || (items[i].status == KVT_E_CORRUPT &&
                          strstr(items[i].text, "catalog is damaged") != NULL);
    assert_true(found);
    site_close(s);
    assert_false(kept_is_there(s));
    assert_int_equal(site_try_open(s), KVT_E_CORRUPT);
}
