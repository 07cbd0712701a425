/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_estimator_profile.c - opening profile databases: made whole, refused when foreign, damaged,
 * newer, measured elsewhere or not writable; and never changed by being refused.
 */
#include "cases.h"

#include "estimator/measure/measure.h"
#include "estimator/profile/profile.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <sqlite3.h>

static char folder[64];
static char path[128];
static char message[512];

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "estimator-profile-XXXXXX");
    if (mkdtemp(folder) == NULL) return -1;
    snprintf(path, sizeof path, "%s/profile.db", folder);
    return 0;
}

static void remove_profile(void)
{
    static const char *const endings[] = {"", "-wal", "-shm", "-journal"};
    for (size_t i = 0; i < 4; i++) {
        char name[160];
        snprintf(name, sizeof name, "%s%s", path, endings[i]);
        (void)unlink(name);
    }
}

/* Nothing but the profile may have been left in the folder: no drafts. */
static int remove_folder(void **state)
{
    (void)state;
    remove_profile();
    return rmdir(folder);
}

static kvt_status open_with(uint32_t flags, kvt_profile **profile)
{
    return kvt_profile_open(path, flags, profile, message, sizeof message);
}

static kvt_profile *must_open(uint32_t flags)
{
    kvt_profile *profile = NULL;
    kvt_status status = open_with(flags, &profile);
    if (status != KVT_OK) fail_msg("%s: %s", kvt_status_name(status), message);
    return profile;
}

static void measure_range(kvt_profile *profile, const char *name, uint64_t rate,
                          uint64_t write_bytes)
{
    kvt_device_config config = {.struct_size = sizeof config,
                                .name = name,
                                .backend = "sim",
                                .capacity_bytes = 1u << 24,
                                .read_bytes_per_s = rate,
                                .write_bytes_per_s = rate,
                                .latency_ns = 1000};
    kvt_profile_request request = {
        .struct_size = sizeof request, .repetitions = 1, .quick = true, .command_line = "x"};
    kvt_device *device = NULL;
    assert_ok(kvt_device_open(&config, &device, NULL, 0));
    assert_ok(kvt_profile_measure_device(profile, device, KVT_TIER_SSD, 0, write_bytes, &request));
    kvt_device_close(device);
}

static void measure_sim(kvt_profile *profile, const char *name, uint64_t rate)
{
    measure_range(profile, name, rate, 0);
}

static void make_profile(void)
{
    remove_profile();
    kvt_profile *profile = must_open(KVT_PROFILE_WRITE);
    measure_sim(profile, "first", 1000000000);
    kvt_profile_close(profile);
}

static void change(const char *sql)
{
    sqlite3 *database = NULL;
    char *error = NULL;
    assert_int_equal(sqlite3_open(path, &database), SQLITE_OK);
    if (sqlite3_exec(database, sql, NULL, NULL, &error) != SQLITE_OK) fail_msg("%s", error);
    assert_int_equal(sqlite3_close(database), SQLITE_OK);
}

static void put_file(const void *bytes, size_t count)
{
    remove_profile();
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, count, file), count);
    assert_int_equal(fclose(file), 0);
}

static char *take_file(size_t *count)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    *count = (size_t)ftell(file);
    rewind(file);
    char *bytes = test_alloc(*count + 1);
    assert_int_equal(fread(bytes, 1, *count, file), *count);
    fclose(file);
    return bytes;
}

/* Refused for reading and for writing, with words, and not one byte changed. */
static void expect_refusal(kvt_status expected)
{
    size_t before_count, after_count;
    char *before = take_file(&before_count);
    for (uint32_t flags = 0; flags < 2; flags++) {
        kvt_profile *profile = NULL;
        kvt_status status = open_with(flags, &profile);
        if (status != expected)
            fail_msg("flags %u: %s: %s", flags, kvt_status_name(status), message);
        assert_null(profile);
        assert_true(strlen(message) > strlen(path));
    }
    char *after = take_file(&after_count);
    assert_int_equal(before_count, after_count);
    assert_memory_equal(before, after, before_count);
}

TEST_ALL(make_folder, remove_folder);

TEST(made_when_absent_and_kept)
{
    kvt_profile *profile = NULL;
    kvt_device_curve curve;
    remove_profile();
    assert_int_equal(open_with(KVT_PROFILE_READ, &profile), KVT_MISS);
    assert_int_equal(access(path, F_OK), -1);
    profile = must_open(KVT_PROFILE_WRITE);
    assert_int_equal(kvt_profile_device_at(profile, 0, &curve), KVT_END);
    measure_sim(profile, "b", 2000000000);
    measure_sim(profile, "a", 1000000000);
    kvt_profile_close(profile);
    profile = must_open(KVT_PROFILE_READ);
    assert_ok(kvt_profile_device_at(profile, 0, &curve));
    assert_string_equal(curve.device, "a");
    assert_ok(kvt_profile_device_at(profile, 1, &curve));
    assert_string_equal(curve.device, "b");
    assert_int_equal(kvt_profile_device_at(profile, 2, &curve), KVT_END);
    kvt_profile_request request = {.struct_size = sizeof request, .quick = true};
    assert_int_equal(kvt_profile_measure_codecs(profile, &request), KVT_E_READ_ONLY);
    kvt_profile_close(profile);
}

TEST(newest_run_wins)
{
    kvt_device_curve curve;
    remove_profile();
    kvt_profile *profile = must_open(KVT_PROFILE_WRITE);
    measure_sim(profile, "disk", 1000000000);
    measure_sim(profile, "disk", 3000000000);
    assert_ok(kvt_profile_device(profile, "disk", &curve));
    assert_true(curve.read.bytes_per_s > 2.9e9);
    kvt_profile_close(profile);
    change("UPDATE run SET complete = 0 WHERE id = (SELECT max(id) FROM run)");
    profile = must_open(KVT_PROFILE_READ);
    assert_ok(kvt_profile_device(profile, "disk", &curve));
    assert_true(curve.read.bytes_per_s < 1.1e9);
    kvt_profile_close(profile);
    change("UPDATE run SET complete = 0"); /* nothing else: the newest incomplete one */
    profile = must_open(KVT_PROFILE_READ);
    assert_ok(kvt_profile_device(profile, "disk", &curve));
    assert_true(curve.read.bytes_per_s > 2.9e9);
    kvt_profile_close(profile);
}

/* A device with content is measured again by its reads alone: what is known of its writes stays,
 * as long as it is the same device. */
TEST(reads_alone_keep_the_writes)
{
    kvt_device_curve curve;
    kvt_device_point point;
    remove_profile();
    kvt_profile *profile = must_open(KVT_PROFILE_WRITE);
    measure_range(profile, "first", 1000000000, 1u << 23);
    measure_sim(profile, "first", 4000000000);
    kvt_profile_close(profile);
    change("UPDATE device SET identity = 'one'"); /* sim's own tells the rate */
    profile = must_open(KVT_PROFILE_READ);
    assert_ok(kvt_profile_device(profile, "first", &curve));
    assert_true(curve.read.bytes_per_s > 3e9);
    assert_true(curve.write.bytes_per_s > 0.9e9 && curve.write.bytes_per_s < 1.1e9);
    size_t reads = 0, writes = 0;
    for (size_t i = 0; kvt_profile_point_at(profile, "first", i, &point) == KVT_OK; i++) {
        reads += point.kind == KVT_IO_READ;
        writes += point.kind == KVT_IO_WRITE;
        assert_true(point.kind == KVT_IO_WRITE || point.bytes_per_s > 1.1e9 ||
                    point.request_bytes < 65536);
    }
    assert_true(reads > 0 && writes == reads); /* one grid each, not two */
    kvt_profile_close(profile);

    change("UPDATE device SET identity = 'another' WHERE id = (SELECT max(id) FROM device)");
    profile = must_open(KVT_PROFILE_READ);
    assert_ok(kvt_profile_device(profile, "first", &curve));
    assert_true(curve.read.bytes_per_s > 3e9);
    assert_true(curve.write.bytes_per_s == 0.0);
    kvt_profile_close(profile);
    remove_profile();
}

TEST(foreign_files_are_refused)
{
    static const char text[] =
        "size,depth,MB/s\n4096,1,69\nnotes of somebody else, kept for years, "
        "and longer than a database header is\n";
    put_file(text, sizeof text - 1);
    expect_refusal(KVT_E_CORRUPT);
    put_file("", 0);
    expect_refusal(KVT_E_CORRUPT);
    remove_profile();
    change("CREATE TABLE t (x); INSERT INTO t VALUES (1)");
    expect_refusal(KVT_E_CORRUPT);
    remove_profile();
    change("CREATE TABLE t (x); PRAGMA application_id = 12345; PRAGMA user_version = 2");
    expect_refusal(KVT_E_CORRUPT);
    remove_profile();
    assert_int_equal(mkdir(path, 0755), 0);
    kvt_profile *profile = NULL;
    assert_int_equal(open_with(KVT_PROFILE_WRITE, &profile), KVT_E_CORRUPT);
    assert_int_equal(rmdir(path), 0);
}

TEST(other_versions_are_refused)
{
    make_profile();
    change("PRAGMA user_version = 4; PRAGMA wal_checkpoint(TRUNCATE)");
    expect_refusal(KVT_E_VERSION);
    change("PRAGMA user_version = 2; PRAGMA wal_checkpoint(TRUNCATE)");
    expect_refusal(KVT_E_VERSION);
    change("PRAGMA user_version = 0; PRAGMA wal_checkpoint(TRUNCATE)");
    expect_refusal(KVT_E_VERSION);
}

TEST(changed_schemas_are_refused)
{
    static const char *const changes[] = {
        "CREATE TABLE extra (x)",
        "CREATE TRIGGER t AFTER INSERT ON run BEGIN DELETE FROM device; END",
        "CREATE VIEW v AS SELECT 1",
        "DROP TABLE codec_curve",
        "ALTER TABLE device ADD COLUMN more TEXT",
        "PRAGMA ignore_check_constraints = 1; UPDATE device_fit SET bytes_per_s = -1",
        "PRAGMA ignore_check_constraints = 1; INSERT INTO prefill VALUES (1, 'p', -1, 1, 1)",
        "PRAGMA foreign_keys = 0; INSERT INTO prefill VALUES (99, 'p', 1, 1, 1)",
        "PRAGMA foreign_keys = 0; INSERT INTO quality_set (run_id, model_id, class, method, "
        "settings, context_tokens, continuation_tokens, entries) VALUES (1, 99, 'c', 'import', "
        "'', 0, 0, 0)",
        "PRAGMA foreign_keys = 0; DELETE FROM run",
        "PRAGMA ignore_check_constraints = 1; UPDATE device_fit SET bytes_per_s = 9e999",
    };
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        make_profile();
        change(changes[i]);
        change("PRAGMA wal_checkpoint(TRUNCATE)");
        expect_refusal(KVT_E_CORRUPT);
    }
}

/* A truncated file is refused at every length. A length of 0 stays refused as well: it may be
 * somebody's file that was only just made. The last page is an empty table's, mostly zeros: cutting
 * into those changes nothing. */
TEST(truncated_files_are_refused)
{
    size_t count;
    make_profile();
    char *bytes = take_file(&count);
    assert_true(count >= 6 * 4096);
    for (size_t cut = 0; cut <= count - 4096; cut += cut < 128 ? 33 : 2048) {
        put_file(bytes, cut);
        expect_refusal(KVT_E_CORRUPT);
    }
}

/* Bit flips are refused or harmless: whatever opens can be read to the end without a fault. */
TEST(flipped_bits_are_harmless)
{
    size_t count, refused = 0;
    make_profile();
    char *bytes = take_file(&count);
    for (size_t at = 0; at < count; at += at < 512 ? 7 : 509) {
        kvt_profile *profile = NULL;
        bytes[at] = (char)(bytes[at] ^ 0x41);
        put_file(bytes, count);
        bytes[at] = (char)(bytes[at] ^ 0x41);
        kvt_status status = open_with(KVT_PROFILE_READ | KVT_PROFILE_FOREIGN, &profile);
        if (status != KVT_OK) {
            assert_true(status == KVT_E_CORRUPT || status == KVT_E_VERSION ||
                        status == KVT_E_DATABASE);
            assert_null(profile);
            refused++;
            continue;
        }
        kvt_device_curve curve;
        kvt_device_point point;
        for (size_t i = 0; kvt_profile_device_at(profile, i, &curve) == KVT_OK && i < 100; i++) {
            assert_true(curve.read.bytes_per_s > 0.0);
            for (size_t p = 0; p < 100; p++) {
                if (kvt_profile_point_at(profile, curve.device, p, &point) != KVT_OK) break;
            }
        }
        kvt_profile_close(profile);
    }
    assert_true(refused > 10);
}

TEST(another_hosts_profile_is_a_mismatch)
{
    kvt_profile *profile = NULL;
    make_profile();
    change("UPDATE run SET host_identity = 'machine:0123', host_name = 'elsewhere'");
    change("PRAGMA wal_checkpoint(TRUNCATE)");
    expect_refusal(KVT_E_MISMATCH);
    assert_non_null(strstr(message, "identity differs"));
    assert_non_null(strstr(message, "elsewhere"));
    kvt_profile_close(must_open(KVT_PROFILE_READ | KVT_PROFILE_FOREIGN));
    make_profile();
    change("UPDATE run SET cpu_model = 'Another CPU 9000'");
    assert_int_equal(open_with(KVT_PROFILE_READ, &profile), KVT_E_MISMATCH);
    assert_non_null(strstr(message, "cpu model differs"));
    assert_non_null(strstr(message, "Another CPU 9000"));
    kvt_profile_close(must_open(KVT_PROFILE_WRITE | KVT_PROFILE_FOREIGN));
}

/* What was measured by another major.minor of the library is refused as long as it answers. */
TEST(another_versions_figures_are_a_mismatch)
{
    make_profile();
    change("UPDATE run SET library_version = '0.2.99'");
    kvt_profile_close(must_open(KVT_PROFILE_READ));
    change("UPDATE run SET library_version = '0.20.0'; PRAGMA wal_checkpoint(TRUNCATE)");
    expect_refusal(KVT_E_MISMATCH);
    assert_non_null(strstr(message, "library version differs"));
    assert_non_null(strstr(message, "0.20.0"));
    kvt_profile *profile = must_open(KVT_PROFILE_WRITE | KVT_PROFILE_FOREIGN);
    measure_sim(profile, "first", 2000000000);
    kvt_profile_close(profile);
    kvt_profile_close(must_open(KVT_PROFILE_READ));
}

/* Every table but run and model leads to a run, and a run's row says who measured, on what, when,
 * with which version, seed and command. */
TEST(every_row_has_a_run)
{
    make_profile();
    sqlite3 *database = NULL;
    sqlite3_stmt *statement = NULL;
    assert_int_equal(sqlite3_open(path, &database), SQLITE_OK);
    /* Tables that do not refer to run, nor to a table that does. */
    assert_int_equal(
        sqlite3_prepare_v2(
            database,
            "WITH RECURSIVE leads (name) AS (SELECT 'run' UNION SELECT s.name FROM sqlite_schema "
            "s, pragma_foreign_key_list(s.name) f JOIN leads l ON l.name = f.\"table\" WHERE "
            "s.type = 'table') SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT IN "
            "(SELECT name FROM leads)",
            -1, &statement, NULL),
        SQLITE_OK);
    assert_int_equal(sqlite3_step(statement), SQLITE_ROW);
    assert_string_equal(sqlite3_column_text(statement, 0), "model");
    assert_int_equal(sqlite3_step(statement), SQLITE_DONE);
    sqlite3_finalize(statement);
    assert_int_equal(
        sqlite3_prepare_v2(
            database,
            "SELECT 1 FROM run r JOIN device d ON d.run_id = r.id WHERE length(host_identity) > 4 "
            "AND length(kernel) > 4 AND length(cpu_model) > 0 AND cpu_count > 0 AND memory_bytes > "
            "0 AND started_utc LIKE '20__-__-__T__:__:__Z' AND finished_utc >= started_utc AND "
            "library_version LIKE '%.%.%' AND command_line = 'x' AND length(d.identity) > 0",
            -1, &statement, NULL),
        SQLITE_OK);
    assert_int_equal(sqlite3_step(statement), SQLITE_ROW);
    sqlite3_finalize(statement);
    assert_int_equal(sqlite3_close(database), SQLITE_OK);
}

/* In a child without root's rights, which would override file modes. Exit code 0 = as expected. */
static int child_tries_read_only_places(void)
{
    kvt_profile *profile = NULL;
    kvt_device_curve curve;
    char other[160];
    if (geteuid() == 0 && (setgid(65534) != 0 || setuid(65534) != 0)) return 77;
    /* SQLite asks for the whole name, and a folder above may be closed to others. */
    char whole[PATH_MAX];
    if (realpath(path, whole) == NULL || access(whole, R_OK) != 0) return 77;
    if (open_with(KVT_PROFILE_WRITE, &profile) != KVT_E_READ_ONLY) return 1;
    if (message[0] == '\0' || profile != NULL) return 2;
    if (open_with(KVT_PROFILE_READ, &profile) != KVT_OK) return 3;
    if (kvt_profile_device(profile, "first", &curve) != KVT_OK) return 4;
    kvt_profile_close(profile);
    snprintf(other, sizeof other, "%s/new.db", folder);
    if (kvt_profile_open(other, KVT_PROFILE_WRITE, &profile, message, sizeof message) !=
        KVT_E_READ_ONLY) {
        return 5;
    }
    return 0;
}

TEST(read_only_places)
{
    int result = 0;
    make_profile();
    assert_int_equal(chmod(path, 0444), 0);
    assert_int_equal(chmod(folder, 0555), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        _exit(child_tries_read_only_places());
    }
    assert_int_equal(waitpid(child, &result, 0), child);
    assert_int_equal(chmod(folder, 0755), 0);
    assert_true(WIFEXITED(result));
    if (WEXITSTATUS(result) == 77) skip();
    assert_int_equal(WEXITSTATUS(result), 0);
}

TEST(odd_paths)
{
    kvt_profile *profile = NULL;
    char other[200], longest[8192];
    assert_int_equal(kvt_profile_open("", KVT_PROFILE_WRITE, &profile, NULL, 0), KVT_E_DATABASE);
    snprintf(other, sizeof other, "%s/absent/profile.db", folder);
    assert_int_equal(kvt_profile_open(other, KVT_PROFILE_WRITE, &profile, message, sizeof message),
                     KVT_E_DATABASE);
    assert_non_null(strstr(message, "cannot make it"));
    memset(longest, 'x', sizeof longest);
    longest[sizeof longest - 1] = '\0';
    assert_int_equal(kvt_profile_open(longest, KVT_PROFILE_WRITE, &profile, NULL, 0),
                     KVT_E_DATABASE);
    snprintf(other, sizeof other, "%s/a?b#c%%20 d.db", folder); /* a name, not a URI */
    assert_ok(kvt_profile_open(other, KVT_PROFILE_WRITE, &profile, message, sizeof message));
    kvt_profile_close(profile);
    assert_int_equal(access(other, F_OK), 0);
    assert_int_equal(unlink(other), 0);
    kvt_profile_close(NULL);
}
