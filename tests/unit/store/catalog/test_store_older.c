/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_older.c - a catalog that is older than its devices is refused, and nothing is touched:
 * what the devices hold can still be recovered. Also what lies beside a catalog and is no file.
 */
#include "open_support.h"

#include "estimator/measure/measure.h"
#include "estimator/profile/profile.h"
#include <kvterrace/recover.h>
#include <xxhash.h>

enum { OLDER_MEMBER_BYTES = 8 << 20 };

static void older_copy(const char *from, const char *to)
{
    char command[400];
    snprintf(command, sizeof command, "cp '%s' '%s'", from, to);
    assert_int_equal(system(command), 0);
}

static uint64_t older_sum(const char *path, size_t from)
{
    static char bytes[OLDER_MEMBER_BYTES];
    size_t size = OLDER_MEMBER_BYTES;
    struct stat facts;
    assert_int_equal(stat(path, &facts), 0);
    if ((size_t)facts.st_size < size) size = (size_t)facts.st_size;
    open_read_file(path, bytes, size);
    return XXH3_64bits(bytes + from, size - from);
}

/* A store of `later` lives after the one whose catalog is put back. */
typedef struct older_site {
    open_site base;
    char copy[112];
    char newest[112];
} older_site;

static void older_prepare(older_site *site, uint32_t later)
{
    open_prepare(&site->base);
    snprintf(site->copy, sizeof site->copy, "%.95s.copy", site->base.catalog);
    snprintf(site->newest, sizeof site->newest, "%.95s.new", site->base.catalog);
    kvt_store_close(open_now(&site->base));
    older_copy(site->base.catalog, site->copy);
    for (uint32_t life = 0; life < later; life++) {
        kvt_store *store = open_now(&site->base);
        if (life == 0) open_put_all(store);
        kvt_store_close(store);
    }
    older_copy(site->base.catalog, site->newest);
    older_copy(site->copy, site->base.catalog);
}

static void older_expect_refused(uint32_t later)
{
    older_site site;
    older_prepare(&site, later);
    uint64_t member = older_sum(site.base.path, 0), catalog = older_sum(site.base.catalog, 0);
    for (int again = 0; again < 2; again++)
        open_refused(&site.base, KVT_E_MISMATCH, "recover --replace");
    assert_non_null(strstr(site.base.message, "older"));
    assert_true(older_sum(site.base.path, 0) == member);
    assert_true(older_sum(site.base.catalog, 0) == catalog);
    char message[256] = "";
    kvt_recover_report report = {.struct_size = sizeof report};
    kvt_recover_options options;
    kvt_recover_options_init(&options);
    options.replace = true;
    kvt_status status =
        kvt_store_recover(&site.base.options, &options, &report, message, sizeof message);
    if (status != KVT_OK) fail_msg("%s: %s", kvt_status_name(status), message);
    assert_int_equal(report.entries, OPEN_ENTRIES);
    open_expect_all(&site.base);
}

TEST(older_by_lives)
{
    older_expect_refused(3);
}

/* The labels look like those of an open that was cut short, but nobody announced it. */
TEST(older_by_one_life)
{
    older_expect_refused(1);
}

/* The catalog that belongs to the devices opens them after a refused one. */
TEST(newest_put_back)
{
    older_site site;
    older_prepare(&site, 1);
    open_refused(&site.base, KVT_E_MISMATCH, "older");
    older_copy(site.newest, site.base.catalog);
    open_expect_all(&site.base);
}

TEST(given_up)
{
    older_site site;
    older_prepare(&site, 2);
    site.base.options.format = true;
    kvt_store *store = open_now(&site.base);
    assert_int_equal(support_get(store, 0, NULL), KVT_MISS);
    kvt_store_close(store);
    site.base.options.format = false;
    store = open_now(&site.base);
    open_put_all(store);
    kvt_store_close(store);
    open_expect_all(&site.base);
}

static void older_sql(const char *path, const char *sql)
{
    sqlite3 *db = NULL;
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, sql, NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
}

/* Every catalog has announced its epoch: one without is damaged. */
TEST(nothing_announced)
{
    older_site site;
    older_prepare(&site, 1);
    older_sql(site.base.catalog, "DELETE FROM meta WHERE name='opening'");
    open_refused(&site.base, KVT_E_CORRUPT, "recover");
}

TEST(announcement_damaged)
{
    older_site site;
    older_prepare(&site, 1);
    older_sql(site.base.catalog, "UPDATE meta SET value=x'02000000000000000000000000000000' "
                                 "WHERE name='opening'");
    open_refused(&site.base, KVT_E_CORRUPT, "recover");
}

/* A member that was away is measured by reads alone: what it holds may still be wanted. */
TEST(stale_member_not_written)
{
    open_site site;
    char copy[112];
    open_prepare(&site);
    snprintf(copy, sizeof copy, "%.95s.copy", site.path);
    kvt_store *store = open_now(&site);
    open_put_all(store);
    kvt_store_close(store);
    older_copy(site.path, copy);
    kvt_store_close(open_now(&site));
    kvt_store_close(open_now(&site));
    older_copy(copy, site.path);
    uint64_t member = older_sum(site.path, 8192);
    store = open_now(&site);
    assert_int_equal(support_stats(store).recovery_drops, OPEN_ENTRIES);
    kvt_store_close(store);
    assert_true(older_sum(site.path, 8192) == member);
}

/* An open that is refused late has dropped nothing: the rows of a member that was away included. */
TEST(refused_before_rows_go)
{
    open_site site;
    char copy[112], profile[112];
    kvt_profile *written = NULL;
    kvt_device *device = NULL;
    kvt_device_config config = {.struct_size = sizeof config,
                                .name = "ssd",
                                .backend = "sim",
                                .capacity_bytes = 1u << 24,
                                .read_bytes_per_s = 1000000000,
                                .write_bytes_per_s = 1000000000};
    kvt_profile_request request = {.struct_size = sizeof request, .repetitions = 1, .quick = true};
    open_prepare(&site);
    snprintf(copy, sizeof copy, "%.95s.copy", site.path);
    snprintf(profile, sizeof profile, "%.95s.profile", site.path);
    kvt_store *store = open_now(&site);
    open_put_all(store);
    kvt_store_close(store);
    older_copy(site.path, copy);
    kvt_store_close(open_now(&site));
    kvt_store_close(open_now(&site));
    older_copy(copy, site.path);
    assert_ok(kvt_profile_open(profile, KVT_PROFILE_WRITE, &written, NULL, 0));
    assert_ok(kvt_device_open(&config, &device, NULL, 0));
    assert_ok(kvt_profile_measure_device(written, device, KVT_TIER_SSD, 0, 1u << 23, &request));
    kvt_device_close(device);
    kvt_profile_close(written);
    site.options.learning.profile_path = profile;
    kvt_store *none = NULL;
    assert_int_equal(open_try(&site, &none), KVT_E_MISMATCH);
    assert_int_equal(open_count_elsewhere(site.catalog, "SELECT count(*) FROM entry"),
                     OPEN_ENTRIES);
}

/* Both labels of a sparse member have their room from the first open on. */
TEST(label_room)
{
    open_site site;
    open_prepare(&site);
    kvt_store_close(open_now(&site));
    int file = open(site.path, O_RDONLY);
    assert_true(file >= 0);
    off_t hole = lseek(file, 0, SEEK_HOLE);
    close(file);
    if (hole == 0) print_message("no holes are told here\n");
    assert_true(hole == 0 || hole >= 8192);
}

TEST(second_name)
{
    open_site site;
    char other[112];
    open_prepare(&site);
    kvt_store *store = open_now(&site);
    open_put_all(store);
    snprintf(other, sizeof other, "%.95s.other", site.catalog);
    assert_int_equal(link(site.catalog, other), 0);
    site.options.durability.catalog_path = other;
    open_refused(&site, KVT_E_ARGUMENT, "hard link");
    kvt_store_close(store);
    site.options.durability.catalog_path = site.catalog;
    open_refused(&site, KVT_E_ARGUMENT, "hard link");
    assert_int_equal(unlink(other), 0);
    open_expect_all(&site);
}

TEST(files_beside)
{
    static const char *const names[] = {"-wal", "-shm", "-lock"};
    open_site site;
    char path[128];
    open_prepare(&site);
    kvt_store_close(open_now(&site));
    for (int i = 0; i < 6; i++) {
        snprintf(path, sizeof path, "%s%s", site.catalog, names[i % 3]);
        (void)unlink(path);
        assert_int_equal(i < 3 ? symlink("catalog.db", path) : mkfifo(path, 0600), 0);
        open_refused(&site, KVT_E_ARGUMENT, names[i % 3]);
        assert_int_equal(unlink(path), 0);
    }
    kvt_store_close(open_now(&site));
}
