/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_batch.c - see device_batch.h.
 *
 * All times are the device's own clock (kvt_io.submitted_ns, finished_ns), so a device in virtual
 * time is measured like a real one; it is given a fixed number of requests instead of seconds.
 * A repetition's bandwidth is bytes over the time from its first submit to its last finish: filling
 * and draining the queue are inside, so it never flatters.
 *
 * Thread rule: the thread that measures owns run, profile and device.
 */
#include "estimator/measure/device_batch.h"

#include "base/clock.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#define MEASURE_VIRTUAL_REQUESTS 64u
#define MEASURE_REAP_TIMEOUT_NS  UINT64_C(100000000)
#define MEASURE_PROGRESS_NS      UINT64_C(100000000)
#define MEASURE_NAPS_MAX         10000u

void measure_report(measure_run *run, double part_of_point, bool always)
{
    if (run->settings.progress == NULL || run->cancelled) return;
    uint64_t now = base_clock_ns();
    if (!always && now < run->progress_at_ns) return;
    run->progress_at_ns = now + MEASURE_PROGRESS_NS;
    double points = (double)(run->point_count + run->mixed_done);
    double done = (points + part_of_point) / (double)run->points_planned;
    if (done > 1.0) done = 1.0;
    if (!run->settings.progress(run->settings.progress_context, done, run->what)) {
        run->cancelled = true;
    }
}

static void measure_complete(measure_run *run, measure_batch *batch, const kvt_io *io)
{
    if (io->status != KVT_OK) {
        if (batch->status == KVT_OK) batch->status = io->status;
        return;
    }
    if (batch->completed == 0 || io->submitted_ns < batch->first_ns) {
        batch->first_ns = io->submitted_ns;
    }
    if (io->finished_ns > batch->last_ns) batch->last_ns = io->finished_ns;
    bool timed = batch->read_share == 0.0 || io->kind == KVT_IO_READ;
    if (timed && batch->timed < MEASURE_REQUESTS_MAX) {
        uint64_t nanoseconds =
            io->finished_ns > io->submitted_ns ? io->finished_ns - io->submitted_ns : 0;
        run->latencies[batch->timed++] = 1e-9 * (double)nanoseconds;
    }
    batch->completed++;
}

static bool measure_wants_more(const measure_run *run, const measure_batch *batch)
{
    if (run->cancelled || batch->status != KVT_OK) return false;
    if (batch->submitted >= batch->requests_max) return false;
    if (batch->seconds <= 0.0 || batch->timed == 0) return true;
    return 1e-9 * (double)(batch->last_ns - batch->first_ns) < batch->seconds;
}

/* Reads and writes of a mixture alternate as evenly as their share allows, so that every stretch of
 * requests holds both. */
static kvt_io_kind measure_kind(const measure_batch *batch)
{
    if (batch->read_share == 0.0) return batch->kind;
    double before = batch->read_share * (double)batch->submitted;
    return floor(before + batch->read_share) > floor(before) ? KVT_IO_READ : KVT_IO_WRITE;
}

static void measure_prepare(measure_run *run, const measure_batch *batch, kvt_io *io)
{
    uint64_t slots = run->range_bytes / batch->bytes;
    uint64_t slot =
        batch->sequential ? batch->submitted % slots : profile_random(&run->random) % slots;
    void *buffer = io->buffer;
    memset(io, 0, sizeof *io);
    io->kind = measure_kind(batch);
    io->bytes = batch->bytes;
    io->offset = run->range_offset + slot * batch->bytes;
    io->buffer = buffer;
}

/* Takes `io` through submit. False when the device has no room for it now. */
static bool measure_submit(measure_run *run, measure_batch *batch, kvt_io *io)
{
    measure_prepare(run, batch, io);
    kvt_status status = kvt_device_submit(run->device, io);
    if (status == KVT_BUSY) return false;
    batch->submitted++;
    if (status == KVT_QUEUED) {
        batch->in_flight++;
    } else {
        measure_complete(run, batch, io);
    }
    return true;
}

/* An idle device that says busy lacks something for a moment; one that keeps saying it is broken.
 */
static void measure_be_patient(measure_run *run, measure_batch *batch)
{
    if (++batch->naps > MEASURE_NAPS_MAX) batch->status = KVT_E_IO;
    base_sleep(1000000);
    measure_report(run, 0.5, false);
}

void measure_batch_run(measure_run *run, measure_batch *batch)
{
    kvt_io *idle[64];
    size_t idle_count = 0;
    assert(batch->depth <= sizeof idle / sizeof idle[0]);
    for (uint32_t i = 0; i < batch->depth; i++)
        idle[idle_count++] = &run->ios[i];
    for (;;) {
        while (idle_count > 0 && measure_wants_more(run, batch)) {
            if (!measure_submit(run, batch, idle[idle_count - 1])) break;
            if (idle[idle_count - 1]->state == KVT_IO_IN_FLIGHT) idle_count--;
            measure_report(run, 0.5, false);
        }
        kvt_device_flush(run->device);
        if (batch->in_flight == 0) {
            if (!measure_wants_more(run, batch)) break;
            measure_be_patient(run, batch);
            continue;
        }
        size_t count =
            kvt_device_reap(run->device, run->done, 1, batch->depth, MEASURE_REAP_TIMEOUT_NS);
        for (size_t i = 0; i < count; i++) {
            measure_complete(run, batch, run->done[i]);
            idle[idle_count++] = run->done[i];
        }
        batch->in_flight -= count;
        measure_report(run, 0.5, false);
    }
}

kvt_status measure_repetition(measure_run *run, measure_batch *batch, size_t index)
{
    bool is_virtual = (run->device->facts.flags & KVT_DEVICE_VIRTUAL_TIME) != 0;
    uint64_t virtual_requests = MEASURE_VIRTUAL_REQUESTS + 2u * batch->depth;
    batch->requests_max = is_virtual ? virtual_requests : MEASURE_REQUESTS_MAX;
    batch->seconds = is_virtual ? 0.0 : run->settings.seconds_per_point;
    measure_batch_run(run, batch);
    if (batch->status != KVT_OK) return batch->status;
    if (run->cancelled || batch->timed == 0) return KVT_E_CANCELLED;
    uint64_t count = batch->timed;
    /* A clock that saw no time pass has a resolution of 1 ns: the figure is then a lower bound. */
    uint64_t nanoseconds = batch->last_ns > batch->first_ns ? batch->last_ns - batch->first_ns : 1;
    (void)profile_median(run->latencies, count); /* sorts */
    run->repetitions[3 * index] =
        (double)batch->completed * (double)batch->bytes / (1e-9 * (double)nanoseconds);
    run->repetitions[3 * index + 1] = run->latencies[(count - 1) / 2];
    run->repetitions[3 * index + 2] = run->latencies[(count - 1) * 99 / 100];
    return KVT_OK;
}

void measure_summarize(measure_run *run, kvt_device_point *point)
{
    uint32_t count = run->settings.repetitions;
    double *column = run->latencies;
    double medians[3];
    for (uint32_t field = 0; field < 3; field++) {
        for (uint32_t i = 0; i < count; i++)
            column[i] = run->repetitions[3 * i + field];
        medians[field] = profile_median(column, count);
        if (field > 0) continue;
        point->bytes_per_s_min = column[0];
        point->bytes_per_s_max = column[count - 1];
    }
    point->bytes_per_s = medians[0];
    point->latency_seconds_p50 = medians[1];
    point->latency_seconds_p99 = medians[2];
}
