/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torture_estimator_profile.c - what is done to a profile as a whole, killed at any moment, with
 * allocations of SQLite that fail, and on files with flipped bits: imports happen whole or
 * not at all, and whatever opens can be exported, compared and cleaned up.
 */

#include "cases.h"
#include "estimator/predict/predict.h"
#include "failing_sqlite.h"
#include "profile_scratch.h"
#include "rows_text.h"

#include <math.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>

enum { IMPORT_ROWS = 40 };

static char rows_path[128];

static int setup(void **state)
{
    if (scratch_make(state) != 0) return -1;
    /* Every table that an import takes; IMPORT_ROWS rows of prefill. */
    char text[4096];
    int used = snprintf(
        text, sizeof text, "%s",
        "[model]\nmodel,layers,kv_heads,head_dim\nm,2,1,32\n"
        "[device]\ndevice,tier,direction,bytes_per_s,request_seconds\nd,ssd,read,1e9,1e-5\n"
        "[device_point]\ndevice,direction,request_bytes,depth,bytes_per_s,latency_seconds_p50\n"
        "d,read,4096,1,1e8,1e-5\n"
        "[codec]\nvariant,stored_share,encode_bytes_per_s,decode_bytes_per_s\nraw,1,1e9,2e9\n"
        "kivi:k4v4 g64,0.28,1e9,2e9\n"
        "[quality]\nmodel,class,variant,metric,bits_per_element,loss_mean\n"
        "m,c,kivi:k4v4 g64,top1,4.5,0.1\n"
        "[quality_entry]\nmodel,class,entry,variant,bits_per_element,kl\n"
        "m,c,0,kivi:k4v4 g64,4.5,0.001\n"
        "[quality_map]\nmodel,family,position,attention_error,loss\nm,kivi,0,0,0\n"
        "[calibration]\nmodel,class,position,variant,bits_per_element,loss,counts\n"
        "m,c,0,raw,16,0,\nm,c,1,kivi:k4v4 g64,4.5,0.1,0a0b\n"
        "[calibration_choice]\nmodel,class,question,chosen\nm,c,split,k4v4\n"
        "[prefill]\nname,linear_seconds_per_token,square_seconds_per_token2\n");
    for (int i = 0; i < IMPORT_ROWS; i++)
        used += snprintf(text + used, sizeof text - (size_t)used, "p%d,1e-4,1e-9\n", i);
    snprintf(rows_path, sizeof rows_path, "%s/rows.json", scratch.folder);
    rows_text_write(rows_path, text);
    return 0;
}

static int teardown(void **state)
{
    return unlink(rows_path) != 0 || scratch_remove(state) != 0;
}

/* Everything that reads a profile, and one import and gc. The first status that is not KVT_OK. */
static kvt_status use_all(kvt_profile *profile, bool writes)
{
    kvt_codec_curve curves[KVT_VARIANTS_MAX];
    json_t *tables = json_object(), *changes = json_array();
    const json_t *change;
    bool differ = false;
    uint64_t rows = 0;
    size_t at;
    uint32_t count;
    kvt_status status = KVT_OK;
    if (writes) status = exchange_import(profile, rows_path, "s", NULL, &rows, NULL, 0);
    if (status == KVT_OK) status = exchange_export(profile, NULL, tables);
    if (status == KVT_OK) status = exchange_export(profile, "run", tables);
    if (status == KVT_OK) status = exchange_diff(profile, profile, changes);
    json_array_foreach(changes, at, change)
    {
        if (json_number_value(json_object_get(change, "change")) != 0) differ = true;
    }
    json_decref(tables);
    json_decref(changes);
    if (status == KVT_OK && differ) return KVT_E_STATE;
    if (status == KVT_OK) {
        status =
            exchange_ladder(profile, "m", "c", NULL, curves, KVT_VARIANTS_MAX, &count, NULL, 0);
        if (status == KVT_MISS) status = KVT_OK; /* a flipped name */
    }
    json_t *report = json_object();
    if (status == KVT_OK) status = exchange_gc(profile, !writes, 0, report);
    json_decref(report);
    return status;
}

/* An import's rows are all there or none, whatever was killed. */
static void expect_whole_imports(void)
{
    assert_int_equal(
        scratch_number("SELECT count(*) FROM run r WHERE (SELECT count(*) FROM prefill "
                       "p WHERE p.run_id = r.id) <> 40 OR r.complete <> 1"),
        0);
    assert_int_equal(scratch_number("SELECT count(*) FROM run r WHERE NOT EXISTS (SELECT 1 FROM "
                                    "quality_set s JOIN quality_entry e ON e.set_id = s.id WHERE "
                                    "s.run_id = r.id)"),
                     0);
}

TEST_ALL(setup, teardown);

TEST(killed_imports_are_whole)
{
    scratch_remove_profile();
    kvt_profile_close(scratch_open(KVT_PROFILE_WRITE));
    for (int round = 0; round < 24; round++) {
        const struct timespec wait = {0, 300000L + 900000L * round};
        int result = 0;
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            kvt_profile *profile = NULL;
            if (kvt_profile_open(scratch.path, KVT_PROFILE_WRITE, &profile, NULL, 0) != KVT_OK)
                _exit(1);
            for (;;) {
                if (use_all(profile, true) != KVT_OK) _exit(2);
            }
        }
        nanosleep(&wait, NULL);
        assert_int_equal(kill(child, SIGKILL), 0);
        assert_int_equal(waitpid(child, &result, 0), child);
        assert_true(WIFSIGNALED(result));
        kvt_profile_close(scratch_open(KVT_PROFILE_READ));
        expect_whole_imports();
    }
    kvt_profile *profile = scratch_open(KVT_PROFILE_WRITE);
    assert_ok(use_all(profile, true));
    kvt_profile_close(profile);
    expect_whole_imports();
    assert_int_equal(scratch_number("SELECT count(*) FROM run"), 1); /* gc leaves the newest */
}

/* ---- allocations that fail ---- */

/* From the n-th allocation on all fail, for growing n, until a whole session gets through. */
TEST(failed_allocations_are_reported)
{
    long n = 1, failures = 0;
    scratch_remove_profile();
    kvt_profile_close(scratch_open(KVT_PROFILE_WRITE));
    for (;; n += 1 + n / 12) {
        kvt_profile *profile = NULL;
        allocations_left = n;
        kvt_status status = kvt_profile_open(scratch.path, KVT_PROFILE_WRITE, &profile, NULL, 0);
        if (status == KVT_OK) status = use_all(profile, true);
        bool through = allocations_left > 0;
        allocations_left = -1;
        kvt_profile_close(profile);
        if (through) assert_ok(status);
        if (through) break;
        failures += status != KVT_OK;
        assert_true(n < 100000000);
        kvt_profile_close(scratch_open(KVT_PROFILE_READ));
        expect_whole_imports();
    }
    assert_true(failures > 20);
}

TEST(flipped_bits_are_refused_or_harmless)
{
    size_t count, refused = 0, used = 0;
    scratch_remove_profile();
    kvt_profile *profile = scratch_open(KVT_PROFILE_WRITE);
    assert_ok(use_all(profile, true));
    kvt_profile_close(profile);
    scratch_change("PRAGMA journal_mode = DELETE");
    char *bytes = scratch_bytes(&count);
    for (size_t at = 100; at < count; at += 401) {
        bytes[at] = (char)(bytes[at] ^ 0x11);
        scratch_remove_profile();
        FILE *file = fopen(scratch.path, "wb");
        assert_non_null(file);
        assert_int_equal(fwrite(bytes, 1, count, file), count);
        assert_int_equal(fclose(file), 0);
        bytes[at] = (char)(bytes[at] ^ 0x11);
        kvt_status status = kvt_profile_open(scratch.path, KVT_PROFILE_READ | KVT_PROFILE_FOREIGN,
                                             &profile, scratch.message, sizeof scratch.message);
        refused += status != KVT_OK;
        if (status != KVT_OK) {
            assert_true(status == KVT_E_CORRUPT || status == KVT_E_VERSION ||
                        status == KVT_E_DATABASE);
            continue;
        }
        status = use_all(profile, false);
        assert_true(status == KVT_OK || status == KVT_E_DATABASE);
        used += status == KVT_OK;
        kvt_profile_close(profile);
    }
    assert_true(refused > 20 && used > 20);
}

int main(void)
{
    if (!failing_sqlite_install()) return 1;
    return tests_run();
}
