/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_recovery.c - what survives a restart, and what must not: stale drives, foreign files,
 * rotten records, damaged catalogs.
 */
#include "estimator/measure/measure.h"
#include "estimator/profile/profile.h"
#include "lock_scratch.h"
#include "rows_text.h"
#include "store/catalog/catalog.h"
#include "store_site.h"

#include <fcntl.h>
#include <sqlite3.h>
#include <sys/stat.h>

#define RECOVERY_COUNT 20u

/* SSD alone, so that everything that is put lands there. */
TEST_BEFORE_EACH
{
    site_new(state,
             (site_shape){.disks = 2, .disk_bytes = 2 << 20, .unit_bytes = 8192, .plain = true});
}

static kvt_status try_open(site *s)
{
    const kvt_status status = site_try_open(s);
    site_close(s);
    return status;
}

static void fill(site *s)
{
    site_open(s);
    site_put(s, 0, RECOVERY_COUNT);
    site_close(s);
}

/* Records travel through memory that the rings have registered. */
TEST(staging_registered)
{
    site *s = *state;
    site_open(s);
    kvt_device_stats stats = {.struct_size = sizeof stats};
    for (size_t i = 0; kvt_device_stats_get(s->store, i, &stats) == KVT_OK; i++) {
        bool ring = strncmp(stats.facts.engine, "io_uring", 8) == 0;
        if (!ring || !scratch_may_lock(s->options.limits.staging_bytes)) continue;
        if (strstr(stats.facts.engine, "+fixed") == NULL) fail_msg("%s", stats.facts.engine);
    }
}

TEST(restart)
{
    site *s = *state;
    fill(s);
    for (int life = 0; life < 3; life++) {
        site_open(s);
        kvt_store_stats stats = support_stats(s->store);
        assert_int_equal(stats.recovered, RECOVERY_COUNT);
        assert_int_equal(stats.recovery_drops, 0);
        assert_int_equal(stats.tiers[KVT_TIER_SSD].entries, RECOVERY_COUNT);
        assert_int_equal(site_hits(s, RECOVERY_COUNT), RECOVERY_COUNT);
        site_close(s);
    }
}

/* Rows that lie in the pool side by side are all taken over, although units of that size let the
 * policy fill less of the tier: after a crash they may pass that. */
TEST(more_than_the_policy_may_fill)
{
    site *s = *state;
    uint32_t count = 0;
    /* By measured shares, how many entries fill the tier would differ from run to run. */
    s->options.tiers[KVT_TIER_SSD].placement = KVT_PLACE_EQUAL;
    s->options.tiers[KVT_TIER_SSD].unit_bytes = 4096;
    s->options.limits.high_watermark = s->options.limits.low_watermark = 1.0;
    site_open(s);
    while (support_stats(s->store).evictions == 0)
        assert_ok(support_put(s->store, count++));
    assert_ok(kvt_store_flush(s->store));
    uint64_t stored = support_stats(s->store).tiers[KVT_TIER_SSD].entries;
    site_close(s);
    s->options.tiers[KVT_TIER_SSD].unit_bytes = 256 << 10;
    site_open(s);
    assert_int_equal(support_stats(s->store).recovered, stored);
    assert_int_equal(support_stats(s->store).recovery_drops, 0);
    /* What comes in from now on keeps to the lower capacity. */
    for (uint32_t i = 0; i < 2 * RECOVERY_COUNT; i++) {
        assert_ok(support_put(s->store, count + i));
        assert_ok(kvt_store_maintain(s->store, NULL));
    }
    kvt_store_stats stats = support_stats(s->store);
    assert_true(stats.tiers[KVT_TIER_SSD].entries < stored);
    assert_true(stats.tiers[KVT_TIER_SSD].used_bytes <= stats.tiers[KVT_TIER_SSD].capacity_bytes);
}

/* Makes a row of the last key out of the first one that is visited. */
static bool recovery_forge(void *context, const catalog_row *row)
{
    catalog_insertion **insertion = context;
    catalog_row forged = *row;
    memset(&forged.key, 0xff, sizeof forged.key);
    forged.serial++;
    assert_ok(catalog_insertion_new(&forged, insertion));
    return false;
}

static kvt_status recovery_sync(void *context)
{
    (void)context;
    return KVT_OK;
}

static void recovery_release(void *context, tiers_location *location)
{
    (void)context;
    tiers_location_free(location);
}

/* Of two sound rows that name the same bytes one is taken over, and no open after it finds the
 * other. */
TEST(rows_that_overlap)
{
    site *s = *state;
    fill(s);
    store_catalog *catalog;
    catalog_insertion *forged = NULL;
    assert_ok(catalog_open(s->catalog, 0, &catalog, s->message, sizeof s->message));
    assert_ok(catalog_each_entry_unsorted(catalog, recovery_forge, &forged));
    assert_non_null(forged);
    assert_ok(catalog_start(catalog, recovery_sync, recovery_release, NULL));
    catalog_insert(catalog, forged);
    assert_ok(catalog_flush(catalog));
    catalog_close(catalog);
    for (uint64_t drops = 1; drops <= 1; drops--) {
        site_open(s);
        assert_int_equal(support_stats(s->store).recovered, RECOVERY_COUNT);
        assert_int_equal(support_stats(s->store).recovery_drops, drops);
        assert_int_equal(site_hits(s, RECOVERY_COUNT), RECOVERY_COUNT);
        site_close(s);
    }
}

/* Entries that follow each other get the offers of their own facts. */
TEST(offers_of_neighbours)
{
    site *s = *state;
    kvt_explanation before[RECOVERY_COUNT], after = {.struct_size = sizeof after};
    char data[SUPPORT_ENTRY_BYTES] = {0};
    site_open(s);
    for (uint32_t i = 0; i < RECOVERY_COUNT; i++) {
        kvt_entry entry = support_entry(support_key(i), support_layout, 1e4 * (1 + i / 2 % 2));
        entry.tenant = i % 2;
        assert_ok(kvt_store_put(s->store, &entry, KVT_PACKED(data, sizeof data)));
    }
    for (int life = 0; life < 2; life++) {
        for (uint32_t i = 0; i < RECOVERY_COUNT; i++) {
            const kvt_key key = support_key(i);
            kvt_explanation *now = life == 0 ? &before[i] : &after;
            now->struct_size = sizeof *now;
            assert_ok(kvt_store_explain(s->store, &key, now));
            assert_int_equal(now->option_count, before[i].option_count);
            assert_true(now->options[KVT_OPTION_NONE].option.load_seconds ==
                        before[i].options[KVT_OPTION_NONE].option.load_seconds);
            assert_int_equal(now->handle, before[i].handle);
        }
        if (life == 0) site_reopen(s);
    }
    assert_true(before[0].options[KVT_OPTION_NONE].option.load_seconds <
                before[2].options[KVT_OPTION_NONE].option.load_seconds);
}

TEST(delete_survives_restart)
{
    site *s = *state;
    fill(s);
    site_open(s);
    for (uint32_t i = 0; i < RECOVERY_COUNT; i += 2) {
        kvt_key key = support_key(i);
        assert_ok(kvt_store_delete(s->store, &key));
    }
    assert_ok(support_put(s->store, 0)); /* a second life of one of them */
    site_reopen(s);
    assert_int_equal(support_stats(s->store).recovered, RECOVERY_COUNT / 2 + 1);
    for (uint32_t i = 0; i < RECOVERY_COUNT; i++) {
        kvt_status expected = i % 2 == 1 || i == 0 ? KVT_OK : KVT_MISS;
        assert_int_equal(support_get(s->store, i, NULL), expected);
    }
}

/* Every 4 KiB of one drive in turn gets a flipped bit: gets give the right bytes or a miss. */
TEST(rot)
{
    site *s = *state;
    fill(s);
    int file = open(s->paths[0], O_RDWR);
    assert_true(file >= 0);
    for (off_t at = 8192 + 100; at < (2 << 20); at += 8 * 4096) {
        unsigned char byte;
        assert_int_equal(pread(file, &byte, 1, at), 1);
        byte ^= 0x10;
        assert_int_equal(pwrite(file, &byte, 1, at), 1);
    }
    close(file);
    site_open(s);
    const uint32_t misses = RECOVERY_COUNT - site_hits(s, RECOVERY_COUNT);
    kvt_store_stats stats = support_stats(s->store);
    assert_true(misses > 0);
    assert_int_equal(stats.load_failures, misses);
    assert_int_equal(stats.tiers[KVT_TIER_SSD].entries, RECOVERY_COUNT - misses);
    site_reopen(s); /* what failed stays gone */
    assert_int_equal(support_stats(s->store).recovered, RECOVERY_COUNT - misses);
}

static void recovery_copy(const char *source, const char *target)
{
    char command[300];
    snprintf(command, sizeof command, "cp '%s' '%s'", source, target);
    assert_int_equal(system(command), 0);
}

/* A drive that was away while the store ran comes back with older bytes: none of them is served. */
TEST(stale_drive)
{
    site *s = *state;
    char kept[128];
    snprintf(kept, sizeof kept, "%s/kept", s->folder);
    fill(s);
    recovery_copy(s->paths[1], kept);
    for (int life = 0; life < 2; life++) {
        site_open(s);
        site_close(s);
    }
    recovery_copy(kept, s->paths[1]);
    site_open(s);
    kvt_store_stats stats = support_stats(s->store);
    assert_int_equal(stats.recovered + stats.recovery_drops, RECOVERY_COUNT);
    assert_true(stats.recovery_drops > 0);
    for (uint32_t i = 0; i < RECOVERY_COUNT; i++) {
        kvt_status status = support_get(s->store, i, NULL);
        assert_true(status == KVT_OK || status == KVT_MISS);
        if (status == KVT_MISS) assert_ok(support_put(s->store, i));
    }
    assert_int_equal(support_stats(s->store).load_failures, 0);
    site_reopen(s); /* and the drive is in service again */
    assert_int_equal(support_stats(s->store).recovered, RECOVERY_COUNT);
}

/* A drive that is not there, or came back blank, is not taken for one that was given up. */
TEST(missing_drive)
{
    site *s = *state;
    char kept[128];
    snprintf(kept, sizeof kept, "%s/kept", s->folder);
    fill(s);
    assert_int_equal(rename(s->paths[1], kept), 0);
    assert_int_equal(try_open(s), KVT_E_GONE);
    assert_non_null(strstr(s->message, "disk1"));
    assert_int_equal(access(s->paths[1], F_OK), -1); /* no file was made in its place */
    int file = open(s->paths[1], O_RDWR | O_CREAT, 0600);
    assert_int_equal(ftruncate(file, 2 << 20), 0);
    close(file);
    assert_int_equal(try_open(s), KVT_E_GONE);
    assert_int_equal(rename(kept, s->paths[1]), 0);
    site_open(s);
    assert_int_equal(support_stats(s->store).recovered, RECOVERY_COUNT);
    site_close(s);
    assert_int_equal(unlink(s->paths[1]), 0);
    s->options.format = true;
    site_open(s);
    assert_int_equal(support_stats(s->store).recovered + support_stats(s->store).recovery_drops,
                     RECOVERY_COUNT);
    assert_true(support_stats(s->store).recovery_drops > 0);
}

/* A tier as large as its drives, labels or not, and drives of odd size, open again and again. */
TEST(exact_sizes)
{
    site *s = *state;
    s->files[0].capacity_bytes = 3000001;
    s->files[1].capacity_bytes = 1000000;
    s->options.tiers[KVT_TIER_SSD].capacity_bytes = 3000001 / 4096 * 4096 + 1000000 / 4096 * 4096;
    fill(s);
    for (int life = 0; life < 2; life++) {
        site_open(s);
        assert_int_equal(support_stats(s->store).recovered, RECOVERY_COUNT);
        site_close(s);
    }
}

/* An open that fails leaves no catalog behind that was not there before. */
TEST(no_stray_catalog)
{
    site *s = *state;
    s->options.policy = "lruu";
    assert_int_equal(try_open(s), KVT_E_UNSUPPORTED);
    assert_int_equal(access(s->catalog, F_OK), -1);
}

TEST(foreign_drive)
{
    site *s = *state;
    fill(s);
    char other[128];
    snprintf(other, sizeof other, "%s/other.db", s->folder);
    s->options.durability.catalog_path = other;
    assert_int_equal(try_open(s), KVT_E_MISMATCH);
    assert_non_null(strstr(s->message, "disk0"));
    s->options.durability.catalog_path = s->catalog;
    site_open(s); /* nothing was lost by trying */
    assert_int_equal(support_stats(s->store).recovered, RECOVERY_COUNT);
    site_close(s);
    s->options.durability.catalog_path = other;
    s->options.format = true;
    site_open(s);
    assert_int_equal(support_stats(s->store).recovered, 0);
}

TEST(other_bytes)
{
    site *s = *state;
    int file = open(s->paths[0], O_RDWR | O_CREAT, 0600);
    assert_int_equal(ftruncate(file, 2 << 20), 0);
    assert_int_equal(pwrite(file, "somebody's photographs", 22, 100), 22);
    close(file);
    assert_int_equal(try_open(s), KVT_E_MISMATCH);
    char back[22];
    file = open(s->paths[0], O_RDONLY);
    assert_int_equal(pread(file, back, 22, 100), 22);
    close(file);
    assert_memory_equal(back, "somebody's photographs", 22);
}

static void recovery_write_file(const char *path, const void *data, size_t bytes)
{
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_true(file >= 0);
    assert_int_equal(write(file, data, bytes), (ssize_t)bytes);
    close(file);
}

TEST(damaged_catalog)
{
    site *s = *state;
    char text[4096];
    memset(text, 'x', sizeof text);
    recovery_write_file(s->catalog, text, sizeof text);
    assert_int_equal(try_open(s), KVT_E_CORRUPT);
    struct stat before;
    assert_int_equal(stat(s->catalog, &before), 0);
    assert_int_equal(before.st_size, sizeof text); /* left as it is */

    assert_int_equal(unlink(s->catalog), 0);
    sqlite3 *db;
    assert_int_equal(sqlite3_open(s->catalog, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, "CREATE TABLE mine(x)", NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
    assert_int_equal(try_open(s), KVT_E_MISMATCH);

    assert_int_equal(unlink(s->catalog), 0);
    fill(s);
    assert_int_equal(sqlite3_open(s->catalog, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, "PRAGMA user_version=99", NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
    assert_int_equal(try_open(s), KVT_E_VERSION);
}

/* Rows with impossible values are dropped, the others are taken over. */
TEST(damaged_rows)
{
    site *s = *state;
    static const char *const damages[] = {
        "UPDATE entry SET generation=-5 WHERE key=(SELECT min(key) FROM entry)",
        "UPDATE entry SET location=x'00112233' WHERE key=(SELECT max(key) FROM entry)",
        "UPDATE entry SET layers=70000 WHERE key=(SELECT key FROM entry ORDER BY key LIMIT 1 "
        "OFFSET 3)",
        "UPDATE entry SET location=(SELECT location FROM entry ORDER BY key LIMIT 1 OFFSET 5)"
        " WHERE key=(SELECT key FROM entry ORDER BY key LIMIT 1 OFFSET 6)",
        "UPDATE entry SET record_bytes=record_bytes+1 WHERE"
        " key=(SELECT key FROM entry ORDER BY key LIMIT 1 OFFSET 8)",
    };
    fill(s);
    sqlite3 *db;
    assert_int_equal(sqlite3_open(s->catalog, &db), SQLITE_OK);
    for (size_t i = 0; i < sizeof damages / sizeof damages[0]; i++) {
        assert_int_equal(sqlite3_exec(db, damages[i], NULL, NULL, NULL), SQLITE_OK);
        assert_int_equal(sqlite3_changes(db), 1);
    }
    sqlite3_close(db);
    site_open(s);
    kvt_store_stats stats = support_stats(s->store);
    assert_int_equal(stats.recovered, RECOVERY_COUNT - 5);
    assert_int_equal(stats.recovery_drops, 5);
    (void)site_hits(s, RECOVERY_COUNT);
    site_reopen(s);
    assert_int_equal(support_stats(s->store).recovery_drops, 0);
}

/* A deletion that could not be committed when the store closed: its row comes back, and what it
 * names was not trimmed. */
TEST(uncommitted_deletions_keep_their_bytes)
{
    site *s = *state;
    for (int i = 0; i < 2; i++)
        s->files[i].trim = true;
    fill(s);
    site_open(s);
    sqlite3 *db;
    assert_int_equal(sqlite3_open(s->catalog, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, "BEGIN IMMEDIATE", NULL, NULL, NULL), SQLITE_OK);
    for (uint32_t i = 0; i < RECOVERY_COUNT; i++) {
        kvt_key key = support_key(i);
        assert_ok(kvt_store_delete(s->store, &key));
    }
    site_close(s);
    assert_int_equal(sqlite3_exec(db, "ROLLBACK", NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
    site_open(s);
    assert_int_equal(support_stats(s->store).recovered, RECOVERY_COUNT);
    assert_int_equal(site_hits(s, RECOVERY_COUNT), RECOVERY_COUNT);
}

TEST(bad_options)
{
    site *s = *state;
    s->options.tiers[KVT_TIER_SSD].capacity_bytes = 64 << 20;
    assert_int_equal(try_open(s), KVT_E_SPACE);
    s->options.tiers[KVT_TIER_SSD].capacity_bytes = 0;
    s->options.tiers[KVT_TIER_SSD].unit_bytes = 1000;
    assert_int_equal(try_open(s), KVT_E_ARGUMENT);
    s->options.tiers[KVT_TIER_SSD].unit_bytes = 8192;
    s->options.policy = "crystal-ball";
    assert_int_equal(try_open(s), KVT_E_UNSUPPORTED);
    s->options.policy = "lru";
    s->options.variant.codec = KVT_CODEC_KIVI; /* lossy: nothing says yet what it would lose */
    assert_int_equal(try_open(s), KVT_E_ARGUMENT);
    s->options.variant.codec = KVT_CODEC_RAW;
    s->options.learning.profile_path = "no/such/profile.db";
    assert_int_equal(try_open(s), KVT_E_GONE);
    s->options.learning.profile_path = NULL;
    s->files[1].name = "disk0";
    assert_int_equal(try_open(s), KVT_E_ARGUMENT);
    s->files[1].name = "disk1";
    s->files[1].path = "no/such/folder/ssd1";
    assert_int_equal(try_open(s), KVT_E_GONE);
    s->files[1].path = s->paths[1];
    s->files[1].backend = "null";
    s->files[1].path = NULL;
    assert_int_equal(try_open(s), KVT_E_ARGUMENT);
    kvt_store_options empty;
    kvt_store_options_init(&empty);
    empty.limits.put_staging_bytes = 0; /* a put says how its write went */
    assert_int_equal(kvt_store_open(&empty, &s->store, NULL, 0), KVT_E_ARGUMENT);
}

/* Figures by the name of a device that is another one, or that were published, are not decided on
 * unless that is asked for; the message says what differs. */
TEST(profile_of_another_device)
{
    site *s = *state;
    char path[128];
    kvt_profile *profile = NULL;
    kvt_device *device = NULL;
    kvt_device_config config = {.struct_size = sizeof config,
                                .name = "disk0",
                                .backend = "sim",
                                .capacity_bytes = 1u << 24,
                                .read_bytes_per_s = 1000000000,
                                .write_bytes_per_s = 1000000000};
    kvt_profile_request request = {.struct_size = sizeof request, .repetitions = 1, .quick = true};
    snprintf(path, sizeof path, "%s/profile.db", s->folder);
    assert_ok(kvt_profile_open(path, KVT_PROFILE_WRITE, &profile, NULL, 0));
    assert_ok(kvt_device_open(&config, &device, NULL, 0));
    assert_ok(kvt_profile_measure_device(profile, device, KVT_TIER_SSD, 0, 1u << 23, &request));
    kvt_device_close(device);
    kvt_profile_close(profile);
    s->options.learning.profile_path = path;
    assert_int_equal(try_open(s), KVT_E_MISMATCH);
    assert_non_null(strstr(s->message, "device disk0"));
    assert_non_null(strstr(s->message, "sim read=1000000000"));
    assert_non_null(strstr(s->message, "this is \"file "));
    s->options.learning.profile_foreign = true;
    kvt_device_stats stats = {.struct_size = sizeof stats};
    site_open(s);
    assert_ok(kvt_device_stats_get(s->store, 0, &stats));
    assert_true(stats.read_bytes_per_s > 0.9e9 && stats.read_bytes_per_s < 1.1e9);
    site_close(s);
    s->options.learning.profile_foreign = false;

    assert_int_equal(unlink(path), 0);
    assert_ok(kvt_profile_open(path, KVT_PROFILE_WRITE, &profile, NULL, 0));
    rows_text_import(profile,
                     "[device]\ndevice,tier,direction,bytes_per_s,request_seconds\n"
                     "disk0,ssd,read,1,0\ndisk0,ssd,write,1,0\n",
                     "s");
    kvt_profile_close(profile);
    site_open(s); /* measured briefly, as without a curve */
    assert_ok(kvt_device_stats_get(s->store, 0, &stats));
    assert_true(stats.read_bytes_per_s > 1e3);
    site_close(s);
    assert_int_equal(unlink(path), 0);
    s->options.learning.profile_path = NULL;
}

TEST(two_openers)
{
    site *s = *state;
    site_open(s);
    kvt_store *first = s->store;
    assert_int_equal(try_open(s), KVT_E_LOCKED);
    kvt_store_close(first);
    assert_ok(try_open(s));
}
