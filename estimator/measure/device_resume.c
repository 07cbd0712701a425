/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_resume.c - finds the interrupted run that a measurement of a device goes on with.
 *
 * A run counts when everything that its points depend on is the same: host, kernel, library
 * version, command line (which holds the settings), device, repetitions and grid. A call that may
 * not write takes up a run only if that has all its writes or none: otherwise a complete run would
 * answer for writes with a part of them.
 *
 * Thread rule: the thread that measures owns run, profile and device.
 */
#include "estimator/measure/device_batch.h"

#include <string.h>

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
