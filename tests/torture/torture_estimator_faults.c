/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torture_estimator_faults.c - devices that fail, vanish or say busy while they are measured: the
 * status is theirs, nothing stays in flight, and the profile keeps its earlier answer.
 */
#include "cases.h"

#include "fault_device.h"

#include "estimator/measure/measure.h"
#include "estimator/profile/profile.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static kvt_profile *open_profile(void)
{
    kvt_profile *profile = NULL;
    assert_ok(kvt_profile_open(":memory:", KVT_PROFILE_WRITE, &profile, NULL, 0));
    return profile;
}

static kvt_device *open_sim(uint64_t rate)
{
    kvt_device_config config = {.struct_size = sizeof config,
                                .name = "disk",
                                .backend = "sim",
                                .capacity_bytes = 1u << 24,
                                .read_bytes_per_s = rate,
                                .write_bytes_per_s = rate,
                                .latency_ns = 1000};
    kvt_device *inner = NULL, *faulty = NULL;
    assert_ok(kvt_device_open(&config, &inner, NULL, 0));
    assert_ok(tiers_fault_open(inner, &faulty));
    return faulty;
}

static kvt_status measure(kvt_profile *profile, kvt_device *device)
{
    kvt_profile_request request = {
        .struct_size = sizeof request, .repetitions = 1, .seconds_per_point = 0.001, .quick = true};
    return kvt_profile_measure_device(profile, device, KVT_TIER_SSD, 0, 8u << 20, &request);
}

/* The n-th operation fails, for n over a whole measurement. */
TEST(nth_operation_fails)
{
    kvt_profile *profile = open_profile();
    kvt_device *device = open_sim(1000000000);
    tiers_fault_counts counts;
    assert_ok(measure(profile, device));
    tiers_fault_counts_get(device, &counts);
    const uint64_t operations = counts.reads + counts.writes;
    kvt_device_close(device);
    assert_true(operations > 100);
    uint64_t failed = 0;
    for (uint64_t n = 0; n < operations; n += 7) {
        const bool read = n >= counts.writes;
        device = open_sim(3000000000);
        tiers_fault_rule rule = {.action = TIERS_FAULT_FAIL,
                                 .kinds = read ? TIERS_FAULT_READS : TIERS_FAULT_WRITES,
                                 .skip = read ? n - counts.writes : n,
                                 .hits = 1,
                                 .status = KVT_E_IO,
                                 .os_error = EIO};
        kvt_device_curve curve;
        assert_ok(tiers_fault_add(device, &rule));
        assert_int_equal(measure(profile, device), KVT_E_IO);
        assert_int_equal(device->in_flight, 0);
        assert_ok(kvt_profile_device(profile, "disk", &curve));
        assert_true(curve.read.bytes_per_s < 1.1e9); /* still the complete run's */
        kvt_device_close(device);
        failed++;
    }
    assert_true(failed > 10);
    kvt_profile_close(profile);
}

TEST(device_vanishes)
{
    kvt_profile *profile = open_profile();
    kvt_device *device = open_sim(1000000000);
    kvt_device_curve curve;
    tiers_fault_set_gone(device, true);
    assert_int_equal(measure(profile, device), KVT_E_GONE);
    assert_int_equal(kvt_profile_device(profile, "disk", &curve), KVT_MISS);
    tiers_fault_set_gone(device, false);
    assert_ok(measure(profile, device));
    kvt_device_close(device);
    kvt_profile_close(profile);
}

/* Busy now and then only delays. */
TEST(device_says_busy)
{
    kvt_profile *profile = open_profile();
    kvt_device *device = open_sim(1000000000);
    kvt_device_curve curve;
    tiers_fault_rule rule = {
        .action = TIERS_FAULT_BUSY, .kinds = TIERS_FAULT_READS, .skip = 40, .hits = 5};
    assert_ok(tiers_fault_add(device, &rule));
    assert_ok(measure(profile, device));
    tiers_fault_counts counts;
    tiers_fault_counts_get(device, &counts);
    assert_int_equal(counts.hits, 5);
    assert_ok(kvt_profile_device(profile, "disk", &curve));
    assert_true(curve.read.bytes_per_s > 0.98e9 && curve.read.bytes_per_s < 1.02e9);
    kvt_device_close(device);
    kvt_profile_close(profile);
}

/* A real file through whatever engine this machine gives. */
TEST(file_device_is_measured)
{
    char path[64];
    snprintf(path, sizeof path, "estimator-file-XXXXXX");
    int file = mkstemp(path);
    assert_true(file >= 0);
    assert_int_equal(ftruncate(file, 16 << 20), 0);
    close(file);
    kvt_device_config config = {.struct_size = sizeof config,
                                .name = "file0",
                                .backend = "file",
                                .path = path,
                                .capacity_bytes = 16u << 20};
    char message[256];
    kvt_device *device = NULL;
    kvt_status status = kvt_device_open(&config, &device, message, sizeof message);
    if (status != KVT_OK) fail_msg("%s: %s", kvt_status_name(status), message);
    kvt_profile *profile = open_profile();
    assert_ok(measure(profile, device));
    kvt_device_curve curve;
    assert_ok(kvt_profile_device(profile, "file0", &curve));
    assert_string_equal(curve.engine, device->facts.engine);
    assert_string_equal(curve.identity, device->facts.identity);
    assert_int_equal(curve.direct, (device->facts.flags & KVT_DEVICE_DIRECT) != 0);
    assert_int_equal(curve.depth_achieved, device->facts.depth_achieved);
    assert_true(curve.read.bytes_per_s > 0.0 && curve.write.bytes_per_s > 0.0);
    kvt_device_close(device);
    kvt_profile_close(profile);
    assert_int_equal(unlink(path), 0);
}
