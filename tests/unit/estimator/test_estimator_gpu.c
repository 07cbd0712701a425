/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_estimator_gpu.c - codecs measured on a GPU, over the stand-in for the driver: rows of `cuda`
 * stand beside the CPU's, which alone answer for the CPU; what fails leaves a status.
 */
#include "cases.h"
#include "fake_kernels.h"

#include "codecs/kv_sample.h"
#include "estimator/measure/codec_gpu.h"
#include "estimator/measure/measure.h"
#include "estimator/profile/profile_internal.h"

#include <kvterrace/codec.h>

enum { LOST = 719, REFUSED = 222 };

/* Small: the stand-in's kernels are slow. */
static const kvt_layout layout = {
    .layers = 1, .kv_heads = 1, .head_dim = 64, .dtype = KVT_DTYPE_BF16, .tokens = 32};
#define ENTRY_BYTES (2u * 64u * 32u * 2u)

static kvt_profile *profile;

TEST_ALL(fake_cuda_load, NULL);

TEST_BEFORE_EACH
{
    *fake = (fake_cuda_state){.gpu_count = 1, .queries_until_done = 2};
    fake_kernel_targets[0].bytes = 0; /* kernels may write what may be written */
    char message[256];
    assert_ok(kvt_profile_open(":memory:", KVT_PROFILE_WRITE, &profile, message, sizeof message));
}

TEST_AFTER_EACH
{
    kvt_profile_close(profile);
    assert_int_equal(fake_kernel_failures, 0);
    assert_int_equal(fake->live, 0);
}

static kvt_status measure(char *without_gpu)
{
    static uint8_t bytes[ENTRY_BYTES];
    codecs_kv_sample_fill(&layout, 3, bytes);
    const kvt_profile_kv kv = {.name = "small", .bytes = bytes, .layout = layout};
    const kvt_profile_request request = {.struct_size = sizeof request,
                                         .seconds_per_point = 1e-6,
                                         .repetitions = 1,
                                         .quick = true,
                                         .kv = &kv,
                                         .kv_count = 1,
                                         .without_gpu = without_gpu};
    return kvt_profile_measure_codecs(profile, &request);
}

static uint32_t rows(const char *where)
{
    char text[160];
    sqlite3_stmt *statement = NULL;
    (void)snprintf(text, sizeof text, "SELECT count(*) FROM codec_curve WHERE %s", where);
    assert_int_equal(sqlite3_prepare_v2(profile->database, text, -1, &statement, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_step(statement), SQLITE_ROW);
    const uint32_t count = (uint32_t)sqlite3_column_int(statement, 0);
    sqlite3_finalize(statement);
    return count;
}

/* Every form that kernels take; a faster GPU is no faster CPU. */
TEST(rows_of_a_gpu)
{
    char why[PROFILE_WITHOUT_GPU];
    kvt_codec_curve before, after;
    const kvt_variant raw = {.codec = KVT_CODEC_RAW};
    fake_kernels_give(fake, NULL, 0);
    assert_ok(measure(why));
    assert_string_equal(why, "");
    const uint32_t forms = rows("isa <> 'cuda' AND name NOT LIKE 'drop%'");
    assert_true(forms >= 15);
    assert_int_equal(rows("isa = 'cuda'"), forms);
    assert_int_equal(rows("isa = 'cuda' AND decode_bytes_per_s > 0 AND encode_bytes_per_s > 0 "
                          "AND threads = 1"),
                     forms);
    assert_ok(kvt_profile_codec(profile, raw, &before));
    assert_int_equal(sqlite3_exec(profile->database,
                                  "UPDATE codec_curve SET decode_bytes_per_s = 9e15 WHERE isa = "
                                  "'cuda'",
                                  NULL, NULL, NULL),
                     SQLITE_OK);
    assert_ok(kvt_profile_codec(profile, raw, &after));
    assert_true(after.decode_bytes_per_s == before.decode_bytes_per_s);
    assert_ok(profile_ladder_near_speed(profile, &before, &after));
    assert_true(after.decode_bytes_per_s < 9e15);
}

/* The link is a device with both directions, of four sizes; a run that is gone on with has it once,
 * whatever an interruption left of it. */
TEST(the_link_is_a_device)
{
    kvt_device_curve link, again;
    kvt_device_point point;
    fake_kernels_give(fake, NULL, 0);
    assert_int_equal(kvt_profile_device(profile, PROFILE_LINK_NAME, &link), KVT_MISS);
    assert_ok(measure(NULL));
    assert_ok(kvt_profile_device(profile, PROFILE_LINK_NAME, &link));
    assert_true(link.write.bytes_per_s > 0 && link.read.bytes_per_s > 0);
    assert_int_equal(link.tier, KVT_TIER_HBM);
    assert_true(strlen(link.identity) > 1);
    size_t points = 0;
    while (kvt_profile_point_at(profile, PROFILE_LINK_NAME, points, &point) == KVT_OK) {
        assert_true(point.bytes_per_s > 0 && point.depth == 1 && point.repetitions == 1);
        points++;
    }
    assert_int_equal(points, 8);

    codec_gpu *gpu = NULL;
    char reason[96];
    double seconds[2];
    int64_t run;
    assert_ok(codec_gpu_open(&gpu, reason, sizeof reason));
    assert_ok(profile_run_begin(profile, "codecs", NULL, 1, &run));
    for (int turn = 0; turn < 2; turn++)
        assert_ok(measure_link(gpu, profile, run, seconds, 2));
    assert_ok(profile_run_complete(profile, run));
    assert_ok(kvt_profile_point_at(profile, PROFILE_LINK_NAME, 7, &point));
    assert_int_equal(point.repetitions, 2);
    assert_int_equal(kvt_profile_point_at(profile, PROFILE_LINK_NAME, 8, &point), KVT_END);

    /* A measurement that ends before all sizes of a direction are there answers for nothing. */
    assert_ok(kvt_profile_device(profile, PROFILE_LINK_NAME, &link));
    assert_ok(profile_run_begin(profile, "codecs", NULL, 2, &run));
    fake->calls = 0;
    fake->fail_name = "cuMemcpyHtoDAsync_v2";
    fake->fail_call = 8;
    fake->fail_result = 1;
    assert_int_equal(measure_link(gpu, profile, run, seconds, 2), KVT_E_IO);
    assert_int_equal(fake->failed, 1);
    fake->fail_call = 0;
    fake->fail_name = NULL;
    assert_ok(profile_run_complete(profile, run));
    assert_ok(kvt_profile_device(profile, PROFILE_LINK_NAME, &again));
    assert_memory_equal(&link, &again, sizeof link);
    codec_gpu_close(gpu);
}

/* Speeds of kernels: of the variant, else of one near it, never of another codec, and imported ones
 * when they are asked for. */
TEST(speeds_of_kernels)
{
    kvt_codec_curve curve = {.stored_share = 0.5};
    fake_kernels_give(fake, NULL, 0);
    assert_ok(kvt_variant_parse("lossless:fast", &curve.variant));
    assert_int_equal(kvt_profile_codec_gpu(profile, false, &curve), KVT_MISS);
    assert_ok(measure(NULL));
    assert_int_equal(sqlite3_exec(profile->database,
                                  "UPDATE codec_curve SET decode_bytes_per_s = 7e9 WHERE isa = "
                                  "'cuda' AND name = 'lossless:fast'; UPDATE codec_curve SET "
                                  "decode_bytes_per_s = 9e9, stored_share = 0.3 WHERE isa = 'cuda' "
                                  "AND name LIKE 'planes:k4v4_g64'",
                                  NULL, NULL, NULL),
                     SQLITE_OK);
    assert_ok(kvt_profile_codec_gpu(profile, false, &curve));
    assert_true(curve.gpu_bytes_per_s == 7e9); /* whatever shares say */
    curve.stored_share = 0.3;
    assert_ok(kvt_variant_parse("planes:k4v3,g64", &curve.variant));
    assert_ok(kvt_profile_codec_gpu(profile, false, &curve));
    assert_true(curve.gpu_bytes_per_s == 9e9);
    curve = (kvt_codec_curve){.variant = {.codec = KVT_CODEC_TRANSFORM}};
    assert_int_equal(kvt_profile_codec_gpu(profile, false, &curve), KVT_MISS);
    assert_true(curve.gpu_bytes_per_s == 0);
    assert_int_equal(sqlite3_exec(profile->database,
                                  "UPDATE run SET kind = 'import', source = 'a paper'", NULL, NULL,
                                  NULL),
                     SQLITE_OK);
    curve = (kvt_codec_curve){.variant = {.codec = KVT_CODEC_RAW}};
    assert_int_equal(kvt_profile_codec_gpu(profile, false, &curve), KVT_MISS);
    assert_ok(kvt_profile_codec_gpu(profile, true, &curve));
    assert_true(curve.gpu_bytes_per_s > 0);
}

/* Without a GPU, and with one whose driver takes no kernel. */
TEST(no_rows_of_a_gpu)
{
    char why[PROFILE_WITHOUT_GPU];
    fake->gpu_count = 0;
    assert_ok(measure(why));
    assert_true(strstr(why, "no GPU") != NULL);
    assert_int_equal(rows("isa = 'cuda'"), 0);
    kvt_device_curve link;
    assert_int_equal(kvt_profile_device(profile, PROFILE_LINK_NAME, &link), KVT_MISS);
    fake->gpu_count = 1;
    fake->fail_name = "cuModuleLoadData";
    fake->fail_call = 1;
    fake->fail_alike = 1;
    fake->fail_result = REFUSED;
    fake_kernels_give(fake, NULL, 0);
    assert_ok(measure(NULL));
    assert_int_equal(rows("isa = 'cuda'"), 0);
    assert_true(rows("isa <> 'cuda'") > 0);
}

/* Verdicts that are not sound, and each call of the driver in turn: a status, and no row is made of
 * what failed. */
TEST(a_gpu_that_fails)
{
    fake_kernels_give(fake, NULL, 0);
    fake_kernel_lies = true;
    assert_int_equal(measure(NULL), KVT_E_CORRUPT);
    fake_kernel_lies = false;
    assert_int_equal(rows("isa = 'cuda'"), 0);
    for (uint32_t n = 1; n < 200; n += 1 + n / 2) {
        fake->calls = 0;
        fake->fail_call = n;
        fake->fail_result = LOST;
        fake->fail_for_good = 1;
        const kvt_status status = measure(NULL);
        fake->fail_call = 0;
        fake->fail_for_good = 0;
        assert_true(status == KVT_OK || status == KVT_E_GONE || status == KVT_E_IO);
        assert_int_equal(fake->live, 0);
    }
}
