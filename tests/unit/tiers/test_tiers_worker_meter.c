/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_tiers_worker_meter.c - what counts as evidence of a member's speed, and when the weight
 * follows. Everything happens on a clock that the test keeps.
 */

#include "cases.h"

#include <math.h>

#include "tiers/pool/worker_meter.h"

#define MB  1e6
#define KIB 1024u

/* A drive with one pipe: requests follow each other at bytes_per_s, each ends a latency later. */
typedef struct drive {
    tiers_meter meter;
    double bytes_per_s;
    double latency_s;
    uint64_t now_ns;
    uint64_t pipe_ns;
    kvt_io ios[64];
} drive;

static void drive_open(drive *d, double bytes_per_s)
{
    *d = (drive){.bytes_per_s = bytes_per_s, .latency_s = 80e-6, .now_ns = 1000000};
    tiers_meter_init(&d->meter, bytes_per_s, bytes_per_s, d->latency_s);
}

static void drive_submit(drive *d, kvt_io *io, kvt_io_kind kind, uint32_t bytes)
{
    *io = (kvt_io){.kind = kind, .bytes = bytes, .submitted_ns = d->now_ns};
    if (d->pipe_ns < d->now_ns) d->pipe_ns = d->now_ns;
    d->pipe_ns += (uint64_t)(bytes / d->bytes_per_s * 1e9);
    io->finished_ns = d->pipe_ns + (uint64_t)(d->latency_s * 1e9);
    tiers_meter_begin(&d->meter, io);
}

/* Keeps `depth` requests in flight for `seconds`; every write_every-th is a write (0 = none, 1 =
 * all). */
static void drive_run(drive *d, double seconds, uint32_t depth, uint32_t bytes,
                      uint32_t write_every)
{
    uint64_t until = d->now_ns + (uint64_t)(seconds * 1e9);
    uint32_t head = 0, count = 0, made = 0;
    while (d->now_ns < until || count > 0) {
        while (count < depth && d->now_ns < until) {
            bool writes = write_every != 0 && ++made % write_every == 0;
            drive_submit(d, &d->ios[(head + count++) % 64], writes ? KVT_IO_WRITE : KVT_IO_READ,
                         bytes);
        }
        kvt_io *io = &d->ios[head++ % 64];
        count--;
        d->now_ns = io->finished_ns;
        io->status = KVT_OK;
        tiers_meter_end(&d->meter, io);
    }
    d->now_ns += 5000000; /* idle */
}

static bool is_near(double value, double wanted, double share)
{
    return fabs(value / wanted - 1) <= share;
}

TEST(a_steady_drive_keeps_its_weight)
{
    drive d;
    drive_open(&d, 100 * MB);
    for (int i = 0; i < 100; i++)
        drive_run(&d, 0.02, 8, 256 * KIB, 0); /* short bursts, idle between them */
    assert_true(d.meter.samples[KVT_IO_READ] > 100);
    assert_true(is_near(d.meter.bytes_per_s[KVT_IO_READ], 100 * MB, 0.01));
    assert_true(d.meter.weight_bytes_per_s == 100 * MB);
    drive_run(&d, 2, 1, 256 * KIB, 0); /* one request at a time, much longer than the latency */
    assert_true(is_near(d.meter.bytes_per_s[KVT_IO_READ], 100 * MB, 0.01));
}

TEST(latency_is_not_taken_for_bandwidth)
{
    drive d;
    drive_open(&d, 4000 * MB);
    drive_run(&d, 1, 1, 4 * KIB, 0);   /* 47 MB/s */
    drive_run(&d, 1, 1, 256 * KIB, 0); /* 1800 MB/s */
    drive_run(&d, 1, 8, 4 * KIB, 0);   /* 370 MB/s, never idle */
    assert_int_equal(d.meter.samples[KVT_IO_READ], 0);
    drive_run(&d, 1, 8, 256 * KIB, 0);
    assert_true(d.meter.samples[KVT_IO_READ] > 0);
    assert_true(is_near(d.meter.bytes_per_s[KVT_IO_READ], 4000 * MB, 0.01));
}

TEST(the_weight_follows_a_drive_down_and_up)
{
    drive d;
    drive_open(&d, 400 * MB);
    drive_run(&d, 1, 8, 256 * KIB, 0);
    d.bytes_per_s = 200 * MB;
    drive_run(&d, 0.2, 8, 256 * KIB, 0);
    assert_true(d.meter.weight_bytes_per_s == 400 * MB); /* could still be a hiccup */
    drive_run(&d, 0.8, 8, 256 * KIB, 0);
    assert_true(is_near(d.meter.weight_bytes_per_s, 200 * MB, 0.02));
    drive_run(&d, 3, 8, 256 * KIB, 0);
    assert_false(d.meter.following);
    d.bytes_per_s = 400 * MB;
    drive_run(&d, 1, 8, 256 * KIB, 0);
    assert_true(is_near(d.meter.weight_bytes_per_s, 400 * MB, 0.02));
}

TEST(a_hiccup_and_a_small_drift_change_nothing)
{
    drive d;
    drive_open(&d, 400 * MB);
    for (int i = 0; i < 10; i++) {
        d.bytes_per_s = 100 * MB;
        drive_run(&d, 0.1, 8, 256 * KIB, 0);
        d.bytes_per_s = 400 * MB;
        drive_run(&d, 1, 8, 256 * KIB, 0);
    }
    d.bytes_per_s = 372 * MB;
    drive_run(&d, 3, 8, 256 * KIB, 0);
    assert_true(d.meter.weight_bytes_per_s == 400 * MB);
    assert_true(is_near(d.meter.bytes_per_s[KVT_IO_READ], 372 * MB, 0.01));
}

/* A drive that answers late is slow however little it is asked: its weight is gone within a second,
 * and back within ten of its being well, though its load never shows a bandwidth. */
TEST(a_drive_that_answers_late_loses_its_weight)
{
    static const double latencies[] = {0.05, 0.2, 2};
    for (uint32_t i = 0; i < 3; i++) {
        drive d;
        drive_open(&d, 2000 * MB);
        d.meter.request_seconds = d.latency_s;
        for (int k = 0; k < 100; k++)
            drive_run(&d, 0.005, 1, 64 * KIB, 0);
        assert_true(d.meter.weight_bytes_per_s == 2000 * MB);
        d.latency_s = latencies[i];
        const uint64_t slow_ns = d.now_ns;
        while (d.meter.weight_bytes_per_s > 100 * MB && d.now_ns - slow_ns < 100e9)
            drive_run(&d, 1e-6, 1, 64 * KIB, 0);                 /* one request */
        assert_true(d.now_ns - slow_ns < (i < 2 ? 1e9 : 2.1e9)); /* one answer of 2 s */
        assert_true(tiers_meter_is_late(&d.meter));
        d.latency_s = 80e-6;
        const uint64_t well_ns = d.now_ns;
        while (d.meter.weight_bytes_per_s < 2000 * MB && d.now_ns - well_ns < 100e9) {
            drive_run(&d, 1e-6, 1, 64 * KIB, 0);
            d.now_ns += 50000000; /* twenty reads a second */
        }
        assert_true(d.now_ns - well_ns < 10e9);
        assert_false(tiers_meter_is_late(&d.meter));
        assert_true(d.meter.bytes_per_s[KVT_IO_READ] == 2000 * MB);
    }
}

/* Many answers in time, in the span in which a drive falls silent, do not hide the silence. */
TEST(a_silence_behind_many_answers_costs_the_weight)
{
    enum { QUICK = 64 };
    drive d;
    kvt_io quick[QUICK], last = {.kind = KVT_IO_WRITE, .bytes = 16 * KIB};
    drive_open(&d, 100 * MB);
    d.meter.request_seconds = d.latency_s;
    last.submitted_ns = d.now_ns;
    last.finished_ns = d.now_ns + 2000000000;
    tiers_meter_begin(&d.meter, &last);
    for (int i = 0; i < QUICK; i++) {
        quick[i] = (kvt_io){.bytes = 16 * KIB,
                            .submitted_ns = d.now_ns,
                            .finished_ns = d.now_ns + 160000u * (unsigned)(i + 1)};
        tiers_meter_begin(&d.meter, &quick[i]);
    }
    for (int i = 0; i < QUICK; i++)
        (void)tiers_meter_end(&d.meter, &quick[i]);
    assert_false(tiers_meter_is_late(&d.meter));
    (void)tiers_meter_end(&d.meter, &last);
    assert_true(tiers_meter_is_late(&d.meter));
    assert_true(d.meter.weight_bytes_per_s < 100 * MB / 8);
}

/* One that is kept busy when its answers come 2 s late, and whose spans are evidence of bandwidth,
 * has all of its weight again. */
TEST(a_busy_drive_that_was_late_has_its_weight_again)
{
    drive d;
    drive_open(&d, 100 * MB);
    drive_run(&d, 2, 8, 256 * KIB, 2);
    assert_true(d.meter.weight_bytes_per_s == 100 * MB);
    const double sound = d.meter.bytes_per_s[KVT_IO_READ];
    d.latency_s = 2;
    drive_run(&d, 4, 32, 256 * KIB, 2);
    assert_true(tiers_meter_is_late(&d.meter));
    assert_true(d.meter.weight_bytes_per_s < 100 * MB / 8);
    d.latency_s = 80e-6;
    for (int i = 0; i < 40; i++) {
        drive_run(&d, 1e-6, 1, 4 * KIB, 0); /* as a worker asks */
        d.now_ns += 100000000;
    }
    assert_false(tiers_meter_is_late(&d.meter));
    assert_true(d.meter.weight_bytes_per_s >= 0.9 * sound);
}

/* Late answers now and then, and a burst of many requests, are none of it. */
TEST(late_answers_now_and_then_change_nothing)
{
    drive d;
    drive_open(&d, 2000 * MB);
    for (int i = 0; i < 200; i++) {
        d.latency_s = i % 20 == 0 ? 0.05 : 80e-6;
        drive_run(&d, 1e-6, 1, 64 * KIB, 0);
        d.now_ns += 40000000;
        assert_true(d.meter.weight_bytes_per_s == 2000 * MB);
    }
    d.latency_s = 80e-6;
    drive_run(&d, 1, 64, 1024 * KIB, 0); /* each waits for 33 ms behind the others */
    assert_true(d.meter.weight_bytes_per_s == 2000 * MB);
}

TEST(writes_are_apart_and_their_loss_is_presumed_of_reads)
{
    drive d;
    drive_open(&d, 400 * MB);
    d.bytes_per_s = 100 * MB; /* this drive writes slowly, and the open did not know */
    drive_run(&d, 1, 8, 256 * KIB, 1);
    assert_true(is_near(d.meter.bytes_per_s[KVT_IO_WRITE], 100 * MB, 0.01));
    assert_true(d.meter.bytes_per_s[KVT_IO_READ] == 400 * MB);
    assert_true(d.meter.weight_bytes_per_s == 400 * MB);
    d.bytes_per_s = 50 * MB; /* now it lost half of that */
    drive_run(&d, 2, 8, 256 * KIB, 1);
    assert_true(is_near(d.meter.weight_bytes_per_s, 200 * MB, 0.03));
    d.bytes_per_s = 400 * MB; /* the reads did not */
    drive_run(&d, 2, 8, 256 * KIB, 0);
    assert_true(is_near(d.meter.weight_bytes_per_s, 400 * MB, 0.02));
}

TEST(a_mix_moves_both)
{
    drive d;
    drive_open(&d, 400 * MB);
    drive_run(&d, 1, 8, 256 * KIB, 2);
    assert_true(d.meter.weight_bytes_per_s == 400 * MB);
    d.bytes_per_s = 200 * MB;
    drive_run(&d, 3, 8, 256 * KIB, 2);
    assert_true(is_near(d.meter.weight_bytes_per_s, 200 * MB, 0.03));
    assert_true(is_near(d.meter.bytes_per_s[KVT_IO_WRITE], 200 * MB, 0.03));
    drive_run(&d, 1, 8, 256 * KIB, 16); /* every sixteenth a write is a read load */
    assert_true(is_near(d.meter.bytes_per_s[KVT_IO_READ], 200 * MB, 0.03));
}

/* A clock whose steps are coarse: requests take no time at all, or a nanosecond, now and then
 * hours. */
TEST(no_clock_makes_a_weight_that_cannot_be)
{
    drive d;
    drive_open(&d, 1e9);
    for (uint32_t i = 0; i < 20000; i++) {
        kvt_io ios[2];
        if (i == 10000) tiers_meter_init(&d.meter, 1e15, 0, 0);
        for (uint32_t j = 0; j < 2; j++) {
            ios[j] = (kvt_io){.kind = i / 100 % 4 >= 2 - j ? KVT_IO_WRITE : KVT_IO_READ,
                              .bytes = i % 2 == 0 ? 512 : UINT32_MAX,
                              .submitted_ns = d.now_ns};
            tiers_meter_begin(&d.meter, &ios[j]);
        }
        d.now_ns += i % 1000 == 999 ? UINT64_C(36000000000000) : i % 3;
        for (uint32_t j = 0; j < 2; j++) {
            ios[j].finished_ns = d.now_ns;
            tiers_meter_end(&d.meter, &ios[j]);
        }
        for (int kind = 0; kind < 2; kind++)
            assert_true(d.meter.bytes_per_s[kind] > 0 && d.meter.bytes_per_s[kind] <= 1e15);
        assert_true(d.meter.weight_bytes_per_s > 0 && isfinite(d.meter.weight_bytes_per_s));
    }
    assert_true(d.meter.samples[KVT_IO_READ] > 0 && d.meter.samples[KVT_IO_WRITE] > 0);
}

TEST(the_floor_holds_and_failures_do_not_count)
{
    drive d;
    drive_open(&d, 400 * MB);
    d.bytes_per_s = 1 * MB;
    drive_run(&d, 30, 8, 256 * KIB, 0);
    assert_true(d.meter.weight_bytes_per_s == 400 * MB / 64);
    uint32_t samples = d.meter.samples[KVT_IO_READ];
    for (int i = 0; i < 1000; i++) {
        kvt_io io;
        drive_submit(&d, &io, KVT_IO_READ, 256 * KIB);
        io.status = KVT_E_IO;
        d.now_ns = io.finished_ns;
        assert_false(tiers_meter_end(&d.meter, &io));
    }
    assert_int_equal(d.meter.samples[KVT_IO_READ], samples);
}
