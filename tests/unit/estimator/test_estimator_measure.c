/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_estimator_measure.c - measuring devices and codecs: a simulated device's affine model comes
 * back, real back ends give sane points, requests are checked, cancelling keeps what was stored.
 */
#include "estimator/profile/profile.h"

#include "basis_support.h"
#include "cases.h"
#include "codecs/record.h"
#include "estimator/measure/measure.h"
#include "estimator/profile/profile_internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static void assert_near(double value, double expected, double relative)
{
    if (fabs(value - expected) <= relative * fabs(expected)) return;
    fail_msg("%.9g is not within %g of %.9g", value, relative, expected);
}

static kvt_profile *open_profile(void)
{
    char message[256];
    kvt_profile *profile = NULL;
    kvt_status status =
        kvt_profile_open(":memory:", KVT_PROFILE_WRITE, &profile, message, sizeof message);
    if (status != KVT_OK) fail_msg("%s: %s", kvt_status_name(status), message);
    return profile;
}

static kvt_device *open_device(const kvt_device_config *config)
{
    char message[256];
    kvt_device *device = NULL;
    kvt_status status = kvt_device_open(config, &device, message, sizeof message);
    if (status != KVT_OK) fail_msg("%s: %s", kvt_status_name(status), message);
    return device;
}

static kvt_device_config sim_config(uint64_t read_rate, uint64_t write_rate, uint64_t latency_ns)
{
    return (kvt_device_config){.struct_size = sizeof(kvt_device_config),
                               .name = "sim0",
                               .backend = "sim",
                               .capacity_bytes = UINT64_C(1) << 30,
                               .read_bytes_per_s = read_rate,
                               .write_bytes_per_s = write_rate,
                               .latency_ns = latency_ns};
}

static kvt_profile_request small_request(bool quick)
{
    return (kvt_profile_request){.struct_size = sizeof(kvt_profile_request),
                                 .seconds_per_point = 0.002,
                                 .repetitions = 3,
                                 .quick = quick,
                                 .command_line = "test"};
}

TEST(sim_parameters_come_back)
{
    static const struct {
        uint64_t read, write, latency_ns;
    } models[] = {{1000000000, 500000000, 100000},
                  {7000000000, 5000000000, 20000},
                  {150000000, 300000000, 80000},
                  {12000000000, 12000000000, 1000}};
    for (size_t i = 0; i < 8; i++) {
        const bool quick = i % 2 == 1;
        const uint64_t latency = models[i / 2].latency_ns;
        kvt_device_config config = sim_config(models[i / 2].read, models[i / 2].write, latency);
        kvt_profile *profile = open_profile();
        kvt_device *device = open_device(&config);
        kvt_profile_request request = small_request(quick);
        assert_ok(
            kvt_profile_measure_device(profile, device, KVT_TIER_SSD, 0, 64u << 20, &request));
        kvt_device_curve curve;
        assert_ok(kvt_profile_device(profile, "sim0", &curve));
        assert_near(curve.read.bytes_per_s, (double)models[i / 2].read, 0.01);
        assert_near(curve.write.bytes_per_s, (double)models[i / 2].write, 0.01);
        assert_near(curve.read.request_seconds, 1e-9 * (double)latency, 0.01);
        assert_near(curve.write.request_seconds, 1e-9 * (double)latency, 0.01);
        assert_true(curve.read.residual < 0.01 && curve.write.residual < 0.01);
        assert_int_equal(curve.tier, KVT_TIER_SSD);
        assert_string_equal(curve.engine, "sim");
        kvt_device_close(device);
        kvt_profile_close(profile);
    }
}

/* On one server with a queue, everything about a point is known beforehand. */
TEST(sim_points_are_exact)
{
    kvt_device_config config = sim_config(1000000000, 1000000000, 100000);
    kvt_profile *profile = open_profile();
    kvt_device *device = open_device(&config);
    kvt_profile_request request = small_request(false);
    assert_ok(kvt_profile_measure_device(profile, device, KVT_TIER_SSD, 0, 16u << 20, &request));
    kvt_device_point point;
    size_t count = 0;
    while (kvt_profile_point_at(profile, "sim0", count, &point) == KVT_OK) {
        double service = 100e-6 + (double)point.request_bytes / 1e9;
        assert_near(point.bytes_per_s, (double)point.request_bytes / service, 1e-3);
        assert_int_equal(point.repetitions, 3);
        assert_int_equal(point.kind, count < 20 ? KVT_IO_READ : KVT_IO_WRITE);
        if (point.depth == 1) assert_near(point.latency_seconds_p50, service, 1e-3);
        if (point.depth > 1) assert_true(point.latency_seconds_p99 > 1.5 * service);
        count++;
    }
    assert_int_equal(count, 40); /* 2 directions x 5 sizes x 4 depths */
    kvt_device_curve curve;
    assert_ok(kvt_profile_device_at(profile, 0, &curve));
    assert_int_equal(curve.depth_achieved, 32);
    assert_int_equal(kvt_profile_device_at(profile, 1, &curve), KVT_END);
    assert_int_equal(kvt_profile_device(profile, "absent", &curve), KVT_MISS);
    assert_int_equal(kvt_profile_point_at(profile, "absent", 0, &point), KVT_END);
    kvt_device_close(device);
    kvt_profile_close(profile);
}

/* A device that overlaps its latencies, and one whose depth 1 cannot reach the bandwidth. */
TEST(fit_separates_latency_from_bandwidth)
{
    kvt_device_point points[10];
    size_t count = 0;
    const uint32_t sizes[] = {1u << 12, 1u << 14, 1u << 16, 1u << 18, 1u << 20};
    for (size_t i = 0; i < 5; i++) {
        double alone = 80e-6 + sizes[i] / 2e9;
        double together = 1e-6 + sizes[i] / 2e9; /* 1 us of the CPU's per request */
        points[count++] = (kvt_device_point){.request_bytes = sizes[i],
                                             .depth = 1,
                                             .bytes_per_s = sizes[i] / alone,
                                             .latency_seconds_p50 = alone};
        points[count++] = (kvt_device_point){.request_bytes = sizes[i],
                                             .depth = 32,
                                             .bytes_per_s = sizes[i] / together,
                                             .latency_seconds_p50 = 32 * together};
    }
    kvt_affine fit;
    assert_true(profile_fit_points(points, count, KVT_IO_READ, &fit));
    assert_near(fit.bytes_per_s, 2e9, 0.002); /* saturated: 1 us in 525 is missing */
    assert_near(fit.request_seconds, 80e-6, 0.002);
    assert_true(fit.residual < 0.002);
    assert_false(profile_fit_points(points, count, KVT_IO_WRITE, &fit));
    points[0].latency_seconds_p50 *= 1.5; /* one odd latency shows in the residual */
    assert_true(profile_fit_points(points, count, KVT_IO_READ, &fit));
    assert_true(fit.residual > 0.1 && fit.residual < 0.5);
    assert_true(profile_fit_points(points, 1, KVT_IO_READ, &fit)); /* one point: its rate */
    assert_near(fit.bytes_per_s, points[0].bytes_per_s, 1e-9);
}

/* Small requests wait for 40 us of the CPU's, large ones for 400 MB/s, never for both: the rate is
 * what the two largest reach, not what a line through all of them promises. */
TEST(fit_knows_a_saturated_device)
{
    kvt_device_point points[10];
    size_t count = 0;
    const uint32_t sizes[] = {1u << 12, 1u << 14, 1u << 16, 1u << 18, 1u << 20};
    for (size_t i = 0; i < 5; i++) {
        double alone = 150e-6 + sizes[i] / 400e6;
        double together = fmax(40e-6, sizes[i] / 400e6);
        points[count++] = (kvt_device_point){.request_bytes = sizes[i],
                                             .depth = 1,
                                             .bytes_per_s = sizes[i] / alone,
                                             .latency_seconds_p50 = alone};
        points[count++] = (kvt_device_point){.request_bytes = sizes[i],
                                             .depth = 32,
                                             .bytes_per_s = sizes[i] / together,
                                             .latency_seconds_p50 = 32 * together};
    }
    kvt_affine fit;
    assert_true(profile_fit_points(points, count, KVT_IO_READ, &fit));
    assert_near(fit.bytes_per_s, 400e6, 1e-6);
    assert_near(fit.request_seconds, 150e-6, 1e-6);
    assert_true(fit.residual < 1e-6);
    points[9].bytes_per_s *= 1.1; /* still growing: a fit again */
    assert_true(profile_fit_points(points, count, KVT_IO_READ, &fit));
    assert_true(fit.bytes_per_s > 410e6);
}

TEST(memory_device_is_measured)
{
    kvt_device_config config = {.struct_size = sizeof config,
                                .name = "ram",
                                .backend = "memory",
                                .capacity_bytes = 4u << 20};
    kvt_profile *profile = open_profile();
    kvt_device *device = open_device(&config);
    kvt_profile_request request = small_request(true);
    assert_ok(
        kvt_profile_measure_device(profile, device, KVT_TIER_DRAM, 1u << 20, 2u << 20, &request));
    kvt_device_curve curve;
    assert_ok(kvt_profile_device(profile, "ram", &curve));
    assert_true(curve.read.bytes_per_s > 0.0 && isfinite(curve.read.bytes_per_s));
    assert_true(curve.write.bytes_per_s > 0.0 && isfinite(curve.write.bytes_per_s));
    assert_true(curve.read.request_seconds >= 0.0);
    assert_int_equal(curve.capacity_bytes, device->facts.capacity_bytes);
    kvt_device_point point;
    for (size_t i = 0; kvt_profile_point_at(profile, "ram", i, &point) == KVT_OK; i++) {
        assert_true(point.bytes_per_s_min <= point.bytes_per_s);
        assert_true(point.bytes_per_s <= point.bytes_per_s_max);
        assert_true(point.latency_seconds_p50 <= point.latency_seconds_p99);
        assert_true(point.depth <= device->facts.depth_max);
    }
    kvt_device_close(device);
    kvt_profile_close(profile);
}

/* Only the range handed over is written. */
TEST(writes_stay_in_their_range)
{
    kvt_device_config config = {.struct_size = sizeof config,
                                .name = "ram",
                                .backend = "memory",
                                .capacity_bytes = 1u << 20};
    static _Alignas(4096) unsigned char before[1u << 20], after[1u << 20];
    kvt_profile *profile = open_profile();
    kvt_device *device = open_device(&config);
    for (size_t i = 0; i < sizeof before; i++)
        before[i] = (unsigned char)(i * 31 + (i >> 9));
    assert_ok(kvt_device_transfer(device, KVT_IO_WRITE, 0, before, (uint32_t)sizeof before));
    kvt_profile_request request = small_request(true);
    assert_ok(kvt_profile_measure_device(profile, device, KVT_TIER_DRAM, 128u << 10, 512u << 10,
                                         &request));
    assert_ok(kvt_device_transfer(device, KVT_IO_READ, 0, after, (uint32_t)sizeof after));
    assert_memory_equal(before, after, 128u << 10);
    assert_memory_equal(before + (640u << 10), after + (640u << 10), 384u << 10);
    assert_true(memcmp(before + (128u << 10), after + (128u << 10), 512u << 10) != 0);
    assert_ok(kvt_profile_measure_device(profile, device, KVT_TIER_DRAM, 0, 0, &request));
    kvt_device_curve curve;
    assert_ok(kvt_profile_device(profile, "ram", &curve));
    assert_true(curve.write.bytes_per_s > 0.0); /* the newest run measured reads alone: it stays */
    memcpy(before, after, sizeof before);
    assert_ok(kvt_device_transfer(device, KVT_IO_READ, 0, after, (uint32_t)sizeof after));
    assert_memory_equal(before, after, sizeof before);
    kvt_device_close(device);
    kvt_profile_close(profile);
}

TEST(bad_requests_are_refused)
{
    kvt_device_config config = sim_config(1000000000, 1000000000, 1000);
    kvt_profile *profile = open_profile();
    kvt_device *device = open_device(&config);
    const uint64_t capacity = device->facts.capacity_bytes;
    kvt_profile_request request = small_request(true);
    assert_int_equal(
        kvt_profile_measure_device(profile, device, KVT_TIER_SSD, capacity, 4096, &request),
        KVT_E_ARGUMENT);
    assert_int_equal(
        kvt_profile_measure_device(profile, device, KVT_TIER_SSD, 4096, capacity, &request),
        KVT_E_ARGUMENT);
    assert_int_equal(kvt_profile_measure_device(profile, device, KVT_TIER_SSD, 1, 62, &request),
                     KVT_E_SPACE);
    assert_int_equal(kvt_profile_measure_device(profile, device, KVT_TIER_NONE, 0, 0, &request),
                     KVT_E_ARGUMENT);
    request.seconds_per_point = NAN;
    assert_int_equal(kvt_profile_measure_device(profile, device, KVT_TIER_SSD, 0, 0, &request),
                     KVT_E_ARGUMENT);
    request = small_request(true);
    request.struct_size = 1;
    assert_int_equal(kvt_profile_measure_codecs(profile, &request), KVT_E_ARGUMENT);
    kvt_device_curve curve;
    assert_int_equal(kvt_profile_device_at(profile, 0, &curve), KVT_END);
    kvt_device_close(device);
    kvt_profile_close(profile);
}

/* Reports come between points and every 100 ms, so what has been stored is told by done alone. */
typedef struct cancel_plan {
    double stop_at; /* part of the points that ends the run; above 1: none */
    double last_done;
} cancel_plan;

static bool cancel_later(void *context, double done, const char *what)
{
    cancel_plan *plan = context;
    assert_non_null(what);
    assert_true(done >= plan->last_done && done <= 1.0);
    plan->last_done = done;
    return done < plan->stop_at;
}

/* Cancelled runs answer only while no complete one exists. */
TEST(cancelling_keeps_what_was_stored)
{
    kvt_device_config config = sim_config(1000000000, 1000000000, 100000);
    kvt_profile *profile = open_profile();
    kvt_device *device = open_device(&config);
    kvt_profile_request request = small_request(false);
    kvt_device_curve curve;
    kvt_device_point point;
    cancel_plan plan = {.stop_at = 0.0};
    request.progress = cancel_later;
    request.progress_context = &plan;
    assert_int_equal(kvt_profile_measure_device(profile, device, KVT_TIER_SSD, 0, 0, &request),
                     KVT_E_CANCELLED);
    assert_int_equal(kvt_profile_device(profile, "sim0", &curve), KVT_MISS);
    plan = (cancel_plan){.stop_at = 0.2};
    assert_int_equal(kvt_profile_measure_device(profile, device, KVT_TIER_SSD, 0, 0, &request),
                     KVT_E_CANCELLED);
    assert_int_equal(device->in_flight, 0);
    assert_ok(kvt_profile_device(profile, "sim0", &curve));
    assert_ok(kvt_profile_point_at(profile, "sim0", 0, &point));
    assert_int_equal(kvt_profile_point_at(profile, "sim0", 19, &point), KVT_END);
    plan = (cancel_plan){.stop_at = 2.0};
    assert_ok(kvt_profile_measure_device(profile, device, KVT_TIER_SSD, 0, 0, &request));
    assert_true(plan.last_done == 1.0);
    plan = (cancel_plan){.stop_at = 0.1};
    assert_int_equal(kvt_profile_measure_device(profile, device, KVT_TIER_SSD, 0, 0, &request),
                     KVT_E_CANCELLED);
    assert_ok(kvt_profile_point_at(profile, "sim0", 19, &point));
    kvt_device_close(device);
    kvt_profile_close(profile);
}

TEST(codecs_are_measured)
{
    kvt_profile *profile = open_profile();
    kvt_profile_request request = small_request(true);
    request.repetitions = 1;
    const kvt_variant raw = {KVT_CODEC_RAW, 0, 0};
    const kvt_variant lossless = {KVT_CODEC_LOSSLESS, KVT_LOSSLESS_DENSE, 0};
    const kvt_variant absent = {KVT_CODEC_RAW, 9, 0};
    kvt_codec_curve curve;
    assert_int_equal(kvt_profile_codec(profile, raw, &curve), KVT_MISS);
    assert_ok(kvt_profile_measure_codecs(profile, &request));
    assert_ok(kvt_profile_codec(profile, raw, &curve));
    assert_true(curve.stored_share >= 1.0 && curve.stored_share < 1.02);
    assert_true(curve.encode_bytes_per_s > 0.0 && curve.decode_bytes_per_s > 0.0);
    assert_ok(kvt_profile_codec(profile, lossless, &curve));
    assert_true(curve.stored_share > 0.3 && curve.stored_share < 0.9);
    assert_int_equal(curve.variant.codec, KVT_CODEC_LOSSLESS);
    assert_int_equal(kvt_profile_codec(profile, absent, &curve), KVT_MISS);
    /* Every rung has its own rate, in bits of 16 with metadata and padding. */
    static const struct {
        const char *name;
        double bits;
    } rungs[] = {{"lossless:fast", 12.0},
                 {"kivi:k4v4,g64", 4.5},
                 {"planes:k8v8,g64", 8.5},
                 {"planes:k6v6,g64", 6.5},
                 {"planes:k6v4,g64", 5.5},
                 {"planes:k4v6,g64,vfirst", 5.5},
                 {"planes:k4v4,g64", 4.5},
                 {"planes:k2v2,g64", 2.5},
                 {"entropy:k0.25v0.5", 3.6},
                 {"entropy:k0.5v0.5", 3.1},
                 {"drop:stream,50+entropy:k0.5v1,vchan", 1.3},
                 {"drop:stream,25+entropy:k0.5v1,vchan", 0.65}};
    for (size_t i = 0; i < sizeof rungs / sizeof rungs[0]; i++) {
        kvt_variant variant;
        assert_ok(kvt_variant_parse(rungs[i].name, &variant));
        assert_ok(kvt_profile_codec(profile, variant, &curve));
        if (!(fabs(curve.stored_share * 16.0 - rungs[i].bits) < 0.16 * rungs[i].bits)) {
            fail_msg("%s stores %g bits", rungs[i].name, curve.stored_share * 16.0);
        }
        assert_true(curve.encode_bytes_per_s > 0.0 && curve.decode_bytes_per_s > 0.0);
    }
    kvt_profile_close(profile);
}

/* A basis of the profile has speeds of its own, at steps that its tables were made for; one that is
 * damaged is passed over. */
TEST(bases_are_measured)
{
    const transform_shape shape = {.layers = 2,
                                   .kv_heads = 2,
                                   .head_dim = 32,
                                   .rotary_dim = 32,
                                   .sides = 2,
                                   .span = TRANSFORM_SPAN_LAYER};
    basis_made made = basis_made_of(shape, 5), other = basis_made_of(shape, 6);
    assert_ok(basis_made_write(&made));
    assert_ok(basis_made_write(&other));
    kvt_profile *profile = open_profile();
    assert_ok(profile_basis_import(profile, made.object, made.bytes, "s", NULL));
    assert_ok(profile_basis_import(profile, other.object, other.bytes, "s", NULL));
    char sql[128];
    (void)snprintf(sql, sizeof sql, "UPDATE basis SET object = zeroblob(8192) WHERE start = %u",
                   (unsigned)transform_hash_start(other.basis.hash));
    assert_int_equal(sqlite3_exec(profile->database, sql, NULL, NULL, NULL), SQLITE_OK);
    kvt_profile_request request = small_request(true);
    request.repetitions = 1;
    assert_ok(kvt_profile_measure_codecs(profile, &request));
    kvt_codec_curve curve;
    const uint32_t start = transform_hash_start(made.basis.hash) << PROFILE_BASIS_SHIFT;
    const kvt_variant variant = {KVT_CODEC_TRANSFORM, TRANSFORM_MODE, start | 64};
    assert_ok(kvt_profile_codec(profile, variant, &curve));
    assert_true(curve.encode_bytes_per_s > 0.0 && curve.decode_bytes_per_s > 0.0);
    /* Drawn from its spreads, nothing falls back to raw. */
    assert_true(curve.stored_share < 0.5);
    const kvt_variant damaged = {KVT_CODEC_TRANSFORM, TRANSFORM_MODE,
                                 transform_hash_start(other.basis.hash) << PROFILE_BASIS_SHIFT |
                                     64};
    assert_int_equal(kvt_profile_codec(profile, damaged, &curve), KVT_MISS);
    kvt_profile_close(profile);
}
