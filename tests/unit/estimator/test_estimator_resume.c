/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_estimator_resume.c - interrupted measurements go on where they stopped, and only with what
 * was measured in the same way; reads and writes at once; codecs by threads and on given KV.
 */
#include "cases.h"

#include "codecs/kv_sample.h"
#include "tools/command/worker_pool.h"

#include "estimator/exchange/exchange.h"
#include "estimator/measure/measure.h"
#include <kvterrace/codec.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct bench {
    kvt_profile *profile;
    kvt_device *device;
    kvt_profile_request request;
    int calls_left; /* things that may still begin until the progress says stop */
    int calls;      /* things that began */
    char what[128]; /* the last one */
} bench;

static bool count_calls(void *context, double done, const char *what)
{
    bench *at = context;
    assert_non_null(what);
    assert_true(done >= 0.0 && done <= 1.0);
    if (strcmp(at->what, what) == 0) return true; /* the same, a while later */
    snprintf(at->what, sizeof at->what, "%s", what);
    at->calls++;
    return at->calls_left-- > 0;
}

static void bench_open(bench *at)
{
    const kvt_device_config config = {.struct_size = sizeof config,
                                      .name = "sim0",
                                      .backend = "sim",
                                      .capacity_bytes = UINT64_C(1) << 30,
                                      .read_bytes_per_s = 1000000000,
                                      .write_bytes_per_s = 500000000,
                                      .latency_ns = 100000};
    memset(at, 0, sizeof *at);
    assert_ok(kvt_profile_open(":memory:", KVT_PROFILE_WRITE, &at->profile, NULL, 0));
    assert_ok(kvt_device_open(&config, &at->device, NULL, 0));
    at->request = (kvt_profile_request){.struct_size = sizeof at->request,
                                        .repetitions = 3,
                                        .command_line = "profile devices",
                                        .resume_seconds = 3600,
                                        .progress = count_calls,
                                        .progress_context = at};
}

static void bench_close(bench *at)
{
    kvt_device_close(at->device);
    kvt_profile_close(at->profile);
}

/* Measures until the progress has been called so often; writes of 16 MiB, or reads alone. */
static kvt_status bench_measure(bench *at, int calls, bool writes)
{
    at->calls = 0;
    at->calls_left = calls;
    at->what[0] = '\0';
    return kvt_profile_measure_device(at->profile, at->device, KVT_TIER_SSD, 0,
                                      writes ? 16u << 20 : 0, &at->request);
}

/* The rows of a view; released by json_decref. */
static json_t *bench_view(const bench *at, const char *view)
{
    json_t *views = json_object();
    assert_ok(exchange_view(at->profile, view, views));
    json_t *rows = json_incref(json_object_get(views, view));
    json_decref(views);
    return rows;
}

static void assert_runs(bench *at, int runs, int complete)
{
    json_t *rows = bench_view(at, "runs"), *row;
    size_t i;
    int found = 0;
    json_array_foreach(rows, i, row)
    {
        found += (int)json_integer_value(json_object_get(row, "complete"));
    }
    assert_int_equal(json_array_size(rows), runs);
    assert_int_equal(found, complete);
    json_decref(rows);
}

static size_t count_points(bench *at)
{
    kvt_device_point point;
    size_t count = 0;
    while (kvt_profile_point_at(at->profile, "sim0", count, &point) == KVT_OK)
        count++;
    return count;
}

/* The range is written, then come 40 points, four mixtures and four sizes by their begin; a point
 * that the first part has is not measured again. */
TEST(an_interrupted_run_goes_on)
{
    bench at;
    bench_open(&at);
    assert_int_equal(bench_measure(&at, 25, true), KVT_E_CANCELLED); /* in the 26th point */
    assert_runs(&at, 1, 0);
    assert_ok(bench_measure(&at, 1000000, true));
    assert_int_equal(at.calls, 15 + 4 + 4);
    assert_runs(&at, 1, 1);
    assert_int_equal(count_points(&at), 40);
    kvt_device_curve curve;
    assert_ok(kvt_profile_device(at.profile, "sim0", &curve));
    assert_true(fabs(curve.read.bytes_per_s / 1e9 - 1.0) < 0.01);
    assert_true(fabs(curve.write.bytes_per_s / 5e8 - 1.0) < 0.01);
    assert_true(curve.read.residual < 0.01);
    /* Complete: the same call measures everything again, in a run of its own. */
    assert_ok(bench_measure(&at, 1000000, true));
    assert_runs(&at, 2, 2);
    assert_int_equal(at.calls, 40 + 4 + 4);
    bench_close(&at);
}

TEST(other_settings_begin_anew)
{
    bench at;
    bench_open(&at);
    int runs = 0;
    assert_int_equal(bench_measure(&at, 8, true), KVT_E_CANCELLED);
    assert_runs(&at, ++runs, 0);
    at.request.command_line = "another command";
    assert_int_equal(bench_measure(&at, 8, true), KVT_E_CANCELLED);
    assert_runs(&at, ++runs, 0);
    at.request.repetitions = 2;
    assert_int_equal(bench_measure(&at, 8, true), KVT_E_CANCELLED);
    assert_runs(&at, ++runs, 0);
    at.request.quick = true; /* a grid without depths 4, 16 and 32 */
    assert_int_equal(bench_measure(&at, 2, true), KVT_E_CANCELLED);
    assert_runs(&at, ++runs, 0);
    at.request.resume_seconds = 0; /* not asked for */
    assert_int_equal(bench_measure(&at, 2, true), KVT_E_CANCELLED);
    assert_runs(&at, ++runs, 0);
    at.request.resume_seconds = -1;
    assert_int_equal(bench_measure(&at, 2, true), KVT_E_ARGUMENT);
    at.request.resume_seconds = 3600;
    assert_ok(bench_measure(&at, 1000000, true));
    assert_runs(&at, runs, 1);
    bench_close(&at);
}

/* A call that may not write takes up a run with all of its writes, not one with a part of them. */
TEST(reads_go_on_after_whole_writes)
{
    bench at;
    bench_open(&at);
    assert_int_equal(bench_measure(&at, 12, true), KVT_E_CANCELLED);
    assert_ok(bench_measure(&at, 1000000, false));
    assert_runs(&at, 2, 1);
    bench_close(&at);
    bench_open(&at);
    assert_int_equal(bench_measure(&at, 30, true), KVT_E_CANCELLED); /* among the reads */
    assert_ok(bench_measure(&at, 1000000, false));
    assert_runs(&at, 1, 1);
    assert_int_equal(count_points(&at), 40);
    bench_close(&at);
}

/* The simulated device serves one request after the other, so mixing costs nothing there. */
TEST(mixing_is_measured)
{
    bench at;
    json_t *rows, *row;
    size_t i;
    bench_open(&at);
    assert_ok(bench_measure(&at, 1000000, false));
    rows = bench_view(&at, "mixed");
    assert_int_equal(json_array_size(rows), 0);
    json_decref(rows);
    double kept = 7;
    assert_int_equal(kvt_profile_mix_kept(at.profile, "sim0", &kept), KVT_MISS);
    assert_true(kept == 0);
    assert_ok(bench_measure(&at, 1000000, true));
    assert_ok(kvt_profile_mix_kept(at.profile, "sim0", &kept));
    assert_true(kept > 0.98 && kept <= 1);
    rows = bench_view(&at, "mixed");
    /* The largest requests at three shares of reads, others at one. */
    assert_int_equal(json_array_size(rows), 4);
    json_array_foreach(rows, i, row)
    {
        const double mixed = json_number_value(json_object_get(row, "bytes_per_s"));
        const double unmixed = json_number_value(json_object_get(row, "unmixed_bytes_per_s"));
        assert_true(fabs(mixed / unmixed - 1.0) < 0.02);
    }
    json_decref(rows);
    bench_close(&at);
}

/* Interrupted among the rows of the second pass, then gone on with. */
TEST(codecs_go_on_and_use_threads)
{
    bench at;
    worker_pool pool;
    json_t *rows, *row;
    size_t i, by_threads[3] = {0};
    bench_open(&at);
    worker_pool_open(&pool, 2);
    const kvt_layout layout = {
        .layers = 2, .kv_heads = 2, .head_dim = 64, .dtype = KVT_DTYPE_FP16, .tokens = 96};
    uint64_t bytes;
    assert_ok(kvt_layout_bytes(&layout, &bytes));
    void *source = test_zeros(bytes);
    codecs_kv_sample_fill(&layout, 3, source);
    const kvt_profile_kv kv = {.name = "a dump", .layout = layout, .bytes = source};
    at.request.quick = true;
    at.request.repetitions = 1;
    at.request.workers = &pool.workers;
    at.request.kv = &kv;
    at.request.kv_count = 1;
    at.calls_left = 30;
    assert_int_equal(kvt_profile_measure_codecs(at.profile, &at.request), KVT_E_CANCELLED);
    assert_runs(&at, 1, 0);
    at.calls_left = 1000;
    assert_ok(kvt_profile_measure_codecs(at.profile, &at.request));
    assert_runs(&at, 1, 1);
    rows = bench_view(&at, "codecs");
    json_array_foreach(rows, i, row)
    {
        const json_int_t threads = json_integer_value(json_object_get(row, "threads"));
        assert_string_equal(json_string_value(json_object_get(row, "source")), "a dump");
        assert_in_range(threads, 1, 2);
        by_threads[threads]++;
    }
    assert_int_equal(by_threads[1], by_threads[2]);
    assert_true(by_threads[1] >= 20);
    assert_int_equal(exchange_view(at.profile, "nothing", rows), KVT_E_ARGUMENT);
    json_decref(rows);
    worker_pool_close(&pool);
    bench_close(&at);
}

TEST(every_view_can_be_listed)
{
    static const char *const views[] = {
        "runs",  "mixed",        "starts",  "codecs",  "models",  "quality", "quality_sets",
        "rungs", "calibrations", "choices", "learned", "prefill", "passes",  NULL};
    bench at;
    bench_open(&at);
    for (size_t i = 0; views[i] != NULL; i++) {
        json_t *rows = bench_view(&at, views[i]);
        assert_int_equal(json_array_size(rows), 0);
        json_decref(rows);
    }
    bench_close(&at);
}
