/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_recovery.c - what survives a restart, and what must not: stale drives, foreign files,
 * rotten records, damaged catalogs.
 */
#include "estimator/measure/measure.h"
#include "estimator/profile/profile.h"
#include "lock_scratch.h"
#include "rows_text.h"
#include "store_support.h"

#include <fcntl.h>
#include <sqlite3.h>
#include <sys/stat.h>

#define RECOVERY_COUNT 20u

typedef struct recovery_site {
    char folder[64];
    char catalog[96];
    char paths[2][96];
    kvt_device_config devices[2];
    kvt_store_options options;
    char message[256];
} recovery_site;

/* SSD alone, so that everything that is put lands there. */
static int recovery_setup(void **state)
{
    recovery_site *site = calloc(1, sizeof *site);
    support_make_folder(site->folder, sizeof site->folder);
    snprintf(site->catalog, sizeof site->catalog, "%s/catalog.db", site->folder);
    kvt_store_options_init(&site->options);
    site->options.put_staging_bytes = 0; /* a put says how its write went */
    site->options.staging_bytes = 8 << 20;
    site->options.catalog_path = site->catalog;
    site->options.policy = "lru";
    site->options.tick_seconds = 0;
    for (int i = 0; i < 2; i++) {
        snprintf(site->paths[i], sizeof site->paths[i], "%s/ssd%d", site->folder, i);
        site->devices[i] = support_file_config(i == 0 ? "ssd0" : "ssd1", site->paths[i], 2 << 20);
    }
    site->options.tiers[KVT_TIER_SSD] =
        (kvt_tier_options){.devices = site->devices, .device_count = 2, .unit_bytes = 8192};
    *state = site;
    return 0;
}

static int recovery_teardown(void **state)
{
    recovery_site *site = *state;
    support_remove_folder(site->folder);
    free(site);
    return 0;
}

static kvt_store *recovery_open(recovery_site *site)
{
    kvt_store *store = NULL;
    kvt_status status = kvt_open(&site->options, &store, site->message, sizeof site->message);
    if (status != KVT_OK) fail_msg("open: %s: %s", kvt_status_name(status), site->message);
    return store;
}

static kvt_status recovery_try_open(recovery_site *site)
{
    kvt_store *store = NULL;
    kvt_status status = kvt_open(&site->options, &store, site->message, sizeof site->message);
    assert_true(status != KVT_OK || store != NULL);
    if (status != KVT_OK) assert_true(site->message[0] != '\0');
    kvt_close(store);
    return status;
}

static void recovery_fill(recovery_site *site)
{
    kvt_store *store = recovery_open(site);
    for (uint32_t i = 0; i < RECOVERY_COUNT; i++) {
        assert_int_equal(support_put(store, i), KVT_OK);
    }
    assert_int_equal(kvt_flush(store), KVT_OK);
    kvt_close(store);
}

TEST_EACH(recovery_setup, recovery_teardown);

/* Records travel through memory that the rings have registered. */
TEST(staging_registered)
{
    recovery_site *site = *state;
    kvt_store *store = recovery_open(site);
    kvt_device_stats stats = {.struct_size = sizeof stats};
    for (size_t i = 0; kvt_device_stats_at(store, i, &stats) == KVT_OK; i++) {
        bool ring = strncmp(stats.facts.engine, "io_uring", 8) == 0;
        if (!ring || !scratch_may_lock(site->options.staging_bytes)) continue;
        if (strstr(stats.facts.engine, "+fixed") == NULL) fail_msg("%s", stats.facts.engine);
    }
    kvt_close(store);
}

TEST(restart)
{
    recovery_site *site = *state;
    recovery_fill(site);
    for (int life = 0; life < 3; life++) {
        kvt_store *store = recovery_open(site);
        kvt_store_stats stats = support_stats(store);
        assert_int_equal(stats.recovered, RECOVERY_COUNT);
        assert_int_equal(stats.recovery_drops, 0);
        assert_int_equal(stats.tiers[KVT_TIER_SSD].entries, RECOVERY_COUNT);
        for (uint32_t i = 0; i < RECOVERY_COUNT; i++) {
            assert_int_equal(support_get(store, i, NULL), KVT_OK);
        }
        kvt_close(store);
    }
}

/* Rows that lie in the pool side by side are all taken over, although units of that size let the
 * policy fill less of the tier: after a crash they may pass that. */
TEST(more_than_the_policy_may_fill)
{
    recovery_site *site = *state;
    uint32_t count = 0;
    site->options.tiers[KVT_TIER_SSD].unit_bytes = 4096;
    site->options.high_watermark = site->options.low_watermark = 1.0;
    kvt_store *store = recovery_open(site);
    while (support_stats(store).evictions == 0)
        assert_int_equal(support_put(store, count++), KVT_OK);
    assert_int_equal(kvt_flush(store), KVT_OK);
    uint64_t stored = support_stats(store).tiers[KVT_TIER_SSD].entries;
    kvt_close(store);
    site->options.tiers[KVT_TIER_SSD].unit_bytes = 256 << 10;
    store = recovery_open(site);
    assert_int_equal(support_stats(store).recovered, stored);
    assert_int_equal(support_stats(store).recovery_drops, 0);
    /* What comes in from now on keeps to the lower capacity. */
    for (uint32_t i = 0; i < 2 * RECOVERY_COUNT; i++) {
        assert_int_equal(support_put(store, count + i), KVT_OK);
        assert_int_equal(kvt_maintain(store, NULL), KVT_OK);
    }
    kvt_store_stats stats = support_stats(store);
    assert_true(stats.tiers[KVT_TIER_SSD].entries < stored);
    assert_true(stats.tiers[KVT_TIER_SSD].used_bytes <= stats.tiers[KVT_TIER_SSD].capacity_bytes);
    kvt_close(store);
}

TEST(delete_survives_restart)
{
    recovery_site *site = *state;
    recovery_fill(site);
    kvt_store *store = recovery_open(site);
    for (uint32_t i = 0; i < RECOVERY_COUNT; i += 2) {
        kvt_key key = support_key(i);
        assert_int_equal(kvt_delete(store, &key), KVT_OK);
    }
    assert_int_equal(support_put(store, 0), KVT_OK); /* a second life of one of them */
    kvt_close(store);
    store = recovery_open(site);
    assert_int_equal(support_stats(store).recovered, RECOVERY_COUNT / 2 + 1);
    for (uint32_t i = 0; i < RECOVERY_COUNT; i++) {
        kvt_status expected = i % 2 == 1 || i == 0 ? KVT_OK : KVT_MISS;
        assert_int_equal(support_get(store, i, NULL), expected);
    }
    kvt_close(store);
}

/* Every 4 KiB of one drive in turn gets a flipped bit: gets give the right bytes or a miss. */
TEST(rot)
{
    recovery_site *site = *state;
    recovery_fill(site);
    uint32_t misses = 0;
    int file = open(site->paths[0], O_RDWR);
    assert_true(file >= 0);
    for (off_t at = 8192 + 100; at < (2 << 20); at += 8 * 4096) {
        unsigned char byte;
        assert_int_equal(pread(file, &byte, 1, at), 1);
        byte ^= 0x10;
        assert_int_equal(pwrite(file, &byte, 1, at), 1);
    }
    close(file);
    kvt_store *store = recovery_open(site);
    for (uint32_t i = 0; i < RECOVERY_COUNT; i++) {
        kvt_status status = support_get(store, i, NULL);
        assert_true(status == KVT_OK || status == KVT_MISS);
        misses += status == KVT_MISS;
    }
    kvt_store_stats stats = support_stats(store);
    assert_true(misses > 0);
    assert_int_equal(stats.load_failures, misses);
    assert_int_equal(stats.tiers[KVT_TIER_SSD].entries, RECOVERY_COUNT - misses);
    kvt_close(store);
    store = recovery_open(site); /* what failed stays gone */
    assert_int_equal(support_stats(store).recovered, RECOVERY_COUNT - misses);
    kvt_close(store);
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
    recovery_site *site = *state;
    char kept[128];
    snprintf(kept, sizeof kept, "%s/kept", site->folder);
    recovery_fill(site);
    recovery_copy(site->paths[1], kept);
    for (int life = 0; life < 2; life++) {
        kvt_close(recovery_open(site));
    }
    recovery_copy(kept, site->paths[1]);
    kvt_store *store = recovery_open(site);
    kvt_store_stats stats = support_stats(store);
    assert_int_equal(stats.recovered + stats.recovery_drops, RECOVERY_COUNT);
    assert_true(stats.recovery_drops > 0);
    for (uint32_t i = 0; i < RECOVERY_COUNT; i++) {
        kvt_status status = support_get(store, i, NULL);
        assert_true(status == KVT_OK || status == KVT_MISS);
        if (status == KVT_MISS) assert_int_equal(support_put(store, i), KVT_OK);
    }
    assert_int_equal(support_stats(store).load_failures, 0);
    kvt_close(store);
    store = recovery_open(site); /* and the drive is in service again */
    assert_int_equal(support_stats(store).recovered, RECOVERY_COUNT);
    kvt_close(store);
}

/* A drive that is not there, or came back blank, is not taken for one that was given up. */
TEST(missing_drive)
{
    recovery_site *site = *state;
    char kept[128];
    snprintf(kept, sizeof kept, "%s/kept", site->folder);
    recovery_fill(site);
    assert_int_equal(rename(site->paths[1], kept), 0);
    assert_int_equal(recovery_try_open(site), KVT_E_GONE);
    assert_non_null(strstr(site->message, "ssd1"));
    assert_int_equal(access(site->paths[1], F_OK), -1); /* no file was made in its place */
    int file = open(site->paths[1], O_RDWR | O_CREAT, 0600);
    assert_int_equal(ftruncate(file, 2 << 20), 0);
    close(file);
    assert_int_equal(recovery_try_open(site), KVT_E_GONE);
    assert_int_equal(rename(kept, site->paths[1]), 0);
    kvt_store *store = recovery_open(site);
    assert_int_equal(support_stats(store).recovered, RECOVERY_COUNT);
    kvt_close(store);
    assert_int_equal(unlink(site->paths[1]), 0);
    site->options.format = true;
    store = recovery_open(site);
    assert_int_equal(support_stats(store).recovered + support_stats(store).recovery_drops,
                     RECOVERY_COUNT);
    assert_true(support_stats(store).recovery_drops > 0);
    kvt_close(store);
}

/* A tier as large as its drives, labels or not, and drives of odd size, open again and again. */
TEST(exact_sizes)
{
    recovery_site *site = *state;
    site->devices[0].capacity_bytes = 3000001;
    site->devices[1].capacity_bytes = 1000000;
    site->options.tiers[KVT_TIER_SSD].capacity_bytes =
        3000001 / 4096 * 4096 + 1000000 / 4096 * 4096;
    recovery_fill(site);
    for (int life = 0; life < 2; life++) {
        kvt_store *store = recovery_open(site);
        assert_int_equal(support_stats(store).recovered, RECOVERY_COUNT);
        kvt_close(store);
    }
}

/* An open that fails leaves no catalog behind that was not there before. */
TEST(no_stray_catalog)
{
    recovery_site *site = *state;
    site->options.policy = "lruu";
    assert_int_equal(recovery_try_open(site), KVT_E_UNSUPPORTED);
    assert_int_equal(access(site->catalog, F_OK), -1);
}

TEST(foreign_drive)
{
    recovery_site *site = *state;
    recovery_fill(site);
    char other[128];
    snprintf(other, sizeof other, "%s/other.db", site->folder);
    site->options.catalog_path = other;
    assert_int_equal(recovery_try_open(site), KVT_E_MISMATCH);
    assert_non_null(strstr(site->message, "ssd0"));
    site->options.catalog_path = site->catalog;
    kvt_store *store = recovery_open(site); /* nothing was lost by trying */
    assert_int_equal(support_stats(store).recovered, RECOVERY_COUNT);
    kvt_close(store);
    site->options.catalog_path = other;
    site->options.format = true;
    store = recovery_open(site);
    assert_int_equal(support_stats(store).recovered, 0);
    kvt_close(store);
}

TEST(other_bytes)
{
    recovery_site *site = *state;
    int file = open(site->paths[0], O_RDWR | O_CREAT, 0600);
    assert_int_equal(ftruncate(file, 2 << 20), 0);
    assert_int_equal(pwrite(file, "somebody's photographs", 22, 100), 22);
    close(file);
    assert_int_equal(recovery_try_open(site), KVT_E_MISMATCH);
    char back[22];
    file = open(site->paths[0], O_RDONLY);
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
    recovery_site *site = *state;
    char text[4096];
    memset(text, 'x', sizeof text);
    recovery_write_file(site->catalog, text, sizeof text);
    assert_int_equal(recovery_try_open(site), KVT_E_CORRUPT);
    struct stat before;
    assert_int_equal(stat(site->catalog, &before), 0);
    assert_int_equal(before.st_size, sizeof text); /* left as it is */

    assert_int_equal(unlink(site->catalog), 0);
    sqlite3 *db;
    assert_int_equal(sqlite3_open(site->catalog, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, "CREATE TABLE mine(x)", NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
    assert_int_equal(recovery_try_open(site), KVT_E_MISMATCH);

    assert_int_equal(unlink(site->catalog), 0);
    recovery_fill(site);
    assert_int_equal(sqlite3_open(site->catalog, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, "PRAGMA user_version=99", NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
    assert_int_equal(recovery_try_open(site), KVT_E_VERSION);
}

/* Rows with impossible values are dropped, the others are taken over. */
TEST(damaged_rows)
{
    recovery_site *site = *state;
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
    recovery_fill(site);
    sqlite3 *db;
    assert_int_equal(sqlite3_open(site->catalog, &db), SQLITE_OK);
    for (size_t i = 0; i < sizeof damages / sizeof damages[0]; i++) {
        assert_int_equal(sqlite3_exec(db, damages[i], NULL, NULL, NULL), SQLITE_OK);
        assert_int_equal(sqlite3_changes(db), 1);
    }
    sqlite3_close(db);
    kvt_store *store = recovery_open(site);
    kvt_store_stats stats = support_stats(store);
    assert_int_equal(stats.recovered, RECOVERY_COUNT - 5);
    assert_int_equal(stats.recovery_drops, 5);
    for (uint32_t i = 0; i < RECOVERY_COUNT; i++) {
        kvt_status status = support_get(store, i, NULL);
        assert_true(status == KVT_OK || status == KVT_MISS);
    }
    kvt_close(store);
    store = recovery_open(site);
    assert_int_equal(support_stats(store).recovery_drops, 0);
    kvt_close(store);
}

/* A deletion that could not be committed when the store closed: its row comes back, and what it
 * names was not trimmed. */
TEST(uncommitted_deletions_keep_their_bytes)
{
    recovery_site *site = *state;
    for (int i = 0; i < 2; i++)
        site->devices[i].trim = true;
    recovery_fill(site);
    kvt_store *store = recovery_open(site);
    sqlite3 *db;
    assert_int_equal(sqlite3_open(site->catalog, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, "BEGIN IMMEDIATE", NULL, NULL, NULL), SQLITE_OK);
    for (uint32_t i = 0; i < RECOVERY_COUNT; i++) {
        kvt_key key = support_key(i);
        assert_int_equal(kvt_delete(store, &key), KVT_OK);
    }
    kvt_close(store);
    assert_int_equal(sqlite3_exec(db, "ROLLBACK", NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
    store = recovery_open(site);
    assert_int_equal(support_stats(store).recovered, RECOVERY_COUNT);
    for (uint32_t i = 0; i < RECOVERY_COUNT; i++)
        assert_int_equal(support_get(store, i, NULL), KVT_OK);
    kvt_close(store);
}

TEST(bad_options)
{
    recovery_site *site = *state;
    site->options.tiers[KVT_TIER_SSD].capacity_bytes = 64 << 20;
    assert_int_equal(recovery_try_open(site), KVT_E_SPACE);
    site->options.tiers[KVT_TIER_SSD].capacity_bytes = 0;
    site->options.tiers[KVT_TIER_SSD].unit_bytes = 1000;
    assert_int_equal(recovery_try_open(site), KVT_E_ARGUMENT);
    site->options.tiers[KVT_TIER_SSD].unit_bytes = 8192;
    site->options.policy = "crystal-ball";
    assert_int_equal(recovery_try_open(site), KVT_E_UNSUPPORTED);
    site->options.policy = "lru";
    site->options.variant.codec = KVT_CODEC_KIVI; /* lossy: nothing says yet what it would lose */
    assert_int_equal(recovery_try_open(site), KVT_E_ARGUMENT);
    site->options.variant.codec = KVT_CODEC_RAW;
    site->options.profile_path = "no/such/profile.db";
    assert_int_equal(recovery_try_open(site), KVT_E_GONE);
    site->options.profile_path = NULL;
    site->devices[1].name = "ssd0";
    assert_int_equal(recovery_try_open(site), KVT_E_ARGUMENT);
    site->devices[1].name = "ssd1";
    site->devices[1].path = "no/such/folder/ssd1";
    assert_int_equal(recovery_try_open(site), KVT_E_GONE);
    site->devices[1].path = site->paths[1];
    site->devices[1].backend = "null";
    site->devices[1].path = NULL;
    assert_int_equal(recovery_try_open(site), KVT_E_ARGUMENT);
    kvt_store_options empty;
    kvt_store_options_init(&empty);
    empty.put_staging_bytes = 0; /* a put says how its write went */
    kvt_store *store;
    assert_int_equal(kvt_open(&empty, &store, NULL, 0), KVT_E_ARGUMENT);
}

/* Figures by the name of a device that is another one, or that were published, are not decided on
 * unless that is asked for; the message says what differs. */
TEST(profile_of_another_device)
{
    recovery_site *site = *state;
    char path[128];
    kvt_profile *profile = NULL;
    kvt_device *device = NULL;
    kvt_device_config config = {.struct_size = sizeof config,
                                .name = "ssd0",
                                .backend = "sim",
                                .capacity_bytes = 1u << 24,
                                .read_bytes_per_s = 1000000000,
                                .write_bytes_per_s = 1000000000};
    kvt_profile_request request = {.struct_size = sizeof request, .repetitions = 1, .quick = true};
    snprintf(path, sizeof path, "%s/profile.db", site->folder);
    assert_int_equal(kvt_profile_open(path, KVT_PROFILE_WRITE, &profile, NULL, 0), KVT_OK);
    assert_int_equal(kvt_device_open(&config, &device, NULL, 0), KVT_OK);
    assert_int_equal(
        kvt_profile_measure_device(profile, device, KVT_TIER_SSD, 0, 1u << 23, &request), KVT_OK);
    kvt_device_close(device);
    kvt_profile_close(profile);
    site->options.profile_path = path;
    assert_int_equal(recovery_try_open(site), KVT_E_MISMATCH);
    assert_non_null(strstr(site->message, "device ssd0"));
    assert_non_null(strstr(site->message, "sim read=1000000000"));
    assert_non_null(strstr(site->message, "this is \"file "));
    site->options.profile_foreign = true;
    kvt_device_stats stats = {.struct_size = sizeof stats};
    kvt_store *store = recovery_open(site);
    assert_int_equal(kvt_device_stats_at(store, 0, &stats), KVT_OK);
    assert_true(stats.read_bytes_per_s > 0.9e9 && stats.read_bytes_per_s < 1.1e9);
    kvt_close(store);
    site->options.profile_foreign = false;

    assert_int_equal(unlink(path), 0);
    assert_int_equal(kvt_profile_open(path, KVT_PROFILE_WRITE, &profile, NULL, 0), KVT_OK);
    rows_text_import(profile,
                     "[device]\ndevice,tier,direction,bytes_per_s,request_seconds\n"
                     "ssd0,ssd,read,1,0\nssd0,ssd,write,1,0\n",
                     "s");
    kvt_profile_close(profile);
    store = recovery_open(site); /* measured briefly, as without a curve */
    assert_int_equal(kvt_device_stats_at(store, 0, &stats), KVT_OK);
    assert_true(stats.read_bytes_per_s > 1e3);
    kvt_close(store);
    assert_int_equal(unlink(path), 0);
    site->options.profile_path = NULL;
}

TEST(two_openers)
{
    recovery_site *site = *state;
    kvt_store *store = recovery_open(site);
    assert_int_equal(recovery_try_open(site), KVT_E_LOCKED);
    kvt_close(store);
    assert_int_equal(recovery_try_open(site), KVT_OK);
}
