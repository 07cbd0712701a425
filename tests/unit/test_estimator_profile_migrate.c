/* SPDX-License-Identifier: Apache-2.0 */
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
#include "profile_version_1.h"

#include <sys/wait.h>

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
