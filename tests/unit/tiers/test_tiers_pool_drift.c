/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_tiers_pool_drift.c - placement follows members that change their speed, in virtual time, and
 * what a worker keeps in flight.
 */

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cases.h"
#include "fault_device.h"
#include "pool_scratch.h"
#include "tiers/devices/device_sim.h"

enum { UNIT = 262144, UNITS = 64, MEMBERS = 4 };

typedef struct drift {
    tiers_pool *pool;
    kvt_device *devices[MEMBERS];
    double speeds[MEMBERS]; /* what the drives really do */
    double elapsed_s;       /* of transfers, by those speeds */
    char *buffer;
} drift;

static void drift_open(drift *d, bool reweigh)
{
    const double speeds[MEMBERS] = {100e6, 100e6, 200e6, 400e6};
    tiers_member_options members[MEMBERS];
    tiers_pool_options options = {.unit_bytes = UNIT, .reweigh = reweigh};
    memset(d, 0, sizeof *d);
    for (int i = 0; i < MEMBERS; i++) {
        kvt_device_config config = {.struct_size = sizeof config,
                                    .name = "model",
                                    .backend = "sim",
                                    .capacity_bytes = (uint64_t)1 << 32,
                                    .read_bytes_per_s = (uint64_t)speeds[i],
                                    .write_bytes_per_s = (uint64_t)speeds[i]};
        assert_ok(kvt_device_open(&config, &d->devices[i], NULL, 0));
        members[i] = pool_scratch_member(d->devices[i], speeds[i]);
        d->speeds[i] = speeds[i];
    }
    assert_ok(tiers_pool_open(members, MEMBERS, &options, &d->pool, NULL, 0));
    d->buffer = pool_scratch_buffer((uint64_t)UNITS * UNIT);
}

static void drift_close(drift *d)
{
    tiers_pool_close(d->pool);
}

static void drift_set_speed(drift *d, int member, double bytes_per_s)
{
    d->speeds[member] = bytes_per_s;
    tiers_sim_set_speed(d->devices[member], (uint64_t)bytes_per_s, (uint64_t)bytes_per_s);
}

static double drift_seconds(const drift *d, const tiers_location *location)
{
    double slowest = 0;
    for (uint32_t i = 0; i < location->share_count; i++) {
        const tiers_share *share = &location->shares[i];
        double seconds = (double)share->units * UNIT / d->speeds[share->member];
        if (seconds > slowest) slowest = seconds;
    }
    return slowest;
}

/* Achieved over the sum of what the drives do now. */
static double drift_ratio(const drift *d, const tiers_location *location)
{
    double sum = 0;
    for (int i = 0; i < MEMBERS; i++)
        sum += d->speeds[i];
    return (double)location->bytes / sum / drift_seconds(d, location);
}

static tiers_location *drift_reserve(drift *d, uint64_t units)
{
    tiers_location *location;
    assert_ok(tiers_pool_reserve(d->pool, units * UNIT, &location));
    return location;
}

static void drift_move(drift *d, const tiers_location *location, kvt_io_kind kind)
{
    assert_ok(tiers_pool_transfer(d->pool, kind, location, d->buffer, location->bytes));
    d->elapsed_s += drift_seconds(d, location);
}

/* Writes and reads objects until a new one gets `ratio` of the sum; returns the seconds it took. */
static double drift_until(drift *d, double ratio, double limit_s)
{
    d->elapsed_s = 0;
    while (d->elapsed_s < limit_s) {
        tiers_location *location = drift_reserve(d, UNITS);
        bool reached = drift_ratio(d, location) >= ratio;
        drift_move(d, location, KVT_IO_WRITE);
        drift_move(d, location, KVT_IO_READ);
        tiers_pool_release(d->pool, location);
        if (reached) break;
    }
    return d->elapsed_s;
}

TEST(new_objects_follow_a_drive_that_halves)
{
    drift d;
    drift_open(&d, true);
    tiers_location *old = drift_reserve(&d, UNITS);
    assert_true(drift_ratio(&d, old) > 0.99);
    assert_true(drift_until(&d, 2, 3) >= 3); /* never: three steady seconds */
    tiers_location *steady = drift_reserve(&d, UNITS);
    assert_int_equal(share_of(steady, 3), 32);

    drift_set_speed(&d, 3, 200e6);
    assert_true(drift_until(&d, 0.9, 10) < 2);
    tiers_location *after = drift_reserve(&d, UNITS);
    assert_true(drift_ratio(&d, after) >= 0.9);
    /* 32 units at 200 MB/s against 22 of 64: the old layout could be read faster, this one not. */
    assert_true(tiers_pool_layout_gain(d.pool, old) > 1.35);
    assert_true(tiers_pool_layout_gain(d.pool, after) < 1.1);

    drift_set_speed(&d, 3, 400e6);
    assert_true(drift_until(&d, 0.9, 10) < 4);
    tiers_pool_release(d.pool, old);
    tiers_pool_release(d.pool, steady);
    tiers_pool_release(d.pool, after);
    drift_close(&d);
}

TEST(without_reweighing_the_weights_stay)
{
    drift d;
    drift_open(&d, false);
    drift_set_speed(&d, 3, 100e6);
    assert_true(drift_until(&d, 0.9, 5) >= 5);
    tiers_member_stats stats;
    assert_ok(tiers_pool_member(d.pool, 3, &stats));
    assert_true(stats.weight_bytes_per_s == 400e6); /* but what was measured is reported */
    assert_true(stats.read_bytes_per_s > 99e6 && stats.read_bytes_per_s < 110e6);
    drift_close(&d);
}

TEST(a_member_that_recovers_is_found_out)
{
    drift d;
    drift_open(&d, true);
    drift_set_speed(&d, 0, 1e5); /* a thousandth: its share is less than a unit */
    (void)drift_until(&d, 0.2, 400);
    tiers_location *without = drift_reserve(&d, UNITS);
    assert_int_equal(share_of(without, 0), 0);
    tiers_pool_release(d.pool, without);
    drift_set_speed(&d, 0, 100e6);
    uint32_t objects = 0;
    for (uint32_t share = 0; share < 7; objects++) {
        tiers_location *location = drift_reserve(&d, UNITS);
        share = share_of(location, 0);
        for (int i = 0; i < 8; i++)
            drift_move(&d, location, KVT_IO_READ);
        tiers_pool_release(d.pool, location);
        assert_true(objects < 2000);
    }
    drift_close(&d);
}

/* ---- what is in flight ---- */

/* Counts what it holds; finishes everything at each reap. */
typedef struct hoard {
    kvt_device base;
    kvt_io *ios[64];
    uint32_t count;
    uint64_t bytes;
    uint64_t bytes_max;
} hoard;

static void hoard_close(kvt_device *device)
{
    (void)device; /* the test's */
}

static kvt_status hoard_submit(kvt_device *device, kvt_io *io)
{
    hoard *h = (hoard *)device;
    if (h->count == 64) return KVT_BUSY;
    io->submitted_ns = 1;
    h->ios[h->count++] = io;
    h->bytes += io->bytes;
    if (h->bytes > h->bytes_max) h->bytes_max = h->bytes;
    return KVT_QUEUED;
}

static size_t hoard_reap(kvt_device *device, kvt_io **done, size_t min, size_t max,
                         uint64_t timeout_ns)
{
    hoard *h = (hoard *)device;
    size_t count = 0;
    (void)min, (void)timeout_ns;
    while (count < max && h->count > 0) {
        kvt_io *io = h->ios[--h->count];
        h->bytes -= io->bytes;
        io->status = KVT_OK;
        io->finished_ns = 2;
        done[count++] = io;
    }
    return count;
}

static const kvt_device_ops hoard_ops = {.struct_size = sizeof(kvt_device_ops),
                                         .abi_version = KVT_DEVICE_ABI,
                                         .name = "hoard",
                                         .close = hoard_close,
                                         .submit = hoard_submit,
                                         .reap = hoard_reap};

TEST(bytes_in_flight_are_bounded)
{
    const uint64_t bounds[] = {0, (uint64_t)3 << 20, 1000};
    const uint64_t expected[] = {(uint64_t)8 << 20, (uint64_t)3 << 20, (uint64_t)1 << 20};
    char *buffer = pool_scratch_buffer((uint64_t)32 << 20);
    for (int i = 0; i < 3; i++) {
        hoard h = {.base = {.ops = &hoard_ops,
                            .facts = {.capacity_bytes = 64 << 20,
                                      .align_bytes = 512,
                                      .request_bytes_max = 4 << 20,
                                      .depth_max = 64}}};
        tiers_member_options member = pool_scratch_member(&h.base, 1e9);
        member.in_flight_bytes_max = bounds[i];
        tiers_pool_options options = {0};
        tiers_pool *pool;
        tiers_location *location;
        assert_ok(tiers_pool_open(&member, 1, &options, &pool, NULL, 0));
        assert_ok(tiers_pool_reserve(pool, (uint64_t)32 << 20, &location));
        assert_ok(tiers_pool_transfer(pool, KVT_IO_WRITE, location, buffer, location->bytes));
        tiers_pool_release(pool, location);
        tiers_pool_close(pool);
        assert_int_equal(h.bytes_max, expected[i]);
    }
}

/* ---- a drive that answers everything with an error ---- */

static bool erring_retired(tiers_pool *pool)
{
    tiers_member_stats stats;
    assert_ok(tiers_pool_member(pool, 0, &stats));
    return stats.state == KVT_DEVICE_GONE;
}

TEST(a_drive_that_only_fails_is_retired_but_not_one_with_a_bad_range)
{
    char *buffer = pool_scratch_buffer((uint64_t)UNITS * UNIT);
    for (int whole = 0; whole < 2; whole++) {
        kvt_device *device;
        tiers_pool *pool;
        tiers_location *location;
        assert_ok(tiers_fault_open(pool_scratch_memory((uint64_t)64 << 20), &device));
        tiers_member_options member = pool_scratch_member(device, 1e9);
        member.reserved_head_bytes = 8192;
        tiers_pool_options options = {.unit_bytes = UNIT};
        assert_ok(tiers_pool_open(&member, 1, &options, &pool, NULL, 0));
        assert_ok(tiers_pool_reserve(pool, UNITS * UNIT, &location));
        tiers_fault_rule rule = {.action = TIERS_FAULT_FAIL,
                                 .kinds = TIERS_FAULT_READS,
                                 .offset = 8192,
                                 .bytes = whole ? 0 : (uint64_t)63 << 20,
                                 .status = KVT_E_IO,
                                 .os_error = EIO};
        assert_ok(tiers_fault_add(device, &rule));
        for (int i = 0; i < 40; i++) {
            kvt_status status =
                tiers_pool_transfer(pool, KVT_IO_READ, location, buffer, location->bytes);
            assert_true(status == KVT_E_IO || (whole && status == KVT_E_GONE));
        }
        assert_int_equal(erring_retired(pool), whole);
        tiers_pool_release(pool, location);
        tiers_pool_close(pool);
    }
}
