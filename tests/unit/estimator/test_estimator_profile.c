/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_estimator_profile.c - opening profile databases: made whole, refused when foreign, damaged,
 * newer, measured elsewhere or not writable; and never changed by being refused.
 */
#include "cases.h"

#include "profile_scratch.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <sqlite3.h>

static kvt_status open_with(uint32_t flags, kvt_profile **profile)
{
    return kvt_profile_open(scratch.path, flags, profile, scratch.message, sizeof scratch.message);
}

static void measure_sim(kvt_profile *profile, const char *name, uint64_t rate)
{
    scratch_measure(profile, name, rate, 0);
}

static void make_profile(void)
{
    scratch_remove_profile();
    kvt_profile *profile = scratch_open(KVT_PROFILE_WRITE);
    measure_sim(profile, "first", 1000000000);
    kvt_profile_close(profile);
}

static void put_file(const void *bytes, size_t count)
{
    scratch_remove_profile();
    FILE *file = fopen(scratch.path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, count, file), count);
    assert_int_equal(fclose(file), 0);
}

/* Refused for reading and for writing, with words, and not one byte changed. */
static void expect_refusal(kvt_status expected)
{
    for (uint32_t flags = 0; flags < 2; flags++)
        scratch_refused(flags, expected);
}

TEST_ALL(scratch_make, scratch_remove);

TEST(made_when_absent_and_kept)
{
    kvt_profile *profile = NULL;
    kvt_device_curve curve;
    scratch_remove_profile();
    assert_int_equal(open_with(KVT_PROFILE_READ, &profile), KVT_MISS);
    assert_int_equal(access(scratch.path, F_OK), -1);
    profile = scratch_open(KVT_PROFILE_WRITE);
    assert_int_equal(kvt_profile_device_at(profile, 0, &curve), KVT_END);
    measure_sim(profile, "b", 2000000000);
    measure_sim(profile, "a", 1000000000);
    kvt_profile_close(profile);
    profile = scratch_open(KVT_PROFILE_READ);
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
    scratch_remove_profile();
    kvt_profile *profile = scratch_open(KVT_PROFILE_WRITE);
    measure_sim(profile, "disk", 1000000000);
    measure_sim(profile, "disk", 3000000000);
    assert_ok(kvt_profile_device(profile, "disk", &curve));
    assert_true(curve.read.bytes_per_s > 2.9e9);
    kvt_profile_close(profile);
    scratch_change("UPDATE run SET complete = 0 WHERE id = (SELECT max(id) FROM run)");
    profile = scratch_open(KVT_PROFILE_READ);
    assert_ok(kvt_profile_device(profile, "disk", &curve));
    assert_true(curve.read.bytes_per_s < 1.1e9);
    kvt_profile_close(profile);
    scratch_change("UPDATE run SET complete = 0"); /* nothing else: the newest incomplete one */
    profile = scratch_open(KVT_PROFILE_READ);
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
    scratch_remove_profile();
    kvt_profile *profile = scratch_open(KVT_PROFILE_WRITE);
    scratch_measure(profile, "first", 1000000000, 1u << 23);
    measure_sim(profile, "first", 4000000000);
    kvt_profile_close(profile);
    scratch_change("UPDATE device SET identity = 'one'"); /* sim's own tells the rate */
    profile = scratch_open(KVT_PROFILE_READ);
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

    scratch_change(
        "UPDATE device SET identity = 'another' WHERE id = (SELECT max(id) FROM device)");
    profile = scratch_open(KVT_PROFILE_READ);
    assert_ok(kvt_profile_device(profile, "first", &curve));
    assert_true(curve.read.bytes_per_s > 3e9);
    assert_true(curve.write.bytes_per_s == 0.0);
    kvt_profile_close(profile);
    scratch_remove_profile();
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
    scratch_remove_profile();
    scratch_change("CREATE TABLE t (x); INSERT INTO t VALUES (1)");
    expect_refusal(KVT_E_CORRUPT);
    scratch_remove_profile();
    scratch_change("CREATE TABLE t (x); PRAGMA application_id = 12345; PRAGMA user_version = 2");
    expect_refusal(KVT_E_CORRUPT);
    scratch_remove_profile();
    assert_int_equal(mkdir(scratch.path, 0755), 0);
    kvt_profile *profile = NULL;
    assert_int_equal(open_with(KVT_PROFILE_WRITE, &profile), KVT_E_CORRUPT);
    assert_int_equal(rmdir(scratch.path), 0);
}

TEST(other_versions_are_refused)
{
    make_profile();
    scratch_change("PRAGMA user_version = 5; PRAGMA wal_checkpoint(TRUNCATE)");
    expect_refusal(KVT_E_VERSION);
    scratch_change("PRAGMA user_version = 3; PRAGMA wal_checkpoint(TRUNCATE)");
    expect_refusal(KVT_E_VERSION);
    scratch_change("PRAGMA user_version = 0; PRAGMA wal_checkpoint(TRUNCATE)");
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
        scratch_change(changes[i]);
        scratch_change("PRAGMA wal_checkpoint(TRUNCATE)");
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
    char *bytes = scratch_bytes(&count);
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
    char *bytes = scratch_bytes(&count);
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
    scratch_change("UPDATE run SET host_identity = 'machine:0123', host_name = 'elsewhere'");
    scratch_change("PRAGMA wal_checkpoint(TRUNCATE)");
    expect_refusal(KVT_E_MISMATCH);
    assert_non_null(strstr(scratch.message, "identity differs"));
    assert_non_null(strstr(scratch.message, "elsewhere"));
    kvt_profile_close(scratch_open(KVT_PROFILE_READ | KVT_PROFILE_FOREIGN));
    make_profile();
    scratch_change("UPDATE run SET cpu_model = 'Another CPU 9000'");
    assert_int_equal(open_with(KVT_PROFILE_READ, &profile), KVT_E_MISMATCH);
    assert_non_null(strstr(scratch.message, "cpu model differs"));
    assert_non_null(strstr(scratch.message, "Another CPU 9000"));
    kvt_profile_close(scratch_open(KVT_PROFILE_WRITE | KVT_PROFILE_FOREIGN));
}

/* What was measured by another major.minor of the library is refused as long as it answers. */
TEST(another_versions_figures_are_a_mismatch)
{
    make_profile();
    scratch_change("UPDATE run SET library_version = '0.2.99'");
    kvt_profile_close(scratch_open(KVT_PROFILE_READ));
    scratch_change("UPDATE run SET library_version = '0.20.0'; PRAGMA wal_checkpoint(TRUNCATE)");
    expect_refusal(KVT_E_MISMATCH);
    assert_non_null(strstr(scratch.message, "library version differs"));
    assert_non_null(strstr(scratch.message, "0.20.0"));
    kvt_profile *profile = scratch_open(KVT_PROFILE_WRITE | KVT_PROFILE_FOREIGN);
    measure_sim(profile, "first", 2000000000);
    kvt_profile_close(profile);
    kvt_profile_close(scratch_open(KVT_PROFILE_READ));
}

/* Every table but run and model leads to a run, and a run's row says who measured, on what, when,
 * with which version, seed and command. */
TEST(every_row_has_a_run)
{
    make_profile();
    sqlite3 *database = NULL;
    sqlite3_stmt *statement = NULL;
    assert_int_equal(sqlite3_open(scratch.path, &database), SQLITE_OK);
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
    if (realpath(scratch.path, whole) == NULL || access(whole, R_OK) != 0) return 77;
    if (open_with(KVT_PROFILE_WRITE, &profile) != KVT_E_READ_ONLY) return 1;
    if (scratch.message[0] == '\0' || profile != NULL) return 2;
    if (open_with(KVT_PROFILE_READ, &profile) != KVT_OK) return 3;
    if (kvt_profile_device(profile, "first", &curve) != KVT_OK) return 4;
    kvt_profile_close(profile);
    snprintf(other, sizeof other, "%s/new.db", scratch.folder);
    if (kvt_profile_open(other, KVT_PROFILE_WRITE, &profile, scratch.message,
                         sizeof scratch.message) != KVT_E_READ_ONLY) {
        return 5;
    }
    return 0;
}

TEST(read_only_places)
{
    int result = 0;
    make_profile();
    assert_int_equal(chmod(scratch.path, 0444), 0);
    assert_int_equal(chmod(scratch.folder, 0555), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        _exit(child_tries_read_only_places());
    }
    assert_int_equal(waitpid(child, &result, 0), child);
    assert_int_equal(chmod(scratch.folder, 0755), 0);
    assert_true(WIFEXITED(result));
    if (WEXITSTATUS(result) == 77) skip();
    assert_int_equal(WEXITSTATUS(result), 0);
}

TEST(odd_paths)
{
    kvt_profile *profile = NULL;
    char other[200], longest[8192];
    assert_int_equal(kvt_profile_open("", KVT_PROFILE_WRITE, &profile, NULL, 0), KVT_E_DATABASE);
    snprintf(other, sizeof other, "%s/absent/profile.db", scratch.folder);
    assert_int_equal(kvt_profile_open(other, KVT_PROFILE_WRITE, &profile, scratch.message,
                                      sizeof scratch.message),
                     KVT_E_DATABASE);
    assert_non_null(strstr(scratch.message, "cannot make it"));
    memset(longest, 'x', sizeof longest);
    longest[sizeof longest - 1] = '\0';
    assert_int_equal(kvt_profile_open(longest, KVT_PROFILE_WRITE, &profile, NULL, 0),
                     KVT_E_DATABASE);
    snprintf(other, sizeof other, "%s/a?b#c%%20 d.db", scratch.folder); /* a name, not a URI */
    assert_ok(kvt_profile_open(other, KVT_PROFILE_WRITE, &profile, scratch.message,
                               sizeof scratch.message));
    kvt_profile_close(profile);
    assert_int_equal(access(other, F_OK), 0);
    assert_int_equal(unlink(other), 0);
    kvt_profile_close(NULL);
}
