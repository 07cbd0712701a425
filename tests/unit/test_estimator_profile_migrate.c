/*
 * test_estimator_profile_migrate.c - databases of schema version 1, as that version made them:
 * brought up to date when opened for writing, with everything in them; refused for reading, with
 * the way out; left byte for byte when anything is unsound.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "profile_scratch.h"

#include "estimator/host_identity.h"

#include <sys/wait.h>

/* The tables as version 1 wrote them. */
static const char *const version_1[] = {
    "CREATE TABLE run (\n"
    "  id INTEGER PRIMARY KEY,\n"
    "  kind TEXT NOT NULL,\n"
    "  complete INTEGER NOT NULL DEFAULT 0,\n"
    "  host_identity TEXT NOT NULL,\n"
    "  host_name TEXT NOT NULL,\n"
    "  kernel TEXT NOT NULL,\n"
    "  cpu_model TEXT NOT NULL,\n"
    "  cpu_count INTEGER NOT NULL,\n"
    "  memory_bytes INTEGER NOT NULL,\n"
    "  started_utc TEXT NOT NULL,\n"
    "  finished_utc TEXT,\n"
    "  library_version TEXT NOT NULL,\n"
    "  sqlite_version TEXT NOT NULL,\n"
    "  zstd_version TEXT NOT NULL,\n"
    "  command_line TEXT,\n"
    "  seed INTEGER NOT NULL,\n"
    "  CHECK (kind IN ('device', 'codecs') AND complete IN (0, 1))\n"
    ") STRICT",
    "CREATE TABLE device (\n"
    "  id INTEGER PRIMARY KEY,\n"
    "  run_id INTEGER NOT NULL REFERENCES run (id) ON DELETE CASCADE,\n"
    "  name TEXT NOT NULL,\n"
    "  identity TEXT NOT NULL,\n"
    "  engine TEXT NOT NULL,\n"
    "  tier INTEGER NOT NULL,\n"
    "  direct INTEGER NOT NULL,\n"
    "  emulated INTEGER NOT NULL,\n"
    "  virtual_time INTEGER NOT NULL,\n"
    "  capacity_bytes INTEGER NOT NULL,\n"
    "  request_bytes_max INTEGER NOT NULL,\n"
    "  depth_max INTEGER NOT NULL,\n"
    "  depth_achieved INTEGER NOT NULL,\n"
    "  UNIQUE (name, run_id),\n"
    "  CHECK (length(name) BETWEEN 1 AND 31 AND tier BETWEEN 1 AND 3 AND direct IN (0, 1) AND "
    "emulated IN (0, 1) AND virtual_time IN (0, 1) AND capacity_bytes >= 0 AND "
    "request_bytes_max > 0 AND depth_max > 0 AND depth_achieved >= 0)\n"
    ") STRICT",
    "CREATE TABLE device_point (\n"
    "  device_id INTEGER NOT NULL REFERENCES device (id) ON DELETE CASCADE,\n"
    "  kind INTEGER NOT NULL,\n"
    "  request_bytes INTEGER NOT NULL,\n"
    "  depth INTEGER NOT NULL,\n"
    "  repetitions INTEGER NOT NULL,\n"
    "  bytes_per_s REAL NOT NULL,\n"
    "  bytes_per_s_min REAL NOT NULL,\n"
    "  bytes_per_s_max REAL NOT NULL,\n"
    "  latency_seconds_p50 REAL NOT NULL,\n"
    "  latency_seconds_p99 REAL NOT NULL,\n"
    "  PRIMARY KEY (device_id, kind, request_bytes, depth),\n"
    "  CHECK (kind IN (0, 1) AND request_bytes BETWEEN 1 AND 4294967295 AND "
    "depth BETWEEN 1 AND 4294967295 AND repetitions BETWEEN 1 AND 4294967295 AND "
    "bytes_per_s_min > 0 AND bytes_per_s_max < 1e300 AND "
    "bytes_per_s BETWEEN bytes_per_s_min AND bytes_per_s_max AND latency_seconds_p50 >= 0 AND "
    "latency_seconds_p50 <= latency_seconds_p99 AND latency_seconds_p99 < 1e300)\n"
    ") STRICT, WITHOUT ROWID",
    "CREATE TABLE device_fit (\n"
    "  device_id INTEGER NOT NULL REFERENCES device (id) ON DELETE CASCADE,\n"
    "  kind INTEGER NOT NULL,\n"
    "  request_seconds REAL NOT NULL,\n"
    "  bytes_per_s REAL NOT NULL,\n"
    "  residual REAL NOT NULL,\n"
    "  PRIMARY KEY (device_id, kind),\n"
    "  CHECK (kind IN (0, 1) AND request_seconds >= 0 AND request_seconds < 1e300 AND "
    "bytes_per_s > 0 AND bytes_per_s < 1e300 AND residual >= 0 AND residual < 1e300)\n"
    ") STRICT, WITHOUT ROWID",
    "CREATE TABLE codec_curve (\n"
    "  run_id INTEGER NOT NULL REFERENCES run (id) ON DELETE CASCADE,\n"
    "  codec INTEGER NOT NULL,\n"
    "  mode INTEGER NOT NULL,\n"
    "  rate INTEGER NOT NULL,\n"
    "  name TEXT NOT NULL,\n"
    "  stored_share REAL NOT NULL,\n"
    "  encode_bytes_per_s REAL NOT NULL,\n"
    "  decode_bytes_per_s REAL NOT NULL,\n"
    "  source_bytes INTEGER NOT NULL,\n"
    "  repetitions INTEGER NOT NULL,\n"
    "  PRIMARY KEY (run_id, codec, mode, rate),\n"
    "  CHECK (codec BETWEEN 0 AND 65535 AND mode BETWEEN 0 AND 65535 AND "
    "rate BETWEEN 0 AND 4294967295 AND stored_share > 0 AND stored_share < 64 AND "
    "encode_bytes_per_s > 0 AND encode_bytes_per_s < 1e300 AND decode_bytes_per_s > 0 AND "
    "decode_bytes_per_s < 1e300 AND source_bytes > 0 AND repetitions > 0)\n"
    ") STRICT, WITHOUT ROWID",
};

/* Two runs of a device, one of codecs, of this host. */
static void make_version_1(const char *extra)
{
    estimator_host host;
    char run[1024];
    scratch_remove_profile();
    for (size_t i = 0; i < sizeof version_1 / sizeof version_1[0]; i++)
        scratch_change(version_1[i]);
    estimator_host_read(&host);
    for (int id = 1; id <= 3; id++) {
        snprintf(run, sizeof run,
                 "INSERT INTO run VALUES (%d, '%s', 1, '%s', '%s', 'k', '%s', 2, 4096, "
                 "'2026-01-02T03:04:05Z', '2026-01-02T03:05:05Z', '0.1.0', '3', '1', 'x', 7)",
                 id, id == 3 ? "codecs" : "device", host.identity, host.name, host.cpu_model);
        scratch_change(run);
    }
    scratch_change(
        "INSERT INTO device VALUES (1, 1, 'disk', 'serial', 'io', 3, 1, 0, 0, 99, 9, 9, 9), "
        "(2, 2, 'disk', 'serial', 'io', 3, 1, 0, 0, 99, 9, 9, 9); "
        "INSERT INTO device_point VALUES (1, 1, 4096, 1, 5, 2e9, 1e9, 3e9, 1e-5, 2e-5), "
        "(2, 0, 4096, 1, 5, 2e9, 1e9, 3e9, 1e-5, 2e-5); "
        "INSERT INTO device_fit VALUES (1, 0, 1e-5, 1e9, 0.1), (1, 1, 2e-5, 7e8, 0.2), "
        "(2, 0, 3e-5, 4e9, 0.3); "
        "INSERT INTO codec_curve VALUES (3, 1, 0, 0, 'raw', 1.0, 5e9, 6e9, 1048576, 5)");
    if (extra != NULL) scratch_change(extra);
    scratch_change("PRAGMA application_id = 1263948880; PRAGMA user_version = 1; "
                   "PRAGMA journal_mode = WAL");
}

static void comes_over_whole(void **state)
{
    (void)state;
    kvt_device_curve device;
    kvt_device_point point;
    kvt_codec_curve codec;
    kvt_variant raw = {.codec = 1};
    make_version_1(NULL);
    scratch_refused(KVT_PROFILE_READ, KVT_E_VERSION);
    assert_non_null(strstr(scratch.message, "profile migrate"));
    kvt_profile_close(scratch_open(KVT_PROFILE_WRITE));
    kvt_profile *profile = scratch_open(KVT_PROFILE_READ);
    assert_int_equal(kvt_profile_device(profile, "disk", &device), KVT_OK);
    assert_true(device.read.bytes_per_s == 4e9 && device.write.bytes_per_s == 7e8);
    assert_int_equal(kvt_profile_point_at(profile, "disk", 1, &point), KVT_OK);
    assert_true(point.kind == KVT_IO_WRITE && point.bytes_per_s_max == 3e9);
    assert_int_equal(kvt_profile_codec(profile, raw, &codec), KVT_OK);
    assert_true(codec.decode_bytes_per_s == 6e9);
    kvt_profile_close(profile);
    assert_int_equal(scratch_number("SELECT count(*) FROM run WHERE command_line = 'x' AND "
                                    "seed = 7 AND source = '' AND complete = 1"),
                     3);
    assert_int_equal(scratch_number("SELECT count(*) FROM codec_curve WHERE threads = 1 AND "
                                    "source = 'sample'"),
                     1);
    assert_int_equal(scratch_number("PRAGMA user_version"), 2);
    assert_int_equal(scratch_number("SELECT count(*) FROM sqlite_schema WHERE sql LIKE "
                                    "'CREATE TABLE \"%' OR name LIKE 'old%'"),
                     0);
    /* And can be measured on; deleting a run still takes its rows. */
    profile = scratch_open(KVT_PROFILE_WRITE);
    scratch_measure(profile, "new", 1000000000, 0);
    kvt_profile_close(profile);
    scratch_change("PRAGMA foreign_keys = ON; DELETE FROM run WHERE id = 3");
    assert_int_equal(scratch_number("SELECT count(*) FROM codec_curve"), 0);
}

static void unsound_ones_stay_as_they_are(void **state)
{
    (void)state;
    static const char *const damages[] = {
        "CREATE TABLE extra (x)",
        "DROP TABLE codec_curve",
        "ALTER TABLE run ADD COLUMN more TEXT",
        "PRAGMA ignore_check_constraints = 1; UPDATE codec_curve SET stored_share = -1",
        "PRAGMA foreign_keys = OFF; DELETE FROM run WHERE id = 3",
        "CREATE TABLE model (x)",
    };
    for (size_t i = 0; i < sizeof damages / sizeof damages[0]; i++) {
        make_version_1(damages[i]);
        scratch_refused(KVT_PROFILE_WRITE, KVT_E_CORRUPT);
        scratch_refused(KVT_PROFILE_WRITE | KVT_PROFILE_FOREIGN, KVT_E_CORRUPT);
        scratch_refused(KVT_PROFILE_READ, KVT_E_VERSION);
    }
    make_version_1("UPDATE run SET host_identity = 'machine:elsewhere' WHERE id = 2");
    scratch_refused(KVT_PROFILE_WRITE, KVT_E_MISMATCH);
    kvt_profile_close(scratch_open(KVT_PROFILE_WRITE | KVT_PROFILE_FOREIGN));
    scratch_refused(KVT_PROFILE_READ, KVT_E_MISMATCH);
    kvt_profile_close(scratch_open(KVT_PROFILE_READ | KVT_PROFILE_FOREIGN));
}

/* Truncated and bit-flipped files of version 1 are refused or come over sound, never worse. */
static void hostile_bytes_come_over_sound_or_not_at_all(void **state)
{
    (void)state;
    size_t count, refused = 0, sound = 0;
    make_version_1(NULL);
    char *bytes = scratch_bytes(&count);
    for (size_t at = 16; at < count; at += at < 128 ? 3 : 401) {
        kvt_profile *profile = NULL;
        scratch_remove_profile();
        FILE *file = fopen(scratch.path, "wb");
        assert_non_null(file);
        bytes[at] = (char)(bytes[at] ^ 0x21);
        assert_int_equal(fwrite(bytes, 1, count, file), count);
        bytes[at] = (char)(bytes[at] ^ 0x21);
        assert_int_equal(fclose(file), 0);
        kvt_status status = kvt_profile_open(scratch.path, KVT_PROFILE_WRITE | KVT_PROFILE_FOREIGN,
                                             &profile, scratch.message, sizeof scratch.message);
        refused += status != KVT_OK;
        if (status != KVT_OK) {
            assert_true(status == KVT_E_CORRUPT || status == KVT_E_VERSION ||
                        status == KVT_E_DATABASE);
            continue;
        }
        kvt_profile_close(profile);
        kvt_profile_close(scratch_open(KVT_PROFILE_READ | KVT_PROFILE_FOREIGN));
        sound++;
    }
    free(bytes);
    assert_true(refused > 20 && sound > 20);
}

/* Several processes open at once: one migrates, all have it. */
static void many_at_once(void **state)
{
    (void)state;
    pid_t children[6];
    make_version_1(NULL);
    for (size_t i = 0; i < 6; i++) {
        children[i] = fork();
        assert_true(children[i] >= 0);
        if (children[i] == 0) {
            kvt_profile *profile = NULL;
            kvt_status status = kvt_profile_open(scratch.path, KVT_PROFILE_WRITE, &profile,
                                                 scratch.message, sizeof scratch.message);
            kvt_profile_close(profile);
            _exit(status == KVT_OK ? 0 : 1);
        }
    }
    for (size_t i = 0; i < 6; i++) {
        int result = 0;
        assert_int_equal(waitpid(children[i], &result, 0), children[i]);
        assert_int_equal(result, 0);
    }
    assert_int_equal(scratch_number("SELECT count(*) FROM run"), 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(comes_over_whole),
        cmocka_unit_test(unsound_ones_stay_as_they_are),
        cmocka_unit_test(hostile_bytes_come_over_sound_or_not_at_all),
        cmocka_unit_test(many_at_once),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
