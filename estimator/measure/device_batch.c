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
    double points = (double)(run->point_count + run->others_done);
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

/* Bytes of the range before its first multiple of begins_at, counted from the device's start. */
static uint64_t measure_skipped(const measure_run *run, const measure_batch *batch)
{
    if (batch->begins_at == 0) return 0;
    return (batch->begins_at - run->range_offset % batch->begins_at) % batch->begins_at;
}

uint64_t measure_places(const measure_run *run, const measure_batch *batch)
{
    const uint64_t step = batch->begins_at != 0 ? batch->begins_at : batch->bytes;
    const uint64_t skipped = measure_skipped(run, batch);
    if (run->range_bytes < skipped || run->range_bytes - skipped < batch->bytes) return 0;
    return (run->range_bytes - skipped - batch->bytes) / step + 1;
}

static void measure_prepare(measure_run *run, const measure_batch *batch, kvt_io *io)
{
    const uint64_t places = measure_places(run, batch);
    assert(places > 0);
    const uint64_t place =
        batch->sequential ? batch->submitted % places : profile_random(&run->random) % places;
    const uint64_t step = batch->begins_at != 0 ? batch->begins_at : batch->bytes;
    void *buffer = io->buffer;
    memset(io, 0, sizeof *io);
    io->kind = measure_kind(batch);
    io->bytes = batch->bytes;
    io->offset = run->range_offset + measure_skipped(run, batch) + place * step;
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

void measure_summarize(measure_run *run, size_t first, kvt_device_point *point)
{
    uint32_t count = run->settings.repetitions;
    double *column = run->latencies;
    double medians[3];
    for (uint32_t field = 0; field < 3; field++) {
        for (uint32_t i = 0; i < count; i++)
            column[i] = run->repetitions[3 * (first + i) + field];
        medians[field] = profile_median(column, count);
        if (field > 0) continue;
        point->bytes_per_s_min = column[0];
        point->bytes_per_s_max = column[count - 1];
    }
    point->bytes_per_s = medians[0];
    point->latency_seconds_p50 = medians[1];
    point->latency_seconds_p99 = medians[2];
}

/* ---- the interrupted run that a measurement goes on with ---- */

/*
 * A run counts when everything that its points depend on is the same: host, kernel, library
 * version, command line (which holds the settings), device, repetitions and grid. A call that may
 * not write takes up a run only if that has all its writes or none: otherwise a complete run would
 * answer for writes with a part of them.
 */

/* Not the run when a later one has measured the same device to its end. */
static const char resume_find[] =
    "SELECT r.id, d.id FROM run r JOIN device d ON d.run_id = r.id WHERE " PROFILE_OPEN_RUN
    " AND d.name = ?8 AND d.identity = ?9 AND d.engine = ?10 AND d.tier = ?11 AND "
    "d.capacity_bytes = ?12 AND d.request_bytes_max = ?13 AND d.depth_max = ?14 AND NOT EXISTS "
    "(SELECT 1 FROM run q JOIN device e ON e.run_id = q.id WHERE q.complete = 1 AND q.id > r.id "
    "AND e.name = d.name) ORDER BY r.id DESC LIMIT 1";

static kvt_status resume_find_run(measure_run *run, kvt_tier tier)
{
    const kvt_device_facts *facts = &run->device->facts;
    profile_row row = profile_row_begin(run->profile, resume_find);
    profile_row_open_run(&row, run->profile, "device", PROFILE_DEVICE_SEED, &run->settings);
    profile_row_text(&row, run->device->name);
    profile_row_text(&row, facts->identity);
    profile_row_text(&row, facts->engine);
    profile_row_integer(&row, (uint64_t)tier);
    profile_row_integer(&row, facts->capacity_bytes);
    profile_row_integer(&row, facts->request_bytes_max);
    profile_row_integer(&row, facts->depth_max);
    int result = row.result == SQLITE_OK ? sqlite3_step(row.statement) : row.result;
    if (result == SQLITE_ROW) {
        run->run = sqlite3_column_int64(row.statement, 0);
        run->device_row = sqlite3_column_int64(row.statement, 1);
    }
    sqlite3_finalize(row.statement);
    if (result == SQLITE_DONE) return KVT_MISS;
    return result == SQLITE_ROW ? KVT_OK : profile_status(result);
}

static bool resume_in_list(const uint32_t *list, uint32_t count, uint32_t value)
{
    for (uint32_t i = 0; i < count; i++) {
        if (list[i] == value) return true;
    }
    return false;
}

/* A point that this run would measure too, in the same way. */
static bool resume_point_fits(const measure_run *run, const kvt_device_point *point)
{
    const measure_grid *grid = &run->grid;
    return point->repetitions == run->settings.repetitions &&
           resume_in_list(grid->sizes, grid->size_count, point->request_bytes) &&
           resume_in_list(grid->depths, grid->depth_count, point->depth);
}

static kvt_device_point resume_point(sqlite3_stmt *statement)
{
    return (kvt_device_point){
        .kind = (uint8_t)sqlite3_column_int(statement, 0),
        .request_bytes = (uint32_t)sqlite3_column_int64(statement, 1),
        .depth = (uint32_t)sqlite3_column_int64(statement, 2),
        .repetitions = (uint32_t)sqlite3_column_int64(statement, 3),
        .bytes_per_s = sqlite3_column_double(statement, 4),
        .bytes_per_s_min = sqlite3_column_double(statement, 5),
        .bytes_per_s_max = sqlite3_column_double(statement, 6),
        .latency_seconds_p50 = sqlite3_column_double(statement, 7),
        .latency_seconds_p99 = sqlite3_column_double(statement, 8),
    };
}

/* Fills the run's points. KVT_MISS when one of them does not belong to this grid. */
static kvt_status resume_take_points(measure_run *run, size_t *writes_out)
{
    profile_row row = profile_row_begin(
        run->profile, "SELECT kind, request_bytes, depth, repetitions, bytes_per_s, "
                      "bytes_per_s_min, bytes_per_s_max, latency_seconds_p50, "
                      "latency_seconds_p99 FROM device_point WHERE device_id = ?");
    bool fits = true;
    int result = SQLITE_DONE;
    profile_row_integer(&row, (uint64_t)run->device_row);
    *writes_out = 0;
    if (row.result == SQLITE_OK) {
        while (fits && (result = sqlite3_step(row.statement)) == SQLITE_ROW) {
            const kvt_device_point point = resume_point(row.statement);
            fits = run->point_count < MEASURE_POINTS_MAX && resume_point_fits(run, &point);
            if (!fits) break;
            run->points[run->point_count++] = point;
            if (point.kind == KVT_IO_WRITE) (*writes_out)++;
        }
    } else {
        result = row.result;
    }
    sqlite3_finalize(row.statement);
    if (!fits) return KVT_MISS;
    return result == SQLITE_DONE ? KVT_OK : profile_status(result);
}

kvt_status measure_resume(measure_run *run, kvt_tier tier, bool writes)
{
    size_t written;
    if (run->settings.resume_seconds <= 0.0) return KVT_MISS;
    kvt_status status = resume_find_run(run, tier);
    if (status == KVT_OK) status = resume_take_points(run, &written);
    if (status == KVT_OK && !writes && written > 0) {
        const size_t all = (size_t)run->grid.size_count * run->grid.depth_count;
        if (written < all) status = KVT_MISS;
        run->points_planned += written;
    }
    if (status != KVT_OK) run->point_count = 0;
    return status;
}
